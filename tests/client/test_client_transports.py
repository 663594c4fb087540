"""One contract for all transports; a server in process, as a child process, and behind a connection that breaks."""

import asyncio
import contextvars
import os
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import small_server
from scripted import brisk_client, free_port, next_of, served, until
from small_server import EVERY, every_revision, make_server

from dovetail.auth import ApiKeys, Auth, Principal
from dovetail.client import CallToolResult, Client
from dovetail.client.transports.stdio import StdioTransport
from dovetail.engine.context import Context
from dovetail.engine.subscriptions import Change
from dovetail.errors import ConnectionLost, NotSignedIn, ServerError, SetupError, ToolError
from dovetail.protocol import revisions
from dovetail.server import Server
from official import Witness
from processes import HELPERS, is_alive, pid_in, shell

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging"),
]

WAYS = [
    *(("http", version) for version in (*EVERY, None)),
    *(("sse", version) for version in revisions.HANDSHAKE),
    *((way, version) for way in ("memory", "stdio") for version in ("2025-11-25", None)),
]


@asynccontextmanager
async def connected(way: str, **options: Any) -> AsyncIterator[Client]:
    """A client of the small server, over one of the transports."""
    async with AsyncExitStack() as held:
        target: Any = make_server() if way == "memory" else [sys.executable, small_server.__file__]
        if way in ("http", "sse"):
            origin = await held.enter_async_context(served(make_server().asgi()))
            target, options["transport"] = f"{origin}/{'mcp' if way == 'http' else 'sse'}", way
        yield await held.enter_async_context(brisk_client(target, **options))


@pytest.mark.parametrize(("way", "version"), WAYS)
async def test_everything_a_server_offers(way: str, version: str | None, witness: Witness) -> None:
    logs: list[Any] = []
    reports: list[Any] = []
    options = {"transcript": witness.see, "log_handler": lambda message: logs.append(message.data)}
    async with connected(way, protocol_version=version, **options) as client:
        assert client.protocol_version == (version or "2026-07-28")
        assert client.server_info is not None
        assert "add" in [tool.name for tool in await client.list_tools()]
        result = await client.call_tool(
            "work", {"steps": 2}, progress_handler=lambda *report: reports.append(report[:2])
        )
        assert result.text == "done"
        assert reports == [(1, 2), (2, 2)]
        await until(lambda: logs == ["did 1", "did 2"])
        with pytest.raises(ToolError, match="The cupboard is bare"):
            await client.call_tool("fail")
        with pytest.raises(ServerError):
            await client.read_resource("elsewhere://none")
        assert (await client.read_resource("notes://all"))[0].text == "milk"
        assert (await client.get_prompt("review", {"code": "x"})).messages[0].content.text == "Review x"
        results = await asyncio.gather(*(client.call_tool("add", {"a": n, "b": n}) for n in range(20)))
        assert [result.text for result in results] == [str(2 * n) for n in range(20)]
        with pytest.raises(TimeoutError):
            await client.call_tool("sleep", {"seconds": 60}, timeout=0.1)
        assert (await client.call_tool("greet", {"name": "é" * 100_000})).data == f"Hello, {'é' * 100_000}!"


@pytest.mark.parametrize("graceful", [True, False])
@pytest.mark.parametrize(("version", "transport"), [("2025-11-25", None), ("2025-11-25", "sse"), ("2026-07-28", None)])
async def test_a_server_that_starts_again(version: str | None, transport: Any, graceful: bool) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/{'sse' if transport else 'mcp'}"
    app = make_server().asgi()
    async with served(app, port):
        client = brisk_client(url, protocol_version=version, transport=transport, timeout=5)
        await client.__aenter__()
        stream = client.listen(tools=True)
        changes = await stream.__aenter__()
        assert (await client.call_tool("add", {"a": 1, "b": 1})).text == "2"
        if graceful:
            await app.drain(1)
            await asyncio.sleep(0.05)  # it still listens, but refuses
    with pytest.raises(ConnectionLost):
        await client.list_tools()
    again = make_server()
    async with served(again.asgi(), port):
        assert await next_of(changes) == Change("tools")  # it may have changed
        assert (await client.call_tool("add", {"a": 2, "b": 2})).text == "4"
        again.add_tool(lambda: "b", name="b")
        assert await next_of(changes) == Change("tools")
        await stream.__aexit__(None, None, None)
        await client.close()


