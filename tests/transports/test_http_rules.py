"""Rules that hold for a whole conversation over HTTP, whatever is asked: seen in all that a busy server says."""

import asyncio
import re
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail import Context, NotFound, ProtocolError, Server, ToolError
from dovetail.transports.http import HttpApp
from dovetail.transports.options import HttpOptions
from dovetail.transports.serve import serving as listening
from http_serving import serving, settle
from http_stage import HANDSHAKE, MODERN, REVISIONS, Stage, open_wire
from http_wire import META, Exchange, HttpWire

LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
ALL_KINDS = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}
quiet_logging = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")


def busy_server(**options: Any) -> Server:
    """Something of everything, and ways to fail."""
    server = Server("busy", version="1.0.0", **options)

    @server.tool(tags={"loud"})
    async def chat(ctx: Context) -> str:
        for level in LEVELS:
            await ctx.log(level, "x")
        await ctx.report_progress(1, 2)
        return "chatted"

    @server.tool
    async def count() -> int:
        return 1

    @server.tool
    async def fail(how: str) -> str:
        raise {"tool": ToolError("no"), "found": NotFound("no"), "value": ValueError("no")}[how]

    @server.tool
    async def own_code() -> str:
        raise ProtocolError("mine", code=1234)

    @server.prompt
    async def greet(name: str) -> str:
        return f"Hello {name}"

    @server.prompt
    async def part() -> str:
        return "Goodbye"

    @server.resource("note://{id}", tags={"notes"})
    async def note(id: str) -> str:
        if id == "gone":
            raise NotFound
        return id

    @server.resource("other://{id}")
    async def other(id: str) -> str:
        return id

    for name in ("one", "two", "three"):
        server.add_resource(f"test://{name}", lambda: "1", name=name)
    return server


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    *((method, {}) for method in LISTS),
    ("tools/call", {"name": "chat"}),
    ("tools/call", {"name": "count", "arguments": {}}),
    *(("tools/call", {"name": "fail", "arguments": {"how": how}}) for how in ("tool", "found", "value")),
    ("tools/call", {"name": "own_code"}),
    ("tools/call", {"name": "count", "arguments": {"surplus": 1}}),
    ("tools/call", {"name": "nowhere"}),
    ("prompts/get", {"name": "greet", "arguments": {"name": "you"}}),
    ("prompts/get", {"name": "greet"}),
    ("prompts/get", {"name": "nowhere"}),
    *(("resources/read", {"uri": uri}) for uri in ("test://one", "note://7", "note://gone", "nowhere://")),
    ("tools/list", {"cursor": "wrong"}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "name", "value": ""}},
    ),
    ("logging/setLevel", {"level": "loud"}),
    ("resources/subscribe", {"uri": "nowhere://"}),
    ("server/discover", {}),
    ("ping", {}),
    ("nothing/such", {}),
]


async def conversation(server: Server, app: Any, version: str) -> list[dict[str, Any]]:
    """All that is said in answer to every request above, and on a stream beside them."""
    wire = await open_wire(app, version)
    wants = {"notifications": {**ALL_KINDS, "resourceSubscriptions": ["test://one"]}}
    beside = HttpWire(app).start("subscriptions/listen", wants) if version == MODERN else wire.get()
    await beside.started()
    said: list[dict[str, Any]] = [{"result": wire.welcome}] if wire.welcome else []
    for method, params in REQUESTS:
        meta = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"}
        said += (await wire.start(method, {**params, "_meta": meta}).done()).messages
    server.add_tool(lambda: "", name="late")
    await beside.message()
    await settle()
    said += beside.messages
    await leave(beside)
    server.remove_tool("late")
    return said


async def leave(*streams: Exchange) -> None:
    for stream in streams:
        stream.leave()
        await stream.done()


# ── all that is said ──


@quiet_logging
@pytest.mark.rule("MH-9")
async def test_nothing_is_asked_of_the_client_in_2026_07_28() -> None:
    server = busy_server()
    async with serving(server) as app:
        said = await conversation(server, app, MODERN)
    unasked = [message for message in said if "method" in message]
    assert {message["method"] for message in unasked} == {
        "notifications/message",
        "notifications/progress",
        "notifications/subscriptions/acknowledged",
        "notifications/tools/list_changed",
    }
    assert not [message for message in unasked if "id" in message]


