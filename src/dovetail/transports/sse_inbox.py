"""What the clients of HTTP+SSE post: bodies come in at any worker, and go to the stream, wherever that is, in order.

The inbox of a stream is one key, whose value holds what was posted elsewhere and is not taken yet. Posting and taking
change it by compare-and-set, so nothing is lost or taken twice, and it never holds more than it may. While its worker
keeps the key alive, the stream is there; when that worker is lost, the inbox expires with it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from weakref import WeakValueDictionary

from msgspec import Struct

from dovetail.errors import Busy
from dovetail.state.base import Codec, Conflict, Listener, NoRoom, StateBackend, StoreTrouble, until_answered

FULL_BYTES = 256 * 1024  # that wait in one inbox; a larger message must find it empty
BODY_OVERHEAD = 256  # bytes that each message counts for besides its own
ROOM_SECONDS = 4.0  # for which a message waits for room, and for those before it; many clients wait for 5
PAUSES = (0.002, 1.0)  # seconds between two tries to post: at first, at most
MISSED_BEATS = 3  # after which a stream is taken for gone
MAX_ID = 128

Feed = Callable[[bytes], Awaitable[bool]]  # False: the stream takes no more

log = logging.getLogger("dovetail.http")


class _Box(Struct, frozen=True, array_like=True):
    """The messages of one stream are numbered from 0."""

    first: int  # the number of the first one that is here
    bodies: tuple[bytes, ...] = ()

    def has_room_for(self, body: bytes) -> bool:
        held = sum(len(each) + BODY_OVERHEAD for each in self.bodies)
        return not held or held + len(body) + BODY_OVERHEAD <= FULL_BYTES


_codec: Codec[_Box] = Codec(_Box, "inbox")


class SseInboxes:
    """All that this worker knows of. Where nobody shares the state, every stream is here, and no key is written."""

    def __init__(self, state: StateBackend, *, beat: float) -> None:
        self._state = state
        self._beat = beat
        self._here: dict[str, _Inbox] = {}  # by their keys
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # of those who post elsewhere

    @asynccontextmanager
    async def open(self, id: str, owner: str | None, feed: Feed) -> AsyncIterator[None]:
        """As long as the stream is here, whatever is posted anywhere is fed to it."""
        key = _key(id, owner)
        self._here[key] = inbox = _Inbox(self._state, key, feed, self._beat)
        try:
            async with inbox.open():
                yield
        finally:
            del self._here[key]

    async def stay(self, id: str, owner: str | None) -> None:
        """The stream is still here; every so often."""
        await self._here[_key(id, owner)].stay()

    async def is_elsewhere(self, id: str, owner: str | None) -> bool:
        if not self._state.shared or not 0 < len(id) <= MAX_ID:
            return False
        return await self._state.remaining(_key(id, owner)) is not None

    async def post(self, id: str, body: bytes, owner: str | None = None) -> bool:
        """False if there is no such stream of this owner, or none any more. Raises Busy if the client must wait."""
        key = _key(id, owner)
        if inbox := self._here.get(key):
            return await inbox.feed(body)
        deadline = asyncio.get_running_loop().time() + ROOM_SECONDS
        turn = self._turns.setdefault(key, asyncio.Lock())  # one at a time, or they would get in each other's way
        try:
            async with asyncio.timeout_at(deadline):
                await turn.acquire()
        except TimeoutError:
            raise _full() from None
        try:
            posted = await self._put(key, body, deadline)
        finally:
            turn.release()
        if posted:
            with suppress(StoreTrouble):  # then it is found a little later
                await self._state.publish(key)
        return posted

    async def _put(self, key: str, body: bytes, deadline: float) -> bool:
        pause, longest = PAUSES
        while (entry := await self._state.get(key)) is not None and (box := _codec.decode(entry.value)) is not None:
            if box.has_room_for(body):
                value = _codec.encode(_Box(box.first, (*box.bodies, body)))
                with suppress(Conflict):  # somebody else has posted or taken something
                    await self._state.put(key, value, ttl=self._beat * MISSED_BEATS, if_version=entry.version)
                    return True
            if asyncio.get_running_loop().time() + pause > deadline:
                raise _full()
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
        return False


class _Inbox:
    """Of a stream that is here."""

    def __init__(self, state: StateBackend, key: str, feed: Feed, beat: float) -> None:
        self._state = state
        self._key = key
        self._feed = feed
        self._beat = beat
        self._next = 0  # the number of the message that is to be taken next
        self._taken: deque[bytes] = deque()  # and not fed yet
        self._feeding = asyncio.Lock()
        self._changing = asyncio.Lock()  # the key

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        if not self._state.shared:
            yield
            return
        await self._write(if_version=0)
        listener = self._state.listen([self._key])
        reading = asyncio.get_running_loop().create_task(self._read(listener))
        try:
            yield
        finally:
            listener.close()
            reading.cancel()
            await asyncio.wait([reading])
            try:
                await self._state.delete(self._key)
            except StoreTrouble as failure:
                log.debug("an inbox stays until it expires: %s", failure.message)

    async def _read(self, listener: Listener) -> None:
        """A look from time to time finds what nobody could tell of."""
        while not listener.closed:
            await until_answered(self.feed, lambda: True)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._beat):
                    await listener.wait()

    async def feed(self, posted: bytes | None = None) -> bool:
        """What was posted elsewhere comes first. False if the stream does not take what was `posted` here."""
        async with self._feeding:
            await self._take()
            while self._taken:
                await self._feed(self._taken[0])
                self._taken.popleft()  # not before: who waits here may be cancelled, and the next one goes on
            return posted is None or await self._feed(posted)

    async def _take(self) -> None:
        if not self._state.shared:
            return
        async with self._changing:
            entry = await self._state.get(self._key)
            box = None if entry is None else _codec.decode(entry.value)
            if box is not None:
                new = box.bodies[self._next - box.first :]
                self._next += len(new)
                self._taken += new
            if box is None or box.bodies:
                with suppress(Conflict, NoRoom, StoreTrouble):  # the next one who takes sees to it
                    await self._write(if_version=0 if entry is None else entry.version)

    async def stay(self) -> None:
        if not self._state.shared:
            return
        try:
            async with self._changing:
                if not await self._state.touch(self._key, self._beat * MISSED_BEATS):
                    with suppress(Conflict):
                        await self._write(if_version=0)
        except (NoRoom, StoreTrouble) as failure:
            log.debug("a stream can't show that it is there: %s", failure.message)

    async def _write(self, if_version: int) -> None:
        """All that was posted has been taken."""
        value = _codec.encode(_Box(self._next))
        await self._state.put(self._key, value, ttl=self._beat * MISSED_BEATS, if_version=if_version)


def _key(id: str, owner: str | None) -> str:
    """Whoever is not the owner looks for another one."""
    named = b"" if owner is None else b"=" + owner.encode("utf-8", "surrogatepass")
    return f"sse/{id}/{sha256(named).hexdigest()}"


def _full() -> Busy:
    text = "This client has posted more than its stream can take, which it must read from; try again later"
    return Busy(text, http_status=503)
