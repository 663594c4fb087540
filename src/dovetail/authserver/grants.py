"""What users have allowed: a consent comes in; codes and refresh tokens go out, each good for one use.

They carry sealed what they stand for. The store holds one small record of each grant: which use is next, the code being
0, the first refresh token 1, and so on. Whoever comes with a number that was used already has a copy, and nobody knows
which of the two is the thief: so the grant ends, with every token that was made of it. Every change is one write of
that record: it was done or it was not, and a program that can't know asks again within the time of grace.
"""

import hashlib
import hmac
import logging
import re
import secrets
from typing import NoReturn

import msgspec

from dovetail.authserver.marks import Marks
from dovetail.authserver.refusals import OAuthRefusal
from dovetail.authserver.seals import Sealed, Seals
from dovetail.protocol.pagination import encode_base64url
from dovetail.state.base import StoreTrouble

CODE_SECONDS = 60.0
GRACE_SECONDS = 10.0  # in which a refresh token may be used again: clients that call in parallel do that
TRIES = 5  # to write, while others write too; each of those has brought the grant further
MARGIN = 300.0  # seconds that a mark outlives what it is about: clocks differ

_VERIFIER = re.compile(r"[A-Za-z0-9\-._~]{43,128}")  # RFC 7636, 4.1

log = logging.getLogger("dovetail.authserver")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a user allowed a program. `ends`: no refresh goes beyond it."""

    id: str
    client: str
    user: str
    mark: str  # of the user's password then: with another password it can't be renewed
    scopes: list[str]
    ends: float

    @staticmethod
    def new_id() -> str:
        return secrets.token_urlsafe(16)


class AuthorizationCode(Sealed, frozen=True, kw_only=True, tag="code"):
    """Bound to where it was sent, and to who can show the verifier."""

    grant: Grant
    redirect: bytes  # a digest
    challenge: str


class RefreshToken(Sealed, frozen=True, kw_only=True, tag="refresh"):
    """The `number`th use of a grant."""

    grant: Grant
    number: int


class GrantRecord(msgspec.Struct, frozen=True, array_like=True):
    """How far a grant is. One that is revoked is so for good: nothing is ever written over it."""

    next: int = 0
    taken_at: float = 0.0  # when the number before `next` was first used
    is_revoked: bool = False

    def may_repeat(self, number: int, now: float) -> bool:
        """Several calls of a program met the end of a token together, or it did not hear the answer. Never a code."""
        return 0 < number == self.next - 1 and abs(now - self.taken_at) <= GRACE_SECONDS


_records = msgspec.msgpack.Decoder(GrantRecord)


class Grants:
    """Makes codes and refresh tokens, and takes them back."""

    def __init__(self, seals: Seals, marks: Marks, refresh_seconds: float, access_seconds: float) -> None:
        self._seals = seals
        self._marks = marks
        self._kept = max(refresh_seconds, access_seconds) + CODE_SECONDS + MARGIN

    async def code(self, grant: Grant, redirect_uri: str, challenge: str) -> str:
        until = self._seals.now() + CODE_SECONDS
        redirect = _digest(redirect_uri)
        return await self._seals.seal(
            AuthorizationCode(until=until, grant=grant, redirect=redirect, challenge=challenge)
        )

    async def read_code(self, text: str, client: str, redirect_uri: str | None, verifier: str) -> Grant:
        """It is not used yet: that is the use 0. Raises OAuthRefusal."""
        code = await self._seals.open(text, AuthorizationCode)
        if code is None or code.grant.client != client:
            raise _bad_grant("The code is not valid, or not any more")
        if redirect_uri is not None and not hmac.compare_digest(_digest(redirect_uri), code.redirect):
            raise _bad_grant("The redirect_uri is not the one that the code was sent to")
        if not proves_challenge(verifier, code.challenge):
            raise _bad_grant("The code_verifier does not fit the code_challenge")
        return code.grant

    async def refresh_token(self, grant: Grant, number: int) -> str:
        return await self._seals.seal(RefreshToken(until=grant.ends, grant=grant, number=number))

    async def read_refresh_token(self, text: str, client: str) -> RefreshToken:
        """It is not used yet. Raises OAuthRefusal."""
        token = await self._seals.open(text, RefreshToken)
        if token is None or token.grant.client != client:
            raise _bad_grant("The refresh token is not valid, or not any more")
        return token

    async def revoke(self, id: str, until: float, *, is_of_one_token: bool = False) -> None:
        """Whatever else is being written: a use of what it was before finds another version. It is known as long as
        anything may live that was made of it: `until`, which may be later than what is made today, or if it is of more
        than one token, as long as those. A program that acts for itself has one.
        """
        kept = max(until - self._seals.now() + MARGIN, 0.0 if is_of_one_token else self._kept)
        await self._marks.put("grant", id, msgspec.msgpack.encode(GrantRecord(is_revoked=True)), kept)

    async def is_revoked(self, id: str) -> bool:
        return (await self._record(id))[0].is_revoked

    async def use(self, grant: Grant, number: int) -> None:
        """Raises OAuthRefusal unless it is the turn of this number, or was just now."""
        for _ in range(TRIES):
            record, version = await self._record(grant.id)
            now = self._seals.now()
            if record.is_revoked:
                raise _bad_grant("This was taken back")
            if number != record.next:
                if record.may_repeat(number, now):
                    return
                await self._end_for_reuse(grant)
            taken = msgspec.msgpack.encode(GrantRecord(number + 1, now))
            if await self._marks.replace("grant", grant.id, taken, self._kept, version):
                return
        raise StoreTrouble

    async def _record(self, id: str) -> tuple[GrantRecord, int]:
        """With its version; a new one, with version 0, if there is none."""
        entry = await self._marks.entry("grant", id)
        return (GrantRecord(), 0) if entry is None else (_records.decode(entry.value), entry.version)

    async def _end_for_reuse(self, grant: Grant) -> NoReturn:
        """Also if the store has forgotten how far the grant is: it may have been revoked."""
        await self.revoke(grant.id, grant.ends)
        log.warning("program %.100r used a code or a refresh token twice; all of that grant is revoked", grant.client)
        raise _bad_grant("This was used before, so everything that was made of it is revoked")


def proves_challenge(verifier: str, challenge: str) -> bool:
    """S256, the only method here."""
    if not _VERIFIER.fullmatch(verifier):
        return False
    digest = encode_base64url(hashlib.sha256(verifier.encode()).digest())
    return hmac.compare_digest(digest.encode(), challenge.encode())


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _bad_grant(description: str) -> OAuthRefusal:
    return OAuthRefusal("invalid_grant", description)
