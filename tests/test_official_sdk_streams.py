"""What comes unasked or too late: logs, progress, changes and cancellation, heard by the official Python SDK."""

import json
from pathlib import Path

import anyio
import pytest
from mcp import types
from mcp.client.subscriptions import ResourcesListChanged, ResourceUpdated, ToolsListChanged, listen

from sdk import (
    GROWING,
    HANDSHAKE,
    MODERN,
    NOTES,
    REFERENCE,
    REQUEST_TIMEOUT,
    RESOURCE_NOT_FOUND,
    Talk,
    both_eras,
    deprecations_are_expected,
    only_text,
    refused,
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


def write(path: Path, text: str) -> None:
    path.write_text(text)


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
        assert [message.get("method") for message in talk.transcript.heard[-2:]] == ["notifications/message", None]
        await session.call_tool("calculate", ADDITION, meta={types.LOG_LEVEL_META_KEY: "error"})
    assert [(entry.level, entry.logger, entry.data) for entry in talk.logged] == [("debug", "calculate", ADDITION)]


async def test_a_modern_client_asks_for_the_log_of_all_requests(talk: Talk) -> None:
    async with talk(MODERN, log_level="debug") as session:
        for _ in range(2):
            await session.call_tool("calculate", ADDITION)
        await session.list_tools()
    assert [entry.data for entry in talk.logged] == [ADDITION, ADDITION]


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
        assert "id" in talk.transcript.heard[-1]
        await session.call_tool("slow_operation", {"duration_ms": 0})  # asks for no progress
    with_text = revision >= "2025-03-26"
    assert reports == [(tenth, 10, f"{tenth * 10} %" if with_text else None) for tenth in range(10)]
    assert len(talk.transcript.notifications("notifications/progress")) == 10


class Interest:
    """A scope for a call that is given up at its first sign of life."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()

    async def lose(self, progress: float, total: float | None, message: str | None) -> None:
        self.scope.cancel()

    async def keep(self, progress: float, total: float | None, message: str | None) -> None:
        pass


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

    said, heard = talk.transcript.said, talk.transcript.heard
    given_up = [message["params"]["requestId"] for message in said if message["method"] == "notifications/cancelled"]
    assert len(given_up) == 2
    assert not [message for message in heard if message.get("id") in given_up]
    progress = talk.transcript.notifications("notifications/progress")
    for token in given_up:
        assert 9 not in [each["progress"] for each in progress if each["progressToken"] == token]


@both_eras
@pytest.mark.rule("CAN-2")
async def test_a_cancelled_tool_is_really_stopped(talk: Talk, notes: Path, revision: str) -> None:
    interest = Interest()
    async with talk(revision, (GROWING, str(notes))) as session:
        with interest.scope:
            await session.call_tool("linger", progress_callback=interest.lose)
        text = ""
        while text != "interrupted\n":  # the whole conversation has a deadline
            (contents,) = (await session.read_resource(NOTES)).contents
            assert isinstance(contents, types.TextResourceContents)
            text = contents.text
            await anyio.sleep(0.02)


# ── subscriptions ──


@oldest_and_newest
async def test_a_session_subscribes_to_a_file(talk: Talk, notes: Path, revision: str) -> None:
    async with talk(revision, (GROWING, str(notes))) as session:
        with refused(RESOURCE_NOT_FOUND):
            await session.subscribe_resource("reference://nothing")
        await session.subscribe_resource(NOTES)
        write(notes, "the second edition\n")
        update = await talk.transcript.until(lambda message: message.get("method") == UPDATED)
        assert update["params"] == {"uri": NOTES}
        (contents,) = (await session.read_resource(NOTES)).contents
        assert isinstance(contents, types.TextResourceContents)
        assert contents.text == "the second edition\n"

        await session.unsubscribe_resource(NOTES)
        before = len(talk.transcript.notifications(UPDATED))
        await session.discover()  # the other era, on the same pipe, still hears of the next change
        async with listen(session, resource_subscriptions=[NOTES]) as changes:
            write(notes, "the third and last edition\n")
            assert await anext(changes) == ResourceUpdated(NOTES)
            await session.list_tools()
        assert all("_meta" in each for each in talk.transcript.notifications(UPDATED)[before:])


@pytest.mark.rule("SUB-2", "SUB-3", "SUB-4", "SUB-6")
async def test_a_modern_client_listens_to_a_file(talk: Talk, notes: Path) -> None:
    async with talk(MODERN, (GROWING, str(notes))) as session:
        async with listen(session, resource_subscriptions=[NOTES]) as changes:
            async with listen(session, resource_subscriptions=[NOTES, "reference://nothing"]) as others:
                assert others.honored == types.SubscriptionFilter(resource_subscriptions=[NOTES])
                write(notes, "the second edition\n")
                assert await anext(changes) == await anext(others) == ResourceUpdated(NOTES)
            write(notes, "the third and last edition\n")
            assert await anext(changes) == ResourceUpdated(NOTES)
            await session.list_tools()
        ids = [each["_meta"][SUBSCRIPTION_ID] for each in talk.transcript.notifications(UPDATED)]
        assert ids.count(others.subscription_id) == 1
        assert ids[-1] == changes.subscription_id
        assert not [message for message in talk.transcript.heard if message.get("id") in ids]


@oldest_and_newest
async def test_a_session_hears_that_lists_have_changed(talk: Talk, notes: Path, revision: str) -> None:
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
async def test_a_modern_client_hears_of_the_lists_it_asked_for(talk: Talk, notes: Path) -> None:
    async with talk(MODERN, (GROWING, str(notes))) as session:
        await session.list_tools()
        await session.call_tool("grow", {"name": "moss"})  # nobody listens yet
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
