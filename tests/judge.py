"""Judges every message that a server in this process emits, over pipes and over HTTP, by the official schemas.

Tests use `watch(monkeypatch.setattr)`; a program that a test starts calls `judge_this_process()` before it serves, and
the test looks for `COMPLAINT` in what it wrote to stderr.
"""

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import official
from dovetail.engine.connection import Connection
from dovetail.protocol.sse import SseDecoder
from dovetail.transports.http.endpoint import Endpoint
from dovetail.transports.http.get_stream import GetStream
from dovetail.transports.http.legacy_sse import STREAM_ROUTE
from dovetail.transports.http.request import HttpRequest
from dovetail.transports.http.response import HttpResponse

COMPLAINT = "the official schema disagrees: "
Patch = Callable[[Any, str, Any], None]  # as `setattr` takes it, or `monkeypatch.setattr`


class _WatchedPipe:
    """Hands everything on, and shows it to the witness."""

    def __init__(self, pipe, witness: official.Witness) -> None:
        self._pipe = pipe
        self._witness = witness
        self.drain = pipe.drain

    def write(self, message: bytes) -> None:
        self._witness.received(bytes(message))
        self._pipe.write(message)

    def __getattr__(self, name: str):
        return getattr(self._pipe, name)


class Watch:
    """The witnesses of everything since the watch began."""

    def __init__(self, patch: Patch) -> None:
        self._over_pipes = _watch_pipes(patch)
        self._over_http = _watch_http(patch)

    def __iter__(self) -> Iterator[official.Witness]:
        yield from self._over_pipes
        yield from self._over_http


def _watch_pipes(patch: Patch) -> list[official.Witness]:
    witnesses: list[official.Witness] = []
    original_init, original_admit = Connection.__init__, Connection._admit

    def watched_init(self: Connection, engine, pipe, **options: Any) -> None:
        witness = official.Witness()
        witnesses.append(witness)
        self.witness = witness
        original_init(self, engine, _WatchedPipe(pipe, witness), **options)

    def watched_admit(self: Connection, *arguments: Any, **options: Any):
        call = original_admit(self, *arguments, **options)
        self.witness.admitted(call.context.request)
        return call

    patch(Connection, "__init__", watched_init)
    patch(Connection, "_admit", watched_admit)
    return witnesses


class _Gallery:
    """One witness for each response; those of one session know what was asked in it."""

    def __init__(self) -> None:
        self.witnesses: list[official.Witness] = []
        self._of_session: dict[str, dict[Any, tuple[str, str]]] = {}

    def new(self) -> official.Witness:
        witness = official.Witness()
        self.witnesses.append(witness)
        return witness

    def in_session(self, witness: official.Witness, session: Any) -> None:
        witness.session_revision = session.version
        witness.replays = True
        witness._asked = self._of_session.setdefault(session.id, witness._asked)


def _watch_http(patch: Patch) -> list[official.Witness]:
    gallery = _Gallery()
    watched: dict[int, tuple[HttpResponse, official.Witness]] = {}  # the response is kept: ids are used again

    make_request, stream_init = HttpRequest.from_scope, GetStream.__init__
    make_context = Endpoint._context
    send_json, send_event = HttpResponse.json, HttpResponse.event

    def watched_request(*arguments: Any) -> HttpRequest:
        request = make_request(*arguments)
        if request.route != STREAM_ROUTE:  # what that stream carries is judged where its connection writes it
            watched[id(request.response)] = (request.response, gallery.new())
        return request

    def watched_context(self: Endpoint, http_request: HttpRequest, request: Any, *arguments: Any) -> Any:
        witness = watched[id(http_request.response)][1]
        if request.session is not None:
            gallery.in_session(witness, request.session)
        elif request.revision.handshake:
            witness.session_revision = request.revision.name
        witness.admitted(request)
        return make_context(self, http_request, request, *arguments)

    def watched_stream(self: GetStream, source, session, response, *others) -> None:
        stream_init(self, source, session, response, *others)
        gallery.in_session(watched[id(response)][1], session.record)

    def watched_json(self: HttpResponse, status: int, body: bytes, headers: Any = None) -> Awaitable[None]:
        if id(self) in watched and body and b'"jsonrpc"' in body:
            watched[id(self)][1].received(body)
        return send_json(self, status, body, headers)

    async def watched_event(self: HttpResponse, frame: bytes, **options: Any) -> None:
        for event in SseDecoder(max_bytes=1 << 26).feed(frame):
            if event.data and id(self) in watched:
                watched[id(self)][1].received(event.data)
        await send_event(self, frame, **options)

    patch(HttpRequest, "from_scope", watched_request)
    patch(Endpoint, "_context", watched_context)
    patch(GetStream, "__init__", watched_stream)
    patch(HttpResponse, "json", watched_json)
    patch(HttpResponse, "event", watched_event)
    return gallery.witnesses


def judge_this_process() -> Watch | None:
    """From now on, and in every process forked from it; a problem is written to stderr at once. None: no schemas."""
    if not official.available():
        return None
    official.Witness.on_problem = _complain
    return Watch(setattr)


def _complain(problem: str) -> None:
    with contextlib.suppress(OSError):  # stderr may be closed
        os.write(2, f"{COMPLAINT}{problem}\n".encode(errors="backslashreplace"))
