"""The server itself on our own HTTP: calls of any size, and what stands between it and the wire."""

import asyncio
import json
from typing import Any

import pytest
from wire_line import Line, Reply, replies, wire_to

from dovetail.server import Server
from dovetail.transports.response import PIECE

CALL = {"name": "repeat", "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}


def call(size: int, **more: str) -> bytes:
    params = {**CALL, "arguments": {"text": "x" * size}}
    params["_meta"] = {**CALL["_meta"], "io.modelcontextprotocol/clientCapabilities": {}}  # type: ignore[dict-item]
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    headers = {
        "Host": "localhost", "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "repeat", **more,
    }  # fmt: skip
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /mcp HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def repeating() -> Any:
    server = Server("whole")

    @server.tool
    def repeat(text: str) -> str:
        return text

    return server.asgi(allowed_hosts=["localhost"], allowed_origins=["https://page.example"], max_body_bytes=1_000_000)


async def ask(app: Any, *pieces: bytes) -> tuple[Reply, Line]:
    line = wire_to(app)
    await line.feed(pieces)
    for _ in range(500):
        if line.said:
            break
        await asyncio.sleep(0.001)
    await line.settle()
    (reply,) = replies(line.said, ["POST"])
    return reply, line


@pytest.mark.parametrize("size", [3, 40_000, PIECE - 1000, PIECE + 1000, 900_000])
async def test_a_call_of_any_size(size: int) -> None:
    app = repeating()
    try:
        data = call(size)
        for pieces in (
            [data],
            [data[:200], data[200:]],
            [data[at : at + 50_000] for at in range(0, len(data), 50_000)],
        ):
            reply, line = await ask(app, *pieces)
            assert (reply.status, line.ended) == (200, False)
            assert json.loads(reply.body)["result"]["content"][0]["text"] == "x" * size
            await line.hang_up()
    finally:
        await app.drain(0)


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_body_that_is_too_large(at_once: bool) -> None:
    app = repeating()
    try:
        data = call(1_000_001)
        reply, line = await ask(app, *([data] if at_once else [data[:2000]]))
        assert (reply.status, json.loads(reply.body)["error"]["message"][:32]) == (
            413,
            "The body is larger than 1000000 ",
        )
        await line.hang_up()
    finally:
        await app.drain(0)


async def test_who_stands_between_the_wire_and_a_server_is_not_passed_by() -> None:
    inner = repeating()

    async def stamping(scope: Any, receive: Any, send: Any) -> None:
        async def stamped(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-stamp", b"1")]
            await send(message)

        await inner(scope, receive, stamped)

    outer = Server("outer").asgi(allowed_hosts=["localhost"], routes={"/inner/*": stamping})
    try:
        reply, line = await ask(outer, call(3).replace(b"/mcp", b"/inner/mcp", 1))
        assert (reply.status, reply.header(b"x-stamp")) == (200, b"1")
        await line.hang_up()
    finally:
        await outer.drain(0)
        await inner.drain(0)


async def test_headers_that_repeat_what_came_in() -> None:
    app = repeating()
    try:
        reply, line = await ask(app, call(3, Origin="https://page.example"))
        assert reply.header(b"access-control-allow-origin") == b"https://page.example"
        await line.hang_up()
    finally:
        await app.drain(0)
