"""FastMCP's verifiers and providers on dovetail.auth and dovetail.authserver, and checks of access."""

import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dovetail.auth import Auth, Introspection, Jwt, Principal
from dovetail.authserver import AuthServer, Provider, SignIn, providers
from dovetail.compat import no_equal
from dovetail.compat.fastmcp_context import PAGE, Context, lacking
from dovetail.compat.shared import AccessToken, PeerVerifier, check_keywords
from dovetail.engine.current_context import get_context

log = logging.getLogger("dovetail.compat")
Scopes = Sequence[str] | str | None


# ── checks of access ──


@dataclass
class AuthContext:
    """What a check decides by: the token, and the tool, resource or prompt."""

    token: AccessToken | None
    component: Any


AuthCheck = Callable[[AuthContext], bool | Awaitable[bool]]


def require_scopes(*scopes: str) -> AuthCheck:
    return lambda ctx: ctx.token is not None and set(scopes) <= set(ctx.token.scopes)


def restrict_tag(tag: str, *, scopes: Sequence[str]) -> AuthCheck:
    """A check that concerns only what has the tag."""
    return lambda ctx: tag not in ctx.component.tags or require_scopes(*scopes)(ctx)


def require_roles(*roles: str, extract: Callable[[Mapping[str, Any]], Any]) -> AuthCheck:
    """A check of roles, which `extract` finds in the claims."""

    def check(ctx: AuthContext) -> bool:
        found = () if ctx.token is None else extract(ctx.token.claims)
        return ctx.token is not None and set(roles) <= {*([found] if isinstance(found, str) else found)}

    return check


async def run_auth_checks(checks: AuthCheck | Sequence[AuthCheck], ctx: AuthContext) -> bool:
    """Whether all checks agree; one that fails does not."""
    try:
        for check in checks if isinstance(checks, Sequence) else [checks]:
            verdict = check(ctx)
            if (await verdict if inspect.isawaitable(verdict) else verdict) is not True:
                return False
    except Exception:
        log.exception("a check failed, which denies access")
        return False
    return True


async def may_use(checks: Any, found: Any, principal: Principal | None) -> bool:
    """Whether the checks let a caller use a component. On stdio it is the user of this machine."""
    if principal is None and Context.transport.fget(get_context()) == "stdio":  # type: ignore[attr-defined]
        return True
    token = None if principal is None else AccessToken.from_principal(principal)
    return await run_auth_checks(checks, AuthContext(token, found))


# ── verifiers and providers ──


class AuthProvider:
    """What `FastMCP(auth=)` takes; it becomes `Server(auth=)` when the path of the endpoint is known."""

    issuers: Sequence[str] = ()  # where clients get tokens, if the verifiers do not say it
    options: Mapping[str, Any] = {}  # more of `Auth`
    _path, _asked = "", None
    __getattr__ = lacking

    def __init__(self, base_url: Any = None, required_scopes: Scopes = None) -> None:
        self.base_url = None if base_url is None else str(base_url).rstrip("/")
        self.required_scopes = _scopes(required_scopes)

    def public_url(self, path: str) -> str | None:
        return None if self.base_url is None else f"{self.base_url}{path}"

    def verifiers(self, path: str) -> list[Any]:  # noqa: ARG002
        raise no_equal(type(self).__name__, PAGE, "give Server(auth=) an AuthServer, a verifier or a function")

    async def verify_token(self, token: str) -> AccessToken | None:
        """For what asks this itself, such as a subclass that overrides it."""
        if self._asked is None:
            self._asked = self.verifiers(self._path)
        for each in self._asked:
            if (found := await each.verify(token)) is not None:
                return AccessToken.from_principal(found) if found.may(*self.required_scopes) else None
        return None

    def sources(self, path: str) -> list[Any]:
        """Its verifiers; a `verify_token` of a user's own decides in their place."""
        self._path = path
        if type(self).verify_token is AuthProvider.verify_token:
            return self.verifiers(path)
        return [PeerVerifier(self, None, self.public_url(path), needs_resource=False)]

    def auth(self, path: str) -> Auth:
        options = {"public_url": self.public_url(path), "scopes": self.required_scopes, **self.options}
        return Auth(self.sources(path), authorization_servers=self.issuers, **options)


def _scopes(given: Scopes) -> list[str]:
    return given.replace(",", " ").split() if isinstance(given, str) else list(given or ())


class TokenVerifier(AuthProvider):
    """A verifier; a user's own has `verify_token`."""


