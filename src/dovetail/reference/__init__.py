"""The reference server: every feature of Dovetail once, written with public names only.

`dovetail.reference.server` is the server; `create_server` makes another one, for example with the diagnostic tool.
"""

import asyncio
import secrets
import time
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args

from dovetail import Context, Field, Server, ToolError
from dovetail.reference.tool_functions import (
    FORTUNES,
    OPERATIONS,
    Category,
    Mood,
    compute,
    dice_text,
    number_text,
    parse_dice,
    plain_number,
    roll,
)

HERE = Path(__file__).parent
LANGUAGES = ("c", "go", "java", "javascript", "kotlin", "perl", "php", "python", "ruby", "rust", "swift", "typescript")
LOGO = bytes.fromhex(  # a PNG of one blue pixel
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c4944415408d763605078000001420101ab2d26a90000000049454e44ae426082"
)


class Calculation(TypedDict):
    result: float
    expression: str


class Roll(TypedDict):
    notation: str
    rolls: list[int]
    modifier: int
    total: int


class SlowOperation(TypedDict):
    requested_duration_ms: int
    actual_duration_ms: int
    message: str


FORTUNE_INPUT = {
    "type": "object",
    "properties": {
        "category": {
            "type": "string",
            "enum": list(get_args(Category)),
            "description": "Fortune category",
        },
        "mood": {
            "type": "string",
            "enum": list(get_args(Mood)),
            "description": "Fortune mood (default: mysterious)",
        },
    },
    "required": ["category"],
    "additionalProperties": False,
}
FORTUNE_OUTPUT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("category", "mood", "fortune")},
    "required": ["category", "mood", "fortune"],
}
READ_ONLY = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}


async def calculate(
    operation: Annotated[Literal["add", "subtract", "multiply", "divide"], Field(description="What to do")],
    a: Annotated[float, Field(description="First operand")],
    b: Annotated[float, Field(description="Second operand")],
    ctx: Context,
) -> Calculation:
    await ctx.debug({"operation": operation, "a": a, "b": b}, logger="calculate")
    try:
        result = compute(operation, a, b)
    except ValueError as failure:
        raise ToolError(f"Tool 'calculate' failed: {failure}") from None
    symbol = OPERATIONS[operation][0]
    expression = f"{number_text(a)} {symbol} {number_text(b)} = {number_text(result)}"
    return {"result": plain_number(result), "expression": expression}


async def roll_dice(
    notation: Annotated[str, Field(description='Dice notation, for example "2d6+3"')],
) -> Roll:
    try:
        count, sides, modifier = parse_dice(notation)
    except ValueError as failure:
        raise ToolError(f"Tool 'roll_dice' failed: {failure}") from None
    rolls = roll(count, sides)
    normal = dice_text(count, sides, modifier)
    return {"notation": normal, "rolls": rolls, "modifier": modifier, "total": sum(rolls) + modifier}


async def tell_fortune(category: str, mood: str = "mysterious") -> dict[str, str]:
    return {"category": category, "mood": mood, "fortune": secrets.choice(FORTUNES[category][mood])}


async def slow_operation(
    duration_ms: Annotated[int, Field(description="How long to sleep", ge=0, le=300_000)], ctx: Context
) -> SlowOperation:
    """Sleep, reporting progress: for trying out timeouts and cancellation."""
    started = time.monotonic()
    for tenth in range(10):
        await ctx.report_progress(tenth, 10, f"{tenth * 10} %")
        await asyncio.sleep(duration_ms / 10_000)
    actual = round((time.monotonic() - started) * 1000)
    message = f"Slept for {duration_ms}ms"
    return {"requested_duration_ms": duration_ms, "actual_duration_ms": actual, "message": message}


def create_server(*, diagnostics: bool = False, notes: Path = HERE / "notes.md", auth: Any = None) -> Server:
    """A new reference server.

    `diagnostics` adds the tool `slow_operation`; `notes` is the file that is watched; `auth` is that of `Server`.
    """
    server = Server(
        "dovetail-reference",
        title="Dovetail reference server",
        version="0.1.0",
        description="Every feature of Dovetail once.",
        instructions="calculate does arithmetic, roll_dice rolls dice, tell_fortune tells fortunes.",
        timeout=60,
        auth=auth,
    )
    _add_tools(server, diagnostics)
    _add_resources(server, notes)
    _add_prompts(server)
    return server


def _add_tools(server: Server, diagnostics: bool) -> None:
    server.add_tool(
        calculate,
        title="Calculator",
        description="Perform basic arithmetic operations",
        annotations={**READ_ONLY, "idempotentHint": True},
    )
    server.add_tool(
        roll_dice,
        title="Dice Roller",
        description="Roll dice using standard notation",
        annotations={**READ_ONLY, "idempotentHint": False},
    )
    server.add_tool(
        tell_fortune,
        title="Fortune Teller",
        description="Get a fortune for categories: love, career, health, wealth, general. "
        "Moods: optimistic, mysterious, cautious.",
        annotations={**READ_ONLY, "idempotentHint": False},
        input_schema=FORTUNE_INPUT,
        output_schema=FORTUNE_OUTPUT,
    )
    if diagnostics:
        server.add_tool(
            slow_operation,
            title="Slow Operation",
            annotations={**READ_ONLY, "idempotentHint": True},
            timeout=310,
        )


def _add_resources(server: Server, notes: Path) -> None:
    @server.resource("reference://about", title="About this server", mime_type="text/markdown")
    def about() -> str:
        """What this server is for."""
        return "# Dovetail reference server\n\nThree tools, one prompt, a few resources: every feature once.\n"

    @server.resource("reference://logo.png", mime_type="image/png", annotations={"audience": ["user"]})
    def logo() -> bytes:
        """One blue pixel."""
        return LOGO

    @server.resource("reference://fortunes/{category}", mime_type="application/json", cache=60)
    def fortunes(category: Category) -> dict[str, Any]:
        """All fortunes of a category, by mood."""
        return {mood: list(texts) for mood, texts in FORTUNES[category].items()}

    server.add_file(notes, uri="reference://notes.md", title="Notes", description="A file that is watched for changes.")


def _add_prompts(server: Server) -> None:
    @server.prompt(title="Request Code Review")
    def code_review(
        code: Annotated[str, Field(description="The code to review")],
        language: Annotated[str, Field(description="Its programming language")] = "python",
    ) -> str:
        """Analyze code quality and suggest improvements"""
        return f"Please review this {language} code:\n{code}"

    @server.completion(prompt="code_review", argument="language")
    def languages(value: str) -> list[str]:
        return [language for language in LANGUAGES if language.startswith(value.lower())]

    @server.completion(tool="roll_dice", argument="notation")
    def notations(value: str) -> list[str]:
        common = ("1d4", "1d6", "2d6", "2d6+3", "1d8", "1d10", "1d12", "1d20", "1d100", "3d6", "4d6")
        return [notation for notation in common if notation.startswith(value.strip().lower())]


server = create_server()
