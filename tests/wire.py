"""A bare pipe to a server in this process: tests write lines and read lines, nothing in between."""

import asyncio
import itertools
import json
from typing import Any

from dovetail.engine.connection import Connection

MODERN = "2026-07-28"
CLIENT = {"name": "wire", "version": "1.0.0"}


class Wire:
    """`async with Wire(server, "2025-06-18") as wire`: shakes hands first; with None it says nothing by itself."""

    def __init__(
        self, server: Any, version: str | None = None, *, capabilities: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """The other `options` are those of `Connection`."""
        self.options = options
        self.server = server
        self.version = version
        self.grace = 0.5  # seconds that open calls get at the end
        self.capabilities = capabilities or {}
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()
        self.seen: list[Any] = []
        self.ids = itertools.count(1000)
        self.welcome: dict[str, Any] = {}

    # ── what the connection writes to ──

    def write(self, message: bytes) -> None:
        self.lines.put_nowait(message)

    async def drain(self) -> None:
        return

    # ── what a test does ──

    async def __aenter__(self) -> "Wire":
        await self.server.engine.start(self.server)
        self.connection = Connection(self.server.engine, self, **self.options)
        if self.version is not None and self.version != MODERN:
            params = {"protocolVersion": self.version, "capabilities": self.capabilities, "clientInfo": CLIENT}
            self.welcome = await self.ask("initialize", params)
            self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.connection.close(self.grace)
        await self.server.engine.stop()

    def send(self, message: Any) -> None:
        """Any JSON value, or bytes as they are."""
        self.connection.feed(message if isinstance(message, bytes) else json.dumps(message).encode())

    async def receive(self, timeout: float = 10) -> Any:
        """The next message, of any kind."""
        message = json.loads(await asyncio.wait_for(self.lines.get(), timeout))
        self.seen.append(message)
        return message

    async def exchange(self, message: dict[str, Any]) -> Any:
        """Send a request as it is and wait for its answer; notifications on the way are kept in `seen`."""
        self.send(message)
        while True:
            answer = await self.receive()
            if isinstance(answer, dict) and "method" not in answer and answer.get("id") == message["id"]:
                return answer

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """The result of a request in this wire's revision; fails on an error."""
        answer = await self.exchange(self.request(method, params))
        assert "result" in answer, answer
        return answer["result"]

    async def refusal(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """The error of a request in this wire's revision; fails on a result."""
        answer = await self.exchange(self.request(method, params))
        assert "error" in answer, answer
        return answer["error"]

    def request(self, method: str, params: dict[str, Any] | None = None, id: Any = None) -> dict[str, Any]:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": next(self.ids) if id is None else id, "method": method}
        if self.version == MODERN:
            params = {**(params or {})}
            params["_meta"] = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": self.capabilities,
                **params.get("_meta", {}),
            }
        if params is not None:
            message["params"] = params
        return message

    async def quiet(self, seconds: float = 0.05) -> None:
        """Nothing arrives for a while."""
        try:
            unexpected = await asyncio.wait_for(self.lines.get(), seconds)
        except TimeoutError:
            return
        raise AssertionError(f"unexpected: {unexpected!r}")
