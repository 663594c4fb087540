"""A process that serves one version of a program, as its parent knows it: a plan comes in, a process goes out."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

CHILD = "dovetail.cli.developing.child"
READY = b"ready\n"
CHANGED = b"changed\n"
PATIENCE = 5.0  # seconds that it gets to end, besides those for its calls

Report = Callable[["ServingChild"], None]


class ServingChild:
    """`ready` and `gone` are called in a thread of its own."""

    def __init__(self, plan: dict[str, object], descriptors: list[int], ready: Report, gone: Report) -> None:
        self.began = time.monotonic()
        self.end_by: float | None = None  # when it was told to end: until then
        self._ready = ready
        self._gone = gone
        posix = os.name == "posix"
        self._process = subprocess.Popen(
            [sys.executable, "-m", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors if posix else (),
            start_new_session=posix,  # Ctrl-C is for the parent
        )
        self._say(msgspec.json.encode(plan) + b"\n")  # not in its words: `state` may hold a password
        threading.Thread(target=self._follow, name="dovetail-child", daemon=True).start()

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def tell_changed(self) -> None:
        """Have it tell its clients that its lists may be different."""
        self._say(CHANGED)

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
        self._process.kill()

    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _say(self, words: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, which `gone` will tell
            self._process.stdin.write(words)
            self._process.stdin.flush()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            if said.readline() == READY:
                self._ready(self)
            self._process.wait()
        self._gone(self)
