"""The console in a browser with more than fits: many tools, floods of messages, long addresses, small screens."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from console_crowd import ADDRESS
from console_page import ConsolePage

pytestmark = pytest.mark.slow

STAGE = Path(__file__).parent / "console_crowd.py"
DESK = {"width": 1280, "height": 800}
PHONE = {"width": 375, "height": 667}
PATIENCE_MS = 10_000  # far more than a press of a button needs, far less than a page was frozen


@pytest.fixture
def phone(tab: ConsolePage) -> Iterator[ConsolePage]:
    tab.page.set_viewport_size(PHONE)
    yield tab
    tab.page.set_viewport_size(DESK)


def is_in_view(place: Any) -> bool:
    """The whole of it, or at least as much as fits a third of the screen."""
    return bool(
        place.evaluate(
            """it => {
              const { top, height } = it.getBoundingClientRect();
              return top >= 0 && top + Math.min(height, innerHeight / 3) <= innerHeight;
            }"""
        )
    )


# ── dialogs ──


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_a_long_address_is_shown_whole_before_it_is_opened(tab: ConsolePage, size: dict[str, int]) -> None:
    tab.page.set_viewport_size(size)
    tab.call("visit")
    link = tab.dialog.get_by_role("link", name=ADDRESS)
    link.wait_for()
    assert link.inner_text() == ADDRESS
    cut = tab.dialog.evaluate(
        """dialog => [dialog, ...dialog.querySelectorAll("*")]
          .filter(it => it.scrollWidth > it.clientWidth && it.clientWidth)
          .map(it => it.outerHTML.slice(0, 80))"""
    )
    box, around = link.bounding_box(), tab.dialog.bounding_box()
    tab.dialog.get_by_role("button", name="Decline").click()
    tab.sees(tab.result, "decline")
    tab.page.set_viewport_size(DESK)
    assert not cut
    assert around["x"] <= box["x"]
    assert box["x"] + box["width"] <= around["x"] + around["width"]


# ── floods ──


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
def test_a_call_that_never_stops_talking_can_be_cancelled(tab: ConsolePage, revision: str) -> None:
    """The end of what it says is shown, the rest is counted."""
    tab.speak(revision)
    tab.call("chatty")
    logs = tab.page.get_by_role("log", name="Logs")
    last = logs.get_by_text(re.compile("line 1999 "))
    last.wait_for()
    tab.page.get_by_text("step 1999 of 2000").wait_for()
    tab.sees(logs, "1,700 earlier lines not shown")
    assert logs.get_by_role("listitem").count() == 300
    assert last.evaluate("it => it.getBoundingClientRect().bottom <= "
                         "it.closest('[role=log]').getBoundingClientRect().bottom + 1")  # fmt: skip
    tab.sees(tab.region("Messages"), "earlier messages not shown")
    assert tab.region("Messages").get_by_role("listitem").count() <= 300
    tab.button("Cancel").click(timeout=PATIENCE_MS)
    tab.sees(tab.result, "Cancelled")


def test_what_came_while_nobody_looked_is_there_afterwards(tab: ConsolePage) -> None:
    tab.call("chatty", messages="30")
    tab.tool("people")
    tab.page.wait_for_timeout(500)
    tab.tool("chatty")
    tab.sees(tab.page.get_by_role("log", name="Logs"), "line 29 ")
    tab.button("Cancel").click()
    tab.sees(tab.result, "Cancelled")


def test_one_that_can_not_be_drawn_hides_no_other(tab: ConsolePage) -> None:
    shown = tab.page.evaluate(
        """async () => {
          const { Tail } = await import("/console/static/tail.js");
          const draw = (item) => Object.assign(document.createElement("li"), { textContent: `${item}` });
          const tail = new Tail({ shown: 2, noun: "line", draw });
          document.body.append(tail.element);
          for (const item of ["gone", { toString: 5 }, "last"]) tail.add(item);
          await new Promise((resolve) => setTimeout(resolve, 300));
          tail.element.remove();
          return [...tail.element.querySelectorAll("p, li")].map((each) => each.textContent);
        }"""
    )
    assert shown == ["1 earlier line not shown", "A line that can't be shown.", "last"]


@pytest.mark.soak
def test_a_flood_without_end_can_be_cancelled(tab: ConsolePage) -> None:
    tab.call("flood")
    tab.page.wait_for_timeout(3000)
    tab.button("Cancel").click(timeout=3 * PATIENCE_MS)
    tab.sees(tab.result, "Cancelled")
    tab.switch("Live")
    tab.sees(tab.region("Traffic"), "earlier messages not shown")


# ── long lists ──


@pytest.mark.parametrize("name", ["tool_number_150", "tool_number_250", "people"])
def test_the_chosen_one_of_many_is_in_view(tab: ConsolePage, name: str) -> None:
    tab.start_again(f"tools/{name}")
    chosen = tab.region("All tools").get_by_role("link", name=re.compile(f"^{name}"))
    chosen.wait_for()
    assert chosen.get_attribute("aria-current") == "true"
    assert chosen.evaluate(
        """it => {
          const [row, box] = [it, it.closest(".catalogue-items")].map(each => each.getBoundingClientRect());
          return row.top >= box.top && row.bottom <= box.bottom;
        }"""
    )


# ── small screens ──


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_on_a_phone_a_call_brings_its_result_into_view(phone: ConsolePage, motion: str) -> None:
    phone.page.emulate_media(reduced_motion=motion)
    phone.start_again("tools/people")
    phone.button("Call").click()
    phone.sees(phone.result, "Katherine")
    phone.page.wait_for_timeout(700)  # it may be on its way
    assert is_in_view(phone.result.get_by_role("heading", name="Result"))
    phone.page.emulate_media(reduced_motion="no-preference")


def test_on_a_phone_a_running_call_can_be_seen_and_cancelled(phone: ConsolePage) -> None:
    phone.start_again("tools/chatty")
    phone.button("Call").click()
    phone.page.get_by_text("step 1999 of 2000").wait_for()
    phone.page.wait_for_timeout(700)
    assert is_in_view(phone.page.get_by_role("progressbar", name="Progress"))
    assert is_in_view(phone.button("Cancel"))
    phone.button("Cancel").click()
    phone.sees(phone.result, "Cancelled")


def test_a_table_breaks_no_words_and_squeezes_no_column(phone: ConsolePage) -> None:
    phone.call("people")
    row = phone.result.get_by_role("row").nth(1)
    row.wait_for()
    lines = row.evaluate(
        """row => Object.fromEntries([...row.cells].map(cell => {
          const range = document.createRange();
          range.selectNodeContents(cell);
          return [cell.textContent, new Set([...range.getClientRects()].map(each => each.top)).size];
        }))"""
    )
    whole = {text: count for text, count in lines.items() if " " not in text}
    assert whole == dict.fromkeys(("Ada", "true", "2024-05-17", "ada@mail.example", "0", "false"), 1)
    assert max(lines.values()) <= 4
    beyond = phone.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert beyond <= 0  # the table moves, not the page


GAPS = """() => {
  const box = (it) => it.getBoundingClientRect();
  const middle = (it) => (box(it).top + box(it).bottom) / 2;
  const figures = document.querySelector("dl");
  const [meter] = document.querySelectorAll("[role=meter]");
  const traffic = document.querySelector("section[aria-label=Traffic]");
  return {
    figures: box(figures).right - box(figures.lastElementChild).right,
    meter: middle(meter) - middle(meter.closest("tr")),
    traffic: traffic.scrollHeight - traffic.clientHeight,
  };
}"""


@pytest.mark.parametrize("size", [DESK, PHONE, {"width": 768, "height": 800}], ids=["desk", "phone", "tablet"])
def test_the_live_page_leaves_no_gaps(tab: ConsolePage, size: dict[str, int]) -> None:
    tab.page.set_viewport_size(size)
    tab.open("live")
    tab.page.get_by_role("meter").first.wait_for()
    gaps = tab.page.evaluate(GAPS)
    tab.page.set_viewport_size(DESK)
    assert max(abs(gap) for gap in gaps.values()) <= 1.5, gaps


def test_of_lines_that_coincide_each_is_seen(tab: ConsolePage) -> None:
    """The first is on top and the thinnest."""
    widths = tab.page.evaluate(
        """async () => {
          const { LineChart } = await import("/console/static/chart.js");
          const chart = new LineChart({ title: "t", lines: ["a", "b", "c"], write: String });
          document.body.append(chart.element);
          chart.draw([1, 2, 3].map((time) => ({ time, values: { a: time, b: time, c: time } })));
          const found = [...chart.element.querySelectorAll("path")].map((it) => getComputedStyle(it).strokeWidth);
          chart.element.remove();
          return found.map(parseFloat);
        }"""
    )
    assert widths == sorted(set(widths), reverse=True)
    assert len(widths) == 3
