"""Settings of `Server(auth=...)`: `Auth`, its metadata document (RFC 9728) and the `WWW-Authenticate` challenges."""

import copy
import inspect
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from dovetail.auth.dpop import ALGORITHMS, Claim, DpopCheck, DpopNonces, UsedProofs
from dovetail.auth.principal import MAX_TOKEN, Found, Hierarchy, Principal, Verifier, VerifyFunction, comparable_url
from dovetail.errors import SetupError, Unauthorized
from dovetail.protocol.scopes import checked_scopes

OFFLINE_ACCESS = "offline_access"  # belongs between a client and its authorization server, not here
DPOP_ERRORS = frozenset({"invalid_dpop_proof", "use_dpop_nonce"})  # which mean nothing to who sends no proofs
DpopPolicy = Literal["off", "optional", "required"]
SCHEMES: dict[DpopPolicy, tuple[str, ...]] = {"off": ("Bearer",), "optional": ("Bearer", "DPoP"), "required": ("DPoP",)}
_QUOTED = {ord('"'): '\\"', ord("\\"): "\\\\"}
_VISIBLE = re.compile(r"[!-~]{1,2000}")  # urlsplit passes over some other characters in silence
log = logging.getLogger("dovetail")
FIX = "give it a verifier, an async function that takes a token, a list of these, or Auth(...)"


