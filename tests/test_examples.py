"""The examples: each passes its own tests, is small, and does what its README shows."""

import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import serving

from documented import ROOT
from identity_provider import CLIENT_ID, CLIENT_SECRET
from newcomer import Newcomer, newcomer

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


@pytest.fixture
def ada(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Newcomer]:
    """Someone with a copy of the example."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.db", "*.log")
    shutil.copytree(ROOT / "examples" / request.param, tmp_path / "ada" / request.param, ignore=unwanted)
    with newcomer(tmp_path, request.param, COMPANY_API="http://127.0.0.1:9000/openapi.json") as someone:
        yield someone


@pytest.mark.long
@pytest.mark.parametrize("ada", ["gateway", "notes", "sql"], indirect=True)
def test_an_example_does_what_its_readme_shows(ada: Newcomer) -> None:
    ada.follow(ada.folder / "README.md")


@pytest.mark.long
@pytest.mark.parametrize("ada", ["repositories"], indirect=True)
def test_the_example_with_a_sign_in_does_what_its_readme_shows(ada: Newcomer, tmp_path: Path) -> None:
    """With a GitHub of the tests, where the user has an account, and a browser that says yes to everything."""
    origin = f"http://127.0.0.1:{ada.ports['8000']}"
    with serving(
        [str(TESTS / "github_program.py"), "--redirect-uri", f"{origin}/callback"], tmp_path / "log"
    ) as github:
        ada.env |= {
            "ORIGIN": origin, "GITHUB_URL": github.origin, "GITHUB_CLIENT_ID": CLIENT_ID,
            "GITHUB_CLIENT_SECRET": CLIENT_SECRET, "BROWSER": BROWSER,
        }  # fmt: skip
        ada.follow(ada.folder / "README.md")
    assert github.complaints == []
