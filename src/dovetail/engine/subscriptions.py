"""Subscriptions to changes: the hub of one process, the log that all workers share, and refreshes.

A subscription keeps each pending change once, so a slow reader costs no memory and misses nothing it asked for. Workers
that share a state write their changes to a log in it. Every session reads the log from where it left off, and every
worker tells its own subscriptions what the others wrote: at least once, and after an outage of the store everything.
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
    from dovetail.protocol.session import Session
    from dovetail.state.base import Codec, Listener, LogPage, StateBackend

ChangeKind = Literal["tools", "prompts", "resources", "updated"]
LIST_KINDS: tuple[ChangeKind, ...] = ("tools", "prompts", "resources")

LOG = "changes"
REFRESH = "refresh"  # the counter, and the topic
AGAIN_SECONDS = 0.5  # after which what failed is tried again

log = logging.getLogger("dovetail")


class Change(msgspec.Struct, frozen=True):
    """A list that changed, or one resource (`updated`, with its URI)."""

    kind: ChangeKind
    uri: str = ""

    @property
    def method(self) -> str:
        return "notifications/resources/updated" if self.uri else f"notifications/{self.kind}/list_changed"


# ── in one process ──


class Subscription:
    """One listener: the kinds of lists and the URIs it asked for. Read it with `async for`."""

    def __init__(self, hub: "Hub", kinds: Iterable[ChangeKind], uris: Iterable[str], *, is_log: bool = False) -> None:
        self._hub = hub
        self.is_log = is_log  # it takes any URI, and tells other workers
        self.kinds = frozenset(kinds)
        self.uris: set[str] = set()
        self.closed = False
        self._pending: dict[Change, None] = {}
        self.accepted = 0  # changes that ever were pending
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._news = asyncio.Event()
        for uri in uris:
            self.add_uri(uri)

    def add_uri(self, uri: str) -> None:
        if uri not in self.uris:
            self.uris.add(uri)
            self._hub.uri_wanted(uri)

    def remove_uri(self, uri: str) -> None:
        if uri in self.uris:
            self.uris.remove(uri)
            self._pending.pop(Change("updated", uri), None)
            self._hub.uri_released(uri)

    def wants(self, change: Change) -> bool:
        return (self.is_log or change.uri in self.uris) if change.uri else change.kind in self.kinds

    def offer(self, change: Change) -> None:
        """From any thread."""
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
        self._news.set()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Change:
        while not self._pending:
            if self.closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        change = next(iter(self._pending))
        del self._pending[change]
        return change

    def end(self) -> None:
        """No more changes; a reader gets what is pending and then stops."""
        if not self.closed:
            self.closed = True
            self._hub.forget(self)
            for uri in self.uris:
                self._hub.uri_released(uri)
            self._news.set()


# What a call has changed, in its threads and tasks too: how many changes the log has to have written for it.
ChangesMade = dict[Subscription, int]
changes_made: ContextVar[ChangesMade | None] = ContextVar("changes made", default=None)


class Hub:
    """All subscriptions of one process. `on_uri` is called for the first that wants a URI and after the last."""

    def __init__(self, on_uri: Callable[[str, bool], None] = lambda *_: None) -> None:
        self._subscriptions: dict[Subscription, None] = {}
        self._wanted: dict[str, int] = {}
        self._on_uri = on_uri
        self._ended = False

    def begin(self) -> None:
        """The server starts, perhaps not for the first time."""
        self._ended = False

    def subscribe(self, kinds: Iterable[ChangeKind], uris: Iterable[str] = (), *, is_log: bool = False) -> Subscription:
        subscription = Subscription(self, kinds, uris, is_log=is_log)
        self._subscriptions[subscription] = None
        if self._ended:
            subscription.end()
        return subscription

    def publish(self, change: Change, *, from_afar: bool = False) -> None:
        """Tell all subscriptions that want it; from any thread. What other workers wrote is not written again."""
        for subscription in tuple(self._subscriptions):
            if not (from_afar and subscription.is_log):
                subscription.offer(change)

    def publish_all(self) -> None:
        """Other workers may have changed anything: tell all subscriptions what they asked for. Only on the loop."""
        for subscription in tuple(self._subscriptions):
            if not subscription.is_log:
                for change in _all_changes(subscription.kinds, subscription.uris):
                    subscription.offer(change)

    def forget(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)

    @property
    def wishes(self) -> int:
        """How often any URI is subscribed to."""
        return sum(self._wanted.values())

    def uri_wanted(self, uri: str) -> None:
        self._wanted[uri] = self._wanted.get(uri, 0) + 1
        if self._wanted[uri] == 1:
            self._on_uri(uri, True)

    def uri_released(self, uri: str) -> None:
        self._wanted[uri] -= 1
        if not self._wanted[uri]:
            del self._wanted[uri]
            self._on_uri(uri, False)

    def end_all(self) -> None:
        self._ended = True
        for subscription in tuple(self._subscriptions):
            subscription.end()


def _all_changes(kinds: Iterable[str], uris: Iterable[str]) -> list[Change]:
    lists: list[Change] = [Change(kind) for kind in LIST_KINDS if kind in kinds]
    return [*lists, *(Change("updated", uri) for uri in sorted(uris))]


# ── the log of all workers ──


class LoggedChange(msgspec.Struct, frozen=True, array_like=True):
    """A change in the log, and which worker wrote it."""

    kind: ChangeKind
    uri: str
    worker: str

    @property
    def change(self) -> Change:
        return Change(self.kind, self.uri)


@functools.cache
def change_codec() -> "Codec[LoggedChange]":
    return lazy_state.base.Codec(LoggedChange, "change")


class Heard(msgspec.Struct, frozen=True):
    """What a session has to be told, each change with its position if it has one; and where to go on from."""

    changes: list[tuple[Change, int | None]]
    position: int
    outages: int  # that there had been by then
    more: bool = False  # another page follows


class ChangeLog:
    """Writes what the hub says to the log, reads the log for sessions, and tells the hub what other workers wrote."""

    def __init__(
        self, engine: "Engine", state: "StateBackend", member: "WorkerLease",
        *, keep: int = 10_000, again: float | None = None, patience: float = 3.0,
    ) -> None:  # fmt: skip
        """`keep` changes are kept. An answer waits `patience` seconds for the changes of its call to be written."""
        self._keep = keep
        self._again = AGAIN_SECONDS if again is None else again
        self._patience = patience
        self._engine = engine
        self._state = state
        self._member = member
        self._subscription: Subscription | None = None
        self._listeners: list[Listener] = []
        self._is_in_trouble = False
        self._written = asyncio.Event()
        self._count = 0  # changes that were written, or tried
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._subscription = self._engine.hub.subscribe(LIST_KINDS, is_log=True)
        self._run(self._write(self._subscription))
        if self._state.shared:
            self._listen(LOG, self._relay)
            if (refresher := self._engine.refresher) is not None:
                self._listen(REFRESH, functools.partial(refresher.follow, self._state))

    def _listen(self, topic: str, work: "Callable[[Listener], Coroutine[Any, Any, None]]") -> None:
        listener = self._state.listen([topic])
        self._listeners.append(listener)
        self._run(work(listener))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def stop(self) -> None:
        """What has been published so far is still written."""
        for listener in self._listeners:
            listener.close()
        for task in self._tasks[1:]:
            task.cancel()  # a function of on_refresh may take its time
        if self._subscription is not None:
            self._subscription.end()
            await asyncio.wait(self._tasks)

    # ── what changes here ──

    async def _write(self, subscription: Subscription) -> None:
        async for change in subscription:
            told = LoggedChange(change.kind, change.uri, self._member.id)
            try:
                # It must not begin anew: a position would be taken for one in the other log.
                ttl = lazy_state.base.MAX_TTL
                await self._state.append(LOG, change_codec().encode(told), keep=self._keep, ttl=ttl)
                self._is_in_trouble = False
            except UnicodeEncodeError as failure:
                log.warning("a change is not told to others, for its URI is not text: %s", failure)
            except Exception as failure:  # of any kind: sessions would wait for ever
                if not self._is_in_trouble:
                    log.warning("a change could not be written and is tried again and again: %s", failure)
                self._is_in_trouble = True
                self._written.set()
                if subscription.closed:
                    return
                subscription.offer(change)
                await asyncio.sleep(self._again)
            self._count += 1
            self._written.set()

    def noted(self) -> ChangesMade | None:
        """Where the changes of the call at hand are counted from now on; None without other workers."""
        if not self._state.shared:
            return None
        made = changes_made.get()
        if made is None:
            made = {}
            changes_made.set(made)
        return made

    async def settle(self, made: ChangesMade) -> None:
        """Wait a while until the changes of a call are written: its client may count on that once it is answered."""
        number = 0 if self._subscription is None else made.get(self._subscription, 0)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                while self._count < number and not self._is_in_trouble:
                    self._written.clear()
                    await self._written.wait()

    # ── what changes elsewhere ──

    async def _relay(self, listener: "Listener") -> None:
        """Tell the hub what other workers wrote. Everything at the start, and after an outage of the store."""
        position, outages = 0, -1
        while not listener.closed:
            try:
                if outages != self._state.outages:
                    seen = self._state.outages
                    position = await self.position()
                    self._engine.hub.publish_all()
                    outages = seen
                position = await self._relay_after(position, outages)
            except Exception as failure:
                log.debug("changes could not be read: %s", failure)
                await asyncio.sleep(self._again)
                continue
            if not await listener.wait():
                return

    async def _relay_after(self, position: int, outages: int) -> int:
        """Gives the position that was reached; the old one if there was another outage."""
        while True:
            page = await self._state.read(LOG, position)
            if outages != self._state.outages:
                return position
            if _is_gap(page, position):
                self._engine.hub.publish_all()
                return page.last
            for record in page.records:
                told = change_codec().decode(record.data)
                if told is not None and told.worker != self._member.id:
                    self._engine.hear(told.change, from_afar=True)
            if not page.records:
                return page.last
            position = page.records[-1].id

    # ── for sessions ──

    async def position(self) -> int:
        return (await self._state.read(LOG, 0, 0)).last

    @property
    def outages(self) -> int:
        """How often the store was out of reach, as far as this worker has noticed."""
        return self._state.outages

    async def heard(self, held: "SessionHandle", after: int, outages: int) -> Heard:
        """The changes after a position that a session asked for, each once.

        If there was an outage since, if some of them are not kept any more, or if the position is none of this log's,
        everything may have changed. The session is read after the log, so that it hears of what it asked for before.
        """
        page = await self._state.read(LOG, after)
        seen = self._state.outages
        is_gap = outages != seen or _is_gap(page, after)
        if (page.records or is_gap) and not await held.reload():
            return Heard([], after, outages)
        session = held.record
        if is_gap:
            everything = _all_changes(session.announced, session.subscriptions)
            return Heard([(change, None) for change in everything], page.last, seen)
        latest: dict[Change, int | None] = {}
        for record in page.records:
            told = change_codec().decode(record.data)
            if told is not None and _wants(session, told.change):
                latest.pop(told.change, None)  # told where it came last, so that positions only grow
                latest[told.change] = record.id
        position = page.records[-1].id if page.records else page.last
        return Heard(list(latest.items()), position, seen, position < page.last)


def _is_gap(page: "LogPage", position: int) -> bool:
    """Whether what came after a position is not kept any more, or it is a position in another log."""
    return position > page.last or position < page.first - 1


def _wants(session: "Session", change: Change) -> bool:
    return change.uri in session.subscriptions if change.uri else change.kind in session.announced


# ── server.refresh() ──


class Refresher:
    """The functions of `on_refresh`, and the refresh that this worker has made last.

    The shared state counts the refreshes. A worker that is behind, or has just started, runs the functions; each worker
    announces the lists that they change there.
    """

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._functions: list[Callable[[], Any]] = []
        self._lock = asyncio.Lock()
        self.count = 0
        self._asked = 0  # refreshes of this process, where no other shares the state
        self.changed: set[ChangeKind] | None = None  # the lists that changed while the functions run, told after them

    def add(self, function: Callable[[], Any]) -> None:
        self._functions.append(function)

    async def refresh(self) -> None:
        """At every worker; returns when it is done at this one. Raises what a function raises here."""
        state = self._engine.state
        if state.shared:
            count = await state.add(REFRESH, 1, lazy_state.base.MAX_TTL)
            if count <= self.count:  # the store has lost it
                count = await state.add(REFRESH, self.count, lazy_state.base.MAX_TTL)
            await state.publish(REFRESH)
        else:
            self._asked = max(self._asked, self.count) + 1
            count = self._asked
        await self._run(count)

    async def _run(self, count: int) -> None:
        async with self._lock:
            if count <= self.count:
                return
            self.changed = changed = set[ChangeKind]()
            try:
                for function in self._functions:
                    await self._call(function)
            finally:
                self.changed = None
                self.count = count
                for kind in sorted(changed):
                    self._engine.publish(Change(kind))

    async def _call(self, function: Callable[[], Any]) -> None:
        if inspect.iscoroutinefunction(function):
            await function()
        else:
            value = await self._engine.threads.run(function, label="on_refresh")
            if inspect.isawaitable(value):
                await value

    async def follow(self, state: "StateBackend", listener: "Listener") -> None:
        """Run the functions after each refresh of another worker, until the listener is closed."""
        while not listener.closed:
            try:
                await self.catch_up(state)
            except lazy_state.base.StoreUnavailable:
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if not await listener.wait():
                return

    async def catch_up(self, state: "StateBackend") -> None:
        entry = await state.get(REFRESH)
        if entry is None and self.count:  # the store has lost it, and those who start later have to know it
            await state.claim(REFRESH, b"%d" % self.count, lazy_state.base.MAX_TTL)
        count = int(entry.value) if entry is not None and entry.value.isdigit() else self.count
        if count < self.count:  # the store has lost it, and another worker began anew
            self.count = 0
        if count > self.count:
            try:
                await self._run(count)
            except Exception:
                log.exception("a function of on_refresh failed")
