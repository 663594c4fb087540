"""Questions to clients over HTTP, up to 2025-11-25: they lie in the state backend, where any worker finds them.

In: a question, and the answers and signs of life that clients post. Out: a `Mailbox` for whoever asked.
"""

import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from dovetail.engine.limits import CallTimeout, with_timeout
from dovetail.engine.replies import EXTENSIONS, GivenUp, Mailbox, Reply, refuse_more
from dovetail.errors import Busy, QuestionFailed
from dovetail.protocol.jsonrpc import Envelope
from dovetail.protocol.methods import RequestId
from dovetail.state.base import MAX_TTL, Codec, Conflict, Entry, StateBackend, StoreTrouble, until_answered

IsThere = Callable[[], Awaitable[bool]]  # whether the client can still be reached

MAX_SHARED = 10_000  # to all clients of one process, over HTTP
UNREAD_SECONDS = 60.0  # an answer is read at once, unless whoever asked is gone
BEAT_SECONDS = 15.0  # between two looks whether a client over HTTP is still there
GIVE_UP_BEATS = 4  # in a row without it: then it has gone

LEFT = "The client can't answer any more: it has closed its connection and did not come back"
STOPPING = "The client can't answer any more: the server is shutting down"
LOST = "The question to the client was lost: the server's state store has forgotten it"

_OWN_ID = r"dovetail-[0-9a-f]{16}"
_OPEN = b""  # the value of a question that has no answer yet
_codec: Codec[Reply] = Codec(Reply, "answer")


async def _always() -> bool:
    return True


class SharedReplies:
    """The questions to all sessions. Each is a key, whose name is also told as a topic when there is news."""

    def __init__(self, state: StateBackend, *, beat: float = BEAT_SECONDS) -> None:
        self.state = state
        self.beat = beat
        self.closed = False
        self._open: Counter[str] = Counter()  # those that were put here, by session
        self._boxes: set[_SharedBox] = set()  # of all of them

    @asynccontextmanager
    async def open(self, session: str, timeout: float, is_there: IsThere = _always) -> AsyncIterator[Mailbox]:
        """`is_there` is asked every beat; a client that is not there for some of them is given up."""
        self._refuse_more(session)
        box = _SharedBox(self, session, is_there)
        self._boxes.add(box)
        self._open[session] += 1
        try:
            await self.state.put(box.key, _OPEN, ttl=_lifetime(timeout), if_version=0)
            yield box
        finally:
            box.listener.close()
            self._boxes.discard(box)
            self._open[session] -= 1
            if not self._open[session]:
                del self._open[session]
            with suppress(StoreTrouble):  # it expires
                await self.state.delete(box.key)

    def _refuse_more(self, session: str) -> None:
        if self.closed:
            raise QuestionFailed(STOPPING)
        refuse_more(self._open[session])
        if len(self._boxes) >= MAX_SHARED:
            raise Busy("The server waits for the answers of too many clients; try again later", http_status=503)

    async def is_open(self, session: str, id: str) -> bool:
        """Whether somebody waits for the answer to a question."""
        entry = await self.state.get(_key(session, id))
        return entry is not None and entry.value == _OPEN

    def close(self) -> None:
        """The server stops: it takes no answers any more, so nobody waits for one."""
        self.closed = True
        for box in self._boxes:
            box.listener.close()

    async def answered(self, session: str, message: Envelope) -> None:
        """The first answer counts. One to nothing that this session was asked is ignored."""
        if not isinstance(message.id, str) or not re.fullmatch(_OWN_ID, message.id):
            return
        key = _key(session, message.id)
        entry = await self.state.get(key)
        if entry is None:
            return
        if entry.value != _OPEN:  # whoever asked may not have heard of it
            await self.state.publish(key)
            return
        answer = _codec.encode(Reply.of(message))
        with suppress(Conflict):  # another one was quicker
            await self.state.put(key, answer, ttl=UNREAD_SECONDS, if_version=entry.version)
            await self.state.publish(key)

    async def progressed(self, session: str, id: RequestId | None) -> None:
        """The client is at work on a question, if that is one."""
        if isinstance(id, str) and re.fullmatch(_OWN_ID, id):
            await self.state.publish(_key(session, id))


class _SharedBox:
    __slots__ = ("_is_there", "_replies", "id", "key", "listener")

    def __init__(self, replies: SharedReplies, session: str, is_there: IsThere) -> None:
        self._replies = replies
        self._is_there = is_there
        self.id = f"dovetail-{os.urandom(8).hex()}"
        self.key = _key(session, self.id)
        self.listener = replies.state.listen([self.key])

    async def news(self) -> Reply | None:
        told = await self._told()
        is_stopping = self._replies.closed
        entry = await self._look() if told or is_stopping else None
        if entry is not None and entry.value != _OPEN and (reply := _codec.decode(entry.value)) is not None:
            return reply
        if is_stopping:
            raise GivenUp(STOPPING)
        if entry is None:  # the store was closed, or the key has expired
            raise QuestionFailed(LOST)
        return None

    async def _look(self) -> Entry | None:
        """The answer may be there while the store is out of reach: so that it is looked for until it is not."""
        try:
            return await until_answered(lambda: self._replies.state.get(self.key), lambda: not self._replies.closed)
        except StoreTrouble:
            raise GivenUp(STOPPING) from None

    async def _told(self) -> bool:
        """Waits for news; False if none will come. A beat cuts short only what can lose nothing."""
        missed = 0
        while missed < GIVE_UP_BEATS:
            try:
                return bool(await with_timeout(self.listener.wait(), self._replies.beat))
            except CallTimeout:
                with suppress(StoreTrouble):
                    missed = 0 if await self._is_there() else missed + 1
                entry = await self._look()
                if entry is None or entry.value != _OPEN:  # nobody has told us
                    return True
        raise GivenUp(LEFT)


def _key(session: str, id: str) -> str:
    return f"question/{session}/{id}"


def _lifetime(timeout: float) -> float:
    """Longer than anybody waits: whoever asked deletes it, unless its process dies."""
    return min(timeout * EXTENSIONS + UNREAD_SECONDS, MAX_TTL)
