"""A file for the sessions of one `dovetail dev`: its URL goes out, and its folder is gone when the command is.

One that was killed could not see to that: the next one does, by the lock that only the living hold.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "dovetail-dev-"
LOCK = "lock"
YOUNG_SECONDS = 10.0  # a folder that is just being made has no lock yet
MOST_SWEPT = 100


@contextmanager
def private_state() -> Iterator[str]:
    """For the time of this command. The prefix of its names is fixed, for the server may change its own."""
    sweep()
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder,
        open(Path(folder, LOCK), "wb") as lock,
    ):
        _takes_lock(lock.fileno())
        yield f"sqlite:///{Path(folder).as_posix().lstrip('/')}/state.db?prefix=dev"


def sweep() -> None:
    """Remove what others of this user's have left behind."""
    if os.name != "posix":
        return  # there a file that is in use can't be told from one that is not
    for folder in list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))[:MOST_SWEPT]:
        with suppress(OSError):
            about = folder.lstat()
            if about.st_uid == os.getuid() and time.time() - about.st_mtime > YOUNG_SECONDS and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    """Whether nobody holds its lock; one without is not ours to judge."""
    if folder.is_symlink():
        return False
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return _takes_lock(descriptor)
    finally:
        os.close(descriptor)


def _takes_lock(descriptor: int) -> bool:
    """Whether it is ours now."""
    if os.name != "posix":
        return False
    import fcntl  # there is none on Windows

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
