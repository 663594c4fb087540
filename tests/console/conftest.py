"""One server process for all tests of the console, one tab for each file."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from console_page import STAGE, ConsolePage, Impostor


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
