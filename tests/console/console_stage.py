"""A server for the console to be tried on: one thing of every kind that it has to show, and hostile text.

`python console_stage.py` serves it with its console, at STAGE_PORT or any that is free; `--tidy` for pictures of it.
"""

import asyncio
import base64
import os
import re
import runpy
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from dovetail import (
    Console,
    Context,
    Field,
    Icon,
    Image,
    ProtocolError,
    Proxy,
    ResourceLink,
    Server,
    TaskConfig,
    ToolError,
    ToolRegistry,
)

PIXEL = base64.b64decode(  # a PNG of one blue pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVQI12NgUHgAAAFCAQGrLSapAAAAAElFTkSuQmCC"
)
ILL = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title = 'taken over'\"> "
ILL_NAME = "<script>document.title = 'taken over'</script>"
PAGE_TO_PAY = "https://pay.example/invoice/7"
LANGUAGES = ["english", "estonian", "finnish", "french"]

Colour = Literal["red", "green", "blue"]


@dataclass
class Address:
    """Where it goes."""

    street: str
    number: Annotated[int, Field(ge=1)] = 1


server = Server("console-stage", title="Console stage", version="1.2.3", instructions="Try each of them once.")
count = 0
cancelled = 0


# ── tools ──


@server.tool(title="Order")
def order(
    item: Annotated[str, Field(description="What to send", min_length=2, max_length=20)],
    amount: Annotated[int, Field(description="How many", ge=1, le=99)],
    colour: Annotated[Colour, Field(description="Of which colour")] = "red",
    gift: Annotated[bool, Field(description="Wrap it up")] = False,
    price: Annotated[float | None, Field(description="At most this much")] = None,
    address: Address | None = None,
    tags: list[str] | None = None,
) -> dict[str, Any]:
    """Order something: a form of every kind of field."""
    where = None if address is None else f"{address.street} {address.number}"
    return {"item": item, "amount": amount, "colour": colour, "gift": gift, "price": price, "to": where, "tags": tags}


@server.tool(title="Slow")
async def slow(ctx: Context, steps: int = 50) -> str:
    """Works step by step, a tenth of a second each, and says how far it is."""
    global cancelled
    try:
        for step in range(steps):
            await ctx.report_progress(step, steps, f"step {step} of {steps}")
            await ctx.info(f"step {step} done")
            await asyncio.sleep(0.1)
    except asyncio.CancelledError:
        cancelled += 1
        raise
    return "finished"


@server.tool
def cancellations() -> int:
    """How many calls of slow and render were cancelled."""
    return cancelled


@dataclass
class Guest:
    name: Annotated[str, Field(description="As on the list", min_length=2)]
    meal: Annotated[Literal["fish", "cake"], Field(description="What to cook")]
    parking: Annotated[bool, Field(description="Needs a place for a car")] = False


@server.tool(title="Invite")
async def invite(ctx: Context) -> str:
    """Asks who is coming."""
    answer = await ctx.elicit("Who is coming?", Guest)
    if not answer.accepted:
        return f"Nobody: {answer.action}"
    return f"{answer.data.name} gets {answer.data.meal}"


@server.tool(title="Wipe", annotations={"destructiveHint": True})
def wipe(path: str) -> str:
    """Deletes everything for good."""
    return f"{path} is gone"


@server.tool(annotations={"readOnlyHint": True})
def picture() -> Image:
    """One blue pixel."""
    return Image(data=PIXEL, mime_type="image/png")


@server.tool
def table() -> list[dict[str, Any]]:
    """Three rows."""
    return [{"city": city, "people": people} for city, people in (("Lyon", 522), ("Turku", 203), ("Madrid", 3332))]


@server.tool
def link() -> ResourceLink:
    """Where the counter is."""
    return ResourceLink(uri="counter://value", name="counter", mime_type="text/plain")


@server.tool
def ill() -> str:
    """Text that would do harm if it were taken for a page."""
    return ILL


@server.tool(
    title=ILL,
    description=ILL,
    icons=[Icon(src="https://evil.example/icon.png")],
    input_schema={
        "type": "object",
        "properties": {"x": {"type": "string", "title": ILL_NAME, "description": ILL, "examples": [ILL]}},
    },
)
def ill_links(x: str = "") -> list[ResourceLink | Image]:
    return [
        ResourceLink(uri="javascript:document.title='taken over'", name=ILL, description=ILL),
        ResourceLink(uri="https://evil.example/page", name="elsewhere"),
        Image(data=b"no picture", mime_type="image/svg+xml"),
        Image(data=b"<script>parent.document.title = 'taken over'</script>", mime_type="text/html"),
    ]


@server.prompt(description=ILL)
def ill_prompt() -> str:
    return ILL


@server.tool
def fail(reason: str = "no reason") -> str:
    """Fails on purpose."""
    raise ToolError(f"It failed: {reason}")


