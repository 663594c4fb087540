"""Official servers, FastMCP and the reference server of everything."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import interop_official
import node_tools
import pytest
from benchmarks import contenders
from benchmarks.case import CannotMeasure
from served_http import free_port, served, until

import nodejs
from dovetail import (
    Change,
    Client,
    ElicitQuestion,
    EmbeddedResource,
    Image,
    LogMessage,
    ResourceContents,
    ResourceLink,
    ServerError,
    Text,
    ToolError,
)
from dovetail.client.transports.aiohttp import HttpRequests
from dovetail.client.transports.http import HttpTransport
from dovetail.client.transports.url import ServerUrl

pytestmark = [
    pytest.mark.usefixtures("brisk"),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = "2026-07-28"
HERE = Path(__file__).parent
HANDSHAKE = "2025-11-25"


START_SECONDS, STOP_SECONDS = 60, 10
OWN_GROUP = 0 if os.name == "posix" else None  # signals to us are not for it


def everything(transport: str) -> list[str]:
    """The command of the official everything-server."""
    package = node_tools.TARGET / "node_modules" / "@modelcontextprotocol" / "server-everything"
    return [str(node_tools.node()), str(package / "dist" / "index.js"), transport]


@contextmanager
def listening(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """The origin of a server; `{port}` in its command or environment is the port it has to listen on."""
    port = free_port()
    filled = [part.replace("{port}", str(port)) for part in command]
    added = {name: value.replace("{port}", str(port)) for name, value in (env or {}).items()}
    with log.open("w") as output:
        process = subprocess.Popen(
            filled,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **added},
            process_group=OWN_GROUP,
        )
    try:
        _wait_for(process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        _stop(process)


def _wait_for(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"the server does not listen:\n{log.read_text()[-2000:]}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Maker(NamedTuple):
    """Who made the server, and what is known of it."""

    program: str
    contender: str | None  # whose environment it needs
    asks: tuple[str, ...]  # the revisions in which it can ask
    announces: tuple[str, ...]  # and those in which it tells of changes
    caches: bool
    marks_wrapping: bool

    def command(self) -> list[str]:
        return [self._python(), str(HERE / self.program)]

    def _python(self) -> str:
        if self.contender is None:
            return sys.executable
        try:
            return str(contenders.python_of(self.contender))
        except CannotMeasure as missing:
            if os.environ.get("CI") == "true":
                pytest.fail(f"CI: {missing}")
            pytest.skip(f"! {missing}")


OFFICIAL = Maker("interop_official.py", None, (HANDSHAKE, MODERN), (MODERN,), False, False)

FASTMCP = Maker("interop_fastmcp.py", "fastmcp", (HANDSHAKE,), (), True, True)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((OFFICIAL, "stdio"), marks=pytest.mark.slow, id="official over stdio"),
        pytest.param((OFFICIAL, "http"), marks=pytest.mark.slow, id="official over http"),
        pytest.param((FASTMCP, "stdio"), marks=pytest.mark.soak, id="fastmcp over stdio"),
        pytest.param((FASTMCP, "http"), marks=pytest.mark.soak, id="fastmcp over http"),
    ],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Maker, Any]]:
    maker, way = request.param
    if way == "stdio":
        yield maker, maker.command()
        return
    log = tmp_path_factory.mktemp("interop") / "log"
    with listening([*maker.command(), "--port", "{port}"], log) as origin:
        yield maker, f"{origin}/mcp"


@pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
async def test_servers_in_python(server: tuple[Maker, Any], revision: str) -> None:
    maker, target = server
    logs: list[LogMessage] = []
    asked: list[ElicitQuestion] = []

    def introduce(question: ElicitQuestion) -> str:
        asked.append(question)
        return "Ada"

    async with Client(
        target,
        protocol_version=None if revision == MODERN else revision,
        timeout=60,
        elicitation_handler=introduce,
        log_handler=logs.append,
    ) as client:
        assert client.protocol_version == revision
        await use_tools(client, maker, logs)
        if revision in maker.asks:
            assert "Hello, Ada" in (await client.call_tool("introduce")).text
            assert [question.message for question in asked] == ["Who are you?"]
        await use_resources(client, cached=maker.caches and revision == MODERN)
        await use_prompts(client)
        if revision in maker.announces:
            await hear_changes(client)


async def use_tools(client: Client, maker: Maker, logs: list[LogMessage]) -> None:
    progress: list[Any] = []
    assert {"add", "work", "fail", "introduce"} <= {tool.name for tool in await client.list_tools()}
    added = await client.call_tool("add", {"a": 1, "b": 2})
    assert added.structured == {"result": 3}
    assert added.data == (3 if maker.marks_wrapping else {"result": 3})
    done = await client.call_tool("work", {"steps": 2}, progress_handler=lambda *told: progress.append(told))
    assert done.text == "done"
    assert progress == [(1, 2, "step 1"), (2, 2, "step 2")]
    assert any("worked" in str(log.data) for log in logs)
    with pytest.raises(ToolError, match="it can't be done"):
        await client.call_tool("fail")
    assert (await client.call_tool("add", {"a": "one"}, raise_on_error=False)).is_error
    sums = await asyncio.gather(*(client.call_tool("add", {"a": n, "b": n}) for n in range(10)))
    assert [each.structured["result"] for each in sums] == [2 * n for n in range(10)]


async def use_resources(client: Client, *, cached: bool) -> None:
    assert [resource.uri for resource in await client.list_resources()] == ["notes://all"]
    assert [each.uri_template for each in await client.list_resource_templates()] == ["notes://{name}/text"]
    first, second, third = [
        (await client.read_resource("notes://all", fresh=fresh))[0].text for fresh in (False, False, True)
    ]
    assert (first == second) is cached
    assert first != third
    assert (await client.read_resource("notes://shopping/text"))[0].text == "the note shopping"


async def use_prompts(client: Client) -> None:
    assert [prompt.name for prompt in await client.list_prompts()] == ["review"]
    (message,) = (await client.get_prompt("review", {"language": "Perl"})).messages
    assert message.content.text == "Review this Perl program."  # type: ignore[union-attr]
    found = await client.complete(prompt="review", argument="language", value="p")
    assert list(found.values) == ["python", "perl"]


async def hear_changes(client: Client) -> None:
    async with client.listen(tools=True, uris=["notes://all"]) as changes:
        await client.call_tool("announce")
        heard = {await asyncio.wait_for(anext(changes), 20) for _ in range(2)}
        assert heard == {Change("tools"), Change("updated", "notes://all")}


NOTE = "demo://resource/dynamic/text/1"
BLOB = "demo://resource/dynamic/blob/1"


@pytest.fixture(scope="module", params=["stdio", "streamableHttp", "sse"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    nodejs.demand()
    command = everything(request.param)
    if request.param == "stdio":
        yield command
        return
    log: Path = tmp_path_factory.mktemp("everything") / "log"
    with listening(command, log, {"PORT": "{port}"}) as origin:
        yield f"{origin}/{'sse' if request.param == 'sse' else 'mcp'}"


class User:
    """Answers what is asked, and notes what is heard."""

    def __init__(self) -> None:
        self.asked: list[ElicitQuestion] = []
        self.logs: list[LogMessage] = []
        self.progress: list[Any] = []

    def fill_in(self, question: ElicitQuestion) -> Any:
        self.asked.append(question)
        return {"name": "Ada", "check": True} if question.mode == "form" else True

    def connect(self, target: Any) -> Client:
        return Client(
            target,
            timeout=30,
            elicitation_handler=self.fill_in,
            sampling_handler=lambda request: f"{len(request.messages)} read",
            roots=[{"uri": "file:///srv/notes", "name": "Notes"}],
            log_handler=self.logs.append,
        )


async def test_the_everything_server(target: Any) -> None:
    user = User()
    async with user.connect(target) as client:
        assert client.protocol_version == "2025-11-25"
        assert client.server_info is not None
        assert client.server_info.name == "mcp-servers/everything"
        await until(lambda: any("Roots updated" in str(log.data) for log in user.logs), 30)  # then it has all its tools
        await use_tools_of_everything(client, user)
        await use_questions(client, user)
        await use_resources_of_everything(client)
        await use_prompts_of_everything(client)
        await hear_changes_of_everything(client, user)


async def use_tools_of_everything(client: Client, user: User) -> None:
    names = {tool.name for tool in await client.list_tools()}
    assert {"echo", "get-sum", "trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"} <= names
    assert (await client.call_tool("echo", {"message": "hi"})).data == "Echo: hi"
    refused = await client.call_tool("get-sum", {"a": "one"}, raise_on_error=False)
    assert refused.is_error
    assert "Input validation error" in refused.text
    weather = await client.call_tool("get-structured-content", {"location": "New York"})
    assert set(weather.data) == {"temperature", "conditions", "humidity"}
    kinds = {
        "get-tiny-image": ({}, Image),
        "get-resource-links": ({"count": 2}, ResourceLink),
        "get-resource-reference": ({"resourceType": "Blob", "resourceId": 1}, EmbeddedResource),
    }
    for name, (arguments, kind) in kinds.items():
        content = (await client.call_tool(name, arguments)).content
        assert any(isinstance(block, kind) for block in content)
    long = ("trigger-long-running-operation", {"duration": 0.2, "steps": 2})
    await client.call_tool(*long, progress_handler=lambda *told: user.progress.append(told))
    assert user.progress == [(1, 2, None), (2, 2, None)]


async def use_questions(client: Client, user: User) -> None:
    assert "1 read" in (await client.call_tool("trigger-sampling-request", {"prompt": "Hello"})).text
    answer = (await client.call_tool("trigger-elicitation-request")).text
    assert "Ada" in answer
    assert '"integer": 42' in answer  # a default of the form
    page = {"url": "https://example.com/sign-in", "errorPath": True}
    with pytest.raises(ServerError) as needed:
        await client.call_tool("trigger-url-elicitation", page)
    assert needed.value.code == -32042
    assert needed.value.data["elicitations"][0]["url"] == "https://modelcontextprotocol.io"
    await client.call_tool("trigger-url-elicitation", page)
    assert [(question.mode, question.url) for question in user.asked] == [("form", None), ("url", page["url"])]
    assert "file:///srv/notes" in (await client.call_tool("get-roots-list")).text


async def use_resources_of_everything(client: Client) -> None:
    assert len(await client.list_resources()) >= 5
    assert {template.uri_template for template in await client.list_resource_templates()} == {
        "demo://resource/dynamic/text/{resourceId}",
        "demo://resource/dynamic/blob/{resourceId}",
    }
    text, blob = (await client.read_resource(NOTE))[0], (await client.read_resource(BLOB))[0]
    assert isinstance(text, ResourceContents)
    assert "plaintext" in (text.text or "")
    assert b"base64 blob" in (blob.blob or b"")


async def use_prompts_of_everything(client: Client) -> None:
    assert {"simple-prompt", "args-prompt", "completable-prompt"} <= {each.name for each in await client.list_prompts()}
    (message,) = (await client.get_prompt("args-prompt", {"city": "Rome"})).messages
    assert message.content == Text("What's weather in Rome?")
    of = "completable-prompt"
    assert (await client.complete(prompt=of, argument="department", value="E")).values == ["Engineering"]
    names = await client.complete(prompt=of, argument="name", context={"department": "Engineering"})
    assert list(names.values) == ["Alice", "Bob", "Charlie"]


async def hear_changes_of_everything(client: Client, user: User) -> None:
    await client.set_log_level("debug")
    async with client.listen(uris=[NOTE]) as changes:
        assert changes.honoured.resource_subscriptions == [NOTE]
        await client.call_tool("toggle-subscriber-updates")
        assert await asyncio.wait_for(anext(changes), 30) == Change("updated", NOTE)
    await client.call_tool("toggle-subscriber-updates")
    assert any("Subscribe" in str(log.data) for log in user.logs)


WITH_FORMS = ("2025-06-18", "2025-11-25", "2026-07-28")
ANSWERS = {"What are you called?": {"name": "Ada"}, "Who are you?": "a countess"}
Reach = Callable[..., AbstractAsyncContextManager[Client]]


def answer(question: ElicitQuestion) -> Any:
    return ANSWERS[question.message] if question.mode == "form" else True


HANDLERS: dict[str, Any] = {
    "elicitation_handler": answer,
    "sampling_handler": lambda request: f"Fine, said {len(request.messages)}.",
    "roots": ["/x", {"uri": "file:///y", "name": "Y"}],
    "timeout": 10,
}


@asynccontextmanager
async def over_http(version: str, **options: Any) -> AsyncIterator[Client]:
    async with served(interop_official.make().streamable_http_app()) as origin:
        transport = HttpTransport(HttpRequests(ServerUrl.of(f"{origin}/mcp"), {}))
        async with Client(transport, protocol_version=version, **options) as client:
            await transport.attend()  # or a question aside would go nowhere
            yield client


@asynccontextmanager
async def over_sse(version: str, **options: Any) -> AsyncIterator[Client]:
    async with (
        served(interop_official.make().sse_app()) as origin,
        Client(f"{origin}/sse", transport="sse", protocol_version=version, **options) as client,
    ):
        yield client


@asynccontextmanager
async def over_stdio(version: str, **options: Any) -> AsyncIterator[Client]:
    command = [sys.executable, str(HERE / "interop_official.py")]
    async with Client(command, protocol_version=version, **options) as client:
        yield client


both_eras_everywhere = pytest.mark.parametrize(
    ("reach", "version"),
    [
        *((over_http, version) for version in WITH_FORMS),
        (over_sse, "2025-11-25"),
        pytest.param(over_stdio, MODERN, marks=pytest.mark.slow),
    ],
)


@both_eras_everywhere
async def test_a_tool_that_asks_four_things(reach: Reach, version: str) -> None:
    async with reach(version, **HANDLERS) as client:
        for _ in range(2):
            result = await client.call_tool("interview", {"greeting": "Hello"})
            assert result.text == "Hello Ada, 30, a countess, Fine, said 1., file:///x, file:///y"
