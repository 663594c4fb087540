"""`Console`: the pages of one server, for `run(routes=…)` or `asgi(routes=…)`.

    /console/            the page; `/console` leads there
    /console/static/…    what it loads
    /console/api/about   what it has to know of the server
    /console/api/live    what is going on, told every second

The page speaks MCP to the endpoint by itself, so nothing here can call anything.
"""

import hashlib
import platform
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any, NamedTuple, NoReturn

from dovetail import __version__
from dovetail.console.metrics import LiveMetrics, Metrics
from dovetail.errors import SetupError
from dovetail.protocol import revisions
from dovetail.server import Server
from dovetail.transports.http.asgi import App
from dovetail.transports.http.in_flight import AppStatus
from dovetail.transports.http.origin import DEFAULT_PORTS, is_loopback, parse_authority, parse_origin
from dovetail.transports.http.proxies import HEADER, NO_PROXIES, TrustedProxies
from dovetail.transports.http.routes import (
    APP_STATUS,
    MOUNT,
    PROXIES,
    AnnouncedApp,
    PageRequest,
    PageResponse,
    route_app,
)

# Only what comes with the page runs in it, and only to the server itself does it speak.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src data: blob:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
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
STATIC = "/static/"
API = "/api/"

_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")

Answer = PageResponse | App


class Asset(NamedTuple):
    """One file."""

    body: bytes
    type: str
    tag: str  # changes with its content

    def answer(self, known_tags: str, headers: dict[str, str]) -> PageResponse:
        """The file, or nothing if the browser has it; it asks each time, for a newer version may be installed."""
        told = {**headers, "etag": self.tag, "cache-control": "no-cache"}
        if self.tag in known_tags:
            return PageResponse(b"", 304, told, self.type)
        return PageResponse(self.body, 200, told, self.type)


def load_assets() -> dict[str, Asset]:
    """By their names, read once: a name is looked up and never made into a path. Other types are not for browsers."""
    folder = files("dovetail.console").joinpath("static")
    kinds = [(each, TYPES.get(each.name.rpartition(".")[2])) for each in folder.iterdir() if each.is_file()]
    return {each.name: _asset(each.read_bytes(), kind) for each, kind in kinds if kind is not None}


def _asset(body: bytes, kind: str) -> Asset:
    return Asset(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


class Console:
    """The console of one server, which measures its requests from now on.

    `remote`: also for callers on other machines; then `allowed_hosts` must say which names the server has.
    `target`: what `dovetail call` takes to reach this server, if that is not its URL.
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
        metrics = Metrics()
        server.middleware(metrics.measure)
        self._live = LiveMetrics(metrics, HEADERS)
        self._data: dict[str, Callable[[PageRequest], Answer]] = {"about": self._about, "live": self._watch}

    def routes(self) -> dict[str, App]:
        """The pages, by their paths."""
        app = route_app(self._answer, ["GET"], max_body_bytes=0, run_in_thread=_no_thread)
        return {self._path + MOUNT: AnnouncedApp("console", app)}

    async def _answer(self, request: PageRequest) -> Answer:
        if (problem := why_not(request, remote=self._remote)) is not None:
            return _refusal(403, problem)
        place = request.path.removeprefix(request.scope["root_path"])
        if not place:
            return PageResponse(b"", 308, {**HEADERS, "location": self._path.rpartition("/")[2] + "/"})
        if place.startswith(API):
            return self._data_at(place.removeprefix(API), request)
        name = "index.html" if place == "/" else place.removeprefix(STATIC) if place.startswith(STATIC) else ""
        asset = self._assets.get(name)
        if asset is None:
            return _refusal(404, f"There is nothing here; the console is at {self._path}/")
        return asset.answer(request.headers.get("if-none-match", ""), HEADERS)

    def _data_at(self, name: str, request: PageRequest) -> Answer:
        if (problem := why_no_data(request)) is not None:
            return _refusal(403, problem)
        data = self._data.get(name)
        return _refusal(404, "There is nothing here") if data is None else data(request)

    def _about(self, request: PageRequest) -> Answer:
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
        return PageResponse(about, 200, HEADERS)

    def _watch(self, request: PageRequest) -> Answer:
        if request.method == "HEAD":  # which has no body to follow
            return PageResponse(b"", 200, HEADERS, "text/event-stream")
        return self._live


def _refusal(status: int, problem: str) -> PageResponse:
    return PageResponse(problem + "\n", status, HEADERS)


async def _no_thread(function: Callable[[], Any], *, label: str) -> NoReturn:
    raise AssertionError(f"{label} ({function}) is async, and needs no thread")


# ── access ──

# What proxies, tunnels and the forwarding of ports add to a request; and whatever begins like the first.
FORWARDED_PREFIX = b"x-forwarded"
FORWARDED = frozenset(
    {b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"x-original-forwarded-for",
     b"x-envoy-external-address", b"cf-connecting-ip", b"true-client-ip", b"fly-client-ip", b"cdn-loop"}
)  # fmt: skip
MARK = "x-dovetail-console"  # a header of ours: another page's script needs leave to send it, which it does not get

NOT_LOCAL = (
    "The console is for this machine only. If others may see what clients do with this server, "
    "write Console(server, remote=True), or dovetail run --console-remote."
)
NOT_THIS_NAME = (
    "The console is reached by a name that means this machine, such as http://localhost or http://127.0.0.1."
)
NO_NAMES = (
    "A console for others needs allowed_hosts (DOVETAIL_ALLOWED_HOSTS): the names that this server is reached by."
)
NOT_THE_PAGE = "This is for the console's own page."


def why_not(request: PageRequest, *, remote: bool) -> str | None:
    """Why a request may not have any of it."""
    if not remote:
        if not _is_here(request):
            return NOT_LOCAL
        return None if _has_local_host(request) else NOT_THIS_NAME
    overview: AppStatus = request.scope[APP_STATUS]
    return None if overview.knows_its_hosts or _has_local_host(request) else NO_NAMES


def why_no_data(request: PageRequest) -> str | None:
    """Why a request may not have what only the page itself gets."""
    headers = request.headers
    from_page = headers.get(MARK) == "1" and headers.get("sec-fetch-site", "same-origin") == "same-origin"
    return None if from_page and _is_same_origin(headers.get("origin"), headers.get("host", "")) else NOT_THE_PAGE


def _is_here(request: PageRequest) -> bool:
    client = request.scope.get("client")
    if client is None or not is_loopback(client[0]):
        return False
    if not any(name in FORWARDED or name.startswith(FORWARDED_PREFIX) for name in request.headers.raw):
        return True
    proxies: TrustedProxies = request.scope.get(PROXIES, NO_PROXIES)
    hops = ",".join(request.headers.all(HEADER.decode())).split(",")
    return proxies.is_enabled and proxies.trusts(client[0]) and all(is_loopback(hop.strip()) for hop in hops)


def _has_local_host(request: PageRequest) -> bool:
    authority = parse_authority(request.headers.get("host", ""))
    return authority is not None and is_loopback(authority.name)


def _is_same_origin(given: str | None, host: str) -> bool:
    if given is None:
        return True
    origin, authority = parse_origin(given), parse_authority(host)
    if origin is None or authority is None or origin.scheme not in DEFAULT_PORTS:
        return False
    port = DEFAULT_PORTS[origin.scheme] if authority.port is None else authority.port
    return (origin.name, origin.port) == (authority.name, port)
