"""The watchdog: names tools that hold the event loop, and says at which line a thread stands.

A daemon thread asks the loop for a sign of life a few times a second. Calls know nothing of it, and no exit waits for
it. Of the loop's thread it reads which code is on the stack, and no variables.
"""

import asyncio
import inspect
import logging
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from dovetail import engine as lazy

if TYPE_CHECKING:
    from dovetail.engine.engine import Engine

LOOKS = 4  # at the loop's thread, in the time that a function may hold it
LOG_INTERVAL = 60.0  # seconds between two lines about the same tool
FOLDERS = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
LIBRARIES = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "<frozen ", *FOLDERS)

log = logging.getLogger("dovetail")


class Watchdog:
    """Watches the loop that runs now, until it is stopped or the loop has ended.

    Two looks that find the same call of a tool, while the sign of life is still missing, say that it holds the loop. So
    no tool is blamed for many others that ran before it in the same turn of the loop.
    """

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._blocked = engine.watchdog_timings.blocked
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._is_silent = False  # a sign of life is missing
        self._asked_at = 0.0
        self._seen: FrameType | None = None  # the call that the last look has found, until the next one
        self._holder: str | None = None  # the tool that holds the loop; empty if several share its function
        self._reported: dict[str, float] = {}
        self.stopped = threading.Event()
        threading.Thread(target=self._run, name="dovetail-watchdog", daemon=True).start()

    def _run(self) -> None:
        pause, before = self._blocked / LOOKS, time.monotonic()
        while not self.stopped.wait(pause) and self._loop.is_running():
            now = time.monotonic()
            overslept, before = now - before > 2 * pause, now
            if not self._is_silent:
                self._asked_at, self._seen, self._holder, self._is_silent = now, None, None, True
                try:
                    self._loop.call_soon_threadsafe(self._give_sign)
                except RuntimeError:
                    return  # the loop is closed
            elif overslept:  # and the loop perhaps too
                self._asked_at, self._seen = now, None
            elif self._holder is None:
                self._look(now - self._asked_at)

    def _give_sign(self) -> None:
        """On the loop, which alone records metrics."""
        holder, self._is_silent = self._holder, False
        if holder is not None and (metrics := self._engine.metrics) is not None:
            metrics.add(lazy.metrics.BLOCKED_LOOPS, holder or lazy.metrics.OTHER)

    def _look(self, held_for: float) -> None:
        seen, self._seen = self._seen, None
        frames = list(_frames(self._loop_thread))
        tools = _tools_by_code(self._engine)
        of_tools = [number for number, each in enumerate(frames) if each.f_code in tools]
        if not of_tools:
            return
        outermost = of_tools[-1]  # a tool may call the function of another one
        self._seen = frames[outermost]
        if self._seen is not seen or held_for < self._blocked * (LOOKS - 1) / LOOKS:
            return  # from its start to the first sign that was asked for, up to one pause has passed
        self._holder = name = tools[self._seen.f_code]
        if is_due(self._reported, name):
            words = "%s holds the event loop, and all other calls wait: for %.1f s so far, at %s; %s"
            subject, place = f"tool {name}" if name else "a tool", _place(frames[: outermost + 1])
            advice = "make it a plain def, or await asyncio.to_thread(…)"
            log.warning(words, subject, held_for, place, advice, extra={"dovetail": {"tool": name or None}})


def is_due(reported: dict[str, float], name: str) -> bool:
    """Whether a line about `name` may be logged."""
    now = time.monotonic()
    for old in [each for each, at in reported.items() if now - at >= LOG_INTERVAL]:
        del reported[old]
    return reported.setdefault(name, now) == now


# ── where a thread stands ──


def place_of_thread(ident: int | None) -> str:
    """The line of the author's code at which a thread stands."""
    return _place(list(_frames(ident)))


def _frames(ident: int | None) -> Iterator[FrameType]:
    """The frames of a thread's stack, the innermost first."""
    frame = sys._current_frames().get(ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frames: list[FrameType]) -> str:
    frame = next((each for each in frames if not each.f_code.co_filename.startswith(LIBRARIES)), frames[0])
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def _tools_by_code(engine: "Engine") -> dict[CodeType, str]:
    """The tools by the code of their functions; the name is empty where several share one."""
    names: dict[CodeType, str] = {}
    for tool in engine.tools.registered.items:
        function = inspect.unwrap(getattr(tool.handler, "func", tool.handler))  # of a partial
        code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
        if code is not None:
            names[code] = "" if code in names else tool.name
    return names
