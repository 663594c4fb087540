"""HTTP+SSE, the transport of 2024-11-05, and the fallback to it from Streamable HTTP.

One event stream carries all messages of the server, and first names the URL for POSTs. The session lives as long as the
stream; a new handshake opens a new one.
"""

import asyncio
from contextlib import AsyncExitStack

from dovetail.client.transports.aiohttp import EVENT_STREAM, HttpClient, HttpResponse
from dovetail.client.transports.base import OutgoingMessage, Receiver
from dovetail.client.transports.http import INITIALIZE, HttpTransport, PostTransport, read_refusal
from dovetail.errors import BadResponse, ConnectionLost, DovetailError, ProtocolError, ServerError
from dovetail.protocol.methods import RequestId
from dovetail.protocol.revisions import Revision
from dovetail.protocol.sse import Event, SseDecoder

FALLBACK_STATUSES = frozenset({400, 404, 405})  # with which servers of HTTP+SSE refuse a POST of `initialize`


class SseTransport(PostTransport):
    """`http_failure`: the refusal by Streamable HTTP before the fallback; it is raised if this transport fails too."""

    modern = False

    def __init__(self, http: HttpClient, http_failure: DovetailError | None = None) -> None:
        super().__init__(http)
        self._http_failure = http_failure
        self._endpoint: str | None = None
        self.unreachable = False  # the fallback found no HTTP+SSE either

    def write(self, message: OutgoingMessage) -> None:
        if message.method == INITIALIZE:
            self._endpoint = None
            self.unreachable = False
            self._start_stream(self._run_session(message))
        else:
            self._send(message)

    async def _post(self, message: OutgoingMessage) -> None:
        if self._endpoint is None:
            raise ConnectionLost("there is no session")
        async with self._send_post(message, {}, self._endpoint) as response:
            if response.status == 404:
                self._close_session("the session ended: the server does not know it any more")
            elif not response.ok:
                await self._refused(message, response)
            else:
                await response.prefetch()  # the response comes on the event stream

    async def _run_session(self, handshake: OutgoingMessage) -> None:
        reason = "the session ended: the server closed its stream"
        try:
            await self._read(handshake)
        except DovetailError as failure:
            reason = f"the session ended: {failure}"
            if self._endpoint is None:
                self.unreachable = self._http_failure is not None  # after a working session it is an outage
                self._failed(handshake, failure if self._http_failure is None else _both(self._http_failure, failure))
        self._close_session(reason)

    async def _read(self, handshake: OutgoingMessage) -> None:
        seconds = self._http.limits.endpoint_timeout
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
        decoder = SseDecoder(max_bytes=self._http.limits.max_message_bytes)
        async with AsyncExitStack() as connection:
            with self._receiver.timeouts.track(limit):  # the user may have to sign in first
                response = await connection.enter_async_context(self._http.send("GET", {"Accept": EVENT_STREAM}))
            if not response.ok:
                raise (await read_refusal(handshake, response))[0]
            if response.content_type != EVENT_STREAM:
                answered = f"the server answered {response.status_text} with {response.content_type}"
                raise BadResponse(f"{answered}, and not with a stream")
            while chunk := await response.read_chunk():
                for event in decoder.feed(chunk):
                    self._handle_event(event, handshake)
                if self._endpoint is not None:
                    limit.reschedule(None)

    def _handle_event(self, event: Event, handshake: OutgoingMessage) -> None:
        if event.event == "message" and event.data:
            self._receiver.receive(event.data)
        elif event.event == "endpoint" and self._endpoint is None:
            self._endpoint = self._http.server_url.join(event.data.decode(errors="replace").strip())
            self._http_failure = None  # the fallback was right
            self._send(handshake)

    def _close_session(self, reason: str) -> None:
        if self._endpoint is not None:
            self._endpoint = None
            self._cancel_all()
            self._receiver.session_ended(reason)


def _both(http: DovetailError, sse: DovetailError) -> DovetailError:
    """The failure of Streamable HTTP, with that of HTTP+SSE in its text."""
    text = f"; and by HTTP+SSE: {(sse.message if isinstance(sse, ServerError) else str(sse))[:200]}"
    if isinstance(http, ServerError):
        return ServerError(http.code, http.message + text, http.data, status=http.status)
    return type(http)(str(http) + text)


class AutoTransport(HttpTransport):
    """Streamable HTTP, or HTTP+SSE if the first handshake is refused with one of FALLBACK_STATUSES."""

    def __init__(self, http: HttpClient) -> None:
        super().__init__(http)
        self._sse_transport: SseTransport | None = None

    @property
    def _sse(self) -> SseTransport | None:
        return None if self._sse_transport is None or self._sse_transport.unreachable else self._sse_transport

    async def open(self, receiver: Receiver) -> None:
        self._sse_transport = None
        await super().open(receiver)

    async def _refused(self, message: OutgoingMessage, response: HttpResponse) -> None:
        if message.method == INITIALIZE and response.status in FALLBACK_STATUSES and self._revision is None:
            failure, _ = await read_refusal(message, response)
            self._sse_transport = SseTransport(self._http, http_failure=failure)
            self._sse_transport.attach(self._receiver)
            self._sse_transport.write(message)
        else:
            await super()._refused(message, response)

    def write(self, message: OutgoingMessage) -> None:
        if self._sse is None:
            super().write(message)
        else:
            self._sse.write(message)

    async def drain(self) -> None:
        await (super().drain() if self._sse is None else self._sse.drain())

    def set_revision(self, revision: Revision) -> None:
        if self._sse is None:
            super().set_revision(revision)

    def cancel_request(self, id: RequestId) -> bool:
        if self._sse is not None:
            self._sse.cancel_request(id)
        return super().cancel_request(id)

    async def close(self) -> None:
        try:
            if self._sse_transport is not None:
                await self._sse_transport.close()
        finally:
            await super().close()
