"""FastMCP's verifiers and providers on dovetail.auth and dovetail.authserver, and checks of access."""

import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec

from dovetail.auth import Auth, Introspection, Jwt, Principal
from dovetail.authserver import AuthServer, Provider, SignIn
from dovetail.compat import no_equal
from dovetail.errors import SetupError
from dovetail.server import Server

log = logging.getLogger("dovetail.compat")
PAGE = "From FastMCP"
NO_TOKEN = "tokens never reach functions; `await ctx.upstream_token()` is the user's token at the identity provider"


class AccessToken:
    """What is known of the caller's token; never the token itself."""

    def __init__(
        self, token: str = "", client_id: str = "", scopes: Sequence[str] = (), expires_at: float | None = None,
        claims: Mapping[str, Any] | None = None, subject: str | None = None, resource: str | None = None,
    ) -> None:  # fmt: skip
        del token
        self.client_id, self.scopes, self.claims = client_id, list(scopes), dict(claims or {})
        self.expires_at, self.resource = expires_at, resource
        self.subject = subject if subject is not None else self.claims.get("sub")

    @property
    def token(self) -> str:
        raise no_equal("AccessToken.token", PAGE, NO_TOKEN)

    @classmethod
    def of(cls, principal: Principal | None) -> "AccessToken | None":
        if principal is None:
            return None
        client, subject = principal.client or principal.subject or "", principal.subject
        claims = {**({} if subject is None else {"sub": subject}), **principal.claims}
        return cls("", client, sorted(principal.scopes), principal.expires_at, claims, subject)

    def principal(self) -> Principal:
        subject = self.subject if isinstance(self.subject, str) else None
        scopes = frozenset(self.scopes)
        return Principal(
            subject=subject, client=self.client_id or None, scopes=scopes, claims=self.claims, expires_at=self.expires_at
        )


# ── checks of access ──


@dataclass
class AuthContext:
    """What a check decides by."""

    token: AccessToken | None
    component: Any

    @property
    def tool(self) -> Any:
        return self.component if hasattr(self.component, "input_schema") else None


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
            return ctx.token is not None and set(roles) <= {found} if isinstance(found, str) else set(roles) <= {*found}
        except (KeyError, IndexError, TypeError):
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
    """What `FastMCP(auth=)` takes: becomes `Server(auth=)` when the path of the endpoint is known."""

    def __init__(self, base_url: Any = None, required_scopes: Sequence[str] | str | None = None) -> None:
        self.base_url = None if base_url is None else str(base_url).rstrip("/")
        given = required_scopes.replace(",", " ").split() if isinstance(required_scopes, str) else required_scopes
        self.required_scopes = list(given or ())
        self.server: Server | None = None  # whose endpoint it protects

    def public_url(self, path: str) -> str | None:
        return None if self.base_url is None else f"{self.base_url}{path}"

    def verifiers(self, path: str) -> list[Any]:
        """What Dovetail's `Auth` takes."""
        raise no_equal(type(self).__name__, PAGE, "give Server(auth=) an AuthServer, a verifier or a function")

    def auth(self, path: str) -> Auth:
        return Auth(self.verifiers(path), public_url=self.public_url(path), scopes=self.required_scopes)

    def get_well_known_routes(self, mcp_path: str = "/mcp") -> list[Any]:
        """Routes of a host that has the app below a path: what clients look for at the origin."""
        from starlette.routing import Route

        class Documents:  # not a function: Starlette would wrap it
            async def __call__(_, scope: Any, receive: Any, send: Any) -> None:  # noqa: N805
                if self.server is None:
                    raise SetupError(f"{type(self).__name__}: its routes need a server, FastMCP(auth=…)")
                await self.server.well_known(path=mcp_path)(scope, receive, send)

        base = "" if self.base_url is None else "/" + self.base_url.partition("://")[2].partition("/")[2]
        base, prefix = base.rstrip("/"), "/.well-known/oauth-"
        paths = (f"{prefix}protected-resource{base}{mcp_path}", f"{prefix}authorization-server{base}")
        return [Route(path, Documents()) for path in paths]


