"""The HTTP/1.1 of `run()`: the bytes of sockets come in, requests go to an ASGI app, what is unfit is refused in JSON.

uvicorn parses and answers. Left alone it takes headers without end, waits without end for half a request, and lets a
client queue requests without end. What is bounded here: the bytes, the number and the time of headers, what a chunked
body holds besides its content, requests sent ahead, connections, and the time that a client may take to read.

Nothing here costs a keep-alive request more than plain uvicorn: one timer for each connection, none for each request.
"""

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.transports.wire_refusals import (
    BAD_CODING,
    BAD_REQUEST,
    BAD_VERSION,
    CUT_SHORT,
    FAILED,
    NO_TUNNEL,
    OLD_CODING,
    TOO_MUCH_AHEAD,
    Refusal,
    crowded,
    too_large,
    too_many,
    too_much_framing,
    too_slow,
)

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

    from dovetail.transports.wire import Wire
else:
    HttpToolsProtocol = object

IDLE_SECONDS = 150.0  # between two requests; longer than the proxies and clients in the field keep a connection
LINGER_SECONDS = 2.0  # for a client to take the last answer before the connection is cut
MAX_THROWN_AWAY = 1024 * 1024  # bytes that it may still send in that time
STALL_SECONDS = 60.0  # in which a client that is being answered must have read something
MAX_AHEAD = 16  # requests that a client may send before it has its answers
MAX_TURNED_AWAY = 100  # connections beyond the limit that are told so; further ones are cut without a word

HANDSHAKES = {b"upgrade", b"http2-settings"}  # offers of another protocol that we leave unanswered, as HTTP allows
UNFRAMED = {b"expect", b"transfer-encoding"}  # headers that mean something to this module
QUERY = re.compile(r"\?\S*")

log = logging.getLogger("dovetail")
access_log = logging.getLogger("dovetail.access")


