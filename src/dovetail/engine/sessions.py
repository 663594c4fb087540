"""HTTP sessions of the handshake era: records in a state backend that are found, used, changed, expired and evicted.

A session lives as long as it is used, and belongs to the caller that opened it. There are only so many, and each
caller, a principal or else a network, has only so many of them. At the cap the oldest without `initialized` is evicted,
of a caller that holds as many as the newcomer or more; else the longest idle of the caller that holds most. One that
was used a moment ago is evicted only for a caller that holds fewer.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

import msgspec

from dovetail.engine.engine import Engine
from dovetail.engine.rate_limits import ANONYMOUS, caller_of
from dovetail.engine.subscriptions import Hub
from dovetail.errors import Busy, RateLimited
from dovetail.protocol.methods import InitializeParams
from dovetail.protocol.revisions import Revision
from dovetail.protocol.session import Session
from dovetail.state.base import Codec, Conflict, Entry, StateBackend, StoreFull

FRESH_SECONDS = 60.0  # a session that was used so recently is never evicted for a caller that holds as many
MAX_LOOKS = 8  # at sessions that might be evicted
MAX_ID = 128
_codec: Codec[Session] = Codec(Session, "session", version=2)


class SessionHandle(msgspec.Struct, eq=False):
    """The session of one request: its record, and the way to change it."""

    _sessions: "Sessions"
    record: Session
    version: int

    async def use(self) -> bool:
        """Its time begins anew; False if it is gone."""
        return await self._sessions.use(self.record)

    async def reload(self) -> bool:
        """Whether it is still there; its record is then as new as can be."""
        entry = await self._sessions.state.get(_key(self.record.id))
        return entry is not None and self._renew(entry)

    def _renew(self, entry: Entry) -> bool:
        """With what stands there now; False if that can't be read."""
        if entry.version != self.version:
            record = self._sessions.decoded(self.record.id, entry)
            if record is None:
                return False
            self.record, self.version = record, entry.version
        return True

    async def has_ended(self) -> bool:
        """Whether it was ended. One that is merely gone has not: a store may lose its records."""
        return await self._sessions.state.get(_ended(self.record.id)) is not None

    async def change(self, change: Callable[[Session], Session]) -> None:
        """Raises what `change` raises. A session that has ended meanwhile stays ended."""
        for _ in range(100):  # other requests may always be quicker
            record = change(self.record)
            try:
                self.version = await self._sessions.put(record, self.version)
            except Conflict:
                entry = await self._sessions.state.get(_key(record.id))
                if entry is None or not self._renew(entry):
                    return
                continue
            self.record = record
            await self._sessions.state.publish(topic(record.id))
            return
        raise Busy("This session is being changed by too many requests at once; try again")

    async def tell(self) -> None:
        """Other workers that have to do with it should look."""
        if self._sessions.state.shared:
            await self._sessions.state.publish(topic(self.record.id))


