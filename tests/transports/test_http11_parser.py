"""Where a request ends: what a proxy could read in another way is refused, and of what has no end little is kept."""

import asyncio
import json
import re
import tracemalloc
from typing import Any

import pytest
from http11_connection import Line, cut, line_to, replies, wire_to
from hypothesis import given
from hypothesis import strategies as st

import official
from dovetail.transports.http.asgi import FAST_PATH
from dovetail.transports.http.options import KINDS
from dovetail.transports.http11 import parser
from dovetail.transports.http11.parser import LIMITS, Refusal, over_limit

POST = b"POST /first HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
FITS = b"Content-Length: %d\r\n" % len(HIDDEN)
TEN = b"0123456789"

REFUSED = {
    # two lengths
    "a length and chunks": (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (POST + FITS + b"Content-Length: 0\r\n\r\n", 400),
    "lengths in a list": (POST + b"Content-Length: 0, 0\r\n\r\n", 400),
    "an empty length": (POST + b"Content-Length:\r\n\r\n", 400),
    "a signed length": (POST + b"Content-Length: +0\r\n\r\n", 400),
    "a negative length": (POST + b"Content-Length: -1\r\n\r\n", 400),
    "a length beyond 64 bits": (POST + b"Content-Length: 18446744073709551616\r\n\r\n", 400),
    # codings
    "another coding": (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    "an empty coding": (POST + b"Transfer-Encoding:\r\n" + FITS + b"\r\n", 400),
    "chunked and more": (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
    "more and chunked": (POST + b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n", 501),
    "chunked with a parameter": (POST + b"Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n", 501),
    "chunked and blanks": (POST + b"Transfer-Encoding: chunked \t \r\n\r\n0\r\n\r\n", 400),
    "chunked twice": (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked, folded": (POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
    "a blank before the colon": (POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "a blank before the name": (POST + b" Content-Length: 0\r\n\r\n", 400),
    "chunked in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    # chunks
    "a size with a sign": (CHUNKED + b"+0\r\n\r\n", 400),
    "a size with 0x": (CHUNKED + b"0x0\r\n\r\n", 400),
    "a size with a blank behind it": (CHUNKED + b"0 \r\n\r\n", 400),
    "a size beyond 64 bits": (CHUNKED + b"10000000000000000\r\n\r\n", 400),
    "no size": (CHUNKED + b"\r\n\r\n", 400),
    "a size and a bare line feed": (CHUNKED + b"0\n\n", 400),
    "a size and a bare carriage return": (CHUNKED + b"0\r\r\n", 400),
    "a chunk and a bare line feed": (CHUNKED + b"1\r\nx\n0\r\n\r\n", 400),
    "a chunk that is longer than its size": (CHUNKED + b"1\r\nxy\r\n0\r\n\r\n", 400),
    "an extension with a carriage return": (CHUNKED + b"0;a\rb\r\n\r\n", 400),
    # what comes behind the chunks
    "a length behind the chunks": (CHUNKED + b"0\r\n" + FITS + b"\r\n", 400),
    "a coding behind the chunks": (CHUNKED + b"0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "a bare line feed behind the chunks": (CHUNKED + b"0\r\n\n", 400),
    # lines
    "bare line feeds": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "bare carriage returns": (b"GET / HTTP/1.1\rHost: x\r\r", 400),
    "a bare carriage return in a value": (POST + b"X-A: b\rContent-Length: 0\r\n\r\n", 400),
    "a bare line feed in a value": (POST + b"X-A: b\nContent-Length: 0\r\n\r\n", 400),
    "NUL in a value": (POST + b"X-A: \0\r\n\r\n", 400),
    "a line without a colon": (POST + b"X-A\r\n\r\n", 400),
    "a folded line": (POST + b"X-A: b\r\n c\r\n\r\n", 400),
    "a URL with NUL": (b"GET /\0 HTTP/1.1\r\n\r\n", 400),
    "a URL with a line feed": (b"GET /\nX-A: b HTTP/1.1\r\n\r\n", 505),
    "a URL beyond ASCII": (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
    "a URL of a host alone": (b"GET http://x HTTP/1.1\r\n\r\n", 400),
    "a URL that is none": (b"GET http:///x HTTP/1.1\r\n\r\n", 400),
    # what is no HTTP/1.1 at all
    "garbage": (b"GARBAGE\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "unknown method": (b"FOO / HTTP/1.1\r\n\r\n", 400),
    "no version": (b"GET /echo\r\n\r\n", 505),
    "version 0.9": (b"GET /echo HTTP/0.9\r\n\r\n", 505),
    "version 1.2": (b"GET /echo HTTP/1.2\r\n\r\n", 400),
    "tunnel": (b"CONNECT a:80 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "header without a name": (POST + b": b\r\n\r\n", 400),
    **{f"value with {number:#x}": (POST + b"X-A: a" + bytes([number]) + b"b\r\n\r\n", 400) for number in (1, 27, 127)},
}  # fmt: skip

SERVED = {
    "a length with zeros": (POST + b"Content-Length: 003\r\n\r\nabc", b"abc"),
    "a length with blanks around": (POST + b"Content-Length:  \t3 \t\r\n\r\nabc", b"abc"),
    "chunked written large": (POST + b"TRANSFER-ENCODING: CHUNKED\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
    "sizes in both cases, with zeros": (CHUNKED + b"00a\r\n" + TEN + b"\r\nA\r\n" + TEN + b"\r\n00\r\n\r\n", TEN * 2),
    "chunked and a blank": (POST + b"Transfer-Encoding: chunked \r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
    "extensions": (CHUNKED + b'3;a;b=c;d="e f"\r\nabc\r\n0;x\r\n\r\n', b"abc"),
    "a header behind the chunks": (CHUNKED + b"0\r\nX-Trailer: b\r\n\r\n", b""),
    "an upgrade behind the chunks": (CHUNKED + b"0\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", b""),
    "a similar name": (POST + b"Content_Length: 99\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
    "GET with a body": (b"GET /first HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
    "a request as the body": (POST + FITS + b"\r\n" + HIDDEN, HIDDEN),
    "a URL with a host": (POST.replace(b"/first", b"http://other/first") + b"Content-Length: 3\r\n\r\nabc", b"abc"),
    "an offered upgrade with a body": (
        POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + FITS + b"\r\n" + HIDDEN, HIDDEN,
    ),
}  # fmt: skip


class Listener:
    """Notes what reaches the app, as far as it comes whole."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes]] = []
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.headers += scope["headers"]
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                self.received.append((scope["path"], body))
                assert scope["extensions"][FAST_PATH].respond(200, [], b"ok")
                return


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


async def converse(listener: Listener, pieces: list[bytes], **options: Any) -> Line:
    line = wire_to(listener, **options)
    await line.say(*pieces)
    return line


def statuses(line: Line) -> list[int]:
    return [reply.status for reply in replies(line.said, ["POST"] * 20)]


WAYS = pytest.mark.parametrize("size", [10_000, 1], ids=["at once", "in single bytes"])


@WAYS
@pytest.mark.parametrize("case", REFUSED)
async def test_what_could_be_read_in_two_ways_is_refused(case: str, size: int) -> None:
    data, status = REFUSED[case]
    listener = Listener()
    line = await converse(listener, pieces_of(data + HIDDEN, size))
    assert statuses(line) == [status]
    assert line.ended
    line.protocol.data_received(HIDDEN)
    await line.hang_up()
    assert listener.received == []


@WAYS
@pytest.mark.parametrize("case", SERVED)
async def test_what_is_strange_but_clear_ends_where_it_says(case: str, size: int) -> None:
    data, body = SERVED[case]
    listener = Listener()
    line = await converse(listener, [*pieces_of(data, size), *pieces_of(HIDDEN, size)])
    assert listener.received == [("/first", body), ("/hidden", b"")]
    assert statuses(line) == [200, 200]
    assert b"x-trailer" not in dict(listener.headers)


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
async def test_an_upgrade_is_declined_and_the_request_served(protocol: bytes) -> None:
    """Some clients offer HTTP/2 with each request."""
    offer = POST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + protocol + b"\r\nHTTP2-Settings: AAM\r\n"
    body = [offer + b"Transfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n"]
    last = POST + b"Connection: close, Upgrade\r\nUpgrade: " + protocol + b"\r\n\r\n"
    listener = Listener()
    line = await converse(listener, [*body, (offer + b"\r\n") * 5, last, HIDDEN])
    assert [body for _, body in listener.received] == [b"abc", *[b""] * 6]
    assert not {b"upgrade", b"http2-settings"} & dict(listener.headers).keys()
    assert (replies(line.said, ["POST"] * 7)[-1].header(b"connection"), line.ended) == (b"close", True)


# ── limits ──

OPENING = b"GET /first HTTP/1.1\r\n"
ENDLESS = {
    "request line": (b"GET /first?", b"x" * 65536, 431),
    "method": (b"", b"G" * 65536, 400),
    "header value": (OPENING + b"X-A: ", b"x" * 65536, 431),
    "header name": (OPENING, b"x" * 65536, 431),
    "headers": (OPENING, b"X-A: bcdefghij\r\n" * 4096, 431),
    "blank lines": (b"", b"\r\n" * 32768, 431),
    "chunk extension": (CHUNKED + b"3;", b"x" * 65536, 400),
    "trailer": (CHUNKED + b"0\r\nX-A: ", b"x" * 65536, 400),
    "trailers": (CHUNKED + b"0\r\n", b"X-A: bcdefghij\r\n" * 4096, 400),
}


@pytest.mark.parametrize("case", ENDLESS)
async def test_input_without_end_is_refused_and_then_cut(case: str) -> None:
    beginning, piece, status = ENDLESS[case]
    line = await converse(Listener(), [beginning, piece] if beginning else [piece], max_header_bytes=60_000)
    assert (statuses(line), line.ended, line.closed) == ([status], True, False)  # the client may still read that
    assert 900_000 < await line.feed([piece] * 30) < 1_300_000
    assert line.closed


def headed(size: int) -> bytes:
    return OPENING + b"X-A: " + b"x" * (size - len(OPENING) - 9) + b"\r\n\r\n"


def with_body(size: int) -> bytes:
    head = POST + b"X-A: " + b"x" * (size - 50) + b"\r\nContent-Length: 100000\r\n\r\n"
    return head + b"y" * 100_000


@pytest.mark.parametrize(
    ("data", "sizes", "status"),
    [
        *(
            (headed(size), (10_000, 1000, 1), status)
            for size, status in [(900, 200), (1024, 200), (1100, 431), (5000, 431)]
        ),
        *((with_body(size), (200_000, 10_000), status) for size, status in [(900, 200), (1100, 431)]),
        *((OPENING + b"X-A: b\r\n" * n + b"\r\n", (1000, 1), status) for n, status in [(20, 200), (21, 431)]),
    ],
)
async def test_bytes_and_number_of_headers(data: bytes, sizes: tuple[int, ...], status: int) -> None:
    """Without the body."""
    for size in sizes:
        line = await converse(Listener(), pieces_of(data, size), max_header_bytes=1024, max_headers=20)
        assert statuses(line) == [status]
        await line.hang_up()


MIDDLE = HIDDEN + OPENING + b"X-A: "
IN_A_ROW = [
    ([MIDDLE + b"x" * 3000, b"\r\n\r\n"], 200),
    ([MIDDLE + b"x" * 5000, b"\r\n\r\n"], 431),
    ([CHUNKED + b"0\r\n", b"X-A: " + b"x" * 4000 + b"\r\n\r\n", OPENING + b"X-A: " + b"y" * 200, b"\r\n\r\n"], 200),
    ([CHUNKED + b"0\r\n", b"X-A: " + b"x" * 4091, b"\r\n\r\n", HIDDEN], 200),  # as many bytes as the limit
]


@pytest.mark.parametrize(("pieces", "second"), IN_A_ROW)
async def test_the_headers_of_each_request_are_counted_alone(pieces: list[bytes], second: int) -> None:
    line = await line_to(Listener(), *pieces, max_header_bytes=4096)
    assert statuses(line) == [200, second]


REFUSALS = {name: each for name, each in vars(parser).items() if isinstance(each, Refusal)}
REFUSALS |= {name: over_limit(name, 7) for name in LIMITS}


@pytest.mark.parametrize("name", REFUSALS)
def test_every_refusal_is_a_valid_error_and_names_the_option(name: str) -> None:
    official.demand()
    head, _, body = REFUSALS[name].response(b"date: today\r\n").partition(b"\r\n\r\n")
    status, *headers = head.decode("ascii").split("\r\n")
    assert re.fullmatch(r"HTTP/1\.1 [45]\d\d [A-Z][A-Za-z -]+", status)
    expected = ["date: today", "content-type: application/json", "connection: close", f"content-length: {len(body)}"]
    assert sorted(headers) == sorted(expected + (["retry-after: 1"] if " 503 " in status else []))
    assert set(json.loads(body)) == {"jsonrpc", "error"}
    official.validator_for("2025-11-25", "JSONRPCErrorResponse").validate(json.loads(body))
    if name in LIMITS:
        (option,) = re.findall(r"\b7\b.*; (\w+) \(DOVETAIL_\w+\) sets the limit$", REFUSALS[name].message)
        assert option in KINDS


# ── arbitrary bytes ──


GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
SMALL = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
CHUNKS = b"3\r\nabc\r\n5;x=y\r\ndefgh\r\n0\r\nX-Trailer: t\r\n\r\n"
OFFER = b"GET /a HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
LAST = b"GET /a HTTP/1.1\r\nConnection: close\r\n\r\n"
WORDS = [
    GET, SMALL, CHUNKED, CHUNKED + CHUNKS, OFFER, LAST, GET[:20], b"GET ", b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    b" HTTP/1.0\r\n", b"\r\n", b"\n", b"\r", b"\0", b":", b"Content-Length: 3\r\n", b"Expect: 100-continue\r\n",
    b"3\r\nabc\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"Transfer-Encoding: chunked\r\n", b"http://x",
    b"*", b"?%", b"\xff", b"x" * 3000,
]  # fmt: skip
ATTEMPTS = st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=30)), min_size=1, max_size=12)


async def unreading(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"ok"})


async def deaf(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(3600)


APPS = st.sampled_from([Listener(), unreading, deaf])


@given(APPS, ATTEMPTS, st.lists(st.integers(0, 10**4), max_size=5), st.booleans())
async def test_nothing_is_raised_and_all_is_http(app: Any, words: list[bytes], places: list[int], pause: bool) -> None:
    line = wire_to(app, max_header_bytes=4096)
    for piece in cut(b"".join(words), places):
        await line.feed([piece])
        if pause:
            await line.settle()
    await line.settle()
    line.protocol.eof_received()
    await line.hang_up()
    await end_tasks(line)
    assert not line.protocol.state.connections
    assert not line.protocol.state.tasks
    for reply in replies(line.said, ["GET"] * 1000):
        assert reply.status == 200 or (reply.status >= 400 and b'"jsonrpc"' in reply.body)


async def end_tasks(line: Line) -> None:
    for task in line.protocol.state.tasks.values():
        task.cancel()
    await line.settle()


UNENDING = b"POST /a HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"


@pytest.mark.parametrize("app", [unreading, deaf])
@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        *((b"", GET * 300), (b"", OFFER * 100), (b"", SMALL * 100), (LAST, GET * 300), (b"GET /", b"x" * 9000)),
        *((UNENDING, b"x" * 9000), (GET + UNENDING, b"x" * 9000), (OPENING, b"A: b\r\n" * 1000)),
        *((CHUNKED, b"1\r\nx\r\n" * 200), (CHUNKED, b"1;" + b"y" * 2000 + b"\r\nx\r\n")),
        (CHUNKED + b"0\r\n", b"A: b\r\n" * 1000),
    ],
)
async def test_what_has_no_end_costs_little(app: Any, beginning: bytes, piece: bytes) -> None:
    line = wire_to(app)
    await line.say(beginning)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    await line.say(*[piece] * 100)
    line.written.clear()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await line.hang_up()
    await end_tasks(line)
    assert after - before < 600_000
