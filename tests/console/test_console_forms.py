"""Forms made from schemas of every shape, in a browser: what is typed, what is said to be wrong, what is sent."""

import json
from typing import Any

import pytest
from console_impostor import Impostor, schema
from console_page import ConsolePage

pytestmark = pytest.mark.slow

TEXT = {"type": "string"}
NUMBER = {"type": "number"}


def sent(impostor: Impostor) -> Any:
    """The arguments of the call that is made now."""
    tab = impostor.tab
    with tab.page.expect_request(lambda request: '"tools/call"' in (request.post_data or "")) as asked:
        tab.button("Call").click()
    tab.sees(tab.result, "Done")
    return json.loads(asked.value.post_data)["params"]["arguments"]


def complaint(field: Any) -> str:
    """What a screen reader says of a field that is wrong; nothing if it is right."""
    if field.get_attribute("aria-invalid") != "true":
        return ""
    said: str = field.evaluate(
        """it => it.getAttribute("aria-describedby").split(" ")
          .map((id) => document.getElementById(id)).filter((each) => each.matches(".field-error") && !each.hidden)
          .map((each) => each.textContent).join(" ")"""
    )
    return said


def has_focus(field: Any) -> bool:
    return bool(field.evaluate("it => it === document.activeElement"))


# ── what is wrong ──


def test_every_field_that_is_wrong_says_so_at_once(impostor: Impostor) -> None:
    needed = [f"needed_{at}" for at in range(4)]
    given = schema(
        first=TEXT, where={"type": "object"}, amount=NUMBER, inner=schema(count=NUMBER, name=TEXT),
        list={"type": "array", "items": NUMBER}, **dict.fromkeys(needed, TEXT),
    )  # fmt: skip
    given["properties"]["inner"]["required"] = ["name"]
    impostor.offer(given | {"required": ["where", *needed]})
    tab = impostor.tab
    tab.field("where").fill("{bad")
    tab.field("amount").fill("abc")
    tab.field("count").fill("x")
    tab.button("Add to list").click()
    tab.field("list 1").fill("no")
    tab.button("Call").click()
    said = {name: complaint(tab.field(name)) for name in ["where", "amount", "count", "name", "list 1", *needed]}
    assert {name: words.split(":")[0] for name, words in said.items()} == {
        "where": "Is not JSON", "amount": "Must be a number.", "count": "Must be a number.", "name": "Is required.",
        "list 1": "Must be a number.", **dict.fromkeys(needed, "Is required."),
    }  # fmt: skip
    assert has_focus(tab.field("where"))
    tab.field("where").fill("{}")
    tab.button("Call").click()
    assert has_focus(tab.field("amount"))
    assert complaint(tab.field("where")) == ""


def test_all_that_is_wrong_with_one_field_is_said(impostor: Impostor) -> None:
    impostor.offer(schema(code={"type": "string", "minLength": 4, "pattern": "^[a-z]+$"}))
    code = impostor.tab.field("code")
    code.fill("A1")
    impostor.tab.button("Call").click()
    assert complaint(code) == "Must have at least 4 characters. Must match ^[a-z]+$."


def test_a_choice_of_several_that_is_wrong_says_so(impostor: Impostor, axe: str) -> None:
    """Neither it nor a list has one input, yet both can be found."""
    sizes = {"type": "array", "items": {"type": "string", "enum": ["small", "large"]}, "minItems": 1}
    names = {"type": "array", "items": TEXT, "minItems": 2}
    impostor.offer(schema(sizes=sizes, names=names) | {"required": ["sizes", "names"]})
    tab = impostor.tab
    tab.button("Call").click()
    assert complaint(tab.field("small")) == "Must have at least 1 entry."
    assert complaint(tab.button("Add to names")) == "Must have at least 2 entries."
    assert has_focus(tab.field("small"))
    assert not tab.violations(axe)
    tab.field("large").check()
    assert complaint(tab.field("small")) == ""


# ── what is read ──

UNIONS: dict[str, tuple[Any, dict[str, Any]]] = {  # the schema; what is typed, and what it means
    "int_or_text": ({"anyOf": [{"type": "integer"}, TEXT]},
                    {"abc": "abc", "5": 5, '"5"': "5", "-2": -2, "1.5": "1.5", "007": "007", "true": "true"}),
    "types": ({"type": ["string", "boolean", "null"]}, {"true": True, "yes": "yes", "12": "12", "null": None}),
    "number_or_flag": ({"oneOf": [NUMBER, {"type": "boolean"}]}, {"1e3": 1000, "false": False}),
}  # fmt: skip