class JWTVerifier(TokenVerifier):
    """Becomes a `Jwt` for each issuer. Without `audience` it is the URL of the endpoint, where a provider says so."""

    takes_endpoint = False

    def __init__(
        self, *, public_key: Any = None, jwks_uri: Any = None, issuer: Any = None, audience: Any = None,
        algorithm: str | None = None, required_scopes: Scopes = None, base_url: Any = None, **others: Any,
    ) -> None:  # fmt: skip
        super().__init__(base_url, required_scopes)
        if not issuer or not (audience or self.takes_endpoint):
            reason = "it would take tokens that were made by others, or for others"
            raise no_equal(f"{type(self).__name__} without issuer= and audience=", PAGE, reason)
        self.trusted: list[str] = [issuer] if isinstance(issuer, str) else list(issuer)
        key = "secret" if algorithm is not None and algorithm.startswith("HS") else "public_key"
        url = None if jwks_uri is None else str(jwks_uri)
        algorithms = None if algorithm is None else [algorithm]
        self._options = {key: public_key, "jwks_uri": url, "audience": audience, "algorithms": algorithms}
        _check_others(others, type(self).__name__)

    def verifiers(self, path: str) -> list[Any]:
        options = {**self._options, "audience": self._options["audience"] or self.public_url(path)}
        return [Jwt(issuer, **options) for issuer in self.trusted]


class _EndpointVerifier(JWTVerifier):
    takes_endpoint = True


class StaticTokenVerifier(TokenVerifier):
    """Tokens in the program, for development."""

    def __init__(self, tokens: Mapping[str, Mapping[str, Any]], required_scopes: Scopes = None) -> None:
        super().__init__(None, required_scopes)
        self._tokens = {hashlib.sha256(token.encode()).digest(): dict(known) for token, known in tokens.items()}

    async def verify_token(self, token: str) -> AccessToken | None:
        known = self._tokens.get(hashlib.sha256(token.encode()).digest())
        fields = ("client_id", "scopes", "expires_at")
        given = {name: value for name, value in (known or {}).items() if name in fields}
        return None if known is None else AccessToken(**given, subject=known.get("sub"), claims=known)


class IntrospectionTokenVerifier(TokenVerifier):
    """Becomes an `Introspection`: the issuer is asked about tokens."""

    def __init__(
        self, *, introspection_url: str, client_id: str, client_secret: Any, audience: Any = None,
        cache_ttl_seconds: float | None = None, required_scopes: Scopes = None, base_url: Any = None, **others: Any,
    ) -> None:  # fmt: skip
        super().__init__(base_url, required_scopes)
        secret = getattr(client_secret, "get_secret_value", lambda: client_secret)()
        options = {"audience": audience, "cache_seconds": cache_ttl_seconds or 0}
        self._native = Introspection(introspection_url, client_id=client_id, client_secret=secret, **options)
        _check_others(others, type(self).__name__)

    def verifiers(self, path: str) -> list[Any]:  # noqa: ARG002
        return [self._native]


class RemoteAuthProvider(AuthProvider):
    """Tokens of an authorization server elsewhere, which clients are sent to."""

    def __init__(
        self, token_verifier: TokenVerifier, authorization_servers: Sequence[Any], base_url: Any,
        scopes_supported: Scopes = None, resource_name: str | None = None, resource_documentation: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(base_url, token_verifier.required_scopes)
        del resource_name  # it is that of the server
        documentation = None if resource_documentation is None else str(resource_documentation)
        token_verifier.base_url = token_verifier.base_url or self.base_url  # its tokens are for this server
        self._verifier, self.issuers = token_verifier, [str(each) for each in authorization_servers]
        self.options = {"scopes_supported": _scopes(scopes_supported), "documentation": documentation}

    def verifiers(self, path: str) -> list[Any]:
        return self._verifier.sources(path)


def _filled(template: str, places: Mapping[str, Any]) -> str:
    try:
        return template.format(**places)
    except KeyError as missing:
        raise TypeError(f"the provider needs {missing.args[0]}=") from None


def _issuer(issuer: str, keys: str, audience: str = "", listed: str = "{issuer}") -> Callable[..., RemoteAuthProvider]:
    """A provider with which clients register themselves; its places are templates of the keywords.

    Without `audience` tokens are for the endpoint. `listed`: what clients are sent to.
    """

    def provider(
        *, base_url: Any, token_verifier: Any = None, required_scopes: Scopes = None, **own: Any
    ) -> RemoteAuthProvider:
        options = {name: own.pop(name) for name in ("scopes_supported", "resource_documentation") if name in own}
        _check_others(own, "the provider")
        places = {name: str(value).rstrip("/") for name, value in own.items()}
        places["issuer"] = _filled(issuer, places)
        verifier = token_verifier or _EndpointVerifier(
            issuer=places["issuer"], jwks_uri=_filled(keys, places), algorithm=own.get("algorithm"), base_url=base_url,
            audience=own.get("audience") or _filled(audience, places), required_scopes=required_scopes,
        )  # fmt: skip
        return RemoteAuthProvider(verifier, [_filled(listed, places)], base_url, **options)

    return provider


KeycloakAuthProvider = _issuer("{realm_url}", "{issuer}/protocol/openid-connect/certs")
AuthKitProvider = _issuer("{authkit_domain}", "{issuer}/oauth2/jwks")
ScalekitProvider = _issuer(
    "{environment_url}", "{issuer}/keys", "{resource_id}", "{environment_url}/resources/{resource_id}"
)
SupabaseProvider = _issuer("{project_url}/auth/v1", "{issuer}/.well-known/jwks.json", "authenticated")


class Scoped:
    """A verifier, for tokens that have some scopes."""

    def __init__(self, verifier: Any, scopes: Sequence[str]) -> None:
        self._verifier, self._scopes = verifier, scopes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._verifier, name)
        return (lambda state: Scoped(found(state), self._scopes)) if name == "for_app" else found

    async def verify(self, token: str) -> Any:
        found = await self._verifier.verify(token)
        return found if found is not None and found.may(*self._scopes) else None


