"""JSON Schemas, compiled once, and the check of values against them, behind limits on size and depth.

The engine below is fast and complete, but it would fetch references, follow a hostile schema for hours and crash on a
deep value. So the schema is measured first, the value's depth is checked first, and patterns are kept on a short lead.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import msgspec

from dovetail.errors import SetupError
from dovetail.schema.explain import (
    DOES_NOT_FIT,
    INCOMPLETE,
    PARTNERS,
    Budget,
    Explanation,
    excerpt,
    is_within_limits,
    problem_lines,
    readable,
)

DIALECTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)


class SchemaLimits(msgspec.Struct, frozen=True):
    """How much a schema may ask for, and how deep a value may be."""

    depth: int = 64
    subschemas: int = 10_000
    paths: int = 100_000  # ways through the schema, references followed
    instance_depth: int = 200
    bytes: int = 1_000_000


_HOME = "https://schema.invalid/"  # the address of a schema that does not give its own; nothing is ever fetched
_IN_PLACE = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
)  # fmt: skip
_INSIDE = frozenset({
    "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames",
    "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains",
})  # fmt: skip
_KEPT = frozenset({"$defs", "definitions", "contentSchema"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})
_LEFT_OVER = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_DYNAMIC = 50  # anchors that any dynamic reference may mean
_LEAVE = 0
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keyword and the subschema of each part."""
    for keyword, held in schema.items():
        if keyword not in _IN_PLACE and keyword not in _INSIDE and keyword not in _KEPT:
            continue
        if keyword in _NAMED and isinstance(held, dict):
            yield from ((keyword, part) for part in held.values())
        elif isinstance(held, list):
            yield from ((keyword, part) for part in held)
        else:
            yield keyword, held


def _holds_more_than(most: int, value: Any) -> bool:
    """Whether so many values are written for one; what several hold together is written for each of them."""
    count, stack = 1, [value]
    while stack and count <= most:
        held = stack.pop()
        inner = held.values() if isinstance(held, Mapping) else held if isinstance(held, (list, tuple)) else ()
        count += len(inner)
        if count <= most:
            stack.extend(inner)
    return count > most


