"""`AuthServer`: an OAuth 2.1 authorization server as routes for an app, and the verifier of its tokens."""

import copy
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

from dovetail.auth.fetch import make_fetch
from dovetail.auth.jose import ASSERTIONS, require_library
from dovetail.auth.principal import Principal
from dovetail.auth.settings import checked_url
from dovetail.authserver.auth_store import AuthStore, BackendSelector, Keyring
from dovetail.authserver.authorize import PasswordSignIn
from dovetail.authserver.callback import ProviderSignIn
from dovetail.authserver.clients import AUTH_METHODS, GRANTS, MAX_METADATA, ClientDirectory, OAuthClient, check_clients
from dovetail.authserver.oauth_http import MAX_BYTES, PUBLIC_HEADERS, RouteHandler, json_endpoint, url_problem
from dovetail.authserver.passwords import Passwords
from dovetail.authserver.sign_in import SignIn
from dovetail.authserver.tokens import ProtectedResource, TokenEndpoint, TokenIssuer
from dovetail.authserver.upstream import Upstream
from dovetail.engine.options import secrets_from_env
from dovetail.errors import SetupError
from dovetail.protocol.scopes import checked_scopes
from dovetail.transports.http.asgi import App
from dovetail.transports.http.routes import STATE, RouteRequest, RouteResponse, route_app

if TYPE_CHECKING:
    from dovetail.state.base import StateBackend

MAX_LIFETIME = 366 * 86_400.0  # seconds
WELL_KNOWN = "/.well-known/oauth-authorization-server"
log = logging.getLogger("dovetail.authserver")


