"""URI templates: what they match, which are refused and why, and hostile texts; URIs. The judges: RFC 6570's suite."""

import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from stduritemplate import StdUriTemplate

from dovetail.errors import SetupError
from dovetail.protocol.uri_template import (
    OPERATORS,
    UriTemplate,
    is_template,
    normalize_escapes,
    normalize_uri,
    valid_uri,
)


def match(template: str, uri: str) -> dict[str, Any] | None:
    return UriTemplate(template).match_normal(normalize_uri(uri))


FOUND: list[tuple[str, str, dict[str, Any]]] = [
    ("notes://all", "notes://all", {}),
    ("notes://{id}", "notes://7", {"id": "7"}),
    ("notes://{id}", "notes://a%20b", {"id": "a b"}),
    ("notes://{id}", "notes://grün", {"id": "grün"}),
    ("notes://{id}", "notes://..", {"id": ".."}),
    ("notes://{id}", "notes://%2541", {"id": "%41"}),
    ("mail://{address}", "mail://bob@example.org", {"address": "bob@example.org"}),
    ("notes://grün/{id}", "notes://gr%C3%BCn/7", {"id": "7"}),
    ("notes://gr%c3%bcn/{id}", "notes://grün/7", {"id": "7"}),
    ("notes://~me/{id}", "notes://%7Eme/7", {"id": "7"}),
    ("geo:{lat},{lon}", "geo:1.5,-2", {"lat": "1.5", "lon": "-2"}),
    ("geo:{lat},{lon}", "geo:1%2C5,-2", {"lat": "1,5", "lon": "-2"}),
    ("docker://{h}/{i}:{tag}", "docker://localhost:5000/app:1", {"h": "localhost:5000", "i": "app", "tag": "1"}),
    ("files://{+path}", "files://a/b/c.txt", {"path": "a/b/c.txt"}),
    ("files://{+path}", "files://a?b#c", {"path": "a?b#c"}),
    ("files://{+path}.json", "files://a.json/b.json", {"path": "a.json/b"}),
    ("files://{+path}/{name}", "files://a/b/c", {"path": "a/b", "name": "c"}),
    ("files://{owner}/{+path}", "files://a/b/c", {"owner": "a", "path": "b/c"}),
    ("files://{+path}{?rev}", "files://a/b?rev=2", {"path": "a/b", "rev": "2"}),
    ("files://{+path}{?rev}", "files://a%3Fb", {"path": "a?b"}),
    ("files://{name}{.ext}", "files://a.tar.gz", {"name": "a.tar", "ext": "gz"}),
    ("files://{name}.json", "files://a.b.json", {"name": "a.b"}),
    ("x://www{.parts*}", "x://www.example.com", {"parts": ["example", "com"]}),
    ("x://y{#part}", "x://y#a/b?c", {"part": "a/b?c"}),
    ("x://y{/a,b}", "x://y/1/2", {"a": "1", "b": "2"}),
    ("x://y{/path*}", "x://y/1/2%2F3", {"path": ["1", "2/3"]}),
    ("x://y{/path*}/raw", "x://y/1/raw/raw", {"path": ["1", "raw"]}),
    ("x://{items*}", "x://a,b%2Cc", {"items": ["a", "b,c"]}),
    ("x://{first,rest*}", "x://a,b,c", {"first": "a", "rest": ["b", "c"]}),
    ("x://y{;a,b}", "x://y;b=2;a", {"b": "2", "a": ""}),
    ("x://y{?a,b}", "x://y", {}),
    ("x://y{?a,b}", "x://y?b=2&a=1", {"a": "1", "b": "2"}),
    ("x://y{?a,b}", "x://y?a=&b=c=d", {"a": "", "b": "c=d"}),
    ("x://y{?a}", "x://y?a=b%2Fc/d?e", {"a": "b/c/d?e"}),
    ("x://y{?a}", "x://y?%61=1", {"a": "1"}),
    ("x://y?fixed=1{&a,b}", "x://y?fixed=1&b=2&a=1", {"a": "1", "b": "2"}),
    ("x://y?q={q}{&lang}", "x://y?q=a&lang=en", {"q": "a", "lang": "en"}),
    ("x://y{?tags*}", "x://y?tags=a&tags=b", {"tags": ["a", "b"]}),
    ("x://y{?a,tags*}", "x://y?tags=1&a=2&tags=3", {"a": "2", "tags": ["1", "3"]}),
    ("x://y{?q}{#part}", "x://y?q=1#top", {"q": "1", "part": "top"}),
]


