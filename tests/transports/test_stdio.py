"""Stdio as a client sees it: what it reads and nothing else, what a client that does not read costs, and the end."""

import array
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import SetupError
from dovetail.server import Server
from processes import ENVIRONMENT, HELLO, META, PROGRAM, PROMPTLY, Program, Start, modern_call, programs, request, text

fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")

SHORT = {"input_ended_grace": 0.2, "flush_timeout": 0.3, "lifespan_timeout": 0.3}

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform == "win32", reason="signals and /proc")]


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    """One that goes on from test to test."""
    with programs() as start:
        yield start()


@pytest.mark.seed("S2-66", "S2-67")
@pytest.mark.rule("STDIO-2", "STDIO-3")
def test_only_messages_reach_stdout_and_no_tool_reads_stdin(start: Start) -> None:
    program = start()
    result = program.call("noisy")
    assert result["structuredContent"] == {"input": "end of file", "child": "''"}
    assert program.ends() == []
    for sign in ("before run", "by print", "by write", "by child", "by prompt", "after run", "at exit"):
        assert program.said.count(sign) == 1, program.said


def test_children_do_not_have_our_pipes(program: Program) -> None:
    ours = {os.fstat(file.fileno()).st_ino for file in (program.process.stdin, program.process.stdout)}
    result = program.call("pipes_of_children")
    assert not result.get("isError"), result
    assert not ours & set(json.loads(text(result)))


# ── both eras, and arbitrary messages ──


@pytest.mark.rule("STDIO-1", "STDIO-4")
def test_both_eras_at_once_on_one_pipe(program: Program) -> None:
    program.send(
        request(1, "initialize", HELLO),
        modern_call(2, "echo", text="modern"),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        request(3, "tools/call", {"name": "echo", "arguments": {"text": "older"}}),
        modern_call(4, "echo", text="two\nlines\r\n\u2028"),
    )
    answers = {message["id"]: message["result"] for message in (program.receive() for _ in range(4))}
    assert answers[1]["protocolVersion"] == "2025-06-18"
    assert ("resultType" in answers[3], answers[2]["resultType"]) == (False, "complete")
    assert [text(answers[id]) for id in (2, 3, 4)] == ["modern", "older", "two\nlines\r\n\u2028"]


BAD = [
    (b"garbage\n", -32700),
    (b"\xff\xfe\n", -32700),
    (b"[" * 100_000 + b"\n", -32700),
    (b"[]\n", -32600),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n', -32600),
]


def test_after_bad_input_the_next_request_works(program: Program) -> None:
    for line, code in BAD:
        program.send(line)
        assert program.receive()["error"]["code"] == code
        assert text(program.call("echo", text="fine")) == "fine"


@pytest.mark.seed("S2-84")
@pytest.mark.rule("STDIO-6")
def test_long_blank_and_unended_lines_and_a_cancelled_call_which_is_silent(start: Start) -> None:
    program = start(max_message_bytes=100_000)
    program.send(modern_call("gone", "nap", seconds=600))
    program.until_logged("nap runs")
    program.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "gone"}})
    hidden, first, last = (json.dumps(modern_call(id, "echo", text=id)).encode() for id in ("hidden", "first", "last"))
    program.write(b'"' + b"x" * 200_000 + hidden + b"\n")  # one line that is too long
    assert program.receive()["error"] == {"code": -32600, "message": "message larger than 100000 bytes"}
    program.write(b"\n\r\n   \n" + first + b"\r\n\n" + last)
    assert {message["id"] for message in program.ends()} == {"first", "last"}


def test_ten_thousand_requests_in_one_write(program: Program) -> None:
    program.write(b"".join(json.dumps(request(id, "ping")).encode() + b"\n" for id in range(10_000)))
    assert sorted(program.receive()["id"] for _ in range(10_000)) == list(range(10_000))


# ── other things than pipes ──


def run_with(*command: str, **streams: Any) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(command or [sys.executable, str(PROGRAM)], timeout=PROMPTLY, env=ENVIRONMENT, **streams)


