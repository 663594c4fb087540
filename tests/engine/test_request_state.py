"""Request states: their seal, and clients that lie with states that were changed, stolen or kept too long."""

import asyncio
import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Context, Server
from dovetail.engine import input_required, request_state
from dovetail.engine.request_state import CHANGED, MAX_TOKEN, NOT_OURS, TOO_LONG, UNKNOWN_KEY, BadSeal, Sealer, TooLarge
from dovetail.errors import INVALID_PARAMS
from http_wire import HttpWire
from server_requests import CAPABILITIES, accept, asking_client, is_input_required, retry
from stable_ids import stable
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
    shown = f"{caught.value} {caught.value!r}"
    assert not any(secret.decode() in shown for secret in (OURS, OLD, FOREIGN))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # nothing of the library is shown
    return str(caught.value)


# ── what is ours ──


@given(st.binary(max_size=2000), st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=3))
def test_round_trip(data: bytes, secrets: list[bytes]) -> None:
    token = Sealer(secrets).seal(data)
    assert set(token) <= set(ALPHABET)
    assert len(token) == request_state.token_length(len(data))
    assert Sealer(secrets).open(token) == data


def test_a_seal_reveals_nothing_and_is_never_the_same() -> None:
    tokens = {sealer.seal(DATA) for _ in range(100)}
    assert len(tokens) == len({raw(token)[SALT] for token in tokens}) == 100
    assert not any(word in raw(token) for token in tokens for word in (b"answers", OURS[:8]))


def test_a_token_may_be_as_long_as_the_limit_and_no_longer() -> None:
    data = bytes(MOST)
    token = sealer.seal(data)
    assert len(token) == MAX_TOKEN == 262_144
    assert sealer.open(token) == data
    with pytest.raises(TooLarge, match=f"would have {request_state.token_length(MOST + 1)} characters"):
        sealer.seal(data + b"x")


def test_there_is_no_sealer_without_a_secret() -> None:
    with pytest.raises(ValueError, match="secret"):
        Sealer([])


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


SECRET = "the same on all workers"
ANSWERS = {"Sure?": "yes"}
CAPABLE = {"io.modelcontextprotocol/clientCapabilities": CAPABILITIES}


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
    async with Wire(server, MODERN, capabilities=CAPABILITIES) as wire:
        wire.send(wire.request(method, params, id=7))
        return await asyncio.wait_for(wire.lines.get(), 10)


REFUSAL = json.dumps(
    {"jsonrpc": "2.0", "id": 7, "error": {"code": INVALID_PARAMS, "message": input_required.BAD_STATE}},
    separators=(",", ":"),
).encode()


@pytest.mark.rule("MRTR-9", "MRTR-10", "MRTR-14")
@pytest.mark.parametrize("wrong", ["", "eyJhbnN3ZXJzIjp7fX0", "cut", "A" * 1_000_000, 5, True, None, []], ids=stable)
async def test_what_is_no_state_is_refused(wrong: Any) -> None:
    server = bank()
    method, params = call("pay", amount=1)
    good = await state_of(server, method, params)
    state = good["requestState"][:-1] if wrong == "cut" else wrong
    answer = await answer_to(server, method, {**params, **good, "requestState": state})
    assert json.loads(answer)["error"]["code"] == INVALID_PARAMS
    assert answer == REFUSAL or not isinstance(wrong, str)


# ── states of others ──


PAY = call("pay", amount=1)
NOTES = ("resources/read", {"uri": "bank://one"}), ("resources/read", {"uri": "bank://two"})


@pytest.mark.rule("MRTR-10", "MRTR-11")
@pytest.mark.parametrize(
    ("issued", "used", "server", "reason"),
    [
        (PAY, call("steal", amount=1), {}, "whose name"),
        (PAY, call("pay", amount=2), {}, "whose arguments"),
        (call("ask"), ("prompts/get", {"name": "ask"}), {}, "whose method"),
        (*NOTES, {}, "whose name"),
        (PAY, PAY, {"name": "another"}, "whose server"),
        (PAY, PAY, {"secret": "not the same as the others"}, "a key that this process does not have"),
    ],
)
async def test_a_state_of_another_request_is_refused(
    issued: Any, used: Any, server: Any, reason: str, caplog: Any
) -> None:
    good = await state_of(bank(), *issued)
    method, params = used
    assert await answer_to(bank(**server), method, {**params, **good}) == REFUSAL
    assert reason in caplog.text
    assert await answer_to(bank(), issued[0], {**issued[1], **good}) != REFUSAL


@pytest.mark.rule("MRTR-11")
async def test_a_state_of_another_caller_is_refused(caplog: Any) -> None:
    app = bank().asgi(identify=lambda scope: dict(scope["headers"]).get(b"x-user", b"").decode() or None)
    wires = {user: HttpWire(app, headers={"x-user": user}) for user in ("ada", "eve", None)}
    method, params = call("pay", amount=1)
    params["_meta"] = CAPABLE
    first = await wires["ada"].ask(method, params)
    assert is_input_required(first)
    again = {**params, **retry(first, ANSWERS)}
    for user in ("eve", None):
        refused = await wires[user].post(method, again, id=7)
        assert refused.raw == REFUSAL
    assert "whose principal" in caplog.text
    assert (await wires["ada"].ask(method, again))["content"][0]["text"] == "paid 1: yes"


@pytest.mark.rule("MRTR-13")
@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"action": "accept", "content": []},
        accept(5),
        {"role": "assistant", "content": {"type": "text", "text": "yes"}, "model": "m"},
    ],
    ids=lambda answer: str(answer)[:60],
)
async def test_a_response_that_does_not_fit_is_reported_and_not_used(answer: Any) -> None:
    async with asking_client(bank()) as client:
        method, params = call("pay", amount=1)
        first = await client.request(method, params)
        given = dict.fromkeys(first["inputRequests"], answer)
        again = {**params, "inputResponses": given, "requestState": first["requestState"]}
        result = await client.request(method, again)
        assert result["isError"]
        assert "paid" not in result["content"][0]["text"]
