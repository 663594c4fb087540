"""The options of registrations: names and values go in, the same come out if they can be meant; else SetupError."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from dovetail import registry
from dovetail.errors import SetupError
from dovetail.protocol.definitions import CacheScope

if TYPE_CHECKING:
    from dovetail.registry.access import AccessRule

Given = TypeVar("Given", bound=Mapping[str, Any])
OutputPolicy = Literal["auto", "text", "structured", "both"]
UntrustedOutput = bool | Literal["fence"]
Authorize = Callable[[Any], bool | Awaitable[bool]]  # it gets the principal, or None where nobody is known


class AccessOptions(TypedDict, total=False):
    """What `@server.tool(...)`, `@server.resource(...)` and `@server.prompt(...)` take about who may use it."""

    scopes: Sequence[str]
    authorize: Authorize


class Kind(msgspec.Struct, frozen=True):
    """What an option may be: as a type, and in words."""

    type: Any
    words: str


TEXT = Kind(str, "a string")
SWITCH = Kind(bool, "True or False")
COUNT = Kind(Annotated[int, Meta(ge=0)], "a whole number, 0 or more")
POSITIVE_COUNT = Kind(Annotated[int, Meta(ge=1)], "a whole number, 1 or more")
SECONDS = Kind(Annotated[float, Meta(gt=0)], "a number of seconds above 0")
LIMIT_SECONDS = Kind(Annotated[float, Meta(gt=0)] | None, "a number of seconds above 0, or None for no limit")
NAMES = Kind(list[str], "a list of strings")
SCOPE = Kind(CacheScope, '"public" or "private"')
OUTPUT = Kind(OutputPolicy, '"auto", "text", "structured" or "both"')

KINDS = {
    "name": TEXT,
    "title": TEXT,
    "description": TEXT,
    "mime_type": TEXT,
    "tags": NAMES,
    "requires": NAMES,
    "unsafe": NAMES,
    "meta": Kind(dict[str, Any], "a dict with string keys"),
    "timeout": LIMIT_SECONDS,
    "max_concurrency": POSITIVE_COUNT,
    "thread": SWITCH,
    "structured_output": SWITCH,
    "output": OUTPUT,
    "untrusted_output": Kind(UntrustedOutput, 'True, False or "fence"'),
    "size": COUNT,
    "cache": SECONDS,
    "ttl_ms": COUNT,
    "cache_scope": SCOPE,
}


def checked_options(options: Given, known: Iterable[str], where: str, kinds: Mapping[str, Kind] = KINDS) -> Given:
    """The options that were given; None means "not given", unless it is one of the values an option may have."""
    if unknown := sorted(set(options) - set(known)):
        named = ", ".join(name + meant(name, known) for name in unknown)
        raise SetupError(f"{where}: unknown options {named}; known are {', '.join(sorted(known))}")
    given = {}
    for name, value in options.items():
        kind = kinds.get(name)
        if kind is None or _fits(value, kind):
            given[name] = value
        elif value is not None:
            raise SetupError(f"{where}: {name}={value!r} is not possible; it must be {kind.words}")
    return given  # type: ignore[return-value]


def meant(name: str, known: Iterable[str]) -> str:
    """What a message adds to a name that is not among the known ones."""
    import difflib  # late: names are mostly right

    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _fits(value: Any, kind: Kind) -> bool:
    try:
        msgspec.convert(value, kind.type)
        msgspec.json.encode(value)  # or else no list that shows it could be sent
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError):
        return False
    return True


def access_of(options: AccessOptions, where: str) -> "AccessRule | None":
    """None for what everybody may use; then nothing is loaded for it."""
    return registry.access.compile_access(options, where) if "scopes" in options or "authorize" in options else None


def convert_option(value: Any, kind: Any, where: str, option: str) -> Any:
    """An option given as plain data becomes its type; unknown keys are mistakes and are named."""
    if value is None:
        return None
    try:
        plain = msgspec.to_builtins(value)
        converted = msgspec.convert(plain, kind)
    except (msgspec.ValidationError, TypeError) as failure:
        raise SetupError(f"{where}: {option}={value!r} is not right: {failure}") from None
    items = zip(plain, converted, strict=True) if isinstance(plain, list) else [(plain, converted)]
    for given, made in items:
        known = [field.encode_name for field in msgspec.structs.fields(made)]
        if unknown := sorted(set(given) - set(known)):
            raise SetupError(f"{where}: {option} has unknown keys {unknown}; known are {', '.join(known)}")
    return converted
