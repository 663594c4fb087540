"""Subscriptions to changes: each `Listening` gets the changes that it asked for, in every revision.

Since 2026-07-28 each one is a `subscriptions/listen` of its own; before, the server announces its lists unasked, and
single resources after `resources/subscribe`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from msgspec import Raw

from dovetail.client.dispatcher import Dispatcher, PendingRequest
from dovetail.client.transports.http import LISTEN, is_transient
from dovetail.engine.subscriptions import LIST_KINDS, Change, ChangeKind
from dovetail.errors import ConnectionLost, DovetailError, ServerError, TooManyRequests
from dovetail.protocol.jsonrpc import NO_PARAMS, UNREADABLE
from dovetail.protocol.methods import ListenFilter, RequestId
from dovetail.protocol.results import SUBSCRIPTION_KEY

Send = Callable[[str, Mapping[str, Any]], Awaitable[Any]]

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


class ChangeStream:
    """The changes that one `client.listen(...)` asked for: read them with `async for`.

    A change that comes again before it was read is told once. Over HTTP it goes on after a broken connection and after
    a restart of the server; then all that was asked for is told as changed once, because it may be. Elsewhere it ends
    when the server ends it. If the server is lost for good, reading raises ConnectionLost.
    """

    def __init__(self, requested: ListenFilter, request: PendingRequest | None = None) -> None:
        self.requested = requested
        self.honoured = requested  # the part of what was asked for that the server serves
        self.request = request  # the listen request, in revisions that have one
        self.ready = asyncio.Event()  # the server has said what it honours, or it is over
        self.is_closed = False
        self.failure: BaseException | None = None
        self._changes: dict[Change, None] = {}
        self._wake = asyncio.Event()

    def __aiter__(self) -> "ChangeStream":
        return self

    async def __anext__(self) -> Change:
        while not self._changes:
            if self.failure is not None:
                raise self.failure
            if self.is_closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        change = next(iter(self._changes))
        del self._changes[change]
        return change

    def wants(self, change: Change) -> bool:
        if change.uri:
            return any(is_sub_resource(change.uri, uri) for uri in self.honoured.resource_subscriptions)
        return bool(getattr(self.honoured, f"{change.kind}_list_changed"))

    def add(self, change: Change) -> None:
        if not self.is_closed and len(self._changes) < MAX_URIS and self.wants(change):
            self._changes[change] = None
            self._wake.set()

    def acknowledge_again(self, honoured: ListenFilter) -> None:
        """Nobody listened for a while; what could be told before, and what can be told now, may have changed."""
        self.mark_all_changed()
        self.honoured = honoured
        self.mark_all_changed()

    def mark_all_changed(self) -> None:
        for change in (
            *map(Change, LIST_KINDS),
            *(Change("updated", uri) for uri in self.honoured.resource_subscriptions),
        ):
            self.add(change)

    def end(self, failure: BaseException | None = None) -> None:
        if not self.is_closed:
            self.is_closed, self.failure = True, failure
            self._wake.set()
            self.ready.set()


class ChangeStreams:
    """All listenings of a client, and the way of a notification to them. `on_doubt` hears of changes missed."""

    def __init__(self, on_gap: Callable[[], None]) -> None:
        self._on_gap = on_gap
        self._listenings: set[ChangeStream] = set()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._listenings)

    def handle_notification(self, method: str, params: Raw) -> Change | None:
        """Pass a notification on; tells which change it was, if it was one."""
        try:
            notice = msgspec.json.decode(params, type=_Notice)
        except UNREADABLE:
            return None
        subscription = notice.meta.subscription
        if method in KINDS or (method == UPDATED and notice.uri):
            change = Change(KINDS[method]) if method in KINDS else Change("updated", notice.uri)
            for listening in self._of(subscription):
                listening.add(change)
            return change
        if method == ACKNOWLEDGED and subscription is not None:
            for listening in self._of(subscription):
                self._acknowledge(listening, notice.notifications)
        elif method == CANCELLED and notice.request_id is not None:
            for listening in self._of(notice.request_id):  # which means the same as an answer
                if listening.request is not None and not listening.request.result.done():
                    listening.request.result.set_result(NO_PARAMS)
        return None

    def _acknowledge(self, listening: ChangeStream, honoured: ListenFilter) -> None:
        if listening.ready.is_set():  # its request was made again
            self._on_gap()
            listening.acknowledge_again(honoured)
        else:
            listening.honoured = honoured
            listening.ready.set()

    def _of(self, subscription: RequestId | None) -> list[ChangeStream]:
        """Those of a listen request, or of the session."""
        return [each for each in self._listenings if (each.request and each.request.id) == subscription]

    def mark_all_changed(self) -> None:
        """Changes may have been missed that the session heard of unasked."""
        for listening in self._of(None):
            listening.mark_all_changed()

    def connection_lost(self, reason: str) -> None:
        for listening in self._listenings:
            listening.end(ConnectionLost(f"{LISTEN}: {reason}"))

    @asynccontextmanager
    async def on_stream(
        self, dispatcher: Dispatcher, requested: ListenFilter, params: Mapping[str, Any], timeout: float | None
    ) -> AsyncIterator[ChangeStream]:
        """Since 2026-07-28: a request that stays open as long as the caller listens."""
        params = {**params, "notifications": requested}
        request = dispatcher.start(LISTEN, params)
        listening = ChangeStream(requested, request)
        self._listenings.add(listening)
        keeper = asyncio.create_task(_keep_open(listening, request, params, dispatcher))
        try:
            try:
                await asyncio.wait_for(listening.ready.wait(), timeout)
            except TimeoutError:
                raise TimeoutError(f"{LISTEN}: not acknowledged within {timeout:g} s") from None
            if listening.failure is not None:
                raise listening.failure
            yield listening
        finally:
            self._listenings.discard(listening)
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    @asynccontextmanager
    async def in_session(
        self, requested: ListenFilter, capabilities: Mapping[str, Any], send: Send
    ) -> AsyncIterator[ChangeStream]:
        """Up to 2025-11-25: the session hears of lists unasked, and of the resources it subscribes to.

        `capabilities` are those of the session that `send` sends in.
        """
        listening = ChangeStream(requested)
        listening.honoured = _announced(requested, capabilities)
        self._listenings.add(listening)  # first, so that no change is missed
        try:
            listening.honoured = await _subscribed(listening.honoured, send)
            yield listening
        finally:
            self._listenings.discard(listening)
            with suppress(DovetailError, TimeoutError):  # a server that is gone need not be told
                for uri in listening.honoured.resource_subscriptions:
                    if not any(uri in other.honoured.resource_subscriptions for other in self._listenings):
                        await send("resources/unsubscribe", {"uri": uri})

    async def renew(self, capabilities: Mapping[str, Any], send: Send) -> None:
        """There is a new session, which knows nothing of the listenings in the old one."""
        for listening in self._of(None):
            honoured = await _subscribed(_announced(listening.requested, capabilities), send)
            self._on_gap()
            listening.acknowledge_again(honoured)


async def _keep_open(
    listening: ChangeStream, request: PendingRequest, params: Mapping[str, Any], dispatcher: Dispatcher
) -> None:
    """See to the end of a listen request. Where one can connect again, it is made again, until the server refuses."""
    backoff = dispatcher.transport.backoff()
    clock = asyncio.get_running_loop().time
    while True:
        begun = clock()
        failure = await _end_of(request, dispatcher)
        may_go_on = dispatcher.transport.reconnects and not dispatcher.is_closed and listening.ready.is_set()
        if not may_go_on or (failure is not None and not is_transient(failure)):
            return listening.end(failure)
        backoff.retry = failure.retry_after if isinstance(failure, TooManyRequests) else None
        backoff.ended(clock() - begun)
        await asyncio.sleep(backoff.next_delay())
        try:
            listening.request = request = dispatcher.start(LISTEN, params)
        except ConnectionLost as over:
            return listening.end(over)


async def _end_of(request: PendingRequest, dispatcher: Dispatcher) -> DovetailError | None:
    """Wait until the server ends a listen request; tells what went wrong, if anything did."""
    try:
        await request.result
    except asyncio.CancelledError:
        dispatcher.cancel(request, "nobody listens any more")
        raise
    except DovetailError as failure:
        return failure
    dispatcher.cancel(request, "the server cancelled it", notify=False)
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


def is_sub_resource(changed: str, whole: str) -> bool:
    """Servers may tell the name of a part: `notes://1/title` is one of `notes://1`, but `notes://10` is not."""
    return changed == whole or changed.startswith(whole if whole.endswith("/") else f"{whole}/")


def _announced(requested: ListenFilter, capabilities: Mapping[str, Any]) -> ListenFilter:
    """The part of what is wanted that a server of the handshake era says it announces."""

    def offers(feature: str, what: str) -> bool:
        offered = capabilities.get(feature)
        return isinstance(offered, Mapping) and bool(offered.get(what))

    tools, prompts, resources = (offers(kind, "listChanged") for kind in LIST_KINDS)
    return ListenFilter(
        requested.tools_list_changed and tools,
        requested.prompts_list_changed and prompts,
        requested.resources_list_changed and resources,
        requested.resource_subscriptions if offers("resources", "subscribe") else [],
    )
