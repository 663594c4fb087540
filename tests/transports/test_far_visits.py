"""Visits to URLs that are over: every session that was asked is told, by whichever worker hears of it, and once."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from dovetail import Context
from dovetail.state.base import StoreTrouble
from http_serving import PausingState, settle
from http_stage import Stage, text_of
from http_wire import HttpWire

COMPLETE = "notifications/elicitation/complete"


class SharedState(PausingState):
    """`before` is called before each append, and may fail; `meanwhile`, once, when a visit was looked up."""

    shared = True

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[str, bytes], Awaitable[None]] | None = None
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def read(self, log: str, after: int, limit: int = 100) -> Any:
        page = await super().read(log, after, limit)
        if log.startswith("visits/") and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return page

    async def append(self, log: str, data: bytes, **options: Any) -> int:
        if self.before is not None:
            await self.before(log, data)
        return await super().append(log, data, **options)


class Visited:
    """Three workers with a tool that sends the user to a page."""

    def __init__(self) -> None:
        self.state = SharedState()
        self.stages = [Stage() for _ in range(3)]
        self.apps = [stage.server.asgi(state=self.state) for stage in self.stages]
        self.streams: list[Any] = []
        for stage in self.stages:
            stage.server.add_tool(self.visit)

    async def visit(self, ctx: Context) -> str:
        return (await ctx.elicit_url("Sign in", "https://example.com/in", elicitation_id="page")).action

    async def asked(self, at: int = 0) -> Any:
        """The stream of a new session whose client was asked by one worker; it GETs at the next one."""
        wire = await HttpWire.session(self.apps[at], "2025-11-25", capabilities={"elicitation": {"url": {}}})
        elsewhere = HttpWire(self.apps[(at + 1) % 3], "2025-11-25")
        elsewhere.session_id, elsewhere.ids = wire.session_id, wire.ids
        self.streams.append(await elsewhere.get().started())
        call = wire.start_call("visit")
        question = await call.message()
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}}
        await wire.raw("POST", json.dumps(answer).encode()).done()
        assert text_of((await call.done()).answer) == "accept"
        return self.streams[-1]

    async def complete(self, at: int) -> bool:
        try:
            return await self.stages[at].server.complete_elicitation("page")
        finally:
            await settle(50)


@pytest.fixture
async def visited() -> AsyncIterator[Visited]:
    visited = Visited()
    for app in visited.apps:
        await app.start()
    yield visited
    for stream in visited.streams:
        stream.leave()
        await stream.done()
    for app in visited.apps:
        await asyncio.wait_for(app.drain(0.2), 10)


def heard(stream: Any) -> list[str]:
    return [message["method"] for message in stream.messages]


async def test_who_was_not_told_in_trouble_is_told_later(visited: Visited) -> None:
    stream = await visited.asked()

    async def fail(_log: str, _data: bytes) -> None:
        raise StoreTrouble

    visited.state.before = fail
    with pytest.raises(StoreTrouble):
        await visited.complete(2)
    assert heard(stream) == []
    visited.state.before = None
    assert await visited.complete(2)
    assert heard(stream) == [COMPLETE]
    assert not await visited.complete(2)
    assert not await visited.complete(1)
    assert heard(stream) == [COMPLETE]


async def test_in_trouble_others_were_told_already_and_are_not_told_again(visited: Visited) -> None:
    streams = [await visited.asked(), await visited.asked()]
    tells: list[str] = []

    async def fail_at_the_second(log: str, _data: bytes) -> None:
        if log.startswith("messages/"):
            tells.append(log)
            if len(tells) == 2:
                raise StoreTrouble

    visited.state.before = fail_at_the_second
    with pytest.raises(StoreTrouble):
        await visited.complete(2)
    assert sorted(map(heard, streams)) == [[], [COMPLETE]]
    assert await visited.complete(2)
    assert list(map(heard, streams)) == [[COMPLETE], [COMPLETE]]


async def test_a_session_that_is_asked_meanwhile_is_not_forgotten(visited: Visited) -> None:
    first = await visited.asked()
    later: list[Any] = []

    async def ask_another() -> None:
        later.append(await visited.asked(at=1))

    visited.state.meanwhile = ask_another
    for _ in range(2):  # now, or the next time
        await visited.complete(2)
    assert (heard(first), heard(later[0])) == ([COMPLETE], [COMPLETE])


@pytest.mark.parametrize(("first", "then"), [(0, 2), (2, 0), (1, 2), (0, 0)])
async def test_it_is_told_once_where_it_was_asked_or_elsewhere(visited: Visited, first: int, then: int) -> None:
    stream = await visited.asked()
    assert await visited.complete(first)
    assert not await visited.complete(then)
    assert heard(stream) == [COMPLETE]


@pytest.mark.parametrize("workers", [(2, 2), (0, 0), (2, 0), (0, 2)])
async def test_a_page_that_is_visited_again_is_told_over_again(visited: Visited, workers: tuple[int, ...]) -> None:
    for worker in workers:
        stream = await visited.asked()
        assert await visited.complete(worker)
        assert heard(stream) == [COMPLETE]
