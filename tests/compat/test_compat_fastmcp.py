"""Programs written for FastMCP on `dovetail.compat.fastmcp`: they import as there, and do the same."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import mcp_types
import pytest
from dovetail.compat.fastmcp.apps import AppConfig, ResourceCSP
from dovetail.compat.fastmcp.client.transports import NpxStdioTransport, UvxStdioTransport
from dovetail.compat.fastmcp.dependencies import (
    CurrentContext,
    CurrentFastMCP,
    CurrentHeaders,
    CurrentRequest,
    Depends,
    Progress,
)
from dovetail.compat.fastmcp.exceptions import NotFoundError, ResourceError, ToolError
from dovetail.compat.fastmcp.prompts import Message, PromptResult
from dovetail.compat.fastmcp.resources import (
    FileResource,
    Resource,
    ResourceContent,
    ResourceResult,
    TextResource,
)
from dovetail.compat.fastmcp.server import create_proxy
from dovetail.compat.fastmcp.server.dependencies import get_context, get_http_headers, get_http_request
from dovetail.compat.fastmcp.server.elicitation import AcceptedElicitation, CancelledElicitation, DeclinedElicitation
from dovetail.compat.fastmcp.server.lifespan import lifespan
from dovetail.compat.fastmcp.server.transforms import Namespace, ToolTransform, Visibility
from dovetail.compat.fastmcp.tools import Tool, ToolResult, tool
from dovetail.compat.fastmcp.tools.tool_transform import ArgTransform, ToolTransformConfig
from dovetail.compat.fastmcp.utilities.tasks import TaskConfig
from dovetail.compat.fastmcp.utilities.types import Audio, Image
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware as StarletteMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.testclient import TestClient

import dovetail
from dovetail.client import ElicitResult
from dovetail.compat.fastmcp import Client, Context, FastMCP, settings
from wire import Wire

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
REVISIONS = pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
PNG = b"\x89PNG\r\n\x1a\n"


@asynccontextmanager
async def connected(server: Any, revision: str = HANDSHAKE, **options: Any) -> AsyncIterator[Any]:
    async with Client(server, mode=revision, **options) as client:
        yield client


async def called(server: Any, name: str, revision: str = HANDSHAKE, **arguments: Any) -> dict[str, Any]:
    """The result of a tool as it is on the wire."""
    async with Wire(server, revision) as wire:
        result = await wire.ask("tools/call", {"name": name, "arguments": arguments})
        return {key: each for key, each in result.items() if key in ("content", "structuredContent", "isError")}


async def names(server: Any, revision: str = HANDSHAKE) -> list[str]:
    async with connected(server, revision) as client:
        return [each.name for each in await client.list_tools()]


# ── what tools return ──


@dataclass
class Person:
    name: str
    age: int


class Model(BaseModel):
    name: str


def text(value: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": value}]


ANN = {"name": "Ann", "age": 3}
IMAGE = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
RESULTS: list[tuple[Any, Any, dict[str, Any]]] = [
    (str, "a", {"content": text("a"), "structuredContent": {"result": "a"}}),
    (int, 3, {"content": text("3"), "structuredContent": {"result": 3}}),
    (list[int], [1, 2], {"content": text("[1,2]"), "structuredContent": {"result": [1, 2]}}),
    (dict, {"a": 1}, {"content": text('{"a":1}'), "structuredContent": {"a": 1}}),
    (Person, Person("Ann", 3), {"content": text('{"name":"Ann","age":3}'), "structuredContent": ANN}),
    (Model, Model(name="Ann"), {"content": text('{"name":"Ann"}'), "structuredContent": {"name": "Ann"}}),
    (Any, {"a": 1}, {"content": text('{"a":1}'), "structuredContent": {"a": 1}}),
    (Any, [1, 2], {"content": text("[1,2]")}),
    (Any, None, {"content": []}),
    (str, None, {"content": [], "structuredContent": {"result": None}}),
    (int, "no number", {"content": text("no number"), "structuredContent": {"result": "no number"}}),
    (list, [1, "a"], {"content": text('[1,"a"]')}),
    (Any, ["a", Image(data=PNG, format="png")], {"content": [*text("a"), IMAGE]}),
    (Any, mcp_types.TextContent(type="text", text="a"), {"content": text("a")}),
    (ToolResult, ToolResult("shown", {"a": 1}), {"content": text("shown"), "structuredContent": {"a": 1}}),
    (ToolResult, ToolResult(structured_content={"a": 1}), {"content": text('{"a":1}'), "structuredContent": {"a": 1}}),
    (Any, {"content": [{"type": "text", "text": "a"}]}, {
        "content": text('{"content":[{"type":"text","text":"a"}]}'), "structuredContent": {"content": text("a")},
    }),
]  # fmt: skip


@REVISIONS
@pytest.mark.parametrize(("annotation", "value", "expected"), RESULTS)
async def test_a_tool_returns_what_it_returns_there_in_every_revision(
    annotation: Any, value: Any, expected: dict[str, Any], revision: str
) -> None:
    server = FastMCP("test")

    def give() -> Any:
        return value

    give.__annotations__["return"] = annotation
    server.tool(give)
    assert await called(server, "give", revision) == {**expected, "isError": False}


async def test_values_that_are_no_objects_have_a_schema_with_a_result_and_clients_unwrap_them() -> None:
    server = FastMCP("test")

    @server.tool
    def find_people() -> list[Person]:
        return [Person("Ann", 3)]

    for revision in (HANDSHAKE, MODERN):
        async with connected(server, revision) as client:
            (found,) = await client.list_tools()
            assert found.title == "Find People"
            assert found.output_schema["properties"]["result"]["type"] == "array"
            assert found.output_schema["x-fastmcp-wrap-result"] is True
            assert (await client.call_tool("find_people")).data == [{"name": "Ann", "age": 3}]


async def test_what_an_unexpected_exception_says_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server = FastMCP("test", mask_error_details=True)

    @server.tool
    def fail() -> str:
        raise ValueError("secret")

    @server.tool
    def refuse() -> str:
        raise ToolError("because")

    failed = await called(server, "fail")
    assert failed["isError"] is True
    assert "secret" not in json.dumps(failed)
    assert "secret" in caplog.text
    assert (await called(server, "refuse"))["content"] == text("because")


# ── registration ──


class Calculator:
    @tool()
    def twice(self, x: int) -> int:
        return 2 * x


def plain(x: int) -> int:
    """Give x."""
    return x


async def test_tools_are_registered_in_all_forms_and_functions_stay_functions() -> None:
    server = FastMCP("test", tools=[plain])

    @server.tool("named")
    def first() -> str:
        return "first"

    @server.tool(name="other", tags={"a"}, annotations={"readOnlyHint": True}, description="Do it.")
    def second() -> str:
        return "second"

    server.tool(plain, name="third")
    server.add_tool(Calculator().twice)
    server.add_tool(Tool.from_function(plain, name="fourth"))
    assert (first(), second()) == ("first", "second")
    assert await names(server) == ["plain", "named", "other", "third", "twice", "fourth"]
    shown = {each.name: each for each in await server.list_tools()}
    assert shown["other"].tags == {"a"}
    assert shown["other"].annotations.read_only_hint is True
    assert shown["other"].description == "Do it."
    assert (await server.call_tool("twice", {"x": 4})).data == 8
    server.local_provider.remove_tool("twice")
    assert await server.get_tool("twice") is None


@pytest.mark.parametrize(("on_duplicate", "expected"), [(None, "2"), ("warn", "2"), ("replace", "2"), ("ignore", "1")])
async def test_a_second_tool_of_a_name_takes_its_place_unless_it_is_ignored(
    on_duplicate: str | None, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = FastMCP("test", on_duplicate=on_duplicate)
    for number in (1, 2):
        server.tool(lambda number=number: number, name="same")
    assert (await server.call_tool("same")).data == expected
    assert ("already exists" in caplog.text) == (on_duplicate in (None, "warn"))


def test_a_second_tool_of_a_name_is_an_error_where_it_shall_be() -> None:
    server = FastMCP("test", on_duplicate="error")
    server.tool(plain)
    with pytest.raises(ValueError, match="already exists: plain"):
        server.tool(plain)


async def test_options_of_the_server_are_those_of_dovetail() -> None:
    icon = mcp_types.Icon(src="https://example.com/a.png", mime_type="image/png")
    server = FastMCP(
        "test", "Ask first.", version=2, website_url="https://example.com", icons=[icon], list_page_size=1,
        cache_ttl=60, cache_scope="public", experimental_capabilities={"example.com/x": {}},
        strict_input_validation=True,
    )  # fmt: skip
    for each in ("one", "two"):
        server.tool(plain, name=each)
    async with Wire(server, MODERN) as wire:
        found = await wire.ask("server/discover")
        assert found["instructions"] == server.instructions == "Ask first."
        assert found["capabilities"]["experimental"] == {"example.com/x": {}}
        page = await wire.ask("tools/list")
        assert len(page["tools"]) == 1
        assert (page["ttlMs"], page["cacheScope"]) == (60_000, "public")
    assert (await called(server, "one", x="3"))["isError"] is True
    assert FastMCP().name.startswith("FastMCP-")


async def test_views_and_tasks_are_those_of_the_protocol() -> None:
    server = FastMCP("test")

    @server.tool(app=AppConfig(resource_uri="ui://a/view.html", csp=ResourceCSP(connect_domains=["https://a.example"])))
    def chart() -> str:
        return "chart"

    @server.resource("ui://a/view.html")
    def view() -> str:
        return "<html></html>"

    @server.tool(task=TaskConfig(mode="optional", poll_interval=2))
    async def slow() -> str:
        return "done"

    @server.tool(task=TaskConfig(mode="forbidden"))
    async def quick() -> str:
        return "done"

    async with connected(server) as client:
        shown = {each.name: each for each in await client.list_tools()}
        assert shown["chart"].meta["ui"] == {
            "resourceUri": "ui://a/view.html", "csp": {"connectDomains": ["https://a.example"]},
        }  # fmt: skip
        assert (shown["slow"].execution, shown["quick"].execution) == ({"taskSupport": "optional"}, None)
        (found,) = await client.list_resources()
        assert found.mime_type == "text/html;profile=mcp-app"
        assert (await client.call_tool("slow")).data == "done"


# ── resources and prompts ──


async def test_resources_give_text_json_and_several_contents() -> None:
    server = FastMCP("test")

    @server.resource("data://json", annotations={"readOnlyHint": True})
    def data() -> dict[str, int]:
        """Data.

        Args:
            none: Nothing.
        """
        return {"a": 1}

    @server.resource("data://several", meta={"a": 1}, tags={"x"})
    async def several() -> ResourceResult:
        return ResourceResult([ResourceContent({"b": 2}, mime_type="application/json"), ResourceContent(b"\0")])

    @server.resource("data://{name*}")
    def named(name: str) -> str:
        if name == "none":
            raise NotFoundError("There is none")
        if name == "refused":
            raise ResourceError("It is refused")
        return name

    server.add_resource(Resource.from_function(lambda: "a text", uri="text://a", name="A", description="Some."))
    async with connected(server) as client:
        listed = {each.uri: each for each in await client.list_resources()}
        assert listed["data://json"].mime_type == "text/plain"
        assert listed["data://json"].description == "Data.\n\nArgs:\n    none: Nothing."
        (found,) = await client.read_resource("data://json")
        assert (json.loads(found.text), found.mime_type) == ({"a": 1}, "text/plain")
        one, two = await client.read_resource("data://several")
        assert (json.loads(one.text), one.mime_type) == ({"b": 2}, "application/json")
        assert (two.blob, two.mime_type) == (b"\0", "application/octet-stream")
        (found,) = await client.read_resource("data://b/c.d")
        assert found.text == "b/c.d"
        assert (listed["text://a"].name, listed["text://a"].description) == ("A", "Some.")
        assert [each.text for each in await client.read_resource("text://a")] == ["a text"]
        for uri, says in (("data://none", "There is none"), ("data://refused", "It is refused")):
            with pytest.raises(dovetail.ServerError, match=says):
                await client.read_resource(uri)


async def test_resources_are_made_of_texts_and_files_and_read_by_tools(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A")
    server = FastMCP("test")
    server.add_resource(TextResource(uri="text://a", text="a text", name="A", description="Some.", tags={"x"}))
    server.add_resource(FileResource(uri="file:///a.md", path=tmp_path / "a.md", mime_type="text/markdown"))
    server.resource("data://content", name="content")(lambda: ResourceContent({"a": 1}))

    @server.tool
    async def read(uri: str, ctx: Context) -> list[Any]:
        (found,) = (await ctx.read_resource(uri)).contents
        return [found.content, found.mime_type]

    async with connected(server) as client:
        listed = {each.uri: each for each in await client.list_resources()}
        assert (listed["text://a"].name, listed["text://a"].description) == ("A", "Some.")
        assert (listed["file:///a.md"].name, listed["file:///a.md"].mime_type) == ("file:///a.md", "text/markdown")
        for uri, *expected in (
            ("text://a", "a text", "text/plain"), ("file:///a.md", "# A", "text/markdown"),
            ("data://content", '{"a":1}', "application/json"),
        ):  # fmt: skip
            (found,) = await client.read_resource(uri)
            assert [found.text, found.mime_type] == expected
            assert (await client.call_tool("read", {"uri": uri})).data == expected


async def test_values_of_templates_are_screened() -> None:
    server = FastMCP("test")

    @server.resource("docs://{path}")
    def doc(path: str) -> str:
        return path

    async with connected(server) as client:
        with pytest.raises(dovetail.ServerError):
            await client.read_resource("docs://..%5Csecret")


async def test_prompts_give_messages_by_the_peers_constructors() -> None:
    server = FastMCP("test")

    @server.prompt
    def several(topic: str) -> list[Message]:
        return [Message(f"About {topic}"), Message("Well.", role="assistant"), Message({"a": 1})]

    @server.prompt("whole")
    def result() -> PromptResult:
        return PromptResult("One", description="Shown", meta={"kind": "x"})

    async with Wire(server, HANDSHAKE) as wire:
        found = await wire.ask("prompts/get", {"name": "several", "arguments": {"topic": "cats"}})
        assert [(each["role"], each["content"]["text"]) for each in found["messages"]] == [
            ("user", "About cats"), ("assistant", "Well."), ("user", '{"a":1}'),
        ]  # fmt: skip
        found = await wire.ask("prompts/get", {"name": "whole"})
        assert (found["description"], found["_meta"]) == ("Shown", {"kind": "x"})


async def test_one_function_completes_all_arguments_and_gets_models_of_mcp_types() -> None:
    server = FastMCP("test")
    server.prompt(lambda theme: theme, name="poem")

    @server.completion
    def complete(ref: Any, argument: Any, context: Any) -> Any:
        if isinstance(ref, mcp_types.PromptReference) and argument.name == "theme":
            return mcp_types.Completion(values=["nature"], total=7, has_more=True)
        return None

    async with connected(server) as client:
        found = await client.complete(prompt="poem", argument="theme")
        assert (found.values, found.total, found.has_more) == (["nature"], 7, True)


def test_images_and_sounds_take_a_path_first(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    assert Image(tmp_path / "a.png").mime_type == "image/png"
    assert Audio(data=b"RIFF....WAVE", format="wav").mime_type == "audio/wav"


# ── the context, and what is injected ──


@REVISIONS
@pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")
async def test_the_context_has_the_peers_methods(revision: str) -> None:
    @lifespan
    async def database(server: FastMCP) -> AsyncIterator[dict[str, Any]]:
        yield {"database": server.name}

    @asynccontextmanager
    async def cache(server: FastMCP) -> AsyncIterator[dict[str, Any]]:
        yield {"cache": 1}

    server = FastMCP("test", lifespan=database | cache, client_log_level="debug")

    @server.tool
    async def show(ctx: Context) -> dict[str, Any]:
        assert get_context().fastmcp is ctx.fastmcp is server
        await ctx.info("hello", extra={"a": 1})
        found = await ctx.read_resource("data://a")
        return {
            "lifespan": ctx.lifespan_context, "id": ctx.request_id, "session": len(ctx.session_id) > 10,
            "transport": ctx.transport, "read": [each.content for each in found.contents],
            "answers": ctx.input_responses,
            "again": ctx.request_context.lifespan_context,
        }  # fmt: skip

    @server.resource("data://a")
    def data() -> str:
        return "read"

    logged: list[Any] = []
    async with connected(server, revision, log_handler=logged.append) as client:
        shown = (await client.call_tool("show", log_level="info" if revision == MODERN else None)).data
        assert isinstance(shown.pop("id"), str)
        database_ = {"database": "test", "cache": 1}
        assert shown == {
            "lifespan": database_, "again": database_, "session": True, "transport": None, "read": ["read"],
            "answers": None,
        }  # fmt: skip
    assert [each.data for each in logged] == [{"msg": "hello", "extra": {"a": 1}}]


def test_there_is_no_context_outside_of_a_call() -> None:
    assert get_http_headers() == {}
    for function in (get_context, get_http_request):
        with pytest.raises(RuntimeError, match="No active context"):
            function()


@REVISIONS
async def test_users_are_asked_and_programs_match_their_answers(revision: str) -> None:
    server = FastMCP("test")

    @server.tool
    async def ask(ctx: Context) -> str:
        match await ctx.elicit("Who are you?", response_type=Person):
            case AcceptedElicitation(data=person):
                return f"{person.name} is {person.age}"
            case DeclinedElicitation():
                return "declined"
            case CancelledElicitation():
                return "cancelled"
        raise AssertionError

    @server.tool
    async def choose(ctx: Context) -> str:
        several = await ctx.elicit("Which?", response_type=[["a", "b"]])
        one = await ctx.elicit("Which one?", ["a", "b"])
        return f"{several.data} {one.data}"

    answers: list[Any] = [
        Person("Ann", 3),
        ElicitResult("decline"),
        ElicitResult("cancel"),
        {"value": ["b"]},
        {"value": "a"},
    ]
    asked: list[Any] = []

    async def answer(message: str, response_type: Any, params: Any, context: Any) -> Any:
        asked.append((message, params.schema))
        return answers[len(asked) - 1]

    async with connected(server, revision, elicitation_handler=answer) as client:
        assert [(await client.call_tool("ask")).data for _ in range(3)] == ["Ann is 3", "declined", "cancelled"]
        assert (await client.call_tool("choose")).data == "['b'] a"


@REVISIONS
async def test_a_tool_may_ask_by_a_result_of_mcp_types(revision: str) -> None:
    server = FastMCP("test")

    @server.tool
    async def plan(ctx: Context) -> str | mcp_types.InputRequiredResult:
        if (answers := ctx.input_responses) is None:
            params = mcp_types.ElicitRequestFormParams(
                message="What?", requested_schema={"type": "object", "properties": {"what": {"type": "string"}}}
            )
            requests: Any = {"what": mcp_types.ElicitRequest(params=params)}
            return mcp_types.InputRequiredResult(
                result_type="input_required", input_requests=requests, request_state="begun"
            )
        answer = answers["what"]
        assert isinstance(answer, mcp_types.ElicitResult)
        return f"{ctx.request_state}: {(answer.content or {})['what']}"

    async with connected(server, revision, elicitation_handler=lambda *_: {"what": "soup"}) as client:
        assert (await client.call_tool("plan")).data == "begun: soup"
        (found,) = await client.list_tools()
        assert found.output_schema["properties"] == {"result": {"type": "string"}}


async def test_state_outlives_the_call() -> None:
    server = FastMCP("test")

    @server.tool
    async def write(ctx: Context) -> None:
        await ctx.set_state("a", {"b": 1})

    @server.tool
    async def read(ctx: Context) -> Any:
        found = await ctx.get_state("a")
        await ctx.delete_state("a")
        return {"a": found}

    async with connected(server) as client:
        await client.call_tool("write")
        assert (await client.call_tool("read")).data == {"a": {"b": 1}}
        assert (await client.call_tool("read")).data == {"a": None}


async def test_dependencies_are_injected() -> None:
    server = FastMCP("test")
    events: list[str] = []

    @asynccontextmanager
    async def database() -> AsyncIterator[str]:
        events.append("opened")
        yield "db"
        events.append("closed")

    def repository(db: str = Depends(database), ctx: Context = CurrentContext()) -> str:  # noqa: B008
        return f"{db} of {ctx.fastmcp.name}"

    @server.tool
    async def use(
        x: int, repo: str = Depends(repository), server: FastMCP = CurrentFastMCP(),  # noqa: B008
        headers: dict[str, str] = CurrentHeaders(), progress: Progress = Progress(),  # noqa: B008
    ) -> str:  # fmt: skip
        await progress.set_total(2)
        await progress.set_message("half of it")
        await progress.increment()
        return f"{x}: {repo}, {server.name}, {headers}, {progress.current} of {progress.total}"

    @server.tool
    def needs_http(request: Request = CurrentRequest()) -> str:  # noqa: B008
        return str(request.url)

    heard: list[Any] = []
    async with connected(server, progress_handler=lambda *given: heard.append(given)) as client:
        shown = {each.name: each.input_schema["properties"] for each in await client.list_tools()}
        assert shown == {"use": {"x": {"type": "integer"}}, "needs_http": {}}
        assert (await client.call_tool("use", {"x": 1})).data == "1: db of test, test, {}, 1 of 2"
        assert (await client.call_tool("use", {"x": 2})).data == "2: db of test, test, {}, 1 of 2"
        with pytest.raises(ToolError):
            await client.call_tool("needs_http")
    assert events == ["opened", "closed"] * 2
    assert heard[-1] == (1, 2, "half of it")


# ── what clients see ──


async def test_components_are_enabled_and_disabled_by_tags_and_names_also_before_they_are_there() -> None:
    server = FastMCP("test")
    server.disable(tags={"admin"})
    server.tool(plain, name="one", tags={"admin"})
    server.tool(plain, name="two", tags={"public"})
    server.tool(plain, name="three")
    assert await names(server) == ["two", "three"]
    server.add_transform(Visibility(False, names={"three"}))
    assert await names(server) == ["two"]
    server.enable(names={"one"})
    assert await names(server) == ["one", "two"]
    server.enable(tags={"public"}, only=True)
    assert await names(server) == ["two"]


async def test_a_session_sees_what_its_tools_have_enabled() -> None:
    server = FastMCP("test")
    server.tool(plain, tags={"premium"})

    @server.tool
    async def unlock(ctx: Context) -> str:
        await ctx.enable_components(tags={"premium"})
        return "unlocked"

    @server.tool
    async def reset(ctx: Context) -> str:
        await ctx.reset_visibility()
        return "reset"

    server.disable(tags={"premium"})
    async with connected(server) as client, connected(server) as other:
        for tool_, expected in ((None, 2), ("unlock", 3), ("reset", 2)):
            if tool_ is not None:
                await client.call_tool(tool_)
            assert len(await client.list_tools(fresh=True)) == expected
            assert len(await other.list_tools(fresh=True)) == 2


async def test_servers_are_mounted_and_their_tools_renamed() -> None:
    weather, server = FastMCP("weather"), FastMCP("main")

    @weather.tool
    def forecast(city: str) -> str:
        return f"Sunny in {city}"

    @weather.tool
    async def who(ctx: Context) -> str:
        return str(ctx.fastmcp.name)

    @weather.resource("data://cities")
    def cities() -> str:
        return "Rome"

    @weather.custom_route("/status", methods=["GET"])
    async def status(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.method)

    server.mount(weather, namespace="weather", tool_names={"forecast": "predict"})
    assert sorted(await names(server)) == ["weather_predict", "weather_who"]
    assert (await server.call_tool("weather_predict", {"city": "Rome"})).data == "Sunny in Rome"
    assert (await server.call_tool("weather_who")).data == "weather"
    async with connected(server) as client:
        assert [each.uri for each in await client.list_resources()] == ["data://weather/cities"]
    with TestClient(server.http_app(), base_url="http://127.0.0.1:8000") as http:
        assert http.get("/status").text == "GET"


async def test_transforms_change_what_is_there_and_what_comes() -> None:
    server = FastMCP("test", transforms=[Namespace("v1")])
    server.tool(plain)
    server.prompt(lambda a: a, name="ask")
    server.resource("data://a", name="a")(lambda: "a")
    server.resource("data://of/{a}", name="of")(lambda a: a)
    server.add_transform(ToolTransform({"v1_plain": ToolTransformConfig(name="give", description="New.")}))
    async with connected(server) as client:
        (found,) = await client.list_tools()
        assert (found.name, found.description) == ("give", "New.")
        assert (await client.call_tool("give", {"x": 3})).data == 3
        assert [each.name for each in await client.list_prompts()] == ["v1_ask"]
        assert [each.text for each in await client.read_resource("data://v1/a")] == ["a"]
        assert [each.text for each in await client.read_resource("data://v1/of/b")] == ["b"]


async def test_tools_are_made_of_others_with_other_arguments() -> None:
    @tool
    def search(q: str, limit: int = 10) -> str:
        """Search."""
        return f"{q} {limit}"

    arguments = {"q": ArgTransform(name="query", description="What for."), "limit": ArgTransform(hide=True, default=3)}
    server = FastMCP("test", tools=[Tool.from_tool(search, name="find", transform_args=arguments)])
    async with connected(server) as client:
        (found,) = await client.list_tools()
        assert (found.name, found.description) == ("find", "Search.")
        assert found.input_schema["properties"] == {"query": {"type": "string", "description": "What for."}}
        assert (await client.call_tool("find", {"query": "cats"})).data == "cats 3"


async def test_other_servers_are_offered_by_a_proxy() -> None:
    backend = FastMCP("backend", tools=[plain])
    assert (await create_proxy(backend).call_tool("plain", {"x": 2})).data == 2


def test_packages_are_run_by_commands() -> None:
    assert NpxStdioTransport(package="server-a", args=["--db"]) == ["npx", "--prefer-offline", "server-a", "--db"]
    assert UvxStdioTransport("server-b") == ["uvx", "server-b"]
    assert create_proxy(UvxStdioTransport("server-b"), name="b").name == "b"
    with pytest.raises(TypeError, match=r'env_vars= has no equal.*"From FastMCP"'):
        NpxStdioTransport("server-a", env_vars={})


async def test_apis_become_servers() -> None:
    from fastapi import FastAPI

    app = FastAPI(title="Shop")

    @app.get("/items/{number}", operation_id="get_item")
    def get_item(number: int) -> dict[str, int]:
        return {"number": number}

    server = FastMCP.from_fastapi(app, mcp_names={"get_item": "item"})
    assert server.name == "Shop"
    assert json.loads((await server.call_tool("item", {"number": 3})).text) == {"number": 3}
    client = httpx.AsyncClient(base_url="http://127.0.0.1:9", headers={"authorization": "bearer abcdefgh"})
    assert await names(FastMCP.from_openapi(app.openapi(), client)) == ["get_item"]
    await client.aclose()


# ── over HTTP ──


async def test_the_app_serves_in_a_host_with_its_lifespan_and_middleware() -> None:
    ran: list[str] = []

    @asynccontextmanager
    async def running(server: FastMCP) -> AsyncIterator[None]:
        ran.append("entered")
        yield
        ran.append("left")

    server = FastMCP("test", lifespan=running)

    @server.tool
    def show(ctx: Context) -> dict[str, Any]:
        return {"transport": ctx.transport, "x": get_http_headers().get("x-a"), "host": "host" in get_http_headers()}

    @server.custom_route("/health", ["GET"], name="health", include_in_schema=False)
    async def health(request: Request) -> PlainTextResponse:
        return PlainTextResponse("OK")

    class Stamp:
        def __init__(self, app: Any, text: str) -> None:
            self._app, self._text = app, text

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            ran.append(self._text)
            await self._app(scope, receive, send)

    app = server.http_app(path="/mcp", middleware=[StarletteMiddleware(Stamp, text="stamped")], stateless_http=True)
    host = Starlette(routes=[Mount("/tools", app=app)], lifespan=app.lifespan)
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "show", "arguments": {}}}
    accept = {"accept": "application/json, text/event-stream", "mcp-protocol-version": HANDSHAKE, "x-a": "b"}
    with TestClient(host, base_url="http://127.0.0.1:8000") as http:
        assert http.get("/tools/health").text == "OK"
        answer = http.post("/tools/mcp", json=body, headers=accept)
        assert answer.status_code == 200, answer.text
        assert '"transport":"streamable-http","x":"b","host":false' in answer.text.replace("\\", "")
        refused = http.post("/tools/mcp", json=body, headers={**accept, "host": "evil.example"})
        assert refused.status_code in (403, 421)
    assert (ran[0], ran[-1]) == ("entered", "left")
    assert "stamped" in ran


# ── what is not offered ──


@pytest.mark.parametrize(("attempt", "says"), [
    (lambda: FastMCP("a", resource_security=None), "unsafe="),
    (lambda: FastMCP("a", session_state_store=object()), "state="),
    (lambda: FastMCP("a", providers=[object()]), "mount a server"),
    (lambda: FastMCP("a").disable(keys={"tool:a"}), "names= and tags="),
    (lambda: FastMCP("a").http_app(host_origin_protection=False), "allowed_hosts="),
    (lambda: FastMCP("a").run("http", middleware=[object()]), r"http_app\(middleware"),
    (lambda: Tool.from_tool(plain, transform_fn=plain), "calls the function"),
    (lambda: FastMCP.from_openapi({}, route_maps=[]), "only="),
    (lambda: FastMCP.from_openapi({}, httpx.AsyncClient(headers={"X-Key": "a"})), "auth={name: secret}"),
    (lambda: FastMCP.from_openapi({}, httpx.AsyncClient(headers={"authorization": "Basic a"})), "a bearer token"),
    (lambda: FastMCP.from_openapi({}, httpx.AsyncClient(auth=("a", "b"))), "a bearer token"),
    (lambda: Depends(plain, x=1), "other dependencies"),
    (lambda: FastMCP("a").tool(plain, app=True), "add_ui"),
    (lambda: FastMCP.as_proxy("https://a.example/mcp"), "create_proxy"),
])  # fmt: skip
def test_what_has_no_equal_names_the_page(attempt: Callable[[], Any], says: str) -> None:
    with pytest.raises(ImportError, match=f'(?s){says}.*"From FastMCP"'):
        attempt()


@pytest.mark.parametrize("statement", [
    "from dovetail.compat.fastmcp import FastMCPApp",
    "from dovetail.compat.fastmcp.experimental.transforms.code_mode import CodeMode",
    "from dovetail.compat.fastmcp.server.transforms import VersionFilter",
    "from dovetail.compat.fastmcp.resources import HttpResource",
    "from dovetail.compat.fastmcp.tools.tool_transform import forward",
    "from dovetail.compat.fastmcp.server.providers import LocalProvider",
    "from dovetail.compat.fastmcp.server.auth.providers.azure import EntraOBOToken",
    "from dovetail.compat.fastmcp.nothing import Unknown",
])  # fmt: skip
def test_names_without_an_equal_are_refused_at_their_import(statement: str) -> None:
    with pytest.raises(ImportError, match='"From FastMCP"'):
        exec(statement)


def test_methods_without_an_equal_name_the_page() -> None:
    server: Any = FastMCP("a")
    assert not hasattr(server, "import_server")
    with pytest.raises(AttributeError, match=r'FastMCP\.run_http_async.*"From FastMCP"'):
        server.run_http_async()


def test_a_second_version_of_a_tool_is_refused() -> None:
    server = FastMCP("test")
    server.tool(plain, version="1.0")
    with pytest.raises(ImportError, match="each has one version"):
        server.tool(plain, version="2.0")


@pytest.mark.parametrize("attempt", [
    lambda: FastMCP("a", colour=1),
    lambda: FastMCP("a").tool(plain, colour=1),
    lambda: FastMCP("a").prompt(plain, colour=1),
    lambda: FastMCP("a").resource("data://a", colour=1)(plain),
    lambda: FastMCP("a").add_tool(Tool.from_tool(plain, colour=1)),
    lambda: FastMCP("a").mount(FastMCP("b"), colour=1),
    lambda: FastMCP.from_fastapi(None, "a", colour=1),
    lambda: Client(FastMCP("a"), colour=1),
])  # fmt: skip
def test_keywords_without_an_equal_name_the_page(attempt: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match='colour= has no equal in Dovetail; see the page "From FastMCP"'):
        attempt()


def test_a_resource_needs_its_uri() -> None:
    with pytest.raises(dovetail.SetupError, match="needs the URI"):
        FastMCP("test").resource(plain)  # type: ignore[arg-type]


def test_settings_are_there_to_be_read() -> None:
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
