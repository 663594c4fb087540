"""The ASGI app of a server: routing, start and drain, mounting in another app.

The host need not send lifespan events: the first request starts the server if neither they nor `start` did.
"""

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail import engine as lazy
from dovetail.auth.principal import Principal
from dovetail.engine.engine import Engine
from dovetail.engine.server_requests import MAX_PENDING_REQUESTS
from dovetail.errors import SetupError
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.session import MAX_CLIENT
from dovetail.state.base import StateBackend, StoreFull, StoreUnavailable, open_state
from dovetail.state.memory import MemoryState
from dovetail.transports import http as lazy_http
from dovetail.transports.http.asgi import FAST_PATH, App, Receive, Scope, Send, is_below
from dovetail.transports.http.authenticate import Authenticator
from dovetail.transports.http.endpoint import Endpoint
from dovetail.transports.http.event_store import MAX_STREAMS
from dovetail.transports.http.in_flight import AppStatus, InFlight
from dovetail.transports.http.legacy_sse import MESSAGES_ROUTE, STREAM_ROUTE, SseEndpoint
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.origin import Cors, OriginPolicy
from dovetail.transports.http.proxies import TrustedProxies
from dovetail.transports.http.request import HttpRequest, RequestHandler, invalid_request
from dovetail.transports.http.routes import APP_STATUS, BODIES, PROXIES, STATE, RouteTable, front_page
from dovetail.transports.http.well_known import OriginDocuments, ResourceDocuments, ResourceUrls, mount_path
from dovetail.transports.process import observed_signals

if TYPE_CHECKING:
    from dovetail.auth.settings import Auth
    from dovetail.transports.http.metrics import AppGauges

READY_PATHS = frozenset({"/ready", "/health/ready"})
HEALTH_PATHS = READY_PATHS | {"/health", "/health/live"}
OK = "ok"

log = logging.getLogger("dovetail")


