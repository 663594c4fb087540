"""Enabling and disabling: what is disabled is as if it were not registered, for all clients or for one session."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import visibility_program
from dovetail import Client, Server, ServerError, SetupError, ToolError, ToolRegistry
from dovetail.auth import Principal
from http_serving import hosted
from sdk import HANDSHAKE, HANDSHAKES, MODERN, REVISIONS
from visibility_program import create_server

PROGRAM = Path(visibility_program.__file__)
CHANGING = ("enable", "disable", "read")  # tools that change what their session sees
WAYS = ("in process", "stdio", "http")


async def names(client: Client) -> list[str]:
    """All that the client lists, without the tools that change it."""
    tools = [tool.name for tool in await client.list_tools(fresh=True) if tool.name not in CHANGING]
    resources = [each.uri for each in await client.list_resources(fresh=True)]
    templates = [each.uri_template for each in await client.list_resource_templates(fresh=True)]
    return [*tools, *resources, *templates, *(each.name for each in await client.list_prompts(fresh=True))]


def named(prefix: str) -> list[str]:
    return [f"{prefix}_tool", f"{prefix}://one", f"{prefix}://all/{{name}}", f"{prefix}_prompt"]


OPEN, MONEY = named("open"), named("money")
BOTH = [name for pair in zip(OPEN, MONEY, strict=True) for name in pair]


def uses(prefix: str, revision: str) -> dict[str, dict[str, Any]]:
    """Requests for all that has the prefix."""
    requests: dict[str, dict[str, Any]] = {
        "tools/call": {"name": f"{prefix}_tool"},
        "resources/read": {"uri": f"{prefix}://one"},
        "resources/read of a template": {"uri": f"{prefix}://all/x"},
        "prompts/get": {"name": f"{prefix}_prompt", "arguments": {"city": "Rome"}},
        "completion/complete": {
            "ref": {"type": "ref/prompt", "name": f"{prefix}_prompt"}, "argument": {"name": "city", "value": "R"},
        },
        "completion/complete of a template": {
            "ref": {"type": "ref/resource", "uri": f"{prefix}://all/{{name}}"},
            "argument": {"name": "name", "value": ""},
        },
    }  # fmt: skip
    return requests if revision == MODERN else {**requests, "resources/subscribe": {"uri": f"{prefix}://one"}}


async def outcomes(client: Client, prefix: str) -> list[str]:
    """What each use gives: "" or its error, as if the prefix were "some"."""
    found = []
    for method, params in uses(prefix, client.protocol_version).items():
        try:
            await client.request(method.partition(" ")[0], params)
            found.append("")
        except ServerError as failure:
            found.append(f"{failure.code} {failure}".replace(prefix, "some"))
    return found


async def check(client: Client, prefix: str, *, enabled: bool) -> None:
    found = await outcomes(client, prefix)
    assert found == ([""] * len(found) if enabled else await outcomes(client, "unknown"))


# ── for all clients ──


@pytest.mark.parametrize("revision", REVISIONS)
async def test_what_is_disabled_is_as_if_it_were_not_registered(revision: str) -> None:
    server = create_server()
    async with Client(server, protocol_version=revision) as client:
        capabilities = client.capabilities
        assert await names(client) == BOTH
        await check(client, "money", enabled=True)  # and cached
        async with client.listen(tools=True, prompts=True, resources=True) as changes:
            server.disable(tags={"finance"})
            assert {(await anext(changes)).kind for _ in range(3)} == {"tools", "prompts", "resources"}
        assert await names(client) == OPEN
        await check(client, "open", enabled=True)
        await check(client, "money", enabled=False)
        server.enable(names="money*")
        assert await names(client) == BOTH
        await check(client, "money", enabled=True)
        server.enable(names=["money_tool", "open_prompt"], only=True)
        assert await names(client) == ["money_tool", "open_prompt"]
        server.enable(names="*")
    async with Client(server, protocol_version=revision) as client:
        assert client.capabilities == capabilities
        assert await names(client) == BOTH


async def test_tags_and_names_together_mean_both() -> None:
    server = create_server()
    server.disable(tags={"common"}, names=["open_tool", "*_prompt", "enable"])
    async with Client(server) as client:
        assert [name for name in BOTH if name not in await names(client)] == [
            "open_tool",
            "open_prompt",
            "money_prompt",
        ]
        assert "enable" in [tool.name for tool in await client.list_tools()]


async def test_rules_hold_for_what_comes_later_and_the_last_one_counts() -> None:
    server = create_server()
    server.disable(tags="finance")
    server.enable(names="money_tool")
    server.add_tool(lambda: 1, name="pay", tags={"finance"})
    assert not server.remove_tool("unknown")
    with pytest.raises(SetupError, match="already a tool 'pay'"):
        server.add_tool(lambda: 1, name="pay")
    async with Client(server) as client:
        assert await names(client) == ["open_tool", "money_tool", *OPEN[1:]]
        server.enable(names="pay")
        assert [tool.name for tool in await client.list_tools(fresh=True)][-1] == "pay"
        server.disable(names="p*y")
        assert server.remove_tool("pay")
        assert not server.remove_tool("pay")
        server.add_tool(lambda: 2, name="pay")  # still disabled
        assert await names(client) == ["open_tool", "money_tool", *OPEN[1:]]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, 'needs tags= or names=; names="*" means all'),
        ({"tags": "finanze"}, "nothing has the tag 'finanze' (did you mean finance?)"),
        (
            {"names": {"money_tol"}},
            "nothing has the name or URI 'money_tol' (did you mean money_tool?)",
        ),
        ({"names": ["open_tool", "x*"]}, "nothing has the name or URI 'x*'"),
        ({"tags": {"finance"}, "names": {"open_*"}}, "nothing has both one of the tags and one of the names"),
        ({"names": [""]}, "use strings of 1 to 256 characters"),
        ({"names": ["x" * 257]}, "use strings of 1 to 256 characters"),
        ({"tags": [5]}, "use strings of 1 to 256 characters"),
    ],
)
def test_a_rule_that_fits_nothing_is_an_error_that_names_what_is_near(given: dict[str, Any], says: str) -> None:
    server = create_server()
    for call, name in ((server.disable, "server.disable"), (server.enable, "server.enable")):
        with pytest.raises(SetupError) as caught:
            call(**given)
        assert str(caught.value).startswith(name)
        assert says in str(caught.value)


async def test_a_folder_is_disabled_with_its_files_and_comes_back_with_those_it_has_then(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    server = Server("files")
    server.add_directory(tmp_path, uri="files://", tags={"files"})
    server.add_resource("other://one", lambda: "1", name="one")
    async with Client(server) as client:

        async def listed() -> list[str]:
            return [each.uri for each in await client.list_resources(fresh=True)]

        template = (await client.list_resource_templates())[0].uri_template
        with pytest.raises(SetupError, match="nothing has the name or URI"):
            server.disable(names="files:///a.txt")
        uris = await listed()
        for given in ({"tags": "files"}, {"names": template}):
            server.disable(**given)
            assert await listed() == ["other://one"]
            assert await client.list_resource_templates(fresh=True) == []
            for uri in uris[:2]:
                if uri != "other://one":
                    with pytest.raises(ServerError, match="not found"):
                        await client.read_resource(uri)
            server.engine.resources.mark_files_stale()
            assert await listed() == ["other://one"]
            server.enable(**given)
            assert await listed() == uris
        server.disable(tags="files")
        (tmp_path / "a.txt").unlink()
        (tmp_path / "c.txt").write_text("c")
        server.engine.resources.mark_files_stale()
        assert await listed() == ["other://one"]
        server.enable(tags="files")
        assert sorted(uri.rpartition("/")[2] for uri in await listed()) == ["b.txt", "c.txt", "one"]


async def test_a_file_that_is_guarded_and_disabled_is_not_offered_by_its_folder_instead(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    server = Server("files")
    server.add_directory(tmp_path, uri="files://")
    server.add_file(tmp_path / "secret.txt", uri="guarded://secret", scopes=["admin"])
    server.disable(names="guarded://secret")
    async with Client(server) as client:
        assert await client.list_resources() == []
        template = (await client.list_resource_templates())[0].uri_template
        with pytest.raises(ServerError, match="There is no file"):
            await client.read_resource(template.replace("{+path}", "secret.txt").replace("{path}", "secret.txt"))


def test_a_disabled_template_still_counts_for_overlaps() -> None:
    server = Server("overlaps")
    server.add_resource("notes://{name}", lambda name: name, name="guarded", scopes=["admin"])
    server.disable(names="notes://{name}")
    with pytest.raises(SetupError, match="overlaps"):
        server.add_resource("notes://{other}", lambda other: other, name="open")


async def test_the_rules_of_a_registry_are_those_of_all_its_servers() -> None:
    registry = ToolRegistry()
    registry.register_tool("tool", "", {"type": "object"}, lambda _: "1", tags=["a"])
    one, two = Server("one", tools=registry), Server("two", tools=registry)
    one.disable(tags="a")
    async with Client(two) as client:
        assert await client.list_tools() == []
        two.enable(tags="a")
        assert [tool.name for tool in await client.list_tools(fresh=True)] == ["tool"]


async def test_a_completion_for_what_is_disabled_at_the_start_is_no_error() -> None:
    server = create_server()
    server.disable(names="*")
    async with Client(server) as client:
        assert await names(client) == []
        assert "completions" in client.capabilities


NAMES = [f"{letter}{number}" for letter in "ab" for number in range(3)]
TAGS = {name: {name[0], "odd" if name[1] == "1" else "even"} for name in NAMES}
SELECTIONS = st.sampled_from(
    [{"names": "*"}, {"names": "a*"}, {"names": ["a1", "b2"]}, {"tags": "odd"}, {"tags": {"a"}}]
)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["add", "remove"]), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from(["enable", "disable", "only"]), SELECTIONS),
)


FITTING = {"*": set(NAMES), "a*": {"a0", "a1", "a2"}, "odd": {"a1", "b1"}}


def fits(selection: dict[str, Any], name: str) -> bool:
    (chosen,) = selection.values()
    return name in (FITTING[chosen] if isinstance(chosen, str) else {"a0", "a1", "a2"} if chosen == {"a"} else chosen)


@given(st.lists(STEPS, max_size=12))
def test_any_history_gives_the_list_of_a_simple_model(history: list[tuple[str, Any]]) -> None:
    async def play() -> None:
        server = Server("model")
        model: dict[str, None] = {}
        rules: list[tuple[Callable[[str], bool], bool]] = []

        def is_enabled(name: str) -> bool:
            return next((enabled for fits_, enabled in reversed(rules) if fits_(name)), True)

        for name in NAMES:  # so that every rule fits something when it is made
            server.add_prompt(lambda: "", name=name, tags=TAGS[name])
        server.add_tool(lambda: 1, name="b2")  # so that there are tools at all
        server.remove_tool("b2")
        async with Client(server) as client:
            for action, given_ in history:
                if action == "add":
                    if given_ not in model:
                        server.add_tool(lambda: 1, name=given_, tags=TAGS[given_])
                    model[given_] = None
                elif action == "remove":
                    assert server.remove_tool(given_) == (given_ in model)
                    model.pop(given_, None)
                else:
                    if action == "only":
                        rules.append((lambda _: True, False))
                    rules.append((lambda name, given_=given_: fits(given_, name), action != "disable"))
                    if action == "disable":
                        server.disable(**given_)
                    else:
                        server.enable(**given_, only=action == "only")
                expected = [name for name in model if is_enabled(name)]
                assert [tool.name for tool in await client.list_tools(fresh=True)] == expected

    asyncio.run(play())


# ── for one session ──


@asynccontextmanager
async def clients(way: str, revision: str, server: Server | None = None) -> AsyncIterator[list[Client]]:
    """Two clients of one server, or on stdio of two, whose finance tools are disabled."""
    if server is None:
        server = create_server()
        server.disable(tags="finance")
    async with AsyncExitStack() as stack:
        targets: list[Any] = [server, server]
        if way == "stdio":
            targets = [[sys.executable, str(PROGRAM)]] * 2
        elif way == "http":
            targets = [f"{await stack.enter_async_context(hosted(server.asgi()))}/mcp"] * 2
        yield [await stack.enter_async_context(Client(each, protocol_version=revision)) for each in targets]


@pytest.mark.parametrize(
    ("way", "revision"), [pair for pair in product(WAYS, HANDSHAKES) if pair != ("http", HANDSHAKES[0])]
)
async def test_a_session_unlocks_and_hides_for_itself_alone(way: str, revision: str) -> None:
    async with clients(way, revision) as (one, two):
        async with one.listen(tools=True, prompts=True, resources=True) as changes:
            await one.call_tool("enable", {"tags": ["finance"]})
            assert {(await anext(changes)).kind for _ in range(3)} == {"tools", "prompts", "resources"}
        assert [await names(one), await names(two)] == [BOTH, OPEN]
        await check(one, "money", enabled=True)
        await check(two, "money", enabled=False)
        await one.call_tool("disable", {"names": ["open*"]})
        assert [await names(one), await names(two)] == [MONEY, OPEN]
        await check(one, "open", enabled=False)
        await check(two, "open", enabled=True)
        await one.call_tool("enable", {"names": ["open_tool", "enable"], "only": True})
        assert await names(one) == ["open_tool"]
        await one.call_tool("enable", {"names": ["*"]})
        assert [await names(one), await names(two)] == [BOTH, OPEN]


async def test_only_the_session_whose_rules_changed_is_told() -> None:
    server = create_server()
    async with (
        clients("in process", HANDSHAKE, server) as (one, two),
        one.listen(tools=True, prompts=True) as own,
        two.listen(tools=True, prompts=True) as others,
    ):
        await one.call_tool("disable", {"names": ["open_prompt"]})
        assert {(await anext(own)).kind, (await anext(own)).kind} == {"tools", "prompts"}
        server.disable(names="money_prompt")
        assert (await anext(others)).kind == "prompts"  # nothing came before it


async def test_a_call_reads_what_it_has_unlocked_and_the_cache_is_not_for_others() -> None:
    async with clients("in process", HANDSHAKE) as (one, two):
        assert (await one.call_tool("read", {"tags": ["finance"], "uri": "money://one"})).text == "money"
        assert [each.text for each in await one.read_resource("money://one")] == ["money"]
        with pytest.raises(ServerError, match="not found"):
            await two.read_resource("money://one")


@pytest.mark.parametrize(
    ("way", "revision"), [*((way, MODERN) for way in WAYS), ("stateless", HANDSHAKE), ("stateless", MODERN)]
)
async def test_without_a_session_they_are_errors_that_name_authorize(way: str, revision: str) -> None:
    server = create_server(mask_error_details=False)
    async with AsyncExitStack() as stack:
        target: Any = server
        if way == "stdio":
            target = [sys.executable, str(PROGRAM)]
        elif way != "in process":
            target = f"{await stack.enter_async_context(hosted(server.asgi(stateless=way == 'stateless')))}/mcp"
        client = await stack.enter_async_context(Client(target, protocol_version=revision))
        before = await names(client)
        for tool, shown in (("enable", "ctx.enable"), ("disable", "ctx.disable")):
            with pytest.raises(ToolError) as caught:
                await client.call_tool(tool, {"names": ["open_tool"]})
            if way != "stdio":  # where details are masked
                assert f"{shown}: a request of {revision} has no session here" in str(caught.value)
                assert "authorize=" in str(caught.value)
        assert await names(client) == before


async def test_a_session_sees_no_more_than_its_caller_may() -> None:
    server = create_server()
    server.add_tool(lambda: "1", name="guarded_tool", tags={"finance"}, scopes=["admin"])
    server.disable(tags="finance")
    for scopes, seen in ((["admin"], ["guarded_tool"]), ([], [])):
        principal = Principal(subject="ada", scopes=frozenset(scopes))
        async with Client(server, protocol_version=HANDSHAKE, principal=principal) as client:
            await client.call_tool("enable", {"tags": ["finance"]})
            listed = [tool.name for tool in await client.list_tools(fresh=True)]
            assert [name for name in listed if name.startswith("guarded")] == seen
            if seen:
                assert (await client.call_tool("guarded_tool")).text == "1"
            else:
                with pytest.raises(ServerError, match="admin"):
                    await client.call_tool("guarded_tool")


async def test_the_rules_of_a_session_are_bounded_and_one_for_the_same_replaces_another() -> None:
    server = create_server(mask_error_details=False)
    for number in range(101):
        server.add_tool(lambda: 1, name=f"extra{number}")
    async with Client(server, protocol_version=HANDSHAKE) as client:
        for _ in range(60):
            await client.call_tool("disable", {"names": ["extra0"]})
            await client.call_tool("enable", {"names": ["extra0"]})
        for number in range(1, 100):
            await client.call_tool("disable", {"names": [f"extra{number}"]})
        with pytest.raises(ToolError, match="100 rules at most"):
            await client.call_tool("enable", {"names": ["open_tool"]})
        assert [tool.name for tool in await client.list_tools(fresh=True)][-2:] == ["extra0", "extra100"]
        await client.call_tool("enable", {"names": ["*"]})  # which makes the others idle
        await client.call_tool("disable", {"names": ["open_tool"]})
        assert "open_tool" not in await names(client)


async def test_a_session_sees_what_it_has_unlocked_at_every_worker_that_shares_the_state(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        urls = []
        for _ in range(2):
            server = create_server()
            server.disable(tags="finance")
            app = server.asgi(state=f"sqlite://{tmp_path.as_posix()}/state.db")
            urls.append(f"{await stack.enter_async_context(hosted(app))}/mcp")
        http = await stack.enter_async_context(aiohttp.ClientSession())
        session: dict[str, str] = {"Accept": "application/json, text/event-stream"}

        async def request(worker: int, method: str, params: dict[str, Any], *, id: int | None = 1) -> str:
            message = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if id is None else {"id": id})
            async with http.post(urls[worker], json=message, headers=session) as response:
                if "Mcp-Session-Id" in response.headers:
                    session["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
                return await response.text()

        handshake = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        await request(0, "initialize", handshake)
        await request(0, "notifications/initialized", {}, id=None)
        assert "Unknown tool" in await request(1, "tools/call", {"name": "money_tool"})
        await request(0, "tools/call", {"name": "enable", "arguments": {"tags": ["finance"]}})
        for worker in (1, 0):
            assert '"money_tool"' in await request(worker, "tools/list", {})
            assert "Unknown tool" not in await request(worker, "tools/call", {"name": "money_tool"})
        await request(1, "tools/call", {"name": "disable", "arguments": {"tags": ["finance"]}})
        assert "Unknown tool" in await request(0, "tools/call", {"name": "money_tool"})
