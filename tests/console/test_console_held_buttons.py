"""By keys alone: a key that is held down presses a button once, and whoever asks for more is where it begins."""

from typing import Any

import pytest
from console_impostor import Impostor, schema
from console_page import ConsolePage

pytestmark = pytest.mark.slow


def hold_enter(tab: ConsolePage) -> None:
    """Down, and again and again as the system repeats it, then up."""
    keyboard = tab.page.keyboard
    for _ in range(8):
        keyboard.down("Enter")
        tab.page.wait_for_timeout(25)
    keyboard.up("Enter")


def has_focus(field: Any) -> bool:
    return bool(field.evaluate("it => it === document.activeElement"))


def focused(tab: ConsolePage) -> str:
    """The words of what has the focus."""
    words: str = tab.page.evaluate("document.activeElement === document.body ? '' : document.activeElement.textContent")
    return words


def test_a_held_key_calls_once(impostor: Impostor) -> None:
    impostor.offer(schema())
    tab = impostor.tab
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.post_data or ""))
    tab.button("Call").focus()
    hold_enter(tab)
    tab.sees(tab.result, "Done")
    tab.switch("History")
    tab.button("Replay").focus()
    hold_enter(tab)
    tab.sees(tab.result, "Done")
    assert sum('"tools/call"' in each for each in asked) == 2
    assert has_focus(tab.button("Call"))


def test_a_held_key_removes_one_entry(impostor: Impostor) -> None:
    impostor.offer(schema(names={"type": "array", "items": {"type": "string"}, "default": ["a", "b", "c"]}))
    tab = impostor.tab
    tab.button("Remove names 1").focus()
    hold_enter(tab)
    assert [tab.field(name).input_value() for name in ("names 1", "names 2")] == ["b", "c"]
    tab.page.keyboard.press("Enter")
    assert tab.field("names 1").input_value() == "c"


# ── more ──


def test_who_asks_for_more_rows_is_at_the_first_of_them(impostor: Impostor) -> None:
    rows = ",".join(f'{{"row": "no {at}"}}' for at in range(150))
    lists = ",".join(f'"no {at}"' for at in range(150))
    impostor.content = [
        {"type": "text", "text": f"[{rows}]"},
        {"type": "text", "text": f'{{"all": [{lists}]}}'},
        {"type": "text", "text": "long\n" * 900},
        *({"type": "text", "text": f"block {at}"} for at in range(70)),
    ]
    impostor.offer(schema())
    tab = impostor.tab
    tab.button("Call").click()
    tab.sees(tab.result, "Done")
    tab.result.get_by_role("button", name="Show 100 more").press("Enter")
    assert focused(tab) == "no 100"
    tab.result.get_by_role("group").get_by_text("[150]").click()
    tab.result.get_by_role("button", name="Show more (50 left)").press("Enter")
    assert focused(tab) == '100: "no 100"'
    tab.result.get_by_role("button", name="Show all").press("Enter")
    assert focused(tab) == "long\n" * 900
    tab.result.get_by_role("button", name="Show more (23 left)").press("Enter")
    assert focused(tab) == "block 47"


# ── dialogs ──


def test_a_ping_that_waits_says_so(tab: ConsolePage) -> None:
    tab.start_again()
    held: list[Any] = []
    tab.page.route("**/mcp", lambda route: held.append(route))
    tab.button("About").click()
    tab.dialog.get_by_role("button", name="Ping").click()
    tab.sees(tab.dialog, "Waiting for the answer…")
    for route in held:
        route.continue_()
    tab.page.unroute("**/mcp")
    tab.sees(tab.dialog, "It answered in")
    tab.dialog.get_by_role("button", name="Close").click()


def test_no_timeout_is_shown_where_there_is_none(tab: ConsolePage) -> None:
    tab.button("Settings").click()
    timeout = tab.field("Timeout in seconds", tab.dialog)
    assert (timeout.input_value(), timeout.get_attribute("placeholder")) == ("", "none")
    tab.dialog.get_by_role("button", name="Cancel").click()
