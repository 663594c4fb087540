"""Requests of clients, passed on to a backend; its results, errors and questions, passed back."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail import errors
from dovetail.client.handlers import read_elicitation
from dovetail.client.results import LogMessage, decode
from dovetail.engine.caller_state import state_owner
from dovetail.engine.context import Context, request_of, send_log, wanted_level
from dovetail.engine.open_calls import Asks, Failed, OpenCall, Outcome, open_calls_of
from dovetail.engine.request_context import RequestContext, server_requests_of
from dovetail.gateway.backends import Backend, Caller, printable, shape_capabilities
from dovetail.protocol import jsonrpc, results, revisions
from dovetail.protocol.capabilities import Completion, passes_level
from dovetail.protocol.elicitation import InputRequest, InputRequired, ServerRequest, render_form, restore_content
from dovetail.protocol.inbound import CAPABILITIES_KEY
from dovetail.protocol.jsonrpc import UNREADABLE, encode
from dovetail.protocol.results import INPUT_REQUIRED, CompleteResult, PromptResult, ReadResourceResult, ToolResult
from dovetail.protocol.revisions import Revision
from dovetail.protocol.sampling import SamplingParams, shape_sampling
from dovetail.protocol.types import CALL_KEY, PROCESS_KEY, Content, ResourceContents, ToolDefinition, describes_object
from dovetail.registry.elicitation import ElicitUrl

MAX_QUESTION_BYTES = 256 * 1024
MAX_LOG_BYTES = 64 * 1024
MAX_MESSAGE = 10_000  # characters of a progress message
MAX_UNSENT = 100  # notifications of a call whose client reads slowly; older ones are dropped
WAITS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0)  # seconds before a call is sent again that only had to wait
OWN_KEYS = ("io.modelcontextprotocol/", "dovetail/")  # of `_meta`, which are about one hop
PASSED_KEYS = frozenset({CALL_KEY, PROCESS_KEY})
UNKNOWN_EFFECT = "whether it had its effect is not known"
RESERVED = frozenset(range(-32768, -31999)) - {-32700, -32600, -32601, -32602, -32603}  # codes without a meaning now
_rank = {revision.name: rank for rank, revision in enumerate(revisions.ALL)}


# ── results ──


class _Block(msgspec.Struct, rename="camel"):
    """What has to be known of a content block that passes as bytes."""

    type: Literal["text", "image", "audio", "resource_link", "resource"]
    text: str | None = None
    data: str | None = None
    mime_type: str | None = None

    def __post_init__(self) -> None:
        is_media = self.type in ("image", "audio") and self.data is not None and self.mime_type is not None
        if not (is_media or self.is_link or (self.type == "text" and self.text is not None)):
            raise ValueError(f"a block of type {self.type} is not complete")

    @property
    def is_link(self) -> bool:
        return self.type.startswith("resource")


class _Head(msgspec.Struct, rename="camel"):
    """The members of any result, as bytes."""

    result_type: str = "complete"
    content: Raw = Raw(b"[]")
    structured_content: Raw | UnsetType = UNSET
    is_error: bool = False
    meta: dict[str, Any] = msgspec.field(name="_meta", default_factory=dict)
    input_requests: dict[str, "_Question"] | None = None
    request_state: str | None = None


class _Question(msgspec.Struct):
    method: str
    params: Raw = jsonrpc.NO_PARAMS


class _Contents(msgspec.Struct):
    contents: list[ResourceContents]


_read_blocks = msgspec.json.Decoder(list[_Block]).decode
_read_content = msgspec.json.Decoder(list[Content]).decode


class PassedResult(ToolResult, frozen=True, kw_only=True):
    """A result whose content passes as the backend's bytes: text, images or sounds, which all its revisions know."""

    encoded: Raw

    def decoded(self) -> ToolResult:
        fields = {name: getattr(self, name) for name in ToolResult.__struct_fields__}
        return ToolResult(**{**fields, "content": _read_content(self.encoded)}).decoded()

    def encode(self, shaper: results.Shaper) -> bytes:
        if shaper.style.always_structured_content:
            return shaper.tool_result(self.decoded())
        return shaper.passed_result(self.encoded, self.structured, self.is_error, self.meta)


