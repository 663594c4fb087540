"""Looking after a connection while somebody waits at it: keep-alives go out, and it is noticed if the client leaves."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import chain, repeat
from typing import Protocol

from dovetail.transports.asgi import Receive

AGAIN_SECONDS = 0.05  # some hosts' middleware gives the body again and again, however often it is asked
PATIENCE = 0.05  # seconds; what takes longer is looked after

log = logging.getLogger("dovetail")


class Attended(Protocol):
    """What can be looked after."""

    async def outlived(self) -> None:
        """It takes its time; called once."""

    async def beat(self) -> None:
        """It still does; called every so often."""

    def client_left(self) -> None: ...


class Attendant:
    """Looks after something that takes its time. What is quick never meets it."""

    __slots__ = ("_attended", "_keep_alive", "_over", "_receive", "_timer")

    def __init__(self, attended: Attended, receive: Receive, keep_alive: float) -> None:
        self._attended = attended
        self._receive = receive
        self._keep_alive = keep_alive
        self._timer: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[None] | None = None

    def begin(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._attend_from_now)

    def meant(self, cancelled: asyncio.CancelledError) -> BaseException:
        return cancelled

    def end(self) -> None:
        # Not by cancelling: it may be in the middle of sending something.
        if self._timer is not None:
            self._timer.cancel()
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _attend_from_now(self) -> None:
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        loop.create_task(self._attend(self._over)).add_done_callback(_report)

    async def _attend(self, over: asyncio.Future[None]) -> None:
        attended = self._attended
        await attended.outlived()
        await look_after(self._receive, over, self._keep_alive, attended.beat, attended.client_left)


async def look_after(
    receive: Receive,
    over: asyncio.Future[None],
    keep_alive: float,
    beat: Callable[[], Awaitable[None]],
    left: Callable[[], None],
) -> None:
    """Until it is over or the client has left: `beat` every so often, and say that it has left."""
    gone = asyncio.get_running_loop().create_task(until_gone(receive))
    try:
        while not over.done():
            done, _ = await asyncio.wait({gone, over}, timeout=keep_alive, return_when=asyncio.FIRST_COMPLETED)
            if gone in done and not over.done():
                left()
                return
            if not done:
                await beat()
    finally:
        gone.cancel()


async def until_gone(receive: Receive) -> None:
    """Returns when the client has left; an ASGI server that fails to say so counts as well."""
    try:
        for pause in chain([0.0], repeat(AGAIN_SECONDS)):  # once a body may come that nobody has read
            if (await receive())["type"] == "http.disconnect":
                return
            await asyncio.sleep(pause)
    except Exception:
        log.debug("waiting for the client to leave failed", exc_info=True)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (failure := task.exception()) is not None:
        log.error("looking after a call failed", exc_info=failure)
