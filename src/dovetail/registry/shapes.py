"""The kinds of JSON value that a Python type can describe, as a small tree between annotations and everything else.

`annotations.py` makes the tree; `schemas.py` writes it down as JSON Schema; `readers.py` turns it into a type that
msgspec decodes. A `Definition` is a part with a name; it may contain itself.
"""

import datetime
import decimal
import sys
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from dovetail.registry.fields import NO_CONSTRAINTS, Constraints
from dovetail.registry.models import Model
from dovetail.registry.records import RecordClass, RecordField

NUMBER = frozenset({"ge", "gt", "le", "lt", "multiple_of"})
LENGTH = frozenset({"min_length", "max_length"})
TEXT = LENGTH | {"pattern"}
CLOCK = frozenset({"tz"})


class Shape(msgspec.Struct, eq=False, kw_only=True):
    """One place in a value."""

    constraints: Constraints = NO_CONSTRAINTS
    altered: bool = False  # msgspec, reading the annotation by itself, would read something else


class Anything(Shape):
    """Any JSON value."""


class ScalarKind(msgspec.Struct, frozen=True):
    """A row of the table below."""

    type: type
    json: str  # the JSON type
    keywords: Mapping[str, Any] = {}  # what the schema says beside the type
    limits: frozenset[str] = frozenset()  # the constraints that make sense
    read: Callable[[Any], Any] | None = None  # for what msgspec does not know: from a string


class Scalar(Shape):
    """A value without parts."""

    kind: ScalarKind


class Choice(Shape):
    """One of a few values: `Literal` or `Enum`."""

    pairs: tuple[tuple[Any, Any], ...]  # (in JSON, in Python), in declared order
    native: Any = None  # the type for msgspec, if it can read the choice
    description: str | None = None  # the class's own


class Array(Shape):
    """Any number of alike items."""

    item: Shape
    container: Callable[[Any], Any]


class FixedArray(Shape):
    """A tuple: each item has its own shape."""

    items: tuple[Shape, ...]


class Table(Shape):
    """An object with free keys."""

    key: Shape
    value: Shape


class FieldShape(msgspec.Struct, eq=False):
    """A field of a record."""

    source: RecordField
    shape: Shape


class Record(Shape):
    """A class with fields; as an object, or as an array for named tuples."""

    source: RecordClass
    fields: tuple[FieldShape, ...] = ()


class Alternatives(Shape):
    """A union; its members are tried in order."""

    members: tuple[Shape, ...]


class Foreign(Shape):
    """A pydantic type, which brings its own schema and its own reading."""

    model: Model


class Definition(msgspec.Struct, eq=False):
    """A named part: a class, or a type alias."""

    name: str
    body: Shape


class Reference(Shape):
    """A use of a definition."""

    definition: Definition


