"""URI templates: what they match, and which are refused and why; and URIs."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uri_examples import FOUND, MATCHABLE

from dovetail.errors import SetupError
from dovetail.protocol.uri_template import UriTemplate, is_template, normalised, valid_uri

# --- parsing


@pytest.mark.rule("RES-15")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("notes://{id", "lone '{'"),
        ("notes://id}", "lone '}'"),
        ("notes://{{id}}", "lone '{'"),
        ("notes://{}", "'' in {} is not a variable"),
        ("notes://{a,}", "'' in {a,} is not a variable"),
        ("notes://{a b}", "'a b'"),
        ("notes://{a-b}", "'a-b'"),
        ("notes://{a..b}", "'a..b'"),
        ("notes://{a:0}", "'a:0'"),
        ("notes://{a:10000}", "'a:10000'"),
        ("notes://{a:3*}", "'a:3*'"),
        ("notes://{a\n}", r"'a\n'"),
        ("notes://{é}", "'é'"),
        ("notes://{=a}", "operator '='"),
        ("notes://{|a}", "operator '|'"),
        ("my notes://{a}", "write %20"),
        ("notes://100%/{a}", "write %25"),
        ("notes://<{a}>", "write %3C"),
        ("notes://\x00{a}", "write %00"),
    ],
)
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


def test_a_prefix_takes_strings_only():
    template = UriTemplate("x://{a:3}")
    assert template.expand({"a": "tür-und-tor"}) == "x://t%C3%BCr"
    with pytest.raises(ValueError, match="'a' has the prefix :3"):
        template.expand({"a": ["one"]})


# --- matching


NOT_FOUND = [
    ("notes://all", "notes://al"),
    ("notes://{id}", "notes://"),
    ("notes://{id}", "note://7"),
    ("notes://{id}", "notes://a/b"),
    ("notes://{id}", "notes://a%2Fb"),
    ("notes://{id}", "notes://a%2fb"),
    ("notes://{id}", "notes://a?b"),
    ("notes://{id}", "notes://a#b"),
    ("notes://{id}", "notes://a b"),
    ("notes://{id}", "notes://a\n"),
    ("notes://{id}", "notes://a\x00"),
    ("notes://{id}", "notes://a%"),
    ("notes://{id}", "notes://a%4"),
    ("notes://{id}", "notes://a%zz"),
    ("notes://{id}", "notes://%ff"),
    ("notes://{id}", "notes://%ed%a0%80"),
    ("notes://{id}", "notes://\ud800"),
    ("notes://{id}20", "notes://a%20"),
    ("geo:{lat},{lon}", "geo:1.5"),
    ("files://{+path}", "files://"),
    ("files://{+path}", "files://a b"),
    ("files://{+path}{?rev}", "files://a?b"),
    ("x://y{.a}", "x://y.a.b"),
    ("x://y{.a}", "x://y.a%2Fb"),
    ("x://y{/a}", "x://y"),
    ("x://y{/a}", "x://y/"),
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
    ("x://y{?a}", "x://y?a=1&"),
    ("x://y{?a}", "x://y?a=%ff"),
    ("x://y{?tags*}", "x://y?tags=a&other=b"),
    ("x://y{?tags*}", "x://y?other=b&tags=a"),
    ("x://y{?rest*}", "x://y?a=1&a=2"),
    ("x://y{?rest*}", "x://y?=1"),
    ("x://y{?rest*}", "x://y?%ff=1"),
    ("x://y{?a*,b*}", "x://y?c=1"),
]


@pytest.mark.rule("RES-15")
@pytest.mark.parametrize(("template", "uri", "values"), FOUND)
def test_match(template: str, uri: str, values: dict[str, Any]):
    assert UriTemplate(template).match(uri) == values


@pytest.mark.rule("RES-15")
@pytest.mark.parametrize(("template", "uri"), NOT_FOUND)
def test_no_match(template: str, uri: str):
    assert UriTemplate(template).match(uri) is None


# --- templates that can't be matched


@pytest.mark.rule("RES-15")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{a}{b}", ["a", "b"]),
        ("{+a}{b}", ["a", "b"]),
        ("{a}{+b}", ["a", "b"]),
        ("{a}-{b}", ["a", "b"]),
        ("{name}.{ext}", ["name", "ext"]),
        ("{+a}/{+b}", ["a", "b"]),
        ("{+a}/x/{+b}", ["a", "b"]),
        ("{+a},{b}", ["a", "b"]),
        ("{+a,b}", ["a", "b"]),
        ("{#a,b}", ["a", "b"]),
        ("{x*,y}", ["x", "y"]),
        ("{/a*}{/b*}", ["a", "b"]),
        ("{/a*}/x{/b*}", ["a", "b"]),
        ("{.a*}{.b*}", ["a", "b"]),
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
    template = UriTemplate(text)  # expansion alone is fine
    with pytest.raises(SetupError) as caught:
        template.check_matchable()
    message = str(caught.value)
    assert repr(text) in message
    assert f"ambiguous in {' and '.join(map(repr, names))}; put " in message
    with pytest.raises(SetupError):
        template.match("x")


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
    ("{a}", "{b}"),
    ("x://{a}", "X://y{b}"),
    ("x://{a}.md", "x://y{b}"),
    ("x://{+a}", "x://y/{b}"),
    ("x://y", "x://{a}"),
    ("x://y{?a}", "x://y{;b}"),
    ("x://y{?a}", "x://y?b={b}"),
    ("x://%C3%A9{a}", "x://é{b}"),
]
APART = [
    ("x://{a}", "y://{b}"),
    ("x://{a}", "x://{b}/c"),
    ("x://{a}.md", "x://{b}.txt"),
    ("x://{.a}", "x://{b}/"),
    ("x://y{?a}", "x://y/{b}"),
    ("x://A{a}", "x://a{b}"),
]


@pytest.mark.parametrize(("one", "other", "expected"), [(*p, True) for p in OVERLAPPING] + [(*p, False) for p in APART])
def test_whether_a_uri_can_fit_two_templates(one: str, other: str, expected: bool):
    assert UriTemplate(one).overlaps(UriTemplate(other)) is expected
    assert UriTemplate(other).overlaps(UriTemplate(one)) is expected


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(MATCHABLE), st.sampled_from([(template, uri) for template, uri, _ in FOUND]))
def test_two_templates_that_fit_a_uri_overlap(template: str, pair: tuple[str, str]):
    if UriTemplate(template).match(pair[1]) is not None:
        assert UriTemplate(template).overlaps(UriTemplate(pair[0]))


# --- URIs


@pytest.mark.rule("RES-15")
@pytest.mark.parametrize(
    ("text", "expected"), [("notes://all", False), ("notes://{id}", True), ("notes://id}", True), ("{", True)]
)
def test_is_template(text: str, expected: bool):
    assert is_template(text) is expected


@pytest.mark.rule("RES-9", "RES-14")
@pytest.mark.parametrize(
    "text",
    [
        "a:",
        "notes://7",
        "file:///etc/hosts",
        "https://user@example.org:80/a/b;c=d?e=f/g?h#i/j?k",
        "http://[::1]:80/",
        "urn:isbn:0451450523",
        "mailto:bob@example.org",
        "my-app+v1.2://x",
        "notes://grün/日本語",
        "notes://a%20b",
        "data:,a'b(c)!*",
    ],
)
def test_a_valid_uri(text: str):
    assert valid_uri(text)


@pytest.mark.rule("RES-9", "RES-14")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "notes",
        "/etc/hosts",
        "//host/path",
        "://x",
        "1a://x",
        "my_app://x",
        "né://x",
        "notes://a b",
        "notes://a\n",
        "notes://a\x00",
        "notes://a\x7f",
        "notes://a\x85",
        "notes://a\u00a0b",
        "notes://a\u2028b",
        "notes://a\u202eb",
        "notes://a\ud800",
        "notes://{id}",
        "notes://a%",
        "notes://a%2",
        "notes://a%zz",
        'notes://a"b',
        "notes://a<b>",
        "notes://a\\b",
        "notes://a|b",
        "notes://a^b",
        "notes://a`b",
        "notes://a#b#c",
        "notes:a[b]",
        "notes://a?b[c]",
        " notes://a",
        "notes://a ",
    ],
)
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
        ("FILE:///A", "file:///A"),
        ("n://a/b/../c/./d", "n://a/c/d"),
        ("n://a/../../b", "n://a/b"),
        ("n://a/b/..", "n://a/"),
        ("n://a/b/.", "n://a/b/"),
        ("n://a/%2e%2E/b/...", "n://a/b/..."),
        ("n://../b", "n://../b"),
        ("n://a//../b?x=/../y#/../z", "n://a/b?x=/../y#/../z"),
        ("n:/a/../b", "n:/b"),
        ("n:a/../b", "n:a/b"),
        ("../a", "../a"),
        ("%zz", "%zz"),
        ("", ""),
    ],
)
def test_normalised(text: str, expected: str):
    assert normalised(text) == expected
    assert normalised(expected) == expected


@given(st.text("aA%7e2.F/:?#é", max_size=30))
def test_what_is_normalised_stays_as_it_is(text: str):
    assert normalised(normalised("n://h/" + text)) == normalised("n://h/" + text)


@pytest.mark.rule("RES-9")
def test_the_length_of_a_uri_is_bounded():
    assert valid_uri("x:" + "a" * 8_190)
    assert not valid_uri("x:" + "a" * 8_191)
    assert valid_uri("x:abc", max_length=5)
    assert not valid_uri("x:abcd", max_length=5)


@settings(deadline=None)
@given(st.sampled_from(MATCHABLE), st.dictionaries(st.sampled_from(["id", "path", "a", "name"]), st.text()))
def test_an_expansion_is_a_valid_uri(template: str, values: dict[str, str]):
    if re.match("[a-z]+:", template) and "{+" not in template and "{#" not in template:
        assert valid_uri(UriTemplate(template).expand(values))
