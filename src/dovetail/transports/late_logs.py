"""Logs whose end the store has not taken: they come in, and are tried again and again until it has.

Somebody may wait for that end at another worker, and as long as this one lives nobody else tells it. What a client gets
may be an error in the place of the answer, for what waits here is bounded.
"""

import asyncio
import logging
from typing import NamedTuple, Protocol

from dovetail.state import base

LATE_BYTES = 16 * 1024 * 1024  # of all answers that wait
MAX_PAUSE = 5.0  # seconds between two tries

log = logging.getLogger("dovetail.http")


class LateLog(Protocol):
    name: str

    @property
    def unkept_bytes(self) -> int: ...

    def shed_answer(self) -> None:
        """Keep an error in its place."""

    async def write_end(self) -> bool:
        """Whether there is nothing more to write."""


class _Waiting(NamedTuple):
    log: LateLog
    size: int  # of what is not kept
    until: float  # the answer stays


class LateLogs:
    """All of one worker, written by one task."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: how long an answer waits."""
        self._seconds = seconds
        self._waiting: dict[str, _Waiting] = {}
        self._bytes = 0  # of all of them
        self._writing: asyncio.Task[None] | None = None  # while there are any

    def __contains__(self, name: str) -> bool:
        return name in self._waiting

    def add(self, late: LateLog) -> None:
        if self._bytes + late.unkept_bytes > LATE_BYTES:
            late.shed_answer()
        loop = asyncio.get_running_loop()
        self._line_up(late, loop.time() + self._seconds)
        if self._writing is None:
            self._writing = loop.create_task(self._write_all())

    def _line_up(self, late: LateLog, until: float) -> None:
        waiting = self._waiting[late.name] = _Waiting(late, late.unkept_bytes, until)
        self._bytes += waiting.size

    def _take_out(self, name: str) -> None:
        self._bytes -= self._waiting.pop(name).size

    async def _write_all(self) -> None:
        pause = base.AGAIN_SECONDS
        while self._waiting:
            await asyncio.sleep(pause)
            name, waiting = next(iter(self._waiting.items()))
            is_written = await _is_written(waiting.log)
            self._take_out(name)
            if is_written:
                pause = 0.0
                continue
            if asyncio.get_running_loop().time() > waiting.until:
                waiting.log.shed_answer()
            self._line_up(waiting.log, waiting.until)  # at the end: others may fare better
            pause = min(MAX_PAUSE, max(base.AGAIN_SECONDS, 2 * pause))
        self._writing = None

    async def stop(self) -> None:
        """From now on this worker is lost, and others say so."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])


async def _is_written(late: LateLog) -> bool:
    try:
        return await late.write_end()
    except Exception:  # whatever it is: others must not wait for this one
        log.exception("the end of a stream can't be written")
        return True
