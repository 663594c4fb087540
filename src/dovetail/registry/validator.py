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
from urllib.parse import quote, unquote, urljoin

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


_USUAL = SchemaLimits()


class Validator:
    """One schema, ready to check values. With `lazy` the engine is loaded and asked at the first value only."""

    def __init__(
        self,
        schema: Mapping[str, Any] | bool,
        *,
        where: str,
        limits: SchemaLimits = _USUAL,
        lazy: bool = False,
    ) -> None:
        self._document = _Document(schema, where, limits)
        self._depth = limits.instance_depth
        self._engine: _Engine | None = None if lazy else _Engine(self._document)

    def is_valid(self, instance: Any) -> bool:
        engine = self._engine = self._engine or _Engine(self._document)
        try:
            return _is_sound(instance, self._depth, engine.longest_name) and engine.fits(instance)
        except ValueError:  # something that JSON does not have
            return False

    def problems(self, instance: Any, *, root: str = "arguments") -> list[str]:
        """One line for each thing that is wrong, in the order of the value; empty if all is well."""
        engine = self._engine = self._engine or _Engine(self._document)
        try:
            if not _is_sound(instance, self._depth, engine.longest_name):
                found = _oddities(instance, self._depth, longest_name=engine.longest_name)
            elif engine.fits(instance):
                return []
            else:
                found = _Explanation(self._document, engine).of(instance)
        except ValueError:  # something that JSON does not have
            found = _oddities(instance, self._depth, longest_name=engine.longest_name)
        return _lines(found or [_MISFIT], instance, root)


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
        raise SetupError(f"{where}: the pattern {_excerpt(pattern)} is malformed or far too large; simplify it")

    def matches(self, text: str) -> bool:
        try:
            return len(text) <= self.longest and self._fits(text)
        except UnicodeEncodeError:  # half a surrogate pair
            return False


# The engine

