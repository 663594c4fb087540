"""A scripted server of the handshake era that announces changes and forgets sessions, and its words."""

from typing import Any

from served_http import Visit, handshake

VERSION = "2025-11-25"
CHANGING = {"tools": {"listChanged": True}, "resources": {"subscribe": True, "listChanged": True}, "logging": {}}
TOOLS_CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def answer(visit: Visit, value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": visit.message["id"], "result": value}


def updated(uri: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}


def log_message(value: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": value}}


class Announcing:
    """A server whose own stream the test holds in its hand: `streams` has one visit for each time it was opened."""

    def __init__(self) -> None:
        self.streams: list[Visit] = []
        self.session = 0
        self.refuse_stream: int | None = None
        self.forgetful = False

    async def __call__(self, visit: Visit) -> None:
        known = visit.headers.get("mcp-session-id") == f"s{self.session}" and not self.forgetful
        if visit.method == "initialize":
            self.session += 1
            self.forgetful = False
            handshake(visit, capabilities=CHANGING, Mcp_Session_Id=f"s{self.session}")
        elif visit.method == "server/discover":
            handshake(visit)
        elif not known:
            visit.error(-32600, 404, "Session not found", id=False)
        elif visit.verb == "GET" and self.refuse_stream is None:
            self.streams.append(visit)
            visit.stream()
            await visit.gone()
        elif visit.verb == "GET":
            visit.answer(self.refuse_stream or 405)
        elif not handshake(visit):
            visit.result({"tools": []} if visit.method == "tools/list" else {})
