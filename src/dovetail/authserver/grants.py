"""What users have allowed: a consent comes in; codes and refresh tokens go out, each good for one use.

They carry sealed what they stand for. The store only counts: each use of a grant has the next number, the code 0, the
first refresh token 1, and so on. Whoever comes with a number that was used already has a copy, and nobody knows which
of the two is the thief: so the grant ends, with every token that was made of it.
"""

import base64
import hashlib
import hmac
import logging
import re
import secrets

import msgspec

from dovetail.authserver.marks import Marks
from dovetail.authserver.refusals import OAuthRefusal
from dovetail.authserver.seals import Sealed, Seals

CODE_SECONDS = 60.0
GRACE_SECONDS = 10.0  # in which a refresh token may be used again: clients that call in parallel do that
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

    async def redeem_code(self, text: str, client: str, redirect_uri: str | None, verifier: str) -> Grant:
        """Raises OAuthRefusal."""
        code = await self._seals.open(text, AuthorizationCode)
        if code is None or code.grant.client != client:
            raise _bad_grant("The code is not valid, or not any more")
        if redirect_uri is not None and not hmac.compare_digest(_digest(redirect_uri), code.redirect):
            raise _bad_grant("The redirect_uri is not the one that the code was sent to")
        if not proves_challenge(verifier, code.challenge):
            raise _bad_grant("The code_verifier does not fit the code_challenge")
        await self.use(code.grant, 0)
        return code.grant

    async def refresh_token(self, grant: Grant, number: int) -> str:
        return await self._seals.seal(RefreshToken(until=grant.ends, grant=grant, number=number))

    async def read_refresh_token(self, text: str, client: str) -> RefreshToken:
        """It is not used yet. Raises OAuthRefusal."""
        token = await self._seals.open(text, RefreshToken)
        if token is None or token.grant.client != client:
            raise _bad_grant("The refresh token is not valid, or not any more")
        return token

    async def revoke(self, id: str) -> None:
        await self._marks.put("revoked", id, b"1", self._kept)

    async def is_revoked(self, id: str) -> bool:
        return await self._marks.holds("revoked", id)

    async def use(self, grant: Grant, number: int) -> None:
        """Raises OAuthRefusal unless this is the first time."""
        if await self.is_revoked(grant.id):
            raise _bad_grant("This was taken back")
        if number and not await self._marks.claim("renewed", f"{grant.id} {number}", GRACE_SECONDS):
            return  # several calls of one program met the end of a token together, and each asks for the next
        await self._marks.forget("renewed", f"{grant.id} {number - 1}")  # its successor was used, so that time is over
        if await self._marks.count("used", grant.id, self._kept) != number + 1:
            await self.revoke(grant.id)
            log.warning(
                "program %.100r used a code or a refresh token twice; all of that grant is revoked", grant.client
            )
            raise _bad_grant("This was used before, so everything that was made of it is revoked")


def proves_challenge(verifier: str, challenge: str) -> bool:
    """S256, the only method here."""
    if not _VERIFIER.fullmatch(verifier):
        return False
    digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
    return hmac.compare_digest(digest, challenge.encode())


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _bad_grant(description: str) -> OAuthRefusal:
    return OAuthRefusal("invalid_grant", description)
