"""Programs written for the official SDK on `dovetail.compat.mcp`: they import as there, and do the same."""

import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypedDict

import mcp_types
import pytest
from dovetail.compat.mcp.server.apps import Apps, ResourceCsp, ResourcePermissions, client_supports_apps
from dovetail.compat.mcp.server.auth.middleware.auth_context import get_access_token
from dovetail.compat.mcp.server.auth.provider import AccessToken, TokenVerifier
from dovetail.compat.mcp.server.auth.settings import AuthSettings
from dovetail.compat.mcp.server.extension import Extension, MethodBinding, ResourceBinding, ToolBinding
from dovetail.compat.mcp.server.lowlevel import Server as LowLevelServer
from dovetail.compat.mcp.server.mcpserver import (
    AcceptedElicitation,
    AssistantMessage,
    Audio,
    Context,
    DeclinedElicitation,
    Elicit,
    ElicitationResult,
    Image,
    ListRoots,
    MCPServer,
    Message,
    RequestStateSecurity,
    Resolve,
    ResourceSecurity,
    Sample,
    UserMessage,
    require_client_extension,
)
from dovetail.compat.mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from dovetail.compat.mcp.server.mcpserver.prompts import Prompt
from dovetail.compat.mcp.server.mcpserver.resources import FileResource, FunctionResource, TextResource
from dovetail.compat.mcp.server.mcpserver.tools import Tool
from dovetail.compat.mcp.server.transport_security import TransportSecuritySettings
from dovetail.compat.mcp.shared.exceptions import MCPError
from dovetail.compat.mcp.types import (
    INVALID_PARAMS,
    CallToolResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ListRootsResult,
    PromptReference,
    SamplingMessage,
    TextContent,
    ToolAnnotations,
)
from pydantic import AnyHttpUrl, BaseModel, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount

import dovetail
from dovetail.client import ElicitResult, SamplingRequest
from dovetail.compat.mcp import Client
from dovetail.errors import SetupError
from http_wire import MODERN, HttpWire, text_of

ERAS = ["2025-11-25", MODERN]
PNG = b"\x89PNG\r\n\x1a\n"
PAGE = "From the official SDK"


def connect(server: MCPServer, revision: str = "2025-11-25", **options: Any) -> dovetail.Client:
    """Our own client, which sees what is sent."""
    return dovetail.Client(server, protocol_version=revision, **options)


async def call(server: MCPServer, name: str, revision: str = "2025-11-25", /, **arguments: Any) -> Any:
    async with connect(server, revision) as client:
        return await client.call_tool(name, arguments, raise_on_error=False)


async def listed(server: MCPServer) -> dict[str, Any]:
    async with connect(server) as client:
        return {tool.name: tool for tool in await client.list_tools()}


# ── modules ──


def test_the_types_are_those_of_the_official_package() -> None:
    import dovetail.compat.mcp.types as types
    from dovetail.compat.mcp.types.version import LATEST_MODERN_VERSION

    assert types.TextContent is mcp_types.TextContent
    assert types.Tool is mcp_types.Tool is not Tool
    assert LATEST_MODERN_VERSION == MODERN


def test_all_types_can_be_imported_at_once() -> None:
    names: dict[str, Any] = {}
    exec("from dovetail.compat.mcp.types import *", names)
    assert names["TextContent"] is mcp_types.TextContent


def test_a_name_without_an_equal_is_an_error_that_names_the_page() -> None:
    with pytest.raises(ImportError, match=PAGE):
        from dovetail.compat.mcp.server.mcpserver import NoSuchThing  # noqa: F401
    with pytest.raises(ImportError, match=PAGE):
        from dovetail.compat.mcp.server import CacheHint  # noqa: F401
    with pytest.raises(ImportError, match=PAGE):
        from dovetail.compat.mcp.server.no_such_module import NoSuchName  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        import dovetail.compat.mcp.types.no_such_module  # noqa: F401


def test_what_is_only_named_in_annotations_can_be_imported_and_says_what_to_use_when_it_is_made() -> None:
    assert LowLevelServer[Any] is LowLevelServer
    with pytest.raises(SetupError, match=f"MCPServer.*{PAGE}"):
        LowLevelServer("low")
    from dovetail.compat.mcp.server.fastmcp import FastMCP

    with pytest.raises(SetupError, match=r"MCPServer since mcp 2"):
        FastMCP("of mcp 1")
    from dovetail.compat.mcp.shared.path_security import safe_join

    with pytest.raises(SetupError, match="add_directory"):
        safe_join("folder", "file")


