"""File watching by polling: calls `on_change(uri)` on the event loop, once for each burst of changes at a URI's path.

One task looks at every watched path (`os.stat`) each `poll_seconds`, but for a twentieth of the time at most.
Where watchfiles is installed, it listens in the watched folders and says when to look at once; without it, or if it
fails, polling goes on alone. What touches a disk, which may hang, runs in a thread.
"""

import asyncio
import importlib.util
import logging
import os
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

log = logging.getLogger("dovetail.watch")

T = TypeVar("T")
Folder = tuple[str, int]  # path and inode: a folder that was replaced is another one


class Run(Protocol):
    """Runs a function in a thread."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class FileStat(NamedTuple):
    """What a path looks like."""

    mark: tuple[int, ...] | None = None  # None if nothing is there
    folder: Folder | None = None
    is_large: bool = False  # there is more in it than one look walks through


def look_at(path: str, max_entries: int) -> FileStat:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return FileStat()
    if not stat.S_ISDIR(status.st_mode):
        return FileStat((status.st_mtime_ns, status.st_size, status.st_ino))
    real_path = os.path.realpath(path)
    count = total = 0
    for each in islice(_entries_below(real_path), max_entries):
        count += 1
        total += hash(each)  # a sum, because the order of entries does not matter
    return FileStat((status.st_ino, count, total), (real_path, status.st_ino), count == max_entries)


def _entries_below(folder: str) -> Iterator[tuple[str, int, int, int]]:
    """Path, time, size and inode of everything in a folder and deeper, symlinks not followed."""
    waiting = [folder]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as items:
            for item in items:
                status = item.stat(follow_symlinks=False)
                yield item.path, status.st_mtime_ns, status.st_size, status.st_ino
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(item.path)


class _Watched:
    """A path, how many hold on to it, and what it looked like when last seen."""

    __slots__ = ("holders", "look", "path")

    def __init__(self, path: Path) -> None:
        self.path = os.path.abspath(path)
        self.holders = 1
        self.look: FileStat | None = None


class Watcher:
    """Calls `on_change(uri)` when what lies at the URI's path changes, is replaced, vanishes or comes back.

    A burst is over when nothing changed for `quiet` seconds. One look walks through `max_entries` of a folder.
    """

    def __init__(
        self, on_change: Callable[[str], Awaitable[None] | None], *, poll_seconds: float = 1.0,
        use_watchfiles: bool = True, run: Run = asyncio.to_thread, quiet: float = 0.05, max_entries: int = 10_000,
    ) -> None:  # fmt: skip
        self._on_change = on_change
        self._run_in_thread = run
        self._poll_seconds = max(poll_seconds, 0.01)
        self._look_seconds = 0.0  # that the last look at all took
        self._quiet = quiet
        self._max_entries = max_entries
        self._use_watchfiles = use_watchfiles and importlib.util.find_spec("watchfiles") is not None
        self._watched: dict[str, _Watched] = {}
        self._task: asyncio.Task[None] | None = None
        self._look_now = asyncio.Event()
        self._first_look: threading.Thread | None = None  # the last one; alive only if its disk hangs
        self._listener: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._listens_at: frozenset[Folder] = frozenset()

    def watch(self, uri: str, path: Path) -> None:
        """Begin to watch, or count one more that does. Call it on the event loop."""
        if known := self._watched.get(uri):
            known.holders += 1
            return
        self._watched[uri] = watched = _Watched(path)
        self._look_at_once(watched)
        if self._task is None or self._task.done():
            self._listen(frozenset())  # an earlier run, or a loop that has ended, may have left a listener
            self._look_now = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="dovetail.watch")
        self._look_now.set()

    def unwatch(self, uri: str) -> None:
        """Count one less; the last one ends the watching. An unknown URI is ignored."""
        known = self._watched.get(uri)
        if known is None:
            return
        known.holders -= 1
        if known.holders == 0:
            del self._watched[uri]
            self._look_now.set()
            if not self._watched:
                self._stop()

    async def close(self) -> None:
        """End all watching and wait until it has ended."""
        self._watched.clear()
        if tasks := self._stop():
            await asyncio.wait(tasks, timeout=2)

    def _stop(self) -> list[asyncio.Task[None]]:
        tasks = [task for task in (self._task, self._listener, *self._telling) if task is not None]
        self._task = None
        for task in tasks:
            task.cancel()
        return tasks

    def _look_at_once(self, watched: _Watched, seconds: float = 0.5) -> None:
        """So that no change after `watch` is missed. A disk that hangs is left to the task after some `seconds`."""
        if self._first_look is not None and self._first_look.is_alive():
            return
        seen: list[FileStat] = []
        look = threading.Thread(target=lambda: seen.append(look_at(watched.path, self._max_entries)), daemon=True)
        with suppress(RuntimeError):  # the system has no more threads to give
            look.start()
            self._first_look = look
            look.join(seconds)
        if seen:
            self._take_in(watched, seen[0])

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self._poll_seconds, min(20 * self._look_seconds, 30))):
                    await self._look_now.wait()
            self._look_now.clear()
            try:
                changed = await self._look(self._watched)
                looks = [each.look for each in self._watched.values() if each.look is not None]
                self._listen(frozenset(look.folder for look in looks if look.folder is not None))
                if changed:
                    await self._settle(changed)
                    self._tell(sorted(changed))
            except Exception:
                log.exception("looking at the watched files failed; trying again")
                await asyncio.sleep(self._poll_seconds)

    async def _look(self, uris: Iterable[str]) -> set[str]:
        """Look at these, as far as they are watched; tells which look different."""
        watched = {uri: self._watched[uri] for uri in uris if uri in self._watched}

        def look() -> list[FileStat]:
            began = time.monotonic()  # without the wait for a thread
            looks = [look_at(each.path, self._max_entries) for each in watched.values()]
            self._look_seconds = time.monotonic() - began
            return looks

        seen = await self._run_in_thread(look)
        return {uri for (uri, each), look in zip(watched.items(), seen, strict=True) if self._take_in(each, look)}

    def _take_in(self, watched: _Watched, look: FileStat) -> bool:
        """Remember a look; tells whether it differs from the one before."""
        before, watched.look = watched.look, look
        if look.is_large and not (before and before.is_large):
            log.warning("%s: only its first %d entries are watched", watched.path, self._max_entries)
        return before is not None and before.mark != look.mark

    async def _settle(self, changed: set[str], rounds: int = 10) -> None:
        """Wait until the burst is over; what is always written is told after so many `rounds`."""
        for _ in range(rounds):
            await asyncio.sleep(self._quiet)
            try:
                if not await self._look(changed):
                    return
            except Exception:
                return  # what is known is told at once, what follows is another change

    def _tell(self, uris: list[str]) -> None:
        """Pass the changes on in tasks of their own: files are looked at also while a folder is being listed."""
        for uri in uris:
            task = asyncio.get_running_loop().create_task(self._pass_on(uri), name="dovetail.watch")
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _pass_on(self, uri: str) -> None:
        try:
            if uri in self._watched and (telling := self._on_change(uri)) is not None:
                await telling
        except Exception:
            log.exception("the change of %s could not be passed on", uri)

    # ── watchfiles ──

    def _listen(self, folders: frozenset[Folder]) -> None:
        """Listen in these folders; what already listens there goes on."""
        if not self._use_watchfiles or folders == self._listens_at:
            return
        if self._listener is not None:
            with suppress(RuntimeError):  # its loop was closed
                self._listener.cancel()
        self._listener, self._listens_at = None, folders
        if folders:
            work = self._hear(sorted(path for path, _ in folders))
            self._listener = asyncio.get_running_loop().create_task(work, name="dovetail.watch")

    async def _hear(self, paths: list[str]) -> None:
        import watchfiles

        step = int(self._quiet * 1000)
        try:
            changes = watchfiles.awatch(
                *paths, watch_filter=None, step=step, debounce=10 * step, ignore_permission_denied=True
            )
            async for _ in changes:
                self._look_now.set()
        except asyncio.CancelledError:
            raise
        except FileNotFoundError:
            self._listens_at = frozenset()  # a folder that vanished meanwhile: the next look listens anew
        except BaseException as problem:  # a panic in Rust is no Exception
            log.warning("watchfiles failed (%s); looking at files every %g s instead", problem, self._poll_seconds)
