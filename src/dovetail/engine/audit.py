"""Audit events: who did what, one `AuditEvent` for each request that was to do something.

Events go to the logger `dovetail.audit`, each as a line of JSON, or to a function of the user's. No call waits for such
a function: events wait in a bounded queue. An event that the function does not take, because it fails or too many wait
for it, goes to the log instead, and the log says so.
"""

import asyncio
import contextvars
import functools
import hashlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Raw

from dovetail.engine.call_tool import EXITS, is_cancelled
from dovetail.engine.redaction import CUT, Redactor, escaped
from dovetail.engine.request_context import RequestContext
from dovetail.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    Busy,
    MissingCapability,
    NotFound,
    ProtocolError,
    RateLimited,
    ToolError,
    Unauthorized,
)
from dovetail.protocol import jsonrpc
from dovetail.protocol.inbound import Request
from dovetail.protocol.methods import CompleteParams
from dovetail.protocol.results import InputRequiredResult, Result, ToolResult

if TYPE_CHECKING:
    from dovetail.auth.principal import Principal
    from dovetail.engine.dispatch import Step
    from dovetail.engine.engine import Engine

Outcome = Literal["ok", "tool_error", "error", "refused", "cancelled", "input_required"]

MAX_NAME = 1_024  # characters of a tool's name or a URI
MAX_LABEL = 256  # characters of other words

