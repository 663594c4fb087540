"""Keeps the newest version of a program serving that can be loaded: a way to start it and its sources come in.

A changed program is started beside the one that serves. Only when it is ready the other is told to end; if it never
is, the other stays. All processes serve at the same sockets and share one state, so nobody is refused meanwhile, and
sessions go on.
"""

import os
import signal
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType

from dovetail.cli.developing.serving_child import Report, ServingChild
from dovetail.cli.developing.sources import Sources
from dovetail.cli.terminal import in_line, tell

LOOK_SECONDS = 0.4
END_SECONDS = 5.0  # for all of it, after Ctrl-C
MAX_NAMED = 3

# Also if the terminal is closed, which Windows does not tell.
SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]

Start = Callable[[Report, Report], ServingChild]


class Keeper:
    """`first_ready` is called once, when there is something to see. `drain` seconds are for calls in flight.

    Where sockets can't be shared (`alone`), the old process ends before the new one starts.
    """

    def __init__(
        self, start: Start, sources: Sources, first_ready: Callable[[], None], *, drain: float, alone: bool
    ) -> None:
        self._start_child = start
        self._sources = sources
        self._first_ready: Callable[[], None] | None = first_ready
        self._drain = drain
        self._alone = alone
        self._news: SimpleQueue[Callable[[], None]] = SimpleQueue()  # a signal may come while it is being used
        self._children: list[ServingChild] = []
        self._serving: ServingChild | None = None
        self._starting: ServingChild | None = None
        self._leaving: ServingChild | None = None  # the one that served before
        self._is_over = False

    def run(self) -> None:
        """Until a signal comes; a second one does not wait."""
        taken = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._signalled) for number in taken}
        try:
            self._start()
            while not self._is_over:
                self._go_on()
        finally:
            try:
                self._end_all()
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _go_on(self) -> None:
        try:
            act = self._news.get(timeout=LOOK_SECONDS)
        except Empty:
            act = self._look
        act()

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        for number in SIGNALS:
            if signal.getsignal(number) == self._signalled:
                signal.signal(number, signal.default_int_handler)
        self._news.put(self._end)

    def _end(self) -> None:
        self._is_over = True

    def _end_all(self) -> None:
        deadline = time.monotonic() + END_SECONDS
        try:
            for child in self._children:
                child.end(0)
            for child in self._children:
                child.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for child in self._children:
                child.kill()

    # ── what happens ──

    def _look(self) -> None:
        for child in self._children:
            child.insist()
        if changed := self._sources.changed():
            named = ", ".join(in_line(os.path.basename(path), 100) for path in changed[:MAX_NAMED])
            more = f" and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
            tell(f"{named}{more} changed", dim=True)
            self._start()

    def _start(self) -> None:
        if self._starting is not None:  # of a version that is not wanted any more
            self._starting.end(0)
        if self._alone and self._serving is not None:
            self._serving.end(self._drain)
            self._serving.wait(self._drain + END_SECONDS)
            self._serving = None
        self._starting = self._start_child(self._later(self._is_ready), self._later(self._is_gone))
        self._children.append(self._starting)

    def _later(self, act: Callable[[ServingChild], None]) -> Report:
        """In the main thread."""
        return lambda child: self._news.put(lambda: act(child))

    def _is_ready(self, child: ServingChild) -> None:
        if child is not self._starting:
            return
        before, self._serving, self._starting = self._serving, child, None
        if self._first_ready is not None:
            self._first_ready()
            self._first_ready = None
        else:
            tell(f"restarted in {time.monotonic() - child.began:.1f} s", fg="green")
        if before is not None:
            self._leaving = before
            before.end(self._drain)
        else:
            child.tell_changed()

    def _is_gone(self, child: ServingChild) -> None:
        self._children.remove(child)
        if child is self._starting:
            self._starting = None
            still = "the version before goes on" if self._serving else "nothing is served"
            tell(f"The program can't be served as it is; {still} until it changes", fg="yellow")
        elif child is self._serving:
            self._serving = None
            tell(f"The server has ended by itself, with code {child.code}; a change starts it again", fg="yellow")
        elif child is self._leaving and self._serving is not None:
            self._serving.tell_changed()  # now, for who hears it asks at once, and has to reach the new one
