"""Sessions with a backend: opened when they are needed, pooled by caller, found again after a failure."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw

from dovetail import errors
from dovetail.auth.principal import Principal
from dovetail.client.config import SharedOptions
from dovetail.client.dispatcher import Params, RunHandler
from dovetail.client.session import ClientSession
from dovetail.client.transports.base import Backoff, ToolHeaders, Transport, cancel_and_wait
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.methods import RequestId
from dovetail.protocol.revisions import Revision

if TYPE_CHECKING:
    from dovetail.gateway.forward import Call

# What a server may say to a request of another revision than its own; SDKs differ.
REFUSALS = frozenset(
    {errors.UNSUPPORTED_VERSION, errors.HEADER_MISMATCH, errors.INVALID_REQUEST, 400, 404, 405, 406, 415}
)
MODERN_REFUSALS = REFUSALS | {-32000}  # of handshake servers; it may be an error of a tool, so it ends no session


class BackendLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one backend; times are seconds."""

    max_sessions: int = 100
    idle: float = 600.0  # until a session that carries no call is closed
    first_retry: float = 1.0  # after a failure; doubled with each one
    max_retry: float = 30.0
    list_wait: float = 5.0  # that a list waits for the backend
    refresh: float = 60.0  # between two listings, if the backend neither says how long nor notifies
    refresh_timeout: float = 60.0
    max_items: int = 10_000  # of one list
    max_item_bytes: int = 256 * 1024
    max_list_bytes: int = 64 * 1024 * 1024
    max_uris: int = 1_000  # that are watched


class Unreachable(errors.ToolError):
    """The backend can't be reached; nothing was sent."""


def printable(text: object, longest: int = 500) -> str:
    """A text of a backend, for a client: bounded, in one line."""
    whole = str(text)
    cut = "".join(each if each.isprintable() else " " for each in whole[:longest]).strip()
    return f"{cut}…" if len(whole) > longest else cut


class Caller(NamedTuple):
    """Who makes a call, and what may be asked of its client."""

    principal: Principal | None
    owner: str | None  # None: not known, so the call shares its session with no other
    capabilities: Mapping[str, Any]


class BackendSession(ClientSession):
    """A session with the backend, and the calls that it carries."""

    def __init__(self, transport: Transport, options: SharedOptions, on_complete: Callable[[Raw], None]) -> None:
        super().__init__(transport, options, lambda _: None)
        self.calls: dict[RequestId, Call] = {}
        self.is_over = False  # another one is opened for the next call
        self.has_streams = transport.reconnects  # whose messages name their call
        self._on_complete = on_complete

    def share_headers(self, headers: ToolHeaders) -> None:
        """Use the headers of tools that all sessions have; only HTTP since 2026-07-28 has any."""
        if self.tool_headers is not None:
            self._transport.tool_headers = headers

    async def carry(self, call: "Call", method: str, params: Params) -> Raw:
        """The result of a request of a client."""
        level = call.level
        if level is not None and self.revision.handshake and "logging" in self.negotiated.capabilities:
            if level != self._session_log_level:
                with suppress(errors.ServerError):
                    await self.set_log_level(level)
            level = None
        sent: list[RequestId] = []

        def on_sent(id: RequestId) -> None:
            self.calls[id] = call
            sent.append(id)

        try:
            return await self.send(method, params, progress_handler=call.progress, log_level=level, on_sent=on_sent)
        except (errors.ServerError, errors.ConnectionLost) as failure:
            refusals = REFUSALS if self.revision.handshake else MODERN_REFUSALS
            self.is_over |= not isinstance(failure, errors.ServerError) or failure.code in refusals
            raise
        finally:
            for id in sent:
                del self.calls[id]

    def _find_call(self) -> "Call | None":
        """The call that the message belongs to: by the HTTP request it came on, else the only one."""
        carrier = self.dispatcher.carrier
        if carrier is not None:
            return self.calls.get(carrier)
        return next(iter(self.calls.values())) if len(self.calls) == 1 else None

    def prepare_handler(self, method: str, params: Raw) -> RunHandler:
        if self._negotiated is None or self.revision.input_required:
            raise errors.ProtocolError(f"Method not found: {method[:100]}", code=errors.METHOD_NOT_FOUND)
        call = self._find_call()
        if call is None:
            raise errors.ProtocolError("This question belongs to no call", code=errors.INVALID_REQUEST)
        return call.prepare_answer(method, params)

    def handle_notification(self, method: str, params: Raw) -> None:
        if method == "notifications/message":
            if (call := self._find_call()) is not None:
                call.log(params)
        elif method == "notifications/elicitation/complete":
            self._on_complete(params)
        else:
            super().handle_notification(method, params)

    def session_ended(self, reason: str) -> None:
        self.connection_lost(reason)  # a new session is negotiated anew: it may be another server

    def connection_lost(self, reason: str) -> None:
        self.is_over = True
        super().connection_lost(reason)


