"""JSON Schemas (2020-12) of the schemas of OpenAPI 3.0 and 3.1, in as few bytes as they need.

A schema is read one level at a time, with references followed and `allOf` flattened; the schemas inside of it stay as
the document has them. `Schemas.build` puts the levels together, those near the root first, as long as they fit. What
leads back to itself is a `$ref` into `$defs`. The schemas of requests lose what the validator can't check and what
clients refuse. Those of responses say types and properties only, and every value may be null, because real APIs differ
from what they promise.
"""

import re
import sys
from collections import deque
from collections.abc import Callable, Container
from itertools import chain
from operator import add
from typing import Any

import msgspec

from dovetail.errors import SetupError
from dovetail.openapi.document import BadReference, Document, as_list, as_object
from dovetail.schema.explain import is_within_limits
from dovetail.schema.validate import Pattern, SchemaDocument, SchemaLimits

Schema = dict[str, Any]
Source = tuple[Any, str]  # a schema as the document has it, and the file that holds it
SchemaPart = tuple[Source, ...]  # what one value has to fit: all of them, as in `allOf`
Place = tuple[Any, Any]  # a dict or list, and a key in it
_json = msgspec.json.encode

MAX_STEPS = 1_000_000  # schemas of one document that are read, and parts of them that are written
MAX_LEVELS = 24  # of one schema that are shown
MAX_LEAF = 300  # bytes of a schema that is always shown
MAX_REFERENCE = 250  # bytes of two references and the name of what they lead to
MAX_VALUE_LEVELS = 64  # of a value in a schema: the validator crashes if it is deep
MAX_PATTERNS = 500  # different ones of a document; a bad one takes milliseconds
MAX_PATTERN = 1_000  # characters

_TYPES = ["string", "number", "integer", "boolean", "array", "object", "null"]
_UNLIKE = frozenset({"time", "duration", "regex", "hostname", "uri-reference", "iri", "iri-reference", "uri-template"})
_UNLIKE |= {"idn-email", "idn-hostname", "json-pointer", "relative-json-pointer"}  # APIs use these names in other ways
_TEXT_MEDIA = re.compile(r"text/|application/json|.*\+(json|xml)|application/xml")
_UNIONS = ("anyOf", "oneOf")
_NESTING = {"properties", "items", "additionalProperties", "propertyNames", "anyOf", "allOf", "prefixItems"}
_NULL: SchemaPart = (({"type": "null"}, ""),)
_ANY: SchemaPart = (({}, ""),)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_shallow(value: Any) -> bool:
    return is_within_limits(value, MAX_VALUE_LEVELS, sys.maxsize)


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


def _common_types(first: list[str], second: list[str]) -> list[str]:
    """The types that both allow; if there are none, those of the second."""
    both = [kind for kind in second if kind in first or (kind == "integer" and "number" in first)]
    return both or (["integer"] if "integer" in first and "number" in second else second)


_MERGED: dict[str, Callable[[Any, Any], Any]] = {  # by `allOf`: one value of two
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    **dict.fromkeys(("description", "default", "deprecated", "prefixItems"), lambda _, second: second),
    **dict.fromkeys(("items", "propertyNames", "required"), add),
    "type": _common_types,
    "properties": lambda first, second: first | {name: first.get(name, ()) + part for name, part in second.items()},
    "additionalProperties": lambda first, second: first if second is False else second,
}


class _Outline(msgspec.Struct, eq=False):
    """One level of a schema."""

    part: SchemaPart  # what was read: as long as it lives, its ids are its own
    schema: Schema  # with a SchemaPart for each schema inside of it
    brief: Schema  # what stands for it where it has no room; the schema itself if it is small and has no parts
    name: str  # of what its references lead to
    cost: int | None = None  # the bytes that the schema needs in the place of its brief, with briefs inside of it


