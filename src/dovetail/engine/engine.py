"""The engine of a server: its catalogs, limits, options, state and lifespan."""

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from dovetail import engine as lazy
from dovetail import state as lazy_state
from dovetail.engine.concurrency import CallLimits, Limit
from dovetail.engine.dispatch import Layer, Middleware, compile_chain
from dovetail.engine.handlers import call_function
from dovetail.engine.options import Options, random_secrets
from dovetail.engine.redaction import Redactor, guard_loggers
from dovetail.engine.request_context import RequestContext
from dovetail.engine.resources import Resources
from dovetail.engine.subscriptions import LIST_KINDS, Change, ChangeKind, Hub, Refresher
from dovetail.engine.threads import ThreadPool
from dovetail.engine.workers import LeaseTimings, keep_secrets_shared, shared_secrets
from dovetail.errors import ConnectionLost, SetupError
from dovetail.protocol import revisions
from dovetail.protocol.capabilities import ServerCapabilities
from dovetail.protocol.results import ReadResourceResult, Shaper
from dovetail.protocol.types import IDEMPOTENCY_KEY, Implementation
from dovetail.registry.catalog import Catalog
from dovetail.registry.registration import Idempotency
from dovetail.registry.tools import Tool

if TYPE_CHECKING:
    from dovetail.engine.audit import AuditTrail
    from dovetail.engine.request_state import Sealer
    from dovetail.engine.result_cache import ResultCache
    from dovetail.engine.server_requests import UrlElicitations
    from dovetail.engine.workers import WorkerLease
    from dovetail.registry.prompts import Completer, Prompt
    from dovetail.registry.registration import AccessRule
    from dovetail.registry.resources import Template
    from dovetail.state.base import StateBackend

MAX_STEP_RECORDS = 500_000  # in memory, unless they need more of it than a MemoryState takes
START_RETRY_DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds, for a store that is unavailable when the server starts
STEP_WAIT = 5.0  # seconds that steps of ended calls get when the server stops
log = logging.getLogger("dovetail")


