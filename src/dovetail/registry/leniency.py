"""A JSON value that did not fit its schema goes in; the value that the sender most likely meant comes out.

Two things happen, both guided by the schema. `5.0` where only an integer is wanted becomes `5`, because JSON Schema
calls it one. With `strings`, a string where none is wanted becomes the JSON that it holds, because models often encode
twice. A place that takes strings is never touched. Every look at a value with one part of the schema is paid for.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dovetail.registry.soundness import Budget

_KINDS = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_EVERYTHING = frozenset(_KINDS.values())
_DEPTH = 16  # how many references, or alternatives in alternatives, are followed


class _Part(NamedTuple):
    """A subschema, but for what does not matter here."""

    wanted: frozenset[str]
    branches: dict[str, list[Any]]  # what surely applies to a value as well, by the kind of the value
    properties: Mapping[str, Any]
    others: Mapping[str, Any] | None
    first: list[Any]
    items: Mapping[str, Any] | None


class _Spent(Exception):
    """The budget does not reach any further."""


class Leniency:
    """The second reading of a value."""

    def __init__(self, schema: Mapping[str, Any], budget: Budget) -> None:
        self._root = schema
        self._budget = budget
        self._strings = False
        self._wanted_by: dict[int, frozenset[str]] = {}  # the schema's parts live as long as the schema
        self._parts: dict[int, _Part | None] = {}
        self._known: dict[tuple[int, int], tuple[Any, Any]] = {}  # a value, kept for the sake of its id, and the result

    def reread(self, value: Any, *, strings: bool) -> Any:
        """The value as the schema suggests; the same object if nothing is to be changed, or looking costs too much."""
        self._strings = strings
        try:
            return self._reread(value, self._root)
        except _Spent:
            return value

    def kinds(self, name: str) -> frozenset[str]:
        """The kinds of JSON value that a property may have."""
        return self._wanted(self._root["properties"][name])

    def _pay(self, nodes: int = 1) -> None:
        if not self._budget.spend(nodes):
            raise _Spent

    def _reread(self, value: Any, schema: Any) -> Any:
        part = self._part(schema)
        if part is None:
            return value
        self._pay()
        key = id(part), id(value)
        if key not in self._known:
            result = self._changed(value, part)
            self._known[key] = value, result
            self._known[id(part), id(result)] = result, result
        return self._known[key][1]

    def _changed(self, value: Any, part: _Part) -> Any:
        if self._strings and isinstance(value, str) and "string" not in part.wanted:
            self._pay(self._budget.size(value))
            held = _held_json(value)
            if _kind(held) in part.wanted or (_is_whole(held) and "integer" in part.wanted):
                self._budget.widen(held)
                value = held
        if _is_whole(value) and "number" not in part.wanted and "integer" in part.wanted:
            return int(value)
        if not isinstance(value, (dict, list)):
            return value
        for branch in part.branches[_kind(value)]:
            value = self._reread(value, branch)
        return self._object(value, part) if isinstance(value, dict) else self._array(value, part)

    def _object(self, value: dict[str, Any], part: _Part) -> dict[str, Any]:
        names = value.keys() if part.others else value.keys() & part.properties.keys()
        read = {name: self._reread(value[name], part.properties.get(name, part.others)) for name in names}
        changed = {name: new for name, new in read.items() if new is not value[name]}
        return value | changed if changed else value

    def _array(self, value: list[Any], part: _Part) -> list[Any]:
        rest = value[len(part.first) :]
        read = [self._reread(item, inner) for item, inner in zip(value, part.first, strict=False)]
        read += [self._reread(item, part.items) for item in rest] if part.items else rest
        return value if all(new is old for new, old in zip(read, value, strict=True)) else read

    def _part(self, schema: Any) -> _Part | None:
        """None if the schema says nothing."""
        if id(schema) not in self._parts:
            found = self._resolved(schema)
            if id(found) not in self._parts:
                self._parts[id(found)] = self._condensed(found) if isinstance(found, Mapping) else None
            self._parts[id(schema)] = self._parts[id(found)]
        return self._parts[id(schema)]

    def _condensed(self, schema: Mapping[str, Any]) -> _Part:
        branches = {kind: [*schema.get("allOf", ())] for kind in ("array", "object")}
        for kind, found in branches.items():
            for keyword in ("anyOf", "oneOf"):
                fitting = [part for part in schema.get(keyword, ()) if kind in self._wanted(part)]
                found += fitting if len(fitting) == 1 else ()
        others, items = schema.get("additionalProperties"), schema.get("items")
        return _Part(
            wanted=self._wanted(schema),
            branches=branches,
            properties=schema.get("properties", {}),
            others=others if isinstance(others, Mapping) else None,
            first=schema.get("prefixItems", []),
            items=items if isinstance(items, Mapping) else None,
        )

    def _wanted(self, schema: Any, depth: int = _DEPTH) -> frozenset[str]:
        """The kinds of JSON value that a schema may accept."""
        schema = self._resolved(schema)
        if not isinstance(schema, Mapping) or depth == 0:
            return frozenset() if schema is False else _EVERYTHING
        known = self._wanted_by.get(id(schema))
        if known is None:
            known = self._wanted_by[id(schema)] = self._work_out(schema, depth)
        return known

    def _work_out(self, schema: Mapping[str, Any], depth: int) -> frozenset[str]:
        self._pay()
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
            reference = schema.get("$ref") if isinstance(schema, Mapping) else None
            if not isinstance(reference, str):
                return schema
            schema = self._root if reference.startswith("#") else None
            for step in reference.split("/")[1:]:
                name = step.replace("~1", "/").replace("~0", "~")
                schema = schema.get(name) if isinstance(schema, Mapping) else None
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
