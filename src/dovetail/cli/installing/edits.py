"""One entry of a configuration is added, replaced or removed: text comes in, and text goes out in which all else is as
it was, byte for byte, comments and odd spaces included.

Of an entry that is replaced, what a server consists of is new; keys that the host or its user has put there, and
comments, stay. Each edit is proved before it is given out: what was parsed before and after must differ in this entry
only, and no comment outside of it may be gone. What can't be edited like that raises `CantEdit`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.cli.installing.hosts import OWN_KEYS
from dovetail.cli.installing.jsonc import JsonMember, JsonText, JsonValue, NotJson, TooDeep, parse

BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"
USUAL_INDENT = "  "
_BLANK = " \t\r\n"


class CantEdit(ValueError):
    """The document does not have the shape for it; the message says where."""


class _Change(NamedTuple):
    start: int
    end: int
    text: str


class _Style(NamedTuple):
    """How the document is laid out."""

    newline: str
    indent: str


class Outline(NamedTuple):
    """What a document is like."""

    is_empty: bool  # there is nothing in it
    has_more: bool  # than servers
    names: Sequence[str] | None  # of its servers; None if it has no place for them


class EditedText(NamedTuple):
    """What is to be written, and what is not in it any more."""

    text: str
    lost_comments: int = 0


class ServerSection:
    """The servers that a document names: it is read once, and given out changed."""

    def __init__(self, text: str, section: str) -> None:
        body = text.removeprefix(BOM)
        self.section = section
        self._mark = text[: len(text) - len(body)]
        self._body = body
        self._document = parse(body, section) if body.strip() else None
        self._holder = None if self._document is None else _section(self._document, section)

    @property
    def names(self) -> list[str]:
        return [] if self._holder is None else [member.name for member in self._holder.members or ()]

    @property
    def outline(self) -> Outline:
        roots = () if self._document is None else self._document.root.members or ()
        has_more = any(member.name != self.section for member in roots)
        return Outline(self._document is None, has_more, None if self._holder is None else self.names)

    def entry(self, name: str) -> Any | None:
        """As it is now; None if there is none."""
        found = _only(self._holder, name)
        return None if found is None else found.value.meaning()

    def with_entry(self, name: str, entry: Mapping[str, Any]) -> EditedText:
        """The document with this entry, at the end or in the place of the one of that name."""
        before = self._document
        if before is None:
            newline = "\r\n" if "\r\n" in self._body else "\n"
            whole = _rendered({self.section: {name: entry}}, _Style(newline, USUAL_INDENT), "")
            return EditedText(self._mark + whole + newline)
        style, old = _style(before), _only(self._holder, name)
        if self._holder is None:
            changes = _added(before, before.root, self.section, {name: entry}, style)
        elif old is None:
            changes = _added(before, self._holder, name, entry, style)
        else:
            changes = [_Change(old.value.start, old.value.end, _renewed(before, old, entry, style))]
        return self._proved(changes, name, merged(None if old is None else old.value.meaning(), entry))

    def without_entry(self, name: str) -> EditedText:
        """The document without that entry, or as it is if there is none."""
        found = _only(self._holder, name)
        if self._document is None or self._holder is None or found is None:
            return EditedText(self._mark + self._body)
        return self._proved(_removed(self._document, self._holder, found), name, None)

    def _proved(self, changes: Sequence["_Change"], name: str, entry: Any | None) -> EditedText:
        assert self._document is not None
        edited = _proved(self._document, changes, self.section, name, entry)
        return edited._replace(text=self._mark + edited.text)


def merged(old: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry, with what was there and is none of ours."""
    kept = old if isinstance(old, Mapping) else {}
    return {**entry, **{key: value for key, value in kept.items() if key not in OWN_KEYS}}


# ── where ──


def _section(document: JsonText, section: str) -> JsonValue | None:
    if document.root.members is None:
        raise CantEdit("it holds no object, { … }, but something else")
    found = _only(document.root, section)
    if found is None:
        return None
    if found.value.members is None:
        raise CantEdit(f"its {json.dumps(section)} is no object, {{ … }}")
    return found.value


