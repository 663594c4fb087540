"""Many clients that listen for changes over HTTP: bare sockets, all watched by one epoll, so that they cost little."""

import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.case import CannotMeasure
from benchmarks.http_contender import HttpServer, Offer, Post, call, modern, serving
from benchmarks.load import allow_descriptors

LISTEN = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
CHANGE = call("change", {})
ACKNOWLEDGED, NOTIFIED, CHANGED = b"acknowledged", b"notifications/tools/list_changed", b'"changed"'
CHUNK = 1 << 16
SECONDS = 60.0  # for all of them to be notified
DESCRIPTORS = 4000  # that the driver and the server may have open


@contextmanager
def changing_server(contender: str) -> Iterator[HttpServer]:
    """A server with a tool that changes the list of tools."""
    allow_descriptors(DESCRIPTORS)  # the server inherits that
    program = "http" if contender == "fastmcp" else "listen"  # it is asked whether one can listen
    with serving(contender, Offer(), program) as server:
        yield server


class Listeners:
    """Sockets with a `subscriptions/listen` on each. What they read is kept until it holds what is waited for."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: dict[int, socket.socket] = {}
        self._read: dict[int, bytes] = {}
        self._ready = select.epoll()

    def __len__(self) -> int:
        return len(self._sockets)

    def open(self, count: int) -> None:
        """Open so many more, each acknowledged before the next is opened."""
        request = _bytes(LISTEN, self._port)
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", self._port), SECONDS)
            self._sockets[one.fileno()] = one
            one.sendall(request)
            _read_until(one, ACKNOWLEDGED)
            one.setblocking(False)
            self._ready.register(one.fileno(), select.EPOLLIN)

    def change_ms(self, changer: socket.socket) -> float:
        """Change the list once; the time until the last of them is notified."""
        self._read = dict.fromkeys(self._sockets, b"")
        request = _bytes(CHANGE, self._port)
        began = time.perf_counter()
        changer.sendall(request)
        self._wait_for_all(began + SECONDS)
        took = time.perf_counter() - began
        _read_until(changer, CHANGED)
        return took * 1000

    def _wait_for_all(self, deadline: float) -> None:
        waiting = len(self)
        while waiting:
            events = self._ready.poll(1.0)
            for descriptor, _ in events:
                waiting -= self._read_notification(descriptor)
            if not events and time.perf_counter() > deadline:
                raise CannotMeasure(f"{waiting} of {len(self)} listeners were not notified of the change")

    def _read_notification(self, descriptor: int) -> bool:
        """Read on; whether the notification is complete just now."""
        chunk = self._sockets[descriptor].recv(CHUNK)
        if not chunk:
            raise CannotMeasure("a stream was ended by the server")
        before = self._read[descriptor]
        self._read[descriptor] = before + chunk
        return NOTIFIED in self._read[descriptor] and NOTIFIED not in before

    def close(self) -> None:
        self._ready.close()
        for one in self._sockets.values():
            one.close()
        self._sockets.clear()


@contextmanager
def listeners(server: HttpServer, count: int) -> Iterator[Listeners]:
    """So many listeners, for the time of the block."""
    them = Listeners(server.port)
    try:
        them.open(count)
        yield them
    finally:
        them.close()


def _read_until(one: socket.socket, text: bytes) -> None:
    seen = b""
    while text not in seen:
        chunk = one.recv(CHUNK)
        seen += chunk
        if not chunk or b'"error"' in seen:
            answer = seen.rpartition(b"\r\n\r\n")[2].decode(errors="replace")
            raise CannotMeasure(f"it answers: {answer[:300] or 'nothing'}")


def _bytes(post: Post, port: int) -> bytes:
    named = {"host": f"127.0.0.1:{port}", **post.headers, "content-length": str(len(post.body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"POST /mcp HTTP/1.1\r\n{head}\r\n{post.body}".encode()
