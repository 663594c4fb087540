"""SQLite state backend, for processes on one host and records that outlive a restart: one file, one thread.

Calls that have queued up are served together by the one thread of a process that uses the file, so the event loop never
waits for a disk: the writes of a batch are one transaction. Wake-ups of other processes come with a delay of `POLL` at
most. The file must lie on a local disk; times are those of the host's clock.

WAL lets readers and one writer work side by side, and a process that is killed leaves nothing that the next one can't
put right. `synchronous=NORMAL` writes through to the disk only where SQLite folds its log into the file: a power cut
may lose the last moments, never the file.
"""

import asyncio
import contextlib
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from dovetail.errors import SetupError
from dovetail.state.base import (
    MAX_COUNT,
    Conflict,
    Entry,
    Listener,
    LogPage,
    LogRecord,
    StateBackend,
    StoreFull,
    StoreUnavailable,
    Topics,
    check_new,
    check_ttl,
    counted,
    share_of,
    warn_once,
)
from dovetail.state.memory import MEBIBYTE, RECORD_OVERHEAD

POLL = 0.02  # seconds between two looks at what other processes have published
KEEP_WAKES = 4096
APPLICATION = 0x446F7604  # stands in the file: it is ours, and of this format

ANOTHER = "give another file in state (DOVETAIL_STATE)"
DAMAGED = f"is damaged; move it away, and a new one is made, or {ANOTHER}"
DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}  # though other parts of the file may still be usable

T = TypeVar("T")
_Job = tuple[bool, Callable[["_Tables"], Any], "asyncio.Future[Any]"]  # whether it writes, what it does, and who waits
_Answer = tuple["asyncio.Future[Any]", Any]
log = logging.getLogger("dovetail.state")


