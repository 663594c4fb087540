"""A schema comes in, as some server wrote it; every schema inside of it goes out with its place."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

MAX_PARTS = 20_000
MAX_DEPTH = 64
ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
DEEPER = ("properties", "items", "additionalProperties", "patternProperties", "prefixItems")  # what nests values

Schema = Mapping[str, Any]


class Part(NamedTuple):
    """A schema inside of another."""

    schema: Schema
    path: tuple[str, ...]
    depth: int  # of values in values

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
    for keyword, value in part.schema.items():
        depth = part.depth + (keyword in DEEPER)
        if keyword in ONE and isinstance(value, Mapping):
            yield Part(value, (*part.path, keyword), depth)
        elif keyword in MANY and isinstance(value, list):
            for index, each in enumerate(value):
                if isinstance(each, Mapping):
                    yield Part(each, (*part.path, keyword, str(index)), depth)
        elif keyword in NAMED and isinstance(value, Mapping):
            for name, each in value.items():
                if isinstance(each, Mapping):
                    yield Part(each, (*part.path, keyword, name), depth)


def referred(reference: Any, root: Schema) -> Any | None:
    """What a `$ref` means; None if it is not in the document."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found: Any = root
    for step in reference.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, Mapping) and key in found:
            found = found[key]
        else:
            return None
    return found
