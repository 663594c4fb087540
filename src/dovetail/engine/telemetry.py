"""Spans of requests, mounts, questions and client calls, by the API of OpenTelemetry.

A trace begins where its first program makes a span; others join it by the W3C context in `_meta`, or in the headers of
HTTP. The user configures the SDK. As long as there is none, calls go straight through: there is no span and no context.
"""

import asyncio
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET, Raw

from dovetail import engine as lazy
from dovetail import errors
from dovetail.engine import audit
from dovetail.engine.redaction import Redactor
from dovetail.engine.request_context import RequestContext
from dovetail.protocol import jsonrpc
from dovetail.protocol.inbound import Request
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.protocol.request_state import Asked
from dovetail.protocol.results import Result, ToolResult

try:
    from opentelemetry import context as otel_context
    from opentelemetry import trace
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    raise errors.SetupError('telemetry=True needs the API of OpenTelemetry: pip install "dovetail-mcp[otel]"') from None

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer

    from dovetail.engine.dispatch import Layer
    from dovetail.engine.engine import Engine

T = TypeVar("T")
SendRound = Callable[[Mapping[str, Any]], Awaitable[Raw]]

# The names of OpenTelemetry's conventions, of MCP and of what it is made of.
METHOD, REVISION, SESSION, URI = "mcp.method.name", "mcp.protocol.version", "mcp.session.id", "mcp.resource.uri"
REQUEST_ID, STATUS_CODE, ERROR_TYPE = "jsonrpc.request.id", "rpc.response.status_code", "error.type"
OPERATION, TOOL, PROMPT = "gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.prompt.name"
ARGUMENTS, RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
OVER_HTTP = {"network.transport": "tcp", "network.protocol.name": "http"}
OVER_PIPE = {"network.transport": "pipe"}

NAMED_BY = {"tools/call": TOOL, "prompts/get": PROMPT}  # the method: the attribute of the name in its params
UNTRACED = frozenset({"subscriptions/listen"})  # which lasts as long as its client
CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
MAX_CONTENT = 16 * 1024  # bytes of arguments, and of a result
MAX_ID = 256  # characters
MAX_CONTEXT = 4096  # characters of each part

# What is taken of a context: within these bounds the propagators have nothing to complain about in the log.
_VALUE = r"[!#-+\--:<-\[\]-~]{0,1024}"
CONTEXT_KEYS = {
    "traceparent": re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,64})?"),
    "tracestate": re.compile(r"[ -~]{0,512}"),
    "baggage": re.compile(rf"(?:(?:\A|,) ?[\w.*-]{{1,256}}={_VALUE}(?:;{_VALUE})*){{1,64}}", re.ASCII),
}
_NOT_CONFIGURED = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
_propagators = (TraceContextTextMapPropagator(), W3CBaggagePropagator())
_tracer: "Tracer | None" = None
log = logging.getLogger("dovetail")


def find_tracer() -> "Tracer | None":
    """The tracer; None as long as the process has no provider that makes spans."""
    global _tracer
    if _tracer is None:
        provider = trace.get_tracer_provider()
        if not isinstance(provider, _NOT_CONFIGURED):
            found = provider.get_tracer("dovetail")
            _tracer = None if isinstance(found, trace.NoOpTracer) else found
    return _tracer


# ── context ──


def _from_meta(raw: Raw) -> dict[str, str]:
    """The W3C context in `_meta` (SEP-414); empty if there is none, or it is malformed."""
    if b'"traceparent"' not in bytes(raw):
        return {}
    with suppress(KeyError, *UNREADABLE):
        meta = jsonrpc.members(jsonrpc.members(raw)["_meta"])
        given = {key: meta[key] for key in CONTEXT_KEYS if bytes(meta.get(key, b""))[:1] == b'"'}
        return _checked({key: msgspec.json.decode(value) for key, value in given.items()})
    return {}


def _from_headers(request: Request) -> dict[str, str]:
    headers = request.headers
    if headers is None or b"traceparent" not in headers.raw:
        return {}
    return _checked({key: headers[key] for key in CONTEXT_KEYS if key in headers})


def _checked(carrier: Mapping[str, str]) -> dict[str, str]:
    short = {key: value for key, value in carrier.items() if len(value) <= MAX_CONTEXT}
    fit = {key: value for key, value in short.items() if CONTEXT_KEYS[key].fullmatch(value)}
    return fit if "traceparent" in fit else {}


def _extract(carrier: Mapping[str, str]) -> "Context | None":
    """None if there is no span in it."""
    context = otel_context.Context()
    for propagator in _propagators if carrier else ():
        context = propagator.extract(carrier, context)
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def _inject(context: "Context | None" = None, *, with_baggage: bool = True) -> dict[str, str]:
    carrier: dict[str, str] = {}
    for propagator in _propagators if with_baggage else _propagators[:1]:
        propagator.inject(carrier, context)
    return carrier


def _ambient(request: Request) -> "Context | None":
    """The context of a span around the HTTP request, that of an instrumented host. A pipe has none of its own."""
    if request.headers is None:
        return None
    span = trace.get_current_span()
    is_open = span.is_recording() or isinstance(span, trace.NonRecordingSpan)  # not one that has ended
    return otel_context.get_current() if is_open and span.get_span_context().is_valid else None


