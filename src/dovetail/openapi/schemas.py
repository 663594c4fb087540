"""JSON Schemas (2020-12) of the schemas of OpenAPI 3.0 and 3.1, in as few bytes as they need.

References are inlined, and each is converted once; one that leads back to itself is kept as `$ref` into `$defs`. The
schemas of requests lose what the validator can't check and what clients refuse. Those of responses say types and
properties only, and every value may be null, because real APIs differ from what they promise.
"""

import re
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import msgspec

from dovetail.errors import SetupError
from dovetail.openapi.document import BadReference, Document, as_object
from dovetail.schema.explain import is_within_limits
from dovetail.schema.validate import Pattern, SchemaDocument, SchemaLimits

Schema = dict[str, Any]
_json = msgspec.json.encode

MAX_STEPS = 5_000_000  # nodes of one document that are converted, merged or measured
MAX_LEVELS = 64  # of one schema; below half of it a reference is no longer inlined
MAX_MERGED_LEVELS = 8  # of properties that are merged by `allOf`
MAX_PATTERNS = 2_000  # different ones of a document
MAX_BAD_PATTERNS = 50  # of them; each takes milliseconds
MAX_PATTERN = 1_000  # characters
MAX_LEAF = 300  # bytes of a schema that is whole at the last level that is shown
LEVELS = (24, 10, 8, 6, 5, 4, 3, 2, 1)  # of a schema that are shown: the first of them that fits

_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
_UNLIKE = frozenset({"time", "duration", "regex", "hostname", "uri-reference", "iri", "iri-reference", "uri-template"})
_UNLIKE |= {"idn-email", "idn-hostname", "json-pointer", "relative-json-pointer"}  # APIs use these names in other ways
_TEXT_MEDIA = re.compile(r"text/|application/json|.*\+(json|xml)|application/xml")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_shallow(value: Any) -> bool:
    return is_within_limits(value, MAX_LEVELS, sys.maxsize)  # the validator crashes if a schema holds a deep value


_KEYWORDS: dict[str, Callable[[Any], bool]] = {  # of requests, with what their values have to be
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("format", "pattern", "contentEncoding", "contentMediaType"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("uniqueItems", "deprecated"), lambda value: value is True),
    **dict.fromkeys(("const", "default"), _is_shallow),
    "enum": lambda value: isinstance(value, list) and bool(value) and _is_shallow(value),
    "required": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "multipleOf": lambda value: _is_number(value) and value > 0,
}
_LATER_WINS = ("description", "default", "deprecated")  # where `allOf` merges
_MERGED: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    "required": lambda first, second: list(dict.fromkeys([*first, *second])),
    "allOf": lambda first, second: [*first, *second],
    "additionalProperties": lambda first, second: first if second is False else second,
}
_LISTS = ("anyOf", "allOf", "prefixItems")
_NESTING = ("properties", "items", "additionalProperties", *_LISTS)
_COMPOSED = ("$ref", "anyOf", "allOf")


