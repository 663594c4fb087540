"""The clients of a storm, all alike to it: `async with visitor(...) as v: await v.call(...)`.

The official Python client makes calls and answers questions. Our own clients do that too, and hear of changes: the one
that is published, and one of bare requests which leaves its streams on purpose.
"""

import asyncio
import collections
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiohttp
import httpx2
from fleet_ledger import Ledger, Loud, SessionLost, Watcher
from fleet_raw import HANDSHAKE, PATIENCE, RawSession
from mcp import Client as OfficialClient
from mcp import MCPError, types
from mcp.client.streamable_http import streamable_http_client

from dovetail import Client, ConnectionLost, ElicitQuestion, ServerError, ToolError


class Visitor(Protocol):
    async def call(self, tool: str, arguments: dict[str, Any], heard: list[float]) -> Any:
        """The answer as text. Raises Loud or SessionLost; `heard` gets the progress."""
        ...


# ── the official client ──


class Traffic:
    """What the official client does on the wire, as far as it matters here."""

    def __init__(self) -> None:
        self.refused: list[tuple[str, int]] = []
        self._resumed: collections.Counter[str] = collections.Counter()

    async def request(self, request: httpx2.Request) -> None:
        if "last-event-id" in request.headers:
            self._resumed[request.headers["last-event-id"]] += 1

    async def response(self, response: httpx2.Response) -> None:
        if response.status_code >= 400 and response.request.method != "DELETE":
            self.refused.append((response.request.method, response.status_code))

    @property
    def asked_twice(self) -> int:
        """How often it asked for the same rest again.

        When a stream that it has resumed breaks in its turn, it resumes from where it did the first time (mcp 2.3.0),
        and so has the events since then sent twice. Otherwise its calls are exact, too.
        """
        return sum(times - 1 for times in self._resumed.values())


class OfficialVisitor:
    def __init__(self, client: OfficialClient, traffic: Traffic, ledger: Ledger) -> None:
        self._client = client
        self._traffic = traffic
        self._ledger = ledger

    async def call(self, tool: str, arguments: dict[str, Any], heard: list[float]) -> Any:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            assert message == arguments["nonce"]
            heard.append(progress)

        wanted = {"progress_callback": note} if tool == "count" else {}
        asked_twice = self._traffic.asked_twice
        try:
            result = await self._client.call_tool(tool, arguments, read_timeout_seconds=PATIENCE, **wanted)
        except MCPError as error:
            if "timed out" in str(error).lower():
                raise TimeoutError(str(error)) from None
            raise Loud(str(error)) from None
        finally:
            if any(status == 404 for _, status in self._traffic.refused):
                raise SessionLost(str(self._traffic.refused))
            if self._traffic.asked_twice > asked_twice:
                self._forgive(heard)
        (content,) = result.content
        assert isinstance(content, types.TextContent)
        if result.is_error:
            raise Loud(content.text)
        return content.text

    def _forgive(self, heard: list[float]) -> None:
        """It has asked for some events twice."""
        once = sorted(set(heard))
        self._ledger.forgiven += heard != once
        heard[:] = once


async def repeat_the_question(context: Any, params: Any) -> types.ElicitResult:
    (field,) = params.requested_schema["properties"]
    return types.ElicitResult(action="accept", content={field: params.message})


@asynccontextmanager
async def official_visitor(url: str, revision: str, ledger: Ledger) -> AsyncIterator[Visitor]:
    traffic = Traffic()
    hooks = {"request": [traffic.request], "response": [traffic.response]}
    async with contextlib.AsyncExitStack() as stack:
        http = httpx2.AsyncClient(event_hooks=hooks, trust_env=False, timeout=httpx2.Timeout(PATIENCE))
        await stack.enter_async_context(http)
        mode = "legacy" if revision == HANDSHAKE else revision
        transport = streamable_http_client(url, http_client=http)
        client = OfficialClient(transport, mode=mode, elicitation_callback=repeat_the_question)
        yield OfficialVisitor(await stack.enter_async_context(client), traffic, ledger)


# ── our own ──


class OwnVisitor:
    def __init__(self, client: Client, handshakes: list[bytes]) -> None:
        self._client = client
        self._handshakes = handshakes

    async def call(self, tool: str, arguments: dict[str, Any], heard: list[float]) -> Any:
        def note(progress: float, total: float | None, message: str | None) -> None:
            heard.append(progress)

        try:
            result = await self._client.call_tool(tool, arguments, progress_handler=note)
        except (ConnectionLost, ServerError, ToolError) as failure:
            raise Loud(str(failure).replace(arguments["nonce"], "…")) from None
        finally:
            if len(self._handshakes) > 1:
                raise SessionLost("it had to shake hands again")
        return result.text


@asynccontextmanager
async def own_visitor(url: str, revision: str, watcher: Watcher) -> AsyncIterator[Visitor]:
    handshakes: list[bytes] = []

    def note(direction: str, message: bytes) -> None:
        if direction == "sent" and b'"initialize"' in message:
            handshakes.append(message)

    def repeat(question: ElicitQuestion) -> str:
        return question.message

    client = Client(url, protocol_version=revision, timeout=PATIENCE, transcript=note, elicitation_handler=repeat)
    async with client, client.listen(uris=[watcher.uri]) as changes:

        async def listen() -> None:
            async for change in changes:
                watcher.hear(change.uri or "")

        async with running(listen()):
            yield OwnVisitor(client, handshakes)


class RawVisitor:
    def __init__(self, session: RawSession, chance: random.Random) -> None:
        self._session = session
        self._chance = chance

    async def call(self, tool: str, arguments: dict[str, Any], heard: list[float]) -> Any:
        return await self._session.call(tool, arguments, heard, leave_after=self._chance.randrange(5))


@asynccontextmanager
async def raw_visitor(
    url: str, http: aiohttp.ClientSession, ledger: Ledger, watcher: Watcher, chance: random.Random
) -> AsyncIterator[Visitor]:
    session = await RawSession(http, url, ledger).open(elicitation={})
    session.on_update = watcher.hear
    async with running(session.hear()):
        await asyncio.wait_for(session.hears.wait(), PATIENCE)
        await session.ask("resources/subscribe", uri=watcher.uri)
        yield RawVisitor(session, chance)
    await session.delete()


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
