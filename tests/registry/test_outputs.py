"""Return values: schemas, checks, JSON text, and what is refused."""

import collections
import dataclasses
import datetime
import decimal
import enum
import inspect
import ipaddress
import pathlib
from collections.abc import Callable
from typing import Annotated, Any, Never, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from argument_types import (
    ID,
    TABLE,
    TABLE_IDS,
    Bounded,
    Box,
    Colour,
    Crate,
    Json,
    Level,
    Model,
    Movie,
    Node,
    Picky,
    Place,
    Point,
    nested,
    read,
)
from dovetail.errors import SetupError
from dovetail.protocol.jsonrpc import MAX_DEPTH
from dovetail.registry.outputs import Output, compile_output, compile_raw_output
from dovetail.schema.encode import OutputError, encode_json, to_jsonable
from stable_ids import stable


class Text(msgspec.Struct):
    text: str


class Image(msgspec.Struct):
    data: bytes


class Tagged(msgspec.Struct, tag_field="kind", tag="tagged", omit_defaults=True):
    text: str = ""


CONTENT = (Text, Image)


def compiled(annotation: Any, *content: type) -> Output:
    output = compile_output(annotation, where="tool t", unstructured=content)
    assert output is not None
    return output


def structure(output: Output, value: Any) -> Any:
    """What a client reads of a value that a function has returned."""
    return msgspec.json.decode(output.encode(value))


Ratio = enum.Enum("Ratio", {"HALF": 0.5})


@dataclasses.dataclass
class Explosive:
    x: int
    total: int = dataclasses.field(init=False, default=1)

    def __post_init__(self) -> None:
        if self.x != 1:
            raise AssertionError("constructed a second time")
        self.x = 2
        self.total = 1


class Shown(pydantic.BaseModel):
    size: int = pydantic.Field(serialization_alias="theSize")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.size


class Sealed(msgspec.Struct, tag=True, rename={"item": "an item"}, forbid_unknown_fields=True):
    item: int = 0


class Quoted(msgspec.Struct, tag_field='a"b', forbid_unknown_fields=True):
    item: int = 0


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


class Count(int):
    def __repr__(self) -> str:
        return "not this"


def own(base: Any, *arguments: Any, **options: Any) -> Any:
    """A value of a subclass."""
    return type("Own", (base,), {})(*arguments, **options)


class Frozen(collections.UserDict[str, int]):
    """A mapping that is no dict."""


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


INTEGER = {"type": "integer"}
STRING = {"type": "string"}


