"""Queue of programs: `client_turn.py <folder of locks> <program> <arguments>` runs the program when it is its turn.

The suite starts all its scenarios at once, however few cores there are; some of them measure times.
"""

import fcntl
import os
import runpy
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import IO

AT_ONCE = max(2, os.cpu_count() or 2)
PAUSE = 0.05  # seconds between looks


def wait_for_turn(folder: Path) -> IO[bytes]:
    """A lock, which is held as long as it stays open."""
    for number in cycle(range(AT_ONCE)):
        lock = (folder / f"turn-{number}.lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError:
            lock.close()
            time.sleep(PAUSE)
    raise AssertionError("a circle has no end")


if __name__ == "__main__":
    turn = wait_for_turn(Path(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
