"""Every JSON message of seed 003, on its server, at 2025-11-25."""

import json
from typing import Any

import msgspec
import pytest
from servers.seeds.seed_003 import create_server, server

from dovetail import (
    Annotations,
    Audio,
    Client,
    EmbeddedResource,
    Image,
    Message,
    NotApproved,
    ResourceContents,
    ResourceLink,
    Server,
    SetupError,
    Text,
    ToolAnnotations,
)
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


@pytest.mark.seed("S3-01", "S3-02", "S3-29", "S3-43")
async def test_the_capabilities() -> None:
    async with Wire(server, REVISION) as wire:
        capabilities = wire.welcome["capabilities"]
    assert wire.welcome["protocolVersion"] == "2025-11-25"
    same(capabilities["tools"], {"listChanged": True})
    same(capabilities["resources"], {"subscribe": True, "listChanged": True})
    same(capabilities["prompts"], {"listChanged": True})


@pytest.mark.seed("S3-04", "S3-05", "S3-10", "S3-13", "S3-14")
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


@pytest.mark.seed("S3-06", "S3-07")
async def test_an_unstructured_result() -> None:
    async with Wire(create_server(output_schema=False), REVISION) as wire:
        answer = await wire.exchange(CALL)
    result = {"content": [{"type": "text", "text": "Temperature: 72F, Partly cloudy"}], "isError": False}
    same(answer, {"jsonrpc": "2.0", "id": 2, "result": result})


@pytest.mark.seed("S3-06", "S3-08", "S3-13")
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


@pytest.mark.seed("S3-20", "S3-21", "S3-22", "S3-23", "S3-24", "S3-25")
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
    ],
    ids=["text", "image", "audio", "link", "embedded"],
)
async def test_content_types(block, shown) -> None:
    server = Server("content")
    server.add_tool(lambda: block, name="show")
    server.add_tool(lambda: msgspec.structs.replace(block, annotations=HINTS), name="show_annotated")
    async with Wire(server, REVISION) as wire:
        result = await wire.ask("tools/call", {"name": "show"})
        annotated = await wire.ask("tools/call", {"name": "show_annotated"})
    same(result, {"content": [shown], "isError": False})
    same(annotated, {"content": [{**shown, "annotations": SHOWN_HINTS}], "isError": False})


# ── tools, in words ──


@pytest.mark.seed("S3-03", "S3-14")
async def test_a_human_is_asked_before_each_call_whatever_the_hints_say() -> None:
    asked: list[str] = []

    def human(tool: Any, arguments: dict[str, Any]) -> bool:
        assert tool.annotations.read_only_hint is True  # so the server says
        asked.append(tool.name)
        return False

    async with Client(server, protocol_version=REVISION, approve=human) as client:
        with pytest.raises(NotApproved):
            await client.call_tool("get_weather", {"location": "New York"})
    assert asked == ["get_weather"]


@pytest.mark.seed("S3-09")
@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 128])
async def test_names_of_tools(name: str) -> None:
    named = Server("names")
    named.add_tool(lambda: "", name=name)
    with pytest.raises(SetupError, match="already"):
        named.add_tool(lambda: "", name=name)
    for wrong in (f"{name} b", f"{name}/", "x" * 129, ""):
        with pytest.raises(SetupError, match="name="):
            named.add_tool(lambda: "", name=wrong)
    async with Wire(named, REVISION) as wire:
        assert [tool["name"] for tool in (await wire.ask("tools/list"))["tools"]] == [name]


@pytest.mark.seed("S3-10", "S3-11", "S3-12", "S3-13", "S3-14", "S3-15", "S3-16", "S3-18")
async def test_only_a_name_and_a_schema_are_needed() -> None:
    least = Server("least")
    icon = {"src": "https://example.com/icon.png", "mimeType": "image/png", "sizes": ["48x48"]}
    least.add_tool(lambda: "", name="bare")
    least.add_tool(lambda: "", name="drawn", icons=[icon])
    async with Wire(least, REVISION) as wire:
        bare, drawn = (await wire.ask("tools/list"))["tools"]
    async with Client(least, protocol_version=REVISION) as client:
        read = (await client.list_tools())[0].annotations or ToolAnnotations()
    assert bare.keys() == {"name", "inputSchema"}
    assert bare["inputSchema"]["type"] == "object"
    same(drawn["icons"], [icon])
    assert not read.read_only_hint  # no default is sent, and what is not said is not promised
    assert not read.idempotent_hint


