"""The MCP endpoint: POST, GET and DELETE on one path, for the revision that each request names."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from functools import partial

from dovetail import engine as lazy
from dovetail.engine.concurrency import resume_with_timer
from dovetail.engine.dispatch import handle
from dovetail.engine.engine import Engine
from dovetail.engine.request_context import RequestContext
from dovetail.engine.server_requests import ClientResponse
from dovetail.engine.sessions import SessionHandle, Sessions
from dovetail.engine.subscriptions import ChangeLog, ChangesMade
from dovetail.engine.workers import WorkerLease
from dovetail.errors import INVALID_REQUEST, ProtocolError
from dovetail.protocol import inbound, jsonrpc
from dovetail.protocol.inbound import ParsedRequest, Request
from dovetail.protocol.jsonrpc import BadMessage, Envelope
from dovetail.protocol.methods import InitializeParams, RequestId
from dovetail.protocol.revisions import LATEST, MODERN, Revision
from dovetail.state.base import StateBackend
from dovetail.transports.http import calls
from dovetail.transports.http.calls import BatchItem, HttpBatch, HttpCall, RunningCalls, detached
from dovetail.transports.http.event_store import EventStore
from dovetail.transports.http.get_stream import STATELESS, GetStreams, ServerMessages, SessionChannel
from dovetail.transports.http.in_flight import InFlight
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.proxies import TrustedProxies, quota_key
from dovetail.transports.http.request import HttpRequest, invalid_request
from dovetail.transports.http.response import AcceptedTypes, PostResponse

SESSION_HEADER = b"mcp-session-id"
ALLOWED_METHODS = b"GET, POST, DELETE, OPTIONS"
STATELESS_METHODS = b"POST, OPTIONS"
LISTEN = "subscriptions/listen"


class Endpoint:
    """The MCP endpoint, as long as the app runs on one event loop."""

    def __init__(
        self, engine: Engine, options: HttpOptions, state: StateBackend, in_flight: InFlight, proxies: TrustedProxies
    ) -> None:
        self._engine = engine
        self._options = options
        self._proxies = proxies
        self._in_flight = in_flight
        self._state = state
        # Keep-alives of a connection also keep its session from expiring.
        self._keep_alive = min(options.keep_alive, options.session_timeout / 3)
        self.lease = WorkerLease(state, engine.lease_timings)
        self._changes = ChangeLog(engine, state, self.lease)
        timeout, max_sessions, half = options.session_timeout, options.max_sessions, -(-options.max_sessions // 2)
        self.sessions = Sessions(
            engine, state, timeout=timeout, max_sessions=max_sessions, max_per_caller=options.max_per_caller or half
        )
        self.store = EventStore(state, ttl=options.event_timeout, lease=self.lease)
        self.messages = ServerMessages(self.sessions, state, session_timeout=timeout, beat=self._keep_alive)
        self.streams = GetStreams(self._changes, self.store, self.messages, in_flight, self._keep_alive)
        self.calls = RunningCalls(state)
        self._methods = {"POST": self._post, "GET": self._get, "DELETE": self._delete}

    def start(self) -> None:
        self.lease.start()
        self._changes.start()
        self.calls.start()
        if self._state.shared:
            self._engine.elicitations.shared = self.messages

    def stop_server_requests(self) -> None:
        """Refuse responses of clients from now on; calls that wait for one fail."""
        self.messages.pending_requests.close()

    async def stop(self) -> None:
        self._engine.elicitations.shared = None
        await self._changes.stop()
        await self.calls.stop()
        await self.store.stop()
        await self.lease.stop()
        self.sessions.forget_all()

    def __call__(self, http_request: HttpRequest) -> Awaitable[None]:
        method = self._methods.get(http_request.method)
        if method is None:
            text = f"{http_request.method} is not used here; POST a JSON-RPC message"
            return http_request.refuse_method(ALLOWED_METHODS, text)
        return method(http_request)

    async def _post(self, http_request: HttpRequest) -> None:
        http_request.require_json()
        options, in_flight = self._options, self._in_flight
        body = http_request.buffered_body(options.max_body_bytes)
        if body is None:
            body = await http_request.body(options.max_body_bytes, options.body_timeout, in_flight.bodies)
            in_flight.refuse_if_closing()
        try:
            message = jsonrpc.decode(body)
            if isinstance(message, list):
                await self._batch(http_request, message)
            elif message.is_request:
                serving = self._request(http_request, message)
                del body, message  # a listen, which may last for days, would hold them in memory
                await serving
            else:
                http_request.session = await self._find_session(http_request)
                await self._receive_message(http_request, message)
                await http_request.response.empty(202)
        except BadMessage as bad:
            await http_request.refuse(bad, bad.id)

    def _request(self, http_request: HttpRequest, message: Envelope) -> Awaitable[object]:
        assert isinstance(message.id, (int, str))
        try:
            parsed = inbound.parse_request(message, self._engine.methods)
            request = inbound.modern(parsed, http_request.headers)
            if request is None:
                return self._handshake_request(http_request, parsed)
            return self._modern_request(http_request, request)
        except ProtocolError as failure:
            return http_request.refuse(failure, message.id)

    def _serve(self, http_request: HttpRequest, context: RequestContext, response: PostResponse) -> Awaitable[object]:
        """Serve a call. No coroutine: most calls never wait. Only one that does can be cancelled, as an HttpCall."""
        id = context.request.id  # a middleware may change the request
        made = self._changes.track_changes()
        work = handle(self._engine, context)
        try:
            waited_for = work.send(None)
        except StopIteration as end:
            outcome = jsonrpc.result(id, end.value), 200
        except asyncio.CancelledError:  # its task was cancelled before
            return self._track(http_request, id, context, response).serve(self._engine, _cancelled())
        except BaseException as failure:
            outcome = calls.error_outcome(failure, id, context.request, http_request.response)
        else:
            call = self._track(http_request, id, context, response)
            return call.serve(self._engine, resume_with_timer(work, waited_for, call))
        context.emit = calls.discard
        if context.channel is not None:
            context.channel.close()
        finishing = self._finish_after_changes(made, response, *outcome) if made else response.finish(*outcome)
        return self._in_flight.track_sending(finishing, http_request.response)

    async def _finish_after_changes(self, made: ChangesMade, response: PostResponse, body: bytes, status: int) -> None:
        await self._changes.wait_until_written(made)
        await response.finish(body, status)

    def _track(
        self, http_request: HttpRequest, id: RequestId, context: RequestContext, response: PostResponse
    ) -> HttpCall:
        receive, on_done = http_request.receive, self._untrack
        call = HttpCall(response, receive, self._keep_alive, context=context, id=id, on_done=on_done)
        context.emit = call.emit
        self._in_flight.add(call, call.stop)
        if (made := self._changes.track_changes()) is not None:
            call.before_response = partial(self._changes.wait_until_written, made)
        if response.session is not None:
            self.calls.add(response.session.record.id, call)
        return call

    def _untrack(self, call: HttpCall) -> None:
        self._in_flight.remove(call)
        if call.response.session is not None:
            self.calls.remove(call)

    # ── 2026-07-28: no sessions; a call runs in the task of its HTTP request, and ends with it ──

    def _modern_request(self, http_request: HttpRequest, request: Request) -> Awaitable[object]:
        response = PostResponse(http_request.response, http_request.accepted)
        serve = self._listen if request.method == LISTEN else self._serve
        return serve(http_request, self._context(http_request, request, response), response)

    def _listen(self, http_request: HttpRequest, context: RequestContext, response: PostResponse) -> Awaitable[object]:
        if not response.accepted.stream:
            text = "subscriptions/listen answers with text/event-stream, which Accept does not allow"
            raise invalid_request(406, text)
        id, receive, on_done = context.request.id, http_request.receive, self._in_flight.close_stream
        call = HttpCall(response, receive, self._keep_alive, context=context, id=id, on_done=on_done)
        context.emit = call.emit
        caller = quota_key(http_request, self._proxies)
        self._in_flight.open_stream(call, lambda _: end_listen(call), call.on_disconnect, caller)
        return http_request.while_authorized(call.serve(self._engine), lambda: end_listen(call))

    # ── up to 2025-11-25: in sessions, unless the server is stateless ──

    async def _handshake_request(self, http_request: HttpRequest, parsed: ParsedRequest) -> None:
        try:
            session = http_request.session = await self._find_session(http_request)
            self._in_flight.refuse_if_closing()
            record = None if session is None else session.record
            request = inbound.on_http(parsed, http_request.headers, record, stateless=self._options.stateless)
            if request.method == "initialize":
                http_request.session = await self._create_session(http_request, request)
                serving = self._initialize(http_request, request)
            else:
                serving = self._serve_in_session(http_request, request)
        except ProtocolError as failure:
            await http_request.refuse(failure, parsed.id)
        else:
            await serving

    def _find_session(self, http_request: HttpRequest) -> Awaitable[SessionHandle | None]:
        """The session that the headers name, if it exists and belongs to the caller."""
        id = http_request.headers.raw.get(SESSION_HEADER, b"")
        return self.sessions.find(id.strip(b" \t").decode("latin-1"), http_request.owner)

    async def _create_session(self, http_request: HttpRequest, request: Request) -> SessionHandle | None:
        if self._options.stateless:
            return None
        assert isinstance(request.params, InitializeParams)
        position = await self._changes.position()
        caller = quota_key(http_request, self._proxies)
        session = await self.sessions.open(
            request.params, request.revision, owner=http_request.owner, resume_change=position, caller=caller
        )
        request.session = session.record
        return session

    def _initialize(self, http_request: HttpRequest, request: Request) -> Awaitable[object]:
        """Serve `initialize`. The client can't resume: it does not know its session yet."""
        accepted, session = http_request.accepted, http_request.session
        # No keep-alive may start a stream before the header with the session is added.
        accepted = AcceptedTypes(accepted.json, accepted.stream and not accepted.json)
        response = PostResponse(http_request.response, accepted, session)
        call = self._track(http_request, request.id, self._context(http_request, request, response), response)
        if session is not None:
            call.send_response = self._send_initialize_response
        return detached(call, call.serve(self._engine))

    async def _send_initialize_response(self, call: HttpCall, message: bytes, status: int) -> None:
        """Send a result with the header that names the session; after an error there is no session."""
        assert call.response.session is not None
        session_id = call.response.session.record.id
        if call.failed:
            await self.sessions.end(session_id)
        else:
            call.response.http_response.add_headers([(SESSION_HEADER, session_id.encode())])
        await call.response.finish(message, status)

    def _serve_in_session(self, http_request: HttpRequest, request: Request) -> Awaitable[object]:
        """Serve a call that goes on after a disconnect, if its client has a session to resume it."""
        if http_request.session is not None:
            self.calls.refuse_duplicate(http_request.session.record.id, request.id)
        response = self._post_response(http_request, request.revision, (request.id,))
        context = self._context(http_request, request, response)
        if http_request.response.fast_path is not None:
            return self._serve(http_request, context, response)
        call = self._track(http_request, request.id, context, response)
        return calls.in_own_task(call, call.serve(self._engine))

    def _context(self, http_request: HttpRequest, request: Request, response: PostResponse) -> RequestContext:
        session = response.session
        locate = partial(self._proxies.address_of, http_request.scope)  # called by rate limits and the audit alone
        context = RequestContext(request, response.emit, session, principal=http_request.principal, locate=locate)
        if session is not None:
            context.channel = SessionChannel(self.messages, session, response)
        elif request.revision.handshake:
            context.no_channel_reason = STATELESS
        if response.primes:
            context.close_stream = response.close_stream
        return context

    def _post_response(
        self, http_request: HttpRequest, revision: Revision, requests: tuple[RequestId, ...]
    ) -> PostResponse:
        accepted, session = http_request.accepted, http_request.session
        if session is None:
            return PostResponse(http_request.response, accepted)
        primes = revision.resumable and accepted.stream
        return PostResponse(http_request.response, accepted, session, self.store, primes, requests)

    # ── batches, which only 2025-03-26 has ──

    async def _batch(self, http_request: HttpRequest, messages: Sequence[Envelope | BadMessage]) -> None:
        session = http_request.session = await self._find_session(http_request)
        self._in_flight.refuse_if_closing()
        record = None if session is None else session.record
        revision = inbound.http_batch_revision(http_request.headers, record)
        inbound.allow_batch(revision)
        assert revision is not None
        inbound.require_session(http_request.headers, record, self._options.stateless)
        requests = tuple(each.id for each in messages if isinstance(each, Envelope) and each.is_request)
        response = self._post_response(http_request, revision, requests)  # type: ignore[arg-type]
        batch = HttpBatch(response, http_request.receive, self._keep_alive)
        items = [self._batch_item(http_request, message, batch) for message in messages]
        if any(isinstance(message, BadMessage) or message.is_request for message in messages):
            await detached(batch, self._serve_batch(batch, items))
        else:
            await asyncio.gather(*items)
            await http_request.response.empty(202)

    async def _serve_batch(self, batch: HttpBatch, items: Sequence[BatchItem]) -> None:
        self._in_flight.add(batch, batch.stop)  # its response is sent after its calls were removed
        try:
            await batch.serve(items)
        finally:
            self._in_flight.remove(batch)

    def _batch_item(self, http_request: HttpRequest, message: Envelope | BadMessage, batch: HttpBatch) -> BatchItem:
        headers, session = http_request.headers, http_request.session
        if isinstance(message, BadMessage):
            return _ready(jsonrpc.error(message.id, message, id_optional=False))
        if not message.is_request:
            return self._message_in_batch(http_request, message)
        assert isinstance(message.id, (int, str))
        try:
            parsed = inbound.parse_request(message, self._engine.methods)
            if parsed.method == "initialize":
                raise ProtocolError("initialize can't be part of a batch", code=INVALID_REQUEST)
            record, stateless = None if session is None else session.record, self._options.stateless
            request = inbound.modern(parsed, headers) or inbound.on_http(parsed, headers, record, stateless=stateless)
            if session is not None:
                self.calls.refuse_duplicate(session.record.id, request.id)
            context = self._context(http_request, request, batch.response)
            call = self._track(http_request, request.id, context, batch.response)
            call.batched = True
            batch.calls.append(call)
            return call.serve(self._engine)
        except ProtocolError as failure:
            return _ready(jsonrpc.error(message.id, failure))

    async def _message_in_batch(self, http_request: HttpRequest, message: Envelope) -> None:
        with suppress(ProtocolError):  # a notification has no response
            await self._receive_message(http_request, message)

    # ── notifications, and responses to server requests: only sessions have them ──

    async def _receive_message(self, http_request: HttpRequest, message: Envelope) -> None:
        """Receive a message. Raises ProtocolError for wrong headers; ignores unknown and malformed notifications."""
        session = http_request.session
        record = None if session is None else session.record
        inbound.accept_on_http(message, http_request.headers, record, stateless=self._options.stateless)
        if self._engine.notification_hooks and message.is_notification:
            lazy.hooks.notify(self._engine, message, record)
        if (receive := self._engine.notifications.get(message.method)) is not None:  # type: ignore[arg-type]
            revision = LATEST if record is None else record.revision
            receive(message, revision, record, http_request.principal, http_request.headers)
        if session is None:
            return
        session_id, pending_requests = session.record.id, self.messages.pending_requests
        if not message.is_notification:
            await pending_requests.deliver_anywhere(session_id, message.id, ClientResponse.from_envelope(message))
        elif message.method == "notifications/cancelled":
            if (id := inbound.read_cancelled_id(message)) is not None:
                await self.calls.cancel(session_id, id)
        elif message.method == "notifications/progress":
            await pending_requests.deliver_anywhere(session_id, inbound.read_progress_token(message))
        elif message.method == "notifications/initialized" and not session.record.initialized:
            await session.change(lambda record: record.replace(initialized=True))

    # ── GET and DELETE: only sessions have them ──

    async def _get(self, http_request: HttpRequest) -> None:
        if self._has_no_sessions(http_request):
            text = "There is no stream to GET here; POST a JSON-RPC message"
            await http_request.refuse_method(STATELESS_METHODS, text)
            return
        session = await self._require_session(http_request)
        if not http_request.accepted.stream:
            raise invalid_request(406, "GET answers with text/event-stream, which Accept does not allow")
        await self.streams.serve(http_request, session, quota_key(http_request, self._proxies))

    async def _delete(self, http_request: HttpRequest) -> None:
        if self._has_no_sessions(http_request):
            await http_request.refuse_method(STATELESS_METHODS, "There is no session to DELETE here")
            return
        session_id = (await self._require_session(http_request)).record.id
        await self.sessions.end(session_id)
        self.calls.cancel_session(session_id)
        await http_request.response.empty(204)

    def _has_no_sessions(self, http_request: HttpRequest) -> bool:
        return self._options.stateless or http_request.headers.get("mcp-protocol-version") in MODERN

    async def _require_session(self, http_request: HttpRequest) -> SessionHandle:
        session = await self._find_session(http_request)
        inbound.check_get_or_delete(http_request.headers, None if session is None else session.record)
        assert session is not None
        return session


def end_listen(call: HttpCall) -> None:
    """End a listen from the server's side: its result is sent, then its stream closes."""
    if call.context.subscription is not None:
        call.context.subscription.end()
    else:
        call.cancel()


async def _ready(response: bytes) -> bytes:
    return response


async def _cancelled() -> bytes:
    raise asyncio.CancelledError
