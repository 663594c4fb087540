"""The client and the official everything-server, over stdio, Streamable HTTP and HTTP+SSE."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import interop_stage
import pytest
from served_http import until

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
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

NOTE = "demo://resource/dynamic/text/1"
BLOB = "demo://resource/dynamic/blob/1"


@pytest.fixture(scope="module", params=["stdio", "streamableHttp", "sse"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    nodejs.demand()
    command = interop_stage.everything(request.param)
    if request.param == "stdio":
        yield command
        return
    log: Path = tmp_path_factory.mktemp("everything") / "log"
    with interop_stage.listening(command, log, {"PORT": "{port}"}) as origin:
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


async def test_everything(target: Any) -> None:
    user = User()
    async with user.connect(target) as client:
        assert client.protocol_version == "2025-11-25"
        assert client.server_info is not None
        assert client.server_info.name == "mcp-servers/everything"
        await until(lambda: any("Roots updated" in str(log.data) for log in user.logs), 30)  # then it has all its tools
        await use_tools(client, user)
        await use_questions(client, user)
        await use_resources(client)
        await use_prompts(client)
        await hear_changes(client, user)


async def use_tools(client: Client, user: User) -> None:
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


async def use_resources(client: Client) -> None:
    assert len(await client.list_resources()) >= 5
    assert {template.uri_template for template in await client.list_resource_templates()} == {
        "demo://resource/dynamic/text/{resourceId}",
        "demo://resource/dynamic/blob/{resourceId}",
    }
    text, blob = (await client.read_resource(NOTE))[0], (await client.read_resource(BLOB))[0]
    assert isinstance(text, ResourceContents)
    assert "plaintext" in (text.text or "")
    assert b"base64 blob" in (blob.blob or b"")


async def use_prompts(client: Client) -> None:
    assert {"simple-prompt", "args-prompt", "completable-prompt"} <= {each.name for each in await client.list_prompts()}
    (message,) = (await client.get_prompt("args-prompt", {"city": "Rome"})).messages
    assert message.content == Text("What's weather in Rome?")
    of = "completable-prompt"
    assert (await client.complete(prompt=of, argument="department", value="E")).values == ["Engineering"]
    names = await client.complete(prompt=of, argument="name", context={"department": "Engineering"})
    assert list(names.values) == ["Alice", "Bob", "Charlie"]


async def hear_changes(client: Client, user: User) -> None:
    await client.set_log_level("debug")
    async with client.listen(uris=[NOTE]) as changes:
        assert changes.honoured.resource_subscriptions == [NOTE]
        await client.call_tool("toggle-subscriber-updates")
        assert await asyncio.wait_for(anext(changes), 30) == Change("updated", NOTE)
    await client.call_tool("toggle-subscriber-updates")
    assert any("Subscribe" in str(log.data) for log in user.logs)
