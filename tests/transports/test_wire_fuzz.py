"""Whatever bytes come: nothing is raised, what is said is HTTP, and little is kept of it."""

import asyncio
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_line import Line, replies, wire_to

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"3\r\nabc\r\n5;x=y\r\ndefgh\r\n0\r\nX-Trailer: t\r\n\r\n"
OFFER = b"GET /a HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
LAST = b"GET /a HTTP/1.1\r\nConnection: close\r\n\r\n"
WORDS = [
    GET, POST, CHUNKED, CHUNKED + CHUNKS, OFFER, LAST, GET[:20], b"GET ", b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    b" HTTP/1.0\r\n", b"\r\n", b"\n", b"\r", b"\0", b":", b"Content-Length: 3\r\n", b"Expect: 100-continue\r\n",
    b"3\r\nabc\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"Transfer-Encoding: chunked\r\n", b"http://x",
    b"*", b"?%", b"\xff", b"x" * 3000,
]  # fmt: skip
ATTEMPTS = st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=30)), min_size=1, max_size=12)


async def reading(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def unreading(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"ok"})


async def silent(scope: Any, receive: Any, send: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def deaf(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(3600)


APPS = [reading, unreading, silent, deaf]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    cuts = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


FUZZ = given(st.sampled_from(APPS), ATTEMPTS, st.lists(st.integers(0, 10**4), max_size=5), st.booleans())


@settings(max_examples=40)
@FUZZ
def test_nothing_is_raised_and_all_is_http(app: Any, words: list[bytes], places: list[int], pause: bool) -> None:
    fuzz(app, words, places, pause)


@pytest.mark.slow
@settings(max_examples=100)
@FUZZ
def test_nothing_is_raised_for_long(app: Any, words: list[bytes], places: list[int], pause: bool) -> None:
    fuzz(app, words, places, pause)


def fuzz(app: Any, words: list[bytes], places: list[int], pause: bool) -> None:
    async def attempt() -> Line:
        line = wire_to(app, max_header_bytes=4096)
        for piece in cut(b"".join(words), places):
            await line.feed([piece])
            if pause:
                await line.settle()
        await line.settle()
        line.protocol.eof_received()
        await line.hang_up()
        assert not line.protocol.wire.connections
        for task in line.protocol.wire.serving.values():
            task.cancel()
        await line.settle()
        assert not line.protocol.wire.serving
        return line

    line = asyncio.run(attempt())
    for reply in replies(line.said, ["GET"] * 1000):
        assert reply.status == 200 or (reply.status >= 400 and b'"jsonrpc"' in reply.body)


@pytest.mark.parametrize("app", [unreading, deaf])
@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        (b"", b"x" * 9000),
        (b"", b"\r\n" * 5000),
        (b"", GET * 300),
        (b"", OFFER * 100),
        (b"", POST * 100),
        (LAST, GET * 300),
        (b"GET /a HTTP/1.1\r\n", b"A: b\r\n" * 1000),
        (b"GET /", b"x" * 9000),
        (b"POST /a HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"x" * 9000),
        (GET + b"POST /a HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"x" * 9000),
        (CHUNKED, b"1\r\nx\r\n" * 200),
        (CHUNKED, b"1;" + b"y" * 2000 + b"\r\nx\r\n"),
        (CHUNKED + b"0\r\n", b"A: b\r\n" * 1000),
    ],
)
def test_what_has_no_end_costs_little(app: Any, beginning: bytes, piece: bytes) -> None:
    async def attempt() -> int:
        line = wire_to(app)
        await line.feed([beginning] if beginning else [])
        await line.settle()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(100):
            await line.feed([piece])
        await line.settle()
        line.written.clear()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for task in line.protocol.wire.serving.values():
            task.cancel()
        await line.hang_up()
        return after - before

    assert asyncio.run(attempt()) < 600_000
