"""The files that a server is made of: folders and files come in; whether anything in them has changed goes out.

They are looked at, a few times a second, and not listened to: that works for every folder on every system, and the
folder of a project is soon looked through. A large one is looked at less often, so that this takes a small part of one
processor and no more.
"""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dovetail.cli.whereabouts import split_target

ENDINGS = (".py", ".toml")
IGNORED = {"__pycache__", "node_modules", "venv", "site-packages", "build", "dist"}  # and whatever is hidden
MAX_FILES = 20_000
SETTLE_SECONDS = 0.1
MAX_SETTLING = 20  # looks
LOOK_SECONDS = 0.4  # between looks
IDLE_PART = 30  # times as long as a look takes, at the least

Look = dict[str, tuple[int, int]]


class Sources:
    """What is below folders and ends as a source does, and files that are named, however they end."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places
        self.pause = LOOK_SECONDS  # until the next look
        self._last = self._look()
        self._unsettled: set[str] = set()
        self._looks = 0  # at what is unsettled

    def changed(self) -> list[str]:
        """Look once. The files that are new, gone or different come out when they have come to rest.

        An editor or a version control writes several, one after the other.
        """
        now = self._look()
        if now != self._last:
            self._unsettled |= {path for path, _ in now.items() ^ self._last.items()}
            self._last = now
            self._looks += 1
            if self._looks < MAX_SETTLING:
                self.pause = SETTLE_SECONDS
                return []
        found, self._unsettled, self._looks = sorted(self._unsettled), set(), 0
        return found

    def _look(self) -> Look:
        found: Look = {}
        began = time.perf_counter()
        for place in self._places:
            for path in _files(str(place)) if place.is_dir() else [str(place)]:
                try:
                    about = os.stat(path)
                except OSError:  # gone, which is to be seen by its absence
                    continue
                found[path] = (about.st_mtime_ns, about.st_size)
                if len(found) >= MAX_FILES:
                    break
        self.pause = max(LOOK_SECONDS, IDLE_PART * (time.perf_counter() - began))
        return found


def _files(folder: str) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not (name.startswith(".") or name in IGNORED))
        yield from (os.path.join(place, name) for name in sorted(files) if name.endswith(ENDINGS))


def place_of(target: str) -> Path:
    """The folder that the program of a target lives in."""
    name, _ = split_target(target)
    return Path(name).resolve().parent if name.endswith(".py") else Path.cwd()
