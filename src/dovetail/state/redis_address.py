"""From a URL to connections: the only module that knows redis-py, which is loaded when a store is named.

In: redis://, rediss://, unix:// or redis+sentinel:// (rediss+sentinel://) with user and password. Out: a
`RedisAddress`, from which a `RedisPort` opens connections: a `Line`, on which redis-py speaks, or for a `Pipeline`, on
which we do once redis-py has connected. What is asked on a line has an answer, or is `Refused` (the store said no) or
`Lost` (nobody knows). What is secret in the URL stays out of every text.
"""

import asyncio
import contextlib
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from dovetail.errors import SetupError
from dovetail.state.redis_pipeline import Lost, Unsent
from dovetail.state.redis_resp import Refused, Reply
from dovetail.state.redis_scripts import Part

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool, Sentinel
    from redis.asyncio.connection import AbstractConnection

EXAMPLES = "redis://host:6379/0, rediss://…, unix:///path/to/socket or redis+sentinel://host:26379,host:26379/service/0"
SENTINEL_PORT = 26379
SENTINEL_SECONDS = 0.5  # for one sentinel to answer, before the next one is asked
SENTINELS = re.compile(r"(rediss?)\+sentinel://(?:([^/?#]*)@)?([^@/?#]+)/([^/?#]+)(?:/(\d*))?(?:\?([^#]*))?")
OPTION = re.compile(r"db|username|password|client_name|ssl_[a-z_]+|sentinel_(?:username|password)")
CODES = {  # which the library takes off the texts
    "OutOfMemoryError": "OOM",
    "NoScriptError": "NOSCRIPT",
    "ReadOnlyError": "READONLY",
    "NoPermissionError": "NOPERM",
}
SECRETS = ("username", "password", "ssl_password", "sentinel_username", "sentinel_password")
OURS = {"protocol": 2, "socket_timeout": None, "socket_connect_timeout": None}  # whoever asks sets the time limit


class RedisAddress:
    """Where a store is and how one gets in. Opens nothing, so it may be made long before an event loop runs."""

    def __init__(self, url: str) -> None:
        self.library = _library()
        plain, self.sentinels, self.service = _split(url)
        try:
            self.options: dict[str, Any] = dict(self.library.connection.parse_url(plain))
        except ValueError:
            _bad_url("its port, or the value of an option, is not possible")
        secrets = {str(self.options[name]) for name in SECRETS if self.options.get(name)}
        self._secrets = sorted(secrets, key=len, reverse=True)
        self.shown = _shown(url, self.options)
        try:
            RedisPort(self).line()
        except (TypeError, ValueError, self.library.RedisError) as failure:
            _bad_url(f"one of its options is not possible: {self.scrubbed(failure)}")

    def scrubbed(self, failure: object) -> str:
        """The text of a failure on one line, without what is secret."""
        text = " ".join(str(failure).split())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text[:200] or type(failure).__name__


