"""Steps in threads, and in several workers that share their state."""

import asyncio
import threading
from typing import Any

import pytest

from dovetail import Context, Server, ServerError
from dovetail.engine import input_required
from dovetail.state.base import NoRoom
from dovetail.state.memory import MemoryState
from replaying import asking_client, is_interim, play, retry
from step_stage import SURE, Body, Effect, asks_before_and_after, call, serving, text_of

# ── threads ──


async def test_in_a_def_function_a_step_runs_in_its_thread() -> None:
    threads: list[int] = []

    def tool(ctx: Context) -> str:
        ctx.wait(ctx.elicit("Sure?", str))
        threads.append(threading.get_ident())
        number = ctx.wait(ctx.step("effect", lambda: threads.append(threading.get_ident()) or 7))
        ctx.wait(ctx.elicit("Really?", str))
        return f"{number}"

    async with asking_client(serving(tool, max_threads=1)) as client:
        assert (await play(client, "tool", SURE)).text == "7"
    assert len(threads) == 3  # two runs came to the step, and one of them took it
    assert threads[0] == threads[1] != threading.get_ident()


async def test_a_def_function_may_hand_over_a_coroutine_function() -> None:
    effect = Effect()

    def tool(ctx: Context) -> str:
        number = ctx.wait(ctx.step("effect", effect))
        ctx.wait(ctx.elicit("Sure?", str))
        return f"{number}"

    async with asking_client(serving(tool)) as client:
        assert (await play(client, "tool", SURE)).text == "1"


async def test_a_step_in_the_thread_of_a_cancelled_call_counts() -> None:
    begun, go, times = threading.Event(), threading.Event(), []

    def effect() -> int:
        begun.set()
        go.wait(5)
        times.append(1)
        return len(times)

    def tool(ctx: Context) -> str:
        ctx.wait(ctx.elicit("Sure?", str))
        return f"{ctx.wait(ctx.step('effect', effect))}"

    async with asking_client(serving(tool)) as client:
        again = retry(await call(client), SURE)
        first = asyncio.create_task(call(client, **again))
        await asyncio.to_thread(begun.wait, 5)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(call(client, **again))
        await asyncio.sleep(0.01)
        go.set()
        assert text_of(await second) == "1"
    assert times == [1]


# ── several workers ──


def two_workers(body: Body, state: MemoryState | None = None) -> tuple[Server, Server]:
    """Two servers that share their secret and their state."""
    servers = serving(body, secret="the same on both workers"), serving(body, secret="the same on both workers")
    servers[1].engine.state = servers[0].engine.state = state or MemoryState()
    return servers


@pytest.mark.rule("MRTR-12")
async def test_two_workers_run_a_step_once() -> None:
    effect = Effect()
    effect.go.clear()

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        return f"{await ctx.step('effect', effect)}"

    one, other = two_workers(tool)
    async with asking_client(one) as first_client, asking_client(other) as second_client:
        again = retry(await call(first_client), SURE)
        first = asyncio.create_task(call(first_client, **again))
        await effect.begun.wait()
        second = asyncio.create_task(call(second_client, **again))
        await asyncio.sleep(0.01)
        effect.go.set()
        assert (text_of(await first), text_of(await second)) == ("1", "1")
        assert text_of(await call(second_client, **again)) == "1"


async def test_a_step_of_a_dead_worker_is_not_done_a_second_time(monkeypatch: Any) -> None:
    monkeypatch.setattr(input_required, "PATIENCE", 0.05)
    effect = Effect()
    effect.go.clear()

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        return f"{await ctx.step('send mail', effect)}"

    dead, alive = two_workers(tool)
    async with asking_client(dead) as client, asking_client(alive) as other_client:
        again = retry(await call(client), SURE)
        first = asyncio.create_task(call(client, **again))  # it will never come to its end
        await effect.begun.wait()
        result = await call(other_client, **again)
        assert result["isError"]
        assert text_of(result).startswith("The step send mail was begun by an earlier request and has not ended")
        effect.go.set()
        await first
    assert effect.times == 1


async def test_a_step_that_was_torn_down_is_not_done_a_second_time(monkeypatch: Any) -> None:
    monkeypatch.setattr(input_required, "PATIENCE", 0.05)
    effect = Effect()
    effect.go.clear()

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        return f"{await ctx.step('send mail', effect)}"

    server = serving(tool)
    async with asking_client(server) as client:
        again = retry(await call(client), SURE)
        first = asyncio.create_task(call(client, **again))
        await effect.begun.wait()
        for step in server.engine.running_steps:  # as when a loop is closed
            step.cancel()
        assert (await first)["isError"]
        assert "it is not done a second time" in text_of(await call(client, **again))


class Full(MemoryState):
    """Has room for a claim, and none for a result."""

    async def put(self, *arguments: Any, **options: Any) -> int:
        raise NoRoom("There is no room")


async def test_a_result_that_can_not_be_kept_is_still_known_to_its_run(caplog: Any) -> None:
    effect = Effect()
    one, _ = two_workers(asks_before_and_after(effect), Full())
    async with asking_client(one) as client:
        assert (await play(client, "tool", SURE)).text == "1"
    assert "the result of the step 'effect#1' can't be kept: There is no room" in caplog.text


class Closed(MemoryState):
    async def claim(self, *arguments: Any, **options: Any) -> bool:
        raise NoRoom("There is no room")


async def test_a_step_that_can_not_be_claimed_is_not_taken() -> None:
    effect = Effect()

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        return f"{await ctx.step('effect', effect)}"

    server = serving(tool, secret="the same on both workers")
    async with asking_client(server) as client:
        server.engine.state = Closed()
        first = await call(client)
        assert is_interim(first)
        with pytest.raises(ServerError, match="try again later"):
            await call(client, **retry(first, SURE))
    assert effect.times == 0


async def test_claims_outlive_the_state_that_others_may_bring() -> None:
    ttls: list[float] = []

    class Watched(MemoryState):
        async def claim(self, key: str, value: bytes, ttl: float) -> bool:
            if key.startswith("step/"):
                ttls.append(ttl)
            return await super().claim(key, value, ttl)

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str, timeout=7 * 86_400)
        return f"{await ctx.step('effect', lambda: 1)}"

    one, _ = two_workers(tool, Watched())
    async with asking_client(one) as client:
        assert (await play(client, "tool", SURE)).text == "1"
    assert ttls
    assert min(ttls) > 7 * 86_400
