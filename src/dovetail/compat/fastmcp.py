"""FastMCP's server on Dovetail's, its components and transforms, and all that FastMCP's modules offer."""

# mypy: disable-error-code="override"
# FastMCP's signatures are other ones than those of `Server`.

import contextlib
import inspect
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

import dovetail
from dovetail import compat, registry
from dovetail import engine as lazy_engine
from dovetail.client.config import ClientOptions
from dovetail.compat import no_equal, shared
from dovetail.compat.fastmcp_context import PAGE, Context, Shown, changed, contents, fitting, lacking, peer_tool
from dovetail.compat.shared import Component, Resource, adapted, check_keywords, given, without_questions
from dovetail.engine.context import request_of
from dovetail.engine.current_context import get_context as native_context
from dovetail.protocol.session import EVERYTHING, VisibilityRule
from dovetail.registry.catalog import Catalog
from dovetail.registry.functions import members, qualified_name
from dovetail.registry.mounts import rename_uri
from dovetail.registry.tools import Tool as CompiledTool
from dovetail.registry.tools import compile_tool
from dovetail.registry.transforms import ArgTransform as ArgTransform
from dovetail.registry.transforms import ToolTransform as ToolTransformConfig
from dovetail.registry.visibility import texts
from dovetail.schema.encode import to_jsonable
from dovetail.server import Server

__path__: list[str] = []
log = logging.getLogger("dovetail.compat")
MARK = "__fastmcp__"  # the attribute of functions that the standalone decorators have marked
UI_TYPE = "text/html;profile=mcp-app"
HEADERS = {"accept", "accept-encoding", "connection", "content-type", "user-agent"}  # that any client has
DECLARED = ("tools", "resources", "prompts")
# Keywords of FastMCP(…) by Dovetail's names, with what their values become:
OPTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{name: (name, lambda value: value) for name in ("icons", "website_url", "lifespan", "mask_error_details")},
    "version": ("version", str),
    "list_page_size": ("page_size", int),
    "cache_ttl": ("ttl_ms", lambda seconds: int(seconds * 1000)),
    "cache_scope": ("cache_scope", str),
    "client_log_level": ("log_level", str),
    "experimental_capabilities": ("experimental", dict),
    "strict_input_validation": ("lenient_arguments", lambda is_strict: not is_strict),
}
REFUSED = {
    "request_state_security": "DOVETAIL_SECRET seals the state of all workers",
    "resource_security": "name the variables that are not screened, in unsafe= of a resource",
    "session_state_store": "values are in the state of the server: run(state=…)",
    "route_maps": "OpenApi(…, only=, names=) chooses",
}
# Keywords of decorators:
COMMON = {"name", "title", "description", "icons", "tags", "meta", "auth", "version"}
KEYWORDS = {
    "tool": COMMON | {"output_schema", "annotations", "task", "timeout", "app", "run_in_thread"},
    "prompt": COMMON,
    "resource": COMMON | {"mime_type", "annotations", "app"},
}


# ── components ──


class Prompt(Component):
    kind = "prompt"


class Tool(Component):
    kind = "tool"
    transforms: tuple[ToolTransformConfig, ...] = ()  # from the inside out

    @classmethod
    def from_tool(
        cls, tool: Any, *, name: str | None = None, transform_args: Mapping[str, ArgTransform] | None = None,
        transform_fn: Callable[..., Any] | None = None, **options: Any,
    ) -> "Tool":  # fmt: skip
        """Another tool of the same function."""
        if transform_fn is not None:
            raise no_equal("Tool.from_tool(transform_fn=)", PAGE, "write a tool that calls the function")
        base = component(tool, Tool, {})
        made = cls(base.fn, base.name, **{**base.options, **options})
        transform = ToolTransformConfig(name=name, arguments=transform_args or {})
        made.transforms = (*getattr(base, "transforms", ()), transform)
        return made


def component(given: Any, kind: type[Component], options: Mapping[str, Any]) -> Any:
    """What is added: a component, or a function with the options of its decorator."""
    if isinstance(given, Component):
        return given
    kind, marked = getattr(given, MARK, (kind, {}))
    return kind.from_function(given, **{**marked, **options})


