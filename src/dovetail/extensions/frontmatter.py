"""Front matter of SKILL.md: a strict reader of the part of YAML 1.2 that people write there.

Hosts read the same text with a YAML library of theirs and compare. So everything of YAML that libraries read
differently, or that makes a small text large, is refused with its line and the fix; a plain scalar that YAML 1.1 reads
as another value is read as YAML 1.2 says, and reported as ambiguous.
"""

import json
import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, NamedTuple, NoReturn

MAX_CHARACTERS = 65_536
MAX_COLUMN = 40  # in which a block begins, so that blocks in each other are few
MAX_BRACKETS = 100  # that one value opens
MAX_INTEGER = 2**53 - 1  # that all JSON readers keep exactly

_FRONT_MATTER = re.compile(r"\ufeff?---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_UNPRINTABLE = "[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
_REFUSED = {
    re.compile(_UNPRINTABLE): "a tab or another invisible character; use spaces, or write it as \\t in double quotes",
    re.compile(r"\A(?:---|\.\.\.)(?: |\Z)"): "only one document is possible; remove the ---",
}
# Parts of a line. Only spaces are white space by now.
_BLANK = re.compile(r" *(?:#.*)?\Z")
_DASH = re.compile(r"-(?= |\Z)")
_QUOTED = (
    r'"(?:[^"\\]|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))*+"'  # with the escapes of JSON
    r"|'(?:[^']|'')*+'"
)
_PART = r"(?:[^:#%s]|:(?=[^ %s])|(?<=[^ ])#)*+"  # of a plain scalar; no comment, and no `: `
_PLAIN = r"(?:[^ ,\[\]{}#&*!|>'\"%%@`?:-]|-(?=[^ %s]))" + _PART
_IN_BLOCK, _IN_FLOW = (f"{_QUOTED}|{_PLAIN % (3 * (ends,))}" for ends in ("", r",\[\]{}?"))
_SCALAR = re.compile(_IN_BLOCK)
_KEY = re.compile(rf"({_IN_BLOCK}) *:(?= |\Z)")
_END = re.compile(r" *(?:(?<= )#.*)?\Z")
_LEFT_OUT = r"(?<=[^\[{, ]), *(?=[\]}])|(?<=[\]}]) +#[^\]}]*\Z"  # the last comma, and a comment behind the brackets
_TOKEN = re.compile(rf"(?P<scalar>{_IN_FLOW})|(?P<left_out>{_LEFT_OUT})|(?P<mark>[ ,:\[\]{{}}])|.", re.DOTALL)
_TEXT_BELOW = re.compile(r"[|>]-?(?: +(?:#.*)?)?\Z")
_FOLDED = re.compile(r"^([^ \n].*)\n(\n*)(?=[^ \n])", re.MULTILINE)
# Plain scalars: their values in YAML 1.2, and those that YAML 1.1 reads otherwise.
_CONSTANTS = {"~": None, "null": None, "Null": None, "NULL": None, "true": True, "True": True, "TRUE": True}
_CONSTANTS |= {"false": False, "False": False, "FALSE": False}
_NO_DECIMAL = r"0o[0-7]+|0x[0-9A-Fa-f]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_NUMBER = re.compile(rf"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|(?P<other>{_NO_DECIMAL})")
_AMBIGUOUS = re.compile(
    r"""y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF|=|<<
    |[-+]?0[0-9_]+|[-+]?0b[01_]+|[-+]0[xo][0-9A-Fa-f_]+|0x[0-9A-Fa-f_]+
    |[-+]?\.?[0-9]+_[0-9_.eE+-]*|[-+]?[0-9]+\.[0-9]*_[0-9_eE+-]*  # 1_000
    |[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?  # 12:30, to base 60
    |[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+|[-+]\.[0-9]+|\.[0-9_]+  # 1e3
    |[0-9]{4}-[0-9][0-9]?-[0-9][0-9]?(?:[Tt ].*)?""",
    re.VERBOSE | re.DOTALL,
)


class FrontMatterError(ValueError):
    """The front matter can't be read; the message has the line and the fix."""


class FrontMatter(NamedTuple):
    """The fields, and the plain scalars that YAML 1.1 reads otherwise, each with its line."""

    fields: dict[str, Any]
    ambiguous: list[str]


def read_front_matter(text: str) -> FrontMatter:
    """The front matter that a text begins with. Raises FrontMatterError."""
    found = _FRONT_MATTER.match(text[: MAX_CHARACTERS + 10])
    if found is None:
        limit = f"{MAX_CHARACTERS:,} characters"
        raise FrontMatterError(f"line 1: front matter begins with a line --- and ends with another, within {limit}")
    return _Reader(found[1].replace("\r\n", "\n").split("\n")).read()


class _Reader:
    """A reader of lines, from the line `at` on."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0
        self.ambiguous: list[str] = []

    def read(self) -> FrontMatter:
        for self.at, line in enumerate(self.lines):  # noqa: B020
            for pattern, problem in _REFUSED.items():
                if pattern.search(line):
                    self.fail(problem)
        self.at = 0
        fields = self.mapping(0)
        if self.column() >= 0:
            self.fail("the line is indented differently from those that it could belong to")
        if not fields:
            self.fail("it is empty; write name: and description:")
        return FrontMatter(fields, self.ambiguous)

    def fail(self, problem: str) -> NoReturn:
        raise FrontMatterError(f"line {self.at + 2}: {problem}")

    # ── blocks ──

    def column(self) -> int:
        """Skip empty lines and comments; the column in which the next line begins, -1 at the end."""
        while self.at < len(self.lines) and _BLANK.match(self.lines[self.at]):
            self.at += 1
        return _indent(self.lines[self.at]) if self.at < len(self.lines) else -1

    def mapping(self, column: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.column() == column:
            line = self.lines[self.at]
            if (key := _KEY.match(line, column)) is None:
                self.fail("write key: value, with a space after the colon; indent a longer text, or put it in quotes")
            name = self.new_key(self.scalar(key[1]), found)
            if _BLANK.match(line, key.end()):
                self.at += 1
                found[name] = self.sequence(column) or self.block(column + 1)  # the list of a key may begin below it
            else:
                found[name] = self.value(line[key.end() :].strip(" "), column)
        return found

    def sequence(self, column: int) -> list[Any]:
        found: list[Any] = []
        while self.column() == column and _DASH.match(self.lines[self.at], column):
            line = self.lines[self.at]
            self.lines[self.at] = f"{line[:column]} {line[column + 1 :]}"  # the item begins behind the dash, or below
            found.append(self.block(column + 1))
        return found

    def block(self, begin: int) -> Any:
        """What the next line begins in the column `begin` or later; None if it begins earlier."""
        if (column := self.column()) < begin:
            return None
        if column > MAX_COLUMN:
            self.fail(f"it is indented by more than {MAX_COLUMN} spaces")
        line = self.lines[self.at]
        if found := self.sequence(column):
            return found
        return self.mapping(column) if _KEY.match(line, column) else self.value(line.strip(" "), begin - 1)

    def new_key(self, name: object, known: dict[str, Any]) -> str:
        if not isinstance(name, str) or name == "<<":
            self.fail(f"the key {name!r:.100} is no string; put it in quotes, or choose another one")
        if name in known:
            self.fail(f"there is {name!r:.100} already; remove one of them")
        return name

    # ── values on a line, which may go on below ──

    def value(self, text: str, parent: int) -> Any:
        """A text, or something in brackets; lines below belong to it if they are indented more than `parent`."""
        if text[0] in "|>":
            return self.text_below(text, parent)
        inner = takewhile(lambda line: not _BLANK.match(line) and _indent(line) > parent, self.lines_below())
        parts = [text, *(line.strip(" ") for line in inner)]
        text = " ".join(parts)
        if len(parts) > 1 and " #" in text:
            self.fail("a value of several lines has a # in it; put a comment elsewhere, and a text below a |")
        value = self.brackets(text) if text[0] in "[{" else self.line(text)
        self.at += len(parts)
        return value

    def text_below(self, header: str, parent: int) -> str:
        """A text after `|`, or folded after `>`."""
        if not _TEXT_BELOW.match(header):
            self.fail(f"a text after {header[0]} or {header[0]}- begins on the next line; a digit or + is not possible")
        lines = list(takewhile(lambda line: not line.strip(" ") or _indent(line) > parent, self.lines_below()))
        indent = min((_indent(line) for line in lines if line.strip(" ")), default=0)
        body = "\n".join(line[indent:] for line in lines).rstrip("\n")
        if body.lstrip("\n").startswith(" ") or any(line[indent:] and not line.strip(" ") for line in lines):
            self.fail("a line of the text below is indented more than another one, and is its first or has only spaces")
        self.at += 1 + len(lines)
        if header[0] == ">":
            body = _FOLDED.sub(lambda found: found[1] + (found[2] or " "), body)
        return f"{body}\n" if body and header[1:2] != "-" else body

    def lines_below(self) -> Iterator[str]:
        return (self.lines[at] for at in range(self.at + 1, len(self.lines)))

    def line(self, text: str) -> Any:
        found = _SCALAR.match(text) or self.fail_at(text)
        if not _END.match(text, found.end()):
            self.fail("the value is followed by something else; put the whole of it in quotes")
        return self.scalar(found[0])

    def brackets(self, text: str) -> Any:
        """A list or mapping in brackets: with its scalars in JSON, all of it is JSON."""
        if text.count("[") + text.count("{") > MAX_BRACKETS:
            self.fail(f"there are more than {MAX_BRACKETS} brackets; write lists and mappings on lines of their own")
        try:
            return json.loads(_TOKEN.sub(self.token, text), object_pairs_hook=self.object)
        except json.JSONDecodeError:
            self.fail("a bracket, comma or key: is missing; put texts with , : [ ] { or } in quotes")

    def token(self, found: "re.Match[str]") -> str:
        if found["scalar"]:
            return json.dumps(self.scalar(found["scalar"]))
        return "" if found["left_out"] else found["mark"] or self.fail_at(found[0])

    def object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            found[self.new_key(name, found)] = value
        return found

    def fail_at(self, text: str) -> NoReturn:
        quoted = "its closing quote is missing, or it has an escape that JSON has not"
        self.fail(quoted if text[0] in "'\"" else f"a value can't begin with {text[0]!r} here; put it in quotes")

    def scalar(self, token: str) -> Any:
        token = token.rstrip(" ")
        if token[0] == '"':
            return json.loads(token)
        if token[0] == "'":
            return token[1:-1].replace("''", "'")
        if _AMBIGUOUS.fullmatch(token):
            self.ambiguous.append(f"line {self.at + 2}: {token[:100]}")
        if (found := _NUMBER.fullmatch(token)) is None:
            return _CONSTANTS.get(token, token)
        if found["other"] or abs(number := float(token)) > MAX_INTEGER:
            self.fail(f"{token[:50]} is no decimal number, or too large for JSON; put it in quotes")
        return int(number) if number.is_integer() else number


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
