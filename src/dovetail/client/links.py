"""What a client is connected by: a target comes in, the link that reaches it goes out.

A link carries whole messages both ways. What arrives goes to its `Receiver`, which also hears that the server is gone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dovetail.client.inprocess import InProcessLink
from dovetail.client.process import ProcessLink
from dovetail.engine.core import Engine
from dovetail.errors import SetupError


class Receiver(Protocol):
    """The end of a link that listens."""

    def receive(self, message: bytes) -> None:
        """Take one message; never raises."""

    def lost(self, reason: str) -> None:
        """The server is gone; nothing more will come."""


class Link(Protocol):
    """One connection to one server."""

    async def open(self, receiver: Receiver) -> None: ...

    def write(self, message: bytes) -> None:
        """Send one message; never blocks."""

    async def drain(self) -> None:
        """Wait while the server reads too slowly."""

    async def close(self) -> None:
        """Leave politely, and for good within a bounded time."""


def link_to(target: Any, env: Mapping[str, str] | None, cwd: str | Path | None) -> Link:
    """A `Server` is reached in process, a command as a child process over stdio."""
    engine = getattr(target, "engine", None)
    if isinstance(engine, Engine):
        if env is not None or cwd is not None:
            raise SetupError("Client: env= and cwd= are for a command; a Server runs in this process")
        return InProcessLink(engine, owner=target)
    if _is_command(target):
        return ProcessLink([str(part) for part in target], env, cwd)
    raise SetupError(
        f"Client: can't connect to {_shown(target)}; give it a Server, or a command as a list of strings "
        'such as ["python", "server.py"]'
    )


def _is_command(target: Any) -> bool:
    if isinstance(target, (str, bytes)) or not isinstance(target, Sequence) or not target:
        return False
    return all(isinstance(part, (str, Path)) for part in target)


def _shown(target: Any) -> str:
    text = repr(target)
    return text if len(text) <= 100 else f"{text[:100]}…"
