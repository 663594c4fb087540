"""Calls of several rounds, as a client of 2026-07-28 sees them: which answer is taken, when there is no going on."""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from dovetail import Client, Context, Server, ServerError
from dovetail.engine import input_required
from dovetail.errors import INTERNAL_ERROR
from dovetail.protocol import request_state
from replaying import accepted, asking_client, messages, play, retry

ANSWERS = {"Name?": "Ada", "Surname?": "Lovelace", "Age?": 36}
GREET: dict[str, Any] = {"name": "greet"}


class Wording:
    """What a tool asks, which may change from one round to the next as by a deployment."""

    def __init__(self, *questions: tuple[str, type]) -> None:
        self.questions = list(questions)
        self.runs = 0

    async def greet(self, ctx: Context) -> str:
        self.runs += 1
        return " ".join([str((await ctx.elicit(message, kind)).data) for message, kind in self.questions])


def worded(*questions: tuple[str, type]) -> tuple[Server, Wording]:
    wording = Wording(*questions)
    server = Server("greeter")
    server.add_tool(wording.greet)
    return server, wording


async def again(client: Client, interim: Mapping[str, Any], answers: Mapping[str, Any] = ANSWERS) -> dict[str, Any]:
    return await client.request("tools/call", {**GREET, **retry(interim, answers)})