def test_one_of_several_simple_types_needs_no_quotes(impostor: Impostor) -> None:
    impostor.offer(schema(**{name: given for name, (given, _) in UNIONS.items()}))
    for typed_and_meant in zip(*(meaning.items() for _, meaning in UNIONS.values()), strict=False):
        meant = {}
        for name, (typed, value) in zip(UNIONS, typed_and_meant, strict=True):
            impostor.tab.field(name).fill(typed)
            meant[name] = value
        assert sent(impostor) == meant
    for typed, value in UNIONS["int_or_text"][1].items():
        impostor.tab.field("int_or_text").fill(typed)
        assert sent(impostor)["int_or_text"] == value
    number = impostor.tab.field("number_or_flag")
    number.fill("abc")
    impostor.tab.button("Call").click()
    assert complaint(number) == "Must be a number or true or false."
    impostor.tab.sees(impostor.tab.page.get_by_role("article"), 'Write "5" with quotes')


def test_what_simple_types_begin_with_is_sent_as_it_was(impostor: Impostor) -> None:
    begin: dict[str, Any] = {"a": 5, "b": "5", "c": "abc", "d": True}
    union = {"type": ["string", "integer", "boolean"]}
    impostor.offer(schema(**{name: {**union, "default": value} for name, value in begin.items()}))
    assert sent(impostor) == begin


@pytest.fixture
def abroad(chromium: Any, stage: str) -> Any:
    """A page of somebody who is two hours ahead."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, timezone_id="Europe/Helsinki")
    context.set_default_timeout(10_000)
    impostor = Impostor(ConsolePage(context.new_page(), stage))
    impostor.tab.open()
    yield impostor
    context.close()


def test_a_moment_says_in_which_time_it_is(abroad: Impostor) -> None:
    moment = {"type": "string", "format": "date-time"}
    abroad.offer(
        schema(at=moment, since={**moment, "default": "2026-01-01T12:00:00+09:00"}, time={**TEXT, "format": "time"})
    )
    tab = abroad.tab
    help_text = tab.page.get_by_role("article").get_by_text("Your time (Europe/Helsinki), sent as UTC").first
    help_text.wait_for()
    place = tab.page.get_by_label("at", exact=True)
    place.fill("2026-01-05T14:30:00")
    tab.sees(tab.page.get_by_role("article"), "sent as 2026-01-05T12:30:00Z")
    tab.page.get_by_label("time", exact=True).fill("08:15:00")
    said = sent(abroad)
    assert said == {"at": "2026-01-05T12:30:00Z", "since": "2026-01-01T12:00:00+09:00", "time": "08:15:00"}


def test_a_value_that_may_be_null_is_null_if_it_is_left_empty(impostor: Impostor) -> None:
    """Where it has to be there; otherwise it is left out."""
    whole = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    inner = {"anyOf": [schema(x=TEXT) | {"required": ["x"]}, {"type": "null"}]}
    impostor.offer(schema(needed=whole, inner=inner, other=whole) | {"required": ["needed", "inner"]})
    assert sent(impostor) == {"needed": None, "inner": None}
    impostor.tab.field("needed").fill("5")
    impostor.tab.field("x").fill("y")
    assert sent(impostor) == {"needed": 5, "inner": {"x": "y"}}


def test_what_can_only_be_one_thing_is_chosen_already(impostor: Impostor) -> None:
    impostor.offer(schema(kind={"const": "circle"}, version={"enum": [2]}) | {"required": ["kind"]})
    assert sent(impostor) == {"kind": "circle"}


def test_a_word_or_a_number(impostor: Impostor) -> None:
    impostor.offer(schema(size={"anyOf": [{"const": "auto"}, {"enum": ["min", "max"]}, {"type": "integer"}]}))
    tab = impostor.tab
    tab.sees(tab.page.get_by_role("article"), "May be a whole number, or: auto, min, max.")
    for typed, value in {"auto": "auto", "7": 7}.items():
        tab.field("size").fill(typed)
        assert sent(impostor) == {"size": value}
    tab.field("size").fill("other")
    tab.button("Call").click()
    assert complaint(tab.field("size")) == "Fits none of the allowed forms."


def test_who_has_to_write_json_sees_its_shape(impostor: Impostor) -> None:
    circle = schema(kind={"const": "circle"}, radius=NUMBER) | {"title": "Circle"}
    square = schema(kind={"const": "square"}) | {"title": "Square"}
    counts = {"type": "object", "additionalProperties": {"type": "integer"}}
    itself = {"type": "object", "additionalProperties": {"$ref": "#"}}
    impostor.offer(schema(shape={"oneOf": [circle, square]}, counts=counts, itself=itself, anything={}))
    tab = impostor.tab
    tab.sees(tab.page.get_by_role("article"), "Circle or Square")
    shown = {name: tab.field(name).get_attribute("placeholder") for name in ("shape", "counts", "itself", "anything")}
    assert shown["shape"] == 'JSON, e.g. {"kind":"circle","radius":1.5}'
    assert shown["counts"] == 'JSON, e.g. {"name":1}'


# ── lists ──


def test_an_entry_that_goes_takes_nothing_from_the_others(impostor: Impostor) -> None:
    """By keys alone: the focus stays in the list, and what can't be read yet stays as it was typed."""
    impostor.offer(schema(rows={"type": "array", "items": schema(size=NUMBER, name=TEXT)}))
    tab = impostor.tab
    keys = tab.page.keyboard
    for typed in ("1", "not yet", "3"):
        tab.button("Add to rows").press("Enter")
        keys.type(typed)  # the focus is in the first field of the new entry
    sizes = tab.field("size")
    tab.button("Remove rows 1").press("Enter")
    assert [each.input_value() for each in sizes.all()] == ["not yet", "3"]
    assert has_focus(tab.button("Remove rows 1"))
    assert [each.inner_text().split()[:2] for each in tab.page.locator("legend").all()[1:]] == [
        ["rows", "1"],
        ["rows", "2"],
    ]
    tab.button("Call").click()
    assert complaint(sizes.first) == "Must be a number."
    assert has_focus(sizes.first)
    sizes.first.fill("2")
    assert sent(impostor) == {"rows": [{"size": 2}, {"size": 3}]}
    keys.press("Shift+Tab")
    for _ in range(2):
        tab.button("Remove rows 1").press("Enter")
    assert has_focus(tab.button("Add to rows"))
    assert sent(impostor) == {"rows": []}