def test_it_is_loaded_only_if_it_is_imported() -> None:
    program = (
        "import sys, dovetail\ndovetail.Server('plain')\n"
        "print([name for name in sys.modules if 'compat' in name or name in ('mcp_types', 'pydantic')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_without_the_official_types_the_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['mcp_types'] = None\nfrom dovetail.compat.mcp.server import MCPServer"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "pip install mcp-types" in done.stderr


# ── tools ──


@dataclass
class Point:
    x: int
    y: int = 0


class Weather(BaseModel):
    degrees: float = Field(description="Celsius")


class Typed(TypedDict):
    name: str


class Station:
    name: str
    online: bool = True

    def __init__(self, name: str) -> None:
        self.name = name


class Opaque:
    def __init__(self) -> None:
        self.name = "hidden"


@pytest.mark.parametrize("revision", ERAS)
@pytest.mark.parametrize(
    ("returns", "value", "texts", "structured"),
    [
        (str, "hello", ["hello"], {"result": "hello"}),
        (int, 3, ["3"], {"result": 3}),
        (None, None, [], {"result": None}),
        (list[str], ["a", "b"], ["a", "b"], {"result": ["a", "b"]}),
        (list[str], [], [], {"result": []}),
        (int | str, "x", ["x"], {"result": "x"}),
        (dict[str, int], {"a": 1}, ['{\n  "a": 1\n}'], {"a": 1}),
        (Point, Point(1), ['{\n  "x": 1,\n  "y": 0\n}'], {"x": 1, "y": 0}),
        (Weather, Weather(degrees=16.5), ['{\n  "degrees": 16.5\n}'], {"degrees": 16.5}),
        (Typed, {"name": "a"}, ['{\n  "name": "a"\n}'], {"name": "a"}),
        (Any, {"a": 1}, ['{\n  "a": 1\n}'], None),
        (dict, {"a": 1}, ['{\n  "a": 1\n}'], None),
    ],
    ids=str,
)
async def test_a_value_is_sent_as_there(revision: str, returns: Any, value: Any, texts: Any, structured: Any) -> None:
    """Structured, wrapped in every revision if it is no object, and as a text for each item."""
    server = MCPServer("values")

    def give() -> Any:
        return value

    give.__annotations__["return"] = returns
    server.add_tool(give)
    result = await call(server, "give", revision)
    assert not result.is_error
    assert [block.text for block in result.content] == texts
    assert result.structured == structured
    assert ((await listed(server))["give"].output_schema is None) == (structured is None)


async def test_an_object_of_a_plain_class_is_sent_by_its_annotations_or_as_a_text() -> None:
    server = MCPServer("classes")

    @server.tool()
    def annotated() -> Station:
        return Station("north")

    @server.tool()
    def opaque() -> Opaque:
        return Opaque()

    assert (await call(server, "annotated")).structured == {"name": "north", "online": True}
    tools = await listed(server)
    assert tools["annotated"].output_schema["required"] == ["name"]
    assert tools["opaque"].output_schema is None
    assert "Opaque object" in (await call(server, "opaque")).text


async def test_structured_output_false_sends_text_alone() -> None:
    server = MCPServer("texts")

    @server.tool(structured_output=False)
    def report() -> dict[str, int]:
        return {"a": 1}

    assert (await listed(server))["report"].output_schema is None
    assert (await call(server, "report")).structured is None


async def test_content_and_whole_results_are_sent_as_they_are(tmp_path: Path) -> None:
    server, picture = MCPServer("content"), tmp_path / "logo.png"
    picture.write_bytes(PNG)

    @server.tool()
    def several() -> list:  # type: ignore[type-arg]
        return [TextContent(type="text", text="one"), Image(path=picture), Audio(data=b"x", format="ogg"), "two", 3]

    @server.tool()
    def image() -> Image:
        return Image(picture)

    @server.tool()
    def whole() -> Annotated[CallToolResult, Typed]:
        content: list[Any] = [TextContent(type="text", text="w")]
        return CallToolResult(content=content, structured_content={"name": "n"}, _meta={"k": 1})

    @server.tool()
    def failed() -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="no")], is_error=True)

    blocks = (await call(server, "several")).content
    assert [type(block).__name__ for block in blocks] == ["Text", "Image", "Audio", "Text", "Text"]
    assert [blocks[1].data, blocks[1].mime_type, blocks[2].mime_type] == [PNG, "image/png", "audio/ogg"]
    tools = await listed(server)
    assert tools["image"].output_schema is None
    assert tools["whole"].output_schema["required"] == ["name"]
    result = await call(server, "whole")
    assert (result.text, result.structured, result.meta["k"]) == ("w", {"name": "n"}, 1)
    assert (await call(server, "failed")).is_error


async def test_a_tool_is_described_as_there() -> None:
    """The whole docstring is the description; parameters have none of it."""
    server = MCPServer("described", version="2.0", title="Title", instructions="Ask.", icons=[])
    annotations = ToolAnnotations(read_only_hint=True)

    @server.tool(name="named", title="T", annotations=annotations, meta={"k": 1})
    def function(city: str, days: Annotated[int, Field(ge=1, description="how many")] = 1) -> str:
        """Forecast.

        Args:
            city: A city.
        """
        return city

    tool = (await listed(server))["named"]
    assert tool.description == "Forecast.\n\nArgs:\n    city: A city."
    assert "description" not in tool.input_schema["properties"]["city"]
    assert tool.input_schema["properties"]["days"]["description"] == "how many"
    assert (tool.title, tool.meta["k"], tool.annotations.read_only_hint) == ("T", 1, True)
    assert (server.name, server.engine.info.version, server.engine.info.title) == ("described", "2.0", "Title")


async def test_the_first_tool_of_a_name_stays(caplog: pytest.LogCaptureFixture) -> None:
    server = MCPServer("twice")
    server.add_tool(lambda: 1, name="one")
    server.add_tool(lambda: 2, name="one")
    assert "there is already a tool one" in caplog.text
    assert (await call(server, "one")).text == "1"
    assert server.remove_tool("one")


