"""A type goes in; JSON Schema 2020-12 that every known host accepts comes out.

References are written out in place unless a type contains itself, `type` stands beside `enum`, everything keeps its
declared order, an array always has `items`, and there are no titles but those that users gave.
"""

import re
from collections.abc import Callable
from typing import Any

from msgspec import NODEFAULT, UNSET

from dovetail.errors import SetupError
from dovetail.schema.annotations import Constraints
from dovetail.schema.encode import OutputError, encode_json, to_jsonable
from dovetail.schema.shapes import (
    Alternatives,
    Array,
    Choice,
    Dictionary,
    FixedArray,
    PydanticShape,
    Record,
    Reference,
    Scalar,
    Shape,
)

JsonSchema = dict[str, Any]

_WRITTEN_OUT = 10_000  # references; beyond this a schema is too large for anyone
_REF = "#/$defs/"
_CHECKED_BY_TYPES = ("date-time", "time", "duration", "uuid")


class SchemaWriter:
    """Writes shapes as schemas that share one `$defs`.

    With `for_checks` the formats are left out that types check by themselves, and less narrowly than a validator: a
    date and time without a zone is welcome.
    """

    def __init__(self, where: str, *, for_output: bool = False, for_checks: bool = False) -> None:
        self.where = where
        self.for_output = for_output
        self.for_checks = for_checks
        self.definitions: dict[str, JsonSchema] = {}

    def finish(self, schema: JsonSchema) -> JsonSchema:
        """The schema with its references written out, and those that must stay under `$defs`."""
        finished: JsonSchema = to_jsonable(write_out({**schema, "$defs": self.definitions}, self.where))
        return finished

    def write(self, shape: Shape) -> JsonSchema:
        return {**self._bare(shape), **_notes(shape.constraints)}

    def _bare(self, shape: Shape) -> JsonSchema:
        match shape:
            case Scalar():
                return self._checked_format(_scalar(shape))
            case Choice():
                return _choice([json for json, _ in shape.pairs]) | _described(shape.description)
            case Array():
                unique = {"uniqueItems": True} if shape.container in (set, frozenset) else {}
                return {"type": "array", "items": self.write(shape.item), **_sizes(shape, "Items"), **unique}
            case FixedArray():
                return _fixed([self.write(item) for item in shape.items], len(shape.items))
            case Dictionary():
                return self._table(shape)
            case Alternatives():
                return {"anyOf": _flat([self.write(member) for member in shape.members])}
            case Reference():
                return self._reference(shape)
            case Record():
                return self._record(shape)
            case PydanticShape():
                return self._foreign(shape)
        return {}

    def _table(self, shape: Dictionary) -> JsonSchema:
        schema: JsonSchema = {"type": "object"}
        keys = self.write(shape.key)
        if keys.pop("type", None) == "integer":
            keys = {"pattern": "^-?[0-9]+$"}
        if keys:
            schema["propertyNames"] = keys
        values = self.write(shape.value)
        if values:
            schema["additionalProperties"] = values
        return schema | _sizes(shape, "Properties")

    def _reference(self, shape: Reference) -> JsonSchema:
        definition = shape.definition
        if definition.name not in self.definitions:
            self.definitions[definition.name] = {}  # a definition that contains itself ends here
            self.definitions[definition.name].update(self.write(definition.body))
        return {"$ref": _REF + definition.name}

    def _record(self, shape: Record) -> JsonSchema:
        fields = [field for field in shape.fields if field.is_input or self.for_output]
        described = _described(shape.source.description)
        required = [field.name for field in fields if field.required]
        written = {field.name: self._field(field.shape, field.default) for field in fields}
        if shape.source.is_array:
            return {**_fixed(list(written.values()), len(required)), **described}
        if shape.source.tag is not None:
            name, value = shape.source.tag
            written = {name: _choice([value]), **written}
            required = [name, *required]
        schema: JsonSchema = {"type": "object", **described, "properties": written}
        if required:
            schema["required"] = required
        if shape.source.closed:
            schema["additionalProperties"] = False
        return schema

    def _field(self, shape: Shape, default: Any) -> JsonSchema:
        return self.write(shape) | default_keyword(default)

    def _foreign(self, shape: PydanticShape) -> JsonSchema:
        """pydantic's schema; what contains itself there moves into our `$defs`, under a name that is free."""
        schema = self._checked_format(write_out(shape.type.schema(for_output=self.for_output), self.where))
        moved = schema.pop("$defs", {})
        names = {name: self._free_name(name, moved[name]) for name in moved}

        def renamed(node: JsonSchema) -> JsonSchema:
            node = map_subschemas(node, renamed)
            name = _referred(node)
            return {**node, "$ref": _REF + names[name]} if name in names else node

        self.definitions.update({names[name]: renamed(body) for name, body in moved.items()})
        return renamed(schema)

    def _checked_format(self, schema: JsonSchema) -> JsonSchema:
        if not self.for_checks:
            return schema
        schema = map_subschemas(schema, self._checked_format)
        return {key: value for key, value in schema.items() if key != "format" or value not in _CHECKED_BY_TYPES}

    def _free_name(self, name: str, body: JsonSchema) -> str:
        candidates = (name, *(f"{name}_{number}" for number in range(2, 1000)))
        return next(n for n in candidates if self.definitions.get(n, body) == body)


def default_keyword(default: Any) -> JsonSchema:
    """`{"default": …}` if there is a default and JSON can carry it."""
    if default is UNSET or default is NODEFAULT:
        return {}
    try:
        return {"default": to_jsonable(default)}
    except OutputError:
        return {}


