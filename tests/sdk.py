"""Conversations of the official Python SDK with a server, over stdio and HTTP, and all that was said in them."""

import json
import logging
import os
import queue
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from logging.handlers import QueueHandler
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx2
import pytest
from mcp import Client, ClientSession, MCPError, StdioServerParameters, stdio_client, types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

import official

HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
HANDSHAKE, MODERN = HANDSHAKES[-1], "2026-07-28"
REVISIONS = (*HANDSHAKES, MODERN)
OLDER = [pytest.param(revision, marks=pytest.mark.slow) for revision in HANDSHAKES[:-1]]
every_handshake = pytest.mark.parametrize("revision", [*OLDER, HANDSHAKE])
every_revision = pytest.mark.parametrize("revision", [*OLDER, HANDSHAKE, MODERN])
both_eras = pytest.mark.parametrize("revision", [HANDSHAKE, MODERN])

REFERENCE = ("-m", "dovetail.reference")
GROWING = str(Path(__file__).parent / "programs_sdk" / "growing.py")
NOTES = "reference://notes.md"
INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND, REQUEST_TIMEOUT = -32602, -32601, -32002, -32001
CONVERSATION_TIMEOUT = 20  # seconds for a whole conversation; only a failing one needs them

# The SDK warns of what 2026-07-28 deprecates or removes; older clients go on using it.
deprecations_are_expected = [
    pytest.mark.filterwarnings(f"ignore:{text}:mcp.shared.exceptions.MCPDeprecationWarning")
    for text in ("The logging capability is deprecated", "resources/subscribe is", "resources/unsubscribe is")
]


class Transcript:
    """Both directions as JSON values, in the order in which they passed; it stands between the SDK and the pipe."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []
        self._witness = official.Witness()
        self._news = anyio.Event()

    def note_said(self, item: Any) -> None:
        self.said.append(_json(item))
        self._witness.sent(json.dumps(self.said[-1]).encode())

    def note_received(self, item: Any) -> None:
        assert not isinstance(item, Exception), f"the SDK can't read a line: {item}"
        self.received.append(_json(item))
        if official.available() and self.received[-1].get("error") != MADE_UP:
            self._witness.received(json.dumps(self.received[-1]).encode())
        self._news.set()
        self._news = anyio.Event()

    async def until(self, find: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first message of the server that fits, as soon as it has come."""
        while True:
            for message in self.received:
                if find(message):
                    return message
            await self._news.wait()

    def notifications(self, method: str) -> list[dict[str, Any]]:
        return [message["params"] for message in self.received if message.get("method") == method]

    def assert_clean(self) -> None:
        self._witness.assert_clean()


# What the SDK tells itself when a connection breaks; no server has said it.
MADE_UP = {"code": -32000, "message": "SSE stream ended without a response"}


def _json(item: Any) -> dict[str, Any]:
    return item.message.model_dump(mode="json", by_alias=True, exclude_unset=True)


class _Tapped:
    """One of the SDK's two streams: everything is handed on, and noted."""

    def __init__(self, stream: Any, note: Callable[[Any], None]) -> None:
        self._stream = stream
        self._note = note

    async def send(self, item: Any) -> None:
        self._note(item)
        await self._stream.send(item)

    async def receive(self) -> Any:
        item = await self._stream.receive()
        self._note(item)
        return item

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aiter__(self) -> AsyncIterator[Any]:
        with suppress(anyio.EndOfStream):
            while True:
                yield await self.receive()

    async def __aenter__(self) -> "_Tapped":
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.aclose()


def tapped(transcript: Transcript, read: Any, write: Any) -> tuple[Any, Any]:
    return _Tapped(read, transcript.note_received), _Tapped(write, transcript.note_said)