def _decorator(kind: type[Component], first: str) -> Callable[..., Any]:
    """A standalone decorator: it marks a function for `add_tool`, `add_resource` and `add_prompt`."""

    def decorate(given: Any = None, **options: Any) -> Any:
        def mark(function: Any) -> Any:
            named = {} if given is function or given is None else {first: given}
            setattr(function, MARK, (kind, {**options, **named}))
            return function

        return mark(given) if callable(given) else mark

    return decorate


tool, prompt, resource = _decorator(Tool, "name"), _decorator(Prompt, "name"), _decorator(Resource, "uri")
FunctionTool, FunctionPrompt, ResourceTemplate = Tool, Prompt, Resource


# ── transforms: functions of the server ──


def Namespace(prefix: str) -> Callable[["FastMCP"], None]:
    def renamed(item: Any) -> Any:
        if not hasattr(item, "uri"):
            return changed(item, name=f"{prefix}_{item.name}")
        uri = rename_uri(item.uri, prefix)
        if not hasattr(item, "template"):
            return changed(item, uri=uri)
        return replace(changed(item, uri_template=uri), template=type(item.template)(uri, item.template.wholes))

    return lambda server: server.transform_items(renamed)


def ToolTransform(transforms: Mapping[str, ToolTransformConfig]) -> Callable[["FastMCP"], None]:
    def change(item: Any) -> Any:
        config = transforms.get(item.name) if isinstance(item, CompiledTool) else None
        return item if config is None else transformed(item, config)

    return lambda server: server.transform_items(change)


def Visibility(enabled: bool, **chosen: Any) -> Callable[["FastMCP"], None]:
    return lambda server: server.choose(enabled, chosen)


def transformed(tool: CompiledTool, config: ToolTransformConfig) -> CompiledTool:
    return registry.transforms.transform_tool(tool, config, f"the transform of {tool.name}")


class Client(dovetail.Client):
    """FastMCP's keywords and handlers of what Dovetail's client has."""

    def __init__(
        self, transport: Any, *, mode: str | None = None, elicitation_handler: Any = None, **options: Any
    ) -> None:
        async def elicit(request: dovetail.ElicitRequest) -> Any:
            found = elicitation_handler(request.message, dict, request, None)
            found = await found if inspect.isawaitable(found) else found
            return found if isinstance(found, dovetail.ElicitResult | None) else to_jsonable(found)

        if "sampling_handler" in options:
            raise no_equal("Client(sampling_handler=)", PAGE, "dovetail.Client takes a function of one request")
        check_keywords(options, ClientOptions.__annotations__, "Client", PAGE)
        options |= {} if elicitation_handler is None else {"elicitation_handler": elicit}
        options |= {"protocol_version": mode} if mode is not None and mode[:2] == "20" else {}
        super().__init__(transport, **{name: each for name, each in options.items() if each is not None})


# ── the server ──


