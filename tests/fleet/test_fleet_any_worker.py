"""Any request, any worker: what one worker begins, every other one can go on with, and end."""

import asyncio
import json
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
def four(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp(request.param), store=request.param, FLEET_HASTE="3") as four:
        yield four
        four.assert_clean()


@pytest.fixture
async def session(four: Fleet, http: aiohttp.ClientSession) -> RawSession:
    """One that the first worker has begun."""
    return await RawSession(http, four.urls[0]).open(elicitation={})


async def until(is_so: Any, seconds: float = PROMPTLY) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():  # noqa: ASYNC110  (most of what is waited for happens in other processes)
            await asyncio.sleep(0.01)


# ── sessions ──


async def test_a_session_is_known_everywhere(four: Fleet, session: RawSession) -> None:
    pids = [await session.ask("tools/call", at=url, name="whoami", arguments={}) for url in four.urls]
    assert [int(pid["content"][0]["text"]) for pid in pids] == [worker.pid for worker in four.workers]


async def test_a_session_that_one_ends_has_ended_on_all(four: Fleet, session: RawSession) -> None:
    stream = asyncio.create_task(session.hear(at=four.urls[2]))
    await asyncio.wait_for(session.hears.wait(), PROMPTLY)
    assert await session.delete(at=four.urls[1]) == 204
    ping = session.request("ping", {})
    assert [(await session.send("POST", ping, at=url)).status for url in four.urls] == [404] * 4
    with pytest.raises(AssertionError, match="GET was answered 404"):  # it has ended too, and coming back is refused
        await asyncio.wait_for(stream, PROMPTLY)


async def test_a_session_outlives_its_worker(four: Fleet, http: aiohttp.ClientSession) -> None:
    session = await RawSession(http, four.urls[3]).open()
    await session.ask("resources/subscribe", uri="board://outlives")
    four.workers[3].kill()
    async with running(session.hear(at=four.urls[0])):
        await asyncio.wait_for(session.hears.wait(), PROMPTLY)
        await modern(http, four.urls[1], "touch_resource", name="outlives", version=1)
        await until(lambda: updates(session) == ["board://outlives"])
    await asyncio.to_thread(four.workers[3].start)
    assert await session.ask("ping", at=four.urls[3]) == {}


# ── streams ──


def updates(session: RawSession) -> list[str]:
    return [each["params"]["uri"] for each in session.heard if each["method"] == "notifications/resources/updated"]


@pytest.mark.parametrize("tool", ["touch_resource", "touch_in_passing"])
async def test_a_stream_hears_of_what_happens_elsewhere(
    four: Fleet, http: aiohttp.ClientSession, session: RawSession, tool: str
) -> None:
    async with running(session.hear(at=four.urls[2])):
        await asyncio.wait_for(session.hears.wait(), PROMPTLY)
        await session.ask("resources/subscribe", at=four.urls[1], uri=f"board://{tool}")
        await modern(http, four.urls[3], tool, name=tool, version=1)
        await until(lambda: updates(session) == [f"board://{tool}"])
        await session.ask("resources/unsubscribe", at=four.urls[0], uri=f"board://{tool}")
        await modern(http, four.urls[3], tool, name=tool, version=2)
        await modern(http, four.urls[2], tool, name=tool, version=3)
        await asyncio.sleep(0.3)
        assert len(updates(session)) == 1


async def test_what_happened_meanwhile_is_told_afterwards(
    four: Fleet, http: aiohttp.ClientSession, session: RawSession
) -> None:
    await session.ask("resources/subscribe", uri="board://meanwhile")
    async with running(session.hear(at=four.urls[2])):
        await asyncio.wait_for(session.hears.wait(), PROMPTLY)
        await modern(http, four.urls[1], "touch_resource", name="meanwhile", version=1)
        await until(lambda: len(updates(session)) == 1)
        four.workers[2].kill()
        await until(lambda: not session.hears.is_set())
        await modern(http, four.urls[1], "touch_resource", name="meanwhile", version=2)
        await asyncio.to_thread(four.workers[2].start)
        await until(lambda: len(updates(session)) == 2)


