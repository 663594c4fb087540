"""FastMCP's Context, what its dependencies inject, and its client."""

import functools
import inspect
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

import dovetail
from dovetail.client import CallToolResult, ListPage
from dovetail.compat import no_equal
from dovetail.compat.fastmcp_auth import PAGE, AccessToken
from dovetail.engine.context import request_of
from dovetail.engine.current_context import get_context as native_context
from dovetail.protocol.session import Session as McpSession
from dovetail.protocol.types import ResourceContents
from dovetail.registry.dependencies import Marker

T = TypeVar("T")
_values: ContextVar[dict[str, Any] | None] = ContextVar("fastmcp_values", default=None)  # of one request
CREDENTIALS = {"authorization", "cookie", "proxy-authorization"}
NOT_PASSED_ON = CREDENTIALS | {
    "host", "content-length", "content-type", "connection", "transfer-encoding", "upgrade", "te", "keep-alive", "expect",
    "accept", "proxy-authenticate", "proxy-connection", "mcp-session-id",
}  # fmt: skip


class AcceptedElicitation(msgspec.Struct, Generic[T], frozen=True):
    data: T
    action: Literal["accept"] = "accept"


class DeclinedElicitation(msgspec.Struct, frozen=True):
    action: Literal["decline"] = "decline"
    data: None = None


class CancelledElicitation(msgspec.Struct, frozen=True):
    action: Literal["cancel"] = "cancel"
    data: None = None


class ResourceContent:
    """The contents of a resource, without their URI."""

    def __init__(self, content: Any, mime_type: str | None = None, meta: Mapping[str, Any] | None = None) -> None:
        is_plain = isinstance(content, str | bytes)
        self.content: Any = content if is_plain else msgspec.json.encode(content).decode()
        self.mime_type = mime_type or ("text/plain" if isinstance(content, str) else None)
        self.mime_type = self.mime_type or ("application/octet-stream" if is_plain else "application/json")
        self.meta = None if meta is None else dict(meta)

    def at(self, uri: str) -> ResourceContents:
        name = "blob" if isinstance(self.content, bytes) else "text"
        return ResourceContents(uri, self.mime_type, meta=self.meta, **{name: self.content})


class ResourceResult:
    """What a resource function may return, and what reading one gives."""

    def __init__(self, contents: Any, meta: Mapping[str, Any] | None = None) -> None:
        listed = contents if isinstance(contents, list) else [contents]
        self.contents = [each if isinstance(each, ResourceContent) else ResourceContent(each) for each in listed]
        self.meta = meta


