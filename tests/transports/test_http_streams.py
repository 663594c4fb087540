"""One POST, one response: JSON, or an event stream if the server sends other messages before."""

import re
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from http_clients import ACKNOWLEDGED, LISTEN, LOGS, TOOLS, leave, methods, new_server

from dovetail import Context, ProtocolError, Server
from dovetail.transports.http.app import HttpApp
from dovetail.transports.http.options import HttpOptions
from http_serving import Serve, Stage, listening, settle, until
from http_wire import CAPABILITIES_KEY, CLIENT_KEY, MODERN, HttpWire, open_wire, text_of

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")
ERAS = ["2025-11-25", MODERN]
JSON_ONLY = ["application/json", "application/*", "text/event-stream;q=0, application/json", "text/html"]
SSE_ONLY = ["text/event-stream", "text/*", "TEXT/EVENT-STREAM", "application/json;q=0.0, text/event-stream"]
BOTH = [None, "", "*/*", "application/json, text/event-stream", "text/event-stream,application/json;charset=utf-8"]


@pytest.mark.seed("S1-08", "S1-16")
@pytest.mark.parametrize(("version", "primed"), [("2025-03-26", 0), ("2025-06-18", 0), ("2025-11-25", 1), (MODERN, 0)])
@pytest.mark.rule("SH-9", "SH-11", "SH-12", "SH-14", "SH-22", "MH-8", "MH-10", "MH-11", "MH-30", "PROG-10")
async def test_a_call_that_notifies_is_answered_with_a_stream_which_only_2025_11_25_primes(
    stage: Stage, app: Any, version: str, primed: int
) -> None:
    stage.go.set()
    answer = await (await open_wire(app, version)).start_call("warn", meta=LOGS).done()
    assert answer.status == 200
    assert answer.headers == {
        "content-type": "text/event-stream",
        "cache-control": "no-cache, no-transform",
        "x-accel-buffering": "no",
    }
    assert methods(answer) == ["notifications/message", "notifications/message", "answer"]
    assert answer.sent[-1]["more_body"] is False
    assert len(answer.events) == 3 + primed
    if primed:
        assert answer.events[0].data == b""
        assert answer.events[0].id
        assert b"retry: 1000\n" in answer.raw.split(b"\n\n")[0]
    else:
        assert b"retry" not in answer.raw
    if version == MODERN:
        assert b"id:" not in answer.raw.replace(b'"id":', b"")
    else:
        ids = [event.id for event in answer.events]
        assert len(set(ids)) == len(ids)
        assert len({id.split(".")[0] for id in ids if id}) == 1  # they say which stream they belong to


@pytest.mark.parametrize("version", ERAS)
async def test_a_request_that_fails_after_it_has_notified_fails_in_the_stream(
    stage: Stage, serve: Serve, version: str
) -> None:
    @stage.server.middleware
    async def fail(request: Any, call_next: Any) -> Any:
        result = await call_next(request)
        if request.method == "tools/call":
            raise ValueError("secret")
        return result

    stage.go.set()
    wire = await open_wire(await serve(), version)
    call = await wire.start_call("warn", meta=LOGS).done()
    assert call.status == 200
    assert call.answer["error"]["message"] == "Internal error"
    assert b"secret" not in call.raw


@pytest.mark.parametrize("accept", JSON_ONLY)
@pytest.mark.parametrize("version", ERAS)
async def test_a_client_that_accepts_json_only_receives_nothing_before_the_response(
    stage: Stage, app: Any, pass_time: Callable[[float], None], version: str, accept: str
) -> None:
    wire = await open_wire(app, version, accept=accept)
    calls = [wire.start_call(name, meta=LOGS) for name in ("warn", "work")]
    for call in calls:
        await call.watched.wait()
    for _ in range(3):  # it is kept alive a few times
        pass_time(15)
        await settle()
    assert [call.sent for call in calls] == [[], []]
    stage.go.set()
    assert [text_of((await call.done()).json) for call in calls] == ["warned", "done"]


