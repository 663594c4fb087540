"""The official SDK's names, of `mcp` 2.3: `MCPServer` with its tools, resources, prompts and extensions.

Words of module paths (`MODULES`) can't be names of this module: the import system sets them to the views of it.
"""

# mypy: disable-error-code="override"
# The SDK's signatures are other ones than those of `Server`.

import functools
import inspect
import logging
import operator
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import NoneType, SimpleNamespace
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict, TypeVar, cast, get_origin, get_type_hints

try:
    import mcp_types
except ImportError as failure:
    raise ImportError("dovetail.compat.mcp needs the types of the SDK: pip install mcp-types") from failure

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import to_json

from dovetail import auth as lazy_auth
from dovetail import client as native_client
from dovetail.compat import mcp_context, no_equal
from dovetail.compat import shared as common
from dovetail.compat.mcp_context import PAGE, Context, MCPError, Resolution, lacking, resolvers
from dovetail.compat.shared import given, not_possible, wire
from dovetail.engine.current_context import get_context
from dovetail.engine.options import ServerOptions
from dovetail.errors import INVALID_PARAMS, METHOD_NOT_FOUND, MissingCapability, SetupError
from dovetail.errors import ToolError as ToolError
from dovetail.extensions.extension import Extension as NativeExtension
from dovetail.extensions.extension import ExtensionResult
from dovetail.protocol import jsonrpc
from dovetail.protocol import types as native
from dovetail.protocol.extensions import UI_MIME_TYPE
from dovetail.protocol.results import ToolResult
from dovetail.registry.functions import members
from dovetail.registry.outputs import compile_output
from dovetail.registry.registration import from_official
from dovetail.server import Server as NativeServer

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("dovetail.compat")
__path__: list[str] = []
WORDS = """
apps auth auth_context base bearer_auth caching client context elicitation exceptions extension extensions fastmcp
func_metadata inbound logging lowlevel mcpserver memory message middleware path_security prompts provider request_state
resolve resource_manager resources routes server session settings shared sse stdio streamable_http
streamable_http_manager subscriptions templates tool_manager tools transport_security types uri_template utilities
version
"""
MODULES = frozenset(WORDS.split())
InvalidRequestState = ValueError
TokenVerifier = EventStore = object  # bases of a program's classes; events are in the server's own state
CallNext = HandlerResult = EventCallback = EventId = EventMessage = StreamId = Any  # types of annotations
INSTEAD = {  # names that may be imported and stand in annotations, and are refused when they are called
    "ClientSession": "connect with Client",
    "FastMCP": "it is MCPServer since mcp 2",
    "OAuthAuthorizationServerProvider": "dovetail.AuthServer is an authorization server",
    "Server": "write tools with MCPServer",
    "StdioServerParameters": "give Client the command as a list",
    "safe_join": "mcp.add_directory() offers a folder, and no path leads out of it",
    "stdio_server": "write mcp.run()",
    "UrlElicitationRequiredError": "await ctx.elicit_url(…)",
}


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name in MODULES:
        raise AttributeError(name)
    for each in (mcp_context, common, mcp_types):
        if name in vars(each):
            return vars(each)[name]
    if name not in INSTEAD:
        raise no_equal(f"mcp: {name}", PAGE)

    def refuse(*_: Any, **__: Any) -> Any:
        raise not_possible(name, PAGE, INSTEAD[name])

    return type(name, (), {"__new__": refuse, "__class_getitem__": classmethod(lambda cls, _: cls)})


class Message:
    """A message of a prompt."""

    role: native.Role = "user"

    def __new__(cls, content: Any, role: native.Role | None = None) -> Any:
        return native.Message(role or cls.role, blocks(content)[0])


class UserMessage(Message):
    """A message of the user."""


class AssistantMessage(Message):
    """A message of the model."""

    role = "assistant"


def text(value: Any) -> str:
    """JSON as the SDK writes it: what can't be JSON becomes text."""
    return value if isinstance(value, str) else to_json(value, fallback=str, indent=2).decode()