class FastMCP(Server):
    """FastMCP's server, with its defaults."""

    __getattr__ = lacking
    if TYPE_CHECKING:  # decorators with FastMCP's keywords
        tool: Any
        prompt: Any
        resource: Any

    def __init__(
        self, name: str | None = None, instructions: str | None = None, *, auth: Any = None,
        middleware: Sequence[Any] | None = None, providers: Sequence[Any] | None = None,
        transforms: Sequence[Any] | None = None, tools: Sequence[Any] | None = None, on_duplicate: str | None = None,
        tasks: bool | None = None, dereference_schemas: bool = True, **more: Any,
    ) -> None:  # fmt: skip
        del dereference_schemas
        if refused := [key for key in more if key in REFUSED and type(more[key]).__name__ != "MemoryStore"]:
            raise no_equal(f"FastMCP({refused[0]}=)", PAGE, REFUSED[refused[0]])
        check_keywords(more, OPTIONS.keys() | REFUSED, "FastMCP()", PAGE)
        known = {key: value for key, value in more.items() if key in OPTIONS and value is not None}
        options: Any = {OPTIONS[key][0]: OPTIONS[key][1](value) for key, value in known.items()}
        options |= given(instructions=instructions)
        super().__init__(name or f"FastMCP-{secrets.token_hex(2)}", declare=DECLARED, **options)

        class OwnContext(Context):
            fastmcp = self

        self.engine.context_class = OwnContext
        self.on_duplicate, self._tasks, self.auth = on_duplicate or "warn", bool(tasks), auth
        self._changes: list[Callable[[Any], Any]] = []  # of what is registered
        self.hooks: list[Any] = []  # also around what its functions read
        adders: Any = (self.add_transform, self.add_middleware, self.add_provider, self.add_tool)
        for add, parts in zip(adders, (transforms, middleware, providers, tools), strict=True):
            for each in parts or ():
                add(each)

    @property
    def local_provider(self) -> "FastMCP":
        return self

    @property
    def instructions(self) -> str | None:
        return self.engine.options.instructions

    # ── registration ──

    def add_tool(self, tool: Any, **options: Any) -> Tool:
        found: Tool = component(tool, Tool, options)
        own = self._options(found)
        signature = inspect.signature(found.fn)
        if own.pop("run_in_thread", True) is False and not inspect.iscoroutinefunction(found.fn):
            own["thread"] = False
        if not found.options.get("output_schema", True) or signature.return_annotation in (list, tuple):
            own["output"] = "text"
        function = found.fn
        if "InputRequiredResult" in str(signature.return_annotation):
            function = adapted(function)
            returns = without_questions(inspect.signature(found.fn, eval_str=True).return_annotation)
            function.__signature__ = signature.replace(return_annotation=returns)
        title = found.name.replace("_", " ").replace("-", " ").title()
        shown: Any = {"output": "both", "title": title, "task": self._tasks, **own}
        lenient = self.engine.options.lenient_arguments
        compiled = peer_tool(compile_tool(function, shown, injectable=dovetail.Context, lenient=lenient))
        for each in found.transforms:
            compiled = transformed(compiled, each)
        self._add(self.engine.tools, compiled, found)
        return found

    def add_prompt(self, prompt: Any, **options: Any) -> Component:
        found: Component = component(prompt, Prompt, options)
        own: Any = self._options(found)
        compiled = registry.prompts.compile_prompt(adapted(found.fn), own, injectable=dovetail.Context)
        self._add(self.engine.prompts, compiled, found)
        return found

    def add_resource(self, uri: Any, function: Any = None, **options: Any) -> Resource:
        found: Resource = component(uri if function is None else function, Resource, {**options, "uri": uri})
        own: Any = {"mime_type": UI_TYPE if found.uri.startswith("ui://") else "text/plain"}
        own |= self._options(found)
        if isinstance(hints := own.get("annotations"), Mapping):  # also hints of tools, which mean nothing here
            own["annotations"] = {key: hints[key] for key in hints.keys() & {"audience", "priority", "lastModified"}}
        function = adapted(found.fn, partial(contents, found.uri))
        item = registry.resources.compile_resource(found.uri, function, own, injectable=dovetail.Context)
        resources = self.engine.resources
        is_template = isinstance(item, registry.resources.Template)
        self._add(resources.templates if is_template else resources.direct, item, found)
        return found

    add_template = add_resource

    def _options(self, found: Component) -> dict[str, Any]:
        """The options of a component by Dovetail's names."""
        options = given(**{**found.options, "name": found.name})
        check_keywords(options, KEYWORDS[found.kind], f"@{found.kind}", PAGE)
        checks, version, app = (options.pop(key, None) for key in ("auth", "version", "app"))
        returns = inspect.signature(found.fn).return_annotation
        if app is True or any("prefab_ui" in str(getattr(each, "__module__", "")) for each in members(returns)):
            raise no_equal(f"{found.name}: a view of Prefab UI", PAGE, "views are HTML, see add_ui")
        if checks:
            options["authorize"] = partial(compat.fastmcp_auth.may_use, checks, found)
        meta = given(ui=app or None, fastmcp=None if version is None else {"version": str(version)})
        return {**options, "meta": {**(options.get("meta") or {}), **meta}} if meta else options

    def _add(self, catalog: Catalog[Any], item: Any, found: Component) -> None:
        for change in self._changes:
            item = change(item)
        if catalog.find(_key(item), EVERYTHING) is not None:
            if (version := found.options.get("version")) is not None:
                raise no_equal(f"version={version!r} of {_key(item)}, which is there", PAGE, "each has one version")
            if self.on_duplicate == "ignore":
                return
            if self.on_duplicate == "error":
                raise ValueError(f"{catalog.noun} already exists: {_key(item)}")
            if self.on_duplicate == "warn":
                log.warning("%s %s already exists; the new one takes its place", catalog.noun, _key(item))
            catalog.remove(_key(item))
        self._put(catalog, item, qualified_name(found.fn))

    def _put(self, catalog: Catalog[Any], item: Any, where: str) -> None:
        if hasattr(item, "uri"):
            self.engine.resources.add(item, where=where)
        else:
            catalog.add(item.name, item, where=where)

    # ── changes of what is registered ──

    @property
    def _catalogs(self) -> tuple[Catalog[Any], ...]:
        resources = self.engine.resources
        return self.engine.tools, self.engine.prompts, resources.direct, resources.templates

    def change_items(self, change: Callable[[Any], Any]) -> None:
        """Change what this server itself has, now and later."""
        self._changes.append(change)
        for catalog in self._catalogs:
            for item in catalog.registered.items:
                if (new := change(item)) is not item:
                    catalog.remove(_key(item))
                    self._put(catalog, new, "add_transform")

    def transform_items(self, change: Callable[[Any], Any]) -> None:
        if self.engine.mounts is not None:
            raise no_equal("add_transform beside mounted servers", PAGE, "mount(…, transforms=) changes their tools")
        self.change_items(change)

    def add_transform(self, transform: Callable[["FastMCP"], None]) -> None:
        transform(self)

    def disable(self, **chosen: Any) -> None:
        self.choose(False, chosen)

    def enable(self, *, only: bool = False, **chosen: Any) -> None:
        self.choose(True, chosen, only)

    def choose(self, enabled: bool, chosen: Mapping[str, Any], only: bool = False) -> None:
        """Enable or disable; unlike Dovetail's own methods also where nothing has these names or tags."""
        known = fitting(chosen)
        tags, names = (texts(known.get(each, ()), f"{each} of enable, disable") for each in ("tags", "names"))
        rules = (*([VisibilityRule(False)] if only else ()), VisibilityRule(enabled, tags, names))
        for catalog in self._catalogs:
            catalog.set_visibility(rules)

    def completion(self, handler: Any = None) -> Any:
        """Register the function that completes all arguments; it gets models of mcp_types."""
        if handler is None:
            return self.completion
        super().completion(shared.completer(handler))
        return handler

    def custom_route(self, path: str, methods: Any, name: Any = None, include_in_schema: Any = True) -> Any:  # noqa: ARG002
        return super().custom_route(path, methods)

    def add_middleware(self, middleware: Any) -> None:
        middleware.attach(self)

    def add_extension(self, extension: Any) -> None:
        if extension is not None:  # TasksExtension()
            super().add_extension(extension)

    # ── other servers ──

    def mount(
        self, server: Any, namespace: str | None = None, tool_names: Mapping[str, str] | None = None, *,
        prefix: str | None = None, transforms: Mapping[str, Any] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        check_keywords(more, (), "mount()", PAGE)
        renames = {own: ToolTransformConfig(name=name) for own, name in (tool_names or {}).items()}
        super().mount(server, namespace or prefix or None, transforms={**renames, **(transforms or {})})
        for path, route in getattr(server, "_routes", {}).items():
            self._routes.setdefault(path, route)

    def add_provider(self, provider: Any, *, namespace: str = "") -> None:
        if not isinstance(provider, Server):
            raise no_equal(f"the provider {type(provider).__name__}", PAGE, "mount a server, a Proxy or an OpenApi")
        self.mount(provider, namespace or None)

    @classmethod
    def from_openapi(
        cls, openapi_spec: Mapping[str, Any], client: Any = None, name: str = "OpenAPI Server",
        mcp_names: Mapping[str, str] | None = None, **settings: Any,
    ) -> "FastMCP":  # fmt: skip
        """The operations as tools; of the client its base URL, and a bearer token among its headers."""
        server, options = cls(name, **settings), given(names=mcp_names)
        if client is not None:
            headers = {name: each for name, each in client.headers.items() if name not in HEADERS}
            scheme, _, token = headers.pop("authorization", "Bearer ").partition(" ")
            if headers or client.auth or scheme.lower() != "bearer":
                reason = "OpenApi(…, auth={name: secret}) sends what a security scheme of the document names"
                raise no_equal("from_openapi(client=) with headers other than a bearer token", PAGE, reason)
            options |= given(base_url=str(client.base_url) or None, auth=token or None)
        server.mount(dovetail.OpenApi(openapi_spec, **options))
        return server

    @classmethod
    def from_fastapi(
        cls, app: Any, name: str | None = None, mcp_names: Mapping[str, str] | None = None, **settings: Any
    ) -> "FastMCP":
        server = cls(name or app.title, **settings)
        server.mount(dovetail.OpenApi.from_app(app, **given(names=mcp_names)))
        return server

    @classmethod
    def as_proxy(cls, *_: Any, **__: Any) -> Any:
        raise no_equal("FastMCP.as_proxy", PAGE, "write create_proxy(…)")

    # ── serving ──

    def run(self, transport: Any = None, **options: Any) -> None:
        super().run(transport or "stdio", **self._run_options(transport, options))

    async def run_async(self, transport: Any = None, **options: Any) -> None:
        await super().run_async(transport or "stdio", **self._run_options(transport, options))

    def _run_options(self, transport: str | None, options: dict[str, Any]) -> Any:
        if (level := options.pop("log_level", None)) is not None:
            logging.getLogger().setLevel(str(level).upper())
        if options.pop("middleware", None):
            raise no_equal("run(middleware=)", PAGE, "serve http_app(middleware=…) with a server of its own")
        return given(state=options.get("state")) if transport in (None, "stdio") else _http(options)

    def http_options(self, given: Any, *, running: bool = False) -> Any:
        """Dovetail's; from here on the path of the endpoint is known, and so what auth= means."""
        options = super().http_options(given, running=running)
        if self.auth is not None and self.engine.options.auth is None:
            self.engine.options = replace(self.engine.options, auth=self.auth.auth(options.path.rstrip("/")))
        return options

    def http_app(self, path: str | None = None, middleware: Any = None, transport: str = "http", **options: Any) -> Any:
        """The ASGI app, inside of Starlette's middleware."""
        del transport
        app: Any = self.asgi(**_http({"path": path, **options}))
        lifespan = app.lifespan
        for each in reversed(middleware or ()):
            app = each.cls(app, *each.args, **each.kwargs)
            app.lifespan = lifespan  # for hosts
        return app

    # ── what it offers ──

    async def list_tools(self) -> list[Shown]:
        items: Any = self.engine.tools.snapshot.items
        with contextlib.suppress(LookupError):  # outside of a call there is no caller
            caller = lazy_engine.access.Caller(self.engine, request_of(native_context())[1])
            items = [each for each in items if each.access is None or await caller.may_use(each.access)]
        return [Shown(each.definition) for each in items]

    async def get_tool(self, name: str) -> Shown | None:
        with contextlib.suppress(LookupError):  # a server elsewhere may have it
            found = await self.component_of("tools/call", name, native_context())
            return None if found.definition is None else found
        return None if (item := self.engine.tools.find(name)) is None else Shown(item.definition)

    async def component_of(self, method: str, named: str, ctx: Any) -> Shown:
        """What a request is for, as the caller's session sees it, also if it is at a server elsewhere."""
        engine, (_, context) = self.engine, request_of(ctx)
        catalogs: dict[str, Any] = {"tools/call": engine.tools.find, "prompts/get": engine.prompts.find}
        find = partial(catalogs.get(method, engine.resources.get), named, engine.rules_of(context))
        if (found := find()) is None and engine.before_list:
            await engine.fetch_catalogs(context)
            found = find()
        return Shown(None if found is None else found.definition)

    async def call_tool(self, name: str, arguments: Any = None) -> Any:
        async with Client(self) as client:
            return await client.call_tool(name, arguments)


def _key(item: Any) -> str:
    return str(item.uri if hasattr(item, "uri") else item.name)


def _http(options: Mapping[str, Any]) -> Any:
    if options.get("host_origin_protection") is False:
        raise no_equal("host_origin_protection=False", PAGE, "allowed_hosts= and allowed_origins= name who may call")
    return {key: each for key, each in shared.http_options(options).items() if key != "host_origin_protection"}


def create_proxy(target: Any, *, mode: str | None = None, name: str | None = None, **settings: Any) -> FastMCP:
    """A server that offers what others do: a URL, a command, a server of this process, or those of an `mcp.json`."""
    server = FastMCP(name, **settings)
    if isinstance(target, Mapping) and "mcpServers" in target:
        parts: list[Any] = list(dovetail.Proxy.from_config(target).values())
    else:
        version: Any = {"protocol_version": mode} if mode is not None and mode[:2] == "20" else {}
        parts = [target if isinstance(target, Server) else dovetail.Proxy(target, **version)]
    for each in parts:
        server.mount(each)
    return server


def NpxStdioTransport(package: str, args: Sequence[str] | None = None, **more: Any) -> list[str]:
    """The command that runs a package of npm."""
    check_keywords(more, (), "NpxStdioTransport", PAGE)
    return ["npx", "--prefer-offline", package, *(args or ())]


def UvxStdioTransport(tool_name: str, tool_args: Sequence[str] | None = None, **more: Any) -> list[str]:
    """The command that runs a tool of PyPI."""
    check_keywords(more, (), "UvxStdioTransport", PAGE)
    return ["uvx", tool_name, *(tool_args or ())]


# ── names ──


def TasksExtension(*_: Any, **__: Any) -> None:
    """Nothing: tasks and stored events are parts of Dovetail."""


EventStore = TasksExtension


def TaskConfig(mode: str = "optional", poll_interval: Any = None) -> Any:
    seconds = getattr(poll_interval, "total_seconds", lambda: poll_interval)()
    options: Any = given(mode=mode, poll_interval=seconds)
    return mode != "forbidden" and dovetail.TaskConfig(**options)


def AppConfig(**fields: Any) -> dict[str, Any]:
    """Settings of a view, in the words of the protocol."""
    words = {name: name.split("_") for name, value in fields.items() if value is not None}
    return {first + "".join(map(str.title, rest)): fields[name] for name, (first, *rest) in words.items()}


def get_tracer(version: str | None = None) -> Any:
    telemetry: Any = lazy_engine.telemetry
    return telemetry.trace.get_tracer("fastmcp", version)


class Lifespan:
    """Async generator functions, or context managers, one inside of the other; the dicts they yield become one."""

    def __init__(self, *functions: Any) -> None:
        self._functions = functions

    @contextlib.asynccontextmanager
    async def __call__(self, server: Any) -> Any:
        async with contextlib.AsyncExitStack() as stack:
            merged: dict[str, Any] = {}
            for each in self._functions:
                enter = contextlib.asynccontextmanager(each) if inspect.isasyncgenfunction(each) else each
                merged |= await stack.enter_async_context(enter(server)) or {}
            yield merged

    def __or__(self, other: Any) -> "Lifespan":
        return Lifespan(*self._functions, other)


ResourceCSP = ResourcePermissions = AppConfig
lifespan = ContextManagerLifespan = combine_lifespans = Lifespan
settings = SimpleNamespace(log_level="INFO", host="127.0.0.1", port=8000, mask_error_details=True)
FastMCPError = ResourceError = PromptError = ValidationError = dovetail.ToolError
AuthorizationError = InsufficientScopeError = dovetail.ToolError
NotFoundError = dovetail.NotFound
# What a program may import as a module, by `from fastmcp.server import auth`:
WORDS = """
apps auth caching client completions context contrib decorators dependencies elicitation event_store exceptions
experimental extensions http jwt logging low_level mcp_config middleware openapi prompts providers proxy resources
sampling server sessions tasks telemetry timing tool_transform tools transforms transports types utilities
"""
MODULES = frozenset(WORDS.split())
_PARTS = ("fastmcp_context", "shared", "fastmcp_auth")


def __getattr__(name: str) -> Any:
    for names in (vars(getattr(compat, part)) for part in _PARTS):
        if name in names:
            return names[name]
    if name in ("CallToolResult", "ElicitResult", "File", "ToolError"):
        return getattr(dovetail, name)
    if name.startswith("__"):
        raise AttributeError(name)
    raise no_equal(f"fastmcp's {name}", PAGE)
