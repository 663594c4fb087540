"""`dovetail install`: the right file of each host, what stands in it, and what is told about it."""

import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest
from command_stage import BIN, environment, typed
from install_stage import FILES, RUN, home, install, place, servers

from dovetail.cli import install as install_module
from dovetail.cli.installing import hosts

__all__ = ["home"]
SH = shutil.which("sh")


@pytest.mark.parametrize(("host", "scope"), FILES)
def test_a_program_is_added_to_the_file_of_the_host(home: Path, host: str, scope: str) -> None:
    done = install("server.py:server", "--host", host, "--scope", scope, "--yes", "--env", "UNITS=metric")
    assert done.exit_code == 0, done.output
    path, section = home / FILES[host, scope], "servers" if host == "vscode" else "mcpServers"
    assert servers(path, section) == {
        "weather": {
            **({"type": "stdio"} if host in ("claude-code", "vscode") else {}),
            "command": RUN[0],
            "args": [*RUN[1:], f"{home}/weather/server.py:server"],
            "env": {"UNITS": "metric"},
        }
    }
    assert path.read_text().endswith("}\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # it has variables, which may be secrets
    assert len(list(path.parent.glob("*backup*"))) == 0
    assert hosts.HOSTS[host].then in done.stderr
    done = install("--host", host, "--scope", scope, "--name", "weather", "--remove", "--yes")
    assert done.exit_code == 0
    assert "started again to forget it" in done.stderr
    assert servers(path, section) == {}


@pytest.mark.parametrize(
    ("host", "variable", "name"),
    [("claude-code", "CLAUDE_CONFIG_DIR", ".claude.json"), ("gemini", "GEMINI_CLI_HOME", ".gemini/settings.json")],
)
def test_a_host_whose_folder_is_elsewhere(
    home: Path, monkeypatch: pytest.MonkeyPatch, host: str, variable: str, name: str
) -> None:
    for given in (str(home / "work"), "~/work", "../work"):
        monkeypatch.setenv(variable, given)
        assert hosts.file_of(hosts.HOSTS[host], "user") == home / "work" / name
    assert install("server.py", "--host", host, "--yes").exit_code == 0
    assert "weather" in servers(home / "work" / name)
    assert not (home / name).exists()
    monkeypatch.setenv(variable, "")
    assert hosts.file_of(hosts.HOSTS[host], "user") == home / name


def test_a_packaged_app_on_windows_has_its_own_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = home / "Local"
    monkeypatch.setenv("APPDATA", str(home / "Roaming"))
    monkeypatch.setenv("LOCALAPPDATA", str(local))
    desktop, inner = hosts.HOSTS["claude-desktop"], "LocalCache/Roaming/Claude"
    (local / "Packages" / "Claude_never_started").mkdir(parents=True)
    (local / "Packages" / "Other_app" / inner).mkdir(parents=True)
    usual = home / "Roaming" / "Claude" / "claude_desktop_config.json"
    assert hosts.files_of(desktop, "user", "win32") == [usual]
    packaged = [local / "Packages" / name / inner for name in ("Claude_one", "Claude_two")]
    packaged[0].mkdir(parents=True)
    assert hosts.files_of(desktop, "user", "win32") == [packaged[0] / usual.name]
    assert hosts.files_of(hosts.HOSTS["vscode"], "user", "win32") == [home / "Roaming/Code/User/mcp.json"]
    monkeypatch.setattr(install_module, "files_of", lambda host, scope: hosts.files_of(host, scope, "win32"))
    done = install("server.py", "--host", "claude-desktop", "--yes")
    assert done.exit_code == 0
    assert f"is a packaged app here, and reads {packaged[0] / usual.name}" in done.stderr
    packaged[1].mkdir(parents=True)
    done = install("server.py", "--host", "claude-desktop", "--yes", "--name", "second")
    assert done.exit_code == 1
    assert all(str(place / usual.name) in done.stderr for place in packaged)
    assert "second" not in (packaged[0] / usual.name).read_text()
    assert not (packaged[1] / usual.name).exists()
    assert not usual.exists()


@pytest.mark.parametrize(
    ("host", "transport", "entry"),
    [
        ("claude-code", "http", {"type": "http", "url": "https://mcp.example.com/mcp"}),
        ("claude-code", "sse", {"type": "sse", "url": "https://mcp.example.com/mcp"}),
        ("cursor", "http", {"url": "https://mcp.example.com/mcp"}),
        ("vscode", "http", {"type": "http", "url": "https://mcp.example.com/mcp"}),
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
        (["--", "uvx", "mcp-server-git"], {"command": shutil.which("uvx") or "uvx", "args": ["mcp-server-git"]}),
        (["--", "sh", "server.py", "-x", "no.py"], {"command": SH, "args": ["HERE/server.py", "-x", "no.py"]}),
        (["package.module"], {"command": RUN[0], "args": [*RUN[1:], "package.module"], "env": {"PYTHONPATH": "HERE"}}),
        (["dovetail.reference:server"], {"command": RUN[0], "args": [*RUN[1:], "dovetail.reference:server"]}),
        (
            ["server.py", "--uv"],
            {
                "command": shutil.which("uv") or "uv",
                "args": ["run", "--directory", "HERE", "dovetail", "run", "HERE/server.py"],
            },
        ),
    ],
    ids=["a command", "a command with a file", "a module here", "a module elsewhere", "uv"],
)
def test_other_ways_to_name_a_server(home: Path, words: list[str], entry: dict[str, Any]) -> None:
    assert install("--host", "cursor", "--name", "it", "--yes", *words).exit_code == 0
    assert servers(home / ".cursor/mcp.json") == {
        "it": json.loads(json.dumps(entry).replace("HERE", f"{home}/weather"))
    }


def test_the_search_path_that_was_asked_for_is_kept(home: Path) -> None:
    words = ("package.module", "--host", "cursor", "--yes", "--force", "--env")
    for given, path in (("/lib", f"/lib{os.pathsep}{home}/weather"), (f"{home}/weather", f"{home}/weather")):
        assert install(*words, f"PYTHONPATH={given}").exit_code == 0
        assert servers(home / ".cursor/mcp.json")["module"]["env"] == {"PYTHONPATH": path}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["server.py"], "weather"),
        (["package/module.py:server"], "module"),
        (["package.module:server"], "module"),
        (["https://www.example.com/mcp"], "example"),
        (["http://127.0.0.1:8000/mcp"], "127-0-0-1"),
        (["http://[::1]:8000/mcp"], "1"),
        (["--", "npx", "-y", "@scope/some-server@latest", "/tmp"], "some-server"),
        (["--", "uvx", "mcp-server-git", "--repository", "/tmp"], "mcp-server-git"),
        (["--", "python3.12", "-m", "Some_Thing"], "some-thing"),
        (["--", "python", "server.py"], "weather"),
        (["--", "docker", "run", "-i", "ghcr.io/github/github-mcp-server:1"], "github-mcp-server"),
        (["--", "node"], "node"),
    ],
)
def test_what_a_server_is_called(home: Path, words: list[str], name: str) -> None:
    assert install("--host", "cursor", "--yes", *words).exit_code == 0
    assert list(servers(home / ".cursor/mcp.json")) == [name]


