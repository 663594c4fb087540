"""`Server`, the facade: decorators, options, `run()`. It composes and holds no logic of its own."""

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

import msgspec

import dovetail
from dovetail import engine as lazy_engine
from dovetail import extensions, registry, transports
from dovetail.engine.context import Context, warn_deprecated
from dovetail.engine.engine import Engine
from dovetail.engine.options import Options, ServerOptions
from dovetail.engine.subscriptions import Change
from dovetail.errors import SetupError
from dovetail.protocol.types import UNNAMED, Icon, Implementation
from dovetail.registry.catalog import Catalog
from dovetail.registry.functions import outermost, qualified_name
from dovetail.registry.registration import checked_options, convert_option
from dovetail.registry.tools import Tool, ToolOptions, compile_tool

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.extensions.apps import UiOptions
    from dovetail.extensions.extension import Extension
    from dovetail.extensions.skills import Skills
    from dovetail.registry.prompts import PromptOptions
    from dovetail.registry.registration import Authorize
    from dovetail.registry.resources import ResourceOptions
    from dovetail.registry.visibility import Names
    from dovetail.toolregistry import ToolRegistry
    from dovetail.transports.http.app import HttpApp
    from dovetail.transports.http.asgi import App
    from dovetail.transports.http.options import AsgiOptions, HttpOptions, RunOptions

TransportName = Literal["stdio", "http", "streamable-http", "sse"]
HTTP_NAMES = ("http", "streamable-http", "sse")  # what other frameworks call it; one endpoint serves them all
F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M")
_first_mount = threading.Lock()  # servers may be mounted from any thread


