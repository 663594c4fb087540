"""Shows what an HTTP app in this process sends to a witness: every response of every test is judged."""

from collections.abc import Awaitable, Callable
from typing import Any

import official
from dovetail.protocol.sse import SseDecoder
from dovetail.transports.endpoint import Endpoint
from dovetail.transports.get_stream import GetStream
from dovetail.transports.request import Visit
from dovetail.transports.response import Response
from dovetail.transports.sse import STREAM_ROUTE

MAX_EVENT = 1 << 26
Patch = Callable[[Any, str, Any], None]  # as `setattr` takes it, or `monkeypatch.setattr`


class Gallery:
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


def watch_http(patch: Patch) -> list[official.Witness]:
    gallery = Gallery()
    watched: dict[int, tuple[Response, official.Witness]] = {}  # the response is kept: ids are used again

    make_visit, tail_init = Visit.of, GetStream.__init__
    make_exchange = Endpoint._exchange
    send_json, send_event = Response.json, Response.event

    def watched_visit(*arguments: Any) -> Visit:
        visit = make_visit(*arguments)
        if visit.route != STREAM_ROUTE:  # what that stream carries is judged where its connection writes it
            watched[id(visit.response)] = (visit.response, gallery.new())
        return visit

    def watched_exchange(self: Endpoint, visit: Visit, request: Any, *arguments: Any) -> Any:
        witness = watched[id(visit.response)][1]
        if request.session is not None:
            gallery.in_session(witness, request.session)
        elif request.revision.handshake:
            witness.session_revision = request.revision.name
        witness.admitted(request)
        return make_exchange(self, visit, request, *arguments)

    def watched_tail(self: GetStream, source, held, response, *others) -> None:
        tail_init(self, source, held, response, *others)
        gallery.in_session(watched[id(response)][1], held.record)

    def watched_json(self: Response, status: int, body: bytes, headers: Any = None) -> Awaitable[None]:
        if id(self) in watched and body and b'"jsonrpc"' in body:
            watched[id(self)][1].received(body)
        return send_json(self, status, body, headers)

    async def watched_event(self: Response, frame: bytes, **options: Any) -> None:
        for event in SseDecoder(max_bytes=MAX_EVENT).feed(frame):
            if event.data and id(self) in watched:
                watched[id(self)][1].received(event.data)
        await send_event(self, frame, **options)

    patch(Visit, "of", watched_visit)
    patch(Endpoint, "_exchange", watched_exchange)
    patch(GetStream, "__init__", watched_tail)
    patch(Response, "json", watched_json)
    patch(Response, "event", watched_event)
    return gallery.witnesses