async def test_tools_and_resources_may_be_given_to_the_constructor() -> None:
    def double(a: int) -> int:
        return 2 * a

    resource = TextResource(uri="note://one", name="one", text="text")
    server = MCPServer("given", tools=[Tool.from_function(double, description="twice")], resources=[resource])
    assert (await listed(server))["double"].description == "twice"
    assert (await call(server, "double", a=4)).structured == {"result": 8}
    async with connect(server) as client:
        assert (await client.read_resource("note://one"))[0].text == "text"


async def test_errors_keep_their_kind_and_unexpected_ones_their_secret() -> None:
    server = MCPServer("errors", debug=True)

    @server.tool()
    def expected() -> str:
        raise ToolError("no such city")

    @server.tool()
    def crash() -> str:
        raise RuntimeError("password=1234")

    @server.tool()
    def protocol() -> str:
        raise MCPError(code=INVALID_PARAMS, message="gated", data={"why": "demo"})

    wire = await HttpWire.session(server.asgi())
    answers = {name: (await wire.call(name)).answer for name in ("expected", "crash", "protocol")}
    assert text_of(answers["expected"]) == "no such city"
    assert all(answers[name]["result"]["isError"] for name in ("expected", "crash"))
    assert "1234" not in json.dumps(answers)
    assert answers["protocol"]["error"] == {"code": INVALID_PARAMS, "message": "gated", "data": {"why": "demo"}}


# ── the context ──


class Profile(BaseModel):
    name: str
    age: int = 18


@pytest.mark.parametrize("revision", ERAS)
async def test_a_question_has_an_outcome_of_the_class_that_programs_match(revision: str) -> None:
    server, answers = MCPServer("asks"), iter([ElicitResult("accept", {"name": "Ann"}), ElicitResult("decline")])

    @server.tool()
    async def ask(ctx: Context) -> str:
        match await ctx.elicit("Who?", schema=Profile):
            case AcceptedElicitation(data=Profile(name=name, age=age)):
                return f"{name}, {age}"
            case DeclinedElicitation() as outcome:
                return outcome.action
        return "?"

    async with connect(server, revision, elicitation_handler=lambda _: next(answers)) as client:
        assert (await client.call_tool("ask")).structured == {"result": "Ann, 18"}
        assert (await client.call_tool("ask")).structured == {"result": "decline"}


async def test_the_session_asks_for_pages_samples_and_roots() -> None:
    server = MCPServer("session")

    @server.tool()
    async def everything(ctx: Context[Any, Any]) -> list[str]:
        page = await ctx.elicit_url("Pay", url="https://example.com/pay", elicitation_id="e")
        said = SamplingMessage(role="user", content=TextContent(type="text", text="Hi"))
        sample = await ctx.session.create_message(messages=[said], max_tokens=5, related_request_id=ctx.request_id)
        roots = await ctx.request_context.session.list_roots()
        assert isinstance(sample, CreateMessageResult)
        assert isinstance(sample.content, TextContent)
        assert isinstance(roots, ListRootsResult)
        return [page.action, sample.content.text, str(roots.roots[0].uri)]

    def sample(request: SamplingRequest) -> str:
        return f"{len(request.messages)} message, {request.max_tokens} tokens"

    asking = {
        "elicitation_handler": lambda _: ElicitResult("accept"),
        "sampling_handler": sample,
        "roots": ["file:///tmp/a"],
    }
    async with connect(server, **asking) as client:
        result = await client.call_tool("everything")
    assert result.structured["result"] == ["accept", "1 message, 5 tokens", "file:///tmp/a"]


async def test_the_context_knows_the_request_and_its_client() -> None:
    @asynccontextmanager
    async def lifespan(server: MCPServer) -> AsyncIterator[str]:
        yield f"opened by {server.name}"

    server = MCPServer[str]("knows", lifespan=lifespan)

    @server.tool()
    def know(ctx: Context[str]) -> dict[str, Any]:
        return {
            "lifespan": ctx.request_context.lifespan_context,
            "id": ctx.request_id,
            "version": ctx.request_context.protocol_version,
            "method": ctx.request_context.method,
            "client": ctx.session.client.name,
            "round": ctx.input_responses,
        }

    async with connect(server, client_info={"name": "me", "version": "1"}) as client:
        found = (await client.call_tool("know")).data
    assert found.pop("id").isdigit()
    assert found == {
        "lifespan": "opened by knows", "version": "2025-11-25", "method": "tools/call", "client": "me", "round": None,
    }  # fmt: skip


async def test_the_context_notifies() -> None:
    server = MCPServer("notifies")
    server.add_resource(TextResource(uri="note://one", text="1"))

    @server.tool()
    async def notify(ctx: Context) -> str:
        await ctx.info("one")
        params = mcp_types.LoggingMessageNotificationParams(level="error", data="three")
        await ctx.session.send_notification(mcp_types.LoggingMessageNotification(params=params))
        await ctx.report_progress(1, total=2, message="half")
        server.add_tool(lambda: "late", name="late")
        await ctx.session.send_tool_list_changed()
        await ctx.notify_prompts_changed()
        await ctx.session.send_resource_updated("note://one")
        await ctx.close_sse_stream()
        (contents,) = await ctx.read_resource("note://one")
        return f"{contents.content} {contents.mime_type}"

    logged: list[Any] = []
    steps: list[Any] = []
    async with connect(server, log_handler=logged.append) as client:
        result = await client.call_tool("notify", progress_handler=lambda *step: steps.append(step))
        assert {tool.name for tool in await client.list_tools()} == {"notify", "late"}
    assert result.text == "1 text/plain"
    assert [(each.level, each.data, each.logger) for each in logged] == [
        ("info", "one", None), ("error", "three", None),
    ]  # fmt: skip
    assert len(steps) == 1


