"""File watcher that polls paths and calls `on_change(uri)` once for each burst of changes.

One task calls `os.stat` for all paths, for at most a twentieth of the time. If watchfiles is installed, it watches
folders and triggers the next poll at once. Disks may hang, so they are only touched in threads.
"""

import asyncio
import contextvars
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
from typing import Any, NamedTuple

import msgspec

log = logging.getLogger("dovetail.watch")

Run = Callable[[Callable[[], Any]], Awaitable[Any]]  # runs a function in a thread
Folder = tuple[str, int]  # path and inode: a folder that was replaced is another one


class FileStat(NamedTuple):
    """The state of a path; two that differ mean a change."""

    mark: tuple[int, ...] | None = None  # None if nothing is there
    folder: Folder | None = None
    is_large: bool = False  # it has more entries than one poll walks through


def stat_path(path: str, max_entries: int) -> FileStat:
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
    pending = [folder]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as items:
            for item in items:
                status = item.stat(follow_symlinks=False)
                yield item.path, status.st_mtime_ns, status.st_size, status.st_ino
                if stat.S_ISDIR(status.st_mode):
                    pending.append(item.path)


class _Watched(msgspec.Struct, eq=False):
    """A path, how often it is watched, and its state at the last poll."""

    path: str
    count: int = 1
    stat: FileStat | None = None


