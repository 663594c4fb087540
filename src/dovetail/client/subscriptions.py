"""Change streams of a client: the changes of lists and resources that `client.listen(...)` asked for.

Since 2026-07-28 each one is a `subscriptions/listen` request. Before, a server announces changed lists unasked, and
updated resources after `resources/subscribe`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from msgspec import Raw

from dovetail.client.dispatcher import Dispatcher, Params, PendingRequest
from dovetail.client.results import has_flag
from dovetail.client.transports.base import cancel_and_wait
from dovetail.client.transports.http import LISTEN, is_transient
from dovetail.engine.subscriptions import LIST_KINDS, Change, ChangeKind
from dovetail.errors import ConnectionLost, DovetailError, ServerError, TooManyRequests
from dovetail.protocol.jsonrpc import NO_PARAMS, UNREADABLE
from dovetail.protocol.methods import ListenFilter, RequestId
from dovetail.protocol.results import SUBSCRIPTION_KEY

Send = Callable[[str, Params], Awaitable[Any]]

ACKNOWLEDGED, CANCELLED = "notifications/subscriptions/acknowledged", "notifications/cancelled"
MAX_UNREAD_CHANGES = 10_000
LIST_CHANGED: dict[str, ChangeKind] = {Change(kind).method: kind for kind in LIST_KINDS}
UPDATED = Change("updated", "any").method


class _Meta(msgspec.Struct, frozen=True):
    subscription: RequestId | None = msgspec.field(name=SUBSCRIPTION_KEY, default=None)


class _Params(msgspec.Struct, frozen=True, rename="camel"):
    uri: str = ""
    request_id: RequestId | None = None
    notifications: ListenFilter = ListenFilter()
    meta: _Meta = msgspec.field(name="_meta", default=_Meta())


class ChangeStream:
    """The changes that one `client.listen(...)` asked for: read them with `async for`.

    A change that repeats before it was read is reported once. Over HTTP the stream survives a broken connection and a
    restart of the server; then everything is reported as changed once, because it may have. Elsewhere it ends when the
    server ends it. If the server is lost for good, reading raises ConnectionLost.
    """

    def __init__(self, requested: ListenFilter, request: PendingRequest | None = None) -> None:
        self.requested = requested
        self.honoured = requested  # the part that the server serves
        self.request = request  # since 2026-07-28
        self.ready = asyncio.Event()  # acknowledged by the server, or closed
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
        if not self.is_closed and len(self._changes) < MAX_UNREAD_CHANGES and self.wants(change):
            self._changes[change] = None
            self._wake.set()

    def acknowledge_again(self, honoured: ListenFilter) -> None:
        """Report everything that was or is now served as changed: after a gap it may have."""
        self.mark_all_changed()
        self.honoured = honoured
        self.mark_all_changed()

    def mark_all_changed(self) -> None:
        resources = (Change("updated", uri) for uri in self.honoured.resource_subscriptions)
        for change in (*map(Change, LIST_KINDS), *resources):
            self.add(change)

    def close(self, failure: BaseException | None = None) -> None:
        if not self.is_closed:
            self.is_closed, self.failure = True, failure
            self._wake.set()
            self.ready.set()


class ChangeStreams:
    """All change streams of a client. `on_gap` is called when changes may have been missed."""

    def __init__(self, on_gap: Callable[[], None]) -> None:
        self._on_gap = on_gap
        self._streams: set[ChangeStream] = set()

    def __bool__(self) -> bool:
        return bool(self._streams)

    def handle_notification(self, method: str, raw: Raw) -> Change | None:
        """Pass a notification to its streams; returns the change that it announces, if any."""
        try:
            params = msgspec.json.decode(raw, type=_Params)
        except UNREADABLE:
            return None
        subscription = params.meta.subscription
        if method in LIST_CHANGED or (method == UPDATED and params.uri):
            change = Change(LIST_CHANGED[method]) if method in LIST_CHANGED else Change("updated", params.uri)
            for stream in self._find(subscription):
                stream.add(change)
            return change
        if method == ACKNOWLEDGED and subscription is not None:
            for stream in self._find(subscription):
                if stream.ready.is_set():  # the request was sent again
                    self._on_gap()
                    stream.acknowledge_again(params.notifications)
                else:
                    stream.honoured = params.notifications
                    stream.ready.set()
        elif method == CANCELLED and params.request_id is not None:
            for stream in self._find(params.request_id):  # means the same as a result
                if stream.request is not None and not stream.request.result.done():
                    stream.request.result.set_result(NO_PARAMS)
        return None

    def _find(self, subscription: RequestId | None) -> list[ChangeStream]:
        """The streams of a listen request, or of the session."""
        return [each for each in self._streams if (each.request and each.request.id) == subscription]

    def mark_all_changed(self) -> None:
        for stream in self._find(None):
            stream.mark_all_changed()

    def connection_lost(self, reason: str) -> None:
        for stream in self._streams:
            stream.close(ConnectionLost(f"{LISTEN}: {reason}"))

    @asynccontextmanager
    async def on_stream(
        self, dispatcher: Dispatcher, requested: ListenFilter, params: Params, timeout: float | None
    ) -> AsyncIterator[ChangeStream]:
        """A change stream since 2026-07-28: a request that stays open as long as the caller listens."""
        params = {**params, "notifications": requested}
        request = dispatcher.start(LISTEN, params)
        stream = ChangeStream(requested, request)
        self._streams.add(stream)
        task = asyncio.create_task(_keep_open(stream, request, params, dispatcher))
        try:
            try:
                async with asyncio.timeout(timeout):
                    await stream.ready.wait()
            except TimeoutError:
                raise TimeoutError(f"{LISTEN}: not acknowledged within {timeout:g} s") from None
            if stream.failure is not None:
                raise stream.failure
            yield stream
        finally:
            self._streams.discard(stream)
            await cancel_and_wait(task)

    @asynccontextmanager
    async def in_session(
        self, requested: ListenFilter, capabilities: Mapping[str, Any], send: Send
    ) -> AsyncIterator[ChangeStream]:
        """A change stream up to 2025-11-25: notifications of the session, with its capabilities and its `send`."""
        stream = ChangeStream(requested)
        stream.honoured = _offered(requested, capabilities)
        self._streams.add(stream)  # first, so that no change is missed
        try:
            stream.honoured = await _subscribe(stream.honoured, send)
            yield stream
        finally:
            self._streams.discard(stream)
            with suppress(DovetailError, TimeoutError):  # the server may have ended
                for uri in stream.honoured.resource_subscriptions:
                    if not any(uri in other.honoured.resource_subscriptions for other in self._streams):
                        await send("resources/unsubscribe", {"uri": uri})

    async def renew(self, capabilities: Mapping[str, Any], send: Send) -> None:
        """Subscribe again, in a new session."""
        for stream in self._find(None):
            honoured = await _subscribe(_offered(stream.requested, capabilities), send)
            self._on_gap()
            stream.acknowledge_again(honoured)


async def _keep_open(stream: ChangeStream, request: PendingRequest, params: Params, dispatcher: Dispatcher) -> None:
    """Send a listen request again whenever it ends, if the transport reconnects, until the server refuses it."""
    backoff = dispatcher.transport.backoff()
    clock = asyncio.get_running_loop().time
    while True:
        started = clock()
        failure: DovetailError | None = None
        try:
            await request.result
            dispatcher.cancel(request, "the server cancelled it", notify=False)
        except asyncio.CancelledError:
            dispatcher.cancel(request, "the client stopped listening")
            raise
        except DovetailError as ended:
            failure = ended
        may_retry = dispatcher.transport.reconnects and not dispatcher.is_closed and stream.ready.is_set()
        if not may_retry or (failure is not None and not is_transient(failure)):
            return stream.close(failure)
        backoff.retry = failure.retry_after if isinstance(failure, TooManyRequests) else None
        backoff.ended(clock() - started)
        await asyncio.sleep(backoff.next_delay())
        try:
            stream.request = request = dispatcher.start(LISTEN, params)
        except ConnectionLost as lost:
            return stream.close(lost)


async def _subscribe(offered: ListenFilter, send: Send) -> ListenFilter:
    """Subscribe; returns the part that the server accepts: resources that it refuses to watch are left out."""
    honoured: list[str] = []
    for uri in offered.resource_subscriptions:
        with suppress(ServerError):
            await send("resources/subscribe", {"uri": uri})
            honoured.append(uri)
    return msgspec.structs.replace(offered, resource_subscriptions=honoured)


def is_sub_resource(changed: str, whole: str) -> bool:
    """Whether a URI is below another: `notes://1/title` is a part of `notes://1`, but `notes://10` is not."""
    return changed == whole or changed.startswith(whole if whole.endswith("/") else f"{whole}/")


def _offered(requested: ListenFilter, capabilities: Mapping[str, Any]) -> ListenFilter:
    """The part of the requested filter that a server announces, by its capabilities, up to 2025-11-25."""
    tools, prompts, resources = (has_flag(capabilities, kind, "listChanged") for kind in LIST_KINDS)
    return ListenFilter(
        requested.tools_list_changed and tools,
        requested.prompts_list_changed and prompts,
        requested.resources_list_changed and resources,
        requested.resource_subscriptions if has_flag(capabilities, "resources", "subscribe") else [],
    )