def _only(holder: JsonValue | None, name: str) -> JsonMember | None:
    found = [] if holder is None else holder.get(name)
    if len(found) > 1:
        raise CantEdit(f"it has {json.dumps(name)} more than once")
    return found[0] if found else None


# ── how it looks ──


def _style(document: JsonText) -> _Style:
    """Of the document as a whole: its line ends, and how far its first member stands in."""
    newline = "\r\n" if "\r\n" in document.text else "\n"
    for member in document.root.members or ():
        indent = _indent_at(document.text, member.start)
        if indent:
            return _Style(newline, indent)
    return _Style(newline, USUAL_INDENT)


def _indent_at(text: str, place: int) -> str | None:
    """The space before a place, if there is nothing else before it on its line."""
    before = text[text.rfind("\n", 0, place) + 1 : place]
    return before if not before.strip(" \t") else None


def _line_indent(text: str, place: int) -> str:
    """The space at the beginning of the line."""
    begin = text.rfind("\n", 0, place) + 1
    spaces = re.compile(r"[ \t]*").match(text, begin)
    assert spaces is not None
    return spaces[0]


def _rendered(value: Any, style: _Style | None, indent: str) -> str:
    """Without a style, on one line."""
    if style is None:
        return json.dumps(value, ensure_ascii=False)
    text = json.dumps(value, ensure_ascii=False, indent=style.indent)
    return text.replace("\n", style.newline + indent)


def _in_place(text: str, old: JsonValue, value: Any, style: _Style | None, indent: str) -> str:
    """What was on one line stays on one."""
    known = text[old.start : old.end]
    is_flat = "\n" not in known and known[:1] in "[{" and len(known) > len("{}")
    return _rendered(value, None if is_flat else style, indent)


# ── what to change ──


def _renewed(document: JsonText, old: JsonMember, entry: Mapping[str, Any], style: _Style) -> str:
    """The entry with the keys of a server set anew; it is changed key by key, as a document of its own."""
    indent = _line_indent(document.text, old.start)
    if not old.value.members:
        return _in_place(document.text, old.value, entry, style, indent)
    text = indent + document.text[old.value.start : old.value.end]
    inner_style = style if "\n" in text else None
    for key in (*entry, *OWN_KEYS):
        piece = parse(text)
        member = _only(piece.root, key)
        if key not in entry:
            changes = [] if member is None else _removed(piece, piece.root, member)
        elif member is None:
            changes = _added(piece, piece.root, key, entry[key], style)
        elif member.value.meaning() == entry[key]:
            continue
        else:
            own = _line_indent(text, member.start)
            changes = [_Change(*member.value[:2], _in_place(text, member.value, entry[key], inner_style, own))]
        text = _applied(text, changes)
    return text[len(indent) :]


def _added(document: JsonText, holder: JsonValue, name: str, value: Any, style: _Style) -> list[_Change]:
    text = document.text
    is_flat = "\n" not in text[holder.start : holder.end]
    base = _line_indent(text, holder.start)
    if not holder.members:
        return [_into_empty(document, holder, name, value, style)]
    last = holder.members[-1]
    end = last.value.end if last.comma is None else last.comma + 1
    place = _end_of_remarks(document, end, holder.end)
    if is_flat:
        rendered = " " + _named(name, value, None, "")
    else:
        own = _indent_at(text, last.start)
        indent = base + style.indent if own is None else own
        rendered = style.newline + indent + _named(name, value, style, indent)
    if last.comma is None:
        return [_Change(end, end, ","), _Change(place, place, rendered)]
    return [_Change(place, place, rendered + ",")]


def _into_empty(document: JsonText, holder: JsonValue, name: str, value: Any, style: _Style) -> _Change:
    text, base = document.text, _line_indent(document.text, holder.start)
    indent = base + style.indent
    rendered = style.newline + indent + _named(name, value, style, indent)
    inside = [comment for comment in document.comments if holder.start < comment.start < holder.end]
    if "\n" not in text[holder.start : holder.end]:
        place = holder.end - 1
        return _Change(place, place, rendered + style.newline + base)
    place = inside[-1].end if inside else holder.start + 1
    return _Change(place, place, rendered)


