"""What one `tools/call` costs in frames, tasks and turns of the loop: counts, so that a coarse regression shows.

`docs/architecture.md` draws the path: connection, dispatch, chain, handler, invoke, the user's function.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import dovetail
from dovetail import Context, Server
from dovetail.engine.connection import Connection
from wire import MODERN

PACKAGE = str(Path(dovetail.__file__).parent)
CALL = (
    b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"t0","arguments":{"a":1},"_meta":'
    b'{"io.modelcontextprotocol/protocolVersion":"%b","io.modelcontextprotocol/clientCapabilities":{}}}}'
)
PATH = ["_serve", "_answer", "handle", "innermost", "call_tool", "_run_tool", "invoke"]


class Probe:
    """A server whose tool looks up its own stack, and a pipe that counts until the answer is written."""

    def __init__(self, tools: int = 1, *, middleware: int = 0, **options: Any) -> None:
        self.server = Server("probe", version="1.0.0", **options)
        self.frames: list[str] = []
        self.written = 0
        for number in range(tools):
            self.server.add_tool(self.tool, name=f"t{number}")
        for _ in range(middleware):
            self.server.middleware(self.passes)

    async def tool(self, a: int, ctx: Context) -> str:
        self.frames = own_frames(sys._getframe(1))
        return str(a)

    async def passes(self, request: Any, call_next: Callable[[Any], Any]) -> Any:
        return await call_next(request)

    def write(self, message: bytes) -> None:
        assert b'"isError":false' in message
        self.written += 1

    async def drain(self) -> None:
        return

    async def call(self) -> tuple[list[str], int, int]:
        """Frames of ours, tasks and turns for the second call; the first one warms up."""
        await self.server.engine.start(self.server)
        loop = asyncio.get_running_loop()
        connection = Connection(self.server.engine, self)
        tasks: list[Any] = []

        def count_task(loop: Any, coroutine: Any, **options: Any) -> Any:
            tasks.append(coroutine)
            return asyncio.Task(coroutine, loop=loop, **options)

        for number in (1, 2):
            tasks.clear()
            loop.set_task_factory(count_task)
            connection.feed(CALL % (number, MODERN.encode()))
            loop.set_task_factory(None)
            turns = 0
            while self.written < number:
                await asyncio.sleep(0)
                turns += 1
                assert turns < 100
        await connection.close()
        await self.server.engine.stop()
        return self.frames, len(tasks), turns


def own_frames(frame: FrameType | None) -> list[str]:
    """The functions of our package on the stack, outermost first."""
    names: list[str] = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[::-1]


async def test_the_path_of_a_call() -> None:
    frames, tasks, turns = await Probe().call()
    assert frames == PATH
    assert tasks == 1
    assert turns == 1


async def test_a_timeout_costs_one_frame_and_nothing_else() -> None:
    frames, tasks, turns = await Probe(timeout=30).call()
    assert frames == [*PATH, "beside"]
    assert (tasks, turns) == (1, 1)


async def test_each_middleware_costs_two_frames_of_ours() -> None:
    frames, tasks, turns = await Probe(middleware=3).call()
    assert frames == [*PATH[:3], *["step", "call_next"] * 3, *PATH[3:]]
    assert (tasks, turns) == (1, 1)


async def test_the_number_of_tools_does_not_matter() -> None:
    assert await Probe(1).call() == await Probe(500).call()


@pytest.mark.parametrize("tools", [1, 500])
async def test_the_number_of_function_calls_is_bounded(tools: int) -> None:
    """All Python functions of ours that run for one call, whatever they are."""
    probe = Probe(tools)
    await probe.call()
    called: list[str] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            called.append(frame.f_code.co_name)

    await probe.server.engine.start()
    connection = Connection(probe.server.engine, probe)
    sys.setprofile(profile)
    try:
        connection.feed(CALL % (9, MODERN.encode()))
        await asyncio.sleep(0)
    finally:
        sys.setprofile(None)
    await connection.close()
    await probe.server.engine.stop()
    assert probe.written == 3
    assert len(called) <= 45, called
