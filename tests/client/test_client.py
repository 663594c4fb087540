"""`Client` against a server in process, in every revision, and the programs of docs/client.md."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Raw
from scripted import AskingServer, ScriptedTransport, result
from sign_in_stage import Person, notes
from small_server import every_revision, make_server

from documented import PROGRAMS, load
from dovetail import CallToolResult, Client, NotApproved
from dovetail.client.oauth import OAuth
from dovetail.client.results import ListPage, WireCallResult, read_page, read_result
from dovetail.errors import BadResponse, ConnectionLost, ServerError, SetupError, ToolError
from dovetail.protocol import revisions
from dovetail.protocol.types import Text, ToolDefinition
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


@every_revision
async def test_a_pinned_revision_is_spoken(client: Client, version: str) -> None:
    assert client.protocol_version == version
    assert (client.server_info.name, client.server_info.version) == ("small", "1.2.3")
    assert client.instructions == "Be kind."
    assert client.capabilities["tools"] == {"listChanged": True}
    if revisions.BY_NAME[client.protocol_version].handshake:
        await client.ping()
        return
    assert (await client.discover())["supportedVersions"] == list(revisions.SUPPORTED)
    with pytest.raises(ServerError, match="Method not found"):
        await client.ping()


@every_revision
async def test_logs_reach_a_handler(server: Server, version: str) -> None:
    seen: list[Any] = []
    async with Client(server, protocol_version=version, log_handler=seen.append) as client:
        await client.call_tool("work", {"steps": 1})
        assert [(message.level, message.data) for message in seen] == [("info", "did 1")]
        for level, received in (("error", 1), ("debug", 2)):
            await client.set_log_level(level)
            await client.call_tool("work", {"steps": 1})
            assert len(seen) == received


@pytest.mark.seed("S1-25")
@every_revision
async def test_a_timeout_stops_the_tool(server: Server, version: str) -> None:
    stopped = asyncio.Event()

    @server.tool
    async def stuck() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with Client(server, protocol_version=version) as client:
        with pytest.raises(TimeoutError, match=r"tools/call: no answer within 0\.05 s"):
            await client.call_tool("stuck", timeout=0.05)
        await asyncio.wait_for(stopped.wait(), 5)
        assert (await client.call_tool("sleep", {"seconds": 0.1}, timeout=None)).data == "rested"
        assert (await client.call_tool("greet", {"name": "you"})).data == "Hello, you!"


@every_revision
async def test_completion(client: Client) -> None:
    for context, more in ((None, []), ({"language": "go"}, ["go"])):
        found = await client.complete(prompt="review", argument="code", value="a", context=context)
        assert list(found.values) == ["a1", "a2", *more]


@every_revision
async def test_lists_are_followed_to_their_end(version: str) -> None:
    async with Client(make_server(page_size=2), protocol_version=version) as client:
        first = await client.list_tools_page()
        assert [tool.name for tool in first.items] == ["add", "point"]
        second = await client.list_tools_page(first.next_cursor)
        assert [tool.name for tool in second.items] == ["boxed", "greet"]
        assert len(await client.list_tools()) == 7
        for page in (client.list_prompts_page, client.list_resources_page, client.list_resource_templates_page):
            assert (await page()).next_cursor is None
        with pytest.raises(ServerError) as caught:
            await client.list_tools_page("rubbish")
        assert caught.value.code == -32602


LISTS = ("tools", "resources", "resource_templates", "prompts")
ASKING: list[tuple[str, dict[str, Any]]] = [
    *((f"list_{what}", {}) for what in LISTS), *((f"list_{what}_page", {}) for what in LISTS),
    ("ping", {}), ("call_tool", {"name": "x"}), ("read_resource", {"uri": "x://y"}), ("get_prompt", {"name": "x"}),
    ("complete", {"prompt": "x", "argument": "y"}), ("discover", {}), ("request", {"method": "any/thing"}),
]  # fmt: skip


@pytest.mark.parametrize(("what", "arguments"), ASKING)
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_every_request_may_have_its_own_time(what: str, arguments: dict[str, Any], version: str) -> None:
    async with Client(ScriptedTransport(greet), protocol_version=version) as client, asyncio.timeout(5):
        with pytest.raises(TimeoutError, match=r"\w+: no answer within 0\.01 s"):
            await getattr(client, what)(**arguments, timeout=0.01)


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


NO_TARGETS: list[Any] = ["python server.py", b"x", 7, None, [], [1, 2], {"env": {"KEY": "s3cret"}}, object()]


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        *((target, {}, "give it a Server, or a command") for target in NO_TARGETS),
        (make_server(), {"protocol_version": "2023-01-01"}, "unknown; use one of 2026-07-28"),
        (make_server(), {"cwd": "."}, "env= and cwd="),
    ],
)
def test_what_no_client_can_be_made_of(target: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words) as refused:
        Client(target, **options)
    assert "s3cret" not in str(refused.value)


async def test_a_client_that_is_not_open(server: Server) -> None:
    client = Client(server)
    with pytest.raises(ConnectionLost, match="async with"):
        _ = client.protocol_version
    for _ in range(2):  # it may be opened again
        with pytest.raises(ConnectionLost, match="async with"):
            await client.list_tools()
        async with client:
            with pytest.raises(SetupError, match="open already"):
                await client.__aenter__()
            await client.list_tools()
        assert client.protocol_version == "2026-07-28"  # what was said stays said


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


async def test_the_program_follows_its_task(capsys: pytest.CaptureFixture[str]) -> None:
    await load("client_tasks").main()
    first, *_, last, text = capsys.readouterr().out.splitlines()
    assert (first, last.split()[0], text) == ("working None", "completed", "A small film of a beach.")


@every_revision
async def test_data_is_the_value_and_only_what_was_wrapped_is_unwrapped(client: Client) -> None:
    boxed = await client.call_tool("boxed", {"value": 5})
    point = await client.call_tool("point", {"x": 1, "y": 2})
    added = await client.call_tool("add", {"a": 1, "b": 2})
    if not revisions.BY_NAME[client.protocol_version].structured_output:
        assert (added.structured, added.data, point.data) == (None, "3", '{"x":1,"y":2}')
        return
    assert boxed.data == boxed.structured == {"result": 5}
    assert point.data == {"x": 1, "y": 2}
    if revisions.BY_NAME[client.protocol_version].any_structured_output:
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
    assert isinstance(result, CallToolResult)
    assert (result.is_error, result.text) == (True, "The cupboard is bare.")
    assert result.content == [Text("The cupboard is bare.")]


@pytest.mark.seed("S1-24", "S2-72")
@every_revision
async def test_a_call_that_is_not_approved_is_never_sent(server: Server, version: str) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    sent: list[bytes] = []

    async def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        asked.append((tool.description or "", arguments))
        return arguments["a"] < 10

    def note(direction: str, message: bytes) -> None:
        sent.append(message) if direction == "sent" else None

    async with Client(server, protocol_version=version, approve=approve, transcript=note) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"
        with pytest.raises(NotApproved, match="add was not called"):
            await client.call_tool("add", {"a": 10, "b": 2})
        with pytest.raises(NotApproved, match="does not list it"):
            await client.call_tool("hidden")
    assert asked == [("Add two numbers.", {"a": 1, "b": 2}), ("Add two numbers.", {"a": 10, "b": 2})]
    assert sum(b"tools/call" in message for message in sent) == 1


@pytest.mark.seed("S3-16", "S3-17", "S3-18", "S3-19")
@every_revision
async def test_what_a_tool_does_not_say_of_itself_is_taken_for_the_worse(version: str) -> None:
    worst = (False, True, False, True)  # read-only, destructive, idempotent, open to the world
    said: list[tuple[dict[str, bool] | None, tuple[bool, ...]]] = [
        (None, worst),
        ({"readOnlyHint": True}, (True, False, False, True)),
        ({"openWorldHint": False, "idempotentHint": True}, (False, True, True, False)),
        ({"destructiveHint": False}, (False, False, False, True)),
        ({"readOnlyHint": True, "destructiveHint": True}, (True, False, False, True)),
    ]
    server = Server("hints")
    for number, (annotations, _) in enumerate(said):
        server.add_tool(lambda: "done", name=f"t{number}", description="Do it.", annotations=annotations)
    asked: list[tuple[bool, ...]] = []

    def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        asked.append(tool.hints)
        return True

    async with Client(server, protocol_version=version, approve=approve) as client:
        for number in range(len(said)):
            await client.call_tool(f"t{number}")
        listed = (await client.request("tools/list"))["tools"]
    if version == "2024-11-05":  # which has no annotations
        said = [(None, worst)] * len(said)
    assert asked == [taken for _, taken in said]
    assert [tool.get("annotations") for tool in listed] == [given for given, _ in said], "nothing is added on the wire"


@every_revision
async def test_what_is_approved_is_what_the_server_offers_now(server: Server, version: str) -> None:
    described: list[str | None] = []

    def change(description: str) -> None:
        server.remove_tool("greet")
        server.add_tool(lambda name: name, name="greet", description=description)

    async def approve(tool: ToolDefinition, arguments: dict[str, Any]) -> bool:
        described.append(tool.description)
        if tool.description == "Changed.":
            change("Again.")
            await asyncio.sleep(0.01)
        return True

    async with Client(server, protocol_version=version, approve=approve) as client:
        await client.call_tool("greet", {"name": "a"})
        change("Changed.")
        await asyncio.sleep(0.01)
        with pytest.raises(NotApproved, match="changed while it was being approved"):
            await client.call_tool("greet", {"name": "a"})
    assert described == [None, "Changed."]


def call(body: str) -> WireCallResult:
    return read_result("tools/call", Raw(body.encode()), WireCallResult)


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
    result = call(body).to_result(wrapped=wrapped)
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
    with pytest.raises(BadResponse, match=r"^tools/call: ") as caught:
        call(body)
    assert [word in str(caught.value) for word in (words, "msgspec", "`")] == [True, False, False]


def test_pages() -> None:
    tools = '"tools":[{"name":"a","inputSchema":{"type":"object"},"new":1}]'
    expected = [ToolDefinition(name="a", input_schema={"type": "object"})]
    cursors = {"": None, ',"nextCursor":null': None, ',"nextCursor":""': "", ',"nextCursor":"x"': "x"}
    for cursor, found in cursors.items():
        page = read_page("tools/list", Raw(f"{{{tools}{cursor}}}".encode()), "tools", ToolDefinition)
        assert page == ListPage(expected, found)


@pytest.mark.parametrize("body", ["{}", '{"tools":{}}', '{"tools":[{}]}', '{"tools":[],"nextCursor":7}', "null"])
def test_pages_that_are_none(body: str) -> None:
    with pytest.raises(BadResponse, match=r"^tools/list: the server's answer does not fit"):
        read_page("tools/list", Raw(body.encode()), "tools", ToolDefinition)
