"""`AuthServer`: an OAuth 2.1 authorization server as pages to mount, and a verifier of its tokens."""

import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

from dovetail.auth.jose import ASSERTIONS, require_library
from dovetail.auth.principal import Principal, Verifier
from dovetail.auth.settings import checked_url
from dovetail.authserver.authorize import Authorization
from dovetail.authserver.clients import (
    AUTH_METHODS,
    GRANTS,
    ClientDirectory,
    OAuthClient,
    checked_clients,
    document_fetch,
)
from dovetail.authserver.endpoints import MAX_BYTES, PUBLIC, PageHandler, json_endpoint, why_not_a_url
from dovetail.authserver.storage import AuthStore, Backends, Keyring
from dovetail.authserver.tokens import Target, TokenEndpoint, TokenIssuer
from dovetail.authserver.users import Users
from dovetail.engine.workers import secrets_from_env
from dovetail.errors import SetupError
from dovetail.protocol.scopes import checked_scopes
from dovetail.transports.http.asgi import App
from dovetail.transports.http.routes import STATE, PageRequest, PageResponse, route_app

if TYPE_CHECKING:
    from dovetail.state.base import StateBackend

LONGEST = 366 * 86_400.0  # seconds
WELL_KNOWN = "/.well-known/oauth-authorization-server"
log = logging.getLogger("dovetail.authserver")


