"""`Proxy`: a server whose tools, resources and prompts are those of a server elsewhere."""

import asyncio
import contextvars
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw

from dovetail.auth.principal import Principal
from dovetail.client.cache import ttl_seconds
from dovetail.client.config import ListedServer, make_transport, read_servers
from dovetail.client.handlers import call_maybe_async
from dovetail.client.results import read_page
from dovetail.client.session import MAX_PAGES
from dovetail.client.subscriptions import ChangeStream, is_sub_resource
from dovetail.client.transports.base import Backoff, Transport, cancel_and_wait
from dovetail.engine.call_tool import require_object
from dovetail.engine.engine import Engine
from dovetail.engine.mounts import BackendStatus
from dovetail.engine.request_context import RequestContext
from dovetail.engine.subscriptions import LIST_KINDS, Change, Hub
from dovetail.errors import METHOD_NOT_FOUND, DovetailError, ServerError, SetupError
from dovetail.gateway.backends import NO_CALLER, REFUSALS, Backend, BackendLimits, BackendSession, Caller, printable
from dovetail.gateway.forward import PARTS, Forwarder, Questions, caller_of
from dovetail.protocol import revisions, types
from dovetail.protocol.headers import header_parameters
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.protocol.methods import ListenFilter
from dovetail.protocol.uri_template import UriTemplate, normalize_uri, valid_uri
from dovetail.registry.catalog import BACKEND_BLOCK, NAME, Catalog
from dovetail.registry.functions import Invocation
from dovetail.registry.prompts import Completer, Prompt
from dovetail.registry.resources import Resource, Template
from dovetail.registry.tools import Tool
from dovetail.server import Server

log = logging.getLogger("dovetail")
ASKABLE: dict[str, Any] = {kind: {part: {} for part in parts} for kind, parts in PARTS.items()}
FEATURES = ("tools", "resources", "prompts", "completions", "logging")
MAX_INSTRUCTIONS = 64 * 1024  # characters
MAX_ITEM_BYTES = 256 * 1024
MAX_LIST_BYTES = 64 * 1024 * 1024
MAX_URIS = 1_000  # that are watched, the oldest: no caller takes the updates of others by subscribing to many
FETCH_TIMEOUT = 60.0  # seconds for all lists
CLIENT_OPTIONS = ("headers", "env", "cwd", "transport", "protocol_version")


