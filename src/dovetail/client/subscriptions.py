"""Subscriptions to changes: each `Listening` gets the changes that it asked for, in every revision.

Since 2026-07-28 each one is a `subscriptions/listen` of its own; before, the server announces its lists unasked, and
single resources after `resources/subscribe`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Raw

from dovetail.client.dispatcher import Dispatcher, Pending
from dovetail.client.transports.http import LISTEN, passes
from dovetail.engine.subscriptions import LIST_KINDS, Change, ChangeKind
from dovetail.errors import ConnectionLost, DovetailError, ServerError, TooManyRequests
from dovetail.protocol.jsonrpc import NO_PARAMS, UNREADABLE
from dovetail.protocol.methods import ListenFilter, RequestId
from dovetail.protocol.results import SUBSCRIPTION_KEY

Send = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
Doubt = Callable[[], None]  # hears that changes may have been missed

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
MAX_URIS = 10_000  # whose changes wait to be read
CANCELLED = "notifications/cancelled"
KINDS: dict[str, ChangeKind] = {Change(kind).method: kind for kind in LIST_KINDS}
UPDATED = Change("updated", "any").method


class _NoticeMeta(msgspec.Struct, frozen=True):
    subscription: RequestId | None = msgspec.field(name=SUBSCRIPTION_KEY, default=None)


class _Notice(msgspec.Struct, frozen=True, rename="camel"):
    """All that the notifications about changes may hold."""

    uri: str = ""
    request_id: RequestId | None = None
    notifications: ListenFilter = ListenFilter()
    meta: _NoticeMeta = msgspec.field(name="_meta", default=_NoticeMeta())


class Listening:
    """The changes that one `client.listen(...)` asked for: read them with `async for`.

    A change that comes again before it was read is told once. Over HTTP it goes on after a broken connection and after
    a restart of the server; then all that was asked for is told as changed once, because it may be. Elsewhere it ends
    when the server ends it. If the server is lost for good, reading raises ConnectionLost.
    """

    def __init__(self, wanted: ListenFilter, request: Pending | None, on_doubt: Doubt = lambda: None) -> None:
        self.wanted = wanted
        self._on_doubt = on_doubt
        self.honoured = wanted  # the part of what was asked for that the server serves
        self.request = request  # the listen request, in revisions that have one
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes: dict[Change, None] = {}
        self._wake = asyncio.Event()
        self._ended = False
        self._failure: BaseException | None = None
        self._reopening = False  # its request was made again, and is not acknowledged yet

    def __aiter__(self) -> "Listening":
        return self

    async def __anext__(self) -> Change:
        while not self._changes:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        change = next(iter(self._changes))
        del self._changes[change]
        return change

    def wants(self, change: Change) -> bool:
        if change.uri:
            return any(is_part(change.uri, uri) for uri in self.honoured.resource_subscriptions)
        return bool(getattr(self.honoured, f"{change.kind}_list_changed"))

    def offer(self, change: Change) -> None:
        if not self._ended and len(self._changes) < MAX_URIS and self.wants(change):
            self._changes[change] = None
            self._wake.set()

    def acknowledge(self, honoured: ListenFilter) -> None:
        if not self._ready.done():
            self.honoured = honoured
            self._ready.set_result(None)
        elif self._reopening:
            self._reopening = False
            self.honour_again(honoured)

    def reopen(self, request: Pending) -> None:
        self.request = request
        self._reopening = True

    def honour_again(self, honoured: ListenFilter) -> None:
        """Nobody listened for a while; whatever could be told may have changed."""
        self._on_doubt()
        self.suspect_all()
        self.honoured = honoured
        self.suspect_all()

    def suspect_all(self) -> None:
        for kind in LIST_KINDS:
            self.offer(Change(kind))
        for uri in self.honoured.resource_subscriptions:
            self.offer(Change("updated", uri))

    @property
    def subscription(self) -> RequestId | None:
        """By which the server's notifications name it."""
        return None if self.request is None else self.request.id

    @property
    def is_acknowledged(self) -> bool:
        return self._ready.done() and not self._ended

    def cancelled(self) -> None:
        """The server will not answer the request; that means the same as an answer."""
        if self.request is not None and not self.request.answer.done():
            self.request.answer.set_result(NO_PARAMS)

    def end(self, failure: BaseException | None = None) -> None:
        if not self._ended:
            self._ended = True
            self._failure = failure
            self._wake.set()
            if not self._ready.done():
                self._ready.set_result(None)

    async def acknowledged(self, timeout: float | None) -> None:
        """Wait until the server has said what it honours."""
        try:
            async with asyncio.timeout(timeout):
                await self._ready
        except TimeoutError:
            raise TimeoutError(f"{LISTEN}: not acknowledged within {timeout:g} s") from None
        if self._failure is not None:
            raise self._failure


