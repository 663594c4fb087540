"""Requests of clients, passed on to a backend; its results, errors and questions, passed back."""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail import errors
from dovetail.client.handlers import INPUT_METHODS, RequiredInput, read_elicitation, read_input_required
from dovetail.client.results import LogMessage, decode, result_type_of
from dovetail.engine.caller_state import state_owner
from dovetail.engine.context import Context, request_of, send_log, wanted_level
from dovetail.engine.idempotency import KEY_HEADER, read_key
from dovetail.engine.open_calls import OpenCall, open_calls_of
from dovetail.engine.request_context import RequestContext, server_requests_of
from dovetail.gateway.backends import Backend, Caller, describe_failure, printable
from dovetail.protocol import jsonrpc, results, revisions, types
from dovetail.protocol.capabilities import Completion, passes_level
from dovetail.protocol.elicitation import InputRequest, InputRequired, ServerRequest, render_form, restore_answer
from dovetail.protocol.extensions import EXTENSIONS_KEY, declared_extensions
from dovetail.protocol.inbound import CAPABILITIES_KEY
from dovetail.protocol.jsonrpc import UNREADABLE, encode
from dovetail.protocol.methods import RequestId
from dovetail.protocol.results import INPUT_REQUIRED, CompleteResult, PromptResult, ReadResourceResult, ToolResult
from dovetail.protocol.revisions import Revision
from dovetail.protocol.sampling import SamplingParams, shape_sampling
from dovetail.protocol.types import CALL_KEY, PROCESS_KEY
from dovetail.registry.elicitation import ElicitUrl

T = TypeVar("T")
MAX_QUESTION_BYTES = 256 * 1024
MAX_LOG_BYTES = 64 * 1024
MAX_MESSAGE = 10_000  # characters of a progress message
MAX_UNSENT = 100  # notifications of a call whose client reads slowly; older ones are dropped
ROUND_WAIT = 1.0  # seconds before a call is sent again that only had to wait
INPUT_REQUESTS = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
# The parts of capabilities that are passed on.
PARTS = {"elicitation": ("form", "url"), "sampling": ("context", "tools"), "roots": ()}
MCP_KEYS = "io.modelcontextprotocol/"
OWN_KEYS = (MCP_KEYS, "dovetail/", "progressToken")  # of `_meta`, which are about one hop
RESERVED = frozenset(range(-32768, -31999)) - {-32700, -32600, -32601, -32602, -32603}  # codes without a meaning now
_rank = {revision.name: rank for rank, revision in enumerate(revisions.ALL)}


# ── results ──


class _ToolResult(msgspec.Struct, rename="camel"):
    """The result of a tool, with its content as bytes."""

    content: Raw = Raw(b"[]")
    structured_content: Raw | UnsetType = UNSET
    is_error: bool = False
    meta: dict[str, Any] = msgspec.field(name="_meta", default_factory=dict)


class _Contents(msgspec.Struct):
    contents: list[types.ResourceContents]


_read_content = msgspec.json.Decoder(list[types.Content]).decode


class PassedResult(ToolResult, frozen=True, kw_only=True):
    """A result whose content passes as the backend's bytes: text, images or sounds, which all its revisions know."""

    encoded: Raw

    def decoded(self) -> ToolResult:
        return ToolResult(**{name: getattr(self, name) for name in ToolResult.__struct_fields__}).decoded()

    def encode(self, shaper: results.Shaper) -> bytes:
        if shaper.style.always_structured_content:
            return shaper.tool_result(self.decoded())
        return shaper.passed_result(self.encoded, self.structured, self.is_error, self.meta)


def _read_contents(raw: Raw, _: Revision) -> ReadResourceResult:
    return ReadResourceResult(decode("resources/read", raw, _Contents).contents)


def _read_prompt(raw: Raw, _: Revision) -> PromptResult:
    return decode("prompts/get", raw, PromptResult)


def _read_completion(raw: Raw, _: Revision) -> Completion:
    return decode("completion/complete", raw, CompleteResult).completion


def read_tool_result(tool: types.ToolDefinition, client: Revision, raw: Raw, backend: Revision) -> ToolResult:
    """The result for a client's revision; as bytes if that is the backend's or newer. Raises UNREADABLE."""
    head = decode("tools/call", raw, _ToolResult)
    structured, schema = head.structured_content, tool.output_schema
    if not isinstance(structured, UnsetType) and not backend.any_structured_output and bytes(structured)[:1] != b"{":
        raise msgspec.DecodeError("structuredContent is no object")
    parts: dict[str, Any] = {
        "structured": structured,
        "is_error": head.is_error,
        "meta": {key: value for key, value in head.meta.items() if not key.startswith(MCP_KEYS)} or None,
        "has_schema": schema is not None,
        "wrap": schema is not None and not types.describes_object(schema),
        "text_copy": False,
    }
    content = _read_content(head.content)
    links = types.ResourceLink, types.EmbeddedResource
    has_links = any(block.meta is not None or isinstance(block, links) for block in content)
    if has_links or _rank[client.name] < _rank[backend.name]:
        return ToolResult(content=content, **parts)
    return PassedResult(content=content, encoded=head.content, **parts)