@pytest.mark.seed("S3-12")
async def test_a_schema_without_a_dialect_is_2020_12() -> None:
    schema = {
        "type": "object",
        "properties": {
            "point": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}], "items": False}
        },
        "dependentRequired": {"unit": ["point"]},
        "unevaluatedProperties": {"type": "string"},
    }
    drawing = Server("drawing")
    drawing.add_tool(lambda **arguments: "drawn", name="draw", input_schema=schema)
    async with Wire(drawing, REVISION) as wire:
        (tool,) = (await wire.ask("tools/list"))["tools"]
        assert tool["inputSchema"] == schema
        for arguments in ({"point": [1, 2, 3]}, {"point": ["x"]}, {"unit": "mm"}, {"colour": 5}):
            refused = await wire.ask("tools/call", {"name": "draw", "arguments": arguments})
            assert refused["isError"] is True, arguments
        drawn = await wire.ask("tools/call", {"name": "draw", "arguments": {"point": [1, 2], "unit": "mm"}})
        assert drawn["isError"] is False


@pytest.mark.seed("S3-26")
@pytest.mark.parametrize(
    "params",
    [{"name": "nothing"}, {}, {"name": 5}, {"name": "get_weather", "arguments": []}, {"arguments": {}}],
    ids=["unknown tool", "empty", "name", "arguments", "no name"],
)
async def test_unknown_tools_and_malformed_requests_are_protocol_errors(params: dict[str, Any]) -> None:
    async with Wire(server, REVISION) as wire:
        assert (await wire.refusal("tools/call", params))["code"] == -32602


@pytest.mark.seed("S3-27")
async def test_a_model_can_correct_itself_after_an_error_in_a_result() -> None:
    async with Wire(server, REVISION) as wire:
        wrong = await wire.ask("tools/call", {"name": "get_weather", "arguments": {"city": "New York"}})
        assert wrong["isError"] is True
        (told,) = wrong["content"]
        assert "location: required, but missing" in told["text"]
        right = await wire.ask("tools/call", {"name": "get_weather", "arguments": {"location": "New York"}})
        assert right["isError"] is False


@pytest.mark.seed("S3-28", "S3-37")
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


@pytest.mark.seed("S3-31", "S3-38")
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


@pytest.mark.seed("S3-32", "S3-40")
async def test_resources_read_text() -> None:
    uri = "file:///project/src/main.rs"
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 2, "method": "resources/read", "params": {"uri": uri}})
    contents = [{"uri": uri, "mimeType": "text/x-rust", "text": "fn main() { ... }"}]
    same(answer, {"jsonrpc": "2.0", "id": 2, "result": {"contents": contents}})


@pytest.mark.seed("S3-33")
async def test_resources_read_binary() -> None:
    uri = "file:///image.png"
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 2, "method": "resources/read", "params": {"uri": uri}})
    contents = [{"uri": uri, "mimeType": "image/png", "blob": Opaque(str)}]
    same(answer, {"jsonrpc": "2.0", "id": 2, "result": {"contents": contents}})


@pytest.mark.seed("S3-34")
async def test_resource_templates() -> None:
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange({"jsonrpc": "2.0", "id": 3, "method": "resources/templates/list"})
    template = {"uriTemplate": "file:///{path}", "name": "Project Files", "mimeType": "application/octet-stream"}
    same(answer, {"jsonrpc": "2.0", "id": 3, "result": {"resourceTemplates": [template]}})


@pytest.mark.seed("S3-35", "S3-36")
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


# ── resources, in words ──


