"""The methods of tasks: the extension of 2026-07-28, `io.modelcontextprotocol/tasks`, and the core of 2025-11-25."""

import asyncio
import time
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from dovetail.engine import access
from dovetail.engine.call_tool import call_tool
from dovetail.engine.handlers import Handler
from dovetail.engine.request_context import RequestContext
from dovetail.engine.server_requests import ClientResponse
from dovetail.errors import INVALID_PARAMS, METHOD_NOT_FOUND, DovetailError, MissingCapability, ProtocolError, ToolError
from dovetail.extensions.task_runs import RELATED_KEY, VERSIONS, TaskFields, Tasks, can_have_task
from dovetail.extensions.task_store import TaskRecord, UnknownTask
from dovetail.protocol.capabilities import require_capabilities
from dovetail.protocol.extensions import TASKS, DeclaredExtension
from dovetail.protocol.inbound import Request
from dovetail.protocol.jsonrpc import invalid_params, members
from dovetail.protocol.methods import ListParams, Method, Params
from dovetail.protocol.pagination import decode_cursor, encode_cursor
from dovetail.protocol.results import EmptyResult, Result
from dovetail.protocol.revisions import R2025_11_25
from dovetail.registry.tools import Tool

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

NAMED: dict[str, Any] = {"name_field": "task_id", "name_optional": True}  # FastMCP 4.1 sends no Mcp-Name here
CORE = frozenset([R2025_11_25.name])
CANCELLED = "The task was cancelled, so it has no result"
ONLY_A_TASK = "The tool {} runs only as a task; call it with `task`"
ONLY_FOR_NEWER = "The tool {} runs only as a task, and this client can have none"
OVER = "The task has ended already, and can't be cancelled any more"
NOT_A_TASK = "The tool {} runs in the request; call it without `task`"
NO_LIST = "Method not found: tasks/list is for callers who are known"
MAX_PAGE = 100  # tasks


class TaskParams(Params, frozen=True):
    task_id: str


class UpdateTaskParams(TaskParams, frozen=True):
    input_responses: dict[str, Raw]


def add_tasks(engine: "Engine") -> None:
    """Add tasks to a server, for its first tool with `task=`."""
    tasks = Tasks(engine)
    methods = Methods(tasks)
    rows: dict[str, tuple[Method, Handler]] = {
        row.name: (row, handler)
        for row, handler in (
            (Method("tasks/get", CORE | VERSIONS, TaskParams, **NAMED), methods.get),
            (Method("tasks/cancel", CORE | VERSIONS, TaskParams, **NAMED), methods.cancel),
            (Method("tasks/update", VERSIONS, UpdateTaskParams, **NAMED), methods.update),
            (Method("tasks/result", CORE, TaskParams), methods.result),
            (Method("tasks/list", CORE, ListParams), methods.list),
        )
    }
    engine.tasks = tasks
    engine.add_extension(TASKS, DeclaredExtension({}, VERSIONS), rows, "@server.tool(task=…)", tasks.layer)
    engine.handlers = {**engine.handlers, "tools/call": call}


class Methods:
    """The handlers of the methods of tasks."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    async def _find(self, context: RequestContext) -> tuple[str, TaskRecord]:
        """The task of a request: the capability counts before the id."""
        request = context.request
        if not request.revision.handshake:
            require_capabilities([TASKS], request.capabilities)
        return request.params.task_id, await self._tasks.find(context, request.params.task_id)

    async def get(self, engine: "Engine", context: RequestContext) -> Result:  # noqa: ARG002
        id, record = await self._find(context)
        return TaskFields(record.fields(id) if context.request.revision.core_tasks else record.detailed(id))

    async def cancel(self, engine: "Engine", context: RequestContext) -> Result:  # noqa: ARG002
        """The task is cancelled at once; the worker that runs it stops its function."""
        id, record = await self._find(context)
        changed = await self._tasks.store.change(id, lambda found: found.ended("cancelled", None))
        if changed is None:
            raise UnknownTask
        if not context.request.revision.core_tasks:
            return EmptyResult()
        if record.is_over or changed.status != "cancelled":
            raise ProtocolError(OVER, code=INVALID_PARAMS)
        return TaskFields(changed.fields(id))

    async def update(self, engine: "Engine", context: RequestContext) -> Result:  # noqa: ARG002
        """Take answers to questions that are open. Others are ignored."""
        id, record = await self._find(context)
        given = context.request.params.input_responses
        for key in given.keys() & record.questions.keys():
            if memoryview(given[key])[0] != ord("{"):
                raise invalid_params(f"inputResponses.{key} must be an object")
        answers = {key: ClientResponse(True, bytes(value)) for key, value in given.items()}
        await self._tasks.answer(id, answers)
        return EmptyResult()

    # ── 2025-11-25 ──

    async def list(self, engine: "Engine", context: RequestContext) -> Result:
        if (name := context.task_list) is None:
            raise ProtocolError(NO_LIST, code=METHOD_NOT_FOUND)
        params, now, keys = context.request.params, time.time(), engine.secrets
        scope = f"tasks/list {name}"
        after = 0 if params.cursor is None else decode_cursor(params.cursor, scope=scope, keys=keys, now=now)
        found, last = await self._tasks.store.listed(name, after, min(engine.options.page_size, MAX_PAGE))
        seen = [record.fields(id) for id, record in found if await self._tasks.may_see(context, record)]
        more = {} if last is None else {"nextCursor": encode_cursor(last, scope=scope, key=keys[0], now=now)}
        return TaskFields({"tasks": seen, **more})

    async def result(self, engine: "Engine", context: RequestContext) -> Result:
        """Wait for the end of a task, and pass its questions on to the client meanwhile."""
        id, record = await self._find(context)
        asking: dict[str, asyncio.Task[None]] = {}
        try:
            async with engine.waiting:
                async for record in self._tasks.states(id):
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
        return TaskFields({**fields, "_meta": {**meta, RELATED_KEY: {"taskId": id}}})

    def _ask(self, context: RequestContext, id: str, record: TaskRecord, asking: dict[str, asyncio.Task[None]]) -> None:
        """Send the questions that this request has not sent; take back those that were answered elsewhere."""
        for key in asking.keys() - record.questions.keys():
            asking[key].cancel()
        channel, session = context.channel, context.request.session
        if channel is not None:
            for key, question in record.questions.items():
                if key not in asking and (session is None or question.session != session.id):
                    asking[key] = asyncio.create_task(self._tasks.ask(channel, id, key, question))


async def call(engine: "Engine", context: RequestContext) -> Result:
    """Refuse a call that asks for a task, or has to be one, and can't; but only to callers who may know of the tool."""
    tool = None if context.run else engine.tools.find(context.request.params.name, engine.rules_of(context))
    refusal = None if tool is None else _refusal(context.request, tool)
    if tool and refusal and (tool.access is None or await access.may_use(engine, context, tool.access)):
        raise refusal
    return await call_tool(engine, context)


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