_BACKTRACKS = 2_000
_HEAVY_PATTERNS = 20  # in one schema
_LONGEST_NAME = 300  # where patternProperties need the backtracking engine
_CREDIT = 1_000_000  # subschemas that may be compiled, again and again, to find out what is wrong
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
        self._known: dict[str, Pattern] = {}
        self._credit = _CREDIT
        self.longest_name: int | None = None
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

    def _compile(self, schema: Part, **options: Any) -> Fits:
        return _compiled(schema, self._patterns, **self._options, **options)

    def fits_part(self, part: Part, value: Any) -> bool:
        """Whether a value fits one subschema; what can't be said cheaply counts as yes."""
        if isinstance(part, bool):
            return part
        if id(part) not in self._parts:
            self._parts[id(part)] = self._compile_part(part)
        return self._parts[id(part)](value)

    def _compile_part(self, part: dict[str, Any]) -> Fits:
        document = self._document
        self._credit -= len(document.reach(part, inside=True))
        try:
            self._registry = self._registry or _library().Registry([(document.base, document.root)])
            address = {"$schema": document.dialect, "$ref": document.address(part)}
            return self._compile(address if self._credit > 0 else True, registry=self._registry)
        except ValueError:
            return self._compile(True)

    def pattern(self, text: str) -> Pattern:
        if text not in self._known:
            self._known[text] = Pattern(text, where=self._document.where)
        return self._known[text]

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
_IN_PLACE = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
)  # fmt: skip
_INSIDE = frozenset({
    "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames",
    "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains",
})  # fmt: skip
_KEPT = frozenset({"$defs", "definitions", "contentSchema"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})
_DYNAMIC = 50  # anchors that any dynamic reference may mean
_LEAVE = 0
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
        self._parts: list[dict[str, Any]] = []
        self._places: dict[int, tuple[str, str]] = {}
        self._named: dict[str, Any] = {_HOME: self.root}
        self._dynamic: list[dict[str, Any]] = []
        self._targets: dict[int, list[Any]] = {}
        self.base = _HOME
        self.is_old = False
        if isinstance(self.root, dict):
            self.dialect = self._known_dialect(self.root) or DIALECTS[0]
            self.is_old = self.dialect in DIALECTS[2:]  # there a "$ref" hides what stands beside it
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
        odd = _oddities(plain, 2 * self.limits.depth + 16, largest=self.limits.bytes)
        if odd:
            raise self._refuse(f"the schema can't be used: {_readable(odd[0].path, 'it')} {odd[0].text}")
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
            if len(self._dynamic) > _DYNAMIC:
                raise self._refuse(f"more than {_DYNAMIC} dynamic anchors; use fewer")
        return base, pointer

    def _join(self, base: str, reference: str) -> str:
        try:
            return base + reference if reference.startswith("#") else urljoin(base, reference)
        except ValueError:
            raise self._refuse(f"{_excerpt(reference)} is not a URI reference") from None

    def address(self, part: dict[str, Any]) -> str:
        base, pointer = self._places[id(part)]
        return f"{base}#{quote(pointer, safe='/~')}"

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
                found = {str(index): item for index, item in enumerate(found)}
            found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, dict) and id(found) not in self._places:
            self._place(found, base, fragment)
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
            raise self._refuse(f'"$ref" {_excerpt(reference)} leads nowhere; define what it means under "$defs"')
        raise self._refuse(
            f'"$ref" {_excerpt(reference)} leads out of the schema and is never fetched; copy what it means '
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

    def _nested(self, part: dict[str, Any]) -> list[tuple[bool, Any]]:
        """What a part applies, and whether to the same value."""
        inner = [(keyword in _IN_PLACE, inner) for keyword, _, inner in _parts(part) if keyword not in _KEPT]
        return inner + [(True, target) for target in self._targets[id(part)]]

    def _count_paths(self) -> None:
        """Refuses a schema with too many ways through it; a way ends where it comes back to a part it went through."""
        count = 0
        trail: set[int] = set()
        nested = {id(part): self._nested(part) for part in self._parts}
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
            if isinstance(part, dict) and id(part) not in trail:
                trail.add(id(part))
                stack.append((part, _LEAVE))
                # To know what is left over, the engine evaluates what stands beside "unevaluated…" again and again.
                more = 4 if "unevaluatedProperties" in part or "unevaluatedItems" in part else 1
                stack += [(inner, weight * more if in_place else weight) for in_place, inner in nested[id(part)]]


# The value

_NAMES = frozenset({str})
_PLAIN = frozenset({str, bool, NoneType})
_JSON_TYPES = frozenset({*_PLAIN, dict, list, tuple, int, float})
_LARGEST = 14_000  # bits of an integer; beyond 4,300 digits Python and the engine lose count
_SHOWN = 20  # lines, and names or values in a line


class _Problem(NamedTuple):
    """Something wrong at a path; `types` and `values` are what a wrong choice could have been."""

    path: tuple[Step, ...]
    text: str
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


def _is_sound(value: Any, deepest: int, longest_name: int | None) -> bool:
    """Whether the engine can be trusted with a value: not too deep, no number or name that it can't handle."""
    stack: list[tuple[int, Iterable[Any]]] = [(0, (value,))]
    while stack:
        depth, values = stack.pop()
        for item in values:
            kind = type(item)
            if kind in _PLAIN:
                continue
            if kind is dict or kind is list or isinstance(item, (dict, list, tuple)):
                if depth == deepest or _wrong_name(item, longest_name):
                    return False
                inner = item.values() if isinstance(item, dict) else item
                if not _PLAIN.issuperset(map(type, inner)):
                    stack.append((depth + 1, inner))
            elif isinstance(item, int):
                if item.bit_length() > _LARGEST:
                    return False
            elif not isinstance(item, float) or not math.isfinite(item):
                return False
    return True


def _wrong_name(item: Any, longest: int | None) -> str:
    if not isinstance(item, dict):
        return ""
    if not _NAMES.issuperset(map(type, item)):
        return "has a name that is not a string"
    if longest and max(map(len, item), default=0) > longest:
        return f"has a name of more than {longest} characters"
    return ""


def _oddities(
    value: Any, deepest: int, *, longest_name: int | None = None, largest: float = math.inf
) -> list[_Problem]:
    """What JSON can't say or the engine can't take; at the first sign of boundless depth or size nothing else."""
    found: list[_Problem] = []
    stack: list[tuple[tuple[Step, ...], Any]] = [((), value)]
    while stack and len(found) <= _SHOWN:
        path, item = stack.pop()
        reason = _wrong_name(item, longest_name) or _oddity(item)
        largest -= 2 + (len(item) if isinstance(item, str) else 0)
        if reason:
            found.append(_Problem(path, reason))
        elif largest < 0:
            return [_Problem((), "is too large")]
        elif isinstance(item, (dict, list, tuple)):
            if len(path) == deepest:
                return [_Problem((), f"is nested deeper than {deepest} levels")]
            largest -= sum(map(len, item)) if isinstance(item, dict) else 0
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            stack += [((*path, step), inner) for step, inner in reversed(list(pairs))]
    return found


def _oddity(item: Any) -> str:
    if isinstance(item, float) and not math.isfinite(item):
        return "is not a finite number"
    if isinstance(item, int) and item.bit_length() > _LARGEST:
        return "is too large a number"
    if isinstance(item, str) and not _is_unicode(item):
        return "holds half a surrogate pair, which is not a character"
    if isinstance(item, dict) and not all(map(_is_unicode, item)):
        return "has a name with half a surrogate pair, which is not a character"
    if type(item) not in _JSON_TYPES and not isinstance(item, (dict, list, tuple)):
        return f"is not a JSON value, but a Python object of the type {type(item).__name__}"
    return ""


def _is_unicode(text: str) -> bool:
    return text.isascii() or text.encode("utf-8", "replace").decode() == text


# What is wrong, in words

_FOUND = 100  # problems that are looked for
_QUESTIONS = 200_000  # put to the engine for one value
_STEPS = 150  # into the schema
_UNKNOWN = "unknown property"
_MISFIT = _Problem((), "does not fit the schema")
_NUMBERS, _OBJECTS, _ARRAYS = (int, float), (dict,), (list, tuple)

_TYPE_NAMES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
}
_FORMATS = {
    "date-time": "a date-time such as 2026-07-28T09:30:00Z",
    "date": "a date such as 2026-07-28",
    "time": "a time such as 09:30:00Z",
    "duration": "a duration such as PT1H30M",
    "email": "an email address",
    "idn-email": "an email address",
    "hostname": "a host name",
    "idn-hostname": "a host name",
    "ipv4": "an IPv4 address",
    "ipv6": "an IPv6 address",
    "uri": "a URI such as https://example.com/a",
    "uuid": "a UUID such as 123e4567-e89b-12d3-a456-426614174000",
    "regex": "a regular expression",
}
_LIMITS: dict[str, tuple[tuple[type, ...], str]] = {
    "minimum": (_NUMBERS, "must be at least {limit}, got {got}"),
    "maximum": (_NUMBERS, "must be at most {limit}, got {got}"),
    "exclusiveMinimum": (_NUMBERS, "must be more than {limit}, got {got}"),
    "exclusiveMaximum": (_NUMBERS, "must be less than {limit}, got {got}"),
    "multipleOf": (_NUMBERS, "must be a multiple of {limit}, got {got}"),
    "minLength": ((str,), "must have at least {limit} character{s}, has {size}"),
    "maxLength": ((str,), "must have at most {limit} character{s}, has {size}"),
    "pattern": ((str,), "must match the pattern {text}, got {got}"),
    "format": ((str,), "must be {format}, got {got}"),
    "contentEncoding": ((str,), "must be in the encoding {text}"),
    "contentMediaType": ((str,), "must be text of the type {text}"),
    "minItems": (_ARRAYS, "must have at least {limit} item{s}, has {size}"),
    "maxItems": (_ARRAYS, "must have at most {limit} item{s}, has {size}"),
    "uniqueItems": (_ARRAYS, "must not hold the same item twice"),
    "minProperties": (_OBJECTS, "must have at least {limit} propert{ies}, has {size}"),
    "maxProperties": (_OBJECTS, "must have at most {limit} propert{ies}, has {size}"),
}


