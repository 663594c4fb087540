"""State backend interface, with records, errors, listeners, the codec of values, and state URLs.

Names are any text that UTF-8 can hold, up to `MAX_NAME` characters; a key, a log and a topic may have the same one. A
longer name can't be stored or listened to (`ValueError`), and a lookup of one finds nothing. A time to live is a number
of seconds above 0, up to `MAX_TTL`. A value or a record is as large as the backend has room for (`StoreFull`).
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
from dovetail.protocol.types import UNNAMED

T = TypeVar("T")
log = logging.getLogger("dovetail")
warn_once = functools.cache(log.warning)  # for the operator; a client only gets StoreFull

MAX_NAME = 512  # characters
MAX_TTL = 10 * 366 * 86_400.0  # ten years, in seconds
MAX_COUNT = 2**63 - 1  # of a counter, also negative

# Prefixes of keys and logs whose number or size callers control. A new one, and a value that grows, is refused
# (`StoreFull`) once three quarters of the store are in use: the last quarter is for sessions, event logs and grants.
CALLER_PREFIXES = (
    "authserver/",  # tries to sign in, registrations, documents of programs: by address, name and URL
    "caller-state/",  # `ctx.state` of a caller
    "cancel/",  # a note for each call that a client says it cancels
    "dpop/",  # a used proof for each request
    "elicitations/",  # a URL that a user was sent to
    "ended/",  # a session that its client has ended
    "handle/",  # the value of a `Handle`
    "idempotency/",  # a call with a key, and its result
    "open-call/",  # the answers and the outcome of a call that stays open between its rounds
    "rate/",  # a counter for each address and principal; without it each worker counts for itself
    "step/",  # the result of a step
    "task/",  # a task with its outcome, and the lists of them
)
CALLER_SHARE = 0.75  # of the store


class Entry(NamedTuple):
    """The value of a key. No two writes of a key get the same version, even if it was deleted in between."""

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
    first: int  # the oldest id that is still stored
    last: int  # the newest id; both are 0 if there is no such log


class Conflict(DovetailError):
    """A key does not have the version, or a log the last id, that was expected: another writer was first."""


class StoreFull(ProtocolError):
    """A backend has reached one of its bounds, or callers their share of them. Nothing was stored."""

    def __init__(self, message: str = "The server's state store is full; try again later") -> None:
        super().__init__(message, http_status=503)


class StoreUnavailable(ProtocolError):
    """The store does not answer, or not in time. The operation may or may not have happened."""

    def __init__(self, message: str = "The server's state store does not answer now; try again later") -> None:
        super().__init__(message, http_status=503)


class StateBackend(Protocol):
    """Where records live. Every call is atomic, and ends within a bounded time; it may raise `StoreUnavailable`."""

    shared: bool  # with other processes
    outages: int  # how often the store was unavailable and recovered; then all topics of every listener are woken
    _topics: "Topics"

    async def check(self) -> None:
        """Check the store. Raises StoreUnavailable, or StoreFull if no session could be opened now."""

    async def get(self, key: str) -> Entry | None: ...

    async def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        """Store a value and return its version, or raise `Conflict`; `if_version=0` means "must not exist"."""

    async def touch(self, key: str, ttl: float) -> bool:
        """Let a key live for `ttl` seconds from now, with its version. False if it does not exist."""

    async def remaining(self, key: str) -> float | None:
        """The seconds until a key expires; None if it does not exist."""

    async def delete(self, key: str) -> bool:
        """Delete a key; False if it did not exist."""

    async def claim(self, key: str, value: bytes, ttl: float) -> bool:
        """Store a value if the key does not exist. The first caller wins, until the key expires or is deleted."""
        try:
            await self.put(key, value, ttl=ttl, if_version=0)
        except Conflict:
            return False
        return True

    async def add(self, key: str, n: int, ttl: float) -> int:
        """Add `n`, which may be negative, to a counter and return the total. `ttl` counts from the first `add`.

        A counter is a key with a decimal number. Any other value, and a total beyond `MAX_COUNT`, is a `ValueError`.
        """

    async def append(self, log: str, data: bytes, *, keep: int, ttl: float, if_last: int | None = None) -> int:
        """Add a record, wake the listeners of the topic with the log's name, and return the record's id.

        With `if_last` it raises `Conflict` unless that is the newest id; 0 means "there must be no such log".
        The newest `keep` records stay, fewer if the backend is full. The log expires `ttl` seconds after its last
        append; until then or `drop` no id is used twice.
        """

    async def read(self, log: str, after: int, limit: int = 100) -> LogPage:
        """The oldest records with an id above `after`, `limit` at most."""

    async def drop(self, log: str) -> None:
        """Delete a log at once. One of the same name begins with id 1 again."""

    async def publish(self, topic: str) -> None:
        """Wake the topic's listeners. A wake-up carries no data: they read a key or a log."""

    def listen(self, topics: Iterable[str]) -> "Listener":
        """Listen to topics. The listener is woken for all that is published from now on, and sometimes without need."""
        return Listener(self._topics, topics)

    async def close(self) -> None:
        """Close every listener and every connection. The backend is not used afterwards."""