@quiet_logging
@pytest.mark.rule("BASE-15", "BASE-16", "BASE-17")
async def test_errors_have_the_codes_of_2026_07_28() -> None:
    server = busy_server()
    async with serving(server) as app:
        said = await conversation(server, app, MODERN)
        said.append((await HttpWire(app).post("tools/list", headers={"mcp-method": "tools/call"})).answer)
        other = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2099-01-01"}}
        said.append(
            (await HttpWire(app).post("tools/list", other, headers={"mcp-protocol-version": "2099-01-01"})).answer
        )
        for body in (b"{", b"[]", b'{"jsonrpc":"1.0"}'):
            said.append((await HttpWire(app).raw("POST", body).done()).answer)
    codes = {message["error"]["code"] for message in said if "error" in message}
    assert codes == {-32700, -32600, -32601, -32602, -32020, -32022, 1234}


LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
META_KEY = re.compile(rf"(?:(?P<prefix>{LABEL}(?:\.{LABEL})*)/)?(?:[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)?", re.ASCII)
TAGS, WRAPPED = "dovetail/tags", "dovetail/wrapped"
DEFINED = {"io.modelcontextprotocol/serverInfo", "io.modelcontextprotocol/subscriptionId"}


def meta_keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value.get("_meta", {})
        for member in value.values():
            yield from meta_keys(member)
    elif isinstance(value, list):
        for item in value:
            yield from meta_keys(item)


@quiet_logging
@pytest.mark.parametrize("version", REVISIONS)
@pytest.mark.rule("META-1", "META-2")
async def test_the_keys_of_meta_are_well_formed_and_reserved_ones_are_defined(version: str) -> None:
    server = busy_server()
    async with serving(server) as app:
        keys = set(meta_keys(await conversation(server, app, version)))
    if version < "2025-06-18":
        assert not keys  # objects have no `_meta` yet
        return
    assert keys == {TAGS, *(DEFINED if version == MODERN else {WRAPPED})}
    for key in keys:
        found = META_KEY.fullmatch(key)
        assert found, key
        labels = (found["prefix"] or "").split(".")
        assert key in DEFINED or not {"modelcontextprotocol", "mcp"} & set(labels)


# ── lists ──


def from_elsewhere(wire: HttpWire, method: str) -> Exchange:
    """The same request by another program, at another address, that can do more."""
    mine = {**META, "io.modelcontextprotocol/clientInfo": {"name": "another", "version": "9"}}
    mine["io.modelcontextprotocol/clientCapabilities"] = {"elicitation": {}, "sampling": {}, "roots": {}}
    exchange = wire.start(method, {"_meta": mine} if wire.version == MODERN else {})
    exchange.scope["client"] = ("127.0.0.2", 40000)
    return exchange


@quiet_logging
@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize("version", REVISIONS)
@pytest.mark.rule("TOOL-3", "PR-2")
async def test_a_list_is_the_same_on_every_connection_and_whatever_came_before(version: str, method: str) -> None:
    async with serving(busy_server()) as app:
        wire = await open_wire(app, version)
        first = await wire.ask(method)
        for earlier, params in REQUESTS:
            await wire.post(earlier, params)
        capable = {"capabilities": {"sampling": {}, "roots": {"listChanged": True}}} if version != MODERN else {}
        others = [wire, await open_wire(app, version), await open_wire(app, version, **capable)]
        assert len(first[LISTS[method]]) > 1
        for other in others:
            assert await other.ask(method) == first
            assert (await from_elsewhere(other, method).done()).answer["result"] == first


@pytest.mark.parametrize("scope", ["public", "private"])
@pytest.mark.parametrize("method", LISTS)
@pytest.mark.rule("PAGE-6", "CACHE-4")
async def test_all_pages_of_a_list_have_one_scope(method: str, scope: str) -> None:
    async with serving(busy_server(page_size=1, cache_scope=scope)) as app:
        wire = HttpWire(app)
        page = await wire.ask(method)
        pages = [page]
        while "nextCursor" in page:
            page = await wire.ask(method, {"cursor": page["nextCursor"]})
            pages.append(page)
        assert len(pages) > 1
        assert {page["cacheScope"] for page in pages} == {scope}


