"""The engine's limits on calls: how many at once, and for how long."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from core_stage import new_server

from dovetail import Context, Server, SetupError
from wire import MODERN, Wire


async def burst(server: Server, name: str, count: int) -> list[dict[str, Any]]:
    async with Wire(server, "2025-11-25") as wire:
        for number in range(count):
            wire.send(wire.request("tools/call", {"name": name}, id=number))
        answers = [await wire.receive() for _ in range(count)]
        assert (await wire.ask("tools/call", {"name": name}))["isError"] is False
        return sorted(answers, key=lambda answer: answer["id"])


@pytest.mark.parametrize("per_tool", [True, False])
async def test_more_calls_than_slots_wait_and_more_than_the_queue_holds_are_refused(per_tool: bool) -> None:
    server = new_server(max_queue=3, **({} if per_tool else {"max_concurrency": 2}))
    running: list[int] = []
    most: list[int] = []

    @server.tool(**({"max_concurrency": 2} if per_tool else {}))
    async def slow() -> str:
        running.append(1)
        most.append(len(running))
        await asyncio.sleep(0.02)
        running.pop()
        return "ok"

    answers = await burst(server, "slow", 9)
    assert max(most) == 2
    done, refused = answers[:5], answers[5:]
    assert all(answer["result"]["isError"] is False for answer in done)
    if per_tool:  # for the model, which may call another one
        text = "The tool slow is busy: 2 calls running and 3 waiting; try again in 1 s."
        assert all(answer["result"]["content"][0]["text"] == text for answer in refused)
        assert all(answer["result"]["isError"] is True for answer in refused)
    else:
        text = "The server is busy: 2 calls running and 3 waiting; try again in 1 s."
        error = {"code": -32603, "message": text, "data": {"retryAfter": 1}}
        assert all(answer["error"] == error for answer in refused)


async def test_a_busy_tool_does_not_take_the_slots_of_others() -> None:
    server = new_server(max_concurrency=2)
    release = asyncio.Event()

    @server.tool(max_concurrency=1)
    async def narrow() -> str:
        await release.wait()
        return "narrow"

    @server.tool
    async def quick() -> str:
        return "quick"

    async with Wire(server, MODERN) as wire:
        for number in range(5):
            wire.send(wire.request("tools/call", {"name": "narrow"}, id=number))
        assert (await wire.ask("tools/call", {"name": "quick"}))["content"][0]["text"] == "quick"
        release.set()


async def test_a_tool_that_comes_back_has_its_new_limit() -> None:
    server = new_server()
    server.add_tool(lambda: "", name="t", max_concurrency=1)
    tool = server.engine.tools.get("t")
    assert tool is not None
    limits = server.engine.book.of
    assert limits(tool).slots is limits(tool).slots is not None
    server.remove_tool("t")
    server.add_tool(lambda: "", name="t", max_concurrency=2)
    again = server.engine.tools.get("t")
    assert again is not None
    assert limits(again).slots is not limits(tool).slots


@pytest.mark.parametrize("by_server", [True, False])
async def test_a_call_that_takes_too_long_is_stopped(by_server: bool, caplog: pytest.LogCaptureFixture) -> None:
    server = new_server(**({"timeout": 0.05} if by_server else {}))
    ended: list[str] = []

    @server.tool(**({} if by_server else {"timeout": 0.05}))
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


async def test_a_tools_own_timeout_error_is_a_failure_like_any_other() -> None:
    server = new_server(timeout=5)

    @server.tool
    async def gives_up() -> str:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(5)
        return ""

    async with Wire(server, MODERN) as wire:
        assert "log" in (await wire.ask("tools/call", {"name": "gives_up"}))["content"][0]["text"]


async def test_a_thread_that_is_stuck_frees_its_slot_and_sees_that_it_should_stop() -> None:
    server = new_server(max_concurrency=1, max_threads=1)
    stop, seen = threading.Event(), threading.Event()

    @server.tool(timeout=0.05)
    def stuck(ctx: Context) -> str:
        if ctx.cancelled.wait(5):
            seen.set()
        stop.wait(5)
        return "late"

    @server.tool
    def quick() -> str:
        return "quick"

    async with Wire(server, MODERN) as wire:
        assert (await wire.ask("tools/call", {"name": "stuck"}))["isError"] is True
        assert (await wire.ask("tools/call", {"name": "quick"}))["content"][0]["text"] == "quick"
        assert await asyncio.to_thread(seen.wait, 5)
        assert server.engine.threads.stuck == 1
        stop.set()
        await wire.quiet(0.05)


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


# ── threads that were given up ──


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds threads back, until the test is over."""
    event = threading.Event()
    yield event
    event.set()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never happened")


