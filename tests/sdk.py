"""Conversations of the official Python SDK with a server over stdio, in any revision, and all that was said in them."""

import json
import logging
import queue
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from logging.handlers import QueueHandler
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, ClientSession, MCPError, StdioServerParameters, stdio_client, types

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
PATIENCE = 20  # seconds for a whole conversation; only a failing one needs them

# The SDK warns of what 2026-07-28 deprecates or removes; older clients go on using it.
deprecations_are_expected = [
    pytest.mark.filterwarnings(f"ignore:{text}:mcp.shared.exceptions.MCPDeprecationWarning")
    for text in ("The logging capability is deprecated", "resources/subscribe is", "resources/unsubscribe is")
]


class Transcript:
    """Both directions as JSON values, in the order in which they passed; it stands between the SDK and the pipe."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self.heard: list[dict[str, Any]] = []
        self._witness = official.Witness()
        self._news = anyio.Event()

    def note_said(self, item: Any) -> None:
        self.said.append(_json(item))
        self._witness.sent(json.dumps(self.said[-1]).encode())

    def note_heard(self, item: Any) -> None:
        assert not isinstance(item, Exception), f"the SDK can't read a line: {item}"
        self.heard.append(_json(item))
        if official.available() and self.heard[-1].get("error") != MADE_UP:
            self._witness.received(json.dumps(self.heard[-1]).encode())
        self._news.set()
        self._news = anyio.Event()

    async def until(self, find: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first message of the server that fits, as soon as it has come."""
        while True:
            for message in self.heard:
                if find(message):
                    return message
            await self._news.wait()

    def notifications(self, method: str) -> list[dict[str, Any]]:
        return [message["params"] for message in self.heard if message.get("method") == method]

    def request(self, method: str) -> dict[str, Any]:
        """The latest request of that method."""
        return next(message for message in reversed(self.said) if message["method"] == method)

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
    return _Tapped(read, transcript.note_heard), _Tapped(write, transcript.note_said)


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


@asynccontextmanager
async def started(transcript: Transcript, program: tuple[str, ...], folder: Path) -> AsyncIterator[Any]:
    """The SDK's own stdio transport to a fresh server, noted."""
    log = folder / "stderr.txt"
    server = StdioServerParameters(command=sys.executable, args=[*program])
    try:
        with no_complaints(), log.open("w") as errlog, anyio.fail_after(PATIENCE):
            async with stdio_client(server, errlog) as (read, write):
                yield tapped(transcript, read, write)
    except Exception as failure:
        failure.add_note(f"The server's stderr: {log.read_text()[-2000:]}")
        raise
    assert "Traceback" not in log.read_text()
    transcript.assert_clean()


class Talk:
    """`async with talk("2025-06-18") as session`: the SDK's session, of that revision."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.transcript = Transcript()
        self.logged: list[types.LoggingMessageNotificationParams] = []

    @asynccontextmanager
    async def __call__(
        self, revision: str, program: tuple[str, ...] = REFERENCE, **options: Any
    ) -> AsyncIterator[ClientSession]:
        async with (
            started(self.transcript, program, self._folder) as (read, write),
            ClientSession(read, write, logging_callback=self._log, **options) as session,
        ):
            await negotiate(session, revision)
            assert session.protocol_version == revision
            yield session

    def client(self, program: tuple[str, ...] = REFERENCE, **options: Any) -> Client:
        return Client(started(self.transcript, program, self._folder), **options)

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logged.append(params)


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
