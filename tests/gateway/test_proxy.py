"""Proxies: every client in front of every backend, dead and lying backends, and callers that share nothing."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from proxied_server import make_backend
from scripted import Scripted, ScriptedRequest, handshake, modern

from dovetail import (
    Change,
    Client,
    Context,
    ElicitResult,
    LogMessage,
    ProtocolError,
    Proxy,
    ResourceLink,
    Server,
    ServerError,
    SetupError,
    ToolError,
)
from dovetail.auth import ApiKeys
from dovetail.auth.principal import Principal
from dovetail.gateway.backends import BackendLimits
from dovetail.protocol import revisions
from http_serving import hosted, settle, until

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates:DeprecationWarning")
HERE = Path(__file__).parent
EVERY = [revision.name for revision in revisions.ALL]
OLD, MODERN = "2025-11-25", "2026-07-28"
BRISK = BackendLimits(retry=0.01, refresh=0.0, list_wait=10.0)
fronts = pytest.mark.parametrize("front", EVERY)
backs = pytest.mark.parametrize("back", EVERY)
eras = pytest.mark.parametrize("back", [OLD, MODERN])
ways = pytest.mark.parametrize("way", ["memory", "stdio", "http"])
live = pytest.mark.parametrize(
    ("front", "back"),
    [("2025-06-18", OLD), (OLD, OLD), (OLD, MODERN), (MODERN, MODERN), (MODERN, OLD), ("2025-06-18", MODERN)],
)


@asynccontextmanager
async def target(way: str) -> AsyncIterator[Any]:
    """The backend, in process, as a command or at a URL."""
    if way == "memory":
        yield make_backend()
    elif way == "stdio":
        yield [sys.executable, str(HERE / "proxied_server.py")]
    else:
        async with hosted(make_backend().asgi()) as url:
            yield f"{url}/mcp"


def liar(lie: str, era: str = OLD) -> list[str]:
    return [sys.executable, str(HERE / "lying_server.py"), lie, era]


@asynccontextmanager
async def through(proxy: Server, front: str = MODERN, **options: Any) -> AsyncIterator[Client]:
    async with Client(proxy, protocol_version=front, **options) as client:
        yield client


# ── every client, every backend ──


@fronts
@backs
async def test_lists_and_calls(front: str, back: str) -> None:
    proxy = Proxy(make_backend(), name="calendar", protocol_version=back)
    async with through(proxy, front) as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        assert {"add", "point", "sound", "ask"} <= tools.keys()
        number = await client.call_tool("add", {"a": 1, "b": 2})
        assert number.text == "3"
        assert number.data in (3, "3", {"result": 3})
        point = await client.call_tool("point", {"x": 1, "y": 2})
        if min(front, back) >= "2025-06-18":
            assert point.structured == {"x": 1, "y": 2}
        assert json.loads(point.text) == {"x": 1, "y": 2}
        [sound] = (await client.call_tool("sound")).content
        assert type(sound).__name__ == ("Audio" if min(front, back) >= "2025-03-26" else "Text")
        [link] = (await client.call_tool("link")).content
        assert isinstance(link, ResourceLink) == (min(front, back) >= "2025-06-18")
        assert (await client.call_tool("marked")).meta["example.com/mark"] == 1
        with pytest.raises(ToolError, match="cupboard is bare"):
            await client.call_tool("fail")
        with pytest.raises(ToolError, match="a: "):
            await client.call_tool("add", {"a": "x", "b": 2})
        with pytest.raises(ServerError, match="Unknown tool: nope"):
            await client.call_tool("nope")


@fronts
@eras
async def test_resources_prompts_and_completions(front: str, back: str) -> None:
    async with through(Proxy(make_backend(), protocol_version=back), front) as client:
        assert [each.uri for each in await client.list_resources()] == ["notes://all"]
        assert [each.uri_template for each in await client.list_resource_templates()] == ["notes://{id}"]
        assert (await client.read_resource("notes://all"))[0].text == "milk"
        assert (await client.read_resource("notes://a%20b"))[0].blob == b"a b"
        with pytest.raises(ServerError, match="not found") as missing:
            await client.read_resource("other://x")
        assert missing.value.code == revisions.BY_NAME[front].missing_resource_code
        assert [each.name for each in await client.list_prompts()] == ["review"]
        result = await client.get_prompt("review", {"code": "x"})
        assert result.messages[0].content.text == "Review x"
        completion = await client.complete(prompt="review", argument="code", value="a", context={"other": "b"})
        assert list(completion.values) == ["a1", "b"]
        completion = await client.complete(resource="notes://{id}", argument="id", value="a")
        assert list(completion.values) == ["a2"]


@ways
@eras
async def test_every_way_to_a_backend(way: str, back: str) -> None:
    async with target(way) as where, through(Proxy(where, protocol_version=back)) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"
        results = await asyncio.gather(*(client.call_tool("add", {"a": n, "b": 0}) for n in range(30)))
        assert [int(each.text) for each in results] == list(range(30))


async def test_a_python_file_an_entry_and_a_config(tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": [str(HERE / "proxied_server.py")]}
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"good": entry, "bad": {"url": "nowhere"}}}))
    proxies = Proxy.from_config(config)
    assert proxies.keys() == {"good", "bad"}
    for proxy in (
        Proxy(str(HERE / "proxied_server.py")),
        Proxy(HERE / "proxied_server.py"),
        Proxy(entry),
        proxies["good"],
    ):
        async with through(proxy) as client:
            assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
    async with through(proxies["bad"]) as client:
        assert await client.list_tools() == []
        with pytest.raises(ToolError, match="'bad' can't be reached: The server 'bad' can't be used: its \"url\""):
            await client.call_tool("add")
    assert "bad" in proxies["bad"].problem


async def test_names_and_wrong_options() -> None:
    assert Proxy("https://example.com/mcp").name == "example.com"
    assert Proxy([sys.executable, "-u", "my server.py", "--key", "s3cret"]).name == "my-server"
    assert Proxy(["weather", "--key", "s3cret"]).name == "weather"
    assert Proxy(make_backend()).name == "backend"
    for wrong in ({"allow": ["everything"]}, {"allow": "roots"}, {"headers": {}}, {"nonsense": 1}):
        with pytest.raises(SetupError):
            Proxy(make_backend(), **wrong)
    with pytest.raises(SetupError, match="can't connect"):
        Proxy(5)


async def test_middleware_sees_decoded_results() -> None:
    proxy, seen = Proxy(make_backend()), []

    @proxy.middleware
    async def look(request: Any, call_next: Any) -> Any:
        result = await call_next(request)
        seen.append(result)
        return result

    async with through(proxy) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
        assert (await client.call_tool("sound")).content[0].data == b"RIFF"
    results = [each for each in seen if hasattr(each, "structured")]
    assert results[0].structured == 3
    assert results[1].content[0].data == b"RIFF"


# ── progress, logs, cancellation, _meta ──


@ways
@eras
@pytest.mark.parametrize("front", [OLD, MODERN])
async def test_progress_and_logs(way: str, front: str, back: str) -> None:
    heard: list[Any] = []
    async with (
        target(way) as where,
        through(Proxy(where, name="calendar", protocol_version=back), front, log_handler=heard.append) as client,
    ):
        if front == OLD:
            await client.set_log_level("info")
        result = await client.call_tool("work", progress_handler=lambda *report: heard.append(report))
        assert result.text == "done"
        await until(lambda: len(heard) == 2)
        assert (1, 2, "half") in heard
        assert LogMessage("info", "working", "calendar.engine") in heard
        heard.clear()
        await client.call_tool("work")
        await until(lambda: bool(heard))
        assert all(isinstance(each, LogMessage) for each in heard)  # no token, no progress


@ways
@eras
async def test_cancellation(way: str, back: str) -> None:
    started = asyncio.Event()
    async with target(way) as where, through(Proxy(where, protocol_version=back)) as client:
        task = asyncio.create_task(client.call_tool("sleep", progress_handler=lambda *_: started.set()))
        await asyncio.wait_for(started.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"


async def test_a_timeout_says_that_the_effect_is_unknown() -> None:
    async with through(Proxy(make_backend(), name="calendar", timeout=0.2)) as client:
        with pytest.raises(ToolError, match=r"'calendar' gave no answer in time.*effect is not known"):
            await client.call_tool("sleep")


@eras
async def test_meta_passes_but_for_keys_of_one_hop(back: str) -> None:
    async with through(Proxy(make_backend(), protocol_version=back)) as client:
        given = {"traceparent": "00-1", "dovetail/idempotencyProcess": "p", "dovetail/tags": ["x"]}
        params = {"name": "meta", "arguments": {}, "_meta": given}
        result = await client.request("tools/call", params)
        assert json.loads(result["content"][0]["text"])["meta"] == {
            "traceparent": "00-1",
            "dovetail/idempotencyProcess": "p",
        }


# ── questions ──


def answers(seen: list[Any]) -> dict[str, Any]:
    def elicit(request: Any) -> Any:
        seen.append(request)
        if request.mode == "url":
            return ElicitResult("accept")
        fields = request.fields
        if "value" in fields:
            return {"value": 7 if fields["value"]["type"] == "integer" else "Ada"}
        return {name: (["red"] if part["type"] == "array" else "red" in name) for name, part in fields.items()}

    return {"elicitation_handler": elicit, "sampling_handler": lambda _: "sampled", "roots": ["/tmp"]}


@live
@ways
async def test_forms_pass(front: str, back: str, way: str) -> None:
    seen: list[Any] = []
    async with (
        target(way) as where,
        through(Proxy(where, name="calendar", protocol_version=back), front, **answers(seen)) as client,
    ):
        assert (await client.call_tool("ask")).text == "accept Ada"
        assert seen[0].message == "[calendar] Your name?"
        assert (await client.call_tool("twice")).text == "7 7"
        assert (await client.call_tool("ask_rich")).text == "accept {'colours': ['red']}"
        assert (await client.call_tool("by_hand")).text == "{'value': 'Ada'}"


@pytest.mark.parametrize(("front", "back"), [(OLD, OLD), (OLD, MODERN), (MODERN, MODERN), (MODERN, OLD)])
async def test_pages_pass(front: str, back: str) -> None:
    seen: list[Any] = []
    proxy = Proxy(make_backend(), name="calendar", protocol_version=back)
    async with through(proxy, front, **answers(seen)) as client:
        assert (await client.call_tool("visit")).text == "accept"
        assert seen[0].url == "https://example.com/in"
        assert seen[0].message == "[calendar] Sign in"
        expected = "has to open a URL first" if front == back == OLD else "has agreed to open the page"
        with pytest.raises((ToolError, ServerError), match=f"The user {expected}"):
            await client.call_tool("sign_in")


@live
async def test_sampling_and_roots_only_if_allowed(front: str, back: str) -> None:
    for allow in ([], ["sampling", "roots"]):
        proxy = Proxy(make_backend(), protocol_version=back, allow=allow)
        async with through(proxy, front, **answers([])) as client:
            for tool, expected in (("sample", "sampled"), ("roots", "file:///tmp")):
                if allow:
                    assert (await client.call_tool(tool)).text == expected
                else:
                    with pytest.raises((ToolError, ServerError), match=r"needs|declares"):
                        await client.call_tool(tool)


async def test_a_call_of_a_handshake_backend_stays_open() -> None:
    seen: list[Any] = []
    heard: list[Any] = []
    proxy = Proxy(make_backend(), name="calendar", protocol_version=OLD, allow=["sampling", "roots"])
    async with through(proxy, MODERN, **answers(seen)) as client:
        assert (await client.call_tool("ask")).text == "accept Ada"
        assert seen[0].message == "[calendar] Your name?"
        assert (await client.call_tool("twice")).text == "7 7"
        assert (await client.call_tool("visit")).text == "accept"
        assert (await client.call_tool("sample")).text == "sampled"
        assert (await client.call_tool("roots")).text == "file:///tmp"
        await client.call_tool("work", progress_handler=lambda *report: heard.append(report))
        assert heard == [(1, 2, "half")]
        with pytest.raises(ToolError, match="cupboard"):
            await client.call_tool("fail")


@pytest.mark.parametrize(("front", "back"), [(OLD, OLD), (OLD, MODERN), (MODERN, MODERN), (MODERN, OLD)])
async def test_questions_pass_from_socket_to_socket(front: str, back: str) -> None:
    """Several at once: each comes on the stream of its call."""
    seen: list[Any] = []
    async with (
        target("http") as where,
        hosted(Proxy(where, protocol_version=back).asgi()) as url,
        Client(f"{url}/mcp", protocol_version=front, **answers(seen)) as client,
    ):
        calls = [client.call_tool("twice") for _ in range(5)]
        assert [each.text for each in await asyncio.gather(*calls)] == ["7 7"] * 5
    assert len(seen) == 10


async def test_answers_that_nobody_asked_for_pass_as_they_are() -> None:
    backend = Server("backend", version="1.0.0")

    @backend.tool
    def greet(ctx: Context) -> str:
        return f"Hello, {ctx.input_responses['who']['content']['name']}"

    async with through(Proxy(backend)) as client:
        answers = {"who": {"action": "accept", "content": {"name": "Ada"}}, "other": {"action": "cancel"}}
        result = await client.request("tools/call", {"name": "greet", "arguments": {}, "inputResponses": answers})
    assert result["content"][0]["text"] == "Hello, Ada"


async def test_a_client_that_can_not_be_asked() -> None:
    for back in (OLD, MODERN):
        async with through(Proxy(make_backend(), protocol_version=back), OLD) as client:
            with pytest.raises(ToolError, match="elicitation"):
                await client.call_tool("ask")


# ── changes ──


@ways
@eras
@pytest.mark.parametrize("front", [OLD, MODERN])
async def test_changes_pass(way: str, front: str, back: str) -> None:
    async with target(way) as where:
        proxy = Proxy(where, protocol_version=back)
        async with through(proxy, front) as client:
            await client.list_tools()
            async with client.listen(tools=True, uris=["notes://all"]) as changes:
                heard: set[Change] = set()

                async def hear(wanted: Change, tool: str) -> None:
                    while wanted not in heard:  # the backend's own stream may not be open yet
                        await client.call_tool(tool)
                        try:
                            heard.add(await asyncio.wait_for(anext(changes), 0.3))
                        except TimeoutError:
                            continue

                if back == MODERN or way != "stdio":  # a handshake command has a process for each session
                    await asyncio.wait_for(hear(Change("updated", "notes://all"), "update"), 20)
                    await client.call_tool("grow")
                    await asyncio.wait_for(until_listed(client, "grown"), 20)


async def until_listed(client: Client, name: str) -> None:
    while name not in [tool.name for tool in await client.list_tools(fresh=True)]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@eras
async def test_a_slow_list_holds_no_update_back(back: str) -> None:
    backend, go, asked = make_backend(), asyncio.Event(), asyncio.Event()
    go.set()

    @backend.middleware
    async def wait(request: Any, call_next: Any) -> Any:
        if request.method == "tools/list":
            asked.set()
            await go.wait()
        return await call_next(request)

    async with through(Proxy(backend, protocol_version=back)) as client:
        await client.list_tools()
        async with client.listen(tools=True, uris=["notes://all"]) as changes:
            await asyncio.wait_for(until_told(client, changes), 20)
            go.clear()
            asked.clear()
            backend.add_tool(lambda: "x", name="late")
            await asyncio.wait_for(asked.wait(), 10)
            backend.add_tool(lambda: "x", name="later")  # while the list is read
            backend.notify_resource_updated("notes://all")
            assert await asyncio.wait_for(anext(changes), 10) == Change("updated", "notes://all")
            go.set()
            await asyncio.wait_for(until_listed(client, "later"), 10)


async def test_lists_are_fetched_again_if_the_backend_does_not_notify() -> None:
    backend = make_backend(list_changed=False)
    async with through(Proxy(backend, protocol_version=OLD, limits=BRISK)) as client:
        await client.list_tools()
        backend.add_tool(lambda: "x", name="late")
        assert "late" in [tool.name for tool in await client.list_tools(fresh=True)]
        backend.remove_tool("late")
        assert "late" not in [tool.name for tool in await client.list_tools(fresh=True)]


def refuse_list(backend: Server, method: str, code: int) -> asyncio.Event:
    """Have the backend refuse a list once the event is set."""
    refused = asyncio.Event()

    @backend.middleware
    async def refuse(request: Any, call_next: Any) -> Any:
        if request.method == method and refused.is_set():
            raise ProtocolError("no", code=code)
        return await call_next(request)

    return refused


@pytest.mark.parametrize("way", ["memory", "http"])
@eras
async def test_a_list_that_the_backend_has_no_more_is_empty_and_the_others_go_on(way: str, back: str) -> None:
    backend = make_backend(list_changed=False)
    refused = refuse_list(backend, "prompts/list", -32601)
    async with AsyncExitStack() as stack:
        where: Any = backend
        if way == "http":
            where = f"{await stack.enter_async_context(hosted(backend.asgi()))}/mcp"
        proxy = Proxy(where, protocol_version=back, limits=BRISK)
        client = await stack.enter_async_context(through(proxy))
        assert [each.name for each in await client.list_prompts()] == ["review"]
        refused.set()
        backend.add_tool(lambda: "x", name="late")
        await asyncio.wait_for(until_listed(client, "late"), 20)
        assert await client.list_prompts(fresh=True) == []
        refused.clear()
        await client.list_tools(fresh=True)
        assert [each.name for each in await client.list_prompts(fresh=True)] == ["review"]


@pytest.mark.parametrize("code", [-32603, -32602, -32050])
async def test_an_error_of_a_list_ends_no_session(code: int) -> None:
    backend = make_backend(list_changed=False)
    refused = refuse_list(backend, "prompts/list", code)
    async with hosted(backend.asgi()) as url:
        proxy = Proxy(f"{url}/mcp", protocol_version=OLD, limits=BRISK)
        async with through(proxy, OLD) as client:  # a local user has the session of the lists
            prompts, first = await client.list_prompts(), await session_of(client)
            refused.set()
            assert await client.list_prompts(fresh=True) == prompts
            assert await session_of(client) == first


# ── backends that die ──


class Restarting:
    """A backend at one port, which dies and comes back."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self.port = 0

    async def start(self, app: Any) -> str:
        url = await self._stack.enter_async_context(hosted(app, self.port, is_killed=True))
        self.port = int(url.rpartition(":")[2])
        return f"{url}/mcp"

    async def die(self) -> None:
        await self._stack.aclose()
        self._stack = AsyncExitStack()


