"""Front matter of SKILL.md: a strict reader of the part of YAML 1.2 that people write there.

Hosts read the same text with a YAML library of theirs and compare. So everything of YAML that libraries read
differently, or that makes a small text large, is refused with its line and the fix; a plain scalar that YAML 1.1 reads
as another value is read as YAML 1.2 says, and reported as ambiguous.
"""

import json
import re
from typing import Any, NamedTuple, NoReturn

MAX_CHARACTERS = 65_536
MAX_DEPTH = 16  # of mappings and lists in each other
TOO_DEEP = f"more than {MAX_DEPTH} levels of mappings and lists"
MAX_INTEGER = 2**53 - 1  # that all JSON readers keep exactly
MAX_KEY = 1_024  # characters

_FRONT_MATTER = re.compile(r"---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_SECOND_DOCUMENT = re.compile(r"(?:---|\.\.\.)(?: |\Z)")
_UNPRINTABLE = re.compile("[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
# Parts of a line. Only spaces are white space by now.
_BLANK = re.compile(r" *(?:#.*)?\Z")
_END = re.compile(r" *(?:(?<= )#.*)?\Z")
_SPACES = re.compile(r" *")
_DASH = re.compile(r"-(?= |\Z)")
_DOUBLE = r'"(?:[^"\\]|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))*+"'  # the escapes of JSON
_SINGLE = r"'(?:[^']|'')*+'"
_PART = r"(?:[^:#%s]|:(?=[^ %s])|(?<=[^ ])#)*+"  # of a plain scalar; no comment, and no `: `
_PLAIN = r"(?:[^ ,\[\]{}#&*!|>'\"%%@`?:-]|-(?=[^ %s]))" + _PART
_IN_BLOCK, _IN_FLOW = (_PLAIN % (3 * (ends,)) for ends in ("", r",\[\]{}?"))
_BLOCK_SCALAR, _FLOW_SCALAR = (re.compile(f"{_DOUBLE}|{_SINGLE}|{plain}") for plain in (_IN_BLOCK, _IN_FLOW))
_BLOCK_KEY = re.compile(rf"({_DOUBLE}|{_SINGLE}|{_IN_BLOCK}) *:(?= |\Z)")
_FLOW_KEY = re.compile(rf" *(?:({_DOUBLE}|{_SINGLE}) *:|({_IN_FLOW}) *:(?= ))")
_TEXT_BELOW = re.compile(r"([|>])(-?)(?: +(?:#.*)?)?\Z")
_FOLDED = re.compile(r"^([^ \n].*)\n(\n*)(?=[^ \n])", re.MULTILINE)
# Plain scalars: their values in YAML 1.2, and those that YAML 1.1 reads otherwise.
_CONSTANTS = {"~": None, "null": None, "Null": None, "NULL": None, "true": True, "True": True, "TRUE": True}
_CONSTANTS |= {"false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_DECIMAL = re.compile(r"0o[0-7]+|0x[0-9A-Fa-f]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_AMBIGUOUS = re.compile(
    r"""y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF|=
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
            if _UNPRINTABLE.search(line):
                self.fail("a tab or another invisible character; use spaces, or write it as \\t in double quotes")
            if _SECOND_DOCUMENT.match(line):
                self.fail("only one document is possible; remove the ---")
        self.at = 0
        if (column := self.column()) < 0:
            self.fail("it is empty; write name: and description:")
        fields = self.mapping(column, 0)
        if self.column() >= 0:
            self.fail("the line is indented differently from those that it could belong to")
        return FrontMatter(fields, self.ambiguous)

    def fail(self, problem: str) -> NoReturn:
        raise FrontMatterError(f"line {self.at + 2}: {problem}")

    def column(self) -> int:
        """Skip empty lines and comments; the column in which the next line begins, -1 at the end."""
        while self.at < len(self.lines) and _BLANK.match(self.lines[self.at]):
            self.at += 1
        return _indent(self.lines[self.at]) if self.at < len(self.lines) else -1

    # ── blocks ──

    def block(self, column: int, depth: int) -> Any:
        if depth > MAX_DEPTH:
            self.fail(TOO_DEEP)
        is_list = _DASH.match(self.lines[self.at], column)
        return self.sequence(column, depth) if is_list else self.mapping(column, depth)

    def mapping(self, column: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.column() == column:
            line = self.lines[self.at]
            key = _BLOCK_KEY.match(line, column)
            if key is None:
                self.fail("write key: value, with a space after the colon; indent a longer text, or put it in quotes")
            name = self.key(key[1], found)
            found[name] = self.value(line[key.end() :], column, depth, list_from=column)
        return found

    def sequence(self, column: int, depth: int) -> list[Any]:
        found: list[Any] = []
        while self.column() == column and _DASH.match(self.lines[self.at], column):
            line = self.lines[self.at]
            rest = line[column + 1 :].lstrip(" ")
            if _DASH.match(rest) or _BLOCK_KEY.match(rest):  # a block that begins behind the dash
                self.lines[self.at] = f"{line[:column]} {line[column + 1 :]}"
                found.append(self.block(self.column(), depth + 1))
            else:
                found.append(self.value(rest, column, depth, list_from=column + 1))
        return found

    def key(self, token: str, known: dict[str, Any]) -> str:
        name = self.scalar(token.rstrip(" "))
        if not isinstance(name, str) or name == "<<" or len(name) > MAX_KEY:
            self.fail(f"the key {token!r:.100} is no short string; put it in quotes, or shorten it")
        if name in known:
            self.fail(f"there is {name!r:.100} already; remove one of them")
        return name

    def value(self, text: str, parent: int, depth: int, *, list_from: int) -> Any:
        """What follows a key or dash in the column `parent`; a list below begins in `list_from` or later."""
        if _BLANK.match(text):
            self.at += 1
            column = self.column()
            is_list = column >= list_from and _DASH.match(self.lines[self.at], column)
            if column <= parent and not is_list:
                return None
            if is_list or _BLOCK_KEY.match(self.lines[self.at], column):
                return self.block(column, depth + 1)
            text = self.lines[self.at]
        text = text.lstrip(" ")
        return self.text_below(text, parent) if text[0] in "|>" else self.inline(text, parent, depth + 1)

    def text_below(self, text: str, parent: int) -> str:
        """A text after `|`, or folded after `>`."""
        header = _TEXT_BELOW.match(text)
        if header is None:
            self.fail(f"a text after {text[0]} or {text[0]}- begins on the next line; a digit or + is not possible")
        self.at += 1
        begin, indent = self.at, 0
        while self.at < len(self.lines):
            line = self.lines[self.at]
            column = _indent(line)
            if column < len(line):
                if column <= parent or column < indent:
                    break
                indent = indent or column
            self.at += 1
        lines = self.lines[begin : self.at]
        if any(not line.strip(" ") and len(line) > indent for line in lines):
            self.fail("a line above has nothing but spaces, more than its text is indented; remove them")
        body = "\n".join(line[indent:] for line in lines).rstrip("\n")
        if header[1] == ">":
            body = _FOLDED.sub(lambda found: found[1] + (found[2] or " "), body)
        return f"{body}\n" if body and not header[2] else body

    # ── values on a line, which may go on below ──

    def inline(self, text: str, parent: int, depth: int) -> Any:
        parts, after = [text.rstrip(" ")], self.at + 1
        while after < len(self.lines) and not _BLANK.match(line := self.lines[after]) and _indent(line) > parent:
            parts.append(line.strip(" "))
            if _DASH.match(parts[-1]):
                self.fail("a list begins below the line of a text; put the text in quotes, or the list below its key")
            after += 1
        text = " ".join(parts)
        value, at = self.node(text, 0, depth, _BLOCK_SCALAR)
        end = _END.match(text, at)
        if end is None or ("#" in end[0] and len(parts) > 1):
            self.fail("the value is followed by something else; put the whole of it in quotes")
        self.at = after
        return value

    def flow(self, text: str, at: int, depth: int) -> tuple[Any, int]:
        """A list or mapping in brackets."""
        if depth > MAX_DEPTH:
            self.fail(TOO_DEEP)
        items: list[Any] = []
        found: dict[str, Any] = {}
        closing, at = ("]" if text[at] == "[" else "}"), _skip(text, at + 1)
        while text[at : at + 1] != closing:
            if closing == "]":
                value, at = self.node(text, at, depth + 1, _FLOW_SCALAR)
                items.append(value)
            elif (key := _FLOW_KEY.match(text, at)) is None:
                self.fail("in braces each value has a key: {key: value}")
            else:
                name = self.key(key[1] or key[2], found)
                found[name], at = self.node(text, _skip(text, key.end()), depth + 1, _FLOW_SCALAR)
            at = _skip(text, at)
            if text[at : at + 1] not in (",", closing):
                self.fail(f"a comma or {closing} is missing; put texts with , : [ ] {{ or }} in quotes")
            at = _skip(text, at + 1) if text[at] == "," else at
        return items if closing == "]" else found, at + 1

    def node(self, text: str, at: int, depth: int, scalar: "re.Pattern[str]") -> tuple[Any, int]:
        """The value that begins at `at`, and where it ends."""
        first = text[at : at + 1]
        if first in ("[", "{"):
            return self.flow(text, at, depth)
        found = scalar.match(text, at)
        if found is None:
            quoted = "its closing quote is missing, or it has an escape that JSON has not"
            self.fail(quoted if first in ("'", '"') else f"a value can't begin with {first!r} here; put it in quotes")
        return self.scalar(found[0].rstrip(" ")), found.end()

    def scalar(self, token: str) -> Any:
        if token[0] == '"':
            return json.loads(token)
        return token[1:-1].replace("''", "'") if token[0] == "'" else self.resolve(token)

    def resolve(self, text: str) -> Any:
        """The value of a plain scalar."""
        if _AMBIGUOUS.fullmatch(text):
            self.ambiguous.append(f"line {self.at + 2}: {text[:100]}")
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _NO_DECIMAL.fullmatch(text):
            self.fail(f"{text[:50]} is no decimal number; write it so, or put it in quotes")
        if not _NUMBER.fullmatch(text):
            return text
        number = float(text)
        if abs(number) > MAX_INTEGER:
            self.fail(f"{text[:50]} is a number too large for JSON; put it in quotes")
        return int(number) if _INTEGER.fullmatch(text) else number


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _skip(text: str, at: int) -> int:
    """Where the text goes on behind spaces."""
    found = _SPACES.match(text, at)
    return at if found is None else found.end()