log = logging.getLogger("dovetail")
audit_log = logging.getLogger("dovetail.audit")


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request that was to do something, and what became of it."""

    time: str  # when it came, in UTC
    method: str
    name: str | None = None  # of the tool or prompt, or the URI
    subject: str | None = None  # the three that say who: the user, the program, and who vouches for them
    client: str | None = None
    issuer: str | None = None
    session: str | None = None  # a digest: it tells sessions apart, but is not the id, which would open one
    request_id: int | str | None = None
    address: str | None = None
    revision: str | None = None
    outcome: Outcome
    code: int | None = None  # of the error
    reason: str | None = None  # the word that OAuth has for a refusal
    duration_ms: float = 0.0
    arguments: Any = None  # without secrets, and in part if there are many


AuditFunction = Callable[[AuditEvent], Awaitable[None] | None]


# ── what a request is about, and what became of it ──

Subject = tuple[str | None, Raw | None]  # a name, and arguments as JSON
Ending = dict[str, Any]  # fields of an event


def _of_completion(params: CompleteParams) -> Subject:
    given = {**params.context.arguments, params.argument.name: params.argument.value}
    return params.ref.uri or params.ref.name, Raw(jsonrpc.encode(given))


# The requests that are noted. Lists and greetings tell what there is and do nothing.
SUBJECTS: dict[str, Callable[[Any], Subject]] = {
    "tools/call": lambda params: (params.name, params.arguments),
    "prompts/get": lambda params: (params.name, params.arguments),
    "resources/read": lambda params: (params.uri, None),
    "resources/subscribe": lambda params: (params.uri, None),
    "resources/unsubscribe": lambda params: (params.uri, None),
    "completion/complete": _of_completion,
    "subscriptions/listen": lambda params: (None, Raw(jsonrpc.encode(params.notifications))),
}


def _answered(result: Result) -> Ending:
    if isinstance(result, ToolResult) and result.is_error:
        return {"outcome": "tool_error"}
    return {"outcome": "input_required" if isinstance(result, InputRequiredResult) else "ok"}


def _failed(failure: BaseException, request: Request) -> Ending:
    """As the client is told: `dispatch` makes errors of the same failures."""
    if isinstance(failure, ToolError) and request.method == "tools/call":
        return {"outcome": "tool_error"}
    if isinstance(failure, (Unauthorized, RateLimited, Busy)):
        return {"outcome": "refused", "code": failure.code, "reason": getattr(failure, "error", None)}
    if isinstance(failure, GeneratorExit) or (isinstance(failure, asyncio.CancelledError) and is_cancelled()):
        return {"outcome": "cancelled"}
    code = failure.code if isinstance(failure, ProtocolError) else INTERNAL_ERROR
    if isinstance(failure, NotFound):
        code = request.revision.missing_resource_code
    elif isinstance(failure, MissingCapability) and request.revision.handshake:
        code = INVALID_REQUEST
    return {"outcome": "error", "code": code}


def audited(trail: "AuditTrail", inner: "Step") -> "Step":
    """Notes how each request ends, around everything else that it goes through."""

    async def step(context: RequestContext) -> Result:
        request = context.request  # as it came: a middleware may change it
        if request.method not in SUBJECTS:
            return await inner(context)
        at, began, method, params = time.time(), time.perf_counter(), request.method, request.params

        def note(ending: Ending) -> None:
            duration = round((time.perf_counter() - began) * 1000, 3)
            trail.note(context, method, params, time=_written(at), duration_ms=duration, **ending)

        try:
            result = await inner(context)
        except BaseException as failure:
            note(_failed(failure, request))
            raise
        note(_answered(result))
        return result

    return step


# ── events ──


class AuditTrail:
    """Makes events, and sends them where the server's `audit` says."""

    def __init__(self, engine: "Engine", **bounds: Any) -> None:
        audit = engine.options.audit
        self._redactor = engine.redactor
        self._with_arguments = engine.options.audit_arguments
        self._send = AuditLog().write if isinstance(audit, bool) else AuditQueue(audit, engine, **bounds).take

    def note(self, context: RequestContext, method: str, params: Any, **ending: Any) -> None:
        """How a request ended that the engine has served."""
        request, session = context.request, context.request.session

        def about() -> dict[str, Any]:
            name, given = SUBJECTS[method](params)
            return {
                "name": name,
                "session": None if session is None else hashlib.sha256(session.id.encode()).hexdigest()[:16],
                "request_id": _short(request.id) if isinstance(request.id, str) else request.id,
                "revision": request.revision.name,
                "arguments": shown(given, self._redactor) if self._with_arguments and given is not None else None,
            }

        self._note(method, about, context.principal, context.address, **ending)

    def refused(
        self, failure: ProtocolError, *, method: str, name: str | None = None,
        principal: "Principal | None" = None, address: str | None = None,
    ) -> None:  # fmt: skip
        """A request that a transport has turned away before anything was read of it: `method` and `name` are HTTP's."""
        reason = failure.error if isinstance(failure, Unauthorized) else None
        ending = {"time": _written(time.time()), "outcome": "refused", "code": failure.code, "reason": reason}
        self._note(method, lambda: {"name": name}, principal, address, **ending)

    def _note(
        self, method: str, about: Callable[[], dict[str, Any]], principal: "Principal | None", address: str | None,
        **ending: Any,
    ) -> None:  # fmt: skip
        """A fault in here does not harm the request."""
        try:
            fields = about()
            fields["name"] = self._clean(fields["name"])
            self._send(AuditEvent(method=method, address=address, **_who(principal), **fields, **ending))
        except Exception:
            log.exception("%s could not be noted for the audit", method)

    def _clean(self, name: str | None) -> str | None:
        """A URI may hold a password. What is looked at is more than what is shown, so that no half of one remains."""
        return None if name is None else _cut(self._redactor.text(name[: 4 * MAX_NAME]), MAX_NAME)


def _who(principal: "Principal | None") -> dict[str, Any]:
    if principal is None:
        return {}
    return {name: _short(getattr(principal, name)) for name in ("subject", "client", "issuer")}


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _short(text: str | None) -> str | None:
    return None if text is None else jsonrpc.sendable(_cut(text, MAX_LABEL))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + CUT


