"""Settings of `Server(auth=...)`: `Auth`, its metadata (RFC 9728) and `WWW-Authenticate` challenges."""

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
from dovetail.auth.principal import (
    MAX_TOKEN,
    Principal,
    ScopeHierarchy,
    Verification,
    Verifier,
    VerifyFunction,
    normalized_url,
)
from dovetail.errors import SetupError, Unauthorized
from dovetail.protocol.scopes import checked_scopes

OFFLINE_ACCESS = "offline_access"  # a scope between a client and its authorization server only
DPOP_ERRORS = frozenset({"invalid_dpop_proof", "use_dpop_nonce"})  # meaningless in a Bearer challenge
DpopPolicy = Literal["off", "optional", "required"]
SCHEMES: dict[DpopPolicy, tuple[str, ...]] = {"off": ("Bearer",), "optional": ("Bearer", "DPoP"), "required": ("DPoP",)}
_QUOTED = {ord('"'): '\\"', ord("\\"): "\\\\"}
_VISIBLE = re.compile(r"[!-~]{1,2000}")  # urlsplit silently drops some other characters
log = logging.getLogger("dovetail")
FIX = "give it an AuthServer, a verifier, an async function that takes a token, a list of these, or Auth(...)"


class Auth:
    """The verifiers of a server, the scopes it needs, and its metadata for clients that have no token yet.

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
        """`authorization_servers`: issuers of tokens; by default those that the verifiers name.

        `public_url`: of the MCP endpoint, as clients see it; by default the `resource` of a verifier, or that of the
        request. `scopes`: that every request needs. `scopes_supported`: in the metadata; by default all that are needed
        anywhere, if there are `scopes`. `hierarchy`: scopes that include others, as {"notes:write": ["notes:read"]}.
        `dpop_nonces`: proofs must hold a nonce of ours. `documentation`: a URL for people, in the metadata.
        """
        if not (given := verify if isinstance(verify, (list, tuple)) else [verify]):
            raise SetupError(f"Server: auth=[] lets no caller in; {FIX}")
        self.verifiers = tuple(as_verifier(each) for each in given)
        self.routes = {path: app for each in given for path, app in getattr(each, "routes", dict)().items()}
        self.authorization_servers = tuple(
            checked_url(each, "Auth: authorization_servers")
            for each in dict.fromkeys(authorization_servers or _attributes(self.verifiers, "issuer"))
        )
        resources = _attributes(self.verifiers, "resource")
        self._resources = tuple(checked_url(each, "Auth: `resource` of a verifier") for each in resources)
        self._cache_seconds = tuple(_cache_seconds(each) for each in self.verifiers)
        self._app_verifiers: tuple[Any, ...] = ()  # that `for_app` of others has returned
        url = next(iter(self._resources), None) if public_url is None else public_url
        self.public_url = None if url is None else self.check_public_url(url, "Auth")
        self.scopes = checked_scopes(scopes, "Auth")
        self.scopes_supported = tuple(sorted(checked_scopes(scopes_supported, "Auth, scopes_supported")))
        if OFFLINE_ACCESS in self.scopes | set(self.scopes_supported):
            raise SetupError(f"Auth: {OFFLINE_ACCESS} is not this server's to ask for; leave it out")
        self.hierarchy = ScopeHierarchy(hierarchy)
        if dpop not in get_args(DpopPolicy):
            raise SetupError(f'Auth: dpop={dpop!r} is not possible; it is "off", "optional" or "required"')
        if dpop == "required" and all(getattr(each, "binds_keys", True) is False for each in self.verifiers):
            name = type(self.verifiers[0]).__name__
            raise SetupError(f'Auth: dpop="required" lets no caller in: {name} knows no tokens that are bound to a key')
        if dpop_nonces and dpop == "off":
            raise SetupError('Auth: dpop_nonces=True does nothing without proofs; write dpop="optional" or "required"')
        self.dpop = dpop
        self._uses_nonces = dpop_nonces
        self._used_proofs = UsedProofs()
        self.documentation = None if documentation is None else checked_url(documentation, "Auth: documentation")

    @classmethod
    def from_option(cls, given: Any) -> "Auth":
        return given if isinstance(given, Auth) else cls(given)

    def check_public_url(self, given: Any, where: str) -> str:
        """Clients request tokens for this URL, so it has to be the `resource` of the verifiers. Raises SetupError."""
        url = checked_url(given, f"{where}: public_url")
        if "?" in url:
            raise SetupError(f"{where}: public_url={url!r} has a query; write the URL of the endpoint without one")
        for resource in self._resources:
            if normalized_url(resource) != normalized_url(url):
                raise SetupError(f"{where}: public_url={url!r}, but tokens are made for {resource!r}; both must be one")
        return url

    async def verify(self, token: str) -> Principal | None:
        """The principal, from the first verifier that knows the token; its scopes are expanded by the hierarchy."""
        found = await self.verification(token)
        return None if found is None else found.principal

    async def verification(self, token: str) -> Verification | None:
        if len(token) > MAX_TOKEN:
            return None
        for verifier, seconds in zip(self.verifiers, self._cache_seconds, strict=True):
            principal = await verifier.verify(token)
            if principal is not None:
                return Verification(principal.with_scopes(self.hierarchy.expand(principal.scopes)), seconds)
        return None

    async def for_app(self, state: object) -> "Auth":
        """A copy for an app with this state backend: verifiers that have `for_app` are replaced by its result."""
        bound = copy.copy(self)
        try:
            bound.verifiers = tuple(bound._bind(each, state) for each in self.verifiers)
            bound._cache_seconds = tuple(_cache_seconds(each) for each in bound.verifiers)
        except BaseException:
            await bound.close()
            raise
        return bound

    def _bind(self, verifier: Any, state: object) -> Verifier:
        if not callable(getattr(verifier, "for_app", None)):
            return verifier  # type: ignore[no-any-return]
        self._app_verifiers += (verifier.for_app(state),)
        return as_verifier(self._app_verifiers[-1])

    async def close(self) -> None:
        """Close the verifiers that were made for this app, if they have `close`."""
        closing, self._app_verifiers = self._app_verifiers, ()
        for each in closing:
            try:
                closed = each.close() if hasattr(each, "close") else None
                if isinstance(closed, Awaitable):
                    await closed
            except Exception:
                log.exception("a verifier failed when its app ended")

    async def upstream_token(self, principal: Principal, state: object) -> str | None:
        """The access token of the identity provider where a user has signed in; None for other principals."""
        verifiers: Iterable[Any] = self.verifiers if principal.subject else ()
        for each in verifiers:
            if hasattr(each, "upstream_token") and each.issuer == principal.issuer:
                return await each.upstream_token(principal, state)  # type: ignore[no-any-return]
        return None

    def dpop_check(self, claim: Claim | None, secrets: Callable[[], Sequence[bytes]]) -> DpopCheck | None:
        """None if DPoP is off. `claim`: stores used proofs in a fleet; None: in this process. `secrets`: of nonces."""
        if self.dpop == "off":
            return None
        nonces = DpopNonces(secrets) if self._uses_nonces else None
        return DpopCheck(claim or self._used_proofs.claim, required=self.dpop == "required", nonces=nonces)

    def challenges(self, refusal: Unauthorized, metadata_url: str | None) -> list[tuple[bytes, bytes]]:
        """The `WWW-Authenticate` headers of a refusal; none where no token would help."""
        if refusal.http_status == 403 and refusal.error is None:
            return []
        url = metadata_url if self.authorization_servers else None
        return [(b"www-authenticate", self._challenge(scheme, refusal, url)) for scheme in SCHEMES[self.dpop]]

    def _challenge(self, scheme: str, refusal: Unauthorized, metadata_url: str | None) -> bytes:
        """A challenge, as in RFC 6750, RFC 9728 and RFC 9449."""
        error = None if scheme == "Bearer" and refusal.error in DPOP_ERRORS else refusal.error
        parts = {
            "error": error,
            "error_description": refusal.message if error else None,
            "scope": " ".join(requestable_scopes(refusal.scopes | self.scopes)) or None,
            "resource_metadata": metadata_url,
            "algs": " ".join(ALGORITHMS) if scheme == "DPoP" else None,
        }
        parameters = ", ".join(f'{name}="{_quoted(value)}"' for name, value in parts.items() if value is not None)
        return f"{scheme} {parameters}".rstrip().encode("ascii", "replace")

    def metadata(self, resource: str, *, name: str, scopes: Iterable[str]) -> bytes:
        """The document of RFC 9728. `scopes`: all that anything in the server needs.

        They are listed only if a challenge names some of them to begin with: or clients would request all at once.
        """
        supported = self.scopes_supported or (self.scopes and self.scopes.union(scopes))
        document = {
            "resource": resource,  # byte for byte: clients compare it
            "authorization_servers": self.authorization_servers,
            "bearer_methods_supported": ("header",),
            "scopes_supported": requestable_scopes(supported),
            "resource_name": name,
            "resource_documentation": self.documentation,
            "dpop_signing_alg_values_supported": None if self.dpop == "off" else ALGORITHMS,
            "dpop_bound_access_tokens_required": self.dpop == "required",
        }
        return msgspec.json.encode({name: value for name, value in document.items() if value})


class FunctionVerifier:
    """An author's own function, plain or async. A principal whose `expires_at` has passed is refused."""

    def __init__(self, function: VerifyFunction) -> None:
        self._function = function

    async def verify(self, token: str) -> Principal | None:
        found = self._function(token)
        if isinstance(found, Awaitable):
            found = await found
        if found is not None and not isinstance(found, Principal):
            raise TypeError(f"auth: {self._function!r} must give a Principal or None, not {type(found).__name__}")
        has_expired = found is not None and found.expires_at is not None and found.expires_at <= time.time()
        return None if has_expired else found