class Proxy(Server):
    """A server elsewhere, of any revision, as a server of this process: run it, or mount it.

    server.mount(Proxy("https://example.com/mcp", auth=token), namespace="calendar")

    It takes what `Client` takes, the path of a Python file, and an entry of an `mcp.json`. `auth` may be a function of
    the caller (a Principal or None). The backend may elicit; `allow=["sampling", "roots"]` lets it ask for these too.
    """

    def __init__(
        self,
        target: Any,
        *,
        name: str | None = None,
        auth: Any = None,
        timeout: float | None = 30,
        allow: Sequence[str] = (),
        limits: BackendLimits | None = None,
        **options: Any,
    ) -> None:
        if isinstance(allow, str) or not {"sampling", "roots"}.issuperset(allow):
            raise SetupError(f'Proxy: allow={allow!r} is not possible; it is a list of "sampling" and "roots"')
        listed = _listed(target)
        self._listed = listed
        self._auth = auth
        self._asks_auth = callable(auth) and not (hasattr(auth, "for_server") or hasattr(auth, "headers"))
        connection = {key: options.pop(key) for key in CLIENT_OPTIONS if key in options}
        self._connection: dict[str, Any] = {**listed.options, **connection, "timeout": timeout, "cache": False}
        if not listed.problem:  # raises SetupError
            make_transport(listed.target, {**self._connection, "auth": None if self._asks_auth else auth})  # type: ignore[typeddict-item]
        self._place = _place_of(listed.target)
        lifespan = options.pop("lifespan", None)
        super().__init__(
            name or re.sub(r"[^A-Za-z0-9_.-]+", "-", self._place)[:64] or "proxy",
            lifespan=partial(self._serving, lifespan),
            **{"declare": FEATURES, **options},
        )
        self.engine.backend_status = lambda: self.status
        self._questions = Questions(self.name, frozenset(allow))
        self._backend = Backend(
            self.name,
            self._make_session,
            self._questions.passable(ASKABLE, revisions.LATEST),
            per_caller=self._asks_auth,
            timeout=timeout,
            limits=limits or BackendLimits(),
        )
        self._catalogs = Catalogs(self.engine, self._backend, self._questions)

    @classmethod
    def from_config(cls, source: str | Path | Mapping[str, Any], **options: Any) -> dict[str, Self]:
        """A proxy for each server of an `mcp.json`, by its name; one that can't be used says why when it is called."""
        return {name: cls(listed, name=name, **options) for name, listed in read_servers(source).items()}

    @property
    def problem(self) -> str:
        """Why the backend can't be reached; empty if it can, as far as is known."""
        return self._backend.failure

    @property
    def status(self) -> BackendStatus:
        """What is known of the backend, for people."""
        problem, revision, latencies = self._backend.failure, self._backend.revision, self._backend.latencies
        state = "unreachable" if problem else "reachable" if revision else "not connected"
        return BackendStatus(self._place, state, problem, revision, 1000 * median(latencies) if latencies else None)

    async def _make_session(self, principal: Principal | None, capabilities: Mapping[str, Any]) -> BackendSession:
        if self._listed.problem:
            raise SetupError(self._listed.problem)
        auth = await call_maybe_async(self._auth, principal) if self._asks_auth else self._auth
        is_traced = self.engine.root.telemetry is not None
        options: Any = {**self._connection, "auth": auth, "capabilities": capabilities, "telemetry": is_traced}
        return BackendSession(make_transport(self._listed.target, options), options, asks_auth=self._asks_auth)

    @asynccontextmanager
    async def _serving(self, lifespan: Callable[[Any], Any] | None, owner: Any) -> AsyncIterator[Any]:
        self._backend.begin()
        self._catalogs.begin()
        try:
            async with nullcontext() if lifespan is None else lifespan(owner) as value:
                yield value
        finally:
            await self._catalogs.close()
            await self._backend.close()


def _listed(target: Any) -> ListedServer:
    """Target and options: of an entry of an `mcp.json`, of a Python file, or as they are."""
    if isinstance(target, ListedServer):
        return target
    if isinstance(target, Mapping):
        return read_servers({"mcpServers": {"proxy": target}}).get("proxy", ListedServer(None, {}, "it is disabled"))
    if isinstance(target, Path) or (isinstance(target, str) and "://" not in target and target.endswith(".py")):
        return ListedServer([sys.executable, str(target)], {})
    if isinstance(target, Transport):
        raise SetupError("Proxy: a Transport is one connection, and a proxy needs several; give it what it leads to")
    return ListedServer(target, {})


def _place_of(target: Any) -> str:
    """A host, a file that is started, or a command: for people, so without other parts, which may hold a secret."""
    if isinstance(target, Server):
        return target.name
    words = [target] if isinstance(target, str) else [str(each) for each in target or [""]]
    if "://" in words[0]:
        return urlsplit(words[0]).netloc.rpartition("@")[2]
    return Path(next((word for word in words if word.endswith((".py", ".js", ".ts"))), words[0])).stem


# ── catalogs ──


class _List(msgspec.Struct, eq=False):
    """One list of the backend and the catalog that holds its items."""

    method: str
    key: str  # of the items in a page
    type: Any
    catalog: Catalog[Any]
    compile: Callable[[Any], tuple[str, Any]]
    items: dict[str, Any] = {}  # as they are in the catalog

    @property
    def feature(self) -> str:
        """The capability."""
        return self.method.partition("/")[0]

    def put(self, listed: Mapping[str, Any]) -> None:
        """Put new items in place of the old ones; the proxy's own keep their names."""
        old = self.items
        new = {name: item for name, item in listed.items() if name in old or self.catalog.find(name) is None}
        if [each.definition for each in old.values()] != [each.definition for each in new.values()]:
            self.items = new
            self.catalog.exchange(old, new, BACKEND_BLOCK)


