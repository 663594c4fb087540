"""The secrets of all who share a state: made by whoever comes first, replaced from time to time, known to everyone.

A new secret is known for a while before it seals anything, and workers look often enough to have it by then. Old ones
open what they have sealed for as long as a client may carry it.
"""

import time
from collections.abc import Callable

from dovetail.engine.keys import SHORTEST, VARIABLE, Secrets, random_secrets
from dovetail.errors import SetupError
from dovetail.state.base import MAX_TTL, Conflict, StateBackend
from dovetail.state.records import Codec

KEY = "secret"
ROTATE_SECONDS = 30 * 86_400.0
LOOK_SECONDS = 3600.0  # between two looks at what is agreed
UNUSED_SECONDS = 2 * LOOK_SECONDS  # that a new one is known before it seals
KEPT = 14  # secrets: a year and a month of them; nothing that is sealed is good for longer than a year
_ATTEMPTS = 10

Dated = list[tuple[float, bytes]]  # the newest first
_codec: Codec[Dated] = Codec(list[tuple[float, bytes]], "secret")


async def agree_on_secrets(state: StateBackend, own: Secrets, clock: Callable[[], float] = time.time) -> Secrets:
    """What all use, the one that seals first: those that are there, or our own."""
    for _ in range(_ATTEMPTS):
        entry = await state.get(KEY)
        now = clock()
        dated = _first(own, now) if entry is None else _checked(_codec.decode(entry.value))
        if entry is not None and now - dated[0][0] < ROTATE_SECONDS:
            return _in_order(dated, now)
        if entry is not None:
            dated = [(now, random_secrets()[0]), *dated][:KEPT]
        try:
            await state.put(KEY, _codec.encode(dated), ttl=MAX_TTL, if_version=0 if entry is None else entry.version)
            return _in_order(dated, now)
        except Conflict:  # somebody else was quicker
            continue
    raise SetupError(f"The shared state keeps no secret for all workers; set {VARIABLE}")


def _first(own: Secrets, now: float) -> Dated:
    """Nobody has any, or the store has forgotten them: what we know is good for all, and seals as before."""
    return [(now - UNUSED_SECONDS, own[0]), *((0.0, each) for each in own[1:])]


def _in_order(dated: Dated, now: float) -> Secrets:
    sealing = next((secret for made, secret in dated if now - made >= UNUSED_SECONDS), dated[-1][1])
    return Secrets([sealing, *(secret for _, secret in dated if secret != sealing)])


def _checked(found: Dated | None) -> Dated:
    if not found or any(len(secret) < SHORTEST for _, secret in found):
        raise SetupError(f"The shared state holds something else in the place of its secrets; set {VARIABLE}")
    return found
