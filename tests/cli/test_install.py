"""`dovetail install`: the file or the command of each host, the content of an entry, and what stays unchanged."""

import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from command_stage import furnish, typed

from dovetail.cli import hosts
from dovetail.cli.install import mask_secrets, write_file
from dovetail.cli.main import main

SH = shutil.which("sh")
RUN = [sys.executable, "-m", "dovetail.cli", "run"]
UV_RUN = ["run", "--directory", "HERE", "dovetail", "run"]
FILES = {
    ("claude-desktop", "user"): ".config/Claude/claude_desktop_config.json",
    ("claude-code", "user"): ".claude.json",
    ("claude-code", "project"): "weather/.mcp.json",
    ("cursor", "user"): ".cursor/mcp.json",
    ("cursor", "project"): "weather/.cursor/mcp.json",
    ("vscode", "user"): ".config/Code/User/mcp.json",
    ("vscode", "project"): "weather/.vscode/mcp.json",
    ("gemini", "user"): ".gemini/settings.json",
    ("gemini", "project"): "weather/.gemini/settings.json",
}
LINEAR = {"url": "https://mcp.linear.app/mcp", "headers": {"Authorization": "neverShowThis"}}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, with a program in a folder where commands are run, and no host's command on the PATH."""
    folder = tmp_path / "weather"
    folder.mkdir()
    furnish(folder)
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), "/usr/bin", "/bin"]))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    for name in ("XDG_STATE_HOME", "CLAUDE_CONFIG_DIR", "GEMINI_CLI_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def install(*words: str) -> Result:
    return CliRunner().invoke(main, ["install", *words])


def servers(path: Path, section: str = "mcpServers") -> Any:
    return json.loads(path.read_text())[section]


def cursor_file(home: Path, text: str | None = None) -> Path:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    whole = json.dumps({"theme": "dark", "mcpServers": {"linear": LINEAR}}) if text is None else text
    path.write_bytes(whole.encode(errors="surrogateescape"))
    return path


@pytest.mark.parametrize(("host", "scope"), FILES)
def test_a_program_is_added_to_the_file_of_the_host(home: Path, host: str, scope: str) -> None:
    done = install("server.py:server", "--host", host, "--scope", scope, "--yes", "--env", "UNITS=metric")
    assert done.exit_code == 0, done.output
    path, section = home / FILES[host, scope], "servers" if host == "vscode" else "mcpServers"
    typed = {"type": "stdio"} if host in ("claude-code", "vscode") else {}
    started = {"command": RUN[0], "args": [*RUN[1:], f"{home}/weather/server.py:server"]}
    assert servers(path, section) == {"weather": {**typed, **started, "env": {"UNITS": "metric"}}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # it has variables, which may be secrets
    assert hosts.HOSTS[host].next_step in done.stderr
    done = install("--host", host, "--scope", scope, "--name", "weather", "--remove", "--yes")
    assert (done.exit_code, "started again to forget it" in done.stderr) == (0, True)
    assert servers(path, section) == {}


def test_where_the_files_are_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"claude-code": "CLAUDE_CONFIG_DIR", "gemini": "GEMINI_CLI_HOME"}
    for host, variable in variables.items():
        for place, folder in (("~/work", "work"), ("../work", "work"), ("", "")):
            monkeypatch.setenv(variable, place)
            assert hosts.config_path(hosts.HOSTS[host], "user") == home / folder / FILES[host, "user"]
    for name in ("APPDATA", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    desktop, name = hosts.HOSTS["claude-desktop"], "Claude/claude_desktop_config.json"
    assert hosts.config_path(desktop, "user", "darwin") == home / "Library/Application Support" / name
    assert hosts.config_path(desktop, "user", "win32") == home / "AppData/Roaming" / name
    packaged = home / "AppData/Local/Packages/Claude_one/LocalCache/Roaming"
    (packaged / "Claude").mkdir(parents=True)
    assert hosts.config_path(desktop, "user", "win32") == packaged / name


@pytest.mark.parametrize(
    ("text", "indent"),
    [
        ('{\n    "a": [1, 2],\n    "mcpServers": {}\n}', 4),
        ('{\n\t"mcpServers": {\n\t}\n}\n', "\t"),
        ("", 2),
        ('\ufeff{"größe": 1.5}', 2),
        ('{\r\n  "mcpServers": {}\r\n}\r\n', 2),
    ],
)
def test_a_file_keeps_its_indent_its_mode_and_all_else(home: Path, text: str, indent: int | str) -> None:
    path = cursor_file(home, text)
    path.chmod(0o640)
    target = home / "real.json"
    path.rename(target)
    path.symlink_to(target)
    assert install("https://example.com/mcp", "--host", "cursor", "--yes").exit_code == 0
    before = json.loads(text.removeprefix("\ufeff") or "{}")
    expected = {**before, "mcpServers": {"example": {"url": "https://example.com/mcp"}}}
    shown = json.dumps(expected, indent=indent, ensure_ascii=False) + "\n"
    assert target.read_bytes().decode() == shown.replace("\n", "\r\n" if "\r\n" in text else "\n")
    assert path.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    (backup,) = (home / ".local/state/dovetail/backups").iterdir()
    assert (backup.read_bytes().decode(), stat.S_IMODE(backup.stat().st_mode)) == (text, 0o600)
    assert sorted(each.name for each in path.parent.iterdir()) == ["mcp.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"mcpServers": {} // mine\n}', "is not plain JSON: "),
        ('{"mcpServers": {', "at line 1"),
        ("[]", "has no object"),
        ('{"mcpServers": 5}', 'has no object "mcpServers"'),
        ('{"mcpServers": {"a": 1, "a": 2}}', "more than once"),
        ("\udcff", "is not plain JSON"),
    ],
)
def test_a_file_that_is_not_plain_json_is_left_alone(home: Path, text: str, message: str) -> None:
    path = cursor_file(home, text)
    done = install("server.py", "--host", "cursor", "--env", "KEY=hush", "--yes")
    assert done.exit_code == 1
    assert message in done.stderr
    assert '"KEY": "***"' in done.stderr.partition("To add it by hand:\n")[2]
    assert path.read_bytes() == text.encode(errors="surrogateescape")


def test_a_file_that_is_read_only_or_was_just_written_is_left_alone(home: Path) -> None:
    path = cursor_file(home)
    file = hosts.ConfigFile.read(path, "mcpServers")
    path.write_text('{"mcpServers": {"theirs": {}}}')
    with pytest.raises(hosts.ConfigFileError, match="by another program meanwhile"):
        write_file(file, "{}", is_private=True)
    path.chmod(0o400)
    done = install("server.py", "--host", "cursor", "--yes")
    assert os.geteuid() == 0 or (done.exit_code, "is read-only; nothing was changed" in done.stderr) == (1, True)
    assert os.geteuid() == 0 or servers(path) == {"theirs": {}}
    assert [each.name for each in path.parent.iterdir()] == ["mcp.json"]


def fake_command(home: Path, name: str, code: int = 0) -> Path:
    """A program that writes its words, a line each, and fails on demand."""
    received = home / f"{name}.txt"
    (home / "bin" / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {received}\necho oh no >&2\nexit {code}\n')
    (home / "bin" / name).chmod(0o755)
    return received


PYTHON = json.dumps({"type": "stdio", "command": SH, "args": ["-x"]})
VSCODE = json.dumps({"name": "it", "type": "http", "url": "https://x.org", "headers": {"A": "b"}})
OWN_COMMANDS = [  # the host, its program, what is typed, and the words that the program gets
    ("claude-code", "claude", "-- sh -x", ["mcp", "add-json", "it", PYTHON, "--scope", "user"]),
    ("vscode", "code", "https://x.org -H A:b", ["--add-mcp", VSCODE]),
    ("gemini", "gemini", "--env A=b --scope project -- sh -x y",
     ["mcp", "add", "--scope", "project", "--transport", "stdio", "--env", "A=b", "it", "sh", "--", "-x", "y"]),
    ("gemini", "gemini", "https://x.org -H A:b",
     [*["mcp", "add", "--scope", "user", "--transport", "http", "--header"], "A: b", "it", "https://x.org"]),
    ("claude-code", "claude", "--remove", ["mcp", "remove", "it", "--scope", "user"]),
]  # fmt: skip


@pytest.mark.parametrize(("host", "program", "words", "received"), OWN_COMMANDS)
def test_the_command_of_a_host_is_used(home: Path, host: str, program: str, words: str, received: list[str]) -> None:
    if words == "--remove":
        (home / ".claude.json").write_text('{"mcpServers": {"it": {}}}')
    log = fake_command(home, program)
    done = install("--host", host, "--name", "it", "--yes", *words.split())
    assert done.exit_code == 0, done.output
    assert log.read_text().splitlines() == received
    assert f"by `{program} {' '.join(received[:2])}`"[:20] in done.stderr
    assert not (home / FILES[host, "user"]).exists() or words == "--remove"


def test_the_command_of_a_host_that_fails_or_would_refuse(home: Path) -> None:
    """To replace a server is refused by hosts, so it is done in the file."""
    received = fake_command(home, "claude", 3)
    done = install("server.py", "--host", "claude-code", "--env", "KEY=hush", "--yes")
    assert (done.exit_code, "`claude mcp add-json` failed: oh no" in done.stderr) == (1, True)
    assert "hush" not in done.stderr
    (home / "bin" / "claude").write_text("#!/bin/sh\nexit 3\n")
    done = install("server.py", "--host", "claude-code", "--yes")
    assert (done.exit_code, "`claude mcp add-json` failed: it exited with 3" in done.stderr) == (1, True)
    received.unlink()
    (home / ".claude.json").write_text('{"mcpServers": {"weather": {"command": "old", "timeout": 5}}}')
    assert install("server.py", "--host", "claude-code", "--yes").exit_code == 5
    assert install("server.py", "--host", "claude-code", "--yes", "--force").exit_code == 0
    assert servers(home / ".claude.json")["weather"]["timeout"] == 5
    assert not received.exists()


@pytest.mark.parametrize(
    ("host", "transport", "entry"),
    [
        ("claude-code", "sse", {"type": "sse", "url": "https://mcp.example.com/mcp"}),
        ("cursor", "http", {"url": "https://mcp.example.com/mcp"}),
        ("gemini", "http", {"httpUrl": "https://mcp.example.com/mcp"}),
        ("gemini", "sse", {"url": "https://mcp.example.com/mcp"}),
    ],
)
def test_a_url_is_added_as_the_host_wants_it(home: Path, host: str, transport: str, entry: dict[str, str]) -> None:
    words = ("https://mcp.example.com/mcp", "--host", host, "--transport", transport, "--yes", "-H", "X-Team: blue")
    assert install(*words).exit_code == 0
    section = "servers" if host == "vscode" else "mcpServers"
    assert servers(home / FILES[host, "user"], section) == {"example": {**entry, "headers": {"X-Team": "blue"}}}


@pytest.mark.parametrize(
    ("words", "entry"),
    [
        (["--", "sh", "server.py", "-x", "no.py"], {"command": SH, "args": ["HERE/server.py", "-x", "no.py"]}),
        (["package.module"], {"command": RUN[0], "args": [*RUN[1:], "package.module"], "env": {"PYTHONPATH": "HERE"}}),
        (["dovetail.reference:server"], {"command": RUN[0], "args": [*RUN[1:], "dovetail.reference:server"]}),
        (["server.py", "--uv"], {"command": "uv", "args": [*UV_RUN, "HERE/server.py"]}),
        (["only_uv.has:it", "--uv"], {"command": "uv", "args": [*UV_RUN, "only_uv.has:it"]}),
    ],
    ids=["a command", "a module here", "a module elsewhere", "uv", "a module of uv"],
)
def test_other_ways_to_name_a_server(home: Path, monkeypatch: Any, words: list[str], entry: dict[str, Any]) -> None:
    found = {"sh": SH, "uv": None}
    monkeypatch.setattr(shutil, "which", lambda name: found.get(name))
    assert install("--host", "cursor", "--name", "it", "--yes", *words).exit_code == 0
    expected = json.loads(json.dumps(entry).replace("HERE", f"{home}/weather"))
    assert servers(home / ".cursor/mcp.json") == {"it": expected}


def test_what_a_server_is_called(home: Path) -> None:
    for target in (
        "server.py",
        "package.module:server",
        "http://127.0.0.1:8000/mcp",
        "https://mcp.shop.example.com/mcp",
    ):
        assert install("--host", "cursor", "--yes", target).exit_code == 0
    assert list(servers(home / ".cursor/mcp.json")) == ["weather", "module", "127-0-0-1", "shop"]


def test_of_secrets_only_names_are_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cursor_file(home)
    monkeypatch.setenv("API_KEY", "hush")
    words = ("server.py", "--host", "cursor", "--name", "linear", "--env", "API_KEY", "--env", "B=${B}")
    done = install(*words, "--dry-run")
    assert done.exit_code == 0
    assert '- "linear": …' in done.stdout
    assert '+     "API_KEY": "***",\n+     "B": "${B}"' in done.stdout
    assert servers(path) == {"linear": LINEAR}
    done = install(*words, "--yes", "--force")
    assert "hush" not in done.output
    assert "neverShowThis" not in done.output
    assert servers(path)["linear"]["env"] == {"API_KEY": "hush", "B": "${B}"}
    secrets = [
        {key: value} for key in ("env", "headers", "oauth", "x") for value in ({"name": "hush"}, ["hush"], "hush")
    ]
    assert "hush" not in json.dumps([mask_secrets({**each, "command": "sh"}) for each in secrets])


def test_another_server_of_the_name_is_not_replaced_unasked(home: Path) -> None:
    path = cursor_file(home, '{"mcpServers": {"it": {"url": "https://old.example.com", "disabled": true}}}')
    before = path.read_bytes()
    words = ("server.py", "--host", "cursor", "--name", "it")
    done = install(*words, "--yes")
    assert (done.exit_code, "--force replaces it" in done.stderr) == (5, True)
    assert path.read_bytes() == before
    done = install(*words, "--yes", "--force")
    assert done.exit_code == 0
    assert servers(path)["it"] == {"command": RUN[0], "args": [*RUN[1:], f"{home}/weather/server.py"], "disabled": True}
    assert "already, just like this" in install(*words, "--yes").stderr
    path.write_text('{"mcpServers": {"a\\u001b[31m": {}}}')
    done = install("--host", "cursor", "--name", "weather", "--remove", "--yes")
    assert (done.exit_code, "it has a\ufffd[31m" in done.stderr) == (0, True)


@pytest.mark.parametrize("host", ["claude-code", "cursor"])
def test_what_is_shared_can_be_without_paths_of_this_machine(home: Path, host: str) -> None:
    here = hosts.HOSTS[host].project_folder
    words = ("--host", host, "--scope", "project", "--yes")
    for name, more in (
        ("uv", ("server.py:server", "--uv")),
        ("inner", ("package/module.py", "--uv")),
        ("command", ("--", "sh", "server.py", f"{home}/weather/notes.txt", "-x")),
    ):
        done = install(*words, "--name", name, *more)
        assert (done.exit_code, "Others who get this folder" in done.stderr) == (0, False), done.output
    found = servers(home / FILES[host, "project"], hosts.HOSTS[host].section)
    assert [(entry["command"], entry["args"]) for entry in found.values()] == [
        ("uv", ["run", "--directory", here, "dovetail", "run", "server.py:server"]),
        ("uv", ["run", "--directory", f"{here}/package", "dovetail", "run", "module.py"]),
        ("sh", [f"{here}/server.py", f"{here}/notes.txt", "-x"]),
    ]


def test_warnings_for_the_user(home: Path) -> None:
    for words, message in (
        (["server.py"], f"Others who get this folder have no {sys.executable}; --uv starts it"),
        (["--", "sh", "/bin/sh"], "Others who get this folder have no /bin/sh."),
        (["server.py", "--uv", "--env", "KEY=hush"], "get the hidden values too"),
    ):
        done = install("--host", "cursor", "--scope", "project", "--name", "it", "--dry-run", *words)
        assert (done.exit_code, message in done.stderr) == (0, True), done.stderr


@pytest.mark.parametrize(("says_yes", "code"), [(True, 0), (False, 5)])
def test_a_person_is_asked(home: Path, monkeypatch: pytest.MonkeyPatch, says_yes: bool, code: int) -> None:
    asked: list[str] = []

    async def confirm(words: str) -> bool:
        asked.append(words)
        return says_yes

    monkeypatch.setattr("dovetail.cli.install.is_interactive", lambda: True)
    monkeypatch.setattr("dovetail.cli.ask.confirm", confirm)
    path = cursor_file(home)
    done = install("server.py", "--host", "cursor")
    assert (done.exit_code, asked, '+ "weather": {' in done.stderr) == (code, ["Change it?"], True)
    assert ("weather" in servers(path)) == says_yes


@pytest.mark.long
def test_what_was_installed_can_be_started(home: Path) -> None:
    assert install("server.py", "--host", "cursor", "--yes").exit_code == 0
    entry = servers(home / ".cursor/mcp.json")["weather"]
    done = typed(home, "call", "add", "a=2", "b=3", "--", entry["command"], *entry["args"])
    assert (done.returncode, done.stdout.strip()) == (0, b"5"), done.stderr


def test_the_page_shows_the_change_as_it_is_and_has_every_host(home: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands" / "install.md").read_text()
    shown = page.partition("--uv --env API_KEY\n")[2].partition("Change it?")[0]
    words = ("--host", "cursor", "--scope", "project", "--uv", "--env", "API_KEY=x", "--dry-run", "--name", "shop")
    done = install("server.py", *words)
    assert done.stderr + done.stdout.replace(f"{home}/weather", "/home/ada/shop") == shown
    for name, host in hosts.HOSTS.items():
        project = f"`{host.project}`" if host.project else ""
        user = host.user[1] if host.user[0] == "config" else f"~/{host.user[1]}"
        assert f"| `{name}` | `{user}` | {project} |".replace("  ", " ") in page