def blocks(value: Any) -> list[native.Content]:
    """Content for a value: one block for each item of a list, JSON for what is no text."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [block for item in value for block in blocks(item)]
    value = from_official(value)
    return [value if isinstance(value, native.CONTENT_TYPES) else native.Text(text(value))]  # type: ignore[list-item]


def messages(value: Any) -> list[Any]:
    listed = value if isinstance(value, list | tuple) else [value]
    ready = (native.Message, Mapping, mcp_types.PromptMessage)
    return [each if isinstance(each, ready) else UserMessage(each) for each in listed]


# ── tools, resources and prompts ──


def adapted(function: Callable[..., Any], convert: Callable[[Any], Any], returns: Any = Any) -> Any:
    """The function with converted results, without what resolvers fill, and without the docstring, which we parse."""
    signature = inspect.signature(function, eval_str=True)
    resolved = resolvers(signature)

    @functools.wraps(function)
    async def call_resolved(**arguments: Any) -> Any:
        return await Resolution(cast(Context, get_context()), arguments).call(function)

    made = common.adapted(call_resolved if resolved else function, convert)
    made.__doc__ = None
    del made.__wrapped__
    parameters = [each for name, each in signature.parameters.items() if name not in resolved]
    made.__signature__ = signature.replace(parameters=parameters, return_annotation=returns)
    return made


def described(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """The options that are given; the whole docstring is the description."""
    return {"description": inspect.cleandoc(function.__doc__ or ""), **given(**options)}


def read_output(returns: Any, name: str) -> tuple[Any, Callable[[Any], Any]]:
    """The type of a tool's structured values, and how they are made of return values; ToolResult if it has none."""
    if get_origin(returns) is Annotated and returns.__origin__ is mcp_types.CallToolResult:
        return returns.__metadata__[0], lambda value: value
    returns = common.without_questions(returns, ToolResult)
    try:
        output = compile_output(returns, where=name, unstructured=(*native.CONTENT_TYPES, ToolResult))
    except SetupError:  # a class of the program
        hints = get_type_hints(returns) if isinstance(returns, type) and not hasattr(returns, "__total__") else {}
        fields = {key: NotRequired[hint] if hasattr(returns, key) else hint for key, hint in hints.items()}
        struct: Any = TypedDict(returns.__name__, fields) if fields else None  # type: ignore[operator]
        made = read_output(struct, name)[0] if fields else ToolResult
        return made, lambda value: value if isinstance(value, dict) else {key: getattr(value, key) for key in fields}
    if returns in (dict, list) or (output is None and not {str, None, NoneType}.issuperset(members(returns))):
        return ToolResult, lambda value: value
    if output is not None and output.is_object:
        return returns, lambda value: value
    return TypedDict(f"{name}Output", {"result": returns}), lambda value: {"result": value}  # type: ignore[operator]


Tool = common.Component
Prompt = common.Component
Resource = common.Resource


class ToolBinding(NamedTuple):
    fn: Callable[..., Any]
    meta: dict[str, Any] | None = None
    kwargs: Mapping[str, Any] = {}


class ResourceBinding(NamedTuple):
    resource: Resource


class MethodBinding(NamedTuple):
    """A method of an extension, which its handler serves."""

    method: str
    params_type: type[BaseModel]
    handler: Callable[..., Awaitable[Any]]
    protocol_versions: frozenset[str] | None = None

    async def serve(self, ctx: Context) -> Any:
        if self.protocol_versions is not None and ctx.protocol_version not in self.protocol_versions:
            raise MCPError(METHOD_NOT_FOUND, f"{self.method} is not part of {ctx.protocol_version}")
        try:
            params = self.params_type.model_validate(ctx.params)
        except ValidationError as problem:
            raise MCPError(INVALID_PARAMS, f"Invalid params: {problem}") from None
        return wire(await self.handler(ctx, params))


