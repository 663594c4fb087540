"""Redis state backend, for workers on many hosts: a Redis (7 or newer) or Valkey, by way of redis-py.

A prefix keeps servers apart that share a store. Every value expires there, by its clock. The first call, or the first
listener, connects; a backend may be made before an event loop runs and before a fork, and is used on one event loop at
a time.

Keys of the store, all below the prefix:

n         the last version that was assigned; versions only grow, even if all data are lost
k/<name>  a key: a hash of its value `v` and its version `n`
l/<name>  a log: a stream with the ids 0-1, 0-2 and so on; a record is one field
t/<name>  no key, but the channel of a topic
"""

import asyncio
import contextlib
import logging
import math
import random
import re
import time
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from dovetail.errors import ProtocolError, SetupError
from dovetail.state.base import (
    CALLER_PREFIXES,
    CALLER_SHARE,
    MAX_COUNT,
    Conflict,
    Entry,
    LogPage,
    LogRecord,
    StateBackend,
    StoreFull,
    StoreUnavailable,
    Topics,
    check_new,
    check_ttl,
)

try:
    import redis.asyncio as client
    from redis import exceptions as errors
    from redis.asyncio.client import PubSub
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool
    from redis.backoff import NoBackoff
except ImportError:
    raise SetupError('A state store in Redis needs the package redis: pip install "dovetail-mcp[redis]"') from None

CALL_TIMEOUT = 2.0  # seconds, with the wait for a connection
PING_TIMEOUT = 1.25  # seconds; with PING_INTERVAL less than CALL_TIMEOUT, so each worker notices why calls fail
PING_INTERVAL = 0.5  # seconds
MAX_BYTES = 32 * 1024 * 1024  # of one value or record: more could not be sent in time
PAGE_BYTES = 1024 * 1024  # of one page of a log

URL_EXAMPLES = (
    "redis://host:6379/0, rediss://…, unix:///path/to/socket or redis+sentinel://host:26379,host:26379/service/0"
)
SENTINELS = re.compile(r"(rediss?)\+sentinel://(?:([^/?#]*@))?([^@/?#]+)/([^/?#]+)(?:/(\d*))?(\?[^#]*)?")
URL_OPTION = re.compile(r"db|username|password|client_name|ssl_[a-z_]+|sentinel_(?:username|password)")
SECRET_OPTIONS = ("username", "password", "ssl_password", "sentinel_username", "sentinel_password")


def _script(*names: str) -> str:
    """Lua that the store runs atomically. Unless `is_tight` is empty, callers' records may not be new or grow."""
    return "".join((Path(__file__).parent / "lua" / f"{name}.lua").read_text() for name in names)


PUT, ADD, APPEND, READ = _script("tick", "put"), _script("tick", "add"), _script("append"), _script("read")
Value = bytes | str | int
log = logging.getLogger("dovetail.state")


