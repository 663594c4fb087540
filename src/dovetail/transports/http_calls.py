"""One request being served over HTTP: how it is awaited, looked after, cancelled and answered."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import chain, repeat
from typing import Any

from dovetail.engine.core import Engine
from dovetail.engine.dispatch import handle
from dovetail.engine.exchange import Exchange
from dovetail.engine.limits import beside
from dovetail.engine.sessions import HeldSession
from dovetail.errors import INTERNAL_ERROR, ProtocolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.inbound import Request
from dovetail.transports.answers import Answer
from dovetail.transports.asgi import Message, Receive

AGAIN_SECONDS = 0.05  # some hosts' middleware gives the body again and again, however often it is asked
PATIENCE = 0.05  # seconds; a call that takes longer is looked after

log = logging.getLogger("dovetail")

Finish = Callable[[bytes, int], Awaitable[None]]


class HttpCall:
    """A request in flight. Once it is closed, nothing more is sent for it."""

    __slots__ = (
        "_batched",
        "_keep_alive",
        "_session",
        "_verdict",
        "answer",
        "exchange",
        "failed",
        "finish",
        "id",
        "left",
        "open",
        "receive",
        "task",
    )

    def __init__(
        self,
        request: Request,
        answer: Answer,
        receive: Receive,
        session: HeldSession | None,
        *,
        keep_alive: float,
        batched: bool = False,
    ) -> None:
        """`batched`: it shares its answer with others, and whoever has them all sends it."""
        self.id = request.id  # whatever a middleware makes of the request
        self.answer = answer
        self.receive = receive
        self.finish: Finish = answer.finish  # what happens to the answer
        self.open = True
        self.failed = False  # its answer is an error
        self.left = False  # the client went away, and that means that it wants no answer
        self.task: asyncio.Task[Any] | None = None
        self.exchange = Exchange(request, self.emit, session)
        if answer.can_close:
            self.exchange.close_stream = answer.close_stream
        self._keep_alive = keep_alive
        self._batched = batched
        self._session = session
        self._verdict: ProtocolError | None = None  # why the server has stopped it

    @property
    def request(self) -> Request:
        return self.exchange.request

    async def emit(self, message: bytes) -> None:
        if self.open:
            await self.answer.emit(message)

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        if self.open:
            self.open = False
            self.exchange.cancelled()
            if self.task is not None:
                self.task.cancel()

    def stop(self) -> None:
        """The server can't go on with it; the client is told."""
        if self.open:
            self._verdict = ProtocolError("The server is shutting down and has stopped this call", http_status=503)
            self.cancel()

    def client_left(self) -> None:
        self.answer.response.abandon()
        if self.request.revision.disconnect_cancels:
            self.left = True
            self.cancel()

    async def beat(self) -> None:
        """It takes its time: neither its connection nor its session is idle."""
        if self._session is not None:
            await self._session.use()
        await self.answer.keep_alive()
        if self.answer.response.ended:  # it takes nothing any more, or has come back by another connection
            self.client_left()

    # ── serving ──

    async def serve(self, engine: Engine) -> bytes | None:
        """In its own task or in that of the HTTP request. Gives the answer that was sent; None if there was none."""
        self.task = task = asyncio.current_task()
        assert task is not None
        earlier = task.cancelling()
        outcome: tuple[bytes, int] | None = None
        try:
            if self.open:  # the batch that it is in may have cancelled it already
                outcome = await self._outcome(engine)
        except asyncio.CancelledError:
            if self.open:  # somebody else wants this task to end, and knows why
                self.open = False
                self.answer.response.abandon()
                raise
        if not self.open:
            if task.cancelling() > earlier and task.uncancel() > earlier:  # somebody else as well
                raise asyncio.CancelledError
            outcome = None if self._verdict is None else self._refusal(self._verdict)
        self.open = False
        if not self._batched:
            await self._send(outcome)
        return None if outcome is None else outcome[0]

    async def _send(self, outcome: tuple[bytes, int] | None) -> None:
        if outcome is not None:
            await self.finish(*outcome)
        elif not self.left:
            await self.answer.finish_silently()

    def _refusal(self, failure: ProtocolError) -> tuple[bytes, int]:
        self.failed = True
        status = 200 if self.request.revision.handshake else failure.http_status
        return jsonrpc.error(self.id, failure), status

    async def _outcome(self, engine: Engine) -> tuple[bytes, int]:
        request = self.request
        try:
            body = await beside(Attendant(self, self._keep_alive), handle(engine, self.exchange))
            return jsonrpc.result(self.id, body), 200
        except ProtocolError as failure:
            return self._refusal(failure)
        except asyncio.CancelledError:
            raise
        except BaseException:  # whatever it is: while the client waits, it gets an answer
            if not self.open or not self._is_running():
                raise
            log.exception("%s could not be answered properly", request.method)
            return self._refusal(ProtocolError("Internal error", code=INTERNAL_ERROR))

    def _is_running(self) -> bool:
        """Whether this is asked from its own task; what is left when a loop closes is torn down by others."""
        try:
            return asyncio.current_task() is self.task
        except RuntimeError:  # no loop is running
            return False


class Attendant:
    """Looks after a call that takes its time: opens the stream it can be resumed on, keeps the connection alive,
    and notices that the client has left. A call that is quick never meets it.
    """

    __slots__ = ("_call", "_keep_alive", "_over", "_timer")

    def __init__(self, call: HttpCall, keep_alive: float) -> None:
        self._call = call
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
        call = self._call
        await call.answer.outlived()
        await look_after(call.receive, over, self._keep_alive, call.beat, call.client_left)


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


async def never() -> Message:
    """For calls whose connection is somebody else's to watch."""
    forever: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await forever


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (failure := task.exception()) is not None:
        log.error("looking after a call failed", exc_info=failure)
