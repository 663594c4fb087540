"""`dovetail call` with a server that makes a task of the call, `--background`, and `dovetail task`."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from command_stage import serve_in_process
from scripted import MODERN, elicitation, text
from task_server import CORE, DONE, WORKING, TaskServer, asking

from dovetail.cli.main import main
from dovetail.cli.output import FAILED, USAGE_ERROR

URL = "http://127.0.0.1:8000/mcp"
HALF = {"status": "working", "message": "half"}
Run = Callable[..., Result]


@pytest.fixture(params=[CORE, MODERN])
def revision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command against a server in this process."""

    def run(server: TaskServer, *words: str) -> Result:
        serve_in_process(server, monkeypatch, protocol_version=server.revision)  # type: ignore[arg-type]  # a transport
        return CliRunner().invoke(main, words)

    return run


def test_a_call_waits_for_its_task(run: Run, revision: str) -> None:
    server = TaskServer(revision, WORKING, asking(q=elicitation("Your name?")), DONE)
    done = run(server, "call", URL, "render", "--answer", "name=Ada")
    assert (done.exit_code, done.stdout) == (0, "done\n"), done.stderr
    assert server.answers["q"] == {"action": "accept", "content": {"name": "Ada"}}
    assert server.calls("tools/call")


def test_in_the_background(run: Run, revision: str) -> None:
    done = run(TaskServer(revision, WORKING), "call", URL, "render", "--background")
    assert (done.exit_code, done.stdout) == (0, "t1\n")
    assert f"dovetail task {URL} t1 --wait" in done.stderr
    done = run(TaskServer(revision, WORKING), "call", URL, "render", "--background", "--revision", revision)
    assert f"dovetail task {URL} t1 --wait --revision {revision} waits" in done.stderr
    done = run(TaskServer(revision, WORKING), "call", URL, "render", "--background", "--json")
    assert json.loads(done.stdout) == {"taskId": "t1", "status": "working"}


def test_a_call_that_becomes_no_task_has_a_result_at_once(run: Run, revision: str) -> None:
    server = TaskServer(revision, DONE)
    server.call_result = text("quick")
    assert run(server, "call", URL, "render", "--background").stdout == "quick\n"


def test_a_long_id_is_printed_as_a_whole(run: Run) -> None:
    """Some servers sign what they have to know of a task into its id."""
    server, id = TaskServer(MODERN, WORKING), "a" * 2_000
    created = {"resultType": "task", **server.task(WORKING), "taskId": id}
    server.on_tools_call = lambda message: created  # type: ignore[method-assign]
    done = run(server, "call", URL, "render", "--background")
    assert done.stdout == f"{id}\n"
    assert f" {id} --wait" in done.stderr


def test_a_program_has_no_background(run: Run) -> None:
    done = run(TaskServer(MODERN, DONE), "call", "dovetail.reference", "render", "--background")
    assert done.exit_code == USAGE_ERROR
    assert "the tasks of a program end with it" in done.stderr


def test_the_state_of_a_task(run: Run, revision: str) -> None:
    assert run(TaskServer(revision, HALF), "task", URL, "t1").stdout == "working half\n"
    done = run(TaskServer(revision, HALF), "task", URL, "t1", "--json")
    assert json.loads(done.stdout) == {"taskId": "t1", "status": "working", "statusMessage": "half"}
    done = run(TaskServer(revision, HALF), "task", URL, "t2")
    assert (done.exit_code, "Unknown task" in done.stderr) == (FAILED, True)


def test_waiting_for_a_task(run: Run, revision: str) -> None:
    done = run(TaskServer(revision, HALF, DONE), "task", URL, "t1", "--wait")
    assert (done.exit_code, done.stdout) == (0, "done\n"), done.stderr
    failed: dict[str, Any] = {"result": {**text("no beach"), "isError": True}}
    failed["status"] = "failed" if revision == CORE else "completed"
    done = run(TaskServer(revision, failed), "task", URL, "t1", "--wait")
    assert (done.exit_code, done.stdout, "no beach" in done.stderr) == (FAILED, "", True)


def test_cancelling_a_task(run: Run, revision: str) -> None:
    server = TaskServer(revision, WORKING)
    assert run(server, "task", URL, "t1", "--cancel").stdout == "cancelled as you wish\n"
    done = run(TaskServer(revision, WORKING), "task", URL, "t1", "--cancel", "--wait")
    assert (done.exit_code, "was cancelled: as you wish" in done.stderr) == (FAILED, True)
