"""HTTP+SSE of 2024-11-05: one stream that a client GETs, and one path that it POSTs to."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from old_client import PROMPTLY, OldClient, Serve, Stage, connected

from dovetail.transports import response, sse
from dovetail.transports.http import HttpApp
from http_serving import settle
from http_wire import META, HttpWire

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MISSING_SESSION = "There is no such session; GET /sse opens one"


@pytest.fixture
async def stage(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Stage]:
    async with Stage.live(caplog) as stage:
        yield stage


@pytest.fixture
def serve(stage: Stage) -> Serve:
    """The app, with options."""
    return stage.serve


@pytest.fixture
def app(stage: Stage) -> HttpApp:
    return stage.serve()


# ── the stream ──


@pytest.mark.seed("S2-69", "S2-70")
@pytest.mark.rule("SSE-4", "SSE-5")
async def test_the_first_event_tells_where_to_post(app: HttpApp) -> None:
    stream = HttpWire(app).raw("GET", path="/sse")
    first = await stream.event()
    assert first.event == "endpoint"
    assert re.fullmatch(rb"/messages\?session_id=[A-Za-z0-9_-]{32,}", first.data)  # a path: of the same origin
    assert stream.status == 200
    assert stream.headers["content-type"] == "text/event-stream"
    assert stream.headers["cache-control"] == "no-cache, no-transform"
    assert stream.headers["x-accel-buffering"] == "no"
    assert first.id is None  # nothing to resume here
    stream.leave()
    await stream.done()


@pytest.mark.seed("S2-06", "S2-69", "S2-70", "S2-84")
@pytest.mark.rule("SSE-6", "SSE-7")
async def test_answers_come_as_message_events(app: HttpApp) -> None:
    async with connected(app) as client:
        assert await client.call("add", a=1, b=2) == "3"
        assert {event.event for event in client.stream.events[1:]} == {"message"}
        assert all(json.loads(event.data)["jsonrpc"] == "2.0" for event in client.stream.events[1:])


@pytest.mark.rule("SSE-8")
@pytest.mark.parametrize("version", REVISIONS)
async def test_every_handshake_revision_can_be_negotiated(app: HttpApp, version: str) -> None:
    async with connected(app, version) as client:
        assert await client.call("add", a=1, b=2) == "3"
        tools = (await client.ask("tools/list"))["result"]["tools"]
        assert ("annotations" in tools[0] or "outputSchema" in tools[0]) == (version >= "2025-06-18")


@pytest.mark.rule("SSE-8")
@pytest.mark.parametrize("version", ["2026-07-28", "1999-01-01"])
async def test_another_revision_is_not_negotiated(app: HttpApp, version: str) -> None:
    client = await OldClient(app).open()
    assert (await client.shake_hands(version))["protocolVersion"] == "2025-11-25"
    await client.leave()


@pytest.mark.parametrize("shakes_hands", [False, True])
@pytest.mark.parametrize("method", ["server/discover", "tools/list", "subscriptions/listen"])
async def test_a_modern_request_is_not_served(app: HttpApp, method: str, shakes_hands: bool) -> None:
    client = await OldClient(app).open()
    if shakes_hands:
        await client.shake_hands()
    error = (await client.ask(method, {"_meta": META, "notifications": {}}))["error"]
    assert error["code"] == -32022
    assert error["data"] == {"requested": "2026-07-28", "supported": list(reversed(REVISIONS))}
    await client.leave()


async def test_before_the_handshake_nothing_but_ping_is_served(app: HttpApp) -> None:
    client = await OldClient(app).open()
    assert (await client.ask("ping"))["result"] == {}
    assert "Not initialised" in (await client.ask("tools/list"))["error"]["message"]
    assert (await client.ask("server/discover"))["error"]["code"] == -32602
    await client.leave()


async def test_what_is_told_unasked(stage: Stage, app: HttpApp) -> None:
    async with connected(app) as client:
        stage.server.remove_tool("large")
        assert (await client.stream.message())["method"] == "notifications/tools/list_changed"
        await client.begin("wait")
        assert (await client.stream.message())["method"] == "notifications/progress"
        stage.go.set()
        assert (await client.stream.message())["result"]["content"][0]["text"] == "done"


async def test_batches_where_the_revision_has_them(app: HttpApp) -> None:
    batch = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in ("a", "b")]
    async with connected(app, "2025-03-26") as client:
        assert (await client.post(batch).done()).status == 202
        assert [each["id"] for each in await client.stream.message()] == ["a", "b"]
    async with connected(app, "2025-06-18") as client:
        assert (await client.post(batch).done()).status == 202
        assert (await client.stream.message())["error"]["code"] == -32600


async def test_a_call_can_be_cancelled(stage: Stage, app: HttpApp) -> None:
    async with connected(app) as client:
        await client.begin("wait")
        await stage.begun.wait()
        number = next(client.wire.ids) - 1
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
        assert (await client.post(cancel).done()).status == 202
        await asyncio.wait_for(stage.cancelled.wait(), PROMPTLY)
        assert await client.call("add", a=1, b=2) == "3"


@pytest.mark.seed("S2-71")
async def test_several_clients_do_not_meet(app: HttpApp) -> None:
    async with connected(app) as one, connected(app, "2025-11-25") as two:
        sums = await asyncio.gather(one.call("add", a=1, b=0), two.call("add", a=2, b=0))
        assert sums == ["1", "2"]
        assert (await one.ask("ping"))["result"] == (await two.ask("ping"))["result"] == {}


async def test_keep_alive(serve: Serve) -> None:
    async with connected(serve(keep_alive=0.02)) as client:
        await client.stream.until(lambda: client.stream.raw.count(b": keep-alive\n\n") >= 2)
        assert await client.call("add", a=1, b=2) == "3"


# ── what is refused ──


async def test_an_unknown_session(app: HttpApp) -> None:
    client = await OldClient(app).open()
    for query in ("session_id=unknown", "session_id=", f"{client.query}x", f"{client.query}&{client.query}"):
        refused = await client.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, query=query).done()
        assert refused.status == (400 if query == "session_id=" else 404)
        assert refused.json["error"]["message"] == MISSING_SESSION
    await client.leave()


@pytest.mark.parametrize("query", ["", "session=x", "&".join(["a=1"] * 200), "%", "x" * 100_000, "\xff"])
async def test_no_session_at_all(app: HttpApp, query: str) -> None:
    refused = await OldClient(app).post(b"{}", query=query).done()
    assert (refused.status, refused.json["error"]["message"]) == (400, MISSING_SESSION)


async def test_a_session_belongs_to_who_opened_it(stage: Stage, serve: Serve) -> None:
    app = serve(identify=lambda scope: dict(scope["headers"]).get(b"x-user", b"").decode() or None)
    alice = await OldClient(app, **{"x-user": "alice"}).open()
    await alice.shake_hands()
    for other in ({"x-user": "bob"}, {"x-user": None}):
        refused = await alice.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=other).done()
        assert (refused.status, refused.json["error"]["message"]) == (404, MISSING_SESSION)
    assert await alice.call("add", a=1, b=2) == "3"
    await alice.leave()


UNREADABLE = [
    *((body, -32700) for body in (b"", b"{", b"\xff", b"[" * 100_000)),
    *((body, -32600) for body in (b"7", b"{}", b"[]", b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}')),
]


@pytest.mark.parametrize(("body", "code"), UNREADABLE)
async def test_an_unreadable_body(app: HttpApp, body: bytes, code: int) -> None:
    async with connected(app) as client:
        refused = await client.post(body).done()
        assert (refused.status, refused.json["error"]["code"]) == (400, code)
        assert await client.call("add", a=1, b=2) == "3"
        assert len(client.heard) == 2  # the refusal did not go out twice


@pytest.mark.rule("SSE-10")
async def test_it_can_be_switched_off(serve: Serve) -> None:
    wire = HttpWire(serve(sse=False))
    for method, path in (("GET", "/sse"), ("POST", "/messages"), ("GET", "/messages")):
        refused = await wire.raw(method, b"", path=path).done()
        assert (refused.status, refused.json["error"]["code"]) == (404, -32600)
    assert (await wire.call("add", {"a": 1, "b": 2})).status == 200


@pytest.mark.rule("SSE-9")
async def test_it_is_there_beside_the_endpoint(app: HttpApp) -> None:
    async with connected(app) as client:
        assert await client.call("add", a=1, b=2) == "3"
        modern = HttpWire(app)
        assert (await modern.call("add", {"a": 1, "b": 2})).status == 200
        # the session of one is none of the other
        mixed = await HttpWire.session(app)
        mixed.session_id = client.query.removeprefix("session_id=")
        assert (await mixed.post("ping")).status == 404


async def test_the_session_ends_with_the_stream(stage: Stage, app: HttpApp) -> None:
    client = await OldClient(app).open()
    await client.shake_hands()
    await client.begin("wait")
    await stage.begun.wait()
    await client.leave()
    await asyncio.wait_for(stage.cancelled.wait(), PROMPTLY)
    refused = await client.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}).done()
    assert refused.status == 404


async def test_a_message_that_arrives_as_the_stream_ends_starts_nothing(stage: Stage, app: HttpApp) -> None:
    client = await OldClient(app).open()
    await client.shake_hands()
    params = {"name": "wait", "arguments": {}}
    call = json.dumps({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params}).encode()
    arrives = asyncio.Event()

    async def slowly(scope: Any, receive: Any, send: Any) -> None:
        async def held_back() -> Any:
            await arrives.wait()
            return await receive()

        await app(scope, held_back, send)

    late = HttpWire(slowly, path="/messages").raw("POST", call, query=client.query)
    await settle(50)
    await client.leave()
    arrives.set()
    assert (await late.done()).status == 404
    await settle(50)
    assert not stage.begun.is_set()


async def test_who_says_nothing_is_left(serve: Serve) -> None:
    stage = Stage(initialize_timeout=0.05)
    app = stage.server.asgi()
    silent = await OldClient(app).open()
    talkative = await OldClient(app).open()
    await talkative.shake_hands()
    await silent.stream.done(1)
    assert silent.stream.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert (await silent.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}).done()).status == 404
    assert await talkative.call("add", a=1, b=2) == "3"
    await talkative.leave()
    await app.drain()


async def test_a_drain_lets_calls_finish(stage: Stage, app: HttpApp) -> None:
    client = await OldClient(app).open()
    await client.shake_hands()
    await client.begin("wait")
    await stage.begun.wait()
    draining = asyncio.create_task(app.drain())
    await settle(50)
    late = await client.post({"jsonrpc": "2.0", "id": 9, "method": "ping"}).done()
    assert late.status == 503
    stage.go.set()
    await asyncio.wait_for(draining, PROMPTLY)
    await client.stream.done()
    assert client.heard[-1]["result"]["content"][0]["text"] == "done"


# ── slow readers ──


async def test_who_reads_too_slowly_has_to_wait(app: HttpApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a client is bounded, however much it asks for."""
    monkeypatch.setattr(sse, "FULL_BYTES", 10_000)
    client = await OldClient(app).open()
    await client.shake_hands()
    client.stream.stall()
    posts = []
    for number in range(100):
        params = {"name": "large", "arguments": {"size": 1000}}
        posts.append(client.post({"jsonrpc": "2.0", "id": f"n{number}", "method": "tools/call", "params": params}))
        await asyncio.sleep(0)
    await asyncio.sleep(0.2)
    taken = [post for post in posts if post.ended]
    assert 5 <= len(taken) <= 30  # the others wait
    client.stream.read_on()
    for post in posts:
        assert (await post.done()).status == 202
    await client.stream.until(lambda: len(client.heard) == 101)
    await client.leave()


async def test_who_reads_nothing_is_left(app: HttpApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "SEND_SECONDS", 0.1)
    client = await OldClient(app).open()
    await client.shake_hands()
    client.stream.stall()
    await client.post({"jsonrpc": "2.0", "id": 5, "method": "ping"}).done()
    await client.stream.done(2)
    assert (await client.post({"jsonrpc": "2.0", "id": 6, "method": "ping"}).done()).status == 404


async def test_who_does_not_even_read_keep_alives_is_left(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "SEND_SECONDS", 0.1)
    client = await OldClient(serve(keep_alive=0.05)).open()
    client.stream.stall()
    await client.stream.done(2)
