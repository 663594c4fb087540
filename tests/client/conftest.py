"""Fixtures of the client: no task left behind, and scripted servers that ask."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from scripted import AskingServer, Behave

from dovetail import Client

Connect = Callable[..., tuple[Client, AskingServer]]


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
def connect() -> Iterator[Connect]:
    """A client, not open yet, and the scripted server that it will talk to; all that it says is judged in the end."""
    servers: list[AskingServer] = []

    def make(revision: str, behave: Behave = lambda message: None, **options: Any) -> tuple[Client, AskingServer]:
        server = AskingServer(revision, behave)
        servers.append(server)
        return Client(server, **{"protocol_version": revision, **options}), server

    yield make
    for server in servers:
        server.judge()
