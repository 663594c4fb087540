"""FastMCP's names: its server on Dovetail's, and all that its modules offer."""

import contextlib
import inspect
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

import dovetail
from dovetail import registry
from dovetail.compat import no_equal
from dovetail.compat.fastmcp_auth import PAGE, AccessToken, AuthContext, TokenVerifier, run_auth_checks
from dovetail.compat.fastmcp_components import (
    Component,
    Namespace,
    Prompt,
    Resource,
    ResourceSecurity,
    Tool,
    ToolTransform,
    Transform,
    Visibility,
    component,
    functions_below,
    native_transform,
    peer_result,
    resource_function,
)
from dovetail.compat.fastmcp_context import Client, Context, fitting
from dovetail.protocol.session import EVERYTHING, VisibilityRule
from dovetail.protocol.uri_template import UriTemplate
from dovetail.registry.catalog import Catalog
from dovetail.registry.functions import qualified_name
from dovetail.registry.tools import compile_tool
from dovetail.registry.visibility import texts
from dovetail.server import Server

__path__: list[str] = []
log = logging.getLogger("dovetail.compat")
UI_TYPE = "text/html;profile=mcp-app"
NO_STORE = "values are in the state of the server: run(state=…)"


class FastMCP(Server):
    """FastMCP's server, with its defaults."""

    def __init__(
        self, name: str | None = None, instructions: str | None = None, *,
        version: Any = None, website_url: str | None = None, icons: Any = None, auth: Any = None,
        middleware: Sequence[Any] | None = None, providers: Sequence[Any] | None = None,
        transforms: Sequence[Transform] | None = None, lifespan: Any = None, tools: Sequence[Any] | None = None,
        on_duplicate: str | None = None, mask_error_details: bool | None = None, dereference_schemas: bool = True,
        strict_input_validation: bool | None = None, list_page_size: int | None = None,
        resource_security: Any = NotImplemented, request_state_security: Any = None, cache_ttl: float | None = None,
        cache_scope: Any = None, tasks: bool | None = None, session_state_store: Any = None,
        client_log_level: Any = None, experimental_capabilities: Any = None,
    ) -> None:  # fmt: skip
        del dereference_schemas
        if session_state_store is not None and type(session_state_store).__name__ != "MemoryStore":
            raise no_equal("FastMCP(session_state_store=)", PAGE, NO_STORE)
        if request_state_security is not None:
            raise no_equal("FastMCP(request_state_security=)", PAGE, "DOVETAIL_SECRET seals the state of all workers")
        if resource_security is not NotImplemented:
            reason = "name the variables that are not screened: @mcp.resource(…, security=ResourceSecurity(exempt_params=…))"
            raise no_equal("FastMCP(resource_security=)", PAGE, reason)
        given = {
            "instructions": instructions, "version": None if version is None else str(version), "icons": icons,
            "website_url": website_url, "lifespan": lifespan, "mask_error_details": mask_error_details,
            "page_size": list_page_size, "ttl_ms": None if cache_ttl is None else int(cache_ttl * 1000),
            "cache_scope": cache_scope, "log_level": client_log_level, "experimental": experimental_capabilities,
            "lenient_arguments": None if strict_input_validation is None else not strict_input_validation,
        }  # fmt: skip
        options: Any = {key: value for key, value in given.items() if value is not None}
        declared = ("tools", "resources", "prompts")
        super().__init__(name or f"FastMCP-{secrets.token_hex(2)}", output="both", declare=declared, **options)
        self.engine.context_class = type("Context", (Context,), {"fastmcp": self})
        self.on_duplicate, self._tasks = on_duplicate or "warn", bool(tasks)
        self.auth = auth
        if auth is not None:
            auth.server = self
        self._changes: list[Callable[[Any], Any]] = []  # of transforms and stock middleware
        self.trusts_caller = False  # on stdio, where the caller is the user of this machine
        for add, listed in (
            (self.add_transform, transforms), (self.add_middleware, middleware), (self.add_provider, providers),
            (self.add_tool, tools),
        ):  # fmt: skip
            for each in listed or ():
                add(each)

    @property
    def local_provider(self) -> "FastMCP":
        return self

    @property
    def instructions(self) -> str | None:
        return self.engine.options.instructions

    @property
    def version(self) -> str:
        return self.engine.info.version

    # ── registration ──

    def tool(self, given: Any = None, **options: Any) -> Any:
        """A decorator, bare or with options; or with the function as its first argument."""
        return self._register(Tool, given, options)

    def prompt(self, given: Any = None, **options: Any) -> Any:
        return self._register(Prompt, given, options)

    def resource(self, uri: str, **options: Any) -> Any:  # type: ignore[override]
        if not isinstance(uri, str):
            raise TypeError("@resource needs the URI: use @resource('scheme://path')")
        return self._register(Resource, None, {**options, "uri": uri})

    def _register(self, kind: type[Component], given: Any, options: dict[str, Any]) -> Any:
        def register(function: Any) -> Any:
            self._add(kind.from_function(function, **options))
            return function

        if isinstance(given, str):
            options = {**options, "name": given}
        return register(given) if callable(given) else register

    def add_tool(self, tool: Any, **options: Any) -> Any:  # type: ignore[override]
        return self._add(Tool(tool, **options) if options else component(tool, Tool))

    def add_prompt(self, prompt: Any) -> Any:  # type: ignore[override]
        return self._add(component(prompt, Prompt))

    def add_resource(self, resource: Any) -> Any:  # type: ignore[override]
        return self._add(component(resource, Resource))

    add_template = add_resource

    def _add(self, given: Component) -> Component:
        options = {key: value for key, value in given.options.items() if value is not None}
        checks, version, app = (options.pop(name, None) for name in ("auth", "version", "app"))
        options.pop("enabled", None)
        if checks:
            options["authorize"] = self._authorize(given, checks)
        extra = {"ui": app_meta(app)} if app else {}
        extra |= {} if version is None else {"fastmcp": {"version": str(version)}}
        if extra:
            options["meta"] = {**(options.get("meta") or {}), **extra}
        catalog, item = getattr(self, f"_compile_{given.kind}")(given, options)
        key = self._key(item)
        known = catalog.find(key, EVERYTHING)
        if known is None:
            pass
        elif version is not None and (known.definition.meta or {}).get("fastmcp") != extra["fastmcp"]:
            raise no_equal(f"version={version!r} beside another one of {key!r}", PAGE, "a component has one version")
        elif self.on_duplicate == "error":
            raise ValueError(f"{catalog.noun.capitalize()} already exists: {key}")
        elif self.on_duplicate == "ignore":
            return given
        else:
            if self.on_duplicate == "warn":
                log.warning("%s %s already exists; the new one replaces it", catalog.noun, key)
            catalog.remove(key)
        where = qualified_name(given.fn)
        for change in self._changes:
            item = change(item)
        if given.kind == "resource":
            self.engine.resources.add(item, where=where)
        else:
            catalog.add(item.name, item, where=where)
        return given

    def _compile_tool(self, given: Component, options: dict[str, Any]) -> tuple[Catalog[Any], Any]:
        if options.pop("run_in_thread", True) is False and not inspect.iscoroutinefunction(given.fn):
            options["thread"] = False
        if "output_schema" in given.options and given.options["output_schema"] is None:
            options["output"] = "text"
        if inspect.signature(given.fn).return_annotation in (list, tuple, "list", "tuple"):
            options["output"] = "text"  # the peer describes none without the type of its items
        if task := task_config(options.pop("task", self._tasks)):
            options["task"] = task
        options = {"title": given.name.replace("_", " ").replace("-", " ").title(), **options}
        lenient = self.engine.options.lenient_arguments
        tool = compile_tool(given.fn, options, injectable=dovetail.Context, output="both", lenient=lenient)  # type: ignore[arg-type]
        return self.engine.tools, peer_result(tool)

    def _compile_prompt(self, given: Component, options: dict[str, Any]) -> tuple[Catalog[Any], Any]:
        compiled = registry.prompts.compile_prompt(given.fn, options, injectable=dovetail.Context)  # type: ignore[arg-type]
        return self.engine.prompts, compiled

    def _compile_resource(self, given: Any, options: dict[str, Any]) -> tuple[Catalog[Any], Any]:
        uri = given.uri
        security = options.pop("security", None)
        if "security" in given.options:
            variables = UriTemplate(uri).variables if security is None else security.exempt_params
            if security is not None and msgspec.structs.replace(security, exempt_params=frozenset()) != ResourceSecurity():
                raise no_equal("ResourceSecurity(reject_…=False)", PAGE, "name the variables in exempt_params=")
            options["unsafe"] = sorted(variables)
        options = {"mime_type": UI_TYPE if uri.startswith("ui://") else "text/plain", **options}
        function = resource_function(given.fn)
        item = registry.resources.compile_resource(uri, function, options, injectable=dovetail.Context)  # type: ignore[arg-type]
        is_template = isinstance(item, registry.resources.Template)
        return self.engine.resources.templates if is_template else self.engine.resources.direct, item

    def _authorize(self, given: Component, checks: Any) -> Callable[[Any], Any]:
        async def authorize(principal: Any) -> bool:
            if principal is None and self.trusts_caller:
                return True
            return await run_auth_checks(checks, AuthContext(AccessToken.of(principal), given))

        return authorize

    @staticmethod
    def _key(item: Any) -> str:
        return str(item.uri if hasattr(item, "uri") else item.name)

    # ── changes ──

    def change_items(self, change: Callable[[Any], Any]) -> None:
        """Change all that this server has itself, now and later."""
        self._changes.append(change)
        resources = self.engine.resources
        for catalog in (self.engine.tools, self.engine.prompts, resources.direct, resources.templates):
            for item in catalog.registered.items:
                if (changed := change(item)) is item:
                    continue
                if self._key(changed) == self._key(item):
                    catalog.replace(self._key(item), changed)  # type: ignore[arg-type]
                else:
                    catalog.remove(self._key(item))
                    add: Any = resources.add if catalog in (resources.direct, resources.templates) else None
                    add(changed) if add else catalog.add(self._key(changed), changed)  # type: ignore[arg-type]

    def add_transform(self, transform: Transform) -> None:
        if isinstance(transform, Visibility):
            (self.enable if transform.enabled else self.disable)(**transform.chosen)
        elif self.engine.mounts is not None:
            raise no_equal("add_transform beside mounted servers", PAGE, "mount(…, transforms=) changes their tools")
        else:
            self.change_items(partial(transform.apply, where="add_transform"))

    def disable(self, **chosen: Any) -> None:  # type: ignore[override]
        self._choose(False, fitting(chosen))

    def enable(self, *, only: bool = False, **chosen: Any) -> None:  # type: ignore[override]
        self._choose(True, fitting(chosen), only)

    def _choose(self, enabled: bool, chosen: Mapping[str, Any], only: bool = False) -> None:
        """As the peer does, also before anything is registered that has these names and tags."""
        tags, names = (texts(chosen.get(each, ()), f"enable, disable: {each}") for each in ("tags", "names"))
        rules = (VisibilityRule(enabled, tags, names),)
        resources = self.engine.resources
        for catalog in (self.engine.tools, self.engine.prompts, resources.direct, resources.templates):
            catalog.set_visibility((VisibilityRule(False), *rules) if only else rules)

    def add_middleware(self, middleware: Any) -> None:
        middleware.attach(self)

    def add_extension(self, extension: Any) -> None:
        if not isinstance(extension, TasksExtension):
            super().add_extension(extension)

    # ── other servers ──

    def mount(  # type: ignore[override]
        self, server: Any, namespace: str | None = None, tool_names: Mapping[str, str] | None = None, *,
        prefix: str | None = None, **options: Any,
    ) -> None:  # fmt: skip
        renames = {own: registry.transforms.ToolTransform(name=name) for own, name in (tool_names or {}).items()}
        options = {"transforms": renames} | options if renames else options
        super().mount(server, namespace or prefix or None, **options)
        for path, route in getattr(server, "_routes", {}).items():
            self._routes.setdefault(path, route)

    async def import_server(self, server: Any, prefix: str | None = None) -> None:
        self.mount(server, prefix)

    def add_provider(self, provider: Any, *, namespace: str = "") -> None:
        provider.attach(self, namespace or None)

    def attach(self, server: "FastMCP", namespace: str | None) -> None:
        """As a provider of another server."""
        server.mount(self, namespace)

    @classmethod
    def as_proxy(cls, backend: Any, **settings: Any) -> "FastMCP":
        return create_proxy(backend, **settings)

    @classmethod
    def from_openapi(
        cls, openapi_spec: Mapping[str, Any], client: Any = None, name: str = "OpenAPI Server", *,
        mcp_names: Mapping[str, str] | None = None, validate_output: bool = True, **settings: Any,
    ) -> "FastMCP":  # fmt: skip
        """The operations as tools; of the client its base URL and headers."""
        del validate_output
        options: dict[str, Any] = {"names": mcp_names} if mcp_names else {}
        if client is not None:
            options["base_url"] = str(client.base_url) or None
            options["auth"] = client.headers.get("authorization", "").removeprefix("Bearer ") or None
        return cls._of_api(partial(dovetail.OpenApi, openapi_spec, **options), name, settings)

    @classmethod
    def from_fastapi(
        cls, app: Any, name: str | None = None, *, mcp_names: Mapping[str, str] | None = None, **settings: Any
    ) -> "FastMCP":
        options: dict[str, Any] = {"names": mcp_names} if mcp_names else {}
        return cls._of_api(partial(dovetail.OpenApi.from_app, app, **options), name or app.title, settings)

    @classmethod
    def _of_api(cls, make: Callable[[], Server], name: str, settings: dict[str, Any]) -> "FastMCP":
        for each in ("route_maps", "route_map_fn", "mcp_component_fn", "httpx_client_kwargs", "tags"):
            if settings.pop(each, None) is not None:
                raise no_equal(f"{each}= of from_openapi and from_fastapi", PAGE, "OpenApi(only=…, names=…) chooses")
        server = cls(name, **settings)
        server.mount(make())
        return server

    # ── serving ──

    def run(self, transport: Any = None, show_banner: bool | None = None, **options: Any) -> None:
        del show_banner
        name = transport or "stdio"
        super().run(name, **self._bound(name, options))

    async def run_async(self, transport: Any = None, show_banner: bool | None = None, **options: Any) -> None:
        del show_banner
        name = transport or "stdio"
        await super().run_async(name, **self._bound(name, options))

    async def run_stdio_async(self, show_banner: bool | None = None, **options: Any) -> None:
        await self.run_async("stdio", show_banner, **options)

    async def run_http_async(self, show_banner: bool | None = None, transport: Any = "http", **options: Any) -> None:
        await self.run_async(transport, show_banner, **options)

    def _bound(self, transport: str, options: dict[str, Any]) -> Any:
        """Options as Dovetail has them; over HTTP with the server's auth=, on stdio its user is trusted."""
        if (level := options.pop("log_level", None)) is not None:
            logging.getLogger().setLevel(str(level).upper())
        if transport == "stdio":
            self.trusts_caller = True
            return {key: options[key] for key in options.keys() & {"state"}}
        if options.pop("middleware", None):
            raise no_equal("run(middleware=)", PAGE, "serve http_app(middleware=…) by a server of its own")
        return self._http(options)

    def _http(self, given: dict[str, Any]) -> Any:
        renamed = {"stateless_http": "stateless", "session_idle_timeout": "session_timeout"}
        options = {renamed.get(key, key): value for key, value in given.items() if value is not None}
        for key in ("json_response", "event_store", "retry_interval", "uvicorn_config"):
            options.pop(key, None)
        if options.pop("host_origin_protection", True) is False:
            raise no_equal("host_origin_protection=False", PAGE, "allowed_hosts= and allowed_origins= name who may call")
        if self.auth is not None and self.engine.options.auth is None:
            auth = self.auth.auth(options.get("path", "/mcp"))
            self.engine.options = msgspec.structs.replace(self.engine.options, auth=auth)
        return options

    def http_app(self, path: str | None = None, middleware: Any = None, transport: str = "http", **options: Any) -> Any:
        """The ASGI app, in Starlette's middleware."""
        del transport
        app = self.asgi(**self._http({"path": path, **options}))
        return HostedApp(app, middleware or ())

    def sse_app(self, path: str | None = None, **options: Any) -> Any:
        del path
        return self.http_app(**options)

    # ── what there is ──

    async def list_tools(self) -> list[Any]:
        return [each.definition for each in self.engine.tools.snapshot.items]

    async def list_resources(self) -> list[Any]:
        return [each.definition for each in self.engine.resources.direct.snapshot.items]

    async def list_resource_templates(self) -> list[Any]:
        return [each.definition for each in self.engine.resources.templates.snapshot.items]

    async def list_prompts(self) -> list[Any]:
        return [each.definition for each in self.engine.prompts.snapshot.items]

    async def call_tool(self, name: str, arguments: Any = None) -> Any:
        async with Client(self) as client:
            return await client.call_tool(name, arguments)


