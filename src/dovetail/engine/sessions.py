"""Sessions of the handshake era over HTTP: records in a state backend that any request may be the next to use.

A session lives as long as it is used, belongs to whoever opened it, and there are only so many: when no more fit, the
one that has been silent longest gives way, unless even that one was used a moment ago. Those whose client has
not said `initialized` give way before all others, in the order of their use: opening sessions is cheap.

Of workers that share a backend each bounds those that it has opened itself, and asks the backend before one of them
ends: it may have been used elsewhere.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from heapq import nlargest
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
MAX_LOOKS = 8  # at sessions that might give way
ENDED_SECONDS = 30.0  # for which its calls find out that a session was ended
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

    async def has_ended(self) -> bool:
        """Somebody has ended it. One that is merely gone has not: a store may lose its records."""
        return await self._sessions.has_ended(self.record.id)

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
        self._touch_seconds = timeout / 10  # how often the backend hears of use
        self._unseen = self._touch_seconds if state.shared else 0.0  # use that it has not heard of yet
        self._most = most
        self._clock = clock
        self._known: dict[str, _Known] = {}
        # Each of them stands in one of three lines; the one that was used here longest ago comes first.
        self._new: _Line = OrderedDict()  # opened here; the client has not said `initialized`, unless elsewhere
        self._old: _Line = OrderedDict()  # all others that were opened here
        self._guests: _Line = OrderedDict()  # opened by other workers
        self._recent: OrderedDict[str, _Known] = OrderedDict()  # those with a small record that is decoded

    @property
    def _opened_here(self) -> int:
        return len(self._new) + len(self._old)

    def glance(self, most: int) -> tuple[int, list[tuple[str, float, float]]]:
        """How many are known here; and of those used last the id, and how many seconds ago each was met and used."""
        now, last = self._clock(), nlargest(most, self._known.items(), key=lambda item: item[1].used)
        return len(self._known), [(id, now - known.met, now - known.used) for id, known in last]

    # ── room for one more ──

    async def open(
        self, params: InitializeParams, revision: Revision, *, owner: str | None, unheard_since: int
    ) -> HeldSession:
        id = secrets.token_urlsafe(24)
        record = Session.open(
            id, params, revision, announced=self._engine.announced_kinds(), owner=owner, unheard_since=unheard_since
        )
        if len(_codec.encode(record)) > LARGE:
            record = record.replace(client=_without_pictures(record.client))
        known = _Known(self._engine.hub, self._clock(), self._old)
        self._stand_last(id, known, self._old)  # it counts from now on: others may open one meanwhile
        try:
            await self._forget_expired()
            if self._opened_here > self._most:
                await self._make_room()
            version = await self._put_first(record)
        except BaseException:
            self._forget(id)
            raise
        self._stand_last(id, known, self._new)
        return HeldSession(self, record, version)

    async def _put_first(self, record: Session) -> int:
        data = _encoded(record, MAX_FIRST)
        while True:
            try:
                return await self._state.put(_key(record.id), data, ttl=self._timeout, if_version=0)
            except NoRoom:  # others are large, though they may be few
                if self._state.shared:
                    raise
                await self._make_room()

    async def _make_room(self) -> None:
        """One that was opened here ends; raises if all that are looked at are in use."""
        id = await self._never_came_back() or await self._silent_longest()
        if id is None:
            others = self._opened_here - 1
            raise Busy(f"There are {others} sessions, all of them in use; try again later", http_status=503)
        await self.end(id)

    async def _never_came_back(self) -> str | None:
        for _ in range(MAX_LOOKS):
            if not self._new:
                break
            silence = self._silence_here(self._new)
            id = self._look_at_first(self._new)
            if not await self._is_initialized(id):
                return id
            if silence >= FRESH_SECONDS and (known := self._known.get(id)) is not None:
                known.used = self._clock() - silence  # unless elsewhere, which will be asked for in its turn
                known.line.move_to_end(id, last=False)
        return None

    async def _silent_longest(self) -> str | None:
        for _ in range(MAX_LOOKS):
            if self._silence_here(self._old) < FRESH_SECONDS:
                break
            id = self._look_at_first(self._old)
            if await self._is_silent(id):
                return id
        return None

    def _silence_here(self, line: "_Line") -> float:
        """Of the first in a line, in seconds."""
        known = next(iter(line.values()), None)
        return 0.0 if known is None else self._clock() - known.used

    def _look_at_first(self, line: "_Line") -> str:
        """It counts as used now, so that nobody else looks at it meanwhile, nor soon again."""
        id, known = next(iter(line.items()))
        known.used = self._clock()
        self._stand_last(id, known, self._old)
        return id

    async def _is_initialized(self, id: str) -> bool:
        """Its client may have said so at another worker. False if it is gone."""
        entry = await self._state.get(_key(id))
        record = None if entry is None else _codec.decode(entry.value)
        return record is not None and record.initialized

    async def _is_silent(self, id: str) -> bool:
        """Nobody has used it for a while, anywhere. True if it is gone."""
        left = await self._state.remaining(_key(id))
        return left is None or self._timeout - left - self._unseen >= FRESH_SECONDS

    async def _forget_expired(self) -> None:
        """Those that were opened here may live on elsewhere, and then still count."""
        while self._silence_here(self._guests) >= self._timeout:
            self._forget(next(iter(self._guests)))
        for line in (self._new, self._old):
            for _ in range(MAX_LOOKS):  # for one that is opened, so that this always catches up
                if self._silence_here(line) < self._timeout:
                    break
                id = self._look_at_first(line)
                if await self._state.remaining(_key(id)) is None:
                    self._forget(id)

    # ── one that is there ──

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
        """It will probably be used again soon, so that it is kept; but of small ones only so many.

        What it subscribes to is watched from now on, whichever worker was asked for that: that one may be gone.
        """
        record = _codec.decode(entry.value)
        if known is not None and record is not None:
            if known.version != entry.version:
                known.watch(record.subscriptions)
            known.record, known.version = record, entry.version
            if len(entry.value) <= LARGE:
                self._recent[id] = known
                if len(self._recent) > RECENT:
                    self._recent.popitem(last=False)[1].record = None
        return record

    async def reload(self, held: HeldSession) -> bool:
        """Whether it is still there; its record is then as new as can be."""
        entry = await self._state.get(_key(held.record.id))
        return entry is not None and self._renew(held, entry)

    def _renew(self, held: HeldSession, entry: Entry) -> bool:
        """With what stands there now; False if that can't be read."""
        if entry.version != held.version:
            id = held.record.id
            record = self._decoded(id, entry, self._known.get(id))
            if record is None:
                return False
            held.record, held.version = record, entry.version
        return True

    async def hold(self, id: str) -> HeldSession | None:
        """A session, whosoever it is: for what the server itself has to tell it."""
        entry = await self._state.get(_key(id))
        record = None if entry is None else _codec.decode(entry.value)
        return None if entry is None or record is None else HeldSession(self, record, entry.version)

    async def has_ended(self, id: str) -> bool:
        return await self._state.get(_ended(id)) is not None

    async def use(self, record: Session) -> bool:
        """It is in use: its time begins anew. False if it is gone."""
        return not self._is_to_be_touched(record) or await self._touch(record)

    def _is_to_be_touched(self, record: Session) -> bool:
        """It is in use, which is remembered here; whether the backend is to hear of it, which is often enough."""
        now = self._clock()
        known = self._known.get(record.id) or self._meet(record, now)
        known.used = now
        known.line.move_to_end(record.id)
        if known.line is self._new and record.initialized:
            self._stand_last(record.id, known, self._old)
        if now - known.touched <= self._touch_seconds:
            return False
        known.touched = now
        return True

    def _meet(self, record: Session, now: float) -> "_Known":
        """It was opened elsewhere, or before this process has forgotten all."""
        line = self._guests if self._state.shared else self._old
        known = _Known(self._engine.hub, now, line)
        known.used = known.touched = now - self._timeout  # so that the backend hears of it
        known.watch(record.subscriptions)
        self._stand_last(record.id, known, line)
        if len(self._guests) > self._most:
            self._let_go(next(iter(self._guests)))
        return known

    def _stand_last(self, id: str, known: "_Known", line: "_Line") -> None:
        if not self._known and self._engine.options.list_changed:
            self._engine.hub.listing_wanted(1)
        known.line.pop(id, None)
        known.line = line
        line[id] = self._known[id] = known

    async def _touch(self, record: Session) -> bool:
        if await self._state.touch(_key(record.id), self._timeout):
            return True
        self._forget(record.id)
        return False

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
                if entry is None or not self._renew(held, entry):
                    return
                continue
            held.record = record
            if (known := self._known.get(record.id)) is not None:
                known.watch(record.subscriptions)
                if known.line is self._new and record.initialized:
                    self._stand_last(record.id, known, self._old)
            await self._state.publish(topic(record.id))
            return
        raise Busy("This session is being changed by too many requests at once; try again")

    async def tell(self, id: str) -> None:
        if self._state.shared:
            await self._state.publish(topic(id))

    async def end(self, id: str) -> None:
        """For everyone: whoever serves a stream or a call of it is told."""
        with suppress(NoRoom):  # then its calls at other workers go on
            await self._state.put(_ended(id), b"", ttl=ENDED_SECONDS)
        await self._state.delete(_key(id))
        self._forget(id)  # not before: if the backend is out of reach, it still counts
        await self._state.drop(messages(id))
        await self._state.publish(topic(id))

    def _forget(self, id: str) -> None:
        """It has ended, or nobody has used it for too long."""
        self._engine.elicitations.left(id)
        self._let_go(id)

    def _let_go(self, id: str) -> None:
        self._recent.pop(id, None)
        if (known := self._known.pop(id, None)) is not None:
            del known.line[id]
            known.watch(frozenset())
            if not self._known and self._engine.options.list_changed:
                self._engine.hub.listing_wanted(-1)

    def forget_all(self) -> None:
        """The process stops; the records stay where they are."""
        for id in tuple(self._known):
            self._let_go(id)


class _Known:
    """What this process remembers of a session: when it was used, and which resources are watched for its sake."""

    __slots__ = ("_hub", "_watched", "line", "met", "record", "touched", "used", "version")

    def __init__(self, hub: Hub, now: float, line: "_Line") -> None:
        self.record: Session | None = None  # decoded, where it is kept so
        self.version = 0  # of that
        self._hub = hub
        self._watched: frozenset[str] = frozenset()
        self.line = line  # where it stands
        self.met = self.used = self.touched = now

    def watch(self, uris: frozenset[str]) -> None:
        if uris == self._watched:
            return
        for uri in uris - self._watched:
            self._hub.uri_wanted(uri)
        for uri in self._watched - uris:
            self._hub.uri_released(uri)
        self._watched = uris


_Line = OrderedDict[str, _Known]


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


def _ended(id: str) -> str:
    return f"cancel/{id}"


def messages(id: str) -> str:
    """The log of what is said to this session alone."""
    return f"messages/{id}"


_key = topic  # one name for both: the record lies where its changes are told