def _link(context: "Context") -> "Link":
    return trace.Link(trace.get_current_span(context).get_span_context())


# ── spans ──


def _fail(span: "Span", error_type: str, code: int | None = None) -> None:
    """Say what kind of failure it was, and no more: its text may hold anything."""
    span.set_attribute(ERROR_TYPE, error_type)
    if code is not None:
        span.set_attribute(STATUS_CODE, str(code))
    if error_type != "cancelled":
        span.set_status(trace.StatusCode.ERROR)


def _fail_by(span: "Span", failure: BaseException) -> None:
    """The failure of a request that this process has made."""
    code = getattr(failure, "code", None)
    if isinstance(code, int):
        _fail(span, str(code), code)
    elif isinstance(failure, TimeoutError):
        _fail(span, "timeout")
    else:
        is_end = isinstance(failure, asyncio.CancelledError | GeneratorExit)
        _fail(span, "cancelled" if is_end else type(failure).__name__)


def _fail_served(request: Request, span: "Span", failure: BaseException) -> None:
    outcome, code = audit.failure_outcome(failure, request)
    _fail(span, outcome if code is None else str(code), code)


def _describe_result(span: "Span", result: Result) -> None:
    if audit.result_outcome(result) == "tool_error":
        _fail(span, "tool_error")


class _CallResult(msgspec.Struct, rename="camel"):
    is_error: bool = False


def _describe_raw(span: "Span", raw: Raw) -> None:
    with suppress(*UNREADABLE):
        if msgspec.json.decode(raw, type=_CallResult).is_error:
            _fail(span, "tool_error")


async def _inside(
    span: "Span", parent: "Context | None", work: Awaitable[T],
    fail: Callable[["Span", BaseException], None] = _fail_by, describe: Callable[["Span", T], None] | None = None,
) -> T:  # fmt: skip
    """The value of `work`, during which the span is the current one."""
    token = otel_context.attach(trace.set_span_in_context(span, parent))
    try:
        value = await work
    except BaseException as failure:
        if not isinstance(failure, GeneratorExit):  # the loop has ended: this is another context
            otel_context.detach(token)
        fail(span, failure)
        span.end()
        raise
    otel_context.detach(token)
    if describe is not None and span.is_recording():
        try:
            describe(span, value)
        except Exception:  # which must not harm the request
            log.exception("the result of a request could not be described in its span")
    span.end()
    return value


