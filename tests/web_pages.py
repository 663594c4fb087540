"""Web pages in a real browser: the browser, pages of another origin, and the judge of what keeps people out."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import browser
import node_tools
import pytest

import nodejs

AXE_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


def demand_browser() -> Any:
    """Skip loudly where there is none; in CI its absence is a failure."""
    reason = browser.why_missing()
    try:
        from playwright import sync_api
    except ImportError:
        reason = "NO PLAYWRIGHT: `pip install playwright`, so no page was tested in a browser"
    if reason is None:
        return sync_api
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI: {reason}")
    pytest.skip(f"! {reason}")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser that finds `*.example` on this machine. While it is open, no test of this process can have a loop."""
    sync_api = demand_browser()
    arguments = [*browser.flags(), "--host-resolver-rules=MAP *.example 127.0.0.1"]
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(browser.chromium()), args=arguments)
        yield launched
        launched.close()


@contextmanager
def foreign_pages() -> Iterator[str]:
    """The port of another origin's web pages."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title><body>")

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as elsewhere:
        thread = threading.Thread(target=elsewhere.serve_forever, daemon=True)
        thread.start()
        yield str(elsewhere.server_port)
        elsewhere.shutdown()
        thread.join(10)


def axe() -> str:
    """The script that looks for what is in the way of people with disabilities."""
    nodejs.demand()
    return (node_tools.TARGET / "node_modules" / "axe-core" / "axe.min.js").read_text()


def violations(page: Any, axe: str) -> list[str]:
    """What axe finds; the debugger brings it in, for the page itself lets no script in."""
    page.evaluate(axe)
    found = page.evaluate("rules => axe.run(document, rules)", AXE_RULES)["violations"]
    return [f"{each['id']} ({each['impact']}): {[node['target'] for node in each['nodes']]}" for each in found]
