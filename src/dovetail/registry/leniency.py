"""A JSON value that did not fit its schema goes in; the value that the sender most likely meant comes out.

Two things happen, both guided by the schema. `5.0` where only an integer is wanted becomes `5`, because JSON Schema calls
it one. With `strings`, a string where none is wanted becomes the JSON that it holds, because models often encode twice. A
place that takes strings is never touched.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_REFERENCES = 16  # how many references in a row are followed


def reread(value: Any, schema: Any, root: Mapping[str, Any], *, strings: bool) -> Any:
    """The value as the schema suggests; the same object if there was nothing to change."""
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping):
        return value
    wanted = _wanted(schema, root, _REFERENCES)
    if strings and isinstance(value, str) and "string" not in wanted:
        held = _held_json(value)
        if _kind(held) in wanted or (_is_whole(held) and "integer" in wanted):
            value = held
    if _is_whole(value) and "number" not in wanted and "integer" in wanted:
        return int(value)
    if isinstance(value, dict):
        return _reread_object(value, schema, root, strings)
    if isinstance(value, list):
        return _reread_array(value, schema, root, strings)
    return value


def _reread_object(value: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], strings: bool) -> Any:
    for branch in _branches(schema, value, root):
        value = reread(value, branch, root, strings=strings)
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", {})
    changed = {
        key: reread(part, properties.get(key, others), root, strings=strings) for key, part in value.items()
    }
    return value if all(changed[key] is value[key] for key in value) else changed


def _reread_array(value: list[Any], schema: Mapping[str, Any], root: Mapping[str, Any], strings: bool) -> Any:
    for branch in _branches(schema, value, root):
        value = reread(value, branch, root, strings=strings)
    first = schema.get("prefixItems", [])
    others = schema.get("items", {})
    changed = [
        reread(part, first[at] if at < len(first) else others, root, strings=strings) for at, part in enumerate(value)
    ]
    return value if all(new is old for new, old in zip(changed, value, strict=True)) else changed


def _branches(schema: Mapping[str, Any], value: Any, root: Mapping[str, Any]) -> list[Any]:
    """The subschemas that surely apply: all of `allOf`, and an alternative if only one takes this kind of value."""
    found = list(schema.get("allOf", ()))
    for keyword in ("anyOf", "oneOf"):
        fitting = [part for part in schema.get(keyword, ()) if _kind(value) in _wanted(part, root, _REFERENCES)]
        if len(fitting) == 1:
            found.append(fitting[0])
    return found


def _wanted(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    """The kinds of JSON value that a schema may accept."""
    schema = _resolved(schema, root)
    if schema is False:
        return frozenset()
    if not isinstance(schema, Mapping) or depth == 0:
        return _TYPES
    wanted = _TYPES
    if "type" in schema:
        named = schema["type"]
        wanted = frozenset([named] if isinstance(named, str) else named)
        wanted |= {"integer"} if "number" in wanted else set()
    if "enum" in schema or "const" in schema:
        wanted &= frozenset(map(_kind, schema.get("enum", [schema.get("const")])))
    for part in schema.get("allOf", ()):
        wanted &= _wanted(part, root, depth - 1)
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            wanted &= frozenset[str]().union(*(_wanted(part, root, depth - 1) for part in schema[keyword]))
    return wanted


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Follow local references; one that leads nowhere accepts anything."""
    for _ in range(_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str):
            return schema
        target: Any = root if reference.startswith("#") else None
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, Mapping) else None
        schema = target
    return True


def _held_json(text: str) -> Any:
    """The JSON value that a string holds; the string itself if it holds none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _kind(value: Any) -> str:
    return _KINDS[type(value)]


_KINDS = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
