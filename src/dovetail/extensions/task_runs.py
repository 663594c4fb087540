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
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Raw
from msgspec.structs import replace

from dovetail import errors
from dovetail.engine.caller_state import state_owner
from dovetail.engine.dispatch import Layer, encode_failure, run_before_response
from dovetail.engine.input_required import NOT_WILLING, NOT_YET_DONE, ReplayedRequests, Steps
from dovetail.engine.request_context import ClientChannel, RequestContext
from dovetail.engine.server_requests import ClientResponse, LiveRequests, question_failed
from dovetail.errors import ProtocolError, ToolBusy, ToolError
from dovetail.extensions.extension import ExtensionResult
from dovetail.extensions.task_store import LOST, Question, TaskRecord, UnknownTask, shown_message
from dovetail.protocol import jsonrpc
from dovetail.protocol.capabilities import require_client_support
from dovetail.protocol.elicitation import InputRequest
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.results import Result, ToolResult
from dovetail.protocol.types import Text
from dovetail.registry.tools import Tool
from dovetail.state.base import StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine
    from dovetail.extensions.tasks import Tasks

MAX_OUTCOME = 4 * 1024 * 1024  # bytes of an encoded result
MESSAGE_INTERVAL = 0.5  # seconds between two messages that are stored
MIN_LIFE = 3_600.0  # seconds for which the record of an open task is stored, and stored again
STEP = "dovetail/task"  # the step that detaches a call: a request that is repeated gets the same task
UNSTORED = ProtocolError("The task has ended, but there is no room for its result")
REFUSALS = (StoreUnavailable, StoreFull, ToolBusy)
log = logging.getLogger("dovetail")


class TaskRun:
    """One run of a tool for a client that can have a task; it is one once it is detached from its request."""

    def __init__(self, tasks: "Tasks", context: RequestContext, tool: Tool) -> None:
        assert tool.task is not None
        self.id = secrets.token_hex(16)
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
        self._became: asyncio.Future[ExtensionResult] = asyncio.get_running_loop().create_future()
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
            with suppress(StoreUnavailable):  # the task goes on without; its state still shows the progress
                await self._channel.notify(message)

    # ── detaching ──

    async def begin(self) -> None:
        """The function would run now: detach the call if it is a task from its beginning."""
        if self._is_core or self._config.after == 0:
            await self._detach()
        elif self._config.after:
            self._detach_later(self._config.after)

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
            self._became.set_result(ExtensionResult(record.created_fields(id)))
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
            self.id = secrets.token_hex(16)
            raise
        if tasks.listener is not None:
            tasks.listener.add(f"task/{self.id}")
        self._request, self._notified = None, now
        self._became.set_result(ExtensionResult(record.created_fields(self.id)))

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