def _named(name: str, value: Any, style: _Style | None, indent: str) -> str:
    return f"{json.dumps(name, ensure_ascii=False)}: {_rendered(value, style, indent)}"


def _end_of_remarks(document: JsonText, place: int, limit: int) -> int:
    """Behind the comments that follow on the same line: they belong to what is before them."""
    for comment in document.comments:
        if place <= comment.start < limit:
            if document.text[place : comment.start].strip(" \t") or "\n" in comment.text:
                break
            place = comment.end
    return place


def _removed(document: JsonText, holder: JsonValue, found: JsonMember) -> list[_Change]:
    """The member, the comma that it needs no more, and the space before it."""
    text, members = document.text, holder.members or ()
    begin = _start_of_space(document, found)
    changes = [_Change(begin, found.value.end, "")]
    if found.comma is not None:
        changes.append(_Change(found.comma, found.comma + 1, ""))
    elif len(members) > 1:
        comma = members[-2].comma
        assert comma is not None
        changes.insert(0, _Change(comma, comma + 1, ""))
    if len(members) == 1 and not text[holder.start + 1 : begin].strip() and found.comma is None:
        rest = text[found.value.end : holder.end - 1]
        if not rest.strip():
            return [_Change(holder.start + 1, holder.end - 1, "")]
    return changes


def _start_of_space(document: JsonText, found: JsonMember) -> int:
    """Not further than to the end of a comment that takes the rest of its line, if that line would go on."""
    text = document.text
    remark = max((comment.end for comment in document.comments if comment.end <= found.start), default=0)
    begin = max(len(text[: found.start].rstrip(_BLANK)), remark)
    comma = found.value.end if found.comma is None else found.comma
    after = text[found.value.end : comma] + text[comma:].removeprefix(",")
    goes_on = not after.startswith(("\n", "\r"))  # with a space even: the comment would grow by it
    is_remark = any(comment.takes_the_line and comment.end == begin for comment in document.comments)
    return found.start if goes_on and is_remark else begin


# ── the proof ──


def _applied(text: str, changes: Sequence[_Change]) -> str:
    for change in reversed(changes):  # they stand in the order of the text
        text = text[: change.start] + change.text + text[change.end :]
    return text


def _proved(before: JsonText, changes: Sequence[_Change], section: str, name: str, entry: Any | None) -> EditedText:
    """The new text, if nothing but the entry is different in it."""
    text = _applied(before.text, changes)
    try:
        after = parse(text, section)
    except (NotJson, TooDeep) as bad:
        raise CantEdit(f"it would be broken at {bad}") from None
    found = _only(_section(after, section), name)
    if (found is None) != (entry is None) or (found is not None and found.value.meaning() != entry):
        raise CantEdit("the entry would not be what was asked for")
    if _others(before, section, name) != _others(after, section, name):
        raise CantEdit("more than this entry would change")
    if _remarks(before, section, name) != _remarks(after, section, name):
        raise CantEdit("a comment would be lost")
    return EditedText(text, len(before.comments) - len(after.comments))


def _others(document: JsonText, section: str, name: str) -> list[Any]:
    """All that is not the entry, as it is written; a section without entries counts as none."""
    rows: list[Any] = []
    for member in document.root.members or ():
        if member.name != section or member.value.members is None:
            rows.append((member.name, _written(document, member)))
            continue
        kept = [(each.name, _written(document, each)) for each in member.value.members if each.name != name]
        if kept:
            rows.append((section, kept))
    return rows


def _written(document: JsonText, member: JsonMember) -> str:
    return document.text[member.value.start : member.value.end]


def _remarks(document: JsonText, section: str, name: str) -> list[str]:
    found = _only(_section(document, section), name)
    inside = range(0) if found is None else range(found.start, found.value.end)
    return [comment.text for comment in document.comments if comment.start not in inside]
