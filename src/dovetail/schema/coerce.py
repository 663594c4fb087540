"""A JSON value that did not fit its schema goes in; the value that the sender most likely meant comes out.

Two things happen, both guided by the schema. `5.0` where only an integer is wanted becomes `5`, because JSON Schema
calls it one. With `strings`, a string where none is wanted becomes the JSON that it holds, because models often encode
twice. A place that takes strings is never touched. Every look at a value with one part of the schema is paid for.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dovetail.schema.explain import Budget, size

_KINDS = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_OBJECTS = (dict, Mapping)  # the quick answer first
_INSIDE = frozenset({"properties", "additionalProperties", "prefixItems", "items"})
_EVERYTHING = frozenset(_KINDS.values())
_DEPTH = 16  # how many references, or alternatives in alternatives, are followed


class Coercion:
    """The second reading of a value."""

    def __init__(self, schema: Mapping[str, Any], budget: Budget) -> None:
        self._root = schema
        self._budget = budget
        self._wanted_by: dict[int, frozenset[str]] = {}  # the schema's parts live as long as the schema
        self._known: dict[tuple[int, int], tuple[Any, Any]] = {}  # keeps values, whose ids it knows

    def coerce(self, value: Any, *, strings: bool) -> Any:
        """The value as the schema suggests; the same object if nothing is to be changed, or looking costs too much."""
        try:
            return self._reread(value, self._root, strings)
        except Budget.Spent:
            return value

    def kinds(self, name: str) -> frozenset[str]:
        """The kinds of JSON value that a property may have."""
        return self._wanted(self._root["properties"][name])

    def _reread(self, value: Any, schema: Any, strings: bool) -> Any:
        self._budget.spend()
        schema = self._resolved(schema)
        if not isinstance(schema, _OBJECTS):
            return value
        key = id(schema), id(value)
        if key not in self._known:
            result = self._changed(value, schema, strings)
            self._known[key] = value, result
            self._known[id(schema), id(result)] = result, result
        return self._known[key][1]

    def _changed(self, value: Any, schema: Mapping[str, Any], strings: bool) -> Any:
        wanted = self._wanted(schema)
        if strings and isinstance(value, str) and "string" not in wanted:
            self._budget.spend(size(value))
            held = _held_json(value)
            if _kind(held) in wanted or (_is_whole(held) and "integer" in wanted):
                value = held
        if _is_whole(value) and "number" not in wanted and "integer" in wanted:
            return int(value)
        if not isinstance(value, (dict, list)):
            return value
        for branch in self._branches(schema, _kind(value)):
            value = self._reread(value, branch, strings)
        if _INSIDE.isdisjoint(schema):
            return value
        if isinstance(value, dict):
            return self._reread_object(value, schema, strings)
        return self._reread_array(value, schema, strings)

    def _reread_object(self, value: dict[str, Any], schema: Mapping[str, Any], strings: bool) -> dict[str, Any]:
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        changed = {key: self._reread(part, properties.get(key, others), strings) for key, part in value.items()}
        return value if all(changed[key] is value[key] for key in value) else changed

    def _reread_array(self, value: list[Any], schema: Mapping[str, Any], strings: bool) -> list[Any]:
        first, others = schema.get("prefixItems", []), schema.get("items")
        changed = [
            self._reread(part, first[at] if at < len(first) else others, strings) for at, part in enumerate(value)
        ]
        return value if all(new is old for new, old in zip(changed, value, strict=True)) else changed

    def _branches(self, schema: Mapping[str, Any], kind: str) -> Iterator[Any]:
        """The subschemas that surely apply: all of `allOf`, and an alternative if only one takes this kind of value."""
        yield from schema.get("allOf", ())
        for keyword in ("anyOf", "oneOf"):
            self._budget.spend(len(schema.get(keyword, ())))
            fitting = [part for part in schema.get(keyword, ()) if kind in self._wanted(part)]
            if len(fitting) == 1:
                yield fitting[0]

    def _wanted(self, schema: Any, depth: int = _DEPTH) -> frozenset[str]:
        """The kinds of JSON value that a schema may accept."""
        schema = self._resolved(schema)
        if not isinstance(schema, _OBJECTS) or depth == 0:
            return frozenset() if schema is False else _EVERYTHING
        known = self._wanted_by.get(id(schema))
        if known is None:
            known = self._wanted_by[id(schema)] = self._work_out(schema, depth)
        return known

    def _work_out(self, schema: Mapping[str, Any], depth: int) -> frozenset[str]:
        self._budget.spend()
        wanted = _EVERYTHING
        if "type" in schema:
            named = schema["type"]
            wanted = frozenset([named] if isinstance(named, str) else named)
            wanted |= {"integer"} if "number" in wanted else frozenset()
        if "enum" in schema or "const" in schema:
            wanted &= frozenset(map(_kind, schema.get("enum", [schema.get("const")])))
        for part in schema.get("allOf", ()):
            wanted &= self._wanted(part, depth - 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                wanted &= frozenset[str]().union(*(self._wanted(part, depth - 1) for part in schema[keyword]))
        return wanted

    def _resolved(self, schema: Any) -> Any:
        """Follow local references; one that leads nowhere accepts anything."""
        for _ in range(_DEPTH):
            reference = schema.get("$ref") if isinstance(schema, _OBJECTS) else None
            if not isinstance(reference, str):
                return schema
            schema = self._root if reference.startswith("#") else None
            for step in reference.split("/")[1:]:
                name = step.replace("~1", "/").replace("~0", "~")
                schema = schema.get(name) if isinstance(schema, _OBJECTS) else None
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
    return _KINDS.get(type(value), "object")
