"""Messages and tools for `Sample`, and what is checked of every request that it makes."""

import json
from typing import Any

import pytest

import official
from dovetail.protocol import revisions
from dovetail.protocol.revisions import Revision
from dovetail.registry.sampling import Sample, ToolUse

REVISIONS = pytest.mark.parametrize("revision", revisions.ALL, ids=lambda row: row.name)
RICH = [row for row in revisions.ALL if row.rich_sampling]
PLAIN = [row for row in revisions.ALL if not row.rich_sampling]
HI = {"role": "user", "content": {"type": "text", "text": "hi"}}
USE = ToolUse("u1", "add", {"a": 1, "b": 2})
OTHER_USE = ToolUse("u2", "add", {})
WIRE_USE = {"type": "tool_use", "id": "u1", "name": "add", "input": {"a": 1, "b": 2}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


def messages(*args: Any, **options: Any) -> list[dict[str, Any]]:
    return Sample(*args, **options).question.params["messages"]


def check_request(params: dict[str, Any], revision: Revision) -> None:
    if official.available():
        request = {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": params}
        official.validator_for(revision.name, "CreateMessageRequest").validate(request)


def answer(content: Any, **more: Any) -> bytes:
    return json.dumps({"role": "assistant", "content": content, "model": "m", **more}).encode()


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}