class AuthServer:
    """An OAuth 2.1 authorization server, for development and small deployments."""

    def __init__(
        self,
        issuer: str,
        *,
        resource: str,
        users: "str | os.PathLike[str] | Mapping[str, str]",
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
        """`issuer`: the URL that clients know it by, kept byte for byte. `resource`: that of the MCP endpoint.

        `users`: {"ann": hash_password("...")}, or a file with that as JSON. `scopes`: what each means, for people.
        `state`: a URL or a backend; else that of the app that it is mounted in, if workers share it, or the memory of
        this process. `refresh_seconds`: from the consent to the end of all that was made of it. `registration`:
        programs may register themselves. `cimd`: a program may be known by the URL of its metadata;
        `allow_loopback_cimd`: also one on this machine, for tests.
        """
        require_library("AuthServer")
        self.issuer = _checked_issuer(issuer)
        self.resource = resource
        for name, seconds in (("access_seconds", access_seconds), ("refresh_seconds", refresh_seconds)):
            if not 1 <= seconds <= LONGEST:
                raise SetupError(f"AuthServer: {name}={seconds!r} is not possible; it is from 1 to {LONGEST:.0f}")
        if not isinstance(scopes or {}, Mapping):
            raise SetupError('AuthServer: scopes must say what each means: {"notes:read": "Read your notes"}')
        checked_scopes(list(scopes or {}), "AuthServer")
        self._target = Target(checked_url(resource, "AuthServer: resource"), dict(scopes or {}))
        self._access_seconds, self._refresh_seconds = access_seconds, refresh_seconds
        self._registration = registration
        self._clients = checked_clients(clients, self._target.scopes)
        self._users = Users(users, self._clients)
        self._fetch = document_fetch(allow_loopback=allow_loopback_cimd) if cimd else None
        self._secrets = secrets_from_env(os.environ)
        self._clock = clock
        self._backends = Backends(state, issuer)
        self._endpoints: dict[StateBackend, _Endpoints] = {}

    def routes(self) -> dict[str, App]:
        """For `server.asgi(routes=...)` or `server.run("http", routes=...)`."""
        base = urlsplit(self.issuer).path.rstrip("/")
        pages: dict[str, tuple[PageHandler, list[str]]] = {
            f"{WELL_KNOWN}{base}": (json_endpoint(self._metadata), ["GET", "OPTIONS"]),
            f"{base}/jwks": (json_endpoint(self._page("jwks")), ["GET", "OPTIONS"]),
            f"{base}/authorize": (self._page("authorize"), ["GET", "POST"]),
            f"{base}/token": (json_endpoint(self._page("token")), ["POST", "OPTIONS"]),
            f"{base}/revoke": (json_endpoint(self._page("revoke")), ["POST", "OPTIONS"]),
        }
        if self._registration:
            pages[f"{base}/register"] = (json_endpoint(self._page("register")), ["POST", "OPTIONS"])
        return {
            path: route_app(page, methods, max_body_bytes=MAX_BYTES, run_in_thread=_no_thread)
            for path, (page, methods) in pages.items()
        }

    def verifier(self) -> Verifier:
        """For `Server(auth=...)`: it knows its own tokens without asking over HTTP."""
        return OwnTokens(self)

    async def close(self) -> None:
        """Close the state that was opened here by a URL. The next request opens it again."""
        self._endpoints.clear()
        await self._backends.close()

    def endpoints(self, of_app: "StateBackend | None") -> "_Endpoints":
        """Over the state of an app, or over what was given instead of it."""
        backend = self._backends.find(of_app)
        if backend not in self._endpoints:
            if of_app is not None and of_app.shared and not backend.shared:
                log.warning("AuthServer: state= is the memory of one process, and others can't share it; leave it out")
            self._endpoints[backend] = self._open(backend)
        return self._endpoints[backend]

    def _open(self, backend: "StateBackend") -> "_Endpoints":
        store = AuthStore(backend, self.issuer)
        clients = ClientDirectory(
            store,
            self._clients,
            audiences={self.issuer, self._url("token")},
            registration=self._registration,
            fetch=self._fetch,
            clock=self._clock,
        )
        tokens = TokenIssuer(
            issuer=self.issuer,
            target=self._target,
            store=store,
            keyring=Keyring(store, self._secrets, self._clock),
            access_seconds=self._access_seconds,
            refresh_seconds=self._refresh_seconds,
        )
        path = urlsplit(self._url("authorize")).path
        page = Authorization(path=path, clients=clients, users=self._users, tokens=tokens).page
        desk = TokenEndpoint(clients=clients, issuer=tokens, users=self._users)
        return _Endpoints(page, desk.token, desk.revoke, clients.register, tokens.jwks, tokens.verify)

    def _page(self, name: str) -> PageHandler:
        """The endpoint of this name, over the state of the app that it is mounted in."""

        async def page(request: PageRequest) -> PageResponse:
            endpoint: PageHandler = getattr(self.endpoints(request.scope.get(STATE)), name)
            return await endpoint(request)

        page.__name__ = page.__qualname__ = name  # for the log
        return page

    def _url(self, name: str) -> str:
        return f"{self.issuer.rstrip('/')}/{name}"

    async def _metadata(self, _: PageRequest) -> PageResponse:
        """RFC 8414."""
        methods, algorithms = list(AUTH_METHODS), list(ASSERTIONS)
        document = {
            "issuer": self.issuer,
            "authorization_endpoint": self._url("authorize"),
            "token_endpoint": self._url("token"),
            "revocation_endpoint": self._url("revoke"),
            "jwks_uri": self._url("jwks"),
            **({"registration_endpoint": self._url("register")} if self._registration else {}),
            "scopes_supported": sorted(self._target.scopes),
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
        return PageResponse(document, 200, PUBLIC)


class _Endpoints(NamedTuple):
    """What answers requests, over one state backend."""

    authorize: PageHandler
    token: PageHandler
    revoke: PageHandler
    register: PageHandler
    jwks: PageHandler
    verify: Callable[[str], Awaitable[Principal | None]]


class OwnTokens:
    """The verifier for servers that the authorization server is mounted in."""

    binds_keys = False

    def __init__(self, server: AuthServer, state: "StateBackend | None" = None) -> None:
        """`state`: of the app that it is for, if it is for one."""
        self.issuer = server.issuer
        self.resource = server.resource
        self._server = server
        self._state = state

    def for_app(self, state: "StateBackend") -> "OwnTokens":
        """Called by each app that starts, with its state backend."""
        self._server.endpoints(state)  # which warns of a state that workers do not share
        return OwnTokens(self._server, state)

    async def leave(self) -> None:
        """Called by that app when it ends."""
        await self._server.close()

    async def verify(self, token: str) -> Principal | None:
        return await self._server.endpoints(self._state).verify(token)


def _checked_issuer(issuer: str) -> str:
    why = why_not_a_url(issuer, "an issuer")
    if why is None and "?" in issuer:
        why = "an issuer has no query"
    if why is not None:
        raise SetupError(f'AuthServer: issuer={issuer!r} is not possible: {why}; "https://login.example.com" is')
    return issuer


async def _no_thread(function: Callable[[], Any], *, label: str) -> NoReturn:
    raise AssertionError(f"{label} ({function}) is async, and needs no thread")
