"""Calls of several rounds, as clients of 2026-07-28 see them: by `ctx`, by hand (`InputRequired`), and around them."""

import asyncio
import itertools
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from dovetail import (
    Client,
    Context,
    Elicit,
    ElicitUrl,
    InputRequired,
    InputRequiredResult,
    Request,
    Roots,
    Sample,
    Server,
)
from dovetail.engine import input_required
from dovetail.engine.input_required import NOT_WILLING, NOT_YET_DONE
from dovetail.errors import MISSING_CAPABILITY, ServerError, UrlElicitationRequired
from dovetail.protocol import request_state
from http_wire import HttpWire
from server_requests import accept, asking_client, is_input_required, messages, play, retry

ANSWERS = {"Name?": "Ada", "Age?": 36, "A?": "a", "B?": "b", "C?": "c"}
GREET: dict[str, Any] = {"name": "greet"}


def worded(*questions: tuple[str, type]) -> tuple[Server, list[tuple[str, type]]]:
    """A tool, and what it asks, which may change from one round to the next as by a deployment."""
    server, asked = Server("greeter"), list(questions)

    @server.tool
    async def greet(ctx: Context) -> str:
        return " ".join([str((await ctx.elicit(message, kind)).data) for message, kind in asked])

    return server, asked


async def again(client: Client, result: Mapping[str, Any], answers: Mapping[str, Any] = ANSWERS) -> dict[str, Any]:
    return await client.request("tools/call", {**GREET, **retry(result, answers)})


