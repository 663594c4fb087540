"""The words of a scripted server of 2026-07-28."""

from typing import Any

from served_http import DISCOVERED, Visit

MODERN = "2026-07-28"
EMPTY: dict[str, Any] = {"resultType": "complete"}


def text(value: str) -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": value}]}


def progress(visit: Visit, value: float) -> dict[str, Any]:
    token = visit.message["params"]["_meta"]["progressToken"]
    params = {"progressToken": token, "progress": value}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def answer(visit: Visit, value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": visit.message["id"], "result": value}


def modern(tools: list[dict[str, Any]] | None = None) -> Any:
    """A modern server that answers every call with its own name."""

    def behave(visit: Visit) -> None:
        match visit.method:
            case "server/discover":
                visit.result(DISCOVERED)
            case "tools/list":
                visit.result({"resultType": "complete", "tools": tools or [], "ttlMs": 0, "cacheScope": "private"})
            case "tools/call":
                visit.result(text("called"))
            case _:
                visit.error(-32601, 404)

    return behave
