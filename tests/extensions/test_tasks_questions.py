"""Questions inside of a task, and listening to tasks, in both eras."""

import asyncio
import json
from typing import Any

import pytest

from dovetail import AnswerTimeout, Context, Elicit, InputRequired, QuestionFailed, UrlElicitationRequired
from dovetail.errors import INVALID_PARAMS, MISSING_CAPABILITY
from dovetail.registry.elicitation import ElicitUrl
from http_serving import serving, until
from http_wire import CAPABILITIES_KEY, HttpWire
from server_requests import CAPABILITIES, accept, answer_to, refusal_of
from state_stage import identify
from task_stage import CORE, MODERN, RELATED, TASKS, TaskClient, TaskStage, connected, over_http

BOTH_WAYS = pytest.mark.parametrize("transport", ["pipe", "http"])
PAGE = "https://bank.example/pay"


def asking_stage(**options: Any) -> TaskStage:
    stage = TaskStage(**options)

    @stage.server.tool(task=True)
    async def same_twice(ctx: Context) -> str:
        answers = [(await ctx.elicit("Again?", str)).data for _ in range(2)]
        return " ".join(map(str, answers))

    @stage.server.tool(task=True)
    async def by_hand(ctx: Context) -> Any:
        number = ctx.request_state or 0
        if number == 2:
            return str(ctx.input_responses["q"]["content"]["value"])
        return InputRequired({"q": Elicit(f"Round {number}?", str)}, state=number + 1)

    @stage.server.tool(task=True)
    async def hurried(ctx: Context) -> str:
        try:
            return str(await ctx.elicit("Quick?", str, timeout=0.02))
        except AnswerTimeout:
            return "too late"

    @stage.server.tool(task=True)
    async def refused(ctx: Context) -> str:
        try:
            return str((await ctx.elicit("Sure?", str)).data)
        except QuestionFailed as failure:
            return str(failure)

    @stage.server.tool(task=True)
    async def pay(ctx: Context) -> str:
        raise UrlElicitationRequired(ElicitUrl("Pay here", PAGE))

    @stage.server.tool(task=True)
    def in_thread(ctx: Context) -> str:
        return str(ctx.wait(ctx.elicit("One?", str)).data)

    @stage.server.tool(task=True)
    async def steps(ctx: Context) -> str:
        await ctx.step("once", lambda: stage.ran.append("step"))
        return str((await ctx.elicit("One?", str)).data)

    return stage


@BOTH_WAYS
@pytest.mark.rule("TASK-12", "TASK-13", "TASK-14", "TASK-15")
async def test_partial_answers_are_seen_at_once_and_unknown_keys_are_ignored(transport: str) -> None:
    stage = asking_stage()
    async with connected(stage, transport, MODERN) as client:
        id = await client.begin("greet_both")
        asked = (await client.until(id, "input_required"))["inputRequests"]
        assert [each["params"]["message"] for each in asked.values()] == ["One?", "Two?"]
        first, second = asked
        for odd in (5, None, "x", [], {"unknown": {"a": 1}}):
            await client.ask("tasks/update", taskId=id, inputResponses={"unknown": odd})
        wrong = {"inputResponses": {first: "text"}}
        assert (await client.refusal("tasks/update", taskId=id, **wrong))[0] == INVALID_PARAMS
        await client.ask("tasks/update", taskId=id, inputResponses={first: accept("a")})
        now = await client.get(id)
        assert (now["status"], list(now["inputRequests"])) == ("input_required", [second])
        await client.ask("tasks/update", taskId=id, inputResponses={first: accept("z"), second: accept("b")})
        assert "inputRequests" not in await client.get(id)
        assert await client.text(id) == "a and b"
        again = await client.begin("same_twice")
        keys = set[str]()
        for answer in "xy":
            task = await client.until(again, "input_required")
            keys |= task["inputRequests"].keys()
            await client.answer(again, Again=answer)
        assert (len(keys), await client.text(again)) == (2, "x y")


@pytest.mark.parametrize(
    ("tool", "answers", "text"),
    [
        ("by_hand", [{"Round 0": "a"}, {"Round 1": "b"}], "b"),
        ("in_thread", [{"One": "t"}], "t"),
        ("steps", [{"One": "s"}], "s"),
        ("hurried", [], "too late"),
    ],
)
async def test_every_way_to_ask(tool: str, answers: list[dict[str, str]], text: str) -> None:
    stage = asking_stage()
    async with connected(stage, "pipe", MODERN) as client:
        id = await client.begin(tool)
        for each in answers:
            await client.answer(id, **each)
        assert await client.text(id) == text
        assert "inputRequests" not in await client.get(id)
        assert stage.ran == (["step"] if tool == "steps" else [])