def text_of(result: Mapping[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


# ── an answer belongs to its question ──


@pytest.mark.rule("MRTR-3", "MRTR-4", "MRTR-5", "MRTR-8")
async def test_a_call_of_two_rounds() -> None:
    server, _ = worded(("Name?", str), ("Age?", int))
    async with asking_client(server) as client:
        first = await client.request("tools/call", GREET)
        assert first["resultType"] == "input_required"
        assert first.keys() == {"resultType", "inputRequests", "requestState", "_meta"}
        (request,) = first["inputRequests"].values()
        assert request["method"] == "elicitation/create"
        assert request["params"]["message"] == "Name?"
        second = await again(client, first)
        assert messages(second) == ["Age?"]
        assert second["requestState"] != first["requestState"]
        assert text_of(await again(client, second)) == "Ada 36"


@pytest.mark.parametrize("changed", [("Your name?", str), ("Name?", int)], ids=["wording", "schema"])
async def test_a_question_that_has_changed_is_asked_again_and_nothing_else_is(changed: tuple[str, type]) -> None:
    server, questions = worded(("Age?", int), ("Name?", str))
    async with asking_client(server) as client:
        asked = await again(client, await client.request("tools/call", GREET))
        questions[1] = changed
        asked_anew = await again(client, asked)
        assert messages(asked_anew) == [changed[0]]
        assert not asked_anew["inputRequests"].keys() & asked["inputRequests"].keys()
        answer = 12 if changed[1] is int else "Eve"
        assert text_of(await again(client, asked_anew, {changed[0]: answer})) == f"36 {answer}"


@pytest.mark.rule("MRTR-15")
async def test_answers_to_what_was_not_asked_are_ignored() -> None:
    server, _ = worded(("Name?", str), ("Age?", int))
    async with asking_client(server) as client:
        first = await client.request("tools/call", GREET)
        future = (await again(client, first))["inputRequests"]  # what will be asked in the next round
        params = {**GREET, **retry(first, ANSWERS)}
        params["inputResponses"].update(dict.fromkeys([*future, "unknown", ""], accept(99)))
        second = await client.request("tools/call", params)
        assert messages(second) == ["Age?"]
        params = {**GREET, **retry(second, ANSWERS)}
        params["inputResponses"].update(dict.fromkeys(first["inputRequests"], accept("Eve")))
        assert text_of(await client.request("tools/call", params)) == "Ada 36"


@pytest.mark.rule("MRTR-7", "MRTR-17")
async def test_a_server_that_knows_nothing_of_the_first_round_goes_on_with_the_second() -> None:
    async def greet(ctx: Context) -> str:
        number, name = await ctx.step("number", lambda: 7), await ctx.elicit("Name?", str)
        return f"{name.data} {number} {(await ctx.elicit('Age?', int)).data}"

    result: dict[str, Any] = {}
    for _ in range(3):
        server = Server("greeter", secret="the same on all workers")
        server.add_tool(greet)
        async with asking_client(server) as client:
            result = await (again(client, result) if result else client.request("tools/call", GREET))
    assert text_of(result) == "Ada 7 36"


# ── calls that do not come to an end ──


async def test_a_tool_that_always_asks_something_else_ends_in_words(caplog: Any) -> None:
    server, numbers = Server("restless"), itertools.count()

    @server.tool
    async def restless(ctx: Context) -> str:
        return str((await ctx.elicit(f"Is it {next(numbers)}?", str)).data)

    async with asking_client(server) as client:
        played = await play(client, "restless", lambda _: "yes")
    assert (len(played.rounds), played.failed) == (3, True)
    assert "The tool restless can't go on: it asks something else each time" in played.text
    assert played.text in caplog.text


async def test_a_call_has_32_rounds_and_no_more(caplog: Any) -> None:
    server, questions = worded(*[(f"{n}?", int) for n in range(request_state.MAX_ROUNDS)])
    async with asking_client(server) as client:
        for failed in (False, True):
            played = await play(client, "greet", lambda _: 1)
            assert (len(played.rounds), played.failed) == (request_state.MAX_ROUNDS, failed)
            questions.append(("One more?", int))
    assert played.text == "The tool greet can't go on: it has asked 32 times without coming to an end"
    assert played.text in caplog.text


async def test_answers_that_are_too_large_to_be_kept(caplog: Any) -> None:
    server, _ = worded(*[(f"{n}?", str) for n in range(5)])
    async with asking_client(server) as client:
        played = await play(client, "greet", lambda _: "x" * 60_000)
        assert (len(played.rounds), played.failed) == (4, True)
        assert "262144 are allowed" in played.text
        assert played.text in caplog.text
        assert (await play(client, "greet", lambda _: "x")).text == "x x x x x"  # nothing is wrong with the tool


# ── for how long ──


@pytest.mark.rule("MRTR-11")
@pytest.mark.parametrize(("timeout", "seconds"), [(None, 3600), (10, 10), (7200, 7200)])
async def test_a_state_lives_as_long_as_its_question(timeout: float | None, seconds: float, monkeypatch: Any) -> None:
    server = Server("greeter")

    @server.tool
    async def greet(ctx: Context) -> str:
        return str((await ctx.elicit("Name?", str, timeout=timeout)).data)

    now = 1_000_000.0
    monkeypatch.setattr(input_required.time, "time", lambda: now)
    async with asking_client(server) as client:
        first = await client.request("tools/call", GREET)
        now += seconds - 1
        assert text_of(await again(client, first)) == "Ada"
        now += 2
        with pytest.raises(ServerError, match="request state can't be used"):
            await again(client, first)


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NAME = Elicit("Name?", str)


def low_level() -> Server:
    server = Server("low level")

    @server.tool
    async def greet(ctx: Context) -> Any:
        answer = (ctx.input_responses or {}).get("user_name")
        if answer is None:
            return InputRequired({"user_name": NAME}, state={"tries": (ctx.request_state or {"tries": 0})["tries"] + 1})
        return f"{answer['content']['value']} after {ctx.request_state}"

    @server.tool
    async def every_kind(ctx: Context) -> Any:
        if ctx.input_responses:
            return sorted(ctx.input_responses)
        return InputRequired({"form": NAME, "model": Sample("Hi", max_tokens=5), "folders": Roots()})

    @server.tool
    async def together(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.elicit("Name?", str))
            group.create_task(ctx.sample("Hi"))

    @server.tool
    async def waits(ctx: Context) -> Any:
        done = ctx.request_state or 0
        return "done" if done == 3 else InputRequired(state=done + 1)

    @server.tool
    async def mixed(ctx: Context) -> Any:
        if ctx.request_state is None:
            return InputRequired({"own": NAME}, state="begun")
        age = (await ctx.elicit("Age?", int)).data
        return f"{ctx.request_state} {age} {'own' in ctx.input_responses}"

    @server.prompt
    async def prompt(ctx: Context) -> Any:
        answer = (ctx.input_responses or {}).get("who")
        return f"Hello {answer['content']['value']}" if answer else InputRequired({"who": NAME})

    @server.resource("note://one")
    async def note(ctx: Context) -> Any:
        answer = (ctx.input_responses or {}).get("who")
        return f"Note of {answer['content']['value']}" if answer else InputRequired({"who": NAME})

    return server


async def call(client: Any, name: str, **more: Any) -> dict[str, Any]:
    return await client.request("tools/call", {"name": name, **more})


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_there_are_no_responses_before_the_first_round(revision: str) -> None:
    server = Server("rounds")
    seen: list[Any] = []

    @server.tool
    async def greet(ctx: Context) -> Any:
        await ctx.step("noted", lambda: 1)
        seen.append(ctx.input_responses)
        return InputRequired({"who": NAME}) if ctx.input_responses is None else "done"

    async with Client(server, protocol_version=revision, elicitation_handler=lambda _: "Ada") as client:
        assert (await client.call_tool("greet")).data == "done"
    assert [None if each is None else list(each) for each in seen] == [None, ["who"]]


@pytest.mark.rule("MRTR-3", "MRTR-4", "MRTR-5")
async def test_keys_are_the_functions_own_and_the_state_comes_back() -> None:
    async with asking_client(low_level()) as client:
        first = await call(client, "greet")
        assert first["inputRequests"].keys() == {"user_name"}
        assert "tries" not in first["requestState"]
        second = await call(client, "greet", requestState=first["requestState"])
        final = {"inputResponses": {"user_name": accept("Ada")}, "requestState": second["requestState"]}
        assert text_of(await call(client, "greet", **final)) == "Ada after {'tries': 2}"


@pytest.mark.rule("MRTR-13", "MRTR-15")
async def test_the_answers_are_raw_from_every_client() -> None:
    async with asking_client(low_level()) as client:
        unasked = {"user_name": accept("Eve"), "other": {"x": [1.5, None]}}
        assert text_of(await call(client, "greet", inputResponses=unasked)) == "Eve after None"
        result = await call(client, "every_kind", inputResponses=unasked)
        assert text_of(result) == '["other","user_name"]'


@pytest.mark.rule("MRTR-4", "MRTR-20")
async def test_a_state_alone_asks_the_client_to_come_again() -> None:
    async with asking_client(low_level(), {}) as client:
        played = await play(client, "waits", {})
        assert played.rounds == [[], [], []]
        assert played.text == "done"
        assert "inputRequests" not in await call(client, "waits")


async def test_the_state_stays_while_the_function_asks_by_ctx() -> None:
    async with asking_client(low_level()) as client:
        first = await call(client, "mixed")
        second = await call(client, "mixed", inputResponses={"own": accept("x")}, requestState=first["requestState"])
        assert is_input_required(second)
        (place,) = second["inputRequests"]
        final = {"inputResponses": {place: accept(36)}, "requestState": second["requestState"]}
        assert text_of(await call(client, "mixed", **final)) == "begun 36 False"


@pytest.mark.rule("MRTR-2")
async def test_prompts_and_resources() -> None:
    async with asking_client(low_level()) as client:
        asked = await play(client, "prompt", ANSWERS, method="prompts/get")
        assert (asked.rounds, asked.result["messages"][0]["content"]["text"]) == ([["Name?"]], "Hello Ada")
        read = await play(client, "note://one", ANSWERS, method="resources/read")
        assert (read.rounds, read.result["contents"][0]["text"]) == ([["Name?"]], "Note of Ada")


@pytest.mark.rule("MRTR-6", "MRTR-21")
@pytest.mark.parametrize(
    ("tool", "capabilities", "missing"),
    [
        ("every_kind", {"elicitation": {}}, {"sampling": {}}),
        ("every_kind", {"elicitation": {}, "sampling": {}}, {"roots": {}}),
        ("together", {}, {"elicitation": {"form": {}}}),  # the first that is missed
    ],
)
async def test_nothing_is_asked_that_the_client_did_not_declare(tool: str, capabilities: Any, missing: Any) -> None:
    async with asking_client(low_level(), capabilities) as client:
        with pytest.raises(ServerError) as caught:
            await call(client, tool)
    assert (caught.value.code, caught.value.data) == (MISSING_CAPABILITY, {"requiredCapabilities": missing})
    answer = await HttpWire(low_level().asgi()).post("tools/call", {"name": "greet"})
    error = {"code": MISSING_CAPABILITY, "data": {"requiredCapabilities": {"elicitation": {"form": {}}}}}
    assert answer.status == 400
    assert answer.json["error"].items() >= error.items()


PAGES = ["https://example.com/in", "https://example.com/pay"]


@pytest.mark.rule("EL-8")
@pytest.mark.parametrize(
    ("actions", "is_done", "words"),
    [
        (["accept", "accept"], True, "3 unread"),
        (["accept", "accept"], False, NOT_YET_DONE),  # willing is not done
        (["accept", "decline"], False, NOT_WILLING),
        (["cancel", "cancel"], False, NOT_WILLING),
        (["accept"], False, None),  # the other one is asked for again
    ],
)
async def test_no_user_is_sent_to_a_page_twice(actions: list[str], is_done: bool, words: str | None) -> None:
    server = Server("mail")

    @server.tool
    async def unread() -> str:
        if not signed_in:
            raise UrlElicitationRequired(*(ElicitUrl("Sign in", page) for page in PAGES))
        return "3 unread"

    signed_in = False
    async with asking_client(server) as client:
        first = await call(client, "unread")
        assert [each["params"]["url"] for each in first["inputRequests"].values()] == PAGES
        signed_in = is_done
        answers = {key: {"action": action} for key, action in zip(first["inputRequests"], actions, strict=False)}
        final = await call(client, "unread", inputResponses=answers, requestState=first["requestState"])
    if words is None:
        assert list(final["inputRequests"]) == list(first["inputRequests"])[1:]
    else:
        assert (final["isError"], text_of(final)) == (not is_done, words)


# ── prompts, resources, and functions that call each other ──


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_resource_that_a_tool_reads_asks_for_the_tool(in_thread: bool) -> None:
    server = Server("askers")

    @server.resource("note://one")
    async def note(ctx: Context) -> str:
        return f"note of {(await ctx.elicit('A?', str)).data}"

    async def reads(ctx: Context) -> str:
        contents = await ctx.read_resource("note://one")
        return f"{contents[0].text}, then {(await ctx.elicit('C?', str)).data}"

    def reads_in_thread(ctx: Context) -> str:
        return ctx.wait(reads(ctx))

    server.add_tool(reads_in_thread if in_thread else reads, name="reads")
    async with asking_client(server) as client:
        played = await play(client, "reads", ANSWERS)
        assert (played.rounds, played.text) == ([["A?"], ["C?"]], "note of a, then c")


@pytest.mark.rule("MRTR-2")
async def test_who_completes_an_argument_can_not_ask(caplog: Any) -> None:
    server = Server("askers")
    server.add_prompt(lambda style: style, name="greeting")

    @server.completion(prompt="greeting", argument="style")
    async def styles(value: str, ctx: Context) -> list[str]:
        return [str(await ctx.elicit("A?", str))]

    params = {"ref": {"type": "ref/prompt", "name": "greeting"}, "argument": {"name": "style", "value": ""}}
    with caplog.at_level(logging.ERROR):
        async with asking_client(server) as client:
            with pytest.raises(Exception, match="completion of style failed"):
                await client.request("completion/complete", params)
    assert "only tools, prompts and resources can ask" in caplog.text


# ── caches, and middleware ──


@pytest.mark.rule("MRTR-18")
async def test_what_was_answered_is_kept_neither_here_nor_by_clients() -> None:
    server = Server("cached")

    @server.resource("note://one", ttl_ms=60_000)
    async def note(ctx: Context) -> str:
        return f"for {(await ctx.elicit('Name?', str)).data}"

    @server.resource("note://plain", ttl_ms=60_000)
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
        unasked = {"uri": "note://plain", "inputResponses": {"x": accept("Ada")}}
        assert (await client.request("resources/read", unasked))["ttlMs"] == 0


async def test_middleware_sees_questions_as_results_and_may_make_the_request_twice() -> None:
    server, steps, seen = Server("twice"), list[str](), list[Any]()

    @server.tool
    async def greet(ctx: Context) -> str:
        name = await ctx.elicit("Name?", str)
        await ctx.step("greet", lambda: steps.append("greeted"))
        return f"{name.data}, {(await ctx.elicit('Age?', int)).data}"

    @server.middleware
    async def twice(request: Request, call_next: Any) -> Any:
        seen.append(await call_next(request))
        return await call_next(request)

    async with asking_client(server) as client:
        played = await play(client, "greet", ANSWERS)
    assert (played.rounds, played.text, steps) == ([["Name?"], ["Age?"]], "Ada, 36", ["greeted"])
    asked = [each.requests.values() for each in seen if isinstance(each, InputRequiredResult)]
    assert [each["params"]["message"] for requests in asked for each in requests] == ["Name?", "Age?"]


@pytest.mark.rule("SA-8")
@pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates sampling")  # a warning once in a process
async def test_nothing_said_to_a_model_is_kept_for_the_next_question() -> None:
    server, received = Server("models"), list[Any]()

    @server.tool
    async def think(ctx: Context) -> str:
        await ctx.sample("First")
        return (await ctx.sample("Second")).text

    def answer(request: Any) -> str:
        received.append([block["text"] for message in request.messages for block in message["content"]])
        return "Yes."

    async with Client(server, sampling_handler=answer) as client:
        await client.call_tool("think")
    assert received == [["First"], ["Second"]]


@pytest.mark.rule("EL-19")
async def test_a_page_before_the_call_in_2025_11_25() -> None:
    asked: list[Any] = []
    server = Server("mail")

    @server.tool
    async def unread() -> str:
        raise UrlElicitationRequired(ElicitUrl("Sign in", PAGES[0], elicitation_id="sign-in"))

    async with Client(server, protocol_version="2025-11-25", elicitation_handler=asked.append) as client:
        with pytest.raises(ServerError) as refused:
            await client.call_tool("unread")
    page = {"mode": "url", "message": "Sign in", "url": PAGES[0], "elicitationId": "sign-in"}
    assert (refused.value.code, refused.value.data) == (-32042, {"elicitations": [page]})
    assert asked == []
