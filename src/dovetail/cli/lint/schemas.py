"""Checks of the schemas of tools, as some server wrote them: every part, its references, its patterns.

References are those of JSON Schema 2020-12: a URI relative to the `$id` around it, with a JSON pointer or an anchor
as its fragment. Nothing is fetched.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from dovetail.cli.arguments import Schema, mapping, text_of
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
ELSEWHERE = ("$ref", "$dynamicRef", "anyOf", "oneOf")  # what a branch with these says is not looked up
MAX_NESTED = 8  # `allOf` in `allOf`
REFERENCES = ("$ref", "$dynamicRef")
ANCHORS = ("$anchor", "$dynamicAnchor")
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
SAYING = ("type", "enum", "const", *REFERENCES, "anyOf", "oneOf", "allOf", "properties", "items")
_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?|[()\[\\]", re.DOTALL)  # whatever opens, closes or hides something
_GROUP = re.compile(r"\(\?(?:[:=!]|<[=!]|<[^<>()]+>|[ims]*(?:-[ims]*)?:)")
_UNKNOWN = re.compile(r"\(\?(?:[a-zA-Z-]+\)|.?)", re.DOTALL)  # as much of a group as says what it was meant to be


# ── every part of a schema ──


class Described(NamedTuple):
    """What a schema and the branches of its `allOf` say of a value."""

    names: Collection[str]  # of its properties
    has_items: bool
    is_partial: bool  # more is said elsewhere


class Part(NamedTuple):
    """A schema inside of another."""

    schema: Schema
    path: tuple[str, ...]
    depth: int  # of values in values
    beside: tuple[Described, ...] = ()  # of the same value, by the schemas around this one
    is_test: bool = False

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


def parts(root: Any) -> Iterator[Part]:
    """The schema itself first. Of one that is too large or too deep, the beginning."""
    waiting = [Part(root, (), 0)] if isinstance(root, Mapping) else []
    for _ in range(MAX_PARTS):
        if not waiting:
            return
        part = waiting.pop()
        yield part
        if len(part.path) < 128:
            waiting += reversed(list(_inside(part)))


def _inside(part: Part) -> Iterator[Part]:
    around = (*part.beside, described_by(part.schema))
    for keyword, value in part.schema.items():
        beside = around if keyword in SAME_VALUE else ()
        depth = part.depth + (keyword in DEEPER)
        for steps, schema in _held(keyword, value):
            yield Part(schema, (*part.path, keyword, *steps), depth, beside, part.is_test or keyword in TESTS)


def _held(keyword: str, value: Any) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """The schemas that are the value of a keyword, each with the steps to it."""
    if keyword in HOLDS["named"] and isinstance(value, Mapping):
        yield from (((name,), each) for name, each in value.items() if isinstance(each, Mapping))
    elif keyword in HOLDS["one"] and isinstance(value, Mapping):
        yield (), value
    elif keyword in HOLDS["many"] and isinstance(value, list):
        yield from (((str(index),), each) for index, each in enumerate(value) if isinstance(each, Mapping))


def property_names(schema: Any) -> Collection[str]:
    known = schema.get("properties") if isinstance(schema, Mapping) else None
    return known.keys() if isinstance(known, Mapping) else ()


def described_by(schema: Schema) -> Described:
    branches = list(_branches(schema))
    return Described(
        {name for each in (schema, *branches) for name in property_names(each)},
        any(isinstance(each.get("items"), Mapping) or "prefixItems" in each for each in (schema, *branches)),
        any(word in schema for word in ELSEWHERE[:2]) or any(word in each for each in branches for word in ELSEWHERE),
    )


def _branches(schema: Schema, levels: int = MAX_NESTED) -> Iterator[Schema]:
    """Of `allOf`, and of theirs: all of them are true of the same value."""
    branches = schema.get("allOf") if levels else None
    for branch in branches if isinstance(branches, list) else ():
        if isinstance(branch, Mapping):
            yield branch
            yield from _branches(branch, levels - 1)


# ── references ──


class References:
    """The schemas of one document, by the URIs that lead to them."""

    def __init__(self, root: Schema) -> None:
        self._documents: dict[str, Schema] = {"": root}
        self._anchors: dict[tuple[str, str], Schema] = {}
        self._bases: dict[tuple[str, ...], str] = {(): ""}
        for part in parts(root):
            base = self.base_of(part.path)
            named = part.schema.get("$id")
            if isinstance(named, str) and named.startswith("#"):  # an anchor, up to draft 7
                self._anchors[base, named[1:]] = part.schema
            elif isinstance(named, str):
                base = self._bases[part.path] = _joined(base, named)[0]
                self._documents.setdefault(base, part.schema)
            for anchor in ANCHORS:
                if isinstance(part.schema.get(anchor), str):
                    self._anchors[base, part.schema[anchor]] = part.schema

    def base_of(self, path: tuple[str, ...]) -> str:
        """The URI that references in a part count from."""
        if len(self._bases) == 1:  # as almost everywhere
            return self._bases[()]
        return next(self._bases[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self._bases)

    def meant(self, reference: Any, path: tuple[str, ...] = ()) -> Any | None:
        """The schema that a reference in the part at `path` leads to; None if it is not in the document."""
        if not isinstance(reference, str):
            return None
        base, fragment = _joined(self.base_of(path), reference)
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((base, fragment))
        found = _pointed_at(fragment, self._documents.get(base))
        return found if isinstance(found, (Mapping, bool)) else None


def _joined(base: str, reference: str) -> tuple[str, str]:
    """The URI of the document, and the fragment in it."""
    if reference.startswith("#"):
        return base, reference[1:]  # of any scheme; `urljoin` knows those of the web only
    try:
        uri, fragment = urldefrag(urljoin(base, reference))
    except ValueError:
        return reference, ""  # it is no URI, and leads nowhere
    return uri, fragment


def _pointed_at(pointer: str, document: Any) -> Any | None:
    found = document
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and re.fullmatch(r"0|[1-9][0-9]{0,8}", key) and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, Mapping) and key in found:
            found = found[key]
        else:
            return None
    return found


# ── patterns ──


def fault_of(pattern: str) -> str:
    """What is wrong with it; nothing if it may be right."""
    depth = 0
    for piece in _PIECE.finditer(pattern):
        match piece[0]:
            case "(?" if not _GROUP.match(pattern, piece.start()):
                unknown = _UNKNOWN.match(pattern, piece.start())
                return f"{unknown[0] if unknown else '(?'} is not for JSON Schema"
            case "(" | "(?":
                depth += 1
            case ")" if depth == 0:
                return "a ) without its ("
            case ")":
                depth -= 1
            case "[":
                return "a [ without its ]"
            case "\\":
                return "a \\ with nothing behind it"
    return "a ( without its )" if depth else ""


# ── findings ──


def findings_of_schemas(tool: Mapping[str, Any], place: str, objects_only: bool) -> Iterator[Finding]:
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
    is_partial = (part.path and not known) or any(word in part.schema for word in (*UNIONS, *REFERENCES))
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
    if isinstance(pattern, str) and len(pattern) <= 1_000 and (fault := fault_of(pattern)):
        yield "schema-pattern", f"{pattern}: {fault}"


def _references(schema: Schema, place: str, prefix: str) -> Iterator[Finding]:
    references = References(schema)
    for part in parts(schema):
        for reference in (part.schema[word] for word in REFERENCES if word in part.schema):
            where = prefix + part.place
            if references.meant(reference, part.path) is None:
                yield Finding("schema-ref-broken", place, f"{where}: {json.dumps(reference)}".lstrip(": "))
            elif not part.path or part.path[0] not in ("$defs", "definitions"):
                yield Finding("schema-ref", place, where)


def _parameters(schema: Schema, place: str) -> Iterator[Finding]:
    """Those without a description."""
    references = References(schema)
    for name, part in mapping(schema.get("properties")).items():
        if isinstance(part, Mapping) and not _is_described(part, references):
            yield Finding("parameter-description", place, name)


def _is_described(part: Schema, references: References) -> bool:
    """By itself, or by what it is made of."""
    if text_of(part, "description").strip():
        return True
    meant = references.meant(part.get("$ref"))
    inner = part.get("anyOf") or part.get("oneOf") or part.get("allOf")
    candidates = [meant, *(inner if isinstance(inner, list) else [])]
    return any(isinstance(each, Mapping) and text_of(each, "description").strip() for each in candidates)
