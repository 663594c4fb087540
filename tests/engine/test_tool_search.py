"""Tool search: short lists, who finds what, and calls by `call_tool` that all others see as those of the real tool."""

import asyncio
import gc
import json
import logging
import threading
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from msgspec.structs import replace

from dovetail import (
    AuditEvent,
    Client,
    Context,
    Field,
    Proxy,
    Request,
    Server,
    ServerError,
    SetupError,
    ToolDefinition,
    ToolError,
    ToolRegistry,
    ToolTransform,
)
from dovetail.auth import Principal
from dovetail.engine.tool_search import View
from http_serving import hosted
from http_wire import HttpWire
from sdk import HANDSHAKE, MODERN, REVISIONS
from wire import Wire

eras = pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
PAIR = ["search_tools", "call_tool"]
WRITER = Principal(subject="ann", scopes=frozenset(["write"]))
GUEST = Principal(subject="bob")


def new_server(**options: Any) -> Server:
    server = Server("office", version="1.0.0", **{"tool_search": True, **options})

    @server.tool(always_visible=True)
    def whoami() -> str:
        return "me"

    @server.tool(annotations={"destructiveHint": True}, tags=["people"])
    def delete_customer(id: int) -> str:
        """Erase a customer and all data."""
        return f"{id} is gone"

    @server.tool
    def create_invoice(customer: str, amount: int = 1) -> dict[str, int]:
        """Bill a customer."""
        return {customer: amount}

    return server


async def listed(client: Client) -> list[str]:
    return [tool.name for tool in await client.list_tools(fresh=True)]


async def search(client: Client, query: str, **more: Any) -> list[str]:
    result: Any = await client.call_tool("search_tools", {"query": query, **more})
    return [tool["name"] for tool in json.loads(result.content[0].text)["tools"]]


async def call(client: Client, name: str, arguments: Any = None) -> Any:
    return (await client.call_tool("call_tool", {"name": name, "arguments": arguments})).data


# ── lists ──


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_search_finds_what_the_list_leaves_out_and_it_can_be_called(revision: str) -> None:
    async with Client(new_server(), protocol_version=revision) as client:
        assert await listed(client) == ["whoami", *PAIR]
        assert (await search(client, "remove customers"))[0] == "delete_customer"
        assert await search(client, "customer", limit=1) in (["delete_customer"], ["create_invoice"])
        assert "7 is gone" in str(await call(client, "delete_customer", {"id": 7}))
        assert (await client.call_tool("delete_customer", {"id": 8})).data == "8 is gone"


async def test_what_a_search_gives_of_a_tool() -> None:
    async with Client(new_server()) as client:
        result: Any = await client.call_tool("search_tools", {"query": "erase"})
        definitions = {tool.name: tool for tool in await client.list_tools()}
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}},
        "required": ["id"],
        "additionalProperties": False,
    }
    tool = {"name": "delete_customer", "description": "Erase a customer and all data.", "inputSchema": schema}
    assert result.data == {"tools": [{**tool, "annotations": {"destructiveHint": True}}], "total": 3}
    assert '"name":"delete_customer"' in result.content[0].text
    hints: dict[str, Any] = {name: definitions[name].annotations for name in PAIR}
    assert (hints["search_tools"].read_only_hint, hints["call_tool"].read_only_hint) == (True, False)
    assert (hints["call_tool"].destructive_hint, hints["call_tool"].open_world_hint) == (True, True)


async def test_a_search_without_a_result_tells_how_many_tools_there_are() -> None:
    async with Client(new_server()) as client:
        assert (await client.call_tool("search_tools", {"query": "zebra"})).data == {"tools": [], "total": 3}


@eras
async def test_below_the_budget_the_list_is_as_ever(revision: str) -> None:
    found = []
    for options in ({"tool_search": False}, {"tool_search": "auto"}, {"tool_search": "auto", "token_budget": 20}):
        async with Wire(new_server(**options), revision) as wire:
            found.append(await wire.ask("tools/list"))
    assert found[0] == found[1] != found[2]
    assert [tool["name"] for tool in found[2]["tools"]] == ["whoami", *PAIR]


async def test_the_budget_is_compared_with_what_a_caller_may_see() -> None:
    server = Server("many", version="1.0.0", tool_search="auto", token_budget=300)
    for number in range(50):
        server.add_tool(lambda: "", name=f"write_{number}", scopes=["write"], description="Writes")
    server.add_tool(lambda: "", name="read")
    for principal, names in ((GUEST, ["read"]), (WRITER, PAIR), (None, ["read"]), (WRITER, PAIR)):
        async with Client(server, principal=principal) as client:
            assert await listed(client) == names