class Listener:
    """Waits for topics, on one event loop at a time. Each is pending once at most: a slow listener needs no memory."""

    __slots__ = ("_names", "_pending", "_topics", "_waiter", "closed")

    def __init__(self, topics: "Topics", names: Iterable[str]) -> None:
        names = tuple(names)
        for name in names:
            check_name(name)
        self.closed = topics.closed
        self._topics = topics
        self._names: set[str] = set()
        self._pending: set[str] = set()
        self._waiter: asyncio.Future[None] | None = None  # the only part that belongs to an event loop
        topics.listeners.add(self)
        for name in names:
            self.add(name)

    def add(self, topic: str) -> None:
        check_name(topic)
        if not self.closed and topic not in self._names:
            self._names.add(topic)
            listeners = self._topics.names.setdefault(topic, {})
            listeners[self] = None
            if len(listeners) == 1:
                self._topics.changed(topic)

    def remove(self, topic: str) -> None:
        """Remove a topic, even if it is pending."""
        if topic in self._names:
            self._names.remove(topic)
            self._pending.discard(topic)
            listeners = self._topics.names[topic]
            del listeners[self]
            if not listeners:
                del self._topics.names[topic]
                self._topics.changed(topic)

    async def wait(self) -> set[str]:
        """Wait for a topic; gives all that are pending, none once closed. A wait that is cancelled loses nothing.

        One task at a time may wait.
        """
        while not self._pending and not self.closed:
            if self._waiter is not None and not self._waiter.done():
                raise RuntimeError("Another task waits at this listener already")
            self._waiter = waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                if self._waiter is waiter:
                    self._waiter = None
        pending, self._pending = self._pending, set()
        return pending

    def close(self) -> None:
        """Close the listener, and end a `wait` that is running."""
        self.closed = True
        for name in tuple(self._names):
            self.remove(name)
        self._topics.listeners.discard(self)
        self._wake()

    def notify(self, topic: str) -> None:
        self._pending.add(topic)
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            with contextlib.suppress(RuntimeError):  # the event loop of the waiting task was closed
                waiter.set_result(None)


class Topics:
    """The listeners of this process by topic; for the event loop only.

    `changed` is called when a topic has got its first listener, or lost its last.
    """

    def __init__(self, changed: Callable[[str], None] = lambda _: None) -> None:
        self.listeners: set[Listener] = set()
        self.names: dict[str, dict[Listener, None]] = {}  # the topics that have listeners
        self.changed = changed
        self.closed = False

    def wake(self, name: str) -> None:
        for listener in tuple(self.names.get(name, ())):
            listener.notify(name)

    def wake_all(self) -> None:
        """Wake all listeners after an outage, when it is not known which topics were published."""
        for name in tuple(self.names):
            self.wake(name)

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
    """Raises ValueError for a key or log that no backend takes."""
    check_name(name)
    check_ttl(ttl)
    if keep < 1:
        raise ValueError(f"keep={keep!r} is not possible; a log keeps one record at least")


def add_to_counter(key: str, value: bytes | None, n: int) -> int:
    """The total of a counter after `n` is added. Raises ValueError if it is no counter, or the total is too large."""
    if value is not None and not re.fullmatch(rb"0|-?[1-9][0-9]{0,18}", value):
        raise ValueError(f"The key {key!r} holds no number that could be counted on")
    total = n + int(value or 0)
    if abs(total) > MAX_COUNT:
        raise ValueError(f"The counter {key!r} can't go beyond {MAX_COUNT}")
    return total


def max_share(name: str) -> float:
    """The share of the store that may be in use when a key or log of that name is new, or its value grows."""
    return CALLER_SHARE if name.startswith(CALLER_PREFIXES) else 1.0