class _Explanation:
    """Finds what is wrong with one value. It goes only where the engine says that something is."""

    def __init__(self, document: _Document, engine: _Engine) -> None:
        self._document = document
        self._engine = engine
        self._questions = _QUESTIONS
        self._answers: dict[tuple[int, int], list[_Problem]] = {}  # keeps nested alternatives from multiplying

    def of(self, value: Any) -> list[_Problem]:
        return self._explain(self._document.root, value, 0)

    def _fits(self, part: Part, value: Any) -> bool:
        self._questions -= 1
        return self._questions < 0 or self._engine.fits_part(part, value)

    def _explain(self, part: Part, value: Any, steps: int) -> list[_Problem]:
        if self._fits(part, value):
            return []
        if isinstance(part, bool):
            return [_Problem((), "is not allowed")]
        key = id(part), id(value)
        if key not in self._answers:
            self._answers[key] = [_MISFIT]
            if steps < _STEPS:
                self._answers[key] = self._look(part, value, steps + 1)[:_FOUND] or [_left_over(part, value)]
        return self._answers[key]

    def _look(self, part: dict[str, Any], value: Any, steps: int) -> list[_Problem]:
        if self._document.is_old and "$ref" in part:
            return self._reference(part["$ref"], part, value, steps)
        wrong = next((name for name in ("const", "enum", "type") if self._breaks(part, name, value)), None)
        if wrong:
            return [_wrong_choice(wrong, part[wrong], value)]  # nothing else about it matters
        found: list[_Problem] = []
        for keyword, argument in part.items():
            concerned, text = _LIMITS.get(keyword, ((), ""))
            if isinstance(value, concerned) and self._breaks(part, keyword, value):
                if keyword == "pattern" and len(str(value)) > self._engine.pattern(argument).longest:
                    text = "is too long to be checked against the pattern {text}, has {size} characters"
                found.append(_Problem((), _limit_text(text, keyword, part, value)))
            concerned, rule = _RULES.get(keyword, ((), None))
            if rule and isinstance(value, concerned):
                found += rule(self, argument, part, value, steps)
        return found

    def _breaks(self, part: dict[str, Any], keyword: str, value: Any) -> bool:
        return keyword in part and self._engine.breaks(part, keyword, value)

    # Rules: the argument of a keyword, the schema it stands in, the value, the steps so far

    def _reference(self, argument: Any, part: dict[str, Any], value: Any, steps: int) -> list[_Problem]:
        target = self._document.target(part, argument)
        return self._explain(target, value, steps) if isinstance(target, (dict, bool)) else []

    def _all_of(self, argument: Any, _part: Any, value: Any, steps: int) -> list[_Problem]:
        return [problem for inner in argument for problem in self._explain(inner, value, steps)]

    def _any_of(self, argument: Any, _part: Any, value: Any, steps: int) -> list[_Problem]:
        branches = [self._explain(inner, value, steps) for inner in argument]
        return _closest(branches, value) if all(branches) else []

    def _one_of(self, argument: Any, _part: Any, value: Any, steps: int) -> list[_Problem]:
        fitting = sum(self._fits(inner, value) for inner in argument)
        if fitting > 1:
            return [_Problem((), f"fits {fitting} of the allowed forms, must fit exactly one; got {_excerpt(value)}")]
        return [] if fitting else self._any_of(argument, _part, value, steps)

    def _not(self, argument: Any, _part: Any, value: Any, _steps: int) -> list[_Problem]:
        fits = self._fits(argument, value)
        return [_Problem((), f"must not fit {_excerpt(argument)}, got {_excerpt(value)}")] if fits else []

    def _if(self, argument: Any, part: dict[str, Any], value: Any, steps: int) -> list[_Problem]:
        return self._explain(part.get("then" if self._fits(argument, value) else "else", True), value, steps)

    def _dependent(self, argument: Any, _part: Any, value: Any, steps: int) -> list[_Problem]:
        found = []
        for name in argument:
            if name in value and isinstance(argument[name], list):
                missing = [need for need in argument[name] if need not in value]
                found += [_Problem((need,), f"required beside {name}, but missing") for need in missing]
            elif name in value:
                found += self._explain(argument[name], value, steps)
        return found

    def _required(self, argument: Any, _part: Any, value: Any, _steps: int) -> list[_Problem]:
        return [_Problem((name,), "required, but missing") for name in argument if name not in value]

    def _each(self, pairs: Iterable[tuple[Step, Part]], value: Any, steps: int) -> list[_Problem]:
        found: list[_Problem] = []
        for step, inner in pairs:
            found += [
                problem._replace(path=(step, *problem.path)) for problem in self._explain(inner, value[step], steps)
            ]
            if len(found) > _FOUND:
                break
        return found

    def _properties(self, argument: Any, _part: Any, value: Any, steps: int) -> list[_Problem]:
        return self._each(((name, inner) for name, inner in argument.items() if name in value), value, steps)

    def _pattern_properties(self, argument: Any, _part: Any, value: Any, steps: int) -> list[_Problem]:
        patterns = [(self._engine.pattern(text), inner) for text, inner in argument.items()]
        pairs = ((name, inner) for pattern, inner in patterns for name in value if pattern.matches(name))
        return self._each(pairs, value, steps)

    def _additional_properties(self, argument: Any, part: dict[str, Any], value: Any, steps: int) -> list[_Problem]:
        known, texts = part.get("properties", {}), list(part.get("patternProperties", {}))
        patterns = [self._engine.pattern(text) for text in texts]
        extra = (name for name in value if name not in known and not any(each.matches(name) for each in patterns))
        if argument is False:
            allowed = [*known, *(f"names that match {text}" for text in texts)]
            return [_unknown(name, allowed) for name in itertools.islice(extra, _FOUND)]
        return self._each(((name, argument) for name in extra), value, steps)

    def _unevaluated_properties(self, argument: Any, part: dict[str, Any], value: Any, _steps: int) -> list[_Problem]:
        """Only what is certain: names that no schema for the same value speaks of."""
        nearby = self._document.reach(part, inside=False)
        if argument is not False or any(
            other.keys() & {"additionalProperties", "patternProperties"} for other in nearby
        ):
            return []
        known = dict.fromkeys(name for other in nearby for name in other.get("properties", ()))
        return [_unknown(name, known) for name in itertools.islice((n for n in value if n not in known), _FOUND)]

    def _property_names(self, argument: Any, _part: Any, value: Any, steps: int) -> list[_Problem]:
        pairs = ((name, problem) for name in value for problem in self._explain(argument, name, steps))
        return [_Problem((name,), f"is not an allowed name: it {problem.text}") for name, problem in pairs]

    def _items(self, argument: Any, part: dict[str, Any], value: Any, steps: int) -> list[_Problem]:
        if isinstance(argument, list):  # a tuple: prefixItems, or items before 2020-12
            return self._each(zip(range(len(value)), argument, strict=False), value, steps)
        return self._each(
            ((index, argument) for index in range(len(part.get("prefixItems", ())), len(value))), value, steps
        )

    def _additional_items(self, argument: Any, part: dict[str, Any], value: Any, steps: int) -> list[_Problem]:
        known = part.get("items")
        start = len(known) if isinstance(known, list) else len(value)
        return self._each(((index, argument) for index in range(start, len(value))), value, steps)

    def _contains(self, argument: Any, part: dict[str, Any], value: Any, _steps: int) -> list[_Problem]:
        least, most = part.get("minContains", 1), part.get("maxContains", math.inf)
        count = sum(self._fits(argument, item) for item in value)
        if least <= count <= most:
            return []
        wanted, limit = ("at least", least) if count < least else ("at most", most)
        items = "item" if limit == 1 else "items"
        return [_Problem((), f"must hold {wanted} {limit} {items} like {_excerpt(argument)}, holds {count}")]