async def test_a_message_for_the_log_may_name_its_logger() -> None:
    server, logged = MCPServer("logs"), list[Any]()

    @server.tool()
    async def say(ctx: Context) -> None:
        await ctx.info("one", logger_name="mine")
        await ctx.log("error", "two", logger_name="mine")

    async with connect(server, log_handler=logged.append) as client:
        await client.call_tool("say")
    assert [(each.level, each.data, each.logger) for each in logged] == [
        ("info", "one", "mine"), ("error", "two", "mine"),
    ]  # fmt: skip


async def test_a_model_is_asked_with_the_options_of_the_sdk() -> None:
    server, asked = MCPServer("samples"), list[SamplingRequest]()

    @server.tool()
    async def ask(ctx: Context) -> str:
        said = SamplingMessage(role="user", content=TextContent(type="text", text="Hi"))
        models = mcp_types.ModelPreferences(hints=[mcp_types.ModelHint(name="small")], cost_priority=1)
        tools = [mcp_types.Tool(name="look", input_schema={"type": "object"})]
        choice = mcp_types.ToolChoice(mode="auto")
        options = {"model_preferences": models, "tools": tools, "tool_choice": choice}
        return (await ctx.session.create_message([said], max_tokens=5, **options)).role

    def sample(request: SamplingRequest) -> str:
        asked.append(request)
        return "Hello"

    async with connect(server, sampling_handler=sample, capabilities={"sampling": {"tools": {}}}) as client:
        assert (await client.call_tool("ask")).text == "assistant"
    (request,) = asked
    assert request.model_preferences == {"hints": [{"name": "small"}], "costPriority": 1}
    assert request.tools[0]["name"] == "look"


async def test_what_the_context_or_server_lacks_names_the_page() -> None:
    server = MCPServer("lacks")
    with pytest.raises(AttributeError, match=rf"MCPServer\.call_tool has no equal.*{PAGE}"):
        _ = server.call_tool

    @server.tool()
    async def ping(ctx: Context) -> None:
        await ctx.session.send_ping()

    assert PAGE in (await call(server, "ping")).text


async def test_a_resource_that_is_missing_is_the_exception_of_the_sdk() -> None:
    server = MCPServer("missing")

    @server.tool()
    async def look(ctx: Context) -> str:
        try:
            await ctx.read_resource("note://none")
        except ResourceError as failure:
            return str(isinstance(failure, ResourceNotFoundError))
        return "found"

    assert (await call(server, "look")).text == "True"


