"""What a watched path looks like: a path goes in, what a look shows comes out, and whether it differs from before."""

import hashlib
import os
import stat
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

MAX_FOLDER_ENTRIES = 2_000  # how much of a folder one look walks through
FIRST_LOOK_SECONDS = 0.5  # how long `watch` waits for a disk, before it leaves the first look to the task

Mark = tuple[int, int, int] | None  # what a path looked like, to every process; None if nothing is there


class Look(NamedTuple):
    """What a look at a path shows."""

    mark: Mark = None
    is_folder: bool = False
    is_large: bool = False
    real_path: str | None = None  # of a folder


class Watched:
    """A path, how many hold on to it, and what it looked like when last seen."""

    __slots__ = ("_mark", "_told", "holders", "is_folder", "is_large", "is_seen", "parent", "path", "real_path")

    def __init__(self, path: Path) -> None:
        self.path = os.path.abspath(path)
        self.parent = os.path.dirname(self.path)
        self.real_path = self.path
        self.holders = 1
        self.is_folder = False
        self.is_large = False
        self.is_seen = False
        self._mark: Mark = None
        self._told: Mark = None  # what it looked like when somebody was told last

    def take_in(self, look: Look) -> bool:
        """Remember what a look showed; tells whether it changed since the one before."""
        differs = self.is_seen and look.mark != self._mark
        if not self.is_seen:
            self._told = look.mark
        self.is_seen = True
        self._mark = look.mark
        self.is_folder = look.is_folder
        if look.real_path is not None:
            self.real_path = look.real_path
            self.is_large = look.is_large
        return differs

    def cause(self) -> str:
        """Somebody is told now: names what has happened since the last time, alike in every process that sees it.

        Empty if a look does not see what it is.
        """
        before, self._told = self._told, self._mark
        if before == self._mark:
            return ""
        return hashlib.sha256(f"{self.path} {before} {self._mark}".encode(errors="surrogatepass")).hexdigest()[:16]

    def holds_any(self, paths: Iterable[str]) -> bool:
        inside = os.path.join(self.real_path, "")
        return self.is_folder and any(path.startswith(inside) or path == self.real_path for path in paths)


class FirstLook:
    """Looks at a path at once, so that no change after that is missed, but does not wait for a disk that hangs."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None  # the last one; alive only if its disk hangs

    def at(self, path: str) -> Look | None:
        """None if it takes too long, or if the one before still does."""
        if self._thread is not None and self._thread.is_alive():
            return None
        seen: list[Look] = []
        self._thread = threading.Thread(target=lambda: seen.append(look_at(path)), name="dovetail.look", daemon=True)
        with suppress(RuntimeError):  # the system has no more threads to give
            self._thread.start()
            self._thread.join(FIRST_LOOK_SECONDS)
        return seen[0] if seen else None


def look_at(path: str) -> Look:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return Look()
    if not stat.S_ISDIR(status.st_mode):
        return Look((status.st_mtime_ns, status.st_size, status.st_ino))
    real_path = os.path.realpath(path)
    count = total = 0
    for each in islice(_entries_below(real_path), MAX_FOLDER_ENTRIES):
        count += 1
        total += hash(each)  # a sum, because the order of entries does not matter; of numbers it is always the same
    return Look((status.st_ino, count, total), True, count == MAX_FOLDER_ENTRIES, real_path)


def _entries_below(folder: str) -> Iterator[tuple[int, int, int, int]]:
    """Path (its checksum), time, size and inode of everything in a folder and deeper, symlinks not followed."""
    waiting = [folder]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as items:
            for item in items:
                status = item.stat(follow_symlinks=False)
                yield zlib.crc32(os.fsencode(item.path)), status.st_mtime_ns, status.st_size, status.st_ino
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(item.path)