class ChangeFeed:
    """All listenings of a client, and the way of a notification to them."""

    def __init__(self, on_doubt: Doubt = lambda: None) -> None:
        self._on_doubt = on_doubt
        self._listenings: set[Listening] = set()

    def hear(self, method: str, params: Raw) -> Change | None:
        """Pass a notification on; tells which change it was, if it was one."""
        try:
            notice = msgspec.json.decode(params, type=_Notice)
        except UNREADABLE:
            return None
        if method in KINDS:
            return self._pass_on(Change(KINDS[method]), notice.meta.subscription)
        if method == UPDATED and notice.uri:
            return self._pass_on(Change("updated", notice.uri), notice.meta.subscription)
        if method == ACKNOWLEDGED and notice.meta.subscription is not None:
            for listening in self._of(notice.meta.subscription):
                listening.acknowledge(notice.notifications)
        elif method == CANCELLED and notice.request_id is not None:
            for listening in self._of(notice.request_id):
                listening.cancelled()
        return None

    def _pass_on(self, change: Change, subscription: RequestId | None) -> Change:
        for listening in self._of(subscription):
            listening.offer(change)
        return change

    def _of(self, subscription: RequestId | None) -> list[Listening]:
        return [listening for listening in self._listenings if listening.subscription == subscription]

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._listenings)

    def suspect_all(self) -> None:
        """Changes may have been missed that the session heard of unasked."""
        for listening in self._of(None):
            listening.suspect_all()

    def silence(self, reason: str) -> None:
        for listening in self._listenings:
            listening.end(ConnectionLost(f"{LISTEN}: {reason}"))

    @asynccontextmanager
    async def on_stream(
        self, dispatcher: Dispatcher, wanted: ListenFilter, params: Mapping[str, Any], timeout: float | None
    ) -> AsyncIterator[Listening]:
        """Since 2026-07-28: a request that stays open as long as somebody listens."""
        params = {**params, "notifications": wanted}
        request = dispatcher.start(LISTEN, params)
        listening = Listening(wanted, request, self._on_doubt)
        self._listenings.add(listening)
        keeper = asyncio.create_task(_keep_open(listening, request, params, dispatcher))
        try:
            await listening.acknowledged(timeout)
            yield listening
        finally:
            self._listenings.discard(listening)
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    @asynccontextmanager
    async def in_session(
        self, wanted: ListenFilter, capabilities: Mapping[str, Any], send: Send
    ) -> AsyncIterator[Listening]:
        """Up to 2025-11-25: the session hears of lists unasked, and of the resources it subscribes to.

        `capabilities` are those of the session that `send` sends in.
        """
        listening = Listening(wanted, None, self._on_doubt)
        listening.honoured = _announced(wanted, capabilities)
        self._listenings.add(listening)  # first, so that no change is missed
        try:
            listening.honoured = await _subscribed(listening.honoured, send)
            yield listening
        finally:
            self._listenings.discard(listening)
            await self._unsubscribe(listening.honoured.resource_subscriptions, send)

    async def renew(self, capabilities: Mapping[str, Any], send: Send) -> None:
        """There is a new session, which knows nothing of those who listened in the old one."""
        for listening in self._of(None):
            listening.honour_again(await _subscribed(_announced(listening.wanted, capabilities), send))

    async def _unsubscribe(self, uris: list[str], send: Send) -> None:
        for uri in uris:
            if not any(uri in other.honoured.resource_subscriptions for other in self._listenings):
                try:
                    await send("resources/unsubscribe", {"uri": uri})
                except (DovetailError, TimeoutError):
                    return  # there is nobody left to tell


async def _keep_open(listening: Listening, request: Pending, params: Mapping[str, Any], dispatcher: Dispatcher) -> None:
    """See to the end of a listen request. Where one can connect again, it is made again, until the server refuses."""
    backoff = dispatcher.transport.backoff()
    clock = asyncio.get_running_loop().time
    while True:
        begun = clock()
        failure = await _end_of(request, dispatcher)
        may_go_on = dispatcher.transport.reconnects and not dispatcher.is_over and listening.is_acknowledged
        if not may_go_on or (failure is not None and not passes(failure)):
            return listening.end(failure)
        backoff.retry = failure.retry_after if isinstance(failure, TooManyRequests) else None
        backoff.ended(clock() - begun)
        await asyncio.sleep(backoff.seconds())
        try:
            request = dispatcher.start(LISTEN, params)
        except ConnectionLost as over:
            return listening.end(over)
        listening.reopen(request)


async def _end_of(request: Pending, dispatcher: Dispatcher) -> DovetailError | None:
    """Wait until the server ends a listen request; tells what went wrong, if anything did."""
    try:
        await request.answer
    except asyncio.CancelledError:
        dispatcher.abandon(request, "nobody listens any more")
        raise
    except DovetailError as failure:
        return failure
    dispatcher.abandon(request, "the server cancelled it", tell=False)
    return None


async def _subscribed(announced: ListenFilter, send: Send) -> ListenFilter:
    """What is announced, without the resources that can't be watched: they are left out, as in newer revisions."""
    honoured: list[str] = []
    for uri in announced.resource_subscriptions:
        try:
            await send("resources/subscribe", {"uri": uri})
            honoured.append(uri)
        except ServerError:
            continue
    return msgspec.structs.replace(announced, resource_subscriptions=honoured)


def is_part(changed: str, whole: str) -> bool:
    """Servers may tell the name of a part: `notes://1/title` is one of `notes://1`, but `notes://10` is not."""
    return changed == whole or changed.startswith(whole if whole.endswith("/") else f"{whole}/")


def _announced(wanted: ListenFilter, capabilities: Mapping[str, Any]) -> ListenFilter:
    """The part of what is wanted that a server of the handshake era says it announces."""

    def offers(feature: str, what: str) -> bool:
        offered = capabilities.get(feature)
        return isinstance(offered, Mapping) and bool(offered.get(what))

    return ListenFilter(
        tools_list_changed=wanted.tools_list_changed and offers("tools", "listChanged"),
        prompts_list_changed=wanted.prompts_list_changed and offers("prompts", "listChanged"),
        resources_list_changed=wanted.resources_list_changed and offers("resources", "listChanged"),
        resource_subscriptions=wanted.resource_subscriptions if offers("resources", "subscribe") else [],
    )
