"""The shape tree: the kinds of JSON value that a Python type describes, and how an annotation becomes one.

`ShapeBuilder` makes the tree, and refuses with the fix what has no JSON form; `schemas.py` writes it down as JSON
Schema; `decode.py` turns it into a type that msgspec decodes. A `Definition` is a part with a name; it may contain
itself. Classes with fields are dataclasses, TypedDicts, NamedTuples, attrs classes and msgspec Structs.
"""

import datetime
import decimal
import sys
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    get_args,
    get_origin,
)

import msgspec
from msgspec import NODEFAULT, UNSET

from dovetail.errors import SetupError
from dovetail.schema.annotations import NO_CONSTRAINTS, Constraints, class_hints, is_field
from dovetail.schema.pydantic import Model


class RecordField(msgspec.Struct, eq=False):
    """One field of a class."""

    name: str  # how JSON calls it
    keyword: str  # how the constructor calls it
    annotation: Any
    default: Any = UNSET
    required: bool = True
    is_input: bool = True  # False: computed by the class itself
    shape: "Shape" = msgspec.field(default_factory=lambda: Anything())  # of the annotation, once that is read


class RecordClass(msgspec.Struct, frozen=True, kw_only=True):
    """What the class of a record says about it."""

    cls: Any
    annotation: Any = None  # the class, or `Class[int]`
    fields: tuple[RecordField, ...]
    construct: Callable[..., Any]
    by_constructor: bool = False  # msgspec would not build it the way its constructor does
    is_array: bool = False
    closed: bool = False  # unknown keys are refused
    tag: tuple[str, str | int] | None = None
    description: str | None = None


def read_record(annotation: Any, where: str) -> RecordClass | None:
    """The fields of a class, in declared order; None if it is no class with fields."""
    cls = get_origin(annotation) or annotation
    if not isinstance(cls, type):
        return None
    for is_kind, read in _KINDS:
        if is_kind(cls):
            hints, needs_names = class_hints(annotation, cls, where)
            record = read(cls, hints, where)
            _refuse_field_defaults(record, where)
            return msgspec.structs.replace(
                record,
                annotation=annotation,
                description=class_description(cls),
                by_constructor=record.by_constructor or needs_names,
            )
    return None


# One reader for each kind of class


def _read_struct(cls: Any, hints: Mapping[str, Any], _: str) -> RecordClass:
    config, fields = cls.__struct_config__, []
    for field in msgspec.structs.fields(cls):
        default = UNSET if field.default is NODEFAULT else field.default
        fields.append(RecordField(field.encode_name, field.name, hints[field.name], default, field.required))
    return RecordClass(
        cls=cls,
        fields=tuple(fields),
        construct=cls,
        is_array=config.array_like,
        closed=config.forbid_unknown_fields,
        tag=None if config.tag is None else (config.tag_field, config.tag),
    )


def _read_dataclass(cls: Any, hints: Mapping[str, Any], where: str) -> RecordClass:
    import dataclasses  # which is loaded if there is such a class

    for name, pseudo in cls.__dataclass_fields__.items():
        if isinstance(pseudo.type, dataclasses.InitVar):
            raise SetupError(f"{where}: {cls.__name__}.{name} is an InitVar, which JSON can't carry; make it a field")
    fields = []
    for field in dataclasses.fields(cls):
        default = UNSET if field.default is dataclasses.MISSING else field.default
        required = field.init and default is UNSET and field.default_factory is dataclasses.MISSING
        fields.append(RecordField(field.name, field.name, hints[field.name], default, required, field.init))
    computed = any(not field.is_input for field in fields)
    return RecordClass(cls=cls, fields=tuple(fields), construct=cls, by_constructor=computed)


def _read_attrs(cls: Any, hints: Mapping[str, Any], _: str) -> RecordClass:
    attr = sys.modules["attr"]
    fields = []
    special = False
    for field in cls.__attrs_attrs__:
        is_factory = isinstance(field.default, attr.Factory)
        special |= bool(field.converter or not field.init or field.alias != field.name)
        special |= is_factory and field.default.takes_self
        default = UNSET if field.default is attr.NOTHING or is_factory else field.default
        required = field.default is attr.NOTHING and field.init
        annotation = hints.get(field.name, Any)
        fields.append(RecordField(field.name, field.alias, annotation, default, required, field.init))
    return RecordClass(cls=cls, fields=tuple(fields), construct=cls, by_constructor=special)


def _read_typed_dict(cls: Any, hints: Mapping[str, Any], _: str) -> RecordClass:
    fields = []
    for name, hint in hints.items():
        annotation, required = _unqualified(hint, name in cls.__required_keys__)
        fields.append(RecordField(name, name, annotation, required=required))
    return RecordClass(cls=cls, fields=tuple(fields), construct=dict)


def _unqualified(hint: Any, required: bool) -> tuple[Any, bool]:
    """Strip Required, NotRequired and ReadOnly, also from inside Annotated."""
    origin = get_origin(hint)
    if origin is Required or origin is NotRequired:
        return _unqualified(get_args(hint)[0], origin is Required)
    if getattr(origin, "_name", None) == "ReadOnly":
        return _unqualified(get_args(hint)[0], required)
    if origin is Annotated:
        inner, required = _unqualified(hint.__origin__, required)
        return Annotated[(inner, *hint.__metadata__)], required
    return hint, required


def _read_named_tuple(cls: Any, hints: Mapping[str, Any], _: str) -> RecordClass:
    defaults = cls._field_defaults
    fields = tuple(
        RecordField(name, name, hints.get(name, Any), defaults.get(name, UNSET), name not in defaults)
        for name in cls._fields
    )
    return RecordClass(cls=cls, fields=fields, construct=cls, is_array=True)


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Mapping[str, Any], str], RecordClass]], ...] = (
    (lambda cls: issubclass(cls, msgspec.Struct), _read_struct),
    (lambda cls: hasattr(cls, "__dataclass_fields__"), _read_dataclass),
    (lambda cls: hasattr(cls, "__attrs_attrs__"), _read_attrs),
    (lambda cls: issubclass(cls, dict) and hasattr(cls, "__required_keys__"), _read_typed_dict),
    (lambda cls: issubclass(cls, tuple) and hasattr(cls, "_field_defaults"), _read_named_tuple),
)


def _refuse_field_defaults(record: RecordClass, where: str) -> None:
    for field in record.fields:
        if is_field(field.default):
            raise SetupError(
                f"{where}: {record.cls.__name__}.{field.name} has a Field(…) as its default, which its class does not "
                "understand; write Annotated[type, Field(…)] and a plain default"
            )


def class_description(cls: Any) -> str | None:
    """The class's own docstring, unless its decorator made it up."""
    text = vars(cls).get("__doc__")
    if not isinstance(text, str) or text.startswith(f"{cls.__name__}("):
        return None
    return " ".join(text.split()) or None


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


class Record(Shape):
    """A class with fields; as an object, or as an array for named tuples."""

    source: RecordClass

    @property
    def fields(self) -> tuple[RecordField, ...]:
        return self.source.fields


class Alternatives(Shape):
    """A union; its members are tried in order."""

    members: tuple[Shape, ...]


class PydanticShape(Shape):
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
            case PydanticShape() if getattr(part.model.annotation, "__hash__", None) is None:
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
