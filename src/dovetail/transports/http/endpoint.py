"""The MCP endpoint: POST, GET and DELETE of every revision on one path; the revision is chosen for each request."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from functools import partial

from dovetail.engine.client_requests import Reply
from dovetail.engine.dispatch import handle
from dovetail.engine.engine import Engine
from dovetail.engine.request_context import RequestContext
from dovetail.engine.sessions import SessionHandle, Sessions
from dovetail.engine.subscriptions import ChangeLog, ChangesMade
from dovetail.engine.workers import WorkerLease
from dovetail.errors import INVALID_REQUEST, ProtocolError
from dovetail.protocol import inbound, jsonrpc, revisions
from dovetail.protocol.inbound import Opened, Request
from dovetail.protocol.jsonrpc import BadMessage, Envelope
from dovetail.protocol.methods import InitializeParams, RequestId
from dovetail.state.base import StateBackend
from dovetail.transports.http.calls import (
    BatchItem,
    HttpBatch,
    HttpCall,
    RunningCalls,
    detached,
    discard,
    error_outcome,
    in_own_task,
)
from dovetail.transports.http.event_store import EventStore
from dovetail.transports.http.get_stream import STATELESS, GetStreams, ServerMessages, SessionChannel
from dovetail.transports.http.in_flight import InFlight
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.proxies import TrustedProxies, quota_key
from dovetail.transports.http.request import HttpRequest
from dovetail.transports.http.response import Accepted, PostResponse

SESSION_HEADER = b"mcp-session-id"
ALLOWED_METHODS = b"GET, POST, DELETE, OPTIONS"
METHODS_WITHOUT_SESSIONS = b"POST, OPTIONS"

LISTEN = "subscriptions/listen"


class Endpoint:
    """Lives as long as the app on one event loop."""

    def __init__(
        self, engine: Engine, options: HttpOptions, state: StateBackend, in_flight: InFlight, proxies: TrustedProxies
    ) -> None:
        self._engine = engine
        self._options = options
        self._proxies = proxies
        self._in_flight = in_flight
        self._state = state
        # A connection that says nothing is kept alive, and so is the session that it belongs to.
        self._keep_alive = min(options.keep_alive, options.session_timeout / 3)
        self.lease = WorkerLease(state)
        self._changes = ChangeLog(engine, state, self.lease)
        timeout, most, half = options.session_timeout, options.max_sessions, -(-options.max_sessions // 2)
        self.sessions = Sessions(engine, state, timeout=timeout, most=most, most_of_one=options.max_per_caller or half)
        self.store = EventStore(state, ttl=options.event_timeout, lease=self.lease)
        self.messages = ServerMessages(self.sessions, state, session_timeout=timeout, beat=self._keep_alive)
        self.streams = GetStreams(self._changes, self.store, self.messages, in_flight, keep_alive=self._keep_alive)
        self.calls = RunningCalls(state)
        self._methods = {"POST": self._post, "GET": self._get, "DELETE": self._delete}

    def start(self) -> None:
        self.lease.start()
        self._changes.start()
        self.calls.start()
        if self._state.shared:
            self._engine.elicitations.far = self.messages

    def stop_client_requests(self) -> None:
        """Answers of clients are refused from now on: a call that waits for one is told."""
        self.messages.replies.close()

    async def stop(self) -> None:
        self._engine.elicitations.far = None
        await self._changes.stop()
        await self.calls.stop()
        await self.store.stop()
        await self.lease.stop()
        self.sessions.forget_all()

    def __call__(self, http_request: HttpRequest) -> Awaitable[None]:
        verb = self._methods.get(http_request.method)
        if verb is None:
            return http_request.refuse_method(
                ALLOWED_METHODS, f"{http_request.method} is not used here; POST a JSON-RPC message"
            )
        return verb(http_request)

    # ── POST ──

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
                del body, message  # for a listen, which stays, needs nothing of them
                await serving
            else:
                await self._receive_message(http_request, message, await self._find_session(http_request))
                await http_request.response.empty(202)
        except BadMessage as bad:
            await http_request.refuse(bad, bad.id)

    def _request(self, http_request: HttpRequest, message: Envelope) -> Awaitable[object]:
        assert isinstance(message.id, (int, str))
        try:
            opened = inbound.open_request(message)
            request = inbound.modern(opened, http_request.headers)
            return (
                self._session_request(http_request, opened)
                if request is None
                else self._modern_request(http_request, request)
            )
        except ProtocolError as failure:
            return http_request.refuse(failure, message.id)

    def _serve(
        self, http_request: HttpRequest, context: RequestContext, response: PostResponse, session: SessionHandle | None
    ) -> Awaitable[object]:
        """Not a coroutine: most calls never wait. One that does not can't be cancelled, so it is on no record."""
        id = context.request.id  # also if a middleware changes the request
        made = self._changes.noted()
        work = handle(self._engine, context)
        try:
            waited_for = work.send(None)
        except StopIteration as end:
            outcome = jsonrpc.result(id, end.value), 200
        except asyncio.CancelledError:  # its task was cancelled before
            return self._track(http_request, id, context, response, session).serve(self._engine, _cancelled())
        except BaseException as failure:
            outcome = error_outcome(failure, id, context.request, http_request.response)
        else:
            call = self._track(http_request, id, context, response, session)
            return call.serve(self._engine, call.resume(work, waited_for))
        context.emit = discard
        if context.back is not None:
            context.back.close()
        finishing = self._finish_after_changes(made, response, *outcome) if made else response.finish(*outcome)
        return self._in_flight.sending(finishing, http_request.response)

    async def _finish_after_changes(
        self, made: ChangesMade, response: PostResponse, message: bytes, status: int
    ) -> None:
        await self._changes.settle(made)
        await response.finish(message, status)

    def _track(
        self,
        http_request: HttpRequest,
        id: RequestId,
        context: RequestContext,
        response: PostResponse,
        session: SessionHandle | None,
    ) -> HttpCall:
        call = HttpCall(
            response, http_request.receive, session, self._keep_alive, context=context, id=id, on_done=self._untrack
        )
        context.emit = call.emit
        self._in_flight.add(call, call.stop)
        if (made := self._changes.noted()) is not None:
            call.before_response = partial(self._changes.settle, made)
        if session is not None:
            self.calls.add(session.record.id, call)
        return call

    def _untrack(self, call: HttpCall) -> None:
        self._in_flight.remove(call)
        if call.session is not None:
            self.calls.remove(call)

    # ── 2026-07-28: every request by itself, in the task of the HTTP request: when that ends, so does the call ──

    def _modern_request(self, http_request: HttpRequest, request: Request) -> Awaitable[object]:
        if request.method == LISTEN:
            return self._listen(http_request, request)
        response = PostResponse(http_request.response, http_request.accepted)
        return self._serve(http_request, self._context(http_request, request, response, None), response, None)

    def _listen(self, http_request: HttpRequest, request: Request) -> Awaitable[object]:
        if not http_request.accepted.stream:
            text = "subscriptions/listen answers with text/event-stream, which Accept does not allow"
            raise ProtocolError(text, code=INVALID_REQUEST, http_status=406)
        response = PostResponse(http_request.response, http_request.accepted)
        context = self._context(http_request, request, response, None)
        on_done = self._in_flight.close_stream
        call = HttpCall(
            response, http_request.receive, None, self._keep_alive, context=context, id=request.id, on_done=on_done
        )
        context.emit = call.emit
        caller = quota_key(http_request, self._proxies)
        self._in_flight.open_stream(call, lambda _: end_listen(call), call.on_disconnect, caller)
        return http_request.while_authorized(call.serve(self._engine), lambda: end_listen(call))

    # ── up to 2025-11-25: in sessions, or without if the server keeps none ──

    async def _session_request(self, http_request: HttpRequest, opened: Opened) -> None:
        try:
            session = await self._find_session(http_request)
            self._in_flight.refuse_if_closing()
            record = None if session is None else session.record
            request = inbound.on_http(opened, http_request.headers, record, stateless=self._options.stateless)
            if request.method == "initialize":
                serving = self._initialize(http_request, request, await self._create_session(http_request, request))
            else:
                serving = self._serve_in_session(http_request, request, session)
        except ProtocolError as failure:
            await http_request.refuse(failure, opened.id)
        else:
            await serving

    def _find_session(self, http_request: HttpRequest) -> Awaitable[SessionHandle | None]:
        """The session that the request names, if there is one and it is the caller's."""
        id = http_request.headers.raw.get(SESSION_HEADER, b"")
        return self.sessions.find(id.strip(b" \t").decode("latin-1"), http_request.owner)

    async def _create_session(self, http_request: HttpRequest, request: Request) -> SessionHandle | None:
        if self._options.stateless:
            return None
        assert isinstance(request.params, InitializeParams)
        position = await self._changes.position()
        caller = quota_key(http_request, self._proxies)
        session = await self.sessions.open(
            request.params, request.revision, owner=http_request.owner, unheard_since=position, caller=caller
        )
        request.session = session.record
        return session

    def _initialize(
        self, http_request: HttpRequest, request: Request, session: SessionHandle | None
    ) -> Awaitable[object]:
        """`initialize`. The client can't come back for the answer: it has no session to come back with."""
        accepted = http_request.accepted
        # No keep-alive may open a stream before the headers are complete.
        response = PostResponse(http_request.response, Accepted(accepted.json, accepted.stream and not accepted.json))
        context = self._context(http_request, request, response, session)
        call = self._track(http_request, request.id, context, response, session)
        if session is not None:
            call.send_response = self._send_initialize_response
        return detached(call, call.serve(self._engine))

    def _serve_in_session(
        self, http_request: HttpRequest, request: Request, session: SessionHandle | None
    ) -> Awaitable[object]:
        """What goes on when its connection ends, unless the client has no session to come back with."""
        if session is not None:
            self.calls.refuse_duplicate(session.record.id, request.id)
        response = self._post_response(http_request, request.revision, session, (request.id,))
        context = self._context(http_request, request, response, session)
        if http_request.response.fast_path is not None:
            return self._serve(http_request, context, response, session)
        call = self._track(http_request, request.id, context, response, session)
        return in_own_task(call, call.serve(self._engine))

    def _context(
        self, http_request: HttpRequest, request: Request, response: PostResponse, session: SessionHandle | None
    ) -> RequestContext:
        locate = partial(self._proxies.caller, http_request.scope)  # asked by rate limits and the audit alone
        context = RequestContext(request, response.emit, session, principal=http_request.principal, locate=locate)
        if session is not None:
            context.back = SessionChannel(self.messages, session, response)
        elif request.revision.handshake:
            context.no_way_back = STATELESS
        if response.primes:
            context.close_stream = response.close_stream
        return context

    def _post_response(
        self,
        http_request: HttpRequest,
        revision: revisions.Revision,
        session: SessionHandle | None,
        requests: tuple[RequestId, ...],
    ) -> PostResponse:
        accepted = http_request.accepted
        if session is None:
            return PostResponse(http_request.response, accepted)
        primes = revision.resumable and accepted.stream
        return PostResponse(http_request.response, accepted, session.record.id, self.store, primes, requests)

    async def _send_initialize_response(self, call: HttpCall, message: bytes, status: int) -> None:
        """The answer to `initialize` names the session, unless it is a refusal."""
        assert call.session is not None
        session_id = call.session.record.id
        if call.failed:
            await self.sessions.end(session_id)
        else:
            call.response.http_response.add_headers([(SESSION_HEADER, session_id.encode())])
        await call.response.finish(message, status)

    # ── batches, which one revision has ──

    async def _batch(self, http_request: HttpRequest, messages: Sequence[Envelope | BadMessage]) -> None:
        session = await self._find_session(http_request)
        self._in_flight.refuse_if_closing()
        record = None if session is None else session.record
        revision = inbound.http_batch_revision(http_request.headers, record)
        inbound.allow_batch(revision)
        assert revision is not None
        inbound.known_session(http_request.headers, record, self._options.stateless)
        requests = tuple(each.id for each in messages if isinstance(each, Envelope) and each.is_request)
        response = self._post_response(http_request, revision, session, requests)  # type: ignore[arg-type]  # a request has an id
        batch = HttpBatch(response, http_request.receive, session, self._keep_alive)
        parts = [self._batch_item(http_request, message, session, batch) for message in messages]
        if any(isinstance(message, BadMessage) or message.is_request for message in messages):
            await detached(batch, self._serve_batch(batch, parts))
        else:
            await asyncio.gather(*parts)
            await http_request.response.empty(202)

    async def _serve_batch(self, batch: HttpBatch, parts: Sequence[BatchItem]) -> None:
        self._in_flight.add(batch, batch.stop)  # its answer goes out when its calls have left
        try:
            await batch.serve(parts)
        finally:
            self._in_flight.remove(batch)

    def _batch_item(
        self, http_request: HttpRequest, message: Envelope | BadMessage, session: SessionHandle | None, batch: HttpBatch
    ) -> BatchItem:
        """What one message comes to: its answer, or None if it has none."""
        if isinstance(message, BadMessage):
            return _said(jsonrpc.error(message.id, message, id_optional=False))
        if not message.is_request:
            return self._message_in_batch(http_request, message, session)
        assert isinstance(message.id, (int, str))
        try:
            opened = inbound.open_request(message)
            if opened.method == "initialize":
                raise ProtocolError("initialize can't be part of a batch", code=INVALID_REQUEST)
            record = None if session is None else session.record
            request = inbound.modern(opened, http_request.headers) or inbound.on_http(
                opened, http_request.headers, record, stateless=self._options.stateless
            )
            if session is not None:
                self.calls.refuse_duplicate(session.record.id, request.id)
            context = self._context(http_request, request, batch.response, session)
            call = self._track(http_request, request.id, context, batch.response, session)
            call.batched = True
            batch.calls.append(call)
            return call.serve(self._engine)
        except ProtocolError as failure:
            return _said(jsonrpc.error(message.id, failure))

    async def _message_in_batch(
        self, http_request: HttpRequest, message: Envelope, session: SessionHandle | None
    ) -> None:
        with suppress(ProtocolError):  # it has no answer
            await self._receive_message(http_request, message, session)

    # ── notifications, and answers of a client to what it was asked: only sessions have them ──

    async def _receive_message(
        self, http_request: HttpRequest, message: Envelope, session: SessionHandle | None
    ) -> None:
        """Raises if it is not acceptable. Unknown and malformed notifications are ignored, as they have no answer."""
        record = None if session is None else session.record
        inbound.notice_on_http(message, http_request.headers, record, stateless=self._options.stateless)
        if session is None:
            return
        session_id, replies = session.record.id, self.messages.replies
        if not message.is_notification:
            await replies.take_anywhere(session_id, message.id, Reply.of(message))
        elif message.method == "notifications/cancelled":
            if (id := inbound.cancelled_request(message)) is not None:
                await self.calls.cancel(session_id, id)
        elif message.method == "notifications/progress":
            await replies.take_anywhere(session_id, inbound.progressed_request(message))
        elif message.method == "notifications/initialized" and not session.record.initialized:
            await session.change(lambda record: record.replace(initialized=True))

    # ── GET and DELETE: only sessions have them ──

    async def _get(self, http_request: HttpRequest) -> None:
        if self._has_no_sessions(http_request):
            await http_request.refuse_method(
                METHODS_WITHOUT_SESSIONS, "There is no stream to GET here; POST a JSON-RPC message"
            )
            return
        session = await self._require_session(http_request)
        if not http_request.accepted.stream:
            text = "GET answers with text/event-stream, which Accept does not allow"
            raise ProtocolError(text, code=INVALID_REQUEST, http_status=406)
        await self.streams.serve(http_request, session, quota_key(http_request, self._proxies))

    async def _delete(self, http_request: HttpRequest) -> None:
        if self._has_no_sessions(http_request):
            await http_request.refuse_method(METHODS_WITHOUT_SESSIONS, "There is no session to DELETE here")
            return
        session_id = (await self._require_session(http_request)).record.id
        await self.sessions.end(session_id)
        self.calls.end(session_id)
        await http_request.response.empty(204)

    def _has_no_sessions(self, http_request: HttpRequest) -> bool:
        version = http_request.headers.get("mcp-protocol-version")
        return self._options.stateless or version in revisions.MODERN

    async def _require_session(self, http_request: HttpRequest) -> SessionHandle:
        session = await self._find_session(http_request)
        inbound.session_of_verb(http_request.headers, None if session is None else session.record)
        assert session is not None
        return session


def end_listen(call: HttpCall) -> None:
    """The server ends it: its result goes out, then its stream closes."""
    if call.context.subscription is not None:
        call.context.subscription.end()
    else:
        call.cancel()


async def _said(response: bytes) -> bytes:
    return response


async def _cancelled() -> bytes:
    raise asyncio.CancelledError
