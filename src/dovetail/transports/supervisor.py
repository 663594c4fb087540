"""`Supervisor`: forks worker processes that serve at the same sockets, and replaces those that end.

The parent runs no event loop, no thread and no code of the author. All workers watch one pipe that the parent holds
open, and end when it is closed. So they also notice if the parent is killed; and a worker that a service manager
signals as well does not take that for a second signal.
"""

import asyncio
import contextlib
import logging
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from dovetail.errors import SetupError
from dovetail.transports.process import print_line

if TYPE_CHECKING:
    from dovetail.engine.metrics import Metrics

NOT_STARTED = float("inf")
PID = struct.Struct("=q")  # written to a pipe by a worker that has started; so few bytes are written in one piece

RunWorker = Callable[[Callable[[], None], int], None]


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for replacing a worker that has ended. Times are in seconds."""

    min_uptime: float = 1.0  # a worker that ends sooner has failed
    max_failures: int = 5  # in a row, while no worker serves
    first_delay: float = 0.1  # before a failed worker is replaced; doubled with each failure
    max_delay: float = 2.0


def watch_parent(descriptor: int, on_end: Callable[[], None]) -> None:
    """Call `on_end` on the worker's loop once the parent has closed its end of the pipe, or was killed."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(descriptor)
        on_end()

    loop.add_reader(descriptor, ended)


