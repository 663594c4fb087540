"""One HTTP request: headers, body, caller and response; keep-alives and the detection of disconnects."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

import msgspec

from dovetail.auth.principal import Principal
from dovetail.engine.concurrency import CallTimeout, PausableTimeout, run_with_timer
from dovetail.engine.sessions import SessionHandle
from dovetail.errors import INTERNAL_ERROR, INVALID_REQUEST, ProtocolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.headers import HeaderError, Headers
from dovetail.protocol.methods import RequestId
from dovetail.transports.http.asgi import FAST_PATH, Receive, Scope, Send
from dovetail.transports.http.in_flight import BodyQuota
from dovetail.transports.http.response import AcceptedTypes, HttpResponse

# Security depends on these headers: if one came twice, a proxy and the server might read different values.
SINGLE_HEADERS = frozenset({"host", "origin", "content-type", "content-length", "authorization", "last-event-id"})
JSON = "application/json"
UNCOUNTED_BYTES = 16 * 1024  # smaller bodies don't count in the quota, so that they are always served
UTF8_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii"})
USUAL_ACCEPT = b"application/json, text/event-stream"  # which MCP requires of every client
ACCEPTS_BOTH = AcceptedTypes(True, True)
_JSON_KIND = re.compile(r"application/(?:[a-z0-9.\-]+\+)?json")
_REFUSED = re.compile(r"q=0(\.0*)?")

log = logging.getLogger("dovetail")


class ClientDisconnect(Exception):
    """The client disconnected before its request was complete."""


class HttpRequest(msgspec.Struct, eq=False):
    scope: Scope
    receive: Receive
    send: Send
    route: str
    method: str
    headers: Headers
    response: HttpResponse
    principal: Principal | None = None  # the caller, if known
    session: SessionHandle | None = None  # that the headers name, once the endpoint has found it
    watch_token: "TokenWatch | None" = None  # ends a stream when the token of its caller becomes bad

    __repr__ = object.__repr__  # its fields hold the headers, and the token in them

    @property
    def owner(self) -> str | None:
        """The owner of the sessions that this caller opens."""
        return None if self.principal is None else self.principal.key

    @classmethod
    def from_scope(cls, scope: Scope, receive: Receive, send: Send, route: str) -> "HttpRequest":
        extensions = scope.get("extensions")
        fast_path = None if extensions is None else extensions.get(FAST_PATH)
        headers, response = Headers(scope["headers"]), HttpResponse(send, fast_path)
        return cls(scope, receive, send, route, scope["method"], headers, response)

    def while_authorized(self, stream: Coroutine[Any, Any, object], end: Callable[[], object]) -> Awaitable[object]:
        """Serve a stream; `end` is called when the token of its caller becomes bad."""
        return stream if self.watch_token is None else self._watched(stream, self.watch_token(self, end))

    async def _watched(self, stream: Coroutine[Any, Any, object], watch: Coroutine[Any, Any, None]) -> None:
        watching = asyncio.get_running_loop().create_task(watch)
        try:
            await stream
        finally:
            watching.cancel()

    def refuse_repeated_headers(self) -> None:
        for name in self.headers.repeated:
            if name.startswith("mcp-"):
                raise HeaderError(f"{name} came more than once")
            if name in SINGLE_HEADERS:
                raise invalid_request(400, f"The header {name} came more than once")

    @property
    def accepted(self) -> AcceptedTypes:
        if self.headers.raw.get(b"accept") == USUAL_ACCEPT and not self.headers.has_repeats:
            return ACCEPTS_BOTH
        return read_accept(",".join(self.headers.all("accept"))[:1000])

    @property
    def is_from_browser(self) -> bool:
        """Whether a person opens the URL: the request accepts HTML, and has no header or media type of MCP."""
        accepted = _media_types(self.headers.get("accept", "")[:1000])
        is_mcp = any(name.startswith((b"mcp-", b"last-event-id")) for name in self.headers.raw)
        return "text/html" in accepted and not is_mcp and accepted.isdisjoint({JSON, "text/event-stream"})

    async def refuse(self, failure: ProtocolError, id: RequestId | None = None, *, id_optional: bool = True) -> None:
        log.debug("a request is refused: %s", failure)
        body = jsonrpc.error(id, failure, id_optional=id_optional)
        await self.response.json(failure.http_status, body, self.response.error_headers(failure))

    async def send_failure(self, failure: BaseException, what: str, *, is_refusal: bool = True) -> None:
        """Respond to a failure: a refusal with its own text, any other as an internal error, which is logged."""
        if isinstance(failure, ClientDisconnect):
            await self.response.send_client_closed()
            return
        if not isinstance(failure, ProtocolError) or not is_refusal:
            log.error("%s failed", what, exc_info=failure)
            failure = ProtocolError("Internal error", code=INTERNAL_ERROR, http_status=500)
        await self.refuse(failure)

    async def refuse_method(self, allowed: bytes, text: str) -> None:
        self.response.add_headers([(b"allow", allowed)])
        await self.refuse(ProtocolError(text, code=INVALID_REQUEST, http_status=405))

    def require_json(self) -> None:
        """Raises ProtocolError unless the body is JSON in UTF-8, as far as the headers say."""
        raw = self.headers.raw
        if raw.get(b"content-type") == b"application/json" and b"content-encoding" not in raw:
            return
        type = self.headers.get("content-type", JSON)
        kind, *parameters = (part.strip() for part in type.lower().split(";"))
        charsets = {part.removeprefix("charset=").strip('"') for part in parameters if part.startswith("charset=")}
        if not _JSON_KIND.fullmatch(kind) or not charsets <= UTF8_CHARSETS:
            raise invalid_request(415, f"Content-Type must be application/json in UTF-8, not {type[:100]!r}")
        coding = self.headers.get("content-encoding")
        if coding is not None and coding.lower() != "identity":
            raise invalid_request(415, f"Content-Encoding must be identity, not {coding[:100]!r}")

    def buffered_body(self, limit: int) -> bytes | None:
        """The whole body if it has arrived; None if it has to be awaited."""
        fast_path = self.response.fast_path
        body = None if fast_path is None else fast_path.body()
        if body is not None and len(body) > limit:
            raise _too_large(limit)
        return body

    async def body(self, limit: int, timeout: float, quota: BodyQuota) -> bytes:
        """The whole body. Raises ProtocolError if it is too large or too slow, or all bodies exceed the quota."""
        length = self.headers.raw.get(b"content-length", b"0")
        if not length.isdigit() and not (length := length.strip(b" \t")).isdigit():
            raise invalid_request(400, "Content-Length is not a number")
        if len(length) > 18 or int(length) > limit:
            raise _too_large(limit)
        try:
            return await run_with_timer(self._read(limit, quota), lambda: PausableTimeout(timeout))
        except CallTimeout:
            raise invalid_request(408, f"The body did not arrive within {timeout:g} s") from None

    async def _read(self, limit: int, quota: BodyQuota) -> bytes:
        arrived = bytearray()  # not a list: chunks may be tiny, and an object for each would cost more memory
        counted = 0
        try:
            while (message := await self.receive())["type"] == "http.request":
                body: bytes = message.get("body", b"")
                if len(arrived) + len(body) > limit:
                    raise _too_large(limit)
                if not message.get("more_body", False):
                    return b"".join((arrived, body)) if arrived else body
                arrived += body
                if len(arrived) > UNCOUNTED_BYTES:
                    counted += quota.acquire(len(arrived) - counted)
            raise ClientDisconnect
        finally:
            if counted:
                quota.release(counted)


RequestHandler = Callable[[HttpRequest], Awaitable[None]]
Beat = Callable[[], Awaitable[None]]
TokenWatch = Callable[[HttpRequest, Callable[[], object]], Coroutine[Any, Any, None]]


def invalid_request(status: int, text: str) -> ProtocolError:
    return ProtocolError(text, code=INVALID_REQUEST, http_status=status)


def _too_large(limit: int) -> ProtocolError:
    option = "max_body_bytes (DOVETAIL_MAX_BODY_BYTES)"
    return invalid_request(413, f"The body is larger than {limit} bytes; {option} sets the limit")


@lru_cache(maxsize=256)
def read_accept(header: str) -> AcceptedTypes:
    """Read the Accept header leniently: without it both are accepted; a client that accepts neither gets JSON."""
    ranges = _media_types(header)
    if not ranges:
        return ACCEPTS_BOTH
    stream = not ranges.isdisjoint({"*/*", "text/*", "text/event-stream"})
    json = not ranges.isdisjoint({"*/*", "application/*", "application/json"})
    return AcceptedTypes(json or not stream, stream)


def _media_types(header: str) -> set[str]:
    """The media types of an Accept header that it does not refuse with q=0."""
    ranges = [[piece.strip().lower() for piece in part.split(";")] for part in header.split(",")]
    return {kind for kind, *parameters in ranges if kind and not any(map(_REFUSED.fullmatch, parameters))}


async def keep_alive(
    receive: Receive, finished: asyncio.Future[None], interval: float, beat: Beat, on_disconnect: Callable[[], None]
) -> None:
    """Call `beat` every `interval` seconds, until the work has finished or the client disconnects."""
    disconnect = asyncio.get_running_loop().create_task(listen_for_disconnect(receive))
    try:
        while not finished.done():
            done, _ = await asyncio.wait({disconnect, finished}, timeout=interval, return_when=asyncio.FIRST_COMPLETED)
            if disconnect in done and not finished.done():
                on_disconnect()
                return
            if not done:
                await beat()
    finally:
        disconnect.cancel()


async def listen_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected, or when `receive` fails."""
    try:
        for pause in chain([0.0], repeat(0.05)):  # middleware of some hosts gives the body again and again
            if (await receive())["type"] == "http.disconnect":
                return
            await asyncio.sleep(pause)
    except Exception:
        log.debug("listening for a disconnect failed", exc_info=True)
