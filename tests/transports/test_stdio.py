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
import served
from served import (
    ENVIRONMENT,
    HELLO,
    MODERN,
    PROGRAM,
    PROMPTLY,
    SHORT,
    Program,
    Start,
    modern_call,
    programs,
    request,
    text,
)

from dovetail.errors import SetupError
from dovetail.server import Server

fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and /proc")


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    """One that goes on from test to test."""
    with programs() as start:
        yield start()


# ── what reaches whom ──


@pytest.mark.seed("S2-66", "S2-67")
@pytest.mark.rule("STDIO-2", "STDIO-3")
def test_only_messages_reach_stdout_and_nobody_else_reads_stdin(start: Start) -> None:
    program = start()
    result = program.call("noisy")
    assert result["structuredContent"] == {"input": "end of file", "child": "''"}
    program.end_input()
    assert program.exits() == 0
    assert program.rest() == []
    said = program.errors.decode()
    for sign in ("before run", "by print", "by write", "by child", "by prompt", "after run", "at exit"):
        assert said.count(sign) == 1, said


def test_children_do_not_have_our_pipes(program: Program) -> None:
    ours = {os.fstat(file.fileno()).st_ino for file in (program.process.stdin, program.process.stdout)}
    result = program.call("pipes_of_children")
    assert not result.get("isError"), result
    assert not ours & set(json.loads(text(result)))


# ── both eras, and whatever comes in ──


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
    assert "resultType" not in answers[3]
    assert answers[2]["resultType"] == "complete"
    assert [text(answers[id]) for id in (2, 3, 4)] == ["modern", "older", "two\nlines\r\n\u2028"]


BAD = [
    (b"garbage\n", -32700),
    (b"\xff\xfe\n", -32700),
    (b"{\n", -32700),
    (b"[" * 100_000 + b"\n", -32700),
    (b"[]\n", -32600),
    (b"17\n", -32600),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n', -32600),
]


def test_after_bad_input_the_next_request_works(program: Program) -> None:
    for line, code in BAD:
        program.send(line)
        assert program.receive()["error"]["code"] == code
        assert text(program.call("echo", text="fine")) == "fine"


@pytest.mark.seed("S2-84")
def test_blank_lines_carriage_returns_and_a_last_line_without_an_end(start: Start) -> None:
    program = start()
    first, last = (json.dumps(modern_call(id, "echo", text=id)).encode() for id in ("first", "last"))
    program.write(b"\n\r\n   \n" + first + b"\r\n\n" + last)
    program.end_input()
    assert program.exits() == 0
    assert {message["id"] for message in program.rest()} == {"first", "last"}


def test_a_line_over_the_limit_is_refused_once_and_thrown_away(start: Start) -> None:
    program = start(max_message_bytes=100_000)
    tail = json.dumps(modern_call("hidden", "echo", text="hidden")).encode()
    long = b'"' + b"x" * 200_000 + tail + b"\n"
    for begin in range(0, len(long), 5000):
        program.write(long[begin : begin + 5000])
    assert program.receive()["error"] == {"code": -32600, "message": "message larger than 100000 bytes"}
    assert text(program.call("echo", text="fine")) == "fine"
    program.end_input()
    assert program.exits() == 0
    assert program.rest() == []


@pytest.mark.slow
def test_a_message_of_20_megabytes_goes_both_ways(program: Program) -> None:
    long = "x" * 20_000_000
    assert text(program.call("echo", text=long)) == long


def test_ten_thousand_requests_in_one_write(program: Program) -> None:
    program.write(b"".join(json.dumps(request(id, "ping")).encode() + b"\n" for id in range(10_000)))
    assert sorted(program.receive()["id"] for _ in range(10_000)) == list(range(10_000))


@pytest.mark.rule("STDIO-6")
def test_a_cancelled_call_is_silent(start: Start) -> None:
    program = start()
    program.send(modern_call("gone", "nap", seconds=0.2))
    program.wait_for_error("nap runs")
    program.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "gone"}})
    assert text(program.call("nap", seconds=0.4)) == "rested"
    program.end_input()
    assert program.exits() == 0
    assert program.rest() == []


# ── other things than pipes ──


def run_with(**streams: Any) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([sys.executable, str(PROGRAM)], timeout=PROMPTLY, env=ENVIRONMENT, **streams)


@pytest.mark.slow
def test_files_instead_of_pipes(tmp_path: Path) -> None:
    count = 3000
    requests = [request(0, "initialize", HELLO), {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    requests += [request(id, "tools/call", {"name": "echo", "arguments": {"text": "x" * id}}) for id in range(1, count)]
    requests += [modern_call("slow", "nap", seconds=1.7)]  # more than a client that leaves is granted
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, requests)))
    with open(tmp_path / "requests.jsonl", "rb") as source, open(tmp_path / "answers.jsonl", "wb") as sink:
        done = run_with(stdin=source, stdout=sink, stderr=subprocess.PIPE)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    answers = {
        message["id"]: message for message in map(json.loads, (tmp_path / "answers.jsonl").read_bytes().splitlines())
    }
    assert len(answers) == count + 1
    assert all(len(text(answers[id]["result"])) == id for id in range(1, count))
    assert text(answers["slow"]["result"]) == "rested"


