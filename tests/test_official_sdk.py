"""The official Python SDK talks to the reference server over stdio, in each of the five revisions.

All that the server says on the way is judged by the official schemas too, and the SDK must find nothing to warn of.
"""

import base64
import json
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from mcp import ClientSession, types
from mcp.client.subscriptions import (
    ListenNotSupportedError,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
    listen,
)

from sdk import (
    GROWING,
    HANDSHAKE,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MODERN,
    NOTES,
    REFERENCE,
    REQUEST_TIMEOUT,
    RESOURCE_NOT_FOUND,
    REVISIONS,
    Interest,
    Talk,
    both_eras,
    deprecations_are_expected,
    every_revision,
    only_text,
    refused,
    rewrite,
)

pytestmark = [*deprecations_are_expected, pytest.mark.slow]
oldest_and_newest = pytest.mark.parametrize("revision", ["2024-11-05", HANDSHAKE])
DIAGNOSTICS = (*REFERENCE, "--diagnostics")
UPDATED = "notifications/resources/updated"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
ADDITION = {"operation": "add", "a": 2, "b": 3}


@pytest.fixture
def talk(tmp_path: Path) -> Talk:
    return Talk(tmp_path)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.md"
    path.write_text("the first edition\n")
    return path


# ── how it begins ──


@every_revision
async def test_the_server_introduces_itself(talk: Talk, revision: str) -> None:
    async with talk(revision) as session:
        info, offer = session.server_info, session.server_capabilities
        assert info is not None
        assert offer is not None
        assert (info.name, info.version) == ("dovetail-reference", "0.1.0")
        assert info.title == ("Dovetail reference server" if revision >= "2025-06-18" else None)
        assert session.instructions is not None
        assert "roll_dice" in session.instructions
        assert offer.tools == types.ToolsCapability(list_changed=True)
        assert offer.prompts == types.PromptsCapability(list_changed=True)
        assert offer.resources == types.ResourcesCapability(subscribe=True, list_changed=True)
        assert offer.logging is not None
        assert (offer.completions is not None) == (revision >= "2025-03-26")
        if revision == MODERN:
            assert session.discover_result is not None
            assert sorted(session.discover_result.supported_versions) == sorted(REVISIONS)


@pytest.mark.parametrize(("mode", "revision"), [("auto", MODERN), (MODERN, MODERN), ("legacy", HANDSHAKE)])
async def test_the_high_level_client_connects(talk: Talk, mode: str, revision: str) -> None:
    async with talk.client(mode=mode) as client:
        assert client.protocol_version == revision
        assert [tool.name for tool in (await client.list_tools()).tools] == ["calculate", "roll_dice", "tell_fortune"]
        result = await client.call_tool("calculate", {"operation": "multiply", "a": 6, "b": 7})
        assert result.structured_content == {"result": 42, "expression": "6 * 7 = 42"}


async def test_both_eras_share_one_pipe(talk: Talk) -> None:
    async with talk(HANDSHAKE) as session:
        welcome = session.initialize_result
        assert welcome is not None
        await session.discover()
        assert session.protocol_version == MODERN
        assert (await session.list_tools()).result_type == "complete"
        session.adopt(welcome)
        await session.send_ping()
        assert session.protocol_version == HANDSHAKE


async def test_a_session_has_no_methods_of_the_modern_era(talk: Talk) -> None:
    async with talk(HANDSHAKE) as session:
        await session.send_ping()
        with refused(INVALID_PARAMS):  # what its _meta lacks would make it a modern request
            await session.send_request(types.DiscoverRequest(params=types.RequestParams()), types.DiscoverResult)
        wanted = types.SubscriptionsListenRequestParams(notifications=types.SubscriptionFilter(tools_list_changed=True))
        with refused(METHOD_NOT_FOUND):
            await session.send_request(types.SubscriptionsListenRequest(params=wanted), types.EmptyResult)
        with pytest.raises(ListenNotSupportedError):
            async with listen(session, tools_list_changed=True):
                pass


async def test_the_modern_era_has_no_methods_of_a_session(talk: Talk) -> None:
    async with talk(MODERN) as session:
        for ask, arguments in (
            (session.send_ping, ()),
            (session.set_logging_level, ("debug",)),
            (session.subscribe_resource, (NOTES,)),
            (session.unsubscribe_resource, (NOTES,)),
        ):
            with refused(METHOD_NOT_FOUND):
                await ask(*arguments)


# ── tools ──

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("calculate", {"operation": "divide", "a": 1, "b": 0}, "Division by zero is not allowed"),
    ("calculate", {"operation": "add", "a": "many"}, "b"),
    ("roll_dice", {"notation": "2d7"}, "Invalid dice notation"),
    ("tell_fortune", {"category": "weather"}, "category"),
]


