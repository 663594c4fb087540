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
    ResourceContents,
    ResourceLink,
    Server,
    SetupError,
    Text,
    ToolAnnotations,
)
from seeds.golden import JsonText, Opaque, call_of, request, same, shows
from wire import Wire

REVISION = "2025-11-25"


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
    tool = {
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
    await shows(server, REVISION, request(1, "tools/list", {}), {"tools": [tool], "nextCursor": Opaque(str)})
    async with Client(server, protocol_version=REVISION) as client:
        assert [tool.name for tool in await client.list_tools()] == ["get_weather", "forecast"]


@pytest.mark.seed("S3-06", "S3-07", "S3-08", "S3-13")
async def test_tools_call() -> None:
    call = call_of("get_weather", location="New York")
    unstructured = {"content": [{"type": "text", "text": "Temperature: 72F, Partly cloudy"}], "isError": False}
    await shows(create_server(output_schema=False), REVISION, call, unstructured)
    structured = {
        "content": [{"type": "text", "text": JsonText('{"temperature": 22.5, "conditions": "Partly cloudy"}')}],
        "structuredContent": {"temperature": 22.5, "conditions": "Partly cloudy"},
        "isError": False,
    }
    await shows(server, REVISION, call, structured)


LINK = ResourceLink("file:///a.txt", "a.txt", mime_type="text/plain")
FILE = {"uri": "file:///a.txt", "mimeType": "text/plain"}
BLOCKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "text": (Text("..."), {"text": "..."}),
    "image": (Image(b"pixels", "image/png"), {"data": "cGl4ZWxz", "mimeType": "image/png"}),
    "audio": (Audio(b"noise", "audio/wav"), {"data": "bm9pc2U=", "mimeType": "audio/wav"}),
    "resource_link": (LINK, {**FILE, "name": "a.txt"}),
    "resource": (
        EmbeddedResource(ResourceContents("file:///a.txt", "text/plain", text="hello")),
        {"resource": {**FILE, "text": "hello"}},
    ),
}
HINTS = Annotations(audience=["user", "assistant"], priority=0.8, last_modified="2025-01-12T15:00:58Z")
ANNOTATIONS = {"audience": ["user", "assistant"], "priority": 0.8, "lastModified": "2025-01-12T15:00:58Z"}


@pytest.mark.seed(
    "S0-20", "S3-20", "S3-21", "S3-22", "S3-23", "S3-24", "S3-25", "S3-48", "S3-49"
)  # fmt: skip
@pytest.mark.parametrize("kind", BLOCKS)
async def test_content_types_of_results_and_messages(kind: str) -> None:
    block, fields = BLOCKS[kind]
    annotated = msgspec.structs.replace(block, annotations=HINTS)
    content = Server("content")
    content.add_tool(lambda: [block, annotated], name="show")
    content.add_prompt(lambda: [Message("user", block), Message("assistant", annotated)], name="show")
    shown = {"type": kind, **fields}
    second = {**shown, "annotations": ANNOTATIONS}
    await shows(content, REVISION, call_of("show"), {"content": [shown, second], "isError": False})
    messages = [{"role": "user", "content": shown}, {"role": "assistant", "content": second}]
    await shows(content, REVISION, request(2, "prompts/get", {"name": "show"}), {"messages": messages})
    if kind != "resource_link":  # which is newer than the oldest document
        async with Wire(content, "2025-03-26") as wire:
            same((await wire.ask("tools/call", {"name": "show"}))["content"][0], shown)


# ── resources and prompts ──


@pytest.mark.seed("S3-31", "S3-38")
async def test_resources_list() -> None:
    resource = {
        "uri": "file:///project/src/main.rs",
        "name": "main.rs",
        "title": "Main File",
        "description": "Primary entry point",
        "mimeType": "text/x-rust",
        "annotations": ANNOTATIONS,
    }
    page = {"resources": [resource], "nextCursor": Opaque(str)}
    await shows(server, REVISION, request(1, "resources/list", {}), page)


@pytest.mark.seed("S3-32", "S3-33", "S3-40")
@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("file:///project/src/main.rs", {"mimeType": "text/x-rust", "text": "fn main() { ... }"}),
        ("file:///image.png", {"mimeType": "image/png", "blob": Opaque(str)}),
    ],
)
async def test_resources_read(uri: str, shown: dict[str, Any]) -> None:
    await shows(server, REVISION, request(2, "resources/read", {"uri": uri}), {"contents": [{"uri": uri, **shown}]})


@pytest.mark.seed("S3-34")
async def test_resource_templates() -> None:
    template = {"uriTemplate": "file:///{path}", "name": "Project Files", "mimeType": "application/octet-stream"}
    await shows(server, REVISION, request(3, "resources/templates/list"), {"resourceTemplates": [template]})


@pytest.mark.seed("S3-45")
async def test_prompts_list() -> None:
    prompt = {
        "name": "code_review",
        "title": "Request Code Review",
        "description": "Asks the LLM to analyze code quality",
        "arguments": [{"name": "code", "description": "The code to review", "required": True}],
    }
    await shows(server, REVISION, request(1, "prompts/list", {}), {"prompts": [prompt], "nextCursor": Opaque(str)})


@pytest.mark.seed("S3-46", "S3-47")
async def test_prompts_get() -> None:
    params = {"name": "code_review", "arguments": {"code": "def hello(): print('world')"}}
    text = "Please review this Python code:\ndef hello():\n    print('world')"
    messages = [{"role": "user", "content": {"type": "text", "text": text}}]
    result = {"description": "Code review prompt", "messages": messages}
    await shows(server, REVISION, request(2, "prompts/get", params), result)


# ── tools, in words ──


@pytest.mark.seed("S3-26")
async def test_unknown_tools_and_malformed_requests_are_protocol_errors() -> None:
    wrong: list[dict[str, Any]] = [{}, {"name": 5}, {"name": "get_weather", "arguments": []}, {"arguments": {}}]
    async with Wire(server, REVISION) as wire:
        for params in ({"name": "nothing"}, *wrong):
            assert (await wire.refusal("tools/call", params))["code"] == -32602


@pytest.mark.seed("S0-09", "S3-09")
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


@pytest.mark.seed("S3-35", "S3-36")
async def test_subscriptions() -> None:
    uri = "file:///config.json"
    async with Wire(server, REVISION) as wire:
        answer = await wire.exchange(request(4, "resources/subscribe", {"uri": uri}))
        same(answer, {"jsonrpc": "2.0", "id": 4, "result": {}})
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
    for wrong in ("1x://a", "my_scheme://a", "é://a", "://a", "no scheme", "a://b c", "a://%zz"):
        with pytest.raises(SetupError, match="is not a URI"):
            schemes.add_resource(wrong, lambda: "", name="it")
    schemes.add_resource(uri, lambda: "contents", name="it", mime_type="text/plain")
    async with Wire(schemes, REVISION) as wire:
        (listed,) = (await wire.ask("resources/list"))["resources"]
        assert listed["uri"] == uri  # byte for byte: a client may fetch it itself
        (contents,) = (await wire.ask("resources/read", {"uri": uri}))["contents"]
    same(contents, {"uri": uri, "mimeType": "text/plain", "text": "contents"})
