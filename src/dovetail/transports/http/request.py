"""One HTTP request: its headers and body, its caller, the response to it, and whether its client is still there."""

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
from dovetail.errors import INTERNAL_ERROR, INVALID_REQUEST, ProtocolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.headers import HeaderError, Headers
from dovetail.protocol.methods import RequestId
from dovetail.transports.http.asgi import WHOLE, Receive, Scope, Send
from dovetail.transports.http.in_flight import Bodies
from dovetail.transports.http.response import Accepted, Response

# Headers that decide something: two of them would let a proxy see one value and us another.
SINGLE = frozenset({"host", "origin", "content-type", "content-length", "authorization", "last-event-id"})
JSON = "application/json"
FREE_BYTES = 16 * 1024  # bodies up to this are not counted: a client that sends little is always served
UTF8 = frozenset({"utf-8", "utf8", "us-ascii"})
USUAL_ACCEPT = b"application/json, text/event-stream"  # what the specification wants of every client
BOTH = Accepted(True, True)
_JSON_KIND = re.compile(r"application/(?:[a-z0-9.\-]+\+)?json")

log = logging.getLogger("dovetail")


class ClientDisconnect(Exception):
    """The client went away before its request had arrived."""


class HttpRequest(msgspec.Struct, eq=False):
    """Made for each request, and passed to what is served at its path."""

    scope: Scope
    receive: Receive
    send: Send
    route: str
    method: str
    headers: Headers
    response: Response
    principal: Principal | None = None  # the caller, where that is known
    watch: "Watch | None" = None  # ends a stream when the token of its caller does

    __repr__ = object.__repr__  # its parts hold the headers of the request, and the token in them

    @property
    def owner(self) -> str | None:
        """What belongs to the caller is marked with this."""
        return None if self.principal is None else self.principal.key

    @classmethod
    def of(cls, scope: Scope, receive: Receive, send: Send, route: str) -> "HttpRequest":
        extensions = scope.get("extensions")
        whole = None if extensions is None else extensions.get(WHOLE)
        return cls(scope, receive, send, route, scope["method"], Headers(scope["headers"]), Response(send, whole))

    def while_welcome(self, stream: Coroutine[Any, Any, object], end: Callable[[], object]) -> Awaitable[object]:
        """What serves a stream; `end` is called when its caller may not read on."""
        return stream if self.watch is None else self._watched(stream, self.watch(self, end))

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
            if name in SINGLE:
                raise ProtocolError(f"The header {name} came more than once", code=INVALID_REQUEST, http_status=400)

    @property
    def accepted(self) -> Accepted:
        raw = self.headers.raw.get(b"accept", b"")
        if raw == USUAL_ACCEPT and not self.headers.has_repeats:
            return BOTH
        return read_accept(",".join(self.headers.all("accept"))[:1000])

    @property
    def is_of_browser(self) -> bool:
        """Whether a person opens the URL: wants HTML, and neither says nor wants anything of MCP."""
        wanted = {kind for part in self.headers.get("accept", "")[:1000].split(",") if (kind := _media_range(part))}
        said = any(name.startswith((b"mcp-", b"last-event-id")) for name in self.headers.raw)
        return "text/html" in wanted and not said and wanted.isdisjoint({JSON, "text/event-stream"})

    async def refuse(self, failure: ProtocolError, id: RequestId | None = None, *, id_optional: bool = True) -> None:
        """An error that has its place in the status; every refusal is JSON."""
        body = jsonrpc.error(id, failure, id_optional=id_optional)
        await self.response.json(failure.http_status, body, self.response.headers_of(failure))

    async def answer_failure(self, failure: BaseException, what: str, *, is_refusal: bool = True) -> None:
        """A refusal in its own words; of any other failure the client learns no more than that, and the log has it."""
        if isinstance(failure, ClientDisconnect):
            await self.response.settle()
            return
        if not isinstance(failure, ProtocolError) or not is_refusal:
            log.error("%s failed", what, exc_info=failure)
            failure = ProtocolError("Internal error", code=INTERNAL_ERROR, http_status=500)
        await self.refuse(failure)

    async def refuse_method(self, allowed: bytes, text: str) -> None:
        body = jsonrpc.error(None, ProtocolError(text, code=INVALID_REQUEST))
        await self.response.json(405, body, [(b"allow", allowed)])

    # ── the body ──

    def refuse_other_types(self) -> None:
        """Raises unless the headers say that the body is JSON in UTF-8, or say nothing."""
        raw = self.headers.raw
        if raw.get(b"content-type") == b"application/json" and b"content-encoding" not in raw:
            return
        type = self.headers.get("content-type", JSON)
        if type != JSON and not is_json(type):
            text = f"Content-Type must be application/json in UTF-8, not {type[:100]!r}"
            raise ProtocolError(text, code=INVALID_REQUEST, http_status=415)
        coding = self.headers.get("content-encoding")
        if coding is not None and coding.lower() != "identity":
            text = f"Content-Encoding must be identity, not {coding[:100]!r}"
            raise ProtocolError(text, code=INVALID_REQUEST, http_status=415)

    def body_at_hand(self, most: int) -> bytes | None:
        """The whole body, if that is already here; None if it has to be awaited."""
        whole = self.response.whole
        body = None if whole is None else whole.body()
        if body is not None and len(body) > most:
            raise _too_large(most)
        return body

    async def body(self, most: int, seconds: float, bodies: Bodies) -> bytes:
        """The whole body, bounded in size and time, and together with the other `bodies`. Raises ProtocolError."""
        length = self.headers.raw.get(b"content-length", b"0")
        if not length.isdigit() and not (length := length.strip(b" \t")).isdigit():
            raise ProtocolError("Content-Length is not a number", code=INVALID_REQUEST, http_status=400)
        if len(length) > 18 or int(length) > most:
            raise _too_large(most)
        try:
            return await run_with_timer(self._read(most, bodies), lambda: PausableTimeout(seconds))
        except CallTimeout:
            text = f"The body did not arrive within {seconds:g} s"
            raise ProtocolError(text, code=INVALID_REQUEST, http_status=408) from None

    async def _read(self, most: int, bodies: Bodies) -> bytes:
        arrived = bytearray()  # not a list of pieces: those may be tiny, and each would cost more than it holds
        counted = 0
        try:
            while (message := await self.receive())["type"] == "http.request":
                body: bytes = message.get("body", b"")
                if len(arrived) + len(body) > most:
                    raise _too_large(most)
                if not message.get("more_body", False):
                    return b"".join((arrived, body)) if arrived else body
                arrived += body
                if len(arrived) > FREE_BYTES:
                    counted += bodies.take(len(arrived) - counted)
            raise ClientDisconnect
        finally:
            if counted:
                bodies.give_back(counted)