_Rule = Callable[[_Explanation, Any, Any, Any, int], list[_Problem]]
_RULES: dict[str, tuple[tuple[type, ...], _Rule]] = {
    "$ref": ((object,), _Explanation._reference),
    "allOf": ((object,), _Explanation._all_of),
    "anyOf": ((object,), _Explanation._any_of),
    "oneOf": ((object,), _Explanation._one_of),
    "not": ((object,), _Explanation._not),
    "if": ((object,), _Explanation._if),
    "required": (_OBJECTS, _Explanation._required),
    "dependentRequired": (_OBJECTS, _Explanation._dependent),
    "dependentSchemas": (_OBJECTS, _Explanation._dependent),
    "dependencies": (_OBJECTS, _Explanation._dependent),
    "properties": (_OBJECTS, _Explanation._properties),
    "patternProperties": (_OBJECTS, _Explanation._pattern_properties),
    "additionalProperties": (_OBJECTS, _Explanation._additional_properties),
    "unevaluatedProperties": (_OBJECTS, _Explanation._unevaluated_properties),
    "propertyNames": (_OBJECTS, _Explanation._property_names),
    "prefixItems": (_ARRAYS, _Explanation._items),
    "items": (_ARRAYS, _Explanation._items),
    "additionalItems": (_ARRAYS, _Explanation._additional_items),
    "contains": (_ARRAYS, _Explanation._contains),
}


