"""Progress of a request: notifications of what its functions report, in rising order and thinned.

The first ones are sent at once, then at most fifty a second; of those in between the latest is kept until its time
comes or the call ends.
"""

import asyncio
import math

from msgspec import Struct

from dovetail.engine.request_context import RequestContext
from dovetail.protocol import jsonrpc
from dovetail.protocol.methods import RequestId

AT_ONCE = 20
SPACING = 1 / 50  # seconds between two updates, once the first have been sent
LARGEST_INTEGER = 2**63 - 1  # what every JSON reader can be trusted with


class Update(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The params of one `notifications/progress`."""

    progress_token: RequestId
    progress: int | float
    total: int | float | None = None
    message: str | None = None


class ProgressSender:
    """One for each request that has a progress token: its progress must rise, whichever function reports it."""

    def __init__(self, context: RequestContext, token: RequestId, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._token = token
        self._loop = loop
        self._highest = -math.inf
        self._sent = 0
        self._sent_at = -math.inf
        self._kept: Update | None = None  # the latest report, until it is sent
        self._timer: asyncio.TimerHandle | None = None
        self._late: asyncio.Task[None] | None = None
        context.finish.append(self._finish)

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Send it now or later. A report that does not rise above all earlier ones is dropped."""
        progress = _number("progress", progress)
        if total is not None:
            total = _number("total", total)
        if message is not None and not isinstance(message, str):
            raise ValueError(f"message must be a string or None, not {type(message).__name__}")
        if progress <= self._highest:
            return
        self._highest = progress
        told = message if self._context.request.revision.progress_message else None
        self._kept = Update(self._token, progress, total, told)
        due = self._due()
        if due <= 0:
            await self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(due, self._on_timer)

    def _due(self) -> float:
        """In how many seconds the next one may be sent."""
        return 0.0 if self._sent < AT_ONCE else self._sent_at + SPACING - self._loop.time()

    def _on_timer(self) -> None:
        """The report is kept until its task runs, so that the end of the call can't overtake it."""
        self._timer = None
        self._late = self._loop.create_task(self._flush())

    async def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        update, self._kept = self._kept, None
        if update is not None:
            self._sent += 1
            self._sent_at = self._loop.time()
            await self._context.emit(jsonrpc.notification("notifications/progress", jsonrpc.encode(update)))

    async def _finish(self) -> None:
        await self._flush()
        self._highest = math.inf  # the call is over: nothing is sent any more


def _number(name: str, value: object) -> int | float:
    """A plain number that JSON can hold."""
    if type(value) is int and -LARGEST_INTEGER <= value <= LARGEST_INTEGER:  # nearly always
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, not {type(value).__name__}")
    if isinstance(value, int):
        if abs(value) > LARGEST_INTEGER:
            raise ValueError(f"{name} must fit into 64 bits")
        return int(value)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, not {value:g}")
    return float(value)
