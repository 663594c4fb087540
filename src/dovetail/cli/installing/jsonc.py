"""JSON as people write it, with comments and trailing commas: its text comes in, a tree that knows its places goes out.

Nothing is thrown away: every value knows where it stands in the text, and so do commas and comments. What is no such
document raises `NotJson`, which knows the line. Such files can be large, and nearly all of one is nobody's business
here: a value that nobody wants to look into is read as one piece, if it is JSON as machines write it.
"""

import json
import re
from typing import Any, NamedTuple

MAX_DEPTH = 200
MAX_STOPS = 100  # how often the quick way may end at a trailing comma; each time costs a look at the whole text
_ENTRIES = 3  # levels to look into: the root, the member that is wanted, and each entry of that

_COMMENT = re.compile(r"//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_UP_TO_COMMENT = re.compile(rf'(?:[^"/]++|{_STRING.pattern}|/(?![/*]))*+')
_SPACE = re.compile(r"[ \t\r\n]*+")
_WORD = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def _no_word(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


# What it finds is not kept, only where it ends.
_QUICK = json.JSONDecoder(object_pairs_hook=len, parse_int=len, parse_float=len, parse_constant=_no_word)


class TooDeep(ValueError):
    """It may be JSON, but values stand in values further than anybody should follow."""

    def __init__(self, text: str, place: int) -> None:
        line = text.count("\n", 0, place) + 1
        super().__init__(f"it is nested too deep, more than {MAX_DEPTH} levels at line {line}")


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
    text: str  # as it is written; empty if it was looked into
    members: "tuple[JsonMember, ...] | None" = None  # of an object that was looked into
    items: "tuple[JsonValue, ...] | None" = None  # of an array that was

    def get(self, name: str) -> "list[JsonMember]":
        """All of that name: a document may repeat itself."""
        return [member for member in self.members or () if member.name == name]

    def meaning(self) -> Any:
        """As Python has it."""
        if self.members is not None:
            return {member.name: member.value.meaning() for member in self.members}
        if self.items is not None:
            return [item.meaning() for item in self.items]
        return json.loads(self.text)


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


def parse(text: str, wanted: str | None = None) -> JsonText:
    """`text` is without a byte order mark. Its root is looked into, and of the members of that the one `wanted`."""
    code, comments = (text, []) if _is_plain(text) else _apart(text)
    reader = _Reader(code, wanted)
    reader.skip()
    root = reader.value(MAX_DEPTH, _ENTRIES)
    reader.skip()
    if reader.place < len(text):
        raise NotJson(text, reader.place, "nothing more was expected here")
    return JsonText(text, root, tuple(comments))


def _is_plain(text: str) -> bool:
    """Without comments and trailing commas, as most of the large ones are; to know that is quicker than to look."""
    try:
        _QUICK.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def _apart(text: str) -> tuple[str, list[Comment]]:
    """The text with spaces in the place of its comments, and these."""
    pieces: list[str] = []
    comments: list[Comment] = []
    place = 0
    while (found := _COMMENT.match(text, _end_of_code(text, place))) is not None:
        comments.append(Comment(found.start(), found.end(), found[0]))
        pieces += [text[place : found.start()], re.sub(r"[^\r\n]", " ", found[0])]
        place = found.end()
    return "".join([*pieces, text[place:]]), comments


def _end_of_code(text: str, place: int) -> int:
    """Where a comment begins, or something that is wrong; the reader will come to that."""
    found = _UP_TO_COMMENT.match(text, place)
    assert found is not None
    return found.end()


class _Reader:
    """Goes over a text without comments, in great steps where it can."""

    def __init__(self, text: str, wanted: str | None) -> None:
        self.text = text
        self.wanted = wanted
        self.place = 0
        self._stop = -1  # what made a great step impossible; one that begins before it can't be made either
        self._stops = 0

    def skip(self) -> None:
        """Over what says nothing to a machine."""
        found = _SPACE.match(self.text, self.place)
        assert found is not None
        self.place = found.end()

    def value(self, depth: int, levels: int = 0) -> JsonValue:
        """`levels` of it are looked into."""
        if depth <= 0:
            raise TooDeep(self.text, self.place)
        sign = self.text[self.place : self.place + 1]
        if sign in ("{", "["):
            whole = None if levels and sign == "{" else self._whole()
            return whole or (self._object(depth, levels) if sign == "{" else self._array(depth))
        found = (_STRING if sign == '"' else _WORD).match(self.text, self.place)
        if found is None:
            raise self._expected("a string without its end" if sign == '"' else "a value was expected")
        self.place = found.end()
        return JsonValue(found.start(), found.end(), found[0])

    def _whole(self) -> JsonValue | None:
        """In one great step; None if it has trailing commas, or is no JSON at all."""
        start = self.place
        if start <= self._stop or self._stops > MAX_STOPS:
            return None
        try:
            _, self.place = _QUICK.raw_decode(self.text, start)
        except (ValueError, RecursionError) as bad:
            self._stop = bad.pos if isinstance(bad, json.JSONDecodeError) else len(self.text)
            self._stops += 1
            return None
        return JsonValue(start, self.place, self.text[start : self.place])

    def _object(self, depth: int, levels: int) -> JsonValue:
        start, members = self.place, []
        self._step()
        while not self._at("}"):
            begin = self.place
            found = _STRING.match(self.text, begin)
            if found is None:
                raise self._expected("a name in quotes, or } was expected")
            self.place = found.end()
            self.skip()
            if not self._at(":"):
                raise self._expected("a colon was expected")
            self._step()
            name: str = json.loads(found[0])
            is_wanted = levels < _ENTRIES or name == self.wanted
            value = self.value(depth - 1, max(levels - 1, 0) if is_wanted else 0)
            members.append(JsonMember(name, begin, value, self._comma("}")))
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
