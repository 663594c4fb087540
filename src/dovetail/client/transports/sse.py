"""HTTP+SSE, the transport of 2024-11-05, and the fallback to it from Streamable HTTP.

One stream carries all that the server says, and names the URL for POSTs first. The session lives as long as the
stream; a new handshake opens a new one.
"""

import asyncio
from contextlib import AsyncExitStack

from dovetail.client.transports.aiohttp import EVENTS, HttpRequests
from dovetail.client.transports.base import Backoff, Receiver, Transport
from dovetail.client.transports.http import (
    INITIALIZE,
    POST_HEADERS,
    HttpTransport,
    OutgoingMessage,
    PostTransport,
    refusal,
)
from dovetail.errors import BadAnswer, ConnectionLost, DovetailError, ProtocolError, ServerError
from dovetail.protocol.methods import RequestId
from dovetail.protocol.revisions import Revision
from dovetail.protocol.sse import Event, SseDecoder


class SseTransport(PostTransport):
    """`instead_of`: the failure of a newer transport that this one was tried after."""

    modern = False

    def __init__(self, requests: HttpRequests, instead_of: DovetailError | None = None) -> None:
        super().__init__(requests)
        self._instead_of = instead_of
        self._endpoint: str | None = None

    def write(self, message: bytes) -> None:
        out = OutgoingMessage.of(message)
        if out.method == INITIALIZE:
            self._endpoint = None
            self._start_stream(self._run(out))
        else:
            self._send(out)

    async def _post(self, out: OutgoingMessage) -> None:
        if self._endpoint is None:
            raise ConnectionLost("there is no session")
        attended = out.is_attended
        async with self._requests.send("POST", POST_HEADERS, out.body, url=self._endpoint, attended=attended) as reply:
            if reply.status == 404:
                self._end("the session ended: the server does not know it any more")
            elif not reply.ok:
                failure, said = await refusal(out, reply)
                self._receiver.failed(out.id, failure, said)
            else:
                await reply.finish()  # the answer comes on the stream

    async def _run(self, handshake: OutgoingMessage) -> None:
        reason = "the session ended: the server closed its stream"
        try:
            await self._read(handshake)
        except DovetailError as failure:
            reason = f"the session ended: {failure}"
            if self._endpoint is None:
                self._receiver.failed(handshake.id, self._unreachable(handshake, failure))
        self._end(reason)

    async def _read(self, handshake: OutgoingMessage) -> None:
        seconds = self._requests.limits.endpoint
        try:
            async with asyncio.timeout(seconds) as limit:
                await self._read_stream(handshake, limit)
        except TimeoutError:
            raise BadAnswer(f"the stream did not name the URL for messages within {seconds:g} s") from None
        except ProtocolError as too_long:
            raise BadAnswer(too_long.message) from None
        if self._endpoint is None:
            raise BadAnswer("the stream ended before it named the URL for messages")

    async def _read_stream(self, handshake: OutgoingMessage, limit: asyncio.Timeout) -> None:
        decoder = SseDecoder(max_bytes=self._requests.limits.max_message_bytes)
        async with AsyncExitStack() as connection:
            with self._receiver.time_limits.counting(limit):  # somebody may have to sign in first
                reply = await connection.enter_async_context(self._requests.send("GET", {"Accept": EVENTS}))
            if not reply.ok:
                raise (await refusal(handshake, reply))[0]
            if reply.kind != EVENTS:
                raise BadAnswer(f"the server answered {reply.words} with {reply.kind}, and not with a stream")
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

    def _unreachable(self, handshake: OutgoingMessage, failure: DovetailError) -> DovetailError:
        """What failed first is what counts; this one adds its words."""
        words = failure.message if isinstance(failure, ServerError) else f"{handshake.subject}: {failure}"
        first = self._instead_of
        if first is not None:
            words = f"{first.message if isinstance(first, ServerError) else first}; and over HTTP+SSE: {words}"
            failure = first
        return (
            ServerError(failure.code, words, failure.data) if isinstance(failure, ServerError) else type(failure)(words)
        )

    def _end(self, reason: str) -> None:
        if self._endpoint is not None:
            self._endpoint = None
            self._drop_requests()
            self._stop_stream()
            self._receiver.session_ended(reason)


class AutoTransport(Transport):
    """Hands everything on to the one of the two that fits."""

    reconnects = True

    def __init__(self, requests: HttpRequests) -> None:
        self._requests = requests
        self._newer = HttpTransport(requests, self._fall_back)
        self._older: SseTransport | None = None
        self._current: Transport = self._newer
        self.mirrored = self._newer.mirrored

    async def open(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._current = self._newer
        await self._current.open(receiver)

    def _fall_back(self, handshake: bytes, failure: DovetailError) -> None:
        self._current = self._older = SseTransport(self._requests, instead_of=failure)
        self._older.attach(self._receiver)
        self._older.write(handshake)

    def write(self, message: bytes) -> None:
        self._current.write(message)

    async def drain(self) -> None:
        await self._current.drain()

    async def close(self) -> None:
        try:
            if self._older is not None:
                await self._older.close()
        finally:
            self._older = None
            await self._newer.close()

    def agreed(self, revision: Revision) -> None:
        if not revision.handshake:
            self._current = self._newer  # whose answer has come after all
        self._current.agreed(revision)

    def abandon(self, id: RequestId) -> bool:
        if self._current is not self._newer:
            self._newer.abandon(id)  # it may have been asked there, before this one was tried
        return self._current.abandon(id)

    @property
    def identity(self) -> str | None:
        return self._requests.identity

    def backoff(self) -> Backoff:
        return self._requests.backoff()

    async def attend(self) -> None:
        await self._current.attend()
