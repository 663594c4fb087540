"""`dovetail dev`, as it is used: a program is edited while clients are connected."""

import asyncio
import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_stage import BIN, PROMPTLY, environment

from dovetail import Client
from dovetail.cli.dev import WatchedFiles
from processes import is_alive, wait_until

pytestmark = pytest.mark.long

PROGRAM = """
import os, time
from dovetail import Server

server = Server("shop")
open("pids.txt", "a").write(f"{os.getpid()}\\n")

@server.tool
def one() -> str:
    return "one"

@server.tool
def slow(seconds: float) -> str:
    open("slow.txt", "w").close()
    time.sleep(seconds)
    return "old"

@server.tool
def variables() -> list[str]:
    return [name for name in os.environ if name in ("DOVETAIL_STATE", "DOVETAIL_PORT")]

@server.tool
def fails() -> float:
    return 1 / 0
"""
MORE = """
@server.tool
def two() -> str:
    return "two"
"""
VIEW = """
from pathlib import Path
server.add_ui("ui://shop/chart", Path("chart.html"))
"""
GREETING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


class Developing:
    """A folder with a program in it, and the command that serves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write(PROGRAM)
        with (folder / "log.txt").open("w") as log:
            self.process = subprocess.Popen(
                [BIN / "dovetail", "dev", "server.py", "--port", "0", "--open"], cwd=folder,
                env=environment(BROWSER="echo opened %s"),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.until("Console")
        self.until("opened http://127.0.0.1:")
        found = re.search(r"MCP +(http://127\.0\.0\.1:\d+)/mcp", self.log)
        assert found is not None
        self.origin = found[1]

    def write(self, text: str) -> None:
        (self.folder / "server.py").write_text(text)

    def restart(self, text: str) -> None:
        before = self.log.count("restarted in")
        self.write(text)
        self.until("restarted in", before + 1)

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def until(self, words: str, times: int = 1) -> None:
        wait_until(lambda: self.log.count(words) >= times, lambda: self.log)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Developing]:
    stage = Developing(tmp_path_factory.mktemp("developing"))
    yield stage
    stage.process.send_signal(signal.SIGINT)
    try:
        assert stage.process.wait(PROMPTLY) == 0
        pids = map(int, (stage.folder / "pids.txt").read_text().split())
        assert [pid for pid in pids if is_alive(pid)] == []
    finally:
        stage.process.kill()


def posted(url: str, method: str, params: dict[str, Any], session: str | None = None) -> tuple[str | None, Any]:
    """One request of a handshake client; the session id and the response."""
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    if session:
        headers |= {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=PROMPTLY) as answer:
        text = answer.read().decode()
        return answer.headers["mcp-session-id"], json.loads(text[text.index("{") :])


def test_a_session_goes_on_with_the_changed_program(served: Developing) -> None:
    url = f"{served.origin}/mcp"
    session, _ = posted(url, "initialize", GREETING)
    assert session
    served.restart(PROGRAM + MORE)
    _, answer = posted(url, "tools/list", {}, session)
    assert "two" in [tool["name"] for tool in answer["result"]["tools"]]
    with urllib.request.urlopen(f"{served.origin}/console/", timeout=PROMPTLY) as page:
        assert page.status == 200


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_listeners_are_notified_and_a_call_in_flight_is_answered(served: Developing, revision: str) -> None:
    async with (
        asyncio.timeout(PROMPTLY),
        Client(f"{served.origin}/mcp", protocol_version=revision) as client,
        client.listen(tools=True) as changes,
    ):
        before = (await client.call_tool("slow", {"seconds": 0})).data
        (served.folder / "slow.txt").unlink()
        call = asyncio.ensure_future(client.call_tool("slow", {"seconds": 1}))
        await asyncio.to_thread(wait_until, (served.folder / "slow.txt").exists, lambda: "it was not called")
        served.write(PROGRAM.replace('"old"', f'"{revision}"') + MORE)
        assert (await call).data == before  # by the version that began it
        async for change in changes:
            assert change.kind == "tools"
            break
        assert (await client.call_tool("slow", {"seconds": 0})).data == revision


async def test_the_client_sees_the_real_error(served: Developing) -> None:
    async with Client(f"{served.origin}/mcp") as client:
        failed = await client.call_tool("fails", raise_on_error=False)
    assert "The tool fails failed: ZeroDivisionError: division by zero (server.py, line " in failed.text


async def test_the_options_do_not_stay_in_the_environment(served: Developing) -> None:
    async with Client(f"{served.origin}/mcp") as client:
        assert (await client.call_tool("variables")).data == []


async def test_a_view_that_is_edited_is_announced_without_a_restart(served: Developing) -> None:
    view = served.folder / "chart.html"
    view.write_text("<!doctype html><p>one")
    served.restart(PROGRAM + VIEW)
    pids = (served.folder / "pids.txt").read_text()
    async with asyncio.timeout(PROMPTLY), Client(f"{served.origin}/mcp") as client:
        async with client.listen(uris=["ui://shop/chart"]) as changes:
            view.write_text("<!doctype html><p>two, and more")
            assert (await anext(changes)).uri == "ui://shop/chart"
        (contents,) = await client.read_resource("ui://shop/chart")
    assert contents.text == "<!doctype html><p>two, and more"
    assert (served.folder / "pids.txt").read_text() == pids


def test_what_can_not_be_loaded_is_served_when_it_can(served: Developing) -> None:
    served.write(PROGRAM + "def (")
    served.until("SyntaxError")
    served.write(PROGRAM + "raise ValueError('no tea')")
    served.until("ValueError: no tea")
    served.until("a change starts it again")
    assert "dovetail/cli" not in served.log  # no line of ours in a traceback
    served.restart(PROGRAM)
    _, answer = posted(f"{served.origin}/mcp", "initialize", GREETING)
    assert answer["result"]["serverInfo"]["name"] == "shop"


@pytest.mark.parametrize(
    ("name", "is_seen"),
    [
        ("server.py", True),
        ("deep/down/part.py", True),
        ("pyproject.toml", True),
        ("data.json", False),  # a server that writes its own data is not to restart itself
        (".venv/lib.py", False),
        ("__pycache__/x.py", False),
        ("node_modules/x.py", False),
        ("named.json", True),
    ],
)
def test_which_files_are_watched(tmp_path: Path, name: str, is_seen: bool) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    files = WatchedFiles([tmp_path, tmp_path / "named.json"])
    for change in (lambda: path.write_text("a"), lambda: path.write_text("ab"), path.unlink):
        assert files.changed() == []
        change()
        assert files.changed() == ([str(path)] if is_seen else [])
