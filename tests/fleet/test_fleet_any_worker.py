"""Any request, any worker: what one worker begins, every other one can go on with, and end."""

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from fleet_client import MODERN, RawSession, modern, running
from fleet_processes import Fleet, fleet

from dovetail import Client

pytestmark = pytest.mark.slow
PROMPTLY = 20.0  # much more than anything takes


@pytest.fixture(scope="module", params=["redis", pytest.param("sqlite", marks=pytest.mark.soak)])
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp(request.param), workers=3, store=request.param, FLEET_HASTE="3") as three:
        yield three
        three.assert_clean()


@pytest.fixture
async def session(three: Fleet, http: aiohttp.ClientSession) -> RawSession:
    """One that the first worker has begun."""
    return await RawSession(http, three.urls[0]).open(elicitation={})


async def until(is_so: Any, seconds: float = PROMPTLY) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():  # noqa: ASYNC110  (most of what is waited for happens in other processes)
            await asyncio.sleep(0.01)


async def test_a_session_is_known_everywhere_until_one_ends_it(three: Fleet, session: RawSession) -> None:
    pids = [await session.ask("tools/call", at=url, name="whoami", arguments={}) for url in three.urls]
    assert [int(pid["content"][0]["text"]) for pid in pids] == [worker.pid for worker in three.workers]
    stream = asyncio.create_task(session.listen(at=three.urls[2]))
    await asyncio.wait_for(session.is_listening.wait(), PROMPTLY)
    assert await session.delete(at=three.urls[1]) == 204
    ping = session.request("ping", {})
    assert [(await session.send("POST", ping, at=url)).status for url in three.urls] == [404] * 3
    with pytest.raises(AssertionError, match="GET was answered 404"):  # it has ended too, and coming back is refused
        await asyncio.wait_for(stream, PROMPTLY)


async def test_a_session_outlives_its_worker_and_is_notified_of_what_happened_meanwhile(
    three: Fleet, http: aiohttp.ClientSession
) -> None:
    session = await RawSession(http, three.urls[2]).open()
    await session.ask("resources/subscribe", uri="board://outlives")
    async with running(session.listen(at=three.urls[2])):
        await asyncio.wait_for(session.is_listening.wait(), PROMPTLY)
        await modern(http, three.urls[1], "touch_resource", name="outlives", version=1)
        await until(lambda: len(updates(session)) == 1)
        three.workers[2].kill()
        await until(lambda: not session.is_listening.is_set())
        await modern(http, three.urls[1], "touch_resource", name="outlives", version=2)
        await asyncio.to_thread(three.workers[2].start)
        await until(lambda: len(updates(session)) == 2)
    assert await session.ask("ping", at=three.urls[2]) == {}


def updates(session: RawSession) -> list[str]:
    return [each["params"]["uri"] for each in session.received if each["method"] == "notifications/resources/updated"]


