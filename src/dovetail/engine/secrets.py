"""The secret of all workers that share a state: the first worker claims it, the others take it from there."""

import asyncio
import logging
from typing import Protocol

from dovetail.engine.keys import SHORTEST, VARIABLE, Secrets
from dovetail.errors import SetupError
from dovetail.state.base import MAX_TTL, StateBackend

KEY = "server-secret"
LOOK_SECONDS = 10.0  # between two looks whether the store still has it
MAX_KNOWN = 8  # secrets; each loss of the store's records may bring one more

log = logging.getLogger("dovetail")


class Sealing(Protocol):
    """The engine, as the owner of its secrets."""

    secrets: Secrets


async def shared_secrets(state: StateBackend, own: Secrets) -> Secrets:
    """Our own if the store has none yet; else the one that it has."""
    while not await state.claim(KEY, own[0], MAX_TTL):
        entry = await state.get(KEY)
        if entry is not None and len(entry.value) < SHORTEST:
            raise SetupError(f"The shared state holds something else in the place of its secret; set {VARIABLE}")
        if entry is not None:
            return Secrets([entry.value])
    return own


async def keep_sharing(state: StateBackend, user: Sealing, seconds: float = LOOK_SECONDS) -> None:
    """A store that forgot the secret gets it back; if another worker was quicker, both are good from then on."""
    while True:
        await asyncio.sleep(seconds)
        try:
            current = await shared_secrets(state, user.secrets)
        except Exception as failure:
            log.debug("the secret of all workers can't be looked at: %s", failure)
        else:
            if current[0] != user.secrets[0]:
                user.secrets = Secrets(list(dict.fromkeys([*current, *user.secrets]))[:MAX_KNOWN])
