"""Clients that disconnect or stop reading, hosts that fail them, and races between two events."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from http_clients import LOGS, gone

from dovetail import Context
from dovetail.state.memory import MemoryState
from dovetail.transports.http.response import HttpResponse
from http_serving import PausingState, Serve, Stage, endpoint_of, settle, until
from http_wire import MODERN, HttpWire, open_wire, text_of

pytestmark = pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")
WAYS = ["leave", "cut"]
ERAS = ["2025-11-25", MODERN]


class Stubborn(Stage):
    """Its tool answers although it was cancelled, unless that happens again."""

    async def work(self) -> str:
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            await settle(5)
        return "done all the same"


@pytest.mark.parametrize("how", [*WAYS, "leave, and then cut"])
@pytest.mark.parametrize("kind", [Stage, Stubborn])
@pytest.mark.rule("CAN-2", "CAN-8", "MH-13")
async def test_a_disconnect_cancels_in_2026_07_28_and_no_cancellation_is_left(
    serve: Serve, kind: type[Stage], how: str
) -> None:
    """What we asked for, we take back; the ASGI server may have something to do in the task of a request."""
    stage, left = kind(), list[int]()
    app = await serve(stage.server)

    async def host(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)
        left.append(asyncio.current_task().cancelling())  # type: ignore[union-attr]

    call = HttpWire(host).start_call("work")
    await stage.entered.wait()
    await gone(call, how)
    await asyncio.wait_for(stage.cancelled.wait(), 5)
    if how == "leave, and then cut":
        call.task.cancel()
    await asyncio.wait({call.task})
    assert call.sent == []
    assert how != "leave" or left == [0]
    if kind is Stubborn and how == "leave, and then cut":  # what we did not ask for, we pass on
        assert (call.task.cancelled(), left) == (True, [])


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.rule("MH-13")
async def test_a_disconnect_in_the_middle_of_a_stream_cancels_too(stage: Stage, serve: Serve, how: str) -> None:
    @stage.server.tool
    async def speak(ctx: Context) -> None:
        try:
            await ctx.error("one")
            stage.entered.set()
            await stage.go.wait()
        finally:
            await ctx.error("too late")
            stage.cancelled.set()

    call = HttpWire(await serve()).start_call("speak", meta=LOGS)
    await stage.entered.wait()
    await gone(call, how)
    await asyncio.wait_for(stage.cancelled.wait(), 5)
    await asyncio.wait({call.task})
    assert [message["params"]["data"] for message in call.messages] == ["one"]
    assert call.sent[-1]["more_body"] is True  # nothing was sent to who is not there


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("version", ["2025-03-26", "2025-11-25"])
@pytest.mark.rule("SH-15", "CAN-8")
async def test_a_disconnect_does_not_cancel_in_older_revisions(
    stage: Stage, app: Any, version: str, later: bool, how: str
) -> None:
    wire = await HttpWire.session(app, version)
    call = wire.start_call("work")
    await stage.entered.wait()
    if later:
        await call.watched.wait()
    await gone(call, how)
    await call.watched.wait()
    await settle()
    assert not stage.cancelled.is_set()
    assert endpoint_of(app).calls.by_id
    stage.go.set()
    await until(lambda: not endpoint_of(app).calls.by_id)
    assert not stage.cancelled.is_set()
    assert (await wire.call("add", {"a": 1, "b": 2})).status == 200


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("unexpected ASGI message"), KeyError("stream")])
@pytest.mark.parametrize("version", ERAS)
async def test_a_host_that_fails_to_send_does_no_harm(
    stage: Stage, app: Any, version: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    wire = await open_wire(app, version)
    call = wire.start_call("warn", meta=LOGS)

    async def broken(_message: Any) -> None:
        raise error

    call._send = broken  # type: ignore[method-assign]
    stage.go.set()
    await call.done()
    await until(lambda: not app._running.in_flight.calls)
    assert (await wire.call("add", {"a": 1, "b": 2})).status == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("version", ERAS)
async def test_a_call_waits_for_a_client_that_reads_slowly_but_not_for_ever(
    stage: Stage, app: Any, pass_time: Callable[[float], None], version: str
) -> None:
    wire = await open_wire(app, version)
    slow = wire.start_call("warn", {"times": 300}, meta=LOGS)
    slow.stall()
    await settle(200)
    assert not stage.entered.is_set()  # nothing is heaped up for it
    assert (await wire.call("add", {"a": 1, "b": 2})).status == 200
    slow.read_on()
    await stage.entered.wait()
    call = wire.start_call("warn", meta=LOGS)
    await call.message()
    call.stall()
    for _ in range(5):  # a beat is sent, and waited with
        pass_time(31)
        await settle()
    await call.done(2)
    assert len(app._running.in_flight.calls) == (1 if version == MODERN else 2)  # cancelled, as if it had left
    stage.go.set()
    assert text_of((await slow.done()).answer) == "warned"
    assert len(slow.messages) == 302
    if version != MODERN:  # before, it may come back for the rest
        assert text_of((await wire.get(call.events[0].id).done()).answer) == "warned"


@pytest.mark.parametrize("version", ERAS)
async def test_a_host_that_gives_the_body_again_and_again_does_no_harm(
    stage: Stage, serve: Serve, version: str
) -> None:
    """A common way for middleware to read a body and pass it on; such a host never says that a client has left."""
    wire = await open_wire(await serve(), version)
    call = wire.start_call("work")
    body = call._pieces[0]
    given: list[bytes] = []

    async def again() -> dict[str, Any]:
        given.append(body)
        return {"type": "http.request", "body": body, "more_body": False}

    call._receive = again  # type: ignore[method-assign]
    await asyncio.wait_for(stage.entered.wait(), 10)
    await until(lambda: len(given) > 2)
    assert (await wire.call("add", {"a": 1, "b": 2})).status == 200
    stage.go.set()
    assert text_of((await call.done()).answer) == "done"


@pytest.mark.parametrize(("has_left", "status"), [(True, 499), (False, 200)])
async def test_there_is_one_response_also_after_a_disconnect(has_left: bool, status: int) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    response = HttpResponse(send)
    if has_left:
        response.abandon()
    await response.json(200, b"{}")
    assert bool(sent) != has_left
    for _ in range(2):
        await response.send_client_closed()
    await response.json(200, b"{}")
    assert [each["status"] for each in sent if "status" in each] == [status]
    assert response.ended


async def test_nothing_follows_half_an_event() -> None:
    sent: list[bytes] = []
    reading = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if len(sent) == 3:  # the start, a first piece, and then it takes no more
            await reading.wait()

    response = HttpResponse(send)
    await response.open()
    writing = asyncio.create_task(response.event(b"data: " + b"A" * 700_000 + b"\n\n"))
    await settle(5)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    before = len(sent)
    reading.set()
    await response.event(b"data: the answer\n\n")
    await response.close()
    assert len(sent) == before


@pytest.mark.parametrize("state", [PausingState, lambda: MemoryState(max_entries=1)], ids=["far", "no room for a log"])
async def test_notifications_at_the_same_time_are_sent_in_the_order_of_the_log(
    stage: Stage, serve: Serve, state: Callable[[], MemoryState]
) -> None:
    @stage.server.tool
    async def both(ctx: Context) -> str:
        await asyncio.gather(*(ctx.warning(number) for number in range(5)))
        return "both"

    wire = await HttpWire.session(await serve(state=state()))
    call = await wire.call("both")
    assert len(call.messages) == 6
    assert text_of(call.answer) == "both"
    numbers = [int(event.id.split(".")[1]) for event in call.events if event.id]
    assert numbers == sorted(numbers)
    if state is PausingState:
        assert len(numbers) == len(call.events)
        assert (await wire.get(call.events[0].id).done()).messages == call.messages