class _WithoutQuery(logging.Filter):
    """The query of HTTP+SSE holds the name of a session, which nobody else may know."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = QUERY.sub("", record.getMessage()), ()  # other filters may have made it one text
        return True


access_log.addFilter(_WithoutQuery())


class _Unfit(Exception):
    """Raised in the parser's callbacks, which stops it."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class LimitedProtocol(HttpToolsProtocol):
    """One connection. At run time uvicorn's protocol comes in as a second base, so that it is loaded late."""

    ParserError: ClassVar[type[Exception]]
    ParserUpgrade: ClassVar[type[Exception]]
    new_parser: ClassVar[Any]

    def __init__(self, wire: "Wire") -> None:
        super().__init__(wire.config, wire.state, {}, wire.loop)
        options = wire.options
        self.logger = log
        self.access_logger = access_log
        self.access_log = options.access_log
        self.scope = {}  # type: ignore[typeddict-item]  # that of the request before the first
        self.headers = []
        self._wire = wire
        self._max_header_bytes = options.max_header_bytes
        self._max_headers = options.max_headers
        self._header_timeout = options.header_timeout
        self._look_seconds = min(options.header_timeout, IDLE_SECONDS)
        self._unread = 0  # bytes that the parser took since it last gave us something whole
        self._serving: RequestResponseCycle | None = None  # uvicorn's `cycle` is the one that arrived last
        self._offered_upgrade = False
        self._crowded = False
        self._over = False  # the last answer is given; what still comes is thrown away
        self._idle_since = wire.loop.time()
        self._idle_seconds = options.header_timeout
        self._head_since: float | None = None  # the headers of a request have begun, but are not complete
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    # ── connections ──

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        excess = len(self.connections) - self._wire.options.max_connections
        if excess > MAX_TURNED_AWAY:
            transport.abort()
        self._crowded = excess > 0
        self._look_in(LINGER_SECONDS if self._crowded else self._look_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_unanswered()
        self.pipeline.clear()
        for timer in (self._timer, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self._wire.one_less()

    @property
    def is_unanswered(self) -> bool:
        """Whether the app is at a request whose answer has not begun."""
        cycle = self._serving
        return cycle is not None and not cycle.response_started and not cycle.disconnected

    def _leave_unanswered(self) -> None:
        """The app hears that the client has left. uvicorn would tell only the request that arrived last."""
        cycle = self._serving
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    # ── bytes ──

    def data_received(self, data: bytes) -> None:
        if self._over:
            self._throw_away(data)
            return
        if self._crowded:
            self._refuse(crowded(self._wire.options.max_connections))
            return
        self._unread += len(data)
        try:
            self.parser.feed_data(data)
        except self.ParserError as failure:
            reason = failure.__context__
            self._refuse(reason.refusal if isinstance(reason, _Unfit) else BAD_REQUEST)
        except self.ParserUpgrade as position:
            self._decline_upgrade(data[position.args[0] :])
        else:
            if self._unread or "method" not in self.scope:
                self._check_unfinished()

    def eof_received(self) -> None:
        """Nothing more comes. Who is in mid-request may still read why that won't do; then the transport closes.

        Who has sent a whole request and waits is taken for gone: one that is gone looks just the same.
        """
        in_body = self._serving is not None and self.cycle.more_body and not self.cycle.response_complete
        if not self._over and (in_body or self._head_since is not None):
            self._refuse(CUT_SHORT)

    def _throw_away(self, data: bytes) -> None:
        self._unread += len(data)
        if self._unread > self._max_header_bytes + MAX_THROWN_AWAY:
            self.transport.abort()

    @property
    def _in_head(self) -> bool:
        """Whether the next request has begun, but not all of its headers are here."""
        return "method" not in self.scope  # where uvicorn adds it last

    def _check_unfinished(self) -> None:
        if self._unread > self._max_header_bytes:
            self._refuse((too_large if self._in_head else too_much_framing)(self._max_header_bytes))
        elif self._in_head and len(self.headers) > self._max_headers:
            self._refuse(too_many(self._max_headers))
        elif self._in_head and self._head_since is None:
            self._head_since = self.loop.time()

    # ── the parser's callbacks ──

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in UNFRAMED:
            if name == b"expect":
                self.expect_100_continue = value.lower() == b"100-continue"
            elif value.strip().lower() != b"chunked":
                raise _Unfit(BAD_CODING)
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._head_since = None
        taken, self._unread = self._unread, 0
        if taken > self._max_header_bytes:  # with much of the body already, perhaps
            self._measure_head()
        if len(self.headers) > self._max_headers:
            raise _Unfit(too_many(self._max_headers))
        if self.parser.get_http_version() != "1.1":
            self._check_old_version()
        if self.parser.should_upgrade():
            self._offered_upgrade = True  # see _decline_upgrade
            return
        super().on_headers_complete()
        self.headers = []  # for trailers, which are nobody's: the app has the other list
        if self.pipeline:
            if len(self.pipeline) > MAX_AHEAD:
                raise _Unfit(TOO_MUCH_AHEAD)
            self.flow.resume_reading()  # uvicorn has paused it, and would not see the client leave

    def _measure_head(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self._max_header_bytes:
            raise _Unfit(too_large(self._max_header_bytes))

    def _check_old_version(self) -> None:
        if self.parser.get_http_version() != "1.0":
            raise _Unfit(BAD_VERSION)
        if any(name == b"transfer-encoding" for name, _ in self.headers):
            raise _Unfit(OLD_CODING)

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._offered_upgrade:
            super().on_message_complete()

    def _decline_upgrade(self, rest: bytes) -> None:
        """Read the same request as if it had not offered another protocol; some clients always offer HTTP/2.

        The parser takes it for granted that an offer is accepted, and does not read the body.
        """
        self._offered_upgrade = False
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(NO_TUNNEL)
            return
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b", ".join(each for each in _items(value) if each.lower() not in HANDSHAKES)
            if value and name not in HANDSHAKES:
                lines.append(b"%b: %b" % (name, value))
        self.parser = self.new_parser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(b"\r\n".join([*lines, b"", rest]))

    # ── requests ──

    def _start_asgi_task(self, cycle: "RequestResponseCycle", app: Any) -> None:
        self._serving = cycle
        task = self.loop.create_task(self._serve(cycle, app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, cycle: "RequestResponseCycle", app: Any) -> None:
        try:
            await app(cycle.scope, cycle.receive, cycle.send)
        except (asyncio.CancelledError, GeneratorExit):
            self.transport.abort()
            raise
        except BaseException as failure:
            await self._fail(cycle, failure)
        else:
            if not cycle.response_complete and not cycle.disconnected:
                await self._fail(cycle, None)
        finally:
            cycle.on_response = _nothing  # or else each would keep the other

    async def _fail(self, cycle: "RequestResponseCycle", failure: BaseException | None) -> None:
        log.error("a request was not answered to its end", exc_info=failure)
        if cycle.disconnected:
            return
        if cycle.response_started:
            self.transport.close()  # a chunked answer without its last chunk: the client sees that something is missing
            return
        body = FAILED.body
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await cycle.send({"type": "http.response.start", "status": FAILED.status, "headers": headers})
        await cycle.send({"type": "http.response.body", "body": body, "more_body": False})

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._look_in(STALL_SECONDS)
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        # The rest of a body that the app did not want is read and thrown away, so that the client sees the answer.
        self._idle_seconds = self._header_timeout if self.cycle.more_body else IDLE_SECONDS
        if self._timer is None:
            self._look_in(self._look_seconds)

    # ── refusals ──

    def _refuse(self, refusal: Refusal) -> None:
        """Answer, then read on for a moment: a connection that is cut with unread bytes loses its last answer."""
        self._over = True
        self._leave_unanswered()
        if not self._may_answer:
            self.transport.close()
        elif not self.transport.is_closing():
            self._log_refusal(refusal)
            self.transport.write(refusal.response(self.server_state.default_headers))
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.flow.resume_reading()
        self._look_in(LINGER_SECONDS)

    def _log_refusal(self, refusal: Refusal) -> None:
        """As uvicorn logs what the app answers; but here not every request could be read."""
        if self.access_log:
            line, scope = "-", self.scope
            if "raw_path" in scope:
                line = f"{scope['method']} {scope['raw_path'].decode('ascii')} HTTP/{scope['http_version']}"
            access_log.info('%s - "%s" %d', ":".join(map(str, self.client or ())), line, refusal.status)

    @property
    def _may_answer(self) -> bool:
        """Whether the client would take it as the answer to the request that it is about."""
        cycle = self._serving
        if cycle is None or cycle.response_complete:
            return True
        return cycle is self.cycle and not self._in_head and not cycle.response_started

    # ── time ──

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Look whether the client has kept its time. While it is being answered it has all the time it wants."""
        self._timer = None
        if self._over or self._crowded or self.transport.is_closing():
            self.transport.abort()
            return
        if self._serving is not None and not self._serving.response_complete:
            return  # on_response_complete goes on
        began, allowed = self._idle_since, self._idle_seconds
        if self._head_since is not None:
            began, allowed = self._head_since, self._header_timeout
        remaining = began + allowed - self.loop.time()
        if remaining > 0:
            self._look_in(min(remaining, self._look_seconds))
        elif self._head_since is not None:
            self._refuse(too_slow(self._header_timeout))
        else:
            self.transport.close()
            self._look_in(STALL_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _expect_reading(self, waiting: int) -> None:
        self._stalled = self.loop.call_later(STALL_SECONDS, self._check_reading, waiting)

    def _check_reading(self, waiting: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < waiting:
            self._expect_reading(left)
        else:
            self.transport.abort()


def _nothing() -> None: ...


def _items(value: bytes) -> list[bytes]:
    return [each.strip() for each in value.split(b",")]
