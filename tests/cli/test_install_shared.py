"""`dovetail install` into a file that others get too: what it says there, and what whoever shares it is told."""

import sys
from pathlib import Path

import pytest
from install_stage import FILES, home, install, servers

__all__ = ["home"]


SHARED = {
    "claude-code": ".",
    "cursor": "${workspaceFolder}",
    "vscode": "${workspaceFolder}",
    "gemini": ".",
}


@pytest.mark.parametrize("host", SHARED)
def test_what_is_shared_can_be_without_paths_of_this_machine(home: Path, host: str) -> None:
    here, section = SHARED[host], "servers" if host == "vscode" else "mcpServers"
    words = ("--host", host, "--scope", "project", "--yes")
    for name, more in (
        ("uv", ("server.py:server", "--uv")),
        ("inner", ("package/module.py", "--uv")),
        ("module", ("package.module:server", "--uv")),
        ("command", ("--", "sh", "server.py", f"{home}/weather/notes.txt", "-x")),
    ):
        done = install(*words, "--name", name, *more)
        assert done.exit_code == 0, done.output
        assert "Others who get this folder" not in done.stderr
        assert str(home) not in done.stderr.replace(str(home / FILES[host, "project"]), "").partition("as it was")[0]
    found = servers(home / FILES[host, "project"], section)
    assert [(entry["command"], entry["args"]) for entry in found.values()] == [
        ("uv", ["run", "--directory", here, "dovetail", "run", "server.py:server"]),
        ("uv", ["run", "--directory", f"{here}/package", "dovetail", "run", "module.py"]),
        ("uv", ["run", "--directory", here, "dovetail", "run", "package.module:server"]),
        ("sh", [f"{here}/server.py", f"{here}/notes.txt", "-x"]),
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["server.py"], f"Others who get this folder have no {sys.executable}; --uv starts it"),
        (["--", "sh", "/bin/sh"], "Others who get this folder have no /bin/sh."),
        (["../elsewhere.py", "--uv"], "Others who get this folder have no /"),
    ],
)
def test_who_shares_paths_of_this_machine_is_told(home: Path, words: list[str], says: str) -> None:
    (home / "elsewhere.py").touch()
    done = install("--host", "cursor", "--scope", "project", "--name", "it", "--dry-run", *words)
    assert done.exit_code == 0
    assert says in done.stderr
    assert "Others who" not in install("--host", "cursor", "--name", "it", "--dry-run", *words).stderr


def test_who_shares_secrets_is_told(home: Path) -> None:
    words = ("--host", "cursor", "--scope", "project", "--dry-run", "--uv", "server.py", "--env")
    assert "gets the hidden values too" in install(*words, "KEY=hush").stderr
    assert install(*words, "KEY=${env:KEY}").stderr == (
        "Cursor reads $… as a variable of its own environment, in: env\n"
    )


@pytest.mark.parametrize(
    ("host", "value", "is_told"),
    [
        ("gemini", "pa$word", True),
        ("gemini", "${X}", True),
        ("gemini", "5 $", False),
        ("claude-code", "pa$word", False),
        ("claude-code", "a${X}b", True),
        ("cursor", "${env:X}", True),
        ("claude-desktop", "${X}", False),
    ],
)
def test_what_a_host_puts_in_the_place_of_variables_is_told(home: Path, host: str, value: str, is_told: bool) -> None:
    done = install("server.py", "--host", host, "--env", f"KEY={value}", "--dry-run")
    assert ("reads $… as a variable of its own environment, in: env" in done.stderr) == is_told
