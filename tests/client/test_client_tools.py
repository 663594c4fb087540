"""Calling tools: values, failures, approval, and results off the wire."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from client_stages import ScriptedLink, result
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from small_server import every_revision, make_server, revision_of

from dovetail import CallResult, Client, NotApproved
from dovetail.client.results import ListPage, WireCallResult, read, read_page
from dovetail.errors import BadAnswer, ServerError, ToolError
from dovetail.protocol.types import Audio, EmbeddedResource, ResourceContents, ResourceLink, Text, ToolDefinition
from dovetail.server import Server

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


@pytest.fixture
def server() -> Server:
    return make_server()


@pytest.fixture
async def client(server: Server, version: str) -> AsyncIterator[Client]:
    async with Client(server, protocol_version=version) as client:
        yield client


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


@pytest.mark.parametrize(("marked", "data"), [(True, 3), (False, {"result": 3}), ("yes", {"result": 3})])
async def test_fastmcp_says_in_its_schema_that_it_wraps(
    marked: Any, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(message: dict[str, Any]) -> list[dict[str, Any]]:
        match message["method"]:
            case "server/discover":
                value: Any = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            case "tools/list":
                schema = {"type": "object", "x-fastmcp-wrap-result": marked}
                value = {"tools": [{"name": "add", "inputSchema": {"type": "object"}, "outputSchema": schema}]}
            case _:
                value = {"content": [], "structuredContent": {"result": 3}}
        return [result(message, {"resultType": "complete", **value})]

    async with Client(ScriptedLink(answer)) as client:
        assert (await client.call_tool("add")).data == data


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


@pytest.mark.seed("S1-24")
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


@pytest.mark.seed("S3-16", "S3-17", "S3-18", "S3-19")
@every_revision
async def test_what_a_tool_does_not_say_of_itself_is_taken_for_the_worse(version: str) -> None:
    said: dict[str, dict[str, bool] | None] = {
        "silent": None,
        "reader": {"readOnlyHint": True},
        "closed": {"openWorldHint": False, "idempotentHint": True},
        "harmless": {"destructiveHint": False},
        "both": {"readOnlyHint": True, "destructiveHint": True},
    }
    server = Server("hints")
    for name, annotations in said.items():
        server.add_tool(lambda: "done", name=name, description="Do it.", annotations=annotations)
    asked: dict[str, tuple[bool, ...]] = {}

    def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        asked[tool.name] = tool.hints
        return True

    async with Client(server, protocol_version=version, approve=approve) as client:
        for name in said:
            await client.call_tool(name)
        listed = (await client.request("tools/list"))["tools"]
    worst = (False, True, False, True)
    taken = {  # read-only, destructive, idempotent, open to the world
        "silent": worst,
        "reader": (True, False, False, True),
        "closed": (False, True, True, False),
        "harmless": (False, False, False, True),
        "both": (True, False, False, True),
    }
    if version == "2024-11-05":  # which has no annotations
        said, taken = dict.fromkeys(said), dict.fromkeys(said, worst)
    assert asked == taken
    assert [tool.get("annotations") for tool in listed] == list(said.values()), "nothing is added on the wire"


@pytest.mark.seed("S1-24", "S2-72")
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

    def client(self, approve: Any) -> Client:
        return Client(self.link, protocol_version="2025-11-25", approve=approve)


async def test_a_tool_that_changes_while_it_is_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ChangingTools(changes=0)

    async def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        server.changes = 1
        for message in server.change():
            server.link.say(message)
        await asyncio.sleep(0.01)
        return True

    async with server.client(approve) as client:
        with pytest.raises(NotApproved, match="changed while it was being approved"):
            await client.call_tool("t")
    assert server.called == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "type", "text", "structuredContent", "resultType"]), inner)
    ),
    max_leaves=10,
)


def call(body: str) -> WireCallResult:
    return read("tools/call", Raw(body.encode()), WireCallResult)


def test_every_kind_of_content() -> None:
    answer = call(
        '{"content":[{"type":"text","text":"a"},{"type":"audio","data":"AA==","mimeType":"audio/wav"},'
        '{"type":"resource_link","uri":"x:1","name":"one"},'
        '{"type":"resource","resource":{"uri":"x:2","text":"two"}},{"type":"text","text":"b","future":1}]}'
    )
    assert answer.content == [
        Text("a"),
        Audio(b"\0", "audio/wav"),
        ResourceLink("x:1", "one"),
        EmbeddedResource(ResourceContents("x:2", text="two")),
        Text("b"),
    ]
    result = answer.unfold(wrapped=False)
    assert (result.text, result.data, result.is_error) == ("a\nb", "a\nb", False)


@pytest.mark.parametrize(
    ("body", "wrapped", "structured", "data"),
    [
        ('{"content":[]}', False, None, None),
        ('{"content":[{"type":"text","text":""}]}', False, None, ""),
        ('{"structuredContent":null}', False, None, None),
        ('{"content":[{"type":"text","text":"null"}],"structuredContent":null}', False, None, None),
        ('{"structuredContent":[1]}', False, [1], [1]),
        ('{"structuredContent":{"result":1}}', False, {"result": 1}, {"result": 1}),
        ('{"structuredContent":{"result":1}}', True, {"result": 1}, 1),
    ],
)
def test_data(body: str, wrapped: bool, structured: object, data: object) -> None:
    result = call(body).unfold(wrapped=wrapped)
    assert (result.structured, result.data) == (structured, data)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"content":7}', "content must be an array, not an integer"),
        ('{"content":[{"type":"smell"}]}', "content"),
        ('{"content":[{"type":"text"}]}', "text is missing"),
        ("[]", "it must be an object, not an array"),
        ('{"resultType":"input_required","inputRequests":{}}', "resultType 'input_required', which this client"),
        ('{"resultType":"task"}', "resultType 'task'"),
    ],
)
def test_what_does_not_fit_is_named(body: str, words: str) -> None:
    with pytest.raises(BadAnswer, match=r"^tools/call: ") as caught:
        call(body)
    assert words in str(caught.value)
    assert "msgspec" not in str(caught.value)
    assert "`" not in str(caught.value)


def test_pages() -> None:
    tools = '"tools":[{"name":"a","inputSchema":{"type":"object"},"new":1}]'
    expected = [ToolDefinition(name="a", input_schema={"type": "object"})]
    cursors = {"": None, ',"nextCursor":null': None, ',"nextCursor":""': "", ',"nextCursor":"x"': "x"}
    for cursor, found in cursors.items():
        page = read_page("tools/list", Raw(f"{{{tools}{cursor}}}".encode()), "tools", ToolDefinition)
        assert page == ListPage(expected, found)


@pytest.mark.parametrize("body", ["{}", '{"tools":{}}', '{"tools":[{}]}', '{"tools":[],"nextCursor":7}', "null"])
def test_pages_that_are_none(body: str) -> None:
    with pytest.raises(BadAnswer, match=r"^tools/list: the server's answer does not fit"):
        read_page("tools/list", Raw(body.encode()), "tools", ToolDefinition)


@given(JSON)
def test_whatever_comes_is_read_or_refused(value: object) -> None:
    with contextlib.suppress(BadAnswer):
        read("tools/call", Raw(msgspec.json.encode(value)), WireCallResult).unfold(wrapped=False)
