"""Request states: their seal, and clients that lie with states that were changed, stolen or kept too long."""

import asyncio
import base64
import json
import logging
import subprocess
import sys
from pprint import pformat
from traceback import TracebackException
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Context, Server
from dovetail.engine import input_required, request_state
from dovetail.engine.input_required import OTHERS
from dovetail.engine.request_state import CHANGED, MAX_TOKEN, NOT_OURS, TOO_LONG, UNKNOWN_KEY, BadSeal, Sealer, TooLarge
from dovetail.errors import INVALID_PARAMS
from http_wire import HttpWire
from replaying import EVERYTHING, accepted, asking_client, is_interim, retry
from wire import MODERN, Wire

OURS, OLD, FOREIGN = b"our own secret, 32 bytes of text", b"what we had last year", b"the secret of another server"
DATA = b'{"answers": {"name": "Ada"}}'
MOST = MAX_TOKEN // 4 * 3 - request_state.OVERHEAD  # bytes that just fit
VERSION, KEY_ID, SALT = slice(0, 1), slice(1, 9), slice(9, 25)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
sealer = Sealer([OURS])


def raw(token: str) -> bytes:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))


def spelled(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def refusal(token: str, by: Sealer = sealer) -> str:
    with pytest.raises(BadSeal) as caught:
        by.open(token)
    shown = f"{caught.value} {caught.value!r} {caught.value.reason}"
    assert not any(secret.decode() in shown for secret in (OURS, OLD, FOREIGN))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # nothing of the library is shown
    return caught.value.reason


# ── what is ours ──


@given(st.binary(max_size=2000), st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=3))
def test_round_trip(data: bytes, secrets: list[bytes]) -> None:
    token = Sealer(secrets).seal(data)
    assert set(token) <= set(ALPHABET)
    assert len(token) == request_state.token_length(len(data))
    assert Sealer(secrets).open(token) == data


def test_a_seal_tells_nothing_and_is_never_the_same() -> None:
    tokens = {sealer.seal(DATA) for _ in range(100)}
    assert len(tokens) == len({raw(token)[SALT] for token in tokens}) == 100
    assert not any(word in raw(token) for token in tokens for word in (b"answers", OURS[:8]))


def test_a_token_may_be_as_long_as_the_limit_and_no_longer() -> None:
    data = bytes(MOST)
    token = sealer.seal(data)
    assert len(token) == MAX_TOKEN == 262_144
    assert sealer.open(token) == data
    with pytest.raises(TooLarge) as caught:
        sealer.seal(data + b"x")
    assert caught.value.size == request_state.token_length(MOST + 1) > MAX_TOKEN


def test_there_is_no_sealer_without_a_secret() -> None:
    with pytest.raises(ValueError, match="secret"):
        Sealer([])


def test_a_sealer_does_not_show_its_secrets() -> None:
    both = Sealer([OURS, OLD])
    both.open(both.seal(DATA))
    for shown in (repr(both), str(both), repr(vars(both)), pformat(vars(both)), f"{both.secrets}"):
        assert OURS.decode() not in shown
        assert OLD.decode() not in shown
    assert both.secrets == (OURS, OLD)


