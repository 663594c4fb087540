"""The engine: lists and their pages, what is announced, the lifespan."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from core_stage import names, new_server

from dovetail import Context, Server, ToolRegistry
from wire import MODERN, Wire

# ── what is offered ──


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_methods_come_and_go_with_what_they_need(version: str) -> None:
    def mood(kind: Literal["good", "bad"]) -> str:
        return kind

    server = new_server(1)
    complete = {"ref": {"type": "ref/prompt", "name": "mood"}, "argument": {"name": "kind", "value": "g"}}
    async with Wire(server, version) as wire:
        assert (await wire.refusal("prompts/list"))["code"] == -32601
        assert (await wire.refusal("completion/complete", complete))["code"] == -32601
        await asyncio.to_thread(server.add_prompt, mood)
        assert len((await wire.ask("prompts/list"))["prompts"]) == 1
        assert (await wire.ask("completion/complete", complete))["completion"]["values"] == ["good"]
        await asyncio.to_thread(server.remove_prompt, "mood")
        assert (await wire.ask("prompts/list"))["prompts"] == []  # it was there once
        assert (await wire.refusal("completion/complete", complete))["code"] == -32601


async def test_an_offer_is_not_kept_if_something_changes_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    server = new_server(1)
    engine, offered = server.engine, type(server.engine)._offered

    def change_meanwhile(engine: Any) -> frozenset[str]:
        before = offered(engine)
        monkeypatch.undo()
        thread = threading.Thread(target=server.add_prompt, args=(lambda: "",), kwargs={"name": "p"})
        thread.start()
        thread.join()
        return before

    monkeypatch.setattr(type(engine), "_offered", change_meanwhile)
    assert "prompts" not in engine.offer.names
    assert "prompts/list" not in engine.open_methods
    assert "prompts" in engine.offer.names
    assert "prompts/list" in engine.open_methods


# ── lists ──


@pytest.mark.rule("PAGE-1", "PAGE-4", "TOOL-4", "PAGE-7")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", MODERN])
async def test_pages_hold_everything_once_and_in_order(version: str) -> None:
    server = new_server(5, page_size=2)
    async with Wire(server, version) as wire:
        found, cursor, pages = [], None, 0
        while True:
            result = await wire.ask("tools/list", {} if cursor is None else {"cursor": cursor})
            found += names(result)
            pages += 1
            if "nextCursor" not in result:
                break
            cursor = result["nextCursor"]
            assert isinstance(cursor, str)
        assert (found, pages) == ([f"t{number}" for number in range(5)], 3)


async def test_a_thousand_items_go_out_whole() -> None:
    async with Wire(new_server(1000), MODERN) as wire:
        result = await wire.ask("tools/list")
        assert len(result["tools"]) == 1000
        assert "nextCursor" not in result


@pytest.mark.rule("PAGE-2", "PAGE-3", "PAGE-5")
async def test_cursors() -> None:
    server = new_server(3, page_size=1, declare=["prompts"])
    async with Wire(server, "2025-11-25") as wire:
        first = await wire.ask("tools/list")
        assert names(await wire.ask("tools/list", {"cursor": ""})) == ["t0"]
        assert names(await wire.ask("tools/list", {"cursor": None})) == ["t0"]
        good = first["nextCursor"]
        for bad in ("nonsense", good[:-2] + "AA", good + "=", "é", "A" * 5000):
            assert (await wire.refusal("tools/list", {"cursor": bad}))["code"] == -32602
        assert (await wire.refusal("tools/list", {"cursor": 5}))["code"] == -32602
        assert (await wire.refusal("prompts/list", {"cursor": good}))["code"] == -32602
        assert names(await wire.ask("tools/list", {"cursor": good})) == ["t1"]
    async with Wire(new_server(3, page_size=1), "2025-11-25") as wire:
        assert (await wire.refusal("tools/list", {"cursor": good}))["code"] == -32602  # signed by another server


async def test_a_cursor_stays_right_while_the_list_changes() -> None:
    server = new_server(4, page_size=2)
    async with Wire(server, MODERN) as wire:
        first = await wire.ask("tools/list")
        server.remove_tool("t0")
        server.remove_tool("t2")
        server.add_tool(lambda: "", name="new")
        assert names(await wire.ask("tools/list", {"cursor": first["nextCursor"]})) == ["t3", "new"]


async def test_servers_with_one_secret_share_cursors() -> None:
    one, other = (new_server(2, page_size=1, secret="shared by the two") for _ in range(2))
    async with Wire(one, MODERN) as wire:
        cursor = (await wire.ask("tools/list"))["nextCursor"]
    async with Wire(other, MODERN) as wire:
        assert names(await wire.ask("tools/list", {"cursor": cursor})) == ["t1"]


async def test_the_bytes_of_a_page_are_kept_until_the_list_changes() -> None:
    server = new_server(2)
    tools = server.engine.tools
    async with Wire(server, MODERN) as wire:
        await wire.ask("tools/list")
        (kept,) = tools.encoded.values()
        await wire.ask("tools/list")
        assert [page is kept for page in tools.encoded.values()] == [True]
        server.add_tool(lambda: "", name="another")
        assert not tools.encoded
        assert names(await wire.ask("tools/list")) == ["t0", "t1", "another"]


# ── announcements ──


@pytest.mark.rule("TOOL-5", "PR-3", "RES-3", "LIFE-6")
async def test_a_session_hears_of_the_kinds_that_were_declared_and_only_when_it_operates() -> None:
    server = new_server(1)
    server.add_resource("a://b", lambda: "", name="r")
    async with Wire(server) as wire:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "w", "version": "1"}}
        await wire.ask("initialize", hello)
        server.add_tool(lambda: "", name="early")
        await wire.quiet()
        wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        server.add_tool(lambda: "", name="later")
        assert await wire.receive() == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        server.add_resource("a://c", lambda: "", name="s")
        assert (await wire.receive())["method"] == "notifications/resources/list_changed"
        server.add_prompt(lambda: "", name="undeclared")
        await wire.quiet()
        for number in range(100):  # one by one they would be noise
            server.add_tool(lambda: "", name=f"many{number}")
        assert (await wire.receive())["method"] == "notifications/tools/list_changed"
        await wire.quiet()


async def test_nothing_is_announced_if_so_asked() -> None:
    server = new_server(1, list_changed=False)
    async with Wire(server, "2025-06-18") as wire:
        assert wire.welcome["capabilities"]["tools"] == {}
        server.add_tool(lambda: "", name="later")
        await wire.quiet()


async def test_a_tool_in_a_thread_may_register_tools() -> None:
    server = new_server()

    @server.tool
    def grow() -> str:
        server.add_tool(lambda: "", name="grown")
        return "done"

    async with Wire(server, "2025-06-18") as wire:
        await wire.ask("tools/call", {"name": "grow"})
        heard = [message for message in wire.seen if "method" in message] or [await wire.receive()]
        assert heard[0]["method"] == "notifications/tools/list_changed"
        assert names(await wire.ask("tools/list")) == ["grow", "grown"]


async def test_servers_that_share_a_registry_share_no_pages() -> None:
    registry = ToolRegistry()
    for number in range(2):
        registry.register_tool(f"t{number}", "Says hi.", {"type": "object"}, lambda args: "hi")
    servers = [Server(name, version="1.0.0", tools=registry, page_size=1) for name in ("one", "two")]
    for server in servers * 2:
        async with Wire(server, MODERN) as wire:
            page = await wire.ask("tools/list")
            assert page["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == server.name
            assert names(await wire.ask("tools/list", {"cursor": page["nextCursor"]})) == ["t1"]


async def test_a_registry_announces_too() -> None:
    registry = ToolRegistry()
    server = Server("registry", version="1.0.0", tools=registry, declare=["tools"])
    async with Wire(server, "2025-06-18") as wire:
        registry.register_tool("t", "Says hi.", {"type": "object"}, lambda args: "hi")
        assert (await wire.receive())["method"] == "notifications/tools/list_changed"


# ── the lifespan ──


async def test_the_lifespan_is_entered_once_and_left_at_the_end() -> None:
    events: list[Any] = []

    @contextlib.asynccontextmanager
    async def lifespan(owner: Server) -> AsyncIterator[dict[str, str]]:
        events.append(owner)
        await asyncio.sleep(0)
        yield {"db": "open"}
        events.append("left")

    server = new_server(lifespan=lifespan)

    @server.tool
    async def peek(ctx: Context) -> str:
        return ctx.lifespan["db"]

    async with Wire(server, MODERN) as one, Wire(server, MODERN) as two:
        for wire in (one, two):
            assert (await wire.ask("tools/call", {"name": "peek"}))["content"][0]["text"] == "open"
        assert events == [server]
    assert events == [server, "left"]
    async with Wire(server, MODERN) as wire:  # and again
        await wire.ask("tools/call", {"name": "peek"})
    assert events == [server, "left"] * 2


async def test_a_lifespan_that_fails_is_not_taken_for_one_that_began() -> None:
    tries: list[int] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[str]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no database")
        yield "ready"

    server = new_server(lifespan=lifespan)
    with pytest.raises(OSError, match="no database"):
        await server.engine.start(server)
    await server.engine.start(server)
    assert server.engine.lifespan_value == "ready"
    await server.engine.stop()
