"""One request in flight on a pipe: its exchange, its task, and its way back to the client."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail import engine as late
from dovetail.engine.exchange import Exchange, Mailbox
from dovetail.errors import QuestionFailed

if TYPE_CHECKING:
    from dovetail.engine.connection import Connection


class Call(msgspec.Struct, eq=False):
    """Once it is closed, nothing more is sent for it."""

    connection: "Connection"
    open: bool = True
    exchange: Exchange | None = None
    task: "asyncio.Task[Any] | None" = None  # from its first step on

    @property
    def is_running(self) -> bool:
        """Whether this is asked from its own task; what is left when a loop closes is torn down by others."""
        try:
            return asyncio.current_task() is self.task
        except RuntimeError:  # no loop is running
            return False

    async def emit(self, message: bytes) -> None:
        if self.open:
            await self.connection.send(message)

    def pending(self, method: str, timeout: float) -> AbstractAsyncContextManager[Mailbox]:  # noqa: ARG002
        if not self.open:
            raise QuestionFailed(late.client_requests.CALL_IS_OVER)
        return self.connection.pending()

    async def tell(self, message: bytes) -> None:
        await self.connection.tell(message)

    def cancel(self) -> None:
        """Stop it, or see to it that it never begins. Nobody waits for it any more."""
        self.open = False
        if self.exchange is not None:
            self.exchange.cancelled()
        if self.task is not None:
            self.task.cancel()
        else:
            self.exchange = None

    def close(self) -> None:
        """Whoever keeps it to tell the client something later does not keep the request."""
        self.open = False
        self.exchange = self.task = None