# ── questions ──


class PassedRequest:
    """A question of a backend with raw params, as its client's revision spells them."""

    def __init__(self, server_request: ServerRequest, render: Callable[[Revision], dict[str, Any]]) -> None:
        self.server_request = server_request
        self._render = render

    def params(self, revision: Revision) -> dict[str, Any]:
        try:
            return self._render(revision)
        except (KeyError, TypeError, ValueError, AttributeError):  # the backend's form is odd
            raise errors.QuestionFailed(f"The question can't be put to a client of {revision.name}") from None

    def read(self, result: bytes | Raw, revision: Revision) -> Raw:
        with suppress(*UNREADABLE):
            answer = msgspec.json.decode(result, type=dict[str, Any])
            return Raw(encode(restore_answer(self.server_request, answer, revision)))
        raise errors.QuestionFailed("The client's answer can't be read")


class Questions(NamedTuple):
    """The questions that a backend may ask: elicitation always, others if they are allowed."""

    name: str
    allow: frozenset[str]

    def passable(self, declared: Mapping[str, Any], revision: Revision) -> dict[str, Any]:
        """The part of a client's capabilities that its backend may use."""
        kinds = [*sorted(self.allow), *(["elicitation"] if revision.elicitation else [])]
        known = {kind: declared[kind] for kind in kinds if isinstance(declared.get(kind), Mapping)}
        return {kind: {part: {} for part in PARTS[kind] if part in parts} for kind, parts in known.items()}

    def read(self, method: str, params: Raw) -> InputRequest[Any]:
        """Raises ProtocolError for one that is not allowed, or can't be read."""
        kind = method.partition("/")[0]
        if method not in INPUT_REQUESTS or (kind != "elicitation" and kind not in self.allow):
            text = f"Method not found: {method[:100]} is not passed on by this gateway"
            raise errors.ProtocolError(text, code=errors.METHOD_NOT_FOUND)
        try:
            if len(params) > MAX_QUESTION_BYTES:
                raise errors.SetupError(f"it has more than {MAX_QUESTION_BYTES} bytes")
            if kind == "roots":
                return PassedRequest(ServerRequest(method=method, params={}, requires=("roots",)), lambda _: {})
            return _read_sample(params) if kind == "sampling" else self._read_elicit(params)
        except (*UNREADABLE, errors.SetupError, errors.ProtocolError) as bad:
            raise errors.ProtocolError(f"Invalid params: {printable(bad)}", code=errors.INVALID_PARAMS) from None

    def read_page(self, params: Raw) -> ElicitUrl:
        """A page that the user should open; its id is our own, since those of two sessions may be the same."""
        request = read_elicitation(params)
        return ElicitUrl(f"[{self.name}] {request.message}", request.url or "")

    def _read_elicit(self, params: Raw) -> InputRequest[Any]:
        request = read_elicitation(params)
        if request.mode == "url":
            page = self.read_page(params)
            return PassedRequest(page.server_request, page.params)
        form = {"mode": "form", "message": f"[{self.name}] {request.message}", "requestedSchema": request.schema}

        def render(revision: Revision) -> dict[str, Any]:
            params = form | {"requestedSchema": render_form(request.schema or {}, revision)}
            return params if revision.url_elicitation else {key: params[key] for key in params if key != "mode"}

        asked = ServerRequest(method="elicitation/create", params=form, requires=("elicitation.form",))
        return PassedRequest(asked, render)


def _read_sample(raw: Raw) -> InputRequest[Any]:
    request = msgspec.json.decode(raw, type=SamplingParams)
    params = msgspec.to_builtins(request)
    asked = ServerRequest(method="sampling/createMessage", params=params, requires=request.requires)
    return PassedRequest(asked, lambda revision: msgspec.to_builtins(shape_sampling(request, revision)))


# ── calls ──


def caller_of(context: RequestContext, questions: Questions) -> Caller:
    request = context.request
    capabilities: dict[str, Any] = {}
    if context.channel is not None or request.revision.input_required:  # the client can be asked
        capabilities = questions.passable(request.capabilities, request.revision)
    return Caller(context.principal, state_owner(context), capabilities)


