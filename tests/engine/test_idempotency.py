"""Calls that may be repeated: a key runs once, in every revision, over every transport and store, and never twice."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import stores
from dovetail import Context, Idempotency, Request, Server, SetupError, ToolError, ToolRegistry
from dovetail.auth import Auth, Principal
from dovetail.engine import idempotency
from dovetail.errors import Busy, ProtocolError
from dovetail.protocol import revisions
from dovetail.state.base import StoreFull
from dovetail.state.memory import MemoryState
from http_serving import Clock, serving, settle, until
from http_wire import HttpWire, open_wire, text_of
from remote_state import RemoteState
from server_requests import CAPABILITIES, MODERN, accept, is_input_required, retry
from wire import Wire

KEY, REPLAY = "dovetail/idempotencyKey", "dovetail/idempotentReplay"
SECRET = "0123456789abcdef" * 2  # as long as a key of an unknown caller has to be
Call = Callable[..., Awaitable[dict[str, Any]]]


class Payments:
    """A tool whose calls are counted, and wait if the test wants it."""

    def __init__(self, **options: Any) -> None:
        self.server = Server("payments", version="1.0.0", **options)
        self.runs: list[int] = []
        self.go = asyncio.Event()
        self.go.set()
        self.server.add_tool(self.pay, idempotency=True)
        self.server.add_tool(self.confirm, idempotency=True)

    async def pay(self, amount: int) -> dict[str, int]:
        self.runs.append(amount)
        await self.go.wait()
        if amount < 0:
            raise ToolError("Nobody pays less than nothing")
        if amount == 0:
            raise ProtocolError("Nothing", data={"amount": 0})
        return {"amount": amount, "run": len(self.runs)}

    async def confirm(self, ctx: Context) -> str:
        answers = [await ctx.elicit(question, str) for question in ("Sure?", "Really?")]
        self.runs.append(1)
        return " ".join(str(answer.data) for answer in answers)


def call(wire: Any, name: str = "pay", key: Any = SECRET, *, meta: bool = True, **arguments: Any) -> Any:
    more = {"_meta": {KEY: key}} if meta else {}
    return wire.exchange(wire.request("tools/call", {"name": name, "arguments": arguments, **more}))


def is_replayed(answer: dict[str, Any]) -> bool:
    return answer["result"].get("_meta", {}).get(REPLAY) is True


class OverHttp:
    """An `HttpWire` with the calls of a `Wire`."""

    def __init__(self, wire: HttpWire) -> None:
        self.wire = wire

    def request(self, method: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return method, params

    async def exchange(self, request: tuple[str, dict[str, Any]]) -> Any:
        return (await self.wire.post(*request)).answer


@asynccontextmanager
async def connected(server: Server, transport: str, revision: str, **options: Any) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        if transport == "stdio":
            yield await stack.enter_async_context(Wire(server, revision, **options))
        else:
            app = await stack.enter_async_context(serving(server))
            yield OverHttp(await open_wire(app, revision))


EACH = [("stdio", name) for name in revisions.BY_NAME] + [("http", name) for name in list(revisions.BY_NAME)[1:]]


@pytest.mark.parametrize(("transport", "revision"), EACH)
async def test_a_key_runs_once(transport: str, revision: str) -> None:
    payments = Payments()
    async with connected(payments.server, transport, revision) as wire:
        payments.go.clear()
        together = [asyncio.create_task(call(wire, amount=5)) for _ in range(3)] if transport == "http" else []
        if together:
            await until(lambda: bool(payments.runs))
            await settle()
        payments.go.set()
        first = [await task for task in together] or [await call(wire, amount=5)]
        later = await call(wire, amount=5)
        texts = {each["result"]["content"][0]["text"] for each in [*first, later]}
        assert texts == {'{"amount":5,"run":1}'}
        assert [is_replayed(each) for each in first].count(False) == 1
        assert is_replayed(later)
        refusal = (await call(wire, amount=6))["error"]
        assert (refusal["code"], "other arguments" in refusal["message"]) == (-32602, True)
        assert payments.runs == [5]
        for key in (SECRET[::-1], SECRET + "x"):
            assert not is_replayed(await call(wire, key=key, amount=5))
        await call(wire, meta=False, amount=5)
        await call(wire, meta=False, amount=5)
        assert payments.runs == [5] * 5  # two other keys, and twice without one


@pytest.mark.parametrize("revision", ["2025-06-18", MODERN])
async def test_failures_of_the_function_are_stored_and_refusals_before_it_are_not(revision: str) -> None:
    payments = Payments(max_concurrency=1, max_queue=0)
    async with Wire(payments.server, revision) as wire:
        for _ in range(2):
            failed = (await call(wire, key="a", amount=-1))["result"]
            assert failed["isError"]
            assert failed["content"][0]["text"] == "Nobody pays less than nothing"
            error = (await call(wire, key="b", amount=0))["error"]
            assert error == {"code": -32603, "message": "Nothing", "data": {"amount": 0}}
        assert payments.runs == [-1, 0]
        assert (await call(wire, key="c", amount="many"))["result"]["isError"]  # no integer
        assert not is_replayed(await call(wire, key="c", amount=3))
        payments.go.clear()
        running = asyncio.create_task(call(wire, key="d", amount=4))
        await until(lambda: payments.runs[-1] == 4)
        wire.send(wire.request("tools/call", {"name": "pay", "arguments": {"amount": 7}, "_meta": {KEY: "e"}}))
        await until(lambda: running.done() or any("busy" in str(each) for each in wire.seen))
        payments.go.set()
        await running
        assert any("busy" in json.dumps(each) for each in wire.seen)
        assert (await call(wire, key="e", amount=7))["result"]["content"][0]["text"] == '{"amount":7,"run":5}'


async def test_a_failure_whose_text_is_no_unicode_is_stored_as_it_was_sent() -> None:
    """It may name a file; if it were not stored, a repeat at another worker would wait for it all day."""
    server = Server("names")

    @server.tool(idempotency=True)
    def fetch() -> str:
        raise ProtocolError("no file a\udc80")

    async with Wire(server, MODERN) as wire:
        assert "no file" in (first := await call(wire, "fetch"))["error"]["message"]
        assert (await call(wire, "fetch"))["error"] == first["error"]


async def test_a_call_that_gets_no_thread_frees_its_key_and_a_function_that_fails_so_does_not() -> None:
    payments, gate, started = Payments(max_threads=2), threading.Event(), threading.Event()
    server, threads, runs = payments.server, payments.server.engine.threads, list[str]()

    @server.tool(idempotency=True)
    def block() -> str:
        started.set()
        return str(gate.wait(60))

    @server.resource("rates://today")
    def rates() -> str:
        return "1.08"

    @server.tool(idempotency=True)
    async def exchange(ctx: Context) -> str:
        runs.append("exchange")
        return str(await ctx.read_resource("rates://today"))

    @server.tool(idempotency=True)
    async def refuse() -> str:
        runs.append("refuse")
        raise Busy("Not today")

    async with Wire(server, MODERN) as wire:
        wire.send(wire.request("tools/call", {"name": "block", "_meta": {KEY: "a"}}, id="x"))
        await until(started.is_set)
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}})
        await until(lambda: threads.stuck == 1)
        assert "is busy" in text_of(await call(wire, "block", "b"))
        gate.set()
        await until(lambda: threads.stuck == 0)
        threads.close()
        assert "shutting down" in (await call(wire, "block", "b"))["error"]["message"]
        failed = [await call(wire, name, "c") for name in ("exchange", "refuse")]
        threads.open()
        assert text_of(await call(wire, "block", "b")) == "True"
        assert [(await call(wire, name, "c"))["error"] for name in runs] == [each["error"] for each in failed]
        assert runs == ["exchange", "refuse"]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("x" * 10_000, "1 to 255 printable"),
        ("", "1 to 255 printable"),
        ("a\nb" * 20, "1 to 255 printable"),
        (17, "1 to 255 printable"),
        (None, "1 to 255 printable"),
        ([SECRET], "1 to 255 printable"),
        (SECRET[1:], "32 characters at least"),
    ],
    ids=["10 KB", "empty", "lines", "number", "null", "list", "short"],
)
async def test_bad_keys_of_unknown_callers_are_refused(key: Any, words: str) -> None:
    payments = Payments()
    payments.server.add_tool(lambda: "ok", name="plain")
    async with serving(payments.server) as app:
        wire = OverHttp(HttpWire(app))
        error = (await call(wire, key=key, amount=1))["error"]
        assert error["code"] == -32602
        assert words in error["message"]
        assert "result" in await call(wire, "plain", key)  # which has no use for it
        assert payments.runs == []


async def test_a_key_may_be_a_header_and_must_not_differ_from_meta() -> None:
    payments = Payments()
    async with serving(payments.server) as app:
        wire, arguments = HttpWire(app), {"amount": 1}
        keys = (SECRET, f'"{SECRET}"')
        texts = [text_of((await wire.call("pay", arguments, headers={"idempotency-key": key})).answer) for key in keys]
        same = await wire.start_call("pay", arguments, meta={KEY: SECRET}, headers={"idempotency-key": SECRET}).done()
        texts.append(text_of(same.answer))
        assert texts == ['{"amount":1,"run":1}'] * 3
        other = await wire.start_call(
            "pay", arguments, meta={KEY: SECRET}, headers={"idempotency-key": "x" * 40}
        ).done()
        assert "different keys" in other.answer["error"]["message"]


# ── rounds of questions ──


async def ask(wire: Wire, key: str = "k", **more: Any) -> dict[str, Any]:
    answer = await wire.exchange(wire.request("tools/call", {"name": "confirm", "_meta": {KEY: key}, **more}))
    return answer.get("result") or answer["error"]


async def test_rounds_are_no_repeats_and_each_can_be_repeated() -> None:
    payments = Payments()
    async with Wire(payments.server, MODERN, capabilities=CAPABILITIES) as wire:
        first = await ask(wire)
        assert is_input_required(first)
        assert await ask(wire) == first  # the same questions, and the same state
        answers = retry(first, {"Sure?": "yes"})
        second = await ask(wire, **answers)
        assert list(second["inputRequests"]) != list(first["inputRequests"])
        assert await ask(wire, **answers) == second == await ask(wire)
        last = retry(second, {"Really?": "indeed"})
        done = await ask(wire, **last)
        assert done["content"][0]["text"] == "yes indeed"
        for repeated in (last, answers, {}):
            replayed = await ask(wire, **repeated)
            assert (replayed["content"], replayed["_meta"][REPLAY]) == (done["content"], True)
        assert payments.runs == [1]
        other = await ask(wire, key="other")
        assert "request state" in (await ask(wire, key="k", **retry(other, {"Sure?": "no"})))["message"]
        assert "request state" in (await ask(wire, key="never seen", **retry(other, {"Sure?": "no"})))["message"]


async def test_a_round_that_is_refused_can_be_made_again() -> None:
    """Its function did not begin, and the answers are still wanted."""
    payments = Payments(max_concurrency=1, max_queue=0)
    async with Wire(payments.server, MODERN, capabilities=CAPABILITIES) as wire:
        first = await ask(wire)
        payments.go.clear()
        running = asyncio.create_task(call(wire, amount=1))
        await until(lambda: bool(payments.runs))
        answers = retry(first, {"Sure?": "yes"})
        wire.send(wire.request("tools/call", {"name": "confirm", "_meta": {KEY: "k"}, **answers}, id="busy"))
        await until(lambda: any("busy" in str(each) for each in wire.seen))
        payments.go.set()
        await running
        assert await ask(wire) == first
        second = await ask(wire, **answers)
        assert (await ask(wire, **retry(second, {"Really?": "indeed"})))["content"][0]["text"] == "yes indeed"


async def test_questions_may_be_answered_after_the_window() -> None:
    """It begins when the call has ended."""
    server, clock = Server("slow", answer_timeout=7 * 86_400), Clock()
    server.engine.state = MemoryState(clock=clock)

    @server.tool(idempotency=Idempotency(window=1))
    async def confirm(ctx: Context) -> str:
        return str((await ctx.elicit("Sure?", str)).data)

    async with Wire(server, MODERN, capabilities=CAPABILITIES) as wire:
        first = await ask(wire)
        clock.sleep(3 * 86_400)
        assert (await ask(wire, **retry(first, {"Sure?": "yes"})))["content"][0]["text"] == "yes"
        clock.sleep(2)
        assert is_input_required(await ask(wire))


async def test_a_live_question_belongs_to_one_call() -> None:
    payments = Payments()
    async with Wire(payments.server, "2025-11-25", capabilities=CAPABILITIES) as wire:
        for id in ("a", "b"):
            wire.send(wire.request("tools/call", {"name": "confirm", "_meta": {KEY: "k"}}, id=id))
        ended: dict[Any, Any] = {}
        while len(ended) < 2:
            message = await wire.receive()
            if "method" in message:
                wire.send({"jsonrpc": "2.0", "id": message["id"], "result": accept("yes")})
            else:
                ended[message["id"]] = message["result"]
        assert ended["a"]["content"] == ended["b"]["content"]
        assert [REPLAY in ended[id].get("_meta", {}) for id in ("a", "b")] == [False, True]
        assert payments.runs == [1]


async def test_questions_that_were_not_answered_in_time_end_the_call() -> None:
    """Their state is good for nothing any more, so giving it again would lead nowhere."""
    payments = Payments(answer_timeout=0.001)
    async with Wire(payments.server, MODERN, capabilities=CAPABILITIES) as wire, asyncio.timeout(10):
        while is_input_required(result := await ask(wire)):
            pass
    assert "was begun and did not end" in result["content"][0]["text"]


# ── calls that do not end as they should ──


async def test_a_window_begins_when_the_call_has_ended() -> None:
    payments, clock = Payments(), Clock()
    payments.server.engine.state = MemoryState(clock=clock)
    async with Wire(payments.server, MODERN) as wire:
        payments.go.clear()
        running = asyncio.create_task(call(wire, key="k", amount=1))
        await until(lambda: bool(payments.runs))
        clock.sleep(86_401)
        wire.send(wire.request("tools/call", {"name": "pay", "arguments": {"amount": 1}, "_meta": {KEY: "k"}}, id="b"))
        await settle()
        payments.go.set()
        await running
        clock.sleep(86_399)
        assert is_replayed(await call(wire, key="k", amount=1))
        assert payments.runs == [1]
        clock.sleep(2)
        assert not is_replayed(await call(wire, key="k", amount=1))


async def test_only_so_many_calls_wait_for_another() -> None:
    payments = Payments(max_concurrency=1, max_queue=1)
    payments.go.clear()
    async with Wire(payments.server, MODERN) as wire:
        for id in "abcd":
            call = {"name": "pay", "arguments": {"amount": 1}, "_meta": {KEY: "k"}}
            wire.send(wire.request("tools/call", call, id=id))
        refused = await wire.receive()
        assert (refused["id"], refused["error"]["data"]) == ("d", {"retryAfter": 1})
        payments.go.set()
        assert {(await wire.receive())["id"] for _ in "abc"} == {"a", "b", "c"}
        assert payments.runs == [1]


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_cancelled_call_has_an_unknown_outcome_and_never_runs_again(revision: str) -> None:
    payments = Payments()
    payments.go.clear()
    async with Wire(payments.server, revision) as wire:
        wire.send(wire.request("tools/call", {"name": "pay", "arguments": {"amount": 1}, "_meta": {KEY: "k"}}, id="x"))
        await until(lambda: bool(payments.runs))
        waiting = asyncio.create_task(call(wire, key="k", amount=1))
        await settle()
        wire.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}})
        payments.go.set()
        for outcome in (await waiting, await call(wire, key="k", amount=1)):
            assert outcome["result"]["isError"]
            assert "may or may not have had its effect" in outcome["result"]["content"][0]["text"]
        assert payments.runs == [1]


async def test_a_call_that_timed_out_has_an_unknown_outcome() -> None:
    """A thread can't be stopped, and still has its effect."""
    server, gate, paid = Server("slow"), threading.Event(), threading.Event()

    @server.tool(idempotency=True, timeout=0.05)
    def pay() -> None:
        gate.wait(60)
        paid.set()

    async with Wire(server, MODERN) as wire:
        assert "did not finish within 0.05 s" in text_of(await call(wire))
        gate.set()
        await until(paid.is_set)
        assert "may or may not have had its effect" in text_of(await call(wire))


