"""A connection: requests of all revisions, batches, what is in flight, and floods."""

import asyncio
import json
from typing import Any

import pytest

from dovetail import Context, Server
from dovetail.engine.connection import ConnectionLimits
from dovetail.errors import ProtocolError
from dovetail.protocol.jsonrpc import MAX_BATCH
from wire import CLIENT, MODERN, Wire

HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
SUPPORTED = [MODERN, *reversed(HANDSHAKE)]
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"


def new_server() -> Server:
    server = Server("pipe", version="1.0.0")

    @server.tool
    async def say(ctx: Context, word: str = "hi", pause: float = 0) -> str:
        await asyncio.sleep(pause)
        return f"{word} {ctx.protocol_version}"

    return server


def hello(version: Any = "2025-06-18", **changes: Any) -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT, **changes}


def modern(params: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    return {**(params or {}), "_meta": {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}, **meta}}


async def fine(wire: Wire) -> None:
    """After any bad input the next good request works."""
    answer = await wire.exchange(wire.request("tools/list", modern()))
    assert len(answer["result"]["tools"]) == 1


# ── matrix 3.2 ──


@pytest.mark.rule("BASE-20", "BASE-9")
@pytest.mark.parametrize("line", [b"{", b"", b"\xff\xfe", b"nonsense", b'{"a":1}}', b"[1,", b'"\xed\xa0\x80"', b"\x00"])
@pytest.mark.parametrize("version", [None, "2024-11-05", "2025-03-26", "2025-11-25"])
async def test_row_1_what_is_no_json(line: bytes, version: str | None) -> None:
    async with Wire(new_server(), version) as wire:
        wire.send(line)
        error = await wire.receive()
        assert error["error"]["code"] == -32700
        assert error.get("id", "absent") == (None if version in ("2024-11-05", "2025-03-26") else "absent")
        await fine(wire)


@pytest.mark.rule("LIFE-13", "LIFE-21")
@pytest.mark.parametrize("version", [None, *HANDSHAKE])
async def test_row_3_a_request_with_its_own_version(version: str | None) -> None:
    async with Wire(new_server(), version) as wire:
        answer = await wire.exchange(wire.request("tools/call", modern({"name": "say"})))
        assert answer["result"]["content"][0]["text"] == f"hi {MODERN}"
        assert answer["result"]["resultType"] == "complete"
        for wrong in ("2025-11-25", "1999-01-01", ""):
            error = (await wire.exchange(wire.request("tools/list", modern(**{VERSION_KEY: wrong}))))["error"]
            assert (error["code"], error["data"]) == (-32022, {"supported": SUPPORTED, "requested": wrong})
        error = (await wire.exchange(wire.request("ping", modern())))["error"]
        assert error["code"] == -32601


@pytest.mark.rule("LIFE-3", "LIFE-4", "LIFE-5")
@pytest.mark.parametrize(
    ("asked", "given"),
    [*((each, each) for each in HANDSHAKE), (MODERN, "2025-11-25"), ("2099-01-01", "2025-11-25"), ("", "2025-11-25")],
)
async def test_rows_4_and_5_the_handshake(asked: str, given: str) -> None:
    async with Wire(new_server()) as wire:
        assert (await wire.ask("initialize", hello(asked)))["protocolVersion"] == given
        result = await wire.ask("tools/call", {"name": "say"})
        assert result["content"][0]["text"] == f"hi {given}"


@pytest.mark.parametrize(
    "params",
    [None, {}, hello(5), hello(capabilities=[]), hello(clientInfo="me"), {"protocolVersion": "2025-06-18"}],
    ids=str,
)
async def test_a_malformed_initialize_opens_nothing(params: Any) -> None:
    async with Wire(new_server()) as wire:
        assert (await wire.refusal("initialize", params))["code"] == -32602
        assert wire.connection.session is None
        await wire.ask("initialize", hello())


async def test_row_6_a_second_initialize() -> None:
    async with Wire(new_server(), "2025-03-26") as wire:
        assert (await wire.refusal("initialize", hello("2025-11-25")))["code"] == -32600
        assert (await wire.ask("tools/call", {"name": "say"}))["content"][0]["text"] == "hi 2025-03-26"


@pytest.mark.rule("LIFE-22")
async def test_row_14_both_eras_interleaved() -> None:
    async with Wire(new_server(), "2025-03-26") as wire:
        for number in range(20):
            arguments = {"word": str(number), "pause": 0.01 * (number % 3)}
            params: dict[str, Any] = {"name": "say", "arguments": arguments}
            wire.send(wire.request("tools/call", modern(params) if number % 2 else params, id=number))
        for _ in range(20):
            answer = await wire.receive()
            version = MODERN if answer["id"] % 2 else "2025-03-26"
            assert answer["result"]["content"][0]["text"] == f"{answer['id']} {version}"
            assert ("resultType" in answer["result"]) is bool(answer["id"] % 2)


# ── ids ──