class RedisPort:
    """Opens lines to the store, on one event loop."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._sentinel: Sentinel | None = None
        self._makes: ConnectionPool  # used for what it makes, not for keeping it
        library, options = address.library, dict(address.options)
        for_sentinels = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        if not address.sentinels:
            self._makes = library.ConnectionPool(**{**options, **OURS})
            return
        for name in ("host", "port", "connection_class"):
            options.pop(name, None)
        once = library.retry.Retry(library.backoff.NoBackoff(), 0)
        limits = {"protocol": 2, "socket_timeout": SENTINEL_SECONDS, "socket_connect_timeout": SENTINEL_SECONDS}
        self._sentinel = library.Sentinel(address.sentinels, sentinel_kwargs={**for_sentinels, **limits, "retry": once})
        self._makes = library.sentinel.SentinelConnectionPool(address.service, self._sentinel, **{**options, **OURS})

    def line(self) -> "Line":
        return Line(self._makes.make_connection(), self._address)  # type: ignore[no-untyped-call]

    async def connect(self) -> asyncio.StreamWriter:
        """A connection that redis-py has made and let go of. Raises Unsent if that fails."""
        line = self.line()
        try:
            await line.connect()
        except Lost as failure:
            await line.drop()
            raise Unsent(str(failure)) from None
        except BaseException:
            await line.drop()
            raise
        return line.let_go()

    async def close(self) -> None:
        if self._sentinel is not None:
            for client in self._sentinel.sentinels:
                with contextlib.suppress(self._address.library.RedisError, OSError):
                    await client.connection_pool.disconnect()


class Line:
    """One connection that redis-py speaks on: one task may send, and one receive."""

    def __init__(self, connection: "AbstractConnection", address: RedisAddress) -> None:
        self._connection = connection
        self._address = address
        self._redis_error: type[Exception] = address.library.RedisError
        self._response_error: type[Exception] = address.library.ResponseError

    async def connect(self) -> None:
        try:
            await self._connection.connect()  # type: ignore[no-untyped-call]
        except (self._redis_error, OSError) as failure:
            raise Lost(self._words(failure)) from None

    def let_go(self) -> asyncio.StreamWriter:
        """What it is connected by, which is somebody else's from now on."""
        connection, writer = self._connection, self._connection._writer
        assert writer is not None
        connection._reader = connection._writer = None
        return writer

    async def send(self, *words: Part) -> None:
        try:
            await self._connection.send_command(*words)
        except (self._redis_error, OSError) as failure:
            raise Lost(self._words(failure)) from None

    async def receive(self) -> Reply:
        try:
            return await self._connection.read_response()
        except self._response_error as refusal:
            raise self._refused(refusal) from None
        except (self._redis_error, OSError) as failure:
            raise Lost(self._words(failure)) from None

    async def drop(self) -> None:
        """Close it at once."""
        with contextlib.suppress(self._redis_error, OSError, RuntimeError):
            await self._connection.disconnect(nowait=True)

    def _refused(self, refusal: Exception) -> Refused:
        library = self._address.library
        text = self._address.scrubbed(refusal)
        return Refused(library.CODES.get(type(refusal)) or text.partition(" ")[0], text)

    def _words(self, failure: Exception) -> str:
        library = self._address.library
        if isinstance(failure, library.AuthenticationError):
            return "it wants another user or password"
        if isinstance(failure, library.MasterNotFoundError):
            return "no sentinel knows its master"  # the library names every sentinel here, with all its options
        return self._address.scrubbed(failure)


def _library() -> ModuleType:
    """redis-py: what we use of it, in one place."""
    try:
        import redis
        import redis.asyncio
        import redis.backoff
    except ImportError:
        raise SetupError('A state store in Redis needs the package redis: pip install "dovetail-mcp[redis]"') from None
    found = ModuleType("redis-py")
    for source, names in (
        (redis.exceptions, ("RedisError", "ResponseError", "AuthenticationError")),
        (redis.asyncio, ("ConnectionPool", "Sentinel", "connection", "sentinel", "retry")),
        (redis.asyncio.sentinel, ("MasterNotFoundError",)),
        (redis, ("backoff",)),
    ):
        for name in names:
            setattr(found, name, getattr(source, name))
    found.CODES = {getattr(redis.exceptions, name): code for name, code in CODES.items()}  # type: ignore[attr-defined]
    return found


def _split(url: str) -> tuple[str, list[tuple[str, int]], str]:
    """A plain URL that redis-py understands, and the sentinels with their service if there are any."""
    sentinels: list[tuple[str, int]] = []
    service = ""
    if "+sentinel://" in url.partition("?")[0]:
        found = SENTINELS.fullmatch(url)
        if found is None:
            _bad_url("it does not name its sentinels, the service and the number of the database")
        scheme, user, hosts, service, db, query = found.groups("")
        sentinels = [_host_and_port(host) for host in hosts.split(",")]
        service = unquote(service)
        url = f"{scheme}://{user}@localhost/{db}?{query}" if user else f"{scheme}://localhost/{db}?{query}"
    try:
        parts = urlsplit(url)
    except ValueError:
        _bad_url("it can't be read")
    _check_parts(parts)
    return url, sentinels, service


def _check_parts(parts: SplitResult) -> None:
    if parts.scheme not in ("redis", "rediss", "unix"):
        _bad_url("it begins with something else")
    if parts.fragment:
        _bad_url("it holds a #, which has to be written as %23")
    if parts.scheme != "unix" and not re.fullmatch(r"/?\d*", parts.path):
        _bad_url("its path is not the number of a database")
    for name, _ in parse_qsl(parts.query):
        if not OPTION.fullmatch(name):
            _bad_url(f"it has no option {name[:40]!r}")


def _host_and_port(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    try:
        host, port = parts.hostname, parts.port or SENTINEL_PORT
    except ValueError:
        _bad_url("the port of a sentinel is not possible")
    if not host:
        _bad_url("a sentinel has no name")
    return host, port


def _shown(url: str, options: dict[str, Any]) -> str:
    """The address without user, password and options."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if "path" not in options else f"unix://{options['path']}"


def _bad_url(problem: str) -> NoReturn:
    raise SetupError(f"The URL of the state store is not possible, {problem}; write {EXAMPLES}")
