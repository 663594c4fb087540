"""A stage for the command line: a folder with `server.py`, and commands run in it as a user types them."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from dovetail import Client, Server
from dovetail.cli import connect
from dovetail.cli.main import main
from dovetail.cli.shared_options import ServerTarget

PROGRAM = Path(__file__).parent / "example_server.py"
PROJECT = """[project]
name = "example"
version = "1.0.0"
description = "A bit of everything."
authors = [{name = "Ann Example"}]
dependencies = ["dovetail-mcp"]
"""
BIN = Path(sys.executable).parent
PROMPTLY = 30.0
Run = Callable[..., Result]


def furnish(folder: Path) -> None:
    """What the examples need."""
    shutil.copy(PROGRAM, folder / "server.py")
    (folder / "package").mkdir()
    shutil.copy(PROGRAM, folder / "package" / "module.py")
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "notes.txt").write_text("milk and bread\n")
    shutil.copy(Path(__file__).parents[2] / "docs" / "programs" / "openapi_shop.yaml", folder / "openapi.yaml")
    (folder / "skills" / "notes").mkdir(parents=True)
    (folder / "skills" / "notes" / "SKILL.md").write_text("---\nname: notes\ndescription: Take notes.\n---\n")
    (folder / "mcp.json").write_text(
        '{"mcpServers": {"shop": {"command": "python", "args": ["server.py"]}, "weather": {"command": "false"}}}'
    )


def environment(**more: str) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("DOVETAIL_", "NO_COLOR", "FORCE_"))
    }
    return {**inherited, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **more}


class Done(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


@contextlib.contextmanager
def forgetting_programs(folder: Path) -> Iterator[None]:
    """Modules of programs in the folder are forgotten at the end, because those of other tests have the same names."""
    path = [*sys.path]
    try:
        yield
    finally:
        sys.path[:] = path
        for name, module in [*sys.modules.items()]:
            places = [getattr(module, "__file__", None) or "/", *getattr(module, "__path__", ())]
            if any(folder in Path(place).parents for place in places):
                del sys.modules[name]


def typed(folder: Path, *words: str, given: str | bytes = b"", **env: str) -> Done:
    """A command without a terminal, in this process. What a program that it starts writes to stderr is not in it."""
    known = environment(**env)
    changed: dict[str, str | None] = {**dict.fromkeys(os.environ.keys() - known.keys()), **known}
    with contextlib.chdir(folder), forgetting_programs(folder):
        result = CliRunner().invoke(main, list(words), input=given, env=changed)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout_bytes, result.stderr_bytes)


def spawned(folder: Path, *words: str, given: bytes = b"", **env: str) -> "subprocess.CompletedProcess[bytes]":
    """The same as a process of its own."""
    return subprocess.run(
        [BIN / "dovetail", *words], cwd=folder, env=environment(**env), input=given, capture_output=True,
        timeout=PROMPTLY, check=False,
    )  # fmt: skip


def serve_in_process(server: Server, monkeypatch: pytest.MonkeyPatch, **pinned: Any) -> None:
    """Every program that a command would start is this server, in this process."""

    def client(target: ServerTarget, handlers: dict[str, Any]) -> Client:
        given = {**target.options, **handlers, **pinned}
        for_others = ("transport", "env", "cwd", "headers", "auth")
        return Client(server, **{name: value for name, value in given.items() if name not in for_others})

    @contextlib.asynccontextmanager
    async def started(target: ServerTarget) -> AsyncIterator[ServerTarget]:
        yield target

    monkeypatch.setattr(connect, "client_for", client)
    monkeypatch.setattr(ServerTarget, "started", started)


def running(server: Server, monkeypatch: pytest.MonkeyPatch, **pinned: Any) -> Run:
    """Runs commands in this process, against a server in this process; every target is that server."""
    serve_in_process(server, monkeypatch, **pinned)

    def run(*words: str, **more: Any) -> Result:
        return CliRunner().invoke(main, [words[0], "dovetail.reference", *words[1:]], **more)

    return run
