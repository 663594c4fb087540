"""Checks of the input and output schemas of tools: every subschema, its references and patterns.

References within the document are resolved: `#/$defs/Name`. Nothing is fetched. In a document with `$id` or anchors,
references are not checked.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dovetail.cli.given_arguments import Schema, as_object, get_text, resolve_ref
from dovetail.cli.lint.rules import Finding

MAX_SUBSCHEMAS = 20_000
SUBSCHEMA_KEYWORDS = {  # by their values: a schema, a list of schemas, or an object of schemas
    "one": (
        *("items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties"),
        *("propertyNames", "contentSchema", "not", "if", "then", "else"),
    ),
    "many": ("anyOf", "oneOf", "allOf", "prefixItems", "items"),
    "named": ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"),
}
NESTING = ("properties", "items", "additionalProperties", "patternProperties", "prefixItems")
SAME_VALUE = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
CONDITIONS = ("not", "if")  # they test a value, and do not describe it
REFERENCES = ("$ref", "$dynamicRef")
DESCRIBING = {*REFERENCES, "allOf", "items", "prefixItems", "properties"}  # the same value as a branch beside them
PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
UNIONS = ("anyOf", "oneOf", "allOf")
GEMINI_FORMATS = ("enum", "date-time")
NOT_IN_GEMINI = (  # keywords that Gemini's subset does not have
    *("patternProperties", "propertyNames", "dependentSchemas", "dependentRequired", "unevaluatedProperties"),
    *("const", "not", "if", "contains", "prefixItems", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("uniqueItems",),
)
OUTPUT_RULES = ("schema-ref-broken", "schema-boolean")  # for them clients refuse the whole list
TYPING = ("type", "enum", "const", *REFERENCES, "anyOf", "oneOf", "allOf", "properties", "items")
_ESCAPED = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)  # escapes and character classes in a pattern
_UNKNOWN_GROUP = re.compile(r"\(\?(?![:=!]|<[=!]|<[^<>()]+>|[ims]*(?:-[ims]*)?:)(?:[a-zA-Z-]+\)|.?)", re.DOTALL)


class Subschema(NamedTuple):
    """A schema inside of another."""

    schema: Schema
    path: tuple[str, ...]
    depth: int  # of the value
    is_alone: bool = True  # no other subschema describes the same value

    @property
    def place(self) -> str:
        """The place of the subschema: `address.street`, `tags[]`."""
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
    """All subschemas, the schema itself first; those beyond MAX_SUBSCHEMAS and 128 steps are left out."""
    pending = [Subschema(root, (), 0)] if isinstance(root, Mapping) else []
    for _ in range(MAX_SUBSCHEMAS):
        if not pending:
            return
        part = pending.pop()
        yield part
        if len(part.path) < 128:
            pending += reversed(list(_children(part)))


def _children(part: Subschema) -> Iterator[Subschema]:
    for keyword, value in part.schema.items():
        if keyword in SAME_VALUE:
            is_alone = part.is_alone and keyword in ("anyOf", "oneOf") and not part.schema.keys() & DESCRIBING
        else:
            is_alone = not any(step in CONDITIONS for step in part.path)
        for steps, schema in _schemas_of(keyword, value):
            yield Subschema(schema, (*part.path, keyword, *steps), part.depth + (keyword in NESTING), is_alone)


def _schemas_of(keyword: str, value: Any) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """The schemas in the value of a keyword, each with its path in the value."""
    if keyword in SUBSCHEMA_KEYWORDS["named"] and isinstance(value, Mapping):
        yield from (((name,), each) for name, each in value.items() if isinstance(each, Mapping))
    elif keyword in SUBSCHEMA_KEYWORDS["one"] and isinstance(value, Mapping):
        yield (), value
    elif keyword in SUBSCHEMA_KEYWORDS["many"] and isinstance(value, list):
        yield from (((str(index),), each) for index, each in enumerate(value) if isinstance(each, Mapping))


class References:
    """The references of one document."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        keywords = {"$id", "$anchor", "$dynamicAnchor"}
        self._has_names = any(keywords & part.schema.keys() for part in subschemas(root))

    def resolve(self, reference: Any) -> Any | None:
        """The target; an empty schema if it is not checked, None if the reference is broken."""
        if self._has_names and isinstance(reference, str):
            return {}
        found = resolve_ref(reference, self._root)
        return found if isinstance(found, (Mapping, bool)) else None


def pattern_problem(pattern: str) -> str:
    """The problem of a pattern; empty if the pattern may be valid."""
    outside = _ESCAPED.sub("x", pattern)
    if unknown := _UNKNOWN_GROUP.search(outside):
        return f"{unknown[0]} is not for JSON Schema"
    is_balanced = outside.count("(") == outside.count(")") and not {"[", "\\"} & set(outside)
    return "" if is_balanced else "a bracket without the other one, or a \\ at its end"