def _left_over(part: dict[str, Any], value: Any) -> _Problem:
    """All that can be said when no keyword by itself is broken."""
    if isinstance(value, _ARRAYS) and "unevaluatedItems" in part:
        return _Problem((), "holds items that are not allowed beside the others")
    if isinstance(value, _OBJECTS) and "unevaluatedProperties" in part:
        return _Problem((), "holds properties that are not allowed beside the others")
    return _MISFIT


def _unknown(name: str, known: Iterable[str]) -> _Problem:
    return _Problem((name,), f"{_UNKNOWN} (known: {_listed([*known]) or 'none'})")


def _limit_text(text: str, keyword: str, part: dict[str, Any], value: Any) -> str:
    limit = part[_PARTNERS[keyword]] if part[keyword] is True and keyword in _PARTNERS else part[keyword]
    shown = {"limit": _excerpt(limit), "text": str(limit)[:200], "got": _excerpt(value)}
    shown |= {"s": "", "ies": "y"} if limit == 1 else {"s": "s", "ies": "ies"}
    shown["size"] = str(len(value)) if isinstance(value, (str, list, tuple, dict)) else ""
    shown["format"] = _FORMATS.get(str(limit), f"in the format {shown['text']}")
    return text.format(**shown)


def _wrong_choice(keyword: str, argument: Any, value: Any) -> _Problem:
    options = argument if isinstance(argument, list) and keyword != "const" else [argument]
    if keyword == "type":
        return _choice((), tuple(str(_TYPE_NAMES.get(name, name)) for name in options), (), value)
    return _choice((), (), tuple(_excerpt(option) for option in options[: _SHOWN + 1]), value)


