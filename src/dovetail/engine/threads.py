"""Daemon threads for blocking functions: neither the loop nor the exit of the process ever waits for them.

Jobs stand in line. One thread at most is on its way to the line, and a thread that takes a job while others wait calls
the next one before it begins: a function that blocks delays no other, and a row of short ones is done by one thread.

A thread can't be stopped. When its caller is cancelled, the thread is given up: its place is free at once, and what it
returns is dropped. One that only waits for the loop (`wait_in_thread`) comes back at once, by `CallEnded`.
"""

import asyncio
import concurrent.futures
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from msgspec import Struct

from dovetail.errors import BUSY_RETRY_AFTER, Busy, ToolBusy

T = TypeVar("T")

# These mean something to the loop or to the interpreter: from a thread they are no more than a function that failed.
CONTROL_EXCEPTIONS = (StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt, asyncio.CancelledError)

logger = logging.getLogger("dovetail.threads")


class CallEnded(RuntimeError):
    """Raised in a thread that wants to wait for the loop: its call was cancelled or timed out, nobody needs it."""

    def __init__(self) -> None:
        super().__init__("this call was cancelled or has timed out: there is nothing to wait for any more")


class Returns:
    """The outcomes on their way to one loop. However many there are when it comes for them, it is called once."""

    __slots__ = ("_arrived", "_is_called", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._arrived: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_called = False  # and has not come yet

    def add(self, future: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
        """From any thread."""
        self._arrived.append((future, result, failure))
        if not self._is_called:
            self._is_called = True
            try:
                self.loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                return  # the loop is closed, nobody waits any more

    def _deliver(self) -> None:
        self._is_called = False  # first: what arrives from now on may be too late for this round
        while self._arrived:
            future, result, failure = self._arrived.popleft()
            if future.done():
                continue  # cancelled in the meantime
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)


class Job(Struct, Generic[T], eq=False):
    """One function to run, and the caller's future."""

    pool: "ThreadPool"
    function: Callable[[], T]
    label: str
    context: contextvars.Context
    future: asyncio.Future[T]
    returns: Returns
    thread: str = ""  # its name; empty while the job waits
    host: "WaitingThread | None" = None  # runs it instead of the pool
    waits_for: "concurrent.futures.Future[Any] | None" = None  # work on the loop
    holds_place: bool = False  # among the threads of the pool
    holds_share: bool = False  # of those that its label may hold
    rests: int = 0  # waits for a client that are under way
    is_resting: bool = False  # and another may have its place
    finished: bool = False
    given_up: bool = False
    reported: bool = False

    def perform(self) -> tuple[T | None, BaseException | None]:
        """Its result or its exception, in this thread."""
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

    def settle(self, result: T | None, failure: BaseException | None) -> None:
        self.returns.add(self.future, result, failure)


class _ThisThread(threading.local):
    job: Job[Any] | None = None  # the innermost one, if it performs one while another waits for the loop


this_thread = _ThisThread()


class ThreadPool:
    """At most `max_threads` functions run at once, `share` of one label; others wait. `max_stuck` may be given up.

    A thread that is `idle` for so many seconds ends. One that is given up has `grace` seconds to notice it before the
    log names it. `max_resting` more threads may wait for an answer of a client.
    """

    def __init__(
        self, max_threads: int = 40, max_stuck: int = 100, name: str = "dovetail", share: int = 10**9,
        *, idle: float = 30.0, grace: float = 1.0, max_resting: int = 200,
    ) -> None:  # fmt: skip
        self._max_threads = max_threads
        self._max_stuck = max_stuck
        self._share = share
        self._name = name
        self._idle_seconds = idle
        self._grace = grace
        self._max_resting = max_resting
        self._numbers = count(1)
        self._lock = threading.Lock()  # guards all that follows, and what a job says of its place in the pool
        self._line: deque[Job[Any]] = deque()
        self._running = 0  # jobs that have a place
        self._held: dict[str, int] = {}  # threads that the jobs of each label hold
        self._idle: list[SimpleQueue[bool]] = []  # the last one in is the first one out, so that the others may end
        self._is_coming = False  # a thread is on its way to the line
        self._stuck: set[Job[Any]] = set()
        self._resting = 0  # jobs that wait for an answer of a client, and have no place
        self._closed = False
        self._returns: Returns | None = None  # to the loop that called last

    @property
    def stuck(self) -> int:
        """How many threads still run a function whose caller has gone."""
        return len(self._stuck)

    async def run(self, function: Callable[[], T], *, label: str) -> T:
        """Run `function` in a thread, with this task's context variables; `label` names it in the log."""
        loop = asyncio.get_running_loop()
        if (returns := self._returns) is None or returns.loop is not loop:
            returns = self._returns = Returns(loop)
        job: Job[T] = Job(self, function, label, contextvars.copy_context(), loop.create_future(), returns)
        waiting = waiting_thread.get()
        if waiting is None or not waiting.offer(job):
            self._place(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            self._give_up(job)
            raise
        finally:
            del job  # an exception's traceback holds this frame, and the job's future holds the exception

    def open(self) -> None:
        """Take calls again, after `close`. A new pool is open."""
        with self._lock:
            self._closed = False

    def close(self) -> None:
        """End the idle threads now and the running ones when they are done; refuse jobs that wait. Never blocks."""
        with self._lock:
            self._closed = True
            for calls in self._idle:
                calls.put(False)
            self._idle.clear()
            refused, stuck = list(self._line), list(self._stuck)
            self._line.clear()
        for job in refused:
            job.settle(None, _shutting_down(job))
        for job in stuck:
            self._report_stuck(job)

    def rest(self, job: Job[Any]) -> None:
        """Its thread waits for a client, maybe for long: another may take its place meanwhile."""
        with self._lock:
            job.rests += 1
            if job.holds_place and self._resting < self._max_resting:
                self._count(job, place=False, share=False)
                job.is_resting = True
                self._resting += 1
                self._call_thread()

    def go_on(self, job: Job[Any]) -> None:
        """It runs again, unless it was given up; more may run than wanted until one of them is done."""
        with self._lock:
            job.rests -= 1
            if job.rests or not job.is_resting:
                return
            job.is_resting = False
            self._resting -= 1
            if not job.finished:
                self._count(job, place=not job.given_up, share=True)

    # ── under the lock ──

    def _next_in_line(self) -> Job[Any] | None:
        """If there is a place, the job that waits longest, of those whose label holds less than its share."""
        if self._running < self._max_threads:
            for job in self._line:
                if self._held.get(job.label, 0) < self._share:
                    return job
        return None

    def _call_thread(self) -> None:
        """A job in line that can run needs a thread that is on its way."""
        if self._is_coming or not self._line or self._next_in_line() is None:
            return
        if self._idle:
            calls = self._idle.pop()
        else:
            calls, name = SimpleQueue(), f"{self._name}-{next(self._numbers)}"
            try:
                threading.Thread(target=self._serve, args=(calls,), name=name, daemon=True).start()
            except RuntimeError:  # those that there are may be waiting for others: no job in line is left to luck
                while self._line:
                    job = self._line.popleft()
                    job.settle(None, Busy(f"{job.label} can't run: the system refuses to start another thread"))
                return
        self._is_coming = True
        calls.put(True)

    def _take(self, calls: "SimpleQueue[bool]") -> Job[Any] | None:
        """The next job of this thread; without one it is idle."""
        job = self._next_in_line()
        if job is not None:
            self._line.remove(job)
            job.thread = threading.current_thread().name
            self._count(job, place=True, share=True)
        elif self._closed:
            calls.put(False)
        else:
            self._idle.append(calls)
        self._call_thread()
        return job

    def _count(self, job: Job[Any], *, place: bool, share: bool) -> None:
        """Whether its thread counts in the pool, and among those of its label."""
        self._running += place - job.holds_place
        held = self._held.pop(job.label, 0) + share - job.holds_share
        if held:
            self._held[job.label] = held
        job.holds_place, job.holds_share = place, share

    def _refusal(self, label: str) -> Busy | None:
        """If too many were given up: of all, or of this label alone."""
        why = "earlier calls were given up but still hold their threads; try again"
        if (stuck := len(self._stuck)) >= self._max_stuck:
            return Busy(f"{label} can't run: {stuck} {why} later")
        if stuck >= self._share <= sum(job.holds_share for job in self._stuck if job.label == label):
            return ToolBusy(f"The {label} is busy: {self._share} of its {why} in {BUSY_RETRY_AFTER} s.")
        return None

    # ── on the loop ──

    def _place(self, job: Job[Any]) -> None:
        """Put the job in line, and see to it that a thread comes."""
        with self._lock:
            if self._closed:
                raise _shutting_down(job)
            if self._stuck and (refusal := self._refusal(job.label)) is not None:
                raise refusal
            self._line.append(job)
            self._call_thread()

    def _give_up(self, job: Job[Any]) -> None:
        """The caller was cancelled: forget a job that waits, leave one that runs to itself."""
        job.given_up = True
        if (work := job.waits_for) is not None:
            work.cancel()
        with self._lock:
            if job.finished or job.host is not None:
                return
            if not job.thread:
                with suppress(ValueError):  # it was refused already
                    self._line.remove(job)
                return
            self._stuck.add(job)
            self._count(job, place=False, share=job.holds_share)
            refused = [(each, refusal) for each in self._line if (refusal := self._refusal(each.label)) is not None]
            for each, _ in refused:
                self._line.remove(each)
            self._call_thread()
        job.returns.loop.call_later(self._grace, self._report_stuck, job)
        for each, refusal in refused:
            each.settle(None, refusal)

    def _report_stuck(self, job: Job[Any]) -> None:
        with self._lock:
            if job.reported or job not in self._stuck:
                return
            job.reported = True
            of = f"{len(self._stuck)} of at most {self._max_stuck} stuck threads"
        text = "%s is stuck: its call has ended, but its thread %s still runs (%s)"
        logger.warning(text, job.label, job.thread, of)

    # ── in the threads ──

    def _serve(self, calls: "SimpleQueue[bool]") -> None:
        """The life of one thread: when it is called, it does job after job until none can run."""
        while self._is_called(calls):
            with self._lock:
                self._is_coming = False
                job = self._take(calls)
            while job is not None:
                job = self._finish(job, calls, *job.perform())

    def _is_called(self, calls: "SimpleQueue[bool]") -> bool:
        """Sleep until there is something to do. Tells whether there is."""
        try:
            return calls.get(timeout=self._idle_seconds)
        except Empty:
            with self._lock:
                if calls in self._idle:
                    self._idle.remove(calls)
                    return False
            return calls.get()  # it was called at the last moment

    def _finish(
        self, job: Job[T], calls: "SimpleQueue[bool]", result: T | None, failure: BaseException | None
    ) -> Job[Any] | None:
        """The job is done: its thread goes on with the next one, else it is idle."""
        with self._lock:
            job.finished = True
            self._count(job, place=False, share=False)
            self._stuck.discard(job)
            following = self._take(calls)
        job.settle(result, failure)  # only now: the caller's next call shall find this thread idle
        if job.reported:
            logger.warning("%s came back: its thread %s is no longer stuck", job.label, job.thread)
        return following


def _shutting_down(job: Job[Any]) -> Busy:
    return Busy(f"{job.label} can't run: the server is shutting down")


# ── threads that wait for the loop: `ctx.wait` and all that is built on it ──


class WaitingThread:
    """A thread that waits for the loop, and runs what the loop needs a thread for on its behalf."""

    __slots__ = ("_inbox", "_lock", "_waits", "job")

    def __init__(self, job: Job[Any] | None) -> None:
        self.job = job  # that it waits in; None in a thread that is not ours
        self._inbox: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._waits = True
        self._lock = threading.Lock()  # nothing may be put behind the end

    def offer(self, job: Job[Any]) -> bool:
        """Whether it takes the job, which holds no place in the pool then."""
        with self._lock:
            if self._waits:
                job.host = self
                self._inbox.put(job)
            return self._waits

    def serve(self) -> None:
        while (job := self._inbox.get()) is not None:
            if not job.future.done():
                job.settle(*job.perform())

    def dismiss(self, _: object) -> None:
        with self._lock:
            self._waits = False
            self._inbox.put(None)


waiting_thread: contextvars.ContextVar[WaitingThread | None] = contextvars.ContextVar("waiting", default=None)


def wait_in_thread(start: Callable[[], concurrent.futures.Future[T]]) -> T:
    """Start work on the loop and block this worker thread until it is done.

    If that work needs a thread it gets this one: threads that wait for other threads could fill the pool for good.
    When the caller of this thread's function is gone, the work is cancelled and the waiting ends with `CallEnded`.
    """
    job = this_thread.job  # None in a thread that is not ours
    if job is not None and job.given_up:
        raise CallEnded
    waiting = WaitingThread(job)
    token = waiting_thread.set(waiting)
    try:
        work = start()
    finally:
        waiting_thread.reset(token)
    work.add_done_callback(waiting.dismiss)
    if job is None:
        waiting.serve()
        return work.result()
    job.waits_for = work
    if job.given_up:  # asked only now, so that this is not missed
        work.cancel()
    try:
        waiting.serve()
        return work.result()
    except concurrent.futures.CancelledError:
        if job.given_up:
            raise CallEnded from None
        raise
    finally:
        job.waits_for = None


@contextmanager
def resting() -> Iterator[None]:
    """On the loop, around a wait for a client: the thread that waits for this takes no place in its pool."""
    waiting = waiting_thread.get()
    while waiting is not None and waiting.job is not None and waiting.job.host is not None:
        waiting = waiting.job.host  # it runs on the thread of another job, which waits too
    job = None if waiting is None else waiting.job
    if job is None:
        yield
        return
    job.pool.rest(job)
    try:
        yield
    finally:
        job.pool.go_on(job)


def call_has_ended() -> bool:
    """Tell whether this thread works for a call that nobody awaits any more."""
    job = this_thread.job
    return job is not None and job.given_up
