"""Arguments that mean harm, and arguments of any making: they are read, or explained, in bounded time."""

import datetime
import decimal
import json
import uuid
from typing import Annotated, Any, Literal

import msgspec
import pytest
from argument_types import (
    Bird,
    Bounded,
    Cat,
    Colour,
    Dog,
    Fish,
    Json,
    Model,
    Node,
    Odd,
    Pair,
    Place,
    Point,
    compiled,
    problems,
    raw_arguments,
    read,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import ArgumentError
from dovetail.registry.fields import Field
from dovetail.registry.outputs import encode_json
from stable_ids import stable

# Hostile input


@pytest.mark.seed("S2-75")
@pytest.mark.timeout(60)
def test_patterns_never_backtrack() -> None:
    arguments = compiled(Annotated[str, Field(pattern="^(a+)+$")])
    nested = compiled(Bounded)
    hostile = "a" * 50_000 + "!"
    assert len(problems(lambda: arguments.decode(json.dumps({"x": hostile}).encode()))) == 1
    assert len(problems(lambda: nested.decode(json.dumps({"x": {"x": 1, "code": hostile}}).encode()))) == 1
    assert arguments.decode(b'{"x": "aaa"}') == {"x": "aaa"}


@pytest.mark.parametrize("annotation", [Colour, Odd, uuid.UUID, dict[uuid.UUID, int], Pair[str]], ids=stable)
def test_words_that_look_like_ours_cost_nothing(annotation: Any) -> None:
    hostile = " - at `$" * 100_000
    arguments = compiled(annotation)
    for value in (hostile, {hostile: 1}, [hostile]):
        with pytest.raises(ArgumentError) as caught:
            arguments.decode(json.dumps({"x": value}).encode())
        assert all(len(line) < 1000 for line in caught.value.problems)


@pytest.mark.parametrize("annotation", [int, Any, list[int], Json, Node, Model])
@pytest.mark.parametrize(
    "raw",
    [
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"y": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["arrays", "objects", "unknown"],
)
def test_deep_nesting(annotation: Any, raw: bytes) -> None:
    assert problems(lambda: compiled(annotation).decode(raw)) == ["arguments: nested too deeply"]


@pytest.mark.parametrize(
    "raw",
    [b'{"x": "\xff"}', b'{"\xff": 1}', b'{"x": "\\ud800"}', b'{"x": 1', b"", b"{'x': 1}", b'{"x": NaN}'],
    ids=stable,
)
def test_text_that_is_no_json(raw: bytes) -> None:
    for annotation in (str, int, Any):
        assert len(problems(lambda a=annotation: compiled(a).decode(raw))) == 1  # type: ignore[misc]


@pytest.mark.parametrize("raw", [b"[]", b"5", b"null", b'"x"'])
def test_arguments_that_are_no_object(raw: bytes) -> None:
    assert len(problems(lambda: compiled(int).decode(raw))) == 1


def test_the_last_of_two_equal_keys_wins() -> None:
    assert compiled(int).decode(b'{"x": 1, "x": 2}') == {"x": 2}


def test_raw_bytes_of_a_larger_message() -> None:
    class Envelope(msgspec.Struct):
        arguments: msgspec.Raw

    envelope = msgspec.json.decode(b'{"arguments": {"x": "5"}}', type=Envelope)
    assert compiled(int).decode(envelope.arguments) == {"x": 5}


def test_huge_integers() -> None:
    assert read(int, str(2**70)) == 2**70
    assert read(Annotated[int, Field(le=2**70)], str(2**70)) == 2**70
    assert len(problems(lambda: read(Annotated[int, Field(le=2**70)], str(2**70 + 1)))) == 1
    assert read(Any, f"[{2**70}]") == [2**70]
    assert read(Annotated[int, Field(ge=0)], str(2**70)) == 2**70


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 5000], ids=["large", "small", "long"])
def test_numbers_that_are_too_large(number: str) -> None:
    for annotation in (int, float, Any, str, int | None, list[int], Point):
        assert problems(lambda a=annotation: read(a, number)) == ["x: is too large a number"]  # type: ignore[misc]
    assert problems(lambda: read(list[int], f"[1, {number}]")) == ["x[1]: is too large a number"]
    assert problems(lambda: read(dict[str, int], f'{{"a": {number}}}')) == ["x[…]: is too large a number"]
    assert problems(lambda: raw_arguments().decode(b'{"size": %b}' % number.encode())) == [
        "arguments: hold too large a number"
    ]


# Round trips


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NODES: Any = st.recursive(
    st.builds(Node, st.integers(0, 9)),
    lambda inner: st.builds(Node, st.integers(0, 9), st.lists(inner, max_size=2)),
    max_leaves=4,
)
STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(),
    bool: st.booleans(),
    bytes: st.binary(),
    Any: JSON_VALUES,
    datetime.datetime: st.datetimes(timezones=st.just(datetime.UTC)),
    datetime.date: st.dates(),
    datetime.time: st.times(),
    uuid.UUID: st.uuids(),
    decimal.Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    Colour: st.sampled_from(Colour),
    Odd: st.sampled_from(Odd),
    Literal["a", 1, None]: st.sampled_from(["a", 1, None]),
    list[int] | None: st.none() | st.lists(st.integers()),
    dict[int, str]: st.dictionaries(st.integers(), st.text()),
    tuple[int, str]: st.tuples(st.integers(), st.text()),
    set[int]: st.sets(st.integers()),
    Point: st.builds(Point, st.integers(), st.integers()),
    Bounded: st.builds(Bounded, st.integers(1)),
    Node: NODES,
    Dog | Bird: st.builds(Dog, st.text()) | st.builds(Bird, st.text()),
    Cat | Fish: st.builds(Cat, st.integers()) | st.builds(Fish, st.floats(-9, 0)),
    Pair[str]: st.builds(Pair, st.text(), st.integers(0)),
    Place: st.builds(Place, st.text(), st.integers(1)),
    Model: st.builds(Model, size=st.integers(0, 100), tags=st.lists(st.text())),
}
COMPILED = {annotation: compiled(annotation) for annotation in STRATEGIES}


@pytest.mark.parametrize("annotation", STRATEGIES, ids=stable)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_round_trips(annotation: Any, data: st.DataObject) -> None:
    value = data.draw(STRATEGIES[annotation])
    assert COMPILED[annotation].decode(encode_json({"x": value})) == {"x": value}


@pytest.mark.parametrize("annotation", STRATEGIES, ids=stable)
@settings(max_examples=25, deadline=None)
@given(value=JSON_VALUES)
def test_any_json_is_read_or_explained(annotation: Any, value: Any) -> None:
    lines = ["x"]
    try:
        COMPILED[annotation].decode(encode_json({"x": value}))
    except ArgumentError as error:
        lines = error.problems
    assert lines
    assert all(line.startswith("x") for line in lines)