async def test_a_lost_connection_does_not_cancel_a_call_with_a_key() -> None:
    """Its client comes again, and wants the result; without a key a disconnect cancels, as the revision says."""
    payments = Payments()
    payments.go.clear()
    async with serving(payments.server, keep_alive=0.05) as app:
        wire = HttpWire(app)
        lost = wire.start_call("pay", {"amount": 1}, meta={KEY: SECRET})
        await lost.watched.wait()
        lost.leave()
        again = wire.start_call("pay", {"amount": 1}, meta={KEY: SECRET})
        waiter = wire.start_call("pay", {"amount": 1}, meta={KEY: SECRET})
        await waiter.watched.wait()
        waiter.leave()  # one that only waits is cancelled
        await waiter.done()
        payments.go.set()
        assert (await again.done()).answer["result"]["structuredContent"] == {"amount": 1, "run": 1}
        await lost.done()
        assert payments.runs == [1]


async def test_a_process_does_not_run_a_repeat_that_only_another_one_knows() -> None:
    """A server with its state in memory was restarted: the first call may have run before."""
    payments, process = Payments(), "dovetail/idempotencyProcess"
    async with Wire(payments.server, MODERN) as wire:
        declared = (await wire.ask("server/discover"))["capabilities"]["experimental"]["dovetail/idempotency"]
        for name, is_run in ((declared["process"], True), ("another", False)):
            call = {"name": "pay", "arguments": {"amount": 1}, "_meta": {KEY: name, process: name}}
            assert (await wire.ask("tools/call", call))["isError"] is not is_run
            assert payments.runs == [1]


