"""Coercion of JSON values that do not fit their schema.

Where the schema takes integers only, `5.0` becomes `5`, which is an integer in JSON Schema. With `strings`, a string
where the schema takes none becomes the JSON that it holds, because models often encode twice. A string that fits is
never changed. Each visit of a value with a part of the schema is paid from the budget.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dovetail.schema.explain import Budget, size
from dovetail.schema.generate import JSON_TYPES

_KINDS = {**JSON_TYPES, type(None): "null", list: "array", dict: "object"}
_OBJECTS = (dict, Mapping)  # the fast check first
_APPLICATORS = frozenset({"properties", "additionalProperties", "prefixItems", "items"})
_EVERYTHING = frozenset(_KINDS.values())
_MAX_DEPTH = 16  # of references and nested alternatives


class Coercion:
    """Coerces values to one schema."""

    def __init__(self, schema: Mapping[str, Any], budget: Budget) -> None:
        self._root = schema
        self._budget = budget
        self._accepted_by: dict[int, frozenset[str]] = {}  # by id of a schema part
        self._results: dict[tuple[int, int], tuple[Any, Any]] = {}  # by ids; holds the values, so ids stay unique

    def coerce(self, value: Any, *, strings: bool) -> Any:
        """The coerced value; the same object if nothing changes, or if the budget is spent."""
        try:
            return self._visit(value, self._root, strings)
        except Budget.Spent:
            return value

    def kinds(self, name: str) -> frozenset[str]:
        """The kinds of JSON value that the schema of a property accepts."""
        return self._accepted(self._root["properties"][name])

    def _visit(self, value: Any, schema: Any, strings: bool) -> Any:
        self._budget.spend()
        schema = self._resolved(schema)
        if not isinstance(schema, _OBJECTS):
            return value
        key = id(schema), id(value)
        if key not in self._results:
            result = self._coerced(value, schema, strings)
            self._results[key] = value, result
            self._results[id(schema), id(result)] = result, result
        return self._results[key][1]

    def _coerced(self, value: Any, schema: Mapping[str, Any], strings: bool) -> Any:
        accepted = self._accepted(schema)
        if strings and isinstance(value, str) and "string" not in accepted:
            self._budget.spend(size(value))
            parsed = _parse_string(value)
            if _kind(parsed) in accepted or (_is_whole(parsed) and "integer" in accepted):
                value = parsed
        if _is_whole(value) and "number" not in accepted and "integer" in accepted:
            return int(value)
        if not isinstance(value, (dict, list)):
            return value
        for branch in self._branches(schema, _kind(value)):
            value = self._visit(value, branch, strings)
        if _APPLICATORS.isdisjoint(schema):
            return value
        if isinstance(value, dict):
            return self._object(value, schema, strings)
        return self._array(value, schema, strings)

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any], strings: bool) -> dict[str, Any]:
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        changed = {key: self._visit(part, properties.get(key, others), strings) for key, part in value.items()}
        return value if all(changed[key] is value[key] for key in value) else changed

    def _array(self, value: list[Any], schema: Mapping[str, Any], strings: bool) -> list[Any]:
        first, others = schema.get("prefixItems", []), schema.get("items")
        schemas = itertools.chain(first, itertools.repeat(others))
        changed = [self._visit(part, inner, strings) for part, inner in zip(value, schemas, strict=False)]
        return value if all(new is old for new, old in zip(changed, value, strict=True)) else changed

    def _branches(self, schema: Mapping[str, Any], kind: str) -> Iterator[Any]:
        """The subschemas that surely apply: all of `allOf`, and an alternative if only one accepts the kind."""
        yield from schema.get("allOf", ())
        for keyword in ("anyOf", "oneOf"):
            self._budget.spend(len(schema.get(keyword, ())))
            fitting = [part for part in schema.get(keyword, ()) if kind in self._accepted(part)]
            if len(fitting) == 1:
                yield fitting[0]

    def _accepted(self, schema: Any, depth: int = _MAX_DEPTH) -> frozenset[str]:
        """The kinds of JSON value that a schema may accept."""
        schema = self._resolved(schema)
        if not isinstance(schema, _OBJECTS) or depth == 0:
            return frozenset() if schema is False else _EVERYTHING
        known = self._accepted_by.get(id(schema))
        if known is None:
            known = self._accepted_by[id(schema)] = self._accepted_kinds(schema, depth)
        return known

    def _accepted_kinds(self, schema: Mapping[str, Any], depth: int) -> frozenset[str]:
        self._budget.spend()
        kinds = _EVERYTHING
        if "type" in schema:
            named = schema["type"]
            kinds = frozenset([named] if isinstance(named, str) else named)
            kinds |= {"integer"} if "number" in kinds else frozenset()
        if "enum" in schema or "const" in schema:
            kinds &= frozenset(map(_kind, schema.get("enum", [schema.get("const")])))
        for part in schema.get("allOf", ()):
            kinds &= self._accepted(part, depth - 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                kinds &= frozenset[str]().union(*(self._accepted(part, depth - 1) for part in schema[keyword]))
        return kinds

    def _resolved(self, schema: Any) -> Any:
        """The target of local references; an unknown one accepts anything."""
        for _ in range(_MAX_DEPTH):
            reference = schema.get("$ref") if isinstance(schema, _OBJECTS) else None
            if not isinstance(reference, str):
                return schema
            schema = self._root if reference.startswith("#") else None
            for step in reference.split("/")[1:]:
                name = step.replace("~1", "/").replace("~0", "~")
                schema = schema.get(name) if isinstance(schema, _OBJECTS) else None
        return True


def _parse_string(text: str) -> Any:
    """The JSON value in a string; the string itself if there is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "object")
