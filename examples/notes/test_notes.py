from pathlib import Path

import pytest
from dovetail import Client, ToolError

import notes

ROME = {"title": "Trip to Rome", "text": "Book the **night train** before Friday."}


@pytest.fixture(autouse=True)
def _a_notebook_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "FILE", tmp_path / "notes.db")


async def test_a_note_is_found_by_its_words() -> None:
    async with Client(notes.server) as client:
        assert (await client.call_tool("add_note", ROME)).data == "notes://1"
        for query in ("booking trains", "ROME", "trip fri", 'friday "book"'):
            (found,) = (await client.call_tool("search_notes", {"query": query})).data
            assert found["uri"] == "notes://1"
        for query in ("planes", "", "-", "title:rome OR"):
            assert (await client.call_tool("search_notes", {"query": query})).data == []
        assert (await client.call_tool("read_note", {"note_id": 1})).text.startswith("# Trip to Rome\n")


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_who_watches_a_note_is_told_and_reads_the_change(revision: str) -> None:
    async with Client(notes.server, protocol_version=revision) as client:
        await client.call_tool("add_note", ROME)
        async with client.listen(uris=["notes://1"]) as changes:
            await client.call_tool("change_note", {"note_id": 1, "text": "It is booked."})
            assert (await anext(changes)).uri == "notes://1"
            (contents,) = await client.read_resource("notes://1")
        assert contents.text == "# Trip to Rome\n\nIt is booked.\n"


async def test_a_note_that_is_not_there_is_not_changed() -> None:
    async with Client(notes.server) as client:
        with pytest.raises(ToolError, match="There is no note 7"):
            await client.call_tool("change_note", {"note_id": 7, "text": "x"})


async def test_the_review_has_the_notes_of_these_days() -> None:
    async with Client(notes.server) as client:
        await client.call_tool("add_note", ROME)
        (message,) = (await client.get_prompt("review", {"days": "2", "style": "detailed"})).messages
        assert "Be detailed." in message.text
        assert "## Trip to Rome" in message.text
        assert (await client.complete(prompt="review", argument="style", value="d")).values == ["detailed"]
