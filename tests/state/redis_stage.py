"""What the tests of the Redis backend share: bounded waiting, a wire that can be cut, a store that only says hello."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from contract import LONG, attempts

from dovetail.state.base import StoreUnavailable
from dovetail.state.redis import RedisState

BOUND = 3.0  # seconds in which every call has to end


async def eventually(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)


async def is_back(state: RedisState) -> bool:
    try:
        await state.check()
    except StoreUnavailable:
        return False
    return True


async def fails_within(state: RedisState, seconds: float) -> None:
    """Every kind of call ends in StoreUnavailable, and soon enough."""
    calls = [attempt() for attempt in attempts(state, "key")]
    calls += [state.check(), state.get("key"), state.touch("key", LONG), state.remaining("key"), state.delete("key")]
    calls += [state.read("log", 0), state.drop("log"), state.publish("topic")]
    began = time.monotonic()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert time.monotonic() - began < seconds
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * len(calls)


class Wire:
    """Stands between a backend and its store, and can be cut before the next answer with a certain text comes back."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.cut_after: bytes | None = None  # a request with this text is passed on, its answer is not
        self.cuts = 0
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["Wire"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await eventually(lambda: not self._open)  # every client has gone

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, out = await asyncio.open_connection("127.0.0.1", self._target)
        self._open.add(out)
        back = asyncio.create_task(self._copy(there, writer))
        try:
            while data := await reader.read(1 << 16):
                cut = self.cut_after is not None and self.cut_after in data
                if cut:
                    back.cancel()
                    await asyncio.wait([back])
                out.write(data)
                await out.drain()
                if cut:
                    self.cut_after = None
                    self.cuts += 1
                    await there.read(1)  # the store has done it
                    break
        finally:
            back.cancel()
            for each in (out, writer):
                each.close()
            with contextlib.suppress(ConnectionError):
                await out.wait_closed()
            self._open.discard(out)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()


@contextlib.asynccontextmanager
async def pretender(answer: bytes = b"", ignores: bytes | None = None, **info_fields: str) -> AsyncIterator[str]:
    """The URL of something that answers INFO like a store of another kind, or everything with these bytes.

    Requests with the text of `ignores` get no answer.
    """
    info = "".join(f"{name}:{value}\r\n" for name, value in info_fields.items())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if ignores is not None and ignores in data:
                continue
            writer.write(answer or b"+OK\r\n" * data.count(b"SETINFO") or f"${len(info)}\r\n{info}\r\n".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
