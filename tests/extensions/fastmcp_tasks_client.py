"""FastMCP's client of tasks calls the tools of tasks_server.py: `fastmcp_tasks_client.py (URL | JSON of a command)`.

It runs where FastMCP is, and prints what happened as JSON.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from mcp.shared.exceptions import MCPError


class Caller:
    """Calls of one client, and what it was asked meanwhile."""

    def __init__(self, where: str, mode: str = "auto") -> None:
        self.asked: list[str] = []
        target = where if where.startswith("http") else _on_stdio(*json.loads(where))
        self.client = Client(target, elicitation_handler=self._choose, mode=mode)

    async def _choose(self, message: str, response_type: Any, params: Any, context: Any) -> Any:
        self.asked.append(message)
        return {"value": "small" if message == "Which size?" else "red"}

    async def call(self, tool: str, **given: Any) -> dict[str, Any]:
        """The client polls and answers by itself, if it gets a task."""
        try:
            result = await self.client.call_tool(tool, given)
        except (ToolError, MCPError) as failure:
            return {"failed": str(failure)}
        return {"text": result.content[0].text}

    async def start(self, tool: str, **given: Any) -> Any:
        """A handle of the task, which the program follows itself."""
        from fastmcp_tasks import call_tool_task  # late, as in main()

        return await call_tool_task(self.client, tool, given)

    async def ordinary_calls(self) -> dict[str, Any]:
        async with self.client:
            said = {
                "rendered": await self.call("render", scene="beach"),
                "quick": await self.call("add", a=2, b=3),
                "failed": await self.call("fail"),
                "broken": await self.call("break_down"),
            }
        return {**said, "asked": sorted(self.asked)}

    async def started_calls(self) -> dict[str, Any]:
        async with self.client:
            return {
                "rendered": await self._answer(await self.start("render", scene="beach")),
                "failed": await self._follow(await self.start("fail")),
                "broken": await self._follow(await self.start("break_down")),
                "cancelled": await self._cancel(await self.start("wait_long")),
                "quick": await self._no_task(),
                "asked": sorted(self.asked),
            }

    async def _follow(self, task: Any) -> dict[str, Any]:
        began = task.create_result.status
        try:
            outcome = {"text": (await task.result()).content[0].text}
        except ToolError as failure:
            outcome = {"failed": str(failure)}
        return {**outcome, "statuses": [began, (await task.status()).status]}

    async def _answer(self, task: Any) -> dict[str, Any]:
        waiting = await task.wait(state="input_required", timeout=30)
        questions = sorted(each["params"]["message"] for each in waiting.input_requests.values())
        return {"questions": questions, **await self._follow(task)}

    async def _cancel(self, task: Any) -> dict[str, Any]:
        before = await task.status()
        await task.cancel()
        after = await task.wait(timeout=30)
        return {"statuses": [before.status, after.status], **await self._follow(task)}

    async def _no_task(self) -> dict[str, Any]:
        try:
            await self.start("add", a=2, b=3)
        except ToolError as failure:
            return {"failed": str(failure)}
        return {}


def _on_stdio(command: str, *arguments: str) -> StdioTransport:
    log = Path(os.environ["SERVER_LOG"])
    return StdioTransport(command, list(arguments), env=dict(os.environ), keep_alive=False, log_file=log)


async def main(where: str) -> None:
    without, handshake = Caller(where), Caller(where, mode="legacy")
    said = {"without": await without.ordinary_calls(), "handshake": await handshake.ordinary_calls()}
    import fastmcp_tasks  # noqa: F401  late: every client that is made from now on has tasks

    said |= {"ordinary": await Caller(where).ordinary_calls(), "started": await Caller(where).started_calls()}
    sys.stdout.write(json.dumps(said))


asyncio.run(main(sys.argv[1]))
