"""One server process for all browser tests, one browser and one tab for each file."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import browser
import node_tools
import pytest
from console_page import STAGE, ConsolePage, Impostor

import nodejs


def demand_browser() -> Any:
    """Skip loudly where there is none; in CI its absence is a failure."""
    reason = browser.why_missing()
    try:
        from playwright import sync_api
    except ImportError:
        reason = "NO PLAYWRIGHT: `pip install playwright`, so the console was not tested in a browser"
    if reason is None:
        return sync_api
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI: {reason}")
    pytest.skip(f"! {reason}")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser that finds `*.example` on this machine. While it is open, no test of this process can have a loop."""
    sync_api = demand_browser()
    arguments = [*browser.flags(), "--host-resolver-rules=MAP *.example 127.0.0.1"]
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(browser.chromium()), args=arguments)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def stage() -> Iterator[str]:
    """The URL of the stage with its console."""
    with subprocess.Popen([sys.executable, STAGE], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            words = process.stderr.readline().split()
            assert words[1:4] == [b"serves", b"MCP", b"at"], words
            assert b"has its console at" in process.stderr.readline()
            yield words[4].decode().removesuffix("/mcp")
        finally:
            process.terminate()
            rest = process.stderr.read().decode()
        assert process.wait(20) == 0
    assert "Traceback" not in rest, rest


@pytest.fixture(scope="module")
def one_tab(chromium: Any, stage: str) -> Iterator[ConsolePage]:
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    context.set_default_timeout(10_000)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=stage)
    opened = ConsolePage(context.new_page(), stage)
    opened.open()
    yield opened
    context.close()


@pytest.fixture
def tab(one_tab: ConsolePage) -> Iterator[ConsolePage]:
    """The console, opened and connected; nothing may go wrong in it unseen. Loading it takes longer than most tests."""
    if not one_tab.is_as_new:
        one_tab.start_again()
    yield one_tab
    complaints, one_tab.complaints = one_tab.complaints, []
    assert not complaints


@pytest.fixture
def impostor(tab: ConsolePage) -> Iterator[Impostor]:
    yield Impostor(tab)
    tab.page.unroute_all()


@pytest.fixture(scope="module")
def foreign() -> Iterator[str]:
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


@pytest.fixture(scope="session")
def axe() -> str:
    """The script that looks for what is in the way of people with disabilities."""
    nodejs.demand()
    return (node_tools.TARGET / "node_modules" / "axe-core" / "axe.min.js").read_text()
