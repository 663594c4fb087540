"""What becomes of the answers of an app: what may not go out is refused, and the client can tell where each ends."""

import asyncio
import contextvars
import logging
from typing import Any

import pytest
from wire_line import Line, Reply, replies, wire_to

from dovetail.transports.wire import http_date

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OLD = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
HEAD = b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"
EXPECTING = b"POST / HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"


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


async def line_to(app: Any, *pieces: bytes) -> Line:
    line = wire_to(app)
    await line.feed(pieces)
    await line.settle()
    return line


async def reply_to(app: Any, data: bytes = GET) -> tuple[Reply, Line]:
    line = await line_to(app, data)
    (reply,) = replies(line.said, [data.split()[0].decode()])
    return reply, line


# ── what may not go out ──

BAD_STARTS = {
    "a line break in a value": start(200, (b"x-a", b"b\r\nx-evil: 1")),
    "a line feed in a value": start(200, (b"x-a", b"b\nx-evil: 1")),
    "a carriage return in a value": start(200, (b"x-a", b"b\rx")),
    "NUL in a value": start(200, (b"x-a", b"b\0")),
    "a line break in a name": start(200, (b"x-a: b\r\nx-evil", b"1")),
    "a colon in a name": start(200, (b"x-a: b", b"1")),
    "a blank in a name": start(200, (b"x-a ", b"1")),
    "NUL in a name": start(200, (b"x\0", b"1")),
    "an empty name": start(200, (b"", b"1")),
    "an umlaut in a name": start(200, ("ä".encode("latin-1"), b"1")),
    "a line break in connection": start(200, (b"connection", b"close\r\nx-evil: 1")),
    "a line break in date": start(200, (b"date", b"now\r\nx-evil: 1")),
    "two lengths": start(200, length(2), length(2)),
    "a signed length": start(200, (b"content-length", b"+2")),
    "a length with a blank": start(200, (b"content-length", b" 2")),
    "a length with a line break": start(200, (b"content-length", b"2\r\n")),
    "no length": start(200, (b"content-length", b"")),
    "an endless length": start(200, (b"content-length", b"1" * 5000)),
    "an interim status": start(100),
    "no status": start(None),
    "a status beyond": start(600),
    "text for bytes": start(200, ("x-a", "b")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", BAD_STARTS)
async def test_a_bad_head_is_a_failure(case: str, caplog: pytest.LogCaptureFixture) -> None:
    reply, line = await reply_to(saying(BAD_STARTS[case], body(b"ok")))
    assert (reply.status, line.ended) == (500, False)
    assert b"evil" not in line.said
    assert "a request was not answered to its end" in caplog.text


BAD_ORDERS: dict[str, list[dict[str, Any]]] = {
    "a body first": [body(b"ok")],
    "two starts": [start(200, length(2)), start(200, length(2))],
    "no body": [start(200, length(2))],
    "too long": [start(200, length(1)), body(b"ok")],
    "too short": [start(200, length(3)), body(b"ok")],
    "no end, not begun": [],
    "unknown": [start(200, length(2)), {"type": "http.response.trailers"}],
}


@pytest.mark.parametrize("case", BAD_ORDERS)
async def test_a_bad_order_is_a_failure_as_long_as_nothing_is_out(case: str) -> None:
    reply, line = await reply_to(saying(*BAD_ORDERS[case]))
    assert (reply.status, line.ended) == (500, False)


CUT_SHORT: dict[str, list[dict[str, Any]]] = {
    "no end of a stream": [start(), body(b"begun", more=True)],
    "nothing of a stream": [start()],
    "no end of a length": [start(200, length(9)), body(b"begun", more=True)],
    "too much of a length": [start(200, length(9)), body(b"begun", more=True), body(b"12345")],
    "too little of a length": [start(200, length(9)), body(b"begun", more=True), body(b"1")],
    "a second start": [start(), start()],
}


@pytest.mark.parametrize("case", CUT_SHORT)
async def test_what_is_out_already_is_cut_short(case: str) -> None:
    line = await line_to(saying(*CUT_SHORT[case]), GET)
    assert line.closed
    assert line.said.count(b"HTTP/1.1") == 1
    assert not line.said.endswith(b"0\r\n\r\n")


# ── where an answer ends ──


async def test_a_whole_answer_is_one_write() -> None:
    line = await line_to(saying(start(200, length(2)), body(b"ok")), GET)
    assert len(line.written) == 1


async def test_the_head_of_a_stream_goes_out_at_once() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start(200))
        await receive()
        await receive()

    line = await line_to(app, GET)
    assert line.said.endswith(b"transfer-encoding: chunked\r\n\r\n")
    await line.hang_up()


@pytest.mark.parametrize("framed", [True, False])
async def test_an_old_client_is_told_by_the_end_of_the_connection(framed: bool) -> None:
    messages = [start(200, *([length(7)] if framed else [])), body(b"begun", more=True), body(b"ok")]
    reply, line = await reply_to(saying(*messages), OLD)
    assert (reply.body, line.closed, reply.header(b"connection")) == (b"begunok", True, b"close")
    assert reply.header(b"transfer-encoding") is None


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("headers", [[], [length(2)]])
async def test_a_bodiless_status_has_no_body(status: int, headers: Any) -> None:
    line = await line_to(saying(start(status, *headers), body(b"ok")), GET, GET)
    first, second = replies(line.said, ["GET", "GET"])
    assert (first.status, second.status) == (status, status)
    assert first.header(b"content-length") == (b"2" if headers and status == 304 else None)


async def test_head_has_no_body() -> None:
    line = await line_to(saying(start(200, length(2)), body(b"o", more=True), body(b"k")), HEAD, GET)
    first, second = replies(line.said, ["HEAD", "GET"])
    assert (first.header(b"content-length"), first.body, second.body) == (b"2", b"", b"ok")


def test_the_date() -> None:
    import email.utils
    import time

    for seconds in range(0, 2_000_000_000, 12_345_678):
        assert http_date(time.gmtime(seconds)).decode() == email.utils.formatdate(seconds, usegmt=True)


# ── what is left of the request ──


async def test_a_body_that_nobody_asked_for_ends_the_connection() -> None:
    """It may come or not; what comes may not be taken for the next request, nor the next request for it."""
    line = await line_to(saying(start(413, length(2)), body(b"no")), EXPECTING)
    assert line.half_closed
    await line.feed([b"abc", GET])
    await line.settle()
    (reply,) = replies(line.said, ["POST"])
    assert (reply.status, reply.header(b"connection")) == (413, b"close")


@pytest.mark.parametrize("arrived", [b"", b"abc"])
async def test_a_body_is_asked_for_unless_it_is_there(arrived: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"abc"
        await saying(start(200, length(2)), body(b"ok"))(scope, receive, send)

    line = await line_to(app, EXPECTING + arrived)
    await line.feed([b"abc"] if not arrived else [])
    await line.settle()
    assert line.said.count(b"100 Continue") == (not arrived)
    (reply,) = replies(line.said, ["POST"])
    assert reply.body == b"ok"


async def test_an_answer_that_has_begun_is_not_interrupted() -> None:
    """Who streams waits for the client to leave, by `receive`; a word to go on would stand amidst the stream."""

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
async def test_what_follows_the_last_request_is_nobodys(rest: bytes) -> None:
    last = GET.replace(b"Host: x", b"Connection: close")
    for pieces in ([last + rest], [last, rest], [OLD + rest]):
        line = await line_to(saying(start(200, length(2)), body(b"ok")), *pieces)
        (reply,) = replies(line.said, ["GET"])
        assert (reply.status, reply.body, line.ended) == (200, b"ok", True)


async def test_a_connection_with_an_unread_body_is_closed_gently() -> None:
    data = b"POST / HTTP/1.1\r\nContent-Length: 100\r\nConnection: close\r\n\r\nabc"
    line = await line_to(saying(start(200, length(2)), body(b"ok")), data)
    assert (line.half_closed, line.closed) == (True, False)
    await line.feed([b"x" * 60_000] * 30)
    assert line.closed  # enough is enough


async def test_a_client_that_left_in_this_moment_is_not_written_to(caplog: pytest.LogCaptureFixture) -> None:
    """The loop tells us a little later; till then an app may have much to say, and each word would be complained of."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        line.close()
        for _ in range(10):
            await send(body(b"x", more=True))
        await send(body())

    line = wire_to(app)  # whose `write` fails after its end
    await line.feed([GET])
    await line.settle()
    assert len(line.written) == 1
    assert not caplog.records
    assert not line.protocol.wire.serving


# ── requests and each other ──


async def test_requests_do_not_see_each_others_context() -> None:
    seen: contextvars.ContextVar[int] = contextvars.ContextVar("seen", default=0)
    values = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        values.append(seen.get())
        seen.set(seen.get() + 1)
        await saying(start(200, length(2)), body(b"ok"))(scope, receive, send)

    await line_to(app, GET + GET, GET)
    assert values == [0, 0, 0]


async def test_the_access_log_has_one_line_for_a_replaced_answer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dovetail.access"):
        line = wire_to(saying(start(200, length(2))), access_log=True)
        await line.feed([b'GET /%0A"x?secret HTTP/1.1\r\n\r\n'])
        await line.settle()
    lines = [each.getMessage() for each in caplog.records if each.name == "dovetail.access"]
    assert lines == ['192.0.2.1:5000 - "GET /%0A%22x HTTP/1.1" 500']