def record(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


POINT = record(["x"], x=INTEGER, y={**INTEGER, "default": 0})
EXPLOSIVE = record(["x"], x=INTEGER, total={**INTEGER, "default": 1})
SHOWN = record(["theSize", "double"], theSize=INTEGER, double={"readOnly": True, **INTEGER})
SEALED = {
    **record(["type"], type={"type": "string", "enum": ["Sealed"]}, **{"an item": {**INTEGER, "default": 0}}),
    "additionalProperties": False,
}
QUOTED = {
    **record(['a"b'], **{'a"b': {"type": "string", "enum": ["Quoted"]}, "item": {**INTEGER, "default": 0}}),
    "additionalProperties": False,
}
MOVIE = record(["title"], title=STRING, year={**INTEGER, "exclusiveMinimum": 1800})


@dataclasses.dataclass
class Report:
    title: str
    body: Any


class Album(TypedDict):
    cover: Image
    more: Any


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None), (2**80, 2**80), (Name("a"), "a"), (Count(5), 5), (Count(2**70), 2**70), (own(float, 0.5), 0.5),
        (b"hi", "aGk="), (own(bytes, b"hi"), "aGk="), (own(decimal.Decimal, "1.50"), "1.50"),
        (own(datetime.datetime, 2024, 5, 17, 10, tzinfo=datetime.UTC), "2024-05-17T10:00:00Z"),
        (own(datetime.date, 2024, 5, 17), "2024-05-17"), (own(datetime.timedelta, seconds=90), "PT90S"),
        (own(list, [Name("a")]), ["a"]), (own(dict, {Name("a"): Count(5)}), {"a": 5}),
        ({Count(1): Level.LOW}, {"1": 1}), (Level.LOW, 1), ((1, [2, {3}]), [1, [2, [3]]]), (frozenset({1}), [1]),
        (collections.deque([1]), [1]), (range(3), [0, 1, 2]), ({"a": 1}.keys(), ["a"]), ({"a": None}, {"a": None}),
        ({1: "a", ID: "b"}, {"1": "a", str(ID): "b"}), (collections.OrderedDict(a=1), {"a": 1}),
        (Frozen(a=1), {"a": 1}), (Colour.RED, "red"), (Ratio.HALF, 0.5), (datetime.date(2024, 5, 17), "2024-05-17"),
        (ID, str(ID)), (decimal.Decimal("1.50"), "1.50"), (pathlib.PurePosixPath("/a"), "/a"),
        (ipaddress.IPv4Address("10.0.0.1"), "10.0.0.1"), (Point(1), {"x": 1, "y": 0}), (Crate(4), {"size": 4}),
        (Place("a"), ["a", 3]), (Text("a"), {"text": "a"}), (Shown(size=1), {"theSize": 1, "double": 2}),
        ([{"a": Shown(size=1)}], [{"a": {"theSize": 1, "double": 2}}]),
        (pydantic.HttpUrl("http://a.example/"), "http://a.example/"), (pydantic.SecretStr("a"), "**********"),
    ],
    ids=stable,
)  # fmt: skip
def test_values(value: Any, expected: Any) -> None:
    found = to_jsonable(value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "nan"), ([1, {"a": float("inf")}], "inf"), ({"a": None, "b": float("-inf")}, "-inf"),
        (object(), "object"), (lambda: None, "function"), (ValueError("secret"), "ValueError"),
        ((n for n in "ab"), "generator"), (1j, "complex"), ({(1, 2): 3}, "tuple"), ("\ud800", "surrogate"),
        ({"a": 10**5000}, "return it as a string"), (CYCLE, "contains itself"),
        (nested(5000, lambda inner: [inner], 1), "nested deeper"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values_without_a_json_form(value: Any, words: str) -> None:
    with pytest.raises(OutputError, match=words):
        to_jsonable(value)


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}], ids=["lists", "objects"])
def test_the_depth_has_a_limit_of_its_own(wrap: Callable[[Any], Any]) -> None:
    value = nested(MAX_DEPTH, wrap, "leaf")
    assert encode_json(value).endswith(b"]" if isinstance(value, list) else b"}")
    for deeper in (wrap(value), [*[{}] * 1000, value]):
        with pytest.raises(OutputError, match="deeper than 500 levels"):
            encode_json(deeper)


@pytest.mark.parametrize(
    "value",
    [
        "[" * 2000, '\\"[{' * 2000, ["}" * 1000 + "[" * 3000], {"[" * 2000: "\\"}, [[{"a": []}]] * 2000,
        ["{", "\\"] * 900,
    ],
    ids=["openers", "quotes", "closers first", "a key", "width", "short strings"],
)  # fmt: skip
def test_width_and_brackets_in_strings_are_no_depth(value: Any) -> None:
    assert to_jsonable(value) == value


@pytest.mark.parametrize(
    "annotation",
    [
        ..., None, type(None), Any, object, str, Never, str | None, Annotated[str, "words"],
        TypeAliasType("Words", str), Text, Text | None, Text | Image | str, list[Text], list[Text | Image],
        list[Text | str], tuple[Text, Image], tuple[Text, ...], list[Text] | None, list[Text] | Text | str,
    ],
    ids=stable,
)  # fmt: skip
def test_annotations_without_an_output_schema(annotation: Any) -> None:
    annotation = inspect.Signature.empty if annotation is ... else annotation
    assert compile_output(annotation, where="tool t", unstructured=CONTENT) is None


JUDGED_BY_THEIR_AUTHORS = (Box, Picky, Crate, Model)  # who are asked when a value is read, and not when it is sent


