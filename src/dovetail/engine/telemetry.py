"""Spans of requests, mounts, questions and client calls, by the API of OpenTelemetry.

A trace begins where its first program makes a span; others join it by the W3C context in `_meta`, or in the headers of
HTTP. The user configures the SDK. As long as there is none, calls go straight through: there is no span and no context.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw

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
    from opentelemetry.context import Context
    from opentelemetry.propagators.composite import CompositePropagator
    from opentelemetry.trace import Span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    raise errors.SetupError('telemetry=True needs the API of OpenTelemetry: pip install "dovetail-mcp[otel]"') from None

if TYPE_CHECKING:
    from dovetail.engine.dispatch import Layer
    from dovetail.engine.engine import Engine

T = TypeVar("T")
Send = Callable[[Mapping[str, Any]], Awaitable[Raw]]

# The names of OpenTelemetry's conventions, of MCP and of what it is made of.
METHOD, REVISION, SESSION, URI = "mcp.method.name", "mcp.protocol.version", "mcp.session.id", "mcp.resource.uri"
REQUEST_ID, STATUS_CODE, ERROR_TYPE = "jsonrpc.request.id", "rpc.response.status_code", "error.type"
OPERATION, TOOL, PROMPT = "gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.prompt.name"
ARGUMENTS, RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
OVER_HTTP = {"network.transport": "tcp", "network.protocol.name": "http"}
OVER_PIPE = {"network.transport": "pipe"}

NAMED_BY = {"tools/call": TOOL, "prompts/get": PROMPT}  # the method: the attribute of the name in its params
UNTRACED = frozenset({"subscriptions/listen"})  # which lasts as long as its client
MAX_CONTENT = 16 * 1024  # bytes of arguments, and of a result
MAX_CONTEXT = {"traceparent": 512, "tracestate": 512, "baggage": 4096}  # characters
# What else baggage may hold fills the log with warnings of the propagator.
_VALUE = r"[!#-+\--:<-\[\]-~]*"
_BAGGAGE_MEMBER = re.compile(rf" ?[\w.*-]+={_VALUE}(;[\w.*-]+(={_VALUE})?)*", re.ASCII)

_NOT_CONFIGURED = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
_trace_context = TraceContextTextMapPropagator()
_propagator = CompositePropagator([_trace_context, W3CBaggagePropagator()])
_tracer = trace.get_tracer("dovetail")


def is_configured() -> bool:
    """Whether the process has a provider that makes spans."""
    return not isinstance(trace.get_tracer_provider(), _NOT_CONFIGURED)


# ── context ──


def _parent(request: Request) -> Context:
    """The context of the client's span in `_meta` (SEP-414), else of a host's span, else that in the HTTP headers."""
    if b'"traceparent"' in bytes(request.raw_params):
        with suppress(KeyError, *UNREADABLE):
            meta = jsonrpc.members(jsonrpc.members(request.raw_params)["_meta"])
            found = _extract({key: msgspec.json.decode(meta[key]) for key in MAX_CONTEXT if key in meta})
            if _has_span(found):
                return found
    if request.headers is None:  # a pipe has no context of its own
        return Context()
    return otel_context.get_current() if _has_span() else _extract(request.headers)


def _extract(carrier: Mapping[str, Any]) -> Context:
    """The W3C context in what a client has sent, which may be anything."""
    texts = {key: each for key in MAX_CONTEXT if isinstance(each := carrier.get(key), str)}
    fit = {key: each for key, each in texts.items() if len(each) <= MAX_CONTEXT[key]}
    printable = {key: each for key, each in fit.items() if each.isascii() and each.isprintable()}
    if not all(map(_BAGGAGE_MEMBER.fullmatch, printable.get("baggage", "").split(","))):
        printable.pop("baggage", None)
    return _propagator.extract(printable, Context())


def _inject(context: Context | None = None) -> dict[str, str]:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    return carrier


def _has_span(context: Context | None = None) -> bool:
    return trace.get_current_span(context).get_span_context().is_valid


# ── spans ──


def _start(
    kind: trace.SpanKind, method: str, name: str | None = None, parent: Context | None = None,
    start_time: int | None = None, more: Mapping[str, str] = {},
) -> Span:  # fmt: skip
    attributes = {METHOD: method, **more}
    if method == "tools/call":
        attributes[OPERATION] = "execute_tool"
    if name is not None:
        attributes[NAMED_BY[method]] = name
    return _tracer.start_span(f"{method} {name or ''}".rstrip(), parent, kind, attributes, start_time=start_time)


def _known_name(engine: "Engine", request: Request) -> str | None:
    """The name of a tool or prompt that the server has: clients may send any others."""
    if request.method not in NAMED_BY:
        return None
    name: str = request.params.name
    found = (engine.tools if request.method == "tools/call" else engine.prompts).get(name)
    return name if found is not None or (engine.search is not None and name in engine.search.tools) else None


async def _inside(
    span: Span, work: Callable[[], Awaitable[T]], describe: Callable[[T], None] | None = None,
    parent: Context | None = None, request: Request | None = None,
) -> T:  # fmt: skip
    """The value of `work`, during which the span is the current one. `request` is the one that is served, if any."""
    token = otel_context.attach(trace.set_span_in_context(span, parent))
    try:
        value = await work()
        if describe is not None and span.is_recording():
            describe(value)
        return value
    except BaseException as failure:
        _fail(span, *(_outcome(failure) if request is None else audit.failure_outcome(failure, request)))
        raise
    finally:
        otel_context.detach(token)
        span.end()


def _outcome(failure: BaseException) -> tuple[str, int | None]:
    """That of a request which this process has made."""
    is_end = isinstance(failure, asyncio.CancelledError | GeneratorExit)
    code = getattr(failure, "code", None)
    return "cancelled" if is_end else type(failure).__name__, code if isinstance(code, int) else None


def _fail(span: Span, outcome: str, code: int | None = None) -> None:
    """Say what kind of failure it was, and no more: its text may hold anything."""
    if code is not None:
        span.set_attribute(STATUS_CODE, str(code))
    span.set_attribute(ERROR_TYPE, outcome if code is None else str(code))
    if outcome != "cancelled":
        span.set_status(trace.StatusCode.ERROR)


class Telemetry:
    """The spans of one server, with what is mounted in it, or of a client."""

    def __init__(self, redactor: Redactor, *, with_content: bool = False) -> None:
        self._redactor = redactor
        self._with_content = with_content

    # ── requests of clients ──

    def layer(self, engine: "Engine", inner: "Layer") -> "Layer":
        def layer(context: RequestContext) -> Awaitable[Result]:
            is_mounted = context.served is not None  # in a server that decides, and has made the span
            if is_mounted or context.request.method in UNTRACED or not is_configured():
                return inner(context)
            return self._serve(engine, inner, context)

        return layer

    def _serve(self, engine: "Engine", inner: "Layer", context: RequestContext) -> Awaitable[Result]:
        request, name, parent = context.request, _known_name(engine, context.request), _parent(context.request)
        is_http = request.headers is not None or context.locate is not None
        network = OVER_HTTP if is_http else {} if context.in_process else OVER_PIPE
        more = {REVISION: request.revision.name, **network}
        span = _start(trace.SpanKind.SERVER, request.method, name, parent, more=more)
        if span.is_recording():
            self._describe_request(span, request)

        def describe(result: Result) -> None:
            if audit.result_outcome(result) == "tool_error":
                _fail(span, "tool_error")
            if name is None and (found := _known_name(engine, request)) is not None:  # fetched from elsewhere
                span.update_name(f"{request.method} {found}")
                span.set_attribute(NAMED_BY[request.method], found)
            if self._with_content and isinstance(result, ToolResult):
                with suppress(Exception):  # which is logged when the response is made
                    encoded = Raw(result.encode(engine.shapers[request.revision.name]))
                    span.set_attribute(RESULT, audit.shown(encoded, self._redactor, MAX_CONTENT))

        return _inside(span, partial(inner, context), describe, parent, request)

    def _describe_request(self, span: Span, request: Request) -> None:
        span.set_attribute(REQUEST_ID, str(audit.redacted_id(request, self._redactor)))
        if request.session is not None:
            span.set_attribute(SESSION, audit.session_digest(request.session.id))
        self._describe_uri(span, getattr(request.params, "uri", None))
        if self._with_content and request.method == "tools/call":
            span.set_attribute(ARGUMENTS, audit.shown(request.params.arguments, self._redactor, MAX_CONTENT))

    def _describe_uri(self, span: Span, uri: object) -> None:
        if isinstance(uri, str) and span.is_recording():
            span.set_attribute(URI, audit.redacted_label(uri, self._redactor, audit.MAX_NAME))

    async def mounted(self, name: str, request: Request, work: Callable[[], Awaitable[T]]) -> T:
        """What a mounted server does for a request."""
        if not is_configured():
            return await work()
        return await _inside(_tracer.start_span(f"mount {name}"), work, request=request)

    # ── questions to clients ──

    async def ask(self, method: str, work: Awaitable[T]) -> T:
        """The answer for which a function waits, with a span until it is there."""
        return await (_inside(_start(trace.SpanKind.CLIENT, method), lambda: work) if is_configured() else work)

    def asking(self, questions: Mapping[str, Any]) -> Asked | None:
        """What the request state carries for the span of a question that is answered in another request."""
        if not trace.get_current_span().is_recording():
            return None
        carrier: dict[str, str] = {}
        _trace_context.inject(carrier)  # no baggage, which may be large
        return Asked(time.time_ns(), {key: each["method"] for key, each in questions.items()}, carrier)

    def answered(self, asked: Asked, keys: Collection[str]) -> None:
        """Make the spans of the questions that a request answers, and link its own span to the one that has asked."""
        asking = _extract(asked.context)
        trace.get_current_span().add_link(trace.get_current_span(asking).get_span_context())
        for key, method in asked.methods.items():
            if key in keys:
                _start(trace.SpanKind.CLIENT, method, None, asking, asked.at).end()

    # ── requests to servers ──

    async def call(self, method: str, params: Mapping[str, Any], revision: str, send: Send) -> Raw:
        """The result of a request, which has one span with all its rounds."""
        meta = params.get("_meta", {})
        is_traced = "traceparent" in meta and meta["traceparent"] == _inject().get("traceparent")
        if is_traced or method in UNTRACED or not is_configured():
            return await send(params)
        name = str(params.get("name", ""))[: audit.MAX_LABEL] if method in NAMED_BY else None
        span = _start(trace.SpanKind.CLIENT, method, name, more={REVISION: revision})
        self._describe_uri(span, params.get("uri"))

        def describe(raw: Raw) -> None:
            with suppress(*UNREADABLE):
                if bytes(jsonrpc.members(raw).get("isError", b"")) == b"true":
                    _fail(span, "tool_error")

        traced = {**params, "_meta": {**meta, **_inject(trace.set_span_in_context(span))}}
        return await _inside(span, partial(send, traced), describe)