async def give_up(wire: Wire, method: str, params: dict[str, Any], count: int, begun: list[int]) -> None:
    """Make calls one after the other, and cancel each while its function runs, or take its refusal."""
    for number in range(count):
        wire.send(wire.request(method, params, id=number))
        at = len(begun)
        await until(lambda at=at: len(begun) > at or not wire.lines.empty())
        if wire.lines.empty():
            wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
        else:
            await wire.receive()


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_given_up_calls_of_one_tool_leave_threads_for_the_others(gate: threading.Event, version: str) -> None:
    server, begun = new_server(max_threads=40), list[int]()

    @server.tool
    def slow() -> str:
        begun.append(1)
        gate.wait(60)
        return "slow"

    @server.tool
    def quick() -> str:
        return "quick"

    async with Wire(server, version) as wire:
        await give_up(wire, "tools/call", {"name": "slow"}, 120, begun)
        assert len(begun) == 20
        refused = await wire.ask("tools/call", {"name": "slow"})
        assert refused["isError"] is True
        assert refused["content"][0]["text"] == (
            "The tool slow is busy: 20 of its earlier calls were given up but still hold their threads; "
            "try again in 1 s."
        )
        for _ in range(50):
            assert (await wire.ask("tools/call", {"name": "quick"}))["content"][0]["text"] == "quick"
        gate.set()
        await until(lambda: server.engine.threads.stuck == 0)
        assert (await wire.ask("tools/call", {"name": "slow"}))["isError"] is False


async def test_given_up_reads_prompts_and_completions_leave_threads_for_the_others(gate: threading.Event) -> None:
    server, begun = new_server(max_threads=4), list[int]()

    def slow() -> str:
        begun.append(1)
        gate.wait(60)
        return "slow"

    server.add_resource("file:///slow", slow)
    server.add_prompt(slow, name="slow")
    server.add_prompt(lambda topic: topic, name="talk")

    @server.completion(prompt="talk", argument="topic")
    def complete(value: str) -> list[str]:
        return [slow()]

    @server.tool
    def quick() -> str:
        return "quick"

    completion = {"ref": {"type": "ref/prompt", "name": "talk"}, "argument": {"name": "topic", "value": ""}}
    async with Wire(server, MODERN) as wire:
        for method, params, label in (
            ("resources/read", {"uri": "file:///slow"}, "resource file:///slow"),
            ("prompts/get", {"name": "slow"}, "prompt slow"),
            ("completion/complete", completion, "completion of topic"),
        ):
            begun.clear()
            await give_up(wire, method, params, 10, begun)
            assert len(begun) == 2
            assert (await wire.refusal(method, params))["message"].startswith(f"The {label} is busy: 2 of its earlier")
            assert (await wire.ask("tools/call", {"name": "quick"}))["isError"] is False


async def test_live_calls_of_one_tool_wait_for_its_half_of_the_threads_and_are_not_refused(
    gate: threading.Event,
) -> None:
    server, begun = new_server(max_threads=4), list[int]()

    @server.tool
    def slow() -> str:
        begun.append(1)
        gate.wait(60)
        return "slow"

    @server.tool
    def quick() -> str:
        return "quick"

    async with Wire(server, "2025-11-25") as wire:
        for number in range(60):
            wire.send(wire.request("tools/call", {"name": "slow"}, id=number))
        assert (await wire.ask("tools/call", {"name": "quick"}))["isError"] is False
        assert len(begun) == 2
        gate.set()
        answers = [await wire.receive() for _ in range(60)]
        assert all(answer["result"]["isError"] is False for answer in answers)


async def test_calls_that_wait_behind_given_up_ones_are_refused_at_once(gate: threading.Event) -> None:
    server, begun = new_server(max_threads=4), list[int]()

    @server.tool
    def slow() -> str:
        begun.append(1)
        gate.wait(60)
        return "slow"

    async with Wire(server, "2025-11-25") as wire:
        for number in range(5):
            wire.send(wire.request("tools/call", {"name": "slow"}, id=number))
        await until(lambda: len(begun) == 2)
        for number in (4, 0, 1):  # one that waits, and both that run
            wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
        answers = [await wire.receive() for _ in range(2)]
        assert sorted(answer["id"] for answer in answers) == [2, 3]
        assert all("is busy" in answer["result"]["content"][0]["text"] for answer in answers)
    assert len(begun) == 2


async def test_calls_that_ask_their_client_hold_nothing_of_their_tools_share() -> None:
    server = new_server(max_threads=2)

    @server.tool
    def book(ctx: Context, asks: bool) -> str:
        return str(ctx.wait(ctx.elicit("Sure?", bool))) if asks else "booked"

    async with Wire(server, "2025-11-25", capabilities={"elicitation": {}}) as wire:
        for number in range(5):
            wire.send(wire.request("tools/call", {"name": "book", "arguments": {"asks": True}}, id=f"ask {number}"))
        questions = [await wire.receive() for _ in range(5)]
        booked = await wire.ask("tools/call", {"name": "book", "arguments": {"asks": False}})
        assert booked["content"][0]["text"] == "booked"
        for question in questions:
            answer = {"action": "accept", "content": {"value": True}}
            wire.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        answers = [await wire.receive() for _ in range(5)]
        assert all(answer["result"]["isError"] is False for answer in answers), answers