class Call:
    """One request of a client while the backend serves it."""

    def __init__(self, ctx: Context, questions: Questions) -> None:
        self.engine, self.context = request_of(ctx)
        self.level = wanted_level(ctx)
        self.current: Callable[[], Context | None] = lambda: ctx  # of the request that waits
        self.id: RequestId = ""  # in the session that carries it
        self.ask: Callable[[InputRequest[Any]], Awaitable[Raw]] = self._ask_live
        self._questions = questions
        self._unsent: deque[Callable[[], Awaitable[None]]] = deque(maxlen=MAX_UNSENT)
        self._sending: asyncio.Task[None] | None = None
        self.caller = caller_of(self.context, questions)
        self.can_be_asked = self.context.request.row.interactive and bool(self.caller.capabilities)
        params = jsonrpc.members(self.context.request.raw_params)
        meta = jsonrpc.members(params["_meta"]) if "_meta" in params else {}
        self.progress = self._progress if "progressToken" in meta else None
        self.meta = {key: each for key, each in meta.items() if key == PROCESS_KEY or not key.startswith(OWN_KEYS)}
        if CALL_KEY in meta or KEY_HEADER in (self.context.request.headers or ()):
            # To the backend all callers may be one; with the key of another, each would get the other's result.
            key, owner = read_key(self.context, is_known=self.caller.owner is not None), self.caller.owner
            self.meta[CALL_KEY] = Raw(encode(hashlib.sha256(encode([owner, key])).hexdigest()))

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
        if self.context.request.revision.input_required:  # asked in another round, the backend would run twice
            raise errors.QuestionFailed("The server has gone back to an older revision; make the call again")
        return await server_requests_of(self.engine, self.context).request(request, self.engine.options.answer_timeout)

    async def _answer(self, request: InputRequest[Any]) -> Raw:
        try:
            answer: Raw = request.read(await self.ask(request), self.context.request.revision)
            return answer
        except errors.QuestionFailed as failure:
            raise errors.ProtocolError(str(failure), code=failure.code) from None
        except (errors.ToolError, errors.MissingCapability) as failure:
            raise errors.ProtocolError(str(failure), code=errors.INVALID_REQUEST) from None


