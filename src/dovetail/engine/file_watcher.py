"""File watching: calls `on_change(uri)` on the event loop, once for each burst of changes at the URI's path.

Polling (`os.stat`, every `poll_seconds`) finds changes. watchfiles, where it is installed, only says when to poll at
once, and spares the walk through watched folders; if it fails, polling goes on without it. One task does all of this,
from the first watched URI to the last. What touches a disk, which may hang, runs in a thread.
"""

import asyncio
import importlib.util
import logging
import os
import stat
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from dovetail.errors import SetupError

log = logging.getLogger("dovetail.watch")

MAX_QUIET_ROUNDS = 10  # after which a file that is always written is reported too

T = TypeVar("T")
Plan = frozenset[tuple[str, int, int]]  # folders to listen at: path, device, inode; a replaced folder makes a new plan


class Run(Protocol):
    """Runs a function in a thread."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class Look(NamedTuple):
    """What a path looks like."""

    mark: tuple[int, ...] | None = None  # None if nothing is there
    is_folder: bool = False
    is_large: bool = False  # there is more in it than one look walks through
    real_path: str | None = None  # of a folder


def look_at(path: str, max_entries: int) -> Look:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return Look()
    if not stat.S_ISDIR(status.st_mode):
        return Look((status.st_mtime_ns, status.st_size, status.st_ino))
    real_path = os.path.realpath(path)
    count = total = 0
    for each in islice(_entries_below(real_path), max_entries):
        count += 1
        total += hash(each)  # a sum, because the order of entries does not matter
    return Look((status.st_ino, count, total), True, count == max_entries, real_path)


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

    __slots__ = ("holders", "is_large", "look", "path", "real_path")

    def __init__(self, path: Path) -> None:
        self.path = self.real_path = os.path.abspath(path)
        self.holders = 1
        self.look: Look | None = None
        self.is_large = False

    @property
    def is_folder(self) -> bool:
        return self.look is not None and self.look.is_folder

    def take_in(self, look: Look) -> bool:
        """Remember a look; tells whether it differs from the one before."""
        before, self.look = self.look, look
        if look.real_path is not None:
            self.real_path, self.is_large = look.real_path, look.is_large
        return before is not None and before.mark != look.mark

    def holds_any(self, paths: Iterable[str]) -> bool:
        inside = os.path.join(self.real_path, "")
        return self.is_folder and any(path.startswith(inside) or path == self.real_path for path in paths)


class Watcher:
    """Calls `on_change(uri)` when what lies at the URI's path changes, is replaced, vanishes or comes back.

    A burst is over when nothing changed for `quiet` seconds. One look walks through `max_entries` of a folder.
    """

    def __init__(
        self, on_change: Callable[[str], Awaitable[None] | None], *, poll_seconds: float = 1.0,
        use_watchfiles: bool | None = None, run: Run = asyncio.to_thread, quiet: float = 0.05, max_entries: int = 2_000,
    ) -> None:  # fmt: skip
        installed = importlib.util.find_spec("watchfiles") is not None
        if use_watchfiles and not installed:
            raise SetupError("use_watchfiles=True needs the package watchfiles: install it, or leave the option out")
        self._on_change = on_change
        self._run_in_thread = run
        self._poll_seconds = max(poll_seconds, 0.01)
        self._quiet = quiet
        self._max_entries = max_entries
        self._use_watchfiles = installed if use_watchfiles is None else use_watchfiles
        self._watched: dict[str, _Watched] = {}
        self._listeners: dict[bool, _Listener] = {}  # by whether they hear what happens in deeper folders too
        self._task: asyncio.Task[None] | None = None
        self._look_now = asyncio.Event()
        self._first_look: threading.Thread | None = None  # the last one; alive only if its disk hangs
        self._stirred: set[str] = set()  # URIs of folders in which something happened

    def watch(self, uri: str, path: Path) -> None:
        """Begin to watch, or count one more that does. Call it on the event loop."""
        if known := self._watched.get(uri):
            known.holders += 1
            return
        self._watched[uri] = watched = _Watched(path)
        self._look_at_once(watched)
        if self._task is None or self._task.done():
            self._start()
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
        listeners = list(self._listeners.values())
        task = self._stop()
        if task is not None:
            await asyncio.wait([task])
        for listener in listeners:
            await listener.ended()

    def _look_at_once(self, watched: _Watched, seconds: float = 0.5) -> None:
        """So that no change after `watch` is missed. A disk that hangs is left to the task after some `seconds`."""
        if self._first_look is not None and self._first_look.is_alive():
            return
        seen: list[Look] = []
        look = threading.Thread(target=lambda: seen.append(look_at(watched.path, self._max_entries)), daemon=True)
        with suppress(RuntimeError):  # the system has no more threads to give
            look.start()
            self._first_look = look
            look.join(seconds)
        if seen:
            self._take_in(watched, seen[0])

    def _start(self) -> None:
        self._listen({})  # an event loop that ended without `close` may have left some
        self._look_now = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="dovetail.watch")

    def _stop(self) -> asyncio.Task[None] | None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._listen({})
        self._stirred.clear()
        return task

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):
                    await self._look_now.wait()
            self._look_now.clear()
            try:
                await self._look([uri for uri, watched in self._watched.items() if watched.look is None])
                self._listen(await self._plans())
                if changed := await self._changed():
                    await self._settle(changed)
                    await asyncio.gather(*map(self._tell, sorted(changed)))
                    self._look_now.set()  # there may be a folder more or less to listen at
            except Exception:
                log.exception("looking at the watched files failed; trying again")
                await asyncio.sleep(self._poll_seconds)

    async def _look(self, uris: Iterable[str]) -> set[str]:
        """Look at these, as far as they are watched; tells which look different."""
        watched = {uri: self._watched[uri] for uri in uris if uri in self._watched}
        if not watched:
            return set()
        most = self._max_entries
        seen = await self._run_in_thread(lambda: [look_at(each.path, most) for each in watched.values()])
        return {uri for (uri, each), look in zip(watched.items(), seen, strict=True) if self._take_in(each, look)}

    def _take_in(self, watched: _Watched, look: Look) -> bool:
        if look.is_large and not watched.is_large and not self._use_watchfiles:
            log.warning("%s: changes beyond its first %d entries need watchfiles", watched.path, self._max_entries)
        return watched.take_in(look)

    async def _changed(self) -> set[str]:
        """The URIs that look different. Folders are walked only if a listener heard of them, or none listens yet."""
        deep = self._listeners.get(True)
        walk = deep is None or not deep.caught_up
        hears = deep is not None and deep.hears
        stirred, self._stirred = self._stirred, set()
        known = list(self._watched.items())
        try:
            changed = await self._look(uri for uri, each in known if walk or not each.is_folder or uri in stirred)
        except Exception:
            self._stirred |= stirred  # for the next try
            raise
        changed |= {uri for uri, each in known if each.is_large and uri in stirred}  # a look does not see all of it
        if deep is not None:
            deep.caught_up = hears  # what changed before it could hear has now been seen
        return changed

    async def _settle(self, changed: set[str]) -> None:
        """Wait until the burst is over."""
        for _ in range(MAX_QUIET_ROUNDS):
            await asyncio.sleep(self._quiet)
            self._stirred -= changed
            try:
                if not await self._look(changed):
                    return
            except Exception:
                return  # what is known is told at once, what follows is another change

    async def _tell(self, uri: str) -> None:
        try:
            if uri in self._watched and (telling := self._on_change(uri)) is not None:
                await telling
        except Exception:
            log.exception("the change of %s could not be passed on", uri)

    # ── watchfiles ──

    async def _plans(self) -> dict[bool, Plan]:
        """Where to listen: in every watched folder and below, and in the folder that holds each watched path."""
        if not self._use_watchfiles:
            return {}
        parents = {os.path.dirname(each.path) for each in self._watched.values()}
        folders = {each.real_path for each in self._watched.values() if each.is_folder}
        return await self._run_in_thread(lambda: {False: _plan(map(_existing, parents)), True: _plan(folders)})

    def _listen(self, plans: dict[bool, Plan]) -> None:
        """Listen at these folders; what already listens there goes on."""
        for deep in (False, True):
            plan = plans.get(deep, frozenset())
            listener = self._listeners.get(deep)
            if listener is not None and (listener.is_deaf or listener.plan != plan):
                self._listeners.pop(deep).is_stopped = True
                listener = None
            if listener is None and plan:
                self._listeners[deep] = _Listener(plan, deep, int(self._quiet * 1000), self._heard, self._deafened)
                self._listeners[deep].start()

    def _heard(self, paths: set[str]) -> None:
        self._stirred.update(uri for uri, watched in self._watched.items() if watched.holds_any(paths))
        self._look_now.set()

    def _deafened(self, problem: BaseException) -> None:
        log.warning("watchfiles failed (%s); looking at files every %g s instead", problem, self._poll_seconds)
        self._use_watchfiles = False
        self._look_now.set()


class _Listener:
    """A thread in which watchfiles waits for changes in some folders and tells the event loop."""

    def __init__(
        self, plan: Plan, deep: bool, quiet: int,
        heard: Callable[[set[str]], None], failed: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self.plan = plan
        self.hears = False  # it takes a moment until it does
        self.caught_up = False  # what happened before that has been looked at
        self.is_deaf = False  # a folder is gone, and would not be heard if it came back
        self.is_stopped = False
        self._deep = deep
        self._quiet = quiet  # milliseconds
        self._heard = heard
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()

    def start(self) -> None:
        try:
            # Not a daemon: at the exit of the interpreter a thread inside Rust must not be torn down. See is_set.
            threading.Thread(target=self._listen, name="dovetail.watch").start()
        except RuntimeError as problem:
            self._ended.set()
            self._failed(problem)

    def is_set(self) -> bool:
        """What watchfiles asks many times a second: is it time to stop?"""
        return self.is_stopped or self._loop.is_closed() or not threading.main_thread().is_alive()

    async def ended(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), 2)

    def _listen(self) -> None:
        try:
            for paths, is_gone in self._bursts():
                self._tell(self._hear, paths, is_gone)
            if not self.is_set():
                raise RuntimeError("it stopped by itself")
        except FileNotFoundError:
            self._tell(self._miss)
        except BaseException as problem:  # a panic in Rust is no Exception
            self._tell(self._fail, problem)
        finally:
            self._tell(self._ended.set)

    def _bursts(self) -> Iterator[tuple[set[str], bool]]:
        """The paths of each burst of changes, and whether a folder listened at is gone."""
        import watchfiles

        gone = {(watchfiles.Change.deleted, folder) for folder, _, _ in self.plan}
        changes = watchfiles.watch(
            *sorted(folder for folder, _, _ in self.plan), recursive=self._deep, watch_filter=None,
            step=self._quiet, debounce=self._quiet * MAX_QUIET_ROUNDS,
            rust_timeout=100, yield_on_timeout=True,  # the first time it tells that listening has begun
            stop_event=self, raise_interrupt=False, debug=False, ignore_permission_denied=True,
        )  # fmt: skip
        for burst in changes:
            if burst or not self.hears:
                yield {path for _, path in burst}, not gone.isdisjoint(burst)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _hear(self, paths: set[str], is_gone: bool) -> None:
        self.hears = True
        self.is_deaf |= is_gone
        if not self.is_stopped:
            self._heard(paths)

    def _miss(self) -> None:
        self.is_deaf = True  # vanished before listening began: the next regular look makes a new plan

    def _fail(self, problem: BaseException) -> None:
        if not self.is_stopped:
            self._failed(problem)


def _existing(folder: str) -> str:
    """The folder, or the nearest one above it that exists."""
    while not os.path.isdir(folder) and (above := os.path.dirname(folder)) != folder:
        folder = above
    return folder


def _plan(folders: Iterable[str]) -> Plan:
    found = set()
    for folder in folders:
        with suppress(OSError):
            status = os.stat(folder)
            found.add((folder, status.st_dev, status.st_ino))
    return frozenset(found)
