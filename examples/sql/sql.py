"""Questions in SQL to a SQLite database: nothing can be changed, nothing runs away, what takes long is asked for."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dovetail import Context, Depends, Field, Server, ToolError

FILE = Path(os.environ.get("SQL_DATABASE", Path(__file__).with_name("shop.db"))).resolve()
MAX_ROWS = 200
STEPS = 10_000  # of SQLite's machine, between two looks at the budget
CHEAP, DEAR = 200, 50_000  # looks; with the first a query is run at once, with the second after a yes
READS = {"readOnlyHint": True, "openWorldHint": False}
ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

server = Server("sql", version="1.0.0", instructions="Read the schema before you write a query.")


class Rows(msgspec.Struct):
    columns: list[str]
    rows: list[list[Any]]
    complete: bool  # False: there are more rows


class TooDear(Exception):
    """The query was not done within its budget."""


def open_database() -> Iterator[sqlite3.Connection]:
    """A connection for one call, which can't write: neither by the mode of the file nor by its statements."""
    database = sqlite3.connect(f"{FILE.as_uri()}?mode=ro", uri=True)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000)  # bytes of one value, so that none fills the memory
    database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY)
    try:
        yield database
    finally:
        database.close()


Database = Annotated[sqlite3.Connection, Depends(open_database)]


def run(sql: str, database: sqlite3.Connection, ctx: Context, budget: int) -> Rows:
    """The first rows of a query. Raises TooDear if they take more than the budget, and ToolError for wrong SQL."""
    looks = 0

    def is_over() -> bool:
        nonlocal looks
        looks += 1
        return looks > budget or bool(ctx.cancelled)

    database.set_progress_handler(is_over, STEPS)
    try:
        found = database.execute(sql)
        rows = found.fetchmany(MAX_ROWS + 1)
    except sqlite3.Error as problem:
        if looks > budget:
            raise TooDear from None
        raise ToolError(f"SQLite says: {problem}") from None
    if found.description is None:
        raise ToolError("There is no query in this SQL.")
    columns = [column[0] for column in found.description]
    return Rows(columns, [list(map(plain, row)) for row in rows[:MAX_ROWS]], len(rows) <= MAX_ROWS)


def plain(value: Any) -> Any:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else value


@server.tool(annotations=READS, max_result_bytes=100_000)
def query(sql: Annotated[str, Field(description="One SELECT")], database: Database, ctx: Context) -> Rows:
    """Run a query; gives its first 200 rows."""
    try:
        return run(sql, database, ctx, CHEAP)
    except TooDear:
        answer = ctx.wait(ctx.elicit(f"This query reads much, and may take a while. Run it?\n\n{sql}", bool))
    if not answer.data:
        raise ToolError("The user does not want to wait for this query. Ask for less, or by an index.")
    try:
        return run(sql, database, ctx, DEAR)
    except TooDear:
        raise ToolError("This query takes too long, and was ended. Ask for less, or by an index.") from None


@server.tool(annotations=READS)
@server.resource("sql://schema", mime_type="application/sql")
def schema(database: Database) -> str:
    """The tables, views and indexes: a resource, and a tool for hosts that read no resources."""
    found = database.execute("select sql from sqlite_schema where sql is not null order by type desc, name")
    return "\n".join(f"{sql};" for (sql,) in found)


@server.prompt
def analyse(question: Annotated[str, Field(description="What you want to know")], database: Database) -> str:
    """Answer a question from the database."""
    return f"Answer by queries, and show the numbers that you rely on: {question}\n\nThe schema:\n\n{schema(database)}"


if __name__ == "__main__":
    server.run()
