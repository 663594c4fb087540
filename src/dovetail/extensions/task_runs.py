"""Runs of tools that become tasks: one run, which is detached from its request and goes on in the worker it began in.

A call of a tool with `task=`, by a client that can have a task, runs in an asyncio task of its own from its beginning,
with all middleware. The request waits until that has ended, or is detached: then its response is the new task. What
clients change in the record, answers and cancellations, wakes the worker that runs it.
"""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dovetail import errors
from dovetail.engine import access
from dovetail.engine.caller_state import state_owner
from dovetail.engine.concurrency import Limit
from dovetail.engine.dispatch import Layer, encode_failure, run_before_response
from dovetail.engine.input_required import NOT_WILLING, NOT_YET_DONE, ReplayedRequests, Steps
from dovetail.engine.request_context import ClientChannel, RequestContext
from dovetail.engine.server_requests import ClientResponse, LiveRequests, question_failed
from dovetail.engine.threads import ThreadPool
from dovetail.errors import ProtocolError, QuestionFailed, ToolBusy, ToolError
from dovetail.extensions.task_store import LOST, Question, TaskRecord, TaskStore, UnknownTask, shown_message
from dovetail.protocol import jsonrpc
from dovetail.protocol.capabilities import require_capabilities, require_client_support
from dovetail.protocol.elicitation import InputRequest
from dovetail.protocol.extensions import TASKS, declared_extensions
from dovetail.protocol.inbound import Request
from dovetail.protocol.jsonrpc import UNREADABLE, encode, invalid_params, members
from dovetail.protocol.results import Result, Shaper, ToolResult
from dovetail.protocol.revisions import R2026_07_28
from dovetail.protocol.types import Text
from dovetail.registry.tools import Tool
from dovetail.state.base import Listener, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

T = TypeVar("T")
RELATED_KEY = "io.modelcontextprotocol/related-task"
VERSIONS = frozenset([R2026_07_28.name])  # in which they are an extension
MAX_OPEN = 1_000  # tasks of one worker
MAX_PER_CALLER = 100  # of those; callers that are not known have no bound of their own
MAX_OUTCOME = 4 * 1024 * 1024  # bytes of an encoded result
MESSAGE_INTERVAL = 0.5  # seconds between two messages that are stored
CLEANUP_TIMEOUT = 1.0  # seconds for functions that are cancelled because the server stops
MIN_LIFE = 3_600.0  # seconds for which the record of an open task is stored, and stored again
STEP = "dovetail/task"  # the step that detaches a call: a request that is repeated gets the same task
BUSY = "Too many tasks are open; wait for some of them to end, or cancel some"
STOPPING = "The server is shutting down, so no task can begin"
UNSTORED = ProtocolError("The task has ended, but there is no room for its result")
REFUSALS = (StoreUnavailable, StoreFull, ToolBusy)
log = logging.getLogger("dovetail")


class TaskFields(msgspec.Struct, frozen=True):
    """The result of a method of tasks, and of a call that has become a task."""

    fields: Mapping[str, Any]

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.body(self.fields)


def can_have_task(request: Request) -> bool:
    """Whether a request that was made by 2026-07-28 declares the extension, or one of 2025-11-25 asks for a task."""
    if request.revision.core_tasks:
        if b'"task"' not in bytes(request.raw_params) or "task" not in (params := jsonrpc.members(request.raw_params)):
            return False
        try:
            jsonrpc.members(params["task"])  # for how long its result is stored is the server's to say
        except UNREADABLE:
            raise invalid_params("task must be an object") from None
        return True
    return request.revision.name in VERSIONS and TASKS in declared_extensions(request.capabilities)