@pytest.mark.slow
def test_files_instead_of_pipes(tmp_path: Path) -> None:
    count = 3000
    requests = [request(0, "initialize", HELLO), {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    requests += [request(id, "tools/call", {"name": "echo", "arguments": {"text": "x" * id}}) for id in range(1, count)]
    requests += [modern_call("slow", "nap", seconds=1.7)]  # more than a client that leaves is granted
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, requests)))
    with open(tmp_path / "requests.jsonl", "rb") as source, open(tmp_path / "answers.jsonl", "wb") as sink:
        done = run_with(stdin=source, stdout=sink, stderr=subprocess.PIPE)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_bytes().splitlines()]
    texts = {message["id"]: text(message["result"]) for message in answers if message["id"] != 0}
    assert texts == {id: "x" * id for id in range(1, count)} | {"slow": "rested"}


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_descriptors_that_are_closed_from_the_start(closed: str) -> None:
    command = f"exec {sys.executable} {PROGRAM} {closed}"
    line = json.dumps(modern_call(1, "noisy" if closed == "2>&-" else "echo", text="")).encode() + b"\n"
    done = run_with("sh", "-c", command, input=line, capture_output=True)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert [json.loads(answer)["id"] for answer in done.stdout.splitlines()] == ([1] if closed == "2>&-" else [])


def test_one_socket_for_both_directions() -> None:
    here, there = socket.socketpair()
    with here, there, here.makefile("rb") as answers:
        here.settimeout(PROMPTLY)
        here.sendall(b"".join(json.dumps(modern_call(id, "echo", text="hello")).encode() + b"\n" for id in range(3)))
        here.shutdown(socket.SHUT_WR)
        assert run_with(stdin=there, stdout=there, stderr=subprocess.DEVNULL).returncode == 0
        there.close()
        assert {json.loads(line)["id"] for line in answers} == {0, 1, 2}


def test_a_terminal() -> None:
    """Served by threads, and not made non-blocking, which the shell would feel."""
    main, side = pty.openpty()
    command = [sys.executable, PROGRAM]
    with subprocess.Popen(command, stdin=side, stdout=side, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        os.write(main, json.dumps(modern_call(1, "echo", text="hello")).encode() + b"\n")
        seen = b""
        while b'"result"' not in seen:
            seen += os.read(main, 10_000)
        assert os.get_blocking(side)
        process.send_signal(signal.SIGINT)
        assert process.wait(PROMPTLY) == 0
        assert b"Ctrl-C ends it" in process.stderr.read()
    os.close(main)
    os.close(side)


# ── a client that does not read ──


def until_full(file: Any) -> None:
    """Wait until a program can write no more to a pipe that is not read."""
    deadline = time.monotonic() + PROMPTLY
    size = array.array("i", [0])
    while size[0] < 60_000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        fcntl.ioctl(file, termios.FIONREAD, size)


@pytest.mark.slow
def test_a_client_that_does_not_read_costs_no_memory(start: Start) -> None:
    program = start(listen=False)
    program.read_stderr()
    count, size = 800, 200_000  # 160 MB of answers
    requests = [json.dumps(modern_call(id, "big", size=size)).encode() + b"\n" for id in range(count)]
    writer = threading.Thread(target=program.write, args=(b"".join(requests),), daemon=True)
    writer.start()
    writer.join(1.0)
    assert writer.is_alive()  # the server has stopped reading
    program.read_stdout()
    assert sorted(program.receive()["id"] for _ in range(count)) == list(range(count))
    writer.join(PROMPTLY)
    assert int(text(program.call("memory"))) < 130


@pytest.mark.slow
def test_stderr_is_not_read(start: Start) -> None:
    program = start(listen=False)
    program.read_stdout()
    assert text(program.call("shout", lines=5000)) == "shouted"
    assert text(program.call("echo", text="still there")) == "still there"
    program.read_stderr()
    program.ends()
    assert "dovetail.shout: line 0 password=[redacted]" in program.said
    assert "line 4999" not in program.said


# ── the end ──


@pytest.mark.slow
@pytest.mark.rule("STDIO-7", "STDIO-8")
def test_the_end_of_the_input_is_the_end_once_calls_in_flight_are_answered(start: Start) -> None:
    program = start()
    program.send(modern_call(1, "nap", seconds=0.5))
    assert [text(message["result"]) for message in program.ends()] == ["rested"]
    assert "lifespan left" in program.said


ENDS = [
    *(("stubborn", None), ("stuck", None), ("stuck_in_executor", None), ("", signal.SIGTERM), ("", signal.SIGINT)),
    *(("stubborn", signal.SIGTERM), ("stuck", signal.SIGINT)),
]


@pytest.mark.slow
@pytest.mark.rule("STDIO-7")
@pytest.mark.parametrize(("tool", "by"), ENDS)
def test_the_end_is_clean_and_a_call_that_never_ends_does_not_delay_it(start: Start, tool: str, by: int | None) -> None:
    program = start(timings=SHORT)
    if tool:
        program.begin(tool)
    else:
        program.call("echo", text="hello")
    assert program.ends(by=by) == []
    assert "lifespan left" in program.said


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGTERM, None])
def test_open_streams_get_their_final_result(start: Start, by: int | None) -> None:
    program = start()
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["note://one"]}
    program.send(request("stream", "subscriptions/listen", {"notifications": wanted, "_meta": META}))
    assert program.receive()["method"] == "notifications/subscriptions/acknowledged"
    (final,) = program.ends(by=by)
    assert (final["id"], final["result"]["resultType"]) == ("stream", "complete")


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "by"), [("print", signal.SIGTERM), ("logging", None), ("", None)])
def test_a_client_that_does_not_read_does_not_delay_the_end(
    start: Start, by: int | None, tool: str, tmp_path: Path
) -> None:
    """Neither a thread that waits for stderr, nor answers that wait for stdout."""
    quiet = tmp_path / "quiet.py"  # one that does not itself print after `run`
    quiet.write_text(
        f"import runpy\nfrom dovetail.transports import stdio\nserver = runpy.run_path({str(PROGRAM)!r})['server']\n"
        f"stdio.serve_stdio(server.engine, owner=server, timings=stdio.Timings(**{SHORT!r}))"
    )
    program = start(quiet, listen=False)
    if tool:
        program.send(modern_call(1, "flood", target=tool))
    else:
        program.send(*(modern_call(id, "big", size=1_000_000) for id in range(50)))
    until_full(program.process.stderr if tool else program.process.stdout)  # so it has started, and hangs in a write
    program.ends(by=by)


