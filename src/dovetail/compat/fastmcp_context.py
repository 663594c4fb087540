"""FastMCP's Context, and what its dependencies inject."""

import inspect
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Annotated, Any, Literal

import msgspec

import dovetail
from dovetail import compat
from dovetail.compat import no_equal
from dovetail.compat.shared import AccessToken, get_access_token, outcome, wire
from dovetail.engine.context import request_of
from dovetail.engine.current_context import get_context as native_context
from dovetail.protocol.types import ResourceContents, tags_of
from dovetail.registry.dependencies import Marker
from dovetail.schema.encode import to_jsonable

PAGE = "From FastMCP"
CREDENTIALS = {"authorization", "cookie", "proxy-authorization"}
NOT_PASSED_ON = CREDENTIALS | {
    "accept", "connection", "content-length", "content-type", "expect", "host", "keep-alive", "mcp-session-id",
    "proxy-authenticate", "proxy-connection", "te", "transfer-encoding", "upgrade",
}  # fmt: skip
_values: ContextVar[dict[str, Any] | None] = ContextVar("fastmcp_values", default=None)


def request_values() -> dict[str, Any]:
    """Values that are there as long as the request."""
    if (values := _values.get()) is None:
        _values.set(values := {})
    return values


class ResourceContent:
    """The contents of a resource, without their URI."""

    def __init__(self, content: Any, mime_type: str | None = None, meta: Mapping[str, Any] | None = None) -> None:
        known: Any = {str: "text/plain", bytes: "application/octet-stream"}
        guessed = known.get(type(content), "application/json")
        self.content: Any = content if isinstance(content, str | bytes) else msgspec.json.encode(content).decode()
        self.mime_type, self.meta = mime_type or guessed, None if meta is None else dict(meta)

    def at(self, uri: str) -> ResourceContents:
        part = {"blob" if isinstance(self.content, bytes) else "text": self.content}
        return ResourceContents(uri, self.mime_type, meta=self.meta, **part)


class ResourceResult:
    """What a resource function may return, and what reading one gives."""

    def __init__(self, contents: Any, meta: Mapping[str, Any] | None = None) -> None:
        listed = contents if isinstance(contents, list) else [contents]
        self.contents = [each if isinstance(each, ResourceContent) else ResourceContent(each) for each in listed]
        self.meta = meta


def _log_method(level: Any) -> Any:
    async def log(self: "Context", message: str, logger_name: str | None = None, extra: Any = None) -> None:
        await self.log(message, level, logger_name, extra)

    return log


