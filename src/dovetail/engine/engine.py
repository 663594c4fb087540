"""The engine of a server: its catalogs, limits, options, state and lifespan."""

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail import engine as lazy
from dovetail import registry
from dovetail import schema as lazy_schema
from dovetail import state as lazy_state
from dovetail.engine.concurrency import CallLimits, Limit
from dovetail.engine.context import Context
from dovetail.engine.dispatch import Layer, Middleware, compile_chain
from dovetail.engine.handlers import HANDLERS, Handler, call_function
from dovetail.engine.options import Options, random_secrets, telemetry_module
from dovetail.engine.redaction import Redactor, guard_loggers
from dovetail.engine.request_context import RequestContext
from dovetail.engine.resources import Resources
from dovetail.engine.subscriptions import LIST_KINDS, Change, ChangeKind, Hub, Refresher
from dovetail.engine.threads import ThreadPool
from dovetail.engine.workers import LeaseTimings, WorkerLease, keep_secrets_shared, shared_secrets
from dovetail.errors import ConnectionLost, SetupError
from dovetail.protocol import revisions
from dovetail.protocol.capabilities import ServerCapabilities
from dovetail.protocol.extensions import UI, UI_MIME_TYPE, DeclaredExtension
from dovetail.protocol.methods import REQUEST_ROWS, Method
from dovetail.protocol.results import ReadResourceResult, Shaper
from dovetail.protocol.session import Rules
from dovetail.protocol.types import IDEMPOTENCY_KEY, Implementation, ToolDefinition
from dovetail.registry.catalog import Catalog
from dovetail.registry.tools import Tool

if TYPE_CHECKING:
    from dovetail.engine.audit import AuditTrail
    from dovetail.engine.metrics import Metrics
    from dovetail.engine.mounts import BackendStatus, Mount, Mounts
    from dovetail.engine.open_calls import OpenCalls
    from dovetail.engine.request_state import Sealer
    from dovetail.engine.result_cache import ResultCache
    from dovetail.engine.server_requests import UrlElicitations
    from dovetail.engine.telemetry import Telemetry
    from dovetail.engine.tool_search import ToolSearch
    from dovetail.extensions.tasks import Tasks
    from dovetail.registry.prompts import Completer, Prompt
    from dovetail.state.base import StateBackend

MAX_STEP_RECORDS = 500_000  # in memory, unless they need more of it than a MemoryState takes
START_RETRY_DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds, for a store that is unavailable when the server starts
STEP_WAIT = 5.0  # seconds that steps of ended calls get when the server stops
log = logging.getLogger("dovetail")


def _of_root(name: str) -> Any:
    """A property whose value is that of the root, at a mounted server too."""
    return property(lambda each: getattr(each.root, name), lambda each, value: setattr(each.root, name, value))


class TaskTimings(msgspec.Struct, frozen=True):
    """Seconds: how often tasks are looked at whose worker may be lost, and until the store is asked again."""

    poll_every: float = 5.0  # where a client waits for one
    sweep_every: float = 30.0  # all of them
    retry_delay: float = 2.0


class WatchdogTimings(msgspec.Struct, frozen=True):
    """Seconds."""

    begin_after: float = 1.0  # so that a server starts without the watchdog
    blocked: float = 0.5  # from which on a tool holds the event loop for too long


