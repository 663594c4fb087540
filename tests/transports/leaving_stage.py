"""Clients that leave in one way or the other, and a tool in a thread that watches for that."""

import threading

from dovetail import Context
from http_stage import Stage
from http_wire import Exchange

LOGS = {"io.modelcontextprotocol/logLevel": "debug", "progressToken": "p"}
WAYS = ["leave", "cut"]


async def gone(call: Exchange, how: str) -> None:
    if how == "cut":
        await call.cut()
    else:
        call.leave()


class Threads(Stage):
    """A tool in a thread that watches for its cancellation."""

    def __init__(self) -> None:
        super().__init__()
        self.in_thread = threading.Event()
        self.told = threading.Event()
        self.may_return = threading.Event()
        self.server.add_tool(self.block)

    def block(self, ctx: Context) -> str:
        self.in_thread.set()
        if ctx.cancelled.wait(0.2 if self.may_return.is_set() else 5):
            self.told.set()
        return "blocked"
