"""Redis does not answer for five seconds, in every phase of a task: none is lost, runs twice or is answered twice."""

import asyncio
import collections
import random
from contextlib import suppress
from pathlib import Path

import pytest
from dying_fleet import FAILURES
from film_studio import RAN, STEPS, following, insist, studio, until

from dovetail import Client, ServerError, TaskCancelled, ToolTask
from sdk import HANDSHAKE, MODERN

ERAS = pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600), ERAS]
LOST = "The worker that ran this task was lost; whether it had all its effects is not known"
OUTAGES, CLIENTS = 6, 12  # of the storm


async def begin(client: Client, nonce: str, tool: str = "film") -> ToolTask:
    return await client.start_tool(tool, {"nonce": nonce}, progress_handler=lambda *progress: None)


@pytest.mark.rule("TASK-7", "TASK-13")
@pytest.mark.parametrize("is_noticed", [False, True])
async def test_an_outage_in_every_phase(tmp_path: Path, revision: str, *, is_noticed: bool) -> None:
    """All go on in the moment when the store stops, or once a worker has noticed that; clients wait all along."""
    async with studio(tmp_path, revision) as films, films.client(films.workers.url) as client:
        nonces = [*STEPS, "answer", "all", "cancel"]
        tasks = {nonce: await begin(client, nonce) for nonce in nonces}
        ends = {nonce: following(task) for nonce, task in tasks.items()}
        for nonce, before in {"ask": 1, "answer": 2, "end": 2, "cancel": 1}.items():
            films.let(nonce, *STEPS[:before])
        for nonce in ("draw", "ask", "all", "end"):
            films.may_answer[nonce].set()
        await films.took("ask", "drawn")
        await films.took("end", "answered")
        await until(lambda: films.asked["answer"])
        async with films.outage():
            refusal = asyncio.create_task(begin(client, "begin"))
            if is_noticed:
                await asyncio.wait({refusal})
            late = asyncio.create_task(begin(client, "late", "late"))
            cancelling = asyncio.create_task(insist(tasks["cancel"].cancel, tasks["cancel"]))
            for nonce in STEPS:
                films.let(nonce, nonce)
            films.let("all", *STEPS)
            films.may_answer["answer"].set()
            for nonce, step in (("draw", "drawn"), ("all", "ask"), ("end", "end")):
                await films.took(nonce, step)
            with pytest.raises(FAILURES):
                await refusal
        await until(lambda: tasks["draw"].message == "Drawing (3/3)")
        if revision == MODERN:  # it ran already, and becomes a task
            assert (await late).id is not None
            films.let("late", "end")
            assert (await (await late).wait()).text == "late: late"
        else:
            with pytest.raises(FAILURES):
                await late
        assert films.steps("late") == (["begin", "end"] if revision == MODERN else [])
        with suppress(ServerError):  # it is cancelled already
            await cancelling
        with pytest.raises(TaskCancelled):
            await ends.pop("cancel")
        await films.took("cancel", "cancelled")
        assert not films.steps("begin")
        ends["begin"] = following(await insist(lambda: begin(client, "begin")))
        for nonce in ends:
            films.may_answer[nonce].set()
            films.let(nonce, *STEPS)
        assert {nonce: (await end).text for nonce, end in ends.items()} == {each: f"{each}: {each}" for each in ends}
        assert {nonce: films.steps(nonce) for nonce in ends} == dict.fromkeys(ends, RAN)
        assert films.steps("cancel") == ["begin", "draw", "drawn", "cancelled"]


@pytest.mark.parametrize("is_in_time", [False, True])
async def test_an_outage_in_a_drain(tmp_path: Path, revision: str, *, is_in_time: bool) -> None:
    """The worker waits for the store within its time; later, other workers find that it is lost."""
    environment = {"DOVETAIL_DRAIN_TIMEOUT": "60" if is_in_time else "1"}
    async with studio(tmp_path, revision, **environment) as films:
        worker, url = films.workers.workers[0], films.workers.urls[1]
        async with films.client(films.workers.urls[0]) as client, films.client(url) as other:
            ids = {nonce: (await begin(client, nonce)).id for nonce in ("working", "ended")}
            for nonce in ids:
                films.may_answer[nonce].set()
                films.let(nonce, *STEPS[:2])
            ends = {nonce: following(other.task(str(id))) for nonce, id in ids.items()}
            for nonce in ids:
                await films.took(nonce, "answered")
            async with films.outage():
                films.let("ended", "end")
                await films.took("ended", "end")
                worker.ask_to_end()
                if is_in_time:
                    await until(lambda: not worker.is_listening())
                    films.let("working", "end")
                    await films.took("working", "end")
                else:
                    await until(lambda: not worker.is_running)
                    assert films.steps("working")[-1] == "cancelled"
            for nonce, end in ends.items():
                if is_in_time:
                    assert (await end).text == f"{nonce}: {nonce}"
                else:
                    with pytest.raises(ServerError, match=LOST):
                        await end
            assert films.steps("ended") == RAN
            assert films.steps("working") == [*RAN[:5], "end" if is_in_time else "cancelled"]


async def test_tasks_in_a_storm_of_outages(tmp_path: Path, revision: str) -> None:
    """They begin, ask and end at any moment of an outage, of its beginning and of its end."""
    results, refused, goes_on = dict[str, str](), list[str](), True
    async with studio(tmp_path, revision) as films:

        async def book(number: int) -> None:
            async with films.client(films.workers.url) as client:
                for nonce in (f"{number}-{count}" for count in range(1_000_000)):
                    if not goes_on:
                        return
                    films.may_answer[nonce].set()
                    try:
                        task = await client.start_tool("book", {"nonce": nonce, "seconds": random.uniform(0, 0.5)})
                    except FAILURES:
                        refused.append(nonce)
                        await asyncio.sleep(0.1)
                    else:
                        results[nonce] = (await following(task)).text

        async with asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(book(number))
            for _ in range(OUTAGES):
                known = len(results)
                await until(lambda: len(results) >= known + CLIENTS)  # noqa: B023
                async with films.outage():
                    pass
            goes_on = False
    booked = (tmp_path / "bookings").read_text().splitlines()
    reserved = collections.Counter((tmp_path / "reserved").read_text().split())
    print(f"\n{revision}: {len(results)} booked, {len(refused)} refused")  # noqa: T201
    assert max(reserved.values()) == 1, "a step ran twice"
    assert len(set(booked)) == len(booked), "a task ran twice"
    assert results == {nonce: f"{nonce} {nonce}" for nonce in results}
    assert set(results.values()) == set(booked)
    assert not reserved.keys() & set(refused), "a call that was refused has run"
