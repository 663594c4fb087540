"""Checks of the schemas of tools, as some server wrote them: every part, its references, its patterns.

References into the document are looked up: `#/$defs/Name`. Nothing is fetched, and where `$id` or an anchor names a
part of it they are not judged.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dovetail.cli.arguments import Schema, as_object, get_text, resolve_ref
from dovetail.cli.lint.rules import Finding

MAX_PARTS = 20_000
HOLDS = {  # keywords whose values are schemas, lists of them, or objects of them
    "one": (
        *("items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties"),
        *("propertyNames", "contentSchema", "not", "if", "then", "else"),
    ),
    "many": ("anyOf", "oneOf", "allOf", "prefixItems", "items"),
    "named": ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"),
}
DEEPER = ("properties", "items", "additionalProperties", "patternProperties", "prefixItems")  # what nests values
SAME_VALUE = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
TESTS = ("not", "if")  # they describe nothing, but ask whether it is so
REFERENCES = ("$ref", "$dynamicRef")
SAYS_MORE = {*REFERENCES, "allOf", "items", "prefixItems", "properties"}  # of the value that a branch describes
PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
UNIONS = ("anyOf", "oneOf", "allOf")
GEMINI_FORMATS = ("enum", "date-time")
UNCOMMON = (  # keywords that Gemini's subset does not have
    *("patternProperties", "propertyNames", "dependentSchemas", "dependentRequired", "unevaluatedProperties"),
    *("const", "not", "if", "contains", "prefixItems", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("uniqueItems",),
)
IN_OUTPUTS = ("schema-ref-broken", "schema-boolean")  # what breaks the list, and not only the choice of arguments
SAYING = ("type", "enum", "const", *REFERENCES, "anyOf", "oneOf", "allOf", "properties", "items")
_HIDDEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)  # in a pattern: what is escaped, and classes
_UNKNOWN = re.compile(r"\(\?(?![:=!]|<[=!]|<[^<>()]+>|[ims]*(?:-[ims]*)?:)(?:[a-zA-Z-]+\)|.?)", re.DOTALL)


# ── every part of a schema ──


class Subschema(NamedTuple):
    """A schema inside of another."""

    schema: Schema
    path: tuple[str, ...]
    depth: int  # of values in values
    is_alone: bool = True  # nothing else describes the same value

    @property
    def place(self) -> str:
        """As people say it: `address.street`, `tags[]`."""
        shown, names = "", iter(self.path)
        for keyword in names:
            if keyword == "properties":
                name = next(names, "")
                shown += f".{name}" if shown else name
            elif keyword == "items":
                shown += "[]"
            elif keyword in ("$defs", "definitions"):
                shown = f"#{next(names, '')}"
        return shown


def subschemas(root: Any) -> Iterator[Subschema]:
    """The schema itself first. Of one that is too large or too deep, the beginning."""
    waiting = [Subschema(root, (), 0)] if isinstance(root, Mapping) else []
    for _ in range(MAX_PARTS):
        if not waiting:
            return
        part = waiting.pop()
        yield part
        if len(part.path) < 128:
            waiting += reversed(list(_inside(part)))


def _inside(part: Subschema) -> Iterator[Subschema]:
    for keyword, value in part.schema.items():
        is_alone = part.is_alone or keyword not in SAME_VALUE  # below `not` and `if` nothing is described
        if keyword in SAME_VALUE:
            is_alone = part.is_alone and keyword in ("anyOf", "oneOf") and not part.schema.keys() & SAYS_MORE
        elif any(step in TESTS for step in part.path):
            is_alone = False
        for steps, schema in _held(keyword, value):
            yield Subschema(schema, (*part.path, keyword, *steps), part.depth + (keyword in DEEPER), is_alone)


def _held(keyword: str, value: Any) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """The schemas that are the value of a keyword, each with the steps to it."""
    if keyword in HOLDS["named"] and isinstance(value, Mapping):
        yield from (((name,), each) for name, each in value.items() if isinstance(each, Mapping))
    elif keyword in HOLDS["one"] and isinstance(value, Mapping):
        yield (), value
    elif keyword in HOLDS["many"] and isinstance(value, list):
        yield from (((str(index),), each) for index, each in enumerate(value) if isinstance(each, Mapping))


# ── references ──


class References:
    """What the references of one document lead to."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        named = ("$id", "$anchor", "$dynamicAnchor")  # from which references count, or to which they lead
        self._has_names = any(name in part.schema for part in subschemas(root) for name in named)

    def resolve(self, reference: Any) -> Any | None:
        """The schema that a reference leads to; an empty one if it is not judged, and None if it leads nowhere."""
        if self._has_names and isinstance(reference, str):
            return {}
        found = resolve_ref(reference, self._root)
        return found if isinstance(found, (Mapping, bool)) else None


# ── patterns ──


def pattern_problem(pattern: str) -> str:
    """What is wrong with it; nothing if it may be right."""
    outside = _HIDDEN.sub("x", pattern)
    if unknown := _UNKNOWN.search(outside):
        return f"{unknown[0]} is not for JSON Schema"
    is_whole = outside.count("(") == outside.count(")") and not {"[", "\\"} & set(outside)
    return "" if is_whole else "a bracket without the other one, or a \\ at its end"


# ── findings ──


