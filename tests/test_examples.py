"""The examples: each passes its own tests, is small, and does what its README shows."""

import shutil
import tomllib
from pathlib import Path

import pytest

from documented import ROOT
from newcomer import newcomer

EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/README.md"))
MAX_LINES = 120


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_small_and_says_what_it_needs(example: Path) -> None:
    for path in example.glob("*.py"):
        assert len(path.read_text().splitlines()) <= MAX_LINES, path.name
    project = tomllib.loads((example / "pyproject.toml").read_text())
    assert any(each.startswith("dovetail-mcp") for each in project["project"]["dependencies"])
    assert f"]({example.name}/README.md)" in (ROOT / "examples" / "README.md").read_text()
    assert list(example.glob("test_*.py"))


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_does_what_its_readme_shows(example: Path, tmp_path: Path) -> None:
    shutil.copytree(example, tmp_path / "ada" / example.name, ignore=shutil.ignore_patterns("__pycache__", "*.db"))
    with newcomer(tmp_path, example.name, COMPANY_API="http://127.0.0.1:9000/openapi.json") as ada:
        ada.follow(example / "README.md")
