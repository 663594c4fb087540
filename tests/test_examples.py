"""The examples: each passes its own tests, is small, and does what its README shows."""

import contextlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import serving

from documented import ROOT
from identity_provider import CLIENT_ID, CLIENT_SECRET
from newcomer import Newcomer, built_wheel, newcomer

EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/README.md"))
TESTS = ROOT / "tests"
BROWSER = f"{sys.executable} {TESTS / 'cli' / 'guarded_server.py'} %s"
MAX_LINES = 120


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_small_and_says_what_it_needs(example: Path) -> None:
    for path in example.glob("*.py"):
        assert len(path.read_text().splitlines()) <= MAX_LINES, path.name
    project = tomllib.loads((example / "pyproject.toml").read_text())
    assert any(each.startswith("dovetail-mcp") for each in project["project"]["dependencies"])
    assert f"]({example.name}/README.md)" in (ROOT / "examples" / "README.md").read_text()
    assert list(example.glob("test_*.py"))


@contextlib.contextmanager
def with_a_copy(example: str, folder: Path, wheels: Path | None = None) -> Iterator[Newcomer]:
    unwanted = shutil.ignore_patterns("__pycache__", "*.db", "*.log")
    shutil.copytree(ROOT / "examples" / example, folder / "ada" / example, ignore=unwanted)
    with newcomer(folder, example, wheels, COMPANY_API="http://127.0.0.1:9000/openapi.json") as ada:
        yield ada


@contextlib.contextmanager
def with_an_account(ada: Newcomer, log: Path) -> Iterator[None]:
    """At a GitHub of the tests, and a browser that says yes to everything."""
    origin = f"http://127.0.0.1:{ada.ports['8000']}"
    with serving([str(TESTS / "github_program.py"), "--redirect-uri", f"{origin}/callback"], log) as github:
        ada.env |= {
            "ORIGIN": origin, "GITHUB_URL": github.origin, "GITHUB_CLIENT_ID": CLIENT_ID,
            "GITHUB_CLIENT_SECRET": CLIENT_SECRET, "BROWSER": BROWSER,
        }  # fmt: skip
        yield
    assert github.complaints == []


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_does_what_its_readme_shows(example: Path, tmp_path: Path) -> None:
    with with_a_copy(example.name, tmp_path) as ada, with_an_account(ada, tmp_path / "log"):
        ada.follow(example / "README.md")


@pytest.mark.soak
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_needs_nothing_but_what_its_readme_installs(example: Path, tmp_path: Path) -> None:
    with with_a_copy(example.name, tmp_path, built_wheel(tmp_path)) as ada, with_an_account(ada, tmp_path / "log"):
        subprocess.run([sys.executable, "-m", "venv", ada.home / ".venv"], check=True, timeout=60)
        ada.env["PATH"] = f"{ada.home / '.venv' / 'bin'}{os.pathsep}{ada.env['PATH']}"
        ada.follow(example / "README.md")
