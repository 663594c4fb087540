"""Servers of the official SDK, and the reference server of everything."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import interop_official
import node_tools
import pytest
from scripted import brisk_client, served, until
from server_process import serving

import nodejs
from dovetail import Change, Client, ElicitRequest, EmbeddedResource, LogMessage, ServerError, Text, ToolError
from dovetail.client.transports.aiohttp import HttpClient
from dovetail.client.transports.base import ServerUrl
from dovetail.client.transports.http import HttpTransport

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

MODERN = "2026-07-28"


# It knows its port from its environment.
WITH_PORT = "import os, sys; *words, _, os.environ['PORT'] = sys.argv[1:]; os.execv(words[0], words)"


def everything(transport: str) -> list[str]:
    """The command of the official everything-server."""
    package = node_tools.TARGET / "node_modules" / "@modelcontextprotocol" / "server-everything"
    return [str(node_tools.node()), str(package / "dist" / "index.js"), transport]


NOTE = "demo://resource/dynamic/text/1"


@pytest.fixture(scope="module", params=["stdio", "streamableHttp", "sse"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    nodejs.demand()
    command = everything(request.param)
    if request.param == "stdio":
        yield command
        return
    with serving(["-c", WITH_PORT, *command], tmp_path_factory.mktemp("everything") / "log") as running:
        yield f"{running.origin}/{'sse' if request.param == 'sse' else 'mcp'}"


class User:
    """Answers what is asked, and notes the notifications."""

    def __init__(self) -> None:
        self.asked: list[ElicitRequest] = []
        self.logs: list[LogMessage] = []
        self.progress: list[Any] = []

    def fill_in(self, question: ElicitRequest) -> Any:
        self.asked.append(question)
        return {"name": "Ada", "check": True} if question.mode == "form" else True

    def connect(self, target: Any) -> Client:
        return brisk_client(
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
        await until(lambda: any("Roots updated" in str(log.data) for log in user.logs), 30)  # then it has all its tools
        await use_tools_of_everything(client, user)
        await use_questions(client, user)
        assert "plaintext" in ((await client.read_resource(NOTE))[0].text or "")
        (message,) = (await client.get_prompt("args-prompt", {"city": "Rome"})).messages
        assert message.content == Text("What's weather in Rome?")
        await receive_changes_of_everything(client, user)


async def use_tools_of_everything(client: Client, user: User) -> None:
    names = {tool.name for tool in await client.list_tools()}
    assert {"echo", "get-sum", "trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"} <= names
    assert (await client.call_tool("echo", {"message": "hi"})).data == "Echo: hi"
    refused = await client.call_tool("get-sum", {"a": "one"}, raise_on_error=False)
    assert refused.is_error
    assert "Input validation error" in refused.text
    weather = await client.call_tool("get-structured-content", {"location": "New York"})
    assert set(weather.data) == {"temperature", "conditions", "humidity"}
    content = (await client.call_tool("get-resource-reference", {"resourceType": "Blob", "resourceId": 1})).content
    assert any(isinstance(block, EmbeddedResource) for block in content)
    long = ("trigger-long-running-operation", {"duration": 0.2, "steps": 2})
    await client.call_tool(*long, progress_handler=lambda *report: user.progress.append(report))
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


async def receive_changes_of_everything(client: Client, user: User) -> None:
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


def answer(question: ElicitRequest) -> Any:
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
        transport = HttpTransport(HttpClient(ServerUrl.parse(f"{origin}/mcp"), {}))
        async with Client(transport, protocol_version=version, **options) as client:
            await transport.wait_for_stream()  # or a question aside would go nowhere
            yield client


@asynccontextmanager
async def over_sse(version: str, **options: Any) -> AsyncIterator[Client]:
    async with (
        served(interop_official.make().sse_app()) as origin,
        brisk_client(f"{origin}/sse", transport="sse", protocol_version=version, **options) as client,
    ):
        yield client


def over_stdio(version: str, **options: Any) -> Client:
    return Client([sys.executable, interop_official.__file__], protocol_version=version, **options)


@pytest.mark.parametrize(
    ("reach", "version"),
    [
        *((over_http, version) for version in WITH_FORMS),
        (over_sse, "2025-11-25"),
        pytest.param(over_stdio, MODERN, marks=pytest.mark.slow),
    ],
)
async def test_everything_that_a_server_of_the_sdk_offers(reach: Reach, version: str) -> None:
    logs: list[LogMessage] = []
    progress: list[Any] = []
    async with reach(version, **HANDLERS, log_handler=logs.append) as client:
        assert client.protocol_version == version
        assert {"add", "work", "fail", "interview"} <= {tool.name for tool in await client.list_tools()}
        for _ in range(2):
            result = await client.call_tool("interview", {"greeting": "Hello"})  # it asks four things
            assert result.text == "Hello Ada, 30, a countess, Fine, said 1., file:///x, file:///y"
        done = await client.call_tool("work", {"steps": 2}, progress_handler=lambda *report: progress.append(report))
        assert done.text == "done"
        assert progress == [(1, 2, "step 1"), (2, 2, "step 2")]
        assert any("worked" in str(log.data) for log in logs)
        with pytest.raises(ToolError, match="it can't be done"):
            await client.call_tool("fail")
        sums = await asyncio.gather(*(client.call_tool("add", {"a": n, "b": n}) for n in range(10)))
        assert [each.structured["result"] for each in sums] == [2 * n for n in range(10)]
        assert [resource.uri for resource in await client.list_resources()] == ["notes://all"]
        assert [each.uri_template for each in await client.list_resource_templates()] == ["notes://{name}/text"]
        assert (await client.read_resource("notes://shopping/text"))[0].text == "the note shopping"
        (message,) = (await client.get_prompt("review", {"language": "Perl"})).messages
        assert message.content.text == "Review this Perl program."
        completed = await client.complete(prompt="review", argument="language", value="p")
        assert list(completed.values) == ["python", "perl"]
        if version == MODERN:
            async with client.listen(tools=True, uris=["notes://all"]) as changes:
                await client.call_tool("announce")
                received = {await asyncio.wait_for(anext(changes), 20) for _ in range(2)}
                assert received == {Change("tools"), Change("updated", "notes://all")}


@pytest.mark.rule("TASK-54", "TASK-55")
@pytest.mark.parametrize("target", ["streamableHttp"], indirect=True)
async def test_a_task_of_the_everything_server(target: Any) -> None:
    """In the form of 2025-11-25, with a question."""

    def choose(question: ElicitRequest) -> str:
        assert list(question.fields) == ["interpretation"]
        return "snake"

    async with Client(target, tasks=True, elicitation_handler=choose) as client:
        task = await client.start_tool("simulate-research-query", {"topic": "python", "ambiguous": True})
        statuses = [update.status async for update in task]
        assert (statuses[0], statuses[-1], "input_required" in statuses) == ("working", "completed", True)
        assert "python (snake)" in (await task.wait()).text
