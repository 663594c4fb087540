"""Decoders of shapes: types for msgspec, and a hook for what it does not know; checked defaults.

Where msgspec reads an annotation as we do, the type is the annotation itself. Where it does not (limits in another
dialect, ambiguous unions, pydantic, aliases), it is a stand-in class, whose hook reads the plain JSON value. Patterns
never reach msgspec, because it would run them on Python's backtracking engine.
"""

import math
import reprlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import UNSET

from dovetail.errors import SetupError
from dovetail.schema import shapes
from dovetail.schema.constraints import NO_CONSTRAINTS, Constraints
from dovetail.schema.explain import UNEXPLAINED, ValidationProblem, problems_in
from dovetail.schema.shapes import Shape

Reader = Callable[[Any], Any]

_ANNOTATION_KEYWORDS = frozenset(  # they constrain nothing
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
)


class _StandInType(type):
    """Metaclass of stand-ins: msgspec requires an instance of the class from its hook, so any value counts as one."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


class DecoderBuilder:
    """Makes types for msgspec of shapes.

    For input, classes are built as their authors wrote them. For output, values are only checked, and no code of the
    author runs. `exact` becomes False when the schema constrains more than the types can check.
    """

    def __init__(self, *, for_output: bool = False) -> None:
        self.for_output = for_output
        self.exact = True
        self._hooks: dict[Any, Reader] = {}
        self._definitions: dict[int, Any] = {}
        self._trials = threading.local()  # by thread, during a decoding: results by union and value

    @property
    def hook(self) -> Callable[[type, Any], Any] | None:
        """The `dec_hook` for msgspec, if some type needs one."""
        return self._run_hook if self._hooks else None

    def decoder(self, type_: Any, where: str) -> msgspec.json.Decoder[Any]:
        try:
            return msgspec.json.Decoder(type_, dec_hook=self.hook)
        except (TypeError, NameError, NotImplementedError, RuntimeError) as error:
            raise SetupError(f"{where}: this type can't be decoded ({error}); use a simpler one") from None

    def make(self, shape: Shape) -> Any:
        if _has_unchecked_keywords(shape.constraints):
            self.exact = False
        match shape:
            case shapes.Scalar():
                if shape.kind.read is not None:
                    self._hooks[shape.kind.type] = shape.kind.read
                return self._limited(shape.kind.type, shape.constraints)
            case shapes.Choice():
                return shape.native or self._choice(shape)
            case shapes.Array():
                return self._limited(self._array(shape), shape.constraints)
            case shapes.FixedArray():
                return _subscript(tuple, [self.make(item) for item in shape.items] or [()])
            case shapes.Dictionary():
                return self._limited(dict[self.make(shape.key), self.make(shape.value)], shape.constraints)  # type: ignore[misc]
            case shapes.Alternatives():
                return self._alternatives(shape)
            case shapes.Reference():
                return self._definition(shape.definition)
            case shapes.PydanticShape():
                return self._pydantic(shape)
        return Any

    def convert(self, value: Any, type_: Any) -> Any:
        """Decode a value that is not JSON text any more."""
        return msgspec.convert(value, type_, dec_hook=self.hook, str_keys=True)

    def _run_hook(self, type_: type, value: Any) -> Any:
        try:
            return self._hooks[type_](value)
        except msgspec.ValidationError as error:  # msgspec would drop its path
            raise ValidationProblem(problems_in(error)) from None

    def _stand_in(self, name: str, read: Reader) -> type:
        stand_in = _StandInType(name, (), {})
        self._hooks[stand_in] = read
        return stand_in

    def _defined_stand_in(self, definition: shapes.Definition, build: Callable[[], Reader]) -> type:
        """A stand-in that exists before its reader is built, because the definition may contain itself."""
        stand_in = self._definitions[id(definition)] = self._stand_in(definition.name, repr)
        self._hooks[stand_in] = build()
        return stand_in

    def _limited(self, type_: Any, constraints: Constraints) -> Any:
        limits = constraints.limits()
        checked = {name: value for name, value in limits.items() if _msgspec_checks(name, value, type_)}
        if "ge" in checked:
            checked.pop("gt", None)  # msgspec accepts one of each pair
        if "le" in checked:
            checked.pop("lt", None)
        if checked.keys() != limits.keys():
            self.exact = False
        return Annotated[type_, msgspec.Meta(**checked)] if checked else type_

    def _choice(self, shape: shapes.Choice) -> Any:
        known = {(type(json), json): python for json, python in shape.pairs}

        def read(value: Any) -> Any:
            try:
                return known[type(value), value]
            except (KeyError, TypeError):
                raise ValueError("is none of the allowed values") from None

        return self._stand_in("Choice", read)

    def _array(self, shape: shapes.Array) -> Any:
        item = self.make(shape.item)
        if shape.container is tuple:
            return _subscript(tuple, [item, ...])
        if shape.container in (list, set, frozenset):
            return _subscript(shape.container, [item])
        as_list = _subscript(list, [item])
        return self._stand_in("Array", lambda value: shape.container(self.convert(value, as_list)))

    def _alternatives(self, shape: shapes.Alternatives) -> Any:
        members = [(member, self.make(member)) for member in shape.members]
        has_hook = any(type_ in self._hooks for _, type_ in members)
        several = sum(not shapes.is_null(member) for member, _ in members) > 1
        candidates = [(type_, _field_names(member)) for member, type_ in members]
        mirrors = self.for_output and sum(names is not None for _, names in candidates) > 1  # msgspec accepts one
        if not mirrors and not shapes.needs_trial(shape.members) and not (has_hook and several):
            return _subscript(Union, [type_ for _, type_ in members])

        def read(value: Any) -> Any:
            known, key = getattr(self._trials, "tried", None), (id(candidates), id(value))
            tried: dict[tuple[int, int], tuple[Any, Any]] = {} if known is None else known
            self._trials.tried = tried
            try:
                if key not in tried:  # the alternatives of an outer union come here with the same value
                    tried[key] = value, self._first_fit(_likeliest_first(candidates, value), value)
            finally:
                self._trials.tried = known
            if tried[key][1] is msgspec.UNSET:
                raise ValueError("fits none of the alternatives")
            return tried[key][1]

        return self._stand_in("Alternatives", read)

    def _first_fit(self, types: list[Any], value: Any) -> Any:
        for type_ in types:
            with suppress(msgspec.ValidationError, ValueError):
                return self.convert(value, type_)
        return msgspec.UNSET

    def _pydantic(self, shape: shapes.PydanticShape) -> Any:
        if self.for_output:
            self.exact = False
            return Any
        shape.type.refuse_doubling()
        if shape.altered:
            return self._stand_in("Pydantic", shape.type.read)
        self._hooks[shape.type.annotation] = shape.type.read
        return shape.type.annotation

    def _definition(self, definition: shapes.Definition) -> Any:
        body = definition.body
        if id(definition) not in self._definitions:
            if isinstance(body, shapes.Record):
                self._definitions[id(definition)] = self._record(definition, body)
            elif shapes.is_recursive(definition):
                self._defined_stand_in(definition, lambda: self._converter(self.make(body)))
            else:
                return self.make(body)
        return self._definitions[id(definition)]

    def _converter(self, type_: Any) -> Reader:
        return lambda value: self.convert(value, type_)

    def _record(self, definition: shapes.Definition, record: shapes.Record) -> Any:
        if not self.for_output and shapes.is_plain(record):
            self._definitions[id(definition)] = record.source.annotation
            for field in record.fields:
                self.make(field.shape)  # registers its hooks, and may set `exact`
            return record.source.annotation
        if self.for_output and not record.source.is_array and not shapes.is_recursive(definition):
            return self._mirror(record)
        reader = self._array_reader if record.source.is_array else self._object_reader
        return self._defined_stand_in(definition, lambda: reader(record))

    def _mirror(self, record: shapes.Record) -> Any:
        """A TypedDict with the fields of a record."""
        fields = {}
        for field in record.fields:
            if field.is_input or self.for_output:
                type_ = self.make(field.shape)
                fields[field.name] = Required[type_] if field.required else NotRequired[type_]
        if record.source.tag is not None:
            name, tag = record.source.tag
            fields[name] = Required[Literal[tag]] if self.for_output else NotRequired[Literal[tag]]
        if record.source.closed and self.for_output:
            try:
                return _closed_struct(record.source.cls.__name__, fields)
            except ValueError:  # msgspec can't escape a key: the schema refuses unknown ones
                self.exact = False
        return _typed_dict(record.source.cls.__name__, fields)

    def _object_reader(self, record: shapes.Record) -> Reader:
        mirror = self._mirror(record)
        keywords = {field.name: field.keyword for field in record.fields if field.is_input}
        known = keywords.keys() | ({record.source.tag[0]} if record.source.tag else set())

        def read(value: Any) -> Any:
            found = self.convert(value, mirror)
            if self.for_output:
                return found
            unknown = sorted(value.keys() - known) if record.source.closed else ()
            if unknown:
                raise ValueError(f"has no field {unknown[0]!r}")
            return record.source.construct(**{keywords[name]: part for name, part in found.items() if name in keywords})

        return read

    def _array_reader(self, record: shapes.Record) -> Reader:
        tag = [] if record.source.tag is None else [Literal[record.source.tag[1]]]  # the first item
        types = [*tag, *(self.make(field.shape) for field in record.fields)]
        required = len(tag) + sum(field.required for field in record.fields)

        def read(value: Any) -> Any:
            if not isinstance(value, list) or not required <= len(value) <= len(types):
                raise ValueError(f"expected an array of {required} to {len(types)} items")
            items = [self.convert(item, type_) for item, type_ in zip(value, types, strict=False)]
            return items if self.for_output else record.source.construct(*items[len(tag) :])

        return read


_typed_dict: Callable[[str, Mapping[str, Any]], Any] = TypedDict  # type: ignore[assignment]


def _closed_struct(title: str, fields: Mapping[str, Any]) -> Any:
    """A Struct that refuses unknown keys; its fields are numbered, because a key may be no identifier."""
    names = {f"_{number}": name for number, name in enumerate(fields)}
    members: list[Any] = []
    for own, name in names.items():
        type_ = get_args(fields[name])[0]
        members.append((own, type_) if get_origin(fields[name]) is Required else (own, type_, msgspec.UNSET))
    return msgspec.defstruct(title, members, rename=names, kw_only=True, forbid_unknown_fields=True)


def _subscript(generic: Any, arguments: Iterable[Any]) -> Any:
    return generic[tuple(arguments)]


def _msgspec_checks(name: str, value: Any, type_: Any) -> bool:
    """Whether msgspec accepts this limit, with the meaning of JSON Schema."""
    if name == "pattern":
        return False
    if name == "multiple_of" and type_ is float:
        return False  # 0.3 is a multiple of 0.1, but not in binary
    if type_ is int:
        return isinstance(value, int) and abs(value) < 2**63
    return not isinstance(value, float) or math.isfinite(value)


def _has_unchecked_keywords(constraints: Constraints) -> bool:
    """Whether the schema has keywords that only a validator checks."""
    extra = {keyword for keyword in constraints.extra or () if not keyword.startswith("x-")}
    return constraints.format is not None or not extra <= _ANNOTATION_KEYWORDS


def _field_names(shape: Shape) -> frozenset[str] | None:
    if isinstance(shape, shapes.Reference) and isinstance(shape.definition.body, shapes.Record):
        return frozenset(field.name for field in shape.definition.body.fields)
    return None


def _likeliest_first(candidates: list[tuple[Any, frozenset[str] | None]], value: Any) -> list[Any]:
    """The types in declared order; for an object, the class that shares most of its keys is first."""
    if isinstance(value, dict):
        candidates = sorted(candidates, key=lambda one: 0 if one[1] is None else len(value.keys() - one[1]))
    return [type_ for type_, _ in candidates]


T = TypeVar("T")

_DECODE_ERRORS = (msgspec.DecodeError, ValueError, TypeError)


def check_default(default: Any, shape: Shape, where: str) -> None:
    """Raises SetupError for a plain default of the wrong type; one outside of its limits may mean "not given"."""
    if type(default) not in (str, int, float, bool):
        return
    builder = DecoderBuilder()
    type_ = builder.make(_without_limits(shape))
    try:
        builder.convert(default, type_)
    except _DECODE_ERRORS as error:
        words = problems_in(error)[0][1]
        reason = "" if words == UNEXPLAINED else f" ({words})"
        raise SetupError(
            f"{where}: the default {reprlib.repr(default)} does not fit its annotation"
            f"{reason}; change the default or the annotation"
        ) from None


def _without_limits(shape: Shape) -> Shape:
    match shape:
        case shapes.Scalar():
            return msgspec.structs.replace(shape, constraints=NO_CONSTRAINTS)
        case shapes.Alternatives():
            return msgspec.structs.replace(shape, members=tuple(map(_without_limits, shape.members)))
        case shapes.Reference() if not isinstance(shape.definition.body, shapes.Record):
            return _without_limits(shape.definition.body)
    return shape


# Of a class: its fields that msgspec may not set, with their defaults; and the fields that contain such classes.
_Plan = tuple[tuple[tuple[str, Any], ...], Iterable[str]]


def with_class_defaults(read: Callable[[Any], T], parameters: Mapping[str, Shape]) -> Callable[[Any], T]:
    """A reader of arguments whose dataclasses have all their fields; `read` itself if they have them anyway.

    msgspec does not set a field whose default is an attribute of the class. The attribute can be read then, but `vars`,
    and every encoder that uses it, would miss it.
    """
    inner = tuple(name for name, shape in parameters.items() if any(map(_class_defaults, _records(shape))))
    plans: dict[type, _Plan] = {}
    for record in (record for name in inner for record in _records(parameters[name])):
        plans[record.source.cls] = _plan(record, plans.get(record.source.cls, ((), ()))[1])

    def read_with_defaults(raw: Any) -> T:
        arguments = read(raw)
        _set_defaults([getattr(arguments, name) for name in inner], plans)
        return arguments

    return read_with_defaults if inner else read


def _records(shape: Shape) -> Iterable[shapes.Record]:
    return (part for part in shapes.reachable(shape) if isinstance(part, shapes.Record))


def _class_defaults(record: shapes.Record) -> tuple[tuple[str, Any], ...]:
    cls = record.source.cls
    if not hasattr(cls, "__dataclass_fields__"):
        return ()
    found = [(field.name, field.default) for field in record.fields]
    return tuple((name, value) for name, value in found if value is not UNSET and getattr(cls, name, UNSET) is value)


def _plan(record: shapes.Record, known: Iterable[str]) -> _Plan:
    """`known` are the fields of the same class with other type arguments."""
    attribute = "keyword" if issubclass(record.source.cls, msgspec.Struct) else "name"
    inner = [getattr(field, attribute) for field in record.fields if any(map(_class_defaults, _records(field.shape)))]
    return _class_defaults(record), list(dict.fromkeys((*known, *inner)))


def _set_defaults(stack: list[Any], plans: Mapping[type, _Plan]) -> None:
    while stack:
        current = stack.pop()
        if type(current) in plans:
            defaults, names = plans[type(current)]
            for name, default in defaults:
                vars(current).setdefault(name, default)
            stack += [getattr(current, name) for name in names]
        elif isinstance(current, dict):
            stack += current.values()
        elif isinstance(current, (list, tuple, set, frozenset, deque)):
            stack += current