class Auth:
    """Who may reach a server, and what it says of itself to those who may not yet.

    Auth(Jwt(issuer="https://login.example.com", audience="https://notes.example.com/mcp"), scopes=["notes:read"])
    """

    def __init__(
        self,
        verify: "Verifier | VerifyFunction | Sequence[Verifier | VerifyFunction]",
        *,
        authorization_servers: Sequence[str] = (),
        public_url: str | None = None,
        scopes: Sequence[str] = (),
        scopes_supported: Sequence[str] = (),
        hierarchy: Mapping[str, Iterable[str]] | None = None,
        dpop: DpopPolicy = "off",
        dpop_nonces: bool = False,
        documentation: str | None = None,
    ) -> None:
        """`authorization_servers`: where tokens come from; those that the verifiers name, if not given.

        `public_url`: of the MCP endpoint, as clients see it; else what a verifier says that tokens are made for, or as
        the request says. `scopes`: that every request needs. `scopes_supported`: what the metadata names; if not given
        and there are `scopes`, all that are needed anywhere. `hierarchy`: scopes that hold others, as {"notes:write":
        ["notes:read"]}. `dpop_nonces`: proofs must hold one of ours. `documentation`: a URL for people, for the
        metadata.
        """
        if not (given := verify if isinstance(verify, (list, tuple)) else [verify]):
            raise SetupError(f"Server: auth=[] lets nobody in; {FIX}")
        self.verifiers = tuple(as_verifier(each) for each in given)
        self.authorization_servers = tuple(
            checked_url(each, "Auth: authorization_servers")
            for each in dict.fromkeys(authorization_servers or _said_by(self.verifiers, "issuer"))
        )
        resources = _said_by(self.verifiers, "resource")
        self._resources = tuple(checked_url(each, "Auth: `resource` of a verifier") for each in resources)
        self._believed = tuple(_believed_seconds(each) for each in self.verifiers)
        self._for_this_app: tuple[Any, ...] = ()  # verifiers that were made for it
        known = next(iter(self._resources), None) if public_url is None else public_url
        self.public_url = None if known is None else self.endpoint_url(known, "Auth")
        self.scopes = checked_scopes(scopes, "Auth")
        self.scopes_supported = tuple(sorted(checked_scopes(scopes_supported, "Auth, scopes_supported")))
        if OFFLINE_ACCESS in self.scopes | set(self.scopes_supported):
            raise SetupError(f"Auth: {OFFLINE_ACCESS} is not this server's to ask for; leave it out")
        self.hierarchy = Hierarchy(hierarchy)
        if dpop not in get_args(DpopPolicy):
            raise SetupError(f'Auth: dpop={dpop!r} is not possible; it is "off", "optional" or "required"')
        if dpop == "required" and all(getattr(each, "binds_keys", True) is False for each in self.verifiers):
            name = type(self.verifiers[0]).__name__
            raise SetupError(f'Auth: dpop="required" lets nobody in: {name} knows no tokens that are bound to a key')
        if dpop_nonces and dpop == "off":
            raise SetupError('Auth: dpop_nonces=True does nothing without proofs; write dpop="optional" or "required"')
        self.dpop = dpop
        self._has_nonces = dpop_nonces
        self._used_proofs = UsedProofs()
        self.documentation = None if documentation is None else checked_url(documentation, "Auth: documentation")

    @classmethod
    def of(cls, given: Any) -> "Auth":
        return given if isinstance(given, Auth) else cls(given)

    def endpoint_url(self, given: Any, where: str) -> str:
        """A `public_url`, checked. Clients ask for tokens for it, so it has to be what those are made for."""
        url = checked_url(given, f"{where}: public_url")
        if "?" in url:
            raise SetupError(f"{where}: public_url={url!r} has a query; write the URL of the endpoint without one")
        for resource in self._resources:
            if comparable_url(resource) != comparable_url(url):
                raise SetupError(f"{where}: public_url={url!r}, but tokens are made for {resource!r}; both must be one")
        return url

    async def verify(self, token: str) -> Principal | None:
        """By the first verifier that knows the token; its scopes are complete."""
        found = await self.find(token)
        return None if found is None else found.principal

    async def find(self, token: str) -> Found | None:
        """The same, and for how long whoever has said so may be believed."""
        if len(token) > MAX_TOKEN:
            return None
        for verifier, seconds in zip(self.verifiers, self._believed, strict=True):
            principal = await verifier.verify(token)
            if principal is not None:
                return Found(principal.with_scopes(self.hierarchy.expand(principal.scopes)), seconds)
        return None

    async def for_app(self, state: object) -> "Auth":
        """The same for an app that remembers in `state`; verifiers that have `for_app` give one of their own for it."""
        one = copy.copy(self)
        try:
            one.verifiers = tuple(one._taken_in(each, state) for each in self.verifiers)
            one._believed = tuple(_believed_seconds(each) for each in one.verifiers)
        except BaseException:
            await one.leave()
            raise
        return one

    def _taken_in(self, verifier: Any, state: object) -> Verifier:
        if not callable(getattr(verifier, "for_app", None)):
            return verifier  # type: ignore[no-any-return]
        self._for_this_app += (verifier.for_app(state),)
        return as_verifier(self._for_this_app[-1])

    async def leave(self) -> None:
        """That app has ended; the verifiers that were made for it hear of it if they have `leave`."""
        leaving, self._for_this_app = self._for_this_app, ()
        for each in leaving:
            try:
                left = each.leave() if hasattr(each, "leave") else None
                if isinstance(left, Awaitable):
                    await left
            except Exception:
                log.exception("a verifier failed when its app ended")

    def dpop_check(self, claim: Claim | None, secrets: Callable[[], Sequence[bytes]]) -> DpopCheck | None:
        """Judges the proofs of keys; None if there are none here.

        `claim` is how a fleet knows which were used, `secrets` how it knows its nonces; None: this process is alone.
        """
        if self.dpop == "off":
            return None
        nonces = DpopNonces(secrets) if self._has_nonces else None
        return DpopCheck(claim or self._used_proofs.claim, required=self.dpop == "required", nonces=nonces)

    def challenges(self, refusal: Unauthorized, metadata_url: str | None) -> list[tuple[bytes, bytes]]:
        """The headers that go with a refusal; none where nothing that a client could ask for would help."""
        if refusal.http_status == 403 and refusal.error is None:
            return []
        url = metadata_url if self.authorization_servers else None
        return [
            (b"www-authenticate", challenge(refusal, scheme=scheme, metadata_url=url, scopes=self.scopes))
            for scheme in SCHEMES[self.dpop]
        ]

    def document(self, resource: str, *, name: str, scopes: Iterable[str]) -> bytes:
        """What RFC 9728 has a server say of itself. `scopes`: all that anything in it needs.

        They are told only to whom a challenge names a few to begin with: others would ask for all of them at once.
        """
        told = self.scopes_supported or (self.scopes and self.scopes.union(scopes))
        document = {
            "resource": resource,  # byte for byte what clients have: they compare it
            "authorization_servers": self.authorization_servers,
            "bearer_methods_supported": ("header",),
            "scopes_supported": told_scopes(told),
            "resource_name": name,
            "resource_documentation": self.documentation,
            "dpop_signing_alg_values_supported": None if self.dpop == "off" else ALGORITHMS,
            "dpop_bound_access_tokens_required": self.dpop == "required",
        }
        return msgspec.json.encode({name: value for name, value in document.items() if value})


