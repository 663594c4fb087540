"""HTTP client for one server, on aiohttp, which only this module loads, at the first open."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail import __version__
from dovetail.auth.fetch import is_allowed_address
from dovetail.client.auth import AUTHORIZATION, AuthChallenge, Credentials, OutgoingRequest
from dovetail.client.transports.base import Backoff, Headers, RequestTimeouts, ServerUrl
from dovetail.client.transports.environment import HttpProxy, find_proxy, tls_context
from dovetail.errors import BadResponse, ConnectionLost, SetupError

if TYPE_CHECKING:
    import aiohttp

KEEPALIVE_SECONDS = 4.0  # common servers close an idle connection after 5; a request must not meet that
AUTH_STATUSES = frozenset({401, 403})
EVENT_STREAM, JSON = "text/event-stream", "application/json"


class HttpLimits(NamedTuple):
    max_message_bytes: int = 256 * 1024 * 1024
    first_retry_delay: float = 1.0  # seconds before a broken stream is opened again; doubled up to the maximum
    max_retry_delay: float = 30.0
    close_timeout: float = 2.0  # seconds for the last messages, and for the end of the session
    send_timeout: float = 30.0  # seconds for a notification or a response, which no caller waits for
    endpoint_timeout: float = 5.0  # seconds for a stream of HTTP+SSE to name the URL for messages
    connect_timeout: float = 10.0


class HttpResponse:
    """The response to one request; its body is read on demand."""

    def __init__(self, response: "aiohttp.ClientResponse", http: "HttpClient") -> None:
        self._response = response
        self._http = http
        self.max_message_bytes = http.limits.max_message_bytes
        self.status: int = response.status
        self._buffer = b""  # prefetched part of the body
        self.detail = ""  # why a redirect was not followed, or a hint
        self.ok = 200 <= self.status < 300
        self.content_type = response.content_type.lower()
        self._encoding = response.headers.get("Content-Encoding", "identity").strip().lower()

    @property
    def status_text(self) -> str:
        """The status as text, such as `404 Not Found`, with the detail."""
        try:
            phrase = f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            phrase = f"the status {self.status}"
        return f"{phrase}: {self.detail}" if self.detail else phrase

    def header(self, name: str) -> str | None:
        return self._response.headers.get(name)

    def headers(self, name: str) -> list[str]:
        return self._response.headers.getall(name, [])

    async def prefetch(self) -> None:
        """Read a short body if it arrives soon: then the connection can be reused."""
        with suppress(TimeoutError, ConnectionLost, BadResponse):
            async with asyncio.timeout(1.0):
                while len(self._buffer) < 64 * 1024 and (chunk := await self._receive_chunk()):
                    self._buffer += chunk

    async def read_chunk(self) -> bytes:
        """Read a chunk of the body; empty at its end."""
        buffered, self._buffer = self._buffer, b""
        return buffered or await self._receive_chunk()

    async def _receive_chunk(self) -> bytes:
        if self._encoding != "identity":  # a few bytes may decompress to gigabytes
            raise BadResponse("the server compressed its answer, which was not asked for")
        try:
            return await self._response.content.readany()
        except self._http.failures as failure:
            raise self._http.connection_error(failure) from None

    async def read(self) -> bytes:
        body = bytearray()
        while chunk := await self.read_chunk():
            body += chunk
            if len(body) > self.max_message_bytes:
                raise BadResponse(f"the server sent a message of more than {self.max_message_bytes} bytes")
        return bytes(body)


class HttpClient:
    """A connection pool that adds the user's headers and credentials to each request."""

    def __init__(
        self,
        server_url: ServerUrl,
        headers: Headers,
        credentials: Credentials | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        self.limits = limits or HttpLimits()
        self.server_url = server_url
        self.timeouts = RequestTimeouts()
        self._headers = headers
        self._credentials = credentials
        self._in_private_network = True  # until a connection to a public address is made
        self._proxy: HttpProxy | None = None
        self._proxy_options: dict[str, Any] = {}
        self._session: aiohttp.ClientSession | None = None
        self.failures: tuple[type[Exception], ...] = ()

    @property
    def identity(self) -> str | None:
        """The identity of the credentials; None if they have none. It is secret."""
        identity: str | None = "" if self._credentials is None else getattr(self._credentials, "identity", None)
        return identity

    def backoff(self) -> Backoff:
        return Backoff(self.limits.first_retry_delay, self.limits.max_retry_delay)

    async def open(self) -> None:
        if self._session is not None:
            return
        try:
            import aiohttp
        except ImportError:
            install = 'install it with: pip install "dovetail-mcp[client]"'
            raise SetupError(f"Client: a URL needs aiohttp; {install}") from None
        self._aiohttp: Any = aiohttp
        self.failures = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
        self._proxy = find_proxy(self.server_url.origin)
        added: Headers = {}
        if self._proxy is not None:
            self._in_private_network = False  # where the server is, only the proxy knows
            self._proxy_options = dict(self._proxy.options)
            added = self._proxy.headers if self.server_url.origin[0] == "http" else {}  # a tunnel leads to the server
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=KEEPALIVE_SECONDS,
                socket_factory=self._socket,
                ssl=tls_context(self.server_url.url, self._proxy_options.get("proxy", "")) or True,
            ),
            timeout=aiohttp.ClientTimeout(total=None, connect=self.limits.connect_timeout),
            headers={"User-Agent": f"dovetail/{__version__}", "Accept-Encoding": "identity", **added, **self._headers},
            auto_decompress=False,
        )

    def _socket(self, address: Any) -> socket.socket:
        """A socket for an address, which is checked here: another DNS lookup may lead elsewhere."""
        ip = str(address[4][0])
        self._in_private_network = (
            self._in_private_network and not is_allowed_address(ip) and is_allowed_address(ip, allow_private=True)
        )
        family, kind, protocol, _, _ = address
        connection = socket.socket(family=family, type=kind, proto=protocol)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # notices a server that vanished
        if hasattr(socket, "TCP_KEEPIDLE"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        return connection

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def send(
        self,
        method: str,
        headers: Headers,
        body: bytes | None = None,
        *,
        url: str | None = None,
        may_sign_in: bool = True,
    ) -> AsyncIterator[HttpResponse]:
        """Send a request. Leaving the context before the end of the body closes the connection.

        A request that was refused for lack of a token has not run, and is sent again with one. `may_sign_in`: the user
        may be asked to sign in for it.
        """
        request = OutgoingRequest(method, url or self.server_url.url, may_sign_in, self.timeouts.paused)
        redirects = retries = 0
        while True:
            added = {} if self._credentials is None else await self._credentials.headers(request)
            if self._session is None:
                raise ConnectionLost("the client was closed")
            try:
                raw = await self._session.request(
                    method,
                    request.url,
                    headers={**headers, **added},
                    data=body,
                    allow_redirects=False,
                    **self._proxy_options,
                )
            except self.failures as failure:
                raise self.connection_error(failure) from None
            try:
                response = HttpResponse(raw, self)
                if response.status == 407 and self._proxy is not None:
                    response.detail = f"{self._proxy.shown} wants another user and password"
                is_challenge = response.status in AUTH_STATUSES and retries < 4
                if is_challenge and await self._answer_challenge(request, response, added):
                    retries += 1
                    continue
                target = self._redirect_target(response, request.url) if 300 <= response.status < 400 else None
                if target is None or redirects == 5:
                    yield response
                    return
                request, redirects = request._replace(url=target), redirects + 1
            finally:
                raw.release()

    async def _answer_challenge(self, request: OutgoingRequest, response: HttpResponse, added: Headers) -> bool:
        """Pass a challenge to the credentials; returns whether the request should be sent again."""
        if self._credentials is None:
            if response.status == 401 and not any(name.lower() == AUTHORIZATION.lower() for name in self._headers):
                response.detail = "it wants a token; give the client auth=OAuth(), or a token as auth="
            return False
        await response.prefetch()
        headers, nonce = response.headers("WWW-Authenticate"), response.header("DPoP-Nonce")
        challenge = AuthChallenge(response.status, headers, nonce, added, self._in_private_network)
        return await self._credentials.refused(request, challenge)

    def _redirect_target(self, response: HttpResponse, base: str) -> str | None:
        """The URL to send the same request to; None if the redirect is not followed, with a `detail`."""
        location = response.header("Location")
        if location is None:
            return None
        try:
            target = self.server_url.join(location, base)
        except BadResponse as bad:
            response.detail = f"redirected, but {bad}"
            return None
        if response.status in (307, 308):
            response.detail = "redirected too often"  # shown only if this redirect is one too many
            return target
        response.detail = f"redirected to {target[:200]}; use that URL"
        return None

    def connection_error(self, failure: Exception) -> ConnectionLost:
        way = "" if self._proxy is None else f", through {self._proxy.shown}"
        return ConnectionLost(f"{self.server_url.shown}{way}: {self._describe(failure)}")

    def _describe(self, failure: Exception) -> str:
        aiohttp = self._aiohttp
        if isinstance(failure, (aiohttp.ConnectionTimeoutError, TimeoutError)):
            return f"no connection within {self.limits.connect_timeout:g} s"
        if isinstance(failure, aiohttp.ClientConnectorDNSError):
            return "there is no such host" if self._proxy is None else "there is no such proxy"
        if isinstance(failure, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError)):
            return "no secure connection: its certificate is not valid here, or it does not speak TLS"
        if isinstance(failure, aiohttp.ClientConnectorError):
            number = failure.os_error.errno  # a failure of several addresses has an errno but no text
            where = " to the proxy" if isinstance(failure, aiohttp.ClientProxyConnectionError) else ""
            return f"can't connect{where}: {os.strerror(number) if number else 'it can not be reached'}"
        if isinstance(failure, aiohttp.ClientHttpProxyError):
            wanted = "; it wants another user and password" if failure.status == 407 else ""
            return f"the proxy does not connect to the server, and answers {failure.status}{wanted}"
        if isinstance(failure, aiohttp.ClientResponseError):
            return "it does not speak HTTP as it should"
        return "the connection broke"
