"""Elicitation forms as each revision spells them, and responses in the newest spelling."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Elicit, Roots
from dovetail.errors import QuestionFailed, SetupError
from dovetail.protocol.elicitation import InputRequired, render_form, restore_content
from dovetail.protocol.revisions import BY_NAME, R2025_06_18, R2025_11_25, R2026_07_28
from official import FORM_REVISIONS, assert_official
from stable_ids import stable

OLD = R2025_06_18
TOPPINGS = {"type": "array", "title": "Toppings", "items": {"type": "string", "enum": ["cheese", "ham"]}}


def form(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


# What a function requires itself

NAME = Elicit("Name?", str)


@pytest.mark.rule("MRTR-4")
@pytest.mark.parametrize(
    "given",
    [
        {"requests": {"name": NAME}},
        {"requests": {"name": NAME, "folders": Roots()}, "state": 1},
        {"state": None},
        {"requests": {}, "state": 0},
        {"requests": {"k" * 256: NAME}},
        {"requests": {str(number): NAME for number in range(100)}},
    ],
)
def test_requests_or_a_state_are_enough(given: dict[str, Any]) -> None:
    required = InputRequired(**given)
    assert required.requests == given.get("requests", {})


@pytest.mark.rule("MRTR-4")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "needs questions, or state="),
        ({"requests": {}}, "needs questions, or state="),
        ({"requests": [NAME]}, "questions"),
        ({"requests": [], "state": 1}, "in a dict"),
        ({"requests": {"": NAME}}, "up to 256 characters"),
        ({"requests": {"k" * 257: NAME}}, "up to 256 characters"),
        ({"requests": {7: NAME}}, "keys of your own"),
        ({"requests": {"name": "Name?"}}, "Elicit"),
        ({"requests": {"name": NAME, "other": None}, "state": 1}, "Elicit"),
        ({"requests": {str(number): NAME for number in range(101)}}, "up to 100 questions"),
    ],
)
def test_what_can_not_be_required(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match="InputRequired") as caught:
        InputRequired(**given)
    assert words in str(caught.value)


# Rendering


@pytest.mark.rule("EL-5")
@pytest.mark.parametrize("revision", [R2025_11_25, R2026_07_28], ids=lambda revision: revision.name)
def test_new_clients_get_the_form_itself(revision: Any) -> None:
    whole = form(["toppings"], toppings=TOPPINGS, size={"type": "integer", "default": 3})
    content = {"toppings": ["ham"]}
    assert render_form(whole, revision) is whole
    assert restore_content(whole, content, revision) is content


@pytest.mark.rule("EL-5")
@pytest.mark.parametrize(
    ("part", "older"),
    [
        ({"type": "string", "format": "email", "default": "a@b.c"}, {"type": "string", "format": "email"}),
        ({"type": "integer", "minimum": 1, "default": 3}, {"type": "integer", "minimum": 1}),
        ({"type": "number", "title": "N", "default": 0.5}, {"type": "number", "title": "N"}),
        ({"type": "boolean", "default": True}, {"type": "boolean", "default": True}),
        ({"type": "string", "enum": ["a", "b"], "default": "a"}, {"type": "string", "enum": ["a", "b"]}),
        (
            {"type": "string", "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}], "default": "b"},
            {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
        ),
    ],
    ids=stable,
)
def test_old_clients_get_the_older_spelling(part: dict[str, Any], older: dict[str, Any]) -> None:
    rendered = render_form(form(["it"], it=part), OLD)
    assert rendered == form(["it"], it=older)
    assert_official({"message": "?", "requestedSchema": rendered}, OLD.name)


def test_a_multi_select_becomes_switches() -> None:
    whole = form(["toppings", "name"], toppings=TOPPINGS, name={"type": "string"})
    assert render_form(whole, OLD) == {
        "type": "object",
        "properties": {
            "toppings: cheese": {"type": "boolean", "title": "Toppings: cheese"},
            "toppings: ham": {"type": "boolean", "title": "Toppings: ham"},
            "name": {"type": "string"},
        },
        "required": ["toppings: cheese", "toppings: ham", "name"],
    }


def test_switches_say_what_a_list_would() -> None:
    options = [{"const": "c", "title": "Cheese"}, {"const": "h", "title": "Ham"}]
    part = {"type": "array", "items": {"anyOf": options}, "minItems": 1, "maxItems": 2, "default": ["h"]}
    described = "On top. (choose at least 1, at most 2)"
    assert render_form(form(["it"], it=part | {"description": "On top."}), OLD) == {
        "type": "object",
        "properties": {
            "it: c": {"type": "boolean", "title": "Cheese", "description": described, "default": False},
            "it: h": {"type": "boolean", "title": "Ham", "description": described, "default": True},
        },
        "required": ["it: c", "it: h"],
    }


def test_the_name_of_a_switch_is_its_own() -> None:
    whole = form(**{"a: b": {"type": "string"}, "a": {"type": "array", "items": {"type": "string", "enum": ["b"]}}})
    assert list(render_form(whole, OLD)["properties"]) == ["a: b", "a: b (2)"]
    assert restore_content(whole, {"a: b": "text", "a: b (2)": True}, OLD) == {"a: b": "text", "a": ["b"]}


# Restoring


@pytest.mark.rule("EL-9")
@pytest.mark.parametrize("required", [False, True], ids=["optional", "required"])
@pytest.mark.parametrize(
    ("default", "content", "restored"),
    [
        (None, {}, {}),
        (None, {"t: a": True}, {"t": ["a"]}),
        (None, {"t: b": True, "t: a": True}, {"t": ["a", "b"]}),
        (None, {"t: a": False}, {"t": []}),
        (["b"], {}, {}),
        (["b"], {"t: a": True}, {"t": ["a", "b"]}),
        (["b"], {"t: b": False}, {"t": []}),
        (["b"], {"t: b": None, "t: a": None}, {}),
        (None, {"other": 1}, {"other": 1}),
        (None, {"t": ["forged"], "t: a": True}, {"t": ["a"]}),
        (None, {"t": ["a"]}, {"t": ["a"]}),
        (["b"], {"t": "as it came", "t: a": None}, {"t": "as it came"}),
    ],
    ids=stable,
)
def test_switches_become_a_list(required: bool, default: Any, content: Any, restored: Any) -> None:
    part = {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}
    whole = form(["t"] if required else None, t=part | ({"default": default} if default else {}))
    assert restore_content(whole, content, OLD) == restored


@pytest.mark.rule("EL-9")
@pytest.mark.parametrize("state", ["true", 1, 0, [], {}], ids=stable)
def test_a_switch_is_on_or_off(state: Any) -> None:
    with pytest.raises(QuestionFailed, match=r"toppings: ham: expected true or false"):
        restore_content(form(toppings=TOPPINGS), {"toppings: ham": state}, OLD)


# Any form


texts = st.text(max_size=5)
titles = st.fixed_dictionaries({}, optional={"title": texts, "description": texts})
choices = st.lists(texts, min_size=1, max_size=4, unique=True)


@st.composite
def parts(draw: st.DrawFn) -> tuple[dict[str, Any], Any]:
    """A property and a response to it."""
    kind = draw(st.sampled_from(["string", "integer", "number", "boolean", "one", "several"]))
    notes, has_default = draw(titles), draw(st.booleans())
    if kind in ("one", "several"):
        known, titled = draw(choices), draw(st.booleans())
        options = [{"const": choice, "title": choice.upper()} for choice in known]
        chosen = (
            [choice for choice in known if draw(st.booleans())] if kind == "several" else draw(st.sampled_from(known))
        )
        if kind == "several":
            values = {"type": "array", "items": {"anyOf": options} if titled else {"type": "string", "enum": known}}
        else:
            values = {"type": "string"} | ({"oneOf": options} if titled else {"enum": known})
    else:
        values = {"type": kind}
        kinds = {"string": texts, "integer": st.integers(-9, 9), "number": st.floats(-9, 9), "boolean": st.booleans()}
        chosen = draw(kinds[kind])
    return values | notes | ({"default": chosen} if has_default else {}), chosen


@st.composite
def answered_forms(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    drawn = draw(st.dictionaries(texts, parts(), max_size=4))
    required = [name for name in drawn if draw(st.booleans())]
    return form(required, **{name: part for name, (part, _) in drawn.items()}), {n: v for n, (_, v) in drawn.items()}


def fill_in(whole: dict[str, Any], rendered: dict[str, Any], wanted: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a user of an old client does who wants to say this: they go through the form from top to bottom."""
    lines = iter(rendered["properties"])
    for name, part in whole["properties"].items():
        if part["type"] != "array":
            yield next(lines), wanted[name]
        else:
            items = part["items"]
            known = items.get("enum") or [option["const"] for option in items["anyOf"]]
            yield from ((next(lines), choice in wanted[name]) for choice in known)
    assert next(lines, None) is None


@pytest.mark.rule("EL-4", "EL-5", "EL-6", "JS-11")
@given(answered_forms())
def test_every_form_is_official_and_every_response_is_restored(answered: tuple[dict[str, Any], dict[str, Any]]) -> None:
    whole, wanted = answered
    for name in FORM_REVISIONS:
        revision = BY_NAME[name]
        rendered = render_form(whole, revision)
        assert_official({"message": "?", "requestedSchema": rendered}, name)
        content = wanted if revision.rich_forms else dict(fill_in(whole, rendered, wanted))
        assert restore_content(whole, content, revision) == wanted


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@given(answered_forms(), st.dictionaries(texts | st.sampled_from(["a: a", "a"]), json_values, max_size=4))
def test_hostile_responses_are_restored_or_refused(answered: Any, content: dict[str, Any]) -> None:
    whole, _ = answered
    for name in FORM_REVISIONS:
        try:
            restored = restore_content(whole, content, BY_NAME[name])
        except QuestionFailed:
            continue
        assert isinstance(restored, dict)
