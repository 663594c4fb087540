"""Sessions with a backend: opened when they are needed, pooled by caller, found again after a failure."""

import asyncio
import contextvars
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager, suppress
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

if TYPE_CHECKING:
    from dovetail.gateway.forward import Call

# What a server may say to a request of another revision than its own, or of a session that it has forgotten: the
# statuses, and the codes with them, which a tool may use too. SDKs differ.
REFUSALS = {400, 404, 405, 406, 415}
REFUSALS |= {errors.UNSUPPORTED_VERSION, errors.HEADER_MISMATCH, errors.INVALID_REQUEST, -32000, -32001}
URL_PATH = re.compile(r"(https?://[^/?#\s]+)[/?#]\S*?(:?)(?!\S)", re.IGNORECASE)


class BackendLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one backend; times are seconds."""

    max_sessions: int = 100
    idle: float = 600.0  # until a session that carries no call is closed
    retry: float = 1.0  # after a failure; doubled with each one, up to thirty times as much
    list_wait: float = 5.0  # that a list waits for the backend
    refresh: float = 60.0  # between two listings, if the backend neither says how long nor notifies
    max_items: int = 10_000  # of one list


def printable(text: object, longest: int = 500) -> str:
    """A text of a backend, for a client: bounded, in one line."""
    whole = str(text)
    cut = "".join(each if each.isprintable() else " " for each in whole[:longest]).strip()
    return f"{cut}…" if len(whole) > longest else cut


def describe_failure(failure: Exception) -> str:
    """A failure of the connection, for a client: without what follows the host of a URL, which may be a secret."""
    return URL_PATH.sub(r"\1/…\2", printable(failure))


class Caller(NamedTuple):
    """Who makes a call, and what may be asked of its client."""

    principal: Principal | None
    owner: str | None  # None: not known, so the call shares its session with no other
    capabilities: Mapping[str, Any]

    @property
    def is_local(self) -> bool:
        return self.owner is not None and self.owner.startswith("local-")


class BackendSession(ClientSession):
    """A session with the backend, and the calls that it carries."""

    def __init__(self, transport: Transport, options: SharedOptions, *, asks_auth: bool = False) -> None:
        super().__init__(transport, options, lambda _: None)
        self._asks_auth = asks_auth  # its token is what a function gave for it
        self.calls: dict[RequestId, Call] = {}
        self.is_over = False  # another one is opened for the next call
        self.has_streams = transport.reconnects  # whose messages name their call
        self._owner: str | None = None  # of the last call
        self._is_shared = False  # by several callers

    def share_headers(self, headers: ToolHeaders) -> None:
        """Use the headers of tools that all sessions have; only HTTP since 2026-07-28 has any."""
        if self.tool_headers is not None:
            self._transport.tool_headers = headers

    async def carry(self, call: "Call", method: str, params: Params) -> Raw:
        """The result of a request of a client."""
        level = call.level
        self._is_shared |= self._owner not in (None, call.caller.owner)
        self._owner = call.caller.owner or "unknown"
        if level is not None and self.revision.handshake and "logging" in self.negotiated.capabilities:
            if level != self._session_log_level:
                with suppress(errors.ServerError):
                    await self.set_log_level(level)
            level = None

        def on_sent(id: RequestId) -> None:
            self.calls[id], call.id = call, id

        try:
            return await self.send(method, params, progress_handler=call.progress, log_level=level, on_sent=on_sent)
        except errors.ConnectionLost:
            self.is_over = True
            raise
        finally:
            self.calls.pop(call.id, None)

    async def send(self, method: str, params: Params, **options: Any) -> Raw:
        try:
            return await super().send(method, params, **options)
        except errors.ServerError as failure:
            # It may be another server by now: then the next request negotiates anew. Only HTTP says so, by a status.
            self.is_over |= REFUSALS.issuperset((failure.status, failure.code))
            raise
        except errors.NotSignedIn:
            self.is_over |= self._asks_auth  # the function that gave the token may have a newer one
            raise

    def _find_call(self) -> "Call | None":
        """The call that the message belongs to: by the HTTP request it came on, else the only one.

        Not on a pipe that several callers share: it may be late, and of a call that has ended.
        """
        carrier = self.dispatcher.carrier
        if carrier is not None:
            return self.calls.get(carrier)
        return next(iter(self.calls.values())) if len(self.calls) == 1 and not self._is_shared else None

    def prepare_handler(self, method: str, params: Raw) -> RunHandler:
        call = self._find_call()
        if call is None or not call.can_be_asked or self.revision.input_required:
            raise errors.ProtocolError("This question belongs to no call", code=errors.INVALID_REQUEST)
        return call.prepare_answer(method, params)

    def handle_notification(self, method: str, params: Raw) -> None:
        if method != "notifications/message":
            super().handle_notification(method, params)
        elif (call := self._find_call()) is not None:
            call.log(params)

    def session_ended(self, reason: str) -> None:
        self.connection_lost(reason)  # a new session is negotiated anew: it may be another server

    def connection_lost(self, reason: str) -> None:
        self.is_over = True
        super().connection_lost(reason)


class PooledSession:
    """A session, or the task that opens it, and how many calls use it."""

    def __init__(self, key: Hashable, opening: "asyncio.Task[BackendSession]") -> None:
        self.key = key
        self.opening = opening
        self.users = 0
        self.timer: asyncio.TimerHandle | None = None
        self.turn = asyncio.Lock()  # of the one call that it may carry
        self.turns = 0  # that have ended
        opening.add_done_callback(lambda task: task.cancelled() or task.exception())  # may have no reader

    @property
    def is_over(self) -> bool:
        task = self.opening
        return task.done() and (task.cancelled() or task.exception() is not None or task.result().is_over)


MakeSession = Callable[[Principal | None, Mapping[str, Any]], Awaitable[BackendSession]]
MAIN = "main"  # the key of the session for lists and changes; for calls too since 2026-07-28
NO_CALLER = Caller(None, None, {})


class Backend:
    """All sessions with one backend. `per_caller`: also those of 2026-07-28, because credentials differ.

    A session is in the pool until it is over, idle, or has to make room; then it is closed after its last call.
    """

    def __init__(
        self, name: str, make_session: MakeSession, capabilities: Mapping[str, Any],
        *, per_caller: bool, timeout: float | None, limits: BackendLimits,
    ) -> None:  # fmt: skip
        self.name = name
        self._capabilities = capabilities  # for lists: some servers list only what their client can be asked for
        self.limits = limits
        self.failure = ""  # why it can't be reached
        self.revision: str | None = None  # of the last session
        self.latencies = deque[float](maxlen=20)  # seconds, of the last calls
        self.tool_headers: ToolHeaders = {}
        self._make_session = make_session
        self._per_caller = per_caller
        self._timeout = timeout
        self.begin()

    def begin(self) -> None:
        self._pool: dict[Hashable, PooledSession] = {}  # the least recently used first
        self._closing: set[asyncio.Task[None]] = set()
        # Or a local user, who needs no session beside the main one.
        self._main_caller = Caller(None, None, self._capabilities)
        self._backoff = Backoff(self.limits.retry, 30 * self.limits.retry)
        self._retry_at = 0.0

    async def close(self) -> None:
        for pooled in self._pool.values():
            self._close(pooled)
        self._pool.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    @property
    def in_backoff(self) -> bool:
        return asyncio.get_running_loop().time() < self._retry_at

    def unreachable(self, reason: str) -> errors.ToolError:
        return errors.ToolError(f"The server {self.name!r} can't be reached: {reason}")

    async def main(self, caller: Caller = NO_CALLER) -> BackendSession:
        """The session for lists and changes."""
        return await asyncio.shield(self._find_main(caller).opening)

    @asynccontextmanager
    async def session(self, caller: Caller) -> AsyncIterator[BackendSession]:
        """A session for one call. Raises ToolError if it can't be reached, or there are too many."""
        main = await self.main(caller)
        has_own = main.revision.handshake or (self._per_caller and caller.principal is not None)
        if not has_own or (caller.is_local and caller == self._main_caller):
            pooled = self._find_main(caller)
        else:
            pooled = self._find(self._key_of(caller), caller)
        async with self._use(pooled) as session:
            # Over a pipe a question does not name its call, so there is one at a time while the client can be asked.
            takes_turns = session.revision.handshake and not session.has_streams and caller.capabilities
            if not takes_turns:
                yield session
                return
            taking = asyncio.ensure_future(pooled.turn.acquire())
            try:
                while not taking.done():
                    earlier = pooled.turns
                    await asyncio.wait([taking], timeout=self._timeout)
                    if not taking.done() and pooled.turns == earlier:  # it may wait for an answer that never comes
                        busy = f"The server {self.name!r} is busy: an earlier call of this caller has not ended"
                        raise errors.ToolBusy(busy)
            except BaseException:
                if not taking.cancel():
                    pooled.turn.release()
                raise
            try:
                if session.is_over:  # since it waits; nothing was sent
                    async with self.session(caller) as another:
                        yield another
                else:
                    yield session
            finally:
                pooled.turns += 1
                pooled.turn.release()

    def _key_of(self, caller: Caller) -> Hashable:
        if caller.owner is None:
            return object()  # a key that is never found again
        identity = caller.principal.key if self._per_caller and caller.principal is not None else None
        return caller.owner, identity, encode(caller.capabilities)

    # ── the pool ──

    def _find_main(self, caller: Caller) -> PooledSession:
        pooled = self._pool.get(MAIN)
        if pooled is None or pooled.is_over:
            self._main_caller = caller if caller.is_local else self._main_caller
        return self._find(MAIN, self._main_caller)

    def _find(self, key: Hashable, caller: Caller) -> PooledSession:
        pooled = self._pool.pop(key, None)
        if pooled is not None and pooled.is_over:
            self._drop(pooled)
            pooled = None
        if pooled is None:
            if self.in_backoff:
                raise self.unreachable(self.failure)
            if key is not MAIN:
                self._make_room(caller)
            # In a context of its own: it outlives the call.
            opening = asyncio.get_running_loop().create_task(self._open(caller), context=contextvars.Context())
            pooled = PooledSession(key, opening)
        self._pool[key] = pooled
        return pooled

    def _make_room(self, caller: Caller) -> None:
        """Close an idle session if there are too many. A tenth of them is for callers that are known."""
        most = self.limits.max_sessions if caller.owner else self.limits.max_sessions - self.limits.max_sessions // 10
        if len(self._pool) - (MAIN in self._pool) + len(self._closing) >= most:
            idle = [each for each in self._pool.values() if not each.users and each.key is not MAIN]
            if not idle:
                raise errors.ToolBusy(f"The server {self.name!r} is busy: all {most} sessions are in use")
            self._drop(idle[0])

    @asynccontextmanager
    async def _use(self, pooled: PooledSession) -> AsyncIterator[BackendSession]:
        pooled.users += 1
        if pooled.timer is not None:
            pooled.timer.cancel()
        try:
            yield await asyncio.shield(pooled.opening)
        finally:
            pooled.users -= 1
            is_known = isinstance(pooled.key, (str, tuple))
            if pooled.is_over or not is_known or self._pool.get(pooled.key) is not pooled:
                self._drop(pooled)
            elif not pooled.users and pooled.key is not MAIN:
                loop = asyncio.get_running_loop()
                pooled.timer = loop.call_later(self.limits.idle, self._drop, pooled)

    def _drop(self, pooled: PooledSession) -> None:
        """Give a session no more calls, and close it when it has none."""
        if self._pool.get(pooled.key) is pooled:
            del self._pool[pooled.key]
        if not pooled.users:
            self._close(pooled)

    # ── opening and closing ──

    async def _open(self, caller: Caller) -> BackendSession:
        try:
            session = await self._make_session(caller.principal, caller.capabilities)
            await session.open(self._timeout)
        except (errors.DovetailError, TimeoutError, OSError) as failure:
            reason = describe_failure(failure)
            if not self._per_caller or caller.principal is None:  # else it says nothing about other callers
                self.failure = reason
                self._retry_at = asyncio.get_running_loop().time() + self._backoff.next_delay()
            raise self.unreachable(reason) from None
        session.share_headers(self.tool_headers)
        self.failure, self._retry_at, self.revision = "", 0.0, session.revision.name
        self._backoff.succeeded()
        return session

    def _close(self, pooled: PooledSession) -> None:
        if pooled.timer is not None:
            pooled.timer.cancel()
        task = asyncio.get_running_loop().create_task(_close(pooled.opening))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(opening: "asyncio.Task[BackendSession]") -> None:
    await cancel_and_wait(opening)
    if not opening.cancelled() and opening.exception() is None:
        with suppress(errors.DovetailError, TimeoutError, OSError):
            await opening.result().close()
