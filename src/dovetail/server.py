"""`Server`, the facade: decorators, options, `run()`. It composes and holds no logic of its own."""

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

import msgspec

import dovetail
from dovetail import registry, transports
from dovetail.engine.context import warn_deprecated
from dovetail.engine.dispatch import Middleware
from dovetail.engine.engine import INJECTABLE, Engine
from dovetail.engine.options import Options, ServerOptions
from dovetail.engine.subscriptions import Change
from dovetail.errors import SetupError
from dovetail.protocol.types import Icon, Implementation
from dovetail.registry.catalog import Catalog
from dovetail.registry.functions import called
from dovetail.registry.options import checked_options, convert_option
from dovetail.registry.tools import Tool, ToolOptions, compile_tool
from dovetail.transports import http

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.registry.prompts import PromptOptions
    from dovetail.registry.resources import ResourceOptions
    from dovetail.toolregistry import ToolRegistry
    from dovetail.transports.http.app import HttpApp
    from dovetail.transports.http.asgi import App
    from dovetail.transports.http.options import AsgiOptions, HttpOptions, RunOptions

Transport = Literal["stdio", "http", "streamable-http", "sse"]
HTTP_NAMES = ("http", "streamable-http", "sse")  # the names that others have for it; one server answers them all
F = TypeVar("F", bound=Callable[..., Any])