Place = Callable[[HttpRequest], Awaitable[None]]  # what is at a path
Watch = Callable[[HttpRequest, Callable[[], object]], Coroutine[Any, Any, None]]


def _too_large(most: int) -> ProtocolError:
    text = f"The body is larger than {most} bytes; max_body_bytes (DOVETAIL_MAX_BODY_BYTES) sets the limit"
    return ProtocolError(text, code=INVALID_REQUEST, http_status=413)


def is_json(type: str) -> bool:
    """Whether a content type means JSON, and no encoding but UTF-8."""
    kind, *parameters = (part.strip() for part in type.lower().split(";"))
    charsets = (part.removeprefix("charset=").strip('"') for part in parameters if part.startswith("charset="))
    return _JSON_KIND.fullmatch(kind) is not None and all(charset in UTF8 for charset in charsets)


@lru_cache(maxsize=256)
def read_accept(header: str) -> Accepted:
    """Leniently: without the header anything goes, and who reads neither gets JSON."""
    ranges = {kind for part in header.split(",") if (kind := _media_range(part))}
    if not ranges:
        return Accepted(True, True)
    stream = not ranges.isdisjoint({"*/*", "text/*", "text/event-stream"})
    json = not ranges.isdisjoint({"*/*", "application/*", "application/json"})
    return Accepted(json or not stream, stream)


def _media_range(part: str) -> str:
    kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
    refused = any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
    return "" if refused else kind


# ── while a client waits ──


async def look_after(
    receive: Receive,
    over: asyncio.Future[None],
    keep_alive: float,
    beat: Callable[[], Awaitable[None]],
    left: Callable[[], None],
) -> None:
    """Until it is over or the client has left: `beat` every so often, and say that it has left."""
    gone = asyncio.get_running_loop().create_task(until_gone(receive))
    try:
        while not over.done():
            done, _ = await asyncio.wait({gone, over}, timeout=keep_alive, return_when=asyncio.FIRST_COMPLETED)
            if gone in done and not over.done():
                left()
                return
            if not done:
                await beat()
    finally:
        gone.cancel()


async def until_gone(receive: Receive) -> None:
    """Returns when the client has left; an ASGI server that fails to say so counts as well.

    A body may come once that was not read; some hosts' middleware gives it again and again, and is asked less often.
    """
    try:
        for pause in chain([0.0], repeat(0.05)):
            if (await receive())["type"] == "http.disconnect":
                return
            await asyncio.sleep(pause)
    except Exception:
        log.debug("waiting for the client to leave failed", exc_info=True)
