"""A JSON Schema comes in once and is refused or compiled; then values come in, and what is wrong with them goes out.

The engine below is fast and complete, but it would fetch references, follow a hostile schema for hours and crash on a
deep value. So the schema is measured first, the value's depth is checked first, and patterns are kept on a short lead.
The words for what is wrong are found here, by asking the engine one small question after another: its own list of
errors grows exponentially with nested alternatives.
"""

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType, NoneType
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin

import msgspec

from dovetail.errors import SetupError

Step = str | int
Part = dict[str, Any] | bool  # a schema, or one inside it
Fits = Callable[[Any], bool]

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


class Validator:
    """One schema, ready to check values. With `lazy` the engine is loaded and asked at the first value only."""

    def __init__(
        self,
        schema: Mapping[str, Any] | bool,
        *,
        where: str,
        limits: SchemaLimits = SchemaLimits(),
        lazy: bool = False,
    ) -> None:
        self._document = _Document(schema, where, limits)
        self._depth = limits.instance_depth
        self._engine: _Engine | None = None if lazy else _Engine(self._document)

    def is_valid(self, instance: Any) -> bool:
        engine = self._engine = self._engine or _Engine(self._document)
        return _is_sound(instance, self._depth) and engine.fits(instance)

    def problems(self, instance: Any, *, root: str = "arguments") -> list[str]:
        """One line for each thing that is wrong, in the order of the value; empty if all is well."""
        if self.is_valid(instance):
            return []
        assert self._engine is not None
        found = _oddities(instance, self._depth) or _Explanation(self._document, self._engine).of(instance)
        return _lines(found, instance, root)


class Pattern:
    """A regular expression that no text can make slow; what it can't decide in time does not match."""

    def __init__(self, pattern: str, *, where: str) -> None:
        rs = _library()
        for engine, size, longest in _ENGINES:
            options = {"backtrack_limit": _BACKTRACKS} if engine == "FancyRegexOptions" else {}
            try:
                self._fits: Fits = _compiled({"pattern": pattern}, getattr(rs, engine)(size_limit=size, **options))
            except ValueError:
                continue
            self.longest = longest
            return
        raise SetupError(f"{where}: the pattern {_excerpt(pattern)} is malformed or far too large; simplify it")

    def matches(self, text: str) -> bool:
        try:
            return len(text) <= self.longest and self._fits(text)
        except UnicodeEncodeError:  # half a surrogate pair
            return False


# The engine

_BACKTRACKS = 10_000
_HEAVY_PATTERNS = 20  # in one schema
_LONGEST_NAME = 1_000
_LIGHT = 1 << 15
_ENGINES = (  # the linear engine first; the larger the program, the shorter the text, so that all stay below seconds
    ("RegexOptions", _LIGHT, sys.maxsize),
    ("RegexOptions", 1 << 18, 10_000),
    ("FancyRegexOptions", 1 << 18, 10_000),
    ("RegexOptions", 1 << 22, 2_500),
    ("FancyRegexOptions", 1 << 22, 2_500),
)


def _library() -> ModuleType:
    """Imported late: a server whose arguments all fit never needs it."""
    import jsonschema_rs

    return jsonschema_rs


def _compiled(schema: Part, patterns: Any, **options: Any) -> Fits:
    # Formats are asserted: generated schemas say dates and UUIDs with them, and a model must hear of a wrong one.
    options |= {"offline": True, "validate_formats": True, "ignore_unknown_formats": True, "pattern_options": patterns}
    fits: Fits = _library().validator_for(schema, **options).is_valid
    return fits