class Schemas:
    """The schemas of one document, of requests or of responses. Converted ones share their parts: never change one."""

    def __init__(
        self, document: Document, describe: Callable[[str], str], notes: list[str], *, is_response: bool = False
    ) -> None:
        self._document = document
        self._describe = describe
        self._notes = notes
        self._is_response = is_response
        self._hidden = "writeOnly" if is_response else "readOnly"
        self._known: dict[str, Schema] = {}  # by the key of their references
        self._open: set[str] = set()  # those that are being converted
        self._names: dict[str, str] = {}  # of the ones that are kept as `$ref`
        self._references: dict[str, tuple[str, str]] = {}  # by these names: a reference, and the file it is in
        self._patterns: dict[str, bool] = {}
        self._bad_patterns = 0
        self._measured: dict[tuple[int, int], tuple[int, frozenset[str], Schema]] = {}
        self._level = 0
        self._steps = 0

    def convert(self, node: Any, base: str) -> Schema:
        """The JSON Schema of a schema in the file `base`; one that is broken or nested too deeply accepts anything."""
        self._count(1)
        if not isinstance(node, dict) or self._level >= MAX_LEVELS:
            return {}
        self._level += 1
        try:
            parts = [self.convert(each, base) for each in _as_list(node.get("allOf"))]
            if isinstance(node.get("$ref"), str):
                parts.append(self._follow(node["$ref"], base))
            own = self._own(node, base)
            schema = reduce(self._merge, [*parts, own]) if parts else own
        finally:
            self._level -= 1
        if "required" in schema and "properties" in schema and not schema.keys() & {*_COMPOSED}:
            needed = [name for name in schema["required"] if name in schema["properties"]]
            schema = {**schema, "required": needed}
        return _allow_null(schema) if node.get("nullable") is True and not self._is_response else schema

    def expand(self, schema: Schema) -> Schema:
        """The schema with a `$ref` at its root replaced by what it means."""
        for _ in range(MAX_LEVELS):
            if "$ref" not in schema:
                break
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            schema = self._merge(self._definition(schema["$ref"].removeprefix("#/$defs/")), rest)
        return schema

    def bound(self, schema: Schema, most: int, levels: tuple[int, ...] = LEVELS) -> tuple[Schema, bool] | None:
        """The schema with its `$defs` in at most so many bytes, and whether deeper levels are cut off.

        None if it does not fit, or if the validator would refuse it.
        """
        for level in levels:
            size, names = self._measure_all(schema, level)
            if size <= most:
                bounded = self._cut(schema, level)
                if names:
                    bounded["$defs"] = {name: self._cut(self._definition(name), level) for name in names}
                if self._is_usable(bounded, size):
                    return bounded, level != levels[0]
        return None

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise SetupError("the document: its schemas are too large, or multiply; choose operations by only=[…]")

    def _follow(self, reference: str, base: str) -> Schema:
        try:
            target = self._document.resolve(reference, base)
        except BadReference as problem:
            note = f"{reference[:200]}: {problem}; values of it are not checked"
            if note not in self._notes:
                self._notes.append(note)
            return {}
        key = target.key
        if key in self._open or (key not in self._known and self._level > MAX_LEVELS // 2):
            return {"$ref": f"#/$defs/{self._name(key, reference, base)}"}
        if key not in self._known:
            self._open.add(key)
            try:
                self._known[key] = self.convert(target.value, target.base)
            finally:
                self._open.remove(key)
        return {"$ref": f"#/$defs/{self._names[key]}"} if key in self._names else self._known[key]

    def _name(self, key: str, reference: str, base: str) -> str:
        if key not in self._names:
            name = stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", key.rpartition("/")[2])[:60] or "schema"
            while name in self._references:
                name = f"{stem}_{len(self._references)}"
            self._names[key] = name
            self._references[name] = (reference, base)
        return self._names[key]

    def _definition(self, name: str) -> Schema:
        reference, base = self._references[name]
        key = self._document.resolve(reference, base).key
        if key not in self._known:
            self._follow(reference, base)
        return self._known[key]

    def _own(self, node: Schema, base: str) -> Schema:
        """The keywords of a schema itself, without `allOf` and `$ref`."""
        types = _types(node)
        own = {} if self._is_response else self._assertions(node, types)
        if isinstance(text := node.get("description"), str) and (text := self._describe(text)):
            own["description"] = text
        if self._is_response and types:
            types = [*(kind for kind in types if kind != "null"), "null"]
        if types:
            own["type"] = types[0] if len(types) == 1 else types
        if "object" in types:
            self._add_properties(own, node, base)
        if "array" in types:
            own["items"] = self.convert(node.get("items"), base)
            if members := _as_list(node.get("prefixItems")):
                own["prefixItems"] = [self.convert(each, base) for each in members]
        for union in filter(None, (_as_list(node.get(word)) for word in ("anyOf", "oneOf"))):
            members = [self.convert(each, base) for each in union]
            own = self._merge(own, members[0] if len(members) == 1 else {"anyOf": members})
        return own

    def _add_properties(self, own: Schema, node: Schema, base: str) -> None:
        given = as_object(node.get("properties"))
        shown = {name: each for name, each in given.items() if each is not False and not self._is_hidden(each, base)}
        if shown:
            own["properties"] = {name: self.convert(each, base) for name, each in shown.items()}
        free = node.get("additionalProperties", True)
        if isinstance(free, dict) and free:
            own["additionalProperties"] = self.convert(free, base)
        elif free is False and not self._is_response and "patternProperties" not in node:
            own["additionalProperties"] = False
        elif node.get("additionalProperties") is True or not (given or node.keys() & {*_COMPOSED, "oneOf"}):
            own["additionalProperties"] = True

    def _is_hidden(self, node: Any, base: str) -> bool:
        if not isinstance(node, dict):
            return False
        try:
            target = self._document.follow(node, base)[0] if "$ref" in node else node
        except BadReference:
            return False
        return node.get(self._hidden) is True or as_object(target).get(self._hidden) is True

    def _assertions(self, node: Schema, types: list[str]) -> Schema:
        own = {key: value for key, value in node.items() if key in _KEYWORDS and _KEYWORDS[key](value)}
        for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if node.get(exclusive) is True and limit in own:  # as in OpenAPI 3.0
                own[exclusive] = own.pop(limit)
        if "required" in own:
            own["required"] = list(dict.fromkeys(own["required"]))
        if own.get("format") in _UNLIKE or "string" not in types:
            own.pop("format", None)
        if "pattern" in own and not self._is_light(own["pattern"]):
            del own["pattern"]
        if types == ["string"] and "enum" in own:  # YAML reads 1.0 and true as other things than texts
            own["enum"] = [value if isinstance(value, str) else _json(value).decode() for value in own["enum"]]
        if "default" in own and not _fits(own["default"], types, own):
            del own["default"]
        media = own.get("contentMediaType")
        if media and "contentEncoding" not in own and not _TEXT_MEDIA.match(media):
            own["format"] = "binary"
        if own.get("format") == "binary":
            own["contentEncoding"] = "base64"
        return own

    def _is_light(self, pattern: str) -> bool:
        """Whether the validator takes a pattern, and is fast with it."""
        is_allowed = len(self._patterns) < MAX_PATTERNS and self._bad_patterns < MAX_BAD_PATTERNS
        if pattern not in self._patterns and is_allowed:
            try:
                is_light = len(pattern) <= MAX_PATTERN and Pattern(pattern, where="").max_text == sys.maxsize
            except SetupError:
                is_light = False
            self._patterns[pattern] = is_light
            if not is_light:
                self._bad_patterns += 1
                self._notes.append(f"the pattern {pattern[:200]} is not checked: it is slow, or of another dialect")
        return self._patterns.get(pattern, False)

    def _merge(self, first: Schema, second: Schema, level: int = 0) -> Schema:
        """One schema for both, as in `allOf`. What can't be merged stays in an `allOf`; in responses it is left out."""
        self._count(len(first) + len(second))
        merged, rest = {**first, **second}, {}
        for key in [key for key in first if key in second and key not in _LATER_WINS]:
            one, other = first[key], second[key]
            if key == "properties":
                same = [name for name in one if name in other and one[name] is not other[name]]
                both = {name: self._merge_values(one[name], other[name], level) for name in same}
                merged[key] = {**one, **other, **both}
            elif key in ("items", "additionalProperties") and isinstance(one, dict) and isinstance(other, dict):
                merged[key] = self._merge_values(one, other, level)
            elif key in _MERGED:
                merged[key] = _MERGED[key](one, other)
            elif key == "type" and (types := _common_types(one, other)):
                merged[key] = types
            elif key in _LISTS or one != other:
                merged[key], rest[key] = one, other
        if self._is_response:
            return {key: value for key, value in merged.items() if key not in rest}
        return {**merged, "allOf": [*merged.get("allOf", ()), rest]} if rest else merged

    def _merge_values(self, first: Schema, second: Schema, level: int) -> Schema:
        return self._merge(first, second, level + 1) if level < MAX_MERGED_LEVELS else {"allOf": [first, second]}

    def _measure_all(self, schema: Schema, level: int) -> tuple[int, list[str]]:
        """The bytes of a schema with its `$defs`, and the names of these."""
        size, found, _ = self._measure(schema, level)
        names = sorted(found)
        for name in names:  # grows
            more, found, _ = self._measure(self._definition(name), level)
            size += more + len(name) + 12
            names += sorted(found.difference(names))
        return size, names

    def _measure(self, schema: Schema, level: int) -> tuple[int, frozenset[str], Schema]:
        """The bytes of a schema that is cut at a level, the names of its `$ref`s, and itself, so that its id stays."""
        key = (id(schema), level)
        if key not in self._measured:
            self._count(1)
            if not schema.keys() & {*_NESTING, "$ref"} or level == 0:
                self._measured[key] = len(_json(schema if level else _open(schema))), frozenset(), schema
            else:
                size = len(_json({key: value for key, value in schema.items() if key not in _NESTING}))
                names = {schema["$ref"].removeprefix("#/$defs/")} if "$ref" in schema else set()
                for keyword, name, part in _parts(schema):
                    inner, more, _ = self._measure(part, level - 1)
                    size += inner + len(name) + len(keyword)
                    names |= more
                self._measured[key] = size, frozenset(names), schema
        return self._measured[key]

    def _cut(self, schema: Schema, level: int) -> Schema:
        """A copy of a schema with so many levels; what is deeper may be anything of its type."""
        if level == 0:
            return _open(schema)
        copy = dict(schema)
        for keyword in [keyword for keyword in schema if keyword in _NESTING]:
            value = schema[keyword]
            if keyword == "properties":
                copy[keyword] = {name: self._cut(part, level - 1) for name, part in value.items()}
            elif isinstance(value, list):
                copy[keyword] = [self._cut(part, level - 1) for part in value]
            elif isinstance(value, dict):
                copy[keyword] = self._cut(value, level - 1)
        return copy

    def _is_usable(self, schema: Schema, size: int) -> bool:
        """Whether the validator takes a schema; a small one without references is sure to pass."""
        try:
            if "$defs" in schema or size > 16 * 1024:
                SchemaDocument(schema, "", SchemaLimits())
        except SetupError:
            return False
        return True


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _types(node: Schema) -> list[str]:
    """The types that a schema names; if it names none, those that its keywords are for."""
    given = node.get("type")
    if named := [kind for kind in (given if isinstance(given, list) else [given]) if kind in [*_PYTHON_TYPES]]:
        return list(dict.fromkeys(named))
    if "properties" in node:
        return ["object"]
    if "items" in node:
        return ["array"]
    enum = _as_list(node.get("enum"))
    return ["string"] if enum and all(isinstance(value, str) for value in enum) else []


def _common_types(first: str | list[str], second: str | list[str]) -> str | list[str]:
    """The types that both allow; empty if there are none."""
    one, other = ({kinds} if isinstance(kinds, str) else {*kinds} for kinds in (first, second))
    both = sorted((one & other) | ({"integer"} if {"integer", "number"} <= one ^ other else set()))
    return both[0] if len(both) == 1 else both


def _fits(value: Any, types: list[str], schema: Schema) -> bool:
    """Whether a default has a type of its schema and is among its values."""
    if isinstance(value, bool):
        has_type = "boolean" in types
    else:
        has_type = any(isinstance(value, _PYTHON_TYPES[kind]) for kind in types)
    return (has_type or not types) and value in schema.get("enum", [value])


def _allow_null(schema: Schema) -> Schema:
    types = schema.get("type")
    if types is None or schema.keys() & {*_COMPOSED, "const"}:
        return {"anyOf": [schema, {"type": "null"}]} if schema.keys() & {*_COMPOSED, "const", "enum"} else schema
    types = [types] if isinstance(types, str) else types
    allowed = {**schema, "type": [*(kind for kind in types if kind != "null"), "null"]}
    return {**allowed, "enum": [*schema["enum"], None]} if None not in schema.get("enum", [None]) else allowed


def _parts(schema: Schema) -> Iterator[tuple[str, str, Schema]]:
    """The schemas directly inside of a schema, with their keywords and names."""
    for name, part in schema.get("properties", {}).items():
        yield "", name + '"":', part
    for keyword in _LISTS:
        yield from ((keyword, "", part) for part in schema.get(keyword, ()))
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield keyword, '"":', schema[keyword]


def _open(schema: Schema) -> Schema:
    """A schema that says no more than its type and description; the whole schema if it is small and has no parts."""
    if not schema.keys() & {*_NESTING, "$ref"} and len(_json(schema)) <= MAX_LEAF:
        return schema
    kept: Schema = {key: schema[key] for key in ("type", "description") if key in schema}
    if "description" in kept:
        kept["description"] = kept["description"][:100]
    types = kept.get("type", ())
    kept |= {"items": {}} if "array" in types else {}
    return kept | ({"additionalProperties": True} if "object" in types else {})
