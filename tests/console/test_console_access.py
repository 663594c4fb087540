"""The console for everybody, in the middle of things: axe looks at calls, dialogs and lists while they are open."""

from collections.abc import Callable
from pathlib import Path

import pytest
from console_page import ConsolePage

STAGE = Path(__file__).parent / "console_crowd.py"


def call_alone(tab: ConsolePage, name: str, **fields: str) -> None:
    """With one tool in the list: to look at hundreds takes long, and tells no more."""
    tab.page.get_by_role("searchbox", name="Search tools").fill(name)
    tab.call(name, **fields)


def running(tab: ConsolePage) -> None:
    call_alone(tab, "chatty", messages="20")
    tab.page.get_by_role("log", name="Logs").get_by_text("line 19 ").wait_for()


def failed(tab: ConsolePage) -> None:
    call_alone(tab, "fail")
    tab.sees(tab.result, "It failed")


def table(tab: ConsolePage) -> None:
    call_alone(tab, "people")
    tab.result.get_by_role("table").wait_for()


def message_open(tab: ConsolePage) -> None:
    failed(tab)
    tab.region("Messages").get_by_role("listitem").first.click()
    tab.sees(tab.region("Messages"), "jsonrpc")


def form(tab: ConsolePage) -> None:
    call_alone(tab, "choose")
    tab.sees(tab.dialog, "Which one?")


def address(tab: ConsolePage) -> None:
    call_alone(tab, "visit")
    tab.dialog.get_by_role("link").wait_for()


def model(tab: ConsolePage) -> None:
    call_alone(tab, "ponder")
    tab.sees(tab.dialog, "What is the answer?")


def suggestions(tab: ConsolePage) -> None:
    tab.open("prompts", "greeting")
    tab.field("language").click()
    tab.field("language").press_sequentially("f")
    tab.page.get_by_role("option", name="finnish").wait_for()
    tab.field("language").press("ArrowDown")


STATES = [running, failed, table, message_open, form, address, model, suggestions]
SHORT = [running, address, suggestions]


def look(tab: ConsolePage, axe: str, prepare: Callable[[ConsolePage], None]) -> list[str]:
    tab.start_again()
    prepare(tab)
    return tab.violations(axe)


@pytest.mark.slow
@pytest.mark.parametrize("prepare", SHORT, ids=lambda state: state.__name__)
def test_nothing_is_in_the_way_while_things_happen(
    tab: ConsolePage, axe: str, prepare: Callable[[ConsolePage], None]
) -> None:
    assert not look(tab, axe, prepare)


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("prepare", STATES, ids=lambda state: state.__name__)
def test_nothing_is_in_the_way_in_any_light(
    tab: ConsolePage, axe: str, prepare: Callable[[ConsolePage], None], scheme: str
) -> None:
    tab.page.emulate_media(color_scheme=scheme)
    found = look(tab, axe, prepare)
    tab.page.emulate_media(color_scheme="light")
    assert not found
