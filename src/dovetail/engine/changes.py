"""The server's changes as a log in the state backend: written once, read by every stream from where it left off."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dovetail.engine import refresh
from dovetail.engine.member import Member
from dovetail.engine.streams import LIST_KINDS, Change, ChangeKind, ChangesMade, Subscription, changes_made
from dovetail.protocol.session import Session
from dovetail.state.base import MAX_TTL, Codec, Listener, LogPage, LogRecord, StateBackend

if TYPE_CHECKING:
    from dovetail.engine.core import Engine
    from dovetail.engine.sessions import HeldSession

LOG = "changes"
SECONDS = MAX_TTL  # it must not begin anew: a position would be taken for one in the other log
PATIENCE = 3.0  # seconds that an answer waits for the changes of its call to be written
AGAIN_SECONDS = 0.5  # what could not be written is tried again
FOUND_SECONDS = 60.0  # for which workers know that one of them has told of what they find in a file

log = logging.getLogger("dovetail")


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """A change in the log, and who has written it."""

    kind: ChangeKind
    uri: str
    worker: str
    refreshes: int = 0  # that it had made by then
    cause: str = ""  # of what several workers notice, which is what is found in a file


_codec: Codec[_Told] = Codec(_Told, "change")


class Heard(NamedTuple):
    """What a session has to be told, each change with its own position if it has one; and where to go on from."""

    changes: list[tuple[Change, int | None]]
    position: int
    outages: int  # that there had been by then
    more: bool = False  # there was too much for one time


class ChangeLog:
    """Passes what the hub says on to the log, reads the log for sessions, and tells the hub what other workers say."""

    def __init__(
        self, engine: "Engine", state: StateBackend, member: Member, *, keep: int = 10_000, again: float | None = None
    ) -> None:
        """`keep` changes are kept; what could not be written is tried `again` after so many seconds."""
        self._keep = keep
        self._again = AGAIN_SECONDS if again is None else again
        self._engine = engine
        self._state = state
        self._member = member
        self._subscription: Subscription | None = None
        self._listeners: list[Listener] = []
        self._is_in_trouble = False
        self._written = asyncio.Event()
        self._count = 0  # changes that were written, or tried
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
                await asyncio.sleep(self._again)
            self._count += 1
            self._written.set()

    def _told_of(self, change: Change) -> _Told:
        refresher = self._engine.refresher
        refreshes = 0 if refresher is None else refresher.count
        return _Told(change.kind, change.uri, self._member.id, refreshes, change.cause if self._state.shared else "")

    async def _append(self, told: _Told) -> None:
        if not told.cause or await self._is_first_to_find(told):
            await self._state.append(LOG, _codec.encode(told), keep=self._keep, ttl=SECONDS)

    async def _is_first_to_find(self, told: _Told) -> bool:
        """Several workers find what has happened to a file; the first to claim it tells of it, again if that failed."""
        find = hashlib.sha256(f"{told.kind} {told.uri} {told.cause}".encode("utf-8", "surrogatepass")).hexdigest()
        own = self._member.id.encode()
        if await self._state.claim(f"found/{find}", own, FOUND_SECONDS):
            return True
        entry = await self._state.get(f"found/{find}")
        return entry is None or entry.value == own

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
        """To everyone who listens at this worker. After an outage that is everything: nobody knows what was not told.

        So it is at the start, for those who were quicker than this.
        """
        position, outages = 0, -1
        while not listener.closed:
            try:
                if outages != self._state.outages:
                    seen = self._state.outages
                    position = await self.position()
                    self._engine.hub.publish_all()
                    outages = seen
                position = await self._relay_after(position, outages)
            except Exception as failure:
                log.debug("changes could not be read: %s", failure)
                await asyncio.sleep(self._again)
                continue
            if not await listener.wait():
                return

    async def _relay_after(self, position: int, outages: int) -> int:
        """Gives the position that was reached; unless there is an outage that was not told of yet."""
        while True:
            page = await self._state.read(LOG, position)
            if outages != self._state.outages:
                return position
            if _is_gap(page, position):
                self._engine.hub.publish_all()
                return page.last
            for record in page.records:
                told = await self._told(record)
                if told is not None and (told.cause or told.worker != self._member.id):
                    self._engine.hear(Change(told.kind, told.uri), from_afar=True)
            if not page.records:
                return page.last
            position = page.records[-1].id

    async def _told(self, record: LogRecord) -> _Told | None:
        """None if it can't be read. What a refresh has changed is told when it is made here too."""
        told, refresher = _codec.decode(record.data), self._engine.refresher
        if told is not None and refresher is not None and told.refreshes > refresher.count:
            await refresher.reached(told.refreshes, self._state)
        return told

    # ── for sessions ──

    async def position(self) -> int:
        return (await self._state.read(LOG, 0, 0)).last

    @property
    def outages(self) -> int:
        """How often the store was out of reach, as far as this worker has noticed."""
        return self._state.outages

    async def heard(self, held: "HeldSession", after: int, outages: int) -> Heard:
        """The changes after a position that a session asked for, each once.

        If there was an outage since, if some of them are not kept any more, or if the position is none of this log's,
        everything may have changed. The session is looked at after the log: what it asked for before a change, it
        hears of.
        """
        page = await self._state.read(LOG, after)
        seen = self._state.outages
        is_gap = outages != seen or _is_gap(page, after)
        if (page.records or is_gap) and not await held.reload():
            return Heard([], after, outages)
        session = held.record
        if is_gap:
            return Heard([(change, None) for change in _everything(session)], page.last, seen)
        latest: dict[Change, int | None] = {}
        for record in page.records:
            told = await self._told(record)
            if told is not None and _wants(session, change := Change(told.kind, told.uri)):
                latest.pop(change, None)  # told where it came last, so that positions only grow
                latest[change] = record.id
        position = _end(page)
        return Heard(list(latest.items()), position, seen, position < page.last)


def _is_gap(page: LogPage, position: int) -> bool:
    """Whether what came after a position is not kept any more, or it is a position in another log."""
    return position > page.last or position < page.first - 1


def _end(page: LogPage) -> int:
    """Up to where it was read."""
    return page.records[-1].id if page.records else page.last


def _wants(session: Session, change: Change) -> bool:
    return change.uri in session.subscriptions if change.uri else change.kind in session.announced


def _everything(session: Session) -> list[Change]:
    kinds: list[Change] = [Change(kind) for kind in LIST_KINDS if kind in session.announced]
    return [*kinds, *(Change("updated", uri) for uri in sorted(session.subscriptions))]