class Schemas:
    """The schemas of one document, of requests or of responses."""

    def __init__(
        self, document: Document, describe: Callable[[str], str], notes: list[str], *, is_response: bool = False
    ) -> None:
        self._document = document
        self._describe = describe
        self._notes = notes
        self._is_response = is_response
        self._hidden = "writeOnly" if is_response else "readOnly"
        self._outlines: dict[tuple[int, ...], _Outline] = {}  # by the ids of what was read
        self._targets: dict[tuple[str, str], Source] = {}  # by their references, and the files of these
        self._names: dict[int, str] = {}  # of the targets, by their ids
        self._patterns: dict[str, bool] = {}
        self._steps = 0

    def read(self, part: SchemaPart) -> Schema:
        """One level of a schema, with a SchemaPart for each schema inside of it. Never change it."""
        return self._outline(part).schema

    def build(self, outline: Schema, most: int) -> tuple[Schema, bool] | None:
        """The whole schema in at most so many bytes, and whether parts of it are cut down to their types; or None."""
        built = self._build(outline, most, keep_recursion=True)
        return built if built is None or _is_usable(built[0]) else self._build(outline, most, keep_recursion=False)

    def _build(self, outline: Schema, most: int, *, keep_recursion: bool) -> tuple[Schema, bool] | None:
        names: dict[_Outline, str] = {}
        definitions: dict[str, Schema] = {}
        inner: list[tuple[Place, SchemaPart]] = []
        root = self._opened(outline, inner)
        left, is_cut = most - len(_json(root)), False
        queue = deque((place, part, dict[_Outline, Place]()) for place, part in inner)
        while queue:
            (holder, at), part, above = queue.popleft()
            found = self._outline(part)
            is_repeated = found.name and (found in above or found in names)
            cost = MAX_REFERENCE if is_repeated else self._cost(found)
            if cost > left or len(above) == MAX_LEVELS or (is_repeated and not keep_recursion):
                is_cut = True  # its brief stays
                continue
            left -= cost
            if is_repeated:  # the first of them becomes the definition
                upper, place = above.get(found, (holder, at))
                if found not in names:
                    names[found] = free_name(found.name, definitions, 2)
                    definitions[names[found]] = upper[place]
                holder[at] = upper[place] = {"$ref": f"#/$defs/{names[found]}"}
            else:
                holder[at] = self._opened(found.schema, inner := [])
                above = {**above, found: (holder, at)}
                queue.extend((place, part, above) for place, part in inner)
        if definitions:
            root["$defs"] = definitions
        return None if left < 0 else (root, is_cut)

    def _opened(self, value: Any, places: list[tuple[Place, SchemaPart]]) -> Any:
        """A copy with briefs in the place of parts, and the places where there is more to say."""
        self._count(len(value))
        copy = value.copy()
        for at, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if isinstance(each, tuple):
                found = self._outline(each)
                copy[at] = found.brief
                if found.brief is not found.schema:
                    places.append(((copy, at), each))
            elif isinstance(each, (dict, list)):
                copy[at] = self._opened(each, places)
        return copy

    def _cost(self, outline: _Outline) -> int:
        if outline.cost is None:
            outline.cost = len(_json(self._opened(outline.schema, []))) - len(_json(outline.brief))
        return outline.cost

    def _outline(self, part: SchemaPart) -> _Outline:
        node, base = part[0]
        if len(part) == 1 and isinstance(node, dict) and node.keys() == {"$ref"}:
            part = (self._target(node["$ref"], base),)  # all references to it share one outline
        ids = tuple(id(node) for node, _ in part)
        if ids not in self._outlines:
            sources = self._sources(part)
            schema = self._read(sources)
            name = next((self._names[id(node)] for node, _ in sources if id(node) in self._names), "")
            self._outlines[ids] = _Outline(part, schema, _brief(schema), name)
        return self._outlines[ids]

    def _target(self, reference: Any, base: str) -> Source:
        key = (str(reference), base)
        if key not in self._targets:
            try:
                self._targets[key] = self._document.resolve(*key)
                name = re.sub(r"[^A-Za-z0-9_.-]+", "_", key[0].rpartition("/")[2])[:60] or "schema"
                self._names[id(self._targets[key][0])] = name
            except BadReference as problem:
                self._notes.append(f"{key[0][:200]}: {problem}; values of it are not checked")
                self._targets[key] = _ANY[0]
        return self._targets[key]

    def _sources(self, part: SchemaPart) -> list[Source]:
        """All schemas that a value has to fit, with what references and `allOf` lead to; the last one says most."""
        stack, found = [*part], dict[int, Source]()
        while stack:
            node, base = stack.pop()
            if not isinstance(node, dict) or id(node) in found:
                continue
            found[id(node)] = (node, base)
            alone = [each for word in _UNIONS if len(each := as_list(node.get(word))) == 1]
            stack += [(each, base) for each in chain(as_list(node.get("allOf")), *alone)]
            if "$ref" in node:
                stack.append(self._target(node["$ref"], base))
        if found and all(node.keys() == {"$ref"} for node, _ in found.values()):
            ids = [id(self._target(node["$ref"], base)[0]) for node, base in found.values()]
            if found.keys() >= {*ids}:
                name = min(self._names[each] for each in ids)
                self._notes.append(f"the schema {name}: its references lead in a circle; values of it are not checked")
        self._count(len(found))
        return [*reversed(found.values())]

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise SetupError("the document: its schemas are too large, or multiply; choose operations by only=[…]")

    def _read(self, sources: list[Source]) -> Schema:
        schema: Schema = {}
        for node, base in sources:
            for key, value in self._own(node, base).items():
                if key not in schema:
                    schema[key] = value
                elif key in _MERGED:
                    schema[key] = _MERGED[key](schema[key], value)
                elif value != schema[key]:  # for example a second pattern
                    schema.setdefault("allOf", []).append((({key: value}, base),))
        self._add_unions(schema, sources)
        if "required" in schema:
            schema["required"] = list(dict.fromkeys(schema["required"]))
        if "properties" in schema:
            self._finish_properties(schema)
        elif "object" in schema.get("type", ()) and "anyOf" not in schema:
            schema.setdefault("additionalProperties", True)
        if self._is_response or any(node.get("nullable") is True and "type" not in node for node, _ in sources):
            _allow_null(schema, is_response=self._is_response)
        if len(types := schema.get("type", ())) == 1:
            schema["type"] = types[0]
        return schema

    def _own(self, node: Schema, base: str) -> Schema:
        """The keywords of a schema itself."""
        types = _types(node)
        own = {} if self._is_response else self._assertions(node, types)
        if isinstance(text := node.get("description"), str) and (text := self._describe(text)):
            own["description"] = text
        if types:
            own["type"] = types
        if "array" in types:
            own["items"] = ((node.get("items"), base),)
            if members := as_list(node.get("prefixItems")):
                own["prefixItems"] = [((each, base),) for each in members]
        if "object" in types:
            self._add_properties(own, node, base)
        return own

    def _add_properties(self, own: Schema, node: Schema, base: str) -> None:
        if given := as_object(node.get("properties")):
            self._count(len(given))
            own["properties"] = {name: ((each, base),) for name, each in given.items()}
        others = node.get("additionalProperties")
        if isinstance(others, dict):
            own["additionalProperties"] = ((others, base),) if others else True
        elif others is True or (others is False and not self._is_response and "patternProperties" not in node):
            own["additionalProperties"] = others
        if isinstance(names := node.get("propertyNames"), dict) and not self._is_response:
            own["propertyNames"] = ((names, base),)

    def _finish_properties(self, schema: Schema) -> None:
        """Leaves out what only the other side sends, and adds what is required without a description."""
        shown = {name: part for name, part in schema["properties"].items() if not self._is_hidden(part)}
        if required := schema.get("required"):
            schema["required"] = [name for name in required if name in shown or name not in schema["properties"]]
            shown = shown if "anyOf" in schema else dict.fromkeys(schema["required"], _ANY) | shown
        schema["properties"] = shown

    def _is_hidden(self, part: SchemaPart) -> bool:
        return part[0][0] is False or any(node.get(self._hidden) is True for node, _ in self._sources(part))

    def _add_unions(self, schema: Schema, sources: list[Source]) -> None:
        """Adds `anyOf` and `oneOf`, but for one that has a source among its members: it says nothing more."""
        ids = {id(node) for node, _ in sources}
        unions = list[Source]()
        for node, base in sources:
            for members in (as_list(node.get(word)) for word in _UNIONS):
                targets = (self._target(each["$ref"], base)[0] for each in members if "$ref" in as_object(each))
                if len(members) > 1 and not any(id(target) in ids for target in targets):
                    unions.append(({"anyOf": members, "discriminator": node.get("discriminator")}, base))
        if len(unions) == 1:
            union, base = unions[0]
            schema["anyOf"] = [((each, base), *_discriminated(each, union, base)) for each in union["anyOf"]]
        elif unions:
            schema["allOf"] = [*schema.get("allOf", ()), *((each,) for each in unions)]

    def _assertions(self, node: Schema, types: list[str]) -> Schema:
        own = {key: value for key, value in node.items() if key in _KEYWORDS and _KEYWORDS[key](value)}
        for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if node.get(exclusive) is True and limit in own:  # as in OpenAPI 3.0
                own[exclusive] = own.pop(limit)
        if own.get("format") in _UNLIKE or "string" not in types:
            own.pop("format", None)
        if "pattern" in own and not self._is_light(own["pattern"]):
            del own["pattern"]
        if "enum" in own:
            own["enum"] = _choices(node, types)
        media = own.get("contentMediaType")
        if media and "contentEncoding" not in own and not _TEXT_MEDIA.match(media):
            own["format"] = "binary"
        if own.get("format") == "binary":
            own["contentEncoding"] = "base64"
        return own

    def _is_light(self, pattern: str) -> bool:
        """Whether the validator takes a pattern, and is fast with it."""
        if pattern not in self._patterns and len(self._patterns) < MAX_PATTERNS:
            try:
                is_light = len(pattern) <= MAX_PATTERN and Pattern(pattern, where="").max_text == sys.maxsize
            except SetupError:
                is_light = False
            self._patterns[pattern] = is_light
            if not is_light:
                self._notes.append(f"the pattern {pattern[:200]} is not checked: it is slow, or of another dialect")
        return self._patterns.get(pattern, False)