class SchemaDocument:
    """A private copy of a schema, measured; knows where each part of it is and what each reference means."""

    def __init__(self, schema: Mapping[str, Any] | bool, where: str, limits: SchemaLimits) -> None:
        self.where = where
        self.limits = limits
        self.root = self._copy(schema)
        self.dialect = DIALECTS[0]
        self.patterns: set[str] = set()
        self.parts: list[dict[str, Any]] = []
        self._bases: dict[int, str] = {}  # the URIs that references count from
        self._named: dict[str, Any] = {_HOME: self.root}
        self._dynamic: list[dict[str, Any]] = []
        self._targets: dict[int, list[Any]] = {}
        self.is_old = False
        self.deepest = limits.instance_depth
        if isinstance(self.root, dict):
            self.dialect = self._known_dialect(self.root) or DIALECTS[0]
            self.is_old = self.dialect in DIALECTS[2:]  # there a "$ref" hides what stands beside it
            self._place(self.root, _HOME)
            for part in self.parts:  # grows when a reference leads to a place where no schema is expected
                self._targets[id(part)] = [target for name in _REFERENCES for target in self._targets_of(part, name)]
            self._refuse_loops()
            returns = self._count_paths()
            if returns and any(_LEFT_OVER & part.keys() for part in self.parts):
                ways = max(returns, 2)  # that the engine may take at each level of a value
                self.deepest = min(self.deepest, int(math.log(limits.paths, ways)))

    def _refuse(self, reason: str) -> SetupError:
        return SetupError(f"{self.where}: {reason}")

    def _copy(self, schema: Mapping[str, Any] | bool) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise self._refuse(f"a JSON Schema is a dict or a bool, not {type(schema).__name__}")
        if _holds_more_than(self.limits.bytes, schema):  # each value takes a byte at least
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
        """In the copy, NaN and infinity would be null, and a key that is no string would be one."""
        stack: list[tuple[tuple[Any, ...], Any]] = [((), schema)]
        while stack:
            path, held = stack.pop()
            place = readable(path, "its root")
            if isinstance(held, float) and not math.isfinite(held):
                raise self._refuse(f"the schema is no JSON: {place} is {held}; use a finite number, or leave it out")
            if isinstance(held, Mapping):
                if wrong := [key for key in held if not isinstance(key, str)]:
                    raise self._refuse(f"the schema is no JSON: {place} has the key {wrong[0]!r}; write it as a string")
                stack += [((*path, key), inner) for key, inner in held.items()]
            elif isinstance(held, (list, tuple)):
                stack += [((*path, index), inner) for index, inner in enumerate(held)]

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

    def _place(self, part: Any, base: str) -> None:
        """Finds every schema inside one, and what it is called."""
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
            self._bases[id(part)] = base = self._name(part, base)
            self.parts.append(part)
            stack += [(inner, base, depth + 1) for _, inner in _parts(part)]

    def _name(self, part: dict[str, Any], base: str) -> str:
        self._known_dialect(part)
        pattern, names = part.get("pattern"), part.get("patternProperties")
        self.patterns.update([pattern] if isinstance(pattern, str) else [])
        self.patterns.update(names if isinstance(names, dict) else [])
        own = part.get("id" if self.dialect == DIALECTS[-1] else "$id")
        if isinstance(own, str) and not (self.is_old and "$ref" in part):
            address, _, fragment = self._join(base, own).partition("#")
            self._named[f"{address}#{fragment}" if fragment else address] = part
            base = base if fragment else address
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(part.get(keyword), str):
                self._named[f"{base}#{part[keyword]}"] = part
        if "$dynamicAnchor" in part or "$recursiveAnchor" in part:
            self._dynamic.append(part)
            if len(self._dynamic) > _DYNAMIC:
                raise self._refuse(f"more than {_DYNAMIC} dynamic anchors; use fewer")
        return base

    def _join(self, base: str, reference: str) -> str:
        if reference.startswith("#"):
            return base + reference
        from urllib.parse import urljoin  # late, as below: few schemas need it

        try:
            return urljoin(base, reference)
        except ValueError:
            raise self._refuse(f"{excerpt(reference)} is not a URI reference") from None

    def target(self, part: dict[str, Any], reference: str) -> Any:
        """What a reference in a part means; None if that is not in this document."""
        base, _, fragment = self._join(self._bases[id(part)], reference).partition("#")
        if "%" in fragment:
            from urllib.parse import unquote

            fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._named.get(f"{base}#{fragment}")
        found = self._named.get(base)
        for step in fragment.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = {str(index): item for index, item in enumerate(found)}
            found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, dict) and id(found) not in self._bases:
            self._place(found, base)
        return found

    def _targets_of(self, part: dict[str, Any], keyword: str) -> list[Any]:
        reference = part.get(keyword)
        if not isinstance(reference, str):
            return []
        found = self.target(part, reference)
        if keyword != "$ref":  # what it means depends on the way that led here: any of these
            name = reference.partition("#")[2]
            return [found, *(other for other in self._dynamic if other.get("$dynamicAnchor", name) == name)]
        if found is not None or self._join(_HOME, reference).startswith(self.dialect.removesuffix("/schema")):
            return [found]  # the metaschema of the dialect is built in
        if reference.startswith("#"):
            raise self._refuse(f'"$ref" {excerpt(reference)} leads nowhere; define what it means under "$defs"')
        raise self._refuse(
            f'"$ref" {excerpt(reference)} leads out of the schema and is never fetched; copy what it means '
            'into "$defs" and write "#/$defs/<name>"'
        )

    def reach(self, part: dict[str, Any], *, inside: bool) -> list[dict[str, Any]]:
        """A part and all that it applies to the same value; with `inside`, also those for the values in it."""
        found, stack = {id(part): part}, [part]
        while stack:
            for in_place, inner in self._nested(stack.pop()):
                if (inside or in_place) and isinstance(inner, dict) and id(inner) not in found:
                    found[id(inner)] = inner
                    stack.append(inner)
        return list(found.values())

    def leads_to(self, part: Any, other: dict[str, Any]) -> bool:
        """Whether a part applies another one, to the same value or to those in it."""
        return isinstance(part, dict) and any(each is other for each in self.reach(part, inside=True))

    def _nested(self, part: dict[str, Any]) -> list[tuple[bool, Any]]:
        """What a part applies, and whether to the same value."""
        inner = [(keyword in _IN_PLACE, inner) for keyword, inner in _parts(part) if keyword not in _KEPT]
        return inner + [(True, target) for target in self._targets[id(part)]]

    def _refuse_loops(self) -> None:
        """A part that is applied to the same value again without end means nothing, and can bring the engine down."""
        trail: set[int] = set()
        done: set[int] = set()
        stack = [(part, False) for part in self.parts]
        while stack:
            part, is_left = stack.pop()
            if is_left:
                trail.discard(id(part))
                done.add(id(part))
            elif id(part) in trail:
                raise self._refuse('a "$ref" comes back to itself without going deeper into the value; break the loop')
            elif id(part) not in done:
                trail.add(id(part))
                stack.append((part, True))
                stack += [(inner, False) for here, inner in self._nested(part) if here and isinstance(inner, dict)]

    def _count_paths(self) -> int:
        """Refuses a schema with too many ways through it; a way ends where it comes back to a part it went through.

        Tells how many do: then the schema contains itself.
        """
        returns = 0
        count = 0
        trail: set[int] = set()
        nested = {id(part): self._nested(part) for part in self.parts}
        stack = [(self.root, 1)]
        while stack:
            part, weight = stack.pop()
            if weight == _LEAVE:
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
                stack.append((part, _LEAVE))
                # To know what is left over, the engine evaluates what stands beside "unevaluated…" again and again.
                more = 4 if _LEFT_OVER & part.keys() else 1
                stack += [(inner, weight * more if in_place else weight) for in_place, inner in nested[id(part)]]
        return returns


