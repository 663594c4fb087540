"""What goes on when its connection ends: the work for a POST comes in, the HTTP request waits for it while it can."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any

from dovetail.transports.http_calls import Posted

log = logging.getLogger("dovetail")


def lasting(posted: Posted, work: Coroutine[Any, Any, object]) -> Awaitable[object]:
    """All of the work, also if its connection ends. In our own HTTP the task of a request goes on then."""
    return work if posted.answer.response.whole is not None else _apart(posted, work)


async def _apart(posted: Posted, work: Coroutine[Any, Any, object]) -> None:
    """In a task of its own: the host may end that of the HTTP request when the client leaves."""
    loop = asyncio.get_running_loop()
    over = posted.answer.response.over = loop.create_future()
    loop.create_task(work).add_done_callback(partial(_pass_on, over))
    try:
        await over
    except asyncio.CancelledError:
        posted.client_left()
        raise


def _pass_on(over: asyncio.Future[None], task: asyncio.Task[object]) -> None:
    """What became of a call, to the HTTP request if that still waits."""
    failure = None if task.cancelled() else task.exception()
    if over.done():
        if failure is not None:
            log.error("a call failed after its request had ended", exc_info=failure)
    elif failure is not None:
        over.set_exception(failure)
    else:
        over.set_result(None)