class HttpApp:
    """The ASGI app that `server.asgi()` returns."""

    def __init__(self, engine: Engine, options: HttpOptions, *, owner: Any = None, bound_to: str | None = None) -> None:
        self._engine = engine
        self._options = options
        self._owner = owner
        if isinstance(options.state, str):
            open_state(options.state, engine.info.name)  # checks the URL; each event loop opens a backend of its own
            self._state: StateBackend | None = None
        else:
            self._state = _default_state(options) if options.state is None else options.state
        self._origin_policy = OriginPolicy(options.allowed_hosts, options.allowed_origins, bound_to=bound_to)
        self._cors = Cors(options.cors)
        self._proxies = TrustedProxies(options.trusted_proxies)
        own = {path.removesuffix("/") for path in options.routes}  # of the author, also for the health
        self._public_handlers: dict[str, RequestHandler] = dict.fromkeys(HEALTH_PATHS - own, self._health)
        self._documents = documents = None
        if (auth := engine.options.auth) is not None:
            if options.identify is not None:
                raise SetupError("identify= and Server(auth=) both say who is asking; choose one of them")
            documents = ResourceDocuments(engine, auth, options, self._origin_policy, self._proxies)
            self._documents = documents
            self._public_handlers |= dict.fromkeys(documents.routes, documents.serve)
            routes = {**documents.auth_routes, **options.routes}
            self._options = options = msgspec.structs.replace(options, routes=routes)
        self._urls = documents.urls if documents else ResourceUrls(options.public_url, options.path, self._proxies)
        self._new_request = HttpRequest.from_scope
        if options.metrics:
            endpoint = lazy_http.metrics.MetricsEndpoint(engine, options, self._proxies)
            self._public_handlers[lazy_http.metrics.PATH] = endpoint
            self._new_request = lazy_http.metrics.counted_requests(endpoint.metrics).from_scope
        taken = {*self._public_handlers, *((STREAM_ROUTE, MESSAGES_ROUTE) if options.sse else ())}
        if options.path in taken:
            raise SetupError(f"path={options.path!r} is not possible: something else is served there; choose another")
        self._routes = RouteTable(options.routes, reserved={options.path, *taken})
        self._running: RunningApp | None = None
        self._draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._lifespan(receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1000, "reason": "MCP is served over HTTP"})
        route = route_of(scope) if scope.get("root_path") else scope["path"].rstrip("/")
        request = self._new_request(scope, receive, send, route)
        try:
            await self._route(request)
            if not request.response.started:
                await request.response.send_client_closed()
        except Exception as failure:
            await request.send_failure(failure, f"{request.method} {request.route[:200]!r}")

    def _route(self, request: HttpRequest) -> Awaitable[None]:
        """Check Host and Origin, and route to a public path, a custom route or the MCP endpoint. Not a coroutine."""
        if (handler := self._public_handlers.get(request.route)) is not None:
            return handler(request)
        if request.headers.has_repeats:
            request.refuse_repeated_headers()
        self._origin_policy.check(request.headers, request.scope.get("server"))
        is_mount_point = not request.route and request.scope.get("root_path")
        route = self._routes.find(request.route) if self._options.routes and not is_mount_point else None
        if route is not None:
            return self._serve_route(route, request)
        if request.method in ("GET", "HEAD") and request.route in ("", self._options.path) and request.is_from_browser:
            url, root = self._urls.resource(request.scope, request.route), mount_path(request.scope)
            route = self._routes.find(request.route) or front_page(self._engine, self._options, url, root)
            return self._serve_route(route, request)
        if b"origin" in request.headers.raw:
            if request.method == "OPTIONS" and (allowed := self._cors.preflight(request.headers)) is not None:
                return request.response.empty(204, allowed)
            request.response.add_headers(self._cors.response_headers(request.headers.get("origin")))
        running, identify, loop = self._running, self._options.identify, asyncio.get_running_loop()
        if running is None or not running.is_open or identify or running.loop is not loop:
            return self._serve_after_start(request)
        return (running.handlers.get(request.route) or running.handler(request.route))(request)

    async def _serve_after_start(self, request: HttpRequest) -> None:
        """Start the server or identify the caller first."""
        running = await self._ensure_started()
        handler = running.handler(request.route)
        if (identify := self._options.identify) is not None:
            found = identify(request.scope)
            if isinstance(found, Awaitable):
                found = await found
            if found is not None and not isinstance(found, str):
                raise TypeError(f"identify must give a string or None, not {type(found).__name__}")
            request.principal = None if found is None else Principal(subject=found)
            running.in_flight.refuse_if_closing()  # a drain may have begun meanwhile
        await handler(request)

    async def _serve_route(self, route: App, request: HttpRequest) -> None:
        """Serve a custom route, after the lifespan of the server has started; a drain waits for it as for a call."""
        running = await self._ensure_started()
        in_flight = running.in_flight
        # The fast path would bypass the route's own middleware.
        extensions = {name: each for name, each in (request.scope.get("extensions") or {}).items() if name != FAST_PATH}
        ours = {BODIES: in_flight.bodies, PROXIES: self._proxies, STATE: running.state, APP_STATUS: running.status}
        scope = {**request.scope, "extensions": extensions, **ours}
        task = asyncio.current_task()
        assert task is not None
        in_flight.add(task, task.cancel)
        try:
            await route(scope, request.receive, request.send)
        finally:
            in_flight.remove(task)
        request.response.started = request.response.ended = True

    async def _health(self, request: HttpRequest) -> None:
        """Answer a probe. Host and Origin are not checked: a probe may send any, and other origins can't read this."""
        if request.method not in ("GET", "HEAD"):
            await request.refuse_method(b"GET, HEAD", "GET this path")
            return
        status = self._readiness() if request.route in READY_PATHS else OK
        told: dict[str, Any] = {"status": status}
        if request.route in READY_PATHS and (unreachable := self._unreachable_backends()):
            told["unreachable"] = unreachable
        body = b"" if request.method == "HEAD" else encode(told)
        await request.response.json(200 if status == OK else 503, body, [(b"cache-control", b"no-store")])

    def _readiness(self) -> str:
        """Readiness as this worker knows it: a probe does not query the store."""
        if self._draining:
            return "draining"
        failure = self._running.lease.store_error if self._running is not None and self._running.is_open else None
        if failure is None:
            return OK
        return "state store full" if isinstance(failure, StoreFull) else "state store out of reach"

    def _unreachable_backends(self) -> list[str]:
        """The names of backends that proxies can't reach. A gateway is ready without them: the others are served."""
        mounts = [] if self._engine.mounts is None else self._engine.mounts.status()
        return [each.name for each in mounts if each.backend is not None and each.backend.problem]

    async def _ensure_started(self) -> "RunningApp":
        running = self._running
        if running is None or not self._is_on_this_loop(running):
            running = self._begin_start()
        if not running.started.done():
            await asyncio.wait([running.started])
        running.in_flight.refuse_if_closing()
        running.started.result()  # raises if the start has failed
        return running

    def _is_on_this_loop(self, running: "RunningApp") -> bool:
        """Raises RuntimeError if another event loop serves the app; one that has stopped does not count."""
        if running.loop is asyncio.get_running_loop():
            return True
        if running.loop.is_running() and not running.in_flight.closing:
            raise RuntimeError("This app is served on another event loop; call server.asgi() once for each loop")
        return False

    def _begin_start(self) -> "RunningApp":
        """Start in another task and context: a request that disconnects must not cancel the start."""
        self._running = running = RunningApp(self)

        def on_done(started: asyncio.Future[None]) -> None:
            failed = started.cancelled() or started.exception() is not None
            if failed and self._running is running and not running.in_flight.closing:
                self._running = None  # the next request tries again

        running.started = running.loop.create_task(running.start(self._owner), context=contextvars.Context())
        running.started.add_done_callback(on_done)
        return running

    async def start(self) -> None:
        """Start the server before the first request, or again after `drain`."""
        self._draining = False
        if self._running is not None and self._running.in_flight.closing:
            self._running = None
        await self._ensure_started()

    def begin_drain(self) -> None:
        """Make `/ready` fail; requests are still served."""
        self._draining = True

    async def drain(self, timeout: float | None = None) -> None:
        """Refuse new requests, end the streams, let calls finish for `timeout` seconds, end the lifespan."""
        running = self._running
        if running is None:  # there was no request
            self._running = running = RunningApp(self)
        is_on_this_loop = self._is_on_this_loop(running)
        self._draining = True
        if is_on_this_loop:
            await running.end(self._options.drain_timeout if timeout is None else timeout)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        for stage, act in (("startup", self.start), ("shutdown", self.drain)):
            await receive()
            try:
                await act()
            except Exception as failure:
                log.exception("the server's %s failed", stage)
                await send({"type": f"lifespan.{stage}.failed", "message": f"the server's {stage} failed: {failure}"})
                return
            await send({"type": f"lifespan.{stage}.complete"})

    @contextlib.asynccontextmanager
    async def lifespan(self, host: object = None) -> AsyncIterator[None]:  # noqa: ARG002  # as Starlette calls it
        """Serve within the lifespan of a host: start now, drain at a signal or at the end.

        A host ends its lifespan only after the last response, and open streams would never end.
        """
        await self.start()
        loop, draining = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        try:
            with observed_signals(lambda: draining.add(loop.create_task(self.drain()))):
                yield
        finally:
            await self.drain()

    def well_known(self, *, has_path: bool = True) -> App:
        """An app to mount at `/.well-known` of the origin; `path` or `public_url` must be as clients see them."""
        return OriginDocuments(self._documents, has_path=has_path)

    def mount_on(self, host: Any, path: str) -> None:
        """Mount this app in a FastAPI or Starlette app, so that `path` itself is served too.

        Their `mount` alone redirects `/x` to `/x/`, which many MCP clients do not follow.
        """
        if not path.startswith("/") or path.endswith("/"):
            raise SetupError(f'mount_on: path={path!r} is not possible; it must be like "/mcp"')
        if getattr(host, "prefix", ""):
            raise SetupError(f"mount_on: a router with prefix={host.prefix!r} forgets it for mounts; mount on the app")
        host.add_route(path, _MountPoint(self))
        host.mount(path, self)


