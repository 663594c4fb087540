"""Calls of several rounds and what is around them: prompts and resources, capabilities, caches, middleware."""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

import official
from dovetail import Context, Interim, MissingCapability, Request, Server, ServerError
from dovetail.errors import MISSING_CAPABILITY
from http_wire import HttpWire
from replaying import accepted, asking_client, is_interim, play, retry

ANSWERS = {"Name?": "Ada", "Age?": 36, "A?": "a", "B?": "b", "C?": "c"}


def text_of(result: Mapping[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


async def said(ctx: Context, question: str) -> str:
    return str((await ctx.elicit(question, str)).data)


# ── prompts, resources, and functions that call each other ──


def asking_server() -> Server:
    server = Server("askers", log_level="debug")

    @server.prompt
    async def greeting(ctx: Context, style: str) -> str:
        return f"{style} {await said(ctx, 'A?')}"

    @server.resource("note://one")
    async def note(ctx: Context) -> str:
        return f"note of {await said(ctx, 'A?')}"

    @server.resource("note://named/{name}")
    async def named(name: str, ctx: Context) -> str:
        return f"{name} by {await said(ctx, 'B?')}"

    @server.tool
    async def reads(ctx: Context) -> str:
        contents = await ctx.read_resource("note://one")
        return f"{contents[0].text}, then {await said(ctx, 'C?')}"

    @server.tool
    async def reads_both(ctx: Context) -> str:
        both = await asyncio.gather(ctx.read_resource("note://one"), ctx.read_resource("note://named/x"))
        return " and ".join(str(each[0].text) for each in both)

    @server.tool
    async def reads_carelessly(ctx: Context) -> str:
        try:
            return str((await ctx.read_resource("note://one"))[0].text)
        except BaseException:
            return "wrong"

    @server.tool
    def reads_in_thread(ctx: Context) -> str:
        return str(ctx.wait(ctx.read_resource("note://one"))[0].text)

    return server


@pytest.mark.rule("MRTR-2")
async def test_prompts_ask() -> None:
    async with asking_client(asking_server()) as client:
        played = await play(client, "greeting", ANSWERS, {"style": "warm"}, method="prompts/get")
        assert played.rounds == [["A?"]]
        assert played.result["messages"][0]["content"]["text"] == "warm a"


@pytest.mark.rule("MRTR-2")
@pytest.mark.parametrize(
    ("uri", "rounds", "text"), [("note://one", [["A?"]], "note of a"), ("note://named/x", [["B?"]], "x by b")]
)
async def test_resources_and_templates_ask(uri: str, rounds: list[list[str]], text: str) -> None:
    async with asking_client(asking_server()) as client:
        played = await play(client, uri, ANSWERS, method="resources/read")
        assert played.rounds == rounds
        assert [each["text"] for each in played.result["contents"]] == [text]


@pytest.mark.parametrize(
    ("tool", "rounds", "text"),
    [
        ("reads", [["A?"], ["C?"]], "note of a, then c"),
        ("reads_both", [["A?", "B?"]], "note of a and x by b"),
        ("reads_carelessly", [["A?"]], "note of a"),
        ("reads_in_thread", [["A?"]], "note of a"),
    ],
)
async def test_a_resource_that_a_tool_reads_asks_for_the_tool(tool: str, rounds: list[list[str]], text: str) -> None:
    async with asking_client(asking_server()) as client:
        played = await play(client, tool, ANSWERS)
        assert (played.rounds, played.text) == (rounds, text)


@pytest.mark.rule("MRTR-2")
async def test_who_completes_an_argument_can_not_ask(caplog: Any) -> None:
    server = asking_server()

    @server.completion(prompt="greeting", argument="style")
    async def styles(value: str, ctx: Context) -> list[str]:
        return [await said(ctx, "A?")]

    params = {"ref": {"type": "ref/prompt", "name": "greeting"}, "argument": {"name": "style", "value": ""}}
    with caplog.at_level(logging.ERROR):
        async with asking_client(server) as client:
            with pytest.raises(Exception, match="completion of style failed"):
                await client.request("completion/complete", params)
    assert "only tools, prompts and resources can ask" in caplog.text


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
