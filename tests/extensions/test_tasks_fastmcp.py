"""FastMCP's client of tasks, from an environment of its own, with our server over HTTP and stdio.

It knows tasks of 2026-07-28 only: in a handshake, or before its package for tasks is imported, they are ordinary
calls. Over HTTP its requests of tasks have no `Mcp-Name`. It polls and does not listen, and of what a task may ask it
answers elicitation alone.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastmcp_environment
import pytest
from server_process import serving

import missing
import nodejs
from official import COMPLAINT

pytestmark = pytest.mark.slow
CLIENT, SERVER = Path(__file__).parent / "fastmcp_tasks_client.py", nodejs.PROGRAMS / "tasks_server.py"

QUESTIONS = ["Which colour?", "Which size?"]
RENDERED = {"text": "A small red film of a beach."}
ORDINARY = {"rendered": RENDERED, "quick": {"text": "5"}, "failed": {"failed": "There is no beach"}, "asked": QUESTIONS}
BROKEN = {"failed": "The camera is broken"}


def call_the_server(where: str, folder: Path) -> dict[str, Any]:
    python = fastmcp_environment.environment().python
    environment = os.environ | {"SERVER_LOG": str(folder / "server.log")}
    done = subprocess.run([python, CLIENT, where], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.rule("TASK-2", "TASK-9", "TASK-11", "TASK-16", "TASK-19")
@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_the_fastmcp_client_has_tasks(tmp_path: Path, transport: str) -> None:
    missing.demand(fastmcp_environment.why_missing())
    if transport == "http":
        with serving([str(SERVER)], tmp_path / "server.log") as process:
            said = call_the_server(f"{process.origin}/mcp", tmp_path)
        assert not process.complaints
    else:
        said = call_the_server(json.dumps([sys.executable, str(SERVER)]), tmp_path)
    log = (tmp_path / "server.log").read_text()
    assert COMPLAINT not in log, log
    check_ordinary_calls(said)
    check_started_calls(said["started"])


def check_ordinary_calls(said: dict[str, Any]) -> None:
    """With tasks or without them, a call looks the same; only a tool that demands a task tells the difference."""
    needs = "This needs a client that declares: extensions.io.modelcontextprotocol/tasks"
    assert said["without"] == {**ORDINARY, "broken": {"failed": needs}}
    needs = "The tool break_down runs only as a task; call it with `task`"
    assert said["handshake"] == {**ORDINARY, "broken": {"failed": needs}}
    assert said["ordinary"] == {**ORDINARY, "broken": BROKEN}


def check_started_calls(started: dict[str, Any]) -> None:
    no_task, cancelled = started.pop("quick")["failed"], started["cancelled"].pop("failed")
    assert re.fullmatch(r"Tool 'add' did not run as a task: the server returned a CallToolResult .*", no_task)
    assert re.fullmatch(r"Task \S+ was cancelled", cancelled)
    assert started == {
        "rendered": {"questions": QUESTIONS, **RENDERED, "statuses": ["working", "completed"]},
        "failed": {"failed": "There is no beach", "statuses": ["working", "completed"]},
        "broken": {**BROKEN, "statuses": ["working", "failed"]},
        "cancelled": {"statuses": ["working", "cancelled"]},
        "asked": QUESTIONS,
    }
