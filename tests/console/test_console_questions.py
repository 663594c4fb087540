"""What a server asks is answered in the page, and reaches the tool: by a request of a session, and by replay since."""

from pathlib import Path

import pytest
from console_page import ConsolePage

pytestmark = pytest.mark.slow

STAGE = Path(__file__).parent / "console_questions.py"
MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
both_eras = pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])


def press(tab: ConsolePage, name: str) -> None:
    tab.dialog.get_by_role("button", name=name, exact=True).click()


@both_eras
def test_a_person_answers_for_the_model(tab: ConsolePage, revision: str) -> None:
    tab.speak(revision)
    tab.call("ask_model")
    tab.sees(tab.dialog, "Name a fruit.")
    assert "Be brief.\nBe kind." in tab.dialog.inner_text()
    answer = tab.field("Answer", tab.dialog)
    assert answer.evaluate("it => it === document.activeElement")
    answer.fill("A fig.")
    press(tab, "Accept")
    tab.sees(tab.result, "the model said A fig.")
    tab.button("Call").click()
    press(tab, "Decline")
    tab.sees(tab.result, "rejected the sampling request")


@both_eras
def test_a_page_to_visit(tab: ConsolePage, revision: str) -> None:
    tab.speak(revision)
    tab.tool("visit")
    for pressed, action in {"Accept": "accept", "Decline": "decline"}.items():
        tab.button("Call").click()
        tab.sees(tab.dialog, "Please pay.")
        link = tab.dialog.get_by_role("link", name="https://pay.example/invoice/7")
        assert link.get_attribute("rel") == "noopener noreferrer"
        press(tab, pressed)
        tab.sees(tab.result, f"the visit: {action}")


@both_eras
def test_roots_of_the_settings_reach_the_tool(tab: ConsolePage, revision: str) -> None:
    tab.speak(revision)
    tab.button("Settings").click()
    tab.field("Roots", tab.dialog).fill("file:///home/ann\n\n  file:///srv/data\n")
    press(tab, "Save")
    tab.connected()
    tab.call("folders")
    tab.sees(tab.result, "told of file:///home/ann, file:///srv/data")
    tab.button("Settings").click()
    tab.field("Roots", tab.dialog).fill("")
    press(tab, "Save")
    tab.connected()
    tab.button("Call").click()
    tab.sees(tab.result, "told of nothing")


# ── time ──


def test_a_call_is_given_up_when_the_server_says_nothing_for_too_long(tab: ConsolePage) -> None:
    tab.button("Settings").click()
    timeout = tab.field("Timeout in seconds", tab.dialog)
    timeout.fill("soon")
    press(tab, "Save")
    assert timeout.get_attribute("aria-invalid") == "true"
    timeout.fill("0.7")
    press(tab, "Save")
    tab.connected()
    tab.call("slow", steps="30")
    tab.sees(tab.result, "did not answer in time")
    tab.field("says").check()
    tab.field("steps").fill("4")  # which takes longer, but there is news
    tab.button("Call").click()
    tab.sees(tab.result, "finished")
    tab.call("ask_model")
    tab.field("Answer", tab.dialog).fill("A fig.")
    tab.page.wait_for_timeout(1000)  # it is the user who is waited for
    press(tab, "Accept")
    tab.sees(tab.result, "the model said A fig.")
    tab.start_again()


# ── headers ──


def set_headers(tab: ConsolePage, lines: str) -> None:
    tab.button("Settings").click()
    tab.field("Headers", tab.dialog).fill(lines)
    press(tab, "Save")


PLACEHOLDERS = {
    "curl": '-H "X-Tenant: $HEADER_X_TENANT"',
    "Python": 'headers={"X-Tenant": os.environ["HEADER_X_TENANT"]}',
    "command": '--header "X-Tenant: $HEADER_X_TENANT"',
}


def test_copies_have_the_names_of_headers_but_not_their_values(tab: ConsolePage) -> None:
    set_headers(tab, "X-Tenant: hush hush")
    tab.connected()
    tab.tool("tenant")
    for form, words in PLACEHOLDERS.items():
        tab.button(f"Copy as {form}").click()
        tab.page.get_by_text(f"Copied as {form}.").wait_for()
        copied = tab.page.evaluate("navigator.clipboard.readText()")
        assert words in copied
        assert "hush" not in copied
    tab.button("Call").click()
    tab.sees(tab.result, "for hush hush")
    assert "hush" not in tab.page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
    tab.start_again()
    tab.button("Settings").click()
    assert tab.field("Headers", tab.dialog).input_value() == ""
    press(tab, "Cancel")
