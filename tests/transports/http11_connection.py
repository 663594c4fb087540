"""A connection of HTTP/1.1 without a socket: sends bytes piece by piece, and reads what was written as responses."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dovetail.transports.http.options import HttpOptions
from dovetail.transports.http11.protocol import ServerState

TURNS = 12  # of the loop, after which an app that waits for nothing has answered


class ManualClock:
    """An event loop whose time goes on only by `advance()`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []
        self._now = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self._now

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> asyncio.TimerHandle:
        self._timers.append(asyncio.TimerHandle(self._now + seconds, call, arguments, self._loop))
        return self._timers[-1]

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while due := [timer for timer in self._timers if not timer.cancelled() and timer.when() <= end]:
            first = min(due, key=asyncio.TimerHandle.when)
            self._timers.remove(first)
            self._now = first.when()
            first._run()
        self._now = end


class Line(asyncio.Transport):
    """The transport, and the client at its other end."""

    def __init__(self, protocol: Any) -> None:
        super().__init__({"peername": ("192.0.2.1", 5000), "sockname": ("192.0.2.2", 80)})
        self.protocol = protocol
        self.written: list[bytes] = []
        self.closed = False
        self.half_closed = False
        self.aborted = False
        self.unread = [0]  # bytes that wait for the client, each time that is asked
        self.paused = False
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        assert not self.closed
        assert not self.half_closed
        self.written.append(bytes(data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.aborted = True
        self.close()

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unread.pop(0) if len(self.unread) > 1 else self.unread[0]

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    async def feed(self, pieces: Iterable[bytes]) -> int:
        """How many bytes were taken: nothing goes to a connection that is closed, or that does not read."""
        taken = 0
        for piece in pieces:
            for _ in range(TURNS):
                if not self.paused:
                    break
                await asyncio.sleep(0)
            if self.paused or self.closed or not piece:
                break
            self.protocol.data_received(piece)
            taken += len(piece)
        return taken

    async def say(self, *pieces: bytes) -> None:
        await self.feed(pieces)
        await self.settle()

    async def settle(self, times: int = 1) -> None:
        for _ in range(TURNS * 4 * times):
            await asyncio.sleep(0)

    async def wait(self, seconds: float) -> None:
        """Let time pass, as the server sees it."""
        self.protocol.state.loop.advance(seconds)
        await self.settle()

    @property
    def said(self) -> bytes:
        return b"".join(self.written)

    @property
    def ended(self) -> bool:
        return self.closed or self.half_closed

    async def hang_up(self) -> None:
        self.close()
        await self.settle()


def wire_to(app: Any, **options: Any) -> Line:
    return Line(server_state(app, **options).new_protocol())


def server_state(app: Any, **options: Any) -> ServerState:
    state = ServerState(app, HttpOptions(**options))
    state.loop = ManualClock()  # type: ignore[assignment]
    return state


async def line_to(app: Any, *pieces: bytes, **options: Any) -> Line:
    """A connection that has taken these pieces, one after the other."""
    line = wire_to(app, **options)
    for piece in pieces:
        await line.say(piece)
    return line


def uvicorn_to(app: Any) -> Line:
    from uvicorn.config import Config
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    from uvicorn.server import ServerState

    config = Config(app, lifespan="off", log_config=None, proxy_headers=False, ws="none", http=HttpToolsProtocol)
    protocol = HttpToolsProtocol(config, ServerState(), {}, asyncio.get_running_loop())
    protocol.access_log = False
    return Line(protocol)


class Reply(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        return dict(self.headers).get(name)


def replies(said: bytes, methods: Iterable[str]) -> list[Reply]:
    """What a client would understand; fails where it could not."""
    found = []
    waiting = iter(methods)
    while said:
        head, end, said = said.partition(b"\r\n\r\n")
        assert end, head
        line, *rest = head.split(b"\r\n")
        version, status, _ = line.split(b" ", 2)
        assert version == b"HTTP/1.1"
        if status == b"100":
            continue
        headers = [tuple(each.split(b": ", 1)) for each in rest]
        fields = dict(headers)
        body = b""
        if next(waiting) == "HEAD" or status in (b"204", b"304"):
            pass
        elif fields.get(b"transfer-encoding") == b"chunked":
            body, said = _unchunk(said)
        elif b"content-length" in fields:
            length = int(fields[b"content-length"])
            assert len(said) >= length
            body, said = said[:length], said[length:]
        else:
            body, said = said, b""
        found.append(Reply(int(status), headers, body))
    return found


def _unchunk(said: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, said = said.partition(b"\r\n")
        length = int(size, 16)
        piece, said = said[:length], said[length:]
        assert said[:2] == b"\r\n"
        body, said = body + piece, said[2:]
        if not length:
            return body, said


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """In pieces, none of them empty; places beyond the end count from the beginning again."""
    cuts = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a != b]
