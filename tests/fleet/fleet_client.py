"""A client of bare HTTP requests, which sees every event as it was sent, and reconnects at once and without limit."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
INFO = {"name": "raw", "version": "1"}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": INFO,
}
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
PASSING = frozenset({502, 503, 504})
RETRY_DELAY = 0.1
TIME_LIMIT = 20.0  # for everything that must come to an end
BROKEN = (aiohttp.ClientError, ConnectionError)


class Loud(Exception):
    """A call failed, and its caller knows so: by an error or a status, not by silence."""


class SessionLost(Exception):
    """A server has forgotten a session that no client ended."""


class Notes:
    """What a client has seen besides answers; what is not right fails the test."""

    resumed = 0  # streams

    def accuse(self, what: str) -> None:
        raise AssertionError(what)


@asynccontextmanager
async def running(work: Any) -> AsyncIterator[None]:
    """A task beside the block; its failure is raised where it ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Event(NamedTuple):
    id: str
    data: str


class Reply(NamedTuple):
    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    """Ends when the stream ends or breaks."""
    id, data = "", []
    with contextlib.suppress(*BROKEN):
        async for line in response.content:
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "id":
                id = value
            elif field == "data":
                data.append(value)
            elif not field.strip() and (id or data):
                yield Event(id, "\n".join(data))
                id, data = "", []


