"""Clients that lie: states that were changed, stolen or kept too long, and answers of every wrong kind."""

import asyncio
import base64
import itertools
import json
import logging
from typing import Any

import pytest

from dovetail import Context, Server, ServerError
from dovetail.engine import input_required
from dovetail.engine.input_required import OTHERS
from dovetail.errors import INVALID_PARAMS
from http_wire import HttpWire
from replaying import EVERYTHING, accepted, asking_client, is_interim, play, retry
from wire import MODERN, Wire

SECRET = "the same on all workers"
ANSWERS = {"Sure?": "yes"}
CAPABILITIES = {"io.modelcontextprotocol/clientCapabilities": EVERYTHING}


def bank(name: str = "bank", **options: Any) -> Server:
    """Tools and prompts that ask, some of them under the same name."""
    server = Server(name, **{"secret": SECRET, **options})

    async def pay(ctx: Context, amount: float = 0, note: dict[str, Any] | None = None) -> str:
        return f"paid {amount:g}: {(await ctx.elicit('Sure?', str)).data}"

    async def ask(ctx: Context) -> str:
        return str((await ctx.elicit("Sure?", str)).data)

    server.add_tool(pay, name="pay")
    server.add_tool(pay, name="steal")
    server.add_tool(ask, name="ask")
    server.add_prompt(ask, name="ask")
    server.add_resource("bank://one", ask, name="one")
    server.add_resource("bank://two", ask, name="two")
    return server


