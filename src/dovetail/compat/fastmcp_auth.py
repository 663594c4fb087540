"""FastMCP's verifiers and providers on dovetail.auth and dovetail.authserver, and checks of access."""

import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dovetail.auth import Auth, Introspection, Jwt
from dovetail.authserver import AuthServer, Provider, SignIn
from dovetail.compat import no_equal
from dovetail.compat.fastmcp_context import PAGE
from dovetail.compat.shared import AccessToken, PeerVerifier
from dovetail.errors import SetupError
from dovetail.server import Server

log = logging.getLogger("dovetail.compat")
Scopes = Sequence[str] | str | None


# ── checks of access ──


@dataclass
class AuthContext:
    """What a check decides by: the token, and the tool, resource or prompt."""

    token: AccessToken | None
    component: Any

    @property
    def tool(self) -> Any:
        return self.component if getattr(self.component, "kind", "") == "tool" else None


AuthCheck = Callable[[AuthContext], bool | Awaitable[bool]]


def require_scopes(*scopes: str) -> AuthCheck:
    return lambda ctx: ctx.token is not None and set(scopes) <= set(ctx.token.scopes)


def restrict_tag(tag: str, *, scopes: Sequence[str]) -> AuthCheck:
    """A check that concerns only what has the tag."""
    return lambda ctx: tag not in ctx.component.tags or require_scopes(*scopes)(ctx)


def require_roles(*roles: str, extract: Callable[[dict[str, Any]], Iterable[str]]) -> AuthCheck:
    def check(ctx: AuthContext) -> bool:
        try:
            found = () if ctx.token is None else extract(ctx.token.claims)
            return ctx.token is not None and set(roles) <= set([found] if isinstance(found, str) else found)
        except (KeyError, IndexError, TypeError):  # the token lacks the claim
            return False

    return check


async def run_auth_checks(checks: AuthCheck | Sequence[AuthCheck], ctx: AuthContext) -> bool:
    """Whether all checks agree; one that fails does not."""
    for check in checks if isinstance(checks, Sequence) else [checks]:
        try:
            verdict = check(ctx)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except Exception:
            log.exception("the check %r failed, which denies access", check)
            return False
        if verdict is not True:
            return False
    return True


# ── verifiers and providers ──


class AuthProvider:
    """What `FastMCP(auth=)` takes; it becomes `Server(auth=)` when the path of the endpoint is known."""

    server: Server | None = None  # that it protects

    def __init__(self, base_url: Any = None, required_scopes: Scopes = None) -> None:
        self.base_url = None if base_url is None else str(base_url).rstrip("/")
        self.required_scopes = _scopes(required_scopes)

    def public_url(self, path: str) -> str | None:
        return None if self.base_url is None else f"{self.base_url}{path}"

    def verifiers(self, path: str) -> list[Any]:
        raise no_equal(type(self).__name__, PAGE, "give Server(auth=) an AuthServer, a verifier or a function")

    def auth(self, path: str) -> Auth:
        return Auth(self.verifiers(path), public_url=self.public_url(path), scopes=self.required_scopes)

    def get_well_known_routes(self, mcp_path: str = "/mcp") -> list[Any]:
        """Starlette routes for the origin of a host that has the app below a path."""
        from starlette.routing import Route

        base = "" if self.base_url is None else "".join(self.base_url.partition("://")[2].partition("/")[1:]).rstrip("/")
        paths = (f"oauth-protected-resource{base}{mcp_path}", f"oauth-authorization-server{base}")
        return [Route(f"/.well-known/{path}", _Documents(self, mcp_path)) for path in paths]


class _Documents:  # no function, or Starlette would wrap it
    def __init__(self, provider: AuthProvider, path: str) -> None:
        self._provider, self._path = provider, path

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._provider.server is None:
            raise SetupError("get_well_known_routes: the provider belongs to no server; write FastMCP(auth=…)")
        await self._provider.server.well_known(path=self._path)(scope, receive, send)


def _scopes(given: Scopes) -> list[str]:
    return given.replace(",", " ").split() if isinstance(given, str) else list(given or ())


class TokenVerifier(AuthProvider):
    """A verifier; a user's own has `verify_token`."""

    async def verify_token(self, token: str) -> AccessToken | None:
        raise NotImplementedError(f"{type(self).__name__}.verify_token")

    def verifiers(self, path: str) -> list[Any]:
        return [PeerVerifier(self, None, self.public_url(path), needs_resource=False)]


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
        self.issuers: list[str] = [issuer] if isinstance(issuer, str) else list(issuer)
        key = "secret" if algorithm is not None and algorithm.startswith("HS") else "public_key"
        url = None if jwks_uri is None else str(jwks_uri)
        algorithms = None if algorithm is None else [algorithm]
        self._options = {key: public_key, "jwks_uri": url, "audience": audience, "algorithms": algorithms}
        _check_others(others, type(self).__name__)

    def verifiers(self, path: str) -> list[Any]:
        options = {**self._options, "audience": self._options["audience"] or self.public_url(path)}
        return [Jwt(issuer, **options) for issuer in self.issuers]


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