async def retry_while_unavailable(
    call: Callable[[], Awaitable[T]], should_retry: Callable[[], bool], retry_delay: float = 0.5
) -> T:
    """Retry a call while the store is unavailable and `should_retry()`. Only for calls that may happen twice."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            if not should_retry():
                raise
        await asyncio.sleep(retry_delay)


class Codec(Generic[T]):
    """Values of one type as bytes. Raise `version`, the first byte, with every change that older workers can't read."""

    def __init__(self, type: Any, name: str, version: int = 1) -> None:
        self._name = name
        self._version = bytes([version])
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[memoryview], T] = msgspec.msgpack.Decoder(type).decode

    def encode(self, value: T) -> bytes:
        return self._version + self._encode(value)

    def decode(self, data: bytes) -> T | None:
        """The decoded value; None, and a warning, if another version wrote it."""
        if data[:1] == self._version:
            try:
                return self._decode(memoryview(data)[1:])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
                pass
        log.warning("the state store holds a %s that this version can't read; it is ignored", self._name)
        return None


OPTION = "state (DOVETAIL_STATE)"
URL_EXAMPLES = "redis://host:6379/0, rediss://…, unix:///path, redis+sentinel://…, sqlite:///absolute/path or memory:"
MAX_PREFIX = 100  # characters
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}:")


def open_state(url: str | None, server_name: str) -> StateBackend:
    """The backend of `state=`, `--state` or DOVETAIL_STATE; memory without a URL. Raises SetupError for a bad one.

    memory:                                       this process alone
    sqlite:///absolute/path  sqlite:relative/path a file for all processes of one host
    redis://host:port/db  rediss://…  unix://…    Redis or Valkey; `rediss` is TLS, `unix` a socket of this host
    redis+sentinel://host:port,host:port/service/db, or rediss+sentinel://…

    All names in a shared store begin with a prefix: `?prefix=`, else the server's name. Servers with the same prefix
    are one fleet. No message shows a URL, for a password may be part of it.
    """
    if not url:
        return state.memory.MemoryState()
    if not url.isprintable() or " " in url:
        raise SetupError(f"{OPTION}: no URL holds blanks; give one like {URL_EXAMPLES}")
    scheme, _, rest = url.partition(":")
    rest, prefix = _take_prefix(rest)
    if not prefix and server_name == UNNAMED and scheme.lower() != "memory":
        fix = 'write Server("weather"), or ?prefix=weather at the end of the URL'
        raise SetupError(f"{OPTION}: a server without a name would share the records of all others without one; {fix}")
    prefix = prefix or quote(server_name, safe="", errors="replace")
    match scheme.lower():
        case "memory" if rest in ("", "//"):
            return state.memory.MemoryState()
        case "sqlite":
            return state.sqlite.SqliteState(_path(rest), prefix=prefix)
        case "redis" | "rediss" | "unix" | "redis+sentinel" | "rediss+sentinel" if rest.startswith("//"):
            return state.redis.RedisState(f"{scheme.lower()}:{rest}", prefix=prefix)
    wrong = f"{scheme}: is not known, or what follows it is wrong" if SCHEME.match(url) else "this is no URL"
    raise SetupError(f"{OPTION}: {wrong}; give one like {URL_EXAMPLES}")


def _take_prefix(rest: str) -> tuple[str, str]:
    """The URL after its scheme, without `prefix`, and the prefix."""
    prefixes = re.findall("[?&]prefix=([^&]*)", rest)
    if not prefixes:
        return rest, ""
    prefix = unquote(prefixes[0])
    if len(prefixes) > 1 or not (prefix.isprintable() and 0 < len(prefix) <= MAX_PREFIX):
        raise SetupError(f"{OPTION}: prefix must stand there once and have 1 to {MAX_PREFIX} printable characters")
    return re.sub("(?<=[?&])prefix=[^&]*&?", "", rest).rstrip("?&"), prefix


def _path(rest: str) -> str:
    """The path of a file, from `///absolute/path` or `relative/path`."""
    path = unquote(re.sub("^///+", "/", rest))
    if sys.platform == "win32" and re.match(r"/[A-Za-z]:", path):
        path = path[1:]
    if re.match("//(?!/)", rest) or "?" in rest or "\0" in path or not path.strip("/"):
        raise SetupError(
            f"{OPTION}: sqlite: takes the path of a file and no option but prefix: sqlite:///absolute/path or "
            "sqlite:relative; a ? in the path itself is written %3F"
        )
    return path