class Supervisor:
    """Keeps `count` workers alive until a signal arrives.

    Each of them calls `run_worker(started, parent)`, with the descriptor for `watch_parent`; `announce` is called when
    the first has started. Workers that take longer than `end_timeout` to end are killed.
    """

    def __init__(
        self,
        count: int,
        run_worker: RunWorker,
        announce: Callable[[], None],
        sockets: list[socket.socket],
        *,
        end_timeout: float,
        restarts: RestartPolicy,
        metrics: "Metrics | None" = None,
    ) -> None:
        if not hasattr(os, "fork"):
            raise SetupError("workers: this system can't fork processes; use workers=1")
        if threading.current_thread() is not threading.main_thread():
            raise SetupError("workers: they can only be started from the main thread")
        self._count = count
        self._run_worker = run_worker
        self._announce: Callable[[], None] | None = announce
        self._sockets = sockets
        self._end_timeout = end_timeout
        self._restarts = restarts
        self._metrics = metrics  # each worker writes to the slab of its number
        if metrics is not None:
            metrics.share(count)
        self._numbers: dict[int, int] = {}  # of workers, by pid, from 1 on
        self._workers: dict[int, float] = {}  # by pid: when each of them has started, or NOT_STARTED
        self._failures = 0  # in a row: workers that ended too soon, and forks that failed
        self._fork_at = 0.0
        self._ending = False

    def run(self) -> None:
        if threading.active_count() > 1:
            _print_error("threads were started before the workers; the workers do not have them")
        self._wake_reader, self._wake_writer = os.pipe()  # for signals: one just before a `select` must not be missed
        self._start_reader, self._start_writer = os.pipe()
        self._life_reader, self._life_writer = os.pipe()  # nothing is ever written to it
        shared = (self._wake_reader, self._wake_writer, self._start_reader, self._start_writer)
        for descriptor in shared:
            os.set_blocking(descriptor, False)
        previous_handlers = self._handle_signals()
        try:
            try:
                self._supervise()
            finally:
                self._end_workers()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
            for descriptor in (*shared, self._life_reader):
                os.close(descriptor)

    def _handle_signals(self) -> dict[signal.Signals, Any]:
        previous: dict[signal.Signals, Any] = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda *_: None)}
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, self._signalled) or signal.SIG_DFL
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        return previous

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal: the first one ends the workers gracefully, the second kills them."""
        if not self._ending:
            self._ending = True
            return
        self._kill_workers()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _supervise(self) -> None:
        while not self._ending:
            delay = None
            if len(self._workers) < self._count:
                delay = self._fork_at - time.monotonic()
                if delay <= 0:
                    self._try_to_fork()
                    continue
            self._wait(delay)
            if not self._ending:  # or the workers end on purpose
                for pid, started_at, reason in self._reap():
                    _print_error(f"worker {pid} ended {reason} and is replaced")
                    self._check_uptime(started_at)

    def _wait(self, timeout: float | None) -> None:
        """Wait for a signal, or for a worker to start."""
        ready, _, _ = select.select([self._wake_reader, self._start_reader], [], [], timeout)
        if self._wake_reader in ready:
            os.read(self._wake_reader, 4096)
        if self._start_reader in ready:
            for (pid,) in PID.iter_unpack(os.read(self._start_reader, 1024 * PID.size)):
                if pid in self._workers:
                    self._workers[pid] = time.monotonic()
            if self._announce is not None:
                self._announce()
                self._announce = None

    def _reap(self) -> list[tuple[int, float, str]]:
        """Collect the workers that have ended: the pid of each, when it started, and how it ended."""
        ended = []
        for worker in list(self._workers):
            pid, status = os.waitpid(worker, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                reason = f"with code {code}" if code >= 0 else f"by signal {-code} ({signal.strsignal(-code)})"
                ended.append((pid, self._workers.pop(pid), reason))
                number = self._numbers.pop(pid)
                if self._metrics is not None and not self._ending:
                    self._metrics.release_slab(number)
        return ended

    def _check_uptime(self, started_at: float) -> None:
        """Give up if no worker can start. While others serve, go on trying: the cause may pass."""
        policy = self._restarts
        latest = time.monotonic() - policy.min_uptime
        if started_at <= latest:
            self._failures = 0
            return
        self._delay_fork()
        if self._failures >= policy.max_failures and not any(other <= latest for other in self._workers.values()):
            raise SetupError(
                f"{policy.max_failures} workers in a row ended before they could start or within "
                f"{policy.min_uptime:g} s; what they wrote before that says why"
            )

    def _delay_fork(self) -> None:
        self._failures += 1
        delay = self._restarts.first_delay * 2.0 ** min(self._failures, 20)
        self._fork_at = time.monotonic() + min(delay, self._restarts.max_delay)

    def _end_workers(self) -> None:
        for each in self._sockets:
            each.close()  # or the system would accept connections that no worker serves
        os.close(self._life_writer)
        deadline = time.monotonic() + self._end_timeout
        while self._workers and (remaining := deadline - time.monotonic()) > 0:
            self._wait(remaining)
            self._reap()
        if self._workers:
            _print_error(f"{len(self._workers)} workers did not end in time and are killed")
            self._kill_workers()
            for pid in self._workers:
                os.waitpid(pid, 0)

    def _kill_workers(self) -> None:
        for pid in list(self._workers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _try_to_fork(self) -> None:
        handled = {signal.SIGINT, signal.SIGTERM}
        number = min({*range(1, self._count + 1)}.difference(self._numbers.values()))
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)  # the parent's handlers must not run in the worker
        try:
            pid = os.fork()
            if pid == 0:
                self._run_forked(handled, number)
            self._workers[pid], self._numbers[pid] = NOT_STARTED, number
        except OSError as failure:  # too many processes, which may pass
            if not self._workers:
                raise SetupError(f"no worker can be started: {failure.strerror}") from None
            _print_error(f"a worker can't be started and is tried again: {failure.strerror}")
            self._delay_fork()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)

    def _run_forked(self, handled: set[signal.Signals], number: int) -> NoReturn:
        """Run a worker after the fork. Never returns: code after `run()` is for the parent alone."""
        code = 1
        try:
            self._reset_inherited()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
            if self._metrics is not None:
                self._metrics.take_slab(number)
            self._run_worker(self._report_start, self._life_reader)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                logging.shutdown()
                sys.stdout.flush()
            os._exit(code)

    def _reset_inherited(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes, but only the parent acts on it
        for descriptor in (self._wake_reader, self._wake_writer, self._start_reader, self._life_writer):
            os.close(descriptor)
        random.seed()  # or all workers would draw the same numbers

    def _report_start(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._start_writer, PID.pack(os.getpid()))


def _print_error(line: str) -> None:
    """Print an error. The parent does not log: its log thread would be missing in workers that it forks later."""
    print_line(f"dovetail: {line}", logging.ERROR)
