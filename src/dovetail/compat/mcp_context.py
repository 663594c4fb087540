"""The official SDK's `Context`, which is its session too, its errors and its resolvers, on ours."""

# mypy: disable-error-code="override"
# The SDK's signatures are other ones than those of our `Context`.

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, partial, partialmethod
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, cast

import mcp_types
import msgspec
from pydantic import TypeAdapter

from dovetail.compat.shared import OUTCOMES, AcceptedElicitation, not_possible, outcome, wire
from dovetail.engine.context import Context as NativeContext
from dovetail.engine.context import request_of
from dovetail.engine.current_context import get_context
from dovetail.engine.request_context import threads_of
from dovetail.errors import NotFound, ProtocolError, ToolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.elicitation import InputRequired
from dovetail.registry.elicitation import Elicit, Elicited, ElicitUrl
from dovetail.registry.functions import members, outermost
from dovetail.registry.roots import Roots as ListRoots
from dovetail.registry.sampling import Sample, Sampled

PAGE = "From the official SDK"
_answers: TypeAdapter[Any] = TypeAdapter(mcp_types.InputResponse)


class MCPError(ProtocolError):
    """Becomes a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message, code=code, data=data)


ResourceError, ResourceNotFoundError = ProtocolError, NotFound


def input_request(request: Any) -> Any:
    """A request of mcp_types as ours."""
    params = request.params
    if isinstance(params, mcp_types.ElicitRequestURLParams):
        return ElicitUrl(params.message, params.url, elicitation_id=params.elicitation_id)
    if isinstance(params, mcp_types.ElicitRequestFormParams):
        return Elicit(params.message, schema=params.requested_schema)
    if isinstance(request, mcp_types.ListRootsRequest):
        return ListRoots()
    if not isinstance(params, mcp_types.CreateMessageRequestParams):
        raise not_possible(f"A {request.method} request to the client", PAGE)
    options = {name: wire(getattr(params, name)) for name in params.model_fields_set - {"meta", "messages"}}
    return Sample(cast(Any, params.messages), **options)


def to_input_required(result: mcp_types.InputRequiredResult) -> InputRequired:
    requests = {key: input_request(each) for key, each in (result.input_requests or {}).items()}
    return InputRequired(requests, **({} if result.request_state is None else {"state": result.request_state}))


def official(answer: Any) -> Any:
    """An answer of the client as the SDK gives it: an outcome, or a model of mcp_types."""
    if isinstance(answer, Elicited):
        return outcome(answer)
    if not isinstance(answer, Sampled):
        return mcp_types.ListRootsResult(roots=msgspec.to_builtins(answer))
    fields, content = msgspec.to_builtins(answer), msgspec.to_builtins(answer.content)
    if answer.tool_uses or len(content) != 1:
        return mcp_types.CreateMessageResultWithTools.model_validate({**fields, "content": content})
    return mcp_types.CreateMessageResult.model_validate({**fields, "content": content[0]})


# ── the context ──


def lacking(self: Any, name: str) -> Any:
    """The `__getattr__` of what has more in the SDK."""
    raise AttributeError(f'{type(self).__name__}.{name} has no equal here; see the page "{PAGE}" of the docs')


class Context(NativeContext):
    """The SDK's context of a call; also what it calls the request's context, and the session."""

    __dataclass_fields__: ClassVar[dict[str, Any]] = {}  # `dataclasses.replace` calls the class with what is new

    def __init__(self, *given: Any, **changed: Any) -> None:
        super().__init__(*given, **changed) if given else vars(self).update(vars(get_context()), **changed)

    __getattr__ = lacking

    @property
    def request_id(self) -> str:
        return str(super().request_id)

    @property
    def session(self) -> "Context":
        return self

    @property
    def method(self) -> str:
        return request_of(self)[1].request.method

    @cached_property
    def params(self) -> dict[str, Any]:
        """What the client sent; a middleware may change it."""
        return cast("dict[str, Any]", jsonrpc.parse(request_of(self)[1].request.raw_params))

    @property
    def request(self) -> Any:
        """What HTTP knows of the request: its `headers`."""
        return None if self.headers is None else request_of(self)[1].request

    @property
    def input_responses(self) -> dict[str, Any] | None:
        """The client's answers; None before there are some."""
        found = super().input_responses
        return {key: _answers.validate_python(each) for key, each in found.items()} if found else None

    async def read_resource(self, uri: Any) -> list[Any]:
        found = await super().read_resource(str(uri))
        return [SimpleNamespace(content=each.blob or each.text or "", mime_type=each.mime_type) for each in found]

    async def ask(self, request: Any) -> Any:
        return official(await self._request("ask", request, None))

    async def elicit(self, message: str, schema: Any) -> Any:
        return await self.ask(Elicit(message, schema))

    async def elicit_url(self, message: str, url: str, elicitation_id: str) -> Any:
        return await self.ask(ElicitUrl(message, url, elicitation_id=elicitation_id))

    def log(self, level: Any, data: Any, logger: str | None = None, *, logger_name: str | None = None) -> Any:
        return super().log(level, data, logger or logger_name)

    debug, info = partialmethod(log, "debug"), partialmethod(log, "info")
    warning, error = partialmethod(log, "warning"), partialmethod(log, "error")

    async def create_message(self, messages: Any, related_request_id: Any = None, **options: Any) -> Any:  # noqa: ARG002
        return await self.ask(Sample(messages, **{name: wire(each) for name, each in options.items()}))

    async def list_roots(self) -> Any:
        return await self.ask(ListRoots())

    async def send_notification(self, notification: Any, related_request_id: Any = None) -> None:  # noqa: ARG002
        params, (_, kind, *rest) = notification.params, notification.method.split("/")
        if kind == "message":
            await self.log(params.level, params.data, params.logger)
        elif rest == ["list_changed"]:
            await getattr(self, f"notify_{kind}_changed")()
        else:
            raise not_possible(f"A {notification.method} notification to the client", PAGE)

    async def send_elicit_complete(self, elicitation_id: str, related_request_id: Any = None) -> None:  # noqa: ARG002
        await request_of(self)[0].elicitations.complete(elicitation_id)

    async def send_resource_updated(self, uri: Any) -> None:
        await self.notify_resource_updated(str(uri))

    send_resource_list_changed = NativeContext.notify_resources_changed
    send_tool_list_changed = NativeContext.notify_tools_changed
    send_prompt_list_changed = NativeContext.notify_prompts_changed
    close_sse_stream = NativeContext.close_stream


