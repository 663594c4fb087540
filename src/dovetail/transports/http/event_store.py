"""Event store of HTTP sessions: events of each stream, for clients that send `Last-Event-ID`.

The name of a stream begins with the id of its worker. Its last record is marked as the end, and holds the response.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dovetail.engine.workers import WorkerLease
from dovetail.errors import INTERNAL_ERROR, ProtocolError
from dovetail.protocol import jsonrpc
from dovetail.protocol.methods import RequestId
from dovetail.protocol.sse import EventId, encode_event, priming_event, unknown_event
from dovetail.state.base import Codec, Conflict, StateBackend, StoreFull, StoreUnavailable, retry_while_unavailable

if TYPE_CHECKING:
    from dovetail.transports.http.response import HttpResponse

MAX_STREAMS = 20_000  # in the memory of one process; a shared store has its own limits
MAX_EVENTS = 1000  # of one stream
MAX_BYTES = 4 * 1024 * 1024  # of one stream, so that a noisy one loses its own events, not those of others
WORKER_LOST = "The worker that served this call was lost; whether the call had an effect is not known"
RESPONSE_LOST = "This call has ended, but the server could not store its response for a client that resumes"
END = b"end "  # begins the last record of a stream; the response follows, if there is one

RUNNING_TTL = 7 * 86_400.0  # seconds after the last event of a stream that has not ended
RETRY_DELAY = 0.5  # seconds between two tries to write an event

log = logging.getLogger("dovetail.http")
T = TypeVar("T")
_request_ids: Codec[list[RequestId]] = Codec(list[RequestId], "request id")


class StreamState(Enum):
    NEW = auto()  # other workers do not know of it
    RUNNING = auto()
    ENDING = auto()  # the call has ended, but the end is not in the store
    ENDED = auto()  # the end is in the store, or was dropped for good
    REPLACED = auto()  # another worker took this one for lost, and has written an error as the end


NEXT = {
    StreamState.NEW: {StreamState.RUNNING, StreamState.ENDING, StreamState.REPLACED},
    StreamState.RUNNING: {StreamState.ENDING, StreamState.REPLACED},
    StreamState.ENDING: {StreamState.ENDED, StreamState.REPLACED},
}


class EventStore(msgspec.Struct, eq=False):
    """The event streams of all sessions; `running` are those that this worker writes."""

    state: StateBackend
    ttl: float  # of a stream that has ended
    lease: WorkerLease
    retry_seconds: float = 10.0  # that an event waits for a store that is unavailable
    max_streams: int = MAX_STREAMS
    running: "dict[str, EventStream]" = {}  # by the names of their logs, until their end is in the store
    _is_unavailable: bool = False  # the last event could not be stored: the next ones don't wait for the store
    _kept: deque[str] = msgspec.field(default_factory=deque)  # names, oldest first; some may have expired
    _ending: set[asyncio.Task[int | None]] = set()  # they write ends that the store did not take at once

    async def find(self, session_id: str, event_id: EventId) -> "EventStream | None":
        """The stream if this worker writes it. Raises if the session has no such event, or it was dropped."""
        name = log_name(session_id, event_id.stream)
        running = self.running.get(name)  # before the read, so that nothing is written between
        page = await self.state.read(name, 0, 0)
        has_last = page.last > 0 and (page.first <= page.last or event_id.number == page.last)
        has_rest = has_last or running is not None or await self.has_writer(name)
        if event_id.message or event_id.number > page.last or not has_rest:
            raise unknown_event()
        return running

    async def has_writer(self, name: str) -> bool:
        """Whether a worker has yet to write the end of a stream."""
        return self.state.shared and await self.state.get(requests_key(name)) is not None

    async def end_lost(self, name: str, last: int) -> None:
        """End the stream of a lost worker with an error, if `last` still is its last record: one worker wins."""
        entry = await self.state.get(requests_key(name))
        if entry is not None:  # otherwise it has ended
            record = END + _error(_request_ids.decode(entry.value) or [], WORKER_LOST)
            with suppress(Conflict):
                await self.state.append(name, record, keep=MAX_EVENTS, ttl=self.ttl, if_last=last)
                await self.state.delete(requests_key(name))

    async def write_with_retries(self, write: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Retry through a short outage; `write` must do no harm if it has succeeded before."""
        now = asyncio.get_running_loop().time
        until = now() + (0.0 if self._is_unavailable else self.retry_seconds)
        while True:
            try:
                written = await write(*arguments)
                self._is_unavailable = False
                return written
            except (StoreFull, StoreUnavailable) as failure:
                if isinstance(failure, StoreFull) or now() >= until:
                    if not self._is_unavailable:  # logged once for each outage
                        log.warning("events can't be stored for resuming clients: %s", failure.message)
                    self._is_unavailable = True
                    raise
            await asyncio.sleep(RETRY_DELAY)

    async def evict_oldest(self, name: str) -> None:
        """Count a new stream; if there are too many, drop the oldest one, unless that still runs."""
        self._kept.append(name)
        if len(self._kept) > self.max_streams:
            oldest = self._kept.popleft()
            if oldest in self.running:
                self._kept.append(oldest)
            else:
                await self.state.drop(oldest)

    def end_later(self, stream: "EventStream", response: bytes) -> None:
        """Retry until the end is in the store. If this worker stops before, it counts as lost."""
        task = asyncio.create_task(retry_while_unavailable(lambda: stream.write_end(response), lambda: True))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def stop(self) -> None:
        for task in self._ending:
            task.cancel()
        if self._ending:
            await asyncio.wait(self._ending)


