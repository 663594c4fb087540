"""Notes in SQLite."""

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dovetail import Depends, Field, Server

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


if __name__ == "__main__":
    server.run()
