"""A server whose tools, prompt and resource ask their client, and note down every step that ran.

`python asking.py --notes FILE` serves stdio, with `--port N` HTTP; `dovetail run asking.py:judged` takes the file from
the environment. What it says is judged; if anything was malformed, that is on stderr, and the exit code is 1.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from dovetail import Context, ElicitUrl, Field, Server, UrlElicitationRequired

VARIABLE = "ASKING_NOTES"
PAGE = "https://example.com/sign-in"


@dataclass
class Stay:
    nights: Annotated[int, Field(ge=1, le=60)]
    hotel: str = "Ritz"


class Ledger:
    """The steps that ran, one line each: of which call, which step, in which process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def entry(self, call: str, step: str) -> Callable[[], int]:
        """A side effect whose result is the process that it happened in."""

        def write() -> int:
            with self._path.open("a") as notes:
                notes.write(f"{call} {step} {os.getpid()}\n")
            return os.getpid()

        return write


def create_server(notes: Path, **options: Any) -> Server:
    server = Server("asking", version="1.0.0", **options)
    ledger = Ledger(notes)
    add_tools(server, ledger)
    add_others(server, ledger)
    return server


def add_tools(server: Server, ledger: Ledger) -> None:
    @server.tool
    async def plan(call: str, ctx: Context) -> str:
        """Two questions, a model and two steps; the processes of the steps and of the end are part of the result."""
        city = await ctx.elicit("Which city?", str)
        if not city.accepted:
            return f"No trip: {city.action}"
        reserved = await ctx.step("reserve", ledger.entry(call, "reserve"))
        stay = await ctx.elicit(f"How long in {city.data}?", Stay)
        if stay.data is None:
            return f"No hotel: {stay.action}"
        said = await ctx.sample(f"Praise {city.data}", max_tokens=50)
        booked = await ctx.step("book", ledger.entry(call, "book"))
        what = f"{stay.data.nights} nights in {city.data}, {stay.data.hotel}: {said.text}"
        return f"{what} [{reserved} {booked} {os.getpid()}]"

    @server.tool
    async def praise(call: str, ctx: Context) -> str:
        """A step and a model, which every revision has."""
        await ctx.step("open", ledger.entry(call, "open"))
        said = await ctx.sample("Praise Rome", max_tokens=50)
        await ctx.step("close", ledger.entry(call, "close"))
        return said.text

    @server.tool
    async def folders(ctx: Context) -> str:
        return ", ".join(f"{root.name} at {root.uri}" for root in await ctx.list_roots())

    @server.tool
    def rename(call: str, ctx: Context) -> str:
        """In a thread."""
        answer = ctx.wait(ctx.elicit("A new name?", str))
        ctx.wait(ctx.step("rename", ledger.entry(call, "rename")))
        return f"renamed to {answer.data}" if answer.accepted else f"not renamed: {answer.action}"

    @server.tool
    async def sign_in(ctx: Context, visit: str = "visit") -> str:
        return (await ctx.elicit_url("Sign in", PAGE, elicitation_id=visit)).action

    @server.tool
    async def arrive(visit: str) -> str:
        """As if the user had come back from the page."""
        return "told" if await server.complete_elicitation(visit) else "nobody to tell"

    @server.tool
    async def inbox(visit: str, ctx: Context) -> str:
        """Nothing goes without signing in, which a user who calls again has done."""
        if not ctx.input_responses:
            raise UrlElicitationRequired(ElicitUrl("Sign in", PAGE, elicitation_id=visit))
        return "empty"


def add_others(server: Server, ledger: Ledger) -> None:
    @server.prompt
    async def welcome(call: str, ctx: Context) -> str:
        await ctx.step("welcome", ledger.entry(call, "welcome"))
        answer = await ctx.elicit("Your name?", str)
        return f"Welcome {answer.data}"

    @server.resource("letters://{call}")
    async def letter(call: str, ctx: Context) -> str:
        await ctx.step("write", ledger.entry(call, "write"))
        answer = await ctx.elicit("Your name?", str)
        return f"Dear {answer.data}"


def judged() -> Server:
    """For `dovetail run`."""
    judge()
    return create_server(Path(os.environ[VARIABLE]))


def judge() -> Any:
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from official import judge_this_process

    return judge_this_process()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=Path, default=os.environ.get(VARIABLE))
    parser.add_argument("--port", type=int)
    parser.add_argument("--stateless", action="store_true")
    given = parser.parse_args()
    watch = judge()
    server = create_server(given.notes)
    if given.port is None:
        server.run()
    else:
        server.run(transport="http", port=given.port, stateless=given.stateless, drain_timeout=1.0)
    return 1 if watch is not None and any(witness.problems for witness in watch) else 0


if __name__ == "__main__":
    sys.exit(main())