class Context(dovetail.Context[Any]):
    """FastMCP's methods on Dovetail's context."""

    fastmcp: Any  # the server; each has a subclass of its own

    @property
    def request_id(self) -> str:
        return str(super().request_id)

    @property
    def session_id(self) -> str:
        """In revisions without sessions made up for the request."""
        return super().session_id or str(request_values().setdefault("session id", str(uuid.uuid4())))

    @property
    def transport(self) -> str | None:
        _, context = request_of(self)
        if context.request.headers is not None or context.locate is not None:
            return "streamable-http"
        return None if context.in_process else "stdio"

    @property
    def client_id(self) -> str | None:
        return self.meta.get("client_id")

    @property
    def lifespan_context(self) -> Any:
        return {} if self.lifespan is None else self.lifespan

    @property
    def session(self) -> Any:
        """The official SDK's view of the same call."""
        return compat.mcp_context.Context(self._engine, self._context, self._can_wait, self._loop)

    @property
    def input_responses(self) -> Any:
        """The client's answers as results of mcp_types; None before the first round."""
        return None if super().input_responses is None else self.session.input_responses

    def client_supports_extension(self, extension_id: str) -> bool:
        return extension_id in self.client.extensions

    def client_extension_settings(self, identifier: str) -> Mapping[str, Any] | None:
        return self.client.extensions.get(identifier)

    async def log(  # type: ignore[override]
        self, message: str, level: Any = None, logger_name: str | None = None, extra: Mapping[str, Any] | None = None
    ) -> None:
        await super().log(level or "info", {"msg": message, "extra": extra}, logger_name)

    debug, info, warning, error = map(_log_method, ("debug", "info", "warning", "error"))

    async def send_notification(self, notification: Any) -> None:
        await self.session.send_notification(notification)

    async def close_sse_stream(self) -> None:
        await self.close_stream()

    async def elicit(
        self, message: str, response_type: Any = None, *, schema: Any = None, timeout: float | None = None,
        response_title: str | None = None, response_description: str | None = None,
    ) -> Any:  # fmt: skip
        """An AcceptedElicitation, a DeclinedElicitation or a CancelledElicitation."""
        if isinstance(response_type, list) and response_type and not isinstance(response_type[0], str):
            response_type = list[Literal[tuple(response_type[0])]]  # type: ignore[misc]  # several of the choices
        if response_title is not None or response_description is not None:
            if isinstance(response_type, list):
                response_type = Literal[tuple(response_type)]
            field = dovetail.Field(title=response_title, description=response_description)
            response_type = Annotated[response_type, field]
        return outcome(await super().elicit(message, response_type, schema=schema, timeout=timeout))

    async def set_state(self, key: str, value: Any, *, serializable: bool = True) -> None:
        """Store a value for the caller; one that is not serializable for this request."""
        if serializable:
            request_values().pop(f"state {key}", None)
            await self.state.set(key, value)
        else:
            request_values()[f"state {key}"] = value

    async def get_state(self, key: str) -> Any:
        values = request_values()
        return values[f"state {key}"] if f"state {key}" in values else await self.state.get(key)

    async def delete_state(self, key: str) -> None:
        request_values().pop(f"state {key}", None)
        await self.state.delete(key)

    async def enable_components(self, **chosen: Any) -> None:
        await self.enable(**fitting(chosen))

    async def disable_components(self, **chosen: Any) -> None:
        await self.disable(**fitting(chosen))

    async def reset_visibility(self) -> None:
        _, context = request_of(self)
        if (session := context.session_access) is not None:
            await session.change(lambda record: record.replace(rules=()))
            context.request.session = session.record
            for notify in (self.notify_tools_changed, self.notify_resources_changed, self.notify_prompts_changed):
                await notify()

    async def read_resource(self, uri: Any) -> Any:
        for check in self.fastmcp.guards:
            await check(await self.fastmcp.component_of("resources/read", str(uri), self))
        found = await super().read_resource(str(uri))
        contents = ((each.blob if each.text is None else each.text, each.mime_type, each.meta) for each in found)
        return ResourceResult([ResourceContent(*each) for each in contents])


class Shown:
    """The definition of a tool, resource or prompt, with its tags; None of what does not exist."""

    def __init__(self, definition: Any) -> None:
        self.definition = definition
        self.tags = set() if definition is None else set(tags_of(definition))
        self.kind = "tool" if hasattr(definition, "input_schema") else ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.definition, name)


def fitting(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """`tags` and `names` of a choice of components."""
    given = {name: value for name, value in chosen.items() if value}
    if given.pop("match_all", False):
        given = {"names": "*", **given}
    if others := sorted(given.keys() - {"names", "tags"}):
        raise no_equal(f"{', '.join(others)}= of enable and disable", PAGE, "choose by names= and tags=")
    return given


# ── anywhere below a call ──


def get_context() -> Any:
    try:
        return native_context()
    except LookupError as failure:
        raise RuntimeError(f"No active context found: {failure}") from None


def get_server() -> Any:
    return get_context().fastmcp


def get_http_headers(include_all: bool = False, include: set[str] | None = None) -> dict[str, str]:
    """The headers of the request, without the token for this server."""
    wanted = {each.lower() for each in include or ()}
    if "authorization" in wanted:
        raise no_equal('get_http_headers(include={"authorization"})', PAGE, "tokens never reach functions")
    try:
        found = native_context().headers or {}
    except LookupError:
        return {}
    dropped = CREDENTIALS if include_all else NOT_PASSED_ON - wanted
    return {name: value for name, value in found.items() if name not in dropped}


def get_http_request() -> Any:
    """A Starlette request with the headers of this one."""
    from starlette.requests import Request

    _, context = request_of(get_context())
    if context.request.headers is None:
        raise RuntimeError("No active HTTP request found.")
    headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in context.request.headers.items()]
    client = None if context.address is None else (context.address, 0)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "query_string": b"",
        "headers": headers,
        "client": client,
    }
    return Request(scope)


