"""The official SDK's `Context`, session and resolvers, on ours."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast, get_args, get_origin

import mcp_types
import msgspec
from pydantic import AnyUrl, BaseModel, TypeAdapter

from dovetail.compat.shared import OUTCOMES, AcceptedElicitation, ElicitationResult, outcome, wire
from dovetail.engine.context import Context as NativeContext
from dovetail.engine.context import request_of
from dovetail.engine.request_context import threads_of
from dovetail.errors import INTERNAL_ERROR, NotFound, ProtocolError, SetupError, ToolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.elicitation import InputRequest, InputRequired
from dovetail.protocol.revisions import Revision
from dovetail.protocol.sampling import SamplingMessage
from dovetail.registry.elicitation import Elicit as NativeElicit
from dovetail.registry.elicitation import ElicitUrl
from dovetail.registry.functions import members, outermost
from dovetail.registry.roots import Roots
from dovetail.registry.sampling import Sample as NativeSample

PAGE = "From the official SDK"
LifespanT = TypeVar("LifespanT")
RequestT = TypeVar("RequestT")
M = TypeVar("M", bound=BaseModel)
_answers: TypeAdapter[Any] = TypeAdapter(mcp_types.InputResponse)


# ── exceptions ──


class MCPError(ProtocolError):
    """Becomes a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message, code=code, data=data)

    @property
    def error(self) -> mcp_types.ErrorData:
        return mcp_types.ErrorData(code=self.code, message=self.message, data=self.data)


class ResourceError(ProtocolError):
    """A failure of a resource whose text the client gets."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message, code=INTERNAL_ERROR)


class ResourceNotFoundError(ResourceError, NotFound):
    """There is no such resource."""

    def __init__(self, message: str = "Resource not found") -> None:
        NotFound.__init__(self, message)


# ── requests to the client ──


def input_request(request: Any) -> InputRequest[Any]:
    """A request of mcp_types as ours. Raises SetupError for one that a server can't make."""
    params = request.params
    if isinstance(request, mcp_types.ElicitRequest):
        if isinstance(params, mcp_types.ElicitRequestURLParams):
            return ElicitUrl(params.message, params.url, elicitation_id=params.elicitation_id)
        return NativeElicit(params.message, schema=params.requested_schema)
    if isinstance(request, mcp_types.ListRootsRequest):
        return Roots()
    if not isinstance(request, mcp_types.CreateMessageRequest):
        raise SetupError(f"{type(request).__name__} is no request that a client answers")
    given = {name: value for name in params.model_fields_set if (value := getattr(params, name)) is not None}
    messages = msgspec.convert([wire(each) for each in given.pop("messages")], list[SamplingMessage])
    given.pop("meta", None)
    plain = {name: _plain(value) for name, value in given.items()}
    return NativeSample(messages, **plain)  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return wire(value) if isinstance(value, BaseModel) else value


class Asked(Generic[M]):
    """A request of mcp_types, whose result is read as one of its models."""

    def __init__(self, request: Any, model: type[M]) -> None:
        self._request = input_request(request)
        self.server_request = self._request.server_request
        self.params = self._request.params
        self._model = model

    def read(self, result: bytes | msgspec.Raw, revision: Revision) -> M:
        self._request.read(result, revision)  # raises QuestionFailed if it does not fit the request
        return self._model.model_validate_json(bytes(result))


def to_input_required(result: Any) -> InputRequired:
    """An `InputRequiredResult` as ours."""
    requests = {key: input_request(each) for key, each in (result.input_requests or {}).items()}
    state = {} if result.request_state is None else {"state": result.request_state}
    return InputRequired(requests, **state)


# ── the context ──


class ReadResourceContents(NamedTuple):
    content: str | bytes
    mime_type: str | None
    meta: dict[str, Any] | None = None


