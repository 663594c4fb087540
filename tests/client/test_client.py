"""`Client` against a server in process, in every revision, and the programs of docs/client.md."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from client_stages import ScriptedLink, result
from sign_in_stage import Person, notes
from small_server import every_revision, handshake_only, make_server, modern_only, revision_of

from documented import PROGRAMS, load
from dovetail import Client
from dovetail.client.oauth import OAuth
from dovetail.errors import ConnectionLost, ServerError, SetupError
from dovetail.protocol import revisions
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
async def test_progress(client: Client) -> None:
    seen: list[tuple[float, float | None, str | None]] = []
    await client.call_tool("work", {"steps": 3}, progress_handler=lambda *told: seen.append(told))
    has_message = revision_of(client).progress_message
    assert seen == [(float(n), 3.0, f"step {n}" if has_message else None) for n in (1, 2, 3)]


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