# ── dependencies ──


def Depends(dependency: Callable[..., Any], *, use_cache: bool = True, **bindings: Any) -> Any:
    """Let a function fill a parameter; it may be a context manager."""
    if bindings:
        raise no_equal("Depends(function, argument=…)", PAGE, "a dependency takes other dependencies, and the Context")
    inner = inspect.unwrap(dependency)
    is_generator = inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner)
    return Marker(inner if is_generator else dependency, use_cache)  # without @contextmanager


def _filled_by(function: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: Marker(function)


def _context(ctx: Context) -> Context:
    return ctx


def _progress(ctx: Context) -> "Progress":
    return Progress(ctx)


def _token() -> AccessToken:
    if (token := get_access_token()) is None:
        raise RuntimeError("No access token found: the caller is not authenticated")
    return token


CurrentContext = _filled_by(_context)
CurrentFastMCP = _filled_by(lambda: get_server())
CurrentRequest = _filled_by(lambda: get_http_request())
CurrentHeaders = _filled_by(lambda: get_http_headers())
CurrentAccessToken = _filled_by(_token)


def TokenClaim(name: str) -> Any:
    return Marker(lambda: _token().claims[name])


class Progress:
    """Counts up, and reports it: `progress: Progress = Progress()`."""

    use_cache, dependency = True, staticmethod(_progress)  # as Depends has them

    def __init__(self, ctx: Context | None = None) -> None:
        self._ctx = ctx
        self.current, self.total, self.message = 0, 1, ""

    async def set_total(self, total: int) -> None:
        await self._change(total=total)

    async def increment(self, amount: int = 1) -> None:
        await self._change(current=self.current + amount)

    async def set_message(self, message: str | None) -> None:
        await self._change(message=message or "")

    async def _change(self, **fields: Any) -> None:
        vars(self).update(fields)
        if self._ctx is not None:
            await self._ctx.report_progress(self.current, self.total, self.message or None)


class Client(dovetail.Client):
    """FastMCP's keywords and handlers of what Dovetail's client has."""

    def __init__(
        self, transport: Any, *, mode: str | None = None, elicitation_handler: Any = None, sampling_handler: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        async def elicit(request: dovetail.ElicitRequest) -> Any:
            found = elicitation_handler(request.message, dict, request, None)
            found = await found if inspect.isawaitable(found) else found
            return found if isinstance(found, dovetail.ElicitResult | None) else to_jsonable(found)

        async def sample(request: dovetail.SamplingRequest) -> Any:
            import mcp_types

            messages = [mcp_types.SamplingMessage.model_validate(each) for each in request.messages]
            found = sampling_handler(messages, request, None)
            found = await found if inspect.isawaitable(found) else found
            return found if isinstance(found, str) else wire(found)

        options |= {} if elicitation_handler is None else {"elicitation_handler": elicit}
        options |= {} if sampling_handler is None else {"sampling_handler": sample}
        options |= {"protocol_version": mode} if mode is not None and mode[:2] == "20" else {}
        super().__init__(transport, **{name: each for name, each in options.items() if each is not None})

    async def call_tool(self, name: str, arguments: Any = None, *, version: str | None = None, **options: Any) -> Any:
        if version is not None:
            raise no_equal("call_tool(version=)", PAGE, "a tool has one version")
        return await super().call_tool(name, arguments, **options)
