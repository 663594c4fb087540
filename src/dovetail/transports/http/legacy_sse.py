"""HTTP+SSE of 2024-11-05: a client GETs one event stream, and POSTs its messages to another path.

Both together are a duplex transport as stdio is, so a `Connection` serves them; it ends with the stream. Of several
workers, the one with the stream reads posted messages from a log.
"""

import asyncio
import logging
import secrets
from collections import deque
from contextlib import suppress
from functools import partial
from hashlib import sha256
from urllib.parse import parse_qs, quote, unquote_to_bytes

import msgspec

from dovetail.auth.principal import Principal
from dovetail.engine.connection import Connection
from dovetail.engine.engine import Engine
from dovetail.protocol import jsonrpc, sse
from dovetail.protocol.jsonrpc import BadMessage
from dovetail.protocol.sse import encode_event
from dovetail.state.base import StateBackend, StoreFull, StoreUnavailable, retry_while_unavailable
from dovetail.transports.http.asgi import is_below
from dovetail.transports.http.in_flight import FLUSH_TIMEOUT, InFlight
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.proxies import TrustedProxies, quota_key
from dovetail.transports.http.request import HttpRequest, invalid_request, keep_alive

STREAM_ROUTE = "/sse"
MESSAGES_ROUTE = "/messages"
NO_SESSION = f"There is no such session; GET {STREAM_ROUTE} opens one"
BACKPRESSURE_BYTES = 1024 * 1024  # in the queue of a slow client before its calls and its requests have to wait
MAX_QUEUED_BYTES = 16 * BACKPRESSURE_BYTES  # before it is disconnected; calls that end together can cause that
MAX_POSTED = 1000  # messages in the log from other workers …
MAX_POSTED_BYTES = 4 * BACKPRESSURE_BYTES  # … and their size, about: the larger a message, the fewer are stored with it

log = logging.getLogger("dovetail")


class SseClient:
    """One stream: the queue of messages that its connection has written, and that are not sent yet."""

    def __init__(self, engine: Engine, request: HttpRequest, address: str | None) -> None:
        self.id = secrets.token_urlsafe(24)
        self.rights = rights_of(request.principal)
        self.log_name = _log_name(self.id, self.rights)
        self.ending = asyncio.Event()
        self._response, principal = request.response, request.principal
        self._connection = Connection(engine, self, handshake_only=True, principal=principal, locate=lambda: address)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = False  # nothing more is queued; the queue is still sent
        self._grace = 0.0  # seconds for its calls to finish

    def write(self, message: bytes) -> None:
        if self._closed:
            return
        if self._queued_bytes > MAX_QUEUED_BYTES:
            log.warning("an SSE client was disconnected: more than %d bytes waited for it", MAX_QUEUED_BYTES)
            self.disconnect()
            return
        self._queue.append(message)
        self._queued_bytes += len(message)
        self._readable.set()
        if self._queued_bytes > BACKPRESSURE_BYTES and not self.ending.is_set():
            self._writable.clear()

    async def drain(self) -> None:
        await self._writable.wait()

    async def send_queue(self) -> None:
        """Send messages until the stream is closed or the client disconnects."""
        while not self._response.ended:
            if self._queue:
                message = self._queue.popleft()
                await self._response.event(encode_event(message, event="message"))
                self._queued_bytes -= len(message)
                if self._queued_bytes <= BACKPRESSURE_BYTES:
                    self._writable.set()
            elif self._closed:
                return
            else:
                self._readable.clear()
                await self._readable.wait()

    async def feed(self, message: bytes) -> bool:
        """Feed a message to the connection; False if the stream is ending."""
        await self.drain()  # a client that does not read can make no more requests
        if self.ending.is_set():
            return False
        self._connection.feed(message)
        return True

    def end(self, grace: float = 0.0) -> None:
        self._grace = grace
        self.ending.set()
        self._writable.set()  # calls don't wait for a slow client any more

    def on_disconnect(self) -> None:
        self._response.abandon()
        self.disconnect()

    def disconnect(self) -> None:
        """Drop the queue, and cancel the calls."""
        self._close()
        self._queue.clear()
        self._connection.cancel_calls()
        self.end()

    def _close(self) -> None:
        self._closed = True
        self._readable.set()

    async def close_after_end(self, initialize_timeout: float | None) -> None:
        """Wait until the stream ends, or `initialize` did not arrive in time; then let the calls finish."""
        loop = asyncio.get_running_loop()
        timer = None if initialize_timeout is None else loop.call_later(initialize_timeout, self._check_initialized)
        await self.ending.wait()
        if timer is not None:
            timer.cancel()
        await self._connection.close(self._grace)
        self._close()

    def _check_initialized(self) -> None:
        if not self._connection.first_request.is_set():
            log.info("an SSE client made no request in time and was disconnected")
            self.end()


