"""A client that is asked over HTTP, as tests play it: how it calls, replies and leaves, and what a tool was told."""

import json
from typing import Any

from asking_stage import AskingStage, answer_to
from dovetail.protocol import jsonrpc
from http_stage import text_of
from http_wire import Exchange, HttpWire

JSON = "application/json"


def ask(wire: HttpWire, **arguments: Any) -> Exchange:
    return wire.start_call("ask", arguments, id=arguments.pop("id", None), headers=arguments.pop("headers", None))


async def reply(wire: HttpWire, message: Any, status: int = 202) -> None:
    """By a connection of its own."""
    exchange = await wire.raw("POST", json.dumps(message).encode()).done()
    assert exchange.status == status, exchange.raw
    assert status != 202 or exchange.raw == b""


def given(call: Exchange) -> Any:
    """What the tool was answered."""
    return json.loads(text_of(call.answer))


async def leave(*streams: Exchange) -> None:
    for stream in streams:
        stream.leave()
        await stream.done()


async def finished_call(stage: AskingStage, wire: HttpWire) -> Any:
    """The way back of a call that is over."""
    call = ask(wire)
    await reply(wire, answer_to(await call.message(), {}))
    await call.done()
    return stage.contexts[-1].back


def note(data: Any) -> bytes:
    return jsonrpc.notification("notifications/message", json.dumps({"level": "info", "data": data}).encode())
