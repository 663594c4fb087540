"""What a client says of itself: bounded in every era and on every transport."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from client_words import CAPABILITIES, hello, worst
from old_client import OldClient, Stage

from dovetail import Client, Context, Server
from dovetail.protocol.session import MAX_CLIENT, MAX_RECORD, MAX_SUBSCRIPTIONS
from http_serving import serving
from http_wire import CLIENT, MODERN, HttpWire
from wire import Wire

INFO = "io.modelcontextprotocol/clientInfo"

Refusal = Callable[[dict[str, Any], dict[str, Any]], Awaitable[Any]]


async def on_pipe(capabilities: dict[str, Any], client: dict[str, Any]) -> Any:
    async with Wire(Server("x", version="1.0.0")) as wire:
        return await wire.exchange(wire.request("initialize", hello(capabilities, client)))


async def on_modern_pipe(capabilities: dict[str, Any], client: dict[str, Any]) -> Any:
    async with Wire(Server("x", version="1.0.0", declare=["tools"]), MODERN) as wire:
        meta = {CAPABILITIES: capabilities, INFO: client}
        return await wire.exchange(wire.request("tools/list", {"_meta": meta}))


async def over_http(capabilities: dict[str, Any], client: dict[str, Any]) -> Any:
    async with serving(Server("x", version="1.0.0")) as app:
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello(capabilities, client)}
        return (await HttpWire(app).raw("POST", json.dumps(message).encode()).done()).json


async def over_modern_http(capabilities: dict[str, Any], client: dict[str, Any]) -> Any:
    async with serving(Server("x", version="1.0.0", declare=["tools"])) as app:
        meta = {CAPABILITIES: capabilities, INFO: client}
        return (await HttpWire(app).start("tools/list", {"_meta": meta}).done()).json


async def over_sse(capabilities: dict[str, Any], client: dict[str, Any]) -> Any:
    async with serving(Stage().server) as app:
        old = await OldClient(app).open()
        answer = await old.ask("initialize", hello(capabilities, client))
        await old.leave()
        return answer


EVERYWHERE = pytest.mark.parametrize("say", [on_pipe, on_modern_pipe, over_http, over_modern_http, over_sse])


@EVERYWHERE
async def test_who_says_too_much_is_told_the_bound(say: Refusal) -> None:
    for said in (worst(MAX_CLIENT + 4_000), CLIENT), ({}, {**CLIENT, "title": "x" * MAX_CLIENT}):
        error = (await say(*said))["error"]
        assert error["code"] == -32602
        assert str(MAX_CLIENT) in error["message"]


@EVERYWHERE
async def test_icons_do_not_count(say: Refusal) -> None:
    icons = [{"src": "data:image/png;base64," + "A" * MAX_CLIENT}]
    assert "result" in await say({}, {**CLIENT, "icons": icons})


@EVERYWHERE
async def test_as_much_as_is_allowed_is_taken(say: Refusal) -> None:
    assert "result" in await say(worst(), CLIENT)


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_tool_sees_all_that_was_said(revision: str) -> None:
    server = Server("x", version="1.0.0")

    @server.tool
    def said(ctx: Context) -> dict[str, Any]:
        return {"name": ctx.client.name, "experimental": ctx.client.capabilities["experimental"]}

    async with Client(server, protocol_version=revision, capabilities={"experimental": {"x": {"y": [1]}}}) as client:
        seen = (await client.call_tool("said")).data
    assert seen["experimental"] == {"x": {"y": [1]}}
    assert seen["name"]


async def test_subscriptions_of_a_session_are_bounded_on_every_transport() -> None:
    version, server = "2025-11-25", Server("x", version="1.0.0")

    @server.resource("wide://{name}")
    def wide(name: str) -> str:
        return name

    long = "wide://" + "x" * 1_000
    async with Wire(server, version) as wire, serving(server) as app:
        http = await HttpWire.session(app, version)
        for number in range(MAX_RECORD // 1_000 + 1):
            uri = {"uri": f"{long}{number}"}
            pipe_answer = await wire.exchange(wire.request("resources/subscribe", uri))
            http_answer = (await http.post("resources/subscribe", uri)).answer
        for answer in (pipe_answer, http_answer):
            assert answer["error"]["code"] == -32602
            assert str(MAX_RECORD) in answer["error"]["message"]
            assert str(MAX_SUBSCRIPTIONS) in answer["error"]["message"]
