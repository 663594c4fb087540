"""SQLite state backend, for processes on one host and records that outlive a restart.

Only one thread of a process uses the file, so the event loop never waits for a disk. It serves the calls in its queue
together: their writes are one transaction. Wake-ups of other processes come within `POLL_INTERVAL`. The file must be on
a local disk; times are those of the host's clock.

WAL lets readers and one writer work side by side, and the next process repairs what a killed one left. With
`synchronous=NORMAL` a power cut may lose the last writes, never the file.
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
    add_to_counter,
    check_new,
    check_ttl,
    max_share,
    warn_once,
)
from dovetail.state.memory import MEBIBYTE, RECORD_OVERHEAD

POLL_INTERVAL = 0.02  # seconds, for what other processes have published
KEEP_WAKES = 4096
APPLICATION_ID = 0x446F7604  # in the file, which is of this format then

OTHER_FILE = "give another file in state (DOVETAIL_STATE)"
DAMAGED = f"is damaged; move it away, and a new one is made, or {OTHER_FILE}"
DAMAGE_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}  # though other parts of the file may still be usable

T = TypeVar("T")
_Job = tuple[bool, Callable[["_Tables"], Any], "asyncio.Future[Any]"]  # whether it writes, what it does, its result
_Outcome = tuple["asyncio.Future[Any]", Any]
log = logging.getLogger("dovetail.state")


class _Tables:
    """The tables of the file, through one connection: each call is made between `begin` and `commit`."""

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

    def begin(self, writes: bool) -> int:
        """Begin; returns the newest wake. If this writes, no other process does so from now on."""
        self._now = self._clock()
        if writes:
            self.woken.clear()
            self._execute("BEGIN IMMEDIATE")
            self._serial, self._wake = self._execute("SELECT serial, wake FROM numbers").fetchone()
        return self._wake

    def commit(self, calls: int) -> int:
        """Commit, after freeing a few expired rows and writing the wakes. Returns the newest wake."""
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

    def get(self, key: str) -> Entry | None:
        row = self._one("SELECT value, version FROM entries WHERE name = ? AND expires > ?", self._name(key), self._now)
        return None if row is None else Entry(*row)

    def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        check_new(key, ttl)
        entry = self.get(key)
        if if_version is not None and if_version != (0 if entry is None else entry.version):
            raise Conflict
        return self._write(key, entry, value, self._now + ttl, max_share(key))

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
        entry, remaining = self.get(key), self.remaining(key)
        total = add_to_counter(key, None if entry is None else entry.value, n)
        share = max_share(key) if entry is None else 1.0
        self._write(key, entry, b"%d" % total, self._now + (ttl if remaining is None else remaining), share)
        return total

    def check(self) -> None:
        """Check whether a session could be opened, by a write that changes no record."""
        self._check_free(1.0)
        self._tick()

    def _write(self, key: str, entry: Entry | None, value: bytes, expires: float, share: float) -> int:
        """Write a key; `entry` is the one that it has, if any. `share` of the store may be in use if it grows."""
        if entry is None or len(value) > len(entry.value):
            self._check_size(value)
            self._check_free(share)
        self._execute("REPLACE INTO entries VALUES (?, ?, ?, ?)", (self._name(key), value, self._tick(), expires))
        return self._serial

    def append(self, log: str, data: bytes, *, keep: int, ttl: float, if_last: int | None = None) -> int:
        check_new(log, ttl, keep)
        self._check_size(data)
        name = self._name(log)
        id, last = self._find_log(name)
        if if_last is not None and if_last != last:
            raise Conflict
        if not id:
            self.drop(log)  # it may have expired
            self._check_free(max_share(log) + 0.05)  # where keys are full, streams of open sessions go on
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
        """The id of a log, and that of its newest record; zeros if it does not exist."""
        select = "SELECT id, last FROM logs WHERE name = ? AND expires > ?"
        id, last = self._one(select, name, self._now) or (0, 0)
        return id, last

    def _shrink_logs(self, size: int) -> None:
        """Make room for a record: free expired logs, and if that is not enough the oldest records of all."""
        while self._log_bytes() + size > self._max_log_bytes:
            if not self._sweep(64, "logs"):
                self._execute("DELETE FROM records WHERE serial = (SELECT min(serial) FROM records)")

    def publish(self, topic: str) -> None:
        self.woken[topic] = None

    def wakes_since(self, seen: int) -> list[tuple[int, bytes]]:
        return self._execute("SELECT id, topic FROM wakes WHERE id > ? ORDER BY id", (seen,)).fetchall()

    def _check_size(self, data: bytes) -> None:
        if len(data) > self._max_bytes / 8:
            raise StoreFull(f"A record of {len(data)} bytes is too large for max_bytes={self._max_bytes}")

    def _check_free(self, most: float) -> None:
        """Raises StoreFull if more than that share is in use even after expired rows are freed."""
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
        """Free some expired rows, and return how many."""
        freed = 0
        for table in tables or ("entries", "logs"):
            expired = f"SELECT name FROM {table} WHERE expires <= ? LIMIT ?"
            freed += self._execute(f"DELETE FROM {table} WHERE name IN ({expired})", (self._now, at_most)).rowcount
        return freed

    def _name(self, name: str) -> bytes:
        """A name as it is in the file. One that can't be stored, with half a surrogate pair, finds nothing there."""
        return self._prefix + name.encode("utf-8", "surrogatepass")

    def _one(self, statement: str, *values: object) -> Any:
        return self._execute(statement, values).fetchone()


