import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dovetail import Context, Server


@asynccontextmanager
async def database(server: Server) -> AsyncIterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", check_same_thread=False)  # `def` tools run in threads
    connection.execute("create table notes (text)")
    try:
        yield connection
    finally:
        connection.close()


server = Server("notes", version="1.0.0", lifespan=database)
lock = threading.Lock()  # of the connection: one thread at a time


@server.tool
def add_note(text: str, ctx: Context[sqlite3.Connection]) -> int:
    """Keep a note; tells how many there are."""
    with lock, ctx.lifespan as connection:
        connection.execute("insert into notes values (?)", (text,))
        (count,) = connection.execute("select count(*) from notes").fetchone()
    return int(count)


if __name__ == "__main__":
    server.run()
