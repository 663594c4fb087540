"""Subscriptions to changes: the hub of one process, the log of all workers, and `server.refresh()`.

A subscription holds each pending change once, so a slow reader costs no memory and misses no change. Workers that share
a state write their changes to a log in it, which sessions read, and relay those of other workers to their own hub.
"""

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dovetail import state as lazy_state

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine
    from dovetail.engine.sessions import SessionHandle
    from dovetail.engine.workers import WorkerLease
    from dovetail.state.base import Codec, Listener, LogPage, StateBackend

ChangeKind = Literal["tools", "prompts", "resources", "updated"]
LIST_KINDS: tuple[ChangeKind, ...] = ("tools", "prompts", "resources")

LOG = "changes"
REFRESH = "refresh"  # the counter, and the topic
RETRY_DELAY = 0.5  # seconds
log = logging.getLogger("dovetail")


class Change(msgspec.Struct, frozen=True):
    """A list that changed, or one resource (`updated`, with its URI)."""

    kind: ChangeKind
    uri: str = ""

    @property
    def method(self) -> str:
        return "notifications/resources/updated" if self.uri else f"notifications/{self.kind}/list_changed"


class Subscription:
    """The kinds of lists and the URIs whose changes one client wants. Read it with `async for`."""

    def __init__(self, hub: "Hub", kinds: Iterable[ChangeKind], uris: Iterable[str], *, is_log: bool = False) -> None:
        self._hub = hub
        self.is_log = is_log  # it takes any URI, for the log of all workers
        self.kinds = frozenset(kinds)
        self.uris: set[str] = set()
        self.closed = False
        self._pending: dict[Change, None] = {}
        self.accepted = 0  # changes that ever were pending
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._wakeup = asyncio.Event()
        for uri in uris:
            self.add_uri(uri)

    def add_uri(self, uri: str) -> None:
        if uri not in self.uris:
            self.uris.add(uri)
            self._hub.retain_uri(uri)

    def remove_uri(self, uri: str) -> None:
        if uri in self.uris:
            self.uris.remove(uri)
            self._pending.pop(Change("updated", uri), None)
            self._hub.release_uri(uri)

    def wants(self, change: Change) -> bool:
        return (self.is_log or change.uri in self.uris) if change.uri else change.kind in self.kinds

    def offer(self, change: Change) -> None:
        """Add a change, if the client wants it; may be called from any thread."""
        if threading.get_ident() == self._thread and not self._loop.is_closed():
            self._put(change)
            return
        try:
            self._loop.call_soon_threadsafe(self._put, change)
        except RuntimeError:  # the loop was closed without `end`
            self._hub.forget(self)

    def _put(self, change: Change) -> None:
        if self.closed or not self.wants(change):
            return
        self.accepted += change not in self._pending
        self._pending[change] = None
        if self.is_log and (made := changes_made.get()) is not None:
            made[self] = self.accepted
        self._wakeup.set()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Change:
        while not self._pending:
            if self.closed:
                raise StopAsyncIteration
            self._wakeup.clear()
            await self._wakeup.wait()
        change = next(iter(self._pending))
        del self._pending[change]
        return change

    def end(self) -> None:
        """Take no more changes; a reader gets those that are pending and then stops."""
        if not self.closed:
            self.closed = True
            self._hub.forget(self)
            for uri in self.uris:
                self._hub.release_uri(uri)
            self._wakeup.set()


# The changes that a call made, in its threads and tasks too: how many changes the log has to have written for it.
ChangesMade = dict[Subscription, int]
changes_made: ContextVar[ChangesMade | None] = ContextVar("changes made", default=None)


class Hub:
    """All subscriptions of one process. `on_uri(uri, wanted)` is called for the first to a URI and after the last."""

    def __init__(self, on_uri: Callable[[str, bool], None] = lambda *_: None) -> None:
        self._subscriptions: dict[Subscription, None] = {}
        self._uris: dict[str, int] = {}  # how often each is subscribed to
        self._on_uri = on_uri
        self._ended = False

    def begin(self) -> None:
        self._ended = False

    def subscribe(self, kinds: Iterable[ChangeKind], uris: Iterable[str] = (), *, is_log: bool = False) -> Subscription:
        subscription = Subscription(self, kinds, uris, is_log=is_log)
        self._subscriptions[subscription] = None
        if self._ended:
            subscription.end()
        return subscription

    def publish(self, change: Change, *, from_other_worker: bool = False) -> None:
        """Offer a change to all subscriptions; from any thread. One from another worker is in the log already."""
        for subscription in tuple(self._subscriptions):
            if not (from_other_worker and subscription.is_log):
                subscription.offer(change)

    def publish_all(self) -> None:
        """Other workers may have changed anything: offer each subscription all that it wants. Only on the loop."""
        for subscription in tuple(self._subscriptions):
            if not subscription.is_log:
                for change in _all_changes(subscription.kinds, subscription.uris):
                    subscription.offer(change)

    def forget(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)

    @property
    def is_heard(self) -> bool:
        return bool(self._subscriptions)

    def uris(self) -> list[str]:
        return list(self._uris)

    @property
    def uri_subscriptions(self) -> int:
        return sum(self._uris.values())

    def retain_uri(self, uri: str) -> None:
        self._uris[uri] = self._uris.get(uri, 0) + 1
        if self._uris[uri] == 1:
            self._on_uri(uri, True)

    def release_uri(self, uri: str) -> None:
        self._uris[uri] -= 1
        if not self._uris[uri]:
            del self._uris[uri]
            self._on_uri(uri, False)

    def end_all(self) -> None:
        self._ended = True
        for subscription in tuple(self._subscriptions):
            subscription.end()