async def test_a_page_that_the_call_needs_is_a_question_of_the_task() -> None:
    async with connected(asking_stage(), "pipe", MODERN) as client:
        id = await client.begin("pay")
        ((key, asked),) = (await client.until(id, "input_required"))["inputRequests"].items()
        assert asked["params"]["url"] == PAGE
        await client.ask("tasks/update", taskId=id, inputResponses={key: {"action": "accept"}})
        assert "call again afterwards" in await client.text(id)


async def test_a_client_that_can_not_answer_is_not_asked() -> None:
    async with connected(asking_stage(), "pipe", MODERN) as client:
        capabilities = {"extensions": {TASKS: {}}}
        params = {"name": "greet_both", "arguments": {}, "_meta": {CAPABILITIES_KEY: capabilities}}
        made = await client.wire.ask("tools/call", params)
        ended = await client.until(made["taskId"], "failed")
        assert ended["error"]["code"] == MISSING_CAPABILITY


async def test_slots_are_free_and_time_stands_still_while_a_client_is_asked() -> None:
    stage = asking_stage(max_concurrency=1)
    stage.go.set()
    async with connected(stage, "pipe", MODERN) as client:
        id = await client.begin("greet_both")
        await client.until(id, "input_required")
        assert await client.text(await client.begin("work")) == "done"
        await client.answer(id, One="1", Two="2")
        assert await client.text(id) == "1 and 2"


async def test_cancelling_takes_the_questions_away() -> None:
    stage = asking_stage()
    async with connected(stage, "pipe", MODERN) as client:
        id = await client.begin("greet_both")
        ((key, _), _) = (await client.until(id, "input_required"))["inputRequests"].items()
        await client.ask("tasks/cancel", taskId=id)
        await client.ask("tasks/update", taskId=id, inputResponses={key: accept("late")})
        task = await client.get(id)
        assert task["status"] == "cancelled"
        assert "inputRequests" not in task
    assert stage.ended == []


# ── 2025-11-25: requests with related-task, while `tasks/result` waits ──


class Asked:
    """A `tasks/result` that waits, and the requests that come with it."""

    def __init__(self, client: TaskClient, id: str) -> None:
        self.client, self.wire = client, client.wire
        params = {"taskId": id}
        if isinstance(self.wire, HttpWire):
            self.post = self.wire.start("tasks/result", params)
        else:
            self.request = self.wire.request("tasks/result", params)
            self.wire.send(self.request)

    async def message(self, *methods: str) -> Any:
        while True:
            message = await (self.post.message() if isinstance(self.wire, HttpWire) else self.wire.receive())
            if not methods and "method" not in message:
                return message
            if message.get("method") in methods:
                return message

    async def say(self, message: Any) -> None:
        if isinstance(self.wire, HttpWire):
            answer = await self.wire.raw("POST", json.dumps(message).encode()).done()
            assert answer.status == 202
        else:
            self.wire.send(message)


@BOTH_WAYS
@pytest.mark.rule("TASK-54", "TASK-55")
async def test_questions_come_as_requests_while_the_result_is_waited_for(transport: str) -> None:
    stage = asking_stage()
    async with connected(stage, transport, CORE) as client:
        id = await client.begin("greet_both")
        await client.until(id, "input_required")
        waiting = Asked(client, id)
        asked = [await waiting.message("elicitation/create") for _ in range(2)]
        assert [each["params"]["_meta"][RELATED] for each in asked] == [{"taskId": id}] * 2
        for each in sorted(asked, key=lambda each: str(each["params"]["message"])):
            await waiting.say(answer_to(each, accept(each["params"]["message"])))
        answer = await waiting.message()
        assert answer["result"]["content"][0]["text"] == "One? and Two?"
        assert answer["result"]["_meta"][RELATED] == {"taskId": id}


@BOTH_WAYS
async def test_what_a_client_can_not_answer_fails_in_the_function(transport: str) -> None:
    async with connected(asking_stage(), transport, CORE) as client:
        id = await client.begin("refused")
        await client.until(id, "input_required")
        waiting = Asked(client, id)
        await waiting.say(refusal_of(await waiting.message("elicitation/create"), -32000, "nobody is here"))
        text = (await waiting.message())["result"]["content"][0]["text"]
        assert text == "The client could not answer elicitation/create: nobody is here"


