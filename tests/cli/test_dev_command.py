"""`dovetail dev`, as it is used: a program is edited while clients are connected."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pexpect
import pytest
from command_stage import BIN, PROMPTLY, environment, typed

from dovetail import Client

PROGRAM = """
import time
from dovetail import Server

server = Server("shop")

@server.tool
def one() -> str:
    return "one"

@server.tool
def slow(seconds: float) -> str:
    time.sleep(seconds)
    return "old"
"""
MORE = """
@server.tool
def two() -> str:
    return "two"
"""
MASKS = ", mask_error_details=True"
ADDRESS = re.compile(r"MCP +(http://127\.0\.0\.1:\d+)/mcp")


class Developing:
    """A folder with a program in it, and the command that serves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, text: str) -> None:
        (self.folder / "server.py").write_text(text)

    def start(self, *words: str) -> None:
        with (self.folder / "told.txt").open("w") as told:
            self.process = subprocess.Popen(
                [BIN / "dovetail", "dev", "server.py", "--port", "0", *words], cwd=self.folder,
                env=environment(), stdin=subprocess.DEVNULL, stdout=told, stderr=told,
            )  # fmt: skip

    @property
    def told(self) -> str:
        return (self.folder / "told.txt").read_text()

    def until(self, words: str, times: int = 1) -> None:
        wait_until(lambda: self.told.count(words) >= times, lambda: self.told)

    @property
    def origin(self) -> str:
        self.until("Console")
        found = ADDRESS.search(self.told)
        assert found is not None
        return found[1]

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PROMPTLY)
            finally:
                self.process.kill()


def wait_until(is_so: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    deadline = time.monotonic() + PROMPTLY
    while not is_so():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.05)


@pytest.fixture
def developing(tmp_path: Path) -> Iterator[Developing]:
    stage = Developing(tmp_path)
    stage.write(PROGRAM)
    yield stage
    stage.end()


@pytest.fixture
def served(developing: Developing) -> Developing:
    developing.start()
    developing.until("Console")
    return developing


def posted(url: str, method: str, params: dict[str, Any], session: str | None = None) -> tuple[str | None, Any]:
    """One request of a handshake client; the session that it is told of, and the answer."""
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    if session:
        headers |= {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=PROMPTLY) as answer:
        text = answer.read().decode()
        return answer.headers["mcp-session-id"], json.loads(text[text.index("{") :])


GREETING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


@pytest.mark.slow
def test_a_session_goes_on_with_the_changed_program(served: Developing) -> None:
    url = f"{served.origin}/mcp"
    session, _ = posted(url, "initialize", GREETING)
    assert session
    served.write(PROGRAM + MORE)
    served.until("restarted in")
    _, answer = posted(url, "tools/list", {}, session)
    assert [tool["name"] for tool in answer["result"]["tools"]] == ["one", "slow", "two"]
    with urllib.request.urlopen(f"{served.origin}/console/", timeout=PROMPTLY) as page:
        assert page.status == 200
    served.end()
    assert served.process is not None
    assert served.process.returncode == 0
    assert "Traceback" not in served.told


@pytest.mark.slow
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_who_listens_is_told_once_and_then_finds_the_new(served: Developing, revision: str) -> None:
    heard = []
    async with (
        asyncio.timeout(PROMPTLY),
        Client(f"{served.origin}/mcp", protocol_version=revision) as client,
        client.listen(tools=True) as changes,
    ):
        call = asyncio.ensure_future(client.call_tool("slow", {"seconds": 4}))
        await asyncio.sleep(0.3)
        served.write(PROGRAM.replace("old", "new") + MORE)
        async for change in changes:  # which does not wait for what was begun
            heard.append(change.kind)
            break
        assert (await call).data == "old"  # and that is finished, by the version that began it
        assert "two" in {tool.name for tool in await client.list_tools(fresh=True)}
        assert (await client.call_tool("slow", {"seconds": 0})).data == "new"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await anext(aiter(changes))
    assert heard == ["tools"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "shown"),
    [("", ": ZeroDivisionError: division by zero (server.py, line 18)"), (MASKS, ". The details are")],
)
async def test_the_client_sees_the_real_error(developing: Developing, options: str, shown: str) -> None:
    fails = "\n@server.tool\ndef fails() -> float:\n    return 1 / 0\n"
    developing.write(PROGRAM.replace('Server("shop")', f'Server("shop"{options})') + fails)
    developing.start()
    async with Client(f"{developing.origin}/mcp") as client:
        failed = await client.call_tool("fails", raise_on_error=False)
    assert f"The tool fails failed{shown}" in failed.text


def test_a_program_that_is_broken_is_told_of_and_the_one_before_goes_on(served: Developing) -> None:
    url = f"{served.origin}/mcp"
    for broken, words in {"def (": "SyntaxError", "raise ValueError('no tea')": "ValueError: no tea"}.items():
        served.write(PROGRAM + broken)
        served.until(words)
        served.until("the version before goes on")
        _, answer = posted(url, "initialize", GREETING)
        assert answer["result"]["serverInfo"]["name"] == "shop"
    assert "developing" not in served.told  # no line of ours in their tracebacks
    served.write(PROGRAM + MORE)
    served.until("restarted in")


