"""The seal: what goes in comes out again, and nothing that anybody has touched, made or mixed up is opened."""

import base64
import json
import subprocess
import sys
from pprint import pformat
from traceback import TracebackException

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.engine import request_state
from dovetail.engine.request_state import CHANGED, MAX_TOKEN, NOT_OURS, TOO_LONG, UNKNOWN_KEY, BadSeal, Sealer, TooLarge

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


def test_version_and_key_id_lead_the_token() -> None:
    first, second, other = (raw(by.seal(DATA)) for by in (sealer, Sealer([OURS]), Sealer([FOREIGN])))
    assert first[VERSION] == second[VERSION] == other[VERSION] == b"\x01"
    assert first[KEY_ID] == second[KEY_ID] != other[KEY_ID]


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


def test_a_retired_secret_opens_nothing() -> None:
    assert refusal(Sealer([OLD]).seal(DATA), Sealer([OURS])) == UNKNOWN_KEY
    assert "DOVETAIL_SECRET" in UNKNOWN_KEY


def test_one_secret_may_be_given_twice() -> None:
    assert Sealer([OURS]).open(Sealer([OURS, OURS]).seal(DATA)) == DATA


# ── attacks ──


def test_every_bit_of_every_byte_is_authenticated() -> None:
    good = raw(sealer.seal(DATA))
    for place in range(len(good)):
        for bit in range(8):
            changed = bytearray(good)
            changed[place] ^= 1 << bit
            expected = NOT_OURS if place < 1 else UNKNOWN_KEY if place < 9 else CHANGED
            assert refusal(spelled(bytes(changed))) == expected


def test_every_character_counts() -> None:
    for data in (DATA, DATA + b"1", DATA + b"22"):  # the last character has 0, 2 or 4 bits that mean nothing
        token = sealer.seal(data)
        places = [*range(0, len(token), 7), len(token) - 1]
        others = [(place, char) for place in places for char in ALPHABET + "+/= \n\0é" if char != token[place]]
        for place, char in others:
            assert refusal(token[:place] + char + token[place + 1 :]) in {NOT_OURS, UNKNOWN_KEY, CHANGED}


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


def test_parts_of_two_tokens_do_not_fit_together() -> None:
    one, two = raw(sealer.seal(DATA)), raw(sealer.seal(DATA[::-1]))
    for cut in range(SALT.start + 1, len(one)):
        if (mixed := one[:cut] + two[cut:]) not in (one, two):  # the byte that differs may be the same by chance
            assert refusal(spelled(mixed)) == CHANGED


def test_another_servers_seal_is_refused_even_with_our_key_id() -> None:
    ours, foreign = raw(sealer.seal(DATA)), raw(Sealer([FOREIGN]).seal(DATA))
    assert refusal(spelled(foreign)) == UNKNOWN_KEY
    assert refusal(spelled(foreign[VERSION] + ours[KEY_ID] + foreign[SALT.start :])) == CHANGED
    both = Sealer([OURS, FOREIGN])  # one that has both keys still wants each at its place
    assert both.open(spelled(foreign)) == DATA
    assert refusal(spelled(foreign[VERSION] + ours[KEY_ID] + foreign[SALT.start :]), both) == CHANGED
    assert refusal(spelled(ours[VERSION] + foreign[KEY_ID] + ours[SALT.start :]), both) == CHANGED


@pytest.mark.parametrize(
    "token",
    ["", "=", "====", "A", "AAAA", "AQ", "é", "\ud800", "\x00", "null", "{}", "ａ" * 60, "😀" * 80, "A" * 500],
    ids=lambda token: ascii(token[:6]),
)
def test_garbage_is_refused(token: str) -> None:
    assert refusal(token) == NOT_OURS


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
