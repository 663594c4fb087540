"""Validation problems in words that a model can act on, of msgspec's errors and of a JSON Schema.

The errors of jsonschema-rs grow exponentially with nested alternatives, and checking each part of a value with it takes
the depth of the value times its size. So it checks single keywords only, and the parts are visited here, each once.
Each visit is paid from the budget; when that is spent the explanation ends.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import NoneType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

if TYPE_CHECKING:
    from dovetail.schema.validate import SchemaDocument, SchemaEngine

Step = str | int

_PLAIN = frozenset({str, bool, float, NoneType})
_NODE_CHARACTERS = 64  # of a text count as one node
_MAX_INTEGER_BITS = 14_000  # beyond 4,300 digits neither Python nor the engine converts it
MAX_SHOWN = 20  # lines, and names or values in a line


class Problem(msgspec.Struct, frozen=True):
    """A problem at a path; `types` and `values` are those that were allowed instead of a wrong one."""

    path: tuple[Step, ...]
    text: str
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


DOES_NOT_FIT = "does not fit the schema"
INCOMPLETE = "there may be more that is wrong, but it is too large to be explained any further"


class Budget:
    """The cost limit of coercing and explaining: a visit with a part of the schema costs one, a comparison its size."""

    class Spent(Exception):
        """The budget is spent."""

    def __init__(self, remaining: float = 100_000) -> None:
        self.remaining = remaining

    @property
    def is_spent(self) -> bool:
        return self.remaining < 0

    def spend(self, nodes: int = 1) -> None:
        self.remaining -= nodes
        if self.remaining < 0:
            raise self.Spent


def size(value: Any) -> int:
    """The nodes of a value: each JSON value is one, and 64 characters of text or names are one more."""
    if isinstance(value, dict):
        return 1 + sum(map(len, value)) // _NODE_CHARACTERS + sum(map(size, value.values()))
    if isinstance(value, (list, tuple)):
        return 1 + sum(map(size, value))
    return 1 + len(value) // _NODE_CHARACTERS if isinstance(value, str) else 1


def is_within_limits(value: Any, max_depth: int, max_name: int) -> bool:
    """Whether the engine can check a JSON value: not too deep, without too large integers and too long names."""
    stack: list[tuple[int, Iterable[Any]]] = [(0, (value,))]
    while stack:
        depth, values = stack.pop()
        for item in values:
            if isinstance(item, (dict, list, tuple)):
                if depth == max_depth or (isinstance(item, dict) and max(map(len, item), default=0) > max_name):
                    return False
                inner = item.values() if isinstance(item, dict) else item
                if not _PLAIN.issuperset(map(type, inner)):
                    stack.append((depth + 1, inner))
            elif isinstance(item, int) and item.bit_length() > _MAX_INTEGER_BITS:
                return False
    return True


def readable(path: Iterable[Step], root: str) -> str:
    """The path as text: `filter.tags[2]`."""
    text = ""
    for step in path:
        if isinstance(step, str) and step.replace("-", "_").isidentifier():
            text += f".{step[:80]}" if text else step[:80]
        else:
            text = (text or root) + f"[{excerpt(step)}]"
    return (text or root) if len(text) <= 300 else "…" + text[-300:]


def described(value: Any) -> str:
    if isinstance(value, (dict, list, tuple)):
        return "an object" if isinstance(value, dict) else "an array"
    kind = {str: "the string ", int: "the integer ", float: "the number "}.get(type(value), "")
    return kind + excerpt(value)


def listed(names: Iterable[str]) -> str:
    shown = [name if len(name) <= 80 else name[:79] + "…" for name in itertools.islice(names, MAX_SHOWN + 1)]
    return ", ".join(shown[:MAX_SHOWN] + ["…"] * (len(shown) > MAX_SHOWN))


def excerpt(value: Any) -> str:
    """A value as JSON, at most 80 characters of it."""
    text = msgspec.json.encode(_cut(value, 3), enc_hook=str).decode()
    return text if len(text) <= 80 else text[:79] + "…"


def _cut(value: Any, depth: int) -> Any:
    """The part of a value that `excerpt` may show, so that a large one costs nothing."""
    if isinstance(value, str):
        return value[:81].encode("utf-8", "replace").decode()
    if isinstance(value, (dict, list, tuple)) and not depth:
        return "…"
    if isinstance(value, dict):
        return {_cut(str(name), 1): _cut(part, depth - 1) for name, part in itertools.islice(value.items(), 20)}
    if isinstance(value, (list, tuple)):
        return [_cut(part, depth - 1) for part in value[:20]]
    return value


_MAX_MESSAGE = 500  # characters; msgspec's messages may repeat what the caller sent
_STEP = r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]"
UNEXPLAINED = "does not fit its type"


class ValidationProblem(ValueError):
    """A value does not fit its type; `problems` are pairs of a path (like `.a[0]`) and a text."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {text}" for path, text in problems))
        self.problems = problems


