"""`dovetail dev`, as it is used: a program is edited while clients are connected."""

import asyncio
import json
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pexpect
import pytest
from command_stage import BIN, PROMPTLY, environment, typed

from dovetail import Client
from dovetail.cli.developing.keeper import Keeper
from dovetail.cli.developing.serving_child import Report, ServingChild
from dovetail.cli.developing.sources import Sources, place_of

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
        call = asyncio.ensure_future(client.call_tool("slow", {"seconds": 1.5}))
        await asyncio.sleep(0.3)
        served.write(PROGRAM.replace("old", "new") + MORE)
        assert (await call).data == "old"  # what was begun is finished, by the version that began it
        async for change in changes:
            heard.append(change.kind)
            break
        assert "two" in {tool.name for tool in await client.list_tools(fresh=True)}
        assert (await client.call_tool("slow", {"seconds": 0})).data == "new"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await anext(aiter(changes))
    assert heard == ["tools"]


@pytest.mark.slow
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
    done = typed(tmp_path, "dev", "nowhere.py")
    assert (done.returncode, b"there is no file nowhere.py" in done.stderr) == (2, True)


# ── who serves ──


class FakeChild:
    """Does nothing, and remembers what it was told."""

    began = 0.0
    code = 0

    def __init__(self, ready: Report, gone: Report) -> None:
        self.told: list[str] = []
        self.is_ready: Callable[[], None] = lambda: ready(cast("ServingChild", self))
        self.is_gone: Callable[[], None] = lambda: gone(cast("ServingChild", self))

    def end(self, _seconds: float) -> None:
        self.told.append("end")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.told.append(name)


class Kept:
    """A keeper whose children are fakes."""

    def __init__(self, folder: Path, *, alone: bool = False) -> None:
        self.children: list[FakeChild] = []
        self.seen: list[str] = []
        self.keeper = Keeper(
            self.start, Sources([folder]), lambda: self.seen.append("announced"), drain=1.0, alone=alone
        )  # fmt: skip
        self.keeper._start()

    def start(self, ready: Report, gone: Report) -> ServingChild:
        self.children.append(FakeChild(ready, gone))
        return cast("ServingChild", self.children[-1])

    def happen(self, act: Callable[[], None]) -> None:
        act()
        self.keeper._go_on()

    @property
    def told(self) -> list[list[str]]:
        return [child.told for child in self.children]


def test_the_old_one_ends_when_the_new_one_is_ready(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.happen(kept.children[0].is_ready)
    kept.keeper._start()
    assert kept.told == [["tell_changed"], []]
    kept.happen(kept.children[1].is_ready)
    assert kept.told == [["tell_changed", "end"], []]
    kept.happen(kept.children[0].is_gone)
    assert kept.told[1] == ["tell_changed"]
    assert kept.seen == ["announced"]


def test_a_version_that_is_not_wanted_any_more_never_serves(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.happen(kept.children[0].is_ready)
    kept.keeper._start()
    kept.keeper._start()
    kept.happen(kept.children[1].is_ready)  # it had been told to end just before
    kept.happen(kept.children[1].is_gone)
    kept.happen(kept.children[2].is_ready)
    assert kept.told == [["tell_changed", "end"], ["end"], []]


def test_where_sockets_are_not_shared_the_old_one_ends_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Kept(tmp_path, alone=True)
    kept.happen(kept.children[0].is_ready)
    kept.keeper._start()
    assert kept.told == [["tell_changed", "end", "wait"], []]
    kept.happen(kept.children[0].is_gone)
    kept.happen(kept.children[1].is_gone)
    assert "by itself" not in (told := capsys.readouterr().err)
    assert "nothing is served" in told


def test_a_server_that_ends_by_itself_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = Kept(tmp_path)
    kept.happen(kept.children[0].is_ready)
    kept.happen(kept.children[0].is_gone)
    assert "ended by itself, with code 0; a change starts it again" in capsys.readouterr().err


# ── what is watched ──


@pytest.mark.parametrize(
    ("name", "is_seen"),
    [
        ("server.py", True),
        ("deep/down/part.py", True),
        ("pyproject.toml", True),
        ("data.json", False),  # a server that writes its own data is not to restart itself
        (".venv/lib.py", False),
        (".hidden.d/x.py", False),
        ("__pycache__/x.py", False),
        ("node_modules/x.py", False),
        ("named.json", True),
    ],
)
def test_which_files_are_watched(tmp_path: Path, name: str, is_seen: bool) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    sources = Sources([tmp_path, tmp_path / "named.json"])
    for change in (lambda: path.write_text("a"), lambda: path.write_text("ab"), path.unlink):
        assert sources.changed() == []
        change()
        assert sources.changed() == ([str(path)] if is_seen else [])


def test_where_a_target_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of("deep/server.py:app") == place_of("deep/server.py") == tmp_path.resolve() / "deep"
    assert place_of("package.module:server") == Path.cwd()
