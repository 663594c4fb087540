"""One result after the other, and what was sent for each."""

from collections.abc import Callable
from typing import Any

from asking_server import (
    AskingServer,
)


def script(*results: Any) -> Callable[[dict[str, Any]], Any]:
    """One result after the other, whatever is asked; the last one stays."""
    left = list(results)
    return lambda message: left.pop(0) if len(left) > 1 else left[0]


def sent(server: AskingServer, method: str = "tools/call") -> list[dict[str, Any]]:
    """The params of each request, without what is the same in all."""
    return [{k: v for k, v in call["params"].items() if k != "_meta"} for call in server.calls(method)]


CALL = {"name": "t", "arguments": {"a": 1}}
ADA = {"action": "accept", "content": {"name": "Ada"}}
