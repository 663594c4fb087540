"""`Context`: what it tells of a request, sends to the client, and how functions wait by it."""

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dovetail import Client, Context, NotFound, ProtocolError, Server
from dovetail.engine.context import warn_deprecated
from dovetail.protocol.capabilities import LEVELS
from http_serving import until
from wire import CLIENT, MODERN, Wire

LOG_LEVEL = "io.modelcontextprotocol/logLevel"
INFO = "io.modelcontextprotocol/clientInfo"
quiet_logging = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


def new_server(**options: Any) -> Server:
    return Server("context", version="1.0.0", **options)


def chatty(**options: Any) -> Server:
    server = new_server(**options)

    @server.tool
    async def chat(ctx: Context) -> None:
        for level in LEVELS:
            await getattr(ctx, level)(f"at {level}", logger="mine")

    def talk(ctx: Context) -> None:
        for level in LEVELS:
            ctx.log(level, {"n": 1})

    server.add_tool(talk, name="chat_in_a_thread")
    server.add_tool(talk, name="chat_on_the_loop", thread=False)
    return server


async def received(wire: Wire, name: str, meta: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The notifications that came before the answer; none may come after it."""
    before = len(wire.seen)
    await wire.ask("tools/call", {"name": name, "_meta": meta or {}})
    await wire.quiet(0.01)
    return [message["params"] for message in wire.seen[before:] if "method" in message]


# ── logs ──


@pytest.mark.rule("LOG-1", "LOG-2")
@pytest.mark.parametrize("tool", ["chat", "chat_in_a_thread", "chat_on_the_loop"])
async def test_every_level_of_a_session(tool: str) -> None:
    async with Wire(chatty(), "2025-11-25") as wire:
        assert [each["level"] for each in await received(wire, tool)] == list(LEVELS[LEVELS.index("info") :])
        for place, level in enumerate(LEVELS):
            assert await wire.ask("logging/setLevel", {"level": level}) == {}
            assert [each["level"] for each in await received(wire, tool)] == list(LEVELS[place:])
        assert (await wire.refusal("logging/setLevel", {"level": "loud"}))["code"] == -32602
        assert (await wire.refusal("logging/setLevel", {}))["code"] == -32602
    async with Wire(chatty(logging=False), "2025-11-25") as wire:
        assert await received(wire, tool) == []
        assert (await wire.refusal("logging/setLevel", {"level": "info"}))["code"] == -32601


@pytest.mark.rule("LOG-3", "LOG-4", "LOG-5")
@quiet_logging
@pytest.mark.parametrize("tool", ["chat", "chat_in_a_thread", "chat_on_the_loop"])
async def test_a_modern_request_gets_the_messages_it_asked_for(tool: str) -> None:
    async with Wire(chatty(), MODERN) as wire:
        assert await received(wire, tool) == []
        for place, level in enumerate(LEVELS):
            assert [each["level"] for each in await received(wire, tool, {LOG_LEVEL: level})] == list(LEVELS[place:])
        error = await wire.refusal("tools/call", {"name": tool, "_meta": {LOG_LEVEL: "loud"}})
        assert error["code"] == -32602
        assert (await wire.refusal("logging/setLevel", {"level": "info"}))["code"] == -32601


@pytest.mark.seed("S2-74")
@pytest.mark.rule("LOG-6")
async def test_secrets_are_blacked_out_and_data_may_be_anything() -> None:
    server = new_server(redact=["pin"])

    @server.tool
    async def leak(ctx: Context) -> str:
        await ctx.info({"password": "hunter2", "pin": 1234, "fine": {"a": (1, {2})}})
        await ctx.warning("Authorization: Bearer abcdef123456")
        await ctx.error(None)
        await ctx.error(ValueError("the password=hunter2 is wrong"))
        await ctx.error({"\ud800": float("nan")})
        with pytest.raises(ValueError, match="loud"):
            await ctx.log("loud", "x")  # type: ignore[arg-type]
        return ""

    async with Wire(server, "2025-06-18") as wire:
        levels, data = zip(*((each["level"], each["data"]) for each in await received(wire, "leak")), strict=True)
        assert levels == ("info", "warning", "error", "error", "error")
        assert data[0] == {"password": "[redacted]", "pin": "[redacted]", "fine": {"a": [1, [2]]}}
        assert "abcdef" not in data[1]
        assert data[2] is None
        assert data[3] == "the password=[redacted] is wrong"
        assert "nan" in data[4]


async def test_the_deprecation_is_warned_of_once_and_only_where_it_holds() -> None:
    warn_deprecated.cache_clear()
    server = chatty()
    async with Wire(server, "2025-11-25") as wire:
        await wire.ask("tools/call", {"name": "chat"})
    async with Wire(server, MODERN) as wire:
        with pytest.warns(DeprecationWarning, match="logging"):
            await wire.ask("tools/call", {"name": "chat"})
        await wire.ask("tools/call", {"name": "chat"})


async def test_what_a_function_knows_about_its_request() -> None:
    server = new_server()

    @server.tool
    async def who(ctx: Context) -> dict[str, Any]:
        return {
            "id": ctx.request_id,
            "session": ctx.session_id,
            "version": ctx.protocol_version,
            "client": [ctx.client.name, ctx.client.version, dict(ctx.client.capabilities)],
            "meta": ctx.meta,
            "headers": ctx.headers,
            "lifespan": ctx.lifespan,
        }

    @server.tool
    async def same(ctx: Context) -> list[bool]:
        found = ctx.request_context
        return [found.lifespan_context is ctx.lifespan, found.request_id == ctx.request_id, found.meta == ctx.meta]

    async with Wire(server, "2025-11-25", capabilities={"roots": {}}) as wire:
        params = {"name": "who", "_meta": {"org.example/x": {"a": [1]}}}
        first = (await wire.exchange(wire.request("tools/call", params, id="one")))["result"]["structuredContent"]
        second = (await wire.ask("tools/call", {"name": "who"}))["structuredContent"]
        assert (first["id"], first["client"]) == ("one", [CLIENT["name"], CLIENT["version"], {"roots": {}}])
        assert (first["meta"], second["meta"]) == ({"org.example/x": {"a": [1]}}, {})
        assert first["session"] == second["session"] is not None
        assert (first["headers"], first["lifespan"]) == (None, None)
        assert (await wire.ask("tools/call", {"name": "same"}))["structuredContent"] == {"result": [True] * 3}
    async with Wire(server, "2025-11-25") as wire:
        assert (await wire.ask("tools/call", {"name": "who"}))["structuredContent"]["session"] != first["session"]
    async with Wire(server, MODERN) as wire:
        modern = (await wire.ask("tools/call", {"name": "who"}))["structuredContent"]
        assert (modern["session"], modern["client"]) == (None, [None, None, {}])
        named = await wire.ask("tools/call", {"name": "who", "_meta": {INFO: {"name": "n", "version": "v"}}})
        assert named["structuredContent"]["client"][:2] == ["n", "v"]


# ── telling everyone ──


@pytest.mark.parametrize("in_thread", [True, False])
async def test_changes_are_sent_to_all_clients_that_asked(in_thread: bool) -> None:
    server = new_server(declare=["prompts"])
    server.add_resource("a://b", lambda: "", name="r")
    notifications = (("resource_updated", "a://b"), ("tools_changed",), ("prompts_changed",), ("resources_changed",))

    def in_a_thread(ctx: Context) -> None:
        for name, *uri in notifications:
            getattr(ctx, f"notify_{name}")(*uri)

    async def asynchronous(ctx: Context) -> None:
        for name, *uri in notifications:
            await getattr(ctx, f"notify_{name}")(*uri)

    server.add_tool(in_a_thread if in_thread else asynchronous, name="tell")
    async with Wire(server, "2025-06-18") as asker, Wire(server, "2025-06-18") as other:
        await other.ask("resources/subscribe", {"uri": "a://b"})
        await asker.ask("tools/call", {"name": "tell"})
        methods = [(await other.receive())["method"].removeprefix("notifications/") for _ in range(4)]
        assert methods == ["resources/updated", *(f"{kind}/list_changed" for kind in ("tools", "prompts", "resources"))]


async def test_only_a_thread_waits_for_the_loop() -> None:
    server = new_server()

    @server.tool
    def in_a_thread(ctx: Context) -> str:
        async def on_the_loop() -> int:
            await asyncio.sleep(0.01)
            return threading.get_ident()

        ctx.wait(ctx.info("a message that has already gone out"))
        with pytest.raises(KeyError):
            ctx.wait(_fail())
        return "fine" if ctx.wait(on_the_loop()) != threading.get_ident() else "the same thread"

    @server.tool
    async def asynchronous(ctx: Context) -> str:
        with pytest.raises(RuntimeError, match="await"):
            ctx.wait(ctx.info("x"))
        return "fine"

    @server.tool(thread=False)
    def on_the_loop(ctx: Context) -> str:
        with pytest.raises(RuntimeError, match="block the event loop"):
            ctx.wait(_fail())
        return "fine"

    async with Wire(server, "2025-06-18") as wire:
        for name in ("in_a_thread", "asynchronous", "on_the_loop"):
            assert (await wire.ask("tools/call", {"name": name}))["content"][0]["text"] == "fine"


async def _fail() -> None:
    raise KeyError("x")


@pytest.mark.parametrize("timeout", [0.02, None], ids=["timed out", "cancelled"])
async def test_waiting_ends_with_the_call(timeout: float | None, caplog: pytest.LogCaptureFixture) -> None:
    server, begun, raised, ended = new_server(timeout=10), threading.Event(), list[str](), threading.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    @server.tool(timeout=timeout)
    def waits(ctx: Context) -> str:
        for _ in range(2):  # the second one is refused at once
            try:
                ctx.wait(forever())
            except Exception as error:
                raised.append(type(error).__name__)
            ctx.info("no client gets this, and that is no failure")
            ctx.report_progress(1)
        ended.set()
        return "dropped"

    async with Wire(server, "2025-06-18") as wire:
        wire.send(wire.request("tools/call", {"name": "waits", "_meta": {"progressToken": 1}}, id=7))
        await until(begun.is_set)
        if timeout is None:
            wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        else:
            assert "result" in await wire.receive()
        await until(ended.is_set)
        await wire.quiet(0.01)
    assert raised == ["CallEnded", "CallEnded"]
    assert "stuck" not in caplog.text


@pytest.mark.parametrize("resource_in_thread", [True, False])
async def test_reading_resources_never_waits_for_what_the_call_itself_holds(resource_in_thread: bool) -> None:
    """Neither for the server's only slot nor for its only thread."""
    server = new_server(max_concurrency=1, max_threads=1, timeout=5)
    server.add_resource("a://inner", lambda: "inner", name="inner", thread=resource_in_thread)

    @server.resource("a://outer", thread=True)
    def outer(ctx: Context) -> str:
        return f"outer {ctx.wait(ctx.read_resource('a://inner'))[0].text}"

    @server.tool
    def in_a_thread(ctx: Context) -> str:
        return " ".join(str(each.text) for (each,) in ctx.wait(both(ctx)))

    async def both(ctx: Context) -> list[Any]:
        return await asyncio.gather(ctx.read_resource("a://outer"), ctx.read_resource("a://inner"))

    async with Wire(server, "2025-06-18") as wire:
        result = await wire.ask("tools/call", {"name": "in_a_thread"})
        assert result["content"][0]["text"] == "outer inner inner"


async def test_a_resource_that_is_missing_or_too_slow_does_not_end_the_call() -> None:
    server = new_server()

    @server.resource("a://slow", timeout=0.02)
    async def slow() -> str:
        await asyncio.sleep(5)
        return ""

    @server.tool
    async def copes(ctx: Context) -> str:
        with pytest.raises(NotFound):
            await ctx.read_resource("a://none")
        with pytest.raises(ProtocolError, match=r"0\.02 s"):
            await ctx.read_resource("a://slow")
        return f"cancelled: {bool(ctx.cancelled)}"

    async with Wire(server, MODERN) as wire:
        assert (await wire.ask("tools/call", {"name": "copes"}))["content"][0]["text"] == "cancelled: False"


TELLING: dict[str, Callable[[Context, int], Awaitable[None]]] = {
    "progress": lambda ctx, count: ctx.report_progress(count),
    "log": lambda ctx, count: ctx.info(f"row {count}"),
    "log below the level": lambda ctx, count: ctx.debug(f"row {count}"),
}


@quiet_logging
@pytest.mark.parametrize("tell", TELLING.values(), ids=TELLING)
async def test_a_function_that_only_tells_gives_others_a_turn_at_once(tell: Any) -> None:
    server = Server("rows", version="1", log_level="info")

    @server.tool
    async def work(ctx: Context) -> bool:
        turn = asyncio.Event()
        asyncio.get_running_loop().call_soon(turn.set)
        end = time.monotonic() + 0.5
        while not turn.is_set() and time.monotonic() < end:
            await tell(ctx, 1)
        return turn.is_set()

    async with Client(server, protocol_version="2025-11-25") as client:
        assert (await client.call_tool("work")).data is True


@quiet_logging
@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("tell", TELLING.values(), ids=TELLING)
async def test_others_are_served_meanwhile(tell: Any, listens: bool) -> None:
    server = Server("rows", version="1", log_level="info")
    begun, stopped = asyncio.Event(), asyncio.Event()
    server.add_tool(lambda: "hello", name="hello")

    @server.tool
    async def work(ctx: Context) -> None:
        try:
            for count in itertools.count(1):
                await tell(ctx, count)
                begun.set()
        finally:
            stopped.set()

    handlers: dict[str, Any] = {"progress_handler": lambda *_: None, "log_handler": lambda _: None} if listens else {}
    async with asyncio.timeout(20), Client(server, protocol_version="2025-11-25", **handlers) as client:
        endless = asyncio.create_task(client.call_tool("work"))
        await begun.wait()
        assert (await client.call_tool("hello")).data == "hello"
        endless.cancel()
        await stopped.wait()