def test_stderr_may_be_the_same_pipe_as_stdout() -> None:
    line = json.dumps(modern_call(1, "echo", text="hello")).encode() + b"\n"
    done = run_with(input=line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0
    assert b'"text":"hello"' in done.stdout


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_descriptors_that_are_closed_from_the_start(closed: str) -> None:
    command = f"exec {sys.executable} {PROGRAM} {closed}"
    line = json.dumps(modern_call(1, "noisy" if closed == "2>&-" else "echo", text="")).encode() + b"\n"
    done = subprocess.run(["sh", "-c", command], input=line, capture_output=True, timeout=PROMPTLY, env=ENVIRONMENT)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    answered = [json.loads(answer)["id"] for answer in done.stdout.splitlines()]
    assert answered == ([1] if closed == "2>&-" else [])


def test_one_socket_for_both_directions() -> None:
    here, there = socket.socketpair()
    with (
        here,
        there,
        subprocess.Popen(
            [sys.executable, str(PROGRAM)], stdin=there, stdout=there, stderr=subprocess.DEVNULL, env=ENVIRONMENT
        ) as process,
    ):
        there.close()
        here.settimeout(PROMPTLY)
        answers = here.makefile("rb")
        for id in range(3):
            here.sendall(json.dumps(modern_call(id, "echo", text="hello")).encode() + b"\n")
            assert json.loads(answers.readline())["id"] == id
        here.shutdown(socket.SHUT_WR)
        assert answers.read() == b""
        answers.close()
        assert process.wait(PROMPTLY) == 0


def test_a_terminal() -> None:
    """Served by threads, and not made non-blocking, which the shell would feel."""
    main, side = pty.openpty()
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)], stdin=side, stdout=side, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        os.write(main, json.dumps(modern_call(1, "echo", text="hello")).encode() + b"\n")
        seen = b""
        deadline = time.monotonic() + PROMPTLY
        while b'"result"' not in seen and time.monotonic() < deadline:
            seen += os.read(main, 10_000)
        assert os.get_blocking(side)
        process.send_signal(signal.SIGINT)
        assert process.wait(PROMPTLY) == 0
        assert b"Ctrl-C ends it" in process.stderr.read()
    os.close(main)
    os.close(side)


def until_full(file: Any) -> None:
    """Wait until a program can write no more to a pipe that nobody reads."""
    deadline = time.monotonic() + PROMPTLY
    while unread(file) < 60_000:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def unread(file: Any) -> int:
    size = array.array("i", [0])
    fcntl.ioctl(file, termios.FIONREAD, size)
    return size[0]


# ── a client that does not read ──


@pytest.mark.slow
def test_a_client_that_does_not_read_costs_no_memory(start: Start) -> None:
    program = start(listen=False).read_stderr()
    count, size = 800, 200_000  # 160 MB of answers
    requests = [json.dumps(modern_call(id, "big", size=size)).encode() + b"\n" for id in range(count)]
    writer = threading.Thread(target=program.write, args=(b"".join(requests),), daemon=True)
    writer.start()
    writer.join(1.0)
    assert writer.is_alive()  # the server has stopped reading
    program.read_stdout()
    assert sorted(program.receive()["id"] for _ in range(count)) == list(range(count))
    writer.join(PROMPTLY)
    used = int(text(program.call("memory")))
    assert used < 130, used


@pytest.mark.slow
def test_a_client_that_does_not_read_does_not_delay_the_end(start: Start) -> None:
    program = start(listen=False, constants=SHORT).read_stderr()
    program.send(*(modern_call(id, "big", size=1_000_000) for id in range(50)))
    until_full(program.process.stdout)
    program.end_input()
    assert program.exits() == 0


@pytest.mark.slow
def test_nobody_reads_stderr(start: Start) -> None:
    program = start(listen=False)
    program.read_stdout()
    assert text(program.call("shout", lines=5000)) == "shouted"
    assert text(program.call("echo", text="still there")) == "still there"
    program.read_stderr()
    program.end_input()
    assert program.exits() == 0
    said = program.errors.decode()
    assert "dovetail.shout: line 0 password=[redacted]" in said
    assert "line 4999" not in said


# ── the end ──


@pytest.mark.slow
@pytest.mark.rule("STDIO-7", "STDIO-8")
def test_the_end_of_the_input_is_the_end_once_calls_in_flight_are_answered(start: Start) -> None:
    program = start()
    program.send(modern_call(1, "nap", seconds=0.5))
    program.end_input()
    assert program.exits() == 0
    assert [text(message["result"]) for message in program.rest()] == ["rested"]
    assert "lifespan left" in program.errors.decode()


NEVER_ENDING = ["stubborn", "stuck", "stuck_in_executor"]


