"""A process that takes over from another one at the same sockets: while it is entered, `run()` serves at them.

In: the sockets, when to begin, and whom to tell of what has happened. Out: what `serve_http` goes by instead of binding
by itself. Whoever holds the sockets says where the server listens, so nothing is announced.
"""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from socket import socket as Socket
from typing import Any, NamedTuple


class Handover(NamedTuple):
    sockets: list[Socket]  # empty where they can't be inherited: then the server binds its own
    turn: Callable[[], Coroutine[Any, Any, None]]  # called when all is ready; nothing is accepted before it returns
    serving: Callable[[], None]  # from now on it is
    let_go: Callable[[], None]  # and from now on never more; its streams are ended, while calls may go on


_current: list[Handover] = []


@contextmanager
def handed(handover: Handover) -> Iterator[None]:
    _current.append(handover)
    try:
        yield
    finally:
        _current.pop()


def handed_over() -> Handover | None:
    return _current[-1] if _current else None
