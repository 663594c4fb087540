"""HTTP+SSE of 2024-11-05: one stream that a client GETs, and one path that it POSTs to."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from http_clients import LEGACY, TOOLS, OldClient, connected

from http_serving import Serve, Stage, settle
from http_wire import META, HttpWire, message, text_of

MISSING = "There is no such session; GET /sse opens one"


class Large(Stage):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.server.add_tool(self.large)

    async def large(self, size: int, waits: bool = False) -> str:
        if waits:
            await self.go.wait()
        return "x" * size


@pytest.fixture
async def stage() -> Large:
    return Large()


@pytest.mark.seed("S2-69", "S2-70")
@pytest.mark.rule("SSE-4", "SSE-5", "SSE-9")
async def test_the_first_event_names_the_url_to_post_to_and_the_endpoint_is_there_beside_it(serve: Serve) -> None:
    app = await serve(keep_alive=0.02)
    async with connected(app) as client:
        stream, first = client.stream, client.stream.events[0]
        assert (first.event, first.id) == ("endpoint", None)  # nothing to resume here
        assert re.fullmatch(rb"/messages\?session_id=[A-Za-z0-9_-]{32,}", first.data)  # a path: of the same origin
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")
        assert stream.headers["cache-control"] == "no-cache, no-transform"
        assert stream.headers["x-accel-buffering"] == "no"
        assert (await HttpWire(app).call("add", {"a": 1, "b": 2})).status == 200
        mixed = await HttpWire.session(app)
        mixed.session_id = client.query.removeprefix("session_id=")  # the session of one is none of the other
        assert (await mixed.post("ping")).status == 404
        await stream.until(lambda: stream.raw.count(b": keep-alive\n\n") >= 2)
        assert await client.call("add", a=1, b=2) == "3"


@pytest.mark.seed("S2-06", "S2-69", "S2-70", "S2-84")
@pytest.mark.rule("SSE-6", "SSE-7", "SSE-8")
@pytest.mark.parametrize("version", LEGACY)
async def test_every_handshake_revision_is_answered_in_message_events(app: Any, version: str) -> None:
    async with connected(app, version) as client:
        assert await client.call("add", a=1, b=2) == "3"
        tools = (await client.ask("tools/list"))["result"]["tools"]
        assert any("outputSchema" in tool for tool in tools) == (version >= "2025-06-18")
        assert {event.event for event in client.stream.events[1:]} == {"message"}
        assert all(json.loads(event.data)["jsonrpc"] == "2.0" for event in client.stream.events[1:])
        assert (await client.post([message("ping", id=id) for id in ("a", "b")]).done()).status == 202
        received = await client.stream.message()  # of a batch, where the revision has them
        if version == "2025-03-26":
            assert [each["id"] for each in received] == ["a", "b"]
        else:
            assert received["error"]["code"] == -32600


@pytest.mark.rule("SSE-8")
async def test_2026_07_28_is_not_served(app: Any) -> None:
    for version in ("2026-07-28", "1999-01-01"):
        client = await OldClient(app).open()
        for method in ("server/discover", "tools/list", "subscriptions/listen", "initialize", "tools/list"):
            if method == "initialize":
                assert (await client.shake_hands(version))["protocolVersion"] == "2025-11-25"
                continue
            error = (await client.ask(method, {"_meta": META, "notifications": {}}))["error"]
            assert error["code"] == -32022
            assert error["data"] == {"requested": "2026-07-28", "supported": list(reversed(LEGACY))}
        await client.leave()


@pytest.mark.seed("S2-71")
async def test_several_clients_are_notified_of_changes_and_of_their_own_calls_alone(stage: Large, app: Any) -> None:
    async with connected(app) as one, connected(app, "2025-11-25") as two:
        assert await asyncio.gather(one.call("add", a=1, b=0), two.call("add", a=2, b=0)) == ["1", "2"]
        stage.server.remove_tool("large")
        for client in (one, two):
            assert (await client.stream.message())["method"] == TOOLS
        await one.begin("warn")
        assert (await one.stream.message())["params"]["data"] == "first"
        stage.go.set()
        await one.stream.until(lambda: "result" in one.received[-1])
        assert text_of(one.received[-1]) == "warned"
        assert two.received[-1]["method"] == TOOLS


async def test_an_unknown_session(app: Any) -> None:
    client = await OldClient(app).open()
    for query in ("session_id=unknown", f"{client.query}x", f"{client.query}&{client.query}"):
        refused = await client.ping(query=query)
        assert (refused.status, refused.json["error"]["message"]) == (404, MISSING)
    for query in ("session_id=", "", "session=x", "&".join(["a=1"] * 200), "%", "x" * 100_000, "\xff"):
        refused = await client.ping(query=query)
        assert (refused.status, refused.json["error"]["message"]) == (400, MISSING)
    await client.leave()


async def test_an_unreadable_body_is_refused_where_it_was_posted(app: Any) -> None:
    async with connected(app) as client:
        valid = (b"7", b"{}", b"[]", b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}')
        for body in (b"", b"{", b"\xff", b"[" * 100_000, *valid):
            refused = await client.post(body).done()
            assert (refused.status, refused.json["error"]["code"]) == (400, -32600 if body in valid else -32700)
        assert await client.call("add", a=1, b=2) == "3"
        assert len(client.received) == 2  # the refusals were not sent twice


@pytest.mark.rule("SSE-10")
async def test_it_can_be_switched_off(serve: Serve) -> None:
    wire = HttpWire(await serve(sse=False))
    for method, path in (("GET", "/sse"), ("POST", "/messages"), ("GET", "/messages")):
        refused = await wire.raw(method, b"", path=path).done()
        assert (refused.status, refused.json["error"]["code"]) == (404, -32600)
    assert (await wire.call("add", {"a": 1, "b": 2})).status == 200


async def test_the_session_ends_with_the_stream(stage: Large, app: Any) -> None:
    async with connected(app) as client:
        await client.begin("work")
        await stage.entered.wait()
    await asyncio.wait_for(stage.cancelled.wait(), 5)
    assert (await client.ping()).status == 404


async def test_a_client_that_sends_nothing_is_disconnected(serve: Serve, pass_time: Callable[[float], None]) -> None:
    app = await serve(Stage(initialize_timeout=20).server)
    silent, talkative = await OldClient(app).open(), await OldClient(app).open()
    await talkative.shake_hands()
    pass_time(21)
    await silent.stream.done()
    assert silent.stream.sent[-1]["more_body"] is False
    assert (await silent.ping()).status == 404
    assert await talkative.call("add", a=1, b=2) == "3"
    await talkative.leave()


async def test_a_drain_lets_calls_finish(stage: Large, app: Any) -> None:
    async with connected(app) as client:
        await client.begin("work")
        await stage.entered.wait()
        draining = asyncio.create_task(app.drain())
        await settle(50)
        assert (await client.ping()).status == 503
        stage.go.set()
        await asyncio.wait_for(draining, 5)
        await client.stream.done()
        assert text_of(client.received[-1]) == "done"


async def calls(client: OldClient, count: int, **arguments: Any) -> list[Any]:
    posts = []
    for number in range(count):
        posts.append(client.post(message("tools/call", {"name": "large", "arguments": arguments}, id=f"n{number}")))
        await settle()
    return posts


async def test_a_client_that_reads_too_slowly_has_to_wait(app: Any) -> None:
    """What waits for a client is bounded, however much it asks for."""
    async with connected(app) as client:
        client.stream.stall()
        posts = await calls(client, 30, size=100_000)
        assert 5 <= sum(post.ended for post in posts) <= 25  # the others wait
        client.stream.read_on()
        for post in posts:
            assert (await post.done()).status == 202
        await client.stream.until(lambda: len(client.stream.events) == 32)


async def test_a_client_with_too_much_in_its_queue_is_disconnected(
    stage: Large, app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls that end together can bring that about; one large answer is no reason."""
    async with connected(app) as client:
        assert len(await client.call("large", size=17_000_000)) == 17_000_000
        client.stream.stall()
        for post in await calls(client, 18, size=1_000_000, waits=True):
            assert (await post.done()).status == 202
        stage.go.set()
        await client.stream.done()
    assert "waited for it" in caplog.text
    assert (await client.ping()).status == 404


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_client_that_reads_nothing_is_disconnected(
    app: Any, pass_time: Callable[[float], None], is_answered: bool
) -> None:
    """Neither an answer nor a keep-alive."""
    async with connected(app) as client:
        client.stream.stall()
        if is_answered:
            await client.ping()
        for _ in range(4):
            pass_time(31)
            await settle()
        await client.stream.done()
        assert (await client.ping()).status == 404
