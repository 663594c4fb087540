"""The words of ASGI."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]  # a Message, but hosts have types of their own for it
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]


def is_below(path: str, root: str) -> bool:
    """Whether a path is `root` or something below it."""
    return path == root or path.startswith(f"{root}/")
