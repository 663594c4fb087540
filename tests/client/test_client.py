"""`Client` against a server in process, in every revision, and the programs of docs/client.md."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from client_stages import AskingServer, ScriptedLink, result
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from sign_in_stage import Person, notes
from small_server import every_revision, handshake_only, make_server, modern_only, revision_of

from documented import PROGRAMS, load
from dovetail import CallResult, Client, NotApproved
from dovetail.client.oauth import OAuth
from dovetail.client.results import ListPage, WireCallResult, read, read_page
from dovetail.errors import BadAnswer, ConnectionLost, ServerError, SetupError, ToolError
from dovetail.protocol import revisions
from dovetail.protocol.types import Audio, EmbeddedResource, ResourceContents, ResourceLink, Text, ToolDefinition
from dovetail.server import Server

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates")
COMPLETE = {"resultType": "complete"}


@pytest.fixture
def server() -> Server:
    return make_server()


@pytest.fixture
async def client(server: Server, version: str) -> AsyncIterator[Client]:
    async with Client(server, protocol_version=version) as client:
        yield client


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


@pytest.mark.seed("S1-25")
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

    async with Client(server, protocol_version=version) as client:
        with pytest.raises(TimeoutError, match=r"tools/call: no answer within 0\.05 s"):
            await client.call_tool("stuck", timeout=0.05)
        await asyncio.wait_for(stopped.wait(), 5)
        assert (await client.call_tool("sleep", {"seconds": 0.1}, timeout=None)).data == "rested"
        assert (await client.call_tool("greet", {"name": "you"})).data == "Hello, you!"


@every_revision
async def test_completion(client: Client) -> None:
    found = await client.complete(prompt="review", argument="code", value="a")
    assert list(found.values) == ["a1", "a2"]
    found = await client.complete(prompt="review", argument="code", value="a", context={"language": "go"})
    assert list(found.values) == ["a1", "a2", "go"]


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


ASKING: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "ping": lambda client: client.ping(timeout=0.01),
    "tools/list": lambda client: client.list_tools(timeout=0.01),
    "tools/list, a page": lambda client: client.list_tools_page(timeout=0.01),
    "tools/call": lambda client: client.call_tool("x", timeout=0.01),
    "resources/list": lambda client: client.list_resources(timeout=0.01),
    "resources/list, a page": lambda client: client.list_resources_page(timeout=0.01),
    "resources/templates/list": lambda client: client.list_resource_templates(timeout=0.01),
    "resources/templates/list, a page": lambda client: client.list_resource_templates_page(timeout=0.01),
    "resources/read": lambda client: client.read_resource("x://y", timeout=0.01),
    "prompts/list": lambda client: client.list_prompts(timeout=0.01),
    "prompts/list, a page": lambda client: client.list_prompts_page(timeout=0.01),
    "prompts/get": lambda client: client.get_prompt("x", timeout=0.01),
    "completion/complete": lambda client: client.complete(prompt="x", argument="y", timeout=0.01),
    "server/discover": lambda client: client.discover(timeout=0.01),
    "any/thing": lambda client: client.request("any/thing", timeout=0.01),
}


@pytest.mark.parametrize("what", ASKING)
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_every_request_may_have_its_own_time(what: str, version: str) -> None:
    async with Client(ScriptedLink(greet), protocol_version=version) as client, asyncio.timeout(5):
        with pytest.raises(TimeoutError, match=rf"{what.partition(',')[0]}: no answer within 0\.01 s"):
            await ASKING[what](client)


def greet(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A server that says hello, and nothing else."""
    info = {"name": "x", "version": "1"}
    greetings: dict[str, Any] = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info},
        "server/discover": {**COMPLETE, "supportedVersions": ["2026-07-28"], "capabilities": {}},
    }
    greeting = greetings.get(message["method"]) if message.get("id") == 1 else None
    return [] if greeting is None else [result(message, greeting)]


@every_revision
async def test_any_request(client: Client) -> None:
    result = await client.request("tools/call", {"name": "greet", "arguments": {"name": "Ada"}})
    assert result["content"] == [{"type": "text", "text": "Hello, Ada!"}]
    with pytest.raises(ServerError) as caught:
        await client.request("no/such", {"_meta": {"mine": 1}})
    assert caught.value.code == -32601
    await client.notify("notifications/whatever", {"a": 1})


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


async def test_the_program_that_signs_in(capsys: pytest.CaptureFixture[str]) -> None:
    program, person = load("client_sign_in"), Person()
    async with notes() as served:
        await program.main(served.url, OAuth(open_browser=person.open))
        await program.main(served.url, OAuth(open_browser=Person(says_yes=False).open))
    first, second = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("[", "not"))]
    assert "'read'" in first
    assert second.startswith("not signed in: ")


async def test_the_program_with_several_servers(capsys: pytest.CaptureFixture[str]) -> None:
    weather = {"command": sys.executable, "args": ["-m", "dovetail.cli", "run", str(PROGRAMS["http_server"])]}
    gone = {"command": "no-such-program-at-all"}
    await load("client_several").main({"mcpServers": {"weather": weather, "gone": gone}})
    out = capsys.readouterr().out
    assert out.startswith("gone is not there: ")
    assert out.endswith("['weather'] Sun in Rome.\n")


async def test_the_program_answers_itself(capsys: pytest.CaptureFixture[str]) -> None:
    await load("client_answers").main()
    assert capsys.readouterr().out == (
        "Which size of hat? value\nThank the user for buying a hat.\nOne hat, size M. Wear it well!\n"
    )


@pytest.mark.parametrize("version", [revision.name for revision in revisions.ALL if revision.elicitation])
async def test_its_handlers_work_in_every_revision(version: str) -> None:
    program = load("client_answers")
    handlers = {"elicitation_handler": program.fill_in, "sampling_handler": program.complete}
    async with Client(program.server, protocol_version=version, **handlers) as client:
        assert (await client.call_tool("buy", {"article": "hat"})).data == "One hat, size M. Wear it well!"
    async with Client(program.server, protocol_version=version, elicitation_handler=lambda question: None) as client:
        assert (await client.call_tool("buy", {"article": "hat"})).data == "Nothing bought."


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
async def test_fastmcp_says_in_its_schema_that_it_wraps(marked: Any, data: Any) -> None:
    schema = {"type": "object", "x-fastmcp-wrap-result": marked}
    answers = {
        "tools/list": {"tools": [{"name": "add", "inputSchema": {"type": "object"}, "outputSchema": schema}]},
        "tools/call": {"content": [], "structuredContent": {"result": 3}},
    }
    async with Client(AskingServer("2026-07-28", lambda message: {**COMPLETE, **answers[message["method"]]})) as client:
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


@every_revision
async def test_a_tool_that_changes_while_it_is_approved(server: Server, version: str) -> None:
    called: list[str] = []

    async def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        server.remove_tool("greet")
        server.add_tool(lambda name: called.append(name), name="greet", description="Changed.")
        await asyncio.sleep(0.01)
        return True

    async with Client(server, protocol_version=version, approve=approve) as client:
        with pytest.raises(NotApproved, match="changed while it was being approved"):
            await client.call_tool("greet", {"name": "a"})
    assert called == []


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
