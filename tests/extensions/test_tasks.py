"""Calls that become tasks, in both eras, over pipes and HTTP: states, results, errors, who gets one and who sees it."""

import asyncio
import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from dovetail import Client, Context, Depends, Request, Server, SetupError, TaskConfig, ToolRegistry, get_context
from dovetail.errors import INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_CAPABILITY
from http_serving import serving, settle, until
from http_wire import HttpWire
from server_requests import accept
from state_stage import identify
from task_stage import CORE, ENDS, MODERN, RELATED, TASKS, TaskClient, TaskStage, connected, over_http
from wire import Wire

BOTH = pytest.mark.parametrize("revision", [CORE, MODERN])
EACH = pytest.mark.parametrize(
    ("transport", "revision"), [("pipe", CORE), ("pipe", MODERN), ("http", CORE), ("http", MODERN)]
)
OPEN = {"status", "taskId", "createdAt", "lastUpdatedAt"}


@EACH
@pytest.mark.rule("TASK-6", "TASK-7", "TASK-9", "TASK-10", "TASK-11", "TASK-31", "TASK-53", "TASK-54")
async def test_a_task_works_and_ends_with_the_result_of_its_call(transport: str, revision: str) -> None:
    stage = TaskStage()
    async with connected(stage, transport, revision) as client:
        made = await client.call("work", text="painted")
        task = made["task"] if revision == CORE else made
        duration, interval = ("ttl", "pollInterval") if revision == CORE else ("ttlMs", "pollIntervalMs")
        assert task.keys() - {"resultType", "_meta"} == OPEN | {duration, interval}
        assert (task["status"], task[interval], task[duration]) == ("working", 1000, 1000 * (86_400 + 3_600))
        assert made.get("resultType") == (None if revision == CORE else "task")
        working = await client.get(task["taskId"])
        assert {name: working[name] for name in OPEN} == {name: task[name] for name in OPEN}
        stage.go.set()
        ended = await client.until(task["taskId"], *ENDS)
        assert ended["status"] == "completed"
        assert ended["lastUpdatedAt"] >= ended["createdAt"] == task["createdAt"]
        assert ended == await client.get(task["taskId"])  # polls change nothing
        result = await client.result(task["taskId"])
        assert (result["content"][0]["text"], result["isError"]) == ("painted", False)
        assert result.get("resultType") == (None if revision == CORE else "complete")
        related = result.get("_meta", {}).get(RELATED)
        assert related == ({"taskId": task["taskId"]} if revision == CORE else None)
        assert stage.ran == ["painted"]


@EACH
@pytest.mark.rule("TASK-19", "TASK-56")
async def test_failures_of_the_tool_and_of_the_protocol(transport: str, revision: str) -> None:
    async with connected(TaskStage(), transport, revision) as client:
        failing = await client.until(await client.begin("fail"), *ENDS)
        refused = await client.until(await client.begin("refuse"), *ENDS)
        assert failing["status"] == ("failed" if revision == CORE else "completed")
        assert (refused["status"], refused["statusMessage"]) == ("failed", "It can't be served")
        result = await client.result(failing["taskId"])
        assert (result["isError"], result["content"][0]["text"]) == (True, "It always fails")
        if revision == CORE:
            assert failing["statusMessage"] == "It always fails"
            refusal = await client.exchange("tasks/result", {"taskId": refused["taskId"]})
            assert refusal["error"] == {"code": -32603, "message": "It can't be served", "data": {"why": "no"}}
        else:
            assert refused["error"] == {"code": -32603, "message": "It can't be served", "data": {"why": "no"}}
            assert "result" not in refused


@EACH
@pytest.mark.rule("TASK-16", "TASK-57", "TASK-61")
async def test_cancelling_is_at_once_for_the_client_and_reaches_the_function(transport: str, revision: str) -> None:
    stage = TaskStage()
    async with connected(stage, transport, revision) as client:
        id = await client.begin("work")
        await stage.entered.wait()
        ack = await client.ask("tasks/cancel", taskId=id)
        assert ack.get("status") == ("cancelled" if revision == CORE else None)
        assert (await client.get(id))["status"] == "cancelled"
        await until(lambda: stage.ended == ["cancelled"])
        if revision == CORE:
            assert (await client.refusal("tasks/cancel", taskId=id))[0] == INVALID_PARAMS
            code, message = await client.refusal("tasks/result", taskId=id)
            assert (code, "was cancelled" in message) == (INVALID_PARAMS, True)
        else:
            assert (await client.ask("tasks/cancel", taskId=id)).keys() <= {"resultType", "_meta"}
        assert (await client.get(id))["status"] == "cancelled"


