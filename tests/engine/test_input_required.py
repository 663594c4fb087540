"""Functions that ask by themselves: `InputRequired`, with keys and a state of their own, `UrlElicitationRequired`."""

from typing import Any

import pytest

from dovetail import (
    Context,
    Elicit,
    ElicitUrl,
    InputRequired,
    MissingCapability,
    Roots,
    Sample,
    Server,
    ServerError,
    SetupError,
    UrlElicitationRequired,
)
from dovetail.engine.input_required import NOT_WILLING, NOT_YET_DONE
from dovetail.errors import INVALID_PARAMS, MISSING_CAPABILITY
from replaying import accepted, asking_client, is_interim, play

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

NAME = Elicit("Name?", str)


def low_level() -> Server:
    server = Server("low level")

    @server.tool
    async def greet(ctx: Context) -> Any:
        answer = ctx.input_responses.get("user_name")
        if answer is None:
            return InputRequired({"user_name": NAME}, state={"tries": (ctx.request_state or {"tries": 0})["tries"] + 1})
        return f"{answer['content']['value']} after {ctx.request_state}"

    @server.tool
    async def every_kind(ctx: Context) -> Any:
        if ctx.input_responses:
            return sorted(ctx.input_responses)
        return InputRequired({"form": NAME, "model": Sample("Hi", max_tokens=5), "folders": Roots()})

    @server.tool
    async def waits(ctx: Context) -> Any:
        done = ctx.request_state or 0
        return "done" if done == 3 else InputRequired(state=done + 1)

    @server.tool
    def in_thread(ctx: Context) -> Any:
        return ctx.input_responses.get("a") or InputRequired({"a": NAME})

    @server.tool
    async def mixed(ctx: Context) -> Any:
        if ctx.request_state is None:
            return InputRequired({"own": NAME}, state="begun")
        return (
            f"{ctx.request_state} {(await ctx.elicit('Age?', int)).data} {sorted(ctx.input_responses)[:1] == ['own']}"
        )

    @server.tool
    async def nothing_left(ctx: Context) -> Any:
        if not ctx.input_responses:
            return InputRequired({"a": NAME})
        return str(ctx.request_state)

    @server.prompt
    async def prompt(ctx: Context) -> Any:
        answer = ctx.input_responses.get("who")
        return f"Hello {answer['content']['value']}" if answer else InputRequired({"who": NAME})

    @server.resource("note://one")
    async def note(ctx: Context) -> Any:
        answer = ctx.input_responses.get("who")
        return f"Note of {answer['content']['value']}" if answer else InputRequired({"who": NAME})

    @server.resource("note://of/{name}")
    async def note_of(name: str, ctx: Context) -> Any:
        answer = ctx.input_responses.get("who")
        return f"{name} by {answer['content']['value']}" if answer else InputRequired({"who": NAME})

    return server


async def call(client: Any, name: str, **more: Any) -> dict[str, Any]:
    return await client.request("tools/call", {"name": name, **more})


