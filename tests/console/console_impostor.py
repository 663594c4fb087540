"""A server that says what a test wants: the page's own requests come in, made-up tools and results go out."""

import json
from typing import Any

from console_page import ConsolePage


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


class Impostor:
    """Answers what the page asks its endpoint: with these tools and results."""

    def __init__(self, tab: ConsolePage) -> None:
        self.tab = tab
        self.tools: list[dict[str, Any]] = []
        self.content: list[Any] | None = None  # None: the arguments come back
        self.agreed: dict[str, Any] = {}
        tab.page.route("**/mcp", self._answer)

    def _answer(self, route: Any) -> None:
        asked = json.loads(route.request.post_data)
        if asked["method"] == "subscriptions/listen":
            said = {"method": "notifications/subscriptions/acknowledged", "params": {"notifications": self.agreed}}
            body = f"data: {json.dumps({'jsonrpc': '2.0', **said})}\n\n"
            route.fulfill(status=200, content_type="text/event-stream", body=body)
            return
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": self._result(asked["method"], asked["params"])}
        route.fulfill(status=200, content_type="application/json", body=json.dumps(answer))

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        echoed = [{"type": "text", "text": "got " + json.dumps(params.get("arguments"))}]
        results: dict[str, dict[str, Any]] = {
            "server/discover": {"capabilities": {"tools": {}, "resources": {"subscribe": True}}},
            "tools/list": {"tools": self.tools},
            "resources/list": {"resources": [{"uri": "a://b", "name": "b"}]},
            "resources/templates/list": {"resourceTemplates": []},
            "tools/call": {"content": echoed if self.content is None else self.content},
        }
        return results.get(method, {})

    def offer(self, input_schema: dict[str, Any], **more: Any) -> None:
        """One tool with this schema, in view."""
        self.tools = [{"name": "tried", "inputSchema": input_schema, **more}, {"name": "good", "inputSchema": schema()}]
        self.tab.start_again("tools/tried")
        self.tab.page.get_by_role("article").wait_for()