@every_revision
async def test_tools_are_listed_and_called(talk: Talk, revision: str) -> None:
    async with talk(revision) as session:
        tools = (await session.list_tools()).tools
        assert [tool.name for tool in tools] == ["calculate", "roll_dice", "tell_fortune"]
        assert all(tool.description and tool.input_schema["type"] == "object" for tool in tools)
        assert [tool.annotations is not None for tool in tools] == [revision >= "2025-03-26"] * 3
        assert [tool.output_schema is not None for tool in tools] == [revision >= "2025-06-18"] * 3
        titles = ["Calculator", "Dice Roller", "Fortune Teller"]
        assert [tool.title for tool in tools] == (titles if revision >= "2025-06-18" else [None] * 3)

        structured = revision >= "2025-06-18"
        result = await session.call_tool("calculate", {"operation": "divide", "a": 1, "b": 8})
        expected = {"result": 0.125, "expression": "1 / 8 = 0.125"}
        assert not result.is_error
        assert json.loads(only_text(result)) == expected
        assert result.structured_content == (expected if structured else None)

        dice = json.loads(only_text(await session.call_tool("roll_dice", {"notation": "3D6+2"})))
        assert (dice["notation"], len(dice["rolls"]), dice["total"]) == ("3d6+2", 3, sum(dice["rolls"]) + 2)

        fortune = json.loads(only_text(await session.call_tool("tell_fortune", {"category": "love"})))
        assert (fortune["category"], fortune["mood"]) == ("love", "mysterious")

        for name, arguments, reason in WRONG:
            result = await session.call_tool(name, arguments)
            assert result.is_error, name
            assert reason in only_text(result)
            assert result.structured_content is None
        with refused(INVALID_PARAMS) as failure:
            await session.call_tool("no_such_tool", {})
        assert "no_such_tool" in failure.value.message


@both_eras
async def test_many_calls_at_once(talk: Talk, revision: str) -> None:
    sums: dict[int, Any] = {}

    async def add(session: ClientSession, number: int) -> None:
        result = await session.call_tool("calculate", {"operation": "add", "a": number, "b": 1})
        sums[number] = result.structured_content["result"]

    async with talk(revision) as session, anyio.create_task_group() as tasks:
        await session.list_tools()
        for number in range(200):
            tasks.start_soon(add, session, number)
    assert sums == {number: number + 1 for number in range(200)}


# ── resources ──


@every_revision
async def test_resources_are_listed_and_read_and_missing_ones_refused(talk: Talk, revision: str) -> None:
    async with talk(revision) as session:
        resources = {resource.uri: resource for resource in (await session.list_resources()).resources}
        assert list(resources) == ["reference://about", "reference://logo.png", NOTES]
        assert resources["reference://logo.png"].mime_type == "image/png"
        (template,) = (await session.list_resource_templates()).resource_templates
        assert template.uri_template == "reference://fortunes/{category}"

        (about,) = (await session.read_resource("reference://about")).contents
        assert isinstance(about, types.TextResourceContents)
        assert (about.uri, about.mime_type) == ("reference://about", "text/markdown")
        assert about.text.startswith("# Dovetail reference server")

        (logo,) = (await session.read_resource("reference://logo.png")).contents
        assert isinstance(logo, types.BlobResourceContents)
        assert base64.b64decode(logo.blob, validate=True).startswith(b"\x89PNG")

        (wealth,) = (await session.read_resource("reference://fortunes/wealth")).contents
        assert isinstance(wealth, types.TextResourceContents)
        assert list(json.loads(wealth.text)) == ["optimistic", "mysterious", "cautious"]

        code = INVALID_PARAMS if revision == MODERN else RESOURCE_NOT_FOUND
        for uri in ("reference://nothing", "reference://fortunes/weather", "reference://fortunes/love/letters"):
            with refused(code) as failure:
                await session.read_resource(uri)
            assert failure.value.data == {"uri": uri}


async def test_the_clients_cache_obeys_the_servers_hints(talk: Talk, notes: Path) -> None:
    async with talk.client((GROWING, str(notes))) as client:
        for uri in ("reference://about", "grown://seasons") * 2:
            assert (await client.read_resource(uri)).contents
    reads = [message["params"]["uri"] for message in talk.transcript.said if message["method"] == "resources/read"]
    assert reads == ["reference://about", "grown://seasons", "reference://about"]


# ── prompts and completion ──