class TokenVerifier(AuthProvider):
    """A subclass has `verify_token`."""

    async def verify_token(self, token: str) -> AccessToken | None:
        raise NotImplementedError(f"{type(self).__name__}.verify_token")

    def verifiers(self, path: str) -> list[Any]:
        del path

        async def verify(token: str) -> Principal | None:
            found = await self.verify_token(token)
            return None if found is None else found.principal()

        return [verify]


class JWTVerifier(TokenVerifier):
    """Becomes a `Jwt` for each issuer."""

    def __init__(
        self, *, public_key: str | bytes | None = None, jwks_uri: Any = None, issuer: Any = None, audience: Any = None,
        algorithm: str | None = None, required_scopes: Sequence[str] | None = None, base_url: Any = None, **others: Any,
    ) -> None:  # fmt: skip
        super().__init__(base_url, required_scopes)
        if not issuer or not audience:
            reason = "without issuer= and audience= it would take tokens that were made for others"
            raise no_equal(f"{type(self).__name__} without them", PAGE, reason)
        self.issuers: list[str] = [issuer] if isinstance(issuer, str) else list(issuer)
        key = "secret" if algorithm is not None and algorithm.startswith("HS") else "public_key"
        url = None if jwks_uri is None else str(jwks_uri)
        algorithms = None if algorithm is None else [algorithm]
        self.options = {key: public_key, "jwks_uri": url, "audience": audience, "algorithms": algorithms}
        _warn_of(others, type(self).__name__)

    def verifiers(self, path: str) -> list[Any]:
        del path
        return [Jwt(issuer, **self.options) for issuer in self.issuers]


class StaticTokenVerifier(TokenVerifier):
    """Tokens in the program, for development."""

    def __init__(self, tokens: Mapping[str, Mapping[str, Any]], required_scopes: Sequence[str] | None = None) -> None:
        super().__init__(None, required_scopes)
        self._tokens = {hashlib.sha256(token.encode()).digest(): dict(known) for token, known in tokens.items()}

    async def verify_token(self, token: str) -> AccessToken | None:
        known = self._tokens.get(hashlib.sha256(token.encode()).digest())
        if known is None:
            return None
        subject = known.get("sub")
        return AccessToken("", known["client_id"], known.get("scopes", ()), known.get("expires_at"), known, subject)