class Forwarder:
    """The functions of a proxy's tools, resources, prompts and completions."""

    def __init__(self, backend: Backend, questions: Questions) -> None:
        self._backend = backend
        self._questions = questions
        self._subject = f"The server {backend.name!r}"

    async def call_tool(self, tool: types.ToolDefinition, arguments: Raw, ctx: Context) -> ToolResult | InputRequired:
        read = partial(read_tool_result, tool, request_of(ctx)[1].request.revision)
        return await self._request(ctx, "tools/call", {"name": tool.name, "arguments": arguments}, read)

    async def read(self, uri: str, ctx: Context) -> ReadResourceResult | InputRequired:
        return await self._request(ctx, "resources/read", {"uri": uri}, _read_contents)

    async def get_prompt(self, name: str, arguments: Raw, ctx: Context) -> PromptResult | InputRequired:
        return await self._request(ctx, "prompts/get", {"name": name, "arguments": arguments}, _read_prompt)

    async def complete(
        self, ref: Mapping[str, str], argument: str, value: str, arguments: dict[str, str], ctx: Context
    ) -> Completion:
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if arguments:
            params["context"] = {"arguments": arguments}
        result = await self._request(ctx, "completion/complete", params, _read_completion)
        assert isinstance(result, Completion)
        return result

    async def _request(
        self, ctx: Context, method: str, params: dict[str, Any], read: Callable[[Raw, Revision], T]
    ) -> T | InputRequired:
        """The result as `read` reads it, or what the backend asks."""
        call, given = Call(ctx, self._questions), ctx.request_state
        try:
            if isinstance(given, dict) and "call" in given:
                outcome = await open_calls_of(call.engine).resume(given, ctx.input_responses, call.context)
                reply = self._read_outcome(outcome)
            else:
                if ctx.input_responses:  # asked for or not, as the backend would get them itself
                    params["inputResponses"] = ctx.input_responses
                params |= given or {}  # the backend's state
                in_rounds = call.can_be_asked and call.context.request.revision.input_required
                if in_rounds and (await self._backend.main(call.caller)).revision.handshake:
                    run, seconds = partial(self._run_open, call, method, params), call.engine.options.answer_timeout
                    reply = self._read_outcome(await open_calls_of(call.engine).begin(call.context, run, seconds))
                else:
                    reply = await self._send(call, method, params)
            if isinstance(reply, InputRequired):
                return reply
            raw, revision = reply
            kind = result_type_of(method, raw)
            if kind == INPUT_REQUIRED and revision.input_required and method in INPUT_METHODS:
                return await self._input_required(call, read_input_required(method, raw))
            if kind != "complete":
                raise errors.BadResponse(f"its resultType is {printable(kind, 50)}")
            return read(raw, revision)
        except (errors.DovetailError, TimeoutError, *UNREADABLE) as failure:
            raise self._explain(failure, method, call) from None
        finally:
            await call.flush()

    async def _send(self, call: Call, method: str, params: dict[str, Any]) -> tuple[Raw, Revision]:
        async with self._backend.session(call.caller) as session:
            own = {} if session.revision.handshake else {CAPABILITIES_KEY: call.caller.capabilities}
            given = {**params, "_meta": {**call.meta, **own}} if call.meta or own else params
            began = time.monotonic()
            raw = await session.carry(call, method, given)
            self._backend.latencies.append(time.monotonic() - began)
            return raw, session.revision

    # ── calls of a handshake backend that asks a client of 2026-07-28 ──

    async def _run_open(self, call: Call, method: str, params: dict[str, Any], opened: OpenCall) -> bytes:
        """The work of an open call: the backend's revision and its result."""
        call.ask = opened
        call.current = lambda: None if opened.context is None else Context(call.engine, opened.context)
        try:
            raw, revision = await self._send(call, method, params)
        except (errors.DovetailError, TimeoutError) as failure:
            raise self._explain(failure, method, call) from None
        finally:
            await call.flush()
        return b"%b %b" % (revision.name.encode(), raw)

    def _read_outcome(self, outcome: bytes | InputRequired) -> tuple[Raw, Revision] | InputRequired:
        if isinstance(outcome, InputRequired):
            return outcome
        name, _, raw = outcome.partition(b" ")
        return Raw(raw), revisions.BY_NAME[name.decode()]

    # ── input_required of a backend ──

    async def _input_required(self, call: Call, result: RequiredInput) -> InputRequired:
        asked = result.input_requests or {}
        requests: dict[str, InputRequest[Any]] = {}
        for key, question in asked.items():
            try:
                requests[key] = self._questions.read(question.method, question.params)
            except errors.ProtocolError as bad:
                raise errors.ToolError(f"{self._subject} asks {question.method[:100]}: {bad.message}") from None
        if not asked and not call.context.request.revision.input_required:  # else the client waits
            await asyncio.sleep(ROUND_WAIT)
        state = {} if result.request_state is None else {"requestState": result.request_state}
        return InputRequired(requests, state)

    # ── failures ──

    def _explain(self, failure: Exception, method: str, call: Call) -> Exception:
        """What the client gets to see."""
        words = printable(failure.message) if isinstance(failure, errors.ServerError) else describe_failure(failure)
        match failure:
            case errors.ToolError() | errors.ProtocolError() | errors.UrlElicitationRequired():
                return failure
            case errors.TooManyRequests() | errors.NotSignedIn():
                return errors.ToolError(f"{self._subject} refused the request: {words}")
            case errors.ServerError():
                return self._pass_error(failure, words, method, call)
            case TimeoutError():
                what = "gave no answer in time"
            case errors.ConnectionLost():
                what = "was lost during the request"
            case _:
                what = "gave a result that can't be read"
        return errors.ToolError(f"{self._subject} {what}: {words}; whether it had its effect is not known")

    def _pass_error(self, failure: errors.ServerError, words: str, method: str, call: Call) -> Exception:
        code, data, request = failure.code, failure.data, call.context.request
        if code == errors.URL_ELICITATION_REQUIRED:
            with suppress(errors.ProtocolError, errors.SetupError, TypeError, KeyError, *UNREADABLE):
                pages: Any = [Raw(encode({**page, "mode": "url"})) for page in data["elicitations"][:100]]
                return errors.UrlElicitationRequired(*map(self._questions.read_page, pages))
        if code == errors.MISSING_CAPABILITY:
            with suppress(TypeError, KeyError, AttributeError):
                required = data["requiredCapabilities"]
                names = [printable(name, 100) for name in required if name != EXTENSIONS_KEY][:10]
                ids = [printable(id, 200) for id in declared_extensions(required)][:10]
                known = request.capabilities.keys() | declared_extensions(request.capabilities).keys()
                if all(name in known for name in (*names, *ids)):
                    what = f"needs what this gateway does not pass on: {', '.join((*names, *ids))}"
                    return errors.ToolError(f"{self._subject} {what}")
                extensions: dict[str, Any] = {EXTENSIONS_KEY: {id: {} for id in ids}} if ids else {}
                return errors.MissingCapability({**{name: {} for name in names}, **extensions})
        if code > 0 or code in (errors.HEADER_MISMATCH, errors.UNSUPPORTED_VERSION):  # about this hop
            return errors.ToolError(f"{self._subject} refused the request: {words}")
        missing = (errors.RESOURCE_NOT_FOUND, errors.INVALID_PARAMS)
        if method == "resources/read" and code in missing:
            return errors.NotFound(words)
        if not request.revision.handshake and code in RESERVED:
            code = errors.INTERNAL_ERROR  # a code of another revision, or of the backend's own
        is_small = data is not None and len(encode(data)) <= MAX_LOG_BYTES
        return errors.ProtocolError(words, code=code, data=data if is_small else None)
