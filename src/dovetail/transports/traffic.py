"""What goes on in an HTTP server: calls being served, streams held open, and how they come to an end."""

import asyncio
from collections.abc import Callable
from typing import Any

from dovetail.errors import INTERNAL_ERROR, Busy, ProtocolError

SETTLE_SECONDS = 1.0  # how long cancelled calls get to clean up


class Traffic:
    """Whatever enters also leaves; `close` waits for that."""

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._calls: dict[Any, Callable[[], None]] = {}  # a call, and how to cancel it
        self._streams: dict[Any, Callable[[], None]] = {}  # a stream, and how to end it
        self._empty = asyncio.Event()
        self.closing = False

    def refuse_if_closing(self) -> None:
        if self.closing:
            raise ProtocolError("The server is shutting down", code=INTERNAL_ERROR, http_status=503)

    # ── calls: they are waited for ──

    def enter(self, call: object, cancel: Callable[[], None]) -> None:
        self._calls[call] = cancel

    def leave(self, call: object) -> None:
        self._calls.pop(call, None)
        self._check()

    # ── streams: they are told to end ──

    def open_stream(self, stream: object, end: Callable[[], None]) -> None:
        self.refuse_if_closing()
        if len(self._streams) >= self._max_streams:
            text = f"The server holds {self._max_streams} streams open; try again later, or raise max_streams"
            raise Busy(text, http_status=503)
        self._streams[stream] = end

    def close_stream(self, stream: object) -> None:
        self._streams.pop(stream, None)
        self._check()

    def _check(self) -> None:
        if self.closing and not self._calls and not self._streams:
            self._empty.set()

    async def close(self, timeout: float) -> None:
        """End the streams now, wait for the calls, cancel those that take longer."""
        self.closing = True
        for end in tuple(self._streams.values()):
            end()
        if not await self._emptied(timeout):
            for cancel in tuple(self._calls.values()):
                cancel()
            await self._emptied(SETTLE_SECONDS)

    async def _emptied(self, seconds: float) -> bool:
        self._check()
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            return False
        return True