class Context(NativeContext, Generic[LifespanT, RequestT]):
    """The SDK's context of a call."""

    mcp_server: Any = None  # each server has a subclass of its own

    @property
    def request_id(self) -> str:
        return str(super().request_id)

    @property
    def request_context(self) -> "ServerRequestContext[LifespanT, RequestT]":
        return ServerRequestContext.of(self)

    @property
    def session(self) -> "ServerSession":
        return ServerSession(self)

    @property
    def client_capabilities(self) -> mcp_types.ClientCapabilities | None:
        return self.session.client_capabilities

    @property
    def input_responses(self) -> dict[str, Any] | None:  # type: ignore[override]
        """The client's answers; None before there are some."""
        found = super().input_responses
        return {key: _answers.validate_python(each) for key, each in found.items()} if found else None

    def log(self, level: Any, data: Any, logger: str | None = None, *, logger_name: str | None = None) -> Any:
        return super().log(level, data, logger_name or logger)

    def debug(self, data: Any, logger: str | None = None, *, logger_name: str | None = None) -> Any:
        return self.log("debug", data, logger_name or logger)

    def info(self, data: Any, logger: str | None = None, *, logger_name: str | None = None) -> Any:
        return self.log("info", data, logger_name or logger)

    def warning(self, data: Any, logger: str | None = None, *, logger_name: str | None = None) -> Any:
        return self.log("warning", data, logger_name or logger)

    def error(self, data: Any, logger: str | None = None, *, logger_name: str | None = None) -> Any:
        return self.log("error", data, logger_name or logger)

    async def read_resource(self, uri: str | AnyUrl) -> list[ReadResourceContents]:  # type: ignore[override]
        try:
            found = await super().read_resource(str(uri))
        except NotFound as failure:
            raise ResourceNotFoundError(failure.message) from failure
        contents = ((each.blob if each.text is None else each.text, each) for each in found)
        return [ReadResourceContents(cast("str | bytes", content), each.mime_type, each.meta) for content, each in contents]

    async def elicit(self, message: str, schema: type[M]) -> ElicitationResult[M]:  # type: ignore[override]
        return outcome(await super().elicit(message, schema))

    async def elicit_url(self, message: str, url: str, elicitation_id: str) -> ElicitationResult[None]:  # type: ignore[override]
        return outcome(await super().elicit_url(message, url, elicitation_id=elicitation_id))

    async def close_sse_stream(self) -> None:
        await self.close_stream()

    async def close_standalone_sse_stream(self) -> None:
        """Do nothing, as there: clients do not come back to that stream."""

    async def ask(self, request: Any, model: type[M]) -> M:
        """Send a request of mcp_types to the client."""
        return await self._request("send_request", Asked(request, model), None)


@dataclass(kw_only=True)
class ServerRequestContext(Generic[LifespanT, RequestT]):
    """One request, for handlers and middleware."""

    session: "ServerSession"
    lifespan_context: LifespanT
    protocol_version: str
    method: str
    params: Mapping[str, Any]
    request_id: Any
    meta: dict[str, Any]
    request: RequestT

    @classmethod
    def of(cls, ctx: Context[Any, Any]) -> "ServerRequestContext[Any, Any]":
        request = request_of(ctx)[1].request
        return cls(
            session=ServerSession(ctx),
            lifespan_context=ctx.lifespan,
            protocol_version=ctx.protocol_version,
            method=request.method,
            params=jsonrpc.parse(request.raw_params),
            request_id=request.id,
            meta=ctx.meta,
            request=None if request.headers is None else request,
        )


