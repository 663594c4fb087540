"""The files that a server is made of: folders and files come in; whether anything in them has changed goes out.

They are looked at, a few times a second, and not listened to: that works for every folder on every system, and the
folder of a project is soon looked through.
"""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ENDINGS = (".py", ".toml")
IGNORED = {"__pycache__", "node_modules", "venv", "site-packages", "build", "dist"}  # and whatever is hidden
MAX_FILES = 20_000
SETTLE_SECONDS = 0.1
MAX_SETTLING = 20  # looks

Look = dict[str, tuple[int, int]]


class Sources:
    """What is below folders and ends as a source does, and files that are named, however they end."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places
        self._last = self._look()

    def changed(self) -> list[str]:
        """The files that are new, gone or different since the last call, after they have come to rest."""
        found: set[str] = set()
        for _ in range(MAX_SETTLING):  # an editor or a version control writes several, one after the other
            now = self._look()
            news = {path for path, _ in now.items() ^ self._last.items()}
            self._last = now
            found |= news
            if not news:
                break
            time.sleep(SETTLE_SECONDS)
        return sorted(found)

    def _look(self) -> Look:
        found: Look = {}
        for place in self._places:
            for path in _files(str(place)) if place.is_dir() else [str(place)]:
                try:
                    about = os.stat(path)
                except OSError:  # gone, which is to be seen by its absence
                    continue
                found[path] = (about.st_mtime_ns, about.st_size)
                if len(found) >= MAX_FILES:
                    return found
        return found


def _files(folder: str) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not (name.startswith(".") or name in IGNORED))
        yield from (os.path.join(place, name) for name in sorted(files) if name.endswith(ENDINGS))


def place_of(target: str) -> Path:
    """The folder that the program of a target lives in."""
    name = target.rpartition(":")[0] if ".py:" in target else target
    return Path(name).resolve().parent if name.endswith(".py") else Path.cwd()