def _scalar(shape: Scalar) -> JsonSchema:
    schema: JsonSchema = {"type": shape.kind.json, **shape.kind.keywords}
    limits = shape.constraints
    if limits.tz is False:
        schema.pop("format")  # the standard formats demand a time zone
    if shape.kind.type in (bytes, bytearray):
        limits = Constraints(min_length=_in_base64(limits.min_length), max_length=_in_base64(limits.max_length))
    return schema | {keyword: value for name, keyword in _KEYWORDS if (value := getattr(limits, name)) is not None}


_KEYWORDS = (
    ("ge", "minimum"),
    ("gt", "exclusiveMinimum"),
    ("le", "maximum"),
    ("lt", "exclusiveMaximum"),
    ("multiple_of", "multipleOf"),
    ("min_length", "minLength"),
    ("max_length", "maxLength"),
    ("pattern", "pattern"),
)


def _in_base64(length: int | None) -> int | None:
    return None if length is None else (length + 2) // 3 * 4


_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _choice(values: list[Any]) -> JsonSchema:
    by_type: dict[str, list[Any]] = {}
    for value in values:
        plain = next(kind for kind in (bool, str, int, float) if isinstance(value, kind))
        by_type.setdefault(_JSON_TYPES[plain], []).append(plain(value))
    branches = [{"type": kind, "enum": members} for kind, members in by_type.items()]
    return branches[0] if len(branches) == 1 else {"anyOf": branches}


def _described(text: str | None) -> JsonSchema:
    return {"description": text} if text else {}


def _flat(branches: list[JsonSchema]) -> list[JsonSchema]:
    """Branches that are nothing but alternatives themselves give their own branches."""
    return [inner for branch in branches for inner in (branch["anyOf"] if branch.keys() == {"anyOf"} else [branch])]


def _fixed(items: list[JsonSchema], required: int) -> JsonSchema:
    """A tuple. Alike items need no `prefixItems`; `items` is always there, because some hosts insist on it."""
    size = {"minItems": required, "maxItems": len(items)}
    if items and all(item == items[0] for item in items):
        return {"type": "array", "items": items[0], **size}
    return {"type": "array", **({"prefixItems": items} if items else {}), "items": {}, **size}


def _sizes(shape: Shape, noun: str) -> JsonSchema:
    limits = (f"min{noun}", shape.constraints.min_length), (f"max{noun}", shape.constraints.max_length)
    return {keyword: value for keyword, value in limits if value is not None}


def _notes(constraints: Constraints) -> JsonSchema:
    notes = {
        "title": constraints.title,
        "description": constraints.description,
        "format": constraints.format,
        "examples": constraints.examples,
        "deprecated": constraints.deprecated,
        "x-mcp-header": constraints.header,
    }
    return {key: value for key, value in notes.items() if value is not None} | (constraints.extra or {})


# References


_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else")


def map_subschemas(schema: JsonSchema, change: Callable[[JsonSchema], JsonSchema]) -> JsonSchema:
    """The schema with `change` applied to each schema directly inside it."""
    changed = dict(schema)
    for keyword in _MAPS:
        if isinstance(changed.get(keyword), dict):
            changed[keyword] = {name: _applied(change, part) for name, part in changed[keyword].items()}
    for keyword in _LISTS:
        if isinstance(changed.get(keyword), list):
            changed[keyword] = [_applied(change, part) for part in changed[keyword]]
    for keyword in _SINGLES:
        if keyword in changed:
            changed[keyword] = _applied(change, changed[keyword])
    return changed


def _applied(change: Callable[[JsonSchema], JsonSchema], part: Any) -> Any:
    return change(part) if isinstance(part, dict) else part


def write_out(schema: JsonSchema, where: str) -> JsonSchema:
    """Put each definition where it is referred to, unless it contains itself; the root is always put in place."""
    definitions: dict[str, JsonSchema] = schema.get("$defs", {})
    recursive = _self_contained(definitions)
    kept: dict[str, JsonSchema] = {}
    budget = _WRITTEN_OUT

    def expand(node: JsonSchema, at_root: bool = False) -> JsonSchema:
        nonlocal budget
        name = _referred(node)
        if name not in definitions:
            return _without_discriminator(map_subschemas(node, expand))
        if name in recursive and not at_root:
            if name not in kept:
                kept[name] = {}
                kept[name] = expand(definitions[name])
            return node
        budget -= 1
        if budget < 0:
            raise SetupError(f"{where}: the schema is too large once written out; use fewer or simpler types")
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return {**expand(definitions[name], at_root), **map_subschemas(beside, expand)}

    root = expand({key: value for key, value in schema.items() if key != "$defs"}, at_root=True)
    return {**root, "$defs": kept} if kept else root


def _referred(node: JsonSchema) -> str:
    """The name of the definition that a node refers to, or ""."""
    reference = node.get("$ref")
    return reference.removeprefix(_REF) if isinstance(reference, str) and reference.startswith(_REF) else ""


def _self_contained(definitions: dict[str, JsonSchema]) -> set[str]:
    """The definitions that refer to themselves, directly or not."""
    pattern = rf'"\$ref":"{re.escape(_REF)}([^"]+)"'
    reached = {name: set(re.findall(pattern, encode_json(body).decode())) for name, body in definitions.items()}
    for middle in definitions:
        for name in definitions:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    return {name for name in definitions if name in reached[name]}


def _without_discriminator(schema: JsonSchema) -> JsonSchema:
    """OpenAPI's `discriminator` is no JSON Schema and would point to definitions that are gone."""
    mapping = schema.get("discriminator")
    if isinstance(mapping, dict) and "propertyName" in mapping:
        return {key: value for key, value in schema.items() if key != "discriminator"}
    return schema
