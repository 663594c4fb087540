"""docs/troubleshooting.md: every text that it quotes is one of Dovetail's, as the source has it."""

import ast
import re
from collections.abc import Iterator

import pytest

from documented import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
GAPS = re.compile(r"%[-\d.]*[a-z]|\{[^{}]*\}|…")  # what is filled in: by logging, by str.format, by an f-string


def quoted() -> list[str]:
    """The texts in the first column of the tables."""
    return re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)


def texts() -> Iterator[str]:
    """All strings of the source, with a … for each part that is filled in."""
    for path in (ROOT / "src" / "dovetail").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                yield GAPS.sub("…", "".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield GAPS.sub("…", node.value)


@pytest.fixture(scope="module")
def source() -> str:
    return "\n".join(texts())


def test_every_quoted_text_is_in_the_source(source: str) -> None:
    assert len(quoted()) > 90
    assert not [text for text in quoted() if GAPS.sub("…", text).strip("… ") not in source]


def test_no_text_is_quoted_twice_and_every_row_says_what_to_do() -> None:
    assert len({*quoted()}) == len(quoted())
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert all(all(cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]) for row in rows)


def test_a_text_that_dovetail_does_not_have_is_noticed(source: str) -> None:
    assert "another program sits there" not in source
    assert "did not finish in … s" not in source
