"""From JSON text to keyword arguments: types, second readings, and words for what does not fit."""

import datetime
import json
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from argument_types import TABLE, Colour, Json, Level, Model, Node, Picky, Point, compiled, problems, read

from dovetail.errors import ArgumentError
from dovetail.registry.arguments import Arguments
from dovetail.registry.fields import Field
from dovetail.registry.functions import inspect_function
from stable_ids import stable


@pytest.mark.parametrize(
    ("annotation", "good", "value", "bad", "line"),
    TABLE,
    ids=[f"{stable(row[0])}-{number}" for number, row in enumerate(TABLE)],
)
def test_types(annotation: Any, good: str, value: Any, bad: str, line: str) -> None:
    arguments = compiled(annotation)
    found = arguments.decode(f'{{"x": {good}}}'.encode())["x"]
    assert found == value
    assert type(found) is type(value)
    if bad:
        first = problems(lambda: arguments.decode(f'{{"x": {bad}}}'.encode()))[0]
        assert first.startswith(line)
    text = json.dumps(arguments.schema)
    assert not {"anyOf", "oneOf", "allOf", "$ref"} & arguments.schema.keys(), text
    assert "oneOf" not in text or "Circle" in str(annotation)


def test_all_problems_are_named() -> None:
    def tool(limit: int, since: datetime.date, tags: list[str], where: Point, ok: int = 1) -> None: ...

    raw = b'{"limit": "ten", "since": "2024-02-30", "tags": ["a", 5], "where": {"y": "b"}, "ok": 2, "more": 1}'
    found = problems(lambda: Arguments(inspect_function(tool)).decode(raw))
    for name in ("limit", "since", "tags[1]", "where.x", "where.y", "more"):
        assert [line for line in found if name in line], f"{name} in {found}"
    assert not [line for line in found if line.startswith("ok")]
    assert 'limit: expected an integer, got the string "ten"' in found


def test_unknown_and_missing_names() -> None:
    def tool(city: str, days: int = 1) -> None: ...

    lines = problems(lambda: Arguments(inspect_function(tool)).decode(b'{"town": "Rome"}'))
    assert len(lines) == 2
    assert any("town" in line and "city" in line and "days" in line for line in lines)
    assert any("city" in line and "town" not in line for line in lines)


def test_the_error_names_its_subject() -> None:
    with pytest.raises(ArgumentError, match="Invalid arguments for tool:\n- x: expected an integer"):
        read(int, '"ten"')


# The second reading


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int, '"5"', 5),
        (int, '"5.0"', 5),
        (float, '"1.5"', 1.5),
        (bool, '"true"', True),
        (None, '"null"', None),
        (int | None, '"null"', None),
        (list[int], '"[1, 2]"', [1, 2]),
        (list[int], '["1", 2.0]', [1, 2]),
        (list[int], '"[\\"1\\"]"', [1]),
        (dict[str, int], '"{\\"a\\": \\"1\\"}"', {"a": 1}),
        (Point, '"{\\"x\\": 1}"', Point(1)),
        (Point, '{"x": "1"}', Point(1)),
        (Point | None, '{"x": "1"}', Point(1)),
        (list[Point] | None, '"[{\\"x\\": 1}]"', [Point(1)]),
        (tuple[int, str], '["1", "2"]', (1, "2")),
        (Node, '{"value": 1, "children": "[{\\"value\\": \\"2\\"}]"}', Node(1, [Node(2)])),
        (Model, '"{\\"size\\": 1}"', Model(size=1)),
        (Level, '"2"', Level.HIGH),
        (Literal[1, 2], '"2"', 2),
        (Annotated[int, Field(ge=1)], '"5"', 5),
    ],
    ids=stable,
)
def test_strings_that_hold_json(annotation: Any, text: str, value: Any) -> None:
    assert read(annotation, text) == value
    problems(lambda: read(annotation, text, lenient=False))


@pytest.mark.parametrize(
    "annotation", [str, str | int, str | None, list[int] | str, Any, Json, Literal["5", 5]], ids=stable
)
@pytest.mark.parametrize("text", ["5", "[1]", "null", "{}"])
def test_strings_stay_strings_where_they_are_welcome(annotation: Any, text: str) -> None:
    if annotation == Literal["5", 5] and text != "5":
        return
    assert read(annotation, json.dumps(text)) == text
    assert read(list[annotation], json.dumps([text])) == [text]


@pytest.mark.parametrize("text", ['"five"', '""', '"[1, 2"', '"5"', '"true"', '"NaN"'])
def test_strings_that_hold_something_else(text: str) -> None:
    assert problems(lambda: read(list[int], text)) == [f"x: expected an array, got the string {text}"]


def test_a_wrong_value_inside_a_held_string_is_named() -> None:
    assert problems(lambda: read(list[int], '"[1, null]"')) == ["x[1]: expected an integer, got null"]


# What only some types have


