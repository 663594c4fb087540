"""The programs of docs/client.md that sign in, and that talk to several servers."""

import sys

import pytest
from sign_in_stage import Person, notes

from documented import PROGRAMS, load
from dovetail.client.oauth import OAuth

pytestmark = pytest.mark.usefixtures("tidy")


async def test_the_program_that_signs_in(capsys: pytest.CaptureFixture[str]) -> None:
    program, person = load("client_sign_in"), Person()
    async with notes() as served:
        await program.main(served.url, OAuth(open_browser=person.open))
        await program.main(served.url, OAuth(open_browser=Person(says_yes=False).open))
    first, second = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("[", "not"))]
    assert "'read'" in first
    assert second.startswith("not signed in: ")


async def test_the_program_with_several_servers(capsys: pytest.CaptureFixture[str]) -> None:
    weather = {"command": sys.executable, "args": ["-m", "dovetail.cli", "run", str(PROGRAMS["http_server"])]}
    gone = {"command": "no-such-program-at-all"}
    await load("client_several").main({"mcpServers": {"weather": weather, "gone": gone}})
    out = capsys.readouterr().out
    assert out.startswith("gone is not there: ")
    assert out.endswith("['weather'] Sun in Rome.\n")
