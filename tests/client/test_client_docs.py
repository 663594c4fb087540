"""The programs of docs/client.md."""

import sys

import pytest
from sign_in_stage import Person, notes

from documented import PROGRAMS, load
from dovetail import Client
from dovetail.client.oauth import OAuth
from dovetail.protocol import revisions

pytestmark = [
    pytest.mark.usefixtures("tidy"),
    pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning"),
]


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


async def test_the_program_answers_itself(capsys: pytest.CaptureFixture[str]) -> None:
    await load("client_answers").main()
    assert capsys.readouterr().out == (
        "Which size of hat? value\nThank the user for buying a hat.\nOne hat, size M. Wear it well!\n"
    )


@pytest.mark.parametrize("version", [revision.name for revision in revisions.ALL if revision.elicitation])
async def test_its_handlers_work_in_every_revision(version: str) -> None:
    program = load("client_answers")
    handlers = {"elicitation_handler": program.fill_in, "sampling_handler": program.complete}
    async with Client(program.server, protocol_version=version, **handlers) as client:
        assert (await client.call_tool("buy", {"article": "hat"})).data == "One hat, size M. Wear it well!"
    async with Client(program.server, protocol_version=version, elicitation_handler=lambda question: None) as client:
        assert (await client.call_tool("buy", {"article": "hat"})).data == "Nothing bought."
