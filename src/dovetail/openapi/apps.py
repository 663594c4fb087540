"""Web apps in this process: their descriptions, and requests to them over ASGI, without a socket."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from dovetail.client.transports.base import cancel_and_wait
from dovetail.errors import SetupError
from dovetail.openapi.requests import ApiRequest, ApiResponse, ResponseTooLong

log = logging.getLogger("dovetail")
ASGI = {"version": "3.0", "spec_version": "2.4"}
CLIENT = ("dovetail", 0)  # no address: apps may trust that of this machine
CLOSE_TIMEOUT = 5.0  # seconds for work that goes on after its response
CONVERTORS = {"IntegerConvertor": {"type": "integer"}, "FloatConvertor": {"type": "number"}}  # of Starlette


def describe_app(app: Any) -> dict[str, Any]:
    """The OpenAPI document of an app: its own, as FastAPI's, or one of the routes of a Starlette app."""
    if callable(getattr(app, "openapi", None)):
        found: dict[str, Any] = app.openapi()
        return found
    paths: dict[str, Any] = {}
    for route in getattr(app, "routes", ()):
        if getattr(route, "methods", None):  # else it is a mount, or a WebSocket
            methods = sorted(route.methods - {"HEAD"})
            operations = {each.lower(): _describe_route(route, each, is_only=len(methods) == 1) for each in methods}
            paths.setdefault(route.path_format, {}).update(operations)
    if not paths:
        raise SetupError(
            f"OpenApi.from_app({type(app).__name__}): it has neither openapi() nor routes; give OpenApi a URL"
        )
    return {"openapi": "3.1.0", "info": {"title": type(app).__name__, "version": "0.0.0"}, "paths": paths}


def _describe_route(route: Any, method: str, *, is_only: bool) -> dict[str, Any]:
    """All that a route tells: the variables of its path, and a docstring. A body may be any JSON."""
    body: dict[str, Any] = {"requestBody": {"content": {"application/json": {"schema": {}}}}}
    schemas = {
        name: CONVERTORS.get(type(each).__name__, {"type": "string"}) for name, each in route.param_convertors.items()
    }
    return {
        "operationId": route.name if is_only else f"{method.lower()}_{route.name}",
        "description": inspect.getdoc(route.endpoint) or "",
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": each} for name, each in schemas.items()
        ],
        "responses": {},
        **(body if method in ("POST", "PUT", "PATCH") else {}),
    }


class AppSender:
    """Calls an app for each request. Its lifespan is that of the server, unless the app is run elsewhere too."""

    def __init__(self, app: Any, *, has_lifespan: bool) -> None:
        self._app = app
        self._has_lifespan = has_lifespan
        self._state: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, request: ApiRequest, max_bytes: int) -> ApiResponse:
        exchange = _Exchange(request.body or b"", max_bytes)
        task = asyncio.ensure_future(self._app(self._scope(request), exchange.receive, exchange.send))
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        try:
            await asyncio.wait([task, exchange.response], return_when=asyncio.FIRST_COMPLETED)
            return exchange.response.result() if exchange.response.done() else ApiResponse(500, {})
        finally:
            exchange.ended.set()
            if not exchange.is_complete:  # cancelled, or too long
                task.cancel()

    def _finish(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, ResponseTooLong):
            log.error("the app failed", exc_info=failure)

    def _scope(self, request: ApiRequest) -> dict[str, Any]:
        url = urlsplit(request.url)
        headers = {"host": url.netloc, "content-length": str(len(request.body or b"")), **request.headers}
        return {
            "type": "http",
            "asgi": ASGI,
            "http_version": "1.1",
            "method": request.method,
            "scheme": url.scheme,
            "path": unquote_to_bytes(url.path).decode(errors="replace"),
            "raw_path": url.path.encode(),
            "query_string": url.query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": CLIENT,
            "server": (url.hostname, url.port or 80),
            "state": dict(self._state),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._state = {}
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        outbox: asyncio.Queue[Any] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": ASGI, "state": self._state}
        app = asyncio.ensure_future(self._app(scope, inbox.get, outbox.put)) if self._has_lifespan else None

        async def step(name: str) -> None:
            """Pass an event to the app. An app that ends without an answer knows no lifespan."""
            if app is None or app.done():
                return
            inbox.put_nowait({"type": f"lifespan.{name}"})
            answer = asyncio.ensure_future(outbox.get())
            await asyncio.wait([app, answer], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                answer.cancel()
            elif answer.result()["type"].endswith(".failed"):
                *_, last = str(answer.result().get("message") or "it does not say why").strip().splitlines()
                raise SetupError(f"OpenApi.from_app: the {name} of the app failed: {last}")

        try:
            await step("startup")
            try:
                yield
            finally:
                if self._tasks:
                    await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT)
                await step("shutdown")
        finally:
            await cancel_and_wait(*self._tasks, *([] if app is None else [app]))


class _Exchange:
    """The messages of one request."""

    def __init__(self, body: bytes, max_bytes: int) -> None:
        self.response: asyncio.Future[ApiResponse] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self._unread: bytes | None = body
        self._max_bytes = max_bytes
        self._start: Any = {}
        self._content = bytearray()

    @property
    def is_complete(self) -> bool:
        return self.response.done() and self.response.exception() is None

    async def receive(self) -> dict[str, Any]:
        body, self._unread = self._unread, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self.ended.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body" and not self.response.done():
            self._content += message.get("body", b"")
            if len(self._content) > self._max_bytes:
                self.response.set_exception(ResponseTooLong())
                raise ResponseTooLong
            if not message.get("more_body", False):
                pairs = self._start.get("headers", ())
                headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}
                self.response.set_result(ApiResponse(self._start["status"], headers, bytes(self._content)))
