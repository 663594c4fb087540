"""The fixtures that a server at a URL lacks, by what it lists in both eras.

Plain requests, without any MCP library: the gate must not depend on what it judges.
"""

import itertools
import json
import urllib.request
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from conformance_verdict import judge_fixtures

LISTS = {  # kind of fixture: the method that lists it, where its list is, what names an item
    "tools": ("tools/list", "tools", "name"),
    "prompts": ("prompts/list", "prompts", "name"),
    "resources": ("resources/list", "resources", "uri"),
    "templates": ("resources/templates/list", "resourceTemplates", "uriTemplate"),
}
ERAS = ("2026-07-28", "2025-11-25")
CLIENT = {"name": "conformance-gate", "version": "1.0"}
MOST_PAGES = 50
Answer = dict[str, Any]


class Asker:
    """One client of one era."""

    def __init__(self, url: str, revision: str) -> None:
        self._url = url
        self._ids = itertools.count(1)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        self._meta: dict[str, Any] = {}
        self.capabilities: Answer = self._discover(revision) if revision >= "2026" else self._initialize(revision)

    def _discover(self, revision: str) -> Answer:
        self._headers["MCP-Protocol-Version"] = revision
        values = {"protocolVersion": revision, "clientInfo": CLIENT, "clientCapabilities": {}}
        self._meta = {f"io.modelcontextprotocol/{key}": value for key, value in values.items()}
        return dict(self.ask("server/discover")["capabilities"])

    def _initialize(self, revision: str) -> Answer:
        answer = self.ask("initialize", protocolVersion=revision, capabilities={}, clientInfo=CLIENT)
        self._headers["MCP-Protocol-Version"] = revision
        self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return dict(answer["capabilities"])

    def ask(self, method: str, **params: Any) -> Answer:
        if self._meta:
            params["_meta"] = self._meta
            self._headers["Mcp-Method"] = method
        id = next(self._ids)
        for message in self._post({"jsonrpc": "2.0", "id": id, "method": method, "params": params}):
            if message.get("id") == id and "result" in message:
                return dict(message["result"])
        raise RuntimeError(f"{method} got no result")

    def _post(self, message: Answer) -> Iterable[Answer]:
        request = urllib.request.Request(self._url, json.dumps(message).encode(), self._headers)
        with urllib.request.urlopen(request, timeout=10) as response:
            if session := response.headers.get("Mcp-Session-Id"):
                self._headers["Mcp-Session-Id"] = session
            body, kind = response.read().decode(), response.headers.get("Content-Type", "")
        if not body:
            return []
        return _events(body) if kind.startswith("text/event-stream") else [json.loads(body)]

    def names(self, kind: str) -> set[str]:
        """All of one kind of fixture that the server lists."""
        method, place, key = LISTS[kind]
        names: set[str] = set()
        cursor: dict[str, str] = {}
        for _ in range(MOST_PAGES):
            page = self.ask(method, **cursor)
            names |= {item[key] for item in page[place]}
            if not page.get("nextCursor"):
                break
            cursor = {"cursor": page["nextCursor"]}
        return names


def _events(body: str) -> list[Answer]:
    lines = body.splitlines()
    return [json.loads(data) for line in lines if (data := line.removeprefix("data:").strip()) and data != line.strip()]


def _flat(capabilities: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """`tools` and `tools.listChanged`; what is False is not there."""
    for name, value in capabilities.items():
        if value is not False:
            yield above + name
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")


def _of_era(names: Mapping[str, Iterable[str]], era: str) -> dict[str, list[str]]:
    """Extensions are declared since 2026-07-28 only."""
    return {
        kind: [name for name in group if era >= "2026" or "extensions." not in name] for kind, group in names.items()
    }


def problems(
    url: str, wanted: Mapping[str, Collection[str]], absent: Mapping[str, Mapping[str, str]]
) -> tuple[list[str], str]:
    """What is wrong with what the server lists, and a summary."""
    found_problems = []
    for era in ERAS:
        asker = Asker(url, era)
        found = {kind: asker.names(kind) for kind in LISTS} | {"capabilities": set(_flat(asker.capabilities))}
        later = {kind: {name: absent[kind][name] for name in names} for kind, names in _of_era(absent, era).items()}
        found_problems += [f"{era}: {problem}" for problem in judge_fixtures(_of_era(wanted, era), found, later)]
    count, to_come = (sum(map(len, group.values())) for group in (wanted, absent))
    return found_problems, f"{count - to_come}/{count} fixtures demanded in {' and '.join(ERAS)}"