FORKED = """
import os
from dovetail import Server

server = Server("forked")
server.add_tool(lambda: 1, name="pay", idempotency=True)
if (child := os.fork()) != 0:
    os.waitpid(child, 0)
print(server.engine.capabilities.experimental["dovetail/idempotency"]["process"], flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_was_forked_has_a_name_of_its_own() -> None:
    """Its memory is its own too: a repeat that comes to another worker must not run there."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=60)
    assert len({*done.stdout.split()}) == 2


async def test_a_result_that_can_not_be_stored_at_once_is_stored_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "STORE_WAIT", 0.01)
    payments, state = Payments(), RemoteState()
    payments.server.engine.state = state
    async with Wire(payments.server, MODERN) as wire:
        payments.go.clear()
        running = asyncio.create_task(call(wire, key="k", amount=1))
        await until(lambda: bool(payments.runs))
        state.break_down()
        payments.go.set()
        first = await running
        assert first["result"]["structuredContent"] == {"amount": 1, "run": 1}
        assert "does not answer" in (await call(wire, key="k", amount=1))["error"]["message"]
        state.error = None
        assert (await call(wire, key="k", amount=1))["result"]["structuredContent"] == {"amount": 1, "run": 1}
        assert payments.runs == [1]


async def test_answers_wait_for_questions_that_are_stored_later(monkeypatch: pytest.MonkeyPatch) -> None:
    server, state, runs = Server("slow"), RemoteState(), list[str]()
    server.engine.state = state
    monkeypatch.setattr(idempotency, "STORE_WAIT", 0.01)

    @server.tool(idempotency=True)
    async def confirm(ctx: Context) -> str:
        if not runs:
            state.break_down()
        runs.append("run")
        return str((await ctx.elicit("Sure?", str)).data)

    async with Wire(server, MODERN, capabilities=CAPABILITIES) as wire, asyncio.timeout(10):
        first = await ask(wire)
        state.error = None
        assert (await ask(wire, **retry(first, {"Sure?": "yes"})))["content"][0]["text"] == "yes"
    assert runs == ["run"] * 2


