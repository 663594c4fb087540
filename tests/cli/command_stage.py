"""A stage for the command line: a folder with `server.py`, and commands run in it as a user types them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dovetail import Client, Server
from dovetail.cli.main import main
from dovetail.cli.reaching import ServerAt

PROGRAM = Path(__file__).parent / "example_server.py"
BIN = Path(sys.executable).parent
PROMPTLY = 30.0

Run = Callable[..., Result]


def furnish(folder: Path) -> None:
    """What the examples need."""
    shutil.copy(PROGRAM, folder / "server.py")
    (folder / "package").mkdir()
    shutil.copy(PROGRAM, folder / "package" / "module.py")
    (folder / "notes.txt").write_text("milk and bread\n")
    (folder / "mcp.json").write_text(
        '{"mcpServers": {"shop": {"command": "python", "args": ["server.py"]}, "weather": {"command": "false"}}}'
    )


def environment(**more: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("DOVETAIL_", "NO_COLOR", "FORCE_"))
    }
    return {**kept, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **more}


def typed(folder: Path, *words: str, given: str | bytes = b"", **env: str) -> "subprocess.CompletedProcess[bytes]":
    """A command as a process of its own, without a terminal."""
    given = given.encode() if isinstance(given, str) else given
    return subprocess.run(
        [BIN / "dovetail", *words], cwd=folder, env=environment(**env), input=given, capture_output=True,
        timeout=PROMPTLY, check=False,
    )  # fmt: skip


def running(server: Server, monkeypatch: pytest.MonkeyPatch, **pinned: Any) -> Run:
    """Runs commands in this process, against a server in this process; every target is that server."""

    def client(self: ServerAt, handlers: dict[str, Any]) -> Client:
        options = {name: self.options[name] for name in ("timeout", "protocol_version")}
        return Client(server, **{**options, **handlers, **pinned})

    monkeypatch.setattr(ServerAt, "_client", client)
    monkeypatch.setattr(ServerAt, "_start", lambda self: None)

    def run(*words: str, **more: Any) -> Result:
        return CliRunner().invoke(main, [words[0], "dovetail.reference", *words[1:]], **more)

    return run
