"""What others carry for us (codes, refresh tokens, forms, cookies): a record goes in, sealed text comes out, and back.

Each record has a tag of its own, so none can be taken for another, and an end.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from dovetail.authserver.keyring import Keyring
from dovetail.engine.request_state import BadSeal

MAX_SEALED = 24 * 1024  # characters


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """A record that is good until a moment, in seconds since 1970."""

    until: float


S = TypeVar("S", bound=Sealed)


class Seals:
    """Seals records, and opens those that are of our making and not over."""

    def __init__(self, keyring: Keyring, clock: Callable[[], float] = time.time) -> None:
        self._keyring = keyring
        self.now = clock

    async def seal(self, record: Sealed) -> str:
        return (await self._keyring.sealer()).seal(msgspec.msgpack.encode(record))

    async def open(self, text: str | None, kind: type[S]) -> S | None:
        """None for what is no such record of ours, or is not good any more."""
        if not text or len(text) > MAX_SEALED or not text.isascii():
            return None
        sealer = await self._keyring.sealer()
        try:
            record = msgspec.msgpack.decode(sealer.open(text), type=kind)
        except (BadSeal, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return record if self.now() < record.until else None
