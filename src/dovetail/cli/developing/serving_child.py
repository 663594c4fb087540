"""A process that serves one version of a program, as its parent knows it: a plan comes in, a process goes out."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec

CHILD = "dovetail.cli.developing.child"
READY = b"ready\n"  # it could serve, and waits for its turn
SERVE = b"serve\n"  # the one word to it: now it is
SERVING = b"serving\n"  # it accepts connections
LET_GO = b"let go\n"  # it accepts none any more and has ended its streams, though it may finish calls
PATIENCE = 5.0  # seconds that it gets to end, besides those for its calls

Report = Callable[["ServingChild"], None]


class Reports(NamedTuple):
    """Who is told of what a child says, and of its end; in threads of the child's."""

    ready: Report
    serving: Report
    let_go: Report
    gone: Report


class ServingChild:
    """It is told what to serve, when it is its turn, and when to end; `reports` hear the rest."""

    def __init__(self, plan: dict[str, object], descriptors: list[int], reports: Reports) -> None:
        self.began = time.monotonic()
        self.end_by: float | None = None  # when it was told to end: until then
        self._gone = reports.gone
        self._heard = {READY: reports.ready, SERVING: reports.serving, LET_GO: reports.let_go}
        posix = os.name == "posix"
        self._process = subprocess.Popen(
            [sys.executable, "-m", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors if posix else (),
            start_new_session=posix,  # Ctrl-C is for the parent
        )
        self._say(msgspec.json.encode(plan) + b"\n")  # not in its words: `state` may hold a password
        for follow in (self._hear, self._await_end):
            threading.Thread(target=follow, name="dovetail-child", daemon=True).start()

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def serve(self) -> None:
        """It is its turn: sessions are told that lists may be different, and it accepts."""
        self._say(SERVE)

    def end(self, seconds: float) -> None:
        """Nothing new is accepted; calls in flight get their seconds."""
        if self.end_by is None:
            self.end_by = time.monotonic() + seconds + PATIENCE
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.close()

    def insist(self) -> None:
        """Kill it if its time is over."""
        if self.end_by is not None and time.monotonic() > self.end_by:
            self.kill()

    def kill(self) -> None:
        """With all that the program has started."""
        if os.name != "posix":
            self._process.kill()
        elif self._process.poll() is None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _say(self, words: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, which `gone` will tell
            self._process.stdin.write(words)
            self._process.stdin.flush()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for word in said:
                if word in self._heard:
                    self._heard[word](self)

    def _await_end(self) -> None:
        """Not by the end of what it says: a process that it has forked may hold that open."""
        self._process.wait()
        self._gone(self)
