"""Arguments of a call: `key=value` words parsed to JSON values by the types of a schema.

a=2             by the schema: 2, "2" or [2]
a=1 a=2         a list
a.b=1           {"a": {"b": 1}}
a:='{"b": 1}'   JSON, as it is
a=@notes.txt    the text of a file; of stdin with @-

Schemas of a server may have any shape. References are followed within the document.
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
MAX_PARAMETERS = 100  # that are described
MAX_SUBSCHEMAS = 50  # visited for one value, through references and alternatives
STDIN = "-"
STDIN_IS_READ = "dovetail.stdin"  # key in `click.Context.meta`
TYPES = ("null", "boolean", "integer", "number", "array", "object", "string")
ANYTHING: Schema = {}
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class InvalidValue(Exception):
    """The text does not match the schema; the message says what would."""


class Argument(NamedTuple):
    """One `KEY=VALUE` or `KEY:=JSON` of the command line."""

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
            quoted = json.dumps(one_line(text, 100), ensure_ascii=False)
            advice = f"If no file is meant, but a text that begins with @, write '{key}:={quoted}'"
            text = read_text(text[1:], advice)
        return cls(key, text, is_json)


def read_text(name: str, advice: str | None = None) -> str:
    """The text of a file, or of stdin for `-`. `advice` is added to the error if there is no such file."""
    if name == STDIN:
        return _read_stdin()
    try:
        with open(name, "rb") as file:
            return _read(file, f"@{name}")
    except OSError as failure:
        raise CommandExit(f"@{name}: {failure.strerror}", USAGE_ERROR, advice) from None


def _read_stdin() -> str:
    context = click.get_current_context(silent=True)
    if context is not None:
        if STDIN_IS_READ in context.meta:
            raise CommandExit("stdin can be read only once: give the rest as a file, or as text", USAGE_ERROR)
        context.meta[STDIN_IS_READ] = True
    return _read(sys.stdin.buffer, "stdin")


def _read(file: BinaryIO, shown: str) -> str:
    content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise CommandExit(f"{shown}: it is larger than {MAX_FILE_BYTES >> 20} MiB", USAGE_ERROR)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise CommandExit(f"{shown}: it is no text in UTF-8", USAGE_ERROR) from None


def json_object(given: str, option: str) -> dict[str, Any]:
    """The value of an option that takes JSON, `@file`, or `-` for stdin."""
    is_file = given == STDIN or given.startswith("@")
    try:
        value = _decode_json(read_text(given.removeprefix("@")) if is_file else given)
    except InvalidValue as invalid:
        raise CommandExit(f"{option}: {invalid}", USAGE_ERROR) from None
    if not isinstance(value, dict):
        raise CommandExit(f"{option}: a JSON object is needed, as in '{{\"a\": 1}}'", USAGE_ERROR)
    return value


class GivenArguments(NamedTuple):
    """The arguments of one command line, with the texts of files and stdin."""

    words: Sequence[Argument] = ()
    document: dict[str, Any] | None = None  # of --args

    @classmethod
    def from_words(cls, words: Iterable[str], document: str | None = None, option: str = "--args") -> "GivenArguments":
        arguments = [Argument.parse(word) for word in words]
        return cls(arguments, None if document is None else json_object(document, option))

    def typed(self, schema: Schema, tool: str) -> dict[str, Any]:
        """The arguments of a tool call. Words are checked by the schema; the JSON of --args is not."""
        typed = parse_arguments(self.words, schema, tool)
        if self.document is None and (missing := [name for name in required(schema) if name not in typed]):
            raise _usage_error(f"{tool} needs {', '.join(map(one_line, missing))}", schema)
        return (self.document or {}) | typed

    def texts(self, allowed: Mapping[str, bool] | None = None, owner: str = "") -> dict[str, str]:
        """The arguments of a prompt or a template. `allowed`: names, and whether they are required."""
        found = {argument.key: argument.text for argument in self.words}
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
    by_path: dict[tuple[str, ...], list[Argument]] = {}
    for argument in arguments:  # a dot leads into an object, unless a property has it in its name
        path = (argument.key,) if argument.key in properties(schema) else tuple(argument.key.split("."))
        by_path.setdefault(path, []).append(argument)
    typed: dict[str, Any] = {}
    for path, same in by_path.items():
        part = _schema_at(path, schema, tool)
        try:
            _set_at(typed, path, _value(same, part, schema))
        except InvalidValue as invalid:
            raise _usage_error(f"{one_line(same[0].key)}: {invalid}", schema) from None
    return typed


def _schema_at(path: Sequence[str], schema: Schema, tool: str) -> Schema:
    here, known = schema, properties(schema)
    for depth, name in enumerate(path):
        if name not in known:
            is_open = bool(here.get("additionalProperties", False)) or bool(here.get("patternProperties"))
            if is_open or (depth and not known):
                return ANYTHING
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"; did you mean {one_line(near[0], 60)}?" if near else ""
            raise _usage_error(f"{tool} takes no {one_line('.'.join(path))}{advice}", schema)
        here = known[name]
        known = {inner: part for branch in branches(here, schema) for inner, part in properties(branch).items()}
    return here


def _set_at(target: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *parents, last = path
    inner: Any = target
    for name in parents:
        inner = inner.setdefault(name, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or last in inner:
        raise InvalidValue("it is given twice, as a value and as an object")
    inner[last] = value


def _value(same: Sequence[Argument], schema: Schema, root: Schema) -> Any:
    """One value, or a list if the key is given several times."""
    allowed = allowed_types(schema, root)
    if len(same) > 1 and allowed and "array" not in allowed:
        raise InvalidValue(f"it is given {len(same)} times, but takes {describe_type(schema, root)}")
    part = schema if len(same) == 1 else item_schema(schema, root)
    found = [_decode_json(each.text) if each.is_json else parse_value(each.text, part, root) for each in same]
    return found if len(same) > 1 else found[0]


def _usage_error(problem: str, schema: Schema) -> CommandExit:
    takes = parameter_lines(schema)
    return CommandExit(problem, USAGE_ERROR, "It takes:\n" + "\n".join(takes) if takes else "It takes no arguments.")


def parameter_lines(schema: Schema) -> list[str]:
    """A line for each parameter of a tool."""
    rows = []
    for name, part in [*properties(schema).items()][:MAX_PARAMETERS]:
        note = "required" if name in required(schema) else ""
        if not note and "default" in part:
            note = f"default {one_line(json.dumps(part['default'], ensure_ascii=False), 30)}"
        rows.append((one_line(name), describe_type(part, schema), note, one_line(get_text(part, "description"), 100)))
    return [f"  {line}" for line in align(rows)] + ["  …"] * (len(properties(schema)) > MAX_PARAMETERS)


def parse_value(text: str, schema: Schema, root: Schema) -> Any:
    """The text as a value of a type that the schema allows. Raises InvalidValue."""
    listed = enum_values(schema, root)
    for choice in listed:
        if text == (choice if isinstance(choice, str) else json.dumps(choice)):
            return choice
    allowed = allowed_types(schema, root, unlisted=True)
    if not allowed and not listed:
        return _json_or_text(text)
    for kind in allowed:
        try:
            return _parse_as(kind, text, schema, root)
        except (InvalidValue, KeyError, RecursionError):
            continue
    raise InvalidValue(f"expected {describe_type(schema, root)}, got {one_line(text, 60)!r}")


def _json_or_text(text: str) -> Any:
    try:
        return _decode_json(text)
    except InvalidValue:
        return text


def _decode_json(text: str) -> Any:
    """Decode JSON; refuses values that can't be encoded again: NaN, too large numbers, half of a surrogate pair."""
    try:
        return msgspec.json.decode(text)
    except UnicodeEncodeError:
        raise InvalidValue("this is not JSON: it is no text in UTF-8") from None
    except (msgspec.DecodeError, RecursionError) as failure:
        raise InvalidValue(f"this is not JSON: {failure}") from None


