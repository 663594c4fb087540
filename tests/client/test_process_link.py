"""Servers behind a pipe: started, spoken to, and ended whatever they do."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail.client import Client, process
from dovetail.errors import ConnectionLost, SetupError
from official import Witness

# A server in a few lines, which knows nothing but what the test tells it. `answer(message)` gives a result or an error.
FAKE = """
import json, os, sys, time
def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()
INIT = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "0"}}
DISCOVER = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}, "ttlMs": 0,
            "cacheScope": "private"}
def refuse(code=-32601):
    return {"error": {"code": code, "message": "no"}}
def text(value):
    return {"result": {"resultType": "complete", "content": [{"type": "text", "text": value}]}}
%s
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        reply = answer(message["method"], message.get("params", {}))
        if reply is not None:
            send({"id": message["id"], **reply})
"""

LEGACY = """
def answer(method, params):
    if method == "initialize": return {"result": INIT}
    if method == "tools/call": return call(params["name"])
    if method == "never/answered": return None
    return refuse()
def call(name):
    if name == "crash": os._exit(3)
    if name == "kill": os.kill(os.getpid(), 9)
    if name == "mute":
        os.close(1)
        sys.stdin.read()
        os._exit(0)
    if name == "noise":
        sys.stdout.write("hello there\\n\\n[1,2]\\n{}\\n")
        return text("still here")
    if name == "big": return text("x" * 3_000_000)
    if name == "env": return text(os.environ.get("COLOUR", "") + " " + os.path.basename(os.getcwd()))
    if name == "ping":
        send({"id": "p", "method": "ping"})
        return text(next(sys.stdin).strip())
"""

MODERN = """
def answer(method, params):
    if params["_meta"]["io.modelcontextprotocol/protocolVersion"] != "2026-07-28": return refuse(-32602)
    if method == "server/discover": return {"result": DISCOVER}
    if method == "tools/call": return text("modern")
    return refuse()
"""

SLOW = """
def answer(method, params):
    if method == "initialize": return {"result": INIT}
    time.sleep(0.05)
    return text("read")
"""

# It neither leaves when its input ends nor when it is asked to.
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def answer(method, params):
    return {"result": INIT if method == "initialize" else {"pid": os.getpid()}}
import atexit
def stay():
    time.sleep(60)
atexit.register(stay)
"""

REAL = """
from dovetail.server import Server
server = Server("real", version="1")

@server.tool
def add(a: int, b: int) -> int:
    return a + b

@server.tool
def echo(text: str) -> str:
    print("this goes to stderr")
    return text

server.run()
"""


def script(folder: Path, body: str) -> list[str]:
    path = folder / "server.py"
    path.write_text(FAKE % body)
    return [sys.executable, "-I", str(path)]


async def outcome(work: Any) -> Any:
    return await asyncio.wait_for(work, 20)


async def test_an_old_server_is_recognised(tmp_path: Path) -> None:
    async with Client(script(tmp_path, LEGACY)) as client:
        assert client.protocol_version == "2025-06-18"
        assert client.server_info is not None
        assert client.server_info.name == "fake"
        assert (await client.call_tool("noise")).data == "still here"
        assert (await client.call_tool("ping")).data.endswith('"id":"p","result":{}}')


async def test_a_modern_server_is_recognised(tmp_path: Path) -> None:
    async with Client(script(tmp_path, MODERN)) as client:
        assert client.protocol_version == "2026-07-28"
        assert client.server_info is None
        assert (await client.call_tool("any")).data == "modern"


@pytest.mark.parametrize(
    ("tool", "words"),
    [("crash", "exited with code 3"), ("kill", "was ended by signal 9"), ("mute", "closed its output")],
)
async def test_a_server_that_goes_away_in_a_call(tmp_path: Path, tool: str, words: str) -> None:
    async with Client(script(tmp_path, LEGACY)) as client:
        others = [asyncio.ensure_future(client.request("never/answered")) for _ in range(2)]
        await asyncio.sleep(0)  # they are sent first
        with pytest.raises(ConnectionLost, match=f"tools/call: .*{words}"):
            await outcome(client.call_tool(tool))
        for lost in await asyncio.gather(*others, return_exceptions=True):
            assert isinstance(lost, ConnectionLost)
        with pytest.raises(ConnectionLost, match=words):
            await client.call_tool("noise")


