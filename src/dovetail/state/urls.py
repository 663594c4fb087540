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
from collections.abc import Callable
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
        return _open_memory("", "")
    if len(url) > MAX_URL or not url.isprintable() or " " in url:
        raise SetupError(f"{OPTION}: no URL is that long, or holds blanks; give one like {FORMS}")
    scheme, _, rest = url.partition(":")
    opener = OPENERS.get(scheme.lower())
    if opener is None:
        wrong = f"{scheme}: is not known" if SCHEME.match(url) else "this is no URL"
        raise SetupError(f"{OPTION}: {wrong}; give one like {FORMS}")
    address, prefix = _take_prefix(f"{scheme.lower()}:{rest}")
    return opener(address, prefix or _own_prefix(server_name))


def _take_prefix(url: str) -> tuple[str, str]:
    """The URL without its `prefix`, and that prefix."""
    address, _, query = url.partition("?")
    options = query.split("&") if query else []
    others = [option for option in options if not option.startswith("prefix=")]
    if len(others) == len(options):
        return url, ""
    prefix = unquote(next(option for option in options if option not in others).removeprefix("prefix="))
    if len(others) < len(options) - 1 or not (prefix.isprintable() and 0 < len(prefix) <= MAX_PREFIX):
        raise SetupError(f"{OPTION}: prefix must stand there once and have 1 to {MAX_PREFIX} printable characters")
    return (f"{address}?{'&'.join(others)}" if others else address), prefix


def _own_prefix(server_name: str) -> str:
    """What is safe in the keys of any store, and different for different names."""
    prefix = quote(server_name, safe="", errors="replace")
    if len(prefix) <= MAX_PREFIX:
        return prefix
    digest = hashlib.sha256(prefix.encode()).hexdigest()[:24]
    return f"{prefix[: MAX_PREFIX - 25]}-{digest}"


def _open_memory(address: str, _prefix: str) -> StateBackend:
    if address not in ("", "memory:", "memory://"):
        raise SetupError(f"{OPTION}: memory: stands alone, nothing may follow")
    return state.memory.MemoryState()


def _open_sqlite(address: str, prefix: str) -> StateBackend:
    path, mark, _ = address.removeprefix("sqlite:").partition("?")
    if mark:
        raise SetupError(f"{OPTION}: sqlite: takes no option but prefix; a ? in the path itself is written %3F")
    if path.startswith("//"):
        if not path.startswith("///"):
            raise SetupError(
                f"{OPTION}: sqlite://name is not possible; write sqlite:///absolute/path or sqlite:relative"
            )
        path = "/" + path.lstrip("/")
    path = unquote(path)
    if sys.platform == "win32" and re.match(r"/[A-Za-z]:", path):
        path = path[1:]
    if not path.strip("/") or "\0" in path:
        raise SetupError(f"{OPTION}: sqlite: needs the path of a file: sqlite:///absolute/path or sqlite:relative")
    return state.sqlite.SqliteState(path, prefix=prefix)


def _open_redis(address: str, prefix: str) -> StateBackend:
    if not address.partition(":")[2].startswith("//"):
        raise SetupError(f"{OPTION}: after {address.partition(':')[0]}: come two slashes, as in {FORMS}")
    return state.redis.RedisState(address, prefix=prefix)


OPENERS: dict[str, Callable[[str, str], StateBackend]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "redis": _open_redis,
    "rediss": _open_redis,
    "unix": _open_redis,
    "redis+sentinel": _open_redis,
}
