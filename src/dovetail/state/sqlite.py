"""The state backend in one SQLite file: for several processes on one host, and for records that outlive a restart.

Calls come in on the event loop, and are answered there; in between, the one thread of `Desk` uses the file, so the loop
never waits for a disk. Wake-ups of other processes come with a delay of `POLL` at most.
The file must lie on a local disk. Times are those of the host's clock.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from dovetail.state.base import Entry, Listener, LogPage, StateBackend, StoreTrouble, Topics, check_name, check_ttl
from dovetail.state.memory import MEBIBYTE
from dovetail.state.sqlite_desk import Desk, Errand, Told
from dovetail.state.sqlite_file import open_file
from dovetail.state.sqlite_ledger import Bounds
from dovetail.state.sqlite_tables import Tables

MAX_WAITING = 2000  # calls
LONGEST_WAIT = 5.0  # seconds, after which a call fails even if the system does not come back from the file
WATCH = 1.0  # seconds between two looks at the calls that wait

T = TypeVar("T")


class SqliteState(StateBackend):
    """Keys, logs and topics in the file at `path`, which is made if need be. Its folder must exist.

    The bounds mean what those of `MemoryState` do, and count for all processes together. They allow for more, as it is
    a disk that is filled: a full file has some 300 MiB. Servers with different names may share a file under different
    prefixes, and then share the bounds as well.
    Raises SetupError if the file can't be used. It may be made before a fork and used after it.
    """

    shared = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        prefix: str = "",
        max_entries: int = 1_000_000,
        max_entry_bytes: int = 128 * MEBIBYTE,
        max_log_bytes: int = 64 * MEBIBYTE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = os.path.abspath(path)
        self.outages = 0
        self._prefix = prefix.encode() + b"\0"
        self._bounds = Bounds(max_entries, max_entry_bytes, max_log_bytes)
        self._clock = clock
        with contextlib.closing(open_file(self.path, thoroughly=True)) as connection:
            seen = Tables(connection, self._bounds, clock).newest_wake()
        self._desk = Desk(self.path, self._open_tables, self._report, seen)
        self._topics = Topics(self._wanted)
        self._topic_count = 0  # that somebody listens to
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[Errand] = set()
        self._watching: asyncio.TimerHandle | None = None
        self._closed = False

    async def check(self) -> None:
        """Raises NoRoom if no more sessions could be opened."""
        await self._ask(True, Tables.check)

    async def get(self, key: str) -> Entry | None:
        name = self._name(key)
        return await self._ask(False, lambda tables: tables.get(name))

    async def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        check_name(key)
        check_ttl(ttl)
        name = self._name(key)
        return await self._ask(True, lambda tables: tables.put(name, value, ttl, if_version, key))

    async def touch(self, key: str, ttl: float) -> bool:
        check_ttl(ttl)
        name = self._name(key)
        return await self._ask(True, lambda tables: tables.touch(name, ttl))

    async def remaining(self, key: str) -> float | None:
        name = self._name(key)
        return await self._ask(False, lambda tables: tables.remaining(name))

    async def delete(self, key: str) -> bool:
        name = self._name(key)
        return await self._ask(True, lambda tables: tables.delete(name))

    async def claim(self, key: str, value: bytes, ttl: float) -> bool:
        check_name(key)
        check_ttl(ttl)
        name = self._name(key)
        return await self._ask(True, lambda tables: tables.claim(name, value, ttl))

    async def add(self, key: str, n: int, ttl: float) -> int:
        check_name(key)
        check_ttl(ttl)
        name = self._name(key)
        return await self._ask(True, lambda tables: tables.add(name, n, ttl, key))

    async def append(self, log: str, data: bytes, *, keep: int, ttl: float, if_last: int | None = None) -> int:
        check_name(log)
        check_ttl(ttl)
        if keep < 1:
            raise ValueError(f"keep={keep!r} is not possible; a log keeps one record at least")
        name = self._name(log)
        return await self._ask(True, lambda tables: tables.append(name, data, keep, ttl, if_last, log))

    async def read(self, log: str, after: int, limit: int = 100) -> LogPage:
        name = self._name(log)
        return await self._ask(False, lambda tables: tables.read(name, after, limit))

    async def drop(self, log: str) -> None:
        name = self._name(log)
        await self._ask(True, lambda tables: tables.drop(name))

    async def publish(self, topic: str) -> None:
        try:
            check_name(topic)
        except ValueError:  # nobody can listen to it
            return
        name = self._name(topic)
        await self._ask(True, lambda tables: tables.publish(name))

    def listen(self, topics: Iterable[str]) -> Listener:
        """Call it on the event loop on which the listener waits."""
        with contextlib.suppress(RuntimeError):
            self._move_to(asyncio.get_running_loop())
        return self._topics.listen(topics)

    async def close(self) -> None:
        if self._closed:
            return
        self._topics.close()
        self._closed = True
        loop = asyncio.get_running_loop()
        self._move_to(loop)
        if self._desk.started:
            end = Errand(None, True, loop.create_future())
            self._waiting.add(end)
            self._desk.submit(end)
            await asyncio.wait([end.future], timeout=LONGEST_WAIT)
            self._desk.join()
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _name(self, name: str) -> bytes:
        """What can't be stored, half a surrogate pair, has a name too, under which nothing is found."""
        return self._prefix + name.encode("utf-8", "surrogatepass")

    def _open_tables(self) -> Tables:
        """A new connection gets a new origin, so that a forked process does not pass for its parent."""
        return Tables(open_file(self.path), self._bounds, self._clock, secrets.randbits(62))

    # ── on the event loop ──

    async def _ask(self, writes: bool, work: Callable[[Tables], T]) -> T:
        loop = asyncio.get_running_loop()
        self._move_to(loop)
        if self._closed or len(self._waiting) >= MAX_WAITING:
            raise StoreTrouble
        call = Errand(work, writes, loop.create_future())
        self._waiting.add(call)
        self._desk.submit(call)
        if self._watching is None:
            self._watching = loop.call_later(WATCH, self._watch)
        answer: T = await call.future
        return answer

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """What was under way on another event loop is lost, wake-ups too."""
        if loop is not self._loop:
            self._loop = loop
            self._waiting = set()
            self._watching = None
            self._topics.tell_all()

    def _settle(self, calls: list[Errand], told: Told) -> None:
        if None in told:
            self.outages += 1
            self._topics.tell_all()
        for topic in told:
            if topic is not None and topic.startswith(self._prefix):
                self._topics.tell(topic[len(self._prefix) :].decode("utf-8", "replace"))
        for call in calls:
            self._waiting.discard(call)
            if call.future.get_loop() is not self._loop or call.future.done():
                continue
            if call.error is not None:
                call.future.set_exception(call.error)
            else:
                call.future.set_result(call.answer)

    def _watch(self) -> None:
        """Let calls fail that wait too long. They still count, until the thread has come back from them."""
        self._watching = None
        if not self._waiting or self._loop is None:
            return
        oldest = time.monotonic() - LONGEST_WAIT
        for call in self._waiting:
            if call.since < oldest and not call.future.done():
                call.future.set_exception(StoreTrouble())
        self._watching = self._loop.call_later(WATCH, self._watch)

    def _wanted(self, _topic: str, wanted: bool) -> None:
        self._topic_count += 1 if wanted else -1
        if not self._closed:
            self._desk.listen(self._topic_count > 0)

    # ── in the thread ──

    def _report(self, calls: list[Errand], told: Told) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it was closed; a new one will be told of everything
                loop.call_soon_threadsafe(self._settle, calls, told)
