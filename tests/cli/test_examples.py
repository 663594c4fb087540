"""Every example in every `--help` is run: in a folder with a `server.py`, whose server is in this process.

An example is a line of an epilog that begins with `dovetail`; what follows two spaces explains it. What would leave
this machine, or stand in the way of other tests, is replaced.
"""

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import example_server
import pytest
from command_stage import PROMPTLY, environment, furnish, serve_in_process, typed

from dovetail import Server
from dovetail.cli.main import COMMANDS, main

LASTING = {"run", "dev"}  # they end when they are told to
ALLOWED = {"lint": {0, 1}, "doctor": {0, 1}}  # they say what they found
REPLACED = {
    "npx -y @modelcontextprotocol/server-everything": "python server.py",
    "redis://127.0.0.1:6379/0": "sqlite:state.db",
}
pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning")


def examples() -> list[tuple[str, str]]:
    """The name of each command, and a line of its own."""
    group = main.make_context("dovetail", [], resilient_parsing=True)
    epilogs = {"": main.epilog, **{name: main.get_command(group, name).epilog for name in COMMANDS}}  # type: ignore[union-attr]
    return [
        (name, re.split(r"\s{2,}", line.strip())[0])
        for name, epilog in epilogs.items()
        for line in (epilog or "").splitlines()
        if line.strip().startswith("dovetail ")
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    furnish(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples(name: str) -> None:
    mine = [line for command, line in examples() if command == name]
    assert mine
    assert all(line.split()[1] == name for line in mine)


@pytest.mark.parametrize("line", list(dict.fromkeys(line for _, line in examples() if line.split()[1] not in LASTING)))
def test_an_example_does_what_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    serve_in_process(example_server.server, monkeypatch)
    for words, others in REPLACED.items():
        line = line.replace(words, others)
    program, *words = shlex.split(line.partition(" > ")[0])
    done = typed(folder, *words, HOME=str(folder), XDG_CONFIG_HOME=str(folder))
    assert (program, done.returncode in ALLOWED.get(words[0], {0})) == ("dovetail", True), done.stderr
    assert done.stdout or "--output" in line or done.stderr


@pytest.mark.parametrize("line", list(dict.fromkeys(line for _, line in examples() if line.split()[1] == "run")))
def test_an_example_that_lasts_serves_what_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    served: list[Any] = []
    monkeypatch.setattr(Server, "run", lambda self, transport, **options: served.append((self.name, transport)))
    monkeypatch.setattr("dovetail.cli.run.BUNDLED", "dovetail.reference:create_server")
    monkeypatch.setattr(sys, "path", [*sys.path])  # what is imported is undone at the end
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    done = typed(folder, *shlex.split(line)[1:])
    assert done.returncode == 0, done.stderr
    assert served[0][1] == ("http" if "--transport http" in line or line.endswith("run") else "stdio")


def test_dev_can_be_started_and_ended(folder: Path) -> None:
    env = environment(HOME=str(folder), DOVETAIL_PORT="0")
    with (folder / "told.txt").open("w+") as told:
        words = ["dovetail", "dev", "package.module:server", "--watch", "notes.txt", "--no-open"]
        process = subprocess.Popen(words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=told, stderr=told)
        try:
            deadline = time.monotonic() + PROMPTLY
            while "Console" not in (folder / "told.txt").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.terminate()
            assert process.wait(PROMPTLY) == 0
        finally:
            process.kill()
    assert "Traceback" not in (folder / "told.txt").read_text()