class Server:
    """A server of tools, resources and prompts.

    server = Server("weather", version="1.0.0")

    @server.tool
    def forecast(city: str) -> str: ...

    server.run()
    """

    def __init__(
        self, name: str | None = None, *, tools: "ToolRegistry | None" = None, **options: Unpack[ServerOptions]
    ) -> None:
        settings = Options.from_keywords(options)
        self.engine = Engine(_implementation(UNNAMED if name is None else name, settings), settings, _catalog(tools))
        self.engine.load_tasks = lambda: extensions.tasks.add_tasks(self.engine)
        self.engine.look_for_tasks()  # a registry may have some
        self._routes: dict[str, tuple[Callable[..., Any], Sequence[str]]] = {}
        self._skills: Skills | None = None  # from the first folder on

    @property
    def name(self) -> str:
        return self.engine.info.name

    @property
    def dependency_overrides(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        """Functions to be called in place of dependencies, for tests: `overrides[open_session] = fake_session`."""
        return self.engine.dependency_overrides

    def __repr__(self) -> str:
        return f"Server({self.name!r}, {len(self.engine.tools)} tools)"

    # ── tools ──

    @overload
    def tool(self, function: F, /, **options: Unpack[ToolOptions]) -> F: ...
    @overload
    def tool(self, name: str | None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Register a function as a tool; bare, or with its name and options. The function stays as it is."""
        return _decorate("tool", self.add_tool, function, options)

    def add_tool(self, function: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        """Register a function as a tool, at any time; clients that subscribed to changes are notified."""
        settings = self.engine.options
        if options.keys() & {"ui", "visibility"}:
            options = extensions.apps.tool_options(self.engine, function, options)
        tool = compile_tool(
            function, options, injectable=Context, output=settings.output, lenient=settings.lenient_arguments
        )
        for feature in {name.partition(".")[0] for name in tool.requires} & {"sampling", "roots"}:
            warn_deprecated(feature)
        self.engine.tools.add(tool.name, tool, where=qualified_name(function))

    def remove_tool(self, name: str) -> bool:
        """Remove a tool; True if there was such a tool."""
        return self.engine.tools.remove(name)

    # ── resources ──

    def resource(self, uri: str, **options: "Unpack[ResourceOptions]") -> Callable[[F], F]:
        """Register a function as a resource, or as a template if the URI has `{variables}`."""
        if not isinstance(uri, str):
            raise SetupError('@server.resource needs the URI: write @server.resource("scheme://path")')
        register: Callable[[F], F] = _decorate("resource", partial(self.add_resource, uri), None, options)
        return register

    def add_resource(self, uri: str, function: Callable[..., Any], **options: "Unpack[ResourceOptions]") -> None:
        compiled = registry.resources.compile_resource(uri, function, options, injectable=Context)
        self.engine.resources.add(compiled, where=qualified_name(function))

    def add_file(self, path: "str | Path", *, uri: str | None = None, **options: "Unpack[ResourceOptions]") -> None:
        """Offer one file; subscribers are notified when it changes."""
        file = registry.files.ServedFile(path, uri=uri, mime_type=options.get("mime_type"))
        self.engine.resources.add(registry.resources.compile_file(file, options))

    def add_directory(
        self,
        path: "str | Path",
        *,
        uri: str | None = None,
        include: tuple[str, ...] = ("**/*",),
        exclude: tuple[str, ...] = (),
        hidden: bool = False,
        **options: "Unpack[ResourceOptions]",
    ) -> None:
        """Offer the files below a folder: listed, readable, watched. No path leads out of the folder."""
        directory = registry.files.Directory(path, uri=uri, include=include, exclude=exclude, hidden=hidden)
        self.engine.resources.add_folder(registry.resources.compile_directory(directory, options))

    def add_skills(
        self,
        path: "str | Path",
        *,
        exclude: Sequence[str] = (),
        hidden: bool = False,
        watch: bool = True,
        scopes: Sequence[str] | None = None,
        authorize: "Authorize | None" = None,
    ) -> None:
        """Offer every folder below that has a SKILL.md as a skill; their files are read again when they change."""
        skills = self._skills = self._skills or extensions.skills.Skills(self.engine)
        skills.add(path, exclude=exclude, hidden=hidden, watch=watch, scopes=scopes, authorize=authorize)

    def add_ui(self, uri: str, html: "str | Path", **options: "Unpack[UiOptions]") -> None:
        """Offer a view of tools: an HTML document, or its file, that hosts show beside what the tools return."""
        extensions.apps.add_view(self.engine, uri, html, options)

    def remove_resource(self, uri: str) -> bool:
        """Remove a resource or template; True if there was one."""
        return self.engine.resources.remove(uri)

    # ── prompts and completions ──

    @overload
    def prompt(self, function: F, /, **options: "Unpack[PromptOptions]") -> F: ...
    @overload
    def prompt(self, name: str | None = None, /, **options: "Unpack[PromptOptions]") -> Callable[[F], F]: ...
    def prompt(self, function: Any = None, /, **options: Any) -> Any:
        """Register a function as a prompt; bare, or with its name and options."""
        return _decorate("prompt", self.add_prompt, function, options)

    def add_prompt(self, function: Callable[..., Any], **options: "Unpack[PromptOptions]") -> None:
        prompt = registry.prompts.compile_prompt(function, options, injectable=Context)
        self.engine.prompts.add(prompt.name, prompt, where=qualified_name(function))

    def remove_prompt(self, name: str) -> bool:
        return self.engine.prompts.remove(name)

    @overload
    def completion(self, function: F, /) -> F: ...
    @overload
    def completion(
        self, function: None = None, /, *, argument: str = "",
        prompt: str | None = None, resource: str | None = None, tool: str | None = None,
    ) -> Callable[[F], F]: ...  # fmt: skip
    def completion(
        self, function: Any = None, /, *, argument: str = "",
        prompt: str | None = None, resource: str | None = None, tool: str | None = None,
    ) -> Any:  # fmt: skip
        """Register a function that suggests values for one argument of a prompt, a template or a tool.

        Bare, `async def complete(ref, argument, context)` does so for all arguments without one of their own.
        """
        references = {"ref/prompt": prompt, "ref/resource": resource, "ref/tool": tool}
        given = [(kind, name) for kind, name in references.items() if name is not None]
        if bool(argument) != bool(given) or len(given) > 1:
            fix = "nothing at all, or argument= and exactly one of prompt=, resource= and tool="
            raise SetupError(f"@server.completion takes {fix}")

        def add(function: Callable[..., Any]) -> None:
            kind, name = given[0] if given else ("", "")
            subject = f"{name}, {argument}" if given else None
            completer = registry.prompts.compile_completer(function, subject, injectable=Context)
            self.engine.add_completer(completer, kind, name, argument)

        return _decorate("completion", add, function, {})

    # ── enabling and disabling ──

    def disable(self, *, tags: "Names" = (), names: "Names" = ()) -> None:
        """Hide what has one of the tags and one of the names, now and later, as if it were not registered.

        Names are those of tools and prompts, URIs, and patterns such as `admin_*`. The last call that fits counts.
        """
        self.engine.set_visibility("server.disable", enabled=False, tags=tags, names=names)

    def enable(self, *, tags: "Names" = (), names: "Names" = (), only: bool = False) -> None:
        """Show what `disable` has hidden; `only` hides all else."""
        self.engine.set_visibility("server.enable", enabled=True, tags=tags, names=names, only=only)

    # ── mounts ──

    def mount(
        self, child: "Server | ToolRegistry", namespace: str | None = None, *,
        only: "Names" = (), tags: "Names" = (),
        transforms: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Offer all that another server has, now and later; its tool `add` is `calendar_add` in a namespace `calendar`.

        `only` and `tags` choose as the names and tags of `enable` do, by those of the child.
        """
        engine = child.engine if isinstance(child, Server) else None
        if engine is None and not isinstance(child, dovetail.ToolRegistry):
            raise SetupError(f"server.mount({child!r}) is not possible; give it a Server or a ToolRegistry")
        tools = child.engine.tools if isinstance(child, Server) else child.catalog
        with _first_mount:
            mounts = self.engine.mounts = self.engine.mounts or lazy_engine.mounts.Mounts(self.engine)
        mounts.mount(child, engine, tools, namespace, only=only, tags=tags, transforms=transforms)

    def unmount(self, child: "Server | ToolRegistry | str") -> bool:
        """Unmount a server or registry, or what has this namespace; True if there was one. Its running calls go on."""
        return self.engine.mounts is not None and self.engine.mounts.unmount(child)

    # ── everything else ──

    def middleware(self, middleware: M) -> M:
        """Register `async def m(request, call_next)`, or a class or object with hooks such as `on_call_tool`."""
        self.add_middleware(middleware)
        return middleware

    def add_middleware(self, middleware: Any) -> None:
        """Register a function around every request, or an object with hooks; the first one is outermost."""
        if inspect.iscoroutinefunction(outermost(middleware)):
            self.engine.use(middleware)
        else:
            lazy_engine.hooks.add_hooks(self.engine, middleware)

    def notify_resource_updated(self, uri: str) -> None:
        """Notify every client that subscribed; may be called from any thread, also outside of a call."""
        self.engine.publish(Change("updated", uri))

    def on_refresh(self, function: F) -> F:
        """Register a function, plain or async, that changes the catalogs; `refresh` runs it in every worker."""
        if not callable(function):
            raise SetupError(f"server.on_refresh: {function!r} is not callable; give it a function")
        self.engine.on_refresh(function)
        return function

    async def refresh(self) -> None:
        """Run the functions of `on_refresh` in every worker that shares the state; then notify clients, once."""
        if (refresher := self.engine.root.refresher) is not None:
            await refresher.refresh()

    async def complete_elicitation(self, elicitation_id: str) -> bool:
        """Notify the client that the user is done at the URL of a `ctx.elicit_url`. False if there is no such client.

        Only 2025-11-25 has such a notification.
        """
        return await self.engine.elicitations.complete(elicitation_id)

    # ── serving ──

    def asgi(self, **options: "Unpack[AsgiOptions]") -> "HttpApp":
        """The server as an ASGI app: mount it anywhere, no lifespan wiring needed."""
        return transports.http.app.HttpApp(self.engine, self.http_options(options), owner=self)

    def well_known(self, **options: "Unpack[AsgiOptions]") -> "App":
        """The app to mount at `/.well-known` of the origin, if the server has `auth=` and is mounted below a path.

        Some clients look for the metadata there without a challenge that names its URL. It needs a `public_url`, or
        the whole `path=` of the endpoint.
        """
        return self.asgi(**options).well_known(has_path="path" in options)

    def run(self, transport: TransportName = "stdio", **options: "Unpack[RunOptions]") -> None:
        """Serve until stdin closes or a signal arrives. Over HTTP one endpoint serves old and new clients."""
        if transport in HTTP_NAMES:
            transports.serve.serve_http(self.engine, self.http_options(options, running=True), owner=self)
        else:
            transports.stdio.serve_stdio(self.engine, owner=self, state=_stdio_state(transport, options))

    async def run_async(self, transport: TransportName = "stdio", **options: "Unpack[RunOptions]") -> None:
        """Do what `run` does on the running event loop, until its task is cancelled; without `workers=`."""
        if transport in HTTP_NAMES:
            await transports.serve.serve_http_async(self.engine, self.http_options(options, running=True), owner=self)
        else:
            await transports.stdio.serve_stdio_async(self.engine, owner=self, state=_stdio_state(transport, options))

    def add_extension(self, extension: "Extension") -> None:
        """Declare an extension of the protocol, with methods and notifications of your own."""
        extensions.extension.add_extension(self.engine, extension)

    def custom_route(self, path: str, methods: Sequence[str] = ("GET",)) -> Callable[[F], F]:
        """Register an HTTP route of your own beside the MCP endpoint."""

        def register(function: F) -> F:
            transports.http.routes.check_route(function, methods)
            if path in self._routes:
                raise SetupError(f"@server.custom_route: there is already a route at {path}")
            self._routes[path] = (function, methods)
            return function

        return register

    def http_options(self, given: "AsgiOptions", *, running: bool = False) -> "HttpOptions":
        """Checked options, with the routes of `custom_route`; `running` if they are those of `run`."""
        options = transports.http.options.HttpOptions.from_keywords(given, running=running)
        route_app = partial(
            transports.http.routes.route_app,
            max_body_bytes=options.max_body_bytes,
            run_in_thread=self.engine.threads.run,
            body_timeout=options.body_timeout,
        )
        routes = {path: route_app(function, methods) for path, (function, methods) in self._routes.items()}
        return msgspec.structs.replace(options, routes={**routes, **options.routes})


def _decorate(name: str, add: Callable[..., None], function: Any, options: Any) -> Any:
    """Support all uses of a decorator: `@server.tool` registers; `tool(…)` and `tool("name", …)` give a decorator."""
    if isinstance(function, str):
        if "name" in options:
            raise SetupError(f"@server.{name}({function!r}, name={options['name']!r}): keep one of the two names")
        function, options = None, {**options, "name": function}

    def register(function: F) -> F:
        add(function, **options)
        return function

    if function is None:
        return register
    if not callable(function):
        raise SetupError(f"@server.{name}: write @server.{name} or @server.{name}(name=…), not {function!r}")
    return register(function)


def _stdio_state(transport: str, options: "RunOptions") -> Any:
    """The store of a server on stdio, which has no other option. Raises SetupError."""
    if transport != "stdio":
        raise SetupError(f'Server.run: transport={transport!r} is unknown; use "stdio" or "http"')
    if others := sorted(options.keys() - {"state"}):
        checked_options(options, [*transports.http.options.RunOptions.__annotations__, "transport"], "Server.run")
        raise SetupError(f'Server.run: only for transport="http": {", ".join(others)}')
    return options.get("state")


def _catalog(tools: Any) -> Catalog[Tool]:
    if tools is None:
        return Catalog("tool")
    if not isinstance(tools, dovetail.ToolRegistry):
        raise SetupError(f"Server: tools={tools!r} is not possible; give a ToolRegistry, or use @server.tool")
    return tools.catalog


def _implementation(name: Any, options: Options) -> Implementation:
    if not isinstance(name, str) or not name:
        raise SetupError(
            f'Server({name!r}): a name is a string of one character or more; write Server("weather"), or Server()'
        )
    return Implementation(
        name=name,
        version=options.version,
        title=options.title,
        description=options.description,
        website_url=options.website_url,
        icons=convert_option(options.icons, list[Icon], "Server", "icons"),
    )