class _MountPoint(msgspec.Struct, eq=False):
    """The app at exactly the path of a host's route. Not a function: the host would wrap it."""

    _app: App

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root: str = scope.get("root_path", "")
        full_path = scope["path"] if is_below(scope["path"], root) else root + scope["path"]
        inner = {**scope, "root_path": full_path, "app_root_path": scope.get("app_root_path", root)}
        await self._app(inner, receive, send)


def route_of(scope: Scope) -> str:
    """The path relative to the mount path, without a slash at its end. Some hosts leave `root_path` in `path`."""
    path: str = scope["path"]
    root: str = scope["root_path"].rstrip("/")
    # A proxy may have removed a part of it; only Starlette says which.
    for prefix in (root, root.removeprefix(scope.get("app_root_path", ""))):
        if prefix and is_below(path, prefix):
            return path[len(prefix) :].rstrip("/")
    return path.rstrip("/")


def _default_state(options: HttpOptions) -> MemoryState:
    """Memory for each session's record and message log, and each stream's presence, event logs and requests."""
    entries = 2 * options.max_sessions + options.max_streams + 2 * MAX_STREAMS + MAX_PENDING_REQUESTS
    entry_bytes = (4_000 + options.max_sessions) * (MAX_CLIENT + 1024)  # also if each `initialize` is at its limit
    return MemoryState(max_entries=entries, max_entry_bytes=entry_bytes)


