"""Sockets that another process has bound and handed to this one: while they are entered, `run()` serves at them.

In: the sockets, and whom to tell when all is ready. Out: what `serve_http` takes instead of binding by itself. Whoever
holds the sockets says where the server listens, so nothing is announced.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import socket as Socket
from typing import NamedTuple


class Handover(NamedTuple):
    sockets: list[Socket]  # empty where they can't be inherited: then the server binds its own
    started: Callable[[], None]


_current: list[Handover] = []


@contextmanager
def handed(sockets: list[Socket], started: Callable[[], None]) -> Iterator[None]:
    _current.append(Handover(sockets, started))
    try:
        yield
    finally:
        _current.pop()


def handed_over() -> Handover | None:
    return _current[-1] if _current else None
