"""`run_async`: a server on the running event loop, its end by a signal, by its client or by cancellation."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dovetail import Client, Server, SetupError
from processes import Start, StartHttp, http_programs, programs, text

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


@pytest.fixture
def start() -> Iterator[Start]:
    with programs() as start:
        yield start


@pytest.fixture
def start_http() -> Iterator[StartHttp]:
    with http_programs() as start:
        yield start


async def announced(capfd: pytest.CaptureFixture[str]) -> str:
    """The URL that a server of this process prints."""
    said = ""
    async with asyncio.timeout(20):
        while not (found := re.search(r"serves MCP at (\S+)", said)):
            await asyncio.sleep(0.01)
            said += capfd.readouterr().err
    return found[1]


@pytest.mark.parametrize("path", ["/mcp", "/"])
async def test_over_http_it_serves_beside_other_tasks_until_it_is_cancelled(
    path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        steps.append("entered")
        yield
        steps.append("left")

    server = Server("beside", lifespan=lifespan)
    loop = asyncio.get_running_loop()
    server.add_tool(lambda: str(asyncio.get_running_loop() is loop), name="same_loop", thread=False)
    serving = asyncio.create_task(server.run_async("http", port=0, path=path))
    url = await announced(capfd)
    assert url.endswith(path)
    async with Client(url) as client:
        assert (await client.call_tool("same_loop")).data == "True"
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert steps == ["entered", "left"]


async def test_a_start_that_is_cancelled_leaves_nothing_behind() -> None:
    entered, left = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        entered.set()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            left.set()

    serving = asyncio.create_task(Server("slow", lifespan=lifespan).run_async("http", port=0))
    await entered.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert left.is_set()


STDIO = """
import asyncio
from contextlib import asynccontextmanager
from dovetail import Server

entered = asyncio.Event()

@asynccontextmanager
async def lifespan(server):
    entered.set()
    yield
    print("lifespan left", flush=True)

server = Server("piped", lifespan=lifespan)

@server.tool
async def tick() -> str:
    return "tick"

async def main():
    serving = asyncio.create_task(server.run_async())
    {more}
    await serving
    print("after run", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGINT])
def test_on_stdio_the_client_or_a_signal_ends_it_and_the_loop_goes_on(
    start: Start, tmp_path: Path, number: int | None
) -> None:
    (tmp_path / "piped.py").write_text(STDIO.replace("{more}", ""))
    program = start(tmp_path / "piped.py")
    assert text(program.call("tick")) == "tick"
    assert program.ends(by=number) == []
    assert "lifespan left\nafter run\n" in program.said


def test_on_stdio_a_cancelled_task_ends_the_server(start: Start, tmp_path: Path) -> None:
    more = "await entered.wait()\n    serving.cancel()\n    await asyncio.wait([serving])\n    return"
    (tmp_path / "piped.py").write_text(STDIO.replace("{more}", more))
    program = start(tmp_path / "piped.py")
    program.until_logged("lifespan left")
    assert program.exits() == 0


TWO = """
import asyncio, sys
from dovetail import Server

async def main():
    await asyncio.gather(*(Server(name).run_async("http", port=0) for name in ("one", "two")))
    print("after both", file=sys.stderr)

asyncio.run(main())
"""


def test_one_signal_ends_all_servers_of_a_loop(start_http: StartHttp, tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO)
    program = start_http(ready=False, command=[sys.executable, str(tmp_path / "two.py")])
    program.until(lambda: program.said.count("serves MCP at") == 2)
    program.signal(signal.SIGTERM)
    assert program.exits() == 0
    assert program.said.endswith("after both\n")


async def test_what_it_can_not_do_names_the_fix() -> None:
    server = Server("refused")
    with pytest.raises(SetupError, match=r"Server\.run_async: workers=2 .*; leave it out .* or use server\.run"):
        await server.run_async("http", workers=2)
    with pytest.raises(SetupError, match=r'only for transport="http": port'):
        await server.run_async(port=1)
    with pytest.raises(SetupError, match=r"await server\.run_async\(\)"):
        server.run()
