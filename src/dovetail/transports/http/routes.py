"""Custom routes beside the endpoint: functions and ASGI apps at paths of their own.

`route(request: RouteRequest)` returns text, bytes, a dict or a list (sent as JSON), a `RouteResponse`, or any ASGI
callable, such as a response of Starlette; annotated so, it gets a request of Starlette. A failure becomes a JSON
response; its cause is only logged.
"""

import asyncio
import base64
import hashlib
import re
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from inspect import isawaitable
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from dovetail.engine.call_tool import EXITS, is_cancelled
from dovetail.engine.concurrency import CallTimeout, with_timeout
from dovetail.engine.engine import Engine
from dovetail.errors import Busy, ProtocolError, SetupError
from dovetail.protocol import jsonrpc
from dovetail.registry.functions import inspect_function
from dovetail.transports.http.asgi import App, Message, RawHeaders, Receive, Scope, Send, is_below
from dovetail.transports.http.in_flight import BodyQuota
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.proxies import NO_PROXIES, TrustedProxies
from dovetail.transports.http.request import JSON, ClientDisconnect, HttpRequest, invalid_request
from dovetail.transports.http.response import SEND_TIMEOUT, as_coroutine

MAX_QUERY_FIELDS = 1_000
MOUNT = "/*"  # ends a path that stands for everything below it
# Keys in the scope of a route:
BODIES = "dovetail.bodies"  # BodyQuota; without it a route has one of its own
PROXIES = "dovetail.proxies"  # TrustedProxies
STATE = "dovetail.state"  # StateBackend
APP_STATUS = "dovetail.app_status"  # AppStatus

Function = Callable[..., Any]
Runner = Callable[..., Awaitable[Any]]  # as `ThreadPool.run` is: (function, *, label)

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_SERVER_HEADERS = frozenset({"content-length", "transfer-encoding", "connection"})
_PATH = re.compile(r"(?:/[^/\s?#%*{}\\]+)*")


