"""One request and its answer, as ASGI sees them: what the connection has read comes in, bytes for the client go out.

The head of an answer whose length is known goes out with the first piece of its body, in one write; until then the
answer can still become another one, should the app fail. The head of a stream goes out at once.
"""

import asyncio
import logging
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from dovetail.transports.asgi import App, Message, RawHeaders, Scope
from dovetail.transports.wire_head import BODILESS, build_head, whole_answer
from dovetail.transports.wire_refusals import FAILED

if TYPE_CHECKING:
    from dovetail.transports.wire_connection import HttpConnection

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
START = "http.response.start"
BODY = "http.response.body"

log = logging.getLogger("dovetail")
access_log = logging.getLogger("dovetail.access")


class Cycle(msgspec.Struct, eq=False):
    """Made by the connection when the headers are complete; lives until the app has returned. It is a `Whole`, too."""

    connection: "HttpConnection"
    scope: Scope
    keep_alive: bool  # whether the connection goes on after the answer
    expects_continue: bool  # the client waits for a word before it sends the body
    # what counts is what the client has sent, also if the app changes the scope
    is_head: bool
    knows_chunks: bool
    disconnected: bool = False  # nobody is there any more
    # the request
    more_body: bool = True
    held: bytes | bytearray = b""  # what has arrived of the body and the app has not taken
    unheard: bool = False  # whether the app has not been told all that is known of the body
    untouched: bool = True  # the app has taken nothing of it
    news: asyncio.Event | None = None  # where the app waits for more
    # the answer
    begun: bool = False  # the app has given its head
    answering: bool = False  # the head has been written
    complete: bool = False
    status: int = 0
    head: bytes = b""  # held back
    bodiless: bool = False
    chunked: bool = False
    left: int | None = None  # bytes of the body that are still to come, where that is known

    async def run(self, app: App) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except (asyncio.CancelledError, GeneratorExit):
            self.connection.transport.abort()
            raise
        except BaseException as failure:
            await self._fail(failure)
        else:
            if not self.complete and not self.disconnected:
                await self._fail(None)
        finally:
            self.connection.wire.serving.pop(self, None)
            self.let_go()

    def let_go(self) -> None:
        """The scope and this keep each other."""
        self.scope.pop("extensions", None)

    async def _fail(self, failure: BaseException | None) -> None:
        log.error("a request was not answered to its end", exc_info=failure)
        if self.disconnected or self.complete:
            return
        if self.answering:
            self.connection.close()  # an answer without its last chunk: the client sees that something is missing
            return
        body = FAILED.body
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        self.begun = False
        await self.send({"type": START, "status": FAILED.status.value, "headers": headers})
        await self.send({"type": BODY, "body": body})

    # ── the request: what the connection says, and what the app hears ──

    @property
    def size(self) -> int:
        """Of what is held of the request, in bytes."""
        scope = self.scope
        return len(self.held) + len(scope["raw_path"]) + sum(len(name) + len(value) for name, value in scope["headers"])

    def take(self, piece: bytes) -> int:
        """More of the body has arrived. Gives how much is held."""
        held = self.held
        if not held:
            self.held = held = piece
        elif isinstance(held, bytearray):
            held += piece
        else:
            self.held = held = bytearray(held + piece)
        self.unheard = True
        if self.news is not None:
            self.news.set()
        return len(held)

    def end_body(self) -> None:
        self.more_body = False
        self.unheard = True
        if self.news is not None:
            self.news.set()

    def disconnect(self) -> None:
        if not self.complete:
            self.disconnected = True
            if self.news is not None:
                self.news.set()

    async def receive(self) -> Message:
        connection = self.connection
        if self.expects_continue and not (self.disconnected or self.complete):
            self.expects_continue = False
            if self.more_body:
                connection.transport.write(CONTINUE)
        if connection.reading_paused:
            connection.resume_reading()
        while not (self.unheard or self.complete or self.disconnected):
            if self.news is None:
                self.news = asyncio.Event()
            self.news.clear()
            await self.news.wait()
        if self.complete or self.disconnected:
            return {"type": "http.disconnect"}
        body = self.held
        self.held = b""
        self.unheard = self.untouched = False
        return {"type": "http.request", "body": bytes(body), "more_body": self.more_body}

    # ── in one piece ──

    def body(self) -> bytes | None:
        if self.more_body or not self.untouched or self.disconnected:
            return None
        body = self.held
        self.held = b""
        self.unheard = self.untouched = False
        return body if isinstance(body, bytes) else bytes(body)

    def answer(self, status: int, headers: RawHeaders, body: bytes) -> bool:
        connection = self.connection
        if self.begun or self.disconnected or self.is_head or connection.writable is not None:
            return False
        if self.expects_continue and self.more_body:
            return False
        answer = whole_answer(status, headers, body, connection.wire.date_line, self.keep_alive)
        self.begun = self.answering = True
        if connection.logs:
            log_access(connection, self.scope, status)
        connection.transport.write(answer)
        self._end()
        return True

    # ── the answer ──

    async def send(self, message: Message) -> None:
        writable = self.connection.writable
        if writable is not None and not self.disconnected:
            await writable.wait()
        if self.disconnected:
            return
        kind = message["type"]
        if kind != (BODY if self.begun else START) or self.complete:
            raise RuntimeError(f"{kind!r} has no place here in an answer")
        if self.begun:
            self._continue(message.get("body", b""), message.get("more_body", False))
        else:
            self._begin(message["status"], message.get("headers", ()))

    def _begin(self, status: int, headers: RawHeaders) -> None:
        self.bodiless = self.is_head or status in BODILESS
        chunks = self.knows_chunks and not self.bodiless
        # Who still waits to be asked for its body may send it or not, so that nobody knows what comes next.
        keep_alive = self.keep_alive and not (self.expects_continue and self.more_body)
        self.head, self.left, self.keep_alive = build_head(
            status, headers, self.connection.wire.date_line, keep_alive, chunks
        )
        self.begun = True
        self.expects_continue = False  # the answer has begun: that word would stand in the midst of it
        self.status = status
        if self.left is None:
            self.chunked = chunks
            self._write_head(b"")

    def _continue(self, body: bytes, more: bool) -> None:
        if self.bodiless:
            body = b""
        elif self.left is not None:
            self.left = left = self.left - len(body)
            if left < 0 or (left and not more):
                raise RuntimeError("the body of an answer is not as long as its content-length says")
        elif self.chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else LAST_CHUNK)
        if not (more or self.keep_alive):
            self.connection.cork()
        transport = self.connection.transport
        if self.head:
            self._write_head(body)
        elif body and not transport.is_closing():  # or the loop would complain of each piece
            transport.write(body)
        if not more:
            self._end()

    def _end(self) -> None:
        self.complete = True
        if self.news is not None:
            self.news.set()
        self.connection.answered(self)

    def _write_head(self, body: bytes) -> None:
        """With what there is of the body."""
        connection = self.connection
        head = self.head
        self.head = b""
        self.answering = True
        if connection.logs:
            log_access(connection, self.scope, self.status)
        connection.transport.write(head + body)


def log_access(connection: "HttpConnection", scope: Scope | None, status: int) -> None:
    """Without the query: that of HTTP+SSE holds the name of a session, which nobody else may know."""
    client = connection.client
    who = ":".join(map(str, client or ()))
    line = "-"  # not every request can be read
    if scope is not None:
        caller = connection.wire.proxies.caller(scope)
        if client is None or caller != client[0]:
            who = caller or ""  # of who is behind a proxy no port is known
        line = f"{scope['method']} {quote(scope['path'])} HTTP/{scope['http_version']}"
    access_log.info('%s - "%s" %d', who, line, status)
