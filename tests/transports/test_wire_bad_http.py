"""Bytes that are no good HTTP, on raw sockets: what the server of `run()` says to them."""

import asyncio
import socket
from collections.abc import Iterator

import pytest
from http_bench import PROMPTLY, Bench, Start, benches, eventually, get, loop_kinds, post


@pytest.fixture(params=loop_kinds())
def bench(request: pytest.FixtureRequest) -> Iterator[Start]:
    with benches(request.param) as start:
        yield start


CHUNKED = b"Transfer-Encoding: chunked"
BAD = {
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), 400),
    "two lengths": (post("/echo", b"Content-Length: 4", body=b"abc"), 400),
    "unknown coding": (post("/echo", b"Transfer-Encoding: xchunked") + b"0\r\n\r\n", 501),
    "version 2.0": (b"GET /echo HTTP/2.0\r\nHost: x\r\n\r\n", 505),
}  # on a real socket; all the others are in test_wire_smuggling


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
def test_a_request_that_is_cut_short_is_refused(lasting: Bench, case: str, before: bytes) -> None:
    """The client says that nothing more comes, but it can still read."""
    lasting.app.seen.clear()
    with lasting.connect() as poke:
        if before:
            poke.send(before)
            assert poke.answer().status == 200
        poke.send(CUT_SHORT[case])
        poke.socket.shutdown(socket.SHUT_WR)
        answer = poke.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert answer.refusal
        assert poke.rest() == b""
    if b"\r\n\r\n" in CUT_SHORT[case]:
        eventually(lambda: "left in mid-body" in lasting.app.seen)
    assert lasting.still_serves()


@pytest.mark.parametrize("data", [b"", get("/echo")], ids=["nothing", "a request"])
def test_a_client_that_ends_between_requests_is_let_go_without_a_word(lasting: Bench, data: bytes) -> None:
    with lasting.connect() as poke:
        if data:
            poke.send(data)
            assert poke.answer().status == 200
        poke.socket.shutdown(socket.SHUT_WR)
        assert poke.rest() == b""


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
    assert running.app.left.wait(PROMPTLY)
    assert running.app.requests == 1


def test_trailers_are_nobodys(lasting: Bench) -> None:
    answer = lasting.ask(post("/echo", CHUNKED) + b"3;extension=1\r\nabc\r\n0\r\nAuthorization: forged\r\n\r\n")
    assert (answer.status, answer.json["body"]) == (200, "abc")
    assert "authorization" not in dict(answer.json["headers"])
