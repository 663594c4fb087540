"""FastMCP's verifiers and providers on dovetail.auth and dovetail.authserver, and checks of access."""

import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

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
    issuers: Sequence[str] = ()  # where clients get tokens, if the verifiers do not say it
    options: Mapping[str, Any] = {}  # more of `Auth`

    def __init__(self, base_url: Any = None, required_scopes: Scopes = None) -> None:
        self.base_url = None if base_url is None else str(base_url).rstrip("/")
        self.required_scopes = _scopes(required_scopes)

    def public_url(self, path: str) -> str | None:
        return None if self.base_url is None else f"{self.base_url}{path}"

    def verifiers(self, path: str) -> list[Any]:  # noqa: ARG002
        raise no_equal(type(self).__name__, PAGE, "give Server(auth=) an AuthServer, a verifier or a function")

    def auth(self, path: str) -> Auth:
        options = {"public_url": self.public_url(path), "scopes": self.required_scopes, **self.options}
        return Auth(self.verifiers(path), authorization_servers=self.issuers, **options)

    def get_well_known_routes(self, mcp_path: str = "/mcp") -> list[Any]:
        """Starlette routes for the origin of a host that has the app below a path."""
        from starlette.routing import Route

        base = urlsplit(self.base_url or "").path.rstrip("/")
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


class DebugTokenVerifier(TokenVerifier):
    """Takes each token that a function agrees to, for development."""

    def __init__(
        self, validate: Callable[[str], Any] = bool, client_id: str = "debug-client", scopes: Scopes = None,
        required_scopes: Scopes = None,
    ) -> None:  # fmt: skip
        super().__init__(None, required_scopes)
        self._validate, self._client_id, self._scopes = validate, client_id, _scopes(scopes)
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

    def verifiers(self, path: str) -> list[Any]:  # noqa: ARG002
        return [Introspection(self._endpoint, **self._options)]


