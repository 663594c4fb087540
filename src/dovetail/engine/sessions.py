"""Sessions of the handshake era over HTTP: records in a state backend that any request may be the next to use.

A session lives as long as it is used, belongs to whoever opened it, and there are only so many: when no more fit, the
one that has been silent longest gives way, unless even that one was used a moment ago. Those whose client has
not said `initialized` give way before all others, in the order of their use: opening sessions is cheap.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from dovetail.engine.core import Engine
from dovetail.engine.streams import Hub
from dovetail.errors import INVALID_PARAMS, Busy, ProtocolError
from dovetail.protocol.methods import InitializeParams
from dovetail.protocol.revisions import Revision
from dovetail.protocol.session import Session
from dovetail.state.base import Conflict, Entry, NoRoom, StateBackend
from dovetail.state.records import Codec

MAX_RECORD = 64 * 1024  # bytes: what a client says of itself, its roots, and the resources that it subscribes to
MAX_FIRST = 16 * 1024  # of what it says of itself
LARGE = 2 * 1024  # bytes of a record that stays decoded as long as its session is known here
RECENT = 2_000  # sessions whose records are kept decoded, though they are small
FRESH_SECONDS = 60.0  # a session that was used so recently never gives way to a new one
MAX_ID = 128
MAX_TRIES = 100  # of a change that others are always quicker with
_codec: Codec[Session] = Codec(Session, "session")


class HeldSession(msgspec.Struct, eq=False):
    """The session of one request: its record, and the way to change it."""

    _sessions: "Sessions"
    record: Session
    version: int

    async def use(self) -> bool:
        """Its time begins anew; False if it is gone."""
        return await self._sessions.use(self.record)

    async def reload(self) -> bool:
        """Whether it is still there; its record is then as new as can be."""
        return await self._sessions.reload(self)

    async def is_there(self) -> bool:
        return await self._sessions.is_there(self.record.id)

    async def change(self, change: Callable[[Session], Session]) -> None:
        await self._sessions.change(self, change)

    async def tell(self) -> None:
        """Whoever has to do with it at other workers should look."""
        await self._sessions.tell(self.record.id)


class Sessions:
    """All sessions that this process has to do with."""

    def __init__(
        self,
        engine: Engine,
        state: StateBackend,
        *,
        timeout: float,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._state = state
        self._timeout = timeout
        self._most = most
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()  # the one that was used longest ago comes first
        # Those of them whose client has not said `initialized`; same order.
        self._new: OrderedDict[str, None] = OrderedDict()
        self._recent: OrderedDict[str, _Known] = OrderedDict()  # those with a small record that is decoded

    def __len__(self) -> int:
        return len(self._known)

    async def open(
        self, params: InitializeParams, revision: Revision, *, owner: str | None, unheard_since: int
    ) -> HeldSession:
        silent = self._make_room()
        id = secrets.token_urlsafe(24)
        self._known[id] = _Known(self._engine.hub, self._clock())  # first of all: others may open one meanwhile
        record = Session.open(
            id, params, revision, announced=self._engine.announced_kinds(), owner=owner, unheard_since=unheard_since
        )
        if len(_codec.encode(record)) > LARGE:
            record = record.replace(client=_without_pictures(record.client))
        try:
            if silent is not None:
                await self.end(silent)
            version = await self._put_first(record)
        except BaseException:
            self._forget(id)
            raise
        self._new[id] = None
        return HeldSession(self, record, version)

    async def _put_first(self, record: Session) -> int:
        data = _encoded(record, MAX_FIRST)
        while True:
            try:
                return await self._state.put(_key(record.id), data, ttl=self._timeout, if_version=0)
            except NoRoom:  # others are large, though they may be few
                if self._state.shared:
                    raise
                await self.end(self._silent_longest())

    def _make_room(self) -> str | None:
        """Gives the session that has to end, if there is no other way."""
        self._forget_expired()
        if len(self._known) < self._most:
            return None
        if self._state.shared:  # others may be using it: only what is remembered here gives way
            self._let_go(next(iter(self._known)))
            return None
        return self._silent_longest()

    def _silent_longest(self) -> str:
        """The one that gives way; raises if even that one is in use."""
        if self._new:
            id = next(iter(self._new))
            self._forget(id)
            return id
        id, oldest = next(iter(self._known.items()))
        if self._clock() - oldest.used < FRESH_SECONDS:
            raise Busy(f"There are {len(self._known)} sessions, all of them in use; try again later", http_status=503)
        self._forget(id)
        return id

    async def find(self, id: str, owner: str | None) -> HeldSession | None:
        """The session, if there is one and it belongs to who is asking."""
        if not 0 < len(id) <= MAX_ID:
            return None
        entry = await self._state.get(_key(id))
        if entry is None:
            self._forget(id)
            return None
        known = self._known.get(id)
        record: Session | None
        if known is not None and known.version == entry.version and known.record is not None:
            record = known.record
        else:
            record = self._decoded(id, entry, known)
        if record is None or record.owner != owner:
            return None
        if self._is_to_be_touched(record) and not await self._touch(record):
            return None
        return HeldSession(self, record, entry.version)

    def _decoded(self, id: str, entry: Entry, known: "_Known | None") -> Session | None:
        """It will probably be used again soon, so that it is kept; but of small ones only so many."""
        record = _codec.decode(entry.value)
        if known is not None and record is not None:
            known.record, known.version = record, entry.version
            if len(entry.value) <= LARGE:
                self._recent[id] = known
                if len(self._recent) > RECENT:
                    self._recent.popitem(last=False)[1].record = None
        return record

    async def reload(self, held: HeldSession) -> bool:
        """Whether it is still there; its record is then as new as can be."""
        entry = await self._state.get(_key(held.record.id))
        return entry is not None and _renewed(held, entry)

    async def hold(self, id: str) -> HeldSession | None:
        """A session, whosoever it is: for what the server itself has to tell it."""
        entry = await self._state.get(_key(id))
        record = None if entry is None else _codec.decode(entry.value)
        return None if entry is None or record is None else HeldSession(self, record, entry.version)

    async def is_there(self, id: str) -> bool:
        return await self._state.get(_key(id)) is not None

    async def use(self, record: Session) -> bool:
        """It is in use: its time begins anew. False if it is gone."""
        return not self._is_to_be_touched(record) or await self._touch(record)

    def _is_to_be_touched(self, record: Session) -> bool:
        """It is in use, which is remembered here; whether the backend is to hear of it, which is often enough."""
        now = self._clock()
        known = self._known.get(record.id)
        if known is None:
            known = self._known[record.id] = _Known(self._engine.hub, now - self._timeout)
            known.watch(record.subscriptions)
        self._known.move_to_end(record.id)
        if record.id in self._new:
            self._came_back(record)
        known.used = now
        if now - known.touched <= self._timeout / 10:
            return False
        known.touched = now
        return True

    async def _touch(self, record: Session) -> bool:
        if await self._state.touch(_key(record.id), self._timeout):
            return True
        self._forget(record.id)
        return False

    def _came_back(self, record: Session) -> None:
        if record.initialized:
            self._new.pop(record.id, None)
        elif record.id in self._new:
            self._new.move_to_end(record.id)

    async def change(self, held: HeldSession, change: Callable[[Session], Session]) -> None:
        """Raises what `change` raises. A session that has ended meanwhile stays ended."""
        for _ in range(MAX_TRIES):
            record = change(held.record)
            try:
                held.version = await self._state.put(
                    _key(record.id), _encoded(record), ttl=self._timeout, if_version=held.version
                )
            except Conflict:
                entry = await self._state.get(_key(record.id))
                if entry is None or not _renewed(held, entry):
                    return
                continue
            held.record = record
            self._came_back(record)
            if (known := self._known.get(record.id)) is not None:
                known.watch(record.subscriptions)
            await self._state.publish(topic(record.id))
            return
        raise Busy("This session is being changed by too many requests at once; try again")

    async def tell(self, id: str) -> None:
        if self._state.shared:
            await self._state.publish(topic(id))

    async def end(self, id: str) -> None:
        """For everyone: whoever serves a stream of it is told."""
        self._forget(id)
        await self._state.delete(_key(id))
        await self._state.drop(messages(id))
        await self._state.publish(topic(id))

    def _forget_expired(self) -> None:
        limit = self._clock() - self._timeout
        while self._known:
            id, known = next(iter(self._known.items()))
            if known.used > limit:
                return
            self._forget(id)

    def _forget(self, id: str) -> None:
        """It has ended, or nobody has used it for too long."""
        self._engine.elicitations.left(id)
        self._let_go(id)

    def _let_go(self, id: str) -> None:
        self._new.pop(id, None)
        self._recent.pop(id, None)
        if (known := self._known.pop(id, None)) is not None:
            known.watch(frozenset())

    def forget_all(self) -> None:
        """The process stops; the records stay where they are."""
        for id in tuple(self._known):
            self._let_go(id)


def _renewed(held: HeldSession, entry: Entry) -> bool:
    """With what stands there now; False if that can't be read."""
    if entry.version != held.version:
        record = _codec.decode(entry.value)
        if record is None:
            return False
        held.record, held.version = record, entry.version
    return True


