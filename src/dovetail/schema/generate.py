"""JSON Schema 2020-12 of shapes, in a form that every known host accepts.

References are inlined unless a type contains itself, `enum` has a `type` beside it, everything keeps its declared
order, an array always has `items`, and there are no titles but those of the author.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import NODEFAULT, UNSET

from dovetail.errors import SetupError
from dovetail.schema import shapes
from dovetail.schema.constraints import Constraints
from dovetail.schema.encode import OutputError, encode_json, to_jsonable
from dovetail.schema.shapes import Shape

JsonSchema = dict[str, Any]

_MAX_INLINED = 10_000  # references; beyond this a schema is too large
_REF = "#/$defs/"
_CHECKED_BY_TYPES = ("date-time", "time", "duration", "uuid")


class SchemaWriter:
    """Writes shapes as schemas that share one `$defs`.

    `for_checks` omits the formats that the types check, because a validator is stricter: it wants a time zone.
    """

    def __init__(self, where: str, *, for_output: bool = False, for_checks: bool = False) -> None:
        self.where = where
        self.for_output = for_output
        self.for_checks = for_checks
        self.definitions: dict[str, JsonSchema] = {}

    def finish(self, schema: JsonSchema) -> JsonSchema:
        """The schema with references inlined, and recursive definitions under `$defs`."""
        finished: JsonSchema = to_jsonable(inline_references({**schema, "$defs": self.definitions}, self.where))
        return finished

    def write(self, shape: Shape) -> JsonSchema:
        return {**self._bare(shape), **_keywords(shape.constraints, _NOTES), **(shape.constraints.extra or {})}

    def _bare(self, shape: Shape) -> JsonSchema:
        match shape:
            case shapes.Scalar():
                return self._without_checked_formats(_scalar(shape))
            case shapes.Choice():
                return _choice([json for json, _ in shape.pairs]) | _described(shape.description)
            case shapes.Array():
                unique = {"uniqueItems": True} if shape.container in (set, frozenset) else {}
                return {"type": "array", "items": self.write(shape.item), **_sizes(shape, "Items"), **unique}
            case shapes.FixedArray():
                return _fixed([self.write(item) for item in shape.items], len(shape.items))
            case shapes.Dictionary():
                return self._dictionary(shape)
            case shapes.Alternatives():
                return {"anyOf": _flat([self.write(member) for member in shape.members])}
            case shapes.Reference():
                return self._reference(shape)
            case shapes.Record():
                return self._record(shape)
            case shapes.PydanticShape():
                return self._pydantic(shape)
        return {}

    def _dictionary(self, shape: shapes.Dictionary) -> JsonSchema:
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

    def _reference(self, shape: shapes.Reference) -> JsonSchema:
        definition = shape.definition
        if definition.name not in self.definitions:
            self.definitions[definition.name] = {}  # ends the recursion of one that contains itself
            self.definitions[definition.name].update(self.write(definition.body))
        return {"$ref": _REF + definition.name}

    def _record(self, shape: shapes.Record) -> JsonSchema:
        fields = [field for field in shape.fields if field.is_input or self.for_output]
        described = _described(shape.source.description)
        required = [field.name for field in fields if field.required]
        written = {field.name: self.write(field.shape) | default_keyword(field.default) for field in fields}
        if shape.source.tag is not None:
            name, value = shape.source.tag
            written = {name: _choice([value]), **written}
            required = [name, *required]
        if shape.source.is_array:
            return {**_fixed(list(written.values()), len(required)), **described}
        schema: JsonSchema = {"type": "object", **described, "properties": written}
        if required:
            schema["required"] = required
        if shape.source.closed:
            schema["additionalProperties"] = False
        return schema

    def _pydantic(self, shape: shapes.PydanticShape) -> JsonSchema:
        """pydantic's schema; its recursive definitions move into our `$defs`, under free names."""
        schema = self._without_checked_formats(
            inline_references(shape.type.schema(for_output=self.for_output), self.where)
        )
        moved = schema.pop("$defs", {})
        names = {name: self._free_name(name, moved[name]) for name in moved}

        def renamed(node: JsonSchema) -> JsonSchema:
            node = map_subschemas(node, renamed)
            name = _reference_name(node)
            return {**node, "$ref": _REF + names[name]} if name in names else node

        self.definitions.update({names[name]: renamed(body) for name, body in moved.items()})
        return renamed(schema)

    def _without_checked_formats(self, schema: JsonSchema) -> JsonSchema:
        return without_checked_formats(schema) if self.for_checks else schema

    def _free_name(self, name: str, body: JsonSchema) -> str:
        candidates = (name, *(f"{name}_{number}" for number in range(2, 1000)))
        return next(n for n in candidates if self.definitions.get(n, body) == body)


def default_keyword(default: Any) -> JsonSchema:
    """`{"default": …}` if there is a default with a JSON form."""
    if default is UNSET or default is NODEFAULT:
        return {}
    try:
        return {"default": to_jsonable(default)}
    except OutputError:
        return {}


def _scalar(shape: shapes.Scalar) -> JsonSchema:
    schema: JsonSchema = {"type": shape.kind.json, **shape.kind.keywords}
    limits = shape.constraints
    if limits.tz is False:
        schema.pop("format")  # the standard formats demand a time zone
    if shape.kind.type in (bytes, bytearray):
        limits = Constraints(min_length=_in_base64(limits.min_length), max_length=_in_base64(limits.max_length))
    return schema | _keywords(limits, _LIMITS)


