"""Sends the progress of one request: reports come in from any of its functions, notifications go out, thinned."""

import asyncio
import time
from collections.abc import Awaitable

from msgspec import Struct

from dovetail.engine.exchange import Exchange
from dovetail.protocol import jsonrpc
from dovetail.protocol.methods import RequestId
from dovetail.protocol.progress import ProgressGate, Update


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