def shown(given: Raw, redactor: Redactor, *, max_bytes: int = 4 * 1024, max_members: int = 64) -> Any:
    """Arguments without secrets. Of long ones each member that fits is whole, so that nothing hides behind the rest."""
    try:
        is_short = _size(given) <= max_bytes
        value = jsonrpc.parse(given) if is_short else _members_that_fit(given, max_bytes, max_members)
    except (jsonrpc.BadMessage, *jsonrpc.UNREADABLE):
        return CUT
    return redactor.value(value)


def _members_that_fit(given: Raw, left: int, most: int) -> dict[str, Any]:
    members = jsonrpc.members(given)
    fitting: dict[str, Any] = {}
    for name, part in islice(members.items(), most):
        size = len(name) + _size(part)
        if size <= left:
            left -= size
            fitting[name] = jsonrpc.parse(part)
        else:
            fitting[_cut(name, MAX_LABEL)] = f"{CUT} {_size(part)} bytes"
    if len(members) > most:
        fitting[CUT] = f"{len(members) - most} more"
    return fitting


def _size(raw: Raw) -> int:
    return memoryview(raw).nbytes


# ── where they go ──


class AuditLog:
    """The logger `dovetail.audit`: one line of JSON for each event, without secrets already."""

    def __init__(self) -> None:
        self._is_heard = False

    def write(self, event: AuditEvent, level: int = logging.INFO) -> None:
        if not self._is_heard:
            self._is_heard = True
            if level == logging.INFO and not (audit_log.isEnabledFor(level) and audit_log.hasHandlers()):
                log.warning("audit events are lost: no handler takes INFO records of the logger dovetail.audit")
        audit_log.log(level, "%s", escaped(jsonrpc.encode(event).decode()), extra={"is_redacted": True})


class AuditQueue:
    """A user's function that is given one event after the other, by a task that lives while there are any."""

    def __init__(
        self, function: AuditFunction, engine: "Engine", *, max_waiting: int = 2_000, patience: float = 10.0
    ) -> None:
        """`max_waiting` events may wait, and each may take `patience` seconds."""
        self._function = function
        self._is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        self._threads = engine.threads
        self._ends_with = engine.running_steps  # what the server waits for a little when it stops
        self._patience = patience
        self._queue: asyncio.Queue[AuditEvent] = asyncio.Queue(max_waiting)
        self._task: asyncio.Task[None] | None = None
        self._log = AuditLog()
        self._not_taken = 0
        self._tell_again = 0.0

    def take(self, event: AuditEvent) -> None:
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self._keep(event, None)
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._hand_over(), context=contextvars.Context())  # no single call's
            self._ends_with.add(self._task)
            self._task.add_done_callback(self._ends_with.discard)

    async def _hand_over(self) -> None:
        event: AuditEvent | None = None
        try:
            while not self._queue.empty():
                event = self._queue.get_nowait()
                try:
                    async with asyncio.timeout(self._patience):
                        await self._give(event)
                except (Exception, asyncio.CancelledError, *EXITS) as failure:
                    if is_cancelled():
                        raise
                    self._keep(event, failure)
                event = None
        finally:  # if the loop ends before they are taken
            if event is not None:
                self._keep(event, None)
            while not self._queue.empty():
                self._keep(self._queue.get_nowait(), None)

    async def _give(self, event: AuditEvent) -> None:
        call = functools.partial(self._function, event)
        returned: Any = call() if self._is_async else await self._threads.run(call, label="audit")
        if inspect.isawaitable(returned):
            await returned

    def _keep(self, event: AuditEvent, failure: BaseException | None) -> None:
        """In the log, at a level that is seen even where nobody has set one up; once a minute it is said why."""
        self._log.write(event, logging.WARNING)
        self._not_taken += 1
        if time.monotonic() >= self._tell_again:
            self._tell_again = time.monotonic() + 60.0
            why = "is too slow" if failure is None else "failed"
            words = "the audit function %s; %d events so far are in the log dovetail.audit instead"
            log.error(words, why, self._not_taken, exc_info=failure)
