"""Steps where the store has lost its memory since their call began: they are refused, for they may have been taken."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stores
from dovetail import Client, Context, Server
from dovetail.state.base import MAX_TTL, StateBackend
from dovetail.state.memory import MemoryState
from dovetail.state.redis import RedisState
from dovetail.state.sqlite import SqliteState
from far_state import FarState
from http_serving import Clock
from replaying import asking_client, is_interim, messages, play, retry
from step_stage import SURE, Effect, call, serving, text_of

SECRET = "the same before and after a restart"
REFUSED = (
    "The step pay was refused: the server has lost its record of what was done in this call. "
    "Look whether it has had its effect before you make this call again, from its beginning"
)


class Shop:
    """A tool that pays once it was asked, or after a second question if the answer is `later`."""

    def __init__(self, state: StateBackend) -> None:
        self.paid = Effect()
        self.server = self.another(state)

    def another(self, state: StateBackend) -> Server:
        """A worker, or the same one after a restart."""
        server = serving(self.tool, secret=SECRET)
        server.engine.state = state
        return server

    async def tool(self, ctx: Context) -> str:
        """Pay."""
        opened = await ctx.step("open", lambda: "opened")
        answer = await ctx.elicit("Sure?", str)
        if answer.data == "never":
            return f"{opened}, nothing paid"
        if answer.data == "later":
            await ctx.elicit("Really?", str)
        return f"{opened}, paid {await ctx.step('pay', self.paid)}"


class Emptied(NamedTuple):
    state: StateBackend
    empty: Callable[[], StateBackend]  # and what the worker uses from then on


@contextlib.asynccontextmanager
async def memory(_folder: Path) -> AsyncIterator[Emptied]:
    yield Emptied(MemoryState(), MemoryState)  # by a restart


@contextlib.asynccontextmanager
async def redis(folder: Path) -> AsyncIterator[Emptied]:
    stores.demand()
    server = stores.StoreServer(folder / "store")
    state = RedisState(server.url)

    def empty() -> StateBackend:
        server.command("FLUSHALL")
        return state

    yield Emptied(state, empty)
    await state.close()
    server.kill()


@contextlib.asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[Emptied]:
    (folder / "store").mkdir()
    made = [SqliteState(folder / "store" / "state.sqlite")]

    def empty() -> StateBackend:
        for file in (folder / "store").iterdir():
            file.unlink()
        made.append(SqliteState(folder / "store" / "state.sqlite"))
        return made[-1]

    yield Emptied(made[0], empty)
    for each in made:
        await each.close()


@pytest.fixture(params=[memory, redis, sqlite], ids=lambda each: each.__name__)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Emptied]:
    async with request.param(tmp_path) as store:
        yield store


@contextlib.asynccontextmanager
async def after(shop: Shop, state: StateBackend) -> AsyncIterator[Client]:
    async with asking_client(shop.another(state)) as client:
        yield client


async def test_a_step_is_not_taken_twice_though_the_store_has_forgotten_the_first_time(
    store: Emptied, caplog: Any
) -> None:
    shop = Shop(store.state)
    async with asking_client(shop.server) as client:
        again = retry(await call(client), SURE)
        assert text_of(await call(client, **again)) == "opened, paid 1"
        assert text_of(await call(client, **again)) == "opened, paid 1"
    async with after(shop, store.empty()) as client:
        refused = await call(client, **again)
        assert (refused["isError"], text_of(refused)) == (True, REFUSED)
        assert text_of(await call(client, **again)) == REFUSED
        assert shop.paid.times == 1
        assert "the step 'pay' was refused" in caplog.text
        assert (await play(client, "tool", SURE)).text == "opened, paid 2"  # a new call


async def test_nor_by_another_way_through_the_same_call(store: Emptied) -> None:
    """What was asked after the store was emptied still belongs to a call that began before."""
    shop = Shop(store.state)
    async with asking_client(shop.server) as client:
        first = await call(client)
        assert text_of(await call(client, **retry(first, SURE))) == "opened, paid 1"
    async with after(shop, store.empty()) as client:
        second = await call(client, **retry(first, {"Sure?": "later"}))
        assert messages(second) == ["Really?"]
        assert text_of(await call(client, **retry(second, SURE))) == REFUSED
    assert shop.paid.times == 1


async def test_rounds_without_a_new_step_go_on(store: Emptied) -> None:
    shop = Shop(store.state)
    async with asking_client(shop.server) as client:
        first = await call(client)
    async with after(shop, store.empty()) as client:
        assert text_of(await call(client, **retry(first, {"Sure?": "never"}))) == "opened, nothing paid"


async def test_a_store_that_is_out_of_reach_while_a_call_asks_costs_no_step() -> None:
    """What was last known of the store is good enough: whether that is still true is seen when the step is claimed."""
    state = FarState()
    shop = Shop(state)
    async with asking_client(shop.server) as client:
        await call(client)
        state.break_down()
        first = await call(client)
        assert is_interim(first)
        state.trouble = None
        assert text_of(await call(client, **retry(first, SURE))) == "opened, paid 1"


async def test_without_any_knowledge_of_the_store_rounds_go_on_and_steps_do_not() -> None:
    state = FarState()
    shop = Shop(state)
    async with asking_client(shop.server) as client:
        state.break_down()
        first = await call(client)
        state.trouble = None
        assert text_of(await call(client, **retry(first, SURE))) == REFUSED
        assert text_of(await call(client, **retry(first, {"Sure?": "never"}))) == "opened, nothing paid"


async def test_what_it_costs() -> None:
    """One look at the store for a call that asks, one for each step in a later round, and none else."""
    state = FarState()
    shop = Shop(state)
    async with asking_client(shop.server) as client:
        await call(client)
        for answer, looks in (("never", 0), ("later", 0), ("yes", 1)):
            state.calls.clear()
            first = await call(client)
            assert dict(state.calls) == {"get": 1}
            state.calls.clear()
            await call(client, **retry(first, {"Sure?": answer}))
            assert state.calls["get"] == looks
            assert state.calls["claim"] == looks


async def test_each_process_renews_the_stores_life() -> None:
    """So that it does not end while calls are open, as long as a process has begun within ten years."""
    clock = Clock()
    state = MemoryState(clock=clock)
    shop = Shop(state)
    for server in (shop.server, shop.another(state)):
        async with asking_client(server) as client:
            assert is_interim(await call(client))
        assert await state.remaining("life") == MAX_TTL
        clock.sleep(MAX_TTL - 1)