class Extension:
    """The base of extensions: they may have `settings`, `tools`, `resources`, `methods` and `intercept_tool_call`."""

    identifier: str

    def apply(self, server: "MCPServer") -> None:
        names = ("settings", "tools", "resources", "methods")
        found = {name: getattr(self, name)() for name in names if hasattr(self, name)}
        for tool in found.get("tools", ()):
            server.add_tool(tool.fn, meta=tool.meta, **tool.kwargs)
        for binding in found.get("resources", ()):
            server.add_resource(binding.resource)
        methods = {each.method: each.serve for each in found.get("methods", ())}
        server.add_extension(NativeExtension(self.identifier, found.get("settings", {}), methods))
        if hasattr(self, "intercept_tool_call"):
            server.middleware.append(self._intercept)

    async def _intercept(self, ctx: Context, call_next: Any) -> Any:
        if ctx.method != "tools/call":
            return await call_next(ctx)
        params = mcp_types.CallToolRequestParams.model_validate(ctx.params)
        return await self.intercept_tool_call(params, ctx, call_next)  # type: ignore[attr-defined]


def require_client_extension(ctx: Context, identifier: str) -> None:
    """Raises MissingCapability unless the client declares the extension."""
    if identifier not in ctx.client.extensions:
        raise MissingCapability({"extensions": {identifier: {}}})


client_supports_apps = operator.attrgetter("client.can_show_apps")


class AuthSettings(NamedTuple):
    """Who issues tokens, and for which URL."""

    issuer_url: Any
    resource_server_url: Any = None
    required_scopes: Sequence[str] | None = None
    validate_token_resource: bool | None = None

    def to_auth(self, verifier: Any) -> Any:
        resource = None if self.resource_server_url is None else str(self.resource_server_url)
        needs_resource = bool(self.validate_token_resource)
        if needs_resource and resource is None:
            raise SetupError("AuthSettings: validate_token_resource= needs resource_server_url=, for tokens to name")
        ours = common.PeerVerifier(verifier, str(self.issuer_url), resource, needs_resource=needs_resource)
        return lazy_auth.Auth(ours, scopes=self.required_scopes or ())


class ResourceSecurity:
    """The variables of templates whose values are not checked. All others always are."""

    def __init__(self, *, exempt_params: Any = (), **checks: bool) -> None:
        self.exempt_params = set(exempt_params)
        if not all(checks.values()):
            log.warning('%s: values stay checked but for exempt_params; see the page "%s"', [*checks], PAGE)


class RequestStateSecurity(NamedTuple):
    """The keys that seal what clients carry from round to round. It always holds for one server and one caller."""

    keys: Sequence[str | bytes] | None = None
    codec: Any = None
    ttl: float = 600.0


class TransportSecuritySettings(NamedTuple):
    """The hosts and origins whose requests are served. Both are always checked."""

    enable_dns_rebinding_protection: bool = True
    allowed_hosts: Sequence[str] = ()
    allowed_origins: Sequence[str] = ()


