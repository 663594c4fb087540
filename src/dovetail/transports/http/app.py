"""The ASGI app of a server: paths, start and drain, and how it is mounted in another app.

It needs no lifespan from its host: the server starts with the first request, unless `start` or a lifespan was quicker.
"""

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any

from dovetail.auth.principal import Principal
from dovetail.engine.client_requests import MAX_SHARED
from dovetail.engine.engine import Engine
from dovetail.errors import INVALID_REQUEST, ProtocolError, SetupError
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.session import MAX_CLIENT
from dovetail.state.base import StateBackend, StoreFull, StoreUnavailable, open_state
from dovetail.state.memory import MemoryState
from dovetail.transports.http.asgi import WHOLE, App, Receive, Scope, Send, is_below
from dovetail.transports.http.authenticate import Authenticator
from dovetail.transports.http.endpoint import Endpoint
from dovetail.transports.http.event_store import MAX_STREAMS
from dovetail.transports.http.in_flight import InFlight, Overview
from dovetail.transports.http.legacy_sse import MESSAGES_ROUTE, STREAM_ROUTE, SseEndpoint
from dovetail.transports.http.options import HttpOptions, Identify
from dovetail.transports.http.origin import Cors, OriginPolicy
from dovetail.transports.http.proxies import TrustedProxies
from dovetail.transports.http.request import HttpRequest, Place
from dovetail.transports.http.routes import BODIES, OVERVIEW, PROXIES, STATE, RouteTable, front_page
from dovetail.transports.http.well_known import OriginDocuments, ResourceDocuments, ResourceUrls, root_of
from dovetail.transports.process import beside_signals

if TYPE_CHECKING:
    from dovetail.auth.settings import Auth

READY = frozenset({"/ready", "/health/ready"})
PROBES = READY | {"/health", "/health/live"}
OK = "ok"

log = logging.getLogger("dovetail")


