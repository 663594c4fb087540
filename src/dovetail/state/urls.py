"""Which state backend: what `state=`, `--state` or DOVETAIL_STATE say goes in, a backend comes out.

    memory:                                       of this process alone
    sqlite:///absolute/path  sqlite:relative/path a file for all processes of one host
    redis://host:port/db  rediss://…  unix://…    Redis or Valkey; `rediss` is TLS, `unix` a socket of this host
    redis+sentinel://host:port,host:port/service/db, or rediss+sentinel://…

All names in a shared store stand under a prefix: what `?prefix=` says, else the server's name. Servers with the same
prefix are one fleet. No message shows a URL, for a password may be part of it.
"""

import re
import sys
from urllib.parse import quote, unquote

from dovetail import state
from dovetail.errors import SetupError
from dovetail.state.base import StateBackend

OPTION = "state (DOVETAIL_STATE)"
FORMS = "redis://host:6379/0, rediss://…, unix:///path, redis+sentinel://…, sqlite:///absolute/path or memory:"
MAX_PREFIX = 100  # characters
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}:")


def open_state(url: str | None, server_name: str) -> StateBackend:
    """The backend that a URL stands for; memory if there is none. Raises SetupError if it stands for nothing."""
    if not url:
        return state.memory.MemoryState()
    if not url.isprintable() or " " in url:
        raise SetupError(f"{OPTION}: no URL holds blanks; give one like {FORMS}")
    scheme, _, rest = url.partition(":")
    rest, prefix = _take_prefix(rest)
    prefix = prefix or quote(server_name, safe="", errors="replace")  # which any store can hold
    match scheme.lower():
        case "memory" if rest in ("", "//"):
            return state.memory.MemoryState()
        case "sqlite":
            return state.sqlite.SqliteState(_path(rest), prefix=prefix)
        case "redis" | "rediss" | "unix" | "redis+sentinel" | "rediss+sentinel" if rest.startswith("//"):
            return state.redis.RedisState(f"{scheme.lower()}:{rest}", prefix=prefix)
    wrong = f"{scheme}: is not known, or what follows it is wrong" if SCHEME.match(url) else "this is no URL"
    raise SetupError(f"{OPTION}: {wrong}; give one like {FORMS}")


def _take_prefix(rest: str) -> tuple[str, str]:
    """What follows the scheme without its `prefix`, and that prefix."""
    prefixes = re.findall("[?&]prefix=([^&]*)", rest)
    if not prefixes:
        return rest, ""
    prefix = unquote(prefixes[0])
    if len(prefixes) > 1 or not (prefix.isprintable() and 0 < len(prefix) <= MAX_PREFIX):
        raise SetupError(f"{OPTION}: prefix must stand there once and have 1 to {MAX_PREFIX} printable characters")
    return re.sub("(?<=[?&])prefix=[^&]*&?", "", rest).rstrip("?&"), prefix


def _path(rest: str) -> str:
    """Of a file: `///absolute/path` or `relative/path`."""
    path = unquote(re.sub("^///+", "/", rest))
    if sys.platform == "win32" and re.match(r"/[A-Za-z]:", path):
        path = path[1:]
    if re.match("//(?!/)", rest) or "?" in rest or "\0" in path or not path.strip("/"):
        raise SetupError(
            f"{OPTION}: sqlite: takes the path of a file and no option but prefix: sqlite:///absolute/path or "
            "sqlite:relative; a ? in the path itself is written %3F"
        )
    return path