@every_revision
async def test_prompts_are_listed_and_filled_in(talk: Talk, revision: str) -> None:
    async with talk(revision) as session:
        (prompt,) = (await session.list_prompts()).prompts
        assert prompt.name == "code_review"
        assert [(each.name, bool(each.required)) for each in prompt.arguments or ()] == [
            ("code", True),
            ("language", False),
        ]
        result = await session.get_prompt("code_review", {"code": "x = 1"})
        assert result.description == "Analyze code quality and suggest improvements"
        (message,) = result.messages
        assert message.role == "user"
        assert message.content == types.TextContent(text="Please review this python code:\nx = 1")
        for name, arguments in (("code_review", {}), ("no_such_prompt", {})):
            with refused(INVALID_PARAMS):
                await session.get_prompt(name, arguments)


class CompleteToolArgument(types.Request[dict[str, Any], Literal["completion/complete"]]):
    """Arguments of tools can be completed as well: Dovetail's own addition, for which the SDK has no words."""

    method: Literal["completion/complete"] = "completion/complete"


@every_revision
async def test_arguments_are_completed(talk: Talk, revision: str) -> None:
    prompt = types.PromptReference(name="code_review")
    template = types.ResourceTemplateReference(uri="reference://fortunes/{category}")
    tool = {"ref": {"type": "ref/tool", "name": "roll_dice"}, "argument": {"name": "notation", "value": "2d"}}
    async with talk(revision) as session:
        result = await session.complete(prompt, {"name": "language", "value": "Py"}, {"code": "x = 1"})
        assert result.completion.values == ["python"]
        result = await session.complete(template, {"name": "category", "value": ""})
        assert result.completion.values == ["love", "career", "health", "wealth", "general"]
        result = await session.complete(template, {"name": "category", "value": "he"})
        assert result.completion.values == ["health"]
        result = await session.send_request(CompleteToolArgument(params=tool), types.CompleteResult)
        assert result.completion.values == ["2d6", "2d6+3"]
        with refused(INVALID_PARAMS):
            await session.complete(types.PromptReference(name="no_such_prompt"), {"name": "language", "value": ""})


# ── logging ──


@oldest_and_newest
async def test_a_session_sets_its_log_level(talk: Talk, revision: str) -> None:
    async with talk(revision) as session:
        for level in (None, "debug", "error"):
            if level is not None:
                await session.set_logging_level(level)
            await session.call_tool("calculate", ADDITION)
        await session.send_ping()
    assert [(entry.level, entry.logger, entry.data) for entry in talk.logged] == [("debug", "calculate", ADDITION)]


@pytest.mark.rule("LOG-3", "LOG-4")
async def test_a_modern_request_asks_for_its_log(talk: Talk) -> None:
    async with talk(MODERN) as session:
        await session.list_tools()
        await session.call_tool("calculate", ADDITION)
        assert not talk.transcript.notifications("notifications/message")
        await session.call_tool("calculate", ADDITION, meta={types.LOG_LEVEL_META_KEY: "debug"})
        assert [message.get("method") for message in talk.transcript.received[-2:]] == ["notifications/message", None]
        await session.call_tool("calculate", ADDITION, meta={types.LOG_LEVEL_META_KEY: "error"})
    assert [(entry.level, entry.logger, entry.data) for entry in talk.logged] == [("debug", "calculate", ADDITION)]


# ── progress and cancellation ──