class EventStream:
    """The events of one POST, and the HTTP response that sends them while its client is connected."""

    def __init__(
        self, store: EventStore, session_id: str, response: "HttpResponse", requests: Sequence[RequestId]
    ) -> None:
        self._store = store
        self._requests = requests
        self._lock = asyncio.Lock()  # events are sent in the order of their numbers
        self._last = 0  # the newest number that is known
        self._bytes = self._largest = 0  # of all records, and of the largest one
        self.response = response
        self.stream = f"{store.lease.id}{secrets.token_hex(8)}"
        self.name = log_name(session_id, self.stream)
        self.close_get_stream: Callable[[float | None], Awaitable[None]] | None = None  # if one has resumed it
        self.state = StreamState.NEW if store.state.shared else StreamState.RUNNING
        self.is_unfinished = True  # its call has not ended
        store.running[self.name] = self

    async def open(self, retry: int | None) -> None:
        """Start the HTTP response; with `retry` a priming event comes first, if all workers know of the stream."""
        async with self._lock:
            if not self.response.started and not self.response.ended:
                if self.state is StreamState.NEW:
                    with suppress(StoreFull, StoreUnavailable):  # the next event tries again
                        await self._store.write_with_retries(self._announce)
                is_known = retry is not None and self.state is StreamState.RUNNING
                await self.response.open(priming_event(f"{self.stream}.0", retry=retry) if is_known else b"")

    async def send(self, message: bytes, *, last: bool = False) -> bool:
        """Store an event and send it; without an id if it is not stored. False if the stream has ended."""
        async with self._lock:
            if not self.is_unfinished:
                return False
            number = None
            with suppress(StoreFull, StoreUnavailable):
                if last:
                    number = await self._end(message)
                else:
                    number = await self._store.write_with_retries(self.append, message, RUNNING_TTL)
            if self.state is StreamState.REPLACED:
                return False
            id = None if number is None else f"{self.stream}.{number}"
            await self.response.event(encode_event(message, id=id), last=last)
        return True

    async def end(self) -> None:
        """End the stream without a response, unless it has ended."""
        async with self._lock:
            if self.is_unfinished:
                await self._end(b"")

    def _become(self, state: StreamState) -> None:
        assert state in NEXT.get(self.state, ()), (self.state, state)
        self.state = state
        self.is_unfinished = state is StreamState.RUNNING
        if state not in NEXT:
            self._store.running.pop(self.name, None)

    async def _announce(self) -> None:
        ids = _request_ids.encode(list(self._requests))
        await self._store.state.put(requests_key(self.name), ids, ttl=RUNNING_TTL)
        self._become(StreamState.RUNNING)

    async def append(self, record: bytes, ttl: float) -> int | None:
        """Try once to append, or find the record of an earlier try. None if another worker has ended the stream."""
        state, size = self._store.state, len(record)
        if self.state is StreamState.NEW:
            await self._announce()
        while self.state is not StreamState.REPLACED:
            is_large = self._bytes + size > MAX_BYTES
            keep = max(1, min(MAX_EVENTS, MAX_BYTES // max(self._largest, size))) if is_large else MAX_EVENTS
            try:
                self._last = await state.append(self.name, record, keep=keep, ttl=ttl, if_last=self._last)
            except Conflict:
                found = (await state.read(self.name, self._last)).records
                if not found:
                    raise StoreFull("The server's state store has forgotten a stream") from None
                self._last = found[-1].id
                if found[-1].data != record:
                    if found[-1].data.startswith(END):
                        self._become(StreamState.REPLACED)
                    continue
            self._bytes += size
            self._largest = max(self._largest, size)
            if self._last == 1 and not state.shared:
                await self._store.evict_oldest(self.name)
            return self._last
        return None

    async def _end(self, response: bytes) -> int | None:
        self._become(StreamState.ENDING)
        try:
            return await self.write_end(response)
        except BaseException as failure:
            self._store.end_later(self, response)
            if not isinstance(failure, StoreUnavailable):
                raise
            return None

    async def write_end(self, response: bytes) -> int | None:
        """Write the end; returns the number of the last record, None if the store is full. Raises StoreUnavailable."""
        store, number = self._store, None
        try:
            number = await store.write_with_retries(self.append, END + response, store.ttl)
        except StoreFull:
            try:
                lost = END + _error(self._requests, RESPONSE_LOST)
                number = await store.write_with_retries(self.append, lost, store.ttl)
            except StoreFull:  # the client can resume nothing
                await store.state.drop(self.name)
        if store.state.shared:
            await store.state.delete(requests_key(self.name))
        if self.state is StreamState.ENDING:
            self._become(StreamState.ENDED)
            if number is None:
                await store.state.publish(self.name)
        return number


def log_name(session_id: str, stream: str) -> str:
    return f"events/{session_id}/{stream}"


def requests_key(name: str) -> str:
    """The key of the ids of a stream's requests; deleted when the stream has ended."""
    return f"stream-request/{name}"


def _error(ids: Sequence[RequestId], text: str) -> bytes:
    errors = [jsonrpc.error(id, ProtocolError(text, code=INTERNAL_ERROR)) for id in ids]
    return errors[0] if len(errors) == 1 else jsonrpc.batch(errors) if errors else b""