class PooledSession:
    """A session, or the task that opens it, and how many calls use it."""

    def __init__(self, opening: "asyncio.Task[BackendSession]") -> None:
        self.opening = opening
        self.users = 0
        self.is_retired = False
        self.timer: asyncio.TimerHandle | None = None
        self.turn = asyncio.Lock()  # of the one call that it may carry
        opening.add_done_callback(lambda task: task.cancelled() or task.exception())  # may have no reader

    @property
    def is_over(self) -> bool:
        task = self.opening
        return task.done() and (task.cancelled() or task.exception() is not None or task.result().is_over)


MakeSession = Callable[[Principal | None, Mapping[str, Any]], Awaitable[BackendSession]]


class Backend:
    """All sessions with one backend. `per_caller`: also those of 2026-07-28, because credentials differ."""

    def __init__(
        self, name: str, make_session: MakeSession, capabilities: Mapping[str, Any],
        *, per_caller: bool, timeout: float | None, limits: BackendLimits,
    ) -> None:  # fmt: skip
        self.name = name
        self._capabilities = capabilities  # for lists: some servers list only what their client can be asked for
        self.limits = limits
        self.failure = ""  # why it can't be reached
        self.tool_headers: ToolHeaders = {}
        self._make_session = make_session
        self._per_caller = per_caller
        self._timeout = timeout
        self.begin()

    def begin(self) -> None:
        self._main: PooledSession | None = None  # for lists and changes; for calls too since 2026-07-28
        self._pool: dict[Hashable, PooledSession] = {}  # the least recently used first
        self._closing: set[asyncio.Task[None]] = set()
        self._trying = asyncio.Lock()
        self._backoff = Backoff(self.limits.first_retry, self.limits.max_retry)
        self._retry_at = 0.0

    async def close(self) -> None:
        for pooled in (*self._pool.values(), *([] if self._main is None else [self._main])):
            self._close(pooled)
        self._pool.clear()
        self._main = None
        if self._closing:
            await asyncio.wait(self._closing)

    @property
    def in_backoff(self) -> bool:
        return asyncio.get_running_loop().time() < self._retry_at

    def unreachable(self, reason: str) -> Unreachable:
        return Unreachable(f"The server {self.name!r} can't be reached: {reason}")

    # ── opening ──

    async def _open(self, principal: Principal | None, capabilities: Mapping[str, Any]) -> BackendSession:
        async with self._trying if self.failure else nullcontext():  # after a failure one try at a time
            if self.in_backoff:
                raise self.unreachable(self.failure)
            try:
                session = await self._make_session(principal, capabilities)
                await session.open(self._timeout)
            except (errors.DovetailError, TimeoutError, OSError) as failure:
                reason = printable(failure)
                if isinstance(failure, errors.NotSignedIn) and self._per_caller and principal is not None:
                    raise self.unreachable(reason) from None  # which says nothing about other callers
                self.failure = reason
                self._retry_at = asyncio.get_running_loop().time() + self._backoff.next_delay()
                raise self.unreachable(reason) from None
        session.share_headers(self.tool_headers)
        self.failure, self._retry_at = "", 0.0
        self._backoff.succeeded()
        return session

    def _start(self, principal: Principal | None, capabilities: Mapping[str, Any]) -> PooledSession:
        opening = self._open(principal, capabilities)  # in a context of its own: it outlives the call
        return PooledSession(asyncio.get_running_loop().create_task(opening, context=contextvars.Context()))

    def _renew_main(self) -> PooledSession:
        if self._main is None or self._main.is_over:
            if self.in_backoff:
                raise self.unreachable(self.failure)
            if self._main is not None:
                self._retire(self._main)
            self._main = self._start(None, self._capabilities)
        return self._main

    async def main(self) -> BackendSession:
        return await asyncio.shield(self._renew_main().opening)

    # ── sessions of callers ──

    @asynccontextmanager
    async def session(self, caller: Caller) -> AsyncIterator[BackendSession]:
        """A session for one call. Raises Unreachable, or ToolBusy if there are too many."""
        pooled = self._renew_main()
        pooled.users += 1
        try:
            main = await asyncio.shield(pooled.opening)
            if not main.revision.handshake and not (self._per_caller and caller.principal is not None):
                yield main
                return
        finally:
            self._release(pooled)
        capabilities = shape_capabilities(caller.capabilities, main.revision) if main.revision.handshake else {}
        identity = caller.principal.key if self._per_caller and caller.principal is not None else None
        key: Hashable = (caller.owner, identity, encode(capabilities)) if caller.owner else object()
        pooled = self._take(key, caller.principal, capabilities)
        try:
            session = await asyncio.shield(pooled.opening)
            async with self._turn(pooled, alone=bool(capabilities) and not session.has_streams):
                yield session
        finally:
            if caller.owner is None and self._pool.pop(key, None) is not None:
                pooled.is_retired = True
            self._release(pooled)

    def _take(self, key: Hashable, principal: Principal | None, capabilities: Mapping[str, Any]) -> PooledSession:
        pooled = self._pool.pop(key, None)
        if pooled is not None and pooled.is_over:
            self._retire(pooled)
            pooled = None
        if pooled is None:
            if len(self._pool) + len(self._closing) >= self.limits.max_sessions:
                self._evict()
            pooled = self._start(principal, capabilities)
        self._pool[key] = pooled
        pooled.users += 1
        if pooled.timer is not None:
            pooled.timer.cancel()
        return pooled

    def _evict(self) -> None:
        for key, pooled in self._pool.items():
            if not pooled.users:
                del self._pool[key]
                return self._close(pooled)
        raise errors.ToolBusy(f"The server {self.name!r} is busy: all {self.limits.max_sessions} sessions are in use")

    @asynccontextmanager
    async def _turn(self, pooled: PooledSession, *, alone: bool) -> AsyncIterator[None]:
        """Over a pipe a question does not name its call: a session whose client can be asked carries one at a time."""
        if not alone:
            yield
            return
        try:
            await asyncio.wait_for(pooled.turn.acquire(), self._timeout)
        except TimeoutError:
            raise errors.ToolBusy(
                f"The server {self.name!r} is busy: an earlier call of this caller has not ended"
            ) from None
        try:
            yield
        finally:
            pooled.turn.release()

    def _release(self, pooled: PooledSession) -> None:
        pooled.users -= 1
        if pooled.users:
            return
        if pooled.is_retired:
            self._close(pooled)
        elif pooled is not self._main:
            loop = asyncio.get_running_loop()
            pooled.timer = loop.call_later(0 if pooled.is_over else self.limits.idle, self._drop, pooled)

    def _drop(self, pooled: PooledSession) -> None:
        for key in [key for key, each in self._pool.items() if each is pooled]:
            del self._pool[key]
        self._retire(pooled)

    def _retire(self, pooled: PooledSession) -> None:
        """Close a session that gets no more calls, when its last one has ended."""
        pooled.is_retired = True
        if not pooled.users:
            self._close(pooled)

    def _close(self, pooled: PooledSession) -> None:
        if pooled.timer is not None:
            pooled.timer.cancel()
        task = asyncio.get_running_loop().create_task(_close(pooled.opening))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(opening: "asyncio.Task[BackendSession]") -> None:
    if not opening.done():
        await cancel_and_wait(opening)
    if not opening.cancelled() and opening.exception() is None:
        with suppress(errors.DovetailError, TimeoutError, OSError):
            await opening.result().close()


def shape_capabilities(capabilities: Mapping[str, Any], revision: Revision) -> dict[str, Any]:
    """A client's capabilities as a backend of a revision knows them."""
    shaped: dict[str, Any] = {}
    if "elicitation" in capabilities and revision.elicitation:
        parts = capabilities["elicitation"]
        if revision.url_elicitation or "form" in parts:
            shaped["elicitation"] = parts if revision.url_elicitation else {}
    if "sampling" in capabilities:
        shaped["sampling"] = capabilities["sampling"] if revision.rich_sampling else {}
    return {**shaped, "roots": {}} if "roots" in capabilities else shaped
