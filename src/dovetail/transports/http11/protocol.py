"""HTTP/1.1 connections: `HttpProtocol` for each of them, with its limits, and `ServerState` for all.

Limited here: the number of connections, pipelined requests, and the time that a client takes.
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
from dovetail.transports.http11.parser import INCOMPLETE, Refusal, RequestParser, over_limit

MAX_REFUSED_CONNECTIONS = 100  # over the limit, which get a 503; more are cut
MAX_PIPELINED = 64  # requests: the connection is closed after the last of them
MAX_PIPELINED_BYTES = 64 * 1024  # then reading is paused
KEEPALIVE_TIMEOUT = 150.0  # seconds between two requests; longer than proxies and clients keep a connection
STALL_TIMEOUT = 60.0  # seconds in which a client must have read some of the pending bytes
LINGER_TIMEOUT = 2.0  # seconds for a client to read the last response before the connection is cut
CORK: int | None = getattr(socket, "TCP_CORK", None)  # on Linux
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class ServerState:
    """The shared state of all connections of one service."""

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
        self._date_timer = self.loop.call_later(1.0, self._update_date)

    def shut_down(self) -> None:
        """Close idle connections now, and the others after their pending responses."""
        for connection in tuple(self.connections):
            connection.shut_down()

    async def respond_to_all(self, deadline: float) -> None:
        """Wait for responses that have not started; the app drains its own calls, but not the author's routes."""
        while any(connection.awaits_response for connection in self.connections):
            timeout = deadline - self.loop.time()
            if timeout <= 0 or not self.tasks:
                return
            await asyncio.wait(self.tasks.values(), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    async def close(self, timeout: float) -> None:
        """Wait until all connections are closed, for `timeout` seconds; then cut them."""
        self._date_timer.cancel()
        if self.connections:
            self._all_closed = self.loop.create_future()
            await asyncio.wait({self._all_closed}, timeout=timeout)
        for connection in tuple(self.connections):
            connection.transport.abort()

    def discard(self, connection: "HttpProtocol") -> None:
        self.connections.discard(connection)
        if self._all_closed is not None and not self.connections and not self._all_closed.done():
            self._all_closed.set_result(None)


def http_date(at: time.struct_time) -> bytes:
    """The date for headers, in English in any locale; the standard library's function would load all of `email`."""
    day, month = DAYS[at.tm_wday], MONTHS[at.tm_mon - 1]
    return f"{day}, {at.tm_mday:02} {month} {at.tm_year} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT".encode()


class HttpProtocol(asyncio.Protocol):
    """One connection. Its requests are served one after the other."""

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self._parser = RequestParser(self, state.options.max_header_bytes, state.options.max_headers)
        self._context = copy_context()  # each request gets a copy: none sees variables that another one has set
        self._cycle: RequestResponseCycle | None = None  # the request that the app serves, or has served last
        self._pipeline: deque[RequestResponseCycle] = deque()
        self._pipelined_bytes = 0
        self._over_limit = False
        self._responded_last = False
        self.reading_paused = False
        self.writable: asyncio.Event | None = None  # set again when the client reads; `send` waits for it
        self.in_unfinished_head = False
        self._deadline = state.loop.time() + state.options.header_timeout  # for the next head, while none is served
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0  # pending bytes at the last check, while the client does not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.client = _address(transport.get_extra_info("peername"))
        self.server = _address(transport.get_extra_info("sockname"))
        self.scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        connections = self.state.connections
        connections.add(self)
        excess = len(connections) - self.state.options.max_connections
        self._over_limit = excess > 0
        if excess > MAX_REFUSED_CONNECTIONS:
            transport.abort()
        else:
            self._schedule_check(LINGER_TIMEOUT if self._over_limit else self._check_interval)

    def data_received(self, data: bytes) -> None:
        if self._over_limit and not self._responded_last:
            self.refuse(over_limit("max_connections", self.state.options.max_connections))
            return
        self._parser.feed(data)
        if self._pipeline:
            self._pipelined_bytes += len(data)
            if self._pipelined_bytes > MAX_PIPELINED_BYTES:
                self.pause_reading()

    def eof_received(self) -> None:
        """The transport closes after this. A client that closed its side after a whole request counts as disconnected:
        the two can't be told apart. Within a request it may still read the refusal.
        """
        if not self._responded_last and (self._parser.in_body or self.in_unfinished_head):
            self.refuse(INCOMPLETE)

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
        self.state.discard(self)

    def shut_down(self) -> None:
        """Close now, or after the pending responses."""
        last = self._parser.cycle
        if last is None or last.response_complete:
            self.close()
        else:
            last.keep_alive = False

    def cork(self) -> None:
        """Have the system send the next bytes together with the end of the connection.

        The head of a response that began before the shutdown has announced keep-alive. Between the last bytes and the
        end of the connection the client might send its next request, which would be lost.
        """
        if CORK is not None and (plug := self.transport.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError):  # the client has just disconnected
                plug.setsockopt(socket.IPPROTO_TCP, CORK, 1)

    def close(self) -> None:
        """Close as soon as the client has read the pending bytes."""
        self.transport.close()
        self._schedule_check(STALL_TIMEOUT)

    def _close_gracefully(self) -> None:
        """Read on for a moment: a connection that is cut with unread input loses its last response."""
        self._responded_last = self._parser.ignores_input = True
        self._drop_pipeline()
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has just disconnected
                self.transport.write_eof()
        self.resume_reading()
        self._schedule_check(STALL_TIMEOUT if self.transport.get_write_buffer_size() else LINGER_TIMEOUT)

    @property
    def awaits_response(self) -> bool:
        """Whether the app serves a request whose response has not started."""
        cycle = self._cycle
        return cycle is not None and not cycle.head_written and not cycle.disconnected

    def serve(
        self, scope: Scope, *, keep_alive: bool, expects_continue: bool, is_head: bool, is_1_1: bool
    ) -> RequestResponseCycle:
        """Serve a request whose headers are complete."""
        cycle = RequestResponseCycle(self, scope, keep_alive, expects_continue, is_head, is_1_1)
        scope["extensions"] = {FAST_PATH: cycle}
        if self.state.options.access_log:
            cycle.began = time.perf_counter()
        if self._cycle is None or self._cycle.response_complete:
            self._start(cycle)
        else:
            self._pipeline.append(cycle)
            if len(self._pipeline) >= MAX_PIPELINED:
                cycle.keep_alive = False
        return cycle

    def _start(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        state = self.state
        state.tasks[cycle] = state.loop.create_task(cycle.run_asgi(state.app), context=self._context.copy())

    def response_completed(self, cycle: RequestResponseCycle) -> None:
        if self.transport.is_closing():
            self._schedule_check(STALL_TIMEOUT)
        elif not cycle.keep_alive:
            if cycle.more_body or self._parser.ignores_input or cycle is not self._parser.cycle:
                self._close_gracefully()
            else:
                self.close()
        else:
            has_next = bool(self._pipeline)
            if has_next:
                self._pipelined_bytes = 0
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
        """Send an error response that does not come from the app, and end the connection."""
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
        self._close_gracefully()

    @property
    def _may_respond(self) -> bool:
        """Whether the client would take a refusal as the response to the request that was refused."""
        cycle = self._cycle
        if cycle is None or cycle.response_complete:
            return True
        return cycle is self._parser.cycle and not self._parser.in_head and not cycle.head_written

    def pause_reading(self) -> None:
        if not self.reading_paused:
            self.reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.reading_paused and not self._pipeline:
            self.reading_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.writable = asyncio.Event()
        self._unread = self.transport.get_write_buffer_size()
        self._schedule_check(STALL_TIMEOUT)

    def resume_writing(self) -> None:
        if self.writable is not None:
            self.writable.set()
            self.writable = None
        if not self._is_ending:
            self._schedule_check(self._check_interval)

    # ── timeouts: one timer for each connection, none for each request ──

    @property
    def _is_ending(self) -> bool:
        return self._responded_last or self.transport.is_closing()

    @property
    def _check_interval(self) -> float:
        return min(self.state.options.header_timeout, KEEPALIVE_TIMEOUT)

    def head_began(self) -> None:
        """Start the timeout of a head: a part of it has arrived."""
        if not self.in_unfinished_head:
            self.in_unfinished_head = True
            self._deadline = self.state.loop.time() + self.state.options.header_timeout

    def _await_next_request(self, more_body: bool) -> None:
        """`more_body`: the rest of a request that has its response is still expected, and ignored."""
        state = self.state
        if not self.in_unfinished_head:
            self._deadline = state.loop.time() + (state.options.header_timeout if more_body else KEEPALIVE_TIMEOUT)
        if self._timer is None:
            self._schedule_check(self._check_interval)

    def _schedule_check(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.state.loop.call_later(seconds, self._check_timeouts)

    def _check_timeouts(self) -> None:
        self._timer = None
        if self._is_ending or self._over_limit:
            self.transport.abort()
        elif self.writable is not None:
            before, self._unread = self._unread, self.transport.get_write_buffer_size()
            if self._unread < before:
                self._schedule_check(STALL_TIMEOUT)
            else:
                self.transport.abort()
        elif self._cycle is not None and not self._cycle.response_complete:
            pass  # _await_next_request schedules a check
        elif (remaining := self._deadline - self.state.loop.time()) > 0:
            self._schedule_check(min(remaining, self._check_interval))
        elif self.in_unfinished_head:
            self.refuse(over_limit("header_timeout", self.state.options.header_timeout))
        else:
            self.close()


def _address(name: Any) -> tuple[str, int] | None:
    """Host and port of a socket name, which has more parts for IPv6."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
