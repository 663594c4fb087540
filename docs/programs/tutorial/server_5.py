"""Notes in SQLite."""

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dovetail import Context, Depends, Field, NotFound, Server, ToolError
from dovetail.auth import ApiKeys

server = Server("notes", version="0.1.0")


@dataclass
class Note:
    id: int
    title: str
    text: str


def open_database() -> Iterator[sqlite3.Connection]:
    """Open the file beside this one, or the one that NOTES_DATABASE names."""
    database = sqlite3.connect(os.environ.get("NOTES_DATABASE", Path(__file__).with_name("notes.db")))
    try:
        with database:  # commits at the end of the call, unless it failed
            database.execute("create table if not exists notes (id integer primary key, title text, text text)")
            yield database
    finally:
        database.close()


Database = Annotated[sqlite3.Connection, Depends(open_database)]


@server.tool(annotations={"destructiveHint": False, "openWorldHint": False})
def add_note(title: Annotated[str, Field(min_length=1, max_length=80)], text: str, database: Database) -> Note:
    """Write a note.

    Args:
        title: A few words by which it is found again.
        text: The note itself, in Markdown.
    """
    added = database.execute("insert into notes (title, text) values (?, ?) returning id, title, text", (title, text))
    return Note(*added.fetchone())


@server.tool(annotations={"readOnlyHint": True, "openWorldHint": False})
def search_notes(words: str, database: Database) -> list[Note]:
    """Find notes.

    Args:
        words: What their title or their text contains.
    """
    found = database.execute("select id, title, text from notes where title || ' ' || text like ?", (f"%{words}%",))
    return [Note(*row) for row in found]


def find_note(note_id: int, database: sqlite3.Connection) -> Note:
    row = database.execute("select id, title, text from notes where id = ?", (note_id,)).fetchone()
    if row is None:
        raise NotFound(f"There is no note {note_id}")
    return Note(*row)


@server.resource("notes://all")
def all_notes(database: Database) -> dict[int, str]:
    """The titles of all notes, by their ids."""
    return dict(database.execute("select id, title from notes"))


@server.resource("notes://{note_id}", mime_type="text/markdown")
def note(note_id: int, database: Database) -> str:
    """A note."""
    found = find_note(note_id, database)
    return f"# {found.title}\n\n{found.text}\n"


@server.prompt
def summarize(topic: str, database: Database) -> str:
    """Sum up what the notes say about a topic.

    Args:
        topic: A word that these notes contain.
    """
    notes = [f"# {note.title}\n\n{note.text}" for note in search_notes(topic, database)]
    return "\n\n".join([f"Sum up these notes about {topic}, and list what is left to do.", *notes])


@server.tool(annotations={"destructiveHint": True, "openWorldHint": False})
def delete_note(note_id: int, database: Database, ctx: Context) -> str:
    """Delete a note, if the user agrees.

    Args:
        note_id: The id that search_notes tells.
    """
    found = find_note(note_id, database)
    answer = ctx.wait(ctx.elicit(f"Delete the note {found.title!r}?", bool))
    if not answer.data:
        return "The note is kept."
    ctx.wait(ctx.state.set("deleted", found))
    database.execute("delete from notes where id = ?", (note_id,))
    return "The note is deleted; restore_note brings it back."


@server.tool(annotations={"destructiveHint": False, "openWorldHint": False})
def restore_note(database: Database, ctx: Context) -> Note:
    """Bring back the note that was deleted last."""
    deleted = ctx.wait(ctx.state.get("deleted", Note))
    if deleted is None:
        raise ToolError("No note was deleted.")
    ctx.wait(ctx.state.delete("deleted"))
    return add_note(deleted.title, deleted.text, database)


def hosted() -> Server:
    """The same for a team: each caller has a key, which DOVETAIL_API_KEYS names."""
    team = Server("notes", version="0.1.0", auth=ApiKeys.from_env(), rate_limit="60/minute per principal")
    team.mount(server)
    return team


if __name__ == "__main__":
    server.run()
