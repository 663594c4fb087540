"""The secrets of a server: an option, the environment, or chance; of a fleet without either, the first worker's."""

import asyncio
import logging
import os
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