def test_a_time_without_a_zone_is_welcome_everywhere() -> None:
    def tool(when: datetime.datetime, code: Annotated[str, Field(pattern="^a")] = "a") -> None: ...

    arguments = Arguments(inspect_function(tool))
    assert arguments.schema["properties"]["when"] == {"type": "string", "format": "date-time"}
    assert arguments.decode(b'{"when": "2024-05-17T10:00:00"}')["when"] == datetime.datetime(2024, 5, 17, 10)
    lines = problems(lambda: arguments.decode(b'{"when": "2024-05-17T10:00:00", "code": "b"}'))
    assert lines == ['code: must match the pattern ^a, got "b"']
    aware = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
    assert problems(lambda: read(aware, '"2024-05-17T10:00:00"'))[0].startswith("x: must have a time zone")


@pytest.mark.parametrize(("kind", "text"), [(datetime.datetime, "2024-05-17T10:00:00"), (datetime.time, "10:00:00")])
def test_zones_that_are_wanted_or_not(kind: Any, text: str) -> None:
    naive, aware = Annotated[kind, msgspec.Meta(tz=False)], Annotated[kind, msgspec.Meta(tz=True)]
    assert read(naive, f'"{text}"').tzinfo is None
    assert read(aware, f'"{text}Z"').tzinfo is not None
    assert problems(lambda: read(naive, f'"{text}Z"')) == [f'x: must have no time zone, got "{text}Z"']
    assert problems(lambda: read(aware, f'"{text}"'))[0].startswith("x: must have a time zone")
    assert "format" not in compiled(naive).schema["properties"]["x"]


def test_formats_are_checked() -> None:
    email = Annotated[str, Field(format="email")]
    assert read(email, '"a@b.example"') == "a@b.example"
    assert problems(lambda: read(email, '"nobody"')) == ['x: must be an email address, got "nobody"']


class Coercing(pydantic.BaseModel):
    tags: Annotated[list[int], pydantic.BeforeValidator(lambda v: v.split(",") if isinstance(v, str) else v)]


def test_pydantic_models_are_read_strictly_unless_they_coerce() -> None:
    assert problems(lambda: read(Model, '{"size": true}')) == ["x.size: expected an integer, got true"]
    assert read(Model, '{"size": 5.0}') == Model(size=5)
    assert read(Coercing, '{"tags": "1,2"}') == Coercing(tags=[1, 2])


def test_an_author_s_own_error_reaches_the_caller_at_its_place() -> None:
    assert problems(lambda: read(list[Picky], '[{"x": 1}, {"x": 13}]')) == ["x[1]: thirteen brings bad luck"]


# Defaults


def test_defaults_are_applied_and_not_shared() -> None:
    def tool(
        a: int = 1,
        b: list[int] = [1],  # noqa: B006
        c: dict[str, list[int]] = {"a": []},  # noqa: B006
        d: Annotated[list[int], pydantic.Field(default_factory=list)] = ...,  # type: ignore[assignment]
        e: Point = Point(1),  # noqa: B008
        f: object = tool_default,
    ) -> None: ...

    arguments = Arguments(inspect_function(tool))
    first = arguments.decode(b"{}")
    first["b"].append(2)
    first["c"]["a"].append(2)
    second = arguments.decode(b"{}")
    assert (second["a"], second["b"], second["c"]) == (1, [1], {"a": []})
    assert second["e"] == Point(1)
    assert second["f"] is tool_default
    properties = arguments.schema["properties"]
    assert properties["b"]["default"] == [1]
    assert properties["e"]["default"] == {"x": 1, "y": 0}
    assert "default" not in properties["f"]
    assert "required" not in arguments.schema


tool_default = object()


def test_default_factories() -> None:
    def tool(x: list[int] = pydantic.Field(default_factory=lambda: [1])) -> None: ...  # noqa: B008

    arguments = Arguments(inspect_function(tool))
    arguments.decode(b"{}")["x"].append(2)
    assert arguments.decode(b"{}") == {"x": [1]}


def test_a_default_of_none_welcomes_null() -> None:
    arguments = compiled(Annotated[int, Field(ge=1, description="d")], None)
    assert arguments.decode(b'{"x": null}') == arguments.decode(b"{}") == {"x": None}
    assert arguments.schema["properties"]["x"] == {
        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}],
        "description": "d",
        "default": None,
    }
    assert compiled(int | None, None).schema["properties"]["x"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert compiled(Any, None).schema["properties"]["x"] == {"default": None}


def test_descriptions() -> None:
    def tool(a: int, b: Annotated[int, "beside"], c: Colour, d: Point) -> None:
        """Do it.

        Args:
            a: from the docstring
            b: not this
            c: which colour
        """

    properties = Arguments(inspect_function(tool)).schema["properties"]
    assert properties["a"]["description"] == "from the docstring"
    assert properties["b"]["description"] == "beside"
    assert properties["c"] == {"type": "string", "enum": ["red", "blue"], "description": "which colour"}
    assert "description" not in properties["d"]


def test_a_schema_without_parameters() -> None:
    arguments = Arguments(inspect_function(lambda: None, name="nothing"))
    assert arguments.schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert arguments.decode(b"{}") == {}
    assert len(problems(lambda: arguments.decode(b'{"a": 1}'))) == 1