class HostedApp:
    """An ASGI app and its lifespan, for a host."""

    def __init__(self, app: Any, middleware: Sequence[Any]) -> None:
        self.app = self._outermost = app
        for each in reversed(middleware):
            self._outermost = each.cls(self._outermost, *each.args, **each.kwargs)

    def lifespan(self, app: Any = None) -> Any:
        del app
        return self.app.lifespan()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._outermost(scope, receive, send)


class TasksExtension:
    """Tasks are a part of Dovetail."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class TaskConfig(msgspec.Struct, frozen=True, kw_only=True):
    mode: str = "optional"
    poll_interval: Any = None


def task_config(given: Any) -> Any:
    if not isinstance(given, TaskConfig):
        return given
    if given.mode == "forbidden":
        return False
    interval = given.poll_interval
    seconds = {} if interval is None else {"poll_interval": getattr(interval, "total_seconds", lambda: interval)()}
    return dovetail.TaskConfig(mode=given.mode, **seconds)  # type: ignore[arg-type]


def app_meta(app: Any) -> Any:
    return True if app is True else msgspec.to_builtins(app)


def create_proxy(target: Any, *, mode: str | None = None, name: str | None = None, **settings: Any) -> FastMCP:
    """A server of what another one offers."""
    server = FastMCP(name, **settings)
    version = {"protocol_version": mode} if mode and mode[:2] == "20" else {}
    for part in backends(target):
        own = {} if isinstance(target, Server) else version
        server.mount(part if isinstance(part, Server) else dovetail.Proxy(part, **own))
    return server


class FastMCPProvider:
    """A server among the providers of another one."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self._transforms: list[Transform] = []

    def add_transform(self, transform: Transform) -> None:
        self._transforms.append(transform)

    def attach(self, server: FastMCP, namespace: str | None) -> None:
        changes: dict[str, Any] = {}
        for each in self._transforms:
            if isinstance(each, Namespace):
                namespace = each.prefix
            elif isinstance(each, ToolTransform):
                prefix = f"{namespace}_" if namespace else ""
                changes |= {name.removeprefix(prefix): native_transform(config) for name, config in each.transforms.items()}
            else:
                raise no_equal(f"a provider's {type(each).__name__}", PAGE)
        server.mount(self.server, namespace, transforms=changes)