async def test_a_result_that_is_too_long_is_stored_as_an_error() -> None:
    server, runs = Server("long"), list[int]()

    @server.tool(idempotency=Idempotency(window=60))
    def fetch(size: int) -> str:
        runs.append(size)
        return "x" * size

    async with Wire(server, MODERN) as wire:
        assert len((await call(wire, "fetch", "k", size=2_000_000))["result"]["content"][0]["text"]) == 2_000_000
        again = (await call(wire, "fetch", "k", size=2_000_000))["result"]
        assert again["isError"]
        assert "too long to be stored" in again["content"][0]["text"]
        assert runs == [2_000_000]


async def fill(state: MemoryState) -> None:
    for size in (10_000, 1000, 100, 1):
        with suppress(StoreFull):
            while True:
                await state.put(f"handle/{os.urandom(8).hex()}", b"x" * size, ttl=60)


async def test_an_outcome_needs_no_more_room_than_the_claim() -> None:
    """Others may fill the store while the call runs."""
    payments, state = Payments(), MemoryState(max_entry_bytes=100_000)
    payments.server.engine.state = state
    async with Wire(payments.server, MODERN) as wire:
        payments.go.clear()
        running = asyncio.create_task(call(wire, key="k", amount=1))
        await until(lambda: bool(payments.runs))
        await fill(state)
        payments.go.set()
        assert (await running)["result"]["structuredContent"] == {"amount": 1, "run": 1}
        async with asyncio.timeout(10):
            assert "too long to be stored" in text_of(await call(wire, key="k", amount=1))
        assert payments.runs == [1]


