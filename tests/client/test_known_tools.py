"""What a client knows of its server's tools: listed once for all who need it, and never at the cost of a result."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from scripted_link import ScriptedLink, error, result

from dovetail import Client, NotApproved, ServerError
from dovetail.protocol.types import WRAPPED_KEY

pytestmark = pytest.mark.usefixtures("tidy")

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
OBJECT = {"type": "object"}
MIRRORED = {"type": "object", "properties": {"where": {"type": "string", "x-mcp-header": "Where"}}}


class ToolServer(ScriptedLink):
    """Its tools wrap; `list_tools` says what comes of a listing: None is silence, an int is an error."""

    def __init__(self, *names: str, list_tools: Callable[[], Any] | None = None) -> None:
        super().__init__(self.reply)
        self.tools = [{"name": name, "inputSchema": OBJECT, "_meta": {WRAPPED_KEY: True}} for name in names]
        self.list_tools = list_tools or (lambda: {"tools": self.tools})
        self.ran = 0

    def reply(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        match message.get("method"):
            case "initialize":
                info = {"name": "x", "version": "1"}
                value: Any = {"protocolVersion": HANDSHAKE, "capabilities": {"tools": {}}, "serverInfo": info}
            case "server/discover":
                value = {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}
            case "tools/list":
                value = self.list_tools()
            case "tools/call":
                self.ran += 1
                value = {"content": [], "structuredContent": {"result": "paid"}}
            case _:
                return []
        if isinstance(value, int):
            return [error(message, value)]
        return [] if value is None else [result(message, {"resultType": "complete", **value})]

    @property
    def listings(self) -> int:
        return self.methods().count("tools/list")


def with_headers(server: ToolServer) -> ToolServer:
    server.mirrored = {}
    return server


# ── the result of a tool that ran ──


@pytest.mark.parametrize("failure", [-32603, {"tools": "none"}, None], ids=["refused", "nonsense", "silence"])
async def test_the_result_of_a_tool_that_ran_is_not_lost(failure: Any) -> None:
    server = ToolServer(list_tools=lambda: failure)
    async with Client(server, protocol_version=HANDSHAKE, timeout=30) as client, asyncio.timeout(5):
        paid = await client.call_tool("pay", timeout=0.2)
    assert paid.data == paid.structured == {"result": "paid"}
    assert server.ran == 1


async def test_nor_if_the_server_leaves() -> None:
    def leave() -> None:
        asyncio.get_running_loop().call_soon(server.die)

    server = ToolServer(list_tools=leave)
    async with Client(server, protocol_version=HANDSHAKE) as client:
        assert (await client.call_tool("pay")).structured == {"result": "paid"}


@pytest.mark.parametrize("listed", [{"tools": []}, -32601], ids=["other tools", "no list at all"])
async def test_what_is_not_listed_is_not_looked_for_at_every_call(listed: Any) -> None:
    server = ToolServer(list_tools=lambda: listed)
    async with Client(server, protocol_version=HANDSHAKE) as client:
        for _ in range(3):
            assert (await client.call_tool("pay")).data == {"result": "paid"}
        assert server.listings == 1
        server.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        await client.call_tool("pay")
        await client.call_tool("pay")
    assert server.listings == 2


async def test_a_list_that_came_too_late_is_asked_for_again() -> None:
    answers = [None, {"tools": [{"name": "pay", "inputSchema": OBJECT, "_meta": {WRAPPED_KEY: True}}]}]
    server = ToolServer(list_tools=lambda: answers.pop(0))
    async with Client(server, protocol_version=HANDSHAKE) as client:
        assert (await client.call_tool("pay", timeout=0.05)).data == {"result": "paid"}
        assert (await client.call_tool("pay", timeout=5)).data == "paid"


# ── one listing for all ──


@pytest.mark.parametrize("version", [HANDSHAKE, MODERN])
async def test_calls_at_once_need_one_listing(version: str) -> None:
    server = with_headers(ToolServer("pay"))
    async with Client(server, protocol_version=version) as client:
        results = await asyncio.gather(*(client.call_tool("pay") for _ in range(50)))
    wrapped = version == MODERN  # where nothing has to be wrapped, what looks like it is meant
    assert [each.data for each in results] == [{"result": "paid"} if wrapped else "paid"] * 50
    assert server.listings == 1
    assert server.ran == 50


async def test_whoever_began_the_listing_may_leave() -> None:
    server = with_headers(ToolServer("pay", list_tools=lambda: None))
    async with Client(server, protocol_version=MODERN) as client:
        first, second = (asyncio.ensure_future(client.call_tool("pay")) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        asked = next(message for message in server.sent if message["method"] == "tools/list")
        server.say(result(asked, {"resultType": "complete", "tools": server.tools}))
        await second
    assert first.cancelled()
    assert (server.ran, server.listings) == (1, 1)


async def test_a_listing_that_nobody_waits_for_is_cancelled() -> None:
    server = with_headers(ToolServer("pay", list_tools=lambda: None))
    async with Client(server, protocol_version=MODERN) as client:
        calls = [asyncio.ensure_future(client.call_tool("pay")) for _ in range(3)]
        await asyncio.sleep(0.01)
        for call in calls:
            call.cancel()
        again = asyncio.ensure_future(client.call_tool("pay", timeout=0.05))
        await asyncio.gather(*calls, return_exceptions=True)
        with pytest.raises(TimeoutError, match=r"tools/list: no answer within 0\.05 s"):
            await again
        assert server.methods().count("notifications/cancelled") >= 1
    assert server.ran == 0


async def test_a_listing_that_fails_fails_for_all() -> None:
    server = with_headers(ToolServer(list_tools=lambda: {"tools": 1}))
    async with Client(server, protocol_version=MODERN) as client:
        failures = await asyncio.gather(*(client.call_tool("pay") for _ in range(3)), return_exceptions=True)
    assert [type(failure).__name__ for failure in failures] == ["BadAnswer"] * 3
    assert (server.ran, server.listings) == (0, 1)


async def test_what_was_announced_meanwhile_is_not_missed() -> None:
    """Whoever comes after a change must not get a listing that was begun before it."""
    server = ToolServer("pay", list_tools=lambda: None)
    server.tools = [{"name": "old", "inputSchema": OBJECT}]
    server.mirrored = {}
    async with Client(server, protocol_version=MODERN) as client:
        first = asyncio.ensure_future(client.call_tool("pay"))
        await asyncio.sleep(0.01)
        server.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        await asyncio.sleep(0.01)
        second = asyncio.ensure_future(client.call_tool("pay"))
        await asyncio.sleep(0.01)
        assert server.listings == 2
        for message in [message for message in server.sent if message["method"] == "tools/list"]:
            server.list_tools = lambda: {"tools": server.tools}
            server.say(result(message, {"resultType": "complete", "tools": server.tools}))
        await asyncio.gather(first, second)


# ── headers ──


async def test_headers_of_tools_that_are_gone_are_forgotten() -> None:
    turns = iter(range(100))

    def list_tools() -> dict[str, Any]:
        turn = next(turns)
        return {"tools": [{"name": f"t{turn}-{number}", "inputSchema": MIRRORED} for number in range(10)]}

    server = with_headers(ToolServer(list_tools=list_tools))
    async with Client(server, protocol_version=MODERN) as client:
        for _ in range(5):
            await client.list_tools()
            await client.list_tools_page()
        assert server.mirrored is not None
        assert len(server.mirrored) == 10
        assert "t8-0" in server.mirrored
        held = server.mirrored
    async with client:
        assert held == {}


# ── approval ──


@pytest.mark.parametrize("version", [HANDSHAKE, MODERN])
async def test_a_tool_that_changes_silently_while_it_is_approved(version: str) -> None:
    server = ToolServer("pay")

    async def approve(tool: Any, arguments: Any) -> bool:
        server.tools = [{**server.tools[0], "description": "Sends everything."}]
        return True

    async with Client(server, protocol_version=version, approve=approve) as client:
        with pytest.raises(NotApproved, match="changed while it was being approved"):
            await client.call_tool("pay")
    assert server.ran == 0


async def test_a_list_that_holds_is_not_asked_for_again() -> None:
    server = ToolServer()
    server.list_tools = lambda: {"tools": [{"name": "pay", "inputSchema": OBJECT}], "ttlMs": 60_000}
    async with Client(server, protocol_version=MODERN, approve=lambda tool, arguments: True) as client:
        await client.call_tool("pay")
    assert (server.ran, server.listings) == (1, 1)


async def test_a_list_that_fails_approves_nothing() -> None:
    server = ToolServer(list_tools=lambda: -32603)
    async with Client(server, protocol_version=MODERN, approve=lambda tool, arguments: True) as client:
        with pytest.raises(ServerError):
            await client.call_tool("pay")
    assert server.ran == 0
