"""Validation of values against JSON Schemas, with limits on the size and depth of both.

jsonschema-rs is fast and complete, but it would fetch references, evaluate a hostile schema for hours and crash on a
deep value. So schemas are measured, the depth of values is checked, and the cost of patterns is bounded.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import msgspec

from dovetail.errors import SetupError
from dovetail.schema import explain
from dovetail.schema.explain import Budget, Explanation, excerpt, is_within_limits, readable

DIALECTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)


class SchemaLimits(msgspec.Struct, frozen=True):
    """How large a schema may be, and how deep a value."""

    depth: int = 64
    subschemas: int = 10_000
    paths: int = 100_000  # through the schema, with references followed
    instance_depth: int = 200
    bytes: int = 1_000_000


_BASE_URI = "https://schema.invalid/"  # of a schema without an id; nothing is ever fetched
# Keywords whose schemas apply to the same value, to values inside it, or to none:
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"})
_INSIDE = frozenset({
    "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames",
    "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains",
})  # fmt: skip
_UNAPPLIED = frozenset({"$defs", "definitions", "contentSchema"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})
_UNEVALUATED = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_MAX_DYNAMIC = 50  # anchors, each of which a dynamic reference may mean
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each subschema with its keyword."""
    for keyword, argument in schema.items():
        if keyword not in _IN_PLACE and keyword not in _INSIDE and keyword not in _UNAPPLIED:
            continue
        if keyword in _NAMED and isinstance(argument, dict):
            yield from ((keyword, part) for part in argument.values())
        elif isinstance(argument, list):
            yield from ((keyword, part) for part in argument)
        else:
            yield keyword, argument


def holds_more_than(most: int, value: Any) -> bool:
    """Whether the encoded value has more nodes; a shared object counts each time."""
    count, stack = 1, [value]
    while stack and count <= most:
        current = stack.pop()
        inner = (
            current.values() if isinstance(current, Mapping) else current if isinstance(current, (list, tuple)) else ()
        )
        count += len(inner)
        if count <= most:
            stack.extend(inner)
    return count > most