class RunningApp:
    """The app on one event loop, from its start to the end of its drain."""

    def __init__(self, app: HttpApp) -> None:
        self._app = app
        self._engine, self._options = engine, options = app._engine, app._options
        self._owns_state = app._state is None
        own = open_state(str(options.state), engine.info.name) if app._state is None else app._state
        measured = engine.metrics if own.shared else None
        self.state = state = own if measured is None else lazy.metrics.MeasuredState(own, measured)
        self._gauges: AppGauges | None = None  # while it is open, with metrics
        self.loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = self.loop.create_future()
        self.is_open = False  # started, and not draining
        self._ended: asyncio.Task[None] | None = None
        self.in_flight = InFlight(options.max_streams, options.max_body_bytes, options.max_per_caller)
        self._endpoint = Endpoint(engine, options, state, self.in_flight, app._proxies)
        self.lease = self._endpoint.lease
        self.status = AppStatus(engine, options, own, self.in_flight, self._endpoint.sessions)
        self._auth: Auth | None = None  # with verifiers of its own, while the app is open
        self.handlers: dict[str, RequestHandler] = {}  # by route; none before it has started

    async def _open_handlers(self) -> None:
        options, state, proxies, documents = self._options, self.state, self._app._proxies, self._app._documents
        handlers: dict[str, RequestHandler] = {"": self._endpoint, options.path: self._endpoint}
        if options.sse:
            legacy = SseEndpoint(self._engine, options, self.in_flight, state, proxies)
            handlers |= {STREAM_ROUTE: legacy.stream, MESSAGES_ROUTE: legacy.messages}
        if documents is not None:
            self._auth = await documents.auth.for_app(state)
            authenticator = Authenticator(self._auth, documents.urls, self.in_flight, state, self._engine)
            handlers = {route: authenticator.protect(handler) for route, handler in handlers.items()}
        self.handlers = handlers

    def handler(self, route: str) -> RequestHandler:
        if (handler := self.handlers.get(route)) is not None:
            return handler
        raise invalid_request(404, f"There is nothing at this path; the MCP endpoint is {self._options.path or '/'}")

    async def start(self, owner: Any) -> None:
        """Start the app. If that fails, all is undone, and the next try opens another state."""
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._close_state)
            await self._open_handlers()
            if self.state.shared:
                self._engine.state, self._engine.lease = self.state, self.lease
            await self._engine.start(owner)
            undo.push_async_callback(self._engine.stop)
            if self.state.shared and (refresher := self._engine.refresher) is not None:
                with contextlib.suppress(StoreUnavailable):  # it will catch up later
                    await refresher.catch_up(self.state)
            self._endpoint.start()
            if (metrics := self._engine.metrics) is not None:
                sessions = self._endpoint.sessions
                self._gauges = lazy_http.metrics.AppGauges(self._engine, metrics, self.status, sessions, self.state)
            self.is_open = not self.in_flight.closing
            undo.pop_all()

    async def _close_state(self) -> None:
        """Close the verifiers of this app, and the state if it was opened here."""
        auth, self._auth = self._auth, None
        try:
            if auth is not None:
                await auth.close()
        finally:
            if self._owns_state:
                self._owns_state = False
                await self.state.close()
                self._engine.release_state(self.state)

    async def end(self, timeout: float) -> None:
        """Drain once, even if several callers wait for it."""
        if self._ended is None:
            self._ended = self.loop.create_task(self._end(timeout))
        await asyncio.shield(self._ended)

    async def _end(self, timeout: float) -> None:
        self.is_open = False
        if self._gauges is not None:
            self._gauges.close()
        self._endpoint.stop_server_requests()  # when the streams end no response can arrive
        draining = None if self._engine.tasks is None else self.loop.create_task(self._engine.tasks.drain(timeout))
        await self.in_flight.close(timeout)
        if draining is not None:
            await draining
        self.started.cancel()  # if it still runs, or never began
        await asyncio.wait([self.started])
        try:
            if not self.started.cancelled() and self.started.exception() is None:
                await self._endpoint.stop()
                await self._engine.stop()
        finally:
            await self._close_state()