async def test_questions_that_a_full_store_does_not_take_have_an_unknown_outcome() -> None:
    """Also for the answers to them: nobody knows any more which questions were asked."""
    server, state, runs = Server("full"), MemoryState(max_entry_bytes=100_000), list[str]()
    server.engine.state = state

    @server.tool(idempotency=True)
    async def confirm(ctx: Context) -> str:
        await fill(state)
        runs.append("run")
        return str((await ctx.elicit("Sure?", str)).data)

    async with Wire(server, MODERN, capabilities=CAPABILITIES) as wire, asyncio.timeout(10):
        first = await ask(wire)
        assert is_input_required(first)
        for repeated in ({}, retry(first, {"Sure?": "yes"})):
            assert "was begun and did not end" in str(await ask(wire, **repeated))
    assert runs == ["run"]


class FullState(RemoteState):
    """It can be read; `error` is for what is written."""

    remote = ("put",)


async def test_a_full_store_refuses_a_call_before_it_runs() -> None:
    payments, state = Payments(), FullState()
    payments.server.engine.state = state
    async with Wire(payments.server, MODERN) as wire:
        await call(wire, key="a", amount=1)
        state.error = StoreFull
        assert "full" in (await call(wire, key="b", amount=2))["error"]["message"]
        assert is_replayed(await call(wire, key="a", amount=1))
        state.error = None
        assert not is_replayed(await call(wire, key="b", amount=2))
        assert payments.runs == [1, 2]


