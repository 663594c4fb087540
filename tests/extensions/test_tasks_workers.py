"""Tasks of several workers that share a store: any answers for each; lost workers, outages of the store, drains."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail import Context, ProtocolError, TaskConfig, ToolError
from dovetail.engine.engine import TaskTimings
from dovetail.engine.workers import LeaseTimings
from dovetail.errors import INTERNAL_ERROR
from dovetail.state.base import StoreFull, StoreUnavailable, open_state
from http_serving import PausingState, settle, until
from http_wire import HttpWire
from remote_state import RemoteState
from server_requests import accept, answer_to
from state_stage import Stores, open_stores
from task_stage import CORE, DECLARED, ENDS, LOST, MODERN, TaskClient, TaskStage, connected
from wire import Wire

DOWN = "state store does not answer"


class Store(RemoteState):
    remote = (*RemoteState.remote, "put", "append", "read", "drop")
    uncertain = 0  # puts of tasks that happen although they fail
    full = False  # for tasks
    delay: asyncio.Event | None = None  # for which the next put of a task waits

    def __init__(self) -> None:
        super().__init__()
        self.delayed = asyncio.Event()

    async def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        if self.full and key.startswith("task/"):
            raise StoreFull
        if self.delay is not None and key.startswith("task/") and not self.delayed.is_set():
            self.delayed.set()
            await self.delay.wait()
        version = await super().put(key, value, ttl=ttl, if_version=if_version)
        if self.uncertain and key.startswith("task/"):
            self.uncertain -= 1
            raise StoreUnavailable
        return version


class Fleet:
    """Workers that share a store, each with a client of its own."""

    def __init__(self, store: Any, stages: list[TaskStage], clients: list[TaskClient]) -> None:
        self.store, self.stages, self.clients = store, stages, clients

    async def lose(self, worker: int) -> None:
        """The lease of a worker is gone: the others take it for lost, whatever it goes on to do."""
        await self.stages[worker].server.engine.worker_lease().stop()


@asynccontextmanager
async def fleet(
    size: int = 2, revision: str = MODERN, stage: Any = TaskStage, url: str = "", store: Any = None, **timings: float
) -> AsyncIterator[Fleet]:
    """Workers on one store in memory, or each on a connection of its own to the store of a URL."""
    store = store or Store()
    async with AsyncExitStack() as stack:
        stages, clients = [stage() for _ in range(size)], []
        for each in stages:
            engine = each.server.engine
            engine.state = open_state(url, "stage") if url else store
            stack.push_async_callback(engine.state.close)
            engine.lease_timings = LeaseTimings(lease=30.0, renew_every=0.01)
            engine.task_timings = TaskTimings(**{"poll_every": 0.02, "retry_delay": 0.02, **timings})
            wire = await stack.enter_async_context(Wire(each.server, revision, capabilities=DECLARED))
            engine.worker_lease()
            clients.append(TaskClient(wire, revision))
        await until(lambda: all(each.server.engine.worker_lease().store_error is None for each in stages))
        yield Fleet(store, stages, clients)
        store.error = None


@pytest.mark.rule("TASK-7")
async def test_any_worker_answers_for_a_task_at_once() -> None:
    async with fleet() as workers:
        one, two = workers.clients
        id = await one.begin("greet_both")
        asked = (await two.until(id, "input_required"))["inputRequests"]
        first, second = asked
        await two.ask("tasks/update", taskId=id, inputResponses={first: accept("a")})
        assert list((await one.get(id))["inputRequests"]) == [second]
        await one.ask("tasks/update", taskId=id, inputResponses={second: accept("b")})
        assert await two.text(id) == "a and b"
        other = await one.begin("work")
        await workers.stages[0].entered.wait()
        await two.ask("tasks/cancel", taskId=other)
        assert (await one.get(other))["status"] == "cancelled"
        await until(lambda: workers.stages[0].ended == ["greeted", "cancelled"])


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    yield from open_stores(tmp_path_factory.mktemp("stores"))


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_real_stores_are_as_good(kind: str, stores: Stores) -> None:
    async with fleet(url=stores.url(kind), sweep_every=0.05) as workers:
        one, two = workers.clients
        id, other = await one.begin("greet_both"), await one.begin("work")
        await two.answer(id, One="a", Two="b")
        assert await two.text(id) == await one.text(id) == "a and b"
        cancelled = await one.begin("work")
        await two.ask("tasks/cancel", taskId=cancelled)
        await until(lambda: "cancelled" in workers.stages[0].ended)
        await workers.lose(0)
        await until(lambda: workers.stages[0].ended.count("cancelled") == 2)
        assert (await two.get(other))["statusMessage"] == LOST


async def test_questions_of_a_session_reach_it_at_any_worker() -> None:
    async with fleet(revision=CORE) as workers:
        one, two = workers.clients
        id = await one.begin("greet_both")
        await one.until(id, "input_required")
        two.wire.send(request := two.wire.request("tasks/result", {"taskId": id}))
        for _ in range(2):
            asked = await two.wire.receive()
            two.wire.send(answer_to(asked, accept(asked["params"]["message"])))
        while (answer := await two.wire.receive()).get("id") != request["id"]:
            pass
        assert answer["result"]["content"][0]["text"] == "One? and Two?"


@pytest.mark.parametrize("revision", [CORE, MODERN])
async def test_a_task_dies_with_its_worker_in_one_error_and_nothing_runs_twice(revision: str) -> None:
    async with fleet(3, revision) as workers:
        lost, *others = workers.clients
        id = await lost.begin("work")
        await workers.stages[0].entered.wait()
        assert (await others[0].get(id))["status"] == "working"
        await workers.lose(0)
        tasks = await asyncio.gather(*(each.get(id) for each in others))
        assert {(task["status"], task["statusMessage"]) for task in tasks} == {("failed", LOST)}
        if revision == MODERN:
            assert tasks[0]["error"] == {"code": INTERNAL_ERROR, "message": LOST}
        else:
            assert await others[1].refusal("tasks/result", taskId=id) == (INTERNAL_ERROR, LOST)
        await until(lambda: workers.stages[0].ended == ["cancelled"])  # it hears of it, if it lives after all
        assert [stage.ran for stage in workers.stages] == [["done"], [], []]


async def test_the_outcome_of_a_worker_that_was_taken_for_lost_does_not_count() -> None:
    async with fleet() as workers:
        one, two = workers.clients

        @workers.stages[0].server.tool(task=True)
        async def stubborn() -> str:
            try:
                await workers.stages[0].go.wait()
            except asyncio.CancelledError:
                return "done all the same"
            return "done"

        id = await one.begin("stubborn")
        await settle()
        await workers.lose(0)
        failed = await two.until(id, "failed")
        await settle(50)
        assert await one.get(id) == failed


async def test_a_sweep_ends_tasks_for_which_no_client_asks() -> None:
    async with fleet(sweep_every=0.02) as workers:
        await workers.clients[0].begin("work")
        await workers.stages[0].entered.wait()
        await workers.lose(0)
        await until(lambda: workers.stages[0].ended == ["cancelled"])


async def test_a_sweep_outlasts_a_store_that_has_lost_its_log() -> None:
    async with fleet(sweep_every=1_000.0) as workers:

        async def sweep() -> None:
            await workers.store.delete("task/sweep")  # the claim of the last one
            await workers.stages[1].server.engine.tasks.store.sweep()

        await workers.clients[1].begin("work")
        await sweep()
        await workers.store.drop("task/all")
        await workers.clients[0].begin("work")
        await workers.stages[0].entered.wait()
        await workers.lose(0)
        await sweep()
        await until(lambda: workers.stages[0].ended == ["cancelled"])


async def test_listeners_and_waiting_requests_notice_a_lost_worker() -> None:
    async with fleet(revision=CORE) as workers:
        id = await workers.clients[0].begin("work")
        waiting = asyncio.create_task(workers.clients[1].refusal("tasks/result", taskId=id))
        await settle()
        await workers.lose(0)
        assert await waiting == (INTERNAL_ERROR, LOST)
    async with fleet() as workers:
        one, two = workers.clients
        id = await one.begin("work")
        two.wire.send(two.wire.request("subscriptions/listen", two.params({"notifications": {"taskIds": [id]}})))
        for _ in range(2):
            await two.wire.receive()
        await workers.lose(0)
        assert (await two.wire.receive())["params"]["statusMessage"] == LOST


# ── outages of the store ──


async def test_no_task_begins_while_the_store_is_down() -> None:
    async with fleet(1) as workers:
        (client,), stage = workers.clients, workers.stages[0]
        stage.go.set()
        workers.store.break_down()
        code, message = await client.refusal("tools/call", **client.call_params("work"))
        assert (code, DOWN in message, stage.ran) == (INTERNAL_ERROR, True, [])
        workers.store.error = None
        assert await client.text(await client.begin("work")) == "done"


@pytest.mark.parametrize("after", [0.01, None])
async def test_a_call_that_runs_is_not_lost_and_becomes_a_task_later(after: float | None) -> None:
    async with fleet(1) as workers:
        (client,), stage = workers.clients, workers.stages[0]

        @stage.server.tool(task=TaskConfig(after=after))
        async def later(ctx: Context) -> str:
            stage.entered.set()
            if after is None:
                await ctx.detach("Detached")
            stage.ran.append("later")
            await stage.go.wait()
            return "later"

        for comes_back in (True, False):
            stage.go.clear()
            stage.entered.clear()
            workers.store.break_down()
            call = asyncio.create_task(client.call("later"))
            await stage.entered.wait()
            await asyncio.sleep(0.05)
            assert not call.done()
            if comes_back:
                workers.store.error = None
                made = await call
                stage.go.set()
                assert await client.text(made["taskId"]) == "later"
            else:
                stage.go.set()
                assert (await call)["content"][0]["text"] == "later"
                workers.store.error = None
        assert stage.ran == ["later", "later"]


async def test_a_task_that_is_stored_although_the_store_failed_is_not_the_task_of_the_call() -> None:
    async with fleet(1) as workers:
        (client,), stage = workers.clients, workers.stages[0]
        workers.store.uncertain = 1
        id = await client.begin("soon")
        stage.go.set()
        assert await client.text(id) == "soon"
        workers.store.uncertain = 1
        assert DOWN in (await client.refusal("tools/call", **client.call_params("work")))[1]
        assert stage.ran == ["soon"]


async def test_a_call_whose_detachment_was_given_up_becomes_one_task() -> None:
    async with fleet(1) as workers:
        (client,), stage, store = workers.clients, workers.stages[0], workers.store
        store.delay = asyncio.Event()

        @stage.server.tool(task=TaskConfig(after=None))
        async def impatient(ctx: Context) -> str:
            first = asyncio.create_task(ctx.detach("first"))
            await store.delayed.wait()
            first.cancel()
            asyncio.get_running_loop().call_soon(store.delay.set)
            await ctx.detach("second")
            await stage.go.wait()
            return "done"

        id = await client.begin("impatient")
        await settle()
        assert (await client.get(id))["status"] == "working"
        stage.go.set()
        assert await client.text(id) == "done"


async def test_requests_about_tasks_fail_while_the_store_is_down_and_the_task_goes_on() -> None:
    async with fleet() as workers:
        one, two = workers.clients
        id = await one.begin("greet_both")
        keys = list((await two.until(id, "input_required"))["inputRequests"])
        workers.store.break_down()
        answers = {key: accept(key[-1]) for key in keys}
        for client in (one, two):
            assert DOWN in (await client.refusal("tasks/get", taskId=id))[1]
            assert DOWN in (await client.refusal("tasks/update", taskId=id, inputResponses=answers))[1]
            assert DOWN in (await client.refusal("tasks/cancel", taskId=id))[1]
        workers.store.error = None
        await two.ask("tasks/update", taskId=id, inputResponses=answers)
        assert await one.text(id) == "1 and 2"


async def test_the_end_and_the_questions_of_a_task_outlast_an_outage() -> None:
    async with fleet() as workers:
        one, two = workers.clients
        stage = workers.stages[0]

        @stage.server.tool(task=True)
        async def long_one(ctx: Context) -> str:
            await stage.go.wait()
            answer = await ctx.elicit("Now?", str)
            await ctx.report_progress(1, 2)
            workers.store.break_down()
            stage.ended.append("ended")
            return str(answer.data)

        id = await one.begin("long_one")
        await settle()
        workers.store.break_down()
        stage.go.set()
        await asyncio.sleep(0.05)
        workers.store.error = None
        await two.answer(id, Now="yes")
        await until(lambda: stage.ended == ["ended"])
        await asyncio.sleep(0.05)
        workers.store.error = None
        assert await two.text(id) == "yes"


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("where", ["session", "result"])
async def test_what_a_client_answers_while_the_store_is_down_or_full_is_stored_later(
    where: str, *, is_full: bool
) -> None:
    async with fleet(revision=CORE) as workers:
        one, two = workers.clients
        wire, id, asked = one.wire, "", list[Any]()
        wire.send(wire.request("tools/call", one.call_params("greet_both")))
        while len(asked) < 2:
            message = await wire.receive()
            asked += [message] if message.get("method") == "elicitation/create" else []
            id = message["result"]["task"]["taskId"] if "result" in message else id
        if where == "result":
            wire, asked = two.wire, []
            wire.send(wire.request("tasks/result", {"taskId": id}))
            asked = [await wire.receive() for _ in range(2)]
        if is_full:
            workers.store.full = True
        else:
            workers.store.break_down()
        for each in asked:
            wire.send(answer_to(each, accept("x")))
        await asyncio.sleep(0.05)
        workers.store.error, workers.store.full = None, False
        assert (await one.until(id, *ENDS))["status"] == "completed"
        assert await one.text(id) == "x and x"


async def test_a_question_over_http_outlasts_an_outage() -> None:
    stage, store = TaskStage(), Store()
    stage.server.engine.task_timings = TaskTimings(poll_every=0.02, retry_delay=0.02)

    @stage.server.tool(task=True)
    async def late_question(ctx: Context) -> str:
        await stage.go.wait()
        stage.entered.set()
        return str((await ctx.elicit("Now?", str)).data)

    async with connected(stage, "http", CORE, state=store) as client:
        id = await client.begin("late_question")
        store.break_down()
        stage.go.set()
        await stage.entered.wait()
        await settle()
        store.error = None
        assert (await client.until(id, "input_required", *ENDS))["status"] == "input_required"
        await client.ask("tasks/cancel", taskId=id)


async def test_notifications_that_find_no_store_do_not_end_a_task() -> None:
    stage, store = TaskStage(logging=True), Store()
    stage.server.engine.task_timings = TaskTimings(retry_delay=0.02)

    @stage.server.tool(task=True)
    async def tell(ctx: Context) -> str:
        await stage.go.wait()
        for number in range(30):  # more than are sent at once
            await ctx.report_progress(number, 30)
        await ctx.log("error", "Odd")
        stage.entered.set()
        return "told"

    async with connected(stage, "http", CORE, state=store) as client:
        params = {**client.call_params("tell"), "_meta": {"progressToken": "p"}}
        id = (await client.ask("tools/call", **params))["task"]["taskId"]
        store.break_down()
        stage.go.set()
        try:
            await until(stage.entered.is_set)
        finally:
            store.error = None
        assert await client.text(id) == "told"


async def test_an_answer_whose_wake_up_is_lost_is_taken_all_the_same() -> None:
    async with fleet(sweep_every=0.02) as workers:
        one, two = workers.clients
        id = await one.begin("greet_both")
        keys = list((await two.until(id, "input_required"))["inputRequests"])
        publish = type(workers.store).publish

        async def lost(self: Any, topic: str) -> None:
            raise ProtocolError("lost")

        type(workers.store).publish = lost  # type: ignore[method-assign]
        try:
            answers = {key: accept("x") for key in keys}
            await two.refusal("tasks/update", taskId=id, inputResponses=answers)
        finally:
            type(workers.store).publish = publish  # type: ignore[method-assign]
        assert await one.text(id) == "x and x"


# ── the end of a server ──


async def test_a_drain_waits_for_tasks_within_its_time_and_then_ends_them() -> None:
    for ends_in_time in (True, False):
        stage = TaskStage()
        app = stage.server.asgi()
        await app.start()
        client = TaskClient(HttpWire(app), MODERN)
        id = await client.begin("work")
        await stage.entered.wait()
        draining = asyncio.create_task(app.drain(5 if ends_in_time else 0.02))
        await settle()
        if ends_in_time:
            stage.go.set()
        await draining
        assert stage.ended == ["done" if ends_in_time else "cancelled"]
        async with Wire(stage.server, MODERN, capabilities=DECLARED) as wire:  # the store is still there
            task = await TaskClient(wire, MODERN).get(id)
            assert task["status"] == ("completed" if ends_in_time else "failed")
            assert ends_in_time or task["error"] == {"code": INTERNAL_ERROR, "message": LOST}


@pytest.mark.parametrize("ended_before", [False, True])
async def test_a_drain_waits_for_a_store_that_has_not_stored_the_ends_of_tasks(*, ended_before: bool) -> None:
    stage, store = TaskStage(), Store()
    stage.server.engine.task_timings = TaskTimings(retry_delay=0.02)
    app = stage.server.asgi(state=store)
    await app.start()
    id = await TaskClient(HttpWire(app), MODERN).begin("work")
    await stage.entered.wait()
    store.break_down()
    draining: asyncio.Task[None] | None = None
    for end_begins in (ended_before, not ended_before):
        if end_begins:
            stage.go.set()
            await until(lambda: stage.ended == ["done"])
        else:
            draining = asyncio.create_task(app.drain(5))
        await asyncio.sleep(0.1)
    assert draining is not None
    assert not draining.done()
    store.error = None
    await draining
    async with fleet(store=store) as workers:
        assert await workers.clients[0].text(id) == "done"


async def test_a_server_can_be_started_again_and_its_open_tasks_have_ended() -> None:
    stage = TaskStage()
    for _ in range(2):
        async with Wire(stage.server, MODERN, capabilities=DECLARED) as wire:
            client = TaskClient(wire, MODERN)
            id = await client.begin("work")
            await stage.entered.wait()
        assert stage.ended.pop() == "cancelled"
        async with Wire(stage.server, MODERN, capabilities=DECLARED) as wire:
            assert (await TaskClient(wire, MODERN).get(id))["statusMessage"] == LOST


# ── a model of the states ──

WORKER = st.integers(0, 1)
TASK = st.integers(0, 2)
OPERATION = st.one_of(
    st.tuples(st.just("ask"), TASK, st.integers(1, 3)),
    st.tuples(st.just("say"), TASK, st.sampled_from(["one", "two"])),
    st.tuples(st.just("answer"), TASK, WORKER, st.integers(1, 3)),
    st.tuples(st.just("cancel"), TASK, WORKER),
    st.tuples(st.just("end"), TASK, st.sampled_from(["completed", "tool error", "failed"])),
)


class ModelStage(TaskStage):
    """Its tool does what the test puts into a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: dict[int, asyncio.Queue[tuple[str, Any]]] = {}
        self.server.add_tool(self.obey, task=True)

    async def obey(self, number: int, ctx: Context) -> str:
        queue = self.queues[number] = asyncio.Queue()
        asking: set[asyncio.Task[Any]] = set()
        while True:
            what, how = await queue.get()
            if what == "ask":
                asking |= {asyncio.create_task(ctx.elicit(f"{how} {each}?", str)) for each in range(how)}
            elif what == "say":
                await ctx.detach(how)
            elif how == "completed":
                return "ended"
            else:
                raise ToolError("no") if how == "tool error" else ProtocolError("no")


