"""State backend interface, with its records, errors and listeners, and the codec of stored values.

`Topics` wakes the listeners of one process and is shared by all backends.

Names are any text that UTF-8 can hold, up to `MAX_NAME` characters; a key, a log and a topic may have the same one.
Under a longer name nothing can be stored or heard (`ValueError`), and a lookup of one finds nothing. A time to live is
a number of seconds above 0, up to `MAX_TTL`. A value or a record is as large as the backend has room for (`StoreFull`).
"""

import asyncio
import contextlib
import functools
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, unquote

import msgspec

from dovetail import state
from dovetail.errors import DovetailError, ProtocolError, SetupError

T = TypeVar("T")
log = logging.getLogger("dovetail")
warn_once = functools.cache(log.warning)  # the bounds of a store are for its operator: a client hears that it is full

MAX_NAME = 512  # characters; a longer name is stored as its digest
MAX_TTL = 10 * 366 * 86_400.0  # ten years, in seconds
MAX_COUNT = 2**63 - 1  # how far a counter goes, in both directions, and no log ever

# The family of a key or log is what stands before the first "/". Callers decide how many of these there are, so a new
# one is refused (`StoreFull`) once three quarters of the store are in use: the last quarter is for sessions, event logs
# and grants. To change a key that is there needs no room.
CALLER_FAMILIES = (
    "authserver/",  # tries to sign in, registrations, documents of programs: by address, name and URL
    "cancel/",  # a note for each call that a client says it cancels
    "dpop/",  # a used proof for each request
    "rate/",  # a counter for each address and principal; without it each worker counts for itself
    "step/",  # what a call has done once
    "visits/",  # a page that a user was sent to
)
CALLERS_SHARE = 0.75  # of the store


class Entry(NamedTuple):
    """The value of a key. No two writes of a key get the same version, even if it was gone in between."""

    value: bytes
    version: int


class LogRecord(NamedTuple):
    """What was appended to a log. The first id is 1, the next 2, and so on."""

    id: int
    data: bytes


class LogPage(NamedTuple):
    """Some records of a log, and what the log holds.

    A reader that was at `after` has missed records if `after < first - 1`. If none is kept any more, `first` is
    `last + 1`. If the reader's `after` is above `last`, that log has ended and another one has begun.
    """

    records: list[LogRecord]
    first: int  # the oldest id that is still kept
    last: int  # the newest id; both are 0 if there is no such log


class Conflict(DovetailError):
    """A key does not have the version, or a log the last id, that was expected: another writer was first."""


class StoreFull(ProtocolError):
    """A backend has reached one of its bounds, or callers their share of them. Nothing was stored."""

    def __init__(self, message: str = "The server's state store is full; try again later") -> None:
        super().__init__(message, http_status=503)


class StoreUnavailable(ProtocolError):
    """The store does not answer, or not in time. Whether what was asked for has happened is not known."""

    def __init__(self, message: str = "The server's state store does not answer now; try again later") -> None:
        super().__init__(message, http_status=503)


class StateBackend(Protocol):
    """Where records live. Every call is atomic, and in a backend that is far away it ends within a bounded time.

    There any call may raise `StoreUnavailable`.
    """

    shared: bool  # other processes may use the same
    outages: int  # how often the store was out of reach and came back; then every listener hears of all its topics
    _topics: "Topics"

    async def check(self) -> None:
        """Raises StoreTrouble if the store is out of reach, and maybe NoRoom if it takes no more sessions."""

    async def get(self, key: str) -> Entry | None: ...

    async def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        """Store a value and return its version, or raise `Conflict`; `if_version=0` means "must not exist"."""

    async def touch(self, key: str, ttl: float) -> bool:
        """Let a key live for `ttl` seconds from now. The version stays. False if it is not there."""

    async def remaining(self, key: str) -> float | None:
        """The seconds that a key has still to live; None if it is not there."""

    async def delete(self, key: str) -> bool:
        """False if it was not there."""

    async def claim(self, key: str, value: bytes, ttl: float) -> bool:
        """Store a value if the key is not there. The first one wins, until the key expires or is deleted."""
        try:
            await self.put(key, value, ttl=ttl, if_version=0)
        except Conflict:
            return False
        return True

    async def add(self, key: str, n: int, ttl: float) -> int:
        """Count: add `n`, which may be negative, and return the total. `ttl` counts from the first `add`.

        A counter is a key whose value is a decimal number. Any other value, and a total beyond `MAX_COUNT`, is a
        `ValueError`.
        """

    async def append(self, log: str, data: bytes, *, keep: int, ttl: float, if_last: int | None = None) -> int:
        """Add a record, wake who listens to the topic with the log's name, and return the record's id.

        With `if_last` it raises `Conflict` unless that is the newest id; 0 means "there must be no such log".
        The newest `keep` records stay, fewer where the backend is short of room. The log expires `ttl` seconds after
        its last append; until then or `drop` no id is used twice.
        """

    async def read(self, log: str, after: int, limit: int = 100) -> LogPage:
        """The oldest records with an id above `after`, `limit` at most."""

    async def drop(self, log: str) -> None:
        """Forget a log at once. One of the same name begins with id 1 again."""

    async def publish(self, topic: str) -> None:
        """Wake the topic's listeners. A wake-up carries nothing: what has happened stands in a key or a log."""

    def listen(self, topics: Iterable[str]) -> "Listener":
        """The listener hears all that is published from now on, until it is closed.

        A wake-up without need may come, as when a store far away has just been told of the topic.
        """
        return Listener(self._topics, topics)

    async def close(self) -> None:
        """Close every listener and let go of all resources. The backend is not used afterwards."""