STUCK = """
import asyncio, atexit, sys, threading, time
from dovetail.engine.threads import ThreadPool
from dovetail.transports import process

threads = ThreadPool()
begun, release = threading.Event(), threading.Event()

def hang():
    begun.set()
    release.wait()

async def main():
    running = asyncio.ensure_future(threads.run(hang, label="t"))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])

process.run_process(main, threads, exit_timeout=0.2)
print("stuck", threads.stuck, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rest", "said", "code"),
    [
        ("time.sleep(0.4); print('after'); sys.exit(3)", b"after\n", 3),
        ("threading.Thread(target=lambda: (time.sleep(0.4), print('after'))).start()", b"after\n", 0),
        ("atexit.register(time.sleep, 600)", b"", 0),  # an exit that is held up is cut short
    ],
)
def test_the_program_goes_on_after_the_end_of_a_server_with_a_stuck_thread(rest: str, said: bytes, code: int) -> None:
    source = STUCK.replace("threads =", f"{rest}; threads =") if "atexit" in rest else STUCK + rest
    done = run_with(sys.executable, "-c", source, capture_output=True)
    assert (done.stdout, done.returncode) == (b"stuck 1\n" + said, code), done.stderr


@pytest.mark.slow
def test_a_signal_while_the_lifespan_begins(start: Start) -> None:
    program = start(lifespan="hangs at the start")
    program.until_logged("lifespan entered")
    program.ends(by=signal.SIGTERM)


LIFESPANS = {"fails at the end": "the lifespan failed at its end", "hangs at the end": "did not end within 0.3 s"}


@pytest.mark.slow
@pytest.mark.parametrize("failure", LIFESPANS)
def test_a_lifespan_that_does_not_end_well(start: Start, failure: str) -> None:
    program = start(lifespan=failure, timings=SHORT)
    program.call("echo", text="hello")
    program.ends()
    assert LIFESPANS[failure] in program.said
    program.errors.clear()


@pytest.mark.slow
def test_a_silent_client_is_left_but_not_one_that_has_spoken(start: Start) -> None:
    silent, spoken = start(initialize_timeout=0.3), start(initialize_timeout=0.3)
    spoken.call("echo", text="hello")
    silent.send(b"garbage\n")  # is no greeting
    assert silent.exits() == 0
    assert "no client has made a request within 0.3 s" in silent.said
    with pytest.raises(subprocess.TimeoutExpired):
        spoken.exits(0.6)


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_not_inside_of_an_event_loop(transport: str) -> None:
    with pytest.raises(SetupError, match="outside of async functions"):
        Server("nested").run(transport=transport)