async def test_pages_of_a_short_list() -> None:
    server = new_server(page_size=1)
    server.add_tool(lambda: "", name="last", always_visible=True)
    async with Wire(server, MODERN) as wire:
        names: list[str] = []
        cursor = None
        while cursor is not None or not names:
            page = await wire.ask("tools/list", {} if cursor is None else {"cursor": cursor})
            names += [tool["name"] for tool in page["tools"]]
            cursor = page.get("nextCursor")
    assert names == ["whoami", "last", *PAIR]


async def test_tools_that_are_added_and_removed_are_found_and_lost() -> None:
    server = new_server()
    async with Client(server) as client:
        assert await search(client, "submarine") == []
        server.add_tool(lambda: "", name="dive", description="Dive with a submarine")
        assert await search(client, "submarine") == ["dive"]
        server.remove_tool("dive")
        assert await search(client, "submarine") == []


# ── rights ──


def guarded(**options: Any) -> Server:
    server = Server("guarded", version="1.0.0", tool_search=True, **options)
    server.add_tool(lambda: "read", name="read_report")
    server.add_tool(lambda: "wrote", name="write_report", scopes=["write"])
    server.add_tool(
        lambda: "secret", name="secret_report", authorize=lambda who: who is not None and who.subject == "ann"
    )
    return server


@eras
async def test_a_caller_finds_what_it_may_call(revision: str) -> None:
    server = guarded()
    everything = {"read_report", "write_report", "secret_report"}
    for principal, names in ((WRITER, everything), (GUEST, {"read_report"}), (None, {"read_report"})) * 2:
        async with Client(server, protocol_version=revision, principal=principal) as client:
            assert set(await search(client, "report")) == names


async def test_a_call_by_call_tool_has_the_rights_of_the_real_tool() -> None:
    async with Client(guarded(), principal=GUEST) as client:
        with pytest.raises(ServerError, match="write"):
            await call(client, "write_report")
        refusals = []
        for name in ("secret_report", "absent_report"):
            with pytest.raises(ToolError, match=f"no tool '{name}'; find tools") as refusal:
                await call(client, name)
            refusals.append(str(refusal.value).replace(name, ""))
        assert refusals[0] == refusals[1]
    async with Client(guarded(), principal=WRITER) as client:
        assert [await call(client, name) for name in ("write_report", "secret_report")] == ["wrote", "secret"]


async def test_what_is_kept_of_callers_is_bounded() -> None:
    def nobody(caller: Principal | None) -> bool:
        return False

    nobody.key = lambda caller: caller.subject  # type: ignore[attr-defined]
    server = Server("guarded", version="1.0.0", tool_search="auto")
    server.add_tool(lambda: "", name="hidden", authorize=nobody)
    for number in range(1_100):
        async with Client(server, principal=Principal(subject=str(number))) as client:
            assert await listed(client) == []
    gc.collect()
    assert sum(isinstance(each, View) for each in gc.get_objects()) < 1_050


async def test_what_is_disabled_is_not_found() -> None:
    server = new_server()

    @server.tool(always_visible=True)
    async def lock(ctx: Context) -> str:
        await ctx.disable(names="*")
        return "locked"

    server.disable(names="create_*")
    async with Client(server, protocol_version=HANDSHAKE) as client, Client(server) as other:
        assert await search(client, "customer") == ["delete_customer"]
        await client.call_tool("lock")
        assert await listed(client) == PAIR
        assert await search(client, "customer") == []
        with pytest.raises(ToolError, match="no tool"):
            await call(client, "delete_customer", {"id": 1})
        assert await search(other, "customer") == ["delete_customer"]


# ── calls ──


