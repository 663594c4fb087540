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
from dovetail.transports.http.in_flight import FLUSH_TIMEOUT, InFlight
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.proxies import TrustedProxies, quota_key
from dovetail.transports.http.request import HttpRequest, keep_alive
from dovetail.transports.http.response import HttpResponse

STREAM_ROUTE = "/sse"
MESSAGES_ROUTE = "/messages"
BACKPRESSURE_BYTES = 1024 * 1024  # that may wait for a slow client before its calls, and its further requests, wait too
MAX_WAITING_BYTES = (
    16 * BACKPRESSURE_BYTES
)  # a client that lets more wait is given up; calls that end together can bring that about
MAX_POSTED = 1000  # messages that wait at another worker than the stream's …
MAX_POSTED_BYTES = 4 * BACKPRESSURE_BYTES  # … and their size, about: the larger one is, the fewer may wait with it

log = logging.getLogger("dovetail")


class SseClient:
    """One stream, and the connection that writes to it: messages wait here until the stream has taken them."""

    def __init__(self, engine: Engine, principal: Principal | None, address: str | None) -> None:
        self.id = secrets.token_urlsafe(24)
        self.owner = rights_of(principal)
        self.connection = Connection(engine, self, handshake_only=True, principal=principal, locate=lambda: address)
        self._waiting: deque[bytes] = deque()
        self._bytes = 0  # that wait
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
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
        if self._bytes > MAX_WAITING_BYTES:
            log.warning("an SSE client was left: more than %d bytes waited for it", MAX_WAITING_BYTES)
            self.disconnect()
            return
        self._waiting.append(message)
        self._bytes += len(message)
        self._readable.set()
        if self._bytes > BACKPRESSURE_BYTES and not self.is_ending:
            self._writable.clear()

    async def drain(self) -> None:
        await self._writable.wait()

    async def send_message(self, response: HttpResponse) -> None:
        """Send what is written, until the end, or until the client takes no more."""
        while not response.ended:
            if self._waiting:
                message = self._waiting.popleft()
                await response.event(encode_event(message, event="message"))
                self._bytes -= len(message)
                if self._bytes <= BACKPRESSURE_BYTES:
                    self._writable.set()
            elif self._closed:
                return
            else:
                self._readable.clear()
                await self._readable.wait()

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
        self._writable.set()  # no call waits for a slow client any more

    def disconnect(self) -> None:
        """The client is gone."""
        self._close()
        self._waiting.clear()
        self.connection.abandon()
        self.end()

    def _close(self) -> None:
        self._closed = True
        self._readable.set()

    async def close_after_end(self, initialize_timeout: float | None) -> None:
        """Wait for the end, which also comes if no client has introduced itself in time; then let the calls finish."""
        loop = asyncio.get_running_loop()
        timer = None if initialize_timeout is None else loop.call_later(initialize_timeout, self._check_initialized)
        await self._ending.wait()
        if timer is not None:
            timer.cancel()
        await self.connection.close(self._grace)
        self._close()

    def _check_initialized(self) -> None:
        if not self.connection.greeted.is_set():
            log.info("an SSE client made no request in time and was left")
            self.end()


