"""The schemas of a tool come in; what clients refuse in them goes out."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.cli.linting.patterns import fault_of
from dovetail.cli.linting.references import KEYWORDS, References
from dovetail.cli.linting.rules import Finding
from dovetail.cli.linting.walk import Part, Schema, described_by, parts, property_names

MAX_DEPTH = 10
MAX_PROPERTIES = 5_000
LONGEST_PATTERN = 1_000
PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
UNIONS = ("anyOf", "oneOf", "allOf")
GEMINI_FORMATS = ("enum", "date-time")
UNCOMMON = (  # keywords that Gemini's subset does not have
    *("patternProperties", "propertyNames", "dependentSchemas", "dependentRequired", "unevaluatedProperties"),
    *("const", "not", "if", "contains", "prefixItems", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("uniqueItems",),
)
IN_OUTPUTS = ("schema-ref-broken", "schema-boolean")  # what breaks the list, and not only the choice of arguments
SAYING = ("type", "enum", "const", *KEYWORDS, "anyOf", "oneOf", "allOf", "properties", "items")


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
    if "array" in kinds and not part.is_test and not _has_items(part):
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


def _has_items(part: Part) -> bool:
    return any(each.has_items or each.is_partial for each in (*part.beside, described_by(part.schema)))


def _required(part: Part) -> Iterator[tuple[str, str]]:
    """What nobody describes. An object that names no properties may be described by another part, or by a branch."""
    known, needed = property_names(part.schema), part.schema.get("required")
    is_partial = (part.path and not known) or any(word in part.schema for word in (*UNIONS, *KEYWORDS))
    if is_partial or any(each.is_partial for each in part.beside) or not isinstance(needed, list):
        return
    for name in needed:
        if isinstance(name, str) and not any(name in names for names in (known, *(each.names for each in part.beside))):
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
    if isinstance(pattern, str) and len(pattern) <= LONGEST_PATTERN and (fault := fault_of(pattern)):
        yield "schema-pattern", f"{pattern}: {fault}"


def _references(schema: Schema, place: str, prefix: str) -> Iterator[Finding]:
    references = References(schema)
    for part in parts(schema):
        for reference in (part.schema[word] for word in KEYWORDS if word in part.schema):
            where = prefix + part.place
            if references.meant(reference, part.path) is None:
                yield Finding("schema-ref-broken", place, f"{where}: {json.dumps(reference)}".lstrip(": "))
            elif not part.path or part.path[0] not in ("$defs", "definitions"):
                yield Finding("schema-ref", place, where)
