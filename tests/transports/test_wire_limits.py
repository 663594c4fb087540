"""What the HTTP server of `run()` bears: bytes that are wrong, too many, too slow, or never read. On raw sockets."""

import asyncio
import contextlib
import logging
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from http_bench import PROMPTLY, Bench, benches, eventually, get, memory, post
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.transports import wire_limits

Start = Callable[..., Bench]


def loop_kinds() -> list[object]:
    """Both in `make test`; in `make check` the one that a server has where there is a choice."""
    if sys.platform == "win32":
        return [asyncio.new_event_loop]
    import uvloop

    return [
        pytest.param(uvloop.new_event_loop, id="uvloop"),
        pytest.param(asyncio.new_event_loop, id="asyncio", marks=pytest.mark.slow),
    ]


@pytest.fixture(params=loop_kinds())
def bench(request: pytest.FixtureRequest) -> Iterator[Start]:
    with benches(request.param) as start:
        yield start


# ── the ordinary ──


def test_requests_on_one_connection(bench: Start) -> None:
    with bench().connect() as poke:
        for number in range(3):
            poke.send(post(f"/echo?{number}", b"X-One: 1", body=b"hello"))
            answer = poke.answer()
            assert (answer.status, answer.json["body"], answer.json["query"]) == (200, "hello", str(number))
            assert ["x-one", "1"] in answer.json["headers"]


def test_the_server_does_not_name_itself(bench: Start) -> None:
    answer = bench().ask(get("/echo"))
    assert "server" not in answer.headers
    assert "GMT" in answer.headers["date"]


