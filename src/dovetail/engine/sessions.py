"""HTTP sessions of the handshake era, as records in a state backend that expire and are evicted.

There are limits for all sessions and for those of one caller, a principal or else a network. At a limit the oldest
session without `initialized` is evicted, of a caller that has as many as the newcomer or more; else the longest idle
one of the caller that has most. One that was used a moment ago is evicted only for a caller that has fewer.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import islice, takewhile

import msgspec

from dovetail.engine.engine import Engine
from dovetail.engine.rate_limits import ANONYMOUS, caller_of
from dovetail.engine.subscriptions import Hub
from dovetail.errors import Busy, RateLimited
from dovetail.protocol.methods import InitializeParams
from dovetail.protocol.revisions import Revision
from dovetail.protocol.session import Session
from dovetail.state.base import Codec, Conflict, Entry, StateBackend, StoreFull

RECENT_USE = 60.0  # seconds; a session that was used since is not evicted for a caller that has as many
MAX_CHECKS = 8  # of sessions that might be evicted
MAX_ID = 128  # characters
ENDED_PREFIX = "ended/"  # and the id of a session that was ended
_codec: Codec[Session] = Codec(Session, "session", version=4)


class SessionHandle(msgspec.Struct, eq=False):
    """The session of one request: its record, and the way to change it."""

    _sessions: "Sessions"
    record: Session
    version: int

    async def touch(self) -> bool:
        return await self._sessions.touch(self.record)

    async def reload(self) -> bool:
        """Read the record again; False if the store has none."""
        entry = await self._sessions.state.get(_key(self.record.id))
        if entry is not None and entry.version != self.version:
            record = self._sessions.decode(self.record.id, entry)
            if record is None:
                return False
            self.record, self.version = record, entry.version
        return entry is not None

    async def has_ended(self) -> bool:
        """Whether a worker has ended the session. A missing record proves nothing: the store may have lost it."""
        return await self._sessions.state.get(ENDED_PREFIX + self.record.id) is not None

    async def change(self, change: Callable[[Session], Session]) -> None:
        """Replace the record; raises what `change` raises. A session that has ended meanwhile stays ended."""
        for _ in range(100):  # other requests may always be quicker
            record = change(self.record)
            try:
                self.version = await self._sessions.put(record, self.version)
            except Conflict:
                if not await self.reload():
                    return
                continue
            self.record = record
            await self._sessions.state.publish(session_topic(record.id))
            return
        raise Busy("This session is being changed by too many requests at once; try again")

    async def wake_workers(self) -> None:
        """Have the workers that serve this session read it again."""
        if self._sessions.state.shared:
            await self._sessions.state.publish(session_topic(self.record.id))


class Sessions:
    """All sessions that this process serves. In a fleet each worker bounds those that it opened."""

    def __init__(
        self, engine: Engine, state: StateBackend, *, timeout: float, max_sessions: int,
        max_per_caller: int | None = None, clock: Callable[[], float] = time.monotonic, max_decoded: int = 2_000,
    ) -> None:  # fmt: skip
        """`max_decoded` records are cached decoded."""
        self._engine = engine
        self.state = state
        self._timeout = timeout
        self._touch_seconds = timeout / 10  # seconds between two renewals of the TTL in the store
        # of use by others that the store may not show
        self._unseen_use_seconds = self._touch_seconds if state.shared else 0.0
        self._max_sessions = max_sessions
        self._max_per_caller = max_sessions if max_per_caller is None else max_per_caller
        self._clock = clock
        self._max_decoded = max_decoded
        self._known: _ByLastUse = OrderedDict()
        self._callers: dict[str, _ByLastUse] = {}  # those that were opened here, by caller
        self._foreign: _ByLastUse = OrderedDict()  # opened by other workers
        self._uninitialized: dict[str, _Known] = {}  # opened here, without `initialized`, unless another worker got it
        self._decoded: _ByLastUse = OrderedDict()  # those whose record is cached

    @property
    def _opened_here(self) -> int:
        return len(self._known) - len(self._foreign)

    def count_live(self) -> int:
        """The number of sessions that were opened here and have not expired."""
        oldest = self._clock() - self._timeout
        expired = takewhile(lambda each: each.used <= oldest, self._known.values())
        return self._opened_here - sum(each.caller is not None for each in expired)

    def last_used(self, most: int) -> tuple[int, list[tuple[str, float, float]]]:
        """The number of sessions known here; for those used last, the id and the seconds since first and last use."""
        now, last = self._clock(), islice(reversed(self._known.items()), most)
        return len(self._known), [(id, now - known.first_used, now - known.used) for id, known in last]

    async def open(
        self, params: InitializeParams, revision: Revision, *, owner: str | None, resume_change: int, caller: str = ""
    ) -> SessionHandle:
        """Open a session. `caller` counts towards `max_per_caller`."""
        id, announced = secrets.token_urlsafe(24), self._engine.announced_kinds()
        record = Session.open(id, params, revision, announced=announced, owner=owner, resume_change=resume_change)
        known = self._add(id, caller, self._clock())  # it counts from now on: other requests may open one meanwhile
        try:
            await self._forget_expired()
            if self._opened_here > self._max_sessions or self._is_caller_full(known):
                await self._evict(known)
            while True:
                try:
                    version = await self.put(record, 0)
                    break
                except StoreFull:  # other sessions are large, though they may be few
                    if self.state.shared:
                        raise
                    await self._evict(known)
        except BaseException:
            self._forget(id)
            raise
        if self._known.get(id) is not known:  # it was evicted meanwhile
            await self.end(id)
            raise Busy("There is no room for this session; try again later", http_status=503)
        self._uninitialized[id] = known
        return SessionHandle(self, record, version)

    def _add(self, id: str, caller: str | None, now: float) -> "_Known":
        group = self._foreign if caller is None else self._callers.setdefault(caller, OrderedDict())
        group[id] = self._known[id] = known = _Known(self._engine.hub, caller, group, now, now, now)
        return known

    def _is_caller_full(self, known: "_Known") -> bool:
        return len(known.group) > self._max_per_caller and known.caller != ANONYMOUS

    async def _evict(self, newcomer: "_Known") -> None:
        """End one session that was opened here; raises if all that are checked are in use."""
        own, is_caller_full = newcomer.group, self._is_caller_full(newcomer)
        for id, each in tuple(islice(self._uninitialized.items(), MAX_CHECKS**2)):
            may_end = each.group is own if is_caller_full else len(each.group) >= len(own)
            if may_end and self._uninitialized.pop(id, None) is not None and await self._is_idle(id):
                return await self.end(id)
        most = len(own) if is_caller_full else max(map(len, self._callers.values()))
        groups = (each.group for each in self._known.values() if len(each.group) == most and each.caller is not None)
        group = own if is_caller_full else next(groups)  # of equals, the one with the session that is idle longest
        has_more = most > len(own)
        for _ in range(MAX_CHECKS):
            id, known = next(iter(group.items()), ("", None))
            if known is None or not (has_more or self._clock() - known.used >= RECENT_USE):
                break
            self._mark_used(id, known)  # so that no other request checks it meanwhile, nor soon again
            if has_more or await self._is_idle(id):
                return await self.end(id)
        if is_caller_full and self._opened_here <= self._max_sessions:
            text = f"This caller has {self._max_per_caller} sessions, all of them in use; max_per_caller sets the limit"
            raise RateLimited(text, retry_after=int(RECENT_USE))
        raise Busy(f"There are {self._opened_here - 1} sessions, all of them in use; try again later", http_status=503)

    async def _is_idle(self, id: str) -> bool:
        """Whether no worker has used the session for a while, or it was never `initialized`. True without a record."""
        session, remaining = await self.load(id), await self.state.remaining(_key(id))
        if session is None or not session.record.initialized or remaining is None:
            return True
        return self._timeout - remaining - self._unseen_use_seconds >= RECENT_USE

    async def _forget_expired(self) -> None:
        """Forget expired sessions. Those opened here may be in use at other workers, and then still count."""
        for _ in range(MAX_CHECKS):  # more than one for each that is opened, so that this catches up
            id, known = next(iter(self._known.items()), ("", None))
            if known is None or self._clock() - known.used < self._timeout:
                break
            self._mark_used(id, known)
            if known.group is self._foreign or await self.state.remaining(_key(id)) is None:
                self._forget(id)

    async def find(self, id: str, owner: str | None) -> SessionHandle | None:
        """The session, if it exists and belongs to this owner."""
        if not 0 < len(id) <= MAX_ID:
            return None
        entry = await self.state.get(_key(id))
        if entry is None:
            self._forget(id)
            return None
        known = self._known.get(id)
        cached = known.record if known is not None and known.version == entry.version else None
        record = self.decode(id, entry) if cached is None else cached
        if record is None or record.owner != owner:
            return None
        if self._needs_touch(record) and not await self._touch(record):
            return None
        return SessionHandle(self, record, entry.version)

    def decode(self, id: str, entry: Entry) -> Session | None:
        """Decode and cache a record, and watch its subscriptions: the worker that received them may have ended."""
        record, known = _codec.decode(entry.value), self._known.get(id)
        if known is not None and record is not None:
            if known.version != entry.version:
                known.watch(record.subscriptions)
            known.record, known.version = record, entry.version
            if record.initialized:
                self._uninitialized.pop(id, None)
            self._decoded[id] = known
            if len(self._decoded) > self._max_decoded:
                self._decoded.popitem(last=False)[1].record = None
        return record

    async def load(self, id: str) -> SessionHandle | None:
        """A session of any owner, for what the server itself sends to it."""
        entry = await self.state.get(_key(id))
        record = None if entry is None else _codec.decode(entry.value)
        return None if entry is None or record is None else SessionHandle(self, record, entry.version)

    async def touch(self, record: Session) -> bool:
        """Restart the timeout of a session; False if the store has no record of it."""
        return not self._needs_touch(record) or await self._touch(record)

    def _needs_touch(self, record: Session) -> bool:
        """Mark it as used. True if the TTL in the store must be renewed; at most every `_touch_seconds`."""
        now = self._clock()
        known = self._known.get(record.id) or self._meet(record, now)
        self._mark_used(record.id, known)
        if now - known.touched <= self._touch_seconds:
            return False
        known.touched = now
        return True

    def _meet(self, record: Session, now: float) -> "_Known":
        """Add a session that was opened by another worker, or by this one before a restart."""
        known = self._add(record.id, None if self.state.shared else caller_of(record.owner, None), now)
        known.used = known.touched = now - self._timeout  # so that the TTL in the store is renewed
        known.watch(record.subscriptions)
        if len(self._foreign) > self._max_sessions:
            self._remove(next(iter(self._foreign)))
        return known

    def _mark_used(self, id: str, known: "_Known") -> None:
        known.used = self._clock()
        known.group.move_to_end(id)
        self._known.move_to_end(id)

    async def _touch(self, record: Session) -> bool:
        if await self.state.touch(_key(record.id), self._timeout):
            return True
        self._forget(record.id)
        return False

    async def put(self, record: Session, version: int) -> int:
        """Replace that version of the record; gives the new version. Raises Conflict."""
        data = _codec.encode(record)
        record.check_size(len(data))
        version = await self.state.put(_key(record.id), data, ttl=self._timeout, if_version=version)
        if (known := self._known.get(record.id)) is not None:
            known.watch(record.subscriptions)
            if record.initialized:
                self._uninitialized.pop(record.id, None)
        return version

    async def end(self, id: str) -> None:
        """End the session at every worker: their streams close, their calls are cancelled."""
        with suppress(StoreFull):  # then its calls at other workers go on
            await self.state.put(ENDED_PREFIX + id, b"", ttl=30.0)
        await self.state.delete(_key(id))
        self._forget(id)  # not before: while the backend is unavailable, the session still counts
        await self.state.drop(message_log(id))
        await self.state.publish(session_topic(id))

    def _forget(self, id: str) -> None:
        """Forget a session that has ended or expired."""
        self._engine.session_ended(id)
        self._remove(id)

    def _remove(self, id: str) -> None:
        self._decoded.pop(id, None)
        self._uninitialized.pop(id, None)
        if (known := self._known.pop(id, None)) is not None:
            del known.group[id]
            known.watch(frozenset())
            if not known.group and known.caller is not None:
                del self._callers[known.caller]

    def forget_all(self) -> None:
        """Forget all sessions when the process stops; the records stay in the store."""
        for id in tuple(self._known):
            self._remove(id)


class _Known(msgspec.Struct, eq=False):
    """What this process knows of a session: when it was used, and which resources are watched for it."""

    _hub: Hub
    caller: str | None  # that has opened it; None if that was at another worker
    group: "_ByLastUse"  # all sessions of that caller
    first_used: float
    used: float
    touched: float
    record: Session | None = None  # if it is cached
    version: int = 0  # of that
    _watched: frozenset[str] = frozenset()

    def watch(self, uris: frozenset[str]) -> None:
        if uris == self._watched:
            return
        for uri in uris - self._watched:
            self._hub.retain_uri(uri)
        for uri in self._watched - uris:
            self._hub.release_uri(uri)
        self._watched = uris


_ByLastUse = OrderedDict[str, _Known]  # the longest idle first


def session_topic(id: str) -> str:
    """The topic that is published when a session has changed or ended."""
    return _key(id)


def _key(id: str) -> str:
    return f"session/{id}"


def message_log(id: str) -> str:
    """The log of messages to this session alone."""
    return f"messages/{id}"
