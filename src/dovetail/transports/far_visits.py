"""Visits to URLs that clients were asked for at any worker; who hears that the user is done tells their sessions."""

import hashlib
import logging

from dovetail.engine.sessions import Sessions
from dovetail.state.base import NoRoom, StateBackend, StoreTrouble
from dovetail.transports.way_back import WayBack

KEEP = 100  # sessions that were asked with one id
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

    async def completed(self, id: str, message: bytes, told: set[str]) -> bool:
        """Tells the sessions that were not told yet; False if there are none."""
        page = await self._state.read(_log(id), 0, KEEP)
        await self._state.drop(_log(id))
        sessions: set[str] = set()
        for record in page.records:
            noted = record.data.decode("utf-8", "replace")
            (sessions.add if noted[:1] == BEGAN else sessions.discard)(noted[1:])
        sessions -= told
        for session in sorted(sessions):
            held = await self._sessions.hold(session)
            if held is not None:
                await self._way_back.tell(held, message)
        return bool(sessions)


def _log(id: str) -> str:
    return f"visits/{hashlib.sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()}"
