"""The official SDK's `MCPServer`, with its resources, prompts and extensions, on ours."""

# mypy: disable-error-code="override"
# The SDK's signatures are other ones than those of `Server`.

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, NotRequired, TypedDict, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import mcp_types
import msgspec
from pydantic import BaseModel

from dovetail import auth as lazy_auth
from dovetail.compat import shared
from dovetail.compat.mcp_context import PAGE, Context, MCPError, Resolution, resolved_parameters, run, to_input_required
from dovetail.compat.shared import adapted, given, json_text, not_possible, to_content, wire
from dovetail.engine.current_context import get_context
from dovetail.engine.dispatch import CallNext
from dovetail.errors import METHOD_NOT_FOUND, MissingCapability, SetupError, ToolError
from dovetail.extensions.extension import Extension as NativeExtension
from dovetail.protocol.capabilities import Completion
from dovetail.protocol.extensions import UI, UI_MIME_TYPE
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import CacheHint, ListResult, ReadResourceResult, Result, Shaper, ToolResult
from dovetail.protocol.types import Message as NativeMessage
from dovetail.server import Server

__all__ = [
    "Apps", "AssistantMessage", "AuthSettings", "BinaryResource", "CacheHint", "Extension", "FileResource",
    "FunctionResource", "InMemorySubscriptionBus", "MCPServer", "Message", "MethodBinding", "Prompt",
    "RequestStateSecurity", "Resource", "ResourceBinding", "ResourceCsp", "ResourcePermissions", "ResourceSecurity",
    "SubscriptionBus", "TextResource", "Tool", "ToolBinding", "TransportSecuritySettings", "UserMessage",
    "client_supports_apps", "require_client_extension",
]  # fmt: skip
F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("dovetail.compat")


def described(function: Any, **options: Any) -> dict[str, Any]:
    """Options of a definition, as ours; the whole docstring is its description."""
    doc = inspect.cleandoc(getattr(function, "__doc__", None) or "")
    return {"description": doc, **given(**options)}


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, TypeError, ValueError) as failure:
        raise SetupError(f"{function!r}: its signature can't be read: {failure}") from failure


# ── tools ──


def blocks(value: Any) -> list[Any]:
    """Content for a value: one block for each item of a list, JSON for what is no text."""
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [block for item in value for block in blocks(item)]
    is_content = isinstance(value, (str, *shared.content_types()))
    return [to_content(value if is_content else json_text(value, indent=2))]


