"""Programs that are started before the client is loaded: spoken to, and ended whatever they do."""

import asyncio
import json
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from command_stage import PROGRAM

from dovetail import ConnectionLost
from dovetail.cli import started
from dovetail.cli.reaching import ServerAt, program_command
from dovetail.cli.started import client_of

OPTIONS: dict[str, Any] = {"env": None, "timeout": 10}
MUTE = "import sys, time; sys.stdin.read(); time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


def start(code: str) -> "Popen[bytes]":
    return Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, start_new_session=True)


async def test_it_is_spoken_to_and_leaves() -> None:
    server = ServerAt(program_command(str(PROGRAM)), "server.py", OPTIONS)
    with server.starting():
        async with server.connect() as client:
            assert (await client.call_tool("add", {"a": 2, "b": 3})).data == 5
            async with server.connect() as another:  # a process of its own
                assert (await another.call_tool("add", {"a": 2, "b": 3})).data == 5
        processes = [program.process for program in server._programs]
    assert [process.returncode for process in processes] == [0, 0]


async def test_a_message_larger_than_a_pipe() -> None:
    server = ServerAt(program_command(str(PROGRAM)), "server.py", OPTIONS)
    with server.starting():
        async with server.connect() as client:
            text = "word " * 200_000
            assert (await client.call_tool("summarise", {"text": text})).data == "200000 words"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit(3)", "server.py exited with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "server.py was ended by signal 9"),
        ("import os, time; os.close(1); time.sleep(60)", "server.py closed its output"),
    ],
)
async def test_why_it_is_gone(code: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started, "LEAVE_SECONDS", 0.2)
    process = start(code)
    with pytest.raises(ConnectionLost, match=why):
        async with client_of(process, "server.py", timeout=10):
            pass
    assert process.returncode is not None


@pytest.mark.parametrize("code", [MUTE, DEAF], ids=["asked", "made"])
async def test_one_that_stays_is_made_to_leave(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started, "LEAVE_SECONDS", 0.2)
    process = start(code)
    with pytest.raises(TimeoutError):
        async with client_of(process, "server.py", timeout=0.2, protocol_version="2025-11-25"):
            pass
    assert process.returncode is not None


def test_one_that_nobody_spoke_to_is_ended() -> None:
    server = ServerAt([sys.executable, "-c", MUTE], "server.py", OPTIONS)
    with server.starting():
        process = server._programs[0].process
    assert process.returncode == -9


async def test_the_environment_is_that_of_the_options(tmp_path: Path) -> None:
    code = "import json, os, sys; json.dump(dict(os.environ), open('seen.json', 'w'))"
    server = ServerAt(
        ["sh", "-c", f'cd {tmp_path} && {sys.executable} -c "{code}"'], "it", {**OPTIONS, "env": {"A": "b"}}
    )
    with server.starting():
        process = server._programs[0].process
        await asyncio.to_thread(process.wait)
    assert json.loads((tmp_path / "seen.json").read_text())["A"] == "b"
