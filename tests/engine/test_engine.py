"""The engine: lists and their pages, what is announced, the lifespan, limits on calls."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from msgspec import Raw

from dovetail import Client, Context, Server, SetupError
from dovetail.protocol import results
from http_serving import until
from wire import MODERN, Wire


def new_server(count: int = 0, **options: Any) -> Server:
    server = Server("core", version="1.0.0", **options)
    for number in range(count):
        server.add_tool(lambda: "", name=f"t{number}")
    return server


def names(result: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in result["tools"]]


@pytest.mark.rule("BASE-19")
@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_methods_come_and_go_with_what_they_need(version: str) -> None:
    def mood(kind: Literal["good", "bad"]) -> str:
        return kind

    server = new_server(1)
    complete = {"ref": {"type": "ref/prompt", "name": "mood"}, "argument": {"name": "kind", "value": "g"}}
    async with Wire(server, version) as wire:
        for method in ("prompts/list", "resources/list"):
            assert (await wire.refusal(method))["code"] == -32601
        assert (await wire.refusal("completion/complete", complete))["code"] == -32601
        await asyncio.to_thread(server.add_prompt, mood)
        assert len((await wire.ask("prompts/list"))["prompts"]) == 1
        assert (await wire.ask("completion/complete", complete))["completion"]["values"] == ["good"]
        await asyncio.to_thread(server.remove_prompt, "mood")
        assert (await wire.ask("prompts/list"))["prompts"] == []  # it was there once
        assert (await wire.refusal("completion/complete", complete))["code"] == -32601


# ── lists ──


@pytest.mark.rule("PAGE-1", "PAGE-4", "TOOL-4", "PAGE-7")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", MODERN])
async def test_pages_hold_everything_once_and_in_order(version: str) -> None:
    server = new_server(5, page_size=2)
    async with Wire(server, version) as wire:
        pages = [await wire.ask("tools/list")]
        while "nextCursor" in pages[-1]:
            assert isinstance(pages[-1]["nextCursor"], str)
            pages.append(await wire.ask("tools/list", {"cursor": pages[-1]["nextCursor"]}))
        assert [names(page) for page in pages] == [["t0", "t1"], ["t2", "t3"], ["t4"]]


@pytest.mark.rule("PAGE-2", "PAGE-3", "PAGE-5")
async def test_cursors() -> None:
    server = new_server(3, page_size=1, declare=["prompts"])
    async with Wire(server, "2025-11-25") as wire:
        good = (await wire.ask("tools/list"))["nextCursor"]
        for empty in ("", None):
            assert names(await wire.ask("tools/list", {"cursor": empty})) == ["t0"]
        for bad in ("nonsense", good[:-2] + "AA", good + "=", "é", "A" * 5000, 5):
            assert (await wire.refusal("tools/list", {"cursor": bad}))["code"] == -32602
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


# ── announcements ──


@pytest.mark.rule("TOOL-5", "PR-3", "RES-3", "LIFE-6")
async def test_a_session_is_notified_of_the_kinds_that_were_declared_and_only_when_it_operates() -> None:
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


# ── encoded once ──


async def test_a_result_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tool returns is made JSON where it is checked; what is sent is put together from that."""
    server, encode, sizes = new_server(), results.encode, list[int]()

    @server.tool
    async def rows() -> list[int]:
        return list(range(5_000))

    def counting(value: Any) -> bytes:
        data = encode(value)
        sizes.append(0 if isinstance(value, Raw) else len(data))  # which is encoded already
        return data

    async with Client(server, protocol_version="2026-07-28") as client:
        monkeypatch.setattr(results, "encode", counting)
        result = await client.call_tool("rows")
    assert len(result.data) == 5_000
    size = len(str(list(range(5_000))).replace(" ", ""))
    assert sum(sizes) < 1.5 * size, "as the text of a block, where it has to be quoted, and not again"


