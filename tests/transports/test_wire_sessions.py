"""Calls of a session over connections: they outlive them, in our own HTTP as in a host's, wherever they run."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from wire_line import Line, replies, uvicorn_to, wire_to

from dovetail import Context
from dovetail.protocol.sse import Event, SseDecoder
from http_serving import Stage, endpoint_of, serving, until

VERSION = "2025-11-25"
HELLO = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "line", "version": "1"}}
Connect = Callable[[Any], Line]

pytestmark = [
    pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging"),
    pytest.mark.parametrize("connect", [wire_to, uvicorn_to]),
]


class Client:
    """A session; each of its requests goes by a connection of its own, unless one is given."""

    def __init__(self, app: Any, connect: Connect) -> None:
        self.app = app
        self.connect = connect
        self.session = ""

    @classmethod
    async def of(cls, app: Any, connect: Connect) -> "Client":
        client = cls(app, connect)
        hello = await client.send({"id": 1, "method": "initialize", "params": HELLO})
        await until(lambda: b"\r\n\r\n" in hello.said)
        client.session = str(replies(hello.said, ["POST"])[0].header(b"mcp-session-id"), "ascii")
        await client.send({"method": "notifications/initialized"})
        return client

    async def send(self, message: Any) -> Line:
        return await self.request("POST", json.dumps({"jsonrpc": "2.0", **message}).encode())

    async def request(self, verb: str, body: bytes = b"", line: Line | None = None, **headers: str) -> Line:
        line = line or self.connect(self.app)
        fields = {"Host": "localhost:8000", "Accept": "application/json, text/event-stream", **headers}
        if self.session:
            fields |= {"Mcp-Session-Id": self.session, "Mcp-Protocol-Version": VERSION}
        if body:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        await line.feed([f"{verb} /mcp HTTP/1.1\r\n{head}\r\n".encode() + body])
        await line.settle()
        return line

    async def call(self, id: int, tool: str) -> Line:
        return await self.send({"id": id, "method": "tools/call", "params": {"name": tool}})

    async def resume(self, id: str | None) -> Line:
        assert id is not None
        line = await self.request("GET", **{"Last-Event-ID": id})
        await until(lambda: line.said.endswith(b"\r\n0\r\n\r\n"))
        return line


def events(line: Line) -> list[Event]:
    """Those that have come so far."""
    (reply,) = replies(line.said if line.said.endswith(b"0\r\n\r\n") else line.said + b"0\r\n\r\n", ["POST"])
    return list(SseDecoder(max_bytes=1 << 20).feed(reply.body))


def texts(line: Line) -> list[str]:
    """Of log messages and results."""
    messages = [json.loads(event.data) for event in events(line) if event.data]
    return [
        message["params"]["data"] if "method" in message else message["result"]["content"][0]["text"]
        for message in messages
    ]


async def test_who_leaves_comes_back_for_the_rest(connect: Connect) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        client = await Client.of(app, connect)
        line = await client.call(2, "tell")
        await until(lambda: texts(line) == ["first"])
        id = events(line)[-1].id
        await line.hang_up()
        stage.go.set()
        await until(lambda: not endpoint_of(app)._calls.here)
        assert texts(await client.resume(id)) == ["second", "told"]


async def test_a_call_lets_go_of_its_connection_which_serves_the_next_request(connect: Connect) -> None:
    stage = Stage()

    @stage.server.tool
    async def poll(ctx: Context) -> str:
        await ctx.warning("before")
        await ctx.close_stream(0)
        await stage.go.wait()
        return "polled"

    async with serving(stage.server) as app:
        client = await Client.of(app, connect)
        line = await client.call(2, "poll")
        await until(lambda: line.said.endswith(b"0\r\n\r\n"))
        assert texts(line) == ["before"]
        id = [event.id for event in events(line) if event.id][-1]
        line.written.clear()
        await client.request("POST", b'{"jsonrpc":"2.0","id":3,"method":"ping"}', line)
        await until(lambda: b'"id":3' in line.said)
        stage.go.set()
        assert texts(await client.resume(id)) == ["polled"]
        await line.hang_up()