class ServerSession:
    """The client of a call. What names another request is sent with the one that is served."""

    def __init__(self, ctx: Context[Any, Any]) -> None:
        self.ctx = ctx
        self.report_progress = ctx.report_progress
        self.elicit_url = ctx.elicit_url

    @property
    def protocol_version(self) -> str:
        return self.ctx.protocol_version

    @property
    def client_capabilities(self) -> mcp_types.ClientCapabilities | None:
        return mcp_types.ClientCapabilities.model_validate(self.ctx.client.capabilities)

    @property
    def client_params(self) -> mcp_types.InitializeRequestParams | None:
        given = {"protocolVersion": self.protocol_version, "clientInfo": self.ctx.client.info}
        return mcp_types.InitializeRequestParams.model_validate({**given, "capabilities": self.ctx.client.capabilities})

    @property
    def can_send_request(self) -> bool:
        return True  # in every revision; a client that can't answer is a MissingCapability

    def check_client_capability(self, capability: mcp_types.ClientCapabilities) -> bool:
        return _has_all(wire(capability), self.ctx.client.capabilities)

    async def send_log_message(
        self, level: Any, data: Any, logger: str | None = None, related_request_id: Any = None
    ) -> None:
        await self.ctx.log(level, data, logger)

    async def send_progress_notification(
        self, progress_token: Any, progress: float, total: float | None = None, message: str | None = None, **_: Any
    ) -> None:
        await self.ctx.report_progress(progress, total, message)

    async def send_resource_updated(self, uri: str | AnyUrl) -> None:
        await self.ctx.notify_resource_updated(str(uri))

    async def send_resource_list_changed(self) -> None:
        await self.ctx.notify_resources_changed()

    async def send_tool_list_changed(self) -> None:
        await self.ctx.notify_tools_changed()

    async def send_prompt_list_changed(self) -> None:
        await self.ctx.notify_prompts_changed()

    async def send_elicit_complete(self, elicitation_id: str, related_request_id: Any = None) -> None:
        await self.ctx.mcp_server.complete_elicitation(elicitation_id)

    async def send_notification(self, notification: Any, related_request_id: Any = None) -> None:
        """Send what the server can tell its client; anything else raises SetupError."""
        params = notification.params
        match notification:
            case mcp_types.LoggingMessageNotification():
                await self.ctx.log(params.level, params.data, params.logger)
            case mcp_types.ProgressNotification():
                await self.ctx.report_progress(params.progress, params.total, params.message)
            case mcp_types.ResourceUpdatedNotification():
                await self.send_resource_updated(params.uri)
            case mcp_types.ResourceListChangedNotification():
                await self.send_resource_list_changed()
            case mcp_types.ToolListChangedNotification():
                await self.send_tool_list_changed()
            case mcp_types.PromptListChangedNotification():
                await self.send_prompt_list_changed()
            case _:
                raise SetupError(f'{notification.method} can\'t be sent; see the page "{PAGE}" of the docs')

    async def send_request(self, request: Any, result_type: type[M], **_: Any) -> M:
        return await self.ctx.ask(request, result_type)

    async def elicit_form(
        self, message: str, requested_schema: dict[str, Any], related_request_id: Any = None
    ) -> mcp_types.ElicitResult:
        params = mcp_types.ElicitRequestFormParams(message=message, requested_schema=requested_schema)
        return await self.ctx.ask(mcp_types.ElicitRequest(params=params), mcp_types.ElicitResult)

    elicit = elicit_form

    async def create_message(self, messages: Sequence[mcp_types.SamplingMessage], **options: Any) -> Any:
        options.pop("related_request_id", None)
        return await self.ctx.ask(_sampling(messages, options), _sampling_result(options))

    async def list_roots(self) -> mcp_types.ListRootsResult:
        return await self.ctx.ask(mcp_types.ListRootsRequest(), mcp_types.ListRootsResult)


def _has_all(wanted: Any, found: Any) -> bool:
    if not isinstance(wanted, dict):
        return bool(wanted == found)
    return isinstance(found, dict) and all(name in found and _has_all(each, found[name]) for name, each in wanted.items())


def _sampling(messages: Sequence[Any], options: Mapping[str, Any]) -> mcp_types.CreateMessageRequest:
    given = {name: value for name, value in options.items() if value is not None}
    return mcp_types.CreateMessageRequest(params=mcp_types.CreateMessageRequestParams(messages=[*messages], **given))


