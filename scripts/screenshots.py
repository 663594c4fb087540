"""The pictures of docs/console.md: the console, opened on the stage of its tests, in a browser without a window.

They are written to docs/images/console-*.png, each small enough for a repository.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import browser

ROOT = Path(__file__).parent.parent
STAGE = ROOT / "tests" / "console" / "console_stage.py"
IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1280, "height": 800}
MOST_BYTES = 150_000
WATCHED_SECONDS = 20  # so that there is something on the charts

sys.path.insert(0, str(STAGE.parent))
ConsolePage: Any = import_module("console_page").ConsolePage


def show_tool(tab: Any) -> None:
    tab.tool("order")
    tab.field("item").fill("teapot")
    tab.field("amount").fill("2")
    tab.field("colour").select_option(label="blue")
    tab.button("Call").click()
    tab.sees(tab.result, "Done")
    tab.page.get_by_role("heading", name="Order").scroll_into_view_if_needed()
    tab.page.get_by_role("heading", name="Order").hover()


def show_question(tab: Any) -> None:
    tab.tool("invite")
    tab.button("Call").click()
    tab.sees(tab.dialog, "Who is coming?")


def show_view(tab: Any) -> None:
    tab.call("forecast", city="Oslo")
    tab.region("View").locator("iframe").content_frame.get_by_role("heading", name="Oslo").wait_for()
    tab.page.wait_for_timeout(500)  # for the view to have its height


def show_live(tab: Any) -> None:
    """The dark theme, while another client calls, in a session."""
    other = ConsolePage(tab.page.context.browser.new_page(), tab.base)
    other.open()
    other.speak("2025-11-25")
    other.open("resources", "counter://value")
    other.button("Subscribe").click()
    other.button("Unsubscribe").wait_for()
    other.tool("table")
    tab.open("live")
    for number in range(4 * WATCHED_SECONDS):
        other.button("Call").click()
        tab.page.wait_for_timeout(100 + 200 * (number % 3))


PICTURES: dict[str, tuple[str, Callable[[Any], None]]] = {
    "console-tool": ("light", show_tool),
    "console-question": ("light", show_question),
    "console-view": ("light", show_view),
    "console-live": ("dark", show_live),
}


@contextmanager
def stage() -> Iterator[str]:
    """The URL of a server to be shown."""
    with subprocess.Popen([sys.executable, STAGE, "--tidy"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process.stderr.readline().split()[4].removesuffix("/mcp")
        finally:
            process.terminate()
            process.stderr.read()


def main() -> int:
    from playwright.sync_api import sync_playwright

    wanted = sys.argv[1:] or list(PICTURES)
    with stage() as base, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(browser.chromium()), args=browser.flags())
        for name in wanted:
            scheme, prepare = PICTURES[name]
            take(chromium, base, name, scheme, prepare)
        chromium.close()
    return 0


def take(chromium: Any, base: str, name: str, scheme: str, prepare: Callable[[Any], None]) -> None:
    tab = ConsolePage(chromium.new_page(viewport=SIZE, color_scheme=scheme), base)
    prepare(tab)
    path = IMAGES / f"{name}.png"
    tab.page.screenshot(path=path, animations="disabled")
    tab.page.close()
    size = path.stat().st_size
    assert size < MOST_BYTES, f"{path} has {size} bytes"
    print(f"{path.relative_to(ROOT)}: {size} bytes")


if __name__ == "__main__":
    sys.exit(main())
