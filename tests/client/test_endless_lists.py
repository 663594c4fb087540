"""Lists that do not end, or are far too long: a client gives up soon, and nothing else has to wait meanwhile."""

import asyncio
from typing import Any

import pytest
from scripted_link import ScriptedLink, result

from dovetail import Client
from dovetail.client import channel
from dovetail.errors import BadAnswer


class Endless(ScriptedLink):
    """`cursors` says what follows each page, by its number."""

    def __init__(self, cursors: Any, *, ttl: int = 0) -> None:
        super().__init__(self.reply)
        self._cursors = cursors
        self._ttl = ttl

    def reply(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        kept = {"resultType": "complete", "ttlMs": self._ttl, "cacheScope": "private"}
        if message["method"] == "server/discover":
            return [result(message, {**kept, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}})]
        tools = [{"name": f"t{number}", "inputSchema": {"type": "object"}} for number in range(10)]
        following = self._cursors(self.methods().count("tools/list"))
        return [result(message, {**kept, "tools": tools, "nextCursor": following})]


@pytest.mark.parametrize("ttl", [0, 60_000])
@pytest.mark.parametrize(
    "cursors", [lambda number: "same", lambda number: f"{number % 2}"], ids=["its own", "in a circle"]
)
async def test_a_cursor_that_comes_twice(monkeypatch: pytest.MonkeyPatch, cursors: Any, ttl: int) -> None:
    server = Endless(cursors, ttl=ttl)
    monkeypatch.setattr("dovetail.client.client.link_to", lambda *target, **more: server)
    async with Client(["any"]) as client:
        with pytest.raises(BadAnswer, match="tools/list: the server's list does not end: it gave the same cursor"):
            await client.list_tools()
    assert server.methods().count("tools/list") <= 3


@pytest.mark.parametrize(("limit", "value"), [("MAX_PAGES", 5), ("MAX_ITEMS", 50), ("MAX_LIST_BYTES", 2_000)])
async def test_ever_new_cursors(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    server = Endless(str)
    monkeypatch.setattr("dovetail.client.client.link_to", lambda *target, **more: server)
    monkeypatch.setattr(channel, limit, value)
    async with Client(["any"]) as client:
        with pytest.raises(BadAnswer, match=r"the server's list does not end after . pages with .0 items"):
            await client.list_tools()
    assert server.methods().count("tools/list") <= 5


async def test_kept_pages_let_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Endless(lambda number: None if number == 20 else str(number), ttl=60_000)
    monkeypatch.setattr("dovetail.client.client.link_to", lambda *target, **more: server)
    async with Client(["any"]) as client:
        assert len(await client.list_tools()) == 200
        again = asyncio.create_task(client.list_tools())
        turns = 0
        while not again.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 20
        assert len(await again) == 200
        assert server.methods().count("tools/list") == 20
