"""The pages of the commands: every command that they show is run, and says just what they say.

A block is marked with the program of the documentation that is `server.py` in it.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from command_stage import PROMPTLY, environment

from dovetail.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs" / "commands").glob("*.md"))
BLOCK = re.compile(r"^<!-- (?P<program>\w+\.py) -->\n```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)(?P<path>[^)#]*)(#(?P<place>[^)]+))?\)")


class Shown(NamedTuple):
    page: str
    program: str
    body: str

    def __str__(self) -> str:
        return f"{self.page}: {self.program}"


BLOCKS = [
    Shown(page.stem, match["program"], match["body"]) for page in PAGES for match in BLOCK.finditer(page.read_text())
]


def test_every_command_has_a_page_that_the_index_names() -> None:
    assert [page.stem for page in PAGES] == sorted(COMMANDS)
    index = (ROOT / "docs" / "command.md").read_text()
    assert re.findall(r"^\| \[(\w+)\]\(commands/\1\.md\)", index, re.MULTILINE) == list(COMMANDS)
    assert all(page.read_text().startswith(f"# dovetail {page.stem}\n") for page in PAGES)


def test_the_commands_that_talk_to_a_server_show_what_they_print() -> None:
    assert {"call", "complete", "list", "prompt", "read"} <= {block.page for block in BLOCKS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.finditer(page.read_text()):
        target = page.parent / link["path"] if link["path"] else page
        assert target.exists(), link[0]
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
        assert link["place"] in [None, *(heading.lower().replace(" ", "-") for heading in headings)], link[0]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_what_a_page_shows_is_real(block: Shown, tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs" / "programs" / block.program, tmp_path / "server.py")
    _, *pieces = re.split(r"^\$ ", block.body, flags=re.MULTILINE)
    for piece in pieces:
        command, _, expected = piece.partition("\n")
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PROMPTLY, check=False,
        )  # fmt: skip
        assert done.stdout.rstrip("\n") == expected.rstrip("\n"), command