class Engine:
    """A server without its transports."""

    def __init__(self, info: Implementation, options: Options, tools: Catalog[Tool]) -> None:
        self.info = info
        self.options = options
        self.masks_errors = options.mask_error_details
        self.secrets = options.secret or random_secrets()  # workers that are forked later inherit them
        self.redactor = Redactor(options.redact)
        guard_loggers(options.redact)
        most = options.max_threads
        self.threads = ThreadPool(most, max_stuck=max(100, 2 * most), share=max(1, most // 2))
        self.lease_timings = LeaseTimings()
        self._state: StateBackend | None = None  # until it is needed, or set
        self._random_name = os.urandom(8).hex()
        self._elicitations: UrlElicitations | None = None  # from the first one on
        self.lease: WorkerLease | None = None  # of the transport, or from the first call with a key on
        self.running_steps: set[asyncio.Task[Any]] = set()
        self.store_generation = ""  # as it was last known
        self.tools = tools
        self._open_limits()
        self.shapers = {row.name: Shaper(row, options.style, info) for row in revisions.ALL}
        self.prompts: Catalog[Prompt] = Catalog("prompt")
        files_changed = partial(self._catalog_changed, "resources", by_files=True)
        self.resources = Resources(self.threads, options.hint, self.publish, files_changed)
        self.completers: dict[tuple[str, str, str], Completer] = {}
        # Each brings catalogs that are fetched from elsewhere up to date; empty for most servers.
        self.before_list: list[Callable[[RequestContext], Awaitable[None]]] = []
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.hub = Hub(self.resources.watch)
        self.audit: AuditTrail | None = lazy.audit.AuditTrail(self) if options.audit is not False else None
        self._middleware: list[Middleware] = []
        has_own_middleware = options.rate_limit or self.audit is not None
        self.chain: Layer | None = compile_chain(self, ()) if has_own_middleware else None
        self.unconditional_methods: frozenset[str] = frozenset()  # need no check of capabilities; none until known
        self._capabilities: ServerCapabilities | None = None
        self._capability_changes = 0
        self._capabilities_lock = threading.Lock()
        self._lifespan: RunningLifespan | None = None
        self._is_serving = False  # the lifespan has been entered
        self.refresher: Refresher | None = None  # from the first function on
        self._sealer: Sealer | None = None
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
        self._forget_capabilities()
        refreshed = None if self.refresher is None else self.refresher.changed
        if refreshed is not None and not by_files:
            refreshed.add(kind)
            return
        by_itself = by_files or bool(self.before_list)  # each worker fetches them
        if not by_itself and self._state is not None and self._state.shared and self._is_serving:
            log.warning("%s changed at this worker; others do not have that unless on_refresh brings it there", kind)
        self.publish(Change(kind))

    def on_refresh(self, function: Callable[[], Any]) -> None:
        self.refresher = self.refresher or Refresher(self)
        self.refresher.add(function)

    def use(self, middleware: Middleware) -> None:
        self._middleware.append(middleware)
        self.chain = compile_chain(self, self._middleware)

    def _open_limits(self) -> None:
        self.limit = Limit(self.options.max_concurrency, self.options.max_queue, subject="The server")
        self.limits = (self.limit,)  # those of every call
        shared = self._state if self._state is not None and self._state.shared else None
        self.call_limits = CallLimits(self.tools, self.options, shared, self.lease_timings)
        most = self.options.max_concurrency + self.options.max_queue
        self.waiting = Limit(most, 0, subject="The server")  # calls that wait for the result of another
        self.keyed_runs: set[str] = set()  # ids of the runs with an idempotency key whose outcome is not stored
        self.result_cache: ResultCache | None = None  # from the first result on

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities of the server, computed at first use and again after every change of a catalog."""
        return self._capabilities or self._make_capabilities()

    def _make_capabilities(self) -> ServerCapabilities:
        changes, options, resources = self._capability_changes, self.options, self.resources
        # A tool's choices alone offer no completions: completing tools is our own addition, which no client looks for.
        completable: list[Prompt | Any] = [*self.prompts.all(), *resources.templates.all()]
        present = {
            "tools": self.tools.ever_used,
            "resources": resources.direct.ever_used or resources.templates.ever_used,
            "prompts": self.prompts.ever_used,
            "completions": bool(self.completers or resources.folders()) or any(item.choices for item in completable),
            "logging": options.logging,
        }
        names = frozenset(name for name, is_present in present.items() if is_present) | frozenset(options.declare)
        experimental = dict(options.experimental)
        if any(isinstance(tool.reuse, Idempotency) for tool in self.tools.all()):
            # so that clients look which tools they are
            experimental.setdefault(IDEMPOTENCY_KEY, {} if self.state.shared else {"process": self.process})
        made = ServerCapabilities(names=names, list_changed=options.list_changed, experimental=experimental)
        with self._capabilities_lock:
            if changes == self._capability_changes:  # else another thread has changed a catalog meanwhile
                self._capabilities, self.unconditional_methods = made, made.unconditional_methods()
        return made

    def _forget_capabilities(self) -> None:
        """Drop the computed capabilities after a catalog has changed; may be called from any thread."""
        with self._capabilities_lock:
            self._capability_changes += 1
            self._capabilities, self.unconditional_methods = None, frozenset()

    def capabilities_for(self, context: RequestContext) -> ServerCapabilities:
        """The capabilities that a client gets: fewer if a handshake client has no session."""
        sessionless = context.session_access is None and context.request.revision.handshake
        return self.capabilities.without_sessions() if sessionless else self.capabilities

    def announced_kinds(self) -> list[ChangeKind]:
        """The lists whose changes are announced to a handshake session that begins now."""
        return [kind for kind in LIST_KINDS if kind in self.capabilities.names] if self.options.list_changed else []

    def add_completer(self, kind: str, name: str, argument: str, completer: "Completer") -> None:
        key = (kind, name, argument)
        if key in self.completers:
            raise SetupError(f"There is already a completion for the argument {argument!r} of {name!r}")
        self.completers[key] = completer
        self._forget_capabilities()

    def _check_completers(self) -> None:
        """Raises SetupError if a completer's target does not exist when serving begins; later it may be removed."""
        catalogs: dict[str, Catalog[Any]]
        catalogs = {"ref/prompt": self.prompts, "ref/resource": self.resources.templates, "ref/tool": self.tools}
        for (kind, name, argument), completer in self.completers.items():
            completer.check(catalogs[kind], name, argument)

    def choices(self, kind: str, name: str) -> "tuple[Mapping[str, Sequence[str]], AccessRule | None] | None":
        """The closed sets of values for the arguments of a completion target, and its access rule; None if unknown."""
        target: Tool | Prompt | Template | None
        if kind != "ref/resource":
            target = self.prompts.get(name) if kind == "ref/prompt" else self.tools.get(name)
        elif (target := self.resources.templates.get(name)) is None:
            resource = self.resources.get(name)  # `name` may be a URI with all its values
            return None if resource is None else ({}, resource.access)
        return None if target is None else (target.choices, target.access)

    async def read(
        self, uri: str, context: RequestContext, call: Callable[..., Any] = call_function
    ) -> ReadResourceResult:
        """Read as the caller of a request; `call` runs the function."""
        contents = await self.resources.read(
            uri, partial(call, self, context), may_read=lambda rule: lazy.access.may_use(self, context, rule)
        )
        # What depends on a user's answer or state is without a cache hint: it is not for other users, nor for later.
        is_for_all = context.server_requests is None and not context.uses_state
        return contents if is_for_all else ReadResourceResult(contents.items)

    async def fetch_catalogs(self, context: RequestContext) -> None:
        for fetch in self.before_list:
            await fetch(context)

    def publish(self, change: Change) -> None:
        """Notify the subscriptions, if changes are announced at all; may be called from any thread."""
        if change.uri or self.options.list_changed:
            self.apply_change(change)

    def apply_change(self, change: Change, *, from_other_worker: bool = False) -> None:
        if change.uri:
            self.resources.forget(change.uri)
        elif from_other_worker and change.kind == "resources":
            self.resources.mark_files_stale()
        self.hub.publish(change, from_other_worker=from_other_worker)

    @property
    def state(self) -> "StateBackend":
        """The state backend of steps, and of the secret if none is given. Sessions use it only if it is shared."""
        if self._state is None:
            memory = lazy_state.memory  # steps can fill no more than three quarters of it: callers make them
            self._state = memory.MemoryState(max_entries=2 * MAX_STEP_RECORDS, max_entry_bytes=128 * memory.MEBIBYTE)
        return self._state

    @state.setter
    def state(self, state: "StateBackend") -> None:
        self._state = state
        self._forget_capabilities()

    def release_state(self, state: "StateBackend") -> None:
        """Stop using a state backend that was closed."""
        if self._state is state:
            self._state = None

    @property
    def process(self) -> str:
        """A name for the memory that holds the state if it is not shared; a fork has another one."""
        return f"{self._random_name}-{os.getpid()}"

    @property
    def elicitations(self) -> "UrlElicitations":
        self._elicitations = self._elicitations or lazy.server_requests.UrlElicitations()
        return self._elicitations

    def session_ended(self, id: str) -> None:
        """Forget the elicitations of a session that has ended: its client gets no more notifications of them."""
        if self._elicitations is not None:
            self._elicitations.forget_session(id)

    @property
    def sealer(self) -> "Sealer":
        if self._sealer is None or self._sealer.secrets != self.secrets:
            self._sealer = lazy.request_state.Sealer(self.secrets)
        return self._sealer

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
            self._open_limits()  # a loop that died in mid-call has left slots taken
            self._lifespan = RunningLifespan(partial(self._serving, owner), self._end)
        await self._lifespan.acquire()

    @asynccontextmanager
    async def _serving(self, owner: Any) -> AsyncIterator[Any]:
        """The lifespan, entered once the secrets of all workers are known."""
        lifespan = self.options.lifespan
        try:
            async with self._secrets_shared(), nullcontext() if lifespan is None else lifespan(owner) as value:
                self._check_completers()  # only now: a lifespan may register prompts too
                self._is_serving = True
                self.resources.begin(watching=self.options.list_changed)
                yield value
        finally:
            self._is_serving = False

    @asynccontextmanager
    async def _secrets_shared(self) -> AsyncIterator[None]:
        """Share the secrets with all workers. Raises StoreUnavailable after the last try."""
        state = self._state
        if self.options.secret or state is None:  # no other worker needs them, or each has them already
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
        if self.running_steps:
            await asyncio.wait(self.running_steps, timeout=STEP_WAIT)
        if self.lease is not None:
            await self.lease.stop()
            self.lease = None
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
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self.task = self._loop.create_task(self._run(), context=contextvars.Context())

    @property
    def is_on_this_loop(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    @property
    def runs_on_another_loop(self) -> bool:
        """Whether it runs on another loop; False if that loop has died."""
        return not self.is_on_this_loop and self._loop.is_running() and not self.task.done()

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