class Tasks:
    """The tasks that this worker runs, and the way to those of all workers."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine
        self.runs: dict[str, TaskRun] = {}  # by id, until their ends are stored
        self.store = TaskStore(engine, self.runs)
        self.limit = Limit(engine.options.max_concurrency, MAX_OPEN, subject="The server")
        most = engine.options.max_threads
        self.threads = ThreadPool(most, max_stuck=max(100, 2 * most), name="dovetail-task", share=max(1, most // 2))
        self.listener: Listener | None = None  # while the server runs
        self.is_closing = False
        self._background: list[asyncio.Task[None]] = []

    # ── calls ──

    def layer(self, engine: "Engine", inner: Layer) -> Layer:
        """Runs tools apart from their requests where they may become tasks, with all middleware."""

        def layer(context: RequestContext) -> Awaitable[Result]:
            request = context.request
            if request.method != "tools/call" or context.served is not None:
                return inner(context)
            tool = engine.tools.find(request.params.name)
            if tool is None or tool.task is None or not can_have_task(request):
                return inner(context)
            return TaskRun(self, context, tool).result(inner)

        return layer

    def check_room(self, owner: str | None) -> None:
        """Raises ToolBusy if the caller, or this worker, has too many tasks, or the server stops."""
        if self.is_closing:
            raise ToolBusy(STOPPING)
        owners = [run.caller for run in self.runs.values()]
        if len(owners) >= MAX_OPEN or (owner is not None and owners.count(owner) >= MAX_PER_CALLER):
            raise ToolBusy(BUSY)

    # ── requests about tasks ──

    async def find(self, context: RequestContext, id: str) -> TaskRecord:
        """A task of this caller, who may still use its tool. Raises one error for all that it is not to see."""
        record = await self.store.look(id, context.request.revision)
        if record is None or record.owner != context.owner or not await self.may_see(context, record):
            raise UnknownTask
        return record

    async def may_see(self, context: RequestContext, record: TaskRecord) -> bool:
        """Whether a caller may still use the tool of a task."""
        tool = self.engine.tools.find(record.tool)
        return tool is None or tool.access is None or await access.may_use(self.engine, context, tool.access)

    async def grant(self, context: RequestContext, ids: Sequence[str]) -> list[str]:
        """Those tasks to which the caller of a listen may listen. Raises MissingCapability."""
        require_capabilities([TASKS], context.request.capabilities)
        granted = []
        for id in dict.fromkeys(ids):
            with suppress(UnknownTask):
                await self.find(context, id)
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
        if works := [run.work for run in self.runs.values()]:
            await asyncio.wait(works, timeout=timeout)
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


class TaskRun:
    """One run of a tool for a client that can have a task; it is one once it is detached from its request."""

    def __init__(self, tasks: Tasks, context: RequestContext, tool: Tool) -> None:
        assert tool.task is not None
        self.id = secrets.token_urlsafe(24)
        self.caller = state_owner(context)
        self.threads, self.limit, self.timeout = tasks.threads, tasks.limit, tool.task.timeout
        self.work: asyncio.Task[Result]
        self.questions: dict[str, tuple[Question, asyncio.Future[ClientResponse]]] = {}
        self._tasks = tasks
        self._config = tool.task
        self._life = max(tool.task.timeout + tool.task.ttl, MIN_LIFE)
        self._tool = tool.name
        self._is_core = context.request.revision.core_tasks
        self._request: RequestContext | None = context  # until it is detached
        self._channel: ClientChannel | None = None  # to a client of 2025-11-25, also without a request
        if self._is_core and context.channel is not None:
            self._channel = context.channel.for_task()
        self.context = replace(
            context, emit=self._emit, run=self, before_response=[], close_stream=None, _cancellation=None
        )
        self._became: asyncio.Future[TaskFields] = asyncio.get_running_loop().create_future()
        self._detaching = asyncio.Lock()
        self._later: asyncio.Task[None] | None = None  # that detaches it
        self._message = ""
        self._stored_at = 0.0  # the last message, by the clock of the loop
        self._showing: asyncio.TimerHandle | None = None
        self._numbers = itertools.count(1)
        self._notified = 0.0  # the time of the state that the client was notified of
        self._ending: asyncio.Task[None] | None = None

    @property
    def is_detached(self) -> bool:
        return self._request is None

    # ── the request ──

    async def result(self, inner: Layer) -> Result:
        """The result of the call, or the task that it has become."""
        self.work = asyncio.get_running_loop().create_task(self._work(inner))
        self.work.add_done_callback(self._ended)
        if self._config.after and not self._is_core:
            self._detach_later(self._config.after)
        either: set[asyncio.Future[Any]] = {self.work, self._became}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not self._became.done():
                self.stop()
                await asyncio.wait({self.work})
            raise
        return self._became.result() if self._became.done() else self.work.result()

    async def _work(self, inner: Layer) -> Result:
        try:
            return await inner(self.context)
        finally:
            await run_before_response(self.context)

    async def _emit(self, message: bytes) -> None:
        """Send a notification with the request; of a task only up to 2025-11-25, where the session has room for it."""
        if self._request is not None:
            await self._request.emit(message)
        elif self._channel is not None:
            await self._channel.notify(message)

    # ── detaching ──

    async def begin(self) -> None:
        """The function would run now: detach the call if it is a task from its beginning."""
        if self._is_core or self._config.after == 0:
            await self._detach()

    async def detach(self, message: str | None) -> None:
        """Detach the call now, or later if the store is unavailable; `message` is what clients are shown."""
        if message is not None:
            self._show(str(message))
        try:
            await self._detach()
        except REFUSALS as failure:  # the call is not lost for that: it goes on
            log.warning("a call of the tool %s can't become a task yet: %s", self._tool, failure)
            self._detach_later(self._tasks.engine.task_timings.retry_delay)

    def _detach_later(self, seconds: float) -> None:
        if self._later is None:
            self._later = asyncio.get_running_loop().create_task(self._try_to_detach(seconds))

    async def _try_to_detach(self, seconds: float) -> None:
        while not self.is_detached:
            await asyncio.sleep(seconds)
            with suppress(*REFUSALS, ToolError):
                await self._detach()
            seconds = self._tasks.engine.task_timings.retry_delay

    async def _detach(self) -> None:
        """Make the call a task, once. A request with the same state that is later answers with the same task."""
        if self.is_detached:
            return
        asked = self.context.server_requests
        steps = asked.steps if isinstance(asked, ReplayedRequests) else Steps(self._tasks.engine, {})
        try:
            id = await steps.run(STEP, lambda: self._create(steps), in_thread=False)
        except BaseException:
            steps.occurrences[STEP] -= 1
            raise
        if id != self.id:
            if (record := await self._tasks.store.look(id)) is None:
                raise UnknownTask
            self._became.set_result(TaskFields(record.created_fields(id)))
            self.stop()
            await asyncio.wait({self.work})  # it may be what waits here, and goes no further

    async def _create(self, steps: Steps) -> str:
        """Store the task. This goes on if the function that waits for it is cancelled."""
        async with self._detaching:
            if not self.is_detached:
                await self._store_new()
                self.context.server_requests = TaskRequests(self, self._tasks.engine, steps)
        return self.id

    async def _store_new(self) -> None:
        context, config, tasks, now = self.context, self._config, self._tasks, time.time()
        record = TaskRecord(
            revision=context.request.revision.name,
            tool=self._tool,
            owner=context.owner,
            worker=tasks.engine.worker_lease().id,
            created=now,
            updated=now,
            expires=now + self._life,
            ttl=config.ttl,
            poll_interval=config.poll_interval,
            message=self._message,
        )
        tasks.check_room(self.caller)
        tasks.start()
        tasks.runs[self.id] = self
        try:
            await tasks.store.create(self.id, record, context.task_list if self._is_core else None)
            asked = context.server_requests
            if self.work.done() or self.work.cancelling() or tasks.is_closing or (asked and asked.needs_input):
                await tasks.store.delete(self.id)
                raise ToolError("The call has ended before it became a task")
        except BaseException:  # perhaps it was stored all the same: the next try takes another id
            tasks.runs.pop(self.id, None)
            self.id = secrets.token_urlsafe(24)
            raise
        if tasks.listener is not None:
            tasks.listener.add(f"task/{self.id}")
        self._request, self._notified = None, now
        self._became.set_result(TaskFields(record.created_fields(self.id)))

    # ── questions, progress, changes by clients ──

    async def ask(self, method: str, params: bytes, timeout: float) -> Raw:
        """The client's result for a request, which stands in the record until then, under a key that is used once."""
        key, answer = f"{method.partition('/')[0]}-{next(self._numbers)}", asyncio.Future[ClientResponse]()
        session = self.context.request.session
        question = Question(method, params, time.time() + timeout, session.id if self._channel and session else None)
        self.questions[key] = question, answer
        asking: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(timeout) as limit:
                for _ in range(3):  # requests that a function makes at the same time are seen at the same time
                    await asyncio.sleep(0)
                await self._tasks.retry(self._sync)
                if self._channel is not None:
                    asking = self._tasks.spawn(self._ask_in_session(self._channel, key, question))
                response = await answer
        except TimeoutError:
            if not limit.expired():
                raise
            raise errors.AnswerTimeout(f"The client did not answer {method} within {timeout:g} s") from None
        finally:
            del self.questions[key]
            if asking is not None:
                asking.cancel()
            if not answer.done() or answer.cancelled():
                self._tasks.spawn(self.try_to_sync())
        if not response.is_result:
            raise question_failed(method, response.body)
        return Raw(response.body)

    async def _ask_in_session(self, channel: ClientChannel, key: str, question: Question) -> None:
        """Ask without a request of the client; if it has no stream, any request of `tasks/result` may ask."""
        await self._tasks.ask(channel, self.id, key, question)
        if key in self.questions:
            self.questions[key] = replace(question, session=None), self.questions[key][1]
            await self.try_to_sync()

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Show progress as the message of the task; on the loop only."""
        count = f"{progress:.12g}" if total is None else f"{progress:.12g}/{total:.12g}"
        self._show(f"{message} ({count})" if message else count)

    def _show(self, message: str) -> None:
        self._message = shown_message(message)
        if self.is_detached and self._showing is None:
            loop = asyncio.get_running_loop()
            due = max(self._stored_at + MESSAGE_INTERVAL, loop.time())
            self._showing = loop.call_at(due, lambda: self._tasks.spawn(self.try_to_sync()))

    async def try_to_sync(self) -> None:
        """Bring run and record together; while the store is unavailable, that is left to the next time."""
        if self.is_detached and not self.work.done():
            try:
                await self._sync()
            except REFUSALS:
                pass
            except Exception:
                log.exception("a task of the tool %s can't be brought up to date", self._tool)

    async def _sync(self) -> None:
        self._showing, self._stored_at = None, asyncio.get_running_loop().time()
        record = await self._tasks.store.change(self.id, self._synced)
        if record is None or record.is_over:  # it was cancelled, has expired, or this worker was taken for lost
            self.stop()
        else:
            await self._notify(record)

    def _synced(self, record: TaskRecord) -> TaskRecord:
        """The record as this run has it, once it has taken the answers."""
        if record.is_over:
            return record
        for key, response in record.answers.items():
            if key in self.questions and not (answer := self.questions[key][1]).done():
                answer.set_result(response)
        asked = {key: question for key, (question, answer) in self.questions.items() if not answer.done()}
        now = time.time()
        return replace(
            record,
            status="input_required" if asked else "working",
            message=self._message,
            questions=asked,
            answers={},
            expires=record.expires if record.expires > now + self._life / 2 else now + self._life,
        )

    async def _notify(self, record: TaskRecord) -> None:
        """Notify a client of 2025-11-25; it may not be there any more."""
        if self._channel is not None and record.updated != self._notified:
            self._notified = record.updated
            message = jsonrpc.notification("notifications/tasks/status", encode(record.fields(self.id)))
            with suppress(ProtocolError, OSError):
                await self._channel.notify(message)

    # ── the end ──

    def stop(self) -> None:
        """Cancel the function: nothing it does counts any more."""
        self.context.mark_cancelled()
        self.work.cancel()

    def _ended(self, work: "asyncio.Task[Result]") -> None:
        if self._later is not None:
            self._later.cancel()
        if not work.cancelled():
            work.exception()  # it is seen: by the request, or in the record
        if self.is_detached:
            self.store_end()

    def store_end(self) -> "asyncio.Task[None]":
        if self._ending is None:
            self._ending = self._tasks.spawn(self._store_end())
        return self._ending

    async def _store_end(self) -> None:
        end, tasks, record = self._end(), self._tasks, None
        while True:
            try:
                record = await tasks.store.change(self.id, end)
                break
            except StoreFull:
                end = partial(TaskRecord.failed, error=UNSTORED)
            except (StoreUnavailable, ToolBusy):
                pass
            if tasks.is_closing:  # other workers find that this one is lost
                break
            await asyncio.sleep(tasks.engine.task_timings.retry_delay)
        tasks.runs.pop(self.id, None)
        if tasks.listener is not None:
            tasks.listener.remove(f"task/{self.id}")
        if record is not None:
            await self._notify(record)

    def _end(self) -> Callable[[TaskRecord], TaskRecord]:
        """What becomes of the record when this run is over, or is lost since the server stops."""
        engine, context, message = self._tasks.engine, self.context, self._message
        if not self.work.done() or self.work.cancelled():
            return partial(TaskRecord.failed, error=LOST)
        try:
            result = self.work.result()
            body = result.encode(engine.shapers[context.request.revision.name])
            is_error = False
            if isinstance(result, ToolResult) and result.is_error:
                is_error, message = True, "\n".join(each.text for each in result.content if isinstance(each, Text))
        except BaseException as failure:
            context.mark_cancelled()
            try:
                body, is_error, message = encode_failure(engine, context, failure), True, str(failure)
            except BaseException as refusal:
                return partial(TaskRecord.failed, error=refusal if isinstance(refusal, ProtocolError) else LOST)
        if len(body) > MAX_OUTCOME:
            return partial(TaskRecord.failed, error=UNSTORED)
        if self._is_core and is_error:
            return partial(TaskRecord.ended, status="failed", outcome=body, message=message)
        return partial(TaskRecord.ended, status="completed", outcome=body, message=self._message)


class TaskRequests(LiveRequests):
    """The server requests of a task: they stand in its record, and the function waits for the answers there."""

    def __init__(self, run: TaskRun, engine: "Engine", steps: Steps) -> None:
        super().__init__(engine, run.context)
        self._run = run
        self._steps = steps

    def _check(self, input_request: InputRequest[Any]) -> None:
        context = self._context
        require_client_support(input_request.server_request, self._revision, context.request.capabilities)

    async def _exchange(self, input_request: InputRequest[Any], timeout: float) -> Raw:
        params = encode(input_request.params(self._revision))
        return await self._run.ask(input_request.server_request.method, params, timeout)

    async def require_urls(self, required: errors.UrlElicitationRequired) -> None:
        if not self._revision.input_required:
            await super().require_urls(required)
        timeout, accepted = self._engine.options.answer_timeout, list[bool]()
        for each in required.elicitations:
            accepted.append(each.read(await self.request(each, timeout), self._revision).accepted)
        raise ToolError(NOT_YET_DONE if all(accepted) else NOT_WILLING)