def problems_in(error: Exception) -> list[tuple[str, str]]:
    """The problems in a decoder's exception: pairs of a path and a text."""
    if isinstance(error, ValidationProblem):
        return error.problems
    text, path = _split(str(error))
    cause = error.__cause__
    if isinstance(cause, ValidationProblem):
        return [(path + inner, words) for inner, words in cause.problems]
    if cause is None:
        translated = (match.expand(words) for pattern, words in _WORDS if (match := re.match(pattern, text)))
        return [(path, next(translated, UNEXPLAINED))]
    return [(path, str(cause))]  # raised by the author's class


def _split(message: str) -> tuple[str, str]:
    """The path and the text of a message of msgspec, which ends in "- at `$.path`" or "- at `key` in `$.path`"."""
    text, _, place = message.rpartition(" - at `")
    place = place.removeprefix("key` in `")
    if not place.startswith("$"):
        return message[:_MAX_MESSAGE], ""
    path = place[1:-1].replace("[...]", "[…]")  # msgspec does not name the key of a dict
    return text[:_MAX_MESSAGE], path[:_MAX_MESSAGE] + "…" * (len(path) > _MAX_MESSAGE)


_WORDS = (  # compiled, and cached by `re`, when a value does not fit
    (r"Invalid RFC3339 encoded datetime", "must be a date-time such as 2026-07-28T09:30:00Z"),
    (r"Invalid RFC3339 encoded date", "must be a date such as 2026-07-28"),
    (r"Invalid RFC3339 encoded time", "must be a time such as 09:30:00"),
    (r"Expected `\w+` with a timezone component", "must have a time zone such as Z or +02:00"),
    (r"Expected `\w+` with no timezone component", "must have no time zone"),
    (r"Invalid .*duration|.*timedelta", "must be a duration such as PT1H30M"),
    (r"Invalid UUID", "must be a UUID such as 123e4567-e89b-12d3-a456-426614174000"),
    (r"Invalid decimal string", 'must be a decimal number such as "12.50"'),
    (r"Invalid base64 encoded string", "must be in base64"),
    (r"Invalid enum value", "must be one of the allowed values"),
    (r"Object missing required field `(.*)`", r"\1 is required, but missing"),
    (r"Object contains unknown field `(.*)`", r"\1 is an unknown property"),
    (r"Expected `(?:int|float)` >= (.*)", r"must be at least \1"),
    (r"Expected `(?:int|float)` > (.*)", r"must be more than \1"),
    (r"Expected `(?:int|float)` <= (.*)", r"must be at most \1"),
    (r"Expected `(?:int|float)` < (.*)", r"must be less than \1"),
    (r"Expected `(?:int|float)` that's a multiple of (.*)", r"must be a multiple of \1"),
    (r"Expected `\w+` of length >= (.*)", r"must have a length of at least \1"),
    (r"Expected `\w+` of length <= (.*)", r"must have a length of at most \1"),
    (r"(?:Number|Integer value) out of range", "is too large a number"),
    (r"Expected `int`", "expected an integer"),
    (r"Expected `float`", "expected a number"),
    (r"Expected `str`", "expected a string"),
    (r"Expected `bool`", "expected true or false"),
    (r"Expected `null`", "expected null"),
    (r"Expected `array`", "expected an array"),
    (r"Expected `object`", "expected an object"),
)


def problem_line(path: str, words: str, value: Any, *, root: str = "arguments") -> str:
    """One line: the path, what was expected, and the value."""
    here = f"{path.lstrip('.') or root}: {words}"
    if path.endswith("…") or not words.startswith(("must", "expected")):  # a cut path leads to another value
        return here
    return f"{here}, got {(excerpt if words.startswith('must') else described)(_at(value, path))}"


def _at(value: Any, path: str) -> Any:
    """The value at a path, as far as it exists."""
    for step in re.finditer(_STEP, path):
        try:
            value = value[step["name"]] if step["name"] else value[int(step["index"])]
        except (KeyError, IndexError, TypeError):
            break
    return value