def _holds_content(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is None:
        return isinstance(annotation, type) and issubclass(annotation, shared.content_types())
    parts = get_args(annotation)[: 1 if origin is Annotated else None]
    return origin in (Annotated, Union, UnionType, list, tuple, Sequence) and any(map(_holds_content, parts))


class Output(msgspec.Struct, frozen=True):
    """What a tool returns, by its return annotation."""

    schema: Any = ToolResult  # the type of its structured value; `ToolResult`: there is none
    is_wrapped: bool = False  # the value is sent as {"result": value}
    fields: tuple[str, ...] = ()  # of an object that is no data class

    @classmethod
    def read(cls, annotation: Any, name: str, structured: bool | None) -> "Output":
        if get_origin(annotation) in (Union, UnionType):
            data = tuple(each for each in get_args(annotation) if each is not mcp_types.InputRequiredResult)
            annotation = Union[data]  # noqa: UP007
        if get_origin(annotation) is Annotated and annotation.__origin__ is mcp_types.CallToolResult:
            annotation = annotation.__metadata__[0]
        unstructured = (inspect.Signature.empty, mcp_types.CallToolResult, mcp_types.InputRequiredResult, ToolResult)
        if structured is False or annotation in unstructured or (structured is None and _holds_content(annotation)):
            return cls()
        kind: Any = annotation.__origin__ if get_origin(annotation) is Annotated else annotation
        origin, parts = get_origin(kind), get_args(kind)
        if origin is None and isinstance(kind, type) and kind not in (str, int, float, bool, bytes, type(None)):
            if hasattr(kind, "__total__") or issubclass(kind, BaseModel) or hasattr(kind, "__dataclass_fields__"):
                return cls(annotation)
            hints = {name: hint for name, hint in get_type_hints(kind).items() if not name.startswith("_")}
            optional = {name: NotRequired[hint] for name, hint in hints.items() if hasattr(kind, name)}
            return cls(TypedDict(kind.__name__, hints | optional), fields=tuple(hints)) if hints else cls()  # type: ignore[operator]
        if origin is dict and parts[0] is str:
            return cls(annotation)
        return cls(TypedDict(f"{name}Output", {"result": annotation}), is_wrapped=True)  # type: ignore[operator]

    def convert(self, value: Any) -> Any:
        """The whole result for a return value."""
        if isinstance(value, mcp_types.InputRequiredResult):
            return to_input_required(value)
        if isinstance(value, (mcp_types.CallToolResult, ToolResult)):
            return value
        if self.schema is ToolResult:
            return ToolResult(content=blocks(value))
        whole = {"result": value} if self.is_wrapped else value
        if self.fields and not isinstance(value, Mapping):
            whole = {name: getattr(value, name) for name in self.fields}
        return ToolResult(content=blocks(value), structured=whole)

    def function(self, function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
        """The function of a tool for our `add_tool`; resolvers fill some parameters."""
        resolved = resolved_parameters(signature)

        async def resolve(**arguments: Any) -> Any:
            ctx = cast(Context, get_context())
            return await run(ctx, function, {**arguments, **await Resolution(ctx, arguments).fill(resolved)})

        parameters = [each for name, each in signature.parameters.items() if name not in resolved]
        return adapted(resolve if resolved else function, self.convert, parameters, self.schema, like=function)


class Tool:
    """A tool that a program makes itself, for `MCPServer(tools=[…])`."""

    def __init__(self, fn: Callable[..., Any], name: str | None = None, **options: Any) -> None:
        self.fn, self.name, self.options = fn, name or fn.__name__, options

    @classmethod
    def from_function(cls, fn: Callable[..., Any], name: str | None = None, **options: Any) -> "Tool":
        return cls(fn, name, **options)


# ── resources ──


class Resource(msgspec.Struct, kw_only=True):
    """A resource as an object, whose `read` gives its content."""

    uri: Any
    name: str | None = None
    title: str | None = None
    description: str | None = None
    mime_type: str = "text/plain"
    icons: Any = None
    annotations: Any = None
    meta: dict[str, Any] | None = None

    async def read(self) -> Any:
        raise NotImplementedError


class TextResource(Resource):
    text: str

    async def read(self) -> str:
        return self.text


class BinaryResource(Resource):
    data: bytes

    async def read(self) -> bytes:
        return self.data


class FunctionResource(Resource):
    fn: Callable[[], Any]

    async def read(self) -> Any:
        return await run(cast(Context, get_context()), self.fn, {})

    @classmethod
    def from_function(cls, fn: Callable[..., Any], uri: str, name: str | None = None, **options: Any) -> Resource:
        return cls(uri=uri, name=name or fn.__name__, fn=fn, **{**described(fn), **given(**options)})


class FileResource(Resource):
    """A file, which is text with `encoding`; by default if its type is one of text."""

    path: Path
    encoding: Any = msgspec.UNSET

    async def read(self) -> str | bytes:
        kind, data = self.mime_type.partition(";")[0], await asyncio.to_thread(Path(self.path).read_bytes)
        is_text = kind.startswith("text/") or kind.endswith(("json", "xml"))
        encoding = ("utf-8-sig" if is_text else None) if self.encoding is msgspec.UNSET else self.encoding
        return data if encoding is None else data.decode(encoding)


class ResourceSecurity:
    """The variables of templates whose values are not checked. All others always are."""

    def __init__(self, *, exempt_params: Any = (), **checks: bool) -> None:
        self.exempt_params = set(exempt_params)
        if not all(checks.values()):
            log.warning('%s: values stay checked but for exempt_params; see the page "%s"', [*checks], PAGE)


def contents(value: Any) -> Any:
    if isinstance(value, mcp_types.InputRequiredResult):
        return to_input_required(value)
    return value if isinstance(value, (str, bytes)) else json_text(value, indent=2)


# ── prompts ──


class Message:
    """A message of a prompt."""

    role = "user"

    def __init__(self, content: Any, role: str | None = None) -> None:
        self.content, self.role = content, role or self.role


class UserMessage(Message):
    """A message of the user."""


class AssistantMessage(Message):
    """A message of the model."""

    role = "assistant"


class Prompt(Tool):
    """A prompt that a program makes itself, for `add_prompt`."""


def messages(value: Any) -> Any:
    if isinstance(value, mcp_types.InputRequiredResult):
        return to_input_required(value)
    return [_message(each) for each in (value if isinstance(value, (list, tuple)) else [value])]


def _message(value: Any) -> Any:
    if isinstance(value, (Mapping, mcp_types.PromptMessage)):
        return value
    message = value if isinstance(value, Message) else UserMessage(value)
    return NativeMessage(cast(Any, message.role), blocks(message.content)[0])


# ── extensions ──


class ToolBinding(msgspec.Struct):
    fn: Callable[..., Any]
    meta: dict[str, Any] | None = None
    kwargs: dict[str, Any] = {}


class ResourceBinding(msgspec.Struct):
    resource: Resource


class MethodBinding(msgspec.Struct):
    """A method of an extension, which its handler serves."""

    method: str
    params_type: type[BaseModel]
    handler: Callable[..., Awaitable[Any]]
    protocol_versions: frozenset[str] | None = None

    async def serve(self, ctx: Context) -> Any:
        if self.protocol_versions is not None and ctx.protocol_version not in self.protocol_versions:
            raise MCPError(METHOD_NOT_FOUND, f"{self.method} is not part of {ctx.protocol_version}")
        return wire(await self.handler(ctx, self.params_type.model_validate(ctx.params)))


class Extension:
    """The base of a program's extensions."""

    identifier: str

    def settings(self) -> dict[str, Any]:
        return {}

    def tools(self) -> Sequence[ToolBinding]:
        return ()

    def resources(self) -> Sequence[ResourceBinding]:
        return ()

    def methods(self) -> Sequence[MethodBinding]:
        return ()

    async def intercept_tool_call(self, params: Any, ctx: Context, call_next: Any) -> Any:  # noqa: ARG002
        return await call_next(ctx)


def require_client_extension(ctx: Context, identifier: str) -> None:
    """Raises MissingCapability unless the client declares the extension."""
    if identifier not in ctx.client.extensions:
        raise MissingCapability({"extensions": {identifier: {}}})


def client_supports_apps(ctx: Context) -> bool:
    return ctx.client.can_show_apps


class ResourcePermissions(BaseModel, extra="allow"):
    """What a view may use, such as `camera={}`."""


class ResourceCsp(BaseModel, extra="allow"):
    """The origins from which a view loads, such as `connect_domains=[…]`."""


class Apps(Extension):
    """The views of tools, and the tools that have one."""

    identifier = UI

    def __init__(self) -> None:
        self._tools: list[ToolBinding] = []
        self._resources: list[ResourceBinding] = []
        self.views: list[tuple[str, str, dict[str, Any]]] = []

    def tool(self, *, resource_uri: str, visibility: Any = None, meta: Any = None, **options: Any) -> Callable[[F], F]:
        ui = given(resourceUri=resource_uri, visibility=wire(visibility))

        def register(function: F) -> F:
            self._tools.append(ToolBinding(function, {**(meta or {}), "ui": ui}, options))
            return function

        return register

    def add_html_resource(
        self, uri: str, html: str, *, name: str | None = None, csp: Any = None, permissions: Any = None,
        domain: str | None = None, prefers_border: bool | None = None, **options: Any,
    ) -> None:  # fmt: skip
        ui = given(permissions=wire(permissions), domain=domain, prefersBorder=prefers_border)
        origins = {key.removesuffix("_domains"): each for key, each in wire(csp).items()} if csp else None
        self.views.append((uri, html, given(name=name or uri, csp=origins, meta={"ui": ui}, **options)))

    def add_resource(self, resource: Resource) -> None:
        resource.mime_type = UI_MIME_TYPE if resource.mime_type == "text/plain" else resource.mime_type
        self._resources.append(ResourceBinding(resource))

    def tools(self) -> Sequence[ToolBinding]:
        return self._tools

    def resources(self) -> Sequence[ResourceBinding]:
        return self._resources


# ── middleware ──


class WireResult(msgspec.Struct, frozen=True):
    """A result that a middleware has made as an object or a dict."""

    fields: dict[str, Any]

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.body(self.fields, self.fields.get("_meta"))


class PeerMiddleware(list[Any]):
    """The functions of `mcp.middleware`, the first one outermost, as one middleware of ours."""

    async def __call__(self, request: Request, call_next: CallNext) -> Result:
        async def chain(_: Any) -> Any:
            return await call_next(request)

        for each in reversed(self):
            chain = functools.partial(each, call_next=chain)
        found = await chain(get_context())
        return WireResult(wire(found)) if isinstance(found, (dict, BaseModel)) else found


async def intercept(extension: Extension, ctx: Context, call_next: Any) -> Any:
    """The middleware of an extension."""
    if ctx.method != "tools/call":
        return await call_next(ctx)
    params = mcp_types.CallToolRequestParams.model_validate(ctx.params)
    return await extension.intercept_tool_call(params, ctx, call_next)


class CacheHints(dict[str, CacheHint]):
    """The middleware of `cache_hints`, which are by method."""

    async def __call__(self, request: Request, call_next: CallNext) -> Result:
        result, hint = await call_next(request), self.get(request.method)
        if hint is not None and isinstance(result, ListResult):
            result.hint = hint
        elif hint is not None and isinstance(result, ReadResourceResult):
            return msgspec.structs.replace(result, hint=hint)
        return result


# ── settings ──


class AuthSettings(msgspec.Struct, kw_only=True):
    """Who issues tokens, and for which URL."""

    issuer_url: Any
    resource_server_url: Any = None
    required_scopes: Sequence[str] | None = None
    validate_token_resource: bool | None = None
    service_documentation_url: Any = None
    client_registration_options: Any = None
    revocation_options: Any = None
    identity_assertion_enabled: bool = False

    def to_auth(self, verifier: Any) -> Any:
        resource = None if self.resource_server_url is None else str(self.resource_server_url)
        needs_resource = bool(self.validate_token_resource)
        ours = shared.PeerVerifier(verifier, str(self.issuer_url), resource, needs_resource=needs_resource)
        return lazy_auth.Auth(ours, scopes=self.required_scopes or ())


class RequestStateSecurity(msgspec.Struct, kw_only=True):
    """The keys that seal what clients carry from round to round."""

    keys: Sequence[str | bytes] | None = None
    codec: Any = None  # never used
    ttl: float = 600.0
    audience: str | None = None  # always the name of the server
    bind_principal: Any = None  # always done

    def __post_init__(self) -> None:
        if self.codec is not None:
            log.warning('codec= is not used: states are sealed by keys=, or at random; see the page "%s"', PAGE)

    @classmethod
    def ephemeral(cls, **options: Any) -> "RequestStateSecurity":
        return cls(**options)


class TransportSecuritySettings(msgspec.Struct, kw_only=True):
    """The hosts and origins whose requests are served. Both are always checked."""

    enable_dns_rebinding_protection: bool = True
    allowed_hosts: Sequence[str] = ()
    allowed_origins: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.enable_dns_rebinding_protection:
            log.warning('Host and Origin stay checked: name yours in allowed_hosts; see the page "%s"', PAGE)


class SubscriptionBus:
    """The base of what tells clients of changes; here that is the server's own state."""


class InMemorySubscriptionBus(SubscriptionBus):
    """What tells clients of changes in one process; a server has one without being told."""


# ── the server ──


class MCPServer(Server):
    """The SDK's server."""

    def __init__(
        self, name: str | None = None, title: str | None = None, description: str | None = None,
        instructions: str | None = None, website_url: str | None = None, icons: Any = None, version: str = "",
        auth_server_provider: Any = None, token_verifier: Any = None, *, tools: Sequence[Tool] = (),
        resources: Sequence[Resource] = (), extensions: Sequence[Extension] = (), lifespan: Any = None,
        auth: AuthSettings | None = None, log_level: str = "INFO", resource_security: ResourceSecurity | None = None,
        request_state_security: RequestStateSecurity | None = None, cache_hints: Mapping[str, CacheHint] | None = None,
        subscriptions: Any = None, middleware: Sequence[Any] = (), dependencies: Sequence[str] = (),
        debug: bool = False, warn_on_duplicate_tools: bool = True, warn_on_duplicate_resources: bool = True,
        warn_on_duplicate_prompts: bool = True,
    ) -> None:  # fmt: skip
        if auth_server_provider is not None:
            raise not_possible("auth_server_provider=", PAGE, "dovetail.AuthServer is an authorization server")
        if (auth is None) != (token_verifier is None):
            raise SetupError("MCPServer: auth= and token_verifier= belong together")
        if subscriptions not in (None, False) and not isinstance(subscriptions, InMemorySubscriptionBus):
            raise not_possible("subscriptions=", PAGE, "workers tell each other of changes through state=")
        own = given(
            title=title, description=description, instructions=instructions, website_url=website_url, icons=icons,
            version=version or None, lifespan=lifespan, list_changed=False if subscriptions is False else None,
            auth=auth and auth.to_auth(token_verifier),
        )  # fmt: skip
        if request_state_security is not None:
            own |= given(secret=request_state_security.keys, answer_timeout=request_state_security.ttl)
        lists = ["tools", "resources", "prompts"]
        super().__init__(name or "mcp-server", output="structured", declare=lists, **own)
        own_context: Any = type("Context", (Context,), {"mcp_server": self})
        self.engine.context_class = own_context
        self.dependencies = list(dependencies)
        self.settings = SimpleNamespace(
            auth=auth, lifespan=lifespan, log_level=log_level, debug=debug, dependencies=self.dependencies,
            warn_on_duplicate_tools=warn_on_duplicate_tools, warn_on_duplicate_prompts=warn_on_duplicate_prompts,
            warn_on_duplicate_resources=warn_on_duplicate_resources,
        )  # fmt: skip
        logging.getLogger("dovetail").setLevel(log_level)
        self._security = resource_security or ResourceSecurity()
        if cache_hints:
            super().middleware(CacheHints(cache_hints))
        if middleware:
            self.middleware.extend(middleware)
        for extension in extensions:
            self._apply(extension)
        for tool in tools:
            self.add_tool(tool.fn, tool.name, **tool.options)
        for resource in resources:
            self.add_resource(resource)

    def __class_getitem__(cls, _: Any) -> type["MCPServer"]:
        return cls

    def _is_taken(self, catalog: Any, kind: str, name: str) -> bool:
        """Whether there is such a thing already, which then stays."""
        if (is_taken := catalog.get(name) is not None) and getattr(self.settings, f"warn_on_duplicate_{kind}s"):
            log.warning("there is already a %s %s; it stays", kind, name)
        return is_taken

    # ── tools ──

    def tool(self, name: Any = None, title: str | None = None, description: str | None = None, **options: Any) -> Any:
        """Register a function as a tool."""
        return _decorator("tool", self.add_tool, name, title=title, description=description, **options)

    def add_tool(
        self, fn: Callable[..., Any], name: str | None = None, title: str | None = None, description: str | None = None,
        annotations: Any = None, icons: Any = None, meta: Any = None, structured_output: bool | None = None,
    ) -> None:  # fmt: skip
        shown = name or str(getattr(fn, "__name__", type(fn).__name__))
        if self._is_taken(self.engine.tools, "tool", shown):
            return
        options = described(
            fn, name=shown, title=title, description=description, annotations=annotations, icons=icons, meta=meta
        )
        signature = _signature(fn)
        output = Output.read(signature.return_annotation, shown, structured_output)
        try:
            super().add_tool(output.function(fn, signature), **options)
        except SetupError:
            if structured_output or output == Output():
                raise
            super().add_tool(Output().function(fn, signature), **options)  # its type has no schema

    def remove_tool(self, name: str) -> None:
        if not super().remove_tool(name):
            raise ToolError(f"Unknown tool: {name}")

    # ── resources ──

    def resource(self, uri: str, *, security: ResourceSecurity | None = None, **options: Any) -> Callable[[F], F]:
        """Register a function as a resource, or as a template."""

        def register(function: F) -> F:
            signature = _signature(function)
            exempt = (security or self._security).exempt_params & signature.parameters.keys()
            if "{" in uri:
                super(MCPServer, self).remove_resource(uri)  # the last one counts
            made = adapted(function, contents, list(signature.parameters.values()))
            self._add_resource(uri, made, described(function, **given(unsafe=sorted(exempt) or None), **options))
            return function

        return register

    def _add_resource(self, uri: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
        if not self._is_taken(self.engine.resources.direct, "resource", uri):
            super().add_resource(uri, function, **{"mime_type": "text/plain", **options})

    def add_resource(self, resource: Any) -> None:
        uri, names = str(resource.uri), ("title", "description", "icons", "annotations", "meta", "mime_type")
        options = described(None, name=resource.name or uri, **{each: getattr(resource, each) for each in names})
        self._add_resource(uri, adapted(resource.read, contents, []), options)

    # ── prompts ──

    def prompt(self, name: Any = None, title: str | None = None, description: str | None = None, **options: Any) -> Any:
        """Register a function as a prompt."""

        def add(function: Callable[..., Any], **options: Any) -> None:
            self.add_prompt(Prompt(function, **options))

        return _decorator("prompt", add, name, title=title, description=description, **options)

    def add_prompt(self, prompt: Tool) -> None:
        if not self._is_taken(self.engine.prompts, "prompt", prompt.name):
            made = adapted(prompt.fn, messages, list(_signature(prompt.fn).parameters.values()))
            super().add_prompt(made, **described(prompt.fn, name=prompt.name, **prompt.options))

    def remove_prompt(self, name: str) -> None:
        if not super().remove_prompt(name):
            raise ValueError(f"Unknown prompt: {name}")

    def completion(self) -> Callable[[F], F]:
        """Register the function that suggests values for all arguments."""

        def register(function: F) -> F:
            async def complete(ref: Any, argument: Any, context: Any) -> Any:
                whole = msgspec.to_builtins({"ref": ref, "argument": argument, "context": context})
                params = mcp_types.CompleteRequestParams.model_validate(whole)
                return await function(params.ref, params.argument, params.context) or Completion([])

            super(MCPServer, self).completion(complete)
            return function

        return register

    # ── middleware and extensions ──

    @functools.cached_property
    def middleware(self) -> PeerMiddleware:
        """Functions of `ctx` and `call_next`; more may be appended."""
        made = PeerMiddleware()
        super().middleware(made)
        return made

    def _apply(self, extension: Extension) -> None:
        for tool in extension.tools():
            self.add_tool(tool.fn, meta=tool.meta, **tool.kwargs)
        for resource in extension.resources():
            self.add_resource(resource.resource)
        for uri, html, options in getattr(extension, "views", ()):
            self.add_ui(uri, html, **options)
        if not isinstance(extension, Apps):  # which are declared by their views
            methods = {each.method: each.serve for each in extension.methods()}
            self.add_extension(NativeExtension(extension.identifier, extension.settings(), methods))
        if type(extension).intercept_tool_call is not Extension.intercept_tool_call:
            self.middleware.append(functools.partial(intercept, extension))

    # ── serving ──

    def streamable_http_app(self, **options: Any) -> Any:
        """The server as an app of Starlette."""
        from starlette.applications import Starlette
        from starlette.routing import Mount

        options.pop("host", None)
        app = self.asgi(**_http_options(options))
        self._session_manager = SimpleNamespace(run=app.lifespan)
        return Starlette(debug=self.settings.debug, routes=[Mount("/", app)], lifespan=lambda _: app.lifespan())

    sse_app = streamable_http_app

    @property
    def session_manager(self) -> Any:
        """What starts and drains the last app, within the lifespan of a host."""
        if not hasattr(self, "_session_manager"):
            raise RuntimeError("session_manager is there after streamable_http_app()")
        return self._session_manager

    def run(self, transport: str = "stdio", **options: Any) -> None:
        super().run("stdio") if transport == "stdio" else super().run("http", **_http_options(options))

    async def run_stdio_async(self) -> None:
        await self.run_async("stdio")

    async def run_streamable_http_async(self, **options: Any) -> None:
        await self.run_async("http", **_http_options(options))

    run_sse_async = run_streamable_http_async


def _decorator(kind: str, add: Callable[..., None], name: Any, **options: Any) -> Callable[[F], F]:
    if callable(name):
        raise TypeError(f"write @mcp.{kind}() with parentheses")

    def register(function: F) -> F:
        add(function, name=name, **options)
        return function

    return register


OPTIONS = {
    **{name: name for name in ("host", "port", "max_sessions")},
    "streamable_http_path": "path", "stateless_http": "stateless", "max_request_body_size": "max_body_bytes",
    "session_idle_timeout": "session_timeout",
}  # fmt: skip
PASSED_OVER = {"json_response", "event_store", "retry_interval", "transport_security"}  # events are stored in any case
FIXED = {"sse_path": "/sse", "message_path": "/messages/"}


def _http_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of HTTP as ours. Raises SetupError for others."""
    for name in options.keys() - OPTIONS.keys() - PASSED_OVER:
        if options[name] != FIXED.get(name):
            raise not_possible(f"{name}=", PAGE, f"it is {FIXED[name]}" if name in FIXED else "")
    security = options.get("transport_security") or TransportSecuritySettings()
    hosts = given(allowed_hosts=[*security.allowed_hosts] or None, allowed_origins=[*security.allowed_origins] or None)
    return {**hosts, **given(**{OPTIONS[name]: options[name] for name in options.keys() & OPTIONS.keys()})}
