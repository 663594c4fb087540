"""Compares what a server sent with what a seed document shows."""

import json
from typing import Any

from wire import Wire

# As the guide of seed 004 registers it; the reference server has it too.
TELL_FORTUNE: dict[str, Any] = {
    "name": "tell_fortune",
    "title": "Fortune Teller",
    "description": "Get a fortune for categories: love, career, health, wealth, general. "
    "Moods: optimistic, mysterious, cautious.",
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
    "annotations": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False},
}


class Opaque:
    """A value that only has to have a type, such as a cursor."""

    def __init__(self, kind: type) -> None:
        self.kind = kind


class JsonText:
    """A string that holds JSON: compared as parsed, for white space is not part of the message."""

    def __init__(self, text: str) -> None:
        self.value = json.loads(text)


def request(id: int, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": id, "method": method}
    return message if params is None else {**message, "params": params}


def call_of(name: str, **arguments: Any) -> dict[str, Any]:
    """The call of a tool, which has the id 2 in all documents but one."""
    return request(2, "tools/call", {"name": name, "arguments": arguments})


async def shows(server: Any, revision: str, request: dict[str, Any], result: Any) -> None:
    """The request is answered by the result that the document shows, and by nothing else."""
    async with Wire(server, revision) as wire:
        answer = await wire.exchange(request)
    same(answer, {"jsonrpc": "2.0", "id": request["id"], "result": result})


def same(actual: Any, shown: Any, place: str = "$") -> None:
    """Every field that is shown is there with that value, and nothing else is."""
    _compare(actual, shown, place, exact=True)


def contains(actual: Any, shown: Any, place: str = "$") -> None:
    """Every field that is shown is there with that value; there may be more."""
    _compare(actual, shown, place, exact=False)


def _compare(actual: Any, shown: Any, place: str, *, exact: bool) -> None:
    if isinstance(shown, Opaque):
        assert isinstance(actual, shown.kind), f"{place}: {actual!r}"
        assert actual, place
    elif isinstance(shown, JsonText):
        assert json.loads(actual) == shown.value, place
    elif isinstance(shown, dict):
        assert isinstance(actual, dict), f"{place}: {actual!r}"
        missing = shown.keys() - actual.keys()
        assert not missing, f"{place}: without {missing}"
        surplus = actual.keys() - shown.keys()
        assert not exact or not surplus, f"{place}: also {surplus}"
        for key, value in shown.items():
            _compare(actual[key], value, f"{place}.{key}", exact=exact)
    elif isinstance(shown, list):
        assert len(actual) == len(shown), place
        for index, (one, other) in enumerate(zip(actual, shown, strict=True)):
            _compare(one, other, f"{place}[{index}]", exact=exact)
    else:
        assert actual == shown, f"{place}: {actual!r} instead of {shown!r}"
        assert type(actual) is type(shown), place
