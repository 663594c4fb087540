"""What goes on in an HTTP server: calls being served, streams held open, and how they come to an end."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.errors import INTERNAL_ERROR, Busy, ProtocolError

SETTLE_SECONDS = 1.0  # how long stopped calls get to clean up, and streams to end


class Traffic:
    """Whatever enters also leaves; `close` waits for that."""

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._calls: dict[Any, Callable[[], object]] = {}  # a call, and how to stop it
        self._streams: dict[Any, Callable[[float], object]] = {}  # a stream, and how to end it
        self._left = asyncio.Event()
        self.closing = False

    def refuse_if_closing(self) -> None:
        if self.closing:
            raise ProtocolError("The server is shutting down", code=INTERNAL_ERROR, http_status=503)

    # ── calls: they are waited for ──

    def enter(self, call: object, stop: Callable[[], object]) -> None:
        self.refuse_if_closing()
        self._calls[call] = stop

    def leave(self, call: object) -> None:
        self._calls.pop(call, None)
        self._left.set()

    # ── streams: they are told to end ──

    def open_stream(self, stream: object, end: Callable[[float], object]) -> None:
        """`end` is told how many seconds the calls get."""
        self.refuse_if_closing()
        if len(self._streams) >= self._max_streams:
            text = f"The server holds {self._max_streams} streams open; try again later, or raise max_streams"
            raise Busy(text, http_status=503)
        self._streams[stream] = end

    def close_stream(self, stream: object) -> None:
        self._streams.pop(stream, None)
        self._left.set()

    async def close(self, timeout: float) -> None:
        """End the streams now, wait for the calls, stop those that take longer."""
        self.closing = True
        for end in tuple(self._streams.values()):
            end(timeout)
        if not await self._emptied(self._calls, timeout):
            for stop in tuple(self._calls.values()):
                stop()
            await self._emptied(self._calls, SETTLE_SECONDS)
        await self._emptied(self._streams, SETTLE_SECONDS)

    async def _emptied(self, which: Mapping[Any, object], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while which:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            return False
        return True
