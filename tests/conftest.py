"""What all tests share: the rule marks, and the check of everything a server emits against the official schemas."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

import browser
import docs_site
import fastmcp_environment
import fetch_specifications
import fetch_tools

import nodejs
import official
import prometheus
import stores
import web_pages
from official import Watch

# Two busy cores make any single example slow, so none has a deadline.
settings.register_profile("quick", deadline=None, max_examples=10)  # of `make check`
settings.register_profile("dovetail", deadline=None, max_examples=25)
settings.register_profile("long", deadline=None, max_examples=500)  # of `make soak`
settings.load_profile("dovetail")

# The tests talk to this machine alone. With certificates of one's own each client would read all of them: 50 ms.
for _name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
    os.environ.pop(_name, None)

# A shell ignores Ctrl-C for what it starts in the background, and all children would: servers in tests have to hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _judge_emitted_messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every message that a connection writes in any test is validated against the schema of its revision."""
    if not official.available():
        yield
        return
    watch = Watch(monkeypatch.setattr)
    yield
    for witness in watch:
        witness.assert_clean()


@pytest.fixture
def witness() -> Iterator[official.Witness]:
    """Judges a server in another process, given to a client as `transcript=witness.see`."""
    witness = official.Witness()
    yield witness
    witness.assert_clean()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """While it is open, no test of this process can have a loop."""
    with web_pages.chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def foreign() -> Iterator[str]:
    """The port of another origin's web pages."""
    with web_pages.foreign_pages() as port:
        yield port


@pytest.fixture(scope="session")
def axe() -> str:
    """The script that looks for what is in the way of people with disabilities."""
    return web_pages.axe()


def pytest_report_header() -> str:
    if official.available():
        return "official schemas: found, every message of the server is checked"
    return official.MISSING


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """At the end too, because `-q` hides the header."""
    if not official.available():
        terminalreporter.section("no official judge", sep="!", red=True, bold=True)
        terminalreporter.write_line(official.MISSING, red=True, bold=True)
    if (missing := stores.why_missing()) is not None:
        terminalreporter.section("no state store", sep="!", red=True, bold=True)
        terminalreporter.write_line(missing, red=True, bold=True)
    if (missing := prometheus.why_missing()) is not None:
        terminalreporter.section("no Prometheus", sep="!", red=True, bold=True)
        terminalreporter.write_line(missing, red=True, bold=True)
    if (missing := nodejs.why_missing()) is not None:
        terminalreporter.section("no conformance suite, no TypeScript client", sep="!", red=True, bold=True)
        terminalreporter.write_line(missing, red=True, bold=True)
    if (missing := fastmcp_environment.why_missing()) is not None:
        terminalreporter.section("no FastMCP", sep="!", red=True, bold=True)
        terminalreporter.write_line(missing, red=True, bold=True)
    if (missing := browser.why_missing()) is not None:
        terminalreporter.section("no browser", sep="!", red=True, bold=True)
        terminalreporter.write_line(missing, red=True, bold=True)
    if (missing := docs_site.why_missing()) is not None:
        terminalreporter.section("no site generator", sep="!", red=True, bold=True)
        terminalreporter.write_line(missing, red=True, bold=True)
    if (missing := fetch_specifications.why_missing()) is not None:
        terminalreporter.section("no OpenAPI specifications", sep="!", red=True, bold=True)
        terminalreporter.write_line(missing, red=True, bold=True)
    if (missing := fetch_tools.why_missing()) is not None:
        terminalreporter.section("no public servers", sep="!", red=True, bold=True)
        terminalreporter.write_line(missing, red=True, bold=True)


def pytest_sessionstart() -> None:
    official.demand_in_ci()


def pytest_collection_finish() -> None:
    """All tests are half a million objects, which stay. Who looks for garbage after a test need not look at them."""
    gc.collect()
    gc.freeze()