def connections() -> aiohttp.ClientSession:
    """Without a connection kept: each request may meet another worker, and none meets a dead one."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=TIME_LIMIT))


async def post(http: aiohttp.ClientSession, url: str, tool: str, arguments: Any, headers: dict[str, str]) -> Reply:
    """One plain call of 2026-07-28."""
    params = {"name": tool, "arguments": arguments, "_meta": META}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    named = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool}
    async with http.post(url, json=message, headers={**HEADERS, **named, **headers}) as response:
        return Reply(response.status, response.headers, await response.text())


async def modern(http: aiohttp.ClientSession, url: str, tool: str, **arguments: Any) -> Any:
    """The text that it gives; raises Loud."""
    try:
        reply = await post(http, url, tool, arguments, {})
    except BROKEN as broken:
        raise Loud(type(broken).__name__) from None
    if reply.status != 200 or "result" not in (answer := reply.json):
        raise Loud(f"{reply.status}: {reply.text[:100]}")
    said = answer["result"]["content"][0]["text"]
    if answer["result"].get("isError"):
        raise Loud(said)
    return said


class RawListening:
    """One `subscriptions/listen` of 2026-07-28, and all notifications on it; `wanted` is what it asks for."""

    def __init__(self, http: aiohttp.ClientSession, url: str, **wanted: Any) -> None:
        self._http = http
        self._url = url
        self._wanted = wanted
        self.is_listening = asyncio.Event()
        self.received: list[dict[str, Any]] = []

    async def listen(self) -> None:
        """Until the stream ends; it is not opened again."""
        method = "subscriptions/listen"
        params = {"notifications": self._wanted, "_meta": META}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {**HEADERS, "MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        async with self._http.post(self._url, json=message, headers=headers, timeout=None) as response:
            async for event in events_of(response):
                message = json.loads(event.data)
                if message.get("method") == "notifications/subscriptions/acknowledged":
                    self.is_listening.set()
                else:
                    self.received.append(message)


class RawSession:
    """A session of the handshake era. `url` is where requests go, unless one is given.

    `resume_url` is where broken streams are taken up again, `answer_url` where the server's questions are answered.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str, notes: Notes | None = None) -> None:
        self._http = http
        self.url = self.resume_url = self.answer_url = url
        self.notes = notes or Notes()
        self._ids = itertools.count(1)
        self._headers = dict(HEADERS)
        self._event_ids: set[str] = set()
        self.is_listening = asyncio.Event()  # its own stream is open
        self.streams = 0  # how often it was opened
        self.on_update: Callable[[str], None] = lambda uri: None
        self.received: list[dict[str, Any]] = []  # on its own stream

    @property
    def id(self) -> str:
        return self._headers["Mcp-Session-Id"]

    async def send(self, verb: str, message: Any = None, *, at: str | None = None) -> Reply:
        """One request and its whole answer."""
        async with self._http.request(verb, at or self.url, json=message, headers=self._headers) as response:
            return Reply(response.status, response.headers, await response.text())

    async def insist(self, message: Any, *, at: str | None = None) -> Reply:
        """For what may be sent twice."""
        async with asyncio.timeout(TIME_LIMIT):
            while True:
                with contextlib.suppress(*BROKEN):
                    reply = await self.send("POST", message, at=at)
                    if reply.status == 404:
                        raise SessionLost(f"{reply.status}: {reply.text[:200]}")
                    if reply.status not in PASSING:
                        return reply
                await asyncio.sleep(RETRY_DELAY)

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}

    async def ask(self, method: str, *, at: str | None = None, **params: Any) -> Any:
        """The result of something that may be asked twice."""
        reply = await self.insist(self.request(method, params), at=at)
        messages = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        answer = messages[-1] if messages else reply.json
        assert "result" in answer, answer
        return answer["result"]

    async def open(self, *, at: str | None = None, revision: str = HANDSHAKE, **capabilities: Any) -> "RawSession":
        hello = {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": INFO}
        reply = await self.insist(self.request("initialize", hello), at=at)
        assert reply.status == 200, reply
        self._headers |= {"Mcp-Session-Id": reply.headers["Mcp-Session-Id"], "MCP-Protocol-Version": revision}
        assert (await self.insist({"jsonrpc": "2.0", "method": "notifications/initialized"})).status == 202
        return self

    async def delete(self, *, at: str | None = None) -> int:
        return (await self.send("DELETE", at=at)).status

    async def call(self, tool: str, arguments: dict[str, Any], received: list[float], *, leave_after: int = 0) -> Any:
        """Follow one call to its answer. After each `leave_after` messages it drops the connection."""
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": arguments["nonce"]}}
        following = _Following(self, self.request("tools/call", params), received, leave_after)
        async with asyncio.timeout(TIME_LIMIT):
            return await following.to_the_end()

    def once(self, event: Event) -> bool:
        """Notes an event; one with data must not come again."""
        if event.data and event.id in self._event_ids:
            self.notes.accuse(f"the event {event.id} came twice: {event.data[:200]}")
        if event.data and event.id:
            self._event_ids.add(event.id)
        return bool(event.data)

    async def listen(self, *, at: str | None = None) -> None:
        """Read the session's own stream, for ever, resuming where it broke."""
        last = ""
        while True:
            headers = {**self._headers, **({"Last-Event-ID": last} if last else {})}
            with contextlib.suppress(*BROKEN):
                async with self._http.get(at or self.url, headers=headers, timeout=None) as response:
                    if response.status not in {200, *PASSING}:
                        self.notes.accuse(f"GET was answered {response.status}: {(await response.text())[:200]}")
                        return
                    if response.status == 200:
                        self.streams += 1
                        self.is_listening.set()
                        async for event in events_of(response):
                            last = event.id or last
                            if self.once(event):
                                self.received.append(message := json.loads(event.data))
                                if message.get("method") == "notifications/resources/updated":
                                    self.on_update(message["params"]["uri"])
            self.is_listening.clear()
            await asyncio.sleep(RETRY_DELAY)


class _Following:
    """One call, over as many connections as it takes."""

    def __init__(self, session: RawSession, message: dict[str, Any], received: list[float], leave_after: int) -> None:
        self._session = session
        self._message = message
        self._received = received
        self._leave_after = leave_after
        self._last = ""
        self._answer: Any = None

    async def to_the_end(self) -> Any:
        session, headers = self._session, self._session._headers
        try:
            async with session._http.post(session.url, json=self._message, headers=headers) as response:
                if response.status not in (200, 404):
                    raise Loud(f"{response.status}")
                await self._read(response)
        except BROKEN as broken:
            if not self._last:
                raise Loud(type(broken).__name__) from None
        while self._answer is None:
            if not self._last:
                raise Loud("the stream broke before its first event")
            with contextlib.suppress(*BROKEN):
                resumed = {**headers, "Last-Event-ID": self._last}
                async with session._http.get(session.resume_url, headers=resumed) as response:
                    session.notes.resumed += response.status == 200
                    await self._read(response)
            if self._answer is None:
                await asyncio.sleep(RETRY_DELAY)
        assert self._answer["id"] == self._message["id"], f"{self._answer['id']} came to {self._message['id']}"
        if "error" in self._answer:
            raise Loud(self._answer["error"]["message"])
        text = self._answer["result"]["content"][0]["text"]
        if self._answer["result"].get("isError"):
            raise Loud(text)
        return text

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        if response.status in PASSING:
            return
        if response.status != 200:
            text = (await response.text())[:200]
            raise (SessionLost if response.status == 404 else AssertionError)(f"{response.status}: {text}")
        if response.content_type == "application/json":
            self._answer = json.loads(await response.text())
            return
        seen = 0
        async for event in events_of(response):
            self._last = event.id or self._last
            if self._session.once(event):
                await self._take(json.loads(event.data))
                seen += 1
            if self._answer is not None or 0 < self._leave_after <= seen:
                return

    async def _take(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            self._answer = message
        elif message["method"] == "notifications/progress":
            self._received.append(message["params"]["progress"])
        elif message["method"] == "elicitation/create":
            (field,) = message["params"]["requestedSchema"]["properties"]
            result = {"action": "accept", "content": {field: message["params"]["message"]}}
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
            await self._session.insist(answer, at=self._session.answer_url)
