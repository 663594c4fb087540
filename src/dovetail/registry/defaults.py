"""The defaults that users write: a parameter's must fit its annotation, a dataclass's must be in every object."""

import reprlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from dovetail.errors import SetupError
from dovetail.registry.fields import NO_CONSTRAINTS
from dovetail.registry.functions import Parameter
from dovetail.registry.misfits import UNEXPLAINED, misfits
from dovetail.registry.readers import TypeMaker
from dovetail.registry.shapes import Alternatives, Record, Reference, Scalar, Shape, reachable

T = TypeVar("T")

_MISFITS = (msgspec.DecodeError, ValueError, TypeError)
_PLAIN = (str, int, float, bool)  # whatever else somebody gives as a default is theirs to know


# Parameters


def refuse_misfit(parameter: Parameter, shape: Shape, where: str) -> None:
    """Raise SetupError for a plain default of the wrong type; one outside of its limits may well mean "not given"."""
    default = parameter.default
    if type(default) not in _PLAIN:
        return
    maker = TypeMaker()
    type_ = maker.make(_without_limits(shape))
    try:
        _convert(maker, default, type_)
    except _MISFITS as error:
        words = misfits(error)[0][1]
        reason = "" if words == UNEXPLAINED else f" ({words})"
        raise SetupError(
            f"{where}, parameter {parameter.name}: the default {reprlib.repr(default)} does not fit its annotation"
            f"{reason}; change the default or the annotation"
        ) from None


def _convert(maker: TypeMaker, default: Any, type_: Any) -> None:
    try:
        maker.convert(default, type_)
    except _MISFITS:
        if not isinstance(default, float) or not default.is_integer():
            raise
        maker.convert(int(default), type_)  # `limit: int = 1e6`


def _without_limits(shape: Shape) -> Shape:
    match shape:
        case Scalar():
            return msgspec.structs.replace(shape, constraints=NO_CONSTRAINTS)
        case Alternatives():
            return msgspec.structs.replace(shape, members=tuple(map(_without_limits, shape.members)))
        case Reference() if not isinstance(shape.definition.body, Record):
            return _without_limits(shape.definition.body)
    return shape


# Dataclasses


class _Plan(msgspec.Struct, frozen=True):
    """What to look after in the objects of one class."""

    defaults: tuple[tuple[str, Any], ...]  # fields that msgspec, if they are not given, leaves to the class
    inner: tuple[str, ...]  # attributes that lead to objects with such fields


def completing(read: Callable[[Any], T], shapes: Mapping[str, Shape]) -> Callable[[Any], T]:
    """The same reading of arguments, but its dataclasses have all their fields; `read` itself if they have anyway.

    msgspec does not set a field whose default is a plain value, because the class has it. Reading the attribute works
    then, but `vars` and every encoder that looks there would miss it.
    """
    inner = tuple(name for name, shape in shapes.items() if _has_class_defaults(shape))
    if not inner:
        return read
    plans: dict[type, _Plan] = {}
    for shape in shapes.values():
        for part in reachable(shape):
            if isinstance(part, Record):
                plans[part.source.cls] = _plan(part, plans.get(part.source.cls))

    def read_completely(raw: Any) -> T:
        arguments = read(raw)
        _complete([getattr(arguments, name) for name in inner], plans)
        return arguments

    return read_completely


def _plan(record: Record, other: _Plan | None) -> _Plan:
    """`other` is the plan of the same class with other type arguments."""
    attribute = "keyword" if issubclass(record.source.cls, msgspec.Struct) else "name"
    inner = [getattr(field.source, attribute) for field in record.fields if _has_class_defaults(field.shape)]
    return _Plan(_class_defaults(record), tuple(dict.fromkeys((*(other.inner if other else ()), *inner))))


def _has_class_defaults(shape: Shape) -> bool:
    return any(isinstance(part, Record) and _class_defaults(part) for part in reachable(shape))


def _class_defaults(record: Record) -> tuple[tuple[str, Any], ...]:
    cls = record.source.cls
    if not hasattr(cls, "__dataclass_fields__"):
        return ()
    found = [(field.source.name, field.source.default) for field in record.fields]
    return tuple((name, value) for name, value in found if value is not UNSET and getattr(cls, name, UNSET) is value)


def _complete(waiting: list[Any], plans: Mapping[type, _Plan]) -> None:
    while waiting:
        current = waiting.pop()
        plan = plans.get(type(current))
        if plan is not None:
            for name, default in plan.defaults:
                vars(current).setdefault(name, default)
            waiting += [getattr(current, name) for name in plan.inner]
        elif isinstance(current, dict):
            waiting += current.values()
        elif isinstance(current, (list, tuple, set, frozenset, deque)):
            waiting += current
