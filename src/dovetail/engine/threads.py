"""Runs blocking functions in daemon threads of our own, so that neither the loop nor the exit ever waits for them.

In: a function without arguments, and a label for the log. Out: its result or its exception, on the caller's loop.

A thread can't be stopped. When its caller is cancelled, the thread is given up: its slot is free at once, what it
returns is dropped, and it ends when the function comes back. Such threads are counted, and bounded by `max_stuck`.
One that only waits for the loop (`wait_in_thread`) comes back at once, by `CallEnded`.
"""

import asyncio
import concurrent.futures
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from dovetail.errors import Busy, SetupError

T = TypeVar("T")

IDLE_SECONDS = 30.0
MAX_RESTING = 200  # threads that may wait for somebody outside besides those of the pool
# A function that watches for cancellation returns within this time; only one that does not is worth a line in the log.
GRACE_SECONDS = 1.0
# These mean something to the loop or to the interpreter: from a thread they are no more than a function that failed.
CONTROL_EXCEPTIONS = (StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt, asyncio.CancelledError)

logger = logging.getLogger("dovetail.threads")


class CallEnded(RuntimeError):
    """Raised in a thread that wants to wait for the loop: its call was cancelled or timed out, nobody needs it."""

    def __init__(self) -> None:
        super().__init__("this call was cancelled or has timed out: there is nothing to wait for any more")


