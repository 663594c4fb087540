"""Requests of a server's that are not answered yet: what works on an answer comes in, and the answer goes out.

Up to 2025-11-25. Each is worked on in a task of its own; one that the server takes back is stopped and not answered.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dovetail.client.patience import Patience
from dovetail.errors import ConnectionLost, ProtocolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.methods import RequestId

Answer = Callable[[], Awaitable[Mapping[str, Any]]]  # what a question is answered with, once it is called

MAX_OPEN = 100

log = logging.getLogger("dovetail.client")


class OpenQuestions:
    """All of one conversation."""

    def __init__(self, write: Callable[[bytes], None], patience: Patience) -> None:
        self._write = write
        self._patience = patience
        self._tasks: dict[RequestId, asyncio.Task[None]] = {}
        self._withdrawn: set[asyncio.Task[None]] = set()  # that have not ended yet

    def take(self, id: RequestId, answer: Answer) -> None:
        """Begin to answer. Raises ProtocolError if the server asks too much at once."""
        if id in self._tasks:
            log.warning("the server asks %r again, which is being answered", id)
            return
        if len(self._tasks) + len(self._withdrawn) >= MAX_OPEN:
            raise ProtocolError(f"Too many questions at once: {MAX_OPEN} are being answered")
        self._tasks[id] = task = asyncio.get_running_loop().create_task(self._work(id, answer))
        task.add_done_callback(lambda task: self._forget(id, task))

    async def _work(self, id: RequestId, answer: Answer) -> None:
        with self._patience.standing_still():
            message = await _answered(id, answer)
        if self._tasks.get(id) is not asyncio.current_task():
            return  # it was withdrawn, and the handler did not care
        del self._tasks[id]
        try:
            self._write(message)
        except ConnectionLost as lost:
            log.info("%r is not answered: %s", id, lost)

    def _forget(self, id: RequestId, task: "asyncio.Task[None]") -> None:
        self._withdrawn.discard(task)
        if self._tasks.get(id) is task:
            del self._tasks[id]

    def withdraw(self, id: RequestId) -> None:
        """The server does not want to know any more."""
        task = self._tasks.pop(id, None)
        if task is not None and task is not asyncio.current_task():  # a handler may close its client
            self._withdrawn.add(task)
            task.cancel()

    def withdraw_all(self) -> None:
        for id in tuple(self._tasks):
            self.withdraw(id)

    async def close(self) -> None:
        """Stop them all, and wait until they have."""
        mine = {*self._tasks.values(), *self._withdrawn} - {asyncio.current_task()}
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)


async def _answered(id: RequestId, answer: Answer) -> bytes:
    """The message that answers, whatever becomes of the work; only who stops it stops this."""
    try:
        return jsonrpc.result(id, encode(await answer()))
    except ProtocolError as refusal:
        return jsonrpc.error(id, refusal)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        log.warning("the handler of a question was cancelled")
    except Exception:
        log.exception("the handler of a question failed")
    return jsonrpc.error(id, ProtocolError("The client failed to answer"))
