"""A bare HTTP client to an ASGI app in this process: tests say what is sent and see what is answered, byte for byte."""

import asyncio
import itertools
import json
from typing import Any
from urllib.parse import quote

from dovetail.protocol.sse import Event, SseDecoder

HANDSHAKE = ["2025-03-26", "2025-06-18", "2025-11-25"]
MODERN = "2026-07-28"
REVISIONS = [*HANDSHAKE, MODERN]
CLIENT = {"name": "wire", "version": "1.0.0"}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": CLIENT,
}
VERSION_KEY, CAPABILITIES_KEY, CLIENT_KEY = META
LOG_KEY = "io.modelcontextprotocol/logLevel"
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
NAMED_BY |= dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")
BOTH = "application/json, text/event-stream"


class HttpExchange:
    """One HTTP request on its way: what has come back so far, and the means to leave early."""

    def __init__(self, app: Any, scope: dict[str, Any], pieces: list[bytes], *, complete: bool = True) -> None:
        self.app = app
        self.scope = scope
        self.sent: list[dict[str, Any]] = []
        self._pieces = list(pieces)
        self._complete = complete  # otherwise there is always more of the body to come, and it never does
        self.watched = asyncio.Event()  # the app has begun to wait for the client to leave
        self._gone = asyncio.Event()
        self._quiet = False
        self._news = asyncio.Event()
        self._flows = asyncio.Event()
        self._flows.set()
        self._decoder = SseDecoder(max_bytes=1 << 26)
        self._events: list[Event] = []
        self._taken = 0
        self.raw = b""
        self.ended = False
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.app(self.scope, self._receive, self._send)
        finally:
            self.ended = True
            self._news.set()

    async def _receive(self) -> dict[str, Any]:
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces) or not self._complete}
        self.watched.set()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self._gone.is_set():
            if self._quiet:
                return
            raise OSError("the client is gone")
        self.sent.append(message)
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            self.raw += body
            if self.is_stream:
                self._events += self._decoder.feed(body)
        self._news.set()
        if not self._flows.is_set():  # the buffer has taken it, but there is no room for more
            await self._flows.wait()
            if self._gone.is_set():
                raise OSError("the client is gone")

    # ── what a test sees ──

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode("latin-1") for name, value in self.sent[0]["headers"]}

    @property
    def is_stream(self) -> bool:
        return bool(self.sent) and self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json", self.headers
        return json.loads(self.raw)

    @property
    def events(self) -> list[Event]:
        return self._events

    @property
    def messages(self) -> list[Any]:
        """What was sent, parsed: one JSON body, or the data of all events that have any."""
        return [json.loads(event.data) for event in self._events if event.data] if self.is_stream else [self.json]

    @property
    def answer(self) -> Any:
        """The last message: the answer to the request."""
        return self.messages[-1]

    async def done(self, timeout: float = 10) -> "HttpExchange":
        """Wait until the app has returned."""
        await asyncio.wait_for(asyncio.shield(self.task), timeout)
        return self

    async def started(self, timeout: float = 10) -> "HttpExchange":
        await self.until(lambda: bool(self.sent), timeout)
        return self

    async def event(self, timeout: float = 10) -> Event:
        """The next event that was not taken yet."""
        await self.until(lambda: len(self._events) > self._taken or self.ended, timeout)
        assert len(self._events) > self._taken, "the stream has ended"
        self._taken += 1
        return self._events[self._taken - 1]

    async def message(self, timeout: float = 10) -> Any:
        """The data of the next event that has any."""
        while True:
            event = await self.event(timeout)
            if event.data:
                return json.loads(event.data)

    async def until(self, holds: Any, timeout: float = 10) -> None:
        """Wait for something that comes with what is sent."""
        async with asyncio.timeout(timeout):
            while not holds():
                self._news.clear()
                await self._news.wait()

    # ── how a client behaves ──

    def leave(self, *, quietly: bool = False) -> None:
        """The connection breaks. `quietly`: what is sent then is dropped without a word, as uvicorn does it."""
        self._quiet = quietly
        self._gone.set()
        self._flows.set()

    def stall(self) -> None:
        """Stop reading: from now on a send does not come back."""
        self._flows.clear()

    def read_on(self) -> None:
        self._flows.set()

    async def cut(self) -> None:
        """The connection breaks, and the ASGI server cancels the task of the request."""
        self.leave()
        self.task.cancel()
        await asyncio.wait({self.task})


