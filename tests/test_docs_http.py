"""The programs that the documentation shows of HTTP: reached over real sockets, and ended by real signals."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import aiohttp
import pytest
from fastapi.testclient import TestClient

from documented import REVISIONS, ROOT, load, served
from dovetail import Client
from hosting import hosted
from official import Witness

# ── programs over HTTP ──


@pytest.mark.parametrize(
    ("name", "tool", "arguments", "gives"),
    [
        ("http_server", "forecast", {"city": "Rome"}, "Sun in Rome."),
        ("http_long_calls", "render", {"frames": 1}, "1 frames"),
        ("deploy", "greet", {"name": "Ada"}, "Hello, Ada!"),
    ],
)
async def test_a_program_is_reached_over_http_in_every_way(
    name: str, tool: str, arguments: dict[str, Any], gives: str, witness: Witness
) -> None:
    async with served(name) as url:
        for revision, path in [*((revision, "/mcp") for revision in REVISIONS), ("2024-11-05", "/sse")]:
            async with Client(url + path, protocol_version=revision, transcript=witness.see) as client:
                assert client.protocol_version == revision
                assert (await client.call_tool(tool, arguments)).data == gives


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


async def ask(url: str, verb: str = "GET", **options: Any) -> Answer:
    """One request, and its whole answer; redirects are not followed."""
    async with aiohttp.request(verb, url, allow_redirects=False, **options) as answer:
        return Answer(answer.status, answer.headers, await answer.text())


async def test_pages_are_beside_the_endpoint() -> None:
    async with served("http_pages") as url:
        home = await ask(url)
        assert (home.headers["Content-Type"], home.text) == ("text/html; charset=utf-8", "<h1>Library</h1>")
        assert (await ask(f"{url}/books?start=D")).text == '["Dune"]'
        missing = await ask(f"{url}/books?start=X")
        assert (missing.status, missing.text) == (404, '{"error":"no book starts with X"}')
        assert (await ask(f"{url}/books", "POST")).status == 405


async def test_a_session_belongs_to_who_opened_it() -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "docs", "version": "1"}}
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    async with served("http_identity") as url:
        opened = await ask(f"{url}/mcp", "POST", json=initialize, headers={"X-User": "ada"})
        same = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
        for who, status in [({}, 404), ({"X-User": "bob"}, 404), ({"X-User": "ada"}, 200)]:
            assert (await ask(f"{url}/mcp", "POST", json=ping, headers=same | who)).status == status
        async with Client(f"{url}/mcp", headers={"X-User": "ada"}) as client:
            assert (await client.call_tool("whoami")).data == "ada"


async def test_names_that_are_not_known_are_refused() -> None:
    known = {"Host": "mcp.example.com", "Origin": "https://app.example.com"}
    async with served("deploy") as url:
        assert (await ask(f"{url}/mcp", headers=known)).status == 400  # it has no session, but it is let in
        assert (await ask(f"{url}/mcp", headers={"Host": "evil.example.com"})).status == 403
        assert (await ask(f"{url}/mcp", headers={"Origin": "https://evil.example.com"})).status == 403
        assert (await ask(f"{url}/ready", headers={"Host": "10.0.0.1:8000"})).status == 200


@pytest.mark.parametrize("name", ["fastapi", "starlette", "litestar", "by_path"])
async def test_an_app_is_mounted_at_its_path_and_below(name: str, witness: Witness) -> None:
    program = load(f"mounting_{name}")
    async with hosted(program.app) as url:
        assert (await ask(url)).status == 200
        below = [] if name == "by_path" else [("2024-11-05", "/mcp/sse", 405)]
        for revision, path, status in [("2026-07-28", "/mcp", 400), ("2025-11-25", "/mcp/", 400), *below]:
            assert (await ask(url + path, "POST", json={})).status == status
            async with Client(url + path, protocol_version=revision, transcript=witness.see) as client:
                assert (await client.call_tool("price", {"article": "hat"})).text == "9.5"
        await program.mcp.drain()


def test_a_mounted_app_lives_as_often_as_its_host() -> None:
    app = load("mounting_lifespan").app
    for _ in range(2):
        with TestClient(app, base_url="http://localhost") as session:
            assert session.get("/mcp/ready").status_code == 200
            assert session.post("/mcp", json={}).status_code == 400
    with TestClient(app) as session:
        assert session.post("/mcp", json={}).status_code == 403


async def test_the_client_of_its_page_works(capsys: pytest.CaptureFixture[str]) -> None:
    async with served("http_server") as url:
        await load("client").main(f"{url}/mcp")
    assert capsys.readouterr().out == "2026-07-28\n1.0 2.0 asking the stations\nSun in Rome.\n"


async def test_the_client_that_listens_hears(capsys: pytest.CaptureFixture[str]) -> None:
    app = load("resources_updates").server.asgi()
    async with hosted(app) as url, Client(f"{url}/mcp") as client:
        listening = asyncio.create_task(load("client_listen").main(f"{url}/mcp"))
        heard = ""
        async with asyncio.timeout(10):
            while not heard:
                await client.call_tool("count")
                await asyncio.sleep(0.05)
                heard = capsys.readouterr().out
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    assert heard.startswith("updated counter://value\n")


# ── programs as processes: what they say, and how they end ──


class Running:
    """A program that was started, and the URL that it told on stderr."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT / "docs" / "programs", env=os.environ | {"DOVETAIL_PORT": "0"},
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        lines = iter(self.process.stderr.readline, "")
        self.said = next((line for line in lines if re.search(r"http://[\w.]+:\d+", line)), "")
        assert self.said, f"{command} did not say where it serves"
        self.port = re.findall(r"http://[\w.]+:(\d+)", self.said)[0]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.errors = self.process.communicate(timeout=10)[1]

    async def exit_code(self) -> int:
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), 10)


