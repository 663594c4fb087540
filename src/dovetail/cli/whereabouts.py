"""Where the program of a target is: words of the command line come in; its names, and whether it is there, go out.

Nothing of it is imported or run, and nothing else is loaded for this.
"""

import os
import re
import sys
from typing import Any

NOT_THERE = 222  # the exit code of our process that was told to serve what is not there
CANT_LOAD = 223  # and of one that found it, but could not load it
LIST = ".json"
_HOST = re.compile(r"(localhost|127\.[\d.]+|\[[\da-fA-F:.]+\])(?=[:/?#]|$)|[\w-]+(\.[\w-]+)+(?=:\d|/)")


def in_list(target: str) -> tuple[str, str] | None:
    """The file, and the name of a server in it: `mcp.json:weather`. The name may be left out."""
    place, divided, name = target.partition(f"{LIST}:")
    if divided:
        return f"{place}{LIST}", name
    return (target, "") if target.endswith(LIST) else None


def as_url(target: str) -> str | None:
    """What may be shown of the URL that `127.0.0.1:8000/mcp` could mean."""
    host = _HOST.match(target)
    if host is None:
        return None
    return f"{'http' if host[1] else 'https'}://{re.split('[?#@]', target, maxsplit=1)[0]}"


def split_target(target: str) -> tuple[str, str]:
    """The file or module, and the name in it; the colon of a Windows drive divides nothing."""
    place, colon, name = target.rpartition(":")
    if colon and all(part.isidentifier() for part in name.split(".")):
        return place, name
    return target, ""


def what_is_missing(target: str) -> str | None:
    """Why there can't be such a program; None if there may be one."""
    place, _ = split_target(target)
    if place.endswith(".py"):
        return None if os.path.isfile(place) else f"there is no file {place}"
    if not all(part.isidentifier() for part in place.split(".")):
        return f"{place!r} is neither a Python file nor a module"
    try:
        missing = _missing_module(place)
    except Exception:  # of a finder that is not Python's own: to import it will tell
        return None
    if missing is None:
        return None
    hint = f"; for a file write {place}.py" if os.path.isfile(f"{place}.py") else ""
    return f"there is no module {missing}{hint}"


def _missing_module(name: str) -> str | None:
    """The first part of a dotted name that nothing finds, from the current folder as `python -m` does."""
    here = os.getcwd()
    before = list(sys.path)
    sys.path.insert(0, here)
    try:
        folders: Any = None
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            part = ".".join(parts[:count])
            found = (finder.find_spec(part, folders) for finder in sys.meta_path)
            spec = next((one for one in found if one is not None), None)
            if spec is None:
                return part
            folders = list(spec.submodule_search_locations or ())
        return None
    finally:
        sys.path[:] = before