class SchemaDocument:
    """A copy of a schema that is within the limits; resolves its references."""

    def __init__(self, schema: Mapping[str, Any] | bool, where: str, limits: SchemaLimits) -> None:
        self.where = where
        self.limits = limits
        self.root = self._copy(schema)
        self.dialect = DIALECTS[0]
        self.patterns: set[str] = set()
        self.parts: list[dict[str, Any]] = []
        self._bases: dict[int, str] = {}  # base URIs of references, by part
        self._by_uri: dict[str, Any] = {_BASE_URI: self.root}
        self._dynamic: list[dict[str, Any]] = []
        self._targets: dict[int, list[Any]] = {}
        self.is_old = False
        self.max_depth = limits.instance_depth  # of a value
        if isinstance(self.root, dict):
            self.dialect = self._known_dialect(self.root) or DIALECTS[0]
            self.is_old = self.dialect in DIALECTS[2:]  # there a "$ref" hides the keywords beside it
            self._index(self.root, _BASE_URI)
            for part in self.parts:  # grows when a reference leads to a part outside of known keywords
                self._targets[id(part)] = [target for name in _REFERENCES for target in self._targets_of(part, name)]
            self._refuse_loops()
            returns = self._count_paths()
            if returns and any(_UNEVALUATED & part.keys() for part in self.parts):
                ways = max(returns, 2)  # that the engine may take at each level of a value
                self.max_depth = min(self.max_depth, int(math.log(limits.paths, ways)))

    def _refuse(self, reason: str) -> SetupError:
        return SetupError(f"{self.where}: {reason}")

    def _copy(self, schema: Mapping[str, Any] | bool) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise self._refuse(f"a JSON Schema is a dict or a bool, not {type(schema).__name__}")
        if holds_more_than(self.limits.bytes, schema):  # each takes at least a byte
            raise self._refuse("the schema is too large, or contains itself")
        try:
            encoded = msgspec.json.encode(dict(schema))
            copied = msgspec.json.decode(encoded)
            is_same = copied == schema
        except RecursionError:
            raise self._refuse("the schema is nested deeper than it may be") from None
        except (TypeError, ValueError, OverflowError) as error:
            raise self._refuse(f"the schema is no JSON: {error}") from None
        if len(encoded) > self.limits.bytes:
            raise self._refuse(f"the schema is too large, at most {self.limits.bytes:,} bytes are allowed")
        if not is_same:
            self._refuse_changed(schema)
        return copied

    def _refuse_changed(self, schema: Any) -> None:
        """Raises for NaN, infinity and keys that are no strings, which the copy would change."""
        stack: list[tuple[tuple[Any, ...], Any]] = [((), schema)]
        while stack:
            path, current = stack.pop()
            place = readable(path, "its root")
            if isinstance(current, float) and not math.isfinite(current):
                raise self._refuse(f"the schema is no JSON: {place} is {current}; use a finite number, or leave it out")
            if isinstance(current, Mapping):
                if wrong := [key for key in current if not isinstance(key, str)]:
                    raise self._refuse(f"the schema is no JSON: {place} has the key {wrong[0]!r}; write it as a string")
                stack += [((*path, key), inner) for key, inner in current.items()]
            elif isinstance(current, (list, tuple)):
                stack += [((*path, index), inner) for index, inner in enumerate(current)]

    def _known_dialect(self, part: dict[str, Any]) -> str | None:
        uri = part.get("$schema")
        if not isinstance(uri, str):
            return None
        name = uri.removesuffix("#").partition("://")[2]
        found = next((dialect for dialect in DIALECTS if dialect.endswith("://" + name)), None)
        if found is None:
            supported = ", ".join(DIALECTS)
            raise self._refuse(f'"$schema" {excerpt(uri)} is not a supported dialect; use one of {supported}')
        return found

    def _index(self, part: Any, base: str) -> None:
        """Registers every schema inside one, with its URIs."""
        stack = [(part, base, 1)]
        count = len(self.parts)
        while stack:
            part, base, depth = stack.pop()
            count += 1
            if count > self.limits.subschemas:
                raise self._refuse(f"more than {self.limits.subschemas:,} subschemas; split the schema or simplify it")
            if depth > self.limits.depth:
                raise self._refuse(f"the schema is nested deeper than {self.limits.depth} levels; flatten it")
            if not isinstance(part, dict) or id(part) in self._bases:
                continue
            self._bases[id(part)] = base = self._index_part(part, base)
            self.parts.append(part)
            stack += [(inner, base, depth + 1) for _, inner in _parts(part)]

    def _index_part(self, part: dict[str, Any], base: str) -> str:
        """Registers a part. Returns the base URI of its references."""
        self._known_dialect(part)
        pattern, names = part.get("pattern"), part.get("patternProperties")
        self.patterns.update([pattern] if isinstance(pattern, str) else [])
        self.patterns.update(names if isinstance(names, dict) else [])
        own = part.get("id" if self.dialect == DIALECTS[-1] else "$id")
        if isinstance(own, str) and not (self.is_old and "$ref" in part):
            address, _, fragment = self._join(base, own).partition("#")
            self._by_uri[f"{address}#{fragment}" if fragment else address] = part
            base = base if fragment else address
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(part.get(keyword), str):
                self._by_uri[f"{base}#{part[keyword]}"] = part
        if "$dynamicAnchor" in part or "$recursiveAnchor" in part:
            self._dynamic.append(part)
            if len(self._dynamic) > _MAX_DYNAMIC:
                raise self._refuse(f"more than {_MAX_DYNAMIC} dynamic anchors; use fewer")
        return base

    def _join(self, base: str, reference: str) -> str:
        if reference.startswith("#"):
            return base + reference
        from urllib.parse import urljoin  # late: few schemas need it

        try:
            return urljoin(base, reference)
        except ValueError:
            raise self._refuse(f"{excerpt(reference)} is not a URI reference") from None

    def target(self, part: dict[str, Any], reference: str) -> Any:
        """The target of a reference in a part; None if it is not in this document."""
        base, _, fragment = self._join(self._bases[id(part)], reference).partition("#")
        if "%" in fragment:
            from urllib.parse import unquote

            fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._by_uri.get(f"{base}#{fragment}")
        found = self._by_uri.get(base)
        for step in fragment.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = {str(index): item for index, item in enumerate(found)}
            found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, dict) and id(found) not in self._bases:
            self._index(found, base)
        return found

    def _targets_of(self, part: dict[str, Any], keyword: str) -> list[Any]:
        reference = part.get(keyword)
        if not isinstance(reference, str):
            return []
        found = self.target(part, reference)
        if keyword != "$ref":  # its target depends on the path of the evaluation: any of these
            name = reference.partition("#")[2]
            return [found, *(other for other in self._dynamic if other.get("$dynamicAnchor", name) == name)]
        if found is not None or self._join(_BASE_URI, reference).startswith(self.dialect.removesuffix("/schema")):
            return [found]  # the metaschema of the dialect is built in
        if reference.startswith("#"):
            raise self._refuse(f'"$ref" {excerpt(reference)} leads nowhere; define what it means under "$defs"')
        raise self._refuse(
            f'"$ref" {excerpt(reference)} leads out of the schema and is never fetched; copy what it means '
            'into "$defs" and write "#/$defs/<name>"'
        )

    def reach(self, part: dict[str, Any], *, inside: bool) -> list[dict[str, Any]]:
        """A part and all that apply to the same value; with `inside`, also those for the values in it."""
        found, stack = {id(part): part}, [part]
        while stack:
            for in_place, inner in self._nested(stack.pop()):
                if (inside or in_place) and isinstance(inner, dict) and id(inner) not in found:
                    found[id(inner)] = inner
                    stack.append(inner)
        return list(found.values())

    def leads_to(self, part: Any, other: dict[str, Any]) -> bool:
        """Whether evaluating a part evaluates another one, for the same value or one inside it."""
        return isinstance(part, dict) and any(each is other for each in self.reach(part, inside=True))

    def _nested(self, part: dict[str, Any]) -> list[tuple[bool, Any]]:
        """The schemas that a part applies, and whether to the same value."""
        inner = [(keyword in _IN_PLACE, inner) for keyword, inner in _parts(part) if keyword not in _UNAPPLIED]
        return inner + [(True, target) for target in self._targets[id(part)]]

    def _refuse_loops(self) -> None:
        """Raises if a part applies itself to the same value: that has no meaning, and can crash the engine."""
        trail: set[int] = set()
        done: set[int] = set()
        stack = [(part, False) for part in self.parts]
        while stack:
            part, is_finished = stack.pop()
            if is_finished:
                trail.discard(id(part))
                done.add(id(part))
            elif id(part) in trail:
                raise self._refuse('a "$ref" leads back to itself without going deeper into the value; break the loop')
            elif id(part) not in done:
                trail.add(id(part))
                stack.append((part, True))
                stack += [(inner, False) for here, inner in self._nested(part) if here and isinstance(inner, dict)]

    def _count_paths(self) -> int:
        """The number of paths that return to one of their parts: 0 without recursion. Raises for too many paths."""
        returns = count = 0
        trail: set[int] = set()
        nested = {id(part): self._nested(part) for part in self.parts}
        stack = [(self.root, 1)]
        while stack:
            part, weight = stack.pop()
            if weight == 0:  # the end of the part
                trail.discard(id(part))
                continue
            count += weight
            if count > self.limits.paths:
                raise self._refuse(
                    f"evaluating the schema may take more than {self.limits.paths:,} steps, as its references or "
                    "alternatives multiply; simplify them"
                )
            returns += id(part) in trail
            if isinstance(part, dict) and id(part) not in trail:
                trail.add(id(part))
                stack.append((part, 0))
                # For "unevaluated…" the engine evaluates the keywords beside it again and again.
                more = 4 if _UNEVALUATED & part.keys() else 1
                stack += [(inner, weight * more if in_place else weight) for in_place, inner in nested[id(part)]]
        return returns


