"""One request and its answer, as ASGI sees them: what the connection has read comes in, bytes for the client go out.

The head of an answer whose length is known goes out with the first piece of its body, in one write; until then the
answer can still become another one, should the app fail. The head of a stream goes out at once.
"""

import asyncio
import logging
from typing import TYPE_CHECKING
from urllib.parse import quote

from dovetail.transports.asgi import App, Message, RawHeaders, Scope
from dovetail.transports.wire_head import BODILESS, build_head
from dovetail.transports.wire_refusals import FAILED

if TYPE_CHECKING:
    from dovetail.transports.wire_connection import HttpConnection

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
START = "http.response.start"
BODY = "http.response.body"

log = logging.getLogger("dovetail")
access_log = logging.getLogger("dovetail.access")


class Cycle:
    """Made by the connection when the headers are complete; lives until the app has returned."""

    __slots__ = (
        "_begun", "_bodiless", "_body", "_chunked", "_connection", "_head", "_is_head", "_knows_chunks", "_left",
        "_news", "_status", "_unheard", "answering", "complete", "disconnected", "expects_continue", "keep_alive",
        "more_body", "scope",
    )  # fmt: skip

    def __init__(self, connection: "HttpConnection", scope: Scope, keep_alive: bool, expects_continue: bool) -> None:
        self._connection = connection
        self.scope = scope
        self.keep_alive = keep_alive  # whether the connection goes on after the answer
        self.expects_continue = expects_continue  # the client waits for a word before it sends the body
        self.disconnected = False  # nobody is there any more
        # the request; what counts is what the client has sent, also if the app changes the scope
        self._is_head = scope["method"] == "HEAD"
        self._knows_chunks = scope["http_version"] == "1.1"
        self.more_body = True
        self._body: bytes | bytearray = b""  # what has arrived and the app has not taken
        self._unheard = False  # whether the app has not been told all that is known of the body
        self._news: asyncio.Event | None = None  # where the app waits for more
        # the answer
        self._begun = False  # the app has given its head
        self.answering = False  # the head has been written
        self.complete = False
        self._status = 0
        self._head = b""  # held back
        self._bodiless = False
        self._chunked = False
        self._left: int | None = None  # bytes of the body that are still to come, where that is known

    async def run(self, app: App) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except (asyncio.CancelledError, GeneratorExit):
            self._connection.transport.abort()
            raise
        except BaseException as failure:
            await self._fail(failure)
        else:
            if not self.complete and not self.disconnected:
                await self._fail(None)
        finally:
            self._connection.wire.serving.pop(self, None)

    async def _fail(self, failure: BaseException | None) -> None:
        log.error("a request was not answered to its end", exc_info=failure)
        if self.disconnected or self.complete:
            return
        if self.answering:
            self._connection.close()  # an answer without its last chunk: the client sees that something is missing
            return
        body = FAILED.body
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        self._begun = False
        await self.send({"type": START, "status": FAILED.status.value, "headers": headers})
        await self.send({"type": BODY, "body": body})

    # ── the request: what the connection says, and what the app hears ──

    def take(self, piece: bytes) -> int:
        """More of the body has arrived. Gives how much is held."""
        held = self._body
        if not held:
            self._body = held = piece
        elif isinstance(held, bytearray):
            held += piece
        else:
            self._body = held = bytearray(held + piece)
        self._unheard = True
        if self._news is not None:
            self._news.set()
        return len(held)

    def end_body(self) -> None:
        self.more_body = False
        self._unheard = True
        if self._news is not None:
            self._news.set()

    def disconnect(self) -> None:
        if not self.complete:
            self.disconnected = True
            if self._news is not None:
                self._news.set()

    async def receive(self) -> Message:
        connection = self._connection
        if self.expects_continue and not (self.disconnected or self.complete):
            self.expects_continue = False
            if self.more_body:
                connection.transport.write(CONTINUE)
        if connection.reading_paused:
            connection.resume_reading()
        while not (self._unheard or self.complete or self.disconnected):
            if self._news is None:
                self._news = asyncio.Event()
            self._news.clear()
            await self._news.wait()
        if self.complete or self.disconnected:
            return {"type": "http.disconnect"}
        body = self._body
        self._body = b""
        self._unheard = False
        return {"type": "http.request", "body": bytes(body), "more_body": self.more_body}

    # ── the answer ──

    async def send(self, message: Message) -> None:
        writable = self._connection.writable
        if writable is not None and not self.disconnected:
            await writable.wait()
        if self.disconnected:
            return
        kind = message["type"]
        if kind != (BODY if self._begun else START) or self.complete:
            raise RuntimeError(f"{kind!r} has no place here in an answer")
        if self._begun:
            self._continue(message.get("body", b""), message.get("more_body", False))
        else:
            self._begin(message["status"], message.get("headers", ()))

    def _begin(self, status: int, headers: RawHeaders) -> None:
        self._bodiless = self._is_head or status in BODILESS
        chunks = self._knows_chunks and not self._bodiless
        # Who still waits to be asked for its body may send it or not, so that nobody knows what comes next.
        keep_alive = self.keep_alive and not self.expects_continue
        self._head, self._left, self.keep_alive = build_head(
            status, headers, self._connection.wire.date_line, keep_alive, chunks
        )
        self._begun = True
        self._status = status
        if self._left is None:
            self._chunked = chunks
            self._write(b"")

    def _continue(self, body: bytes, more: bool) -> None:
        if self._bodiless:
            body = b""
        elif self._left is not None:
            self._left = left = self._left - len(body)
            if left < 0 or (left and not more):
                raise RuntimeError("the body of an answer is not as long as its content-length says")
        elif self._chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else LAST_CHUNK)
        if body or self._head:
            self._write(body)
        if not more:
            self.complete = True
            if self._news is not None:
                self._news.set()
            self._connection.answered(self)

    def _write(self, body: bytes) -> None:
        connection = self._connection
        if self._head:
            body = self._head + body
            self._head = b""
            self.answering = True
            if connection.logs:
                log_access(connection.client, self.scope, self._status)
        connection.transport.write(body)


def log_access(client: tuple[str, int] | None, scope: Scope | None, status: int) -> None:
    """Without the query: that of HTTP+SSE holds the name of a session, which nobody else may know."""
    line = "-"  # not every request can be read
    if scope is not None:
        line = f"{scope['method']} {quote(scope['path'])} HTTP/{scope['http_version']}"
    access_log.info('%s - "%s" %d', ":".join(map(str, client or ())), line, status)
