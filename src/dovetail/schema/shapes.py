"""The shape tree: the JSON values that a Python type describes, and the fields of classes.

`types.py` builds the tree from an annotation, `generate.py` writes it as JSON Schema, `decode.py` makes a type for
msgspec of it. Classes with fields are dataclasses, TypedDicts, NamedTuples, attrs classes and msgspec Structs.
"""

import datetime
import decimal
import sys
import types
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Required, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET

from dovetail.errors import SetupError
from dovetail.schema.constraints import NO_CONSTRAINTS, Constraints, class_hints, is_field

if TYPE_CHECKING:
    from dovetail.schema.pydantic import PydanticType


class RecordField(msgspec.Struct, eq=False):
    """One field of a class."""

    name: str  # in JSON
    keyword: str  # in the constructor
    annotation: Any
    default: Any = UNSET
    required: bool = True
    is_input: bool = True  # False: computed by the class itself
    shape: "Shape" = msgspec.field(default_factory=lambda: Anything())  # of the annotation, set when that is read


class RecordClass(msgspec.Struct, frozen=True, kw_only=True):
    """A class with fields."""

    cls: Any
    annotation: Any = None  # the class, or `Class[int]`
    fields: tuple[RecordField, ...]
    construct: Callable[..., Any]
    by_constructor: bool = False  # msgspec would build it differently
    is_array: bool = False
    closed: bool = False  # refuses unknown keys
    tag: tuple[str, str | int] | None = None
    description: str | None = None


def read_record(annotation: Any, where: str) -> RecordClass | None:
    """A class with its fields in declared order; None if it has none."""
    cls = get_origin(annotation) or annotation
    if not isinstance(cls, type):
        return None
    for is_kind, read in _KINDS:
        if is_kind(cls):
            hints, needs_names = class_hints(annotation, cls, where)
            record = read(cls, hints, where)
            if wrong := next((field.name for field in record.fields if is_field(field.default)), None):
                raise SetupError(
                    f"{where}: {cls.__name__}.{wrong} has a Field(…) as its default, which its class does not "
                    "understand; write Annotated[type, Field(…)] and a plain default"
                )
            return msgspec.structs.replace(
                record,
                annotation=annotation,
                description=class_description(cls),
                by_constructor=record.by_constructor or needs_names,
            )
    return None


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
    import dataclasses  # late: loaded anyway if there is such a class

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
    """The hint without Required, NotRequired and ReadOnly, also inside Annotated."""
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


def class_description(cls: Any) -> str | None:
    """The class's own docstring, unless its decorator generated it."""
    text = vars(cls).get("__doc__")
    if not isinstance(text, str) or text.startswith(f"{cls.__name__}("):
        return None
    return " ".join(text.split()) or None


NUMBER = frozenset({"ge", "gt", "le", "lt", "multiple_of"})
LENGTH = frozenset({"min_length", "max_length"})
CLOCK = frozenset({"tz"})


class Shape(msgspec.Struct, eq=False, kw_only=True):
    """A JSON value, or a part of one."""

    constraints: Constraints = NO_CONSTRAINTS
    altered: bool = False  # msgspec would read the annotation differently


class Anything(Shape):
    """Any JSON value."""


class ScalarKind(msgspec.Struct, frozen=True):
    """A row of `SCALARS`."""

    type: type
    json: str  # the JSON type
    keywords: Mapping[str, Any] = {}  # of the schema, beside the type
    limits: frozenset[str] = frozenset()  # the constraints that apply
    read: Callable[[Any], Any] | None = None  # from a string, for types that msgspec does not know


class Scalar(Shape):
    """A value without parts."""

    kind: ScalarKind


class Choice(Shape):
    """One of a few values: `Literal` or `Enum`."""

    pairs: tuple[tuple[Any, Any], ...]  # (in JSON, in Python), in declared order
    native: Any = None  # the type for msgspec, if it can decode the choice
    description: str | None = None  # of the class


class Array(Shape):
    """Any number of items of one shape."""

    item: Shape
    container: Callable[[Any], Any]


class FixedArray(Shape):
    """A tuple: each item has its own shape."""

    items: tuple[Shape, ...]


class Dictionary(Shape):
    """An object with arbitrary keys."""

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
    """A pydantic type, with its own schema and validation."""

    type: "PydanticType"


class Definition(msgspec.Struct, eq=False):
    """A named part, which may contain itself: a class, or a type alias."""

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