class RedisState(StateBackend):
    """Keys, logs and topics in a store that all workers share, bounded by its `maxmemory` or the memory of its host.

    A store that evicts records when it is full is refused. `CALLER_PREFIXES` may exceed their share for a moment.
    """

    shared = True

    def __init__(self, url: str, prefix: str = "dovetail", *, max_waiting: int = 20_000) -> None:
        self.outages = 0
        self.max_waiting = max_waiting  # commands; after one change every stream of a worker may read at once
        self._address = RedisAddress(url)
        self._prefix = f"{prefix}:".encode()
        self._topics = Topics(self._changed)
        self._connection: _Connection | None = None
        self._closed = False

    async def check(self) -> None:
        await self._call("SET", self._prefix + b"ready", b"", "PX", 10_000)  # a PING does not fail when it is full

    async def get(self, key: str) -> Entry | None:
        value, version = await self._call("HMGET", self._name("k", key), "v", "n")
        return None if version is None else Entry(value, int(version))

    async def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        check_new(key, ttl)
        expected = "" if if_version is None else if_version
        version = await self._write(PUT, key, ttl, value, expected, once=if_version is not None)
        if version is None:
            raise Conflict
        return int(version)

    async def touch(self, key: str, ttl: float) -> bool:
        check_ttl(ttl)
        return bool(await self._call("PEXPIRE", self._name("k", key), math.ceil(ttl * 1000)))

    async def remaining(self, key: str) -> float | None:
        milliseconds = await self._call("PTTL", self._name("k", key))
        return None if milliseconds < 0 else milliseconds / 1000

    async def delete(self, key: str) -> bool:
        return bool(await self._call("UNLINK", self._name("k", key), once=True))

    async def add(self, key: str, n: int, ttl: float) -> int:
        check_new(key, ttl)
        total = await self._write(ADD, key, ttl, n) if abs(n) <= MAX_COUNT else b""
        if total is None:
            raise ValueError(f"The key {key!r} holds no number that could be counted on")
        if not total:
            raise ValueError(f"The counter {key!r} can't go beyond {MAX_COUNT}")
        return int(total)

    async def append(self, log: str, data: bytes, *, keep: int, ttl: float, if_last: int | None = None) -> int:
        check_new(log, ttl, keep)
        expected = "" if if_last is None else if_last
        id = await self._write(APPEND, log, ttl, data, expected, min(keep, MAX_COUNT), self._name("t", log))
        if id is None:
            raise Conflict
        return int(id)

    async def read(self, log: str, after: int, limit: int = 100) -> LogPage:
        bounds = (min(max(after, 0), MAX_COUNT), max(limit, 0), PAGE_BYTES)
        kept, last, flat = await self._call("EVAL", READ, 1, self._name("l", log), *bounds)
        records = [LogRecord(int(id), data) for id, data in zip(flat[::2], flat[1::2], strict=True)]
        return LogPage(records, int(last) - kept + 1 if kept else 0, int(last))  # ids have no gaps

    async def drop(self, log: str) -> None:
        await self._call("UNLINK", self._name("l", log))

    async def publish(self, topic: str) -> None:
        await self._call("PUBLISH", self._name("t", topic), b"")

    async def close(self) -> None:
        self._closed = True
        self._topics.close()
        if self._connection is not None:
            await self._connection.close()

    async def _write(self, script: str, name: str, ttl: float, value: Value, *rest: Value, once: bool = True) -> Any:
        if isinstance(value, bytes) and (size := len(value)) > MAX_BYTES:
            raise StoreFull(f"A record of {size} bytes is too large for the state store; {MAX_BYTES} are possible")
        keys = [self._name("l", name)] if script is APPEND else [self._name("k", name), self._prefix + b"n"]
        is_tight = "1" if name.startswith(CALLER_PREFIXES) and self._connected().is_tight else ""
        arguments = (*keys, is_tight, math.ceil(ttl * 1000), value, *rest)
        return await self._call("EVAL", script, len(keys), *arguments, once=once)

    async def _call(self, *command: Value, once: bool = False) -> Any:
        """Send a command and return the reply. After a lost connection it is sent again, once, unless `once` is set."""
        connection = self._connected()
        since = connection.loop.time()
        while True:
            if not connection.is_up:
                await connection.wait_until_up(since + CALL_TIMEOUT)
            reply = await connection.send(command, since)
            if once or not isinstance(reply, errors.ConnectionError):
                break
            once = True
        if isinstance(reply, Exception):
            raise connection.translated(reply)
        return reply

    def _connected(self) -> "_Connection":
        """The connection of this event loop."""
        connection = self._connection
        if connection is not None and connection.loop is asyncio.get_running_loop():
            return connection
        if self._closed:
            raise StoreUnavailable("The server's state store was closed")
        self._connection = _Connection(self, self._address, self._topics, self._name("t", ""))
        return self._connection

    def _changed(self, topic: str) -> None:
        """Subscribe to a topic that has got its first listener, or unsubscribe from one that lost its last."""
        with contextlib.suppress(RuntimeError, StoreUnavailable):  # no event loop: the first call on one subscribes
            self._connected().topic_changed(topic)

    def _name(self, kind: str, name: str) -> bytes:
        return self._prefix + f"{kind}/{name}".encode("utf-8", "surrogatepass")  # which finds nothing


_Command = tuple[tuple[Value, ...], float, "asyncio.Future[Any]"]  # with the time of its call, and its reply


