"""One function that runs in a thread, and the way its outcome takes back to the loop of its caller.

In: a function without arguments. Out: its result or its exception, in a future of the loop.
"""

import asyncio
import concurrent.futures
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from dovetail.engine.thread_waits import WaitingThread
    from dovetail.engine.threads import ThreadPool

T = TypeVar("T")
Outcome: TypeAlias = tuple[T | None, BaseException | None]

# These mean something to the loop or to the interpreter: from a thread they are no more than a function that failed.
CONTROL_EXCEPTIONS = (StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt, asyncio.CancelledError)


class Returns:
    """The outcomes on their way to one loop. However many there are when it comes for them, it is called once."""

    __slots__ = ("_arrived", "_is_called", "add", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._arrived: deque[tuple[asyncio.Future[Any], Outcome[Any]]] = deque()
        self._is_called = False  # and has not come yet
        self.add = self._arrived.append  # from any thread; the loop does not know of it until it is called

    def call_loop(self) -> None:
        """From any thread: see to it that the loop comes, if there is anything to come for."""
        if self._is_called or not self._arrived:
            return
        self._is_called = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            return  # the loop is closed, nobody waits any more

    def _deliver(self) -> None:
        self._is_called = False  # first: what arrives from now on may be too late for this round
        while self._arrived:
            future, (result, error) = self._arrived.popleft()
            if future.done():
                continue  # cancelled in the meantime
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


class Worker:
    """One thread of a pool, seen from outside. It sleeps until its bell rings, which rings for a new one at once."""

    __slots__ = ("bell", "name", "stays")

    def __init__(self, name: str) -> None:
        self.name = name
        self.bell = threading.Lock()  # rung by releasing it
        self.stays = True


class Job(Struct, Generic[T], eq=False):
    """One function to run, and the caller's future."""

    pool: "ThreadPool"
    function: Callable[[], T]
    label: str
    context: contextvars.Context
    future: asyncio.Future[T]
    returns: Returns
    worker: Worker | None = None  # None while it waits
    host: "WaitingThread | None" = None  # runs it instead of the pool
    waits_for: concurrent.futures.Future[Any] | None = None  # work on the loop
    holds_place: bool = False  # among the threads of the pool
    holds_share: bool = False  # of those that its label may hold, in line already
    rests: int = 0  # how many waits for somebody outside are under way
    is_resting: bool = False  # and another may have its place
    finished: bool = False
    given_up: bool = False
    is_stuck: bool = False
    reported: bool = False

    def stop_waiting(self) -> None:
        """The caller is gone: what its thread waits for on the loop, now or later, is not needed."""
        self.given_up = True
        if (work := self.waits_for) is not None:
            work.cancel()

    def perform(self) -> Outcome[T]:
        outer, this_thread.job = this_thread.job, self
        try:
            return self.context.run(self.function), None
        except CONTROL_EXCEPTIONS as error:
            failure = RuntimeError(f"{self.label} raised {type(error).__name__}")
            failure.__cause__ = error
            return None, failure
        except BaseException as error:
            return None, error
        finally:
            this_thread.job = outer
            del self  # breaks the cycle of exception, traceback, this frame, future

    def settle(self, outcome: Outcome[T]) -> None:
        """Hand the outcome to the caller's loop at once, from any thread."""
        self.returns.add((self.future, outcome))
        self.returns.call_loop()


class _ThisThread(threading.local):
    """The job that a thread performs; the innermost one, if it performs one while another waits for the loop."""

    job: Job[Any] | None = None


this_thread = _ThisThread()
