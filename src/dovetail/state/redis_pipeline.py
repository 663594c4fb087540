"""Many commands at a time over one connection: what is asked in one turn of the event loop goes out together.

In: messages. Out: for each a future with the reply, in that order, or with what went wrong: `Lost` (nobody knows
whether it was done), `Unsent` (it was not) or a TimeoutError after `DEADLINE` seconds (it may still be done, so nobody
may ask again). One timer does for all of them. A reply that nobody waits for any more is thrown away. A pipeline that
left a command without an answer takes no more of them, and ends with the last one.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable

from dovetail.state.redis_resp import Refused, Replies, Reply

DEADLINE = 2.0  # seconds for a command, with the wait for a connection
GRACE_SECONDS = 0.1  # for reading what has come, if this process itself was held up
CLOSE_SECONDS = 0.5
MAX_ASKED = 2000  # commands without an answer, also those that nobody waits for any more
LARGE_BYTES = 64 * 1024  # of a message behind which others wait until it has gone out


class Lost(Exception):
    """The connection broke, or could not be made. Whether what was asked for has happened is not known."""


class Unsent(Lost):
    """It broke, or was full, before anything of this was sent."""


Answer = Reply | Refused | Lost | TimeoutError


class Pipeline(asyncio.Protocol):
    """A connection that stands. `writer` owns its transport, which is ours from now on."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer = writer  # which would close the transport if it were forgotten
        self._transport = writer.transport
        self._replies = Replies()
        self._unsent: list[bytes] = []
        self._asked: deque[tuple[asyncio.Future[Answer], float]] = deque()  # with the time when
        self._timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_full = False  # what is to go out
        self._closed = asyncio.Event()
        self.is_ending = False  # once everything was answered
        self.is_lost = False
        self._transport.set_protocol(self)

    @property
    def is_ready(self) -> bool:
        """Nothing speaks against asking at once."""
        return self._writable.is_set() and not self.is_ending and not self.is_lost

    def ask(self, message: bytes) -> asyncio.Future[Answer]:
        answer: asyncio.Future[Answer] = self._loop.create_future()
        if self.is_lost or len(self._asked) >= MAX_ASKED:
            answer.set_result(Unsent("it takes no more"))
            return answer
        if not self._unsent:
            # Not `call_soon`: timers come after what the event loop finds when it looks, as the end of the connection.
            self._loop.call_later(0, self._send)
        self._unsent.append(message)
        self._asked.append((answer, self._loop.time()))
        if self._timer is None:
            self._timer = self._loop.call_later(DEADLINE, self._look, False)
        if len(message) > LARGE_BYTES:
            self._writable.clear()
        return answer

    async def until_writable(self) -> None:
        while not self._writable.is_set():
            await self._writable.wait()

    def end(self) -> None:
        """Close it when everything was answered."""
        self.is_ending = True
        if not self._asked:
            self.drop("it was closed")

    def drop(self, reason: str) -> None:
        """Close it at once."""
        self._lose(reason)
        self._transport.abort()

    async def close(self) -> None:
        """Close it in good form, unless that takes long."""
        self._lose("it was closed")
        self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._closed.wait()
        except TimeoutError:
            self._transport.abort()

    # ── what the event loop calls ──

    def data_received(self, data: bytes) -> None:
        try:
            replies = self._replies.feed(data)
        except ValueError as failure:
            self.drop(f"it sent {failure}")
            return
        for reply in replies:
            if not self._asked:
                self.drop("it said what nobody had asked for")
                return
            answer, _ = self._asked.popleft()
            if not answer.done():
                answer.set_result(reply)
        if self.is_ending and not self._asked:
            self.drop("it was closed")

    def pause_writing(self) -> None:
        self._is_full = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self._is_full = False
        self._writable.set()

    def connection_lost(self, failure: Exception | None) -> None:
        self._lose(str(failure or "it closed the connection"))
        self._closed.set()

    # ── what we call later ──

    def _send(self) -> None:
        if self.is_lost or self._transport.is_closing():  # then we will soon be told, and nothing of this was sent
            return
        messages, self._unsent = self._unsent, []
        self._transport.write(b"".join(messages) if len(messages) > 1 else messages[0])
        if not self._is_full:
            self._writable.set()

    def _look(self, sure: bool) -> None:
        """Give up what has waited for too long; not at the first look, as its answer may lie there unread."""
        self._timer = None
        late = self._loop.time() - DEADLINE
        overdue = [answer for answer, _ in itertools.takewhile(lambda each: each[1] <= late, self._asked)]
        if overdue and sure:
            self.is_ending = True
            for answer in overdue:
                if not answer.done():
                    answer.set_result(TimeoutError("it does not answer"))
        if len(overdue) < len(self._asked) or (overdue and not sure):
            pause = GRACE_SECONDS if overdue else self._asked[0][1] - late
            self._timer = self._loop.call_later(pause, self._look, bool(overdue))
        elif overdue:
            self.drop("it does not answer")

    def _lose(self, reason: str) -> None:
        self.is_lost = True
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sent = len(self._asked) - len(self._unsent)
        for place, (answer, _) in enumerate(self._asked):
            if not answer.done():
                answer.set_result(Lost(reason) if place < sent else Unsent(reason))
        self._asked.clear()
        self._unsent.clear()


class Way:
    """A pipeline to the store, opened when it is needed, and another one when it is lost or ends."""

    def __init__(self, connect: Callable[[], Awaitable[asyncio.StreamWriter]]) -> None:
        self._connect = connect
        self._pipeline: Pipeline | None = None
        self._ending: list[Pipeline] = []
        self._opening = asyncio.Lock()
        self._is_closed = False

    def ready(self) -> Pipeline | None:
        pipeline = self._pipeline
        return pipeline if pipeline is not None and pipeline.is_ready else None

    async def open(self) -> Pipeline:
        """Raises Unsent if that fails."""
        async with self._opening:
            pipeline = self._pipeline
            if pipeline is None or pipeline.is_lost or pipeline.is_ending:
                self.leave()
                pipeline = self._pipeline = Pipeline(await self._connect())
            if self._is_closed:
                pipeline.drop("it was closed")
        await pipeline.until_writable()
        return pipeline

    def leave(self) -> None:
        """The next command takes a new pipeline."""
        if self._pipeline is not None:
            self._pipeline.end()
            self._ending = [pipeline for pipeline in (*self._ending, self._pipeline) if not pipeline.is_lost]
            self._pipeline = None

    async def close(self) -> None:
        self._is_closed = True
        for pipeline in self._ending if self._pipeline is None else (*self._ending, self._pipeline):
            await pipeline.close()