@pytest.mark.seed("S3-30", "S3-44")
async def test_nothing_is_read_or_prompted_unless_the_host_wants_it() -> None:
    sent: list[str] = []

    def note(direction: str, message: bytes) -> None:
        if direction == "sent":
            sent.append(json.loads(message)["method"])

    async with Client(server, protocol_version=REVISION, transcript=note) as client:
        await client.call_tool("forecast")
        assert not [method for method in sent if method.startswith(("resources/", "prompts/"))]
        chosen = (await client.list_resources())[0]
        (contents,) = await client.read_resource(chosen.uri)
        command = (await client.list_prompts())[0]
        (message,) = (await client.get_prompt(command.name, {"code": "x = 1"})).messages
    assert contents.text == "fn main() { ... }"
    assert message.content == Text("Please review this Python code:\nx = 1")
    assert [sent.count(method) for method in ("resources/read", "prompts/get")] == [1, 1]


@pytest.mark.seed("S3-31", "S3-45")
@pytest.mark.parametrize(
    ("kind", "names"), [("resources", ["main.rs", "config", "image"]), ("prompts", ["code_review", "second_page"])]
)
async def test_the_pages_of_a_list_follow_one_another(kind: str, names: list[str]) -> None:
    found: list[str] = []
    params: dict[str, str] = {}
    async with Wire(server, REVISION) as wire:
        while len(found) < len(names):
            page = await wire.ask(f"{kind}/list", params)
            (item,) = page[kind]
            found.append(item["name"])
            params = {"cursor": page.get("nextCursor", "")}
    assert found == names
    assert "nextCursor" not in page


@pytest.mark.seed("S3-39", "S3-40", "S3-41", "S3-42")
@pytest.mark.parametrize(
    "uri",
    [
        "https://example.com/handbook?page=2", "file:///nowhere/on/this/disk.txt",
        "git://example.com/project.git/main/README.md", "x-notes+v1.2://shelf/a%20b?sort=title#top",
        "urn:isbn:0451450523",
    ],
)  # fmt: skip
async def test_any_scheme_of_rfc_3986(uri: str) -> None:
    schemes = Server("schemes")
    schemes.add_resource(uri, lambda: "contents", name="it", mime_type="text/plain")
    async with Wire(schemes, REVISION) as wire:
        (listed,) = (await wire.ask("resources/list"))["resources"]
        assert listed["uri"] == uri  # byte for byte: a client may fetch it itself
        (contents,) = (await wire.ask("resources/read", {"uri": uri}))["contents"]
    same(contents, {"uri": uri, "mimeType": "text/plain", "text": "contents"})


@pytest.mark.seed("S3-42")
@pytest.mark.parametrize("uri", ["1x://a", "my_scheme://a", "é://a", "://a", "no scheme", "a://b c", "a://%zz"])
def test_what_is_no_uri_is_refused(uri: str) -> None:
    with pytest.raises(SetupError, match="is not a URI"):
        Server("schemes").add_resource(uri, lambda: "", name="it")


@pytest.mark.seed("S3-45")
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


DATED_HINTS = Annotations(audience=["user", "assistant"], priority=0.8, last_modified="2025-01-12T15:00:58Z")


@pytest.mark.seed("S3-48", "S3-49")
@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (Text("..."), {"type": "text", "text": "..."}),
        (Image(b"pixels", "image/png"), {"type": "image", "data": "cGl4ZWxz", "mimeType": "image/png"}),
        (Audio(b"noise", "audio/wav"), {"type": "audio", "data": "bm9pc2U=", "mimeType": "audio/wav"}),
        (
            EmbeddedResource(ResourceContents("file:///a.txt", text="hello")),
            {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "hello"}},
        ),
    ],
    ids=["text", "image", "audio", "embedded"],
)
async def test_content_types_of_messages(block, shown) -> None:
    talking = Server("content")
    annotated = msgspec.structs.replace(block, annotations=DATED_HINTS)
    talking.add_prompt(lambda: [Message("user", block), Message("assistant", annotated)], name="show")
    async with Wire(talking, REVISION) as wire:
        result = await wire.ask("prompts/get", {"name": "show"})
    same(
        result["messages"],
        [{"role": "user", "content": shown}, {"role": "assistant", "content": {**shown, "annotations": ANNOTATIONS}}],
    )


@pytest.mark.seed("S3-46", "S3-47")
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
