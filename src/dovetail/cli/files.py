"""Files that commands write: replaced as a whole or not at all, and never over another program's changes."""

import difflib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp


class FileChanged(OSError):
    """Another program has changed the file since it was read; it is as that program left it."""


def replace_file(path: Path, content: bytes, expected: bytes | None, *, is_private: bool = False) -> None:
    """Replace a file that holds `expected`; None: that is not there. It keeps its mode. Raises OSError.

    `is_private`: a new file is for its owner alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as output:
            output.write(content)
            output.flush()
            os.fsync(output.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        elif not is_private:
            os.chmod(temporary, 0o644)
        if (path.read_bytes() if path.exists() else None) != expected:
            raise FileChanged(f"{path} was changed by another program meanwhile")
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def is_read_only(path: Path) -> bool:
    """Whether nobody may write to the file. It could be replaced all the same, as its folder is what matters then."""
    return not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)


def differing_lines(name: str, before: bytes, after: bytes) -> Iterator[str]:
    """The lines of a diff between two states of a text; nothing if they are the same."""
    old, new = (each.decode("utf-8", "replace").splitlines() for each in (before, after))
    return difflib.unified_diff(old, new, f"{name}, as it is", f"{name}, as it would be", lineterm="")