@pytest.mark.slow
@pytest.mark.rule("STDIO-7")
@pytest.mark.parametrize("tool", NEVER_ENDING)
def test_a_call_that_never_ends_does_not_delay_the_end(start: Start, tool: str) -> None:
    program = start(constants=SHORT)
    program.begin(tool)
    program.end_input()
    assert program.exits() == 0
    assert program.rest() == []
    assert "lifespan left" in program.errors.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "number"),
    [(None, signal.SIGTERM), (None, signal.SIGINT), ("stubborn", signal.SIGTERM), ("stuck", signal.SIGINT)],
)
def test_a_signal_is_a_clean_end(start: Start, tool: str | None, number: int) -> None:
    program = start()
    if tool is None:
        program.call("echo", text="hello")
    else:
        program.begin(tool)
    program.process.send_signal(number)
    assert program.exits() == 0
    assert program.rest() == []
    assert "lifespan left" in program.errors.decode()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["signal", "input"])
def test_open_streams_get_their_final_result(start: Start, ending: str) -> None:
    program = start()
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["note://one"]}
    program.send(request("stream", "subscriptions/listen", {"notifications": wanted, "_meta": MODERN}))
    assert program.receive()["method"] == "notifications/subscriptions/acknowledged"
    if ending == "signal":
        program.process.send_signal(signal.SIGTERM)
    else:
        program.end_input()
    assert program.exits() == 0
    (final,) = program.rest()
    assert final["id"] == "stream"
    assert final["result"]["resultType"] == "complete"


@pytest.mark.slow
@pytest.mark.parametrize(("target", "ending"), [("print", "signal"), ("logging", "input")])
def test_a_thread_that_waits_for_stderr_does_not_delay_the_end(
    start: Start, ending: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"import runpy; runpy.run_path({str(served.PROGRAM)!r})['server'].run()"
    monkeypatch.setattr(served, "PROGRAM", tmp_path / "quiet.py")  # one that does not itself print after `run`
    served.PROGRAM.write_text(source)
    program = start(listen=False)
    program.send(modern_call(1, "flood", target=target))
    until_full(program.process.stderr)  # so it has started, and hangs in a write
    if ending == "signal":
        program.process.send_signal(signal.SIGTERM)
    else:
        program.end_input()
    assert program.exits() == 0


STUCK = """
import atexit, sys, threading, time
from dovetail.engine.threads import ThreadPool
from dovetail.transports import process

process.LAST_SECONDS = 0.2
threads = ThreadPool()
release = threading.Event()

async def main():
    import asyncio
    try:
        await asyncio.wait_for(threads.run(release.wait, label="t"), 0.05)
    except TimeoutError:
        pass

process.run_process(main, threads)
print("stuck", threads.stuck, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rest", "said", "code"),
    [
        ("time.sleep(0.4); print('after'); sys.exit(3)", "after", 3),
        ("threading.Thread(target=lambda: (time.sleep(0.4), print('after'))).start()", "after", 0),
    ],
)
def test_the_program_goes_on_after_the_end_of_a_server_with_a_stuck_thread(rest: str, said: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK + rest], timeout=PROMPTLY, capture_output=True, text=True, check=False
    )
    assert (done.stdout.split("\n", 1)[1].strip(), done.returncode) == (said, code), done.stderr


@pytest.mark.slow
def test_an_exit_that_a_stuck_thread_holds_up_is_cut_short() -> None:
    source = STUCK.replace("threads = ThreadPool()", "threads = ThreadPool(); atexit.register(time.sleep, 600)")
    done = subprocess.run([sys.executable, "-c", source], timeout=PROMPTLY, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("stuck 1\n", 0), done.stderr


@pytest.mark.slow
def test_a_signal_while_the_lifespan_begins(start: Start) -> None:
    program = start(lifespan="hangs at the start")
    program.wait_for_error("lifespan entered")
    program.process.send_signal(signal.SIGTERM)
    assert program.exits() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "line"),
    [
        ("fails at the end", "the lifespan failed at its end"),
        ("hangs at the end", "the lifespan did not end within 0.3 s"),
    ],
)
def test_a_lifespan_that_does_not_end_well(start: Start, trouble: str, line: str) -> None:
    program = start(lifespan=trouble, constants=SHORT)
    program.call("echo", text="hello")
    program.end_input()
    assert program.exits() == 0
    assert line.encode() in program.errors
    program.errors.clear()


@pytest.mark.slow
def test_a_silent_client_is_left(start: Start) -> None:
    program = start(initialize_timeout=0.3)
    program.send(b"garbage\n")  # is no greeting
    assert program.exits() == 0
    assert "no client has made a request within 0.3 s" in program.errors.decode()


@pytest.mark.slow
def test_a_client_that_has_spoken_may_be_silent(start: Start) -> None:
    program = start(initialize_timeout=0.3)
    program.call("echo", text="hello")
    with pytest.raises(subprocess.TimeoutExpired):
        program.exits(0.6)


async def test_not_inside_of_an_event_loop() -> None:
    with pytest.raises(SetupError, match="outside of async functions"):
        Server("nested").run()
