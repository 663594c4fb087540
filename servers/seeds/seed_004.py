"""Seed 004: tools registered by hand in a `ToolRegistry`, in the message shapes of the tools guide."""

import json
import math
import operator
import random
import re
from collections.abc import Callable
from typing import Any

from dovetail import Server, ToolRegistry

FORTUNES = {
    ("wealth", "optimistic"): ["Financial opportunities are heading your way."],
    ("general", "mysterious"): ["A door opens where there was none."],
}
UNTOLD = ["The stars are silent about this one."]
HINTS = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}
DICE = re.compile(r"([0-9]{0,3})d([0-9]{1,4})([+-][0-9]{1,6})?")
OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": lambda a, b: a / b if b else math.nan,
}


def _text(value: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(value, separators=(",", ":"))}]}


def _failure(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True}


async def calculate(arguments: dict[str, Any]) -> dict[str, Any]:
    result = OPERATIONS[arguments["operation"]](arguments["a"], arguments["b"])
    return _text({"result": result}) if math.isfinite(result) else _failure("Failed to process request")


async def roll_dice(arguments: dict[str, Any]) -> dict[str, Any]:
    found = DICE.fullmatch(arguments["notation"])
    count, sides = (int(found[1] or 1), int(found[2])) if found else (0, 0)
    if found is None or not (count and sides):
        return _failure("That is no dice notation: write how many dice, how many sides and what to add, such as 2d6+3")
    rolls = [random.randint(1, sides) for _ in range(count)]
    modifier = int(found[3] or 0)
    return _text({"rolls": rolls, "modifier": modifier, "total": sum(rolls) + modifier})


async def tell_fortune(category: str, mood: str = "mysterious") -> dict[str, Any]:
    fortune = random.choice(FORTUNES.get((category, mood), UNTOLD))
    return _text({"category": category, "mood": mood, "fortune": fortune})


def create_registry() -> ToolRegistry:
    registry = ToolRegistry()
    registry.register_tool(
        name="calculate",
        description="Perform basic arithmetic operations",
        input_schema={
            "type": "object",
            "properties": {
                "operation": {"type": "string", "enum": list(OPERATIONS)},
                "a": {"type": "number"},
                "b": {"type": "number"},
            },
            "required": ["operation", "a", "b"],
        },
        annotations={**HINTS, "idempotentHint": True},
        handler=calculate,
    )
    registry.register_tool(
        name="roll_dice",
        description="Roll dice using standard notation",
        input_schema={
            "type": "object",
            "properties": {"notation": {"type": "string", "maxLength": 20, "description": "Such as 2d6+3"}},
            "required": ["notation"],
        },
        annotations={**HINTS, "idempotentHint": False},
        handler=roll_dice,
    )
    registry.register_tool(  # as one object, which is how the guide writes it
        {
            "name": "tell_fortune",
            "title": "Fortune Teller",
            "description": "Get a mystical fortune",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "category": {
                        "type": "string",
                        "enum": ["love", "career", "health", "wealth", "general"],
                        "description": "Fortune category",
                    },
                    "mood": {
                        "type": "string",
                        "enum": ["optimistic", "mysterious", "cautious"],
                        "description": "Fortune mood (default: mysterious)",
                    },
                },
                "required": ["category"],
                "additionalProperties": False,
            },
            "annotations": {**HINTS, "idempotentHint": False},
            "handler": tell_fortune,
        }
    )
    return registry


registry = create_registry()
server = Server("seed-004", version="1.0.0", profile="reference", tools=registry)

if __name__ == "__main__":
    server.run()