class _Connection:
    """Connection of one process on one event loop: one socket for commands, and one for pub/sub.

    A task pings the store, and while that is unavailable every command fails at once. The task owns the sockets and
    closes them when it ends: `asyncio.run` cancels it, so none stays open after a loop.
    """

    def __init__(self, state: RedisState, address: "RedisAddress", topics: Topics, channel: bytes) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_up = False
        self.is_tight = False  # no room for new records of CALLER_PREFIXES
        self._state = state
        self._address = address
        self._pool = address.connection_pool()
        self._client: client.Redis = client.Redis(connection_pool=self._pool)
        self._queue: list[_Command] = []
        self._in_flight = 0  # commands
        self._sender: asyncio.Task[None] | None = None
        self._channel = channel
        self._topics = topics
        self._subscribed: set[str] = set()
        self._changed: set[str] = set()  # topics that may have to be subscribed or unsubscribed
        self._wakeup = asyncio.Event()
        self._was_up_or_failed = False
        self._error: StoreUnavailable | None = None  # why every command fails at once
        self._up_or_failed = asyncio.Event()
        self._pings = 0  # without a reply
        self._next_warning = 0.0
        self._task = self.loop.create_task(self._run(), name="dovetail state connection")

    async def wait_until_up(self, deadline: float) -> None:
        """Wait until the store is available. Raises StoreUnavailable."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._up_or_failed.wait()
        except TimeoutError:
            raise StoreUnavailable from None
        if self._error is not None:
            raise StoreUnavailable(self._error.message)

    def send(self, command: tuple[Value, ...], since: float) -> "asyncio.Future[Any]":
        """Send a command; returns the reply or an exception. Commands that wait for a pipeline share the next one."""
        if len(self._queue) + self._in_flight >= self._state.max_waiting:
            raise StoreUnavailable("The server's state store has too much to do now; try again later")
        reply: asyncio.Future[Any] = self.loop.create_future()
        self._queue.append((command, since, reply))
        if self._sender is None:
            self._sender = self.loop.create_task(self._send_queue())
        return reply

    async def _send_queue(self) -> None:
        while self._queue:
            batch, self._queue = self._queue[:100], self._queue[100:]  # as many as can be sent in time
            self._in_flight = len(batch)
            replies: list[Any] = [StoreUnavailable()] * len(batch)  # if it is closed meanwhile
            pipeline = self._client.pipeline(transaction=False)
            for command, _, _ in batch:
                pipeline.execute_command(*command)
            try:
                async with asyncio.timeout_at(batch[0][1] + CALL_TIMEOUT):
                    replies = await pipeline.execute(raise_on_error=False)
            except Exception as failure:
                replies = [failure] * len(batch)
            finally:
                for (_, _, future), reply in zip(batch, replies, strict=True):
                    if not future.done():
                        future.set_result(reply)
        self._in_flight, self._sender = 0, None

    def translated(self, failure: Exception) -> ProtocolError:
        """The exception to raise for a command that failed."""
        if isinstance(failure, errors.OutOfMemoryError):
            return StoreFull()
        if isinstance(failure, errors.ResponseError) and (now := time.monotonic()) >= self._next_warning:
            self._next_warning = now + 10
            log.warning("The state store %s refuses commands: %s", self._address.shown, self._address.scrubbed(failure))
        return StoreUnavailable()

    def topic_changed(self, topic: str) -> None:
        self._changed.add(topic)
        self._wakeup.set()

    async def _run(self) -> None:
        retry_delay = 0.0  # seconds, less than CALL_TIMEOUT
        try:
            while True:
                began = self.loop.time()
                try:
                    await self._listen()
                except Exception as failure:
                    was_stable = self.is_up and self.loop.time() > began + 2
                    retry_delay = 0.05 if was_stable else min(2 * retry_delay + 0.05, 1.5)
                    self._mark_down(failure)
                    await self._disconnect(inuse_connections=False)
                await asyncio.sleep(retry_delay * random.uniform(0.5, 1))
        finally:
            await self._end()

    async def _listen(self) -> None:
        """Connect, subscribe and receive, until the connection is lost."""
        async with asyncio.timeout(CALL_TIMEOUT):
            if "maxmemory_policy" not in await self._check_info():
                log.warning("%s does not report maxmemory-policy; make sure that it is noeviction", self._address.shown)
            pubsub = self._client.pubsub()
            await pubsub.connect()  # type: ignore[no-untyped-call]
        self._subscribed.clear()
        self._changed = set(self._topics.names)
        self._pings = 0
        receiving = self.loop.create_task(self._receive(pubsub))
        receiving.add_done_callback(lambda _: self._wakeup.set())
        try:
            await self._subscribe_and_ping(pubsub, receiving)
        finally:
            receiving.cancel()
            await asyncio.wait([receiving])
            await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _subscribe_and_ping(self, pubsub: PubSub, receiving: "asyncio.Task[None]") -> None:
        """Subscribe to new topics and ping the store, until receiving has failed."""
        ping_at = 0.0
        while not receiving.done():
            self._wakeup.clear()
            await self._subscribe(pubsub)
            if self.loop.time() >= ping_at:
                if self._pings > PING_TIMEOUT / PING_INTERVAL:
                    raise errors.ConnectionError("it gives no sign of life")
                self._pings += 1
                await pubsub.ping()
                await self._check_info()
                ping_at = self.loop.time() + PING_INTERVAL
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(ping_at):
                    await self._wakeup.wait()
        await receiving

    async def _subscribe(self, pubsub: PubSub) -> None:
        changed, self._changed = self._changed, set()
        wanted = changed & self._topics.names.keys()
        new, gone = wanted - self._subscribed, (changed - wanted) & self._subscribed
        self._subscribed ^= new | gone
        for verb, names in ((pubsub.subscribe, new), (pubsub.unsubscribe, gone)):
            if names:
                async with asyncio.timeout(PING_TIMEOUT):
                    await verb(*(self._channel + name.encode() for name in names))

    async def _receive(self, pubsub: PubSub) -> None:
        """Receive wake-ups. A topic is also woken when it is subscribed: it may have been published just before."""
        while True:
            match await pubsub.get_message(timeout=None):
                case {"type": "message" | "subscribe", "channel": bytes(channel)}:
                    self._topics.wake(channel[len(self._channel) :].decode(errors="replace"))
                case {"type": "pong"}:
                    self._pings = 0
                    self._mark_up()

    async def _check_info(self) -> dict[str, Any]:
        """The reply to INFO; empty if there is none. Raises SetupError if the store can't be used."""
        began = self.loop.time()
        try:
            async with asyncio.timeout(PING_TIMEOUT):
                info: dict[str, Any] = await self._client.info()
        except errors.NoPermissionError:
            return {}
        except TimeoutError:
            if self.loop.time() - began < 2 * PING_TIMEOUT:
                raise
            return {}  # this process itself was held up, and has not read the reply yet
        version, policy = str(info.get("redis_version", "7")), info.get("maxmemory_policy", "noeviction")
        if int(version.partition(".")[0]) < 7 or info.get("redis_mode") == "cluster":
            found = "a Redis Cluster" if info.get("redis_mode") == "cluster" else f"Redis {version}"
            raise SetupError(f"it is {found}; a single Redis 7 or newer, or Valkey, is needed")
        if policy != "noeviction":
            raise SetupError(f"its maxmemory-policy {policy} drops records when it is full; set it to noeviction")
        if info.get("role") == "slave":
            raise errors.ConnectionError("it is a replica, which can't be written to")
        max_memory = info.get("maxmemory") or info.get("total_system_memory") or math.inf
        self.is_tight = info.get("used_memory", 0) > max_memory * CALLER_SHARE
        return info

    def _mark_up(self) -> None:
        """Mark the store as available: it has answered, and all topics are subscribed."""
        if self.is_up:
            return
        if self._error is not None:
            log.warning("The state store %s is back", self._address.shown)
        is_back, self._was_up_or_failed = self._was_up_or_failed, True
        self.is_up, self._error = True, None
        self._up_or_failed.set()
        if is_back:
            self._state.outages += 1
            self._topics.wake_all()

    def _mark_down(self, failure: Exception) -> None:
        """Mark the store as down. Calls wait after a lost connection, and fail if none could be made."""
        if self.is_up:
            self.is_up = False
            self._up_or_failed.clear()
            return
        if self._error is None:
            log.warning("The state store %s is out of reach: %s", self._address.shown, self._address.scrubbed(failure))
        self._error = StoreUnavailable()
        if isinstance(failure, SetupError):
            self._error = StoreUnavailable(f"The server's state store can't be used: {failure}")
        self._was_up_or_failed = True
        self._up_or_failed.set()

    async def close(self) -> None:
        if self.loop is asyncio.get_running_loop():  # else it has ended
            self._task.cancel()
            await asyncio.wait([self._task])
            await self._end()  # a task that was cancelled before it began has not done so

    async def _end(self) -> None:
        self.is_up, self._error = False, StoreUnavailable("The server's state store was closed")
        self._up_or_failed.set()
        queue, self._queue = self._queue, []
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait([self._sender])
        for _, _, future in queue:
            if not future.done():
                future.set_result(StoreUnavailable())
        await self._disconnect()

    async def _disconnect(self, *, inuse_connections: bool = True) -> None:
        with contextlib.suppress(errors.RedisError, OSError):
            await self._pool.disconnect(inuse_connections)
            if isinstance(self._pool, SentinelConnectionPool):
                for sentinel in self._pool.sentinel_manager.sentinels:
                    await sentinel.connection_pool.disconnect()


