"""Principal, and what verifiers have in common: the `Verifier` protocol, scopes, claims, records with secrets."""

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import inf
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from dovetail.protocol.scopes import checked_scopes, read_scopes

MAX_TOKEN = 16 * 1024  # characters

_URL = re.compile(r"(https?)://([^/?#@\\\s]+)(\S*)", re.IGNORECASE)


class Confidential(msgspec.Struct, frozen=True):
    """Shows only its `harmless` fields, to `repr` as to `rich`, which does not ask `repr`."""

    harmless: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self.harmless]


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A user, a program that acts for itself, or a program that acts for a user. What tools see as `ctx.principal`.

    A program that acts for itself has a `client` and no `subject`.
    """

    subject: str | None = None  # the user
    client: str | None = None  # the program, as the authorization server knows it
    issuer: str | None = None  # who says so
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = {}  # all that the token, or the introspection of it, says
    expires_at: float | None = None  # in seconds since 1970; None if it is good until it is taken back
    key: str = ""  # what belongs to this one is marked with: the same for every token of the same user and program

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "scopes", checked_scopes(self.scopes, "Principal"))
        if not self.key:
            parts = msgspec.json.encode((self.issuer, self.subject, self.client))
            msgspec.structs.force_setattr(self, "key", hashlib.sha256(parts).hexdigest()[:32])

    @property
    def name(self) -> str:
        """For people who read a log."""
        return self.subject or self.client or "somebody"

    def may(self, *scopes: str) -> bool:
        """Whether it has all of these scopes."""
        return self.scopes.issuperset(scopes)

    def with_scopes(self, scopes: frozenset[str]) -> "Principal":
        return self if scopes == self.scopes else msgspec.structs.replace(self, scopes=scopes)


class VerifierUnavailable(Exception):
    """It is not known now whether a token is good: what has to be asked does not answer. Becomes a 503."""


class Verifier(Protocol):
    """None means "not one of mine, or not good any more"; the caller learns no more than that.

    It may have `issuer`, which clients are sent to, `resource`, the URL that its tokens are made for, and
    `believed_seconds`, after which it wants to be asked again. `binds_keys = False`: none of its tokens needs DPoP. One
    that has something to remember may have `for_app(state)`: each app that starts calls it with its state backend, and
    then asks the verifier that it gives, which may have an async `leave()` for the end of the app.
    """

    async def verify(self, token: str) -> Principal | None: ...


VerifyFunction = Callable[[str], Awaitable[Principal | None] | Principal | None]


class Found(NamedTuple):
    """The principal of a token, and for how many seconds that need not be asked again."""

    principal: Principal
    believed_seconds: float


class Hierarchy:
    """Which scopes hold others: `{"notes:write": ["notes:read"]}`, over as many steps as there are."""

    def __init__(self, holds: Mapping[str, Iterable[str]] | None = None) -> None:
        direct = {scope: checked_scopes(held, "Auth: hierarchy") for scope, held in (holds or {}).items()}
        checked_scopes(list(direct), "Auth: hierarchy")
        self._all = {scope: _reached(scope, direct) for scope in direct}

    def expand(self, granted: frozenset[str]) -> frozenset[str]:
        """The granted scopes and all that they hold."""
        return granted.union(*(self._all[scope] for scope in granted if scope in self._all)) if self._all else granted


def _reached(scope: str, direct: Mapping[str, frozenset[str]]) -> frozenset[str]:
    reached: set[str] = set()
    ahead = [scope]
    while ahead:
        for held in direct.get(ahead.pop(), frozenset()) - reached:
            reached.add(held)
            ahead.append(held)
    return frozenset(reached)


def in_time(claims: Mapping[str, Any], now: float, leeway: float, *, needs_end: bool) -> bool:
    """Whether the token has begun, has not ended, and was not made in the future."""
    moments = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
    if needs_end and "exp" not in moments:
        return False
    if not all(type(moment) in (int, float) for moment in moments.values()):
        return False
    begun = max(moments.get("nbf", -inf), moments.get("iat", -inf)) <= now + leeway
    return bool(begun and now < moments.get("exp", inf) + leeway)


def meant_for(claims: Mapping[str, Any], audiences: frozenset[str]) -> bool:
    """Whether the token was issued for one of these, which are `comparable_url`."""
    aud = claims.get("aud")
    named = [aud] if isinstance(aud, str) else aud if isinstance(aud, list) else []
    return any(isinstance(each, str) and comparable_url(each) in audiences for each in named[:100])


def comparable_url(audience: str) -> str:
    """The same text for URLs that mean the same: scheme and host in small letters, no slash at the end."""
    url = _URL.fullmatch(audience)
    if url is None:
        return audience
    scheme, host, rest = url.groups()
    return f"{scheme.lower()}://{host.lower()}{rest if '?' in rest or '#' in rest else rest.removesuffix('/')}"


def principal_of(claims: dict[str, Any], issuer: str | None, scope_claim: str | None = None) -> Principal | None:
    """Whom the claims name. None if they name no user and no program, or can't be read."""
    subject = claims.get("sub")
    client = next((claims[name] for name in ("client_id", "azp") if claims.get(name) is not None), None)
    if not all(name is None or (isinstance(name, str) and 0 < len(name) <= 1024) for name in (subject, client)):
        return None
    if subject is None and client is None:
        return None
    scopes = next(
        (claims[name] for name in ((scope_claim,) if scope_claim else ("scope", "scp")) if name in claims), None
    )
    return Principal(
        subject=None if subject == client else subject,  # a program that acts for itself is no user
        client=client,
        issuer=issuer,
        scopes=read_scopes(scopes),
        claims=claims,
        expires_at=claims.get("exp"),
    )
