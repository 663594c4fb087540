"""Spans of requests, questions and client calls, as the SDK of OpenTelemetry records them in this process."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.semconv._incubating.attributes import (
    gen_ai_attributes,
    jsonrpc_attributes,
    mcp_attributes,
    rpc_attributes,
)
from opentelemetry.semconv.attributes import error_attributes, network_attributes

import costs
from dovetail import Client, Context, Depends, ProtocolError, Proxy, Server, ToolError
from http_serving import serving, settle
from http_wire import HttpWire
from secret_examples import ALL_SECRETS, KEYED, TEXTS
from server_requests import accept
from task_stage import DECLARED, TaskClient, TaskStage
from tracing import CLIENT, Recorded, Spans, recording
from wire import MODERN, Wire

HANDSHAKE = "2025-11-25"
SECRET = "hunter2"
TRACE, PARENT = CLIENT.split("-")[1:3]
CONVENTIONS = {
    value
    for module in (
        mcp_attributes, gen_ai_attributes, jsonrpc_attributes, rpc_attributes, error_attributes, network_attributes
    )
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str)
}  # fmt: skip
tracer = trace.get_tracer("author")


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recording() as spans:
        yield spans


async def mine(name: str) -> str:
    with tracer.start_as_current_span(name):
        return name


def mine_too() -> str:
    with tracer.start_as_current_span("dependency"):
        return "dependency"


def make_server(**options: Any) -> Server:
    server = Server("stage", version="1.0.0", telemetry=True, **options)

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def spans() -> str:
        return await mine("async")

    @server.tool
    def threaded(found: Annotated[str, Depends(mine_too)]) -> str:
        with tracer.start_as_current_span("thread"):
            return f"{found} {baggage.get_baggage('user')}"

    @server.tool
    async def fail(how: str, password: str = "") -> str:
        if how == "tool":
            raise ToolError(f"password={password}")
        if how == "protocol":
            raise ProtocolError(f"password={password}", code=-32603)
        if how == "wait":
            await asyncio.sleep(60)
        raise ValueError(f"password={password}")

    @server.tool
    async def ask(ctx: Context) -> str:
        return str((await ctx.elicit("How many?", int)).data)

    @server.prompt
    def greet(name: str) -> str:
        return f"Hello {name}"

    @server.resource("notes://{+id}")
    def note(id: str) -> str:
        return id

    return server


async def call(wire: Wire, name: str, _meta: Any = None, /, **arguments: Any) -> Any:
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    request = wire.request("tools/call", params if _meta is None else {**params, "_meta": _meta})
    return await wire.exchange(request)


# ── names ──


async def test_names_and_attributes_are_those_of_the_conventions(spans: Spans) -> None:
    server = make_server(telemetry_content=True)
    for revision in (HANDSHAKE, MODERN):
        async with Wire(server, revision) as wire:
            await call(wire, "add", a=1, b=2)
            await call(wire, "fail", how="protocol")
            await wire.ask("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}})
            await wire.ask("resources/read", {"uri": "notes://1"})
            await wire.ask("tools/list")
    async with Client(server, telemetry=True) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
    found = spans.all()
    assert {key for each in found for key in each.attributes} <= CONVENTIONS
    methods = {each.value for each in mcp_attributes.McpMethodNameValues}
    assert {each.name.split(" ")[0] for each in found} <= methods | {"server/discover"}
    operations = {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    transports = {each.value for each in network_attributes.NetworkTransportValues}
    assert {each.attributes.get("gen_ai.operation.name") for each in found} <= operations | {None}
    assert {each.attributes.get("network.transport") for each in found} <= transports | {None}
    first = spans.named("tools/call add")[0]
    session = first.attributes.pop("mcp.session.id")
    assert len(session) == 16
    assert first.attributes == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": HANDSHAKE,
        "jsonrpc.request.id": "1001",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "network.transport": "pipe",
        "gen_ai.tool.call.arguments": '{"a":1,"b":2}',
        "gen_ai.tool.call.result": '{"content":[{"type":"text","text":"3"}],"structuredContent":{"result":3},'
        '"isError":false}',
    }
    assert spans.named("prompts/get greet")[0].attributes["gen_ai.prompt.name"] == "greet"
    assert spans.named("resources/read")[0].attributes["mcp.resource.uri"] == "notes://1"


async def test_failures_have_a_type_and_no_text(spans: Spans) -> None:
    async with Wire(make_server(), MODERN) as wire:
        for how in ("tool", "protocol", "unexpected"):
            await call(wire, "fail", how=how, password=SECRET)
        await call(wire, SECRET)
        wire.send(wire.request("tools/call", {"name": "fail", "arguments": {"how": "wait"}}, id="long"))
        await settle()
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "long"}})
        async with asyncio.timeout(5):
            while len(spans.all()) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0)
    found = [
        (each.attributes.get("error.type"), each.attributes.get("rpc.response.status_code")) for each in spans.all()
    ]
    assert found == [
        ("tool_error", None), ("-32603", "-32603"), ("tool_error", None), ("-32602", "-32602"), ("cancelled", None)
    ]  # fmt: skip
    assert [each.status for each in spans.all()] == ["ERROR"] * 4 + ["UNSET"]
    assert [each.name for each in spans.all()][3] == "tools/call"
    assert not any(SECRET in each.whole or "Traceback" in each.whole for each in spans.all())


SECRETS = {
    **dict.fromkeys(("password", "Authorization", "set_cookie", "clientSecret", "api_key", "refresh_token"), SECRET),
    "note": f"Bearer {SECRET * 4}",
    "url": f"https://me:{SECRET}@example.com",
    "jwt is": f"eyJhbGciOiJIUzI1NiJ9.{SECRET}.{SECRET}",
    "key": f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
    "line": f"Cookie: a={SECRET}; c=d",
    "pushed": f"with ghp_abcdefghijklmnop{SECRET}",
    "nested": [{"deep": {"passwords": [SECRET]}}, f"curl --db-password={SECRET}", f'{{"secret": "{SECRET}"}}'],
}


@pytest.mark.parametrize("shown", [False, True])
async def test_no_secret_is_in_a_span(spans: Spans, shown: bool) -> None:
    server = make_server(telemetry_content=shown)

    @server.tool
    async def echo(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "text": json.dumps(data)}

    async with Wire(server, MODERN) as wire, Client(server, telemetry=True) as client:
        await call(wire, "echo", data={"plain": "visible", **SECRETS})
        await call(wire, "echo", data={"plain": "visible", "many": ["x" * 100] * 10_000, **SECRETS})
        await wire.exchange(wire.request("tools/list", {}, id=f"token={SECRET}"))
        await client.read_resource(f"notes://me:{SECRET}@host/?token={SECRET}{'x' * 5000}")
        await client.call_tool("echo", {"data": SECRETS})
        await client.call_tool("echo", {"data": KEYED})
        for text, _ in TEXTS:
            await client.call_tool("echo", {"data": {"words": [text]}})
            await wire.exchange(wire.request("tools/call", {"name": text}, id=text))
    assert not [each for each in (SECRET, *ALL_SECRETS) if any(each in span.whole for span in spans.all())]
    first, long = spans.named("tools/call echo")[:2]
    assert ("visible" in first.attributes.get("gen_ai.tool.call.arguments", "")) == shown
    assert ("visible" in first.attributes.get("gen_ai.tool.call.result", "")) == shown
    assert all(len(each.whole) < 40_000 for each in (first, long))


# ── contexts ──


async def test_the_authors_spans_are_children(spans: Spans) -> None:
    async with Wire(make_server(), MODERN) as wire:
        await call(wire, "spans")
        await call(wire, "threaded", {"traceparent": CLIENT, "baggage": "user=ada"})
        assert wire.seen[-1]["result"]["content"][0]["text"] == "dependency ada"
    assert spans.one("async", "INTERNAL").parent == spans.one("tools/call spans").id
    outer = spans.one("tools/call threaded")
    assert (outer.trace, outer.parent) == (TRACE, PARENT)
    assert spans.one("dependency", "INTERNAL").parent == outer.id == spans.one("thread", "INTERNAL").parent


async def test_a_task_goes_on_in_the_context_of_its_request(spans: Spans) -> None:
    stage = TaskStage(telemetry=True)

    @stage.server.tool(task=True)
    async def later() -> str:
        await stage.go.wait()
        return await mine("task")

    async with Wire(stage.server, MODERN, capabilities=DECLARED) as wire:
        client = TaskClient(wire, MODERN)
        id = await client.begin("later")
        request = spans.one("tools/call later")
        stage.go.set()
        assert await client.text(id) == "task"
        id = await client.begin("greet_both")
        await client.answer(id, One="x", Two="y")
        assert await client.text(id) == "x and y"
    assert spans.one("task", "INTERNAL").parent == request.id
    asking = spans.one("tools/call greet_both")
    assert [each.parent for each in spans.named("elicitation/create", "CLIENT")] == [asking.id] * 2


async def test_where_the_parent_is_found(spans: Spans) -> None:
    """In `_meta`, else in the host's own span, else in the headers."""
    host = ""

    async def instrumented(scope: Any, receive: Any, send: Any) -> None:
        with tracer.start_as_current_span("host") if host else trace.use_span(trace.INVALID_SPAN):
            await app(scope, receive, send)

    async with serving(make_server()) as app:
        wire = HttpWire(instrumented, headers={"traceparent": CLIENT.replace("2222", "3333")})
        for given in ("", "host"):
            host = given
            for meta in ({}, {"traceparent": CLIENT}):
                await wire.post("tools/call", {"name": "add", "_meta": meta})
    by_header, by_meta, in_host, by_meta_too = spans.named("tools/call add")
    hosts = spans.named("host", "INTERNAL")
    assert by_header.parent == "3333333333333333"
    assert by_meta.parent == by_meta_too.parent == PARENT
    assert in_host.parent == hosts[-2].id
    assert by_meta.attributes["network.transport"] == "tcp"


