"""How the client of a session is reached, beside the answers to its requests: questions and messages go out.

What belongs to a call goes on its stream. Where that can't carry it, it goes into the session's own log, which the
stream that a client GETs is read from; whether there is such a stream is known to every worker.
"""

import logging
import secrets
from collections.abc import Callable

from msgspec import Raw

from dovetail.engine import replies
from dovetail.engine.limits import CallTimeout, with_timeout
from dovetail.engine.sessions import HeldSession, messages
from dovetail.engine.shared_replies import SharedReplies
from dovetail.errors import MissingCapability, QuestionFailed
from dovetail.protocol import jsonrpc
from dovetail.protocol.jsonrpc import Envelope
from dovetail.state.base import MAX_TTL, Codec, Conflict, Listener, NoRoom, StateBackend
from dovetail.transports.answers import Answer
from dovetail.transports.response import Response

KEEP_MESSAGES = 100  # of one session; not more than one read of a log gives, for nobody asks for the rest
KEEP_BYTES = 1024 * 1024  # of one session, about: the larger a message, the fewer are kept with it
KEEP_SECONDS = 7 * 86_400.0  # at least. It is dropped with its session; while that lives, another one may begin
TAGS = 1_000_000  # a place is a number in the log, and the tag that stands there: in another log it is another one
MISSED_BEATS = 3  # after which a stream is taken for gone
HANDOVER_SECONDS = 1.0  # for a stream to say how far it has come, when a newer one takes its place
STREAM_BYTES = 8  # of the name of one
MAX_NAMES = 8 * STREAM_BYTES  # of a stream and of those that it waits for
NOBODY = b""
NOBODY_SECONDS = 1.0  # for which it stands there that somebody has left
MAX_TRIES = 20  # of a change that others are always quicker with

STATELESS = (
    "this server runs stateless, so a client older than 2026-07-28 can't be asked anything; "
    "serve it with sessions (stateless=False), or use a client that speaks 2026-07-28"
)
JSON_ONLY = "this client asked for a JSON answer only (Accept) and has no GET stream open"
CLIENT_LEFT = "this client has closed its connection and has no GET stream open"

log = logging.getLogger("dovetail.http")
_codec: Codec[tuple[int, bytes]] = Codec(tuple[int, bytes], "message")


class WayBack:
    """To the clients of all sessions."""

    def __init__(self, state: StateBackend, *, session_timeout: float, beat: float) -> None:
        self._state = state
        self._keep_seconds = min(MAX_TTL, max(KEEP_SECONDS, 2 * session_timeout))
        self.presence = Presence(state, beat * MISSED_BEATS)
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
            if await self.presence.is_heard(held.record.id):
                await self._keep(held, message)
            elif answer.reads_streams:
                raise QuestionFailed(f"The client can't be asked: {CLIENT_LEFT}")
            else:  # it never could, so a function that can do without may do so
                raise MissingCapability({method.partition("/")[0]: {}}, JSON_ONLY)

        async def is_there() -> bool:
            own = answer.response
            if not own.ended or own in self.resumed or await self.presence.is_heard(held.record.id):
                return True
            return answer.log is not None and self._state.shared and await self.presence.is_heard(answer.log.name)

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
            record = _codec.encode((secrets.randbelow(TAGS), message))
            await self._state.append(messages(held.record.id), record, keep=keep, ttl=self._keep_seconds)

    async def said(self, session: str, after: int) -> list[tuple[int, bytes]]:
        """What was said after a place, each with its own. All of it, if the place is none of this log's."""
        if number := after // TAGS:
            said = await self._said_from(session, number)
            if said and said[0][0] == after:
                return said[1:]
        return await self._said_from(session, 1)

    async def _said_from(self, session: str, number: int) -> list[tuple[int, bytes]]:
        page = await self._state.read(messages(session), number - 1)
        found = [(record.id, _codec.decode(record.data)) for record in page.records]
        return [(id * TAGS + each[0] % TAGS, each[1]) for id, each in found if each is not None]

    async def is_over(self, session: str, message: bytes) -> bool:
        """It is a question that nobody waits any more to see answered."""
        id = _asked_with(message)
        return id is not None and not await self.replies.is_open(session, id)


