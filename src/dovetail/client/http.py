"""The link to a server behind Streamable HTTP: every message is a POST, its answer comes as JSON or as events.

In the handshake era there is a session, and an answer's stream that breaks is taken up again. Since 2026-07-28 there is
neither: headers repeat what the body says, and leaving the answer's stream cancels the request.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from dovetail.client.events import EventReader
from dovetail.client.links import Receiver
from dovetail.client.outgoing import INITIALIZE, INITIALIZED, POST_HEADERS, Outgoing
from dovetail.client.posting import PostingLink
from dovetail.client.refusals import refusal
from dovetail.client.remote_session import RemoteSession
from dovetail.client.requests import EVENTS, JSON, HttpReply, HttpRequests
from dovetail.errors import BadAnswer, ConnectionLost, DovetailError
from dovetail.protocol.headers import HeaderParameter, encode_value
from dovetail.protocol.methods import RequestId
from dovetail.protocol.revisions import Revision

ATTEND_SECONDS = 5.0  # for the first opening of the session's own stream
OLDER_TRANSPORT = frozenset({400, 404, 405})  # refusals of a handshake that servers of HTTP+SSE give

log = logging.getLogger("dovetail.client")


class HttpLink(PostingLink):
    """`on_older` takes over a handshake that may have met a server of HTTP+SSE; it gets the message and the failure."""

    def __init__(self, requests: HttpRequests, on_older: Callable[[bytes, DovetailError], None] | None = None) -> None:
        super().__init__(requests)
        self.mirrored: dict[str, tuple[HeaderParameter, ...]] = {}
        self._on_older = on_older
        self._revision: Revision | None = None
        self._session: RemoteSession | None = None
        self._followed: dict[RequestId, asyncio.Task[None]] = {}  # who reads streams on which answers are to come

    async def open(self, receiver: Receiver) -> None:
        self._revision = self._session = None
        await super().open(receiver)

    def agreed(self, revision: Revision) -> None:
        self._revision = revision
        if not revision.handshake:
            self._leave_session()  # one that was begun beside is not needed
        elif self._session is not None:
            self._session.revision = revision

    async def attend(self) -> None:
        if self._session is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._session.attentive.wait(), ATTEND_SECONDS)

    @property
    def hears(self) -> bool:
        return self._session is not None and self._session.hears

    def abandon(self, id: RequestId) -> bool:
        super().abandon(id)
        return self._is_modern

    # ── out ──

    def write(self, message: bytes) -> None:
        out = Outgoing.of(message)
        if out.method == INITIALIZE:
            self._leave_session()
        if out.is_answer and self._is_modern:
            log.warning("the server asked a question, which its revision does not have; it is not answered")
            return
        task = self._send(out)
        if out.method == INITIALIZED and self._session is not None:
            self._start_stream(self._session.hear(task))

    @property
    def _is_modern(self) -> bool:
        return self._revision is not None and not self._revision.handshake

    def _headers(self, out: Outgoing) -> dict[str, str]:
        version = out.version
        if version is None and self._revision is not None and not self._revision.handshake:
            version = self._revision.name
        if version is not None:
            return {**POST_HEADERS, "MCP-Protocol-Version": encode_value(version), **out.mirror(self.mirrored)}
        session = {} if self._session is None else self._session.headers
        return {**POST_HEADERS, **session}

    async def _post(self, out: Outgoing) -> None:
        session = self._session
        async with self._requests.send("POST", self._headers(out), out.body, attended=out.is_attended) as reply:
            if session is not None and not session.check(reply):
                return
            if not reply.ok:
                await self._refused(out, reply)
            elif out.id is not None and self._receiver.awaits(out.id):
                await self._answered(out, out.id, reply)
            elif out.is_told:
                await reply.finish()
            else:
                await self._take_anything(reply)

    async def _refused(self, out: Outgoing, reply: HttpReply) -> None:
        failure, said = await refusal(out, reply)
        unproven = self._revision is None  # whether the server may have no Streamable HTTP at all
        if out.method == INITIALIZE and reply.status in OLDER_TRANSPORT and unproven and self._on_older is not None:
            self._on_older(out.body, failure)
        else:
            self._receiver.failed(out.id, failure, said)

    # ── in ──

    async def _answered(self, out: Outgoing, id: RequestId, reply: HttpReply) -> None:
        if out.method == INITIALIZE:
            self._session = RemoteSession(
                self._requests,
                reply,
                on_message=self._hear,
                on_missed=self._receiver.missed,
                on_gone=self._session_gone,
            )
        if reply.kind == EVENTS:
            await self._follow(id, reply)
        elif reply.kind == JSON:
            self._hear(await reply.read(), id)
        if self._receiver.awaits(id):
            raise BadAnswer(f"the server answered {reply.words} with {reply.kind}, which is no answer to the request")

    async def _follow(self, id: RequestId, reply: HttpReply) -> None:
        """Read the stream of an answer, over other connections if need be."""

        def answered() -> bool:
            return not self._receiver.awaits(id)

        session = self._session
        reader = EventReader(lambda message: self._hear(message, id))
        with self._following(id):
            await reader.read(reply, answered)
            if not answered():
                if session is None:
                    raise ConnectionLost(f"{reader.broken} before the answer came")
                await session.resume(reader, answered)
                return
        await reply.finish()

    @contextlib.contextmanager
    def _following(self, id: RequestId) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._followed[id] = task
        try:
            yield
        finally:
            del self._followed[id]

    def _hear(self, message: bytes, about: RequestId | None = None) -> None:
        """Nothing more is read on the stream of a request that this happens to answer, if it came on another one."""
        self._receiver.receive(message, about)
        for id, task in self._followed.items():
            if id != about and not self._receiver.awaits(id):
                task.cancel()

    async def _take_anything(self, reply: HttpReply) -> None:
        """What a server says to something that the conversation knows nothing of."""
        if reply.kind == EVENTS:
            await EventReader(self._hear).read(reply, lambda: False)
        elif reply.kind == JSON and (body := await reply.read()):
            self._hear(body)

    # ── the end ──

    def _session_gone(self, session: RemoteSession) -> None:
        if session is self._session:
            self._leave_session()
            self._receiver.session_ended("the session ended: the server does not know it any more")

    def _leave_session(self) -> None:
        """Nothing of what was asked in it will be answered."""
        session, self._session = self._session, None
        if session is not None:
            session.over = True
            self._drop_requests()
            self._stop_stream()

    async def _leave(self) -> None:
        if self._session is not None:
            await self._session.end()