Fits = Callable[[Any], bool]

_USUAL = SchemaLimits()


class Validator:
    """One schema, ready to check values. With `lazy` the engine is loaded and asked at the first value only."""

    def __init__(
        self, schema: Mapping[str, Any] | bool, *, where: str, limits: SchemaLimits = _USUAL, lazy: bool = False
    ) -> None:
        self._document = SchemaDocument(schema, where, limits)
        self._engine: SchemaEngine | None = None if lazy else SchemaEngine(self._document)

    def is_valid(self, instance: Any) -> bool:
        engine = self._engine = self._engine or SchemaEngine(self._document)
        try:
            return is_within_limits(instance, self._document.deepest, engine.longest_name) and engine.fits(instance)
        except (ValueError, RuntimeError):  # something that JSON does not have, or the engine gave up
            return False

    def problems(self, instance: Any, *, root: str = "arguments", budget: Budget | None = None) -> list[str]:
        """One line for each thing that is wrong; empty if all is well."""
        engine = self._engine = self._engine or SchemaEngine(self._document)
        deepest, budget = self._document.deepest, budget or Budget()
        if not is_within_limits(instance, deepest, engine.longest_name):
            return [f"{root}: is nested deeper than {deepest} levels, or holds too large a number or too long a name"]
        try:
            if engine.fits(instance):
                return []
            found = Explanation(self._document, engine, budget).of(instance)
        except (ValueError, RuntimeError):  # something that JSON does not have, or the engine gave up
            found = []
        rest = [f"{root}: {INCOMPLETE}"] if budget.is_spent else []
        return (problem_lines(found, root) or [f"{root}: {DOES_NOT_FIT}"]) + rest


class Pattern:
    """A regular expression that no text can make slow; what it can't decide in time does not match."""

    def __init__(self, pattern: str, *, where: str) -> None:
        rs = _library()
        for engine, size, longest in _ENGINES:
            options = {"backtrack_limit": _BACKTRACKS} if engine == _BACKTRACKING else {}
            try:
                self._fits: Fits = _compiled({"pattern": pattern}, getattr(rs, engine)(size_limit=size, **options))
            except ValueError:
                continue
            self.longest = longest
            return
        raise SetupError(f"{where}: the pattern {excerpt(pattern)} is malformed or far too large; simplify it")

    def matches(self, text: str) -> bool:
        try:
            return len(text) <= self.longest and self._fits(text)
        except UnicodeEncodeError:  # half a surrogate pair
            return False