class _Tables:
    """What the file holds, seen through one connection: each call is made between `begin` and `commit`."""

    def __init__(self, file: sqlite3.Connection, prefix: bytes, max_bytes: int, clock: Callable[[], float]) -> None:
        self.file = file
        self._execute = file.execute
        self._prefix = prefix
        self._max_bytes = max_bytes
        self._max_log_bytes = max_bytes // 4
        (self._page_bytes,) = self._one("PRAGMA page_size")
        self._clock = clock
        self._now = 0.0
        self._serial = self._wake = 0
        self.woken: dict[str, None] = {}  # topics of this transaction

    # ── transactions ──

    def begin(self, writes: bool) -> int:
        """The newest wake. If this writes, no other process does so from now on."""
        self._now = self._clock()
        if writes:
            self.woken.clear()
            self._execute("BEGIN IMMEDIATE")
            self._serial, self._wake = self._execute("SELECT serial, wake FROM numbers").fetchone()
        return self._wake

    def commit(self, calls: int) -> int:
        """Also free a few things that have expired, and write down who is to be woken. Returns the newest wake."""
        self._sweep(4 * calls)  # a call adds one at most, so the sweep always catches up
        for topic in self.woken:
            self._wake += 1
            self._execute("INSERT INTO wakes VALUES (?, ?)", (self._wake, self._name(topic)))
        if self._wake % 256 < len(self.woken):  # now and then
            self._execute("DELETE FROM wakes WHERE id <= ?", (self._wake - KEEP_WAKES,))
        self._execute("UPDATE numbers SET serial = ?, wake = ?", (self._serial, self._wake))
        self._execute("COMMIT")
        return self._wake

    def _tick(self) -> int:
        self._serial += 1
        return self._serial

    # ── keys ──

    def get(self, key: str) -> Entry | None:
        row = self._one("SELECT value, version FROM entries WHERE name = ? AND expires > ?", self._name(key), self._now)
        return None if row is None else Entry(*row)

    def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        check_new(key, ttl)
        entry = self.get(key)
        if if_version is not None and if_version != (0 if entry is None else entry.version):
            raise Conflict
        return self._write(key, entry, value, self._now + ttl)

    def touch(self, key: str, ttl: float) -> bool:
        check_ttl(ttl)
        values = (self._now + ttl, self._name(key), self._now)
        return self._execute("UPDATE entries SET expires = ? WHERE name = ? AND expires > ?", values).rowcount > 0

    def remaining(self, key: str) -> float | None:
        row = self._one("SELECT expires FROM entries WHERE name = ? AND expires > ?", self._name(key), self._now)
        return None if row is None else row[0] - self._now

    def delete(self, key: str) -> bool:
        values = (self._name(key), self._now)
        return self._execute("DELETE FROM entries WHERE name = ? AND expires > ?", values).rowcount > 0

    def add(self, key: str, n: int, ttl: float) -> int:
        check_new(key, ttl)
        entry, left = self.get(key), self.remaining(key)
        total = counted(key, None if entry is None else entry.value, n)
        self._write(key, entry, b"%d" % total, self._now + (ttl if left is None else left))
        return total

    def check(self) -> None:
        """Could a session be opened? A write that changes nothing for anyone."""
        self._admit(1.0)
        self._tick()

    def _write(self, key: str, entry: Entry | None, value: bytes, expires: float) -> int:
        """Give a key its value; `entry` is what it has, if any."""
        if entry is None or len(value) > len(entry.value):
            self._check_size(value)
            self._admit(share_of(key) if entry is None else 1.0)
        self._execute("REPLACE INTO entries VALUES (?, ?, ?, ?)", (self._name(key), value, self._tick(), expires))
        return self._serial

    # ── logs ──

    def append(self, log: str, data: bytes, *, keep: int, ttl: float, if_last: int | None = None) -> int:
        check_new(log, ttl, keep)
        self._check_size(data)
        name = self._name(log)
        id, last = self._find_log(name)
        if if_last is not None and if_last != last:
            raise Conflict
        if not id:
            self.drop(log)  # it may have expired
            self._admit(share_of(log) + 0.05)  # where keys are full, streams of the sessions that are there go on
            id = self._tick()
        change = "ON CONFLICT (name) DO UPDATE SET last = ?3, expires = ?4"
        self._execute(f"INSERT INTO logs VALUES (?1, ?2, ?3, ?4) {change}", (name, id, last + 1, self._now + ttl))
        if last >= keep:
            self._execute("DELETE FROM records WHERE log = ? AND id <= ?", (id, last + 1 - keep))
        self._shrink_logs(len(data) + RECORD_OVERHEAD)
        self._execute("INSERT INTO records VALUES (?, ?, ?, ?)", (self._tick(), id, last + 1, data))
        self.woken[log] = None
        return last + 1

    def read(self, log: str, after: int, limit: int = 100) -> LogPage:
        id, last = self._find_log(self._name(log))
        if not id:
            return LogPage([], 0, 0)
        (first,) = self._one("SELECT coalesce(min(id), ?) FROM records WHERE log = ?", last + 1, id)
        some = "SELECT id, data FROM records WHERE log = ? AND id > ? ORDER BY id LIMIT ?"
        rows = self._execute(some, (id, min(max(after, 0), MAX_COUNT), min(max(limit, 0), MAX_COUNT)))
        return LogPage([LogRecord(*row) for row in rows], first, last)

    def drop(self, log: str) -> None:
        self._execute("DELETE FROM logs WHERE name = ?", (self._name(log),))

    def _find_log(self, name: bytes) -> tuple[int, int]:
        """Its id, and that of its newest record; zeros if there is none."""
        select = "SELECT id, last FROM logs WHERE name = ? AND expires > ?"
        id, last = self._one(select, name, self._now) or (0, 0)
        return id, last

    def _shrink_logs(self, size: int) -> None:
        """Make room for a record: free logs that have expired, and if that is not enough the oldest records of all."""
        while self._log_bytes() + size > self._max_log_bytes:
            if not self._sweep(64, "logs"):
                self._execute("DELETE FROM records WHERE serial = (SELECT min(serial) FROM records)")

    # ── wake-ups ──

    def publish(self, topic: str) -> None:
        self.woken[topic] = None

    def wakes_since(self, seen: int) -> list[tuple[int, bytes]]:
        return self._execute("SELECT id, topic FROM wakes WHERE id > ? ORDER BY id", (seen,)).fetchall()

    # ── room ──

    def _check_size(self, data: bytes) -> None:
        if len(data) > self._max_bytes / 8:
            raise StoreFull(f"A record of {len(data)} bytes is too large for max_bytes={self._max_bytes}")

    def _admit(self, most: float) -> None:
        """Is there room for more, below that share? Frees what has expired, if need be."""
        if self._used() >= most and not (self._sweep(1000) and self._used() < most):
            warn_once("The state store is full: max_bytes=%d", self._max_bytes)
            raise StoreFull

    def _used(self) -> float:
        """The share of the room for keys that is in use: the file without its free pages and without the logs."""
        pages = self._one("PRAGMA page_count")[0] - self._one("PRAGMA freelist_count")[0]
        held = pages * self._page_bytes - self._log_bytes()
        return float(held / (self._max_bytes - self._max_log_bytes))

    def _log_bytes(self) -> int:
        return int(self._one("SELECT log_bytes FROM numbers")[0])

    def _sweep(self, at_most: int, *tables: str) -> int:
        """Free some of what has expired, and return how much."""
        freed = 0
        for table in tables or ("entries", "logs"):
            expired = f"SELECT name FROM {table} WHERE expires <= ? LIMIT ?"
            freed += self._execute(f"DELETE FROM {table} WHERE name IN ({expired})", (self._now, at_most)).rowcount
        return freed

    def _name(self, name: str) -> bytes:
        """In the file. What can't be stored, half a surrogate pair, has one too, under which nothing is found."""
        return self._prefix + name.encode("utf-8", "surrogatepass")

    def _one(self, statement: str, *values: object) -> Any:
        return self._execute(statement, values).fetchone()


