"""Audit events: one `AuditEvent` for each request that does something, and who made it.

Events go to the logger `dovetail.audit`, each as a line of JSON, or to a function of the author's. No call waits for
that function: events wait in a bounded queue. If the queue is full or the function fails, the event goes to the log.
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
from msgspec.structs import replace

from dovetail import errors
from dovetail.engine.call_tool import EXITS, is_cancelled
from dovetail.engine.redaction import CUT, Redactor, escaped
from dovetail.engine.request_context import RequestContext
from dovetail.protocol import jsonrpc
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import InputRequiredResult, Result, ToolResult

if TYPE_CHECKING:
    from dovetail.auth.principal import Principal
    from dovetail.engine.dispatch import Layer
    from dovetail.engine.engine import Engine

Outcome = Literal["ok", "tool_error", "error", "refused", "cancelled", "input_required"]

MAX_NAME = 1_024  # characters of a tool's name or a URI
MAX_LABEL = 256  # characters of other texts
WARNING_INTERVAL = 60.0  # seconds between two errors about an audit function

log = logging.getLogger("dovetail")
audit_log = logging.getLogger("dovetail.audit")


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request that was to do something, and its outcome."""

    time: str  # when it came, in UTC
    method: str
    name: str | None = None  # of the tool or prompt, or the URI
    subject: str | None = None  # the user of the principal
    client: str | None = None  # the program of the principal
    issuer: str | None = None  # the issuer that vouches for both
    session: str | None = None  # a digest: it distinguishes sessions, but is not the id, which would open one
    request_id: int | str | None = None
    address: str | None = None
    revision: str | None = None
    outcome: Outcome
    code: int | None = None  # the code of the error
    reason: str | None = None  # OAuth's error code of a refusal
    duration_ms: float = 0.0
    arguments: Any = None  # without secrets, and in part if there are many


AuditFunction = Callable[[AuditEvent], Awaitable[None] | None]


# ── the subject of a request, and its outcome ──

Subject = tuple[str | None, Raw | None]  # a name, and arguments as JSON
EventFields = dict[str, Any]


# The methods that are audited, besides those of authors' extensions: lists, pings and handshakes do nothing.
SUBJECTS: dict[str, Callable[[Any], Subject]] = {
    "tools/call": lambda params: (params.name, params.arguments),
    "prompts/get": lambda params: (params.name, params.arguments),
    "resources/read": lambda params: (params.uri, None),
    "resources/subscribe": lambda params: (params.uri, None),
    "resources/unsubscribe": lambda params: (params.uri, None),
    "completion/complete": lambda params: (
        params.ref.uri or params.ref.name,
        Raw(jsonrpc.encode({**params.context.arguments, params.argument.name: params.argument.value})),
    ),
    # without the ids of tasks: to some callers, an id is all that it takes
    "tasks/cancel": lambda _: (None, None),
    "tasks/update": lambda _: (None, None),
    "subscriptions/listen": lambda params: (None, Raw(jsonrpc.encode(replace(params.notifications, task_ids=[])))),
}


def _of_extension(params: Raw) -> Subject:
    given = jsonrpc.members(params)
    given.pop("_meta", None)
    return None, Raw(jsonrpc.encode(given))


def result_outcome(result: Result) -> Outcome:
    if isinstance(result, ToolResult) and result.is_error:
        return "tool_error"
    return "input_required" if isinstance(result, InputRequiredResult) else "ok"


def failure_outcome(failure: BaseException, request: Request) -> tuple[Outcome, int | None]:
    """The outcome of a failure, with the code that the client gets: `dispatch` makes errors of the same failures."""
    if isinstance(failure, errors.ToolError) and request.method == "tools/call":
        return "tool_error", None
    if isinstance(failure, (errors.Unauthorized, errors.RateLimited, errors.Busy)):
        return "refused", failure.code
    if isinstance(failure, GeneratorExit) or (isinstance(failure, asyncio.CancelledError) and is_cancelled()):
        return "cancelled", None
    code = failure.code if isinstance(failure, errors.ProtocolError) else errors.INTERNAL_ERROR
    if isinstance(failure, errors.NotFound):
        code = request.revision.missing_resource_code
    elif isinstance(failure, errors.MissingCapability) and request.revision.handshake:
        code = errors.INVALID_REQUEST
    return "error", code


