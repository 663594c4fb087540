"""Types of ASGI, and `FastPath`, an extension that Dovetail's own HTTP server offers."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]  # a Message, but hosts have types of their own for it
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]

FAST_PATH = "dovetail.fast_path"  # the key of a FastPath in scope["extensions"]


class FastPath(Protocol):
    """A body or a response in one piece, without ASGI messages. The task of its request outlives a disconnect."""

    def body(self) -> bytes | None:
        """The whole body if it has arrived; to be called before the first `receive`, which takes a part of it."""

    def respond(self, status: int, headers: RawHeaders, body: bytes) -> bool:
        """Send a whole response and its content-length. False if it has to go through `send`."""


def is_below(path: str, root: str) -> bool:
    """Whether a path is `root` or below it."""
    return path == root or path.startswith(f"{root}/")
