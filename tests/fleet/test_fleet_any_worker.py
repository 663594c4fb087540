"""Any request, any worker: what one worker begins, every other one can go on with, and end."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from fleet_client import MODERN, Loud, RawSession, modern, running
from fleet_processes import Fleet, fleet

from dovetail import Client

pytestmark = pytest.mark.slow
PROMPTLY = 5.0
LOST_SECONDS = 20.0  # in which the death of a worker is told to those who wait for its calls


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


# ── sessions ──


async def test_a_session_is_known_everywhere(three: Fleet, session: RawSession) -> None:
    pids = [await session.ask("tools/call", at=url, name="whoami", arguments={}) for url in three.urls]
    assert [int(pid["content"][0]["text"]) for pid in pids] == [worker.pid for worker in three.workers]


async def test_a_session_that_one_ends_has_ended_on_all(three: Fleet, session: RawSession) -> None:
    stream = asyncio.create_task(session.hear(at=three.urls[2]))
    await asyncio.wait_for(session.hears.wait(), PROMPTLY)
    assert await session.delete(at=three.urls[1]) == 204
    ping = session.request("ping", {})
    assert [(await session.send("POST", ping, at=url)).status for url in three.urls] == [404] * 3
    with pytest.raises(AssertionError, match="GET was answered 404"):  # it has ended too, and coming back is refused
        await asyncio.wait_for(stream, PROMPTLY)


async def test_a_session_outlives_its_worker(three: Fleet, http: aiohttp.ClientSession) -> None:
    session = await RawSession(http, three.urls[2]).open()
    await session.ask("resources/subscribe", uri="board://outlives")
    three.workers[2].kill()
    async with running(session.hear(at=three.urls[0])):
        await asyncio.wait_for(session.hears.wait(), PROMPTLY)
        await modern(http, three.urls[1], "touch_resource", name="outlives", version=1)
        await until(lambda: updates(session) == ["board://outlives"])
    await asyncio.to_thread(three.workers[2].start)
    assert await session.ask("ping", at=three.urls[2]) == {}


# ── streams ──


def updates(session: RawSession) -> list[str]:
    return [each["params"]["uri"] for each in session.heard if each["method"] == "notifications/resources/updated"]


@pytest.mark.parametrize("tool", ["touch_resource", "touch_in_passing"])
async def test_a_stream_hears_of_what_happens_elsewhere(
    three: Fleet, http: aiohttp.ClientSession, session: RawSession, tool: str
) -> None:
    async with running(session.hear(at=three.urls[2])):
        await asyncio.wait_for(session.hears.wait(), PROMPTLY)
        await session.ask("resources/subscribe", at=three.urls[1], uri=f"board://{tool}")
        await modern(http, three.urls[0], tool, name=tool, version=1)
        await until(lambda: updates(session) == [f"board://{tool}"])
        await session.ask("resources/unsubscribe", at=three.urls[0], uri=f"board://{tool}")
        await modern(http, three.urls[1], tool, name=tool, version=2)
        await modern(http, three.urls[2], tool, name=tool, version=3)
        await asyncio.sleep(0.3)
        assert len(updates(session)) == 1


async def test_what_happened_meanwhile_is_told_afterwards(
    three: Fleet, http: aiohttp.ClientSession, session: RawSession
) -> None:
    await session.ask("resources/subscribe", uri="board://meanwhile")
    async with running(session.hear(at=three.urls[2])):
        await asyncio.wait_for(session.hears.wait(), PROMPTLY)
        await modern(http, three.urls[1], "touch_resource", name="meanwhile", version=1)
        await until(lambda: len(updates(session)) == 1)
        three.workers[2].kill()
        await until(lambda: not session.hears.is_set())
        await modern(http, three.urls[1], "touch_resource", name="meanwhile", version=2)
        await asyncio.to_thread(three.workers[2].start)
        await until(lambda: len(updates(session)) == 2)


async def test_the_newest_stream_of_a_session_owns_it(
    three: Fleet, http: aiohttp.ClientSession, session: RawSession
) -> None:
    async with http.get(three.urls[1], headers=session._headers) as first:
        await first.content.readline()
        async with http.get(three.urls[2], headers=session._headers) as second:
            await second.content.readline()
            await asyncio.wait_for(first.read(), PROMPTLY)  # it ends


@pytest.mark.parametrize("kind", ["tools", "updated"])
async def test_a_modern_client_hears_of_what_happens_elsewhere(
    three: Fleet, http: aiohttp.ClientSession, kind: str
) -> None:
    async with (
        Client(three.urls[0], protocol_version=MODERN) as client,
        client.listen(tools=kind == "tools", uris=["board://modern"]) as changes,
    ):
        if kind == "tools":
            await modern(http, three.urls[1], "grow", name=f"grown{time.monotonic_ns()}")
        else:
            await modern(http, three.urls[1], "touch_resource", name="modern", version=1)
        assert (await asyncio.wait_for(anext(changes), PROMPTLY)).kind == kind


async def test_a_tool_that_one_worker_has_is_warned_of(three: Fleet, http: aiohttp.ClientSession) -> None:
    await modern(http, three.urls[2], "grow", name="lonely")
    await until(lambda: "changed at this worker; others do not have that" in three.workers[2].said)


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_refresh_reaches_every_worker(three: Fleet, http: aiohttp.ClientSession, revision: str) -> None:
    """Whoever hears of it finds the new tool at the worker that told, and then at all of them."""
    name = f"brought-{revision}"
    async with (
        Client(three.urls[0], protocol_version=revision) as client,
        client.listen(tools=True) as changes,
    ):
        await modern(http, three.urls[1], "announce", name=name)
        assert (await asyncio.wait_for(anext(changes), PROMPTLY)).kind == "tools"
        assert name in [tool.name for tool in await client.list_tools()]
    for url in three.urls:
        async with asyncio.timeout(PROMPTLY):
            while await said_by(http, url, name) != name:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def said_by(http: aiohttp.ClientSession, url: str, tool: str) -> str:
    try:
        return await modern(http, url, tool)
    except Loud:
        return ""


# ── calls ──


@pytest.mark.parametrize("leave_after", [1, 2, 5])
async def test_a_call_is_resumed_at_another_worker(three: Fleet, session: RawSession, leave_after: int) -> None:
    session.resume_url, heard = three.urls[2], []
    arguments = {"nonce": "n", "steps": 9, "pause": 0.03}
    assert await session.call("count", arguments, heard, leave_after=leave_after) == "n 9"
    assert heard == list(range(1, 10))


async def test_a_question_is_heard_and_answered_at_other_workers(three: Fleet, session: RawSession) -> None:
    """Asked on A, read on C, answered on B, and the result is read on C."""
    session.resume_url, session.answer_url = three.urls[2], three.urls[1]
    assert await session.call("ask", {"nonce": "far"}, [], leave_after=1) == "far far"


async def test_a_call_is_cancelled_at_another_worker(three: Fleet, session: RawSession) -> None:
    message = session.request("tools/call", {"name": "nap", "arguments": {"nonce": "n", "seconds": 20}})
    posted = asyncio.create_task(session.send("POST", message))
    await asyncio.sleep(0.3)
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": message["id"]}}
    assert (await session.send("POST", note, at=three.urls[2])).status == 202
    assert '"result"' not in (await asyncio.wait_for(posted, PROMPTLY)).text


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_lists_and_questions_go_from_worker_to_worker(three: Fleet, revision: str) -> None:
    """nginx sends each request to the next one: every page of a list, and each round of a call that asks."""
    async with Client(
        three.url, protocol_version=revision, elicitation_handler=lambda question: question.message
    ) as client:
        for _ in range(4):
            names = [tool.name for tool in await client.list_tools()]
            assert {"whoami", "echo", "count", "ask", "nap", "grow"} <= set(names)
            assert (await client.call_tool("ask", {"nonce": "round"})).text == "round round"


async def test_an_old_client_posts_to_any_worker(three: Fleet) -> None:
    """HTTP+SSE: its stream is at one of them, and what it posts reaches the next one each time."""
    async with Client(f"{three.nginx.origin}/sse", transport="sse", protocol_version="2024-11-05") as client:
        answers = [(await client.call_tool("echo", {"nonce": f"{number}"})).text for number in range(8)]
    assert answers == [f"{number}" for number in range(8)]


# ── death ──


async def test_a_call_whose_worker_dies_is_told_so_once(three: Fleet, http: aiohttp.ClientSession) -> None:
    """Everyone who comes back for it, wherever, hears the same: what was told, and one error."""
    session = await RawSession(http, three.urls[1]).open()
    message = {"name": "count", "arguments": {"nonce": "n", "steps": 500, "pause": 0.05}, "_meta": {"progressToken": 1}}
    async with http.post(three.urls[1], json=session.request("tools/call", message), headers=session._headers) as post:
        while b"progress" not in (first := await post.content.readuntil(b"\n\n")):
            pass
        id = first.split(b"id: ")[1].split(b"\n")[0].decode()
        three.workers[1].kill()
    began = time.monotonic()

    async def rest(at: str) -> list[str]:
        headers = {**session._headers, "Last-Event-ID": id}
        async with http.get(at, headers=headers) as response:
            lines = (await response.text()).splitlines()
        return [line for line in lines if line.startswith("data: {")]

    try:
        rests = await asyncio.gather(*(rest(at) for at in (three.urls[0], three.urls[2])))
        assert time.monotonic() - began < LOST_SECONDS
        assert rests[0] == rests[1] == await rest(three.urls[2])
        assert [('"error"' in line) for line in rests[0]] == [False] * (len(rests[0]) - 1) + [True]
        assert "lost" in rests[0][-1]
        progress = [line for line in rests[0] if "progress" in line]
        assert len(progress) == len(set(progress))
    finally:
        await asyncio.to_thread(three.workers[1].start)


async def test_a_question_whose_worker_dies_fails(three: Fleet, http: aiohttp.ClientSession) -> None:
    session = await RawSession(http, three.urls[2]).open(elicitation={})
    session.resume_url, session.answer_url = three.urls[0], three.urls[1]
    answer = session.insist

    async def too_late(message: Any, *, at: str | None = None) -> Any:
        three.workers[2].kill()
        return await answer(message, at=at)

    session.insist = too_late  # type: ignore[method-assign]
    try:
        with pytest.raises(Loud, match="lost"):
            await session.call("ask", {"nonce": "late"}, [])
    finally:
        await asyncio.to_thread(three.workers[2].start)
    session.insist = answer  # type: ignore[method-assign]
    assert await session.ask("ping", at=three.urls[2]) == {}
