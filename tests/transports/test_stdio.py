"""Real server processes on real pipes."""

import contextlib
import itertools
import json
import os
import pty
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import official
from dovetail.errors import SetupError
from dovetail.server import Server

PROGRAM = Path(__file__).parent / "programs" / "everything.py"
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
PROMPTLY = 8.0  # seconds; much more than it takes, but far less than the tools that never end
SHORT = {"INPUT_ENDED_GRACE": 0.2, "PATIENCE": 0.3, "LIFESPAN_SECONDS": 0.3}
ARGUMENTS = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}

# Unbuffered, what a program prints before `run()` is on stdout before we come.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and /proc")


class Program:
    """A server process: write lines, read lines. Whatever it says is checked in the end."""

    def __init__(self, **options: Any) -> None:
        command = [sys.executable, str(PROGRAM), json.dumps(options)]
        self.process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, bufsize=0, env=ENVIRONMENT)
        self.witness = official.Witness()
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.errors = bytearray()
        self.ids = itertools.count(1)
        self.readers: list[threading.Thread] = []

    def listen(self) -> "Program":
        """Read what the program writes, from now on."""
        self._read(self.process.stdout, self._take)
        return self.listen_to_stderr()

    def listen_to_stderr(self) -> "Program":
        self._read(self.process.stderr, self.errors.extend)
        return self

    def _read(self, file: Any, take: Callable[[bytes], None]) -> None:
        def read() -> None:
            with open(file.fileno(), "rb", closefd=False) as lines:
                for line in lines:
                    take(line)

        self.readers.append(threading.Thread(target=read, daemon=True))
        self.readers[-1].start()

    def _take(self, line: bytes) -> None:
        if official.available():
            self.witness.received(line)
        self.lines.put(line)

    def send(self, *messages: Any) -> None:
        """JSON values, or bytes as they are."""
        for message in messages:
            self.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        for line in data.split(b"\n"):
            self.witness.sent(line)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.process.stdin.fileno(), rest) :]

    def receive(self) -> Any:
        return json.loads(self.lines.get(timeout=PROMPTLY))

    def call(self, tool: str, **arguments: Any) -> Any:
        """The result of a modern call."""
        message = modern_call(next(self.ids), tool, **arguments)
        self.send(message)
        answer = self.receive()
        assert answer["id"] == message["id"], answer
        return answer["result"]

    def begin(self, tool: str) -> None:
        """Call a tool that says so on stderr, and wait until it does."""
        self.send(modern_call("begun", tool))
        self.wait_for_error(f"{tool} runs")

    def wait_for_error(self, text: str) -> None:
        deadline = time.monotonic() + PROMPTLY
        while text.encode() not in self.errors:
            assert time.monotonic() < deadline, self.errors.decode()
            time.sleep(0.01)

    def end_input(self) -> None:
        self.process.stdin.close()

    def exits(self, within: float = PROMPTLY) -> int:
        code = self.process.wait(within)
        for reader in self.readers:
            reader.join(PROMPTLY)
        return code

    def rest(self) -> list[Any]:
        return [json.loads(self.lines.get_nowait()) for _ in range(self.lines.qsize())]


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    with contextlib.ExitStack() as stack:

        def start(*, listen: bool = True, **options: Any) -> Program:
            program = Program(**options)
            stack.callback(program.witness.assert_clean)
            stack.callback(end, program)
            return program.listen() if listen else program

        yield start


def end(program: Program) -> None:
    process = program.process
    if process.poll() is None:
        process.kill()
    process.wait(PROMPTLY)
    for reader in program.readers:
        reader.join(PROMPTLY)
    for file in (process.stdin, process.stdout, process.stderr):
        file.close()
    assert b"Traceback" not in program.errors, program.errors.decode()
    assert b"Fatal" not in program.errors, program.errors.decode()


def modern_call(id: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    return request(id, "tools/call", {"name": tool, "arguments": arguments, "_meta": MODERN})


def request(id: Any, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params})}


def text(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]


# ── what reaches whom ──


@pytest.mark.rule("STDIO-2", "STDIO-3")
def test_only_messages_reach_stdout_and_nobody_else_reads_stdin(start: Callable[..., Program]) -> None:
    program = start()
    result = program.call("noisy")
    assert result["structuredContent"] == {"input": "end of file", "child": "''"}
    program.end_input()
    assert program.exits() == 0
    assert program.rest() == []
    said = program.errors.decode()
    for sign in ("before run", "by print", "by write", "by child", "by prompt", "after run", "at exit"):
        assert said.count(sign) == 1, said


def test_children_do_not_have_our_pipes(start: Callable[..., Program]) -> None:
    program = start()
    ours = {os.fstat(file.fileno()).st_ino for file in (program.process.stdin, program.process.stdout)}
    result = program.call("pipes_of_children")
    assert not result.get("isError"), result
    assert not ours & set(json.loads(text(result)))


@pytest.mark.rule("STDIO-2")
def test_a_stuck_thread_that_prints_never_reaches_stdout(start: Callable[..., Program]) -> None:
    program = start(constants=SHORT)
    program.begin("stuck")
    program.wait_for_error("still here")
    program.end_input()
    assert program.exits() == 0
    assert program.rest() == []