async def test_middleware_audit_and_limits_see_the_real_tool() -> None:
    events: list[AuditEvent] = []
    server = new_server(audit=events.append)
    seen = []

    @server.middleware
    async def watch(request: Request, call_next: Any) -> Any:
        seen.append(getattr(request.params, "name", request.method))
        return await call_next(request)

    @server.tool(rate_limit="1/day")
    def once() -> str:
        return "once"

    async with Client(server) as client:
        assert await call(client, "once") == "once"
        with pytest.raises(ToolError, match="The tool once takes 1 call per day"):
            await call(client, "once")
        with pytest.raises(ToolError, match="no tool 'unheard'"):
            await call(client, "unheard")
    assert [name for name in seen if "/" not in name] == ["once", "once", "unheard"]
    assert [(event.name, event.outcome) for event in events] == [
        ("once", "ok"), ("once", "tool_error"), ("unheard", "tool_error"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "gives"),
    [
        ({"name": "create_invoice", "arguments": {"customer": "a"}}, {"a": 1}),
        ({"name": "create_invoice", "arguments": '{"customer": "a", "amount": 2}'}, {"a": 2}),
        ({"name": "whoami"}, "me"),
        ({"name": "whoami", "arguments": None}, "me"),
        ({"name": "call_tool", "arguments": {"name": "whoami"}}, "can't call itself"),
        ({"name": "invoice_create"}, "no tool 'invoice_create'"),
        ({"name": "create_invoice"}, "Invalid arguments for create_invoice:\n- customer: required"),
        ({"name": "whoami", "arguments": [1]}, "arguments: expected an object, got an array"),
        ({"name": "whoami", "arguments": "[" * 5000 + "]" * 5000}, "arguments: "),
        ({"name": "whoami", "arguments": '{"a":' * 800 + "1" + "}" * 800}, "nested too deeply"),
        ({"name": 5}, "name: expected a string"),
        ({"name": "create_invoice", "customer": "a"}, "customer: unknown argument"),
        ({}, "name: required"),
    ],
)
async def test_arguments_of_call_tool(arguments: dict[str, Any], gives: Any) -> None:
    async with Client(new_server()) as client:
        result: Any = await client.call_tool("call_tool", arguments, raise_on_error=False)
    assert gives in result.content[0].text if result.is_error else result.data == gives


async def test_a_search_gives_one_tool_and_others_as_long_as_a_model_can_read_them() -> None:
    async def call(arguments: Any) -> None: ...

    server = Server("s", tool_search=True)
    for name, size in {"giant": 30_000, "first": 6_000, "second": 6_000, "third": 6_000}.items():
        described = {"type": "string", "description": "word " * size}
        schema = {"type": "object", "properties": {"x": described}}
        server.tool(name=name, description=f"A {name} thing", input_schema=schema)(call)
    async with Client(server) as client:
        assert await search(client, "giant") == ["giant"]
        assert await search(client, "first") == ["first"]
        assert len(await search(client, "first second third")) == 2


@pytest.mark.parametrize("arguments", [{"query": "a", "limit": 0}, {"query": "a", "limit": 21}, {"limit": 3}])
async def test_wrong_arguments_of_a_search(arguments: dict[str, Any]) -> None:
    async with Client(new_server()) as client:
        with pytest.raises(ToolError, match="Invalid arguments for search_tools"):
            await client.call_tool("search_tools", arguments)


