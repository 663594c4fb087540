"""What one `tools/call` costs over HTTP, in frames, functions, tasks and turns of the loop: a coarse regression shows.

Twice: as an ASGI app in somebody's server, and through the HTTP of our own.
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from wire_line import Line

from costs import PACKAGE, functions_called, own_frames, places_visited, tasks_made
from dovetail import Context, Server
from dovetail.transports.http11.protocol import ServerState
from dovetail.transports.options import HttpOptions
from wire import MODERN

META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
CALL = {"name": "add", "arguments": {"a": 1, "b": 2}}
FRAMES = 7  # of ours, from the app to the user's function
SESSION = "2025-11-25"
FUNCTIONS = 168  # of a question in a session; six of them read its stream for the judge of all tests


class Probe:
    """A server whose tool looks up its own stack."""

    def __init__(self, tools: int = 1) -> None:
        self.server = Server("probe", version="1.0.0")
        self.app = self.server.asgi()
        self.frames: list[str] = []
        self.sent: list[dict[str, Any]] = []
        self.server.add_tool(self.add)
        for number in range(1, tools):
            self.server.add_tool(self.add, name=f"add{number}")

    async def add(self, a: int, b: int) -> int:
        self.frames = own_frames(sys._getframe(1))
        return a + b

    async def by_asgi(self, body: bytes, headers: dict[str, str]) -> bytes:
        given = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": given, "server": ("127.0.0.1", 80)}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        self.sent.clear()
        await self.app(scope, receive, send)
        return b"".join(message.get("body", b"") for message in self.sent)


def own_folders(frame: FrameType | None) -> list[str]:
    """The folders that a stack passes, outermost first."""
    folders: list[str] = []
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if frame.f_code.co_name == "sure" or file.is_relative_to(PACKAGE):
            folder = "the tool" if frame.f_code.co_name == "sure" else file.parent.name
            if folders[-1:] != [folder]:
                folders.append(folder)
        frame = frame.f_back
    return folders[::-1]


def modern(method: str, params: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
    return posted(message, headers | ({"mcp-name": params["name"]} if "name" in params else {}))


def posted(message: dict[str, Any], headers: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    body = json.dumps(message).encode()
    usual = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body))}
    return body, {**usual, "accept": "application/json, text/event-stream", **headers}


def as_request(body: bytes, headers: dict[str, str]) -> bytes:
    lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize("tools", [1, 500])
async def test_in_another_server(tools: int) -> None:
    probe = Probe(tools)
    request = modern("tools/call", CALL)
    first = await probe.by_asgi(*request)
    with functions_called() as called, tasks_made() as tasks:
        assert await probe.by_asgi(*request) == first
    assert json.loads(first)["result"]["content"][0]["text"] == "3"
    assert len(probe.frames) <= FRAMES, probe.frames
    assert tasks == []
    assert len(called) <= 60, called
    await probe.app.drain()


async def test_in_a_session() -> None:
    """Its call outlives the connection, so that it has a task of its own."""
    probe = Probe()
    hello = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    await probe.by_asgi(*posted({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}, {}))
    session = dict(probe.sent[0]["headers"])[b"mcp-session-id"].decode()
    headers = {"mcp-protocol-version": SESSION, "mcp-session-id": session}
    request = posted({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL}, headers)
    first = await probe.by_asgi(*request)
    with functions_called() as called, tasks_made() as tasks:
        assert await probe.by_asgi(*request) == first
    assert json.loads(first)["result"]["content"][0]["text"] == "3"
    assert len(tasks) == 1
    assert len(called) <= 90, called
    await probe.app.drain()


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    probe = Probe()
    state = ServerState(probe.app, HttpOptions())
    line = Line(state.new_protocol())
    line.probe = probe  # type: ignore[attr-defined]
    yield line
    line.close()
    await probe.app.drain()
    await state.close(0.0)


async def test_in_our_own(line: Any) -> None:
    request = as_request(*modern("tools/call", CALL))
    await line.feed([request])
    await line.settle()
    written = len(line.written)
    with functions_called() as called, tasks_made() as tasks:
        await line.feed([request])
        await asyncio.sleep(0)  # one turn is all it takes
    assert len(line.written) == written + 1, "head and body go out together"
    assert line.written[-1].endswith(b"}")
    assert len(line.probe.frames) <= FRAMES + 1, line.probe.frames
    assert len(tasks) == 1
    assert len(called) <= 85, called


class AskedClient:
    """A client of a session, by ASGI, which answers what it is asked by another request."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._headers: dict[str, str] = {}
        self.stack: list[str] = []  # the folders of our modules that were at work when the question was sent

    async def post(self, message: dict[str, Any], sent: list[dict[str, Any]]) -> None:
        body, headers = posted({"jsonrpc": "2.0", **message}, self._headers)
        given = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": given, "server": ("127.0.0.1", 80)}
        requests = [{"type": "http.request", "body": body}]

        async def receive() -> dict[str, Any]:
            if not requests:
                await asyncio.Event().wait()
            return requests.pop()

        async def send(event: dict[str, Any]) -> None:
            sent.append(event)
            if b"elicitation/create" in event.get("body", b""):
                self.stack = own_folders(sys._getframe(1))

        await self._app(scope, receive, send)

    async def shake_hands(self) -> None:
        info, sent = {"name": "c", "version": "1"}, list[dict[str, Any]]()
        hello = {"protocolVersion": SESSION, "capabilities": {"elicitation": {}}, "clientInfo": info}
        await self.post({"id": 0, "method": "initialize", "params": hello}, sent)
        session = dict(sent[0]["headers"])[b"mcp-session-id"].decode()
        self._headers = {"mcp-protocol-version": SESSION, "mcp-session-id": session}
        await self.post({"method": "notifications/initialized"}, [])

    async def call(self, id: int) -> bytes:
        sent: list[dict[str, Any]] = []
        call = {"id": id, "method": "tools/call", "params": {"name": "sure", "arguments": {}}}
        calling = asyncio.create_task(self.post(call, sent))
        async with asyncio.timeout(5):
            while (question := re.search(rb'"id":"(dovetail-\w+)"', said(sent))) is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        answer = {"action": "accept", "content": {"value": True}}
        await self.post({"id": question[1].decode(), "result": answer}, [])
        await calling
        return said(sent)


def said(sent: list[dict[str, Any]]) -> bytes:
    return b"".join(event.get("body", b"") for event in sent)


async def test_a_question_in_a_session() -> None:
    """From the call to its answer, by way of the client's own, with a state in memory."""
    probe = Probe()

    @probe.server.tool
    async def sure(ctx: Context) -> str:
        answer = await ctx.elicit("Sure?", bool)
        return f"{answer.action}ed"

    client = AskedClient(probe.app)
    await client.shake_hands()
    await client.call(1)
    for id in range(2, 22):
        with places_visited() as visited:
            assert b"accepted" in await client.call(id)
        if len(visited) <= FUNCTIONS:  # more are visited by a call that takes its time, as on a busy machine
            break
    assert len({file for file, _, _ in visited}) <= 31
    assert len(visited) <= FUNCTIONS
    assert [name for _, name, _ in visited].count("ask") == 1
    assert client.stack == ["transports", "engine", "the tool", "engine", "transports"]
    await probe.app.drain()