def free_name(name: str, taken: Container[str], number: int) -> str:
    """The name, with a number at its end if it is taken: the given one, or one above it."""
    free = name
    while free in taken:
        free = f"{name[: 63 - len(str(number))]}_{number}"
        number += 1
    return free


def _types(node: Schema) -> list[str]:
    """The types that a schema names; if it names none, those that its keywords are for."""
    given = node.get("type")
    enum = as_list(node.get("enum"))
    types = [kind for kind in (given if isinstance(given, list) else [given]) if kind in _TYPES]
    if not types and ("properties" in node or "items" in node):
        types = ["object" if "properties" in node else "array"]
    elif not types and enum and all(isinstance(value, str) for value in enum):
        types = ["string"]
    return list(dict.fromkeys([*types, "null"] if types and node.get("nullable") is True else types))


def _choices(node: Schema, types: list[str]) -> list[Any]:
    """The values of an enum. YAML reads 1.0 and true as other things than texts; `nullable` means null too."""
    enum: list[Any] = node["enum"]
    if {"string"} <= {*types} <= {"string", "null"}:
        enum = [value if isinstance(value, str) or value is None else _json(value).decode() for value in enum]
    return [*enum, None] if node.get("nullable") is True and None not in enum else enum


def _allow_null(schema: Schema, *, is_response: bool) -> None:
    if "type" in schema:
        schema["type"] = [*(kind for kind in schema["type"] if kind != "null"), "null"]
    if "anyOf" in schema and not is_response:  # there every type allows null
        schema["anyOf"] = [*schema["anyOf"], _NULL]
    if None not in schema.get("enum", [None]):
        schema["enum"] = [*schema["enum"], None]


