"""What a server asks is answered in the page, and reaches the tool: by a request of a session, and by replay since."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_escape_leaves_a_question_undecided(tab: ConsolePage) -> None:
    tab.call("visit")
    tab.dialog.wait_for()
    tab.page.keyboard.press("Escape")
    tab.sees(tab.result, "the visit: cancel")


@both_eras
def test_a_page_that_has_to_be_visited_first(tab: ConsolePage, revision: str) -> None:
    tab.speak(revision)
    tab.call("need_visit")
    tab.sees(tab.dialog, "Pay first.")
    press(tab, "Accept")
    tab.sees(tab.result, "it was paid")


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


def test_a_root_that_is_none_is_not_dropped_unseen(tab: ConsolePage) -> None:
    tab.button("Settings").click()
    roots = tab.field("Roots", tab.dialog)
    roots.fill("file:///home/ann\n/home/bob")
    press(tab, "Save")
    assert roots.get_attribute("aria-invalid") == "true"
    tab.sees(tab.dialog, "Line 2")
    press(tab, "Cancel")


# ── time ──


@both_eras
def test_a_call_is_given_up_when_the_server_says_nothing_for_too_long(tab: ConsolePage, revision: str) -> None:
    tab.speak(revision)
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


@both_eras
def test_a_ping_says_how_long_an_answer_takes(tab: ConsolePage, revision: str) -> None:
    tab.speak(revision)
    tab.button("About").click()
    tab.dialog.get_by_role("button", name="Ping").click()
    tab.sees(tab.dialog, "It answered in")
    press(tab, "Close")


# ── headers ──


def set_headers(tab: ConsolePage, lines: str) -> None:
    tab.button("Settings").click()
    tab.field("Headers", tab.dialog).fill(lines)
    press(tab, "Save")


@both_eras
def test_headers_of_the_settings_are_sent_with_every_request(tab: ConsolePage, revision: str) -> None:
    tab.speak(revision)
    asked: list[Any] = []
    tab.page.on("request", lambda request: asked.append(request))
    set_headers(tab, "X-Tenant: acme\nX-Api-Key: hush hush")
    tab.connected()
    tab.call("tenant")
    tab.sees(tab.result, "for acme")
    sent = [request for request in asked if request.url.endswith("/mcp") and request.method != "DELETE"]
    tenants = [request.headers.get("x-tenant") for request in sent]
    tenants = tenants[tenants.index("acme") :]  # the connection before may still have been listing
    assert set(tenants) == {"acme"}
    assert len(tenants) >= 4
    sent_first = tab.region("Messages").get_by_role("listitem").first
    sent_first.get_by_text("tools/call").click()
    tab.sees(sent_first, "X-Api-Key: (as in Settings)")
    set_headers(tab, "")
    tab.connected()
    tab.button("Call").click()
    tab.sees(tab.result, "for nobody")


REFUSED = {
    "X-Tenant": "Name: value",
    "X Tenant: a": "letters",
    "Host: a": "the browser",
    "sec-fetch-site: none": "the browser",
    "Mcp-Session-Id: 5": "the console",
    "Content-Type: text/plain": "the console",
    "X-A: 1\nx-a: 2": "twice",
    "X-A: é\u20ac": "ASCII",
}


def test_headers_that_can_not_be_sent_are_refused_with_the_reason(tab: ConsolePage) -> None:
    tab.button("Settings").click()
    box = tab.field("Headers", tab.dialog)
    for lines, words in REFUSED.items():
        box.fill(lines)
        press(tab, "Save")
        assert box.get_attribute("aria-invalid") == "true", lines
        assert words in box.evaluate("it => it.parentElement.querySelector('.field-error').textContent")
    press(tab, "Cancel")


PLACEHOLDERS = {
    "curl": '-H "X-Tenant: $HEADER_X_TENANT"',
    "Python": 'headers={"X-Tenant": os.environ["HEADER_X_TENANT"]}',
    "command": '--header "X-Tenant: $HEADER_X_TENANT"',
}
SHELLS = {"curl": ["sh", "-c"], "Python": [sys.executable, "-c"], "command": ["sh", "-c"]}


def pasted(form: str, text: str) -> str:
    """What it prints where it is pasted, and the variable is set."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "HEADER_X_TENANT": "globex"}
    done = subprocess.run([*SHELLS[form], text], env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


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
        if shutil.which(form) or form != "curl":
            assert "for globex" in pasted(form, copied)
    tab.button("Call").click()
    tab.sees(tab.result, "for hush hush")
    assert "hush" not in tab.page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
    tab.start_again()
    tab.button("Settings").click()
    assert tab.field("Headers", tab.dialog).input_value() == ""
    press(tab, "Cancel")
