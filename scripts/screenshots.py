"""The pictures of the pages: the console in a browser without a window, on the stage of its tests or of a page.

They are written to docs/images/*.png, each small enough for a repository.
"""

import itertools
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import browser

ROOT = Path(__file__).parent.parent
STAGE = ROOT / "tests" / "console" / "console_stage.py"
IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1280, "height": 800}
WIDE = {"width": 1600, "height": 862}  # of a dashboard
MOST_BYTES = 150_000
WATCHED_SECONDS = 100  # so that there is something on the charts

sys.path[:0] = [str(STAGE.parent), str(STAGE.parent.parent)]
ConsolePage: Any = import_module("console_page").ConsolePage
call_of: Any = import_module("console_page").call_of
newcomer: Any = import_module("newcomer").newcomer
ARGUMENTS = {
    "order": {"item": "teapot", "amount": 2},
    "slow": {"steps": 2},
    "fail": {"reason": "the kiln is out of gas"},
}


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
    """The dark theme, after other clients have called, one of them in a session."""
    tab.page.set_viewport_size(WIDE)
    other = ConsolePage(tab.page.context.browser.new_page(), tab.base)
    other.open()
    other.speak("2025-11-25")
    other.open("resources", "counter://value")
    other.button("Subscribe").click()
    other.button("Unsubscribe").wait_for()
    tools = itertools.cycle(("order", "table", "order", "count_up", "order", "slow", "table", "fail"))
    began = time.monotonic()
    while (passed := time.monotonic() - began) < WATCHED_SECONDS:
        for tool in itertools.islice(tools, 7):
            with suppress(HTTPError), urlopen(call_of(tab.base, tool, ARGUMENTS.get(tool, {})), timeout=10) as answer:
                answer.read()
        other.page.wait_for_timeout(150 + 450 * abs(math.sin(passed / 16)))
    tab.open("live")
    tab.region("Tool calls").get_by_role("row").nth(3).wait_for()
    tab.page.wait_for_timeout(2500)
    tab.page.get_by_role("group", name="Requests per second").hover(position={"x": 420, "y": 60})


def show_quickstart(tab: Any) -> None:
    tab.page.set_viewport_size(SIZE | {"height": 480})
    tab.tool("to_fahrenheit")
    tab.field("celsius").fill("21")
    tab.button("Call").click()
    tab.sees(tab.result, "69.8")
    tab.page.get_by_role("heading", name="to_fahrenheit").hover()


PICTURES: dict[str, tuple[str, Callable[[Any], None]]] = {
    "console-tool": ("light", show_tool),
    "console-question": ("light", show_question),
    "console-view": ("light", show_view),
    "console-live": ("dark", show_live),
    "quickstart": ("light", show_quickstart),
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


@contextmanager
def quickstart() -> Iterator[str]:
    """The URL of the server of the quickstart, as it is where the page has its picture."""
    with tempfile.TemporaryDirectory() as folder, newcomer(Path(folder)) as someone:
        someone.follow(ROOT / "docs" / "quickstart.md", until="it prints")
        yield f"http://127.0.0.1:{someone.ports['8000']}"


def main() -> int:
    from playwright.sync_api import sync_playwright

    wanted = sys.argv[1:] or list(PICTURES)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(browser.chromium()), args=browser.flags())
        for served, names in ((stage, wanted), (quickstart, {"quickstart"}.intersection(wanted))):
            if ours := [name for name in names if (name == "quickstart") == (served is quickstart)]:
                with served() as base:
                    for name in ours:
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