class _Known:
    """What this process remembers of a session: when it was used, and which resources are watched for its sake."""

    __slots__ = ("_hub", "_watched", "record", "touched", "used", "version")

    def __init__(self, hub: Hub, now: float) -> None:
        self.record: Session | None = None  # decoded, where it is kept so
        self.version = 0  # of that
        self._hub = hub
        self._watched: frozenset[str] = frozenset()
        self.used = now
        self.touched = now

    def watch(self, uris: frozenset[str]) -> None:
        if uris == self._watched:
            return
        for uri in uris - self._watched:
            self._hub.uri_wanted(uri)
        for uri in self._watched - uris:
            self._hub.uri_released(uri)
        self._watched = uris


def _encoded(record: Session, most: int = MAX_RECORD) -> bytes:
    data = _codec.encode(record)
    if len(data) > most:
        raise ProtocolError(f"That is more than a session may hold ({most} bytes)", code=INVALID_PARAMS)
    return data


def _without_pictures(client: dict[str, Any]) -> dict[str, Any]:
    """What a client says of itself, without the icons that may be many times as large."""
    return {name: value for name, value in client.items() if name != "icons"}


def topic(id: str) -> str:
    """What is published when a session has changed or ended."""
    return f"session/{id}"


def messages(id: str) -> str:
    """The log of what is said to this session alone."""
    return f"messages/{id}"


_key = topic  # one name for both: the record lies where its changes are told