def test_a_request_in_single_bytes(bench: Start) -> None:
    with bench().connect() as poke:
        for number in post("/echo", b"Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n":
            poke.send(bytes([number]))
        assert poke.answer().json["body"] == "abc"


def test_a_body_in_pieces_with_an_expectation(bench: Start) -> None:
    with bench().connect() as poke:
        poke.send(post("/echo", b"Expect: 100-continue", b"Content-Length: 6"))
        poke.wait_for(b"HTTP/1.1 100 Continue\r\n\r\n")
        poke._received = b""
        poke.send(b"abc")
        poke.send(b"def")
        assert poke.answer().json["body"] == "abcdef"


def test_requests_sent_ahead_are_answered_in_order(bench: Start) -> None:
    with bench().connect() as poke:
        poke.send(get("/slow") + b"".join(post(f"/echo?{number}", body=b"x") for number in range(10)))
        assert poke.answer().body == b'"slow"'
        assert [poke.answer().json["query"] for _ in range(10)] == [str(number) for number in range(10)]


def test_too_many_requests_sent_ahead(bench: Start) -> None:
    running = bench()
    before = memory()
    with running.connect() as poke:
        poke.send_until_refused(get("/slow") * 1000, most=10_000_000)
        assert b"HTTP/1.1 4" not in poke.rest()  # it would be taken for the answer to the first request
    assert memory() - before < 50
    assert running.still_serves()


# ── an offer of HTTP/2 or a websocket ──


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_an_upgrade_is_declined_and_the_request_served(bench: Start, protocol: bytes) -> None:
    offer = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: " + protocol, b"HTTP2-Settings: AAMAAABkAAQ")
    running = bench()
    with running.connect() as poke:
        poke.send(post("/echo", b"X-One: 1", *offer, body=b"hello"))
        answer = poke.answer()
        assert (answer.status, answer.json["body"]) == (200, "hello")
        assert ["x-one", "1"] in answer.json["headers"]
        assert "upgrade" not in dict(answer.json["headers"])
        poke.send(post("/echo", *offer, b"Transfer-Encoding: chunked"))  # the body comes later
        poke.send(b"3\r\nabc\r\n0\r\n\r\n")
        assert poke.answer().json["body"] == "abc"
        poke.send((get("/echo", *offer)) * 5)
        assert [poke.answer().status for _ in range(5)] == [200] * 5
        poke.send(get("/echo", b"Connection: close, Upgrade", b"Upgrade: " + protocol))
        assert poke.answer().headers["connection"] == "close"
        assert poke.rest() == b""


def test_many_offers_at_once(bench: Start) -> None:
    running = bench()
    with running.connect() as poke:
        poke.send_until_refused(get("/slow", b"Connection: upgrade", b"Upgrade: h2c") * 3000, most=1)
        poke.rest()
    assert running.still_serves()


# ── bad HTTP ──

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


# ── too much ──

ENDLESS = {
    "request line": (b"GET /echo?", b"x" * 65536, 431),
    "method": (b"", b"G" * 65536, 400),
    "header value": (b"GET /echo HTTP/1.1\r\nX-A: ", b"x" * 65536, 431),
    "header name": (b"GET /echo HTTP/1.1\r\n", b"x" * 65536, 431),
    "headers": (b"GET /echo HTTP/1.1\r\n", b"X-A: bcdefghij\r\n" * 4096, 431),
    "blank lines": (b"", b"\r\n" * 32768, 431),
    "chunk extension": (post("/echo", CHUNKED) + b"3;", b"x" * 65536, 400),
    "trailer": (post("/echo", CHUNKED) + b"0\r\nX-A: ", b"x" * 65536, 400),
    "trailers": (post("/echo", CHUNKED) + b"0\r\n", b"X-A: bcdefghij\r\n" * 4096, 400),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_input_without_end(bench: Start, case: str) -> None:
    beginning, piece, status = ENDLESS[case]
    running = bench()
    before = memory()
    with running.connect() as poke:
        poke.send(beginning)
        taken = poke.send_until_refused(piece, most=100_000_000)
    assert taken < 20_000_000  # what the system has in its buffers counts too
    assert memory() - before < 40
    with running.connect() as poke:  # more gently, so that the answer is not lost in a reset
        poke.send(beginning)
        poke.send(piece * 6)
        answer = poke.answer()
        assert (answer.status, bool(answer.refusal)) == (status, True)
    assert running.still_serves()


def test_many_connections_with_large_headers(bench: Start) -> None:
    running = bench()
    pokes = [running.connect() for _ in range(50)]
    for poke in pokes:
        poke.send_until_refused(b"GET /echo HTTP/1.1\r\nX-A: " + b"x" * 100_000, most=1)
    assert [poke.answer().status for poke in pokes] == [431] * 50
    for poke in pokes:
        poke.__exit__()
    assert running.still_serves()


@pytest.mark.parametrize(("size", "status"), [(900, 200), (1100, 431)])
def test_header_bytes(bench: Start, size: int, status: int) -> None:
    running = bench(max_header_bytes=1024)
    assert running.ask(get("/echo", b"X-A: " + b"x" * (size - 50))).status == status
    body = b"y" * 100_000  # counts for nothing, however it arrives
    assert running.ask(post("/echo", b"X-A: " + b"x" * (size - 50), body=body)).status == status


@pytest.mark.parametrize(("count", "status"), [(10, 200), (11, 431)])
def test_header_count(bench: Start, count: int, status: int) -> None:
    running = bench(max_headers=10)
    answer = running.ask(get("/echo", *[b"X-A: b"] * (count - 1)))
    assert answer.status == status
    assert status == 200 or "more than 10 headers" in answer.refusal


def test_header_count_before_the_end_of_the_headers(bench: Start) -> None:
    with bench(max_headers=10).connect() as poke:
        poke.send(b"GET /echo HTTP/1.1\r\n" + b"X-A: b\r\n" * 12)
        assert poke.answer().status == 431


def test_connections(bench: Start) -> None:
    running = bench(max_connections=3)
    open_pokes = [running.connect() for _ in range(3)]
    for poke in open_pokes:
        poke.send(get("/echo"))
        assert poke.answer().status == 200
    with running.connect() as poke:
        poke.send(get("/echo"))
        answer = poke.answer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "more than 3 connections, try again; max_connections" in answer.refusal
        assert poke.rest() == b""
    open_pokes[0].__exit__()
    eventually(running.still_serves)
    for poke in open_pokes:
        poke.__exit__()


def test_connections_far_beyond_the_limit_are_cut(bench: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_limits, "MAX_TURNED_AWAY", 1)
    running = bench(max_connections=1)
    with running.connect() as first, running.connect(), running.connect() as third:
        assert third.rest() == b""
        first.send(get("/echo"))
        assert first.answer().status == 200


# ── too slow ──


@pytest.mark.parametrize(
    "part",
    [b"G", b"GET /echo", b"GET /echo HTTP/1.1\r\n", b"GET /echo HTTP/1.1\r\nHost: x\r\nX-A", get("/echo")[:-1]],
)
def test_half_a_head(bench: Start, part: bytes) -> None:
    running = bench(header_timeout=0.3)
    with running.connect() as poke:
        poke.send(part)
        answer = poke.answer()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert "within 0.3 s; header_timeout" in answer.refusal
        assert poke.rest() == b""
    assert running.still_serves()


def test_half_a_head_after_a_whole_request(bench: Start) -> None:
    running = bench(header_timeout=0.3)
    with running.connect() as poke:
        poke.send(get("/echo") + b"GET /ec")
        assert [poke.answer().status, poke.answer().status] == [200, 408]


def test_a_slow_sender_gets_no_more_time_than_a_silent_one(bench: Start) -> None:
    running = bench(header_timeout=0.4)
    with running.connect() as poke:
        began = time.monotonic()
        poke.send(b"GET /echo HTTP/1.1\r\n")
        poke.socket.settimeout(0.05)
        while not poke._received:
            assert time.monotonic() - began < 5
            poke.send(b"X-A: b\r\n")
            try:
                poke._more()
            except TimeoutError:
                continue
        assert poke.answer().status == 408
        assert time.monotonic() - began >= 0.35


@pytest.mark.parametrize("data", [b"", b"\r\n\r\n"])
def test_silence_after_a_request_is_closed_without_a_word(
    bench: Start, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_limits, "IDLE_SECONDS", 0.3)
    with bench().connect() as poke:
        for _ in range(2):
            poke.send(get("/echo"))
            assert poke.answer().status == 200
            time.sleep(0.15)  # it begins anew with each request
        poke.send(data)
        assert poke.rest() == b""


def test_a_new_connection_that_says_nothing_is_closed_without_a_word(bench: Start) -> None:
    with bench(header_timeout=0.2).connect() as poke:
        assert poke.rest() == b""


def test_an_answer_may_take_longer_than_all_that(bench: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_limits, "IDLE_SECONDS", 0.1)
    with bench(header_timeout=0.1).connect() as poke:
        poke.send(get("/slow"))
        assert poke.answer().status == 200
        assert poke.rest() == b""  # and then the silence counts


def test_the_rest_of_an_unwanted_body_is_thrown_away(bench: Start) -> None:
    running = bench(header_timeout=0.5)
    with running.connect() as poke:
        poke.send(post("/unread", b"Content-Length: 3000000"))
        assert poke.answer().status == 413
        poke.send(b"x" * 3_000_000)
        poke.send(get("/echo"))
        assert poke.answer().status == 200
    before = memory()
    with running.connect() as poke:
        poke.send(post("/unread", b"Content-Length: 99999999999"))
        assert poke.answer().status == 413
        began = time.monotonic()
        poke.send_until_refused(b"x" * 65536, most=99999999999)
        assert time.monotonic() - began < 5
    assert memory() - before < 30


# ── a client that does not read ──


def test_a_client_that_does_not_read_costs_no_memory_and_is_left(bench: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_limits, "STALL_SECONDS", 0.5)
    running = bench()
    before = memory()
    with running.connect(small_buffer=True) as poke:
        poke.send(get("/flood"))  # 250 MB
        poke.wait_for(b"200 OK")
        time.sleep(0.3)
        assert running.app.seen["sent"] < 20_000_000
        assert memory() - before < 30
        eventually(lambda: running.app.seen["sent"] == 4000 * 65536)  # dropped, for nobody is there
    assert memory() - before < 40
    assert running.still_serves()


def test_a_client_that_reads_slowly_is_not_left(bench: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_limits, "STALL_SECONDS", 0.2)
    running = bench()
    with running.connect(small_buffer=True) as poke:
        poke.send(get("/flood"))
        for _ in range(30):
            assert len(poke.socket.recv(60_000)) > 0
            time.sleep(0.03)


# ── an app that fails ──


def test_a_failing_app(bench: Start, caplog: pytest.LogCaptureFixture) -> None:
    running = bench()
    with caplog.at_level(logging.ERROR, "dovetail"), running.connect() as poke:
        poke.send(get("/fail"))
        answer = poke.answer()
        assert (answer.status, answer.refusal) == (500, "The server failed on this request")
        poke.send(get("/silent"))
        assert poke.answer().status == 500
        poke.send(get("/fail_late"))
        assert poke.rest().endswith(b"5\r\nbegun\r\n")
    assert running.still_serves()
    first = caplog.records[0]
    assert first.exc_info is not None
    assert "a secret detail" in str(first.exc_info[1])


def test_the_access_log(bench: Start, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dovetail.access"):
        bench().ask(get("/echo"))
        assert not caplog.records
        bench(access_log=True).ask(get("/echo?session_id=secret%0A"))
    (record,) = caplog.records
    assert '"GET /echo HTTP/1.1" 200' in record.getMessage()  # a query may name a session


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"GARBAGE\r\n\r\n", '"-" 400'),
        ("GET /é HTTP/1.1\r\n\r\n".encode(), '"-" 400'),
        (get("/echo?session_id=secret", *[b"X-A: b"] * 200), '"-" 431'),
        (post("/echo?session_id=secret", CHUNKED) + b"nonsense\r\n", '"POST /echo HTTP/1.1" 400'),
    ],
)
def test_the_access_log_has_refusals_too(
    bench: Start, caplog: pytest.LogCaptureFixture, data: bytes, line: str
) -> None:
    with caplog.at_level(logging.INFO, "dovetail.access"):
        bench().ask(data)
        assert not caplog.records
        bench(access_log=True).ask(data)
    (record,) = caplog.records
    assert re.fullmatch(rf"127\.0\.0\.1:\d+ - {line}", record.getMessage())


def test_a_refusal_is_not_logged_as_the_request_before_it(bench: Start, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dovetail.access"), bench(access_log=True).connect() as poke:
        poke.send(get("/echo"))
        poke.answer()
        poke.send(b"GARBAGE\r\n\r\n")
        poke.answer()
    assert [record.getMessage().partition(" - ")[2] for record in caplog.records] == [
        '"GET /echo HTTP/1.1" 200',
        '"-" 400',
    ]
