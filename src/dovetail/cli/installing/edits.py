"""One entry of a configuration is added, replaced or removed: text comes in, and text goes out in which all else is as
it was, byte for byte, comments and odd spaces included.

Each edit is proved before it is given out: what was parsed before and after must differ in this entry only, and no
comment outside of it may be gone. What can't be edited like that raises `CantEdit`, and nothing is changed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.cli.installing.jsonc import JsonMember, JsonText, JsonValue, NotJson, parse

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


def entry_in(text: str, section: str, name: str) -> Any | None:
    """The entry as it is now, or None."""
    if not text.removeprefix(BOM).strip():
        return None
    document = parse(text.removeprefix(BOM))
    found = _only(_section(document, section), name)
    return None if found is None else _meaning(found.value)


def names_in(text: str, section: str) -> list[str]:
    """Of all entries that there are."""
    if not text.removeprefix(BOM).strip():
        return []
    holder = _section(parse(text.removeprefix(BOM)), section)
    return [] if holder is None else [member.name for member in holder.members or ()]


def with_entry(text: str, section: str, name: str, entry: Mapping[str, Any]) -> str:
    """The document with `entry` under `section`, added at the end or in place of the one of that name."""
    body = text.removeprefix(BOM)
    mark = text[: len(text) - len(body)]
    if not body.strip():
        newline = "\r\n" if "\r\n" in body else "\n"
        return mark + _rendered({section: {name: entry}}, _Style(newline, USUAL_INDENT), "") + newline
    before = parse(body)
    holder, style = _section(before, section), _style(before)
    if holder is None:
        changes = _added(before, before.root, section, {name: entry}, style)
    elif (old := _only(holder, name)) is not None:
        changes = [_Change(old.value.start, old.value.end, _in_place(before, old, entry, style))]
    else:
        changes = _added(before, holder, name, entry, style)
    return mark + _proved(before, changes, section, name, entry)


def without_entry(text: str, section: str, name: str) -> str:
    """The document without that entry, or as it is if there is none."""
    body = text.removeprefix(BOM)
    if not body.strip():
        return text
    before = parse(body)
    holder = _section(before, section)
    found = _only(holder, name)
    if holder is None or found is None:
        return text
    return text[: len(text) - len(body)] + _proved(before, _removed(before, holder, found), section, name, None)


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


def _in_place(document: JsonText, old: JsonMember, entry: Any, style: _Style) -> str:
    is_flat = "\n" not in document.text[old.value.start : old.value.end]
    indent = _line_indent(document.text, old.start)
    return _rendered(entry, None if is_flat and old.value.members else style, indent)


# ── what to change ──


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


def _proved(before: JsonText, changes: Sequence[_Change], section: str, name: str, entry: Any | None) -> str:
    """The new text, if nothing but the entry is different in it."""
    text = before.text
    for change in reversed(changes):  # they stand in the order of the text
        text = text[: change.start] + change.text + text[change.end :]
    try:
        after = parse(text)
    except NotJson as bad:
        raise CantEdit(f"it would be broken at {bad}") from None
    found = _only(_section(after, section), name)
    if (found is None) != (entry is None) or (found is not None and _meaning(found.value) != entry):
        raise CantEdit("the entry would not be what was asked for")
    if _others(before, section, name) != _others(after, section, name):
        raise CantEdit("more than this entry would change")
    if _remarks(before, section, name) != _remarks(after, section, name):
        raise CantEdit("a comment would be lost")
    return text


def _meaning(value: JsonValue) -> Any:
    if value.members is not None:
        return {member.name: _meaning(member.value) for member in value.members}
    if value.items is not None:
        return [_meaning(item) for item in value.items]
    return json.loads(value.text)


def _others(document: JsonText, section: str, name: str) -> Any:
    """All that is not the entry; a section without entries counts as none."""
    rows = []
    for member in document.root.members or ():
        if member.name != section or member.value.members is None:
            rows.append((member.name, member.value.same()))
            continue
        kept = tuple((each.name, each.value.same()) for each in member.value.members if each.name != name)
        if kept:
            rows.append((section, kept))
    return rows


def _remarks(document: JsonText, section: str, name: str) -> list[str]:
    found = _only(_section(document, section), name)
    inside = range(0) if found is None else range(found.start, found.value.end)
    return [comment.text for comment in document.comments if comment.start not in inside]
