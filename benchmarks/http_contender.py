"""A contender that serves HTTP with a given offer, running and checked by a first request."""

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import wrk
from benchmarks.case import CannotMeasure, Measured, Round, Settings
from benchmarks.contenders import python_of
from benchmarks.processes import Process, cpu_seconds, free_port, listening

# The same for all that run under it. Forwarded headers and the server's name are switched off: they cost everyone.
UVICORN = (
    *("--http", "httptools", "--loop", "uvloop"),
    *("--no-access-log", "--log-level", "warning"),
    *("--no-proxy-headers", "--no-server-header"),
)
# "dovetail" is `server.run("http")`, with Dovetail's own HTTP connection; "dovetail-asgi" is `server.asgi()` under the
# very command that runs the floor and the peers.
CONTENDERS = ("dovetail", "dovetail-asgi", "floor", "mcp", "fastmcp")

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
CLIENT = {"name": "wrk", "version": "1.0.0"}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
NO_ERRORS = {'"error":': 0, '"isError":true': 0}
# A contender that takes long for an answer is driven by one connection, which keeps it busy: with more, most of its
# work would still be under way when a round ends, and not count. Its rounds are longer, within reason.
SLOW, ANSWERS, MAX_SECONDS = 0.020, 100, 8.0  # seconds for an answer, answers in a round, seconds of a round
LOOK_SECONDS = 3.0  # at most, for looking at all answers under load


@dataclass(frozen=True)
class Offer:
    """What a server under test is started with."""

    tool: str = "add"
    tools: int = 1
    sessions: bool = False
    metrics: bool = False

    @property
    def environment(self) -> dict[str, str]:
        given = {"BENCH_TOOL": self.tool, "BENCH_TOOLS": str(self.tools)}
        if self.metrics:
            given["DOVETAIL_METRICS"] = "on"
        return {**given, "BENCH_SESSIONS": "1"} if self.sessions else given


@dataclass(frozen=True)
class Post:
    """One HTTP request."""

    headers: Mapping[str, str]
    body: str

    @property
    def lua(self) -> str:
        return wrk.constant(self.headers, self.body)


@dataclass(frozen=True)
class Answer:
    headers: Mapping[str, str]  # names in lower case
    messages: list[Any]  # one, or the events of a stream

    @property
    def result(self) -> Any:
        last = self.messages[-1]
        if "result" not in last or last["result"].get("isError"):
            raise CannotMeasure(f"an error instead of a result: {str(last)[:300]}")
        return last["result"]


@dataclass(frozen=True)
class HttpServer:
    """A contender's server while it runs."""

    process: Process
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def ask(self, post: Post) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=wrk.TIMEOUT)
        try:
            connection.request("POST", "/mcp", post.body, dict(post.headers))
            response = connection.getresponse()
            body = response.read().decode()
        finally:
            connection.close()
        if response.status not in (200, 202):
            raise CannotMeasure(f"status {response.status}: {body[:300]}")
        return Answer({name.lower(): value for name, value in response.getheaders()}, _messages(body))

    def load(self, lua: str, seconds: float, connections: int) -> Measured:
        """Requests per second, and the server's CPU for each. Raises CannotMeasure if any of them failed."""
        before = cpu_seconds(self.process.pid)
        figures = wrk.run(self.url, lua, seconds, connections)
        used = cpu_seconds(self.process.pid) - before
        if not figures.requests:
            raise CannotMeasure(f"nothing was answered within {figures.seconds:.0f} s of load")
        if figures.errors:
            raise CannotMeasure(f"{figures.errors} of {figures.requests} requests failed under load")
        return Measured(figures.requests / figures.seconds, used / figures.requests * 1e6)


@contextmanager
def serving(contender: str, offer: Offer, program: str = "http") -> Iterator[HttpServer]:
    port = free_port()
    with listening(_command(contender, program, port), port, environment=offer.environment) as process:
        yield HttpServer(process, port)


@contextmanager
def loaded(
    contender: str,
    settings: Settings,
    offer: Offer,
    post: Post,
    check: Callable[[Answer], None],
    *,
    connections: int = 32,
    times: Mapping[str, int] = NO_ERRORS,
) -> Iterator[Round]:
    """A contender that answers `post` rightly, also under load, where each text is in every body that many `times`."""
    with serving(contender, offer) as server:
        check(server.ask(post))
        alone = min(_seconds(server, post) for _ in range(3))
        if alone > MAX_SECONDS / 4:
            raise CannotMeasure(f"one answer takes {alone:.1f} s: too long for rounds of {MAX_SECONDS:.0f} s")
        driven = 1 if alone > SLOW else connections
        seconds = max(settings.seconds, min(ANSWERS * alone, MAX_SECONDS))
        server.load(post.lua + wrk.looking(times), min(ANSWERS * alone, LOOK_SECONDS), driven)  # also warms it up
        yield lambda: server.load(post.lua, seconds, driven)


def _seconds(server: HttpServer, post: Post) -> float:
    began = time.perf_counter()
    server.ask(post)
    return time.perf_counter() - began


def call(tool: str, arguments: Mapping[str, Any], **meta: Any) -> Post:
    """A `tools/call` of 2026-07-28."""
    return modern("tools/call", {"name": tool, "arguments": arguments}, {"mcp-name": tool}, **meta)


def modern(method: str, params: Mapping[str, Any], headers: Mapping[str, str] | None = None, **meta: Any) -> Post:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": {**META, **meta}}}
    named = {**HEADERS, "mcp-protocol-version": MODERN, "mcp-method": method, **(headers or {})}
    return Post(named, json.dumps(message, separators=(",", ":")))


def expect(seen: object, wanted: object) -> None:
    if seen != wanted:
        raise CannotMeasure(f"wrong answer: {str(seen)[:300]} instead of {str(wanted)[:300]}")


def _command(contender: str, program: str, port: int) -> list[str | Path]:
    name = contender.removesuffix("-asgi")
    module = f"benchmarks.servers.{name}_{program}"
    if contender == "dovetail":
        return [python_of(name), "-m", module, str(port)]
    uvicorn: list[str | Path] = [python_of(name), "-m", "uvicorn", f"{module}:app"]
    return [*uvicorn, "--host", "127.0.0.1", "--port", str(port), *UVICORN]


def _messages(body: str) -> list[Any]:
    if not body.startswith("{"):
        return [json.loads(line[5:]) for line in body.splitlines() if line.startswith("data:") and line[5:].strip()]
    return [json.loads(body)]