class AuthServer:
    """An OAuth 2.1 authorization server. As `Server(auth=...)` it verifies its tokens, and its routes are served."""

    binds_keys = False

    def __init__(
        self,
        issuer: str,
        *,
        resource: str,
        sign_in: Passwords | SignIn,
        clients: Iterable[OAuthClient] = (),
        scopes: Mapping[str, str] | None = None,
        state: "str | StateBackend | None" = None,
        access_seconds: float = 600.0,
        refresh_seconds: float = 30 * 86_400.0,
        registration: bool = True,
        cimd: bool = True,
        allow_loopback_cimd: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`issuer`: its URL for clients, byte for byte. `resource`: the URL of the MCP endpoint.

        `sign_in`: how users sign in, as `SignIn.github(id, secret)` or `Passwords("users.json")`. `scopes`: with
        descriptions for people. `state`: a URL or a backend; by default that of the app that it is mounted in, if
        workers share it, or memory. `refresh_seconds`: from the consent to the end of all its tokens. `registration`:
        clients may register themselves. `cimd`: a client id may be the URL of a metadata document;
        `allow_loopback_cimd`: also on this machine, for tests.
        """
        require_library("AuthServer")
        self.issuer = _checked_issuer(issuer)
        self.resource = resource
        for name, seconds in (("access_seconds", access_seconds), ("refresh_seconds", refresh_seconds)):
            if not 1 <= seconds <= MAX_LIFETIME:
                raise SetupError(f"AuthServer: {name}={seconds!r} is not possible; it is from 1 to {MAX_LIFETIME:.0f}")
        if not isinstance(scopes or {}, Mapping):
            raise SetupError('AuthServer: scopes must say what each means: {"notes:read": "Read your notes"}')
        checked_scopes(list(scopes or {}), "AuthServer")
        self._resource = ProtectedResource(checked_url(resource, "AuthServer: resource"), dict(scopes or {}))
        self._access_seconds, self._refresh_seconds = access_seconds, refresh_seconds
        self._registration = registration
        self._clients = check_clients(clients, self._resource.scopes)
        given: Any = sign_in
        if not isinstance(given, Passwords | SignIn):
            fix = 'write SignIn.github(client_id, client_secret), or another provider, or Passwords("users.json")'
            raise SetupError(f"AuthServer: sign_in= is a {type(given).__name__}, not how users sign in; {fix}")
        if isinstance(sign_in, Passwords):
            sign_in.reserve(self._clients)
        self._users = sign_in
        self._fetch = make_fetch(allow_loopback=allow_loopback_cimd, max_bytes=MAX_METADATA) if cimd else None
        self._secrets = secrets_from_env(os.environ)
        self._clock = clock
        self._backends = BackendSelector(state, issuer)
        self._endpoints: dict[StateBackend, _Endpoints] = {}
        self._app_state: StateBackend | None = None

    def routes(self) -> dict[str, App]:
        """The routes for `server.asgi(routes=...)` or `server.run("http", routes=...)`."""
        base = urlsplit(self.issuer).path.rstrip("/")
        routes: dict[str, tuple[RouteHandler, list[str]]] = {
            f"{WELL_KNOWN}{base}": (json_endpoint(self._metadata), ["GET", "OPTIONS"]),
            f"{base}/authorize": (self._route("authorize"), ["GET", "POST"]),
        }
        methods = {"jwks": "GET", "token": "POST", "revoke": "POST"}
        for name, method in (methods | ({"register": "POST"} if self._registration else {})).items():
            routes[f"{base}/{name}"] = (json_endpoint(self._route(name)), [method, "OPTIONS"])
        if isinstance(self._users, SignIn):
            routes[f"{base}/callback"] = (self._route("callback"), ["GET"])
        return {
            path: route_app(route, methods, max_body_bytes=MAX_BYTES, run_in_thread=_no_thread)
            for path, (route, methods) in routes.items()
        }

    def for_app(self, state: "StateBackend") -> "AuthServer":
        """The same with the state of an app, unless it has one of its own."""
        bound = copy.copy(self)
        bound._app_state = state
        bound.endpoints(state)  # logs a warning about a state that workers do not share
        return bound

    async def verify(self, token: str) -> Principal | None:
        return await self.endpoints(self._app_state).verify(token)

    async def upstream_token(self, principal: Principal, state: "StateBackend") -> str | None:
        upstream = self.endpoints(self._app_state or state).upstream
        return None if upstream is None else await upstream.token_of(principal)

    async def close(self) -> None:
        """Close the state that was opened by a URL. The next request opens it again."""
        upstreams = [each.upstream for each in self._endpoints.values() if each.upstream is not None]
        self._endpoints.clear()  # for all copies
        for upstream in upstreams:
            await upstream.close()
        await self._backends.close()

    def endpoints(self, app_state: "StateBackend | None") -> "_Endpoints":
        """The endpoints with the state of an app, or with the option `state`."""
        backend = self._backends.select(app_state)
        if backend not in self._endpoints:
            if app_state is not None and app_state.shared and not backend.shared:
                log.warning("AuthServer: state= is the memory of one process, and others can't share it; leave it out")
            self._endpoints[backend] = self._make_endpoints(backend)
        return self._endpoints[backend]

    def _make_endpoints(self, backend: "StateBackend") -> "_Endpoints":
        store = AuthStore(backend, self.issuer)
        clients = ClientDirectory(
            store=store,
            configured=self._clients,
            audiences={self.issuer, self._url("token")},
            registration=self._registration,
            fetch=self._fetch,
            clock=self._clock,
        )
        tokens = TokenIssuer(
            issuer=self.issuer,
            resource=self._resource,
            store=store,
            keyring=Keyring(store, self._secrets, self._clock),
            access_seconds=self._access_seconds,
            refresh_seconds=self._refresh_seconds,
        )
        users, upstream, callback = self._users, None, None
        if isinstance(users, Passwords):
            page = PasswordSignIn(clients=clients, tokens=tokens, users=users).page
        else:
            upstream = Upstream(users.provider, tokens)
            elsewhere = ProviderSignIn(clients=clients, tokens=tokens, users=users, upstream=upstream)
            page, callback = elsewhere.page, elsewhere.callback
        endpoint = TokenEndpoint(clients=clients, issuer=tokens, users=users, upstream=upstream)
        return _Endpoints(
            page, endpoint.token, endpoint.revoke, clients.register, tokens.jwks, tokens.verify, callback, upstream
        )

    def _route(self, name: str) -> RouteHandler:
        """The endpoint of this name, with the state of the app that it is mounted in."""

        async def route(request: RouteRequest) -> RouteResponse:
            endpoint: RouteHandler = getattr(self.endpoints(request.scope.get(STATE)), name)
            return await endpoint(request)

        route.__name__ = route.__qualname__ = name  # for the log
        return route

    def _url(self, name: str) -> str:
        return f"{self.issuer.rstrip('/')}/{name}"

    async def _metadata(self, _: RouteRequest) -> RouteResponse:
        """The metadata document (RFC 8414)."""
        methods, algorithms = list(AUTH_METHODS), list(ASSERTIONS)
        document = {
            "issuer": self.issuer,
            "authorization_endpoint": self._url("authorize"),
            "token_endpoint": self._url("token"),
            "revocation_endpoint": self._url("revoke"),
            "jwks_uri": self._url("jwks"),
            **({"registration_endpoint": self._url("register")} if self._registration else {}),
            "scopes_supported": sorted(self._resource.scopes),
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": list(GRANTS),
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": methods,
            "token_endpoint_auth_signing_alg_values_supported": algorithms,
            "revocation_endpoint_auth_methods_supported": methods,
            "revocation_endpoint_auth_signing_alg_values_supported": algorithms,
            "authorization_response_iss_parameter_supported": True,
            "client_id_metadata_document_supported": self._fetch is not None,
        }
        return RouteResponse(document, 200, PUBLIC_HEADERS)


class _Endpoints(NamedTuple):
    """The endpoints and the verifier with one state backend."""

    authorize: RouteHandler
    token: RouteHandler
    revoke: RouteHandler
    register: RouteHandler
    jwks: RouteHandler
    verify: Callable[[str], Awaitable[Principal | None]]
    callback: RouteHandler | None  # and upstream: if users sign in at an identity provider
    upstream: Upstream | None


def _checked_issuer(issuer: str) -> str:
    why = url_problem(issuer, "an issuer")
    if why is None and "?" in issuer:
        why = "an issuer has no query"
    if why is not None:
        raise SetupError(f'AuthServer: issuer={issuer!r} is not possible: {why}; "https://login.example.com" is')
    return issuer


async def _no_thread(function: Callable[[], Any], *, label: str) -> NoReturn:
    raise AssertionError(f"{label} ({function}) is async, and needs no thread")