Check = Callable[[Any], bool]
_LIMITS = SchemaLimits()


class Validator:
    """Checks values against one schema. With `lazy`, jsonschema-rs is loaded when the first value is checked."""

    def __init__(
        self, schema: Mapping[str, Any] | bool, *, where: str, limits: SchemaLimits = _LIMITS, lazy: bool = False
    ) -> None:
        self._document = SchemaDocument(schema, where, limits)
        self._engine: SchemaEngine | None = None if lazy else SchemaEngine(self._document)

    def is_valid(self, instance: Any) -> bool:
        engine = self._engine = self._engine or SchemaEngine(self._document)
        try:
            return is_within_limits(instance, self._document.max_depth, engine.max_name) and engine.is_valid(instance)
        except (ValueError, RuntimeError):  # a value that is no JSON, or the engine gave up
            return False

    def problems(self, instance: Any, *, root: str = "arguments", budget: Budget | None = None) -> list[str]:
        """One line for each problem; empty if the value is valid."""
        engine = self._engine = self._engine or SchemaEngine(self._document)
        depth, budget = self._document.max_depth, budget or Budget()
        if not is_within_limits(instance, depth, engine.max_name):
            return [f"{root}: is nested deeper than {depth} levels, or holds too large a number or too long a name"]
        try:
            if engine.is_valid(instance):
                return []
            found = Explanation(self._document, engine, budget).problems(instance)
        except (ValueError, RuntimeError):  # a value that is no JSON, or the engine gave up
            found = []
        rest = [f"{root}: {explain.INCOMPLETE}"] if budget.is_spent else []
        return (explain.problem_lines(found, root) or [f"{root}: {explain.DOES_NOT_FIT}"]) + rest