def _in_thread(writes: bool, work: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    """A call of the backend, which its thread makes."""
    return lambda state, *words, **options: state.ask(writes, lambda tables: work(tables, *words, **options))


class SqliteState(StateBackend):
    """Keys, logs and topics in the file at `path`, which is made if need be. Raises SetupError if it can't be used.

    The file grows to about `max_bytes`. A quarter of that is for records of logs, the oldest of which give way; where
    keys fill the rest there are no new keys, and `CALLER_FAMILIES` end at their share of it. Servers that share a file
    under different prefixes share that room as well. A write waits `patience` seconds for those of other processes.
    It may be made before a fork, but not used before it.
    """

    shared = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        prefix: str = "",
        max_bytes: int = 256 * MEBIBYTE,
        max_waiting: int = 20_000,
        patience: float = 2.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = os.path.abspath(path)
        self.outages = 0
        self._prefix = prefix.encode() + b"\0"
        self._max_bytes = max_bytes
        self._max_waiting = max_waiting
        self._patience = patience
        self._clock = clock
        with contextlib.closing(open_file(self.path, patience)) as connection:
            if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise SetupError(f"state: {self.path} {DAMAGED}")
            (self._seen,) = connection.execute("SELECT wake FROM numbers").fetchone()  # the newest that we know of
        self._topics = Topics(self._heard_of)  # the thread looks whether there are any
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting = 0  # calls
        self._closed = False
        self._tables: _Tables | None = None  # while the file is open
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._identity: tuple[int, int] | None = None  # of the file that is open
        self._is_damaged = False  # that file, of which nothing is believed any more
        self._failed: set[bool] = set()  # whether reads (False) or writes (True) fail now
        self._told: set[str] = set()  # topics
        self._missed = False  # whether there may be others
        self._look_at = self._poll_at = 0.0

    check = _in_thread(True, _Tables.check)
    get = _in_thread(False, _Tables.get)
    put = _in_thread(True, _Tables.put)
    touch = _in_thread(True, _Tables.touch)
    remaining = _in_thread(False, _Tables.remaining)
    delete = _in_thread(True, _Tables.delete)
    add = _in_thread(True, _Tables.add)
    append = _in_thread(True, _Tables.append)
    read = _in_thread(False, _Tables.read)
    drop = _in_thread(True, _Tables.drop)
    publish = _in_thread(True, _Tables.publish)

    def listen(self, topics: Iterable[str]) -> Listener:
        """Call it on the event loop on which the listener waits."""
        with contextlib.suppress(RuntimeError):
            self._move_to(asyncio.get_running_loop())
        return super().listen(topics)

    async def close(self) -> None:
        self._topics.close()
        self._closed = True
        if self._thread is not None:
            self._submit(None)
            await asyncio.to_thread(self._thread.join, self._patience)  # a stuck one is left to the end of the process

    # ── on the event loop ──

    async def ask(self, writes: bool, work: Callable[[_Tables], T]) -> T:
        """Let the thread do something."""
        loop = asyncio.get_running_loop()
        self._move_to(loop)
        if self._closed or self._waiting >= self._max_waiting:
            raise StoreUnavailable
        self._waiting += 1
        future: asyncio.Future[T] = loop.create_future()
        self._submit((writes, work, future))
        timer = loop.call_later(2.5 * self._patience, _give_up, future)  # the system may not come back from the file
        try:
            return await future
        finally:
            timer.cancel()

    def _submit(self, job: _Job | None) -> None:
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dovetail-state", daemon=True)
            self._thread.start()

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """What was under way on another event loop is lost, wake-ups too."""
        if loop is not self._loop:
            self._loop = loop
            self._waiting = 0
            self._topics.tell_all()

    def _settle(self, answers: list[_Answer], told: set[str], missed: bool) -> None:
        if missed:
            self.outages += 1
            self._topics.tell_all()
        for topic in told:
            self._topics.tell(topic)
        for future, answer in answers:
            if future.get_loop() is self._loop:
                self._waiting -= 1
                if not future.done():
                    settle = future.set_exception if isinstance(answer, Exception) else future.set_result
                    settle(answer)

    def _heard_of(self, _topic: str) -> None:
        """From the moment of the first listener nothing is missed."""
        if len(self._topics.names) == 1 and not self._closed:
            self._submit(None)  # the thread looks up

    # ── in the thread ──

    def _run(self) -> None:
        while not (self._closed and self._jobs.empty()):
            jobs = self._take()
            is_due = bool(self._topics.names) and time.monotonic() >= self._poll_at
            if is_due:
                self._poll_at = time.monotonic() + POLL
            for writes in (False, True):  # answers of reads don't wait for the lock that writes need
                chosen = [job for job in jobs if job[0] is writes]
                answers = self._serve(chosen, writes, is_due) if chosen or (is_due and not writes) else []
                told, self._told = self._told, set()
                missed, self._missed = self._missed, False
                if (answers or told or missed) and self._loop is not None:
                    with contextlib.suppress(RuntimeError):  # it was closed; a new one will be told of everything
                        self._loop.call_soon_threadsafe(self._settle, answers, told, missed)
        self._disconnect()

    def _take(self, most: int = 64) -> list[_Job]:
        """Wait for calls, or for the time to poll. Those that write are one transaction."""
        jobs: list[_Job] = []
        with contextlib.suppress(Empty):
            job = self._jobs.get(timeout=max(self._poll_at - time.monotonic(), 0) if self._topics.names else None)
            while job is not None:
                jobs.append(job)
                job = self._jobs.get_nowait() if len(jobs) < most else None
        return jobs

    def _serve(self, jobs: list[_Job], writes: bool, polls: bool) -> list[_Answer]:
        """The answer or the error of each. They fail together, but one is refused before it has changed anything."""
        answers: list[_Answer] = []
        try:
            tables = self._current_tables()
            newest = tables.begin(writes)
            if self._topics.names and (newest != self._seen if writes else polls):
                self._see(tables)  # later listeners do not need what is there now
            for _, work, future in jobs:
                try:
                    answers.append((future, work(tables)))
                except (Conflict, StoreFull, ValueError) as refusal:
                    answers.append((future, refusal))
            if writes:
                self._seen = tables.commit(len(jobs))
                self._told.update(tables.woken)
            if writes in self._failed:
                self._failed.discard(writes)
                self._missed = True
                if not self._failed:  # for reading and writing
                    log.info("The state file %s can be used again", self.path)
        except Exception as failure:
            self._fail(failure, writes)
            return [(future, StoreUnavailable()) for _, _, future in jobs]
        return answers

    def _see(self, tables: _Tables) -> None:
        """What others have published. Some of it may be gone already."""
        for id, topic in tables.wakes_since(self._seen):
            self._missed |= id != self._seen + 1
            self._seen = id
            if topic.startswith(self._prefix):
                self._told.add(topic[len(self._prefix) :].decode("utf-8", "replace"))

    def _current_tables(self) -> _Tables:
        """Of a file that is still the same: one that was removed or replaced is opened anew."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + self._patience / 2
            found = _identify(self.path)
            if found != self._identity and self._identity is not None:
                log.warning("The state file %s was removed or replaced; it is opened anew", self.path)
                self._disconnect()
                self._is_damaged = False
                self._failed.add(False)
            self._identity = found
        if self._is_damaged:
            raise SetupError(DAMAGED)
        if self._tables is None:
            connection = open_file(self.path, self._patience)
            self._tables = _Tables(connection, self._prefix, self._max_bytes, self._clock)
            self._identity = _identify(self.path)
        return self._tables

    def _fail(self, failure: Exception, writes: bool) -> None:
        """Say so once, and let go of the file, and with it of the transaction. The next call opens it again."""
        if not self._is_damaged and DAMAGE & {_code(failure), _code(failure.__cause__)}:
            self._is_damaged = True
            log.warning("The state file %s %s", self.path, DAMAGED)
        elif not self._failed and not self._is_damaged:
            log.warning("The state file %s can't be used now: %s", self.path, failure)
        self._failed.add(writes)
        self._disconnect()

    def _disconnect(self) -> None:
        tables, self._tables = self._tables, None
        if tables is not None:
            with contextlib.suppress(sqlite3.Error):
                tables.file.close()


def _give_up(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_exception(StoreUnavailable())


def open_file(path: str, patience: float) -> sqlite3.Connection:
    """A connection for any thread, but one at a time. The file is made if need be. Raises SetupError if it can't be."""
    try:  # for its owner alone; one that exists is not opened: to close it would end all locks of this process
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        if not os.access(path, os.W_OK):
            raise PermissionError("its rights do not let it be written")
    except (OSError, ValueError) as failure:
        fix = f"make its folder if it does not exist, or {ANOTHER}"
        raise SetupError(f"state: {path} can't be made ({failure}); {fix}") from None
    deadline = time.monotonic() + patience
    while True:
        connection = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path)
            return connection
        except (sqlite3.Error, SetupError) as failure:
            connection.close()
            if isinstance(failure, SetupError):
                raise
            if _code(failure) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                fix = DAMAGED if _code(failure) == sqlite3.SQLITE_CORRUPT else f"can't be used: {failure}; {ANOTHER}"
                raise SetupError(f"state: {path} {fix}") from failure
        time.sleep(0.01)  # another process prepares it, or puts right what a killed one left


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise SetupError(f"state: {path} can't be shared by processes; it must lie on a local disk: {ANOTHER}")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {16 * MEBIBYTE}")  # bytes of SQLite's own log that stay
    if not _is_ours(connection, path):
        connection.execute("BEGIN IMMEDIATE")
        if not _is_ours(connection, path):  # nor has another process made it so, meanwhile
            schema = (Path(__file__).parent / "schema.sql").read_text()
            for statement in re.split(r";\n(?=[A-Z])", schema):
                connection.execute(statement, {"now": time.time_ns() // 1000} if ":now" in statement else {})
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute("COMMIT")


def _is_ours(connection: sqlite3.Connection, path: str) -> bool:
    """False if it is empty. Raises SetupError if another program, or another version of this one, made it."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION and (tables or application):
        raise SetupError(f"state: {path} was made by another program, or another version of Dovetail; {ANOTHER}")
    return bool(application)


def _identify(path: str) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None


def _code(failure: BaseException | None) -> int:
    """SQLite's error code without its details; 0 if the failure is none of SQLite."""
    return int(getattr(failure, "sqlite_errorcode", 0)) & 0xFF