class Catalogs:
    """The catalogs of a proxy, fetched from its backend; they stay while it is away."""

    def __init__(self, engine: Engine, backend: Backend, questions: Questions) -> None:
        self._engine = engine
        self._backend = backend
        self._limits = backend.limits
        self._questions = questions
        self._forwarder = Forwarder(backend, questions)
        resources = engine.resources
        templates = "resources/templates/list", "resourceTemplates", types.TemplateDefinition
        self._prompts = _List("prompts/list", "prompts", types.PromptDefinition, engine.prompts, self._prompt)
        self._templates = _List(*templates, resources.templates, self._template)
        self._lists = (
            _List("tools/list", "tools", types.ToolDefinition, engine.tools, self._tool),
            self._prompts,
            _List("resources/list", "resources", types.ResourceDefinition, resources.direct, self._resource),
            self._templates,
        )
        self._is_known = False
        self._completing: dict[tuple[str, str, str], Completer] = {}  # the backend's completers
        self._left_out: set[str] = set()  # items that were logged
        everything = types.TemplateDefinition(uri_template="{+uri}", name="any")
        resources.fallback = self._template(everything)[1]
        engine.hub = Hub(self._watch)
        engine.before_list.append(self.fetch)
        engine.get_instructions = self._instructions
        self.begin()

    def begin(self) -> None:
        self._expires = 0.0  # as the loop counts
        self._tasks: set[asyncio.Task[Any]] = set()
        self._fetching: asyncio.Task[None] | None = None
        self._began = 0.0  # when it did
        self._refetching: asyncio.Task[None] | None = None
        self._is_stale = False  # a list has changed since the last fetch began
        self._following: asyncio.Task[None] | None = None
        self._heard = ListenFilter()  # the lists whose changes the backend announces
        self._stream: ChangeStream | None = None  # the last one
        self._ready = asyncio.Event()  # it is open, or could not be opened

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks)

    def run(self, work: Any) -> "asyncio.Task[Any]":
        """Run in the background, in a context of its own: it is for no single caller."""
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def fetch(self, context: RequestContext) -> None:
        """Fetch the lists if they are not known or out of date; a backend that is slow goes on in the background."""
        now = asyncio.get_running_loop().time()
        if now >= self._expires and not self._backend.in_backoff:
            fetching = self._fetch_again(caller_of(context, self._questions))
            await asyncio.wait([fetching], timeout=max(0.0, self._began + self._limits.list_wait - now))
        if context.request.method in ("tools/call", "prompts/get") and not self._is_known:  # it may have such an item
            raise self._backend.unreachable(self._backend.failure or "its lists are not known yet")

    async def _instructions(self, context: RequestContext) -> str | None:
        """Those of the backend, for clients of a proxy that is not mounted."""
        with suppress(DovetailError, TimeoutError):
            async with asyncio.timeout(self._limits.list_wait):
                session = await self._backend.main(caller_of(context, self._questions))
                return (session.negotiated.instructions or "")[:MAX_INSTRUCTIONS] or None
        return None

    def _fetch_again(self, caller: Caller = NO_CALLER) -> "asyncio.Task[None]":
        if self._fetching is None or self._fetching.done():
            self._fetching, self._began = self.run(self._fetch(caller)), asyncio.get_running_loop().time()
        return self._fetching

    async def _fetch(self, caller: Caller) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                session = await self._backend.main(caller)
                if self._following is None or self._following.done():
                    self._ready.clear()
                    self._following = self.run(self._follow())
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._ready.wait()
                fetched = await asyncio.gather(*(self._read(session, each) for each in self._lists))
        except Exception as failure:  # of any kind: a backend may send anything
            self._expires = loop.time() + self._limits.list_wait
            known = isinstance(failure, (DovetailError, TimeoutError))
            text = "the lists of the server %r can't be read: %s"
            log.warning(text, self._backend.name, printable(failure), exc_info=not known)
            return
        ttl = min((seconds for _, seconds in fetched if seconds), default=0.0)
        served = session.negotiated.capabilities
        # The stream of a handshake session over HTTP may end, or never begin, without a word.
        is_sure = session.hears_all_changes or session.revision.listens
        hears = is_sure and all(getattr(self._heard, f"{kind}_list_changed") for kind in LIST_KINDS if kind in served)
        self._expires = loop.time() + (ttl or (float("inf") if hears else self._limits.refresh))
        self._is_known = True
        for each, (items, _) in reversed([*zip(self._lists, fetched, strict=True)]):
            each.put(items)  # resources first: a mount renames them in the `_meta` of tools
        for key in self._completing:
            self._engine.completers.pop(key, None)
        self._completing = self._completers(session)
        self._engine.completers.update(self._completing)
        self._backend.tool_headers.clear()
        self._backend.tool_headers.update({name: tool.headers for name, tool in self._lists[0].items.items()})

    async def _read(self, session: BackendSession, listing: _List) -> tuple[dict[str, Any], float]:
        """The items of one list, and for how many seconds it is good if the backend says so."""
        items: dict[str, Any] = {}
        if listing.feature not in session.negotiated.capabilities:
            return items, 0.0
        cursor, size, ttl = None, 0, 0.0
        for _ in range(MAX_PAGES):
            try:
                raw = await session.send(listing.method, {} if cursor is None else {"cursor": cursor})
            except ServerError as refused:
                if listing.items and (refused.code == METHOD_NOT_FOUND or refused.status in REFUSALS):
                    session.is_over |= session.has_streams  # it had such a list: perhaps it is another server by now
                if refused.code == METHOD_NOT_FOUND:
                    return {}, 0.0
                raise
            page = read_page(listing.method, raw, listing.key, Raw)
            for item in page.items[: self._limits.max_items - len(items)]:
                self._add(items, item, listing)
            cursor, size, ttl = page.next_cursor, size + len(raw), ttl_seconds(raw)
            if cursor is None or (cursor == "" and session.revision.handshake):
                return items, ttl
            if len(items) >= self._limits.max_items or size > MAX_LIST_BYTES:
                break
        self._leave_out(listing.method, "the list does not end; its beginning is used")
        return items, ttl

    def _add(self, items: dict[str, Any], raw: Raw, listing: _List) -> None:
        try:
            if len(raw) > MAX_ITEM_BYTES:
                raise SetupError(f"it has more than {MAX_ITEM_BYTES} bytes")
            definition = msgspec.json.decode(raw, type=listing.type)
            for revision in revisions.ALL:
                types.shape_definition(definition, revision)
            key, item = listing.compile(definition)
            if listing.feature != "resources" and not NAME.match(key):
                raise SetupError("its name is not allowed")
            if key in items:
                raise SetupError("it is listed twice")
            items[key] = item
        except (*UNREADABLE, SetupError, ValueError, TypeError, KeyError, AttributeError) as failure:
            self._leave_out(f"{listing.key} {printable(bytes(raw)[:80].decode(errors='replace'))}", printable(failure))

    def _leave_out(self, what: str, why: str) -> None:
        """Log an item once; a backend may name any number of them."""
        if what not in self._left_out and len(self._left_out) < 100:
            self._left_out.add(what)
            log.warning("the server %r: %s is left out: %s", self._backend.name, what, why)

    # ── compiled items ──

    def _invocation(self, function: Callable[..., Any], *values: Any) -> Invocation:
        return Invocation(
            function=partial(function, *values), is_async=True, in_thread=False, context_names=("ctx",), timeout=None
        )

    def _tool(self, definition: types.ToolDefinition) -> tuple[str, Tool]:
        name, schema = definition.name, definition.input_schema
        if schema.get("type") != "object" or not isinstance(schema.get("properties", {}), Mapping):
            raise SetupError("its inputSchema describes no object")
        definition = msgspec.structs.replace(definition, execution=None)  # its calls are no tasks here
        return name, Tool(
            definition=definition,
            invocation=self._invocation(self._forwarder.call_tool, definition),
            decode=_decode_arguments,
            to_result=lambda result: result,
            label=f"tool {name}",
            headers=header_parameters(schema, secrets=True),
        )

    def _prompt(self, definition: types.PromptDefinition) -> tuple[str, Prompt]:
        name = definition.name
        invocation = self._invocation(self._forwarder.get_prompt, name)
        return name, Prompt(definition=definition, invocation=invocation, decode=_decode_arguments)

    def _resource(self, definition: types.ResourceDefinition) -> tuple[str, Resource]:
        if not valid_uri(definition.uri):
            raise SetupError("its uri is none")
        invocation = self._invocation(self._forwarder.read, definition.uri)
        return normalize_uri(definition.uri), Resource(definition=definition, invocation=invocation)

    def _template(self, definition: types.TemplateDefinition) -> tuple[str, Template]:
        return definition.uri_template, Template(
            definition=definition,
            template=UriTemplate(definition.uri_template),
            invocation=self._invocation(self._forwarder.read),
            decode=dict,
            whole_uri=True,
        )

    def _completers(self, session: BackendSession) -> dict[tuple[str, str, str], Completer]:
        """Those of all arguments of prompts and templates, if the backend has any."""
        if session.revision.completions_capability and "completions" not in session.negotiated.capabilities:
            return {}
        named = [("prompt", "name", self._prompts), ("resource", "uri", self._templates)]
        return {
            (f"ref/{kind}", name, argument): Completer(
                invocation=self._invocation(self._forwarder.complete, {"type": f"ref/{kind}", key: name}, argument),
                names=("value", "arguments"),
                where=f"completion of {name}, {argument}",
            )
            for kind, key, listing in named
            for name, item in listing.items.items()
            for argument in item.argument_names
        }

    # ── changes ──

    def _watch(self, uri: str, wanted: bool) -> None:
        self._engine.resources.watch(uri, wanted)
        with suppress(RuntimeError):  # the loop has ended
            self._following = self.run(self._follow())

    async def _follow(self) -> None:
        """Pass on changes of all lists and of the URIs that are watched."""
        task, backoff = asyncio.current_task(), Backoff(self._limits.retry, 30 * self._limits.retry)
        await asyncio.sleep(0.01)  # other URIs may follow
        has_streams = is_gap = False
        while self._following is task:  # else a newer one has more URIs
            uris = self._engine.hub.uris()[:MAX_URIS]
            if is_gap:
                self._ready.clear()
                self._fetch_changed()  # perhaps
            with suppress(DovetailError, TimeoutError):
                session = await self._backend.main()
                has_streams = session.has_streams
                async with session.listen(ListenFilter(True, True, True, uris)) as changes:
                    if self._following is task:
                        self._use_stream(changes, uris)
                        backoff.succeeded()
                        await self._pass_on(changes)
            if self._following is task:
                self._heard, self._expires = ListenFilter(), 0.0
                self._ready.set()
                if not uris and not (has_streams and self._engine.root.hub.is_heard):
                    return  # until the lists are needed
                is_gap = True
                await asyncio.sleep(backoff.next_delay())

    def _use_stream(self, changes: ChangeStream, uris: list[str]) -> None:
        if self._stream is not None and self._stream.is_closed:
            for uri in uris:
                self._engine.publish(Change("updated", uri))  # perhaps: there was no stream for a while
        elif self._stream is not None:
            self._stream.close()  # what it has heard is still passed on
        self._stream, self._heard = changes, changes.honoured
        self._ready.set()

    async def _pass_on(self, changes: ChangeStream) -> None:
        async for change in changes:
            if change.uri:
                for uri in [each for each in self._engine.hub.uris() if is_sub_resource(change.uri, each)]:
                    self._engine.publish(Change("updated", uri))
            else:
                self._fetch_changed()

    def _fetch_changed(self) -> None:
        """Fetch the lists in the background, once more if they change meanwhile."""
        self._is_stale = True
        if self._refetching is None or self._refetching.done():
            self._refetching = self.run(self._fetch_stale())

    async def _fetch_stale(self) -> None:
        while self._is_stale:
            if self._fetching is not None:
                await asyncio.wait([self._fetching])  # which may have read the old list
            self._is_stale = False
            await asyncio.wait([self._fetch_again()])
            await asyncio.sleep(0.05)  # a backend may announce without end


def _decode_arguments(raw: Any) -> dict[str, Any]:
    return {"arguments": require_object(raw)}
