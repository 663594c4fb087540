"""Runs blocking functions in daemon threads of our own, so that neither the loop nor the exit ever waits for them.

In: a function without arguments, and a label for the log. Out: its result or its exception, on the caller's loop.

Jobs stand in line. One thread at most is on its way to the line, and a thread that takes a job while others wait behind
it calls the next one before it begins: so a function that blocks delays nobody, and a row of short ones is done by one
thread, without waking another for each of them. In the same way a thread that takes one job after another leaves it to
the thread on its way to call the loop, and calls it only when the line is empty or when nobody is on the way.

A thread can't be stopped. When its caller is cancelled, the thread is given up: its place is free at once, what it
returns is dropped, and it ends when the function comes back. Such threads are counted, and bounded by `max_stuck`.
One that only waits for the loop (`wait_in_thread`) comes back at once, by `CallEnded`.

Jobs of one label hold at most `share` threads, those given up among them. Others of it wait beside the line, and are
refused while given-up ones hold all of the share.
"""

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable
from itertools import chain, count
from typing import Any, TypeVar

from dovetail.engine.thread_jobs import Job, Outcome, Returns, Worker
from dovetail.engine.thread_waits import (
    CallEnded,
    call_has_ended,
    is_for_thread,
    resting,
    wait_in_thread,
    waiting_thread,
)
from dovetail.errors import BUSY_SECONDS, Busy, SetupError, ToolBusy

__all__ = ["CallEnded", "ThreadPool", "call_has_ended", "is_for_thread", "resting", "wait_in_thread"]

T = TypeVar("T")

IDLE_SECONDS = 30.0
MAX_RESTING = 200  # threads that may wait for somebody outside besides those of the pool
# A function that watches for cancellation returns within this time; only one that does not is worth a line in the log.
GRACE_SECONDS = 1.0

logger = logging.getLogger("dovetail.threads")


