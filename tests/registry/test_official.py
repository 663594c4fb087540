"""Objects of the official mcp_types: taken wherever ours are, and never sent as JSON text."""

import base64
from collections.abc import Sequence
from typing import Any

import mcp_types as mt
import pytest
from pydantic import BaseModel

from dovetail import Client, Context, EmbeddedResource, Message, PromptResult, ResourceLink, Server, SetupError
from dovetail import Text as OurText
from dovetail import ToolResult as OurResult
from wire import MODERN, Wire

REVISIONS = ["2024-11-05", "2025-06-18", "2025-11-25", MODERN]
ICON = mt.Icon(src="https://example.org/i.png", sizes=["48x48"])
NOTE = mt.Annotations(audience=["user"], priority=0.5)
TEXT = mt.TextContent(type="text", text="hi", annotations=NOTE, _meta={"a/b": None})
IMAGE = mt.ImageContent(type="image", data=base64.b64encode(b"GIF89a").decode(), mime_type="image/gif")
AUDIO = mt.AudioContent(type="audio", data="aGk=", mime_type="audio/wav")
LINK = mt.ResourceLink(type="resource_link", uri="a://b", name="b", icons=[ICON], size=3)
PAGE = mt.TextResourceContents(uri="a://page", text="page", mime_type="text/html")
BLOB = mt.BlobResourceContents(uri="a://blob", blob="aGk=")
EMBEDDED = mt.EmbeddedResource(type="resource", resource=PAGE)
BLOCKS = [TEXT, IMAGE, AUDIO, LINK, EMBEDDED]
WHOLE = mt.CallToolResult(content=[TEXT], structured_content={"n": None}, is_error=False, _meta={"c/d": 1})


class Loud(mt.TextContent):
    """A class of the author's own."""


class OlderText(BaseModel):
    """As the package had it when it was a module of the SDK."""

    type: str = "text"
    text: str
    mimeType: str | None = None


OlderText.__module__, OlderText.__name__ = "mcp.types", "TextContent"


def plain(block: Any) -> Any:
    if isinstance(block, (str, OurText)):
        return {"type": "text", "text": getattr(block, "text", block)}
    return block.model_dump(mode="json", by_alias=True, exclude_none=True)


def returning(value: Any, annotation: Any = ..., **options: Any) -> Server:
    server = Server("official")

    def give():
        return value

    if annotation is not ...:
        give.__annotations__["return"] = annotation
    server.add_tool(give, **options)
    return server


async def called(server: Server, version: str = MODERN) -> tuple[dict[str, Any], dict[str, Any]]:
    """The definition of the tool, and the result of a call."""
    async with Wire(server, version) as wire:
        (tool,) = (await wire.ask("tools/list"))["tools"]
        return tool, await wire.ask("tools/call", {"name": "give"})


# ── tools ──


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        *((block, annotation) for block in BLOCKS for annotation in (..., Any, type(block))),
        (BLOCKS, ...),
        (tuple(BLOCKS), Any),
        (BLOCKS, list[mt.ContentBlock]),
        (BLOCKS, Sequence[mt.TextContent | mt.ImageContent | mt.AudioContent | mt.ResourceLink | mt.EmbeddedResource]),
        (TEXT, mt.TextContent | mt.ImageContent | None),
        ([TEXT, OurText("ours"), "text"], ...),
        (Loud(type="text", text="loud"), Loud),
        (OlderText(text="old"), ...),
        ([OlderText(text="old")], list[OlderText]),
        (mt.CallToolResult(content=[TEXT, IMAGE]), mt.CallToolResult),
        (OurResult(content=BLOCKS), ...),  # type: ignore[arg-type]
        (OurResult(content=TEXT), OurResult),  # type: ignore[arg-type]
    ],
    ids=lambda each: "",
)
async def test_content_is_content_without_an_output_schema(value: Any, annotation: Any) -> None:
    tool, result = await called(returning(value, annotation))
    assert "outputSchema" not in tool
    content = getattr(value, "content", value)
    blocks = content if isinstance(content, (list, tuple)) else [content]
    assert (result["content"], result["isError"]) == ([plain(each) for each in blocks], False)
    assert "structuredContent" not in result


@pytest.mark.parametrize("version", REVISIONS)
async def test_older_clients_get_what_they_know(version: str) -> None:
    _, result = await called(returning([AUDIO, LINK]), version)
    kinds = [block["type"] for block in result["content"]]
    assert kinds == (["text", "text"] if version == "2024-11-05" else ["audio", "resource_link"])