class Diary:
    """A lifespan that writes down when it was entered and left."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @asynccontextmanager
    async def __call__(self, owner: Any) -> AsyncIterator[str]:
        self.lines.append(f"enter {owner.name}")
        yield "value"
        self.lines.append("leave")


async def test_the_lifespan_is_around_the_client() -> None:
    diary = Diary()
    server = Server("live", lifespan=diary)

    @server.tool
    def show_it(ctx: Context) -> str:
        return str(ctx.lifespan)

    for times in (1, 2):
        async with Client(server) as client:
            assert (await client.call_tool("show_it")).data == "value"
        assert diary.lines == ["enter live", "leave"] * times


async def test_each_side_keeps_its_own_context() -> None:
    whose = contextvars.ContextVar("whose", default="nobody's")
    seen: list[str] = []
    server = Server("live")

    @server.tool
    async def peek(ctx: Context) -> str:
        found = whose.get()
        whose.set("the server's")
        await ctx.report_progress(1)
        return found

    whose.set("the client's")
    async with Client(server) as client:
        result = await client.call_tool("peek", progress_handler=lambda *report: seen.append(whose.get()))
    assert result.data == "nobody's"
    assert seen == ["the client's"]


ALICE, BOB = "key-of-alice-0123456789", "key-of-bob-0123456789"
PEOPLE = {
    "alice": {"key": ALICE, "scopes": ["read", "write"], "claims": {"admin": True}},
    "bob": {"key": BOB, "scopes": ["read"]},
}


def is_admin(caller: Principal | None) -> bool:
    return caller is not None and caller.claims.get("admin") is True


def guarded_server(**options: Any) -> Server:
    server = Server("guarded", auth=Auth(ApiKeys(PEOPLE), scopes=["read"]), **options)

    @server.tool
    async def whoami(ctx: Context) -> str:
        return "nobody" if ctx.principal is None else f"{ctx.principal.name}: {sorted(ctx.principal.scopes)}"

    @server.tool(scopes=["write"])
    def write() -> str:
        return "written"

    @server.tool(authorize=is_admin)
    def rule() -> str:
        return "ruled"

    @server.resource("notes://all", scopes=["write"])
    def notes() -> str:
        return "milk"

    return server


async def changes_of(work: Awaitable[Any]) -> Any:
    try:
        found = await work
        return found.data if isinstance(found, CallToolResult) else found
    except ServerError as refusal:
        return refusal.code, refusal.message


async def experience(client: Client) -> list[Any]:
    """What a caller sees of the server, and may do there."""
    async with client:
        return [
            [tool.name for tool in await client.list_tools()],
            [resource.uri for resource in await client.list_resources()],
            [await changes_of(client.call_tool(name)) for name in ("whoami", "write", "rule")],
            await changes_of(client.read_resource("notes://all")),
        ]


@every_revision
@pytest.mark.parametrize("token", [ALICE, BOB])
async def test_a_token_means_in_process_what_it_means_over_http(token: str, version: str) -> None:
    server = guarded_server()
    here = await experience(Client(server, auth=token, protocol_version=version))
    async with served(server.asgi()) as origin:
        there = await experience(brisk_client(f"{origin}/mcp", auth=token, protocol_version=version))
    assert here == there
    assert ("write" in here[0]) is (token == ALICE)


@every_revision
async def test_a_principal_comes_straight_in(version: str) -> None:
    writer = Principal(subject="wendy", scopes=frozenset({"write"}))
    async with Client(guarded_server(), principal=writer, protocol_version=version) as client:
        assert (await client.call_tool("whoami")).data == "wendy: ['write']"
        assert (await client.call_tool("write")).data == "written"
        assert [tool.name for tool in await client.list_tools()] == ["whoami", "write"]
        with pytest.raises(ServerError, match="Unknown tool: rule"):
            await client.call_tool("rule")


@every_revision
async def test_a_wrong_token_is_not_signed_in_and_leaves_the_server(version: str) -> None:
    diary = Diary()
    with pytest.raises(NotSignedIn, match="The token is not good, or not any more"):
        async with Client(guarded_server(lifespan=diary), auth="key-of-nobody-0123456789", protocol_version=version):
            pass
    assert diary.lines == ["enter guarded", "leave"]


async def test_without_a_token_the_refusal_says_how_to_give_one() -> None:
    async with Client(guarded_server()) as client:
        assert (await client.call_tool("whoami")).data == "nobody"
        with pytest.raises(ServerError, match=r"needs the scopes: write; .*Client\(server, auth=…\)"):
            await client.call_tool("write")


# A server in a few lines, which knows nothing but what the test tells it. `answer(message)` gives a result or an error.
FAKE = """
import json, os, sys, time
def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()
INIT = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "0"}}
def text(value):
    return {"result": {"content": [{"type": "text", "text": value}]}}
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
    return {"error": {"code": -32601, "message": "no"}}
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