@pytest.mark.parametrize("per_tool", [True, False])
async def test_more_calls_than_slots_wait_and_more_than_the_queue_holds_are_refused(per_tool: bool) -> None:
    limit: dict[str, Any] = {"max_concurrency": 2}
    server, running, most = new_server(max_queue=3, **({} if per_tool else limit)), list[int](), list[int]()

    @server.tool(**(limit if per_tool else {}))
    async def slow() -> str:
        running.append(1)
        most.append(len(running))
        await asyncio.sleep(0.02)
        running.pop()
        return "ok"

    async with Wire(server, "2025-11-25") as wire:
        for number in range(9):
            wire.send(wire.request("tools/call", {"name": "slow"}, id=number))
        answers = sorted([await wire.receive() for _ in range(9)], key=lambda answer: answer["id"])
        assert (await wire.ask("tools/call", {"name": "slow"}))["isError"] is False
    assert max(most) == 2
    assert all(answer["result"]["isError"] is False for answer in answers[:5])
    for answer in answers[5:]:
        if per_tool:  # for the model, which may call another one
            text = "The tool slow is busy: 2 calls running and 3 waiting; try again in 1 s."
            assert (answer["result"]["isError"], answer["result"]["content"][0]["text"]) == (True, text)
        else:
            text = "The server is busy: 2 calls running and 3 waiting; try again in 1 s."
            assert answer["error"] == {"code": -32603, "message": text, "data": {"retryAfter": 1}}


async def test_a_tool_that_comes_back_has_its_new_limit() -> None:
    server, slots = new_server(), list[Any]()
    for most in (1, 2):
        server.add_tool(lambda: "", name="t", max_concurrency=most)
        slots += [server.engine.call_limits.for_tool(server.engine.tools.get("t")).slots for _ in range(2)]
        server.remove_tool("t")
    assert slots[0] is slots[1] is not slots[2] is slots[3] is not None


@pytest.mark.parametrize(("of_server", "of_tool"), [({"timeout": 0.05}, {}), ({}, {"timeout": 0.05})])
async def test_a_call_that_takes_too_long_is_stopped(of_server: Any, of_tool: Any, caplog: Any) -> None:
    server, ended = new_server(**of_server), list[str]()

    @server.tool(**of_tool)
    async def slow() -> str:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("cleaned up")
        return "never"

    @server.tool(timeout=None)
    async def patient() -> str:
        await asyncio.sleep(0.1)
        return "done"

    async with Wire(server, MODERN) as wire:
        result = await wire.ask("tools/call", {"name": "slow"})
        assert result["isError"] is True
        assert "0.05 s" in result["content"][0]["text"]
        assert ended == ["cleaned up"]
        assert (await wire.ask("tools/call", {"name": "patient"}))["isError"] is False
    assert "slow timed out" in caplog.text


async def test_a_timeout_of_a_prompt_or_resource_is_an_error() -> None:
    server = new_server(timeout=0.02)

    @server.resource("a://slow")
    async def slow() -> str:
        await asyncio.sleep(5)
        return ""

    server.add_prompt(slow, name="ask")
    async with Wire(server, MODERN) as wire:
        for method, params in (("resources/read", {"uri": "a://slow"}), ("prompts/get", {"name": "ask"})):
            error = await wire.refusal(method, params)
            assert error["code"] == -32603
            assert "0.02 s" in error["message"]


def test_there_is_one_completion_for_an_argument() -> None:
    server = new_server()
    server.completion(prompt="p", argument="a")(lambda value: [])
    with pytest.raises(SetupError, match="already"):
        server.completion(prompt="p", argument="a")(lambda value: [])


async def test_a_thread_that_is_given_up_frees_its_slot_and_sees_that_it_should_stop() -> None:
    """It still holds its tool's half of the threads, and leaves the others alone."""
    server, seen = new_server(max_threads=2, max_concurrency=1), threading.Event()
    gate = threading.Event()

    def slow(ctx: Context) -> str:
        if ctx.cancelled.wait(5):
            seen.set()
        return str(gate.wait(10))

    server.add_tool(slow, timeout=0.05)
    server.add_tool(lambda: "quick", name="quick")
    async with Wire(server, MODERN) as wire:
        timed_out, refused = [await wire.ask("tools/call", {"name": "slow"}) for _ in range(2)]
        assert "0.05 s" in timed_out["content"][0]["text"]
        assert "The tool slow is busy: 1 of its earlier calls were given up" in refused["content"][0]["text"]
        assert (await wire.ask("tools/call", {"name": "quick"}))["content"][0]["text"] == "quick"
        assert await asyncio.to_thread(seen.wait, 5)
        gate.set()
        await until(lambda: server.engine.threads.stuck == 0)
        assert (await wire.ask("tools/call", {"name": "quick"}))["isError"] is False
