"""Every method of the client, at every revision, against small servers in the same process."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from scripted_link import ScriptedLink, result

from dovetail import CallResult, Client, NotApproved
from dovetail.engine.context import Context
from dovetail.errors import ConnectionLost, ServerError, SetupError, ToolError
from dovetail.protocol import revisions
from dovetail.protocol.content import Image, ResourceContents, Text
from dovetail.protocol.definitions import ToolDefinition
from dovetail.protocol.results import PromptResult
from dovetail.protocol.revisions import Revision
from dovetail.server import Server

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")

HANDSHAKE = [revision.name for revision in revisions.HANDSHAKE.values()]
MODERN = [revision.name for revision in revisions.MODERN.values()]
EVERY = [revision.name for revision in revisions.ALL]

every_revision = pytest.mark.parametrize("version", EVERY)
handshake_only = pytest.mark.parametrize("version", HANDSHAKE)
modern_only = pytest.mark.parametrize("version", MODERN)


class Point(msgspec.Struct):
    x: int
    y: int


def make_server(**options: Any) -> Server:
    server = Server("small", version="1.2.3", instructions="Be kind.", **options)

    @server.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool
    def point(x: int, y: int) -> Point:
        return Point(x, y)

    @server.tool
    def boxed(value: int) -> dict[str, int]:
        """Its own object happens to look like our wrapping."""
        return {"result": value}

    @server.tool
    def nothing() -> int | None:
        return None

    @server.tool
    def greet(name: str) -> str:
        return f"Hello, {name}!"

    @server.tool
    def picture() -> Image:
        return Image(b"\x89PNG", "image/png")

    @server.tool
    def fail() -> str:
        raise ToolError("The cupboard is bare.")

    @server.tool
    async def work(steps: int, ctx: Context) -> str:
        for step in range(steps):
            await ctx.report_progress(step + 1, steps, f"step {step + 1}")
            await ctx.info(f"did {step + 1}")
        return "done"

    @server.tool
    async def sleep(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "rested"

    @server.resource("notes://all", mime_type="text/plain")
    def all_notes() -> str:
        return "milk"

    @server.resource("notes://{id}")
    def one_note(id: str) -> bytes:
        return id.encode()

    @server.prompt
    def review(code: str) -> str:
        """Ask for a review."""
        return f"Review {code}"

    @server.completion(prompt="review", argument="code")
    def codes(value: str, arguments: dict[str, str]) -> list[str]:
        return [value + "1", value + "2", *arguments.values()]

    return server


@pytest.fixture
def server() -> Server:
    return make_server()


@pytest.fixture
async def client(server: Server, version: str) -> AsyncIterator[Client]:
    async with Client(server, protocol_version=version) as client:
        yield client


def revision_of(client: Client) -> Revision:
    return revisions.BY_NAME[client.protocol_version]


# ── who is there ──


async def test_the_newest_revision_is_found_by_itself(server: Server) -> None:
    async with Client(server) as client:
        assert client.protocol_version == "2026-07-28"


@every_revision
async def test_a_pinned_revision_is_spoken(client: Client, version: str) -> None:
    assert client.protocol_version == version
    assert client.server_info is not None
    assert (client.server_info.name, client.server_info.version) == ("small", "1.2.3")
    assert client.instructions == "Be kind."
    assert client.capabilities["tools"] == {"listChanged": True}


async def test_a_server_that_hides_its_name() -> None:
    async with Client(make_server(server_info=False)) as client:
        assert client.server_info is None


@handshake_only
async def test_ping(client: Client) -> None:
    await client.ping()


@modern_only
async def test_ping_is_gone(client: Client) -> None:
    with pytest.raises(ServerError, match="Method not found") as caught:
        await client.ping()
    assert caught.value.code == -32601


@modern_only
async def test_discover(client: Client) -> None:
    found = await client.discover()
    assert found["supportedVersions"] == list(revisions.SUPPORTED)
    assert found["instructions"] == "Be kind."


@handshake_only
async def test_discover_is_not_there_yet(client: Client) -> None:
    with pytest.raises(ServerError):
        await client.discover()


# ── tools ──


@every_revision
async def test_list_tools(client: Client) -> None:
    tools = await client.list_tools()
    assert [tool.name for tool in tools][:3] == ["add", "point", "boxed"]
    assert tools[0].description == "Add two numbers."
    assert tools[0].input_schema["required"] == ["a", "b"]
    has_output = tools[0].output_schema is not None
    assert has_output == revision_of(client).structured_output


@every_revision
async def test_data_is_the_value(client: Client) -> None:
    structured = revision_of(client).structured_output
    assert (await client.call_tool("add", {"a": 1, "b": 2})).data == (3 if structured else "3")
    assert (await client.call_tool("greet", {"name": "Ada"})).data == "Hello, Ada!"
    point = await client.call_tool("point", {"x": 1, "y": 2})
    assert point.data == ({"x": 1, "y": 2} if structured else '{"x":1,"y":2}')
    assert json.loads(point.text) == {"x": 1, "y": 2}


@every_revision
async def test_only_what_was_wrapped_is_unwrapped(client: Client) -> None:
    boxed = await client.call_tool("boxed", {"value": 5})
    if revision_of(client).structured_output:
        assert boxed.data == boxed.structured == {"result": 5}
    added = await client.call_tool("add", {"a": 1, "b": 2})
    if not revision_of(client).structured_output:
        assert added.structured is None
    elif revision_of(client).any_structured_output:
        assert added.structured == added.data == 3
    else:
        assert (added.structured, added.data) == ({"result": 3}, 3)


@every_revision
async def test_null_is_a_value(client: Client) -> None:
    result = await client.call_tool("nothing")
    assert result.text == "null"
    assert result.data is None if revision_of(client).structured_output else result.data == "null"


@every_revision
async def test_content_without_text(client: Client) -> None:
    result = await client.call_tool("picture")
    assert result.content == [Image(b"\x89PNG", "image/png")]
    assert (result.text, result.data, result.structured) == ("", None, None)


@every_revision
async def test_a_failing_tool_raises_its_text(client: Client) -> None:
    with pytest.raises(ToolError, match=r"^The cupboard is bare\.$"):
        await client.call_tool("fail")
    result = await client.call_tool("fail", raise_on_error=False)
    assert isinstance(result, CallResult)
    assert (result.is_error, result.text) == (True, "The cupboard is bare.")
    assert result.content == [Text("The cupboard is bare.")]


@every_revision
async def test_wrong_arguments_and_unknown_tools(client: Client) -> None:
    with pytest.raises(ToolError, match="Invalid arguments"):
        await client.call_tool("add", {"a": "x"})
    with pytest.raises(ServerError, match="Unknown tool") as caught:
        await client.call_tool("nope")
    assert caught.value.code == -32602


@modern_only
async def test_the_result_carries_its_meta(client: Client) -> None:
    result = await client.call_tool("greet", {"name": "Ada"})
    assert result.meta["io.modelcontextprotocol/serverInfo"]["name"] == "small"


async def test_unwrapping_lists_the_tools_once(server: Server) -> None:
    sent: list[str] = []

    def note(direction: str, message: bytes) -> None:
        if direction == "sent":
            sent.append(json.loads(message)["method"])

    async with Client(server, protocol_version="2025-11-25", transcript=note) as client:
        for _ in range(3):
            assert (await client.call_tool("add", {"a": 1, "b": 1})).data == 2
        assert sent.count("tools/list") == 1
        server.remove_tool("greet")
        await asyncio.sleep(0.01)  # the announcement comes
        assert (await client.call_tool("add", {"a": 1, "b": 1})).data == 2
        assert sent.count("tools/list") == 2


# ── progress, logs, cancellation ──


@every_revision
async def test_progress(client: Client) -> None:
    seen: list[tuple[float, float | None, str | None]] = []
    await client.call_tool("work", {"steps": 3}, progress_handler=lambda *told: seen.append(told))
    has_message = revision_of(client).progress_message
    assert seen == [(float(n), 3.0, f"step {n}" if has_message else None) for n in (1, 2, 3)]


@every_revision
async def test_progress_for_every_call(server: Server, version: str) -> None:
    seen: list[float] = []

    async def handler(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with Client(server, protocol_version=version, progress_handler=handler) as client:
        await client.call_tool("work", {"steps": 2})
    assert seen == [1.0, 2.0]


@every_revision
async def test_logs_reach_a_handler(server: Server, version: str) -> None:
    seen: list[tuple[str, Any]] = []
    handler = lambda message: seen.append((message.level, message.data))  # noqa: E731
    async with Client(server, protocol_version=version, log_handler=handler) as client:
        await client.call_tool("work", {"steps": 1})
        assert seen == [("info", "did 1")]
        await client.set_log_level("error")
        await client.call_tool("work", {"steps": 1})
        assert len(seen) == 1
        await client.set_log_level("debug")
        await client.call_tool("work", {"steps": 1})
        assert len(seen) == 2


@modern_only
async def test_the_log_level_of_one_call(server: Server, version: str) -> None:
    seen: list[Any] = []
    async with Client(server, protocol_version=version, log_handler=lambda message: seen.append(message)) as client:
        await client.call_tool("work", {"steps": 1}, log_level="warning")
        assert seen == []
        await client.call_tool("work", {"steps": 1}, log_level="debug")
        assert len(seen) == 1


@handshake_only
async def test_a_wrong_log_level(client: Client) -> None:
    with pytest.raises(ServerError) as caught:
        await client.set_log_level("loud")  # type: ignore[arg-type]
    assert caught.value.code == -32602


@every_revision
async def test_a_timeout_stops_the_tool(server: Server, version: str) -> None:
    stopped = asyncio.Event()

    @server.tool
    async def stuck() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return "never"

    async with Client(server, protocol_version=version, timeout=0.05) as client:
        with pytest.raises(TimeoutError, match=r"tools/call: no answer within 0\.05 s"):
            await client.call_tool("stuck")
        await asyncio.wait_for(stopped.wait(), 5)
        assert (await client.call_tool("sleep", {"seconds": 0.1}, timeout=None)).data == "rested"
        assert (await client.call_tool("greet", {"name": "you"})).data == "Hello, you!"


@every_revision
async def test_a_cancelled_task_stops_the_tool(server: Server, version: str) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @server.tool
    async def stuck() -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return "never"

    async with Client(server, protocol_version=version) as client:
        task = asyncio.ensure_future(client.call_tool("stuck"))
        await asyncio.wait_for(begun.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(stopped.wait(), 5)


@every_revision
async def test_calls_at_the_same_time(client: Client) -> None:
    calls = [client.call_tool("greet", {"name": str(n)}) for n in range(50)]
    results = await asyncio.gather(*calls)
    assert [result.data for result in results] == [f"Hello, {n}!" for n in range(50)]


# ── resources, prompts, completion ──


@every_revision
async def test_resources(client: Client) -> None:
    assert [item.uri for item in await client.list_resources()] == ["notes://all"]
    assert [item.uri_template for item in await client.list_resource_templates()] == ["notes://{id}"]
    assert await client.read_resource("notes://all") == [
        ResourceContents("notes://all", mime_type="text/plain", text="milk")
    ]
    (note,) = await client.read_resource("notes://7")
    assert note.blob == b"7"
    with pytest.raises(ServerError) as caught:
        await client.read_resource("other://x")
    assert caught.value.code == revision_of(client).missing_resource_code


@every_revision
async def test_prompts(client: Client) -> None:
    (prompt,) = await client.list_prompts()
    assert prompt.name == "review"
    assert prompt.arguments is not None
    assert [argument.name for argument in prompt.arguments] == ["code"]
    got = await client.get_prompt("review", {"code": "x = 1"})
    assert isinstance(got, PromptResult)
    assert got.messages[0].role == "user"
    assert got.messages[0].content == Text("Review x = 1")
    with pytest.raises(ServerError):
        await client.get_prompt("review")


@every_revision
async def test_completion(client: Client) -> None:
    ref = {"type": "ref/prompt", "name": "review"}
    assert list((await client.complete(ref, "code", "a")).values) == ["a1", "a2"]
    assert list((await client.complete(ref, "code", "a", {"language": "go"})).values) == ["a1", "a2", "go"]


@handshake_only
async def test_subscribe_and_unsubscribe(client: Client) -> None:
    await client.subscribe("notes://all")
    await client.unsubscribe("notes://all")
    with pytest.raises(ServerError):
        await client.subscribe("other://x")


@modern_only
async def test_subscribe_is_gone(client: Client) -> None:
    with pytest.raises(ServerError, match="Method not found"):
        await client.subscribe("notes://all")


# ── pages ──


@every_revision
async def test_lists_are_followed_to_their_end(version: str) -> None:
    async with Client(make_server(page_size=2), protocol_version=version) as client:
        first = await client.list_tools_page()
        assert [tool.name for tool in first.items] == ["add", "point"]
        second = await client.list_tools_page(first.next_cursor)
        assert [tool.name for tool in second.items] == ["boxed", "nothing"]
        assert len(await client.list_tools()) == 9
        assert (await client.list_prompts_page()).next_cursor is None
        assert (await client.list_resources_page()).next_cursor is None
        assert (await client.list_resource_templates_page()).next_cursor is None
        with pytest.raises(ServerError) as caught:
            await client.list_tools_page("rubbish")
        assert caught.value.code == -32602


@every_revision
async def test_an_empty_cursor_ends_the_old_lists(version: str) -> None:
    async with Client(make_server(profile="pocket"), protocol_version=version) as client:
        assert len(await client.list_tools()) == 9
        assert (await client.list_tools_page()).next_cursor is None


# ── approval ──


@every_revision
async def test_approval(server: Server, version: str) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        asked.append((tool.description or "", arguments))
        return arguments["a"] < 10

    async with Client(server, protocol_version=version, approve=approve) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"
        with pytest.raises(NotApproved, match="add was not called"):
            await client.call_tool("add", {"a": 10, "b": 2})
    assert asked == [("Add two numbers.", {"a": 1, "b": 2}), ("Add two numbers.", {"a": 10, "b": 2})]


async def test_a_refused_call_is_never_sent(server: Server) -> None:
    sent: list[bytes] = []

    async def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        return False

    def note(direction: str, message: bytes) -> None:
        if direction == "sent":
            sent.append(message)

    async with Client(server, approve=approve, transcript=note) as client:
        with pytest.raises(NotApproved):
            await client.call_tool("greet", {"name": "Ada"})
        with pytest.raises(NotApproved, match="does not list it"):
            await client.call_tool("hidden")
    assert not any(b"tools/call" in message for message in sent)


@every_revision
async def test_what_is_approved_is_what_the_server_offers_now(server: Server, version: str) -> None:
    described: list[str | None] = []

    def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        described.append(tool.description)
        return True

    async with Client(server, protocol_version=version, approve=approve) as client:
        await client.call_tool("greet", {"name": "a"})
        server.remove_tool("greet")
        server.add_tool(lambda name: name, name="greet", description="Changed.")
        await asyncio.sleep(0.01)
        await client.call_tool("greet", {"name": "a"})
    assert described == [None, "Changed."]


# ── tools that change while they are listed or approved; the server is the test's ──


class ChangingTools:
    """A server with one tool, which it changes and announces in the same breath as it does something else."""

    def __init__(self, changes: int) -> None:
        self.changes = changes
        self.description = "version 0"
        self.called: list[str] = []
        self.link = ScriptedLink(self.answer)

    def answer(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        match message["method"]:
            case "initialize":
                capabilities = {"tools": {"listChanged": True}}
                info = {"name": "changing", "version": "0"}
                hello = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
                return [result(message, hello)]
            case "tools/list":
                tool = {"name": "t", "description": self.description, "inputSchema": {"type": "object"}}
                return [result(message, {"tools": [tool]}), *self.change()]
            case "tools/call":
                self.called.append(self.description)
                return [result(message, {"content": []})]
        return []

    def change(self) -> list[dict[str, Any]]:
        if not self.changes:
            return []
        self.changes -= 1
        self.description = f"version {int(self.description.split()[1]) + 1}"
        return [{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}]

    def client(self, monkeypatch: pytest.MonkeyPatch, approve: Any) -> Client:
        monkeypatch.setattr("dovetail.client.client.link_to", lambda *target, **options: self.link)
        return Client(["any"], protocol_version="2025-11-25", approve=approve)


async def test_a_list_that_is_old_when_it_arrives_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ChangingTools(changes=2)
    seen: list[str | None] = []

    def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        seen.append(tool.description)
        return True

    async with server.client(monkeypatch, approve) as client:
        await client.call_tool("t")
    assert seen == server.called == ["version 2"]


async def test_an_old_list_does_not_replace_the_news(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ChangingTools(changes=1)
    seen: list[str | None] = []

    def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        seen.append(tool.description)
        return True

    async with server.client(monkeypatch, approve) as client:
        assert [tool.description for tool in await client.list_tools()] == ["version 0"]
        await client.call_tool("t")
    assert seen == server.called == ["version 1"]


async def test_tools_that_never_stand_still_are_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ChangingTools(changes=1000)
    async with server.client(monkeypatch, lambda tool, arguments: True) as client:
        with pytest.raises(NotApproved, match="keeps changing its list"):
            await client.call_tool("t")
    assert server.called == []
    assert server.changes > 900  # it gives up soon


async def test_a_tool_that_changes_while_it_is_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ChangingTools(changes=0)

    async def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        server.changes = 1
        for message in server.change():
            server.link.say(message)
        await asyncio.sleep(0.01)
        return True

    async with server.client(monkeypatch, approve) as client:
        with pytest.raises(NotApproved, match="changed while it was being approved"):
            await client.call_tool("t")
    assert server.called == []


# ── transcript and the low level ──


@every_revision
async def test_the_transcript_holds_every_message(server: Server, version: str) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    note = lambda direction, message: seen.append((direction, json.loads(message)))  # noqa: E731
    async with Client(server, protocol_version=version, transcript=note, client_info={"name": "t", "version": "9"}):
        pass
    (_, hello), (_, welcome), *rest = seen
    assert [direction for direction, _ in seen[:2]] == ["sent", "received"]
    assert welcome["id"] == hello["id"]
    if version in HANDSHAKE:
        assert hello["method"] == "initialize"
        assert hello["params"]["clientInfo"] == {"name": "t", "version": "9"}
        assert rest == [("sent", {"jsonrpc": "2.0", "method": "notifications/initialized"})]
    else:
        assert hello["method"] == "server/discover"
        assert hello["params"]["_meta"] == {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "9"},
        }
        assert rest == []


@every_revision
async def test_any_request(client: Client) -> None:
    result = await client.request("tools/call", {"name": "greet", "arguments": {"name": "Ada"}})
    assert result["content"] == [{"type": "text", "text": "Hello, Ada!"}]
    with pytest.raises(ServerError) as caught:
        await client.request("no/such", {"_meta": {"mine": 1}})
    assert caught.value.code == -32601
    await client.notify("notifications/whatever", {"a": 1})


@every_revision
async def test_raw_bytes(server: Server, version: str) -> None:
    received: list[dict[str, Any]] = []

    def note(direction: str, message: bytes) -> None:
        if direction == "received":
            received.append(json.loads(message))

    async with Client(server, protocol_version=version, transcript=note) as client:
        await client.send_raw(b"{nonsense")
        await client.send_raw(b'{"jsonrpc":"2.0","id":"mine","method":"no/such"}\n\n')
        await asyncio.sleep(0.01)
        errors = {str(message.get("id")): message["error"]["code"] for message in received[1:]}
        assert -32700 in errors.values()
        assert "mine" in errors
        assert (await client.call_tool("greet", {"name": "you"})).data == "Hello, you!"


async def test_a_message_over_the_limit_is_refused_as_on_a_pipe() -> None:
    received: list[bytes] = []
    async with Client(
        make_server(max_message_bytes=1000), transcript=lambda direction, message: received.append(message)
    ) as client:
        with pytest.raises(TimeoutError):
            await client.call_tool("greet", {"name": "x" * 2000}, timeout=0.05)
        assert any(b"larger than 1000 bytes" in message for message in received)


# ── wrong use ──


@pytest.mark.parametrize("target", ["python server.py", b"x", 7, None, [], [1, 2], {"a": 1}, object()])
def test_targets_that_are_none(target: Any) -> None:
    with pytest.raises(SetupError, match="give it a Server, or a command"):
        Client(target)


def test_options_that_do_not_fit(server: Server) -> None:
    with pytest.raises(SetupError, match="unknown; use one of 2026-07-28"):
        Client(server, protocol_version="2023-01-01")
    with pytest.raises(SetupError, match="env= and cwd="):
        Client(server, cwd=".")


async def test_a_client_that_is_not_open(server: Server) -> None:
    client = Client(server)
    with pytest.raises(ConnectionLost, match="async with"):
        await client.list_tools()
    with pytest.raises(ConnectionLost, match="async with"):
        _ = client.protocol_version
    async with client:
        with pytest.raises(SetupError, match="open already"):
            await client.__aenter__()
        await client.list_tools()
    with pytest.raises(ConnectionLost, match="async with"):
        await client.list_tools()
    assert client.protocol_version == "2026-07-28"  # what was said stays said
    async with client:  # and it may be opened again
        await client.list_tools()