class MultiAuth(AuthProvider):
    """Several of them: the first that knows a token counts."""

    def __init__(
        self, *, server: AuthProvider | None = None, verifiers: Any = (), base_url: Any = None,
        required_scopes: Scopes = None,
    ) -> None:  # fmt: skip
        verifiers = verifiers.values() if isinstance(verifiers, Mapping) else verifiers
        listed = [verifiers] if isinstance(verifiers, AuthProvider) else list(verifiers or ())
        self._parts = listed if server is None else [server, *listed]
        if not self._parts:
            raise ValueError("MultiAuth needs a server or a verifier")
        first = self._parts[0]
        scopes = first.required_scopes if required_scopes is None else required_scopes
        super().__init__(base_url or first.base_url, scopes)
        self.issuers = first.issuers
        for each in self._parts:
            each.base_url = each.base_url or self.base_url

    def verifiers(self, path: str) -> list[Any]:
        return [Scoped(found, each.required_scopes) for each in self._parts for found in each.sources(path)]


# ── users sign in at an identity provider ──

REFUSED = {  # keywords that would be a risk to ignore
    "allowed_client_redirect_uris", "client_auth_method", "enable_cimd", "extra_token_params", "identity_assertion",
    "resource_base_url", "token_issuer", "token_verifier",
}  # fmt: skip
OWN = {  # keywords of single classes
    "audience", "authkit_domain", "aws_region", "base_authority", "config_url", "domain", "identifier_uri", "tenant_id",
    "algorithm", "user_pool_id", "realm_url", "environment_url", "resource_id", "project_url",
}  # fmt: skip
NO_EFFECT = {
    "cache_ttl_seconds", "client_storage", "consent_csp_policy", "extra_authorize_params",
    "fallback_access_token_expiry_seconds", "fallback_refresh_token_expiry_seconds",
    "fastmcp_access_token_expiry_seconds", "forward_pkce", "forward_resource", "http_client", "issuer_url",
    "jwks_refresh_interval", "jwt_signing_key", "max_cache_size", "redirect_path", "require_authorization_consent",
    "resource_name", "service_documentation_url", "ssrf_safe", "strict", "timeout_seconds",
    "token_endpoint_auth_method", "token_expiry_threshold_seconds", "upstream_revocation_endpoint", "verify_id_token",
}  # fmt: skip
OPENID = {"openid", "profile", "email", "offline_access"}


def _check_others(others: Mapping[str, Any], where: str) -> None:
    """Refuse keywords that FastMCP has not either, or that matter, and warn of the others, which have no effect."""
    check_keywords(others, REFUSED | OWN | NO_EFFECT, where, PAGE)
    for name in (name for name, value in others.items() if value is not None and name not in OWN):
        if name in REFUSED:
            raise no_equal(f"{where}({name}=)", PAGE)
        log.warning('%s(%s=) has no effect; see the page "%s" of the docs', where, name, PAGE)


