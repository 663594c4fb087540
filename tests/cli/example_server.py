"""The `server.py` of the examples in `--help`, and of the tests of the command line: a bit of everything."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from dovetail import (
    Audio,
    Completion,
    Context,
    ElicitUrl,
    Field,
    Image,
    ResourceLink,
    Server,
    Text,
    ToolError,
    UrlElicitationRequired,
)

server = Server("example", version="1.0.0", instructions="Try everything.")
UNLOCKED: list[bool] = []
PNG = b"\x89PNG\r\n\x1a\n" + bytes(2_000)
STEERING = "safe \x1b[31mred\x1b[0m \x07\x9b2J\u202eright\x1b]0;title\x07"


@dataclass
class Place:
    """Where to look."""

    shop: str
    floor: int = 0


@dataclass
class Stay:
    """A form with a field of each kind."""

    nights: Annotated[int, Field(ge=1, le=14, description="How long?")]
    size: Literal["single", "double"] = "double"
    breakfast: bool = True
    email: Annotated[str, Field(format="email")] | None = None


@server.tool(annotations={"readOnlyHint": True})
def add(a: int, b: int) -> int:
    """Add two numbers.

    They may be negative.
    """
    return a + b


@server.tool(name="get-sum")
def get_sum(a: float, b: float) -> float:
    """What the official example server calls it."""
    return a + b


@server.tool(title="Look for articles", annotations={"destructiveHint": False, "openWorldHint": False})
def search(words: list[str], limit: int = 10, where: Place | None = None) -> list[dict[str, str | int | bool | None]]:
    """Search the shop."""
    floor = 0 if where is None else where.floor
    rows: list[dict[str, str | int | bool | None]] = [
        {"word": word, "shop": where.shop if where else None, "floor": floor, "open": True} for word in words
    ]
    return rows[:limit]


@server.tool
def summarise(text: str) -> str:
    """Say it in fewer words."""
    return f"{len(text.split())} words"


@server.tool
async def book(ctx: Context) -> str:
    """Book a room, after a few questions."""
    stay = await ctx.elicit("How would you like to stay?", Stay)
    if not stay.accepted or stay.data is None:
        return f"Nothing booked: {stay.action}."
    return f"{stay.data.nights} nights, {stay.data.size}, breakfast {stay.data.breakfast}, {stay.data.email}."


@server.tool(annotations={"destructiveHint": True})
def forget(note: str) -> str:
    """Forget a note for good."""
    return f"Forgot {note}."


@server.tool(annotations={"destructiveHint": False})
async def bake(ctx: Context, minutes: int = 3, seconds: float = 0.0) -> str:
    """Bake a cake and tell how it goes."""
    await ctx.info("the oven is hot", logger="oven")
    await ctx.debug("very hot")
    try:
        for minute in range(minutes):
            await ctx.report_progress(minute, total=minutes, message="baking")
            await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        Path("cancelled.txt").write_text("the oven is off")  # noqa: ASYNC240
        raise
    await ctx.report_progress(minutes, total=minutes, message="done")
    return "A cake."


@server.tool
def echo(
    whole: int | None = None,
    part: float = 0.5,
    on: bool = False,
    size: Literal["S", "M", 3] = "S",
    numbers: list[int] | None = None,
    ctx: Context | None = None,
) -> dict[str, object]:
    """Say what came."""
    return {"whole": whole, "part": part, "on": on, "size": size, "numbers": numbers}


@server.tool
def paint() -> list[Image | Audio | ResourceLink | Text]:
    """Something for the eye, the ear and the browser."""
    link = ResourceLink("notes://all", "notes", title="All notes", mime_type="text/plain")
    return [Image(PNG, "image/png"), Audio(b"tone", "audio/wav"), link, Text("That was it.")]


@server.tool
def break_down() -> str:
    """Fail."""
    raise ToolError(f"it is broken: {STEERING}")


@server.tool(title=STEERING)
async def steer(ctx: Context) -> str:
    """Try to steer the terminal."""
    await ctx.report_progress(1, total=2, message=STEERING)
    await ctx.warning(STEERING)
    return STEERING


@server.tool
async def visit(ctx: Context) -> str:
    """Send the user to a page."""
    return (await ctx.elicit_url("Please sign in", "https://example.com/sign-in")).action


@server.tool
def unlock() -> str:
    """Want a page to be opened first; an older way to ask."""
    if not UNLOCKED:
        UNLOCKED.append(True)
        raise UrlElicitationRequired(ElicitUrl("Please pay", "https://example.com/pay"))
    return "Unlocked."


@server.tool
async def think(ctx: Context) -> str:
    """Let a model answer."""
    return (await ctx.sample("What is the capital of Italy?", max_tokens=10)).text


@server.resource("notes://all")
def notes() -> str:
    """All notes."""
    return "milk, bread"


@server.resource("logo://small", mime_type="image/png")
def logo() -> bytes:
    """The logo."""
    return PNG


@server.resource("notes://{shop}/{day}")
def notes_of(shop: str, day: str) -> str:
    """Notes of a day."""
    return f"{shop} on {day}"


@server.completion(resource="notes://{shop}/{day}", argument="day")
def days(value: str, arguments: dict[str, str]) -> Completion:
    known = ["Monday", "Sunday"] if arguments.get("shop") == "Rome" else ["Monday"]
    return Completion([day for day in known if day.startswith(value)], total=7, has_more=True)


@server.prompt
def greet(name: str, language: str = "English") -> str:
    """Greet a person."""
    return f"Greet {name} in {language}."


@server.completion(tool="add", argument="a")
def numbers(value: str) -> list[str]:
    return [each for each in ("10", "12", "20") if each.startswith(value)]


@server.completion(prompt="greet", argument="name")
def names(value: str) -> list[str]:
    return [name for name in ("Ada", "Alan", "Grace") if name.startswith(value)]


weather = Server("weather")  # of `server.py:weather`


if __name__ == "__main__":
    server.run()
