"""The official SDK's `Context`, which is its session too, and its resolvers, on ours."""

# mypy: disable-error-code="override"
# The SDK's signatures are other ones than those of our `Context`.

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast, get_origin

import mcp_types
import msgspec
from pydantic import BaseModel, TypeAdapter

from dovetail.compat.shared import OUTCOMES, AcceptedElicitation, ElicitationResult, not_possible, outcome, wire
from dovetail.engine.context import Context as NativeContext
from dovetail.engine.context import request_of
from dovetail.engine.request_context import threads_of
from dovetail.errors import INTERNAL_ERROR, NotFound, ProtocolError, ToolError, UrlElicitationRequired
from dovetail.protocol import jsonrpc
from dovetail.protocol.elicitation import InputRequest, InputRequired
from dovetail.protocol.revisions import Revision
from dovetail.registry.elicitation import Elicit as NativeElicit
from dovetail.registry.elicitation import ElicitUrl
from dovetail.registry.functions import members, outermost
from dovetail.registry.roots import Roots
from dovetail.registry.sampling import Sample as NativeSample

__all__ = [
    "Context", "Elicit", "ListRoots", "MCPError", "ReadResourceContents", "Resolve", "ResourceError",
    "ResourceNotFoundError", "Sample", "ServerRequestContext", "ServerSession", "UrlElicitationRequiredError",
]  # fmt: skip
PAGE = "From the official SDK"
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


class ResourceError(ToolError, ProtocolError):
    """A failure of a resource whose text the client gets; in a tool, the model."""

    def __init__(self, message: str = "") -> None:
        ProtocolError.__init__(self, message, code=INTERNAL_ERROR)


class ResourceNotFoundError(ResourceError, NotFound):
    """There is no such resource."""

    def __init__(self, message: str = "Resource not found") -> None:
        NotFound.__init__(self, message)


class UrlElicitationRequiredError(UrlElicitationRequired):
    """The user has to open a URL before the call can be made."""

    def __init__(self, elicitations: Sequence[mcp_types.ElicitRequestURLParams], message: str = "") -> None:  # noqa: ARG002
        super().__init__(*(_elicit_url(each) for each in elicitations))


# ── requests to the client ──


def _elicit_url(params: mcp_types.ElicitRequestURLParams) -> ElicitUrl:
    return ElicitUrl(params.message, params.url, elicitation_id=params.elicitation_id)


def input_request(request: Any) -> InputRequest[Any]:
    """A request of mcp_types as ours."""
    params = request.params
    if isinstance(params, mcp_types.ElicitRequestURLParams):
        return _elicit_url(params)
    if isinstance(params, mcp_types.ElicitRequestFormParams):
        return NativeElicit(params.message, schema=params.requested_schema)
    if isinstance(request, mcp_types.ListRootsRequest):
        return Roots()
    if not isinstance(params, mcp_types.CreateMessageRequestParams):
        raise not_possible(f"A {request.method} request to the client", PAGE)
    options = {name: wire(getattr(params, name)) for name in params.model_fields_set - {"meta", "messages"}}
    return NativeSample(cast(Any, params.messages), **options)


class Asked(Generic[M]):
    """A request of mcp_types, whose result is read as one of its models."""

    def __init__(self, request: Any, model: type[M]) -> None:
        self._request, self._model = input_request(request), model
        self.server_request, self.params = self._request.server_request, self._request.params

    def read(self, result: bytes | msgspec.Raw, revision: Revision) -> M:
        self._request.read(result, revision)  # raises QuestionFailed if it does not fit the request
        return self._model.model_validate_json(bytes(result))


def to_input_required(result: mcp_types.InputRequiredResult) -> InputRequired:
    requests = {key: input_request(each) for key, each in (result.input_requests or {}).items()}
    return InputRequired(requests, **({} if result.request_state is None else {"state": result.request_state}))


# ── the context ──


class ReadResourceContents(NamedTuple):
    content: str | bytes
    mime_type: str | None
    meta: dict[str, Any] | None = None