def test_an_entry_of_null_is_an_entry(home: Path) -> None:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text('{"mcpServers": {"weather": null}}')
    assert install("server.py", "--host", "cursor", "--yes").exit_code == 5
    assert install("--host", "cursor", "--name", "weather", "--remove", "--yes").exit_code == 0
    assert path.read_text() == '{"mcpServers": {}}'


@pytest.mark.parametrize(
    ("platform", "folder"),
    [
        ("linux", "HOME/.config"),
        ("darwin", "HOME/Library/Application Support"),
        ("win32", "HOME/AppData/Roaming"),
    ],
)
def test_where_programs_keep_what_is_theirs(
    home: Path, monkeypatch: pytest.MonkeyPatch, platform: str, folder: str
) -> None:
    monkeypatch.delenv("APPDATA", raising=False)
    assert str(hosts.config_folder(platform)) == folder.replace("HOME", str(home))
    monkeypatch.setenv("APPDATA", "/roaming")
    assert str(hosts.config_folder("win32")) == "/roaming"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--host", "cursor"], 2, "which server?"),
        (["nothing.py", "--host", "cursor"], 2, "there is no file nothing.py"),
        (["server.py"], 2, "--host"),
        (["server.py", "--host", "emacs"], 2, "emacs"),
        (["server.py", "--host", "cursor", "--name", "a b"], 2, "use letters"),
        (["server.py", "--host", "cursor", "--env", "NO_SUCH_VARIABLE"], 2, "NO_SUCH_VARIABLE: there is no such"),
        (["ftp://example.com", "--host", "cursor"], 2, "https://"),
        (["http://[::1/mcp", "--host", "cursor"], 2, "is no URL"),
        (["https://", "--host", "cursor"], 2, "is no URL"),
        (["https:///mcp", "--host", "cursor"], 2, "is no URL"),
        (["https://example.com:x/", "--host", "cursor"], 2, "is no URL"),
        (["https://exa mple.com/", "--host", "cursor"], 2, "is no URL"),
        (["sevrer", "--host", "cursor"], 2, "there is no module sevrer"),
        (["serve.txt", "--host", "cursor"], 2, "there is no module serve.txt"),
        (["package.modul", "--host", "cursor"], 2, "there is no module package.modul"),
        (["package", "--host", "cursor"], 2, "is a folder; name the program in it, as package/server.py"),
        (["/tmp", "--host", "cursor"], 2, "/tmp is a folder"),
        (["a b", "--host", "cursor"], 2, "neither a Python program nor a module"),
        (["server.py:", "--host", "cursor"], 2, "after the colon"),
        (["server.py:a:b", "--host", "cursor"], 2, "neither a Python program nor a module"),
        (["server.py", "--host", "cursor", "-H", "A:b"], 2, "--header does not go with a Python program, which takes"),
        (["server.py", "--host", "cursor", "--transport", "sse"], 2, "--transport does not go with a Python program"),
        (["https://x.org", "--host", "cursor", "-H", "A: b\r\nC: d"], 2, "--header A: it has a line break"),
        (["https://x.org", "--host", "cursor", "-H", "A\x1b:b"], 2, "it has a line break or another"),
        (["https://x.org", "--host", "cursor", "-e", "A=b"], 2, "--env does not go with a URL, which takes --header"),
        (["https://x.org", "--host", "cursor", "--uv"], 2, "--uv does not go with a URL"),
        (["--host", "cursor", "--uv", "--", "npx", "x"], 2, "--uv does not go with a command after --, which takes"),
        (["--host", "cursor", "-H", "A:b", "--", "npx", "x"], 2, "--header does not go with a command after --"),
        (["--host", "cursor", "--remove"], 2, "which server? --name says"),
        (["--host", "cursor", "--remove", "--name", "x", "--env", "A=b"], 2, "--env does not go with --remove"),
        (["--host", "cursor", "--remove", "--name", "x", "--force"], 2, "--force does not go with --remove"),
        (["https://example.com", "--host", "cursor", "-H", "secret"], 2, "NAME:VALUE"),
        (["https://example.com", "--host", "claude-desktop"], 2, "under Connectors"),
        (["server.py", "--host", "claude-desktop", "--scope", "project"], 2, "no configuration for a project"),
        (["server.py", "--host", "claude-code", "--name", "workspace"], 2, "for itself"),
        (["server.py", "--host", "cursor"], 5, "--yes"),
    ],
)
def test_what_is_refused_changes_nothing(home: Path, words: list[str], code: int, says: str) -> None:
    done = install(*words)
    assert (done.exit_code, done.stdout) == (code, "")
    assert says in done.stderr
    assert not (home / ".cursor").exists()


