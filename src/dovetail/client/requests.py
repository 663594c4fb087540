"""HTTP requests to one server: the only module that knows aiohttp, which is loaded when the first client opens.

Out go a verb, headers and a body; back come a status, headers and a body in pieces. Whatever goes wrong on the way is
ConnectionLost, in plain words. No request ever goes to another origin than the one that the user named.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from dovetail import __version__
from dovetail.client.address import ServerAddress
from dovetail.errors import BadAnswer, ConnectionLost, SetupError

if TYPE_CHECKING:
    import aiohttp

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 4.0  # of a kept connection: common servers close theirs after 5, and a request must not meet that
PROBE_SECONDS = 30  # of silence, after which the system looks whether the other side is still there
FINISH_SECONDS = 1.0  # for the end of a body that nobody wants
MAX_REDIRECTS = 5
EVENTS, JSON = "text/event-stream", "application/json"


class HttpReply:
    """The answer to one request; its body is read only as far as somebody wants it."""

    def __init__(self, response: "aiohttp.ClientResponse", requests: "HttpRequests") -> None:
        self._response = response
        self._requests = requests
        self.status: int = response.status
        self.detail = ""  # why a redirect was not followed
        self.ok = 200 <= self.status < 300
        self.kind = response.content_type.lower()

    @property
    def words(self) -> str:
        """The status as people know it, such as 404 Not Found."""
        try:
            phrase = f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            phrase = f"the status {self.status}"
        return f"{phrase}: {self.detail}" if self.detail else phrase

    def header(self, name: str) -> str | None:
        return self._response.headers.get(name)

    async def next(self) -> bytes:
        """The next piece of the body; empty at its end."""
        try:
            return await self._response.content.readany()
        except self._requests.failures as failure:
            raise self._requests.lost(failure) from None

    async def read(self) -> bytes:
        """The whole body, if it is not too long."""
        body = bytearray()
        while piece := await self.next():
            body += piece
            if len(body) > MAX_MESSAGE_BYTES:
                raise BadAnswer(f"the server sent a message of more than {MAX_MESSAGE_BYTES} bytes")
        return bytes(body)

    async def finish(self) -> None:
        """Read what is left and throw it away, if it comes soon: then the connection can be used again."""
        with contextlib.suppress(TimeoutError, ConnectionLost):
            async with asyncio.timeout(FINISH_SECONDS):
                while await self.next():
                    pass


class HttpRequests:
    """A pool of connections, and the headers that go out with every request."""

    def __init__(self, address: ServerAddress, headers: Mapping[str, str]) -> None:
        self.address = address
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None
        self.failures: tuple[type[Exception], ...] = ()

    async def open(self) -> None:
        if self._session is not None:
            return
        library = self._library = _aiohttp()
        self.failures = (library.ClientError, TimeoutError, OSError, ValueError)
        self._session = library.ClientSession(
            connector=library.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, socket_factory=_watched_socket),
            timeout=library.ClientTimeout(total=None, connect=CONNECT_SECONDS),
            headers={"User-Agent": f"dovetail/{__version__}", **self._headers},
        )

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def send(
        self, verb: str, headers: Mapping[str, str], body: bytes | None = None, *, url: str | None = None
    ) -> AsyncIterator[HttpReply]:
        """One request. Leaving before the end of its body closes the connection, which tells the server."""
        target = url or self.address.url
        for hop in range(MAX_REDIRECTS + 1):
            response = await self._once(verb, target, headers, body)
            try:
                reply = HttpReply(response, self)
                following = self._redirected(reply, target) if 300 <= reply.status < 400 else None
                if following is None or hop == MAX_REDIRECTS:
                    yield reply
                    return
                target = following
            finally:
                response.release()

    async def _once(
        self, verb: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> "aiohttp.ClientResponse":
        if self._session is None:
            raise ConnectionLost("the client was closed")
        try:
            return await self._session.request(verb, url, headers=headers, data=body, allow_redirects=False)
        except self.failures as failure:
            raise self.lost(failure) from None

    def _redirected(self, reply: HttpReply, base: str) -> str | None:
        """Where the same request has to go instead; None with a reason if it may not go there."""
        location = reply.header("Location")
        if location is None:
            return None
        try:
            target = self.address.join(location, base)
        except BadAnswer as bad:
            reply.detail = f"redirected, but {bad}"
            return None
        if reply.status in (307, 308):
            reply.detail = "redirected too often"  # which is said only if this one is not followed
            return target
        reply.detail = f"redirected to {target[:200]}; use that URL"
        return None

    def lost(self, failure: Exception) -> ConnectionLost:
        return ConnectionLost(f"{self.address.shown}: {self._why(failure)}")

    def _why(self, failure: Exception) -> str:
        library = self._library
        if isinstance(failure, (library.ConnectionTimeoutError, TimeoutError)):
            return f"no connection within {CONNECT_SECONDS:g} s"
        if isinstance(failure, library.ClientConnectorDNSError):
            return "there is no such host"
        if isinstance(failure, (library.ClientConnectorCertificateError, library.ClientSSLError)):
            return "no secure connection: its certificate is not valid here, or it does not speak TLS"
        if isinstance(failure, library.ClientConnectorError):
            return f"can't connect: {_in_words(failure.os_error)}"
        if isinstance(failure, library.ClientResponseError):
            return "it does not speak HTTP as it should"
        return "the connection broke"


def _in_words(failure: OSError) -> str:
    """Several addresses make one failure out of many, with an errno but without words."""
    return os.strerror(failure.errno) if failure.errno else "it can't be reached"


def _aiohttp() -> Any:
    try:
        import aiohttp
    except ImportError:
        raise SetupError('Client: a URL needs aiohttp; install it with: pip install "dovetail[client]"') from None
    return aiohttp


def _watched_socket(address: Any) -> socket.socket:
    """A server that vanishes without a word is noticed, even where nothing is ever sent to it."""
    family, kind, protocol, _, _ = address
    connection = socket.socket(family=family, type=kind, proto=protocol)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
    return connection