def _in_thread(writes: bool, work: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Make a method of the backend that its thread runs."""
    return lambda state, *args, **options: state.run(writes, lambda tables: work(tables, *args, **options))


class SqliteState(StateBackend):
    """Keys, logs and topics in the file at `path`, which is made if need be. Raises SetupError if it can't be used.

    The file grows to about `max_bytes`, for all prefixes together. A quarter of that is for records of logs, the oldest
    of which are dropped. When keys fill the rest new ones are refused, those of `CALLER_PREFIXES` at their share. A
    write waits `timeout` seconds for other processes. A backend may be made before a fork, but not used before it.
    """

    shared = True

    def __init__(
        self, path: str | os.PathLike[str], *, prefix: str = "", max_bytes: int = 256 * MEBIBYTE,
        max_waiting: int = 20_000, timeout: float = 2.0, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.path = os.path.abspath(path)
        self.outages = 0
        self._prefix = prefix.encode() + b"\0"
        self._max_bytes = max_bytes
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._clock = clock
        with contextlib.closing(open_file(self.path, timeout)) as connection:
            if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise SetupError(f"state: {self.path} {DAMAGED}")
            (self._seen,) = connection.execute("SELECT wake FROM numbers").fetchone()  # the newest wake that was read
        self._topics = Topics(self._topic_changed)  # the thread polls only if there are any
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting = 0  # calls
        self._closed = False
        self._tables: _Tables | None = None  # while the file is open
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._identity: tuple[int, int] | None = None  # of the file that is open
        self._is_damaged = False  # that file, which is not used any more
        self._failed: set[bool] = set()  # whether reads (False) or writes (True) fail now
        self._woken: set[str] = set()  # topics
        self._missed = False  # whether there may be others
        self._check_file_at = self._poll_at = 0.0

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
        """A listener for topics; call this on the event loop on which it waits."""
        with contextlib.suppress(RuntimeError):
            self._move_to(asyncio.get_running_loop())
        return super().listen(topics)

    async def close(self) -> None:
        self._topics.close()
        self._closed = True
        if self._thread is not None:
            self._submit(None)
            await asyncio.to_thread(self._thread.join, self._timeout)  # one that is stuck ends with the process

    # ── on the event loop ──

    async def run(self, writes: bool, work: Callable[[_Tables], T]) -> T:
        """Run a job in the thread."""
        loop = asyncio.get_running_loop()
        self._move_to(loop)
        if self._closed or self._waiting >= self._max_waiting:
            raise StoreUnavailable
        self._waiting += 1
        future: asyncio.Future[T] = loop.create_future()
        self._submit((writes, work, future))
        timer = loop.call_later(2.5 * self._timeout, _time_out, future)  # the disk may hang
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
        """Move to this event loop. Calls that were running on another one are lost, and so are wake-ups."""
        if loop is not self._loop:
            self._loop = loop
            self._waiting = 0
            self._topics.wake_all()

    def _deliver(self, outcomes: list[_Outcome], woken: set[str], missed: bool) -> None:
        if missed:
            self.outages += 1
            self._topics.wake_all()
        for topic in woken:
            self._topics.wake(topic)
        for future, outcome in outcomes:
            if future.get_loop() is self._loop:
                self._waiting -= 1
                if not future.done():
                    deliver = future.set_exception if isinstance(outcome, Exception) else future.set_result
                    deliver(outcome)

    def _topic_changed(self, _topic: str) -> None:
        if len(self._topics.names) == 1 and not self._closed:
            self._submit(None)  # the thread begins to poll with the first listener

    # ── in the thread ──

    def _run(self) -> None:
        while not (self._closed and self._jobs.empty()):
            jobs = self._take_jobs()
            is_due = bool(self._topics.names) and time.monotonic() >= self._poll_at
            if is_due:
                self._poll_at = time.monotonic() + POLL_INTERVAL
            for writes in (False, True):  # results of reads don't wait for the lock that writes need
                chosen = [job for job in jobs if job[0] is writes]
                outcomes = self._serve(chosen, writes, is_due) if chosen or (is_due and not writes) else []
                woken, self._woken = self._woken, set()
                missed, self._missed = self._missed, False
                if (outcomes or woken or missed) and self._loop is not None:
                    with contextlib.suppress(RuntimeError):  # it was closed; on a new one all topics are woken
                        self._loop.call_soon_threadsafe(self._deliver, outcomes, woken, missed)
        self._disconnect()

    def _take_jobs(self, most: int = 64) -> list[_Job]:
        """Wait for jobs, or for the time to poll."""
        jobs: list[_Job] = []
        with contextlib.suppress(Empty):
            job = self._jobs.get(timeout=max(self._poll_at - time.monotonic(), 0) if self._topics.names else None)
            while job is not None:
                jobs.append(job)
                job = self._jobs.get_nowait() if len(jobs) < most else None
        return jobs

    def _serve(self, jobs: list[_Job], writes: bool, polls: bool) -> list[_Outcome]:
        """Run jobs; returns the result or error of each. They fail together; a refused job has changed nothing."""
        outcomes: list[_Outcome] = []
        try:
            tables = self._current_tables()
            newest = tables.begin(writes)
            if self._topics.names and (newest != self._seen if writes else polls):
                self._read_wakes(tables)  # before the jobs: later listeners do not need these
            for _, work, future in jobs:
                try:
                    outcomes.append((future, work(tables)))
                except (Conflict, StoreFull, ValueError) as refusal:
                    outcomes.append((future, refusal))
            if writes:
                self._seen = tables.commit(len(jobs))
                self._woken.update(tables.woken)
            if writes in self._failed:
                self._failed.discard(writes)
                self._missed = True
                if not self._failed:  # for reading and writing
                    log.info("The state file %s can be used again", self.path)
        except Exception as failure:
            self._fail(failure, writes)
            return [(future, StoreUnavailable()) for _, _, future in jobs]
        return outcomes

    def _read_wakes(self, tables: _Tables) -> None:
        """The topics that other processes have published. Some of them may have been deleted before."""
        for id, topic in tables.wakes_since(self._seen):
            self._missed |= id != self._seen + 1
            self._seen = id
            if topic.startswith(self._prefix):
                self._woken.add(topic[len(self._prefix) :].decode("utf-8", "replace"))

    def _current_tables(self) -> _Tables:
        """The tables of the open file; a file that was removed or replaced is opened again."""
        now = time.monotonic()
        if now >= self._check_file_at:
            self._check_file_at = now + self._timeout / 2
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
            connection = open_file(self.path, self._timeout)
            self._tables = _Tables(connection, self._prefix, self._max_bytes, self._clock)
            self._identity = _identify(self.path)
        return self._tables

    def _fail(self, failure: Exception, writes: bool) -> None:
        """Warn once, and close the file with its transaction. The next call opens it again."""
        if not self._is_damaged and DAMAGE_CODES & {_code(failure), _code(failure.__cause__)}:
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


def _time_out(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_exception(StoreUnavailable())


def open_file(path: str, timeout: float) -> sqlite3.Connection:
    """A connection for one thread at a time. The file is made if need be. Raises SetupError if it can't be used."""
    try:  # for its owner alone; one that exists is not opened: to close it would end all locks of this process
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        if not os.access(path, os.W_OK):
            raise PermissionError("its rights do not let it be written")
    except (OSError, ValueError) as failure:
        fix = f"make its folder if it does not exist, or {OTHER_FILE}"
        raise SetupError(f"state: {path} can't be made ({failure}); {fix}") from None
    deadline = time.monotonic() + timeout
    while True:
        connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path)
            return connection
        except (sqlite3.Error, SetupError) as failure:
            connection.close()
            if isinstance(failure, SetupError):
                raise
            if _code(failure) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                fix = DAMAGED if _code(failure) == sqlite3.SQLITE_CORRUPT else f"can't be used: {failure}; {OTHER_FILE}"
                raise SetupError(f"state: {path} {fix}") from failure
        time.sleep(0.01)  # another process prepares it, or repairs what a killed one left


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise SetupError(f"state: {path} can't be shared by processes; it must lie on a local disk: {OTHER_FILE}")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {16 * MEBIBYTE}")  # bytes of SQLite's own log that stay
    if not _is_ours(connection, path):
        connection.execute("BEGIN IMMEDIATE")
        if not _is_ours(connection, path):  # nor has another process prepared it meanwhile
            schema = (Path(__file__).parent / "schema.sql").read_text()
            for statement in re.split(r";\n(?=[A-Z])", schema):
                connection.execute(statement, {"now": time.time_ns() // 1000} if ":now" in statement else {})
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")


def _is_ours(connection: sqlite3.Connection, path: str) -> bool:
    """Whether Dovetail made the file; False if it is empty. Raises SetupError if another program or version made it."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID and (tables or application):
        raise SetupError(f"state: {path} was made by another program, or another version of Dovetail; {OTHER_FILE}")
    return bool(application)


def _identify(path: str) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None


def _code(failure: BaseException | None) -> int:
    """SQLite's error code without its details; 0 for another exception."""
    return int(getattr(failure, "sqlite_errorcode", 0)) & 0xFF
