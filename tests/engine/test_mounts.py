"""Mounted servers and registries: names, calls, questions, changes, lifespans, and what can't be mounted."""

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from costs import functions_called
from dovetail import (
    ArgTransform,
    Client,
    Context,
    Depends,
    ElicitRequest,
    EmbeddedResource,
    Proxy,
    ResourceContents,
    ResourceLink,
    Server,
    ServerError,
    SetupError,
    Text,
    ToolRegistry,
    ToolResult,
    ToolTransform,
)
from dovetail.engine.dispatch import handle
from dovetail.engine.request_context import RequestContext
from dovetail.protocol import inbound, jsonrpc, revisions
from dovetail.registry.mounts import own_uri, rename_meta, rename_uri
from http_serving import hosted, until
from wire import MODERN, Wire

HANDSHAKE = "2025-11-25"
ALL = list(revisions.BY_NAME)
every = pytest.mark.parametrize("revision", ALL)
eras = pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
everywhere = pytest.mark.parametrize(
    ("transport", "revision"),
    [("memory", HANDSHAKE), ("memory", MODERN), ("http", HANDSHAKE), ("http", MODERN)],
)
SECRET = "0123456789abcdef" * 2


def new_server(name: str, **options: Any) -> Server:
    return Server(name, version="1.0.0", **options)


def calendar(name: str = "calendar", **options: Any) -> Server:
    """A server with one of everything."""
    server = new_server(name, **options)

    @server.tool(tags=["sums"])
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def read(uri: str, ctx: Context) -> str:
        (contents,) = await ctx.read_resource(uri)
        return f"{contents.uri}: {contents.text}"

    @server.tool
    async def ask(ctx: Context) -> str:
        return f"Hello {(await ctx.elicit('Who are you?', str)).data}"

    @server.resource("notes://today", tags=["sums"])
    def today() -> str:
        return "today"

    @server.resource("notes://day/{day}")
    def on_day(day: str) -> str:
        return day

    if name == "calendar":
        server.add_resource("https://example.com/terms", lambda: "terms", name="terms")

    @server.prompt
    def plan(day: str) -> str:
        return f"Plan {day}"

    @server.completion(prompt="plan", argument="day")
    def days(value: str) -> list[str]:
        return [day for day in ("monday", "tuesday") if day.startswith(value)]

    return server


def desk(*children: Server, **options: Any) -> Server:
    server = new_server("desk", **options)
    for child in children:
        server.mount(child, namespace=child.name)
    return server


@asynccontextmanager
async def connected(
    server: Server, transport: str = "memory", revision: str = MODERN, **options: Any
) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        target: Any = server
        if transport == "http":
            target = f"{await stack.enter_async_context(hosted(server.asgi()))}/mcp"
        yield await stack.enter_async_context(Client(target, protocol_version=revision, timeout=20, **options))


async def names(client: Client) -> list[str]:
    return [tool.name for tool in await client.list_tools(fresh=True)]


def message(log: pytest.LogCaptureFixture) -> str:
    (record,) = [each for each in log.records if each.levelno >= logging.WARNING]
    return record.getMessage()


# ── names ──


@every
async def test_all_that_a_child_has_is_there_under_its_namespace(revision: str) -> None:
    async with connected(desk(calendar()), revision=revision) as client:
        assert await names(client) == ["calendar_add", "calendar_read", "calendar_ask"]
        assert [each.uri for each in await client.list_resources()] == [
            "notes://calendar/today",
            "https://example.com/terms",
        ]
        assert [each.uri_template for each in await client.list_resource_templates()] == ["notes://calendar/day/{day}"]
        assert [each.name for each in await client.list_prompts()] == ["calendar_plan"]
        assert (await client.call_tool("calendar_add", {"a": 1, "b": 2})).text == "3"
        for uri, text in {
            "notes://calendar/today": "today",
            "notes://calendar/day/5": "5",
            "https://example.com/terms": "terms",
        }.items():
            (contents,) = await client.read_resource(uri)
            assert (contents.uri, contents.text) == (uri, text)
        (said,) = (await client.get_prompt("calendar_plan", {"day": "monday"})).messages
        assert said.content.text == "Plan monday"
        wrong = await client.call_tool("calendar_add", {"a": "x", "b": 2}, raise_on_error=False)
        assert wrong.is_error
        with pytest.raises(ServerError, match="Unknown tool: add"):
            await client.call_tool("add", {"a": 1, "b": 2})
        with pytest.raises(ServerError, match="not found") as refusal:
            await client.read_resource("notes://calendar/other")
        assert refusal.value.data == {"uri": "notes://calendar/other"}


@every
async def test_completions_come_along(revision: str) -> None:
    async with Wire(desk(calendar()), revision) as wire:
        if revision != ALL[0]:
            welcome = wire.welcome if revision != MODERN else await wire.ask("server/discover")
            assert "completions" in welcome["capabilities"] or revision < "2025-03-26"
        found = await wire.ask(
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "calendar_plan"}, "argument": {"name": "day", "value": "m"}},
        )
        assert found["completion"]["values"] == ["monday"]
        for uri in ("notes://calendar/day/{day}", "notes://calendar/day/1"):
            ref = {"type": "ref/resource", "uri": uri}
            found = await wire.ask("completion/complete", {"ref": ref, "argument": {"name": "day", "value": ""}})
            assert found["completion"]["values"] == []


@pytest.mark.parametrize("inner_first", [True, False])
async def test_mounts_nest_in_any_order(inner_first: bool) -> None:
    root, middle, inner = new_server("root"), new_server("middle"), calendar()
    pairs = [(middle, inner, "calendar"), (root, middle, "desk")]
    for parent, child, namespace in pairs if inner_first else reversed(pairs):
        parent.mount(child, namespace)
    async with connected(root, elicitation_handler=lambda _: "Ann") as client:
        assert (await client.call_tool("desk_calendar_add", {"a": 1, "b": 2})).data == 3
        assert (await client.call_tool("desk_calendar_ask", {})).text == "Hello Ann"
        (contents,) = await client.read_resource("notes://desk/calendar/day/7")
        assert (contents.uri, contents.text) == ("notes://desk/calendar/day/7", "7")
        inner.add_tool(lambda: "new", name="late")
        assert (await client.call_tool("desk_calendar_late", {})).text == "new"
        assert middle.unmount("calendar")
        assert await names(client) == []