MATCHABLE = sorted({template for template, _, _ in FOUND})


# --- parsing


@pytest.mark.rule("RES-15")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("notes://{id", "lone '{'"), ("notes://id}", "lone '}'"), ("notes://{{id}}", "lone '{'"),
        ("notes://{}", "'' in {} is not a variable"), ("notes://{a,}", "'' in {a,} is not a variable"),
        ("notes://{a b}", "'a b'"), ("notes://{a-b}", "'a-b'"), ("notes://{a..b}", "'a..b'"),
        ("notes://{a:0}", "'a:0'"), ("notes://{a:10000}", "'a:10000'"), ("notes://{a:3*}", "'a:3*'"),
        ("notes://{a\n}", r"'a\n'"), ("notes://{é}", "'é'"), ("notes://{=a}", "operator '='"),
        ("notes://{|a}", "operator '|'"), ("my notes://{a}", "write %20"), ("notes://100%/{a}", "write %25"),
        ("notes://<{a}>", "write %3C"), ("notes://\x00{a}", "write %00"),
    ],
)  # fmt: skip
def test_a_malformed_template_is_refused_by_name_with_a_fix(text: str, complaint: str):
    with pytest.raises(SetupError) as caught:
        UriTemplate(text)
    assert repr(text) in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.rule("RES-15")
def test_variables_come_in_order_and_once():
    template = UriTemplate("x://{b}/{a.z,b}{?c*,d:3}")
    assert template.text == "x://{b}/{a.z,b}{?c*,d:3}"
    assert template.variables == ("b", "a.z", "c", "d")
    assert template.optional == {"c", "d"}
    assert template.exploded == {"c"}
    assert UriTemplate("x://{a}{/b*}{c,d*}").exploded == {"b", "d"}
    assert repr(template) == "UriTemplate('x://{b}/{a.z,b}{?c*,d:3}')"


# --- matching


NOT_FOUND = [
    ("notes://all", "notes://al"),
    ("notes://{id}", "notes://"),
    ("notes://{id}", "notes://a/b"),
    ("notes://{id}", "notes://a%2Fb"),
    ("notes://{id}", "notes://a?b"),
    ("notes://{id}", "notes://a#b"),
    ("notes://{id}", "notes://a b"),
    ("notes://{id}", "notes://a\x00"),
    ("notes://{id}", "notes://a%"),
    ("notes://{id}", "notes://a%zz"),
    ("notes://{id}", "notes://%ff"),
    ("notes://{id}", "notes://\ud800"),
    ("notes://{id}20", "notes://a%20"),
    ("geo:{lat},{lon}", "geo:1.5"),
    ("files://{+path}", "files://"),
    ("files://{+path}{?rev}", "files://a?b"),
    ("x://y{.a}", "x://y.a.b"),
    ("x://y{.a}", "x://y.a%2Fb"),
    ("x://y{/a}", "x://y"),
    ("x://y{/a}", "x://y/a%2Fb"),
    ("x://y{/path*}", "x://y"),
    ("x://y{/path*}", "x://y/a//b"),
    ("x://y{/path*}", "x://y/a/"),
    ("x://{items*}", "x://a,%2F"),
    ("x://{items*}", "x://a,,b"),
    ("x://y{;a}", "x://y;a="),
    ("x://y{?a}", "x://y?"),
    ("x://y{?a}", "x://y?a"),
    ("x://y{?a}", "x://y?b=1"),
    ("x://y{?a}", "x://y?a=1&a=2"),
    ("x://y{?a}", "x://y?a=%ff"),
    ("x://y{?tags*}", "x://y?tags=a&other=b"),
]


