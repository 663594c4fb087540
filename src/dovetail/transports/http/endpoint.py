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
    HttpBatch,
    HttpCall,
    Part,
    SessionCalls,
    apart,
    detached,
    outcome_of,
    to_nobody,
)
from dovetail.transports.http.event_store import EventStore
from dovetail.transports.http.get_stream import STATELESS, GetStreams, ServerMessages, SessionChannel
from dovetail.transports.http.in_flight import InFlight
from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http.proxies import TrustedProxies, share_of
from dovetail.transports.http.request import HttpRequest
from dovetail.transports.http.response import Accepted, Answer

SESSION_HEADER = b"mcp-session-id"
METHODS = b"GET, POST, DELETE, OPTIONS"
WITHOUT_SESSIONS = b"POST, OPTIONS"

LISTEN = "subscriptions/listen"


class Endpoint:
    """Lives as long as the app on one event loop."""

    def __init__(
        self, engine: Engine, options: HttpOptions, state: StateBackend, traffic: InFlight, proxies: TrustedProxies
    ) -> None:
        self._engine = engine
        self._options = options
        self._proxies = proxies
        self._traffic = traffic
        self._state = state
        # A connection that says nothing is kept alive, and so is the session that it belongs to.
        self._beat = min(options.keep_alive, options.session_timeout / 3)
        self.member = WorkerLease(state, engine.lease_timings)
        self._changes = ChangeLog(engine, state, self.member)
        timeout, most, half = options.session_timeout, options.max_sessions, -(-options.max_sessions // 2)
        self.sessions = Sessions(
            engine, state, timeout=timeout, max_sessions=most, max_per_caller=options.max_per_caller or half
        )
        self._store = EventStore(state, ttl=options.event_timeout, member=self.member)
        self._messages = ServerMessages(self.sessions, state, session_timeout=timeout, beat=self._beat)
        self._streams = GetStreams(self._changes, self._store, self._messages, traffic, keep_alive=self._beat)
        self._calls = SessionCalls(state)
        self._verbs = {"POST": self._post, "GET": self._get, "DELETE": self._delete}

    def start(self) -> None:
        self.member.start()
        self._changes.start()
        self._calls.start()
        if self._state.shared:
            self._engine.elicitations.far = self._messages

    def stop_asking(self) -> None:
        """Answers of clients are refused from now on: a call that waits for one is told."""
        self._messages.replies.close()

    async def stop(self) -> None:
        self._engine.elicitations.far = None
        await self._changes.stop()
        await self._calls.stop()
        await self._store.stop()
        await self.member.stop()
        self.sessions.forget_all()

    def __call__(self, visit: HttpRequest) -> Awaitable[None]:
        verb = self._verbs.get(visit.method)
        if verb is None:
            return visit.refuse_method(METHODS, f"{visit.method} is not used here; POST a JSON-RPC message")
        return verb(visit)

    # ── POST ──

    async def _post(self, visit: HttpRequest) -> None:
        visit.refuse_other_types()
        options, traffic = self._options, self._traffic
        body = visit.body_at_hand(options.max_body_bytes)
        if body is None:
            body = await visit.body(options.max_body_bytes, options.body_timeout, traffic.bodies)
            traffic.refuse_if_closing()
        try:
            message = jsonrpc.decode(body)
            if isinstance(message, list):
                await self._batch(visit, message)
            elif message.is_request:
                serving = self._request(visit, message)
                del body, message  # for a listen, which stays, needs nothing of them
                await serving
            else:
                await self._take_notice(visit, message, await self._session(visit))
                await visit.response.empty(202)
        except BadMessage as bad:
            await visit.refuse(bad, bad.id)

    def _request(self, visit: HttpRequest, message: Envelope) -> Awaitable[object]:
        assert isinstance(message.id, (int, str))
        try:
            opened = inbound.open_request(message)
            request = inbound.modern(opened, visit.headers)
            return self._in_session(visit, opened) if request is None else self._modern(visit, request)
        except ProtocolError as failure:
            return visit.refuse(failure, message.id)

    def _serve(
        self, visit: HttpRequest, context: RequestContext, answer: Answer, held: SessionHandle | None
    ) -> Awaitable[object]:
        """Not a coroutine: most calls never wait. One that does not can't be cancelled, so it is on no record."""
        id = context.request.id  # also if a middleware changes the request
        made = self._changes.track_changes()
        work = handle(self._engine, context)
        try:
            waited_for = work.send(None)
        except StopIteration as end:
            outcome = jsonrpc.result(id, end.value), 200
        except asyncio.CancelledError:  # its task was cancelled before
            return self._record(visit, id, context, answer, held).serve(self._engine, _cancelled())
        except BaseException as failure:
            outcome = outcome_of(failure, id, context.request, visit.response)
        else:
            call = self._record(visit, id, context, answer, held)
            return call.serve(self._engine, call.go_on(work, waited_for))
        context.emit = to_nobody
        if context.back is not None:
            context.back.close()
        finishing = self._finish_later(made, answer, *outcome) if made else answer.finish(*outcome)
        return self._traffic.sending(finishing, visit.response)

    async def _finish_later(self, made: ChangesMade, answer: Answer, message: bytes, status: int) -> None:
        await self._changes.wait_until_written(made)
        await answer.finish(message, status)

    def _record(
        self, visit: HttpRequest, id: RequestId, context: RequestContext, answer: Answer, held: SessionHandle | None
    ) -> HttpCall:
        call = HttpCall(answer, visit.receive, held, self._beat, context=context, id=id, leave=self._leave)
        context.emit = call.emit
        self._traffic.enter(call, call.stop)
        if (made := self._changes.track_changes()) is not None:
            call.settle = partial(self._changes.wait_until_written, made)
        if held is not None:
            self._calls.add(held.record.id, call)
        return call

    def _leave(self, call: HttpCall) -> None:
        self._traffic.leave(call)
        if call.session is not None:
            self._calls.remove(call)

    # ── 2026-07-28: every request by itself, in the task of the HTTP request: when that ends, so does the call ──

    def _modern(self, visit: HttpRequest, request: Request) -> Awaitable[object]:
        if request.method == LISTEN:
            return self._listen(visit, request)
        answer = Answer(visit.response, visit.accepted)
        return self._serve(visit, self._context(visit, request, answer, None), answer, None)

    def _listen(self, visit: HttpRequest, request: Request) -> Awaitable[object]:
        if not visit.accepted.stream:
            text = "subscriptions/listen answers with text/event-stream, which Accept does not allow"
            raise ProtocolError(text, code=INVALID_REQUEST, http_status=406)
        answer = Answer(visit.response, visit.accepted)
        context = self._context(visit, request, answer, None)
        leave = self._traffic.close_stream
        call = HttpCall(answer, visit.receive, None, self._beat, context=context, id=request.id, leave=leave)
        context.emit = call.emit
        caller = share_of(visit, self._proxies)
        self._traffic.open_stream(call, lambda _: end_listen(call), call.client_left, caller)
        return visit.while_welcome(call.serve(self._engine), lambda: end_listen(call))

    # ── up to 2025-11-25: in sessions, or without if the server keeps none ──

    async def _in_session(self, visit: HttpRequest, opened: Opened) -> None:
        try:
            held = await self._session(visit)
            self._traffic.refuse_if_closing()
            record = None if held is None else held.record
            request = inbound.on_http(opened, visit.headers, record, stateless=self._options.stateless)
            if request.method == "initialize":
                serving = self._welcomed(visit, request, await self._open_session(visit, request))
            else:
                serving = self._lasting(visit, request, held)
        except ProtocolError as failure:
            await visit.refuse(failure, opened.id)
        else:
            await serving

    def _session(self, visit: HttpRequest) -> Awaitable[SessionHandle | None]:
        """The session that the request names, if there is one and it is the caller's."""
        id = visit.headers.raw.get(SESSION_HEADER, b"")
        return self.sessions.find(id.strip(b" \t").decode("latin-1"), visit.owner)

    async def _open_session(self, visit: HttpRequest, request: Request) -> SessionHandle | None:
        if self._options.stateless:
            return None
        assert isinstance(request.params, InitializeParams)
        position = await self._changes.position()
        caller = share_of(visit, self._proxies)
        held = await self.sessions.open(
            request.params, request.revision, owner=visit.owner, unheard_since=position, caller=caller
        )
        request.session = held.record
        return held

    def _welcomed(self, visit: HttpRequest, request: Request, held: SessionHandle | None) -> Awaitable[object]:
        """`initialize`. The client can't come back for the answer: it has no session to come back with."""
        accepted = visit.accepted
        # No keep-alive may open a stream before the headers are complete.
        answer = Answer(visit.response, Accepted(accepted.json, accepted.stream and not accepted.json))
        context = self._context(visit, request, answer, held)
        call = self._record(visit, request.id, context, answer, held)
        if held is not None:
            call.finish = self._welcome
        return detached(call, call.serve(self._engine))

    def _lasting(self, visit: HttpRequest, request: Request, held: SessionHandle | None) -> Awaitable[object]:
        """What goes on when its connection ends, unless the client has no session to come back with."""
        if held is not None:
            self._calls.refuse_twice(held.record.id, request.id)
        answer = self._answer(visit, request.revision, held, (request.id,))
        context = self._context(visit, request, answer, held)
        if visit.response.whole is not None:
            return self._serve(visit, context, answer, held)
        call = self._record(visit, request.id, context, answer, held)
        return apart(call, call.serve(self._engine))

    def _context(
        self, visit: HttpRequest, request: Request, answer: Answer, held: SessionHandle | None
    ) -> RequestContext:
        locate = partial(self._proxies.caller, visit.scope)  # asked by rate limits and the audit alone
        context = RequestContext(request, answer.emit, held, principal=visit.principal, locate=locate)
        if held is not None:
            context.back = SessionChannel(self._messages, held, answer)
        elif request.revision.handshake:
            context.no_way_back = STATELESS
        if answer.primes:
            context.close_stream = answer.close_stream
        return context

    def _answer(
        self,
        visit: HttpRequest,
        revision: revisions.Revision,
        held: SessionHandle | None,
        requests: tuple[RequestId, ...],
    ) -> Answer:
        accepted = visit.accepted
        if held is None:
            return Answer(visit.response, accepted)
        primes = revision.resumable and accepted.stream
        return Answer(visit.response, accepted, held.record.id, self._store, primes, requests)

    async def _welcome(self, call: HttpCall, message: bytes, status: int) -> None:
        """The answer to `initialize` names the session, unless it is a refusal."""
        assert call.session is not None
        session = call.session.record.id
        if call.failed:
            await self.sessions.end(session)
        else:
            call.answer.response.add_headers([(SESSION_HEADER, session.encode())])
        await call.answer.finish(message, status)

    # ── batches, which one revision has ──

    async def _batch(self, visit: HttpRequest, messages: Sequence[Envelope | BadMessage]) -> None:
        held = await self._session(visit)
        self._traffic.refuse_if_closing()
        record = None if held is None else held.record
        revision = inbound.http_batch_revision(visit.headers, record)
        inbound.allow_batch(revision)
        assert revision is not None
        inbound.known_session(visit.headers, record, self._options.stateless)
        requests = tuple(each.id for each in messages if isinstance(each, Envelope) and each.is_request)
        answer = self._answer(visit, revision, held, requests)  # type: ignore[arg-type]  # a request has an id
        batch = HttpBatch(answer, visit.receive, held, self._beat)
        parts = [self._part(visit, message, held, batch) for message in messages]
        if any(isinstance(message, BadMessage) or message.is_request for message in messages):
            await detached(batch, self._serve_batch(batch, parts))
        else:
            await asyncio.gather(*parts)
            await visit.response.empty(202)

    async def _serve_batch(self, batch: HttpBatch, parts: Sequence[Part]) -> None:
        self._traffic.enter(batch, batch.stop)  # its answer goes out when its calls have left
        try:
            await batch.serve(parts)
        finally:
            self._traffic.leave(batch)

    def _part(
        self, visit: HttpRequest, message: Envelope | BadMessage, held: SessionHandle | None, batch: HttpBatch
    ) -> Part:
        """What one message comes to: its answer, or None if it has none."""
        if isinstance(message, BadMessage):
            return _said(jsonrpc.error(message.id, message, id_optional=False))
        if not message.is_request:
            return self._notice_in_batch(visit, message, held)
        assert isinstance(message.id, (int, str))
        try:
            opened = inbound.open_request(message)
            if opened.method == "initialize":
                raise ProtocolError("initialize can't be part of a batch", code=INVALID_REQUEST)
            record = None if held is None else held.record
            request = inbound.modern(opened, visit.headers) or inbound.on_http(
                opened, visit.headers, record, stateless=self._options.stateless
            )
            if held is not None:
                self._calls.refuse_twice(held.record.id, request.id)
            context = self._context(visit, request, batch.answer, held)
            call = self._record(visit, request.id, context, batch.answer, held)
            call.batched = True
            batch.calls.append(call)
            return call.serve(self._engine)
        except ProtocolError as failure:
            return _said(jsonrpc.error(message.id, failure))

    async def _notice_in_batch(self, visit: HttpRequest, message: Envelope, held: SessionHandle | None) -> None:
        with suppress(ProtocolError):  # it has no answer
            await self._take_notice(visit, message, held)

    # ── notifications, and answers of a client to what it was asked: only sessions have them ──

    async def _take_notice(self, visit: HttpRequest, message: Envelope, held: SessionHandle | None) -> None:
        """Raises if it is not acceptable. Unknown and malformed notifications are ignored, as they have no answer."""
        record = None if held is None else held.record
        inbound.notice_on_http(message, visit.headers, record, stateless=self._options.stateless)
        if held is None:
            return
        session, replies = held.record.id, self._messages.replies
        if not message.is_notification:
            await replies.take_anywhere(session, message.id, Reply.of(message))
        elif message.method == "notifications/cancelled":
            if (id := inbound.cancelled_request(message)) is not None:
                await self._calls.cancel(session, id)
        elif message.method == "notifications/progress":
            await replies.take_anywhere(session, inbound.progressed_request(message))
        elif message.method == "notifications/initialized" and not held.record.initialized:
            await held.change(lambda record: record.replace(initialized=True))

    # ── GET and DELETE: only sessions have them ──

    async def _get(self, visit: HttpRequest) -> None:
        if self._has_no_sessions(visit):
            await visit.refuse_method(WITHOUT_SESSIONS, "There is no stream to GET here; POST a JSON-RPC message")
            return
        held = await self._own_session(visit)
        if not visit.accepted.stream:
            text = "GET answers with text/event-stream, which Accept does not allow"
            raise ProtocolError(text, code=INVALID_REQUEST, http_status=406)
        await self._streams.serve(visit, held, share_of(visit, self._proxies))

    async def _delete(self, visit: HttpRequest) -> None:
        if self._has_no_sessions(visit):
            await visit.refuse_method(WITHOUT_SESSIONS, "There is no session to DELETE here")
            return
        session = (await self._own_session(visit)).record.id
        await self.sessions.end(session)
        self._calls.end(session)
        await visit.response.empty(204)

    def _has_no_sessions(self, visit: HttpRequest) -> bool:
        version = visit.headers.get("mcp-protocol-version")
        return self._options.stateless or version in revisions.MODERN

    async def _own_session(self, visit: HttpRequest) -> SessionHandle:
        held = await self._session(visit)
        inbound.session_of_verb(visit.headers, None if held is None else held.record)
        assert held is not None
        return held


def end_listen(call: HttpCall) -> None:
    """The server ends it: its result goes out, then its stream closes."""
    if call.context.subscription is not None:
        call.context.subscription.end()
    else:
        call.cancel()


async def _said(answer: bytes) -> bytes:
    return answer


async def _cancelled() -> bytes:
    raise asyncio.CancelledError
