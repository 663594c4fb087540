"""Batches over HTTP, which only 2025-03-26 has: in a session, without one, with streams and with cancellations."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_clients import ANSWER, INVALID_REQUEST, LEGACY, NOT_FOUND, check_refusal, new_server

from dovetail.protocol.jsonrpc import MAX_BATCH
from http_serving import Serve, Stage, settle
from http_wire import MODERN, H, HttpWire, hello, message, post

VERSION = "2025-03-26"
NOTICE = message("notifications/progress", {"progressToken": 1, "progress": 1}, id=None)
CANCEL = message("notifications/cancelled", {"requestId": 1}, id=None)


@pytest.fixture
async def app() -> AsyncIterator[Any]:
    app = new_server().asgi()
    yield app
    await app.drain(0)


@pytest.fixture
async def wire(app: Any) -> HttpWire:
    return await HttpWire.session(app, VERSION)


def call(id: Any, name: str = "add", token: Any = None, **arguments: Any) -> dict[str, Any]:
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return message("tools/call", {"name": name, "arguments": arguments, **meta}, id=id)


@pytest.mark.rule("BASE-11", "SH-5", "SH-8", "BASE-6")
@pytest.mark.parametrize("header", [None, *LEGACY])
async def test_all_answers_come_together_and_in_order(wire: HttpWire, header: str) -> None:
    parts = [
        *(call(1, "wait", seconds=0.03), NOTICE, {"nonsense": True}, message("ping", id="two"), ANSWER),
        *(message("no/such", id=3), {"jsonrpc": "2.0", "id": 4}, 7, [message("ping", id=5)]),
    ]
    answers = (await post(wire, parts, {"mcp-protocol-version": header})).json
    assert [each["id"] for each in answers] == [1, None, "two", 3, 4, None, None]
    codes = [each.get("error", {}).get("code") for each in answers]
    assert codes == [None, INVALID_REQUEST, None, NOT_FOUND, *[INVALID_REQUEST] * 3]


@pytest.mark.rule("BASE-12", "MH-4", "SH-28", "SH-29", "SH-32")
async def test_a_batch_needs_its_session_and_a_header_that_agrees_and_opens_none(app: Any, wire: HttpWire) -> None:
    for header in ("banana", "", MODERN):
        check_refusal(await post(wire, [message("ping"), NOTICE, CANCEL], H(header)), 400, INVALID_REQUEST)
    answer = await post(wire, [hello(VERSION), message("ping", id=2)])
    assert "mcp-session-id" not in answer.headers
    assert [(each["id"], "error" in each) for each in answer.json] == [("q", True), (2, False)]
    for headers in ({}, H(VERSION)):
        for parts in ([message("ping")], [hello(VERSION)]):
            check_refusal(await post(HttpWire(app), parts, headers), 400, INVALID_REQUEST)
            gone = {"mcp-session-id": "gone", **headers}
            check_refusal(await post(HttpWire(app), parts, gone), 404, INVALID_REQUEST)


@pytest.mark.rule("BASE-10", "BASE-20", "SH-6")
async def test_bad_batches_and_batches_without_a_request(wire: HttpWire) -> None:
    for parts in ([], [message("ping")] * (MAX_BATCH + 1)):
        check_refusal(await post(wire, parts), 400, INVALID_REQUEST)
    assert len((await post(wire, [message("ping", id=number) for number in range(MAX_BATCH)])).json) == MAX_BATCH
    for quiet in ([NOTICE], [ANSWER], [NOTICE, ANSWER, message("no/such", id=None)]):
        answer = await post(wire, quiet)
        assert (answer.status, answer.raw) == (202, b"")


@pytest.mark.rule("SH-8", "SH-11", "SH-13", "SH-14")
async def test_a_batch_that_reports_progress_is_a_stream(wire: HttpWire) -> None:
    answer = await post(wire, [call(1, "chatty", "a", seconds=0.3), call(2, a=1), call(3, "chatty", "b")])
    *notified, last = answer.messages
    steps = [(each["params"]["progressToken"], each["params"]["progress"]) for each in notified if each]
    assert steps == [("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert [each["id"] for each in last] == [1, 2, 3]


@pytest.mark.rule("CAN-2", "CAN-4")
async def test_calls_of_a_batch_are_cancelled_and_the_others_are_answered(wire: HttpWire) -> None:
    batch = wire.raw("POST", json.dumps([call(1, "wait", seconds=60), call(2, "wait", seconds=0.1)]).encode())
    await settle(50)
    await post(wire, CANCEL)
    assert [each["id"] for each in (await batch.done()).answer] == [2]
    assert "result" in (await wire.call("add", {"a": 1}, id=1)).answer, "its id is free again"
    own = await post(wire, [call(1, "wait", seconds=60), CANCEL, message("ping", id=2)])
    assert [each["id"] for each in own.json] == [2]
    answer = await post(wire, [call(1, "wait", seconds=60), CANCEL])  # one of which nothing is left ends in silence
    assert (answer.status, answer.messages) == (200, [])
    running = wire.raw("POST", json.dumps([call(1, "wait", seconds=60), call(2, "wait", seconds=60)]).encode())
    await settle(50)
    assert (await wire.delete()).status == 204
    assert (await running.done()).messages == []


@pytest.mark.rule("SH-15")
async def test_a_batch_has_one_connection_and_goes_on_when_its_client_has_left(stage: Stage, serve: Serve) -> None:
    wire = await HttpWire.session(await serve(keep_alive=0.05), VERSION)
    kept, left = (wire.raw("POST", json.dumps([call(f"{of}{n}", "work") for n in range(20)]).encode()) for of in "ab")
    await kept.until(lambda: kept.raw.count(b": keep-alive\n\n") >= 2)
    assert kept.raw.count(b": keep-alive\n\n") < 20
    left.leave(quietly=True)
    await left.done(2)
    assert not stage.cancelled.is_set()
    stage.go.set()
    assert len((await kept.done()).answer) == 20
