"""Tasks of a client, in both forms of the protocol: polling, questions, results, cancelling."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import pytest
from scripted import (
    DISCOVERED,
    MODERN,
    Scripted,
    ScriptedRequest,
    brisk_client,
    elicitation,
    error,
    sampling,
    served,
    text,
    until,
)
from task_server import ACK, CORE, DONE, TASKS, TIMES, WORKING, TaskServer, asking

from dovetail import Client, Context, Proxy, Server, TaskConfig
from dovetail.client import TaskUpdate, ToolTask
from dovetail.errors import (
    BadResponse,
    MissingCapability,
    ProtocolError,
    ServerError,
    SetupError,
    TaskCancelled,
    ToolError,
)

pytestmark = pytest.mark.usefixtures("tidy")
both_forms = pytest.mark.parametrize("revision", [CORE, MODERN])


def client_of(server: TaskServer, **options: Any) -> Client:
    return Client(server, **{"protocol_version": server.revision, "tasks": True, **options})


@pytest.mark.rule("TASK-1", "TASK-11")
@both_forms
async def test_a_call_waits_for_its_task(revision: str) -> None:
    server = TaskServer(revision, WORKING, {"status": "working", "message": "half"}, DONE)
    async with client_of(server) as client:
        outcome = await client.call_tool("render", {"scene": "beach"})
        assert (outcome.text, outcome.is_error) == ("done", False)
    (call,) = server.calls("tools/call")
    assert call.get("task") == ({} if server.is_core else None)
    assert len(server.calls("tasks/get")) == 3, "the first state in which it has ended is final"
    for method in ("tools/call", "tasks/get"):
        declared = server.calls(method)[0].get("_meta", {}).get("io.modelcontextprotocol/clientCapabilities", {})
        assert declared.get("extensions") == (None if server.is_core else {TASKS: {}})


@both_forms
async def test_a_handle(revision: str) -> None:
    server = TaskServer(revision, WORKING, {"status": "working", "message": "half"}, DONE)
    async with client_of(server) as client:
        task = await client.start_tool("render")
        assert (task.id, task.status, task.message, task.is_ended) == ("t1", "working", None, False)
        seen = [update async for update in task]
        assert seen == [TaskUpdate("working"), TaskUpdate("working", "half"), TaskUpdate("completed")]
        assert (await task.wait()).text == (await task.wait()).text == "done"
        await task.cancel()  # it has ended
        assert "completed" in repr(task)
    assert (await task.wait()).text == "done", "what is known needs no connection"
    assert not server.calls("tasks/cancel")


@both_forms
async def test_a_task_is_taken_up_again(revision: str) -> None:
    server = TaskServer(revision, {"status": "working", "message": "half"}, DONE)
    async with client_of(server) as client:
        task = client.task("t1")
        assert task.status is None
        await task.refresh()
        assert (task.status, task.message) == ("working", "half")
        outcomes = await asyncio.gather(task.wait(), task.wait())
        assert [each.text for each in outcomes] == ["done", "done"]
        with pytest.raises(ServerError, match="Unknown task"):
            await client.task("t2").wait()
    assert len(server.calls("tasks/get")) == 3, "those who wait share the polls"


@both_forms
async def test_a_server_may_answer_at_once(revision: str) -> None:
    server = TaskServer(revision, DONE)
    server.call_result = text("quick")
    async with client_of(server) as client:
        assert (await client.call_tool("render")).text == "quick"
        task = await client.start_tool("render")
        assert (task.id, task.status, (await task.wait()).text) == (None, "completed", "quick")
        assert [update.status async for update in task] == ["completed"]
        await task.refresh()
    assert not server.calls("tasks/get")


async def test_only_tools_with_tasks_are_asked_for_one() -> None:
    server = TaskServer(CORE, DONE, support="forbidden")
    server.call_result = text("quick")
    async with client_of(server) as client:
        assert (await (await client.start_tool("render")).wait()).text == "quick"
    assert "task" not in server.calls("tools/call")[0]


# ── how it ends ──


@pytest.mark.rule("TASK-19", "TASK-56")
@both_forms
async def test_how_a_task_fails(revision: str) -> None:
    broken = {"status": "failed", "message": "no disk", "error": {"code": -32603, "message": "It broke"}}
    async with client_of(TaskServer(revision, broken)) as client:
        with pytest.raises(ServerError, match="It broke") as caught:
            await client.call_tool("render", raise_on_error=False)
        assert caught.value.code == -32603
    said = {"status": "failed" if revision == CORE else "completed", "result": {**text("no beach"), "isError": True}}
    server = TaskServer(revision, said)
    async with client_of(server) as client:
        with pytest.raises(ToolError, match="no beach"):
            await client.call_tool("render")
        task = await client.start_tool("render")
        assert (await task.wait(raise_on_error=False)).is_error
        with pytest.raises(ToolError, match="no beach"):
            await task.wait()
    assert not server.calls("tasks/cancel")


@pytest.mark.rule("TASK-16", "TASK-57")
@both_forms
async def test_a_task_is_cancelled(revision: str) -> None:
    server = TaskServer(revision, WORKING)
    async with client_of(server) as client:
        task = await client.start_tool("render")
        waiting = asyncio.create_task(task.wait())
        await until(lambda: server.polled_at)
        await task.cancel()
        with pytest.raises(TaskCancelled, match="as you wish"):
            await waiting
        assert task.status == "cancelled"


async def test_a_task_that_ends_while_it_is_cancelled_has_ended() -> None:
    server = TaskServer(CORE, WORKING)
    async with client_of(server) as client:
        task = await client.start_tool("render")
        server.on_tasks_cancel = lambda message: None  # type: ignore[method-assign]
        cancelling = asyncio.create_task(task.cancel())
        await until(lambda: "tasks/cancel" in server.methods())
        server.states = [DONE]
        assert (await task.wait()).text == "done"
        (request,) = (message for message in server.sent if message.get("method") == "tasks/cancel")
        server.say({"jsonrpc": "2.0", "id": request["id"], "result": server.task(WORKING)})
        await cancelling
        assert task.status == "completed"


@both_forms
async def test_a_cancelled_caller(revision: str) -> None:
    """The task of `call_tool` is cancelled, by `tasks/cancel`; that of a handle goes on."""
    server = TaskServer(revision, WORKING)
    async with client_of(server) as client:
        handle = await client.start_tool("render")
        waiting = asyncio.create_task(handle.wait())
        await until(lambda: server.polled_at)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not server.calls("tasks/cancel")
        calling = asyncio.create_task(client.call_tool("render"))
        polls = len(server.polled_at)
        await until(lambda: len(server.polled_at) > polls)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    assert len(server.calls("tasks/cancel")) == 1
    assert "notifications/cancelled" not in server.methods()


async def test_who_waits_while_another_one_gives_up() -> None:
    server = TaskServer(MODERN, asking())
    asked, stopping, may_stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def elicit(question: Any) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopping.set()
            await may_stop.wait()

    async with client_of(server, elicitation_handler=elicit) as client:
        task = await client.start_tool("render")
        first = asyncio.create_task(task.wait())
        await asked.wait()
        first.cancel()
        await stopping.wait()
        second = asyncio.create_task(task.wait())
        server.states = [DONE]
        assert (await second).text == "done"
        may_stop.set()
        with pytest.raises(asyncio.CancelledError):
            await first


@both_forms
async def test_the_whole_has_a_limit(revision: str) -> None:
    server = TaskServer(revision, WORKING)
    async with client_of(server, max_timeout=0.05) as client:
        with pytest.raises(TimeoutError, match=r"task t1 did not end within 0\.05 s"):
            await client.call_tool("render")
    assert server.calls("tasks/cancel")


async def test_leaving_an_iteration_ends_the_polling() -> None:
    server = TaskServer(MODERN, WORKING)
    async with client_of(server) as client:
        task = await client.start_tool("render")
        async for update in task:
            assert update.status == "working"
            break


@pytest.mark.parametrize("leave", ["break", "cancel"])
async def test_leaving_an_iteration_withdraws_no_question_from_who_waits(leave: str) -> None:
    server = TaskServer(MODERN, asking(), DONE)
    asked, may_answer = [], asyncio.Event()

    async def elicit(question: Any) -> str:
        asked.append(question.message)
        await may_answer.wait()
        return "Ada"

    async def look(task: ToolTask) -> None:
        async for update in task:
            if leave == "break" and update.status == "input_required":
                break

    async with client_of(server, elicitation_handler=elicit) as client:
        task = await client.start_tool("render")
        looking = asyncio.create_task(look(task))
        waiting = asyncio.create_task(task.wait())
        await until(lambda: bool(asked))
        if leave == "cancel":
            looking.cancel()
        await asyncio.wait([looking])
        may_answer.set()
        assert (await waiting).text == "done"
    assert len(asked) == 1


async def test_a_task_that_was_cancelled_when_it_was_created() -> None:
    server = TaskServer(CORE, WORKING)
    server.call_result = {"task": server.task({"status": "cancelled"})}
    async with client_of(server) as client:
        with pytest.raises(TaskCancelled):
            await client.call_tool("render")


# ── polling ──


@pytest.mark.parametrize(("hint", "least"), [(60, 0.06), (0, 0.009), (-5, 0.009)])
@both_forms
async def test_the_server_is_not_asked_too_soon(revision: str, hint: int, least: float) -> None:
    server = TaskServer(revision, WORKING, WORKING, DONE, poll=hint)
    async with client_of(server) as client:
        task = await client.start_tool("render")
        created_at = asyncio.get_running_loop().time()
        await task.wait()
    times = [created_at, *server.polled_at]
    assert all(after - before >= least - 0.002 for before, after in pairwise(times))


async def test_polls_over_http(tidy: None) -> None:
    """The headers name the task, and a poll that fails in a way that may pass is made again."""
    replies = iter([503, WORKING, DONE])

    def behave(request: ScriptedRequest) -> None:
        if request.method == "server/discover":
            request.result(DISCOVERED)
        elif request.method == "tools/list":
            request.result({**ACK, "tools": [], "ttlMs": 0, "cacheScope": "private"})
        elif request.method == "tools/call":
            request.result({"resultType": "task", **task, "status": "working"})
        else:
            reply = next(replies)
            request.answer(503) if reply == 503 else request.result({**ACK, **task, **reply})

    task = {"taskId": "t 1", **TIMES, "ttlMs": None, "pollIntervalMs": 10}
    async with Scripted(behave) as server, brisk_client(server.url, tasks=True) as client:
        assert (await client.call_tool("render")).text == "done"
    polls = [request for request in server.requests if request.method == "tasks/get"]
    assert [(each.headers["mcp-method"], each.headers["mcp-name"]) for each in polls] == [("tasks/get", "t 1")] * 3


# ── questions ──


@pytest.mark.rule("TASK-9", "TASK-15", "TASK-55")
@both_forms
async def test_questions_are_answered(revision: str) -> None:
    server = TaskServer(revision, WORKING, asking(a=elicitation("Name?"), b=sampling()), DONE)
    both = asyncio.Barrier(2)

    async def elicit(question: Any) -> str:
        await asyncio.wait_for(both.wait(), 5)  # they are asked at the same time
        return "Ada"

    async def sample(request: Any) -> str:
        await asyncio.wait_for(both.wait(), 5)
        return "Hi."

    async with client_of(server, elicitation_handler=elicit, sampling_handler=sample) as client:
        assert (await client.call_tool("render")).text == "done"
    assert server.answers["a"] == {"action": "accept", "content": {"name": "Ada"}}
    assert server.answers["b"]["content"] == {"type": "text", "text": "Hi."}


@pytest.mark.rule("TASK-12", "TASK-15")
async def test_each_question_is_answered_once_and_alone() -> None:
    """A quick answer does not wait for a slow one, and the task is polled meanwhile."""
    server = TaskServer(MODERN, asking(slow=elicitation("Slow?"), quick=elicitation("Quick?")), WORKING, DONE)

    async def elicit(question: Any) -> str:
        if question.message == "Slow?":
            polls = len(server.polled_at)
            await until(lambda: "quick" in server.answers and len(server.polled_at) >= polls + 2)
        return "Ada"

    async with client_of(server, elicitation_handler=elicit) as client:
        assert (await client.call_tool("render")).text == "done"
    assert [[*each["inputResponses"]] for each in server.calls("tasks/update")] == [["quick"], ["slow"]]


async def test_a_question_that_is_gone_is_withdrawn() -> None:
    server = TaskServer(MODERN, asking())
    asked, stopped = asyncio.Event(), asyncio.Event()

    async def elicit(question: Any) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with client_of(server, elicitation_handler=elicit) as client:
        calling = asyncio.create_task(client.call_tool("render"))
        await asked.wait()
        server.states = [WORKING]  # it went on without the answer
        await asyncio.wait_for(stopped.wait(), 5)
        server.states = [DONE]
        assert (await calling).text == "done"
    assert not server.calls("tasks/update")


async def test_a_stream_for_questions_is_opened_again_after_a_failure() -> None:
    class Unsteady(TaskServer):
        tries = 0

        def on_tasks_result(self, message: dict[str, Any]) -> Any:
            self.tries += 1
            return error(message, -32603, "not now") if self.tries == 1 else super().on_tasks_result(message)

    server = Unsteady(CORE, asking(), DONE)
    async with client_of(server, elicitation_handler=lambda _: "Ada") as client:
        assert (await client.call_tool("render")).text == "done"


async def test_the_limit_stands_still_while_the_user_thinks() -> None:
    server = TaskServer(MODERN, asking(), DONE)

    async def elicit(question: Any) -> str:
        await asyncio.sleep(0.2)
        return "Ada"

    async with client_of(server, elicitation_handler=elicit, max_timeout=0.15) as client:
        assert (await client.call_tool("render")).text == "done"


def reused(server: TaskServer) -> Any:
    def elicit(question: Any) -> str:
        server.states.insert(1, asking(q=elicitation("Another one?")))
        return "Ada"

    return {"elicitation_handler": elicit}


def refusing(server: TaskServer) -> Any:
    def elicit(question: Any) -> str:
        raise ProtocolError("I will not say")

    return {"elicitation_handler": elicit}


MISUSES: dict[str, Any] = {
    "reused": (reused, [asking(), DONE], "'q' was reused incompatibly"),
    "a handler fails": (refusing, [asking()], "I will not say"),
    "no handler": (lambda server: {}, [asking()], "needs elicitation_handler="),
    "too many at once": (lambda server: {}, [asking(**{str(i): elicitation() for i in range(101)})], "more than 100"),
    "too many in all": (
        lambda server: {"elicitation_handler": lambda question: "Ada"},
        [asking(**{f"{turn} {i}": elicitation() for i in range(51)}) for turn in range(2)],
        "more than 100",
    ),
    "unknown status": (lambda server: {}, [{"status": "sleeping"}], "does not fit"),
    "no result": (lambda server: {}, [{"status": "completed"}], "does not fit"),
    "no error": (lambda server: {}, [{"status": "failed"}], "can't be read"),
    "another type of result": (
        lambda server: {},
        [{"status": "completed", "result": {"resultType": "input_required"}}],
        "'input_required', which",
    ),
}


@pytest.mark.rule("TASK-12", "TASK-30")
@pytest.mark.parametrize("case", MISUSES)
async def test_what_a_server_may_not_do(case: str) -> None:
    """The task of a call that is given up is cancelled, unless it has ended."""
    options, states, words = MISUSES[case]
    server = TaskServer(MODERN, *states)
    async with client_of(server, **options(server)) as client:
        with pytest.raises((BadResponse, ProtocolError), match=words):
            await client.call_tool("render")
    has_ended = states[0]["status"] in ("completed", "failed")
    assert len(server.calls("tasks/cancel")) == (not has_ended)


async def test_a_state_of_another_task() -> None:
    server = TaskServer(MODERN, WORKING)
    async with client_of(server) as client:
        task = client.task("t1")
        server.on_tasks_get = lambda message: {**ACK, **server.task(WORKING), "taskId": "t2"}  # type: ignore[method-assign]
        with pytest.raises(BadResponse, match="another task"):
            await task.refresh()


# ── clients and servers without tasks ──


async def test_tasks_are_for_those_who_want_them() -> None:
    server = TaskServer(MODERN, DONE)
    async with client_of(server, tasks=False) as client:
        with pytest.raises(BadResponse, match="'task', which this client does not handle"):
            await client.call_tool("render")
        for start in (client.start_tool, client.task):
            with pytest.raises(SetupError, match="tasks=True"):
                await start("render")  # type: ignore[misc]
        refusal = MissingCapability({"extensions": {TASKS: {}}})
        server.on_tools_call = lambda message: error(message, -32021, refusal.message, refusal.data)  # type: ignore[method-assign]
        with pytest.raises(ServerError) as caught:
            await client.call_tool("render")
        assert "tasks=True" in "".join(caught.value.__notes__)
    assert "extensions" not in server.calls("tools/call")[0]["_meta"]["io.modelcontextprotocol/clientCapabilities"]


@pytest.mark.rule("TASK-5", "TASK-6")
async def test_only_calls_become_tasks() -> None:
    server = TaskServer(MODERN, DONE)
    server.on_ping = lambda message: {"resultType": "task", **server.task(WORKING)}  # type: ignore[attr-defined]
    server.on_prompts_get = server.on_ping  # type: ignore[attr-defined]
    async with client_of(server) as client:
        with pytest.raises(BadResponse, match="only tools/call"):
            await client.ping()
        with pytest.raises(BadResponse, match="'task', which"):
            await client.get_prompt("greet")


# ── our own server ──


def films() -> Server:
    server = Server("films", version="1.0.0")

    @server.tool(task=TaskConfig(poll_interval=0.02))
    async def render(ctx: Context) -> int:
        """Draw as many frames as the user wants, of the size that the user wants."""
        frames, size = await asyncio.gather(ctx.elicit("How many?", int), ctx.elicit("Which size?", ["S", "M"]))
        return int(frames.data) * len(size.data)

    @server.tool(task=TaskConfig(mode="required", poll_interval=0.02))
    async def fail() -> str:
        """Fail in words."""
        raise ToolError("no beach")

    @server.tool(task=TaskConfig(poll_interval=0.02))
    async def wait() -> str:
        """Wait for the end."""
        await asyncio.Event().wait()
        return "never"

    return server


@pytest.mark.rule("TASK-9", "TASK-15", "TASK-54", "TASK-55", "TASK-57")
@pytest.mark.parametrize("over", ["memory", "http"])
@both_forms
async def test_tasks_of_our_own_server(revision: str, over: str) -> None:
    answers = {"How many?": 7, "Which size?": "M"}
    options: Any = {"protocol_version": revision, "tasks": True}
    options["elicitation_handler"] = lambda question: answers[question.message]
    async with AsyncExitStack() as stack:
        server = films()
        is_served = over == "http"
        target: Any = f"{await stack.enter_async_context(served(server.asgi()))}/mcp" if is_served else server
        client = await stack.enter_async_context(Client(target, **options))
        other = await stack.enter_async_context(Client(target, **options))
        task = await client.start_tool("render")
        assert (await other.task(str(task.id)).wait()).structured in ({"result": 7}, 7)
        assert (await task.wait()).data == 7
        with pytest.raises(ToolError, match="no beach"):
            await client.call_tool("fail")
        waiting = await client.start_tool("wait")
        await waiting.cancel()
        with pytest.raises(TaskCancelled):
            await waiting.wait()
        with pytest.raises(ServerError) as unknown:
            await client.task("unknown").wait()
        assert unknown.value.code == -32602


@both_forms
async def test_a_gateway_has_no_tasks(revision: str) -> None:
    """It declares none to its backend, and shows none of the backend's to its clients."""
    backend = Server("films", version="1.0.0")

    @backend.tool(task=True)
    async def render(ctx: Context) -> str:
        """Say what the gateway declares."""
        return f"{ctx.client.extensions.get(TASKS)}, {(await ctx.elicit('Which size?', str)).data}"

    proxy = Proxy(backend, name="films")
    options: Any = {"protocol_version": revision, "elicitation_handler": lambda question: "small"}
    async with Client(proxy, tasks=True, **options) as client:
        (tool,) = await client.list_tools()
        assert (tool.name, tool.execution) == ("render", None)
        task = await client.start_tool("render")
        assert (task.id, (await task.wait()).text) == (None, "None, small")