async def test_a_whole_result_keeps_its_parts() -> None:
    for annotation in (..., mt.CallToolResult):
        tool, result = await called(returning(WHOLE, annotation), "2025-11-25")
        assert "outputSchema" not in tool
        assert result == {
            "content": [plain(TEXT)],
            "structuredContent": {"n": None},
            "isError": False,
            "_meta": {"c/d": 1},
        }
    failed = mt.CallToolResult(content=[TEXT], is_error=True)
    assert (await called(returning(failed)))[1]["isError"] is True


async def test_a_whole_result_is_checked_by_an_output_schema() -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "null"}}}
    _, result = await called(returning(WHOLE, output_schema=schema))
    assert (result["structuredContent"], result["isError"]) == ({"n": None}, False)
    wrong = mt.CallToolResult(content=[TEXT], structured_content={"m": 1})
    assert (await called(returning(wrong, output_schema=schema)))[1]["isError"] is True


async def test_parts_of_our_own_blocks_may_be_official() -> None:
    ours = [
        OurText("hi", annotations=NOTE),  # type: ignore[arg-type]
        ResourceLink(uri="a://b", name="b", icons=[ICON]),  # type: ignore[list-item]
        EmbeddedResource(PAGE),  # type: ignore[arg-type]
    ]
    _, result = await called(returning(ours))
    assert result["content"] == [
        {"type": "text", "text": "hi", "annotations": plain(NOTE)},
        {"type": "resource_link", "uri": "a://b", "name": "b", "icons": [plain(ICON)]},
        {"type": "resource", "resource": plain(PAGE)},
    ]


@pytest.mark.parametrize("annotation", [list, list[Any], dict[str, Any]])
async def test_content_where_plain_values_are_declared_is_an_error(annotation: Any, caplog: Any) -> None:
    value = {"a": TEXT} if annotation == dict[str, Any] else [TEXT]
    _, result = await called(returning(value, annotation))
    assert result["isError"] is True
    assert "TextContent, which is content and no JSON; annotate it -> list[TextContent]" in caplog.text


async def test_other_models_of_the_package_are_data() -> None:
    tool = mt.Tool(name="t", input_schema={"type": "object"})
    definition, result = await called(returning(tool, mt.Tool))
    assert definition["outputSchema"]["properties"]["name"] == {"type": "string"}
    assert result["structuredContent"]["name"] == "t"


