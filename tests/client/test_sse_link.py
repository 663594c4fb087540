"""HTTP+SSE, the transport of 2024-11-05: found out, or asked for, and kept alive."""

import asyncio
import gzip
from typing import Any

import pytest
from served_http import DISCOVERED, INFO, Scripted, Visit, next_of, until

from dovetail import Client
from dovetail.client import era, requests, sse
from dovetail.engine.streams import Change
from dovetail.errors import BadAnswer, ConnectionLost, NotSignedIn, ServerError

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


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_any_handshake_over_the_old_transport(version: str) -> None:
    async with Scripted(Old(version=version)) as server:
        for pinned in (None, version):
            options: dict[str, Any] = {"headers": {"Authorization": "x"}, "protocol_version": pinned}
            async with Client(f"{server.origin}/sse", transport="sse", **options) as client:
                assert client.protocol_version == version
                assert (await client.call_tool("any")).text == "old"
        assert server.said()[:2] == ["GET", "POST initialize"]
        assert all(visit.headers["authorization"] == "x" for visit in server.visits)


async def test_only_the_new_transport_if_that_is_asked_for() -> None:
    async with Scripted(Old()) as server:
        with pytest.raises(ServerError, match="initialize: the server answered 405 Method Not Allowed"):
            async with Client(f"{server.origin}/sse", transport="http"):
                pass
        assert "GET" not in server.said()


@pytest.mark.parametrize("refusal", [401, 403, 406, 429, 500, 503])
async def test_other_refusals_say_nothing_about_the_transport(refusal: int) -> None:
    async with Scripted(Old(refusal=refusal)) as server:
        kind = {401: NotSignedIn, 503: ConnectionLost}.get(refusal, ServerError)
        with pytest.raises(kind, match=f"initialize: the server answered {refusal}"):
            async with Client(f"{server.origin}/sse", protocol_version="2025-11-25"):
                pass
        assert server.said() == ["POST initialize"]


