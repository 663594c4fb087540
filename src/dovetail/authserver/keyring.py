"""The keys of an authorization server: made once by whoever comes first, and the same for all workers.

With a secret (DOVETAIL_SECRET) they are sealed by it in the store; without one they stand there as they are, and
whoever can read the store can sign tokens.
"""

import logging
import os
import time
from collections.abc import Callable

import msgspec

from dovetail.auth.confidential import Confidential
from dovetail.auth.signing import SigningKey
from dovetail.authserver.marks import Marks
from dovetail.engine.keys import Secrets
from dovetail.engine.request_state import BadSeal, Sealer
from dovetail.errors import ProtocolError
from dovetail.state.base import MAX_TTL, StateBackend

LOOK_SECONDS = 60.0  # between two looks at what all use
log = logging.getLogger("dovetail.authserver")


class _Kept(Confidential, frozen=True):
    jwk: dict[str, str]
    seal: bytes


class Keyring:
    """One key that signs access tokens, and one that seals codes, refresh tokens and forms."""

    def __init__(self, marks: Marks, secrets: Secrets, clock: Callable[[], float] = time.monotonic) -> None:
        self._marks = marks
        self._outer = Sealer(secrets) if secrets else None
        self._clock = clock
        self._looked = float("-inf")
        self._looked_in: StateBackend | None = None
        self._kept: bytes | None = None  # as it stands in the store
        self._signing: SigningKey | None = None
        self._sealer: Sealer | None = None

    async def signing(self) -> SigningKey:
        await self._look()
        assert self._signing is not None
        return self._signing

    async def sealer(self) -> Sealer:
        await self._look()
        assert self._sealer is not None
        return self._sealer

    async def _look(self) -> None:
        """A store that has forgotten the keys gets them back from those who know them."""
        now = self._clock()
        store = self._marks.store()
        if self._signing is not None and self._looked_in is store and now - self._looked < LOOK_SECONDS:
            return
        found = await self._marks.get("keys", "")
        if found is None:
            found = await self._marks.put_first("keys", "", self._kept or self._made(), MAX_TTL)
        if found != self._kept:
            self._adopt(found)
        self._looked, self._looked_in = now, store

    def _made(self) -> bytes:
        raw = msgspec.msgpack.encode(_Kept(SigningKey.new().jwk, os.urandom(32)))
        return raw if self._outer is None else self._outer.seal(raw).encode()

    def _adopt(self, found: bytes) -> None:
        try:
            raw = found if self._outer is None else self._outer.open(found.decode())
            kept = msgspec.msgpack.decode(raw, type=_Kept)
            self._signing = SigningKey(kept.jwk)
        except (BadSeal, ValueError):
            log.error("the state store holds keys that can't be read; is DOVETAIL_SECRET the same on all workers?")
            raise ProtocolError("The authorization server can't use its keys now", http_status=503) from None
        self._sealer = Sealer([kept.seal])
        self._kept = found
