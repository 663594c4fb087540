"""The audit: which requests are recorded, with which fields, and where the events go."""

import asyncio
import hashlib
import json
import logging
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import AuditEvent, Context, ProtocolError, Server, SetupError, ToolError
from dovetail.auth.principal import Principal
from dovetail.engine import audit
from dovetail.engine.audit import AuditTrail, redact_arguments
from dovetail.engine.connection import Connection
from dovetail.engine.dispatch import compile_chain
from dovetail.engine.redaction import RedactingFilter, Redactor
from dovetail.errors import RateLimited, Unauthorized
from http_serving import until
from server_requests import asking_client, play
from wire import MODERN, Wire

ADA = Principal(subject="ada", client="editor", issuer="https://id.example.org")


def offering(**options: Any) -> Server:
    server = Server("audited", declare=["completions"], **options)
    server.add_tool(add)
    server.add_tool(fails)
    server.add_prompt(lambda topic="": f"About {topic}", name="write")
    server.add_resource("note://{id}", lambda id: "text", name="note")
    server.add_resource("note://one", lambda: "text", name="one")
    return server


async def add(a: int, b: int, password: str = "") -> int:
    return a + b


async def fails(how: str = "") -> str:
    if how == "crash":
        raise ValueError("boom")
    raise ToolError("no")


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half past nine; every request takes 2.5 ms."""
    ticks = iter(range(1_000_000))
    fake = SimpleNamespace(time=lambda: 1785231000.25, perf_counter=lambda: next(ticks) * 0.0025, monotonic=lambda: 5.0)
    monkeypatch.setattr(audit, "time", fake)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """What the logger has got so far, as text."""
    caplog.set_level(logging.INFO, "dovetail.audit")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "dovetail.audit"]


def kept(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The events that the function did not take."""
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "dovetail.audit"]


# ── exactly ──


async def test_a_line_holds_no_control_characters_and_the_code_of_the_revision(lines: Any) -> None:
    name = "a\nb\x1b[31m\x7f\x9b1m\u202e\u2028"
    async with Wire(offering(audit=True), MODERN) as wire:
        await wire.refusal("resources/read", {"uri": name})
    (line,) = lines()
    assert line.isprintable()
    assert (json.loads(line)["name"], json.loads(line)["code"]) == (name, -32602)


async def test_the_time_is_that_of_the_arrival(lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("slow", audit=True)
    server.add_tool(lambda: monkeypatch.setattr(audit.time, "time", lambda: 0.0), name="wait")
    async with Wire(server, MODERN) as wire:
        await wire.ask("tools/call", {"name": "wait"})
    assert json.loads(lines()[0])["time"] == "2026-07-28T09:30:00.250Z"


async def test_all_that_can_be_known() -> None:
    events: list[AuditEvent] = []
    async with Wire(offering(audit=events.append), MODERN) as wire:
        wire.connection = Connection(wire.server.engine, wire, principal=ADA, locate=lambda: "192.0.2.7")
        await wire.exchange(wire.request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}}, id=1))
    who: dict[str, Any] = {"subject": "ada", "client": "editor", "issuer": "https://id.example.org"}
    assert events == [
        AuditEvent(
            time="2026-07-28T09:30:00.250Z", method="tools/call", name="add", **who, request_id=1, address="192.0.2.7",
            revision="2026-07-28", outcome="ok", duration_ms=2.5, arguments={"a": 1, "b": 1},
        )
    ]  # fmt: skip