@contextmanager
def no_complaints() -> Iterator[None]:
    """The SDK found nothing to warn of."""
    complaints = queue.SimpleQueue[logging.LogRecord]()
    handler = QueueHandler(complaints)
    handler.setLevel(logging.WARNING)
    loggers = [logging.getLogger(name) for name in ("mcp", "client")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert complaints.empty(), complaints.get_nowait()


class _Conversation:
    """What was said in it, and what the server logged."""

    def __init__(self) -> None:
        self.transcript = Transcript()
        self.logged: list[types.LoggingMessageNotificationParams] = []

    @asynccontextmanager
    async def _session(self, streams: Any, revision: str, **options: Any) -> AsyncIterator[ClientSession]:
        with anyio.fail_after(CONVERSATION_TIMEOUT):
            async with (
                streams as (read, write),
                ClientSession(read, write, logging_callback=self._log, **options) as session,
            ):
                await negotiate(session, revision)
                assert session.protocol_version == revision
                yield session
        self.transcript.assert_clean()

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logged.append(params)


class Talk(_Conversation):
    """`async with talk("2025-06-18") as session`: the SDK's session with a fresh process, of that revision."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __call__(self, revision: str, program: tuple[str, ...] = REFERENCE, **options: Any) -> Any:
        return self._session(self._started(program), revision, **options)

    def client(self, program: tuple[str, ...] = REFERENCE, **options: Any) -> Client:
        return Client(self._started(program), **options)

    @asynccontextmanager
    async def _started(self, program: tuple[str, ...]) -> AsyncIterator[Any]:
        log = self._folder / "stderr.txt"
        server = StdioServerParameters(command=sys.executable, args=[*program])
        try:
            with no_complaints(), log.open("w") as errlog, anyio.fail_after(CONVERSATION_TIMEOUT):
                async with stdio_client(server, errlog) as (read, write):
                    yield tapped(self.transcript, read, write)
        except Exception as failure:
            failure.add_note(f"The server's stderr: {log.read_text()[-2000:]}")
            raise
        assert "Traceback" not in log.read_text()
        self.transcript.assert_clean()


class Asked(NamedTuple):
    """One HTTP request of the SDK's, and the status of its answer."""

    method: str
    path: str
    headers: dict[str, str]
    status: int
    kind: str


class HttpTalk(_Conversation):
    """The same over HTTP, with a server that is there."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self.root = root
        self.asked: list[Asked] = []

    def __call__(self, revision: str, transport: str = "streamable", **options: Any) -> Any:
        return self._session(getattr(self, transport)(), revision, **options)

    def client(self, transport: str = "streamable", **options: Any) -> Client:
        return Client(getattr(self, transport)(), **options)

    @asynccontextmanager
    async def streamable(self) -> AsyncIterator[Any]:
        async with self.http() as http, streamable_http_client(f"{self.root}/mcp", http_client=http) as (read, write):
            yield tapped(self.transcript, read, write)

    @asynccontextmanager
    async def sse(self) -> AsyncIterator[Any]:
        async with sse_client(f"{self.root}/sse", httpx_client_factory=self.http) as (read, write):
            yield tapped(self.transcript, read, write)

    def http(self, **options: Any) -> httpx2.AsyncClient:
        options.setdefault("timeout", httpx2.Timeout(CONVERSATION_TIMEOUT))
        return httpx2.AsyncClient(event_hooks={"response": [self._note]}, trust_env=False, **options)

    async def _note(self, response: httpx2.Response) -> None:
        request = response.request
        kind = response.headers.get("content-type", "")
        self.asked.append(Asked(request.method, request.url.path, dict(request.headers), response.status_code, kind))


class Interest:
    """A scope for a call that is given up at its first sign of life."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()

    async def lose(self, progress: float, total: float | None, message: str | None) -> None:
        self.scope.cancel()

    async def keep(self, progress: float, total: float | None, message: str | None) -> None:
        pass


async def negotiate(session: ClientSession, revision: str) -> None:
    """The SDK itself asks for the newest handshake only; for the older ones it lets us write the request."""
    if revision == MODERN:
        await session.discover()
    elif revision == HANDSHAKE:
        await session.initialize()
    else:
        params = types.InitializeRequestParams(
            protocol_version=revision,
            capabilities=types.ClientCapabilities(),
            client_info=types.Implementation(name="older client", version="1.0"),
        )
        session.adopt(await session.send_request(types.InitializeRequest(params=params), types.InitializeResult))
        await session.send_notification(types.InitializedNotification())


@contextmanager
def refused(code: int) -> Iterator[pytest.ExceptionInfo[MCPError]]:
    with pytest.raises(MCPError) as failure:
        yield failure
    assert failure.value.code == code, failure.value


def only_text(result: types.CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return content.text


def rewrite(notes: Path, text: str) -> None:
    """In one step, so that a watcher never sees half of it."""
    fresh = notes.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, notes)
