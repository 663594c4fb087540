"""Calls of several rounds and what is around them: what a client declares, caches, middleware, and their judge."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

import official
from dovetail import Context, Interim, MissingCapability, Request, Server, ServerError
from dovetail.errors import MISSING_CAPABILITY
from http_wire import HttpWire
from replaying import accepted, asking_client, is_interim, play, retry

ANSWERS = {"Name?": "Ada", "Age?": 36}


def text_of(result: Mapping[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


# ── what a client must be able to do ──


def choosy() -> Server:
    server = Server("choosy")

    @server.tool(requires=["elicitation.form"])
    async def strict(ctx: Context) -> str:
        raise AssertionError("it ran")

    @server.tool
    async def greet(ctx: Context) -> str:
        return str((await ctx.elicit("Name?", str)).data)

    @server.tool
    async def after_progress(ctx: Context) -> str:
        await ctx.report_progress(1)
        return str((await ctx.elicit("Name?", str)).data)

    @server.tool
    async def careful(ctx: Context) -> str:
        try:
            return str((await ctx.elicit("Name?", str)).data)
        except MissingCapability as missing:
            return f"nobody: {missing.required}"

    @server.tool
    async def both(ctx: Context) -> str:
        await asyncio.gather(ctx.elicit("Name?", str), ctx.elicit_url("Sign in", "https://example.com"))
        return "both"

    @server.prompt
    async def prompt(ctx: Context) -> str:
        return str((await ctx.elicit("Name?", str)).data)

    @server.resource("note://one")
    async def note(ctx: Context) -> str:
        return str((await ctx.elicit("Name?", str)).data)

    return server


@pytest.mark.rule("MRTR-6", "MRTR-21")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "strict"}),
        ("tools/call", {"name": "greet"}),
        ("prompts/get", {"name": "prompt"}),
        ("resources/read", {"uri": "note://one"}),
    ],
)
@pytest.mark.parametrize("capabilities", [{}, {"sampling": {}}, {"elicitation": {"url": {}}}], ids=str)
async def test_a_client_that_can_not_be_asked(method: str, params: Any, capabilities: Any) -> None:
    async with asking_client(choosy(), capabilities) as client:
        with pytest.raises(ServerError) as caught:
            await client.request(method, params)
    assert caught.value.code == MISSING_CAPABILITY
    assert caught.value.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}


@pytest.mark.rule("MRTR-6")
async def test_a_function_may_do_without() -> None:
    async with asking_client(choosy(), {}) as client:
        result = await client.request("tools/call", {"name": "careful"})
        assert text_of(result) == "nobody: {'elicitation': {'form': {}}}"


@pytest.mark.rule("MRTR-6")
@pytest.mark.parametrize("mode", ["form", "url"])
async def test_a_mode_that_was_not_declared_is_not_asked_for(mode: str) -> None:
    async with asking_client(choosy(), {"elicitation": {mode: {}}}) as client:
        result = await client.request("tools/call", {"name": "both"})
        assert is_interim(result)  # the one that can be asked is; the other will be missed in the end
        assert [each["params"]["mode"] for each in result["inputRequests"].values()] == [mode]


@pytest.mark.rule("MRTR-21")
@pytest.mark.parametrize("tool", ["strict", "greet"])
async def test_over_http_the_refusal_is_a_bad_request(tool: str) -> None:
    answer = await HttpWire(choosy().asgi()).post("tools/call", {"name": tool})
    assert answer.status == 400
    assert answer.json["error"]["code"] == MISSING_CAPABILITY


@pytest.mark.rule("MRTR-21")
async def test_over_http_the_refusal_stands_in_the_stream_that_has_begun() -> None:
    params = {"name": "after_progress", "_meta": {"progressToken": "p"}}
    answer = await HttpWire(choosy().asgi()).post("tools/call", params)
    assert answer.status == 200
    assert [message.get("method") for message in answer.messages] == ["notifications/progress", None]
    assert answer.answer["error"]["code"] == MISSING_CAPABILITY


# ── caches, and middleware ──


@pytest.mark.rule("MRTR-18")
async def test_what_was_answered_is_kept_neither_here_nor_by_clients() -> None:
    server = Server("cached")

    @server.resource("note://one", cache=60, ttl_ms=60_000)
    async def note(ctx: Context) -> str:
        return f"for {(await ctx.elicit('Name?', str)).data}"

    @server.resource("note://plain", cache=60, ttl_ms=60_000)
    async def plain(ctx: Context) -> str:
        return "for all"

    async with asking_client(server) as client:
        for name in ("Ada", "Eve"):
            first = await client.request("resources/read", {"uri": "note://one"})
            assert not first.keys() & {"ttlMs", "cacheScope"}
            final = await client.request("resources/read", {"uri": "note://one", **retry(first, {"Name?": name})})
            assert final["contents"][0]["text"] == f"for {name}"
            assert final["ttlMs"] == 0
        assert (await client.request("resources/read", {"uri": "note://plain"}))["ttlMs"] == 60_000
        unasked = {"uri": "note://plain", "inputResponses": {"x": accepted("Ada")}}
        assert (await client.request("resources/read", unasked))["ttlMs"] == 0


@pytest.mark.rule("MRTR-18")
async def test_a_resource_that_asks_is_not_kept_for_others_when_a_tool_reads_it() -> None:
    server = Server("cached")

    @server.resource("note://one", cache=60)
    async def note(ctx: Context) -> str:
        return f"for {(await ctx.elicit('Name?', str)).data}"

    @server.tool
    async def read(ctx: Context) -> str:
        return str((await ctx.read_resource("note://one"))[0].text)

    async with asking_client(server) as client:
        for name in ("Ada", "Eve"):
            assert (await play(client, "read", {"Name?": name})).text == f"for {name}"


async def test_middleware_sees_questions_as_results() -> None:
    server = choosy()
    seen: list[Any] = []

    @server.middleware
    async def watch(request: Request, call_next: Any) -> Any:
        result = await call_next(request)
        seen.append(result)
        return result

    async with asking_client(server) as client:
        await play(client, "greet", ANSWERS)
    interims = [each for each in seen if isinstance(each, Interim)]
    assert len(interims) == 1
    assert [each["params"]["message"] for each in interims[0].requests.values()] == ["Name?"]


async def test_middleware_may_make_the_request_twice() -> None:
    server = Server("twice")
    steps: list[str] = []

    @server.tool
    async def greet(ctx: Context) -> str:
        name = await ctx.elicit("Name?", str)
        await ctx.step("greet", lambda: steps.append("greeted"))
        return f"{name.data}, {(await ctx.elicit('Age?', int)).data}"

    @server.middleware
    async def twice(request: Request, call_next: Any) -> Any:
        await call_next(request)
        return await call_next(request)

    async with asking_client(server) as client:
        played = await play(client, "greet", ANSWERS)
    assert (played.rounds, played.text, steps) == ([["Name?"], ["Age?"]], "Ada, 36", ["greeted"])


@pytest.mark.parametrize(
    "result",
    [
        {"requestState": "x", "inputRequests": {"a": {"method": "elicitation/create", "params": {"mode": "form"}}}},
        {"requestState": "x", "inputRequests": {"a": {"method": "ping"}}},
        {"requestState": 5},
        {"requestState": "x", "ttlMs": 0, "cacheScope": "public"},
        {},
    ],
)
def test_the_judge_of_all_tests_looks_at_questions_too(result: dict[str, Any]) -> None:
    official.demand()
    witness = official.Witness()
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "_meta": meta}}
    witness.sent(json.dumps(asked).encode())
    answer = {"jsonrpc": "2.0", "id": 1, "result": {"resultType": "input_required", **result}}
    witness.received(json.dumps(answer).encode())
    assert witness.problems
