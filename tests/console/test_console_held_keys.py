"""What must not happen by itself: a key that is held down says yes to nothing, and a lost session is no storm."""

from typing import Any

import pytest
from console_page import ConsolePage

pytestmark = pytest.mark.slow

HANDSHAKE = "2025-11-25"


def hold(tab: ConsolePage, *keys: str) -> None:
    """Down, and again and again as the system repeats it, then up."""
    keyboard = tab.page.keyboard
    for key in keys:
        keyboard.down(key)
    for _ in range(6):
        tab.page.wait_for_timeout(30)
        keyboard.down(keys[-1])
    for key in reversed(keys):
        keyboard.up(key)


def test_a_held_key_does_not_confirm_what_destroys(tab: ConsolePage) -> None:
    tab.tool("wipe")
    tab.field("path").fill("/tmp")
    tab.field("path").focus()
    hold(tab, "Control", "Enter")
    tab.sees(tab.dialog, "may destroy something")
    assert tab.page.evaluate("document.activeElement.textContent") == "Cancel"
    tab.page.keyboard.press("Enter")
    assert not tab.dialog.count()
    assert "gone" not in tab.result.inner_text()
    tab.page.keyboard.press("Control+Enter")
    tab.dialog.wait_for()
    tab.page.keyboard.press("Control+Enter")  # pressed again, by somebody who means it
    tab.sees(tab.result, "/tmp is gone")


def test_a_stream_that_is_not_there_ends_no_session(tab: ConsolePage) -> None:
    begun: list[str] = []

    def answer(route: Any) -> None:
        if route.request.method == "GET":
            route.fulfill(status=404, body="no such page")  # as some proxies say it
            return
        if '"initialize"' in (route.request.post_data or ""):
            begun.append(route.request.post_data)
        route.continue_()

    tab.page.route("**/mcp", answer)
    tab.speak(HANDSHAKE)
    tab.page.wait_for_timeout(1000)
    assert len(begun) == 1
    tab.call("order", item="pen", amount="1")
    tab.sees(tab.result, "pen")


def test_sessions_that_end_at_once_are_not_begun_in_a_storm(tab: ConsolePage) -> None:
    begun: list[str] = []

    def answer(route: Any) -> None:
        asked = route.request.post_data or ""
        if '"initialize"' in asked:
            begun.append(asked)
        if '"tools/list"' in asked:
            route.fulfill(status=404, body="no such session")
            return
        route.continue_()

    tab.page.route("**/mcp", answer)
    tab.page.get_by_role("combobox", name="Revision").select_option(HANDSHAKE)
    tab.page.wait_for_timeout(3000)
    assert 2 <= len(begun) <= 5
    tab.page.unroute("**/mcp")
    tab.connected()
