"""FastMCP's server on Dovetail's, and all that FastMCP's modules offer."""

import contextlib
import inspect
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec.structs import replace

import dovetail
from dovetail import compat, registry
from dovetail import engine as lazy_engine
from dovetail.compat import no_equal
from dovetail.compat.fastmcp_components import (
    Component,
    Prompt,
    Resource,
    Tool,
    Visibility,
    asking_function,
    choice,
    component,
    peer_tool,
    resource_function,
)
from dovetail.compat.fastmcp_components import prompt as prompt
from dovetail.compat.fastmcp_components import resource as resource
from dovetail.compat.fastmcp_components import tool as tool
from dovetail.compat.fastmcp_context import PAGE, Client, Context, Shown, lacking
from dovetail.compat.shared import AccessToken
from dovetail.compat.shared import given as given_options
from dovetail.engine.context import request_of
from dovetail.protocol.session import EVERYTHING, VisibilityRule
from dovetail.registry.catalog import Catalog
from dovetail.registry.functions import members, qualified_name
from dovetail.registry.tools import compile_tool
from dovetail.server import Server

__path__: list[str] = []
log = logging.getLogger("dovetail.compat")
UI_TYPE = "text/html;profile=mcp-app"
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
TOOL_OPTIONS = {
    "name", "title", "description", "icons", "tags", "output_schema", "annotations", "meta", "task", "timeout",
    "thread", "authorize", "transform",
}  # fmt: skip
REFUSED = {
    "request_state_security": "DOVETAIL_SECRET seals the state of all workers",
    "resource_security": "name the variables that are not screened, in unsafe= of a resource",
    "session_state_store": "values are in the state of the server: run(state=…)",
}
API_REFUSED = {"route_maps", "route_map_fn", "mcp_component_fn", "httpx_client_kwargs", "tags", "validate_output"}


