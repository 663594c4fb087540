"""Keeps the newest version of a program serving that can be loaded: a way to start it and its sources come in.

A changed program is started beside the one that serves. All processes have the same sockets and share one state, so
nobody is refused meanwhile, and sessions go on. Each step of a restart waits for the word of a process, not for time:

1. The new one says that it is ready: loaded, its lifespan begun. If it never is, the old one stays.
2. The old one is told to end. It stops to accept, closes idle connections, ends its streams, and says that it has let
   go. Calls in flight go on, until they or their seconds are over. Who connects now waits at the socket. (Who connected
   just before and has not sent a request yet can't be told from who is idle, and has to connect again.)
3. The new one is told to serve. It notes for all sessions that lists may be different, accepts, and says so.
4. Clients come back to the new one. Sessions hear of the change, once, from what is noted. Streams that belong to no
   session (2026-07-28) have ended, by which their clients know that they may have missed something.

So whoever hears of a change can't reach the old one any more. Time only bounds this: see `LET_GO_SECONDS`.
"""

import os
import signal
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType

from dovetail.cli.developing.serving_child import Report, Reports, ServingChild
from dovetail.cli.developing.sources import Sources
from dovetail.cli.terminal import in_line, tell

END_SECONDS = 5.0  # for all of it, besides those for calls in flight
HINT_SECONDS = 1.0  # after which it is told why it takes so long
LET_GO_SECONDS = 3.0  # at the most; one that says nothing is blocked by its own code, and accepts nothing either
MAX_NAMED = 3

# Also if the terminal is closed, which Windows does not tell.
SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]

Start = Callable[[Reports], ServingChild]


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
        self._leaving: set[ServingChild] = set()  # told to end, and may still accept
        self._wait_until: float | None = None  # while the one that is to serve waits for them
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
            act = self._news.get(timeout=self._sources.pause)
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
        children = list(self._children)
        deadline = time.monotonic() + self._drain + END_SECONDS
        try:
            for child in children:
                child.end(self._drain)
            for child in children:
                child.wait(HINT_SECONDS)
            if any(child.code is None for child in children):
                tell("Calls in flight may finish; Ctrl-C once more ends it at once.", dim=True)
            for child in children:
                child.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for child in self._children:
                child.kill()

    # ── what happens ──

    def _look(self) -> None:
        for child in self._children:
            child.insist()
        if self._wait_until is not None and time.monotonic() > self._wait_until:
            self._give_turn()
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
        events = (self._is_ready, self._is_serving, self._has_let_go, self._is_gone)
        self._starting = self._start_child(Reports(*map(self._later, events)))
        self._children.append(self._starting)

    def _later(self, act: Callable[[ServingChild], None]) -> Report:
        """In the main thread."""
        return lambda child: self._news.put(lambda: act(child))

    def _is_ready(self, child: ServingChild) -> None:
        if child is not self._starting:
            return
        before, self._serving, self._starting = self._serving, child, None
        self._wait_until = time.monotonic() + LET_GO_SECONDS
        if before is not None:
            self._leaving.add(before)
            before.end(self._drain)
        if not self._leaving:
            self._give_turn()

    def _has_let_go(self, child: ServingChild) -> None:
        self._leaving.discard(child)
        if self._wait_until is not None and not self._leaving:
            self._give_turn()

    def _give_turn(self) -> None:
        """To the one that is to serve; those that have not let go by now are not waited for any more."""
        self._leaving.clear()
        self._wait_until = None
        if self._serving is not None:
            self._serving.serve()

    def _is_serving(self, child: ServingChild) -> None:
        if child is not self._serving:
            return
        if self._first_ready is not None:
            self._first_ready()
            self._first_ready = None
        else:
            tell(f"restarted in {time.monotonic() - child.began:.1f} s", fg="green")

    def _is_gone(self, child: ServingChild) -> None:
        self._children.remove(child)
        self._has_let_go(child)
        if child is self._starting:
            self._starting = None
            still = "the version before goes on" if self._serving else "nothing is served"
            tell(f"The program can't be served as it is; {still} until it changes", fg="yellow")
        elif child is self._serving:
            self._serving = None
            tell(f"The server has ended by itself, with code {child.code}; a change starts it again", fg="yellow")