class Sessions:
    """All sessions that this process has to do with."""

    def __init__(
        self,
        engine: Engine,
        state: StateBackend,
        *,
        timeout: float,
        most: int,
        most_of_one: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        recent: int = 2_000,
    ) -> None:
        """`most_of_one`: sessions of one caller; None: as many as there are. `recent` records are kept decoded."""
        self._engine = engine
        self.state = state
        self._timeout = timeout
        self._touch_seconds = timeout / 10  # how often the backend hears of use
        self._unseen = self._touch_seconds if state.shared else 0.0  # use that it has not heard of yet
        self._most = most
        self._most_of_one = most if most_of_one is None else most_of_one
        self._clock = clock
        self._max_recent = recent
        self._known: _Line = OrderedDict()  # the one that was used here longest ago comes first, here and below
        self._callers: dict[str, _Line] = {}  # those that were opened here, by whom
        self._guests: _Line = OrderedDict()  # opened by other workers
        self._unheard: dict[str, _Known] = {}  # opened here; the client has not said `initialized`, unless elsewhere
        self._recent: _Line = OrderedDict()  # those whose record is decoded

    @property
    def _opened_here(self) -> int:
        return len(self._known) - len(self._guests)

    def glance(self, most: int) -> tuple[int, list[tuple[str, float, float]]]:
        """How many are known here; and of those used last the id, and how many seconds ago each was met and used."""
        now, last = self._clock(), islice(reversed(self._known.items()), most)
        return len(self._known), [(id, now - known.met, now - known.used) for id, known in last]

    # ── room for one more ──

    async def open(
        self, params: InitializeParams, revision: Revision, *, owner: str | None, unheard_since: int, caller: str = ""
    ) -> SessionHandle:
        """`caller`: whose share it counts towards."""
        id = secrets.token_urlsafe(24)
        record = Session.open(
            id, params, revision, announced=self._engine.announced_kinds(), owner=owner, unheard_since=unheard_since
        )
        known = self._add(id, caller, self._clock())  # it counts from now on: others may open one meanwhile
        try:
            await self._forget_expired()
            if self._opened_here > self._most or self._is_share_full(known):
                await self._make_room(known)
            version = await self._put_first(record, known)
        except BaseException:
            self._forget(id)
            raise
        if self._known.get(id) is not known:  # another one took its place meanwhile
            await self.end(id)
            raise Busy("There is no room for this session; try again later", http_status=503)
        self._unheard[id] = known
        return SessionHandle(self, record, version)

    def _add(self, id: str, caller: str | None, now: float) -> "_Known":
        line = self._guests if caller is None else self._callers.setdefault(caller, OrderedDict())
        line[id] = self._known[id] = known = _Known(self._engine.hub, now, caller, line)
        return known

    async def _put_first(self, record: Session, newcomer: "_Known") -> int:
        while True:
            try:
                return await self.put(record, 0)
            except StoreFull:  # others are large, though they may be few
                if self.state.shared:
                    raise
                await self._make_room(newcomer)

    def _is_share_full(self, known: "_Known") -> bool:
        return len(known.line) > self._most_of_one and known.caller != ANONYMOUS

    async def _make_room(self, newcomer: "_Known") -> None:
        """One that was opened here ends; raises if all that are looked at are in use."""
        own, is_share_full = newcomer.line, self._is_share_full(newcomer)
        for id, each in tuple(islice(self._unheard.items(), MAX_LOOKS**2)):
            may_end = each.line is own if is_share_full else len(each.line) >= len(own)
            if may_end and self._unheard.pop(id, None) is not None and await self._is_idle(id):
                return await self.end(id)
        holder = own if is_share_full else self._largest()
        holds_more = len(holder) > len(own)
        for _ in range(MAX_LOOKS):
            id, known = next(iter(holder.items()), ("", None))
            if known is None or not (holds_more or self._clock() - known.used >= FRESH_SECONDS):
                break
            self._used(id, known)  # so that nobody else looks at it meanwhile, nor soon again
            if holds_more or await self._is_idle(id):
                return await self.end(id)
        if is_share_full and self._opened_here <= self._most:
            text = f"This caller has {self._most_of_one} sessions, all of them in use; max_per_caller sets the limit"
            raise RateLimited(text, retry_after=int(FRESH_SECONDS))
        raise Busy(f"There are {self._opened_here - 1} sessions, all of them in use; try again later", http_status=503)

    def _largest(self) -> "_Line":
        """Who holds most gives way; of equals the one whose first was silent longest."""
        most = max(map(len, self._callers.values()))
        return next(each.line for each in self._known.values() if len(each.line) == most and each.caller is not None)

    async def _is_idle(self, id: str) -> bool:
        """Nobody has used it for a while, anywhere, or its client has never said `initialized`. True if it is gone."""
        entry = await self.state.get(_key(id))
        record = None if entry is None else _codec.decode(entry.value)
        left = await self.state.remaining(_key(id))
        if record is None or not record.initialized or left is None:
            return True
        return self._timeout - left - self._unseen >= FRESH_SECONDS

    async def _forget_expired(self) -> None:
        """Those that were opened here may live on elsewhere, and then still count."""
        for _ in range(MAX_LOOKS):  # for one that is opened, so that this always catches up
            id, known = next(iter(self._known.items()), ("", None))
            if known is None or self._clock() - known.used < self._timeout:
                break
            self._used(id, known)
            if known.line is self._guests or await self.state.remaining(_key(id)) is None:
                self._forget(id)

    # ── one that is there ──

    async def find(self, id: str, owner: str | None) -> SessionHandle | None:
        """The session, if there is one and it belongs to who is asking."""
        if not 0 < len(id) <= MAX_ID:
            return None
        entry = await self.state.get(_key(id))
        if entry is None:
            self._forget(id)
            return None
        known = self._known.get(id)
        record: Session | None
        if known is not None and known.version == entry.version and known.record is not None:
            record = known.record
        else:
            record = self.decoded(id, entry)
        if record is None or record.owner != owner:
            return None
        if self._is_to_be_touched(record) and not await self._touch(record):
            return None
        return SessionHandle(self, record, entry.version)

    def decoded(self, id: str, entry: Entry) -> Session | None:
        """It will probably be used again soon, so that it is kept; but only so many are.

        What it subscribes to is watched from now on, whichever worker was asked for that: that one may be gone.
        """
        record, known = _codec.decode(entry.value), self._known.get(id)
        if known is not None and record is not None:
            if known.version != entry.version:
                known.watch(record.subscriptions)
            known.record, known.version = record, entry.version
            if record.initialized:
                self._unheard.pop(id, None)
            self._recent[id] = known
            if len(self._recent) > self._max_recent:
                self._recent.popitem(last=False)[1].record = None
        return record

    async def hold(self, id: str) -> SessionHandle | None:
        """A session, whosoever it is: for what the server itself has to tell it."""
        entry = await self.state.get(_key(id))
        record = None if entry is None else _codec.decode(entry.value)
        return None if entry is None or record is None else SessionHandle(self, record, entry.version)

    async def use(self, record: Session) -> bool:
        """It is in use: its time begins anew. False if it is gone."""
        return not self._is_to_be_touched(record) or await self._touch(record)

    def _is_to_be_touched(self, record: Session) -> bool:
        """It is in use, which is remembered here; whether the backend is to hear of it, which is often enough."""
        now = self._clock()
        known = self._known.get(record.id) or self._meet(record, now)
        self._used(record.id, known)
        if now - known.touched <= self._touch_seconds:
            return False
        known.touched = now
        return True

    def _meet(self, record: Session, now: float) -> "_Known":
        """It was opened elsewhere, or before this process has forgotten all."""
        known = self._add(record.id, None if self.state.shared else caller_of(record.owner, None), now)
        known.used = known.touched = now - self._timeout  # so that the backend hears of it
        known.watch(record.subscriptions)
        if len(self._guests) > self._most:
            self._let_go(next(iter(self._guests)))
        return known

    def _used(self, id: str, known: "_Known") -> None:
        known.used = self._clock()
        known.line.move_to_end(id)
        self._known.move_to_end(id)

    async def _touch(self, record: Session) -> bool:
        if await self.state.touch(_key(record.id), self._timeout):
            return True
        self._forget(record.id)
        return False

    async def put(self, record: Session, version: int) -> int:
        """Write it in the place of that version, which gives its own. Raises Conflict."""
        version = await self.state.put(_key(record.id), _encoded(record), ttl=self._timeout, if_version=version)
        if (known := self._known.get(record.id)) is not None:
            known.watch(record.subscriptions)
            if record.initialized:
                self._unheard.pop(record.id, None)
        return version

    async def end(self, id: str) -> None:
        """For all workers: those that serve a stream or a call of it are told."""
        with suppress(StoreFull):  # then its calls at other workers go on
            await self.state.put(_ended(id), b"", ttl=30.0)
        await self.state.delete(_key(id))
        self._forget(id)  # not before: if the backend is out of reach, it still counts
        await self.state.drop(messages(id))
        await self.state.publish(topic(id))

    def _forget(self, id: str) -> None:
        """It has ended, or nobody has used it for too long."""
        self._engine.session_ended(id)
        self._let_go(id)

    def _let_go(self, id: str) -> None:
        self._recent.pop(id, None)
        self._unheard.pop(id, None)
        if (known := self._known.pop(id, None)) is not None:
            del known.line[id]
            known.watch(frozenset())
            if not known.line and known.caller is not None:
                del self._callers[known.caller]

    def forget_all(self) -> None:
        """The process stops; the records stay where they are."""
        for id in tuple(self._known):
            self._let_go(id)


