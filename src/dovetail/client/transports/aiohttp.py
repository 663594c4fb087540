"""HTTP requests to one server; only this module of the client knows aiohttp, and loads it at the first open.

A failure on the way is ConnectionLost, in plain words. No request goes to another origin than the one that the user
named.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail import __version__
from dovetail.auth.fetch import is_allowed_address
from dovetail.client.auth import AUTHORIZATION, Challenged, Credentials, Sending
from dovetail.client.transports.base import Backoff, RequestTimeouts, ServerUrl
from dovetail.errors import BadResponse, ConnectionLost, SetupError

if TYPE_CHECKING:
    import aiohttp

IDLE_SECONDS = 4.0  # of a kept connection: common servers close theirs after 5, and a request must not meet that
UNWELCOME = frozenset({401, 403})
EVENTS, JSON = "text/event-stream", "application/json"


class HttpLimits(NamedTuple):
    """Sizes and seconds of a client over HTTP."""

    max_message_bytes: int = 256 * 1024 * 1024
    first_retry: float = 1.0  # seconds before a broken stream is opened again, doubled up to the longest
    longest_retry: float = 30.0
    close: float = 2.0  # seconds for what is still on its way at the end, and for the end of the session
    send: float = 30.0  # seconds for a message that has no answer, and so no timeout of its own
    endpoint: float = 5.0  # seconds for a stream of HTTP+SSE to name the URL for messages
    connect: float = 10.0


class HttpReply:
    """The answer to one request; its body is read only as far as somebody wants it."""

    def __init__(self, response: "aiohttp.ClientResponse", requests: "HttpRequests") -> None:
        self._response = response
        self._requests = requests
        self.max_message_bytes = requests.limits.max_message_bytes
        self.status: int = response.status
        self._held = b""  # of the body, read before it was wanted
        self.detail = ""  # why a redirect was not followed, or what would help
        self.ok = 200 <= self.status < 300
        self.kind = response.content_type.lower()
        self._encoding = response.headers.get("Content-Encoding", "identity").strip().lower()

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

    def headers(self, name: str) -> list[str]:
        return self._response.headers.getall(name, [])

    async def hold(self) -> None:
        """Read what there is of a short body, if it comes soon: then the connection can be used again."""
        with contextlib.suppress(TimeoutError, ConnectionLost, BadResponse):
            async with asyncio.timeout(1.0):
                while len(self._held) < 64 * 1024 and (piece := await self._read_piece()):
                    self._held += piece

    async def next(self) -> bytes:
        """The next piece of the body; empty at its end."""
        held, self._held = self._held, b""
        return held or await self._read_piece()

    async def _read_piece(self) -> bytes:
        if self._encoding != "identity":  # a few bytes may stand for gigabytes
            raise BadResponse("the server compressed its answer, which was not asked for")
        try:
            return await self._response.content.readany()
        except self._requests.failures as failure:
            raise self._requests.lost(failure) from None

    async def read(self) -> bytes:
        """The whole body, if it is not too long."""
        body = bytearray()
        while piece := await self.next():
            body += piece
            if len(body) > self.max_message_bytes:
                raise BadResponse(f"the server sent a message of more than {self.max_message_bytes} bytes")
        return bytes(body)


class HttpRequests:
    """A pool of connections, and what goes out with every request: headers of the user's, and credentials."""

    def __init__(
        self,
        address: ServerUrl,
        headers: Mapping[str, str],
        credentials: Credentials | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        self.limits = limits or HttpLimits()
        self.address = address
        self.time_limits = RequestTimeouts()  # of those who wait for answers
        self._headers = headers
        self._credentials = credentials
        self._is_inside = True  # until an address of the internet is met
        self._session: aiohttp.ClientSession | None = None
        self.failures: tuple[type[Exception], ...] = ()

    @property
    def identity(self) -> str | None:
        """For whom requests go out, by the word of the credentials; None if they don't say. It is secret."""
        known: str | None = "" if self._credentials is None else getattr(self._credentials, "identity", None)
        return known

    def backoff(self) -> Backoff:
        return Backoff(self.limits.first_retry, self.limits.longest_retry)

    async def open(self) -> None:
        if self._session is not None:
            return
        library = self._library = _aiohttp()
        self.failures = (library.ClientError, TimeoutError, OSError, ValueError)
        self._session = library.ClientSession(
            connector=library.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, socket_factory=self._socket),
            timeout=library.ClientTimeout(total=None, connect=self.limits.connect),
            headers={"User-Agent": f"dovetail/{__version__}", "Accept-Encoding": "identity", **self._headers},
            auto_decompress=False,
        )

    def _socket(self, address: Any) -> socket.socket:
        """Only the address of a connection says where the server is: another lookup of its name may say else."""
        ip = str(address[4][0])
        self._is_inside = self._is_inside and not is_allowed_address(ip) and is_allowed_address(ip, allow_private=True)
        return _watched_socket(address)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def send(
        self,
        verb: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        url: str | None = None,
        attended: bool = True,
    ) -> AsyncIterator[HttpReply]:
        """One request. Leaving before the end of its body closes the connection, which tells the server.

        One that is refused for want of a token has not run, and is sent again once there is one. `attended`: somebody
        may be asked to sign in for it.
        """
        request = Sending(verb, url or self.address.url, attended, self.time_limits.paused)
        hops = tries = 0
        while True:
            added = {} if self._credentials is None else await self._credentials.headers(request)
            response = await self._once(verb, request.url, {**headers, **added}, body)
            try:
                reply = HttpReply(response, self)
                if reply.status in UNWELCOME and tries < 4 and await self._let_in(request, reply, added):
                    tries += 1
                    continue
                following = self._redirected(reply, request.url) if 300 <= reply.status < 400 else None
                if following is None or hops == 5:
                    yield reply
                    return
                request, hops = request._replace(url=following), hops + 1
            finally:
                response.release()

    async def _let_in(self, request: Sending, reply: HttpReply, added: Mapping[str, str]) -> bool:
        """Whether a refused request is worth another try. No request ever leaves its origin, so no token does."""
        if self._credentials is None:
            if reply.status == 401 and not any(name.lower() == AUTHORIZATION.lower() for name in self._headers):
                reply.detail = "it wants a token; give the client auth=OAuth(), or a token as auth="
            return False
        await reply.hold()
        nonce = reply.header("DPoP-Nonce")
        return await self._credentials.refused(
            request, Challenged(reply.status, reply.headers("WWW-Authenticate"), nonce, added, self._is_inside)
        )

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
        except BadResponse as bad:
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
            return f"no connection within {self.limits.connect:g} s"
        if isinstance(failure, library.ClientConnectorDNSError):
            return "there is no such host"
        if isinstance(failure, (library.ClientConnectorCertificateError, library.ClientSSLError)):
            return "no secure connection: its certificate is not valid here, or it does not speak TLS"
        if isinstance(failure, library.ClientConnectorError):
            number = failure.os_error.errno  # several addresses make one failure of many, with an errno but no words
            return f"can't connect: {os.strerror(number) if number else 'it can not be reached'}"
        if isinstance(failure, library.ClientResponseError):
            return "it does not speak HTTP as it should"
        return "the connection broke"


def _aiohttp() -> Any:
    try:
        import aiohttp
    except ImportError:
        raise SetupError('Client: a URL needs aiohttp; install it with: pip install "dovetail-mcp[client]"') from None
    return aiohttp


def _watched_socket(address: Any) -> socket.socket:
    """A server that vanishes without a word is noticed, even where nothing is ever sent to it."""
    family, kind, protocol, _, _ = address
    connection = socket.socket(family=family, type=kind, proto=protocol)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    return connection