def _discriminated(member: Any, union: Schema, base: str) -> list[Source]:
    """What the discriminator of a union says about one of its members."""
    discriminator = as_object(union["discriminator"])
    name, mapping = discriminator.get("propertyName"), as_object(discriminator.get("mapping"))
    reference = as_object(member).get("$ref")
    values = [value for value, target in mapping.items() if reference in (target, f"#/components/schemas/{target}")]
    if not isinstance(name, str) or len(values) != 1:
        return []
    return [({"type": "object", "properties": {name: {"const": values[0]}}, "required": [name]}, base)]


def _brief(schema: Schema) -> Schema:
    """A schema that says no more than its type and description; the whole schema if it is small and has no parts."""
    if not schema.keys() & _NESTING and len(_json(schema)) <= MAX_LEAF:
        return schema
    brief: Schema = {key: schema[key] for key in ("type", "description") if key in schema}
    if "description" in brief:
        brief["description"] = brief["description"][:100]
    types = brief.get("type", ())
    brief |= {"items": {}} if "array" in types else {}
    return brief | ({"additionalProperties": True} if "object" in types else {})


def _is_usable(schema: Schema) -> bool:
    """Whether the validator takes a schema: it refuses references that multiply, or lead in circles."""
    try:
        if "$defs" in schema:
            SchemaDocument(schema, "", SchemaLimits())
    except SetupError:
        return False
    return True