@pytest.mark.parametrize("row", TABLE, ids=TABLE_IDS)
def test_what_is_read_can_be_returned_and_what_is_refused_can_not(row: tuple[Any, ...]) -> None:
    annotation, _, value, bad, _ = row
    output = compile_output(annotation, where="tool t", unstructured=CONTENT)
    if output is None or any(kind.__name__ in str(annotation) for kind in JUDGED_BY_THEIR_AUTHORS):
        return
    assert read(annotation, output.encode(value).decode()) == value
    if bad:
        with pytest.raises(OutputError):
            output.encode(msgspec.json.decode(bad))


@pytest.mark.parametrize(
    ("annotation", "schema", "good", "bad"),
    [
        (int, INTEGER, [(2.0, 2)], ["x", 1.5, True, None]),
        (float, {"type": "number"}, [(1, 1)], ["x", float("nan")]),
        (list[str], {"type": "array", "items": {"type": "string"}}, [(("a",), ["a"])], ["a", [1]]),
        (dict, {"type": "object"}, [({"a": 1}, {"a": 1})], [[]]),
        (int | None, {"anyOf": [INTEGER, {"type": "null"}]}, [(None, None)], ["x"]),
        (Colour, {"type": "string", "enum": ["red", "blue"]}, [("red", "red")], ["green"]),
        (Point, POINT, [({"x": 1}, {"x": 1})], [Point("a"), {}, None]),  # type: ignore[arg-type]
        (Movie, MOVIE, [({"title": "M", "more": 1}, {"title": "M", "more": 1})], [{}, {"title": 1}]),
        (Explosive, EXPLOSIVE, [(Explosive(1), {"x": 2, "total": 1})], [{"x": "a"}]),
        (Shown, SHOWN, [(Shown(size=1), {"theSize": 1, "double": 2})], [{"size": 1}, {"theSize": "a"}, None]),
        (Sealed, SEALED, [(Sealed(1), {"type": "Sealed", "an item": 1})], [{"type": "Sealed", "an item": 1, "b": 2}]),
        (Sealed, SEALED, [({"type": "Sealed"}, {"type": "Sealed"})], [{}, {"type": "Sealed", "an item": "a"}]),
        (Quoted, QUOTED, [(Quoted(1), {'a"b': "Quoted", "item": 1})], [{}, {'a"b': "Quoted", "b": 2}]),
        (Point | Movie, {"anyOf": [POINT, MOVIE]}, [(Point(1), {"x": 1, "y": 0})], [{}, {"title": "M", "year": 1}]),
    ],
    ids=stable,
)
def test_output_schemas(annotation: Any, schema: Any, good: list[tuple[Any, Any]], bad: list[Any]) -> None:
    output = compiled(annotation, *CONTENT)
    assert output.schema == schema
    assert output.is_object is (schema.get("type") == "object")
    for value, expected in good:
        assert structure(output, value) == expected
    for value in bad:
        with pytest.raises(OutputError):
            structure(output, value)


def test_recursive_output_schemas() -> None:
    output = compiled(Node)
    assert output.is_object
    assert structure(output, Node(1, [Node(2)])) == {"value": 1, "children": [{"value": 2, "children": []}]}
    with pytest.raises(OutputError, match=r"children\[0\]"):
        structure(output, Node(1, [Node("a")]))  # type: ignore[arg-type]
    anything = compiled(dict[str, Json])
    assert structure(anything, {"a": [None, {"b": "c"}]}) == {"a": [None, {"b": "c"}]}
    with pytest.raises(OutputError):
        structure(anything, {"a": 1.5})


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (dict[str, int], {"a": 1, "b": "x"}, 'b: expected an integer, got the string "x"'),
        (dict[str, int], {"a": 1, "two words": "x"}, r'value\["two words"\]: expected an integer, got the string "x"'),
        (list[dict[str, Bounded]], [{"a": Bounded(1), "b": Bounded(0)}], r"\[0\]\.b\.x: .*at least 1, got 0"),
        (dict[int, int], {"x": 1}, "annotation: x: is not an allowed name"),
        (dict[datetime.date, int], {"q": 1}, "annotation: q: is not an allowed name: it must be a date"),
        (int | None, "x", 'value: expected an integer or null, got the string "x"'),
        (tuple[int, str], [1], "value: must have at least 2 items, has 1"),
        (dict[str, decimal.Decimal], {"a": "zz"}, "must be a decimal number"),  # the schema does not say that
    ],
    ids=stable,
)
def test_the_error_names_what_is_wrong(annotation: Any, value: Any, words: str) -> None:
    with pytest.raises(OutputError, match=words):
        structure(compiled(annotation), value)


