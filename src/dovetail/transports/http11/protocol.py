"""HTTP/1.1 connections: `HttpProtocol` for each of them, with its limits, and `ServerState` for all.

Requests of one connection are answered one after the other. Bounded here: the number of connections, the requests
sent ahead of their answers, and the time that a client takes.
"""

import asyncio
import contextlib
import socket
import time
from collections import deque
from contextvars import copy_context
from typing import Any

from dovetail.transports.http.asgi import FAST_PATH, App, Scope
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.proxies import TrustedProxies
from dovetail.transports.http11.cycle import RequestResponseCycle, log_access
from dovetail.transports.http11.parser import CUT_SHORT, Refusal, RequestParser, over_limit

MAX_TURNED_AWAY = 100  # connections over the limit that get a 503; more are cut
MAX_AHEAD = 64  # requests sent ahead of their answers: the connection ends with the last of them
MAX_BYTES_AHEAD = 64 * 1024  # of such requests; then the client waits
CORK: int | None = getattr(socket, "TCP_CORK", None)  # on Linux
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class ServerState:
    """What all connections of one service share."""

    idle = 150.0  # seconds between two requests; longer than proxies and clients keep a connection
    stall = 60.0  # seconds in which a client that is being answered must have read something
    linger = 2.0  # seconds for a client to take the last response before the connection is cut

    def __init__(self, app: App, options: HttpOptions) -> None:
        self.app = app
        self.options = options
        self.proxies = TrustedProxies(options.trusted_proxies)
        self.loop = asyncio.get_running_loop()
        self.connections: set[HttpProtocol] = set()
        self.tasks: dict[RequestResponseCycle, asyncio.Task[None]] = {}
        self._all_closed: asyncio.Future[None] | None = None
        self._update_date()

    def new_protocol(self) -> "HttpProtocol":
        return HttpProtocol(self)

    def _update_date(self) -> None:
        self.date_line = b"date: %b\r\n" % http_date(time.gmtime())
        self._clock = self.loop.call_later(1.0, self._update_date)

    def shut_down(self) -> None:
        """Close idle connections now, and the others after the responses that are under way."""
        for connection in tuple(self.connections):
            connection.shut_down()

    async def respond_to_all(self, deadline: float) -> None:
        """Wait for responses that have not begun: those of the host's own pages, of which the app keeps no record."""
        while any(connection.is_unanswered for connection in self.connections):
            left = deadline - self.loop.time()
            if left <= 0 or not self.tasks:
                return
            await asyncio.wait(self.tasks.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)

    async def close(self, seconds: float) -> None:
        """Wait until all are closed, but no longer than that; then cut them."""
        self._clock.cancel()
        if self.connections:
            self._all_closed = self.loop.create_future()
            await asyncio.wait({self._all_closed}, timeout=seconds)
        for connection in tuple(self.connections):
            connection.transport.abort()

    def forget(self, connection: "HttpProtocol") -> None:
        self.connections.discard(connection)
        if self._all_closed is not None and not self.connections and not self._all_closed.done():
            self._all_closed.set_result(None)


def http_date(at: time.struct_time) -> bytes:
    """In English, whatever the locale; and the library's own function for it would load all of `email`."""
    day, month = DAYS[at.tm_wday], MONTHS[at.tm_mon - 1]
    return f"{day}, {at.tm_mday:02} {month} {at.tm_year} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT".encode()


class HttpProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self._parser = RequestParser(self, state.options.max_header_bytes, state.options.max_headers)
        self._context = copy_context()  # of each request: none sees what another one has set
        self._cycle: RequestResponseCycle | None = None  # the request that the app serves, or has served last
        self._pipeline: deque[RequestResponseCycle] = deque()  # requests sent ahead
        self._bytes_ahead = 0
        self._turned_away = False
        self._responded_last = False
        self.reading_paused = False
        self.writable: asyncio.Event | None = None  # where the app waits while the client does not read
        self.in_unfinished_head = False
        self._deadline = state.loop.time() + state.options.header_timeout  # for the next head, while none is served
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes that waited for a client that does not read, at the last look at the time

    # ── the connection ──

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # there is no other
        self.transport = transport
        self.client = _address(transport.get_extra_info("peername"))
        self.server = _address(transport.get_extra_info("sockname"))
        self.scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        connections = self.state.connections
        connections.add(self)
        excess = len(connections) - self.state.options.max_connections
        self._turned_away = excess > 0
        if excess > MAX_TURNED_AWAY:
            transport.abort()
        else:
            self._check_time_in(self.state.linger if self._turned_away else self._look_seconds)

    def data_received(self, data: bytes) -> None:
        if self._turned_away and not self._responded_last:
            self.refuse(over_limit("max_connections", self.state.options.max_connections))
            return
        self._parser.feed(data)
        if self._pipeline:
            self._bytes_ahead += len(data)
            if self._bytes_ahead > MAX_BYTES_AHEAD:
                self.pause_reading()

    def eof_received(self) -> None:
        """The client sends nothing more; after this the transport closes.

        In mid-request it may still read why that won't do. After a whole request it is taken for gone: a client that
        is gone looks just the same.
        """
        if not self._responded_last and (self._parser.in_body or self.in_unfinished_head):
            self.refuse(CUT_SHORT)

    def connection_lost(self, _: Exception | None) -> None:
        self._disconnect_app()
        self._cycle = None
        self._drop_pipeline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._parser.close()
        if self.writable is not None:
            self.writable.set()
        self.state.forget(self)

    def shut_down(self) -> None:
        """Close now, or after the responses that are under way."""
        last = self._parser.cycle
        if last is None or last.response_complete:
            self.close()
        else:
            last.keep_alive = False

    def cork(self) -> None:
        """Have the system send what is written now together with the end of the connection.

        A response that began before the shutdown has promised that the connection goes on. A client that gets the
        last of it, and the end a moment later, may send its next request in between, and that would be lost.
        """
        if CORK is not None and (plug := self.transport.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError):  # the client has left in this moment
                plug.setsockopt(socket.IPPROTO_TCP, CORK, 1)

    def close(self) -> None:
        """As soon as the client has taken what was written."""
        self.transport.close()
        self._check_time_in(self.state.stall)

    def _close_gently(self) -> None:
        """Read on for a moment: a connection that is cut with unread bytes loses its last response."""
        self._responded_last = self._parser.ignores_input = True
        self._drop_pipeline()
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has left in this moment
                self.transport.write_eof()
        self.resume_reading()
        waiting = self.transport.get_write_buffer_size()
        self._check_time_in(self.state.stall if waiting else self.state.linger)

    # ── requests and responses ──

    @property
    def is_unanswered(self) -> bool:
        """Whether the app serves a request whose response has not begun."""
        cycle = self._cycle
        return cycle is not None and not cycle.head_written and not cycle.disconnected

    def serve(
        self, scope: Scope, *, keep_alive: bool, expects_continue: bool, is_head: bool, is_1_1: bool
    ) -> RequestResponseCycle:
        """The headers of a request are complete."""
        cycle = RequestResponseCycle(self, scope, keep_alive, expects_continue, is_head, is_1_1)
        scope["extensions"] = {FAST_PATH: cycle}
        if self._cycle is None or self._cycle.response_complete:
            self._start(cycle)
        else:
            self._pipeline.append(cycle)
            if len(self._pipeline) >= MAX_AHEAD:
                cycle.keep_alive = False
        return cycle

    def _start(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        state = self.state
        state.tasks[cycle] = state.loop.create_task(cycle.run_asgi(state.app), context=self._context.copy())

    def response_completed(self, cycle: RequestResponseCycle) -> None:
        if self.transport.is_closing():
            self._check_time_in(self.state.stall)
        elif not cycle.keep_alive:
            if cycle.more_body or self._parser.ignores_input or cycle is not self._parser.cycle:
                self._close_gently()
            else:
                self.close()
        else:
            has_next = bool(self._pipeline)
            if has_next:
                self._bytes_ahead = 0  # of those behind the next one
                self._start(self._pipeline.popleft())
            if self.reading_paused:
                self.resume_reading()
            if not has_next:
                self._await_next_request(cycle.more_body)

    def _disconnect_app(self) -> None:
        if self._cycle is not None:
            self._cycle.disconnect()

    def _drop_pipeline(self) -> None:
        while self._pipeline:
            self._pipeline.pop().release()

    def refuse(self, refusal: Refusal) -> None:
        """Respond in place of the app, and end the connection."""
        self._disconnect_app()
        self._responded_last = self._parser.ignores_input = True
        if self.transport.is_closing():
            return
        if not self._may_respond:
            self.close()
            return
        if self.state.options.access_log:
            cycle = None if self._parser.in_head else self._parser.cycle
            log_access(self, None if cycle is None else cycle.scope, refusal.status)
        self.transport.write(refusal.response(self.state.date_line))
        self._close_gently()

    @property
    def _may_respond(self) -> bool:
        """Whether the client would take it as the response to the request that it is about."""
        cycle = self._cycle
        if cycle is None or cycle.response_complete:
            return True
        return cycle is self._parser.cycle and not self._parser.in_head and not cycle.head_written

    # ── flow control ──

    def pause_reading(self) -> None:
        if not self.reading_paused:
            self.reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Not while requests wait that were sent ahead."""
        if self.reading_paused and not self._pipeline:
            self.reading_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.writable = asyncio.Event()
        self._unread = self.transport.get_write_buffer_size()
        self._check_time_in(self.state.stall)

    def resume_writing(self) -> None:
        if self.writable is not None:
            self.writable.set()
            self.writable = None
        if not self._is_ending:
            self._check_time_in(self._look_seconds)

    # ── time: one timer for each connection, none for each request ──

    @property
    def _is_ending(self) -> bool:
        return self._responded_last or self.transport.is_closing()

    @property
    def _look_seconds(self) -> float:
        return min(self.state.options.header_timeout, self.state.idle)

    def head_began(self) -> None:
        """Some of a head has arrived, but not all of it."""
        if not self.in_unfinished_head:
            self.in_unfinished_head = True
            self._deadline = self.state.loop.time() + self.state.options.header_timeout

    def _await_next_request(self, more_body: bool) -> None:
        """`more_body`: the rest of an answered request is still to come, and is thrown away."""
        state = self.state
        if not self.in_unfinished_head:
            self._deadline = state.loop.time() + (state.options.header_timeout if more_body else state.idle)
        if self._timer is None:
            self._check_time_in(self._look_seconds)

    def _check_time_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.state.loop.call_later(seconds, self._check_time)

    def _check_time(self) -> None:
        self._timer = None
        if self._is_ending or self._turned_away:
            self.transport.abort()
        elif self.writable is not None:
            self._check_reading()
        else:
            self._check_deadline()

    def _check_reading(self) -> None:
        """The client must have read something of what waits for it."""
        waiting = self.transport.get_write_buffer_size()
        if waiting < self._unread:
            self._unread = waiting
            self._check_time_in(self.state.stall)
        else:
            self.transport.abort()

    def _check_deadline(self) -> None:
        if self._cycle is not None and not self._cycle.response_complete:
            return  # _await_next_request goes on
        remaining = self._deadline - self.state.loop.time()
        if remaining > 0:
            self._check_time_in(min(remaining, self._look_seconds))
        elif self.in_unfinished_head:
            self.refuse(over_limit("header_timeout", self.state.options.header_timeout))
        else:
            self.close()


def _address(found: Any) -> tuple[str, int] | None:
    """Of IPv6 the system tells more."""
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None
