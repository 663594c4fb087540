"""This process among those that share a state: it shows that it lives, and finds out whether others do.

Each worker keeps one key alive, its lease. What a worker has left unfinished is lost when its lease has gone, and stays
gone for a moment in which the store was not out of reach: a worker whose lease only expired, because the store stood
still, has renewed it by then. Whoever misses a lease first leaves a note of that, so that the moment does not begin
anew if the one who waits is lost in its turn.
"""

import asyncio
import logging
import secrets

from dovetail.state.base import StateBackend, StoreTrouble

LEASE_SECONDS = 4.0
BEAT_SECONDS = 1.0  # between two renewals
CERTAIN_SECONDS = 2.0  # for which a lease must have been gone
NOTE_SECONDS = 60.0  # for which it is known since when one is missed

log = logging.getLogger("dovetail")


class Member:
    """One for each process and backend. Where nobody shares the state, there is nothing to show."""

    def __init__(self, state: StateBackend) -> None:
        self.id = secrets.token_hex(6)
        self._state = state
        self._renewing: asyncio.Task[None] | None = None
        # Why no session could be opened, when this worker last tried to write; nobody else has to, however many ask.
        self.trouble: Exception | None = StoreTrouble() if state.shared else None

    def start(self) -> None:
        if self._state.shared and self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    async def stop(self) -> None:
        if self._renewing is None:
            return
        self._renewing.cancel()
        await asyncio.wait([self._renewing])
        self._renewing = None
        try:
            await self._state.delete(_key(self.id))
        except Exception as failure:
            log.debug("the lease of this worker stays until it expires: %s", failure)

    async def _renew(self) -> None:
        while True:
            try:
                if not await self._state.touch(_key(self.id), LEASE_SECONDS):
                    await self._state.put(_key(self.id), b"", ttl=LEASE_SECONDS)
                    await self._state.delete(_note(self.id))
                await self._state.check()
                self.trouble = None
            except Exception as failure:  # whatever it is: without a lease, others take this worker for dead
                self.trouble = failure
                log.debug("the lease of this worker can't be renewed, or the store takes no more: %s", failure)
            await asyncio.sleep(BEAT_SECONDS)

    async def lives(self, worker: str) -> bool:
        return worker == self.id or (self._state.shared and await self._state.get(_key(worker)) is not None)


class Vigil:
    """Watches over one worker that somebody waits for."""

    def __init__(self, own: Member, watched: str, state: StateBackend) -> None:
        self._own = own
        self._watched = watched
        self._state = state
        self._outages = state.outages

    async def is_lost(self) -> bool:
        """To be asked again and again, at least every second."""
        if await self._own.lives(self._watched):
            return False
        return not self._state.shared or await self._missed_for() >= CERTAIN_SECONDS

    async def _missed_for(self) -> float:
        """Seconds since somebody has noticed it; in an outage nobody could renew a lease, so it counts from its end."""
        note = _note(self._watched)
        if self._outages != self._state.outages:
            self._outages = self._state.outages
            await self._state.delete(note)
        await self._state.claim(note, b"", NOTE_SECONDS)
        remaining = await self._state.remaining(note)
        return 0.0 if remaining is None else NOTE_SECONDS - remaining


def _key(worker: str) -> str:
    return f"worker/{worker}"


def _note(worker: str) -> str:
    return f"missed/{worker}"