class HttpApp:
    """What `server.asgi()` gives."""

    def __init__(self, engine: Engine, options: HttpOptions, *, owner: Any = None, bound_to: str | None = None) -> None:
        self._engine = engine
        self._options = options
        self._owner = owner
        if isinstance(options.state, str):
            open_state(options.state, engine.info.name)  # raises if it can't be one; each event loop opens its own
            self._state: StateBackend | None = None
        else:
            self._state = _own_state(options) if options.state is None else options.state
        self._guard = OriginPolicy(options.allowed_hosts, options.allowed_origins, bound_to=bound_to)
        self._cors = Cors(options.cors)
        self._proxies = TrustedProxies(options.trusted_proxies)
        self._documents = documents = self._make_documents()
        self._urls = documents.urls if documents else ResourceUrls(options.public_url, options.path, self._proxies)
        taken = {*self._open, *((STREAM_ROUTE, MESSAGES_ROUTE) if options.sse else ())}
        if options.path in taken:
            raise SetupError(f"path={options.path!r} is not possible: something else is served there; choose another")
        self._pages = RouteTable(options.routes, reserved={options.path, *taken})
        self._has_pages = bool(options.routes)
        self._stay: AppState | None = None
        self._draining = False

    def _make_documents(self) -> ResourceDocuments | None:
        """Open to all callers besides the probes: how this server is protected, if it is."""
        self._open: dict[str, Place] = dict.fromkeys(PROBES, self._health)
        auth = self._engine.options.auth
        if auth is None:
            return None
        if self._options.identify is not None:
            raise SetupError("identify= and Server(auth=) both say who is asking; choose one of them")
        documents = ResourceDocuments(self._engine, auth, self._options, self._guard, self._proxies)
        self._open |= dict.fromkeys(documents.routes, documents.show)
        return documents

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._lifespan(receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1000, "reason": "MCP is served over HTTP"})
        route = route_of(scope) if scope.get("root_path") else scope["path"].rstrip("/")
        visit = HttpRequest.of(scope, receive, send, route)
        try:
            await self._lead(visit)
            if not visit.response.started:
                await visit.response.settle()
        except Exception as failure:
            await visit.answer_failure(failure, f"{visit.method} {visit.route[:200]!r}")

    # ── requests ──

    def _lead(self, visit: HttpRequest) -> Awaitable[None]:
        """Route the request: open paths, custom routes, the MCP endpoint; checks Host and Origin. Not a coroutine."""
        if (open_place := self._open.get(visit.route)) is not None:
            return open_place(visit)
        if visit.headers.has_repeats:
            visit.refuse_repeated_headers()
        self._guard.check(visit.headers, visit.scope.get("server"))
        is_mount_point = not visit.route and visit.scope.get("root_path")
        page = self._pages.find(visit.route) if self._has_pages and not is_mount_point else None
        if page is not None:
            return self._show(page, visit)
        if visit.method in ("GET", "HEAD") and visit.route in ("", self._options.path) and visit.is_of_browser:
            url, root = self._urls.resource(visit.scope, visit.route), root_of(visit.scope)
            page = self._pages.find(visit.route) or front_page(self._engine, self._options, url, root)
            return self._show(page, visit)
        if b"origin" in visit.headers.raw:
            if visit.method == "OPTIONS" and (allowed := self._cors.preflight(visit.headers)) is not None:
                return visit.response.empty(204, allowed)
            visit.response.add_headers(self._cors.response_headers(visit.headers.get("origin")))
        stay = self._stay
        if stay is None or not stay.is_open or self._options.identify or stay.loop is not asyncio.get_running_loop():
            return self._arrive(visit)
        return (stay.places.get(visit.route) or stay.place(visit.route))(visit)

    async def _arrive(self, visit: HttpRequest) -> None:
        """Where the server has to start first, or the caller is not known yet."""
        stay = await self._here()
        place = stay.place(visit.route)
        if self._options.identify is not None:
            visit.principal = await _identity(self._options.identify, visit.scope)
            stay.traffic.refuse_if_closing()  # it may have taken its time
        await place(visit)

    async def _show(self, page: App, visit: HttpRequest) -> None:
        """A page of the users' own: it has its time like a call, and what the lifespan opened is there for it."""
        stay = await self._here()
        traffic = stay.traffic
        # Without the shorter way to the wire, which would pass by the page's own middleware.
        others = {name: offer for name, offer in (visit.scope.get("extensions") or {}).items() if name != WHOLE}
        ours = {BODIES: traffic.bodies, PROXIES: self._proxies, STATE: stay.state, OVERVIEW: stay.overview}
        scope = {**visit.scope, "extensions": others, **ours}
        task = asyncio.current_task()
        assert task is not None
        traffic.enter(task, task.cancel)
        try:
            await page(scope, visit.receive, visit.send)
        finally:
            traffic.leave(task)
        visit.response.started = visit.response.ended = True

    async def _health(self, visit: HttpRequest) -> None:
        """Open to every Host and Origin, for probes come with any; but no page of another origin may read it."""
        if visit.method not in ("GET", "HEAD"):
            await visit.refuse_method(b"GET, HEAD", "GET this path")
            return
        status = self._readiness() if visit.route in READY else OK
        body = b"" if visit.method == "HEAD" else encode({"status": status})
        await visit.response.json(200 if status == OK else 503, body, [(b"cache-control", b"no-store")])

    def _readiness(self) -> str:
        """As this worker knows it: a probe costs the store nothing."""
        if self._draining:
            return "draining"
        trouble = self._stay.member.store_error if self._stay is not None and self._stay.is_open else None
        if trouble is None:
            return OK
        return "state store full" if isinstance(trouble, StoreFull) else "state store out of reach"

    # ── life ──

    async def _here(self) -> "AppState":
        """The stay on this event loop; entered by the first request if nothing else has begun it."""
        stay = self._stay
        if stay is None or not self._is_mine(stay):
            stay = self._begin()
        if not stay.started.done():
            await asyncio.wait([stay.started])
        stay.traffic.refuse_if_closing()
        stay.started.result()  # raises what the start has raised
        return stay

    def _is_mine(self, stay: "AppState") -> bool:
        """Whether it is on this loop; one on a loop that has ended counts no more, and on one that runs is an error."""
        if stay.loop is asyncio.get_running_loop():
            return True
        if stay.loop.is_running() and not stay.traffic.closing:
            raise RuntimeError("This app is served on another event loop; call server.asgi() once for each loop")
        return False

    def _begin(self) -> "AppState":
        """In a task of its own: others will wait for it when the client that came first has left."""
        self._stay = stay = AppState(self)

        def begun(started: asyncio.Future[None]) -> None:
            failed = started.cancelled() or started.exception() is not None
            if failed and self._stay is stay and not stay.traffic.closing:
                self._stay = None  # the next request tries again

        stay.started = stay.loop.create_task(stay.start(self._owner), context=contextvars.Context())
        stay.started.add_done_callback(begun)
        return stay

    async def start(self) -> None:
        """Start the server before the first request, or again after `drain`."""
        self._draining = False
        if self._stay is not None and self._stay.traffic.closing:
            self._stay = None
        await self._here()

    def begin_drain(self) -> None:
        """From now on `/ready` says no; requests are still served."""
        self._draining = True

    async def drain(self, timeout: float | None = None) -> None:
        """Refuse new requests, end the streams, let calls finish for `timeout` seconds, leave the lifespan."""
        stay = self._stay
        if stay is None:  # there was no request
            self._stay = stay = AppState(self)
        is_mine = self._is_mine(stay)
        self._draining = True
        if is_mine:
            await stay.end(self._options.drain_timeout if timeout is None else timeout)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """For hosts that send one; none is needed."""
        for stage, act in (("startup", self.start), ("shutdown", self.drain)):
            await receive()
            try:
                await act()
            except Exception as failure:
                log.exception("the server's %s failed", stage)
                await send({"type": f"lifespan.{stage}.failed", "message": f"the server's {stage} failed: {failure}"})
                return
            await send({"type": f"lifespan.{stage}.complete"})

    # ── in other people's apps ──

    @contextlib.asynccontextmanager
    async def lifetime(self) -> AsyncIterator[None]:
        """For the lifespan of a host: start now, drain when a signal comes or the host ends.

        A host ends its lifespan when the last response is over, and streams are not over by themselves.
        """
        await self.start()
        loop, draining = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        try:
            with beside_signals(lambda: draining.add(loop.create_task(self.drain()))):
                yield
        finally:
            await self.drain()

    def well_known(self, *, is_placed: bool = True) -> App:
        """What to mount at `/.well-known` of the origin, where `path` or `public_url` are as clients see them."""
        return OriginDocuments(self._documents, is_placed=is_placed)

    def mount_on(self, host: Any, path: str) -> None:
        """Mount this app in a FastAPI or Starlette app, so that `path` itself is served too.

        Their `mount` alone answers a request to `/x` with a redirect to `/x/`, which many MCP clients do not follow.
        """
        if not path.startswith("/") or path.endswith("/"):
            raise SetupError(f'mount_on: path={path!r} is not possible; it must be like "/mcp"')
        if getattr(host, "prefix", ""):
            raise SetupError(f"mount_on: a router with prefix={host.prefix!r} forgets it for mounts; mount on the app")
        host.add_route(path, _MountPoint(self))
        host.mount(path, self)


