"""What one `tools/call` costs as an ASGI app and through our own HTTP: frames, functions, tasks, turns of the loop."""

import asyncio
import json
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from http11_connection import Line

from costs import PACKAGE, functions_called, own_frames, places_visited, tasks_made
from dovetail import Context, Server
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http11.protocol import ServerState
from http_wire import mirrored, modern

CALL = {"name": "add", "arguments": {"a": 1, "b": 2}}
FRAMES = 7  # of ours, from the app to the user's function
SESSION, INFO = "2025-11-25", {"name": "c", "version": "1"}
FUNCTIONS = 166  # of a question in a session; six of them read its stream for the judge of all tests


class Probe:
    """A server whose tool looks up its own stack, and its client by bare ASGI."""

    def __init__(self, tools: int = 1) -> None:
        self.server = Server("probe", version="1.0.0")
        self.app = self.server.asgi()
        self.frames: list[str] = []
        self.headers: dict[str, str] = {}  # of a session
        self.stack: list[str] = []  # the folders of our modules that were at work when a question was sent
        self.server.add_tool(self.add)
        for number in range(1, tools):
            self.server.add_tool(self.add, name=f"add{number}")

    async def add(self, a: int, b: int) -> int:
        self.frames = own_frames(sys._getframe(1))
        return a + b

    async def post(self, body: bytes, headers: dict[str, str], sent: list[dict[str, Any]] | None = None) -> bytes:
        given = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": given, "server": ("127.0.0.1", 80)}
        sent = [] if sent is None else sent
        requests = [{"type": "http.request", "body": body}]

        async def receive() -> dict[str, Any]:
            if not requests:
                await asyncio.Event().wait()
            return requests.pop()

        async def send(event: dict[str, Any]) -> None:
            sent.append(event)
            if b"elicitation/create" in event.get("body", b""):
                self.stack = own_folders(sys._getframe(1))

        await self.app(scope, receive, send)
        return said(sent)

    def in_session(self, **message: Any) -> tuple[bytes, dict[str, str]]:
        return posted({"jsonrpc": "2.0", **message}, self.headers)

    async def shake_hands(self) -> None:
        hello = {"protocolVersion": SESSION, "capabilities": {"elicitation": {}}, "clientInfo": INFO}
        sent: list[dict[str, Any]] = []
        await self.post(*self.in_session(id=0, method="initialize", params=hello), sent)
        session = dict(sent[0]["headers"])[b"mcp-session-id"].decode()
        self.headers = {"mcp-protocol-version": SESSION, "mcp-session-id": session}
        await self.post(*self.in_session(method="notifications/initialized"))

    async def call_and_answer(self, id: int) -> bytes:
        """A call that asks: what it is asked is answered by another request."""
        sent: list[dict[str, Any]] = []
        request = self.in_session(id=id, method="tools/call", params={"name": "sure", "arguments": {}})
        calling = asyncio.create_task(self.post(*request, sent))
        async with asyncio.timeout(5):
            while (question := re.search(rb'"id":"(dovetail-\w+)"', said(sent))) is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        answer = {"action": "accept", "content": {"value": True}}
        await self.post(*self.in_session(id=question[1].decode(), result=answer))
        return await calling


def said(sent: list[dict[str, Any]]) -> bytes:
    return b"".join(event.get("body", b"") for event in sent)


def own_folders(frame: FrameType | None) -> list[str]:
    """The folders that a stack passes, outermost first."""
    folders: list[str] = []
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if frame.f_code.co_name == "sure" or file.is_relative_to(PACKAGE):
            folder = "the tool" if frame.f_code.co_name == "sure" else file.relative_to(PACKAGE).parts[0]
            if folders[-1:] != [folder]:
                folders.append(folder)
        frame = frame.f_back
    return folders[::-1]


def modern_call() -> tuple[bytes, dict[str, str]]:
    return posted(modern("tools/call", CALL), mirrored("tools/call", "add"))


def posted(message: dict[str, Any], headers: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    body = json.dumps(message).encode()
    usual = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body))}
    return body, {**usual, "accept": "application/json, text/event-stream", **headers}


def as_request(body: bytes, headers: dict[str, str]) -> bytes:
    lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize(("tools", "has_session", "functions"), [(1, False, 60), (500, False, 60), (1, True, 90)])
async def test_in_another_server(tools: int, has_session: bool, functions: int) -> None:
    """A call in a session outlives its connection, so that it has a task of its own."""
    probe = Probe(tools)
    request = modern_call()
    if has_session:
        await probe.shake_hands()
        request = probe.in_session(id=1, method="tools/call", params=CALL)
    first = await probe.post(*request)
    with functions_called() as called, tasks_made() as tasks:
        assert await probe.post(*request) == first
    assert json.loads(first)["result"]["content"][0]["text"] == "3"
    assert len(probe.frames) <= FRAMES or has_session, probe.frames
    assert len(tasks) == has_session
    assert len(called) <= functions, called
    await probe.app.drain()


async def test_in_our_own() -> None:
    probe = Probe()
    state = ServerState(probe.app, HttpOptions())
    line = Line(state.new_protocol())
    request = as_request(*modern_call())
    await line.feed([request])
    await line.settle()
    written = len(line.written)
    with functions_called() as called, tasks_made() as tasks:
        await line.feed([request])
        await asyncio.sleep(0)  # one turn is all it takes
    assert len(line.written) == written + 1, "head and body go out together"
    assert line.written[-1].endswith(b"}")
    assert len(probe.frames) <= FRAMES + 1, probe.frames
    assert len(tasks) == 1
    assert len(called) <= 85, called
    line.close()
    await probe.app.drain()
    await state.close(0.0)


async def test_a_question_in_a_session() -> None:
    """From the call to its answer, by way of the client's own, with a state in memory."""
    probe = Probe()

    @probe.server.tool
    async def sure(ctx: Context) -> str:
        answer = await ctx.elicit("Sure?", bool)
        return f"{answer.action}ed"

    await probe.shake_hands()
    await probe.call_and_answer(1)
    for id in range(2, 22):
        with places_visited() as visited:
            assert b"accepted" in await probe.call_and_answer(id)
        if len(visited) <= FUNCTIONS:  # more are visited by a call that takes its time, as on a busy machine
            break
    assert len({file for file, _, _ in visited}) <= 31
    assert len(visited) <= FUNCTIONS
    assert [name for _, name, _ in visited].count("request_input") == 1
    assert probe.stack == ["transports", "engine", "the tool", "engine", "transports"]
    await probe.app.drain()
