"""One HTTP/1.1 connection of `run()`: bytes come in, requests go to an ASGI app, what is unfit is refused in JSON.

Requests are answered one after the other, however many were sent ahead. Besides what `wire_reader` bounds, the
connections are bounded here, the requests sent ahead, and (`wire_limits`) the time that a client takes.
"""

import asyncio
import contextlib
import socket
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from dovetail.transports import wire_limits
from dovetail.transports.wire_cycle import Cycle, log_access
from dovetail.transports.wire_limits import TimeLimits
from dovetail.transports.wire_reader import RequestReader
from dovetail.transports.wire_refusals import CUT_SHORT, Refusal, crowded

if TYPE_CHECKING:
    from dovetail.transports.wire import Wire

CORK: int | None = getattr(socket, "TCP_CORK", None)  # on Linux


class HttpConnection(asyncio.Protocol):
    __slots__ = (
        "_context", "_crowded", "_over", "_queue", "_reader", "_serving", "_unread", "client", "logs",
        "reading_paused", "scheme", "server", "time_limits", "transport", "wire", "writable",
    )  # fmt: skip

    def __init__(self, wire: "Wire") -> None:
        self.wire = wire
        self.logs = wire.options.access_log
        self.time_limits = TimeLimits(self, wire.loop, wire.options.header_timeout)
        self._reader = RequestReader(self)
        self._context = copy_context()  # that of the requests: none of them sees what another one has set
        self._serving: Cycle | None = None  # the request that the app is at, or was
        self._queue: deque[Cycle] = deque()  # those sent ahead
        self._unread = b""  # what waits until there is room for more of those
        self._crowded = False
        self._over = False  # the last answer is given
        self.reading_paused = False
        self.writable: asyncio.Event | None = None  # where the app waits, while the client does not read

    # ── its life ──

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # there is no other
        self.transport = transport
        self.client = _address(transport.get_extra_info("peername"))
        self.server = _address(transport.get_extra_info("sockname"))
        self.scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        connections = self.wire.connections
        connections.add(self)
        excess = len(connections) - self.wire.options.max_connections
        self._crowded = excess > 0
        if excess > wire_limits.MAX_TURNED_AWAY:
            transport.abort()
        elif self._crowded:
            self.time_limits.look_in(wire_limits.LINGER_SECONDS)
        else:
            self.time_limits.begin()

    def data_received(self, data: bytes) -> None:
        if self._crowded and not self._over:
            self.refuse(crowded(self.wire.options.max_connections))
        elif self._queue or self._unread or data.count(b"\n") > 2 * wire_limits.MAX_AHEAD:  # two for each request
            self._read(self._unread + data)
        else:
            self._reader.feed(data)

    def _read(self, data: bytes) -> None:
        """As much as there is room for requests sent ahead; the rest waits, and so does the client."""
        done = 0
        while done < len(data) and (len(self._queue) < wire_limits.MAX_AHEAD or self._over):
            self._reader.feed(data[done : done + wire_limits.SMALL_PIECE])
            done += wire_limits.SMALL_PIECE
        self._unread = data[done:]
        if self._unread:
            self.pause_reading()

    def eof_received(self) -> None:
        """Nothing more comes. Who is in mid-request may still read why that won't do; then the transport closes.

        Who has sent a whole request and waits is taken for gone: one that is gone looks just the same.
        """
        if not self._over and (self._reader.in_body or self.time_limits.head_since is not None):
            self.refuse(CUT_SHORT)

    def connection_lost(self, _: Exception | None) -> None:
        self._leave_unanswered()
        self._serving = None
        while self._queue:
            self._queue.pop().let_go()
        self.time_limits.end()
        self._reader.end()
        if self.writable is not None:
            self.writable.set()
        self.wire.forget(self)

    def finish(self) -> None:
        """Close now, or after the answers that are under way."""
        last = self._reader.cycle
        if last is None or last.complete:
            self.close()
        else:
            last.keep_alive = False

    def cork(self) -> None:
        """Have the system send what is written now together with the end of the connection.

        An answer that began before the end was near has promised that the connection goes on. A client that gets the
        last of it, and the end a moment later, may send its next request in between, and that would be lost.
        """
        if CORK is not None and (plug := self.transport.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError):  # the client has left in this moment
                plug.setsockopt(socket.IPPROTO_TCP, CORK, 1)

    def close(self) -> None:
        """As soon as the client has taken what was written."""
        self.transport.close()
        self.time_limits.look_in(wire_limits.STALL_SECONDS)

    def _close_gently(self) -> None:
        """Read on for a moment: a connection that is cut with unread bytes loses its last answer."""
        self._over = self._reader.heard_all = True
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has left in this moment
                self.transport.write_eof()
        self.resume_reading()
        waiting = self.transport.get_write_buffer_size()
        self.time_limits.look_in(wire_limits.STALL_SECONDS if waiting else wire_limits.LINGER_SECONDS)

    @property
    def is_ending(self) -> bool:
        return self._over or self._crowded or self.transport.is_closing()

    # ── requests ──

    @property
    def is_serving(self) -> bool:
        return self._serving is not None and not self._serving.complete

    @property
    def is_unanswered(self) -> bool:
        """Whether the app is at a request whose answer has not begun."""
        cycle = self._serving
        return cycle is not None and not cycle.answering and not cycle.disconnected

    def serve(self, cycle: Cycle) -> None:
        """A request has come."""
        if self._serving is None or self._serving.complete:
            self._start(cycle)
        else:
            self._queue.append(cycle)
            if sum(each.size for each in self._queue) > wire_limits.HELD_AHEAD:
                self.pause_reading()

    def _start(self, cycle: Cycle) -> None:
        self._serving = cycle
        wire = self.wire
        wire.serving[cycle] = wire.loop.create_task(cycle.run(wire.app), context=self._context.copy())

    def answered(self, cycle: Cycle) -> None:
        """An answer is complete."""
        if self.transport.is_closing():
            self.time_limits.look_in(wire_limits.STALL_SECONDS)
        elif not cycle.keep_alive:
            self._close_after(cycle)
        else:
            waited = bool(self._queue)
            if waited:
                self._start(self._queue.popleft())
            if self.reading_paused:
                self.resume_reading()
            if not waited:
                self.time_limits.begin_idling(cycle.more_body)

    def _close_after(self, last: Cycle) -> None:
        if last.more_body or self._unread or last is not self._reader.cycle:
            self._close_gently()
        else:
            self.close()

    def _leave_unanswered(self) -> None:
        """The app hears that the client has left."""
        if self._serving is not None:
            self._serving.disconnect()

    # ── refusals ──

    def refuse(self, refusal: Refusal) -> None:
        """Answer in place of the app, and end the connection."""
        self._leave_unanswered()
        self._over = self._reader.heard_all = True
        if self.transport.is_closing():
            return
        if not self._may_answer:
            self.close()
            return
        if self.logs:
            read = None if self._reader.in_head else self._reader.cycle
            log_access(self, None if read is None else read.scope, refusal.status)
        self.transport.write(refusal.response([(b"date", self.wire.date)]))
        self._close_gently()

    @property
    def _may_answer(self) -> bool:
        """Whether the client would take it as the answer to the request that it is about."""
        cycle = self._serving
        if cycle is None or cycle.complete:
            return True
        return cycle is self._reader.cycle and not self._reader.in_head and not cycle.answering

    # ── back-pressure ──

    def pause_reading(self) -> None:
        if not self.reading_paused:
            self.reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """First what has come already; while more was sent ahead than there is room for, the client still waits."""
        if self._unread:
            self._read(self._unread)
        if self.reading_paused and not self._unread:
            self.reading_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.writable = asyncio.Event()
        self.time_limits.expect_reading()

    def resume_writing(self) -> None:
        if self.writable is not None:
            self.writable.set()
            self.writable = None
        self.time_limits.has_read()


def _address(found: Any) -> tuple[str, int] | None:
    """Of IPv6 the system tells more."""
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None
