"""`Principal`, the `Verifier` protocol, and helpers of verifiers for scopes, claims and secrets."""

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
    """A record with secrets: `repr` and `rich` show only its `public_fields`."""

    public_fields: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self.public_fields]


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The caller behind a token, for tools `ctx.principal`: a user, a program that acts for a user, or a program that
    acts for itself, which has a `client` and no `subject`.
    """

    subject: str | None = None  # the user
    client: str | None = None  # the program, by its OAuth client id
    issuer: str | None = None
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = {}  # all claims of the token, or of its introspection
    expires_at: float | None = None  # in seconds since 1970; None if it is valid until it is revoked
    key: str = ""  # identifies the caller: the same for every token of the same user and program

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "scopes", checked_scopes(self.scopes, "Principal"))
        if not self.key:
            parts = msgspec.json.encode((self.issuer, self.subject, self.client))
            msgspec.structs.force_setattr(self, "key", hashlib.sha256(parts).hexdigest()[:32])

    @property
    def name(self) -> str:
        """The name of the caller, for people who read a log."""
        return self.subject or self.client or "unknown"

    def may(self, *scopes: str) -> bool:
        """Whether the principal has all of these scopes."""
        return self.scopes.issuperset(scopes)

    def with_scopes(self, scopes: frozenset[str]) -> "Principal":
        return self if scopes == self.scopes else msgspec.structs.replace(self, scopes=scopes)


class VerifierUnavailable(Exception):
    """A token can't be verified now, because an issuer or a store does not respond. Becomes a 503."""


class Verifier(Protocol):
    """Verifies tokens; None for a token that is unknown or not valid any more.

    Optional attributes: `issuer`, which clients are sent to; `resource`, the URL that its tokens are made for;
    `cache_seconds`, after which a token is verified again; `binds_keys = False` if none of its tokens needs DPoP;
    `routes()`, ASGI apps by their public paths, which are served beside the endpoint. A verifier that stores something
    may have `for_app(state)`: each app that starts calls it with its state backend, and uses the verifier that it
    returns, whose async `close()`, if there is one, is called when the app ends.
    """

    async def verify(self, token: str) -> Principal | None: ...


VerifyFunction = Callable[[str], Awaitable[Principal | None] | Principal | None]


class Verification(NamedTuple):
    """The principal of a token, and for how many seconds a transport may cache it."""

    principal: Principal
    cache_seconds: float


class ScopeHierarchy:
    """Scopes that include others, also over several steps: `{"notes:write": ["notes:read"]}`."""

    def __init__(self, given: Mapping[str, Iterable[str]] | None = None) -> None:
        direct = {scope: checked_scopes(included, "Auth: hierarchy") for scope, included in (given or {}).items()}
        checked_scopes(list(direct), "Auth: hierarchy")
        self._included: dict[str, set[str]] = {}
        for scope in direct:
            found, pending = self._included.setdefault(scope, set()), [scope]
            while pending:
                new = direct.get(pending.pop(), frozenset()) - found
                found |= new
                pending += new

    def expand(self, granted: frozenset[str]) -> frozenset[str]:
        """The granted scopes and all that they include."""
        return granted.union(*(self._included.get(scope, ()) for scope in granted)) if self._included else granted


def is_in_lifetime(claims: Mapping[str, Any], now: float, leeway: float, *, requires_exp: bool) -> bool:
    """Check `exp`, `nbf` and `iat`."""
    times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
    if (requires_exp and "exp" not in times) or not all(type(each) in (int, float) for each in times.values()):
        return False
    has_begun = max(times.get("nbf", -inf), times.get("iat", -inf)) <= now + leeway
    return bool(has_begun and now < times.get("exp", inf) + leeway)


def has_audience(claims: Mapping[str, Any], audiences: frozenset[str]) -> bool:
    """Whether `aud` names one of these, each of which is a `normalized_url`."""
    aud = claims.get("aud")
    named = [aud] if isinstance(aud, str) else aud if isinstance(aud, list) else []
    return any(isinstance(each, str) and normalized_url(each) in audiences for each in named[:100])


def normalized_url(audience: str) -> str:
    """The URL with scheme and host in lower case and no slash at the end. Texts that are no URLs stay as they are."""
    url = _URL.fullmatch(audience)
    if url is None:
        return audience
    scheme, host, rest = url.groups()
    return f"{scheme.lower()}://{host.lower()}{rest if '?' in rest or '#' in rest else rest.removesuffix('/')}"


def to_principal(claims: dict[str, Any], issuer: str | None, scope_claim: str | None = None) -> Principal | None:
    """The principal in the claims; None if they name neither a user nor a program, or are of the wrong type."""
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