@pytest.mark.long
def test_a_large_result_is_read_to_its_end() -> None:
    output = compiled(list[int])
    assert structure(output, [1] * 120_000 + [2.0])[-1] == 2
    with pytest.raises(OutputError, match=r'\[200000\]: expected an integer, got the string "x"'):
        structure(output, [1] * 200_000 + ["x"])


@pytest.mark.parametrize(("depth", "words"), [(60, r"children\[0\]\.value: expected an integer"), (150, "too deeply")])
def test_a_deep_result_that_is_wrong(depth: int, words: str) -> None:
    node = nested(depth, lambda inner: Node(1, [inner]), Node("x"))  # type: ignore[arg-type]
    with pytest.raises(OutputError, match=words):
        structure(compiled(Node), node)


@pytest.mark.parametrize("annotation", [complex, list[complex], type[int], dict[float, int]], ids=stable)
def test_refused(annotation: Any) -> None:
    with pytest.raises(SetupError, match=r'tool t, return annotation.*annotate it -> Any, or pass output="text"'):
        compile_output(annotation, where="tool t")


def test_raw_output_schemas() -> None:
    schema = record(["a"], a=INTEGER)
    output = compile_raw_output(schema, where="tool t")
    assert (output.schema, output.is_object) == (schema, True)
    assert structure(output, {"a": 1, "b": Point(1)}) == {"a": 1, "b": {"x": 1, "y": 0}}
    wrong: dict[str, Any] = {"a: expected an integer": {"a": "x"}, "value: expected an object": [], "a: required": {}}
    for words, value in wrong.items():
        with pytest.raises(OutputError, match=f"the value does not fit its output schema: {words}"):
            structure(output, value)
    assert not compile_raw_output({"type": "array"}, where="tool t").is_object
    with pytest.raises(SetupError, match="output_schema must be a dict"):
        compile_raw_output([], where="tool t")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (list, [1, Image(b"a")]), (tuple[Any, ...], (Image(b"a"),)), (dict, {"a": Image(b"a")}),
        (dict[str, Any], {"a": 1, "b": Tagged("a")}), (Report, {"title": "a", "body": Text("a")}),
    ],
    ids=stable,
)  # fmt: skip
def test_content_where_any_value_is_declared(annotation: Any, value: Any) -> None:
    words = r"contains (Image|Text|Tagged), .*-> list\[(Image|Text|Tagged)\].*ToolResult"
    with pytest.raises(OutputError, match=words):
        compiled(annotation, *CONTENT, Tagged).encode(value)


def test_content_where_it_is_declared_and_values_that_look_like_content() -> None:
    assert structure(compiled(Album, *CONTENT), {"cover": Image(b"a"), "more": 1}) == {
        "cover": {"data": "YQ=="},
        "more": 1,
    }
    alike = {"a": {"kind": "tagged", "text": "a"}, "b": {"data": "YQ=="}, "c": [{"text": '{"data":'}]}
    assert structure(compiled(dict[str, Any], *CONTENT, Tagged), alike) == alike


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters()), st.binary())
    | st.one_of(st.datetimes(), st.decimals(), st.just(object())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner),
    max_leaves=8,
)


@given(VALUES)
def test_any_value_is_sent_or_refused(value: Any) -> None:
    try:
        found = to_jsonable(value)
    except OutputError:
        return
    assert msgspec.json.decode(msgspec.json.encode(found)) == found
