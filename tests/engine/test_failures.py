"""Failures of functions: every request gets a response, and the server goes on."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail import Client, Context, NotFound, ProtocolError, Server, ServerError, ToolError
from wire import MODERN, Wire


@pytest.mark.parametrize(
    ("message", "data", "code"),
    [("a path", Path("/x"), -32603), ("an object", object(), -32603), ("\ud800", None, -32602), (object(), 1, -32603)],
    ids=["a path as data", "an object as data", "half a character", "an object as message"],
)
async def test_protocol_errors_that_can_not_be_encoded(message: Any, data: Any, code: int) -> None:
    server = Server("hostile")

    @server.tool
    async def fail() -> str:
        raise ProtocolError(message, code=code, data=data)

    async with Wire(server, MODERN) as wire:
        assert (await wire.refusal("tools/call", {"name": "fail"}))["code"] == code


def test_an_error_code_is_an_integer() -> None:
    with pytest.raises(TypeError):
        ProtocolError("x", code="foo")  # type: ignore[arg-type]


class Signal(BaseException):
    """As some frameworks have them."""


@pytest.mark.parametrize(
    ("failure", "is_result"),
    [(KeyboardInterrupt(), True), (SystemExit(), True), (GeneratorExit(), False), (Signal(), False),
     (BaseExceptionGroup("g", [Signal()]), False)],
)  # fmt: skip
async def test_every_exception_is_answered(failure: BaseException, is_result: bool) -> None:
    server = Server("hostile")

    async def on_the_loop() -> str:
        raise failure

    def leaves() -> str:
        raise failure

    @server.tool
    async def reads(ctx: Context) -> str:
        (contents,) = await asyncio.gather(ctx.read_resource("x://y"))
        return str(contents)

    server.add_tool(on_the_loop)
    server.add_tool(leaves, name="plain", thread=False)
    server.add_tool(leaves, name="in_a_thread")
    server.add_resource("x://y", on_the_loop, name="resource")
    async with Wire(server, MODERN) as wire:
        for name in ("on_the_loop", "plain", "in_a_thread"):
            answer = await wire.exchange(wire.request("tools/call", {"name": name}))
            if is_result or (name == "in_a_thread" and isinstance(failure, GeneratorExit)):
                text = f"The tool {name} failed. The details are in the server's log."
                assert (answer["result"]["isError"], answer["result"]["content"][0]["text"]) == (True, text)
            else:
                assert answer["error"]["code"] == -32603
        assert (await wire.refusal("tools/call", {"name": "reads"}))["code"] == -32603


async def test_a_tool_that_cancels_itself_and_a_batch_are_answered() -> None:
    server = Server("hostile")

    @server.tool
    async def cancels_itself() -> str:
        asyncio.current_task().cancel()
        await asyncio.sleep(1)
        return ""

    async with Wire(server, "2025-03-26") as wire:
        assert (await wire.refusal("tools/call", {"name": "cancels_itself"}))["code"] == -32603
        wire.send([wire.request("tools/call", {"name": "cancels_itself"}), wire.request("ping")])
        assert len(await wire.receive()) == 2


async def test_names_of_undecodable_files_can_be_sent() -> None:
    server = Server("files")

    @server.resource("x://{name}")
    async def read(name: str) -> str:
        raise NotFound("no bad\udcff.txt")

    @server.tool
    async def fail() -> str:
        raise ToolError("bad\udcff.txt")

    async with Wire(server, MODERN) as wire:
        assert (await wire.refusal("resources/read", {"uri": "x://y"}))["message"] == "no bad?.txt"
        assert (await wire.ask("tools/call", {"name": "fail"}))["content"][0]["text"] == "bad?.txt"


async def test_a_server_lives_on_one_loop_at_a_time() -> None:
    server = Server("loops")

    async def second() -> None:
        async with Client(server):
            pass

    async with Client(server):
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, second())
    await asyncio.to_thread(asyncio.run, second())


@pytest.mark.parametrize(
    ("other", "text"),
    [(ToolError("no pepper"), "no salt\nno pepper"), (RuntimeError("inside"), "The tool cook failed. The details are")],
)
async def test_failures_of_a_task_group_are_sent_together(other: Exception, text: str) -> None:
    server = Server("groups")

    async def fail(failure: Exception) -> None:
        raise failure

    @server.tool
    async def cook() -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(ToolError("no salt")))
            group.create_task(fail(other))
        return ""

    async with Wire(server, MODERN) as wire:
        result = await wire.ask("tools/call", {"name": "cook"})
        assert result["isError"] is True
        assert result["content"][0]["text"].startswith(text)


async def test_a_task_group_that_asks_what_its_client_can_not_answer() -> None:
    server = Server("groups")

    @server.tool
    async def cook(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            for dish in ("soup", "cake"):
                group.create_task(ctx.elicit(dish, bool))
        return ""

    async with Wire(server, MODERN) as wire:
        refusal = await wire.refusal("tools/call", {"name": "cook"})
        assert "elicitation" in refusal["data"]["requiredCapabilities"]


async def test_starting_while_a_lifespan_ends() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def lifespan(owner: Any) -> AsyncIterator[None]:
        log.append("in")
        yield
        await asyncio.sleep(0.01)
        log.append("out")

    engine = Server("lives", lifespan=lifespan).engine
    await engine.start()
    ending = asyncio.create_task(engine.stop())
    await asyncio.sleep(0)
    await asyncio.gather(engine.start(), engine.start())
    await ending
    await engine.stop()
    await engine.stop()
    assert log == ["in", "out", "in", "out"]


async def test_an_update_during_a_read_is_not_forgotten() -> None:
    server = Server("cache")
    gate = asyncio.Event()
    reads: list[str] = []

    @server.resource("x://y", cache=60)
    async def read() -> str:
        value = f"v{len(reads) + 1}"
        reads.append(value)
        if value == "v1":
            await gate.wait()
        return value

    async with Wire(server, MODERN) as wire:
        first = asyncio.create_task(wire.ask("resources/read", {"uri": "x://y"}))
        await asyncio.sleep(0.01)
        server.notify_resource_updated("x://y")
        gate.set()
        assert (await first)["contents"][0]["text"] == "v1"
        assert (await wire.ask("resources/read", {"uri": "x://y"}))["contents"][0]["text"] == "v2"
        assert (await wire.ask("resources/read", {"uri": "x://y"}))["contents"][0]["text"] == "v2"


# ── details while a server is developed ──

MASKED = "The tool fails failed. The details are in the server's log."


def failing(*, thread: bool = False, **options: Any) -> Server:
    server = Server("failing", version="1.0.0", **options)

    def fails() -> str:
        raise KeyError("password=hunter2", "milk\nbread")

    async def fails_on_the_loop() -> str:
        return fails()

    work = fails if thread else fails_on_the_loop
    server.add_tool(work, name="fails")
    server.add_prompt(work, name="fails")
    server.add_resource("fails://now", work, name="fails")
    server.add_tool(lambda: {"a": 1, "b": "x"}, name="lies", output_schema=NUMBERS)
    return server


NUMBERS = {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", MODERN])
@pytest.mark.parametrize("thread", [True, False])
async def test_in_process_the_real_error_is_shown_in_one_line_without_secrets(thread: bool, version: str) -> None:
    shown = r"KeyError: .*password=\[redacted\].* \(test_failures\.py, line \d+\)"
    async with Client(failing(thread=thread), protocol_version=version) as client:
        with pytest.raises(ToolError, match=rf"^The tool fails failed: {shown}$"):
            await client.call_tool("fails")
        with pytest.raises(ServerError, match=rf"^The prompt fails failed: {shown} \(-32603\)$"):
            await client.get_prompt("fails")
        with pytest.raises(ServerError, match=rf"^The resource fails://now failed: {shown} \(-32603\)$"):
            await client.read_resource("fails://now")
        with pytest.raises(ToolError, match=r'own description: .*b: expected an integer, got the string "x"$'):
            await client.call_tool("lies")


async def test_a_pipe_and_a_server_that_says_so_keep_the_details() -> None:
    async with Wire(failing(), MODERN) as wire:
        assert (await wire.ask("tools/call", {"name": "fails"}))["content"][0]["text"] == MASKED
        assert (await wire.refusal("prompts/get", {"name": "fails"}))["message"] == "The prompt fails failed"
        lies = await wire.ask("tools/call", {"name": "lies"})
        assert lies["content"][0]["text"] == "The tool lies returned something that does not fit its own description."
    async with Client(failing(mask_error_details=True)) as client:
        assert (await client.call_tool("fails", raise_on_error=False)).text == MASKED
    async with Wire(failing(mask_error_details=False), MODERN) as wire:
        assert "KeyError" in (await wire.ask("tools/call", {"name": "fails"}))["content"][0]["text"]


class Wordless(Exception):
    asked = 0

    def __str__(self) -> str:
        Wordless.asked += 1
        raise ValueError("no words")


async def test_an_exception_that_has_no_words(caplog: pytest.LogCaptureFixture) -> None:
    """They are not even made where no client would get them."""
    caplog.set_level(logging.CRITICAL, logger="dovetail")
    server = Server("wordless", version="1.0.0")

    def fails() -> str:
        raise Wordless

    server.add_tool(fails, name="fails")
    server.add_resource("fails://now", fails, name="fails")
    async with Wire(server, MODERN) as wire:
        assert (await wire.ask("tools/call", {"name": "fails"}))["content"][0]["text"] == MASKED
        refusal = await wire.refusal("resources/read", {"uri": "fails://now"})
        assert refusal["message"] == "The resource fails://now failed"
        assert not Wordless.asked
    async with Client(server) as client:
        assert (await client.call_tool("fails", raise_on_error=False)).text == MASKED
        with pytest.raises(ServerError, match=r"^The resource fails://now failed \(-32603\)$"):
            await client.read_resource("fails://now")


@pytest.mark.parametrize("thread", [True, False])
async def test_a_traceback_in_the_log_begins_with_the_users_own_function(
    thread: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with Wire(failing(thread=thread), MODERN) as wire:
        await wire.ask("tools/call", {"name": "fails"})
        await wire.refusal("prompts/get", {"name": "fails"})
    for record in caplog.records:
        lines = str(record.exc_text).splitlines()
        assert lines[0] == "  Traceback (most recent call last):"
        assert "test_failures.py" in lines[1]
        assert not [line for line in lines if str(Path(dovetail.__file__).parent) in line]
    assert [record.message for record in caplog.records] == ["tool fails failed", "prompt fails failed"]
