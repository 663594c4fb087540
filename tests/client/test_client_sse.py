"""HTTP+SSE, and the fallback to it."""

import asyncio
from typing import Any

import pytest
from served_http import INFO, Scripted, Visit, until

from dovetail import Client
from dovetail.errors import BadAnswer, ConnectionLost, ServerError

pytestmark = pytest.mark.usefixtures("brisk", "tidy")
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}


class Old:
    """A server of the old transport at /sse; `streams` has one visit for each session."""

    def __init__(
        self, endpoint: str = "/messages?session=1", *, refusal: int = 405, version: str = "2024-11-05"
    ) -> None:
        self.endpoint, self.refusal, self.version = endpoint, refusal, version
        self.streams: list[Visit] = []
        self.known = True

    async def __call__(self, visit: Visit) -> None:
        if visit.verb == "GET" and visit.path == "/sse":
            self.known = True
            self.streams.append(visit)
            visit.stream()
            visit.event(self.endpoint, event="endpoint")
            await visit.gone()
        elif visit.path.startswith("/messages") and self.known:
            if visit.method == "refused":
                return visit.error(-32602, 400, "not like this", id=False)
            visit.answer(202, b"Accepted", "text/plain")
            self.take(visit)
        elif visit.path.startswith("/messages"):
            visit.answer(404)
        else:
            visit.answer(self.refusal)
        return None

    def take(self, visit: Visit) -> None:
        if visit.method == "initialize":
            result = {"protocolVersion": self.version, "capabilities": CAPABILITIES, "serverInfo": INFO}
            self.answer(visit, result)
        elif visit.method == "tools/call":
            params = {"progressToken": visit.message["params"].get("_meta", {}).get("progressToken"), "progress": 1}
            self.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            self.answer(visit, {"content": [{"type": "text", "text": "old"}]})
        elif visit.method is not None and "id" in visit.message and visit.method != "slow":
            self.answer(visit, {})

    def answer(self, visit: Visit, result: Any) -> None:
        self.say({"jsonrpc": "2.0", "id": visit.message["id"], "result": result})

    def say(self, message: Any) -> None:
        self.streams[-1].event(message, event="message")


@pytest.mark.parametrize("refusal", [400, 404, 405])
async def test_an_old_server_is_found_out(refusal: int) -> None:
    behave = Old(refusal=refusal)
    async with Scripted(behave) as server, Client(f"{server.origin}/sse") as client:
        assert client.protocol_version == "2024-11-05"
        heard: list[float] = []
        result = await client.call_tool("any", progress_handler=lambda value, *_: heard.append(value))
        assert result.text == "old"
        assert heard == [1]
        assert [(visit.verb, visit.path.partition("?")[0], visit.method) for visit in server.visits] == [
            ("POST", "/sse", "server/discover"), ("POST", "/sse", "initialize"), ("GET", "/sse", None),
            ("POST", "/messages", "initialize"), ("POST", "/messages", "notifications/initialized"),
            ("POST", "/messages", "tools/call"),
        ]  # fmt: skip


async def test_neither_transport() -> None:
    async with Scripted(lambda visit: visit.answer(404)) as server:
        with pytest.raises(ServerError, match="answered 404 Not Found") as caught:
            async with Client(server.url):
                pass
        assert caught.value.code == 404


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://localhost:1/messages", "https://127.0.0.1/messages", "//evil.example/messages", "http://evil.example/",
        "http://user:word@127.0.0.1/", "file:///etc/passwd", "javascript:alert(1)", "http://[", "/mess ages",
    ],
)  # fmt: skip
async def test_an_endpoint_of_another_origin_is_refused(endpoint: str) -> None:
    async with Scripted(Old(endpoint)) as server:
        with pytest.raises(BadAnswer, match=r"initialize: the server names .* (another origin|can't be used)"):
            async with Client(f"{server.origin}/sse", transport="sse"):
                pass
        assert server.said() == ["GET"]


async def test_questions_are_answered() -> None:
    behave = Old()
    async with Scripted(behave) as server, Client(f"{server.origin}/sse", transport="sse"):
        behave.say({"jsonrpc": "2.0", "id": "p", "method": "ping"})
        await until(lambda: server.visits[-1].message == {"jsonrpc": "2.0", "id": "p", "result": {}})


@pytest.mark.parametrize("loss", ["cut", "forgotten"])
async def test_a_session_that_ends_is_followed_by_another(loss: str) -> None:
    behave = Old()
    async with Scripted(behave) as server, Client(f"{server.origin}/sse") as client:
        slow = asyncio.create_task(client.request("slow"))
        await until(lambda: server.said()[-1] == "POST slow")
        if loss == "cut":
            behave.streams[0].cut()
        else:
            behave.known = False
            with pytest.raises(ConnectionLost, match="ping: the session ended: the server does not know it"):
                await client.ping()
        with pytest.raises(ConnectionLost, match="slow: the session ended"):
            await slow
        await client.ping()
        assert len(behave.streams) == 2
        assert (await client.call_tool("any")).text == "old"
