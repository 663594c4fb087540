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
from dovetail.engine.redaction import CUT, Redactor, escaped
from dovetail.engine.request_context import RequestContext
from dovetail.protocol import jsonrpc
from dovetail.protocol.results import InputRequiredResult, Result

if TYPE_CHECKING:
    from dovetail.engine.dispatch import Layer
    from dovetail.engine.engine import Engine

MAX_BODY_BYTES = 1_000  # of arguments, and of a result
MAX_MEMBERS = 16  # of each of them
IN_EVERY_RESULT = {"_meta", "resultType", "isError"}  # and not shown
CAPABILITIES = ("taskId", "requestState")  # keys whose values are all that some callers need
LONG = ("message", "exception", "stack")  # fields that are cut where a line is too long
MIN_TEXT = 200  # characters that are left of them at least

log = logging.getLogger("dovetail")


class Call(msgspec.Struct, frozen=True):
    """What lines of JSON say of the request that runs. Its texts are as the client sent them, but short."""

    fields: dict[str, Any]
    began: float

    @property
    def milliseconds(self) -> float:
        return round((time.perf_counter() - self.began) * 1000, 3)


# It is not reset: what is logged of a request after its layers, in the same task, belongs to this request too.
current_call: ContextVar[Call | None] = ContextVar("dovetail_call", default=None)


def logged(engine: "Engine", inner: "Layer") -> "Layer":
    """A layer that lets records name their request, and at DEBUG logs each request and its response."""
    request_log = RequestLog(engine)

    def layer(context: RequestContext) -> Awaitable[Result]:
        call = _call_of(context)
        current_call.set(call)
        return request_log.run(inner, context, call) if log.isEnabledFor(logging.DEBUG) else inner(context)

    return layer


def _call_of(context: RequestContext) -> Call:
    request, session = context.request, context.request.session
    fields = {
        "request_id": request.id if isinstance(request.id, int) else request.id[: 4 * MAX_LABEL],
        "session": None if session is None else audit.session_digest(session.id),
        "method": request.method,
        "tool": request.params.name[: 4 * MAX_LABEL] if request.method == "tools/call" else None,
        "principal": None if context.principal is None else context.principal.subject,
        **trace_ids(),
    }
    return Call(fields, time.perf_counter())


def trace_ids() -> dict[str, str]:
    """Trace and span of OpenTelemetry, if the process has loaded it and is in a span."""
    if (trace := sys.modules.get("opentelemetry.trace")) is not None:
        with suppress(Exception):
            span = trace.get_current_span().get_span_context()
            if span.is_valid:
                return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    return {}


class RequestLog:
    """Two lines for each request: what it asks for, and what became of it."""

    def __init__(self, engine: "Engine") -> None:
        self._shapers = engine.shapers
        self._redactor = Redactor((*engine.options.redact, *CAPABILITIES))

    async def run(self, inner: "Layer", context: RequestContext, call: Call) -> Result:
        request = context.request
        describe = audit.SUBJECTS.get(request.method)
        name, given = (None, None) if describe is None else describe(request.params)
        named = "" if name is None else " " + redacted_label(name, self._redactor, audit.MAX_NAME)
        what = f"{redacted_label(str(call.fields['request_id']), self._redactor)} {request.method}{named}"
        log.debug("%s%s", what, "" if given is None else self._shown(given))
        try:
            result = await inner(context)
        except BaseException as failure:
            outcome, code = audit.failure_outcome(failure, request)
            log.debug("%s: %s%s in %.1f ms %s", what, outcome, f" {code}" if code else "", call.milliseconds, failure)
            raise
        milliseconds, shown = call.milliseconds, ""
        if not isinstance(result, InputRequiredResult):  # its questions may hold URLs that are for the user alone
            with suppress(Exception):  # which is logged when the response is made
                shown = self._shown(Raw(result.encode(self._shapers[request.revision.name])))
        log.debug("%s: %s in %.1f ms%s", what, audit.result_outcome(result), milliseconds, shown)
        return result

    def _shown(self, body: Raw) -> str:
        """Arguments or a result on one line, without secrets; of a long one only what is short."""
        value = audit.redact_arguments(body, self._redactor, max_bytes=MAX_BODY_BYTES, max_members=MAX_MEMBERS)
        if isinstance(value, dict):
            value = {name: part for name, part in value.items() if name not in IN_EVERY_RESULT}
        return f" {jsonrpc.encode(value).decode()}" if value else ""


class JsonFormatter(logging.Formatter):
    """One object a line, of records that the redacting filter has seen; a long one is cut where it stays JSON."""

    def __init__(self, redactor: Redactor, max_bytes: int) -> None:
        super().__init__()
        self._redactor = redactor
        self._max_bytes = max_bytes

    def format(self, record: logging.LogRecord) -> str:
        head = {"time": audit.timestamp(record.created), "level": record.levelname, "logger": record.name[:MAX_LABEL]}
        try:
            fields = {**head, "message": record.getMessage(), **self._call_fields()}
            for name, value in getattr(record, "dovetail", {}).items():
                fields[name] = value if name == "audit" else self._redactor.value(value)
            unmarked = record.exc_text and re.sub("(?m)^  ", "", record.exc_text).rstrip()
            fields |= {"exception": unmarked, "stack": record.stack_info}
            while len((line := _line(fields)).encode()) > self._max_bytes:
                _shorten(fields)
            return line
        except Exception:
            return _line({**head, "message": "[this record can't be shown]"})

    def _call_fields(self) -> dict[str, Any]:
        call = current_call.get()
        if call is None:
            return trace_ids()
        fields = call.fields | trace_ids() | {"duration_ms": call.milliseconds}
        for name in ("request_id", "tool", "principal"):
            if isinstance(text := fields[name], str):
                fields[name] = redacted_label(text, self._redactor)
        return fields


def _shorten(fields: dict[str, Any]) -> None:
    """Cut the longest text to its half. Raises ValueError if none is long."""
    name = max(LONG, key=lambda each: len(fields.get(each) or ""))
    if len(text := fields[name] or "") > MIN_TEXT:
        fields[name] = text[: len(text) // 2] + CUT
    elif isinstance(event := fields.get("audit"), audit.AuditEvent) and event.arguments != CUT:
        fields["audit"] = msgspec.structs.replace(event, arguments=CUT)
    else:
        raise ValueError("one of the other fields is too long")


def _line(fields: dict[str, Any]) -> str:
    known = {name: each for name, each in fields.items() if each is not None}
    for name, each in known.items():
        if isinstance(each, str) and not each.isascii():  # half a surrogate pair, as in undecodable file names
            known[name] = each.encode("utf-8", "backslashreplace").decode()
    return escaped(jsonrpc.encode(known).decode())
