"""`dovetail install` and the file that it changes: what is not understood stays, and nothing is ever lost."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from install_stage import CONFIGS, home, install, place, servers

from dovetail.cli.installing import files

__all__ = ["home"]


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
        (b'{"a": ' + b"[" * 250 + b"1," + b"]" * 250 + b"}", "was not changed: it is nested too deep"),
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


def test_the_backup_of_a_file_in_a_project_is_not_in_the_project(home: Path) -> None:
    path = home / "weather" / ".mcp.json"
    path.write_text('{"mcpServers": {}}')
    done = install("server.py", "--host", "claude-code", "--scope", "project", "--uv", "--yes")
    assert done.exit_code == 0
    backups = home / ".local" / "state" / "dovetail" / "backups"
    (backup,) = (each for each in backups.rglob("*") if each.is_file())
    assert backup.parent == backups.joinpath(*path.parent.parts[1:])
    assert f"as it was: {backup}" in done.stderr
    assert backup.read_text() == '{"mcpServers": {}}'
    assert stat.S_IMODE(backups.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.glob(".mcp*")] == [".mcp.json"]


def test_a_project_without_a_place_for_backups_is_not_touched(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "weather" / ".mcp.json"
    path.write_text("{}")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "weather" / "notes.txt"))
    done = install("server.py", "--host", "claude-code", "--scope", "project", "--yes")
    assert done.exit_code == 1
    assert "can't be used for a copy" in done.stderr
    assert path.read_text() == "{}"


@pytest.mark.parametrize(
    "words", [("server.py",), ("https://example.com/mcp?key=hush",), ("--", "npx", "--pat", "hush")]
)
def test_a_new_file_of_the_user_is_private(home: Path, words: tuple[str, ...]) -> None:
    assert install("--host", "cursor", "--yes", *words).exit_code == 0
    assert stat.S_IMODE((home / ".cursor/mcp.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("mode", "words", "is_told"),
    [
        (0o644, ("server.py", "--env", "KEY=hush"), True),
        (0o640, ("https://example.com/mcp?key=hush",), True),
        (0o600, ("server.py", "--env", "KEY=hush"), False),
        (0o644, ("server.py",), False),
    ],
)
def test_a_secret_in_a_file_for_others_is_told(home: Path, mode: int, words: tuple[str, ...], is_told: bool) -> None:
    path = place(home, "cursor.json")
    path.chmod(mode)
    done = install("--host", "cursor", "--yes", *words)
    assert (f"chmod 600 {path}" in done.stderr) == is_told
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_file_that_is_read_only_stays_as_it_is(home: Path) -> None:
    path = place(home, "cursor.json")
    before = path.read_bytes()
    path.chmod(0o444)
    for words in (("server.py", "--dry-run"), ("server.py", "--yes"), ("--remove", "--name", "linear", "--yes")):
        done = install("--host", "cursor", *words)
        assert done.exit_code == 1
        assert f"chmod u+w {path}" in done.stderr
    with pytest.raises(files.CantUse, match="read-only"):
        files.write(files.read(path), "{}", is_private=False)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["mcp.json"]


def test_a_link_is_followed(home: Path) -> None:
    path = place(home, "cursor.json")
    real = home / "dotfiles.json"
    path.rename(real)
    path.symlink_to(real)
    assert install("server.py", "--host", "cursor", "--yes").exit_code == 0
    assert path.is_symlink()
    assert set(servers(real)) == {"linear", "weather"}


def test_a_file_that_changes_meanwhile_wins(home: Path) -> None:
    path = place(home, "cursor.json")
    file = files.read(path)
    path.write_text('{"written": "by the host"}')
    with pytest.raises(files.CantUse, match="somebody else"):
        files.write(file, "{}", is_private=False)
    assert path.read_text() == '{"written": "by the host"}'
    assert os.listdir(path.parent) == ["mcp.json"]  # no backup of what was not changed, and nothing half written


def test_a_write_that_fails_leaves_nothing_behind(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place(home, "cursor.json")
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    done = install("server.py", "--host", "cursor", "--yes")
    assert done.exit_code == 1
    assert "No space left on device; it is as it was" in done.stderr
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["mcp.json"]


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_backup_stays_as_long_as_it_is_needed(home: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool) -> None:
    path = place(home, "cursor.json")
    before = path.read_bytes()
    replace = os.replace

    def interrupted(*places: Any) -> None:
        if is_replaced:
            replace(*places)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write(files.read(path), "{}", is_private=False)
    assert path.read_bytes() == (b"{}" if is_replaced else before)
    assert [each.read_bytes() for each in path.parent.glob("*.backup-*")] == ([before] if is_replaced else [])
    assert len(os.listdir(path.parent)) == 1 + is_replaced


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
