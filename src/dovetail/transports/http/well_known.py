"""Protected resource metadata (RFC 9728), and the URLs of a protected server as its clients see them.

The documents are below the mount path of the app, so that a proxy in front of the app passes requests for them on.
For clients that expect them at the origin there is `OriginDocuments`.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import msgspec

from dovetail.engine.engine import Engine
from dovetail.errors import SetupError
from dovetail.protocol.headers import Headers
from dovetail.transports.http.asgi import App, RawHeaders, Receive, Scope, Send
from dovetail.transports.http.legacy_sse import MESSAGES_ROUTE, STREAM_ROUTE
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.origin import OriginPolicy, parse_authority
from dovetail.transports.http.proxies import TrustedProxies
from dovetail.transports.http.request import HttpRequest, invalid_request

if TYPE_CHECKING:
    from dovetail.auth.settings import Auth

FOLDER = "/.well-known"
NAME = "/oauth-protected-resource"
WELL_KNOWN = f"{FOLDER}{NAME}"
METHODS = b"GET, HEAD, OPTIONS"
ALLOW_ANY_ORIGIN: RawHeaders = [(b"access-control-allow-origin", b"*")]
PREFLIGHT: RawHeaders = [
    *ALLOW_ANY_ORIGIN,
    (b"access-control-allow-methods", METHODS),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-max-age", b"86400"),
]
DOCUMENT: RawHeaders = [*ALLOW_ANY_ORIGIN, (b"cache-control", b"public, max-age=300")]


class ResourceUrls(msgspec.Struct, eq=False):
    """URLs as a client sees them: below `public_url`, or as the request says."""

    public_url: str | None
    path: str
    proxies: TrustedProxies

    def origin(self, scope: Scope) -> str:
        """The origin as the client sees it. The Host header was checked before, unless the server checks none."""
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1").strip(" \t")
        if parse_authority(host) is None:
            name, port = (scope.get("server") or ("localhost", None))[:2]
            host = name if port is None else f"{name}:{port}"
        return f"{self.proxies.scheme(scope)}://{host}"

    def resource(self, scope: Scope, route: str) -> str:
        """The endpoint of a route, which tokens are issued for."""
        return self.public_url or f"{self._base(scope)}{self._endpoint(scope, route)}"

    def target(self, scope: Scope, route: str) -> str:
        """The URL of the request, which a DPoP proof is made for."""
        if self.public_url is not None and route in ("", self.path):
            return self.public_url
        return f"{self._base(scope) or self.public_origin()}{route}"

    def metadata(self, scope: Scope, route: str) -> str:
        """The URL of the document about the endpoint of a route."""
        base = self._base(scope)
        if base is not None:
            return f"{base}{WELL_KNOWN}{self._endpoint(scope, route)}"
        return f"{self.public_origin()}{WELL_KNOWN}{public_path(self.public_url)}"

    def _endpoint(self, scope: Scope, route: str) -> str:
        if route in (STREAM_ROUTE, MESSAGES_ROUTE):
            return STREAM_ROUTE
        return "" if not route and mount_path(scope) else self.path

    def _base(self, scope: Scope) -> str | None:
        """The URL of the mount path; None if `public_url` does not reveal it."""
        root = mount_path(scope)
        if self.public_url is None:
            return f"{self.origin(scope)}{root}"
        url = self.public_url.rstrip("/")
        if root and url.endswith(root) and not url.endswith(f"{root}{self.path}"):
            return url  # the endpoint is the mount path itself
        return url.removesuffix(self.path) if url.endswith(self.path) else None

    def public_origin(self) -> str:
        parts = urlsplit(self.public_url or "")
        return f"{parts.scheme}://{parts.netloc}"


class ResourceDocuments:
    def __init__(
        self, engine: Engine, auth: "Auth", options: HttpOptions, origin_policy: OriginPolicy, proxies: TrustedProxies
    ) -> None:
        self._engine = engine
        self.auth = auth
        self._origin_policy = origin_policy
        public_url = auth.public_url
        if options.public_url is not None:
            public_url = auth.check_public_url(options.public_url, "Server")
        self.urls = ResourceUrls(public_url, options.path, proxies)
        if public_url is not None:
            origin_policy.allow(self.urls.public_origin())
        endpoints = {"", options.path, public_path(public_url), *((STREAM_ROUTE,) if options.sse else ())}
        # Without an authorization server, where users get tokens by hand, there are no documents.
        self.routes = frozenset(f"{WELL_KNOWN}{each}" for each in endpoints if auth.authorization_servers)
        # An app that is mounted, or behind a proxy that removes a prefix, gets public paths without the mount path:
        # that of the public URL without `path`, or all of it if the endpoint is the mount path.
        endpoint = public_path(public_url)
        self.auth_routes = {
            path.removeprefix(base): app
            for base in (endpoint, endpoint.removesuffix(options.path), "")
            for path, app in auth.routes.items()
            if path.startswith(f"{base}/")
        }

    def serve(self, request: HttpRequest) -> Awaitable[None]:
        return self._respond(request, self.urls.resource(request.scope, request.route.removeprefix(WELL_KNOWN)))

    def check_headers(self, request: HttpRequest) -> None:
        if request.headers.has_repeats:
            request.refuse_repeated_headers()
        without_origin = [pair for pair in request.scope["headers"] if pair[0] != b"origin"]  # every page may read it
        self._origin_policy.check(Headers(without_origin), request.scope.get("server"))

    async def _respond(self, request: HttpRequest, resource: str) -> None:
        self.check_headers(request)
        if request.method == "OPTIONS":
            await request.response.empty(204, PREFLIGHT)
        elif request.method not in ("GET", "HEAD"):
            await request.refuse_method(METHODS, "GET this path")
        else:
            info = self._engine.info
            document = self.auth.metadata(resource, name=info.title or info.name, scopes=self._engine.scopes_in_use())
            await request.response.json(200, b"" if request.method == "HEAD" else document, DOCUMENT)

    def serve_at_origin(self, request: HttpRequest) -> Awaitable[None]:
        """Serve the documents at the origin, where `path` or `public_url` holds the full path of the endpoint."""
        url = self.urls.public_url
        full_path = self.urls.path if url is None else public_path(url)
        path = request.scope["path"].rstrip("/").removeprefix(FOLDER)  # which some hosts have removed
        app: App | None = self.auth.routes.get(FOLDER + path)
        if app is not None:
            self.check_headers(request)
            return app(request.scope, request.receive, request.send)
        _, name, endpoint = request.scope["path"].rpartition(NAME)
        if not name or endpoint.rstrip("/") not in ("", full_path):
            raise invalid_request(404, f"There is nothing at this path; the document is at {WELL_KNOWN}{full_path}")
        return self._respond(request, url or f"{self.urls.origin(request.scope)}{full_path}")


class OriginDocuments:
    """The ASGI app that `server.well_known()` returns, to be mounted at `/.well-known` of the origin."""

    def __init__(self, documents: ResourceDocuments | None, *, has_path: bool) -> None:
        """`has_path`: the author has given the full path of the endpoint."""
        if documents is None or not documents.routes:
            raise SetupError("server.well_known: no metadata to serve; give Server auth=Auth(…) with the issuer")
        if documents.urls.public_url is None and not has_path:
            text = "the endpoint can be anywhere; write public_url= (DOVETAIL_PUBLIC_URL), or its whole path="
            raise SetupError(f'server.well_known: {text}, such as path="/notes/mcp"')
        self._documents = documents

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = HttpRequest.from_scope(scope, receive, send, scope["path"])
        try:
            await self._documents.serve_at_origin(request)
        except Exception as failure:
            await request.send_failure(failure, request.method)


def public_path(url: str | None) -> str:
    return urlsplit(url or "").path.rstrip("/")


def mount_path(scope: Scope) -> str:
    return quote(scope.get("root_path", "").rstrip("/"), safe="/:@!$&'()*+,;=~")
