"""What the tests share: no waiting, and nothing left behind; and servers that ask."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from asking_server import AskingServer, Behave

from dovetail import Client
from dovetail.client import backoff

Connect = Callable[..., tuple[Client, AskingServer]]


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are tried again at once."""
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(backoff, "LONGEST_SECONDS", 0.05)
    monkeypatch.setattr(backoff, "SHORTEST_SECONDS", 0.001)
    monkeypatch.setattr(backoff, "LONGEST_RETRY_SECONDS", 0.05)


@pytest.fixture
async def tidy() -> AsyncIterator[None]:
    """No task is left behind; what is left of sockets makes a warning, and warnings are errors."""
    yield
    for _ in range(20):
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if not left:
            break
        await asyncio.sleep(0.01)
    assert not left
    gc.collect()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """A client, not open yet, and the scripted server that it will talk to; all that it says is judged in the end."""
    servers: list[AskingServer] = []

    def make(revision: str, behave: Behave = lambda message: None, **options: Any) -> tuple[Client, AskingServer]:
        server = AskingServer(revision, behave)
        servers.append(server)
        monkeypatch.setattr("dovetail.client.client.link_to", lambda *target, **link_options: server)
        return Client(["any"], **{"protocol_version": revision, **options}), server

    yield make
    for server in servers:
        server.judge()
