"""What a function learns and says through its context: logs, the client, its own resources."""

from typing import Any

import pytest
from context_stage import INFO, LOG_LEVEL, chatty, heard, new_server, quiet_logging

from dovetail import Context
from dovetail.engine.deprecation import _said
from dovetail.protocol.features import LEVELS
from wire import CLIENT, MODERN, Wire

# ── logs ──


@pytest.mark.rule("LOG-1", "LOG-2")
@pytest.mark.parametrize("tool", ["chat", "chat_in_a_thread", "chat_on_the_loop"])
async def test_every_level_of_a_session(tool: str) -> None:
    async with Wire(chatty(), "2025-11-25") as wire:
        assert [each["level"] for each in await heard(wire, tool)] == list(LEVELS[LEVELS.index("info") :])
        for place, level in enumerate(LEVELS):
            assert await wire.ask("logging/setLevel", {"level": level}) == {}
            assert [each["level"] for each in await heard(wire, tool)] == list(LEVELS[place:])
        assert (await wire.refusal("logging/setLevel", {"level": "loud"}))["code"] == -32602
        assert (await wire.refusal("logging/setLevel", {}))["code"] == -32602


async def test_sessions_have_levels_of_their_own() -> None:
    server = chatty(log_level="error")
    async with Wire(server, "2025-06-18") as one, Wire(server, "2025-06-18") as two:
        await one.ask("logging/setLevel", {"level": "emergency"})
        assert len(await heard(one, "chat")) == 1
        assert len(await heard(two, "chat")) == 4


@pytest.mark.rule("LOG-3", "LOG-4", "LOG-5")
@quiet_logging
@pytest.mark.parametrize("tool", ["chat", "chat_in_a_thread", "chat_on_the_loop"])
async def test_a_modern_request_hears_what_it_asked_for(tool: str) -> None:
    async with Wire(chatty(), MODERN) as wire:
        assert await heard(wire, tool) == []
        for place, level in enumerate(LEVELS):
            assert [each["level"] for each in await heard(wire, tool, {LOG_LEVEL: level})] == list(LEVELS[place:])
        error = await wire.refusal("tools/call", {"name": tool, "_meta": {LOG_LEVEL: "loud"}})
        assert error["code"] == -32602
        assert (await wire.refusal("logging/setLevel", {"level": "info"}))["code"] == -32601


@pytest.mark.seed("S2-74")
@pytest.mark.rule("LOG-6")
async def test_secrets_are_blacked_out_and_data_may_be_anything() -> None:
    server = new_server(redact=["pin"])

    @server.tool
    async def leak(ctx: Context) -> str:
        await ctx.info({"password": "hunter2", "pin": 1234, "fine": {"a": (1, {2})}})
        await ctx.warning("Authorization: Bearer abcdef123456")
        await ctx.error(None)
        await ctx.error(ValueError("the password=hunter2 is wrong"))
        await ctx.error({"\ud800": float("nan")})
        return ""

    async with Wire(server, "2025-06-18") as wire:
        first, second, third, fourth, fifth = await heard(wire, "leak")
        assert first == {
            "level": "info",
            "data": {"password": "[redacted]", "pin": "[redacted]", "fine": {"a": [1, [2]]}},
        }
        assert "abcdef" not in second["data"]
        assert third["data"] is None
        assert "wrong" in fourth["data"]
        assert "hunter2" not in fourth["data"]
        assert "nan" in fifth["data"]


async def test_logging_can_be_off() -> None:
    async with Wire(chatty(logging=False), "2025-06-18") as wire:
        assert await heard(wire, "chat") == []


async def test_an_unknown_level_is_the_authors_mistake() -> None:
    server = new_server()

    @server.tool
    async def wrong(ctx: Context) -> str:
        with pytest.raises(ValueError, match="loud"):
            await ctx.log("loud", "x")  # type: ignore[arg-type]
        return "caught"

    async with Wire(server, "2025-06-18") as wire:
        assert (await wire.ask("tools/call", {"name": "wrong"}))["isError"] is False


async def test_the_deprecation_is_told_once_and_only_where_it_holds() -> None:
    _said.discard("logging")
    server = chatty()
    async with Wire(server, "2025-11-25") as wire:
        await wire.ask("tools/call", {"name": "chat"})
    async with Wire(server, MODERN) as wire:
        with pytest.warns(DeprecationWarning, match="logging"):
            await wire.ask("tools/call", {"name": "chat"})
        await wire.ask("tools/call", {"name": "chat"})


# ── who is asking ──


async def test_what_a_function_knows_about_its_request() -> None:
    server = new_server()

    @server.tool
    async def who(ctx: Context) -> dict[str, Any]:
        return {
            "id": ctx.request_id,
            "session": ctx.session_id,
            "version": ctx.protocol_version,
            "client": [ctx.client.name, ctx.client.version, dict(ctx.client.capabilities)],
            "meta": ctx.meta,
            "headers": ctx.headers,
            "lifespan": ctx.lifespan,
        }

    async with Wire(server, "2025-11-25", capabilities={"roots": {}}) as wire:
        params = {"name": "who", "_meta": {"org.example/x": {"a": [1]}}}
        first = (await wire.exchange(wire.request("tools/call", params, id="one")))["result"]["structuredContent"]
        second = (await wire.ask("tools/call", {"name": "who"}))["structuredContent"]
        assert first["id"] == "one"
        assert first["client"] == [CLIENT["name"], CLIENT["version"], {"roots": {}}]
        assert first["meta"] == {"org.example/x": {"a": [1]}}
        assert first["session"] == second["session"]
        assert isinstance(first["session"], str)
        assert (first["headers"], first["lifespan"], second["meta"]) == (None, None, {})
    async with Wire(server, "2025-11-25") as wire:
        assert (await wire.ask("tools/call", {"name": "who"}))["structuredContent"]["session"] != first["session"]
    async with Wire(server, MODERN) as wire:
        modern = (await wire.ask("tools/call", {"name": "who"}))["structuredContent"]
        assert (modern["session"], modern["client"]) == (None, [None, None, {}])
        named = await wire.ask("tools/call", {"name": "who", "_meta": {INFO: {"name": "n", "version": "v"}}})
        assert named["structuredContent"]["client"][:2] == ["n", "v"]


# ── telling everyone ──


@pytest.mark.parametrize("in_thread", [True, False])
async def test_changes_are_told_to_everyone_who_asked(in_thread: bool) -> None:
    server = new_server(declare=["prompts"])
    server.add_resource("a://b", lambda: "", name="r")

    def tell(ctx: Context) -> None:
        ctx.notify_resource_updated("a://b")
        ctx.notify_tools_changed()
        ctx.notify_prompts_changed()
        ctx.notify_resources_changed()

    async def tell_and_await(ctx: Context) -> None:
        await ctx.notify_resource_updated("a://b")
        await ctx.notify_tools_changed()
        await ctx.notify_prompts_changed()
        await ctx.notify_resources_changed()

    server.add_tool(tell if in_thread else tell_and_await, name="tell")
    async with Wire(server, "2025-06-18") as asker, Wire(server, "2025-06-18") as other:
        await other.ask("resources/subscribe", {"uri": "a://b"})
        await asker.ask("tools/call", {"name": "tell"})
        methods = [(await other.receive())["method"] for _ in range(4)]
        assert methods == [
            "notifications/resources/updated",
            "notifications/tools/list_changed",
            "notifications/prompts/list_changed",
            "notifications/resources/list_changed",
        ]
