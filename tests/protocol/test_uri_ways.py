"""URI templates, the two ways round: expand then match, and back; and input that means harm."""

import itertools
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from stduritemplate import StdUriTemplate
from uri_examples import FOUND, MATCHABLE

from dovetail.errors import SetupError
from dovetail.protocol.uri_template import OPERATORS, UriTemplate

# --- the two ways round


TEXT = st.text(max_size=6)
LITERALS = st.sampled_from(
    ["/", "-", ".", ",", ":", "a", "://", "é", "%20", "?k=", "&k=", "#", ";", "raw", "20", "=", "@"]
)
VARIABLES = st.lists(st.booleans(), min_size=1, max_size=2)
NAMED = (";", "?", "&")
Piece = str | tuple[str, list[tuple[str, bool]]]


@st.composite
def templates(draw: st.DrawFn) -> list[Piece]:
    """Draw a template in pieces: literal text, or an operator with names and whether they are exploded."""
    names = (f"v{number}" for number in itertools.count())
    pieces: list[Piece] = []
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            pieces.append(draw(LITERALS))
        operator = draw(st.sampled_from(sorted(OPERATORS)))
        pieces.append((operator, [(next(names), exploded) for exploded in draw(VARIABLES)]))
        if draw(st.booleans()):
            pieces.append(draw(LITERALS))
    return pieces


def write(pieces: Sequence[Piece]) -> str:
    return "".join(
        piece
        if isinstance(piece, str)
        else "{" + piece[0] + ",".join(name + "*" * exploded for name, exploded in piece[1]) + "}"
        for piece in pieces
    )


def texts_for(operator: str, exploded: bool, text: str) -> st.SearchStrategy[str]:
    """Draw what one value (or item) may be: the accepted domain of the operator."""
    if operator in NAMED:
        return TEXT
    some = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("/.,:;=&-%é2F")), min_size=1, max_size=6)
    if operator in ("+", "#"):
        ends = "".join(end for end in "?#" if end in text)
        return some.filter(lambda value: not re.search(rf"%[0-9A-Fa-f]{{2}}|[{ends}\0]", value))
    barred = {"": "/", ".": "./", "/": "" if exploded else "/"}[operator]
    return some.filter(lambda value: not set(barred) & set(value))


def values_for(pieces: Sequence[Piece], draw: st.DrawFn) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for operator, variables in (piece for piece in pieces if not isinstance(piece, str)):
        only = sum(exploded for _, exploded in variables) == 1
        for name, exploded in variables:
            texts = texts_for(operator, exploded, write(pieces))
            kinds: list[st.SearchStrategy[Any]] = [st.lists(texts, min_size=1, max_size=3) if exploded else texts]
            if operator in NAMED:
                kinds.append(st.none())
                if exploded and only:
                    keys = st.text(min_size=1, max_size=4).filter(lambda key: not re.fullmatch(r"v\d", key))
                    kinds.append(st.dictionaries(keys, TEXT, min_size=1, max_size=3))
            value = draw(st.one_of(kinds))
            if value is not None:
                values[name] = value
    return values


@pytest.mark.slow
@pytest.mark.rule("RES-15")
@settings(max_examples=150, deadline=None)
@given(templates(), st.data())
def test_what_is_expanded_is_matched(pieces: list[Piece], data: st.DataObject):
    template = UriTemplate(write(pieces))
    try:
        template.check_matchable()
    except SetupError:
        assume(False)
    values = values_for(pieces, data.draw)
    uri = template.expand(values)
    assert template.match(uri) == values
    assert template.match(respell(uri, data.draw(st.integers(0, 2**16)))) == values


def respell(uri: str, choice: int) -> str:
    """Write some characters as escapes that need none, and escapes in small letters."""
    parts = re.findall(r"%..|.", uri, re.DOTALL)
    return "".join(
        part.lower()
        if len(part) == 3
        else f"%{ord(part):02x}"
        if choice >> (number % 16) & 1 and re.fullmatch(r"[A-Za-z0-9._~-]", part)
        else part
        for number, part in enumerate(parts)
    )


@pytest.mark.rule("RES-15")
@settings(max_examples=300, deadline=None)
@given(st.sampled_from([(template, uri) for template, uri, _ in FOUND]), st.data())
def test_what_is_matched_expands_to_an_equal_uri(pair: tuple[str, str], data: st.DataObject):
    template, uri = UriTemplate(pair[0]), pair[1]
    place = data.draw(st.integers(0, len(uri)))
    uri = uri[:place] + data.draw(st.text("a/.?,%2F-&=;:#é", max_size=4)) + uri[place + data.draw(st.integers(0, 2)) :]
    values = template.match(uri)
    if values is not None:
        assert in_order(unquote(template.expand(values))) == in_order(unquote(uri))


def in_order(uri: str) -> list[str]:
    """Split a URI at the separators of named parameters, whose order is free."""
    return sorted(re.split("[?&;]", uri))


ORACLE_TEMPLATES = [  # the oracle loses a comma that stands outside of braces
    *(template for template in MATCHABLE if "," not in re.sub("{.*?}", "", template)),
    "x{a,b}{;b*}{?a,b*}{&b}{+b*}{#a,b}{/b*}{.a}{id*}",
    "{+a}{#b}{.q*}{/q}{;q}{?q}{&q*}",
]
ORACLE_TEXT = st.text("aZ09-._~ :/?#[]@!$&'()*+,;=é€", max_size=6)
ORACLE_ITEM = ORACLE_TEXT.filter(bool)  # the RFC leaves open what an empty item of a named list gives
ORACLE_VALUES = st.one_of(
    ORACLE_TEXT,
    st.lists(ORACLE_ITEM, min_size=1, max_size=3),
    st.dictionaries(ORACLE_ITEM, ORACLE_ITEM, min_size=1, max_size=3),
)
NAMES = ("a", "b", "id", "path", "q", "tags", "rest", "part")


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(ORACLE_TEMPLATES), st.dictionaries(st.sampled_from(NAMES), ORACLE_VALUES, max_size=4))
def test_expansion_agrees_with_another_implementation(template: str, values: dict[str, Any]):
    assert UriTemplate(template).expand(values) == StdUriTemplate.expand(template, dict(values))


@settings(deadline=None)
@given(ORACLE_TEXT)
def test_prefixes_agree_with_another_implementation(text: str):
    template = "{a:3}{+a:2}{?a:1}{/a:9999}"
    assert UriTemplate(template).expand({"a": text}) == StdUriTemplate.expand(template, {"a": text})


# --- hostile input


LONG = 20_000
HOSTILE = ["a", "/", "a/", "/a", "%", "%2", "%25", ".a", ",", "a,", "&a=1", "?", ";a=1", "-", "raw/", "\x00", "é", "="]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", HOSTILE)
def test_a_long_uri_takes_no_more_than_its_length(unit: str):
    """A pattern that backtracks in earnest would not come back at all from texts of this length."""
    for text in MATCHABLE:
        template = UriTemplate(text)
        start = text.partition("{")[0]
        for end in ("", "\x00", "/raw", "%"):
            template.match(start + unit * (LONG // len(unit)) + end)


@settings(deadline=None)
@given(st.sampled_from(MATCHABLE), st.text() | st.text("x:/y?a=1&b#%2F.,;", max_size=40))
@example("x://y{?a}", "x://y?" + "&" * 1_000)
def test_any_text_matches_or_not_without_an_error(template: str, text: str):
    assert UriTemplate(template).match(text) is None or UriTemplate(template).match(text) is not None
