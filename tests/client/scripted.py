"""Servers for tests of the client, scripted over HTTP and in process, and any ASGI app on a real loopback socket."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import jsonschema_rs

import official
from dovetail import Client
from dovetail.client.config import make_transport
from dovetail.client.subscriptions import ChangeStream
from dovetail.client.transports.aiohttp import HttpLimits
from dovetail.client.transports.base import OutgoingMessage, Transport
from dovetail.engine.subscriptions import Change
from dovetail.errors import ProtocolError
from dovetail.protocol import revisions
from http_serving import hosted

BRISK = HttpLimits(first_retry_delay=0.01, max_retry_delay=0.05)
OF_TRANSPORT = {"headers", "auth", "transport"}


def brisk_client(target: Any, **options: Any) -> Client:
    """A client that opens broken streams again at once."""
    rest = {name: value for name, value in options.items() if name not in OF_TRANSPORT}
    return Client(make_transport(target, options, BRISK), **rest)  # type: ignore[arg-type]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


served = partial(hosted, is_killed=True, ws="none")


async def until(happened: Callable[[], Any], seconds: float = 5) -> None:
    async with asyncio.timeout(seconds):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.003)


async def next_of(stream: ChangeStream) -> Change:
    return await asyncio.wait_for(anext(stream), 5)


class ScriptedRequest:
    """One HTTP request to a `Scripted` server, with methods for right and wrong responses."""

    def __init__(
        self, verb: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        self.verb = verb
        self.path = path
        self.headers = headers
        self.body = body
        self.message: Any = json.loads(body) if body[:1] in (b"{", b"[") else None
        self._writer = writer

    @property
    def method(self) -> str | None:
        return self.message.get("method") if isinstance(self.message, dict) else None

    def head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    def answer(self, status: int = 200, body: Any = b"", kind: str = "application/json", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"Content-Length": str(len(data)), **{k.replace("_", "-"): v for k, v in headers.items()}}
        if data:
            fields["Content-Type"] = kind
        self.head(status, fields)
        self._writer.write(data)

    def result(self, value: Any, **headers: str) -> None:
        self.answer(200, {"jsonrpc": "2.0", "id": self.message["id"], "result": value}, **headers)

    def error(self, code: int, status: int = 200, message: str = "no", *, id: bool = True, data: Any = None) -> None:
        error = {"code": code, "message": message, **({} if data is None else {"data": data})}
        self.answer(status, {"jsonrpc": "2.0", **({"id": self.message["id"]} if id else {}), "error": error})

    def stream(self, **headers: str) -> None:
        fields = {k.replace("_", "-"): v for k, v in headers.items()}
        self.head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked", **fields})

    def event(
        self, message: Any = None, *, id: str | None = None, event: str | None = None, retry: int | None = None
    ) -> None:
        data = message if isinstance(message, str) else "" if message is None else json.dumps(message)
        fields = {"id": id, "event": event, "retry": retry, "data": data}
        self.chunk("".join(f"{name}: {value}\n" for name, value in fields.items() if value is not None) + "\n")

    def chunk(self, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")

    def finish(self) -> None:
        """The stream ends properly, and the connection with it."""
        self.end()
        self._writer.close()

    def cut(self) -> None:
        """The connection breaks."""
        self._writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has disconnected."""
        await until(self._writer.transport.is_closing, 60)


Behaviour = Callable[[ScriptedRequest], Awaitable[None] | None]
INFO = {"name": "scripted", "version": "0"}
DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "ttlMs": 0,
    "cacheScope": "private",
}


class Scripted:
    """A server whose every answer is a function of the test's. `async with Scripted(behave) as server`."""

    def __init__(self, behave: Behaviour, port: int = 0) -> None:
        self._behave = behave
        self._port = port
        self._connections: set[asyncio.Task[None]] = set()
        self.requests: list[ScriptedRequest] = []

    async def __aenter__(self) -> "Scripted":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *details: object) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def said(self) -> list[str]:
        """The verbs and methods that came, in order."""
        return [f"{request.verb} {request.method or ''}".strip() for request in self.requests]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._serve_one(reader, writer):
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        verb, path, _ = first.split(" ", 2)
        request = ScriptedRequest(verb, path, headers, body, writer)
        self.requests.append(request)
        outcome = self._behave(request)
        if outcome is not None:
            watcher = asyncio.create_task(_until_disconnected(reader, writer))
            try:
                await outcome
            finally:
                watcher.cancel()
                await asyncio.gather(watcher, return_exceptions=True)
        return not writer.transport.is_closing()


async def _until_disconnected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Nothing more is sent on a connection that waits for an answer, but it may be closed."""
    if not await reader.read(1):
        writer.transport.abort()


def handshake(request: ScriptedRequest, version: str = "2025-11-25", capabilities: Any = None, **headers: str) -> bool:
    """Answer what every session begins with; False for anything else."""
    if request.method == "server/discover":
        request.error(-32601)
    elif request.method == "initialize":
        offered = {"tools": {}} if capabilities is None else capabilities
        request.result({"protocolVersion": version, "capabilities": offered, "serverInfo": INFO}, **headers)
    elif request.verb in ("GET", "DELETE"):
        request.answer(405)
    elif isinstance(request.message, dict) and not {"id", "method"} <= request.message.keys():
        request.answer(202)
    else:
        return False
    return True


# ── in process ──

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

    def prepare_handler(self, method: str, params: Any) -> Any:
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
