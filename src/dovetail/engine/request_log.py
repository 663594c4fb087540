"""Requests in the log: lines of JSON that name the request they belong to; at DEBUG each request and its response."""

import logging
import re
import sys
import time
from collections.abc import Awaitable
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from dovetail.engine import audit
from dovetail.engine.audit import MAX_LABEL, redacted_label
from dovetail.engine.redaction import Redactor, escaped
from dovetail.engine.request_context import RequestContext
from dovetail.protocol import jsonrpc
from dovetail.protocol.results import InputRequiredResult, Result

if TYPE_CHECKING:
    from dovetail.engine.dispatch import Layer
    from dovetail.engine.engine import Engine

MAX_BODY_BYTES = 1_000  # of arguments, and of a result
MAX_TEXT = 2_000  # characters of a text, in a line that would be too long

log = logging.getLogger("dovetail")


class Call(msgspec.Struct, frozen=True):
    """What lines of JSON say of the request that runs."""

    fields: dict[str, Any]
    began: float

    @property
    def milliseconds(self) -> float:
        return round((time.perf_counter() - self.began) * 1000, 3)


# It is not reset: what is logged of a request after its layers, in the same task, belongs to this request too.
current_call: ContextVar[Call | None] = ContextVar("dovetail_call", default=None)


def logged(engine: "Engine", inner: "Layer") -> "Layer":
    """A layer that lets records name their request, and at DEBUG logs each request and its response."""
    return RequestLog(engine, inner).layer


def trace_ids() -> dict[str, str]:
    """Trace and span of OpenTelemetry, if the process has loaded it and is in a span."""
    if (trace := sys.modules.get("opentelemetry.trace")) is not None:
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    return {}


class RequestLog:
    """Two lines for each request: what it asks for, and what became of it."""

    def __init__(self, engine: "Engine", inner: "Layer") -> None:
        self._inner = inner
        self._shapers = engine.shapers
        self._redactor = Redactor((*engine.options.redact, "taskId", "requestState"))  # all that some callers need

    def layer(self, context: RequestContext) -> Awaitable[Result]:
        request, session, principal = context.request, context.request.session, context.principal
        fields = {
            "request_id": audit.redacted_id(request, self._redactor),
            "session": None if session is None else audit.session_digest(session.id),
            "method": request.method,
            "tool": redacted_label(request.params.name, self._redactor) if request.method == "tools/call" else None,
            "principal": None if principal is None else redacted_label(principal.name, self._redactor),
            **trace_ids(),
        }
        call = Call(fields, time.perf_counter())
        current_call.set(call)
        return self._run(context, call) if log.isEnabledFor(logging.DEBUG) else self._inner(context)

    async def _run(self, context: RequestContext, call: Call) -> Result:
        request = context.request
        describe = audit.SUBJECTS.get(request.method)
        name, given = (None, None) if describe is None else describe(request.params)
        named = "" if name is None else " " + redacted_label(name, self._redactor, audit.MAX_NAME)
        what = f"{call.fields['request_id']} {request.method}{named}"
        log.debug("%s%s", what, "" if given is None else " " + audit.shown(given, self._redactor, MAX_BODY_BYTES))
        try:
            result = await self._inner(context)
        except BaseException as failure:
            outcome, code = audit.failure_outcome(failure, request)
            log.debug("%s: %s%s in %.1f ms %s", what, outcome, f" {code}" if code else "", call.milliseconds, failure)
            raise
        took, shown = call.milliseconds, ""
        if not isinstance(result, InputRequiredResult):  # its questions may hold URLs that are for the user alone
            with suppress(Exception):  # which is logged when the response is made
                encoded = Raw(result.encode(self._shapers[request.revision.name]))
                shown = " " + audit.shown(encoded, self._redactor, MAX_BODY_BYTES)
        log.debug("%s: %s in %.1f ms%s", what, audit.result_outcome(result), took, shown)
        return result


class JsonFormatter(logging.Formatter):
    """One object a line, of records that the redacting filter has seen; texts of a long one are cut."""

    def __init__(self, redactor: Redactor, max_bytes: int) -> None:
        super().__init__()
        self._redactor = redactor
        self._max_bytes = max_bytes

    def format(self, record: logging.LogRecord) -> str:
        call = current_call.get()
        fields: dict[str, Any] = {"time": audit.timestamp(record.created), "level": record.levelname}
        fields |= {"logger": record.name[:MAX_LABEL], "message": record.getMessage()}
        fields |= trace_ids() if call is None else {**call.fields, **trace_ids(), "duration_ms": call.milliseconds}
        fields |= self._redactor.value(getattr(record, "dovetail", {}))
        unmarked = record.exc_text and re.sub("(?m)^  ", "", record.exc_text).rstrip()
        fields |= {"exception": unmarked, "stack": record.stack_info}
        if len((line := _line(fields)).encode()) > self._max_bytes:
            texts = [name for name in ("message", "exception", "stack") if fields[name]]
            line = _line(fields | {name: audit.cut(fields[name], MAX_TEXT) for name in texts})
        return line


def _line(fields: dict[str, Any]) -> str:
    sendable = {name: jsonrpc.sendable(each) if isinstance(each, str) else each for name, each in fields.items()}
    return escaped(jsonrpc.encode({name: each for name, each in sendable.items() if each is not None}).decode())