@pytest.mark.seed("S1-08")
@pytest.mark.parametrize(
    ("accept", "stream"), [*dict.fromkeys(SSE_ONLY, True).items(), *dict.fromkeys(BOTH, False).items()]
)
@pytest.mark.parametrize("version", ERAS)
@pytest.mark.rule("SH-8", "MH-7")
async def test_who_reads_anything_gets_json_if_that_is_all_and_who_reads_streams_only_gets_one(
    stage: Stage, app: Any, version: str, accept: str | None, stream: bool
) -> None:
    stage.go.set()
    wire = await open_wire(app, version)
    answer = await wire.call("add", {"a": 1, "b": 2}, headers={"accept": accept})
    assert (answer.status, answer.is_stream, text_of(answer.answer)) == (200, stream, "3")
    assert stream or int(answer.headers["content-length"]) == len(answer.raw)
    assert (await wire.start_call("warn", meta=LOGS, headers={"accept": accept}).done()).is_stream


@pytest.mark.parametrize(("version", "stream"), [("2025-03-26", False), ("2025-11-25", True), (MODERN, False)])
@pytest.mark.rule("SH-9", "MH-12")
async def test_a_long_call_becomes_a_stream_at_once_where_it_can_be_resumed_and_else_to_be_kept_alive(
    stage: Stage, app: Any, pass_time: Callable[[float], None], version: str, stream: bool
) -> None:
    wire = await open_wire(app, version)
    call = wire.start_call("work")
    await call.watched.wait()  # it has taken its time
    assert bool(call.sent) is stream
    for beats in (1, 2):
        pass_time(16)
        await until(lambda beats=beats: call.raw.count(b": keep-alive\n\n") == beats)
    stage.go.set()
    assert methods(await call.done()) == ["answer"]
    assert call.headers["x-accel-buffering"] == "no"


async def test_a_large_answer_goes_out_in_pieces(stage: Stage, serve: Serve) -> None:
    @stage.server.tool
    async def much(megabytes: int, ctx: Context) -> str:
        if megabytes > 1:
            await ctx.error("much")
        return "x" * (megabytes << 20)

    wire = HttpWire(await serve())
    for megabytes in (1, 2):
        answer = await wire.start_call("much", {"megabytes": megabytes}, meta=LOGS).done()
        assert answer.is_stream is (megabytes == 2)
        assert len(text_of(answer.answer)) == megabytes << 20
        assert max(len(message.get("body", b"")) for message in answer.sent) <= 256 * 1024


LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    *((method, {}) for method in [*LISTS, "server/discover", "ping", "nothing/such"]),
    *(("tools/call", {"name": name}) for name in ("chatty", "talk", "count", "own_code", "nowhere", "add")),
    *(("prompts/get", {"name": name}) for name in ("review", "nowhere")),
    *(("resources/read", {"uri": uri}) for uri in ("notes://all", "notes://7", "nowhere://")),
    ("tools/list", {"cursor": "wrong"}),
    ("resources/subscribe", {"uri": "nowhere://"}),
]


def busy_server(**options: Any) -> Server:
    """Two of everything at least, and ways to fail."""
    server = new_server(**options)

    @server.tool(tags={"loud"})
    async def count() -> int:
        return 1

    @server.tool
    async def own_code() -> str:
        raise ProtocolError("mine", code=1234)

    server.add_prompt(lambda: "Goodbye", name="part")
    server.add_resource("other://{id}", lambda id: str(id), name="other")
    server.add_resource("test://one", lambda: "1", name="one")
    return server


