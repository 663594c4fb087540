"""This process among the workers that share a state: the lease that shows it lives, and those of the others.

A worker whose lease is gone is lost, with all that it left unfinished. A lease outlasts a store that is away for some
seconds; after an outage, in which nobody could renew one, a worker takes no other for lost until one lease has passed.
"""

import asyncio
import logging
import secrets
import time

from dovetail.state.base import StateBackend, StoreTrouble

LEASE_SECONDS = 12.0
BEAT_SECONDS = 2.0  # between two renewals

log = logging.getLogger("dovetail")


class Member:
    """One for each process and backend. Where no other process shares the state, there is nothing to show."""

    def __init__(self, state: StateBackend, *, lease: float = LEASE_SECONDS, beat: float = BEAT_SECONDS) -> None:
        self.id = secrets.token_hex(6)
        self._state = state
        self._lease = lease
        self._beat = beat
        self._renewing: asyncio.Task[None] | None = None
        self._outages = state.outages
        self._judges_from = time.monotonic()
        # Why no session could be opened when this worker last wrote to the store, so that no request has to find out.
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
                if not await self._state.touch(_key(self.id), self._lease):
                    await self._state.put(_key(self.id), b"", ttl=self._lease)
                await self._state.check()
                self.trouble = None
            except Exception as failure:  # of any kind: without a lease, others take this worker for lost
                self.trouble = failure
                log.debug("the lease of this worker can't be renewed, or the store takes no more: %s", failure)
            self._may_judge()
            await asyncio.sleep(self._beat)

    async def lives(self, worker: str) -> bool:
        """Whether a worker has a lease."""
        return worker == self.id or (self._state.shared and await self._state.get(_key(worker)) is not None)

    async def is_lost(self, worker: str) -> bool:
        """Whether a worker is gone for good: what it left unfinished may be answered for."""
        return not await self.lives(worker) and (not self._state.shared or self._may_judge())

    def _may_judge(self) -> bool:
        if self._outages != self._state.outages:
            self._outages = self._state.outages
            self._judges_from = time.monotonic() + self._lease
        return time.monotonic() >= self._judges_from


def _key(worker: str) -> str:
    return f"worker/{worker}"
