"""The official SDK's `MCPServer`, with its resources, prompts and extensions, on ours."""

import contextlib
import inspect
import logging
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

import mcp_types
import msgspec
from pydantic import BaseModel

from dovetail import auth as lazy_auth
from dovetail.compat import shared
from dovetail.compat.mcp_context import (
    PAGE,
    Context,
    MCPError,
    Resolution,
    ResourceError,
    ServerRequestContext,
    call_in_thread,
    resolved_parameters,
    to_input_required,
)
from dovetail.compat.shared import adapted, json_text, not_possible, to_content, wire
from dovetail.engine.current_context import get_context
from dovetail.engine.dispatch import CallNext, Middleware
from dovetail.errors import METHOD_NOT_FOUND, MissingCapability, SetupError, ToolError
from dovetail.extensions.extension import Extension as NativeExtension
from dovetail.protocol import jsonrpc
from dovetail.protocol.extensions import UI, UI_MIME_TYPE
from dovetail.protocol.inbound import Request
from dovetail.protocol.results import CacheHint as NativeHint
from dovetail.protocol.results import ListResult, Result, Shaper, ToolResult
from dovetail.protocol.types import Message as NativeMessage
from dovetail.registry.functions import outermost
from dovetail.server import Server

F = TypeVar("F", bound=Callable[..., Any])
LifespanT = TypeVar("LifespanT")
log = logging.getLogger("dovetail.compat")


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def native(value: Any) -> Any:
    """Objects of mcp_types, such as annotations and icons, as JSON."""
    if isinstance(value, (list, tuple)):
        return [native(each) for each in value]
    return wire(value) if isinstance(value, BaseModel) else value


def described(function: Any, **options: Any) -> dict[str, Any]:
    """Options of a definition, as ours; the whole docstring is its description."""
    doc = inspect.cleandoc(getattr(function, "__doc__", None) or "")
    return {"description": doc, **{name: native(value) for name, value in given(**options).items()}}


# ── results of tools ──


def blocks(value: Any) -> list[Any]:
    """Content for a value: one block for each item of a list, JSON for what is no text."""
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [block for item in value for block in blocks(item)]
    if isinstance(value, (str, *shared.content_types())):
        return [to_content(value)]
    return [to_content(json_text(value, indent=2))]


def _holds_content(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is None:
        return isinstance(annotation, type) and issubclass(annotation, shared.content_types())
    is_open = origin in (Annotated, Union, types.UnionType, list, tuple, Sequence)
    return is_open and any(map(_holds_content, get_args(annotation)[: 1 if origin is Annotated else None]))


class Output(msgspec.Struct, frozen=True):
    """What a tool returns, by its return annotation."""

    schema: Any = ToolResult  # the type of its structured value; `ToolResult`: there is none
    wrap: bool = False  # the value is sent as {"result": value}
    fields: tuple[str, ...] = ()  # of an object that is no data class

    @classmethod
    def read(cls, annotation: Any, name: str, structured: bool | None) -> "Output":
        if get_origin(annotation) in (Union, types.UnionType):
            kept = [each for each in get_args(annotation) if each is not mcp_types.InputRequiredResult]
            annotation = Union[tuple(kept)]  # noqa: UP007
        if get_origin(annotation) is Annotated and annotation.__origin__ is mcp_types.CallToolResult:
            annotation = annotation.__metadata__[0]
        unstructured = (inspect.Signature.empty, mcp_types.CallToolResult, mcp_types.InputRequiredResult, ToolResult)
        if structured is False or annotation in unstructured or (structured is None and _holds_content(annotation)):
            return cls()
        kind = annotation.__origin__ if get_origin(annotation) is Annotated else annotation
        if kind is None or kind in (str, int, float, bool, bytes, type(None)) or not isinstance(kind, type):
            is_object = get_origin(kind) is dict and get_args(kind)[0] is str
            return cls(annotation) if is_object else cls.wrapped(annotation, name)
        if isinstance(kind, types.GenericAlias):
            return cls.wrapped(annotation, name)
        if is_typeddict(kind) or issubclass(kind, BaseModel) or hasattr(kind, "__dataclass_fields__"):
            return cls(annotation)
        hints = {each: hint for each, hint in get_type_hints(kind).items() if not each.startswith("_")}
        return cls(TypedDict(kind.__name__, hints), fields=tuple(hints)) if hints else cls()  # type: ignore[operator]

    @classmethod
    def wrapped(cls, annotation: Any, name: str) -> "Output":
        return cls(TypedDict(f"{name}Output", {"result": annotation}), wrap=True)  # type: ignore[operator]

    def convert(self, value: Any) -> Any:
        """The whole result for a return value."""
        if isinstance(value, mcp_types.InputRequiredResult):
            return to_input_required(value)
        if isinstance(value, mcp_types.CallToolResult):
            content = [to_content(each) for each in value.content]
            structured = given(structured=value.structured_content)
            return ToolResult(content=content, is_error=bool(value.is_error), meta=value.meta, **structured)
        if isinstance(value, ToolResult) or self.schema is ToolResult:
            return value if isinstance(value, ToolResult) else ToolResult(content=blocks(value))
        if self.wrap:
            return ToolResult(content=blocks(value), structured={"result": value})
        if self.fields and not isinstance(value, Mapping):
            structured = {each: getattr(value, each) for each in self.fields}
            return ToolResult(content=blocks(value), structured=structured)
        return ToolResult(content=blocks(value), structured=value)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, TypeError, ValueError) as failure:
        raise SetupError(f"{function!r}: its signature can't be read: {failure}") from failure


