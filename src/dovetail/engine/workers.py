"""Workers that share a state: the secret of their server, and the lease of each worker.

The random secret of the first worker is used by all. A worker without a lease is lost, with its unfinished calls. After
an outage, in which no lease could be renewed, a worker declares no other lost until one lease has passed.
"""

import asyncio
import contextvars
import logging
import os
import time
from typing import TYPE_CHECKING

import msgspec

from dovetail import state as lazy_state
from dovetail.engine.options import MIN_SECRET_BYTES, SECRET_VARIABLE, Secrets
from dovetail.errors import SetupError

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine
    from dovetail.state.base import StateBackend

SECRET_KEY = "server-secret"  # in a shared state
LEASE_KEY = "worker/"  # and the id of the worker

log = logging.getLogger("dovetail")


async def shared_secrets(state: "StateBackend", own: Secrets) -> Secrets:
    """This worker's secrets if the store has none yet, else the secret in the store."""
    while not await state.claim(SECRET_KEY, own[0], lazy_state.base.MAX_TTL):
        entry = await state.get(SECRET_KEY)
        if entry is not None and len(entry.value) < MIN_SECRET_BYTES:
            raise SetupError(f"The shared state holds something else in the place of its secret; set {SECRET_VARIABLE}")
        if entry is not None:
            return Secrets([entry.value])
    return own


async def keep_secrets_shared(state: "StateBackend", engine: "Engine", interval: float = 10.0) -> None:
    """Write the secret again if the store has lost it. If another worker did so first, both secrets are good."""
    while True:
        await asyncio.sleep(interval)
        try:
            current = await shared_secrets(state, engine.secrets)
        except Exception as failure:
            log.debug("the secret of all workers can't be checked: %s", failure)
        else:
            if current[0] != engine.secrets[0]:  # each time the store loses its records there may be one more
                engine.secrets = Secrets(list(dict.fromkeys([*current, *engine.secrets]))[:8])


class LeaseTimings(msgspec.Struct, frozen=True):
    """Seconds, for the lease of a worker and for those of its slots."""

    lease: float = 12.0
    renew_every: float = 2.0


class WorkerLease:
    """The lease of one worker, for each process and backend. Not written if no other process shares the state."""

    def __init__(self, state: "StateBackend", timings: LeaseTimings | None = None) -> None:
        self.id = os.urandom(6).hex()
        self._state = state
        self._timings = timings or LeaseTimings()
        self._renewing: asyncio.Task[None] | None = None
        self._outages = state.outages
        self._declares_from = time.monotonic()
        # Why the last write to the store failed. No session could be opened then, and no request has to find that out.
        self.store_error: Exception | None = lazy_state.base.StoreUnavailable() if state.shared else None

    def start(self) -> None:
        if self._state.shared and self._renewing is None:
            context = contextvars.Context()  # not that of the call that has needed it first
            self._renewing = asyncio.get_running_loop().create_task(self._renew(), context=context)

    async def stop(self) -> None:
        if self._renewing is None:
            return
        self._renewing.cancel()
        await asyncio.wait([self._renewing])
        self._renewing = None
        try:
            await self._state.delete(LEASE_KEY + self.id)
        except Exception as failure:
            log.debug("the lease of this worker stays until it expires: %s", failure)

    async def _renew(self) -> None:
        while True:
            try:
                await self.renew()
            except Exception as failure:  # of any kind: without a lease, other workers take this one for lost
                self.store_error = failure
                log.debug("the lease of this worker can't be renewed, or the store takes no more: %s", failure)
            self._may_declare_lost()
            await asyncio.sleep(self._timings.renew_every)

    async def renew(self) -> None:
        """Write the lease. Raises StoreUnavailable or StoreFull."""
        if not await self._state.touch(LEASE_KEY + self.id, self._timings.lease):
            await self._state.put(LEASE_KEY + self.id, b"", ttl=self._timings.lease)
        await self._state.check()
        self.store_error = None

    async def is_alive(self, worker: str) -> bool:
        """Whether a worker has a lease."""
        return worker == self.id or (self._state.shared and await self._state.get(LEASE_KEY + worker) is not None)

    async def is_lost(self, worker: str) -> bool:
        """Whether a worker is lost: another worker may end its streams with an error."""
        return not await self.is_alive(worker) and (not self._state.shared or self._may_declare_lost())

    def _may_declare_lost(self) -> bool:
        if self._outages != self._state.outages:
            self._outages = self._state.outages
            self._declares_from = time.monotonic() + self._timings.lease
        return time.monotonic() >= self._declares_from