class FunctionVerifier:
    """A user's own function, plain or async. Whoever it finds is nobody any more when `expires_at` is over."""

    def __init__(self, function: VerifyFunction) -> None:
        self._function = function

    async def verify(self, token: str) -> Principal | None:
        found = self._function(token)
        if isinstance(found, Awaitable):
            found = await found
        if found is not None and not isinstance(found, Principal):
            raise TypeError(f"auth: {self._function!r} must give a Principal or None, not {type(found).__name__}")
        is_over = found is not None and found.expires_at is not None and found.expires_at <= time.time()
        return None if is_over else found


def as_verifier(given: Any) -> Verifier:
    """Raises SetupError for what can't verify a token."""
    is_class = isinstance(given, type)
    if not is_class and inspect.iscoroutinefunction(getattr(given, "verify", None)):
        return given  # type: ignore[no-any-return]
    if callable(given) and not is_class:
        return FunctionVerifier(given)
    raise SetupError(f"Server: auth={given!r} is not possible; {FIX}")


def _believed_seconds(verifier: Verifier) -> float:
    seconds: object = getattr(verifier, "believed_seconds", math.inf)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds >= 0:  # nor is it NaN
        name = type(verifier).__name__
        raise SetupError(f"Auth: {name} has believed_seconds={seconds!r}, which is not possible; it is 0 or more")
    return seconds


def _said_by(verifiers: Iterable[Verifier], name: str) -> tuple[Any, ...]:
    """What those of them that have it call by this name, each once."""
    said = (getattr(each, name, None) for each in verifiers)
    return tuple(dict.fromkeys(each for each in said if each is not None))


def checked_url(given: Any, where: str) -> str:
    """As it is, byte for byte: clients compare it. Raises SetupError unless it can be one."""
    parts = urlsplit(given) if isinstance(given, str) and _VISIBLE.fullmatch(given) else None
    is_plain = parts is not None and "@" not in parts.netloc and not parts.fragment
    if parts is None or not is_plain or parts.scheme.lower() not in ("https", "http") or not parts.hostname:
        raise SetupError(f'{where} holds {given!r}; write a whole URL, such as "https://notes.example.com/mcp"')
    return str(given)


def challenge(
    refusal: Unauthorized,
    *,
    scheme: str = "Bearer",
    metadata_url: str | None = None,
    scopes: frozenset[str] = frozenset(),
) -> bytes:
    """RFC 6750, RFC 9728, RFC 9449: what is wrong, which scopes would do, and where to find out more.

    `scopes`: what is needed besides what was asked for: with fewer, the next request would be refused again.
    """
    error = None if scheme == "Bearer" and refusal.error in DPOP_ERRORS else refusal.error
    parts = {
        "error": error,
        "error_description": refusal.message if error else None,
        "scope": " ".join(told_scopes(refusal.scopes | scopes)) or None,
        "resource_metadata": metadata_url,
        "algs": " ".join(ALGORITHMS) if scheme == "DPoP" else None,
    }
    told = ", ".join(f'{name}="{_quoted(value)}"' for name, value in parts.items() if value is not None)
    return f"{scheme} {told}".rstrip().encode("ascii", "replace")


def _quoted(value: str) -> str:
    """No header can hold a line break, and nothing here may end its quotes."""
    return "".join(character for character in value if " " <= character <= "~").translate(_QUOTED)


def told_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """What clients may ask their authorization server for."""
    return tuple(sorted(set(scopes) - {OFFLINE_ACCESS}))
