import sqlite3
from collections.abc import Iterator
from typing import Annotated

from dovetail import Depends, Server

server = Server("notes", version="1.0.0")


def open_database() -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(":memory:")
    database.execute("create table notes (text)")
    try:
        yield database
        database.commit()
    finally:
        database.close()


Database = Annotated[sqlite3.Connection, Depends(open_database)]


@server.tool
def add_note(text: str, database: Database) -> int:
    """Add a note; returns how many there are."""
    database.execute("insert into notes values (?)", [text])
    (count,) = database.execute("select count(*) from notes").fetchone()
    return int(count)


if __name__ == "__main__":
    server.run()
