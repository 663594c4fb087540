"""`ctx.step`: once per call, however often its function runs, in one worker or several; and bounds of a call."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import stores
from dovetail import (
    Client,
    Context,
    Elicit,
    ElicitQuestion,
    ElicitUrl,
    InputRequired,
    Request,
    Server,
    ServerError,
    SetupError,
    ToolError,
    UrlElicitationRequired,
)
from dovetail.engine import input_required
from dovetail.state.base import MAX_TTL, NoRoom, StateBackend
from dovetail.state.memory import MemoryState
from dovetail.state.redis import RedisState
from dovetail.state.sqlite import SqliteState
from far_state import FarState
from http_serving import Clock
from replaying import MODERN, asking_client, is_interim, messages, play, retry

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
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    def _outcome(self) -> Any:
        self.times += 1
        outcome = self.outcomes.pop(0) if self.outcomes else self.times
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def sync(self) -> Any:
        return self._outcome()

    async def __call__(self) -> Any:
        assert not self.begun.is_set() or self.go.is_set(), "it was begun a second time"
        self.begun.set()
        await self.go.wait()
        return self._outcome()


def asks_before_and_after(effect: Callable[[], Any]) -> Body:
    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        number = await ctx.step("effect", effect)
        await ctx.elicit("Really?", str)
        return f"{number}"

    return tool


LEGACY = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


# ── once per call ──


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_step_runs_once_in_all_runs_of_a_call_and_again_in_the_next_call(kind: str) -> None:
    effect = Effect()
    async with asking_client(serving(asks_before_and_after(effect if kind == "async" else effect.sync))) as client:
        assert (await play(client, "tool", SURE)).text == "1"
        assert effect.times == 1
        assert (await play(client, "tool", SURE)).text == "2"


async def test_steps_of_the_same_name_are_counted() -> None:
    effect = Effect()

    async def tool(ctx: Context) -> list[int]:
        found = []
        for _ in range(3):
            found.append(await ctx.step("effect", effect))
            await ctx.elicit("Sure?", str)
        return found

    async with asking_client(serving(tool)) as client:
        played = await play(client, "tool", SURE)
        assert (played.result["structuredContent"], effect.times) == ([1, 2, 3], 3)


async def test_names_that_look_alike_are_not_the_same() -> None:
    async def tool(ctx: Context) -> list[int]:
        names = ["a", "a#1", "a#2", "a/b", "ä", "A"]
        found = [await ctx.step(name, lambda n=n: n) for n, name in enumerate(names)]
        await ctx.elicit("Sure?", str)
        return found

    async with asking_client(serving(tool)) as client:
        assert (await play(client, "tool", SURE)).result["structuredContent"] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
@pytest.mark.parametrize("blocking", [False, True])
async def test_a_step_can_not_ask(revision: str, blocking: bool) -> None:
    """For the answer it would have to run again."""
    failures: list[SetupError] = []

    async def effect(ctx: Context) -> str:
        return str((await ctx.elicit("Name?", str)).data)

    async def tool(ctx: Context) -> str:
        try:
            await ctx.step("effect", lambda: effect(ctx))
        except SetupError as failure:
            failures.append(failure)
        return "done"

    def in_thread(ctx: Context) -> str:
        try:
            ctx.wait(ctx.step("effect", lambda: ctx.wait(effect(ctx))))
        except SetupError as failure:
            failures.append(failure)
        return "done"

    server = Server("steps")
    server.add_tool(in_thread if blocking else tool, name="tool")
    async with Client(server, protocol_version=revision, elicitation_handler=lambda _: "Ada") as client:
        assert (await client.call_tool("tool")).text == "done"
    assert str(failures[0]) == "ctx.step('effect'): a step can't ask the client, because it runs once; ask before it"


# ── what is remembered ──


@dataclass
class Order:
    number: int
    tags: tuple[str, ...]


@pytest.mark.parametrize("revision", [*LEGACY, MODERN])
async def test_a_result_is_what_json_makes_of_it_in_every_revision(revision: str) -> None:
    seen: list[Any] = []

    async def tool(ctx: Context) -> str:
        seen.append(await ctx.step("order", lambda: Order(7, ("a", "b"))))
        seen.append(await ctx.step("nothing", lambda: None))
        seen.append(await ctx.step("keys", lambda: {1: 2.0}))
        return "done"

    async with Client(serving(tool), protocol_version=revision) as client:
        await client.call_tool("tool")
    assert seen == [{"number": 7, "tags": ["a", "b"]}, None, {"1": 2.0}]


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_result_that_is_not_json_is_said_in_words(revision: str) -> None:
    failures: list[SetupError] = []

    async def tool(ctx: Context) -> str:
        try:
            await ctx.step("odd", lambda: object())
        except SetupError as failure:
            failures.append(failure)
        return "done"

    async with Client(serving(tool), protocol_version=revision) as client:
        await client.call_tool("tool")
    assert str(failures[0]).startswith("ctx.step('odd'): ")
    assert str(failures[0]).endswith("; it is remembered as JSON, so return what JSON can hold, or None")


@pytest.mark.parametrize("name", ["", "x" * 201, None, 5])
async def test_a_name_that_is_none(name: Any) -> None:
    async def tool(ctx: Context) -> str:
        with pytest.raises(SetupError, match=r"ctx\.step: the name"):
            await ctx.step(name, lambda: 1)
        return "refused"

    async with asking_client(serving(tool)) as client:
        assert text_of(await call(client)) == "refused"


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


async def test_who_waits_for_a_step_that_fails_takes_it_over() -> None:
    effect = Effect(RuntimeError("not yet"))
    effect.go.clear()

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        return f"{await ctx.step('effect', effect)}"

    async with asking_client(serving(tool)) as client:
        again = retry(await call(client), SURE)
        first = asyncio.create_task(call(client, **again))
        await effect.begun.wait()
        second = asyncio.create_task(call(client, **again))
        await asyncio.sleep(0.01)
        effect.go.set()
        assert (await first)["isError"]
        assert text_of(await second) == "2"


# ── cancelled calls, and tasks left behind ──


@pytest.mark.rule("MRTR-12")
async def test_a_step_of_a_cancelled_call_runs_to_its_end_and_the_next_finds_its_result() -> None:
    effect = Effect()
    effect.go.clear()

    async def tool(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        return f"{await ctx.step('effect', effect)}"

    async with asking_client(serving(tool)) as client:
        again = retry(await call(client), SURE)
        first = asyncio.create_task(call(client, **again))
        await effect.begun.wait()
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(call(client, **again))
        await asyncio.sleep(0.01)
        assert not second.done()
        effect.go.set()
        assert text_of(await second) == "1"
    assert effect.times == 1


async def test_a_task_left_behind_begins_no_step_after_the_round() -> None:
    effect = Effect()
    late = asyncio.Event()

    async def tool(ctx: Context) -> str:
        async def later() -> None:
            await late.wait()
            await ctx.step("effect", effect)

        background = asyncio.create_task(later())
        background.add_done_callback(lambda task: task.cancelled() or task.exception())
        await ctx.elicit("Sure?", str)
        await background
        return "done"

    async with asking_client(serving(tool)) as client:
        first = await call(client)
        late.set()
        await asyncio.sleep(0.01)
        assert effect.times == 0
        assert text_of(await call(client, **retry(first, SURE))) == "done"
    assert effect.times == 1


async def test_a_server_that_stops_waits_for_its_steps() -> None:
    effect = Effect()
    effect.go.clear()

    async def tool(ctx: Context) -> str:
        return f"{await ctx.step('effect', effect)}"

    async with asking_client(serving(tool)) as client:
        running = asyncio.create_task(call(client))
        await effect.begun.wait()
        running.cancel()
        asyncio.get_running_loop().call_later(0.05, effect.go.set)
    assert effect.times == 1


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


# ── several workers ──


def two_workers(body: Body, state: MemoryState | None = None) -> tuple[Server, Server]:
    """Two servers that share their secret and their state."""
    servers = serving(body, secret="the same on both workers"), serving(body, secret="the same on both workers")
    servers[1].engine.state = servers[0].engine.state = state or MemoryState()
    return servers


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


class Full(MemoryState):
    """Has room for a claim, and none for a result."""

    async def put(self, *arguments: Any, **options: Any) -> int:
        if options.get("if_version") == 0:
            return await super().put(*arguments, **options)
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


BOTH = pytest.mark.parametrize("revision", ["2025-11-25", MODERN])


def numbered() -> Any:
    """Answers that tell how many there were before."""
    answers: list[str] = []

    def answer(question: Any) -> str:
        answers.append(question.message)
        return f"answer {len(answers)}"

    return answer


@BOTH
async def test_a_resource_that_asks_by_itself_does_not_confuse_the_tool_that_reads_it(revision: str) -> None:
    server, steps = Server("nested"), list[int]()

    @server.resource("note://one")
    async def note(ctx: Context) -> str | InputRequired:
        return "a note" if "key" in ctx.input_responses else InputRequired({"key": Elicit("Key?", str)})

    @server.tool
    async def twice(ctx: Context) -> str:
        first = (await ctx.elicit("Next?", str)).data
        await ctx.step("save", lambda: steps.append(1))
        if revision != MODERN:  # where the answer to a key is only there in one round
            await ctx.read_resource("note://one")
        second = (await ctx.elicit("Next?", str)).data
        await ctx.step("save", lambda: steps.append(2))
        return f"{first}, {second}"

    async with Client(server, protocol_version=revision, elicitation_handler=numbered()) as client:
        text = (await client.call_tool("twice")).text
    assert text == ("answer 1, answer 2" if revision == MODERN else "answer 1, answer 3")
    assert steps == [1, 2]


@BOTH
async def test_a_request_that_a_middleware_makes_again_takes_no_step_twice(revision: str) -> None:
    server, charged = Server("retried"), list[int]()

    @server.tool
    async def pay(ctx: Context) -> str:
        await ctx.step("charge", lambda: charged.append(1))
        if len(charged) == 1 and not runs.append(1) and len(runs) == 1:
            raise ToolError("not yet")
        return (await ctx.elicit("Sure?", str)).data or ""

    runs: list[int] = []

    @server.middleware
    async def again(request: Request, call_next: Any) -> Any:
        result = await call_next(request)
        return await call_next(request) if getattr(result, "is_error", False) else result

    async with Client(server, protocol_version=revision, elicitation_handler=lambda _: "yes") as client:
        assert (await client.call_tool("pay")).text == "yes"
    assert charged == [1]


async def test_a_short_question_at_first_does_not_bound_the_whole_call(monkeypatch: pytest.MonkeyPatch) -> None:
    server, now = Server("slow"), [1_000_000.0]
    monkeypatch.setattr("dovetail.engine.input_required.time.time", lambda: now[0])

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.elicit("Quick?", str, timeout=10)
        return (await ctx.elicit("Long?", str)).data or ""

    async with asking_client(server) as client:
        result = await client.request("tools/call", {"name": "ask"})
        result = await client.request("tools/call", {"name": "ask", **retry(result, {"Quick?": "yes"})})
        now[0] += 3000
        result = await client.request("tools/call", {"name": "ask", **retry(result, {"Long?": "yes"})})
    assert not is_interim(result)


async def test_a_step_that_runs_while_a_page_is_required_runs_once() -> None:
    server, effects = Server("mail"), list[int]()

    async def slowly() -> None:
        await asyncio.sleep(0.02)
        effects.append(1)

    @server.tool
    async def unread(ctx: Context) -> str:
        with suppress(TimeoutError):
            await asyncio.wait_for(ctx.step("slow", slowly), 0.001)
        raise UrlElicitationRequired(ElicitUrl("Sign in", "https://example.com/in"))

    async with asking_client(server) as client:
        played = await play(client, "unread", lambda _: "accept", limit=2)
    assert played.failed
    await asyncio.sleep(0.03)
    assert effects == [1]


YES = {f"Delete {id}?": True for id in "123"}


async def test_a_loop_over_what_its_steps_change_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server, notes = Server("notes"), dict.fromkeys("123")

    @server.tool
    async def tidy(ctx: Context) -> str:
        for id in list(notes):
            if (await ctx.elicit(f"Delete {id}?", bool)).data:
                await ctx.step("delete", lambda id=id: notes.pop(id))  # type: ignore[misc]
        return "tidy"

    async with asking_client(server) as client:
        await play(client, "tidy", YES)
    (told,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "The tool tidy has ended without coming to" in told.getMessage()
    assert "ctx.step" in told.getMessage()


async def test_a_step_that_hangs_does_not_keep_a_round_for_ever() -> None:
    server, hung = Server("slow"), asyncio.Event()

    @server.tool(timeout=0.05)
    async def save(ctx: Context) -> str:
        await asyncio.gather(ctx.elicit("Name?", str), ctx.step("save", hung.wait))
        return "saved"

    async with asking_client(server) as client:
        async with asyncio.timeout(5):
            played = await play(client, "save", {"Name?": "Ada"})
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
    server, now, ran = Server("forks", answer_timeout=100), [time.time()], list[int]()
    monkeypatch.setattr("dovetail.engine.input_required.time.time", lambda: now[0])
    server.engine.state = MemoryState(clock=lambda: now[0])

    @server.tool
    async def pay(ctx: Context) -> str:
        await ctx.elicit("Sure?", str)
        await ctx.step("pay", lambda: ran.append(1))
        return "paid"

    async with asking_client(server) as client:
        fork = await client.request("tools/call", {"name": "pay"})
        assert text_of(await client.request("tools/call", {"name": "pay", **retry(fork, {"Sure?": "yes"})})) == "paid"
        lives = 0
        with suppress(ServerError):  # it has expired
            while lives < 20:
                now[0] += 90
                fork = await client.request("tools/call", {"name": "pay", "requestState": fork["requestState"]})
                again = await client.request("tools/call", {"name": "pay", **retry(fork, {"Sure?": "yes"})})
                assert text_of(again) == "paid"
                lives += 1
    assert (lives, ran) == (4, [1])


@pytest.mark.rule("SA-9")
@pytest.mark.parametrize(("tool", "feature"), [("think", "sampling"), ("look", "roots")])
async def test_what_is_deprecated_is_said(tool: str, feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("dovetail.engine.context.warn_deprecated", told.append)
    server = Server("old")

    @server.tool
    async def think(ctx: Context) -> str:
        return (await ctx.sample("What?")).text

    @server.tool
    async def look(ctx: Context) -> str:
        return str(len(await ctx.list_roots()))

    for revision in ("2025-11-25", "2026-07-28"):
        told.clear()
        handlers: dict[str, Any] = {"sampling_handler": lambda _: "That.", "roots": []}
        async with Client(server, protocol_version=revision, **handlers) as client:
            await client.call_tool(tool)
        assert set(told) == ({feature} if revision == "2026-07-28" else set())


@pytest.mark.rule("EL-19")
async def test_a_page_before_the_call_in_2025_11_25() -> None:
    from_the_form: list[ElicitQuestion] = []
    server = Server("mail")

    @server.tool
    async def unread(ctx: Context) -> str:
        raise UrlElicitationRequired(ElicitUrl("Sign in", "https://example.com/in", elicitation_id="visit"))

    async with Client(server, protocol_version="2025-11-25", elicitation_handler=from_the_form.append) as client:
        with pytest.raises(ServerError) as refused:
            await client.call_tool("unread")
    page = {"mode": "url", "message": "Sign in", "url": "https://example.com/in", "elicitationId": "visit"}
    assert (refused.value.code, refused.value.data) == (-32042, {"elicitations": [page]})
    assert from_the_form == []
