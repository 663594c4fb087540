"""Every JSON message of seed 003, on its server, at 2025-11-25."""

from pathlib import Path

import pytest
from servers.seeds.seed_003 import create_server, server

from dovetail import Annotations, Audio, EmbeddedResource, Image, ResourceContents, ResourceLink, Server, Text
from seeds.golden import JsonText, Opaque, same
from wire import Wire

REVISION = "2025-11-25"
CALL = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "get_weather", "arguments": {"location": "New York"}},
}
ANNOTATIONS = {"audience": ["user", "assistant"], "priority": 0.8, "lastModified": "2025-01-12T15:00:58Z"}


async def test_the_capabilities() -> None:
    async with Wire(server, REVISION) as wire:
        capabilities = wire.welcome["capabilities"]
    same(capabilities["tools"], {"listChanged": True})
    same(capabilities["resources"], {"subscribe": True, "listChanged": True})
    same(capabilities["prompts"], {"listChanged": True})


async def test_tools_list() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        following = await wire.ask("tools/list", {"cursor": answer["result"]["nextCursor"]})
    same(
        answer,
        {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {
                "tools": [
                    {
                        "name": "get_weather",
                        "title": "Weather Info",
                        "description": "Get current weather for a location",
                        "inputSchema": {
                            "type": "object",
                            "properties": {"location": {"type": "string"}},
                            "required": ["location"],
                        },
                        "outputSchema": {
                            "type": "object",
                            "properties": {"temperature": {"type": "number"}, "conditions": {"type": "string"}},
                            "required": ["temperature", "conditions"],
                        },
                        "annotations": {
                            "readOnlyHint": True,
                            "destructiveHint": False,
                            "idempotentHint": True,
                            "openWorldHint": True,
                        },
                    }
                ],
                "nextCursor": Opaque(str),
            },
        },
    )
    assert [tool["name"] for tool in following["tools"]] == ["forecast"]
    assert "nextCursor" not in following


async def test_an_unstructured_result() -> None:
    async with Wire(create_server(output_schema=False), REVISION) as wire:
        answer = await wire.exchange(CALL)
    result = {"content": [{"type": "text", "text": "Temperature: 72F, Partly cloudy"}], "isError": False}
    same(answer, {"jsonrpc": "2.0", "id": 2, "result": result})


async def test_a_structured_result() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(CALL)
    same(
        answer,
        {
            "jsonrpc": "2.0",
            "id": 2,
            "result": {
                "content": [{"type": "text", "text": JsonText('{"temperature": 22.5, "conditions": "Partly cloudy"}')}],
                "structuredContent": {"temperature": 22.5, "conditions": "Partly cloudy"},
                "isError": False,
            },
        },
    )


HINTS = Annotations(audience=["user", "assistant"], priority=0.9)
SHOWN_HINTS = {"audience": ["user", "assistant"], "priority": 0.9}


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (Text("..."), {"type": "text", "text": "..."}),
        (Image(b"pixels", "image/png"), {"type": "image", "data": "cGl4ZWxz", "mimeType": "image/png"}),
        (Audio(b"noise", "audio/wav"), {"type": "audio", "data": "bm9pc2U=", "mimeType": "audio/wav"}),
        (
            ResourceLink("file:///a.txt", "a.txt", mime_type="text/plain"),
            {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt", "mimeType": "text/plain"},
        ),
        (
            EmbeddedResource(ResourceContents("file:///a.txt", "text/plain", text="hello")),
            {"type": "resource", "resource": {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "hello"}},
        ),
        (Text("...", annotations=HINTS), {"type": "text", "text": "...", "annotations": SHOWN_HINTS}),
    ],
    ids=["text", "image", "audio", "link", "embedded", "annotated"],
)
async def test_content_types(block, shown) -> None:
    server = Server("content")
    server.add_tool(lambda: block, name="show")
    async with Wire(server, REVISION) as wire:
        result = await wire.ask("tools/call", {"name": "show"})
    same(result, {"content": [shown], "isError": False})


@pytest.mark.parametrize("name", ["tools", "resources", "prompts"])
async def test_changed_lists_are_announced(name: str) -> None:
    server = create_server()
    async with Wire(server, REVISION) as wire:
        if name == "tools":
            server.add_tool(lambda: "", name="another")
        elif name == "prompts":
            server.add_prompt(lambda: "", name="another")
        else:
            server.add_resource("file:///another", lambda: "", name="another")
        same(await wire.receive(), {"jsonrpc": "2.0", "method": f"notifications/{name}/list_changed"})


@pytest.mark.slow
async def test_files_that_come_to_a_folder_or_go_are_announced(tmp_path: Path) -> None:
    project = create_server()
    project.add_directory(tmp_path, uri="file:///project/docs")
    async with Wire(project, REVISION) as wire:
        for change in ((tmp_path / "new.md").touch, (tmp_path / "new.md").unlink):
            change()
            same(await wire.receive(), {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"})


async def test_resources_list() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 1, "method": "resources/list", "params": {}})
    same(
        answer,
        {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {
                "resources": [
                    {
                        "uri": "file:///project/src/main.rs",
                        "name": "main.rs",
                        "title": "Main File",
                        "description": "Primary entry point",
                        "mimeType": "text/x-rust",
                        "annotations": ANNOTATIONS,
                    }
                ],
                "nextCursor": Opaque(str),
            },
        },
    )


async def test_resources_read_text() -> None:
    uri = "file:///project/src/main.rs"
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 2, "method": "resources/read", "params": {"uri": uri}})
    contents = [{"uri": uri, "mimeType": "text/x-rust", "text": "fn main() { ... }"}]
    same(answer, {"jsonrpc": "2.0", "id": 2, "result": {"contents": contents}})


async def test_resources_read_binary() -> None:
    uri = "file:///image.png"
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 2, "method": "resources/read", "params": {"uri": uri}})
    contents = [{"uri": uri, "mimeType": "image/png", "blob": Opaque(str)}]
    same(answer, {"jsonrpc": "2.0", "id": 2, "result": {"contents": contents}})


async def test_resource_templates() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 3, "method": "resources/templates/list"})
    template = {
        "uriTemplate": "file:///{path}",
        "name": "Project Files",
        "mimeType": "application/octet-stream",
    }
    same(answer, {"jsonrpc": "2.0", "id": 3, "result": {"resourceTemplates": [template]}})


async def test_subscriptions() -> None:
    uri = "file:///config.json"
    async with Wire(server, REVISION) as wire:
        request = {"jsonrpc": "2.0", "id": 4, "method": "resources/subscribe", "params": {"uri": uri}}
        same(await wire.exchange(request), {"jsonrpc": "2.0", "id": 4, "result": {}})
        server.notify_resource_updated(uri)
        same(
            await wire.receive(),
            {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}},
        )


async def test_prompts_list() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 1, "method": "prompts/list", "params": {}})
    prompt = {
        "name": "code_review",
        "title": "Request Code Review",
        "description": "Asks the LLM to analyze code quality",
        "arguments": [{"name": "code", "description": "The code to review", "required": True}],
    }
    same(answer, {"jsonrpc": "2.0", "id": 1, "result": {"prompts": [prompt], "nextCursor": Opaque(str)}})


async def test_prompts_get() -> None:
    request = {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "prompts/get",
        "params": {"name": "code_review", "arguments": {"code": "def hello(): print('world')"}},
    }
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(request)
    text = "Please review this Python code:\ndef hello():\n    print('world')"
    messages = [{"role": "user", "content": {"type": "text", "text": text}}]
    same(answer, {"jsonrpc": "2.0", "id": 2, "result": {"description": "Code review prompt", "messages": messages}})
