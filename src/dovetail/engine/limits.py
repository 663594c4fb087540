"""Bounds on calls: how many at once, how many may wait, how long each may take.

`Limit` lets a number of calls in and keeps a bounded line for the others, first come, first served.
`with_timeout` awaits something for at most some seconds.
"""

import asyncio
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

from dovetail.errors import Busy, SetupError

T = TypeVar("T")


class Limit:
    """`async with limit:` holds one of `slots`; when they are taken, up to `queue` wait; the next is `Busy`."""

    __slots__ = ("_free", "_line", "_queue", "_slots", "_subject")

    def __init__(self, slots: int, queue: int, *, subject: str) -> None:
        if slots < 1:
            raise SetupError(f"{subject} can't have {slots} concurrent calls: allow at least 1")
        if queue < 0:
            raise SetupError(f"{subject} can't have a queue of {queue}: use 0 for no waiting")
        self._slots = slots
        self._queue = queue
        self._subject = subject
        self._free = slots  # more than 0 only while nobody waits
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def running(self) -> int:
        return self._slots - self._free

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def acquire(self) -> None:
        """Take a slot: without a turn of the loop if one is free, else in order of arrival."""
        if self._free:
            self._free -= 1
            return
        if len(self._line) >= self._queue:
            raise Busy(
                f"{self._subject} is busy: {self.running} calls running and {self.waiting} waiting; try again later"
            )
        await self._wait()

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                if turn in self._line:
                    self._line.remove(turn)
            else:
                self.release()  # the slot was ours already
            raise

    def release(self) -> None:
        """Give the slot to the one who waits longest, else put it back."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():  # cancelled, but its task has not run since
                turn.set_result(None)
                return
        self._free += 1

    __aenter__ = acquire

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class CallTimeout(TimeoutError):
    """The time given to `with_timeout` ran out; a `TimeoutError` of the awaited code itself is never this."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Timed out after {seconds:g} s")
        self.seconds = seconds


@types.coroutine
def with_timeout(work: Coroutine[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """Await `work` in this task; cancel it after `seconds` and raise `CallTimeout`.

    A cancellation from outside passes through as itself, also when it meets the expiry.
    """
    # The rules are those of `asyncio.timeout`. Stepping through `work` ourselves shows whether it ever waits: a call
    # that does not needs no timer, which is most of the cost.
    expiry: _Expiry | None = None
    step: Callable[[Any], Any] = work.send
    value: object = None
    try:
        while True:
            waited_for = step(value)
            if expiry is None:
                expiry = _Expiry(seconds)
            try:
                value = yield waited_for
                step = work.send
            except BaseException as error:
                value = error
                step = work.throw
    except StopIteration as end:
        result: T = end.value
        return result
    except asyncio.CancelledError as error:
        if expiry is not None and expiry.alone():
            raise CallTimeout(seconds) from error
        raise
    finally:
        value = None  # it may be an exception whose traceback holds this frame
        if expiry is not None:
            expiry.end()


class _Expiry:
    """Cancels the current task when the time is up, unless it ends before."""

    __slots__ = ("_earlier", "_fired", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("with_timeout works only in a task")
        self._task = task
        self._earlier = task.cancelling()
        self._fired = False
        self._timer = asyncio.get_running_loop().call_later(seconds, self._fire)

    def _fire(self) -> None:
        self._fired = True
        self._task.cancel()

    def alone(self) -> bool:
        """Tell whether a cancellation that just arrived is this one, and no other came with it."""
        return self._fired and self._task.cancelling() <= self._earlier + 1

    def end(self) -> None:
        self._timer.cancel()
        if self._fired:
            self._task.uncancel()
