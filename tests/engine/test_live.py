"""Asking older clients: what a call that waits for its user keeps from others, and what it does meanwhile."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from asking_stage import answer_to
from dovetail import Client, Context, Elicit, ElicitReply, InputRequired, Server
from dovetail.engine.asking import Elicitations
from dovetail.engine.limits import Limit
from dovetail.engine.live import MAX_AT_ONCE
from dovetail.errors import QuestionFailed
from http_serving import settle
from http_stage import text_of
from replaying import MODERN
from wire import Wire

LEGACY = "2025-11-25"
ANSWER = {"action": "accept", "content": {"value": "Ada"}}


class Users(Wire):
    """A pipe to a server whose questions are answered when the test says so."""

    def __init__(self, server: Server) -> None:
        super().__init__(server, LEGACY, capabilities={"elicitation": {}})
        self.server = server

    def call(self, id: int, name: str = "asks", **arguments: Any) -> None:
        self.send(self.request("tools/call", {"name": name, "arguments": arguments}, id))

    def cancel(self, id: int) -> None:
        self.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})

    async def asked(self, method: str = "elicitation/create") -> dict[str, Any]:
        message: dict[str, Any] = await self.receive()
        assert message.get("method") == method, message
        return message

    def answer(self, question: dict[str, Any]) -> None:
        self.send(answer_to(question, ANSWER))

    async def text(self) -> str:
        return text_of(await self.receive())

    @property
    def limit(self) -> Limit:
        return self.server.engine.limit

    def limit_of(self, tool: str) -> Limit:
        found = self.server.engine.tools.get(tool)
        assert found is not None
        limit = self.server.engine.book.of(found).slots
        assert limit is not None
        return limit


def serving(*, per_tool: int | None = None, **options: Any) -> Server:
    server = Server("live", **options)
    options = {} if per_tool is None else {"max_concurrency": per_tool}

    @server.tool(**options)
    async def asks(ctx: Context, times: int = 1) -> str:
        answers = await asyncio.gather(*(ctx.elicit("Name?", str) for _ in range(times)))
        return " ".join(str(answer.data) for answer in answers)

    @server.tool(**options)
    def asks_in_thread(ctx: Context) -> str:
        return f"{ctx.wait(ctx.elicit('Name?', str)).data}"

    @server.tool
    async def quick() -> str:
        return "quick"

    @server.prompt
    async def greeting(ctx: Context) -> str:
        return f"Hello {(await ctx.elicit('Name?', str)).data}"

    @server.resource("note://one")
    async def note(ctx: Context) -> str:
        return f"Note of {(await ctx.elicit('Name?', str)).data}"

    return server


def blocking(server: Server) -> Callable[[], None]:
    """A tool that holds its slot until the returned function is called."""
    go = asyncio.Event()

    @server.tool
    async def block() -> str:
        await go.wait()
        return "went on"

    return go.set


# ── slots ──


@pytest.mark.parametrize("tool", ["asks", "asks_in_thread"])
@pytest.mark.parametrize("options", [{"max_concurrency": 2}, {"per_tool": 2}], ids=["server", "tool"])
async def test_calls_that_wait_for_their_users_refuse_nobody(tool: str, options: dict[str, int]) -> None:
    async with Users(serving(max_queue=0, **options)) as users:
        questions = []
        for number in range(1, 6):
            users.call(number, tool)
            questions.append(await users.asked())
        assert (await users.ask("tools/call", {"name": "quick"}))["content"][0]["text"] == "quick"
        for question in questions:
            users.answer(question)
        assert [await users.text() for _ in questions] == ["Ada"] * 5
        assert users.limit.running == 0


@pytest.mark.parametrize(
    ("method", "params"), [("prompts/get", {"name": "greeting"}), ("resources/read", {"uri": "note://one"})]
)
async def test_prompts_and_resources_that_wait_hold_no_slot(method: str, params: Any) -> None:
    async with Users(serving(max_concurrency=1, max_queue=0)) as users:
        for number in (1, 2):
            users.send(users.request(method, params, number))
        questions = [await users.asked(), await users.asked()]
        assert users.limit.running == 0
        for question in questions:
            users.answer(question)
        for _ in questions:
            assert "Ada" in str((await users.receive())["result"])
        assert (users.limit.running, users.limit.waiting) == (0, 0)


async def test_the_function_goes_on_when_there_is_a_slot_for_it() -> None:
    server = serving(max_concurrency=1, max_queue=0, per_tool=1)
    go = blocking(server)
    async with Users(server) as users:
        users.call(1)
        question = await users.asked()
        users.call(2, "block")
        await settle()
        users.answer(question)
        await settle()
        assert users.lines.empty()  # neither refused nor served
        assert (users.limit.running, users.limit.waiting, users.limit_of("asks").running) == (1, 1, 1)
        go()
        assert [await users.text(), await users.text()] == ["went on", "Ada"]
        assert (users.limit.running, users.limit_of("asks").running) == (0, 0)


async def test_the_time_of_the_function_stands_still_while_it_waits_for_a_slot() -> None:
    server = serving(max_concurrency=1, timeout=0.1)
    go = asyncio.Event()

    @server.tool(timeout=None)
    async def block() -> str:
        await go.wait()
        return "went on"

    async with Users(server) as users:
        users.call(1)
        question = await users.asked()
        users.call(2, "block")
        await settle()
        users.answer(question)
        await asyncio.sleep(0.2)
        go.set()
        assert [await users.text(), await users.text()] == ["went on", "Ada"]


async def test_the_first_question_gives_the_slots_back_and_the_last_takes_them_again() -> None:
    async with Users(serving(max_concurrency=1, max_queue=0, per_tool=1)) as users:
        users.call(1, times=3)
        questions = [await users.asked() for _ in range(3)]
        for question in questions:
            assert (users.limit.running, users.limit_of("asks").running) == (0, 0)
            users.answer(question)
            await settle()
        assert await users.text() == "Ada Ada Ada"
        assert (users.limit.running, users.limit_of("asks").running) == (0, 0)


async def test_a_question_beside_one_that_waits_for_its_slot() -> None:
    """One part of the function asks anew while another waits to go on."""
    server = serving(max_concurrency=1)
    go = blocking(server)
    ask_again = asyncio.Event()

    @server.tool(max_concurrency=1)
    async def two_parts(ctx: Context) -> str:
        async def again() -> None:
            await ask_again.wait()
            await ctx.elicit("Again?", str)

        await asyncio.gather(ctx.elicit("Name?", str), again())
        return f"{server.engine.limit.running}"

    async with Users(server) as users:
        users.call(1, "two_parts")
        first = await users.asked()
        users.call(2, "block")
        await settle()
        users.answer(first)
        await settle()
        assert (users.limit.waiting, users.limit_of("two_parts").running) == (1, 1)
        ask_again.set()
        second = await users.asked()
        go()
        assert await users.text() == "went on"
        await settle()
        assert (users.limit.running, users.limit.waiting, users.limit_of("two_parts").running) == (0, 0, 0)
        users.answer(second)
        assert await users.text() == "1"
        assert (users.limit.running, users.limit_of("two_parts").running) == (0, 0)


@pytest.mark.parametrize("tool", ["asks", "asks_in_thread"])
async def test_a_call_that_is_cancelled_while_its_client_is_asked(tool: str) -> None:
    async with Users(serving(max_concurrency=1, max_queue=0, per_tool=1)) as users:
        users.call(1, tool)
        await users.asked()
        users.cancel(1)
        await users.asked("notifications/cancelled")
        await settle()
        assert (users.limit.running, users.limit_of(tool).running) == (0, 0)
        users.call(2, tool)
        users.answer(await users.asked())
        assert await users.text() == "Ada"


async def test_a_call_that_is_cancelled_while_it_waits_for_its_slot() -> None:
    server = serving(max_concurrency=1, max_queue=0, per_tool=1)
    go = blocking(server)
    async with Users(server) as users:
        users.call(1)
        question = await users.asked()
        users.call(2, "block")
        await settle()
        users.answer(question)
        await settle()
        users.cancel(1)
        await settle()
        assert (users.limit.running, users.limit.waiting, users.limit_of("asks").running) == (1, 0, 0)
        go()
        assert await users.text() == "went on"
        assert users.limit.running == 0


async def test_a_function_that_waits_no_longer_has_its_slot_at_once() -> None:
    server = serving(max_concurrency=1, max_queue=1)
    go = blocking(server)
    impatient, last = asyncio.Event(), asyncio.Event()

    @server.tool
    async def gives_up(ctx: Context) -> str:
        question = asyncio.create_task(ctx.elicit("Name?", str))
        await impatient.wait()
        question.cancel()
        await asyncio.wait([question])
        await last.wait()
        return "without a name"

    async with Users(server) as users:
        users.call(1, "gives_up")
        await users.asked()
        users.call(2, "block")
        await settle()
        impatient.set()
        await users.asked("notifications/cancelled")
        await settle()
        assert users.limit.running == 2  # for the moment
        users.call(3, "quick")
        go()
        assert await users.text() == "went on"
        await settle()
        assert (users.limit.running, users.limit.waiting) == (1, 1)
        last.set()
        assert {await users.text(), await users.text()} == {"without a name", "quick"}
        assert users.limit.running == 0


@pytest.mark.parametrize("number", [1, MAX_AT_ONCE + 8])
async def test_questions_that_outlive_their_function(number: int) -> None:
    server = serving(max_concurrency=1, max_queue=0)
    left: set[asyncio.Task[Any]] = set()

    @server.tool(max_concurrency=1)
    async def leaves(ctx: Context) -> str:
        left.update(asyncio.create_task(ctx.elicit("Name?", str)) for _ in range(number))
        await asyncio.sleep(0)
        return "left"

    async with Users(server) as users:
        for id in (1, 2):
            users.call(id, "leaves")
            for method in ("elicitation/create", "notifications/cancelled"):
                for _ in range(min(number, MAX_AT_ONCE)):
                    await users.asked(method)
            assert await users.text() == "left"
            outcomes = await asyncio.gather(*left, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {asyncio.CancelledError, QuestionFailed}
            assert (users.limit.running, users.limit_of("leaves").running) == (0, 0)


# ── many at once ──


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_as_many_questions_as_a_function_likes(revision: str) -> None:
    server = serving()
    async with Client(server, protocol_version=revision, elicitation_handler=lambda question: "Ada") as client:
        assert (await client.call_tool("asks", {"times": 150})).text == " ".join(["Ada"] * 150)


async def test_a_client_is_asked_some_of_them_at_a_time() -> None:
    async with Users(serving()) as users:
        users.call(1, times=MAX_AT_ONCE + 2)
        questions = [await users.asked() for _ in range(MAX_AT_ONCE)]
        await settle()
        assert users.lines.empty()
        users.answer(questions.pop())
        questions.append(await users.asked())
        for question in questions:
            users.answer(question)
        users.answer(await users.asked())
        assert await users.text() == " ".join(["Ada"] * (MAX_AT_ONCE + 2))


# ── functions that ask by themselves ──


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_a_step_that_was_begun_is_over_before_the_function_is_called_again(revision: str) -> None:
    server = Server("live")
    done: list[str] = []

    async def slow() -> str:
        await asyncio.sleep(0.1)
        done.append("step")
        return "booked"

    @server.tool
    async def asks_by_itself(ctx: Context) -> Any:
        if not ctx.input_responses:
            try:
                await asyncio.wait_for(ctx.step("s", slow), 0.01)
            except TimeoutError:
                return InputRequired({"name": Elicit("Name?", str)})
        return f"{await ctx.step('s', slow)} {len(done)}"

    async with Client(server, protocol_version=revision, elicitation_handler=lambda question: "Ada") as client:
        assert (await client.call_tool("asks_by_itself")).text == "booked 1"
    assert done == ["step"]


async def test_a_function_that_asks_by_itself_holds_no_slot_meanwhile() -> None:
    server = serving(max_concurrency=1, max_queue=0)

    @server.tool
    async def asks_by_itself(ctx: Context) -> Any:
        if not ctx.input_responses:
            return InputRequired({"a": Elicit("A?", str), "b": Elicit("B?", str)})
        return f"{sorted(ctx.input_responses)} {server.engine.limit.running}"

    async with Users(server) as users:
        users.call(1, "asks_by_itself")
        questions = [await users.asked(), await users.asked()]
        users.call(2, "quick")
        assert await users.text() == "quick"
        for question in questions:
            users.answer(question)
        assert await users.text() == "['a', 'b'] 1"
        assert users.limit.running == 0


# ── what comes back ──


@pytest.mark.parametrize("result", [5, "x", [1], None])
async def test_an_answer_to_a_question_by_hand_is_an_object(result: Any) -> None:
    """As it is in the later era, where others never reach the function."""
    server = Server("by hand")

    @server.tool
    async def greet(ctx: Context) -> str | InputRequired:
        return str(ctx.input_responses) if ctx.input_responses else InputRequired({"name": Elicit("Name?", str)})

    async with Users(server) as users:
        users.call(1, "greet")
        users.send({**answer_to(await users.asked(), {}), "result": result})
        assert await users.text() == "The client's answer to name can't be used: it must be an object"


@pytest.mark.rule("EL-18")
@pytest.mark.parametrize(("action", "told"), [("accept", True), ("decline", False), ("cancel", False), ("what", False)])
async def test_only_who_was_willing_hears_that_a_visit_is_over(action: str, told: bool) -> None:
    server = Server("mail")

    @server.tool
    async def sign_in(ctx: Context) -> str:
        await ctx.elicit_url("Sign in", "https://example.com/in", elicitation_id="visit")
        return "done"

    heard: list[str] = []
    async with Client(
        server,
        protocol_version=LEGACY,
        elicitation_handler=lambda _: ElicitReply(action) if action != "what" else 1 / 0,  # type: ignore[arg-type]
        elicitation_complete_handler=heard.append,
    ) as client:
        await client.call_tool("sign_in", raise_on_error=False)
        assert await server.complete_elicitation("visit") is told
        await client.ping()
    assert heard == (["visit"] if told else [])
    assert vars(server.engine.elicitations) == vars(Elicitations())


def test_a_loop_that_dies_in_mid_call_is_torn_down_quietly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "asyncio")  # which says that the tasks of a dead loop were pending
    begin_and_die()
    gc.collect()
    assert "tool hang failed" not in caplog.text


def begin_and_die() -> None:
    server = Server("dying")

    @server.tool(timeout=30)
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    async def begin() -> None:
        client = Client(server)
        await client.__aenter__()
        call = asyncio.ensure_future(client.call_tool("hang"))
        await asyncio.sleep(0.02)
        assert not call.done()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
