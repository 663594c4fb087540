"""Daemon thread pool for blocking functions, for which neither the loop nor the process waits.

Jobs wait in a queue. At most one thread is on its way to the queue, and a thread that takes a job while others wait
wakes the next thread before it begins: a function that blocks delays no other, and one thread does many short jobs.

A thread can't be stopped. When its caller is cancelled, the job is abandoned: its slot is free at once, and its result
is dropped. A thread that only waits for the loop (`wait_in_thread`) is released at once, by `CallEnded`.
"""

import asyncio
import concurrent.futures
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from dovetail import engine as lazy
from dovetail.errors import BUSY_RETRY_AFTER, Busy, ToolBusy

T = TypeVar("T")

# These mean something to the loop or to the interpreter: in a thread they only mean that the function failed.
CONTROL_EXCEPTIONS = (StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt, asyncio.CancelledError)

logger = logging.getLogger("dovetail.threads")


class CallEnded(RuntimeError):
    """Raised in a thread that wants to wait for the loop although its call was cancelled or timed out."""

    def __init__(self) -> None:
        super().__init__("this call was cancelled or has timed out: there is nothing to wait for any more")


class ResultQueue(Struct, eq=False):
    """Results of jobs on their way to one loop, which is woken once for all that are there when it comes."""

    loop: asyncio.AbstractEventLoop
    _results: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = field(default_factory=deque)
    _is_woken: bool = False  # and has not come yet

    def add(self, future: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
        """Add a result; may be called from any thread."""
        self._results.append((future, result, failure))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed, and no caller waits any more
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_woken = False  # first: a result that arrives from now on may be missed by this round
        while self._results:
            future, result, failure = self._results.popleft()
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
    results: ResultQueue
    must_run: bool = False  # however many are stuck
    thread: threading.Thread | None = None  # None while the job is queued
    host: "WaitingThread | None" = None  # runs it instead of the pool
    waits_for: "concurrent.futures.Future[Any] | None" = None  # work on the loop
    holds_slot: bool = False  # of the pool
    holds_share: bool = False  # of the threads that its label may hold
    client_waits: int = 0  # waits for a client that are pending
    has_lent_slot: bool = False  # while it waits for a client
    finished: bool = False
    abandoned: bool = False
    reported: bool = False  # as stuck

    def perform(self) -> tuple[T | None, BaseException | None]:
        """Run the function in this thread; gives its result or its exception."""
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

    def deliver(self, result: T | None, failure: BaseException | None) -> None:
        self.results.add(self.future, result, failure)


class _ThisThread(threading.local):
    job: Job[Any] | None = None  # the innermost one, if it performs one while another waits for the loop


this_thread = _ThisThread()


class ThreadPool:
    """At most `max_threads` functions run at once, `share` of one label; `max_waiting` more may wait for a client.

    At most `max_stuck` jobs may be abandoned; each has `grace` seconds to end before the log names it.
    """

    def __init__(
        self, max_threads: int = 40, max_stuck: int = 100, name: str = "dovetail", share: int = 10**9,
        *, idle: float = 30.0, grace: float = 1.0, max_waiting: int = 200,
    ) -> None:  # fmt: skip
        self._max_threads = max_threads
        self._max_stuck = max_stuck
        self._share = share
        self._name = name
        self._idle_seconds = idle
        self._grace = grace
        self._max_waiting = max_waiting
        self._numbers = count(1)
        self._lock = threading.Lock()  # guards all that follows, and the slots and shares of jobs
        self._queue: deque[Job[Any]] = deque()
        self._running = 0  # jobs that have a slot
        self._held: dict[str, int] = {}  # threads that the jobs of each label hold
        self._idle: list[SimpleQueue[bool]] = []  # last in, first out, so that the others may end
        self._is_coming = False  # a thread is on its way to the queue
        self._stuck: set[Job[Any]] = set()
        self._waiting = 0  # jobs that wait for a client, and have no slot
        self._closed = False
        self._logged: dict[str, float] = {}  # when a job of a label was last said to be stuck
        self.on_stuck: Callable[[str], None] = lambda _: None  # called with the label, on the loop
        self._results: ResultQueue | None = None  # of the loop that called last

    @property
    def stuck(self) -> int:
        """The number of threads that still run an abandoned job."""
        return len(self._stuck)

    async def run(self, function: Callable[[], T], *, label: str, must_run: bool = False) -> T:
        """Run `function` in a thread, with this task's context variables; `label` names it in the log."""
        loop = asyncio.get_running_loop()
        if (results := self._results) is None or results.loop is not loop:
            results = self._results = ResultQueue(loop)
        job: Job[T] = Job(self, function, label, contextvars.copy_context(), loop.create_future(), results, must_run)
        waiting = waiting_thread.get()
        try:
            if waiting is None or not waiting.accept(job):
                self._enqueue(job)
            return await job.future
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        except Busy as refusal:
            if not job.thread and job.host is None:  # else the function has raised it
                refusal.without_thread = label
            raise
        finally:
            del job  # an exception's traceback holds this frame, and the job's future holds the exception

    def open(self) -> None:
        """Take calls again, after `close`. A new pool is open."""
        with self._lock:
            self._closed = False

    def close(self) -> None:
        """End the idle threads now and the running ones when they are done; refuse queued jobs. Never blocks."""
        with self._lock:
            self._closed = True
            for wakeups in self._idle:
                wakeups.put(False)
            self._idle.clear()
            refused, stuck = list(self._queue), list(self._stuck)
            self._queue.clear()
        for job in refused:
            job.deliver(None, _shutting_down(job))
        for job in stuck:
            self._report_stuck(job)

    def lend_slot(self, job: Job[Any]) -> None:
        """Give the slot to another job while this job's thread waits for a client, maybe for long."""
        with self._lock:
            job.client_waits += 1
            if job.holds_slot and self._waiting < self._max_waiting:
                self._count(job, slot=False, share=False)
                job.has_lent_slot = True
                self._waiting += 1
                self._wake_thread()

    def reclaim_slot(self, job: Job[Any]) -> None:
        """Take the slot back, unless the job was abandoned; for a while more than `max_threads` may run."""
        with self._lock:
            job.client_waits -= 1
            if job.client_waits or not job.has_lent_slot:
                return
            job.has_lent_slot = False
            self._waiting -= 1
            if not job.finished:
                self._count(job, slot=not job.abandoned, share=True)

    # ── under the lock ──

    def _next_job(self) -> Job[Any] | None:
        """The job that waits longest, of those whose label holds less than its share; None if no slot is free."""
        if self._running < self._max_threads:
            for job in self._queue:
                if job.must_run or self._held.get(job.label, 0) < self._share:
                    return job
        return None

    def _wake_thread(self) -> None:
        """Wake a thread if a queued job can run and none is on its way."""
        if self._is_coming or not self._queue or self._next_job() is None:
            return
        if self._idle:
            wakeups = self._idle.pop()
        else:
            wakeups, name = SimpleQueue(), f"{self._name}-{next(self._numbers)}"
            try:
                threading.Thread(target=self._serve, args=(wakeups,), name=name, daemon=True).start()
            except RuntimeError:  # the running threads may wait for others, and then no queued job would ever run
                while self._queue:
                    job = self._queue.popleft()
                    job.deliver(None, Busy(f"{job.label} can't run: the system refuses to start another thread"))
                return
        self._is_coming = True
        wakeups.put(True)

    def _take(self, wakeups: "SimpleQueue[bool]") -> Job[Any] | None:
        """The next job of this thread; without one it is idle."""
        job = self._next_job()
        if job is not None:
            self._queue.remove(job)
            job.thread = threading.current_thread()
            self._count(job, slot=True, share=True)
        elif self._closed:
            wakeups.put(False)
        else:
            self._idle.append(wakeups)
        self._wake_thread()
        return job

    def _count(self, job: Job[Any], *, slot: bool, share: bool) -> None:
        """Set whether the job's thread counts in the pool (`slot`), and among those of its label (`share`)."""
        self._running += slot - job.holds_slot
        held = self._held.pop(job.label, 0) + share - job.holds_share
        if held:
            self._held[job.label] = held
        job.holds_slot, job.holds_share = slot, share

    def _refusal(self, job: Job[Any]) -> Busy | None:
        """The error to raise if too many jobs are stuck, of all or of this one's label; else None."""
        if job.must_run:
            return None
        label = job.label
        why = "earlier calls were given up but still hold their threads; try again"
        if (stuck := len(self._stuck)) >= self._max_stuck:
            return Busy(f"{label} can't run: {stuck} {why} later")
        if stuck >= self._share <= sum(each.holds_share for each in self._stuck if each.label == label):
            return ToolBusy(f"The {label} is busy: {self._share} of its {why} in {BUSY_RETRY_AFTER} s.")
        return None

    # ── on the loop ──

    def _enqueue(self, job: Job[Any]) -> None:
        with self._lock:
            if self._closed:
                raise _shutting_down(job)
            if self._stuck and (refusal := self._refusal(job)) is not None:
                raise refusal
            self._queue.append(job)
            self._wake_thread()

    def _abandon(self, job: Job[Any]) -> None:
        """The caller was cancelled: remove a queued job, let a running one run on."""
        job.abandoned = True
        if (work := job.waits_for) is not None:
            work.cancel()
        with self._lock:
            if job.finished or job.host is not None:
                return
            if not job.thread:
                with suppress(ValueError):  # it was refused already
                    self._queue.remove(job)
                return
            self._stuck.add(job)
            self._count(job, slot=False, share=job.holds_share)
            refused = [(each, refusal) for each in self._queue if (refusal := self._refusal(each)) is not None]
            for each, _ in refused:
                self._queue.remove(each)
            self._wake_thread()
        job.results.loop.call_later(self._grace, self._report_stuck, job)
        for each, refusal in refused:
            each.deliver(None, refusal)

    def _report_stuck(self, job: Job[Any]) -> None:
        with self._lock:
            if job.reported or job.thread is None or job not in self._stuck:
                return
            of = f"{len(self._stuck)} of at most {self._max_stuck} stuck threads"
            place = lazy.watchdog.place_of_thread(job.thread.ident)  # before it can do another job
            job.reported = lazy.watchdog.is_due(self._logged, job.label)
        self.on_stuck(job.label)
        if job.reported:
            text = "%s is stuck: its call has ended, but its thread %s still runs, at %s (%s)"
            logger.warning(text, job.label, job.thread.name, place, of)

    # ── in the threads ──

    def _serve(self, wakeups: "SimpleQueue[bool]") -> None:
        """Main function of a thread: when it is woken, it does job after job until none can run."""
        while self._wait(wakeups):
            with self._lock:
                self._is_coming = False
                job = self._take(wakeups)
            while job is not None:
                job = self._finish(job, wakeups, *job.perform())

    def _wait(self, wakeups: "SimpleQueue[bool]") -> bool:
        """Whether this thread was woken for a job; False if it is to end."""
        try:
            return wakeups.get(timeout=self._idle_seconds)
        except Empty:
            with self._lock:
                if wakeups in self._idle:
                    self._idle.remove(wakeups)
                    return False
            return wakeups.get()  # it was woken at the last moment

    def _finish(
        self, job: Job[T], wakeups: "SimpleQueue[bool]", result: T | None, failure: BaseException | None
    ) -> Job[Any] | None:
        """Finish a job; returns the next one of this thread."""
        with self._lock:
            job.finished = True
            self._count(job, slot=False, share=False)
            self._stuck.discard(job)
            following = self._take(wakeups)
        job.deliver(result, failure)  # only now: the caller's next call shall find this thread idle
        if job.reported and job.thread is not None:
            logger.warning("%s has ended: its thread %s is no longer stuck", job.label, job.thread.name)
        return following


def _shutting_down(job: Job[Any]) -> Busy:
    return Busy(f"{job.label} can't run: the server is shutting down")


# ── threads that wait for the loop: `ctx.wait` and all that is built on it ──


class WaitingThread(Struct, eq=False):
    """A thread that waits for the loop, and runs the jobs that its work on the loop needs a thread for."""

    job: Job[Any] | None  # that it waits in; None in a thread that is not ours
    _jobs: "SimpleQueue[Job[Any] | None]" = field(default_factory=SimpleQueue)
    _waits: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)  # no job may follow the None that ends the queue

    def accept(self, job: Job[Any]) -> bool:
        """Whether this thread runs the job, which then holds no slot of the pool."""
        with self._lock:
            if self._waits:
                job.host = self
                self._jobs.put(job)
            return self._waits

    def serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not job.future.done():
                job.deliver(*job.perform())

    def dismiss(self, _: object) -> None:
        with self._lock:
            self._waits = False
            self._jobs.put(None)


