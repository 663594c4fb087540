"""`ctx.step`: once per call, however often its function runs, in one worker or several; and bounds of a call."""

import asyncio
import logging
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from dovetail import Client, Context, Request, Server, ServerError, SetupError, ToolError
from dovetail.engine.context import warn_deprecated
from dovetail.engine.input_required import Steps, store_generation
from dovetail.protocol.request_state import Round
from dovetail.state.base import StateBackend, StoreFull
from dovetail.state.memory import MemoryState
from http_serving import settle
from remote_state import RemoteState
from server_requests import MODERN, asking_client, is_input_required, messages, play, retry

SURE = {"Sure?": "yes", "Really?": "yes", "Name?": "Ada"}
Body = Callable[[Context], Any]


def serving(body: Body, **options: Any) -> Server:
    server = Server("steps", **options)
    server.add_tool(body, name="tool")
    return server


def text_of(result: dict[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


async def call(client: Client, **more: Any) -> dict[str, Any]:
    return await client.request("tools/call", {"name": "tool", **more})


class Effect:
    """A side effect that is counted, and may wait or fail."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)  # of each time; afterwards the number of times
        self.times = 0
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    def sync(self) -> Any:
        self.times += 1
        outcome = self.outcomes.pop(0) if self.outcomes else self.times
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def __call__(self) -> Any:
        assert not self.started.is_set() or self.go.is_set(), "it was begun a second time"
        self.started.set()
        await self.go.wait()
        return self.sync()


def asks_before(effect: Callable[[], Any], *, and_after: bool = False) -> Body:
    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        number = await ctx.step("effect", effect)
        if and_after:
            await ctx.elicit("Really?", str)
        return f"{number}"

    return tool


BOTH = pytest.mark.parametrize("revision", ["2025-11-25", MODERN])


# ── once per call ──


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_step_runs_once_in_all_runs_of_a_call_and_again_in_the_next_call(kind: str) -> None:
    effect = Effect()
    tool = asks_before(effect if kind == "async" else effect.sync, and_after=True)
    async with asking_client(serving(tool)) as client:
        assert (await play(client, "tool", SURE)).text == "1"
        assert effect.times == 1
        assert (await play(client, "tool", SURE)).text == "2"


@BOTH
async def test_a_step_can_not_ask(revision: str) -> None:
    """For the answer it would have to run again."""

    def tool(ctx: Context) -> str:
        async def effect() -> str:
            return str((await ctx.elicit("Name?", str)).data)

        for step in (effect, lambda: ctx.wait(effect())):
            with pytest.raises(SetupError, match=r"ctx\.step\('effect'\): a step can't ask the client"):
                ctx.wait(ctx.step("effect", step))
        return "refused"

    async with Client(serving(tool), protocol_version=revision, elicitation_handler=lambda _: "Ada") as client:
        assert (await client.call_tool("tool")).text == "refused"


# ── what is remembered ──


@dataclass
class Order:
    number: int
    tags: tuple[str, ...]


@BOTH
async def test_a_result_is_what_json_makes_of_it(revision: str) -> None:
    seen: list[Any] = []

    async def tool(ctx: Context) -> str:
        seen.append(await ctx.step("order", lambda: Order(7, ("a", "b"))))
        seen.append(await ctx.step("nothing", lambda: None))
        seen.append(await ctx.step("keys", lambda: {1: 2.0}))
        with pytest.raises(SetupError, match=r"ctx\.step\('odd'\): .* it is remembered as JSON"):
            await ctx.step("odd", object)
        for name in ("", "x" * 201, None, 5):
            with pytest.raises(SetupError, match=r"ctx\.step: the name"):
                await ctx.step(name, lambda: 1)
        return "done"

    async with Client(serving(tool), protocol_version=revision) as client:
        await client.call_tool("tool")
    assert seen == [{"number": 7, "tags": ["a", "b"]}, None, {"1": 2.0}]


# ── failures ──


async def test_a_step_that_raises_is_tried_again() -> None:
    effect = Effect(RuntimeError("not yet"), RuntimeError("not yet"))

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        while True:
            try:
                return f"{await ctx.step('effect', effect)}"
            except RuntimeError:
                await ctx.elicit("Try again?", str)

    async with asking_client(serving(tool)) as client:
        played = await play(client, "tool", lambda _: "yes")
        assert played.rounds == [["Sure?"], ["Try again?"]]  # then the first try is made again, and the next one
        assert (played.text, effect.times) == ("3", 3)


@pytest.mark.rule("MRTR-12")
@pytest.mark.parametrize("fails", [False, True])
async def test_who_waits_for_a_step_finds_its_result_or_takes_it_over_if_it_fails(fails: bool) -> None:
    """A step of a cancelled call runs to its end."""
    effect = Effect(*[RuntimeError("not yet")] * fails)
    effect.go.clear()
    async with asking_client(serving(asks_before(effect))) as client:
        again = retry(await call(client), SURE)
        first = asyncio.create_task(call(client, **again))
        await effect.started.wait()
        if not fails:
            first.cancel()
            await asyncio.wait([first])
        second = asyncio.create_task(call(client, **again))
        await settle()
        assert not second.done()
        effect.go.set()
        assert text_of(await second) == ("2" if fails else "1")
        assert not fails or (await first)["isError"]


async def test_a_server_that_stops_waits_for_its_steps() -> None:
    effect = Effect()
    effect.go.clear()

    async def tool(ctx: Context) -> str:
        return f"{await ctx.step('effect', effect)}"

    async with asking_client(serving(tool)) as client:
        running = asyncio.create_task(call(client))
        await effect.started.wait()
        running.cancel()
        asyncio.get_running_loop().call_later(0.05, effect.go.set)
    assert effect.times == 1


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


# ── several workers ──


async def test_a_step_of_a_dead_worker_is_not_done_a_second_time() -> None:
    effect = Effect()
    effect.go.clear()
    engine = serving(effect.sync).engine
    previous = Round(call="call", generation=await store_generation(engine.state), ends=time.time())
    dead, alive = Steps(engine, {}, previous), Steps(engine, {}, previous, claim_timeout=0.01)
    first = asyncio.create_task(dead.run("send mail", effect, in_thread=False))  # it will never come to its end
    await effect.started.wait()
    with pytest.raises(ToolError, match="The step send mail was begun by an earlier request and has not ended"):
        await alive.run("send mail", effect, in_thread=False)
    effect.go.set()
    assert (await first, effect.times) == (1, 1)


async def test_a_run_may_outlast_its_state_by_hours() -> None:
    effect = Effect()
    engine = serving(effect.sync).engine
    previous = Round(call="call", generation=await store_generation(engine.state), ends=time.time() - 7200)
    assert await Steps(engine, {}, previous).run("send mail", effect, in_thread=False) == 1


class Full(MemoryState):
    """Takes a claim, but is full for a result."""

    async def put(self, *arguments: Any, **options: Any) -> int:
        if options.get("if_version") != 0:
            raise StoreFull("There is no room")
        return await super().put(*arguments, **options)


async def test_a_result_that_can_not_be_kept_is_still_known_to_its_run(caplog: Any) -> None:
    effect = Effect()
    server = serving(asks_before(effect, and_after=True))
    server.engine.state = Full()
    async with asking_client(server) as client:
        assert (await play(client, "tool", SURE)).text == "1"
    assert "the outcome of the step 'effect' can't be stored: There is no room" in caplog.text


class Closed(MemoryState):
    async def claim(self, *arguments: Any, **options: Any) -> bool:
        raise StoreFull


async def test_a_step_that_can_not_be_claimed_is_not_taken() -> None:
    effect = Effect()

    server = serving(asks_before(effect), secret=SECRET)
    async with asking_client(server) as client:
        server.engine.state = Closed()
        first = await call(client)
        assert is_input_required(first)
        with pytest.raises(ServerError, match="try again later"):
            await call(client, **retry(first, SURE))
    assert effect.times == 0


SECRET = "the same before and after a restart"
REFUSED = "The step pay was refused: the server has lost its record"


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


async def test_a_step_is_not_taken_twice_though_the_store_has_forgotten_the_first_time(caplog: Any) -> None:
    shop = Shop(MemoryState())
    async with asking_client(shop.server) as client:
        first = await call(client)
        again = retry(first, SURE)
        assert text_of(await call(client, **again)) == "opened, paid 1"
        assert text_of(await call(client, **again)) == "opened, paid 1"
    async with asking_client(shop.another(MemoryState())) as client:  # after a restart
        refused = await call(client, **again)
        assert (refused["isError"], REFUSED in text_of(refused)) == (True, True)
        assert "the step 'pay' was refused" in caplog.text
        second = await call(client, **retry(first, {"Sure?": "later"}))  # another way through the same call
        assert messages(second) == ["Really?"]
        assert REFUSED in text_of(await call(client, **retry(second, SURE)))
        assert shop.paid.times == 1
        assert (await play(client, "tool", SURE)).text == "opened, paid 2"  # a new call


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_store_that_is_out_of_reach_while_a_call_asks_costs_no_step_if_it_was_known(is_known: bool) -> None:
    """What was last known of the store is good enough: whether that is still true is seen when the step is claimed."""
    state = RemoteState()
    async with asking_client(Shop(state).server) as client:
        if is_known:
            await call(client)
        state.break_down()
        first = await call(client)
        state.error = None
        assert text_of(await call(client, **retry(first, {"Sure?": "never"}))) == "opened, nothing paid"
        assert ("opened, paid 1" if is_known else REFUSED) in text_of(await call(client, **retry(first, SURE)))


async def test_a_loop_over_what_its_steps_change_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    notes = dict.fromkeys("123")

    async def tool(ctx: Context) -> str:
        for id in list(notes):
            if (await ctx.elicit(f"Delete {id}?", bool)).data:
                await ctx.step("delete", lambda id=id: notes.pop(id))  # type: ignore[misc]
        return "tidy"

    async with asking_client(serving(tool)) as client:
        await play(client, "tool", lambda _: True)
    (logged,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "The tool tool has ended without coming to" in logged
    assert "ctx.step" in logged


async def test_a_step_that_hangs_does_not_keep_a_round_for_ever() -> None:
    hung = asyncio.Event()

    async def save(ctx: Context) -> str:
        await asyncio.gather(ctx.elicit("Name?", str), ctx.step("save", hung.wait))
        return "saved"

    async with asking_client(serving(save, timeout=0.05)) as client:
        async with asyncio.timeout(5):
            played = await play(client, "tool", SURE)
        hung.set()
    assert (played.rounds, played.failed) == ([], True)
    assert "did not finish within 0.05 s" in played.text


async def test_what_a_middleware_makes_of_a_request_does_not_matter() -> None:
    """The state belongs to what the client sent, which is what it sends again."""
    server, seen = Server("traced"), list[str]()

    @server.tool
    async def greet(trace: str, ctx: Context) -> str:
        seen.append(trace)
        return f"Hello, {(await ctx.elicit('Name?', str)).data}"

    @server.middleware
    async def trace(request: Request, call_next: Any) -> Any:
        if request.method == "tools/call":
            arguments = msgspec.Raw(b'{"trace":"%d"}' % len(seen))
            request.params = msgspec.structs.replace(request.params, arguments=arguments)
        return await call_next(request)

    async with asking_client(server) as client:
        played = await play(client, "greet", {"Name?": "Ada"}, {"trace": "mine"})
    assert (played.text, seen) == ("Hello, Ada", ["0", "1"])


async def test_no_fork_of_a_call_outlives_the_claims_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that is sent again and again, without answers, does not live for ever."""
    effect, now, lives = Effect(), [time.time()], 0
    monkeypatch.setattr("dovetail.engine.input_required.time.time", lambda: now[0])
    server = serving(asks_before(effect), answer_timeout=100)
    server.engine.state = MemoryState(clock=lambda: now[0])
    async with asking_client(server) as client:
        fork = await call(client)
        assert text_of(await call(client, **retry(fork, SURE))) == "1"
        with suppress(ServerError):  # it has expired
            while lives < 20:
                now[0] += 90
                fork = await call(client, requestState=fork["requestState"])
                assert text_of(await call(client, **retry(fork, SURE))) == "1"
                lives += 1
    assert (lives, effect.times) == (4, 1)


@pytest.mark.rule("SA-9")
@pytest.mark.parametrize(("revision", "times"), [("2025-11-25", 0), ("2026-07-28", 1)])
@pytest.mark.parametrize("feature", ["sampling", "roots"])
async def test_what_is_deprecated_is_said(feature: str, revision: str, times: int) -> None:
    async def old(ctx: Context) -> str:
        return str(await (ctx.sample("What?") if feature == "sampling" else ctx.list_roots()))

    warn_deprecated.cache_clear()
    handlers: dict[str, Any] = {"sampling_handler": lambda _: "That.", "roots": []}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with Client(serving(old), protocol_version=revision, **handlers) as client:
            await client.call_tool("tool")
    assert [feature in str(each.message) for each in caught if each.category is DeprecationWarning] == [True] * times
