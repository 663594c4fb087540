"""JSON as people write it, with comments and trailing commas: its text comes in, a tree that knows its places goes out.

Nothing is thrown away: every value knows where it stands in the text, and so do commas and comments. What is no such
document raises `NotJson`, which knows the line.
"""

import json
import re
from typing import Any, NamedTuple

MAX_DEPTH = 200

_COMMENT = re.compile(r"//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_SILENT = re.compile(rf"(?:[ \t\r\n]++|{_COMMENT.pattern})*+", re.DOTALL)  # space and comments
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_WORD = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class NotJson(ValueError):
    """The text is no JSON, not even with comments."""

    def __init__(self, text: str, place: int, wanted: str) -> None:
        self.line = text.count("\n", 0, place) + 1
        self.column = place - (text.rfind("\n", 0, place) + 1) + 1
        super().__init__(f"line {self.line}, column {self.column}: {wanted}")


class JsonValue(NamedTuple):
    """One value and its place: `text[start:end]`."""

    start: int
    end: int
    text: str  # of a scalar, as it is written
    members: "tuple[JsonMember, ...] | None" = None  # of an object
    items: "tuple[JsonValue, ...] | None" = None  # of an array

    def get(self, name: str) -> "list[JsonMember]":
        """All of that name: a document may repeat itself."""
        return [member for member in self.members or () if member.name == name]

    def same(self) -> Any:
        """What it says without where it stands, to compare by; nothing of it is lost, neither order nor repetition."""
        if self.members is not None:
            return "object", tuple((member.name, member.value.same()) for member in self.members)
        if self.items is not None:
            return "array", tuple(item.same() for item in self.items)
        return "scalar", self.text


class JsonMember(NamedTuple):
    """A name and its value in an object."""

    name: str
    start: int
    value: JsonValue
    comma: int | None  # where the comma after it stands


class Comment(NamedTuple):
    """One of `//` or of `/* */`; its end is before the line's."""

    start: int
    end: int
    text: str

    @property
    def takes_the_line(self) -> bool:
        return self.text.startswith("//")


class JsonText(NamedTuple):
    """A whole document."""

    text: str
    root: JsonValue
    comments: tuple[Comment, ...]


def parse(text: str) -> JsonText:
    """`text` is without a byte order mark."""
    reader = _Reader(text)
    reader.skip()
    root = reader.value(MAX_DEPTH)
    reader.skip()
    if reader.place < len(text):
        raise NotJson(text, reader.place, "nothing more was expected here")
    return JsonText(text, root, tuple(reader.comments))


class _Reader:
    """Goes once over the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.comments: list[Comment] = []

    def skip(self) -> None:
        """Over what says nothing to a machine."""
        found = _SILENT.match(self.text, self.place)
        assert found is not None
        if self.text.find("/", self.place, found.end()) >= 0:
            for comment in _COMMENT.finditer(self.text, self.place, found.end()):
                self.comments.append(Comment(comment.start(), comment.end(), comment[0]))
        self.place = found.end()

    def value(self, depth: int) -> JsonValue:
        if depth <= 0:
            raise NotJson(self.text, self.place, f"it is nested more than {MAX_DEPTH} deep")
        sign = self.text[self.place : self.place + 1]
        if sign == "{":
            return self._object(depth)
        if sign == "[":
            return self._array(depth)
        found = (_STRING if sign == '"' else _WORD).match(self.text, self.place)
        if found is None:
            raise self._expected("a string without its end" if sign == '"' else "a value was expected")
        self.place = found.end()
        return JsonValue(found.start(), found.end(), found[0])

    def _object(self, depth: int) -> JsonValue:
        start, members = self.place, []
        self._step()
        while not self._at("}"):
            begin = self.place
            name = _STRING.match(self.text, begin)
            if name is None:
                raise self._expected("a name in quotes, or } was expected")
            self.place = name.end()
            self.skip()
            if not self._at(":"):
                raise self._expected("a colon was expected")
            self._step()
            value = self.value(depth - 1)
            members.append(JsonMember(json.loads(name[0]), begin, value, self._comma("}")))
        self.place += 1
        return JsonValue(start, self.place, "", members=tuple(members))

    def _array(self, depth: int) -> JsonValue:
        start, items = self.place, []
        self._step()
        while not self._at("]"):
            items.append(self.value(depth - 1))
            self._comma("]")
        self.place += 1
        return JsonValue(start, self.place, "", items=tuple(items))

    def _comma(self, closing: str) -> int | None:
        self.skip()
        if self._at(closing):
            return None
        if not self._at(","):
            raise self._expected(f"a comma or {closing} was expected")
        place = self.place
        self._step()
        return place

    def _at(self, sign: str) -> bool:
        return self.text.startswith(sign, self.place)

    def _step(self) -> None:
        self.place += 1
        self.skip()

    def _expected(self, words: str) -> NotJson:
        return NotJson(self.text, self.place, words if self.place < len(self.text) else f"the text ends, but {words}")