class Model:
    """What clients are to see of one task."""

    def __init__(self, id: str) -> None:
        self.id, self.status, self.message, self.open = id, "working", "", 0
        self.used = set[str]()

    def fits(self, task: dict[str, Any]) -> bool:
        asked = task.get("inputRequests", {})
        status = self.status if self.status in ENDS or not self.open else "input_required"
        outcome = task.keys() & {"result", "error"}
        expected = {"completed": {"result"}, "failed": {"error"}}.get(status, set())
        said = self.message if status != "failed" else "no"
        return (task["status"], len(asked), outcome, task.get("statusMessage", "")) == (
            status, 0 if status in ENDS else self.open, expected, said,
        )  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(WORKER, min_size=3, max_size=3), st.lists(OPERATION, max_size=14))
def test_every_worker_sees_the_states_of_the_model(owners: list[int], operations: list[tuple[Any, ...]]) -> None:
    asyncio.run(_play(owners, operations))


async def _play(owners: list[int], operations: list[tuple[Any, ...]]) -> None:
    async with fleet(stage=ModelStage) as workers:
        models = [Model(await workers.clients[owner].begin("obey", number=n)) for n, owner in enumerate(owners)]
        queues = workers.stages[0].queues, workers.stages[1].queues  # type: ignore[attr-defined]
        await until(lambda: all(n in queues[owner] for n, owner in enumerate(owners)))
        for what, number, *rest in operations:
            model, is_over = models[number], models[number].status in ENDS
            if what in ("ask", "say", "end"):
                queues[owners[number]][number].put_nowait((what, rest[0]))
            if is_over:
                if what == "cancel":
                    await workers.clients[rest[0]].ask("tasks/cancel", taskId=model.id)
            elif what == "ask":
                model.open += rest[0]
            elif what == "say":
                model.message = rest[0]
            elif what == "end":
                model.status = "failed" if rest[0] == "failed" else "completed"
            elif what == "cancel":
                await workers.clients[rest[0]].ask("tasks/cancel", taskId=model.id)
                model.status = "cancelled"
                assert model.fits(await workers.clients[1 - rest[0]].get(model.id))  # at once, everywhere
            else:
                keys = list((await workers.clients[rest[0]].get(model.id)).get("inputRequests", {}))[: rest[1]]
                assert not model.used & set(keys)  # each key is used once
                model.used |= set(keys)
                model.open -= len(keys)
                answers = {key: accept("x") for key in keys} | {"odd": 5}
                await workers.clients[rest[0]].ask("tasks/update", taskId=model.id, inputResponses=answers)
                assert model.fits(await workers.clients[1 - rest[0]].get(model.id))
            async with asyncio.timeout(5):
                for client in workers.clients:
                    while not model.fits(await client.get(model.id)):  # noqa: ASYNC110
                        await asyncio.sleep(0.001)


