"""HTTP+SSE, the transport of 2024-11-05, and the fallback to it from Streamable HTTP.

One stream carries all that the server says, and names the URL for POSTs first. The session lives as long as the
stream; a new handshake opens a new one.
"""

import asyncio
from contextlib import AsyncExitStack

from dovetail.client.transports.aiohttp import EVENTS, HttpReply, HttpRequests
from dovetail.client.transports.base import OutgoingMessage, Receiver
from dovetail.client.transports.http import INITIALIZE, POST_HEADERS, HttpTransport, PostTransport, is_attended, refusal
from dovetail.errors import BadResponse, ConnectionLost, DovetailError, ProtocolError, ServerError
from dovetail.protocol.methods import RequestId
from dovetail.protocol.revisions import Revision
from dovetail.protocol.sse import Event, SseDecoder

OLDER_TRANSPORT = frozenset({400, 404, 405})  # refusals of a handshake that servers of HTTP+SSE give


class SseTransport(PostTransport):
    """`instead_of`: the failure of Streamable HTTP that this one is tried after, and that counts if this one fails."""

    modern = False

    def __init__(self, requests: HttpRequests, instead_of: DovetailError | None = None) -> None:
        super().__init__(requests)
        self._instead_of = instead_of
        self._endpoint: str | None = None
        self.unreachable = False  # the latest handshake met no server of HTTP+SSE, nor did one before

    def write(self, out: OutgoingMessage) -> None:
        if out.method == INITIALIZE:
            self._endpoint = None
            self.unreachable = False
            self._start_stream(self._run(out))
        else:
            self._send(out)

    async def _post(self, out: OutgoingMessage) -> None:
        if self._endpoint is None:
            raise ConnectionLost("there is no session")
        attended = is_attended(out)
        async with self._requests.send("POST", POST_HEADERS, out.body, url=self._endpoint, attended=attended) as reply:
            if reply.status == 404:
                self._end("the session ended: the server does not know it any more")
            elif not reply.ok:
                failure, said = await refusal(out, reply)
                self._receiver.failed(out.id, failure, said)
            else:
                await reply.hold()  # the answer comes on the stream

    async def _run(self, handshake: OutgoingMessage) -> None:
        reason = "the session ended: the server closed its stream"
        try:
            await self._read(handshake)
        except DovetailError as failure:
            reason = f"the session ended: {failure}"
            if self._endpoint is None:
                self.unreachable = self._instead_of is not None  # once it has worked, this is an outage
                self._failed(handshake, failure if self._instead_of is None else _both(self._instead_of, failure))
        self._end(reason)

    async def _read(self, handshake: OutgoingMessage) -> None:
        seconds = self._requests.limits.endpoint
        try:
            async with asyncio.timeout(seconds) as limit:
                await self._read_stream(handshake, limit)
        except TimeoutError:
            raise BadResponse(f"the stream did not name the URL for messages within {seconds:g} s") from None
        except ProtocolError as too_long:
            raise BadResponse(too_long.message) from None
        if self._endpoint is None:
            raise BadResponse("the stream ended before it named the URL for messages")

    async def _read_stream(self, handshake: OutgoingMessage, limit: asyncio.Timeout) -> None:
        decoder = SseDecoder(max_bytes=self._requests.limits.max_message_bytes)
        async with AsyncExitStack() as connection:
            with self._receiver.time_limits.counting(limit):  # somebody may have to sign in first
                reply = await connection.enter_async_context(self._requests.send("GET", {"Accept": EVENTS}))
            if not reply.ok:
                raise (await refusal(handshake, reply))[0]
            if reply.kind != EVENTS:
                raise BadResponse(f"the server answered {reply.words} with {reply.kind}, and not with a stream")
            while piece := await reply.next():
                for event in decoder.feed(piece):
                    self._take(event, handshake)
                if self._endpoint is not None:
                    limit.reschedule(None)

    def _take(self, event: Event, handshake: OutgoingMessage) -> None:
        if event.event == "message" and event.data:
            self._receiver.receive(event.data)
        elif event.event == "endpoint" and self._endpoint is None:
            self._endpoint = self._requests.address.join(event.data.decode(errors="replace").strip())
            self._instead_of = None  # this is the right transport
            self._send(handshake)

    def _end(self, reason: str) -> None:
        if self._endpoint is not None:
            self._endpoint = None
            self._drop_requests()
            self._stop_stream()
            self._receiver.session_ended(reason)


def _both(http: DovetailError, sse: DovetailError) -> DovetailError:
    """The failure of Streamable HTTP, which counts, with that of HTTP+SSE in its words."""
    words = f"; and by HTTP+SSE: {(sse.message if isinstance(sse, ServerError) else str(sse))[:200]}"
    if isinstance(http, ServerError):
        return ServerError(http.code, http.message + words, http.data)
    return type(http)(str(http) + words)


class AutoTransport(HttpTransport):
    """Streamable HTTP, or HTTP+SSE where the first handshake is refused as servers of that transport do."""

    def __init__(self, requests: HttpRequests) -> None:
        super().__init__(requests)
        self._older: SseTransport | None = None

    @property
    def _sse(self) -> SseTransport | None:
        return None if self._older is None or self._older.unreachable else self._older

    async def open(self, receiver: Receiver) -> None:
        self._older = None
        await super().open(receiver)

    async def _refused(self, out: OutgoingMessage, reply: HttpReply) -> None:
        if out.method == INITIALIZE and reply.status in OLDER_TRANSPORT and self._revision is None:
            failure, _ = await refusal(out, reply)
            self._older = SseTransport(self._requests, instead_of=failure)
            self._older.attach(self._receiver)
            self._older.write(out)
        else:
            await super()._refused(out, reply)

    def write(self, out: OutgoingMessage) -> None:
        if self._sse is None:
            super().write(out)
        else:
            self._sse.write(out)

    async def drain(self) -> None:
        await (super().drain() if self._sse is None else self._sse.drain())

    def agreed(self, revision: Revision) -> None:
        if self._sse is None:
            super().agreed(revision)

    def abandon(self, id: RequestId) -> bool:
        if self._sse is not None:
            self._sse.abandon(id)
        return super().abandon(id)

    async def close(self) -> None:
        try:
            if self._older is not None:
                await self._older.close()
        finally:
            await super().close()
