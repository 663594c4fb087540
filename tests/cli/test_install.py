"""`dovetail install`: the right file of each host, what stands in it, and that nothing is ever lost."""

import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest
from click.testing import CliRunner, Result
from command_stage import BIN, environment, furnish, typed

from dovetail.cli.installing import files, hosts
from dovetail.cli.main import main

CONFIGS = Path(__file__).parent / "configs"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "weather"
    folder.mkdir()
    furnish(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    return tmp_path


def install(*words: str) -> Result:
    return CliRunner().invoke(main, ["install", *words])


def servers(path: Path, section: str = "mcpServers") -> Any:
    return json.loads(path.read_text())[section]


SH = shutil.which("sh")
RUN = [sys.executable, "-m", "dovetail.cli", "run"]
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
    assert install("--host", host, "--scope", scope, "--name", "weather", "--remove", "--yes").exit_code == 0
    assert servers(path, section) == {}


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


def place(home: Path, name: str) -> Path:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    shutil.copy(CONFIGS / name, path)
    return path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ((CONFIGS / "broken.json").read_bytes(), "line 5, column 7: a comma or } was expected"),
        (b'{"mcpServers": []}', "no object"),
        (b'{"mcpServers": {}, "mcpServers": {}}', "more than once"),
        (b"[]", "no object"),
        (b'{"a": "\xff"}', "no text in UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "no text in UTF-8"),
        (b"// nothing but this\n", "a value was expected"),
    ],
)
def test_a_file_that_is_not_understood_is_left_alone(home: Path, content: bytes, says: str) -> None:
    path = home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_bytes(content)
    done = install("server.py", "--host", "cursor", "--yes", "--env", "KEY=hush")
    assert done.exit_code == 1
    assert says in done.stderr
    assert '"KEY": "***"' in done.stderr  # what to paste
    assert "hush" not in done.output
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["mcp.json"]
    assert install("--host", "cursor", "--name", "x", "--remove", "--yes").exit_code == 1
    assert path.read_bytes() == content


def test_a_backup_is_kept_and_never_overwritten(home: Path) -> None:
    path = place(home, "cursor.json")
    original = path.read_bytes()
    path.chmod(0o640)
    assert install("server.py", "--host", "cursor", "--yes").exit_code == 0
    second = path.read_bytes()
    assert install("--host", "cursor", "--name", "weather", "--remove", "--yes").exit_code == 0
    assert path.read_bytes() == original
    backups = sorted(path.parent.glob("mcp.json.backup-*"), key=lambda each: (len(each.name), each.name))
    assert {backup.read_bytes() for backup in backups} == {original, second}
    assert {stat.S_IMODE(each.stat().st_mode) for each in [path, *backups]} == {0o640}
    assert len(os.listdir(path.parent)) == 3  # and no temporary file


def test_a_link_is_followed(home: Path) -> None:
    path = place(home, "cursor.json")
    real = home / "dotfiles.json"
    path.rename(real)
    path.symlink_to(real)
    assert install("server.py", "--host", "cursor", "--yes").exit_code == 0
    assert path.is_symlink()
    assert set(servers(real)) == {"linear", "weather"}


def test_secrets_are_not_shown(home: Path) -> None:
    place(home, "cursor.json")
    words = ("server.py", "--host", "cursor", "--env", "API_KEY=hush")
    done = install(*words, "--dry-run")
    assert done.exit_code == 0
    assert '+\t\t\t\t"API_KEY": "***"' in done.stdout
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


def test_removing_what_is_not_there_says_what_is(home: Path) -> None:
    path = place(home, "cursor.json")
    before = path.read_bytes()
    done = install("--host", "cursor", "--name", "weather", "--remove", "--yes")
    assert done.exit_code == 0
    assert "it has linear" in done.stderr
    assert path.read_bytes() == before


def test_a_file_that_changes_meanwhile_wins(home: Path) -> None:
    path = place(home, "cursor.json")
    file = files.read(path)
    path.write_text('{"written": "by the host"}')
    with pytest.raises(files.CantUse, match="somebody else"):
        files.write(file, "{}", has_secrets=False)
    assert path.read_text() == '{"written": "by the host"}'
    assert not list(path.parent.glob(".mcp.json.*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_can_not_be_written_is_told(home: Path) -> None:
    path = place(home, "cursor.json")
    path.parent.chmod(0o500)
    done = install("server.py", "--host", "cursor", "--yes")
    path.parent.chmod(0o700)
    assert done.exit_code == 1
    assert "can't be written" in done.stderr


def test_a_folder_in_the_place_of_the_file_is_told(home: Path) -> None:
    (home / ".cursor" / "mcp.json").mkdir(parents=True)
    done = install("server.py", "--host", "cursor", "--yes")
    assert done.exit_code == 1
    assert "is no file" in done.stderr


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 5), ("", 5)])
def test_a_person_is_asked(home: Path, answer: str, code: int) -> None:
    path = place(home, "gemini.jsonc")
    before = path.read_bytes()
    child = pexpect.spawn(
        str(BIN / "dovetail"), ["install", "server.py", "--host", "cursor"], cwd=str(home / "weather"),
        env=environment(HOME=str(home), NO_COLOR="1"), encoding="utf-8", timeout=20,
    )  # fmt: skip
    child.expect_exact('+        "weather": {')
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
    shown = page.partition("--env API_KEY\n")[2].partition("Change the file?")[0]
    path = home / "weather" / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text('{\n  "mcpServers": {\n    "linear": {\n      "url": "https://mcp.linear.app/mcp"\n    }\n  }\n}\n')
    words = ("--host", "cursor", "--scope", "project", "--env", "API_KEY=x", "--dry-run", "--name", "shop")
    said = install("server.py", *words).stdout
    said = said.replace(sys.executable, "/home/ada/shop/.venv/bin/python").replace(f"{home}/weather", "/home/ada/shop")
    assert said == shown


def test_the_page_has_every_host() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands" / "install.md").read_text()
    for name, host in hosts.HOSTS.items():
        project = f"`{host.project}`" if host.project else ""
        user = host.user[1] if host.user[0] == "config" else f"~/{host.user[1]}"
        assert f"| `{name}` | `{user}` | {project} |".replace("  ", " ") in page
