"""What fills in a form of a server's: its schema and the values come in; what does not fit goes out in words.

Forms are flat, so this is all that their schemas can say but for formats and patterns. What else a server writes there
is its own affair: a value is refused only for what is clear.
"""

from collections.abc import Callable, Container, Mapping
from typing import Any

_Judge = Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


TYPES: dict[str, tuple[str, _Judge]] = {
    "string": ("a string", _is_text),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "number": ("a number", _is_number),
    "integer": ("a whole number", lambda value: _is_number(value) and value == value // 1),
    "array": ("a list", _is_list),
}
LIMITS: dict[str, tuple[str, _Judge, Callable[[Any, Any], bool]]] = {
    "minLength": ("at least {} characters", _is_text, lambda value, limit: len(value) >= limit),
    "maxLength": ("at most {} characters", _is_text, lambda value, limit: len(value) <= limit),
    "minimum": ("at least {}", _is_number, lambda value, limit: value >= limit),
    "maximum": ("at most {}", _is_number, lambda value, limit: value <= limit),
    "minItems": ("at least {} values", _is_list, lambda value, limit: len(value) >= limit),
    "maxItems": ("at most {} values", _is_list, lambda value, limit: len(value) <= limit),
}


def misfit(schema: Mapping[str, Any], content: Mapping[str, Any], besides: Container[str] = ()) -> str | None:
    """None if it fits. `besides`: the fields that have a value without it."""
    fields = schema.get("properties", {})
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in content and name not in besides:
            return f"{name[:100]} is missing"
    for name, value in content.items():
        wanted = _wanted(fields[name], value) if name in fields else None
        if wanted is not None:
            return f"{name} must be {wanted}"
    return None


def _wanted(field: Mapping[str, Any], value: Any) -> str | None:
    """What a value would have to be, and is not."""
    kind = field.get("type")
    if isinstance(kind, str) and kind in TYPES:
        words, fits = TYPES[kind]
        if not fits(value):
            return words
    for keyword, (words, concerns, fits_limit) in LIMITS.items():
        limit = field.get(keyword)
        if _is_number(limit) and concerns(value) and not fits_limit(value, limit):
            return words.format(limit)
    if _is_list(value):
        items = field.get("items")
        return _not_chosen(items, value, "only of") if isinstance(items, Mapping) else None
    return _not_chosen(field, [value], "one of")


def _not_chosen(field: Mapping[str, Any], values: Any, words: str) -> str | None:
    choices = _choices(field)
    if choices is None or all(any(_same(value, choice) for choice in choices) for value in values):
        return None
    return f"{words} {', '.join(str(choice)[:100] for choice in choices[:20])}"


def _same(value: Any, choice: Any) -> bool:
    return bool(value == choice) and isinstance(value, bool) == isinstance(choice, bool)


def _choices(field: Mapping[str, Any]) -> list[Any] | None:
    if isinstance(field.get("enum"), list):
        return list(field["enum"])
    titled = field.get("oneOf", field.get("anyOf"))
    if isinstance(titled, list) and all(isinstance(each, Mapping) and "const" in each for each in titled):
        return [each["const"] for each in titled]
    return None
