"""`SignIn`: users sign in at an identity provider; which of them are let in, and with which scopes."""

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self, TypedDict, Unpack

import msgspec

from dovetail.auth.fetch import plain
from dovetail.auth.jwt import is_secure_url
from dovetail.auth.settings import checked_url
from dovetail.authserver import providers
from dovetail.authserver.identity_provider import IdentityProvider
from dovetail.authserver.oauth_http import OAuthError, digest
from dovetail.authserver.providers import Claims, Identity, Provider, base_url
from dovetail.errors import SetupError

ENTRA_CLOUD = "https://login.microsoftonline.com"
_TENANT = re.compile(r"organizations|common|consumers|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
log = logging.getLogger("dovetail.authserver")


class Allow(TypedDict, total=False):
    """Who may come in: each key that is given must hold, and any of its values will do."""

    domains: Sequence[str]
    organizations: Sequence[str]
    groups: Sequence[str]


AllowFunction = Callable[[Claims], Awaitable[bool | str] | bool | str]
ScopesFunction = Callable[[Claims], Awaitable[Iterable[str]] | Iterable[str]]


class Options(TypedDict, total=False):
    """`scopes`: more that the provider is asked for. `allow`: who may come in, as {"domains": ["example.com"]}, or a
    function of the claims; True lets in, a text is the reason why not. `scopes_for`: a function of the claims gives the
    scopes of this server that a user may have at most.
    """

    scopes: Sequence[str]
    allow: Allow | AllowFunction | None
    scopes_for: ScopesFunction | None


class SignIn:
    """The users of `AuthServer(sign_in=...)` sign in at an identity provider.

    SignIn.github(client_id, client_secret, allow={"organizations": ["acme"]})
    """

    def __init__(self, provider: Provider, client_id: str, client_secret: str, **options: Unpack[Options]) -> None:
        where = _check(provider, {"client_id": client_id, "client_secret": client_secret}, options)
        self._allow, self._scopes_for = options.get("allow"), options.get("scopes_for")
        self._lists: dict[str, frozenset[str]] = {}  # who may come in, in lower case
        if not callable(self._allow):
            self._lists = _checked_lists(self._allow, provider, where)
        needed = [getattr(provider, f"{kind}_scope") for kind in self._lists if kind != "domains"]
        asked = dict.fromkeys(scope for scope in (*provider.scopes, *options.get("scopes", ()), *needed) if scope)
        self.provider = IdentityProvider(provider, client_id, client_secret, tuple(asked))
        # Grants of before end if another provider is configured, or other people may come in.
        lists = sorted((kind, sorted(values)) for kind, values in self._lists.items())
        place = provider.issuer or provider.token_endpoint
        self.fingerprint = digest(repr((provider.key, place, client_id, lists)))[:32]

    def __repr__(self) -> str:
        return f"SignIn({self.provider.row.name})"

    async def granted(self, identity: Identity, requested: Collection[str]) -> list[str]:
        """The scopes that this user gets of the requested ones. Raises OAuthError if the user may not come in."""
        scopes, reason = set(requested), await self._reason_against(identity)
        if reason is None and self._scopes_for is not None:
            possible = await self._call(self._scopes_for, identity, _set_of_scopes)
            scopes &= possible
            if not possible or (requested and not scopes):
                reason = "Your account has no rights here that this program could use."
        if reason is None:
            return sorted(scopes)
        log.info("%s may not come in: %s", identity.subject, plain(reason))
        raise OAuthError("access_denied", reason, status=403)

    async def _reason_against(self, identity: Identity) -> str | None:
        row = self.provider.row
        if callable(self._allow):
            answer = await self._call(self._allow, identity)
            text = answer if isinstance(answer, str) and answer else f"This {row.name} account may not sign in here."
            return None if answer is True else text
        for kind, values in self._lists.items():
            if values.isdisjoint(each.lower() for each in row.values(kind, identity)):
                if kind in str(identity.claims.get("_claim_names")):  # a distributed claim (OpenID Connect Core, 5.6.2)
                    log.warning("%s leaves out the %s of %s, for they are too many", row.name, kind, identity.subject)
                return f"This server is only for some {kind}, and your {row.name} account shows none of them."
        return None

    async def _call(
        self, function: Callable[[Claims], Any], identity: Identity, read: Callable[[Any], Any] = lambda answer: answer
    ) -> Any:
        try:
            answer = function(identity.claims)
            return read(await answer if inspect.isawaitable(answer) else answer)
        except Exception:
            log.exception("SignIn: %r failed", function)
            text = "This server could not tell if you may come in. Try again later."
            raise OAuthError("server_error", text, status=500) from None

    # ── rows ──

    @classmethod
    def oidc(cls, issuer: str, client_id: str, client_secret: str, *, name: str = "", **more: Unpack[Options]) -> Self:
        """Any provider that speaks OpenID Connect. `issuer`: byte for byte. `name`: for people."""
        return cls(providers.openid_connect(_text("issuer", issuer), name), client_id, client_secret, **more)

    @classmethod
    def google(cls, client_id: str, client_secret: str, **more: Unpack[Options]) -> Self:
        return cls(providers.GOOGLE, client_id, client_secret, **more)

    @classmethod
    def entra(
        cls, client_id: str, client_secret: str, *, tenant: str, cloud: str = ENTRA_CLOUD, **more: Unpack[Options]
    ) -> Self:
        """`tenant`: its id; or "organizations", "consumers" (personal accounts), "common" (both): everybody's."""
        if not _TENANT.fullmatch(_text("tenant", tenant)):
            raise SetupError(f"SignIn.entra: tenant={tenant!r} is not possible; write its id, not its domain")
        return cls(providers.entra(tenant, _text("cloud", cloud)), client_id, client_secret, **more)

    @classmethod
    def auth0(
        cls, client_id: str, client_secret: str, *, domain: str, audience: str = "", **more: Unpack[Options]
    ) -> Self:
        """`audience`: of the API that `ctx.upstream_token()` is for, if any."""
        row = _at(providers.AUTH0, base_url(_text("domain", domain)) + "/", {"audience": audience} if audience else {})
        return cls(row, client_id, client_secret, **more)

    @classmethod
    def okta(
        cls, client_id: str, client_secret: str, *, domain: str, server: str | None = "default", **more: Unpack[Options]
    ) -> Self:
        """`server`: the id of the authorization server at Okta; None for that of the organization."""
        path = "" if server is None else f"/oauth2/{_text('server', server)}"
        return cls(_at(providers.OKTA, base_url(_text("domain", domain)) + path), client_id, client_secret, **more)

    @classmethod
    def keycloak(cls, client_id: str, client_secret: str, *, url: str, realm: str, **more: Unpack[Options]) -> Self:
        issuer = f"{base_url(_text('url', url))}/realms/{_text('realm', realm)}"
        return cls(_at(providers.KEYCLOAK, issuer), client_id, client_secret, **more)

    @classmethod
    def cognito(cls, client_id: str, client_secret: str, *, region: str, pool: str, **more: Unpack[Options]) -> Self:
        issuer = f"https://cognito-idp.{_text('region', region)}.amazonaws.com/{_text('pool', pool)}"
        return cls(_at(providers.COGNITO, issuer), client_id, client_secret, **more)

    @classmethod
    def workos(cls, client_id: str, client_secret: str, *, domain: str, **more: Unpack[Options]) -> Self:
        """`domain`: that of AuthKit, as "acme.authkit.app"."""
        return cls(_at(providers.WORKOS, base_url(_text("domain", domain))), client_id, client_secret, **more)

    @classmethod
    def github(
        cls, client_id: str, client_secret: str, *, url: str = "https://github.com", **more: Unpack[Options]
    ) -> Self:
        """`url`: of a GitHub Enterprise Server."""
        return cls(providers.github(_text("url", url)), client_id, client_secret, **more)

    @classmethod
    def discord(cls, client_id: str, client_secret: str, **more: Unpack[Options]) -> Self:
        return cls(providers.DISCORD, client_id, client_secret, **more)


def _check(provider: Any, keys: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Raises SetupError for what can't work, or would let in too many. Gives the beginning of other messages."""
    if not isinstance(provider, Provider):
        raise SetupError(f"SignIn: {provider!r} is not a Provider; write SignIn.github(client_id, client_secret)")
    where = f"SignIn, {provider.name}"
    try:
        msgspec.convert(msgspec.structs.asdict(provider), Provider)
    except msgspec.ValidationError as problem:
        raise SetupError(f"{where}: the row is not as it should be: {problem}") from None
    endpoints = (provider.authorization_endpoint, provider.token_endpoint, provider.userinfo_endpoint)
    urls = [provider.issuer] if provider.issuer else [*endpoints, *(each.url for each in provider.lists)]
    for url in urls:
        if not is_secure_url(checked_url(url, where), url):
            raise SetupError(f"{where}: {url!r} is not https; an attacker in the network could sign in as anybody")
    for name, value in keys.items():
        if not isinstance(value, str) or not value.strip():
            place = f"{provider.name} shows it where you registered this server"
            raise SetupError(f"{where}: {name} is empty or no text; {place}")
    for name in options.keys() - Options.__annotations__.keys():
        raise SetupError(f"{where}: there is no option {name!r}; write {', '.join(Options.__annotations__)}")
    if not _is_list(options.get("scopes", ())):
        raise SetupError(f"{where}: scopes={options['scopes']!r} is not possible; write a list of texts")
    if (given := options.get("scopes_for")) is not None and not callable(given):
        raise SetupError(f"{where}: scopes_for={given!r} is not possible; write a function of the claims")
    return where


def _text(name: str, given: Any) -> str:
    """An argument as it is. Raises SetupError for None, which is what a missing environment variable gives."""
    if not isinstance(given, str) or not given.strip():
        raise SetupError(f"SignIn: {name}={given!r} is not possible; write a text")
    return given


def _is_list(given: Any) -> bool:
    return isinstance(given, list | tuple | set | frozenset) and all(isinstance(each, str) and each for each in given)


def _set_of_scopes(answer: Any) -> set[str]:
    if isinstance(answer, str):
        raise TypeError(f"scopes_for= gives the text {answer!r}, not a list")
    return set(answer)


def _checked_lists(given: Any, provider: Provider, where: str) -> dict[str, frozenset[str]]:
    """The lists of `allow`. Raises SetupError."""
    if given is None:
        return {}
    kinds = tuple(Allow.__annotations__)
    if not isinstance(given, Mapping) or not given or not given.keys() <= set(kinds):
        fix = 'write {"domains": ["example.com"]}, or a function of the claims'
        raise SetupError(f"{where}: allow={given!r} is not possible; its keys are {', '.join(kinds)}: {fix}")
    for kind, values in given.items():
        if not values or not _is_list(values):
            raise SetupError(f"{where}: allow: {kind}={values!r} is not possible; write a list of texts")
        if kind != "domains" and not getattr(provider, kind):
            raise SetupError(f"{where}: allow: {provider.name} tells no {kind}; write a function of the claims")
    return {kind: frozenset(each.lower() for each in values) for kind, values in given.items()}


def _at(row: Provider, issuer: str, parameters: Mapping[str, str] = MappingProxyType({})) -> Provider:
    return msgspec.structs.replace(row, issuer=issuer, parameters=parameters)
