"""Every JSON message of seed 001, on its server: the pocket profile, over HTTP, with the key that it asks for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from servers.seeds.seed_001 import create_server

from dovetail import Server
from http_serving import serving
from http_wire import HttpWire
from seeds.golden import same

REVISION = "2025-06-18"
KEY = {"authorization": "Bearer dovetail_example_key_of_the_pocket_spec"}


@asynccontextmanager
async def session(server: Server | None = None) -> AsyncIterator[HttpWire]:
    async with serving(server or create_server()) as app:
        yield await HttpWire.session(app, REVISION, headers=KEY)


async def refusal(wire: HttpWire, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return (await wire.call(name, arguments)).answer["error"]


async def test_the_capabilities() -> None:
    async with session() as wire:
        same(wire.welcome["capabilities"], {"tools": {"listChanged": True}})


async def test_next_cursor_is_always_a_string() -> None:
    async with session() as wire:
        result = await wire.ask("tools/list", {"cursor": ""})
        assert result["nextCursor"] == ""
        for tool in result["tools"]:
            assert {"name", "description", "inputSchema"} <= tool.keys()


async def test_the_result_of_a_call() -> None:
    async with session() as wire:
        params = {"name": "describe", "arguments": {"subject": "everything"}}
        answer = (await wire.post("tools/call", params, id=7)).answer
        assert answer["id"] == 7
        same(
            answer["result"],
            {"content": [{"type": "text", "text": "…"}], "structuredContent": {}, "isError": False},
        )


async def test_content_has_at_least_one_item() -> None:
    async with session() as wire:
        same(
            await wire.ask("tools/call", {"name": "forget", "arguments": {"subject": "it"}}),
            {"content": [{"type": "text", "text": ""}], "structuredContent": {}, "isError": False},
        )


async def test_a_tool_that_fails_says_so_in_its_result() -> None:
    async with session() as wire:
        result = await wire.ask("tools/call", {"name": "describe", "arguments": {"subject": "the ineffable"}})
        assert result["isError"] is True
        assert result["content"] == [{"type": "text", "text": "Words fail."}]


async def test_bad_arguments_and_unknown_tools_are_protocol_errors() -> None:
    async with session() as wire:
        bad = await refusal(wire, "describe", {"subject": 5})
        unknown = await refusal(wire, "nothing", {})
        assert bad["code"] == unknown["code"] == -32602
        assert "subject" in bad["message"]


async def test_a_changed_list_is_announced() -> None:
    server = create_server()
    async with session(server) as wire:
        stream = await wire.get().started()
        server.add_tool(lambda: "", name="another")
        same(await stream.message(), {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        stream.leave()
        await stream.done()


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer dovetail_example_key_of_nobody"}], ids=str)
async def test_nobody_gets_in_without_the_key(headers: dict[str, str | None]) -> None:
    async with session() as wire:
        for stranger in (HttpWire(wire.app, REVISION, headers=headers), HttpWire(wire.app, headers=headers)):
            stranger.session_id = wire.session_id
            assert (await stranger.call("describe", {"subject": "everything"})).status == 401


async def test_calls_have_a_rate() -> None:
    async with session(create_server(rate_limit="2/hour per principal")) as wire:
        answers = [await wire.call("describe", {"subject": "everything"}) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert int(answers[2].headers["retry-after"]) > 0