REF = {"type": "ref/prompt", "name": "write"}
WANTED = {"toolsListChanged": True, "resourceSubscriptions": ["note://one"]}
NOTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "add", "arguments": {"a": 1, "b": 2}}),
    ("tools/call", {"name": "fails"}, {"name": "fails", "arguments": {}, "outcome": "tool_error"}),
    ("tools/call", {"name": "fails", "arguments": {"how": "crash"}},
     {"name": "fails", "arguments": {"how": "crash"}, "outcome": "tool_error"}),
    ("tools/call", {"name": "add"}, {"name": "add", "arguments": {}, "outcome": "tool_error"}),
    ("tools/call", {"name": "none"}, {"name": "none", "arguments": {}, "outcome": "error", "code": -32602}),
    ("tools/call", {"name": "add", "arguments": [1]},
     {"name": "add", "arguments": [1], "outcome": "error", "code": -32602}),
    ("prompts/get", {"name": "write", "arguments": {"topic": "x"}}, {"name": "write", "arguments": {"topic": "x"}}),
    ("resources/read", {"uri": "note://one"}, {"name": "note://one"}),
    ("resources/read", {"uri": "none://one"}, {"name": "none://one", "outcome": "error", "code": -32002}),
    ("resources/read", {"uri": "x://u:secret@h"}, {"name": "x://u:[redacted]@h", "outcome": "error", "code": -32002}),
    ("resources/subscribe", {"uri": "note://one"}, {"name": "note://one"}),
    ("resources/unsubscribe", {"uri": "note://one"}, {"name": "note://one"}),
    ("completion/complete", {"ref": REF, "argument": {"name": "topic", "value": "a"}},
     {"name": "write", "arguments": {"topic": "a"}}),
    ("completion/complete",
     {"ref": {"type": "ref/resource", "uri": "note://{id}"}, "argument": {"name": "id", "value": ""},
      "context": {"arguments": {"token": "abc"}}},
     {"name": "note://{id}", "arguments": {"token": "[redacted]", "id": ""}}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "params", "noted"), NOTED)
async def test_what_is_noted(lines: Any, method: str, params: dict[str, Any], noted: dict[str, Any]) -> None:
    async with Wire(offering(audit=True), "2025-11-25") as wire:
        await wire.exchange(wire.request(method, params, id=5))
        session = wire.connection.session
    (line,) = map(json.loads, lines())
    always = {"time": "2026-07-28T09:30:00.250Z", "method": method, "request_id": 5, "revision": "2025-11-25"}
    assert line.pop("session") == hashlib.sha256(session.id.encode()).hexdigest()[:16]  # it opens none
    assert line == {**always, "outcome": "ok", "duration_ms": 2.5, **noted}


async def test_what_does_nothing_is_not_noted(lines: Any) -> None:
    async with Wire(offering(audit=True), "2025-11-25") as wire:
        for method in ("ping", "tools/list", "prompts/list", "resources/list", "resources/templates/list"):
            await wire.ask(method, {})
    assert lines() == []


# ── how requests end ──


async def test_a_listen_is_noted_when_it_ends(lines: Any) -> None:
    server = offering(audit=True)
    async with Wire(server, MODERN) as wire:
        for id in ("left", "ended"):
            wire.send(wire.request("subscriptions/listen", {"notifications": WANTED}, id=id))
            await wire.receive()
        assert lines() == []
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "left"}})
        await until(lambda: bool(lines()))
        server.engine.hub.end_all()
        await wire.receive()
    events = [json.loads(line) for line in lines()]
    assert [(event["request_id"], event["outcome"]) for event in events] == [("left", "cancelled"), ("ended", "ok")]
    assert events[0]["arguments"] == WANTED


async def test_each_round_of_a_call_is_a_request(lines: Any) -> None:
    server = Server("asks", audit=True)

    @server.tool
    async def order(ctx: Context) -> str:
        return str((await ctx.elicit("Name?", str)).data)

    async with asking_client(server) as client:
        await play(client, "order", {"Name?": "Ada"})
    assert [json.loads(line)["outcome"] for line in lines()] == ["input_required", "ok"]