class Watcher:
    """Calls `on_change(uri)` when the file at the URI's path changes, is replaced, vanishes or reappears.

    A burst is over when nothing changed for `quiet` seconds. One poll walks through `max_entries` of a folder.
    """

    def __init__(
        self, on_change: Callable[[str], Awaitable[None] | None], *, poll_seconds: float = 1.0,
        use_watchfiles: bool = True, run: Run = asyncio.to_thread, quiet: float = 0.05, max_entries: int = 10_000,
    ) -> None:  # fmt: skip
        self._on_change = on_change
        self._run_in_thread = run
        self._poll_seconds = max(poll_seconds, 0.01)
        self._poll_took = 0.0  # seconds, for the last poll of all paths
        self._quiet = quiet
        self._max_entries = max_entries
        self._use_watchfiles = use_watchfiles and importlib.util.find_spec("watchfiles") is not None
        self._watched: dict[str, _Watched] = {}
        self._task: asyncio.Task[None] | None = None
        self._poll_now = asyncio.Event()
        self._first_stat: threading.Thread | None = None  # the last one; alive only if its disk hangs
        self._watchfiles: asyncio.Task[None] | None = None
        self._watchfiles_folders: frozenset[Folder] = frozenset()
        self._notifying: set[asyncio.Task[None]] = set()

    def watch(self, uri: str, path: Path, *, is_new: bool = False) -> None:
        """Begin to watch, or count one more watch. What is new has changed at the first poll.

        Call it on the event loop.
        """
        if known := self._watched.get(uri):
            known.count += 1
            return
        self._watched[uri] = watched = _Watched(os.path.abspath(path), stat=FileStat() if is_new else None)
        if not is_new:
            self._stat_at_once(watched)
        if self._task is None or self._task.done():
            self._start_watchfiles(frozenset())  # the task may belong to an earlier run, or to a loop that has ended
            self._poll_now = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name="dovetail.watch", context=contextvars.Context()
            )
        self._poll_now.set()

    def unwatch(self, uri: str) -> None:
        """Count one watch less; after the last the watching ends. An unknown URI is ignored."""
        if (known := self._watched.get(uri)) is None:
            return
        known.count -= 1
        if known.count == 0:
            del self._watched[uri]
            self._poll_now.set()
            if not self._watched:
                self._stop()

    async def close(self) -> None:
        """End all watching and wait until it has ended."""
        self._watched.clear()
        if tasks := self._stop():
            await asyncio.wait(tasks, timeout=2)

    def _stop(self) -> list[asyncio.Task[None]]:
        tasks = [task for task in (self._task, self._watchfiles, *self._notifying) if task is not None]
        self._task = None
        for task in tasks:
            task.cancel()
        return tasks

    def _stat_at_once(self, watched: _Watched, seconds: float = 0.5) -> None:
        """Read the state now, so that no change after `watch` is missed; a disk that hangs is left to the task."""
        if self._first_stat is not None and self._first_stat.is_alive():
            return
        found: list[FileStat] = []
        thread = threading.Thread(target=lambda: found.append(stat_path(watched.path, self._max_entries)), daemon=True)
        with suppress(RuntimeError):  # the system has no more threads to give
            thread.start()
            self._first_stat = thread
            thread.join(seconds)
        if found:
            self._update(watched, found[0])

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self._poll_seconds, min(20 * self._poll_took, 30))):
                    await self._poll_now.wait()
            self._poll_now.clear()
            try:
                changed = await self._poll(self._watched)
                stats = [each.stat for each in self._watched.values() if each.stat is not None]
                self._start_watchfiles(frozenset(found.folder for found in stats if found.folder is not None))
                if changed:
                    await self._wait_until_quiet(changed)
                    for uri in sorted(changed):  # each in its own task: polling goes on while a folder is being listed
                        task = asyncio.get_running_loop().create_task(self._notify(uri), name="dovetail.watch")
                        self._notifying.add(task)
                        task.add_done_callback(self._notifying.discard)
            except Exception:
                log.exception("polling the watched files failed; trying again")
                await asyncio.sleep(self._poll_seconds)

    async def _poll(self, uris: Iterable[str]) -> set[str]:
        """The watched URIs that have changed since the last poll."""
        watched = {uri: self._watched[uri] for uri in uris if uri in self._watched}

        def stat_all() -> list[FileStat]:
            began = time.monotonic()  # without the wait for a thread
            stats = [stat_path(each.path, self._max_entries) for each in watched.values()]
            self._poll_took = time.monotonic() - began
            return stats

        stats: list[FileStat] = await self._run_in_thread(stat_all)
        return {uri for (uri, each), found in zip(watched.items(), stats, strict=True) if self._update(each, found)}

    def _update(self, watched: _Watched, found: FileStat) -> bool:
        """Store the new state; returns whether the path has changed since the last poll."""
        before, watched.stat = watched.stat, found
        if found.is_large and not (before and before.is_large):
            log.warning("%s: only its first %d entries are watched", watched.path, self._max_entries)
        return before is not None and before.mark != found.mark

    async def _wait_until_quiet(self, changed: set[str], rounds: int = 10) -> None:
        """Wait until the burst is over, but no longer than so many `rounds`."""
        for _ in range(rounds):
            await asyncio.sleep(self._quiet)
            try:
                if not await self._poll(changed):
                    return
            except Exception:
                return  # the known changes are notified at once, later ones are another burst

    async def _notify(self, uri: str) -> None:
        try:
            if uri in self._watched and (notifying := self._on_change(uri)) is not None:
                await notifying
        except Exception:
            log.exception("the change of %s could not be passed on", uri)

    def _start_watchfiles(self, folders: frozenset[Folder]) -> None:
        """Watch these folders; if they are watched already the task goes on."""
        if not self._use_watchfiles or folders == self._watchfiles_folders:
            return
        if self._watchfiles is not None:
            with suppress(RuntimeError):  # its loop was closed
                self._watchfiles.cancel()
        self._watchfiles, self._watchfiles_folders = None, folders
        if folders:
            work = self._run_watchfiles(sorted(path for path, _ in folders))
            self._watchfiles = asyncio.get_running_loop().create_task(work, name="dovetail.watch")

    async def _run_watchfiles(self, paths: list[str]) -> None:
        import watchfiles

        step = int(self._quiet * 1000)
        try:
            async for _ in watchfiles.awatch(
                *paths, watch_filter=None, step=step, debounce=10 * step, ignore_permission_denied=True
            ):
                self._poll_now.set()
        except asyncio.CancelledError:
            raise
        except FileNotFoundError:
            self._watchfiles_folders = frozenset()  # a folder vanished meanwhile: the next poll starts it again
        except BaseException as problem:  # a panic in Rust is no Exception
            log.warning("watchfiles failed (%s); polling the files every %g s instead", problem, self._poll_seconds)