async def conversation(server: Server, app: Any, version: str) -> list[dict[str, Any]]:
    """All that is said in answer to every request above, and on a stream beside them."""
    wire = await open_wire(app, version)
    beside = HttpWire(app).start("subscriptions/listen", LISTEN) if version == MODERN else wire.get()
    await beside.started()
    said: list[dict[str, Any]] = [{"result": wire.welcome}] if wire.welcome else []
    for method, params in REQUESTS:
        said += (await wire.start(method, {**params, "_meta": LOGS}).done()).messages
    server.add_tool(lambda: "", name="late")
    await beside.until(lambda: TOOLS in methods(beside))
    said += beside.messages
    await leave(beside)
    return said


META_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*(\.[A-Za-z][A-Za-z0-9-]*)*/)?[A-Za-z0-9][A-Za-z0-9_.-]*")
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


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18", MODERN])
@pytest.mark.rule("META-1", "META-2", "MH-9", "BASE-15", "BASE-16", "BASE-17")
async def test_keys_of_meta_are_well_formed_and_defined_and_2026_07_28_asks_nothing_and_has_its_codes(
    serve: Serve, version: str
) -> None:
    server = busy_server()
    said = await conversation(server, await serve(server), version)
    keys = set(meta_keys(said))
    if version < "2025-06-18":
        assert not keys  # objects have no `_meta` yet
        return
    assert keys == {TAGS, *(DEFINED if version == MODERN else {WRAPPED})}
    assert all(META_KEY.fullmatch(key) for key in keys)
    assert not [key for key in keys - DEFINED if "mcp" in key or "modelcontextprotocol" in key]
    if version == MODERN:
        unasked = [message for message in said if "method" in message]
        assert not [message for message in unasked if "id" in message]
        methods = {"notifications/message", "notifications/progress", ACKNOWLEDGED, TOOLS}
        assert {message["method"] for message in unasked} == methods
        assert {message["error"]["code"] for message in said if "error" in message} == {-32601, -32602, 1234}


@pytest.mark.parametrize(("version", "scope"), [("2025-11-25", "public"), (MODERN, "public"), (MODERN, "private")])
@pytest.mark.rule("TOOL-3", "PR-2", "PAGE-6", "CACHE-4")
async def test_lists_are_the_same_on_every_connection_and_all_pages_of_one_have_one_scope(
    serve: Serve, version: str, scope: str
) -> None:
    app = await serve(busy_server(page_size=1, cache_scope=scope))
    capable = {"sampling": {}, "roots": {"listChanged": True}}
    another = {"_meta": {CLIENT_KEY: {"name": "another", "version": "9"}, CAPABILITIES_KEY: capable}}

    async def pages(wire: HttpWire, method: str, more: dict[str, Any]) -> list[Any]:
        found = [await wire.ask(method, more)]
        while "nextCursor" in found[-1]:
            found.append(await wire.ask(method, {**more, "cursor": found[-1]["nextCursor"]}))
        assert len(found) > 1
        assert {page.get("cacheScope") for page in found} == {scope if version == MODERN else None}
        return [item for page in found for item in page[LISTS[method]]]

    wire = await open_wire(app, version)
    first = {method: await pages(wire, method, {}) for method in LISTS}
    for earlier, params in REQUESTS:
        await wire.post(earlier, params)
    other = await open_wire(app, version, **({} if version == MODERN else {"capabilities": capable}))
    for method, items in first.items():
        assert await pages(wire, method, {}) == items
        assert await pages(other, method, another if version == MODERN else {}) == items


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
@pytest.mark.rule("SH-4", "MH-3", "SSE-2")
async def test_it_listens_on_localhost_alone_by_default() -> None:
    app = HttpApp(busy_server().engine, HttpOptions())
    async with listening(app, HttpOptions(port=0)) as root:
        host, _, port = root.removeprefix("http://").partition(":")
        assert host == "127.0.0.1"
        socket.create_connection((host, int(port)), 1).close()
        with pytest.raises(ConnectionRefusedError):  # an address of this machine, like those that others can reach
            socket.create_connection(("127.0.0.2", int(port)), 1)