async def test_without_a_namespace_names_stay() -> None:
    server = new_server("desk")
    server.mount(calendar())
    async with connected(server) as client:
        assert "add" in await names(client)
        (contents,) = await client.read_resource("notes://today")
        assert contents.uri == "notes://today"


async def test_only_and_tags_choose() -> None:
    server = new_server("desk")
    server.mount(calendar(), "a", only=["a*", "notes://day/*"])
    server.mount(calendar("other"), "b", tags=["sums"])
    server.mount(calendar("third"), "c", only=["add", "read"], tags={"sums"})
    async with connected(server) as client:
        assert await names(client) == ["a_add", "a_ask", "b_add", "c_add"]
        assert [each.uri for each in await client.list_resources()] == ["notes://b/today"]
        assert [each.uri_template for each in await client.list_resource_templates()] == ["notes://a/day/{day}"]
        assert await client.list_prompts() == []


async def test_a_registry_runs_at_its_parent() -> None:
    server, tools = new_server("desk"), ToolRegistry()
    server.mount(tools, "math")

    async def where(ctx: Context) -> str:
        return ctx.lifespan

    tools.register_tool("where", "Where?", {"type": "object"}, where)
    async with connected(server) as client:
        assert await names(client) == ["math_where"]
        tools.register_tool("two", "Two", {"type": "object"}, lambda: "2")
        assert (await client.call_tool("math_two", {})).text == "2"
        tools.unregister_tool("two")
        assert await names(client) == ["math_where"]
        server.mount(tools, "again")
        assert server.unmount(tools)
        tools.register_tool("three", "Three", {"type": "object"}, lambda: "3")
        assert await names(client) == []
        assert not server.unmount(tools)


URIS = st.builds(
    "{}{}".format,
    st.from_regex(r"[A-Za-z][A-Za-z0-9+.-]{0,8}(://|:)", fullmatch=True),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30),
)


@given(uri=URIS, namespace=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,9}", fullmatch=True))
@example(uri="file:///x", namespace="a")
@example(uri="notes://", namespace="a")
@example(uri="HTTPS://a/b", namespace="a")
@example(uri="notes://a/a/x", namespace="a")
@example(uri="mailto:a?b://c", namespace="a")
def test_a_uri_that_is_renamed_and_renamed_back_is_the_same(uri: str, namespace: str) -> None:
    assert own_uri(rename_uri(uri, namespace), namespace) == uri
    assert rename_uri(uri, "") == uri == own_uri(uri, "")


def test_how_uris_are_renamed() -> None:
    pairs = {"notes://x": "notes://a/x", "notes://": "notes://a/", "file:///x": "file://a//x", "urn:x": "urn:x"}
    assert {uri: rename_uri(uri, "A") for uri in pairs} == pairs
    assert own_uri("notes://b/x", "a") is None
    assert own_uri("notes://a", "a") is None


def test_how_uris_in_meta_are_renamed() -> None:
    own, new, other = "notes://x", "notes://a/x", "notes://y"
    for meta, renamed in (
        (own, new), ([own], [new]), ((own, other), [new, other]), ({"k": own}, {"k": new}),
        ({"k": 1, "l": [[own], other]}, {"k": 1, "l": [[new], other]}), ([{"k": (own,)}, {}], [{"k": [new]}, {}]),
    ):  # fmt: skip
        assert rename_meta(meta, {own: new, other: other}.__getitem__) == renamed
    for same in (None, 5, "x", other, [], [other, 1], {"k": other, "l": [{}, [other]]}, {own: 1}):
        assert rename_meta(same, {other: other}.__getitem__) == same


# ── results ──


@every
async def test_links_and_meta_have_the_names_of_the_parent(revision: str) -> None:
    child = calendar()
    link = ResourceLink("notes://day/1", "one")
    strange = ResourceLink("other://day/1", "two", meta={"see": ["notes://today", "notes://nothing", 1]})
    embedded = EmbeddedResource(ResourceContents("notes://today", text="x"))

    @child.tool(meta={"ui": {"resourceUri": "notes://today"}, "other": "ui://nothing"})
    def links() -> ToolResult:
        meta = {"deep": {"uri": "notes://today"}, "text": "read notes://today"}
        return ToolResult(content=[link, strange, embedded], meta=meta)

    @child.prompt
    def linked() -> Any:
        return [embedded]

    async with connected(desk(child), revision=revision) as client:
        (tool,) = [each for each in await client.list_tools() if each.name == "calendar_links"]
        if revision >= "2025-06-18":
            assert tool.meta == {"ui": {"resourceUri": "notes://calendar/today"}, "other": "ui://nothing"}
        result = await client.call_tool("calendar_links", {})
        if revision >= "2025-06-18":
            assert [each.uri for each in result.content[:2]] == ["notes://calendar/day/1", "other://day/1"]
            assert result.content[1].meta == {"see": ["notes://calendar/today", "notes://nothing", 1]}
        assert result.content[2].resource.uri == "notes://calendar/today"
        assert (result.meta or {})["deep"] == {"uri": "notes://calendar/today"}
        assert (result.meta or {})["text"] == "read notes://today"
        (said,) = (await client.get_prompt("calendar_linked")).messages
        assert said.content.resource.uri == "notes://calendar/today"


async def test_each_server_reads_by_its_own_uris() -> None:
    server = desk(calendar())

    @server.tool
    async def read(uri: str, ctx: Context) -> str:
        (contents,) = await ctx.read_resource(uri)
        return f"{contents.uri}: {contents.text}"

    async with connected(server) as client:
        for name, uri in {"calendar_read": "notes://day/2", "read": "notes://calendar/day/2"}.items():
            assert (await client.call_tool(name, {"uri": uri})).text == f"{uri}: 2"
        lost = await client.call_tool("read", {"uri": "notes://day/2"}, raise_on_error=False)
        assert lost.is_error


# ── what comes along ──


async def reply(request: ElicitRequest) -> str:
    return "Ann"


@everywhere
async def test_a_mounted_tool_asks(transport: str, revision: str) -> None:
    async with connected(desk(calendar()), transport, revision, elicitation_handler=reply) as client:
        assert (await client.call_tool("calendar_ask", {})).text == "Hello Ann"