def _sampling_result(options: Mapping[str, Any]) -> type[BaseModel]:
    has_tools = options.get("tools") or options.get("tool_choice")
    return mcp_types.CreateMessageResultWithTools if has_tools else mcp_types.CreateMessageResult


# ── resolvers ──


class Resolve:
    """In `Annotated[T, Resolve(function)]`: the function fills the parameter."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn


class Elicit(Generic[M]):
    """What a resolver returns to ask the user."""

    def __init__(self, message: str, schema: type[M]) -> None:
        self.message, self.schema = message, schema

    async def ask(self, ctx: Context[Any, Any]) -> Any:
        return await ctx.elicit(self.message, self.schema)


class Sample:
    """What a resolver returns to ask the client's model."""

    def __init__(self, messages: Sequence[mcp_types.SamplingMessage], **options: Any) -> None:
        self.request, self.model = _sampling(messages, options), _sampling_result(options)

    async def ask(self, ctx: Context[Any, Any]) -> Any:
        return AcceptedElicitation(await ctx.ask(self.request, self.model))


class ListRoots:
    """What a resolver returns to get the client's roots."""

    async def ask(self, ctx: Context[Any, Any]) -> Any:
        return AcceptedElicitation(await ctx.session.list_roots())


def resolved_parameters(signature: inspect.Signature) -> dict[str, tuple[Resolve, bool]]:
    """The parameters that resolvers fill, and whether they take the whole outcome or what the user said."""
    found = {}
    for name, each in signature.parameters.items():
        resolve = next((one for one in getattr(each.annotation, "__metadata__", ()) if isinstance(one, Resolve)), None)
        if resolve is not None:
            kinds = [get_origin(member) or member for member in members(each.annotation)]
            found[name] = resolve, any(kind in OUTCOMES for kind in kinds)
    return found


def takes_context(annotation: Any) -> bool:
    kinds = [get_origin(member) or member for member in members(annotation)]
    return any(isinstance(kind, type) and issubclass(kind, NativeContext) for kind in kinds)


async def call_in_thread(ctx: NativeContext, call: Callable[[], Any], label: str) -> Any:
    engine, context = request_of(ctx)
    return await threads_of(engine, context).run(call, label=label)


class Resolution:
    """The resolvers of one call: each runs once, with the arguments of the tool by their names."""

    def __init__(self, ctx: Context[Any, Any], arguments: Mapping[str, Any]) -> None:
        self._ctx = ctx
        self._arguments = arguments
        self._outcomes: dict[Any, Any] = {}

    async def fill(self, parameters: Mapping[str, tuple[Resolve, bool]]) -> dict[str, Any]:
        filled = {}
        for name, (resolve, takes_outcome) in parameters.items():
            found = await self._resolve(resolve.fn)
            if not takes_outcome and not isinstance(found, AcceptedElicitation):
                raise ToolError(f"The user did not answer what {name} needs: {found.action}")
            filled[name] = found if takes_outcome else found.data
        return filled

    async def _resolve(self, function: Callable[..., Any]) -> Any:
        if function in self._outcomes:
            return self._outcomes[function]
        signature = inspect.signature(function, eval_str=True)
        parameters = resolved_parameters(signature)
        given = await self.fill(parameters)
        for name, each in signature.parameters.items():
            if name not in parameters:
                given[name] = self._ctx if takes_context(each.annotation) else self._arguments[name]
        if inspect.iscoroutinefunction(outermost(function)):
            value = await function(**given)
        else:
            value = await call_in_thread(self._ctx, partial(function, **given), "a resolver")
        asks = isinstance(value, (Elicit, Sample, ListRoots))
        self._outcomes[function] = found = await value.ask(self._ctx) if asks else AcceptedElicitation(value)
        return found
