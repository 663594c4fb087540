"""The official Python SDK talks to the reference server over HTTP: Streamable in both eras, and HTTP+SSE."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import MCPError, types
from mcp.client.subscriptions import ResourceUpdated, SubscriptionLost, ToolsListChanged, listen

from dovetail import Context
from dovetail.reference import create_server
from dovetail.transports.http.options import HttpOptions
from http_serving import endpoint_of, listening, until
from sdk import (
    HANDSHAKE,
    HANDSHAKES,
    INVALID_PARAMS,
    MODERN,
    NOTES,
    HttpTalk,
    Interest,
    deprecations_are_expected,
    no_complaints,
    only_text,
    refused,
    rewrite,
)

pytestmark = [
    *deprecations_are_expected,
    pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning"),
    pytest.mark.slow,
]

WAYS = [*((transport, each) for transport in ("streamable", "sse") for each in HANDSHAKES), ("streamable", MODERN)]
FEW_SESSIONS = [("streamable", HANDSHAKE), ("sse", HANDSHAKE)]
every_way = pytest.mark.parametrize(("transport", "revision"), WAYS)
each_way = pytest.mark.parametrize(("transport", "revision"), [*FEW_SESSIONS, ("streamable", MODERN)])
each_session = pytest.mark.parametrize(("transport", "revision"), FEW_SESSIONS)
ADDITION = {"operation": "add", "a": 2, "b": 3}
UPDATED = "notifications/resources/updated"
LIST_CHANGED = "notifications/tools/list_changed"
PROGRESS = "notifications/progress"


class Served:
    """The reference server on a real socket; its lists can grow, and it notes what becomes of a long call."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.interrupted = asyncio.Event()
        self.server = create_server(diagnostics=True, notes=notes)
        self.server.add_tool(self.linger)
        self.app = self.server.asgi()
        self.root = ""

    async def linger(self, ctx: Context) -> None:
        """Do nothing for a minute."""
        await ctx.report_progress(1)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.interrupted.set()
            raise

    def grow(self, name: str) -> None:
        self.server.add_tool(lambda: name, name=name, description="Says its name.")

    @asynccontextmanager
    async def live(self) -> AsyncIterator["Served"]:
        async with listening(self.app, HttpOptions(port=0)) as self.root:
            yield self


class Wire:
    """A TCP proxy: bytes pass both ways until a test cuts the wire."""

    def __init__(self, root: str) -> None:
        self._target = int(root.rpartition(":")[2])
        self._ends: set[asyncio.StreamWriter] = set()
        self.root = ""

    @asynccontextmanager
    async def laid(self) -> AsyncIterator["Wire"]:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.root = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await asyncio.sleep(0.01)

    def cut(self) -> None:
        """All connections break; new ones are possible."""
        for end in tuple(self._ends):
            end.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._ends |= {writer, far_writer}
        await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
        self._ends -= {writer, far_writer}


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    notes = tmp_path / "notes.md"
    notes.write_text("the first edition\n")
    async with Served(notes).live() as served:
        yield served


@pytest.fixture
def talk(served: Served) -> HttpTalk:
    return HttpTalk(served.root)


# ── asked and answered ──


@every_way
async def test_it_lists_reads_and_calls(talk: HttpTalk, transport: str, revision: str) -> None:
    with no_complaints():
        async with talk(revision, transport) as session:
            tools = [tool.name for tool in (await session.list_tools()).tools]
            assert tools == ["calculate", "roll_dice", "tell_fortune", "slow_operation", "linger"]
            result = await session.call_tool("calculate", {"operation": "divide", "a": 1, "b": 8})
            assert json.loads(only_text(result)) == {"result": 0.125, "expression": "1 / 8 = 0.125"}
            assert (await session.call_tool("calculate", {"operation": "divide", "a": 1, "b": 0})).is_error
            assert NOTES in [resource.uri for resource in (await session.list_resources()).resources]
            prompt = await session.get_prompt("code_review", {"code": "x = 1"})
            assert prompt.messages[0].content == types.TextContent(text="Please review this python code:\nx = 1")
            with refused(INVALID_PARAMS):
                await session.call_tool("no_such_tool", {})


@pytest.mark.parametrize(
    ("transport", "mode", "revision"),
    [
        *(("streamable", "auto", MODERN), ("streamable", MODERN, MODERN), ("streamable", "legacy", HANDSHAKE)),
        *(("sse", "auto", HANDSHAKE), ("sse", "legacy", HANDSHAKE)),
    ],
)
async def test_the_high_level_client_finds_out_what_to_speak(
    talk: HttpTalk, transport: str, mode: str, revision: str
) -> None:
    with no_complaints(), anyio.fail_after(20):
        async with talk.client(transport, mode=mode) as client:
            assert client.protocol_version == revision
            result = await client.call_tool("calculate", {"operation": "multiply", "a": 6, "b": 7})
            assert result.structured_content == {"result": 42, "expression": "6 * 7 = 42"}
    talk.transcript.assert_clean()


# ── notifications of a call ──


@each_way
async def test_progress_streams(talk: HttpTalk, transport: str, revision: str) -> None:
    reports: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append(progress)

    with no_complaints():
        async with talk(revision, transport) as session:
            result = await session.call_tool("slow_operation", {"duration_ms": 200}, progress_callback=report)
            assert json.loads(only_text(result))["message"] == "Slept for 200ms"
    assert reports == list(range(10))
    if transport == "streamable":
        assert "text/event-stream" in [asked.kind for asked in talk.asked if asked.method == "POST"]