def test_secrets_are_not_shown(home: Path) -> None:
    place(home, "cursor.json")
    words = ("server.py", "--host", "cursor", "--env", "API_KEY=hush")
    done = install(*words, "--dry-run")
    assert done.exit_code == 0
    assert '+        "API_KEY": "***"' in done.stdout
    assert done.stderr == ""
    done = install(*words, "--yes")
    assert "hush" not in done.output
    assert "neverShowThis" not in done.output
    assert servers(home / ".cursor/mcp.json")["weather"]["env"] == {"API_KEY": "hush"}


def test_the_environment_can_hold_the_secret(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "from outside")
    assert install("server.py", "--host", "cursor", "--env", "API_KEY", "--yes").exit_code == 0
    assert servers(home / ".cursor/mcp.json")["weather"]["env"] == {"API_KEY": "from outside"}


def test_another_server_of_the_name_is_not_replaced_unasked(home: Path) -> None:
    path = place(home, "cursor.json")
    before = path.read_bytes()
    words = ("server.py", "--host", "cursor", "--name", "linear")
    done = install(*words, "--yes")
    assert done.exit_code == 5
    assert "--force replaces it" in done.stderr
    assert path.read_bytes() == before
    assert install(*words, "--yes", "--force").exit_code == 0
    assert servers(path)["linear"]["command"] == sys.executable
    again = install(*words, "--yes")
    assert again.exit_code == 0
    assert "already" in again.stderr


