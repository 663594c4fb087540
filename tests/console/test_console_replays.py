"""The history: a call is made again with the very same arguments, and nobody else moves the list."""

import json
from typing import Any

import pytest
from console_impostor import Impostor, schema
from console_page import ConsolePage

pytestmark = pytest.mark.slow

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
FLAG = {"type": "boolean"}
STORED = "JSON.stringify(localStorage)"


def or_null(given: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [given, {"type": "null"}]}


def sent(tab: ConsolePage, button: str) -> Any:
    """The arguments of the call that this button makes."""
    with tab.page.expect_request(lambda request: '"tools/call"' in (request.post_data or "")) as asked:
        tab.button(button).click()
    tab.sees(tab.result, "Done")
    return json.loads(asked.value.post_data)["params"]["arguments"]


def replayed(tab: ConsolePage) -> Any:
    tab.switch("History")
    return sent(tab, "Replay")


def reload_at(tab: ConsolePage, place: str) -> None:
    """With what was stored; forms are as new."""
    tab.page.goto(f"{tab.base}/console/#{place}")
    tab.page.reload()
    tab.connected()


# ── the same arguments ──

FIELDS = schema(
    amount=WHOLE, gift=FLAG, colour={"enum": ["red", "blue"], "default": "red"}, tags={"type": "array", "items": TEXT},
    either={"anyOf": [WHOLE, FLAG]}, size=or_null(WHOLE), since=or_null({**TEXT, "format": "date-time"}),
    sizes=or_null({"type": "array", "items": {"enum": ["small", "large"]}}), ok=or_null({**FLAG, "default": True}),
)  # fmt: skip
NO_FIELD_HOLDS_IT: list[dict[str, Any]] = [
    {"amount": "5", "gift": "yes"},
    {"colour": "green"},
    {"amount": 5},  # without the colour that the form begins with
    {"colour": "red", "either": "abc"},
    {"colour": "red", "tags": "one"},
    {"colour": "red", "tags": [f"{at}" for at in range(201)]},
    {"colour": "red", "size": None, "since": None, "ok": None},
]


def test_what_no_field_can_hold_is_replayed_as_it_was(impostor: Impostor) -> None:
    impostor.offer(FIELDS)
    tab = impostor.tab
    for values in NO_FIELD_HOLDS_IT:
        tab.write_json(json.dumps(values))
        sent(tab, "Call")
        reload_at(tab, "tools/tried")
        assert replayed(tab) == values
        assert tab.field("Arguments as JSON").is_visible()


def test_what_the_fields_can_hold_is_replayed_in_them(impostor: Impostor) -> None:
    impostor.offer(FIELDS)
    tab = impostor.tab
    values = {"ok": True, "gift": True, "colour": "blue", "amount": 5, "either": False, "tags": ["a"]}
    tab.write_json(json.dumps(values))
    sent(tab, "Call")
    reload_at(tab, "tools/tried")
    assert replayed(tab) == values
    assert tab.field("amount").input_value() == "5"


def test_null_stays_null(impostor: Impostor) -> None:
    """Where it has to be there; and no field shows it as a text."""
    parts = {
        "nick": or_null(TEXT), "size": or_null(WHOLE), "since": or_null({**TEXT, "format": "date-time"}),
        "ok": or_null(FLAG), "names": or_null({"type": "array", "items": TEXT}), "colour": or_null({"enum": ["red"]}),
    }  # fmt: skip
    impostor.offer(schema(**parts) | {"required": list(parts)})
    tab = impostor.tab
    empty = dict.fromkeys(parts)
    assert sent(tab, "Call") == empty
    assert replayed(tab) == empty
    assert [tab.field(name).input_value() for name in ("nick", "size")] == ["", ""]
    toggle = tab.page.get_by_role("article").get_by_role("button", name="As JSON").first
    toggle.click()
    toggle.click()
    assert tab.field("nick").is_visible()
    assert sent(tab, "Call") == empty


def test_a_default_that_is_none_of_the_types_hides_no_tool(impostor: Impostor) -> None:
    impostor.offer(schema(either={"anyOf": [WHOLE, FLAG], "default": "auto"}))
    tab = impostor.tab
    assert tab.field("either").input_value() == '"auto"'
    tab.field("either").fill("5")
    assert sent(tab, "Call") == {"either": 5}