def check_schemas(tool: Mapping[str, Any], place: str, objects_only: bool) -> Iterator[Finding]:
    schema = tool.get("inputSchema")
    if not isinstance(schema, Mapping):
        yield Finding("schema-type", place, "it has no inputSchema")
        return
    yield from _check_root(schema, place)
    yield from _check_subschemas(schema, place)
    yield from _check_references(schema, place, "")
    yield from _check_parameters(schema, place)
    output = tool.get("outputSchema")
    if isinstance(output, Mapping):
        if objects_only and output.get("type") != "object":
            yield Finding("output-type", place, f"its type is {json.dumps(output.get('type'))}")
        prefix = "outputSchema "
        found = (*_check_references(output, place, prefix), *_check_subschemas(output, place, prefix))
        yield from (each for each in found if each.rule in OUTPUT_RULES)


def _check_root(schema: Schema, place: str) -> Iterator[Finding]:
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


def _check_subschemas(schema: Schema, place: str, prefix: str = "") -> Iterator[Finding]:
    count, deepest = 0, 0
    for part in subschemas(schema):
        count += bool(part.path) and part.path[-2:-1] == ("properties",)
        deepest = max(deepest, part.depth)
        for rule, detail in (*_check_types(part), *_check_required(part), *_check_keywords(part)):
            where = f"{part.place}: {detail}" if part.place and detail else part.place or detail
            yield Finding(rule, place, prefix + where)
    if count > 5_000:
        yield Finding("schema-size", place, f"{count} properties")
    if deepest > 10:
        yield Finding("schema-depth", place, f"{deepest} levels")


def _check_types(part: Subschema) -> Iterator[tuple[str, str]]:
    """Check for arrays without items, objects without properties, values without a type."""
    schema, kinds = part.schema, _types(part.schema)
    if "array" in kinds and part.is_alone and not schema.keys() & (DESCRIBING - {"properties"}):
        yield "schema-items", ""
    is_free = schema.get("additionalProperties", False) is not False or "patternProperties" in schema
    if part.path and kinds == ["object"] and not schema.get("properties") and not is_free:
        yield "schema-properties", ""
    if part.path[-2:-1] == ("properties",) and not any(word in schema for word in TYPING):
        yield "schema-untyped", ""
    known = schema.get("properties")
    for name, inner in known.items() if isinstance(known, Mapping) else ():
        if isinstance(inner, bool):
            yield "schema-boolean", name
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield "schema-map", ""


def _check_required(part: Subschema) -> Iterator[tuple[str, str]]:
    """Check for names in `required` that are no properties. A part without properties may be described elsewhere."""
    known, needed = as_object(part.schema.get("properties")), part.schema.get("required")
    is_whole = part.is_alone and not any(word in part.schema for word in (*UNIONS, *REFERENCES))
    if is_whole and (known or not part.path) and isinstance(needed, list):
        for name in needed:
            if isinstance(name, str) and name not in known:
                yield "schema-required", json.dumps(name, ensure_ascii=False)


def _types(schema: Schema) -> list[Any]:
    given = schema.get("type")
    return given if isinstance(given, list) else [given]


def _check_keywords(part: Subschema) -> Iterator[tuple[str, str]]:
    schema = part.schema
    yield from (("schema-keyword", keyword) for keyword in NOT_IN_GEMINI if keyword in schema)
    name = schema.get("format")
    if isinstance(name, str) and "string" in _types(schema) and name not in GEMINI_FORMATS:
        yield "schema-format", name
    values = schema.get("enum")
    if isinstance(values, list) and not all(isinstance(value, str) for value in values):
        yield "schema-enum", ""
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and len(pattern) <= 1_000 and (problem := pattern_problem(pattern)):
        yield "schema-pattern", f"{pattern}: {problem}"


def _check_references(schema: Schema, place: str, prefix: str) -> Iterator[Finding]:
    references = References(schema)
    for part in subschemas(schema):
        for reference in (part.schema[word] for word in REFERENCES if word in part.schema):
            where = prefix + part.place
            if references.resolve(reference) is None:
                yield Finding("schema-ref-broken", place, f"{where}: {json.dumps(reference)}".lstrip(": "))
            elif not part.path or part.path[0] not in ("$defs", "definitions"):
                yield Finding("schema-ref", place, where)


def _check_parameters(schema: Schema, place: str) -> Iterator[Finding]:
    references = References(schema)
    for name, part in as_object(schema.get("properties")).items():
        if isinstance(part, Mapping) and not _is_described(part, references):
            yield Finding("parameter-description", place, name)


def _is_described(part: Schema, references: References) -> bool:
    """Whether a subschema is described: by itself, by its `$ref` or by an alternative."""
    inner = part.get("anyOf") or part.get("oneOf") or part.get("allOf")
    candidates = [part, references.resolve(part.get("$ref")), *(inner if isinstance(inner, list) else [])]
    return any(isinstance(each, Mapping) and get_text(each, "description").strip() for each in candidates)