class RemoteAuthProvider(AuthProvider):
    """Tokens of an authorization server elsewhere, which clients are sent to."""

    def __init__(
        self, token_verifier: TokenVerifier, authorization_servers: Sequence[Any], base_url: Any,
        scopes_supported: Scopes = None, resource_name: str | None = None, resource_documentation: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(base_url, token_verifier.required_scopes)
        del resource_name  # it is that of the server
        documentation = None if resource_documentation is None else str(resource_documentation)
        self._verifier, self.issuers = token_verifier, [str(each) for each in authorization_servers]
        self.options = {"scopes_supported": _scopes(scopes_supported), "documentation": documentation}

    def verifiers(self, path: str) -> list[Any]:
        return self._verifier.verifiers(path)


class _Issuer(RemoteAuthProvider):
    """An issuer with which clients register themselves; its places are templates of the constructor's keywords."""

    issuer, keys, audience, listed = "", "", "", "{issuer}"

    def __init__(
        self, *, base_url: Any, required_scopes: Scopes = None, audience: Any = None, token_verifier: Any = None,
        scopes_supported: Scopes = None, resource_name: str | None = None, resource_documentation: Any = None,
        **given: Any,
    ) -> None:  # fmt: skip
        places = {name: str(value).rstrip("/") for name, value in given.items()}
        places["issuer"] = issuer = self.issuer.format(**places)
        options = {"issuer": issuer, "jwks_uri": self.keys.format(**places), "base_url": base_url}
        options |= {"audience": audience or self.audience.format(**places), "algorithm": given.get("algorithm")}
        verifier = token_verifier or _EndpointVerifier(**options, required_scopes=required_scopes)
        more = {"scopes_supported": scopes_supported, "resource_documentation": resource_documentation}
        super().__init__(verifier, [self.listed.format(**places)], base_url, resource_name=resource_name, **more)


class KeycloakAuthProvider(_Issuer):
    issuer, keys = "{realm_url}", "{issuer}/protocol/openid-connect/certs"


class AuthKitProvider(_Issuer):
    issuer, keys = "{authkit_domain}", "{issuer}/oauth2/jwks"


class ScalekitProvider(_Issuer):
    issuer, keys, audience = "{environment_url}", "{issuer}/keys", "{resource_id}"
    listed = "{environment_url}/resources/{resource_id}"


class SupabaseProvider(_Issuer):
    issuer, keys, audience = "{project_url}/auth/v1", "{issuer}/.well-known/jwks.json", "authenticated"


class AzureJWTVerifier(JWTVerifier):
    def __init__(
        self, *, client_id: str, tenant_id: str, required_scopes: Scopes = None, identifier_uri: str | None = None,
        base_authority: str = "login.microsoftonline.com",
    ) -> None:  # fmt: skip
        authority, own = f"https://{base_authority}/{tenant_id}", identifier_uri or f"api://{client_id}"
        places = {"issuer": f"{authority}/v2.0", "jwks_uri": f"{authority}/discovery/v2.0/keys"}
        super().__init__(**places, audience=[client_id, own], required_scopes=required_scopes)


class MultiAuth(AuthProvider):
    """Several of them: the first that knows a token counts."""

    def __init__(
        self, *, server: AuthProvider | None = None, verifiers: Any = (), base_url: Any = None,
        required_scopes: Scopes = None,
    ) -> None:  # fmt: skip
        listed = [verifiers] if isinstance(verifiers, AuthProvider) else list(verifiers or ())
        self._parts = listed if server is None else [server, *listed]
        if not self._parts:
            raise ValueError("MultiAuth needs a server or a verifier")
        first = self._parts[0]
        super().__init__(
            base_url or first.base_url, first.required_scopes if required_scopes is None else required_scopes
        )
        self.issuers = first.issuers

    def verifiers(self, path: str) -> list[Any]:
        return [found for each in self._parts for found in each.verifiers(path)]


# ── users sign in at an identity provider ──

REFUSED = {
    "allowed_client_redirect_uris": "the consent page shows where the answer goes",
    "client_auth_method": "it is client_secret_basic",
    "extra_token_params": "token requests have no more parameters than OAuth's",
    "identity_assertion": "there is no such grant",
    "resource_base_url": "the endpoint is below base_url",
    "token_issuer": "the issuer is that of the tenant",
}


def _check_others(others: Mapping[str, Any], where: str) -> None:
    """Refuse keywords that must not be ignored, and warn of others, which have no effect."""
    for name in (name for name, value in others.items() if value is not None):
        if name in REFUSED:
            raise no_equal(f"{where}({name}=)", PAGE, REFUSED[name])
        log.warning('%s(%s=) has no effect; see the page "%s" of the docs', where, name, PAGE)


class SignInProvider(AuthProvider):
    """`AuthServer(sign_in=)`: users get those scopes of the server that the identity provider has granted for them."""

    make: Callable[..., SignIn]  # from the own keywords of a class, the credentials, and options of all

    def __init__(
        self, *, client_id: str, client_secret: str | None = None, base_url: Any, required_scopes: Scopes = None,
        valid_scopes: Scopes = None, additional_authorize_scopes: Scopes = None, enable_cimd: bool = True,
        extra_authorize_params: Mapping[str, str] | None = None, **own: Any,
    ) -> None:  # fmt: skip
        super().__init__(base_url, required_scopes)
        self.own, self.credentials = own, (client_id, client_secret or "")
        self.scopes_supported = list(dict.fromkeys([*self.required_scopes, *_scopes(valid_scopes)]))
        self._more_scopes, self._cimd = _scopes(additional_authorize_scopes), enable_cimd
        self._parameters = dict(extra_authorize_params or {})
        _check_others({name: value for name, value in own.items() if name not in OWN}, type(self).__name__)

    def verifiers(self, path: str) -> list[Any]:
        scopes = {scope: scope for scope in self.scopes_supported}
        upstream = [*map(self._upstream, scopes), *self._more_scopes]
        scopes_for = self._granted if scopes else None
        sign_in = type(self).make(self.own, *self.credentials, scopes=upstream, scopes_for=scopes_for)
        row = sign_in.provider.row
        sign_in.provider.row = msgspec.structs.replace(row, parameters={**row.parameters, **self._parameters})
        log.info("%s: the redirect URI to register is %s/callback", type(self).__name__, self.base_url)
        server, endpoint = str(self.base_url), f"{self.base_url}{path}"
        return [AuthServer(server, resource=endpoint, sign_in=sign_in, scopes=scopes, cimd=self._cimd)]

    def _upstream(self, scope: str) -> str:
        """A scope as the identity provider names it: Azure's have a prefix."""
        is_own = "tenant_id" in self.own and "://" not in scope and scope not in OPENID
        return f"{self.own.get('identifier_uri') or f'api://{self.credentials[0]}'}/{scope}" if is_own else scope

    def _granted(self, claims: Mapping[str, Any]) -> list[str]:
        granted = set(claims["granted_scopes"])
        return [each for each in self.scopes_supported if granted & {each, self._upstream(each)}]


OPENID = {"openid", "profile", "email", "offline_access"}
OWN = {  # keywords of single classes
    "audience", "authkit_domain", "aws_region", "base_authority", "config_url", "domain", "identifier_uri", "tenant_id",
    "token_verifier", "algorithm", "user_pool_id",
}  # fmt: skip


def _issuer(own: Mapping[str, Any]) -> str:
    return str(own["config_url"]).removesuffix("/.well-known/openid-configuration").rstrip("/")


def _open_id(issuer: str, own: Mapping[str, Any], *credentials: str, **options: Any) -> SignIn:
    host = urlsplit(issuer).netloc
    parameters = {"audience": own["audience"]} if own.get("audience") else {}
    issuers = (issuer, f"{issuer}/")  # some end in a slash
    row = Provider(name=host, key=host, issuer=issuer, issuers=issuers, parameters=parameters)
    return SignIn(row, *credentials, **options)


def _provider(name: str, make: Callable[..., SignIn]) -> type[SignInProvider]:
    return type(name, (SignInProvider,), {"make": make, "__module__": __name__})


GitHubProvider = _provider("GitHubProvider", lambda _, *pair, **more: SignIn.github(*pair, **more))
GoogleProvider = _provider("GoogleProvider", lambda _, *pair, **more: SignIn.google(*pair, **more))
DiscordProvider = _provider("DiscordProvider", lambda _, *pair, **more: SignIn.discord(*pair, **more))
WorkOSProvider = _provider(
    "WorkOSProvider", lambda own, *pair, **more: SignIn.workos(*pair, domain=str(own["authkit_domain"]), **more)
)
Auth0Provider = _provider(
    "Auth0Provider",
    lambda own, *pair, **more: SignIn.auth0(*pair, domain=_issuer(own), audience=own.get("audience") or "", **more),
)
AWSCognitoProvider = _provider(
    "AWSCognitoProvider",
    lambda own, *pair, **more: SignIn.cognito(
        *pair, region=own.get("aws_region", "eu-central-1"), pool=own["user_pool_id"], **more
    ),
)
OIDCProxy = _provider("OIDCProxy", lambda own, *pair, **more: _open_id(_issuer(own), own, *pair, **more))
OCIProvider = _provider("OCIProvider", lambda own, *pair, **more: _open_id(_issuer(own), own, *pair, **more))
ClerkProvider = _provider(
    "ClerkProvider", lambda own, *pair, **more: _open_id(f"https://{own['domain']}", own, *pair, **more)
)
HuggingFaceProvider = _provider(
    "HuggingFaceProvider", lambda own, *pair, **more: _open_id("https://huggingface.co", own, *pair, **more)
)


class AzureProvider(SignInProvider):
    @staticmethod
    def make(own: Mapping[str, Any], *credentials: str, **options: Any) -> SignIn:
        cloud = f"https://{own.get('base_authority', 'login.microsoftonline.com')}"
        return SignIn.entra(*credentials, tenant=own["tenant_id"], cloud=cloud, **options)

    @classmethod
    def from_b2c(cls, **_: Any) -> "AzureProvider":
        raise no_equal("AzureProvider.from_b2c", PAGE, "SignIn.oidc(issuer, client_id, client_secret) may do")


class OAuthProxy(SignInProvider):
    """Users sign in at the issuer of upstream tokens; its metadata name the endpoints."""

    def __init__(
        self, *, upstream_client_id: str, upstream_client_secret: str | None = None, token_verifier: Any,
        upstream_authorization_endpoint: Any, upstream_token_endpoint: Any, required_scopes: Scopes = None, **own: Any,
    ) -> None:  # fmt: skip
        del upstream_authorization_endpoint, upstream_token_endpoint
        if not isinstance(token_verifier, JWTVerifier):
            fix = "without a JWTVerifier, which names the issuer, write SignIn(Provider(…), client_id, client_secret)"
            raise no_equal(f"OAuthProxy(token_verifier={type(token_verifier).__name__})", PAGE, fix)
        scopes, issuer = required_scopes or token_verifier.required_scopes, token_verifier.trusted[0]
        own |= {"client_id": upstream_client_id, "client_secret": upstream_client_secret}
        super().__init__(required_scopes=scopes, config_url=issuer, **own)

    make = OIDCProxy.make