# ── who gets a stored result ──


PEOPLE = {"ann": Principal(subject="ann", scopes=frozenset({"pay"})), "bob": Principal(subject="bob")}


async def test_a_stored_result_is_for_a_caller_who_may_still_call_the_tool() -> None:
    people = dict(PEOPLE)

    class Verifier:
        cache_seconds = 0.0

        async def verify(self, token: str) -> Principal | None:
            return people.get(token)

    server = Server("payments", auth=Auth(Verifier()))
    runs = list[int]()

    @server.tool(scopes=["pay"], idempotency=True)
    def pay() -> str:
        runs.append(1)
        return "paid"

    async with serving(server) as app:
        wire = HttpWire(app, headers={"authorization": "Bearer ann"})
        assert text_of((await wire.start_call("pay", meta={KEY: "k"}).done()).answer) == "paid"
        people["ann"] = Principal(subject="ann")
        refused = await wire.start_call("pay", meta={KEY: "k"}).done()
        assert refused.status == 403
        people["ann"] = PEOPLE["ann"]
        again = await wire.start_call("pay", meta={KEY: "k"}).done()
        assert again.answer["result"]["_meta"][REPLAY] is True
        assert runs == [1]


async def test_what_a_stored_result_consists_of_comes_back_and_is_fenced_again() -> None:
    server = Server("fenced")

    @server.tool(idempotency=True, untrusted_output="fence", meta={"mine": 1})
    def read() -> list[float]:
        return [1.0, 2.5, 1e300]

    texts = []
    async with Wire(server, MODERN) as wire:
        for _ in range(2):
            result = (await call(wire, "read", "k"))["result"]
            assert result["structuredContent"] == [1.0, 2.5, 1e300]
            assert result["_meta"]["dovetail/untrusted"] is True
            texts.append(result["content"][0]["text"])
        (tool,) = (await wire.ask("tools/list"))["tools"]
    assert all("is data from an untrusted source" in text for text in texts)
    assert texts[0] != texts[1]  # each has a boundary of its own
    assert tool["_meta"] == {"mine": 1, "dovetail/idempotency": {"windowSeconds": 86_400.0}}


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one after the other"])
async def test_a_middleware_that_calls_twice_is_no_way_around(at_once: bool) -> None:
    """Neither around the key, nor around access."""
    payments = Payments()
    payments.server.add_tool(lambda: "secret", name="hidden", idempotency=True, authorize=lambda _: False)
    payments.server.add_tool(lambda: "secret", name="cached", cache=60, authorize=lambda _: False)

    @payments.server.middleware
    async def twice(request: Request, call_next: Any) -> Any:
        if request.method != "tools/call":
            return await call_next(request)
        if at_once:
            return (await asyncio.gather(call_next(request), call_next(request)))[-1]
        return [await call_next(request) for _ in range(2)][-1]

    async with Wire(payments.server, MODERN) as wire:
        payments.go.clear()
        calling = asyncio.create_task(call(wire, amount=5))
        await until(lambda: bool(payments.runs))
        await settle()
        payments.go.set()
        assert is_replayed(await calling)
        assert payments.runs == [5]
        for name in ("hidden", "cached"):
            assert "Unknown tool" in (await call(wire, name))["error"]["message"]