waiting_thread: contextvars.ContextVar[WaitingThread | None] = contextvars.ContextVar("waiting", default=None)


def wait_in_thread(awaitable: Awaitable[T], loop: asyncio.AbstractEventLoop, *, to_the_end: bool = False) -> T:
    """Hand something awaitable to the loop and block this thread until it is done.

    If that work needs a thread it gets this one: threads that wait for other threads could fill the pool for good.
    When the call of this thread has ended, the work is cancelled and the waiting ends with `CallEnded`; not if it is
    to go on `to_the_end`.
    """
    job = None if to_the_end else this_thread.job  # None too in a thread that is not ours
    if job is not None and job.abandoned:
        if isinstance(awaitable, Coroutine):
            awaitable.close()  # else it would warn that it was never awaited
        raise CallEnded
    waiting = WaitingThread(job)
    token = waiting_thread.set(waiting)
    try:
        work = asyncio.run_coroutine_threadsafe(as_coroutine(awaitable), loop)
    finally:
        waiting_thread.reset(token)
    work.add_done_callback(waiting.dismiss)
    if job is not None:
        job.waits_for = work
        if job.abandoned:  # checked only now, so that a cancellation is not missed
            work.cancel()
    try:
        waiting.serve()
        return work.result()
    except concurrent.futures.CancelledError:
        if job is not None and job.abandoned:
            raise CallEnded from None
        raise
    finally:
        if job is not None:
            job.waits_for = None


async def as_coroutine(awaitable: Awaitable[T]) -> T:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as failure:  # which would end the loop, from a task of their own
        raise RuntimeError(f"raised {type(failure).__name__}") from failure


@contextmanager
def thread_slot_lent() -> Iterator[None]:
    """Lend the slot of the thread that waits for this code, while a client is asked. Use it on the loop."""
    waiting = waiting_thread.get()
    while waiting is not None and waiting.job is not None and waiting.job.host is not None:
        waiting = waiting.job.host  # it runs on the thread of another job, which waits too
    job = None if waiting is None else waiting.job
    if job is None:
        yield
        return
    job.pool.lend_slot(job)
    try:
        yield
    finally:
        job.pool.reclaim_slot(job)


def call_has_ended() -> bool:
    """Whether this thread works for a call that was cancelled or timed out."""
    return this_thread.job is not None and this_thread.job.abandoned