def test_what_a_host_keeps_with_a_server_stays(home: Path) -> None:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(
        """{"mcpServers": {
  "it": {
    "url": "https://old.example.com", // since May
    "headers": {"X-Old": "hush", "X-Team": "hush" /* blue */},
    "disabled": true, // for now
    "autoApprove": ["add"]
  }
}}
"""
    )
    words = ("https://new.example.com", "--host", "cursor", "--name", "it", "-H", "X-Team: psst")
    done = install(*words, "--yes", "--force")
    assert done.exit_code == 0
    assert "Kept of what was there: disabled, autoApprove\n" in done.stderr
    assert "Not kept, give it again if it is needed: headers X-Old\n" in done.stderr
    assert "Comments in it that go: 1\n" in done.stderr
    assert "hush" not in done.output
    assert path.read_text() == (
        """{"mcpServers": {
  "it": {
    "url": "https://new.example.com", // since May
    "headers": {"X-Team": "psst"},
    "disabled": true, // for now
    "autoApprove": ["add"]
  }
}}
"""
    )
    assert "already" in install(*words, "--yes").stderr
    done = install(*words[:-1], "X-Team: other", "--dry-run")
    assert (done.stdout, done.stderr.splitlines()[-1]) == ("", "Hidden values change in: headers")


def test_a_server_of_an_odd_name_can_go(home: Path) -> None:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text('{"mcpServers": {"my server \\u001b[31m": {}, "workspace": {}}}')
    assert install("--host", "cursor", "--name", "my server", "--remove", "--yes").exit_code == 0
    done = install("--host", "cursor", "--name", "my server \x1b[31m", "--remove", "--yes")
    assert done.exit_code == 0
    assert "\x1b" not in done.output
    assert servers(path) == {"workspace": {}}


def test_a_command_that_is_not_here_is_told(home: Path) -> None:
    assert "There is no program nxp here" in install("--host", "cursor", "--dry-run", "--", "nxp", "some-server").stderr
    assert install("--host", "cursor", "--dry-run", "--", "sh", "-x").stderr == ""


def test_removing_what_is_not_there_says_what_is(home: Path) -> None:
    path = place(home, "cursor.json")
    before = path.read_bytes()
    done = install("--host", "cursor", "--name", "weather", "--remove", "--yes")
    assert done.exit_code == 0
    assert "it has linear" in done.stderr
    assert path.read_bytes() == before


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 5), ("", 5)])
def test_a_person_is_asked(home: Path, answer: str, code: int) -> None:
    path = place(home, "gemini.jsonc")
    before = path.read_bytes()
    child = pexpect.spawn(
        str(BIN / "dovetail"), ["install", "server.py", "--host", "cursor"], cwd=str(home / "weather"),
        env=environment(HOME=str(home), NO_COLOR="1"), encoding="utf-8", timeout=20,
    )  # fmt: skip
    child.expect_exact('+    "weather": {')
    child.expect_exact("Change the file? [y/N] ")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == code
    assert (path.read_bytes() == before) == (code != 0)


def test_what_was_installed_can_be_started(home: Path) -> None:
    assert install("server.py", "--host", "cursor", "--yes").exit_code == 0
    entry = servers(home / ".cursor/mcp.json")["weather"]
    done = typed(home, "call", "add", "a=2", "b=3", "--", entry["command"], *entry["args"])
    assert (done.returncode, done.stdout.strip()) == (0, b"5"), done.stderr


def test_the_page_shows_the_change_as_it_is(home: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands" / "install.md").read_text()
    shown = page.partition("--uv --env API_KEY\n")[2].partition("Change the file?")[0]
    path = home / "weather" / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text('{\n  "mcpServers": {\n    "linear": {\n      "url": "https://mcp.linear.app/mcp"\n    }\n  }\n}\n')
    words = ("--host", "cursor", "--scope", "project", "--uv", "--env", "API_KEY=x", "--dry-run", "--name", "shop")
    done = install("server.py", *words)
    assert done.stderr + done.stdout.replace(f"{home}/weather", "/home/ada/shop") == shown


def test_the_page_has_every_host() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands" / "install.md").read_text()
    for name, host in hosts.HOSTS.items():
        project = f"`{host.project}`" if host.project else ""
        user = host.user[1] if host.user[0] == "config" else f"~/{host.user[1]}"
        assert f"| `{name}` | `{user}` | {project} |".replace("  ", " ") in page
