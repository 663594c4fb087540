"""The program that the page on the client shows for questions."""

import pytest

from documented import load
from dovetail import Client
from dovetail.protocol import revisions

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning")


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
