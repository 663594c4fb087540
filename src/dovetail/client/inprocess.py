"""The link to a server in the same process: over the same bytes as a pipe, without a thread and without a socket.

Messages cross through the loop, each side in its own context, so neither runs inside the other's call.
"""

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.engine.connection import Connection
from dovetail.engine.core import Engine
from dovetail.errors import INVALID_REQUEST, ConnectionLost, ProtocolError
from dovetail.transports.lines import LineSplitter, as_line

if TYPE_CHECKING:
    from dovetail.client.links import Receiver


class InProcessLink:
    """Feeds a `Connection` of the engine's and reads what that writes."""

    def __init__(self, engine: Engine, owner: Any) -> None:
        self._engine = engine
        self._owner = owner
        self._connection: Connection | None = None
        self._life: _Life | None = None
        self._nobodys = contextvars.Context()  # a server never sees its client's context variables

    async def open(self, receiver: "Receiver") -> None:
        self._life = await _Life.join(self._engine, self._owner)
        self._connection = Connection(self._engine, _Return(receiver))

    def write(self, message: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._feed, message, context=self._nobodys)

    def _feed(self, message: bytes) -> None:
        if self._connection is None:
            return
        limit = self._engine.options.max_message_bytes
        for line in LineSplitter(limit).feed(message + b"\n"):
            if line is None:
                self._connection.reject(ProtocolError(f"message larger than {limit} bytes", code=INVALID_REQUEST))
            else:
                self._connection.feed(line)

    async def drain(self) -> None:
        """The server takes every line at once."""

    async def close(self) -> None:
        await asyncio.sleep(0)  # what was written before the end still arrives
        connection, self._connection = self._connection, None
        life, self._life = self._life, None
        try:
            if connection is not None:
                await connection.close()
        finally:
            if life is not None:
                await life.leave()


class _Return:
    """The pipe that the server writes to."""

    def __init__(self, receiver: "Receiver") -> None:
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # the client's own, whoever writes

    def write(self, message: bytes) -> None:
        self._loop.call_soon(self._receiver.receive, as_line(message)[:-1], context=self._context)

    async def drain(self) -> None:
        """The client takes every message at once."""


class _Life:
    """An engine that runs while at least one link needs it.

    Its lifespan is entered and left in one task of its own: links may be opened and closed in any task, and a
    lifespan may hold what has to end where it began.
    """

    current: ClassVar[dict[Engine, "_Life"]] = {}

    def __init__(self, engine: Engine, owner: Any) -> None:
        self._engine = engine
        self._users = 0
        self._ending = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._task = self._loop.create_task(self._run(owner), context=contextvars.Context())

    @classmethod
    async def join(cls, engine: Engine, owner: Any) -> "_Life":
        """Share the life that the engine has, or begin one."""
        life = cls.current.get(engine)
        while life is not None and life._ending.is_set() and life._here():
            await asyncio.wait([life._task])
            life = cls.current.get(engine)
        if life is None or not life._here():
            life = cls.current[engine] = cls(engine, owner)
        life._users += 1
        try:
            await asyncio.shield(life._started)
        except BaseException:
            await life.leave()
            raise
        return life

    def _here(self) -> bool:
        """Whether it lives on this loop; one that was left behind on a dead loop counts no more."""
        return self._loop is asyncio.get_running_loop()

    async def leave(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._ending.set()
            await asyncio.shield(self._task)

    async def _run(self, owner: Any) -> None:
        try:
            try:
                await self._engine.start(owner)
            except Exception as failure:
                self._started.set_exception(failure)
                return
            try:
                self._started.set_result(None)
                await self._ending.wait()
            finally:
                await self._engine.stop()
        finally:
            self._ending.set()
            if not self._started.done():
                self._started.set_exception(ConnectionLost("The server was stopped while it started"))
            if _Life.current.get(self._engine) is self:
                del _Life.current[self._engine]
