"""`Console`: the pages of one server, for `run(routes=…)` or `asgi(routes=…)`.

    /console/            the page; `/console` leads there
    /console/static/…    scripts, styles and images
    /console/view        an empty frame for the view of a tool
    /console/api/about   facts about the server
    /console/api/live    metrics, as server-sent events every second

The page is an MCP client of the endpoint; nothing here calls tools.
"""

import hashlib
import platform
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any, NamedTuple, NoReturn

from dovetail import __version__
from dovetail.console.history import History
from dovetail.console.metrics import LiveMetrics
from dovetail.console.view import policy_of
from dovetail.engine.metrics import watch
from dovetail.errors import SetupError
from dovetail.protocol import revisions
from dovetail.server import Server
from dovetail.transports.http.asgi import App
from dovetail.transports.http.in_flight import AppStatus
from dovetail.transports.http.origin import DEFAULT_PORTS, has_local_host, parse_authority, parse_origin
from dovetail.transports.http.proxies import NO_PROXIES
from dovetail.transports.http.routes import (
    APP_STATUS,
    MOUNT,
    PROXIES,
    AnnouncedApp,
    RouteRequest,
    RouteResponse,
    route_app,
)

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src data: blob:; connect-src 'self'; frame-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}
_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")

Response = RouteResponse | App


class Asset(NamedTuple):
    """One static file."""

    body: bytes
    type: str
    etag: str

    def response(self, known_etags: str) -> RouteResponse:
        """The file, or 304 if the browser has it. Browsers ask each time, because a newer version may be installed."""
        headers = {**HEADERS, "etag": self.etag, "cache-control": "no-cache"}
        body, status = (b"", 304) if self.etag in known_etags else (self.body, 200)
        return RouteResponse(body, status, headers, self.type)


def load_assets() -> dict[str, Asset]:
    """The files by name, read once: names in requests are looked up, and never become paths."""
    assets = {}
    for file in files("dovetail.console").joinpath("static").iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None and file.is_file():
            body = file.read_bytes()
            assets[file.name] = Asset(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return assets


class Console:
    """The console of one server. It measures requests from its creation on.

    `remote`: serve callers on other machines too; this needs `allowed_hosts`.
    `target`: the target for `dovetail call`, if it is not the URL.
    """

    def __init__(
        self, server: Server, *, remote: bool = False, path: str = "/console", target: str | None = None
    ) -> None:
        if not _PATH.fullmatch(path):
            raise SetupError(f'Console: path={path!r} is not possible; it must be like "/console"')
        self._server = server
        self._remote = remote
        self._path = path
        self._target = target
        self._assets = load_assets()
        history = History(watch(server.engine))
        self._live = LiveMetrics(server.engine, history, HEADERS)

    def routes(self) -> dict[str, App]:
        """The pages, by their paths."""
        app = route_app(self._respond, ["GET"], max_body_bytes=0, run_in_thread=_no_thread)
        return {self._path + MOUNT: AnnouncedApp("console", app)}

    async def _respond(self, request: RouteRequest) -> Response:
        if (problem := access_problem(request, remote=self._remote)) is not None:
            return _error(403, problem)
        path = request.path.removeprefix(request.scope["root_path"])
        if not path:
            return RouteResponse(b"", 308, {**HEADERS, "location": self._path.rpartition("/")[2] + "/"})
        if path.startswith("/api/"):
            return self._api(path.removeprefix("/api/"), request)
        if path == "/view":
            policy = {"content-security-policy": policy_of(request.query), "x-frame-options": "SAMEORIGIN"}
            return RouteResponse(self._assets["view.html"].body, 200, {**HEADERS, **policy}, TYPES["html"])
        name = path.removeprefix("/static/") if path.startswith("/static/") else "index.html" if path == "/" else ""
        if (asset := self._assets.get(name)) is None:
            return _error(404, f"There is nothing here; the console is at {self._path}/")
        return asset.response(request.headers.get("if-none-match", ""))

    def _api(self, name: str, request: RouteRequest) -> Response:
        if not is_from_page(request):
            return _error(403, NOT_THE_PAGE)
        if name == "about":
            return self._about(request)
        if name != "live":
            return _error(404, "There is nothing here")
        return RouteResponse(b"", 200, HEADERS, "text/event-stream") if request.method == "HEAD" else self._live

    def _about(self, request: RouteRequest) -> RouteResponse:
        engine = self._server.engine
        overview: AppStatus = request.scope[APP_STATUS]
        about: dict[str, Any] = {
            "endpoint": "../" * self._path.count("/") + overview.endpoint.removeprefix("/"),
            "name": engine.info.name,
            "title": engine.info.title,
            "version": engine.info.version,
            "revisions": list(revisions.SUPPORTED),
            "auth": engine.options.auth is not None,
            "python": platform.python_version(),
            "dovetail": __version__,
            "target": self._target,
        }
        return RouteResponse(about, 200, HEADERS)


def _error(status: int, problem: str) -> RouteResponse:
    return RouteResponse(problem + "\n", status, HEADERS)


async def _no_thread(function: Callable[[], Any], *, label: str) -> NoReturn:
    raise AssertionError(f"{label} ({function}) is async, and needs no thread")


PAGE_HEADER = "x-dovetail-console"  # a script of another origin needs a CORS preflight for it, which fails

NOT_LOCAL = (
    "The console is for this machine only. If others may see what clients do with this server, "
    "write Console(server, remote=True), or dovetail run --console-remote."
)
BAD_HOST = "The console is reached by a name that means this machine, such as http://localhost or http://127.0.0.1."
NO_HOSTS = "A remote console needs allowed_hosts (DOVETAIL_ALLOWED_HOSTS): the names that this server is reached by."
NOT_THE_PAGE = "This is for the console's own page."


def access_problem(request: RouteRequest, *, remote: bool) -> str | None:
    """The reason why the caller may not use the console."""
    if not remote and not request.scope.get(PROXIES, NO_PROXIES).is_local(request.scope, request.headers):
        return NOT_LOCAL
    if not remote:
        return None if has_local_host(request.headers) else BAD_HOST
    overview: AppStatus = request.scope[APP_STATUS]
    return None if overview.knows_its_hosts or has_local_host(request.headers) else NO_HOSTS


def is_from_page(request: RouteRequest) -> bool:
    """Whether a script of the console's own page sent the request."""
    headers = request.headers
    if headers.get(PAGE_HEADER) != "1" or headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    if (header := headers.get("origin")) is None:
        return True
    origin, authority = parse_origin(header), parse_authority(headers.get("host", ""))
    if origin is None or authority is None or origin.scheme not in DEFAULT_PORTS:
        return False
    port = DEFAULT_PORTS[origin.scheme] if authority.port is None else authority.port
    return (origin.name, origin.port) == (authority.name, port)