def http_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of HTTP as ours, which checks their names."""
    made = common.http_options(options)
    security = made.pop("transport_security", None) or TransportSecuritySettings()
    if not security.enable_dns_rebinding_protection:
        log.warning('Host and Origin stay checked: name yours in allowed_hosts; see the page "%s"', PAGE)
    hosts = {name: [*getattr(security, name)] or None for name in ("allowed_hosts", "allowed_origins")}
    return given(**made, **hosts)


# ── the server ──

UNUSED = {"debug", "dependencies", *(f"warn_on_duplicate_{kind}" for kind in ("tools", "resources", "prompts"))}


class MCPServer(NativeServer):
    """The SDK's server."""

    def __init__(
        self, name: str | None = None, title: str | None = None, *, tools: Sequence[Tool] | None = None,
        resources: Sequence[Resource] | None = None, extensions: Sequence[Any] | None = None,
        middleware: Sequence[Any] | None = None, auth: AuthSettings | None = None, token_verifier: Any = None,
        resource_security: ResourceSecurity | None = None, subscriptions: Any = None, log_level: str | None = None,
        request_state_security: RequestStateSecurity | None = None, **options: Any,
    ) -> None:  # fmt: skip
        options = given(**{name: each for name, each in options.items() if name not in UNUSED})
        common.check_keywords(options, ServerOptions.__annotations__, "MCPServer", PAGE)
        if subscriptions not in (None, False):
            raise not_possible("subscriptions=", PAGE, "workers tell each other of changes through state=")
        if (auth is None) != (token_verifier is None):
            raise SetupError("MCPServer: auth= and token_verifier= belong together")
        if auth is not None:
            options["auth"] = auth.to_auth(token_verifier)
        if request_state_security is not None:
            if request_state_security.codec is not None:
                log.warning('codec= is not used: states are sealed by keys=, or at random; see the page "%s"', PAGE)
            options |= {"secret": request_state_security.keys, "answer_timeout": request_state_security.ttl}
        own = given(title=title, list_changed=subscriptions, **options)
        super().__init__(name or "mcp-server", output="structured", declare=["tools", "resources", "prompts"], **own)
        self.engine.context_class = Context
        if log_level is not None:
            logging.getLogger("dovetail").setLevel(log_level)
        self._security = resource_security or ResourceSecurity()
        for each in middleware or ():
            self.middleware.append(each)
        for extension in extensions or ():
            extension.apply(self)
        for tool in tools or ():
            self.add_tool(tool.fn, name=tool.name, **tool.options)
        for resource in resources or ():
            self.add_resource(resource)

    __class_getitem__ = classmethod(lambda cls, _: cls)
    __getattr__ = lacking

    def add_tool(self, fn: Any, name: str | None = None, *, structured_output: Any = None, **options: Any) -> None:
        name = str(name or getattr(fn, "__name__", type(fn).__name__))
        if _is_taken(self.engine.tools, name):
            return
        returns = inspect.signature(fn, eval_str=True).return_annotation
        kind, shape = read_output(ToolResult if structured_output is False else returns, name)

        def to_result(value: Any) -> Any:
            if isinstance(value, mcp_types.CallToolResult | ToolResult):
                return value
            structured = {} if kind is ToolResult else {"structured": shape(value)}
            return ToolResult(content=blocks(value), **structured)

        super().add_tool(adapted(fn, to_result, kind), **{**described(fn, **options), "name": name})

    def add_resource(
        self, uri: Any, function: Any = None, *, security: ResourceSecurity | None = None, **options: Any
    ) -> None:
        if isinstance(uri, Resource):
            uri, function, options = uri.uri, uri.fn, {"name": uri.name, **uri.options}
        if "{" in uri:
            self.remove_resource(uri)  # the last one counts
        elif _is_taken(self.engine.resources.direct, uri):
            return
        exempt = (security or self._security).exempt_params & inspect.signature(function).parameters.keys()
        own = described(function, unsafe=sorted(exempt) or None, **options)
        own.setdefault("mime_type", UI_MIME_TYPE if uri.startswith("ui://") else "text/plain")
        super().add_resource(uri, adapted(function, lambda it: it if isinstance(it, bytes) else text(it)), **own)

    def add_prompt(self, prompt: Any, **options: Any) -> None:
        prompt = prompt if isinstance(prompt, Prompt) else Prompt(prompt, **options)
        if not _is_taken(self.engine.prompts, prompt.name):
            own = described(prompt.fn, name=prompt.name, **prompt.options)
            super().add_prompt(adapted(prompt.fn, messages), **own)

    def completion(self) -> Callable[[F], F]:
        """Register the function that suggests values for all arguments."""

        def register(function: F) -> F:
            super(MCPServer, self).completion(common.completer(function))
            return function

        return register

    @property
    def middleware(self) -> Any:
        """What takes more functions of `ctx` and `call_next`, by `append`; the first one is outermost."""

        def append(function: Callable[..., Any]) -> None:
            async def middleware(request: Any, call_next: Any) -> Any:
                def proceed(ctx: Context) -> Any:
                    if ctx.params == jsonrpc.parse(request.raw_params):
                        return call_next(request)
                    raw = msgspec.Raw(jsonrpc.encode(ctx.params))
                    return call_next(msgspec.structs.replace(request, params=request.row.read(raw), raw_params=raw))

                found = await function(get_context(), proceed)
                return ExtensionResult(wire(found)) if isinstance(found, dict | BaseModel) else found

            self.add_middleware(middleware)

        return SimpleNamespace(append=append)

    def streamable_http_app(self, *, host: str = "", **options: Any) -> Any:  # noqa: ARG002
        """The server as an app of Starlette."""
        from starlette.applications import Starlette
        from starlette.routing import Mount

        app = self.asgi(**http_options(options))
        self.session_manager = SimpleNamespace(run=app.lifespan)  # for the lifespan of a host
        return Starlette(routes=[Mount("/", app)], lifespan=lambda _: app.lifespan())

    sse_app = streamable_http_app  # which serves HTTP+SSE too

    def custom_route(self, path: str, methods: Any, name: Any = None, include_in_schema: Any = True) -> Any:  # noqa: ARG002
        return super().custom_route(path, methods)

    def run(self, transport: Any = "stdio", **options: Any) -> None:
        super().run(transport, **http_options(options))

    async def run_stdio_async(self) -> None:
        await self.run_async("stdio")

    async def run_streamable_http_async(self, **options: Any) -> None:
        await self.run_async("http", **http_options(options))


