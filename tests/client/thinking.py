"""Handlers that take their time, and servers that take their questions back."""

import asyncio
from typing import Any

import pytest
from asking_server import (
    HANDSHAKES,
    AskingServer,
)

every_handshake = pytest.mark.parametrize("revision", HANDSHAKES)
NEWEST = "2025-11-25"


async def turn() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def withdraw(server: AskingServer, id: Any) -> None:
    server.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})


class Thinking:
    """A handler that takes its time."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.stopped = asyncio.Event()

    async def __call__(self, question: Any) -> dict[str, Any]:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return {"name": "Ada"}