NOTED = """
import os
open("pids.txt", "a").write(f"{os.getpid()}\\n")
"""


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="elsewhere processes are looked for in another way")
def test_of_many_quick_edits_the_last_is_served_and_no_process_is_left(served: Developing) -> None:
    url = f"{served.origin}/mcp"
    session, _ = posted(url, "initialize", GREETING)
    for number in range(10):
        served.write(NOTED + PROGRAM.replace('"one"', f'"edit {number}"'))
        time.sleep(0.25)
    last = NOTED + PROGRAM.replace('"one"', '"the last"') + 'open("last.txt", "w").close()'
    served.write(last)
    wait_until((served.folder / "last.txt").exists, lambda: served.told)
    wait_until(lambda: served.told.rfind("restarted in") > served.told.rfind(" changed"), lambda: served.told)
    _, answer = posted(url, "tools/call", {"name": "one", "arguments": {}}, session)
    assert answer["result"]["content"][0]["text"] == "the last"
    served.write(NOTED + "import time; time.sleep(60)")  # the end comes while another one starts
    pids = served.folder / "pids.txt"
    known = pids.read_text()
    wait_until(lambda: pids.read_text() != known, lambda: served.told)
    assert served.process is not None
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(10) == 0
    assert [pid for pid in map(int, pids.read_text().split()) if is_there(pid)] == []
    assert "Traceback" not in served.told


@pytest.mark.slow
def test_one_that_dies_while_it_starts_leaves_the_one_before(served: Developing) -> None:
    url = f"{served.origin}/mcp"
    served.write(PROGRAM + "import os; os._exit(3)")
    served.until("the version before goes on")
    _, answer = posted(url, "initialize", GREETING)
    assert answer["result"]["serverInfo"]["name"] == "shop"
    served.write(PROGRAM + MORE)
    served.until("restarted in")


@pytest.mark.slow
def test_what_can_not_be_loaded_at_first_is_served_when_it_can(developing: Developing) -> None:
    developing.write("server = 1\n")
    developing.start()
    developing.until("nothing is served")
    assert "has no server" in developing.told
    developing.write(PROGRAM)
    _, answer = posted(f"{developing.origin}/mcp", "initialize", GREETING)
    assert answer["result"]["serverInfo"]["name"] == "shop"


@pytest.mark.slow
def test_what_serves_ends_with_who_was_killed(served: Developing) -> None:
    port = int(served.origin.rpartition(":")[2])
    assert served.process is not None
    served.process.kill()
    served.process.wait()
    wait_until(lambda: is_refused(port), lambda: "it still listens")


def is_refused(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.slow
def test_in_a_terminal_the_browser_is_opened_and_ctrl_c_ends_it(developing: Developing) -> None:
    opened = developing.folder / "opened.txt"
    browser = developing.folder / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {opened}\n')
    browser.chmod(0o755)
    env = {name: value for name, value in environment(TERM="xterm").items() if name != "SSH_CONNECTION"}
    child = pexpect.spawn(
        str(BIN / "dovetail"), ["dev", "server.py", "--port", "0"], cwd=str(developing.folder), timeout=PROMPTLY,
        encoding="utf-8", env={**env, "BROWSER": str(browser)}, dimensions=(40, 200), echo=False,
    )  # fmt: skip
    try:
        child.expect(r"Console +(http://127\.0\.0\.1:\d+/console/)")
        url = child.match[1]
        child.expect("Ctrl-C ends it")
        wait_until(opened.exists, lambda: "no browser was opened")
        developing.write("def (")
        child.expect(r"\x1b\[31m[^\x1b]*SyntaxError")
        began = time.monotonic()
        child.sendintr()
        child.expect(pexpect.EOF)
        child.close()
        assert (child.exitstatus, time.monotonic() - began < 10) == (0, True)
        assert opened.read_text().split() == [url]
        assert is_refused(int(re.findall(r":(\d+)/", url)[0]))
    finally:
        child.close(force=True)


def test_what_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(PROGRAM)
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = typed(tmp_path, "dev", "server.py", "--port", str(port))
    assert (done.returncode, b"another program listens there" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.py"], "there is no file nowhere.py"),
        (["nowhere.deeper:x"], "there is no module nowhere"),
        (["server.py", "--state", "foo://x"], "foo: is not known; give one like redis://"),
        (["server.py", "--state", "sqlite:///no/such/folder/x.db"], "does not exist; make it"),
        (["server.py", "--path", "mcp"], "path"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_no_change_of_the_program_mends_ends_it(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "server.py").write_text(PROGRAM)
    done = typed(tmp_path, "dev", *words, "--port", "0")
    assert (done.returncode, said in done.stderr.decode()) == (2, True), done.stderr


@pytest.mark.slow
def test_a_store_that_is_away_is_told_of_and_waited_for(developing: Developing) -> None:
    developing.start("--state", "redis://127.0.0.1:1/0")
    developing.until("out of reach")
    developing.until("can't start yet", times=3)
    assert developing.process is not None
    assert developing.process.poll() is None
