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

Schema = Mapping[str, Any]


class Part(NamedTuple):
    """A schema inside of another."""

    schema: Schema
    path: tuple[str, ...]
    depth: int  # of values in values
    beside: tuple[Collection[str], ...] = ()  # names of properties of the same value, by the schemas around this one

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
    around = (*part.beside, property_names(part.schema), _names_in_all(part.schema))
    for keyword, value in part.schema.items():
        beside = around if keyword in SAME_VALUE else ()
        depth = part.depth + (keyword in DEEPER)
        for steps, schema in _held(keyword, value):
            yield Part(schema, (*part.path, keyword, *steps), depth, beside)


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


def _names_in_all(schema: Schema) -> Collection[str]:
    """What the branches of `allOf` describe: it is true of the same value for all of them."""
    branches = schema.get("allOf")
    return {name for branch in (branches if isinstance(branches, list) else ()) for name in property_names(branch)}