class SseEndpoint(msgspec.Struct, eq=False):
    _engine: Engine
    _options: HttpOptions
    _in_flight: InFlight
    _state: StateBackend
    _proxies: TrustedProxies
    _clients: dict[str, SseClient] = {}

    async def stream(self, request: HttpRequest) -> None:
        if request.method != "GET":
            await request.refuse_method(b"GET", "GET this path; it answers with the path to POST to")
            return
        client = SseClient(self._engine, request, self._proxies.address_of(request.scope))
        self._in_flight.open_stream(client, client.end, client.on_disconnect, quota_key(request, self._proxies))
        self._in_flight.add(client, client.end)
        self._clients[client.id] = client
        try:
            await request.while_authorized(self._serve(request, client), client.end)
        finally:
            del self._clients[client.id]
            self._in_flight.remove(client)
            self._in_flight.close_stream(client)

    async def _serve(self, request: HttpRequest, client: SseClient) -> None:
        loop, response, interval = asyncio.get_running_loop(), request.response, self._options.keep_alive
        finished: asyncio.Future[None] = loop.create_future()

        async def beat() -> None:
            await self._announce(client)
            await response.event(sse.KEEP_ALIVE)
            if response.ended:
                client.on_disconnect()

        async def close_client() -> None:
            await client.close_after_end(self._engine.options.initialize_timeout)
            self._in_flight.remove(client)  # its calls have ended
            await asyncio.wait([finished], timeout=FLUSH_TIMEOUT)
            if not finished.done():
                response.abandon()

        beating = loop.create_task(keep_alive(request.receive, finished, interval, beat, client.on_disconnect))
        closing = loop.create_task(close_client())
        feeding = loop.create_task(self._feed_posted(client))
        try:
            await self._announce(client)
            await response.event(encode_event(self._messages_path(request, client).encode(), event="endpoint"))
            await client.send_queue()
        finally:
            client.disconnect()
            finished.set_result(None)
            feeding.cancel()
            await asyncio.wait({beating, closing, feeding})
            if self._state.shared:
                with suppress(StoreUnavailable):  # it expires
                    await self._state.drop(client.log_name)
            await response.close_now()

    def _messages_path(self, request: HttpRequest, client: SseClient) -> str:
        """The path of messages as the client sees it; hosts and proxies may have removed a prefix of `path`."""
        root: str = request.scope.get("root_path", "").rstrip("/")
        raw_path = unquote_to_bytes(request.scope.get("raw_path") or b"").decode("utf-8", "replace").rstrip("/")
        if raw_path.endswith(STREAM_ROUTE) and is_below(raw_path, root):
            root = raw_path.removesuffix(STREAM_ROUTE)
        path = f"{root}{MESSAGES_ROUTE}".lstrip("/")  # "//name" would be another host
        return f"/{quote(path)}?session_id={client.id}"

    async def messages(self, request: HttpRequest) -> None:
        if request.method != "POST":
            await request.refuse_method(b"POST", "POST JSON-RPC messages here")
            return
        request.require_json()
        query = parse_qs(request.scope.get("query_string", b"")[:1000].decode("latin-1"))
        ids, rights = query.get("session_id", []), rights_of(request.principal)
        if len(ids) != 1:
            raise invalid_request(404 if ids else 400, NO_SESSION)
        id: str = ids[0]
        await self._require(id, rights)
        body = await request.body(self._options.max_body_bytes, self._options.body_timeout, self._in_flight.bodies)
        try:
            jsonrpc.decode(body)
        except BadMessage as bad:
            bad.http_status = 400
            await request.refuse(bad, bad.id, id_optional=False)
            return
        if not await self._post(id, rights, body):
            raise invalid_request(404, NO_SESSION)
        await request.response.empty(202)

    async def _require(self, id: str, rights: str | None) -> None:
        """Raises ProtocolError unless the caller has such a stream, at any worker."""
        if (client := self._clients.get(id)) is not None:
            exists = not client.ending.is_set() and client.rights == rights
        else:
            exists = self._state.shared and bool((await self._state.read(_log_name(id, rights), 0, 0)).last)
        if not exists:
            raise invalid_request(404, NO_SESSION)

    async def _post(self, id: str, rights: str | None, body: bytes) -> bool:
        """Append a message to the log of the stream; False if the stream has ended."""
        client = self._clients.get(id)
        if not self._state.shared:
            return client is not None and await client.feed(body)
        await self._append(_log_name(id, rights), body)
        return client is None or not client.ending.is_set()

    async def _append(self, name: str, body: bytes) -> None:
        keep = max(1, min(MAX_POSTED, MAX_POSTED_BYTES // (len(body) or 1)))
        await self._state.append(name, body, keep=keep, ttl=3 * self._options.keep_alive)

    async def _announce(self, client: SseClient) -> None:
        """Make the stream known to other workers: an empty record in its log."""
        if self._state.shared:
            with suppress(StoreFull, StoreUnavailable):
                await self._append(client.log_name, b"")

    async def _feed_posted(self, client: SseClient) -> None:
        """Feed the connection from the log. If messages were lost, the client is disconnected."""
        if not self._state.shared:
            return
        name, taken = client.log_name, 0
        listener = self._state.listen([name])
        try:
            while True:
                page = await retry_while_unavailable(partial(self._state.read, name, taken), lambda: True)
                if page.last < taken:  # the log has expired, and begun anew
                    taken = 0
                    continue
                if taken < page.first - 1:
                    log.warning("an SSE client was disconnected: more was posted than its stream could take")
                    client.disconnect()
                    return
                for taken, body in page.records:  # noqa: B007
                    if body and not await client.feed(body):
                        return
                if not page.records:
                    await listener.wait()
        finally:
            listener.close()


def _log_name(id: str, rights: str | None) -> str:
    """The name of the log of posted messages; a caller with other rights gets another name."""
    key = b"" if rights is None else b"=" + rights.encode("utf-8", "surrogatepass")
    return f"sse/{sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()}/{sha256(key).hexdigest()}"


def rights_of(principal: Principal | None) -> str | None:
    """The rights of a caller. Calls run with those of the stream, so a caller that posts must have the same."""
    return None if principal is None else " ".join([principal.key, *sorted(principal.scopes)])