class FileSystemProvider:
    """The functions of the standalone decorators in a folder."""

    def __init__(self, root: Any = ".", reload: bool = False) -> None:
        del reload
        self.root = Path(root)

    def attach(self, server: FastMCP, namespace: str | None) -> None:
        inner = server if namespace is None else FastMCP()
        for each in functions_below(self.root):
            inner._add(component(each, Tool))
        if namespace is not None:
            server.mount(inner, namespace)


class SkillsDirectoryProvider:
    def __init__(self, roots: Any, reload: bool = False, **others: Any) -> None:
        if others.pop("experimental_skills", None) or others:
            raise no_equal(f"SkillsDirectoryProvider({', '.join(others) or 'experimental_skills'}=)", PAGE)
        self.roots = [Path(each) for each in (roots if isinstance(roots, list | tuple) else [roots])]

    def attach(self, server: FastMCP, namespace: str | None) -> None:
        for root in self.roots:
            if root.is_dir():
                server.add_skills(root)


class Lifespan:
    """An async generator function; two are combined by `|`, and so are the dicts that they yield."""

    def __init__(self, *functions: Any) -> None:
        self._functions = functions

    @contextlib.asynccontextmanager
    async def __call__(self, server: Any) -> Any:
        async with contextlib.AsyncExitStack() as stack:
            merged: dict[str, Any] = {}
            for each in self._functions:
                is_generator = inspect.isasyncgenfunction(each)
                enter = contextlib.asynccontextmanager(each) if is_generator else each
                merged |= await stack.enter_async_context(enter(server)) or {}
            yield merged

    def __or__(self, other: Any) -> "Lifespan":
        more = other._functions if isinstance(other, Lifespan) else (other,)
        return Lifespan(*self._functions, *more)


