"""Clients that left before anything was said to them."""

import asyncio
import json
import time
from typing import Any

import pytest

from dovetail import Server
from dovetail.transports import traffic
from dovetail.transports.response import Response
from http_serving import settle
from http_wire import HttpWire


class Heard:
    """Where a response is sent to."""

    def __init__(self) -> None:
        self.statuses: list[int] = []

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])


async def test_there_is_one_answer_also_for_who_left() -> None:
    heard = Heard()
    response = Response(heard)
    response.abandon()
    await response.json(200, b"{}")
    assert heard.statuses == []
    await response.settle()
    await response.settle()
    await response.json(200, b"{}")
    assert heard.statuses == [499]
    assert response.ended


async def test_nobody_is_answered_twice() -> None:
    heard = Heard()
    response = Response(heard)
    await response.json(200, b"{}")
    await response.settle()
    assert heard.statuses == [200]


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_an_answer_that_nobody_takes_does_not_hold_up_the_end(version: str) -> None:
    server = Server("patient", version="1.0.0")

    @server.tool
    async def quick() -> str:
        return "done"

    app = server.asgi()
    wire = HttpWire(app) if version == "2026-07-28" else await HttpWire.session(app, version)
    call = wire.start_call("quick")
    call.stall()
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await app.drain(0.1)
    assert time.monotonic() - began < 0.9
    await call.done()


async def test_the_answer_of_a_batch_is_waited_for() -> None:
    server = Server("patient", version="1.0.0")

    @server.tool
    async def quick() -> str:
        return "done"

    app = server.asgi()
    wire = await HttpWire.session(app, "2025-03-26")
    message = wire.message("tools/call", {"name": "quick", "arguments": {}})
    batch = wire.raw("POST", json.dumps([message]).encode())
    batch.stall()
    await asyncio.sleep(0.05)
    draining = asyncio.create_task(app.drain(5))
    await asyncio.sleep(0.05)
    assert not draining.done()
    batch.read_on()
    await draining
    assert batch.answer[0]["result"]["content"][0]["text"] == "done"


async def test_a_stopped_call_whose_client_takes_nothing_ends_with_the_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "SETTLE_SECONDS", 0.1)
    server = Server("patient", version="1.0.0")

    @server.tool
    async def forever() -> None:
        await asyncio.sleep(60)

    app = server.asgi()
    call = HttpWire(app).start_call("forever")
    await asyncio.sleep(0.02)
    call.stall()
    await app.drain(0.05)
    await call.done(1)


async def test_nothing_follows_half_an_event() -> None:
    sent: list[bytes] = []
    reading = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if len(sent) == 3:  # the start, a first piece, and then it takes no more
            await reading.wait()

    response = Response(send)
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
