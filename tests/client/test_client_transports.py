"""One contract for all transports, and what our own client and server do when a connection breaks."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import small_server
from served_http import Wiretap, free_port, next_of, served, until
from small_server import make_server

from dovetail import Client, Context, Server
from dovetail.engine.subscriptions import Change
from dovetail.errors import ConnectionLost, ServerError, ToolError
from dovetail.protocol import revisions
from official import Witness

pytestmark = [
    pytest.mark.usefixtures("brisk"),
    pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging"),
]

HANDSHAKE = list(revisions.HANDSHAKE)
EVERY = [revision.name for revision in revisions.ALL]

WAYS = [
    *(("http", version) for version in (*EVERY, None)),
    *(("sse", version) for version in HANDSHAKE),
    *((way, version) for way in ("memory", "stdio") for version in ("2025-11-25", None)),
]


@asynccontextmanager
async def connected(way: str, **options: Any) -> AsyncIterator[Client]:
    """A client of the small server, over one of the transports."""
    async with AsyncExitStack() as held:
        target: Any = make_server() if way == "memory" else [sys.executable, small_server.__file__]
        if way in ("http", "sse"):
            origin = await held.enter_async_context(served(make_server().asgi()))
            target, options["transport"] = f"{origin}/{'mcp' if way == 'http' else 'sse'}", way
        yield await held.enter_async_context(Client(target, **options))


every_revision = pytest.mark.parametrize("version", EVERY)


class Notes:
    """A server, and a hand on what its tools do."""

    def __init__(self) -> None:
        self.server = server = Server("notes", version="1")
        self.go_on = asyncio.Event()
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()

        @server.tool
        async def add(a: int, b: int, ctx: Context) -> int:
            await ctx.report_progress(1, 2, "half")
            await ctx.info("adding")
            return a + b

        @server.tool
        def fail() -> str:
            raise ToolError("it can't be done")

        @server.tool
        async def wait(ctx: Context) -> str:
            """Tell progress, and go on when the test says so."""
            await ctx.report_progress(1)
            self.started.set()
            try:
                await self.go_on.wait()
            finally:
                self.stopped.set()
            await ctx.report_progress(2)
            return "at last"

        @server.resource("notes://all")
        def notes() -> str:
            return "milk"

        @server.prompt
        def ask(question: str) -> str:
            return f"{question}?"

    @asynccontextmanager
    async def reached(
        self, version: str | None, transport: Any = None, *, tap: list[Wiretap] | None = None, **options: Any
    ) -> AsyncIterator[Client]:
        async with served(self.server.asgi()) as origin, Wiretap(origin) as wire:
            if tap is not None:
                tap.append(wire)
            url = f"{wire.origin}/{'sse' if transport else 'mcp'}"
            async with Client(url, protocol_version=version, transport=transport, **options) as client:
                yield client


@pytest.mark.parametrize(("way", "version"), WAYS)
async def test_everything_a_server_offers(way: str, version: str | None, witness: Witness) -> None:
    logs: list[Any] = []
    heard: list[Any] = []
    options = {"transcript": witness.see, "log_handler": lambda message: logs.append(message.data)}
    async with connected(way, protocol_version=version, **options) as client:
        assert client.protocol_version == (version or "2026-07-28")
        assert client.server_info is not None
        assert "add" in [tool.name for tool in await client.list_tools()]
        result = await client.call_tool("work", {"steps": 2}, progress_handler=lambda *told: heard.append(told[:2]))
        assert result.text == "done"
        assert heard == [(1, 2), (2, 2)]
        await until(lambda: logs == ["did 1", "did 2"])
        with pytest.raises(ToolError, match="The cupboard is bare"):
            await client.call_tool("fail")
        with pytest.raises(ServerError):
            await client.read_resource("elsewhere://none")
        assert (await client.read_resource("notes://all"))[0].text == "milk"
        assert (await client.get_prompt("review", {"code": "x"})).messages[0].content.text == "Review x"
        results = await asyncio.gather(*(client.call_tool("add", {"a": n, "b": n}) for n in range(20)))
        assert [result.text for result in results] == [str(2 * n) for n in range(20)]
        with pytest.raises(TimeoutError):
            await client.call_tool("sleep", {"seconds": 60}, timeout=0.1)
        assert (await client.call_tool("greet", {"name": "é" * 100_000})).data == f"Hello, {'é' * 100_000}!"


@every_revision
async def test_who_leaves_a_call_stops_it(version: str) -> None:
    notes = Notes()
    async with notes.reached(version) as client:
        call = asyncio.create_task(client.call_tool("wait"))
        await asyncio.wait_for(notes.started.wait(), 5)
        call.cancel()
        await asyncio.wait_for(notes.stopped.wait(), 5)


@pytest.mark.rule("SH-15", "SH-23", "SH-24")
@pytest.mark.parametrize("version", ["2025-11-25"])
@pytest.mark.parametrize("cuts", [1, 4])
async def test_a_broken_connection_does_not_lose_an_answer(version: str, cuts: int) -> None:
    notes = Notes()
    tap: list[Wiretap] = []
    heard: list[float] = []
    async with notes.reached(version, tap=tap) as client:
        call = asyncio.create_task(client.call_tool("wait", progress_handler=lambda value, *_: heard.append(value)))
        await until(lambda: heard == [1])
        for _ in range(cuts):
            tap[0].cut()
            await asyncio.sleep(0.05)
        notes.go_on.set()
        assert (await asyncio.wait_for(call, 5)).text == "at last"
        await until(lambda: heard == [1, 2])
        assert (await client.call_tool("add", {"a": 1, "b": 1})).text == "2"


@pytest.mark.rule("MH-13")
async def test_a_broken_connection_loses_a_modern_answer_and_stops_the_call() -> None:
    notes = Notes()
    tap: list[Wiretap] = []
    async with notes.reached("2026-07-28", tap=tap) as client:
        call = asyncio.create_task(client.call_tool("wait"))
        await asyncio.wait_for(notes.started.wait(), 5)
        tap[0].cut()
        with pytest.raises(ConnectionLost, match=r"tools/call: .*broke"):
            await call
        await asyncio.wait_for(notes.stopped.wait(), 5)
        assert (await client.call_tool("add", {"a": 1, "b": 1})).text == "2"


@pytest.mark.parametrize("graceful", [True, False])
@pytest.mark.parametrize(("version", "transport"), [("2025-11-25", None), ("2025-11-25", "sse"), ("2026-07-28", None)])
async def test_a_server_that_starts_again(version: str | None, transport: Any, graceful: bool) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/{'sse' if transport else 'mcp'}"
    app = Notes().server.asgi()
    async with served(app, port):
        client = Client(url, protocol_version=version, transport=transport, timeout=5)
        await client.__aenter__()
        listening = client.listen(tools=True)
        changes = await listening.__aenter__()
        assert (await client.call_tool("add", {"a": 1, "b": 1})).text == "2"
        if graceful:
            await app.drain(1)
            await asyncio.sleep(0.05)  # it still listens, but refuses
    with pytest.raises(ConnectionLost):
        await client.list_tools()
    again = Notes()
    async with served(again.server.asgi(), port):
        assert await next_of(changes) == Change("tools")  # it may have changed
        assert (await client.call_tool("add", {"a": 2, "b": 2})).text == "4"
        again.server.add_tool(lambda: "b", name="b")
        assert await next_of(changes) == Change("tools")
        await listening.__aexit__(None, None, None)
        await client.close()


@pytest.mark.rule("MH-20", "MH-22")
async def test_arguments_as_headers() -> None:
    server = Server("regions")
    server.add_tool(
        lambda region, dry: f"{region} {dry}",
        name="deploy",
        input_schema={
            "type": "object",
            "properties": {
                "region": {"type": "string", "x-mcp-header": "Region"},
                "dry": {"type": "boolean", "x-mcp-header": "Dry"},
            },
        },
    )
    async with served(server.asgi()) as origin, Client(f"{origin}/mcp") as client:
        for region in ("west", " Köln ", "", "=?base64?x?="):
            result = await client.call_tool("deploy", {"region": region, "dry": True})
            assert result.text == f"{region} True"
