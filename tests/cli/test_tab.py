"""Tab: what is offered for each word, in each shell, and that nothing is started or imported for it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class
from command_stage import BIN, PROMPTLY, environment

from dovetail.cli.main import main

TRAP = "import pathlib\npathlib.Path('imported.txt').write_text('it was')\n"
NEVER_LOADED = ("dovetail.server", "dovetail.client", "dovetail.engine")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("server.py", "shop.py", "notes.txt", "_private.py", "code/inner.py", "data/table.csv", "notes.json"):
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(TRAP)
    (tmp_path / "mcp.json").write_text('{"servers": {"shop": {}, "weather": {}, "wind\\u001b": {}}}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def offered(typed: str, monkeypatch: pytest.MonkeyPatch, shell: str = "bash") -> list[str]:
    """What the script in the shell gets, a line each."""
    words = typed.split(" ")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words) - 1))
    kind = get_completion_class(shell)
    assert kind is not None
    found = kind(main, {}, "dovetail", "_DOVETAIL_COMPLETE").complete().split()
    assert not Path("imported.txt").exists()
    return found


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("dovetail li", ["plain,list", "plain,lint"]),
        ("dovetail call ", ["plain,mcp.json", "plain,notes.json", "plain,server.py", "plain,shop.py"]),
        ("dovetail run ", ["plain,server.py", "plain,shop.py"]),
        ("dovetail call mcp.json:", ["plain,mcp.json:shop", "plain,mcp.json:weather"]),
        ("dovetail call mcp.json:w", ["plain,mcp.json:weather"]),
        ("dovetail call nowhere.json:w", []),
        ("dovetail call notes.json:w", []),
        ("dovetail doctor sh", ["plain,shop.py"]),
        ("dovetail run _", ["plain,_private.py"]),
        ("dovetail list code/", ["plain,code/inner.py"]),
        ("dovetail list dat", ["file,dat"]),
        ("dovetail list no/such/fold", ["file,no/such/fold"]),
        ("dovetail list server.py t", ["plain,tools", "plain,templates"]),
        ("dovetail call server.py add --output ", ["file,"]),
        ("dovetail call server.py add --log-level w", ["plain,warning"]),
        ("dovetail call server.py a", []),
        ("dovetail call -- ", []),
    ],
)
def test_what_is_offered(folder: Path, monkeypatch: pytest.MonkeyPatch, typed: str, expected: list[str]) -> None:
    assert sorted(offered(typed, monkeypatch)) == sorted(expected)


def test_other_shells(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered("dovetail call se", monkeypatch, "zsh") == ["plain", "server.py", "_"]
    assert offered("dovetail call se", monkeypatch, "fish") == ["plain,server.py"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_as_a_bash_does_it_with_the_line_of_the_documentation(folder: Path) -> None:
    line = 'eval "$(_DOVETAIL_COMPLETE=bash_source dovetail)"'
    assert line in (Path(__file__).parents[2] / "docs" / "command.md").read_text()
    script = (
        f"{line}; COMP_WORDS=(dovetail call se); COMP_CWORD=2; _dovetail_completion dovetail; "
        'echo "${COMPREPLY[@]}"; complete -p dovetail'
    )
    env = environment(HOME=os.devnull, PYTHONPROFILEIMPORTTIME="1", PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=PROMPTLY, check=False
    )
    assert done.stdout.splitlines() == ["server.py", "complete -o nosort -F _dovetail_completion dovetail"], done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "dovetail.cli.main" in loaded
    assert not loaded.intersection(NEVER_LOADED)