@eras
async def test_questions_progress_and_idempotency_go_through_call_tool(revision: str) -> None:
    server, runs = new_server(), []

    @server.tool(idempotency=True)
    async def order(ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        answer = await ctx.elicit("How many?", int)
        runs.append(answer.data)
        return f"{answer.data} ordered"

    reports: list[float] = []
    call_order: Any = {"idempotency_key": "k" * 40, "progress_handler": lambda done, *_: reports.append(done)}
    answers: Any = {"elicitation_handler": lambda _: 3, "principal": GUEST}
    async with Client(server, protocol_version=revision, **answers) as client:
        for _ in range(2):
            assert (await client.call_tool("call_tool", {"name": "order"}, **call_order)).data == "3 ordered"
        assert (await client.call_tool("order", **call_order)).data == "3 ordered"
    assert runs == [3]
    assert reports


async def test_an_answer_counts_for_the_tool_and_the_arguments_that_asked() -> None:
    server = new_server(secret="s" * 40)

    for name in ("pay", "refund"):

        @server.tool(name=name)
        async def ask(ctx: Context, person: str) -> str:
            return f"{(await ctx.elicit(f'How much for {person}?', int)).data} for {person}"

    async with Wire(server, MODERN, capabilities={"elicitation": {"form": {}}}) as wire:
        pay = {"name": "pay", "arguments": {"person": "Ann"}}
        asked = await wire.ask("tools/call", {"name": "call_tool", "arguments": pay})
        answers = {key: {"action": "accept", "content": {"value": 3}} for key in asked["inputRequests"]}
        more = {"requestState": asked["requestState"], "inputResponses": answers}
        for other in ({**pay, "name": "refund"}, {**pay, "arguments": {"person": "Bob"}}):
            refusal = await wire.refusal("tools/call", {"name": "call_tool", "arguments": other, **more})
            assert "request state can't be used" in refusal["message"]
        paid = await wire.ask("tools/call", {"name": "call_tool", "arguments": pay, **more})
    assert paid["content"][0]["text"] == "3 for Ann"


@eras
async def test_a_call_over_http_needs_no_headers_of_the_real_tool(revision: str) -> None:
    server = new_server()

    @server.tool
    def ship(region: Annotated[str, Field(header="Region")]) -> str:
        return region

    async with hosted(server.asgi()) as url, Client(f"{url}/mcp", protocol_version=revision) as client:
        assert await call(client, "ship", {"region": "eu"}) == "eu"
        assert await search(client, "ship") == ["ship"]


async def test_headers_of_the_real_tool_must_be_right_if_they_are_sent() -> None:
    server = new_server()

    @server.tool
    def ship(region: Annotated[str, Field(header="Region")]) -> str:
        return region

    wire, call_ship = HttpWire(server.asgi()), {"name": "ship", "arguments": {"region": "eu"}}
    for sent, status in (("eu", 200), ("us", 400)):
        answer = await wire.call("call_tool", call_ship, headers={"Mcp-Param-Region": sent})
        assert answer.status == status


# ── names, mounts, registries ──


async def test_the_server_that_clients_reach_searches_what_is_mounted() -> None:
    main, child = Server("main", version="1.0.0", tool_search=True), new_server()
    main.mount(child, namespace="office")
    plain = Server("plain", version="1.0.0")
    async with Client(main) as client:
        assert await listed(client) == ["office_whoami", *PAIR]
        assert (await search(client, "erase customer"))[0] == "office_delete_customer"
        assert await call(client, "office_delete_customer", {"id": 3}) == "3 is gone"
    main.unmount(child)
    plain.mount(child, namespace="office")
    async with Client(plain) as client:
        assert await listed(client) == ["office_whoami", "office_delete_customer", "office_create_invoice"]
        with pytest.raises(ServerError, match="Unknown tool: office_call_tool"):
            await client.call_tool("office_call_tool", {"name": "whoami"})


async def test_a_proxy_passes_on_the_search_of_its_backend() -> None:
    main = Server("main", version="1.0.0")
    main.mount(Proxy(new_server()), namespace="far")
    async with Client(main) as client:
        assert await listed(client) == ["far_whoami", "far_search_tools", "far_call_tool"]
        call_delete = {"name": "delete_customer", "arguments": {"id": 3}}
        assert (await client.call_tool("far_call_tool", call_delete)).data == "3 is gone"


@pytest.mark.parametrize("name", PAIR)
def test_names_of_the_search_are_taken_where_there_is_one(name: str) -> None:
    registry = ToolRegistry()
    registry.register_tool(name, "x", {"type": "object"}, lambda: "")
    with pytest.raises(SetupError, match="tool_search="):
        new_server().add_tool(lambda: "", name=name)
    with pytest.raises(SetupError, match="tool_search="):
        Server("s", tools=registry, tool_search=True)
    with pytest.raises(SetupError, match=f"would be '{name}' here, as one of 'office' is"):
        new_server().mount(registry)
    Server("s", tools=registry)
    Server("s").add_tool(lambda: "", name=name)
    new_server().mount(registry, namespace="other")


@pytest.mark.parametrize("given", ["always", 1, 0, [], 2.5])
def test_an_option_that_is_no_search(given: Any) -> None:
    with pytest.raises(SetupError, match="tool_search="):
        Server("s", tool_search=given)
    with pytest.raises(SetupError, match="token_budget="):
        Server("s", tool_search=True, token_budget=-1)


async def test_tools_of_a_registry_may_be_always_visible() -> None:
    registry = ToolRegistry()
    shown = {"name": "shown", "inputSchema": {"type": "object"}, "handler": lambda: "", "alwaysVisible": True}
    registry.register_tool(shown)
    registry.register_tool("hidden", "x", {"type": "object"}, lambda: "")
    async with Client(Server("s", version="1.0.0", tools=registry, tool_search=True)) as client:
        assert await listed(client) == ["shown", *PAIR]


async def test_tools_of_a_mount_may_be_always_visible() -> None:
    child = Server("c", version="1.0.0")
    child.add_tool(lambda: "", name="one", always_visible=True)
    child.add_tool(lambda: "", name="two")
    server = Server("s", version="1.0.0", tool_search=True)
    change = {"one": ToolTransform(always_visible=False), "two": ToolTransform(always_visible=True)}
    server.mount(child, namespace="c", transforms=change)
    async with Client(server) as client:
        assert await listed(client) == ["c_two", *PAIR]


# ── a function of the author's ──


def by_name(query: str, tools: Sequence[ToolDefinition], limit: int) -> list[str]:
    return ["nonsense", *(tool.name for tool in tools if tool.name.startswith(query))]


async def by_definition(query: str, tools: Sequence[ToolDefinition], limit: int) -> list[ToolDefinition]:
    return [tool for tool in tools if tool.name.startswith(query)] * 2


class ByName:
    async def __call__(self, *given: Any) -> list[str]:
        return by_name(*given)


@pytest.mark.parametrize("function", [by_name, by_definition, ByName()])
async def test_a_function_ranks(function: Any) -> None:
    async with Client(new_server(tool_search=function, token_budget=0)) as client:
        assert await search(client, "create") == ["create_invoice"]
        assert await search(client, "unknown") == []
        assert await listed(client) == ["whoami", *PAIR]


@pytest.mark.parametrize("given", [None, 5, [[]]])
async def test_where_the_function_fails_words_decide(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with Client(new_server(tool_search=lambda query, tools, limit: given, token_budget=0)) as client:
        with caplog.at_level(logging.ERROR, "dovetail"):
            assert await search(client, "erase") == ["delete_customer"]
    assert "failed, so the tools are ranked by their words" in caplog.text


async def test_searches_at_the_same_time_get_the_same() -> None:
    server = new_server()
    for number in range(300):
        server.add_tool(lambda: "", name=f"tool_{number}", description="One of many")
    async with Client(server) as client:
        found = await asyncio.gather(*(search(client, "erase") for _ in range(20)))
    assert found == [["delete_customer"]] * 20


async def test_a_caller_that_goes_away_does_not_take_the_index_along() -> None:
    class Schema(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            reads.append(key)
            has_begun.set()
            assert may_go_on.wait(10)
            return super().get(key, default)

    reads: list[str] = []
    has_begun, may_go_on = threading.Event(), threading.Event()
    server = new_server()
    async with Client(server):
        (tool, *_) = server.engine.tools.all()
        watched = replace(tool, definition=replace(tool.definition, input_schema=Schema()))
        view = View([watched], server.engine.tools.snapshot)
        leaving = asyncio.create_task(view.search(server.engine, "whoami", 5))
        assert await asyncio.to_thread(has_begun.wait, 10)
        leaving.cancel()
        staying = asyncio.create_task(view.search(server.engine, "whoami", 5))
        await asyncio.wait([leaving])
        may_go_on.set()
        assert await staying == [watched]
    assert reads == ["properties"]


async def test_a_search_gives_the_schemas_of_the_list() -> None:
    server = Server("office", tool_search=True, schemas="portable")

    @server.tool
    def find_room(seats: int | None = None) -> str:
        return f"room for {seats}"

    async with Client(server) as client:
        result: Any = await client.call_tool("search_tools", {"query": "find a room"})
        (tool,) = json.loads(result.content[0].text)["tools"]
        assert tool["inputSchema"]["properties"]["seats"]["type"] == "integer"
        assert await call(client, "find_room", {"seats": None}) == "room for None"


async def test_a_dead_backend_does_not_take_the_search_with_it() -> None:
    server = new_server()
    server.mount(Proxy("http://127.0.0.1:9/mcp", name="dead"), namespace="search")  # whose tools would be search_…
    async with Client(server) as client:
        assert (await search(client, "remove customers"))[0] == "delete_customer"


async def test_a_cached_result_is_given_to_calls_by_call_tool_too() -> None:
    server, runs = new_server(), 0

    @server.tool(cache=60)
    def rate(currency: str) -> int:
        nonlocal runs
        runs += 1
        return runs

    async with Client(server) as client:
        assert await call(client, "rate", {"currency": "EUR"}) == 1
        assert (await client.call_tool("rate", {"currency": "EUR"})).data == 1