async def end_with_open_streams(program: Running) -> int:
    """Two clients listen, one of each era, and one call is in flight when the signal comes; it must be answered."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(f"{program.url}/mcp", protocol_version=revision))
            for revision in REVISIONS
        ]
        for client in clients:
            await stack.enter_async_context(client.listen(tools=True))
        calls = [asyncio.create_task(client.call_tool("pack", {"seconds": 0.4})) for client in clients]
        await asyncio.sleep(0.2)
        program.process.send_signal(signal.SIGTERM)
        assert [result.data for result in await asyncio.gather(*calls)] == ["packed", "packed"]
        return await program.exit_code()


async def test_a_server_says_where_it_is_and_ends_with_code_0() -> None:
    with Running("http_server.py") as program:
        assert program.said.replace(program.port, "8000") in (ROOT / "docs" / "http.md").read_text()
        async with Client(f"{program.url}/mcp") as client, client.listen(tools=True):
            program.process.terminate()
            assert await program.exit_code() == 0


async def test_ready_says_no_before_the_end_and_a_second_signal_ends_at_once() -> None:
    with Running("deploy.py") as program:
        assert (await ask(f"{program.url}/ready")).status == 200
        program.process.terminate()
        async with asyncio.timeout(10):
            while (await ask(f"{program.url}/ready")).status == 200:
                pass
        assert (await ask(f"{program.url}/health")).status == 200
        async with Client(f"{program.url}/mcp") as client:
            assert (await client.call_tool("greet", {"name": "Ada"})).data == "Hello, Ada!"
        program.process.terminate()
        assert await program.exit_code() == -signal.SIGTERM


DRAINING_SERVER = """
import functools, runpy, uvicorn
uvicorn.Config = functools.partial(uvicorn.Config, port=0)
runpy.run_path("mounting_drain.py", run_name="__main__")
"""


@pytest.mark.parametrize(
    "command",
    [("-c", DRAINING_SERVER), ("-m", "uvicorn", "mounting_lifespan:app", "--port", "0")],
    ids=["a server of one's own", "a lifespan"],
)
async def test_uvicorn_ends_in_time_with_a_drain(command: tuple[str, ...]) -> None:
    with Running(*command) as program:
        assert await end_with_open_streams(program) == -signal.SIGTERM
    assert "Traceback" not in program.errors