async def test_a_dead_backend_costs_others_no_call_and_tells_no_secret_of_its_url() -> None:
    server = Server("desk")
    server.mount(Proxy("http://127.0.0.1:9/s3cret/mcp", name="dead"))
    server.mount(Proxy(make_backend()), namespace="live")
    async with through(server) as client:
        assert (await client.call_tool("live_add", {"a": 1, "b": 2})).text == "3"
        with pytest.raises(ToolError, match=r"'dead' can't be reached: .*http://127.0.0.1:9/…") as failure:
            await client.call_tool("unknown")
        assert "s3cret" not in str(failure.value)


async def test_a_dead_backend_is_not_blamed_for_a_namespace_that_begins_like_its_own() -> None:
    server = Server("desk")
    server.mount(Proxy("http://127.0.0.1:9/mcp", name="dead"), namespace="shop")
    server.mount(Proxy(make_backend()), namespace="shopping")
    async with through(server) as client:
        with pytest.raises(ServerError, match="Unknown tool"):
            await client.call_tool("shopping_unknown")
        with pytest.raises(ToolError, match="'dead' can't be reached"):
            await client.call_tool("shop_unknown")


@pytest.mark.parametrize("end", ["/mcp/key:s3cret", "/mcp/a,s3cret", "/a;s3cret/mcp", "?key=s3cret", "/?key='s3cret'"])
async def test_no_part_of_a_url_behind_its_host_is_told(end: str) -> None:
    proxy = Proxy(f"http://127.0.0.1:9{end}", name="dead")
    async with through(proxy) as client:
        with pytest.raises(ToolError, match=r"'dead' can't be reached: .*http://127.0.0.1:9(/…)?: can't") as failure:
            await client.call_tool("unknown")
    assert "s3cret" not in f"{failure.value} {proxy.problem} {proxy.status}"