class Context(dovetail.Context):
    """FastMCP's methods on Dovetail's context."""

    fastmcp: Any  # the server, in the class that each has

    # ── the request ──

    @property
    def request_id(self) -> str:
        return str(super().request_id)

    @property
    def session_id(self) -> str:
        """In revisions without sessions one that is made up, for this request."""
        return super().session_id or request_values().setdefault("session_id", str(uuid.uuid4()))

    @property
    def transport(self) -> str | None:
        _, context = request_of(self)
        if context.request.headers is not None:
            return "sse" if context.locate is None else "streamable-http"
        return None if context.in_process else "stdio"

    @property
    def client_id(self) -> str | None:
        return self.meta.get("client_id")

    @property
    def lifespan_context(self) -> Any:
        return {} if self.lifespan is None else self.lifespan

    @property
    def input_responses(self) -> Any:
        """The client's answers as results of the official SDK; None before the first round."""
        given = super().input_responses
        return {key: _wire_result(each) for key, each in given.items()} if given else None

    def client_supports_extension(self, extension_id: str) -> bool:
        return extension_id in self.client.extensions

    def client_extension_settings(self, identifier: str) -> Mapping[str, Any] | None:
        return self.client.extensions.get(identifier)

    # ── messages to the client ──

    async def log(  # type: ignore[override]
        self, message: str, level: Any = None, logger_name: str | None = None, extra: Mapping[str, Any] | None = None
    ) -> None:
        await super().log(level or "info", {"msg": message, "extra": extra}, logger_name)

    def _logs(level: str) -> Any:  # noqa: N805
        async def log(self: "Context", message: str, logger_name: str | None = None, extra: Any = None) -> None:
            await self.log(message, level, logger_name, extra)

        return log

    debug, info, warning, error = _logs("debug"), _logs("info"), _logs("warning"), _logs("error")

    async def send_notification(self, notification: Any) -> None:
        """A change of a list, as a notification of the official SDK."""
        kind = type(notification).__name__
        known = {"Tool": self.notify_tools_changed, "Prompt": self.notify_prompts_changed}
        known |= {"Resource": self.notify_resources_changed}
        if (notify := known.get(kind.removesuffix("ListChangedNotification"))) is None:
            raise no_equal(f"Context.send_notification({kind})", PAGE, "the methods ctx.notify_… send what there is")
        await notify()

    async def close_sse_stream(self) -> None:
        await self.close_stream()

    async def elicit(  # type: ignore[override]
        self, message: str, response_type: Any = None, *, schema: Any = None, timeout: float | None = None,
        response_title: str | None = None, response_description: str | None = None,
    ) -> Any:  # fmt: skip
        """An AcceptedElicitation, a DeclinedElicitation or a CancelledElicitation."""
        if isinstance(response_type, list) and response_type and not isinstance(response_type[0], str):
            chosen = response_type[0]
            choices = Literal[*chosen] if isinstance(chosen, list) else Literal[*chosen]  # several of them
            response_type = list[choices]  # type: ignore[valid-type]
        if response_title is not None or response_description is not None:
            response_type = Annotated[response_type, dovetail.Field(title=response_title, description=response_description)]
        answer = await super().elicit(message, response_type, schema=schema, timeout=timeout)
        if answer.action == "accept":
            return AcceptedElicitation(answer.data)
        return DeclinedElicitation() if answer.action == "decline" else CancelledElicitation()

    # ── state ──

    async def set_state(self, key: str, value: Any, *, serializable: bool = True) -> None:
        """Store a value for the caller; one that is not serializable for this request."""
        values = request_values()
        if serializable:
            values.pop(f"state {key}", None)
            await self.state.set(key, value)
        else:
            values[f"state {key}"] = value

    async def get_state(self, key: str) -> Any:
        values = request_values()
        return values[f"state {key}"] if f"state {key}" in values else await self.state.get(key)

    async def delete_state(self, key: str) -> None:
        request_values().pop(f"state {key}", None)
        await self.state.delete(key)

    # ── what the session sees ──

    async def enable_components(self, **chosen: Any) -> None:
        await self.enable(**fitting(chosen))

    async def disable_components(self, **chosen: Any) -> None:
        await self.disable(**fitting(chosen))

    async def reset_visibility(self) -> None:
        _, context = request_of(self)
        if (session := context.session_access) is not None:

            def without_rules(record: McpSession) -> McpSession:
                return record.replace(rules=())

            await session.change(without_rules)
            context.request.session = session.record
            for notify in (self.notify_tools_changed, self.notify_resources_changed, self.notify_prompts_changed):
                await notify()

    # ── the server itself ──

    async def read_resource(self, uri: Any) -> Any:
        found = await super().read_resource(str(uri))
        return ResourceResult([
            ResourceContent(each.text if each.blob is None else each.blob, each.mime_type, each.meta) for each in found
        ])  # fmt: skip


def request_values() -> dict[str, Any]:
    """Values that are there for the call that runs."""
    values = _values.get()
    if values is None:
        _values.set(values := {})
    return values


def fitting(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """`tags` and `names` of a choice of components."""
    given = {name: value for name, value in chosen.items() if value}
    if others := sorted(given.keys() - {"names", "tags", "only", "match_all"}):
        raise no_equal(f"{', '.join(others)}= of enable and disable", PAGE, "choose by names= and tags=")
    return {"names": "*"} | given if given.pop("match_all", False) else given


def _wire_result(answer: Any) -> Any:
    """An answer of a client as a model of the official SDK."""
    import mcp_types

    kind = "ElicitResult" if "action" in answer else "ListRootsResult" if "roots" in answer else "CreateMessageResult"
    return getattr(mcp_types, kind).model_validate(answer)


# ── anywhere below a call ──


def get_context() -> Any:
    try:
        return native_context()
    except LookupError as failure:
        raise RuntimeError(f"No active context found: {failure}") from None


def get_server() -> Any:
    return get_context().fastmcp


def get_access_token() -> AccessToken | None:
    try:
        return AccessToken.of(native_context().principal)
    except LookupError:
        return None


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

    try:
        engine, context = request_of(native_context())
    except LookupError:
        context = None
    if context is None or context.request.headers is None:
        raise RuntimeError("No active HTTP request found.")
    headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in context.request.headers.items()]
    client = None if context.address is None else (context.address, 0)
    scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": headers, "client": client}
    return Request(scope)