# ── both eras, and whatever comes in ──


@pytest.mark.rule("STDIO-1", "STDIO-4")
def test_both_eras_at_once_on_one_pipe(start: Callable[..., Program]) -> None:
    program = start()
    program.send(
        request(1, "initialize", ARGUMENTS),
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


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"garbage\n", -32700),
        (b"\xff\xfe\n", -32700),
        (b"{\n", -32700),
        (b"[" * 100_000 + b"\n", -32700),
        (b"[]\n", -32600),
        (b"17\n", -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n', -32600),
    ],
)
def test_after_bad_input_the_next_request_works(start: Callable[..., Program], line: bytes, code: int) -> None:
    program = start()
    program.send(line)
    assert program.receive()["error"]["code"] == code
    assert text(program.call("echo", text="fine")) == "fine"


def test_blank_lines_carriage_returns_and_a_last_line_without_an_end(start: Callable[..., Program]) -> None:
    program = start()
    first, last = (json.dumps(modern_call(id, "echo", text=id)).encode() for id in ("first", "last"))
    program.write(b"\n\r\n   \n" + first + b"\r\n\n" + last)
    program.end_input()
    assert program.exits() == 0
    assert {message["id"] for message in program.rest()} == {"first", "last"}


@pytest.mark.parametrize("pieces", [1, 50])
def test_a_line_over_the_limit_is_refused_once_and_thrown_away(start: Callable[..., Program], pieces: int) -> None:
    program = start(max_message_bytes=100_000)
    tail = json.dumps(modern_call("hidden", "echo", text="hidden")).encode()
    long = b'"' + b"x" * 200_000 + tail + b"\n"
    size = len(long) // pieces + 1
    for begin in range(0, len(long), size):
        program.write(long[begin : begin + size])
        time.sleep(0.001)
    assert program.receive()["error"] == {"code": -32600, "message": "message larger than 100000 bytes"}
    assert text(program.call("echo", text="fine")) == "fine"
    program.end_input()
    assert program.exits() == 0
    assert program.rest() == []


@pytest.mark.slow
def test_a_message_of_50_megabytes_goes_both_ways(start: Callable[..., Program]) -> None:
    program = start()
    long = "x" * 50_000_000
    assert text(program.call("echo", text=long)) == long


def test_ten_thousand_requests_in_one_write(start: Callable[..., Program]) -> None:
    program = start()
    program.write(b"".join(json.dumps(request(id, "ping")).encode() + b"\n" for id in range(10_000)))
    assert sorted(program.receive()["id"] for _ in range(10_000)) == list(range(10_000))


@pytest.mark.rule("STDIO-6")
def test_a_cancelled_call_is_silent(start: Callable[..., Program]) -> None:
    program = start()
    program.send(modern_call("gone", "nap", seconds=0.2))
    program.wait_for_error("nap runs")
    program.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "gone"}})
    assert text(program.call("nap", seconds=0.4)) == "rested"
    program.end_input()
    assert program.exits() == 0
    assert program.rest() == []


# ── a client that does not read ──


@pytest.mark.slow
def test_a_client_that_does_not_read_costs_no_memory(start: Callable[..., Program]) -> None:
    program = start(listen=False).listen_to_stderr()
    count, size = 600, 500_000  # 300 MB of answers
    requests = [json.dumps(modern_call(id, "big", size=size)).encode() + b"\n" for id in range(count)]
    writer = threading.Thread(target=program.write, args=(b"".join(requests),), daemon=True)
    writer.start()
    writer.join(1.0)
    assert writer.is_alive()  # the server has stopped reading
    program.listen()
    assert sorted(program.receive()["id"] for _ in range(count)) == list(range(count))
    writer.join(PROMPTLY)
    used = int(text(program.call("memory")))
    assert used < 200, used


def test_a_client_that_does_not_read_does_not_delay_the_end(start: Callable[..., Program]) -> None:
    program = start(listen=False, constants=SHORT).listen_to_stderr()
    program.send(*(modern_call(id, "big", size=1_000_000) for id in range(50)))
    time.sleep(0.5)
    program.end_input()
    assert program.exits() == 0


def test_a_client_that_stopped_reading_for_good(start: Callable[..., Program]) -> None:
    program = start(listen=False).listen_to_stderr()
    program.process.stdout.close()
    program.send(modern_call(1, "echo", text="to nobody"))
    assert program.exits() == 0


def test_nobody_reads_stderr(start: Callable[..., Program]) -> None:
    program = start(listen=False)
    program._read(program.process.stdout, program._take)
    assert text(program.call("shout", lines=5000)) == "shouted"
    assert text(program.call("echo", text="still there")) == "still there"
    program.end_input()
    assert program.process.wait(PROMPTLY) == 0
    program.listen_to_stderr()
    program.exits()
    said = program.errors.decode()
    assert "dovetail.shout: line 0 password=[redacted]" in said
    assert "line 4999" not in said