async def test_a_server_that_ends_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost, match=r"server/discover: .* exited with code 7"):
        async with Client([sys.executable, "-c", "raise SystemExit(7)"]):
            pass


async def test_a_long_message(tmp_path: Path) -> None:
    async with Client(script(tmp_path, LEGACY)) as client:
        assert len((await client.call_tool("big")).text) == 3_000_000
        assert (await client.call_tool("noise", {"pad": "y" * 3_000_000})).data == "still here"


async def test_a_message_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_LINE_BYTES", 1_000_000)
    async with Client(script(tmp_path, LEGACY)) as client:
        with pytest.raises(ConnectionLost, match="more than 1000000 bytes"):
            await outcome(client.call_tool("big"))


async def test_environment_and_directory(tmp_path: Path) -> None:
    command = script(tmp_path, LEGACY)
    async with Client(command, env={"COLOUR": "green"}, cwd=tmp_path) as client:
        assert (await client.call_tool("env")).data == f"green {tmp_path.name}"


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        (["no-such-command-at-all"], {}, "'no-such-command-at-all': there is no such command"),
        ([sys.executable], {"cwd": "/no/such/folder"}, "cwd='/no/such/folder'"),
        ([sys.executable], {"cwd": Path("/no/such/folder")}, "its working folder can't be used: No such file"),
        ([sys.executable, "\0"], {}, "hold what no system takes"),
        ([sys.executable], {"env": {"A=B": ""}}, "hold what no system takes"),
        ([sys.executable], {"env": {"A": "\0"}}, "hold what no system takes"),
        ([sys.executable, "\ud800"], {}, "hold what no system takes"),
        (["/"], {}, "can't start '/': Permission denied"),
    ],
)
async def test_a_command_that_can_not_be_started(command: list[str], options: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match="Client: can't start") as caught:
        async with Client(command, **options):
            pass
    assert words in str(caught.value)


@pytest.mark.timeout(50)
async def test_a_child_leaves_when_its_input_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LEAVE_SECONDS", 60)  # nobody asks it to, or the test takes for ever
    before = asyncio.all_tasks()
    async with Client(script(tmp_path, LEGACY)) as client:
        await client.call_tool("noise")
    assert asyncio.all_tasks() == before


async def test_a_child_that_does_not_want_to_leave_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LEAVE_SECONDS", 0.05)
    async with Client(script(tmp_path, STUBBORN), protocol_version="2025-06-18") as client:
        pid = (await client.request("who"))["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_cancelled_close_still_ends_the_child(tmp_path: Path) -> None:
    client = Client(script(tmp_path, STUBBORN), protocol_version="2025-06-18")
    await client.__aenter__()
    pid = (await client.request("who"))["pid"]
    closing = asyncio.ensure_future(client.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    for _ in range(100):
        await asyncio.sleep(0.02)
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
    pytest.fail("the child is still there")


async def test_a_child_that_reads_slowly(tmp_path: Path) -> None:
    async with Client(script(tmp_path, SLOW), protocol_version="2025-06-18") as client:
        calls = [client.call_tool("x", {"pad": "z" * 200_000}) for _ in range(5)]
        assert [result.data for result in await outcome(asyncio.gather(*calls))] == ["read"] * 5


@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", None])
async def test_a_real_server(tmp_path: Path, version: str | None, witness: Witness) -> None:
    path = tmp_path / "server.py"
    path.write_text(REAL)
    async with Client([sys.executable, str(path)], protocol_version=version, transcript=witness.see) as client:
        assert client.protocol_version == (version or "2026-07-28")
        assert (await client.call_tool("add", {"a": 1, "b": 2})).text == "3"
        assert (await client.call_tool("echo", {"text": "é" * 1_000_000})).data == "é" * 1_000_000
