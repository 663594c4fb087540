"""A server over stdio that no framework would let speak like this: its names hold line breaks and escapes."""

import json
import sys
from typing import Any

NAME = "fa\nError: \x1b[31mke"
ANSWERS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "prompts": {}, "logging": {}},
        "serverInfo": {"name": NAME, "version": "1"},
    },
    "tools/list": {
        "tools": [{"name": NAME, "inputSchema": {"type": "object", "properties": {NAME: {"type": "string"}}}}]
    },
    "prompts/list": {"prompts": [{"name": NAME, "arguments": [{"name": NAME}]}]},
    "tools/call": {"content": [{"type": "text", "text": "ok"}]},
}


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(asked: dict[str, Any]) -> None:
    if asked["method"] == "tools/call":
        say({"method": "notifications/message", "params": {"level": "info", "logger": NAME, "data": "said"}})
    known = ANSWERS.get(asked["method"])
    refusal = {"code": -32601, "message": "no"}
    say({"id": asked["id"], **({"error": refusal} if known is None else {"result": known})})


if __name__ == "__main__":
    for line in sys.stdin:
        if "id" in (message := json.loads(line)):
            answer(message)