async def test_the_newest_stream_of_a_session_owns_it(
    four: Fleet, http: aiohttp.ClientSession, session: RawSession
) -> None:
    async with http.get(four.urls[1], headers=session._headers) as first:
        await first.content.readline()
        async with http.get(four.urls[2], headers=session._headers) as second:
            await second.content.readline()
            await asyncio.wait_for(first.read(), PROMPTLY)  # it ends


@pytest.mark.parametrize("kind", ["tools", "updated"])
async def test_a_modern_client_hears_of_what_happens_elsewhere(
    four: Fleet, http: aiohttp.ClientSession, kind: str
) -> None:
    async with (
        Client(four.urls[0], protocol_version=MODERN) as client,
        client.listen(tools=kind == "tools", uris=["board://modern"]) as changes,
    ):
        if kind == "tools":
            await modern(http, four.urls[1], "grow", name=f"grown{time.monotonic_ns()}")
        else:
            await modern(http, four.urls[1], "touch_resource", name="modern", version=1)
        assert (await asyncio.wait_for(anext(changes), PROMPTLY)).kind == kind


async def test_a_tool_that_one_worker_has_is_warned_of(four: Fleet, http: aiohttp.ClientSession) -> None:
    await modern(http, four.urls[3], "grow", name="lonely")
    await until(lambda: "changed at this worker; others do not have that" in four.workers[3].said)


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_refresh_reaches_every_worker(four: Fleet, http: aiohttp.ClientSession, revision: str) -> None:
    """Whoever hears of it finds the new tool at the worker that told, and then at all of them."""
    name = f"brought-{revision}"
    async with (
        Client(four.urls[0], protocol_version=revision) as client,
        client.listen(tools=True) as changes,
    ):
        await modern(http, four.urls[1], "announce", name=name)
        assert (await asyncio.wait_for(anext(changes), PROMPTLY)).kind == "tools"
        assert name in [tool.name for tool in await client.list_tools()]
    for url in four.urls:
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
async def test_a_call_is_resumed_at_another_worker(four: Fleet, session: RawSession, leave_after: int) -> None:
    session.resume_url, heard = four.urls[3], []
    arguments = {"nonce": "n", "steps": 9, "pause": 0.03}
    assert await session.call("count", arguments, heard, leave_after=leave_after) == "n 9"
    assert heard == list(range(1, 10))


async def test_a_question_is_heard_and_answered_at_other_workers(four: Fleet, session: RawSession) -> None:
    """Asked on A, read on D, answered on B, and the result is read on D."""
    session.resume_url, session.answer_url = four.urls[3], four.urls[1]
    assert await session.call("ask", {"nonce": "far"}, [], leave_after=1) == "far far"


async def test_a_call_is_cancelled_at_another_worker(four: Fleet, session: RawSession) -> None:
    message = session.request("tools/call", {"name": "nap", "arguments": {"nonce": "n", "seconds": 20}})
    posted = asyncio.create_task(session.send("POST", message))
    await asyncio.sleep(0.3)
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": message["id"]}}
    assert (await session.send("POST", note, at=four.urls[2])).status == 202
    assert '"result"' not in (await asyncio.wait_for(posted, PROMPTLY)).text


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_lists_and_questions_go_from_worker_to_worker(four: Fleet, revision: str) -> None:
    """nginx sends each request to the next one: every page of a list, and each round of a call that asks."""
    async with Client(
        four.url, protocol_version=revision, elicitation_handler=lambda question: question.message
    ) as client:
        for _ in range(4):
            names = [tool.name for tool in await client.list_tools()]
            assert {"whoami", "echo", "count", "ask", "nap", "grow"} <= set(names)
            assert (await client.call_tool("ask", {"nonce": "round"})).text == "round round"


