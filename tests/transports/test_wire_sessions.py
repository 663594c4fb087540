"""Calls of a session over connections: they outlive them, in our own HTTP as in a host's, wherever they run."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from wire_line import Line, uvicorn_to, wire_to

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
        hello = await client.ask(1, "initialize", HELLO)
        client.session = _head(hello.said)["mcp-session-id"]
        await client.notify("notifications/initialized")
        return client

    async def send(self, message: Any, line: Line | None = None) -> Line:
        return await self.request("POST", json.dumps({"jsonrpc": "2.0", **message}).encode(), line)

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

    async def ask(self, id: int, method: str, params: Any) -> Line:
        line = await self.send({"id": id, "method": method, "params": params})
        await until(lambda: b"\r\n\r\n" in line.said)
        return line

    async def call(self, id: int, tool: str, line: Line | None = None) -> Line:
        return await self.send({"id": id, "method": "tools/call", "params": {"name": tool}}, line)

    async def notify(self, method: str, **params: Any) -> Line:
        return await self.send({"method": method, "params": params})

    async def resume(self, id: str | None) -> Line:
        assert id is not None
        line = await self.request("GET", **{"Last-Event-ID": id})
        await until(lambda: line.said.endswith(b"\r\n0\r\n\r\n"))
        return line


def _head(said: bytes) -> dict[str, str]:
    lines = said.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}


def events(line: Line) -> list[Event]:
    """Those that have come so far."""
    decoder = SseDecoder(max_bytes=1 << 20)
    _, _, rest = line.said.partition(b"\r\n\r\n")
    found: list[Event] = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            break
        found += decoder.feed(rest[:length])
        rest = rest[length + 2 :]
    return found


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


async def test_a_cancelled_call_ends_and_its_connection_goes_on(connect: Connect) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        client = await Client.of(app, connect)
        line = await client.call(2, "work")
        await stage.entered.wait()
        await client.notify("notifications/cancelled", requestId=2)
        await until(lambda: line.said.endswith(b"0\r\n\r\n"))
        assert stage.cancelled.is_set()
        assert texts(line) == []
        stage.go.set()
        line.written.clear()
        await client.call(3, "work", line)
        await until(lambda: b"done" in line.said)
        await line.hang_up()


async def test_a_drain_waits_for_a_call_whose_client_has_left(connect: Connect) -> None:
    stage = Stage()
    async with serving(stage.server) as app:
        client = await Client.of(app, connect)
        line = await client.call(2, "work")
        await stage.entered.wait()
        await line.hang_up()
        drain = asyncio.create_task(app.drain(5))
        await line.settle()
        assert not drain.done()
        stage.go.set()
        await drain
        assert not stage.cancelled.is_set()


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