def as_verifier(given: Any) -> Verifier:
    """The value as a verifier. Raises SetupError if it is neither a verifier nor a function."""
    is_class = isinstance(given, type)
    if not is_class and inspect.iscoroutinefunction(getattr(given, "verify", None)):
        return given  # type: ignore[no-any-return]
    if callable(given) and not is_class:
        return FunctionVerifier(given)
    raise SetupError(f"Server: auth={given!r} is not possible; {FIX}")


def _cache_seconds(verifier: Verifier) -> float:
    seconds: object = getattr(verifier, "cache_seconds", math.inf)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds >= 0:  # nor is it NaN
        name = type(verifier).__name__
        raise SetupError(f"Auth: {name} has cache_seconds={seconds!r}, which is not possible; it is 0 or more")
    return seconds


def _attributes(verifiers: Iterable[Verifier], name: str) -> tuple[Any, ...]:
    """The distinct values of an attribute of the verifiers that have it."""
    values = (getattr(each, name, None) for each in verifiers)
    return tuple(dict.fromkeys(each for each in values if each is not None))


def checked_url(given: Any, where: str) -> str:
    """The URL byte for byte, for clients compare it. Raises SetupError if it is none."""
    parts = urlsplit(given) if isinstance(given, str) and _VISIBLE.fullmatch(given) else None
    is_plain = parts is not None and "@" not in parts.netloc and not parts.fragment
    if parts is None or not is_plain or parts.scheme.lower() not in ("https", "http") or not parts.hostname:
        raise SetupError(f'{where} holds {given!r}; write a whole URL, such as "https://notes.example.com/mcp"')
    return str(given)


def _quoted(value: str) -> str:
    """The text as printable ASCII with escaped quotes: a header can't hold line breaks."""
    return "".join(character for character in value if " " <= character <= "~").translate(_QUOTED)


def requestable_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Scopes that clients may request from their authorization server."""
    return tuple(sorted(set(scopes) - {OFFLINE_ACCESS}))
