"""A server process over HTTP: how it starts, what it says, and how it ends."""

import asyncio
import re
import signal
import socket
import sys
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from dovetail import Server, SetupError
from dovetail.transports import serve
from dovetail.transports.http.app import HttpApp
from dovetail.transports.http.options import HttpOptions
from http_serving import listening
from processes import HELLO, SIGNALS, StartHttp, http_programs, text

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform == "win32", reason="signals and /proc")]


@pytest.fixture
def start() -> Iterator[StartHttp]:
    with http_programs() as start:
        yield start


# ── the start ──


@pytest.mark.parametrize("number", SIGNALS)
def test_the_start_line_names_the_urls_and_a_signal_is_a_clean_end(start: StartHttp, number: int) -> None:
    program = start()
    base = f"http://127.0.0.1:{program.port}"
    assert f"everything serves MCP at {base}/mcp (HTTP+SSE at {base}/sse)\n" in program.said
    assert text(program.call("echo", text="hello")) == "hello"
    assert program.get("/health") == (200, {"status": "ok"})
    program.signal(number)
    assert program.exits() == 0
    assert [sign in program.said for sign in ("lifespan left", "after run", "Traceback")] == [True, True, False]


@pytest.mark.slow
@pytest.mark.parametrize(("host", "workers"), [("0.0.0.0", 2), ("0", 1)])
def test_all_addresses_are_no_url(start: StartHttp, host: str, workers: int) -> None:
    """Nor do they vouch for a name; that is said once."""
    program = start(host=host, workers=workers)
    program.until_logged("lifespan entered", workers)
    base = f"http://localhost:{program.port}"
    line = f"everything listens at all addresses ({host}) and serves MCP at {base}/mcp (HTTP+SSE at {base}/sse)\n"
    assert line in program.said
    program.signal(signal.SIGTERM)
    assert program.exits() == 0
    assert program.said.count("The Host header is not checked") == 1


def test_nothing_is_served_before_the_lifespan_has_begun(start: StartHttp) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = start(ready=False, port=port, lifespan="hangs at the start")
    program.until_logged("lifespan entered")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)
    program.signal(signal.SIGTERM)
    assert program.exits() == 0
    assert "serves MCP" not in program.said


def test_a_lifespan_that_fails_at_the_start(start: StartHttp) -> None:
    program = start(ready=False, lifespan="fails at the start")
    assert program.exits() == 1
    note = "The server's lifespan failed at its start: nothing is served"
    assert f"RuntimeError: fails at the start\n{note}\n" in program.said


NOWHERE = {"no such host": "is not known", "é" * 100: "is not known", "203.0.113.1": "has no such address"}


def test_where_nothing_can_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        with pytest.raises(SetupError, match=rf"port={port}: another program listens there"):
            Server("second").run(transport="http", port=port)
    for host, words in NOWHERE.items():
        with pytest.raises(SetupError, match=words):
            Server("nowhere").run(transport="http", host=host, port=0)
    monkeypatch.setattr(socket.socket, "bind", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(SetupError, match="ports from 1024 on need no special rights"):
        serve.bind("127.0.0.1", 80)


def test_small_pieces_are_sent_at_once() -> None:
    """Or each event of a stream would wait until the client has confirmed the one before, which takes it 40 ms."""
    (bound,) = serve.bind("127.0.0.1", 0)
    with bound:
        assert bound.proto == socket.IPPROTO_TCP  # only then an event loop turns the delay off


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
@pytest.mark.parametrize(("host", "reached_at"), [("::1", ["::1"]), ("::", ["::1", "127.0.0.1"])])
async def test_ipv6(host: str, reached_at: list[str]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6")
    options = HttpOptions(host=host, port=0)
    async with listening(HttpApp(Server("six").engine, options, bound_to=host), options) as url:
        assert url.startswith(f"http://[{host}]:")
        for address in reached_at:
            reader, writer = await asyncio.open_connection(address, int(url.rpartition(":")[2]))
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in await reader.read()
            writer.close()
            await writer.wait_closed()


# ── the end, and the log ──


def test_open_streams_are_ended_properly_and_at_once(start: StartHttp) -> None:
    program = start()
    modern = program.listen()
    id = program.post("initialize", HELLO).headers["mcp-session-id"]
    others = [
        program.stream("/mcp", **{"accept": "text/event-stream", "mcp-session-id": id}),
        program.stream("/sse", accept="text/event-stream"),
    ]
    program.get("/health")  # by a connection that is idle then
    program.signal(signal.SIGTERM)
    assert b'"resultType":"complete"' in modern.read()  # and no IncompleteRead: each stream has its last chunk
    for stream in others:
        stream.read()
    assert program.exits() == 0


def test_a_call_in_flight_may_finish_and_nothing_new_is_accepted(start: StartHttp) -> None:
    program = start()
    connection = program.begin("nap", seconds=0.6)
    program.signal(signal.SIGTERM)
    program.until(lambda: refuses(program.port))
    response = connection.getresponse()
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert b"rested" in response.read()
    assert program.exits() == 0


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except ConnectionRefusedError:
        return True
    except TimeoutError:  # the socket closed just as the connection was asked for: the next try will tell
        return False
    return False


def test_a_handlers_traceback_is_in_the_log_in_one_piece_and_never_with_the_client(start: StartHttp) -> None:
    program = start()
    answers = [program.call("fails") for _ in range(5)]
    assert all("secret" not in str(answer) and "Traceback" not in str(answer) for answer in answers)
    program.signal(signal.SIGTERM)
    assert program.exits() == 0
    pieces = program.said.split("Traceback (most recent call last):\n")[1:]
    ends = [re.split(r"^(?! )", piece, maxsplit=1, flags=re.M)[0] for piece in pieces]
    assert len(ends) == 5
    assert all("inner()" in each and each.endswith("  ValueError: a secret detail\n") for each in ends)