# ── what a client has asked to hear ──


@pytest.mark.rule("SH-10", "SH-19")
async def test_a_stream_that_was_fetched_is_let_go_as_well_and_says_when_to_come_back() -> None:
    server, go_on = Server("polled", version="1.0.0"), asyncio.Event()

    @server.tool
    async def poll(ctx: Context) -> str:
        for seconds in (1, 2):
            await ctx.error(f"before {seconds}")
            await go_on.wait()
            go_on.clear()
            await ctx.close_stream(seconds)
        await go_on.wait()
        return "polled"

    async with serving(server) as app:
        wire = await HttpWire.session(app, "2025-11-25")
        stream = call = wire.start_call("poll")
        for seconds in (1, 2):
            assert (await stream.message())["params"]["data"] == f"before {seconds}"
            go_on.set()
            await stream.until(lambda stream=stream: not stream.sent[-1].get("more_body", True))
            assert stream.raw.endswith(b"retry: %d000\n\n" % seconds)
            stream = wire.get(stream.events[-1].id)
        go_on.set()
        assert [each["result"]["content"][0]["text"] for each in (await stream.done()).messages] == ["polled"]
        await call.done()


OFFERS = {
    "nothing": (lambda: Server("bare", version="1.0.0"), set()),
    "everything": (busy_server, {"toolsListChanged", "promptsListChanged", "resourcesListChanged"}),
    "no changes of lists": (lambda: busy_server(list_changed=False), set()),
    "tools and resources": (lambda: Stage().server, {"toolsListChanged", "resourcesListChanged"}),
}
ADVERTISED = {
    "toolsListChanged": ("tools", "listChanged"),
    "promptsListChanged": ("prompts", "listChanged"),
    "resourcesListChanged": ("resources", "listChanged"),
    "resourceSubscriptions": ("resources", "subscribe"),
}


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.rule("SUB-12")
async def test_a_listen_is_honoured_as_far_as_the_capabilities_go(offer: str) -> None:
    make, lists = OFFERS[offer]
    async with serving(make()) as app:
        capabilities = (await HttpWire(app).ask("server/discover"))["capabilities"]
        wants = {"notifications": {**ALL_KINDS, "resourceSubscriptions": ["test://one"]}}
        stream = HttpWire(app).start("subscriptions/listen", wants)
        honoured = (await stream.message())["params"]["notifications"]
        await leave(stream)
    assert honoured.keys() - {"resourceSubscriptions"} == lists
    assert honoured.keys() == {
        kind for kind, (feature, switch) in ADVERTISED.items() if capabilities.get(feature, {}).get(switch)
    }


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("LOG-1", "LOG-2")
async def test_each_session_hears_its_own_level_and_above(version: str) -> None:
    async with serving(busy_server()) as app:
        one, two = await HttpWire.session(app, version), await HttpWire.session(app, version)
        before = await levels(one)
        for place, level in enumerate(LEVELS):
            assert await one.ask("logging/setLevel", {"level": level}) == {}
            assert await levels(one) == LEVELS[place:]
            assert await levels(two) == before
        assert (await one.post("logging/setLevel", {"level": "loud"})).answer["error"]["code"] == -32602
        assert await levels(one) == LEVELS[-1:]


async def levels(wire: HttpWire) -> list[str]:
    said = (await wire.call("chat")).messages
    return [each["params"]["level"] for each in said if each.get("method") == "notifications/message"]


# ── where it listens ──


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
@pytest.mark.rule("SH-4", "MH-3", "SSE-2")
async def test_it_listens_on_localhost_alone_unless_told_otherwise() -> None:
    app = HttpApp(busy_server().engine, HttpOptions())
    async with listening(app, HttpOptions(port=0)) as root:
        host, _, port = root.removeprefix("http://").partition(":")
        assert host == "127.0.0.1"
        for path in ("/mcp", "/sse"):
            assert await status(host, int(port), path) in (200, 400, 405)
        with pytest.raises(ConnectionRefusedError):  # an address of this machine, like those that others can reach
            socket.create_connection(("127.0.0.2", int(port)), 1)


async def status(host: str, port: int, path: str) -> int:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n\r\n".encode())
    line = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    await writer.wait_closed()
    return int(line.split()[1])