@server.tool(title="Count up")
def count_up() -> int:
    """Changes the counter, and notifies subscribers."""
    global count
    count += 1
    server.notify_resource_updated("counter://value")
    return count


# ── what a server asks, and what it receives ──


@server.tool
async def ask_model(ctx: Context) -> str:
    """Asks the model of the client."""
    said = await ctx.sample("Name a fruit.", system_prompt="Be brief.\nBe kind.", max_tokens=50)
    return f"the model said {said.text}"


@server.tool
async def visit(ctx: Context) -> str:
    """Asks to visit a page."""
    answer = await ctx.elicit_url("Please pay.", PAGE_TO_PAY)
    return f"the visit: {answer.action}"


@server.tool
def tenant(ctx: Context) -> str:
    """Says whose call it is."""
    return f"for {(ctx.headers or {}).get('x-tenant', 'nobody')}"


# ── tasks ──


@server.tool(task=TaskConfig(poll_interval=0.05))
async def render(ctx: Context, frames: int = 5) -> str:
    """Draws frames, a tenth of a second each."""
    global cancelled
    try:
        for frame in range(frames):
            await ctx.report_progress(frame, frames, "Drawing")
            await ctx.info(f"frame {frame} drawn")
            await asyncio.sleep(0.1)
    except asyncio.CancelledError:
        cancelled += 1
        raise
    return f"{frames} frames"


@server.tool(task=TaskConfig(mode="required", poll_interval=0.05))
async def premiere(ctx: Context) -> str:
    """Asks who comes, if this is a task."""
    answer = await ctx.elicit("Who comes?", Guest)
    if not answer.accepted:
        raise ToolError("Nobody comes.")
    return f"{answer.data.name} comes"


@server.tool(task=TaskConfig(mode="required", poll_interval=0.05))
async def develop(ok: bool = True) -> str:
    """Develops the film, if this is a task."""
    if not ok:
        raise ProtocolError("The film is torn", code=-32001)
    return "the film is developed"


# ── resources ──


@server.resource("counter://value", title="Counter", mime_type="text/plain")
def counter() -> str:
    """How often count_up was called."""
    return f"count is {count}"


@server.resource("stage://ill.html", mime_type="text/html")
def ill_page() -> str:
    """A page that must not be shown as one."""
    return ILL


@server.resource("city://{country}/{name}", title="City", mime_type="text/plain")
def city(country: str, name: str) -> str:
    """A city of a country."""
    return f"{name.title()} is in {country.title()}"


# ── prompts ──


@server.prompt(title="Greeting")
def greeting(
    who: Annotated[str, Field(description="Whom to greet")],
    language: Annotated[str, Field(description="In which language")] = "english",
) -> str:
    """Asks for a greeting."""
    return f"Greet {who} in {language}."


@server.completion(prompt="greeting", argument="language")
def languages(value: str) -> list[str]:
    return [language for language in LANGUAGES if language.startswith(value.lower())]


# ── views ──


@dataclass
class Chart:
    of: str
    points: list[int]


FOLDER = tempfile.TemporaryDirectory(prefix="console-stage-")
VIEW = Path(FOLDER.name) / "chart.html"
VIEW.write_text(Path(__file__).with_name("console_view.html").read_text())
server.engine.resources.watch_options = {"poll_seconds": 0.1}
server.add_ui("ui://stage/chart", VIEW, csp={"connect": ["http://allowed.example:*"]})


@server.tool(ui="ui://stage/chart")
def chart(of: str) -> Chart:
    """Shows a chart."""
    return Chart(of, [1, 5, 3])


@server.tool(visibility=["app"])
def more_points(of: str, amount: int = 2) -> Chart:
    """More of a chart, for its view."""
    return Chart(of, [*range(amount)])


@server.tool(visibility=["model"])
def rename_chart(to: str) -> str:
    """Not for views."""
    return to


@server.tool
def redraw(heading: str) -> str:
    """Changes the file of the view."""
    VIEW.write_text(re.sub("<h1>.*</h1>", f"<h1>{heading}</h1>", VIEW.read_text()))
    return heading


# ── mounts ──


server.mount(runpy.run_path(str(Path(__file__).parents[2] / "docs" / "programs" / "apps.py"))["server"])
calendar = Server("calendar", version="1.0.0")


@calendar.tool
def appointments(day: str) -> int:
    """How many there are on a day."""
    return len(day)


DEAD = "http://127.0.0.1:9/hush-hush?key=hush"  # the discard port: nothing listens there
server.mount(Proxy(calendar, name="calendar"), namespace="office")
server.mount(Proxy(DEAD, name="archive"), namespace="archive")
server.mount(ToolRegistry(), namespace="sums")


if __name__ == "__main__":
    if "--tidy" in sys.argv:
        for name in ("ill", "ill_links", "cancellations", "render", "premiere", "develop"):
            server.remove_tool(name)
    server.run("http", port=int(os.environ.get("STAGE_PORT", "0")), routes=Console(server).routes())
