"""Shapes of annotations; a type without a JSON form is refused, with the fix."""

import collections
import enum
import functools
import inspect
import operator
import re
import types
from collections import abc
from collections.abc import Callable, Hashable
from typing import Annotated, Any, Final, ForwardRef, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from dovetail import schema as lazy_schema
from dovetail.errors import SetupError
from dovetail.schema import shapes
from dovetail.schema.constraints import (
    LABELS,
    LIMITS,
    NO_CONSTRAINTS,
    Constraints,
    alias_value,
    is_alias,
    is_depends,
    is_model,
    merge,
    only_meta,
    read_metadata,
)
from dovetail.schema.encode import OutputError, encode_json
from dovetail.schema.shapes import Shape
from dovetail.schema.validate import Pattern

_MAX_DEFINITIONS = 500  # types in one schema
_MAX_NESTING = 50  # of classes: stops a generic class that contains ever new variants of itself

_ARRAYS: dict[Any, Callable[[Any], Any]] = {
    **{cls: cls for cls in (list, set, frozenset, tuple, collections.deque)},
    **dict.fromkeys((abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((abc.Set, abc.MutableSet), set),
}
_UNKNOWN_TO_MSGSPEC = frozenset({collections.deque, abc.Iterable})
_DICTIONARIES = frozenset({dict, abc.Mapping, abc.MutableMapping})
_ANYTHING = (Any, object, inspect.Parameter.empty)


def constrain(shape: Shape, constraints: Constraints, where: str, *, native: bool = False) -> Shape:
    """The shape with constraints applied; `native` if msgspec reads the same ones in the annotation."""
    if constraints.pattern is not None:
        Pattern(constraints.pattern, where=where)
    try:
        encode_json([constraints.examples, constraints.extra])
    except OutputError as error:
        raise SetupError(f"{where}: its examples or extra keywords can't be sent: {error}") from None
    limits = frozenset(constraints.limits())
    leftover = limits - _applicable(shape)
    if leftover:
        names = ", ".join(sorted(leftover))
        raise SetupError(f"{where}: {names} can't constrain this type; remove it, or check it inside the function")
    if isinstance(shape, shapes.Alternatives) and limits:
        own = [constraints.only(limits & _applicable(member)) for member in shape.members]
        members = tuple(constrain(member, each, where) for member, each in zip(shape.members, own, strict=True))
        shape = shapes.Alternatives(members=members, constraints=shape.constraints, altered=True)
        constraints = constraints.without(LIMITS)
    changed = bool(limits) and not (native and constraints.pattern is None and constraints.multiple_of is None)
    return msgspec.structs.replace(
        shape, constraints=merge(shape.constraints, constraints, where), altered=shape.altered or changed
    )


def _applicable(shape: Shape) -> frozenset[str]:
    match shape:
        case shapes.Scalar():
            return shape.kind.limits
        case shapes.Array() | shapes.Dictionary():
            return shapes.LENGTH
        case shapes.Alternatives():
            return frozenset[str]().union(*map(_applicable, shape.members))
    return frozenset()


class ShapeBuilder:
    """Builds the shapes of annotations that share definitions, such as the parameters of a function."""

    def __init__(self) -> None:
        self.definitions: dict[Hashable, shapes.Definition] = {}
        self._nesting = 0

    def read(self, annotation: Any, where: str) -> Shape:
        """The shape of an annotation. Raises SetupError."""
        origin = get_origin(annotation)
        if origin is Annotated:
            return self._annotated(annotation, where)
        if any(annotation is one for one in _ANYTHING):
            return shapes.Anything(altered=annotation is object)
        if annotation is None:
            annotation = types.NoneType
        if origin in (Union, types.UnionType):
            return self._union(annotation, where)
        if origin is Literal:
            return _literal(get_args(annotation), where)
        if is_model(annotation):
            is_class = hasattr(annotation, "model_fields")  # for which msgspec calls our hook
            return shapes.PydanticShape(type=lazy_schema.pydantic.PydanticType(annotation, where), altered=not is_class)
        if isinstance(annotation, type) and (kind := shapes.scalar_kind(annotation)) is not None:
            if hasattr(annotation, "__stored_type__"):  # a Handle; this refuses what can't be stored
                self.read(annotation.__stored_type__, where)
            return shapes.Scalar(kind=kind)
        if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
            return _enum(annotation, where)
        for read in (self._indirect, self._collection, self._record):
            shape = read(annotation, where)
            if shape is not None:
                return shape
        fix = getattr(annotation, "__json_fix__", "use a standard type, a dataclass, a TypedDict or a pydantic model")
        raise SetupError(f"{where}: {shown(annotation)} has no JSON form; {fix}")

    def _annotated(self, annotation: Any, where: str) -> Shape:
        inner, metadata = annotation.__origin__, annotation.__metadata__
        if any(map(is_depends, metadata)):
            raise SetupError(
                f"{where}: Depends(…) is for a whole parameter; write Annotated[…, Depends(…)] around it all"
            )
        try:
            constraints = read_metadata(metadata, where)
            if constraints.limits():
                while is_alias(inner):  # limits constrain the type behind it
                    inner = alias_value(inner, where)
            return constrain(self.read(inner, where), constraints, where, native=only_meta(metadata))
        except SetupError:
            if not _only_models(inner):
                raise
            # pydantic reads the metadata itself
            return shapes.PydanticShape(type=lazy_schema.pydantic.PydanticType(annotation, where), altered=True)

    def _indirect(self, annotation: Any, where: str) -> Shape | None:
        """The shape of a type variable, a new type or an alias."""
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
                f"{where}: {shown(annotation)} can't be resolved; for a type that contains itself use a class, or "
                "TypeAliasType"
            )
        if not is_alias(annotation):
            return None
        definition = self.definitions.get(_identity(annotation))
        if definition is None:
            definition = self._define(annotation, shapes.Anything(), where)
            definition.body = self.read(alias_value(annotation, where), where)
        return shapes.Reference(definition=definition, altered=True)

    def _union(self, annotation: Any, where: str) -> Shape:
        arguments = tuple(member for member in get_args(annotation) if member is not msgspec.UnsetType)
        models = [member for member in arguments if is_model(member)]
        if len(models) > 1 and _only_models(annotation):
            return shapes.PydanticShape(type=lazy_schema.pydantic.PydanticType(annotation, where), altered=True)
        members = tuple(self.read(member, where) for member in arguments)
        if len(members) == 1:
            return members[0]
        if any(isinstance(member, shapes.Anything) for member in members):
            return shapes.Anything()
        return _alternatives(members)

    def _collection(self, annotation: Any, where: str) -> Shape | None:
        origin = get_origin(annotation) or annotation
        arguments = get_args(annotation)
        if origin is tuple and annotation is not tuple and not (len(arguments) == 2 and arguments[1] is ...):
            return shapes.FixedArray(items=tuple(self.read(argument, where) for argument in arguments))
        if not isinstance(origin, type):
            return None
        if origin in _ARRAYS:
            item = self.read(arguments[0] if arguments else Any, where)
            if _ARRAYS[origin] in (set, frozenset) and not shapes.is_hashable(item):
                raise SetupError(f"{where}: {shown(arguments[0])} can't be the item of a set; use a list")
            return shapes.Array(item=item, container=_ARRAYS[origin], altered=origin in _UNKNOWN_TO_MSGSPEC)
        if origin in _DICTIONARIES:
            key, value = arguments or (str, Any)
            return shapes.Dictionary(key=self._key(key, where), value=self.read(value, where))
        return None

    def _key(self, annotation: Any, where: str) -> Shape:
        shape = self.read(str if annotation is Any else annotation, where)
        while isinstance(shape, shapes.Reference):
            shape = shape.definition.body
        match shape:
            case shapes.Scalar(kind=kind) if kind.json in ("string", "integer") and kind.limits != shapes.LENGTH:
                return shape
            case shapes.Choice() if shape.native is not None:
                return shape
        raise SetupError(f"{where}: {shown(annotation)} can't be the key of a JSON object; use str, int or Literal")

    def _record(self, annotation: Any, where: str) -> Shape | None:
        definition = self.definitions.get(_identity(annotation))
        if definition is not None:
            return shapes.Reference(definition=definition)
        source = shapes.read_record(annotation, where)
        if source is None:
            return None
        definition = self._define(annotation, shapes.Record(source=source), where)
        name, where = source.cls.__name__, where.partition(", field ")[0]
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise SetupError(f"{where}: {name} is nested more than {_MAX_NESTING} classes deep; use simpler ones")
        for field in source.fields:
            field.shape = self.read(field.annotation, f"{where}, field {field.name} of {name}")
        self._nesting -= 1
        return shapes.Reference(definition=definition)

    def _define(self, annotation: Any, body: Shape, where: str) -> shapes.Definition:
        name = _class_name(annotation)
        if len(self.definitions) >= _MAX_DEFINITIONS:
            raise SetupError(f"{where}: {name} contains more than {_MAX_DEFINITIONS} types; use simpler ones")
        taken = {definition.name for definition in self.definitions.values()}
        unique = next(n for n in (name, *(f"{name}_{i}" for i in range(2, _MAX_DEFINITIONS + 2))) if n not in taken)
        definition = self.definitions[_identity(annotation)] = shapes.Definition(unique, body)
        return definition


def nullable(shape: Shape) -> Shape:
    return _alternatives((shape, shapes.Scalar(kind=shapes.SCALARS[types.NoneType])))


def _alternatives(members: tuple[Shape, ...]) -> Shape:
    """A union. If it is one shape or null, it takes over the labels of that shape."""
    solid = [member for member in members if not shapes.is_null(member)]
    labels = solid[0].constraints.only(LABELS) if len(solid) == 1 else NO_CONSTRAINTS
    if labels != NO_CONSTRAINTS:
        bare = msgspec.structs.replace(solid[0], constraints=solid[0].constraints.without(LABELS))
        members = tuple(bare if member is solid[0] else member for member in members)
    return shapes.Alternatives(members=members, altered=shapes.needs_trial(members), constraints=labels)


def _literal(values: tuple[Any, ...], where: str) -> Shape:
    pairs = tuple((value.value if isinstance(value, enum.Enum) else value, value) for value in values)
    solid = tuple(pair for pair in pairs if pair[0] is not None)
    null = shapes.Scalar(kind=shapes.SCALARS[types.NoneType])
    if not solid:
        return null
    is_native = all(type(python) in (str, int) for _, python in solid)
    native = Literal[tuple(json for json, _ in solid)] if is_native else None
    choice = _choice(solid, native, "Literal", where)
    if len(solid) == len(pairs):
        return choice
    return shapes.Alternatives(members=(choice, null), altered=native is None)


def _enum(cls: type[enum.Enum], where: str) -> Shape:
    pairs = tuple((member.value, member) for member in cls)
    native = cls if {type(json) for json, _ in pairs} in ({str}, {int}) else None
    return _choice(pairs, native, cls.__name__, where, shapes.class_description(cls))


def _choice(
    pairs: tuple[tuple[Any, Any], ...], native: Any, name: str, where: str, description: str | None = None
) -> shapes.Choice:
    if not pairs:
        raise SetupError(f"{where}: {name} has no members; add some")
    for json, python in pairs:
        if not isinstance(json, (str, int, float)):
            raise SetupError(f"{where}: {python!r} of {name} has no JSON form; use strings or numbers as values")
    return shapes.Choice(pairs=pairs, native=native, altered=native is None, description=description)


def _only_models(annotation: Any) -> bool:
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    bare = [member.__origin__ if get_origin(member) is Annotated else member for member in members]
    return all(member is types.NoneType or is_model(member) for member in bare)


def _class_name(annotation: Any) -> str:
    cls = get_origin(annotation) or annotation
    parts = [cls.__name__, *(getattr(argument, "__name__", str(argument)) for argument in get_args(annotation))]
    return re.sub(r"\W+", "_", "_".join(parts)).strip("_")


def _identity(annotation: Any) -> Hashable:
    try:
        hash(annotation)
    except TypeError:
        return repr(annotation)
    return (annotation,)  # a tuple, so that a string annotation never equals a repr


def shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
