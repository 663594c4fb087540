"""The words of ASGI, and one of ours."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]  # a Message, but hosts have types of their own for it
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]


def is_below(path: str, root: str) -> bool:
    """Whether a path is `root` or something below it."""
    return path == root or path.startswith(f"{root}/")


FAST_PATH = "dovetail.fast_path"  # among the extensions of a scope


class FastPath(Protocol):
    """What our own HTTP offers besides ASGI: what is in one piece comes and goes without a message for each part.

    Where it is offered, the task of a request goes on when its client leaves.
    """

    def body(self) -> bytes | None:
        """The whole body, if it is here; asked before the first `receive`, which takes a part of it."""

    def answer(self, status: int, headers: RawHeaders, body: bytes) -> bool:
        """Answer in one piece; the length is told by itself. False if that has to go by `send`."""
