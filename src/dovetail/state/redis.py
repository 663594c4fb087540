"""The state backend of many workers on many hosts: a Redis (7 or newer) or Valkey that all of them can reach.

In: a URL, and a prefix that keeps servers which share a store apart. Every value expires there, by the clock of the
store. Nothing is connected before the first call; a backend may be made before an event loop runs and before a fork,
and is used on one event loop at a time. Needs `pip install "dovetail-mcp[redis]"`.

What only waits at a listener hears once a call was made, or the listener, on the running loop.
"""

import asyncio
import math
import os
from collections.abc import Iterable

from dovetail.errors import SetupError
from dovetail.state.base import (
    MAX_COUNT,
    MAX_NAME,
    Conflict,
    Entry,
    Listener,
    LogPage,
    LogRecord,
    NoRoom,
    StateBackend,
    StoreTrouble,
    check_name,
    check_ttl,
)
from dovetail.state.redis_address import RedisAddress
from dovetail.state.redis_hearing import Hearing
from dovetail.state.redis_link import ForeignRecord, RedisLink
from dovetail.state.redis_resp import Reply
from dovetail.state.redis_scripts import ADD, APPEND, PUBLISH, PUT, READ, Command

MAX_BYTES = 32 * 1024 * 1024  # of one value or record: more could not be carried in time
CHECK_MS = 10_000  # for which a key stays that was written to see whether it can be
TOKEN_BYTES = 8
NEVER = 2**63  # an id that no record reaches


