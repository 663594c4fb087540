"""A JSON Schema comes in once and is refused or compiled; then values come in, and what is wrong with them goes out.

The engine below is fast and complete, but it would fetch references, follow a hostile schema for hours and crash on a
deep value. So the schema is measured first, the value's depth is checked first, and patterns are kept on a short lead.
"""

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from dovetail import registry
from dovetail.errors import SetupError
from dovetail.registry.schema_document import DIALECTS, SchemaDocument, SchemaLimits
from dovetail.registry.soundness import MISFIT, UNSAID, Budget, excerpt, is_sound, oddities, readable

__all__ = ["DIALECTS", "Pattern", "SchemaLimits", "Validator"]

Fits = Callable[[Any], bool]

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
        self._document = SchemaDocument(schema, where, limits)
        self._depth = self._document.deepest
        self._engine: SchemaEngine | None = None if lazy else SchemaEngine(self._document)

    def is_valid(self, instance: Any) -> bool:
        engine = self._engine = self._engine or SchemaEngine(self._document)
        try:
            return is_sound(instance, self._depth, engine.longest_name) and engine.fits(instance)
        except (ValueError, RuntimeError):  # something that JSON does not have, or the engine gave up
            return False

    def problems(self, instance: Any, *, root: str = "arguments", budget: Budget | None = None) -> list[str]:
        """One line for each thing that is wrong, in the order of the value; empty if all is well."""
        engine = self._engine = self._engine or SchemaEngine(self._document)
        try:
            if not is_sound(instance, self._depth, engine.longest_name):
                found = oddities(instance, self._depth, longest_name=engine.longest_name)
            elif engine.fits(instance):
                return []
            else:
                budget = budget or Budget(instance)
                found = registry.explanation.Explanation(self._document, engine, budget).of(instance)
        except (ValueError, RuntimeError):  # something that JSON does not have, or the engine gave up
            found = oddities(instance, self._depth, longest_name=engine.longest_name)
        if budget:
            budget.is_explained = bool(found)
        rest = [f"{root}: {UNSAID}"] if budget and budget.is_spent else []
        return registry.explanation.lines_of(found or [MISFIT], instance, root) + rest


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

    def _compile(self, schema: Any) -> Fits:
        return _compiled(schema, self._patterns, **self._options)

    def pattern(self, text: str) -> Pattern:
        if text not in self._known:
            self._known[text] = Pattern(text, where=self._document.where)
        return self._known[text]

    def breaks(self, part: dict[str, Any], keyword: str, value: Any) -> bool:
        """Whether a value breaks a keyword that needs no other part of the schema."""
        if (id(part), keyword) not in self._keywords:
            pair = (keyword, registry.explanation.PARTNERS.get(keyword, keyword))
            alone = {"$schema": self._document.dialect} | {name: part[name] for name in pair if name in part}
            self._keywords[id(part), keyword] = self._compile(alone)
        return not self._keywords[id(part), keyword](value)


def _fault(error: Any) -> str:
    place = getattr(error, "instance_path", None)
    if not place:
        return str(error).partition("\n")[0][:200]
    return f"{readable(place, '')} is {excerpt(error.instance)}, which is not allowed there"
