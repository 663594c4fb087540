"""Scripted transports and servers that answer and ask."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
from served_http import DISCOVERED, INFO, ScriptedRequest, until

import official
from dovetail.client.transports.base import OutgoingMessage, Transport
from dovetail.errors import ProtocolError
from dovetail.protocol import revisions

ClientReply = Callable[[dict[str, Any]], list[dict[str, Any]]]


class ScriptedTransport(Transport):
    probe_timeout = 0.02

    def __init__(self, answer: ClientReply = lambda message: []) -> None:
        self.sent: list[dict[str, Any]] = []
        self.closed = 0
        self._answer = answer

    async def open(self, receiver: Any) -> None:
        self._receiver = receiver

    def write(self, message: OutgoingMessage) -> None:
        decoded = json.loads(message.body)
        self.sent.append(decoded)
        for reply in self._answer(decoded):
            self.say(reply)

    def say(self, message: Any) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        asyncio.get_running_loop().call_soon(self._receiver.receive, data)

    def die(self, reason: str = "it crashed") -> None:
        self._receiver.connection_lost(reason)

    async def drain(self) -> None:
        return

    async def close(self) -> None:
        self.closed += 1

    def methods(self) -> list[str | None]:
        return [message.get("method") for message in self.sent]


class RecordingHandler:
    """Records notifications and lost connections."""

    def __init__(self) -> None:
        self.received: list[tuple[str, Any]] = []
        self.reasons: list[str] = []

    def handle_notification(self, method: str, params: Any) -> None:
        self.received.append((method, json.loads(bytes(params))))

    def prepare_reply(self, method: str, params: Any) -> Any:
        raise ProtocolError(f"Method not found: {method}", code=-32601)

    def connection_lost(self, reason: str) -> None:
        self.reasons.append(reason)


def result(message: dict[str, Any], value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": value}


def error(message: dict[str, Any], code: int, text: str = "no", data: Any = None) -> dict[str, Any]:
    more = {} if data is None else {"data": data}
    return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": text, **more}}


EVERY = tuple(revisions.BY_NAME)
MODERN = "2026-07-28"

RESULTS = {
    "elicitation/create": "ElicitResult", "sampling/createMessage": "CreateMessageResult",
    "roots/list": "ListRootsResult", "ping": "EmptyResult",
}  # fmt: skip

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SAMPLING = {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}], "maxTokens": 10}
Behave = Callable[[dict[str, Any]], Any]


def elicitation(message: str = "Your name?", schema: Any = None, **more: Any) -> dict[str, Any]:
    params = {"message": message, "requestedSchema": FORM if schema is None else schema, **more}
    return {"method": "elicitation/create", "params": params}


def url_elicitation(url: str = "https://example.org/in", **more: Any) -> dict[str, Any]:
    params = {"mode": "url", "message": "Sign in", "url": url, **more}
    return {"method": "elicitation/create", "params": params}


def sampling(**more: Any) -> dict[str, Any]:
    return {"method": "sampling/createMessage", "params": {**SAMPLING, **more}}


ROOTS = {"method": "roots/list"}


class AskingServer(ScriptedTransport):
    """`behave` gets each request but those of the handshake, and returns the result, or None to be silent."""

    def __init__(self, revision: str, behave: Behave) -> None:
        super().__init__(self._react)
        self.revision = revision
        self.asked: dict[Any, str] = {}  # our own questions, by id
        self._behave = behave

    def _react(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        welcome = {"protocolVersion": self.revision, "serverInfo": INFO, "capabilities": {"tools": {}}}
        value = {"server/discover": DISCOVERED, "initialize": welcome}.get(message.get("method", ""))
        if value is None and message.keys() >= {"id", "method"}:
            value = self._behave(message)
        return [] if value is None else [result(message, value)]

    def ask(self, question: dict[str, Any], id: Any = "q") -> None:
        self.asked[id] = question.get("method", "")
        self.say({"jsonrpc": "2.0", "id": id, **question})

    def answers(self) -> list[dict[str, Any]]:
        """What the client has said to our questions."""
        return [message for message in self.sent if "method" not in message]

    async def answer(self, count: int = 1) -> dict[str, Any]:
        await until(lambda: len(self.answers()) >= count)
        return self.answers()[count - 1]

    def calls(self, method: str = "tools/call") -> list[dict[str, Any]]:
        return [message for message in self.sent if message.get("method") == method]

    # ── the judge ──

    def judge(self) -> None:
        """Everything that the client said is what its revision allows."""
        if official.available():
            for message in self.sent:
                self._judge(message)

    def _judge(self, message: dict[str, Any]) -> None:
        if "id" in message and "method" in message:
            self._check("JSONRPCRequest", message)
            self._check("ClientRequest", message)
        elif "method" in message:
            self._check("ClientNotification", message)
        elif "result" in message:
            self._check(RESULTS[self.asked[message["id"]]], message["result"])
        else:
            modern = official.has_type(self.revision, "JSONRPCErrorResponse")
            self._check("JSONRPCErrorResponse" if modern else "JSONRPCError", message)

    def _check(self, name: str, instance: Any) -> None:
        try:
            official.validator_for(self.revision, name).validate(instance)
        except jsonschema_rs.ValidationError as failure:
            raise AssertionError(f"{name}: {failure.message} in {json.dumps(instance)[:500]}") from None


def text(value: str) -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": value}]}


def modern(tools: list[dict[str, Any]] | None = None) -> Any:
    """A modern server that answers every call with its own name."""

    listed = {"resultType": "complete", "tools": tools or [], "ttlMs": 0, "cacheScope": "private"}
    results = {"server/discover": DISCOVERED, "tools/list": listed, "tools/call": text("called")}

    def behave(request: ScriptedRequest) -> None:
        request.result(results[request.method]) if request.method in results else request.error(-32601, 404)

    return behave
