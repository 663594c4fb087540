"""Which state backend: what `state=`, `--state` or DOVETAIL_STATE say goes in, a backend comes out.

    memory:                                       of this process alone
    sqlite:///absolute/path  sqlite:relative/path a file for all processes of one host
    redis://host:port/db  rediss://…  unix://…    Redis or Valkey; `rediss` is TLS, `unix` a socket of this host
    redis+sentinel://host:port,host:port/service/db

All names in a shared store stand under a prefix: what `?prefix=` says, else the server's name. Servers with the same
prefix are one fleet. No message shows a URL, for a password may be part of it.
"""

import hashlib
import re
import sys
from urllib.parse import quote, unquote

from dovetail import state
from dovetail.errors import SetupError
from dovetail.state.base import StateBackend

OPTION = "state (DOVETAIL_STATE)"
FORMS = "redis://host:6379/0, rediss://…, unix:///path, redis+sentinel://…, sqlite:///absolute/path or memory:"
MAX_PREFIX = 100  # characters
MAX_URL = 4096  # characters
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}:")


def open_state(url: str | None, server_name: str) -> StateBackend:
    """The backend that a URL stands for; memory if there is none. Raises SetupError if it stands for nothing."""
    if not url:
        return state.memory.MemoryState()
    if len(url) > MAX_URL or not url.isprintable() or " " in url:
        raise SetupError(f"{OPTION}: no URL is that long, or holds blanks; give one like {FORMS}")
    scheme, _, rest = url.partition(":")
    rest, prefix = _take_prefix(rest)
    prefix = prefix or _own_prefix(server_name)
    match scheme.lower():
        case "memory" if rest in ("", "//"):
            return state.memory.MemoryState()
        case "memory":
            raise SetupError(f"{OPTION}: memory: stands alone, nothing may follow")
        case "sqlite":
            return state.sqlite.SqliteState(_path(rest), prefix=prefix)
        case "redis" | "rediss" | "unix" | "redis+sentinel" if rest.startswith("//"):
            return state.redis.RedisState(f"{scheme.lower()}:{rest}", prefix=prefix)
    wrong = f"{scheme}: is not known, or // is missing" if SCHEME.match(url) else "this is no URL"
    raise SetupError(f"{OPTION}: {wrong}; give one like {FORMS}")


def _take_prefix(rest: str) -> tuple[str, str]:
    """What follows the scheme without its `prefix`, and that prefix."""
    address, _, query = rest.partition("?")
    options = query.split("&") if query else []
    prefixes = [unquote(option[7:]) for option in options if option.startswith("prefix=")]
    if not prefixes:
        return rest, ""
    if len(prefixes) > 1 or not (prefixes[0].isprintable() and 0 < len(prefixes[0]) <= MAX_PREFIX):
        raise SetupError(f"{OPTION}: prefix must stand there once and have 1 to {MAX_PREFIX} printable characters")
    others = "&".join(option for option in options if not option.startswith("prefix="))
    return f"{address}?{others}" if others else address, prefixes[0]


def _own_prefix(server_name: str) -> str:
    """What is safe in the keys of any store, and different for different names."""
    prefix = quote(server_name, safe="", errors="replace")
    if len(prefix) <= MAX_PREFIX:
        return prefix
    digest = hashlib.sha256(prefix.encode()).hexdigest()[:24]
    return f"{prefix[: MAX_PREFIX - 25]}-{digest}"


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
