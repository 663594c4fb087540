"""HTTP+SSE of 2024-11-05: a client GETs one stream, and POSTs its messages beside it.

The stream is a pipe like stdin and stdout are, so an ordinary `Connection` serves it; it ends with the stream.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from urllib.parse import parse_qs, quote, unquote_to_bytes

from dovetail.auth.principal import Principal
from dovetail.engine.connection import Connection
from dovetail.engine.engine import Engine
from dovetail.errors import INVALID_REQUEST, ProtocolError
from dovetail.protocol import jsonrpc, sse
from dovetail.protocol.jsonrpc import BadMessage
from dovetail.protocol.sse import encode_event
from dovetail.state.base import StateBackend, StoreFull, StoreUnavailable, until_answered
from dovetail.transports.http.asgi import is_below
from dovetail.transports.http.in_flight import LAST_SECONDS, InFlight
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.proxies import TrustedProxies, share_of
from dovetail.transports.http.request import HttpRequest, look_after
from dovetail.transports.http.response import Response

STREAM_ROUTE = "/sse"
MESSAGES_ROUTE = "/messages"
FULL_BYTES = 1024 * 1024  # that may wait for a slow client before its calls, and its further requests, wait too
MOST_BYTES = 16 * FULL_BYTES  # a client that lets more wait is given up; calls that end together can bring that about
POSTED = 1000  # messages that wait at another worker than the stream's …
POSTED_BYTES = 4 * FULL_BYTES  # … and their size, about: the larger one is, the fewer may wait with it

log = logging.getLogger("dovetail")


class SseClient:
    """One stream, and the connection that writes to it: messages wait here until the stream has taken them."""

    def __init__(self, engine: Engine, principal: Principal | None, address: str | None) -> None:
        self.id = secrets.token_urlsafe(24)
        self.owner = owner_of(principal)
        self.connection = Connection(engine, self, handshake_only=True, principal=principal, locate=lambda: address)
        self._waiting: deque[bytes] = deque()
        self._bytes = 0  # that wait
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False  # nothing more is written; what waits is still sent
        self._grace = 0.0  # seconds that its calls get when it ends
        self._ending = asyncio.Event()

    @property
    def is_ending(self) -> bool:
        return self._ending.is_set()

    # ── what the connection writes ──

    def write(self, message: bytes) -> None:
        if self._closed:
            return
        if self._bytes > MOST_BYTES:
            log.warning("an SSE client was left: more than %d bytes waited for it", MOST_BYTES)
            self.leave()
            return
        self._waiting.append(message)
        self._bytes += len(message)
        self._more.set()
        if self._bytes > FULL_BYTES and not self.is_ending:
            self._room.clear()

    async def drain(self) -> None:
        await self._room.wait()

    async def carry(self, response: Response) -> None:
        """Send what is written, until the end, or until the client takes no more."""
        while not response.ended:
            if self._waiting:
                message = self._waiting.popleft()
                await response.event(encode_event(message, event="message"))
                self._bytes -= len(message)
                if self._bytes <= FULL_BYTES:
                    self._room.set()
            elif self._closed:
                return
            else:
                self._more.clear()
                await self._more.wait()

    # ── what the client posts, and the end ──

    async def feed(self, message: bytes) -> bool:
        """False if it came too late."""
        await self.drain()  # a client that does not read may not ask for more
        if self.is_ending:
            return False
        self.connection.feed(message)
        return True

    def end(self, grace: float = 0.0) -> None:
        self._grace = grace
        self._ending.set()
        self._room.set()  # no call waits for a slow client any more

    def leave(self) -> None:
        """The client is gone."""
        self._close()
        self._waiting.clear()
        self.connection.cancel_calls()
        self.end()

    def _close(self) -> None:
        self._closed = True
        self._more.set()

    async def close_in_time(self, initialize_timeout: float | None) -> None:
        """Wait for the end, which also comes if no client has introduced itself in time; then let the calls finish."""
        loop = asyncio.get_running_loop()
        timer = None if initialize_timeout is None else loop.call_later(initialize_timeout, self._expect_greeting)
        await self._ending.wait()
        if timer is not None:
            timer.cancel()
        await self.connection.close(self._grace)
        self._close()

    def _expect_greeting(self) -> None:
        if not self.connection.first_request.is_set():
            log.info("an SSE client made no request in time and was left")
            self.end()


class SseEndpoint:
    """The two routes, and the clients that are connected."""

    def __init__(
        self, engine: Engine, options: HttpOptions, traffic: InFlight, state: StateBackend, proxies: TrustedProxies
    ) -> None:
        self._engine = engine
        self._options = options
        self._traffic = traffic
        self._proxies = proxies
        self._state = state
        self._clients: dict[str, SseClient] = {}

    # ── GET /sse ──

    async def stream(self, visit: HttpRequest) -> None:
        if visit.method != "GET":
            await visit.refuse_method(b"GET", "GET this path; it answers with the path to POST to")
            return
        client = SseClient(self._engine, visit.principal, self._proxies.caller(visit.scope))

        def left() -> None:
            visit.response.abandon()
            client.leave()

        self._traffic.open_stream(client, client.end, left, share_of(visit, self._proxies))
        self._traffic.enter(client, client.end)
        self._clients[client.id] = client
        try:
            await visit.while_welcome(self._serve(visit, client, left), client.end)
        finally:
            del self._clients[client.id]
            self._traffic.leave(client)
            self._traffic.close_stream(client)

    async def _serve(self, visit: HttpRequest, client: SseClient, left: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        response = visit.response
        over: asyncio.Future[None] = loop.create_future()

        async def beat() -> None:
            await self._show(client)
            await response.event(sse.KEEP_ALIVE)
            if response.ended:  # it takes nothing any more
                left()

        async def end_in_time() -> None:
            await client.close_in_time(self._engine.options.initialize_timeout)
            self._traffic.leave(client)  # its calls are over
            await asyncio.wait([over], timeout=LAST_SECONDS)
            if not over.done():
                response.abandon()

        attending = loop.create_task(look_after(visit.receive, over, self._options.keep_alive, beat, left))
        ending = loop.create_task(end_in_time())
        taking = loop.create_task(self._take_posted(client))
        try:
            await self._show(client)
            await response.event(encode_event(self._messages_path(visit, client).encode(), event="endpoint"))
            await client.carry(response)
        finally:
            client.leave()
            over.set_result(None)
            taking.cancel()
            await asyncio.wait({attending, ending, taking})
            if self._state.shared:
                with suppress(StoreUnavailable):  # it expires
                    await self._state.drop(_posted(client.id, client.owner))
            await response.hang_up()

    def _messages_path(self, visit: HttpRequest, client: SseClient) -> str:
        """Beside the stream, as the client sees it: hosts and proxies may each have cut off some of the path."""
        root: str = visit.scope.get("root_path", "").rstrip("/")
        seen = unquote_to_bytes(visit.scope.get("raw_path") or b"").decode("utf-8", "replace").rstrip("/")
        if seen.endswith(STREAM_ROUTE) and is_below(seen, root):
            root = seen.removesuffix(STREAM_ROUTE)
        path = f"{root}{MESSAGES_ROUTE}".lstrip("/")  # "//name" would be another host
        return f"/{quote(path)}?session_id={client.id}"

    # ── POST /messages ──

    async def messages(self, visit: HttpRequest) -> None:
        if visit.method != "POST":
            await visit.refuse_method(b"POST", "POST JSON-RPC messages here")
            return
        visit.refuse_other_types()
        id, owner = _named_session(visit), owner_of(visit.principal)
        await self._require(id, owner)
        body = await visit.body(self._options.max_body_bytes, self._options.body_timeout, self._traffic.bodies)
        try:
            jsonrpc.decode(body)
        except BadMessage as bad:
            bad.http_status = 400
            await visit.refuse(bad, bad.id, id_optional=False)
            return
        if not await self._post(id, owner, body):  # it is gone by now
            raise _no_session(404)
        await visit.response.empty(202)

    async def _require(self, id: str, owner: str | None) -> None:
        """Raises unless there is such a stream, at any worker, and it is the caller's."""
        if (client := self._clients.get(id)) is not None:
            exists = not client.is_ending and client.owner == owner
        else:
            exists = self._state.shared and bool((await self._state.read(_posted(id, owner), 0, 0)).last)
        if not exists:
            raise _no_session(404)

    # ── workers that share a state: what is posted goes through a log, which the worker that has the stream reads ──

    async def _post(self, id: str, owner: str | None, body: bytes) -> bool:
        """False if the stream has ended."""
        client = self._clients.get(id)
        if not self._state.shared:
            return client is not None and await client.feed(body)
        await self._append(_posted(id, owner), body)
        return client is None or not client.is_ending

    async def _append(self, name: str, body: bytes) -> None:
        keep = max(1, min(POSTED, POSTED_BYTES // (len(body) or 1)))
        await self._state.append(name, body, keep=keep, ttl=3 * self._options.keep_alive)

    async def _show(self, client: SseClient) -> None:
        """An empty record shows other workers that the stream is there."""
        if self._state.shared:
            with suppress(StoreFull, StoreUnavailable):
                await self._append(_posted(client.id, client.owner), b"")

    async def _take_posted(self, client: SseClient) -> None:
        """A stream that has missed a message is ended: its client must begin anew."""
        if not self._state.shared:
            return
        name, taken = _posted(client.id, client.owner), 0
        listener = self._state.listen([name])
        try:
            while True:
                page = await until_answered(partial(self._state.read, name, taken), lambda: True)
                if page.last < taken:  # the log had expired, and began anew
                    taken = 0
                    continue
                if taken < page.first - 1:
                    log.warning("an SSE client was left: more was posted than its stream could take")
                    client.leave()
                    return
                for taken, body in page.records:  # noqa: B007
                    if body and not await client.feed(body):
                        return
                if not page.records:
                    await listener.wait()
        finally:
            listener.close()


def _posted(id: str, owner: str | None) -> str:
    """The log of what was posted. A client that is not the owner looks for another one."""
    key = b"" if owner is None else b"=" + owner.encode("utf-8", "surrogatepass")
    return f"sse/{sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()}/{sha256(key).hexdigest()}"


def owner_of(principal: Principal | None) -> str | None:
    """What is posted is done with the rights of the stream, so a caller that posts must have the same."""
    return None if principal is None else " ".join([principal.key, *sorted(principal.scopes)])


def _named_session(visit: HttpRequest) -> str:
    query = parse_qs(visit.scope.get("query_string", b"")[:1000].decode("latin-1"))
    given: list[str] = query.get("session_id", [])
    if len(given) != 1:
        raise _no_session(404 if given else 400)
    return given[0]


def _no_session(status: int) -> ProtocolError:
    text = f"There is no such session; GET {STREAM_ROUTE} opens one"
    return ProtocolError(text, code=INVALID_REQUEST, http_status=status)
