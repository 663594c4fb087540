"""Every JSON message of seed 002, on its server, at 2024-11-05."""

from pathlib import Path

import pytest
from servers.seeds.seed_002 import create_server, server

from seeds.golden import Opaque, same
from wire import Wire

REVISION = "2024-11-05"
MAIN_RS = {
    "uri": "file:///project/src/main.rs",
    "name": "main.rs",
    "description": "Rust entry point",
    "mimeType": "text/x-rust",
}
CAPABILITIES = {
    "logging": {},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "tools": {"listChanged": True},
}


async def test_initialization() -> None:
    async with Wire(server) as wire:
        answer = await wire.exchange(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2024-11-05",
                    "capabilities": {"roots": {"listChanged": True}, "sampling": {}},
                    "clientInfo": {"name": "ExampleClient", "version": "1.0.0"},
                },
            }
        )
        same(
            answer,
            {
                "jsonrpc": "2.0",
                "id": 1,
                "result": {
                    "protocolVersion": "2024-11-05",
                    "capabilities": CAPABILITIES,
                    "serverInfo": {"name": "ExampleServer", "version": "1.0.0"},
                },
            },
        )
        wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await wire.quiet()


async def test_prompts_get() -> None:
    request = {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "prompts/get",
        "params": {"name": "code_review", "arguments": {"code": "def hello():\n    print('world')"}},
    }
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(request)
    (message,) = answer["result"]["messages"]
    assert message["role"] == "user"
    assert "def hello():\n    print('world')" in message["content"]["text"]


async def test_prompts_list() -> None:
    async with Wire(server, REVISION) as wire:
        (prompt,) = (await wire.ask("prompts/list"))["prompts"]
    same(
        prompt,
        {
            "name": "code_review",
            "description": "Analyze code quality and suggest improvements",
            "arguments": [{"name": "code", "description": "Python code to review", "required": True}],
        },
    )


async def test_a_changed_prompt_list_is_announced() -> None:
    async with Wire(server, REVISION) as wire:
        server.add_prompt(lambda: "hello", name="another")
        try:
            same(await wire.receive(), {"jsonrpc": "2.0", "method": "notifications/prompts/list_changed"})
        finally:
            server.remove_prompt("another")


async def test_resources_list() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 1, "method": "resources/list"})
    same(answer, {"jsonrpc": "2.0", "id": 1, "result": {"resources": [MAIN_RS]}})


async def test_resources_read() -> None:
    request = {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "resources/read",
        "params": {"uri": "file:///project/src/main.rs"},
    }
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(request)
    same(
        answer,
        {
            "jsonrpc": "2.0",
            "id": 2,
            "result": {
                "contents": [
                    {
                        "uri": "file:///project/src/main.rs",
                        "mimeType": "text/x-rust",
                        "text": 'fn main() {\n    println!("Hello world!");\n}',
                    }
                ]
            },
        },
    )


async def test_resource_subscriptions() -> None:
    uri = "file:///project/src/main.rs"
    async with Wire(server, REVISION) as wire:
        request = {"jsonrpc": "2.0", "id": 4, "method": "resources/subscribe", "params": {"uri": uri}}
        same(await wire.exchange(request), {"jsonrpc": "2.0", "id": 4, "result": {}})
        server.notify_resource_updated(uri)
        same(
            await wire.receive(),
            {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}},
        )
        assert await wire.ask("resources/unsubscribe", {"uri": uri}) == {}
        server.notify_resource_updated(uri)
        await wire.quiet()


