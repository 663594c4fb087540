"""Limits of a connection: pipelined requests, too many connections, slow clients, disconnects; and its end."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import http11_connection
import pytest
from http11_connection import Line, Reply, replies, server_state

from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http11.protocol import MAX_PIPELINED, MAX_REFUSED_CONNECTIONS, HttpProtocol
from dovetail.transports.serve import HttpService, bind, port_of

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
GATE = b"GET /gate HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE = b"POST /refuse HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"


class App:
    """Answers with the query and the body; `/gate` waits for `go`, `/stream` for its client to disconnect."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.entered: list[str] = []
        self.left: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.entered.append(path)
        if path.startswith("/gate"):
            await self.go.wait()
        if path == "/stream":
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        said, more = scope["query_string"], not path.endswith("/refuse")
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.append(path)
                return
            said += message["body"]
            more = message["more_body"] or path == "/stream"
        headers = [(b"content-length", b"%d" % len(said))]
        await send(
            {"type": "http.response.start", "status": 413 if path.endswith("/refuse") else 200, "headers": headers}
        )
        await send({"type": "http.response.body", "body": said})

    async def start(self) -> None: ...
    def begin_drain(self) -> None: ...
    async def drain(self, timeout: float | None = None) -> None: ...


async def line_to(*pieces: bytes, **options: Any) -> tuple[Line, App]:
    app = App()
    return await http11_connection.line_to(app, *pieces, **options), app


def answers(line: Line) -> list[Reply]:
    return replies(line.said, ["GET"] * 500)


# ── pipelined requests ──


def numbered(count: int) -> list[bytes]:
    return [
        b"POST /a?%d HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (at, at % 7, b"x" * (at % 7)) for at in range(count)
    ]


async def test_pipelined_requests_are_answered_in_order() -> None:
    line, app = await line_to(GATE + b"".join(numbered(MAX_PIPELINED - 1)))
    assert (line.said, app.entered) == (b"", ["/gate"])
    app.go.set()
    await line.settle(20)
    assert [reply.body for reply in answers(line)[1:]] == [
        b"%d%b" % (at, b"x" * (at % 7)) for at in range(MAX_PIPELINED - 1)
    ]
    line.written.clear()
    await line.say(GET)  # and the connection goes on
    assert answers(line)[0].status == 200


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_connection_ends_with_the_last_request_that_may_be_pipelined(at_once: bool) -> None:
    pieces = numbered(3 * MAX_PIPELINED)
    line, app = await line_to(GATE, *([b"".join(pieces)] if at_once else pieces))
    app.go.set()
    await line.settle(20)
    assert (len(answers(line)), line.half_closed) == (MAX_PIPELINED + 1, True)
    assert [reply.header(b"connection") for reply in answers(line)[-2:]] == [None, b"close"]