@pytest.mark.parametrize("gives_up", [True, False])
async def test_a_modern_server_that_is_slow_to_say_so(gives_up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know the handshake, and so could be of the old transport."""
    monkeypatch.setattr(era, "PROBE_SECONDS", 0.02)

    async def behave(visit: Visit) -> None:
        if visit.method == "server/discover":
            await until(lambda: any(each.verb == "GET" for each in server.visits))
            await asyncio.sleep(0.05)
            visit.result(DISCOVERED)
        elif visit.verb == "GET" and not gives_up:
            visit.stream()
            await visit.gone()
        elif visit.verb == "GET":
            visit.answer(405)
        elif visit.method == "tools/list":
            visit.result({"resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "private"})
        else:
            visit.error(-32601, 404)

    async with Scripted(behave) as server, Client(server.url, timeout=5) as client:
        assert client.protocol_version == "2026-07-28"
        assert await client.list_tools() == []
        with pytest.raises(ServerError, match="-32601"):
            await client.request("unknown")


async def test_an_old_server_that_lets_the_first_question_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(era, "PROBE_SECONDS", 0.02)
    old = Old()

    async def behave(visit: Visit) -> None:
        if visit.method == "server/discover":
            await visit.gone()
        else:
            await old(visit)

    async with Scripted(behave) as server, Client(f"{server.origin}/sse") as client:
        assert client.protocol_version == "2024-11-05"
        await asyncio.wait_for(server.visits[0].gone(), 5)  # its answer is not wanted any more
        assert (await client.call_tool("any")).text == "old"


async def test_neither_transport() -> None:
    async with Scripted(lambda visit: visit.answer(404)) as server:
        with pytest.raises(ServerError, match=r"answered 404 Not Found; and over HTTP\+SSE: .*404 Not Found") as caught:
            async with Client(server.url):
                pass
        assert caught.value.code == 404


async def test_a_refusal_in_words_is_kept() -> None:
    def behave(visit: Visit) -> None:
        if visit.verb == "GET":
            visit.answer(200, b"<html>", "text/html")
        else:
            visit.error(-32600, 400, "The protocol version is not supported", id=False)

    async with Scripted(behave) as server:
        with pytest.raises(ServerError, match=r"version is not supported; and over HTTP\+SSE: .* text/html") as caught:
            async with Client(server.url):
                pass
        assert caught.value.code == -32600


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


@pytest.mark.parametrize("endpoint", ["messages", "/messages", "?x=1", "{origin}/messages"])
async def test_endpoints_of_the_same_origin(endpoint: str) -> None:
    behave = Old()
    async with Scripted(behave) as server:
        behave.endpoint = endpoint.format(origin=server.origin)
        path = "/messages/" if endpoint.startswith("?") else "/sse"

        async def at_its_place(visit: Visit) -> None:
            visit.path = "/sse" if visit.verb == "GET" else visit.path
            await behave(visit)

        server._behave = at_its_place
        async with Client(f"{server.origin}{path}", transport="sse") as client:
            assert (await client.call_tool("any")).text == "old"


@pytest.mark.parametrize(
    ("opening", "words"),
    [
        (lambda visit: None, "did not name the URL for messages within 0.03 s"),
        (lambda visit: visit.stream(), "did not name the URL"),
        (lambda visit: (visit.stream(), visit.finish()), "ended before it named the URL"),
        (lambda visit: visit.answer(200, {"a": "page"}), "with application/json, and not with a stream"),
        (lambda visit: (visit.stream(), visit.event("x" * 60_000)), "longer than 50000 bytes"),
        (lambda visit: visit.cut(), "the connection broke"),
        (lambda visit: visit.answer(401), "401 Unauthorized"),
    ],
)
async def test_a_stream_that_is_none(monkeypatch: pytest.MonkeyPatch, opening: Any, words: str) -> None:
    monkeypatch.setattr(sse, "ENDPOINT_SECONDS", 0.03 if "did not" in words else 5)
    monkeypatch.setattr(requests, "MAX_MESSAGE_BYTES", 50_000)

    async def behave(visit: Visit) -> None:
        opening(visit)
        await visit.gone()

    async with Scripted(behave) as server:
        kinds = NotSignedIn if words.startswith("401") else (BadAnswer, ConnectionLost, ServerError)
        with pytest.raises(kinds, match=words):
            async with Client(server.url, transport="sse"):
                pass


async def test_refusals_of_single_messages() -> None:
    async with Scripted(Old()) as server, Client(f"{server.origin}/sse", transport="sse") as client:
        with pytest.raises(ServerError, match=r"not like this \(-32602\)"):
            await client.request("refused")
        await client.ping()


async def test_leaving_a_request_is_said_in_words() -> None:
    async with Scripted(Old()) as server, Client(f"{server.origin}/sse", transport="sse") as client:
        slow = asyncio.create_task(client.request("slow"))
        await until(lambda: server.said()[-1] == "POST slow")
        slow.cancel()
        await until(lambda: server.said()[-1] == "POST notifications/cancelled")


async def test_questions_are_answered() -> None:
    behave = Old()
    async with Scripted(behave) as server, Client(f"{server.origin}/sse", transport="sse"):
        behave.say({"jsonrpc": "2.0", "id": "p", "method": "ping"})
        await until(lambda: server.visits[-1].message == {"jsonrpc": "2.0", "id": "p", "result": {}})


async def test_a_question_does_not_limit_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit for its opening is over, whatever holds the limits of requests meanwhile."""
    monkeypatch.setattr(sse, "ENDPOINT_SECONDS", 0.2)
    behave = Old()
    async with Scripted(behave) as server, Client(f"{server.origin}/sse", roots=["/x"]) as client:
        behave.say({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})
        await until(lambda: any("roots" in (visit.message or {}).get("result", {}) for visit in server.visits))
        await asyncio.sleep(0.3)
        assert (await client.call_tool("any")).text == "old"
        assert len(behave.streams) == 1


async def test_closing_leaves_the_stream() -> None:
    behave = Old()
    async with Scripted(behave) as server:
        client = Client(f"{server.origin}/sse")
        await client.__aenter__()
        slow = asyncio.create_task(client.request("slow"))
        await until(lambda: server.said()[-1] == "POST slow")
        await client.close()
        with pytest.raises(ConnectionLost, match="the client was closed"):
            await slow
        await asyncio.wait_for(behave.streams[0].gone(), 5)


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


async def test_a_listener_survives_a_lost_session() -> None:
    behave = Old()
    async with (
        Scripted(behave) as server,
        Client(f"{server.origin}/sse") as client,
        client.listen(tools=True, uris=["n://1"]) as changes,
    ):
        for number in range(1, 4):
            behave.streams[-1].cut()
            assert [await next_of(changes), await next_of(changes)] == [Change("tools"), Change("updated", "n://1")]
            assert len(behave.streams) == number + 1
        behave.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        assert await next_of(changes) == Change("tools")


async def test_a_server_that_is_gone() -> None:
    behave = Old()
    async with Scripted(behave) as server:
        client = Client(f"{server.origin}/sse", timeout=5)
        await client.__aenter__()
    await until(lambda: client._channel._session_over)
    with pytest.raises(ConnectionLost, match="can't connect"):
        await client.ping()
    await client.close()


async def test_a_compressed_stream_is_refused_unread() -> None:
    def behave(visit: Visit) -> None:
        visit.stream(Content_Encoding="gzip")
        visit.chunk(gzip.compress(b"0" * 10_000_000))

    async with Scripted(behave) as server:
        with pytest.raises(BadAnswer, match="compressed its answer, which was not asked for"):
            async with Client(f"{server.origin}/sse", transport="sse"):
                pass