class RedisAddress:
    """The address and options in a URL: redis://, rediss://, unix:// or redis+sentinel:// (rediss+sentinel://).

    It opens no connection, so it may be made before an event loop runs. No text shows the secrets of the URL.
    """

    def __init__(self, url: str) -> None:
        self.sentinels: list[tuple[str, int]] = []
        self.service = ""
        scheme, _, rest = url.partition("?")[0].partition("://")
        self.shown = f"{scheme}://{rest.rpartition('@')[2]}"  # without user, password and options
        try:
            plain = self._without_sentinels(url) if scheme.endswith("+sentinel") else url
            parts = urlsplit(plain)
            self.options: dict[str, Any] = dict(client.connection.parse_url(plain))
        except ValueError:
            _bad_url("it can't be read: how it begins, a port, its service or the value of an option is wrong")
        if parts.fragment or (parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path)):
            _bad_url("its path is not the number of a database; a # has to be written as %23")
        for name, _ in parse_qsl(parts.query):
            if not URL_OPTION.fullmatch(name):
                _bad_url(f"it has no option {name[:40]!r}")
        secrets = {str(self.options[name]) for name in SECRET_OPTIONS if self.options.get(name)}
        self._secrets = sorted(secrets, key=len, reverse=True)
        try:
            self.connection_pool().make_connection()  # type: ignore[no-untyped-call]
        except (TypeError, ValueError, errors.RedisError) as failure:
            _bad_url(f"one of its options is not possible: {self.scrubbed(failure)}")

    def _without_sentinels(self, url: str) -> str:
        """A URL that redis-py understands; it does not know sentinels. Raises ValueError if it names none."""
        found = SENTINELS.fullmatch(url)
        if found is None:
            raise ValueError
        scheme, user, hosts, service, db, query = found.groups("")
        for parts in (urlsplit(f"//{host}") for host in hosts.split(",")):
            if not parts.hostname:
                raise ValueError
            self.sentinels.append((parts.hostname, parts.port or 26379))
        self.service = unquote(service)
        return f"{scheme}://{user}/{db}{query}"

    def connection_pool(self) -> client.ConnectionPool:
        """A pool whose connections have no timeouts and retries of their own."""
        retry = Retry(NoBackoff(), 0)
        options = {**self.options, "protocol": 2, "socket_timeout": None, "socket_connect_timeout": CALL_TIMEOUT}
        for_sentinels = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        if not self.sentinels:
            return client.ConnectionPool(retry=retry, **options)
        is_tls = options.pop("connection_class", None) is client.SSLConnection
        limits = {"protocol": 2, "socket_timeout": PING_TIMEOUT / 3, "socket_connect_timeout": PING_TIMEOUT / 3}
        kwargs = {**for_sentinels, **limits, "retry": retry}
        sentinel = client.Sentinel(self.sentinels, sentinel_kwargs=kwargs)  # type: ignore[no-untyped-call]
        return SentinelConnectionPool(self.service, sentinel, ssl=is_tls, retry=retry, **options)  # type: ignore[no-untyped-call]

    def scrubbed(self, failure: Exception) -> str:
        """The text of a failure on one line, without secrets, and without the arguments of a command."""
        if isinstance(failure, errors.AuthenticationError):
            return "it wants another user or password"
        if isinstance(failure, MasterNotFoundError):
            return "no sentinel knows its master"  # redis-py names every sentinel here, with all its options
        text = " ".join(str(failure).split()).partition(", with args")[0]
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text[:200] or "it does not answer"


def _bad_url(problem: str) -> NoReturn:
    raise SetupError(f"The URL of the state store is not possible, {problem}; write {URL_EXAMPLES}")
