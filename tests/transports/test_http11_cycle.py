"""Responses of an app on our own HTTP, by `send` or in one piece: what is refused, and where each of them ends."""

import asyncio
import contextvars
import email.utils
import gc
import json
import logging
import re
import time
from typing import Any

import pytest
from http11_connection import Line, Reply, line_to, replies, wire_to

from dovetail import Context, Server
from dovetail.transports.http.asgi import FAST_PATH
from dovetail.transports.http.response import CHUNK_BYTES
from dovetail.transports.http11.protocol import http_date
from http_serving import Stage, serving, until
from http_wire import BOTH, META, MODERN, HttpWire, text_of

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OLD = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
HEAD = b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\n"
EXPECTING = b"POST / HTTP/1.1\r\nContent-Length: 6\r\nExpect: 100-continue\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


def start(status: Any = 200, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes = b"", more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def length(number: int) -> tuple[bytes, bytes]:
    return (b"content-length", b"%d" % number)


def saying(*messages: dict[str, Any]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    return app


OK = saying(start(200, length(2)), body(b"ok"))


def answering(status: Any = 200, *headers: Any, body: bytes = b"ok") -> Any:
    """An app that takes what is at hand and answers in one piece, or by `send` where that is not possible."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        app.bodies.append(scope["extensions"][FAST_PATH].body())
        app.taken.append(scope["extensions"][FAST_PATH].respond(status, list(headers), body))
        if not app.taken[-1]:
            await saying(start(200, length(4)), {"type": "http.response.body", "body": b"sent"})(scope, receive, send)

    app.bodies, app.taken = [], []
    return app


async def reply_to(app: Any, data: bytes = GET) -> tuple[Reply, Line]:
    line = await line_to(app, data)
    (reply,) = replies(line.said, [data.split()[0].decode()])
    return reply, line


BAD_HEADS: dict[str, tuple[Any, list[tuple[Any, Any]]]] = {
    "a line break in a value": (200, [(b"x-a", b"b\r\nx-evil: 1")]),
    "NUL in a value": (200, [(b"x-a", b"\0evil")]),
    "a line break in a name": (200, [(b"x-a: b\r\nx-evil", b"1")]),
    "a colon in a name": (200, [(b"x-a: b", b"1")]),
    "an empty name": (200, [(b"", b"evil")]),
    "text for bytes": (200, [("x-a", "evil")]),
    "an interim status": (100, []),
    "no status": (None, []),
    "a status beyond": (600, []),
    "a line break in connection": (200, [(b"connection", b"close\r\nx-evil: 1")]),
    "a line break in date": (200, [(b"date", b"now\r\nx-evil: 1")]),
    "two lengths": (200, [length(2), length(2)]),
    "a signed length": (200, [(b"content-length", b"+2")]),
    "an empty length": (200, [(b"content-length", b"")]),
    "an endless length": (200, [(b"content-length", b"1" * 19)]),
}
BAD_WHOLE: dict[str, tuple[Any, list[tuple[Any, Any]]]] = {
    **BAD_HEADS,
    "a length, written large": (200, [(b"Content-Length", b"2")]),
    "a coding": (200, [(b"transfer-encoding", b"chunked")]),
    "a word on the connection": (200, [(b"connection", b"close")]),
    "a date": (200, [(b"date", b"evil")]),
}


async def failing(scope: Any, receive: Any, send: Any) -> None:
    raise ValueError("an evil detail")


FAILURES: dict[str, Any] = {
    **{
        f"{case}, by send": saying(start(status, *headers), body(b"ok"))
        for case, (status, headers) in BAD_HEADS.items()
    },
    **{f"{case}, in one piece": answering(status, *headers) for case, (status, headers) in BAD_WHOLE.items()},
    "a failure": failing,
    "a body first": saying(body(b"ok")),
    "two starts": saying(start(200, length(2)), start(200, length(2))),
    "no body": saying(start(200, length(2))),
    "no body of a 304": saying(start(304, length(2))),
    "too long": saying(start(200, length(1)), body(b"ok")),
    "too short": saying(start(200, length(3)), body(b"ok")),
    "nothing": saying(),
    "unknown": saying(start(200, length(2)), {"type": "http.response.trailers"}),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_a_failure_is_a_500_as_long_as_nothing_is_out(case: str, caplog: pytest.LogCaptureFixture) -> None:
    line = await line_to(FAILURES[case], GET, GET)
    found = [(reply.status, json.loads(reply.body)["error"]["code"]) for reply in replies(line.said, ["GET"] * 2)]
    assert (found, line.ended, b"evil" in line.said) == ([(500, -32603)] * 2, False, False)
    assert "the response to a request was not completed" in caplog.text
    assert (case == "a failure") <= ("an evil detail" in caplog.text)


CUT_SHORT: dict[str, list[dict[str, Any]]] = {
    "no end of a stream": [start(), body(b"begun", more=True)],
    "nothing of a stream": [start()],
    "too much of a length": [start(200, length(9)), body(b"begun", more=True), body(b"12345")],
    "too little of a length": [start(200, length(9)), body(b"begun", more=True), body(b"1")],
}


@pytest.mark.parametrize("case", CUT_SHORT)
async def test_what_is_out_already_is_cut_short(case: str) -> None:
    line = await line_to(saying(*CUT_SHORT[case]), GET)
    assert (line.closed, line.said.count(b"HTTP/1.1"), line.said.endswith(b"0\r\n\r\n")) == (True, 1, False)


# ── where a response ends ──


@pytest.mark.parametrize("app", [OK, answering(200, body=b"ok")])
async def test_a_whole_response_is_one_write(app: Any) -> None:
    reply, line = await reply_to(app)
    assert len(line.written) == 1
    assert (reply.status, reply.body, reply.header(b"content-length")) == (200, b"ok", b"2")
    assert reply.header(b"date") is not None


@pytest.mark.parametrize("framed", [True, False])
async def test_an_old_client_sees_the_end_of_a_body_by_the_end_of_the_connection(framed: bool) -> None:
    messages = [start(200, *([length(7)] if framed else [])), body(b"begun", more=True), body(b"ok")]
    reply, line = await reply_to(saying(*messages), OLD)
    assert (reply.body, line.ended, reply.header(b"connection")) == (b"begunok", True, b"close")
    assert reply.header(b"transfer-encoding") is None


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize(
    "app", [lambda s: saying(start(s), body(b"ok")), lambda s: saying(start(s, length(2)), body(b"ok")), answering]
)
async def test_a_bodiless_status_has_no_body(status: int, app: Any) -> None:
    line = await line_to(app(status), GET, GET)
    first, second = replies(line.said, ["GET", "GET"])
    assert (first.status, second.status) == (status, status)
    assert first.header(b"content-length") in (None, *([b"2"] if status == 304 else []))


def test_the_date() -> None:
    for seconds in range(0, 2_000_000_000, 12_345_678):
        assert http_date(time.gmtime(seconds)).decode() == email.utils.formatdate(seconds, usegmt=True)


# ── the body of the request ──


@pytest.mark.parametrize(
    "data", [POST + b"abcdef", CHUNKED + b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n", EXPECTING + b"abcdef"]
)
async def test_a_body_that_is_here_comes_in_one_piece(data: bytes) -> None:
    app = answering()
    line = await line_to(app, data, data)
    assert (app.bodies, app.taken) == ([b"abcdef"] * 2, [True] * 2)
    assert not line.ended
    assert b"100 Continue" not in line.said


@pytest.mark.parametrize("data", [POST + b"abc", CHUNKED + b"3\r\nabc\r\n", EXPECTING])
async def test_a_body_that_is_not_all_here_is_received(data: bytes) -> None:
    received = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received.append(scope["extensions"][FAST_PATH].body())
        while (message := await receive())["more_body"]:
            received.append(message["body"])
        received.append(message["body"])
        assert scope["extensions"][FAST_PATH].body() is None  # it is taken
        assert scope["extensions"][FAST_PATH].respond(200, [], b"ok")

    rest = b"3\r\ndef\r\n0\r\n\r\n" if b"chunked" in data else b"abcdef" if data == EXPECTING else b"def"
    line = await line_to(app, data, rest)
    assert (received[0], b"".join(received[1:])) == (None, b"abcdef")
    assert line.said.count(b"100 Continue") == (data == EXPECTING)
    assert replies(line.said, ["POST"])[0].body == b"ok"


@pytest.mark.parametrize("app", [saying(start(413, length(2)), body(b"no")), answering(413)])
async def test_a_body_that_was_not_asked_for_ends_the_connection(app: Any) -> None:
    """It may come or not; what comes may not be taken for the next request, nor the next request for it."""
    line = await line_to(app, EXPECTING)
    assert (line.half_closed, line.closed) == (True, False)
    await line.say(b"abcdef", GET)
    (reply,) = replies(line.said, ["POST"])
    assert reply.header(b"connection") == b"close"


async def test_a_response_that_has_begun_is_not_interrupted() -> None:
    """An app that streams waits for a disconnect, by `receive`; a 100 Continue would stand amidst the stream."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        waiting = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        await send(body(b"ok"))
        waiting.cancel()

    reply, line = await reply_to(app, EXPECTING)
    assert b"100 Continue" not in line.said
    assert (reply.body, reply.header(b"connection"), line.ended) == (b"ok", b"close", True)


@pytest.mark.parametrize("rest", [GET, b"GARBAGE\r\n\r\n", b"\0" * 100])
async def test_what_follows_the_last_request_is_ignored(rest: bytes) -> None:
    last = GET.replace(b"Host: x", b"Connection: close")
    for pieces in ([last + rest], [last, rest], [OLD + rest]):
        line = await line_to(OK, *pieces)
        (reply,) = replies(line.said, ["GET"])
        assert (reply.status, reply.body, line.ended) == (200, b"ok", True)


# ── a client that does not read, or disconnects ──


async def test_while_the_client_does_not_read_it_goes_by_send_which_waits() -> None:
    app = answering()
    line = wire_to(app)
    line.protocol.pause_writing()
    await line.say(GET)
    assert (app.taken, line.said) == ([False], b"")
    line.protocol.resume_writing()
    await line.settle()
    assert replies(line.said, ["GET"])[0].body == b"sent"


async def test_a_response_after_the_client_left_goes_nowhere() -> None:
    go_on = asyncio.Event()
    taken = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await go_on.wait()
        taken.append(scope["extensions"][FAST_PATH].respond(200, [], b"late"))
        await OK(scope, receive, send)

    line = await line_to(app, GET)
    await line.hang_up()
    go_on.set()
    await line.settle()
    assert (taken, line.said, dict(line.protocol.state.tasks)) == ([False], b"", {})


async def test_a_client_that_left_in_this_moment_is_not_written_to(caplog: pytest.LogCaptureFixture) -> None:
    """The loop tells us a little later; till then an app may have much to say, and each word would be complained of."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        line.close()
        for _ in range(10):
            await send(body(b"x", more=True))
        await send(body())

    line = wire_to(app)  # whose `write` fails after its end
    await line.say(GET)
    assert len(line.written) == 1
    assert not caplog.records
    assert not line.protocol.state.tasks


# ── requests and each other ──


async def test_requests_do_not_see_each_others_context() -> None:
    seen: contextvars.ContextVar[int] = contextvars.ContextVar("seen", default=0)
    values = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        values.append(seen.get())
        seen.set(seen.get() + 1)
        await OK(scope, receive, send)

    await line_to(app, GET + GET, GET)
    assert values == [0, 0, 0]


FORWARDED = b"GET / HTTP/1.1\r\nX-Forwarded-For: 1.1.1.1, 203.0.113.9\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "trusted", "line"),
    [
        (b'GET /%0A"x?secret HTTP/1.1\r\n\r\n', [], '192.0.2.1:5000 - "GET /%0A%22x HTTP/1.1" 500'),
        (b"GARBAGE\r\n\r\n", [], '192.0.2.1:5000 - "-" 400'),
        ("GET /é HTTP/1.1\r\n\r\n".encode(), [], '192.0.2.1:5000 - "-" 400'),
        (b"GET /?secret HTTP/1.1\r\n" + b"X-A: b\r\n" * 200 + b"\r\n", [], '192.0.2.1:5000 - "-" 431'),
        (CHUNKED + b"nonsense\r\n", [], '192.0.2.1:5000 - "POST / HTTP/1.1" 400'),
        (FORWARDED, [], '192.0.2.1:5000 - "GET / HTTP/1.1" 500'),
        (FORWARDED, ["192.0.2.1"], '203.0.113.9 - "GET / HTTP/1.1" 500'),
        (GET, ["192.0.2.1"], '192.0.2.1:5000 - "GET / HTTP/1.1" 500'),
    ],
)
async def test_the_access_log(data: bytes, trusted: list[str], line: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dovetail.access"):
        await line_to(saying(start(200, length(2))), data)
        assert not [each for each in caplog.records if each.name == "dovetail.access"]
        await line_to(saying(start(200, length(2))), data, access_log=True, trusted_proxies=trusted)
    assert [each.getMessage() for each in caplog.records if each.name == "dovetail.access"] == [line]


@pytest.mark.slow
@pytest.mark.parametrize("ends", [True, False], ids=["a connection", "a request"])
@pytest.mark.parametrize("data", [b"", b"GET", GET, POST + b"abc", HEAD, GET * 5, GET * 90, b"GARBAGE\r\n\r\n"])
async def test_nothing_is_left_to_the_garbage_collector(data: bytes, ends: bool) -> None:
    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        line = await line_to(waiting if ends else answering(), data)
        if ends:
            await line.hang_up()
            line.protocol = None
        gc.collect()
        left = {type(each).__name__ for each in gc.garbage if type(each).__module__.startswith("dovetail")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == set()


# ── a server behind it ──


def call(tool: str, arguments: dict[str, Any], path: str = "/mcp", **headers: str) -> bytes:
    params = {"name": tool, "arguments": arguments, **({} if headers else {"_meta": META})}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    modern = {"Mcp-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool}
    fields = {"Host": "localhost", "Content-Type": "application/json", "Accept": BOTH, **(headers or modern)}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def ask(app: Any, *pieces: bytes) -> Reply:
    line = wire_to(app)
    await line.feed(pieces)
    await until(lambda: line.said)
    await line.settle()
    (reply,) = replies(line.said, ["POST"])
    assert (reply.status, line.ended) == (200, False)
    await line.hang_up()
    return reply


async def test_a_call_of_any_size_and_an_app_between_that_is_not_passed_by() -> None:
    server = Server("whole")
    server.add_tool(lambda text: text, name="repeat")

    async def stamping(scope: Any, receive: Any, send: Any) -> None:
        async def stamped(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-stamp", b"1")]
            await send(message)

        await app(scope, receive, stamped)

    outer = Server("outer").asgi(allowed_hosts=["localhost"], routes={"/inner/*": stamping})
    async with serving(server, allowed_hosts=["localhost"], max_body_bytes=1_000_000) as app:
        for size in (3, CHUNK_BYTES - 1000, 900_000):
            data = call("repeat", {"text": "x" * size})
            for piece in (len(data), 50_000):
                reply = await ask(app, *(data[at : at + piece] for at in range(0, len(data), piece)))
                assert json.loads(reply.body)["result"]["content"][0]["text"] == "x" * size
        assert (await ask(outer, call("repeat", {"text": "x"}, "/inner/mcp"))).header(b"x-stamp") == b"1"
        await outer.drain(0)


async def test_a_call_of_a_session_outlives_its_connection_or_lets_go_of_it() -> None:
    stage = Stage()

    @stage.server.tool
    async def poll(ctx: Context) -> str:
        await ctx.warning("before")
        await ctx.close_stream(0)
        await stage.go.wait()
        return "polled"

    async with serving(stage.server) as app:
        client = await HttpWire.session(app)
        headers = {"Mcp-Session-Id": str(client.session_id), "Mcp-Protocol-Version": client.version}

        async def rest(line: Line) -> list[str]:
            stage.go.set()
            event_id = re.findall(rb"id: (\S+)", line.said)[-1].decode()
            answers = (await client.get(event_id).done()).messages
            return [each["params"]["data"] if "method" in each else text_of(each) for each in answers]

        line = await line_to(app, call("warn", {}, **headers))
        await until(lambda: b"first" in line.said)
        await line.hang_up()
        assert await rest(line) == ["second", "warned"]
        stage.go.clear()
        line = await line_to(app, call("poll", {}, **headers))
        await until(lambda: line.said.endswith(b"0\r\n\r\n"))
        await line.feed([call("add", {"a": 1, "b": 2}, **headers).replace(b'"id": 1', b'"id": 2')])
        await until(lambda: b'"text":"3"' in line.said)
        assert await rest(line) == ["polled"]
        await line.hang_up()