_LIMITS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
}
_NOTES = {name: name for name in ("title", "description", "format", "examples", "deprecated")}
_NOTES["header"] = "x-mcp-header"


def _keywords(constraints: Constraints, names: Mapping[str, str]) -> JsonSchema:
    return {names[name]: value for name in names if (value := getattr(constraints, name)) is not None}


def _in_base64(length: int | None) -> int | None:
    return None if length is None else (length + 2) // 3 * 4


JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _choice(values: list[Any]) -> JsonSchema:
    by_type: dict[str, list[Any]] = {}
    for value in values:
        plain = next(kind for kind in (bool, str, int, float) if isinstance(value, kind))
        by_type.setdefault(JSON_TYPES[plain], []).append(plain(value))
    branches = [{"type": kind, "enum": members} for kind, members in by_type.items()]
    return branches[0] if len(branches) == 1 else {"anyOf": branches}


def _described(text: str | None) -> JsonSchema:
    return {"description": text} if text else {}


def _flat(branches: list[JsonSchema]) -> list[JsonSchema]:
    """The branches, with those of a nested bare `anyOf` in its place."""
    return [inner for branch in branches for inner in (branch["anyOf"] if branch.keys() == {"anyOf"} else [branch])]


def _fixed(items: list[JsonSchema], required: int) -> JsonSchema:
    """The schema of a tuple. Equal items need no `prefixItems`; some hosts insist on `items`."""
    size = {"minItems": required, "maxItems": len(items)}
    if items and all(item == items[0] for item in items):
        return {"type": "array", "items": items[0], **size}
    return {"type": "array", **({"prefixItems": items} if items else {}), "items": {}, **size}


def _sizes(shape: Shape, noun: str) -> JsonSchema:
    return _keywords(shape.constraints, {"min_length": f"min{noun}", "max_length": f"max{noun}"})


_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else")


def map_subschemas(schema: JsonSchema, change: Callable[[JsonSchema], JsonSchema]) -> JsonSchema:
    """The schema with `change` applied to each schema directly inside it."""
    changed = dict(schema)
    for keyword, argument in schema.items():
        if keyword in _MAPS and isinstance(argument, dict):
            changed[keyword] = {name: _applied(change, part) for name, part in argument.items()}
        elif keyword in _LISTS and isinstance(argument, list):
            changed[keyword] = [_applied(change, part) for part in argument]
        elif keyword in _SINGLES:
            changed[keyword] = _applied(change, argument)
    return changed


def without_checked_formats(schema: JsonSchema) -> JsonSchema:
    """The schema without the formats that types check."""
    schema = map_subschemas(schema, without_checked_formats)
    return {key: value for key, value in schema.items() if key != "format" or value not in _CHECKED_BY_TYPES}


def _applied(change: Callable[[JsonSchema], JsonSchema], part: Any) -> Any:
    return change(part) if isinstance(part, dict) else part


def inline_references(schema: JsonSchema, where: str) -> JsonSchema:
    """The schema with definitions in place of their references, unless they contain themselves; the root always."""
    definitions: dict[str, JsonSchema] = schema.get("$defs", {})
    recursive = _recursive(definitions)
    remaining: dict[str, JsonSchema] = {}
    budget = _MAX_INLINED

    def expand(node: JsonSchema, at_root: bool = False) -> JsonSchema:
        nonlocal budget
        name = _reference_name(node)
        if name not in definitions:
            return _without_discriminator(map_subschemas(node, expand))
        if name in recursive and not at_root:
            if name not in remaining:
                remaining[name] = {}
                remaining[name] = expand(definitions[name])
            return node
        budget -= 1
        if budget < 0:
            raise SetupError(f"{where}: the schema is too large once written out; use fewer or simpler types")
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return {**expand(definitions[name], at_root), **map_subschemas(beside, expand)}

    root = expand({key: value for key, value in schema.items() if key != "$defs"}, at_root=True)
    return {**root, "$defs": remaining} if remaining else root


def _reference_name(node: JsonSchema) -> str:
    """The definition that a node refers to, or ""."""
    reference = node.get("$ref")
    return reference.removeprefix(_REF) if isinstance(reference, str) and reference.startswith(_REF) else ""


def _recursive(definitions: dict[str, JsonSchema]) -> set[str]:
    """The definitions that refer to themselves, directly or indirectly."""
    pattern = rf'"\$ref":"{re.escape(_REF)}([^"]+)"'
    reached = {name: set(re.findall(pattern, encode_json(body).decode())) for name, body in definitions.items()}
    for middle in definitions:
        for name in definitions:
            if middle in reached[name]:
                reached[name] |= reached[middle]
    return {name for name in definitions if name in reached[name]}


def _without_discriminator(schema: JsonSchema) -> JsonSchema:
    """The schema without OpenAPI's `discriminator`, which is no JSON Schema and would point to inlined definitions."""
    mapping = schema.get("discriminator")
    if isinstance(mapping, dict) and "propertyName" in mapping:
        return {key: value for key, value in schema.items() if key != "discriminator"}
    return schema