class ThreadPool:
    """At most `max_threads` functions run at once, `share` of one label; others wait. `max_stuck` may be given up."""

    def __init__(self, max_threads: int = 40, max_stuck: int = 100, name: str = "dovetail", share: int = 10**9) -> None:
        if max_threads < 1 or max_stuck < 1:
            raise SetupError("max_threads and max_stuck must be at least 1")
        self._max_threads = max_threads
        self._max_stuck = max_stuck
        self._share = share
        self._name = name
        self._numbers = count(1)
        self._lock = threading.Lock()  # guards all that follows, and what a job says of its place in the pool
        self._line: deque[Job[Any]] = deque()
        self._held: dict[str, int] = {}  # of each label: its jobs in line, running and stuck
        self._beside: dict[str, deque[Job[Any]]] = {}  # those of labels that hold their share, not in line yet
        self._threads = 0  # running, idle and coming ones; stuck ones no longer count
        self._is_coming = False  # a thread is on its way to the line
        self._idle: list[Worker] = []  # the last one in is the first one out, so that the others may retire
        self._stuck: set[Job[Any]] = set()
        self._resting = 0  # threads that wait for somebody outside, and do not count
        self._closed = False
        self._returns: Returns | None = None  # to the loop that called last

    @property
    def stuck(self) -> int:
        """How many threads still run a function whose caller has gone."""
        return len(self._stuck)

    async def run(self, function: Callable[[], T], *, label: str) -> T:
        """Run `function` in a thread, with this task's context variables; `label` names it in the log."""
        loop = asyncio.get_running_loop()
        returns = self._returns
        if returns is None or returns.loop is not loop:
            returns = Returns(loop)
            self._return_to(returns)
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
        """End the idle threads now and the running ones when they are done; refuse those who wait. Never blocks."""
        with self._lock:
            self._closed = True
            self._threads -= len(self._idle)
            for worker in self._idle:
                worker.stays = False
                worker.bell.release()
            self._idle.clear()
            refused = self._drop_those_without_place()
            stuck = list(self._stuck)
        self._return_to(None)
        for job in refused:
            job.settle((None, _shutting_down(job)))
        for job in stuck:
            self._report_stuck(job)

    def rest(self, job: Job[Any]) -> None:
        """Its thread waits for somebody outside, maybe for long: another may take its place meanwhile."""
        with self._lock:
            job.rests += 1
            if not job.holds_place or self._resting >= MAX_RESTING:
                return
            self._leave_place(job)
            self._leave_share(job)
            job.is_resting = True
            self._resting += 1
            is_new = self._call_thread()
        if is_new:
            self._start_thread()

    def go_on(self, job: Job[Any]) -> None:
        """It runs again, unless it was given up; there may be more threads than wanted until one of them is done."""
        with self._lock:
            job.rests -= 1
            if job.rests or not job.is_resting:
                return
            job.is_resting = False
            self._resting -= 1
            if not job.finished:
                job.holds_share = True
                self._held[job.label] = self._held.get(job.label, 0) + 1
                job.holds_place = not job.given_up
                self._threads += job.holds_place

    # ── under the lock ──

    def _call_thread(self) -> bool:
        """Jobs in line need a thread that is on its way, if there is one to be had. Tells whether to start it."""
        if self._is_coming or not self._line:
            return False
        if self._idle:
            self._is_coming = True
            self._idle.pop().bell.release()
            return False
        self._is_coming = is_new = self._threads < self._max_threads
        self._threads += is_new
        return is_new

    def _next_for(self, worker: Worker) -> Job[Any] | None:
        """The job that this thread, which has a place, does now; else it is idle, or it leaves."""
        if self._threads <= self._max_threads:
            if self._line:
                job = self._line.popleft()
                job.worker = worker
                job.holds_place = True
                return job
            if not self._closed:
                self._idle.append(worker)
                return None
        self._threads -= 1  # there is one too many since it rested, or there will be no more jobs
        worker.stays = False
        return None

    def _join(self, job: Job[Any]) -> None:
        """It stands in line, or waits beside it until another of its label is done. Raises ToolBusy."""
        held = self._held.get(job.label, 0)
        if held < self._share:
            self._held[job.label] = held + 1
            job.holds_share = True
            self._line.append(job)
        elif self._is_used_up(job.label):
            raise self._refusal(job)
        else:
            self._beside.setdefault(job.label, deque()).append(job)

    def _leave_share(self, job: Job[Any]) -> None:
        """Its thread counts no more among those of its label, of which another may stand in line now."""
        if not job.holds_share:
            return
        job.holds_share = False
        held = self._held[job.label] = self._held[job.label] - 1
        if (beside := self._beside.get(job.label)) and held < self._share:
            self._join(beside.popleft())
        elif not held:
            del self._held[job.label]
            self._beside.pop(job.label, None)  # empty, if it is there

    def _is_used_up(self, label: str) -> bool:  # by those given up
        return sum(job.holds_share for job in self._stuck if job.label == label) >= self._share

    def _leave_place(self, job: Job[Any]) -> None:
        """Its thread counts no more."""
        if job.holds_place:
            job.holds_place = False
            self._threads -= 1

    def _drop_those_without_place(self) -> list[Job[Any]]:
        """Those who have to wait until others are done, so all but the first few."""
        running = self._threads - len(self._idle) - self._is_coming
        return self._drop_all_but(max(0, self._max_threads - running))

    def _drop_all_but(self, first: int) -> list[Job[Any]]:
        dropped = [*list(self._line)[first:], *chain.from_iterable(self._beside.values())]
        self._beside.clear()
        for job in dropped:
            if job.holds_share:
                self._line.pop()
            job.finished = True
            self._leave_share(job)
        return dropped

    # ── on the loop ──

    def _return_to(self, returns: Returns | None) -> None:
        """Outcomes for the loop that called before are no longer left to whoever comes next."""
        with self._lock:
            before, self._returns = self._returns, returns
        if before is not None:
            before.call_loop()

    def _place(self, job: Job[Any]) -> None:
        """Put the job in line, and see to it that a thread comes."""
        with self._lock:
            if self._closed:
                raise _shutting_down(job)
            if len(self._stuck) >= self._max_stuck:
                raise self._refusal(job)
            self._join(job)
            is_new = self._call_thread()
        if is_new:
            self._start_thread()

    def _give_up(self, job: Job[Any]) -> None:
        """The caller was cancelled: forget a job that waits, leave one that runs to itself."""
        job.stop_waiting()
        refused: list[Job[Any]] = []
        with self._lock:
            if job.finished or job.host is not None:
                return
            if job.worker is None:
                (self._line if job.holds_share else self._beside[job.label]).remove(job)
                self._leave_share(job)
                return
            job.is_stuck = True
            self._stuck.add(job)
            if len(self._stuck) >= self._max_stuck:
                refused = self._drop_those_without_place()
            elif self._is_used_up(job.label):
                refused = list(self._beside.pop(job.label, ()))
            self._leave_place(job)
            is_new = self._call_thread()
        job.returns.loop.call_later(GRACE_SECONDS, self._report_stuck, job)
        if is_new:
            self._start_thread()
        for other in refused:
            other.finished = True
            other.settle((None, self._refusal(other)))

    def _refusal(self, job: Job[Any]) -> Busy:
        """Too many were given up: of all, or of this one's label alone."""
        why = "earlier calls were given up but still hold their threads; try again"
        if (stuck := len(self._stuck)) >= self._max_stuck:
            return Busy(f"{job.label} can't run: {stuck} {why} later")
        return ToolBusy(f"The {job.label} is busy: {self._share} of its {why} in {BUSY_SECONDS} s.")

    def _report_stuck(self, job: Job[Any]) -> None:
        with self._lock:
            if job.reported or not job.is_stuck or job.worker is None:
                return
            job.reported = True
            stuck = len(self._stuck)
        logger.warning(
            "%s is stuck: its call has ended, but its thread %s still runs (%d of at most %d stuck threads)",
            job.label,
            job.worker.name,
            stuck,
            self._max_stuck,
        )

    # ── in any thread ──

    def _start_thread(self) -> None:
        """The one that is on its way. Not under the lock: this takes a while."""
        worker = Worker(f"{self._name}-{next(self._numbers)}")
        try:
            threading.Thread(target=self._serve, args=(worker,), name=worker.name, daemon=True).start()
        except RuntimeError:  # the system has no more threads to give: those that there are have to do
            with self._lock:
                self._is_coming = False
                self._threads -= 1
                refused = [] if self._threads else self._drop_all_but(0)
                if self._idle:  # since then; nobody called it, for this one was on its way
                    self._call_thread()
            self._call_loop()
            for job in refused:
                job.settle((None, Busy(f"{job.label} can't run: the system refuses to start another thread")))

    def _call_loop(self) -> None:
        """See to it that the loop comes for what is done."""
        if (returns := self._returns) is not None:
            returns.call_loop()

    # ── in the threads ──

    def _serve(self, worker: Worker) -> None:
        """The life of one thread: it is called, and does job after job until the line is empty."""
        while self._is_called(worker):
            job = self._begin(worker)
            while job is not None:
                job = self._go_on_after(job, job.perform(), worker)

    def _is_called(self, worker: Worker) -> bool:
        """Sleep until there is something to do. Tells whether there is."""
        if worker.stays and not worker.bell.acquire(timeout=IDLE_SECONDS):
            with self._lock:
                if worker in self._idle:
                    self._idle.remove(worker)
                    self._threads -= 1
                    return False
            worker.bell.acquire()  # it rang at the last moment
        return worker.stays

    def _begin(self, worker: Worker) -> Job[Any] | None:
        """The thread that was on its way is there. Somebody may rely on it to call the loop."""
        with self._lock:
            self._is_coming = False
            job = self._next_for(worker)
            is_new = self._call_thread()
        self._call_loop()
        if is_new:
            self._start_thread()
        return job

    def _go_on_after(self, job: Job[T], outcome: Outcome[T], worker: Worker) -> Job[Any] | None:
        """The job is done: its thread goes on with whoever waits longest, else it is idle, or leaves."""
        with self._lock:
            job.finished = True
            worker.stays = job.holds_place  # else another thread has its place
            job.holds_place = False
            self._leave_share(job)
            following = self._next_for(worker) if worker.stays else None
            if job.is_stuck:
                job.is_stuck = False
                self._stuck.remove(job)
            job.returns.add((job.future, outcome))  # only now: the caller's next call shall find this thread idle
            is_new = self._call_thread()
            another_calls = self._is_coming and following is not None and job.returns is self._returns
        if is_new:
            self._start_thread()
        if not another_calls:
            job.returns.call_loop()
        if job.reported:
            logger.warning("%s came back: its thread %s is no longer stuck", job.label, worker.name)
        return following


def _shutting_down(job: Job[Any]) -> Busy:
    return Busy(f"{job.label} can't run: the server is shutting down")
