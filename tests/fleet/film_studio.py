"""A fleet whose store can stand still, and one caller's films: tasks that take each step when the test lets them."""

import asyncio
import collections
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from dying_fleet import FAILURES, KEYS, connected
from fleet_processes import Fleet, fleet

from dovetail import Client, ElicitRequest, ToolTask

PROGRAM = Path(__file__).parent / "fleet_tasks_server.py"
OUTAGE = 5.0  # seconds
LIMIT = 90.0  # seconds for what must come to an end: that a worker is lost shows after two leases
STEPS = ("draw", "ask", "end")  # of a film, that wait until they may be taken
RAN = ["begin", "draw", "drawn", "ask", "answered", "end"]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def insist(request: Callable[[], Awaitable[Any]], task: ToolTask | None = None) -> Any:
    """The outcome of a request that is sent again after each failure, unless that is the end of the task."""
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                return await request()
            except FAILURES:
                if task is not None and task.status in ("failed", "cancelled"):
                    raise
                await asyncio.sleep(0.1)


def following(task: ToolTask) -> "asyncio.Task[Any]":
    """A client that waits for the result all along."""
    return asyncio.create_task(insist(task.wait, task))


class Studio:
    """Films of one caller: the steps that they may take, those they took, and what the caller says."""

    def __init__(self, folder: Path, workers: Fleet, revision: str) -> None:
        self.workers, self.folder = workers, folder
        self.may_answer = collections.defaultdict[str, asyncio.Event](asyncio.Event)
        self.asked = collections.Counter[str]()
        self._revision = revision

    def client(self, url: str) -> AbstractAsyncContextManager[Client]:
        return connected(url, self._revision, "ada", tasks=True, elicitation_handler=self.answer)

    async def answer(self, request: ElicitRequest) -> str:
        nonce = request.message.split()[-1].rstrip("?")
        self.asked[nonce] += 1
        await self.may_answer[nonce].wait()
        return nonce

    def let(self, nonce: str, *steps: str) -> None:
        for step in steps:
            (self.folder / f"{nonce}.{step}").touch()

    def steps(self, nonce: str) -> list[str]:
        notes = self.folder / "steps"
        lines = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
        return [step for name, step in lines if name == nonce]

    async def took(self, nonce: str, step: str) -> None:
        await until(lambda: step in self.steps(nonce))

    @asynccontextmanager
    async def outage(self, seconds: float = OUTAGE) -> AsyncIterator[None]:
        """Redis stands still for so long at least, and until the block has ended."""
        store = self.workers.store
        assert store is not None
        ends = time.monotonic() + seconds
        store.pause()
        try:
            yield
            await asyncio.sleep(ends - time.monotonic())
        finally:
            store.go_on()


@asynccontextmanager
async def studio(folder: Path, revision: str, **environment: str) -> AsyncIterator[Studio]:
    settings = {"FLEET_KEYS": json.dumps(KEYS), **environment}
    with fleet(folder, workers=2, store="redis", program=PROGRAM, **settings) as workers:
        yield Studio(folder, workers, revision)
        workers.assert_clean()
