"""Cursors and base64url: their round trips, and the refusal of everything else."""

import base64
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import INVALID_PARAMS, ProtocolError
from dovetail.protocol.pagination import (
    CLOCK_SKEW,
    CURSOR_TTL,
    decode_base64url,
    decode_cursor,
    encode_base64url,
    encode_cursor,
)

KEY = b"k" * 32
NOW = 1_800_000_000.75
POSITIONS = st.integers(0, 2**64 - 1)


def make(position: int = 7, *, scope: str = "tools", key: bytes = KEY, now: float = NOW) -> str:
    return encode_cursor(position, scope=scope, key=key, now=now)


def read(cursor: str | None, *, scope: str = "tools", keys: Sequence[bytes] = (KEY,), now: float = NOW) -> int:
    return decode_cursor(cursor, scope=scope, keys=keys, now=now)


def refused(cursor: str, **where: object) -> bool:
    with pytest.raises(ProtocolError) as caught:
        read(cursor, **where)  # type: ignore[arg-type]
    assert caught.value.code == INVALID_PARAMS
    assert caught.value.http_status == 200
    return True


@pytest.mark.rule("PAGE-2", "PAGE-8")
@given(POSITIONS, st.text(), st.binary(min_size=1), st.floats(0, 2**32 - 1), st.floats(-CLOCK_SKEW + 1, CURSOR_TTL - 1))
def test_round_trip(position: int, scope: str, key: bytes, now: float, later: float) -> None:
    cursor = encode_cursor(position, scope=scope, key=key, now=now)
    assert cursor.isascii()
    assert decode_cursor(cursor, scope=scope, keys=[key], now=now + later) == position


@pytest.mark.rule("PAGE-5")
@pytest.mark.parametrize("cursor", [None, ""])
def test_no_cursor_and_an_empty_one_are_the_first_page(cursor: str | None) -> None:
    assert read(cursor) == 0


@pytest.mark.rule("PAGE-3")
def test_every_bit_of_every_byte_is_signed() -> None:
    raw = base64.urlsafe_b64decode(make())
    for place in range(len(raw)):
        for bit in range(8):
            changed = bytearray(raw)
            changed[place] ^= 1 << bit
            assert refused(base64.urlsafe_b64encode(changed).decode())


@pytest.mark.rule("PAGE-3")
def test_another_spelling_of_the_same_bytes_is_refused() -> None:
    cursor = next(made for made in map(make, range(1000)) if "-" in made and "_" in made)
    spellings = {
        cursor.rstrip("="), cursor + "=", cursor + "====", cursor + "\n", " " + cursor, cursor.replace("-", "+"),
        cursor.replace("_", "/"), cursor[:20] + "\n" + cursor[20:],
    }  # fmt: skip
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    stem, pad = cursor.rstrip("="), cursor.count("=")
    spellings |= {stem[:-1] + char + "=" * pad for char in alphabet}  # the last character has unused bits
    spellings -= {cursor}
    assert all(refused(spelling) for spelling in spellings)


@pytest.mark.rule("PAGE-3")
@pytest.mark.parametrize(
    "cursor",
    ["a", "AAAA", "é", "\ud800", "\x00", "=", "====", "null", "0", "1" * 100_000, "=" * 100_000],
    ids=lambda cursor: ascii(cursor[:8]),
)
def test_garbage_is_refused(cursor: str) -> None:
    assert refused(cursor)


@pytest.mark.rule("PAGE-3", "PAGE-8")
@pytest.mark.parametrize("where", [{"scope": "prompts"}, {"scope": ""}, {"keys": [b"x" * 32]}, {"keys": ()}])
def test_a_cursor_belongs_to_its_list_and_its_server(where: dict[str, object]) -> None:
    assert refused(make(), **where)


@pytest.mark.rule("PAGE-2", "PAGE-3")
def test_a_key_that_was_replaced_is_good_until_it_is_retired() -> None:
    cursor, old, new = make(3), KEY, b"n" * 32
    assert read(cursor, keys=[new, old]) == read(make(3, key=new), keys=[new, old]) == 3
    assert refused(cursor, keys=[new])


@pytest.mark.rule("PAGE-2", "PAGE-3")
@pytest.mark.parametrize(
    ("age", "good"),
    [(0, True), (CURSOR_TTL - 1, True), (CURSOR_TTL + 1, False), (10 * CURSOR_TTL, False), (-59, True), (-120, False)],
)
def test_a_cursor_lives_for_a_day(age: float, good: bool) -> None:
    cursor = make(3)
    assert read(cursor, now=NOW + age) == 3 if good else refused(cursor, now=NOW + age)


# Base64 for URLs


@given(st.binary(max_size=100))
def test_there_and_back(data: bytes) -> None:
    text = encode_base64url(data)
    assert text == base64.urlsafe_b64encode(data).decode().rstrip("=")
    assert decode_base64url(text) == data


@pytest.mark.parametrize("text", ["A", "AB", "AA==", "AA=", "A A", "AA\n", "+/+/", "AAA.", "é", "\udc80", "AAAAA"])
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        decode_base64url(text)
