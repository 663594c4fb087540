"""A call of several rounds goes on after its server was killed, on any worker, and on any process with the secret."""

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from asking_program import (
    PLANNED,
    PROGRAM,
    SECRET,
    AskingProcess,
    Notes,
    answered,
    new_call,
)
from replaying import asking_client, is_interim
from sdk import deprecations_are_expected

pytestmark = deprecations_are_expected
Start = Callable[..., AskingProcess]


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


async def plan(ports: Iterator[int], call: str) -> str:
    """One call, each round of which is a connection of its own, to the next of the ports."""
    params: dict[str, Any] = {"name": "plan", "arguments": {"call": call}}
    for port in itertools.islice(ports, 10):
        async with asking_client(f"http://127.0.0.1:{port}/mcp") as client:
            result = await client.request("tools/call", params)
        if not is_interim(result):
            return str(result["content"][0]["text"])
        answers = {key: answered(request) for key, request in result["inputRequests"].items()}
        params |= {"inputResponses": answers, "requestState": result["requestState"]}
    raise AssertionError("it does not come to an end")


@pytest.mark.slow
async def test_a_call_outlives_its_server(start: Start, notes: Notes) -> None:
    """The server that answered last is never the one that asked."""
    servers: list[AskingProcess] = []
    call = new_call()
    text = await plan(restarted(start, servers), call)
    _, second, _, last = [server.pid for server in servers]
    assert processes(text) == [second, last, last]
    assert notes.steps(call) == ["reserve", "book"]
    assert notes.processes(call) == [second, last], "what ran before the kill was not run again"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.slow
async def test_two_workers_need_not_be_told_the_secret(notes: Notes) -> None:
    command = ["-m", "dovetail.cli", "run", f"{PROGRAM}:judged", "--transport", "http", "--workers", "2"]
    server = AskingProcess(notes, None, command=command)
    met: set[int] = set()
    changed = 0  # calls that began on one worker and ended on the other
    try:
        for _ in range(10):
            calls = [new_call() for _ in range(20)]
            texts = await asyncio.gather(*(plan(itertools.repeat(server.port), call) for call in calls))
            assert [notes.steps(call) for call in calls] == [["reserve", "book"]] * 20
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