def text_of(result: Mapping[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


# ── an answer belongs to its question ──


@pytest.mark.rule("MRTR-3", "MRTR-4", "MRTR-5", "MRTR-8")
async def test_a_call_of_two_rounds() -> None:
    server, wording = worded(("Name?", str), ("Age?", int))
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
    assert wording.runs == 3


@pytest.mark.rule("MRTR-5")
async def test_keys_are_unique_and_stay_the_same_from_run_to_run() -> None:
    server, _ = worded(("Name?", str), ("Name?", str), ("Name?", int))
    async with asking_client(server) as client:
        first = await client.request("tools/call", GREET)
        assert first["inputRequests"] == (await client.request("tools/call", GREET))["inputRequests"]
        second = await again(client, first)
        third = await again(client, second)
        assert len({*first["inputRequests"], *second["inputRequests"], *third["inputRequests"]}) == 3


@pytest.mark.parametrize("changed", [("Your name?", str), ("Name?", int)], ids=["wording", "schema"])
async def test_a_question_that_has_changed_is_asked_again_and_nothing_else_is(changed: tuple[str, type]) -> None:
    server, wording = worded(("Age?", int), ("Name?", str))
    async with asking_client(server) as client:
        asked = await again(client, await client.request("tools/call", GREET))
        wording.questions[1] = changed
        asked_anew = await again(client, asked)
        assert messages(asked_anew) == [changed[0]]
        assert not asked_anew["inputRequests"].keys() & asked["inputRequests"].keys()
        assert text_of(await again(client, asked_anew, {changed[0]: 12 if changed[1] is int else "Eve"})) in (
            "36 12",
            "36 Eve",
        )


async def test_questions_may_change_their_order() -> None:
    server, wording = worded(("Name?", str), ("Age?", int))
    async with asking_client(server) as client:
        asked = await again(client, await client.request("tools/call", GREET))
        wording.questions.reverse()
        assert text_of(await again(client, asked)) == "36 Ada"


@pytest.mark.rule("MRTR-16")
async def test_a_missing_answer_is_asked_for_again() -> None:
    server = Server("greeter")

    @server.tool
    async def greet(ctx: Context) -> str:
        name, age = await asyncio.gather(ctx.elicit("Name?", str), ctx.elicit("Age?", int))
        return f"{name.data} {age.data}"

    async with asking_client(server) as client:
        first = await client.request("tools/call", GREET)
        assert messages(first) == ["Age?", "Name?"]
        without = await client.request("tools/call", {**GREET, "requestState": first["requestState"]})
        assert without["inputRequests"] == first["inputRequests"]
        half = await again(client, without, {"Name?": "Ada"})
        assert messages(half) == ["Age?"]
        assert text_of(await again(client, half)) == "Ada 36"


@pytest.mark.rule("MRTR-15")
async def test_answers_to_what_was_not_asked_are_ignored() -> None:
    server, _ = worded(("Name?", str), ("Age?", int))
    async with asking_client(server) as client:
        first = await client.request("tools/call", GREET)
        future = (await again(client, first))["inputRequests"]  # what will be asked in the next round
        early = dict.fromkeys([*future, "unknown", ""], accepted(99))
        params = {**GREET, **retry(first, ANSWERS)}
        second = await client.request("tools/call", {**params, "inputResponses": {**early, **params["inputResponses"]}})
        assert messages(second) == ["Age?"]
        late = {**replies_to(second), **dict.fromkeys(first["inputRequests"], accepted("Eve"))}
        final = {**GREET, "inputResponses": late, "requestState": second["requestState"]}
        assert text_of(await client.request("tools/call", final)) == "Ada 36"


def replies_to(interim: Mapping[str, Any]) -> dict[str, Any]:
    return dict(retry(interim, ANSWERS)["inputResponses"])


@pytest.mark.rule("MRTR-15")
async def test_answers_without_a_state_are_not_taken() -> None:
    server, _ = worded(("Name?", str))
    async with asking_client(server) as client:
        first = await client.request("tools/call", GREET)
        guessed = await client.request("tools/call", {**GREET, "inputResponses": replies_to(first)})
        assert guessed["inputRequests"] == first["inputRequests"]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_refusal_is_an_answer(action: str) -> None:
    server = Server("greeter")

    @server.tool
    async def greet(ctx: Context) -> str:
        return (await ctx.elicit("Name?", str)).action

    async with asking_client(server) as client:
        first = await client.request("tools/call", GREET)
        given = {key: {"action": action} for key in first["inputRequests"]}
        refused = {**GREET, "requestState": first["requestState"], "inputResponses": given}
        assert text_of(await client.request("tools/call", refused)) == action


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


async def test_answers_are_read_even_if_the_client_no_longer_says_that_it_can_be_asked() -> None:
    server, _ = worded(("Name?", str))
    async with asking_client(server) as client:
        first = await client.request("tools/call", GREET)
    async with asking_client(server, {}) as client:
        assert text_of(await again(client, first)) == "Ada"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_every_kind_of_question_in_one_round() -> None:
    server = Server("kinds")

    @server.tool
    async def greet(ctx: Context) -> str:
        form, url, sampled, roots = await asyncio.gather(
            ctx.elicit("Name?", str),
            ctx.elicit_url("Sign in", "https://example.com/in"),
            ctx.sample("Say hi", max_tokens=10),
            ctx.list_roots(),
        )
        return f"{form.data} {url.action} {sampled.text} {roots[0].uri}"

    answers = {
        "elicitation": accepted("Ada"),
        "sampling": {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"},
        "roots": {"roots": [{"uri": "file:///home"}]},
    }
    async with asking_client(server) as client:
        first = await client.request("tools/call", GREET)
        kinds = {key: request["method"] for key, request in first["inputRequests"].items()}
        assert sorted(kinds.values()) == ["elicitation/create"] * 2 + ["roots/list", "sampling/createMessage"]
        given = {key: answers[kind.partition("/")[0]] for key, kind in kinds.items()}
        final = {**GREET, "requestState": first["requestState"], "inputResponses": given}
        assert text_of(await client.request("tools/call", final)) == "Ada accept hi file:///home"


# ── calls that do not come to an end ──


def restless() -> Server:
    """A tool, a prompt and a resource whose question is another one in each run."""
    server = Server("restless")
    numbers = itertools.count()

    async def restless(ctx: Context) -> str:
        return str((await ctx.elicit(f"Is it {next(numbers)}?", str)).data)

    server.add_tool(restless)
    server.add_prompt(restless)
    server.add_resource("restless://one", restless)
    return server


async def test_a_tool_that_always_asks_something_else_ends_in_words(caplog: Any) -> None:
    async with asking_client(restless()) as client:
        played = await play(client, "restless", lambda _: "yes")
    assert len(played.rounds) == 3
    assert played.failed
    assert "The tool restless can't go on: it asks something else each time it is run again" in played.text
    assert played.text in caplog.text


@pytest.mark.parametrize(("method", "name"), [("prompts/get", "restless"), ("resources/read", "restless://one")])
async def test_a_prompt_or_resource_that_always_asks_something_else(method: str, name: str, caplog: Any) -> None:
    async with asking_client(restless()) as client:
        with pytest.raises(ServerError, match="can't go on: it asks something else each time") as caught:
            await play(client, name, lambda _: "yes", method=method)
    assert caught.value.code == INTERNAL_ERROR
    assert "can't go on" in caplog.text


async def test_rounds_without_answers_and_rounds_with_a_useful_one_are_not_wasted() -> None:
    numbers = itertools.count()
    server = Server("restless")

    @server.tool
    async def greet(ctx: Context) -> str:
        for letter in "abcde":
            await asyncio.gather(ctx.elicit(f"{letter}?", str), ctx.elicit(f"{letter} {next(numbers)}?", str))
        return "never"

    async with asking_client(server) as client:
        played = await play(client, "greet", lambda message: "x" if " " not in message else None)
        assert played.failed  # the last letter's second question never stays the same
        assert len(played.rounds) <= request_state.MAX_ROUNDS


async def test_a_call_has_32_rounds_and_no_more(caplog: Any) -> None:
    server, wording = worded(*[(f"{n}?", int) for n in range(request_state.MAX_ROUNDS)])
    async with asking_client(server) as client:
        played = await play(client, "greet", lambda _: 1)
        assert (len(played.rounds), played.failed) == (request_state.MAX_ROUNDS, False)
        wording.questions.append(("One more?", int))
        played = await play(client, "greet", lambda _: 1)
        assert (len(played.rounds), played.failed) == (request_state.MAX_ROUNDS, True)
    assert played.text == "The tool greet can't go on: it has asked 32 times without coming to an end"
    assert played.text in caplog.text


async def test_answers_that_are_too_large_to_be_kept(caplog: Any) -> None:
    server, _ = worded(*[(f"{n}?", str) for n in range(5)])
    async with asking_client(server) as client:
        played = await play(client, "greet", lambda _: "x" * 60_000)
        assert (len(played.rounds), played.failed) == (4, True)
        assert played.text.startswith("The tool greet can't go on: its answers and steps are too large to be kept")
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