@pytest.mark.parametrize("act", ["seal", "open"])
def test_nor_does_a_traceback_that_shows_variables(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Sealer([OURS, OLD])
    token = both.seal(DATA)
    if act == "open":
        both.__dict__.pop("_by_header")

    def broken(*_arguments: object) -> None:
        raise RuntimeError("no such algorithm")

    for place in ("cryptography.hazmat.primitives.kdf.hkdf.HKDF", "cryptography.hazmat.primitives.ciphers.aead.AESGCM"):
        with monkeypatch.context() as patch:
            patch.setattr(place, broken)
            with pytest.raises(RuntimeError) as caught:
                both.seal(DATA) if act == "seal" else both.open(token)
        shown = "".join(TracebackException.from_exception(caught.value, capture_locals=True).format())
        assert "_cipher" in shown or "_derived" in shown
        assert OURS.decode() not in shown
        assert OLD.decode() not in shown


# ── rotation ──


def test_the_first_secret_seals_and_all_of_them_open() -> None:
    before, during, after = Sealer([OLD]), Sealer([OURS, OLD]), Sealer([OURS])
    assert during.open(before.seal(DATA)) == DATA
    assert after.open(during.seal(DATA)) == DATA
    assert refusal(during.seal(DATA), before) == UNKNOWN_KEY


# ── attacks ──


def test_every_bit_of_every_byte_is_authenticated() -> None:
    good = raw(sealer.seal(DATA))
    for place in range(len(good)):
        for bit in range(8):
            changed = bytearray(good)
            changed[place] ^= 1 << bit
            expected = NOT_OURS if place < 1 else UNKNOWN_KEY if place < 9 else CHANGED
            assert refusal(spelled(bytes(changed))) == expected


@pytest.mark.parametrize("size", [0, 1, 2, 3, 28])
def test_a_token_that_was_cut_or_extended_is_refused(size: int) -> None:
    token = sealer.seal(DATA[:size])
    for end in range(len(token)):
        refusal(token[:end])
        refusal(token[end + 1 :])
    for more in ("A", "AA", "AAA", "AAAA", "A" * 1000, "=", "==", "===", "====", "\n", " ", token):
        refusal(token + more)
        refusal(more + token)


def test_another_spelling_of_the_same_bytes_is_refused() -> None:
    tokens = (sealer.seal(DATA + b"1") for _ in range(1000))
    token = next(made for made in tokens if "-" in made and "_" in made)
    spellings = {
        token + "=" * (-len(token) % 4),
        token.replace("-", "+"),
        token.replace("_", "/"),
        token[:20] + "\n" + token[20:],
        token[:20] + "!" + token[20:],
        *(token[:-1] + char for char in ALPHABET if raw(token[:-1] + char) == raw(token)),
    } - {token}
    assert len(spellings) == 5 + 15  # the last character has 4 bits that mean nothing
    assert {refusal(spelling) for spelling in spellings} == {NOT_OURS}


def test_another_servers_seal_is_refused_even_with_our_key_id() -> None:
    ours, foreign = raw(sealer.seal(DATA)), raw(Sealer([FOREIGN]).seal(DATA))
    assert refusal(spelled(foreign)) == UNKNOWN_KEY
    assert refusal(spelled(foreign[VERSION] + ours[KEY_ID] + foreign[SALT.start :])) == CHANGED
    both = Sealer([OURS, FOREIGN])  # one that has both keys still wants each at its place
    assert both.open(spelled(foreign)) == DATA
    assert refusal(spelled(foreign[VERSION] + ours[KEY_ID] + foreign[SALT.start :]), both) == CHANGED
    assert refusal(spelled(ours[VERSION] + foreign[KEY_ID] + ours[SALT.start :]), both) == CHANGED


@given(st.text() | st.text(ALPHABET, max_size=300) | st.binary(max_size=300).map(lambda tail: spelled(b"\x01" + tail)))
def test_anything_else_is_refused(text: str) -> None:
    assert refusal(text) in {NOT_OURS, UNKNOWN_KEY}


def test_a_huge_token_is_refused_before_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    longest, longer = (sealer.seal(bytes(MOST)) + more for more in ("", "A"))

    def decode(text: str) -> bytes:
        raise AssertionError("nothing that long is decoded")

    monkeypatch.setattr(request_state, "decode_base64url", decode)
    assert refusal(longer) == refusal("é" * (MAX_TOKEN + 1)) == TOO_LONG
    with pytest.raises(AssertionError):
        sealer.open(longest)


# ── what it costs who never asks ──
IN_PROCESS = """
import asyncio
from dovetail import Client, Server

server = Server("plain", secret="a secret that is long enough")

@server.tool
async def add(a: int, b: int) -> int:
    return a + b

async def main():
    async with Client(server) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
    server.engine.sealer

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("program", "loads"),
    [
        ("import dovetail", False),
        (IN_PROCESS, False),
        (IN_PROCESS + "server.engine.sealer.seal(b'')", True),
    ],
    ids=["import", "call", "seal"],
)
def test_only_a_seal_loads_the_library(program: str, loads: bool) -> None:
    code = f"{program}\nimport json, sys\nprint(json.dumps('cryptography' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) is loads


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
        (call("pay", note={"a": 1.5}), call("pay", note={"a": "1.5"}), "arguments"),
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
        ({"amount": 1.5, "note": {"a": 1, "b": [2]}}, {"note": {"b": [2], "a": 1}, "amount": 1.5}),
        ({}, None),
        (None, {}),
    ],
)
async def test_the_same_arguments_may_be_spelled_differently(issued: Any, used: Any) -> None:
    server = bank()
    good = await state_of(server, "tools/call", {"name": "pay", "arguments": issued})
    answer = await answer_to(server, "tools/call", {"name": "pay", "arguments": used, **good})
    assert b": yes" in answer


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


async def test_a_legacy_client_does_not_bring_states() -> None:
    server = bank()
    method, params = call("pay", amount=1)
    good = await state_of(server, method, params)
    async with Wire(server, "2025-11-25") as wire:
        result = await wire.ask(method, {**params, **good})
        assert result["isError"]  # it can't be asked, and what it brings means nothing