def read_tool_result(head: _Head, backend: Revision, client: Revision, tool: ToolDefinition) -> ToolResult:
    """The result for a client's revision; as bytes if that is the backend's or newer. Raises UNREADABLE."""
    structured, schema = head.structured_content, tool.output_schema
    if not isinstance(structured, UnsetType) and not backend.any_structured_output and bytes(structured)[:1] != b"{":
        raise msgspec.DecodeError("structuredContent is no object")
    parts: dict[str, Any] = {
        "structured": structured,
        "is_error": head.is_error,
        "meta": {key: value for key, value in head.meta.items() if not key.startswith(OWN_KEYS[0])} or None,
        "has_schema": schema is not None,
        "wrap": schema is not None and not describes_object(schema),
        "text_copy": False,
    }
    if any(block.is_link for block in _read_blocks(head.content)) or _rank[client.name] < _rank[backend.name]:
        return ToolResult(content=_read_content(head.content), **parts)
    return PassedResult(encoded=head.content, **parts)


# ── questions ──


class PassedRequest:
    """A question of a backend with raw params, as its client's revision spells them."""

    def __init__(
        self, method: str, params: dict[str, Any], requires: tuple[str, ...],
        render: Callable[[Revision], dict[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        self.server_request = ServerRequest(method=method, params=params, requires=requires)
        self._render = render

    def params(self, revision: Revision) -> dict[str, Any]:
        try:
            return self.server_request.params if self._render is None else self._render(revision)
        except (KeyError, TypeError, ValueError, AttributeError):  # the backend's form is odd
            raise errors.QuestionFailed(f"The question can't be put to a client of {revision.name}") from None

    def read(self, result: bytes | Raw, revision: Revision) -> Raw:
        """The client's result as it is, but for a form that had to be spelled differently."""
        schema = self.server_request.params.get("requestedSchema")
        if schema is None or revision.rich_forms:
            return Raw(bytes(result))
        with suppress(*UNREADABLE):
            answer = msgspec.json.decode(result, type=dict[str, Any])
            if isinstance(content := answer.get("content"), dict):
                answer["content"] = restore_content(schema, content, revision)
            return Raw(encode(answer))
        raise errors.QuestionFailed("The client's answer can't be read")


class PassedUrl(ElicitUrl):
    def read(self, result: bytes | Raw, revision: Revision) -> Any:  # noqa: ARG002
        return Raw(bytes(result))


class Questions(NamedTuple):
    """The questions that a backend may ask: elicitation always, others if they are allowed."""

    name: str
    allow: frozenset[str]

    def read(self, method: str, params: Raw) -> InputRequest[Any]:
        """Raises ProtocolError for one that is not allowed, or can't be read."""
        kind = method.partition("/")[0]
        if method not in _READERS or (kind != "elicitation" and kind not in self.allow):
            text = f"Method not found: {method[:100]} is not passed on by this gateway"
            raise errors.ProtocolError(text, code=errors.METHOD_NOT_FOUND)
        try:
            if len(params) > MAX_QUESTION_BYTES:
                raise errors.SetupError(f"it has more than {MAX_QUESTION_BYTES} bytes")
            return _READERS[method](self.name, params)
        except UNREADABLE as failure:
            words = jsonrpc.describe_decode_error(failure)
        except (errors.SetupError, errors.ProtocolError) as bad:
            words = str(bad)
        raise errors.ProtocolError(f"Invalid params: {words}", code=errors.INVALID_PARAMS)

    def passable(self, declared: Mapping[str, Any], revision: Revision) -> dict[str, Any]:
        """The part of a client's capabilities that its backend may use."""
        passable: dict[str, Any] = {}
        if revision.elicitation and isinstance(parts := declared.get("elicitation"), Mapping):
            known = ("form", "url") if revision.url_elicitation else ("form",)
            passable["elicitation"] = {name: {} for name in known if name in parts or (name == "form" and not parts)}
        if "sampling" in self.allow and isinstance(parts := declared.get("sampling"), Mapping):
            passable["sampling"] = {name: {} for name in ("context", "tools") if name in parts}
        if "roots" in self.allow and isinstance(declared.get("roots"), Mapping):
            passable["roots"] = {}
        return passable


def own_elicitation_id(name: str, id: str) -> str:
    """The id at our own client: those of two backends may be the same."""
    return f"{name}:{id}"[:256]


def _read_elicit(name: str, params: Raw) -> InputRequest[Any]:
    request = read_elicitation(params)
    message = f"[{name}] {request.message}"
    if request.mode == "url":
        id = None if request.elicitation_id is None else own_elicitation_id(name, request.elicitation_id)
        return PassedUrl(message, request.url or "", elicitation_id=id)
    schema = request.schema or {}

    def render(revision: Revision) -> dict[str, Any]:
        mode = {"mode": "form"} if revision.url_elicitation else {}
        return {**mode, "message": message, "requestedSchema": render_form(schema, revision)}

    whole = {"mode": "form", "message": message, "requestedSchema": schema}
    return PassedRequest("elicitation/create", whole, ("elicitation.form",), render)


def _read_sample(name: str, params: Raw) -> InputRequest[Any]:  # noqa: ARG001
    request = msgspec.json.decode(params, type=SamplingParams)
    return PassedRequest(
        "sampling/createMessage",
        msgspec.to_builtins(request),
        request.requires,
        lambda revision: msgspec.to_builtins(shape_sampling(request, revision)),
    )


_READERS: dict[str, Callable[[str, Raw], InputRequest[Any]]] = {
    "elicitation/create": _read_elicit,
    "sampling/createMessage": _read_sample,
    "roots/list": lambda name, params: PassedRequest("roots/list", {}, ("roots",)),  # noqa: ARG005
}


# ── calls ──


class Call:
    """One request of a client while the backend serves it."""

    def __init__(self, ctx: Context, questions: Questions) -> None:
        self.engine, self.context = request_of(ctx)
        self.level = wanted_level(ctx)
        self.current: Callable[[], Context | None] = lambda: ctx  # of the request that waits
        self._questions = questions
        self.ask: Callable[[InputRequest[Any]], Awaitable[Raw]] = self._ask_live
        self._unsent: deque[Callable[[], Awaitable[None]]] = deque(maxlen=MAX_UNSENT)
        self._sending: asyncio.Task[None] | None = None
        request = self.context.request
        params = jsonrpc.members(request.raw_params)
        meta = jsonrpc.members(params["_meta"]) if "_meta" in params else {}
        can_be_asked = request.row.interactive and (self.context.channel is not None or request.revision.input_required)
        capabilities: dict[str, Any] = {}
        if can_be_asked:
            declared = request.capabilities if request.session else jsonrpc.parse(meta.get(CAPABILITIES_KEY, b"{}"))
            capabilities = questions.passable(declared, request.revision)
        self.caller = Caller(self.context.principal, state_owner(self.context), capabilities)
        self._wants_progress = "progressToken" in meta
        self.meta = {key: value for key, value in meta.items() if _passes(key)}

    @property
    def progress(self) -> Callable[[float, float | None, str | None], None] | None:
        return self._progress if self._wants_progress else None

    def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        text = None if message is None else message[:MAX_MESSAGE]
        if (ctx := self.current()) is not None:
            self._send(partial(ctx.report_progress, progress, total, text))

    def log(self, params: Raw) -> None:
        if self.level is None or len(params) > MAX_LOG_BYTES:
            return
        with suppress(*UNREADABLE):
            given = msgspec.json.decode(params, type=LogMessage)
            if passes_level(given.level, self.level) and (ctx := self.current()) is not None:
                name = self._questions.name
                logger = name if given.logger is None else f"{name}.{printable(given.logger)}"
                self._send(partial(send_log, ctx, given.level, given.data, logger))

    def _send(self, notify: Callable[[], Awaitable[None]]) -> None:
        self._unsent.append(notify)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        while self._unsent:
            with suppress(Exception):  # a number that can't be sent, or a client that has gone
                await self._unsent.popleft()()

    async def flush(self) -> None:
        """Send all notifications before the response; none if the call was cancelled."""
        task = asyncio.current_task()
        if self._sending is not None and task is not None and task.cancelling():
            self._sending.cancel()
        elif self._sending is not None:
            await self._sending

    def prepare_answer(self, method: str, params: Raw) -> Callable[[], Awaitable[Any]]:
        return partial(self._answer, self._questions.read(method, params))

    async def _ask_live(self, request: InputRequest[Any]) -> Raw:
        return await server_requests_of(self.engine, self.context).request(request, self.engine.options.answer_timeout)

    async def _answer(self, request: InputRequest[Any]) -> Raw:
        try:
            answer: Raw = request.read(await self.ask(request), self.context.request.revision)
            return answer
        except errors.QuestionFailed as failure:
            raise errors.ProtocolError(str(failure), code=failure.code) from None
        except (errors.ToolError, errors.MissingCapability) as failure:
            raise errors.ProtocolError(str(failure), code=errors.INVALID_REQUEST) from None


def _passes(key: str) -> bool:
    return key in PASSED_KEYS or not (key == "progressToken" or key.startswith(OWN_KEYS))


class RoundState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Our state around the backend's, of a call that asks in rounds."""

    state: str | None = None
    questions: dict[str, dict[str, Any]] = {}  # params by key
    waits: int = 0  # rounds without a question, in a row


class Forwarder:
    """The functions of a proxy's tools, resources, prompts and completions."""

    def __init__(self, backend: Backend, questions: Questions) -> None:
        self._backend = backend
        self._questions = questions
        self._subject = f"The server {backend.name!r}"

    async def call_tool(self, tool: ToolDefinition, arguments: Raw, ctx: Context) -> ToolResult | InputRequired:
        reply = await self._request(ctx, "tools/call", {"name": tool.name, "arguments": arguments})
        if isinstance(reply, InputRequired):
            return reply
        _, head, revision = reply
        try:
            return read_tool_result(head, revision, request_of(ctx)[1].request.revision, tool)
        except (*UNREADABLE, ValueError) as failure:
            raise self._unreadable(failure) from None

    async def read(self, uri: str, ctx: Context) -> ReadResourceResult | InputRequired:
        reply = await self._request(ctx, "resources/read", {"uri": uri})
        if isinstance(reply, InputRequired):
            return reply
        return ReadResourceResult(self._decode("resources/read", reply[0], _Contents).contents)

    async def get_prompt(self, name: str, arguments: Raw, ctx: Context) -> PromptResult | InputRequired:
        reply = await self._request(ctx, "prompts/get", {"name": name, "arguments": arguments})
        return reply if isinstance(reply, InputRequired) else self._decode("prompts/get", reply[0], PromptResult)

    async def complete(
        self, ref: Mapping[str, str], argument: str, value: str, arguments: dict[str, str], ctx: Context
    ) -> Completion:
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if arguments:
            params["context"] = {"arguments": arguments}
        try:
            reply = await self._request(ctx, "completion/complete", params)
        except errors.ProtocolError as refused:
            if refused.code != errors.METHOD_NOT_FOUND:
                raise
            return Completion([])
        assert not isinstance(reply, InputRequired)
        result: CompleteResult = self._decode("completion/complete", reply[0], CompleteResult)
        return result.completion

    def _decode(self, method: str, raw: Raw, shape: Any) -> Any:
        try:
            return decode(method, raw, shape)
        except errors.BadResponse as failure:
            raise self._unreadable(failure) from None

    def _unreadable(self, failure: Exception) -> errors.ToolError:
        return errors.ToolError(f"{self._subject} gave a result that can't be read: {printable(failure)}")

    async def _request(
        self, ctx: Context, method: str, params: dict[str, Any]
    ) -> tuple[Raw, _Head, Revision] | InputRequired:
        call = Call(ctx, self._questions)
        state = RoundState()
        try:
            if isinstance(given := ctx.request_state, dict) and "call" not in given:
                state = msgspec.convert(given, RoundState)
                params |= self._answers(call.context, state, ctx.input_responses)
            elif given is None and ctx.input_responses:
                params["inputResponses"] = ctx.input_responses  # unasked, as the backend would get them itself
            if given is not None and "call" in given:
                outcome = await open_calls_of(call.engine).resume(given, ctx.input_responses, call.context)
                reply = self._read_outcome(outcome)
            elif await self._stays_open(call):
                run = partial(self._run_open, call, method, params)
                reply = self._read_outcome(await open_calls_of(call.engine).begin(call.context, run))
            else:
                reply = await self._send(call, method, params)
            if isinstance(reply, InputRequired):
                return reply
            raw, revision = reply
            head = decode(method, raw, _Head)
            if head.result_type not in ("complete", INPUT_REQUIRED):
                raise errors.BadResponse(f"its resultType is {printable(head.result_type, 50)}")
            if head.result_type == "complete" or not revision.input_required:
                return raw, head, revision
            return await self._input_required(call, head, state)
        except (errors.DovetailError, TimeoutError) as failure:
            raise self._explain(failure, method, call.context) from None
        finally:
            await call.flush()

    async def _send(self, call: Call, method: str, params: dict[str, Any]) -> tuple[Raw, Revision]:
        refused: tuple[errors.ServerError, Revision] | None = None
        while True:
            async with self._backend.session(call.caller) as session:
                if refused is not None and refused[1] is session.revision:
                    raise refused[0]
                own = {}
                if not session.revision.handshake:
                    own[CAPABILITIES_KEY] = shape_capabilities(call.caller.capabilities, session.revision)
                try:
                    given = {**params, "_meta": {**call.meta, **own}} if call.meta or own else params
                    return await session.carry(call, method, given), session.revision
                except errors.ServerError as failure:
                    if refused is not None or not session.is_over:
                        raise
                    refused = failure, session.revision  # perhaps because the backend has another revision now

    # ── calls of a handshake backend that asks a client of 2026-07-28 ──

    async def _stays_open(self, call: Call) -> bool:
        if not call.context.request.revision.input_required or not call.caller.capabilities:
            return False
        return (await self._backend.main()).revision.handshake

    async def _run_open(self, call: Call, method: str, params: dict[str, Any], opened: OpenCall) -> bytes:
        """The work of an open call: the backend's revision and its result."""
        call.ask = opened
        call.current = lambda: None if opened.context is None else Context(call.engine, opened.context)
        try:
            raw, revision = await self._send(call, method, params)
        except (errors.DovetailError, TimeoutError) as failure:
            raise self._explain(failure, method, call.context) from None
        return b"%b %b" % (revision.name.encode(), raw)

    def _read_outcome(self, outcome: Outcome) -> tuple[Raw, Revision] | InputRequired:
        if isinstance(outcome, Asks):
            return InputRequired(outcome.requests, state=outcome.state)
        if isinstance(outcome, Failed):
            raise outcome.error
        name, _, raw = outcome.value.partition(b" ")
        return Raw(raw), revisions.BY_NAME[name.decode()]

    # ── input_required of a backend ──

    def _answers(self, context: RequestContext, state: RoundState, given: Mapping[str, Any]) -> dict[str, Any]:
        revision = context.request.revision
        answers = {key: given[key] for key in state.questions if key in given}
        if not revision.rich_forms:
            for key in answers:
                asked = PassedRequest("", state.questions[key], ())
                answers[key] = asked.read(encode(answers[key]), revision)
        responses = {"inputResponses": answers} if answers else {}
        return responses if state.state is None else {**responses, "requestState": state.state}

    async def _input_required(self, call: Call, head: _Head, state: RoundState) -> InputRequired:
        asked = head.input_requests or {}
        if not asked and head.request_state is None:
            raise errors.BadResponse("it wants an answer, but asks nothing")
        requests: dict[str, InputRequest[Any]] = {}
        for key, question in asked.items():
            try:
                requests[key] = self._questions.read(question.method, question.params)
            except errors.ProtocolError as bad:
                raise errors.ToolError(f"{self._subject} asks {question.method[:100]}: {bad.message}") from None
        revision = call.context.request.revision
        if not asked and not revision.input_required:  # else the client waits
            await asyncio.sleep(WAITS[min(state.waits, len(WAITS) - 1)])
        forms = {key: {} if revision.rich_forms else each.server_request.params for key, each in requests.items()}
        kept = RoundState(head.request_state, forms, 0 if asked else state.waits + 1)
        try:
            return InputRequired(requests, state=msgspec.to_builtins(kept))
        except errors.SetupError:
            raise errors.BadResponse("it asks too many questions at once, or by keys that are too long") from None

    # ── failures ──

    def _explain(self, failure: Exception, method: str, context: RequestContext) -> Exception:
        """What the client gets to see."""
        words = printable(failure.message if isinstance(failure, errors.ServerError) else failure)
        match failure:
            case errors.ToolError() | errors.ProtocolError() | errors.SetupError():
                return failure
            case errors.TooManyRequests():
                wait = "" if failure.retry_after is None else f"; try again in {failure.retry_after:g} s"
                return errors.ToolError(f"{self._subject} accepts no more requests for now{wait}")
            case errors.ServerError():
                return self._pass_error(failure, words, method, context)
            case errors.NotSignedIn():
                return errors.ToolError(f"{self._subject} accepts no token of this gateway: {words}")
            case TimeoutError():
                return errors.ToolError(f"{self._subject} gave no answer in time: {words}; {UNKNOWN_EFFECT}")
            case errors.ConnectionLost():
                return errors.ToolError(f"{self._subject} was lost during the request: {words}; {UNKNOWN_EFFECT}")
        return errors.ToolError(f"{self._subject} gave a result that can't be read: {words}; {UNKNOWN_EFFECT}")

    def _pass_error(self, failure: errors.ServerError, words: str, method: str, context: RequestContext) -> Exception:
        code, data = failure.code, failure.data
        if code == errors.URL_ELICITATION_REQUIRED:
            with suppress(errors.ProtocolError, errors.SetupError, TypeError, KeyError):
                pages = [{"mode": "url", **page} for page in data["elicitations"][:100]]
                reads = [self._questions.read("elicitation/create", Raw(encode(page))) for page in pages]
                return errors.UrlElicitationRequired(*[each for each in reads if isinstance(each, PassedUrl)])
        if code == errors.MISSING_CAPABILITY:
            with suppress(TypeError, KeyError, AttributeError):
                required = [printable(name, 100) for name in data["requiredCapabilities"]][:10]
                if all(name in context.request.capabilities for name in required):
                    text = f"{self._subject} needs what this gateway does not pass on: {', '.join(required)}"
                    return errors.ToolError(text)
                return errors.MissingCapability({name: {} for name in required})
        if code > 0 or code in (errors.HEADER_MISMATCH, errors.UNSUPPORTED_VERSION):  # about this hop
            return errors.ToolError(f"{self._subject} refused the request: {words}")
        missing = (errors.RESOURCE_NOT_FOUND, errors.INVALID_PARAMS)
        if method == "resources/read" and code in missing:
            return errors.NotFound(words)
        if not context.request.revision.handshake and code in RESERVED:
            code = errors.INTERNAL_ERROR  # a code of another revision, or of the backend's own
        is_small = data is not None and len(encode(data)) <= MAX_LOG_BYTES
        return errors.ProtocolError(words, code=code, data=data if is_small else None)
