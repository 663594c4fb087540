"""Front matter of SKILL.md: a strict reader of the part of YAML 1.2 that people write there.

Hosts read the same text with a YAML library of theirs and compare. So everything of YAML that libraries read
differently, or that makes a small text large, is refused with its line and the fix; a plain scalar that YAML 1.1 reads
as another value is read as YAML 1.2 says, and reported as ambiguous.
"""

import math
import re
from typing import Any, NamedTuple, NoReturn

MAX_CHARACTERS = 65_536
MAX_DEPTH = 16  # of mappings and lists in each other
MAX_INTEGER = 2**53 - 1  # that all JSON readers keep exactly
MAX_KEY = 1_024  # characters

_FRONT_MATTER = re.compile(r"---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_SECOND_DOCUMENT = re.compile(r"^(?:---|\.\.\.)(?= |$)", re.MULTILINE)
_UNPRINTABLE = re.compile("[^\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
# Parts of a line. Only spaces and newlines are white space by now.
_END_OF_LINE = re.compile(r" *(?:(?<= )#[^\n]*)?(?=\n|\Z)")
_EMPTY_LINES = re.compile(r"(?:\n *(?:#[^\n]*)?(?=\n|\Z))*+")
_FLOW_SPACE = re.compile(r"(?:[ \n]|(?<=[ \n])#[^\n]*)*+")
_BREAK = re.compile(r"\n[ \n]*")
_LINE = re.compile(r"[^\n]*")
_SPACES = re.compile(r" *")
_DASH = re.compile(r"-(?=[ \n]|\Z)")
_PART = r"(?:[^\n:#%s]|:(?=[^ \n%s])|(?<=[^ ])#)*+"  # of a plain scalar; no comment, and no `: `
_PLAIN = r"(?:[^ \n,\[\]{}#&*!|>'\"%%@`?:-]|-(?=[^ \n%s]))" + _PART
_IN_BLOCK, _IN_FLOW = (re.compile(_PLAIN % (3 * (ends,))) for ends in ("", r",\[\]{}?"))
_CONTINUED = re.compile(_PART % ("", ""))
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_SINGLE = re.compile(r"'((?:[^']|'')*+)'")
_COLON, _JSON_COLON = re.compile(r" *:(?=[ \n]|\Z)"), re.compile(r" *:")
_FOLDS = r" +(?:\n[ \n]*)?|\n[ \n]*"
_IN_SINGLE = re.compile(rf"''|{_FOLDS}")
_IN_DOUBLE = re.compile(rf"\\(?:x[0-9A-Fa-f]{{2}}|u[0-9A-Fa-f]{{4}}|U[0-9A-Fa-f]{{8}}|\n[ \n]*|.)|{_FOLDS}")
_ESCAPES = dict(zip('0abtnvfre "/\\N_LP', '\0\a\b\t\n\v\f\r\x1b "/\\\x85\xa0\u2028\u2029', strict=True))
_BLOCK_SCALAR = re.compile(r"([|>])(-?)")
# Plain scalars: their values in YAML 1.2, and those that YAML 1.1 reads otherwise.
_CONSTANTS = {"~": None, "null": None, "Null": None, "NULL": None, "true": True, "True": True, "TRUE": True}
_CONSTANTS |= {"false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_DECIMAL = re.compile(r"0o[0-7]+|0x[0-9A-Fa-f]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_AMBIGUOUS = re.compile(
    r"""y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF|=
    |[-+]?0[0-9_]+|[-+]?0b[01_]+|[-+]0[xo][0-9A-Fa-f_]+|0x[0-9A-Fa-f_]+
    |[-+]?\.?[0-9][0-9_]*_[0-9_.eE+-]*|[-+]?[0-9]+\.[0-9_]*_[0-9_eE+-]*  # 1_000
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
    return _Reader("\n" + found[1].replace("\r\n", "\n")).read()


class _Reader:
    """A reader of one text, by the position `at`. Blocks end before the newline that follows them."""

    def __init__(self, text: str) -> None:
        self.text = text  # with a newline before each line
        self.at = 0
        self.ambiguous: list[str] = []

    def read(self) -> FrontMatter:
        for pattern, problem in (
            (_UNPRINTABLE, "a tab or another invisible character; use spaces, or write it as \\t in double quotes"),
            (_SECOND_DOCUMENT, "only one document is possible; remove the ---"),
        ):
            if found := pattern.search(self.text):
                self.fail(problem, found.start())
        if (column := self.peek()) < 0:
            self.fail("it is empty; write name: and description:")
        self.at += column + 1
        fields = self.node(-1, 0)
        if self.peek() >= 0:
            self.fail("the line is indented differently from those that it could belong to", self.at + 1)
        if not isinstance(fields, dict):
            self.fail("it must consist of lines like key: value")
        return FrontMatter(fields, self.ambiguous)

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        raise FrontMatterError(f"{self.line(self.at if at is None else at)}: {problem}")

    def line(self, at: int) -> str:
        return f"line {self.text.count(chr(10), 0, at) + 1}"

    def peek(self) -> int:
        """Skip empty lines and comments; the column in which the next line begins, -1 at the end."""
        skipped = _EMPTY_LINES.match(self.text, self.at)
        assert skipped is not None
        self.at = skipped.end()
        rest = _BREAK.match(self.text, self.at)
        return -1 if rest is None else rest.end() - self.at - 1

    def end_line(self) -> bool:
        """Skip spaces, and a comment; whether this is the end of the line."""
        end = _END_OF_LINE.match(self.text, self.at)
        skipped = end or _SPACES.match(self.text, self.at)
        assert skipped is not None
        self.at = skipped.end()
        return end is not None

    def require_end(self) -> None:
        if not self.end_line():
            self.fail("the value is followed by something else; put the whole of it in quotes")

    # ── blocks ──

    def node(self, parent: int, depth: int) -> Any:
        """What begins here, inside of a mapping or list in the column `parent`."""
        if depth > MAX_DEPTH:
            self.fail(f"more than {MAX_DEPTH} levels of mappings and lists")
        column = self.at - self.text.rfind("\n", 0, self.at) - 1
        if _DASH.match(self.text, self.at):
            return self.sequence(column, depth)
        if (key := self.key({})) is not None:
            return self.mapping(column, key, depth)
        return self.scalar(parent, depth)

    def mapping(self, column: int, key: str | None, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while True:
            if key is None:
                self.fail(
                    "write it as key: value, with a space after the colon; a longer text is indented or in quotes"
                )
            found[key] = self.below(column, depth) if self.end_line() else self.scalar(column, depth + 1)
            if self.peek() != column:
                return found
            self.at += column + 1
            key = self.key(found)

    def below(self, column: int, depth: int) -> Any:
        """The value of a key at the end of its line: a list may begin in the column of the key."""
        inner = self.peek()
        is_list = inner == column and _DASH.match(self.text, self.at + column + 1)
        if inner <= column and not is_list:
            return None
        self.at += inner + 1
        return self.sequence(column, depth + 1) if is_list else self.node(column, depth + 1)

    def sequence(self, column: int, depth: int) -> list[Any]:
        found: list[Any] = []
        while True:
            self.at += 1
            if not self.end_line():
                found.append(self.node(column, depth + 1))
            elif (inner := self.peek()) > column:
                self.at += inner + 1
                found.append(self.node(column, depth + 1))
            else:
                found.append(None)
            if self.peek() != column or not _DASH.match(self.text, self.at + column + 1):
                return found
            self.at += column + 1

    def key(self, known: dict[str, Any], *, in_flow: bool = False) -> str | None:
        """The key that begins here, with its colon; None if it is no key."""
        start, first = self.at, self.text[self.at]
        is_quoted = first in "\"'"
        pattern = _SINGLE if first == "'" else _DOUBLE if is_quoted else _IN_FLOW if in_flow else _IN_BLOCK
        found = pattern.match(self.text, start)
        colon = found and (_JSON_COLON if is_quoted and in_flow else _COLON).match(self.text, found.end())
        if found is None or colon is None or "\n" in found[0]:
            return None
        key: Any = self.quoted(-1) if is_quoted else self.resolve(found[0].rstrip(" "))
        if not isinstance(key, str) or key == "<<" or len(key) > MAX_KEY:
            self.fail(f"the key {found[0]!r:.100} is no short string; put it in quotes, or shorten it", start)
        if key in known:
            self.fail(f"there is {key!r:.100} already; remove one of them", start)
        self.at = colon.end()
        return key

    # ── scalars ──

    def scalar(self, parent: int, depth: int) -> Any:
        first = self.text[self.at]
        if first in "|>":
            return self.block_scalar(parent)
        if first not in "[{\"'":
            return self.plain(parent)
        value = self.flow(parent, depth) if first in "[{" else self.quoted(parent)
        self.require_end()
        return value

    def plain(self, parent: int) -> Any:
        found = _IN_BLOCK.match(self.text, self.at)
        if found is None:
            self.fail(f"a value can't begin with {self.text[self.at]!r} here; put it in quotes")
        text = found[0].rstrip(" ")
        start, self.at = self.at, found.end()
        while gap := _BREAK.match(self.text, self.at):
            column = gap.end() - self.text.rfind("\n", 0, gap.end()) - 1
            if column <= parent or self.text[gap.end() : gap.end() + 1] in ("", "#"):
                break
            self.at = gap.end()
            if _DASH.match(self.text, self.at):
                self.fail("a list begins on the line of a text; put the text in quotes, or the list below its key")
            more = _CONTINUED.match(self.text, self.at)
            assert more is not None
            text += _fold(gap[0]) + more[0].rstrip(" ")
            self.at = more.end()
        self.require_end()
        return self.resolve(text, start)

    def resolve(self, text: str, at: int | None = None) -> Any:
        """The value of a plain scalar."""
        if _AMBIGUOUS.fullmatch(text):
            self.ambiguous.append(f"{self.line(self.at if at is None else at)}: {text[:100]}")
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _NO_DECIMAL.fullmatch(text):
            self.fail(f"{text[:50]} is no decimal number; write it so, or put it in quotes", at)
        number: int | float | None = None
        if _INTEGER.fullmatch(text) and len(text) < 20:
            number = int(text)
        elif _FLOAT.fullmatch(text):
            number = float(text)
        if number is None:
            return text
        if not math.isfinite(number) or abs(number) > MAX_INTEGER:
            self.fail(f"{text[:50]} is a number too large for JSON; put it in quotes", at)
        return number

    def quoted(self, parent: int) -> str:
        is_single = self.text[self.at] == "'"
        found = (_SINGLE if is_single else _DOUBLE).match(self.text, self.at)
        if found is None:
            self.fail("the closing quote is missing")
        for line in found[0].split("\n")[1:]:
            if line.strip(" ") and len(line) - len(line.lstrip(" ")) <= parent:
                self.fail("a text in quotes must be indented more than its key")
        text = (_IN_SINGLE if is_single else _IN_DOUBLE).sub(self.unescape, found[1])
        self.at = found.end()
        return text

    def unescape(self, found: "re.Match[str]") -> str:
        token = found[0]
        if token == "''":
            return "'"
        if token[0] != "\\":
            return _fold(token)
        if token[1] == "\n":
            if token.count("\n") > 1:
                self.fail("an empty line follows a backslash; write \\n for a new line")
            return ""
        number = int(token[2:], 16) if len(token) > 2 else -1
        if (number < 0 and token[1] not in _ESCAPES) or 0xD800 <= number < 0xE000 or number > 0x10FFFF:
            self.fail(f"there is no escape {token}; a backslash is written as \\\\, or in single quotes")
        return _ESCAPES[token[1]] if number < 0 else chr(number)

    def block_scalar(self, parent: int) -> str:
        """A text after `|`, or folded after `>`."""
        header = _BLOCK_SCALAR.match(self.text, self.at)
        assert header is not None
        self.at = header.end()
        if not self.end_line():
            self.fail(f"a text after {header[1]} or {header[1]}- begins on the next line; a digit or + is not possible")
        lines: list[str] = []
        indent = 0
        while self.at < len(self.text):
            rest = _LINE.match(self.text, self.at + 1)
            line = "" if rest is None else rest[0]
            column = len(line) - len(line.lstrip(" "))
            if column < len(line):
                if column <= parent or column < indent:
                    break
                indent = indent or column
            lines.append(line)
            self.at += len(line) + 1
        if any(not line.strip(" ") and len(line) > indent for line in lines):
            self.fail("a line above has nothing but spaces, more than its text is indented; remove them")
        body = [line[indent:] for line in lines]
        while body and not body[-1]:
            body.pop()
        text = "\n".join(body) if header[1] == "|" else _fold_lines(body)
        return text + "\n" if body and not header[2] else text

    # ── lists and mappings in brackets ──

    def flow(self, parent: int, depth: int) -> Any:
        if depth > MAX_DEPTH:
            self.fail(f"more than {MAX_DEPTH} levels of mappings and lists")
        closing = {"[": "]", "{": "}"}[self.text[self.at]]
        items: list[Any] = []
        found: dict[str, Any] = {}
        while True:
            self.at += 1
            if self.flow_character(parent) == closing:
                break
            if closing == "]":
                items.append(self.flow_node(parent, depth))
            elif (key := self.key(found, in_flow=True)) is None:
                self.fail("in braces each value has a key: {key: value}")
            else:
                self.flow_character(parent)
                found[key] = self.flow_node(parent, depth)
            if (separator := self.flow_character(parent)) == closing:
                break
            if separator != ",":
                self.fail(f"a comma or {closing} is missing; put texts with , : [ ] {{ or }} in quotes")
        self.at += 1
        return items if closing == "]" else found

    def flow_character(self, parent: int) -> str:
        """The next character behind spaces, lines and comments."""
        space = _FLOW_SPACE.match(self.text, self.at)
        assert space is not None
        self.at = space.end()
        if "\n" in space[0] and self.at - self.text.rfind("\n", 0, self.at) - 1 <= parent:
            self.fail("what is in brackets must be indented more than its key")
        if self.at == len(self.text):
            self.fail("a closing bracket is missing")
        return self.text[self.at]

    def flow_node(self, parent: int, depth: int) -> Any:
        if self.text[self.at] in "[{":
            return self.flow(parent, depth + 1)
        if self.text[self.at] in "\"'":
            return self.quoted(parent)
        found = _IN_FLOW.match(self.text, self.at)
        if found is None:
            self.fail("a value is missing in brackets, or must be in quotes")
        self.at = found.end()
        return self.resolve(found[0].rstrip(" "))


def _fold(space: str) -> str:
    """Space in a text with several lines: one newline stands for a space, more for one less."""
    breaks = space.count("\n")
    return space if breaks == 0 else " " if breaks == 1 else "\n" * (breaks - 1)


def _fold_lines(lines: list[str]) -> str:
    parts: list[str] = []
    breaks = 0
    was_deeper = True  # as if such a line came first: empty lines at the beginning are all kept
    for line in lines:
        if not line:
            breaks += 1
            continue
        is_deeper = line[0] == " "
        if parts:
            parts.append("\n" * (breaks + 1) if is_deeper or was_deeper else "\n" * breaks or " ")
        else:
            parts.append("\n" * breaks)
        parts.append(line)
        breaks, was_deeper = 0, is_deeper
    return "".join(parts)
