"""Loops, steps, numbers and claims at the bounds of what a call of several rounds may do; and who is told of visits."""

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from dovetail import (
    Client,
    Context,
    ElicitQuestion,
    ElicitUrl,
    Request,
    Server,
    ServerError,
    UrlElicitationRequired,
)
from dovetail.engine.client_requests import MAX_VISITS, Elicitations
from dovetail.state.memory import MemoryState
from replaying import asking_client, play, retry

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


async def test_the_same_loop_over_what_a_step_has_read_is_right(caplog: pytest.LogCaptureFixture) -> None:
    server, notes = Server("notes"), dict.fromkeys("123")

    @server.tool
    async def tidy(ctx: Context) -> str:
        for id in await ctx.step("ids", lambda: list(notes)):
            if (await ctx.elicit(f"Delete {id}?", bool)).data:
                await ctx.step(f"delete {id}", lambda id=id: notes.pop(id))  # type: ignore[misc]
        return "tidy"

    async with asking_client(server) as client:
        played = await play(client, "tidy", YES)
    assert (played.text, len(played.rounds), notes) == ("tidy", 3, {})
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


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


class Told:
    """A client that may be told something later."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def pending(self, method: str, timeout: float) -> Any:
        raise NotImplementedError

    async def tell(self, message: bytes) -> None:
        self.messages.append(message)


@pytest.mark.rule("EL-18")
async def test_everybody_who_was_asked_with_an_id_is_told_once() -> None:
    visits, clients = Elicitations(), [Told(), Told(), Told()]
    visits.began("one", "same", clients[0])
    visits.began("two", "other", clients[1])
    visits.began("three", "same", clients[2])
    assert await visits.completed("same") is True
    assert [len(client.messages) for client in clients] == [1, 0, 1]
    assert await visits.completed("same") is False
    visits.left("two")
    assert await visits.completed("other") is False


async def test_nobody_is_forgotten_for_what_others_were_asked() -> None:
    visits, victim, other = Elicitations(), Told(), Told()
    visits.began("victim", "visit", victim)
    for number in range(3 * MAX_VISITS):
        visits.began("other", str(number), other)
    assert await visits.completed("visit") is True
    assert await visits.completed("0") is False
    assert await visits.completed(str(3 * MAX_VISITS - 1)) is True
    visits.left("other")
    assert vars(visits) == vars(Elicitations())


@pytest.mark.parametrize("number", [b"9e307", b"1" * 5000, b"1e999", b"-9e307"])
async def test_numbers_that_nobody_means_cost_nothing(number: bytes) -> None:
    server = Server("sums")

    @server.tool
    async def add(numbers: dict[str, Any], ctx: Context) -> str:
        return str((await ctx.elicit("Sure?", str)).data)

    async with asking_client(server) as client:
        played = await play(client, "add", {"Sure?": "yes"}, {"numbers": {}})
        assert played.text == "yes"
        many = b",".join([number] * (2000 if len(number) < 10 else 5))
        arguments = msgspec.Raw(b'{"numbers":{"x":[%b]}}' % many)
        params = {"name": "add", "arguments": arguments, "requestState": played.states[0]}
        with pytest.raises(ServerError, match="request state can't be used"):
            await client.request("tools/call", params)


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


def text_of(result: dict[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


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


@pytest.mark.rule("SA-8")
@pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates sampling")  # which is told once in a process
async def test_nothing_said_to_a_model_is_kept_for_the_next_question() -> None:
    server, heard = Server("models"), list[Any]()

    @server.tool
    async def think(ctx: Context) -> str:
        await ctx.sample("First")
        return (await ctx.sample("Second")).text

    def answer(request: Any) -> str:
        heard.append([block["text"] for message in request.messages for block in message["content"]])
        return "Yes."

    async with Client(server, sampling_handler=answer) as client:
        await client.call_tool("think")
    assert heard == [["First"], ["Second"]]


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