@pytest.mark.rule("RES-15")
@pytest.mark.parametrize(("template", "uri", "values"), FOUND)
def test_match(template: str, uri: str, values: dict[str, Any]):
    assert match(template, uri) == values


@pytest.mark.rule("RES-15")
@pytest.mark.parametrize(("template", "uri"), NOT_FOUND)
def test_no_match(template: str, uri: str):
    assert match(template, uri) is None


# --- templates that can't be matched


@pytest.mark.rule("RES-15")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{a}{b}", ["a", "b"]),
        ("{a}{+b}", ["a", "b"]),
        ("{a}-{b}", ["a", "b"]),
        ("{+a}/{+b}", ["a", "b"]),
        ("{+a},{b}", ["a", "b"]),
        ("{+a,b}", ["a", "b"]),
        ("{x*,y}", ["x", "y"]),
        ("{/a*}{/b*}", ["a", "b"]),
        ("{+a}{;b}", ["a", "b"]),
        ("{+a}{&b}", ["a", "b"]),
        ("{?a}{?b}", ["a"]),
        ("{?a}{&b}", ["a", "b"]),
        ("{a}{?q}{b}", ["a", "b"]),
        ("x{?a}?b{c}", ["a"]),
        ("{a}{?b}-{?c}", ["b"]),
        ("{name}{.ext}{?q}", ["name", "ext"]),
        ("{first}/{a}{b}/{last}", ["a", "b"]),
    ],
)
def test_an_ambiguous_template_is_refused_naming_its_variables(text: str, names: list[str]):
    template = UriTemplate(text)
    with pytest.raises(SetupError) as caught:
        template.check_matchable()
    message = str(caught.value)
    assert repr(text) in message
    assert f"ambiguous in {' and '.join(map(repr, names))}; put " in message
    with pytest.raises(SetupError):
        template.match_normal("x")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{a:3}", "'a' keeps its first 3 characters"),
        ("{+a*}", "drop `*` or use {/a*}"),
        ("{#a*}", "drop `*` or use {/a*}"),
        ("{a}/{a}", "'a' stands in it twice"),
        ("x://{a}/../b", "`..`"),
        ("x://{a}/.", "`..`"),
        ("{a}/" + "x" * 1_000, "longer than 1000 characters"),
        ("{a}/" + "é" * 200, "longer than 1000 characters"),
    ],
)
def test_a_template_that_loses_its_values_is_refused(text: str, complaint: str):
    with pytest.raises(SetupError, match=re.escape(complaint)):
        UriTemplate(text).check_matchable()


OVERLAPPING = [
    ("{a}", "{b}"), ("x://{a}", "X://y{b}"), ("x://{a}.md", "x://y{b}"), ("x://{+a}", "x://y/{b}"),
    ("x://y", "x://{a}"), ("x://y{?a}", "x://y{;b}"), ("x://y{?a}", "x://y?b={b}"), ("x://%C3%A9{a}", "x://é{b}"),
]  # fmt: skip
APART = [
    ("x://{a}", "y://{b}"), ("x://{a}", "x://{b}/c"), ("x://{a}.md", "x://{b}.txt"), ("x://{.a}", "x://{b}/"),
    ("x://y{?a}", "x://y/{b}"), ("x://A{a}", "x://a{b}"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "expected"), [(*p, True) for p in OVERLAPPING] + [(*p, False) for p in APART])
def test_whether_a_uri_can_fit_two_templates(one: str, other: str, expected: bool):
    assert UriTemplate(one).overlaps(UriTemplate(other)) is expected
    assert UriTemplate(other).overlaps(UriTemplate(one)) is expected


