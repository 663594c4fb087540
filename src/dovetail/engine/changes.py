"""The server's changes as a log in the state backend: written once, read by every stream from where it left off."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from dovetail.engine import refresh
from dovetail.engine.exchange import SessionStore
from dovetail.engine.member import Member
from dovetail.engine.streams import LIST_KINDS, Change, ChangeKind, Subscription
from dovetail.protocol.session import Session
from dovetail.state.base import Listener, LogRecord, StateBackend
from dovetail.state.records import Codec

if TYPE_CHECKING:
    from dovetail.engine.core import Engine

LOG = "changes"
KEEP = 10_000
SECONDS = 30 * 86_400.0  # far longer than any session may be silent: a position never outlives the log it points into
PATIENCE = 3.0  # seconds that an answer waits for the changes of its call to be written
OUTAGE = "outage"  # a claim: one worker tells of each outage
OUTAGE_SECONDS = 5.0  # in which all of them have noticed that it is over
AGAIN_SECONDS = 0.5  # what could not be written is tried again

log = logging.getLogger("dovetail")


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """A change in the log, and who has written it."""

    kind: ChangeKind | Literal["all"]  # all: nobody knows what has changed
    uri: str
    worker: str
    refreshes: int = 0  # that it had made by then

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
        self._is_writing = self._is_in_trouble = False
        self._written = asyncio.Event()
        self._count = 0  # changes that were written, or tried
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._subscription = self._engine.hub.everything()
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
            self._is_writing = True
            refresher = self._engine.refresher
            record = _Told(change.kind, change.uri, self._member.id, 0 if refresher is None else refresher.count)
            try:
                await self._state.append(LOG, _codec.encode(record), keep=KEEP, ttl=SECONDS)
                self._is_in_trouble = False
            except Exception as failure:  # whatever it is: who waits for changes would wait for ever
                if not self._is_in_trouble:
                    log.warning("a change could not be written and is tried again and again: %s", failure)
                self._is_in_trouble = True
                self._written.set()
                if subscription.closed:
                    return
                subscription.offer(change)
                await asyncio.sleep(AGAIN_SECONDS)
            self._is_writing = False
            self._count += 1
            self._written.set()

    @property
    def is_behind(self) -> bool:
        """Whether something has changed here that other workers will know in a moment."""
        if not self._state.shared or self._is_in_trouble or self._subscription is None:
            return False
        return self._is_writing or self._subscription.waiting > 0

    async def settle(self) -> None:
        """Whoever is answered may count on it that what a call has changed is known; but nobody waits for long."""
        waiting = 0 if self._subscription is None else self._subscription.waiting
        ticket = self._count + waiting + self._is_writing  # what comes later is not waited for
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while self._count < ticket and self.is_behind:
                    self._written.clear()
                    await self._written.wait()

    # ── what changes elsewhere ──

    async def _relay(self, listener: Listener) -> None:
        """To everyone who listens at this worker."""
        position, outages = None, self._state.outages
        while not listener.closed:
            try:
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
        if not await self._state.claim(OUTAGE, b"", OUTAGE_SECONDS):
            return
        try:
            record = _Told("all", "", self._member.id)
            await self._state.append(LOG, _codec.encode(record), keep=KEEP, ttl=SECONDS)
        except BaseException:
            await self._state.delete(OUTAGE)
            raise

    async def _relay_after(self, position: int | None) -> int:
        """Gives the position that was reached; None is the end of the log, whatever stands in it."""
        if position is None:
            return await self.position()
        while True:
            page = await self._state.read(LOG, position)
            if position > page.last or position < page.first - 1:
                self._engine.hub.publish_all()
                return page.last
            for record in page.records:
                self._pass_on(await self._told(record))
            if not page.records:
                return page.last
            position = page.records[-1].id

    def _pass_on(self, told: _Told | None) -> None:
        if told is None:
            return
        if told.kind == "all":
            self._engine.hub.publish_all()
        elif told.worker != self._member.id:
            self._engine.hear(Change(told.kind, told.uri), from_afar=True)

    async def _told(self, record: LogRecord) -> _Told | None:
        """None if it can't be read. What a refresh has changed is told when it is made here too."""
        told, refresher = _codec.decode(record.data), self._engine.refresher
        if told is not None and refresher is not None and told.refreshes > refresher.count:
            await refresher.reached(told.refreshes)
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


def _wants(session: Session, change: Change) -> bool:
    return change.uri in session.subscriptions if change.uri else change.kind in session.announced


def _everything(session: Session) -> list[Change]:
    kinds: list[Change] = [Change(kind) for kind in LIST_KINDS if kind in session.announced]
    return [*kinds, *(Change("updated", uri) for uri in sorted(session.subscriptions))]
