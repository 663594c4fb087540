"""The tables of docs/from-fastmcp.md and docs/from-the-sdk.md: every spelling in both columns runs with its library."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import fastmcp_environment
import pytest

import missing
import moving_rows
from documented import ROOT

PAGES = {"from-fastmcp": "fastmcp", "from-the-sdk": "mcp"}
COMMANDS = ("fastmcp ", "mcp ")  # of the peers: not run
NOT_ON_COMPAT: dict[str, set[str]] = {  # their errors are those of Python, so that the page has to say it
    "from-fastmcp": {"Client(SERVERS)"},
    "from-the-sdk": set(),
}


def _spellings(page: str) -> str:
    """The page up to what has no equal."""
    return (ROOT / "docs" / f"{page}.md").read_text().partition("\n## What has no equal\n")[0]


def rows(page: str) -> list[tuple[list[str], list[str]]]:
    """What stands in the two columns of each row, as code."""
    found = []
    for line in _spellings(page).splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        if len(cells) == 3 and "`" in line:
            left, right = (re.findall(r"`([^`]+)`", cell.replace("\\|", "|")) for cell in cells[1:])
            found.append((left, right))
    return found


def problems(library: str, cells: list[list[str]], python: str | Path = sys.executable) -> list[str]:
    """What goes wrong with which cell, in a process of its own."""
    command = [str(python), moving_rows.__file__, library]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, input=json.dumps(cells), env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert len(answers) == len(cells)
    return [f"{cell}: {answer}" for cell, answer in zip(cells, answers, strict=True) if answer]


@pytest.mark.parametrize("page", PAGES)
def test_each_row_has_a_spelling_on_both_sides(page: str) -> None:
    assert len(rows(page)) > 45
    assert all(left and right for left, right in rows(page))


@pytest.mark.parametrize("page", PAGES)
def test_every_spelling_of_dovetail_runs(page: str) -> None:
    assert not problems("dovetail", [right for _, right in rows(page)])


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_spelling_of_the_peer_runs(page: str) -> None:
    python: str | Path = sys.executable
    if page == "from-fastmcp":
        missing.demand(fastmcp_environment.why_missing())
        python = fastmcp_environment.environment().python
    cells = [left for left, _ in rows(page) if not left[0].startswith(COMMANDS)]
    assert not problems(PAGES[page], cells, python)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_spelling_of_the_peer_runs_on_compat_or_names_the_page(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    title, told = text.partition("\n")[0].removeprefix("# "), text.partition("\n## As it is\n")[2]
    cells = [left for left, _ in rows(page) if not left[0].startswith(COMMANDS)]
    unnamed = [each for each in problems(f"compat.{PAGES[page]}", cells) if f'the page "{title}" of' not in each]
    assert {each.partition("'")[2].partition("']: ")[0] for each in unnamed} == NOT_ON_COMPAT[page]
    for spelling in NOT_ON_COMPAT[page]:
        assert any(f"`{name}" in told for name in (spelling, *re.findall(r"\w+(?==|\(\))", spelling))), spelling


def test_a_wrong_spelling_is_noticed() -> None:
    wrong = [
        ["server.tol()"],
        ['Server("notes", page_sise=50)'],
        ["@server.tool(timout=5)"],
        ["server.run(transport='http', prot=9000)"],
        ["await ctx.report_progres(1)"],
        ['await ctx.read_resource("notes://second")'],
        ["user: str = Depends(nobody)"],
        ['raise ToolErr("There is no such note")'],
        ["dovetail serve server.py"],
        ["dovetail run server.py --prot 80"],
    ]
    assert len(problems("dovetail", wrong)) == len(wrong)