# ── notifications outside of calls ──


async def _received(talk: HttpTalk, method: str) -> dict[str, Any]:
    return await talk.transcript.until(lambda message: message.get("method") == method)


@each_session
async def test_a_session_subscribes(served: Served, talk: HttpTalk, transport: str, revision: str) -> None:
    with no_complaints():
        async with talk(revision, transport) as session:
            await session.subscribe_resource(NOTES)
            rewrite(served.notes, "the second edition\n")
            assert (await _received(talk, UPDATED))["params"] == {"uri": NOTES}
            (contents,) = (await session.read_resource(NOTES)).contents
            assert isinstance(contents, types.TextResourceContents)
            assert contents.text == "the second edition\n"
            await session.unsubscribe_resource(NOTES)
            served.grow("fern")
            await _received(talk, LIST_CHANGED)
            assert (await session.list_tools()).tools[-1].name == "fern"


async def test_a_modern_client_listens(served: Served, talk: HttpTalk) -> None:
    with no_complaints():
        async with talk(MODERN) as session:
            async with (
                listen(session, resource_subscriptions=[NOTES]) as updates,
                listen(session, tools_list_changed=True) as lists,
            ):
                rewrite(served.notes, "the second edition\n")
                assert await anext(updates) == ResourceUpdated(NOTES)
                served.grow("fern")
                assert await anext(lists) == ToolsListChanged()
                assert (await session.list_tools()).tools[-1].name == "fern"
            assert (await session.call_tool("fern")).content


# ── cancelled ──


@each_way
async def test_a_cancelled_tool_is_stopped(served: Served, talk: HttpTalk, transport: str, revision: str) -> None:
    interest = Interest()
    async with talk(revision, transport) as session:
        with interest.scope:
            await session.call_tool("linger", progress_callback=interest.lose)
        assert interest.scope.cancelled_caught
        await served.interrupted.wait()
        assert (await session.call_tool("calculate", ADDITION)).content
    said = [message["method"] for message in talk.transcript.said]
    assert "notifications/cancelled" in said
    posted = [asked for asked in talk.asked if asked.method == "POST"]
    assert all(asked.status in (200, 202) for asked in posted)


# ── gone ──


async def test_a_session_is_deleted_and_a_modern_client_has_nothing_to_delete(talk: HttpTalk) -> None:
    async with talk(MODERN) as session:
        await session.list_tools()
    assert {(asked.method, "mcp-session-id" in asked.headers) for asked in talk.asked} == {("POST", False)}
    with no_complaints():
        async with talk(HANDSHAKE) as session:
            await session.list_tools()
    assert [(asked.method, asked.status) for asked in talk.asked][-1] == ("DELETE", 204)
    session_id = talk.asked[-1].headers["mcp-session-id"]
    async with talk.http() as http:
        headers = {"mcp-session-id": session_id, "mcp-protocol-version": HANDSHAKE}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await http.post(f"{talk.root}/mcp", json=ping, headers=headers)).status_code == 404


async def test_an_old_client_that_leaves_stops_its_calls(served: Served, talk: HttpTalk) -> None:
    interest = Interest()
    async with talk("2024-11-05", "sse") as session, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: session.call_tool("linger", progress_callback=interest.lose))
        await _received(talk, PROGRESS)
        tasks.cancel_scope.cancel()
    with anyio.fail_after(5):
        await served.interrupted.wait()


# ── the wire breaks ──


@pytest.fixture
async def wire(served: Served) -> AsyncIterator[Wire]:
    async with Wire(served.root).laid() as wire:
        yield wire


async def test_a_session_comes_back_for_its_answer(wire: Wire) -> None:
    talk = HttpTalk(wire.root)
    reports: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append(progress)
        if progress == 3:
            wire.cut()

    async with talk(HANDSHAKE) as session:
        result = await session.call_tool("slow_operation", {"duration_ms": 1000}, progress_callback=report)
        assert json.loads(only_text(result))["message"] == "Slept for 1000ms"
    assert reports == list(range(10))  # each once, and in order
    resumed = [asked for asked in talk.asked if asked.method == "GET" and "last-event-id" in asked.headers]
    assert {asked.status for asked in resumed} == {200}


async def test_changes_made_meanwhile_are_notified_afterwards(served: Served, wire: Wire) -> None:
    talk = HttpTalk(wire.root)
    received = talk.transcript.received
    async with talk(HANDSHAKE) as session:
        await session.list_tools()
        served.grow("fern")
        await _received(talk, LIST_CHANGED)
        wire.cut()
        await until(lambda: not endpoint_of(served.app).streams.current)
        served.grow("moss")
        await talk.transcript.until(lambda _: [each.get("method") for each in received].count(LIST_CHANGED) == 2)
        assert (await session.list_tools()).tools[-1].name == "moss"


async def test_where_nothing_resumes_the_call_is_cancelled(served: Served, wire: Wire) -> None:
    talk = HttpTalk(wire.root)

    async def cut(progress: float, total: float | None, message: str | None) -> None:
        wire.cut()

    async with talk(MODERN) as session:
        with pytest.raises(MCPError, match="ended without a response"):
            await session.call_tool("linger", progress_callback=cut)
        await served.interrupted.wait()
        assert (await session.call_tool("calculate", ADDITION)).content

        async with listen(session, tools_list_changed=True) as changes:
            wire.cut()
            with pytest.raises(SubscriptionLost):
                await anext(changes)
        async with listen(session, tools_list_changed=True) as changes:
            served.grow("fern")
            assert await anext(changes) == ToolsListChanged()