class Pattern:
    """A regular expression with bounded time; a text that takes longer does not match."""

    def __init__(self, pattern: str, *, where: str) -> None:
        rs = _library()
        for engine, size, max_text in _ENGINES:
            options = {"backtrack_limit": _BACKTRACKS} if engine == _BACKTRACKING else {}
            try:
                self._is_match: Check = _compiled({"pattern": pattern}, getattr(rs, engine)(size_limit=size, **options))
            except ValueError:
                continue
            self.max_text = max_text
            return
        raise SetupError(f"{where}: the pattern {excerpt(pattern)} is malformed or far too large; simplify it")

    def matches(self, text: str) -> bool:
        try:
            return len(text) <= self.max_text and self._is_match(text)
        except UnicodeEncodeError:  # a lone surrogate
            return False


_BACKTRACKS = 2_000  # steps of one match; then it fails
_MAX_HEAVY_PATTERNS = 20  # in one schema
_MAX_NAME = 300  # characters, where patternProperties need the backtracking engine
_LIGHT, _MIDDLE, _LARGE = 1 << 15, 1 << 18, 1 << 21  # bytes of a compiled pattern
_LINEAR, _BACKTRACKING = "RegexOptions", "FancyRegexOptions"
_ENGINES = (  # tried in this order, with the longest text: the worst case takes a second or two
    (_LINEAR, _LIGHT, sys.maxsize),
    (_LINEAR, _MIDDLE, 5_000),
    (_BACKTRACKING, _LIGHT, 5_000),
    (_BACKTRACKING, _MIDDLE, 300),
    (_LINEAR, _LARGE, 2_500),
    (_LINEAR, 2 * _LARGE, 1_000),
)


def _library() -> ModuleType:
    import jsonschema_rs  # late: a server whose arguments all fit never needs it

    return jsonschema_rs


def _compiled(schema: Any, patterns: Any, **options: Any) -> Check:
    # Formats are asserted: generated schemas express dates and UUIDs with them.
    options |= {"offline": True, "validate_formats": True, "ignore_unknown_formats": True, "pattern_options": patterns}
    is_valid: Check = _library().validator_for(schema, **options).is_valid
    return is_valid


class SchemaEngine:
    """jsonschema-rs for one schema and its single keywords, with bounded patterns."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._patterns = _library().RegexOptions(size_limit=_LIGHT)
        self._options: dict[str, Any] = {}
        self._keywords: dict[tuple[int, str], Check] = {}
        self._known: dict[str, Pattern] = {}
        self.max_name = sys.maxsize
        self.is_valid = self._compile_all()

    def _compile_all(self) -> Check:
        root, where = self._document.root, self._document.where
        try:
            _library().meta.validate(root)
        except ValueError as error:
            raise SetupError(f"{where}: not a valid JSON Schema: {_fault(error)}") from None
        try:
            return self._compile(root)
        except ValueError:
            self._guard_patterns()
        try:
            return self._compile(root)
        except ValueError as error:
            raise SetupError(f"{where}: this schema can't be used: {_fault(error)}") from None

    def _guard_patterns(self) -> None:
        """Check patterns by `Pattern` from now on, because one exceeds the size limit of the light engine."""
        where, known = self._document.where, self.pattern
        heavy = [text for text in self._document.patterns if known(text).max_text < sys.maxsize]
        if len(heavy) > _MAX_HEAVY_PATTERNS:
            raise SetupError(f"{where}: {len(heavy)} costly patterns; simplify all but {_MAX_HEAVY_PATTERNS} of them")

        class Keyword:
            def __init__(self, _schema: Any, pattern: str, _path: Any) -> None:
                self.pattern = known(pattern)

            def validate(self, value: Any) -> None:
                if isinstance(value, str) and not self.pattern.matches(value):
                    raise ValueError

        self._patterns = _library().FancyRegexOptions(size_limit=_MIDDLE, backtrack_limit=_BACKTRACKS)
        self._options = {"keywords": {"pattern": Keyword}}
        self.max_name = _MAX_NAME  # for patternProperties, which do not use the keyword

    def _compile(self, schema: Any) -> Check:
        return _compiled(schema, self._patterns, **self._options)

    def pattern(self, text: str) -> Pattern:
        if text not in self._known:
            self._known[text] = Pattern(text, where=self._document.where)
        return self._known[text]

    def violates(self, part: dict[str, Any], keyword: str, value: Any) -> bool:
        """Whether a value violates a keyword that needs no other part of the schema."""
        if (id(part), keyword) not in self._keywords:
            pair = (keyword, explain.PARTNERS.get(keyword, keyword))
            alone = {"$schema": self._document.dialect} | {name: part[name] for name in pair if name in part}
            self._keywords[id(part), keyword] = self._compile(alone)
        return not self._keywords[id(part), keyword](value)


def _fault(error: Any) -> str:
    place = getattr(error, "instance_path", None)
    if not place:
        return str(error).partition("\n")[0][:200]
    return f"{readable(place, '')} is {excerpt(error.instance)}, which is not allowed there"
