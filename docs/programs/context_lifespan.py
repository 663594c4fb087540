import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dovetail import Context, Server


@asynccontextmanager
async def database(server: Server) -> AsyncIterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table notes (text)")
    try:
        yield connection
    finally:
        connection.close()


server = Server("notes", version="1.0.0", lifespan=database)


@server.tool
async def add_note(text: str, ctx: Context) -> int:
    """Keep a note; tells how many there are."""
    connection: sqlite3.Connection = ctx.lifespan
    connection.execute("insert into notes values (?)", (text,))
    (count,) = connection.execute("select count(*) from notes").fetchone()
    return int(count)


if __name__ == "__main__":
    server.run()
