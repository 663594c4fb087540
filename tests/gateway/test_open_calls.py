"""Calls that stay open between rounds: any worker takes the answers, and each call has one run and one outcome."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from dovetail import Client, Context, Elicit, InputRequired, Roots, Server, ToolError
from dovetail.client import ElicitResult
from dovetail.engine.open_calls import OpenCall, open_calls_of
from dovetail.engine.workers import LeaseTimings
from dovetail.errors import MissingCapability, ProtocolError
from dovetail.protocol import revisions
from dovetail.state.base import StoreFull
from http_serving import hosted, serving, settle, until
from http_wire import CAPABILITIES_KEY, HttpExchange, HttpWire, text_of
from remote_state import RemoteState
from server_requests import CAPABILITIES, MODERN, is_input_required, messages, retry
from state_stage import KINDS, Stores, identify, open_stores

Rounds = Sequence[Sequence[str]]
TWO_ROUNDS: Rounds = [["A?"], ["B?"]]
LOST = "The call was lost with the worker that held it; whether it had its effect is not known"
FAILURES: dict[str, Callable[[], Exception]] = {
    "tool": lambda: ToolError("The desk is closed"),
    "protocol": lambda: ProtocolError("No such desk", code=-32603, data={"desk": 7}),
    "other": lambda: KeyError("a detail"),
}


class Gateway:
    """A worker: its tool forwards to a backend, as a proxy does. The backend asks in the middle of the call."""

    def __init__(self, **options: Any) -> None:
        self.server = Server("gateway", version="1.0.0", **options)
        self.engine = self.server.engine
        self.engine.lease_timings = LeaseTimings(lease=3.0, renew_every=0.5)
        self.server.add_tool(self.talk)
        self.go = asyncio.Event()
        self.go.set()
        self.begun = 0
        self.answered = 0  # rounds
        self.effects: list[str] = []
        self.cancelled = 0
        self.states: list[Any] = []
        self.refusals: list[Exception] = []
        self.withdraw = asyncio.Event()  # the questions of a call that ends so

    async def talk(self, rounds: list[list[str]], ctx: Context, end: str = "") -> Any:
        calls, context = open_calls_of(ctx._engine), ctx._context
        if ctx.request_state is None:
            seconds = self.engine.options.answer_timeout
            outcome = await calls.begin(context, lambda ask: self.backend(ask, rounds, end), seconds)
        else:
            outcome = await calls.resume(ctx.request_state, ctx.input_responses, context)
        if isinstance(outcome, InputRequired):
            self.states.append(outcome.state)
            return outcome
        return outcome.decode()

    async def backend(self, ask: OpenCall, rounds: list[list[str]], end: str) -> bytes:
        self.begun += 1
        if end == "withdraw":
            asking = asyncio.create_task(self.answer(ask, "A?"))
            await self.withdraw.wait()
            asking.cancel()
            return b"withdrawn" * (1 << 10)
        answers: list[str] = []
        try:
            for number, together in enumerate(rounds, 1):
                answers += await asyncio.gather(*(self.answer(ask, question) for question in together))
                self.answered += 1
                if ask.context is not None:
                    await Context(self.engine, ask.context).report_progress(number, len(rounds))
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if end:
            raise FAILURES[end]()
        self.effects.append(" ".join(answers))
        return self.effects[-1].encode()

    async def answer(self, ask: OpenCall, message: str) -> str:
        request = Roots() if message == "roots" else Elicit(message, str)
        try:
            result = await ask(request)
        except MissingCapability as refusal:
            self.refusals.append(refusal)
            return "refused"
        read: Any = request.read(result, revisions.BY_NAME[MODERN])
        return read[0].uri if message == "roots" else str(read.data)


class Caller:
    """Makes calls of `talk`, each request at the worker that is given."""

    def __init__(self, user: str | None = "ada", rounds: Rounds = TWO_ROUNDS, **arguments: Any) -> None:
        self._headers: dict[str, str | None] = {"x-user": user} if user else {}
        self._params = {
            "name": "talk",
            "arguments": {"rounds": rounds, **arguments},
            "_meta": {CAPABILITIES_KEY: CAPABILITIES},
        }

    def start(self, app: Any, asked: Any = None, answer: Callable[[str], Any] = str.lower) -> HttpExchange:
        more = {} if asked is None else retry(asked, answer)
        return HttpWire(app, headers=self._headers).start("tools/call", {**self._params, **more})

    async def send(self, app: Any, asked: Any = None, answer: Callable[[str], Any] = str.lower) -> Any:
        """The result, or the error."""
        response = (await self.start(app, asked, answer).done(30)).answer
        return response.get("result") or response["error"]


def text(result: Any) -> str:
    return str(text_of({"result": result}))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    yield from open_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, stores: Stores) -> Any:
    return Remote() if request.param == "memory" else stores.url(request.param)


class Remote(RemoteState):
    """Each `put` fails too while it is down; `names` are the keys that were put."""

    remote = (*RemoteState.remote, "put")

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.longest = 1 << 20  # bytes

    async def put(self, key: str, value: bytes, *, ttl: float, if_version: int | None = None) -> int:
        self.names.add(key)
        if len(value) > self.longest:
            raise StoreFull
        return await super().put(key, value, ttl=ttl, if_version=if_version)


@asynccontextmanager
async def workers(store: Any, *gateways: Gateway) -> AsyncIterator[list[Any]]:
    """Their apps, which share a store."""
    async with AsyncExitStack() as stack:
        apps = [each.server.asgi(state=store, identify=identify) for each in gateways]
        for app in apps:
            await app.start()
            stack.push_async_callback(app.drain, 1)
        yield apps


# ── questions and answers ──


@pytest.mark.parametrize("others", [[0], [1], [1, 2, 0]], ids=["same worker", "other worker", "any worker"])
async def test_the_answers_of_every_round_reach_the_call(store: Any, others: list[int]) -> None:
    rounds, gateways = [["A?"], ["B?", "C?"], ["D?"]], [Gateway() for _ in range(3)]
    async with workers(store, *gateways) as apps:
        caller, asked = Caller(rounds=rounds), []
        result = await caller.send(apps[0])
        for worker in itertools.cycle(others):
            if not is_input_required(result):
                break
            asked.append(messages(result))
            result = await caller.send(apps[worker], result)
    assert (text(result), asked) == ("a? b? c? d?", rounds)
    assert [each.effects for each in gateways] == [["a? b? c? d?"], [], []]


async def test_a_repeated_round_gets_the_outcome_of_the_first(store: Any) -> None:
    gateways = here, _, _ = [Gateway() for _ in range(3)]
    async with workers(store, *gateways) as apps:
        caller = Caller()
        first = await caller.send(apps[0])
        repeats = [(0, "x"), (1, "y"), (1, "z"), (2, "w"), (0, "v")]
        seconds = await asyncio.gather(
            *(caller.send(apps[at], first, lambda _, word=word: word) for at, word in repeats)
        )
        assert [messages(each) for each in seconds] == [["B?"]] * 5
        here.go.clear()
        ends = [caller.start(apps[at], second) for (at, _), second in zip(repeats, seconds, strict=True)]
        here.go.set()
        texts = {text((await each.done()).answer["result"]) for each in ends}
        texts |= {text(await caller.send(app, seconds[0])) for app in apps}  # after the end too
        assert texts == set(here.effects)
        assert len(here.effects) == 1
        assert here.effects[0].split()[0] in "xyzw"
        for app in apps:
            old = await caller.send(app, first)
            assert (old["isError"], "answered already" in text(old)) == (True, True)
    assert sum(each.begun for each in gateways) == 1


async def test_a_question_without_an_answer_is_asked_again(store: Any) -> None:
    async with workers(store, Gateway(), Gateway()) as apps:
        caller = Caller(rounds=[["A?", "B?", "C?"]])
        result = await caller.send(apps[0])
        for app, left in ((apps[1], ["B?", "C?"]), (apps[0], ["C?"])):
            next_left = left[0]
            result = await caller.send(
                app, result, lambda message, next_left=next_left: message if message < next_left else None
            )
            assert messages(result) == left
        assert text(await caller.send(apps[1], result)) == "A? B? c?"


async def test_another_caller_can_not_answer(store: Any) -> None:
    async with workers(store, Gateway(), Gateway()) as apps:
        result = await Caller("ada").send(apps[0])
        for app, caller in itertools.product(apps, (Caller("bob"), Caller(None), Caller("ada", [["A?"]]))):
            assert (await caller.send(app, result))["code"] == -32602
        result = await Caller("ada").send(apps[1], result)
        assert text(await Caller("ada").send(apps[0], result)) == "a? b?"


@pytest.mark.parametrize("end", FAILURES)
async def test_failures_are_the_same_at_every_worker(store: Any, end: str) -> None:
    async with workers(store, Gateway(mask_error_details=True), Gateway(mask_error_details=True)) as apps:
        caller = Caller(rounds=[["A?"]], end=end)
        ends = [await caller.send(app, await caller.send(apps[0])) for app in apps]
    assert ends[0] == ends[1]
    expected = {"tool": "The desk is closed", "protocol": {"desk": 7}, "other": "The call failed unexpectedly"}[end]
    assert str(expected) in str(ends[0])
    assert "a detail" not in str(ends)


@pytest.mark.parametrize("worker", [0, 1])
async def test_a_backend_may_end_the_call_while_its_question_is_out(store: Any, worker: int) -> None:
    here, caller = Gateway(), Caller(end="withdraw")
    async with workers(store, here, Gateway()) as apps:
        asked = await caller.send(apps[0])
        here.withdraw.set()
        await settle()
        assert text(await caller.send(apps[worker], asked)).startswith("withdrawn")


# ── clients ──


@pytest.mark.parametrize("over_http", [False, True])
async def test_clients_answer_by_their_handlers_and_see_the_progress_of_each_round(over_http: bool) -> None:
    gateway, seen = Gateway(), []
    handler = lambda request: ElicitResult("accept", {"value": request.message.lower()})  # noqa: E731
    async with AsyncExitStack() as stack:
        target: Any = gateway.server
        if over_http:
            app = await stack.enter_async_context(serving(gateway.server))
            target = f"{await stack.enter_async_context(hosted(app))}/mcp"
        options: dict[str, Any] = {"protocol_version": MODERN, "elicitation_handler": handler}
        client = await stack.enter_async_context(Client(target, **options))

        async def note(progress: float, *_: Any) -> None:
            seen.append(progress)

        rounds = [["A?", "B?"], ["C?"], []]
        result = await client.call_tool("talk", {"rounds": rounds}, progress_handler=note)
    assert (result.text, gateway.begun) == ("a? b? c?", 1)
    assert sorted(seen) == [1, 2, 3]


async def test_a_call_that_does_not_ask_leaves_nothing_in_the_store() -> None:
    gateway, state = Gateway(), Remote()
    async with serving(gateway.server, state=state) as app:
        assert text(await Caller(rounds=[]).send(app)) == ""
    assert not [name for name in state.names if name.startswith("open-call/")]


async def test_a_client_that_can_not_be_asked_is_not() -> None:
    gateway = Gateway()
    async with Client(gateway.server, protocol_version=MODERN, elicitation_handler=lambda _: {"value": "a"}) as client:
        result = await client.call_tool("talk", {"rounds": [["roots", "A?"]]})
    assert result.text == "refused a"
    assert len(gateway.refusals) == 1


async def test_a_call_can_not_ask_for_ever() -> None:
    gateway = Gateway()
    async with serving(gateway.server, identify=identify) as app:
        caller = Caller(rounds=[["A?"]] * 40)
        result, rounds = await caller.send(app), 0
        while is_input_required(result):
            result, rounds = await caller.send(app, result), rounds + 1
        assert (rounds, "asked 32 times without coming to an end" in text(result)) == (32, True)
        await until(lambda: gateway.cancelled == 1)


# ── ends ──


async def test_the_call_of_a_lost_worker_is_lost_and_not_made_again(store: Any) -> None:
    gateways = lost, other = Gateway(), Gateway()
    lost.go.clear()
    async with workers(store, *gateways) as apps:
        caller = Caller()
        first = [await caller.send(apps[0]) for _ in range(2)]
        second = await caller.send(apps[1], first[0])
        waiting = caller.start(apps[1], second)
        await until(lambda: lost.answered == 2)
        assert lost.engine.lease is not None
        await lost.engine.lease.stop()
        ends = [waiting, caller.start(apps[1], first[1]), caller.start(apps[1], first[0])]  # the last asked before
        for answer in [await each.done() for each in ends]:
            assert (answer.answer["result"]["isError"], text_of(answer.answer)) == (True, LOST)
    assert (lost.begun, other.begun, lost.effects) == (2, 0, [])


async def test_a_call_that_is_not_answered_in_time_is_cancelled(store: Any) -> None:
    gateways = here, _ = Gateway(answer_timeout=0.3), Gateway(answer_timeout=0.3)
    async with workers(store, *gateways) as apps:
        caller = Caller()
        result = await caller.send(apps[0])
        await until(lambda: here.cancelled == 1)
        for app in apps:
            late = str(await caller.send(app, result))
            assert "The request state can't be used" in late or "not open any more" in late
        for gateway in gateways:  # as if the sealed state had not expired too
            calls, context = open_calls_of(gateway.engine), object()
            with pytest.raises(ToolError, match="not open any more: it was answered too late"):
                await calls.resume(here.states[0], {}, context)  # type: ignore[arg-type]
    assert not here.effects


@pytest.mark.parametrize("worker", [0, 1])
async def test_a_client_that_cancels_a_waiting_request_cancels_the_call(store: Any, worker: int) -> None:
    gateways = here, _ = Gateway(), Gateway()
    here.go.clear()
    async with workers(store, *gateways) as apps:
        caller = Caller(rounds=[["A?"]])
        asked = await caller.send(apps[0])
        request = caller.start(apps[worker], asked)
        await until(lambda: here.answered == 1)
        request.leave()
        await until(lambda: here.cancelled == 1)
        for app in apps:
            assert "not open any more" in text(await caller.send(app, asked))
    assert not here.effects


@pytest.mark.parametrize(("first", "second", "leaves"), [(0, 0, 1), (0, 0, 0), (0, 1, 1)])
async def test_a_call_goes_on_while_another_request_waits_for_it(first: int, second: int, leaves: int) -> None:
    """Two bring the same answers; which of them leaves, and where the second came to, does not matter."""
    gateways = here, _ = Gateway(), Gateway()
    here.go.clear()
    async with workers(Remote(), *gateways) as apps:
        caller = Caller(rounds=[["A?"]])
        asked = await caller.send(apps[0])
        requests = [caller.start(apps[first], asked)]
        await until(lambda: here.answered == 1)
        requests.append(caller.start(apps[second], asked))
        await asyncio.gather(*(each.watched.wait() for each in requests))
        await settle()
        requests[leaves].leave()
        await until(lambda: requests[leaves].ended)
        await settle()
        here.go.set()
        assert text((await requests[1 - leaves].done()).answer["result"]) == "a?"
    assert (here.effects, here.cancelled) == (["a?"], 0)


async def test_a_call_ends_when_the_last_request_that_waits_leaves() -> None:
    gateway = Gateway()
    gateway.go.clear()
    async with serving(gateway.server, identify=identify) as app:
        caller = Caller(rounds=[["A?"]])
        asked = await caller.send(app)
        requests = [caller.start(app, asked) for _ in range(3)]
        await asyncio.gather(*(each.watched.wait() for each in requests))
        await settle()
        for request in requests:
            assert not gateway.cancelled
            request.leave()
            await until(lambda request=request: request.ended)
            await settle()
        await until(lambda: gateway.cancelled == 1)


async def test_a_client_that_cancels_the_first_request_cancels_the_call() -> None:
    gateway = Gateway()
    gateway.go.clear()
    async with serving(gateway.server, identify=identify) as app:
        request = Caller(rounds=[]).start(app)
        await until(lambda: gateway.begun == 1)
        request.leave()
        await until(lambda: gateway.cancelled == 1)


async def test_a_server_that_stops_ends_its_open_calls() -> None:
    """`serving` looks that nothing is left of them."""
    gateway, state = Gateway(), Remote()
    async with serving(gateway.server, identify=identify, state=state) as app:
        asked = [await Caller().send(app) for _ in range(3)]
        assert all(map(is_input_required, asked))
    assert (gateway.begun, gateway.cancelled) == (3, 3)


async def test_a_request_that_waits_for_a_server_that_stops_is_told(store: Any) -> None:
    gateways = here, _ = Gateway(), Gateway()
    here.go.clear()
    async with workers(store, *gateways) as apps:
        caller = Caller(rounds=[["A?"]])
        waiting = caller.start(apps[1], await caller.send(apps[0]))
        await until(lambda: here.answered == 1)
        await apps[0].drain(1)
        said = text_of((await waiting.done()).answer)
        assert said in (
            LOST,
            "The call was stopped because the server shuts down; whether it had its effect is not known",
        )
    assert here.cancelled == 1


# ── bounds ──


async def test_open_calls_are_bounded_for_each_caller_and_all() -> None:
    gateway = Gateway()
    async with serving(gateway.server, identify=identify) as app:
        known = [Caller(f"user {number % 5}") for number in range(500)]
        asked = await asyncio.gather(*(caller.send(app) for caller in known))
        assert all(map(is_input_required, asked))
        begun = gateway.begun
        refused = await Caller("user 0").send(app)
        assert "Too many calls wait for answers" in text(refused)
        assert gateway.begun == begun, "the backend was asked"
        for caller, result in zip(known[:5], asked[:5], strict=True):  # one call of each ends
            assert text(await caller.send(app, await caller.send(app, result))) == "a? b?"
        asked = await asyncio.gather(*(Caller(None).send(app) for _ in range(100)))
        assert all(map(is_input_required, asked))
        assert "Too many" in text(await Caller(None).send(app)), "callers that are not known are one"
        known = [Caller(f"user {5 + number // 100}") for number in range(405)]
        assert all(map(is_input_required, await asyncio.gather(*(caller.send(app) for caller in known))))
        assert "Too many" in text(await Caller("user 99").send(app))


async def test_calls_that_ask_at_once_do_not_pass_the_bound() -> None:
    gateway = Gateway()
    async with serving(gateway.server, identify=identify) as app:
        results = await asyncio.gather(*(Caller().send(app) for _ in range(150)))
        assert sum(map(is_input_required, results)) == 100
        assert {text(each)[:14] for each in results if not is_input_required(each)} == {"Too many calls"}


# ── a store that is down ──


async def test_a_store_that_is_down_is_an_error_and_the_call_stays_open() -> None:
    state, gateways = Remote(), (Gateway(), Gateway())
    here, _ = gateways
    async with workers(state, *gateways) as apps:
        caller = Caller()
        first = await caller.send(apps[0])
        state.break_down()
        assert "does not answer now" in (await caller.send(apps[1], first))["message"]
        state.error = None
        second = await caller.send(apps[1], first)
        state.break_down()
        result = await caller.send(apps[0], second)
        state.error = None
        assert text(result) == text(await caller.send(apps[1], second)) == "a? b?", "the end is stored later"
    assert here.begun == 1


async def test_the_worker_of_a_call_needs_no_store() -> None:
    state, gateway = Remote(), Gateway()
    async with workers(state, gateway) as apps:
        caller = Caller(rounds=[["A?"]])
        asked = await caller.send(apps[0])
        state.break_down()
        assert text(await caller.send(apps[0], asked)) == "a?"
        state.error = None
    assert gateway.effects == ["a?"]


async def test_an_outcome_that_the_store_does_not_take_is_told() -> None:
    state, gateway, caller = Remote(), Gateway(), Caller(end="withdraw")
    async with workers(state, gateway, Gateway()) as apps:
        asked = await caller.send(apps[0])
        state.longest = 1 << 10
        gateway.withdraw.set()
        assert "too long to be handed over" in text(await caller.send(apps[1], asked))
