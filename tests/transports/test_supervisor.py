"""Several worker processes: served together, replaced when they die, ended together."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dovetail import Server, SetupError
from dovetail.transports.supervisor import RestartPolicy
from processes import HELLO, PROGRAM, SIGNALS, HttpProgram, StartHttp, children_of, http_programs, is_alive

NONE_FAILS = {"restarts": {"min_uptime": 0.0}}  # however soon a worker ends, it does not count as one that can't start

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork"), pytest.mark.slow]


@pytest.fixture
def start() -> Iterator[StartHttp]:
    with http_programs() as start:
        yield start


def started(start: StartHttp, count: int = 2, **options: object) -> tuple[HttpProgram, list[int]]:
    program = start(workers=count, **options)
    program.until_logged("lifespan entered", count)
    return program, children_of(program.process.pid)


def ends(program: HttpProgram, pids: list[int], code: int = 0) -> None:
    assert program.exits() == code
    program.until(lambda: not any(is_alive(pid) for pid in pids))


def test_all_workers_serve_at_one_port_and_know_each_others_sessions(start: StartHttp) -> None:
    program, pids = started(start)
    hello = program.post("initialize", HELLO)
    session = {"mcp-session-id": str(hello.getheader("mcp-session-id")), "mcp-protocol-version": "2025-06-18"}
    assert b'"result"' in hello.read()
    drawn: dict[int, float] = {}

    def all_have_served() -> bool:
        response = program.post("tools/call", {"name": "worker", "arguments": {}}, **session)
        body = response.read()
        assert response.status == 200, body
        found = json.loads(body)["result"]["structuredContent"]
        drawn[found["pid"]] = found["drawn"]
        return drawn.keys() == set(pids)

    program.until(all_have_served)
    assert len(set(drawn.values())) == 2  # none draws the random numbers of another
    program.signal(signal.SIGTERM)
    ends(program, pids)
    assert [program.said.count(sign) for sign in ("serves MCP at", "lifespan entered", "lifespan left")] == [1, 2, 2]
    assert program.said.count("after run") == 1  # what follows `run` is for the parent alone
    assert f"after run in {program.process.pid}" in program.said
    assert "Traceback" not in program.said


def who(program: HttpProgram) -> int:
    return program.call("worker")["structuredContent"]["pid"]


def test_a_worker_that_is_killed_is_replaced(start: StartHttp) -> None:
    program, pids = started(start, timings=NONE_FAILS)
    for _ in range(2):
        victim = children_of(program.process.pid)[0]
        os.kill(victim, signal.SIGKILL)
        program.until_logged(f"worker {victim} ended by signal 9 (Killed) and is replaced")
        program.until(lambda: len(set(children_of(program.process.pid)) - {victim}) == 2)  # noqa: B023
    program.until_logged("lifespan entered", 4)
    assert all(map(is_alive, children_of(program.process.pid)))
    assert who(program) in children_of(program.process.pid)
    pids += children_of(program.process.pid)
    program.signal(signal.SIGTERM)
    ends(program, pids)


@pytest.mark.parametrize(("number", "to_all"), [(SIGNALS[0], False), *((number, True) for number in SIGNALS)])
def test_a_signal_ends_them_all_after_their_calls(start: StartHttp, number: int, to_all: bool) -> None:
    """A terminal, and a service manager, may signal every process: workers do not take that for impatience."""
    program, pids = started(start)
    stream = program.listen()
    connection = program.begin("nap", seconds=0.7)
    for pid in [*(pids if to_all else []), program.process.pid]:
        os.kill(pid, number)
    assert b"rested" in connection.getresponse().read()
    assert b'"resultType":"complete"' in stream.read()
    ends(program, pids)
    assert "replaced" not in program.said


def test_a_second_signal_kills_them_all(start: StartHttp) -> None:
    program, pids = started(start)
    program.begin("blocks_the_loop")
    program.signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        program.exits(0.5)
    program.signal(signal.SIGTERM)
    ends(program, pids, -signal.SIGTERM)


def test_a_worker_that_does_not_end_is_killed(start: StartHttp) -> None:
    program, pids = started(start, drain_timeout=0.1, timings={"lifespan_timeout": 0.2, "kill_delay": 0.2})
    program.begin("blocks_the_loop")
    program.signal(signal.SIGTERM)
    ends(program, pids)
    assert "1 workers did not end in time and are killed" in program.said


def test_the_workers_end_when_their_parent_is_killed(start: StartHttp) -> None:
    program, pids = started(start, timings=NONE_FAILS)
    os.kill(pids[0], signal.SIGKILL)  # the replacement must not hold the other one's lifeline
    program.until_logged("lifespan entered", 3)
    pids = children_of(program.process.pid)
    connection = program.begin("nap", seconds=0.5)
    program.process.kill()
    assert b"rested" in connection.getresponse().read()
    ends(program, pids, -signal.SIGKILL)
    assert program.said.count("lifespan left") == 2


def test_workers_that_can_not_start(start: StartHttp) -> None:
    quick = {"restarts": {"first_delay": 0.01}}
    program = start(ready=False, workers=2, lifespan="fails at the start", timings=quick)
    assert program.exits() == 1
    assert "serves MCP at" not in program.said
    assert program.said.count("RuntimeError: fails at the start") >= 5
    assert "SetupError: 5 workers in a row ended before they could start or within 1 s" in program.said


def test_a_worker_that_works_goes_on_while_no_other_can_start(start: StartHttp, tmp_path: Path) -> None:
    """What they need to start is away, say a store. It may come back, and until then one is better than none."""
    away = tmp_path / "away"
    quick = {"restarts": {"first_delay": 0.01, "max_delay": 0.05}}
    program, pids = started(start, lifespan=str(away), timings=quick)
    time.sleep(RestartPolicy().min_uptime)
    away.touch()
    os.kill(pids[0], signal.SIGKILL)
    program.until_logged("with code 1 and is replaced", 2 * RestartPolicy().max_failures)
    assert who(program) == pids[1]
    away.unlink()
    program.until_logged("lifespan entered", 3)
    pids += children_of(program.process.pid)
    program.signal(signal.SIGTERM)
    ends(program, pids)


@pytest.mark.parametrize("can_be_removed", [True, False])
def test_the_file_that_they_share_is_removed_in_the_end_if_possible(
    start: StartHttp, tmp_path: Path, can_be_removed: bool
) -> None:
    options = json.dumps({"transport": "http", "workers": 2})
    program = start(command=["env", f"TMPDIR={tmp_path}", sys.executable, str(PROGRAM), options])
    program.until_logged("lifespan entered", 2)
    (folder,) = tmp_path.glob("dovetail-*")
    assert (folder / "state.db").exists()
    if not can_be_removed:
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")  # which may be anything now
    program.signal(signal.SIGTERM)
    assert program.exits() == 0
    assert folder.exists() is not can_be_removed
    assert "Traceback" not in program.said


def test_without_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(SetupError, match=r"can't fork processes; use workers=1"):
        Server("alone").run(transport="http", port=0, workers=2)


def test_not_outside_of_the_main_thread() -> None:
    with ThreadPoolExecutor(1) as aside, pytest.raises(SetupError, match="from the main thread"):
        aside.submit(Server("aside").run, transport="http", port=0, workers=2).result()