class _Engine:
    """Compiles a schema, and at need the parts of it, so that no pattern can run away."""

    def __init__(self, document: "_Document") -> None:
        self._document = document
        self._patterns = _library().RegexOptions(size_limit=_LIGHT)
        self._options: dict[str, Any] = {}
        self._registry: Any = None
        self._parts: dict[int, Fits] = {}
        self._keywords: dict[tuple[int, str], Fits] = {}
        self._credit = 5 * document.limits.paths  # bounds what the parts may cost in all
        self._fits = self._compile_all()

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
        """Not all patterns are for the light engine: each is checked by itself from now on, on a text of bounded size."""
        where = self._document.where
        patterns = {text: Pattern(text, where=where) for text in self._document.patterns}
        heavy = [text for text, pattern in patterns.items() if pattern.longest < sys.maxsize]
        if len(heavy) > _HEAVY_PATTERNS:
            raise SetupError(f"{where}: {len(heavy)} costly patterns; simplify all but {_HEAVY_PATTERNS} of them")

        class Keyword:
            def __init__(self, _schema: Any, pattern: str, _path: Any) -> None:
                self.pattern = patterns.get(pattern) or Pattern(pattern, where=where)

            def validate(self, value: Any) -> None:
                if isinstance(value, str) and not self.pattern.matches(value):
                    raise ValueError

        _, size, _ = _ENGINES[2]
        self._patterns = _library().FancyRegexOptions(size_limit=size, backtrack_limit=_BACKTRACKS)
        self._options = {"keywords": {"pattern": Keyword}}

    def _compile(self, schema: Part, **options: Any) -> Fits:
        return _compiled(schema, self._patterns, **self._options, **options)

    def fits(self, value: Any) -> bool:
        try:
            return self._fits(value)
        except ValueError:  # a type that JSON does not have
            return False

    def fits_part(self, part: Part, value: Any) -> bool:
        """Whether a value fits one subschema; what can't be said cheaply counts as yes."""
        if isinstance(part, bool):
            return part
        if id(part) not in self._parts:
            self._parts[id(part)] = self._compile_part(part)
        return self._parts[id(part)](value)

    def _compile_part(self, part: dict[str, Any]) -> Fits:
        document = self._document
        self._credit -= document.paths.get(id(part), 1)
        try:
            self._registry = self._registry or _library().Registry([(document.base, document.root)])
            address = {"$schema": document.dialect, "$ref": document.address(part)}
            return self._compile(address if self._credit > 0 else True, registry=self._registry)
        except ValueError:
            return self._compile(True)

    def breaks(self, part: dict[str, Any], keyword: str, value: Any) -> bool:
        """Whether a value breaks a keyword that needs no other part of the schema."""
        if (id(part), keyword) not in self._keywords:
            pair = (keyword, _PARTNERS.get(keyword, keyword))
            alone = {"$schema": self._document.dialect} | {name: part[name] for name in pair if name in part}
            self._keywords[id(part), keyword] = self._compile(alone)
        return not self._keywords[id(part), keyword](value)


_PARTNERS = {"exclusiveMaximum": "maximum", "exclusiveMinimum": "minimum"}  # in draft-04 the first is only a flag


def _fault(error: Any) -> str:
    place = getattr(error, "instance_path", None)
    if not place:
        return str(error).partition("\n")[0][:200]
    return f"{_readable(place, '')} is {_excerpt(error.instance)}, which is not allowed there"


# The schema as a document

