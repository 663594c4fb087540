"""Clients over HTTP as tests play them, servers for them, and fleets of servers on one store."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from dovetail import Context, Field, Server
from dovetail.protocol import jsonrpc
from dovetail.state.base import StateBackend, StoreUnavailable
from http_serving import PausingState, Stage, endpoint_of, nothing_left, settle
from http_wire import LOG_KEY, HttpExchange, HttpWire, hello, message, post, text_of
from server_requests import AskingStage, answer_to

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
PARSE_ERROR, INVALID_REQUEST, NOT_FOUND, MISMATCH, UNSUPPORTED = -32700, -32600, -32601, -32020, -32022
ANSWER = {"jsonrpc": "2.0", "id": "q", "result": {}}
INSIDES = ("Traceback", "msgspec", ".py", "Exception", "0x7", "object at", "/src/")
JSON = "application/json"
TOOLS = "notifications/tools/list_changed"
RESOURCES = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
LISTEN = {"notifications": {"toolsListChanged": True}}
LOGS = {LOG_KEY: "debug", "progressToken": 7}


@dataclass(frozen=True)
class Place:
    zone: Annotated[str, Field(header="Time-Zone")]


def new_server(**options: Any) -> Server:
    server = Server("asked", version="1.0.0", **options)

    @server.tool
    async def add(a: int, b: int = 2) -> int:
        return a + b

    @server.tool
    async def chatty(ctx: Context, seconds: float = 0) -> str:
        await ctx.report_progress(1, 2)
        await asyncio.sleep(seconds)
        await ctx.report_progress(2, 2)
        return "done"

    @server.tool
    async def talk(ctx: Context) -> str:
        await ctx.info("something happened")
        return "done"

    @server.tool
    async def wait(seconds: float = 0) -> str:
        await asyncio.sleep(seconds)
        return f"{seconds:g}"

    @server.tool(requires=["elicitation"])
    async def asking() -> str:
        return "asked"

    @server.tool
    async def weather(
        region: Annotated[str, Field(header="Region")] = "here",
        days: Annotated[int, Field(header="Days")] = 1,
        brief: Annotated[bool, Field(header="Brief")] = False,
        place: Place = Place("nowhere"),
        unmarked: str | None = None,
    ) -> str:
        return json.dumps([region, days, brief, place.zone, unmarked])

    server.add_resource("notes://all", lambda: "all", name="all_notes")
    server.add_resource("notes://{note}", lambda note: str(note), name="one_note")
    server.add_prompt(lambda code="x": str(code), name="review")
    return server


def check_refusal(answer: HttpExchange, status: int, code: int, id: Any = None) -> str:
    """A refusal in JSON that says no more than it should; without an id if it has none to echo. Gives its words."""
    assert answer.status == status, answer.raw
    message = answer.json
    assert message.keys() == {"jsonrpc", "error"} | ({"id"} if id is not None else set()), message
    assert message["error"]["code"] == code, message
    assert (message.get("id"), type(message.get("id"))) == (id, type(id))
    text: str = message["error"]["message"]
    assert 0 < len(text) < 600
    assert not any(word in text for word in INSIDES), text
    return text


async def check_alive(app: Any) -> None:
    """Both eras are served as if nothing had happened."""
    assert text_of((await HttpWire(app).call("add", {"a": 1})).answer) == "3"
    wire = await HttpWire.session(app, "2025-06-18")
    assert text_of((await wire.call("add", {"a": 2})).answer) == "4"
    assert (await wire.delete()).status == 204


def identify(scope: Any) -> str | None:
    """Who is calling, as a host in front of the app would have found out."""
    return dict(scope["headers"]).get(b"x-user", b"").decode() or None


def methods(stream: HttpExchange) -> list[str]:
    return [each.get("method", "answer") for each in stream.messages]


def said(exchange: HttpExchange) -> list[str]:
    """The data of log messages, and the text of an answer."""
    return [each["params"]["data"] if "method" in each else text_of(each) for each in exchange.messages]


async def leave(*streams: HttpExchange) -> None:
    for stream in streams:
        stream.leave()
        await stream.done()


async def gone(call: HttpExchange, how: str) -> None:
    """The client leaves; or its ASGI server cancels the task besides, and says so by `cut`."""
    if how == "cut":
        await call.cut()
    else:
        call.leave()


def ask(wire: HttpWire, **arguments: Any) -> HttpExchange:
    return wire.start_call("ask", arguments, id=arguments.pop("id", None), headers=arguments.pop("headers", None))


async def reply(wire: HttpWire, message: Any, status: int = 202) -> None:
    """By a connection of its own."""
    exchange = await post(wire, message)
    assert exchange.status == status, exchange.raw
    assert status != 202 or exchange.raw == b""


def given(call: HttpExchange) -> Any:
    """What the tool was answered."""
    return json.loads(text_of(call.answer))


async def answered(wire: HttpWire, call: HttpExchange, question: Any, result: Any) -> Any:
    """Answers the last question of a call; what its tool was answered."""
    await reply(wire, answer_to(question, result))
    return given(await call.done())


async def finished_call(stage: AskingStage, wire: HttpWire) -> Any:
    """The `ClientChannel` of a call that has ended."""
    call = ask(wire)
    assert await answered(wire, call, await call.message(), {}) == [{}]
    return stage.contexts[-1].channel


def note(data: Any) -> bytes:
    return jsonrpc.notification("notifications/message", json.dumps({"level": "info", "data": data}).encode())


class OldClient:
    """What 2024-11-05 calls a client: `await client.ask(method)` POSTs, and waits for the answer on the stream."""

    def __init__(self, app: Any, **headers: str | None) -> None:
        self.wire = HttpWire(app, headers=headers)
        self.stream: HttpExchange = self.wire.raw("GET", b"", {"accept": "text/event-stream"}, path="/sse")
        self.query = ""

    async def open(self) -> "OldClient":
        first = await self.stream.event()
        assert first.event == "endpoint"
        path, _, self.query = first.data.decode().partition("?")
        assert path == "/messages"
        return self

    def post(self, message: Any, **options: Any) -> HttpExchange:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.wire.raw("POST", body, path="/messages", query=options.pop("query", self.query), **options)

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        asked = message(method, params or {}, id=next(self.wire.ids))
        posted = await self.post(asked).done()
        assert (posted.status, posted.raw) == (202, b""), posted.raw
        while "method" in (answer := await self.stream.message()):
            continue
        assert answer["id"] == asked["id"]
        return answer

    @property
    def received(self) -> list[Any]:
        """All messages so far."""
        return [json.loads(event.data) for event in self.stream.events if event.event == "message"]

    async def call(self, name: str, **arguments: Any) -> Any:
        return text_of(await self.ask("tools/call", {"name": name, "arguments": arguments}))

    async def begin(self, name: str) -> int:
        """A call that is not waited for: its id."""
        params = {"name": name, "arguments": {}, "_meta": {"progressToken": "t"}}
        begun = message("tools/call", params, id=next(self.wire.ids))
        assert (await self.post(begun).done()).status == 202
        return int(begun["id"])

    async def ping(self, **options: Any) -> HttpExchange:
        return await self.post(message("ping", id=99), **options).done()

    async def shake_hands(self, version: str = "2024-11-05") -> Any:
        answer = await self.ask("initialize", hello(version)["params"])
        assert (await self.post(message("notifications/initialized", id=None)).done()).status == 202
        return answer["result"]

    async def leave(self) -> None:
        await leave(self.stream)


@asynccontextmanager
async def connected(app: Any, version: str = "2024-11-05", **headers: str | None) -> AsyncIterator[OldClient]:
    client = await OldClient(app, **headers).open()
    await client.shake_hands(version)
    yield client
    await client.leave()


CALLS = ("get", "put", "touch", "remaining", "delete", "claim", "add", "append", "read", "drop", "publish", "check")
Fate = Callable[[str, str], Awaitable[bool]]  # what is asked, of which key: whether it is answered


class SharedState(PausingState):
    """What Redis is to workers on many hosts, for apps in one process."""

    shared = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gate = asyncio.Event()  # of what is written to the log of changes
        self.gate.set()

    async def append(self, log: str, data: bytes, **options: Any) -> int:
        if log == "changes":
            await self.gate.wait()
        return await super().append(log, data, **options)

    def come_back(self) -> None:
        """From an outage."""
        self.outages += 1
        self._topics.wake_all()


class View:
    """What one worker sees of a store that it shares with others, and what is its `fate`."""

    shared = True

    def __init__(self, store: StateBackend) -> None:
        self._store = store
        self.fate: Fate | None = None
        self.listen = store.listen

    @property
    def outages(self) -> int:
        return self._store.outages

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            raise AttributeError(name)

        async def asked(*args: Any, **options: Any) -> Any:
            if self.fate is not None and not await self.fate(name, args[0] if args else ""):
                raise StoreUnavailable
            return await getattr(self._store, name)(*args, **options)

        return asked

    async def close(self) -> None: ...


async def no_answer(_asked: str, _key: str) -> bool:
    """The fate of one that is cut off from the store."""
    return False


class Fleet:
    """Workers that serve the same, each in an app of its own, with its own view of one store."""

    def __init__(self, kind: Any = Stage, *, count: int = 3, store: Any = None, **options: Any) -> None:
        self.store = store or SharedState()
        self.views = [View(self.store) for _ in range(count)]
        self.stages = [kind() for _ in self.views]
        self.apps = [
            stage.server.asgi(state=view, **options) for stage, view in zip(self.stages, self.views, strict=True)
        ]

    async def start(self) -> None:
        self._others = asyncio.all_tasks()
        for app in self.apps:
            await app.start()
        await settle(50)

    async def stop(self) -> None:
        for view in self.views:
            view.fate = None
        endpoints = [endpoint_of(app) for app in self.apps if app._running is not None]
        for app in self.apps:
            await asyncio.wait_for(app.drain(0.2), 10)
        for endpoint in endpoints:
            await nothing_left(self._others, endpoint, self.store)
        await self.store.close()

    async def session(self, version: str = "2025-11-25", at: int = 0, **options: Any) -> list[HttpWire]:
        """One session, at each of the workers."""
        first = await HttpWire.session(self.apps[at], version, **options)
        wires = [HttpWire(app, version) for app in self.apps]
        for wire in wires:
            wire.session_id, wire.ids = first.session_id, first.ids
        return wires

    async def resumed_elsewhere(self) -> tuple[list[HttpWire], HttpExchange]:
        """A call that the first worker runs, whose rest is had at the second."""
        wires = await self.session()
        call = wires[0].start_call("warn", id="t")
        await call.message()
        await call.cut()
        rest = wires[1].get(call.events[0].id)
        await rest.message()
        return wires, rest

    async def listens(self, at: int, **asked: Any) -> HttpExchange:
        listen = HttpWire(self.apps[at]).start("subscriptions/listen", {"notifications": asked} if asked else LISTEN)
        assert (await listen.message())["method"] == ACKNOWLEDGED
        return listen

    async def lose(self, number: int) -> None:
        """The worker shows no more that it lives, as if it were killed; what it runs goes on, to make things worse."""
        lost = endpoint_of(self.apps[number]).lease
        assert lost._renewing is not None
        lost._renewing.cancel()
        await settle()
        await self.store.delete(f"worker/{lost.id}")


FleetOf = Callable[..., Awaitable[Fleet]]