class Listener:
    """Hears of topics, on one event loop at a time. Each is remembered once, so a slow listener costs no memory."""

    __slots__ = ("_names", "_told", "_topics", "_waiter", "closed")

    def __init__(self, topics: "Topics", names: Iterable[str]) -> None:
        names = tuple(names)
        for name in names:
            check_name(name)
        self.closed = topics.closed  # one that comes too late hears nothing
        self._topics = topics
        self._names: set[str] = set()
        self._told: set[str] = set()
        self._waiter: asyncio.Future[None] | None = None  # nothing else here knows an event loop
        topics.listeners.add(self)
        for name in names:
            self.add(name)

    def add(self, topic: str) -> None:
        """Hear of one more topic."""
        check_name(topic)
        if not self.closed and topic not in self._names:
            self._names.add(topic)
            listeners = self._topics.names.setdefault(topic, {})
            listeners[self] = None
            if len(listeners) == 1:
                self._topics.changed(topic)

    def remove(self, topic: str) -> None:
        """Hear no more of a topic, nor of what `wait` has not returned yet."""
        if topic in self._names:
            self._names.remove(topic)
            self._told.discard(topic)
            listeners = self._topics.names[topic]
            del listeners[self]
            if not listeners:
                del self._topics.names[topic]
                self._topics.changed(topic)

    async def wait(self) -> set[str]:
        """The topics that were told of since the last `wait`; waits for one if there is none. Empty once closed.

        One task at a time may wait. A wait that is cancelled loses nothing.
        """
        while not self._told and not self.closed:
            if self._waiter is not None and not self._waiter.done():
                raise RuntimeError("Another task waits at this listener already")
            self._waiter = waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                if self._waiter is waiter:
                    self._waiter = None
        told, self._told = self._told, set()
        return told

    def close(self) -> None:
        """Hear no more. A `wait` that is under way, and every later one, returns an empty set."""
        self.closed = True
        for name in tuple(self._names):
            self.remove(name)
        self._topics.listeners.discard(self)
        self._wake()

    def hear(self, topic: str) -> None:
        """Called by `Topics` for a topic that was added."""
        self._told.add(topic)
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            with contextlib.suppress(RuntimeError):  # the event loop of the waiting task was closed
                waiter.set_result(None)


class Topics:
    """Who listens to what in this process. Not for threads: call it on the event loop.

    `changed` is told when the first listener of a topic has come, and when the last has left.
    """

    def __init__(self, changed: Callable[[str], None] = lambda _: None) -> None:
        self.listeners: set[Listener] = set()
        self.names: dict[str, dict[Listener, None]] = {}  # the topics that have listeners
        self.changed = changed
        self.closed = False

    def tell(self, name: str) -> None:
        """Wake every listener of the topic."""
        for listener in tuple(self.names.get(name, ())):
            listener.hear(name)

    def tell_all(self) -> None:
        """Wake every listener of all its topics: what was published meanwhile is not known."""
        for name in tuple(self.names):
            self.tell(name)

    def close(self) -> None:
        self.closed = True
        for listener in tuple(self.listeners):
            listener.close()


def check_name(name: str) -> None:
    """Raises ValueError for a name that no backend takes."""
    if len(name) > MAX_NAME:
        raise ValueError(f"The name {name[:40]!r}... has {len(name)} characters; {MAX_NAME} are allowed")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"The name {name!r} holds half a surrogate pair") from None


def check_ttl(ttl: float) -> None:
    """Raises ValueError for a time to live that no backend takes."""
    if not 0 < ttl <= MAX_TTL:  # also false for NaN
        raise ValueError(f"ttl={ttl!r} is not possible; it must be above 0 and at most {MAX_TTL:.0f} seconds")


def check_new(name: str, ttl: float, keep: int = 1) -> None:
    """Raises ValueError for a key, or a log that keeps so many records, that no backend takes."""
    check_name(name)
    check_ttl(ttl)
    if keep < 1:
        raise ValueError(f"keep={keep!r} is not possible; a log keeps one record at least")