async def test_a_dead_backend_inside_of_a_mounted_server_is_named() -> None:
    for namespace in ("notes", None):
        office, server = Server("office"), Server("desk")
        office.mount(Proxy("http://127.0.0.1:9/mcp", name="dead"), namespace=namespace)
        server.mount(office, namespace="office")
        async with through(server) as client:
            with pytest.raises(ToolError, match="'dead' can't be reached"):
                await client.call_tool("office_notes_read")
            with pytest.raises(ServerError, match="Unknown tool"):
                await client.call_tool("other_notes_read")


@eras
async def test_a_dead_backend_is_a_clear_error_and_its_tools_stay(back: str) -> None:
    backend = Restarting()
    url = await backend.start(make_backend().asgi())
    async with through(Proxy(url, name="calendar", protocol_version=back, limits=BRISK)) as client:
        tools = await client.list_tools()
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"
        await backend.die()
        for _ in range(3):
            with pytest.raises(ToolError, match=r"The server 'calendar' (can't be reached|was lost)"):
                await client.call_tool("add", {"a": 1, "b": 2})
        assert await client.list_tools() == tools
        await backend.start(make_backend().asgi())
        await asyncio.wait_for(until_works(client), 20)
        await backend.die()


async def until_works(client: Client) -> None:
    while (await client.call_tool("add", {"a": 1, "b": 2}, raise_on_error=False)).is_error:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@eras
