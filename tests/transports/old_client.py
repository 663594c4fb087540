"""The oldest kind of client over HTTP, and a server whose tools wait for the test."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import Context, Server
from dovetail.transports.http import HttpApp
from http_wire import Exchange, HttpWire

PROMPTLY = 5.0
Serve = Callable[..., HttpApp]


class Stage:
    """A server whose tools wait for the test, and tell it what became of them."""

    def __init__(self, **options: Any) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.server = Server("old", version="1.0.0", **options)
        for tool in (self.add, self.wait, self.large):
            self.server.add_tool(tool)
        self._apps: list[HttpApp] = []

    def serve(self, **options: Any) -> HttpApp:
        self._apps.append(self.server.asgi(**options))
        return self._apps[-1]

    @classmethod
    @asynccontextmanager
    async def live(cls, caplog: pytest.LogCaptureFixture) -> AsyncIterator["Stage"]:
        """For one test: what it served is drained in the end, and nothing was found to complain of."""
        stage = cls()
        yield stage
        stage.go.set()
        for app in stage._apps:
            async with asyncio.timeout(PROMPTLY):
                await app.drain(1)
        assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []

    async def add(self, a: int, b: int) -> int:
        return a + b

    async def wait(self, ctx: Context) -> str:
        await ctx.report_progress(1)
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "done"

    async def large(self, size: int) -> str:
        return "x" * size


class OldClient:
    """What 2024-11-05 calls a client: `await client.ask(method)` POSTs, and waits for the answer on the stream."""

    def __init__(self, app: HttpApp, **headers: str | None) -> None:
        self.wire = HttpWire(app, headers=headers)
        self.stream: Exchange = self.wire.raw("GET", b"", {"accept": "text/event-stream"}, path="/sse")
        self.query = ""

    async def open(self) -> "OldClient":
        first = await self.stream.event()
        assert first.event == "endpoint"
        path, _, self.query = first.data.decode().partition("?")
        assert path == "/messages"
        return self

    def post(self, message: Any, **options: Any) -> Exchange:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.wire.raw("POST", body, path="/messages", query=options.pop("query", self.query), **options)

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        message = {"jsonrpc": "2.0", "id": next(self.wire.ids), "method": method, "params": params or {}}
        posted = await self.post(message).done()
        assert (posted.status, posted.raw) == (202, b""), posted.raw
        while "method" in (answer := await self.stream.message()):
            continue
        assert answer["id"] == message["id"]
        return answer

    @property
    def heard(self) -> list[Any]:
        """All messages so far."""
        return [json.loads(event.data) for event in self.stream.events if event.event == "message"]

    async def call(self, name: str, **arguments: Any) -> Any:
        return (await self.ask("tools/call", {"name": name, "arguments": arguments}))["result"]["content"][0]["text"]

    async def begin(self, name: str) -> None:
        """A call that is not waited for."""
        params = {"name": name, "arguments": {}, "_meta": {"progressToken": "t"}}
        message = {"jsonrpc": "2.0", "id": next(self.wire.ids), "method": "tools/call", "params": params}
        assert (await self.post(message).done()).status == 202

    async def shake_hands(self, version: str = "2024-11-05") -> Any:
        info = {"name": "old", "version": "1"}
        answer = await self.ask("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": info})
        assert (await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).done()).status == 202
        return answer["result"]

    async def leave(self) -> None:
        self.stream.leave()
        await self.stream.done()


@asynccontextmanager
async def connected(app: HttpApp, version: str = "2024-11-05", **headers: str | None) -> AsyncIterator[OldClient]:
    client = await OldClient(app, **headers).open()
    await client.shake_hands(version)
    yield client
    await client.leave()
