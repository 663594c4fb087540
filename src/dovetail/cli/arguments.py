"""Arguments of a call: `key=value` words to JSON values of the types that a schema asks for.

a=2             by the schema: 2, "2" or [2]
a=1 a=2         a list
a.b=1           {"a": {"b": 1}}
a:='{"b": 1}'   JSON, as it is
a=@notes.txt    the text of a file; of stdin with @-

Schemas of a server are not trusted to have a sensible shape. References are followed within the document.
"""

import difflib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

import click
import msgspec

from dovetail.cli.output import USAGE_ERROR, CommandExit, align, one_line

Schema = Mapping[str, Any]

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_PARAMETERS = 100  # of the properties of an object
MAX_SUBSCHEMAS = 50  # of a schema that are looked at for one value, through references and alternatives
STDIN = "-"
STDIN_IS_READ = "dovetail.stdin"  # in the context of the command
TYPES = ("null", "boolean", "integer", "number", "array", "object", "string")
ANYTHING: Schema = {}
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class InvalidValue(Exception):
    """The text is not what the schema asks for; the message says what is."""


class Argument(NamedTuple):
    """One word of the command line."""

    key: str
    text: str
    is_json: bool = False

    @classmethod
    def parse(cls, word: str) -> "Argument":
        if word.lstrip().startswith("{"):
            raise CommandExit(f"{one_line(word, 60)}: --args takes all arguments as JSON", USAGE_ERROR)
        key, sign, text = word.partition("=")
        is_json = key.endswith(":")
        key = key.removesuffix(":")
        if not sign or not key:
            raise CommandExit(f"{word}: write arguments as KEY=VALUE, or KEY:=JSON", USAGE_ERROR)
        if text.startswith("@") and not is_json:
            written = json.dumps(one_line(text, 100), ensure_ascii=False)
            advice = f"If no file is meant, but a text that begins with @, write '{key}:={written}'"
            text = read_text(text[1:], advice)
        return cls(key, text, is_json)


# ── text that comes from elsewhere ──


def read_text(name: str, advice: str | None = None) -> str:
    """Of stdin for `-`. The advice is for those who meant no file."""
    if name == STDIN:
        return _text_of_stdin()
    try:
        with open(name, "rb") as file:
            return _text(file, f"@{name}")
    except OSError as failure:
        raise CommandExit(f"@{name}: {failure.strerror}", USAGE_ERROR, advice) from None


def _text_of_stdin() -> str:
    context = click.get_current_context(silent=True)
    if context is not None:
        if STDIN_IS_READ in context.meta:
            raise CommandExit("stdin can be read only once: give the rest as a file, or as text", USAGE_ERROR)
        context.meta[STDIN_IS_READ] = True
    return _text(sys.stdin.buffer, "stdin")


def _text(file: BinaryIO, shown: str) -> str:
    content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise CommandExit(f"{shown}: it is larger than {MAX_FILE_BYTES >> 20} MiB", USAGE_ERROR)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise CommandExit(f"{shown}: it is no text in UTF-8", USAGE_ERROR) from None


def json_object(given: str, option: str) -> dict[str, Any]:
    """Of an option that takes JSON, `@file`, or `-` for stdin."""
    is_elsewhere = given == STDIN or given.startswith("@")
    try:
        value = _json(read_text(given.removeprefix("@")) if is_elsewhere else given)
    except InvalidValue as misread:
        raise CommandExit(f"{option}: {misread}", USAGE_ERROR) from None
    if not isinstance(value, dict):
        raise CommandExit(f"{option}: a JSON object is needed, as in '{{\"a\": 1}}'", USAGE_ERROR)
    return value


# ── all of them ──


class GivenArguments(NamedTuple):
    """All that was given, with the texts of files and stdin.

    It is read before a loop runs: while one waits for stdin, no signal would get through.
    """

    arguments: Sequence[Argument] = ()
    whole: dict[str, Any] | None = None

    @classmethod
    def from_words(cls, words: Iterable[str], whole: str | None = None, option: str = "--args") -> "GivenArguments":
        arguments = [Argument.parse(word) for word in words]
        return cls(arguments, None if whole is None else json_object(whole, option))

    def typed(self, schema: Schema, tool: str) -> dict[str, Any]:
        """What the tool is called with. What comes with --args is taken as it is; the words are checked."""
        typed = parse_arguments(self.arguments, schema, tool)
        if self.whole is None and (missing := [name for name in required(schema) if name not in typed]):
            raise _usage_error(f"{tool} needs {', '.join(map(one_line, missing))}", schema)
        return (self.whole or {}) | typed

    def texts(self, allowed: Mapping[str, bool] | None = None, owner: str = "") -> dict[str, str]:
        """Of a prompt or a template: all are text. `allowed` says which there are, and whether they are needed."""
        found = {argument.key: argument.text for argument in self.arguments}
        if allowed is None:
            return found
        wrong = [f"takes no {name}" for name in found if name not in allowed]
        wrong += [f"needs {one_line(name)}" for name, needed in allowed.items() if needed and name not in found]
        if wrong:
            needed = [name for name, is_needed in allowed.items() if is_needed]
            schema: Schema = {"properties": {name: {"type": "string"} for name in allowed}, "required": needed}
            raise _usage_error(f"{owner} {wrong[0]}", schema)
        return found


