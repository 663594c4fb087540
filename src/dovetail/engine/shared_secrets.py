"""The secrets of all who share a state: made by whoever comes first, replaced from time to time, known to everyone.

A new secret is known for a while before it seals anything, and workers look often enough to have it by then. Old ones
open what they have sealed for as long as a client may carry it. A store that has forgotten them gets them back from
those who know them, whatever others have put there meanwhile.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from dovetail.engine.keys import SHORTEST, VARIABLE, Secrets, random_secrets
from dovetail.errors import SetupError
from dovetail.state.base import MAX_TTL, Codec, Conflict, Listener, StateBackend

KEY = "secret"  # and the topic
ROTATE_SECONDS = 30 * 86_400.0
LOOK_SECONDS = 3600.0  # between two looks at what is agreed
AGAIN_SECONDS = 1.0  # after one that failed
UNUSED_SECONDS = 2 * LOOK_SECONDS  # that a new one is known before it seals
# Nothing that is sealed is good for longer than a year; and what took a secret's place may have been made elsewhere.
OPEN_SECONDS = 366 * 86_400.0 + ROTATE_SECONDS + UNUSED_SECONDS
KEPT = 32  # secrets at most: those of a year and a month, and what wiped stores have brought
_ATTEMPTS = 10

Dated = list[tuple[float, bytes]]  # the newest first
_codec: Codec[Dated] = Codec(list[tuple[float, bytes]], "secret")
log = logging.getLogger("dovetail")


class Agreed(Secrets):
    """Secrets that others know too, and may have used."""

    made: Sequence[float]  # when each of them was

    @classmethod
    def of(cls, dated: Dated) -> "Agreed":
        agreed = cls(secret for _, secret in dated)
        agreed.made = [made for made, _ in dated]
        return agreed


class Sealing(Protocol):
    """Whoever uses the secrets."""

    secrets: Secrets


async def agree_on_secrets(state: StateBackend, own: Secrets, clock: Callable[[], float] = time.time) -> Agreed:
    """What all use, the one that seals first: those that are there, with our own if they may have been used."""
    for _ in range(_ATTEMPTS):
        entry, now = await state.get(KEY), clock()
        found = [] if entry is None else _checked(_codec.decode(entry.value))
        dated = _merged(found, _brought(own, bool(found), now), now)
        if set(dated) <= set(found):  # old ones alone are no reason to write: for others it is not time yet
            return _in_order(found, now)
        try:
            await state.put(KEY, _codec.encode(dated), ttl=MAX_TTL, if_version=0 if entry is None else entry.version)
        except Conflict:  # somebody else was quicker
            continue
        await state.publish(KEY)
        return _in_order(dated, now)
    raise SetupError(f"The shared state keeps no secret for all workers; set {VARIABLE}")


async def go_on_agreeing(state: StateBackend, listener: Listener, user: Sealing) -> None:
    """Until the listener is closed. It hears of the topic, and so of every outage too."""
    pause = LOOK_SECONDS
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await listener.wait()
        if listener.closed:
            return
        try:
            user.secrets = await agree_on_secrets(state, user.secrets)
            pause = LOOK_SECONDS
        except Exception as failure:
            if pause != AGAIN_SECONDS:
                log.warning("the secrets of all workers can't be looked at: %s", failure)
            pause = AGAIN_SECONDS


def _brought(own: Secrets, is_late: bool, now: float) -> Dated:
    """What we add to those that are there: nothing, if nobody has ever used ours."""
    if isinstance(own, Agreed):
        return list(zip(own.made, own, strict=True))
    return [] if is_late else [(now, each) for each in own]


def _merged(found: Dated, brought: Dated, now: float) -> Dated:
    """Each once, without those that are of no use any more, and with a new one if it is time."""
    known = {secret for _, secret in found}
    dated = sorted([*found, *(each for each in brought if each[1] not in known)], key=_made, reverse=True)
    if now - dated[0][0] >= ROTATE_SECONDS:
        dated.insert(0, (now, random_secrets()[0]))
    return _still_open(dated, now)[:KEPT]


def _still_open(dated: Dated, now: float) -> Dated:
    """A secret has sealed until the next one was known for long enough."""
    followers = (float("inf"), *(made for made, _ in dated))
    return [each for each, replaced in zip(dated, followers, strict=False) if now - replaced < OPEN_SECONDS]


def _made(dated: tuple[float, bytes]) -> float:
    return dated[0]


def _in_order(dated: Dated, now: float) -> Agreed:
    sealing = next((each for each in dated if now - each[0] >= UNUSED_SECONDS), dated[-1])
    return Agreed.of([sealing, *(each for each in dated if each != sealing)])


def _checked(found: Dated | None) -> Dated:
    if not found or any(len(secret) < SHORTEST for _, secret in found):
        raise SetupError(f"The shared state holds something else in the place of its secrets; set {VARIABLE}")
    return found
