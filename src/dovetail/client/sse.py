"""The link to a server behind HTTP+SSE, the transport of 2024-11-05: one stream for all it says, and POSTs to a URL
that the stream names first. The session lives as long as the stream; a new handshake opens a new one.
"""

import asyncio
from contextlib import AsyncExitStack

from dovetail.client import requests as limits
from dovetail.client.outgoing import INITIALIZE, POST_HEADERS, Outgoing
from dovetail.client.posting import PostingLink
from dovetail.client.refusals import refusal
from dovetail.client.requests import EVENTS, HttpRequests
from dovetail.errors import BadAnswer, ConnectionLost, DovetailError, ProtocolError, ServerError
from dovetail.protocol.sse import Event, SseDecoder

ENDPOINT_SECONDS = 5.0  # for the stream to open and to name the URL for messages


class SseLink(PostingLink):
    """`instead_of`: the failure of a newer transport that this one was tried after."""

    modern = False

    def __init__(self, requests: HttpRequests, instead_of: DovetailError | None = None) -> None:
        super().__init__(requests)
        self._instead_of = instead_of
        self._endpoint: str | None = None

    def write(self, message: bytes) -> None:
        out = Outgoing.of(message)
        if out.method == INITIALIZE:
            self._endpoint = None
            self._start_stream(self._run(out))
        else:
            self._send(out)

    @property
    def hears(self) -> bool:
        return self._endpoint is not None

    # ── out ──

    async def _post(self, out: Outgoing) -> None:
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

    # ── in ──

    async def _run(self, handshake: Outgoing) -> None:
        reason = "the session ended: the server closed its stream"
        try:
            await self._read(handshake)
        except DovetailError as failure:
            reason = f"the session ended: {failure}"
            if self._endpoint is None:
                self._receiver.failed(handshake.id, self._unreachable(handshake, failure))
        self._end(reason)

    async def _read(self, handshake: Outgoing) -> None:
        decoder = SseDecoder(max_bytes=limits.MAX_MESSAGE_BYTES)
        try:
            async with asyncio.timeout(ENDPOINT_SECONDS) as limit:
                await self._read_stream(decoder, handshake, limit)
        except TimeoutError:
            raise BadAnswer(f"the stream did not name the URL for messages within {ENDPOINT_SECONDS:g} s") from None
        except ProtocolError as too_long:
            raise BadAnswer(too_long.message) from None
        if self._endpoint is None:
            raise BadAnswer("the stream ended before it named the URL for messages")

    async def _read_stream(self, decoder: SseDecoder, handshake: Outgoing, limit: asyncio.Timeout) -> None:
        async with AsyncExitStack() as connection:
            with self._receiver.patience.counting(limit):  # somebody may have to sign in first
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

    def _take(self, event: Event, handshake: Outgoing) -> None:
        if event.event == "message" and event.data:
            self._receiver.receive(event.data)
        elif event.event == "endpoint" and self._endpoint is None:
            self._endpoint = self._requests.address.join(event.data.decode(errors="replace").strip())
            self._instead_of = None  # this is the right transport
            self._send(handshake)

    def _unreachable(self, handshake: Outgoing, failure: DovetailError) -> DovetailError:
        words = failure.message if isinstance(failure, ServerError) else f"{handshake.subject}: {failure}"
        match self._instead_of:
            case None:
                return failure if isinstance(failure, ServerError) else type(failure)(words)
            case ServerError() as refused:
                return ServerError(refused.code, f"{refused.message}; and over HTTP+SSE: {words}", refused.data)
            case other:
                return type(other)(f"{other}; and over HTTP+SSE: {words}")

    # ── the end ──

    def _end(self, reason: str) -> None:
        if self._endpoint is not None:
            self._endpoint = None
            self._drop_requests()
            self._stop_stream()
            self._receiver.session_ended(reason)

    async def _leave(self) -> None:
        """The end of the stream says it all."""