class Context(NativeContext):
    """The SDK's context of a call; also what it calls the request's context, and the session."""

    mcp_server: Any = None  # each server has a subclass of its own

    @property
    def request_id(self) -> str:
        return str(super().request_id)

    @property
    def session(self) -> "Context":
        return self

    @property
    def method(self) -> str:
        return request_of(self)[1].request.method

    @property
    def params(self) -> dict[str, Any]:
        return cast("dict[str, Any]", jsonrpc.parse(request_of(self)[1].request.raw_params))

    @property
    def request(self) -> Any:
        """What HTTP knows of the request: its `headers`."""
        return None if self.headers is None else request_of(self)[1].request

    @property
    def client_capabilities(self) -> mcp_types.ClientCapabilities:
        return mcp_types.ClientCapabilities.model_validate(self.client.capabilities)

    @property
    def client_params(self) -> mcp_types.InitializeRequestParams:
        own = {"protocolVersion": self.protocol_version, "clientInfo": self.client.info}
        return mcp_types.InitializeRequestParams.model_validate({**own, "capabilities": self.client.capabilities})

    def check_client_capability(self, capability: mcp_types.ClientCapabilities) -> bool:
        return _has_all(wire(capability), self.client.capabilities)

    @property
    def input_responses(self) -> dict[str, Any] | None:
        """The client's answers; None before there are some."""
        found = super().input_responses
        return {key: _answers.validate_python(each) for key, each in found.items()} if found else None

    def log(self, level: Any, data: Any, logger: str | None = None, *, logger_name: str | None = None, **_: Any) -> Any:
        return super().log(level, data, logger or logger_name)

    send_log_message = log

    def debug(self, data: Any, logger: str | None = None, **options: Any) -> Any:
        return self.log("debug", data, logger, **options)

    def info(self, data: Any, logger: str | None = None, **options: Any) -> Any:
        return self.log("info", data, logger, **options)

    def warning(self, data: Any, logger: str | None = None, **options: Any) -> Any:
        return self.log("warning", data, logger, **options)

    def error(self, data: Any, logger: str | None = None, **options: Any) -> Any:
        return self.log("error", data, logger, **options)

    async def read_resource(self, uri: Any) -> list[ReadResourceContents]:
        try:
            found = await super().read_resource(str(uri))
        except NotFound as failure:
            raise ResourceNotFoundError(failure.message) from failure
        return [ReadResourceContents(each.blob or each.text or "", each.mime_type, each.meta) for each in found]

    async def elicit(self, message: str, schema: Any = None, requested_schema: Any = None, **_: Any) -> Any:
        """Ask the user, by a class; what the session asks by is a raw schema."""
        raw = schema if requested_schema is None else requested_schema
        if not isinstance(raw, Mapping):
            return outcome(await super().elicit(message, schema))
        params = mcp_types.ElicitRequestFormParams(message=message, requested_schema=dict(raw))
        return await self.send_request(mcp_types.ElicitRequest(params=params), mcp_types.ElicitResult)

    elicit_form = elicit

    async def elicit_url(self, message: str, url: str, elicitation_id: str, **_: Any) -> ElicitationResult[None]:
        return outcome(await super().elicit_url(message, url, elicitation_id=elicitation_id))

    async def create_message(self, messages: Sequence[mcp_types.SamplingMessage], **options: Any) -> Any:
        options.pop("related_request_id", None)
        return (await Sample(messages, **options).ask(self)).data

    async def list_roots(self) -> mcp_types.ListRootsResult:
        return await self.send_request(mcp_types.ListRootsRequest(), mcp_types.ListRootsResult)

    async def send_request(self, request: Any, result_type: type[M], **_: Any) -> M:
        return await self._request("send_request", Asked(request, result_type), None)

    async def send_notification(self, notification: Any, related_request_id: Any = None) -> None:  # noqa: ARG002
        params, name = notification.params, notification.method
        known: dict[str, Callable[[], Any]] = {
            "notifications/message": lambda: self.log(params.level, params.data, params.logger),
            "notifications/progress": lambda: self.report_progress(params.progress, params.total, params.message),
            "notifications/resources/updated": lambda: self.send_resource_updated(params.uri),
            "notifications/resources/list_changed": self.notify_resources_changed,
            "notifications/tools/list_changed": self.notify_tools_changed,
            "notifications/prompts/list_changed": self.notify_prompts_changed,
        }
        if name not in known:
            raise not_possible(f"A {name} notification to the client", PAGE)
        await known[name]()

    async def send_progress_notification(self, progress_token: Any, *progress: Any, **_: Any) -> None:  # noqa: ARG002
        await self.report_progress(*progress)

    async def send_resource_updated(self, uri: Any) -> None:
        await self.notify_resource_updated(str(uri))

    send_resource_list_changed = NativeContext.notify_resources_changed
    send_tool_list_changed = NativeContext.notify_tools_changed
    send_prompt_list_changed = NativeContext.notify_prompts_changed
    close_sse_stream = NativeContext.close_stream

    async def send_elicit_complete(self, elicitation_id: str, related_request_id: Any = None) -> None:  # noqa: ARG002
        await self.mcp_server.complete_elicitation(elicitation_id)


