"""Random values of JSON Schemas, and random texts of patterns: always the same ones from the same seed.

A schema is flattened first: references and `allOf` are merged, one branch of each union is taken. What can't be had by
construction (`not`, overlapping branches of `oneOf`) is had by trying again, with the schema itself as the judge.
"""

import base64
import ipaddress
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from re import _constants as regex  # type: ignore[attr-defined]
from re import _parser as regex_parser  # type: ignore[attr-defined]
from typing import Any
from uuid import UUID

import jsonschema_rs

Schema = Mapping[str, Any]

TRIES = 200
MAX_DEPTH = 5  # of what is not required
PLAIN = "abcdefghijklmnopqrstuvwxyzABCXYZ0123456789"
ODD = " -_~!*'()+,;:@&=$/?#[]\"<>^`{|}éß✓"  # what has to be encoded somewhere
UNIONS = ("anyOf", "oneOf")
LOWER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")  # of two bounds the lower one counts
HIGHER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")


class Unsolved(Exception):
    """No value was found that fits the schema."""


class RandomValues:
    """Values of one schema. `optional` is how likely a property is given that need not be."""

    def __init__(self, schema: Schema, seed: object, *, optional: float = 0.4) -> None:
        self._root = schema
        self._random = Random(f"{seed}")
        self._judge = jsonschema_rs.Draft202012Validator(dict(schema), validate_formats=True)
        self._optional = optional

    def next(self) -> Any:
        for attempt in range(TRIES):
            value = self._value(self._root, 0, generous=attempt < TRIES / 2)
            if self._judge.is_valid(value):
                return value
        raise Unsolved(f"{value!r:.300}: {next(self._judge.iter_errors(value)).message:.300}")

    def _value(self, schema: Any, depth: int, *, generous: bool = True) -> Any:
        flat = self._flat(schema, depth)
        if "const" in flat:
            return flat["const"]
        if flat.get("enum"):
            return self._random.choice(flat["enum"])
        return self._by_type[self._type(flat)](self, flat, depth, generous)

    # ── flattening ──

    def _flat(self, schema: Any, depth: int, seen: tuple[str, ...] = ()) -> dict[str, Any]:
        if not isinstance(schema, Mapping):
            return {}
        flat = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", *UNIONS)}
        for part in self._parts(schema, depth):
            reference = part.get("$ref", "") if isinstance(part, Mapping) else ""
            if reference not in seen or not reference:
                flat = _merged(flat, self._flat(part, depth, (*seen, reference)))
        return flat

    def _parts(self, schema: Schema, depth: int) -> Iterator[Any]:
        if "$ref" in schema:
            yield self._resolved(schema["$ref"])
        yield from schema.get("allOf", ())
        for union in UNIONS:
            if branches := schema.get(union):
                yield self._random.choice(branches if depth < MAX_DEPTH else _shallow(branches))

    def _resolved(self, reference: str) -> Any:
        found: Any = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            found = found[int(step)] if isinstance(found, list) else found[step]
        return found

    def _type(self, flat: Schema) -> str:
        given = flat.get("type")
        if isinstance(given, list):
            return self._random.choice(given)
        if given is not None:
            return given
        if "properties" in flat or "additionalProperties" in flat or "required" in flat:
            return "object"
        return "array" if "items" in flat else "string"

    # ── types ──

    def _object(self, flat: Schema, depth: int, generous: bool) -> dict[str, Any]:
        properties, required = flat.get("properties", {}), flat.get("required", ())
        wanted = self._optional * (1 if generous else 0.1) if depth < MAX_DEPTH else 0
        names = [name for name in properties if name in required or self._random.random() < wanted]
        names += [name for name in required if name not in properties]
        spare = [name for name in properties if name not in names]
        while len(names) < flat.get("minProperties", 0) and spare:
            names.append(spare.pop(self._random.randrange(len(spare))))
        made = {name: self._value(properties.get(name, {}), depth + 1, generous=generous) for name in names}
        others = flat.get("additionalProperties")
        while isinstance(others, Mapping) and len(made) < max(
            flat.get("minProperties", 0), self._optional and depth < 3
        ):
            made[self._letters(6)] = self._value(others, depth + 1, generous=generous)
        return made

    def _array(self, flat: Schema, depth: int, generous: bool) -> list[Any]:
        fewest = flat.get("minItems", 0)
        most = min(flat.get("maxItems", fewest + 3), fewest + 3)
        first = flat.get("prefixItems", [])
        count = self._random.randint(max(fewest, 1 if depth < MAX_DEPTH and most else 0), max(fewest, most))
        schemas = [*first, *[flat.get("items", {})] * count][: max(count, len(first))]
        items = [self._value(schema, depth + 1, generous=generous) for schema in schemas]
        return [item for at, item in enumerate(items) if item not in items[:at]] if flat.get("uniqueItems") else items

    def _number(self, flat: Schema, _depth: int, _generous: bool) -> float:
        number = self._random.uniform(*self._bounds(flat))
        step = flat.get("multipleOf")
        return round(number / step) * step if step else round(number, 2)

    def _integer(self, flat: Schema, _depth: int, _generous: bool) -> int:
        low, high = self._bounds(flat)
        step = int(flat.get("multipleOf", 1)) or 1
        return self._random.randint(math.ceil(low / step), max(math.ceil(low / step), math.floor(high / step))) * step

    def _bounds(self, flat: Schema) -> tuple[float, float]:
        low = flat.get("minimum", flat["exclusiveMinimum"] + 1 if "exclusiveMinimum" in flat else None)
        high = flat.get("maximum", flat["exclusiveMaximum"] - 1 if "exclusiveMaximum" in flat else None)
        if low is None:
            low = 0 if high is None or high >= 0 else high - 1000
        return low, low + 1000 if high is None else max(low, min(high, low + 1_000_000))

    def _string(self, flat: Schema, _depth: int, _generous: bool) -> str:
        if flat.get("contentEncoding") == "base64":
            return base64.b64encode(self._random.randbytes(self._random.randrange(1, 30))).decode()
        if make := FORMATS.get(flat.get("format", "")):
            return make(self._random)
        fewest, most = max(flat.get("minLength", 0), 1), flat.get("maxLength", math.inf)
        if "pattern" in flat:
            texts = (text_of(flat["pattern"], self._random, repeats) for repeats in (8, 2, fewest) * 10)
            return next((text for text in texts if fewest <= len(text) <= most), "")
        return self._letters(self._random.randint(fewest, max(fewest, int(min(most, fewest + 12)))))

    def _letters(self, count: int) -> str:
        pick = self._random
        return "".join(pick.choice(ODD if pick.random() < 0.1 else PLAIN) for _ in range(count))

    _by_type: Mapping[str, Callable[..., Any]] = {
        "object": _object,
        "array": _array,
        "number": _number,
        "integer": _integer,
        "string": _string,
        "boolean": lambda self, *_: self._random.random() < 0.5,
        "null": lambda *_: None,
    }


