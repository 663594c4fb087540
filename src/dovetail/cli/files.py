"""Files that commands look for and write: replaced as a whole or not at all, never over another program's changes."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp

INSTALLED = {"__pycache__", "node_modules", "site-packages"}  # folders, besides virtual environments


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


def list_files(folder: Path) -> Iterator[Path]:
    """The files below a folder, sorted, but for hidden ones, links and what is installed there. Raises OSError."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and path.name not in INSTALLED and not (path / "pyvenv.cfg").exists():
            yield from list_files(path)
