"""Functions in threads that wait for what their context does."""

import asyncio
import threading

import pytest
from context_stage import new_server, quiet_logging

from dovetail import Context, NotFound, ProtocolError, ResourceContents
from dovetail.protocol.features import LEVELS
from wire import MODERN, Wire


async def test_a_thread_waits_for_the_loop() -> None:
    server = new_server()

    @server.tool
    def waits(ctx: Context) -> str:
        async def on_the_loop() -> int:
            await asyncio.sleep(0.01)
            return threading.get_ident()

        ctx.wait(ctx.info("a message that has already gone out"))
        with pytest.raises(KeyError):
            ctx.wait(_fail())
        return str(ctx.wait(on_the_loop()) != threading.get_ident())

    async with Wire(server, "2025-06-18") as wire:
        assert (await wire.ask("tools/call", {"name": "waits"}))["content"][0]["text"] == "True"


async def _fail() -> None:
    raise KeyError("x")


async def test_waiting_on_the_loop_is_refused() -> None:
    server = new_server()

    @server.tool
    async def asynchronous(ctx: Context) -> str:
        with pytest.raises(RuntimeError, match="await"):
            ctx.wait(ctx.info("x"))
        return "refused"

    @server.tool(thread=False)
    def on_the_loop(ctx: Context) -> str:
        with pytest.raises(RuntimeError, match="block the event loop"):
            ctx.wait(_fail())
        return "refused"

    async with Wire(server, "2025-06-18") as wire:
        for name in ("asynchronous", "on_the_loop"):
            assert (await wire.ask("tools/call", {"name": name}))["content"][0]["text"] == "refused"


class Wait:
    """What a tool waits for without end, and how that ended."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.coroutine_ended = threading.Event()
        self.raised: list[str] = []
        self.thread_ended = threading.Event()

    async def forever(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.coroutine_ended.set()

    def in_a_thread(self, ctx: Context) -> str:
        try:
            ctx.wait(self.forever())
        except Exception as error:
            self.raised.append(type(error).__name__)
        ctx.info("nobody hears this, and that is no failure")
        ctx.report_progress(1)
        try:
            ctx.wait(self.forever())  # refused at once
        except Exception as error:
            self.raised.append(type(error).__name__)
        self.thread_ended.set()
        return "dropped"

    async def has_ended(self) -> None:
        for event in (self.begun, self.coroutine_ended, self.thread_ended):
            assert await asyncio.to_thread(event.wait, 10)
        assert self.raised == ["CallEnded", "CallEnded"]


@pytest.mark.parametrize("ending", ["cancelled", "timed out", "its resource timed out"])
async def test_waiting_ends_with_the_call(ending: str, caplog: pytest.LogCaptureFixture) -> None:
    server = new_server(timeout=10)
    wait = Wait()
    timeout = 0.02 if ending.endswith("timed out") else None

    @server.tool(timeout=timeout)
    def waits(ctx: Context) -> str:
        return wait.in_a_thread(ctx)

    @server.resource("a://waits", timeout=timeout)
    def waits_too(ctx: Context) -> str:
        return wait.in_a_thread(ctx)

    @server.tool
    async def reads(ctx: Context) -> str:
        with pytest.raises(ProtocolError, match=r"0\.02 s"):
            await ctx.read_resource("a://waits")
        return "read"

    async with Wire(server, "2025-06-18") as wire:
        params = {"name": "reads" if "resource" in ending else "waits", "_meta": {"progressToken": 1}}
        request = wire.request("tools/call", params, id=7)
        if ending == "cancelled":
            wire.send(request)
            assert await asyncio.to_thread(wait.begun.wait, 10)
            wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        else:
            assert "result" in await wire.exchange(request)
        await wait.has_ended()
        await wire.quiet(0.01)
    assert "stuck" not in caplog.text
    assert "nobody hears" not in str(wire.seen)


@quiet_logging
async def test_what_nobody_wants_to_hear_needs_no_turn_of_the_loop() -> None:
    server = new_server()
    loop = threading.get_ident()

    @server.tool
    def speaks(ctx: Context) -> str:
        ctx._loop = None  # type: ignore[assignment]  # whoever needs it fails
        ctx.report_progress(1, 2, "half")
        for level in LEVELS:
            ctx.log(level, "x")
        with pytest.raises(ValueError, match="loud"):
            ctx.log("loud", "x")  # type: ignore[arg-type]
        return str(threading.get_ident() != loop)

    async with Wire(server, MODERN) as wire:
        assert (await wire.ask("tools/call", {"name": "speaks"}))["content"][0]["text"] == "True"


@quiet_logging
async def test_in_async_functions_every_message_is_a_coroutine_whoever_listens() -> None:
    server = new_server()

    @server.tool
    async def speaks(ctx: Context) -> str:
        await asyncio.create_task(ctx.report_progress(1))  # type: ignore[arg-type]
        await asyncio.create_task(ctx.debug("x"))  # type: ignore[arg-type]
        return "spoken"

    for version in ("2025-06-18", MODERN):
        async with Wire(server, version) as wire:
            assert (await wire.ask("tools/call", {"name": "speaks"}))["content"][0]["text"] == "spoken"


@pytest.mark.parametrize("resource_in_thread", [True, False])
async def test_reading_resources_never_waits_for_what_the_call_itself_holds(resource_in_thread: bool) -> None:
    """Neither for the server's only slot nor for its only thread."""
    server = new_server(max_concurrency=1, max_threads=1, timeout=5)

    @server.resource("a://inner", thread=resource_in_thread)
    def inner() -> str:
        return "inner"

    @server.resource("a://outer", thread=True)
    def outer(ctx: Context) -> str:
        return f"outer {ctx.wait(ctx.read_resource('a://inner'))[0].text}"

    @server.tool
    def in_a_thread(ctx: Context) -> str:
        both = ctx.wait(_both(ctx))
        return " ".join(str(each.text) for each in both)

    @server.tool
    async def asynchronous(ctx: Context) -> str:
        return " ".join(str(each.text) for each in await _both(ctx))

    async with Wire(server, "2025-06-18") as wire:
        for name in ("in_a_thread", "asynchronous"):
            result = await wire.ask("tools/call", {"name": name})
            assert result["content"][0]["text"] == "outer inner inner"


async def _both(ctx: Context) -> list[ResourceContents]:
    found = await asyncio.gather(ctx.read_resource("a://outer"), ctx.read_resource("a://inner"))
    return [contents for each in found for contents in each]


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