@given(st.sampled_from(MATCHABLE), st.sampled_from([(template, uri) for template, uri, _ in FOUND]))
def test_two_templates_that_fit_a_uri_overlap(template: str, pair: tuple[str, str]):
    if match(template, pair[1]) is not None:
        assert UriTemplate(template).overlaps(UriTemplate(pair[0]))


# --- URIs


@pytest.mark.rule("RES-9", "RES-14")
@pytest.mark.parametrize(
    "text",
    [
        "a:", "notes://7", "file:///etc/hosts", "https://user@example.org:80/a/b;c=d?e=f/g?h#i/j?k", "http://[::1]:80/",
        "urn:isbn:0451450523", "mailto:bob@example.org", "my-app+v1.2://x", "notes://grün/日本語", "notes://a%20b",
        "data:,a'b(c)!*",
    ],
)  # fmt: skip
def test_a_valid_uri(text: str):
    assert valid_uri(text)


@pytest.mark.rule("RES-9", "RES-14")
@pytest.mark.parametrize(
    "text",
    [
        "", "notes", "/etc/hosts", "//host/path", "://x", "1a://x", "my_app://x", "né://x", "notes://a b",
        "notes://a\n", "notes://a\x00", "notes://a\x7f", "notes://a\x85", "notes://a\u00a0b", "notes://a\u2028b",
        "notes://a\u202eb", "notes://a\ud800", "notes://{id}", "notes://a%", "notes://a%2", "notes://a%zz",
        'notes://a"b', "notes://a<b>", "notes://a\\b", "notes://a|b", "notes://a^b", "notes://a`b", "notes://a#b#c",
        "notes:a[b]", "notes://a?b[c]", " notes://a", "notes://a ",
    ],
)  # fmt: skip
def test_an_invalid_uri(text: str):
    assert not valid_uri(text)


@pytest.mark.rule("RES-9")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n://secret", "n://secret"),
        ("N://%73Ecret", "n://sEcret"),
        ("n://é/%c3%A9", "n://%C3%A9/%C3%A9"),
        ("n://%2573/%2f%28", "n://%2573/%2F%28"),
        ("HTTPS://Us%45r@Ex%41mple.ORG:80/A?B#C", "https://UsEr@example.org:80/A?B#C"),
        ("https://%c3%89.org/", "https://%C3%89.org/"),
        ("n://a/b/../c/./d", "n://a/c/d"),
        ("n://a/../../b", "n://a/b"),
        ("n://a/b/..", "n://a/"),
        ("n://a/b/.", "n://a/b/"),
        ("n://a/b/.c/..d", "n://a/b/.c/..d"),
        ("n://a/./b/.c", "n://a/b/.c"),
        ("n://a/%2e%2E/b/...", "n://a/b/..."),
        ("n://../b", "n://../b"),
        ("n://a//../b?x=/../y#/../z", "n://a/b?x=/../y#/../z"),
        ("n:/a/../b", "n:/b"),
        ("n:a/../b", "n:a/b"),
        ("%zz", "%zz"),
        ("", ""),
    ],
)
def test_normalised(text: str, expected: str):
    assert normalize_uri(text) == expected
    assert normalize_uri(expected) == expected


@given(st.text("aA%7e2.F/:?#é", max_size=30))
def test_what_is_normalised_stays_as_it_is(text: str):
    assert normalize_uri(normalize_uri("n://h/" + text)) == normalize_uri("n://h/" + text)


@pytest.mark.rule("RES-9")
def test_the_length_of_a_uri_is_bounded():
    assert [is_template(text) for text in ("notes://all", "notes://{id}", "notes://id}")] == [False, True, True]
    assert valid_uri("x:" + "a" * 8_190)
    assert not valid_uri("x:" + "a" * 8_191)
    assert valid_uri("x:abc", max_length=5)
    assert not valid_uri("x:abcd", max_length=5)


# --- the two ways round


