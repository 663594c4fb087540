"""Redis state backend, for workers on many hosts: a Redis (7 or newer) or Valkey, by way of redis-py.

A URL says where the store is, and a prefix keeps servers apart that share it. Every value expires there, by its clock.
Nothing is connected before the first call; a backend may be made before an event loop runs and before a fork, and is
used on one event loop at a time. A process that only waits at a listener hears once a call was made, or the listener,
on the running loop.

Keys of the store, all below the prefix:

n         the last version that was given out; versions only grow, even if all data are lost
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
    CALLER_FAMILIES,
    CALLERS_SHARE,
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

DEADLINE = 2.0  # seconds for a call, with the wait for a connection
SILENCE = 1.25  # seconds for a sign of life; with LOOK less than DEADLINE, so each worker notices what lets calls fail
LOOK = 0.5  # seconds between two looks at the store
MAX_BYTES = 32 * 1024 * 1024  # of one value or record: more could not be carried in time
PAGE_BYTES = 1024 * 1024  # of one page of a log

EXAMPLES = "redis://host:6379/0, rediss://…, unix:///path/to/socket or redis+sentinel://host:26379,host:26379/service/0"
SENTINELS = re.compile(r"(rediss?)\+sentinel://(?:([^/?#]*@))?([^@/?#]+)/([^/?#]+)(?:/(\d*))?(\?[^#]*)?")
OPTION = re.compile(r"db|username|password|client_name|ssl_[a-z_]+|sentinel_(?:username|password)")
SECRETS = ("username", "password", "ssl_password", "sentinel_username", "sentinel_password")


def _script(*names: str) -> str:
    """What the store does in one step. A new record that callers cause is refused if its `tight` is not empty."""
    return "".join((Path(__file__).parent / "lua" / f"{name}.lua").read_text() for name in names)


PUT, ADD, APPEND, READ = _script("tick", "put"), _script("tick", "add"), _script("append"), _script("read")
Word = bytes | str | int
log = logging.getLogger("dovetail.state")


class RedisState(StateBackend):
    """Keys, logs and topics in a store that all workers share.

    How much it may hold is the store's `maxmemory`, or the memory of its host; a store that drops records when it is
    full is refused. A record of `CALLER_FAMILIES` may come a moment too early to be refused.
    """

    shared = True

    def __init__(self, url: str, prefix: str = "dovetail", *, max_waiting: int = 20_000) -> None:
        self.outages = 0
        self.max_waiting = max_waiting  # commands; one change may let every stream of a worker read at once
        self._address = RedisAddress(url)
        self._prefix = f"{prefix}:".encode()
        self._topics = Topics(self._changed)
        self._link: _Link | None = None
        self._closed = False

    async def check(self) -> None:
        await self._ask("SET", self._prefix + b"ready", b"", "PX", 10_000)  # one that is full answers a PING

    async def get(self, key: str) -> Entry | None:
        value, version = await self._ask("HMGET", self._name("k", key), "v", "n")
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
        return bool(await self._ask("PEXPIRE", self._name("k", key), math.ceil(ttl * 1000)))

    async def remaining(self, key: str) -> float | None:
        milliseconds = await self._ask("PTTL", self._name("k", key))
        return None if milliseconds < 0 else milliseconds / 1000

    async def delete(self, key: str) -> bool:
        return bool(await self._ask("UNLINK", self._name("k", key), once=True))

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
        kept, last, flat = await self._ask("EVAL", READ, 1, self._name("l", log), *bounds)
        records = [LogRecord(int(id), data) for id, data in zip(flat[::2], flat[1::2], strict=True)]
        return LogPage(records, int(last) - kept + 1 if kept else 0, int(last))  # ids have no gaps

    async def drop(self, log: str) -> None:
        await self._ask("UNLINK", self._name("l", log))

    async def publish(self, topic: str) -> None:
        await self._ask("PUBLISH", self._name("t", topic), b"")

    async def close(self) -> None:
        self._closed = True
        self._topics.close()
        if self._link is not None:
            await self._link.close()

    # ── commands ──

    async def _write(self, script: str, name: str, ttl: float, value: Word, *words: Word, once: bool = True) -> Any:
        if isinstance(value, bytes) and len(value) > MAX_BYTES:
            raise StoreFull(
                f"A record of {len(value)} bytes is too large for the state store; {MAX_BYTES} are possible"
            )
        keys = [self._name("l", name)] if script is APPEND else [self._name("k", name), self._prefix + b"n"]
        tight = "tight" if name.startswith(CALLER_FAMILIES) and self._connected().is_tight else ""
        return await self._ask("EVAL", script, len(keys), *keys, tight, math.ceil(ttl * 1000), value, *words, once=once)

    async def _ask(self, *words: Word, once: bool = False) -> Any:
        """The answer to a command. If that is lost on the way, the command is tried again, unless it is for `once`."""
        link = self._connected()
        since = link.loop.time()
        while True:
            if not link.is_up:
                await link.until_up(since + DEADLINE)
            answer = await link.ask(words, since)
            if once or not isinstance(answer, errors.ConnectionError):
                break
            once = True
        if isinstance(answer, Exception):
            raise link.translated(answer)
        return answer

    def _connected(self) -> "_Link":
        """The link of this event loop."""
        link = self._link
        if link is not None and link.loop is asyncio.get_running_loop():
            return link
        if self._closed:
            raise StoreUnavailable("The server's state store was closed")
        self._link = _Link(self, self._address, self._topics, self._name("t", ""))
        return self._link

    def _changed(self, topic: str) -> None:
        """A topic has its first listener, or has lost its last."""
        with contextlib.suppress(RuntimeError, StoreUnavailable):  # no event loop: the first call on one will see to it
            self._connected().look_at(topic)

    def _name(self, kind: str, name: str) -> bytes:
        return self._prefix + f"{kind}/{name}".encode("utf-8", "surrogatepass")  # which finds nothing


_Asked = tuple[tuple[Word, ...], float, "asyncio.Future[Any]"]  # a command, when it was asked, and its answer


class _Link:
    """The connections of one process on one event loop: one for commands, and one that waits for wake-ups.

    A task looks at the store again and again, and while the store is lost every command fails at once. That task owns
    the connections and closes them when it ends: `asyncio.run` cancels it, so nothing stays open after a loop.
    """

    def __init__(self, state: RedisState, address: "RedisAddress", topics: Topics, channel: bytes) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_up = False
        self.is_tight = False  # the store has no room for what callers cause
        self._state = state
        self._address = address
        self._pool = address.connection_pool()
        self._client: client.Redis = client.Redis(connection_pool=self._pool)
        self._queue: list[_Asked] = []
        self._under_way = 0  # commands
        self._sender: asyncio.Task[None] | None = None
        self._channel = channel
        self._topics = topics
        self._subscribed: set[str] = set()
        self._changed: set[str] = set()  # topics whose listeners have come or gone
        self._news = asyncio.Event()
        self._returning = False  # this is not the first contact
        self._trouble: StoreUnavailable | None = None  # why every command fails at once
        self._known = asyncio.Event()  # whether it is up, or in trouble
        self._pings = 0  # without an answer
        self._quiet_until = 0.0
        self._task = self.loop.create_task(self._run(), name="dovetail state link")

    async def until_up(self, deadline: float) -> None:
        """Raises StoreTrouble if the store is lost."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._known.wait()
        except TimeoutError:
            raise StoreUnavailable from None
        if self._trouble is not None:
            raise StoreUnavailable(self._trouble.message)

    # ── commands ──

    def ask(self, words: tuple[Word, ...], since: float) -> "asyncio.Future[Any]":
        """The reply, or the exception that says why there is none. What waits meanwhile shares the next pipeline."""
        if len(self._queue) + self._under_way >= self._state.max_waiting:
            raise StoreUnavailable("The server's state store has too much to do now; try again later")
        answer: asyncio.Future[Any] = self.loop.create_future()
        self._queue.append((words, since, answer))
        if self._sender is None:
            self._sender = self.loop.create_task(self._send())
        return answer

    async def _send(self) -> None:
        while self._queue:
            batch, self._queue = self._queue[:100], self._queue[100:]  # what can be carried in time
            self._under_way = len(batch)
            answers: list[Any] = [StoreUnavailable()] * len(batch)  # if it is closed meanwhile
            pipeline = self._client.pipeline(transaction=False)
            for words, _, _ in batch:
                pipeline.execute_command(*words)
            try:
                async with asyncio.timeout_at(batch[0][1] + DEADLINE):
                    answers = await pipeline.execute(raise_on_error=False)
            except Exception as failure:
                answers = [failure] * len(batch)
            finally:
                for (_, _, future), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
        self._under_way, self._sender = 0, None

    def translated(self, failure: Exception) -> ProtocolError:
        """What the failure of a command means to its caller."""
        if isinstance(failure, errors.OutOfMemoryError):
            return StoreFull()
        if isinstance(failure, errors.ResponseError) and (now := time.monotonic()) >= self._quiet_until:
            self._quiet_until = now + 10
            log.warning("The state store %s refuses commands: %s", self._address.shown, self._address.scrubbed(failure))
        return StoreUnavailable()

    # ── the waiting connection ──

    def look_at(self, topic: str) -> None:
        """Its listeners have come, or gone."""
        self._changed.add(topic)
        self._news.set()

    async def _run(self) -> None:
        pause = 0.0  # seconds, fewer than a call waits
        try:
            while True:
                began = self.loop.time()
                try:
                    await self._attend()
                except Exception as failure:
                    has_stood = self.is_up and self.loop.time() > began + 2
                    pause = 0.05 if has_stood else min(2 * pause + 0.05, 1.5)
                    self._lose(failure)
                    await self._disconnect(inuse_connections=False)
                await asyncio.sleep(pause * random.uniform(0.5, 1))
        finally:
            await self._end()

    async def _attend(self) -> None:
        """Connect and hear, until the connection is lost."""
        async with asyncio.timeout(DEADLINE):
            if "maxmemory_policy" not in await self._look():
                log.warning("See that maxmemory-policy is noeviction in %s: it does not tell", self._address.shown)
            pubsub = self._client.pubsub()
            await pubsub.connect()  # type: ignore[no-untyped-call]
        self._subscribed.clear()
        self._changed = set(self._topics.names)
        self._pings = 0
        hearing = self.loop.create_task(self._hear(pubsub))
        hearing.add_done_callback(lambda _: self._news.set())
        try:
            await self._speak(pubsub, hearing)
        finally:
            hearing.cancel()
            await asyncio.wait([hearing])
            await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def _speak(self, pubsub: PubSub, hearing: "asyncio.Task[None]") -> None:
        """Subscribe what is wanted, end what is not, and ask for signs of life, until hearing has failed."""
        look_at = 0.0
        while not hearing.done():
            self._news.clear()
            await self._subscribe(pubsub)
            if self.loop.time() >= look_at:
                if self._pings > SILENCE / LOOK:
                    raise errors.ConnectionError("it gives no sign of life")
                self._pings += 1
                await pubsub.ping()
                await self._look()
                look_at = self.loop.time() + LOOK
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(look_at):
                    await self._news.wait()
        await hearing

    async def _subscribe(self, pubsub: PubSub) -> None:
        changed, self._changed = self._changed, set()
        wanted = changed & self._topics.names.keys()
        come, gone = wanted - self._subscribed, (changed - wanted) & self._subscribed
        self._subscribed ^= come | gone
        for verb, names in ((pubsub.subscribe, come), (pubsub.unsubscribe, gone)):
            if names:
                async with asyncio.timeout(SILENCE):
                    await verb(*(self._channel + name.encode() for name in names))

    async def _hear(self, pubsub: PubSub) -> None:
        """A topic is told too when its subscription stands: something may have been published just before."""
        while True:
            match await pubsub.get_message(timeout=None):
                case {"type": "message" | "subscribe", "channel": bytes(channel)}:
                    self._topics.tell(channel[len(self._channel) :].decode(errors="replace"))
                case {"type": "pong"}:
                    self._pings = 0
                    self._stand()

    async def _look(self) -> dict[str, Any]:
        """What the store tells of itself. Raises SetupError if it can't be used."""
        began = self.loop.time()
        try:
            async with asyncio.timeout(SILENCE):
                told: dict[str, Any] = await self._client.info()
        except errors.NoPermissionError:
            return {}
        except TimeoutError:
            if self.loop.time() - began < 2 * SILENCE:
                raise
            return {}  # this process itself was held up, and the answer may lie there unread
        version, policy = str(told.get("redis_version", "7")), told.get("maxmemory_policy", "noeviction")
        if int(version.partition(".")[0]) < 7 or told.get("redis_mode") == "cluster":
            found = "a Redis Cluster" if told.get("redis_mode") == "cluster" else f"Redis {version}"
            raise SetupError(f"it is {found}; a single Redis 7 or newer, or Valkey, is needed")
        if policy != "noeviction":
            raise SetupError(f"its maxmemory-policy {policy} drops records when it is full; set it to noeviction")
        if told.get("role") == "slave":
            raise errors.ConnectionError("it is a replica, which can't be written to")
        room = told.get("maxmemory") or told.get("total_system_memory") or math.inf
        self.is_tight = told.get("used_memory", 0) > room * CALLERS_SHARE
        return told

    def _stand(self) -> None:
        """The store is there, and everything is subscribed."""
        if self.is_up:
            return
        if self._trouble is not None:
            log.warning("The state store %s is back", self._address.shown)
        is_return, self._returning = self._returning, True
        self.is_up, self._trouble = True, None
        self._known.set()
        if is_return:
            self._state.outages += 1
            self._topics.tell_all()

    def _lose(self, failure: Exception) -> None:
        """The connection was lost (then calls wait, for the store may be back at once), or could not be had."""
        if self.is_up:
            self.is_up = False
            self._known.clear()
            return
        if self._trouble is None:
            log.warning("The state store %s is out of reach: %s", self._address.shown, self._address.scrubbed(failure))
        self._trouble = StoreUnavailable()
        if isinstance(failure, SetupError):
            self._trouble = StoreUnavailable(f"The server's state store can't be used: {failure}")
        self._returning = True
        self._known.set()

    async def close(self) -> None:
        if self.loop is asyncio.get_running_loop():  # else it is over
            self._task.cancel()
            await asyncio.wait([self._task])
            await self._end()  # a task that was cancelled before it began has not

    async def _end(self) -> None:
        self.is_up, self._trouble = False, StoreUnavailable("The server's state store was closed")
        self._known.set()
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
    """Where a store is and how one gets in: redis://, rediss://, unix:// or redis+sentinel:// (rediss+sentinel://).

    Opens nothing, so it may be made long before an event loop runs. What is secret in the URL stays out of every text.
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
            if not OPTION.fullmatch(name):
                _bad_url(f"it has no option {name[:40]!r}")
        secrets = {str(self.options[name]) for name in SECRETS if self.options.get(name)}
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
        """Connections that wait as long as their caller does, and try nothing again."""
        retry = Retry(NoBackoff(), 0)
        options = {**self.options, "protocol": 2, "socket_timeout": None, "socket_connect_timeout": DEADLINE}
        for_sentinels = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        if not self.sentinels:
            return client.ConnectionPool(retry=retry, **options)
        is_tls = options.pop("connection_class", None) is client.SSLConnection
        limits = {"protocol": 2, "socket_timeout": SILENCE / 3, "socket_connect_timeout": SILENCE / 3}
        sentinel = client.Sentinel(  # type: ignore[no-untyped-call]
            self.sentinels, sentinel_kwargs={**for_sentinels, **limits, "retry": retry}
        )
        return SentinelConnectionPool(self.service, sentinel, ssl=is_tls, retry=retry, **options)  # type: ignore[no-untyped-call]

    def scrubbed(self, failure: Exception) -> str:
        """The text of a failure on one line, without what is secret, and without the arguments of a command."""
        if isinstance(failure, errors.AuthenticationError):
            return "it wants another user or password"
        if isinstance(failure, MasterNotFoundError):
            return "no sentinel knows its master"  # redis-py names every sentinel here, with all its options
        text = " ".join(str(failure).split()).partition(", with args")[0]
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text[:200] or "it does not answer"


def _bad_url(problem: str) -> NoReturn:
    raise SetupError(f"The URL of the state store is not possible, {problem}; write {EXAMPLES}")
