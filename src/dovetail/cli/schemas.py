"""The schema of one value comes in, as some server wrote it; which types it takes and how that is said go out.

Nothing in it is believed to have a sensible shape. References are followed within the document; for one value a few
parts of it are looked at, and each of them once.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.cli.terminal import in_line

Schema = Mapping[str, Any]

TYPES = ("null", "boolean", "integer", "number", "array", "object", "string")
ANYTHING: Schema = {}
MAX_DESCRIBED = 100  # of the properties of an object
_MAX_PARTS = 50  # that are looked at for one value, through references and alternatives
_MAX_CHOICES = 8  # that are shown
_LONGEST_CHOICE = 24


def mapping(value: Any) -> Schema:
    """It, if it is an object; else one that says nothing."""
    return value if isinstance(value, Mapping) else ANYTHING


def properties(schema: Schema) -> dict[str, Schema]:
    return {name: mapping(part) for name, part in mapping(schema.get("properties")).items()}


def required(schema: Schema) -> list[str]:
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def is_open(schema: Schema) -> bool:
    """Whether it says that more properties than those it names are welcome."""
    return bool(schema.get("additionalProperties", False)) or bool(schema.get("patternProperties"))


def branches(schema: Schema, root: Schema) -> Iterator[Schema]:
    """The schema without references and alternatives: each of the plain ones that it is made of."""
    waiting, seen = [schema], set[int]()
    while waiting and len(seen) < _MAX_PARTS:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if part.keys() & {"type", "enum", "const", "properties", "items"}:
            yield part
        listed = [part[keyword] for keyword in ("allOf", "oneOf", "anyOf") if isinstance(part.get(keyword), list)]
        waiting += [mapping(each) for alternatives in listed for each in alternatives[_MAX_PARTS::-1]]
        if isinstance(part.get("$ref"), str):
            waiting.append(_referred(part["$ref"], root))


def _referred(reference: str, root: Schema) -> Schema:
    if not reference.startswith("#"):
        return ANYTHING
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        found = mapping(found).get(part.replace("~1", "/").replace("~0", "~"))
    return mapping(found)


def types(schema: Schema, root: Schema, *, unlisted: bool = False) -> list[str]:
    """What a value may be, in the order of TYPES; none are named if it may be anything.

    With `unlisted`, only where the schema does not name the values themselves.
    """
    found: set[str] = set()
    for branch in branches(schema, root):
        if not (unlisted and _listed(branch)):
            found |= set(_named_types(branch))
    return [name for name in TYPES if name in found]


def _named_types(branch: Schema) -> Iterator[str]:
    named = branch.get("type")
    if isinstance(named, str):
        yield named
    elif isinstance(named, list):
        yield from (name for name in named if isinstance(name, str))
    elif "properties" in branch:
        yield "object"
    elif "items" in branch:
        yield "array"
    else:
        yield from map(type_of, _listed(branch))


def type_of(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def choices(schema: Schema, root: Schema) -> list[Any]:
    """The values that are allowed, if they are named."""
    return [value for branch in branches(schema, root) for value in _listed(branch)]


def _listed(branch: Schema) -> list[Any]:
    if "const" in branch:
        return [branch["const"]]
    listed = branch.get("enum")
    return listed if isinstance(listed, list) else []


def items(schema: Schema, root: Schema) -> Schema:
    """The schema of what is in a list."""
    return next((mapping(branch["items"]) for branch in branches(schema, root) if "items" in branch), ANYTHING)


def inside(schema: Schema, root: Schema) -> dict[str, Schema]:
    """The properties of an object, of all its branches."""
    return {name: part for branch in branches(schema, root) for name, part in properties(branch).items()}


def described(schema: Schema, root: Schema) -> str:
    """In a word or two: `integer`, `S|M|L`, `list of string`, `string or null`."""
    named = choices(schema, root)
    if named:
        shown = [in_line(str(value), _LONGEST_CHOICE) for value in named[:_MAX_CHOICES]]
        return "|".join(shown) + ("|…" if len(named) > _MAX_CHOICES else "")
    kinds = [kind for kind in types(schema, root) if kind != "null"]
    if kinds == ["array"]:
        inner = types(items(schema, root), root)
        return "list of " + " or ".join(inner) if inner else "list"
    return " or ".join(kinds) or "anything"
