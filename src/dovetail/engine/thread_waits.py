"""Threads that wait for the loop: `ctx.wait` and all that is built on it.

In: work that a function in a worker thread starts on the loop. Out: what comes of it, in that thread.
"""

import concurrent.futures
import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

from dovetail.engine.thread_jobs import Job, this_thread

T = TypeVar("T")


class CallEnded(RuntimeError):
    """Raised in a thread that wants to wait for the loop: its call was cancelled or timed out, nobody needs it."""

    def __init__(self) -> None:
        super().__init__("this call was cancelled or has timed out: there is nothing to wait for any more")


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
                job.settle(job.perform())

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
    job = this_thread.job
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


def _wait(start: Callable[[], concurrent.futures.Future[T]], job: Job[Any] | None) -> T:
    waiting = WaitingThread(job)
    token = waiting_thread.set(waiting)
    try:
        work = start()
    finally:
        waiting_thread.reset(token)
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


def is_for_thread() -> bool:
    """On the loop: tell whether a thread waits for what runs here."""
    return waiting_thread.get() is not None


def call_has_ended() -> bool:
    """Tell whether this thread works for a call that nobody awaits any more."""
    job = this_thread.job
    return job is not None and job.given_up
