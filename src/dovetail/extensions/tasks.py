"""Tasks: the extension of 2026-07-28, `io.modelcontextprotocol/tasks`, and the core of 2025-11-25."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Raw
from msgspec.structs import replace

from dovetail.engine import access
from dovetail.engine.call_tool import call_tool
from dovetail.engine.concurrency import Limit
from dovetail.engine.dispatch import Layer
from dovetail.engine.handlers import Handler
from dovetail.engine.request_context import ClientChannel, RequestContext
from dovetail.engine.server_requests import ClientResponse
from dovetail.engine.threads import ThreadPool
from dovetail.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    DovetailError,
    MissingCapability,
    ProtocolError,
    QuestionFailed,
    ToolBusy,
    ToolError,
)
from dovetail.extensions.extension import ExtensionResult
from dovetail.extensions.task_runs import TaskRun
from dovetail.extensions.task_store import Question, TaskRecord, TaskStore, UnknownTask
from dovetail.protocol import jsonrpc
from dovetail.protocol.capabilities import require_capabilities
from dovetail.protocol.extensions import TASKS, DeclaredExtension, declared_extensions
from dovetail.protocol.inbound import Request
from dovetail.protocol.jsonrpc import encode, invalid_params, members
from dovetail.protocol.methods import ListParams, Method, Params
from dovetail.protocol.pagination import decode_cursor, encode_cursor
from dovetail.protocol.results import EmptyResult, Result
from dovetail.protocol.revisions import R2025_11_25, R2026_07_28
from dovetail.registry.tools import Tool
from dovetail.state.base import Listener, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

T = TypeVar("T")
RELATED_KEY = "io.modelcontextprotocol/related-task"
NAMED: dict[str, Any] = {"name_field": "task_id", "name_optional": True}  # FastMCP 4.1 sends no Mcp-Name here
CORE = frozenset([R2025_11_25.name])
VERSIONS = frozenset([R2026_07_28.name])  # in which they are an extension
MAX_OPEN = 1_000  # tasks of one worker
MAX_PER_CALLER = 100  # of those; callers that are not known have no bound of their own
MAX_PAGE = 100  # tasks
CLEANUP_TIMEOUT = 1.0  # seconds for functions that are cancelled because the server stops
BUSY = "Too many tasks are open; wait for some of them to end, or cancel some"
STOPPING = "The server is shutting down, so no task can begin"
CANCELLED = "The task was cancelled, so it has no result"
ONLY_A_TASK = "The tool {} runs only as a task; call it with `task`"
ONLY_FOR_NEWER = "The tool {} runs only as a task, and this client can have none"
OVER = "The task has ended already, and can't be cancelled any more"
NOT_A_TASK = "The tool {} runs in the request; call it without `task`"
NO_LIST = "Method not found: tasks/list is for callers who are known"
log = logging.getLogger("dovetail")


class TaskParams(Params, frozen=True):
    task_id: str


class UpdateTaskParams(TaskParams, frozen=True):
    input_responses: dict[str, Raw]


def add_tasks(engine: "Engine") -> None:
    """Add tasks to a server, for its first tool with `task=`."""
    tasks = Tasks(engine)
    rows: dict[str, tuple[Method, Handler]] = {
        row.name: (row, handler)
        for row, handler in (
            (Method("tasks/get", CORE | VERSIONS, TaskParams, **NAMED), tasks.get),
            (Method("tasks/cancel", CORE | VERSIONS, TaskParams, **NAMED), tasks.cancel),
            (Method("tasks/update", VERSIONS, UpdateTaskParams, **NAMED), tasks.update),
            (Method("tasks/result", CORE, TaskParams), tasks.result),
            (Method("tasks/list", CORE, ListParams), tasks.list_tasks),
        )
    }
    engine.tasks = tasks
    engine.add_extension(TASKS, DeclaredExtension({}, VERSIONS), rows, "@server.tool(task=…)")
    engine.handlers = {**engine.handlers, "tools/call": tasks.call}


def can_have_task(request: Request) -> bool:
    """Whether a request that was made by 2026-07-28 declares the extension, or one of 2025-11-25 asks for a task."""
    if not request.revision.core_tasks:
        return request.revision.name in VERSIONS and TASKS in declared_extensions(request.capabilities)
    params = members(request.raw_params) if b'"task"' in bytes(request.raw_params) else {}
    if "task" in params and memoryview(params["task"])[0] != ord("{"):
        raise invalid_params("task must be an object")
    return "task" in params


class Tasks:
    """The tasks that this worker runs, and the way to those of all workers."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self.runs: dict[str, TaskRun] = {}  # by id, until their ends are stored
        self.store = TaskStore(engine, self.runs)
        self.limit = Limit(engine.options.max_concurrency, MAX_OPEN, subject="The server")
        most = engine.options.max_threads
        self.threads = ThreadPool(most, max_stuck=max(100, 2 * most), name="dovetail-task", share=max(1, most // 2))
        self.threads.on_stuck = engine.threads.on_stuck
        self.listener: Listener | None = None  # while the server runs
        self.is_closing = False
        self._background: list[asyncio.Task[None]] = []

    # ── calls ──

    def layer(self, inner: Layer) -> Layer:
        """Runs tools apart from their requests where they may become tasks, with all middleware."""

        def layer(context: RequestContext) -> Awaitable[Result]:
            request = context.request
            if request.method != "tools/call" or context.served is not None or not can_have_task(request):
                return inner(context)
            tool = self.engine.tools.find(request.params.name)
            if tool is None or tool.task is None:
                return inner(context)
            return TaskRun(self, context, tool).result(inner)

        return layer

    async def call(self, engine: "Engine", context: RequestContext) -> Result:
        """Refuse what asks for a task, or has to be one, and can't; but only to callers who may know of the tool."""
        tool = None if context.run else engine.tools.find(context.request.params.name, engine.rules_of(context))
        refusal = None if tool is None else _refusal(context.request, tool)
        if refusal is not None and await self._may_use(context, tool):
            raise refusal
        return await call_tool(engine, context)

    def check_room(self, owner: str | None) -> None:
        """Raises ToolBusy if the caller, or this worker, has too many tasks, or the server stops."""
        if self.is_closing:
            raise ToolBusy(STOPPING)
        owners = [run.caller for run in self.runs.values()]
        if len(owners) >= MAX_OPEN or (owner is not None and owners.count(owner) >= MAX_PER_CALLER):
            raise ToolBusy(BUSY)

    # ── the methods ──

    async def _find(self, context: RequestContext, id: str) -> TaskRecord:
        """A task of this caller, who may still use its tool. Raises one error for all that it is not to see."""
        request = context.request
        if not request.revision.handshake:  # the capability counts before the id
            require_capabilities([TASKS], request.capabilities)
        record = await self.store.look(id, request.revision)
        tool = None if record is None else self.engine.tools.find(record.tool)
        if record is None or record.owner != context.owner or not await self._may_use(context, tool):
            raise UnknownTask
        return record

    async def _may_use(self, context: RequestContext, tool: Tool | None) -> bool:
        return tool is None or tool.access is None or await access.may_use(self.engine, context, tool.access)

    async def get(self, engine: "Engine", context: RequestContext) -> Result:  # noqa: ARG002
        id = context.request.params.task_id
        record = await self._find(context, id)
        return ExtensionResult(record.fields(id) if context.request.revision.core_tasks else record.detailed(id))

    async def cancel(self, engine: "Engine", context: RequestContext) -> Result:  # noqa: ARG002
        """The task is cancelled at once; the worker that runs it stops its function."""
        id = context.request.params.task_id
        record = await self._find(context, id)
        changed = await self.store.change(id, lambda found: found.ended("cancelled", None))
        if changed is None:
            raise UnknownTask
        if not context.request.revision.core_tasks:
            return EmptyResult()
        if record.is_over or changed.status != "cancelled":
            raise ProtocolError(OVER, code=INVALID_PARAMS)
        return ExtensionResult(changed.fields(id))

    async def update(self, engine: "Engine", context: RequestContext) -> Result:  # noqa: ARG002
        """Take answers to questions that are open. Others are ignored."""
        id = context.request.params.task_id
        record = await self._find(context, id)
        given = context.request.params.input_responses
        for key in given.keys() & record.questions.keys():
            if memoryview(given[key])[0] != ord("{"):
                raise invalid_params(f"inputResponses.{key} must be an object")
        answers = {key: ClientResponse(True, bytes(value)) for key, value in given.items()}
        await self.answer(id, answers)
        return EmptyResult()

    async def list_tasks(self, engine: "Engine", context: RequestContext) -> Result:
        if (name := context.task_list) is None:
            raise ProtocolError(NO_LIST, code=METHOD_NOT_FOUND)
        params, now, keys = context.request.params, time.time(), engine.secrets
        scope = f"tasks/list {name}"
        after = 0 if params.cursor is None else decode_cursor(params.cursor, scope=scope, keys=keys, now=now)
        found, last = await self.store.listed(name, after, min(engine.options.page_size, MAX_PAGE))
        find = engine.tools.find
        seen = [record.fields(id) for id, record in found if await self._may_use(context, find(record.tool))]
        more = {} if last is None else {"nextCursor": encode_cursor(last, scope=scope, key=keys[0], now=now)}
        return ExtensionResult({"tasks": seen, **more})

    async def result(self, engine: "Engine", context: RequestContext) -> Result:
        """Wait for the end of a task, and pass its questions on to the client meanwhile."""
        id = context.request.params.task_id
        record = await self._find(context, id)
        asking: dict[str, asyncio.Task[None]] = {}
        try:
            async with engine.waiting:
                async for record in self.states(id):
                    self._ask(context, id, record, asking)
        finally:
            for task in asking.values():
                task.cancel()
            if asking:
                await asyncio.wait(asking.values())  # the client is told before it has the response
        if record.outcome is None:
            raise ProtocolError(CANCELLED, code=INVALID_PARAMS)
        if not isinstance(record.outcome, bytes):
            raise record.outcome.to_error()
        fields = members(record.outcome)
        meta = members(fields["_meta"]) if "_meta" in fields else {}
        return ExtensionResult({**fields, "_meta": {**meta, RELATED_KEY: {"taskId": id}}})

    def _ask(self, context: RequestContext, id: str, record: TaskRecord, asking: dict[str, asyncio.Task[None]]) -> None:
        """Send the questions that this request has not sent; take back those that were answered elsewhere."""
        for key in asking.keys() - record.questions.keys():
            asking[key].cancel()
        channel, session = context.channel, context.request.session
        if channel is not None:
            for key, question in record.questions.items():
                if key not in asking and (session is None or question.session != session.id):
                    asking[key] = asyncio.create_task(self.ask(channel, id, key, question))

    # ── listening ──

    async def grant(self, context: RequestContext, ids: Sequence[str]) -> list[str]:
        """Those tasks to which the caller of a listen may listen. Raises MissingCapability."""
        require_capabilities([TASKS], context.request.capabilities)
        granted = []
        for id in dict.fromkeys(ids):
            with suppress(UnknownTask):
                await self._find(context, id)
                granted.append(id)
        return granted

    async def follow(self, context: RequestContext, ids: Sequence[str], meta: dict[str, Any]) -> None:
        """Notify a listen of the states of these tasks, to their ends."""

        async def follow_one(id: str) -> None:
            with suppress(StoreUnavailable, UnknownTask):
                async with aclosing(self.states(id)) as states:
                    async for record in states:
                        params = encode({**record.detailed(id), "_meta": meta})
                        await context.emit(jsonrpc.notification("notifications/tasks", params))

        await asyncio.gather(*map(follow_one, ids))

    async def states(self, id: str) -> AsyncGenerator[TaskRecord, None]:
        """The task now and after each change, to its end. Raises UnknownTask once there is none."""
        record, shown = None, None
        with closing(self.engine.state.listen([f"task/{id}"])) as listener:
            while record is None or not record.is_over:
                with suppress(StoreUnavailable):  # it is asked for again
                    if (record := await self.store.look(id)) is None:
                        raise UnknownTask
                if record is not None and record.shown != shown:
                    shown = record.shown
                    yield record
                    continue
                with suppress(TimeoutError):  # a lost worker wakes no listener
                    async with asyncio.timeout(self.engine.task_timings.poll_every):
                        if not await listener.wait():
                            raise StoreUnavailable  # it was closed

    # ── questions ──

    async def answer(self, id: str, answers: Mapping[str, ClientResponse]) -> None:
        def answered(record: TaskRecord) -> TaskRecord:
            taken = {key: answers[key] for key in record.questions if key in answers}
            if not taken:
                return record
            left = {key: question for key, question in record.questions.items() if key not in taken}
            status = record.status if left else "working"
            return replace(record, status=status, questions=left, answers={**record.answers, **taken})

        await self.store.change(id, answered)

    async def ask(self, channel: ClientChannel, id: str, key: str, question: Question) -> None:
        """Ask, and put what the client says into the record; if it says nothing, another request may ask again."""
        timeout = max(1.0, question.until - time.time())
        params = {**members(Raw(question.params)), "_meta": {RELATED_KEY: {"taskId": id}}}
        with suppress(QuestionFailed, ProtocolError):
            async with channel.pending(question.method, timeout) as request:
                with suppress(QuestionFailed):
                    await request.result(question.method, encode(params), timeout)
            if (response := request.response) is not None:  # the client says it once
                await self.retry(lambda: self.answer(id, {key: response}))

    # ── the worker ──

    def start(self) -> None:
        """Begin to take what clients have changed, and to sweep, unless that has begun."""
        loop = asyncio.get_running_loop()
        if self._background and self._background[0].get_loop() is loop:
            return
        self.is_closing = False
        self.runs.clear()  # of a loop that has died
        self.threads.open()
        self.listener = self.engine.state.listen([])
        self._background = [loop.create_task(self._take_changes(self.listener)), loop.create_task(self._sweep())]

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retry while the store is unavailable or full, until the server stops."""
        while True:
            try:
                return await call()
            except (StoreUnavailable, StoreFull):
                if self.is_closing:
                    raise
            await asyncio.sleep(self.engine.task_timings.retry_delay)

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task that the server waits for when it stops."""
        task = asyncio.get_running_loop().create_task(work)
        self.engine.running_steps.add(task)
        task.add_done_callback(self.engine.running_steps.discard)
        return task

    async def _take_changes(self, listener: Listener) -> None:
        while changed := await listener.wait():  # nothing once it is closed
            ids = [topic.removeprefix("task/") for topic in changed]
            await asyncio.gather(*(self.runs[id].try_to_sync() for id in ids if id in self.runs))

    async def _sweep(self) -> None:
        """From time to time, bring all tasks of this worker up to date, and end those of lost workers."""
        while True:
            await asyncio.sleep(self.engine.task_timings.sweep_every)
            for run in [*self.runs.values()]:
                await run.try_to_sync()  # perhaps a wake-up was lost
            try:
                await self.store.sweep()
            except Exception as failure:
                log.debug("tasks of lost workers can't be looked for: %s", failure)

    async def drain(self, timeout: float) -> None:
        """Wait for all tasks, also for a store that has yet to take their ends; then end them."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        if runs := [*self.runs.values()]:
            await asyncio.wait([run.work for run in runs], timeout=timeout)
            if ends := [run.store_end() for run in runs if run.is_detached and run.work.done()]:
                await asyncio.wait(ends, timeout=max(0.0, deadline - clock()))
        await self._end_all()

    async def close(self) -> None:
        await self._end_all()
        if self.listener is not None:
            self.listener.close()
            for task in self._background:
                task.cancel()
            await asyncio.wait(self._background)
            self.threads.close()
            self.listener, self._background = None, []

    async def _end_all(self) -> None:
        """End all tasks, and let no call become another one."""
        self.is_closing = True
        if runs := [*self.runs.values()]:
            for run in runs:
                run.stop()
            await asyncio.wait([run.work for run in runs], timeout=CLEANUP_TIMEOUT)
            await asyncio.wait([run.store_end() for run in runs])


def _refusal(request: Request, tool: Tool) -> DovetailError | None:
    if tool.task is None:
        asks = request.revision.core_tasks and can_have_task(request)
        return ProtocolError(NOT_A_TASK.format(tool.name), code=METHOD_NOT_FOUND) if asks else None
    if tool.task.mode == "optional":
        return None
    if request.revision.core_tasks:
        return ProtocolError(ONLY_A_TASK.format(tool.name), code=METHOD_NOT_FOUND)
    if request.revision.handshake:
        return ToolError(ONLY_FOR_NEWER.format(tool.name))
    return MissingCapability({"extensions": {TASKS: {}}})
