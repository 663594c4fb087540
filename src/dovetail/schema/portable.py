"""Portable schemas: input schemas in one dialect that every known model provider takes.

The dialect has `type` (one of them), `description`, `properties`, `required`, `items`, `enum` of strings, and `anyOf`
with nothing beside it; its root is one object without a description. What else a schema says is turned into these, said
in the descriptions, or left out: the table is `portable.json`, with who refuses what and where that is written.

A value that fits the portable schema fits the full one too, but for what only the descriptions say.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import msgspec

from dovetail.protocol.types import ToolDefinition
from dovetail.schema.explain import FORMATS, excerpt, listed
from dovetail.schema.generate import JsonSchema

MAX_BYTES = 60_000  # of a schema, written out; a model that reads one tool of this size has no room for others
PART_BYTES = 50  # of each part, besides its own words
MAX_DEPTH = 48  # of its parts
MAX_BRANCHES = 16  # of a union
LEVELS = 3  # of a type inside itself


class Rule(NamedTuple):
    """One entry of `portable.json`: what becomes of a keyword, or of another part of a schema."""

    becomes: str
    refused_by: str
    source: str
    words: str = ""  # for the description; {} stands for the argument of the keyword
    type: str = ""  # of the values that the keyword is about


_table = Path(__file__).with_suffix(".json").read_bytes()
RULES: dict[str, Rule] = {name: Rule(**rule) for name, rule in msgspec.json.decode(_table).items()}

_JSON_TYPES = {
    str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array", NoneType: "null",
}  # fmt: skip
_is_name = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch
_COMBINING = ("$ref", "allOf", "anyOf", "oneOf", "const", "enum", "type")
_NESTING = {  # these hold parts, which count for themselves
    *("allOf", "anyOf", "oneOf", "properties", "patternProperties", "additionalProperties", "items", "prefixItems"),
    *("$defs", "definitions"),
}
_NOTES = ("description", "default", "deprecated", "x-mcp-header")  # beside a union: they go to its first branch
_STRUCTURE = {"properties": "object", "required": "object", "items": "array"}  # keywords of the dialect, by type
_WRITTEN = {  # by their own code, or for no model to know
    *("type", "description", "enum", "prefixItems", "x-mcp-header", "additionalProperties", "patternProperties"),
    *("title", "examples", "$schema", "$id", "$comment", "$defs", "definitions", *_STRUCTURE),
}
_ANYTHING_BUT_STRINGS: tuple[JsonSchema, ...] = (
    {"type": "number"},
    {"type": "boolean"},
    {"type": "object", "properties": {"key": {"type": "string"}}},
    {"type": "array", "items": {"type": "string"}},
)


class Portable(NamedTuple):
    """A portable schema, what was changed and where, and what the description of its tool has to say."""

    schema: JsonSchema
    changes: list[str]
    note: str


def portable(schema: Mapping[str, Any]) -> Portable:
    """The schema in the portable dialect. Any JSON is taken for a schema, since it may come from elsewhere."""
    return _Writer(msgspec.json.decode(msgspec.json.encode(schema))).root()


def portable_tool(tool: ToolDefinition) -> ToolDefinition:
    """The tool with a portable input schema. The output schema stays: hosts do not show it to models."""
    schema, _, note = portable(tool.input_schema)
    description = "\n\n".join(text for text in (tool.description, note) if text)
    return msgspec.structs.replace(tool, input_schema=schema, description=description or None)


class _Place(NamedTuple):
    """A place in a schema: the path of its values, and how many parts are around it."""

    path: str = ""
    depth: int = 0


class _Writer:
    """Writes the parts of one schema.

    An option is one way to fit a part: keywords without references and unions. What can't be given, or is beyond the
    limits, has none.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._changes: dict[str, dict[str, None]] = {}  # paths by rule, in their order
        self._bytes_left = MAX_BYTES
        self._references = [set[str]()]  # that have led to the part which is written, and to those around it

    def root(self) -> Portable:
        """One object, even for a union: with all properties, of which those are required that all branches require."""
        options = self._product([{"type": "object"}], self._options(self._schema, _Place()), _Place())
        branches = [self._object(option, _Place()) for option in options] or [{"properties": {}}]
        if len(branches) > 1:
            self._change(_Place(), "root union")
        names = dict.fromkeys(name for branch in branches for name in branch["properties"])
        properties = {name: _union(branch["properties"].get(name) for branch in branches) for name in names}
        needed = [branch.get("required", ()) for branch in branches]
        required = [name for name in names if all(name in each for each in needed)]
        choices = dict.fromkeys(", ".join(name for name in each if name not in required) for each in needed)
        notes = [branch.get("description") for branch in branches]
        if len(choices) > 1:
            notes.append(f"Give one of these: {'; or '.join(choice or 'none of them' for choice in choices)}.")
        schema = {"type": "object", "properties": properties, **({"required": required} if required else {})}
        changes = [f"{rule} ({listed(paths)}): {_rule(rule).becomes}" for rule, paths in self._changes.items()]
        return Portable(schema, changes, " ".join(dict.fromkeys(filter(None, notes))))

    def _change(self, at: _Place, rule: str, argument: str = "") -> str:
        """Report a change; gives the words that its rule has for the description."""
        self._changes.setdefault(rule, {})[at.path or "the root"] = None
        return _rule(rule).words.format(argument)

    # ── the ways to fit a part ──

    def _options(self, part: Any, at: _Place) -> list[JsonSchema]:
        if not isinstance(part, dict):
            return [] if part is False else [{}]
        flat = {keyword: value for keyword, value in part.items() if keyword not in _NESTING}
        parts = 1 + len(_list(part.get("required")))  # what is required is written in any case
        self._bytes_left -= parts * PART_BYTES + len(msgspec.json.encode(flat))
        if self._bytes_left < 0 or at.depth > MAX_DEPTH:
            self._change(at, "size")
            return []
        own = {keyword: value for keyword, value in part.items() if keyword not in _COMBINING}
        notes = {keyword: own.pop(keyword) for keyword in _NOTES if keyword in own}
        found = [own]
        for keyword in _COMBINING:
            if keyword in part:
                for others in self._combined(keyword, part[keyword], at._replace(depth=at.depth + 1)):
                    found = self._product(found, others, at)
        if found and notes:
            first = next((index for index, option in enumerate(found) if _type_of(option) != "null"), 0)
            found[first] = {**found[first], **notes}
        return found

    def _combined(self, keyword: str, value: Any, at: _Place) -> Iterator[list[JsonSchema]]:
        """The options of schemas that apply to the same value, or of types and values that are listed."""
        if keyword in ("$ref", "allOf", "oneOf", "const") or (keyword == "type" and isinstance(value, list)):
            self._change(at, "list of types" if keyword == "type" else keyword)
        if keyword == "$ref":
            *around, here = self._references
            here.add(str(value))
            is_cut = sum(str(value) in each for each in around) == LEVELS
            if is_cut:
                self._change(at, "recursion")
            yield [] if is_cut else self._options(_target(self._schema, str(value)), at)
        elif keyword == "type":
            kinds = [kind for kind in (value if isinstance(value, list) else [value]) if kind in _JSON_TYPES.values()]
            yield [{"type": kind} for kind in kinds] or [{}]
        elif keyword in ("const", "enum"):
            by_type: dict[str, list[Any]] = {}
            for each in [value] if keyword == "const" else _list(value):
                by_type.setdefault(_JSON_TYPES[type(each)], []).append(each)
            yield [{"type": kind, "enum": values} for kind, values in by_type.items()]
        elif branches := [self._options(branch, at) for branch in _list(value)]:
            yield from branches if keyword == "allOf" else [[option for branch in branches for option in branch]]

    def _product(self, some: list[JsonSchema], others: list[JsonSchema], at: _Place) -> list[JsonSchema]:
        found = [both for one in some for other in others if (both := _merged(one, other)) is not None]
        if len(found) > MAX_BRANCHES:
            self._change(at, "size")
        return found[:MAX_BRANCHES]

    # ── a part in the dialect ──

    def _part(self, part: Any, at: _Place) -> JsonSchema | None:
        self._references.append(set())
        options = self._options(part, at)
        offered = [option for option in options if _type_of(option) != "null"] or options
        if len(offered) < len(options):
            self._change(at, "null")
        written = _union(self._write(option, at) for option in offered)
        self._references.pop()
        return written

    def _write(self, keywords: JsonSchema, at: _Place) -> JsonSchema | None:
        kind = _type_of(keywords)
        if kind == "object":
            written = self._object(keywords, at)
            return written if written["properties"] or "properties" in keywords else None  # not a map of nothing
        if kind == "array":
            return self._array(keywords, at)
        if not kind:
            return self._anything(keywords, at, "no type")
        written = self._described(keywords, kind, at)
        if kind == "string" and (choices := [choice for choice in keywords.get("enum", ()) if choice]):
            written["enum"] = choices
        return written

    def _anything(self, keywords: JsonSchema, at: _Place, rule: str) -> JsonSchema:
        return {"anyOf": [self._described(keywords, "string", at, self._change(at, rule)), *_ANYTHING_BUT_STRINGS]}

    def _object(self, keywords: JsonSchema, at: _Place) -> JsonSchema:
        required = dict.fromkeys(name for name in _list(keywords.get("required")) if isinstance(name, str))
        parts, words = self._named_parts(keywords, required, at)
        properties: dict[str, JsonSchema] = {}
        for name, part in parts.items():
            inner = _Place(f"{at.path}.{name}" if at.path else name, at.depth + 1)
            if not _is_name(name):
                self._change(inner, "property name")
            if _is_name(name) or name in required:
                written = self._part(part, inner)
                if written is None and name in required:
                    written = self._anything({}, inner, "recursion")
                if written is not None and written.get("type") == "null" and name not in required:
                    self._change(inner, "null")
                elif written is not None:
                    properties[name] = written
        if at.path and "properties" in keywords and not properties:
            self._change(at, "no properties")
        needed = {"required": needed} if (needed := [name for name in required if name in properties]) else {}
        return {**self._described(keywords, "object", at, words), "properties": properties, **needed}

    def _named_parts(self, keywords: JsonSchema, required: Iterable[str], at: _Place) -> tuple[JsonSchema, str]:
        """The schemas of properties by their names, with examples for a map, and words for other names."""
        by_pattern = iter(_dict(keywords.get("patternProperties")).values())
        other = next(by_pattern, keywords.get("additionalProperties", True))
        parts = {**dict.fromkeys(required, other), **_dict(keywords.get("properties"))}
        if not at.path or parts or other is False:
            is_open = "additionalProperties" in keywords and other
            return parts, self._change(at, "other names") if is_open else ""
        names = _dict(keywords.get("propertyNames"))
        if choices := [name for name in _list(names.get("enum")) if isinstance(name, str)]:
            return dict.fromkeys(choices, other), ""
        example = "0" if "pattern" in names else "key"  # a pattern of names is mostly that of numbers
        return {example: other}, self._change(at, "map", example)

    def _array(self, keywords: JsonSchema, at: _Place) -> JsonSchema | None:
        items, words = keywords.get("items", True), ""
        first = _list(keywords.get("prefixItems")) or _list(items)  # up to draft 2019-09 `items` may be the list
        written = [self._part(each, _Place(f"{at.path}[]", at.depth + 1)) for each in first or [items]]
        if first:
            types = ("nothing" if each is None else each.get("type", "any of several") for each in written)
            words = self._change(at, "prefixItems", listed(types))
        item = _union(written)
        return None if item is None else {**self._described(keywords, "array", at, words), "items": item}

    def _described(self, keywords: JsonSchema, kind: str, at: _Place, words: str = "") -> JsonSchema:
        """The type, and a description that has words for keywords that the dialect does not have."""
        told, values = [words], keywords.get("enum", ())
        if "" in values or (values and kind != "string"):
            told.append(self._change(at, "enum", listed(map(excerpt, values))))
        for keyword, argument in keywords.items():
            is_about = _rule(keyword).type in ("", "number" if kind == "integer" else kind)
            if is_about and keyword not in _WRITTEN and argument is not None and argument is not False:
                told.append(self._change(at, keyword, _shown(keyword, argument)))
        own, more = str(keywords.get("description") or ""), "; ".join(filter(None, told))
        text = f"{own} ({more})" if own and more else own or more
        header = {"x-mcp-header": keywords["x-mcp-header"]} if "x-mcp-header" in keywords else {}
        return {"type": kind, **({"description": text} if text else {}), **header}


