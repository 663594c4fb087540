"""Where a request ends: whatever could be read in two ways is refused, and nothing hides behind it.

A proxy before us that reads such bytes in another way would let a second request through that it never saw.
"""

import asyncio
from typing import Any

import pytest
from wire_line import Line, replies, wire_to

from dovetail.transports.asgi import WHOLE

POST = b"POST /first HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
FITS = b"Content-Length: %d\r\n" % len(HIDDEN)
TEN = b"0123456789"

REFUSED = {
    # two lengths
    "a length and chunks": (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks and a length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (POST + FITS + b"Content-Length: 0\r\n\r\n", 400),
    "the same length twice": (POST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 400),
    "lengths in a list": (POST + b"Content-Length: 0, 0\r\n\r\n", 400),
    "an empty length": (POST + b"Content-Length:\r\n\r\n", 400),
    "a signed length": (POST + b"Content-Length: +0\r\n\r\n", 400),
    "a length in hex": (POST + b"Content-Length: 0x0\r\n\r\n", 400),
    "a length with a blank in it": (POST + b"Content-Length: 0 0\r\n\r\n", 400),
    "a length beyond 64 bits": (POST + b"Content-Length: 18446744073709551616\r\n\r\n", 400),
    # codings
    "another coding": (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    "identity": (POST + b"Transfer-Encoding: identity\r\n\r\n", 501),
    "identity and a length": (POST + b"Transfer-Encoding: identity\r\n" + FITS + b"\r\n", 501),
    "an empty coding": (POST + b"Transfer-Encoding:\r\n" + FITS + b"\r\n", 400),
    "chunked and more": (POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
    "more and chunked": (POST + b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n", 501),
    "an empty item and chunked": (POST + b"Transfer-Encoding: , chunked\r\n\r\n0\r\n\r\n", 501),
    "chunked in quotes": (POST + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n', 501),
    "chunked with a parameter": (POST + b"Transfer-Encoding: chunked;a=b\r\n\r\n0\r\n\r\n", 501),
    "chunked and blanks": (POST + b"Transfer-Encoding: chunked \t \r\n\r\n0\r\n\r\n", 400),
    "chunked after a vertical tab": (POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "chunked twice": (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked, folded": (POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
    "a blank before the colon": (POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "a tab before the colon": (POST + b"Content-Length\t: 0\r\n\r\n", 400),
    "a blank before the name": (POST + b" Content-Length: 0\r\n\r\n", 400),
    "chunked in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    # chunks
    "a size with a sign": (CHUNKED + b"+0\r\n\r\n", 400),
    "a size with 0x": (CHUNKED + b"0x0\r\n\r\n", 400),
    "a size with a blank before it": (CHUNKED + b" 0\r\n\r\n", 400),
    "a size with a blank behind it": (CHUNKED + b"0 \r\n\r\n", 400),
    "a size with an underscore": (CHUNKED + b"0_0\r\n\r\n", 400),
    "a size beyond 64 bits": (CHUNKED + b"10000000000000000\r\n\r\n", 400),
    "no size": (CHUNKED + b"\r\n\r\n", 400),
    "a size and a bare line feed": (CHUNKED + b"0\n\n", 400),
    "a size and a bare carriage return": (CHUNKED + b"0\r\r\n", 400),
    "a chunk and a bare line feed": (CHUNKED + b"1\r\nx\n0\r\n\r\n", 400),
    "a chunk that is longer than its size": (CHUNKED + b"1\r\nxy\r\n0\r\n\r\n", 400),
    "an extension and a bare line feed": (CHUNKED + b"0;a\n\r\n", 400),
    "an extension with a carriage return": (CHUNKED + b"0;a\rb\r\n\r\n", 400),
    "an extension with NUL": (CHUNKED + b"0;a\0\r\n\r\n", 400),
    "an extension with a line break in quotes": (CHUNKED + b'0;a="\r\n"\r\n\r\n', 400),
    # what comes behind the chunks
    "a length behind the chunks": (CHUNKED + b"0\r\n" + FITS + b"\r\n", 400),
    "a coding behind the chunks": (CHUNKED + b"0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "a folded line behind the chunks": (CHUNKED + b"0\r\nX-A: b\r\n c\r\n\r\n", 400),
    "a bare line feed behind the chunks": (CHUNKED + b"0\r\n\n", 400),
    # lines
    "bare line feeds": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "bare carriage returns": (b"GET / HTTP/1.1\rHost: x\r\r", 400),
    "a bare line feed at the end of the head": (b"GET / HTTP/1.1\r\nHost: x\r\n\n", 400),
    "a bare carriage return in a value": (POST + b"X-A: b\rContent-Length: 0\r\n\r\n", 400),
    "a bare line feed in a value": (POST + b"X-A: b\nContent-Length: 0\r\n\r\n", 400),
    "NUL in a value": (POST + b"X-A: \0\r\n\r\n", 400),
    "NUL in a name": (POST + b"X\0A: b\r\n\r\n", 400),
    "a line without a colon": (POST + b"X-A\r\n\r\n", 400),
    "a folded line": (POST + b"X-A: b\r\n c\r\n\r\n", 400),
    "a tab in the request line": (b"GET\t/ HTTP/1.1\r\n\r\n", 400),
    "a blank at the end of the request line": (b"GET / HTTP/1.1 \r\n\r\n", 400),
    "HTTP written small": (b"GET / http/1.1\r\n\r\n", 400),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\n\r\n", 400),
    "a URL with NUL": (b"GET /\0 HTTP/1.1\r\n\r\n", 400),
    "a URL with a tab": (b"GET /\t HTTP/1.1\r\n\r\n", 400),
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
    "tunnel": (b"CONNECT a:80 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "header without a name": (POST + b": b\r\n\r\n", 400),
    "bad header name": (POST + b"X(A: b\r\n\r\n", 400),
    "a negative length": (POST + b"Content-Length: -3\r\n\r\nabc", 400),
    **{f"value with {number:#x}": (POST + b"X-A: a" + bytes([number]) + b"b\r\n\r\n", 400) for number in (1, 27, 127)},
}  # fmt: skip

SERVED = {
    "a length with zeros": (POST + b"Content-Length: 003\r\n\r\nabc", b"abc"),
    "a length with blanks around": (POST + b"Content-Length:  \t3 \t\r\n\r\nabc", b"abc"),
    "chunked written large": (POST + b"TRANSFER-ENCODING: CHUNKED\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
    "sizes in both cases, with zeros": (CHUNKED + b"00a\r\n" + TEN + b"\r\nA\r\n" + TEN + b"\r\n00\r\n\r\n", TEN * 2),
    "chunked and a blank": (POST + b"Transfer-Encoding: chunked \r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
    "extensions": (CHUNKED + b'3;a;b=c;d="e f"\r\nabc\r\n0;x\r\n\r\n', b"abc"),
    "a header behind the chunks": (CHUNKED + b"0\r\nX-A: b\r\n\r\n", b""),
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
        self.heard: list[tuple[str, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                self.heard.append((scope["path"], body))
                assert scope["extensions"][WHOLE].answer(200, [], b"ok")
                return


def pieces_of(data: bytes, way: str) -> list[bytes]:
    return [data] if way == "at once" else [data[at : at + 1] for at in range(len(data))]


async def converse(listener: Listener, pieces: list[bytes], **options: Any) -> Line:
    line = wire_to(listener, **options)
    await line.feed(pieces)
    await line.settle()
    return line


WAYS = pytest.mark.parametrize("way", ["at once", "in single bytes"])


@WAYS
@pytest.mark.parametrize("case", REFUSED)
async def test_what_could_be_read_in_two_ways_is_refused(case: str, way: str) -> None:
    data, status = REFUSED[case]
    listener = Listener()
    line = await converse(listener, pieces_of(data + HIDDEN, way))
    assert [reply.status for reply in replies(line.said, ["POST"])] == [status]
    assert listener.heard == []
    assert line.ended
    line.protocol.data_received(HIDDEN)
    await line.hang_up()
    assert listener.heard == []


@WAYS
@pytest.mark.parametrize("case", SERVED)
async def test_what_is_strange_but_clear_ends_where_it_says(case: str, way: str) -> None:
    data, body = SERVED[case]
    listener = Listener()
    line = await converse(listener, [*pieces_of(data, way), *pieces_of(HIDDEN, way)])
    assert listener.heard == [("/first", body), ("/hidden", b"")]
    assert [reply.status for reply in replies(line.said, ["POST"] * 2)] == [200, 200]
    await line.hang_up()


# ── limits that a request before could blur ──


@pytest.mark.parametrize(("size", "statuses"), [(3000, [200, 200]), (5000, [200, 431]), (200_000, [200, 431])])
async def test_headers_behind_another_request_are_counted_too(size: int, statuses: list[int]) -> None:
    line = wire_to(Listener(), max_header_bytes=4096)
    await line.feed([HIDDEN + b"GET / HTTP/1.1\r\nX-A: " + b"x" * size])
    await line.settle()
    await line.feed([b"\r\n\r\n"])
    await line.settle()
    assert [reply.status for reply in replies(line.said, ["GET"] * 2)] == statuses
    await line.hang_up()


async def test_what_came_behind_the_chunks_counts_for_them_alone() -> None:
    line = wire_to(Listener(), max_header_bytes=4096)
    for piece in (
        CHUNKED + b"0\r\n",
        b"X-A: " + b"x" * 4000 + b"\r\n\r\n",
        HIDDEN[:-2] + b"X-A: " + b"y" * 200,
        b"\r\n\r\n",
    ):
        await line.feed([piece])
        await line.settle()
    assert [reply.status for reply in replies(line.said, ["POST", "GET"])] == [200, 200]
    await line.hang_up()


@pytest.mark.parametrize("piece", [1, 7, 1000])
async def test_a_very_long_url(piece: int) -> None:
    listener = Listener()
    for size, status in ((3000, 200), (5000, 431)):
        data = b"GET /" + b"x" * size + b" HTTP/1.1\r\n\r\n"
        line = await converse(
            listener, [data[at : at + piece] for at in range(0, len(data), piece)], max_header_bytes=4096
        )
        assert [reply.status for reply in replies(line.said, ["GET"])] == [status]
        await line.hang_up()


async def test_a_refusal_is_not_taken_for_the_answer_to_a_request_before() -> None:
    """That one has not been answered: then the connection ends without a word."""
    go_on = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await go_on.wait()
        assert not scope["extensions"][WHOLE].answer(200, [], b"late")

    line = wire_to(app)
    await line.feed([HIDDEN, b"GARBAGE\r\n\r\n"])
    await line.settle()
    go_on.set()
    await line.settle()
    assert (line.said, line.closed, dict(line.protocol.wire.serving)) == (b"", True, {})


BEHIND = {
    "bodies": b"POST /later HTTP/1.1\r\nContent-Length: 30000\r\n\r\n" + b"x" * 30_000,
    "headers": b"GET /later HTTP/1.1\r\nX-A: " + b"x" * 30_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("case", BEHIND)
async def test_little_is_held_of_requests_sent_ahead(case: str) -> None:
    go_on = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/hidden":
            await go_on.wait()
        assert scope["extensions"][WHOLE].answer(200, [], scope["path"].encode())

    line = wire_to(app)
    await line.feed([HIDDEN])
    await line.settle()
    taken = await line.feed([BEHIND[case]] * 12)
    assert line.paused
    assert 60_000 < taken < 130_000
    go_on.set()
    await line.settle()
    await line.feed([BEHIND[case]] * (12 - taken // len(BEHIND[case])))
    await line.settle()
    assert [reply.body for reply in replies(line.said, ["GET"] * 13)] == [b"/hidden", *[b"/later"] * 12]
    await line.hang_up()