class DebugTokenVerifier(TokenVerifier):
    """Takes every token that a function agrees to, for development."""

    def __init__(
        self, validate: Callable[[str], bool | Awaitable[bool]] = lambda token: True, client_id: str = "debug-client",
        scopes: Sequence[str] | None = None, required_scopes: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(None, required_scopes)
        self._validate, self._client_id, self._scopes = validate, client_id, scopes or ()
        log.warning("DebugTokenVerifier: any caller may say that it is %s; not for production", client_id)

    async def verify_token(self, token: str) -> AccessToken | None:
        verdict = self._validate(token)
        is_good = await verdict if inspect.isawaitable(verdict) else verdict
        return AccessToken("", self._client_id, self._scopes) if is_good and token else None


class IntrospectionTokenVerifier(TokenVerifier):
    """Becomes an `Introspection`."""

    def __init__(
        self, *, introspection_url: Any, client_id: str, client_secret: Any, required_scopes: Sequence[str] | None = None,
        audience: Any = None, base_url: Any = None, cache_ttl_seconds: float | None = None, **others: Any,
    ) -> None:  # fmt: skip
        super().__init__(base_url, required_scopes)
        if others.get("client_auth_method", "client_secret_basic") != "client_secret_basic":
            raise no_equal("IntrospectionTokenVerifier(client_auth_method=)", PAGE, "it is client_secret_basic")
        secret = client_secret if isinstance(client_secret, str) else client_secret.get_secret_value()
        self._endpoint = str(introspection_url)
        self._options = {"client_id": client_id, "client_secret": secret, "audience": audience}
        self._options |= {} if cache_ttl_seconds is None else {"cache_seconds": cache_ttl_seconds}
        _warn_of(others, type(self).__name__)

    def verifiers(self, path: str) -> list[Any]:
        del path
        return [Introspection(self._endpoint, **self._options)]


class RemoteAuthProvider(AuthProvider):
    """Tokens of an authorization server elsewhere, which clients are sent to."""

    def __init__(
        self, token_verifier: TokenVerifier, authorization_servers: Sequence[Any], base_url: Any,
        scopes_supported: Sequence[str] | None = None, resource_name: str | None = None, resource_documentation: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(base_url, token_verifier.required_scopes)
        del resource_name  # it is the server's
        self.token_verifier = token_verifier
        self._servers = [str(each).rstrip("/") if "://" in str(each) else str(each) for each in authorization_servers]
        self._documentation = None if resource_documentation is None else str(resource_documentation)
        self._scopes_supported = scopes_supported or ()

    def verifiers(self, path: str) -> list[Any]:
        return self.token_verifier.verifiers(path)

    def auth(self, path: str) -> Auth:
        return Auth(
            self.verifiers(path), authorization_servers=self._servers, public_url=self.public_url(path),
            scopes=self.required_scopes, scopes_supported=self._scopes_supported, documentation=self._documentation,
        )  # fmt: skip


class MultiAuth(AuthProvider):
    """Several of them: the first that knows a token counts."""

    def __init__(
        self, *, server: AuthProvider | None = None, verifiers: Any = (), base_url: Any = None,
        required_scopes: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        listed = [verifiers] if isinstance(verifiers, AuthProvider) else list(verifiers or ())
        self._parts = listed if server is None else [server, *listed]
        if not self._parts:
            raise ValueError("MultiAuth needs a server or a verifier")
        first = self._parts[0]
        super().__init__(base_url or first.base_url, first.required_scopes if required_scopes is None else required_scopes)

    def verifiers(self, path: str) -> list[Any]:
        return [found for each in self._parts for found in each.verifiers(path)]


# ── users sign in at an identity provider ──

# Options of the peer's proxies without an effect here, and those that must not be ignored, with reasons.
IGNORED = {
    "cache_ttl_seconds", "consent_csp_policy", "forward_pkce", "forward_resource", "http_client", "issuer_url",
    "max_cache_size", "require_authorization_consent", "service_documentation_url", "strict", "timeout_seconds",
    "token_endpoint_auth_method", "token_expiry_threshold_seconds", "upstream_revocation_endpoint", "verify_id_token",
}  # fmt: skip
WARNED = {
    "client_storage": "grants are in the state of the server: run(state=…)",
    "jwt_signing_key": "set the secret of all workers in DOVETAIL_SECRET",
    "fallback_access_token_expiry_seconds": "tokens of Dovetail have lifetimes of their own",
    "fallback_refresh_token_expiry_seconds": "tokens of Dovetail have lifetimes of their own",
    "fastmcp_access_token_expiry_seconds": "tokens of Dovetail have lifetimes of their own",
    "redirect_path": "register the redirect URI {base_url}/callback at the identity provider",
    "jwks_refresh_interval": "keys are fetched again when they are old, or unknown",
    "ssrf_safe": "requests are always checked",
}
REFUSED = {
    "allowed_client_redirect_uris": "users see on the consent page where the answer goes",
    "identity_assertion": "there is no such grant",
    "extra_token_params": "the token request has no more parameters than OAuth's",
    "resource_base_url": "the endpoint is below base_url",
    "token_issuer": "the issuer is that of the tenant",
}


def _warn_of(others: Mapping[str, Any], where: str) -> None:
    for name, value in others.items():
        if value is not None and name in REFUSED:
            raise no_equal(f"{where}({name}=)", PAGE, REFUSED[name])
        if value is not None and name in WARNED:
            log.warning("%s(%s=) has no effect: %s", where, name, WARNED[name])
        if name not in IGNORED | WARNED.keys() | REFUSED.keys():
            raise TypeError(f"{where} got an unexpected keyword argument {name!r}")


class SignInProvider(AuthProvider):
    """`AuthServer(sign_in=)`: a user gets those scopes that the identity provider has granted."""

    def __init__(
        self, *, client_id: str, client_secret: str | None = None, base_url: Any = None,
        required_scopes: Sequence[str] | str | None = None, valid_scopes: Sequence[str] | None = None,
        extra_authorize_params: Mapping[str, str] | None = None, enable_cimd: bool = True, **others: Any,
    ) -> None:  # fmt: skip
        super().__init__(base_url, required_scopes)
        self.client_id, self.client_secret = client_id, client_secret or ""
        self.scopes_supported = list(dict.fromkeys([*self.required_scopes, *(valid_scopes or ())]))
        self._parameters, self._cimd = dict(extra_authorize_params or {}), enable_cimd
        self._prefix = ""  # of scopes at the identity provider
        self._more_scopes: list[str] = []  # that only the identity provider knows
        _warn_of({"redirect_path": None, **others}, type(self).__name__)

    def sign_in(self, **options: Any) -> SignIn:
        raise NotImplementedError

    def verifiers(self, path: str) -> list[Any]:
        url = self.public_url(path)
        if url is None:
            raise TypeError(f"{type(self).__name__} needs base_url=")
        upstream = [self._upstream(each) for each in self.scopes_supported]
        sign_in = self.sign_in(scopes=[*upstream, *self._more_scopes], scopes_for=self._granted)
        row = sign_in.provider.row
        sign_in.provider.row = msgspec.structs.replace(row, parameters={**row.parameters, **self._parameters})
        scopes = {each: each for each in self.scopes_supported}
        log.info("%s: the redirect URI to register is %s/callback", type(self).__name__, self.base_url)
        return [AuthServer(str(self.base_url), resource=url, sign_in=sign_in, scopes=scopes, cimd=self._cimd)]

    def _upstream(self, scope: str) -> str:
        is_own = self._prefix and scope not in ("openid", "profile", "email", "offline_access") and "://" not in scope
        return f"{self._prefix}{scope}" if is_own else scope

    def _granted(self, claims: Mapping[str, Any]) -> list[str]:
        granted = claims.get("upstream_scopes", ())
        return [each for each in self.scopes_supported if each in granted or self._upstream(each) in granted]


class GitHubProvider(SignInProvider):
    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.github(self.client_id, self.client_secret, **options)


class GoogleProvider(SignInProvider):
    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.google(self.client_id, self.client_secret, **options)


class DiscordProvider(SignInProvider):
    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.discord(self.client_id, self.client_secret, **options)


class WorkOSProvider(SignInProvider):
    def __init__(self, *, authkit_domain: Any, **options: Any) -> None:
        super().__init__(**options)
        self._domain = str(authkit_domain)

    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.workos(self.client_id, self.client_secret, domain=self._domain, **options)


class AWSCognitoProvider(SignInProvider):
    def __init__(self, *, user_pool_id: str, aws_region: str = "eu-central-1", **options: Any) -> None:
        super().__init__(**options)
        self._pool = {"region": aws_region, "pool": user_pool_id}

    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.cognito(self.client_id, self.client_secret, **self._pool, **options)


class AzureProvider(SignInProvider):
    def __init__(
        self, *, tenant_id: str, identifier_uri: str | None = None, base_authority: str = "login.microsoftonline.com",
        additional_authorize_scopes: Sequence[str] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self._tenant = {"tenant": tenant_id, "cloud": f"https://{base_authority}"}
        self._prefix = f"{identifier_uri or f'api://{self.client_id}'}/"
        self._more_scopes = list(additional_authorize_scopes or ())

    @classmethod
    def from_b2c(cls, **_: Any) -> "AzureProvider":
        raise no_equal("AzureProvider.from_b2c", PAGE, "SignIn.oidc(issuer, …) may do")

    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.entra(self.client_id, self.client_secret, **self._tenant, **options)


class OIDCProxy(SignInProvider):
    """A provider with OpenID Connect, by the URL of its metadata."""

    def __init__(
        self, *, config_url: Any, audience: str | None = None, token_verifier: Any = None, algorithm: str | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        del token_verifier, algorithm  # the id token says who the user is
        self._issuer = str(config_url).removesuffix("/.well-known/openid-configuration").rstrip("/")
        self._parameters |= {} if audience is None else {"audience": audience}

    def sign_in(self, **options: Any) -> SignIn:
        host = self._issuer.partition("://")[2]
        names = (self._issuer, f"{self._issuer}/")  # some have a slash at the end
        row = Provider(name=host, key=host, issuer=self._issuer, issuers=names, groups=("groups",))
        return SignIn(row, self.client_id, self.client_secret, **options)


class Auth0Provider(OIDCProxy):
    def sign_in(self, **options: Any) -> SignIn:
        return SignIn.auth0(self.client_id, self.client_secret, domain=self._issuer, **options)


class OCIProvider(OIDCProxy):
    pass


class ClerkProvider(OIDCProxy):
    def __init__(self, *, domain: str, **options: Any) -> None:
        super().__init__(config_url=f"https://{domain}", **options)


class HuggingFaceProvider(OIDCProxy):
    def __init__(self, **options: Any) -> None:
        super().__init__(config_url="https://huggingface.co", **options)


class OAuthProxy(OIDCProxy):
    """Users sign in at the issuer that the verifier of upstream tokens names."""

    def __init__(
        self, *, upstream_client_id: str, token_verifier: TokenVerifier, upstream_client_secret: str | None = None,
        upstream_authorization_endpoint: Any, upstream_token_endpoint: Any, **options: Any,
    ) -> None:  # fmt: skip
        del upstream_authorization_endpoint, upstream_token_endpoint  # they are in the metadata of the issuer
        if not isinstance(token_verifier, JWTVerifier):
            fix = "without the issuer of a JWTVerifier, write a row: SignIn(Provider(…), client_id, client_secret)"
            raise no_equal(f"OAuthProxy(token_verifier={type(token_verifier).__name__})", PAGE, fix)
        required = options.pop("required_scopes", None) or token_verifier.required_scopes
        super().__init__(
            config_url=token_verifier.issuers[0], client_id=upstream_client_id, client_secret=upstream_client_secret,
            required_scopes=required, **options,
        )  # fmt: skip


# ── authorization servers with which clients register themselves ──


class KeycloakAuthProvider(RemoteAuthProvider):
    def __init__(
        self, *, realm_url: Any, base_url: Any, required_scopes: Any = None, audience: Any = None, token_verifier: Any = None
    ) -> None:
        realm = str(realm_url).rstrip("/")
        scopes = required_scopes.replace(",", " ").split() if isinstance(required_scopes, str) else required_scopes
        verifier = token_verifier or _Remote(realm, f"{realm}/protocol/openid-connect/certs", base_url, audience, scopes)
        super().__init__(verifier, [realm], base_url)


class AuthKitProvider(RemoteAuthProvider):
    def __init__(
        self, *, authkit_domain: Any, base_url: Any, required_scopes: Sequence[str] | None = None,
        token_verifier: Any = None, **others: Any,
    ) -> None:  # fmt: skip
        domain = str(authkit_domain).rstrip("/")
        verifier = token_verifier or _Remote(domain, f"{domain}/oauth2/jwks", base_url, None, required_scopes)
        super().__init__(verifier, [domain], base_url, **others)


class ScalekitProvider(RemoteAuthProvider):
    def __init__(
        self, *, environment_url: Any, resource_id: str, base_url: Any = None, mcp_url: Any = None,
        client_id: str | None = None, required_scopes: Sequence[str] | None = None, token_verifier: Any = None, **others: Any,
    ) -> None:  # fmt: skip
        del client_id
        server = f"{str(environment_url).rstrip('/')}/resources/{resource_id}"
        url, keys = base_url or mcp_url, f"{str(environment_url).rstrip('/')}/keys"
        verifier = token_verifier or _Remote(str(environment_url).rstrip("/"), keys, url, resource_id, required_scopes)
        super().__init__(verifier, [server], url, **others)


class SupabaseProvider(RemoteAuthProvider):
    def __init__(
        self, *, project_url: Any, base_url: Any, auth_route: str = "/auth/v1", algorithm: str = "ES256",
        required_scopes: Sequence[str] | None = None, token_verifier: Any = None, **others: Any,
    ) -> None:  # fmt: skip
        issuer = f"{str(project_url).rstrip('/')}/{auth_route.strip('/')}"
        keys = f"{issuer}/.well-known/jwks.json"
        verifier = token_verifier or _Remote(issuer, keys, base_url, "authenticated", required_scopes, algorithm)
        super().__init__(verifier, [issuer], base_url, **others)


class AzureJWTVerifier(JWTVerifier):
    def __init__(
        self, *, client_id: str, tenant_id: str, required_scopes: Sequence[str] | None = None,
        identifier_uri: str | None = None, base_authority: str = "login.microsoftonline.com",
    ) -> None:  # fmt: skip
        authority = f"https://{base_authority}/{tenant_id}"
        super().__init__(
            issuer=f"{authority}/v2.0", jwks_uri=f"{authority}/discovery/v2.0/keys", required_scopes=required_scopes,
            audience=[client_id, identifier_uri or f"api://{client_id}"],
        )  # fmt: skip


class _Remote(JWTVerifier):
    """Tokens of an issuer for one audience, or else for the URL of the endpoint."""

    def __init__(
        self, issuer: str, keys: str, base_url: Any, audience: Any, scopes: Sequence[str] | None, algorithm: str | None = None
    ) -> None:
        known = {"issuer": issuer, "jwks_uri": keys, "algorithm": algorithm, "required_scopes": scopes}
        super().__init__(**known, base_url=base_url, audience=audience or "the endpoint")
        self._has_audience = bool(audience)

    def verifiers(self, path: str) -> list[Any]:
        if not self._has_audience:
            self.options["audience"] = self.public_url(path)
        return super().verifiers(path)


class RSAKeyPair(SimpleNamespace):
    """A pair of keys for tests."""

    public_key: str
    private_key: str

    @classmethod
    def generate(cls) -> "RSAKeyPair":
        from joserfc.jwk import RSAKey

        key = RSAKey.generate_key(2048)
        return cls(public_key=key.as_pem(private=False).decode(), private_key=key.as_pem(private=True).decode())

    def create_token(
        self, subject: str = "fastmcp-user", issuer: str = "https://fastmcp.example.com", audience: Any = None,
        scopes: Sequence[str] | None = None, expires_in_seconds: int = 3600, additional_claims: Any = None, kid: Any = None,
    ) -> str:  # fmt: skip
        import time

        from joserfc import jwt
        from joserfc.jwk import RSAKey

        now = int(time.time())
        claims = {"sub": subject, "iss": issuer, "iat": now, "exp": now + expires_in_seconds}
        claims |= {} if audience is None else {"aud": audience}
        claims |= {} if scopes is None else {"scope": " ".join(scopes)}
        header = {"alg": "RS256", **({} if kid is None else {"kid": kid})}
        return jwt.encode(header, {**claims, **(additional_claims or {})}, RSAKey.import_key(self.private_key))
