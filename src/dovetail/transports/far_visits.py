"""Visits to URLs that clients were asked for at any worker; who hears that the user is done tells their sessions."""

import hashlib
import logging

from dovetail.engine.sessions import Sessions
from dovetail.state.base import NoRoom, StateBackend, StoreTrouble
from dovetail.transports.way_back import WayBack

KEEP = 200  # records of one id: that a session was asked with it, and that there is nothing to tell it any more
SECONDS = 86_400.0
BEGAN, ENDED = "+", "-"

log = logging.getLogger("dovetail.http")


class VisitLogs:
    """The sessions of each visit, in the state that all workers share."""

    def __init__(self, state: StateBackend, sessions: Sessions, way_back: WayBack) -> None:
        self._state = state
        self._sessions = sessions
        self._way_back = way_back

    async def began(self, session: str, id: str) -> None:
        await self._note(id, BEGAN + session)

    async def ended(self, session: str, id: str) -> None:
        """There is nothing to be told any more."""
        await self._note(id, ENDED + session)

    async def _note(self, id: str, record: str) -> None:
        try:
            await self._state.append(_log(id), record.encode(), keep=KEEP, ttl=SECONDS)
        except (NoRoom, StoreTrouble) as failure:
            log.warning("other workers do not know of an elicitation: %s", failure.message)

    async def over(self, id: str) -> set[str]:
        """The sessions that were asked and need not be told any more; perhaps another worker has done so."""
        return {session for session, waits in (await self._asked(id)).items() if not waits}

    async def completed(self, id: str, message: bytes, told: set[str]) -> bool:
        """Tells the sessions that were not told yet; False if there are none.

        One is written off when it has been told, and not before: if that fails, whoever tries again tells it.
        """
        waiting = {session for session, waits in (await self._asked(id)).items() if waits}
        for session in sorted(waiting & told):
            await self.ended(session, id)
        for session in sorted(waiting - told):
            held = await self._sessions.hold(session)
            if held is not None:
                await self._way_back.tell(held, message)
            await self.ended(session, id)
        return not waiting <= told

    async def _asked(self, id: str) -> dict[str, bool]:
        """Each session that was asked, and whether it waits to be told: what was noted last counts."""
        page = await self._state.read(_log(id), 0, KEEP)
        notes = (record.data.decode("utf-8", "replace") for record in page.records)
        return {note[1:]: note[:1] == BEGAN for note in notes}


def _log(id: str) -> str:
    return f"visits/{hashlib.sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()}"