async def test_an_old_server_is_recognised(tmp_path: Path) -> None:
    async with Client(script(tmp_path, LEGACY), env={"COLOUR": "green"}, cwd=tmp_path) as client:
        assert client.protocol_version == "2025-06-18"
        assert client.server_info.name == "fake"
        assert (await client.call_tool("noise")).data == "still here"
        assert (await client.call_tool("ping")).data.endswith('"id":"p","result":{}}')
        assert (await client.call_tool("env")).data == f"green {tmp_path.name}"


@pytest.mark.parametrize(
    ("tool", "words"),
    [("crash", "exited with code 3"), ("kill", "was ended by signal 9"), ("mute", "closed its output")],
)
async def test_a_server_that_goes_away_in_a_call(tmp_path: Path, tool: str, words: str) -> None:
    async with Client(script(tmp_path, LEGACY)) as client:
        others = [asyncio.ensure_future(client.request("never/answered")) for _ in range(2)]
        await asyncio.sleep(0)  # they are sent first
        with pytest.raises(ConnectionLost, match=f"tools/call: .*{words}"):
            await client.call_tool(tool, timeout=20)
        for lost in await asyncio.gather(*others, return_exceptions=True):
            assert isinstance(lost, ConnectionLost)
        with pytest.raises(ConnectionLost, match=words):
            await client.call_tool("noise")


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        (["no-such-command-at-all"], {}, "'no-such-command-at-all': there is no such command"),
        ([sys.executable], {"cwd": "/no/such/folder"}, "cwd='/no/such/folder'"),
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
    async with Client(StdioTransport(script(tmp_path, LEGACY), stop_timeout=60)) as client:  # it is not terminated
        await client.call_tool("noise")
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_child_that_does_not_want_to_leave_is_ended(tmp_path: Path, is_cancelled: bool) -> None:
    """Also by a close that is cancelled."""
    transport = StdioTransport(script(tmp_path, STUBBORN), stop_timeout=60 if is_cancelled else 0.05)
    client = Client(transport, protocol_version="2025-06-18")
    await client.__aenter__()
    pid = (await client.request("who"))["pid"]
    assert os.getpgid(pid) == pid != os.getpgid(0)  # signals to us are not for it
    closing = asyncio.ensure_future(client.close())
    if is_cancelled:
        await asyncio.sleep(0.05)
        closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert closing.cancelled() is is_cancelled
    await until(lambda: not is_alive(pid), 20)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="who is there is read from /proc")
@pytest.mark.parametrize("helper", HELPERS)
async def test_every_process_it_has_started_ends_with_it(tmp_path: Path, helper: str) -> None:
    async with Client(StdioTransport(shell(tmp_path, helper), stop_timeout=0.3), protocol_version="2025-06-18"):
        helping = pid_in(tmp_path)
        assert is_alive(helping)
    await until(lambda: not is_alive(helping), 20)


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
    program = StdioTransport([sys.executable, "-c", f"METHOD = {method!r}\n{ASKING}"], stop_timeout=0.1)
    async with Client(program, protocol_version="2025-11-25") as client, asyncio.timeout(20):
        with pytest.raises(ConnectionLost, match="the server sends requests, but does not read"):
            await client.request("never/answered")