def _rule(name: str) -> Rule:
    return RULES.get(name, RULES["any other keyword"])


def _type_of(keywords: JsonSchema) -> str:
    """The type of its values, or that its keywords are about; empty if it may be any."""
    about = (_STRUCTURE.get(keyword) or _rule(keyword).type for keyword in keywords)
    return keywords.get("type") or next(filter(None, about), "")


def _shown(keyword: str, argument: Any) -> str:
    """The argument of a keyword, for its words."""
    if argument is True and keyword.startswith("exclusive"):
        return "that"  # draft-04: the limit is beside it
    text = argument[:200] if isinstance(argument, str) and keyword != "default" else excerpt(argument)
    return FORMATS.get(text, f"in the format {text}") if keyword == "format" else text


def _merged(a: JsonSchema, b: JsonSchema) -> JsonSchema | None:
    """The option that fits both; None if nothing does."""
    merged = {**b, **a}
    for keyword in a.keys() & b.keys():
        mine, theirs = a[keyword], b[keyword]
        if keyword == "type" and mine != theirs:
            merged["type"] = "integer" if {mine, theirs} == {"integer", "number"} else None
        elif keyword == "enum":
            known = set(map(msgspec.json.encode, theirs))
            merged["enum"] = [value for value in mine if msgspec.json.encode(value) in known]
        elif keyword == "required":
            merged["required"] = [*_list(mine), *_list(theirs)]
        elif keyword in ("items", "additionalProperties"):
            merged[keyword] = _both(mine, theirs)
    if names := _dict(a.get("properties")) | _dict(b.get("properties")):
        merged["properties"] = {name: _both(_property(a, name), _property(b, name)) for name in names}
    fits = merged.get("type", "any") and merged.get("enum", True)
    return merged if fits else None


def _property(keywords: JsonSchema, name: str) -> Any:
    return _dict(keywords.get("properties")).get(name, keywords.get("additionalProperties", True))


def _both(one: Any, other: Any) -> Any:
    return other if one is True else one if other is True or one == other else {"allOf": [one, other]}


def _union(branches: Iterable[JsonSchema | None]) -> JsonSchema | None:
    """The one schema, or all that differ as `anyOf`; None if there is none."""
    flat = [inner for branch in branches if branch for inner in branch.get("anyOf", [branch])]
    unique = [branch for index, branch in enumerate(flat) if branch not in flat[:index]]
    return unique[0] if len(unique) == 1 else {"anyOf": unique} if unique else None


def _target(schema: Any, reference: str) -> Any:
    """What a reference within the document means; any value if it leads elsewhere."""
    found = schema if reference == "#" or reference.startswith("#/") else True
    for step in reference.split("/")[1:]:
        found = _dict(found).get(step.replace("~1", "/").replace("~0", "~"), True)
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> JsonSchema:
    return value if isinstance(value, dict) else {}
