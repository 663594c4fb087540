"""What the HTTP server of `run()` bears: bytes that are too many, too slow, or never read. On raw sockets."""

import json
import logging
import re
import time
from collections.abc import Iterator
from functools import partial

import pytest
from http_bench import Start, benches, eventually, get, loop_kinds, memory, post

import official
from dovetail.transports import wire_limits, wire_refusals
from dovetail.transports.options import KINDS
from dovetail.transports.wire_refusals import Refusal


@pytest.fixture(params=loop_kinds())
def bench(request: pytest.FixtureRequest) -> Iterator[Start]:
    with benches(request.param) as start:
        yield start


CHUNKED = b"Transfer-Encoding: chunked"


# ── the ordinary ──


def test_requests_on_one_connection(bench: Start) -> None:
    with bench().connect() as poke:
        for number in range(3):
            poke.send(post(f"/echo?{number}", b"X-One: 1", body=b"hello"))
            answer = poke.answer()
            assert (answer.status, answer.json["body"], answer.json["query"]) == (200, "hello", str(number))
            assert ["x-one", "1"] in answer.json["headers"]


def test_a_body_in_pieces_with_an_expectation(bench: Start) -> None:
    with bench().connect() as poke:
        poke.send(post("/echo", b"Expect: 100-continue", b"Content-Length: 6"))
        poke.wait_for(b"HTTP/1.1 100 Continue\r\n\r\n")
        poke._received = b""
        poke.send(b"abc")
        poke.send(b"def")
        assert poke.answer().json["body"] == "abcdef"


@pytest.mark.parametrize("number", [18, 1000])
def test_however_many_are_sent_ahead_all_are_answered_in_order(bench: Start, number: int) -> None:
    with bench().connect() as poke:
        poke.send(get("/slow") + b"".join(post(f"/echo?{at}", body=b"x" * (at % 7)) for at in range(number)))
        assert poke.answer().body == b'"slow"'
        for at in range(number):
            answer = poke.answer().json
            assert (answer["query"], answer["body"]) == (str(at), "x" * (at % 7))
        poke.send(post("/echo", body=b"y"))  # and the connection goes on
        assert poke.answer().json["body"] == "y"


def test_what_is_sent_ahead_waits_unread_with_its_client(bench: Start) -> None:
    running = bench()
    before = memory()
    with running.connect() as poke:
        poke.socket.settimeout(1)  # nothing more is taken until the first has its answer
        with pytest.raises(TimeoutError):
            poke.send_until_refused(get("/slow") * 1000, most=100_000_000)
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


# ── too slow ──


@pytest.mark.parametrize(
    "part",
    [b"G", b"GET /echo HTTP/1.1\r\nHost: x\r\nX-A", get("/echo")[:-1]],
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
        poke.send(get("/echo"))
        assert poke.answer().status == 200
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
        assert running.app.seen["sent"] < 20_000_000
        assert memory() - before < 30
        eventually(lambda: running.app.seen["sent"] == 4000 * 65536)  # dropped, for nobody is there
    assert memory() - before < 40
    assert running.still_serves()


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


# ── what is said before a request reaches the app ──


def every_refusal() -> dict[str, Refusal]:
    """The constants, and what becomes of a limit."""
    found = vars(wire_refusals)
    constants = {name: each for name, each in found.items() if isinstance(each, Refusal)}
    makers = {name: each for name, each in found.items() if isinstance(each, partial)}
    return {**constants, **{name: make(7) for name, make in makers.items()}}


REFUSALS = every_refusal()


@pytest.mark.parametrize("name", REFUSALS)
def test_every_refusal_is_a_valid_error(name: str) -> None:
    official.demand()
    head, _, body = REFUSALS[name].response([(b"date", b"today")]).partition(b"\r\n\r\n")
    status, *headers = head.decode("ascii").split("\r\n")
    assert re.fullmatch(r"HTTP/1\.1 [45]\d\d [A-Z][A-Za-z -]+", status)
    assert {"date: today", "content-type: application/json", f"content-length: {len(body)}"} <= set(headers)
    assert set(json.loads(body)) == {"jsonrpc", "error"}
    official.validator_for("2025-11-25", "JSONRPCErrorResponse").validate(json.loads(body))


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("too_large", "max_header_bytes"),
        ("too_much_framing", "max_header_bytes"),
        ("too_many", "max_headers"),
        ("too_slow", "header_timeout"),
        ("crowded", "max_connections"),
    ],
)
def test_a_limit_is_named(name: str, option: str) -> None:
    assert option in KINDS
    message = REFUSALS[name].message
    assert message.endswith(f"; {option} (DOVETAIL_{option.upper()}) sets the limit")
    assert re.search(r"\b7\b", message)