class Server:
    """A server of tools, resources and prompts.

    server = Server("weather", version="1.0.0")

    @server.tool
    def forecast(city: str) -> str: ...

    server.run()
    """

    def __init__(self, name: str, *, tools: "ToolRegistry | None" = None, **options: Unpack[ServerOptions]) -> None:
        settings = Options.from_keywords(options)
        self.engine = Engine(_implementation(name, settings), settings, _catalog(tools))
        self._pages: dict[str, tuple[Callable[..., Any], Sequence[str]]] = {}

    @property
    def name(self) -> str:
        return self.engine.info.name

    def __repr__(self) -> str:
        return f"Server({self.name!r}, {len(self.engine.tools)} tools)"

    # ── tools ──

    @overload
    def tool(self, function: F, /, **options: Unpack[ToolOptions]) -> F: ...
    @overload
    def tool(self, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, function: Any = None, /, **options: Any) -> Any:  # type: ignore[misc]  # mypy and Unpack
        """Register a function as a tool; bare, or with options. The function stays as it is."""
        if function is not None:
            _refuse_uncalled(function, "tool")
            self.add_tool(function, **options)
            return function

        def register(function: F) -> F:
            self.add_tool(function, **options)
            return function

        return register

    def add_tool(self, function: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        """Register a function as a tool, at any time; every client that asked is told."""
        settings = self.engine.options
        tool = compile_tool(
            function, options, injectable=INJECTABLE, output=settings.output, lenient=settings.lenient_arguments
        )
        for feature in {name.partition(".")[0] for name in tool.requires} & {"sampling", "roots"}:
            warn_deprecated(feature)
        self.engine.tools.add(tool.name, tool, where=called(function))

    def remove_tool(self, name: str) -> bool:
        """Tells whether there was such a tool."""
        return self.engine.tools.remove(name)

    # ── resources ──

    def resource(self, uri: str, **options: "Unpack[ResourceOptions]") -> Callable[[F], F]:
        """Register a function as a resource, or as a template if the URI has `{variables}`."""
        if not isinstance(uri, str):
            raise SetupError('@server.resource needs the URI: write @server.resource("scheme://path")')

        def register(function: F) -> F:
            self.add_resource(uri, function, **options)
            return function

        return register

    def add_resource(self, uri: str, function: Callable[..., Any], **options: "Unpack[ResourceOptions]") -> None:
        compiled = registry.resources.compile_resource(uri, function, options, injectable=INJECTABLE)
        self.engine.resources.add(compiled, where=called(function))

    def add_file(self, path: "str | Path", *, uri: str | None = None, **options: "Unpack[ResourceOptions]") -> None:
        """Offer one file; subscribers hear when it changes."""
        file = registry.files.File(path, uri=uri, mime_type=options.get("mime_type"))
        resource = registry.resources.compile_file(file, options)
        self.engine.resources.add(resource)

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
        """Offer the files below a folder: listed, readable, watched. Nothing outside of it can be reached."""
        directory = registry.files.Directory(path, uri=uri, include=include, exclude=exclude, hidden=hidden)
        self.engine.resources.add_folder(registry.resources.compile_directory(directory, options))

    def remove_resource(self, uri: str) -> bool:
        """Tells whether there was such a resource or template."""
        return self.engine.resources.remove(uri)

    # ── prompts and completions ──

    @overload
    def prompt(self, function: F, /, **options: "Unpack[PromptOptions]") -> F: ...
    @overload
    def prompt(self, **options: "Unpack[PromptOptions]") -> Callable[[F], F]: ...
    def prompt(self, function: Any = None, /, **options: Any) -> Any:  # type: ignore[misc]  # mypy and Unpack
        """Register a function as a prompt; bare, or with options."""
        if function is not None:
            _refuse_uncalled(function, "prompt")
            self.add_prompt(function, **options)
            return function

        def register(function: F) -> F:
            self.add_prompt(function, **options)
            return function

        return register

    def add_prompt(self, function: Callable[..., Any], **options: "Unpack[PromptOptions]") -> None:
        prompt = registry.prompts.compile_prompt(function, options, injectable=INJECTABLE)
        self.engine.prompts.add(prompt.name, prompt, where=called(function))

    def remove_prompt(self, name: str) -> bool:
        return self.engine.prompts.remove(name)

    def completion(
        self, *, argument: str, prompt: str | None = None, resource: str | None = None, tool: str | None = None
    ) -> Callable[[F], F]:
        """Register a function that suggests values for one argument of a prompt, a template or a tool."""
        named = {"ref/prompt": prompt, "ref/resource": resource, "ref/tool": tool}
        given = [(kind, name) for kind, name in named.items() if name is not None]
        if len(given) != 1:
            raise SetupError("@server.completion needs exactly one of prompt=, resource= and tool=")
        (kind, name) = given[0]

        def register(function: F) -> F:
            completer = registry.prompts.compile_completer(function, f"{name}, {argument}", injectable=INJECTABLE)
            self.engine.add_completer(kind, name, argument, completer)
            return function

        return register

    # ── everything else ──

    def middleware(self, function: Middleware) -> Middleware:
        """Register `async def m(request, call_next)`; it sees every request of every method once."""
        if not inspect.iscoroutinefunction(function if inspect.isroutine(function) else type(function).__call__):
            raise SetupError(f"@server.middleware: {function!r} must be `async def m(request, call_next)`")
        self.engine.use(function)
        return function

    def notify_resource_updated(self, uri: str) -> None:
        """Tell every client that asked; from any thread, also outside of a call."""
        self.engine.publish(Change("updated", uri))

    def on_refresh(self, function: F) -> F:
        """Register a function, plain or async, that changes what is offered; `refresh` runs it at every worker."""
        if not callable(function):
            raise SetupError(f"server.on_refresh: {function!r} is not callable; give it a function")
        self.engine.on_refresh(function)
        return function

    async def refresh(self) -> None:
        """Run the functions of `on_refresh` at every worker that shares the state; then clients hear of it, once."""
        if self.engine.refresher is not None:
            await self.engine.refresher.refresh()

    async def complete_elicitation(self, elicitation_id: str) -> bool:
        """The user is done at the URL of a `ctx.elicit_url`: tell the client that showed it, if it wants to hear that.

        Only clients of 2025-11-25 do. False if there is none that was asked.
        """
        return await self.engine.elicitations.completed(elicitation_id)

    # ── serving ──

    def asgi(self, **options: "Unpack[AsgiOptions]") -> "HttpApp":
        """The server as an ASGI callable: mount it anywhere, no lifespan wiring needed."""
        return http.app.HttpApp(self.engine, self.http_options(options), owner=self)

    def well_known(self, **options: "Unpack[AsgiOptions]") -> "App":
        """What to mount at `/.well-known` of the origin, if the server itself is mounted below it and has `auth=`.

        Some clients look there for the way to a token, without having been told. It needs a `public_url`, or the
        whole `path=` of the endpoint.
        """
        app = http.app.HttpApp(self.engine, self.http_options(options), owner=self)
        return app.well_known(is_placed="path" in options)

    def run(self, transport: Transport = "stdio", **options: "Unpack[RunOptions]") -> None:
        """Serve until the client leaves or a signal comes. Over HTTP both old and new clients find their way."""
        if transport in HTTP_NAMES:
            transports.serve.serve_http(self.engine, self.http_options(options, running=True), owner=self)
        elif transport != "stdio":
            raise SetupError(f'Server.run: transport={transport!r} is unknown; use "stdio" or "http"')
        elif options:
            checked_options(options, [*http.options.RunOptions.__annotations__, "transport"], "Server.run")
            raise SetupError(f'Server.run: only for transport="http": {", ".join(sorted(options))}')
        else:
            transports.stdio.serve_stdio(self.engine, owner=self)

    def custom_route(self, path: str, *, methods: Sequence[str] = ("GET",)) -> Callable[[F], F]:
        """Register a page of your own beside the MCP endpoint."""

        def register(function: F) -> F:
            http.routes.check_page(function, methods)
            if path in self._pages:
                raise SetupError(f"@server.custom_route: there is already a page at {path}")
            self._pages[path] = (function, methods)
            return function

        return register

    def http_options(self, given: "AsgiOptions", *, running: bool = False) -> "HttpOptions":
        """Checked options, with the pages of `custom_route`; `running` if they are those of `run`."""
        options = http.options.HttpOptions.of(given, running=running)
        run, most, seconds = self.engine.threads.run, options.max_body_bytes, options.body_timeout
        as_app = http.routes.route_app
        pages = {
            path: as_app(function, methods, max_body_bytes=most, run_in_thread=run, body_timeout=seconds)
            for path, (function, methods) in self._pages.items()
        }
        return msgspec.structs.replace(options, routes={**pages, **options.routes})


def _refuse_uncalled(function: Any, decorator: str) -> None:
    if not callable(function):
        raise SetupError(f"@server.{decorator}: write @server.{decorator} or @server.{decorator}(name={function!r})")


def _catalog(tools: Any) -> Catalog[Tool]:
    if tools is None:
        return Catalog("tool")
    if not isinstance(tools, dovetail.ToolRegistry):
        raise SetupError(f"Server: tools={tools!r} is not possible; give a ToolRegistry, or use @server.tool")
    return tools.catalog


def _implementation(name: Any, options: Options) -> Implementation:
    if not isinstance(name, str) or not name:
        raise SetupError(f'Server({name!r}): a server needs a name; write Server("weather")')
    return Implementation(
        name=name,
        version=options.version,
        title=options.title,
        description=options.description,
        website_url=options.website_url,
        icons=convert_option(options.icons, list[Icon], "Server", "icons"),
    )
