"""Beginning and end of a mounted app: it starts by itself, and ends when it is told to, also under a real uvicorn."""

import asyncio
import http.client
import json
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from http_program import META, PROMPTLY, HttpProgram, message

from dovetail import Context, Server
from hosting import hosted
from http_wire import HttpWire

PROGRAMS = Path(__file__).parents[2] / "docs" / "programs"


class Lived:
    """A server that notes what happens to its lifespan."""

    def __init__(self, *, fails: int = 0) -> None:
        self.notes: list[str] = []
        self.slow = asyncio.Event()
        self.slow.set()
        self._fails = fails
        self.server = Server("lived", version="1.0.0", lifespan=self._lifespan)
        self.server.add_tool(self.spirit)
        self.server.add_tool(self.nap)
        self.app = self.server.asgi()

    @asynccontextmanager
    async def _lifespan(self, server: Server) -> AsyncIterator[str]:
        self.notes.append("entering")
        await self.slow.wait()
        if self._fails:
            self._fails -= 1
            raise RuntimeError("no database")
        self.notes.append("entered")
        yield "alive"
        self.notes.append("left")

    async def spirit(self, ctx: Context) -> str:
        return str(ctx.lifespan)

    async def nap(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "rested"


async def spirit(host: Any, path: str = "/x") -> str:
    answer = await HttpWire(host, path=path).call("spirit")
    assert answer.status == 200, answer.raw
    return answer.answer["result"]["content"][0]["text"]


def mounted(lived: Lived, **options: Any) -> FastAPI:
    host = FastAPI(**options)
    lived.app.mount_on(host, "/x")
    return host


# ── the beginning ──


async def test_the_first_request_starts_the_server() -> None:
    lived = Lived()
    host = mounted(lived)
    assert (await HttpWire(host).raw("GET", path="/x/health").done()).status == 200
    assert lived.notes == []
    assert await asyncio.gather(*(spirit(host) for _ in range(10))) == ["alive"] * 10
    assert lived.notes == ["entering", "entered"]
    await lived.app.drain()
    assert lived.notes == ["entering", "entered", "left"]


async def test_the_old_transport_starts_it_as_well() -> None:
    lived = Lived()
    stream = HttpWire(mounted(lived), path="/x/sse").raw("GET")
    await stream.event()
    assert lived.notes == ["entering", "entered"]
    await lived.app.drain()
    await stream.done()


async def test_a_start_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    lived = Lived(fails=1)
    lived.slow.clear()
    host = mounted(lived)
    calls = [HttpWire(host, path="/x").start_call("spirit") for _ in range(3)]
    await asyncio.sleep(0.01)
    lived.slow.set()
    for call in calls:
        await call.done()
        assert (call.status, call.json["error"]) == (500, {"code": -32603, "message": "Internal error"})
    assert "no database" in caplog.text
    assert await spirit(host) == "alive"
    await lived.app.drain()


async def test_the_start_outlives_the_client_that_caused_it() -> None:
    """Some hosts cancel the request of a client that has left; others have come meanwhile."""
    lived = Lived()
    lived.slow.clear()
    host = mounted(lived)
    first, second = (HttpWire(host, path="/x").start_call("spirit") for _ in range(2))
    await asyncio.sleep(0.01)
    first.task.cancel()
    await asyncio.sleep(0.01)
    lived.slow.set()
    assert (await second.done()).status == 200
    assert lived.notes == ["entering", "entered"]
    await lived.app.drain()


async def test_a_lifespan_of_the_host_may_start_it() -> None:
    lived = Lived()

    @asynccontextmanager
    async def lifespan(host: FastAPI) -> AsyncIterator[None]:
        await lived.app.start()
        lived.notes.append("the host is up")
        yield
        await lived.app.drain()
        lived.notes.append("the host is down")

    async with hosted(mounted(lived, lifespan=lifespan)):
        assert lived.notes == ["entering", "entered", "the host is up"]
    assert lived.notes[3:] == ["left", "the host is down"]


@pytest.mark.parametrize("lifespan", ["on", "off"])
async def test_alone_in_uvicorn(lifespan: str) -> None:
    lived = Lived()
    async with hosted(lived.app, lifespan=lifespan) as url:
        assert bool(lived.notes) == (lifespan == "on")
        port = int(url.rpartition(":")[2])
        assert (await asyncio.to_thread(_ask, port, "/mcp", "spirit"))["content"][0]["text"] == "alive"
    if lifespan == "off":
        await lived.app.drain()
    assert lived.notes == ["entering", "entered", "left"]


async def test_uvicorn_is_told_of_a_start_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    lived = Lived(fails=1)
    sent: list[Any] = []
    received = iter([{"type": "lifespan.startup"}])

    async def receive() -> Any:
        return next(received)

    async def send(event: Any) -> None:
        sent.append(event)

    await lived.app({"type": "lifespan"}, receive, send)
    assert [event["type"] for event in sent] == ["lifespan.startup.failed"]
    assert "no database" in sent[0]["message"]


def test_one_app_on_one_loop_after_the_other() -> None:
    """As test clients do it, which make a loop for each test."""
    lived = asyncio.run(_made())
    host = mounted(lived)
    for _ in range(2):
        assert asyncio.run(spirit(host)) == "alive"
    assert lived.notes == ["entering", "entered"] * 2


async def _made() -> Lived:
    return Lived()


# ── the end ──


async def test_after_the_end_there_is_503_until_it_starts_again() -> None:
    lived = Lived()
    host = mounted(lived)
    wire = HttpWire(host, path="/x")
    assert await spirit(host) == "alive"
    await lived.app.drain()
    refused = await wire.call("spirit")
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert refused.json["error"]["message"] == "The server is shutting down"
    for path, status in (("/x/health", 200), ("/x/health/live", 200), ("/x/ready", 503), ("/x/health/ready", 503)):
        assert (await wire.raw("GET", path=path).done()).status == status
    await lived.app.start()
    assert await spirit(host) == "alive"
    assert (await wire.raw("GET", path="/x/ready").done()).status == 200
    await lived.app.drain()


async def test_whoever_drains_waits_until_it_is_over() -> None:
    """A signal and a lifespan may both do it."""
    lived = Lived()
    call = HttpWire(mounted(lived), path="/x").start_call("nap", {"seconds": 0.2})
    await asyncio.sleep(0.05)
    first = asyncio.create_task(lived.app.drain())
    await asyncio.sleep(0.01)
    await lived.app.drain()
    assert call.status == 200
    assert lived.notes[-1] == "left"
    await first


async def test_a_drain_while_the_server_starts() -> None:
    lived = Lived()
    lived.slow.clear()
    call = HttpWire(mounted(lived), path="/x").start_call("spirit")
    await asyncio.sleep(0.01)
    async with asyncio.timeout(PROMPTLY):
        await lived.app.drain()
    await call.done()
    assert call.status == 503
    assert "entered" not in lived.notes
    lived.slow.set()
    assert (await HttpWire(mounted(lived), path="/x").call("spirit")).status == 503
    await lived.app.start()
    assert await spirit(mounted(lived)) == "alive"
    await lived.app.drain()


async def test_a_drain_before_anybody_came() -> None:
    lived = Lived()
    for _ in range(2):
        await lived.app.drain()
    assert (await HttpWire(mounted(lived), path="/x").call("spirit")).status == 503
    assert lived.notes == []


# ── the recipes of docs/mounting.md, in processes of their own ──

STARTED = re.compile(r"running on http://127\.0\.0\.1:(\d+)")


class Recipe(HttpProgram):
    @property
    def port(self) -> int:
        found = STARTED.search(self.said)
        return int(found[1]) if found else 0

    def ready(self) -> "Recipe":
        self.until(lambda: self.port or self.process.poll() is not None)
        assert self.port, self.said
        return self


OWN_SERVER = """
import contextlib, uvicorn, mounting_drain
with contextlib.suppress(KeyboardInterrupt):
    mounting_drain.DrainingServer(uvicorn.Config(mounting_drain.app, port=0)).run()
"""


def by_a_server_of_ones_own() -> list[str]:
    """As the program does it, but on a free port."""
    return [sys.executable, "-c", OWN_SERVER]


def by_the_hosts_lifespan() -> list[str]:
    return [sys.executable, "-m", "uvicorn", "mounting_lifespan:app", "--port", "0"]


@pytest.fixture(params=[by_a_server_of_ones_own, by_the_hosts_lifespan], ids=lambda recipe: recipe.__name__)
def recipe(request: pytest.FixtureRequest) -> Iterator[Recipe]:
    make: Callable[[], list[str]] = request.param
    program = Recipe(make(), cwd=PROGRAMS)
    try:
        yield program.ready()
    finally:
        program.close()
        assert "Traceback" not in program.said


def _ask(port: int, path: str, tool: str, **arguments: Any) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROMPTLY)
    params = {"name": tool, "arguments": arguments, "_meta": META}
    connection.request("POST", path, *message("tools/call", params, {}))
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    return body["result"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_open_streams_do_not_keep_uvicorn(recipe: Recipe, number: int) -> None:
    assert _ask(recipe.port, "/mcp", "pack", seconds=0)["content"][0]["text"] == "packed"
    stream = recipe.listen()
    began = time.monotonic()
    recipe.signal(number)
    rest = stream.read()  # it ends as a response ends
    assert b'"result"' in rest
    assert recipe.exits() in (-number, 128 + number, 0)
    assert time.monotonic() - began < 3
    assert "Cancel" not in recipe.said


@pytest.mark.slow
def test_calls_are_finished(recipe: Recipe) -> None:
    stream = recipe.listen()
    connection = recipe.connect()
    params = {"name": "pack", "arguments": {"seconds": 1}, "_meta": META}
    connection.request("POST", "/mcp", *message("tools/call", params, {}))
    time.sleep(0.3)
    recipe.signal(signal.SIGTERM)
    assert b"packed" in connection.getresponse().read()
    assert b'"result"' in stream.read()
    assert recipe.exits() in (-signal.SIGTERM, 143, 0)


async def test_a_second_loop_does_not_disturb_the_first(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("one", version="1.0.0")
    app = server.asgi()
    wire = await HttpWire.session(app)
    stream = await wire.get().started()

    def elsewhere() -> tuple[int, str]:
        async def visit() -> tuple[int, str]:
            answer = await HttpWire(app).post("server/discover")
            with pytest.raises(RuntimeError, match="another event loop"):
                await app.drain()
            return answer.status, answer.json["error"]["message"]

        return asyncio.run(visit())

    assert await asyncio.to_thread(elsewhere) == (500, "Internal error")
    assert "another event loop" in caplog.text
    assert (await wire.post("ping")).status == 200
    assert (await HttpWire(app).raw("GET", path="/ready").done()).status == 200
    await app.drain()
    await stream.done()