class Engine:
    """A server without its transports."""

    def __init__(self, info: Implementation, options: Options, tools: Catalog[Tool]) -> None:
        self.info = info
        self.options = options
        self.masks_errors = options.mask_error_details
        self.context_class = Context  # what functions get; dovetail.compat has classes of its own
        self.secrets = options.secret or random_secrets()  # workers that are forked later inherit them
        self.redactor = Redactor(options.redact)
        guard_loggers(options.redact)
        most = options.max_threads
        self.threads = ThreadPool(most, max_stuck=max(100, 2 * most), share=max(1, most // 2))
        self.threads.on_stuck = lambda label: lazy.metrics.count_stuck(self, label)
        self.watchdog_timings = WatchdogTimings()
        self.lease_timings = LeaseTimings()
        self.mount: Mount | None = None  # where it is mounted
        self.mounts: Mounts | None = None  # from the first one on
        self.backend_status: Callable[[], BackendStatus] | None = None  # of a proxy
        self.before_list: list[Callable[[RequestContext], Awaitable[None]]] = []  # fetch catalogs from elsewhere
        self.get_instructions: Callable[[RequestContext], Awaitable[str | None]] | None = None  # of a server elsewhere
        self._state: StateBackend | None = None  # until it is needed, or set
        self._random_name = os.urandom(8).hex()
        self._elicitations: UrlElicitations | None = None  # from the first one on
        self._lease: WorkerLease | None = None  # of the transport, or from the first call that needs it on
        self.running_steps: set[asyncio.Task[Any]] = set()
        self._store_generation = ""  # as it was last known
        self.tools = tools
        self._portable: dict[str, tuple[ToolDefinition, ToolDefinition]] = {}  # by name: as it is, and as it is shown
        self._open_limits()
        self.shapers = {row.name: Shaper(row, options.style, info) for row in revisions.ALL}
        self.prompts: Catalog[Prompt] = Catalog("prompt")
        files_changed = partial(self._catalog_changed, "resources", by_files=True)
        self.resources = Resources(self.threads, options.hint, self.publish, files_changed)
        self.completers: dict[tuple[str, str, str], Completer] = {}
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.hub = Hub(self._watch)
        self.audit: AuditTrail | None = lazy.audit.AuditTrail(self) if options.audit is not False else None
        self.search: ToolSearch | None = None if options.tool_search is False else lazy.tool_search.ToolSearch(self)
        self._middleware: list[Middleware] = []
        has_own_middleware = options.rate_limit or self.audit is not None or self.search is not None
        self.tasks: Tasks | None = None  # from the first tool with `task=` on
        self.observers: dict[str, Callable[[Engine, Layer], Layer]] = {}  # by kind: layers around tasks
        self.metrics: Metrics | None = None  # of the process group
        self.telemetry: Telemetry | None = None  # of the root: it counts for mounted servers too
        self.chain: Layer | None = compile_chain(self, ()) if has_own_middleware else None
        self.unconditional_methods: frozenset[str] = frozenset()  # need no check of capabilities; none until known
        self.methods: Mapping[str, Method] = REQUEST_ROWS  # with those of extensions
        self.handlers: Mapping[str, Handler] = HANDLERS
        self.notifications: dict[str, Callable[..., None]] = {}  # of extensions
        self.notification_hooks: list[Callable[..., Awaitable[Any]]] = []  # of middleware classes
        self._extensions: dict[str, DeclaredExtension] = {}
        self.start_checks: dict[str, Callable[[], None]] = {}  # of extensions; they raise SetupError
        self.load_tasks: Callable[[], None] = lambda: None  # sets `tasks`
        self.task_timings = TaskTimings()
        self._capabilities: ServerCapabilities | None = None
        self._capability_changes = 0
        self._capabilities_lock = threading.Lock()
        self._lifespan: RunningLifespan | None = None
        self.is_serving = False  # the lifespan has been entered
        self.refresher: Refresher | None = None  # from the first function on
        self._sealer: Sealer | None = None
        if (tracing := telemetry_module(options.telemetry)) is not None:
            self.telemetry = tracing.Telemetry(self.redactor, with_content=options.telemetry_content)
            self.observe("trace", self.telemetry.layer)
        for catalog, kind in self._catalogs():
            catalog.on_change(partial(self._catalog_changed, kind))

    def _catalogs(self) -> list[tuple[Catalog[Any], ChangeKind]]:
        direct, templates = self.resources.direct, self.resources.templates
        return [(self.tools, "tools"), (self.prompts, "prompts"), (direct, "resources"), (templates, "resources")]

    def scopes_in_use(self) -> frozenset[str]:
        """All scopes that a tool, resource or prompt needs."""
        rules = [rules for catalog, _ in self._catalogs() if (rules := catalog.snapshot.rules) is not None]
        return frozenset[str]().union(*(each.scopes for each in rules))

    def _catalog_changed(self, kind: ChangeKind, *, by_files: bool = False) -> None:
        """`by_files`: files were added or removed; each worker detects that itself."""
        self.look_for_tasks()
        self.forget_capabilities()
        refreshed = None if self.refresher is None else self.refresher.changed
        if refreshed is not None and not by_files:
            refreshed.add(kind)
            return
        by_itself = by_files or bool(self.before_list)  # each worker fetches them
        if not by_itself and self._state is not None and self._state.shared and self.is_serving:
            log.warning("%s changed at this worker; others do not have that unless on_refresh brings it there", kind)
        self.publish(Change(kind))

    def look_for_tasks(self) -> None:
        """Load the tasks extension for the first tool that needs it."""
        if self.tools.has_tasks and self.tasks is None:
            self.load_tasks()
            self.chain = compile_chain(self, self._middleware)

    def visibility_rules(self, where: str, options: "Mapping[str, Any]") -> Rules:
        """The rules of `enable` and `disable`. Raises SetupError if nothing fits them."""
        items = [item for catalog, _ in self._catalogs() for item in catalog.registered.items]
        return registry.visibility.compile_rules(items, where, more_may_come=self.awaits_lists, **options)

    @property
    def awaits_lists(self) -> bool:
        """Whether the lists of a server elsewhere, behind this one or what is mounted in it, are not known yet."""
        below = [] if self.mounts is None else self.mounts.engines()
        is_unknown = self.backend_status is not None and self.backend_status().revision is None
        return is_unknown or any(each.awaits_lists for each in below)

    def set_visibility(self, where: str, **options: Any) -> None:
        rules = self.visibility_rules(where, options)
        for catalog, _ in self._catalogs():
            catalog.set_visibility(rules)

    def on_refresh(self, function: Callable[[], Any]) -> None:
        self.open_refresher().add(function)

    def open_refresher(self) -> Refresher:
        """The refresher, made if there is none; servers above it have to run its functions too."""
        self.refresher = self.refresher or Refresher(self)
        if self.parent is not None:
            self.parent.open_refresher()
        return self.refresher

    def use(self, middleware: Middleware) -> None:
        self._middleware.append(middleware)
        self.chain = compile_chain(self, self._middleware)

    def observe(self, kind: str, layer: "Callable[[Engine, Layer], Layer]") -> None:
        """Put a layer of metrics, logs or traces around all calls, one of each kind."""
        self.observers[kind] = layer
        self.chain = compile_chain(self, self._middleware)

    def add_extension(
        self, id: str, extension: DeclaredExtension, rows: "Mapping[str, tuple[Method, Handler]]", where: str
    ) -> None:
        """Declare an extension, with rows and handlers of its methods. Raises SetupError for what is there already."""
        if id in self._extensions:
            raise SetupError(f"{where}: there is already an extension {id}")
        if known := sorted(rows.keys() & self.methods.keys()):
            raise SetupError(f"{where}: another extension has the method {known[0]} already")
        self._extensions[id] = extension
        self.methods = {**self.methods, **{name: row for name, (row, _) in rows.items()}}
        self.handlers = {**self.handlers, **{name: handler for name, (_, handler) in rows.items()}}
        self.forget_capabilities()

    def _open_limits(self) -> None:
        self.limit = Limit(self.options.max_concurrency, self.options.max_queue, subject="The server")
        self.limits = (self.limit,)  # those of every call
        state = self.root._state
        shared = state if state is not None and state.shared else None
        self.call_limits = CallLimits(self.tools, self.options, shared, self.lease_timings, self.path)
        most = self.options.max_concurrency + self.options.max_queue
        self.waiting = Limit(most, 0, subject="The server")  # calls that wait for the result of another
        self.keyed_runs: set[str] = set()  # ids of the runs with an idempotency key whose outcome is not stored
        self.result_cache: ResultCache | None = None  # from the first result on
        self.open_calls: OpenCalls | None = None  # from the first one on

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities of the server, computed at first use and again after every change of a catalog."""
        return self._capabilities or self._make_capabilities()

    def _make_capabilities(self) -> ServerCapabilities:
        changes, options, resources = self._capability_changes, self.options, self.resources
        # A tool's choices alone offer no completions: completing tools is our own addition, which no client looks for.
        completable: list[Prompt | Any] = [*self.prompts.registered.items, *resources.templates.registered.items]
        present = {
            "tools": self.tools.ever_used,
            "resources": resources.direct.ever_used or resources.templates.ever_used,
            "prompts": self.prompts.ever_used,
            "completions": bool(self.completers or resources.folders()) or any(item.choices for item in completable),
            "logging": options.logging,
        }
        names = frozenset(name for name, is_present in present.items() if is_present) | frozenset(options.declare)
        names = names.union(*(child.capabilities.names - {"logging"} for child in self.mounted_engines()))
        experimental = dict(options.experimental)
        if any(IDEMPOTENCY_KEY in (tool.definition.meta or ()) for tool in self.tools.registered.items):
            # so that clients look which tools they are
            experimental.setdefault(IDEMPOTENCY_KEY, {} if self.state.shared else {"process": self.process})
        extensions = dict(self._extensions)
        if any(item.definition.mime_type == UI_MIME_TYPE for item in resources.direct.registered.items):
            extensions.setdefault(UI, DeclaredExtension())  # also where the views come from mounts and backends
        made = ServerCapabilities(
            names=names,
            list_changed=options.list_changed,
            experimental=experimental,
            extensions=extensions,
            tasks={} if self.tasks is None else {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
        )
        with self._capabilities_lock:
            if changes == self._capability_changes:  # else another thread has changed a catalog meanwhile
                self._capabilities, self.unconditional_methods = made, made.unconditional_methods()
        return made

    def forget_capabilities(self) -> None:
        """Drop the computed capabilities after a catalog has changed; may be called from any thread."""
        with self._capabilities_lock:
            self._capability_changes += 1
            self._capabilities, self.unconditional_methods = None, frozenset()
        if self.parent is not None:
            self.parent.forget_capabilities()

    def capabilities_for(self, context: RequestContext) -> ServerCapabilities:
        """The capabilities that a client gets: fewer if a handshake client has no session, or has no name."""
        sessionless = context.session_access is None and context.request.revision.handshake
        capabilities = self.capabilities.without_sessions() if sessionless else self.capabilities
        has_list = self.tasks is None or context.task_list is not None or not context.request.revision.core_tasks
        return capabilities if has_list else capabilities.without_task_list()

    def announced_kinds(self) -> list[ChangeKind]:
        """The lists whose changes are announced to a handshake session that begins now."""
        return [kind for kind in LIST_KINDS if kind in self.capabilities.names] if self.options.list_changed else []

    def shown(self, tool: Tool) -> ToolDefinition:
        """The definition of a tool that clients are shown."""
        if self.options.schemas == "full":
            return tool.definition
        known = self._portable.get(tool.name)
        if known is None or known[0] is not tool.definition:
            if len(self._portable) > 2 * len(self.tools):  # names that have gone
                self._portable.clear()
            known = self._portable[tool.name] = (tool.definition, lazy_schema.portable.portable_tool(tool.definition))
        return known[1]

    def add_completer(self, completer: "Completer", kind: str = "", name: str = "", argument: str = "") -> None:
        """Add a completer of one argument, or of all that have none of their own."""
        key = (kind, name, argument)
        if key in self.completers:
            raise SetupError(f"{completer.where}: there is already one, {self.completers[key].where}")
        self.completers[key] = completer
        self.forget_capabilities()

    def _check_completers(self) -> None:
        """Raises SetupError if a completer's target does not exist when serving begins; later it may be removed."""
        catalogs: dict[str, Catalog[Any]]
        catalogs = {"ref/prompt": self.prompts, "ref/resource": self.resources.templates, "ref/tool": self.tools}
        for (kind, name, argument), completer in self.completers.items():
            if kind:
                completer.check(catalogs[kind], name, argument)

    def completion_target(self, kind: str, name: str, rules: Rules = ()) -> Any:
        """The tool, prompt or resource whose argument is completed; `name` may be a URI with all its values."""
        if kind != "ref/resource":
            return self.prompts.find(name, rules) if kind == "ref/prompt" else self.tools.find(name, rules)
        return self.resources.templates.find(name, rules) or self.resources.get(name, rules)

    async def look_for(self, uri: str, context: RequestContext) -> None:
        """Have the catalogs brought up to date if they have no such resource."""
        if self.before_list and self.resources.get(uri, self.rules_of(context)) is None:
            await self.fetch_catalogs(context)

    def rules_of(self, context: RequestContext) -> Rules:
        """What a session has enabled and disabled for itself, by names of the server that it knows."""
        session = context.request.session
        return () if session is None or context.served not in (None, self) else session.rules

    async def read(
        self, uri: str, context: RequestContext, call: Callable[..., Any] = call_function
    ) -> ReadResourceResult:
        """Read as the caller of a request; `call` runs the function."""
        if self.mounts is not None and (source := self.mounts.resource(uri, self.rules_of(context))) is not None:
            found: ReadResourceResult = await lazy.mounts.read_mounted(self, context, source, uri, is_request=False)
            return found
        contents = await self.resources.read(
            uri,
            partial(call, self, context),
            lambda rule: lazy.access.may_use(self, context, rule),
            self.rules_of(context),
        )
        # What depends on a user's answer or state is without a cache hint: it is not for other users, nor for later.
        is_for_all = context.server_requests is None and not context.uses_state
        return contents if is_for_all else ReadResourceResult(contents.items)

    async def fetch_catalogs(self, context: RequestContext) -> None:
        """Have the catalogs brought up to date, before a list is made or a name is said to be unknown."""
        for fetch in self.before_list:
            await fetch(context)

    def _watch(self, uri: str, wanted: bool) -> None:
        if self.mounts is None or not self.mounts.watch(uri, wanted):
            self.resources.watch(uri, wanted)

    def publish(self, change: Change) -> None:
        """Notify the subscriptions, if changes are announced at all; may be called from any thread."""
        if change.uri or self.options.list_changed:
            self.apply_change(change)
        if self.mount is not None:
            self.mount.relay(change)

    def forget_contents(self, change: Change, *, from_other_worker: bool) -> None:
        """Drop what is cached of resources that have changed, also of mounted ones."""
        if change.uri:
            self.resources.forget(change.uri)
        elif from_other_worker and change.kind == "resources":
            self.resources.mark_files_stale()
        if self.mounts is not None:
            self.mounts.forget(change, from_other_worker=from_other_worker)

    def apply_change(self, change: Change, *, from_other_worker: bool = False) -> None:
        self.forget_contents(change, from_other_worker=from_other_worker)
        self.hub.publish(change, from_other_worker=from_other_worker)

    # ── what a mounted server has from the server that runs ──

    @property
    def parent(self) -> "Engine | None":
        return None if self.mount is None else self.mount.parent

    @property
    def root(self) -> "Engine":
        """The engine that is mounted nowhere: this one, or that above all others."""
        return self if self.parent is None else self.parent.root

    @property
    def path(self) -> str:
        """The place of a mounted server, in keys of the store; empty for the root."""
        return "" if self.mount is None else self.mount.path

    def mounted_engines(self) -> "list[Engine]":
        return [] if self.mounts is None else self.mounts.engines()

    lease: WorkerLease | None = _of_root("_lease")
    store_generation: str = _of_root("_store_generation")

    def worker_lease(self) -> WorkerLease:
        """The lease of this worker, made if the transport has none."""
        if self.lease is None:
            self.lease = WorkerLease(self.state, self.lease_timings)
            self.lease.start()
        return self.lease

    @property
    def state(self) -> "StateBackend":
        """The state backend of steps, and of the secret if none is given. Sessions use it only if it is shared."""
        if self.parent is not None:
            return self.parent.state
        if self._state is None:
            memory = lazy_state.memory  # steps can fill no more than three quarters of it: callers make them
            self._state = memory.MemoryState(max_entries=2 * MAX_STEP_RECORDS, max_entry_bytes=128 * memory.MEBIBYTE)
        return self._state

    @state.setter
    def state(self, state: "StateBackend") -> None:
        self._state = state
        self.forget_capabilities()

    def release_state(self, state: "StateBackend") -> None:
        """Stop using a state backend that was closed."""
        if self._state is state:
            self._state = None

    @property
    def process(self) -> str:
        """A name for the memory that holds the state if it is not shared; a fork has another one."""
        return f"{self.root._random_name}-{os.getpid()}"

    @property
    def elicitations(self) -> "UrlElicitations":
        if self.parent is not None:
            return self.parent.elicitations
        self._elicitations = self._elicitations or lazy.server_requests.UrlElicitations()
        return self._elicitations

    def session_ended(self, id: str) -> None:
        """Forget the elicitations of a session that has ended: its client gets no more notifications of them."""
        if self._elicitations is not None:
            self._elicitations.forget_session(id)

    @property
    def sealer(self) -> "Sealer":
        if self.parent is not None:
            return self.parent.sealer
        if self._sealer is None or self._sealer.secrets != self.secrets:
            self._sealer = lazy.request_state.Sealer(self.secrets)
        return self._sealer

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        return None if self._lifespan is None else self._lifespan.loop

    @property
    def lifespan_value(self) -> Any:
        return None if self._lifespan is None else self._lifespan.value

    async def start(self, owner: Any = None) -> None:
        """Add a user; the first one enters the lifespan. `owner` is the argument of the lifespan function."""
        while (lifespan := self._lifespan) is not None and lifespan.is_on_this_loop and lifespan.ending.is_set():
            await asyncio.wait([lifespan.task])
            if self._lifespan is lifespan:  # else another task has made a new one meanwhile
                self._lifespan = None
        if self._lifespan is not None and self._lifespan.runs_on_another_loop:
            raise RuntimeError(f"The server {self.info.name!r} runs on another event loop; make one for each loop")
        if self._lifespan is None or not self._lifespan.is_on_this_loop:
            self.hub.begin()
            self.threads.open()
            if self.tasks is not None and self.mount is None:
                self.tasks.start()
            self._open_limits()  # a loop that died in mid-call has left slots taken
            self._lifespan = RunningLifespan(partial(self._serving, owner), self._end)
        await self._lifespan.acquire()

    @asynccontextmanager
    async def _serving(self, owner: Any) -> AsyncIterator[Any]:
        """The lifespan, entered once the secrets of all workers are known."""
        lifespan = self.options.lifespan
        async with self._secrets_shared(), nullcontext() if lifespan is None else lifespan(owner) as value:
            self._check_completers()  # only now: a lifespan may register prompts too
            for check in self.start_checks.values():
                check()
            self.resources.begin(watching=self.options.list_changed)
            if self.mounts is not None:
                await self.mounts.start()
            if log.isEnabledFor(logging.DEBUG) and self.mount is None:
                self.observe("log", lazy.request_log.logged)
            self.is_serving = True
            try:
                with self._watched() if self.mount is None else nullcontext():
                    yield value
            finally:
                self.is_serving = False
                if self.mounts is not None:
                    await self.mounts.stop()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Have a watchdog report what holds the event loop, from a little later on."""
        with ExitStack() as stack:
            begin_after, loop = self.watchdog_timings.begin_after, asyncio.get_running_loop()
            timer = loop.call_later(begin_after, lambda: stack.callback(lazy.watchdog.Watchdog(self).stopped.set))
            stack.callback(timer.cancel)
            yield

    @asynccontextmanager
    async def _secrets_shared(self) -> AsyncIterator[None]:
        """Share the secrets with all workers. Raises StoreUnavailable after the last try."""
        state = self._state
        if self.mount is not None or self.options.secret or state is None:  # no other needs them, or has them already
            yield
            return
        for delay in (*START_RETRY_DELAYS, None):
            try:
                self.secrets = await shared_secrets(state, self.secrets)
                break
            except lazy_state.base.StoreUnavailable as failure:
                if delay is None:
                    raise
                log.warning("the server can't start yet: %s", failure.message)
                await asyncio.sleep(delay)
        keeping = asyncio.get_running_loop().create_task(keep_secrets_shared(state, self))
        try:
            yield
        finally:
            with suppress(RuntimeError):  # a loop that has died is torn down from elsewhere
                keeping.cancel()

    async def stop(self) -> None:
        """Remove a user; after the last all subscriptions and the lifespan end. The engine may be started again."""
        if self._lifespan is not None:
            await self._lifespan.release()

    async def _end(self) -> None:
        self.hub.end_all()
        await self.call_limits.close()
        if self.open_calls is not None:
            await self.open_calls.close()
            self.open_calls = None
        if self.tasks is not None:
            await self.tasks.close()
        if self.running_steps:
            await asyncio.wait(self.running_steps, timeout=STEP_WAIT)
        if self._lease is not None:
            await self._lease.stop()
            self._lease = None
        await self.resources.close()
        self.threads.close()


class RunningLifespan:
    """The lifespan of a server: entered for its first user, exited after its last; `at_end` runs before that.

    It has a task of its own: users come and go in any task, but a task group has to end in the task where it began.
    """

    def __init__(
        self, enter: Callable[[], AbstractAsyncContextManager[Any]], at_end: Callable[[], Awaitable[None]]
    ) -> None:
        self.value: Any = None
        self._enter = enter
        self._at_end = at_end
        self._users = 0
        self.ending = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self.loop.create_future()
        self.task = self.loop.create_task(self._run(), context=contextvars.Context())

    @property
    def is_on_this_loop(self) -> bool:
        return self.loop is asyncio.get_running_loop()

    @property
    def runs_on_another_loop(self) -> bool:
        """Whether it runs on another loop; False if that loop has died."""
        return not self.is_on_this_loop and self.loop.is_running() and not self.task.done()

    async def acquire(self) -> None:
        """Add a user and wait until the lifespan is entered; raises its exception."""
        self._users += 1
        try:
            await asyncio.shield(self._started)
        except BaseException:
            await self.release()
            raise

    async def release(self) -> None:
        """Remove a user. After the last one, wait for the lifespan to exit; re-raise its exception."""
        self._users -= 1
        if self._users:
            return
        self.ending.set()
        if self._started.done():
            await asyncio.shield(self.task)
        else:  # all users were removed while it is still being entered
            self.task.cancel()
            await asyncio.wait([self.task])

    async def _run(self) -> None:
        try:
            async with self._enter() as self.value:
                self._started.set_result(None)
                await self.ending.wait()
                await self._at_end()
        except Exception as failure:
            if self._started.done():
                raise
            self._started.set_exception(failure)
        finally:
            self.ending.set()
            if not self._started.done():
                self._started.set_exception(ConnectionLost("The server was stopped while it started"))
                self._started.exception()  # mark it as retrieved: there may be no user left