def _parse_as(kind: str, text: str, schema: Schema, root: Schema) -> Any:
    """The text as a value of one type. Raises InvalidValue, or KeyError for a text that is no boolean."""
    if kind == "string":
        return text
    if kind == "boolean":
        return BOOLEANS[text.lower()]
    if kind == "array" and not text.lstrip().startswith("["):
        if "string" in allowed_types(schema, root):
            raise InvalidValue  # a string is allowed too, and a single word is one
        return [parse_value(text, item_schema(schema, root), root)]
    value = _decode_json(text)
    if json_type(value) != kind and (json_type(value), kind) != ("integer", "number"):
        raise InvalidValue
    return value


def as_object(value: Any) -> Schema:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else ANYTHING


def get_text(document: Mapping[str, Any], key: str) -> str:
    """The value of a key if it is a string, else an empty one."""
    value = document.get(key)
    return value if isinstance(value, str) else ""


def properties(schema: Schema) -> dict[str, Schema]:
    return {name: as_object(part) for name, part in as_object(schema.get("properties")).items()}


def required(schema: Schema) -> list[str]:
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def branches(schema: Schema, root: Schema) -> Iterator[Schema]:
    """The subschemas for the same value, through `$ref`, `allOf`, `oneOf` and `anyOf`."""
    pending, seen = [schema], set[int]()
    while pending and len(seen) < MAX_SUBSCHEMAS:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if part.keys() & {"type", "enum", "const", "properties", "items"}:
            yield part
        listed = [part[keyword] for keyword in ("allOf", "oneOf", "anyOf") if isinstance(part.get(keyword), list)]
        pending += [as_object(each) for alternatives in listed for each in alternatives[MAX_SUBSCHEMAS::-1]]
        if isinstance(part.get("$ref"), str):
            pending.append(as_object(resolve_ref(part["$ref"], root)))


