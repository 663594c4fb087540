"""Tasks: tool calls that go on at the server after its first response, and are polled until they end.

Since 2026-07-28 they are an extension: the server decides which call becomes a task, and `tasks/get` has its questions
and its result. In 2025-11-25 the call asks for a task; `tasks/result` waits for the result, and what the server asks
comes as its own requests.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Raw

from dovetail.client.dispatcher import Params, RunHandler, read_server_error
from dovetail.client.handlers import InputRequest, prepare_answers
from dovetail.client.results import NULL, CallToolResult, decode, read_result, result_type_of
from dovetail.client.transports.base import cancel_and_wait
from dovetail.client.transports.http import is_transient
from dovetail.errors import BadResponse, DovetailError, ServerError, TaskCancelled, TooManyRequests
from dovetail.protocol.revisions import Revision

if TYPE_CHECKING:
    from dovetail.client.session import ClientSession, Timeout

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
ReadResult = Callable[[Raw, bool], Awaitable[CallToolResult]]  # the result of the tool; True: raise its ToolError

GET, UPDATE, CANCEL, RESULT = "tasks/get", "tasks/update", "tasks/cancel", "tasks/result"
ENDED = frozenset({"completed", "failed", "cancelled"})
DEFAULT_POLL, SHORTEST_POLL = 1.0, 0.01  # seconds
MAX_QUESTIONS = 100  # of one task
MAX_TRIES = 5  # of a request that fails in a way that may pass
CANCEL_TIMEOUT = 5.0  # seconds for a server to cancel the task of a call that was cancelled


class TaskUpdate(msgspec.Struct, frozen=True):
    """The state of a task, as the server last told it."""

    status: TaskStatus
    message: str | None = None


class WireTask(msgspec.Struct, frozen=True, rename="camel"):
    """A task as the server sends it, in either form."""

    task_id: str
    status: TaskStatus
    status_message: str | None = None
    poll_interval_ms: float | None = None
    poll_interval: float | None = None  # in 2025-11-25
    input_requests: dict[str, InputRequest] | None = None
    result: Raw = NULL
    error: Raw = NULL

    @property
    def update(self) -> TaskUpdate:
        return TaskUpdate(self.status, self.status_message)

    @property
    def outcome(self) -> Raw | DovetailError | None:
        """The result or error of a task that has ended; in 2025-11-25 only that it was cancelled."""
        if self.status == "cancelled":
            return TaskCancelled(": ".join(filter(None, ["The task was cancelled", self.status_message])))
        if self.status == "failed":
            return read_server_error("tools/call", self.error)
        return self.result if self.status == "completed" else None

    @property
    def poll_seconds(self) -> float:
        given = self.poll_interval if self.poll_interval_ms is None else self.poll_interval_ms
        return DEFAULT_POLL if given is None else max(given / 1000, SHORTEST_POLL)


class _Created(msgspec.Struct, frozen=True):
    task: WireTask | None = None


def read_created(method: str, raw: Raw, revision: Revision) -> WireTask:
    """The task that a call has become; one without an id, that has ended, if the server answered at once."""
    if revision.core_tasks:
        created = decode(method, raw, _Created).task
    else:
        created = decode(method, raw, WireTask) if result_type_of(method, raw) == "task" else None
    return created or WireTask("", "completed", result=raw)


class ToolTask:
    """A call that goes on at the server, from `client.start_tool` or `client.task`.

    task = await client.start_tool("render", {"scene": "beach"})
    async for update in task:
        print(update.status, update.message)
    result = await task.wait()

    It is polled, and its questions are answered by the handlers of the client, while a caller waits for it or iterates.
    `id` is None if the server answered at once.
    """

    def __init__(
        self, session: "ClientSession", id: str | None, read_result: ReadResult, timeout: "Timeout",
        latest: WireTask | None = None,
    ) -> None:  # fmt: skip
        self.id = id
        self._session = session
        self._is_core = session.revision.core_tasks
        self._read_result = read_result
        self._timeout = timeout
        self._latest = latest
        is_known = latest is not None and (id is None or latest.status == "cancelled")
        self._outcome = latest.outcome if latest is not None and is_known else None
        self._due = 0.0 if latest is None else _now() + latest.poll_seconds  # when the server may be asked again
        self._polling = asyncio.Lock()
        self._running: dict[str, asyncio.Task[None]] = {}  # handlers of questions, by key
        self._waiters = 0  # iterations that poll it
        self._asked: dict[str, tuple[str, Any]] = {}  # method and params by key
        self._answered: set[str] = set()

    def __repr__(self) -> str:
        return f"<ToolTask {self.id}: {self.status}>"

    @property
    def status(self) -> TaskStatus | None:
        """The status that the server last told; None if it was not asked yet."""
        return None if self._latest is None else self._latest.status

    @property
    def message(self) -> str | None:
        """The server's words for its status."""
        return None if self._latest is None else self._latest.status_message

    @property
    def is_ended(self) -> bool:
        return self.status in ENDED

    async def wait(self, *, raise_on_error: bool = True) -> CallToolResult:
        """The result of the tool, as `call_tool` returns it, in at most `max_timeout` seconds.

        Raises ToolError, ServerError if the task failed, or TaskCancelled. If this is cancelled, the task goes on.
        """
        if self._outcome is None:
            seconds = None if self._session.seconds(self._timeout) is None else self._session.max_timeout
            async with self._session.time_limit(seconds, f"The task {self.id} did not end"):
                async for _ in self:
                    pass
                if self._is_core and self.status != "cancelled":
                    self._outcome = await self._send(RESULT)
        assert self._outcome is not None
        if isinstance(self._outcome, DovetailError):
            raise self._outcome
        return await self._read_result(self._outcome, raise_on_error)

    @asynccontextmanager
    async def or_cancel(self) -> AsyncIterator[None]:
        """Cancel the task if the block ends with an exception, or is cancelled, before the task has ended."""
        try:
            yield
        except BaseException:
            if not self.is_ended:
                with suppress(DovetailError, TimeoutError):
                    async with asyncio.timeout(CANCEL_TIMEOUT):
                        await self.cancel()
            raise

    async def __aiter__(self) -> AsyncIterator[TaskUpdate]:
        """The state now, and after each change of status or message, until the task has ended."""
        shown = None
        self._waiters += 1
        try:
            while True:
                if self._latest is not None and self._latest.update != shown:
                    shown = self._latest.update
                    yield shown
                if self._is_final:
                    return
                await self.refresh()
                for handler in self._running.values():
                    if handler.done():
                        handler.result()  # raises what the handler has raised
                if self._is_core:
                    self._open_stream()
                else:
                    self._answer_questions()
        finally:
            self._waiters -= 1
            if not self._waiters:
                running, self._running = self._running, {}
                await cancel_and_wait(*running.values())

    async def refresh(self) -> None:
        """Ask the server for the status once, but not sooner than it wants to be asked again."""
        async with self._polling:
            if self._is_final:  # the first state in which it has ended
                return
            await asyncio.sleep(self._due - _now())
            task = read_result(GET, await self._send(GET), WireTask)
            if task.task_id != self.id:
                raise BadResponse(f"{GET}: the server answers for another task")
            self._latest, self._due = task, _now() + task.poll_seconds
            if not self._is_core or task.status == "cancelled":
                self._outcome = task.outcome

    async def cancel(self) -> None:
        """Ask the server to cancel the task. It may end otherwise all the same: `wait` tells."""
        if not self.is_ended:
            await self._send(CANCEL)

    @property
    def _is_final(self) -> bool:
        return self._outcome is not None or (self._is_core and self.is_ended)

    # ── questions ──

    def _answer_questions(self) -> None:
        """Run the handlers of new questions, and cancel those of questions that are gone."""
        assert self._latest is not None
        requests = (self.status == "input_required" and self._latest.input_requests) or {}
        for key, request in requests.items():
            asked = (request.method, msgspec.json.decode(request.params))
            if self._asked.setdefault(key, asked) != asked:
                raise BadResponse(f"{GET}: the key {key[:100]!r} was reused incompatibly, for another question")
        if len(self._asked) > MAX_QUESTIONS:
            raise BadResponse(f"{GET}: the server asks more than {MAX_QUESTIONS} questions")
        for key in self._running.keys() - requests.keys():
            self._running.pop(key).cancel()
        new = {key: each for key, each in requests.items() if key not in self._answered | self._running.keys()}
        for key, run_handler in prepare_answers(GET, new, self._session.prepare_input).items():
            self._running[key] = asyncio.create_task(self._answer(key, run_handler))

    async def _answer(self, key: str, run_handler: RunHandler) -> None:
        with self._session.dispatcher.timeouts.paused():
            response = await run_handler()
        await self._send(UPDATE, {"inputResponses": {key: response}})
        self._answered.add(key)

    def _open_stream(self) -> None:
        """Give the server a stream for its questions: in 2025-11-25 they are requests of its own."""
        if self.status == "input_required" and (RESULT not in self._running or self._running[RESULT].done()):
            self._running[RESULT] = asyncio.create_task(self._wait_at_server())

    async def _wait_at_server(self) -> None:
        with suppress(ServerError):  # it is asked again when the task has ended
            await self._send(RESULT)

    async def _send(self, method: str, more: Params | None = None) -> Raw:
        """Send a request about the task, and again after a failure that may pass: all of them may be repeated."""
        backoff = self._session.dispatcher.transport.backoff()
        params, waits = {"taskId": self.id, **(more or {})}, method == RESULT
        timeout = None if waits else self._timeout
        for tries in range(1, MAX_TRIES + 1):
            try:
                return await self._session.send(method, params, timeout=timeout, cancellable=waits)
            except DovetailError as failure:
                if tries == MAX_TRIES or not is_transient(failure) or self._session.dispatcher.is_closed:
                    raise
                backoff.retry = failure.retry_after if isinstance(failure, TooManyRequests) else None
            await asyncio.sleep(backoff.next_delay())
        raise AssertionError


def _now() -> float:
    return asyncio.get_running_loop().time()