@everywhere
async def test_mounted_prompts_and_resources_ask(
    transport: str, revision: str, caplog: pytest.LogCaptureFixture
) -> None:
    child = new_server("calendar")

    @child.prompt
    async def greet(ctx: Context) -> str:
        return f"Hello {(await ctx.elicit('Who?', str)).data}"

    @child.resource("notes://{day}")
    async def note(day: str, ctx: Context) -> str:
        return f"{day} of {(await ctx.elicit('Who?', str)).data}"

    async with connected(desk(child), transport, revision, elicitation_handler=reply) as client:
        (said,) = (await client.get_prompt("calendar_greet")).messages
        assert said.content.text == "Hello Ann"
        (contents,) = await client.read_resource("notes://calendar/monday")
        assert (contents.uri, contents.text) == ("notes://calendar/monday", "monday of Ann")
    assert not caplog.records


async def test_a_request_state_is_good_for_one_mounted_tool() -> None:
    server = desk(calendar("one"), calendar("two"))
    async with Wire(server, MODERN, capabilities={"elicitation": {}}) as wire:
        asked = await wire.ask("tools/call", {"name": "one_ask", "arguments": {}})
        again = {"arguments": {}, "requestState": asked["requestState"], "inputResponses": {}}
        assert (await wire.refusal("tools/call", {"name": "two_ask", **again}))["code"] == -32602
        assert (await wire.ask("tools/call", {"name": "one_ask", **again}))["resultType"] == "input_required"


@everywhere
async def test_the_states_of_two_servers_do_not_collide(transport: str, revision: str) -> None:
    def notebook() -> Server:
        server = new_server("notebook")

        @server.tool
        async def write(text: str, ctx: Context) -> list[str]:
            return await ctx.state.update("pages", lambda pages: [*pages, text], list[str], [])

        return server

    server = notebook()
    server.mount(notebook(), "a")
    server.mount(notebook(), "b")
    if transport == "http" and revision == MODERN:
        return  # callers are unknown there
    async with connected(server, transport, revision) as client:
        for name in ("write", "a_write", "b_write"):
            assert (await client.call_tool(name, {"text": name})).data == [name]
        assert (await client.call_tool("a_write", {"text": "more"})).data == ["a_write", "more"]


@eras
async def test_idempotency_and_cache_come_along(revision: str) -> None:
    def shop(name: str, runs: list[str]) -> Server:
        server = new_server(name)

        @server.tool(idempotency=True)
        async def pay(amount: int) -> int:
            runs.append(name)
            return amount

        @server.tool(cache=60)
        async def price(article: str) -> int:
            runs.append(article)
            return len(runs)

        return server

    runs: list[str] = []
    server = desk(shop("one", runs), shop("two", runs))
    async with Wire(server, revision) as wire:
        welcome = wire.welcome if revision != MODERN else await wire.ask("server/discover")
        assert "dovetail/idempotency" in welcome["capabilities"]["experimental"]
        for name in ("one_pay", "one_pay", "two_pay"):
            params = {"name": name, "arguments": {"amount": 5}, "_meta": {"dovetail/idempotencyKey": SECRET}}
            result = await wire.ask("tools/call", params)
            assert result["content"][0]["text"] == "5"
        assert runs == ["one", "two"]
        prices = [await wire.ask("tools/call", {"name": "one_price", "arguments": {"article": "x"}}) for _ in range(2)]
        assert [each["content"][0]["text"] for each in prices] == ["3", "3"]


async def test_middleware_of_the_parent_is_around_that_of_the_child() -> None:
    child, seen = calendar(), list[str]()
    server = desk(child)

    def spy(name: str) -> Callable[..., Any]:
        async def middleware(request: Any, call_next: Any) -> Any:
            if request.method == "tools/call":
                seen.append(f"{name} {request.params.name}")
                result = await call_next(request)
                seen.append(f"{name} {request.params.name} ended")
                return result
            return await call_next(request)

        return middleware

    server.middleware(spy("parent"))
    child.middleware(spy("child"))
    async with connected(server, elicitation_handler=reply) as client:
        await client.call_tool("calendar_add", {"a": 1, "b": 2})
        assert seen == ["parent calendar_add", "child add", "child add ended", "parent calendar_add ended"]
        assert (await client.call_tool("calendar_ask", {})).text == "Hello Ann"


async def test_limits_timeouts_and_dependencies_are_those_of_the_child() -> None:
    child = new_server("calendar", timeout=1, rate_limit="3/day")

    def number() -> int:
        return 1

    @child.tool
    def tell(value: Annotated[int, Depends(number)]) -> int:
        return value

    @child.tool
    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    @child.tool(rate_limit="1/day")
    async def rare() -> str:
        return "rare"

    child.dependency_overrides[number] = lambda: 2
    server = desk(child)
    server.add_tool(lambda: "free", name="free")
    async with connected(server) as client:
        assert (await client.call_tool("calendar_tell", {})).data == 2
        assert "did not finish" in (await client.call_tool("calendar_hang", {}, raise_on_error=False)).text
        assert (await client.call_tool("calendar_rare", {})).text == "rare"
        with pytest.raises(ServerError, match="3 requests per day"):
            await client.call_tool("calendar_rare", {})
        assert [(await client.call_tool("free", {})).text for _ in range(5)] == ["free"] * 5


async def test_access_rules_come_along() -> None:
    child = new_server("calendar")
    child.add_tool(lambda: "secret", name="secret", authorize=lambda principal: principal is not None)
    child.add_resource("notes://secret/{id}", lambda id: id, name="note", authorize=lambda principal: False)
    async with connected(desk(child)) as client:
        assert await names(client) == []
        assert await client.list_resource_templates() == []
        with pytest.raises(ServerError, match="Unknown tool: calendar_secret"):
            await client.call_tool("calendar_secret", {})
        with pytest.raises(ServerError, match="not found"):
            await client.read_resource("notes://calendar/secret/1")