def _all_changes(kinds: Iterable[str], uris: Iterable[str]) -> list[Change]:
    lists: list[Change] = [Change(kind) for kind in LIST_KINDS if kind in kinds]
    return [*lists, *(Change("updated", uri) for uri in sorted(uris))]


class LoggedChange(msgspec.Struct, frozen=True, array_like=True):
    """A change in the log, and which worker wrote it."""

    kind: ChangeKind
    uri: str
    worker: str


@functools.cache
def change_codec() -> "Codec[LoggedChange]":
    return lazy_state.base.Codec(LoggedChange, "change")


class SessionChanges(msgspec.Struct, frozen=True):
    """Changes to send to a session, each with its position if it has one; and where to go on from."""

    changes: list[tuple[Change, int | None]]
    position: int
    outages: int  # of the store, so far
    more: bool = False  # another page follows


class ChangeLog(msgspec.Struct, eq=False):
    """Writes the changes of this worker to the log, reads it for sessions, and relays other workers' to the hub."""

    _engine: "Engine"
    _state: "StateBackend"
    _lease: "WorkerLease"
    keep: int = 10_000  # changes that the log holds
    retry_delay: float = RETRY_DELAY
    write_wait: float = 3.0  # seconds that a response waits for the changes of its call
    _subscription: Subscription | None = None
    _listeners: "list[Listener]" = []
    _is_failing: bool = False
    _written: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _count: int = 0  # changes that were written, or tried
    _tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._subscription = self._engine.hub.subscribe(LIST_KINDS, is_log=True)
        self._tasks.append(asyncio.create_task(self._write(self._subscription)))
        if self._state.shared:
            self._listen(LOG, self._relay)
            if (refresher := self._engine.refresher) is not None:
                self._listen(REFRESH, functools.partial(refresher.follow, self._state))

    def _listen(self, topic: str, work: "Callable[[Listener], Coroutine[Any, Any, None]]") -> None:
        listener = self._state.listen([topic])
        self._listeners.append(listener)
        self._tasks.append(asyncio.create_task(work(listener)))

    async def stop(self) -> None:
        """Stop after all changes that were published before are written."""
        for listener in self._listeners:
            listener.close()
        for task in self._tasks[1:]:
            task.cancel()  # a function of on_refresh may take its time
        if self._subscription is not None:
            self._subscription.end()
            await asyncio.wait(self._tasks)

    async def _write(self, subscription: Subscription) -> None:
        async for change in subscription:
            logged = LoggedChange(change.kind, change.uri, self._lease.id)
            try:
                # It must not expire: a position in it would be taken for one in the next log.
                ttl = lazy_state.base.MAX_TTL
                await self._state.append(LOG, change_codec().encode(logged), keep=self.keep, ttl=ttl)
                self._is_failing = False
            except UnicodeEncodeError as failure:
                log.warning("a change is not sent to other workers: its URI is not valid UTF-8: %s", failure)
            except Exception as failure:  # of any kind: sessions would wait for ever
                if not self._is_failing:
                    log.warning("a change could not be written and is tried again and again: %s", failure)
                self._is_failing = True
                self._written.set()
                if subscription.closed:
                    return
                subscription.offer(change)
                await asyncio.sleep(self.retry_delay)
            self._count += 1
            self._written.set()

    def track_changes(self) -> ChangesMade | None:
        """Count the changes that the running call makes from now on; None without other workers."""
        if not self._state.shared:
            return None
        if (made := changes_made.get()) is None:
            changes_made.set(made := {})
        return made

    async def wait_until_written(self, made: ChangesMade) -> None:
        """Wait a while for the changes of a call: once it is answered, its client may rely on them being in the log."""
        number = 0 if self._subscription is None else made.get(self._subscription, 0)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.write_wait):
                while self._count < number and not self._is_failing:
                    self._written.clear()
                    await self._written.wait()

    async def _relay(self, listener: "Listener") -> None:
        """Relay other workers' changes to the hub. At the start, and after an outage, everything may have changed."""
        position, outages = 0, -1
        while not listener.closed:
            try:
                if outages != self._state.outages:
                    current = self._state.outages
                    position = await self.position()
                    self._engine.hub.publish_all()
                    outages = current
                position = await self._relay_after(position, outages)
            except Exception as failure:
                log.debug("changes could not be read: %s", failure)
                await asyncio.sleep(self.retry_delay)
                continue
            if not await listener.wait():
                return

    async def _relay_after(self, position: int, outages: int) -> int:
        """Relay changes after a position; returns the new position, or the old one after another outage."""
        while True:
            page = await self._state.read(LOG, position)
            if outages != self._state.outages:
                return position
            if _is_gap(page, position):
                self._engine.hub.publish_all()
                return page.last
            for record in page.records:
                logged = change_codec().decode(record.data)
                if logged is not None and logged.worker != self._lease.id:
                    self._engine.apply_change(Change(logged.kind, logged.uri), from_other_worker=True)
            if not page.records:
                return page.last
            position = page.records[-1].id

    async def position(self) -> int:
        return (await self._state.read(LOG, 0, 0)).last

    @property
    def outages(self) -> int:
        return self._state.outages

    async def changes_for(self, session: "SessionHandle", after: int, outages: int) -> SessionChanges:
        """The changes after a position that a session wants, each once; all that it wants if some were lost since.

        The session is read after the log: what it subscribed to before a change counts.
        """
        page = await self._state.read(LOG, after)
        current = self._state.outages
        is_gap = outages != current or _is_gap(page, after)
        if (page.records or is_gap) and not await session.reload():
            return SessionChanges([], after, outages)
        announced, subscriptions = session.record.announced, session.record.subscriptions
        if is_gap:
            everything = _all_changes(announced, subscriptions)
            return SessionChanges([(change, None) for change in everything], page.last, current)
        latest: dict[Change, int | None] = {}
        for record in page.records:
            logged = change_codec().decode(record.data)
            if logged is None or not (logged.uri in subscriptions if logged.uri else logged.kind in announced):
                continue
            change = Change(logged.kind, logged.uri)
            latest.pop(change, None)  # at its last position, so that positions only grow
            latest[change] = record.id
        position = page.records[-1].id if page.records else page.last
        return SessionChanges(list(latest.items()), position, current, position < page.last)


