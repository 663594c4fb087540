"""The schemas of a tool come in; what clients refuse in them goes out."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.cli.linting.rules import Finding
from dovetail.cli.linting.walk import Part, Schema, parts, referred

MAX_DEPTH = 10
MAX_PROPERTIES = 5_000
LONGEST_PATTERN = 1_000
PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
UNIONS = ("anyOf", "oneOf", "allOf")
GEMINI_FORMATS = ("enum", "date-time")
UNCOMMON = (  # keywords that Gemini's subset does not have
    *("patternProperties", "propertyNames", "dependentSchemas", "dependentRequired", "unevaluatedProperties"),
    *(
        "const",
        "not",
        "if",
        "contains",
        "prefixItems",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "uniqueItems",
    ),
)
IN_OUTPUTS = ("schema-ref-broken", "schema-boolean")  # what breaks the list, and not only the choice of arguments
SAYING = ("type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf", "properties", "items")


def findings_of_schemas(tool: Mapping[str, Any], place: str, objects_only: bool) -> Iterator[Finding]:
    schema = tool.get("inputSchema")
    if not isinstance(schema, Mapping):
        yield Finding("schema-type", place, "it has no inputSchema")
        return
    yield from _top(schema, place)
    yield from _inside(schema, place)
    yield from _references(schema, place, "")
    output = tool.get("outputSchema")
    if isinstance(output, Mapping):
        if objects_only and output.get("type") != "object":
            yield Finding("output-type", place, f"its type is {json.dumps(output.get('type'))}")
        inside = (*_references(output, place, "outputSchema "), *_inside(output, place, "outputSchema "))
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


def _inside(schema: Schema, place: str, prefix: str = "") -> Iterator[Finding]:
    """What is said of every part."""
    count, deepest = 0, 0
    for part in parts(schema):
        count += bool(part.path) and part.path[-2:-1] == ("properties",)
        deepest = max(deepest, part.depth)
        for rule, detail in (*_shape(part), *_required(part), *_words(part)):
            where = f"{part.place}: {detail}" if part.place and detail else part.place or detail
            yield Finding(rule, place, prefix + where)
    if count > MAX_PROPERTIES:
        yield Finding("schema-size", place, f"{count} properties")
    if deepest > MAX_DEPTH:
        yield Finding("schema-depth", place, f"{deepest} levels")


def _shape(part: Part) -> Iterator[tuple[str, str]]:
    """Lists without items, objects without properties, values without a type."""
    schema, kinds = part.schema, _kinds(part.schema)
    if "array" in kinds and not isinstance(schema.get("items"), Mapping) and "prefixItems" not in schema:
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


def _required(part: Part) -> Iterator[tuple[str, str]]:
    """Inside, an object that names no properties may be described by another part."""
    known, needed = part.schema.get("properties"), part.schema.get("required")
    is_partial = (part.path and not known) or any(word in part.schema for word in (*UNIONS, "$ref"))
    if is_partial or not isinstance(needed, list):
        return
    names = set(known) if isinstance(known, Mapping) else set()
    for name in needed:
        if isinstance(name, str) and name not in names:
            yield "schema-required", json.dumps(name, ensure_ascii=False)


def _kinds(schema: Schema) -> list[Any]:
    kind = schema.get("type")
    return kind if isinstance(kind, list) else [kind]


def _words(part: Part) -> Iterator[tuple[str, str]]:
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
    if isinstance(pattern, str) and len(pattern) <= LONGEST_PATTERN and not _is_readable(pattern):
        yield "schema-pattern", pattern


def _is_readable(pattern: str) -> bool:
    """As far as Python can tell; what only ECMAScript knows is rewritten before."""
    known = re.sub(r"\\[pP]\{[^}]*\}|\\u\{[0-9a-fA-F]+\}|\\c[A-Za-z]", "x", pattern).replace("(?<", "(?P<")
    known = known.replace("(?P<=", "(?<=").replace("(?P<!", "(?<!").replace(r"\/", "/")
    try:
        re.compile(known)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _references(schema: Schema, place: str, prefix: str) -> Iterator[Finding]:
    for part in parts(schema):
        if "$ref" not in part.schema:
            continue
        where = prefix + part.place
        if referred(part.schema["$ref"], schema) is None:
            yield Finding("schema-ref-broken", place, f"{where}: {json.dumps(part.schema['$ref'])}".lstrip(": "))
        elif not part.path or part.path[0] not in ("$defs", "definitions"):
            yield Finding("schema-ref", place, where)