def test_json_that_the_fields_would_change_stays_json(impostor: Impostor) -> None:
    impostor.offer(FIELDS)
    tab = impostor.tab
    toggle = tab.page.get_by_role("article").get_by_role("button", name="As JSON").first
    tab.write_json('{"amount": "5", "gift": "yes", "size": null}')
    toggle.click()
    box = tab.field("Arguments as JSON")
    said = tab.page.locator(f"id={box.get_attribute('aria-describedby')}").inner_text()
    assert said == "amount: Its field can't show this value. gift: Its field can't show this value."
    box.fill('{"amount": 5, "size": null}')
    toggle.click()
    assert tab.field("amount").input_value() == "5"
    assert sent(tab, "Call") == {"amount": 5, "colour": "red", "ok": True}


def test_all_that_a_server_finds_wrong_is_said_beside_json(tab: ConsolePage) -> None:
    tab.start_again("tools/order")
    tab.write_json('{"item": "lamp", "amount": 1, "gift": "maybe", "colour": "pink"}')
    tab.button("Call").click()
    tab.sees(tab.result, "colour")
    box = tab.field("Arguments as JSON")
    said = tab.page.locator(f"id={box.get_attribute('aria-describedby')}").inner_text()
    assert "gift: The server says" in said
    assert "colour: The server says" in said
    box.fill("{")
    tab.button("Call").click()
    assert "gift" not in tab.page.locator(f"id={box.get_attribute('aria-describedby')}").inner_text()


# ── the list of calls ──


def calls(tab: ConsolePage) -> Any:
    return tab.page.get_by_role("region", name="All calls").get_by_role("link")


def test_a_call_that_ends_meanwhile_does_not_change_what_is_chosen(tab: ConsolePage) -> None:
    tab.start_again("tools/order")
    tab.call("order", item="teapot", amount="7")
    tab.sees(tab.result, "Done")
    tab.call("slow", steps="4")
    tab.switch("History")
    tab.button("Replay").focus()
    calls(tab).nth(1).wait_for()
    assert tab.page.get_by_role("article").get_by_role("heading").first.inner_text() == "order"
    assert tab.button("Replay").evaluate("it => it === document.activeElement")
    assert "teapot" in calls(tab).and_(tab.page.locator("[aria-current=true]")).inner_text()
    tab.switch("Tools")
    tab.switch("History")
    tab.sees(tab.page.get_by_role("article").get_by_role("heading"), "slow")  # the newest, as ever


def test_two_tabs_keep_one_history(tab: ConsolePage) -> None:
    tab.start_again("tools/table")
    other = ConsolePage(tab.page.context.new_page(), tab.base)
    other.open("tools", "cancellations")
    tab.button("Call").click()
    tab.sees(tab.result, "Done")
    other.button("Call").click()
    other.sees(other.result, "Done")
    other.page.close()
    tab.switch("History")
    calls(tab).nth(1).wait_for()
    assert [link.inner_text().split()[0] for link in calls(tab).all()] == ["cancellations", "table"]


def test_without_a_place_to_store_it_the_history_lasts_as_long_as_the_page(tab: ConsolePage) -> None:
    tab.start_again("tools/table")
    tab.page.evaluate("() => { Storage.prototype.setItem = () => { throw new Error('full'); }; }")
    for _ in range(2):
        tab.button("Call").click()
        tab.sees(tab.result, "Done")
    tab.switch("History")
    assert calls(tab).count() == 2
    tab.start_again()


def test_what_a_server_says_of_a_failure_is_not_stored(impostor: Impostor) -> None:
    tab = impostor.tab
    impostor.offer(schema(pw={**TEXT, "format": "password"}))
    error = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "hush is no password"}}

    def refuse(route: Any) -> None:
        asked = json.loads(route.request.post_data)
        route.fulfill(content_type="application/json", body=json.dumps(error | {"id": asked["id"]}))

    tab.page.route("**/mcp", refuse)
    tab.page.get_by_label("pw", exact=True).fill("hush")
    tab.button("Call").click()
    tab.sees(tab.result, "hush is no password")
    assert "tried" in tab.page.evaluate(STORED)
    assert "hush" not in tab.page.evaluate(STORED)
    tab.switch("History")
    tab.sees(tab.page.get_by_role("article"), "failed in")


def test_a_history_is_cleared_after_a_second_thought_only(tab: ConsolePage) -> None:
    tab.start_again("tools/table")
    tab.button("Call").click()
    tab.sees(tab.result, "Done")
    tab.switch("History")
    tab.button("Clear history").press("Enter")
    tab.dialog.get_by_role("button", name="Cancel").press("Enter")
    assert calls(tab).count() == 1
    tab.button("Clear history").press("Enter")
    tab.dialog.get_by_role("button", name="Clear").press("Enter")
    tab.page.get_by_text("Call a tool, read a resource").wait_for()
    assert "No calls yet." in tab.page.evaluate("document.activeElement.textContent")
    assert "table" not in tab.page.evaluate(STORED)