class _MountPoint:
    """The app at exactly the path that a host has found; not a function, for those are wrapped by the host."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root: str = scope.get("root_path", "")
        whole = scope["path"] if is_below(scope["path"], root) else root + scope["path"]
        inner = {**scope, "root_path": whole, "app_root_path": scope.get("app_root_path", root)}
        await self._app(inner, receive, send)


def route_of(scope: Scope) -> str:
    """The path below the `root_path` where the app is mounted, without a slash at its end.

    Some hosts leave `path` whole, some cut off where the app is mounted. Of what a proxy has cut off, only Starlette
    tells how much that is.
    """
    path: str = scope["path"]
    root: str = scope["root_path"].rstrip("/")
    for prefix in (root, root.removeprefix(scope.get("app_root_path", ""))):
        if prefix and is_below(path, prefix):
            return path[len(prefix) :].rstrip("/")
    return path.rstrip("/")


def _own_state(options: HttpOptions) -> MemoryState:
    """For each session its record and its messages, for each stream that it is there, and all logs and questions."""
    entries = 2 * options.max_sessions + options.max_streams + 2 * MAX_STREAMS + MAX_SHARED
    room = (4_000 + options.max_sessions) * (MAX_CLIENT + 1024)  # bytes, however much clients say of themselves
    return MemoryState(max_entries=entries, max_entry_bytes=room)


async def _identity(identify: Identify, scope: Scope) -> Principal | None:
    found = identify(scope)
    if isinstance(found, Awaitable):
        found = await found
    if found is not None and not isinstance(found, str):
        raise TypeError(f"identify must give a string or None, not {type(found).__name__}")
    return None if found is None else Principal(subject=found)


class AppState:
    """The app's life on one event loop: what is there at which path, and what is going on."""

    def __init__(self, app: HttpApp) -> None:
        self._app = app
        self._engine, self._options = engine, options = app._engine, app._options
        self._opened_here = app._state is None  # and closed at the end
        self.state = state = open_state(str(options.state), engine.info.name) if app._state is None else app._state
        self.loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = self.loop.create_future()
        self.is_open = False  # started, and not ending yet
        self._ended: asyncio.Task[None] | None = None
        self.traffic = InFlight(options.max_streams, options.max_body_bytes, options.max_per_caller)
        self._endpoint = Endpoint(engine, options, state, self.traffic, app._proxies)
        self.member = self._endpoint.member
        self.overview = Overview(engine, options, state, self.traffic, self._endpoint.sessions)
        self._auth: Auth | None = None  # with verifiers of its own, while it is open
        self.places: dict[str, Place] = {}  # none before it has started

    async def _open_places(self) -> None:
        """With a doorkeeper before each, if callers need a token."""
        options, state, proxies, documents = self._options, self.state, self._app._proxies, self._app._documents
        places: dict[str, Place] = {"": self._endpoint, options.path: self._endpoint}
        if options.sse:
            old = SseEndpoint(self._engine, options, self.traffic, state, proxies)
            places |= {STREAM_ROUTE: old.stream, MESSAGES_ROUTE: old.messages}
        if documents is not None:
            self._auth = await documents.auth.for_app(state)
            door = Authenticator(self._auth, documents.urls, proxies, self.traffic, state, self._engine)
            places = {route: door.before(place) for route, place in places.items()}
        self.places = places

    def place(self, route: str) -> Place:
        """Raises ProtocolError if nothing is there."""
        place = self.places.get(route)
        if place is None:
            text = f"There is nothing at this path; the MCP endpoint is {self._options.path}"
            raise ProtocolError(text, code=INVALID_REQUEST, http_status=404)
        return place

    async def start(self, owner: Any) -> None:
        """If it fails, nothing of it is left: the next try opens another state."""
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._close_state)
            await self._open_places()
            if self.state.shared:
                self._engine.state = self.state
            await self._engine.start(owner)
            undo.push_async_callback(self._engine.stop)
            if self.state.shared and (refresher := self._engine.refresher) is not None:
                with contextlib.suppress(StoreUnavailable):  # then it is caught up with later
                    await refresher.catch_up(self.state)
            self._endpoint.start()
            self.is_open = not self.traffic.closing
            undo.pop_all()

    async def _close_state(self) -> None:
        """If it was opened here; once. First, the verifiers of this app hear that it is over."""
        auth, self._auth = self._auth, None
        try:
            if auth is not None:
                await auth.leave()
        finally:
            if self._opened_here:
                self._opened_here = False
                await self.state.close()
                self._engine.release_state(self.state)

    async def end(self, timeout: float) -> None:
        """Once, also if several callers wait for it."""
        if self._ended is None:
            self._ended = self.loop.create_task(self._end(timeout))
        await asyncio.shield(self._ended)

    async def _end(self, timeout: float) -> None:
        self.is_open = False
        self._endpoint.stop_asking()  # without a pause before the streams end: then no more answers arrive
        await self.traffic.close(timeout)
        self.started.cancel()  # if it is not over yet, or never began
        await asyncio.wait([self.started])
        try:
            if not self.started.cancelled() and self.started.exception() is None:
                await self._endpoint.stop()
                await self._engine.stop()
        finally:
            await self._close_state()