@pytest.mark.parametrize(
    ("failure", "ending"),
    [
        (Unauthorized.for_scopes(frozenset({"a"})), ("refused", -32600, "insufficient_scope")),
        (RateLimited("later", retry_after=1), ("refused", -32603, None)),
        (ProtocolError("no", code=4711), ("error", 4711, None)),
        (ToolError("no"), ("tool_error", None, None)),
        (ValueError("no"), ("error", -32603, None)),
        (SystemExit(), ("error", -32603, None)),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_a_middleware_raises(lines: Any, failure: BaseException, ending: tuple[Any, ...]) -> None:
    server = offering(audit=True)

    @server.middleware
    async def refuse(request: Any, call_next: Any) -> Any:
        if request.method == "tools/call":
            raise failure
        return await call_next(request)

    async with Wire(server, MODERN) as wire:
        await wire.exchange(wire.request("tools/call", {"name": "add"}))
    (line,) = map(json.loads, lines())
    assert (line["outcome"], line.get("code"), line.get("reason")) == ending


async def test_the_request_is_noted_as_it_came(lines: Any) -> None:
    server = offering(audit=True)

    @server.middleware
    async def rewrite(request: Any, call_next: Any) -> Any:
        if request.method == "tools/call":
            request.params = msgspec.structs.replace(request.params, name="fails")
        return await call_next(request)

    async with Wire(server, MODERN) as wire:
        await wire.ask("tools/call", {"name": "add", "arguments": {"a": 1}})
    (line,) = map(json.loads, lines())
    assert (line["name"], line["arguments"], line["outcome"]) == ("add", {"a": 1}, "tool_error")


async def test_a_request_that_never_reached_the_engine(lines: Any) -> None:
    trail = offering(audit=True).engine.audit
    failure = Unauthorized("This needs a token", error="invalid_token")
    trail.record_refusal(failure, method="POST", name="/mcp", principal=ADA, address="192.0.2.7")
    assert lines() == [
        '{"time":"2026-07-28T09:30:00.250Z","method":"POST","name":"/mcp","subject":"ada","client":"editor",'
        '"issuer":"https://id.example.org","address":"192.0.2.7","outcome":"refused","code":-32600,'
        '"reason":"invalid_token"}'
    ]


# ── arguments ──


async def test_arguments_can_be_left_out(lines: Any) -> None:
    async with Wire(offering(audit=True, audit_arguments=False), MODERN) as wire:
        await wire.ask("tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}})
    assert "arguments" not in json.loads(lines()[0])


def test_nothing_hides_behind_long_arguments() -> None:
    given = {"body": "x" * 1_000_000, "to": "bob", "token": "abc", **{f"n{number}": number for number in range(100)}}
    found = redact_arguments(msgspec.Raw(json.dumps(given).encode()), Redactor())
    assert found["body"] == "[cut] 1000002 bytes"
    assert (found["to"], found["token"], found["n0"]) == ("bob", "[redacted]", 0)
    assert found["[cut]"] == "39 more"
    assert len(found) == 65


@pytest.mark.parametrize(
    "given", [b"[" * 5000 + b"]" * 5000, b"[" + b"1," * 3000 + b"1]", b'{"a":' * 400 + b"1" + b"}" * 400]
)
def test_odd_arguments_are_no_trouble(given: bytes) -> None:
    assert len(json.dumps(redact_arguments(msgspec.Raw(given), Redactor()))) < 500


WORDS = st.text('aé"\\\n=: ', max_size=20)
VALUES = st.recursive(
    st.none() | st.integers() | WORDS, lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner), max_leaves=8
)


@pytest.mark.long
@given(st.dictionaries(WORDS | st.sampled_from(["password", "a token"]), VALUES, max_size=8), st.integers(0, 100))
def test_what_is_shown_is_small(given: dict[str, Any], limit: int) -> None:
    raw = msgspec.json.encode(given)
    found = redact_arguments(msgspec.Raw(raw), Redactor(), max_bytes=limit, max_members=4)
    if len(raw) <= limit:
        assert found == Redactor().value(given)
    else:
        assert list(found)[:4] == list(given)[:4]
        assert len(found) == min(len(given), 5)
        assert len(msgspec.json.encode(found)) <= 12 * limit + 5 * 150


# ── the log ──


async def test_a_line_stays_json_when_a_handler_redacts(caplog: pytest.LogCaptureFixture) -> None:
    """As one text, `password=","` would look like a secret in quotes."""
    caplog.handler.addFilter(RedactingFilter(Redactor()))
    caplog.set_level(logging.INFO, "dovetail.audit")
    arguments = {"how": "password=", "password": "hunter2"}
    async with Wire(offering(audit=True), MODERN) as wire:
        await wire.ask("tools/call", {"name": "fails", "arguments": arguments})
    assert kept(caplog)[0]["arguments"] == {"how": "password=", "password": "[redacted]"}


async def test_a_log_that_takes_no_events_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Wire(offering(audit=True), MODERN) as wire:
        for _ in range(3):
            await wire.ask("tools/call", {"name": "fails"})
    words = "audit events are lost: no handler takes INFO records of the logger dovetail.audit"
    assert [record.getMessage() for record in caplog.records] == [words]


# ── a function ──


@pytest.mark.parametrize("way", ["plain", "async", "gives a coroutine"])
async def test_a_function_gets_every_event_in_order(way: str) -> None:
    events: list[AuditEvent] = []

    async def awaited(event: AuditEvent) -> None:
        await asyncio.sleep(0)
        events.append(event)

    functions: dict[str, Any] = {"plain": events.append, "async": awaited}
    async with Wire(offering(audit=functions.get(way, lambda event: awaited(event))), MODERN) as wire:
        for number in range(20):
            wire.send(wire.request("tools/call", {"name": "add", "arguments": {"a": number, "b": 0}}))
        for _ in range(20):
            await wire.receive()
    assert [event.arguments["a"] for event in events] == list(range(20))


@pytest.mark.parametrize("failure", [ValueError("boom"), SystemExit(), asyncio.CancelledError()])
async def test_events_of_a_failing_function_are_in_the_log(
    caplog: pytest.LogCaptureFixture, failure: BaseException
) -> None:
    async def broken(event: AuditEvent) -> None:
        raise failure

    caplog.set_level(logging.WARNING)
    async with Wire(offering(audit=broken), MODERN) as wire:
        for number in range(3):
            await wire.ask("tools/call", {"name": "add", "arguments": {"a": number, "b": 0}})
    errors = [record.getMessage() for record in caplog.records if record.name == "dovetail"]
    assert [event["arguments"]["a"] for event in kept(caplog)] == [0, 1, 2]
    assert errors == ["the audit function failed; 1 events so far are in the log dovetail.audit instead"]  # a minute


def bounded(function: Any, **bounds: Any) -> Server:
    server = offering(audit=function)
    server.engine.audit = AuditTrail(server.engine, **bounds)
    server.engine.chain = compile_chain(server.engine, ())
    return server


async def test_events_that_the_full_queue_refuses_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    go, taken = asyncio.Event(), []

    async def slow(event: AuditEvent) -> None:
        await go.wait()
        taken.append(event.arguments["a"])

    caplog.set_level(logging.WARNING)
    async with Wire(bounded(slow, max_queued=2), MODERN) as wire:
        for number in range(4):
            await wire.ask("tools/call", {"name": "add", "arguments": {"a": number, "b": 0}})
        go.set()
    assert taken == [0, 1, 2]  # the first is in hand
    assert [event["arguments"]["a"] for event in kept(caplog)] == [3]
    assert "the audit function is too slow; 1 events so far are in the log dovetail.audit instead" in caplog.messages


async def test_one_that_takes_for_ever_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def stuck(event: AuditEvent) -> None:
        await asyncio.sleep(60)

    caplog.set_level(logging.WARNING)
    async with Wire(bounded(stuck, timeout=0.01), MODERN) as wire:
        await wire.ask("tools/call", {"name": "fails"})
    assert [record.name for record in caplog.records] == ["dovetail.audit", "dovetail"]


def test_what_waits_when_the_loop_ends_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server = offering(audit=lambda event: asyncio.sleep(60))

    async def serve() -> None:
        await server.engine.start(server)
        for number in range(2):
            server.engine.audit.record_refusal(ProtocolError("no"), method="GET", name=f"/{number}")
        await asyncio.sleep(0.01)

    caplog.set_level(logging.WARNING)
    asyncio.run(serve())
    assert [event["name"] for event in kept(caplog)] == ["/0", "/1"]


async def test_an_event_that_can_t_be_made_harms_no_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = offering(audit=True)
    monkeypatch.setattr(server.engine.redactor, "text", lambda _: 1 / 0)
    async with Wire(server, MODERN) as wire:
        assert "isError" in await wire.ask("tools/call", {"name": "fails"})
    assert "tools/call could not be noted for the audit" in caplog.messages


@pytest.mark.parametrize("value", ["yes", 1, {}, None])
def test_what_can_t_be_meant(value: Any) -> None:
    with pytest.raises(SetupError, match=r"Server: audit=.* is not possible; it must be True, False or a function"):
        Server("audited", audit=value)


def test_without_it_nothing_is_paid() -> None:
    engine = offering().engine
    assert (engine.audit, engine.chain) == (None, None)