@pytest.mark.rule("BASE-3", "BASE-6")
@pytest.mark.parametrize("id", [0, -1, 1, 2**53 + 1, 2**70, "", "1", "é", "x" * 1000])
async def test_ids_come_back_as_they_are(id: Any) -> None:
    async with Wire(new_server(), "2025-11-25") as wire:
        answer = await wire.exchange(wire.request("ping", id=id))
        assert (type(answer["id"]), answer["id"]) == (type(id), id)
        assert (await wire.exchange(wire.request("nothing", id=id)))["error"]["code"] == -32601


@pytest.mark.rule("BASE-5")
async def test_an_id_in_flight_is_refused_and_may_be_used_afterwards() -> None:
    async with Wire(new_server(), "2025-11-25") as wire:
        slow = {"name": "say", "arguments": {"pause": 0.05}}
        wire.send(wire.request("tools/call", slow, id=7))
        wire.send(wire.request("tools/call", modern(slow), id=7))
        wire.send(wire.request("ping", id="7"))
        first, second, third = [await wire.receive() for _ in range(3)]
        assert (first["id"], first["error"]["code"]) == (7, -32600)
        assert second == {"jsonrpc": "2.0", "id": "7", "result": {}}
        assert third["result"]["content"][0]["text"] == "hi 2025-11-25"
        assert (await wire.exchange(wire.request("ping", id=7)))["result"] == {}


@pytest.mark.rule("BASE-10")
async def test_notifications_are_never_answered() -> None:
    async with Wire(new_server(), "2025-11-25") as wire:
        for method in ("notifications/unknown", "tools/list", "initialize", "notifications/roots/list_changed", ""):
            for params in ({}, [], None, 5):
                wire.send({"jsonrpc": "2.0", "method": method, "params": params})
        await wire.quiet(0.02)
        await fine(wire)


# ── floods ──


async def test_the_number_of_requests_in_flight_is_bounded() -> None:
    async with Wire(new_server(), "2025-11-25", limits=ConnectionLimits(in_flight=5)) as wire:
        for number in range(8):
            wire.send(wire.request("tools/call", {"name": "say", "arguments": {"pause": 0.02}}, id=number))
        answers = [await wire.receive() for _ in range(8)]
        refused = [(answer["id"], answer["error"]["code"]) for answer in answers if "error" in answer]
        assert refused == [(5, -32603), (6, -32603), (7, -32603)]
        await fine(wire)


async def test_a_transport_may_reject_a_line() -> None:
    async with Wire(new_server(), "2025-11-25") as wire:
        wire.connection.reject(ProtocolError("too long", code=-32600))
        assert await wire.receive() == {"jsonrpc": "2.0", "error": {"code": -32600, "message": "too long"}}


async def test_one_message_is_one_line() -> None:
    async with Wire(new_server(), "2025-11-25") as wire:
        wire.send(wire.request("tools/call", {"name": "say", "arguments": {"word": "a\nb\r\u2028\u0085"}}, id=1))
        line = await wire.lines.get()
        assert b"\n" not in line
        assert b"\r" not in line
        assert json.loads(line)["result"]["content"][0]["text"].startswith("a\nb\r\u2028\u0085")


BATCHES = "2025-03-26"


def ping(id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "ping"}


@pytest.mark.rule("BASE-11")
async def test_one_line_with_all_answers_in_their_order() -> None:
    async with Wire(new_server(), BATCHES) as wire:
        calls = [("tools/call", {"name": "say", "arguments": {"pause": pause}}) for pause in (0.03, 0.01)]
        first, second = [wire.request(*each, id) for each, id in zip(calls, (1, "two"), strict=True)]
        wire.send([first, {"nonsense": True}, second, ping(3), {"jsonrpc": "2.0", "id": 4}])
        answers = await wire.receive()
        assert [answer.get("id") for answer in answers] == [1, None, "two", 3, 4]
        assert [answers[place]["error"]["code"] for place in (1, 4)] == [-32600, -32600]
        assert answers[0]["result"]["content"][0]["text"] == f"hi {BATCHES}"
        await wire.quiet(0.02)


@pytest.mark.rule("BASE-10", "BASE-11")
async def test_bad_batches_and_those_without_requests() -> None:
    async with Wire(new_server(), BATCHES) as wire:
        wire.send([{"jsonrpc": "2.0", "method": "notifications/progress"}, {"jsonrpc": "2.0", "id": 1, "result": {}}])
        await wire.quiet(0.02)
        wire.send([1, [ping(1)], None])
        assert [each["error"]["code"] for each in await wire.receive()] == [-32600] * 3
        for bad in ([], [ping(number) for number in range(MAX_BATCH + 1)]):
            wire.send(bad)
            assert (await wire.receive())["error"]["code"] == -32600
        wire.send([ping(number) for number in range(MAX_BATCH)])
        assert len(await wire.receive()) == MAX_BATCH


@pytest.mark.rule("BASE-12")
async def test_initialize_and_modern_requests_are_no_part_of_a_batch() -> None:
    async with Wire(new_server(), BATCHES) as wire:
        wire.send([wire.request("initialize", hello(BATCHES)), wire.request("tools/list", modern()), ping(3)])
        answers = await wire.receive()
        assert [answer.get("error", {}).get("code") for answer in answers] == [-32600, -32600, None]
