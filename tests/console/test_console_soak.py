"""The long form of the console's proof: a server that restarts, and one that wants a token."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from console_page import STAGE, ConsolePage

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parent.parent.parent


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