SCALARS = {
    row.type: row
    for row in (
        ScalarKind(types.NoneType, "null"),
        ScalarKind(bool, "boolean"),
        ScalarKind(int, "integer", limits=NUMBER),
        ScalarKind(float, "number", limits=NUMBER),
        ScalarKind(str, "string", limits=LENGTH | {"pattern"}),
        ScalarKind(bytes, "string", {"contentEncoding": "base64"}, LENGTH),
        ScalarKind(bytearray, "string", {"contentEncoding": "base64"}, LENGTH),
        ScalarKind(datetime.datetime, "string", {"format": "date-time"}, CLOCK),
        ScalarKind(datetime.date, "string", {"format": "date"}),
        ScalarKind(datetime.time, "string", {"format": "time"}, CLOCK),
        ScalarKind(datetime.timedelta, "string", {"format": "duration"}),
        ScalarKind(uuid.UUID, "string", {"format": "uuid"}),
        ScalarKind(decimal.Decimal, "string", {"format": "decimal"}),
    )
}
# More scalars with their formats; their modules are loaded if an author uses them.
_LATE_SCALARS = {
    "ipaddress": {"IPv4Address": "ipv4", "IPv6Address": "ipv6"},
    "pathlib": dict.fromkeys(("Path", "PurePath", "PurePosixPath", "PureWindowsPath", "PosixPath"), "path"),
}


def scalar_kind(cls: type) -> ScalarKind | None:
    """The kind of a scalar type; None for other types."""
    if cls in SCALARS:
        return SCALARS[cls]
    if (keywords := getattr(cls, "__json_string__", None)) is not None:  # a class of ours, above this folder
        return ScalarKind(cls, "string", keywords, read=_from_text(cls))
    for module, formats in _LATE_SCALARS.items():
        for name, text_format in formats.items():
            if cls is getattr(sys.modules.get(module), name, None):
                return ScalarKind(cls, "string", {"format": text_format}, read=_from_text(cls))
    return None


def children(shape: Shape) -> Sequence[Shape]:
    """The shapes directly inside this one; for a reference, the body of its definition."""
    match shape:
        case Array():
            return (shape.item,)
        case FixedArray():
            return shape.items
        case Dictionary():
            return (shape.key, shape.value)
        case Alternatives():
            return shape.members
        case Record():
            return [field.shape for field in shape.fields]
        case Reference():
            return (shape.definition.body,)
    return ()


def reachable(shape: Shape) -> Iterator[Shape]:
    """This shape and everything inside it, each once."""
    seen: set[int] = set()
    stack = [shape]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        stack.extend(children(current))


def is_recursive(definition: Definition) -> bool:
    inside = (part for child in children(definition.body) for part in reachable(child))
    return any(part is definition.body for part in inside)


def is_hashable(shape: Shape) -> bool:
    """Whether values of the shape can be items of a set."""
    for part in reachable(shape):
        match part:
            case Dictionary():
                return False
            case Array() if part.container not in (tuple, frozenset):
                return False
            case Record() if part.source.cls.__hash__ is None:
                return False
            case PydanticShape() if getattr(part.type.annotation, "__hash__", None) is None:
                return False
    return True


def is_plain(shape: Shape) -> bool:
    """Whether msgspec decodes the original annotation just as our own types."""
    parts = reachable(shape)
    return not any(part.altered or (isinstance(part, Record) and part.source.by_constructor) for part in parts)


def json_kinds(shape: Shape) -> frozenset[str]:
    """The kinds of JSON value that msgspec distinguishes in a union; "custom" for those of a hook."""
    match shape:
        case Scalar():
            return frozenset({"custom" if shape.kind.read else shape.kind.json})
        case Choice():
            types_ = {type(json) for json, _ in shape.pairs}
            return frozenset("string" if t is str else "integer" for t in types_) if shape.native else _CUSTOM
        case Array() | FixedArray():
            return frozenset({"array"})
        case Dictionary():
            return frozenset({"object"})
        case Reference() if isinstance(shape.definition.body, Record):
            return frozenset({"array" if shape.definition.body.source.is_array else "object"})
    return _CUSTOM


_CUSTOM = frozenset({"custom"})


def needs_trial(members: tuple[Shape, ...]) -> bool:
    """Whether msgspec can't choose a member of the union by the kind of JSON value alone."""
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