Part = dict[str, Any] | bool  # a schema, or a subschema

PARTNERS = {"exclusiveMaximum": "maximum", "exclusiveMinimum": "minimum"}  # a mere flag in draft-04

_MAX_PROBLEMS = 100
_MAX_STEPS = 150  # of nested subschemas
_COMPARING = frozenset({"const", "enum", "uniqueItems"})  # compare the whole value
_UNKNOWN = "unknown property"
_NUMBERS, _OBJECTS, _ARRAYS = (int, float), (dict,), (list, tuple)

_TYPE_NAMES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
}
FORMATS = {
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


class Explanation:
    """Finds the problems of one value: visits each part of it once with each part of the schema."""

    def __init__(self, document: "SchemaDocument", engine: "SchemaEngine", budget: Budget) -> None:
        self._document = document
        self._engine = engine
        self._budget = budget
        self._found: dict[tuple[int, int], list[Problem]] = {}  # so that nested alternatives do not multiply

    def problems(self, value: Any) -> list[Problem]:
        return self._explain(self._document.root, value, 0)

    def _fits(self, part: Part, value: Any, steps: int) -> bool:
        fits = not self._explain(part, value, steps)
        self._budget.spend(0)  # raises if the visit was not complete
        return fits

    def _explain(self, part: Part, value: Any, steps: int) -> list[Problem]:
        if isinstance(part, bool):
            return [] if part else [Problem((), "is not allowed")]
        key = id(part), id(value)
        with suppress(Budget.Spent):
            self._budget.spend()
            if key not in self._found and steps < _MAX_STEPS:
                self._found[key] = self._visit(part, value, steps + 1)[:_MAX_PROBLEMS]
                self._budget.spend(len(self._found[key]))  # for the rules that pass them on
        return self._found.get(key, [])

    def _visit(self, part: dict[str, Any], value: Any, steps: int) -> list[Problem]:
        if self._document.is_old and "$ref" in part:
            return self._reference(part["$ref"], part, value, steps)
        wrong = next((name for name in ("const", "enum", "type") if self._violates(part, name, value)), None)
        if wrong:
            return [_wrong_choice(wrong, part[wrong], value)]  # hides all other problems
        found: list[Problem] = []
        for keyword, argument in part.items():
            if self._budget.is_spent:
                break
            concerned, text = _LIMITS.get(keyword, ((), ""))
            if isinstance(value, concerned) and self._violates(part, keyword, value):
                if keyword == "pattern" and len(str(value)) > self._engine.pattern(argument).max_text:
                    text = "is too long to be checked against the pattern {text}, has {size} characters"
                found.append(Problem((), _limit_text(text, keyword, part, value)))
            concerned, rule = _RULES.get(keyword, ((), None))
            if rule and isinstance(value, concerned):
                found += rule(self, argument, part, value, steps)
        return found

    def _violates(self, part: dict[str, Any], keyword: str, value: Any) -> bool:
        if keyword in part and (keyword in _COMPARING or isinstance(value, str)):
            extra = len(part["enum"]) // 8 if keyword == "enum" and isinstance(value, (dict, list)) else 0
            self._budget.spend(size(value) + extra)
        return keyword in part and self._engine.violates(part, keyword, value)

    # Rules. Parameters: the argument of the keyword, its schema, the value, the steps so far

    def _reference(self, argument: Any, part: dict[str, Any], value: Any, steps: int) -> list[Problem]:
        target = self._document.target(part, argument)
        return self._explain(target, value, steps) if isinstance(target, (dict, bool)) else []

    def _all_of(self, argument: Any, _part: Any, value: Any, steps: int) -> list[Problem]:
        return [problem for inner in argument for problem in self._explain(inner, value, steps)]

    def _any_of(self, argument: Any, _part: Any, value: Any, steps: int) -> list[Problem]:
        branches = [self._explain(inner, value, steps) for inner in argument]
        return _closest(branches, value) if all(branches) else []

    def _one_of(self, argument: Any, _part: Any, value: Any, steps: int) -> list[Problem]:
        fitting = sum(self._fits(inner, value, steps) for inner in argument)
        if fitting > 1:
            return [Problem((), f"fits {fitting} of the allowed forms, must fit exactly one; got {excerpt(value)}")]
        return [] if fitting else self._any_of(argument, _part, value, steps)

    def _not(self, argument: Any, _part: Any, value: Any, steps: int) -> list[Problem]:
        fits = self._fits(argument, value, steps)
        return [Problem((), f"must not fit {excerpt(argument)}, got {excerpt(value)}")] if fits else []

    def _if(self, argument: Any, part: dict[str, Any], value: Any, steps: int) -> list[Problem]:
        return self._explain(part.get("then" if self._fits(argument, value, steps) else "else", True), value, steps)

    def _dependent(self, argument: Any, _part: Any, value: Any, steps: int) -> list[Problem]:
        found = []
        for name in argument:
            if name in value and isinstance(argument[name], list):
                missing = [need for need in argument[name] if need not in value]
                found += [Problem((need,), f"required beside {name}, but missing") for need in missing]
            elif name in value:
                found += self._explain(argument[name], value, steps)
        return found

    def _required(self, argument: Any, _part: Any, value: Any, _steps: int) -> list[Problem]:
        return [Problem((name,), "required, but missing") for name in argument if name not in value]

    def _each(self, pairs: Iterable[tuple[Step, Part]], value: Any, steps: int) -> list[Problem]:
        found: list[Problem] = []
        for step, inner in pairs:
            found += [
                structs.replace(problem, path=(step, *problem.path))
                for problem in self._explain(inner, value[step], steps)
            ]
            if len(found) > _MAX_PROBLEMS or self._budget.is_spent:
                break
        return found

    def _properties(self, argument: Any, _part: Any, value: Any, steps: int) -> list[Problem]:
        return self._each(((name, argument[name]) for name in value if name in argument), value, steps)

    def _pattern_properties(self, argument: Any, _part: Any, value: Any, steps: int) -> list[Problem]:
        patterns = [(self._engine.pattern(text), inner) for text, inner in argument.items()]
        self._budget.spend(len(patterns) * len(value))
        pairs = ((name, inner) for pattern, inner in patterns for name in value if pattern.matches(name))
        return self._each(pairs, value, steps)

    def _additional_properties(self, argument: Any, part: dict[str, Any], value: Any, steps: int) -> list[Problem]:
        known, texts = part.get("properties", {}), list(part.get("patternProperties", {}))
        patterns = [self._engine.pattern(text) for text in texts]
        self._budget.spend(len(patterns) * len(value))
        extra = (name for name in value if name not in known and not any(each.matches(name) for each in patterns))
        if argument is False:
            allowed = listed([*known, *(f"names that match {text}" for text in texts)]) or "none"
            text = f"{_UNKNOWN} (known: {allowed})"
            return [Problem((name,), text) for name in itertools.islice(extra, _MAX_PROBLEMS)]
        return self._each(((name, argument) for name in extra), value, steps)

    def _property_names(self, argument: Any, _part: Any, value: Any, steps: int) -> list[Problem]:
        pairs = ((name, problem) for name in value for problem in self._explain(argument, name, steps))
        return [Problem((name,), f"is not an allowed name: it {problem.text}") for name, problem in pairs]

    def _items(self, argument: Any, part: dict[str, Any], value: Any, steps: int) -> list[Problem]:
        if isinstance(argument, list):  # a tuple: prefixItems, or items before 2020-12
            return self._each(zip(range(len(value)), argument, strict=False), value, steps)
        start = len(part.get("prefixItems", ()))
        return self._each(((index, argument) for index in range(start, len(value))), value, steps)

    def _additional_items(self, argument: Any, part: dict[str, Any], value: Any, steps: int) -> list[Problem]:
        known = part.get("items")
        start = len(known) if isinstance(known, list) else len(value)
        return self._each(((index, argument) for index in range(start, len(value))), value, steps)

    def _contains(self, argument: Any, part: dict[str, Any], value: Any, steps: int) -> list[Problem]:
        least, most = part.get("minContains", 1), part.get("maxContains", math.inf)
        count = sum(self._fits(argument, item, steps) for item in value)
        if least <= count <= most:
            return []
        wanted, limit = ("at least", least) if count < least else ("at most", most)
        items = "item" if limit == 1 else "items"
        return [Problem((), f"must hold {wanted} {limit} {items} like {excerpt(argument)}, holds {count}")]


_Rule = Callable[[Explanation, Any, Any, Any, int], list[Problem]]
_RULES: dict[str, tuple[tuple[type, ...], _Rule]] = {
    "$ref": ((object,), Explanation._reference),
    "allOf": ((object,), Explanation._all_of),
    "anyOf": ((object,), Explanation._any_of),
    "oneOf": ((object,), Explanation._one_of),
    "not": ((object,), Explanation._not),
    "if": ((object,), Explanation._if),
    "required": (_OBJECTS, Explanation._required),
    "dependentRequired": (_OBJECTS, Explanation._dependent),
    "dependentSchemas": (_OBJECTS, Explanation._dependent),
    "dependencies": (_OBJECTS, Explanation._dependent),
    "properties": (_OBJECTS, Explanation._properties),
    "patternProperties": (_OBJECTS, Explanation._pattern_properties),
    "additionalProperties": (_OBJECTS, Explanation._additional_properties),
    "propertyNames": (_OBJECTS, Explanation._property_names),
    "prefixItems": (_ARRAYS, Explanation._items),
    "items": (_ARRAYS, Explanation._items),
    "additionalItems": (_ARRAYS, Explanation._additional_items),
    "contains": (_ARRAYS, Explanation._contains),
}


def _limit_text(text: str, keyword: str, part: dict[str, Any], value: Any) -> str:
    limit = part[PARTNERS[keyword]] if part[keyword] is True and keyword in PARTNERS else part[keyword]
    shown = {"limit": excerpt(limit), "text": str(limit)[:200], "got": excerpt(value)}
    shown |= {"s": "", "ies": "y"} if limit == 1 else {"s": "s", "ies": "ies"}
    shown["size"] = str(len(value)) if isinstance(value, (str, list, tuple, dict)) else ""
    shown["format"] = FORMATS.get(str(limit), f"in the format {shown['text']}")
    return text.format(**shown)


def _wrong_choice(keyword: str, argument: Any, value: Any) -> Problem:
    options = argument if isinstance(argument, list) and keyword != "const" else [argument]
    if keyword == "type":
        return _choice((), tuple(str(_TYPE_NAMES.get(name, name)) for name in options), (), value)
    return _choice((), (), tuple(excerpt(option) for option in options[: MAX_SHOWN + 1]), value)


def _choice(path: tuple[Step, ...], types: tuple[str, ...], values: tuple[str, ...], value: Any) -> Problem:
    """The problem of a value with a wrong type, or one that is not among the allowed values."""
    if not values:
        return Problem(path, f"expected {' or '.join(types)}, got {described(value)}", types)
    wanted = " or ".join([listed(values), *types])
    text = f"must be one of {wanted}; got" if len(values) > 1 else f"must be {wanted}, got"
    return Problem(path, f"{text} {excerpt(value)}", types, values)


def _closest(branches: list[list[Problem]], value: Any) -> list[Problem]:
    """The problems of a value that fits no alternative: what they allow together, or those of the closest one."""
    choices = [_choice_at((), branch) for branch in branches]
    if all(choices):
        return [_merged((), choices, value)]
    near = [branch for branch, choice in zip(branches, choices, strict=True) if choice is None]
    tags = [problem.path for problem in near[0] if problem.values] if len(near) > 1 else []
    for path in tags:  # a property that distinguishes the alternatives, with a value that none of them allows
        choices = [_choice_at(path, branch) for branch in near]
        if all(choice is not None and choice.values for choice in choices):
            return [_merged(path, choices, value)]
    return min(near, key=lambda branch: (any(problem.values for problem in branch), len(branch)))


def _choice_at(path: tuple[Step, ...], branch: list[Problem]) -> Problem | None:
    return next((problem for problem in branch if problem.path == path and (problem.types or problem.values)), None)


def _merged(path: tuple[Step, ...], choices: Iterable[Problem | None], value: Any) -> Problem:
    known = [choice for choice in choices if choice is not None]
    for step in path:
        value = value[step]
    types = dict.fromkeys(name for choice in known for name in choice.types)
    return _choice(path, tuple(types), tuple(dict.fromkeys(v for choice in known for v in choice.values)), value)


def problem_lines(found: list[Problem], root: str) -> list[str]:
    """At most `MAX_SHOWN` lines, without duplicates."""
    noun = root.removesuffix("s") if root == "arguments" else "property"
    lines: dict[str, None] = {}
    for problem in found:
        text = problem.text
        if text.startswith(_UNKNOWN) and len(problem.path) == 1:
            text = text.replace("property", noun, 1)
        lines[f"{readable(problem.path, root)}: {text}"] = None
    shown = list(lines)[:MAX_SHOWN]
    rest = len(lines) - len(shown)
    return [*shown, f"… and {'at least ' if len(found) >= _MAX_PROBLEMS else ''}{rest} more"] if rest else shown
