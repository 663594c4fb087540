"""The content of a request state, the request that it is bound to, and `inputResponses`."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from dovetail.errors import INVALID_PARAMS, ProtocolError
from dovetail.protocol.request_state import Binding, Round, decode_round, encode_round, read_responses


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def binding(**changes: Any) -> Binding:
    given: dict[str, Any] = {
        "method": "tools/call", "name": "pay", "arguments": raw({"amount": 1}), "principal": "ada", "server": "bank",
    }  # fmt: skip
    return Binding.from_request(**{**given, **changes})


# ── what a state belongs to ──


@pytest.mark.rule("MRTR-11")
@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("method", "prompts/get"), ("name", "Pay"), ("arguments", raw({"amount": 2})),
        ("arguments", raw({"amount": "1"})), ("arguments", raw({"amount": True})),
        ("arguments", raw({"amount": 1, "more": None})), ("arguments", raw({"amount": 10**30})), ("principal", "eve"),
        ("principal", None), ("principal", ""), ("server", "bank 2"),
    ],
)  # fmt: skip
def test_every_part_makes_a_difference(part: str, other: Any) -> None:
    assert binding().difference(binding(**{part: other})) == part


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":[2,{"c":3.5,"d":4}]}', '{ "b": [2, {"d": 4, "c": 3.5}], "a": 1 }'),
        ('{"a":"é"}', '{"a":"\\u00e9"}'),
        ("{}", "null"),
    ],
)
def test_arguments_are_the_same_however_they_are_spelled(one: str, other: str) -> None:
    assert binding(arguments=Raw(one.encode())) == binding(arguments=Raw(other.encode()))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
ARGUMENTS = st.dictionaries(st.text(max_size=5), JSON, max_size=4)


def same(one: Any, other: Any) -> bool:
    """True is not 1, and neither is 1.0."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


@given(ARGUMENTS, ARGUMENTS)
def test_arguments_are_bound_by_what_they_mean(one: Any, other: Any) -> None:
    shuffled = dict(reversed(list(one.items())))
    assert binding(arguments=raw(one)) == binding(arguments=raw(shuffled))
    assert (binding(arguments=raw(one)) == binding(arguments=raw(other))) == same(one, other)


# ── what is sealed ──


def test_a_round_survives_encoding() -> None:
    whole = Round(
        call="c", number=3, expires=1e9, ends=2e9, binding=binding(), requested=["a-1"], wasted=2,
        responses={"b-1": raw({"action": "decline"})}, steps={"pay#1": raw([1, None])}, state=raw({"own": True}),
    )  # fmt: skip
    assert decode_round(encode_round(whole)) == whole


@pytest.mark.parametrize("sealed", [b"", b"null", b"{}", b"[]", b'{"call":1}', b"\xff"])
def test_other_bytes_than_a_round_are_refused(sealed: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        decode_round(sealed)


# ── answers ──


def test_responses_stay_encoded() -> None:
    given = Raw(b'{ "a" : {"action":"accept", "x":1e999} , "b":{} }')
    assert read_responses(given) == {"a": Raw(b'{"action":"accept", "x":1e999}'), "b": Raw(b"{}")}


@pytest.mark.parametrize("given", [UNSET, Raw(b"{}"), Raw(b"null")])
def test_no_responses(given: Any) -> None:
    assert read_responses(given) == {}


def test_so_many_responses_are_read() -> None:
    given = {str(number): {} for number in range(1000)}
    assert read_responses(raw(given)).keys() == given.keys()


@pytest.mark.rule("MRTR-13", "MRTR-14")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"[]", "inputResponses must be an object"),
        (b'{"a":null}', "inputResponses.a must be an object"),
        (b'{"a":{},"b":[]}', "inputResponses.b must be an object"),
        (raw({str(n): {} for n in range(1001)}), "may hold 1000 answers at most"),
        (raw({"k" * 1000: 1}), "inputResponses." + "k" * 100 + " must"),
    ],
)
def test_a_malformed_response_is_refused_in_words(given: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match="Invalid params: ") as caught:
        read_responses(Raw(given))
    assert words in caught.value.message
    assert caught.value.code == INVALID_PARAMS


@given(JSON)
def test_any_value_is_read_or_refused(given: Any) -> None:
    fits = given is None or (isinstance(given, dict) and all(isinstance(each, dict) for each in given.values()))
    with contextlib.nullcontext() if fits else pytest.raises(ProtocolError):
        assert read_responses(raw(given)).keys() == (given or {}).keys()
