"""Server-to-client messages of HTTP sessions: on the stream of their call, else on the GET stream of the session.

What can't go on the stream of a call goes into the session's own log, which its GET stream is read from. Which GET
stream a session has is known to every worker: the newest one counts.
"""

import hashlib
import logging
from contextlib import AbstractAsyncContextManager, suppress

import msgspec

from dovetail.engine.client_requests import CALL_IS_OVER, NOT_READY, PendingRequest, PendingRequests
from dovetail.engine.sessions import HeldSession, Sessions, messages
from dovetail.errors import MissingCapability, QuestionFailed
from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import Envelope
from dovetail.state.base import Conflict, NoRoom, StateBackend, StoreTrouble
from dovetail.transports.response import Answer

KEEP_MESSAGES = 100  # of one session; not more than one read of a log gives
KEEP_BYTES = 1024 * 1024  # of one session, about: the larger a message, the fewer are kept with it
VISIT_SECONDS = 86_400.0  # for which a client can be told that the user is done at a URL
MISSED_BEATS = 3  # after which a stream is taken for gone

STATELESS = (
    "this server runs stateless, so a client older than 2026-07-28 can't be asked anything; "
    "serve it with sessions (stateless=False), or use a client that speaks 2026-07-28"
)
JSON_ONLY = "this client asked for a JSON answer only (Accept) and has no GET stream open"
CLIENT_LEFT = "this client has closed its connection and has no GET stream open"


log = logging.getLogger("dovetail.http")


class ServerMessages:
    """Requests and notifications to the clients of all sessions."""

    def __init__(self, sessions: Sessions, state: StateBackend, *, session_timeout: float, beat: float) -> None:
        self._sessions = sessions
        self._state = state
        self._keep_seconds = max(7 * 86_400.0, 2 * session_timeout)
        self.presence = Presence(state, beat * MISSED_BEATS)
        self.replies = PendingRequests(state, beat=beat)

    async def tell(self, held: HeldSession, message: bytes) -> None:
        """On the GET stream of the client, now or later."""
        try:
            await self.keep(held, message)
        except NoRoom as failure:
            log.warning("a message can't be kept for its client: %s", failure.message)

    async def keep(self, held: HeldSession, message: bytes) -> None:
        if await held.reload():  # else there would be a log that is never dropped
            keep = max(1, min(KEEP_MESSAGES, KEEP_BYTES // len(message)))
            await self._state.append(messages(held.record.id), message, keep=keep, ttl=self._keep_seconds)

    async def said(self, session: str, after: int) -> list[tuple[int, bytes]]:
        """The messages after a number. All of them, if the number is beyond the log: it began anew."""
        page = await self._state.read(messages(session), after)
        if page.last < after:
            page = await self._state.read(messages(session), 0)
        return [(id, data) for id, data in page.records if not await self._is_answered(session, data)]

    async def _is_answered(self, session: str, message: bytes) -> bool:
        """Whether it is a question that has its answer, or was called off."""
        envelope = jsonrpc.decode(message)
        is_question = isinstance(envelope, Envelope) and envelope.is_request
        return is_question and not await self.replies.is_open(session, str(envelope.id))  # type: ignore[union-attr]

    # ── URLs that a user was sent to: any worker may hear that the user is done there ──

    async def visit_began(self, session: str, id: str) -> None:
        """The session that was asked with this id last is told."""
        try:
            await self._state.put(_visit(id), session.encode(), ttl=VISIT_SECONDS)
        except (NoRoom, StoreTrouble) as failure:
            log.warning("other workers do not know of an elicitation: %s", failure.message)

    async def visit_ended(self, id: str) -> str | None:
        """The session that was asked, if it waits to be told: from now on it does not."""
        entry = await self._state.get(_visit(id))
        return entry.value.decode() if entry is not None and await self._state.delete(_visit(id)) else None

    async def tell_session(self, id: str, message: bytes) -> None:
        held = await self._sessions.hold(id)
        if held is not None:
            await self.tell(held, message)


def _visit(id: str) -> str:
    return f"visits/{hashlib.sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()}"


class SessionBack(msgspec.Struct, eq=False):
    """The way from a call to its client (`BackChannel`); notifications go that way also when the call is over."""

    _messages: ServerMessages
    _session: HeldSession
    _answer: Answer | None  # as long as the call is open

    def pending(self, method: str, timeout: float) -> AbstractAsyncContextManager[PendingRequest]:
        """A request on the stream of the call, else on the GET stream. It fails if the client is gone for a while."""
        if (answer := self._answer) is None:
            raise QuestionFailed(CALL_IS_OVER)
        messages, held = self._messages, self._session
        presence = messages.presence

        async def send(message: bytes) -> None:
            if not held.record.initialized and not (await held.reload() and held.record.initialized):
                raise QuestionFailed(NOT_READY)
            if await answer.carry(message):
                return
            if await presence.is_heard(held.record.id):
                await messages.keep(held, message)
            elif answer.accepted.stream:
                raise QuestionFailed(f"The client can't be asked: {CLIENT_LEFT}")
            else:  # it never could, so a function that can do without may do so
                raise MissingCapability({method.partition("/")[0]: {}}, JSON_ONLY)

        async def is_there() -> bool:
            if not answer.response.ended or await presence.is_heard(held.record.id):
                return True
            return answer.events is not None and await presence.is_heard(answer.events.name)

        return messages.replies.open(held.record.id, timeout, send, is_there)

    async def tell(self, message: bytes) -> None:
        if self._answer is None or not await self._answer.carry(message):
            await self._messages.tell(self._session, message)

    def close(self) -> None:
        self._answer = None


class Presence:
    """Which GET stream carries what: that of a session, or the rest of a call. The newest counts."""

    def __init__(self, state: StateBackend, seconds: float) -> None:
        """A stream that says nothing for so long is taken for gone."""
        self._state = state
        self._seconds = seconds

    async def enter(self, name: str, stream: bytes) -> None:
        with suppress(NoRoom):  # then the client can't be asked
            await self._state.put(_presence(name), stream, ttl=self._seconds)

    async def stay(self, name: str, stream: bytes) -> None:
        """To be called every beat."""
        if await self._there(name) in (b"", stream):
            await self.enter(name, stream)

    async def leave(self, name: str, stream: bytes) -> None:
        entry = await self._state.get(_presence(name))
        if entry is None or entry.value != stream:
            return
        if not self._state.shared:
            await self._state.delete(_presence(name))
            return
        with suppress(Conflict, NoRoom):  # a newer stream has come meanwhile
            await self._state.put(_presence(name), b"", ttl=1.0, if_version=entry.version)

    async def is_heard(self, name: str) -> bool:
        return bool(await self._there(name))

    async def is_newest(self, name: str, stream: bytes) -> bool:
        return await self._there(name) in (b"", stream)

    async def _there(self, name: str) -> bytes:
        entry = await self._state.get(_presence(name))
        return b"" if entry is None else entry.value


def _presence(name: str) -> str:
    return f"hears/{name}"
