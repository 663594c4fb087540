"""The server's changes as a log in the state backend: written once, read by every stream from where it left off."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from dovetail.engine import refresh
from dovetail.engine.exchange import SessionStore
from dovetail.engine.member import Member
from dovetail.engine.streams import LIST_KINDS, Change, ChangeKind, ChangesMade, Subscription, changes_made
from dovetail.protocol.session import Session
from dovetail.state.base import MAX_TTL, Conflict, Listener, LogPage, LogRecord, StateBackend
from dovetail.state.records import Codec

if TYPE_CHECKING:
    from dovetail.engine.core import Engine

LOG = "changes"
KEEP = 10_000
SECONDS = MAX_TTL  # it must not begin anew: a position would be taken for one in the other log
PATIENCE = 3.0  # seconds that an answer waits for the changes of its call to be written
NEWEST = 100  # records in which something is looked for that another worker may have said already
ATTEMPTS = 100  # to say something after the newest record
AGAIN_SECONDS = 0.5  # what could not be written is tried again

log = logging.getLogger("dovetail")


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """A change in the log, and who has written it."""

    kind: ChangeKind | Literal["all"]  # all: nobody knows what has changed
    uri: str
    worker: str
    refreshes: int = 0  # that it had made by then
    cause: str = ""  # of what several workers notice: an outage, or what is found in a file

    def changes_for(self, session: Session) -> list[Change]:
        """Those of them that a session asked for."""
        if self.kind == "all":
            return _everything(session)
        change = Change(self.kind, self.uri)
        return [change] if _wants(session, change) else []


_codec: Codec[_Told] = Codec(_Told, "change")


class Heard(NamedTuple):
    """What a session has to be told, each change with its own position if it has one; and where to go on from."""

    changes: list[tuple[Change, int | None]]
    position: int
    more: bool = False  # there was too much for one time


class ChangeLog:
    """Passes what the hub says on to the log, reads the log for sessions, and tells the hub what other workers say."""

    def __init__(self, engine: "Engine", state: StateBackend, member: Member) -> None:
        self._engine = engine
        self._state = state
        self._member = member
        self._subscription: Subscription | None = None
        self._listeners: list[Listener] = []
        self._is_in_trouble = False
        self._written = asyncio.Event()
        self._count = 0  # changes that were written, or tried
        self._outages: deque[str] = deque(maxlen=NEWEST)  # those that everyone here knows of
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._subscription = self._engine.hub.everything(finds=self._state.shared)
        self._run(self._write(self._subscription))
        if self._state.shared:
            self._listen(LOG, self._relay)
            if (refresher := self._engine.refresher) is not None:
                self._listen(refresh.KEY, partial(refresher.follow, self._state))

    def _listen(self, topic: str, work: Callable[[Listener], Coroutine[Any, Any, None]]) -> None:
        listener = self._state.listen([topic])
        self._listeners.append(listener)
        self._run(work(listener))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def stop(self) -> None:
        """What has been said so far is still written."""
        for listener in self._listeners:
            listener.close()
        for task in self._tasks[1:]:
            task.cancel()  # a function of on_refresh may take its time
        if self._subscription is not None:
            self._subscription.end()
            await asyncio.wait(self._tasks)

    # ── what changes here ──

    async def _write(self, subscription: Subscription) -> None:
        async for change in subscription:
            try:
                await self._append(self._told_of(change))
                self._is_in_trouble = False
            except UnicodeEncodeError as failure:
                log.warning("a change is not told to others, for its URI is not text: %s", failure)
            except Exception as failure:  # whatever it is: who waits for changes would wait for ever
                if not self._is_in_trouble:
                    log.warning("a change could not be written and is tried again and again: %s", failure)
                self._is_in_trouble = True
                self._written.set()
                if subscription.closed:
                    return
                subscription.offer(change)
                await asyncio.sleep(AGAIN_SECONDS)
            self._count += 1
            self._written.set()

    def _told_of(self, change: Change) -> _Told:
        refresher = self._engine.refresher
        refreshes = 0 if refresher is None else refresher.count
        return _Told(change.kind, change.uri, self._member.id, refreshes, change.cause if self._state.shared else "")

    async def _append(self, told: _Told) -> None:
        """What has a cause is appended unless another worker has just said the same: after what was looked at."""
        data = _codec.encode(told)
        for _ in range(ATTEMPTS if told.cause else 0):
            page = await self._newest()
            if self._is_known(told, page.records):
                return
            with suppress(Conflict):
                await self._state.append(LOG, data, keep=KEEP, ttl=SECONDS, if_last=_end(page))
                return
        await self._state.append(LOG, data, keep=KEEP, ttl=SECONDS)

    def _is_known(self, told: _Told, newest: Iterable[LogRecord]) -> bool:
        """Of an outage: whether somebody has told of one that is news here. Else: whether the last find is the same."""
        causes = [
            each.cause
            for each in map(_codec.decode, (record.data for record in newest))
            if each is not None and each.cause and (each.kind, each.uri) == (told.kind, told.uri)
        ]
        if told.kind == "all":
            return any(cause not in self._outages for cause in causes)
        return causes[-1:] == [told.cause]

    async def _newest(self) -> LogPage:
        page = await self._state.read(LOG, 0, 0)
        return await self._state.read(LOG, max(0, page.last - NEWEST), NEWEST) if page.last else page

    # ── who waits for it ──

    def noted(self) -> ChangesMade | None:
        """Where stands, from now on, what is changed in the course of this call; None if nobody else need know."""
        if not self._state.shared:
            return None
        made = changes_made.get()
        if made is None:
            made = {}
            changes_made.set(made)
        return made

    async def settle(self, made: ChangesMade) -> None:
        """Whoever is answered may count on it that what its call has changed is known; but nobody waits for long."""
        number = 0 if self._subscription is None else made.get(self._subscription, 0)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while self._count < number and not self._is_in_trouble:
                    self._written.clear()
                    await self._written.wait()

    # ── what changes elsewhere ──

    async def _relay(self, listener: Listener) -> None:
        """To everyone who listens at this worker."""
        position: int | None = None
        outages = self._state.outages
        while not listener.closed:
            try:
                if position is None:
                    position = await self._skip()
                    self._engine.hub.publish_all()  # to those who were quicker: they may have missed something
                if outages != self._state.outages:
                    seen = self._state.outages
                    await self._announce_outage()
                    outages = seen
                position = await self._relay_after(position)
            except Exception as failure:
                log.debug("changes could not be read: %s", failure)
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if not await listener.wait():
                return

    async def _announce_outage(self) -> None:
        """Nobody knows what could not be told: one of the workers says so to everyone."""
        await self._append(_Told("all", "", self._member.id, cause=secrets.token_hex(8)))

    async def _relay_after(self, position: int) -> int:
        """Gives the position that was reached."""
        while True:
            page = await self._state.read(LOG, position)
            if position > page.last or position < page.first - 1:
                position = await self._skip()
                self._engine.hub.publish_all()
                return position
            for record in page.records:
                self._pass_on(await self._told(record))
            if not page.records:
                return page.last
            position = page.records[-1].id

    async def _skip(self) -> int:
        """To the end of the log: outages that it tells of are over."""
        page = await self._newest()
        told = [_codec.decode(record.data) for record in page.records]
        self._outages.extend(each.cause for each in told if each is not None and each.kind == "all")
        return _end(page)

    def _pass_on(self, told: _Told | None) -> None:
        if told is None:
            return
        if told.kind == "all":
            self._outages.append(told.cause)
            self._engine.hub.publish_all()
        elif told.cause or told.worker != self._member.id:
            self._engine.hear(Change(told.kind, told.uri), from_afar=True)

    async def _told(self, record: LogRecord) -> _Told | None:
        """None if it can't be read. What a refresh has changed is told when it is made here too."""
        told, refresher = _codec.decode(record.data), self._engine.refresher
        if told is not None and refresher is not None and told.refreshes > refresher.count:
            await refresher.reached(told.refreshes, self._state)
        return told

    # ── for sessions ──

    async def position(self) -> int:
        return (await self._state.read(LOG, 0, 0)).last

    async def heard(self, held: SessionStore, after: int) -> Heard:
        """The changes after a position that a session asked for, each once.

        If some of them are not kept any more, or the position is none of this log's, everything may have changed. The
        session is looked at after the log: what it asked for before a change, it hears of.
        """
        page = await self._state.read(LOG, after)
        is_gap = after > page.last or after < page.first - 1
        if (page.records or is_gap) and not await held.reload():
            return Heard([], after)
        session = held.record
        if is_gap:
            return Heard([(change, None) for change in _everything(session)], page.last)
        latest: dict[Change, int | None] = {}
        for record in page.records:
            told = await self._told(record)
            wanted = [] if told is None else told.changes_for(session)
            for change in wanted:
                latest.pop(change, None)  # told where it came last, so that positions only grow
                latest[change] = record.id if change == wanted[-1] else None  # no two events have the same
        position = page.records[-1].id if page.records else page.last
        return Heard(list(latest.items()), position, position < page.last)


def _end(page: LogPage) -> int:
    """Up to where it was read."""
    return page.records[-1].id if page.records else page.last


def _wants(session: Session, change: Change) -> bool:
    return change.uri in session.subscriptions if change.uri else change.kind in session.announced


def _everything(session: Session) -> list[Change]:
    kinds: list[Change] = [Change(kind) for kind in LIST_KINDS if kind in session.announced]
    return [*kinds, *(Change("updated", uri) for uri in sorted(session.subscriptions))]