@pytest.mark.parametrize("revision", ["2024-11-05", HANDSHAKE, MODERN])
async def test_progress_is_reported_before_the_answer(talk: Talk, revision: str) -> None:
    reports: list[tuple[float, float | None, str | None]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    async with talk(revision, DIAGNOSTICS) as session:
        await session.list_tools()
        result = await session.call_tool("slow_operation", {"duration_ms": 50}, progress_callback=report)
        assert json.loads(only_text(result))["message"] == "Slept for 50ms"
        assert "id" in talk.transcript.received[-1]
        await session.call_tool("slow_operation", {"duration_ms": 0})  # asks for no progress
    with_text = revision >= "2025-03-26"
    assert reports == [(tenth, 10, f"{tenth * 10} %" if with_text else None) for tenth in range(10)]
    assert len(talk.transcript.notifications("notifications/progress")) == 10


@both_eras
@pytest.mark.rule("CAN-2")
async def test_a_cancelled_call_is_never_answered(talk: Talk, revision: str) -> None:
    nap, interest = {"duration_ms": 1200}, Interest()
    async with talk(revision, DIAGNOSTICS) as session:
        with interest.scope:
            await session.call_tool("slow_operation", nap, progress_callback=interest.lose)
        assert interest.scope.cancelled_caught
        with refused(REQUEST_TIMEOUT):
            await session.call_tool("slow_operation", nap, 0.15, progress_callback=interest.keep)
        # When a third nap of the same length is over, the others would be over as well.
        result = await session.call_tool("slow_operation", nap)
        assert not result.is_error

    said, received = talk.transcript.said, talk.transcript.received
    given_up = [message["params"]["requestId"] for message in said if message["method"] == "notifications/cancelled"]
    assert len(given_up) == 2
    assert not [message for message in received if message.get("id") in given_up]
    progress = talk.transcript.notifications("notifications/progress")
    for token in given_up:
        assert 9 not in [each["progress"] for each in progress if each["progressToken"] == token]


# ── subscriptions ──


@oldest_and_newest
@pytest.mark.seed("S2-40", "S2-89")
async def test_a_session_subscribes_to_a_file(talk: Talk, notes: Path, revision: str) -> None:
    async with talk(revision, (GROWING, str(notes))) as session:
        with refused(RESOURCE_NOT_FOUND):
            await session.subscribe_resource("reference://nothing")
        await session.subscribe_resource(NOTES)
        rewrite(notes, "the second edition\n")
        update = await talk.transcript.until(lambda message: message.get("method") == UPDATED)
        assert update["params"] == {"uri": NOTES}
        (contents,) = (await session.read_resource(NOTES)).contents
        assert isinstance(contents, types.TextResourceContents)
        assert contents.text == "the second edition\n"

        await session.unsubscribe_resource(NOTES)
        before = len(talk.transcript.notifications(UPDATED))
        await session.discover()  # the other era, on the same pipe, is still notified of the next change
        async with listen(session, resource_subscriptions=[NOTES]) as changes:
            rewrite(notes, "the third and last edition\n")
            assert await anext(changes) == ResourceUpdated(NOTES)
            await session.list_tools()
        assert all("_meta" in each for each in talk.transcript.notifications(UPDATED)[before:])


@pytest.mark.rule("SUB-2", "SUB-3", "SUB-4", "SUB-6")
async def test_a_modern_client_listens_to_a_file(talk: Talk, notes: Path) -> None:
    async with talk(MODERN, (GROWING, str(notes))) as session:
        async with listen(session, resource_subscriptions=[NOTES]) as changes:
            async with listen(session, resource_subscriptions=[NOTES, "reference://nothing"]) as others:
                assert others.honored == types.SubscriptionFilter(resource_subscriptions=[NOTES])
                rewrite(notes, "the second edition\n")
                assert await anext(changes) == await anext(others) == ResourceUpdated(NOTES)
            rewrite(notes, "the third and last edition\n")
            assert await anext(changes) == ResourceUpdated(NOTES)
            await session.list_tools()
        ids = [each["_meta"][SUBSCRIPTION_ID] for each in talk.transcript.notifications(UPDATED)]
        assert ids.count(others.subscription_id) == 1
        assert ids[-1] == changes.subscription_id
        assert not [message for message in talk.transcript.received if message.get("id") in ids]


@oldest_and_newest
async def test_a_session_is_notified_that_lists_have_changed(talk: Talk, notes: Path, revision: str) -> None:
    async with talk(revision, (GROWING, str(notes))) as session:
        await session.call_tool("grow", {"name": "fern"})
        for kind in ("tools", "prompts", "resources"):
            method = f"notifications/{kind}/list_changed"
            await talk.transcript.until(lambda message, method=method: message.get("method") == method)
        assert (await session.list_tools()).tools[-1].name == "fern"
        assert (await session.list_prompts()).prompts[-1].name == "fern"
        assert (await session.list_resources()).resources[-1].uri == "grown://fern"
        assert only_text(await session.call_tool("fern")) == "fern"


@pytest.mark.rule("SUB-1")
async def test_a_modern_client_is_notified_of_the_lists_it_asked_for(talk: Talk, notes: Path) -> None:
    async with talk(MODERN, (GROWING, str(notes))) as session:
        await session.list_tools()
        await session.call_tool("grow", {"name": "moss"})  # no client listens yet
        async with listen(session, tools_list_changed=True, resources_list_changed=True) as changes:
            await session.call_tool("grow", {"name": "fern"})
            assert {await anext(changes), await anext(changes)} == {ToolsListChanged(), ResourcesListChanged()}
            assert (await session.list_tools()).tools[-1].name == "fern"
    assert not talk.transcript.notifications("notifications/prompts/list_changed")
    assert len(talk.transcript.notifications("notifications/tools/list_changed")) == 1


@pytest.mark.rule("SUB-7")
async def test_a_server_that_stops_ends_the_listening_gracefully(talk: Talk, notes: Path) -> None:
    async with talk(MODERN, (GROWING, str(notes))) as session:
        await session.list_tools()
        async with listen(session, tools_list_changed=True) as changes:
            await session.call_tool("retire")
            assert [change async for change in changes] == []  # without SubscriptionLost
