"""The console in a browser, as its user sees it: by roles, names and words, never by what the page is made of."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request

STAGE = Path(__file__).parent / "console_stage.py"

EXPECTED_NOISE = "Failed to load resource: the server responded with a status of 4"  # what a refused call looks like

# What a page may try with a server; gives the names of what it could read.
PROBE = """
async (base) => {
  const marked = {headers: {"X-Dovetail-Console": "1"}};
  const version = "2026-07-28";
  const _meta = {
    "io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {},
  };
  const call = {
    method: "POST",
    headers: {"Content-Type": "application/json", "MCP-Protocol-Version": version, "Mcp-Method": "server/discover"},
    body: JSON.stringify({jsonrpc: "2.0", id: 1, method: "server/discover", params: {_meta}}),
  };
  const tries = {
    about: () => fetch(`${base}/console/api/about`, marked),
    live: () => fetch(`${base}/console/api/live`, marked).then(answer => (answer.body.cancel(), answer)),
    unmarked: () => fetch(`${base}/console/api/about`),
    call: () => fetch(`${base}/mcp`, call),
    simple: () => fetch(`${base}/mcp`, {...call, mode: "no-cors", headers: {"Content-Type": "text/plain"}}),
  };
  const read = [];
  for (const [name, make] of Object.entries(tries)) {
    try { if ((await make()).ok) read.push(name); } catch { /* the browser does not let it */ }
  }
  return read;
}
"""


def call_of(base: str, tool: str, arguments: dict[str, Any] | None = None) -> Request:
    """What another client sends to call a tool."""
    said = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{name}": value for name, value in said.items()}
    params = {"name": tool, "arguments": arguments or {}, "_meta": meta}
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    return Request(f"{base}/mcp", body, {"Content-Type": "application/json", **headers})


class ConsolePage:
    """A tab. `page` is Playwright's."""

    def __init__(self, page: Any, base: str) -> None:
        self.page = page
        self.base = base
        self.complaints: list[str] = []  # what the browser found wrong
        page.on("pageerror", lambda failure: self.complaints.append(str(failure)))
        page.on("console", self._hear)

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning") and EXPECTED_NOISE not in message.text:
            self.complaints.append(message.text)

    # ── where ──

    def open(self, section: str = "", key: str = "") -> None:
        """A section of the console, and one thing of it."""
        place = f"#{section}/{quote(key, safe='')}" if key else f"#{section}" if section else ""
        self.page.goto(f"{self.base}/console/{place}")
        self.connected()
        if key:
            self.page.get_by_role("article").wait_for()

    @property
    def is_as_new(self) -> bool:
        """It is connected, no question is open, and the newest revision is spoken."""
        picker = self.page.get_by_role("combobox", name="Revision")
        is_quiet = self._is_connected.is_visible() and not self.dialog.count()
        return is_quiet and picker.input_value() == picker.locator("option").first.inner_text()

    def start_again(self, place: str = "") -> None:
        self.page.evaluate("localStorage.clear()")
        self.page.goto(f"{self.base}/console/static/icon.svg")  # elsewhere: a change behind the # loads nothing anew
        self.page.goto(f"{self.base}/console/#{place}")
        self.connected()

    @property
    def _is_connected(self) -> Any:
        return self.page.get_by_role("status").get_by_text("Connected", exact=True)

    def connected(self) -> None:
        self._is_connected.wait_for()

    def tool(self, name: str) -> None:
        self.open("tools", name)

    def switch(self, section: str) -> None:
        self.page.get_by_role("navigation", name="Sections").get_by_role("link", name=section).click()

    def speak(self, revision: str) -> None:
        """Connect anew, with this revision of MCP."""
        self.page.get_by_role("combobox", name="Revision").select_option(revision)
        self.connected()

    # ── what is there ──

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    def field(self, name: str, within: Any = None) -> Any:
        """The control that takes a value, by the name that is read aloud."""
        place = self.page if within is None else within
        first, *others = (
            place.get_by_role(role, name=name, exact=True) for role in ("textbox", "combobox", "checkbox")
        )
        for other in others:
            first = first.or_(other)
        return first

    def region(self, name: str) -> Any:
        return self.page.get_by_role("region", name=name, exact=True)

    @property
    def result(self) -> Any:
        return self.region("Result")

    @property
    def dialog(self) -> Any:
        return self.page.get_by_role("dialog")

    def sees(self, where: Any, text: str) -> None:
        """Waits until it is there."""
        where.get_by_text(text).first.wait_for()

    def call(self, name: str, **fields: str) -> None:
        """Fill in the form of a tool, press Call, and wait for its end."""
        self.tool(name)
        for label, value in fields.items():
            self.field(label).fill(value)
        self.button("Call").click()

    def count_shown(self) -> int:
        """The number of the counter, in the result."""
        return int(self.result.get_by_text("count is").first.inner_text().rpartition(" ")[2])


# ── a fake endpoint with the tools and results of a test ──


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


class Impostor:
    """Responds to the requests of the page with these tools and results."""

    def __init__(self, tab: ConsolePage) -> None:
        self.tab = tab
        self.tools: list[dict[str, Any]] = []
        self.content: list[Any] | None = None  # None: the arguments
        self.agreed: dict[str, Any] = {}
        self.methods: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}  # of the test's own
        tab.page.route("**/mcp", self._respond)

    def _respond(self, route: Any) -> None:
        request = json.loads(route.request.post_data)
        if request["method"] == "subscriptions/listen":
            notification = {
                "method": "notifications/subscriptions/acknowledged",
                "params": {"notifications": self.agreed},
            }
            body = f"data: {json.dumps({'jsonrpc': '2.0', **notification})}\n\n"
            route.fulfill(status=200, content_type="text/event-stream", body=body)
            return
        response = {"jsonrpc": "2.0", "id": request["id"], "result": self._result(request["method"], request["params"])}
        route.fulfill(status=200, content_type="application/json", body=json.dumps(response))

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        echoed = [{"type": "text", "text": "got " + json.dumps(params.get("arguments"))}]
        results: dict[str, dict[str, Any]] = {
            "server/discover": {"capabilities": {"tools": {}, "resources": {"subscribe": True}}},
            "tools/list": {"tools": self.tools},
            "resources/list": {"resources": [{"uri": "a://b", "name": "b"}]},
            "resources/templates/list": {"resourceTemplates": []},
            "tools/call": {"content": echoed if self.content is None else self.content},
        }
        return self.methods[method](params) if method in self.methods else results.get(method, {})

    def offer(self, input_schema: dict[str, Any], **more: Any) -> None:
        """One tool with this schema, in view."""
        self.tools = [{"name": "tried", "inputSchema": input_schema, **more}, {"name": "good", "inputSchema": schema()}]
        self.tab.start_again("tools/tried")
        self.tab.page.get_by_role("article").wait_for()
