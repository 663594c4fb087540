"""`SignIn`: users sign in at an identity provider; which of them are let in, and with which scopes."""

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Self, TypedDict, Unpack
from urllib.parse import urlsplit

from msgspec import ValidationError, convert
from msgspec.structs import asdict, replace

from dovetail.auth.fetch import plain
from dovetail.auth.jwt import is_secure_url
from dovetail.auth.settings import checked_url
from dovetail.authserver import providers
from dovetail.authserver.identity_provider import IdentityProvider
from dovetail.authserver.oauth_http import OAuthError, digest
from dovetail.authserver.providers import GROUPS, ORGANIZATION, Claims, Identity, Provider, check_texts
from dovetail.errors import SetupError
from dovetail.protocol.scopes import checked_scopes

_TENANT = re.compile(r"organizations|common|consumers|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
CONSUMERS = "9188040d-6c67-4c5b-b112-36a304b66dad"  # the tenant of all personal Microsoft accounts
log = logging.getLogger("dovetail.authserver")

Kind = Literal["domains", "organizations", "groups"]
Allow = Mapping[Kind, Sequence[str]]  # each key must hold, and any of its values will do
AllowFunction = Callable[[Claims], Awaitable[bool | str] | bool | str]
ScopesFunction = Callable[[Claims], Awaitable[Iterable[str]] | Iterable[str]]


class Options(TypedDict, total=False):
    """Options of all providers."""

    scopes: Sequence[str]
    allow: Allow | AllowFunction | None
    scopes_for: ScopesFunction | None


class SignIn:
    """The users of `AuthServer(sign_in=...)` sign in at an identity provider.

    SignIn.github(client_id, client_secret, allow={"organizations": ["acme"]})
    """

    def __init__(
        self,
        provider: Provider,
        client_id: str,
        client_secret: str,
        *,
        scopes: Sequence[str] = (),
        allow: Allow | AllowFunction | None = None,
        scopes_for: ScopesFunction | None = None,
    ) -> None:
        """`scopes`: more that the provider is asked for. `allow`: who may come in, as {"domains": ["example.com"]}, or
        a function of the claims; True lets in, a text is the reason why not. `scopes_for`: a function of the claims
        gives the scopes of this server that a user may have at most.
        """
        where = _checked_place(provider)
        check_texts(client_id=client_id, client_secret=client_secret)
        if scopes_for is not None and not callable(scopes_for):
            raise SetupError(f"{where}: scopes_for={scopes_for!r} is not possible; write a function of the claims")
        self._allow, self._scopes_for = allow, scopes_for
        self._lists = {} if allow is None or callable(allow) else _checked_lists(allow, provider, where)
        needed = {scope for kind, scope in provider.allow_scopes.items() if kind in self._lists}
        asked = dict.fromkeys((*provider.scopes, *sorted(checked_scopes(scopes, where) | needed)))
        self.provider = IdentityProvider(provider, client_id, client_secret, tuple(asked))
        place = provider.issuer or provider.token_endpoint
        self._fingerprint = digest(repr((provider.key, place, client_id, self._lists)))[:32]

    async def fingerprint(self, _: str) -> str:
        """A text that changes if another provider is configured, or others may come in: then all grants end."""
        return self._fingerprint

    async def granted(self, identity: Identity, requested: Collection[str]) -> list[str]:
        """The scopes that this user gets of the requested ones. Raises OAuthError if the user may not come in."""
        scopes = set(requested)
        try:
            reason = await self._reason_against(identity)
            if reason is None and self._scopes_for is not None:
                possible = checked_scopes(await _result(self._scopes_for(identity.claims)), "SignIn: scopes_for")
                scopes &= possible
                if not possible or (requested and not scopes):
                    reason = "Your account has no rights here that this program could use."
        except Exception:
            log.exception("SignIn: allow= or scopes_for= failed")
            text = "This server could not tell if you may come in. Try again later."
            raise OAuthError("server_error", text, status=500) from None
        if reason is not None:
            log.info("%s may not come in: %s", identity.subject, plain(reason))
            raise OAuthError("access_denied", reason, status=403)
        return sorted(scopes)

    async def _reason_against(self, identity: Identity) -> str | None:
        row = self.provider.row
        if callable(self._allow):
            answer = await _result(self._allow(identity.claims))
            text = answer if isinstance(answer, str) and answer else f"This {row.name} account may not sign in here."
            return None if answer is True else text
        for kind, values in self._lists.items():
            if set(values).isdisjoint(each.lower() for each in row.values(kind, identity)):
                if kind in str(identity.claims.get("_claim_names")):  # a distributed claim (OpenID Connect Core, 5.6.2)
                    log.warning("%s leaves out the %s of %s, for they are too many", row.name, kind, identity.subject)
                return f"This server is only for some {kind}, and your {row.name} account shows none of them."
        return None

    # ── rows ──

    @classmethod
    def oidc(cls, issuer: str, client_id: str, client_secret: str, *, name: str = "", **more: Unpack[Options]) -> Self:
        """Any provider that speaks OpenID Connect. `issuer`: byte for byte. `name`: for people."""
        check_texts(issuer=issuer)
        host = urlsplit(issuer).netloc
        row = Provider(name=name or host, key=host, issuer=issuer, organizations=ORGANIZATION, groups=GROUPS)
        return cls(row, client_id, client_secret, **more)

    @classmethod
    def google(cls, client_id: str, client_secret: str, **more: Unpack[Options]) -> Self:
        return cls(providers.GOOGLE, client_id, client_secret, **more)

    @classmethod
    def entra(
        cls, client_id: str, client_secret: str, *, tenant: str, cloud: str = "login.microsoftonline.com",
        **more: Unpack[Options],
    ) -> Self:  # fmt: skip
        """`tenant`: its id; or "organizations", "consumers" (personal accounts), "common" (both): everybody's."""
        row = providers.ENTRA.at(cloud=cloud, tenant=CONSUMERS if tenant == "consumers" else tenant)
        if not _TENANT.fullmatch(tenant):
            raise SetupError(f"SignIn.entra: tenant={tenant!r} is not possible; write its id, not its domain")
        if tenant in ("organizations", "common"):
            row = replace(row, issuers=(providers.ENTRA.at(cloud=cloud, tenant="{tenantid}").issuer,))
        return cls(row, client_id, client_secret, **more)

    @classmethod
    def auth0(
        cls, client_id: str, client_secret: str, *, domain: str, audience: str = "", **more: Unpack[Options]
    ) -> Self:
        """`audience`: of the API that `ctx.upstream_token()` is for, if any."""
        row = replace(providers.AUTH0.at(domain=domain), parameters={"audience": audience} if audience else {})
        return cls(row, client_id, client_secret, **more)

    @classmethod
    def okta(
        cls, client_id: str, client_secret: str, *, domain: str, server: str | None = "default", **more: Unpack[Options]
    ) -> Self:
        """`server`: the id of the authorization server at Okta; None for that of the organization."""
        org, okta = providers.OKTA_ORG, providers.OKTA
        row = org.at(domain=domain) if server is None else okta.at(domain=domain, server=server)
        return cls(row, client_id, client_secret, **more)

    @classmethod
    def keycloak(cls, client_id: str, client_secret: str, *, url: str, realm: str, **more: Unpack[Options]) -> Self:
        return cls(providers.KEYCLOAK.at(url=url, realm=realm), client_id, client_secret, **more)

    @classmethod
    def cognito(cls, client_id: str, client_secret: str, *, region: str, pool: str, **more: Unpack[Options]) -> Self:
        return cls(providers.COGNITO.at(region=region, pool=pool), client_id, client_secret, **more)

    @classmethod
    def workos(cls, client_id: str, client_secret: str, *, domain: str, **more: Unpack[Options]) -> Self:
        """`domain`: that of AuthKit, as "acme.authkit.app"."""
        return cls(providers.WORKOS.at(domain=domain), client_id, client_secret, **more)

    @classmethod
    def github(cls, client_id: str, client_secret: str, *, url: str = "github.com", **more: Unpack[Options]) -> Self:
        """`url`: of a GitHub Enterprise Server."""
        return cls(providers.github(url), client_id, client_secret, **more)

    @classmethod
    def discord(cls, client_id: str, client_secret: str, **more: Unpack[Options]) -> Self:
        return cls(providers.DISCORD, client_id, client_secret, **more)


def _checked_place(provider: Any) -> str:
    """The beginning of messages about a row. Raises SetupError for one that can't work, or would let in too many."""
    if not isinstance(provider, Provider):
        raise SetupError(f"SignIn: {provider!r} is not a Provider; write SignIn.github(client_id, client_secret)")
    where = f"SignIn, {provider.name}"
    try:
        convert(asdict(provider), Provider)
    except ValidationError as problem:
        raise SetupError(f"{where}: the row is not as it should be: {problem}") from None
    endpoints = (provider.authorization_endpoint, provider.token_endpoint, provider.userinfo_endpoint)
    for url in [provider.issuer] if provider.issuer else [*endpoints, *(url for url, _ in provider.lists.values())]:
        if not is_secure_url(checked_url(url, where), url):
            raise SetupError(f"{where}: {url!r} is not https; an attacker in the network could sign in as anybody")
    return where


def _checked_lists(given: Any, provider: Provider, where: str) -> dict[Kind, list[str]]:
    """The lists of `allow` in order and in lower case. Raises SetupError."""
    lists: dict[Kind, set[str]] = {}
    with suppress(ValidationError):
        lists = convert(given, dict[Kind, set[str]])
    if not lists or not all(values and all(values) for values in lists.values()):
        fix = 'its keys are domains, organizations, groups: write a list for each, as {"domains": ["example.com"]}'
        raise SetupError(f"{where}: allow={given!r} is not possible; {fix}, or a function of the claims")
    for kind in lists:
        if kind != "domains" and not getattr(provider, kind):
            raise SetupError(f"{where}: allow: {provider.name} tells no {kind}; write a function of the claims")
    return {kind: sorted({each.lower() for each in values}) for kind, values in sorted(lists.items())}


async def _result(answer: Any) -> Any:
    """What a plain or async function of the author has answered."""
    return await answer if inspect.isawaitable(answer) else answer