lifespan = ContextManagerLifespan = Lifespan


def combine_lifespans(*lifespans: Any) -> Lifespan:
    return Lifespan(*lifespans)


def backends(target: Any) -> list[Any]:
    """What a proxy's target names: a server, or all of an `mcp.json`."""
    if isinstance(target, Mapping) and "mcpServers" in target:
        return list(dovetail.Proxy.from_config(target).values())
    return [getattr(target, "command", target)]


# ── all names ──

MODULES = frozenset(
    "apps auth authorization azure auth0 aws base caching client clerk context debug dependencies discord elicitation "
    "error_handling event_store exceptions extensions fastmcp_provider filesystem function_prompt function_tool github "
    "google http huggingface introspection jwt keycloak lifespan local_provider logging low_level middleware "
    "namespace oauth oauth_proxy oidc_proxy openapi ping prompts providers proxy rate_limiting resource resources "
    "response_limiting scalekit security server sessions settings skills supabase tasks telemetry template timing "
    "tool tool_transform tools transforms transports types utilities visibility workos".split()
)
HERE = ("auth", "components", "context", "middleware")
OTHERS = {
    "ToolError": "dovetail", "Image": "dovetail", "Audio": "dovetail", "CallToolResult": "dovetail",
}
MISSING: dict[str, str] = {}


def __getattr__(name: str) -> Any:
    for each in HERE:
        module = import_module(f"dovetail.compat.fastmcp_{each}")
        if name in vars(module):
            return vars(module)[name]
    if name in OTHERS:
        return getattr(import_module(OTHERS[name]), name)
    if name in MISSING:
        raise no_equal(name, PAGE, MISSING[name])
    raise AttributeError(f"module 'dovetail.compat.fastmcp' has no attribute {name!r}")