def _choice(path: tuple[Step, ...], types: tuple[str, ...], values: tuple[str, ...], value: Any) -> _Problem:
    """What was expected where a value of the wrong type came, or one that is not among the allowed."""
    if not values:
        return _Problem(path, f"expected {' or '.join(types)}, got {_described(value)}", types)
    wanted = " or ".join([_listed(values), *types])
    text = f"must be one of {wanted}; got" if len(values) > 1 else f"must be {wanted}, got"
    return _Problem(path, f"{text} {_excerpt(value)}", types, values)


def _closest(branches: list[list[_Problem]], value: Any) -> list[_Problem]:
    """Of several alternatives that all failed: what they ask for together, or the one that came nearest."""
    choices = [_choice_at((), branch) for branch in branches]
    if all(choices):
        return [_merged((), choices, value)]
    near = [branch for branch, choice in zip(branches, choices, strict=True) if choice is None]
    telling = [problem.path for problem in near[0] if problem.values] if len(near) > 1 else []
    for path in telling:  # a property that tells the alternatives apart, with a value that none of them knows
        choices = [_choice_at(path, branch) for branch in near]
        if all(choice is not None and choice.values for choice in choices):
            return [_merged(path, choices, value)]
    return min(near, key=lambda branch: (any(problem.values for problem in branch), len(branch)))


