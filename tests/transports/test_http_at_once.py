"""Calls that never wait are on no record; what a record does for the others holds for them too."""

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from wire_line import replies, wire_to

from dovetail import Context, ProtocolError, Server
from wire import MODERN

JSON_OR_STREAM = "application/json, text/event-stream"
STREAM = "text/event-stream"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/logLevel": "debug",
}
Send = Callable[[dict[str, Any]], Awaitable[None]]


def call_of(tool: str, accept: str = JSON_OR_STREAM) -> tuple[bytes, dict[str, str]]:
    params = {"name": tool, "arguments": {}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    headers = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body))}
    mirrored = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": tool}
    return body, {**headers, **mirrored, "accept": accept}


async def post(app: Any, body: bytes, headers: dict[str, str], send: Send) -> None:
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": given, "server": ("127.0.0.1", 80)}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    await app(scope, receive, send)


@pytest.mark.parametrize("tool", ["quick", "slow"])
async def test_nothing_begins_while_the_server_ends(tool: str) -> None:
    """Who somebody is takes its time to find out, and the server may have ended meanwhile."""
    server, ran, asked = Server("ending"), list[str](), asyncio.Event()

    @server.tool
    async def quick() -> str:
        ran.append("quick")
        return "done"

    @server.tool
    async def slow() -> str:
        ran.append("slow")
        await asyncio.sleep(0.01)
        return "done"

    known = asyncio.Event()

    async def identify(scope: Any) -> str:
        asked.set()
        await known.wait()
        return "me"

    app = server.asgi(identify=identify, allowed_hosts=["localhost"])
    line = wire_to(app)
    body, headers = call_of(tool)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    await line.feed([f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body])
    await asked.wait()
    await app.drain(1.0)
    known.set()
    for _ in range(1000):
        if line.said:
            break
        await asyncio.sleep(0.001)
    await line.settle()
    (reply,) = replies(line.said, ["POST"])
    assert (reply.status, ran) == (503, [])


@pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")
async def test_who_kept_its_context_says_nothing_more() -> None:
    server, kept, sent, running = Server("late"), list[Context](), list[str](), asyncio.Event()

    @server.tool
    async def keep(ctx: Context) -> str:
        kept.append(ctx)
        running.set()
        return "done"

    async def send(message: dict[str, Any]) -> None:
        await asyncio.sleep(0.01)
        sent.append(message["type"])

    app = server.asgi()
    posting = asyncio.create_task(post(app, *call_of("keep", STREAM), send))
    await running.wait()
    posting.cancel()
    await asyncio.wait([posting])
    await kept[0].info("late")
    assert "http.response.body" not in sent  # its start never went out
    await app.drain()


@pytest.mark.parametrize("tool", ["good", "refuses", "missing"])
async def test_no_circle_is_left(tool: str) -> None:
    server = Server("circles")

    @server.tool
    async def good() -> str:
        return "done"

    @server.tool
    async def refuses() -> str:
        raise ProtocolError("no")

    async def send(message: dict[str, Any]) -> None: ...

    app = server.asgi()
    for _ in range(3):
        await post(app, *call_of(tool), send)
    gc.collect()
    gc.disable()
    try:
        gc.set_debug(gc.DEBUG_SAVEALL)
        for _ in range(5):
            await post(app, *call_of(tool), send)
        gc.collect()
        left = [type(each).__name__ for each in gc.garbage if type(each).__module__.startswith("dovetail")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []
    await app.drain()