def call(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "tools/call", {"name": name, "arguments": arguments}


async def state_of(server: Server, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """What the first round of a request gives to come again with."""
    async with asking_client(server) as client:
        return retry(await client.request(method, params), ANSWERS)


async def answer_to(server: Server, method: str, params: dict[str, Any]) -> bytes:
    """The answer to a request with the id 7, byte for byte."""
    async with Wire(server, MODERN, capabilities=EVERYTHING) as wire:
        wire.send(wire.request(method, params, id=7))
        return await asyncio.wait_for(wire.lines.get(), 10)


REFUSAL = json.dumps(
    {"jsonrpc": "2.0", "id": 7, "error": {"code": INVALID_PARAMS, "message": input_required.BAD_STATE}},
    separators=(",", ":"),
).encode()


# ── changed states ──


@pytest.mark.rule("MRTR-9", "MRTR-10")
async def test_a_state_with_any_byte_changed_is_refused(caplog: Any) -> None:
    server = bank()
    method, params = call("pay", amount=1)
    good = await state_of(server, method, params)
    token = good["requestState"]
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    answers = set()
    async with Wire(server, MODERN, capabilities=EVERYTHING) as wire:
        for place, mask in itertools.product(range(len(raw)), (0x01, 0x80)):
            changed = bytes([*raw[:place], raw[place] ^ mask, *raw[place + 1 :]])
            spelled = base64.urlsafe_b64encode(changed).rstrip(b"=").decode()
            wire.send(wire.request(method, {**params, **good, "requestState": spelled}, id=7))
            answers.add(await wire.lines.get())
        wire.send(wire.request(method, {**params, **good}, id=7))
        assert b"paid 1: yes" in await wire.lines.get()
    assert answers == {REFUSAL}
    assert "it was changed on the way" in caplog.text


@pytest.mark.rule("MRTR-9", "MRTR-10", "MRTR-14")
@pytest.mark.parametrize(
    "broken",
    [
        lambda token: "",
        lambda token: "x",
        lambda token: "eyJhbnN3ZXJzIjp7fX0",
        lambda token: token[:-1],
        lambda token: token + "A",
        lambda token: token + "=",
        lambda token: token + token,
        lambda token: token[: len(token) // 2],
        lambda token: token.swapcase(),
        lambda token: f" {token}",
        lambda token: token.replace("A", "Ä"),
        lambda token: "A" * 1_000_000,
        lambda token: "null",
    ],
)
async def test_what_is_no_state_is_refused(broken: Any) -> None:
    server = bank()
    method, params = call("pay", amount=1)
    good = await state_of(server, method, params)
    wrong = broken(good["requestState"])
    assert await answer_to(server, method, {**params, **good, "requestState": wrong}) == REFUSAL


@pytest.mark.rule("MRTR-14")
@pytest.mark.parametrize("wrong", [5, 1.5, True, None, [], {}])
async def test_a_state_must_be_a_string(wrong: Any) -> None:
    method, params = call("pay", amount=1)
    answer = json.loads(await answer_to(bank(), method, {**params, "requestState": wrong}))
    assert answer["error"]["code"] == INVALID_PARAMS


# ── states of others ──


@pytest.mark.rule("MRTR-11")
@pytest.mark.parametrize(
    ("issued", "used", "reason"),
    [
        (call("pay", amount=1), call("steal", amount=1), "name"),
        (call("pay", amount=1), call("pay", amount=2), "arguments"),
        (call("pay", amount=1), call("pay", amount=1, note={}), "arguments"),
        (call("pay", amount=1), call("pay"), "arguments"),
        (call("pay", amount=1, note={"a": 1}), call("pay", amount=1, note={"a": [1]}), "arguments"),
        (call("pay", amount=2**53), call("pay", amount=2**53 + 1), "arguments"),
        (call("ask"), ("prompts/get", {"name": "ask"}), "method"),
        (("prompts/get", {"name": "ask"}), call("ask"), "method"),
        (("resources/read", {"uri": "bank://one"}), ("resources/read", {"uri": "bank://two"}), "name"),
    ],
)
async def test_a_state_of_another_request_is_refused(issued: Any, used: Any, reason: str, caplog: Any) -> None:
    server = bank()
    good = await state_of(server, *issued)
    method, params = used
    assert await answer_to(server, method, {**params, **good}) == REFUSAL
    assert f"it was made for {OTHERS[reason]}" in caplog.text
    assert await answer_to(server, issued[0], {**issued[1], **good}) != REFUSAL


@pytest.mark.rule("MRTR-11")
@pytest.mark.parametrize(
    ("issued", "used"),
    [
        ({"amount": 1, "note": {"a": 1, "b": [2]}}, {"note": {"b": [2.0], "a": 1.0}, "amount": 1.0}),
        ({"amount": 9e15}, {"amount": 9_000_000_000_000_000}),
        ({}, None),
        (None, {}),
    ],
)
async def test_the_same_arguments_may_be_spelled_differently(issued: Any, used: Any) -> None:
    server = bank()
    good = await state_of(server, "tools/call", {"name": "pay", "arguments": issued})
    answer = await answer_to(server, "tools/call", {"name": "pay", "arguments": used, **good})
    assert b": yes" in answer


async def test_arguments_as_deep_as_a_message_may_be() -> None:
    deep: Any = {}
    for _ in range(480):
        deep = {"a": deep}
    server = bank()
    async with asking_client(server) as client:
        assert (await play(client, "pay", ANSWERS, {"note": deep})).text == "paid 0: yes"


@pytest.mark.rule("MRTR-10", "MRTR-11")
@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (lambda: bank("another"), "it was made for another server"),
        (lambda: bank(secret="not the same as the others"), "sealed with a key that this process does not have"),
    ],
)
async def test_a_state_of_another_server_is_refused(other: Any, reason: str, caplog: Any) -> None:
    method, params = call("pay", amount=1)
    good = await state_of(bank(), method, params)
    assert await answer_to(other(), method, {**params, **good}) == REFUSAL
    assert reason in caplog.text


async def test_a_state_may_be_sealed_by_an_older_key() -> None:
    method, params = call("pay", amount=1)
    good = await state_of(bank(), method, params)
    rotated = bank(secret=["a secret that is new", SECRET])
    assert b"paid 1: yes" in await answer_to(rotated, method, {**params, **good})


@pytest.mark.rule("MRTR-11")
async def test_a_state_that_has_expired_is_refused(monkeypatch: Any, caplog: Any) -> None:
    server = bank(answer_timeout=60)
    method, params = call("pay", amount=1)
    good = await state_of(server, method, params)
    now = input_required.time.time()
    monkeypatch.setattr(input_required.time, "time", lambda: now + 61)
    assert await answer_to(server, method, {**params, **good}) == REFUSAL
    assert "it has expired" in caplog.text


@pytest.mark.rule("MRTR-11")
async def test_a_state_of_another_caller_is_refused(caplog: Any) -> None:
    app = bank().asgi(identify=lambda scope: dict(scope["headers"]).get(b"x-user", b"").decode() or None)
    wires = {user: HttpWire(app, headers={"x-user": user}) for user in ("ada", "eve", None)}
    method, params = call("pay", amount=1)
    params["_meta"] = CAPABILITIES
    first = await wires["ada"].ask(method, params)
    assert is_interim(first)
    again = {**params, **retry(first, ANSWERS)}
    for user in ("eve", None):
        refused = await wires[user].post(method, again, id=7)
        assert refused.raw == REFUSAL
    assert "it was made for another caller" in caplog.text
    assert (await wires["ada"].ask(method, again))["content"][0]["text"] == "paid 1: yes"


async def test_only_the_log_knows_why(caplog: Any) -> None:
    server = bank()
    method, params = call("pay", amount=1)
    good = await state_of(server, method, params)
    with caplog.at_level(logging.WARNING):
        await answer_to(server, "tools/call", {"name": "steal", "arguments": {"amount": 1}, **good})
    assert [record.getMessage() for record in caplog.records] == [
        "tools/call: a request state was refused: it was made for another tool, prompt or resource"
    ]
    assert good["requestState"] not in caplog.text


async def test_nothing_can_be_read_out_of_a_state() -> None:
    server = bank()
    async with asking_client(server) as client:
        first = await client.request(*call("pay", amount=1, note={"secret": "xyzzy"}))
    token = first["requestState"]
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    assert not [word for word in (b"xyzzy", b"pay", b"Sure", b"elicitation", b"bank") if word in raw]


# ── answers ──


@pytest.mark.rule("MRTR-13", "MRTR-14")
@pytest.mark.parametrize(
    "responses", [[], "x", 5, True, {"a": None}, {"a": 5}, {"a": "x"}, {"a": [{}]}, {str(n): {} for n in range(1001)}]
)
async def test_answers_that_are_no_objects_are_refused(responses: Any) -> None:
    server = bank()
    method, params = call("pay", amount=1)
    good = await state_of(server, method, params)
    answer = json.loads(await answer_to(server, method, {**params, **good, "inputResponses": responses}))
    assert answer["error"]["code"] == INVALID_PARAMS
    assert "inputResponses" in answer["error"]["message"]


@pytest.mark.parametrize("responses", [None, {}])
async def test_no_answers_are_no_mistake(responses: Any) -> None:
    server = bank()
    method, params = call("pay", amount=1)
    good = await state_of(server, method, params)
    answer = json.loads(await answer_to(server, method, {**params, **good, "inputResponses": responses}))
    assert is_interim(answer["result"])


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.rule("MRTR-13")
@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"action": "dance"},
        {"action": None},
        {"action": "accept"},
        {"action": "accept", "content": None},
        {"action": "accept", "content": []},
        {"action": "accept", "content": "yes"},
        {"action": "accept", "content": {}},
        accepted(5),
        accepted(None),
        accepted(["yes"]),
        accepted({"value": "yes"}),
        accepted(nested(400)),
        accepted("x" * 1_000_000),
        {"role": "assistant", "content": {"type": "text", "text": "yes"}, "model": "m"},
    ],
    ids=lambda answer: str(answer)[:60],
)
async def test_an_answer_that_does_not_fit_is_told_and_not_taken(answer: Any) -> None:
    async with asking_client(bank()) as client:
        method, params = call("pay", amount=1)
        first = await client.request(method, params)
        given = dict.fromkeys(first["inputRequests"], answer)
        result = await client.request(
            method, {**params, "inputResponses": given, "requestState": first["requestState"]}
        )
        assert result["isError"]
        assert "paid" not in result["content"][0]["text"]