def _shallow(branches: list[Any]) -> list[Any]:
    """Branches that end soon: those that are no objects, if there are any."""
    return [branch for branch in branches if not {"$ref", "properties", "items", "allOf"} & set(branch)] or branches


def _merged(one: dict[str, Any], other: Schema) -> dict[str, Any]:
    """Both at the same time, as far as one plain schema can say it."""
    merged = {**other, **one}
    for key in one.keys() & other.keys():
        if key == "properties":
            shared = {
                name: {"allOf": [one[key][name], other[key][name]]} for name in one[key].keys() & other[key].keys()
            }
            merged[key] = {**one[key], **other[key], **shared}
        elif key == "required":
            merged[key] = [*one[key], *(name for name in other[key] if name not in one[key])]
        elif key == "enum":
            merged[key] = [each for each in one[key] if each in other[key]]
        elif key in LOWER or key in HIGHER:
            merged[key] = (min if key in LOWER else max)(one[key], other[key])
        elif key == "type":
            merged[key] = _both_types(one[key], other[key])
    return merged


def _both_types(one: Any, other: Any) -> Any:
    first, second = ([given] if isinstance(given, str) else given for given in (one, other))
    both = [kind for kind in first if kind in second] or (["integer"] if "integer" in (*first, *second) else first)
    return both if len(both) > 1 else both[0]


# ── formats ──


def _moment(random: Random) -> datetime:
    return datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=random.randrange(10**8))


def _word(random: Random) -> str:
    return "".join(random.choices(PLAIN[:26], k=6))