def check_schemas(tool: Mapping[str, Any], place: str, objects_only: bool) -> Iterator[Finding]:
    schema = tool.get("inputSchema")
    if not isinstance(schema, Mapping):
        yield Finding("schema-type", place, "it has no inputSchema")
        return
    yield from _top(schema, place)
    yield from _findings_inside(schema, place)
    yield from _references(schema, place, "")
    yield from _parameters(schema, place)
    output = tool.get("outputSchema")
    if isinstance(output, Mapping):
        if objects_only and output.get("type") != "object":
            yield Finding("output-type", place, f"its type is {json.dumps(output.get('type'))}")
        inside = (*_references(output, place, "outputSchema "), *_findings_inside(output, place, "outputSchema "))
        yield from (each for each in inside if each.rule in IN_OUTPUTS)


def _top(schema: Schema, place: str) -> Iterator[Finding]:
    """What is said of the schema as a whole."""
    if schema.get("type") != "object":
        yield Finding("schema-type", place, f"its type is {json.dumps(schema.get('type'))}")
    yield from (Finding("schema-union", place, union) for union in UNIONS if union in schema)
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        yield Finding("schema-properties", place, "it has none")
        return
    for name in properties:
        if not PROPERTY_NAME.fullmatch(name):
            yield Finding("schema-property-name", place, json.dumps(name, ensure_ascii=False))


def _findings_inside(schema: Schema, place: str, prefix: str = "") -> Iterator[Finding]:
    """What is said of every part."""
    count, deepest = 0, 0
    for part in subschemas(schema):
        count += bool(part.path) and part.path[-2:-1] == ("properties",)
        deepest = max(deepest, part.depth)
        for rule, detail in (*_shape(part), *_required(part), *_words(part)):
            where = f"{part.place}: {detail}" if part.place and detail else part.place or detail
            yield Finding(rule, place, prefix + where)
    if count > 5_000:
        yield Finding("schema-size", place, f"{count} properties")
    if deepest > 10:
        yield Finding("schema-depth", place, f"{deepest} levels")


def _shape(part: Subschema) -> Iterator[tuple[str, str]]:
    """Lists without items, objects without properties, values without a type."""
    schema, kinds = part.schema, _kinds(part.schema)
    if "array" in kinds and part.is_alone and not schema.keys() & (SAYS_MORE - {"properties"}):
        yield "schema-items", ""
    is_free = schema.get("additionalProperties", False) is not False or "patternProperties" in schema
    if part.path and kinds == ["object"] and not schema.get("properties") and not is_free:
        yield "schema-properties", ""
    if part.path[-2:-1] == ("properties",) and not any(word in schema for word in SAYING):
        yield "schema-untyped", ""
    known = schema.get("properties")
    for name, inner in known.items() if isinstance(known, Mapping) else ():
        if isinstance(inner, bool):
            yield "schema-boolean", name
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield "schema-map", ""


def _required(part: Subschema) -> Iterator[tuple[str, str]]:
    """Names that no property has. A part that names no properties may be described elsewhere."""
    known, needed = as_object(part.schema.get("properties")), part.schema.get("required")
    is_whole = part.is_alone and not any(word in part.schema for word in (*UNIONS, *REFERENCES))
    if is_whole and (known or not part.path) and isinstance(needed, list):
        for name in needed:
            if isinstance(name, str) and name not in known:
                yield "schema-required", json.dumps(name, ensure_ascii=False)


def _kinds(schema: Schema) -> list[Any]:
    kind = schema.get("type")
    return kind if isinstance(kind, list) else [kind]


def _words(part: Subschema) -> Iterator[tuple[str, str]]:
    """Keywords that not everybody knows."""
    schema = part.schema
    yield from (("schema-keyword", keyword) for keyword in UNCOMMON if keyword in schema)
    form = schema.get("format")
    if isinstance(form, str) and "string" in _kinds(schema) and form not in GEMINI_FORMATS:
        yield "schema-format", form
    values = schema.get("enum")
    if isinstance(values, list) and not all(isinstance(value, str) for value in values):
        yield "schema-enum", ""
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and len(pattern) <= 1_000 and (fault := pattern_problem(pattern)):
        yield "schema-pattern", f"{pattern}: {fault}"


def _references(schema: Schema, place: str, prefix: str) -> Iterator[Finding]:
    references = References(schema)
    for part in subschemas(schema):
        for reference in (part.schema[word] for word in REFERENCES if word in part.schema):
            where = prefix + part.place
            if references.resolve(reference) is None:
                yield Finding("schema-ref-broken", place, f"{where}: {json.dumps(reference)}".lstrip(": "))
            elif not part.path or part.path[0] not in ("$defs", "definitions"):
                yield Finding("schema-ref", place, where)


def _parameters(schema: Schema, place: str) -> Iterator[Finding]:
    """Those without a description."""
    references = References(schema)
    for name, part in as_object(schema.get("properties")).items():
        if isinstance(part, Mapping) and not _is_described(part, references):
            yield Finding("parameter-description", place, name)


def _is_described(part: Schema, references: References) -> bool:
    """By itself, or by what it is made of."""
    if get_text(part, "description").strip():
        return True
    resolve = references.resolve(part.get("$ref"))
    inner = part.get("anyOf") or part.get("oneOf") or part.get("allOf")
    candidates = [resolve, *(inner if isinstance(inner, list) else [])]
    return any(isinstance(each, Mapping) and get_text(each, "description").strip() for each in candidates)
