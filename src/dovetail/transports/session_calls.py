"""The calls of sessions that are under way at this worker: found by session and id, wherever a client asks for them.

One that takes its time is known to the other workers too: there the client may cancel it, or end its session. A call
that is over sooner need not be, and none is where nobody shares the state.
"""

import asyncio
import hashlib
import logging
import time
from contextlib import suppress
from math import inf

from dovetail.engine.sessions import topic
from dovetail.errors import INVALID_REQUEST, ProtocolError
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.methods import RequestId
from dovetail.state.base import Listener, StateBackend, StoreTrouble
from dovetail.transports.http_calls import HttpCall

NOTE_SECONDS = 30.0  # that a cancellation is kept for a call that the others do not know yet
MAX_OVER = 10_000  # calls that have ended here, for as long as their cancellations may be late

log = logging.getLogger("dovetail.http")


class SessionCalls:
    """Those of all sessions; an id alone says nothing."""

    def __init__(self, state: StateBackend) -> None:
        self._state = state
        self.here: dict[tuple[str, RequestId], HttpCall] = {}
        self._known: dict[str, set[HttpCall]] = {}  # to other workers, by the topics of their sessions
        self._over: dict[int, float] = {}  # when a call has ended here; by a digest, for ids may be long
        self._listener: Listener | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._state.shared:
            self._listener = self._state.listen([])
            self._task = asyncio.get_running_loop().create_task(self._listen(self._listener))

    async def stop(self) -> None:
        if self._listener is not None and self._task is not None:
            self._listener.close()
            await asyncio.wait([self._task])

    # ── here ──

    def refuse_twice(self, session: str, id: RequestId) -> None:
        if (session, id) in self.here:
            raise ProtocolError("A request with this id is still in flight", code=INVALID_REQUEST)

    def add(self, session: str, call: HttpCall) -> None:
        self.here[session, call.id] = call
        call.takes_time = self._make_known

    def remove(self, call: HttpCall) -> None:
        assert call.session is not None
        session = call.session.record.id
        self.here.pop((session, call.id), None)
        if self._listener is None:
            return
        self._keep_in_mind(hash((session, call.id)))
        calls = self._known.get(topic(session))
        if calls is not None:
            calls.discard(call)
            if not calls:
                del self._known[topic(session)]
                self._listener.remove(topic(session))

    async def cancel(self, session: str, id: RequestId) -> None:
        """The client wants no answer to it; `initialize` can't be cancelled."""
        call = self.here.get((session, id))
        if call is None:
            await self._cancel_elsewhere(session, id)
        elif call.request.method != "initialize":
            log.debug("the client cancelled the request %r", call.request.id)
            call.cancel()

    def end(self, session: str) -> None:
        """The session has ended, and others have heard of that."""
        for (owner, _), call in tuple(self.here.items()):
            if owner == session:
                call.cancel()

    # ── elsewhere ──

    def _keep_in_mind(self, call: int) -> None:
        now = time.monotonic()
        self._over.pop(call, None)  # the oldest come first
        self._over[call] = now
        while len(self._over) > MAX_OVER or next(iter(self._over.values())) < now - NOTE_SECONDS:
            del self._over[next(iter(self._over))]

    def _is_over(self, session: str, id: RequestId) -> bool:
        """Whether it ended here, a moment ago: then a note would only stop the next call that has its id."""
        return self._over.get(hash((session, id)), -inf) > time.monotonic() - NOTE_SECONDS

    async def _cancel_elsewhere(self, session: str, id: RequestId) -> None:
        if self._listener is not None and not self._is_over(session, id):
            await self._state.put(_note(session, id), b"", ttl=NOTE_SECONDS)
            await self._state.publish(topic(session))

    async def _make_known(self, call: HttpCall) -> None:
        """It takes its time: from now on it can be reached. Its session may have ended just before it was admitted."""
        if call.session is None or not call.open:
            return
        if self._listener is not None:
            name = topic(call.session.record.id)
            self._known.setdefault(name, set()).add(call)
            self._listener.add(name)
        with suppress(StoreTrouble):
            await self._look_after({call})

    async def _listen(self, listener: Listener) -> None:
        while told := await listener.wait():
            for name in told:
                try:
                    await self._look_after(self._known.get(name, set()))
                except Exception as failure:  # whatever it is: a call that goes on for too long does no harm
                    log.debug("calls can't be looked after now: %s", failure)

    async def _look_after(self, calls: set[HttpCall]) -> None:
        for call in tuple(calls):
            assert call.session is not None
            if await call.session.has_ended() or await self._is_cancelled(call):
                call.cancel()

    async def _is_cancelled(self, call: HttpCall) -> bool:
        assert call.session is not None
        return await self._state.delete(_note(call.session.record.id, call.id))


def _note(session: str, id: RequestId) -> str:
    return f"cancel/{session}/{hashlib.sha256(encode(id)).hexdigest()[:32]}"