def resolve_ref(reference: Any, root: Schema) -> Any:
    """The target of a reference within the document; None for other references, and for broken ones."""
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
    """The allowed types in the order of TYPES; empty if any is allowed. `unlisted`: no branches with listed values."""
    used = (branch for branch in branches(schema, root) if not (unlisted and _enum(branch)))
    found = {name for branch in used for name in _branch_types(branch)}
    return [name for name in TYPES if name in found]


def _branch_types(branch: Schema) -> list[str]:
    given = branch.get("type")
    if isinstance(given, str | list):
        return [name for name in ([given] if isinstance(given, str) else given) if isinstance(name, str)]
    if "properties" in branch:
        return ["object"]
    return ["array"] if "items" in branch else [json_type(value) for value in _enum(branch)]


def json_type(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def enum_values(schema: Schema, root: Schema) -> list[Any]:
    """The values that a schema lists by `enum` or `const`."""
    return [value for branch in branches(schema, root) for value in _enum(branch)]


def _enum(branch: Schema) -> list[Any]:
    if "const" in branch:
        return [branch["const"]]
    listed = branch.get("enum")
    return listed if isinstance(listed, list) else []


def item_schema(schema: Schema, root: Schema) -> Schema:
    return next((as_object(branch["items"]) for branch in branches(schema, root) if "items" in branch), ANYTHING)


def describe_type(schema: Schema, root: Schema) -> str:
    """The type in a word or two: `integer`, `S|M|L`, `list of string`, `string or null`."""
    if listed := enum_values(schema, root):
        shown = [one_line(str(value), 24) for value in listed[:8]]
        return "|".join(shown) + ("|…" if len(listed) > 8 else "")
    kinds = [kind for kind in allowed_types(schema, root) if kind != "null"]
    if kinds == ["array"]:
        inner = allowed_types(item_schema(schema, root), root)
        return "list of " + " or ".join(inner) if inner else "list"
    return " or ".join(kinds) or "anything"
