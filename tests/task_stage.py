"""Tasks in tests: a server whose tools stop where a test wants to look, and clients of both eras that ask for tasks."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from dovetail import Context, ProtocolError, Server, TaskConfig, ToolError
from http_serving import serving
from http_wire import CAPABILITIES_KEY, HttpWire
from server_requests import CAPABILITIES, accept
from wire import Wire

TASKS = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"
CORE, MODERN = "2025-11-25", "2026-07-28"
DECLARED = {**CAPABILITIES, "extensions": {TASKS: {}}}
ENDS = ("completed", "failed", "cancelled")
LOST = "The worker that ran this task was lost; whether it had all its effects is not known"
Task = dict[str, Any]


class TaskStage:
    """A server of tasks; what its functions did, and how often."""

    def __init__(self, **options: Any) -> None:
        self.server = Server("stage", version="1.0.0", **options)
        self.ran: list[str] = []
        self.ended: list[str] = []
        self.go, self.entered = asyncio.Event(), asyncio.Event()
        self.thread = threading.Event()
        for tool in (self.work, self.fail, self.refuse, self.greet_both, self.block):
            self.server.add_tool(tool, task=True)
        self.server.add_tool(self.plain)
        self.server.add_tool(self.must, task=TaskConfig(mode="required"))
        self.server.add_tool(self.late, task=TaskConfig(after=None))
        self.server.add_tool(self.soon, task=TaskConfig(after=0.01))

    async def work(self, ctx: Context, text: str = "done") -> str:
        self.ran.append(text)
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append(text)
        return text

    async def fail(self) -> str:
        raise ToolError("It always fails")

    async def refuse(self) -> str:
        raise ProtocolError("It can't be served", data={"why": "no"})

    async def greet_both(self, ctx: Context) -> str:
        one, two = await asyncio.gather(ctx.elicit("One?", str), ctx.elicit("Two?", str))
        self.ended.append("greeted")
        return f"{one.data} and {two.data}"

    def block(self, ctx: Context) -> str:
        self.ran.append("block")
        self.thread.wait(10)
        self.ended.append("cancelled" if ctx.cancelled else "blocked")
        return "blocked"

    async def plain(self) -> str:
        return "plain"

    async def must(self) -> str:
        return "must"

    async def late(self, ctx: Context) -> str:
        name = (await ctx.elicit("Name?", str)).data
        await ctx.detach("Going on")
        self.ran.append(str(name))
        self.entered.set()
        await self.go.wait()
        return f"Hello, {name}"

    async def soon(self) -> str:
        self.ran.append("soon")
        await self.go.wait()
        return "soon"


class TaskClient:
    """A client that can have tasks, over a pipe or over HTTP."""

    def __init__(self, wire: Any, revision: str, *, declares: bool = True) -> None:
        self.wire = wire
        self.revision = revision
        self.declares = declares
        self._ids = itertools.count(5000)

    @property
    def is_core(self) -> bool:
        return self.revision == CORE

    def params(self, params: dict[str, Any]) -> dict[str, Any]:
        capabilities = DECLARED if self.declares else CAPABILITIES
        return params if self.is_core else {**params, "_meta": {CAPABILITIES_KEY: capabilities}}

    async def exchange(self, method: str, params: dict[str, Any]) -> Any:
        if isinstance(self.wire, HttpWire):
            return (await self.wire.post(method, self.params(params))).answer
        return await self.wire.exchange(self.wire.request(method, self.params(params)))

    async def ask(self, method: str, **params: Any) -> Any:
        answer = await self.exchange(method, params)
        assert "result" in answer, answer
        return answer["result"]

    async def refusal(self, method: str, **params: Any) -> tuple[int, str]:
        answer = await self.exchange(method, params)
        assert "error" in answer, answer
        return answer["error"]["code"], answer["error"]["message"]

    def call_params(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        task = {"task": {"ttl": 1000}} if self.is_core and self.declares else {}
        return {"name": name, "arguments": arguments, **task}

    async def call(self, name: str, /, **arguments: Any) -> Any:
        return await self.ask("tools/call", **self.call_params(name, **arguments))

    async def begin(self, name: str, /, **arguments: Any) -> str:
        """Make a call that becomes a task; its id."""
        result = await self.call(name, **arguments)
        task = result["task"] if self.is_core else result
        assert task["status"] == "working", result
        return str(task["taskId"])

    async def get(self, id: str) -> Task:
        task: Task = await self.ask("tasks/get", taskId=id)
        return task

    async def until(self, id: str, *statuses: str) -> Task:
        async with asyncio.timeout(10):
            while (task := await self.get(id))["status"] not in statuses:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        return task

    async def until_message(self, id: str, message: str) -> None:
        async with asyncio.timeout(10):
            while (await self.get(id)).get("statusMessage") != message:  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def result(self, id: str) -> Any:
        """What the call would have had for a result."""
        if self.is_core:
            return await self.ask("tasks/result", taskId=id)
        return (await self.until(id, *ENDS))["result"]

    async def text(self, id: str) -> str:
        return str((await self.result(id))["content"][0]["text"])

    async def answer(self, id: str, **answers: str) -> None:
        """Answer the questions with these messages; `One="x"` is for "One?"."""
        asked = (await self.until(id, "input_required"))["inputRequests"]
        given = {key: answers.get(each["params"]["message"].rstrip("?")) for key, each in asked.items()}
        responses = {key: accept(value) for key, value in given.items() if value is not None}
        await self.ask("tasks/update", taskId=id, inputResponses=responses)


@asynccontextmanager
async def connected(
    stage: TaskStage, transport: str, revision: str, *, declares: bool = True, **options: Any
) -> AsyncIterator[TaskClient]:
    """`options` are those of the app."""
    async with AsyncExitStack() as stack:
        if transport == "pipe":
            capabilities = DECLARED if declares else CAPABILITIES
            wire: Any = await stack.enter_async_context(Wire(stage.server, revision, capabilities=capabilities))
        else:
            app = await stack.enter_async_context(serving(stage.server, **options))
            wire = await over_http(app, revision)
        yield TaskClient(wire, revision, declares=declares)


async def over_http(app: Any, revision: str, **options: Any) -> HttpWire:
    if revision == MODERN:
        return HttpWire(app, **options)
    return await HttpWire.session(app, revision, capabilities=CAPABILITIES, **options)