_HOME = "https://schema.invalid/"  # the address of a schema that does not give its own; nothing is ever fetched
_IN_PLACE = frozenset("allOf anyOf oneOf not if then else dependentSchemas dependencies".split())
_INSIDE = frozenset(
    "properties patternProperties additionalProperties unevaluatedProperties propertyNames "
    "items prefixItems additionalItems unevaluatedItems contains".split()
)
_KEPT = frozenset({"$defs", "definitions", "contentSchema"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """The keyword, the pointer and the subschema of each part."""
    for keyword, held in schema.items():
        if keyword not in _IN_PLACE and keyword not in _INSIDE and keyword not in _KEPT:
            continue
        if keyword in _NAMED and isinstance(held, dict):
            for name, part in held.items():
                yield keyword, f"/{keyword}/{name.replace('~', '~0').replace('/', '~1')}", part
        elif isinstance(held, list):
            for index, part in enumerate(held):
                yield keyword, f"/{keyword}/{index}", part
        else:
            yield keyword, f"/{keyword}", held


class _Document:
    """A private copy of a schema, measured; knows where each part of it is and what each reference means."""

    def __init__(self, schema: Mapping[str, Any] | bool, where: str, limits: SchemaLimits) -> None:
        self.where = where
        self.limits = limits
        self.root = self._copy(schema)
        self.dialect = DIALECTS[0]
        self.patterns: dict[str, None] = {}
        self.paths: dict[int, int] = {}
        self._parts: list[dict[str, Any]] = []
        self._places: dict[int, tuple[str, str]] = {}
        self._named: dict[str, Any] = {_HOME: self.root}
        self._dynamic: list[dict[str, Any]] = []
        self._targets: dict[int, list[Any]] = {}
        self.base = _HOME
        if isinstance(self.root, dict):
            self.dialect = self._known_dialect(self.root) or DIALECTS[0]
            self.is_old = self.dialect in DIALECTS[2:]  # "$ref" hides what stands beside it
            self._place(self.root, _HOME, "")
            self.base = self._places[id(self.root)][0]
            for part in self._parts:  # grows when a reference leads to a place where no schema is expected
                self._targets[id(part)] = [target for name in _REFERENCES for target in self._targets_of(part, name)]
            self._count_paths()

    def _refuse(self, reason: str) -> SetupError:
        return SetupError(f"{self.where}: {reason}")

    def _copy(self, schema: Mapping[str, Any] | bool) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise self._refuse(f"a JSON Schema is a dict or a bool, not {type(schema).__name__}")
        plain = dict(schema)
        odd = _oddities(plain, 2 * self.limits.depth, self.limits.bytes)
        if odd:
            raise self._refuse(f"the schema is not usable: {_readable(odd[0].path, 'the root')} {odd[0].text}")
        encoded = msgspec.json.encode(plain)
        if len(encoded) > self.limits.bytes:
            raise self._refuse(f"the schema is too large, at most {self.limits.bytes:,} bytes are allowed")
        return msgspec.json.decode(encoded)

    def _known_dialect(self, part: dict[str, Any]) -> str | None:
        uri = part.get("$schema")
        if not isinstance(uri, str):
            return None
        name = uri.removesuffix("#").partition("://")[2]
        found = next((dialect for dialect in DIALECTS if dialect.endswith("://" + name)), None)
        if found is None:
            supported = ", ".join(DIALECTS)
            raise self._refuse(f'"$schema" {_excerpt(uri)} is not a supported dialect; use one of {supported}')
        return found

    def _place(self, part: Any, base: str, pointer: str) -> None:
        """Finds every schema inside one, and what it is called."""
        stack = [(part, base, pointer, 1)]
        count = len(self._parts)
        while stack:
            part, base, pointer, depth = stack.pop()
            count += 1
            if count > self.limits.subschemas:
                raise self._refuse(f"more than {self.limits.subschemas:,} subschemas; split the schema or simplify it")
            if depth > self.limits.depth:
                raise self._refuse(f"the schema is nested deeper than {self.limits.depth} levels; flatten it")
            if not isinstance(part, dict) or id(part) in self._places:
                continue
            base, pointer = self._name(part, base, pointer)
            self._places[id(part)] = (base, pointer)
            self._parts.append(part)
            stack += [(inner, base, pointer + step, depth + 1) for _, step, inner in _parts(part)]

    def _name(self, part: dict[str, Any], base: str, pointer: str) -> tuple[str, str]:
        self._known_dialect(part)
        pattern, names = part.get("pattern"), part.get("patternProperties")
        self.patterns |= dict.fromkeys([pattern] if isinstance(pattern, str) else [])
        self.patterns |= dict.fromkeys(names if isinstance(names, dict) else [])
        own = part.get("id" if self.dialect == DIALECTS[-1] else "$id")
        if isinstance(own, str) and not (self.is_old and "$ref" in part):
            address, _, fragment = self._join(base, own).partition("#")
            self._named[f"{address}#{fragment}" if fragment else address] = part
            base, pointer = (base, pointer) if fragment else (address, "")
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(part.get(keyword), str):
                self._named[f"{base}#{part[keyword]}"] = part
        if "$dynamicAnchor" in part or "$recursiveAnchor" in part:
            self._dynamic.append(part)
        return base, pointer

    def _join(self, base: str, reference: str) -> str:
        try:
            return base + reference if reference.startswith("#") else urljoin(base, reference)
        except ValueError:
            raise self._refuse(f"{_excerpt(reference)} is not a URI reference") from None

    def address(self, part: dict[str, Any]) -> str:
        base, pointer = self._places[id(part)]
        return f"{base}#{pointer.replace('%', '%25')}"

    def target(self, part: dict[str, Any], reference: str) -> Any:
        """What a reference in a part means; None if that is not in this document."""
        base, _, fragment = self._join(self._places[id(part)][0], reference).partition("#")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._named.get(f"{base}#{fragment}")
        found = self._named.get(base)
        for step in fragment.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = dict(enumerate(found)).get(int(step)) if step.isdecimal() else None
            else:
                found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, dict) and id(found) not in self._places:
            self._place(found, base, fragment)
        return found

    def _targets_of(self, part: dict[str, Any], keyword: str) -> list[Any]:
        reference = part.get(keyword)
        if not isinstance(reference, str):
            return []
        found = self.target(part, reference)
        if keyword != "$ref":
            return [found, *self._dynamic]
        if found is not None or self._join(_HOME, reference).startswith(self.dialect.removesuffix("/schema")):
            return [found]  # the metaschema of the dialect is built in
        if reference.startswith("#"):
            raise self._refuse(f'"$ref" {_excerpt(reference)} leads nowhere; define what it means under "$defs"')
        raise self._refuse(
            f'"$ref" {_excerpt(reference)} leads out of the schema and is never fetched; copy what it means '
            'into "$defs" and write "#/$defs/<name>"'
        )

    def _count_paths(self) -> None:
        """Refuses a schema with too many ways through it; a loop counts once, as the engine remembers its answers."""
        stack: list[tuple[Any, bool]] = [(self.root, False)]
        while stack:
            part, is_ready = stack.pop()
            if not isinstance(part, dict):
                continue
            nested = [(keyword in _IN_PLACE, inner) for keyword, _, inner in _parts(part) if keyword not in _KEPT]
            nested += [(True, target) for target in self._targets[id(part)]]
            if is_ready:
                # To know what is left over, the engine evaluates what stands beside "unevaluated…" again and again.
                weight = 4 if "unevaluatedProperties" in part or "unevaluatedItems" in part else 1
                count = 1 + sum(self.paths.get(id(inner), 1) * (weight if here else 1) for here, inner in nested)
                if count > self.limits.paths:
                    raise self._refuse(
                        f"evaluating the schema may take more than {self.limits.paths:,} steps; its references or "
                        "alternatives multiply: simplify them"
                    )
                self.paths[id(part)] = count
            elif id(part) not in self.paths:
                self.paths[id(part)] = 1
                stack.append((part, True))
                stack += [(inner, False) for _, inner in nested]


