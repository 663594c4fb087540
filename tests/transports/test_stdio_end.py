"""How a server on stdio bears a client that does not read, and how it ends."""

import array
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import served
from served import MODERN, PROMPTLY, SHORT, Start, modern_call, request, text

from dovetail.errors import SetupError
from dovetail.server import Server

fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")

pytestmark = [pytest.mark.skipif(sys.platform == "win32", reason="signals and /proc"), pytest.mark.slow]


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
    count, size = 1500, 200_000  # 300 MB of answers
    requests = [json.dumps(modern_call(id, "big", size=size)).encode() + b"\n" for id in range(count)]
    writer = threading.Thread(target=program.write, args=(b"".join(requests),), daemon=True)
    writer.start()
    writer.join(1.0)
    assert writer.is_alive()  # the server has stopped reading
    program.read_stdout()
    assert sorted(program.receive()["id"] for _ in range(count)) == list(range(count))
    writer.join(PROMPTLY)
    used = int(text(program.call("memory")))
    assert used < 200, used


def test_a_client_that_does_not_read_does_not_delay_the_end(start: Start) -> None:
    program = start(listen=False, constants=SHORT).read_stderr()
    program.send(*(modern_call(id, "big", size=1_000_000) for id in range(50)))
    until_full(program.process.stdout)
    program.end_input()
    assert program.exits() == 0


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


@pytest.mark.rule("STDIO-7", "STDIO-8")
def test_the_end_of_the_input_is_the_end(start: Start) -> None:
    program = start()
    program.call("echo", text="hello")
    program.end_input()
    assert program.exits() == 0
    assert "lifespan left" in program.errors.decode()


def test_a_call_in_flight_may_finish(start: Start) -> None:
    program = start()
    program.send(modern_call(1, "nap", seconds=0.5))
    program.end_input()
    assert program.exits() == 0
    assert [text(message["result"]) for message in program.rest()] == ["rested"]


NEVER_ENDING = ["stubborn", "stuck", "stuck_in_executor"]


@pytest.mark.rule("STDIO-7")
@pytest.mark.parametrize("tool", NEVER_ENDING)
def test_a_call_that_never_ends_does_not_delay_the_end(start: Start, tool: str) -> None:
    program = start(constants=SHORT)
    program.begin(tool)
    program.end_input()
    assert program.exits() == 0
    assert program.rest() == []
    assert "lifespan left" in program.errors.decode()


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


def test_an_exit_that_a_stuck_thread_holds_up_is_cut_short() -> None:
    source = STUCK.replace("threads = ThreadPool()", "threads = ThreadPool(); atexit.register(time.sleep, 600)")
    done = subprocess.run([sys.executable, "-c", source], timeout=PROMPTLY, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("stuck 1\n", 0), done.stderr


def test_a_signal_while_the_lifespan_begins(start: Start) -> None:
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
def test_a_lifespan_that_does_not_end_well(start: Start, trouble: str, line: str) -> None:
    program = start(lifespan=trouble, constants=SHORT)
    program.call("echo", text="hello")
    program.end_input()
    assert program.exits() == 0
    assert line.encode() in program.errors
    program.errors.clear()


def test_a_silent_client_is_left(start: Start) -> None:
    program = start(initialize_timeout=0.3)
    program.send(b"garbage\n")  # is no greeting
    assert program.exits() == 0
    assert "no client has made a request within 0.3 s" in program.errors.decode()


def test_a_client_that_has_spoken_may_be_silent(start: Start) -> None:
    program = start(initialize_timeout=0.3)
    program.call("echo", text="hello")
    with pytest.raises(subprocess.TimeoutExpired):
        program.exits(0.6)


async def test_not_inside_of_an_event_loop() -> None:
    with pytest.raises(SetupError, match="outside of async functions"):
        Server("nested").run()