CONFIRM = ElicitRequest(
    params=ElicitRequestFormParams(
        message="Really?",
        requested_schema={"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    )
)


@pytest.mark.parametrize("revision", ERAS)
async def test_a_function_may_return_what_it_wants_to_know(revision: str) -> None:
    server = MCPServer("rounds", request_state_security=RequestStateSecurity(keys=["k" * 32]))

    @server.tool()
    async def refund(ctx: Context) -> str | InputRequiredResult:
        if ctx.input_responses is None:
            return InputRequiredResult(input_requests={"ok": CONFIRM}, request_state="asked")
        answer = ctx.input_responses["ok"]
        assert isinstance(answer, mcp_types.ElicitResult)
        return f"{answer.action} {answer.content} {ctx.request_state}"

    @server.prompt()
    async def briefing(ctx: Context) -> list[UserMessage] | InputRequiredResult:
        answer = (ctx.input_responses or {}).get("ok")
        return [UserMessage("go")] if answer else InputRequiredResult(input_requests={"ok": CONFIRM})

    async with connect(server, revision, elicitation_handler=lambda _: ElicitResult("accept", {"ok": True})) as client:
        assert (await client.call_tool("refund")).data == {"result": "accept {'ok': True} asked"}
        assert (await client.get_prompt("briefing")).messages[0].content.text == "go"


# ── resolvers ──


class Choice(BaseModel):
    ok: bool


@pytest.mark.parametrize("revision", ERAS)
async def test_resolvers_fill_parameters_that_clients_do_not_see(revision: str) -> None:
    server, runs = MCPServer("resolves"), list[str]()

    def stock(title: str) -> int:
        runs.append(title)
        return {"Dune": 7}.get(title, 0)

    async def confirm(title: str, stock: Annotated[int, Resolve(stock)], ctx: Context) -> Choice | Elicit[Choice]:
        assert ctx.request_id
        return Choice(ok=True) if stock else Elicit(f"Order {title}?", Choice)

    @server.tool()
    def order(
        title: str,
        copies: Annotated[int, Resolve(stock)],
        choice: Annotated[Choice, Resolve(confirm)],
        outcome: Annotated[ElicitationResult[Choice], Resolve(confirm)],
    ) -> str:
        return f"{title} {copies} {choice.ok} {outcome.action}"

    assert list((await listed(server))["order"].input_schema["properties"]) == ["title"]
    asked: list[str] = []
    actions = iter(["accept", "decline"])

    def answer(request: Any) -> ElicitResult:
        asked.append(request.message)
        return ElicitResult(next(actions), {"ok": False})

    async with connect(server, revision, elicitation_handler=answer) as client:
        assert (await client.call_tool("order", {"title": "Dune"})).data == {"result": "Dune 7 True accept"}
        assert runs == ["Dune"]
        assert (await client.call_tool("order", {"title": "Solaris"})).data == {"result": "Solaris 0 False accept"}
        refused = await client.call_tool("order", {"title": "Ubik"}, raise_on_error=False)
    assert refused.is_error
    assert "decline" in refused.text
    assert asked == ["Order Solaris?", "Order Ubik?"]


async def test_resolvers_may_sample_and_list_roots() -> None:
    server = MCPServer("samples")

    def draft() -> Sample:
        return Sample([SamplingMessage(role="user", content=TextContent(type="text", text="?"))], max_tokens=9)

    @server.tool()
    async def both(
        said: Annotated[CreateMessageResult, Resolve(draft)],
        roots: Annotated[ListRootsResult, Resolve(lambda: ListRoots())],
    ) -> str:
        return f"{said.content.text} {roots.roots[0].uri}"  # type: ignore[union-attr]

    async with connect(server, sampling_handler=lambda _: "a title", roots=["file:///tmp/b"]) as client:
        assert (await client.call_tool("both")).text == "a title file:///tmp/b"


# ── resources ──


async def test_resources_and_templates_read_as_there(tmp_path: Path) -> None:
    server, path = MCPServer("reads"), tmp_path / "a.json"
    path.write_text("{}")
    (tmp_path / "a.bin").write_bytes(b"\0")
    server.add_resource(FileResource(uri="file://json", path=path, mime_type="application/json"))
    server.add_resource(FileResource(uri="file://bin", path=tmp_path / "a.bin", mime_type="application/octet-stream"))
    server.add_resource(FunctionResource(uri="fn://x", name="x", fn=lambda: {"a": [1]}))
    server.add_resource(FunctionResource(uri="fn://made", name="made", description="d", fn=lambda: "made"))

    @server.resource("config://app")
    def config() -> dict[str, int]:
        """The settings."""
        return {"a": 1}

    @server.resource("note://{name}", mime_type="text/markdown")
    async def note(name: str, ctx: Context) -> str:
        assert ctx.request_id
        if name == "none":
            raise ResourceNotFoundError("no such note")
        if name == "bad":
            raise ResourceError("can't be read")
        return f"# {name}"

    async with connect(server) as client:
        found = {each.uri: each for each in await client.list_resources()}
        read = {uri: (await client.read_resource(uri))[0] for uri in (*found, "note://a")}
        refusals = [await refusal(client.read_resource(f"note://{name}")) for name in ("none", "bad", "..%2Fx")]
        (template,) = await client.list_resource_templates()
    assert template.mime_type == "text/markdown"
    assert (found["config://app"].description, found["config://app"].mime_type) == ("The settings.", "text/plain")
    assert found["fn://made"].description == "d"
    texts = {uri: each.text if each.blob is None else each.blob for uri, each in read.items()}
    assert texts == {
        "file://json": "{}", "file://bin": b"\0", "fn://x": '{\n  "a": [\n    1\n  ]\n}',
        "fn://made": "made", "config://app": '{\n  "a": 1\n}', "note://a": "# a",
    }  # fmt: skip
    assert refusals[:2] == ["no such note", "can't be read"]
    assert refusals[2] is not None


async def refusal(request: Any) -> str | None:
    try:
        await request
    except dovetail.ServerError as failure:
        return failure.message
    return None


async def test_only_named_variables_go_unchecked(caplog: pytest.LogCaptureFixture) -> None:
    lax = ResourceSecurity(reject_path_traversal=False)
    assert PAGE in caplog.text
    server = MCPServer("templates", resource_security=lax)

    @server.resource("file://{+path}")
    def checked(path: str) -> str:
        return path

    @server.resource("git://{+range}", security=ResourceSecurity(exempt_params={"range"}))
    def exempt(range: str) -> str:
        return range

    async with connect(server) as client:
        assert await refusal(client.read_resource("file://../a")) is not None
        assert (await client.read_resource("git://../a"))[0].text == "../a"


async def test_the_first_resource_of_a_uri_stays_and_the_last_template() -> None:
    server = MCPServer("twice", debug=True)
    for number in (1, 2):
        server.add_resource(TextResource(uri="note://one", text=str(number)))
        server.resource("note://{x}/more", name=f"more {number}")(lambda x: x)
    async with connect(server) as client:
        assert (await client.read_resource("note://one"))[0].text == "1"
        assert [each.name for each in await client.list_resource_templates()] == ["more 2"]


# ── prompts and completions ──


async def test_prompts_give_messages_as_there(caplog: pytest.LogCaptureFixture) -> None:
    server = MCPServer("prompts")

    @server.prompt(title="Review")
    def review(code: str, language: Annotated[str, Field(description="its language")] = "python") -> list[Message]:
        """Review code."""
        return [UserMessage(f"{language}: {code}"), AssistantMessage("Let me see."), Message("so", role="assistant")]

    @server.prompt("plain")
    def plain() -> Any:
        return ["one", {"role": "assistant", "content": "two"}, TextContent(type="text", text="three"), 4]

    server.add_prompt(Prompt.from_function(lambda code: f"again {code}", name="again", description="d"))
    server.add_prompt(Prompt(lambda: "other", name="again"))
    assert "there is already a prompt again" in caplog.text
    async with connect(server) as client:
        prompts = {each.name: each for each in await client.list_prompts()}
        reviewed = await client.get_prompt("review", {"code": "x"})
        several = await client.get_prompt("plain")
        again = await client.get_prompt("again", {"code": "y"})
    assert [(each.name, each.required) for each in prompts["review"].arguments] == [("code", True), ("language", False)]
    assert (prompts["review"].description, prompts["review"].title) == ("Review code.", "Review")
    assert [(each.role, each.content.text) for each in reviewed.messages] == [
        ("user", "python: x"), ("assistant", "Let me see."), ("assistant", "so"),
    ]  # fmt: skip
    assert [(each.role, each.content.text) for each in several.messages] == [
        ("user", "one"), ("assistant", "two"), ("user", "three"), ("user", "4"),
    ]  # fmt: skip
    assert again.messages[0].content.text == "again y"
    assert server.remove_prompt("again")


async def test_one_function_completes_all_arguments() -> None:
    server = MCPServer("completes")

    @server.prompt()
    def review(language: str, style: str) -> str:
        return language + style

    @server.completion()
    async def complete(ref: Any, argument: CompletionArgument, context: CompletionContext | None) -> Completion | None:
        if not isinstance(ref, PromptReference) or argument.name == "style":
            return None
        chosen = (context.arguments or {}) if context else {}
        return Completion(values=[argument.value + "thon", *chosen.values()], total=7, has_more=True)

    async with connect(server) as client:
        found = await client.complete(prompt="review", argument="language", value="py", context={"style": "terse"})
        assert (list(found.values), found.total, found.has_more) == (["python", "terse"], 7, True)
        assert not (await client.complete(prompt="review", argument="style", value="")).values


# ── middleware and extensions ──


async def test_middleware_sees_the_request_and_may_answer_itself() -> None:
    seen: list[str] = []

    async def outer(ctx: Any, call_next: Any) -> Any:
        seen.append(f"outer {ctx.method}")
        if ctx.method == "tools/call" and ctx.params["name"] == "secret":
            raise MCPError(INVALID_PARAMS, "not for you")
        if ctx.method == "tools/call" and ctx.params["name"] == "cached":
            return {"content": [{"type": "text", "text": "from the cache"}]}
        return await call_next(ctx)

    async def inner(ctx: Any, call_next: Any) -> Any:
        seen.append(f"inner {ctx.request_id} {ctx.protocol_version}")
        return await call_next(ctx)

    server = MCPServer("middleware", middleware=[outer])
    server.middleware.append(inner)
    for name in ("open", "secret", "cached"):
        server.add_tool(lambda: "run", name=name)
    async with connect(server) as client:
        seen.clear()
        assert (await client.call_tool("open")).text == "run"
        assert (await client.call_tool("cached")).text == "from the cache"
        assert await refusal(client.call_tool("secret")) == "not for you"
    assert [line.split()[0] for line in seen] == ["outer", "inner", "outer", "outer"]
    assert seen[1].endswith("2025-11-25")


@pytest.mark.parametrize("revision", ERAS)
@pytest.mark.parametrize("in_place", [True, False])
async def test_middleware_may_change_what_a_call_gets(in_place: bool, revision: str) -> None:
    """As a middleware that takes secrets out of arguments does: what it changes must not arrive."""

    async def scrub(ctx: Any, call_next: Any) -> Any:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        if in_place:
            ctx.params["arguments"]["text"] = "scrubbed"
            return await call_next(ctx)
        params = {**ctx.params, "arguments": {"text": "scrubbed"}}
        return await call_next(replace(ctx, params=params))

    server = MCPServer("scrubs", middleware=[scrub])

    @server.tool()
    def echo(text: str, ctx: Context) -> str:
        return f"{text} {ctx.params['arguments']['text']} {ctx.method}"

    assert (await call(server, "echo", revision, text="secret")).text == "scrubbed scrubbed tools/call"


class SearchParams(mcp_types.RequestParams):
    query: str
    limit: int = Field(default=2, le=5)


class SearchResult(mcp_types.Result):
    items: list[str]


class Search(Extension):
    identifier = "com.example/search"

    def settings(self) -> dict[str, Any]:
        return {"max": 5}

    def tools(self) -> list[ToolBinding]:
        return [ToolBinding(fn=lambda: "stamped", meta={"k": 1}, kwargs={"name": "stamp"})]

    def resources(self) -> list[ResourceBinding]:
        return [ResourceBinding(TextResource(uri="search://help", text="help"))]

    def methods(self) -> list[MethodBinding]:
        return [
            MethodBinding("com.example/search", SearchParams, self.search),
            MethodBinding("com.example/new", SearchParams, self.search, protocol_versions=frozenset({MODERN})),
        ]

    async def search(self, ctx: Any, params: SearchParams) -> SearchResult:
        require_client_extension(ctx, self.identifier)
        return SearchResult(items=[f"{params.query}-{n}" for n in range(params.limit)])

    async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
        return {"content": [{"type": "text", "text": "held"}]} if params.name == "held" else await call_next(ctx)


async def test_an_extension_brings_tools_resources_methods_and_an_interceptor() -> None:
    server = MCPServer("extended", extensions=[Search()])
    server.add_tool(lambda: "ran", name="held")
    declared = {"extensions": {"com.example/search": {}}}
    wire = await HttpWire.session(server.asgi(), capabilities=declared)
    assert wire.welcome["capabilities"]["extensions"] == {"com.example/search": {"max": 5}}
    assert await wire.ask("com.example/search", {"query": "a"}) == {"items": ["a-0", "a-1"]}
    assert (await wire.post("com.example/search", {"query": "a", "limit": 9})).answer["error"]["code"] == INVALID_PARAMS
    assert (await wire.post("com.example/new", {"query": "a"})).answer["error"]["code"] == -32601
    assert text_of((await wire.call("stamp")).answer) == "stamped"
    assert text_of((await wire.call("held")).answer) == "held"
    other = await HttpWire.session(server.asgi())
    assert "error" in (await other.post("com.example/search", {"query": "a"})).answer


async def test_apps_have_views_as_there() -> None:
    apps = Apps()

    @apps.tool(resource_uri="ui://clock/app.html", visibility=["model", "app"], description="Time.")
    def clock(ctx: Context) -> str:
        return f"apps: {client_supports_apps(ctx)}"

    apps.add_html_resource(
        "ui://clock/app.html", "<!doctype html><title>Clock</title>", title="Clock", prefers_border=True,
        csp=ResourceCsp(connect_domains=["https://api.example.com"]), permissions=ResourcePermissions(camera={}),
    )  # fmt: skip
    apps.add_resource(TextResource(uri="ui://other", text="<!doctype html>"))
    server = MCPServer("apps", extensions=[apps])
    async with connect(server) as client:
        (tool,) = await client.list_tools()
        views = {each.uri: each for each in await client.list_resources()}
        (view,) = await client.read_resource("ui://clock/app.html")
        assert (await client.call_tool("clock")).text == "apps: False"
    assert tool.meta["ui"] == {"resourceUri": "ui://clock/app.html", "visibility": ["model", "app"]}
    assert {each.mime_type for each in views.values()} == {"text/html;profile=mcp-app"}
    assert view.meta["ui"]["csp"]["connectDomains"] == ["https://api.example.com"]
    assert (view.meta["ui"]["permissions"], view.meta["ui"]["prefersBorder"]) == ({"camera": {}}, True)


# ── serving ──


async def test_the_app_is_one_of_starlette_with_our_checks(caplog: pytest.LogCaptureFixture) -> None:
    server = MCPServer("http")
    server.add_tool(lambda: "hello", name="hello")

    @server.custom_route("/health", methods=["GET"])
    async def health(request: Request) -> Response:
        return JSONResponse({"path": request.url.path})

    security = TransportSecuritySettings(allowed_hosts=["mcp.example.com:*"], enable_dns_rebinding_protection=False)

    @server.custom_route("/named", ["POST"], name="named", include_in_schema=False)
    async def named(request: Request) -> Response:
        return JSONResponse(request.method)

    app = server.streamable_http_app(
        streamable_http_path="/", stateless_http=True, json_response=True, transport_security=security
    )
    assert "Host and Origin stay checked" in caplog.text
    app.add_route("/own", lambda _: JSONResponse("own"))
    async with server.session_manager.run():
        wire = HttpWire(app, path="/")
        assert text_of((await wire.call("hello")).answer) == "hello"
        allowed, foreign = {"host": "mcp.example.com:8443"}, {"host": "evil.example.com"}
        assert (await wire.call("hello", headers=allowed)).status == 200
        assert (await wire.call("hello", headers=foreign)).status == 403
        assert (await wire.raw("GET", path="/health").done()).json == {"path": "/health"}
        assert (await wire.raw("POST", path="/named").done()).json == "POST"


async def test_old_clients_find_their_stream_in_the_app_for_them() -> None:
    server = MCPServer("old")
    stream = await HttpWire(server.sse_app()).raw("GET", path="/sse").started()
    assert (await stream.event()).event == "endpoint"
    stream.leave()


async def test_apps_of_several_servers_are_mounted_in_one_host() -> None:
    servers = {name: MCPServer(name) for name in ("notes", "tasks")}
    for own, server in servers.items():
        server.add_tool(lambda own=own: own, name="who")
    apps = {f"/{name}": server.streamable_http_app() for name, server in servers.items()}
    host = Starlette(routes=[Mount(path, app=app) for path, app in apps.items()])
    for path, name in (("/notes/mcp", "notes"), ("/tasks/mcp", "tasks")):
        wire = await HttpWire.session(host, path=path)
        assert text_of((await wire.call("who")).answer) == name


def test_an_option_without_an_equal_is_refused() -> None:
    server = MCPServer("options")
    with pytest.raises(SetupError, match="colour"):
        server.streamable_http_app(colour="red")
    with pytest.raises(TypeError, match=f"colour.*{PAGE}"):
        MCPServer("options", colour="red")
    with pytest.raises(TypeError, match=f"auth_server_provider.*{PAGE}"):
        MCPServer("provider", auth_server_provider=object(), auth=AuthSettings("https://auth.example.com"))
    with pytest.raises(TypeError, match=rf"Client: elicitation_callback=.*{PAGE}"):
        Client(server, elicitation_callback=print)
    with pytest.raises(SetupError, match="belong together"):
        MCPServer("verifier", token_verifier=object())
    with pytest.raises(SetupError, match=f"subscriptions.*{PAGE}"):
        MCPServer("bus", subscriptions=object())


async def test_the_defaults_of_the_sdk_may_be_written_out() -> None:
    nothing = dict.fromkeys(("tools", "resources", "extensions", "middleware", "auth", "auth_server_provider"))
    server = MCPServer("plain", warn_on_duplicate_tools=True, debug=False, dependencies=[], **nothing)
    server.add_tool(lambda: "hello", "hello")
    assert (await call(server, "hello")).text == "hello"


async def test_a_server_without_subscriptions_says_so() -> None:
    capabilities = (await HttpWire(MCPServer("plain", subscriptions=False).asgi()).ask("server/discover"))[
        "capabilities"
    ]
    assert "tools" in capabilities
    assert not any("listChanged" in each for each in capabilities.values())


RESOURCE = "http://127.0.0.1:8000/mcp"


class Verifier(TokenVerifier):
    tokens: ClassVar = {
        "good": AccessToken(token="good", client_id="ann", scopes=["read"], resource=RESOURCE, subject="a"),
        "other": AccessToken(token="other", client_id="ann", scopes=["read"], resource="https://other.example/mcp"),
        "nowhere": AccessToken(token="nowhere", client_id="ann", scopes=["read"]),
        "old": AccessToken(token="old", client_id="ann", scopes=["read"], resource=RESOURCE, expires_at=1),
        "weak": AccessToken(token="weak", client_id="ann", scopes=[], resource=RESOURCE),
    }

    async def verify_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)


def protected(validate_token_resource: bool | None) -> MCPServer:
    settings = AuthSettings(
        issuer_url=AnyHttpUrl("https://auth.example.com"),
        resource_server_url=AnyHttpUrl(RESOURCE),
        required_scopes=["read"],
        validate_token_resource=validate_token_resource,
    )
    server = MCPServer("protected", auth=settings, token_verifier=Verifier())

    @server.tool()
    def whoami() -> str:
        token = get_access_token()
        assert token is not None
        with pytest.raises(SetupError, match=r"upstream_token.*Authorization"):
            _ = token.token
        return f"{token.client_id} {token.subject} {token.scopes}"

    return server


def test_tokens_can_not_be_for_a_resource_without_a_url() -> None:
    """Any resource would do."""
    settings = AuthSettings("https://auth.example.com", None, validate_token_resource=True)
    with pytest.raises(SetupError, match="validate_token_resource= needs resource_server_url="):
        MCPServer("protected", auth=settings, token_verifier=Verifier())


@pytest.mark.parametrize(("validate", "of_nowhere"), [(True, 401), (None, 200)])
async def test_tokens_are_verified_and_those_for_another_resource_are_refused_in_any_case(
    validate: bool | None, of_nowhere: int
) -> None:
    wire = HttpWire(protected(validate).streamable_http_app())
    found = {
        token: (await wire.call("whoami", headers={"authorization": f"Bearer {token}"})) for token in Verifier.tokens
    }
    statuses = {token: answer.status for token, answer in found.items()}
    assert statuses == {"good": 200, "other": 401, "nowhere": of_nowhere, "old": 401, "weak": 403}
    assert text_of(found["good"].answer) == "ann a ['read']"
    refused = await wire.call("whoami")
    assert refused.status == 401
    assert "oauth-protected-resource" in refused.headers["www-authenticate"]
    assert Verifier.tokens["good"].token == "good"


async def test_a_middleware_knows_the_caller() -> None:
    seen: list[Any] = []
    server = protected(True)

    async def gate(ctx: Any, call_next: Any) -> Any:
        seen.append(get_access_token())
        return await call_next(ctx)

    server.middleware.append(gate)
    await HttpWire(server.asgi()).call("whoami", headers={"authorization": "Bearer good"})
    assert [token.client_id for token in seen] == ["ann"]
    assert get_access_token() is None


def test_a_codec_of_states_is_named_and_not_used(caplog: pytest.LogCaptureFixture) -> None:
    MCPServer("codec", request_state_security=RequestStateSecurity(codec=object()))
    assert "codec= is not used" in caplog.text


# ── the client ──


async def test_the_client_gives_results_of_the_official_types() -> None:
    server = MCPServer("served")
    server.add_tool(lambda a: a + 1, name="add")
    for mode in ("legacy", "auto", MODERN):
        async with Client(server, mode=mode) as client:
            result = await client.call_tool("add", {"a": 1})
            assert isinstance(result, CallToolResult)
            assert (result.content[0].text, result.is_error) == ("2", False)  # type: ignore[union-attr]
            assert (await client.call_tool("add", {})).is_error
            assert [tool.name for tool in (await client.list_tools()).tools] == ["add"]
            with pytest.raises(AttributeError, match=PAGE):
                client.send_ping  # noqa: B018


PROGRAM = """
from dovetail.compat.mcp.server import MCPServer

mcp = MCPServer("program")

@mcp.tool()
def add(a: int, b: int) -> int:
    return a + b

if __name__ == "__main__":
    mcp.run({arguments})
"""


@pytest.mark.parametrize("run", ["mcp.run()", "import asyncio; asyncio.run(mcp.run_stdio_async())"])
async def test_a_program_runs_on_stdio(tmp_path: Path, run: str) -> None:
    program = tmp_path / "server.py"
    program.write_text(PROGRAM.replace("mcp.run({arguments})", run))
    async with Client([sys.executable, str(program)]) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}


def test_the_level_of_the_log_is_that_of_the_program() -> None:
    before = logging.getLogger("dovetail").level
    try:
        MCPServer("log")
        assert logging.getLogger("dovetail").level == before, "other programs of the process have theirs"
        MCPServer("log", log_level="DEBUG")
        assert logging.getLogger("dovetail").level == logging.DEBUG
    finally:
        logging.getLogger("dovetail").setLevel(before)
