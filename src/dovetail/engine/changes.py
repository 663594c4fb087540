"""The server's changes as a log in the state backend: written once, read by every stream from where it left off."""

import asyncio
import logging
from typing import NamedTuple

import msgspec

from dovetail.engine.streams import LIST_KINDS, Change, Hub, Subscription
from dovetail.protocol.session import Session
from dovetail.state.base import StateBackend

LOG = "changes"
KEEP = 10_000
SECONDS = 30 * 86_400.0  # far longer than any session may be silent: a position never outlives the log it points into
AGAIN_SECONDS = 0.5  # what could not be written is tried again

log = logging.getLogger("dovetail")

_decoder = msgspec.msgpack.Decoder(Change)


class Heard(NamedTuple):
    """What a session has to be told, each change with its own position if it has one; and where to go on from."""

    changes: list[tuple[Change, int | None]]
    position: int
    more: bool = False  # there was too much for one time


class ChangeLog:
    """Passes what the hub says on to the log, and reads the log for sessions."""

    def __init__(self, hub: Hub, state: StateBackend) -> None:
        self._hub = hub
        self._state = state
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._subscription = self._hub.everything()
        self._task = asyncio.get_running_loop().create_task(self._write(self._subscription))

    async def stop(self) -> None:
        """What has been said so far is still written."""
        if self._subscription is not None and self._task is not None:
            self._subscription.end()
            await asyncio.wait([self._task])

    async def _write(self, subscription: Subscription) -> None:
        async for change in subscription:
            try:
                await self._state.append(LOG, msgspec.msgpack.encode(change), keep=KEEP, ttl=SECONDS)
            except Exception:  # whatever it is: who waits for changes would wait for ever
                log.exception("a change could not be written")
                if not subscription.closed:
                    subscription.offer(change)
                    await asyncio.sleep(AGAIN_SECONDS)

    async def position(self) -> int:
        return (await self._state.read(LOG, 0, 0)).last

    async def heard(self, session: Session, after: int) -> Heard:
        """The changes after a position that a session asked for, each once.

        If some of them are not kept any more, or the position is none of this log's, everything may have changed.
        """
        page = await self._state.read(LOG, after)
        if after > page.last or after < page.first - 1:
            return Heard([(change, None) for change in _everything(session)], page.last)
        latest: dict[Change, int | None] = {}
        for record in page.records:
            change = _decoder.decode(record.data)
            if _wants(session, change):
                latest.pop(change, None)  # told where it came last, so that positions only grow
                latest[change] = record.id
        position = page.records[-1].id if page.records else page.last
        return Heard(list(latest.items()), position, position < page.last)


def _wants(session: Session, change: Change) -> bool:
    return change.uri in session.subscriptions if change.uri else change.kind in session.announced


def _everything(session: Session) -> list[Change]:
    kinds: list[Change] = [Change(kind) for kind in LIST_KINDS if kind in session.announced]
    return [*kinds, *(Change("updated", uri) for uri in sorted(session.subscriptions))]
