"""How the client of a session is reached, beside the answers to its requests: questions and messages go out.

What belongs to a call goes on its stream. Where that can't carry it, it goes into the session's own log, which the
stream that a client GETs is read from; whether there is such a stream is known to every worker.
"""

import logging
from contextlib import suppress

from msgspec import Raw

from dovetail.engine import replies
from dovetail.engine.replies import SharedReplies
from dovetail.engine.sessions import HeldSession, messages
from dovetail.errors import MissingCapability, QuestionFailed
from dovetail.state.base import MAX_TTL, LogRecord, NoRoom, StateBackend
from dovetail.transports.answers import Answer
from dovetail.transports.response import Response

KEEP_MESSAGES = 100  # of one session; not more than one read of a log gives, for nobody asks for the rest
KEEP_BYTES = 1024 * 1024  # of one session, about: the larger a message, the fewer are kept with it
KEEP_SECONDS = 7 * 86_400.0  # at least: the log of a session that lives must not begin anew. It is dropped with it
MISSED_BEATS = 3  # after which a stream is taken for gone

STATELESS = (
    "this server runs stateless, so a client older than 2026-07-28 can't be asked anything; "
    "serve it with sessions (stateless=False), or use a client that speaks 2026-07-28"
)
JSON_ONLY = "this client asked for a JSON answer only (Accept) and has no GET stream open"
CLIENT_LEFT = "this client has closed its connection and has no GET stream open"

log = logging.getLogger("dovetail.http")


class WayBack:
    """To the clients of all sessions."""

    def __init__(self, state: StateBackend, *, session_timeout: float, beat: float) -> None:
        self._state = state
        self._keep_seconds = min(MAX_TTL, max(KEEP_SECONDS, 2 * session_timeout))
        self._stay_seconds = beat * MISSED_BEATS
        self.replies = SharedReplies(state, beat=beat)
        self.resumed: set[Response] = set()  # those whose stream goes on by another connection

    # ── from a call to its client ──

    async def ask(self, held: HeldSession, answer: Answer, method: str, params: bytes, timeout: float) -> Raw:
        """Raises QuestionFailed also if the client leaves: no connection of its call, and no stream, for a while."""
        if not held.record.initialized and not (await held.reload() and held.record.initialized):
            raise QuestionFailed(replies.NOT_READY)

        async def send(message: bytes) -> None:
            if await answer.carry(message):
                return
            if await self._is_heard(held.record.id):
                await self._keep(held, message)
            elif answer.reads_streams:
                raise QuestionFailed(f"The client can't be asked: {CLIENT_LEFT}")
            else:  # it never could, so a function that can do without may do so
                raise MissingCapability({method.partition("/")[0]: {}}, JSON_ONLY)

        async def is_there() -> bool:
            own = answer.response
            if not own.ended or own in self.resumed or await self._is_heard(held.record.id):
                return True
            return answer.log is not None and self._state.shared and await self._is_heard(answer.log.name)

        opening = self.replies.open(held.record.id, timeout, is_there)
        return await replies.ask(opening, send, method, params, timeout)

    async def tell(self, held: HeldSession, message: bytes) -> None:
        """On the stream that the client GETs, now or later."""
        try:
            await self._keep(held, message)
        except NoRoom as failure:
            log.warning("a message can't be kept for its client: %s", failure.message)

    # ── what is said to a session alone ──

    async def _keep(self, held: HeldSession, message: bytes) -> None:
        if await held.reload():  # else there would be a log that nobody drops
            keep = max(1, min(KEEP_MESSAGES, KEEP_BYTES // len(message)))
            await self._state.append(messages(held.record.id), message, keep=keep, ttl=self._keep_seconds)

    async def said(self, session: str, after: int) -> list[LogRecord]:
        """What was said after a position. One that is none of this log's belongs to a log that has expired."""
        page = await self._state.read(messages(session), after)
        if after > page.last:
            page = await self._state.read(messages(session), 0)
        return page.records

    # ── who hears it ──

    async def enter(self, heard: str, stream: bytes) -> None:
        """There is a stream, of a session or of a call's log; the newest one counts."""
        with suppress(NoRoom):  # then there is none for whoever asks
            await self._state.put(_presence(heard), stream, ttl=self._stay_seconds)

    async def stay(self, heard: str, stream: bytes) -> None:
        """It is still there; every so often."""
        if not await self._state.touch(_presence(heard), self._stay_seconds):
            await self.enter(heard, stream)

    async def leave(self, heard: str, stream: bytes) -> None:
        if await self.is_owner(heard, stream):
            await self._state.delete(_presence(heard))

    async def is_owner(self, heard: str, stream: bytes) -> bool:
        """Whether no newer one has come; it may have been silent for so long that nothing is known of it."""
        entry = await self._state.get(_presence(heard))
        return entry is None or entry.value == stream

    async def _is_heard(self, heard: str) -> bool:
        return await self._state.get(_presence(heard)) is not None


def _presence(heard: str) -> str:
    return f"hears/{heard}"
