"""A schema comes in, as some server wrote it; every schema inside of it goes out with its place."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

MAX_PARTS = 20_000
MAX_DEPTH = 64
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

Schema = Mapping[str, Any]


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
        if len(part.path) < 2 * MAX_DEPTH:
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
