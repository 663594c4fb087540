"""The floor: the least that an HTTP server in Python can do to answer the same requests with the same JSON.

Bare ASGI. The body is decoded into typed structs, the function awaited, the answer encoded; no header is looked at, no
error is handled, and no session is kept. Its answers are Dovetail's, byte for byte.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
from benchmarks.servers.offered import IMAGE, SESSIONS, STEPS, TEXT, TOOL, add, add_in_thread

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


class Arguments(msgspec.Struct):
    a: int = 0
    b: int = 0


class Params(msgspec.Struct):
    arguments: Arguments = msgspec.field(default_factory=Arguments)


class Request(msgspec.Struct):
    method: str
    id: int | str | None = None
    params: Params | None = None


decode = msgspec.json.Decoder(Request).decode
encode = msgspec.json.Encoder().encode
SERVER = {"name": "bench", "version": "1.0.0"}
MODERN = {"io.modelcontextprotocol/serverInfo": SERVER}
INITIALIZED = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": SERVER}
JSON, EVENTS = (b"content-type", b"application/json"), (b"content-type", b"text/event-stream")
STREAM: Message = {"type": "http.response.start", "status": 200, "headers": [EVENTS]}


async def added(arguments: Arguments) -> dict[str, Any]:
    return number(await add(arguments.a, arguments.b))


async def added_in_thread(arguments: Arguments) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    return number(await loop.run_in_executor(None, add_in_thread, arguments.a, arguments.b))


async def large_text(_: Arguments) -> dict[str, Any]:
    return finished({"type": "text", "text": TEXT})


async def large_image(_: Arguments) -> dict[str, Any]:
    return finished({"type": "image", "data": IMAGE, "mimeType": "image/png"})


def number(value: int) -> dict[str, Any]:
    content = [{"type": "text", "text": str(value)}]
    if SESSIONS:
        return {"content": content, "structuredContent": {"result": value}, "isError": False}
    return {
        "resultType": "complete",
        "content": content,
        "structuredContent": value,
        "isError": False,
        "_meta": MODERN,
    }


def finished(block: dict[str, Any]) -> dict[str, Any]:
    return {"resultType": "complete", "content": [block], "isError": False, "_meta": MODERN}


ANSWERS = {"add": added, "add_in_thread": added_in_thread, "text": large_text, "image": large_image}
call = ANSWERS.get(TOOL, added)


async def app(scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
    if scope["type"] != "http":
        return
    message = await receive()
    body = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    request = decode(body)
    if request.params is None or request.id is None:
        await respond(send, b"", 202)
    elif request.method == "initialize":
        await respond(send, encode({"jsonrpc": "2.0", "id": request.id, "result": INITIALIZED}), session=b"floor")
    elif TOOL == "count":
        await stream(send, request.id)
    else:
        result = await call(request.params.arguments)
        await respond(send, encode({"jsonrpc": "2.0", "id": request.id, "result": result}))


async def respond(send: Send, body: bytes, status: int = 200, session: bytes | None = None) -> None:
    headers = [JSON, (b"content-length", b"%d" % len(body))]
    if session is not None:
        headers.append((b"mcp-session-id", session))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def stream(send: Send, request_id: int | str) -> None:
    await send(STREAM)
    for step in range(1, STEPS + 1):
        params = {"progressToken": 1, "progress": step, "total": STEPS}
        event = encode({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        await send({"type": "http.response.body", "body": b"data: %b\n\n" % event, "more_body": True})
    answer = encode({"jsonrpc": "2.0", "id": request_id, "result": number(STEPS)})
    await send({"type": "http.response.body", "body": b"data: %b\n\n" % answer})