class _Known:
    """What this process remembers of a session: when it was used, and which resources are watched for its sake."""

    __slots__ = ("_hub", "_watched", "caller", "line", "met", "record", "touched", "used", "version")

    def __init__(self, hub: Hub, now: float, caller: str | None, line: "_Line") -> None:
        self.record: Session | None = None  # decoded, where it is kept so
        self.version = 0  # of that
        self._hub = hub
        self._watched: frozenset[str] = frozenset()
        self.caller = caller  # who has opened it; None if that was at another worker
        self.line = line  # all of theirs
        self.met = self.used = self.touched = now

    def watch(self, uris: frozenset[str]) -> None:
        if uris == self._watched:
            return
        for uri in uris - self._watched:
            self._hub.retain_uri(uri)
        for uri in self._watched - uris:
            self._hub.release_uri(uri)
        self._watched = uris


_Line = OrderedDict[str, _Known]


def _encoded(record: Session) -> bytes:
    data = _codec.encode(record)
    record.refuse_beyond_bounds(len(data))
    return data


def topic(id: str) -> str:
    """What is published when a session has changed or ended."""
    return f"session/{id}"


def _ended(id: str) -> str:
    return f"cancel/{id}"


def messages(id: str) -> str:
    """The log of what is said to this session alone."""
    return f"messages/{id}"


_key = topic  # one name for both: the record lies where its changes are told
