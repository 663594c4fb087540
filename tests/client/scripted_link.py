"""A link whose server is a function of the test's: a decoded message in, messages out."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from dovetail.client.links import Link
from dovetail.errors import ProtocolError

Answer = Callable[[dict[str, Any]], list[dict[str, Any]]]


class ScriptedLink(Link):
    def __init__(self, answer: Answer = lambda message: []) -> None:
        self.sent: list[dict[str, Any]] = []
        self.opened = 0
        self.closed = 0
        self._answer = answer

    async def open(self, receiver: Any) -> None:
        self.opened += 1
        self._receiver = receiver

    def write(self, message: bytes) -> None:
        decoded = json.loads(message)
        self.sent.append(decoded)
        for reply in self._answer(decoded):
            self.say(reply)

    def say(self, message: Any) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        asyncio.get_running_loop().call_soon(self._receiver.receive, data)

    def die(self, reason: str = "it crashed") -> None:
        self._receiver.lost(reason)

    async def drain(self) -> None:
        return

    async def close(self) -> None:
        self.closed += 1

    def methods(self) -> list[str | None]:
        return [message.get("method") for message in self.sent]


class Crowd:
    """Hears what is not an answer."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.reasons: list[str] = []

    def hear(self, method: str, params: Any) -> None:
        self.heard.append((method, json.loads(bytes(params))))

    def prepare(self, method: str, params: Any) -> Any:
        raise ProtocolError(f"Method not found: {method}", code=-32601)

    def silence(self, reason: str) -> None:
        self.reasons.append(reason)


def result(message: dict[str, Any], value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": value}


def error(message: dict[str, Any], code: int, text: str = "no", data: Any = None) -> dict[str, Any]:
    body = {"code": code, "message": text} if data is None else {"code": code, "message": text, "data": data}
    return {"jsonrpc": "2.0", "id": message["id"], "error": body}