def _is_gap(page: "LogPage", position: int) -> bool:
    """Whether the log has lost records after a position, or the position is in another log."""
    return position > page.last or position < page.first - 1


class Refresher:
    """The functions of `on_refresh`, and the number of the last refresh at this worker.

    The state counts the refreshes; a worker that is behind runs the functions, and announces changed lists.
    """

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._functions: list[Callable[[], Any]] = []
        self._lock = asyncio.Lock()
        self.count = 0
        self.changed: set[ChangeKind] | None = None  # the lists that the running functions change; announced at the end

    def add(self, function: Callable[[], Any]) -> None:
        self._functions.append(function)

    def functions(self) -> list[Callable[[], Any]]:
        """Those of the server, and of all that are mounted there."""
        below = [child.refresher for child in self._engine.mounted_engines() if child.refresher is not None]
        return [*self._functions, *(function for each in below for function in each.functions())]

    async def refresh(self) -> None:
        """Have every worker run the functions; return when this worker has. Raises what a function raises here."""
        state = self._engine.state
        count = await state.add(REFRESH, 1, lazy_state.base.MAX_TTL)
        if count <= self.count:  # the store has lost it
            count = await state.add(REFRESH, self.count, lazy_state.base.MAX_TTL)
        await state.publish(REFRESH)
        await self._run(count)

    async def _run(self, count: int) -> None:
        async with self._lock:
            if count <= self.count:
                return
            self.changed = changed = set[ChangeKind]()
            try:
                for function in self.functions():
                    is_async = inspect.iscoroutinefunction(function)
                    value = function() if is_async else await self._engine.threads.run(function, label="on_refresh")
                    if inspect.isawaitable(value):
                        await value
            finally:
                self.changed = None
                self.count = count
                for kind in sorted(changed):
                    self._engine.publish(Change(kind))

    async def follow(self, state: "StateBackend", listener: "Listener") -> None:
        """Run the functions after each refresh of another worker, until the listener is closed."""
        while not listener.closed:
            try:
                await self.catch_up(state)
            except lazy_state.base.StoreUnavailable:
                await asyncio.sleep(RETRY_DELAY)
                continue
            if not await listener.wait():
                return

    async def catch_up(self, state: "StateBackend") -> None:
        entry = await state.get(REFRESH)
        if entry is None and self.count:  # the store has lost it, and workers that start later have to know it
            await state.claim(REFRESH, b"%d" % self.count, lazy_state.base.MAX_TTL)
        count = int(entry.value) if entry is not None and entry.value.isdigit() else self.count
        if count < self.count:  # the store has lost it, and another worker began anew
            self.count = 0
        if count > self.count:
            try:
                await self._run(count)
            except Exception:
                log.exception("a function of on_refresh failed")
