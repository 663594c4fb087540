"""What the clients of HTTP+SSE post, where another worker holds their stream: bodies go into a log that it reads."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from dovetail.state.base import Listener, NoRoom, StateBackend, StoreTrouble

KEEP = 100  # messages of one client that wait to be read
SECONDS = 7 * 86_400.0  # that an inbox is kept: while its stream lives it must not begin anew, and is dropped with it
MISSED_BEATS = 3  # after which a stream is taken for gone
MAX_ID = 128
AGAIN_SECONDS = 0.5

Feed = Callable[[bytes], Awaitable[None]]

log = logging.getLogger("dovetail.http")


class SseInboxes:
    """Where nobody shares the state there are none: whoever posts comes to the worker that has the stream."""

    def __init__(self, state: StateBackend, *, beat: float) -> None:
        self._state = state
        self._stay_seconds = beat * MISSED_BEATS

    @asynccontextmanager
    async def open(self, id: str, owner: str | None, feed: Feed) -> AsyncIterator[None]:
        """As long as the stream is here, whatever is posted anywhere is fed to it."""
        if not self._state.shared:
            yield
            return
        await self._enter(id, owner)
        listener = self._state.listen([_inbox(id)])
        reading = asyncio.get_running_loop().create_task(self._read(id, listener, feed))
        try:
            yield
        finally:
            listener.close()
            reading.cancel()
            await asyncio.wait([reading])
            try:
                await self._state.delete(_presence(id))
                await self._state.drop(_inbox(id))
            except StoreTrouble as failure:
                log.debug("an inbox stays until it expires: %s", failure.message)

    async def _enter(self, id: str, owner: str | None) -> None:
        await self._state.put(_presence(id), _named(owner), ttl=self._stay_seconds)

    async def stay(self, id: str, owner: str | None) -> None:
        """Every so often."""
        if self._state.shared:
            try:
                if not await self._state.touch(_presence(id), self._stay_seconds):
                    await self._enter(id, owner)
            except (NoRoom, StoreTrouble) as failure:
                log.debug("a stream can't show that it is there: %s", failure.message)

    async def _read(self, id: str, listener: Listener, feed: Feed) -> None:
        position = 0
        while True:
            try:
                page = await self._state.read(_inbox(id), position)
            except StoreTrouble:
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if position > page.last:  # it has expired meanwhile, and begins anew
                position = 0
                if page.last:
                    continue
            if position < page.first - 1 and page.last:
                log.warning("an SSE client has sent more than could be kept for it: some messages are lost")
            for record in page.records:
                await feed(record.data)
            position = page.records[-1].id if page.records else page.last
            if not page.records and not await listener.wait():
                return

    async def is_there(self, id: str, owner: str | None) -> bool:
        if not self._state.shared or not 0 < len(id) <= MAX_ID:
            return False
        entry = await self._state.get(_presence(id))
        return entry is not None and entry.value == _named(owner)

    @property
    def are_used(self) -> bool:
        """Then everything goes through them, or what is posted here would overtake what was posted elsewhere."""
        return self._state.shared

    async def post(self, id: str, body: bytes) -> None:
        await self._state.append(_inbox(id), body, keep=KEEP, ttl=SECONDS)


def _named(owner: str | None) -> bytes:
    return b"" if owner is None else b"=" + owner.encode("utf-8", "surrogatepass")


def _presence(id: str) -> str:
    return f"sse/{id}"


def _inbox(id: str) -> str:
    return f"inbox/{id}"