class FastMCP(Server):
    """FastMCP's server, with its defaults."""

    __getattr__ = lacking

    def __init__(
        self, name: str | None = None, instructions: str | None = None, *, auth: Any = None,
        middleware: Sequence[Any] | None = None, providers: Sequence[Any] | None = None,
        transforms: Sequence[Any] | None = None, tools: Sequence[Any] | None = None, on_duplicate: str | None = None,
        tasks: bool | None = None, dereference_schemas: bool = True, **more: Any,
    ) -> None:  # fmt: skip
        del dereference_schemas
        options: dict[str, Any] = {} if instructions is None else {"instructions": instructions}
        for key, value in more.items():
            if key in REFUSED and type(value).__name__ != "MemoryStore":
                raise no_equal(f"FastMCP({key}=)", PAGE, REFUSED[key])
            if key not in REFUSED and key not in OPTIONS:
                raise TypeError(f"FastMCP() got an unexpected keyword argument {key!r}")
            if key in OPTIONS and value is not None:
                options[OPTIONS[key][0]] = OPTIONS[key][1](value)
        super().__init__(name or f"FastMCP-{secrets.token_hex(2)}", declare=DECLARED, **options)

        class OwnContext(Context):
            fastmcp = self

        self.engine.context_class = OwnContext
        self.on_duplicate, self._tasks, self.auth = on_duplicate or "warn", bool(tasks), auth
        self._is_on_stdio = False
        self._changes: list[Callable[[Any], Any]] = []  # of what is registered
        self.guards: list[Callable[[Any], Any]] = []  # of what its functions read
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

    def tool(self, given: Any = None, **options: Any) -> Any:
        """Register a function as a tool; a decorator, or `tool(function, …)`."""
        return self._register(Tool, given, options)

    def prompt(self, given: Any = None, **options: Any) -> Any:
        return self._register(Prompt, given, options)

    def resource(self, uri: str, **options: Any) -> Any:
        if not isinstance(uri, str):
            raise TypeError('@resource needs the URI: write @resource("scheme://path")')
        return self._register(Resource, None, {**options, "uri": uri})

    def _register(self, kind: type[Component], given: Any, options: Mapping[str, Any]) -> Any:
        def register(function: Any) -> Any:
            self.add_component(kind(function, **options))
            return function

        if isinstance(given, str):
            options = {**options, "name": given}
        return register(given) if callable(given) else register

    def add_tool(self, tool: Any) -> Component:  # type: ignore[override]
        return self.add_component(component(tool, Tool))

    def add_prompt(self, prompt: Any) -> Component:  # type: ignore[override]
        return self.add_component(component(prompt, Prompt))

    def add_resource(self, resource: Any) -> Component:  # type: ignore[override]
        return self.add_component(component(resource, Resource))

    add_template = add_resource

    def add_component(self, given: Component) -> Component:
        options = {key: value for key, value in given.options.items() if value is not None}
        checks, version, app = (options.pop(key, None) for key in ("auth", "version", "app"))
        returned = inspect.signature(given.fn).return_annotation
        if app is True or any("prefab_ui" in str(getattr(each, "__module__", "")) for each in members(returned)):
            raise no_equal(f"{given.name}: a view of Prefab UI", PAGE, "views are HTML, see add_ui")
        if checks:
            options["authorize"] = partial(self.may_use, checks, given)
        meta = {"ui": app} if app else {}
        meta |= {} if version is None else {"fastmcp": {"version": str(version)}}
        if meta:
            options["meta"] = {**(options.get("meta") or {}), **meta}
        catalog, item = getattr(self, f"_compile_{given.kind}")(given, options)
        for change in self._changes:
            item = change(item)
        known = catalog.find(_key(item), EVERYTHING)
        if known is not None and version is not None:
            raise no_equal(f"version={version!r} of {_key(item)}, which is there already", PAGE, "each has one version")
        if known is not None and self.on_duplicate == "error":
            raise ValueError(f"{catalog.noun} already exists: {_key(item)}")
        if known is not None and self.on_duplicate != "ignore":
            if self.on_duplicate == "warn":
                log.warning("%s %s already exists; the new one takes its place", catalog.noun, _key(item))
            catalog.remove(_key(item))
        if known is None or self.on_duplicate != "ignore":
            self._add_item(catalog, item, qualified_name(given.fn))
        return given

    def _add_item(self, catalog: Catalog[Any], item: Any, where: str) -> None:
        if hasattr(item, "uri"):
            self.engine.resources.add(item, where=where)
        else:
            catalog.add(item.name, item, where=where)

    def _compile_tool(self, given: Component, options: dict[str, Any]) -> tuple[Catalog[Any], Any]:
        if options.pop("run_in_thread", True) is False and not inspect.iscoroutinefunction(given.fn):
            options["thread"] = False
        if others := options.keys() - TOOL_OPTIONS:
            raise TypeError(f"@tool got unexpected keyword arguments: {', '.join(sorted(others))}")
        returns = inspect.signature(given.fn).return_annotation
        if ("output_schema" in given.options and not given.options["output_schema"]) or returns in (list, tuple):
            options["output"] = "text"
        if task := options.pop("task", self._tasks):
            options["task"] = task
        shown = {"output": "both", "title": given.name.replace("_", " ").replace("-", " ").title()}
        lenient: Any = {"injectable": dovetail.Context, "lenient": self.engine.options.lenient_arguments}
        tool = compile_tool(asking_function(given.fn), {**shown, **options}, **lenient)  # type: ignore[typeddict-item]
        return self.engine.tools, peer_tool(tool)

    def _compile_prompt(self, given: Component, options: dict[str, Any]) -> tuple[Catalog[Any], Any]:
        compiled = registry.prompts.compile_prompt(asking_function(given.fn), options, injectable=dovetail.Context)  # type: ignore[arg-type]
        return self.engine.prompts, compiled

    def _compile_resource(self, given: Resource, options: dict[str, Any]) -> tuple[Catalog[Any], Any]:
        if isinstance(hints := options.get("annotations"), Mapping):  # also hints of tools, which mean nothing here
            kept = hints.keys() & {"audience", "priority", "lastModified"}
            options["annotations"] = {key: hints[key] for key in kept}
        shown = {"mime_type": UI_TYPE if given.uri.startswith("ui://") else "text/plain"}
        options = {**shown, "description": given.description, **options}
        function = resource_function(given.fn)
        item = registry.resources.compile_resource(given.uri, function, options, injectable=dovetail.Context)  # type: ignore[arg-type]
        resources = self.engine.resources
        return resources.templates if isinstance(item, registry.resources.Template) else resources.direct, item

    @property
    def trusts_caller(self) -> bool:
        """On stdio the caller is the user of this machine; also where this server is mounted."""
        root: FastMCP = getattr(self.engine.root.context_class, "fastmcp", self)
        return root._is_on_stdio

    async def may_use(self, checks: Any, given: Any, principal: Any) -> bool:
        """Whether the checks let a caller use a component."""
        if principal is None and self.trusts_caller:
            return True
        token = None if principal is None else AccessToken.from_principal(principal)
        auth = compat.fastmcp_auth
        return await auth.run_auth_checks(checks, auth.AuthContext(token, given))

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
                    self._add_item(catalog, new, "add_transform")

    def add_transform(self, transform: Any) -> None:
        if isinstance(transform, Visibility):
            self._set_visibility(choice(transform.enabled, transform.chosen))
        elif self.engine.mounts is not None:
            raise no_equal("add_transform beside mounted servers", PAGE, "mount(…, transforms=) changes their tools")
        else:
            self.change_items(transform.apply)

    def disable(self, **chosen: Any) -> None:
        self._set_visibility(choice(False, chosen))

    def enable(self, *, only: bool = False, **chosen: Any) -> None:
        self._set_visibility(choice(True, chosen, only))

    def _set_visibility(self, rules: Sequence[VisibilityRule]) -> None:
        for catalog in self._catalogs:
            catalog.set_visibility(tuple(rules))

    def completion(self, handler: Any = None) -> Any:  # type: ignore[override]
        """Register the function that completes all arguments; it gets models of mcp_types."""
        if handler is None:
            return self.completion

        async def complete(ref: Any, argument: Any, context: Any) -> Any:
            import mcp_types

            kind = mcp_types.PromptReference if ref.type == "ref/prompt" else mcp_types.ResourceTemplateReference
            found = handler(kind.model_validate(msgspec.to_builtins(ref)), argument, context)
            return (await found if inspect.isawaitable(found) else found) or []

        super().completion(complete)
        return handler

    def add_middleware(self, middleware: Any) -> None:
        middleware.attach(self)

    def add_extension(self, extension: Any) -> None:
        if extension is not None:  # TasksExtension()
            super().add_extension(extension)

    # ── other servers ──

    def mount(  # type: ignore[override]
        self, server: Any, namespace: str | None = None, tool_names: Mapping[str, str] | None = None, *,
        prefix: str | None = None, transforms: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        renames = {own: registry.transforms.ToolTransform(name=name) for own, name in (tool_names or {}).items()}
        super().mount(server, namespace or prefix or None, transforms={**renames, **(transforms or {})})
        for path, route in getattr(server, "_routes", {}).items():
            self._routes.setdefault(path, route)

    def add_provider(self, provider: Any, *, namespace: str = "") -> None:
        if not isinstance(provider, Server):
            raise no_equal(f"the provider {type(provider).__name__}", PAGE, "mount a server, a Proxy or an OpenApi")
        self.mount(provider, namespace or None)

    @classmethod
    def from_openapi(
        cls, openapi_spec: Mapping[str, Any], client: Any = None, name: str = "OpenAPI Server", **settings: Any
    ) -> "FastMCP":
        """The operations as tools; of the client its base URL, and a bearer token among its headers."""
        options: dict[str, Any] = {}
        if client is not None:
            token = client.headers.get("authorization", "").removeprefix("Bearer ")
            options = {"base_url": str(client.base_url) or None, "auth": token or None}
        return cls._of_api(partial(dovetail.OpenApi, openapi_spec, **options), name, settings)

    @classmethod
    def from_fastapi(cls, app: Any, name: str | None = None, **settings: Any) -> "FastMCP":
        return cls._of_api(partial(dovetail.OpenApi.from_app, app), name or app.title, settings)

    @classmethod
    def _of_api(cls, make: Callable[..., Server], name: str, settings: dict[str, Any]) -> "FastMCP":
        if refused := sorted(settings.keys() & API_REFUSED):
            raise no_equal(f"{', '.join(refused)}= of an API", PAGE, "OpenApi(…, only=, names=) chooses")
        options = {"names": names} if (names := settings.pop("mcp_names", None)) else {}
        server = cls(name, **settings)
        server.mount(make(**options))
        return server

    # ── serving ──

    def run(self, transport: Any = None, show_banner: bool | None = None, **options: Any) -> None:
        del show_banner
        super().run(transport or "stdio", **self._run_options(transport, options))

    async def run_async(self, transport: Any = None, show_banner: bool | None = None, **options: Any) -> None:
        del show_banner
        await super().run_async(transport or "stdio", **self._run_options(transport, options))

    def _run_options(self, transport: str | None, options: dict[str, Any]) -> Any:
        if (level := options.pop("log_level", None)) is not None:
            logging.getLogger().setLevel(str(level).upper())
        if transport in (None, "stdio"):
            self._is_on_stdio = True
            return {key: value for key, value in options.items() if key == "state"}
        if options.pop("middleware", None):
            raise no_equal("run(middleware=)", PAGE, "serve http_app(middleware=…) with a server of its own")
        return self._http(options)

    def _http(self, given: dict[str, Any]) -> Any:
        """The peer's keywords as Dovetail's; JSON or a stream is the client's choice, and events are always stored."""
        renamed = {"stateless_http": "stateless", "session_idle_timeout": "session_timeout"}
        without_effect = ("json_response", "event_store", "retry_interval", "uvicorn_config", "host_origin_protection")
        if given.get("host_origin_protection") is False:
            reason = "allowed_hosts= and allowed_origins= name who may call"
            raise no_equal("host_origin_protection=False", PAGE, reason)
        known = {key: value for key, value in given.items() if value is not None and key not in without_effect}
        return {renamed.get(key, key): value for key, value in known.items()}

    def http_options(self, given: Any, *, running: bool = False) -> Any:
        """Dovetail's; from here on the path of the endpoint is known, and so what auth= means."""
        options = super().http_options(given, running=running)
        if self.auth is not None and self.engine.options.auth is None:
            self.engine.options = replace(self.engine.options, auth=self.auth.auth(options.path.rstrip("/")))
        return options

    def http_app(self, path: str | None = None, middleware: Any = None, transport: str = "http", **options: Any) -> Any:
        """The ASGI app, inside of Starlette's middleware."""
        del transport
        app: Any = self.asgi(**self._http({"path": path, **options}))
        lifespan = app.lifespan
        for each in reversed(middleware or ()):
            app = each.cls(app, *each.args, **each.kwargs)
            app.lifespan = lifespan  # for hosts
        return app

    # ── what it offers ──

    async def list_tools(self) -> list[Shown]:
        return [Shown(each.definition) for each in self.engine.tools.snapshot.items]

    async def get_tool(self, name: str) -> Shown | None:
        return None if (found := self.engine.tools.find(name)) is None else Shown(found.definition)

    async def component_of(self, method: str, named: str, ctx: Any) -> Shown:
        """What a request is for, as the caller's session sees it, also if it is at a server elsewhere."""
        engine, context = request_of(ctx)
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


def TasksExtension(*_: Any, **__: Any) -> None:
    """Nothing: tasks and stored events are parts of Dovetail."""


EventStore = TasksExtension


def TaskConfig(mode: str = "optional", poll_interval: Any = None) -> Any:
    seconds = getattr(poll_interval, "total_seconds", lambda: poll_interval)()
    options: dict[str, Any] = given_options(mode=mode, poll_interval=seconds)
    return mode != "forbidden" and dovetail.TaskConfig(**options)


def AppConfig(**fields: Any) -> dict[str, Any]:
    """Settings of a view, in the words of the protocol."""
    words = {name: name.split("_") for name, value in fields.items() if value is not None}
    return {first + "".join(map(str.title, rest)): fields[name] for name, (first, *rest) in words.items()}


ResourceCSP = ResourcePermissions = AppConfig


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


lifespan = ContextManagerLifespan = combine_lifespans = Lifespan


settings = SimpleNamespace(log_level="INFO", host="127.0.0.1", port=8000, mask_error_details=True)

# ── names ──

WORDS = """
aggregate anthropic app approval apps auth auth0 authorization aws azure base bearer bm25 bulk_tool_caller caching
catalog choice claude_provider clerk client client_credentials code_mode completions component_manager components
context contrib debug decorators dependencies dereference descope directory_provider discord elicitation
error_handling event_store example exceptions experimental extension extensions fastmcp_provider file_upload
filesystem form function_parsing function_prompt function_resource function_tool generative github google google_genai
group handlers http huggingface identity_assertion in_memory inspect introspection json_schema jwt jwt_issuer keycloak
lifespan local_provider logging low_level mcp_config mcp_mixin mcp_server_config memory messages middleware mime
mixins models namespace oauth oauth_proxy oci oidc_proxy openai openapi ping progress prompt prompts prompts_as_tools
propelauth provider providers proxy rate_limiting redirect_validation regex resource resources resources_as_tools
response_limiting roots sampling scalekit search security server sessions skill_provider skills sse ssrf
stdio supabase tasks telemetry template tests timeout timing token_cache tool tool_injection tool_transform tools
transforms transports types utilities v1 vendor_providers version_filter versions visibility workos
"""
MODULES = frozenset(WORDS.split())
FastMCPError = ResourceError = PromptError = ValidationError = dovetail.ToolError
AuthorizationError = InsufficientScopeError = dovetail.ToolError
NotFoundError = dovetail.NotFound
MISSING = """
DebugTokenVerifier IntrospectionTokenVerifier AzureJWTVerifier: see Introspection and Jwt
TextResource BinaryResource FileResource DirectoryResource HttpResource: see add_file, or write a function
ResourceSecurity: see unsafe= of a resource
NpxStdioTransport UvxStdioTransport: write the command as a list
require_roles: write a check of the claims
RetryMiddleware ToolInjectionMiddleware DetailedTimingMiddleware: write a Middleware
Progress: see ctx.report_progress
FastMCPApp Approval Choice FileUpload FormInput GenerativeUI: views are HTML, see add_ui
CodeMode GetSchemas GetTags Search MontySandboxProvider BM25SearchTransform RegexSearchTransform: see tool_search=
PromptsAsTools ResourcesAsTools: clients have methods for these
VersionFilter VersionSpec: a component has one version
ServerExtension SkillsExtension: see Extension
SessionId SessionProvider UserSession get_session: see ctx.state, and Handle for callers who are unknown
Provider LocalProvider FastMCPProvider FileSystemProvider ProxyProvider ProxyClient: mount a server or a Proxy
CallArgument: a dependency takes other dependencies, and the Context
CurrentDocket CurrentWorker: tasks run in the server's own workers
OAuthProvider InMemoryOAuthProvider: see AuthServer
EntraOBOToken: `await ctx.upstream_token()` is the user's token
SkillsDirectoryProvider SkillProvider ClaudeSkillsProvider: see add_skills
forward forward_raw: write a tool that calls the function
"""
_PARTS = ("fastmcp_components", "fastmcp_context", "shared", "fastmcp_auth")


def __getattr__(name: str) -> Any:
    for names in (vars(getattr(compat, part)) for part in _PARTS):
        if name in names:
            return names[name]
    if name in ("CallToolResult", "ElicitResult", "File", "ToolError"):
        return getattr(dovetail, name)
    if name.startswith("__"):
        raise AttributeError(name)
    lines = (line.partition(": ") for line in MISSING.splitlines())
    instead = next((fix for names, _, fix in lines if name in names.split()), "")
    raise no_equal(f"fastmcp's {name}", PAGE, instead)
