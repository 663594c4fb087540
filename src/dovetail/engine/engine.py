"""The engine: a server's catalogues, limits, settings and lifespan, and what the handlers ask of them."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from dovetail import engine as lazy
from dovetail import state as lazy_state
from dovetail.engine.concurrency import Limit, ToolLimits
from dovetail.engine.dispatch import Middleware, Step, compile_chain
from dovetail.engine.handlers import guarded
from dovetail.engine.options import Options
from dovetail.engine.redaction import Redactor, guard_loggers
from dovetail.engine.request_context import RequestContext
from dovetail.engine.resources import Resources
from dovetail.engine.subscriptions import LIST_KINDS, Change, ChangeKind, Hub, Refresher
from dovetail.engine.threads import ThreadPool
from dovetail.engine.workers import keep_sharing, random_secrets, shared_secrets
from dovetail.errors import ConnectionLost, SetupError
from dovetail.protocol import revisions
from dovetail.protocol.capabilities import ServerCapabilities
from dovetail.protocol.results import ReadResourceResult, Shaper
from dovetail.protocol.types import Implementation
from dovetail.registry.catalog import Catalog
from dovetail.registry.tools import Tool

if TYPE_CHECKING:
    from dovetail.engine.audit import AuditTrail
    from dovetail.engine.client_requests import Elicitations
    from dovetail.engine.request_state import Sealer
    from dovetail.registry.prompts import Completer, Prompt
    from dovetail.registry.registration import AccessRule
    from dovetail.registry.resources import Template
    from dovetail.state.base import StateBackend

MAX_STEPS = 500_000  # that are kept in mind, unless they need more memory than a MemoryState takes
log = logging.getLogger("dovetail")

START_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds, for a store that is not there yet
STEP_SECONDS = 5.0  # that steps of calls which are over get when the server stops


class Engine:
    """Everything a server is made of, without the ways to reach it."""

    def __init__(self, info: Implementation, options: Options, tools: Catalog[Tool]) -> None:
        self.info = info
        self.options = options
        self.masks_errors = options.mask_error_details
        self.secrets = options.secret or random_secrets()  # workers that are forked later inherit them
        self.redactor = Redactor(options.redact)
        guard_loggers(options.redact)
        most = options.max_threads
        self.threads = ThreadPool(most, max_stuck=max(100, 2 * most), share=max(1, most // 2))
        self._state: StateBackend | None = None  # until somebody needs it, or gives one
        self._elicitations: Elicitations | None = None  # from the first one on
        self.running_steps: set[asyncio.Task[Any]] = set()
        self.store_life = ""  # as it was last known
        self.tools = tools
        self._open_limits()
        self.shapers = {row.name: Shaper(row, options.style, info) for row in revisions.ALL}
        self.prompts: Catalog[Prompt] = Catalog("prompt")
        files_changed = partial(self._catalog_changed, "resources", by_files=True)
        self.library = Resources(self.threads, options.hint, self._file_changed, files_changed)
        self.completers: dict[tuple[str, str, str], Completer] = {}
        self.hub = Hub(self.library.watch)
        self.audit: AuditTrail | None = lazy.audit.AuditTrail(self) if options.audit is not False else None
        self._middleware: list[Middleware] = []
        is_watched = options.rate_limit or self.audit is not None
        self.chain: Step | None = compile_chain(self, ()) if is_watched else None  # if anything is in it
        self.open_methods: frozenset[str] = frozenset()  # which nobody need be checked for; none until they are known
        self._offer: ServerCapabilities | None = None
        self._offer_changes = 0
        self._offer_lock = threading.Lock()
        self._life: RunningLifespan | None = None
        self._is_serving = False  # the lifespan has been entered
        self.refresher: Refresher | None = None  # from the first function on
        self._sealer: Sealer | None = None
        for catalog, kind in self._catalogs():
            catalog.on_change(partial(self._catalog_changed, kind))

    def _catalogs(self) -> list[tuple[Catalog[Any], ChangeKind]]:
        return [
            (self.tools, "tools"),
            (self.prompts, "prompts"),
            (self.library.resources, "resources"),
            (self.library.templates, "resources"),
        ]

    def scopes_in_use(self) -> frozenset[str]:
        """All that any tool, resource or prompt needs."""
        rules = [rules for catalog, _ in self._catalogs() if (rules := catalog.snapshot.rules) is not None]
        return frozenset[str]().union(*(each.scopes for each in rules))

    def _catalog_changed(self, kind: ChangeKind, *, by_files: bool = False) -> None:
        """`by_files`: files have come or gone, which every worker finds by itself."""
        self._forget_offer()
        refreshed = None if self.refresher is None else self.refresher.changed
        if refreshed is not None and not by_files:
            refreshed.add(kind)
            return
        if not by_files and self._state is not None and self._state.shared and self._is_serving:
            log.warning("%s changed at this worker; others do not have that unless on_refresh brings it there", kind)
        self.publish(Change(kind))

    def on_refresh(self, function: Callable[[], Any]) -> None:
        if self.refresher is None:
            self.refresher = Refresher(self)
        self.refresher.add(function)

    def use(self, middleware: Middleware) -> None:
        self._middleware.append(middleware)
        self.chain = compile_chain(self, self._middleware)

    # ── what is offered ──

    @property
    def offer(self) -> ServerCapabilities:
        """Made when somebody asks, and again after every change of a catalogue."""
        return self._offer or self._make_offer()

    def _make_offer(self) -> ServerCapabilities:
        changes = self._offer_changes
        options = self.options
        offer = ServerCapabilities(
            names=self._offered(), list_changed=options.list_changed, experimental=options.experimental
        )
        with self._offer_lock:
            if changes == self._offer_changes:  # else something changed meanwhile, in another thread
                self._offer, self.open_methods = offer, offer.open_methods()
        return offer

    def _forget_offer(self) -> None:
        """In any thread, when what it is made of has changed."""
        with self._offer_lock:
            self._offer_changes += 1
            self._offer, self.open_methods = None, frozenset()

    def offer_to(self, context: RequestContext) -> ServerCapabilities:
        """What is offered to whoever makes a request; less where a handshake client has no session."""
        sessionless = context.sessions is None and context.request.revision.handshake
        return self.offer.without_sessions() if sessionless else self.offer

    def _offered(self) -> frozenset[str]:
        # A tool's choices alone offer no completions: completing tools is our own addition, which no client looks for.
        completable: list[Prompt | Any] = [*self.prompts.all(), *self.library.templates.all()]
        present = {
            "tools": self.tools.ever_used,
            "resources": self.library.resources.ever_used or self.library.templates.ever_used,
            "prompts": self.prompts.ever_used,
            "completions": bool(self.completers or self.library.folders()) or any(item.choices for item in completable),
            "logging": self.options.logging,
        }
        return frozenset(name for name, there in present.items() if there) | frozenset(self.options.declare)

    def announced_kinds(self) -> list[ChangeKind]:
        """The lists whose changes a handshake session that begins now is promised to hear of."""
        return [kind for kind in LIST_KINDS if kind in self.offer.names] if self.options.list_changed else []

    def _open_limits(self) -> None:
        self.limit = Limit(self.options.max_concurrency, self.options.max_queue, subject="The server")
        self.limits = (self.limit,)  # those of every call
        shared = self._state if self._state is not None and self._state.shared else None
        self.book = ToolLimits(self.tools, self.options, shared)

    def add_completer(self, kind: str, name: str, argument: str, completer: "Completer") -> None:
        key = (kind, name, argument)
        if key in self.completers:
            raise SetupError(f"There is already a completion for the argument {argument!r} of {name!r}")
        self.completers[key] = completer
        self._forget_offer()

    def _check_completers(self) -> None:
        """What they name has to be there when serving begins, and may go later. Raises SetupError."""
        catalogs: dict[str, Catalog[Any]]
        catalogs = {"ref/prompt": self.prompts, "ref/resource": self.library.templates, "ref/tool": self.tools}
        for (kind, name, argument), completer in self.completers.items():
            completer.check(catalogs[kind], name, argument)

    def choices(self, kind: str, name: str) -> "tuple[Mapping[str, Sequence[str]], AccessRule | None] | None":
        """The closed sets of a thing's arguments, and who may use it; None if there is no such thing."""
        thing: Tool | Prompt | Template | None
        if kind != "ref/resource":
            thing = self.prompts.get(name) if kind == "ref/prompt" else self.tools.get(name)
        elif (thing := self.library.templates.get(name)) is None:
            whole = self.library.get(name)
            return None if whole is None else ({}, whole.access)  # a URI that has all its values
        return None if thing is None else (thing.choices, thing.access)

    # ── resources and changes ──

    async def read(self, uri: str, context: RequestContext, call: Callable[..., Any] = guarded) -> ReadResourceResult:
        """As the caller; `call` runs the function."""

        def may_read(rule: "AccessRule") -> Awaitable[bool]:
            return lazy.access.may_use(self, context, rule)

        def is_for_all() -> bool:
            return context.client_requests is None

        contents = await self.library.read(uri, partial(call, self, context), may_read, is_for_all)
        if context.client_requests is None:
            return contents
        return ReadResourceResult(
            contents.items
        )  # it may depend on what somebody answered: not for others, nor for later

    def _file_changed(self, uri: str) -> None:
        self.publish(Change("updated", uri))

    def publish(self, change: Change) -> None:
        """Tell everyone who asked, if changes are announced at all; from any thread."""
        if change.uri or self.options.list_changed:
            self.hear(change)

    def hear(self, change: Change, *, from_afar: bool = False) -> None:
        """Of a change, here or at another worker."""
        if change.uri:
            self.library.forget(change.uri)
        elif from_afar and change.kind == "resources":
            self.library.look_again()
        self.hub.publish(change, from_afar=from_afar)

    # ── what all workers have to know ──

    @property
    def state(self) -> "StateBackend":
        """Steps that were taken, the secret if none is given. Sessions lie elsewhere, unless this is shared."""
        if self._state is None:
            memory = lazy_state.memory  # of which steps can't have all: callers make them
            self._state = memory.MemoryState(max_entries=2 * MAX_STEPS, max_entry_bytes=128 * memory.MEBIBYTE)
        return self._state

    @state.setter
    def state(self, state: "StateBackend") -> None:
        self._state = state

    def let_go_of(self, state: "StateBackend") -> None:
        """It is closed."""
        if self._state is state:
            self._state = None

    @property
    def elicitations(self) -> "Elicitations":
        if self._elicitations is None:
            self._elicitations = lazy.client_requests.Elicitations()
        return self._elicitations

    def session_left(self, id: str) -> None:
        """The session has ended: its client is told nothing more."""
        if self._elicitations is not None:
            self._elicitations.left(id)

    @property
    def sealer(self) -> "Sealer":
        if self._sealer is None or self._sealer.secrets != self.secrets:
            self._sealer = lazy.request_state.Sealer(self.secrets)
        return self._sealer

    # ── life ──

    @property
    def lifespan_value(self) -> Any:
        """What the lifespan yielded."""
        return None if self._life is None else self._life.value

    async def start(self, owner: Any = None) -> None:
        """One more user; the first one enters the lifespan. `owner` is what it is called with."""
        while (life := self._life) is not None and life.is_here and life.is_ending:
            await life.ended()
            if self._life is life:  # nobody else was quicker
                self._life = None
        if self._life is not None and self._life.is_elsewhere:
            raise RuntimeError(f"The server {self.info.name!r} runs on another event loop; make one for each loop")
        if self._life is None or not self._life.is_here:
            self.hub.begin()
            self.threads.open()
            self._open_limits()  # a loop that died in mid-call has left slots taken
            self._life = RunningLifespan(partial(self._living, owner), self._end)
        await self._life.join()

    @asynccontextmanager
    async def _living(self, owner: Any) -> AsyncIterator[Any]:
        """The lifespan, entered once it is known which secrets all who share the state use."""
        lifespan = self.options.lifespan
        try:
            async with self._agreeing(), nullcontext() if lifespan is None else lifespan(owner) as value:
                self._check_completers()  # only now: a lifespan may register prompts too
                self._is_serving = True
                self.library.begin(watching=self.options.list_changed)
                yield value
        finally:
            self._is_serving = False

    @asynccontextmanager
    async def _agreeing(self) -> AsyncIterator[None]:
        state = self._state
        if self.options.secret or state is None:  # there is nobody to agree with
            yield
            return
        await self._agree(state)
        keeping = asyncio.get_running_loop().create_task(keep_sharing(state, self))
        try:
            yield
        finally:
            with suppress(RuntimeError):  # a loop that has died is torn down from elsewhere
                keeping.cancel()

    async def _agree(self, state: "StateBackend") -> None:
        """Waits for a store that is out of reach, but not for ever."""
        for pause in START_PAUSES:
            try:
                self.secrets = await shared_secrets(state, self.secrets)
                return
            except lazy_state.base.StoreUnavailable as failure:
                log.warning("the server can't start yet: %s", failure.message)
                await asyncio.sleep(pause)
        self.secrets = await shared_secrets(state, self.secrets)

    async def stop(self) -> None:
        """One user less; after the last all listening ends and the lifespan is left. It may be started again."""
        if self._life is not None:
            await self._life.leave()

    async def _end(self) -> None:
        self.hub.end_all()
        await self.book.close()
        if self.running_steps:
            await asyncio.wait(self.running_steps, timeout=STEP_SECONDS)
        await self.library.close()
        self.threads.close()