def counted(key: str, value: bytes | None, n: int) -> int:
    """The total of a counter after `n` was added. Raises ValueError if there is none, or it would go too far."""
    if value is not None and not re.fullmatch(rb"0|-?[1-9][0-9]{0,18}", value):
        raise ValueError(f"The key {key!r} holds no number that could be counted on")
    total = n + int(value or 0)
    if abs(total) > MAX_COUNT:
        raise ValueError(f"The counter {key!r} can't go beyond {MAX_COUNT}")
    return total


def share_of(name: str) -> float:
    """How much of the store may be in use before a new key or log of that name is refused."""
    return CALLERS_SHARE if name.startswith(CALLER_FAMILIES) else 1.0


async def until_answered(ask: Callable[[], Awaitable[T]], still: Callable[[], bool], pause: float = 0.5) -> T:
    """Asks again and again while there is trouble and `still()` holds; after that it raises StoreTrouble.

    Only for what does no harm if it happens twice: to read, to touch, to put.
    """
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            if not still():
                raise
        await asyncio.sleep(pause)


class Codec(Generic[T]):
    """Values of one type as bytes. Raise `version`, the first byte, with every change that older workers can't read.

    While a fleet is being updated, workers of two versions share a store; a value that can't be read is not there.
    """

    def __init__(self, type: Any, name: str, version: int = 1) -> None:
        self._name = name
        self._version = bytes([version])
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[memoryview], T] = msgspec.msgpack.Decoder(type).decode

    def encode(self, value: T) -> bytes:
        return self._version + self._encode(value)

    def decode(self, data: bytes) -> T | None:
        """None, and a line in the log, if it is none of ours."""
        if data[:1] == self._version:
            try:
                return self._decode(memoryview(data)[1:])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
                pass
        log.warning("the state store holds a %s that this version can't read; it is taken for gone", self._name)
        return None


# ── a backend from its URL ──

OPTION = "state (DOVETAIL_STATE)"
FORMS = "redis://host:6379/0, rediss://…, unix:///path, redis+sentinel://…, sqlite:///absolute/path or memory:"
MAX_PREFIX = 100  # characters
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}:")


def open_state(url: str | None, server_name: str) -> StateBackend:
    """The backend of `state=`, `--state` or DOVETAIL_STATE, which is memory without one; SetupError for a bad URL.

    memory:                                       this process alone
    sqlite:///absolute/path  sqlite:relative/path a file for all processes of one host
    redis://host:port/db  rediss://…  unix://…    Redis or Valkey; `rediss` is TLS, `unix` a socket of this host
    redis+sentinel://host:port,host:port/service/db, or rediss+sentinel://…

    All names in a shared store stand under a prefix: what `?prefix=` says, else the server's name. Servers with the
    same prefix are one fleet. No message shows a URL, for a password may be part of it.
    """
    if not url:
        return state.memory.MemoryState()
    if not url.isprintable() or " " in url:
        raise SetupError(f"{OPTION}: no URL holds blanks; give one like {FORMS}")
    scheme, _, rest = url.partition(":")
    rest, prefix = _take_prefix(rest)
    prefix = prefix or quote(server_name, safe="", errors="replace")  # which any store can hold
    match scheme.lower():
        case "memory" if rest in ("", "//"):
            return state.memory.MemoryState()
        case "sqlite":
            return state.sqlite.SqliteState(_path(rest), prefix=prefix)
        case "redis" | "rediss" | "unix" | "redis+sentinel" | "rediss+sentinel" if rest.startswith("//"):
            return state.redis.RedisState(f"{scheme.lower()}:{rest}", prefix=prefix)
    wrong = f"{scheme}: is not known, or what follows it is wrong" if SCHEME.match(url) else "this is no URL"
    raise SetupError(f"{OPTION}: {wrong}; give one like {FORMS}")


def _take_prefix(rest: str) -> tuple[str, str]:
    """What follows the scheme without its `prefix`, and that prefix."""
    prefixes = re.findall("[?&]prefix=([^&]*)", rest)
    if not prefixes:
        return rest, ""
    prefix = unquote(prefixes[0])
    if len(prefixes) > 1 or not (prefix.isprintable() and 0 < len(prefix) <= MAX_PREFIX):
        raise SetupError(f"{OPTION}: prefix must stand there once and have 1 to {MAX_PREFIX} printable characters")
    return re.sub("(?<=[?&])prefix=[^&]*&?", "", rest).rstrip("?&"), prefix


def _path(rest: str) -> str:
    """Of a file: `///absolute/path` or `relative/path`."""
    path = unquote(re.sub("^///+", "/", rest))
    if sys.platform == "win32" and re.match(r"/[A-Za-z]:", path):
        path = path[1:]
    if re.match("//(?!/)", rest) or "?" in rest or "\0" in path or not path.strip("/"):
        raise SetupError(
            f"{OPTION}: sqlite: takes the path of a file and no option but prefix: sqlite:///absolute/path or "
            "sqlite:relative; a ? in the path itself is written %3F"
        )
    return path
