"""What a variable of one template may be in the mere text of another, and that no text of a value passes a rule."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import product
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Server
from dovetail.errors import NotFound
from dovetail.protocol.uri import UriTemplate
from dovetail.registry import alignments, guards
from dovetail.registry.alignments import possible_texts, respelled

# the reader, the other one, one of the reader's variables, and all texts that are proposed for it
PROPOSED: list[tuple[str, str, str, list[Any]]] = [
    ("n://{a}/{x}", "n://7.0/{y}", "a", ["7.0"]),
    ("n://{a}/x", "n://{y}/%287%29", "a", ["(7)"]),
    ("n://item/{a}", "n://{kind}/7", "a", ["7"]),
    ("n://item/{a}{?b}", "n://{kind}/7{?b}", "a", ["7"]),
    ("n://item/{a}{?b}", "n://{kind}/7{?b}", "b", []),
    ("n://v{a},{b}", "n://v7,{x}", "a", ["7"]),
    ("n://v{a},{b}", "n://v7,8{?x}", "b", ["8"]),
    ("n://{a}/x", "n://7{;v}.0{;w}0/{x}", "a", ["7.00"]),
    ("n://x/{a}{;v}", "n://x/7{;v}.0{;v}0{?w}", "a", ["7", "7.0", "7.00"]),
    ("n://q{+a}", "n://z{;v}/7{?w}", "a", ["/7"]),
    ("n:/{/a*}", "n:/{x}/7/8", "a", [["7", "8"], ["8"]]),
    ("n://{+a}", "n://{x}/7/8", "a", ["/7/8", "7/8", "8"]),
    ("n://x{?a}", "n://x?b=1&a=7.%30{&x}", "a", ["7.0"]),
    ("n://x/{a}{;v}-y", "n://x/7-y/{z}", "a", ["7"]),
    ("n://%7B{a}", "n://%7B7%7D{?z}", "a", ["7}"]),
]


@pytest.mark.parametrize(("reader", "other", "name", "expected"), PROPOSED)
def test_what_a_variable_may_be_in_the_text_of_another_template(
    reader: str, other: str, name: str, expected: list[Any]
) -> None:
    found = [each.text for each in possible_texts(UriTemplate(reader), UriTemplate(other)) if each.name == name]
    assert all(text in found for text in expected)
    assert len(found) <= len(expected) + 6, "the pieces of the beginning are proposed as well"


def test_only_mere_text_is_spelled_differently() -> None:
    found = respelled("n://a{b}c{?d}", str.upper, str.title)
    assert found is not None
    assert found.text == "N://A{b}C{?d}"
    assert respelled("N://{b}", str.upper, str.upper) is None
    assert respelled("n://{a}-{b}", lambda text: text.replace("-", ""), str) is None, "it could be read in two ways"


# ── rules ──

KINDS = {"f": float, "z": int, "at": datetime, "d": timedelta, "l": Literal["7.0", "x"]}


def _function(uri: str) -> Any:
    """One of the variables in a URI; their first letters tell what they are, and optional ones have defaults."""
    template = UriTemplate(uri)
    names = sorted(template.variables, key=lambda name: name in template.optional)
    defaults = {name: 3 if name[0] == "z" else "" for name in template.optional}
    namespace: dict[str, Any] = {"defaults": defaults}
    shown = [f"{name}=defaults[{name!r}]" if name in defaults else name for name in names]
    exec(f"def function({', '.join(shown)}): return ''", namespace)
    function = namespace["function"]
    kinds = {name: KINDS.get(name, KINDS.get(name[0], str)) for name in names}
    function.__annotations__ = {name: list[str] if name in template.exploded else kinds[name] for name in names}
    return function


def _server(wide: str, *strict: str) -> Server:
    server = Server("alignments", version="1.0.0")
    for number, uri in enumerate(strict):
        server.add_resource(uri, _function(uri), name=f"strict{number}", scopes=["s"])
    server.add_resource(wide, _function(wide), name="wide")
    return server


def _beside(strict: list[tuple[str, Any]], wide: str, function: Any) -> Server:
    server = Server("beside", version="1.0.0")
    for number, (uri, guarded) in enumerate(strict):
        server.add_resource(uri, guarded, name=f"strict{number}", scopes=["s"])
    server.add_resource(wide, function, name="wide")
    return server


def _is_guarded(server: Server, uri: str) -> bool:
    return server.engine.library._find(uri)[0].access is not None


NOON = "2026-01-01T12:00:00Z"

# the template with a rule, the open one, other texts of what the rule is for, and some of something else
PASSED_BEFORE: list[tuple[str, str, list[str], list[str]]] = [
    (
        f"n://report/{NOON}{{?q}}",
        "n://report/{at}",
        ["n://report/2026-01-01T12:00:00.0Z"],
        ["n://report/2026-01-02T12:00:00Z"],
    ),
    (f"n://log/{NOON}/{{+path}}", "n://log/{at}/sum", ["n://log/2026-01-01T12:00:00.0Z/sum"], []),
    ("n://item/7.0/{x}{?v}", "n://item/{f}/{x}", ["n://item/7/one"], ["n://item/8/one"]),
    ("n://item/7.0{;v}/x", "n://item/{f}/x", ["n://item/7/x"], ["n://item/8/x"]),
    ("n://item/7.0{?v,w}", "n://item/{f}{?v}", ["n://item/7", "n://item/7?v=1"], ["n://item/8?v=1"]),
    ("n://item/7.0{/c}", "n://item/{f}/more", ["n://item/7/more"], ["n://item/8/more"]),
    ("n://item/7.0{/c*}", "n://item/{f}/a/b", ["n://item/7/a/b"], ["n://item/8/a/b"]),
    ("n://x{y}/7.0", "n://xitem/{f}", ["n://xitem/7"], ["n://xitem/8"]),
    ("n://{+y}/7.0", "n://a/b/{f}", ["n://a/b/7"], ["n://a/b/8"]),
    ("n://a+b/7.0{?v}", "n://a%2Bb/{f}", ["n://a%2Bb/7"], ["n://a%2Bb/8"]),
    ("n://item{/l}", "n://item/{f}", ["n://item/7", "n://item/7.00"], ["n://item/8"]),
    ("n://7/{x}?z=3{&q}", "n://{f}/{x}{?z,q}", ["n://7.0/a", "n://7/a?z=3.0&q=1", "n://7/a?q=1"], ["n://7/a?z=4"]),
    ("Notes://a+b/{x}", "Notes://{s}/{x}", ["Notes://a%2Bb/1"], ["Notes://a%2Bc/1"]),
    ("n://a+b/{x}", "n://{s}/{x}", ["n://a%2Bb/1"], ["n://a%2Bc/1"]),
    ("n://7.0/../x/{y}", "n://{f}/../x/{y}", ["n://7/../x/1"], ["n://8/../x/1"]),
    ("n://x/{+y}", "n://7.0/../{+x}", [], ["n://7.0/../y/1"]),
    ("n://7.0/b/{y}", "n://{f}/a/../b/{y}", ["n://7/a/../b/1"], ["n://8/a/../b/1"]),
    ("n://7.0/{s}", "n://{f}/{s}", ["n://7/a%3Fb"], ["n://8/a%3Fb"]),
    ("n://7.0/a+b/{x}", "n://{f}/{s}/{x}", ["n://7/a%2Bb/1", "n://7/a%2Bb/c%3Fd"], ["n://7/a%2Bc/1"]),
    ("n://a+b/{x}", "n://{s}/{x}", ["n://a%2Bb/c%3Fd", "n://a%2Bb/c%252Fd"], ["n://a%2Bc/c%3Fd"]),
    ("n://a+b/{x},{y}", "n://{s}/{x},{y}", ["n://a%2Bb/1%2C2,3", "n://a%2Bb/1%3F2,3"], ["n://a%2Bc/1%2C2,3"]),
    ("n://a+b/{x}", "n://{+p}", ["n://a%2Bb/c%3Fd"], ["n://a%2Bc/c%3Fd"]),
    ("n://a+b%3F/{x}", "n://{s}/{x}", ["n://a%2Bb%3F/c%3Fd"], ["n://a%2Bc%3F/c%3Fd"]),
    ("n://x+y/{f}/{s}", "n://x%2By/7/{s}", ["n://x%2By/7/c%3Fd"], []),
    ("n://a/{x}", "n://a/{x}{?z}", ["n://a/c%3Fd?z=3", "n://a/c%3fd?z=3.0"], ["n://a/c%3Fd?z=4"]),
    ("Notes://a+b/{x}", "notes://{s}/{x}", ["notes://a%2Bb/c%3Fd"], ["notes://a%2Bc/c%3Fd"]),
    ("n://x{.y}/k.7.0/{w}", "n://x.{f}/k.{f2}/{w}", ["n://x.7/k.7/w"], ["n://x.7/k.8/w"]),  # `.y` is no `7.0`
    ("n://7.0/{d}", "n://{f}/{d}{?z}", ["n://7/PT1H?z=3"], ["n://8/PT1H?z=3"]),
    ("n://7.0/v{.y}", "n://{f}/v.{f2}", ["n://7/v.5.0", "n://7/v.5"], ["n://8/v.5.0"]),
    ("n://x+y/{s},z", "n://x%2By/{s},z", ["n://x%2By/1%2C2,z"], []),
    ("n://x+y/7.0/{s},z", "n://x%2By/{f}/{s},z", ["n://x%2By/7/1%2C2,z"], ["n://x%2By/8/1%2C2,z"]),
    ("n://7.0/{s},z", "n://{f}/{s},z", ["n://7/1%2C2,z"], ["n://8/1%2C2,z"]),
    ("n://a+b/{x},z", "n://{s}/{x},z", ["n://a%2Bb/1%2C2,z"], ["n://a%2Bc/1%2C2,z"]),
    ("n://a+7.0{?q}", "n://a%2B{f}", ["n://a%2B7"], ["n://a%2B8"]),
    ("n://a%2Bb%3F/{x}", "n://{+p}", ["n://a+b%3F/c%3Fd"], ["n://a+c%3F/c%3Fd"]),
    ("n://a/b/{x}", "n:/{/p*}", ["n://a%2Fb/c"], ["n://a%2Fc/c"]),
    ("n://7.0,2.00/{x}", "n://{f},{f2}/{x}", ["n://7,2/x", "n://7,2.0/x", "n://7.00,2/x"], ["n://2,7/x"]),
]


@pytest.mark.parametrize(("strict", "wide", "same", "other"), PASSED_BEFORE)
def test_a_rule_holds_however_the_templates_differ(strict: str, wide: str, same: list[str], other: list[str]) -> None:
    server = _server(wide, strict)
    assert [uri for uri in same if not _is_guarded(server, uri)] == []
    assert [uri for uri in other if _is_guarded(server, uri)] == []


def test_a_default_may_stand_where_it_can_not_be_left_out() -> None:
    server = _server("n://x/{f}", "n://7.0/{x}")

    def numbered(f: float, z: int = 3) -> str:
        return ""

    server.add_resource("n://{f}/{z}", numbered, name="numbered")
    assert _is_guarded(server, "n://7/3")
    assert not _is_guarded(server, "n://8/3")


@pytest.mark.parametrize(
    ("strict", "wide", "uri"),
    [("n://x/{z}", "n://x/{z}{?w}", "n://x/3?w=4"), ("n://7.0/{z}", "n://{f}/{z}{?w}", "n://7/3?w=4")],
)
def test_only_what_can_be_left_out_is(strict: str, wide: str, uri: str) -> None:
    def numbered(f: float = 7, z: int = 3, w: int = 4) -> str:
        return ""

    server = _beside([(strict, _function(strict))], wide, numbered)
    assert _is_guarded(server, uri)
    for other in ("3?w=5", "5?w=5"):
        assert not _is_guarded(server, uri.replace("3?w=4", other))


CHOSEN = [
    ("n://x{?l}", "n://x{?l,z}", ["n://x?l=7", "n://x?l=7.00&z=3"], ["n://x?l=7&z=4", "n://x?l=8"]),
    ("n://x?f={l}", "n://x{?f}", ["n://x?f=7", "n://x?f=7.00"], ["n://x?f=8", "n://x"]),
    ("n://x{?l}", "n://x?l={f}", ["n://x?l=7", "n://x?l=7.00"], ["n://x?l=8"]),
    ("n://y/{l}", "n://x/../y/{f}", ["n://x/../y/7"], ["n://x/../y/8"]),
    ("n://y/{l}", "n://x/{+p}/{f}", ["n://x/../y/7"], ["n://x/../z/7"]),
]


@pytest.mark.parametrize(("strict", "wide", "same", "other"), CHOSEN)
def test_a_choice_is_found_where_it_can_stand(strict: str, wide: str, same: list[str], other: list[str]) -> None:
    def chosen(l: Literal["7.0", "x"] = "x") -> str:  # noqa: E741
        return ""

    def numbered(l: float = 0, f: float = 0, z: int = 3, p: str = "") -> str:  # noqa: E741
        return ""

    server = _beside([(strict, chosen)], wide, numbered)
    assert [uri for uri in same if not _is_guarded(server, uri)] == []
    assert [uri for uri in other if _is_guarded(server, uri)] == []


STATIC = [
    ("n://a+b/7.0", "n://a%2Bb/{f}", "n://a%2Bb/"),
    ("n://a%2Bb/7.0", "n://a+b/{f}", "n://a+b/"),
    ("Notes://7.0", "notes://{f}", "notes://"),
    ("n://a/b/7.0", "n://a%2Fb/{f}", "n://a%2Fb/"),
    ("n://x/7.0", "n://a/../x/{f}", "n://a/../x/"),
    ("n://a/../x/7.0", "n://x/{f}{?z}", "n://x/"),
    ("n://x/7.0", "n://a{/p}/../../x/{f}", "n://a/q/../../x/"),
]


@pytest.mark.parametrize(("strict", "wide", "begin"), STATIC)
def test_a_rule_on_one_uri_holds_however_the_template_spells_it(strict: str, wide: str, begin: str) -> None:
    server = _beside([(strict, lambda: "")], wide, _function(wide))
    if "{/p}" not in wide:  # it names a value that the resource has not
        assert [text for text in ("7.0", "7", "7.00") if not _is_guarded(server, begin + text)] == []
    assert not _is_guarded(server, begin + "8")


def test_each_text_of_a_value_may_have_a_rule_of_its_own() -> None:
    server = _server("n://{f}/{x}", "n://7.0/{z}", "n://7.00/{x}")
    assert _is_guarded(server, "n://7/foo"), "the first one takes numbers only"
    assert _is_guarded(server, "n://7/1")


def test_what_has_too_many_texts_to_try_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MOST_WORK", 8 * 120)
    server = _server("n://{f},{f2},{f3}", "n://7,7.0,7.00{?q}")
    with pytest.raises(NotFound, match="which rule"):
        _is_guarded(server, "n://7e0,7e0,7e0")
    assert not _is_guarded(server, "n://8,7e0,8")


def test_texts_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    server = _server("n://{f}/{x}", "n://7.0/{x}")
    assert _is_guarded(server, "n://7/a")
    monkeypatch.setattr(alignments, "possible_texts", None)
    assert _is_guarded(server, "n://7/b")


SEGMENTS = st.lists(
    st.tuples(
        st.sampled_from(["7.0", "7.00", "text", "p-7.0", "{t%d}", "p-{t%d}", "7.0,{t%d}", "{t%d},7.0"]),
        st.sampled_from(["7.0", "text", "p-7.0", "{f%d}", "{s%d}", "p-{f%d}", "{f%d},{s%d}", "{s%d},{f%d}"]),
    ),
    min_size=1,
    max_size=3,
)
STRICT_ENDS = st.sampled_from(["", "{?q}", "{?q,r}", "{;q}", "/{+rest}", "{/rest}", "{/rest*}", "{#rest}"])
WIDE_ENDS = st.sampled_from(["", "{?q}", "{?z}", "/more", "/{more}", "/a/b", "{;q}"])
ENDS = {"{?q}": ["", "?q=1"], "{?z}": ["", "?z=3", "?z=4"], "/{more}": ["/x"], "{;q}": ["", ";q=1"]}
NUMBERS = ["7", "7.0", "7.00"]


def _numbered(segments: list[str], end: str) -> str:
    named = [each.replace("%d", str(place)) for place, each in enumerate(segments)]
    return "n://" + "/".join(named) + end


def _asked(wide: UriTemplate, end: str, number: str) -> str:
    texts: dict[str, Any] = {name: number if name[0] == "f" else "7.0" for name in wide.variables}
    base = {name: text for name, text in texts.items() if name not in wide.optional and name != "more"}
    return wide.expand({**base, "more": "x"}) + (end if "?" in end or ";" in end else "")


def _same(wide: UriTemplate, uri: str) -> Iterator[str]:
    """All that has the same values."""
    texts = wide.match(uri)
    assert texts is not None
    options = [NUMBERS if name[0] == "f" else [text, None] if text == "3" else [text] for name, text in texts.items()]
    for chosen in product(*options):
        yield wide.expand({name: text for name, text in zip(texts, chosen, strict=True) if text is not None})


@given(SEGMENTS, STRICT_ENDS, WIDE_ENDS, st.sampled_from(["7", "7.0", "7.00", "70e-1"]))
def test_no_text_of_a_value_passes_a_rule(
    pairs: list[tuple[str, str]], strict_end: str, wide_end: str, number: str
) -> None:
    strict, wide = (_numbered([pair[side] for pair in pairs], end) for side, end in ((0, strict_end), (1, wide_end)))
    if "{" not in strict or "{" not in wide or strict == wide:
        return
    server, guarded, reader = _server(wide, strict), UriTemplate(strict), UriTemplate(wide)
    for end in ENDS.get(wide_end, [""]):
        uri = _asked(reader, end, number)
        assert _is_guarded(server, uri) == any(guarded.match(each) is not None for each in _same(reader, uri)), uri


TEXTS = st.sampled_from(["a+b", "c?d", "1,2", "(é)", "%2F", "x"])
SPELLED = ["a+b", "a%2Bb", "1,2", "1%2c2", "%28%C3%A9)", "c%3Fd", "{t%d}", "{t%d},{u%d}", "(é)"]


@given(
    st.lists(
        st.tuples(st.sampled_from(SPELLED), st.sampled_from(["{s%d}", "{s%d},{r%d}", "x"])), min_size=1, max_size=3
    ),
    st.sampled_from(["", "{?q}", "/{+rest}"]),
    st.sampled_from(["", "{?z}", "/more", "/{more}"]),
    st.data(),
)
def test_no_spelling_of_a_text_passes_a_rule(
    pairs: list[tuple[str, str]], strict_end: str, wide_end: str, data: st.DataObject
) -> None:
    strict, wide = (_numbered([pair[side] for pair in pairs], end) for side, end in ((0, strict_end), (1, wide_end)))
    if "{" not in strict or "{" not in wide or strict == wide:
        return
    server, guarded, reader = _server(wide, strict), UriTemplate(strict), UriTemplate(wide)
    texts = {name: "3" if name == "z" else data.draw(TEXTS, name) for name in reader.variables}
    uri = reader.expand(texts)
    if reader.match(uri) != texts:
        return
    with_default = [texts, {name: text for name, text in texts.items() if name != "z"}]
    raw = [uri, *(reader.expand(each).replace("%2B", plus) for each in with_default for plus in ("+", "%2B"))]
    same = [each.replace("%28", "(").replace("%29", ")") for each in raw] + raw
    same += [each.replace("%2C", ",", count) for each in same for count in range(1, 4)]
    same = [each for each in same if reader.match(each) in with_default]
    assert _is_guarded(server, uri) >= any(guarded.match(each) is not None for each in same), (uri, same)
