"""How sessions are opened over HTTP, and what is kept of them."""

import json
from typing import Any

import msgspec

from http_wire import CLIENT, HttpWire

HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {"roots": {}}, "clientInfo": CLIENT},
}


def identify(scope: Any) -> str | None:
    """Who is calling, as a host in front of the app would have found out."""
    return dict(scope["headers"]).get(b"x-user", b"").decode() or None


async def initialize(app: Any, **headers: str) -> Any:
    return await HttpWire(app).raw("POST", json.dumps(HELLO).encode(), headers).done()


async def records(app: Any) -> list[Any]:
    """What lies in the state backend."""
    slots = app._state._entries.things
    return [msgspec.msgpack.decode(slot.entry.value[1:]) for key, slot in slots.items() if key.startswith("session/")]