def parse_arguments(arguments: Sequence[Argument], schema: Schema, tool: str) -> dict[str, Any]:
    grouped: dict[tuple[str, ...], list[Argument]] = {}
    for argument in arguments:  # a dot leads into an object, unless it is a part of a name
        path = (argument.key,) if argument.key in properties(schema) else tuple(argument.key.split("."))
        grouped.setdefault(path, []).append(argument)
    typed: dict[str, Any] = {}
    for path, same in grouped.items():
        place = _schema_at(path, schema, tool)
        try:
            _set_at(typed, path, _value(same, place, schema))
        except InvalidValue as misread:
            raise _usage_error(f"{one_line(same[0].key)}: {misread}", schema) from None
    return typed


def _schema_at(path: Sequence[str], schema: Schema, tool: str) -> Schema:
    here, known = schema, properties(schema)
    for depth, name in enumerate(path):
        if name not in known:
            if allows_more_properties(here) or (depth and not known):
                return ANYTHING
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"; did you mean {one_line(near[0], 60)}?" if near else ""
            raise _usage_error(f"{tool} takes no {one_line('.'.join(path))}{advice}", schema)
        here, known = known[name], all_properties(known[name], schema)
    return here


def _set_at(into: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *above, last = path
    inner: Any = into
    for name in above:
        inner = inner.setdefault(name, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or last in inner:
        raise InvalidValue("it is given twice, as a value and as an object")
    inner[last] = value


def _value(same: Sequence[Argument], schema: Schema, root: Schema) -> Any:
    """One value, or a list where the key is given several times."""
    allowed = allowed_types(schema, root)
    if len(same) > 1 and allowed and "array" not in allowed:
        raise InvalidValue(f"it is given {len(same)} times, but takes {describe_type(schema, root)}")
    part = schema if len(same) == 1 else item_schema(schema, root)
    found = [_json(each.text) if each.is_json else parse_value(each.text, part, root) for each in same]
    return found if len(same) > 1 else found[0]


def _usage_error(problem: str, schema: Schema) -> CommandExit:
    takes = parameter_lines(schema)
    return CommandExit(problem, USAGE_ERROR, "It takes:\n" + "\n".join(takes) if takes else "It takes no arguments.")


def parameter_lines(schema: Schema) -> list[str]:
    """What a tool takes, a line for each."""
    needed = required(schema)
    rows = []
    for name, part in [*properties(schema).items()][:MAX_PARAMETERS]:
        told = json.dumps(part["default"], ensure_ascii=False) if "default" in part else ""
        default = f"default {one_line(told, 30)}" if told else ""
        note = "required" if name in needed else default
        rows.append((one_line(name), describe_type(part, schema), note, one_line(get_text(part, "description"), 100)))
    return [f"  {line}" for line in align(rows)] + ["  …"] * (len(properties(schema)) > MAX_PARAMETERS)


# ── one value ──


def parse_value(text: str, schema: Schema, root: Schema) -> Any:
    """The value that is meant by a text. Raises Misread."""
    named = enum_values(schema, root)
    for choice in named:
        if text == (choice if isinstance(choice, str) else json.dumps(choice)):
            return choice
    allowed = allowed_types(schema, root, unlisted=True)
    if not allowed and not named:
        return _json_or_text(text)
    for kind in allowed:
        try:
            return _parse_as(kind, text, schema, root)
        except (InvalidValue, KeyError, RecursionError):
            continue
    raise InvalidValue(f"expected {describe_type(schema, root)}, got {one_line(text, 60)!r}")


def _json_or_text(text: str) -> Any:
    """Where anything goes, JSON is JSON and all else is text."""
    try:
        return _json(text)
    except InvalidValue:
        return text


def _json(text: str) -> Any:
    """What could not be sent again is none: NaN, a number that is too large, half of a surrogate pair."""
    try:
        return msgspec.json.decode(text)
    except UnicodeEncodeError:
        raise InvalidValue("this is not JSON: it is no text in UTF-8") from None
    except (msgspec.DecodeError, RecursionError) as failure:
        raise InvalidValue(f"this is not JSON: {failure}") from None


def _parse_as(kind: str, text: str, schema: Schema, root: Schema) -> Any:
    """The text as a value of this type. Raises Misread, or KeyError for a switch that is none."""
    if kind == "string":
        return text
    if kind == "boolean":
        return BOOLEANS[text.lower()]
    if kind == "array" and not text.lstrip().startswith("["):
        if "string" in allowed_types(schema, root):
            raise InvalidValue  # it may be either, so a single word is a string
        return [parse_value(text, item_schema(schema, root), root)]
    value = _json(text)
    if json_type(value) != kind and (json_type(value), kind) != ("integer", "number"):
        raise InvalidValue
    return value


# ── schemas ──


def as_object(value: Any) -> Schema:
    """It, if it is an object; else one that says nothing."""
    return value if isinstance(value, Mapping) else ANYTHING


def get_text(each: Mapping[str, Any], key: str) -> str:
    """The value of a key, if it is text; else none."""
    value = each.get(key)
    return value if isinstance(value, str) else ""


def properties(schema: Schema) -> dict[str, Schema]:
    return {name: as_object(part) for name, part in as_object(schema.get("properties")).items()}


def required(schema: Schema) -> list[str]:
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def allows_more_properties(schema: Schema) -> bool:
    """Whether it says that more properties than those it names are welcome."""
    return bool(schema.get("additionalProperties", False)) or bool(schema.get("patternProperties"))


def branches(schema: Schema, root: Schema) -> Iterator[Schema]:
    """The schema without references and alternatives: each of the plain ones that it is made of."""
    waiting, seen = [schema], set[int]()
    while waiting and len(seen) < MAX_SUBSCHEMAS:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if part.keys() & {"type", "enum", "const", "properties", "items"}:
            yield part
        listed = [part[keyword] for keyword in ("allOf", "oneOf", "anyOf") if isinstance(part.get(keyword), list)]
        waiting += [as_object(each) for alternatives in listed for each in alternatives[MAX_SUBSCHEMAS::-1]]
        if isinstance(part.get("$ref"), str):
            waiting.append(as_object(resolve_ref(part["$ref"], root)))


def resolve_ref(reference: Any, root: Schema) -> Any:
    """What a reference within the document leads to; None for any other, and for one that leads nowhere."""
    if not isinstance(reference, str) or not re.fullmatch(r"(#(/.*)?)?", reference, re.DOTALL):
        return None
    found: Any = root
    for step in unquote(reference).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and re.fullmatch(r"0|[1-9][0-9]{0,8}", key):
            found = found[int(key)] if int(key) < len(found) else None
        else:
            found = as_object(found).get(key)
    return found


def allowed_types(schema: Schema, root: Schema, *, unlisted: bool = False) -> list[str]:
    """What a value may be, in the order of TYPES; none are named if it may be anything.

    With `unlisted`, only where the schema does not name the values themselves.
    """
    found: set[str] = set()
    for branch in branches(schema, root):
        if not (unlisted and _enum(branch)):
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
        yield from map(json_type, _enum(branch))


def json_type(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def enum_values(schema: Schema, root: Schema) -> list[Any]:
    """The values that are allowed, if they are named."""
    return [value for branch in branches(schema, root) for value in _enum(branch)]


def _enum(branch: Schema) -> list[Any]:
    if "const" in branch:
        return [branch["const"]]
    listed = branch.get("enum")
    return listed if isinstance(listed, list) else []


def item_schema(schema: Schema, root: Schema) -> Schema:
    """The schema of what is in a list."""
    return next((as_object(branch["items"]) for branch in branches(schema, root) if "items" in branch), ANYTHING)


def all_properties(schema: Schema, root: Schema) -> dict[str, Schema]:
    """The properties of an object, of all its branches."""
    return {name: part for branch in branches(schema, root) for name, part in properties(branch).items()}


def describe_type(schema: Schema, root: Schema) -> str:
    """In a word or two: `integer`, `S|M|L`, `list of string`, `string or null`."""
    named = enum_values(schema, root)
    if named:
        shown = [one_line(str(value), 24) for value in named[:8]]
        return "|".join(shown) + ("|…" if len(named) > 8 else "")
    kinds = [kind for kind in allowed_types(schema, root) if kind != "null"]
    if kinds == ["array"]:
        inner = allowed_types(item_schema(schema, root), root)
        return "list of " + " or ".join(inner) if inner else "list"
    return " or ".join(kinds) or "anything"