class Telemetry:
    """The spans of one server, or of a client."""

    def __init__(self, redactor: Redactor, *, with_content: bool = False) -> None:
        self._redactor = redactor
        self._with_content = with_content

    # ── requests of clients ──

    def layer(self, engine: "Engine", inner: "Layer") -> "Layer":
        def layer(context: RequestContext) -> Awaitable[Result]:
            tracer = find_tracer()
            if tracer is None or context.request.method in UNTRACED:
                return inner(context)
            if context.served is None or context.served.telemetry is None:
                return self._serve(tracer, engine, inner, context)
            span = tracer.start_span(f"mount {engine.info.name}")  # its parent has made that of the request
            return _inside(span, None, inner(context), partial(_fail_served, context.request), _describe_result)

        return layer

    def _serve(self, tracer: "Tracer", engine: "Engine", inner: "Layer", context: RequestContext) -> Awaitable[Result]:
        request = context.request
        method, key = request.method, NAMED_BY.get(request.method)
        name = request.params.name if key is not None and _is_known(engine, request) else None
        parent, links = self._parent(tracer, engine, context)
        is_http = request.headers is not None or context.locate is not None
        network = OVER_HTTP if is_http else {} if context.in_process else OVER_PIPE
        attributes = _attributes(method, key, name, request.revision.name) | network
        attributes[REQUEST_ID] = str(request.id)[:MAX_ID]
        span = tracer.start_span(_span_name(method, name), parent, trace.SpanKind.SERVER, attributes, links)
        if span.is_recording():
            self._describe_request(span, request)

        def describe(span: "Span", result: Result) -> None:
            _describe_result(span, result)
            if key is not None and name is None and _is_known(engine, request):  # fetched from elsewhere
                span.update_name(_span_name(method, request.params.name))
                span.set_attribute(key, request.params.name)
            if self._with_content and isinstance(result, ToolResult):
                given = {"content": result.content} if result.content else {}
                given |= {} if result.structured is UNSET else {"structuredContent": result.structured}
                span.set_attribute(RESULT, self._content(Raw(jsonrpc.encode(given))))

        return _inside(span, parent, inner(context), partial(_fail_served, request), describe)

    def _parent(self, tracer: "Tracer", engine: "Engine", context: RequestContext) -> "tuple[Context, list[Link]]":
        """The parent of a request's span: the client's span, else that of the host, else the round that has asked."""
        request = context.request
        ambient = _ambient(request)
        parent = _extract(_from_meta(request.raw_params))
        asked = self._answered(tracer, engine, context)
        if parent is None:
            parent, ambient = ambient or _extract(_from_headers(request)), None
        if parent is None:
            parent, asked = asked, None
        links = [_link(each) for each in (ambient, asked) if each is not None]
        return otel_context.Context() if parent is None else parent, links

    def _answered(self, tracer: "Tracer", engine: "Engine", context: RequestContext) -> "Context | None":
        """Make the spans of the questions that a request answers; returns the context of the round that has asked."""
        if not isinstance(getattr(context.request.params, "request_state", UNSET), str):
            return None
        found = lazy.input_required.asked_before(engine, context)
        if found is None or (asking := _extract(found[0].context)) is None:
            return None
        for method in found[1]:
            attributes = {METHOD: method, REVISION: context.request.revision.name}
            tracer.start_span(method, asking, trace.SpanKind.CLIENT, attributes, start_time=found[0].at).end()
        return asking

    def _describe_request(self, span: "Span", request: Request) -> None:
        if request.session is not None:
            span.set_attribute(SESSION, audit.session_digest(request.session.id))
        self._tell_uri(span, getattr(request.params, "uri", None))
        if self._with_content and request.method == "tools/call":
            span.set_attribute(ARGUMENTS, self._content(request.params.arguments))

    def _tell_uri(self, span: "Span", uri: object) -> None:
        if isinstance(uri, str) and span.is_recording():  # it may hold a password, of which the cut must leave no part
            span.set_attribute(URI, self._redactor.text(uri[: 4 * audit.MAX_NAME])[: audit.MAX_NAME])

    def _content(self, given: Raw) -> str:
        """Arguments or a result without secrets; of what is long, the members that fit."""
        return jsonrpc.encode(audit.redact_arguments(given, self._redactor, max_bytes=MAX_CONTENT)).decode()

    # ── questions to clients ──

    async def ask(self, method: str, work: Awaitable[T]) -> T:
        """The answer for which a function waits, with a span until it is there."""
        if (tracer := find_tracer()) is None:
            return await work
        span = tracer.start_span(method, kind=trace.SpanKind.CLIENT, attributes={METHOD: method})
        return await _inside(span, None, work)

    def asking(self, methods: Mapping[str, str]) -> Asked | None:
        """What the request state carries for the span of a question that is answered in another request."""
        context = {} if find_tracer() is None else _inject(with_baggage=False)
        return Asked(time.time_ns(), dict(methods), context) if "traceparent" in context else None

    # ── requests to servers ──

    def call(
        self, method: str, params: Mapping[str, Any], revision: str
    ) -> Callable[[SendRound], Awaitable[Raw]] | None:
        """What makes the span of a request, with all its rounds; None if it has one already, or needs none."""
        tracer = find_tracer()
        if tracer is None or method in UNTRACED or "traceparent" in params.get("_meta", ()):
            return None
        key = NAMED_BY.get(method)
        name = None if key is None else str(params.get("name", ""))[: audit.MAX_LABEL]
        attributes = _attributes(method, key, name, revision)
        span = tracer.start_span(_span_name(method, name), kind=trace.SpanKind.CLIENT, attributes=attributes)
        self._tell_uri(span, params.get("uri"))
        carrier = _inject(trace.set_span_in_context(span))
        traced = {**params, "_meta": {**params.get("_meta", {}), **carrier}}
        if "traceparent" not in carrier:
            return None
        return lambda send: _inside(span, None, send(traced), describe=_describe_raw)

    @staticmethod
    def without_context(params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The params of a client's request, for a backend: there the span of the gateway is the parent."""
        if find_tracer() is None or "_meta" not in params:
            return params
        return {**params, "_meta": {key: each for key, each in params["_meta"].items() if key not in CONTEXT_KEYS}}


def _span_name(method: str, name: str | None) -> str:
    return method if name is None else f"{method} {name}"


def _attributes(method: str, key: str | None, name: str | None, revision: str) -> dict[str, str]:
    attributes = {METHOD: method, REVISION: revision}
    if key == TOOL:
        attributes[OPERATION] = "execute_tool"
    if key is not None and name is not None:
        attributes[key] = name
    return attributes


def _is_known(engine: "Engine", request: Request) -> bool:
    """Whether a name is one of the server's own: clients may send any others."""
    name = request.params.name
    if request.method == "prompts/get":
        return engine.prompts.get(name) is not None
    return engine.tools.get(name) is not None or (engine.search is not None and name in engine.search.tools)


# ── where it is on ──


def observe(engine: "Engine") -> None:
    """Trace a server, and what is mounted in it later."""
    recorded = os.environ.get(CONTENT_VARIABLE, "").lower() in ("true", "span_only", "span_and_event")
    engine.telemetry = Telemetry(engine.redactor, with_content=engine.options.telemetry_content or recorded)
    engine.observe("trace", engine.telemetry.layer)


def observe_mounted(engine: "Engine") -> None:
    """Trace the servers that are mounted in one, unless they have `telemetry=False`."""
    for child in engine.mounted_engines():
        if child.options.telemetry is not False and "trace" not in child.observers:
            child.telemetry = engine.telemetry
            child.observe("trace", engine.observers["trace"])
            observe_mounted(child)
