"""What one `tools/call` costs in frames, tasks and turns of the loop: counts, so that a coarse regression shows.

`docs/architecture.md` draws the path: connection, dispatch, chain, handler, the user's function.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from costs import functions_called, own_frames, tasks_made
from dovetail import Context, Server
from dovetail.engine.connection import Connection
from dovetail.engine.dispatch import handle
from dovetail.engine.request_context import RequestContext
from dovetail.protocol import inbound, jsonrpc
from wire import MODERN

CALL = (
    b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"t0","arguments":{"a":1},"_meta":'
    b'{"io.modelcontextprotocol/protocolVersion":"%b","io.modelcontextprotocol/clientCapabilities":{}}}}'
)
WAITING = (0, 0) if sys.version_info >= (3, 12) else (1, 1)  # tasks by way of the loop, and its turns


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
        frames = own_frames(sys._getframe(1))
        self.frames = frames[frames.index("handle") :]
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
        connection = Connection(self.server.engine, self)
        for number in (1, 2):
            with tasks_made() as tasks:
                connection.receive(CALL % (number, MODERN.encode()))
                connection.start_calls()
            turns = 0
            while self.written < number:
                await asyncio.sleep(0)
                turns += 1
                assert turns < 100
        await connection.close()
        await self.server.engine.stop()
        return self.frames, len(tasks), turns


@pytest.mark.parametrize(
    ("options", "more"), [({}, 0), ({"tools": 500}, 0), ({"timeout": 30}, 2), ({"middleware": 3}, 6)], ids=str
)
async def test_the_frames_between_the_engine_and_the_function(options: dict[str, Any], more: int) -> None:
    frames, tasks, turns = await Probe(**options).call()
    assert len(frames) == 2 + more, frames
    assert (tasks, turns) == WAITING


@pytest.mark.parametrize("tools", [1, 500])
async def test_the_number_of_function_calls_is_bounded(tools: int) -> None:
    probe = Probe(tools)
    await probe.call()
    await probe.server.engine.start()
    connection = Connection(probe.server.engine, probe)
    with functions_called() as called:
        connection.feed(CALL % (9, MODERN.encode()))
        for _ in range(10):
            await asyncio.sleep(0)
    await connection.close()
    await probe.server.engine.stop()
    assert probe.written == 3
    assert len(called) <= 27, called


@pytest.mark.parametrize("kind", [int, str, dict[str, int]])
async def test_the_engine_s_part_of_it_is_a_handful_of_functions(kind: Any) -> None:
    """From the request to the bytes of its result, for a tool that wants nothing but its arguments."""
    server = Server("probe", version="1.0.0")
    values = {int: 3, str: "three"}

    async def tool(a: int) -> Any:
        return values.get(kind, {"a": a})

    tool.__annotations__["return"] = kind
    server.add_tool(tool, name="t0")
    message = jsonrpc.decode(CALL % (1, MODERN.encode()))
    request = inbound.modern(inbound.parse_request(message))
    emit: Any = None
    await server.engine.start(server)
    bodies = [await handle(server.engine, RequestContext(request, emit))]
    with functions_called() as called:
        bodies.append(await handle(server.engine, RequestContext(request, emit)))
    await server.engine.stop()
    assert bodies[0] == bodies[1]
    assert b'"isError":false' in bodies[0]
    assert len(called) <= 13, called  # one makes the context that `get_context` gives, if a test has imported it
