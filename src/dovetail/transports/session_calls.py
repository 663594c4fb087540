"""Calls that take their time, and what other workers hear of them: that the client has cancelled one, or has ended its
session. A call that is over sooner never gets here, and neither does any where nobody shares the state.
"""

import asyncio
import hashlib
import logging
from contextlib import suppress

from dovetail.engine.sessions import Sessions, topic
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.methods import RequestId
from dovetail.state.base import Listener, StateBackend, StoreTrouble
from dovetail.transports.http_calls import HttpCall

NOTE_SECONDS = 30.0  # that a cancellation is kept for a call that has not got here yet

log = logging.getLogger("dovetail.http")


class FarCalls:
    """Those of this worker."""

    def __init__(self, state: StateBackend, sessions: Sessions) -> None:
        self._state = state
        self._sessions = sessions
        self._calls: dict[str, set[HttpCall]] = {}  # by the topics of their sessions
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

    async def enter(self, call: HttpCall) -> None:
        """It takes its time: from now on it can be reached."""
        if self._listener is None or call.session is None:
            return
        name = topic(call.session.record.id)
        self._calls.setdefault(name, set()).add(call)
        self._listener.add(name)
        if not call.open:  # it ended in this moment
            self.leave(call)
            return
        with suppress(StoreTrouble):
            if await self._is_cancelled(call):
                call.cancel()

    def leave(self, call: HttpCall) -> None:
        if self._listener is None or call.session is None:
            return
        name = topic(call.session.record.id)
        calls = self._calls.get(name, set())
        calls.discard(call)
        if not calls and self._calls.pop(name, None) is not None:
            self._listener.remove(name)

    async def cancel(self, session: str, id: RequestId) -> None:
        """The client wants no answer to a call that is not here."""
        if self._listener is not None:
            await self._state.put(_note(session, id), b"", ttl=NOTE_SECONDS)
            await self._state.publish(topic(session))

    async def _listen(self, listener: Listener) -> None:
        while told := await listener.wait():
            for name in told:
                try:
                    await self._look_after(self._calls.get(name, set()))
                except Exception as failure:  # the store is in trouble; a call that goes on too long does no harm
                    log.debug("calls could not be looked after: %s", failure)

    async def _look_after(self, calls: set[HttpCall]) -> None:
        for call in tuple(calls):
            assert call.session is not None
            if not await call.session.is_there() or await self._is_cancelled(call):
                call.cancel()

    async def _is_cancelled(self, call: HttpCall) -> bool:
        assert call.session is not None
        return call.request.method != "initialize" and await self._state.delete(_note(call.session.record.id, call.id))


def _note(session: str, id: RequestId) -> str:
    return f"cancel/{session}/{hashlib.sha256(encode(id)).hexdigest()[:32]}"