@pytest.mark.parametrize(
    "value",
    [
        mt.ReadResourceResult(contents=[PAGE]),
        mt.GetPromptResult(messages=[mt.PromptMessage(role="user", content=TEXT)]),
        mt.PromptMessage(role="user", content=TEXT),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_a_tool_that_returns_what_is_not_for_tools_sends_it_as_the_package_writes_it(value: Any) -> None:
    """As what another server has answered, which a tool passes on."""
    _, result = await called(returning(value))
    assert type(value).model_validate_json(result["content"][0]["text"]) == value


@pytest.mark.parametrize("version", ["2025-06-18", MODERN])
async def test_middleware_returns_results(version: str) -> None:
    server = Server("official")
    server.add_tool(lambda: "", name="give")
    server.add_prompt(lambda: "", name="ask")
    server.add_resource("a://page", lambda: "", name="page")

    @server.middleware
    class Answers:
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            return WHOLE

        async def on_get_prompt(self, context: Any, call_next: Any) -> Any:
            return mt.GetPromptResult(messages=[mt.PromptMessage(role="user", content=TEXT)])

        async def on_read_resource(self, context: Any, call_next: Any) -> Any:
            return mt.ReadResourceResult(contents=[PAGE])

    async with Wire(server, version) as wire:
        result = await wire.ask("tools/call", {"name": "give"})
        assert (result["content"], result["structuredContent"]) == ([plain(TEXT)], {"n": None})
        assert (await wire.ask("prompts/get", {"name": "ask"}))["messages"][0]["content"] == plain(TEXT)
        assert (await wire.ask("resources/read", {"uri": "a://page"}))["contents"] == [plain(PAGE)]


async def test_what_can_not_be_taken_says_what_to_write(caplog: pytest.LogCaptureFixture) -> None:
    asked = mt.InputRequiredResult(input_requests={}, request_state="s")
    for annotation in (mt.InputRequiredResult, str | mt.InputRequiredResult):
        with pytest.raises(
            SetupError, match=r"tool give .*InputRequiredResult of mcp_types is not taken; return an Inp"
        ):
            returning(asked, annotation)
    _, result = await called(returning(asked))
    assert result["isError"] is True
    assert "InputRequiredResult of mcp_types is not taken; return an InputRequired" in caplog.text


# ── options ──


async def test_annotations_and_icons_are_taken() -> None:
    server = Server("official", icons=[ICON])  # type: ignore[list-item]
    hints = mt.ToolAnnotations(read_only_hint=True, title="T")
    server.add_tool(lambda: "", name="t", annotations=hints, icons=[ICON])  # type: ignore[arg-type,list-item]
    server.add_resource("a://b", lambda: "", name="r", annotations=NOTE, icons=[ICON])  # type: ignore[arg-type,list-item]
    server.add_prompt(lambda: "", name="p", icons=[ICON])  # type: ignore[list-item]
    async with Wire(server, "2025-11-25") as wire:
        assert wire.welcome["serverInfo"]["icons"] == [plain(ICON)]
        (tool,) = (await wire.ask("tools/list"))["tools"]
        (resource,) = (await wire.ask("resources/list"))["resources"]
        (prompt,) = (await wire.ask("prompts/list"))["prompts"]
    assert tool["annotations"] == plain(hints)
    assert resource["annotations"] == plain(NOTE)
    assert tool["icons"] == resource["icons"] == prompt["icons"] == [plain(ICON)]


def test_an_icon_that_clients_do_not_load_names_the_option() -> None:
    with pytest.raises(SetupError, match=r"tool give .*: icons=.* must be an https: or data: URL"):
        returning("", icons=[mt.Icon(src="http://example.org/i.png")])


# ── prompts, resources, completions, questions ──


@pytest.mark.parametrize(
    "value",
    [
        TEXT,
        mt.PromptMessage(role="user", content=TEXT),
        [mt.PromptMessage(role="user", content=TEXT)],
        mt.GetPromptResult(messages=[mt.PromptMessage(role="user", content=TEXT)]),
        Message("user", TEXT),  # type: ignore[arg-type]
        PromptResult([Message("user", TEXT)]),  # type: ignore[arg-type]
    ],
    ids=lambda each: type(each).__name__,
)
async def test_prompts_return_messages(value: Any) -> None:
    server = Server("official")
    server.add_prompt(lambda: value, name="ask")
    async with Wire(server, MODERN) as wire:
        assert (await wire.ask("prompts/get", {"name": "ask"}))["messages"] == [
            {"role": "user", "content": plain(TEXT)}
        ]


async def test_a_prompt_result_has_its_description() -> None:
    server = Server("official")
    server.add_prompt(lambda: mt.GetPromptResult(description="mine", messages=[]), name="ask", description="ours")
    async with Client(server) as client:
        assert (await client.get_prompt("ask")).description == "mine"


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (PAGE, mt.TextResourceContents),
        (BLOB, mt.BlobResourceContents | None),
        ([PAGE, BLOB], list[mt.TextResourceContents | mt.BlobResourceContents]),
        (mt.ReadResourceResult(contents=[PAGE, BLOB]), Any),
    ],
    ids=lambda each: "",
)
async def test_resources_return_contents(value: Any, annotation: Any) -> None:
    server = Server("official")

    @server.resource("a://b")
    def read() -> None:
        return value

    server.remove_resource("a://b")
    read.__annotations__["return"] = annotation
    server.add_resource("a://b", read)
    contents = getattr(value, "contents", value if isinstance(value, list) else [value])
    async with Wire(server, MODERN) as wire:
        assert (await wire.ask("resources/read", {"uri": "a://b"}))["contents"] == [plain(each) for each in contents]
        (listed,) = (await wire.ask("resources/list"))["resources"]
        assert listed["mimeType"] == "text/plain"  # as for our ResourceContents


@pytest.mark.parametrize("value", [TEXT, [TEXT], OurText("ours")], ids=lambda each: type(each).__name__)
async def test_content_is_no_resource(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = Server("official")
    server.add_resource("a://b", lambda: value, name="b")
    async with Wire(server, MODERN) as wire:
        assert (await wire.refusal("resources/read", {"uri": "a://b"}))["code"] == -32603
    assert "a resource returned Text, which is for tools and prompts; use ResourceContents" in caplog.text


async def test_completions_return_a_completion() -> None:
    server = Server("official")
    server.add_prompt(lambda city: city, name="trip")

    @server.completion
    async def complete(ref: Any, argument: Any, context: Any) -> Any:
        return mt.Completion(values=["Rome"], total=9, has_more=True)

    async with Client(server) as client:
        found = await client.complete(prompt="trip", argument="city")
    assert (found.values, found.total, found.has_more) == (["Rome"], 9, True)


@pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning")
async def test_a_model_is_asked_with_messages() -> None:
    server = Server("official")

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample([mt.SamplingMessage(role="user", content=TEXT)])).text  # type: ignore[list-item]

    async with Client(server, sampling_handler=lambda request: request.messages[0]["content"][0]["text"]) as client:
        assert (await client.call_tool("ask")).data == "hi"
