"""Workers that share a state: the secrets of their server, and the lease by which each shows that it is alive.

The secrets come from an option, the environment, or chance; without either, those of the first worker count for all.

A worker whose lease is gone is lost, with all that it left unfinished. A lease outlasts a store that is away for some
seconds; after an outage, in which no lease could be renewed, a worker judges no other until one lease has passed.
"""

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dovetail import state as lazy_state
from dovetail.errors import SetupError

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine
    from dovetail.state.base import StateBackend

VARIABLE = "DOVETAIL_SECRET"
SHORTEST = 16  # bytes
KEY = "server-secret"  # in a shared state
_GOOD_ONE = """python -c "import secrets; print(secrets.token_urlsafe(32))" makes a good one"""

log = logging.getLogger("dovetail")


class Secrets(tuple[bytes, ...]):
    """The first one seals and signs, all of them open. Wherever this is printed, they are not."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} hidden>"


def checked_secrets(given: object, where: str) -> Secrets:
    """One secret or a sequence of them; raises SetupError for what is no secret, or too short to be one."""
    several = given if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]
    secrets = Secrets(dict.fromkeys(_checked(each, where) for each in several))
    if not secrets:
        raise SetupError(f"{where} must be one secret at least; {_GOOD_ONE}")
    return secrets


def _checked(given: object, where: str) -> bytes:
    # No message shows what was given, and no other exception does: hence `from None`.
    try:
        secret = given.encode() if isinstance(given, str) else given
    except UnicodeEncodeError:
        raise SetupError(f"{where} is not text: it holds half a surrogate pair; {_GOOD_ONE}") from None
    if not isinstance(secret, bytes):
        raise SetupError(f"{where} must be a string or bytes, or a list of them, the first of which seals")
    if len(secret) < SHORTEST:
        raise SetupError(f"{where} must be at least {SHORTEST} bytes long (each of them); {_GOOD_ONE}")
    return secret


def secrets_in(environ: Mapping[str, str]) -> Secrets:
    """What stands in DOVETAIL_SECRET, divided by commas or blanks; none if it is not set, or empty."""
    text = environ.get(VARIABLE)
    return checked_secrets(text.replace(",", " ").split(), VARIABLE) if text else Secrets()


def random_secrets() -> Secrets:
    return Secrets([os.urandom(32)])


# ── of all workers that share a state ──


async def shared_secrets(state: "StateBackend", own: Secrets) -> Secrets:
    """Our own if the store has none yet; else the one that it has."""
    while not await state.claim(KEY, own[0], lazy_state.base.MAX_TTL):
        entry = await state.get(KEY)
        if entry is not None and len(entry.value) < SHORTEST:
            raise SetupError(f"The shared state holds something else in the place of its secret; set {VARIABLE}")
        if entry is not None:
            return Secrets([entry.value])
    return own


async def keep_sharing(state: "StateBackend", engine: "Engine", seconds: float = 10.0) -> None:
    """A store that forgot the secret gets it back; if another worker was quicker, both are good from then on."""
    while True:
        await asyncio.sleep(seconds)
        try:
            current = await shared_secrets(state, engine.secrets)
        except Exception as failure:
            log.debug("the secret of all workers can't be looked at: %s", failure)
        else:
            if current[0] != engine.secrets[0]:  # each loss of the store's records may bring one more
                engine.secrets = Secrets(list(dict.fromkeys([*current, *engine.secrets]))[:8])


# ── leases ──

LEASE_SECONDS = 12.0
BEAT_SECONDS = 2.0  # between two renewals


class WorkerLease:
    """One for each process and backend. Where no other process shares the state, there is nothing to show."""

    def __init__(self, state: "StateBackend", *, lease: float = LEASE_SECONDS, beat: float = BEAT_SECONDS) -> None:
        self.id = os.urandom(6).hex()
        self._state = state
        self._lease = lease
        self._beat = beat
        self._renewing: asyncio.Task[None] | None = None
        self._outages = state.outages
        self._judges_from = time.monotonic()
        # Why no session could be opened when this worker last wrote to the store, so that no request has to find out.
        self.trouble: Exception | None = lazy_state.base.StoreUnavailable() if state.shared else None

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