ServerRequestContext = ServerSession = Context


# ── resolvers ──


class Resolve(NamedTuple):
    """In `Annotated[T, Resolve(function)]`: the function fills the parameter."""

    fn: Callable[..., Any]


def resolvers(signature: inspect.Signature) -> dict[str, Callable[..., Any]]:
    """The functions that fill parameters."""
    annotated = {name: getattr(each.annotation, "__metadata__", ()) for name, each in signature.parameters.items()}
    return {name: each.fn for name, data in annotated.items() for each in data if isinstance(each, Resolve)}


class Resolution:
    """The resolvers of one call: each runs once, and takes the arguments of the tool by their names."""

    def __init__(self, ctx: Context, arguments: Mapping[str, Any]) -> None:
        self._ctx, self._arguments = ctx, arguments
        self._outcomes: dict[Any, Any] = {}

    async def call(self, function: Callable[..., Any]) -> Any:
        """Call the function with all its parameters."""
        signature, filled = inspect.signature(function, eval_str=True), dict[str, Any]()
        resolved = resolvers(signature)
        for name, each in signature.parameters.items():
            kinds = {getattr(kind, "__origin__", kind) for kind in members(each.annotation)}
            if name in resolved:
                found = await self._outcome(resolved[name])
                if kinds.isdisjoint(OUTCOMES) and not isinstance(found, AcceptedElicitation):
                    raise ToolError(f"{name} is missing: the user chose {found.action}")
                filled[name] = found.data if kinds.isdisjoint(OUTCOMES) else found
            elif Context in kinds:
                filled[name] = self._ctx
            elif name in self._arguments:
                filled[name] = self._arguments[name]
        if inspect.iscoroutinefunction(outermost(function)):
            return await function(**filled)
        engine, context = request_of(self._ctx)
        return await threads_of(engine, context).run(partial(function, **filled), label=repr(function))

    async def _outcome(self, function: Callable[..., Any]) -> Any:
        if function not in self._outcomes:
            value = await self.call(function)
            found = await self._ctx.ask(value) if isinstance(value, Elicit | Sample | ListRoots) else value
            self._outcomes[function] = found if isinstance(found, OUTCOMES) else AcceptedElicitation(found)
        return self._outcomes[function]
