"""The long form of the console's proof: every revision, every section in both lights, any screen, restarts, monkeys."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from console_page import STAGE, ConsolePage

pytestmark = pytest.mark.soak

REVISIONS = ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"]
SECTIONS = ["tools", "resources", "prompts", "live", "history"]
SEEDS = range(5)
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_revision_is_spoken(tab: ConsolePage, revision: str) -> None:
    tab.speak(revision)
    tab.call("order", item="teapot", amount="2")
    tab.sees(tab.result, "teapot")
    tab.call("table")
    tab.sees(tab.result, "Turku")
    tab.open("prompts", "greeting")
    tab.field("who").fill("Ada")
    tab.button("Get prompt").click()
    tab.sees(tab.result, "Greet Ada")
    tab.tool("slow")
    tab.button("Call").click()
    tab.page.get_by_text(re.compile("step [2-9] of 50")).wait_for()
    tab.button("Cancel").click()
    tab.sees(tab.result, "Cancelled")
    if revision >= "2025-06-18":  # which has questions
        tab.call("invite")
        tab.dialog.get_by_role("button", name="Decline").click()
        tab.sees(tab.result, "Nobody: decline")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_is_there_for_everybody(tab: ConsolePage, axe: str, section: str, scheme: str) -> None:
    tab.page.emulate_media(color_scheme=scheme)
    tab.open(section)
    tab.page.wait_for_timeout(1500)
    assert not tab.violations(axe)
    tab.page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("name", ["Settings", "About"])
def test_every_dialog_is_there_for_everybody(tab: ConsolePage, axe: str, name: str) -> None:
    tab.button(name).click()
    tab.dialog.wait_for()
    assert not tab.violations(axe)
    tab.page.keyboard.press("Escape")
    tab.dialog.wait_for(state="detached")
    assert tab.button(name).evaluate("it => it === document.activeElement")  # the focus is back


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("width", [360, 768, 1920])
def test_it_fits_every_screen(tab: ConsolePage, section: str, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 800})
    tab.open(section)
    tab.page.wait_for_timeout(500)
    beyond = tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    tab.page.set_viewport_size({"width": 1280, "height": 800})
    assert beyond <= 0


def test_a_server_that_comes_back_is_found_again(chromium: Any) -> None:
    def start(port: str) -> tuple[subprocess.Popen[str], str]:
        environment = {**os.environ, "STAGE_PORT": port}
        process = subprocess.Popen([sys.executable, STAGE], env=environment, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        return process, process.stderr.readline().split()[4].removesuffix("/mcp")

    first, base = start("0")
    tab = ConsolePage(chromium.new_page(), base)
    try:
        tab.open("tools", "table")
        first.terminate()
        first.wait(20)
        tab.page.get_by_role("status").get_by_text("Reconnecting…").wait_for()
        second, _ = start(base.rpartition(":")[2])
        try:
            tab.page.get_by_role("status").get_by_text("Connected", exact=True).wait_for(timeout=30_000)
            tab.button("Call").click()
            tab.sees(tab.result, "Turku")
        finally:
            tab.page.close()
            second.terminate()
            second.communicate(timeout=20)
    finally:
        first.kill()
        first.communicate(timeout=20)


def test_a_server_that_wants_a_token_gets_one(chromium: Any) -> None:
    program = ROOT / "docs" / "programs" / "auth_keys.py"
    command = [sys.executable, "-m", "dovetail.cli", "run", program, "--transport", "http", "--port", "0", "--console"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        base = process.stderr.readline().split()[4].removesuffix("/mcp")
        page = chromium.new_page()
        try:
            page.goto(f"{base}/console/")
            page.get_by_label("Token").fill("dovetail_example_key_of_alice")
            page.get_by_role("button", name="Connect").click()
            tab = ConsolePage(page, base)
            tab.connected()
            tab.page.get_by_role("link", name=re.compile("whoami")).click()
            tab.button("Call").click()
            tab.sees(tab.result, "alice")
            tab.button("Copy as curl").click()
            assert "dovetail_example_key" not in page.content()
        finally:
            page.close()
            process.terminate()
            process.stderr.read()


KEYS = [
    "Tab",
    "Shift+Tab",
    "Enter",
    "Escape",
    "ArrowDown",
    "ArrowUp",
    "Space",
    "Control+Enter",
    "a",
    "1",
    "/",
    "{",
    "Home",
]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_keys_break_it(tab: ConsolePage, seed: int) -> None:
    chance = random.Random(seed)
    tab.page.context.on("page", lambda other: other.close())  # Ctrl+Enter on a link opens one
    tab.open(chance.choice(SECTIONS))
    for _ in range(400):
        tab.page.keyboard.press(chance.choice(KEYS))
        if chance.random() < 0.02:
            tab.page.evaluate("place => { location.hash = place }", chance.choice(SECTIONS))
    tab.page.wait_for_timeout(500)
    tab.start_again()
    tab.call("table")
    tab.sees(tab.result, "Turku")
