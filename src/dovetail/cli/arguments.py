"""`key=value` words and a schema come in; JSON values of the types that the schema asks for go out.

a=2             by the schema: 2, "2" or [2]
a=1 a=2         a list
a.b=1           {"a": {"b": 1}}
a:='{"b": 1}'   JSON, as it is
a=@notes.txt    the text of a file; of stdin with @-
"""

import difflib
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from dovetail.cli.exits import WRONG_USE, Ending
from dovetail.cli.schemas import (
    ANYTHING,
    MAX_DESCRIBED,
    Schema,
    choices,
    described,
    inside,
    is_open,
    items,
    properties,
    required,
    types,
)
from dovetail.cli.terminal import aligned, in_line

MAX_FILE_BYTES = 64 * 1024 * 1024
STDIN = "-"
STDIN_IS_READ = "dovetail.stdin"  # in the context of the command
OPEN_ALREADY = (
    "/dev/fd/",
    "/dev/stdin",
)  # what a shell writes for <(command): no file, but nobody has to be waited for
_HALF_OF_A_SIGN = re.compile(r"\\u[dD][89a-fA-F]")  # which JSON may write, and no text can hold
SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class Misread(Exception):
    """The text is not what the schema asks for; the message says what is."""


class OutOfRange(Misread):
    """A number, but none that can be sent."""


class Argument(NamedTuple):
    """One word of the command line."""

    key: str
    text: str
    is_json: bool = False

    @classmethod
    def of(cls, word: str) -> "Argument":
        if word.lstrip().startswith("{"):
            raise Ending(f"{in_line(word, 60)}: --args takes all arguments as JSON", WRONG_USE)
        key, sign, text = word.partition("=")
        is_json = key.endswith(":")
        key = key.removesuffix(":")
        if not sign or not key:
            raise Ending(f"{word}: write arguments as KEY=VALUE, or KEY:=JSON", WRONG_USE)
        if text.startswith("@") and not is_json:
            text = text_of_file(text[1:], _advice(key, text))
        return cls(key, text, is_json)


def _advice(key: str, text: str) -> str:
    written = shlex.quote(f"{key}:={json.dumps(in_line(text, 100), ensure_ascii=False)}")
    return f"If no file is meant, but a text that begins with @, write {written}"


# ── text that comes from elsewhere ──


def text_of_file(name: str, advice: str | None = None) -> str:
    """Of stdin for `-`. The advice is for those who meant no file."""
    if name == STDIN:
        return _text_of_stdin()
    path, shown = Path(name), f"@{name}"
    try:
        if path.exists() and not path.is_file() and not name.startswith(OPEN_ALREADY):
            raise Ending(f"{shown}: it is no file", WRONG_USE, advice)
        with path.open("rb") as file:
            return _text(file, shown)
    except OSError as failure:
        raise Ending(f"{shown}: {failure.strerror}", WRONG_USE, advice) from None


def _text_of_stdin() -> str:
    context = click.get_current_context(silent=True)
    if context is not None:
        if STDIN_IS_READ in context.meta:
            raise Ending("stdin can be read only once: give the rest as a file, or as text", WRONG_USE)
        context.meta[STDIN_IS_READ] = True
    return _text(sys.stdin.buffer, "stdin")


def _text(file: BinaryIO, shown: str) -> str:
    content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise Ending(f"{shown}: it is larger than {MAX_FILE_BYTES >> 20} MiB", WRONG_USE)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Ending(f"{shown}: it is no text in UTF-8", WRONG_USE) from None


def json_object(given: str, option: str) -> dict[str, Any]:
    """Of an option that takes JSON, `@file`, or `-` for stdin."""
    is_elsewhere = given == STDIN or given.startswith("@")
    try:
        value = _json(text_of_file(given.removeprefix("@")) if is_elsewhere else given)
    except Misread as misread:
        raise Ending(f"{option}: {misread}", WRONG_USE) from None
    if not isinstance(value, dict):
        raise Ending(f"{option}: a JSON object is needed, as in '{{\"a\": 1}}'", WRONG_USE)
    return value


# ── all of them ──


class GivenArguments(NamedTuple):
    """All that was given, with the texts of files and stdin.

    It is read before a loop runs: while one waits for stdin, no signal would get through.
    """

    arguments: Sequence[Argument] = ()
    whole: dict[str, Any] | None = None

    @classmethod
    def read(cls, words: Iterable[str], whole: str | None = None, option: str = "--args") -> "GivenArguments":
        arguments = [Argument.of(word) for word in words]
        return cls(arguments, None if whole is None else json_object(whole, option))

    def typed(self, schema: Schema, tool: str) -> dict[str, Any]:
        """What the tool is called with. What comes with --args is taken as it is; the words are checked."""
        typed = typed_arguments(self.arguments, schema, tool)
        if self.whole is None and (missing := [name for name in required(schema) if name not in typed]):
            raise _refused(f"{tool} needs {', '.join(map(in_line, missing))}", schema)
        return (self.whole or {}) | typed

    def texts(self, allowed: Mapping[str, bool] | None = None, owner: str = "") -> dict[str, str]:
        """Of a prompt or a template: all are text. `allowed` says which there are, and whether they are needed."""
        found = {argument.key: argument.text for argument in self.arguments}
        if allowed is None:
            return found
        wrong = [f"takes no {name}" for name in found if name not in allowed]
        wrong += [f"needs {in_line(name)}" for name, needed in allowed.items() if needed and name not in found]
        if wrong:
            needed = [name for name, is_needed in allowed.items() if is_needed]
            schema: Schema = {"properties": {name: {"type": "string"} for name in allowed}, "required": needed}
            raise _refused(f"{owner} {wrong[0]}", schema)
        return found


