"""Where the events of the audit go, to the log or a function: none is lost without a word, and no call waits."""

import asyncio
import json
import logging
from typing import Any

import pytest

from audit_stage import offering
from dovetail import AuditEvent, ProtocolError, Server, SetupError
from dovetail.engine.audit import AuditTrail
from dovetail.engine.dispatch import compile_chain
from dovetail.engine.redaction import RedactingFilter, Redactor
from wire import MODERN, Wire

# ── the log ──


async def test_a_line_stays_json_when_a_handler_redacts(caplog: pytest.LogCaptureFixture) -> None:
    """As one text, `password=","` would look like a secret in quotes."""
    caplog.handler.addFilter(RedactingFilter(Redactor()))
    caplog.set_level(logging.INFO, "dovetail.audit")
    arguments = {"how": "password=", "password": "hunter2"}
    async with Wire(offering(audit=True), MODERN) as wire:
        await wire.ask("tools/call", {"name": "fails", "arguments": arguments})
    (line,) = [record.getMessage() for record in caplog.records if record.name == "dovetail.audit"]
    assert json.loads(line)["arguments"] == {"how": "password=", "password": "[redacted]"}


async def test_a_log_that_takes_no_events_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Wire(offering(audit=True), MODERN) as wire:
        for _ in range(3):
            await wire.ask("tools/call", {"name": "fails"})
    words = "audit events are lost: no handler takes INFO records of the logger dovetail.audit"
    assert [record.getMessage() for record in caplog.records] == [words]


# ── a function ──


class Recorder:
    async def __call__(self, event: AuditEvent) -> None:
        await asyncio.sleep(0)
        events.append(event)


events: list[AuditEvent] = []


def plain(event: AuditEvent) -> None:
    events.append(event)


async def awaited(event: AuditEvent) -> None:
    await asyncio.sleep(0)
    events.append(event)


@pytest.mark.parametrize("function", [plain, awaited, Recorder(), lambda event: awaited(event)])
async def test_a_function_gets_every_event_in_order(function: Any) -> None:
    events.clear()
    async with Wire(offering(audit=function), MODERN) as wire:
        for number in range(20):
            wire.send(wire.request("tools/call", {"name": "add", "arguments": {"a": number, "b": 0}}))
        for _ in range(20):
            await wire.receive()
    assert [event.arguments["a"] for event in events] == list(range(20))


async def test_no_call_waits_for_it() -> None:
    go, taken = asyncio.Event(), []

    async def slow(event: AuditEvent) -> None:
        await go.wait()
        taken.append(event)

    async with Wire(offering(audit=slow), MODERN) as wire:
        for _ in range(3):
            await wire.ask("tools/call", {"name": "fails"})
        assert taken == []
        go.set()
    assert len(taken) == 3  # the server stops when it has them


@pytest.mark.parametrize("failure", [ValueError("boom"), SystemExit(), asyncio.CancelledError()])
async def test_what_it_does_not_take_is_in_the_log(caplog: pytest.LogCaptureFixture, failure: BaseException) -> None:
    async def broken(event: AuditEvent) -> None:
        raise failure

    caplog.set_level(logging.WARNING)
    async with Wire(offering(audit=broken), MODERN) as wire:
        for number in range(3):
            await wire.ask("tools/call", {"name": "add", "arguments": {"a": number, "b": 0}})
    kept = [json.loads(record.getMessage()) for record in caplog.records if record.name == "dovetail.audit"]
    told = [record.getMessage() for record in caplog.records if record.name == "dovetail"]
    assert [event["arguments"]["a"] for event in kept] == [0, 1, 2]
    assert told == ["the audit function failed; 1 events so far are in the log dovetail.audit instead"]  # once a minute


def bounded(function: Any, **bounds: Any) -> Server:
    server = offering(audit=function)
    server.engine.audit = AuditTrail(server.engine, **bounds)
    server.engine.chain = compile_chain(server.engine, ())
    return server


async def test_what_has_no_room_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    go, taken = asyncio.Event(), []

    async def slow(event: AuditEvent) -> None:
        await go.wait()
        taken.append(event.arguments["a"])

    caplog.set_level(logging.WARNING)
    async with Wire(bounded(slow, max_waiting=2), MODERN) as wire:
        for number in range(4):
            await wire.ask("tools/call", {"name": "add", "arguments": {"a": number, "b": 0}})
        go.set()
    kept = [json.loads(record.getMessage()) for record in caplog.records if record.name == "dovetail.audit"]
    assert taken == [0, 1]
    assert [event["arguments"]["a"] for event in kept] == [2, 3]
    assert "the audit function is too slow; 1 events so far are in the log dovetail.audit instead" in caplog.messages


async def test_one_that_takes_for_ever_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def stuck(event: AuditEvent) -> None:
        await asyncio.sleep(60)

    caplog.set_level(logging.WARNING)
    async with Wire(bounded(stuck, patience=0.01), MODERN) as wire:
        await wire.ask("tools/call", {"name": "fails"})
    assert [record.name for record in caplog.records] == ["dovetail.audit", "dovetail"]


def test_what_waits_when_the_loop_ends_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server = offering(audit=lambda event: asyncio.sleep(60))

    async def serve() -> None:
        await server.engine.start(server)
        assert server.engine.audit is not None
        for number in range(2):
            server.engine.audit.refused(ProtocolError("no"), method="GET", name=f"/{number}")
        await asyncio.sleep(0.01)

    caplog.set_level(logging.WARNING)
    asyncio.run(serve())
    kept = [json.loads(record.getMessage())["name"] for record in caplog.records if record.name == "dovetail.audit"]
    assert kept == ["/0", "/1"]


async def test_an_event_that_can_t_be_made_harms_nobody(
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