class RouteRequest:
    """One request for a route. `scope` is that of ASGI; `path` includes the mount path."""

    def __init__(self, request: HttpRequest, quota: BodyQuota, *, max_body_bytes: int, body_timeout: float) -> None:
        self.scope = request.scope
        self.method = request.method
        self.path: str = request.scope["path"]
        self.headers = request.headers
        self._receive_body = partial(request.body, max_body_bytes, body_timeout, quota)
        self._body: bytes | None = None

    @cached_property
    def client(self) -> str | None:
        """The address of the client, if known, even behind `trusted_proxies`."""
        proxies: TrustedProxies = self.scope.get(PROXIES, NO_PROXIES)
        return proxies.address_of(self.scope)

    @cached_property
    def query(self) -> dict[str, list[str]]:
        """The query parameters; a name may occur more than once."""
        text = self.scope.get("query_string", b"").decode("utf-8", "replace")
        try:
            return parse_qs(text, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
        except ValueError:
            raise invalid_request(400, f"The query has more than {MAX_QUERY_FIELDS} fields") from None

    async def body(self) -> bytes:
        """The whole body, the same each time. Raises ProtocolError if it is too large or too slow."""
        if self._body is None:
            self._body = await self._receive_body()
        return self._body

    async def json(self) -> Any:
        """The body as JSON, with any content type."""
        return jsonrpc.parse(await self.body())


class RouteResponse:
    """A response with a status, headers or a media type of its own. A dict or a list is sent as JSON."""

    def __init__(
        self,
        body: str | bytes | dict[str, Any] | list[Any] = b"",
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        if not 200 <= status <= 599:
            raise ValueError(f"status={status!r} is not possible; it must be from 200 to 599")
        self.status = status
        self.body, usual_type = _encoded(body)
        lower_case = {name.lower(): value for name, value in (headers or {}).items()}
        content_type = media_type or lower_case.get("content-type", usual_type)
        if isinstance(body, str) and content_type.startswith("text/") and "charset" not in content_type:
            content_type += "; charset=utf-8"
        self.headers = _raw_headers({**lower_case, "content-type": content_type})

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        bodiless = self.status in (204, 304)
        length = [] if bodiless else [(b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": [*self.headers, *length]})
        body = b"" if bodiless or scope["method"] == "HEAD" else self.body
        await send({"type": "http.response.body", "body": body})


class AnnouncedApp(msgspec.Struct, eq=False):
    """An ASGI callable whose URL `run` prints, because people open it."""

    name: str
    app: App

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self.app(scope, receive, send)


class RouteFunction(NamedTuple):
    function: Function
    label: str
    parameter: str  # the one that takes the request
    is_async: bool
    methods: tuple[str, ...]
    starlette_request: Callable[..., Any] | None = None  # the class that the parameter asks for, if it is Starlette's


def check_route(function: Function, methods: Any) -> RouteFunction:
    """Check the function of a route. Raises SetupError, with the function, the parameter and the fix."""
    info = inspect_function(function, kind="route", injectable=RouteRequest)
    foreign = {each.name: each.annotation for each in info.parameters if _is_starlette_request(each.annotation)}
    untyped = (each.name for each in info.parameters if each.annotation in (Any, object))
    parameter = next(iter((*info.injected, *foreign, *untyped)), None)
    others = [each.name for each in info.parameters if each.required and each.name != parameter]
    others += info.supplied - {*info.injected}  # there are no dependencies here
    if parameter is None or others:
        where = f"{info.where}, parameter {others[0]}" if others else info.where
        fix = f"write {info.name}(request: RouteRequest), or annotate it with the Request of Starlette"
        raise SetupError(f"{where}: a route gets the request and nothing else; {fix}")
    is_list = isinstance(methods, list | tuple | set | frozenset) and len(methods) > 0
    if not is_list or not all(isinstance(each, str) and _TOKEN.fullmatch(each) for each in methods):
        raise SetupError(f'{info.where}: methods={methods!r} is not possible; it must be a list like ["GET", "POST"]')
    names = dict.fromkeys(each.upper() for each in methods)
    if "GET" in names:
        names["HEAD"] = None
    return RouteFunction(function, info.where, parameter, info.is_async, tuple(names), foreign.get(parameter))


def _is_starlette_request(annotation: Any) -> bool:
    cls = getattr(sys.modules.get("starlette.requests"), "Request", None)  # an author who writes it has imported it
    return cls is not None and isinstance(annotation, type) and issubclass(annotation, cls)


def _limited_receive(request: RouteRequest, receive: Receive) -> Receive:
    """A `receive` for a request of Starlette: the whole body, within our limits, and then what follows."""
    is_read = False

    async def limited() -> Message:
        nonlocal is_read
        message: Message = await receive() if is_read else {"type": "http.request", "body": await request.body()}
        is_read = True
        return message

    return limited


def route_app(
    function: Function,
    methods: Sequence[str],
    *,
    max_body_bytes: int,
    run_in_thread: Runner,
    body_timeout: float = 30.0,
) -> App:
    """An ASGI app that calls the function of a route; a `def` runs in a thread."""
    route = check_route(function, methods)
    own_quota = BodyQuota(max_body_bytes)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        route_send = _RouteSend(send)
        http_request = HttpRequest.from_scope(scope, receive, route_send, scope["path"])
        quota: BodyQuota = scope.get(BODIES, own_quota)
        request = RouteRequest(http_request, quota, max_body_bytes=max_body_bytes, body_timeout=body_timeout)
        try:
            if http_request.method not in route.methods:
                allowed = ", ".join(route.methods)
                problem = f"{http_request.method[:20]} is not possible here; possible are {allowed}"
                return await http_request.refuse_method(allowed.encode(), problem)
            given: Any = request
            if route.starlette_request is not None:
                given = route.starlette_request(scope, _limited_receive(request, receive))
            response = await _call_route(route, given, run_in_thread)
            await response(scope, receive, route_send)
        except (Exception, asyncio.CancelledError, *EXITS) as failure:
            if isinstance(failure, asyncio.CancelledError) and is_cancelled():
                raise
            if isinstance(failure, Busy) and failure.http_status < 400:
                failure.http_status = 503
            http_request.response.started = route_send.has_started  # then the server closes the connection
            is_refusal = isinstance(failure, ProtocolError) and failure.http_status >= 400
            await http_request.send_failure(failure, route.label, is_refusal=is_refusal)

    return app


class _RouteSend(msgspec.Struct, eq=False):
    _send: Send
    has_started: bool = False

    async def __call__(self, message: Message) -> None:
        self.has_started = True
        try:
            await with_timeout(as_coroutine(self._send(message)), SEND_TIMEOUT)
        except (OSError, CallTimeout):
            raise ClientDisconnect from None


async def _call_route(route: RouteFunction, request: Any, run_in_thread: Runner) -> App:
    call = partial(route.function, **{route.parameter: request})
    value = call() if route.is_async else await run_in_thread(call, label=route.label)
    if isawaitable(value):
        value = await value
    if callable(value) and not isinstance(value, type):
        return value  # type: ignore[no-any-return]
    return RouteResponse(value)


def _encoded(body: Any) -> tuple[bytes, str]:
    if isinstance(body, str):
        return jsonrpc.sendable(body).encode(), "text/plain"
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), "application/octet-stream"
    if isinstance(body, dict | list):
        return jsonrpc.encode(body), JSON
    must_be = "it must be str, bytes, dict, list, RouteResponse or an ASGI callable"
    raise TypeError(f"a route returned {type(body).__name__}; {must_be}")


def _raw_headers(headers: Mapping[str, str]) -> RawHeaders:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r}: {value!r} has characters that are not allowed there")
        if name in _SERVER_HEADERS:
            raise ValueError(f"the header {name!r} is set by the server; leave it out")
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]


class RouteTable:
    """Finds the app for a path: an exact route, with or without a slash at its end, or else the closest mount."""

    def __init__(self, routes: Mapping[str, App], reserved: Collection[str]) -> None:
        self._reserved = {path.removesuffix("/") for path in reserved}
        self._exact: dict[str, App] = {}
        mounts: dict[str, App] = {}
        for given, app in routes.items():
            path = _checked_path(given)
            prefix = path.removesuffix(MOUNT)
            if prefix in self._reserved and path != MOUNT:
                raise SetupError(f"route {given!r}: this path belongs to the server itself; choose another")
            found = mounts if path.endswith(MOUNT) else self._exact
            if prefix in found:
                raise SetupError(f"route {given!r}: there are two for this path; a slash at the end does not count")
            if not callable(app):
                raise SetupError(f"route {given!r}: {type(app).__name__} is not an ASGI callable")
            found[prefix] = _mounted(prefix, app) if found is mounts else app
        self._mounts = sorted(mounts.items(), key=lambda mount: len(mount[0]), reverse=True)

    def find(self, path: str) -> App | None:
        """The app for `path`, relative to the mount path of the server. A mount does not hide reserved paths."""
        bare = path.removesuffix("/")
        if bare in self._exact or bare in self._reserved:
            return self._exact.get(bare)
        for prefix, mounted in self._mounts:
            if is_below(path, prefix):
                return mounted
        return None


def _checked_path(given: Any) -> str:
    if not isinstance(given, str) or not given.startswith("/"):
        raise SetupError(f'route {given!r}: a path begins with a slash, like "/about"')
    path = given.removesuffix("/")
    segments = path.removesuffix(MOUNT).split("/")
    if not _PATH.fullmatch(path.removesuffix(MOUNT)) or {".", ".."} & set(segments):
        raise SetupError(
            f'route {given!r}: paths are compared as they are, decoded; write "/about", or "/files/*" for all below it'
        )
    return path


def _mounted(prefix: str, app: App) -> App:
    """The scope of a mounted app, with the prefix added to `root_path`, as ASGI requires; `path` begins with it."""

    async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
        outer: str = scope.get("root_path", "").rstrip("/")
        path: str = scope["path"]
        full_path = path if is_below(path, outer) else outer + path  # some hosts remove their own prefix
        await app({**scope, "root_path": outer + prefix, "path": full_path}, receive, send)

    return mounted


# ── the page of the endpoint in a browser ──

_STYLE = (
    ":root{color-scheme:light dark}h1{font-size:1.5rem}small{font-weight:normal;opacity:.7}"
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:3rem auto;padding:0 1rem;overflow-wrap:anywhere}"
    "pre{padding:.8rem 1rem;border:1px solid #8886;border-radius:.5rem;white-space:pre-wrap}"
)
_SHA = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_SHA}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "vary": "accept",
}