class DebugTokenVerifier(TokenVerifier):
    """Takes each token that a function agrees to, for development."""

    def __init__(
        self, validate: Callable[[str], Any] = bool, client_id: str = "debug-client", scopes: Sequence[str] | None = None,
        required_scopes: Scopes = None,
    ) -> None:  # fmt: skip
        super().__init__(None, required_scopes)
        self._validate, self._client_id, self._scopes = validate, client_id, scopes or ()
        log.warning("DebugTokenVerifier: any caller may say that it is %s; not for production", client_id)

    async def verify_token(self, token: str) -> AccessToken | None:
        verdict = self._validate(token)
        is_good = await verdict if inspect.isawaitable(verdict) else verdict
        return AccessToken(client_id=self._client_id, scopes=self._scopes) if is_good and token else None


class IntrospectionTokenVerifier(TokenVerifier):
    """Becomes an `Introspection`."""

    def __init__(
        self, *, introspection_url: Any, client_id: str, client_secret: Any, required_scopes: Scopes = None,
        audience: Any = None, base_url: Any = None, cache_ttl_seconds: float | None = None, **others: Any,
    ) -> None:  # fmt: skip
        super().__init__(base_url, required_scopes)
        secret = client_secret if isinstance(client_secret, str) else client_secret.get_secret_value()
        cache = {} if cache_ttl_seconds is None else {"cache_seconds": cache_ttl_seconds}
        self._endpoint = str(introspection_url)
        self._options = {"client_id": client_id, "client_secret": secret, "audience": audience, **cache}
        _check_others(others, type(self).__name__)

    def verifiers(self, path: str) -> list[Any]:
        return [Introspection(self._endpoint, **self._options)]