TEXT = st.text(max_size=6)
LITERALS = st.sampled_from(  # no comma: the other implementation loses it
    ["/", "-", ".", ":", "a", "://", "é", "%20", "?k=", "&k=", "#", ";", "raw", "20", "=", "@"]
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
        return TEXT.filter(bool) if exploded else TEXT  # the RFC leaves open what an empty item gives
    some = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("/.,:;=&-%é2F")), min_size=1, max_size=6)
    if operator in ("+", "#"):
        ends = "".join(end for end in "?#" if end in text)
        some = st.text("aZ0é/.,:;=&-'()!$*@", min_size=1, max_size=6)
        return some.filter(lambda value: not set(ends) & set(value))
    barred = {"": "/", ".": "./", "/": "" if exploded else "/"}[operator]
    return some.filter(lambda value: not set(barred) & set(value))


def values_for(pieces: Sequence[Piece], draw: st.DrawFn) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for operator, variables in (piece for piece in pieces if not isinstance(piece, str)):
        for name, exploded in variables:
            texts = texts_for(operator, exploded, write(pieces))
            kinds: list[st.SearchStrategy[Any]] = [st.lists(texts, min_size=1, max_size=3) if exploded else texts]
            if operator in NAMED:
                kinds.append(st.none())
            value = draw(st.one_of(kinds))
            if value is not None:
                values[name] = value
    return values


@pytest.mark.rule("RES-15")
@given(templates(), st.data())
def test_what_is_expanded_is_matched(pieces: list[Piece], data: st.DataObject):
    """Another implementation expands it."""
    text = write(pieces)
    try:
        UriTemplate(text).check_matchable()
    except SetupError:
        assume(False)
    values = values_for(pieces, data.draw)
    uri = StdUriTemplate.expand(text, dict(values))
    assume(normalize_uri(uri) == normalize_escapes(uri))  # schemes and hosts have no case, so values there have none
    assert match(text, uri) == values
    assert match(text, respell(uri, data.draw(st.integers(0, 2**16)))) == values


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
            template.match_normal(start + unit * (LONG // len(unit)) + end)


@settings(deadline=None)
@given(st.sampled_from(MATCHABLE), st.text() | st.text("x:/y?a=1&b#%2F.,;", max_size=40))
@example("x://y{?a}", "x://y?" + "&" * 1_000)
def test_any_text_matches_or_not_without_an_error(template: str, text: str):
    assert isinstance(match(template, text), dict | None)


# --- the public suite for RFC 6570


FOLDER = Path(__file__).parents[2] / ".cache" / "suites" / "uritemplate-4.2.0" / "tests" / "fixtures"
FILES = ("spec-examples.json", "spec-examples-by-section.json", "extended-tests.json", "negative-tests.json")
ONLY_ONE_WAY = re.compile(r"keys:[0-9]\}")  # a prefix of a mapping can't be expanded, but it is a template


def cases() -> Iterator[Any]:
    for name in FILES if FOLDER.is_dir() else ():
        for title, group in json.loads((FOLDER / name).read_text(encoding="utf-8")).items():
            for template, expected in group["testcases"]:
                yield pytest.param(group["variables"], template, expected, id=f"{title}: {template}")


CASES = list(cases())


@pytest.mark.rule("RES-15")
def test_the_suite_is_here():
    if not CASES:
        message = f"the RFC 6570 suite is missing in {FOLDER}: run scripts/fetch_suites.py"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    assert len(CASES) > 200


@pytest.mark.seed("S2-42", "S3-34")
@pytest.mark.rule("RES-15")
@pytest.mark.parametrize(("values", "template", "expected"), CASES)
def test_the_suite(values: dict[str, Any], template: str, expected: str | list[str] | bool):
    if expected is False and not ONLY_ONE_WAY.search(template):
        with pytest.raises(SetupError):
            UriTemplate(template)
        return
    parsed = UriTemplate(template)
    try:
        parsed.check_matchable()
    except SetupError:
        return
    for uri in [expected] if isinstance(expected, str) else expected or []:
        for name, value in (parsed.match_normal(uri) or {}).items():
            same = (values.get(name), [values.get(name)], unquote(str(values.get(name))))
            assert value in same or not isinstance(values.get(name), str)
