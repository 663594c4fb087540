"""Tasks in the state store: one record each, changed by compare-and-set, so that any worker answers for any task.

task/<id>            the record; its topic wakes the worker that runs the task, and the requests that wait for it
task/of/<list>       a log of ids, for `tasks/list`
task/all             a log of ids, for the worker that looks for tasks of lost ones
task/sweep           claimed by that worker, for one look
"""

import asyncio
import random
import re
import time
from collections.abc import Callable, Container
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dovetail import engine as lazy
from dovetail.engine.idempotency import Failure
from dovetail.engine.server_requests import ClientResponse
from dovetail.errors import INVALID_PARAMS, ProtocolError, ToolBusy
from dovetail.protocol import jsonrpc, revisions
from dovetail.protocol.revisions import Revision
from dovetail.state.base import MAX_TTL, Codec, Conflict

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

Status = Literal["working", "input_required", "completed", "failed", "cancelled"]
ENDS = ("completed", "failed", "cancelled")
ID = re.compile(r"[A-Za-z0-9_-]{32}\Z")
MAX_LISTED = 1_000  # tasks of one list, the newest
MAX_SWEPT = 10_000  # tasks of all workers, the newest; older ones end when a client asks for them
MAX_MESSAGE = 1_000  # characters of a status message
MAX_TRIES = 100  # of a change, while other workers are faster
LOST = ProtocolError("The worker that ran this task was lost; whether it had all its effects is not known")
ALL = "task/all"


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A request to the client that waits for its response."""

    method: str
    params: bytes  # as the client's revision spells them
    until: float  # seconds since 1970
    session: str | None = None  # in which the task has asked it; elsewhere, requests of tasks/result ask


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the store holds of a task. Times are seconds since 1970."""

    revision: str  # of the request that has created it
    tool: str
    owner: str | None
    worker: str
    created: float
    updated: float
    expires: float
    ttl: float  # seconds after its end
    poll_interval: float
    status: Status = "working"
    message: str = ""
    questions: dict[str, Question] = {}  # by key: those without a response
    answers: dict[str, ClientResponse] = {}  # that the worker has not taken
    outcome: bytes | Failure | None = None  # a result is encoded

    @property
    def is_over(self) -> bool:
        return self.status in ENDS

    @property
    def shown(self) -> tuple[Any, ...]:
        """What clients see, but for its times."""
        return self.status, self.message, self.questions, self.outcome

    def ended(self, status: Status, outcome: bytes | Failure | None, message: str = "") -> "TaskRecord":
        """The task at its end, unless it has ended already: an end never changes."""
        if self.is_over:
            return self
        return replace(
            self,
            status=status,
            outcome=outcome,
            message=shown_message(message) or self.message,
            questions={},
            answers={},
            expires=time.time() + self.ttl,
        )

    def failed(self, error: ProtocolError) -> "TaskRecord":
        return self.ended("failed", Failure.from_error(error), error.message)

    def fields(self, id: str) -> dict[str, Any]:
        """The Task of the record's revision."""
        core = revisions.BY_NAME[self.revision].core_tasks
        fields = {
            "taskId": id,
            "status": self.status,
            "createdAt": _timestamp(self.created),
            "lastUpdatedAt": _timestamp(self.updated),
            "ttl" if core else "ttlMs": max(1, round(1000 * (self.expires - self.created))),
            "pollInterval" if core else "pollIntervalMs": max(1, round(1000 * self.poll_interval)),
        }
        return {**fields, "statusMessage": self.message} if self.message else fields

    def created_fields(self, id: str) -> dict[str, Any]:
        """What a call is answered with that has become the task."""
        fields = self.fields(id)
        return {"task": fields} if "ttl" in fields else {"resultType": "task", **fields}

    def detailed(self, id: str) -> dict[str, Any]:
        """The Task, and what its status brings with it, since 2026-07-28."""
        fields = self.fields(id)
        if self.questions:
            fields["inputRequests"] = {key: _server_request(each) for key, each in self.questions.items()}
        elif isinstance(self.outcome, bytes):
            fields["result"] = Raw(self.outcome)
        elif self.outcome is not None:
            data = {} if self.outcome.data is None else {"data": self.outcome.data}
            fields["error"] = {"code": self.outcome.code, "message": self.outcome.message, **data}
        return fields


