"""A call of several rounds goes on after its server was killed, on any worker, and on any process with the secret."""

import asyncio
import functools
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from official import COMPLAINT
from sdk import deprecations_are_expected
from server_requests import (
    ANSWERS,
    PLANNED,
    PROGRAM,
    ROOT,
    SAMPLED,
    Notes,
    accepted,
    asking_client,
    is_input_required,
    new_call,
)

pytestmark = [*deprecations_are_expected, pytest.mark.slow]


class AskingProcess:
    """A server process that may be killed at any time; of our variables it knows those that are given."""

    def __init__(self, notes: Notes, *command: str, **variables: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("DOVETAIL_")}
        self._log = notes.path.with_name(f"{new_call()}.log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command, "--port", "0"],
                stderr=log,
                env={**env, "ASKING_NOTES": str(notes.path), **variables},
            )
        self.pid = self._process.pid

    @functools.cached_property
    def port(self) -> int:
        deadline = time.monotonic() + 20
        while (found := re.search(r"serves MCP at http://\S+?:(\d+)/", self._log.read_text())) is None:
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.01)
        return int(found[1])

    def kill(self) -> None:
        """Without a warning."""
        self._process.kill()
        self._process.wait(20)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
        said = self._log.read_text()
        assert COMPLAINT not in said, said
        assert "Traceback" not in said, said


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def start(notes: Notes) -> Iterator[Callable[..., AskingProcess]]:
    with ExitStack() as stack:

        def start(*command: str, **variables: str) -> AskingProcess:
            process = AskingProcess(notes, *command, **variables)
            stack.callback(process.stop)
            return process

        yield start


def answered(request: dict[str, Any]) -> dict[str, Any]:
    """The raw result for a raw question."""
    if request["method"] == "elicitation/create":
        return accepted(ANSWERS[request["params"]["message"]])
    return SAMPLED if request["method"] == "sampling/createMessage" else {"roots": [ROOT]}


async def plan(ports: Iterator[int], call: str) -> list[int]:
    """One call, each round of which is a connection of its own; the processes of its steps and of its end."""
    params: dict[str, Any] = {"name": "plan", "arguments": {"call": call}}
    for port in itertools.islice(ports, 10):
        async with asking_client(f"http://127.0.0.1:{port}/mcp") as client:
            result = await client.request("tools/call", params)
        if not is_input_required(result):
            found = PLANNED.fullmatch(result["content"][0]["text"])
            assert found, result
            return [int(each) for each in found.groups()]
        answers = {key: answered(request) for key, request in result["inputRequests"].items()}
        params |= {"inputResponses": answers, "requestState": result["requestState"]}
    raise AssertionError("it does not come to an end")


async def test_a_call_outlives_its_server(start: Callable[..., AskingProcess], notes: Notes, tmp_path: Path) -> None:
    """The server that answered last is never the one that asked; all share a secret and a file."""
    shared = {"DOVETAIL_SECRET": "a-secret-of-the-tests", "DOVETAIL_STATE": f"sqlite://{tmp_path / 'state.sqlite'}"}
    servers: list[AskingProcess] = []

    def restarted() -> Iterator[int]:
        while True:
            servers.append(start(str(PROGRAM), **shared))
            yield servers[-1].port
            servers[-1].kill()

    call = new_call()
    where = await plan(restarted(), call)
    _, second, _, last = [server.pid for server in servers]
    assert where == [second, last, last]
    assert notes.steps(call) == ["reserve", "book"]
    assert notes.processes(call) == [second, last], "what ran before the kill was not run again"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
async def test_two_workers_need_not_be_given_the_secret(start: Callable[..., AskingProcess], notes: Notes) -> None:
    server = start("-m", "dovetail.cli", "run", f"{PROGRAM}:judged", "--transport", "http", "--workers", "2")
    met: set[int] = set()
    changed = 0  # calls that began on one worker and ended on the other
    for _ in range(10):
        calls = [new_call() for _ in range(20)]
        where = await asyncio.gather(*(plan(itertools.repeat(server.port), call) for call in calls))
        assert [notes.steps(call) for call in calls] == [["reserve", "book"]] * 20
        met.update(*where)
        changed += sum(len(set(each)) > 1 for each in where)
        if len(met) == 2 and changed >= 5:
            break
    assert len(met) == 2
    assert server.pid not in met
    assert changed >= 5
