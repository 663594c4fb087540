"""A client's session with one server: typed requests in the negotiated revision, pages, renewal."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Raw

from dovetail import __version__, errors
from dovetail.client.cache import ResponseCache
from dovetail.client.config import SharedOptions
from dovetail.client.dispatcher import Dispatcher, Params, ProgressHandler, RunHandler
from dovetail.client.handlers import INPUT_METHODS, ClientHandlers, PrepareHandler, RootSource, Send, run_rounds
from dovetail.client.negotiation import ClientIdentity, NegotiatedProtocol, Negotiation, pinned_revision
from dovetail.client.results import ListPage, LogMessage, read_page, read_result
from dovetail.client.subscriptions import ChangeStream, ChangeStreams
from dovetail.client.transports.base import ToolHeaders, Transport, cancel_and_wait
from dovetail.engine.options import telemetry_module
from dovetail.engine.redaction import Redactor
from dovetail.engine.subscriptions import Change
from dovetail.protocol.jsonrpc import UNREADABLE
from dovetail.protocol.methods import ListenFilter, LogLevel, RequestId
from dovetail.protocol.revisions import Revision
from dovetail.protocol.types import IDEMPOTENCY_KEY, PROCESS_KEY

log = logging.getLogger("dovetail.client")

T = TypeVar("T")
Timeout = float | None | Literal["default"]  # None waits for ever, "default" is the client's own

CLIENT_INFO = {"name": "dovetail", "version": __version__}
NOT_OPEN = "The client is not open; use it inside `async with Client(...) as client:`"
MAX_PAGES = 1_000
MAX_ITEMS = 200_000
MAX_REPEATS = 3  # of one round of a call with an idempotency key


class _ElicitationComplete(msgspec.Struct, frozen=True, rename="camel"):
    elicitation_id: str


class ClientSession:
    """A session with one server, which may be opened again after it was closed."""

    def __init__(self, transport: Transport, options: SharedOptions, on_change: Callable[[Change], None]) -> None:
        self._transport = transport
        self._handlers = ClientHandlers(options)
        self._identity = ClientIdentity(options.get("client_info") or CLIENT_INFO, self._handlers.capabilities)
        self._pinned = pinned_revision(options.get("protocol_version"))
        self._timeout = options.get("timeout", 30)
        self.max_timeout = options.get("max_timeout", 3600)
        if not self.max_timeout > 0:
            raise errors.SetupError(f"Client: max_timeout={self.max_timeout} must be a number of seconds above 0")
        self._max_rounds = options.get("max_rounds", 32)
        if self._max_rounds < 0:
            raise errors.SetupError(f"Client: max_rounds={self._max_rounds} must be 0 or more")
        self.asks_for_tasks = bool(options.get("tasks"))
        self._transcript = options.get("transcript")
        self._log_handler = options.get("log_handler")
        self._on_change = on_change
        tracing = telemetry_module(options.get("telemetry"))
        self._call_traced = None if tracing is None else tracing.Telemetry(Redactor()).call
        self.cache = ResponseCache() if options.get("cache", True) else ResponseCache(max_entries=0)
        self._streams = ChangeStreams(self._invalidate_all)
        self._dispatcher: Dispatcher | None = None
        self._negotiated: NegotiatedProtocol | None = None
        self._renewal_lock = asyncio.Lock()
        self._session_ended = False
        self._renewal: asyncio.Task[None] | None = None
        self._session_log_level: LogLevel | None = None  # as sent by `logging/setLevel`
        # Since 2026-07-28 a server logs only for requests that name a level.
        self.log_level: LogLevel | None = None if self._log_handler is None else "info"

    async def open(self, seconds: float | None = None) -> None:
        if self._dispatcher is not None:
            raise errors.SetupError("Client: it is open already; make another one for another connection")
        self._session_ended, self._session_log_level = False, None
        self.cache.clear()
        (self._transport.tool_headers or {}).clear()
        self._dispatcher = Dispatcher(self._transport, self, self._transcript)
        try:
            async with self.time_limit(seconds, "The server was not reached"):
                await self._dispatcher.open()
                self._negotiated = await self._negotiation.run()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is None:
            return
        try:
            if self._renewal is not None:
                await cancel_and_wait(self._renewal)
        finally:
            await dispatcher.close()

    @property
    def negotiated(self) -> NegotiatedProtocol:
        """The outcome of the negotiation, which stays readable after the client is closed."""
        if self._negotiated is None:
            raise errors.ConnectionLost(NOT_OPEN)
        return self._negotiated

    @property
    def keyed_calls(self) -> Mapping[str, Any] | None:
        """What the server declares of calls with an idempotency key; None if it has no tools that take one."""
        experimental = self.negotiated.capabilities.get("experimental")
        declared = experimental.get(IDEMPOTENCY_KEY) if isinstance(experimental, Mapping) else None
        return declared if isinstance(declared, Mapping) else None

    @property
    def _negotiation(self) -> Negotiation:
        return Negotiation(self.dispatcher, self._identity, self._pinned, self._timeout)

    @property
    def revision(self) -> Revision:
        return self.negotiated.revision

    @property
    def dispatcher(self) -> Dispatcher:
        if self._dispatcher is None:
            raise errors.ConnectionLost(NOT_OPEN)
        return self._dispatcher

    def seconds(self, timeout: Timeout) -> float | None:
        return self._timeout if isinstance(timeout, str) else timeout

    @asynccontextmanager
    async def time_limit(self, seconds: float | None, late: str) -> AsyncIterator[None]:
        """A timeout that is paused while the user signs in; `late` begins the text of its error."""
        try:
            async with asyncio.timeout(seconds) as limit:
                with self.dispatcher.timeouts.track(limit):
                    yield
        except TimeoutError:
            if not limit.expired():
                raise  # a timeout inside, with a text of its own
            raise TimeoutError(f"{late} within {seconds:g} s") from None

    async def send(
        self,
        method: str,
        params: Params,
        *,
        timeout: Timeout = "default",
        progress_handler: ProgressHandler | None = None,
        log_level: LogLevel | None = None,
        on_sent: Callable[[RequestId], None] | None = None,
        cancellable: bool = True,
    ) -> Raw:
        seconds = self.seconds(timeout)
        if self._session_ended:
            await self._renew_session(method, seconds)
        params = self._with_meta(params, log_level)
        request = partial(
            self.dispatcher.request, method, timeout=seconds, max_timeout=self.max_timeout,
            on_progress=progress_handler, on_sent=on_sent, cancellable=cancellable,
        )  # fmt: skip
        return await self._traced(method, params, request)

    async def notify(self, method: str, params: Params) -> None:
        self.dispatcher.notify(method, self._with_meta(params))
        await self.dispatcher.transport.drain()

    async def repeat(self, send: Send, params: Params) -> Raw:
        """Send a call with an idempotency key, and again after a lost connection.

        Not in another session: the server may know its caller by nothing else, and would run the call a second time.
        """
        backoff, session = self._transport.backoff(), self.negotiated
        process = (self.keyed_calls or {}).get("process")  # if it has ended, its memory is lost
        mark = {} if process is None else {PROCESS_KEY: process}

        def is_over() -> bool:
            return self.dispatcher.is_closed or self._session_ended or self.negotiated is not session

        for _ in range(MAX_REPEATS):
            try:
                return await send(params)
            except errors.ConnectionLost as lost:
                await asyncio.sleep(0.0 if is_over() else backoff.next_delay())
                if is_over():
                    raise
                log.info("a call is made again: %s", lost)
            params = {**params, "_meta": {**params["_meta"], **mark}}
        return await send(params)

    async def fetch(self, method: str, params: Params, *, fresh: bool = False, timeout: Timeout = "default") -> Raw:
        """The result of a request, from the cache unless `fresh`, else from the server."""
        identity = self._transport.identity
        if not self.revision.result_type or identity is None:
            return await self.send(method, params, timeout=timeout)  # without a ttl, or an owner for the cache
        self.cache.set_owner(identity)
        asked = {name: each for name, each in params.items() if name != "_meta"}  # which names a trace, if anything
        if not fresh and (cached := self.cache.find(method, asked)) is not None:
            return cached
        generation = self.cache.generation
        raw = await self.send(method, params, timeout=timeout)
        self.cache.store(method, asked, raw, generation)
        return raw

    async def request(
        self, method: str, params: Params, shape: type[T], *, fresh: bool = False, timeout: Timeout = "default"
    ) -> T:
        raw = await self.finish(method, params, partial(self.fetch, method, fresh=fresh, timeout=timeout))
        return read_result(method, raw, shape)

    async def finish(self, method: str, params: Params, send: Send) -> Raw:
        """The result of a request that may take several rounds; `send` makes one of them."""
        if method not in INPUT_METHODS or not self.revision.input_required:
            return await send(params)
        prepare, most = self.prepare_input, self._max_rounds
        return await self._traced(method, params, lambda traced: run_rounds(method, traced, send, prepare, most))

    def _traced(self, method: str, params: Params, send: Send) -> Awaitable[Raw]:
        """The result of `send`, in a span if there shall be one."""
        call = self._call_traced
        return send(params) if call is None else call(method, params, self.revision.name, send)

    @property
    def prepare_input(self) -> PrepareHandler:
        return partial(self._handlers.prepare_handler, self.revision)

    def _with_meta(self, params: Params, log_level: LogLevel | None = None) -> Params:
        meta = self._identity.request_meta(self.revision, log_level or self.log_level)
        return {**params, "_meta": {**meta, **params.get("_meta", {})}} if meta else params

    async def set_log_level(self, level: LogLevel) -> None:
        if self.revision.log_on_request:
            self.log_level = level
        else:
            await self.send("logging/setLevel", {"level": level})
            self._session_log_level = level

    def session_ended(self, reason: str) -> None:
        """Have the next request open a new session; with open change streams it is opened at once."""
        log.info("%s", reason)
        self._session_ended = True
        self._invalidate_all()
        if self._streams and (self._renewal is None or self._renewal.done()):
            self._renewal = asyncio.create_task(self._renew_for_streams())

    async def _renew_for_streams(self) -> None:
        backoff = self._transport.backoff()
        while self._session_ended and self._streams:
            await asyncio.sleep(backoff.next_delay())
            try:
                await self._renew_session("listen", self._timeout)
            except errors.NotSignedIn as failure:
                log.warning("no notifications until the next request: %s", failure)
                return
            except (errors.DovetailError, TimeoutError) as failure:
                log.info("no new session yet: %s", failure)

    async def _renew_session(self, method: str, seconds: float | None) -> None:
        async with self.time_limit(seconds, f"{method}: no new session"), self._renewal_lock:
            if not self._session_ended:
                return
            self._negotiated = await self._negotiation.start_session(self.revision)
            self._session_ended = False
            try:
                if self._session_log_level is not None:
                    with suppress(errors.ServerError):
                        await self._request_in_session("logging/setLevel", {"level": self._session_log_level})
                await self._transport.wait_for_stream()
                await self._streams.renew(self._negotiated.capabilities, self._request_in_session)
            except BaseException:
                self._session_ended = True  # a session without its log level and subscriptions is not used
                raise

    async def _request_in_session(self, method: str, params: Params) -> Raw:
        """Send a request in this session. Raises ConnectionLost rather than open a new one."""
        if self._session_ended:
            raise errors.ConnectionLost(f"{method}: the session ended")
        return await self.dispatcher.request(method, params, timeout=self._timeout)

    async def page(
        self, method: str, key: str, item: type[T], cursor: str | None, *, fresh: bool, timeout: Timeout
    ) -> ListPage[T]:
        raw = await self.fetch(method, {} if cursor is None else {"cursor": cursor}, fresh=fresh, timeout=timeout)
        page = read_page(method, raw, key, item)
        if page.next_cursor == "" and self.revision.handshake:  # since 2026-07-28 an empty cursor is a valid one
            page = ListPage(page.items, None)
        return page

    async def pages(self, method: str, key: str, item: type[T], *, fresh: bool, timeout: Timeout) -> list[T]:
        """The items of all pages; `timeout` is for each page."""
        try:
            return await self._follow_pages(method, key, item, fresh, timeout)
        except errors.ServerError as refused:
            if refused.code != errors.INVALID_PARAMS or fresh or not self.cache.invalidate_methods(method):
                raise
        return await self._follow_pages(method, key, item, True, timeout)  # a cached page may name an expired cursor

    async def _follow_pages(self, method: str, key: str, item: type[T], fresh: bool, timeout: Timeout) -> list[T]:
        endless = f"{method}: the server's list does not end"
        items: list[T] = []
        cursor: str | None = None
        seen: set[str] = set()
        while len(seen) < MAX_PAGES and len(items) < MAX_ITEMS:
            page = await self.page(method, key, item, cursor, fresh=fresh, timeout=timeout)
            items += page.items
            cursor = page.next_cursor
            if cursor is None:
                return items
            if cursor in seen:
                raise errors.BadResponse(f"{endless}: it gave the same cursor twice")
            seen.add(cursor)
            await asyncio.sleep(0)  # cached pages come without a pause
        raise errors.BadResponse(f"{endless} after {len(seen)} pages with {len(items)} items")

    @property
    def tool_headers(self) -> ToolHeaders | None:
        return None if self.revision.handshake else self._transport.tool_headers

    def prepare_handler(self, method: str, params: Raw) -> RunHandler:
        """Only up to 2025-11-25: later revisions have the input_required result instead."""
        if self._negotiated is None or self.revision.input_required:
            raise errors.ProtocolError(f"Method not found: {method[:100]}", code=errors.METHOD_NOT_FOUND)
        return self._handlers.prepare_handler(self.revision, method, params)

    @property
    def hears_all_changes(self) -> bool:
        """Whether no notification can be lost: over a pipe, in revisions that send them without a request."""
        return self.revision.handshake and not self._transport.reconnects

    async def set_roots(self, roots: RootSource) -> None:
        self._handlers.set_roots(roots)
        if self._dispatcher is None or self._negotiated is None:
            return  # the server has not asked for them yet
        if self.revision.handshake and self._handlers.announces_roots(self.revision):
            self._dispatcher.notify("notifications/roots/list_changed")
            await self._transport.drain()

    @asynccontextmanager
    async def listen(self, requested: ListenFilter) -> AsyncIterator[ChangeStream]:
        if self.revision.listens:
            stream = self._streams.on_stream(self.dispatcher, requested, self._with_meta({}), self._timeout)
        else:
            await self.send("ping", {})  # a response shows that the server has read `notifications/initialized`
            await self._transport.wait_for_stream()
            stream = self._streams.in_session(requested, self.negotiated.capabilities, self._request_in_session)
        async with stream as changes:
            yield changes

    def messages_missed(self) -> None:
        self._invalidate_all()
        self._streams.mark_all_changed()

    def _invalidate_all(self) -> None:
        self.cache.clear()
        self._on_change(Change("tools"))

    def handle_notification(self, method: str, params: Raw) -> None:
        complete_handler = self._handlers.elicitation_complete_handler
        with suppress(*UNREADABLE):
            if method == "notifications/message" and self._log_handler is not None:
                self.dispatcher.run_handler(self._log_handler, msgspec.json.decode(params, type=LogMessage))
                return
            if method == "notifications/elicitation/complete" and complete_handler is not None:
                complete = msgspec.json.decode(params, type=_ElicitationComplete)
                self.dispatcher.run_handler(complete_handler, complete.elicitation_id)
                return
        if (change := self._streams.handle_notification(method, params)) is not None:
            self.cache.invalidate(change)  # before the reader of a change stream can request the new value
            self._on_change(change)

    def connection_lost(self, reason: str) -> None:
        self._streams.connection_lost(reason)