class RemoteAuthProvider(AuthProvider):
    """Tokens of an authorization server elsewhere, which clients are sent to."""

    def __init__(
        self, token_verifier: TokenVerifier, authorization_servers: Sequence[Any], base_url: Any,
        scopes_supported: Sequence[str] | None = None, resource_name: str | None = None, resource_documentation: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(base_url, token_verifier.required_scopes)
        del resource_name  # it is that of the server
        documentation = None if resource_documentation is None else str(resource_documentation)
        self._verifier, self._servers = token_verifier, [str(each) for each in authorization_servers]
        self._options: dict[str, Any] = {"scopes_supported": scopes_supported or (), "documentation": documentation}

    def auth(self, path: str) -> Auth:
        options = {"public_url": self.public_url(path), "scopes": self.required_scopes, **self._options}
        return Auth(self._verifier.verifiers(path), authorization_servers=self._servers, **options)


class _Issuer(RemoteAuthProvider):
    """An issuer with which clients register themselves; its places are templates of the constructor's keywords."""

    issuer, keys, server, audience, algorithm = "", "{issuer}/jwks", "{issuer}", "", None

    def __init__(
        self, *, base_url: Any, required_scopes: Scopes = None, audience: Any = None, token_verifier: Any = None, **given: Any
    ) -> None:
        metadata = {name: given.pop(name, None) for name in ("scopes_supported", "resource_name", "resource_documentation")}
        places = {name: str(value).rstrip("/") for name, value in given.items()}
        issuer = self.issuer.format(**places)
        options = {"issuer": issuer, "jwks_uri": self.keys.format(issuer=issuer, **places), "base_url": base_url}
        options |= {"audience": audience or self.audience.format(**places), "algorithm": given.get("algorithm")}
        verifier = token_verifier or _EndpointVerifier(**options, required_scopes=required_scopes)
        super().__init__(verifier, [self.server.format(issuer=issuer, **places)], base_url, **metadata)


class KeycloakAuthProvider(_Issuer):
    issuer, keys = "{realm_url}", "{issuer}/protocol/openid-connect/certs"


class AuthKitProvider(_Issuer):
    issuer, keys = "{authkit_domain}", "{issuer}/oauth2/jwks"


class ScalekitProvider(_Issuer):
    issuer, keys, audience = "{environment_url}", "{issuer}/keys", "{resource_id}"
    server = "{environment_url}/resources/{resource_id}"


class SupabaseProvider(_Issuer):
    issuer, keys, audience = "{project_url}/auth/v1", "{issuer}/.well-known/jwks.json", "authenticated"


class AzureJWTVerifier(JWTVerifier):
    def __init__(
        self, *, client_id: str, tenant_id: str, required_scopes: Scopes = None, identifier_uri: str | None = None,
        base_authority: str = "login.microsoftonline.com",
    ) -> None:  # fmt: skip
        authority, audience = f"https://{base_authority}/{tenant_id}", [client_id, identifier_uri or f"api://{client_id}"]
        keys = f"{authority}/discovery/v2.0/keys"
        super().__init__(issuer=f"{authority}/v2.0", jwks_uri=keys, audience=audience, required_scopes=required_scopes)


class MultiAuth(AuthProvider):
    """Several of them: the first that knows a token counts."""

    def __init__(
        self, *, server: AuthProvider | None = None, verifiers: Any = (), base_url: Any = None, required_scopes: Scopes = None
    ) -> None:
        listed = [verifiers] if isinstance(verifiers, AuthProvider) else list(verifiers or ())
        self._parts = listed if server is None else [server, *listed]
        if not self._parts:
            raise ValueError("MultiAuth needs a server or a verifier")
        first = self._parts[0]
        super().__init__(base_url or first.base_url, first.required_scopes if required_scopes is None else required_scopes)

    def verifiers(self, path: str) -> list[Any]:
        return [found for each in self._parts for found in each.verifiers(path)]


# ── users sign in at an identity provider ──

LIFETIME = "the tokens of Dovetail have lifetimes of their own"
WITHOUT_EFFECT = {
    "client_storage": "grants are in the state of the server: run(state=…)",
    "fallback_access_token_expiry_seconds": LIFETIME,
    "fallback_refresh_token_expiry_seconds": LIFETIME,
    "fastmcp_access_token_expiry_seconds": LIFETIME,
    "http_client": "Dovetail makes its requests itself",
    "jwt_signing_key": "the secret of all workers is in DOVETAIL_SECRET",
    "redirect_path": "register {base_url}/callback as the redirect URI",
    "require_authorization_consent": "users are always asked",
}
REFUSED = {
    "allowed_client_redirect_uris": "the consent page shows where the answer goes",
    "client_auth_method": "it is client_secret_basic",
    "extra_token_params": "token requests have no more parameters than OAuth's",
    "identity_assertion": "there is no such grant",
    "resource_base_url": "the endpoint is below base_url",
    "token_issuer": "the issuer is that of the tenant",
}
OF_NO_CONSEQUENCE = {
    "cache_ttl_seconds", "consent_csp_policy", "forward_pkce", "forward_resource", "issuer_url", "jwks_refresh_interval",
    "max_cache_size", "service_documentation_url", "ssrf_safe", "strict", "timeout_seconds", "token_endpoint_auth_method",
    "token_expiry_threshold_seconds", "upstream_revocation_endpoint", "verify_id_token",
}  # fmt: skip


def _check_others(others: Mapping[str, Any], where: str) -> None:
    """Warn of keywords without an effect; refuse those that must not be ignored."""
    for name, value in others.items():
        if name not in OF_NO_CONSEQUENCE | WITHOUT_EFFECT.keys() | REFUSED.keys():
            raise TypeError(f"{where} got an unexpected keyword argument {name!r}")
        if value is not None and name in REFUSED:
            raise no_equal(f"{where}({name}=)", PAGE, REFUSED[name])
        if value not in (None, True) and name in WITHOUT_EFFECT:
            log.warning("%s(%s=) has no effect: %s", where, name, WITHOUT_EFFECT[name])


class SignInProvider(AuthProvider):
    """`AuthServer(sign_in=)`. Users get those scopes that the identity provider has granted for them."""

    prefix = ""  # of the server's scopes at the identity provider

    def __init__(
        self, *, client_id: str, client_secret: str | None = None, base_url: Any = None, required_scopes: Scopes = None,
        valid_scopes: Sequence[str] | None = None, additional_authorize_scopes: Sequence[str] | None = None,
        extra_authorize_params: Mapping[str, str] | None = None, enable_cimd: bool = True, **others: Any,
    ) -> None:  # fmt: skip
        super().__init__(base_url, required_scopes)
        self.credentials = (client_id, client_secret or "")
        self.scopes_supported = list(dict.fromkeys([*self.required_scopes, *(valid_scopes or ())]))
        self._more_scopes = list(additional_authorize_scopes or ())
        self._parameters, self._cimd = dict(extra_authorize_params or {}), enable_cimd
        _check_others(others, type(self).__name__)

    def sign_in(self, **options: Any) -> SignIn:
        raise NotImplementedError

    def verifiers(self, path: str) -> list[Any]:
        if self.base_url is None:
            raise TypeError(f"{type(self).__name__} needs base_url=")
        upstream = [self._upstream(each) for each in self.scopes_supported]
        sign_in = self.sign_in(scopes=[*upstream, *self._more_scopes], scopes_for=self._granted)
        row = sign_in.provider.row
        sign_in.provider.row = msgspec.structs.replace(row, parameters={**row.parameters, **self._parameters})
        log.info("%s: the redirect URI to register is %s/callback", type(self).__name__, self.base_url)
        scopes = {each: each for each in self.scopes_supported}
        resource = f"{self.base_url}{path}"
        return [AuthServer(self.base_url, resource=resource, sign_in=sign_in, scopes=scopes, cimd=self._cimd)]

    def _upstream(self, scope: str) -> str:
        is_own = "://" not in scope and scope not in ("openid", "profile", "email", "offline_access")
        return f"{self.prefix}{scope}" if is_own else scope

    def _granted(self, claims: Mapping[str, Any]) -> list[str]:
        granted = claims.get("granted_scopes", ())
        return [each for each in self.scopes_supported if {each, self._upstream(each)} & set(granted)]


class GitHubProvider(SignInProvider):
    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.github(*self.credentials, **options)


class GoogleProvider(SignInProvider):
    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.google(*self.credentials, **options)


class DiscordProvider(SignInProvider):
    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.discord(*self.credentials, **options)


class WorkOSProvider(SignInProvider):
    def __init__(self, *, authkit_domain: Any, **options: Any) -> None:
        super().__init__(**options)
        self._domain = str(authkit_domain)

    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.workos(*self.credentials, domain=self._domain, **options)


class AWSCognitoProvider(SignInProvider):
    def __init__(self, *, user_pool_id: str, aws_region: str = "eu-central-1", **options: Any) -> None:
        super().__init__(**options)
        self._pool = {"region": aws_region, "pool": user_pool_id}

    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.cognito(*self.credentials, **self._pool, **options)


class AzureProvider(SignInProvider):
    def __init__(
        self, *, tenant_id: str, identifier_uri: str | None = None, base_authority: str = "login.microsoftonline.com",
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self._tenant = {"tenant": tenant_id, "cloud": f"https://{base_authority}"}
        self.prefix = f"{identifier_uri or f'api://{self.credentials[0]}'}/"

    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.entra(*self.credentials, **self._tenant, **options)

    @classmethod
    def from_b2c(cls, **_: Any) -> "AzureProvider":
        raise no_equal("AzureProvider.from_b2c", PAGE, "SignIn.oidc(issuer, client_id, client_secret) may do")


class OIDCProxy(SignInProvider):
    """A provider with OpenID Connect, by the URL of its metadata."""

    def __init__(self, *, config_url: Any, audience: str | None = None, **options: Any) -> None:
        for name in ("token_verifier", "algorithm"):  # the id token says who the user is
            options.pop(name, None)
        super().__init__(**options)
        self.issuer = str(config_url).removesuffix("/.well-known/openid-configuration").rstrip("/")
        self._parameters |= {} if audience is None else {"audience": audience}

    def sign_in(self, **options: Any) -> SignIn:
        host, issuers = self.issuer.partition("://")[2], (self.issuer, f"{self.issuer}/")  # some end in a slash
        row = Provider(name=host, key=host, issuer=self.issuer, issuers=issuers, groups=("groups",))
        return SignIn(row, *self.credentials, **options)


class Auth0Provider(OIDCProxy):
    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.auth0(*self.credentials, domain=self.issuer, **options)


class OCIProvider(OIDCProxy):
    pass


class ClerkProvider(OIDCProxy):
    def __init__(self, *, domain: str, **options: Any) -> None:
        super().__init__(config_url=f"https://{domain}", **options)


class HuggingFaceProvider(OIDCProxy):
    def __init__(self, **options: Any) -> None:
        super().__init__(config_url="https://huggingface.co", **options)


class OAuthProxy(OIDCProxy):
    """Users sign in at the issuer of upstream tokens, whose metadata name the endpoints."""

    def __init__(
        self, *, upstream_client_id: str, token_verifier: Any, upstream_client_secret: str | None = None,
        upstream_authorization_endpoint: Any, upstream_token_endpoint: Any, required_scopes: Scopes = None, **options: Any,
    ) -> None:  # fmt: skip
        del upstream_authorization_endpoint, upstream_token_endpoint
        if not isinstance(token_verifier, JWTVerifier):
            fix = "without a JWTVerifier, which names the issuer, write SignIn(Provider(…), client_id, client_secret)"
            raise no_equal(f"OAuthProxy(token_verifier={type(token_verifier).__name__})", PAGE, fix)
        scopes = required_scopes or token_verifier.required_scopes
        credentials = {"client_id": upstream_client_id, "client_secret": upstream_client_secret}
        super().__init__(config_url=token_verifier.issuers[0], required_scopes=scopes, **credentials, **options)