def text_of(result: dict[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


@pytest.mark.rule("MRTR-3", "MRTR-4", "MRTR-5")
async def test_keys_are_the_functions_own_and_the_state_comes_back() -> None:
    async with asking_client(low_level()) as client:
        first = await call(client, "greet")
        assert first["inputRequests"].keys() == {"user_name"}
        assert "tries" not in first["requestState"]
        second = await call(client, "greet", requestState=first["requestState"])
        final = {"inputResponses": {"user_name": accepted("Ada")}, "requestState": second["requestState"]}
        assert text_of(await call(client, "greet", **final)) == "Ada after {'tries': 2}"


@pytest.mark.rule("MRTR-13", "MRTR-15")
async def test_the_answers_are_raw_whoever_sent_them() -> None:
    async with asking_client(low_level()) as client:
        unasked = {"user_name": accepted("Eve"), "other": {"x": [1.5, None]}}
        assert text_of(await call(client, "greet", inputResponses=unasked)) == "Eve after None"
        result = await call(client, "every_kind", inputResponses=unasked)
        assert text_of(result) == '["other","user_name"]'


@pytest.mark.rule("MRTR-5")
async def test_every_kind_of_question() -> None:
    async with asking_client(low_level()) as client:
        requests = (await call(client, "every_kind"))["inputRequests"]
        assert {key: request["method"] for key, request in requests.items()} == {
            "form": "elicitation/create",
            "model": "sampling/createMessage",
            "folders": "roots/list",
        }


@pytest.mark.rule("MRTR-4", "MRTR-20")
async def test_a_state_alone_asks_the_client_to_come_again() -> None:
    async with asking_client(low_level(), {}) as client:
        played = await play(client, "waits", {})
        assert played.rounds == [[], [], []]
        assert played.text == "done"
        assert "inputRequests" not in await call(client, "waits")


async def test_a_def_function() -> None:
    async with asking_client(low_level()) as client:
        first = await call(client, "in_thread")
        assert first["inputRequests"].keys() == {"a"}


async def test_no_state_comes_back_as_none() -> None:
    async with asking_client(low_level()) as client:
        first = await call(client, "nothing_left")
        final = {"inputResponses": {"a": accepted("x")}, "requestState": first["requestState"]}
        assert text_of(await call(client, "nothing_left", **final)) == "None"


async def test_the_state_stays_while_the_function_asks_by_ctx() -> None:
    async with asking_client(low_level()) as client:
        first = await call(client, "mixed")
        second = await call(client, "mixed", inputResponses={"own": accepted("x")}, requestState=first["requestState"])
        assert is_interim(second)
        (place,) = second["inputRequests"]
        final = {"inputResponses": {place: accepted(36)}, "requestState": second["requestState"]}
        assert text_of(await call(client, "mixed", **final)) == "begun 36 False"


@pytest.mark.rule("MRTR-2")
async def test_prompts_and_resources() -> None:
    answers = {"inputResponses": {"who": accepted("Ada")}}
    async with asking_client(low_level()) as client:
        first = await client.request("prompts/get", {"name": "prompt"})
        assert first["inputRequests"].keys() == {"who"}
        final = {"name": "prompt", "requestState": first["requestState"], **answers}
        assert (await client.request("prompts/get", final))["messages"][0]["content"]["text"] == "Hello Ada"
        for uri, text in (("note://one", "Note of Ada"), ("note://of/x", "x by Ada")):
            first = await client.request("resources/read", {"uri": uri})
            assert first["inputRequests"].keys() == {"who"}
            final = {"uri": uri, "requestState": first["requestState"], **answers}
            assert (await client.request("resources/read", final))["contents"][0]["text"] == text


@pytest.mark.rule("MRTR-6", "MRTR-21")
@pytest.mark.parametrize(
    ("tool", "capabilities", "missing"),
    [
        ("greet", {}, {"elicitation": {"form": {}}}),
        ("every_kind", {"elicitation": {}}, {"sampling": {}}),
        ("every_kind", {"elicitation": {}, "sampling": {}}, {"roots": {}}),
    ],
)
async def test_nothing_is_asked_that_the_client_did_not_declare(tool: str, capabilities: Any, missing: Any) -> None:
    async with asking_client(low_level(), capabilities) as client:
        with pytest.raises(ServerError) as caught:
            await call(client, tool)
    assert (caught.value.code, caught.value.data) == (MISSING_CAPABILITY, {"requiredCapabilities": missing})


async def test_a_state_of_one_tool_is_no_state_of_another() -> None:
    async with asking_client(low_level()) as client:
        first = await call(client, "waits")
        with pytest.raises(ServerError) as caught:
            await call(client, "greet", requestState=first["requestState"])
    assert caught.value.code == INVALID_PARAMS


async def test_a_state_that_is_not_json(caplog: Any) -> None:
    server = Server("low level")
    server.add_tool(lambda: InputRequired(state=object()), name="odd")
    async with asking_client(server) as client:
        assert (await call(client, "odd"))["isError"]
    assert "tool odd" in caplog.text


async def test_a_state_that_is_too_large() -> None:
    server = Server("low level")
    server.add_tool(lambda: InputRequired(state="x" * 300_000), name="huge")
    async with asking_client(server) as client:
        result = await call(client, "huge")
        assert result["isError"]
        assert "too large to be kept" in text_of(result)


@pytest.mark.rule("MRTR-4")
@pytest.mark.parametrize(
    "given",
    [{}, {"requests": {"": NAME}}, {"requests": {"k" * 257: NAME}}, {"requests": {"a": "Name?"}}],
    ids=["nothing", "no key", "a long key", "no question"],
)
def test_what_is_not_possible_is_said_at_once(given: Any) -> None:
    with pytest.raises(SetupError):
        InputRequired(**given)


# ── URLs that have to be opened first ──


def signing_in() -> tuple[Server, set[str]]:
    signed_in: set[str] = set()
    server = Server("mail")

    @server.tool
    async def unread(ctx: Context) -> str:
        if "mail" not in signed_in:
            raise UrlElicitationRequired(
                ElicitUrl("Sign in", "https://example.com/in"), ElicitUrl("Pay", "https://example.com/pay")
            )
        return "3 unread"

    @server.tool
    async def carefully(ctx: Context) -> str:
        try:
            return await unread(ctx)
        except UrlElicitationRequired as required:
            return f"{len(required.elicitations)} pages"

    @server.tool
    async def before_asking(ctx: Context) -> str:
        try:
            await ctx.elicit("Name?", str)
        except BaseException:
            raise UrlElicitationRequired(ElicitUrl("Sign in", "https://example.com/in")) from None
        return "asked"

    @server.tool
    async def without_url(ctx: Context) -> str:
        try:
            await ctx.elicit_url("Sign in", "https://example.com/in")
        except MissingCapability:
            return "by mail then"
        return "signed in"

    return server, signed_in


async def test_pages_are_asked_for_and_the_call_is_made_again() -> None:
    server, signed_in = signing_in()
    async with asking_client(server) as client:
        first = await call(client, "unread")
        assert {each["params"]["url"] for each in first["inputRequests"].values()} == {
            "https://example.com/in",
            "https://example.com/pay",
        }
        signed_in.add("mail")
        answers = {key: {"action": "accept"} for key in first["inputRequests"]}
        final = await call(client, "unread", inputResponses=answers, requestState=first["requestState"])
        assert text_of(final) == "3 unread"
        signed_in.clear()
        assert text_of(await call(client, "carefully")) == "2 pages"


@pytest.mark.rule("EL-8")
@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (["accept", "accept"], NOT_YET_DONE),  # willing is not done
        (["accept", "decline"], NOT_WILLING),
        (["cancel", "cancel"], NOT_WILLING),
    ],
)
async def test_nobody_is_sent_to_a_page_twice(actions: list[str], words: str) -> None:
    server, _ = signing_in()
    async with asking_client(server) as client:
        first = await call(client, "unread")
        answers = {key: {"action": action} for key, action in zip(first["inputRequests"], actions, strict=True)}
        final = await call(client, "unread", inputResponses=answers, requestState=first["requestState"])
        assert (final["isError"], text_of(final)) == (True, words)


async def test_a_page_without_an_answer_is_asked_for_again() -> None:
    server, _ = signing_in()
    async with asking_client(server) as client:
        first = await call(client, "unread")
        one, other = first["inputRequests"]
        answers = {one: {"action": "accept"}}
        again = await call(client, "unread", inputResponses=answers, requestState=first["requestState"])
        assert is_interim(again)
        assert list(again["inputRequests"]) == [other]


async def test_an_open_question_goes_before_the_pages() -> None:
    server, _ = signing_in()
    async with asking_client(server) as client:
        played = await play(client, "before_asking", {"Name?": "Ada"})
        assert (played.rounds, played.text) == ([["Name?"]], "asked")


@pytest.mark.rule("MRTR-6", "MRTR-21")
async def test_pages_need_a_client_that_opens_them() -> None:
    server, _ = signing_in()
    async with asking_client(server, {"elicitation": {"form": {}}}) as client:
        with pytest.raises(ServerError) as caught:
            await call(client, "unread")
        assert caught.value.data == {"requiredCapabilities": {"elicitation": {"url": {}}}}
        assert text_of(await call(client, "without_url")) == "by mail then"