# ── the end ──


@pytest.mark.rule("STDIO-7", "STDIO-8")
def test_the_end_of_the_input_is_the_end(start: Callable[..., Program]) -> None:
    program = start()
    program.call("echo", text="hello")
    program.end_input()
    assert program.exits() == 0
    assert "lifespan left" in program.errors.decode()


def test_a_call_in_flight_may_finish(start: Callable[..., Program]) -> None:
    program = start()
    program.send(modern_call(1, "nap", seconds=0.5))
    program.end_input()
    assert program.exits() == 0
    assert [text(message["result"]) for message in program.rest()] == ["rested"]


NEVER_ENDING = [pytest.param("stubborn", marks=pytest.mark.slow), "stuck", "stuck_in_executor"]


@pytest.mark.rule("STDIO-7")
@pytest.mark.parametrize("tool", NEVER_ENDING)
def test_a_call_that_never_ends_does_not_delay_the_end(start: Callable[..., Program], tool: str) -> None:
    program = start(constants=SHORT)
    program.begin(tool)
    program.end_input()
    assert program.exits() == 0
    assert program.rest() == []
    assert "lifespan left" in program.errors.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("tool", [None, *NEVER_ENDING])
def test_a_signal_is_a_clean_end(start: Callable[..., Program], tool: str | None, number: int) -> None:
    program = start()
    if tool is None:
        program.call("echo", text="hello")
    else:
        program.begin(tool)
    program.process.send_signal(number)
    assert program.exits() == 0
    assert program.rest() == []
    assert "lifespan left" in program.errors.decode()


@pytest.mark.parametrize("ending", ["signal", "input"])
def test_open_streams_get_their_final_result(start: Callable[..., Program], ending: str) -> None:
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


def test_a_second_signal_ends_it_at_once(start: Callable[..., Program]) -> None:
    program = start()
    program.begin("blocks_the_loop")
    program.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        program.exits(0.3)
    program.process.send_signal(signal.SIGTERM)
    assert program.exits() == -signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize("target", ["print", "logging"])
@pytest.mark.parametrize("ending", ["signal", "input"])
def test_a_thread_that_waits_for_stderr_does_not_delay_the_end(
    start: Callable[..., Program], ending: str, target: str
) -> None:
    program = start(listen=False)
    program.send(modern_call(1, "flood", target=target))
    time.sleep(1)
    if ending == "signal":
        program.process.send_signal(signal.SIGTERM)
    else:
        program.end_input()
    assert program.exits() == 0


def test_a_lifespan_that_fails_at_the_start_is_an_error(start: Callable[..., Program]) -> None:
    program = start(lifespan="fails at the start")
    assert program.exits() == 1
    assert b"RuntimeError: fails at the start" in program.errors
    program.errors.clear()  # this one traceback is wanted


def test_a_signal_while_the_lifespan_begins(start: Callable[..., Program]) -> None:
    program = start(lifespan="hangs at the start")
    program.wait_for_error("lifespan entered")
    program.process.send_signal(signal.SIGTERM)
    assert program.exits() == 0


@pytest.mark.parametrize(
    ("trouble", "line"),
    [
        ("fails at the end", "the lifespan failed at its end"),
        ("hangs at the end", "the lifespan did not end within 0.3 s"),
    ],
)
def test_a_lifespan_that_does_not_end_well(start: Callable[..., Program], trouble: str, line: str) -> None:
    program = start(lifespan=trouble, constants=SHORT)
    program.call("echo", text="hello")
    program.end_input()
    assert program.exits() == 0
    assert line.encode() in program.errors
    program.errors.clear()


def test_a_silent_client_is_left(start: Callable[..., Program]) -> None:
    program = start(initialize_timeout=0.3)
    program.send(b"garbage\n")  # is no greeting
    assert program.exits() == 0
    assert "no client has made a request within 0.3 s" in program.errors.decode()


def test_a_client_that_has_spoken_may_be_silent(start: Callable[..., Program]) -> None:
    program = start(initialize_timeout=0.3)
    program.call("echo", text="hello")
    with pytest.raises(subprocess.TimeoutExpired):
        program.exits(0.6)


async def test_not_inside_of_an_event_loop() -> None:
    with pytest.raises(SetupError, match="outside of async functions"):
        Server("nested").run()


# ── other things than pipes ──


def run_with(**streams: Any) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([sys.executable, str(PROGRAM)], timeout=PROMPTLY, env=ENVIRONMENT, **streams)


@pytest.mark.slow
def test_files_instead_of_pipes(tmp_path: Path) -> None:
    count = 3000
    requests = [request(0, "initialize", ARGUMENTS), {"jsonrpc": "2.0", "method": "notifications/initialized"}]
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


def test_the_null_device_as_stdin() -> None:
    done = run_with(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (0, b"")


def test_stderr_may_be_the_same_pipe_as_stdout() -> None:
    line = json.dumps(modern_call(1, "echo", text="hello")).encode() + b"\n"
    done = run_with(input=line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0
    assert b'"text":"hello"' in done.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "<&- 2>&-"])
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