async def test_streams_of_both_eras_are_notified_of_what_happens_elsewhere(
    three: Fleet, http: aiohttp.ClientSession, session: RawSession
) -> None:
    uri, touch = "board://elsewhere", "touch_resource"
    async with (
        running(session.listen(at=three.urls[2])),
        Client(three.urls[1], protocol_version=MODERN) as client,
        client.listen(uris=[uri]) as changes,
    ):
        await asyncio.wait_for(session.is_listening.wait(), PROMPTLY)
        await session.ask("resources/subscribe", at=three.urls[1], uri=uri)
        await modern(http, three.urls[0], touch, name="elsewhere", version=1)
        assert (await asyncio.wait_for(anext(changes), PROMPTLY)).uri == uri
        await until(lambda: updates(session) == [uri])
        await session.ask("resources/unsubscribe", at=three.urls[0], uri=uri)
        await session.ask("resources/subscribe", at=three.urls[0], uri="board://after")
        await modern(http, three.urls[1], touch, name="elsewhere", version=2)
        await modern(http, three.urls[1], touch, name="after", version=1)
        await until(lambda: updates(session)[1:] == ["board://after"])


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_refresh_reaches_every_worker(three: Fleet, http: aiohttp.ClientSession, revision: str) -> None:
    """A client that is notified finds the new tool at the worker that notified it, and then at all of them."""
    name = f"brought-{revision}"
    async with (
        Client(three.urls[0], protocol_version=revision) as client,
        client.listen(tools=True) as changes,
    ):
        await modern(http, three.urls[1], "announce", name=name)
        assert (await asyncio.wait_for(anext(changes), PROMPTLY)).kind == "tools"
        assert name in [tool.name for tool in await client.list_tools()]
    async with asyncio.timeout(PROMPTLY):
        for url in three.urls:
            while True:
                async with Client(url, protocol_version=revision) as fresh:
                    if name in [tool.name for tool in await fresh.list_tools()]:
                        break
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("leave_after", [1, 2, 5])
async def test_a_call_is_resumed_and_its_question_answered_at_other_workers(
    three: Fleet, session: RawSession, leave_after: int
) -> None:
    """Called at A, read at C, and what it asks is answered at B."""
    session.resume_url, session.answer_url, received = three.urls[2], three.urls[1], []
    arguments = {"nonce": "n", "steps": 9, "pause": 0.03}
    assert await session.call("count", arguments, received, leave_after=leave_after) == "n 9"
    assert received == list(range(1, 10))
    assert await session.call("ask", {"nonce": "far"}, [], leave_after=leave_after) == "far far"


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_lists_and_questions_go_from_worker_to_worker(three: Fleet, revision: str) -> None:
    """nginx sends each request to the next one: every page of a list, and each round of a call that asks."""
    async with Client(
        three.url, protocol_version=revision, elicitation_handler=lambda question: question.message
    ) as client:
        for _ in range(4):
            names = [tool.name for tool in await client.list_tools()]
            assert {"whoami", "echo", "count", "ask"} <= set(names)
            assert (await client.call_tool("ask", {"nonce": "round"})).text == "round round"


async def test_an_old_client_posts_to_any_worker(three: Fleet) -> None:
    """HTTP+SSE: its stream is at one of them, and what it posts reaches the next one each time."""
    async with Client(f"{three.nginx.origin}/sse", transport="sse", protocol_version="2024-11-05") as client:
        answers = [(await client.call_tool("echo", {"nonce": f"{number}"})).text for number in range(8)]
    assert answers == [f"{number}" for number in range(8)]


async def test_a_call_whose_worker_dies_ends_in_one_error(three: Fleet, http: aiohttp.ClientSession) -> None:
    """Every client that resumes it, at any worker, gets the same: the events before, and one error."""
    session = await RawSession(http, three.urls[1]).open()
    message = {"name": "count", "arguments": {"nonce": "n", "steps": 500, "pause": 0.05}, "_meta": {"progressToken": 1}}
    async with http.post(three.urls[1], json=session.request("tools/call", message), headers=session._headers) as post:
        while b"progress" not in (first := await post.content.readuntil(b"\n\n")):
            pass
        id = first.split(b"id: ")[1].split(b"\n")[0].decode()
        three.workers[1].kill()

    async def rest(at: str) -> list[str]:
        headers = {**session._headers, "Last-Event-ID": id}
        async with http.get(at, headers=headers) as response:
            lines = (await response.text()).splitlines()
        return [line for line in lines if line.startswith("data: {")]

    try:
        async with asyncio.timeout(PROMPTLY):
            rests = await asyncio.gather(*(rest(at) for at in (three.urls[0], three.urls[2])))
        assert rests[0] == rests[1] == await rest(three.urls[2])
        assert [('"error"' in line) for line in rests[0]] == [False] * (len(rests[0]) - 1) + [True]
        assert "lost" in rests[0][-1]
        progress = [line for line in rests[0] if "progress" in line]
        assert len(progress) == len(set(progress))
    finally:
        await asyncio.to_thread(three.workers[1].start)
