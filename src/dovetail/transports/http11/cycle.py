"""`RequestResponseCycle`: one HTTP request and its response as ASGI; encoding of response heads.

A head with a content-length is written together with the first part of the body: that is one write, and if the app
fails before it, the client gets a 500. The head of a stream is written at once.
"""

import asyncio
import logging
import re
import time
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from dovetail.transports.http.asgi import App, Message, RawHeaders, Scope
from dovetail.transports.http11.parser import FAILED, list_items

if TYPE_CHECKING:
    from dovetail.transports.http11.protocol import HttpProtocol

START = "http.response.start"
BODY = "http.response.body"
PHRASES = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINES = {status: f"HTTP/1.1 {status} {PHRASES.get(status, '')}\r\n".encode() for status in range(200, 600)}
BODILESS = {204, 304}
FRAMING = {b"connection", b"content-length", b"date", b"transfer-encoding"}
NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")

log = logging.getLogger("dovetail")
access_log = logging.getLogger("dovetail.access")


class RequestResponseCycle(msgspec.Struct, eq=False):
    """One request from its complete headers until the app has returned; also the `FastPath` of the request."""

    protocol: "HttpProtocol"
    scope: Scope
    keep_alive: bool
    waiting_for_100_continue: bool
    bodiless: bool  # the response to HEAD, or with a status that has no body
    chunked: bool  # HTTP/1.1: a body of unknown length is sent in chunks
    disconnected: bool = False
    # the request
    more_body: bool = True
    buffer: bytes | bytearray = b""  # the part of the body that the app has not received yet
    has_message: bool = False  # for `receive`
    message_event: asyncio.Event | None = None  # `receive` waits for it
    # the response
    response_started: bool = False
    response_complete: bool = False
    status: int = 0
    began: float = 0.0  # for the access log
    head: bytes = b""  # not written yet
    expected_length: int | None = None  # remaining bytes of the body, if the response has a content-length

    @property
    def head_written(self) -> bool:
        return self.response_started and not self.head

    async def run_asgi(self, app: App) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except (asyncio.CancelledError, GeneratorExit):
            self.protocol.transport.abort()
            raise
        except BaseException as failure:
            await self._fail(failure)
        else:
            if not self.response_complete and not self.disconnected:
                await self._fail(None)
        finally:
            self.protocol.state.tasks.pop(self, None)
            self.release()

    def release(self) -> None:
        """Break the reference cycle: the scope holds this object."""
        self.scope.pop("extensions", None)

    async def _fail(self, failure: BaseException | None) -> None:
        log.error("the response to a request was not completed", exc_info=failure)
        if self.disconnected or self.response_complete:
            return
        if self.head_written:
            self.protocol.close()  # without the last chunk the client sees that something is missing
            return
        body = FAILED.body
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        self.response_started = False
        self.bodiless = self.scope["method"] == "HEAD"  # the status of the failed response may have set it
        await self.send({"type": START, "status": FAILED.status.value, "headers": headers})
        await self.send({"type": BODY, "body": body})

    def add_body(self, piece: bytes) -> int:
        """Add to the buffer; returns its length."""
        buffer = self.buffer
        if not buffer:
            self.buffer = buffer = piece
        elif isinstance(buffer, bytearray):
            buffer += piece
        else:
            self.buffer = buffer = bytearray(buffer + piece)
        self.has_message = True
        if self.message_event is not None:
            self.message_event.set()
        return len(buffer)

    def end_body(self) -> None:
        self.more_body = False
        self.has_message = True
        if self.message_event is not None:
            self.message_event.set()

    def disconnect(self) -> None:
        if not self.response_complete:
            self.disconnected = True
            if self.message_event is not None:
                self.message_event.set()

    async def receive(self) -> Message:
        protocol = self.protocol
        if self.waiting_for_100_continue and not (self.disconnected or self.response_complete):
            self.waiting_for_100_continue = False
            if self.more_body:
                protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if protocol.reading_paused:
            protocol.resume_reading()
        while not (self.has_message or self.response_complete or self.disconnected):
            if self.message_event is None:
                self.message_event = asyncio.Event()
            self.message_event.clear()
            await self.message_event.wait()
        if self.response_complete or self.disconnected:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._take_buffer(), "more_body": self.more_body}

    def _take_buffer(self) -> bytes:
        body = self.buffer
        self.buffer = b""
        self.has_message = False
        return body if isinstance(body, bytes) else bytes(body)

    # ── `FastPath`: body and response in one piece ──

    def body(self) -> bytes | None:
        if self.more_body or not self.has_message or self.disconnected:
            return None
        return self._take_buffer()

    def respond(self, status: int, headers: RawHeaders, body: bytes) -> bool:
        protocol = self.protocol
        if self.response_started or self.disconnected or self.bodiless or protocol.writable is not None:
            return False
        if self.waiting_for_100_continue and self.more_body:
            return False
        response = whole_response(status, headers, body, protocol.state.date_line, self.keep_alive)
        self.response_started = True
        if protocol.state.options.access_log:
            log_access(protocol, self.scope, status, self.began)
        protocol.transport.write(response)
        self._complete()
        return True

    async def send(self, message: Message) -> None:
        writable = self.protocol.writable
        if writable is not None and not self.disconnected:
            await writable.wait()
        if self.disconnected:
            return
        kind = message["type"]
        if kind != (BODY if self.response_started else START) or self.response_complete:
            raise RuntimeError(f"{kind!r} has no place here in a response")
        if self.response_started:
            self._send_body(message.get("body", b""), message.get("more_body", False))
        else:
            self._start_response(message["status"], message.get("headers", ()))

    def _start_response(self, status: int, headers: RawHeaders) -> None:
        bodiless = self.bodiless or status in BODILESS
        chunked = self.chunked and not bodiless
        # A client that expects 100 Continue may send its body or not, so the next bytes can't be parsed.
        keep_alive = self.keep_alive and not (self.waiting_for_100_continue and self.more_body)
        self.head, self.expected_length, self.keep_alive = build_head(
            status, headers, self.protocol.state.date_line, keep_alive, chunked
        )
        self.response_started = True
        self.waiting_for_100_continue = False
        self.status, self.bodiless, self.chunked = status, bodiless, chunked
        if self.expected_length is None:
            self._write(b"")

    def _send_body(self, body: bytes, more: bool) -> None:
        if self.bodiless:
            body = b""
        elif self.expected_length is not None:
            self.expected_length = remaining = self.expected_length - len(body)
            if remaining < 0 or (remaining and not more):
                raise RuntimeError("the body of a response is not as long as its content-length says")
        elif self.chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        if not (more or self.keep_alive):
            self.protocol.cork()
        self._write(body)
        if not more:
            self._complete()

    def _write(self, body: bytes) -> None:
        protocol, head = self.protocol, self.head
        if head:
            self.head = b""
            if protocol.state.options.access_log:
                log_access(protocol, self.scope, self.status, self.began)
            protocol.transport.write(head + body)
        elif body and not protocol.transport.is_closing():  # or asyncio would log a warning for each write
            protocol.transport.write(body)

    def _complete(self) -> None:
        self.response_complete = True
        if self.message_event is not None:
            self.message_event.set()
        self.protocol.response_completed(self)