async def test_an_old_client_posts_to_any_worker(four: Fleet) -> None:
    """HTTP+SSE: its stream is at one of them, and what it posts reaches the next one each time."""
    async with Client(f"{four.nginx.origin}/sse", transport="sse", protocol_version="2024-11-05") as client:
        answers = [(await client.call_tool("echo", {"nonce": f"{number}"})).text for number in range(8)]
    assert answers == [f"{number}" for number in range(8)]


async def test_whatever_an_old_client_posts_at_once_is_answered(four: Fleet, http: aiohttp.ClientSession) -> None:
    origins, answered = [worker.origin for worker in four.workers], []

    async def post(id: int, method: str, **params: Any) -> None:
        """Again, if it is refused; only a very slow machine does that."""
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        status = 503
        while status == 503:
            async with http.post(f"{origins[id % len(origins)]}{path}", json=message) as response:
                status = response.status
        assert status == 202

    async def read(count: int) -> None:
        async with asyncio.timeout(LOST_SECONDS):
            while len(answered) < count:
                line = await stream.content.readline()
                if line.startswith(b"data: "):
                    answered.append(json.loads(line[6:])["id"])

    async with http.get(f"{origins[0]}/sse") as stream:
        assert await stream.content.readline() == b"event: endpoint\n"
        path = (await stream.content.readline()).decode().removeprefix("data: ").strip()
        hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
        await post(0, "initialize", **hello)
        await read(1)
        for id in range(1, 21):  # one after the other: in order, whichever worker takes them
            await post(id, "ping")
        await read(21)
        assert answered == list(range(21))
        ids = range(1000, 1200)  # all at once
        reading = asyncio.create_task(read(21 + len(ids)))
        await asyncio.gather(*(post(id, "ping") for id in ids))
        await reading
        assert sorted(answered[21:]) == list(ids)


# ── death ──


async def test_a_call_whose_worker_dies_is_told_so_once(four: Fleet, http: aiohttp.ClientSession) -> None:
    """Everyone who comes back for it, wherever, hears the same: what was told, and one error."""
    session = await RawSession(http, four.urls[1]).open()
    message = {"name": "count", "arguments": {"nonce": "n", "steps": 500, "pause": 0.05}, "_meta": {"progressToken": 1}}
    async with http.post(four.urls[1], json=session.request("tools/call", message), headers=session._headers) as post:
        while b"progress" not in (first := await post.content.readuntil(b"\n\n")):
            pass
        id = first.split(b"id: ")[1].split(b"\n")[0].decode()
        four.workers[1].kill()
    began = time.monotonic()

    async def rest(at: str) -> list[str]:
        headers = {**session._headers, "Last-Event-ID": id}
        async with http.get(at, headers=headers) as response:
            lines = (await response.text()).splitlines()
        return [line for line in lines if line.startswith("data: {")]

    try:
        rests = await asyncio.gather(*(rest(at) for at in (four.urls[0], four.urls[2], four.urls[3])))
        assert time.monotonic() - began < LOST_SECONDS
        assert rests[0] == rests[1] == rests[2] == await rest(four.urls[2])
        assert [('"error"' in line) for line in rests[0]] == [False] * (len(rests[0]) - 1) + [True]
        assert "lost" in rests[0][-1]
        progress = [line for line in rests[0] if "progress" in line]
        assert len(progress) == len(set(progress))
    finally:
        await asyncio.to_thread(four.workers[1].start)


async def test_a_question_whose_worker_dies_fails(four: Fleet, http: aiohttp.ClientSession) -> None:
    session = await RawSession(http, four.urls[2]).open(elicitation={})
    session.resume_url, session.answer_url = four.urls[0], four.urls[1]
    answer = session.insist

    async def too_late(message: Any, *, at: str | None = None) -> Any:
        four.workers[2].kill()
        return await answer(message, at=at)

    session.insist = too_late  # type: ignore[method-assign]
    try:
        with pytest.raises(Loud, match="lost"):
            await session.call("ask", {"nonce": "late"}, [])
    finally:
        await asyncio.to_thread(four.workers[2].start)
    session.insist = answer  # type: ignore[method-assign]
    assert await session.ask("ping", at=four.urls[2]) == {}
