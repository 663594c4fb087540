"""Where one URI template has a value and another one mere text: both come in, the texts that the value may have go out.

`n://item/{id}/{part}` can be asked for what `n://item/7.0/{name}` stands for: with `7.0` for `id`, and so with `7` too,
if `id` is a number. What comes out are only proposals: whoever takes one up asks the other template whether it fits.
So it does no harm if there are some that never fit, but it would if one were missing. Hence only what stands right
before and right after a variable is looked at, never how the rest of both templates goes together.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

from dovetail.errors import SetupError
from dovetail.protocol.ambiguity import Cell
from dovetail.protocol.uri import UriTemplate, Value, normal
from dovetail.registry.spellings import without_detours

KEPT = 4_096  # forms of templates; to make one takes longer than to use it

_EXPRESSION = re.compile(r"(\{[^{}]*\})")
_MARK = os.urandom(8).hex()  # nobody can have it in a text of theirs


class VariablePlace(NamedTuple):
    """Where a template has the text of a variable that goes by its place."""

    name: str
    holds: frozenset[str]
    before: frozenset[str]  # the characters that may stand right before it
    after: frozenset[str]

    def texts_in(self, mere: str) -> Iterator[str]:
        """The parts of a mere text that could be the variable's own; a variable may stand on either side of it."""
        starts = [0, *(place + 1 for place, character in enumerate(mere) if character in self.before)]
        ends = [*(place for place, character in enumerate(mere) if character in self.after), len(mere)]
        for start in starts:
            misfit = next((place for place in range(start, len(mere)) if mere[place] not in self.holds), len(mere))
            yield from (mere[start:end] for end in ends if start < end <= misfit)


class Proposal(NamedTuple):
    """A text that a variable may have, and how that is spelled in the mere text of the other template."""

    name: str
    text: Value
    spelled: str
    is_enough: bool = False  # the other one takes it wherever it takes another text of the same value


def possible_texts(reader: UriTemplate, other: UriTemplate) -> Iterator[Proposal]:
    """For the variables of the reader, where the other one has mere text."""
    found = list(dict.fromkeys(_mere_texts(other.row)))
    for place in _places(reader.row):
        for part in dict.fromkeys(part for mere in found for part in place.texts_in(mere)):
            text = reader.read(place.name, part)
            if text is not None:
                yield Proposal(place.name, text, part)
    for name in sorted(reader.optional - reader.exploded):
        for mere in found:
            for part in re.findall(rf"[?&;]{re.escape(normal(name))}=([^?&;#]*)", mere):
                yield Proposal(name, unquote(part), part)


def chosen_texts(reader: UriTemplate, other: UriTemplate, choices: Mapping[str, Sequence[str]]) -> Iterator[Proposal]:
    """For the variables of the reader, where the other one has some that take one of a few texts."""
    for name in reader.variables:
        for chosen, texts in choices.items():
            if name in reader.exploded or not _may_coincide(reader, name, other, chosen):
                continue
            is_enough = name in reader.optional and chosen in other.optional
            yield from (Proposal(name, text, quote(text, safe=""), is_enough) for text in texts)


def _may_coincide(reader: UriTemplate, name: str, other: UriTemplate, chosen: str) -> bool:
    """Tell whether both variables can have the same part of a URI as their text."""
    if (name in reader.optional) != (chosen in other.optional):
        by_place = other if name in reader.optional else reader
        return "=" in unquote(by_place.text)  # which stands right before a named one
    return name not in reader.optional or normal(name) == normal(chosen)


def have_same_scheme(one: UriTemplate, other: UriTemplate) -> bool:
    """Or may have, if a variable is in one of them."""
    schemes = [_bytes_of(each.lead).partition(b":") for each in (one, other)]
    return not all(colon for _, colon, _ in schemes) or schemes[0][0] == schemes[1][0]


def begin_alike(one: UriTemplate, other: UriTemplate) -> bool:
    """Tell whether a URI that takes no detours can fit both."""
    short, long = sorted((_bytes_of(each.lead) for each in (one, other)), key=len)
    return long.startswith(short)


def _bytes_of(lead: str) -> bytes:
    """The same for all spellings, and for a part of a text it is a part of what it is for the whole."""
    scheme, colon, rest = unquote_to_bytes(lead).partition(b":")
    return scheme.lower() + colon + rest


def expanded(template: UriTemplate, texts: Mapping[str, Value | None], spelled: Mapping[str, str]) -> str:
    """The URI with these texts, some of which are spelled as it is said, whatever the template would escape."""
    marks = {name: f"{_MARK}{place}z" for place, name in enumerate(spelled)}
    marked = {name: [mark] if name in template.exploded else mark for name, mark in marks.items()}
    uri = template.expand({**texts, **marked})
    for name, mark in marks.items():
        uri = uri.replace(mark, spelled[name])
    return uri


def _places(row: Sequence[Cell]) -> Iterator[VariablePlace]:
    optional = [bool(cell.skip or (place and row[place - 1].skip)) for place, cell in enumerate(row)]
    cells = list(zip(row, optional, strict=True))
    for place, (cell, is_optional) in enumerate(cells):
        if cell.repeats and not is_optional:
            yield VariablePlace(cell.owner, cell.holds, _nearest(cells[:place][::-1]), _nearest(cells[place + 1 :]))


def _nearest(cells: Sequence[tuple[Cell, bool]]) -> frozenset[str]:
    """What may come first on the way to an end: an optional part, which is two cells, or what is behind it."""
    found: frozenset[str] = frozenset()
    inside = False
    for cell, is_optional in cells:
        if not inside:
            found |= cell.holds
        if not is_optional:
            break
        inside = not inside
    return found


def _mere_texts(row: Sequence[Cell]) -> Iterator[str]:
    """What has no variable in it, as long as it goes on, with and without the parts that are optional."""
    texts = [""]  # that go on here
    inside = False
    for cell in row:
        if inside:
            inside = False  # an optional variable, which has ended the texts with it already
        elif cell.skip:
            yield from (text + min(cell.holds) for text in texts)
            texts.append("")
            inside = True
        elif cell.repeats:
            yield from texts
            texts = [""]
        else:
            texts = [text + min(cell.holds) for text in texts]
    yield from texts


@lru_cache(KEPT)
def respelled(text: str, spell: Callable[[str], str], spell_first: Callable[[str], str]) -> UriTemplate | None:
    """The template with another spelling of what is mere text in it; None if that is the same, or could not match."""
    first, *parts = _EXPRESSION.split(text)
    spelled = spell_first(first) + "".join(spell(part) if place % 2 else part for place, part in enumerate(parts))
    return None if spelled == text else _matchable(spelled)


def with_shortcut(template: UriTemplate) -> list[UriTemplate]:
    """The template, and the one without the detours that its own text takes, if it does."""
    straight = without_detours(template.text)
    found = None if straight == template.text else _matchable(straight)
    return [template] if found is None else [template, found]


def _matchable(text: str) -> UriTemplate | None:
    try:
        template = UriTemplate(text)
        template.check_matchable()
    except SetupError:
        return None
    return template
