"""Who hears of what: changes go in, and come out of every subscription that asked for them.

A subscription keeps each pending change once, so a slow reader costs no memory and misses nothing it asked for.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Literal

import msgspec

ChangeKind = Literal["tools", "prompts", "resources", "updated"]
LIST_KINDS: tuple[ChangeKind, ...] = ("tools", "prompts", "resources")


class Change(msgspec.Struct, frozen=True):
    """A list that changed, or one resource (`updated`, with its URI)."""

    kind: ChangeKind
    uri: str = ""
    cause: str = ""  # of what several workers may find by themselves: the same at all of them

    @property
    def plain(self) -> "Change":
        return Change(self.kind, self.uri) if self.cause else self

    @property
    def method(self) -> str:
        return "notifications/resources/updated" if self.uri else f"notifications/{self.kind}/list_changed"


class Subscription:
    """One listener: the kinds of lists and the URIs it asked for. Read it with `async for`."""

    def __init__(
        self, hub: "Hub", kinds: Iterable[ChangeKind], uris: Iterable[str], *, passes_on: bool = False
    ) -> None:
        self._hub = hub
        self.passes_on = passes_on  # of any URI, and whoever reads it tells others
        self.kinds = frozenset(kinds)
        self.uris: set[str] = set()
        self.closed = False
        self._pending: dict[Change, Change] = {}  # by what it is without its cause
        self.accepted = 0  # how many have ever stood there
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiter: asyncio.Future[None] | None = None  # of the one who reads
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
        return (self.passes_on or change.uri in self.uris) if change.uri else change.kind in self.kinds

    def asked_for(self) -> list[Change]:
        kinds = [Change(kind) for kind in LIST_KINDS if kind in self.kinds]
        return [*kinds, *(Change("updated", uri) for uri in sorted(self.uris))]

    def offer(self, change: Change) -> None:
        """From any thread."""
        if self._loop.is_closed():  # nobody listens any more, and nobody has said so
            self._hub.forget(self)
        elif threading.get_ident() == self._thread:
            self._put(change)
        else:
            try:
                self._loop.call_soon_threadsafe(self._put, change)
            except RuntimeError:  # the loop is closed: nobody listens any more
                return

    def _put(self, change: Change) -> None:
        if self.closed or not self.wants(change):
            return
        plain = change.plain
        known = self._pending.get(plain)
        self.accepted += known is None
        self._pending[plain] = change if self.passes_on and known != plain else plain
        if self.passes_on and (made := changes_made.get()) is not None:
            made[self] = self.accepted
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Change:
        while not self._pending:
            if self.closed:
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._pending.pop(next(iter(self._pending)))

    def end(self) -> None:
        """No more changes; a reader gets what is pending and then stops."""
        if not self.closed:
            self.closed = True
            self._hub.forget(self)
            for uri in self.uris:
                self._hub.uri_released(uri)
            self._wake()


# What was changed in the course of a call, in its threads and tasks too: how far whoever passes it on has to come.
ChangesMade = dict[Subscription, int]
changes_made: ContextVar[ChangesMade | None] = ContextVar("changes made", default=None)


class Hub:
    """All subscriptions of one process. `on_uri` hears when the first listener wants a URI and the last has left."""

    def __init__(self, on_uri: Callable[[str, bool], None] = lambda *_: None) -> None:
        self._subscriptions: dict[Subscription, None] = {}
        self._wanted: dict[str, int] = {}
        self._on_uri = on_uri
        self._finds_go_to: Subscription | None = None
        self._ended = False

    def begin(self) -> None:
        """The server starts, perhaps not for the first time."""
        self._ended = False

    def subscribe(self, kinds: Iterable[ChangeKind], uris: Iterable[str] = ()) -> Subscription:
        return self._add(Subscription(self, kinds, uris))

    def everything(self, *, finds: bool = False) -> Subscription:
        """All changes, of any URI; for whoever passes them on. It makes nobody watch anything.

        With `finds`, what several workers may find goes nowhere else: it comes back from afar, once for all of them.
        """
        subscription = self._add(Subscription(self, LIST_KINDS, (), passes_on=True))
        if finds and not subscription.closed:
            self._finds_go_to = subscription
        return subscription

    def _add(self, subscription: Subscription) -> Subscription:
        self._subscriptions[subscription] = None
        if self._ended:  # it came too late: it hears nothing, and ends as all others did
            subscription.end()
        return subscription

    def publish(self, change: Change, *, from_afar: bool = False) -> None:
        """Tell everyone who asked; from any thread. What comes from afar is not passed on to there."""
        if change.cause and self._finds_go_to is not None:
            self._finds_go_to.offer(change)
            return
        for subscription in tuple(self._subscriptions):
            if not (from_afar and subscription.passes_on):
                subscription.offer(change)

    def publish_all(self) -> None:
        """Nobody knows what has changed afar: everyone is told of all that it asked for. Only on the loop."""
        for subscription in tuple(self._subscriptions):
            if not subscription.passes_on:
                for change in subscription.asked_for():
                    subscription.offer(change)

    def forget(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)
        if self._finds_go_to is subscription:
            self._finds_go_to = None

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
