"""The shape tree: the kinds of JSON value that a Python type describes, and how an annotation becomes one.

`ShapeReader` makes the tree, and refuses with the fix what has no JSON form; `schemas.py` writes it down as JSON
Schema; `decode.py` turns it into a type that msgspec decodes. A `Definition` is a part with a name; it may contain
itself. Classes with fields are dataclasses, TypedDicts, NamedTuples, attrs classes and msgspec Structs.
"""

import collections
import datetime
import decimal
import enum
import functools
import inspect
import operator
import re
import sys
import types
import uuid
from collections import abc
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import (
    Annotated,
    Any,
    Final,
    ForwardRef,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import msgspec
from msgspec import NODEFAULT, UNSET

from dovetail.errors import SetupError
from dovetail.registry.functions import alias_value, class_hints, is_alias
from dovetail.schema.annotations import NO_CONSTRAINTS, Constraints, is_field, merge, only_meta, read_metadata
from dovetail.schema.encode import OutputError, encode_json
from dovetail.schema.pydantic import Model, is_model
from dovetail.schema.validate import Pattern


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


# ── from an annotation to its shape ──

_DEFINITIONS = 500
_NESTING = 50  # a generic class that contains ever new variants of itself ends here

_ARRAYS: dict[Any, Callable[[Any], Any]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    tuple: tuple,
    collections.deque: collections.deque,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Collection: list,
    abc.Iterable: list,
    abc.Set: set,
    abc.MutableSet: set,
}
_UNKNOWN_TO_MSGSPEC = frozenset({collections.deque, abc.Iterable})
_TABLES = frozenset({dict, abc.Mapping, abc.MutableMapping})
_ANYTHING = (Any, object, inspect.Parameter.empty)


def constrain(shape: Shape, constraints: Constraints, where: str, *, native: bool = False) -> Shape:
    """The shape with constraints applied; `native` if msgspec sees the same ones in the annotation."""
    _refuse_unusable(constraints, where)
    limits = frozenset(constraints.limits())
    leftover = limits - _applicable(shape)
    if leftover:
        names = ", ".join(sorted(leftover))
        raise SetupError(f"{where}: {names} can't constrain this type; remove it, or check it inside the function")
    if isinstance(shape, Alternatives) and limits:
        shape = Alternatives(
            members=tuple(
                constrain(member, constraints.only(limits & _applicable(member)), where) for member in shape.members
            ),
            constraints=shape.constraints,
            altered=True,
        )
        constraints = constraints.notes()
    changed = bool(limits) and not (native and constraints.pattern is None and constraints.multiple_of is None)
    return msgspec.structs.replace(
        shape, constraints=merge(shape.constraints, constraints, where), altered=shape.altered or changed
    )


def _refuse_unusable(constraints: Constraints, where: str) -> None:
    if constraints.pattern is not None:
        Pattern(constraints.pattern, where=where)
    try:
        encode_json([constraints.examples, constraints.extra])
    except OutputError as error:
        raise SetupError(f"{where}: its examples or extra keywords can't be sent: {error}") from None


def _applicable(shape: Shape) -> frozenset[str]:
    match shape:
        case Scalar():
            return shape.kind.limits
        case Array() | Table():
            return LENGTH
        case Alternatives():
            return frozenset[str]().union(*map(_applicable, shape.members))
    return frozenset()


class ShapeReader:
    """Reads annotations that share their definitions, such as the parameters of one function."""

    def __init__(self) -> None:
        self.definitions: dict[Hashable, Definition] = {}
        self.nesting = 0

    def read(self, annotation: Any, where: str) -> Shape:
        """The shape of the values that an annotation allows; raises SetupError."""
        origin = get_origin(annotation)
        if origin is Annotated:
            return self._annotated(annotation, where)
        if any(annotation is one for one in _ANYTHING):
            return Anything(altered=annotation is object)
        if annotation is None:
            annotation = types.NoneType
        if origin in (Union, types.UnionType):
            return self._union(annotation, where)
        if origin is Literal:
            return _literal(get_args(annotation), where)
        if is_model(annotation):
            is_class = hasattr(annotation, "model_fields")  # which msgspec leaves to us; anything else it might know
            return Foreign(model=Model(annotation, where), altered=not is_class)
        for read in (self._indirect, self._class, self._collection, self._record):
            shape = read(annotation, where)
            if shape is not None:
                return shape
        raise SetupError(
            f"{where}: {_shown(annotation)} has no JSON form; use a standard type, a dataclass, a TypedDict or a "
            "pydantic model"
        )

    def _annotated(self, annotation: Any, where: str) -> Shape:
        inner, metadata = annotation.__origin__, annotation.__metadata__
        try:
            constraints = read_metadata(metadata, where)
            if constraints.limits():
                while is_alias(inner):  # limits belong to what the alias stands for
                    inner = alias_value(inner, where)
            return constrain(self.read(inner, where), constraints, where, native=only_meta(metadata))
        except SetupError:
            if not _only_models(inner):
                raise
            return Foreign(model=Model(annotation, where), altered=True)  # pydantic knows what to do with it

    def _indirect(self, annotation: Any, where: str) -> Shape | None:
        """What only stands for another type."""
        if isinstance(annotation, TypeVar):
            bound = annotation.__bound__
            choices = annotation.__constraints__
            return self.read(bound or (functools.reduce(operator.or_, choices) if choices else Any), where)
        if hasattr(annotation, "__supertype__"):
            return self.read(annotation.__supertype__, where)
        if get_origin(annotation) is Final:
            return self.read(get_args(annotation)[0], where)
        if isinstance(annotation, (str, ForwardRef)):
            raise SetupError(
                f"{where}: {_shown(annotation)} can't be resolved; for a type that contains itself use a class, or "
                "TypeAliasType"
            )
        if not is_alias(annotation):
            return None
        definition = self._known(annotation)
        if definition is None:
            definition = self._define(annotation, _class_name(annotation), Anything(), where)
            definition.body = self.read(alias_value(annotation, where), where)
        return Reference(definition=definition, altered=True)

    def _class(self, annotation: Any, where: str) -> Shape | None:
        if not isinstance(annotation, type):
            return None
        if (kind := scalar_kind(annotation)) is not None:
            return Scalar(kind=kind)
        if issubclass(annotation, enum.Enum):
            return _enum(annotation, where)
        return None

    def _union(self, annotation: Any, where: str) -> Shape:
        arguments = tuple(member for member in get_args(annotation) if member is not msgspec.UnsetType)
        models = [member for member in arguments if is_model(member)]
        if len(models) > 1 and _only_models(annotation):
            return Foreign(model=Model(annotation, where), altered=True)
        members = tuple(self.read(member, where) for member in arguments)
        if len(members) == 1:
            return members[0]
        if any(isinstance(member, Anything) for member in members):
            return Anything()
        return _alternatives(members)

    def _collection(self, annotation: Any, where: str) -> Shape | None:
        origin = get_origin(annotation) or annotation
        arguments = get_args(annotation)
        if origin is tuple and annotation is not tuple and not (len(arguments) == 2 and arguments[1] is ...):
            return FixedArray(items=tuple(self.read(argument, where) for argument in arguments))
        if not isinstance(origin, type):
            return None
        if origin in _ARRAYS:
            item = self.read(arguments[0] if arguments else Any, where)
            if _ARRAYS[origin] in (set, frozenset) and not is_hashable(item):
                raise SetupError(f"{where}: {_shown(arguments[0])} can't be the item of a set; use a list")
            return Array(item=item, container=_ARRAYS[origin], altered=origin in _UNKNOWN_TO_MSGSPEC)
        if origin in _TABLES:
            key, value = arguments or (str, Any)
            return Table(key=self._key(key, where), value=self.read(value, where))
        return None

    def _key(self, annotation: Any, where: str) -> Shape:
        shape = self.read(str if annotation is Any else annotation, where)
        base = shape
        while isinstance(base, Reference):
            base = base.definition.body
        if isinstance(base, Scalar) and base.kind.json in ("string", "integer") and base.kind.limits != LENGTH:
            return base
        if isinstance(base, Choice) and base.native is not None:
            return base
        raise SetupError(f"{where}: {_shown(annotation)} can't be the key of a JSON object; use str, int or Literal")

    def _record(self, annotation: Any, where: str) -> Shape | None:
        known = self._known(annotation)
        if known is not None:
            return Reference(definition=known)
        source = read_record(annotation, where)
        if source is None:
            return None
        body = Record(source=source)
        definition = self._define(annotation, _class_name(annotation), body, where)
        self._read_fields(source, where.partition(", field ")[0])
        return Reference(definition=definition)

    def _read_fields(self, source: RecordClass, where: str) -> None:
        name = source.cls.__name__
        self.nesting += 1
        if self.nesting > _NESTING:
            raise SetupError(f"{where}: {name} is nested more than {_NESTING} classes deep; use simpler ones")
        for field in source.fields:
            field.shape = self.read(field.annotation, f"{where}, field {field.name} of {name}")
        self.nesting -= 1

    def _known(self, annotation: Any) -> Definition | None:
        return self.definitions.get(_identity(annotation))

    def _define(self, annotation: Any, name: str, body: Shape, where: str) -> Definition:
        if len(self.definitions) >= _DEFINITIONS:
            raise SetupError(f"{where}: {name} contains more than {_DEFINITIONS} types; use simpler ones")
        taken = {definition.name for definition in self.definitions.values()}
        unique = next(n for n in (name, *(f"{name}_{i}" for i in range(2, _DEFINITIONS + 2))) if n not in taken)
        definition = self.definitions[_identity(annotation)] = Definition(unique, body)
        return definition


# Alternatives and choices


def nullable(shape: Shape) -> Shape:
    """The shape, or null."""
    return _alternatives((shape, Scalar(kind=SCALARS[types.NoneType])))


def _alternatives(members: tuple[Shape, ...]) -> Shape:
    """A union. If it is one shape or null, the labels of that shape are the labels of the whole."""
    solid = [member for member in members if not is_null(member)]
    labels = solid[0].constraints.labels() if len(solid) == 1 else NO_CONSTRAINTS
    if labels != NO_CONSTRAINTS:
        bare = msgspec.structs.replace(solid[0], constraints=solid[0].constraints.without_labels())
        members = tuple(bare if member is solid[0] else member for member in members)
    return Alternatives(members=members, altered=needs_trial(members), constraints=labels)


def _literal(values: tuple[Any, ...], where: str) -> Shape:
    pairs = tuple((value.value if isinstance(value, enum.Enum) else value, value) for value in values)
    solid = tuple(pair for pair in pairs if pair[0] is not None)
    null = Scalar(kind=SCALARS[types.NoneType])
    if not solid:
        return null
    is_native = all(type(python) in (str, int) for _, python in solid)
    native = Literal[tuple(json for json, _ in solid)] if is_native else None
    choice = Choice(pairs=solid, native=native, altered=native is None)
    _refuse_unscalar(choice, "Literal", where)
    if len(solid) == len(pairs):
        return choice
    return Alternatives(members=(choice, null), altered=native is None)


def _enum(cls: type[enum.Enum], where: str) -> Shape:
    pairs = tuple((member.value, member) for member in cls)
    kinds = {type(json) for json, _ in pairs}
    native = cls if kinds in ({str}, {int}) else None
    choice = Choice(pairs=pairs, native=native, altered=native is None, description=class_description(cls))
    _refuse_unscalar(choice, cls.__name__, where)
    return choice


def _refuse_unscalar(choice: Choice, name: str, where: str) -> None:
    if not choice.pairs:
        raise SetupError(f"{where}: {name} has no members; add some")
    for json, python in choice.pairs:
        if not isinstance(json, (str, int, float)):
            raise SetupError(f"{where}: {python!r} of {name} has no JSON form; use strings or numbers as values")


# Names


def _only_models(annotation: Any) -> bool:
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return all(member is types.NoneType or _model_inside(member) for member in members)


def _model_inside(annotation: Any) -> bool:
    return is_model(annotation.__origin__ if get_origin(annotation) is Annotated else annotation)


def _class_name(annotation: Any) -> str:
    cls = get_origin(annotation) or annotation
    parts = [cls.__name__, *(getattr(argument, "__name__", str(argument)) for argument in get_args(annotation))]
    return re.sub(r"\W+", "_", "_".join(parts)).strip("_")


def _identity(annotation: Any) -> Hashable:
    try:
        hash(annotation)
    except TypeError:
        return repr(annotation)
    return (annotation,)  # a tuple, so that no annotation is taken for another's repr


def _shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