ServerRequestContext = ServerSession = Context


def _has_all(wanted: Any, found: Any) -> bool:
    if not isinstance(wanted, dict) or not isinstance(found, dict):
        return bool(wanted == found)
    return all(name in found and _has_all(each, found[name]) for name, each in wanted.items())


# ── resolvers ──


class Resolve:
    """In `Annotated[T, Resolve(function)]`: the function fills the parameter."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn


class Elicit(Generic[M]):
    """What a resolver returns to ask the user."""

    def __init__(self, message: str, schema: type[M]) -> None:
        self.message, self.schema = message, schema

    async def ask(self, ctx: Context) -> Any:
        return await ctx.elicit(self.message, self.schema)


class Sample:
    """What a resolver returns to ask the client's model."""

    def __init__(self, messages: Sequence[mcp_types.SamplingMessage], **options: Any) -> None:
        params = {name: value for name, value in options.items() if value is not None}
        has_tools = "tools" in params or "tool_choice" in params
        self._request = mcp_types.CreateMessageRequest(
            params=mcp_types.CreateMessageRequestParams(messages=[*messages], **params)
        )
        self._model = mcp_types.CreateMessageResultWithTools if has_tools else mcp_types.CreateMessageResult

    async def ask(self, ctx: Context) -> Any:
        return AcceptedElicitation(await ctx.send_request(self._request, self._model))


class ListRoots:
    """What a resolver returns to get the client's roots."""

    async def ask(self, ctx: Context) -> Any:
        return AcceptedElicitation(await ctx.list_roots())


def resolved_parameters(signature: inspect.Signature) -> dict[str, tuple[Resolve, bool]]:
    """The parameters that resolvers fill, and whether they take the whole outcome or what the user said."""
    found = {}
    for name, each in signature.parameters.items():
        for resolve in getattr(each.annotation, "__metadata__", ()):
            if isinstance(resolve, Resolve):
                found[name] = resolve, any(kind in OUTCOMES for kind in _kinds(each.annotation))
    return found


def _kinds(annotation: Any) -> list[Any]:
    return [get_origin(member) or member for member in members(annotation)]


async def run(ctx: Context, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call an author's function: on the loop if it is async, else in a thread."""
    if inspect.iscoroutinefunction(outermost(function)):
        return await function(**arguments)
    engine, context = request_of(ctx)
    return await threads_of(engine, context).run(partial(function, **arguments), label=repr(function))


class Resolution:
    """The resolvers of one call: each runs once, and takes the arguments of the tool by their names."""

    def __init__(self, ctx: Context, arguments: Mapping[str, Any]) -> None:
        self._ctx, self._arguments = ctx, arguments
        self._outcomes: dict[Any, Any] = {}

    async def fill(self, parameters: Mapping[str, tuple[Resolve, bool]]) -> dict[str, Any]:
        filled = {}
        for name, (resolve, takes_outcome) in parameters.items():
            found = await self._resolve(resolve.fn)
            if not takes_outcome and not isinstance(found, AcceptedElicitation):
                raise ToolError(f"{name} is missing: the user chose {found.action}")
            filled[name] = found if takes_outcome else found.data
        return filled

    async def _resolve(self, function: Callable[..., Any]) -> Any:
        if function not in self._outcomes:
            signature = inspect.signature(function, eval_str=True)
            arguments = await self.fill(resolved_parameters(signature))
            for name in signature.parameters.keys() - arguments.keys():
                kinds = _kinds(signature.parameters[name].annotation)
                arguments[name] = self._ctx if Context in kinds else self._arguments[name]
            value = await run(self._ctx, function, arguments)
            asks = isinstance(value, (Elicit, Sample, ListRoots))
            self._outcomes[function] = await value.ask(self._ctx) if asks else AcceptedElicitation(value)
        return self._outcomes[function]
