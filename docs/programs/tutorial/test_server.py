from pathlib import Path
from typing import Any

import pytest
from dovetail import Client, ElicitRequest, ServerError, ToolError

from server import server

SHOPPING = {"title": "Shopping", "text": "Milk, bread and a hat"}


@pytest.fixture(autouse=True)
def _a_database_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES_DATABASE", str(tmp_path / "notes.db"))


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_a_note_is_found(revision: str) -> None:
    async with Client(server, protocol_version=revision) as client:
        await client.call_tool("add_note", SHOPPING)
        assert (await client.call_tool("search_notes", {"words": "milk"})).data == [{"id": 1, **SHOPPING}]
        assert (await client.call_tool("search_notes", {"words": "tea"})).data == []


async def test_a_note_needs_a_title() -> None:
    async with Client(server) as client:
        with pytest.raises(ToolError, match="title: must have at least 1 character"):
            await client.call_tool("add_note", {"title": "", "text": "Nothing"})


async def test_a_note_is_read_and_summed_up() -> None:
    async with Client(server) as client:
        await client.call_tool("add_note", SHOPPING)
        (contents,) = await client.read_resource("notes://1")
        assert contents.text == "# Shopping\n\nMilk, bread and a hat\n"
        with pytest.raises(ServerError, match="There is no note 7"):
            await client.read_resource("notes://7")
        (message,) = (await client.get_prompt("summarize", {"topic": "milk"})).messages
        assert message.text.endswith("# Shopping\n\nMilk, bread and a hat")


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(("answer", "left"), [(True, 0), (False, 1)])
async def test_a_note_is_deleted_if_the_user_agrees(revision: str, answer: bool, left: int) -> None:
    asked = []

    def user(request: ElicitRequest) -> dict[str, Any]:
        asked.append(request.message)
        return {"value": answer}

    async with Client(server, protocol_version=revision, elicitation_handler=user) as client:
        await client.call_tool("add_note", SHOPPING)
        await client.call_tool("delete_note", {"note_id": 1})
        assert asked == ["Delete the note 'Shopping'?"]
        assert len((await client.call_tool("search_notes", {"words": ""})).data) == left
        if answer:
            assert (await client.call_tool("restore_note")).data == {"id": 1, **SHOPPING}
        with pytest.raises(ToolError, match="No note was deleted"):
            await client.call_tool("restore_note")