class HttpWire:
    """What is not given is what a correct client of the revision says; `session` shakes hands first."""

    def __init__(
        self,
        app: Any,
        version: str = MODERN,
        *,
        path: str = "/mcp",
        root_path: str = "",
        accept: str = BOTH,
        headers: dict[str, str | None] | None = None,
    ) -> None:
        """`headers` come with every request."""
        self.app = app
        self.version = version
        self.path = path
        self.root_path = root_path
        self.accept = accept
        self.headers = headers or {}
        self.session_id: str | None = None
        self.ids = itertools.count(1)
        self.welcome: dict[str, Any] = {}

    @classmethod
    async def session(
        cls, app: Any, version: str = "2025-11-25", *, capabilities: dict[str, Any] | None = None, **options: Any
    ) -> "HttpWire":
        wire = cls(app, version, **options)
        answer = await post(wire, hello(version, capabilities=capabilities or {}))
        assert answer.status == 200, answer.raw
        wire.welcome = answer.answer["result"]
        wire.session_id = answer.headers.get("mcp-session-id")
        assert (await wire.notify("notifications/initialized")).status == 202
        return wire

    async def until_ready(self, status: int) -> HttpExchange:
        """Wait until `/ready` answers so: a worker looks after its store by itself, every second."""
        async with asyncio.timeout(10):
            while (answer := await self.raw("GET", path="/ready").done()).status != status:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return answer

    # ── requests ──

    def raw(
        self,
        method: str,
        body: bytes | list[bytes] = b"",
        headers: dict[str, str | None] | None = None,
        *,
        path: str | None = None,
        query: str = "",
        more: list[tuple[bytes, bytes]] | None = None,
        server: tuple[str, int] | None = ("127.0.0.1", 8000),
        complete: bool = True,
    ) -> HttpExchange:
        """Begin any request. A header given as None is left out; `more` are added as they are.

        `complete=False`: the body stops after the pieces that are given, and its end does not come.
        """
        base = {"host": "localhost:8000", "accept": self.accept}
        if method == "POST":
            base["content-type"] = "application/json"
        if self.session_id is not None:
            base["mcp-session-id"] = self.session_id
            base["mcp-protocol-version"] = self.version
        given = {**self.headers, **(headers or {})}
        named = {**base, **{name.lower(): value for name, value in given.items()}}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": self.path if path is None else path,
            "raw_path": quote(self.path if path is None else path).encode(),
            "root_path": self.root_path,
            "query_string": query.encode(),
            "headers": [
                *((name.encode(), value.encode("latin-1")) for name, value in named.items() if value is not None),
                *(more or []),
            ],
            "client": ("127.0.0.1", 50000),
            "server": server,
        }
        return HttpExchange(self.app, scope, body if isinstance(body, list) else [body], complete=complete)

    def message(self, method: str, params: dict[str, Any] | None = None, *, id: Any = None) -> dict[str, Any]:
        params = dict(params or {})
        if self.version == MODERN:
            params["_meta"] = {**META, **params.get("_meta", {})}
        return message(method, params, id=next(self.ids) if id is None else id)

    def start(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        id: Any = None,
        headers: dict[str, str | None] | None = None,
    ) -> HttpExchange:
        """Begin a request and do not wait for its answer."""
        message = self.message(method, params, id=id)
        standard: dict[str, str | None] = {}
        if self.version == MODERN:
            standard = {"mcp-protocol-version": MODERN, "mcp-method": method}
            if method in NAMED_BY:
                standard["mcp-name"] = message["params"][NAMED_BY[method]]
        return self.raw("POST", json.dumps(message).encode(), {**standard, **(headers or {})})

    async def post(self, method: str, params: dict[str, Any] | None = None, **options: Any) -> HttpExchange:
        return await self.start(method, params, **options).done()

    async def ask(self, method: str, params: dict[str, Any] | None = None, **options: Any) -> Any:
        """The result; fails on an error."""
        answer = (await self.post(method, params, **options)).answer
        assert "result" in answer, answer
        return answer["result"]

    async def call(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> HttpExchange:
        return await self.post("tools/call", {"name": name, "arguments": arguments or {}}, **options)

    def start_call(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> HttpExchange:
        meta = {"_meta": options.pop("meta")} if "meta" in options else {}
        return self.start("tools/call", {"name": name, "arguments": arguments or {}, **meta}, **options)

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> HttpExchange:
        return await post(self, message(method, ... if params is None else params, id=None))

    def get(self, last_event_id: str | None = None, headers: dict[str, str | None] | None = None) -> HttpExchange:
        extra = {} if last_event_id is None else {"last-event-id": last_event_id}
        return self.raw("GET", b"", {**extra, **(headers or {})})

    async def delete(self) -> HttpExchange:
        return await self.raw("DELETE").done()


# ── what is sent, and what is answered ──


async def open_wire(app: Any, version: str, **options: Any) -> HttpWire:
    """A client of any revision."""
    return HttpWire(app, **options) if version == MODERN else await HttpWire.session(app, version, **options)


def text_of(answer: Any) -> str:
    return answer["result"]["content"][0]["text"]


def message(method: str, params: Any = ..., *, id: Any = "q") -> dict[str, Any]:
    """A request; without an id a notification."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if id is not None:
        body["id"] = id
    return body if params is ... else {**body, "params": params}


def modern(method: str, params: dict[str, Any] | None = None, *, id: Any = "q", **meta: Any) -> dict[str, Any]:
    """A request of 2026-07-28; `meta` changes its `_meta`, and leaves out what is given as `...`."""
    keys = {"version": VERSION_KEY, "capabilities": CAPABILITIES_KEY, "client": CLIENT_KEY, "log": LOG_KEY}
    changed = {**META, **{keys.get(name, name): value for name, value in meta.items()}}
    return message(method, {**(params or {}), "_meta": {k: v for k, v in changed.items() if v is not ...}}, id=id)


def hello(version: str, **changes: Any) -> dict[str, Any]:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT, **changes}
    return message("initialize", params, id="q")


def mirrored(method: str, name: str | None = None, version: str | None = MODERN, **more: str) -> dict[str, str]:
    headers = {"mcp-protocol-version": version, "mcp-method": method, "mcp-name": name}
    return {key: value for key, value in headers.items() if value is not None} | {
        key.replace("_", "-"): value for key, value in more.items()
    }


def H(version: str) -> dict[str, str]:  # as the table calls it
    return {"mcp-protocol-version": version}


async def post(wire: HttpWire, body: Any, headers: dict[str, str | None] | None = None) -> HttpExchange:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await wire.raw("POST", data, headers).done()


async def initialize(app: Any, version: str = "2025-11-25", **headers: str | None) -> HttpExchange:
    return await post(HttpWire(app), hello(version), headers)


async def unready(app: Any) -> HttpWire:
    """A session whose client has not said yet that it is ready."""
    wire = HttpWire(app, "2025-11-25")
    wire.session_id = (await initialize(app)).headers["mcp-session-id"]
    return wire
