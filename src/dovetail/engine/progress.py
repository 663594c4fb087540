"""Throttled `notifications/progress` of one request, in rising order.

The first ones are sent at once, then at most fifty a second. Of reports in between only the latest is sent, when the
interval is over or the call ends.
"""

import asyncio
import math

from msgspec import Struct

from dovetail.engine.request_context import RequestContext
from dovetail.protocol import jsonrpc
from dovetail.protocol.methods import RequestId

UNTHROTTLED_REPORTS = 20  # the first ones
MIN_INTERVAL = 1 / 50  # seconds between two later notifications
MAX_INT64 = 2**63 - 1  # larger integers are not safe in every JSON parser


class ProgressParams(Struct, frozen=True, omit_defaults=True, rename="camel"):
    progress_token: RequestId
    progress: int | float
    total: int | float | None = None
    message: str | None = None


class ProgressSender:
    """The progress of one request, which must rise, also if several functions report it."""

    def __init__(self, context: RequestContext, token: RequestId, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._token = token
        self._loop = loop
        self._highest = -math.inf
        self._sent = 0
        self._sent_at = -math.inf
        self._pending: ProgressParams | None = None  # the latest report, until it is sent
        self._timer: asyncio.TimerHandle | None = None
        self._flush_task: asyncio.Task[None] | None = None
        context.before_response.append(self._finish)

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Send a report now or later. One that does not rise above all earlier ones is dropped."""
        progress = _number("progress", progress)
        if total is not None:
            total = _number("total", total)
        if message is not None and not isinstance(message, str):
            raise ValueError(f"message must be a string or None, not {type(message).__name__}")
        if progress <= self._highest:
            return
        self._highest = progress
        if not self._context.request.revision.progress_message:
            message = None
        self._pending = ProgressParams(self._token, progress, total, message)
        delay = 0.0 if self._sent < UNTHROTTLED_REPORTS else self._sent_at + MIN_INTERVAL - self._loop.time()
        if delay <= 0:
            await self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        """Start a task for the pending report: if the call ends before it runs, `_finish` sends the report."""
        self._timer = None
        self._flush_task = self._loop.create_task(self._flush())

    async def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        params, self._pending = self._pending, None
        if params is not None:
            self._sent += 1
            self._sent_at = self._loop.time()
            await self._context.emit(jsonrpc.notification("notifications/progress", jsonrpc.encode(params)))

    async def _finish(self) -> None:
        await self._flush()
        self._highest = math.inf  # later reports are dropped


def _number(name: str, value: object) -> int | float:
    """A plain number that JSON can hold."""
    if type(value) is int and -MAX_INT64 <= value <= MAX_INT64:  # nearly always
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, not {type(value).__name__}")
    if isinstance(value, int):
        if abs(value) > MAX_INT64:
            raise ValueError(f"{name} must fit into 64 bits")
        return int(value)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, not {value:g}")
    return float(value)