def _choice_at(path: tuple[Step, ...], branch: list[_Problem]) -> _Problem | None:
    return next((problem for problem in branch if problem.path == path and (problem.types or problem.values)), None)


def _merged(path: tuple[Step, ...], choices: Iterable[_Problem | None], value: Any) -> _Problem:
    known = [choice for choice in choices if choice is not None]
    for step in path:
        value = value[step]
    types = dict.fromkeys(name for choice in known for name in choice.types)
    return _choice(path, tuple(types), tuple(dict.fromkeys(v for choice in known for v in choice.values)), value)


def _lines(found: list[_Problem], instance: Any, root: str) -> list[str]:
    """Readable lines in the order of the value, without doubles, not too many."""
    orders: dict[int, dict[str, int]] = {}
    found = sorted(found, key=lambda problem: _position(instance, problem.path, orders))
    noun = root.removesuffix("s") if root == "arguments" else "property"
    lines: dict[str, None] = {}
    for problem in found:
        text = problem.text
        if text.startswith(_UNKNOWN) and len(problem.path) == 1:
            text = text.replace("property", noun, 1)
        lines[f"{_readable(problem.path, root)}: {text}"] = None
    kept = list(lines)[:_SHOWN]
    rest = len(lines) - len(kept)
    return [*kept, f"… and {'at least ' if len(found) >= _FOUND else ''}{rest} more"] if rest else kept


def _position(value: Any, path: tuple[Step, ...], orders: dict[int, dict[str, int]]) -> list[int]:
    """Where a path lies in a value; what is missing comes last."""
    place = []
    for step in path:
        if isinstance(value, dict):
            if id(value) not in orders:
                orders[id(value)] = {name: index for index, name in enumerate(value)}
            order = orders[id(value)]
            place.append(order.get(str(step), len(order)))
            value = value.get(step)
        else:
            place.append(int(step))
            value = value[step]
    return place


def _readable(path: Iterable[Step], root: str) -> str:
    """`filter.tags[2]`"""
    text = ""
    for step in path:
        if isinstance(step, str) and step.replace("-", "_").isidentifier():
            text += f".{step[:80]}" if text else step[:80]
        else:
            text = (text or root) + f"[{_excerpt(step)}]"
    return (text or root) if len(text) <= 300 else "…" + text[-300:]


def _described(value: Any) -> str:
    if isinstance(value, (dict, list, tuple)):
        return "an object" if isinstance(value, dict) else "an array"
    kind = {str: "the string ", int: "the integer ", float: "the number "}.get(type(value), "")
    return kind + _excerpt(value)


def _listed(names: Iterable[str]) -> str:
    shown = [name if len(name) <= 80 else name[:79] + "…" for name in itertools.islice(names, _SHOWN + 1)]
    return ", ".join(shown[:_SHOWN] + ["…"] * (len(shown) > _SHOWN))


def _excerpt(value: Any) -> str:
    """A value as JSON, at most 80 characters of it."""
    text = msgspec.json.encode(_cut(value, 3), enc_hook=str).decode()
    return text if len(text) <= 80 else text[:79] + "…"


def _cut(value: Any, depth: int) -> Any:
    """Enough of a value to show, so that a large one costs nothing."""
    if isinstance(value, str):
        return value[:81].encode("utf-8", "replace").decode()
    if isinstance(value, (dict, list, tuple)) and not depth:
        return "…"
    if isinstance(value, dict):
        return {_cut(str(name), 1): _cut(part, depth - 1) for name, part in itertools.islice(value.items(), 20)}
    if isinstance(value, (list, tuple)):
        return [_cut(part, depth - 1) for part in value[:20]]
    return value