def tool_function(function: Callable[..., Any], convert: Callable[[Any], Any], returns: Any) -> Callable[..., Any]:
    """A function for our `add_tool`: resolvers fill parameters, and errors of resources are for the model."""
    signature = _signature(function)
    resolved = resolved_parameters(signature)

    def guarded(call: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return call(**arguments)
        except ResourceError as failure:
            raise ToolError(failure.message) from failure

    async def resolve_and_call(**arguments: Any) -> Any:
        ctx: Any = get_context()
        try:
            arguments |= await Resolution(ctx, arguments).fill(resolved)
            if inspect.iscoroutinefunction(outermost(function)):
                return await function(**arguments)
            return await call_in_thread(ctx, partial(function, **arguments), "a tool")
        except ResourceError as failure:
            raise ToolError(failure.message) from failure

    _named(resolve_and_call, function)
    parameters = [each for name, each in signature.parameters.items() if name not in resolved]
    return adapted(resolve_and_call if resolved else function, convert, parameters, returns)


def _named(made: Any, function: Any) -> None:
    for name in ("__name__", "__qualname__", "__module__"):
        if hasattr(function, name):
            setattr(made, name, getattr(function, name))


class Tool:
    """A tool that a program makes itself, for `MCPServer(tools=[…])`."""

    def __init__(self, fn: Callable[..., Any], name: str | None = None, **options: Any) -> None:
        self.fn, self.name, self.options = fn, name or fn.__name__, options

    @classmethod
    def from_function(cls, fn: Callable[..., Any], name: str | None = None, **options: Any) -> "Tool":
        return cls(fn, name, **options)


# ── resources ──


class Resource:
    """A resource as an object, whose `read` gives its content."""

    default_mime_type = "text/plain"

    def __init__(
        self, uri: str, name: str | None = None, title: str | None = None, description: str | None = None,
        mime_type: str | None = None, icons: Any = None, annotations: Any = None, meta: Any = None, **own: Any,
    ) -> None:  # fmt: skip
        self.uri, self.name = str(uri), name or str(uri)
        self.title, self.description, self.icons, self.annotations, self.meta = title, description, icons, annotations, meta
        self.mime_type = mime_type or self.default_mime_type
        vars(self).update(own)

    async def read(self) -> str | bytes:
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
        value = self.fn()
        return await value if inspect.isawaitable(value) else value

    @classmethod
    def from_function(cls, fn: Callable[..., Any], uri: str, name: str | None = None, **options: Any) -> "FunctionResource":
        options.setdefault("description", inspect.getdoc(fn))
        return cls(uri, name or fn.__name__, fn=fn, **options)


class FileResource(Resource):
    path: Path
    encoding: str | None = "by type"

    async def read(self) -> str | bytes:
        data = Path(self.path).read_bytes()
        kind = self.mime_type.partition(";")[0]
        is_text = kind.startswith("text/") or kind.endswith(("json", "xml"))
        encoding = ("utf-8-sig" if is_text else None) if self.encoding == "by type" else self.encoding
        return data if encoding is None else data.decode(encoding)


class DirectoryResource(Resource):
    default_mime_type = "application/json"
    path: Path
    recursive = False
    pattern: str | None = None

    async def read(self) -> str:
        root = Path(self.path)
        found = (root.rglob if self.recursive else root.glob)(self.pattern or "*")
        return json_text({"files": [str(each.relative_to(root)) for each in found if each.is_file()]}, indent=2)


class ResourceSecurity:
    """Which checks of template values a program has switched off. Ours are off for `exempt_params` alone."""

    def __init__(self, *, exempt_params: Any = (), **checks: bool) -> None:
        self.exempt_params = frozenset(exempt_params)
        if off := sorted(name for name, is_on in checks.items() if not is_on):
            log.warning('%s stays on: name the variables in exempt_params; see the page "%s"', ", ".join(off), PAGE)


def contents(value: Any) -> Any:
    """What a resource returns: text, bytes, or JSON."""
    if isinstance(value, mcp_types.InputRequiredResult):
        return to_input_required(value)
    return value if isinstance(value, (str, bytes)) else json_text(value, indent=2)


# ── prompts ──


class Message:
    """A message of a prompt."""

    def __init__(self, content: Any, role: Literal["user", "assistant"] = "user") -> None:
        self.content, self.role = content, role


class UserMessage(Message):
    """A message of the user."""


class AssistantMessage(Message):
    """A message of the model."""

    def __init__(self, content: Any, role: Literal["user", "assistant"] = "assistant") -> None:
        super().__init__(content, role)


class Prompt:
    """A prompt that a program makes itself, for `add_prompt`."""

    def __init__(self, fn: Callable[..., Any], name: str | None = None, **options: Any) -> None:
        self.fn, self.name, self.options = fn, name or fn.__name__, options

    @classmethod
    def from_function(cls, fn: Callable[..., Any], name: str | None = None, **options: Any) -> "Prompt":
        return cls(fn, name, **options)


def messages(value: Any) -> Any:
    if isinstance(value, mcp_types.InputRequiredResult):
        return to_input_required(value)
    return [_message(each) for each in (value if isinstance(value, (list, tuple)) else [value])]


def _message(value: Any) -> NativeMessage:
    role = "user"
    if isinstance(value, Mapping) and "content" in value:
        value = Message(value["content"], value.get("role", "user"))
    if isinstance(value, (Message, mcp_types.PromptMessage)):
        role, value = value.role, value.content
    if isinstance(value, Mapping):
        return msgspec.convert({"role": role, "content": value}, NativeMessage)
    return NativeMessage(role, blocks(value)[0])  # type: ignore[arg-type]


# ── extensions ──


class ToolBinding:
    def __init__(self, fn: Callable[..., Any], meta: dict[str, Any] | None = None, kwargs: Mapping[str, Any] = {}) -> None:
        self.fn, self.meta, self.kwargs = fn, meta, kwargs


class ResourceBinding:
    def __init__(self, resource: Resource) -> None:
        self.resource = resource


class MethodBinding:
    """A method of an extension, which its handler serves."""

    def __init__(
        self, method: str, params_type: type[BaseModel], handler: Callable[..., Awaitable[Any]],
        protocol_versions: frozenset[str] | None = None,
    ) -> None:  # fmt: skip
        self.method, self.params_type, self.handler, self.protocol_versions = method, params_type, handler, protocol_versions

    async def serve(self, ctx: Context[Any, Any]) -> Any:
        if self.protocol_versions is not None and ctx.protocol_version not in self.protocol_versions:
            raise MCPError(METHOD_NOT_FOUND, f"{self.method} is not part of {ctx.protocol_version}")
        context = ctx.request_context
        found = await self.handler(context, self.params_type.model_validate(context.params))
        return native(found)


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

    async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
        return await call_next(ctx)


class WireResult(msgspec.Struct, frozen=True):
    """A result that a program has made as an object or a dict."""

    fields: dict[str, Any]

    def encode(self, shaper: Shaper) -> bytes:
        return shaper.body(self.fields, self.fields.get("_meta"))


def as_result(found: Any) -> Result:
    """What a middleware returns: the result that it got, or one of its own."""
    return WireResult(native(found)) if isinstance(found, (dict, BaseModel)) else found


def _call_next(request: Request, call_next: CallNext, ctx: ServerRequestContext[Any, Any]) -> Awaitable[Result]:
    if ctx.params != jsonrpc.parse(request.raw_params):  # the middleware has rewritten them
        raw = msgspec.Raw(jsonrpc.encode(ctx.params))
        request = msgspec.structs.replace(request, raw_params=raw, params=request.row.read(raw))
    return call_next(request)


def intercepting(extension: Extension) -> Middleware:
    """The middleware of an extension that intercepts calls of tools."""

    async def intercept(request: Request, call_next: CallNext) -> Result:
        if request.method != "tools/call":
            return await call_next(request)
        ctx: Any = ServerRequestContext.of(get_context())  # type: ignore[arg-type]
        params = mcp_types.CallToolRequestParams.model_validate(ctx.params)
        return as_result(await extension.intercept_tool_call(params, ctx, lambda _: call_next(request)))

    return intercept


def require_client_extension(ctx: Any, identifier: str) -> None:
    """Raises MissingCapability unless the client declares the extension."""
    if identifier not in _native_context(ctx).client.extensions:
        raise MissingCapability({"extensions": {identifier: {}}})


def client_supports_apps(ctx: Any) -> bool:
    return bool(_native_context(ctx).client.can_show_apps)


def _native_context(ctx: Any) -> Any:
    return ctx.session.ctx


class ResourceCsp:
    def __init__(self, **domains: Sequence[str]) -> None:
        self.domains = {name.removesuffix("_domains"): each for name, each in domains.items() if each}


class ResourcePermissions(BaseModel, extra="allow"):
    """What a view may use, such as `camera={}`."""


class Apps(Extension):
    """The views of tools, and the tools that have one."""

    identifier = UI

    def __init__(self) -> None:
        self._tools: list[ToolBinding] = []
        self._resources: list[ResourceBinding] = []
        self.views: list[tuple[str, str, dict[str, Any]]] = []

    def tool(
        self, *, resource_uri: str, visibility: Sequence[str] | None = None, meta: Any = None, **options: Any
    ) -> Callable[[F], F]:
        ui = given(resourceUri=resource_uri, visibility=native(visibility))

        def register(function: F) -> F:
            self._tools.append(ToolBinding(function, {**(meta or {}), "ui": ui}, options))
            return function

        return register

    def add_html_resource(
        self, uri: str, html: str, *, name: str | None = None, csp: ResourceCsp | None = None,
        permissions: ResourcePermissions | None = None, domain: str | None = None, prefers_border: bool | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        ui = given(permissions=native(permissions), domain=domain, prefersBorder=prefers_border)
        found = given(name=name or uri, csp=csp and csp.domains, meta={"ui": ui}, **options)
        self.views.append((uri, html, found))

    def add_resource(self, resource: Resource) -> None:
        resource.mime_type = UI_MIME_TYPE if resource.mime_type == resource.default_mime_type else resource.mime_type
        self._resources.append(ResourceBinding(resource))

    def tools(self) -> Sequence[ToolBinding]:
        return self._tools

    def resources(self) -> Sequence[ResourceBinding]:
        return self._resources


# ── settings ──


class CacheHint(msgspec.Struct, frozen=True):
    """For how long clients may keep a result."""

    ttl_ms: int = 0
    scope: Literal["public", "private"] = "private"


class AuthSettings:
    """Who issues tokens, and for which URL."""

    def __init__(
        self, issuer_url: Any, resource_server_url: Any = None, required_scopes: Sequence[str] | None = None,
        validate_token_resource: bool | None = None, service_documentation_url: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        self.issuer_url, self.resource_server_url = issuer_url, resource_server_url
        self.required_scopes, self.validate_token_resource = required_scopes, validate_token_resource
        self.service_documentation_url = service_documentation_url

    def to_auth(self, verifier: Any) -> Any:
        resource = self.resource_server_url and str(self.resource_server_url)
        needs_resource = bool(self.validate_token_resource)
        peer = shared.PeerVerifier(verifier, str(self.issuer_url), resource, needs_resource=needs_resource)
        documentation = self.service_documentation_url and str(self.service_documentation_url)
        return lazy_auth.Auth(peer, scopes=self.required_scopes or (), documentation=documentation)


class RequestStateSecurity:
    """The keys that seal what clients carry from round to round. It is always sealed by ours."""

    def __init__(
        self, keys: Sequence[str | bytes] | None = None, codec: Any = None, ttl: float = 600.0, **_: Any
    ) -> None:
        self.keys, self.ttl = [*(keys or ())], ttl
        if codec is not None:
            log.warning('codec= is not used: request states are sealed by secret=; see the page "%s"', PAGE)

    @classmethod
    def ephemeral(cls, **options: Any) -> "RequestStateSecurity":
        return cls(**options)


class TransportSecuritySettings:
    """The hosts and origins whose requests are served. Both are always checked."""

    def __init__(
        self, enable_dns_rebinding_protection: bool = True, allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.allowed_hosts, self.allowed_origins = allowed_hosts, allowed_origins
        if not enable_dns_rebinding_protection:
            log.warning('Host and Origin stay checked: name yours in allowed_hosts; see the page "%s"', PAGE)


class SessionManager:
    """Starts and drains the app of `streamable_http_app` within the lifespan of a host."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def run(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self._app.lifespan()  # type: ignore[no-any-return]


# ── the server ──


class MCPServer(Server, Generic[LifespanT]):
    """The SDK's server."""

    def __init__(
        self, name: str | None = None, title: str | None = None, description: str | None = None,
        instructions: str | None = None, website_url: str | None = None, icons: Any = None, version: str = "",
        auth_server_provider: Any = None, token_verifier: Any = None, *,
        tools: Sequence[Tool] | None = None, resources: Sequence[Resource] | None = None,
        extensions: Sequence[Extension] | None = None, debug: bool = False, log_level: str = "INFO",
        warn_on_duplicate_resources: bool = True, warn_on_duplicate_tools: bool = True,
        warn_on_duplicate_prompts: bool = True, dependencies: Sequence[str] | None = None,
        lifespan: Any = None, auth: AuthSettings | None = None, resource_security: ResourceSecurity | None = None,
        request_state_security: RequestStateSecurity | None = None, cache_hints: Mapping[str, Any] | None = None,
        subscriptions: Any = None, middleware: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        if auth_server_provider is not None:
            raise not_possible("auth_server_provider=", PAGE, "an AuthServer signs users in, Server(auth=AuthServer(…))")
        if (auth is None) != (token_verifier is None):
            raise SetupError("MCPServer: auth= and token_verifier= belong together")
        if subscriptions not in (None, False) and not isinstance(subscriptions, InMemorySubscriptionBus):
            raise not_possible("subscriptions=", PAGE, "workers tell each other of changes through state=")
        security = request_state_security or RequestStateSecurity()
        super().__init__(
            name or "mcp-server",
            output="structured",
            **given(
                title=title, description=description, instructions=instructions, website_url=website_url,
                icons=native(icons), version=version or None, lifespan=lifespan,
                secret=security.keys or None, answer_timeout=request_state_security and security.ttl,
                auth=auth and auth.to_auth(token_verifier), list_changed=None if subscriptions is None else False,
            ),
        )  # fmt: skip
        self.engine.context_class = type("Context", (Context,), {"mcp_server": self})
        self.settings = types.SimpleNamespace(
            debug=debug, log_level=log_level, lifespan=lifespan, auth=auth, dependencies=list(dependencies or ()),
            warn_on_duplicate_resources=warn_on_duplicate_resources, warn_on_duplicate_tools=warn_on_duplicate_tools,
            warn_on_duplicate_prompts=warn_on_duplicate_prompts,
        )  # fmt: skip
        self.dependencies = self.settings.dependencies
        logging.getLogger("dovetail").setLevel(log_level)
        self._security = resource_security
        self._hints = dict(cache_hints or {})
        self._http_app: Any = None
        self._middleware: list[Any] = []
        if self._hints:
            super().middleware(self._add_hints)
        if middleware:
            self.middleware.extend(middleware)
        for extension in extensions or ():
            self._apply(extension)
        for tool in tools or ():
            self.add_tool(tool.fn, tool.name, **tool.options)
        for resource in resources or ():
            self.add_resource(resource)

    # ── what it is ──

    title = property(lambda self: self.engine.info.title)
    description = property(lambda self: self.engine.info.description)
    instructions = property(lambda self: self.engine.options.instructions)
    website_url = property(lambda self: self.engine.info.website_url)
    icons = property(lambda self: self.engine.info.icons)
    version = property(lambda self: self.engine.info.version)

    # ── tools ──

    def tool(  # type: ignore[override]
        self, name: str | None = None, title: str | None = None, description: str | None = None, **options: Any
    ) -> Any:
        """Register a function as a tool."""
        return self._decorator("tool", lambda function, **more: self.add_tool(function, **more), name, title=title, description=description, **options)

    def _decorator(self, kind: str, add: Callable[..., None], name: Any, **options: Any) -> Any:
        if callable(name):
            raise TypeError(f"write @mcp.{kind}() with parentheses")

        def register(function: F) -> F:
            add(function, name=name, **options)
            return function

        return register

    def add_tool(  # type: ignore[override]
        self, fn: Callable[..., Any], name: str | None = None, title: str | None = None, description: str | None = None,
        annotations: Any = None, icons: Any = None, meta: Any = None, structured_output: bool | None = None,
    ) -> None:  # fmt: skip
        shown = name or getattr(fn, "__name__", type(fn).__name__)
        if self.engine.tools.get(shown) is not None:
            if self.settings.warn_on_duplicate_tools:
                log.warning("there is already a tool %s; it stays", shown)
            return
        options = described(
            fn, name=shown, title=title, description=description, annotations=annotations, icons=icons, meta=meta
        )
        output = Output.read(_signature(fn).return_annotation, shown, structured_output)
        try:
            super().add_tool(tool_function(fn, output.convert, output.schema), **options)
        except SetupError:
            if structured_output or output == Output():
                raise
            output = Output()  # its type has no schema
            super().add_tool(tool_function(fn, output.convert, output.schema), **options)

    def remove_tool(self, name: str) -> None:  # type: ignore[override]
        if not super().remove_tool(name):
            raise ToolError(f"Unknown tool: {name}")

    # ── resources ──

    def resource(  # type: ignore[override]
        self, uri: str, *, name: str | None = None, title: str | None = None, description: str | None = None,
        mime_type: str | None = None, icons: Any = None, annotations: Any = None, meta: Any = None,
        security: ResourceSecurity | None = None,
    ) -> Callable[[F], F]:  # fmt: skip
        """Register a function as a resource, or as a template."""

        def register(function: F) -> F:
            options = described(
                function, name=name, title=title, description=description, icons=icons, annotations=annotations, meta=meta
            )
            exempt = (security or self._security or ResourceSecurity()).exempt_params
            signature = _signature(function)
            unsafe = given(unsafe=sorted(exempt & signature.parameters.keys()) or None)
            adapted_function = adapted(function, contents, list(signature.parameters.values()))
            if "{" in uri:
                super(MCPServer, self).remove_resource(uri)  # the last one counts
            self._add(uri, adapted_function, {**options, **unsafe, "mime_type": mime_type or "text/plain"})
            return function

        return register

    def _add(self, uri: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
        if self.engine.resources.direct.get(uri) is not None:
            if self.settings.warn_on_duplicate_resources:
                log.warning("there is already a resource %s; it stays", uri)
            return
        hint = self._hints.get("resources/read")
        super().add_resource(uri, function, **options, **({"ttl_ms": hint.ttl_ms, "cache_scope": hint.scope} if hint else {}))

    def add_resource(self, resource: Any) -> None:  # type: ignore[override]
        async def read() -> Any:
            return await resource.read()

        options = described(
            None, name=resource.name, title=resource.title, description=resource.description, icons=resource.icons,
            annotations=resource.annotations, meta=resource.meta, mime_type=resource.mime_type,
        )  # fmt: skip
        self._add(resource.uri, adapted(read, contents, []), options)

    # ── prompts and completions ──

    def prompt(  # type: ignore[override]
        self, name: str | None = None, title: str | None = None, description: str | None = None, icons: Any = None
    ) -> Any:
        """Register a function as a prompt."""

        def add(function: Callable[..., Any], **options: Any) -> None:
            self.add_prompt(Prompt(function, **options))

        return self._decorator("prompt", add, name, title=title, description=description, icons=icons)

    def add_prompt(self, prompt: Prompt) -> None:  # type: ignore[override]
        if self.engine.prompts.get(prompt.name) is not None:
            if self.settings.warn_on_duplicate_prompts:
                log.warning("there is already a prompt %s; it stays", prompt.name)
            return
        options = described(prompt.fn, name=prompt.name, **prompt.options)
        parameters = list(_signature(prompt.fn).parameters.values())
        super().add_prompt(adapted(prompt.fn, messages, parameters), **options)

    def remove_prompt(self, name: str) -> None:  # type: ignore[override]
        if not super().remove_prompt(name):
            raise ValueError(f"Unknown prompt: {name}")

    # ── middleware and extensions ──

    @property
    def middleware(self) -> list[Any]:  # type: ignore[override]
        """Functions of `ctx` and `call_next`; more may be appended."""
        if not self._middleware:
            super().middleware(self._run_middleware)
        return self._middleware

    async def _run_middleware(self, request: Request, call_next: CallNext) -> Result:
        ctx: Any = get_context()
        chain = partial(_call_next, request, call_next)
        for each in reversed(self._middleware):
            chain = partial(each, call_next=chain)
        return as_result(await chain(ServerRequestContext.of(ctx)))

    async def _add_hints(self, request: Any, call_next: Any) -> Any:
        result, hint = await call_next(request), self._hints.get(request.method)
        if hint is not None and isinstance(result, ListResult):
            result.hint = NativeHint(hint.ttl_ms, hint.scope)
        return result

    def _apply(self, extension: Extension) -> None:
        for tool in extension.tools():
            self.add_tool(tool.fn, meta=tool.meta, **tool.kwargs)
        for resource in extension.resources():
            self.add_resource(resource.resource)
        if isinstance(extension, Apps):
            for uri, html, options in extension.views:
                self.add_ui(uri, html, **options)
        else:
            methods = {each.method: each.serve for each in extension.methods()}
            self.add_extension(NativeExtension(extension.identifier, extension.settings(), methods))
        if type(extension).intercept_tool_call is not Extension.intercept_tool_call:
            super().middleware(intercepting(extension))

    # ── serving ──

    def _http_options(
        self, path: str, stateless_http: bool = False, max_request_body_size: int | None = None,
        session_idle_timeout: float | None = None, max_sessions: int | None = None,
        transport_security: TransportSecuritySettings | None = None, **_: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Options of HTTP as ours; events are always stored, and JSON or a stream is the client's choice."""
        security = transport_security or TransportSecuritySettings()
        return given(
            path=path, stateless=stateless_http, max_body_bytes=max_request_body_size, session_timeout=session_idle_timeout,
            max_sessions=max_sessions, allowed_hosts=[*security.allowed_hosts] or None,
            allowed_origins=[*security.allowed_origins] or None,
        )  # fmt: skip

    def streamable_http_app(self, *, streamable_http_path: str = "/mcp", host: str = "127.0.0.1", **options: Any) -> Any:
        """The server as an app of Starlette."""
        from starlette.applications import Starlette
        from starlette.routing import Mount

        self._http_app = app = self.asgi(**self._http_options(streamable_http_path, **options))
        return Starlette(debug=self.settings.debug, routes=[Mount("/", app)], lifespan=lambda _: app.lifespan())

    def sse_app(self, *, sse_path: str = "/sse", message_path: str = "/messages/", **options: Any) -> Any:
        _check_sse(sse_path, message_path)
        return self.streamable_http_app(**options)

    @property
    def session_manager(self) -> SessionManager:
        if self._http_app is None:
            raise RuntimeError("session_manager is there after streamable_http_app()")
        return SessionManager(self._http_app)

    def _run_options(self, transport: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if transport == "stdio":
            return "stdio", {}
        _check_sse(options.pop("sse_path", "/sse"), options.pop("message_path", "/messages/"))
        own = {name: options.pop(name) for name in ("host", "port") if name in options}
        return "http", {**own, **self._http_options(options.pop("streamable_http_path", "/mcp"), **options)}

    def run(self, transport: str = "stdio", **options: Any) -> None:  # type: ignore[override]
        name, settings = self._run_options(transport, options)
        super().run(name, **settings)


def _check_sse(path: str, message_path: str) -> None:
    if (path, message_path.rstrip("/")) != ("/sse", "/messages"):
        raise not_possible(f"sse_path={path!r}, message_path={message_path!r}", PAGE, "they are /sse and /messages")


class InMemorySubscriptionBus:
    """What tells clients of changes in one process; a server has one without being told."""
