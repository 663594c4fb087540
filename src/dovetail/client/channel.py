"""An open connection to one server, with what was agreed on: typed requests go out as their revision wants them.

It lies between the client's methods and the conversation: stamps every request, reads results into shapes, follows
pages, and passes on what the server says unasked.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from dovetail.client.conversation import Conversation, ProgressHandler, Transcript
from dovetail.client.era import Agreement, Identity, agree
from dovetail.client.links import Link
from dovetail.client.listening import ChangeFeed, Listening
from dovetail.client.results import ListPage, LogHandler, LogMessage, read, read_page
from dovetail.engine.streams import Change
from dovetail.errors import BadAnswer, ConnectionLost, SetupError
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.protocol.methods import ListenFilter, LogLevel
from dovetail.protocol.revisions import Revision

T = TypeVar("T")
Seconds = float | None | UnsetType

MAX_PAGES = 1_000


class Channel:
    """May be opened again after it was closed; `timeout` bounds every request that names no time of its own."""

    def __init__(
        self,
        link: Link,
        identity: Identity,
        *,
        pinned: Revision | None,
        timeout: float | None,
        transcript: Transcript | None,
        log_handler: LogHandler | None,
        on_change: Callable[[Change], None],
    ) -> None:
        self._link = link
        self._identity = identity
        self._pinned = pinned
        self._timeout = timeout
        self._transcript = transcript
        self._log_handler = log_handler
        self._on_change = on_change
        self._feed = ChangeFeed()
        self._conversation: Conversation | None = None
        self._agreement: Agreement | None = None
        # Newer servers log only to those who ask; a handler is a way of asking.
        self.log_level: LogLevel | None = None if log_handler is None else "info"

    async def open(self) -> None:
        if self._conversation is not None:
            raise SetupError("Client: it is open already; make another one for another connection")
        self._conversation = Conversation(self._link, self, self._transcript)
        try:
            await self._conversation.open()
            self._agreement = await agree(self._conversation, self._identity, self._pinned, self._timeout)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            await conversation.close()

    @property
    def agreement(self) -> Agreement:
        """What the server said about itself; it stays readable after the end."""
        if self._agreement is None:
            raise ConnectionLost(NOT_OPEN)
        return self._agreement

    @property
    def revision(self) -> Revision:
        return self.agreement.revision

    @property
    def conversation(self) -> Conversation:
        if self._conversation is None:
            raise ConnectionLost(NOT_OPEN)
        return self._conversation

    # ── requests ──

    async def send(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout: Seconds = UNSET,
        progress_handler: ProgressHandler | None = None,
        log_level: LogLevel | None = None,
    ) -> Raw:
        seconds = self._timeout if isinstance(timeout, UnsetType) else timeout
        stamped = self._stamped(params, log_level)
        return await self.conversation.ask(method, stamped, timeout=seconds, on_progress=progress_handler)

    async def ask(self, method: str, params: Mapping[str, Any], shape: type[T]) -> T:
        return read(method, await self.send(method, params), shape)

    def _stamped(self, params: Mapping[str, Any], log_level: LogLevel | None = None) -> Mapping[str, Any]:
        stamp = self._identity.stamp(self.revision, log_level or self.log_level)
        return {**params, "_meta": {**stamp, **params.get("_meta", {})}} if stamp else params

    # ── lists ──

    async def page(self, method: str, key: str, item: type[T], cursor: str | None) -> ListPage[T]:
        page = read_page(method, await self.send(method, {} if cursor is None else {"cursor": cursor}), key, item)
        if page.next_cursor == "" and self.revision.handshake:  # later an empty cursor is a live one
            return ListPage(page.items, None)
        return page

    async def pages(self, method: str, key: str, item: type[T]) -> list[T]:
        """The items of all pages."""
        items: list[T] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self.page(method, key, item, cursor)
            items += page.items
            cursor = page.next_cursor
            if cursor is None:
                return items
        raise BadAnswer(f"{method}: the server's list does not end after {MAX_PAGES} pages")

    # ── what the server says unasked ──

    def listening(self, wanted: ListenFilter) -> AbstractAsyncContextManager[Listening]:
        if self.revision.listens:
            return self._feed.on_stream(self.conversation, wanted, self._stamped({}), self._timeout)
        return self._feed.in_session(wanted, self.agreement.capabilities, self.send)

    def hear(self, method: str, params: Raw) -> None:
        if method == "notifications/message":
            self._hear_log(params)
        elif (change := self._feed.hear(method, params)) is not None:
            self._on_change(change)

    def _hear_log(self, params: Raw) -> None:
        if self._log_handler is None:
            return
        try:
            message = msgspec.json.decode(params, type=LogMessage)
        except UNREADABLE:
            return
        self.conversation.run_handler(self._log_handler, message)

    def silence(self, reason: str) -> None:
        self._feed.silence(reason)


NOT_OPEN = "The client is not open; use it inside `async with Client(...) as client:`"