def session_digest(id: str) -> str:
    """It distinguishes sessions, but opens none."""
    return hashlib.sha256(id.encode()).hexdigest()[:16]


def _reason(failure: BaseException) -> str | None:
    return failure.error if isinstance(failure, errors.Unauthorized) else None


def audited(trail: "AuditTrail", inner: "Layer") -> "Layer":
    """The outermost layer of the chain: records the outcome of each request."""

    async def layer(context: RequestContext) -> Result:
        request = context.request  # as the client sent it: a middleware may change it
        if request.method not in SUBJECTS and not request.row.is_authors:
            return await inner(context)
        at, began, method = time.time(), time.perf_counter(), request.method
        params = request.raw_params if request.row.is_authors else request.params

        def record(outcome: Outcome, code: int | None = None, reason: str | None = None) -> None:
            duration = round((time.perf_counter() - began) * 1000, 3)
            told = {"outcome": outcome, "code": code, "reason": reason}
            trail.record(context, method, params, time=timestamp(at), duration_ms=duration, **told)

        try:
            result = await inner(context)
        except BaseException as failure:
            record(*failure_outcome(failure, request), _reason(failure))
            raise
        record(result_outcome(result))
        return result

    return layer


# ── events ──


class AuditTrail:
    """Makes events and sends them to the log or to the author's function."""

    def __init__(self, engine: "Engine", **bounds: Any) -> None:
        audit = engine.options.audit
        self._redactor = engine.redactor
        self._with_arguments = engine.options.audit_arguments
        self._send = self._log if isinstance(audit, bool) else AuditQueue(audit, engine, **bounds).put
        self._has_checked_handlers = False

    def record(self, context: RequestContext, method: str, params: Any, **outcome: Any) -> None:
        """Record the outcome of a request that the engine has served."""
        request, session = context.request, context.request.session

        def describe() -> EventFields:
            name, given = SUBJECTS.get(method, _of_extension)(params)
            arguments = None if given is None or not self._with_arguments else redact_arguments(given, self._redactor)
            return {
                "name": name,
                "session": None if session is None else session_digest(session.id),
                "request_id": redacted_id(request, self._redactor),
                "revision": request.revision.name,
                "arguments": arguments,
            }

        self._record(method, describe, context.principal, context.address, **outcome)

    def record_refusal(
        self, failure: errors.ProtocolError, *, method: str, name: str | None = None,
        principal: "Principal | None" = None, address: str | None = None,
    ) -> None:  # fmt: skip
        """Record a request that a transport refused before it read the body: `method` and `name` are those of HTTP."""
        outcome = {"time": timestamp(time.time()), "outcome": "refused", "code": failure.code}
        outcome["reason"] = _reason(failure)
        self._record(method, lambda: {"name": name}, principal, address, **outcome)

    def _record(
        self, method: str, describe: Callable[[], EventFields], principal: "Principal | None", address: str | None,
        **outcome: Any,
    ) -> None:  # fmt: skip
        try:
            fields = describe()
            if (name := fields["name"]) is not None:  # a URI may hold a password
                fields["name"] = redacted_label(name, self._redactor, MAX_NAME)
            if principal is not None:
                fields |= {each: _label(getattr(principal, each)) for each in ("subject", "client", "issuer")}
            self._send(AuditEvent(method=method, address=address, **fields, **outcome))
        except Exception:  # which must not harm the request
            log.exception("%s could not be noted for the audit", method)

    def _log(self, event: AuditEvent) -> None:
        if not self._has_checked_handlers:
            self._has_checked_handlers = True
            if not (audit_log.isEnabledFor(logging.INFO) and audit_log.hasHandlers()):
                log.warning("audit events are lost: no handler takes INFO records of the logger dovetail.audit")
        _log_event(event, logging.INFO)