def _from_text(make: Callable[[str], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError("expected a string")
        return make(value)

    return read


def _scalars() -> dict[Any, ScalarKind]:
    rows = [
        ScalarKind(types.NoneType, "null"),
        ScalarKind(bool, "boolean"),
        ScalarKind(int, "integer", limits=NUMBER),
        ScalarKind(float, "number", limits=NUMBER),
        ScalarKind(str, "string", limits=TEXT),
        ScalarKind(bytes, "string", {"contentEncoding": "base64"}, LENGTH),
        ScalarKind(bytearray, "string", {"contentEncoding": "base64"}, LENGTH),
        ScalarKind(datetime.datetime, "string", {"format": "date-time"}, CLOCK),
        ScalarKind(datetime.date, "string", {"format": "date"}),
        ScalarKind(datetime.time, "string", {"format": "time"}, CLOCK),
        ScalarKind(datetime.timedelta, "string", {"format": "duration"}),
        ScalarKind(uuid.UUID, "string", {"format": "uuid"}),
        ScalarKind(decimal.Decimal, "string", {"format": "decimal"}),
    ]
    return {row.type: row for row in rows}


SCALARS = _scalars()
# Whoever writes one of these has loaded its module: a server without them need not. Each with its format in schemas.
_OTHERS = {
    "ipaddress": {"IPv4Address": "ipv4", "IPv6Address": "ipv6"},
    "pathlib": dict.fromkeys(("Path", "PurePath", "PurePosixPath", "PureWindowsPath", "PosixPath"), "path"),
}


def scalar_kind(cls: type) -> ScalarKind | None:
    """The row of a type; None if it is no scalar."""
    if cls in SCALARS:
        return SCALARS[cls]
    for module, formats in _OTHERS.items():
        for name, text_format in formats.items():
            if cls is getattr(sys.modules.get(module), name, None):
                return ScalarKind(cls, "string", {"format": text_format}, read=_from_text(cls))
    return None


# Walks over the tree


def children(shape: Shape) -> Iterator[Shape]:
    """The shapes directly inside this one; a reference leads to its definition's body."""
    match shape:
        case Array():
            yield shape.item
        case FixedArray():
            yield from shape.items
        case Table():
            yield shape.key
            yield shape.value
        case Alternatives():
            yield from shape.members
        case Record():
            for field in shape.fields:
                yield field.shape
        case Reference():
            yield shape.definition.body


def reachable(shape: Shape) -> Iterator[Shape]:
    """This shape and everything inside it, each once."""
    seen: set[int] = set()
    waiting = [shape]
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting.extend(children(current))


def is_recursive(definition: Definition) -> bool:
    """Whether a definition contains itself."""
    inside = (part for child in children(definition.body) for part in reachable(child))
    return any(part is definition.body for part in inside)


def is_hashable(shape: Shape) -> bool:
    """Whether the values of a shape can be items of a set."""
    for part in reachable(shape):
        match part:
            case Table():
                return False
            case Array() if part.container not in (tuple, frozenset):
                return False
            case Record() if part.source.cls.__hash__ is None:
                return False
            case Foreign() if getattr(part.model.annotation, "__hash__", None) is None:
                return False
    return True


def is_plain(shape: Shape) -> bool:
    """Whether msgspec reads this, with everything inside, from the original annotation just as we would."""
    return not any(
        part.altered or (isinstance(part, Record) and part.source.by_constructor) for part in reachable(shape)
    )


def json_kinds(shape: Shape) -> frozenset[str]:
    """The kinds of JSON value that msgspec tells apart in a union; "custom" for what it leaves to a hook."""
    match shape:
        case Scalar():
            return frozenset({"custom" if shape.kind.read else shape.kind.json})
        case Choice():
            types_ = {type(json) for json, _ in shape.pairs}
            return frozenset("string" if t is str else "integer" for t in types_) if shape.native else _CUSTOM
        case Array() | FixedArray():
            return frozenset({"array"})
        case Table():
            return frozenset({"object"})
        case Reference() if isinstance(shape.definition.body, Record):
            return frozenset({"array" if shape.definition.body.source.is_array else "object"})
    return _CUSTOM


_CUSTOM = frozenset({"custom"})


def needs_trial(members: tuple[Shape, ...]) -> bool:
    """Whether msgspec can't tell the members of a union apart by their JSON kind alone."""
    solid = [member for member in members if not is_null(member)]
    kinds = [kind for member in solid for kind in json_kinds(member)]
    if "custom" in kinds:
        return len(solid) > 1
    tagged = {tag for member in solid if (tag := _tag(member)) is not None}
    if len(tagged) == kinds.count("object") and len({field for field, _ in tagged}) == 1:
        kinds = [kind for kind in kinds if kind != "object"]
    return len(kinds) != len(set(kinds))


def is_null(shape: Shape) -> bool:
    return isinstance(shape, Scalar) and shape.kind.json == "null"


def _tag(shape: Shape) -> tuple[str, str | int] | None:
    if isinstance(shape, Reference) and isinstance(shape.definition.body, Record):
        return shape.definition.body.source.tag
    return None
