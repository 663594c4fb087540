"""What our own HTTP offers besides ASGI: bodies and answers in one piece, and where they have to go the usual way."""

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest
from wire_line import Line, Reply, replies, wire_to

from dovetail.server import Server
from dovetail.transports.asgi import WHOLE
from dovetail.transports.response import PIECE

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\n"
EXPECTING = b"POST / HTTP/1.1\r\nContent-Length: 6\r\nExpect: 100-continue\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


def answering(status: int = 200, *headers: tuple[bytes, bytes], body: bytes = b"ok") -> Any:
    """An app that takes what is at hand and answers in one piece, or tells what it was not able to do."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        app.bodies.append(scope["extensions"][WHOLE].body())
        app.taken.append(scope["extensions"][WHOLE].answer(status, list(headers), body))
        if not app.taken[-1]:
            await answer_by_send(send, b"sent")

    app.bodies, app.taken = [], []
    return app


async def answer_by_send(send: Any, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def line_to(app: Any, *pieces: bytes, **options: Any) -> Line:
    line = wire_to(app, **options)
    for piece in pieces:
        await line.feed([piece])
        await line.settle()
    return line


# ── the body ──


@pytest.mark.parametrize(
    "data", [POST + b"abcdef", CHUNKED + b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n", EXPECTING + b"abcdef"]
)
async def test_a_body_that_is_here(data: bytes) -> None:
    app = answering()
    line = await line_to(app, data, data)
    assert (app.bodies, app.taken) == ([b"abcdef"] * 2, [True] * 2)
    assert not line.ended
    assert b"100 Continue" not in line.said


@pytest.mark.parametrize("data", [POST, POST + b"abc", CHUNKED + b"6\r\nabcdef\r\n"])
async def test_a_body_that_is_not_all_here_is_received(data: bytes) -> None:
    bodies = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        whole = scope["extensions"][WHOLE]
        assert whole.body() is None
        pieces = []
        while (message := await receive())["more_body"]:
            pieces.append(message["body"])
            assert whole.body() is None
        bodies.append(b"".join([*pieces, message["body"]]))
        assert whole.body() is None
        assert whole.answer(200, [], b"ok")

    rest = b"0\r\n\r\n" if data.startswith(CHUNKED) else b"abcdef"[len(data) - len(POST) :]
    line = await line_to(app, data, rest, data, rest)
    assert bodies == [b"abcdef", b"abcdef"]
    assert [each.body for each in replies(line.said, ["POST", "POST"])] == [b"ok", b"ok"]


async def test_reading_goes_on_after_a_large_body() -> None:
    app = answering()
    line = wire_to(app)
    size = 300_000
    await line.feed([b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size])
    assert line.paused
    await line.settle()
    assert app.bodies == [b"x" * size]
    assert not line.paused


# ── the answer ──


async def test_an_answer_is_one_write() -> None:
    line = await line_to(answering(201, (b"x-a", b"b")), GET)
    assert len(line.written) == 1
    (reply,) = replies(line.said, ["GET"])
    assert (reply.status, reply.body, reply.header(b"content-length"), reply.header(b"x-a")) == (201, b"ok", b"2", b"b")
    assert reply.header(b"date") is not None
    assert not line.ended


async def test_who_waits_to_be_asked_for_its_body_is_answered_by_send() -> None:
    app = answering()
    line = await line_to(app, EXPECTING)
    await line.feed([b"abcdef", GET])  # the body, or the next request: nobody knows
    (reply,) = replies(line.said, ["POST"])
    assert (app.bodies, app.taken, reply.header(b"connection"), line.ended) == ([None], [False], b"close", True)


async def test_an_answer_before_the_body_is_here() -> None:
    """The rest is thrown away, and the connection goes on."""
    app = answering()
    line = await line_to(app, POST + b"abc", b"def" + GET)
    assert (app.bodies, app.taken) == ([None, b""], [True, True])
    assert [reply.status for reply in replies(line.said, ["POST", "GET"])] == [200, 200]


async def test_while_the_client_does_not_read_it_goes_by_send_which_waits() -> None:
    app = answering()
    line = wire_to(app)
    line.protocol.pause_writing()
    await line.feed([GET])
    await line.settle()
    assert (app.taken, line.said) == ([False], b"")
    line.protocol.resume_writing()
    await line.settle()
    (reply,) = replies(line.said, ["GET"])
    assert reply.body == b"sent"
    await line.hang_up()


async def test_an_answer_after_the_client_left_goes_nowhere() -> None:
    app_goes_on = asyncio.Event()
    taken = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await app_goes_on.wait()
        taken.append(scope["extensions"][WHOLE].answer(200, [], b"late"))
        await answer_by_send(send, b"later")

    line = await line_to(app, GET)
    await line.hang_up()
    app_goes_on.set()
    await line.settle()
    assert (taken, line.said, dict(line.protocol.wire.serving)) == ([False], b"", {})


BAD_ANSWERS: dict[str, tuple[Any, list[tuple[Any, Any]]]] = {
    "a line break in a value": (200, [(b"x-a", b"b\r\nx-evil: 1")]),
    "a line feed in a value": (200, [(b"x-a", b"b\nx-evil: 1")]),
    "NUL in a value": (200, [(b"x-a", b"\0evil")]),
    "a line break in a name": (200, [(b"x-a: b\r\nx-evil", b"1")]),
    "an empty name": (200, [(b"", b"evil")]),
    "text for bytes": (200, [("x-a", "evil")]),
    "a length": (200, [(b"content-length", b"99")]),
    "a length, written large": (200, [(b"Content-Length", b"99")]),
    "a coding": (200, [(b"transfer-encoding", b"chunked")]),
    "a word on the connection": (200, [(b"connection", b"close")]),
    "a date": (200, [(b"date", b"evil")]),
    "an interim status": (100, []),
    "another protocol": (101, []),
    "no status": (None, []),
}


@pytest.mark.parametrize("case", BAD_ANSWERS)
async def test_a_bad_head_is_a_failure(case: str, caplog: pytest.LogCaptureFixture) -> None:
    status, headers = BAD_ANSWERS[case]
    line = await line_to(answering(status, *headers), GET, GET)
    assert [reply.status for reply in replies(line.said, ["GET"] * 2)] == [500, 500]
    assert b"evil" not in line.said
    assert "a request was not answered to its end" in caplog.text


# ── what is left behind ──


@pytest.fixture
def garbage() -> Iterator[list[Any]]:
    """What only the collector would find, after it was called."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.garbage.clear()
    try:
        yield gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def ours(garbage: list[Any]) -> set[str]:
    return {type(each).__name__ for each in garbage if type(each).__module__.startswith("dovetail")}


async def test_a_request_leaves_no_circle(garbage: list[Any]) -> None:
    line = wire_to(answering())
    for data in (GET, POST + b"abcdef", HEAD, GET + GET, EXPECTING + b"abcdef"):
        await line.feed([data])
        await line.settle()
    gc.collect()
    assert ours(garbage) == set()
    await line.hang_up()


@pytest.mark.parametrize("data", [b"", b"GET", GET, POST + b"abc", GET * 5, GET * 30, b"GARBAGE\r\n\r\n"])
async def test_a_connection_leaves_no_circle(garbage: list[Any], data: bytes) -> None:
    """Each may hold much, and the collector comes when it wants."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    line = await line_to(app, data)
    await line.hang_up()
    line.protocol = None
    gc.collect()
    assert ours(garbage) == set()


# ── a server behind it ──

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