class RunningLifespan:
    """The lifespan of a server: entered by its first user, left after its last, in one task of its own.

    Users may come and go in any task, and a lifespan may hold what has to end where it began. `value` is what the
    lifespan yielded; `at_end` runs before it is left.
    """

    def __init__(
        self, enter: Callable[[], AbstractAsyncContextManager[Any]], at_end: Callable[[], Awaitable[None]]
    ) -> None:
        self.value: Any = None
        self._enter = enter
        self._at_end = at_end
        self._users = 0
        self._ending = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._task = self._loop.create_task(self._run(), context=contextvars.Context())

    @property
    def is_here(self) -> bool:
        """Whether it lives on this loop; one that was left behind on a dead loop counts no more."""
        return self._loop is asyncio.get_running_loop()

    @property
    def is_elsewhere(self) -> bool:
        """Whether it lives on another loop that still runs."""
        return not self.is_here and self._loop.is_running() and not self._task.done()

    @property
    def is_ending(self) -> bool:
        return self._ending.is_set()

    async def ended(self) -> None:
        await asyncio.wait([self._task])

    async def join(self) -> None:
        """One more user; returns when the lifespan is entered, raises what it raised."""
        self._users += 1
        try:
            await asyncio.shield(self._started)
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """One user less. The last one waits until the lifespan is left, and is told what went wrong there."""
        self._users -= 1
        if self._users:
            return
        self._ending.set()
        if self._started.done():
            await asyncio.shield(self._task)
        else:  # nobody wants any more what is still being set up
            self._task.cancel()
            await self.ended()

    async def _run(self) -> None:
        try:
            async with self._enter() as self.value:
                self._started.set_result(None)
                await self._ending.wait()
                await self._at_end()
        except Exception as failure:
            if self._started.done():
                raise
            self._started.set_exception(failure)
        finally:
            self._ending.set()
            if not self._started.done():
                self._started.set_exception(ConnectionLost("The server was stopped while it started"))
                self._started.exception()  # seen: there may be nobody left who waits for it