# ── dependencies ──


class CallArgument:
    """An argument of the call, for a parameter of a dependency."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name


def Depends(dependency: Callable[..., Any], *, use_cache: bool = True, **bindings: Any) -> Any:  # noqa: N802
    """Let a function fill a parameter, which may be a context manager and take arguments of the call."""
    parameters = inspect.signature(dependency).parameters
    defaults = {name: each.default for name, each in parameters.items()} | bindings
    wanted = {name: each for name, each in defaults.items() if isinstance(each, CallArgument)}
    inner = inspect.unwrap(dependency)
    if inner is not dependency and (inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner)):
        dependency = inner  # of @contextmanager
    if wanted or bindings:
        dependency = functools.partial(dependency)
        filled = [
            each.replace(default=Marker(_argument(wanted[name].name or name)) if name in wanted else defaults[name])
            for name, each in parameters.items()
        ]
        dependency.__signature__ = inspect.Signature(filled)  # type: ignore[attr-defined]
    return Marker(dependency, use_cache)


def _argument(name: str) -> Callable[..., Any]:
    def argument(ctx: Context) -> Any:
        _, context = request_of(ctx)
        return msgspec.json.decode(context.request.params.arguments or b"{}").get(name)

    return argument


def _current(ctx: Context) -> Context:
    return ctx


def _progress(ctx: Context) -> "Progress":
    return Progress(ctx)


class Progress:
    """Counts up and reports it: `progress: Progress = Progress()`."""

    use_cache = True
    dependency = staticmethod(_progress)

    def __init__(self, ctx: Context | None = None) -> None:
        self._ctx = ctx
        self.current: int | None = None
        self.total = 1
        self.message: str | None = None

    async def set_total(self, total: int) -> None:
        self.total = total
        await self._report()

    async def increment(self, amount: int = 1) -> None:
        self.current = (self.current or 0) + amount
        await self._report()

    async def set_message(self, message: str | None) -> None:
        self.message = message
        await self._report()

    async def _report(self) -> None:
        if self._ctx is not None:
            await self._ctx.report_progress(self.current or 0, self.total, self.message)


def _token(ctx: Context) -> AccessToken:
    if (token := AccessToken.of(ctx.principal)) is None:
        raise RuntimeError("No access token found: the caller is not authenticated")
    return token


def CurrentContext() -> Any:  # noqa: N802
    return Marker(_current)


def CurrentFastMCP() -> Any:  # noqa: N802
    return Marker(lambda: get_server())


def CurrentRequest() -> Any:  # noqa: N802
    return Marker(lambda: get_http_request())


def CurrentHeaders() -> Any:  # noqa: N802
    return Marker(lambda: get_http_headers())


def CurrentAccessToken() -> Any:  # noqa: N802
    return Marker(_token)


def TokenClaim(name: str) -> Any:  # noqa: N802
    def claim(ctx: Context) -> Any:
        return _token(ctx).claims[name]

    return Marker(claim)


class UserState:
    """State of an authenticated user."""

    def __init__(self, ctx: Context) -> None:
        self._state = ctx.state

    async def get(self, key: str, default: Any = None) -> Any:
        return await self._state.get(key, default=default)

    async def set(self, key: str, value: Any) -> None:
        await self._state.set(key, value)

    async def delete(self, key: str) -> None:
        await self._state.delete(key)


def _user_state(ctx: Context) -> UserState:
    if ctx.principal is None:
        raise dovetail.ToolError("This tool keeps state of its user, and the caller is not authenticated")
    return UserState(ctx)


UserSession = Annotated[UserState, Marker(_user_state)]


# ── the client ──


class Client(dovetail.Client):
    """FastMCP's names of what Dovetail's client has."""

    def __init__(self, transport: Any, *, mode: str | None = None, **options: Any) -> None:
        is_version = mode is not None and mode[:2] == "20"
        options |= {"protocol_version": mode} if is_version else {}
        super().__init__(transport, **{name: each for name, each in options.items() if each is not None})

    async def call_tool(self, name: str, arguments: Any = None, **options: Any) -> CallToolResult:
        if options.pop("version", None) is not None:
            raise no_equal("Client.call_tool(version=)", PAGE, "tools have no versions")
        return await super().call_tool(name, arguments, **options)


__all__ = ["CallToolResult", "ListPage"]
