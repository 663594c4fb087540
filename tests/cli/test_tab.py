"""Tab: what is offered for each word, in each shell, and that nothing is started or imported for it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from command_stage import BIN, PROMPTLY, environment

TRAP = "import pathlib\npathlib.Path('imported.txt').write_text('it was')\n"
NEVER_LOADED = ("dovetail.server", "dovetail.client", "dovetail.engine")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "server.py",
        "shop.py",
        "notes.txt",
        "_private.py",
        "code/inner.py",
        "data/table.csv",
        "notes.txt.json",
    ):
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(TRAP)
    (tmp_path / "mcp.json").write_text('// ours\n{"servers": {"shop": {}, "weather": {}, "wind\\u001b": {}}}')
    return tmp_path


def offered(folder: Path, typed: str, shell: str = "bash") -> list[str]:
    """What the script in the shell gets, a line each."""
    words = typed.split(" ")
    told = {
        "COMP_WORDS": typed,
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1),
        "_DOVETAIL_COMPLETE": f"{shell}_complete",
    }
    done = subprocess.run(
        [BIN / "dovetail"], cwd=folder, env=environment(**told, PYTHONPROFILEIMPORTTIME="1"), capture_output=True,
        text=True, timeout=PROMPTLY, check=True,
    )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "dovetail.cli.main" in loaded
    assert not loaded.intersection(NEVER_LOADED)
    assert not (folder / "imported.txt").exists()
    return done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("dovetail li", ["plain,list", "plain,lint"]),
        ("dovetail call ", ["plain,mcp.json", "plain,notes.txt.json", "plain,server.py", "plain,shop.py"]),
        ("dovetail run ", ["plain,server.py", "plain,shop.py"]),
        ("dovetail call mcp.json:", ["plain,mcp.json:shop", "plain,mcp.json:weather"]),
        ("dovetail call mcp.json:w", ["plain,mcp.json:weather"]),
        ("dovetail call nowhere.json:w", []),
        ("dovetail call notes.txt.json:w", []),
        ("dovetail call se", ["plain,server.py"]),
        ("dovetail doctor sh", ["plain,shop.py"]),
        ("dovetail run _", ["plain,_private.py"]),
        ("dovetail list code/", ["plain,code/inner.py"]),
        ("dovetail list dat", ["file,dat"]),
        ("dovetail list no/such/fold", ["file,no/such/fold"]),
        ("dovetail list server.py t", ["plain,tools", "plain,templates"]),
        ("dovetail call server.py add --output ", ["file,"]),
        ("dovetail call server.py add --log-level w", ["plain,warning"]),
        ("dovetail call server.py a", []),
    ],
)
def test_what_is_offered(folder: Path, typed: str, expected: list[str]) -> None:
    assert sorted(offered(folder, typed)) == sorted(expected)


@pytest.mark.parametrize(
    "typed",
    ["dovetail nosuch ", "dovetail call -- ", "dovetail list server.py -- ", "dovetail call server.py add \udcff "],
)
def test_a_line_that_is_not_right_yet_is_no_failure(folder: Path, typed: str) -> None:
    offered(folder, typed)  # which fails, if the command does


def test_other_shells(folder: Path) -> None:
    assert offered(folder, "dovetail call se", "zsh") == ["plain", "server.py", "_"]
    assert offered(folder, "dovetail call se", "fish") == ["plain,server.py"]
    assert offered(folder, "dovetail call mcp.json:w", "zsh") == ["plain", "mcp.json:weather", "_"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_as_a_bash_does_it(folder: Path) -> None:
    """With the line of the documentation."""
    page = Path(__file__).parents[2] / "docs" / "command.md"
    line = 'eval "$(_DOVETAIL_COMPLETE=bash_source dovetail)"'
    assert line in page.read_text()
    script = (
        f"{line}; COMP_WORDS=(dovetail call se); COMP_CWORD=2; _dovetail_completion dovetail; "
        'echo "${COMPREPLY[@]}"; complete -p dovetail'
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env={**environment(), "HOME": os.devnull}, capture_output=True, text=True,
        timeout=PROMPTLY, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["server.py", "complete -o nosort -F _dovetail_completion dovetail"], done.stderr
