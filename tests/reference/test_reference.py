"""The reference server: its listing, and what its tools, resources, prompt and completions do."""

import json
from typing import Any

import pytest

from dovetail import reference
from dovetail.reference import create_server
from dovetail.reference.tool_functions import FORTUNES, SIDES, dice_text, number_text, parse_dice, plain_number
from seeds.golden import TELL_FORTUNE
from wire import MODERN, Wire

CATEGORIES = ["love", "career", "health", "wealth", "general"]
MOODS = ["optimistic", "mysterious", "cautious"]
HINTS = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}


async def call(name: str, version: str = "2025-11-25", /, **arguments: Any) -> dict[str, Any]:
    async with Wire(create_server(diagnostics=True), version) as wire:
        return await wire.ask("tools/call", {"name": name, "arguments": arguments})


async def value_of(name: str, /, **arguments: Any) -> dict[str, Any]:
    """The structured value, which is also the text, compact and in the same order."""
    result = await call(name, **arguments)
    assert result["isError"] is False, result
    (block,) = result["content"]
    assert block["text"] == json.dumps(result["structuredContent"], separators=(",", ":"))
    return result["structuredContent"]


async def failure_of(name: str, /, **arguments: Any) -> str:
    result = await call(name, **arguments)
    assert result["isError"] is True, result
    return result["content"][0]["text"]


# ── the listing ──


@pytest.mark.seed("S4-03", "S4-09", "S4-10", "S4-12", "S4-13", "S4-15", "S4-16", "S4-36", "S4-37")
async def test_the_listing() -> None:
    async with Wire(reference.server, "2025-11-25") as wire:
        tools = (await wire.ask("tools/list"))["tools"]
    assert [tool["name"] for tool in tools] == ["calculate", "roll_dice", "tell_fortune"]
    calculate, roll_dice, tell_fortune = tools
    assert {key: tell_fortune[key] for key in TELL_FORTUNE} == TELL_FORTUNE
    assert (calculate["title"], roll_dice["title"]) == ("Calculator", "Dice Roller")
    assert calculate["description"] == "Perform basic arithmetic operations"
    assert roll_dice["description"] == "Roll dice using standard notation"
    assert calculate["annotations"] == {**HINTS, "idempotentHint": True}
    assert roll_dice["annotations"] == {**HINTS, "idempotentHint": False}
    properties = calculate["inputSchema"]["properties"]
    types = {name: part["type"] for name, part in properties.items()}
    assert types == {"operation": "string", "a": "number", "b": "number"}
    assert properties["operation"]["enum"] == ["add", "subtract", "multiply", "divide"]
    assert calculate["inputSchema"]["required"] == ["operation", "a", "b"]
    assert roll_dice["inputSchema"]["properties"]["notation"]["type"] == "string"
    outputs = ["result", "expression"], ["notation", "rolls", "modifier", "total"], ["category", "mood", "fortune"]
    for tool, keys in zip(tools, outputs, strict=True):
        assert tool["inputSchema"]["additionalProperties"] is False
        assert list(tool["outputSchema"]["properties"]) == tool["outputSchema"]["required"] == keys


async def test_slow_operation_only_if_asked_for() -> None:
    async with Wire(create_server(diagnostics=True), "2025-11-25") as wire:
        tools = (await wire.ask("tools/list"))["tools"]
    assert [tool["name"] for tool in tools][3:] == ["slow_operation"]
    assert tools[3]["annotations"] == {**HINTS, "idempotentHint": True}
    duration = tools[3]["inputSchema"]["properties"]["duration_ms"]
    assert (duration["type"], duration["minimum"], duration["maximum"]) == ("integer", 0, 300_000)


# ── calculate ──


@pytest.mark.seed("S4-05")
@pytest.mark.parametrize(
    ("operation", "a", "b", "result", "expression"),
    [
        ("add", 5, 3, 8, "5 + 3 = 8"),
        ("add", 0.1, 0.2, 0.30000000000000004, "0.1 + 0.2 = 0.30000000000000004"),
        ("subtract", 1.5, 0.5, 1, "1.5 - 0.5 = 1"),
        ("multiply", -2, 3.5, -7, "-2 * 3.5 = -7"),
        ("multiply", -1, 0, 0, "-1 * 0 = 0"),
        ("multiply", 1e10, 1e10, 1e20, "10000000000 * 10000000000 = 100000000000000000000"),
        ("multiply", 1e11, 1e10, 1e21, "100000000000 * 10000000000 = 1e+21"),
        ("divide", 1, 3, 1 / 3, "1 / 3 = 0.3333333333333333"),
        ("add", 2**70, 0, 2.0**70, "1.1805916207174113e+21 + 0 = 1.1805916207174113e+21"),
    ],
)
async def test_calculate(operation: str, a: float, b: float, result: float, expression: str) -> None:
    result_ = await call("calculate", operation=operation, a=a, b=b)
    assert result_["isError"] is False, result_
    value = result_["structuredContent"]
    assert list(value) == ["result", "expression"]
    assert (value["result"], value["expression"]) == (result, expression)
    assert ".0" not in result_["content"][0]["text"].replace("0.0", "")