async def test_a_crash_in_mid_call(back: str) -> None:
    proxy = Proxy(
        [sys.executable, str(HERE / "proxied_server.py")], name="calendar", protocol_version=back, limits=BRISK
    )
    async with through(proxy) as client:
        tools = await client.list_tools()
        with pytest.raises(ToolError, match=r"'calendar' was lost during the request.*effect is not known"):
            await client.call_tool("crash")
        assert await client.list_tools() == tools
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"


async def test_a_crash_costs_no_call_that_waits_for_its_turn() -> None:
    command = [sys.executable, str(HERE / "proxied_server.py")]
    async with through(Proxy(command, protocol_version=OLD, limits=BRISK), OLD, **answers([])) as client:
        await client.list_tools()
        calls = [client.call_tool("crash"), *(client.call_tool("add", {"a": n, "b": 0}) for n in range(5))]
        lost, *others = await asyncio.gather(*calls, return_exceptions=True)
        assert "was lost during the request" in str(lost)
        assert [getattr(each, "text", each) for each in others] == ["0", "1", "2", "3", "4"]


async def test_a_command_that_does_not_exist() -> None:
    proxy = Proxy(["/no/such/command"], name="calendar", limits=BackendLimits(retry=60))
    proxy.add_tool(lambda: "local", name="local")
    async with through(proxy) as client:
        assert [tool.name for tool in await client.list_tools()] == ["local"]
        assert (await client.call_tool("local")).text == "local"
        with pytest.raises(ServerError, match="'calendar' can't be reached"):
            await client.read_resource("notes://all")
    assert "no such command" in proxy.problem


async def test_another_era_after_a_restart() -> None:
    for first, then in ((MODERN, OLD), (OLD, MODERN)):
        backend = Restarting()
        url = await backend.start(only(first, make_backend().asgi()))
        async with through(Proxy(url, name="calendar", limits=BRISK)) as client:
            assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"
            await backend.die()
            await backend.start(only(then, make_backend().asgi()))
            with suppress(ServerError):  # the call that finds out gets the backend's refusal
                await asyncio.wait_for(until_works(client), 20)
            await asyncio.wait_for(until_works(client), 20)
        await backend.die()


@pytest.mark.parametrize(("status", "code"), [(400, -32600), (404, -32001), (404, -32601), (404, -32099)])
@pytest.mark.parametrize(("first", "then"), [(MODERN, OLD), (OLD, MODERN)])
async def test_lists_follow_to_another_era(first: str, then: str, status: int, code: int) -> None:
    backend, limits = Restarting(), BackendLimits(retry=0.01, refresh=0.01, list_wait=0.1)
    url = await backend.start(only(first, make_backend().asgi(), status, code))
    async with through(Proxy(url, name="calendar", limits=limits)) as client:
        await asyncio.wait_for(until_listed(client, "add"), 20)
        await backend.die()
        changed = make_backend()
        changed.add_tool(lambda: "x", name="late")
        await backend.start(only(then, changed.asgi(), status, code))
        await asyncio.wait_for(until_listed(client, "late"), 20)
    await backend.die()


@pytest.mark.parametrize("uris", [[], ["notes://all"]])
@pytest.mark.parametrize(("first", "then"), [(OLD, OLD), (MODERN, MODERN), (MODERN, OLD)])
async def test_a_client_that_only_listens_is_told_after_a_restart(first: str, then: str, uris: list[str]) -> None:
    backend = Restarting()
    url = await backend.start(only(first, make_backend().asgi()))
    async with through(Proxy(url, name="calendar", limits=BRISK)) as client:
        await client.list_tools()
        async with client.listen(tools=True, uris=uris) as changes:
            await backend.die()
            changed = make_backend()
            changed.add_tool(lambda: "x", name="late")
            await backend.start(only(then, changed.asgi()))
            async with asyncio.timeout(20):
                while await anext(changes) != Change("tools"):
                    pass
        assert "late" in [tool.name for tool in await client.list_tools(fresh=True)]
    await backend.die()