class Presence:
    """Which stream hears what is said: of a session, or of a call's log. The newest one counts, whose name comes first.

    Behind it stand older ones, as long as it waits for them.
    """

    def __init__(self, state: StateBackend, seconds: float) -> None:
        """So long it is believed that a stream is there which says nothing."""
        self._state = state
        self._seconds = seconds

    async def enter(self, heard: str, stream: bytes, still: Callable[[], bool], *, follows: bool = False) -> bool:
        """There is a new one, `still` the newest here. Whether there are older ones, which it `follows`."""

        def entered(there: bytes) -> bytes | None:
            return (stream + there if follows else stream)[:MAX_NAMES] if still() else None

        there = await self._change(heard, entered)
        if len(there) > STREAM_BYTES:  # the newest of them waits, and need not any more
            await self._state.publish(_presence(heard))
        return follows and bool(there)

    async def follow(self, heard: str, stream: bytes) -> bool:
        """Waits until the older ones have left, but not for long: a worker may be lost, or a client read nothing.

        False if there is a newer one.
        """
        listener = self._state.listen([_presence(heard)])
        try:
            await with_timeout(self._until_alone(heard, stream, listener), HANDOVER_SECONDS)
        except CallTimeout:
            await self._change(heard, lambda there: stream if there.startswith(stream) else None)
        finally:
            listener.close()
        return await self.is_newest(heard, stream)

    async def _until_alone(self, heard: str, stream: bytes, listener: Listener) -> None:
        while (there := await self._there(heard)) != stream and there.startswith(stream):
            if not await listener.wait():
                return

    async def stay(self, heard: str, stream: bytes) -> None:
        """It is still there; every so often. That nobody is must not stay."""
        if not (await self._there(heard) and await self._state.touch(_presence(heard), self._seconds)):
            await self._change(heard, lambda there: None if there else stream)

    async def leave(self, heard: str, stream: bytes) -> None:
        there = await self._change(heard, lambda there: b"".join(each for each in _names(there) if each != stream))
        if stream in _names(there)[1:]:  # the first one waits for that
            await self._state.publish(_presence(heard))

    async def is_heard(self, heard: str) -> bool:
        return bool(await self._there(heard))

    async def is_newest(self, heard: str, stream: bytes) -> bool:
        """It may have been silent for so long that nothing is known of it."""
        there = await self._there(heard)
        return not there or there.startswith(stream)

    async def counts(self, heard: str, stream: bytes) -> bool:
        """Whether it matters what it has told: it is the newest one, or that waits for it."""
        there = await self._there(heard)
        return not there or stream in _names(there)

    async def _there(self, heard: str) -> bytes:
        entry = await self._state.get(_presence(heard))
        return NOBODY if entry is None else entry.value

    async def _change(self, heard: str, becomes: Callable[[bytes], bytes | None]) -> bytes:
        """Who was there before. Streams come and go at the same time, and none may undo what another one does."""
        for _ in range(MAX_TRIES):
            entry = await self._state.get(_presence(heard))
            there, version = (NOBODY, 0) if entry is None else entry
            then = becomes(there)
            if then is None or then == there:
                return there
            try:
                await self._put(heard, then, version)
            except Conflict:
                continue
            except NoRoom:  # then there is none for whoever asks
                break
            return there
        return NOBODY

    async def _put(self, heard: str, there: bytes, version: int) -> None:
        if there or self._state.shared:
            seconds = self._seconds if there else NOBODY_SECONDS
            await self._state.put(_presence(heard), there, ttl=seconds, if_version=version)
        else:  # nobody can have come between
            await self._state.delete(_presence(heard))


def _presence(heard: str) -> str:
    return f"hears/{heard}"


def _names(there: bytes) -> list[bytes]:
    return [there[begin : begin + STREAM_BYTES] for begin in range(0, len(there), STREAM_BYTES)]


def _asked_with(message: bytes) -> str | None:
    """The id of a question."""
    try:
        envelope = jsonrpc.decode(message)
    except jsonrpc.BadMessage:
        return None
    return str(envelope.id) if isinstance(envelope, Envelope) and envelope.is_request else None
