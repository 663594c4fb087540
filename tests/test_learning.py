"""The quickstart and the tutorial, followed to the letter: in this environment, and in one that was empty."""

import re
from pathlib import Path

import pytest

from documented import ROOT
from newcomer import blocks, built_wheel, newcomer

DOCS = ROOT / "docs"
QUICKSTART = DOCS / "quickstart.md"
TUTORIAL = sorted((DOCS / "tutorial").glob("*.md"))
PROGRAMS = DOCS / "programs" / "tutorial"
LINK = re.compile(r"\[(?P<name>\w+\.py)\]\(\.\./programs/tutorial/(?P=name)\)")


@pytest.mark.long
def test_the_quickstart_works_as_it_is_written(tmp_path: Path) -> None:
    with newcomer(tmp_path) as ada:
        ada.follow(QUICKSTART)


@pytest.mark.long
def test_the_tutorial_works_as_it_is_written_and_each_step_ends_with_the_program_that_it_names(tmp_path: Path) -> None:
    assert len(TUTORIAL) == 5
    with newcomer(tmp_path) as ada:
        for page in TUTORIAL:
            ada.follow(page)
            (program,) = LINK.findall(page.read_text())
            place = "tests" if program.startswith("test_") else "."
            written = "test_server.py" if program.startswith("test_") else "server.py"
            assert (ada.home / "notes" / place / written).read_text() == (PROGRAMS / program).read_text()


def test_each_step_names_the_next_and_something_to_try() -> None:
    for number, page in enumerate(TUTORIAL, 1):
        text = page.read_text()
        assert text.startswith(f"# {number}. ")
        assert "\n## What you can try next\n\n- " in text
        following = TUTORIAL[number].name if number < len(TUTORIAL) else "../../examples/README.md"
        assert f"]({following})" in text.rpartition("\n\n")[2]
        assert text.count("```") == 2 * len(blocks(text))


@pytest.mark.soak
def test_with_nothing_but_python_and_a_registry_all_of_it_works(tmp_path: Path) -> None:
    with newcomer(tmp_path, wheels=built_wheel(tmp_path)) as ada:
        for page in (QUICKSTART, *TUTORIAL):
            ada.follow(page)