def test_a_date_of_which_half_is_there_is_not_left_out(impostor: Impostor) -> None:
    impostor.offer(schema(day={**TEXT, "format": "date"}))
    tab = impostor.tab
    day = tab.page.get_by_label("day", exact=True)
    day.focus()
    tab.page.keyboard.type("12")
    tab.button("Call").click()
    assert complaint(day) == "Is not complete."


def test_a_form_of_many_fields(impostor: Impostor) -> None:
    impostor.offer(schema(**{f"field_{at}": TEXT for at in range(250)}))
    tab = impostor.tab
    tab.sees(tab.page.get_by_role("article"), "50 fields more")
    tab.field("field_199").fill("x")
    tab.field("field_199").press("Control+Enter")
    tab.sees(tab.result, '"field_199": "x"')


# ── schemas that are no plain list of fields ──

EITHER = [schema(a=TEXT) | {"required": ["a"]}, schema(b=TEXT) | {"required": ["b"]}]


@pytest.mark.parametrize(
    "free", [{"oneOf": EITHER}, {"additionalProperties": TEXT}, {"patternProperties": {"^x": TEXT}}]
)
def test_arguments_that_no_form_can_have_are_written_as_json(impostor: Impostor, free: dict[str, Any]) -> None:
    impostor.offer({"type": "object", **free})
    box = impostor.tab.field("Arguments as JSON")
    box.wait_for()
    box.fill('{"b": "x"}')
    assert sent(impostor) == {"b": "x"}


def test_what_is_wrong_with_the_whole_is_not_overlooked(impostor: Impostor) -> None:
    many = {f"field_{at}": TEXT for at in range(40)}
    impostor.offer(schema(**many) | {"anyOf": [{"required": ["field_0"]}, {"required": ["field_1"]}]})
    tab = impostor.tab
    tab.button("Call").click()
    words = tab.page.get_by_text("Fits none of the allowed forms.")
    words.wait_for()
    assert has_focus(words)
    tab.field("field_1").fill("x")
    assert sent(impostor) == {"field_1": "x"}


def test_a_list_whose_entries_differ_is_written_as_json(impostor: Impostor) -> None:
    pair = {"type": "array", "prefixItems": [{"type": "integer"}, TEXT], "items": False, "minItems": 2, "maxItems": 2}
    impostor.offer(schema(pair=pair, other={**pair, "items": {}}))
    tab = impostor.tab
    assert tab.field("other").get_attribute("placeholder") == 'JSON, e.g. [1,"text"]'
    tab.field("pair").fill('["x", "y"]')
    tab.button("Call").click()
    assert complaint(tab.field("pair")) == "0: Must be a whole number."
    tab.field("pair").fill('[5, "y"]')
    assert sent(impostor) == {"pair": [5, "y"]}


def test_words_of_several_lists_are_one_choice(impostor: Impostor) -> None:
    parts = [{"const": "auto", "title": "By itself"}, {"enum": ["min", "max"]}]
    reference = {"anyOf": [{"$ref": "#/$defs/A"}, {"enum": ["max"]}]}
    impostor.offer(schema(size={"anyOf": parts}, far=reference) | {"$defs": {"A": {"enum": ["min"]}}})
    tab = impostor.tab
    tab.field("size").select_option(label="By itself")
    tab.sees(tab.page.get_by_role("article"), "May be: min, max.")
    tab.field("far").fill("max")
    assert sent(impostor) == {"size": "auto", "far": "max"}
    tab.field("size").select_option(label="max")
    assert sent(impostor)["size"] == "max"


def test_a_tool_that_calls_itself_read_only_and_destructive_is_asked_about(impostor: Impostor) -> None:
    impostor.offer(schema(), annotations={"readOnlyHint": True, "destructiveHint": True})
    tab = impostor.tab
    chips = tab.page.get_by_role("article").locator(".chips").first.locator(".chip")
    assert chips.all_inner_texts() == ["read-only", "open world"]
    tab.button("Call").click()
    tab.dialog.get_by_role("button", name="Call anyway").click()
    tab.sees(tab.result, "got {}")