def front_page(engine: Engine, options: HttpOptions, url: str, root: str) -> RouteResponse:
    """How to connect to the endpoint at `url`, and links to pages below `root`.

    It loads and runs nothing. If callers need a token it shows only the server's name.
    """
    from html import escape

    info, auth = engine.info, engine.options.auth
    entry: dict[str, object] = {"type": "http", "url": url}
    about = f"<small>{escape(info.version)}</small></h1><p>{escape(info.description or '')}"
    if auth is not None and auth.authorization_servers:
        about = "</h1><p>You have to sign in: your host opens the page for that when it connects."
    elif auth is not None:
        about = "</h1><p>You need a key: ask who runs this server for one."
        entry["headers"] = {"Authorization": "Bearer <your key>"}
    settings = msgspec.json.format(msgspec.json.encode({"mcpServers": {info.name: entry}}), indent=2).decode()
    pages = [(escape(app.name), path) for path, app in options.routes.items() if isinstance(app, AnnouncedApp)]
    links = (f'<p><a href="{escape(root + path.removesuffix(MOUNT))}/">Open the {name}</a>' for name, path in pages)
    title = escape(info.title or info.name)
    html = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style><h1>{title} {about}
<p>This is an MCP server: Claude, Cursor, VS Code and other hosts connect to it at <pre>{escape(url)}</pre>
<p>Many of them take it from a file with settings: <pre>{escape(settings)}</pre>{"".join(links)}"""
    return RouteResponse(html, 200, _HEADERS, "text/html")
