"""Conversations of the official Python SDK with a server over HTTP, and a wire between them that can be cut."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx2
from mcp import Client, ClientSession, types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from dovetail import Context
from dovetail.reference import create_server
from dovetail.transports.options import HttpOptions
from http_serving import listening
from sdk import PATIENCE, Transcript, negotiate, tapped


class Served:
    """The reference server on a real socket; its lists can grow, and it notes what becomes of a long call."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.interrupted = asyncio.Event()
        self.server = create_server(diagnostics=True, notes=notes)
        self.server.add_tool(self.linger)
        self.app = self.server.asgi()
        self.root = ""

    async def linger(self, ctx: Context) -> None:
        """Do nothing for a minute."""
        await ctx.report_progress(1)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.interrupted.set()
            raise

    def grow(self, name: str) -> None:
        self.server.add_tool(lambda: name, name=name, description="Says its name.")

    @asynccontextmanager
    async def live(self) -> AsyncIterator["Served"]:
        async with listening(self.app, HttpOptions(port=0)) as self.root:
            yield self


class Wire:
    """A TCP proxy: bytes pass both ways until somebody cuts the wire."""

    def __init__(self, root: str) -> None:
        self._target = int(root.rpartition(":")[2])
        self._ends: set[asyncio.StreamWriter] = set()
        self.root = ""

    @asynccontextmanager
    async def laid(self) -> AsyncIterator["Wire"]:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.root = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await asyncio.sleep(0.01)

    def cut(self) -> None:
        """All connections break; new ones are possible."""
        for end in tuple(self._ends):
            end.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._ends |= {writer, far_writer}
        await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
        self._ends -= {writer, far_writer}


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


class Asked(NamedTuple):
    """One HTTP request of the SDK's, and the status of its answer."""

    method: str
    path: str
    headers: dict[str, str]
    status: int
    kind: str


class HttpTalk:
    """`async with talk("2025-06-18") as session`: the SDK's session over HTTP, of that revision."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.transcript = Transcript()
        self.logged: list[types.LoggingMessageNotificationParams] = []
        self.asked: list[Asked] = []

    # ── transports ──

    @asynccontextmanager
    async def streamable(self) -> AsyncIterator[Any]:
        async with (
            self._http() as http,
            streamable_http_client(f"{self.root}/mcp", http_client=http) as (read, write),
        ):
            yield tapped(self.transcript, read, write)

    @asynccontextmanager
    async def sse(self) -> AsyncIterator[Any]:
        async with sse_client(f"{self.root}/sse", httpx_client_factory=self._http) as (read, write):
            yield tapped(self.transcript, read, write)

    def _http(self, **options: Any) -> httpx2.AsyncClient:
        options.setdefault("timeout", httpx2.Timeout(PATIENCE))
        return httpx2.AsyncClient(event_hooks={"response": [self._note]}, trust_env=False, **options)

    async def _note(self, response: httpx2.Response) -> None:
        request = response.request
        kind = response.headers.get("content-type", "")
        self.asked.append(Asked(request.method, request.url.path, dict(request.headers), response.status_code, kind))

    # ── conversations ──

    @asynccontextmanager
    async def __call__(
        self, revision: str, transport: str = "streamable", **options: Any
    ) -> AsyncIterator[ClientSession]:
        with anyio.fail_after(PATIENCE):
            async with (
                getattr(self, transport)() as (read, write),
                ClientSession(read, write, logging_callback=self._log, **options) as session,
            ):
                await negotiate(session, revision)
                assert session.protocol_version == revision
                yield session
        self.transcript.assert_clean()

    def client(self, transport: str = "streamable", **options: Any) -> Client:
        """The SDK's high-level client."""
        return Client(getattr(self, transport)(), **options)

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logged.append(params)


def rewrite(notes: Path, text: str) -> None:
    """In one step, so that a watcher never sees half of it."""
    fresh = notes.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, notes)