@pytest.mark.parametrize(
    "meta",
    [
        {"traceparent": ""},
        {"traceparent": 7},
        {"traceparent": {"a": [CLIENT]}},
        {"traceparent": CLIENT.upper() + "Z"},
        {"traceparent": CLIENT + "-" + "0" * 100_000},
        {"traceparent": "00-" + "0" * 32 + "-2222222222222222-01"},
        {"traceparent": CLIENT.replace("1111", "é111")},
        {"tracestate": "a=b", "baggage": "a=b"},
        {"tracestate": "traceparent"},
    ],
    ids=lambda meta: str(meta)[:50],
)
async def test_a_malformed_context_is_ignored(spans: Spans, meta: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with Wire(make_server(), MODERN) as wire:
        assert (await call(wire, "add", meta, a=1, b=2))["result"]["structuredContent"] == 3
    assert spans.one("tools/call add").parent is None
    assert not caplog.records


@pytest.mark.parametrize(
    "more",
    [
        {"tracestate": "é=1"},
        {"tracestate": "x" * 600},
        {"baggage": "user=b;;=,\n"},
        {"baggage": "user=" + "b" * 9000},
        {"baggage": "user=\N{SNOWMAN}"},
        {"baggage": "user=b;;=,no member," + "x,!=1," * 60},
        {"baggage": 1},
        {"tracestate": []},
    ],
    ids=lambda more: str(more)[:30],
)
async def test_what_is_malformed_beside_a_traceparent_is_left_out(
    spans: Spans, more: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with Wire(make_server(), MODERN) as wire:
        await call(wire, "threaded", {"traceparent": CLIENT, **more})
        assert wire.seen[-1]["result"]["content"][0]["text"] == "dependency None"
    assert spans.one("tools/call threaded").parent == PARENT
    assert not caplog.records


# ── questions ──


async def test_a_question_that_waits_is_a_span(spans: Spans) -> None:
    async with Wire(make_server(), HANDSHAKE, capabilities={"elicitation": {}}) as wire:
        for answer in ({"result": accept(3)}, {"error": {"code": -32050, "message": SECRET}}):
            wire.send(wire.request("tools/call", {"name": "ask"}))
            question = await wire.receive()
            wire.send({"jsonrpc": "2.0", "id": question["id"], **answer})
            await wire.receive()
    good, bad = spans.named("elicitation/create", "CLIENT")
    assert [good.parent, bad.parent] == [each.id for each in spans.named("tools/call ask")]
    assert (good.status, bad.status, bad.attributes["error.type"]) == ("UNSET", "ERROR", "-32050")


async def ask_in_rounds(one: Server, other: Server, *contexts: dict[str, str]) -> str:
    """Two requests, each at its server; the first one's request state."""
    capabilities = {"elicitation": {}}
    async with Wire(one, MODERN, capabilities=capabilities) as wire:
        asked = (await call(wire, "ask", contexts[0]))["result"]
    async with Wire(other, MODERN, capabilities=capabilities) as wire:
        (key,) = asked["inputRequests"]
        more = {"inputResponses": {key: accept(3)}, "requestState": asked["requestState"]}
        params = {"name": "ask", "arguments": {}, "_meta": contexts[1], **more}
        assert (await wire.ask("tools/call", params))["content"][0]["text"] == "3"
    return str(asked["requestState"])


async def test_a_question_over_rounds_links_its_traces(spans: Spans) -> None:
    one, other = (make_server(secret="0123456789abcdef") for _ in range(2))
    await ask_in_rounds(one, other, {}, {})
    first, second = spans.named("tools/call ask")
    question = spans.one("elicitation/create", "CLIENT")
    assert (question.parent, second.parent, second.links) == (first.id, None, (first.id,))
    assert first.start <= question.start <= first.end
    with recording() as spans:
        await ask_in_rounds(one, other, *[{"traceparent": CLIENT}] * 2)
    first, second = spans.named("tools/call ask")
    assert (first.parent, second.parent, second.links) == (PARENT, PARENT, (first.id,))
    assert {each.trace for each in spans.all()} == {TRACE}


async def test_the_request_state_is_not_larger_without_traces(spans: Spans) -> None:
    keys = []
    for options in ({"telemetry": False}, {}, {"telemetry": True}):
        server = Server("stage", version="1.0.0", **options)

        @server.tool
        async def ask(ctx: Context) -> str:
            return str((await ctx.elicit("How many?", int)).data)

        state = server.engine.sealer.open(await ask_in_rounds(server, server, {"baggage": "a=b"}, {}))
        keys.append(set(json.loads(state)))
    assert keys[0] == keys[1] == keys[2] - {"asked"}
    assert json.loads(state)["asked"]["context"].keys() == {"traceparent"}


# ── clients, mounts ──


async def test_a_call_of_a_client_is_one_span_with_all_its_rounds(spans: Spans) -> None:
    async def handler(*_: Any) -> dict[str, Any]:
        await mine("handler")
        return {"value": 3}

    server = make_server()
    async with Client(server, telemetry=True, elicitation_handler=handler) as client:
        assert (await client.call_tool("ask")).data == "3"
        with pytest.raises(ToolError):
            await client.call_tool("fail", {"how": "tool"})
    outer = spans.one("tools/call ask", "CLIENT")
    assert [each.parent for each in spans.named("tools/call ask")] == [outer.id] * 2
    assert spans.one("handler", "INTERNAL").parent == outer.id
    assert spans.one("tools/call fail", "CLIENT").attributes["error.type"] == "tool_error"


async def test_a_cached_resource_is_found_again(spans: Spans) -> None:
    server = Server("stage", version="1.0.0", telemetry=True)
    read = []

    @server.resource("note://one", ttl_ms=60_000)
    def note() -> str:
        read.append(1)
        return "one"

    async with Client(server, telemetry=True) as client:
        for _ in range(2):
            await client.read_resource("note://one")
    assert len(read) == len(spans.named("resources/read")) == 1


def parents(spans: Spans, span: Recorded) -> list[str]:
    by_id = {each.id: each for each in spans.all()}
    names = [span.name]
    while span.parent in by_id:
        span = by_id[span.parent]
        names.append(f"{span.kind} {span.name}")
    return names


async def test_mounted_servers_and_backends_are_in_the_trace(spans: Spans) -> None:
    backend, parent, silent = (
        make_server(),
        Server("parent", telemetry=True),
        Server("silent", telemetry=False),
    )
    silent.tool(name="quiet")(mine)  # it has a span nevertheless: the parent decides
    middle = Server("middle")
    middle.mount(Proxy(backend, name="far"), "far")
    parent.mount(middle, "in")
    parent.mount(silent, "silent")
    async with Wire(parent, MODERN) as wire:
        await call(wire, "in_far_spans", {"traceparent": CLIENT})
        await call(wire, "silent_quiet", name="inside")
        await call(wire, "in_far_threaded", {"traceparent": CLIENT, "baggage": "user=ada;since=1,other=%20x"})
        assert wire.seen[-1]["result"]["content"][0]["text"].startswith("dependency ada")
    assert parents(spans, spans.one("async", "INTERNAL")) == [
        "async", "SERVER tools/call spans", "CLIENT tools/call spans", "INTERNAL mount far", "INTERNAL mount middle",
        "SERVER tools/call in_far_spans",
    ]  # fmt: skip
    assert spans.one("tools/call in_far_spans").parent == PARENT
    assert parents(spans, spans.one("inside", "INTERNAL"))[1:] == [
        "INTERNAL mount silent", "SERVER tools/call silent_quiet"
    ]  # fmt: skip


# ── on and off ──

PROGRAM = """
import asyncio, sys
sys.path[:0] = {path!r}
{before}
from dovetail import Client, Server
from dovetail.errors import SetupError
try:
    server = Server("stage"{options})
except SetupError as failure:
    sys.exit(str(failure))

@server.tool
async def frames() -> list[str]:
    return costs.own_frames(sys._getframe(1))

async def main():
    async with Client(server{options}) as client:
        return (await client.call_tool("frames")).data

import costs
print(asyncio.run(main()), "dovetail.engine.telemetry" in sys.modules, "opentelemetry" in sys.modules)
"""


def run(options: str = "", before: str = "", **variables: str) -> str:
    code = PROGRAM.format(path=sys.path, options=options and f", {options}", before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=variables)
    return done.stdout.strip() or done.stderr.strip()


def test_where_it_is_on_and_that_it_costs_no_frame_without_an_sdk() -> None:
    off = run()
    assert off.endswith("] False False")
    assert run("telemetry=True") == off.replace("] False False", "] True True")
    assert run(OTEL_SERVICE_NAME="shop").endswith("] True True")
    assert run("telemetry=True", OTEL_SDK_DISABLED="true") == off
    assert run("telemetry=False", OTEL_TRACES_EXPORTER="otlp") == off
    assert run(OTEL_TRACES_EXPORTER="none", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318") == off


def test_without_the_package_it_says_what_to_install() -> None:
    missing = "sys.modules['opentelemetry'] = None"
    assert 'pip install "dovetail-mcp[otel]"' in run("telemetry=True", before=missing)
    assert run(before=missing, OTEL_TRACES_EXPORTER="otlp").endswith(" False True")  # the None above


def test_frames_are_counted() -> None:
    assert costs.own_frames(sys._getframe()) == []
