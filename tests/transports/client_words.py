"""What clients say of themselves, at its worst."""

import json
from typing import Any

from dovetail.protocol.session import MAX_CLIENT
from http_wire import CLIENT

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


def worst(size: int = MAX_CLIENT) -> dict[str, Any]:
    """Capabilities of so many bytes, with CLIENT: three bytes for each empty list, which is 25 times as large."""
    room = size - len(json.dumps({"experimental": {"x": []}})) - len(json.dumps(CLIENT))
    return {"experimental": {"x": [[]] * (room // 4)}}  # json.dumps adds a blank


def hello(capabilities: dict[str, Any], client: dict[str, Any]) -> dict[str, Any]:
    return {"protocolVersion": "2025-06-18", "capabilities": capabilities, "clientInfo": client}
