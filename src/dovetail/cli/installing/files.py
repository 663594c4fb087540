"""A configuration file of somebody else's: its path comes in, its text goes out, and a changed text goes back in.

It is replaced as a whole or not at all, its mode and owner are kept, a link is followed to what it points at, and what
was there before is kept: beside it, or in a folder for that.
"""

import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple

MAX_BYTES = 64 * 1024 * 1024
MAX_BACKUPS = 1_000
PRIVATE = 0o600
_FOR_ALL_TO_READ = stat.S_IRGRP | stat.S_IROTH
_TO_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


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


def refuse_read_only(file: ConfigFile) -> None:
    """Somebody has said that it shall stay as it is; whoever may write to its folder could replace it all the same."""
    if file.is_new:
        return
    try:
        is_open = file.path.stat().st_mode & _TO_WRITE and os.access(file.path, os.W_OK)
    except OSError as failure:
        raise CantUse(f"{file.path} can't be written: {failure.strerror or failure}") from None
    if not is_open:
        how = "take its read-only mark away" if os.name == "nt" else f"chmod u+w {file.path}"
        raise CantUse(f"{file.path} is read-only; nothing was changed. To allow it: {how}")


def is_for_others(place: Path) -> bool:
    """Whether more people than its owner may read it."""
    return os.name == "posix" and bool(place.stat().st_mode & _FOR_ALL_TO_READ)


def backup_folder(platform: str = sys.platform) -> Path:
    """Where what was in the files of projects is kept: beside them it would get into their repositories."""
    home = Path.home()
    if platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state")
    return base / "dovetail" / "backups"


def write(file: ConfigFile, text: str, *, is_private: bool, backups: Path | None = None) -> Path | None:
    """Put the text in the place of what was read. Returns where that is kept now, None if there was nothing.

    A new file `is_private` or as usual. Backups are kept beside the file, or in the folder `backups`.
    """
    place = file.path
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise CantUse("a name or a path in it is no proper text; nothing was changed") from None
    refuse_read_only(file)
    backup = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        backup = None if file.content is None else _back_up(file, backups)
        _replace(file, content, is_private)
    except BaseException as failure:
        if backup is not None and (isinstance(failure, CantUse) or _is_as_it_was(file)):
            with suppress(OSError):
                backup.unlink()  # nothing was replaced
        if isinstance(failure, OSError):
            raise CantUse(f"{place} can't be written: {failure.strerror or failure}; it is as it was") from None
        raise
    return backup


def _is_as_it_was(file: ConfigFile) -> bool:
    try:
        return _content(file.path) == file.content
    except (OSError, CantUse):
        return False


def _back_up(file: ConfigFile, folder: Path | None) -> Path:
    """Never over an older one."""
    place = file.path
    folder = place.parent if folder is None else _folder_for(place, folder)
    mode = stat.S_IMODE(place.stat().st_mode)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for count in range(1, MAX_BACKUPS):
        name = f"{place.name}.backup-{stamp}{f'-{count}' if count > 1 else ''}"
        backup = folder / name
        try:
            handle = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), PRIVATE)
        except FileExistsError:
            continue
        try:
            _fill(handle, file.content or b"")
            backup.chmod(mode)
        except BaseException:
            with suppress(OSError):
                backup.unlink()
            raise
        return backup
    raise CantUse(f"there is no free name for a backup of {place}; it is as it was")


def _folder_for(place: Path, backups: Path) -> Path:
    """The path is mirrored in it, so that everybody finds what is theirs."""
    folder = backups.joinpath(*place.parent.parts[1:])
    try:
        backups.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        words = f"{backups} can't be used for a copy of {place}: {failure.strerror or failure}"
        raise CantUse(f"{words}; nothing was changed") from None
    return folder


def _fill(handle: int, content: bytes) -> None:
    """What is on the disk then survives a loss of power."""
    with os.fdopen(handle, "wb") as output:
        output.write(content)
        output.flush()
        os.fsync(output.fileno())


def _replace(file: ConfigFile, content: bytes, is_private: bool) -> None:
    place = file.path
    handle, temporary = mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        _fill(handle, content)
        _take_after(place, Path(temporary), is_private)
        if _content(place) != file.content:
            raise CantUse(f"{place} was changed by somebody else meanwhile; nothing was written, try again")
        os.replace(temporary, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _take_after(place: Path, temporary: Path, is_private: bool) -> None:
    """Mode and owner of the file that is there; a new one is private, or as usual."""
    try:
        known = place.stat()
    except FileNotFoundError:
        usual = os.umask(0)
        os.umask(usual)
        temporary.chmod(PRIVATE if is_private else 0o666 & ~usual)
        return
    if hasattr(os, "chown"):
        with suppress(OSError):
            os.chown(temporary, known.st_uid, known.st_gid)
    temporary.chmod(stat.S_IMODE(known.st_mode))
