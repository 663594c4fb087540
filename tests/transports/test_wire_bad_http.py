"""Bytes that are no good HTTP, on raw sockets: what the server of `run()` says to them."""

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Iterator

import pytest
from bench_loops import Start, loop_kinds
from http_bench import PROMPTLY, Bench, benches, eventually, get, post
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(params=loop_kinds())
def bench(request: pytest.FixtureRequest) -> Iterator[Start]:
    with benches(request.param) as start:
        yield start


CHUNKED = b"Transfer-Encoding: chunked"
BAD = {
    "garbage": (b"GARBAGE\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "unknown method": (b"FOO / HTTP/1.1\r\n\r\n", 400),
    "no version": (b"GET /echo\r\n\r\n", 505),
    "version 0.9": (b"GET /echo HTTP/0.9\r\n\r\n", 505),
    "version 2.0": (b"GET /echo HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    "tunnel": (b"CONNECT a:80 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "length and chunked": (post("/echo", CHUNKED, body=b"abc"), 400),
    "chunked and length": (post("/echo", b"Content-Length: 3", CHUNKED) + b"0\r\n\r\n", 400),
    "two lengths": (post("/echo", b"Content-Length: 4", body=b"abc"), 400),
    "the same length twice": (post("/echo", b"Content-Length: 3", body=b"abc"), 400),
    "a list of lengths": (post("/echo", b"Content-Length: 3, 3") + b"abc", 400),
    "negative length": (post("/echo", b"Content-Length: -3") + b"abc", 400),
    "signed length": (post("/echo", b"Content-Length: +3") + b"abc", 400),
    "giant length": (post("/echo", b"Content-Length: " + b"9" * 30) + b"abc", 400),
    "unknown coding": (post("/echo", b"Transfer-Encoding: xchunked") + b"0\r\n\r\n", 501),
    "two codings": (post("/echo", b"Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n", 501),
    "chunked twice": (post("/echo", CHUNKED, CHUNKED) + b"0\r\n\r\n", 400),
    "chunked in HTTP/1.0": (b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "giant chunk": (post("/echo", CHUNKED) + b"f" * 17 + b"\r\nabc", 400),
    "negative chunk": (post("/echo", CHUNKED) + b"-3\r\nabc", 400),
    "chunk without an end": (post("/echo", CHUNKED) + b"3\r\nabcdef\r\n", 400),
    "bare line feeds": (b"GET /echo HTTP/1.1\nHost: x\n\n", 400),
    "folded header": (get("/echo", b"X-A: b\r\n c"), 400),
    "space before the colon": (get("/echo", b"X-A : b"), 400),
    "header without a name": (get("/echo", b": b"), 400),
    "bad header name": (get("/echo", b"X(A: b"), 400),
    "path of the wrong alphabet": ("GET /é HTTP/1.1\r\n\r\n".encode(), 400),
    "no path": (b"GET http://host HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    **{
        f"value with {number:#x}": (get("/echo", b"X-A: a" + bytes([number]) + b"b"), 400) for number in (0, 1, 27, 127)
    },
}


ALPHABET = [
    b"GET",
    b" ",
    b"/echo",
    b"HTTP/1.1",
    b"\r\n",
    b"\r\n\r\n",
    b":",
    b"Content-Length: 3",
    CHUNKED,
    b"abc",
    b"0",
]
PIECES = st.lists(
    st.one_of(st.sampled_from([*ALPHABET, get("/echo"), post("/echo", body=b"abc")]), st.binary(max_size=20))
)


@settings(max_examples=150)
@given(PIECES)
def test_whatever_comes_is_answered_in_json_or_not_at_all(lasting: Bench, pieces: list[bytes]) -> None:
    with lasting.connect() as poke:
        poke.send_until_refused(b"".join(pieces) or b" ", most=1)
        with contextlib.suppress(OSError):
            poke.socket.shutdown(socket.SHUT_WR)
        for each in re.findall(rb"HTTP/1.1 \d+.*?\r\n\r\n", poke.rest(), re.DOTALL):
            assert b"content-type: application/json" in each or b"100 Continue" in each
    assert lasting.still_serves()


@pytest.fixture(scope="module")
def lasting() -> Iterator[Bench]:
    with benches(asyncio.new_event_loop) as start:
        yield start()


@pytest.mark.parametrize("case", BAD)
def test_bad_http(lasting: Bench, case: str) -> None:
    data, status = BAD[case]
    with lasting.connect() as poke:
        poke.send(data)
        answer = poke.answer()
        assert answer.status == status
        assert answer.headers["connection"] == "close"
        assert answer.refusal
        poke.send(b"whatever comes now is ignored")
        assert poke.rest() == b""
    assert lasting.still_serves()


def test_the_app_hears_that_a_bad_body_was_refused(bench: Start) -> None:
    running = bench()
    with running.connect() as poke:
        poke.send(post("/echo", CHUNKED) + b"3\r\nabc\r\n")
        eventually(lambda: running.app.requests == 1)
        poke.send(b"nonsense\r\n")
        assert poke.answer().status == 400
    eventually(lambda: "left in mid-body" in running.app.seen)


CUT_SHORT = {
    "request line": get("/echo")[:7],
    "headers": get("/echo")[:-2],
    "body": post("/echo", b"Content-Length: 100") + b"abcd",
    "no body": post("/echo", b"Content-Length: 100"),
    "chunks": post("/echo", CHUNKED) + b"3\r\nabc\r\n",
    "last chunk": post("/echo", CHUNKED) + b"3\r\nabc\r\n0\r\n",
}


@pytest.mark.parametrize("case", CUT_SHORT)
@pytest.mark.parametrize("before", [b"", get("/echo")], ids=["first", "second"])
def test_a_request_that_is_cut_short_is_refused(bench: Start, case: str, before: bytes) -> None:
    """The client says that nothing more comes, but it can still read."""
    running = bench()
    with running.connect() as poke:
        if before:
            poke.send(before)
            assert poke.answer().status == 200
        poke.send(CUT_SHORT[case])
        poke.socket.shutdown(socket.SHUT_WR)
        answer = poke.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert answer.refusal == "The request ends before it is complete"
        assert poke.rest() == b""
    if b"\r\n\r\n" in CUT_SHORT[case]:
        eventually(lambda: "left in mid-body" in running.app.seen)
    assert running.still_serves()


@pytest.mark.parametrize("data", [b"", get("/echo")], ids=["nothing", "a request"])
def test_a_client_that_ends_between_requests_is_let_go_without_a_word(bench: Start, data: bytes) -> None:
    with bench().connect() as poke:
        if data:
            poke.send(data)
            assert poke.answer().status == 200
        poke.socket.shutdown(socket.SHUT_WR)
        assert poke.rest() == b""


def test_a_body_that_nobody_wanted_is_not_answered_twice(bench: Start) -> None:
    with bench().connect() as poke:
        poke.send(post("/unread", b"Content-Length: 100") + b"abcd")
        assert poke.answer().status == 413
        poke.socket.shutdown(socket.SHUT_WR)
        assert poke.rest() == b""


def test_a_client_that_ends_during_an_answer_has_left(bench: Start) -> None:
    """It may still read, but one that is gone looks the same."""
    running = bench()
    with running.connect() as poke:
        poke.send(get("/stream"))
        poke.wait_for(b"begun")
        poke.socket.shutdown(socket.SHUT_WR)
        assert b"HTTP/1.1" not in poke.rest().partition(b"begun")[2]
    assert running.app.left.wait(PROMPTLY)


def test_garbage_during_an_answer_is_not_answered(bench: Start) -> None:
    running = bench()
    with running.connect() as poke:
        poke.send(get("/stream"))
        poke.wait_for(b"begun")
        poke.send(b"GARBAGE\r\n\r\n")
        assert b"HTTP/1.1 400" not in poke.rest()
    assert running.app.left.wait(PROMPTLY)


def test_a_client_that_leaves_is_noticed_behind_a_request_sent_ahead(bench: Start) -> None:
    running = bench()
    with running.connect() as poke:
        poke.send(get("/stream"))
        poke.wait_for(b"begun")
        poke.send(get("/echo"))
        time.sleep(0.1)
    assert running.app.left.wait(PROMPTLY)
    assert running.app.requests == 1


def test_trailers_are_nobodys(bench: Start) -> None:
    running = bench()
    answer = running.ask(post("/echo", CHUNKED) + b"3;extension=1\r\nabc\r\n0\r\nAuthorization: forged\r\n\r\n")
    assert (answer.status, answer.json["body"]) == (200, "abc")
    assert "authorization" not in dict(answer.json["headers"])
