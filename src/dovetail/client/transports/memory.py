"""In-process transport: messages cross through the event loop, each side in its own context."""

import asyncio
import contextvars
from typing import Any

from dovetail.auth.principal import Principal
from dovetail.client.transports.base import OutgoingMessage, Receiver, Transport
from dovetail.engine.connection import Connection
from dovetail.engine.engine import Engine
from dovetail.errors import INVALID_REQUEST, NotSignedIn, ProtocolError, ServerError, Unauthorized
from dovetail.transports.pipes import LineSplitter, as_line


class MemoryTransport(Transport):
    """Connects to an engine; the caller is the principal, or that of the token."""

    def __init__(self, engine: Engine, owner: Any, token: str | None, principal: Principal | None) -> None:
        self._engine = engine
        self._owner = owner
        self._token = token
        self._principal = principal
        self._connection: Connection | None = None
        self._empty_context = contextvars.Context()  # a server never sees its client's context variables

    async def open(self, receiver: Receiver) -> None:
        await self._engine.start(self._owner)
        try:
            principal = await self._caller()
        except BaseException:
            await self._engine.stop()
            raise
        self._connection = Connection(self._engine, _ClientPipe(receiver), principal=principal, in_process=True)

    async def _caller(self) -> Principal | None:
        """The caller; a token that is refused raises what it does over HTTP."""
        auth = self._engine.options.auth
        if self._token is None or auth is None:
            return self._principal
        principal = await auth.verify(self._token)
        if principal is None:
            raise NotSignedIn("The token is not good, or not any more")
        if not principal.scopes >= auth.scopes:
            raise ServerError(INVALID_REQUEST, Unauthorized.for_scopes(auth.scopes).message)
        return principal

    def write(self, message: OutgoingMessage) -> None:
        if self._connection is not None:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._feed, self._connection, message.body, context=self._empty_context)

    def _feed(self, connection: Connection, message: bytes) -> None:
        limit = self._engine.options.max_message_bytes
        for line in LineSplitter(limit).feed(message + b"\n"):
            if line is None:
                connection.reject(ProtocolError(f"message larger than {limit} bytes", code=INVALID_REQUEST))
            else:
                connection.feed(line)

    async def drain(self) -> None:
        """Return at once: the engine reads every line immediately."""

    async def close(self) -> None:
        """Close, and stop the engine even if this is cancelled."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            try:
                await asyncio.sleep(0)  # messages that were written before still arrive
            finally:
                await connection.close()
        finally:
            connection.cancel_calls()  # calls that `close` had no time to end
            await self._engine.stop()


class _ClientPipe:
    """The pipe that the server writes to; its messages are received in the client's context."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()

    def write(self, message: bytes) -> None:
        self._loop.call_soon(self._receiver.receive, as_line(message)[:-1], context=self._context)

    async def drain(self) -> None:
        """Return at once: the client takes every message immediately."""
