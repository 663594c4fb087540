"""A process that ends: what its clients see of its streams and of the last answer."""

import asyncio
import socket
import sys
import time

import pytest
from drain_stage import LISTEN

from dovetail.engine.streams import LIST_KINDS, Change
from dovetail.transports import sockets
from dovetail.transports.asgi import Receive, Scope, Send
from dovetail.transports.options import HttpOptions
from dovetail.transports.serve import HttpService
from dovetail.transports.wire_connection import HttpConnection
from http_serving import serving, settle
from http_stage import Stage as ServerStage
from http_stage import text_of
from http_wire import HttpWire

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Slow:
    """An app whose answers begin at once and end when they may."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
        await self.may_end.wait()
        await send({"type": "http.response.body", "body": b"done"})

    async def start(self) -> None: ...
    def begin_drain(self) -> None: ...
    async def drain(self, timeout: float | None = None) -> None:
        await self.may_end.wait()


class Stage:
    def __init__(self) -> None:
        self.app = Slow()
        self._bound = sockets.bind("127.0.0.1", 0)
        self.port = sockets.port_of(self._bound)
        self.service = HttpService(self.app, HttpOptions(port=self.port), self._bound)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


async def test_who_has_ended_its_streams_tells_nothing_more_on_them_while_calls_finish() -> None:
    stage = ServerStage()
    async with serving(stage.server) as app:
        call = (await HttpWire.session(app)).start_call("work")
        await stage.entered.wait()
        listen = HttpWire(app).start("subscriptions/listen", LISTEN)
        await listen.message()
        draining = asyncio.create_task(app.drain(5))
        await settle(3)
        for kind in LIST_KINDS:
            stage.server.engine.publish(Change(kind))
        ended = await listen.done()
        assert "list_changed" not in str(ended.messages)
        assert (await HttpWire(app).call("add", {"a": 1, "b": 2})).status == 503
        stage.go.set()
        assert text_of((await call.done()).answer) == "done"
        await draining


@pytest.mark.skipif(sys.platform != "linux", reason="only there the end can be sent with the last bytes")
async def test_the_end_comes_with_the_last_bytes_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else a client would send its next request into a connection that is about to close."""
    close = HttpConnection.close

    def close_late(self: HttpConnection) -> None:
        time.sleep(0.05)  # as on a machine that has much to do
        close(self)

    monkeypatch.setattr(HttpConnection, "close", close_late)
    stage = Stage()
    await stage.service.start()
    with socket.create_connection(("127.0.0.1", stage.port)) as client:
        client.sendall(REQUEST)
        await asyncio.to_thread(_read_until, client, b"begun \r\n")
        stopping = asyncio.ensure_future(stage.service.stop())
        await asyncio.sleep(0)
        reading = asyncio.create_task(asyncio.to_thread(_last_words, client))
        await asyncio.sleep(0.05)
        stage.app.may_end.set()
        assert await reading == (b"4\r\ndone\r\n0\r\n\r\n", b"")
        await stopping


def _read_until(client: socket.socket, end: bytes) -> None:
    read = b""
    while not read.endswith(end):
        read += client.recv(1000)


def _last_words(client: socket.socket) -> tuple[bytes, bytes]:
    """The last bytes, and what can be read right after them."""
    last = client.recv(1000)
    client.setblocking(False)
    return last, client.recv(1000)
