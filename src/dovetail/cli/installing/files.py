"""A configuration file of somebody else's: its path comes in, its text goes out, and a changed text goes back in.

It is replaced as a whole or not at all, its mode and owner are kept, a link is followed to what it points at, and what
was there before is kept beside it.
"""

import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple

MAX_BYTES = 64 * 1024 * 1024
MAX_BACKUPS = 1_000
SECRET_MODE = 0o600


class CantUse(Exception):
    """The file can't be read or written; the message says why, and that nothing was changed."""


class ConfigFile(NamedTuple):
    """What was read."""

    path: Path  # the file itself, not a link to it
    content: bytes | None  # None if there is no such file
    text: str

    @property
    def is_new(self) -> bool:
        return self.content is None


def read(path: Path) -> ConfigFile:
    try:
        place = Path(os.path.realpath(path))
        content = _content(place)
    except OSError as failure:
        raise CantUse(f"{path} can't be read: {failure.strerror or failure}") from None
    if content is not None and len(content) > MAX_BYTES:
        raise CantUse(f"{path} has more than {MAX_BYTES} bytes, which no such file has")
    try:
        return ConfigFile(place, content, (content or b"").decode())
    except UnicodeDecodeError:
        raise CantUse(f"{path} is no text in UTF-8") from None


def _content(place: Path) -> bytes | None:
    if place.exists() and not place.is_file():
        raise CantUse(f"{place} is no file, but something else")
    try:
        with place.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None


def write(file: ConfigFile, text: str, *, has_secrets: bool) -> Path | None:
    """Put the text in the place of what was read. Returns where that is kept now, None if there was nothing."""
    place = file.path
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise CantUse("a name or a path in it is no proper text; nothing was changed") from None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        backup = None if file.content is None else _back_up(place, file.content)
        _replace(file, content, has_secrets)
    except OSError as failure:
        raise CantUse(f"{place} can't be written: {failure.strerror or failure}; it is as it was") from None
    return backup


def _back_up(place: Path, content: bytes) -> Path:
    """Never over an older one."""
    mode = stat.S_IMODE(place.stat().st_mode)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for count in range(1, MAX_BACKUPS):
        backup = place.with_name(f"{place.name}.backup-{stamp}{f'-{count}' if count > 1 else ''}")
        try:
            handle = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), SECRET_MODE)
        except FileExistsError:
            continue
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        backup.chmod(mode)
        return backup
    raise CantUse(f"there is no free name for a backup of {place}; it is as it was")


def _replace(file: ConfigFile, content: bytes, has_secrets: bool) -> None:
    place = file.path
    handle, temporary = mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as output:
            output.write(content)
            output.flush()
            os.fsync(output.fileno())
        _take_after(place, Path(temporary), has_secrets)
        if _content(place) != file.content:
            raise CantUse(f"{place} was changed by somebody else meanwhile; nothing was written, try again")
        os.replace(temporary, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _take_after(place: Path, temporary: Path, has_secrets: bool) -> None:
    """Mode and owner of the file that is there; a new one is as usual, or private."""
    try:
        known = place.stat()
    except FileNotFoundError:
        usual = os.umask(0)
        os.umask(usual)
        temporary.chmod(SECRET_MODE if has_secrets else 0o666 & ~usual)
        return
    if hasattr(os, "chown"):
        with suppress(OSError):
            os.chown(temporary, known.st_uid, known.st_gid)
    temporary.chmod(stat.S_IMODE(known.st_mode))
