"""The limits of a connection that no option sets, and its clock: it says when a client has taken too long.

One timer for each connection, none for each request.
"""

import asyncio
from typing import TYPE_CHECKING

from dovetail.transports.wire_refusals import too_slow

if TYPE_CHECKING:
    from dovetail.transports.wire_connection import HttpConnection

IDLE_SECONDS = 150.0  # between two requests; longer than the proxies and clients in the field keep a connection
LINGER_SECONDS = 2.0  # for a client to take the last answer before the connection is cut
STALL_SECONDS = 60.0  # in which a client that is being answered must have read something
MAX_THROWN_AWAY = 1024 * 1024  # bytes that a client may still send when nothing more is expected of it
MAX_AHEAD = 16  # requests that are read before those sent ahead of them are answered
SMALL_PIECE = 4096  # bytes that are read at once where they may hold more requests than that
MAX_TURNED_AWAY = 100  # connections beyond the limit that are told so; further ones are cut without a word
HELD_AHEAD = 64 * 1024  # bytes of the requests sent ahead, before no more are read
HELD_BODY = 64 * 1024  # bytes of a body that wait for the app, before no more are read


class TimeLimits:
    """How long a client is waited for. While it is being answered it has all the time it wants, as long as it reads."""

    __slots__ = (
        "_connection", "_head_seconds", "_idle_seconds", "_idle_since", "_look_seconds", "_loop", "_stalled", "_timer",
        "head_since",
    )  # fmt: skip

    def __init__(self, connection: "HttpConnection", loop: asyncio.AbstractEventLoop, head_seconds: float) -> None:
        self._connection = connection
        self._loop = loop
        self._head_seconds = head_seconds
        self._look_seconds = min(head_seconds, IDLE_SECONDS)
        self._idle_since = loop.time()
        self._idle_seconds = head_seconds
        self.head_since: float | None = None  # the headers of a request have begun, but are not complete
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self.look_in(self._look_seconds)

    def end(self) -> None:
        for timer in (self._timer, self._stalled):
            if timer is not None:
                timer.cancel()
        self._connection = None  # type: ignore[assignment]  # each keeps the other

    def begin_head(self) -> None:
        if self.head_since is None:
            self.head_since = self._loop.time()

    def begin_idling(self, more_body: bool) -> None:
        """A request is answered. `more_body`: the rest of it is thrown away, so that the client sees the answer."""
        self._idle_since = self._loop.time()
        self._idle_seconds = self._head_seconds if more_body else IDLE_SECONDS
        if self._timer is None:
            self.look_in(self._look_seconds)

    def look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Look whether the client has kept its time."""
        self._timer = None
        connection = self._connection
        if connection.is_ending:
            connection.transport.abort()
            return
        if connection.is_serving:
            return  # begin_idling goes on
        began, allowed = self._idle_since, self._idle_seconds
        if self.head_since is not None:
            began, allowed = self.head_since, self._head_seconds
        remaining = began + allowed - self._loop.time()
        if remaining > 0:
            self.look_in(min(remaining, self._look_seconds))
        elif self.head_since is not None:
            connection.refuse(too_slow(self._head_seconds))
        else:
            connection.close()

    # ── whether the client reads ──

    def expect_reading(self) -> None:
        self._expect_reading(self._connection.transport.get_write_buffer_size())

    def has_read(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _expect_reading(self, waiting: int) -> None:
        self._stalled = self._loop.call_later(STALL_SECONDS, self._check_reading, waiting)

    def _check_reading(self, waiting: int) -> None:
        left = self._connection.transport.get_write_buffer_size()
        if left < waiting:
            self._expect_reading(left)
        else:
            self._connection.transport.abort()
