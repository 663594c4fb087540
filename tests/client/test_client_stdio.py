"""A server as a child process."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client
from dovetail.client.transports.stdio import StdioTransport
from dovetail.errors import ConnectionLost, SetupError
from process_stage import HELPERS, SERVER, is_there, pid_in, shell

with_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="who is there is read from /proc")


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
async def test_a_child_leaves_when_its_input_ends(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with Client(StdioTransport(script(tmp_path, LEGACY), leave_seconds=60)) as client:  # it is not terminated
        await client.call_tool("noise")
    assert asyncio.all_tasks() == before


async def test_a_child_that_does_not_want_to_leave_is_ended(tmp_path: Path) -> None:
    link = StdioTransport(script(tmp_path, STUBBORN), leave_seconds=0.05)
    async with Client(link, protocol_version="2025-06-18") as client:
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


async def gone(pid: int) -> bool:
    for _ in range(1000):
        if not is_there(pid):
            return True
        await asyncio.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return False


@with_proc
@pytest.mark.parametrize("helper", HELPERS)
async def test_whatever_it_has_started_ends_with_it(tmp_path: Path, helper: str) -> None:
    async with Client(StdioTransport(shell(tmp_path, helper), leave_seconds=0.3), protocol_version="2025-06-18"):
        helping = pid_in(tmp_path)
        assert is_there(helping)
    assert await gone(helping)


async def test_the_child_has_a_group_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    async with Client([sys.executable, str(tmp_path / "server.py")], protocol_version="2025-06-18") as client:
        pid = (await client.request("who"))["pid"]
        assert os.getpgid(pid) == pid != os.getpgid(0)


# Shakes hands, then asks without an end and never reads again.
ASKING = """
import json, sys
first = json.loads(sys.stdin.readline())
info = {"name": "asking", "version": "0"}
welcome = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info}
print(json.dumps({"jsonrpc": "2.0", "id": first["id"], "result": welcome}), flush=True)
question = json.dumps({"jsonrpc": "2.0", "id": "p" * 2000, "method": METHOD})
try:
    while True:
        print(question)
except OSError:
    pass
"""


@pytest.mark.parametrize("method", ["ping", "no/such"])
async def test_over_a_pipe(method: str) -> None:
    program = StdioTransport([sys.executable, "-c", f"METHOD = {method!r}\n{ASKING}"], leave_seconds=0.1)
    async with Client(program, protocol_version="2025-11-25") as client, asyncio.timeout(20):
        with pytest.raises(ConnectionLost, match="the server asks, and does not read the answers"):
            await client.request("never/answered")