async def test_a_changed_resource_list_is_announced() -> None:
    async with Wire(server, REVISION) as wire:
        server.add_resource("file:///another", lambda: "", name="another")
        try:
            same(await wire.receive(), {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"})
        finally:
            server.remove_resource("file:///another")


@pytest.mark.slow
async def test_a_file_that_comes_to_a_folder_is_announced(tmp_path: Path) -> None:
    project = create_server()
    project.add_directory(tmp_path, uri="file:///project/docs")
    async with Wire(project, REVISION) as wire:
        (tmp_path / "new.md").write_text("# New")
        same(await wire.receive(), {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"})
        resources = (await wire.ask("resources/list"))["resources"]
    assert all({"uri", "name", "mimeType"} <= each.keys() for each in resources)
    assert resources[-1]["uri"] == "file:///project/docs/new.md"


async def test_every_listed_resource_has_a_type() -> None:
    async with Wire(create_server(page_size=1), REVISION) as wire:
        first = await wire.ask("resources/list")
        (readme,) = (await wire.ask("resources/list", {"cursor": first["nextCursor"]}))["resources"]
    assert readme["mimeType"] == "text/markdown"


async def test_partial_file_paths_are_completed(tmp_path: Path) -> None:
    for name in ("main.rs", "mod.rs", "lib.rs"):
        (tmp_path / name).write_text("")
    project = create_server()
    project.add_directory(tmp_path, uri="file:///project/src/bin")
    params = {
        "ref": {"type": "ref/resource", "uri": "file:///project/src/bin/{+path}"},
        "argument": {"name": "path", "value": "m"},
    }
    async with Wire(project, REVISION) as wire:
        completion = {"values": ["main.rs", "mod.rs"], "total": 2, "hasMore": False}
        same(await wire.ask("completion/complete", params), {"completion": completion})


async def test_resource_templates_are_served() -> None:
    async with Wire(server, REVISION) as wire:
        assert await wire.ask("resources/templates/list") == {"resourceTemplates": []}


async def test_tools_list() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    same(
        answer,
        {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {
                "tools": [
                    {
                        "name": "get_weather",
                        "description": "Fetch current weather by city name or zip code",
                        "inputSchema": {
                            "type": "object",
                            "properties": {"location": {"type": "string", "description": "City name or zip code"}},
                            "required": ["location"],
                        },
                    }
                ]
            },
        },
    )


def weather_call(location: str) -> dict:
    return {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": "get_weather", "arguments": {"location": location}},
    }


async def test_tools_call() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(weather_call("New York"))
    text = "Current weather in New York: 72°F, Partly cloudy"
    result = {"content": [{"type": "text", "text": text}], "isError": False}
    same(answer, {"jsonrpc": "2.0", "id": 2, "result": result})


async def test_a_failure_of_the_tool_is_a_result() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(weather_call("everywhere"))
    result = {"content": [{"type": "text", "text": "API request failed: rate limit exceeded"}], "isError": True}
    same(answer, {"jsonrpc": "2.0", "id": 2, "result": result})


async def test_a_changed_tool_list_is_announced() -> None:
    async with Wire(server, REVISION) as wire:
        server.add_tool(lambda: "", name="another")
        try:
            same(await wire.receive(), {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        finally:
            server.remove_tool("another")


async def test_logging() -> None:
    async with Wire(server, REVISION) as wire:
        request = {"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": {"level": "info"}}
        same(await wire.exchange(request), {"jsonrpc": "2.0", "id": 1, "result": {}})
        wire.send(weather_call("Atlantis"))
        same(
            await wire.receive(),
            {
                "jsonrpc": "2.0",
                "method": "notifications/message",
                "params": {
                    "level": "error",
                    "logger": "database",
                    "data": {"error": "Connection failed", "details": {"host": "localhost", "port": 5432}},
                },
            },
        )
        assert (await wire.receive())["id"] == 2


async def test_completion() -> None:
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "completion/complete",
        "params": {
            "ref": {"type": "ref/prompt", "name": "code_review"},
            "argument": {"name": "language", "value": "py"},
        },
    }
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(request)
    completion = {"values": ["python", "pytorch", "pyside"], "total": 10, "hasMore": True}
    same(answer, {"jsonrpc": "2.0", "id": 1, "result": {"completion": completion}})


async def test_pagination() -> None:
    async with Wire(create_server(page_size=1), REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 10, "method": "resources/list"})
        same(answer, {"jsonrpc": "2.0", "id": 10, "result": {"resources": [MAIN_RS], "nextCursor": Opaque(str)}})
        rest = await wire.ask("resources/list", {"cursor": answer["result"]["nextCursor"]})
    assert [resource["name"] for resource in rest["resources"]] == ["README.md"]
    assert "nextCursor" not in rest