def log_access(protocol: "HttpProtocol", scope: Scope | None, status: int, began: float = 0.0) -> None:
    """Log a request, without its query: in HTTP+SSE that holds the secret session id. `scope`: None if not parsed."""
    client = protocol.client
    address = ":".join(map(str, client or ()))
    line = "-"
    if scope is not None:
        caller = protocol.state.proxies.address_of(scope)
        if client is None or caller != client[0]:
            address = caller or ""  # behind a proxy, where no port is known
        line = f"{scope['method']} {quote(scope['path'])} HTTP/{scope['http_version']}"
    shown: dict[str, float] = {"status": status}  # in a line of JSON
    if began:
        shown["duration_ms"] = round((time.perf_counter() - began) * 1000, 3)
    access_log.info('%s - "%s" %d', address, line, status, extra={"dovetail": shown})


def build_head(
    status: int, headers: Iterable[tuple[bytes, bytes]], date_line: bytes, keep_alive: bool, chunked: bool
) -> tuple[bytes, int | None, bool]:
    """The bytes, the content-length if there is one, and whether the connection stays open; raises ValueError."""
    status_line = STATUS_LINES.get(status)
    if status_line is None:
        raise ValueError(f"{status!r} is not the status of a response")
    lines = [status_line, date_line]
    length = None
    closes = False
    for name, value in headers:
        name = name.lower()
        if name not in FRAMING:
            lines.append(unframed_line(name, value))
        elif name == b"content-length":
            if length is not None or not value.isdigit() or len(value) > 18:
                raise ValueError("content-length must be one number")
            length = int(value)
            if status != 204:  # which must not have one
                lines.append(b"content-length: %b\r\n" % value)
        elif name == b"connection":
            closes = closes or b"close" in list_items(value.lower())
            lines.append(header_line(name, value))
        elif name == b"date":
            lines[1] = header_line(name, value)
    if not (keep_alive or closes):
        lines.append(b"connection: close\r\n")
    if chunked and length is None:
        lines.append(b"transfer-encoding: chunked\r\n")
    lines.append(b"\r\n")
    return b"".join(lines), length, keep_alive and not closes


def whole_response(
    status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, date_line: bytes, keep_alive: bool
) -> bytes:
    """Head and body, for headers without any in FRAMING. Raises ValueError, or KeyError for the status."""
    start = unframed_head(status, tuple(headers))
    if not keep_alive:
        start += b"connection: close\r\n"
    if status in BODILESS:
        return b"%b%b\r\n" % (start, date_line)
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (start, date_line, len(body), body)


@lru_cache(maxsize=128)
def unframed_head(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return STATUS_LINES[status] + b"".join(unframed_line(name, value) for name, value in headers)


@lru_cache(maxsize=128)
def unframed_line(name: bytes, value: bytes) -> bytes:
    if name.lower() in FRAMING:
        raise ValueError(f"{name!r} is not for the app to say")
    return header_line(name, value)


def header_line(name: bytes, value: bytes) -> bytes:
    """Encode a header; line breaks are refused (header injection): values often hold text that a client has sent."""
    if NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not the name of a header")
    if VALUE.fullmatch(value) is None:
        raise ValueError(f"the value of the header {name.decode()} holds control characters")
    return b"%b: %b\r\n" % (name, value)
