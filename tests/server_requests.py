"""A server for tests of client requests: its tools send them over the bare channel, and return the responses."""

import asyncio
import json
from typing import Any

from dovetail import Context
from dovetail.errors import QuestionFailed
from http_serving import Stage

FORM = {"message": "How many?", "requestedSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
QUESTIONS = {"elicitation/create": FORM, "roots/list": {}, "ping": {}}


class AskingStage(Stage):
    """`tools/call ask`: the answers as JSON, or the words of the failure."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.contexts: list[Any] = []  # of every call
        self.failures: list[BaseException] = []
        self.server.add_tool(self.ask)
        self.server.add_tool(self.defy)

    async def ask(self, ctx: Context, method: str = "roots/list", times: int = 1, timeout: float = 10.0) -> str:
        self.contexts.append(ctx._context)
        self.entered.set()
        params = json.dumps(QUESTIONS[method]).encode()
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._ask(ctx, method, params, timeout)) for _ in range(times)]
        except BaseExceptionGroup as failures:
            self.failures.append(failures.exceptions[0])
            return str(failures.exceptions[0])
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return json.dumps([json.loads(bytes(task.result())) for task in asked])

    async def _ask(self, ctx: Context, method: str, params: bytes, timeout: float) -> Any:
        channel = ctx._context.channel
        if channel is None:
            raise QuestionFailed(ctx._context.no_channel_reason)
        return await ask_by(channel, method, timeout, params)

    async def defy(self, ctx: Context) -> str:
        """Goes on asking when it was cancelled."""
        self.contexts.append(ctx._context)
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                ctx._context.channel.pending("roots/list", 5)
            except QuestionFailed as failure:
                self.failures.append(failure)
        return "defied"


async def ask_by(channel: Any, method: str, timeout: float, params: bytes = b"{}") -> Any:
    """The client's result, over the bare channel of a call."""
    async with channel.pending(method, timeout) as request:
        return await request.result(method, params, timeout)


def answer_to(question: dict[str, Any], result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": question["id"], "result": result}


def refusal_of(question: dict[str, Any], code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": question["id"], "error": {"code": code, "message": message}}


def progress_on(question: dict[str, Any], progress: float = 1) -> dict[str, Any]:
    token = question["params"]["_meta"]["progressToken"]
    return {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": token, "progress": progress},
    }