async def test_calculations_that_fail() -> None:
    assert await failure_of("calculate", operation="divide", a=1, b=0) == (
        "Tool 'calculate' failed: Division by zero is not allowed"
    )
    for operation, a, b in (("multiply", 1e308, 10), ("divide", 1e308, 1e-10), ("add", 1.7e308, 1.7e308)):
        assert "too large" in await failure_of("calculate", operation=operation, a=a, b=b)
    for arguments in (
        {"operation": "power", "a": 1, "b": 2},
        {"operation": "add", "a": True, "b": 2},
        {"operation": "add", "a": "one", "b": 2},
        {"operation": "add", "a": None, "b": 2},
        {"operation": "add", "a": 1},
        {"operation": "add", "a": 1, "b": 2, "c": 3},
    ):
        assert "Invalid arguments for calculate" in await failure_of("calculate", **arguments)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5.0, "5"), (-0.0, "0"), (0.1, "0.1"), (1e-6, "0.000001"), (1e-7, "1e-7"), (1.5e-10, "1.5e-10"),
        (123456789012345680000.0, "123456789012345680000"), (1e21, "1e+21"), (1.5e300, "1.5e+300"), (-2.5, "-2.5"),
        (5e-324, "5e-324"), (1.7976931348623157e308, "1.7976931348623157e+308"), (1e2, "100"), (1.234e-5, "0.00001234"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_javascript_writes_them(value: float, text: str) -> None:
    assert number_text(value) == text
    assert float(text) == value


def test_plain_numbers_fit_into_what_json_readers_know() -> None:
    plain = [repr(plain_number(each)) for each in (5.0, -0.0, 2.5, 1e18, 1e20)]
    assert plain == ["5", "0", "2.5", "1000000000000000000", "1e+20"]


# ── roll_dice ──


@pytest.mark.parametrize(
    ("notation", "normal", "count", "sides", "modifier"),
    [
        ("2d6", "2d6", 2, 6, 0),
        ("2d6+3", "2d6+3", 2, 6, 3),
        (" D20 ", "1d20", 1, 20, 0),
        ("1d100-10", "1d100-10", 1, 100, -10),
        ("100d6+0", "100d6", 100, 6, 0),
        ("2d12-0", "2d12", 2, 12, 0),
        ("1d10+999999999999999", "1d10+999999999999999", 1, 10, 999_999_999_999_999),
    ],
)
async def test_roll_dice(notation: str, normal: str, count: int, sides: int, modifier: int) -> None:
    value = await value_of("roll_dice", notation=notation)
    assert list(value) == ["notation", "rolls", "modifier", "total"]
    assert (value["notation"], len(value["rolls"]), value["modifier"]) == (normal, count, modifier)
    assert all(1 <= roll <= sides for roll in value["rolls"])
    assert value["total"] == sum(value["rolls"]) + modifier
    assert parse_dice(dice_text(count, sides, modifier)) == (count, sides, modifier)


WRONG = ["x", "6", "0d6", "101d6", "2d7", "2d0", "2 d6", "2d6 + 3", "2d6+", "-1d6", "2d6++3", "1d6.5", "２d6", "d٦"]


@pytest.mark.parametrize("notation", WRONG)
async def test_other_notations_are_refused_in_one_sentence(notation: str) -> None:
    text = await failure_of("roll_dice", notation=notation)
    assert text.startswith("Tool 'roll_dice' failed: Invalid dice notation")
    for part in (notation[:3], "1 to 100", *map(str, SIDES), "d20"):
        assert part in text


async def test_a_notation_is_needed_and_a_long_one_is_not_repeated() -> None:
    assert await failure_of("roll_dice", notation="   ") == "Tool 'roll_dice' failed: Notation is required"
    assert len(await failure_of("roll_dice", notation="d" * 100_000)) < 300
    assert "Invalid dice notation" in await failure_of("roll_dice", notation="1d6+1234567890123456")
    assert "Invalid dice notation" in await failure_of("roll_dice", notation="d6\x00")


# ── tell_fortune ──


@pytest.mark.seed("S4-04", "S4-14")
@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("mood", MOODS)
async def test_tell_fortune(category: str, mood: str) -> None:
    texts = FORTUNES[category][mood]
    assert len(set(texts)) >= 5
    assert all(text.strip() for text in texts)
    value = await value_of("tell_fortune", category=category, mood=mood)
    assert list(value) == ["category", "mood", "fortune"]
    assert (value["category"], value["mood"]) == (category, mood)
    assert value["fortune"] in texts


@pytest.mark.seed("S4-11", "S4-12", "S4-14", "S4-34")
async def test_the_mood_is_mysterious_by_default() -> None:
    assert (await value_of("tell_fortune", category="love"))["mood"] == "mysterious"
    assert "Financial opportunities are heading your way." in FORTUNES["wealth"]["optimistic"]
    for arguments in ({}, {"category": "luck"}, {"category": "love", "mood": "grim"}, {"category": "love", "x": 1}):
        assert "Invalid arguments for tell_fortune" in await failure_of("tell_fortune", **arguments)


# ── slow_operation ──


async def test_slow_operation() -> None:
    value = await value_of("slow_operation", duration_ms=30)
    assert list(value) == ["requested_duration_ms", "actual_duration_ms", "message"]
    assert (value["requested_duration_ms"], value["message"]) == (30, "Slept for 30ms")
    assert 25 <= value["actual_duration_ms"] < 5000
    for wrong in (-1, 300_001, 1.5, "soon", True):
        assert "duration_ms" in await failure_of("slow_operation", duration_ms=wrong)
    async with Wire(create_server(diagnostics=True), MODERN) as wire:
        params = {"name": "slow_operation", "arguments": {"duration_ms": 10}, "_meta": {"progressToken": "t"}}
        await wire.exchange(wire.request("tools/call", params))
        assert len([message for message in wire.seen if message.get("method") == "notifications/progress"]) == 10


# ── resources, completions ──


async def test_the_resources() -> None:
    async with Wire(create_server(), "2025-11-25") as wire:
        resources = {each["uri"]: each for each in (await wire.ask("resources/list"))["resources"]}
        assert list(resources) == ["reference://about", "reference://logo.png", "reference://notes.md"]
        assert resources["reference://notes.md"]["size"] > 0
        assert "lastModified" in resources["reference://notes.md"]["annotations"]
        (logo,) = (await wire.ask("resources/read", {"uri": "reference://logo.png"}))["contents"]
        assert logo["mimeType"] == "image/png"
        assert logo["blob"].startswith("iVBORw0KGgo")
        for uri in ("reference://about", "reference://notes.md"):
            (text,) = (await wire.ask("resources/read", {"uri": uri}))["contents"]
            assert (text["mimeType"], bool(text["text"])) == ("text/markdown", True)
        (love,) = (await wire.ask("resources/read", {"uri": "reference://fortunes/love"}))["contents"]
        assert json.loads(love["text"]) == {mood: list(texts) for mood, texts in FORTUNES["love"].items()}
        assert (await wire.refusal("resources/read", {"uri": "reference://fortunes/luck"}))["code"] == -32002


@pytest.mark.seed("S4-39")
@pytest.mark.parametrize(
    ("ref", "argument", "value", "values"),
    [
        ({"type": "ref/prompt", "name": "code_review"}, "language", "PY", ["python"]),
        ({"type": "ref/resource", "uri": "reference://fortunes/{category}"}, "category", "", CATEGORIES),
        ({"type": "ref/tool", "name": "tell_fortune"}, "mood", "O", ["optimistic"]),
        ({"type": "ref/tool", "name": "tell_fortune"}, "unknown", "", []),
        ({"type": "ref/tool", "name": "calculate"}, "operation", "d", ["divide"]),
        ({"type": "ref/tool", "name": "roll_dice"}, "notation", "2", ["2d6", "2d6+3"]),
    ],
)
async def test_completions(ref: dict[str, str], argument: str, value: str, values: list[str]) -> None:
    async with Wire(create_server(), "2025-11-25") as wire:
        params = {"ref": ref, "argument": {"name": argument, "value": value}}
        assert (await wire.ask("completion/complete", params))["completion"]["values"] == values