BEHIND = {
    "bodies": b"POST /a HTTP/1.1\r\nContent-Length: 30000\r\n\r\n" + b"x" * 30_000,
    "headers": b"GET /a HTTP/1.1\r\nX-A: " + b"x" * 30_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("case", BEHIND)
async def test_little_is_buffered_of_pipelined_requests(case: str) -> None:
    line, app = await line_to(GATE)
    taken = await line.feed([BEHIND[case]] * 12)
    assert line.paused
    assert 60_000 < taken < 130_000
    app.go.set()
    await line.settle()
    await line.say(*[BEHIND[case]] * (12 - taken // len(BEHIND[case])))
    assert len(answers(line)) == 13


@pytest.mark.parametrize(("data", "heads"), [(GATE, 0), (b"GET /stream HTTP/1.1\r\n\r\n", 1)])
async def test_a_refusal_is_not_taken_for_the_answer_to_a_request_before(data: bytes, heads: int) -> None:
    """That one has not been answered: then the connection ends without a word."""
    line, app = await line_to(data, b"GARBAGE\r\n\r\n")
    app.go.set()
    await line.settle()
    assert (line.said.count(b"HTTP/1.1"), line.closed, dict(line.protocol.state.tasks)) == (heads, True, {})


@pytest.mark.parametrize("behind", [b"", GET, GET + b"GE"])
async def test_a_disconnect_is_noticed(behind: bytes) -> None:
    line, app = await line_to(b"GET /stream HTTP/1.1\r\n\r\n" + behind)
    assert line.said.endswith(b"begun\r\n")
    assert not line.paused
    await line.hang_up()
    assert (app.left, app.entered) == (["/stream"], ["/stream"])


INCOMPLETE = {
    "request line": GET[:7],
    "headers": GET[:-2],
    "no body": b"POST /a HTTP/1.1\r\nContent-Length: 100\r\n\r\n",
    "chunks": CHUNKED + b"3\r\nabc\r\n",
    "last chunk": CHUNKED + b"3\r\nabc\r\n0\r\n",
}


@pytest.mark.parametrize("case", [*INCOMPLETE, ""])
@pytest.mark.parametrize("before", [b"", GET], ids=["first", "second"])
async def test_an_incomplete_request_is_refused(case: str, before: bytes) -> None:
    """The client says that nothing more comes, but it can still read. Between requests it is let go without a word."""
    line, app = await line_to(before, INCOMPLETE.get(case, b""))
    line.written.clear()
    line.protocol.eof_received()
    await line.settle()
    assert [(reply.status, reply.header(b"connection")) for reply in answers(line)] == (
        [(400, b"close")] if case else []
    )
    assert app.left == (["/a"] if b"\r\n\r\n" in INCOMPLETE.get(case, b"") else [])


# ── too many connections ──


async def test_connections_over_the_limit_are_refused_with_503_and_then_cut() -> None:
    state = server_state(App(), max_connections=2)
    lines = [Line(state.new_protocol()) for _ in range(3 + MAX_REFUSED_CONNECTIONS)]
    statuses = []
    for line in lines[:4]:
        await line.say(GET, GET)
        statuses.append([reply.status for reply in answers(line)])
    assert statuses == [[200, 200], [200, 200], [503], [503]]
    assert answers(lines[2])[0].header(b"retry-after") == b"1"
    assert (lines[-2].aborted, lines[-1].aborted) == (False, True)
    await lines[4].wait(2.1)
    assert (lines[4].aborted, lines[4].said) == (True, b"")  # which has not said anything itself
    for line in lines:
        await line.hang_up()
    again = Line(state.new_protocol())
    await again.say(GET)
    assert answers(again)[0].status == 200


# ── too slow ──


@pytest.mark.parametrize("part", [b"G", GET[:20], GET[:-1]])
@pytest.mark.parametrize("before", [b"", GET])
async def test_half_a_head_is_refused_in_time(part: bytes, before: bytes) -> None:
    line, _ = await line_to(before, part)
    line.written.clear()
    for _ in range(9):  # a slow sender gets no more time than a silent one
        await line.wait(1)
        await line.feed([b"t" if part == GET[:20] else b""])
    assert line.said == b""
    await line.wait(1.5)
    (reply,) = answers(line)
    assert (reply.status, reply.header(b"connection"), b"header_timeout" in reply.body) == (408, b"close", True)


@pytest.mark.parametrize(
    ("data", "seconds"),
    [([], 10), ([GET], 150), ([GET, b"\r\n\r\n"], 150), ([LARGE, b"x" * 1000], 10)],
    ids=["from the start", "after a request", "with blank lines", "in a body that is thrown away"],
)
async def test_silence_is_closed_without_a_word(data: list[bytes], seconds: float) -> None:
    line, _ = await line_to(*data)
    said = line.said
    await line.wait(seconds - 1)
    assert not line.closed
    await line.wait(11)
    assert (line.closed, line.said) == (True, said)


async def test_a_response_may_take_longer_than_all_that() -> None:
    line, app = await line_to(GATE)
    await line.wait(10_000)
    assert not line.closed
    app.go.set()
    await line.settle()
    assert answers(line)[0].status == 200
    await line.wait(160)  # then the silence counts
    assert line.closed


async def test_little_is_held_of_a_body_that_the_app_does_not_take() -> None:
    line, app = await line_to(b"POST /gate/refuse HTTP/1.1\r\nContent-Length: 300000\r\n\r\n")
    assert 60_000 < await line.feed([b"x" * 30_000] * 10) < 130_000
    app.go.set()
    await line.settle()
    await line.say(*[b"x" * 30_000] * 7, GET)
    assert [reply.status for reply in answers(line)] == [413, 200]


async def test_a_client_that_reads_nothing_of_a_response_is_cut() -> None:
    line, app = await line_to(b"GET /stream HTTP/1.1\r\n\r\n")
    line.unread = [1000]
    line.protocol.pause_writing()
    line.protocol.resume_writing()
    await line.wait(600)
    assert not line.closed  # it has read all of it
    line.unread = [1000, 900, 800, 800]
    line.protocol.pause_writing()
    await line.wait(130)
    assert not line.closed  # it has read twice
    await line.wait(60)
    assert (line.aborted, app.left) == (True, ["/stream"])


@pytest.mark.parametrize(("unread", "seconds"), [(0, 2), (1000, 60)])
async def test_a_client_that_does_not_take_its_last_response_is_cut(unread: int, seconds: float) -> None:
    line, _ = await line_to()
    line.unread = [unread]
    await line.feed([b"GARBAGE\r\n\r\n"])
    await line.wait(seconds - 0.1)
    assert (line.half_closed, line.closed) == (True, False)
    await line.wait(0.2)
    assert line.aborted


# ── the end, and real sockets ──


async def test_a_shutdown_closes_what_is_idle_and_lets_the_others_finish() -> None:
    app = App()
    state = server_state(app)
    idle, busy, streaming = (Line(state.new_protocol()) for _ in range(3))
    for line, data in ((idle, GET), (busy, GATE), (streaming, b"GET /stream HTTP/1.1\r\n\r\n")):
        await line.feed([data])
    await busy.settle()
    state.shut_down()
    assert (idle.closed, busy.closed, streaming.closed) == (True, False, False)
    waiting = asyncio.create_task(state.respond_to_all(15))
    await busy.settle()
    assert not waiting.done()
    app.go.set()
    await waiting
    assert (answers(busy)[0].header(b"connection"), busy.closed) == (b"close", True)
    await state.close(0.0)
    assert streaming.aborted
    await streaming.settle()
    assert (app.left, state.connections) == (["/stream"], set())


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[Callable[[], socket.socket]]:
    bound = bind("127.0.0.1", 0)
    service = HttpService(App(), HttpOptions(port=port_of(bound)), bound)
    address = ("127.0.0.1", port_of(bound))
    await service.prepare()
    await service.listen()
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(socket.create_connection(address, 15))
    await service.stop()


def exchange(client: socket.socket, data: bytes) -> bytes:
    """All that comes back to a client that ends its side of the connection."""
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)
    return b"".join(iter(lambda: client.recv(65536), b""))


async def test_a_real_connection() -> None:
    refused = b"GET /a HTTP/1.1\r\nX: " + b"x" * 500_000  # whose sender still gets to read the answer
    async with served() as connect:
        for data, status in ((GET, 200), (refused, 431), (b"\x16\x03\x01\x02", 400), (INCOMPLETE["chunks"], 400)):
            assert b" %d " % status in await asyncio.to_thread(exchange, connect(), data)


@pytest.mark.skipif(not hasattr(socket, "TCP_CORK"), reason="only there the end can be sent with the last bytes")
async def test_the_end_comes_with_the_last_bytes_of_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else a client would send its next request into a connection that is about to close."""
    close = HttpProtocol.close

    def close_late(self: HttpProtocol) -> None:
        time.sleep(0.05)  # as on a machine that has much to do
        close(self)

    def last_words(client: socket.socket) -> tuple[bytes, bytes]:
        client.sendall(GET.replace(b"Host: x", b"Connection: close"))
        last = client.recv(1000)
        client.setblocking(False)
        return last, client.recv(1000)  # which fails if the end is not there yet

    monkeypatch.setattr(HttpProtocol, "close", close_late)
    async with served() as connect:
        last, behind = await asyncio.to_thread(last_words, connect())
        assert (b"connection: close" in last, behind) == (True, b"")