# The engine

_BACKTRACKS = 2_000
_HEAVY_PATTERNS = 20  # in one schema
_LONGEST_NAME = 300  # where patternProperties need the backtracking engine
_LIGHT, _MIDDLE, _LARGE = 1 << 15, 1 << 18, 1 << 21  # bytes of a compiled pattern
_LINEAR, _BACKTRACKING = "RegexOptions", "FancyRegexOptions"
_ENGINES = (  # in this order; the larger the program the shorter the text, so that the worst takes a second or two
    (_LINEAR, _LIGHT, sys.maxsize),
    (_LINEAR, _MIDDLE, 5_000),
    (_BACKTRACKING, _LIGHT, 5_000),
    (_BACKTRACKING, _MIDDLE, 300),
    (_LINEAR, _LARGE, 2_500),
    (_LINEAR, 2 * _LARGE, 1_000),
)


def _library() -> ModuleType:
    """Imported late: a server whose arguments all fit never needs it."""
    import jsonschema_rs

    return jsonschema_rs


def _compiled(schema: Any, patterns: Any, **options: Any) -> Fits:
    # Formats are asserted: generated schemas say dates and UUIDs with them, and a model must hear of a wrong one.
    options |= {"offline": True, "validate_formats": True, "ignore_unknown_formats": True, "pattern_options": patterns}
    fits: Fits = _library().validator_for(schema, **options).is_valid
    return fits


class SchemaEngine:
    """Compiles a schema, and at need keywords of it, so that no pattern can run away."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._patterns = _library().RegexOptions(size_limit=_LIGHT)
        self._options: dict[str, Any] = {}
        self._keywords: dict[tuple[int, str], Fits] = {}
        self._known: dict[str, Pattern] = {}
        self.longest_name = sys.maxsize
        self.fits = self._compile_all()

    def _compile_all(self) -> Fits:
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
        """Some pattern is not for the light engine: each is checked by itself from now on, on texts of bounded size."""
        where, known = self._document.where, self.pattern
        heavy = [text for text in self._document.patterns if known(text).longest < sys.maxsize]
        if len(heavy) > _HEAVY_PATTERNS:
            raise SetupError(f"{where}: {len(heavy)} costly patterns; simplify all but {_HEAVY_PATTERNS} of them")

        class Keyword:
            def __init__(self, _schema: Any, pattern: str, _path: Any) -> None:
                self.pattern = known(pattern)

            def validate(self, value: Any) -> None:
                if isinstance(value, str) and not self.pattern.matches(value):
                    raise ValueError

        self._patterns = _library().FancyRegexOptions(size_limit=_MIDDLE, backtrack_limit=_BACKTRACKS)
        self._options = {"keywords": {"pattern": Keyword}}
        self.longest_name = _LONGEST_NAME  # for patternProperties, which the keyword does not see

    def _compile(self, schema: Any) -> Fits:
        return _compiled(schema, self._patterns, **self._options)

    def pattern(self, text: str) -> Pattern:
        if text not in self._known:
            self._known[text] = Pattern(text, where=self._document.where)
        return self._known[text]

    def breaks(self, part: dict[str, Any], keyword: str, value: Any) -> bool:
        """Whether a value breaks a keyword that needs no other part of the schema."""
        if (id(part), keyword) not in self._keywords:
            pair = (keyword, PARTNERS.get(keyword, keyword))
            alone = {"$schema": self._document.dialect} | {name: part[name] for name in pair if name in part}
            self._keywords[id(part), keyword] = self._compile(alone)
        return not self._keywords[id(part), keyword](value)


def _fault(error: Any) -> str:
    place = getattr(error, "instance_path", None)
    if not place:
        return str(error).partition("\n")[0][:200]
    return f"{readable(place, '')} is {excerpt(error.instance)}, which is not allowed there"