class ThreadPool:
    """At most `max_threads` functions run at once, the others wait in order; at most `max_stuck` may be given up."""

    def __init__(self, max_threads: int = 40, max_stuck: int = 100, name: str = "dovetail") -> None:
        if max_threads < 1 or max_stuck < 1:
            raise SetupError("max_threads and max_stuck must be at least 1")
        self._max_threads = max_threads
        self._max_stuck = max_stuck
        self._names = (f"{name}-{number}" for number in count(1))
        self._lock = threading.Lock()  # guards all that follows, and every job's `worker`, `finished` and `reported`
        self._threads = 0  # running and idle ones; stuck ones no longer count
        self._idle: list[_Worker] = []  # the last one in is the first one out, so that the others may retire
        self._waiting: deque[_Job[Any]] = deque()  # not empty only while every thread is running
        self._stuck: set[_Job[Any]] = set()
        self._resting = 0  # threads that wait for somebody outside, and do not count
        self._closed = False

    @property
    def stuck(self) -> int:
        """How many threads still run a function whose caller has gone."""
        return len(self._stuck)

    async def run(self, function: Callable[[], T], *, label: str) -> T:
        """Run `function` in a thread, with this task's context variables; `label` names it in the log."""
        job = _Job(self, function, label)
        waiting = _waiting_thread.get()
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
        """End the idle threads now and the running ones when they are done; refuse those who wait. Never blocks."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._threads -= len(idle)
            refused = self._take_all_waiting()
            stuck = list(self._stuck)
        for worker in idle:
            worker.inbox.put(None)
        for job in refused:
            job.settle(None, Busy(f"{job.label} can't run: the server is shutting down"))
        for job in stuck:
            self._report_stuck(job)

    def rest(self, job: "_Job[Any]") -> None:
        """Its thread waits for somebody outside, maybe for long: another may take its place meanwhile."""
        following: _Job[Any] | None = None
        with self._lock:
            job.rests += 1
            if not job.holds_place or self._resting >= MAX_RESTING:
                return
            self._leave_place(job)
            job.is_resting = True
            self._resting += 1
            if self._waiting and self._threads < self._max_threads and not self._closed:
                following = self._waiting.popleft()
                self._threads += 1
        if following is not None:
            self._start_thread(following)

    def go_on(self, job: "_Job[Any]") -> None:
        """It runs again, unless it was given up; there may be more threads than wanted until one of them is done."""
        with self._lock:
            job.rests -= 1
            if job.rests or not job.is_resting:
                return
            job.is_resting = False
            self._resting -= 1
            if not job.given_up and not job.finished:
                job.holds_place = True
                self._threads += 1

    def _leave_place(self, job: "_Job[Any]") -> None:
        """Its thread counts no more; under the lock."""
        if job.holds_place:
            job.holds_place = False
            self._threads -= 1

    # ── on the loop ──

    def _place(self, job: "_Job[Any]") -> None:
        """Give the job to an idle thread, to a new one, or let it wait."""
        with self._lock:
            if self._closed:
                raise Busy(f"{job.label} can't run: the server is shutting down")
            if len(self._stuck) >= self._max_stuck:
                raise self._too_many_stuck(job)
            if self._idle:
                self._idle.pop().take(job)
                return
            if self._threads >= self._max_threads:
                self._waiting.append(job)
                return
            self._threads += 1
        self._start_thread(job)

    def _start_thread(self, job: "_Job[Any]") -> None:
        worker = _Worker()
        worker.take(job)
        try:
            threading.Thread(target=self._serve, args=(worker,), name=next(self._names), daemon=True).start()
        except RuntimeError:  # the system has no more threads to give
            with self._lock:
                self._leave_place(job)
                job.finished = True
                refused = [job] if self._threads else [job, *self._take_all_waiting()]
            for job in refused:
                job.settle(None, Busy(f"{job.label} can't run: the system refuses to start another thread"))

    def _give_up(self, job: "_Job[Any]") -> None:
        """The caller was cancelled: forget a job that waits, leave one that runs to itself."""
        job.stop_waiting()
        following: _Job[Any] | None = None
        refused: list[_Job[Any]] = []
        with self._lock:
            if job.finished or isinstance(job.worker, _WaitingThread):
                return
            if job.worker is None:
                self._waiting.remove(job)
                return
            self._stuck.add(job)
            self._leave_place(job)
            if len(self._stuck) >= self._max_stuck:
                refused = self._take_all_waiting()
            elif self._waiting and self._threads < self._max_threads:
                following = self._waiting.popleft()
                self._threads += 1
        job.loop.call_later(GRACE_SECONDS, self._report_stuck, job)
        if following is not None:
            self._start_thread(following)
        for other in refused:
            other.settle(None, self._too_many_stuck(other))

    def _take_all_waiting(self) -> "list[_Job[Any]]":
        jobs = list(self._waiting)
        self._waiting.clear()
        for job in jobs:
            job.finished = True
        return jobs

    def _too_many_stuck(self, job: "_Job[Any]") -> Busy:
        return Busy(
            f"{job.label} can't run: {len(self._stuck)} earlier calls were given up but still hold their threads; "
            "try again later"
        )

    def _report_stuck(self, job: "_Job[Any]") -> None:
        with self._lock:
            if job.reported or job not in self._stuck:
                return
            job.reported = True
            stuck = len(self._stuck)
        logger.warning(
            "%s is stuck: its call has ended, but its thread %s still runs (%d of at most %d stuck threads)",
            job.label,
            job.thread_name,
            stuck,
            self._max_stuck,
        )

    # ── in the threads ──

    def _serve(self, worker: "_Worker") -> None:
        """The life of one thread: a job, then the next one."""
        goes_on = True
        while goes_on and (job := self._next_job(worker)) is not None:
            job.thread_name = threading.current_thread().name
            result, error = job.perform()
            goes_on = self._release(worker, job)  # first, so that the caller's next call finds this thread idle
            job.settle(result, error)
            del job, result, error  # an idle thread keeps nothing alive

    def _next_job(self, worker: "_Worker") -> "_Job[Any] | None":
        try:
            return worker.inbox.get(timeout=IDLE_SECONDS)
        except Empty:
            pass
        with self._lock:
            if worker in self._idle:
                self._idle.remove(worker)
                self._threads -= 1
                return None
        return worker.inbox.get()  # something arrived at the last moment

    def _release(self, worker: "_Worker", job: "_Job[Any]") -> bool:
        """The job is done. Tells whether its thread goes on: with whoever waits longest, else idle."""
        with self._lock:
            job.finished = True
            if job not in self._stuck:
                if not job.holds_place:
                    return False
                if self._threads > self._max_threads or (self._closed and not self._waiting):
                    self._leave_place(job)  # there is one too many since it rested, or there will be no more jobs
                    return False
                job.holds_place = False  # the thread keeps it
                if self._waiting:
                    worker.take(self._waiting.popleft())
                else:
                    self._idle.append(worker)
                return True
            self._stuck.remove(job)
        if job.reported:
            logger.warning("%s came back: its thread %s is no longer stuck", job.label, job.thread_name)
        return False


class _Worker:
    """One thread, seen from outside: the place where it finds its next job, or None to end."""

    __slots__ = ("inbox",)

    def __init__(self) -> None:
        self.inbox: SimpleQueue[_Job[Any] | None] = SimpleQueue()

    def take(self, job: "_Job[Any]") -> None:
        job.worker = self
        job.holds_place = True
        self.inbox.put(job)


class _WaitingThread(_Worker):
    """A worker thread that waits for the loop, and runs what the loop needs a thread for on its behalf."""

    __slots__ = ("_lock", "_waits", "job")

    def __init__(self, job: "_Job[Any] | None") -> None:
        super().__init__()
        self.job = job  # that it waits in; None in a thread that is not ours
        self._waits = True
        self._lock = threading.Lock()  # nothing may be put behind the end

    def offer(self, job: "_Job[Any]") -> bool:
        """Whether it takes the job, which holds no place in the pool then."""
        with self._lock:
            if self._waits:
                job.worker = self
                self.inbox.put(job)
            return self._waits

    def serve(self) -> None:
        while (job := self.inbox.get()) is not None:
            if not job.future.done():
                job.thread_name = threading.current_thread().name
                job.settle(*job.perform())

    def dismiss(self, _: object) -> None:
        with self._lock:
            self._waits = False
            self.inbox.put(None)


_waiting_thread: contextvars.ContextVar[_WaitingThread | None] = contextvars.ContextVar("waiting", default=None)


def wait_in_thread(start: Callable[[], concurrent.futures.Future[T]]) -> T:
    """Start work on the loop and block this worker thread until it is done.

    If that work needs a thread it gets this one: threads that wait for other threads could fill the pool for good.
    When the caller of this thread's function is gone, the work is cancelled and the waiting ends with `CallEnded`.
    """
    job = _this_thread.job
    if job is None:  # a thread that is not ours
        return _wait(start, None)
    if job.given_up:
        raise CallEnded
    try:
        return _wait(start, job)
    except concurrent.futures.CancelledError:
        if job.given_up:
            raise CallEnded from None
        raise
    finally:
        job.waits_for = None


def _wait(start: Callable[[], concurrent.futures.Future[T]], job: "_Job[Any] | None") -> T:
    waiting = _WaitingThread(job)
    token = _waiting_thread.set(waiting)
    try:
        work = start()
    finally:
        _waiting_thread.reset(token)
    work.add_done_callback(waiting.dismiss)
    if job is not None:
        job.waits_for = work
        if job.given_up:  # asked only now, so that this is not missed
            work.cancel()
    waiting.serve()
    return work.result()


@contextmanager
def resting() -> Iterator[None]:
    """On the loop, around a wait for somebody outside: the thread that waits for this takes no place in its pool."""
    waiting = _waiting_thread.get()
    while waiting is not None and waiting.job is not None and isinstance(waiting.job.worker, _WaitingThread):
        waiting = waiting.job.worker  # it runs on the thread of another job, which waits too
    job = None if waiting is None else waiting.job
    if job is None:
        yield
        return
    job.pool.rest(job)
    try:
        yield
    finally:
        job.pool.go_on(job)


def is_for_thread() -> bool:
    """On the loop: tell whether a thread waits for what runs here."""
    return _waiting_thread.get() is not None


def call_has_ended() -> bool:
    """Tell whether this thread works for a call that nobody awaits any more."""
    job = _this_thread.job
    return job is not None and job.given_up


class _ThisThread(threading.local):
    """The job that a thread performs; the innermost one, if it performs one while another waits for the loop."""

    job: "_Job[Any] | None" = None


_this_thread = _ThisThread()


class _Job(Generic[T]):
    """One function to run, and the caller's future."""

    __slots__ = (
        "context",
        "finished",
        "function",
        "future",
        "given_up",
        "holds_place",
        "is_resting",
        "label",
        "loop",
        "pool",
        "reported",
        "rests",
        "thread_name",
        "waits_for",
        "worker",
    )

    def __init__(self, pool: ThreadPool, function: Callable[[], T], label: str) -> None:
        self.pool = pool
        self.function = function
        self.label = label
        self.context = contextvars.copy_context()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self.worker: _Worker | None = None  # None while it waits
        self.thread_name = "(not yet running)"
        self.waits_for: concurrent.futures.Future[Any] | None = None  # work on the loop
        self.holds_place = False  # among the threads of the pool
        self.rests = 0  # how many waits for somebody outside are under way
        self.is_resting = False  # and another may have its place
        self.finished = False
        self.given_up = False
        self.reported = False

    def stop_waiting(self) -> None:
        """The caller is gone: what its thread waits for on the loop, now or later, is not needed."""
        self.given_up = True
        if (work := self.waits_for) is not None:
            work.cancel()

    def perform(self) -> tuple[T | None, BaseException | None]:
        outer, _this_thread.job = _this_thread.job, self
        try:
            return self.context.run(self.function), None
        except CONTROL_EXCEPTIONS as error:
            failure = RuntimeError(f"{self.label} raised {type(error).__name__}")
            failure.__cause__ = error
            return None, failure
        except BaseException as error:
            return None, error
        finally:
            _this_thread.job = outer
            del self  # breaks the cycle of exception, traceback, this frame, future

    def settle(self, result: T | None, error: BaseException | None) -> None:
        """Hand the outcome to the caller's loop, from any thread."""
        try:
            self.loop.call_soon_threadsafe(_resolve, self.future, result, error)
        except RuntimeError:
            return  # the loop is closed, nobody waits any more


def _resolve(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return  # cancelled in the meantime
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