def _log_event(event: AuditEvent, level: int) -> None:
    shown = {"message": f"{event.method} {event.outcome}", "audit": event}  # in a line of JSON
    extra = {"is_redacted": True, "dovetail": shown}
    audit_log.log(level, "%s", escaped(jsonrpc.encode(event).decode()), extra=extra)


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def redacted_label(text: str, redactor: Redactor, most: int = MAX_LABEL) -> str:
    """A text of a client without secrets, of which the cut must leave no part."""
    return jsonrpc.sendable(cut(redactor.text(text[: 4 * most]), most))


def redacted_id(request: Request, redactor: Redactor) -> int | str:
    return redacted_label(request.id, redactor) if isinstance(request.id, str) else request.id


def _label(text: str | None) -> str | None:
    return None if text is None else jsonrpc.sendable(cut(text, MAX_LABEL))


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + CUT


def redact_arguments(given: Raw, redactor: Redactor, *, max_bytes: int = 4 * 1024, max_members: int = 64) -> Any:
    """Arguments without secrets. Of long ones, members that fit are whole; of each other member the size is given."""
    try:
        is_short = _size(given) <= max_bytes
        value = jsonrpc.parse(given) if is_short else _members_that_fit(given, max_bytes, max_members)
    except (jsonrpc.BadMessage, *jsonrpc.UNREADABLE):
        return CUT
    return redactor.value(value)


def shown(given: Raw, redactor: Redactor, max_bytes: int) -> str:
    """Arguments or a result as JSON without secrets; of what is long, the members that fit."""
    return jsonrpc.encode(redact_arguments(given, redactor, max_bytes=max_bytes)).decode()


def _members_that_fit(given: Raw, remaining: int, most: int) -> dict[str, Any]:
    members = jsonrpc.members(given)
    fitting: dict[str, Any] = {}
    for name, part in islice(members.items(), most):
        size = len(name) + _size(part)
        if size <= remaining:
            remaining -= size
            fitting[name] = jsonrpc.parse(part)
        else:
            fitting[cut(name, MAX_LABEL)] = f"{CUT} {_size(part)} bytes"
    if len(members) > most:
        fitting[CUT] = f"{len(members) - most} more"
    return fitting


def _size(raw: Raw) -> int:
    return memoryview(raw).nbytes


class AuditQueue:
    """The author's function, called with one event after the other by a task that runs while the queue has any."""

    def __init__(
        self, function: AuditFunction, engine: "Engine", *, max_queued: int = 2_000, timeout: float = 10.0
    ) -> None:
        """`timeout` bounds one call of the function, in seconds."""
        self._function = function
        self._is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        self._threads = engine.threads
        self._awaited_at_stop = engine.running_steps
        self._timeout = timeout
        self._queue: asyncio.Queue[AuditEvent] = asyncio.Queue(max_queued)
        self._task: asyncio.Task[None] | None = None
        self._logged = 0  # events that the function did not get
        self._next_warning = 0.0

    def put(self, event: AuditEvent) -> None:
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self._log_instead(event, None)
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._drain(), context=contextvars.Context())  # no call's context
            self._awaited_at_stop.add(self._task)
            self._task.add_done_callback(self._awaited_at_stop.discard)

    async def _drain(self) -> None:
        event: AuditEvent | None = None
        try:
            while not self._queue.empty():
                event = self._queue.get_nowait()
                try:
                    async with asyncio.timeout(self._timeout):
                        await self._call(event)
                except (Exception, asyncio.CancelledError, *EXITS) as failure:
                    if is_cancelled():
                        raise
                    self._log_instead(event, failure)
                event = None
        finally:  # the loop may end before the queue is empty
            if event is not None:
                self._log_instead(event, None)
            while not self._queue.empty():
                self._log_instead(self._queue.get_nowait(), None)

    async def _call(self, event: AuditEvent) -> None:
        call = functools.partial(self._function, event)
        returned: Any = call() if self._is_async else await self._threads.run(call, label="audit")
        if inspect.isawaitable(returned):
            await returned

    def _log_instead(self, event: AuditEvent, failure: BaseException | None) -> None:
        """Log events at WARNING, which is shown even where logging is not configured."""
        _log_event(event, logging.WARNING)
        self._logged += 1
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + WARNING_INTERVAL
            why = "is too slow" if failure is None else "failed"
            words = "the audit function %s; %d events so far are in the log dovetail.audit instead"
            log.error(words, why, self._logged, exc_info=failure)
