"""The client against servers of the official Python SDK, over real loopback sockets, in both eras and transports."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError as SdkToolError
from mcp.server.streamable_http import EventMessage, EventStore
from served_http import Wiretap, free_port, next_of, served, until

from dovetail import Client
from dovetail.engine.streams import Change
from dovetail.errors import ConnectionLost, ServerError, ToolError

pytestmark = [
    pytest.mark.usefixtures("brisk"),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = "2026-07-28"
every_revision = pytest.mark.parametrize("version", [*HANDSHAKES, MODERN, None])
every_handshake = pytest.mark.parametrize("version", HANDSHAKES)


class KeptEvents(EventStore):
    """What a resumed stream is read from."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.events.append((stream_id, message))
        return str(len(self.events))

    async def replay_events_after(
        self, last_event_id: str, send_callback: Callable[[EventMessage], Awaitable[None]]
    ) -> str | None:
        stream = self.events[int(last_event_id) - 1][0]
        for number, (owner, message) in enumerate(self.events, 1):
            if owner == stream and number > int(last_event_id) and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


class Official:
    """A server of the SDK's, and a hand on what its tools do."""

    def __init__(self) -> None:
        self.server = server = MCPServer("official")
        self.go_on = asyncio.Event()
        self.stopped = asyncio.Event()
        self.calls = 0

        @server.tool()
        async def add(a: int, b: int, ctx: Context) -> int:
            await ctx.report_progress(1, 2, "half")
            await ctx.info("adding")
            return a + b

        @server.tool()
        async def fail() -> str:
            raise SdkToolError("it can't be done")

        @server.tool()
        async def announce(ctx: Context) -> str:
            if ctx.protocol_version == MODERN:
                await ctx.notify_tools_changed()
                await ctx.notify_resource_updated("notes://all")
            else:
                await ctx.session.send_tool_list_changed()
                await ctx.session.send_resource_updated("notes://all")
            return "announced"

        @server.tool()
        async def wait(ctx: Context, polling: bool = False) -> str:
            self.calls += 1
            await ctx.report_progress(1)
            if polling:
                await ctx.close_sse_stream()
            try:
                await self.go_on.wait()
            finally:
                self.stopped.set()
            await ctx.report_progress(2)
            return "at last"

        @server.resource("notes://all")
        def notes() -> str:
            return "milk"

        @server.prompt()
        def ask(question: str) -> str:
            return f"{question}?"

    @asynccontextmanager
    async def reached(
        self,
        version: str | None,
        *,
        old: bool = False,
        tap: list[Wiretap] | None = None,
        app: Any = None,
        **options: Any,
    ) -> AsyncIterator[Client]:
        application = self.server.sse_app() if old else self.server.streamable_http_app(**(app or {}))
        async with served(application) as origin, Wiretap(origin) as wire:
            if tap is not None:
                tap.append(wire)
            url = f"{wire.origin}/{'sse' if old else 'mcp'}"
            async with Client(url, protocol_version=version, **options) as client:
                yield client


async def try_everything(client: Client, *, hears: bool = True) -> None:
    heard: list[Any] = []
    assert [tool.name for tool in await client.list_tools()] == ["add", "fail", "announce", "wait"]
    result = await client.call_tool("add", {"a": 1, "b": 2}, progress_handler=lambda *told: heard.append(told[:2]))
    assert result.text == "3"
    assert heard == ([(1, 2)] if hears else [])
    with pytest.raises(ToolError, match="it can't be done"):
        await client.call_tool("fail")
    with pytest.raises(ServerError):
        await client.read_resource("notes://none")
    assert (await client.read_resource("notes://all"))[0].text == "milk"
    assert (await client.get_prompt("ask", {"question": "why"})).messages[0].content.text == "why?"
    results = await asyncio.gather(*(client.call_tool("add", {"a": n, "b": n}) for n in range(10)))
    assert [result.text for result in results] == [str(2 * n) for n in range(10)]


@every_revision
async def test_streamable_http(version: str | None) -> None:
    async with Official().reached(version) as client:
        assert client.protocol_version == (version or MODERN)
        await try_everything(client)


@every_revision
@pytest.mark.parametrize("app", [{"json_response": True}, {"stateless_http": True}], ids=["json", "stateless"])
async def test_other_kinds_of_streamable_http(version: str | None, app: dict[str, Any]) -> None:
    async with Official().reached(version, app=app) as client:
        await try_everything(client, hears="json_response" not in app)


@pytest.mark.parametrize("version", [*HANDSHAKES, None])
@pytest.mark.parametrize("transport", ["sse", None])
async def test_http_and_sse(version: str | None, transport: Any) -> None:
    async with Official().reached(version, old=True, transport=transport) as client:
        assert client.protocol_version == (version or HANDSHAKES[-1])
        await try_everything(client)