FORMATS: Mapping[str, Callable[[Random], str]] = {
    "date-time": lambda random: _moment(random).strftime("%Y-%m-%dT%H:%M:%SZ"),
    "date": lambda random: _moment(random).strftime("%Y-%m-%d"),
    "time": lambda random: _moment(random).strftime("%H:%M:%SZ"),
    "duration": lambda random: f"P{random.randrange(1, 30)}DT{random.randrange(24)}H",
    "uuid": lambda random: str(UUID(int=random.getrandbits(128), version=4)),
    "email": lambda random: f"{_word(random)}+{_word(random)}@example.com",
    "idn-email": lambda random: f"{_word(random)}@example.com",
    "hostname": lambda random: f"{_word(random)}.example.com",
    "idn-hostname": lambda random: f"{_word(random)}.example.com",
    "uri": lambda random: f"https://example.com/{_word(random)}?a={_word(random)}&b=%20#c",
    "uri-reference": lambda random: f"/{_word(random)}/{_word(random)}",
    "iri": lambda random: f"https://example.com/{_word(random)}",
    "uri-template": lambda random: f"https://example.com/{{{_word(random)}}}",
    "json-pointer": lambda random: f"/{_word(random)}",
    "regex": lambda random: f"^{_word(random)}[0-9]+$",
    "ipv4": lambda random: str(ipaddress.IPv4Address(random.getrandbits(32))),
    "ipv6": lambda random: str(ipaddress.IPv6Address(random.getrandbits(128))),
    "byte": lambda random: base64.b64encode(random.randbytes(random.randrange(1, 20))).decode(),
}


# ── patterns ──

CLASSES = {
    regex.CATEGORY_DIGIT: "0123456789",
    regex.CATEGORY_WORD: PLAIN + "_",
    regex.CATEGORY_SPACE: " ",
    regex.CATEGORY_NOT_DIGIT: PLAIN[:26],
    regex.CATEGORY_NOT_WORD: "-. ",
    regex.CATEGORY_NOT_SPACE: PLAIN,
}
PRINTABLE = "".join(map(chr, range(32, 127)))


def text_of(pattern: str, random: Random, repeats: int = 8) -> str:
    """A text that a search for the pattern finds, with so many optional repeats at most; it does not look around."""
    parsed = regex_parser.parse(re.sub(r"\\[pP]\{\w+\}", r"\\w", pattern))
    return "".join(_texts(parsed, random, repeats, {}))


def _texts(parsed: Any, random: Random, repeats: int, groups: dict[int, str]) -> Iterator[str]:
    for operator, given in parsed:
        if operator is regex.LITERAL:
            yield chr(given)
        elif operator is regex.NOT_LITERAL:
            yield random.choice(PLAIN.replace(chr(given), ""))
        elif operator is regex.ANY:
            yield random.choice(PLAIN)
        elif operator is regex.IN:
            yield random.choice(_members(given))
        elif operator is regex.BRANCH:
            yield from _texts(random.choice(given[1]), random, repeats, groups)
        elif operator is regex.SUBPATTERN:
            groups[given[0]] = "".join(_texts(given[3], random, repeats, groups))
            yield groups[given[0]]
        elif operator is regex.GROUPREF:
            yield groups[given]
        elif operator in (regex.MAX_REPEAT, regex.MIN_REPEAT, regex.POSSESSIVE_REPEAT):
            fewest, most, repeated = given
            for _ in range(random.randint(fewest, min(most, fewest + repeats))):
                yield from _texts(repeated, random, repeats, groups)
        elif operator is regex.ATOMIC_GROUP:
            yield from _texts(given, random, repeats, groups)


def _members(given: Any) -> str:
    """The characters of a class in brackets: printable ones, if there are such."""
    negated = given[0][0] is regex.NEGATE
    named = ""
    for operator, value in given[negated:]:
        if operator is regex.LITERAL:
            named += chr(value)
        elif operator is regex.RANGE:
            named += "".join(map(chr, range(value[0], min(value[1], value[0] + 256) + 1)))
        else:
            named += CLASSES[value]
    if negated:
        return "".join(each for each in PLAIN if each not in named) or "".join(set(PRINTABLE) - set(named))
    return "".join(each for each in named if each in PRINTABLE) or named
