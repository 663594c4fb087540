"""Values of a URI: one comes in; out goes what it is written like, or what is the same for all that are the same."""

from collections.abc import Hashable, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any

_DEEPEST = 32  # levels of lists and objects at which values are still compared
_FIELD_TABLES = ("__dataclass_fields__", "__struct_fields__", "model_fields")  # the last one is pydantic's
_SIMPLE = frozenset((str, int, float, bool, type(None)))  # most values


def default_texts(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What default values are written like, as far as they are."""
    return {name: as_text(value) for name, value in defaults.items() if value is not None}


def as_text(value: Any) -> str | list[str] | dict[str, str] | None:
    """What a value is written like in a template that has it in its text."""
    if value is None or isinstance(value, str):
        return value
    if type(value) in _SIMPLE:
        return _word(value)
    if isinstance(value, Mapping):
        return {str(key): _word(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_word(item) for item in value]
    return _word(value)


def _word(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Decimal) and value.is_finite():
        value = float(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        return str(value).lower() if isinstance(value, bool) else str(value)
    except RecursionError:  # nobody has such a thing in a template
        return ""


def comparable_value(value: Any, depth: int = 0) -> Hashable:
    """What is the same for values that are the same, and can be looked up. When in doubt, more is the same."""
    if depth == _DEEPEST:
        return None
    kind: Any = type(value)
    if kind in _SIMPLE or isinstance(value, Enum):
        return value if value == value else repr(value)  # a NaN is never equal, but it is the same
    if isinstance(value, Mapping):
        return frozenset(
            (comparable_value(key, depth + 1), comparable_value(item, depth + 1)) for key, item in value.items()
        )
    if isinstance(value, list | tuple):
        return tuple(comparable_value(item, depth + 1) for item in value)
    if isinstance(value, set | frozenset):
        return frozenset(comparable_value(item, depth + 1) for item in value)
    settings = getattr(kind, "__struct_config__", None)  # only this tells whether a Struct has an equality of its own
    if kind.__eq__ is not object.__eq__ and (settings is None or settings.eq):
        try:
            hash(value)
        except TypeError:
            pass
        else:
            return value if value == value else repr(value)
    return kind, tuple(comparable_value(getattr(value, name, None), depth + 1) for name in _fields(kind))


def _fields(kind: type) -> list[str]:
    """Those that a record was declared with; what it holds besides may lead anywhere."""
    names = [name for table in _FIELD_TABLES for name in getattr(kind, table, ())]
    return names + [field.name for field in getattr(kind, "__attrs_attrs__", ())]