async def test_a_call_in_a_thread_may_finish_while_a_server_drains() -> None:
    stage = TaskStage(max_threads=1)
    stage.server.add_tool(stage.block, name="slow", task=TaskConfig(after=60))
    app = stage.server.asgi()
    await app.start()
    wire = HttpWire(app)
    client = TaskClient(wire, MODERN)
    calls = [wire.start("tools/call", client.params({"name": "slow", "arguments": {}})) for _ in range(2)]
    await until(lambda: stage.ran == ["block"])
    draining = asyncio.create_task(app.drain(5))
    await settle()
    stage.thread.set()
    await draining
    for call in calls:
        assert (await call.done()).answer["result"]["content"][0]["text"] == "blocked"


def add_dig(stage: TaskStage, after: float | None) -> None:
    @stage.server.tool(task=TaskConfig(after=after))
    async def dig(ctx: Context) -> str:
        await asyncio.sleep(0)
        if after is None:
            await ctx.detach("Digging")
        return await stage.work(ctx)


@pytest.mark.parametrize("after", [0, 0.0005, None])
async def test_a_call_that_is_cancelled_at_any_moment_is_a_task_or_has_ended(after: float | None) -> None:
    for turns in range(60):
        stage = TaskStage()
        stage.server.engine.state = PausingState()
        add_dig(stage, after)
        async with Wire(stage.server, MODERN, capabilities=DECLARED) as wire:
            client = TaskClient(wire, MODERN)
            wire.send(call := wire.request("tools/call", client.params({"name": "dig", "arguments": {}})))
            for _ in range(turns):
                await asyncio.sleep(0)
            cancelled = {"method": "notifications/cancelled", "params": {"requestId": call["id"]}}
            wire.send({"jsonrpc": "2.0", **cancelled})
            await settle(60)
            runs = stage.server.engine.tasks.runs  # type: ignore[union-attr]
            if not wire.lines.empty():
                id = (await wire.receive())["result"]["taskId"]
                assert (await client.get(id))["status"] == "working"
                assert list(runs) == [id]
            assert stage.ended == ([] if runs or not stage.ran else ["cancelled"])
            stage.go.set()
            await settle(60)
            assert not runs