def typed_arguments(arguments: Sequence[Argument], schema: Schema, tool: str) -> dict[str, Any]:
    grouped: dict[tuple[str, ...], list[Argument]] = {}
    for argument in arguments:
        grouped.setdefault(_path(argument.key, schema), []).append(argument)
    typed: dict[str, Any] = {}
    for path, same in grouped.items():
        place = _schema_at(path, schema, tool)
        try:
            _put(typed, path, _value(same, place, schema))
        except Misread as misread:
            raise _refused(f"{in_line(same[0].key)}: {misread}", schema) from None
    return typed


def _path(key: str, schema: Schema) -> tuple[str, ...]:
    """A dot leads into an object, unless it is a part of a name."""
    return (key,) if key in properties(schema) else tuple(key.split("."))


def _schema_at(path: Sequence[str], schema: Schema, tool: str) -> Schema:
    here, known = schema, properties(schema)
    for depth, name in enumerate(path):
        if name not in known:
            if is_open(here) or (depth and not known):
                return ANYTHING
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"; did you mean {in_line(near[0], 60)}?" if near else ""
            raise _refused(f"{tool} takes no {in_line('.'.join(path))}{advice}", schema)
        here, known = known[name], inside(known[name], schema)
    return here


def _put(into: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *above, last = path
    for name in above:
        into = into.setdefault(name, {})
        if not isinstance(into, dict):
            raise Misread("it is given twice, as a value and as an object")
    if last in into:
        raise Misread("it is given twice, as a value and as an object")
    into[last] = value


def _value(same: Sequence[Argument], schema: Schema, root: Schema) -> Any:
    if len(same) == 1:
        return _one(same[0], schema, root)
    allowed = types(schema, root)
    if allowed and "array" not in allowed:
        raise Misread(f"it is given {len(same)} times, but takes {described(schema, root)}")
    inner = items(schema, root)
    return [_one(argument, inner, root) for argument in same]


def _one(argument: Argument, schema: Schema, root: Schema) -> Any:
    return _json(argument.text) if argument.is_json else typed_value(argument.text, schema, root)


def _refused(problem: str, schema: Schema) -> Ending:
    takes = parameter_lines(schema)
    return Ending(problem, WRONG_USE, "It takes:\n" + "\n".join(takes) if takes else "It takes no arguments.")


def parameter_lines(schema: Schema) -> list[str]:
    """What a tool takes, a line for each."""
    needed = required(schema)
    rows = [
        (in_line(name), described(part, schema), "required" if name in needed else _default(part), _words(part))
        for name, part in [*properties(schema).items()][:MAX_DESCRIBED]
    ]
    return [f"  {line}" for line in aligned(rows)] + ["  …"] * (len(properties(schema)) > MAX_DESCRIBED)


def _default(part: Schema) -> str:
    return f"default {in_line(json.dumps(part['default'], ensure_ascii=False), 30)}" if "default" in part else ""


def _words(part: Schema) -> str:
    return in_line(part["description"], 100) if isinstance(part.get("description"), str) else ""


# ── one value ──


def typed_value(text: str, schema: Schema, root: Schema) -> Any:
    """The value that is meant by a text. Raises Misread."""
    named = choices(schema, root)
    for choice in named:
        if text == (choice if isinstance(choice, str) else json.dumps(choice)):
            return choice
    allowed = types(schema, root, unlisted=True)
    if not allowed and not named:
        return _guessed(text)
    for kind in allowed:
        try:
            return _READERS[kind](text, schema, root)
        except OutOfRange:
            if "string" not in allowed:
                raise
        except (Misread, KeyError, ValueError, RecursionError):
            continue
    raise Misread(f"expected {described(schema, root)}, got {in_line(text, 60)!r}")


def _guessed(text: str) -> Any:
    """Where anything goes, JSON is JSON and all else is text."""
    try:
        return _json(text)
    except OutOfRange:
        raise
    except Misread:
        return text


def _json(text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
        if _HALF_OF_A_SIGN.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Misread("there is half of a sign in it, a surrogate without the other one") from None
    except (ValueError, RecursionError) as failure:
        raise Misread(f"this is not JSON: {failure}") from None
    return value


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise OutOfRange(f"{in_line(text, 60)} is too large for a number")
    return value


def _null(text: str, _schema: Schema, _root: Schema) -> None:
    if text != "null":
        raise Misread


def _boolean(text: str, _schema: Schema, _root: Schema) -> bool:
    return SWITCHES[text.lower()]


def _integer(text: str, _schema: Schema, _root: Schema) -> int:
    value = _json(text)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Misread
    return value


def _number(text: str, _schema: Schema, _root: Schema) -> float:
    value = _json(text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misread
    return value


def _array(text: str, schema: Schema, root: Schema) -> list[Any]:
    if text.lstrip().startswith("["):
        value = _json(text)
        assert isinstance(value, list)
        return value
    if "string" in types(schema, root):
        raise Misread  # it may be either, so a single word is a string
    return [typed_value(text, items(schema, root), root)]


def _object(text: str, _schema: Schema, _root: Schema) -> dict[str, Any]:
    value = _json(text)
    if not isinstance(value, dict):
        raise Misread
    return value


def _string(text: str, _schema: Schema, _root: Schema) -> str:
    return text


_READERS: Mapping[str, Callable[[str, Schema, Schema], Any]] = {
    "null": _null,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "array": _array,
    "object": _object,
    "string": _string,
}