async def test_a_call_is_as_short_with_5000_mounted_tools_as_with_one() -> None:
    called: dict[int, list[str]] = {}
    for count in (1, 5_000):
        child = new_server("big")
        for number in range(count):
            child.add_tool(lambda a: "x", name=f"t{number}", input_schema={"type": "object"}, thread=False)
        server = desk(child)
        meta = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
        params = {"name": "big_t0", "arguments": {"a": 1}, "_meta": meta}
        call = jsonrpc.encode({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        request, emit = inbound.modern(inbound.parse_request(jsonrpc.decode(call))), None
        await server.engine.start(server)
        await handle(server.engine, RequestContext(request, emit))  # type: ignore[arg-type]
        with functions_called() as called[count]:
            body = await handle(server.engine, RequestContext(request, emit))  # type: ignore[arg-type]
        await server.engine.stop()
        assert b'"isError":false' in body
    assert called[1] == called[5_000]


# ── changes ──


@everywhere
async def test_tools_that_come_and_go_are_announced(transport: str, revision: str) -> None:
    child, other = calendar(), calendar("other")
    server = desk(child)
    async with connected(server, transport, revision) as client, client.listen(tools=True) as changes:
        for change in (
            lambda: child.add_tool(lambda: "", name="late"),
            lambda: child.remove_tool("late"),
            lambda: server.mount(other, "other"),
            lambda: server.unmount(other),
        ):
            before = await names(client)
            change()
            assert (await asyncio.wait_for(anext(changes), 10)).kind == "tools"
            assert before != await names(client)


@everywhere
async def test_a_mounted_resource_is_watched(transport: str, revision: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1")
    child = calendar()
    child.add_directory(tmp_path, uri="docs://all")
    child.engine.resources.watch_options = {"poll_seconds": 0.02, "use_watchfiles": False}
    uris = ["notes://calendar/today", "docs://calendar/all/a.txt"]
    async with connected(desk(child), transport, revision) as client:
        assert uris[1] in [each.uri for each in await client.list_resources()]
        async with client.listen(uris=uris) as changes:
            child.notify_resource_updated("notes://today")
            assert (await asyncio.wait_for(anext(changes), 10)).uri == uris[0]
            (tmp_path / "a.txt").write_text("22")
            assert (await asyncio.wait_for(anext(changes), 10)).uri == uris[1]
        (contents,) = await client.read_resource(uris[1])
        assert (contents.uri, contents.text) == (uris[1], "22")


@eras
async def test_a_template_with_a_variable_scheme_is_watched(revision: str) -> None:
    child, uri = calendar(), "rooms://all/1"
    child.add_resource("{scheme}://all/{id}", lambda scheme, id: scheme + id, name="all")
    async with connected(desk(child), revision=revision) as client:
        assert (await client.read_resource(uri))[0].text == "rooms1"
        async with client.listen(uris=[uri]) as changes:
            child.notify_resource_updated(uri)
            assert (await asyncio.wait_for(anext(changes), 10)).uri == uri


@eras
async def test_a_resource_of_a_backend_is_watched_before_its_lists_are_known_and_while_it_is_mounted(
    revision: str,
) -> None:
    backend, server = calendar(), new_server("desk")
    proxy, uri = Proxy(backend, name="calendar"), "notes://calendar/today"
    server.mount(proxy, "calendar")
    async with connected(server, revision=revision) as client:
        if revision == HANDSHAKE:
            await client.list_resources()  # it subscribes only to what is known
        async with client.listen(uris=[uri]) as changes:
            for _ in range(2):
                await until(lambda: backend.engine.hub.uris() == ["notes://today"])
                backend.notify_resource_updated("notes://today")
                assert (await asyncio.wait_for(anext(changes), 10)).uri == uri
                assert await asyncio.to_thread(server.unmount, proxy)
                await until(lambda: not backend.engine.hub.uris())
                await asyncio.to_thread(server.mount, proxy, "calendar")
            await until(lambda: backend.engine.hub.uris() == ["notes://today"])
        await until(lambda: not backend.engine.hub.uris())


@eras
async def test_an_update_of_what_a_backend_does_not_list_any_more_is_passed(revision: str) -> None:
    backend, server = calendar(), new_server("desk")
    server.mount(Proxy(backend, protocol_version=revision), "calendar")
    async with connected(server, revision=revision) as client:
        await client.list_resources()
        async with client.listen(resources=True, uris=["notes://calendar/today"]) as changes:
            await until(lambda: backend.engine.hub.uris() == ["notes://today"])
            backend.remove_resource("notes://today")
            assert (await asyncio.wait_for(anext(changes), 10)).kind == "resources"
            assert "notes://calendar/today" not in [each.uri for each in await client.list_resources(fresh=True)]
            backend.notify_resource_updated("notes://today")
            assert (await asyncio.wait_for(anext(changes), 10)).uri == "notes://calendar/today"


@eras
async def test_a_subscription_passes_to_the_server_that_a_freed_uri_leads_to(revision: str) -> None:
    server, backends, proxies = new_server("desk", declare=["resources"]), [calendar(), calendar()], list[Proxy]()
    async with connected(server, revision=revision) as client:
        for number, backend in enumerate(backends):
            proxies.append(Proxy(backend, name=f"number{number}"))
            server.mount(proxies[-1])
            await client.list_resources(fresh=True)
        async with client.listen(uris=["notes://today"]) as changes:
            for backend, proxy in zip(backends, proxies, strict=True):
                await until(lambda backend=backend: backend.engine.hub.uris() == ["notes://today"])
                backend.notify_resource_updated("notes://today")
                assert (await asyncio.wait_for(anext(changes), 10)).uri == "notes://today"
                server.unmount(proxy)
                await until(lambda backend=backend: not backend.engine.hub.uris())


async def test_the_meta_of_a_backends_tools_has_the_uris_of_the_parent() -> None:
    backend, server = calendar(), new_server("desk")
    meta = {"ui": {"resourceUri": "notes://today"}}
    backend.add_tool(lambda: ToolResult(content=[Text("", meta=meta)]), name="show", meta=meta)
    server.mount(Proxy(backend), "calendar", only=["show", "notes://*"])
    async with connected(server) as client:
        (tool,) = await client.list_tools()
        assert tool.meta == {"ui": {"resourceUri": "notes://calendar/today"}}
        [block] = (await client.call_tool("calendar_show")).content
        assert block.meta == {"ui": {"resourceUri": "notes://calendar/today"}}


async def test_the_files_of_a_child_are_listed_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1")
    child = new_server("calendar")
    child.add_directory(tmp_path, uri="docs://all", tags=["docs"])
    server = new_server("desk")
    server.mount(child, "calendar", tags=["docs"])
    async with Wire(server, MODERN) as wire:
        for name, text in {"a.txt": "22", "b.txt": "333"}.items():
            (tmp_path / name).write_text(text)
            child.engine.resources.mark_files_stale()
            listed = (await wire.ask("resources/list"))["resources"]
            assert (listed[-1]["uri"], listed[-1]["size"]) == (f"docs://calendar/all/{name}", len(text))
        ref = {"type": "ref/resource", "uri": "docs://calendar/all/{+path}"}
        found = await wire.ask("completion/complete", {"ref": ref, "argument": {"name": "path", "value": "b"}})
        assert found["completion"]["values"] == ["b.txt"]


async def test_cached_contents_of_a_child_are_dropped_with_a_change() -> None:
    child, reads = new_server("calendar"), list[int]()
    child.add_resource("notes://x", lambda: str(reads.append(1) or len(reads)), name="x", cache=60)
    server = desk(child)
    async with connected(server) as client:
        for notify, uri in ((child, "notes://x"), (server, "notes://calendar/x")):
            before = (await client.read_resource("notes://calendar/x", fresh=True))[0].text
            notify.notify_resource_updated(uri)
            assert (await client.read_resource("notes://calendar/x", fresh=True))[0].text != before


async def test_lists_are_brought_up_to_date_by_all_children_at_once(caplog: pytest.LogCaptureFixture) -> None:
    children = [new_server(name, declare=["tools", "resources"]) for name in ("one", "two", "bad")]
    entered, all_in = list[str](), asyncio.Event()

    def refresh(child: Server) -> Any:
        async def before_list(context: RequestContext) -> None:
            entered.append(child.name)
            if len(entered) >= 3:
                all_in.set()
            await all_in.wait()
            if child.name == "bad":
                raise RuntimeError("no")
            if not len(child.engine.tools):
                child.add_tool(lambda: child.name, name="tell")

        return before_list

    def adding_resource(child: Server) -> Any:
        async def before_list(context: RequestContext) -> None:
            if child.engine.resources.get("notes://x") is None:
                child.add_resource("notes://x", lambda: "x", name="x")

        return before_list

    async def read_note(ctx: Context) -> str:
        return str((await ctx.read_resource("notes://one/x"))[0].text)

    for child in children:
        child.engine.before_list.append(refresh(child))
    server = desk(*children)
    async with connected(server) as client:
        assert (await client.call_tool("one_tell", {})).text == "one"
        assert await names(client) == ["one_tell", "two_tell"]
        children[0].engine.before_list.append(adding_resource(children[0]))
        server.add_tool(read_note)
        assert (await client.call_tool("read_note", {})).text == "x"
        with pytest.raises(ServerError):
            await client.read_resource("notes://one/y")
    assert "the lists of 'bad' could not be brought up to date" in caplog.text


# ── the order of lists ──


def fetching(name: str, gate: asyncio.Event, listed: list[str]) -> Server:
    """A server whose tools are known when the gate opens, in the order that is listed then."""

    async def before_list(context: RequestContext) -> None:
        await gate.wait()
        for each in [each for each in child.engine.tools.names() if each not in listed]:
            child.remove_tool(each)
        for each in listed:
            if each not in child.engine.tools.names():
                child.add_tool(lambda: "", name=each)

    child = new_server(name, declare=["tools"])
    child.engine.before_list.append(before_list)
    return child


@pytest.mark.parametrize("order", [("one", "two", "three"), ("three", "two", "one")])
async def test_lists_are_in_the_order_of_mounting_whoever_answers_first(order: tuple[str, ...]) -> None:
    gates = {name: asyncio.Event() for name in ("one", "two", "three")}
    server = new_server("desk", declare=["tools"])
    for name, gate in gates.items():
        server.mount(fetching(name, gate, ["a", "b"]), name)
    server.add_tool(lambda: "", name="own")

    async def answer() -> None:
        for name in order:
            gates[name].set()
            await asyncio.sleep(0.02)

    async with connected(server) as client:
        answering = asyncio.create_task(answer())
        assert await names(client) == ["own", "one_a", "one_b", "two_a", "two_b", "three_a", "three_b"]
        await answering
        server.add_tool(lambda: "", name="late")
        assert (await names(client))[:3] == ["own", "late", "one_a"]


async def test_a_cursor_of_one_worker_is_right_at_another() -> None:
    """Both have the same mounts now, but not the same past."""
    workers = []
    for past in (True, False):
        server, listed = new_server("desk", page_size=2, secret=SECRET), ["a", "c"]
        gone, calendar, notes = new_server("gone"), new_server("calendar"), ToolRegistry()
        if past:
            gone.add_tool(lambda: "", name="a")
            server.mount(gone, "gone")
        server.mount(Proxy(calendar), "calendar")
        for name in listed if past else ["a", "b", "c"]:
            calendar.add_tool(lambda: "", name=name)
        server.mount(notes, "notes")
        for name in ("x", "y", "z"):
            notes.register_tool(name, name, {"type": "object"}, lambda: "")
        if past:
            server.unmount(gone)
        workers.append((server, calendar))
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(Wire(server, MODERN)) for server, _ in workers]
        await wires[0].ask("tools/list")
        workers[0][1].remove_tool("c")
        for name in ("b", "c"):
            workers[0][1].add_tool(lambda: "", name=name)
        found: list[str] = []
        cursor: dict[str, str] = {}
        for turn in range(3):
            await until(lambda: len(workers[0][0].engine.tools) == 6)
            page = await wires[turn % 2].ask("tools/list", cursor)
            found += [each["name"] for each in page["tools"]]
            cursor = {"cursor": page.get("nextCursor", "")}
        assert found == ["calendar_a", "calendar_b", "calendar_c", "notes_x", "notes_y", "notes_z"]
        assert not cursor["cursor"]


async def test_mounts_from_several_threads_lose_no_tool() -> None:
    for _ in range(10):
        server, children = new_server("desk", page_size=7), [new_server(f"c{number}") for number in range(4)]
        for child in children:
            for number in range(60):
                child.add_tool(lambda: "", name=f"t{number}")
        together = threading.Barrier(len(children))

        def mount(child: Server, server: Server = server, together: threading.Barrier = together) -> None:
            together.wait()
            server.mount(child, child.name)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            await asyncio.gather(*(asyncio.to_thread(mount, child) for child in children))
        finally:
            sys.setswitchinterval(interval)
        async with connected(server) as client:
            found = await names(client)
        assert len(set(found)) == len(found) == 240


async def test_a_proxy_lists_in_the_order_of_its_backend() -> None:
    backend = new_server("backend")
    for name in ("a", "c"):
        backend.add_tool(lambda: "", name=name)
    proxy = Proxy(backend)
    proxy.add_tool(lambda: "", name="own")
    async with connected(proxy) as client:
        assert await names(client) == ["own", "a", "c"]
        backend.remove_tool("a")
        backend.add_tool(lambda: "", name="b")
        backend.add_tool(lambda: "new", name="a")
        await until(lambda: len(proxy.engine.tools) == 4)
        assert await names(client) == ["own", "c", "b", "a"]


# ── lifespans ──


def with_lifespan(name: str, events: list[str]) -> Server:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[str]:
        events.append(f"{server.name} begins")
        yield f"life of {server.name}"
        events.append(f"{server.name} ends")

    server = new_server(name, lifespan=lifespan)

    @server.tool
    async def life(ctx: Context) -> str:
        return ctx.lifespan

    return server


async def test_the_lifespan_of_a_child_is_inside_that_of_its_parent() -> None:
    events: list[str] = []
    server, child = with_lifespan("desk", events), with_lifespan("calendar", events)
    server.mount(child, "calendar")
    for _ in range(2):
        events.clear()
        async with connected(server) as client:
            assert (await client.call_tool("calendar_life", {})).text == "life of calendar"
            assert (await client.call_tool("life", {})).text == "life of desk"
        assert events == ["desk begins", "calendar begins", "calendar ends", "desk ends"]


async def test_a_server_that_is_mounted_while_its_parent_runs() -> None:
    events: list[str] = []
    server, child = with_lifespan("desk", events), with_lifespan("calendar", events)
    entered, go = asyncio.Event(), asyncio.Event()

    @child.tool
    async def wait() -> str:
        entered.set()
        await go.wait()
        return "done"

    async with connected(server) as client:
        await asyncio.to_thread(server.mount, child, "calendar")
        assert (await client.call_tool("calendar_life", {})).text == "life of calendar"
        call = asyncio.create_task(client.call_tool("calendar_wait", {}))
        await entered.wait()
        assert server.unmount("calendar")
        assert await names(client) == ["life"]
        assert events == ["desk begins", "calendar begins"]
        go.set()
        assert (await call).text == "done"
        await until(lambda: events[-1] == "calendar ends")
        server.mount(child, "again")
        assert (await client.call_tool("again_life", {})).text == "life of calendar"
        server.unmount(child)
        server.mount(child, "third")
        assert (await client.call_tool("third_life", {})).text == "life of calendar"
    assert events[-2:] == ["calendar ends", "desk ends"]
    assert events.count("calendar begins") == events.count("calendar ends")


async def test_a_tool_may_unmount_its_own_server() -> None:
    events: list[str] = []
    server, child = new_server("desk"), with_lifespan("calendar", events)
    child.add_tool(lambda: server.unmount(child), name="leave")
    async with connected(server) as client:
        server.mount(child, "calendar")
        assert (await client.call_tool("calendar_leave", {})).text == "true"
        assert await names(client) == []
        await until(lambda: events == ["calendar begins", "calendar ends"])
    assert child.engine.parent is None


async def test_a_lifespan_may_unmount_its_own_server() -> None:
    events: list[str] = []
    server = new_server("desk")

    @asynccontextmanager
    async def lifespan(child: Server) -> AsyncIterator[None]:
        events.append("begins")
        server.unmount(child)
        yield
        events.append("ends")

    server.mount(new_server("calendar", lifespan=lifespan), "calendar")
    async with connected(server):
        assert events == ["begins", "ends"]


async def test_a_lifespan_that_unmounts_a_sibling_skips_no_other() -> None:
    events: list[str] = []
    server, first, last = new_server("desk"), with_lifespan("first", events), with_lifespan("last", events)

    @asynccontextmanager
    async def lifespan(child: Server) -> AsyncIterator[None]:
        server.unmount(first)
        yield

    for child in (first, new_server("second", lifespan=lifespan), last):
        server.mount(child, child.name)
    async with connected(server):
        assert "last begins" in events
        await until(lambda: "first ends" in events)
    assert sorted(events) == ["first begins", "first ends", "last begins", "last ends"]


async def test_a_lifespan_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        raise RuntimeError("no database")
        yield

    events: list[str] = []
    server, good, bad = new_server("desk"), with_lifespan("good", events), calendar("bad", lifespan=lifespan)
    server.mount(good, "good")
    server.mount(bad, "bad")
    with pytest.raises(Exception, match="no database"):
        await server.engine.start(server)
    assert events == ["good begins", "good ends"]
    assert server.unmount(bad)
    async with connected(server) as client:
        server.mount(bad, "bad")
        await until(lambda: "the lifespan of a mounted server failed" in caplog.text)
        with pytest.raises(ServerError):
            await client.call_tool("bad_add", {"a": 1, "b": 2})
        assert (await client.call_tool("good_life", {})).text == "life of good"


# ── what can't be mounted ──


def test_what_can_not_be_mounted() -> None:
    server, child = new_server("desk"), calendar()
    server.add_tool(lambda: "", name="add")
    server.add_tool(lambda: "", name="own_add")
    wrong: Any = "calendar"
    for mount, words in {
        (lambda: server.mount(wrong)): "give it a Server or a ToolRegistry",
        (lambda: server.mount(child)): "the tool 'add' of 'calendar' would be 'add' here, as one of 'desk' is",
        (lambda: server.mount(child, "own")): "namespace",
        (lambda: server.mount(child, "a b")): "namespace='a b' is not possible",
        (lambda: server.mount(child, "")): "namespace='' is not possible",
        (lambda: server.mount(child, "x" * 64 + "y")): "is not possible",
        (lambda: server.mount(server)): "can't be mounted in itself",
        (lambda: server.mount(child, only=5)): "only=5 is not possible",  # type: ignore[arg-type]
        (lambda: server.mount(child, tags=[1])): "tags=",  # type: ignore[list-item]
        (lambda: server.mount(child, transforms={"ad": None})): "'ad', and there is no such tool (did you mean add?)",
    }.items():
        with pytest.raises(SetupError) as problem:
            mount()
        assert words in str(problem.value)
    assert server.engine.tools.names() == ["add", "own_add"]
    assert server.engine.resources.direct.names() == []
    assert child.engine.parent is None


def test_a_server_is_mounted_once_and_never_below_itself() -> None:
    root, middle, inner = new_server("root"), new_server("middle"), new_server("inner")
    root.mount(middle, "m")
    middle.mount(inner, "i")
    with pytest.raises(SetupError, match="can't be mounted in itself, nor in a server that it holds"):
        inner.mount(root, "r")
    with pytest.raises(SetupError, match=r"server.mount\('inner'\) in 'root': it is in 'middle' already"):
        root.mount(inner, "i")
    tools = ToolRegistry()
    with pytest.raises(SetupError, match="by Server"):
        Server("shared", tools=tools).mount(tools, "again")


def test_a_registry_is_never_mounted_below_itself() -> None:
    tools = ToolRegistry()
    root, middle, inner = new_server("root", tools=tools), new_server("middle"), new_server("inner")
    inner.mount(tools)
    middle.mount(inner, "i")
    says = r"server.mount\('middle'\): its tools are those of 'root' already, by Server\(tools=\)"
    with pytest.raises(SetupError, match=says):
        root.mount(middle, "m")
    middle.unmount(inner)
    root.mount(middle, "m")
    for mount in (
        lambda: middle.mount(inner, "i"),
        lambda: middle.mount(tools, "i"),
        lambda: middle.mount(new_server("other", tools=tools), "i"),
    ):
        with pytest.raises(SetupError, match="by Server"):
            mount()
    root.add_tool(lambda: "", name="add")
    assert root.engine.tools.names() == ["add"]


def test_a_server_with_auth_needs_a_parent_with_auth() -> None:
    async def verify(token: str) -> None:
        return None

    with pytest.raises(SetupError, match="its auth= does not come along"):
        new_server("desk").mount(new_server("calendar", auth=verify), "calendar")
    new_server("desk", auth=verify).mount(new_server("calendar", auth=verify), "calendar")


def test_a_name_that_is_too_long_with_its_namespace() -> None:
    child = new_server("calendar")
    child.add_tool(lambda: "", name="x" * 120)
    with pytest.raises(SetupError, match="is not allowed"):
        new_server("desk").mount(child, "calendar")


def test_resources_that_overlap_under_other_rules() -> None:
    server, child = new_server("desk"), new_server("calendar")
    server.add_resource("notes://{+path}", lambda path: path, name="all")
    child.add_resource("notes://secret/{id}", lambda id: id, name="secret", scopes=["read"])
    with pytest.raises(SetupError, match="overlaps"):
        server.mount(child, "calendar")


async def test_at_run_time_the_older_stays(caplog: pytest.LogCaptureFixture) -> None:
    one, two = new_server("one"), new_server("two")
    server = new_server("desk")
    server.mount(one)
    server.mount(two)
    one.add_tool(lambda: "one", name="tell")
    two.add_tool(lambda: "two", name="tell")
    expected = "the tool 'tell' of 'two' would be 'tell' here, as one of 'one' is"
    assert expected in message(caplog)
    caplog.clear()
    async with connected(server) as client:
        assert (await client.call_tool("tell", {})).text == "one"
        one.remove_tool("tell")
        two.add_tool(lambda: "", name="other")
        assert (await client.call_tool("tell", {})).text == "two"
        two.add_tool(lambda: "", name="x" * 128)
        assert not caplog.records
        server.remove_tool("tell")
        server.add_tool(lambda: "own", name="tell")
        two.remove_tool("tell")
        assert (await client.call_tool("tell", {})).text == "own"


async def test_a_name_is_free_for_the_next_once_its_server_is_unmounted() -> None:
    def telling(text: str) -> Callable[[], str]:
        return lambda: text

    server, children = new_server("desk"), [new_server(name) for name in ("one", "two", "three")]
    for child in children:
        server.mount(child)
    for child in children:
        child.add_tool(telling(child.name), name="tell")
    async with connected(server) as client:
        for child in children:
            assert (await client.call_tool("tell", {})).text == child.name
            server.unmount(child)
        assert await names(client) == []


# ── with rules that enable and disable, and with transforms ──


def test_what_is_disabled_at_the_parent_goes_with_its_mount_and_keeps_its_name_until_then() -> None:
    server, child = new_server("desk"), calendar()
    server.mount(child)
    server.disable(names="add")
    with pytest.raises(SetupError, match=r"the tool 'add' of 'other' would be 'add' here, as one of 'calendar' is"):
        server.mount(calendar("other"), only=["add"])
    server.unmount(child)
    with pytest.raises(SetupError, match="nothing has the name or URI 'add'"):
        server.enable(names="add")


async def test_a_new_version_of_a_disabled_item_is_the_one_that_is_enabled() -> None:
    server, child = new_server("desk"), calendar()
    server.mount(child, "calendar")
    server.disable(names="calendar_add")
    child.remove_tool("add")
    child.add_tool(lambda: "new", name="add")
    async with connected(server) as client:
        assert "calendar_add" not in await names(client)
        server.enable(names="calendar_add")
        assert [each.input_schema.get("properties") for each in await client.list_tools(fresh=True)][-1] in (None, {})
        assert (await client.call_tool("calendar_add", {})).text == "new"


async def test_the_rules_of_a_session_hold_for_mounted_resources() -> None:
    server, child = new_server("desk"), calendar()

    @child.resource("notes://who")
    def who(ctx: Context) -> str:
        return str(ctx.lifespan)

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[str]:
        yield "desk"

    server = new_server("desk", lifespan=lifespan)
    server.mount(child, "calendar")
    server.disable(names="notes://calendar/who")

    @server.tool
    async def swap(ctx: Context) -> None:
        await ctx.disable(names="notes://calendar/today")
        await ctx.enable(names="notes://calendar/who")

    async with connected(server, revision=HANDSHAKE) as client:
        await client.call_tool("swap", {})
        with pytest.raises(ServerError, match="not found"):
            await client.read_resource("notes://calendar/today")
        assert (await client.read_resource("notes://calendar/who"))[0].text == "None"


async def test_the_files_of_a_mounted_folder_are_disabled_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1")
    server, child = new_server("desk"), new_server("calendar")
    child.add_directory(tmp_path, uri="docs://all")
    server.mount(child, "calendar")
    async with connected(server) as client:
        assert (await client.read_resource("docs://calendar/all/a.txt"))[0].text == "1"
        server.disable(names="docs://calendar/all/{+path}")
        assert await client.list_resources(fresh=True) == []
        with pytest.raises(ServerError, match="not found"):
            await client.read_resource("docs://calendar/all/a.txt", fresh=True)


async def test_a_mounted_server_may_be_served_by_itself() -> None:
    child = calendar()

    @child.tool
    async def hide(ctx: Context) -> None:
        await ctx.disable(names="add")

    async with connected(desk(child)) as other, connected(child, revision=HANDSHAKE) as client:
        await client.call_tool("hide", {})
        assert "add" not in await names(client)
        assert "calendar_add" in await names(other)


async def test_rules_may_be_for_a_backend_that_is_not_connected_yet(caplog: pytest.LogCaptureFixture) -> None:
    inner, server = new_server("inner"), new_server("desk")
    inner.mount(Proxy(calendar()), "calendar")
    server.mount(inner, "office", transforms={"calendar_add": ToolTransform(name="enter")})
    server.disable(names=["office_enter", "office_typo"])
    assert "nothing has the name or URI 'office_enter' so far" in caplog.text
    async with connected(server) as client:
        tools = await names(client)
        assert tools
        assert "office_enter" not in tools
        with pytest.raises(SetupError, match="nothing has the name or URI 'office_typo'"):
            server.disable(names="office_typo")


def test_a_transform_of_a_server_that_has_mounts_must_fit_one_of_its_tools() -> None:
    with pytest.raises(SetupError, match="names 'calendar_ad', and there is no such tool"):
        new_server("top").mount(desk(calendar()), transforms={"calendar_ad": ToolTransform(name="enter")})


async def test_a_server_without_logging_sends_no_messages_of_its_children() -> None:
    child, messages = new_server("calendar"), list[Any]()

    @child.tool
    async def tell(ctx: Context) -> str:
        await ctx.warning("told")
        return "told"

    async with connected(desk(child, logging=False), revision=HANDSHAKE, log_handler=messages.append) as client:
        assert (await client.call_tool("calendar_tell", {})).text == "told"
    assert messages == []


SEARCH = {
    "type": "object",
    "properties": {
        "q": {"enum": ["ants", "bees"]},
        "region": {"type": "string", "enum": ["here"], "x-mcp-header": "Region"},
        "page": {"type": "integer", "x-mcp-header": "Page"},
    },
    "required": ["q", "region"],
}


def searching() -> Server:
    """A desk with a mounted tool whose arguments have other names, are hidden, or have a default."""

    async def search(arguments: dict[str, Any]) -> str:
        return f"{arguments['q']} {arguments['region']} {arguments['page']}"

    child, server = new_server("calendar", declare=["completions"]), new_server("desk")
    child.add_tool(search, input_schema=SEARCH)
    changes = {
        "q": ArgTransform(name="query"),
        "region": ArgTransform(hide=True, default="here"),
        "page": ArgTransform(default=1),
    }
    server.mount(child, "calendar", transforms={"search": ToolTransform(arguments=changes)})
    return server


@everywhere
async def test_headers_are_those_of_the_arguments_that_the_client_knows(transport: str, revision: str) -> None:
    async with connected(searching(), transport, revision) as client:
        assert (await client.call_tool("calendar_search", {"query": "ants"})).text == "ants here 1"
        assert (await client.call_tool("calendar_search", {"query": "ants", "page": 2})).text == "ants here 2"


async def test_completions_of_renamed_arguments() -> None:
    async with connected(searching()) as client:
        for argument, values in {"query": ["ants", "bees"], "q": [], "region": []}.items():
            assert list((await client.complete(tool="calendar_search", argument=argument)).values) == values


async def test_servers_of_one_name_have_states_of_their_own() -> None:
    async def count(ctx: Context) -> int:
        number = (await ctx.state.get("count") or 0) + 1
        await ctx.state.set("count", number)
        return int(number)

    server = new_server("desk")
    for namespace, name in [(None, "one"), (None, "two"), ("calendar", "one"), ("calendar", "two")]:
        child = new_server(name)
        child.add_tool(count, name=f"{name}_count")
        server.mount(child, namespace)
    with pytest.raises(SetupError, match=r"there is a server 'one' in this namespace already; .* another name"):
        server.mount(new_server("one"), "calendar")
    async with connected(server, revision=HANDSHAKE) as client:
        assert [(await client.call_tool(each, {})).data for each in await names(client)] == [1, 1, 1, 1]


async def test_a_refresh_runs_the_functions_of_children_too() -> None:
    server, child, grandchild = new_server("desk", declare=["tools"]), new_server("calendar"), new_server("inner")
    runs: list[str] = []
    child.on_refresh(lambda: runs.append("child"))
    child.mount(grandchild, "inner")
    server.mount(child, "calendar")
    grandchild.on_refresh(lambda: grandchild.add_tool(lambda: "new", name=f"new{len(runs)}"))
    async with connected(server) as client, client.listen(tools=True) as changes:
        await server.refresh()
        assert (await asyncio.wait_for(anext(changes), 10)).kind == "tools"
        await child.refresh()
        assert runs == ["child", "child"]
        assert await names(client) == ["calendar_inner_new1", "calendar_inner_new2"]


def test_a_loop_that_ended_without_a_stop_leaves_nothing_behind() -> None:
    events: list[str] = []
    server, child, late = new_server("desk"), with_lifespan("calendar", events), with_lifespan("late", events)
    server.mount(child, "calendar")
    with asyncio.Runner() as runner:
        runner.run(server.engine.start(server))
        server.mount(late, "late")  # whose lifespan is never entered: the loop does not run any more
    events.clear()

    async def call_twice() -> None:
        async with connected(server) as client:
            for name in ("calendar_life", "late_life", "calendar_life"):
                await client.call_tool(name, {})
            assert events == ["calendar begins", "late begins"]

    asyncio.run(asyncio.wait_for(call_twice(), 20))
    assert events[2:] == ["late ends", "calendar ends"]


async def test_problems_name_the_tool_as_the_client_knows_it() -> None:
    server = searching()
    async with connected(server) as client:
        refused = await client.call_tool("calendar_search", {"query": 1}, raise_on_error=False)
        assert refused.text.startswith("Invalid arguments for calendar_search:\n- query: ")
