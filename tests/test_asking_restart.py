"""A call of several rounds goes on after its server was killed, on any worker, and on any process with the secret."""

import itertools
import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from asking_program import (
    PLANNED,
    PROGRAM,
    PROMPTLY,
    SECRET,
    AskingProcess,
    Notes,
    answered,
    new_call,
)
from sdk import deprecations_are_expected

pytestmark = deprecations_are_expected
MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}, "sampling": {}},
    "io.modelcontextprotocol/clientInfo": {"name": "rounds", "version": "1"},
}
HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": MODERN,
    "mcp-method": "tools/call",
    "mcp-name": "plan",
    "connection": "close",
}
Start = Callable[..., AskingProcess]
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever the environment says


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def start(notes: Notes, tmp_path: Path) -> Iterator[Start]:
    """Processes that share a file, which remembers the steps that were taken."""
    with ExitStack() as stack:
        file = f"sqlite://{tmp_path / 'state.sqlite'}"

        def start() -> AskingProcess:
            process = AskingProcess(notes, SECRET, state=file)
            stack.callback(process.stop)
            return process

        yield start


def restarted(start: Start, servers: list[AskingProcess]) -> Iterator[int]:
    """The port of a server that is killed, and started again, after each request."""
    while True:
        servers.append(start())
        yield servers[-1].port
        servers[-1].kill()


def processes(text: str) -> list[int]:
    """Where the steps ran, and the end of the call."""
    found = PLANNED.fullmatch(text)
    assert found, text
    return [int(each) for each in found.groups()]


class Played:
    """One call, each round of which is a connection of its own, to the next of the ports."""

    def __init__(self, ports: Iterator[int]) -> None:
        self._ports = ports
        self.rounds = 0
        self.call = new_call()

    def play(self) -> str:
        params: dict[str, Any] = {"name": "plan", "arguments": {"call": self.call}, "_meta": META}
        result = self._post(params)
        while result["resultType"] == "input_required":
            answers = {key: answered(request) for key, request in result["inputRequests"].items()}
            more = {"inputResponses": answers, "requestState": result["requestState"]}
            result = self._post({**params, **more})
        text: str = result["content"][0]["text"]
        return text

    def _post(self, params: dict[str, Any]) -> Any:
        body = {"jsonrpc": "2.0", "id": self.rounds, "method": "tools/call", "params": params}
        url = f"http://127.0.0.1:{next(self._ports)}/mcp"
        self.rounds += 1
        assert self.rounds < 10
        request = urllib.request.Request(url, json.dumps(body).encode(), HEADERS)
        with _direct.open(request, timeout=PROMPTLY) as response:
            return json.load(response)["result"]


@pytest.mark.slow
def test_a_call_outlives_its_server(start: Start, notes: Notes) -> None:
    """The server that answered last is never the one that asked."""
    servers: list[AskingProcess] = []
    played = Played(restarted(start, servers))
    text = played.play()
    _, second, _, last = [server.pid for server in servers]
    assert processes(text) == [second, last, last]
    assert notes.steps(played.call) == ["reserve", "book"]
    assert notes.processes(played.call) == [second, last], "what ran before the kill was not run again"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.slow
def test_two_workers_need_not_be_told_the_secret(notes: Notes) -> None:
    command = ["-m", "dovetail.cli", "run", f"{PROGRAM}:judged", "--transport", "http", "--workers", "2"]
    server = AskingProcess(notes, None, command=command)
    met: set[int] = set()
    changed = 0  # calls that began on one worker and ended on the other
    try:
        for _ in range(10):
            calls = [Played(itertools.repeat(server.port)) for _ in range(20)]
            with ThreadPoolExecutor(8) as pool:
                texts = list(pool.map(Played.play, calls))
            assert [notes.steps(call.call) for call in calls] == [["reserve", "book"]] * 20
            where = [processes(text) for text in texts]
            met.update(*where)
            changed += sum(len(set(each)) > 1 for each in where)
            if len(met) == 2 and changed >= 5:
                break
    finally:
        server.stop()
    assert len(met) == 2
    assert server.pid not in met
    assert changed >= 5