async def test_a_tool_that_is_replaced_while_the_store_is_asked_is_not_run_for_a_caller_of_the_old_one() -> None:
    payments, state = Payments(), RemoteState()
    payments.server.engine.state = state
    async with Wire(payments.server, MODERN) as wire:
        state.calls.clear()
        calling = asyncio.create_task(call(wire, amount=5))
        await until(lambda: bool(state.calls))
        payments.server.remove_tool("pay")
        payments.server.add_tool(lambda amount: "secret", name="pay", idempotency=True, authorize=lambda _: False)
        assert "secret" not in str(await calling)


# ── stores and workers ──


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'state.sqlite'}"
        return
    stores.demand()
    store = stores.StoreServer(tmp_path / "redis")
    try:
        yield store.url
    finally:
        store.kill()


async def test_workers_share_keys(url: str) -> None:
    payments = [Payments(), Payments()]
    async with AsyncExitStack() as stack:
        apps = [each.server.asgi(state=url) for each in payments]
        for app in apps:
            await app.start()
            stack.push_async_callback(app.drain, 1)
        payments[0].go.clear()
        first = HttpWire(apps[0]).start_call("pay", {"amount": 1}, meta={KEY: SECRET})
        await until(lambda: bool(payments[0].runs))
        second = HttpWire(apps[1]).start_call("pay", {"amount": 1}, meta={KEY: SECRET})
        await second.watched.wait()
        payments[0].go.set()
        outcomes = [(await each.done()).answer["result"] for each in (first, second)]
        assert [each["structuredContent"] for each in outcomes] == [{"amount": 1, "run": 1}] * 2
        assert REPLAY in outcomes[1]["_meta"]
        assert (payments[0].runs, payments[1].runs) == ([1], [])


# ── registration ──


@pytest.mark.parametrize("window", [0, -1, float("nan"), float("inf"), True, "a day", None])
def test_a_window_is_a_number_of_seconds(window: Any) -> None:
    with pytest.raises(SetupError, match="window="):
        Idempotency(window=window)


def test_the_option_is_checked_and_a_registry_has_it_too() -> None:
    server, registry = Server("x"), ToolRegistry()
    with pytest.raises(SetupError, match="idempotency='yes' is not possible; it must be True, False or Idempotency"):
        server.add_tool(lambda: 1, name="x", idempotency="yes")  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="no effect to repeat"):
        server.add_tool(lambda: 1, name="x", idempotency=True, cache=60)
    server.add_tool(lambda: 1, name="off", idempotency=False)
    tool = registry.register_tool(
        {
            "name": "x",
            "inputSchema": {"type": "object"},
            "handler": lambda: 1,
            "idempotency": True,
            "maxResultBytes": 1000,
        }
    )
    assert tool.route == Idempotency(window=86_400.0)
    assert server.engine.tools.get("off").route is None  # type: ignore[union-attr]