class SseEndpoint:
    """The two routes, and the clients that are connected."""

    def __init__(
        self, engine: Engine, options: HttpOptions, in_flight: InFlight, state: StateBackend, proxies: TrustedProxies
    ) -> None:
        self._engine = engine
        self._options = options
        self._in_flight = in_flight
        self._proxies = proxies
        self._state = state
        self._clients: dict[str, SseClient] = {}

    # ── GET /sse ──

    async def stream(self, request: HttpRequest) -> None:
        if request.method != "GET":
            await request.refuse_method(b"GET", "GET this path; it answers with the path to POST to")
            return
        client = SseClient(self._engine, request.principal, self._proxies.caller(request.scope))

        def disconnected() -> None:
            request.response.abandon()
            client.disconnect()

        self._in_flight.open_stream(client, client.end, disconnected, quota_key(request, self._proxies))
        self._in_flight.add(client, client.end)
        self._clients[client.id] = client
        try:
            await request.while_authorized(self._serve(request, client, disconnected), client.end)
        finally:
            del self._clients[client.id]
            self._in_flight.remove(client)
            self._in_flight.close_stream(client)

    async def _serve(self, request: HttpRequest, client: SseClient, disconnected: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        response = request.response
        finished: asyncio.Future[None] = loop.create_future()

        async def beat() -> None:
            await self._announce(client)
            await response.event(sse.KEEP_ALIVE)
            if response.ended:  # it takes nothing any more
                disconnected()

        async def close_client() -> None:
            await client.close_after_end(self._engine.options.initialize_timeout)
            self._in_flight.remove(client)  # its calls are over
            await asyncio.wait([finished], timeout=FLUSH_TIMEOUT)
            if not finished.done():
                response.abandon()

        keeping_alive = loop.create_task(
            keep_alive(request.receive, finished, self._options.keep_alive, beat, disconnected)
        )
        closing = loop.create_task(close_client())
        feeding = loop.create_task(self._feed_posted(client))
        try:
            await self._announce(client)
            await response.event(encode_event(self._messages_path(request, client).encode(), event="endpoint"))
            await client.send_message(response)
        finally:
            client.disconnect()
            finished.set_result(None)
            feeding.cancel()
            await asyncio.wait({keeping_alive, closing, feeding})
            if self._state.shared:
                with suppress(StoreUnavailable):  # it expires
                    await self._state.drop(_posted_log(client.id, client.owner))
            await response.close_now()

    def _messages_path(self, request: HttpRequest, client: SseClient) -> str:
        """Beside the stream, as the client sees it: hosts and proxies may each have cut off some of the path."""
        root: str = request.scope.get("root_path", "").rstrip("/")
        seen = unquote_to_bytes(request.scope.get("raw_path") or b"").decode("utf-8", "replace").rstrip("/")
        if seen.endswith(STREAM_ROUTE) and is_below(seen, root):
            root = seen.removesuffix(STREAM_ROUTE)
        path = f"{root}{MESSAGES_ROUTE}".lstrip("/")  # "//name" would be another host
        return f"/{quote(path)}?session_id={client.id}"

    # ── POST /messages ──

    async def messages(self, request: HttpRequest) -> None:
        if request.method != "POST":
            await request.refuse_method(b"POST", "POST JSON-RPC messages here")
            return
        request.require_json()
        id, owner = _session_param(request), rights_of(request.principal)
        await self._require(id, owner)
        body = await request.body(self._options.max_body_bytes, self._options.body_timeout, self._in_flight.bodies)
        try:
            jsonrpc.decode(body)
        except BadMessage as bad:
            bad.http_status = 400
            await request.refuse(bad, bad.id, id_optional=False)
            return
        if not await self._post(id, owner, body):  # it is gone by now
            raise _no_session(404)
        await request.response.empty(202)

    async def _require(self, id: str, owner: str | None) -> None:
        """Raises unless there is such a stream, at any worker, and it is the caller's."""
        if (client := self._clients.get(id)) is not None:
            exists = not client.is_ending and client.owner == owner
        else:
            exists = self._state.shared and bool((await self._state.read(_posted_log(id, owner), 0, 0)).last)
        if not exists:
            raise _no_session(404)

    # ── workers that share a state: what is posted goes through a log, which the worker that has the stream reads ──

    async def _post(self, id: str, owner: str | None, body: bytes) -> bool:
        """False if the stream has ended."""
        client = self._clients.get(id)
        if not self._state.shared:
            return client is not None and await client.feed(body)
        await self._append(_posted_log(id, owner), body)
        return client is None or not client.is_ending

    async def _append(self, name: str, body: bytes) -> None:
        keep = max(1, min(MAX_POSTED, MAX_POSTED_BYTES // (len(body) or 1)))
        await self._state.append(name, body, keep=keep, ttl=3 * self._options.keep_alive)

    async def _announce(self, client: SseClient) -> None:
        """An empty record shows other workers that the stream is there."""
        if self._state.shared:
            with suppress(StoreFull, StoreUnavailable):
                await self._append(_posted_log(client.id, client.owner), b"")

    async def _feed_posted(self, client: SseClient) -> None:
        """A stream that has missed a message is ended: its client must begin anew."""
        if not self._state.shared:
            return
        name, taken = _posted_log(client.id, client.owner), 0
        listener = self._state.listen([name])
        try:
            while True:
                page = await until_answered(partial(self._state.read, name, taken), lambda: True)
                if page.last < taken:  # the log had expired, and began anew
                    taken = 0
                    continue
                if taken < page.first - 1:
                    log.warning("an SSE client was left: more was posted than its stream could take")
                    client.disconnect()
                    return
                for taken, body in page.records:  # noqa: B007
                    if body and not await client.feed(body):
                        return
                if not page.records:
                    await listener.wait()
        finally:
            listener.close()


def _posted_log(id: str, owner: str | None) -> str:
    """The log of what was posted. A client that is not the owner looks for another one."""
    key = b"" if owner is None else b"=" + owner.encode("utf-8", "surrogatepass")
    return f"sse/{sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()}/{sha256(key).hexdigest()}"


def rights_of(principal: Principal | None) -> str | None:
    """What is posted is done with the rights of the stream, so a caller that posts must have the same."""
    return None if principal is None else " ".join([principal.key, *sorted(principal.scopes)])


def _session_param(request: HttpRequest) -> str:
    query = parse_qs(request.scope.get("query_string", b"")[:1000].decode("latin-1"))
    given: list[str] = query.get("session_id", [])
    if len(given) != 1:
        raise _no_session(404 if given else 400)
    return given[0]


def _no_session(status: int) -> ProtocolError:
    text = f"There is no such session; GET {STREAM_ROUTE} opens one"
    return ProtocolError(text, code=INVALID_REQUEST, http_status=status)
