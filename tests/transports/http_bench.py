"""A small ASGI app on the real wire, in a thread of its own, and raw sockets to poke at it with."""

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dovetail.transports.options import HttpOptions
from dovetail.transports.serve import serving

PROMPTLY = 15.0
CHUNK = b"x" * 65536


class PokedApp:
    """Answers what it was asked; `seen` holds what else is worth knowing."""

    def __init__(self) -> None:
        self.requests = 0
        self.seen: dict[str, Any] = {}
        self.left = threading.Event()  # a client of /stream

    async def start(self) -> None: ...
    def begin_drain(self) -> None: ...
    async def drain(self, timeout: float | None = None) -> None: ...

    async def __call__(self, scope, receive, send) -> None:
        self.requests += 1
        await getattr(self, "at_" + scope["path"].strip("/"))(scope, receive, send)

    async def at_echo(self, scope, receive, send) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.seen["left in mid-body"] = True
                return
            body += message["body"]
            if not message["more_body"]:
                break
        headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]]
        said = {"method": scope["method"], "query": scope["query_string"].decode(), "headers": headers}
        await answer(send, json.dumps({**said, "body": body.decode("latin-1")}).encode())

    async def at_unread(self, scope, receive, send) -> None:
        await answer(send, b'{"error":"too large"}', 413)

    async def at_fail(self, scope, receive, send) -> None:
        raise ValueError("a secret detail")

    async def at_fail_late(self, scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        raise ValueError("a secret detail")

    async def at_silent(self, scope, receive, send) -> None: ...

    async def at_slow(self, scope, receive, send) -> None:
        await asyncio.sleep(0.3)
        await answer(send, b'"slow"')

    async def at_stream(self, scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()

    async def at_flood(self, scope, receive, send) -> None:
        self.seen["sent"] = 0
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(4000):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            self.seen["sent"] += len(CHUNK)


async def answer(send, body: bytes, status: int = 200) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Bench:
    """The app at a port, and connections to it."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop], options: dict[str, Any]) -> None:
        self.app = PokedApp()
        self.port = 0
        self._options = HttpOptions(port=0, **options)
        self._new_loop = new_loop
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PROMPTLY)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        async with serving(self.app, self._options) as url:
            self.port = int(url.rpartition(":")[2])
            self._ready.set()
            await self._end.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PROMPTLY)
        assert not self._thread.is_alive()

    def connect(self, **options: Any) -> "Poke":
        return Poke(self.port, **options)

    def ask(self, data: bytes) -> "Answer":
        with self.connect() as poke:
            poke.send(data)
            return poke.answer()

    def still_serves(self) -> bool:
        return self.ask(get("/echo")).status == 200


class Answer:
    def __init__(self, head: bytes, body: bytes) -> None:
        line, *rest = head.decode("latin-1").split("\r\n")
        self.status = int(line.split()[1])
        self.headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest)}
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def refusal(self) -> str:
        """The message of a refusal, which must have the one right form."""
        assert self.headers["content-type"] == "application/json"
        assert set(self.json) == {"jsonrpc", "error"}
        assert self.json["jsonrpc"] == "2.0"
        return self.json["error"]["message"]


class Poke:
    """A raw connection."""

    def __init__(self, port: int, *, small_buffer: bool = False) -> None:
        self.socket = socket.socket()
        if small_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self.socket.settimeout(PROMPTLY)
        self.socket.connect(("127.0.0.1", port))
        self._received = b""

    def __enter__(self) -> "Poke":
        return self

    def __exit__(self, *details: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_until_refused(self, piece: bytes, most: int) -> int:
        """How much of it was taken."""
        sent = 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while sent < most:
                self.socket.sendall(piece)
                sent += len(piece)
        return sent

    def _more(self) -> bool:
        data = self.socket.recv(65536)
        self._received += data
        return bool(data)

    def answer(self) -> Answer:
        while b"\r\n\r\n" not in self._received:
            assert self._more(), self._received
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        length = int(Answer(head, b"").headers["content-length"])
        while len(self._received) < length:
            assert self._more(), self._received
        body, self._received = self._received[:length], self._received[length:]
        return Answer(head, body)

    def wait_for(self, text: bytes) -> None:
        while text not in self._received:
            assert self._more(), self._received

    def rest(self) -> bytes:
        """Until the server closes."""
        with contextlib.suppress(ConnectionResetError):
            while self._more():
                pass
        rest, self._received = self._received, b""
        return rest


def get(path: str, *headers: bytes) -> bytes:
    return b"\r\n".join([b"GET %b HTTP/1.1" % path.encode(), b"Host: x", *headers, b"", b""])


def post(path: str, *headers: bytes, body: bytes | None = None) -> bytes:
    if body is not None:
        headers = (*headers, b"Content-Length: %d" % len(body))
    return b"\r\n".join([b"POST %b HTTP/1.1" % path.encode(), b"Host: x", *headers, b"", body or b""])


def memory() -> int:
    """Of this process, now, in MiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("VmRSS"))


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PROMPTLY
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def benches(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[Callable[..., Bench]]:
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> Bench:
            bench = Bench(new_loop, options)
            stack.callback(bench.close)
            return bench

        yield start


Start = Callable[..., Bench]


def loop_kinds() -> list[object]:
    """Both in `make test`; in `make check` the one that a server has where there is a choice."""
    if sys.platform == "win32":
        return [asyncio.new_event_loop]
    import uvloop

    return [
        pytest.param(uvloop.new_event_loop, id="uvloop"),
        pytest.param(asyncio.new_event_loop, id="asyncio", marks=pytest.mark.slow),
    ]
