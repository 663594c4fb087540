"""The programs that the documentation shows of HTTP: reached over real sockets, and ended by real signals."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import AsyncExitStack

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from documented import REVISIONS, ROOT, load, served
from dovetail import Client
from hosting import hosted
from official import Witness

# ── programs over HTTP ──


@pytest.mark.parametrize("name", ["http_server", "http_long_calls", "http_identity", "http_pages", "deploy"])
async def test_a_program_is_reached_over_http_in_every_way(name: str, witness: Witness) -> None:
    async with served(name) as url:
        for revision, path in [*((revision, "/mcp") for revision in REVISIONS), ("2024-11-05", "/sse")]:
            async with Client(url + path, protocol_version=revision, transcript=witness.see) as client:
                assert client.protocol_version == revision
                for step in SCENARIOS[name]:
                    await step(client)


async def test_pages_are_beside_the_endpoint() -> None:
    async with served("http_pages") as url, aiohttp.ClientSession(url) as session:
        home = await session.get("/")
        assert (home.content_type, await home.text()) == ("text/html", "<h1>Library</h1>")
        assert await (await session.get("/books?start=D")).json() == ["Dune"]
        missing = await session.get("/books?start=X")
        assert (missing.status, await missing.json()) == (404, {"error": "no book starts with X"})
        assert (await session.post("/books")).status == 405
        assert [
            (await session.get(path)).status for path in ("/health", "/health/live", "/ready", "/health/ready")
        ] == [200] * 4


async def test_a_session_belongs_to_who_opened_it() -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "docs", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    async with served("http_identity") as url, aiohttp.ClientSession(url) as session:
        opened = await session.post("/mcp", json=message, headers={"X-User": "ada"})
        same = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert (await session.post("/mcp", json=ping, headers=same | {"X-User": "bob"})).status == 404
        assert (await session.post("/mcp", json=ping, headers=same)).status == 404
        assert (await session.post("/mcp", json=ping, headers=same | {"X-User": "ada"})).status == 200
        async with Client(f"{url}/mcp", headers={"X-User": "ada"}) as client:
            assert (await client.call_tool("whoami")).data == "ada"


async def test_names_that_are_not_known_are_refused() -> None:
    async with served("deploy") as url, aiohttp.ClientSession(url) as session:

        async def status(**headers: str) -> int:
            return (await session.get("/mcp", headers=headers)).status

        assert await status(Host="mcp.example.com") == 400  # it has no session, but it is let in
        assert await status(Host="mcp.example.com", Origin="https://app.example.com") == 400
        assert await status(Host="mcp.example.com", Origin="https://mcp.example.com") == 400
        assert await status(Host="evil.example.com") == 403
        assert await status(Origin="https://evil.example.com") == 403
        assert (await session.get("/ready", headers={"Host": "10.0.0.1:8000"})).status == 200


@pytest.mark.parametrize("name", ["fastapi", "starlette", "litestar", "by_path"])
async def test_an_app_is_mounted_at_its_path_and_below(name: str, witness: Witness) -> None:
    program = load(f"mounting_{name}")
    async with hosted(program.app) as url, aiohttp.ClientSession(url) as session:
        assert (await session.get("/")).status == 200
        below = () if name == "by_path" else (("2024-11-05", "/mcp/sse"),)
        for revision, path in [("2026-07-28", "/mcp"), ("2025-11-25", "/mcp/"), *below]:
            assert (await session.get(path, allow_redirects=False)).status in (200, 400)
            async with Client(url + path, protocol_version=revision, transcript=witness.see) as client:
                assert (await client.call_tool("price", {"article": "hat"})).data == 9.5
        await program.mcp.drain()


async def test_a_plain_mount_redirects() -> None:
    app = Starlette(routes=[Mount("/mcp", load("mounting_starlette").mcp)])
    async with hosted(app) as url, aiohttp.ClientSession(url) as session:
        assert (await session.post("/mcp", allow_redirects=False)).status == 307


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

    def __init__(self, *command: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT / "docs" / "programs",
            env=os.environ | {"DOVETAIL_PORT": "0"} | environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said = line
            if found := re.search(r"http://[\d.]+:(\d+)", line):
                self.port = found[1]
                self.url = f"http://127.0.0.1:{self.port}"
                break

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
        async with aiohttp.ClientSession(program.url) as session:
            assert (await session.get("/ready")).status == 200
            program.process.terminate()
            async with asyncio.timeout(10):
                while (await session.get("/ready")).status != 503:
                    await asyncio.sleep(0.01)
            assert (await session.get("/health")).status == 200
        async with Client(f"{program.url}/mcp") as client:
            assert (await client.call_tool("greet", {"name": "Ada"})).data == "Hello, Ada!"
        program.process.terminate()
        assert await program.exit_code() == -signal.SIGTERM


@pytest.mark.parametrize("command", [("mounting_drain.py",), ("-m", "uvicorn", "mounting_lifespan:app")])
async def test_uvicorn_ends_in_time_with_a_drain(command: tuple[str, ...]) -> None:
    with Running(*command, UVICORN_PORT="0") as program:
        assert await end_with_open_streams(program) == -signal.SIGTERM
    assert "Traceback" not in program.errors