async def test_logs() -> None:
    logs: list[Any] = []
    for version in ("2025-11-25", MODERN):
        async with Official().reached(version, log_handler=lambda message: logs.append(message.data)) as client:
            await client.call_tool("add", {"a": 1, "b": 2})
            await until(lambda: logs == ["adding"])
        logs.clear()


async def test_a_modern_listener() -> None:
    tap: list[Wiretap] = []
    async with (
        Official().reached(MODERN, tap=tap) as client,
        client.listen(tools=True, uris=["notes://all"]) as changes,
    ):
        await client.call_tool("announce")
        assert {await next_of(changes), await next_of(changes)} == {Change("tools"), Change("updated", "notes://all")}
        tap[0].cut()
        assert {await next_of(changes), await next_of(changes)} == {Change("tools"), Change("updated", "notes://all")}
        await client.call_tool("announce")
        assert {await next_of(changes), await next_of(changes)} == {Change("tools"), Change("updated", "notes://all")}


@pytest.mark.parametrize("old", [False, True])
async def test_what_a_session_is_told_unasked(old: bool) -> None:
    heard: list[bytes] = []
    async with Official().reached("2025-11-25", old=old, transcript=lambda _, message: heard.append(message)) as client:
        await client._channel._link.attend()
        await client.call_tool("announce")
        await until(lambda: b"notifications/tools/list_changed" in b"".join(heard))


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_broken_connection_does_not_lose_an_answer(version: str) -> None:
    official = Official()
    tap: list[Wiretap] = []
    heard: list[float] = []
    async with official.reached(version, tap=tap, app={"event_store": KeptEvents()}) as client:
        call = asyncio.create_task(client.call_tool("wait", progress_handler=lambda value, *_: heard.append(value)))
        await until(lambda: heard == [1])
        for _ in range(3):
            tap[0].cut()
            await asyncio.sleep(0.05)
        official.go_on.set()
        assert (await asyncio.wait_for(call, 5)).text == "at last"
        assert official.calls == 1
        assert heard == [1, 2]
        await client.list_tools()


async def test_a_server_that_has_its_streams_polled() -> None:
    official = Official()
    app = {"event_store": KeptEvents(), "retry_interval": 10}
    async with official.reached("2025-11-25", app=app) as client:
        call = asyncio.create_task(client.call_tool("wait", {"polling": True}))
        await asyncio.sleep(0.1)
        official.go_on.set()
        assert (await asyncio.wait_for(call, 5)).text == "at last"


async def test_without_kept_events_an_answer_is_lost() -> None:
    official = Official()
    tap: list[Wiretap] = []
    heard: list[float] = []
    async with official.reached("2025-11-25", tap=tap) as client:
        call = asyncio.create_task(client.call_tool("wait", progress_handler=lambda value, *_: heard.append(value)))
        await until(lambda: heard == [1])
        tap[0].cut()
        with pytest.raises(ConnectionLost, match=r"tools/call: .*broke before the answer came"):
            await call
        assert len(await client.list_tools()) == 4
        official.go_on.set()


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_who_leaves_a_call_stops_it(version: str) -> None:
    official = Official()
    async with official.reached(version) as client:
        call = asyncio.create_task(client.call_tool("wait"))
        await until(lambda: official.calls)
        call.cancel()
        await asyncio.wait_for(official.stopped.wait(), 5)


@pytest.mark.parametrize(("version", "old"), [*((each, False) for each in (*HANDSHAKES, MODERN)), ("2024-11-05", True)])
async def test_a_server_that_starts_again(version: str, old: bool) -> None:
    port = free_port()

    def application() -> Any:
        return Official().server.sse_app() if old else Official().server.streamable_http_app()

    async with served(application(), port):
        client = Client(f"http://127.0.0.1:{port}/{'sse' if old else 'mcp'}", protocol_version=version, timeout=5)
        await client.__aenter__()
        assert (await client.call_tool("add", {"a": 1, "b": 1})).text == "2"
    with pytest.raises(ConnectionLost):
        await client.list_tools()
    async with served(application(), port):
        for _ in range(2):
            with suppress(ConnectionLost):  # once, if nobody has told the client until now
                result = await client.call_tool("add", {"a": 2, "b": 2})
        assert result.text == "4"
        await client.close()


@every_handshake
async def test_a_session_ends_with_the_client(version: str) -> None:
    official = Official()
    async with served(official.server.streamable_http_app()) as origin:
        client = Client(f"{origin}/mcp", protocol_version=version)
        async with client:
            manager = official.server._lowlevel_server.session_manager
            assert len(manager._server_instances) == 1
        assert not manager._server_instances