@pytest.mark.rule("MRTR-12")
async def test_the_same_state_twice_gives_the_same_result_and_one_effect() -> None:
    paid: list[str] = []
    server = Server("bank")

    @server.tool
    async def pay(ctx: Context) -> str:
        sure = await ctx.elicit("Sure?", str)
        number = await ctx.step("pay", lambda: paid.append(str(sure.data)) or len(paid))
        return f"payment {number}"

    async with asking_client(server) as client:
        first = await client.request(*call("pay"))
        again = {**call("pay")[1], **retry(first, ANSWERS)}
        results = [await client.request("tools/call", again) for _ in range(3)]
        results += await asyncio.gather(*(client.request("tools/call", again) for _ in range(5)))
        assert {result["content"][0]["text"] for result in results} == {"payment 1"}
        others = {**call("pay")[1], **retry(first, {"Sure?": "no"})}
        assert (await client.request("tools/call", others))["content"][0]["text"] == "payment 1"
    assert paid == ["yes"]


async def test_a_legacy_client_does_not_bring_states() -> None:
    server = bank()
    method, params = call("pay", amount=1)
    good = await state_of(server, method, params)
    async with Wire(server, "2025-11-25") as wire:
        result = await wire.ask(method, {**params, **good})
        assert result["isError"]  # it can't be asked, and what it brings means nothing


async def test_no_refusal_names_the_function_or_its_question() -> None:
    with pytest.raises(ServerError) as caught:
        async with asking_client(bank()) as client:
            await client.request("tools/call", {**call("pay", amount=1)[1], "requestState": "x"})
    assert str(caught.value) == f"{input_required.BAD_STATE} ({INVALID_PARAMS})"