async def test_a_second_request_for_the_result_is_asked_too_and_the_first_answer_counts() -> None:
    async with connected(asking_stage(), "pipe", CORE) as client:
        id = await client.begin("refused")
        await client.until(id, "input_required")
        first = Asked(client, id)
        one = await first.message("elicitation/create")
        second = Asked(client, id)
        two = await second.message("elicitation/create")
        await second.say(answer_to(two, accept("second")))
        cancelled = await first.message("notifications/cancelled")
        assert cancelled["params"]["requestId"] == one["id"]
        texts = [(await first.message())["result"]["content"][0]["text"] for _ in range(2)]
        assert texts == ["second", "second"]


@pytest.mark.rule("TASK-60")
async def test_whoever_waits_for_a_cancelled_task_is_told() -> None:
    async with connected(asking_stage(), "pipe", CORE) as client:
        id = await client.begin("work")
        waiting = Asked(client, id)
        await client.ask("tasks/cancel", taskId=id)
        answer = next((each for each in client.wire.seen if each.get("id") == waiting.request["id"]), None)
        assert (answer or await waiting.message())["error"]["code"] == INVALID_PARAMS


# ── listening ──


@BOTH_WAYS
@pytest.mark.rule("TASK-21", "TASK-22")
async def test_a_listen_gets_the_whole_state_at_once_and_on_every_change(transport: str) -> None:
    stage = asking_stage()
    async with connected(stage, transport, MODERN) as client:
        ids = [await client.begin("greet_both"), await client.begin("fail")]
        await client.until(ids[0], "input_required")
        await client.until(ids[1], "completed")
        params = client.params({"notifications": {"taskIds": [*ids, "unknown", ids[0]]}})
        undeclared = {"notifications": {"taskIds": ids}, "_meta": {CAPABILITIES_KEY: CAPABILITIES}}
        if isinstance(client.wire, HttpWire):
            refused = (await client.wire.post("subscriptions/listen", undeclared)).answer
            listen = client.wire.start("subscriptions/listen", params, id="L")
            message = listen.message
        else:
            refused = await client.wire.exchange(client.wire.request("subscriptions/listen", undeclared))
            client.wire.send(client.wire.request("subscriptions/listen", params, id="L"))
            message = client.wire.receive
        assert refused["error"]["code"] == MISSING_CAPABILITY
        acknowledged = await message()
        assert acknowledged["params"]["notifications"] == {"taskIds": ids}
        states = [(await message())["params"] for _ in range(2)]
        assert {state["taskId"]: state["status"] for state in states} == {ids[0]: "input_required", ids[1]: "completed"}
        assert all(state["_meta"]["io.modelcontextprotocol/subscriptionId"] == "L" for state in states)
        asked = next(state["inputRequests"] for state in states if state["taskId"] == ids[0])
        answers = {key: accept("x") for key in asked}
        updating = asyncio.create_task(client.ask("tasks/update", taskId=ids[0], inputResponses=answers))
        seen = []
        while "completed" not in seen:
            said = await message()
            if said.get("method") == "notifications/tasks":
                seen.append(said["params"]["status"])
        if isinstance(client.wire, HttpWire):
            await updating
            listen.leave()
        else:
            updating.cancel()
        assert set(seen) <= {"working", "completed"}


async def test_a_listen_is_not_for_the_tasks_of_others() -> None:
    stage = asking_stage()
    async with serving(stage.server, identify=identify) as app:
        ada, bob = (TaskClient(HttpWire(app, headers={"x-user": name}), MODERN) for name in ("ada", "bob"))
        id = await ada.begin("fail")
        listen = bob.wire.start("subscriptions/listen", bob.params({"notifications": {"taskIds": [id]}}))
        assert (await listen.message())["params"]["notifications"] == {}
        listen.leave()


async def test_a_session_is_notified_of_states() -> None:
    stage = asking_stage()
    async with serving(stage.server) as app:
        client = TaskClient(await over_http(app, CORE), CORE)
        stream = client.wire.get()
        await stream.started()
        id = await client.begin("work")
        stage.go.set()
        said = await stream.message()
        assert (said["method"], said["params"]["taskId"]) == ("notifications/tasks/status", id)
        assert said["params"]["status"] == "completed"
        stream.leave()
        await until(lambda: stream.ended)
