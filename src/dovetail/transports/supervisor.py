"""`Supervisor`: several worker processes that serve at the same sockets, replaced when they die.

The parent runs no loop, no thread and no user code: it forks workers and replaces those that end. All workers watch one
pipe that the parent holds open, and end when it is closed. So they also notice if the parent is killed; and a worker
that a service manager signals as well does not take that for a second signal.
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
from typing import Any, NoReturn

from dovetail.errors import SetupError

QUICK_SECONDS = 1.0  # a worker that ends sooner has not worked
MAX_QUICK_ENDS = 5  # in a row, while no worker works
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds before a worker that ended quickly is replaced; doubled each time

NEVER = float("inf")
PID = struct.Struct("=q")  # how a worker tells that it has started; so few bytes are never divided

Work = Callable[[Callable[[], None], int], None]


def watch_parent(descriptor: int, ended: Callable[[], None]) -> None:
    """In a worker, on its loop: call `ended` once the parent has closed its side, or is gone."""
    loop = asyncio.get_running_loop()

    def notice() -> None:
        loop.remove_reader(descriptor)
        ended()

    loop.add_reader(descriptor, notice)


class Supervisor:
    """Keeps `count` workers alive until a signal comes.

    `work(started, parent)` is what each of them does, `parent` being the descriptor for `watch_parent`; `announce` is
    called when the first has started. Workers that take longer than `end_seconds` to end are killed.
    """

    def __init__(
        self, count: int, work: Work, announce: Callable[[], None], sockets: list[socket.socket], *, end_seconds: float
    ) -> None:
        if not hasattr(os, "fork"):
            raise SetupError("workers: this system can't fork processes; use workers=1")
        if threading.current_thread() is not threading.main_thread():
            raise SetupError("workers: they can only be started from the main thread")
        self._count = count
        self._work = work
        self._announce: Callable[[], None] | None = announce
        self._sockets = sockets
        self._end_seconds = end_seconds
        self._children: dict[int, float] = {}  # when each of them has started; NEVER till then
        self._failures = 0  # in a row: workers that ended quickly, and forks that failed
        self._fork_at = 0.0
        self._asked_to_end = False

    def run(self) -> None:
        if threading.active_count() > 1:
            _say("threads were started before the workers; the workers do not have them")
        self._wake_reader, self._wake_writer = os.pipe()
        self._start_reader, self._start_writer = os.pipe()
        self._life_reader, self._life_writer = os.pipe()  # nothing is ever written to it
        for descriptor in (self._wake_reader, self._wake_writer, self._start_reader, self._start_writer):
            os.set_blocking(descriptor, False)
        before = self._take_signals()
        try:
            try:
                self._supervise()
            finally:
                self._end_all()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            for descriptor in (
                self._wake_reader, self._wake_writer, self._start_reader, self._start_writer, self._life_reader
            ):  # fmt: skip
                os.close(descriptor)

    # ── signals: they are noticed by a pipe, for one that comes just before a `select` must not be missed ──

    def _take_signals(self) -> dict[signal.Signals, Any]:
        before: dict[signal.Signals, Any] = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda *_: None)}
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, self._signalled) or signal.SIG_DFL
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        return before

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        """The first one asks for the end, the second does not ask."""
        if not self._asked_to_end:
            self._asked_to_end = True
            return
        self._kill_all()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    # ── the parent ──

    def _supervise(self) -> None:
        while not self._asked_to_end:
            pause = None
            if len(self._children) < self._count:
                pause = self._fork_at - time.monotonic()
                if pause <= 0:
                    self._try_to_fork()
                    continue
            self._wait(pause)
            if not self._asked_to_end:  # or else every worker may have been asked, too
                for pid, since, end in self._reap():
                    _say(f"worker {pid} ended {end} and is replaced")
                    self._account_for(since)

    def _wait(self, seconds: float | None) -> None:
        """Until a signal comes, or a worker has started."""
        ready, _, _ = select.select([self._wake_reader, self._start_reader], [], [], seconds)
        if self._wake_reader in ready:
            os.read(self._wake_reader, 4096)
        if self._start_reader in ready:
            for (pid,) in PID.iter_unpack(os.read(self._start_reader, 1024 * PID.size)):
                if pid in self._children:
                    self._children[pid] = time.monotonic()
            if self._announce is not None:
                self._announce()
                self._announce = None

    def _reap(self) -> list[tuple[int, float, str]]:
        """The workers that have ended: the pid of each, when it has started, and how it ended."""
        ended = []
        for child in list(self._children):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                ended.append((pid, self._children.pop(pid), _in_words(status)))
        return ended

    def _account_for(self, since: float) -> None:
        """Gives up if none can start. What they lack may come back, so those that work are not ended for that."""
        long_ago = time.monotonic() - QUICK_SECONDS
        if since <= long_ago:
            self._failures = 0
            return
        self._fork_later()
        if self._failures >= MAX_QUICK_ENDS and not any(other <= long_ago for other in self._children.values()):
            raise SetupError(
                f"{MAX_QUICK_ENDS} workers in a row ended before they could start or within {QUICK_SECONDS:g} s; "
                "what they wrote before that says why"
            )

    def _fork_later(self) -> None:
        self._failures += 1
        self._fork_at = time.monotonic() + min(FIRST_PAUSE * 2.0 ** min(self._failures, 20), LONGEST_PAUSE)

    def _end_all(self) -> None:
        for each in self._sockets:
            each.close()  # or else the system would accept connections that no worker serves
        os.close(self._life_writer)
        deadline = time.monotonic() + self._end_seconds
        while self._children and (left := deadline - time.monotonic()) > 0:
            self._wait(left)
            self._reap()
        if self._children:
            _say(f"{len(self._children)} workers did not end in time and are killed")
            self._kill_all()
            for pid in self._children:
                os.waitpid(pid, 0)

    def _kill_all(self) -> None:
        for pid in list(self._children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # ── the workers ──

    def _try_to_fork(self) -> None:
        handled = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)  # our handlers are not for the child
        try:
            pid = os.fork()
            if pid == 0:
                self._be_worker(handled)
            self._children[pid] = NEVER
        except OSError as failure:  # too many processes, which may pass
            if not self._children:
                raise SetupError(f"no worker can be started: {failure.strerror}") from None
            _say(f"a worker can't be started and is tried again: {failure.strerror}")
            self._fork_later()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)

    def _be_worker(self, handled: set[signal.Signals]) -> NoReturn:
        """Never returns to the program that called `run`: its rest is for the parent alone."""
        code = 1
        try:
            self._leave_parent_behind()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
            self._work(self._tell_start, self._life_reader)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                logging.shutdown()
                sys.stdout.flush()
            os._exit(code)

    def _leave_parent_behind(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes, but only the parent acts on it
        for descriptor in (self._wake_reader, self._wake_writer, self._start_reader, self._life_writer):
            os.close(descriptor)
        random.seed()  # or else all workers would draw the same numbers

    def _tell_start(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._start_writer, PID.pack(os.getpid()))


def _in_words(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"with code {code}" if code >= 0 else f"by signal {-code} ({signal.strsignal(-code)})"


def _say(line: str) -> None:
    """The parent does not log: the log's thread would not be there in the workers that it forks later."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"dovetail: {line}\n")
        sys.stderr.flush()
