"""A scripted server of any revision that asks its client, and a judge of all that the client says to it."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
from scripted_link import ScriptedLink, result

import official
from dovetail.protocol import revisions

EVERY = tuple(revisions.BY_NAME)
HANDSHAKES = tuple(revisions.HANDSHAKE)
MODERN = "2026-07-28"
INFO = {"name": "asking", "version": "0"}
REQUESTS = {
    "initialize": "InitializeRequest",
    "server/discover": "DiscoverRequest",
    "tools/call": "CallToolRequest",
    "tools/list": "ListToolsRequest",
    "prompts/get": "GetPromptRequest",
    "resources/read": "ReadResourceRequest",
    "completion/complete": "CompleteRequest",
    "ping": "PingRequest",
}
RESULTS = {
    "elicitation/create": "ElicitResult",
    "sampling/createMessage": "CreateMessageResult",
    "roots/list": "ListRootsResult",
    "ping": "EmptyResult",
}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SAMPLING = {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}], "maxTokens": 10}
WHOLE = {"content": [{"type": "text", "text": "done"}]}

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


def interim(requests: Any = None, state: Any = None) -> dict[str, Any]:
    """A result that asks."""
    parts = {"inputRequests": requests, "requestState": state}
    return {"resultType": "input_required", **{key: value for key, value in parts.items() if value is not None}}


def complete(value: Any = None) -> dict[str, Any]:
    return {"resultType": "complete", **(WHOLE if value is None else value)}


class AskingServer(ScriptedLink):
    """`behave` gets each request but those of the handshake, and returns the result, or None to be silent."""

    def __init__(self, revision: str, behave: Behave) -> None:
        super().__init__(self._react)
        self.revision = revision
        self.asked: dict[Any, str] = {}  # our own questions, by id
        self._behave = behave

    def _react(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        match message.get("method"):
            case None | "notifications/initialized":
                return []
            case "server/discover":
                return [result(message, self._welcome(supportedVersions=[MODERN], ttlMs=0, cacheScope="private"))]
            case "initialize":
                return [result(message, self._welcome(protocolVersion=self.revision, serverInfo=INFO))]
        value = self._behave(message) if "id" in message else None
        return [] if value is None else [result(message, value)]

    def _welcome(self, **more: Any) -> dict[str, Any]:
        return {"capabilities": {"tools": {}}, **more}

    def ask(self, question: dict[str, Any], id: Any = "q") -> None:
        self.asked[id] = question.get("method", "")
        self.say({"jsonrpc": "2.0", "id": id, **question})

    def answers(self) -> list[dict[str, Any]]:
        """What the client has said to our questions."""
        return [message for message in self.sent if "method" not in message]

    async def answer(self, count: int = 1) -> dict[str, Any]:
        async with asyncio.timeout(5):
            while len(self.answers()) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
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
            self._check(REQUESTS[message["method"]], message)
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
