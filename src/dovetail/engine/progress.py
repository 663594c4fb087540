"""Progress of a request: notifications of what its functions report, in rising order and thinned.

The first ones are sent at once, then at most fifty a second; of those in between the latest is kept until its time
comes or the call ends.
"""

import asyncio
import math
import time
from collections.abc import Awaitable

from msgspec import Struct

from dovetail.engine.exchange import Exchange
from dovetail.protocol import jsonrpc
from dovetail.protocol.methods import RequestId

AT_ONCE = 20
SPACING = 1 / 50  # seconds between two updates, once the first have gone out
LARGEST_INTEGER = 2**63 - 1  # what every JSON reader can be trusted with


class Update(Struct, frozen=True):
    """One `notifications/progress` on its way to the client."""

    progress: int | float
    total: int | float | None = None
    message: str | None = None


class ProgressGate:
    """The progress of one call. Not for several threads at once.

    The caller sends what `report` and `flush` return. `due` tells when a timer should call `flush`; the end of the call
    does so too, whatever the rate, and then calls `close`.
    """

    __slots__ = ("_closed", "_highest", "_kept", "_sent", "_sent_at")

    def __init__(self) -> None:
        self._highest = -math.inf
        self._sent = 0
        self._sent_at = -math.inf
        self._kept: Update | None = None
        self._closed = False

    def report(self, progress: float, total: float | None, message: str | None, now: float) -> Update | None:
        """Return what to send now. A report that does not rise above all earlier ones is dropped."""
        progress = _number("progress", progress)
        if total is not None:
            total = _number("total", total)
        if message is not None and not isinstance(message, str):
            raise ValueError(f"message must be a string or None, not {type(message).__name__}")
        if self._closed or progress <= self._highest:
            return None
        self._highest = progress
        self._kept = Update(progress, total, message)
        return self.flush(now) if self._sent < AT_ONCE or self._may_send(now) else None

    def flush(self, now: float) -> Update | None:
        """Return the latest report that has not gone out yet, however soon after the one before."""
        update = self._kept
        if update is not None:
            self._kept = None
            self._sent += 1
            self._sent_at = now
        return update

    def due(self, now: float) -> float | None:
        """Return in how many seconds the kept report may go out; None if there is none."""
        if self._kept is None:
            return None
        if self._may_send(now):
            return 0.0
        return min(SPACING, SPACING - (now - self._sent_at))  # never longer, even if the clock was set back

    def close(self) -> None:
        """The call is over: nothing goes out any more."""
        self._closed = True
        self._kept = None

    def _may_send(self, now: float) -> bool:
        return self._sent < AT_ONCE or now - self._sent_at >= SPACING


def _number(name: str, value: object) -> int | float:
    """Return a plain number that JSON can hold."""
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


class _Params(Struct, omit_defaults=True, rename="camel"):
    progress_token: RequestId
    progress: int | float
    total: int | float | None = None
    message: str | None = None


class ProgressSender:
    """One for each request that has a progress token: what a token tells must rise, whoever reports it."""

    def __init__(self, exchange: Exchange, token: RequestId) -> None:
        self._exchange = exchange
        self._token = token
        self._gate = ProgressGate()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._late: asyncio.Task[None] | None = None
        exchange.finish.append(self._finish)

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        now = time.monotonic()
        update = self._gate.report(progress, total, message, now)
        if update is not None:
            await self._send(update)
        elif self._timer is None and (due := self._gate.due(now)) is not None:
            self._timer = self._loop.call_later(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        due = self._gate.due(time.monotonic())
        if due:  # something else went out meanwhile
            self._timer = self._loop.call_later(due, self._on_timer)
        elif due is not None:
            self._late = self._loop.create_task(self._flush())

    async def _flush(self) -> None:
        """The report stays in the gate until this runs, so that the end of the call can't overtake it."""
        if (update := self._gate.flush(time.monotonic())) is not None:
            await self._send(update)

    async def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._flush()
        self._gate.close()

    def _send(self, update: Update) -> Awaitable[None]:
        exchange = self._exchange
        message = update.message if exchange.request.revision.progress_message else None
        params = _Params(self._token, update.progress, update.total, message)
        return exchange.emit(jsonrpc.notification("notifications/progress", jsonrpc.encode(params)))