class RedisState(StateBackend):
    """Keys, logs and topics in a store that all workers share. `redis_scripts` says how they lie there.

    It has no bounds of its own, and no part for `GUESTS`: how much it may hold is the store's `maxmemory`, which is
    best large enough for the proofs and tries of some minutes. A store that drops records instead is refused.
    """

    shared = True

    def __init__(self, url: str, prefix: str = "dovetail") -> None:
        if len(prefix) > MAX_NAME:
            raise SetupError(f"A prefix of {len(prefix)} characters is too long for a state store")
        self.outages = 0
        self._address = RedisAddress(url)
        self._prefix = f"{prefix}:".encode()
        self._hearing = Hearing(self._interest_changed)
        self._link: RedisLink | None = None
        self._inherited: list[RedisLink] = []  # of the process that we were forked from, which alone may close them
        self._closed = False

    def __repr__(self) -> str:
        return f"<RedisState {self._address.shown}>"

    async def check(self) -> None:
        probe = Command(("SET", self._prefix + b"ready", b"", "PX", CHECK_MS))  # one that is full answers a PING
        await self._here().ask(probe, again=probe)

    async def get(self, key: str) -> Entry | None:
        if not _is_name(key):
            return None
        command = Command(("HMGET", self._key(key), "v", "n"))
        try:
            value, version = await self._here().ask(command, again=command)
        except ForeignRecord:
            value, version = b"", b""
        if value is not None and version is not None and version.isdigit():
            return Entry(value, int(version))
        if value is not None or version is not None:
            self._here().complain("a value can't be read, and counts as not there")
        return None

    async def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        check_name(key)
        check_ttl(ttl)
        _check_size(value)
        expected = "" if if_version is None else str(if_version)
        command = PUT.on(self._key(key), self._counter, to=(value, _milliseconds(ttl), expected))
        version = await self._here().ask(command, again=command if if_version is None else None)
        if version is None:
            raise Conflict(key)
        return int(version)

    async def touch(self, key: str, ttl: float) -> bool:
        check_ttl(ttl)
        if not _is_name(key):
            return False
        command = Command(("PEXPIRE", self._key(key), _milliseconds(ttl)))
        return bool(await self._here().ask(command, again=command))

    async def remaining(self, key: str) -> float | None:
        if not _is_name(key):
            return None
        command = Command(("PTTL", self._key(key)))
        milliseconds = await self._here().ask(command, again=command)
        return None if milliseconds < 0 else milliseconds / 1000  # what never expires is not ours

    async def delete(self, key: str) -> bool:
        return _is_name(key) and bool(await self._here().ask(Command(("UNLINK", self._key(key)))))

    async def claim(self, key: str, value: bytes, ttl: float) -> bool:
        try:
            await self.put(key, value, ttl=ttl, if_version=0)
        except Conflict:
            return False
        return True

    async def add(self, key: str, n: int, ttl: float) -> int:
        check_name(key)
        check_ttl(ttl)
        total: bytes | None = b""
        if abs(n) <= MAX_COUNT:
            total = await self._here().ask(ADD.on(self._key(key), self._counter, to=(n, _milliseconds(ttl))))
        if total is None:
            raise ValueError(f"The key {key!r} holds no number that could be counted on")
        if not total:
            raise ValueError(f"The counter {key!r} can't go beyond {MAX_COUNT}")
        return int(total)

    async def append(self, log: str, data: bytes, *, keep: int, ttl: float, if_last: int | None = None) -> int:
        check_name(log)
        check_ttl(ttl)
        _check_size(data)
        if keep < 1:
            raise ValueError(f"keep={keep!r} is not possible; a log keeps one record at least")
        topic, expected = self._topic(log), "" if if_last is None else f"0-{if_last}"
        keys = (self._log(log), self._counter, topic)
        details = (topic, data, os.urandom(TOKEN_BYTES), min(keep, NEVER - 1), _milliseconds(ttl), expected)
        again = APPEND.on(*keys, to=(*details, "again"))
        outcome = await self._here().ask(APPEND.on(*keys, to=(*details, "")), again=again)
        if outcome is None:
            raise Conflict(log)
        id, number = outcome
        self._hearing.reached(int(number))
        return _id(id)

    async def read(self, log: str, after: int, limit: int = 100) -> LogPage:
        if not _is_name(log):
            return LogPage([], 0, 0)
        command = READ.on(self._log(log), to=(min(max(after, 0), NEVER), max(limit, 0)))
        kept, last, flat = await self._here().ask(command, again=command)
        if kept:
            try:
                return _page(kept, last, flat)
            except ValueError:
                last = b""
        if last != b"none":
            self._here().complain("a log can't be read, and counts as not there")
        return LogPage([], 0, 0)

    async def drop(self, log: str) -> None:
        if _is_name(log):
            command = Command(("UNLINK", self._log(log)))
            await self._here().ask(command, again=command)

    async def publish(self, topic: str) -> None:
        if _is_name(topic):
            name = self._topic(topic)
            command = PUBLISH.on(self._counter, name, to=(name,))
            self._hearing.reached(int(await self._here().ask(command, again=command)))

    def listen(self, topics: Iterable[str]) -> Listener:
        return self._hearing.topics.listen(topics)

    async def close(self) -> None:
        self._closed = True
        self._hearing.topics.close()
        if self._link is not None:
            await self._link.close()

    # ── the link ──

    def _here(self) -> RedisLink:
        """The link of this process and this event loop."""
        link, loop = self._link, asyncio.get_running_loop()
        if link is not None and link.loop is loop and link.pid == os.getpid():
            return link
        if self._closed:
            raise StoreTrouble("The server's state store was closed")
        if link is not None and link.pid != os.getpid():
            self._inherited.append(link)
        self._link = RedisLink(self._address, self._prefix, self._hearing, self._returned, returning=link is not None)
        return self._link

    def _interest_changed(self) -> None:
        """A topic has its first listener, or has lost its last."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return  # the first call on an event loop will see to it
        if not self._closed and (self._link is not None or self._hearing.topics.names):
            self._here().interest_changed()

    def _returned(self) -> None:
        self.outages += 1
        self._hearing.topics.tell_all()

    # ── names in the store ──

    @property
    def _counter(self) -> bytes:
        return self._prefix + b"n"

    def _key(self, name: str) -> bytes:
        return self._prefix + b"k/" + name.encode()

    def _log(self, name: str) -> bytes:
        return self._prefix + b"l/" + name.encode()

    def _topic(self, name: str) -> bytes:
        return self._prefix + b"t/" + name.encode()


def _is_name(name: str) -> bool:
    try:
        check_name(name)
    except ValueError:
        return False
    return True


def _check_size(data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise NoRoom(f"A record of {len(data)} bytes is too large for the state store; {MAX_BYTES} are possible")


def _milliseconds(ttl: float) -> int:
    return math.ceil(ttl * 1000)


def _page(kept: int, last: bytes, flat: list[Reply]) -> LogPage:
    """Ids have no gaps, so the number of records tells the first. Raises ValueError for what is no log of ours."""
    newest = _id(last)
    records = [LogRecord(_id(id), data) for id, data in zip(flat[::2], flat[1::2], strict=True)]
    return LogPage(records, newest - kept + 1, newest)


def _id(text: bytes) -> int:
    if not text.startswith(b"0-"):
        raise ValueError("a record that is not ours")
    return int(text[2:])