def _is_taken(catalog: Any, name: str) -> bool:
    """Whether there is such a thing already, which then stays."""
    if is_taken := catalog.get(name) is not None:
        log.warning("there is already a %s %s; it stays", catalog.noun, name)
    return is_taken


ResourceCsp = ResourcePermissions = dict  # by the SDK's names


class Apps(MCPServer):
    """The views of tools, and the tools that have one; as an extension they are mounted."""

    def tool(self, *, resource_uri: str, visibility: Any = None, meta: Any = None, **options: Any) -> Any:
        ui = given(resourceUri=resource_uri, visibility=visibility)
        return super().tool(meta={**(meta or {}), "ui": ui}, **options)

    def add_html_resource(
        self, uri: str, html: str, *, csp: Any = None, permissions: Any = None, domain: str | None = None,
        prefers_border: bool | None = None, **options: Any,
    ) -> None:  # fmt: skip
        allowed = {to_camel(name): each for name, each in permissions.items()} if permissions else None
        ui = given(permissions=allowed, domain=domain, prefersBorder=prefers_border)
        origins = {name.removesuffix("_domains"): each for name, each in (csp or {}).items()}
        self.add_ui(uri, html, **{"name": uri, "csp": origins, "meta": {"ui": ui}, **options})

    def apply(self, server: MCPServer) -> None:
        server.mount(self)


class Client:
    """A connection to a server in this process, behind a command or a URL, whose results are models of mcp_types."""

    __getattr__ = lacking

    def __init__(self, server: Any, mode: Any = "auto", read_timeout_seconds: Any = None, **others: Any) -> None:
        common.check_keywords(others, (), "Client", PAGE)
        revision = {"auto": None, "legacy": "2025-11-25"}.get(mode, mode)
        self._client = native_client.Client(server, **given(timeout=read_timeout_seconds, protocol_version=revision))

    async def __aenter__(self) -> "Client":
        await self._client.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> mcp_types.CallToolResult:
        found = await self._client.call_tool(name, arguments or {}, raise_on_error=False)
        content, structured = msgspec.to_builtins(found.content), msgspec.to_builtins(found.structured)
        return mcp_types.CallToolResult(content=content, structured_content=structured, is_error=found.is_error)

    async def list_tools(self) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=msgspec.to_builtins(await self._client.list_tools()))
