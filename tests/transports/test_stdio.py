"""Stdio as a client sees it: what comes in, what goes out, and nothing else."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from served import ENVIRONMENT, HELLO, PROGRAM, PROMPTLY, Start, modern_call, request, text

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and /proc")


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


def test_children_do_not_have_our_pipes(start: Start) -> None:
    program = start()
    ours = {os.fstat(file.fileno()).st_ino for file in (program.process.stdin, program.process.stdout)}
    result = program.call("pipes_of_children")
    assert not result.get("isError"), result
    assert not ours & set(json.loads(text(result)))


# ── both eras, and whatever comes in ──


@pytest.mark.rule("STDIO-1", "STDIO-4")
def test_both_eras_at_once_on_one_pipe(start: Start) -> None:
    program = start()
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


def test_after_bad_input_the_next_request_works(start: Start) -> None:
    program = start()
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
def test_a_message_of_20_megabytes_goes_both_ways(start: Start) -> None:
    program = start()
    long = "x" * 20_000_000
    assert text(program.call("echo", text=long)) == long


def test_ten_thousand_requests_in_one_write(start: Start) -> None:
    program = start()
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