def only(era: str, app: Any, status: int = 400, code: int = -32600) -> Any:
    """An app that speaks one era only."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        version = headers.get(b"mcp-protocol-version", b"").decode()
        asked = version or OLD  # `initialize` names none
        if scope["type"] == "http" and (asked == MODERN) != (era == MODERN):
            body = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "no"}}).encode()
            start = {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", b"application/json")],
            }
            await send(start)
            await send({"type": "http.response.body", "body": body})
        else:
            await app(scope, receive, send)

    return serve


# ── backends that lie ──


async def test_items_that_can_not_be_used_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async with through(Proxy(liar("items"), limits=BRISK), OLD) as client:
        assert [tool.name for tool in await client.list_tools()] == ["good", "odd_output"]
        await client.list_tools(fresh=True)
    left_out = [each.getMessage() for each in caplog.records if "is left out" in each.getMessage()]
    assert len(left_out) == len(set(left_out)) == 8


async def test_pages_without_end() -> None:
    async with through(Proxy(liar("pages"), limits=BackendLimits(max_items=50))) as client:
        assert len(await client.list_tools()) == 50


async def test_progress_without_end() -> None:
    reports: list[Any] = []
    async with through(Proxy(liar("progress"))) as client:
        result = await client.call_tool("good", progress_handler=lambda *report: reports.append(report))
        assert result.text == "ok"
        assert len(reports) < 1000


@pytest.mark.parametrize("lie", ["sampling", "roots", "odd_form", "no_form"])
async def test_questions_that_may_not_be_asked(lie: str) -> None:
    seen: list[Any] = []
    async with through(Proxy(liar(lie)), OLD, **answers(seen)) as client:
        refusal = json.loads((await client.call_tool("good")).text)
        assert refusal["code"] == (-32601 if lie in ("sampling", "roots") else -32602)
    assert not seen


async def test_a_question_outside_of_a_call() -> None:
    seen: list[Any] = []
    async with through(Proxy(liar("question_outside")), OLD, **answers(seen)) as client:
        assert (await client.call_tool("good")).text == "ok"
    assert not seen


@pytest.mark.parametrize("lie", ["content", "block", "kind", "structured", "type", "nothing"])
async def test_results_that_do_not_fit(lie: str) -> None:
    era = MODERN if lie in ("type", "nothing") else OLD
    async with through(Proxy(liar(lie, era), name="calendar")) as client:
        with pytest.raises(ToolError, match="The server 'calendar' gave a result that can't be read"):
            await client.call_tool("good")


async def test_a_modern_backend_that_asks_what_it_may_not() -> None:
    async with through(Proxy(liar("asks_sampling", MODERN), name="calendar"), **answers([])) as client:
        with pytest.raises(ToolError, match=r"The server 'calendar' asks sampling/createMessage.*not passed on"):
            await client.call_tool("good")


@pytest.mark.parametrize("front", [OLD, MODERN])
async def test_errors_of_the_backend_pass_within_bounds(front: str) -> None:
    async with through(Proxy(liar("error")), front) as client:
        with pytest.raises(ServerError) as failure:
            await client.call_tool("good")
    assert failure.value.code == (-32603 if front == MODERN else -32050)
    assert failure.value.message.startswith("bad line xxx")
    assert len(failure.value.message) <= 501
    assert failure.value.data == {"why": 1}


async def test_a_backend_that_does_not_answer_costs_no_other_list() -> None:
    limits = BackendLimits(list_wait=0.05)
    async with through(Proxy(liar("slow_start"), limits=limits)) as client:
        assert await client.list_tools() == []


async def test_a_backend_that_does_not_answer_is_waited_for_once() -> None:
    limits = BackendLimits(list_wait=2.0)
    async with Scripted(lambda _: None) as silent, through(Proxy(silent.url, limits=limits)) as client:
        assert await client.list_tools() == []
        async with asyncio.timeout(1.9):  # too short to wait once more
            assert await client.list_prompts() == await client.list_resources() == []


async def test_a_call_during_back_off_fails_at_once() -> None:
    limits = BackendLimits(retry=60)
    proxy = Proxy(["/no/such/command"], name="calendar", limits=limits)
    async with through(proxy) as client:
        failures = await asyncio.gather(*(client.call_tool("x") for _ in range(10)), return_exceptions=True)
    assert {type(each) for each in failures} == {ToolError}
    assert all("'calendar' can't be reached" in str(each) for each in failures)


async def test_a_tool_of_a_backend_whose_lists_are_not_known() -> None:
    for lie, limits in (("slow_start", BackendLimits(list_wait=0.05)), ("no_lists", BRISK)):
        async with through(Proxy(liar(lie), name="calendar", limits=limits)) as client:
            with pytest.raises(ToolError, match="The server 'calendar' can't be reached"):
                await client.call_tool("good")


async def test_own_items_stay_whatever_the_backend_lists() -> None:
    backend = make_backend(list_changed=False)
    backend.add_tool(lambda: "the backend's", name="local")
    proxy = Proxy(backend, protocol_version=OLD, limits=BRISK)
    proxy.add_tool(lambda: "own", name="local")
    async with through(proxy) as client:
        for description in ("another", "yet another"):
            await client.list_tools(fresh=True)
            backend.remove_tool("local")
            assert "local" in [tool.name for tool in await client.list_tools(fresh=True)]
            backend.add_tool(lambda: "the backend's", name="local", description=description)
            assert (await client.call_tool("local")).text == "own"


async def test_a_disabled_resource_can_not_be_read() -> None:
    proxy = Proxy(make_backend())
    async with through(proxy) as client:
        await client.list_resources()
        proxy.disable(names=["notes://all", "notes://{id}"])
        for uri in ("notes://all", "notes://5"):
            with pytest.raises(ServerError, match="not found"):
                await client.read_resource(uri)


async def test_an_error_of_a_tool_ends_no_process() -> None:
    command = [sys.executable, str(HERE / "proxied_server.py")]
    for back in (OLD, MODERN):
        async with through(Proxy(command, protocol_version=back)) as client:
            pid = (await client.call_tool("pid")).text
            with pytest.raises(ServerError, match="refused"):
                await client.call_tool("reject")
            assert (await client.call_tool("pid")).text == pid


async def test_a_local_user_needs_one_process() -> None:
    command = [sys.executable, str(HERE / "proxied_server.py")]
    async with through(Proxy(command, protocol_version=OLD), OLD, **answers([])) as client:
        await client.list_tools()
        pid = int((await client.call_tool("pid")).text)
        assert (await client.call_tool("ask")).text == "accept Ada"
        assert (await client.complete(prompt="review", argument="code", value=f"{pid}")).values == [f"{pid}1"]
        async with client.listen(uris=["notes://all"]) as changes:
            await asyncio.wait_for(until_told(client, changes), 20)
        assert len({(await client.call_tool("siblings")).text}) == 1
        assert (await client.call_tool("siblings")).data in ("1", {"result": 1}, 1)


async def until_told(client: Client, changes: Any) -> None:
    while True:
        await client.call_tool("update")
        with suppress(TimeoutError):
            return await asyncio.wait_for(anext(changes), 0.3)


async def test_watchers_are_told_after_a_crash() -> None:
    """What changed meanwhile is not known."""
    command = [sys.executable, str(HERE / "proxied_server.py")]
    async with (
        through(Proxy(command, protocol_version=MODERN, limits=BRISK)) as client,
        client.listen(uris=["notes://all"]) as changes,
    ):
        await asyncio.wait_for(until_told(client, changes), 20)
        with pytest.raises(ToolError):
            await client.call_tool("crash")
        assert await asyncio.wait_for(anext(changes), 20) == Change("updated", "notes://all")


@eras
async def test_a_proxy_by_itself_passes_the_instructions_on(back: str) -> None:
    backend = make_backend(instructions="Add with care.")
    for front in (OLD, MODERN):
        async with through(Proxy(backend, protocol_version=back), front) as client:
            assert client.instructions == "Add with care."
        async with through(Proxy(backend, protocol_version=back, instructions="Mine."), front) as client:
            assert client.instructions == "Mine."
        parent = Server("parent")
        parent.mount(Proxy(backend, protocol_version=back), namespace="calendar")
        async with through(parent, front) as client:
            assert client.instructions is None


# ── callers ──


def caller(name: str) -> Principal:
    return Principal(subject=name, client="app", issuer="test", key=name)


@asynccontextmanager
async def as_caller(proxy: Proxy, name: str, front: str = MODERN, **options: Any) -> AsyncIterator[Client]:
    async with Client(proxy, protocol_version=front, principal=caller(name), **options) as client:
        yield client


async def session_of(client: Client) -> Any:
    return json.loads((await client.call_tool("seen")).text)["session"]


async def test_two_callers_never_share_a_session() -> None:
    async with target("http") as where:
        proxy = Proxy(where, protocol_version=OLD)
        async with as_caller(proxy, "ann") as ann, as_caller(proxy, "bob") as bob, as_caller(proxy, "ann") as again:
            first, second, third = [await session_of(each) for each in (ann, bob, again)]
            assert first != second
            assert first == third
            assert await session_of(ann) == first
        async with hosted(proxy.asgi()) as url, Client(f"{url}/mcp", protocol_version=MODERN) as anonymous:
            assert len({await session_of(anonymous) for _ in range(3)}) == 3


async def test_sessions_are_bounded() -> None:
    async with target("http") as where:
        proxy = Proxy(where, name="calendar", protocol_version=OLD, limits=BackendLimits(max_sessions=2))
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(as_caller(proxy, name)) for name in ("a", "b", "c")]
            sessions = [await session_of(each) for each in clients]
            assert len(set(sessions)) == 3  # the first was closed for the third
            assert await session_of(clients[2]) == sessions[2]
            assert await session_of(clients[0]) != sessions[0]
            started = [asyncio.Event(), asyncio.Event()]
            busy = [
                asyncio.create_task(each.call_tool("sleep", progress_handler=lambda *_, event=event: event.set()))
                for each, event in zip(clients[1:], started, strict=True)
            ]
            for event in started:
                await asyncio.wait_for(event.wait(), 10)
            with pytest.raises(ToolError, match="The server 'calendar' is busy"):
                await clients[0].call_tool("add", {"a": 1, "b": 2})
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)


async def test_callers_that_are_not_known_leave_sessions_to_others() -> None:
    async with target("http") as where, AsyncExitStack() as stack:
        proxy = Proxy(where, protocol_version=OLD, limits=BackendLimits(max_sessions=10))
        url = await stack.enter_async_context(hosted(proxy.asgi()))
        options: Any = {"protocol_version": MODERN, "capabilities": {"elicitation": {}}}
        client = await stack.enter_async_context(Client(f"{url}/mcp", **options))
        for _ in range(9):  # none is answered
            asked = await client.request("tools/call", {"name": "ask", "arguments": {}})
            assert asked["resultType"] == "input_required"
        with pytest.raises(ToolError, match="is busy"):
            await client.call_tool("add", {"a": 1, "b": 2})
        ann = await stack.enter_async_context(as_caller(proxy, "ann"))
        assert (await ann.call_tool("add", {"a": 1, "b": 2})).text == "3"


async def test_odd_capabilities_make_no_further_sessions() -> None:
    async with target("http") as where, AsyncExitStack() as stack:
        proxy, sessions = Proxy(where, protocol_version=OLD), set()
        for number in range(3):
            odd = {"elicitation": {"form": {}, f"part{number}": {}}, "kind": {}}
            client = Client(proxy, principal=caller("ann"), capabilities=odd)
            sessions.add(await session_of(await stack.enter_async_context(client)))
        assert len(sessions) == 1


async def test_an_idle_session_is_closed() -> None:
    async with target("http") as where:
        proxy = Proxy(where, protocol_version=OLD, limits=BackendLimits(idle=0.0))
        async with as_caller(proxy, "ann") as ann:
            first = await session_of(ann)
            await asyncio.sleep(0)
            assert await session_of(ann) != first


@eras
async def test_the_callers_token_is_never_passed_on(back: str) -> None:
    asked: list[Any] = []

    def auth(principal: Principal | None) -> str:
        asked.append(principal)
        return "gateway" if principal is None else f"token-of-{principal.subject}"

    async with target("http") as where:
        proxy = Proxy(where, protocol_version=back, auth=auth, headers={"X-Gateway": "1"})
        async with as_caller(proxy, "ann") as ann, as_caller(proxy, "bob") as bob:
            for name, client in (("ann", ann), ("bob", bob)):
                headers = json.loads((await client.call_tool("seen")).text)["headers"]
                assert headers["authorization"] == f"Bearer token-of-{name}"
                assert headers["x-gateway"] == "1"
    assert asked[0] is None  # for the lists
    assert {each.subject for each in asked[1:]} == {"ann", "bob"}


@eras
async def test_a_late_log_reaches_no_other_caller(back: str) -> None:
    heard: list[LogMessage] = []
    proxy = Proxy(liar("late_log", back))
    async with as_caller(proxy, "ann") as ann, as_caller(proxy, "bob", log_handler=heard.append) as bob:
        for _ in range(2):
            await ann.call_tool("good", {"who": "ann"})
            await bob.call_tool("good", {"who": "bob"})
    assert {each.data for each in heard} <= {"of bob"}


@eras
async def test_a_caller_without_a_token_costs_the_others_nothing(back: str) -> None:
    def auth(principal: Principal | None) -> str:
        if principal is not None and principal.subject == "eve":
            raise ToolError("There is no token for eve")
        return "token"

    async with target("http") as where:
        proxy = Proxy(where, protocol_version=back, auth=auth)
        async with as_caller(proxy, "ann") as ann, as_caller(proxy, "eve") as eve:
            for _ in range(2):
                with pytest.raises(ToolError, match="no token for eve"):
                    await eve.call_tool("pid")
                assert (await ann.call_tool("add", {"a": 1, "b": 2})).text == "3"


@eras
async def test_a_token_that_has_expired_is_asked_for_again(back: str) -> None:
    backend, tokens = make_backend().asgi(), ["first"]

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization")
        if scope["type"] != "http" or given == f"Bearer {tokens[-1]}".encode():
            return await backend(scope, receive, send)
        await send({"type": "http.response.start", "status": 401, "headers": []})
        return await send({"type": "http.response.body", "body": b""})

    async with hosted(guarded) as url:
        proxy = Proxy(f"{url}/mcp", protocol_version=back, auth=lambda _: tokens[-1], limits=BRISK)
        async with as_caller(proxy, "ann") as ann:
            assert (await ann.call_tool("add", {"a": 1, "b": 2})).text == "3"
            tokens.append("second")
            with pytest.raises(ToolError, match="401"):
                await ann.call_tool("add", {"a": 1, "b": 2})
            assert (await ann.call_tool("add", {"a": 1, "b": 2})).text == "3"
            assert not proxy.problem


async def test_a_backend_that_has_become_older_in_the_session_of_a_caller_runs_once() -> None:
    backend, runs = make_backend(), list[str]()

    @backend.tool
    async def confirm(ctx: Context) -> str:
        runs.append("confirm")
        return (await ctx.elicit("Sure?", str)).action

    app = backend.asgi()

    async def downgraded(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if headers.get(b"authorization") != b"Bearer ann" or headers.get(b"mcp-protocol-version") != MODERN.encode():
            return await app(scope, receive, send)
        await send({"type": "http.response.start", "status": 400, "headers": []})
        return await send({"type": "http.response.body", "body": b""})

    async with hosted(downgraded) as url:
        proxy = Proxy(f"{url}/mcp", auth=lambda principal: "gateway" if principal is None else "ann", timeout=5)
        async with as_caller(proxy, "ann", **answers([])) as ann:
            with pytest.raises(ToolError, match="gone back to an older revision"):
                await ann.call_tool("confirm")
    assert runs == ["confirm"]


@eras
async def test_a_caller_that_subscribes_to_much_takes_no_updates_of_others(
    back: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.gateway.proxy.MAX_URIS", 2)
    backend, uri = make_backend(), "notes://all"
    proxy = Proxy(backend, protocol_version=back)
    async with as_caller(proxy, "ann") as ann, as_caller(proxy, "bob") as bob, ann.listen(uris=[uri]) as heard:
        await until(lambda: backend.engine.hub.uris() == ["notes://all"])
        async with bob.listen(uris=["notes://1", "notes://2", "notes://3"]):
            await until(lambda: "notes://1" in backend.engine.hub.uris())
            await settle()
            backend.notify_resource_updated("notes://all")
            assert (await asyncio.wait_for(anext(heard), 10)).uri == "notes://all"


@eras
async def test_an_idempotency_key_is_that_of_one_caller(back: str) -> None:
    backend, runs = Server("shop", auth=ApiKeys({"gateway": "key-of-the-gateway"})), list[str]()

    @backend.tool(idempotency=True)
    def order(what: str) -> str:
        runs.append(what)
        return f"order {len(runs)}"

    async def text(client: Client, **meta: str) -> str:
        params = {"name": "order", "arguments": {"what": "tea"}, "_meta": meta}
        return str((await client.request("tools/call", params))["content"][0]["text"])

    async with hosted(backend.asgi()) as where:
        proxy = Proxy(f"{where}/mcp", protocol_version=back, auth="key-of-the-gateway")
        key = {"dovetail/idempotencyKey": "1"}
        async with as_caller(proxy, "ann") as ann, as_caller(proxy, "bob") as bob:
            assert [await text(each, **key) for each in (ann, bob, ann, bob)] == [f"order {n}" for n in (1, 2, 1, 2)]
        async with hosted(proxy.asgi()) as url:
            async with Client(f"{url}/mcp", headers={"Idempotency-Key": "2" * 32}) as one:
                assert [await text(one), await text(one)] == ["order 3", "order 3"]
            async with Client(f"{url}/mcp") as other:
                with pytest.raises(ServerError, match="needs 32 characters"):
                    await text(other, **key)


async def test_headers_of_a_client_are_not_passed_on() -> None:
    async with target("http") as where, hosted(Proxy(where).asgi()) as url:
        headers = {"Authorization": "Bearer secret", "X-Secret": "1", "Cookie": "a=b"}
        async with Client(f"{url}/mcp", headers=headers) as client:
            seen = json.loads((await client.call_tool("seen")).text)
    assert not {"authorization", "x-secret", "cookie"} & seen["headers"].keys()


@eras
async def test_the_backend_sees_the_capabilities_of_the_client(back: str) -> None:
    proxy = Proxy(make_backend(), protocol_version=back, allow=["roots"])
    async with through(proxy, MODERN, **answers([])) as asked, through(proxy) as plain:
        seen = json.loads((await asked.call_tool("seen")).text)["capabilities"]
        assert seen == {"elicitation": {"form": {}, "url": {}}, "roots": {}}
        assert json.loads((await plain.call_tool("seen")).text)["capabilities"] == {}


async def test_calls_take_turns_on_a_pipe_if_the_client_can_be_asked() -> None:
    command = [sys.executable, str(HERE / "proxied_server.py")]
    seen: list[Any] = []
    async with through(Proxy(command, protocol_version=OLD), OLD, **answers(seen)) as client:
        results = await asyncio.gather(*(client.call_tool("ask") for _ in range(5)))
        assert [each.text for each in results] == ["accept Ada"] * 5
        pids = {(await client.call_tool("pid")).text for _ in range(3)}
        assert len(pids) == 1


def drop(_: Any) -> Any:
    raise RuntimeError("the dialog crashed")


@pytest.mark.parametrize(("own", "root"), [(0.2, 60), (60, 0.2)])
async def test_an_open_call_ends_after_the_shorter_answer_timeout(own: float, root: float) -> None:
    """That of its proxy or of the server it is mounted at; it has its turn on the pipe until then."""
    desk = Server("desk", answer_timeout=root)
    desk.mount(Proxy(make_backend(), protocol_version=OLD, timeout=5, answer_timeout=own), namespace="n")
    async with through(desk, MODERN, elicitation_handler=drop) as client:
        with pytest.raises(RuntimeError, match="the dialog crashed"):
            await client.call_tool("n_ask")
        assert (await client.call_tool("n_add", {"a": 1, "b": 2})).text == "3"


async def test_a_question_that_is_dropped_makes_the_next_call_busy_and_not_hang() -> None:
    proxy = Proxy(make_backend(), name="calendar", protocol_version=OLD, timeout=0.5)
    async with through(proxy, MODERN, elicitation_handler=drop) as client:
        with pytest.raises(RuntimeError, match="the dialog crashed"):
            await client.call_tool("ask")
        for _ in range(2):
            with pytest.raises(ToolError, match="'calendar' is busy: an earlier call of this caller has not ended"):
                await asyncio.wait_for(client.call_tool("pid"), 10)


def make_waiting() -> tuple[Server, asyncio.Event, list[str]]:
    """A backend whose calls of `wait` end with the event; the list has the names of those that began."""
    backend, go, begun = make_backend(), asyncio.Event(), list[str]()

    @backend.tool
    async def wait(name: str) -> str:
        begun.append(name)
        await go.wait()
        return name

    return backend, go, begun


async def test_a_call_waits_for_its_turn_while_those_before_it_end() -> None:
    backend, go, begun = make_waiting()
    proxy, other = (Proxy(backend, protocol_version=OLD, timeout=1) for _ in range(2))
    async with through(proxy, OLD, **answers([])) as client, through(other, OLD) as witness:
        await asyncio.gather(client.list_tools(), witness.list_tools())
        first = asyncio.create_task(client.call_tool("wait", {"name": "first"}))
        await until(lambda: begun == ["first"])
        second = asyncio.create_task(client.call_tool("wait", {"name": "second"}))
        third = asyncio.create_task(client.call_tool("add", {"a": 1, "b": 2}))
        await settle()
        with pytest.raises(ToolError, match="gave no answer in time"):  # so the third has waited as long as that
            await witness.call_tool("wait", {"name": "witness"})
        go.set()
        with pytest.raises(ToolError, match="gave no answer in time"):
            await first
        assert (await second).text == "second"
        assert (await third).text == "3"


async def test_a_call_that_is_cancelled_before_its_turn_costs_no_other_its_turn() -> None:
    backend, go, begun = make_waiting()
    cancelled: list[str] = []
    proxy = Proxy(backend, protocol_version=OLD, timeout=5)

    @proxy.middleware
    async def note(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except asyncio.CancelledError:
            cancelled.append(request.method)
            raise

    async with through(proxy, OLD, **answers([])) as client:
        await client.list_tools()
        first = asyncio.create_task(client.call_tool("wait", {"name": "first"}))
        await until(lambda: begun == ["first"])
        second = asyncio.create_task(client.call_tool("wait", {"name": "second"}))
        third = asyncio.create_task(client.call_tool("add", {"a": 1, "b": 2}))
        await settle()
        second.cancel()
        await until(lambda: cancelled == ["tools/call"])
        go.set()
        assert (await first).text == "first"
        assert (await third).text == "3"
    assert begun == ["first"]


async def test_arguments_that_are_headers_too() -> None:
    backend = make_backend()
    schema: Any = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    schema["required"] = ["region"]
    backend.add_tool(lambda region: region, name="near", input_schema=schema)
    async with hosted(backend.asgi()) as url:
        proxy = Proxy(f"{url}/mcp", auth=lambda principal: None if principal is None else "token")
        async with hosted(proxy.asgi()) as front, Client(f"{front}/mcp") as client:
            assert (await client.call_tool("near", {"region": "north"})).text == "north"
        async with as_caller(proxy, "ann") as ann:
            assert (await ann.call_tool("near", {"region": "south"})).text == "south"


async def test_a_question_through_two_gateways() -> None:
    seen: list[Any] = []
    inner = Proxy(make_backend(), name="inner")
    async with through(Proxy(inner, name="outer"), MODERN, **answers(seen)) as client:
        assert (await client.call_tool("twice")).text == "7 7"
    assert seen[0].message == "[outer] [inner] First?"


@eras
async def test_an_error_that_looks_like_a_refusal_runs_nothing_twice(back: str) -> None:
    runs: list[int] = []
    codes = [-32600, -32000] if back == OLD else [-32600]  # since 2026-07-28 there is no other one
    backend = make_backend()

    @backend.tool
    def refuse(code: int) -> str:
        runs.append(code)
        raise ProtocolError("no", code=code)

    async with through(Proxy(backend, protocol_version=back), OLD) as client:
        for code in codes:
            with pytest.raises(ServerError, match="no"):
                await client.call_tool("refuse", {"code": code})
    assert runs == codes


async def test_an_error_of_a_tool_ends_no_session() -> None:
    backend = make_backend()

    @backend.tool
    def refuse() -> str:
        raise ProtocolError("no", code=-32000)

    async with hosted(backend.asgi()) as url:
        proxy = Proxy(f"{url}/mcp", protocol_version=OLD)
        async with as_caller(proxy, "ann", OLD) as ann:
            first = await session_of(ann)
            with pytest.raises(ServerError):
                await ann.call_tool("refuse")
            assert await session_of(ann) == first


@pytest.mark.parametrize(
    ("status", "code"), [(200, -32600), (200, -32000), (200, -32001), (200, -32022), (413, -32600)]
)
async def test_an_error_that_a_caller_can_provoke_ends_no_session_of_others(status: int, code: int) -> None:
    serve = modern([{"name": name, "inputSchema": {"type": "object"}} for name in ("plain", "refuse")])

    def behave(request: ScriptedRequest) -> None:
        is_refused = request.method == "tools/call" and request.message["params"]["name"] == "refuse"
        request.error(code, status) if is_refused else serve(request)

    async with Scripted(behave) as server:
        proxy = Proxy(server.url)
        async with as_caller(proxy, "ann") as ann, as_caller(proxy, "bob") as bob:
            assert (await ann.call_tool("plain")).text == "called"
            with pytest.raises((ServerError, ToolError), match="no"):
                await bob.call_tool("refuse")
            assert (await ann.call_tool("plain")).text == "called"
        assert server.said().count("POST server/discover") == 1


async def test_a_backend_may_say_by_a_400_that_it_has_forgotten_a_session() -> None:
    """MCP says 404, but servers made with the official TypeScript SDK say 400 and -32000."""
    known = ["1"]

    def behave(request: ScriptedRequest) -> None:
        if handshake(request, Mcp_Session_Id=known[-1]):
            return
        if request.headers["mcp-session-id"] != known[-1]:
            request.error(-32000, 400, "Bad Request: No valid session ID provided", id=False)
        elif request.method == "tools/list":
            request.result({"tools": [{"name": "plain", "inputSchema": {"type": "object"}}]})
        else:
            request.result({"content": [{"type": "text", "text": known[-1]}]})

    async with Scripted(behave) as server, through(Proxy(server.url, protocol_version=OLD)) as client:
        assert (await client.call_tool("plain")).text == "1"
        known.append("2")
        with pytest.raises(ServerError, match="No valid session ID"):
            await client.call_tool("plain")
        assert (await client.call_tool("plain")).text == "2"