@BOTH
async def test_threads_have_a_pool_of_their_own_and_see_the_cancellation(revision: str) -> None:
    stage = TaskStage(max_threads=2)
    names: list[str] = []

    @stage.server.tool
    def thread_name() -> str:
        names.append(threading.current_thread().name)
        return "named"

    async with connected(stage, "pipe", revision) as client:
        ids = [await client.begin("block") for _ in range(5)]
        await until(lambda: len(stage.ran) == 1)  # a half of its threads is for each tool
        for _ in range(3):  # ordinary calls have threads
            await client.ask("tools/call", name="thread_name", arguments={})
        for id in reversed(ids):
            await client.ask("tasks/cancel", taskId=id)
        stage.thread.set()
        await until(lambda: bool(stage.ended))
        assert set(stage.ended) == {"cancelled"}
        assert not any(name.startswith("dovetail-task") for name in names)


# ── who gets a task ──


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", CORE, MODERN])
@pytest.mark.rule("TASK-2", "TASK-4", "TASK-27", "TASK-51", "TASK-52", "TASK-58")
async def test_clients_that_can_have_no_task_make_ordinary_calls(revision: str) -> None:
    stage = TaskStage()
    stage.go.set()
    async with connected(stage, "pipe", revision, declares=False) as client:
        for name, text in (("work", "done"), ("soon", "soon"), ("plain", "plain")):
            result = await client.call(name)
            assert (result["content"][0]["text"], result["isError"]) == (text, False)
        answer = await client.exchange("tools/call", client.call_params("must"))
        if revision == MODERN:
            assert answer["error"]["code"] == MISSING_CAPABILITY
            assert answer["error"]["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        elif revision == CORE:
            assert answer["error"]["code"] == METHOD_NOT_FOUND
        else:
            assert answer["result"]["isError"]
            assert "runs only as a task" in answer["result"]["content"][0]["text"]
        listed = {tool["name"]: tool for tool in (await client.ask("tools/list"))["tools"]}
        support = {name: tool.get("execution") for name, tool in listed.items()}
        if revision == CORE:
            assert (support["work"], support["must"]) == ({"taskSupport": "optional"}, {"taskSupport": "required"})
            assert support["plain"] is None
        else:
            assert set(support.values()) == {None}


@BOTH
@pytest.mark.rule("TASK-1", "TASK-26", "TASK-50")
async def test_what_each_era_is_shown(revision: str) -> None:
    async with Client(TaskStage().server, protocol_version=revision) as client:
        shown = client.capabilities
    everything = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    assert shown.get("tasks") == (everything if revision == CORE else None)
    assert shown.get("extensions") == ({TASKS: {}} if revision == MODERN else None)
    async with Client(Server("none"), protocol_version=revision) as client:
        assert not client.capabilities.keys() & {"tasks", "extensions"}


@pytest.mark.rule("TASK-58")
async def test_a_caller_over_http_who_could_be_anybody_has_no_list() -> None:
    async with serving(TaskStage().server, identify=identify) as app:
        anybody = TaskClient(await over_http(app, CORE), CORE)
        assert "list" not in anybody.wire.welcome["capabilities"]["tasks"]
        assert (await anybody.refusal("tasks/list"))[0] == METHOD_NOT_FOUND
        ada = TaskClient(await over_http(app, CORE, headers={"x-user": "ada"}), CORE)
        assert "list" in ada.wire.welcome["capabilities"]["tasks"]


@pytest.mark.rule("TASK-52")
async def test_task_on_a_tool_without_tasks_is_refused_and_a_hidden_tool_stays_hidden() -> None:
    stage = TaskStage()
    stage.server.add_tool(stage.plain, name="secret", authorize=lambda _: False)
    stage.server.add_tool(stage.work, name="hidden", task=True, authorize=lambda _: False)
    async with connected(stage, "pipe", CORE) as client:
        for name, code in (("plain", METHOD_NOT_FOUND), ("secret", INVALID_PARAMS), ("hidden", INVALID_PARAMS)):
            assert (await client.refusal("tools/call", **client.call_params(name)))[0] == code
        assert (await client.refusal("tools/call", **client.call_params("nothing")))[0] == INVALID_PARAMS
        answers = {
            name: await client.refusal("tools/call", name=name, task=5) for name in ("work", "hidden", "nothing")
        }
        assert answers["work"] == answers["hidden"] == answers["nothing"], "nobody learns which tools there are"
        assert stage.ran == []


@pytest.mark.rule("TASK-52", "TASK-62")
async def test_a_refused_task_counts_for_the_rate_limit_and_a_tool_that_a_session_disables_stays_hidden() -> None:
    stage = TaskStage(rate_limit="4/hour")

    @stage.server.tool
    async def hide(ctx: Context) -> str:
        await ctx.disable(names="plain")
        return "hidden"

    async with connected(stage, "pipe", CORE) as client:
        assert (await client.refusal("tools/call", **client.call_params("plain")))[0] == METHOD_NOT_FOUND
        await client.ask("tools/call", name="hide")
        hidden = await client.refusal("tools/call", **client.call_params("plain"))
        assert hidden == await client.refusal("tools/call", name="plain")
        assert (await client.refusal("tools/call", **client.call_params("plain")))[0] not in (
            METHOD_NOT_FOUND, INVALID_PARAMS,
        )  # fmt: skip


@BOTH
async def test_bad_arguments_and_refusals_are_no_tasks(revision: str) -> None:
    stage = TaskStage()
    stage.server.add_tool(stage.work, name="rare", task=True, rate_limit="1/hour")
    stage.go.set()
    async with connected(stage, "pipe", revision) as client:
        assert (await client.call("work", text=["no"]))["isError"]
        await client.text(await client.begin("rare"))
        assert (await client.call("rare"))["isError"]
        assert stage.ran == ["done"]


@pytest.mark.rule("TASK-3")
async def test_after_some_seconds_a_call_becomes_a_task_and_a_quick_one_does_not() -> None:
    stage = TaskStage()
    async with connected(stage, "http", MODERN) as client:
        id = await client.begin("soon")
        stage.go.set()
        assert await client.text(id) == "soon"
        stage.server.add_tool(stage.soon, name="quick", task=TaskConfig(after=60))
        assert (await client.call("quick"))["content"][0]["text"] == "soon"
        assert stage.ran == ["soon", "soon"]


async def test_the_time_until_a_call_becomes_a_task_begins_when_its_caller_may_use_the_tool() -> None:
    stage = TaskStage()

    async def refuse_slowly(_: Any) -> bool:
        await asyncio.sleep(0.05)
        return False

    stage.server.add_tool(stage.soon, name="hidden", task=TaskConfig(after=0.001), authorize=refuse_slowly)
    async with connected(stage, "pipe", MODERN) as client:
        for name in ("hidden", "nothing"):
            assert await client.refusal("tools/call", **client.call_params(name)) == (
                INVALID_PARAMS,
                f"Unknown tool: {name}",
            )


@pytest.mark.parametrize("transport", ["pipe", "http"])
@pytest.mark.rule("TASK-8")
async def test_questions_before_the_detachment_are_asked_in_the_call(transport: str) -> None:
    stage = TaskStage()
    async with connected(stage, transport, MODERN) as client:
        first = await client.call("late")
        assert first["resultType"] == "input_required"
        assert "taskId" not in first
        (key,) = first["inputRequests"]
        again = {"inputResponses": {key: accept("Ada")}, "requestState": first["requestState"]}
        results = [await client.ask("tools/call", name="late", arguments={}, **again) for _ in range(2)]
        assert {result["resultType"] for result in results} == {"task"}
        assert not results[0].keys() & {"inputRequests", "requestState"}
        assert results[0]["taskId"] == results[1]["taskId"]  # the same state is the same task
        assert results[0]["statusMessage"] == "Going on"
        stage.go.set()
        assert await client.text(results[0]["taskId"]) == "Hello, Ada"
        assert stage.ran == ["Ada"]


@pytest.mark.rule("TASK-53")
async def test_a_client_that_asks_for_a_task_has_it_at_once() -> None:
    stage = TaskStage()
    async with connected(stage, "pipe", CORE) as client:
        ids = [await client.begin(name) for name in ("soon", "late")]
        stage.go.set()
        assert await client.text(ids[0]) == "soon"
        assert (await client.until(ids[1], "input_required"))["status"] == "input_required"


@pytest.mark.parametrize("transport", ["pipe", "http"])
async def test_a_request_that_is_cancelled_before_is_no_task_and_afterwards_the_task_goes_on(transport: str) -> None:
    stage = TaskStage()
    stage.server.add_tool(stage.work, name="slow", task=TaskConfig(after=None))
    async with connected(stage, transport, MODERN) as client:
        if transport == "http":
            call = client.wire.start("tools/call", client.params({"name": "slow", "arguments": {}}))
            await stage.entered.wait()
            await call.watched.wait()
            call.leave()
        else:
            request = client.wire.request("tools/call", client.params({"name": "slow", "arguments": {}}))
            client.wire.send(request)
            await stage.entered.wait()
            cancelled = {"method": "notifications/cancelled", "params": {"requestId": request["id"]}}
            client.wire.send({"jsonrpc": "2.0", **cancelled})
        await until(lambda: stage.ended == ["cancelled"])
        id = await client.begin("work")
        await settle()
        stage.go.set()
        assert await client.text(id) == "done"


# ── the methods ──


@pytest.mark.rule("TASK-17", "TASK-18", "TASK-25", "TASK-28")
async def test_unknown_foreign_and_hidden_tasks_are_one_error_and_the_capability_counts_first() -> None:
    stage = TaskStage()
    allowed = {"ada", "bob"}
    stage.server.add_tool(
        stage.work, name="closed", task=True, authorize=lambda who: who is not None and who.name in allowed
    )
    async with serving(stage.server, identify=identify) as app:
        ada, bob = (TaskClient(HttpWire(app, headers={"x-user": name}), MODERN) for name in ("ada", "bob"))
        id = await ada.begin("closed")
        unknown = await ada.refusal("tasks/get", taskId="x" * 32)
        assert unknown[0] == INVALID_PARAMS
        for wrong in ("", "workers", "x" * 10_000, f"{id}/", "../" + id):
            assert await ada.refusal("tasks/get", taskId=wrong) == unknown
        for client in (bob, TaskClient(HttpWire(app), MODERN)):
            assert await client.refusal("tasks/get", taskId=id) == unknown
            assert await client.refusal("tasks/cancel", taskId=id) == unknown
            assert await client.refusal("tasks/update", taskId=id, inputResponses={}) == unknown
        session = TaskClient(await over_http(app, CORE, headers={"x-user": "ada"}), CORE)
        assert await session.refusal("tasks/get", taskId=id) == unknown  # of another era
        undeclared = TaskClient(ada.wire, MODERN, declares=False)
        for wrong in (id, "nothing"):
            for method in ("get", "cancel"):
                assert (await undeclared.refusal(f"tasks/{method}", taskId=wrong))[0] == MISSING_CAPABILITY
        allowed.remove("ada")
        assert await ada.refusal("tasks/get", taskId=id) == unknown
        allowed.add("ada")
        assert (await ada.get(id))["status"] == "working"
        stage.go.set()


@BOTH
@pytest.mark.rule("TASK-26")
async def test_methods_of_the_other_era_are_not_there(revision: str) -> None:
    async with connected(TaskStage(), "http", revision) as client:
        others = ["tasks/update"] if revision == CORE else ["tasks/result", "tasks/list"]
        for method in others:
            assert (await client.refusal(method, taskId="x"))[0] == METHOD_NOT_FOUND
    async with Wire(Server("none"), revision) as wire:
        for method in ("get", "cancel", "update", "result", "list"):
            assert (await wire.refusal(f"tasks/{method}", {"taskId": "x"}))["code"] == METHOD_NOT_FOUND


@pytest.mark.rule("TASK-23")
async def test_headers_name_the_task() -> None:
    async with connected(TaskStage(), "http", MODERN) as client:
        id = await client.begin("work")
        params = client.params({"taskId": id})
        for name in ("another", "", f"{id} "[::-1].swapcase()):
            answer = await client.wire.post("tasks/get", params, headers={"mcp-name": name})
            assert (answer.status, answer.answer["error"]["code"]) == (400, -32020)
        answer = await client.wire.post("tasks/get", params, headers={"mcp-name": None})
        assert answer.answer["result"]["taskId"] == id  # clients that don't know the header can follow a task too
        await client.ask("tasks/cancel", taskId=id)


async def test_a_list_has_no_task_of_a_tool_that_its_caller_may_not_use_any_more() -> None:
    stage, allowed = TaskStage(), [True]
    stage.server.add_tool(stage.work, name="guarded", task=True, authorize=lambda _: allowed[0])
    async with connected(stage, "pipe", CORE) as client:
        await client.begin("guarded")
        id = await client.begin("work")
        assert len((await client.ask("tasks/list"))["tasks"]) == 2
        allowed[0] = False
        assert [each["taskId"] for each in (await client.ask("tasks/list"))["tasks"]] == [id]


async def test_a_list_has_pages_and_only_the_tasks_of_its_caller() -> None:
    stage = TaskStage(page_size=2)
    async with serving(stage.server, identify=identify) as app:
        wires = [await over_http(app, CORE, headers={"x-user": name}) for name in ("ada", "bob")]
        ada, bob = (TaskClient(wire, CORE) for wire in wires)
        ids = [await ada.begin("work", text=str(number)) for number in range(5)]
        await bob.begin("work")
        found, page = [], await ada.ask("tasks/list")
        while "nextCursor" in page:
            found += [task["taskId"] for task in page["tasks"]]
            assert (await bob.refusal("tasks/list", cursor=page["nextCursor"]))[0] == INVALID_PARAMS
            page = await ada.ask("tasks/list", cursor=page["nextCursor"])
        assert found + [task["taskId"] for task in page["tasks"]] == ids
        assert len((await bob.ask("tasks/list"))["tasks"]) == 1
        stage.go.set()


@BOTH
async def test_a_caller_and_a_worker_have_bounds(revision: str) -> None:
    stage = TaskStage()
    async with connected(stage, "pipe", revision) as client:
        ids = [await client.begin("work") for _ in range(100)]
        refused = await client.call("work")
        assert refused["isError"]
        assert "Too many tasks are open" in refused["content"][0]["text"]
        await client.ask("tasks/cancel", taskId=ids[0])
        await until(lambda: stage.ended == ["cancelled"])
        await settle()
        await client.begin("work")
        stage.go.set()


async def test_the_bound_of_a_caller_holds_for_calls_at_the_same_time() -> None:
    stage = TaskStage()
    async with connected(stage, "pipe", MODERN) as client:
        made = []
        for _ in range(2):
            for _ in range(60):
                client.wire.send(client.wire.request("tools/call", client.params(client.call_params("work"))))
            made += [(await client.wire.receive())["result"] for _ in range(60)]
        assert [each.get("isError", False) for each in made].count(True) == 20
        assert len(stage.ran) == 100
        stage.go.set()


async def test_tasks_wait_for_slots_and_ordinary_calls_do_not_wait_for_tasks() -> None:
    stage = TaskStage(max_concurrency=2, max_queue=0)
    stage.server.add_tool(stage.work, name="one_by_one", task=True, max_concurrency=1)
    async with connected(stage, "pipe", MODERN) as client:
        ids = [await client.begin("work") for _ in range(5)] + [await client.begin("one_by_one") for _ in range(3)]
        await settle()
        assert len(stage.ran) == 2
        assert (await client.call("plain"))["content"][0]["text"] == "plain"
        assert {(await client.get(id))["status"] for id in ids} == {"working"}
        stage.go.set()
        assert [await client.text(id) for id in ids] == ["done"] * 8


@BOTH
async def test_the_time_of_a_task_is_not_that_of_the_call(revision: str) -> None:
    stage = TaskStage(timeout=0.05)
    stage.server.add_tool(stage.work, name="bounded", task=TaskConfig(timeout=0.1, ttl=5))
    async with connected(stage, "pipe", revision) as client:
        one, two = await client.begin("work"), await client.begin("bounded")
        ended = await client.until(two, *ENDS)
        assert ended["status"] == ("failed" if revision == CORE else "completed")
        assert "did not finish within 0.1 s" in await client.text(two)
        assert (await client.get(one))["status"] == "working"
        ordinary = TaskClient(client.wire, revision, declares=False)
        answer = await ordinary.call("work")
        assert "did not finish within 0.05 s" in answer["content"][0]["text"]
        stage.go.set()


async def test_a_result_that_is_too_long_fails_and_says_so() -> None:
    stage = TaskStage()

    @stage.server.tool(task=True)
    async def long_result() -> str:
        return "x" * 5_000_000

    async with connected(stage, "pipe", MODERN) as client:
        ended = await client.until(await client.begin("long_result"), *ENDS)
        assert ended["status"] == "failed"
        assert "no room for its result" in ended["error"]["message"]


@pytest.mark.filterwarnings("ignore:MCP 2026-07-28 deprecates logging")
@pytest.mark.rule("TASK-20", "TASK-32")
@BOTH
async def test_progress_is_the_status_message(revision: str) -> None:
    stage = TaskStage()

    @stage.server.tool(task=True)
    async def draw(ctx: Context) -> str:
        await ctx.report_progress(3, 10, "Drawing")
        await ctx.info("drawn")
        await stage.go.wait()
        for number in range(4, 11):
            await ctx.report_progress(number, 10, "Drawing")
        await ctx.report_progress(1, None)
        return "drawn"

    async with connected(stage, "pipe", revision) as client:
        params = client.params(client.call_params("draw"))
        params["_meta"] = {**params.get("_meta", {}), "progressToken": "p", **LOGS[revision]}
        made = (await client.wire.exchange(client.wire.request("tools/call", params)))["result"]
        id = (made["task"] if revision == CORE else made)["taskId"]
        await client.until_message(id, "Drawing (3/10)")
        stage.go.set()
        assert (await client.until(id, "completed"))["statusMessage"] == "1"
        said = {message["method"] for message in client.wire.seen if "method" in message}
        if revision == MODERN:
            assert said == set()
        else:
            assert said >= {"notifications/progress", "notifications/message", "notifications/tasks/status"}


LOGS: dict[str, dict[str, Any]] = {CORE: {}, MODERN: {"io.modelcontextprotocol/logLevel": "debug"}}


# ── what surrounds a call ──


@BOTH
async def test_middleware_sees_the_result_and_audit_its_event_at_the_end(revision: str) -> None:
    events: list[Any] = []
    stage = TaskStage(audit=events.append, logging=True)
    seen: list[Any] = []

    @stage.server.middleware
    async def watch(request: Request, call_next: Any) -> Any:
        result = await call_next(request)
        if request.method == "tools/call":
            seen.append(result)
        return result

    async with connected(stage, "pipe", revision) as client:
        id = await client.begin("work")
        assert not seen
        stage.go.set()
        assert await client.text(id) == "done"
        assert [result.content[0].text for result in seen] == ["done"]
        await until(lambda: bool(events))
        assert [(event.method, event.outcome) for event in events] == [("tools/call", "ok")]


@BOTH
@pytest.mark.rule("TASK-62")
async def test_audit_has_an_event_of_each_change_by_a_client_without_the_id(revision: str) -> None:
    events: list[Any] = []
    stage = TaskStage(audit=events.append)
    async with connected(stage, "pipe", revision) as client:
        id = await client.begin("work")
        await stage.entered.wait()
        await client.get(id)
        if revision == MODERN:
            await client.ask("tasks/update", taskId=id, inputResponses={})
        await client.ask("tasks/cancel", taskId=id)
        await until(lambda: len(events) == (2 if revision == CORE else 3))
        outcomes = {event.method: event.outcome for event in events}
        assert outcomes.pop("tasks/update", "ok") == "ok"
        assert outcomes == {"tasks/cancel": "ok", "tools/call": "cancelled"}
        assert id not in repr(events)


@BOTH
async def test_a_middleware_that_makes_the_call_twice_has_one_task(revision: str) -> None:
    stage = TaskStage()

    @stage.server.middleware
    async def twice(request: Request, call_next: Any) -> Any:
        if request.method == "tools/call":
            await call_next(request)
        return await call_next(request)

    stage.go.set()
    async with connected(stage, "pipe", revision) as client:
        assert await client.text(await client.begin("work")) == "done"
        assert stage.ran == ["done", "done"]


@BOTH
async def test_tools_of_mounts_and_registries_and_found_tools_are_tasks(revision: str) -> None:
    stage, registry = TaskStage(), ToolRegistry()
    registry.register_tool("packed", "", {"type": "object"}, stage.plain, task=True)
    outer = Server("outer", tools=registry, tool_search=True)
    inner = Server("inner")
    inner.mount(stage.server, "deep")
    outer.mount(inner, "in")
    later = ToolRegistry()
    outer.mount(later, "later")
    later.register_tool("added", "", {"type": "object"}, stage.plain, task=True)
    stage.go.set()
    front = TaskStage()
    front.server = outer
    async with connected(front, "pipe", revision) as client:
        for name, text in (("packed", "plain"), ("in_deep_work", "done"), ("later_added", "plain")):
            assert await client.text(await client.begin(name)) == text
        assert await client.text(await client.begin("call_tool", name="in_deep_work", arguments={})) == "done"
        if revision == MODERN:
            asking = await client.begin("in_deep_greet_both")
            await client.answer(asking, One="a", Two="b")
            assert await client.text(asking) == "a and b"


async def test_dependencies_and_the_current_context_are_those_of_the_task() -> None:
    stage = TaskStage()
    left: list[str] = []

    async def session() -> Any:
        yield "session"
        left.append("session")

    @stage.server.tool(task=True)
    async def use(given: str = Depends(session)) -> str:
        await get_context().detach("Using it")
        await stage.go.wait()
        return given

    async with connected(stage, "pipe", MODERN) as client:
        id = await client.begin("use")
        await client.until_message(id, "Using it")
        assert left == []
        stage.go.set()
        assert await client.text(id) == "session"
        assert left == ["session"]


# ── registration ──


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "yes"}, "task='yes' is not possible"),
        ({"task": True, "idempotency": True}, "leave out task= or idempotency="),
        ({"task": True, "cache": 5}, "leave out task= or cache="),
    ],
)
def test_a_wrong_registration_says_what_to_do(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        Server("x").add_tool(lambda: None, name="t", **options)


@pytest.mark.parametrize(
    "wrong", [{"after": -1}, {"after": "2"}, {"timeout": None}, {"ttl": 0}, {"poll_interval": 0}, {"mode": "always"}]
)
def test_a_wrong_config_names_the_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match=next(iter(wrong))):
        TaskConfig(**wrong)


def test_task_false_is_no_task() -> None:
    server = Server("x")
    server.add_tool(lambda: None, name="t", task=False)
    assert server.engine.tasks is None


def test_a_server_without_tasks_loads_no_module_of_them() -> None:
    program = "import sys, dovetail; s = dovetail.Server('x'); s.add_tool(lambda: 1, name='t'); s.asgi(); "
    program += "print([name for name in sys.modules if 'task_' in name or name.endswith('extensions.tasks')])"
    path = json.dumps([*sys.path])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path}; {program}"], capture_output=True, check=True
    )
    assert done.stdout.strip() == b"[]"


async def test_a_function_in_a_thread_detaches_by_itself() -> None:
    stage = TaskStage()

    @stage.server.tool(task=TaskConfig(after=None))
    def cut(ctx: Context) -> str:
        ctx.detach("Cutting")
        stage.thread.wait(10)
        return "cut"

    async with connected(stage, "http", MODERN) as client:
        made = await client.call("cut")
        assert made["statusMessage"] == "Cutting"
        stage.thread.set()
        assert await client.text(made["taskId"]) == "cut"
        assert await TaskClient(client.wire, MODERN, declares=False).call("cut")