CODEC: Codec[TaskRecord] = Codec(TaskRecord, "task")


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _server_request(question: Question) -> dict[str, Any]:
    return {"method": question.method, **({"params": Raw(question.params)} if question.params != b"{}" else {})}


def shown_message(text: str) -> str:
    return jsonrpc.sendable(text)[:MAX_MESSAGE]


class UnknownTask(ProtocolError):
    """One error for all tasks that a caller is not to see."""

    def __init__(self) -> None:
        super().__init__("There is no such task: its id is wrong, or it has expired", code=INVALID_PARAMS)


class TaskStore:
    """The records of all tasks. `here` are the ids of those that run at this worker."""

    def __init__(self, engine: "Engine", here: Container[str]) -> None:
        self._engine = engine
        self._here = here

    async def create(self, id: str, record: TaskRecord, listed: str | None) -> None:
        """Store a new task. The logs come first: an id without a task does no harm."""
        state, lease = self._engine.state, self._engine.worker_lease()
        ttl = max(1.0, record.expires - time.time())
        if lease.store_error is not None:
            await lease.renew()  # without a lease the task would be taken for lost
        await state.append(ALL, id.encode(), keep=MAX_SWEPT, ttl=MAX_TTL)
        if listed is not None:
            await state.append(f"task/of/{listed}", id.encode(), keep=MAX_LISTED, ttl=ttl)
        await state.put(f"task/{id}", CODEC.encode(record), ttl=ttl, if_version=0)

    async def delete(self, id: str) -> None:
        await self._engine.state.delete(f"task/{id}")

    async def look(self, id: str, revision: Revision | None = None) -> TaskRecord | None:
        """The task; one whose worker is lost ends here. None if there is none, or it is none of this revision."""
        entry = await self._engine.state.get(f"task/{id}") if ID.match(id) else None
        record = None if entry is None else CODEC.decode(entry.value)
        if record is None or (revision is not None and record.revision != revision.name):
            return None
        lease, runs_elsewhere = self._engine.worker_lease(), not (record.is_over or id in self._here)
        if runs_elsewhere and (record.worker == lease.id or await lease.is_lost(record.worker)):
            return await self.change(id, lambda each: each.failed(LOST))
        return record

    async def change(self, id: str, change: Callable[[TaskRecord], TaskRecord]) -> TaskRecord | None:
        """Replace a record by what `change` returns for it, which may be called again; None if there is none."""
        state, name = self._engine.state, f"task/{id}"
        for attempt in range(MAX_TRIES):
            entry = await state.get(name)
            if entry is None or (record := CODEC.decode(entry.value)) is None:
                return None
            changed = change(record)
            if changed == record:
                return record
            if changed.shown != record.shown:
                changed = replace(changed, updated=time.time())
            try:
                ttl = max(1.0, changed.expires - time.time())
                await state.put(name, CODEC.encode(changed), ttl=ttl, if_version=entry.version)
            except Conflict:
                await asyncio.sleep(random.uniform(0, min(0.001 * 2**attempt, 0.05)))
                continue
            await state.publish(name)
            if changed.is_over and not record.is_over and (metrics := self._engine.metrics) is not None:
                metrics.add(lazy.metrics.TASKS_ENDED, changed.status)
            return changed
        raise ToolBusy("This task changes all the time; try again later")

    async def listed(self, name: str, after: int, size: int) -> tuple[list[tuple[str, TaskRecord]], int | None]:
        """Tasks of a list, and the number after which the next page begins, if there is one."""
        page = await self._engine.state.read(f"task/of/{name}", after, size)
        ids = [record.data.decode() for record in page.records]
        found = [(id, replace(task, outcome=None)) for id in ids if (task := await self.look(id)) is not None]
        last = page.records[-1].id if page.records else page.last
        return found, last if last < page.last else None

    async def sweep(self) -> None:
        """End the tasks of lost workers, also those for which no client asks; one worker does that for all."""
        state, after = self._engine.state, 0
        if not await state.claim("task/sweep", b"", self._engine.task_timings.sweep_every):
            return
        while (page := await state.read(ALL, after, 1_000)).records:
            for each in page.records:
                await self.look(each.data.decode())
            after = page.records[-1].id