class OIDCProxy(AuthProvider):
    """`AuthServer(sign_in=)`: users get those scopes of the server that the identity provider has granted for them."""

    row: Provider | str = "{config_url}"  # a row of ours, or the template of an issuer that speaks OpenID Connect

    def __init__(
        self, *, client_id: str, client_secret: str | None = None, base_url: Any, required_scopes: Scopes = None,
        valid_scopes: Scopes = None, additional_authorize_scopes: Scopes = None, **own: Any,
    ) -> None:  # fmt: skip
        super().__init__(base_url, required_scopes)
        if type(self).verify_token is not AuthProvider.verify_token:
            raise no_equal(f"{type(self).__name__}.verify_token", PAGE, "SignIn(…, scopes_for=) chooses who gets what")
        self.own, self.credentials = own, (client_id, client_secret or "")
        self.scopes_supported = list(dict.fromkeys([*self.required_scopes, *_scopes(valid_scopes)]))
        self._more_scopes = _scopes(additional_authorize_scopes)
        _check_others(own, type(self).__name__)

    def verifiers(self, path: str) -> list[Any]:
        scopes = {scope: scope for scope in self.scopes_supported}
        upstream = [*map(self._upstream, scopes), *self._more_scopes]
        sign_in = self.sign_in(*self.credentials, scopes=upstream, scopes_for=self._granted if scopes else None)
        log.info("%s: the redirect URI to register is %s/callback", type(self).__name__, self.base_url)
        return [AuthServer(str(self.base_url), resource=f"{self.base_url}{path}", sign_in=sign_in, scopes=scopes)]

    def sign_in(self, *credentials: str, **options: Any) -> SignIn:
        if isinstance(self.row, Provider):
            return SignIn(self.row, *credentials, **options)
        place = _filled(self.row, {"aws_region": "eu-central-1", **self.own})
        issuer = place.removesuffix("/.well-known/openid-configuration").rstrip("/")
        host, issuers = urlsplit(issuer).netloc, (issuer, f"{issuer}/")  # some end in a slash
        parameters = {"audience": self.own["audience"]} if self.own.get("audience") else {}
        row = Provider(name=host, key=host, issuer=issuer, issuers=issuers, parameters=parameters)
        return SignIn(row, *credentials, **options)

    def _upstream(self, scope: str) -> str:
        """A scope as the identity provider names it."""
        return scope

    def _granted(self, claims: Mapping[str, Any]) -> list[str]:
        granted = set(claims["granted_scopes"])
        return [each for each in self.scopes_supported if granted & {each, self._upstream(each)}]


PROVIDERS = {
    "GitHubProvider": providers.GITHUB,
    "GoogleProvider": providers.GOOGLE,
    "DiscordProvider": providers.DISCORD,
    "Auth0Provider": "{config_url}",
    "OCIProvider": "{config_url}",
    "WorkOSProvider": "{authkit_domain}",
    "AWSCognitoProvider": "https://cognito-idp.{aws_region}.amazonaws.com/{user_pool_id}",
    "ClerkProvider": "https://{domain}",
    "HuggingFaceProvider": "https://huggingface.co",
}
globals().update({name: type(name, (OIDCProxy,), {"row": row}) for name, row in PROVIDERS.items()})


class AzureProvider(OIDCProxy):
    def sign_in(self, *credentials: str, **options: Any) -> SignIn:
        cloud = self.own.get("base_authority", "login.microsoftonline.com")
        return SignIn.entra(*credentials, tenant=_filled("{tenant_id}", self.own), cloud=cloud, **options)

    def _upstream(self, scope: str) -> str:
        is_whole = "://" in scope or scope in OPENID
        return scope if is_whole else f"{self.own.get('identifier_uri') or f'api://{self.credentials[0]}'}/{scope}"

    @classmethod
    def from_b2c(cls, **_: Any) -> Any:
        raise no_equal("AzureProvider.from_b2c", PAGE, "SignIn.oidc(issuer, client_id, client_secret) may do")


class OAuthProxy(OIDCProxy):
    """Users sign in at the issuer of upstream tokens; its metadata name the endpoints."""

    def __init__(
        self, *, upstream_client_id: str, upstream_client_secret: str | None = None, token_verifier: Any,
        upstream_authorization_endpoint: Any, upstream_token_endpoint: Any, required_scopes: Scopes = None, **own: Any,
    ) -> None:  # fmt: skip
        del upstream_authorization_endpoint, upstream_token_endpoint
        if type(token_verifier) is not JWTVerifier:
            fix = "without a plain JWTVerifier, which names the issuer, write SignIn(Provider(…), id, secret)"
            raise no_equal(f"OAuthProxy(token_verifier={type(token_verifier).__name__})", PAGE, fix)
        scopes, issuer = required_scopes or token_verifier.required_scopes, token_verifier.trusted[0]
        own |= {"client_id": upstream_client_id, "client_secret": upstream_client_secret}
        super().__init__(required_scopes=scopes, config_url=issuer, **own)
