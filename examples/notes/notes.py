"""A notebook in SQLite: full-text search, notes as resources that clients watch, a prompt with suggestions."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dovetail import Context, Depends, Field, NotFound, Server

FILE = Path(os.environ.get("NOTES_DATABASE", Path(__file__).with_name("notes.db")))
TABLE = "create virtual table if not exists notes using fts5(title, text, changed unindexed, tokenize='porter')"
WRITES = {"destructiveHint": False, "openWorldHint": False}
READS = {"readOnlyHint": True, "openWorldHint": False}

server = Server("notes", version="1.0.0", instructions="Search before you answer questions about the user's plans.")

NoteId = Annotated[int, Field(description="The number at the end of its URI")]
Title = Annotated[str, Field(min_length=1, max_length=120, description="A line by which it is recognized")]
Text = Annotated[str, Field(max_length=100_000, description="The note itself, in Markdown")]
Query = Annotated[str, Field(description="Words that it has; endings do not matter")]


class Found(msgspec.Struct):
    uri: str
    title: str
    excerpt: str


def open_database() -> Iterator[sqlite3.Connection]:
    """A connection for one call, whose changes are kept if the call succeeds."""
    database = sqlite3.connect(FILE)
    try:
        with database:
            database.execute(TABLE)
            yield database
    finally:
        database.close()


Database = Annotated[sqlite3.Connection, Depends(open_database)]


def find(database: sqlite3.Connection, sql: str, *values: object) -> list[Found]:
    return [Found(f"notes://{note_id}", *found) for note_id, *found in database.execute(sql, values)]


def words_of(query: str) -> str:
    """The query of FTS5: all of these words, and the last one may go on."""
    words = [f'"{word}"' for word in query.replace('"', " ").split()]
    return " ".join(words) + "*" if words else '""'


def tell(note_id: int, database: sqlite3.Connection, ctx: Context) -> str:
    """Tell the clients that watch. They read at once, so the change is committed first."""
    database.commit()
    for uri in (f"notes://{note_id}", "notes://recent"):
        ctx.notify_resource_updated(uri)
    return f"notes://{note_id}"


@server.tool(annotations=WRITES)
def add_note(title: Title, text: Text, database: Database, ctx: Context) -> str:
    """Write a note; gives its URI."""
    added = database.execute("insert into notes values (?, ?, datetime())", (title, text))
    return tell(added.lastrowid or 0, database, ctx)


@server.tool(annotations={**WRITES, "idempotentHint": True})
def change_note(note_id: NoteId, text: Text, database: Database, ctx: Context) -> str:
    """Replace the text of a note."""
    changed = database.execute("update notes set text = ?, changed = datetime() where rowid = ?", (text, note_id))
    if not changed.rowcount:
        raise NotFound(f"There is no note {note_id}")
    return tell(note_id, database, ctx)


@server.tool(annotations=READS)
def search_notes(query: Query, database: Database) -> list[Found]:
    """Search the notebook; gives the best ten notes."""
    sql = (
        "select rowid, title, snippet(notes, 1, '', '', '…', 12) from notes where notes match ? order by rank limit 10"
    )
    return find(database, sql, words_of(query))


@server.tool(annotations=READS)
@server.resource("notes://{note_id}", mime_type="text/markdown")
def read_note(note_id: NoteId, database: Database) -> str:
    """A whole note: a resource, and a tool for hosts that read no resources."""
    row = database.execute("select title, text from notes where rowid = ?", (note_id,)).fetchone()
    if row is None:
        raise NotFound(f"There is no note {note_id}")
    return "# {}\n\n{}\n".format(*row)


@server.resource("notes://recent")
def recent(database: Database) -> list[Found]:
    """The notes that changed last."""
    return find(
        database, "select rowid, title, substr(text, 1, 80) from notes order by changed desc, rowid desc limit 20"
    )


@server.prompt
def review(
    database: Database,
    days: Annotated[int, Field(ge=1, description="How far to look back")] = 7,
    style: Annotated[Literal["brief", "detailed"], Field(description="How long the answer is")] = "brief",
) -> str:
    """Review what was written lately."""
    since = "select title, text from notes where changed >= datetime('now', ?)"
    notes = [f"## {title}\n\n{text}" for title, text in database.execute(since, (f"-{days} days",))]
    return "\n\n".join([f"Review these notes of {days} days: what is decided, what is open? Be {style}.", *notes])


if __name__ == "__main__":
    server.run()
