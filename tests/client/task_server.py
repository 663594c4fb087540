"""A scripted server whose calls become tasks, in both forms of the protocol."""

import asyncio
from typing import Any

from scripted import DISCOVERED, INFO, ScriptedTransport, elicitation, error, result, text

CORE = "2025-11-25"
TASKS = "io.modelcontextprotocol/tasks"
RELATED = "io.modelcontextprotocol/related-task"

WORKING, DONE = {"status": "working"}, {"status": "completed", "result": text("done")}
TIMES = {"createdAt": "2026-07-28T10:00:00Z", "lastUpdatedAt": "2026-07-28T10:00:00Z"}
ACK: dict[str, Any] = {"resultType": "complete"}


def asking(**questions: Any) -> dict[str, Any]:
    return {"status": "input_required", "inputRequests": questions or {"q": elicitation()}}


class TaskServer(ScriptedTransport):
    """A tool whose calls become the task "t1".

    `states` are those that `tasks/get` shows, one after the other; the last one stays. One with questions stays until
    they are answered: since 2026-07-28 by `tasks/update`, in 2025-11-25 by the responses to requests on `tasks/result`.
    """

    def __init__(
        self, revision: str, *states: dict[str, Any], poll: int | None = 10, support: str = "optional"
    ) -> None:
        super().__init__(self._react)
        self.revision = revision
        self.states = [dict(state) for state in states]
        self.polled_at: list[float] = []
        self.answers: dict[str, Any] = {}
        self.call_result: Any = None  # instead of a task
        self._poll = poll
        self._support = support
        self._readers: list[dict[str, Any]] = []  # requests of tasks/result that wait
        self._asked: set[str] = set()

    @property
    def is_core(self) -> bool:
        return self.revision == CORE

    def task(self, state: dict[str, Any]) -> dict[str, Any]:
        names = ("ttl", "pollInterval") if self.is_core else ("ttlMs", "pollIntervalMs")
        poll = {names[1]: self._poll}
        message = {"statusMessage": state["message"]} if "message" in state else {}
        return {"taskId": "t1", "status": state["status"], **message, **TIMES, names[0]: 60_000, **poll}

    def calls(self, method: str) -> list[dict[str, Any]]:
        return [message["params"] for message in self.sent if message.get("method") == method]

    def _react(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        if "method" not in message:
            return self._answered(message)
        if "id" not in message:
            return []
        reply = getattr(self, "on_" + message["method"].replace("/", "_"))(message)
        return (
            [result(message, reply)] if reply is not None and "jsonrpc" not in reply else [reply] * (reply is not None)
        )

    def on_server_discover(self, message: dict[str, Any]) -> Any:
        capabilities = {"tools": {}, "extensions": {TASKS: {}}}
        return error(message, -32601) if self.is_core else {**DISCOVERED, "capabilities": capabilities}

    def on_initialize(self, _: Any) -> Any:
        capabilities = {"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
        return {"protocolVersion": CORE, "serverInfo": INFO, "capabilities": capabilities}

    def on_tools_list(self, _: Any) -> Any:
        execution = {"execution": {"taskSupport": self._support}} if self.is_core else {}
        tool = {"name": "render", "inputSchema": {"type": "object"}, **execution}
        return {"resultType": "complete", "tools": [tool], "ttlMs": 0, "cacheScope": "private"}

    def on_tools_call(self, message: dict[str, Any]) -> Any:
        if self.call_result is not None:
            return self.call_result
        state = self.task({"status": "working"})
        return {"task": state} if self.is_core else {"resultType": "task", **state}

    def on_tasks_get(self, message: dict[str, Any]) -> Any:
        self.polled_at.append(asyncio.get_running_loop().time())
        if message["params"]["taskId"] != "t1":
            return error(message, -32602, "Unknown task")
        state = self.states[0]
        if len(self.states) > 1 and not state.get("inputRequests"):
            self.states.pop(0)
        if self.is_core:
            return self.task(state)
        return {**ACK, **self.task(state), **{k: v for k, v in state.items() if k not in ("status", "message")}}

    def on_tasks_update(self, message: dict[str, Any]) -> Any:
        for key, answer in message["params"]["inputResponses"].items():
            self._take(key, answer)
        return ACK

    def _take(self, key: str, answer: Any) -> None:
        assert key not in self.answers, "each key is answered once"
        self.answers[key] = answer
        self.states[0]["inputRequests"].pop(key, None)

    def on_tasks_cancel(self, _: Any) -> Any:
        self.states = [{"status": "cancelled", "message": "as you wish"}]
        return self.task(self.states[0]) if self.is_core else ACK

    # ── 2025-11-25 ──

    def on_tasks_result(self, message: dict[str, Any]) -> Any:
        self._readers.append(message)
        for key, request in self.states[0].get("inputRequests", {}).items():
            params = {**request["params"], "_meta": {RELATED: {"taskId": "t1"}}}
            self.say({"jsonrpc": "2.0", "id": key, "method": request["method"], "params": params})
        self._release()

    def _answered(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        self._take(message["id"], message["result"])
        if not self.states[0]["inputRequests"]:
            self.states.pop(0)
        self._release()
        return []

    def _release(self) -> None:
        final = self.states[0]
        while self._readers and ("result" in final or "error" in final):
            message = self._readers.pop()
            failure = final.get("error")
            if failure is not None:
                self.say(error(message, failure["code"], failure["message"]))
            else:
                self.say(result(message, {**final["result"], "_meta": {RELATED: {"taskId": "t1"}}}))
