"""Hearing of changes: what a server announces comes in, and comes out of every `Listening` that asked for it.

The same in both eras: since 2026-07-28 each listening is a `subscriptions/listen` of its own; before, the server
announces its lists unasked, and single resources after `resources/subscribe`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Raw

from dovetail.client.conversation import Conversation
from dovetail.engine.streams import LIST_KINDS, MAX_URIS, Change, ChangeKind
from dovetail.errors import ConnectionLost, DovetailError, ServerError
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.protocol.methods import ListenFilter, RequestId
from dovetail.protocol.outbound import SUBSCRIPTION_KEY

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
CANCELLED = "notifications/cancelled"
LISTEN = "subscriptions/listen"
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

    A change that comes again before it was read is told once. It ends when the server ends it; if the server is lost,
    reading raises ConnectionLost.
    """

    def __init__(self, wanted: ListenFilter, subscription: RequestId | None) -> None:
        self.honoured = wanted  # the part of what was asked for that the server serves
        self.subscription = subscription  # the id of the listen request, where there is one
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes: dict[Change, None] = {}
        self._wake = asyncio.Event()
        self._ended = False
        self._failure: BaseException | None = None

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
            return any(_is_part(change.uri, uri) for uri in self.honoured.resource_subscriptions)
        return bool(getattr(self.honoured, f"{change.kind}_list_changed"))

    def offer(self, change: Change) -> None:
        if not self._ended and len(self._changes) < MAX_URIS and self.wants(change):
            self._changes[change] = None
            self._wake.set()

    def acknowledge(self, honoured: ListenFilter) -> None:
        if not self._ready.done():
            self.honoured = honoured
            self._ready.set_result(None)

    def end(self, failure: BaseException | None = None) -> None:
        if not self._ended:
            self._ended = True
            self._failure = failure
            self._wake.set()
            if not self._ready.done():
                self._ready.set_result(None)

    def answered(self, answer: "asyncio.Future[Raw]") -> None:
        self.end(None if answer.cancelled() else answer.exception())

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

    def __init__(self) -> None:
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
                listening.end()
        return None

    def _pass_on(self, change: Change, subscription: RequestId | None) -> Change:
        for listening in self._of(subscription):
            listening.offer(change)
        return change

    def _of(self, subscription: RequestId | None) -> list[Listening]:
        return [listening for listening in self._listenings if listening.subscription == subscription]

    def silence(self, reason: str) -> None:
        for listening in self._listenings:
            listening.end(ConnectionLost(f"{LISTEN}: {reason}"))

    @asynccontextmanager
    async def on_stream(
        self, conversation: Conversation, wanted: ListenFilter, params: Mapping[str, Any], timeout: float | None
    ) -> AsyncIterator[Listening]:
        """Since 2026-07-28: a request that stays open as long as somebody listens."""
        pending = conversation.start(LISTEN, {**params, "notifications": wanted})
        listening = Listening(wanted, pending.id)
        self._listenings.add(listening)
        pending.answer.add_done_callback(listening.answered)
        try:
            await listening.acknowledged(timeout)
            yield listening
        finally:
            self._listenings.discard(listening)
            conversation.abandon(pending, "nobody listens any more")

    @asynccontextmanager
    async def in_session(
        self, wanted: ListenFilter, capabilities: Mapping[str, Any], send: "Send"
    ) -> AsyncIterator[Listening]:
        """Up to 2025-11-25: the session hears of lists unasked, and of the resources it subscribes to."""
        listening = Listening(_announced(wanted, capabilities), None)
        self._listenings.add(listening)  # first, so that no change is missed
        honoured: list[str] = []
        try:
            await send("ping", {})  # once it is answered, the server has also read that the session may begin
            for uri in listening.honoured.resource_subscriptions:
                try:
                    await send("resources/subscribe", {"uri": uri})
                    honoured.append(uri)
                except ServerError:
                    continue  # a resource that can't be watched is left out, as in the newer revisions
            listening.honoured = msgspec.structs.replace(listening.honoured, resource_subscriptions=honoured)
            yield listening
        finally:
            self._listenings.discard(listening)
            await self._unsubscribe(honoured, send)

    async def _unsubscribe(self, uris: list[str], send: "Send") -> None:
        for uri in uris:
            if not any(uri in other.honoured.resource_subscriptions for other in self._listenings):
                try:
                    await send("resources/unsubscribe", {"uri": uri})
                except DovetailError:
                    return  # there is nobody left to tell


def _is_part(changed: str, asked: str) -> bool:
    """Servers may tell the name of a part: `notes://1/title` is one of `notes://1`, but `notes://10` is not."""
    return changed == asked or changed.startswith(asked if asked.endswith("/") else f"{asked}/")


Send = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


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
