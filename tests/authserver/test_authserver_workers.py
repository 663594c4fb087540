"""An authorization server beside several workers: whichever answers, a token is good at all of them."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from authserver_stage import CLIENTS, FORM, ISSUER, RESOURCE, SCOPES, SECRET, Stage, basic
from dovetail import Server
from dovetail.authserver import AuthServer
from dovetail.state.memory import MemoryState
from http_serving import serving
from http_wire import HttpWire

CREDENTIALS = {"grant_type": "client_credentials"}
WORKERS = 2
ENOUGH = 80  # connections, until each worker has had one
PROGRAM = """
import os, sys
from dovetail import Server
from dovetail.auth import Auth
from dovetail.authserver import AuthServer, OAuthClient

ci = OAuthClient(id="ci", grant_types=["client_credentials"], secret=sys.argv[1], scopes=["notes:read"])
beside = AuthServer("http://127.0.0.1", resource="http://127.0.0.1/mcp", users={}, clients=[ci],
                    scopes={"notes:read": "Read"}, state=sys.argv[2] or None)
server = Server("notes", auth=Auth(beside.verifier(), scopes=["notes:read"]))

@server.tool
def worker() -> str:
    return str(os.getpid())

server.run("http", port=0, workers=int(sys.argv[3]), routes=beside.routes())
"""


@contextmanager
def running(folder: Path, state: str) -> Iterator[str]:
    """The origin of the program, which must end by itself when it is told to, and complain of nothing."""
    log = folder / "program.log"
    command = [sys.executable, "-c", PROGRAM, SECRET, state, str(WORKERS)]
    with log.open("wb") as written:
        process = subprocess.Popen(command, stdout=written, stderr=written, cwd=folder)
    try:
        yield _origin(log, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in log.read_text(), log.read_text()


def _origin(log: Path, process: "subprocess.Popen[bytes]") -> str:
    for _ in range(200):
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if found is not None:
            return found.group()
        assert process.poll() is None, log.read_text()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    raise AssertionError(log.read_text())


async def _ask(method: str, url: str, **options: Any) -> tuple[int, Any]:
    """Each over a connection of its own, so that any worker may take it."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        session.request(method, url, **options) as answer,
    ):
        return answer.status, await answer.json()


async def _worker(origin: str, token: str) -> tuple[int, str]:
    """Who has answered a call."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "worker", "_meta": meta}}
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "worker",
    }
    status, answer = await _ask("POST", f"{origin}/mcp", json=body, headers=headers)
    return status, answer["result"]["content"][0]["text"] if status == 200 else str(answer)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="several workers need fork")
@pytest.mark.parametrize("state", ["", "sqlite:own.db"], ids=["of the app", "of its own"])
async def test_a_token_is_good_at_every_worker(tmp_path: Path, state: str) -> None:
    with running(tmp_path, state) as origin:
        asked = [_ask("POST", f"{origin}/token", data=CREDENTIALS, headers=basic("ci", SECRET)) for _ in range(8)]
        tokens = [answer["access_token"] for status, answer in await asyncio.gather(*asked) if status == 200]
        assert len(tokens) == 8
        keys = {str(answer) for _, answer in [await _ask("GET", f"{origin}/jwks") for _ in range(8)]}
        assert len(keys) == 1
        workers = set()
        for number in range(ENOUGH):
            status, worker = await _worker(origin, tokens[number % len(tokens)])
            assert status == 200, worker
            workers.add(worker)
            if len(workers) == WORKERS and number >= 2 * len(tokens):
                break
        assert len(workers) == WORKERS


# ── in one process: apps of the same fleet ──


def beside(state: str | None = None) -> AuthServer:
    return AuthServer(ISSUER, resource=RESOURCE, users={}, clients=CLIENTS, scopes=SCOPES, state=state)


@asynccontextmanager
async def in_fleet(folder: Path, server: Server, **options: Any) -> AsyncIterator[Any]:
    """An app that shares its state with the others of this folder."""
    app = server.asgi(state=f"sqlite:{folder}/state.db", **options)
    await app.start()
    try:
        yield app
    finally:
        await app.drain(1)


def notes(auth: Any) -> Server:
    server = Server("notes", auth=auth)

    @server.tool
    def ping() -> str:
        """Tell that it is there."""
        return "pong"

    return server


async def token_of(app: Any) -> str:
    wire = HttpWire(app, headers={"content-type": FORM, **basic("ci", SECRET)})
    given = await wire.raw("POST", b"grant_type=client_credentials", path="/token").done()
    return str(given.answer["access_token"])


async def may_call(app: Any, token: str) -> bool:
    return (await HttpWire(app, headers={"authorization": f"Bearer {token}"}).call("ping", {})).status == 200


async def test_its_state_is_that_of_the_app(tmp_path: Path) -> None:
    here, there = beside(), beside()
    async with (
        in_fleet(tmp_path, notes(here.verifier()), routes=here.routes()) as first,
        in_fleet(tmp_path, notes(there.verifier()), routes=there.routes()) as second,
    ):
        token = await token_of(first)
        assert await may_call(second, token)
        assert await may_call(first, await token_of(second))


async def test_its_pages_alone_use_the_state_of_their_app(tmp_path: Path) -> None:
    issuing, checking = beside(), beside()
    async with (
        in_fleet(tmp_path, Server("notes"), routes=issuing.routes()) as first,
        in_fleet(tmp_path, notes(checking.verifier())) as second,
    ):
        assert await may_call(second, await token_of(first))


async def test_a_store_of_its_own_is_closed_with_the_app(tmp_path: Path) -> None:
    issuing = beside(f"sqlite:{tmp_path}/own.db")
    for _ in range(2):
        async with serving(notes(issuing.verifier()), routes=issuing.routes()) as app:
            assert await may_call(app, await token_of(app))
        assert issuing._marks._state is None


async def test_an_app_alone_has_its_room_for_itself() -> None:
    """Strangers may register and try passwords, and must not use up what sessions need."""
    state, issuing = MemoryState(), beside()
    async with serving(notes(issuing.verifier()), routes=issuing.routes(), state=state) as app:
        assert await may_call(app, await token_of(app))
        assert not state._entries.things


async def test_a_key_of_before_gives_way_to_that_of_the_fleet(tmp_path: Path) -> None:
    here, there = beside(), beside()
    assert await here.verifier().verify("too.early.token") is None
    async with (
        in_fleet(tmp_path, notes(there.verifier()), routes=there.routes()) as second,
        in_fleet(tmp_path, notes(here.verifier()), routes=here.routes()) as first,
    ):
        assert await may_call(first, await token_of(second))


async def test_a_memory_of_its_own_in_a_fleet_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    async with in_fleet(tmp_path, notes(stage.server.verifier())):
        assert "AuthServer: state=" in caplog.text
