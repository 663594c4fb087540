"""How HTTP+SSE ends: by the client, by the server, or because nobody reads."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from old_client import PROMPTLY, OldClient, Serve, Stage

from dovetail.transports import response, sse
from dovetail.transports.http import HttpApp
from http_wire import HttpWire


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
    await asyncio.sleep(0.01)
    await client.leave()
    arrives.set()
    assert (await late.done()).status == 404
    await asyncio.sleep(0.01)
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


async def test_a_drain_ends_the_stream_within_a_second(app: HttpApp) -> None:
    clients = [await OldClient(app).open() for _ in range(5)]
    await clients[0].shake_hands()
    async with asyncio.timeout(1):
        await app.drain()
        for client in clients:
            await client.stream.done()
            assert client.stream.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_drain_lets_calls_finish(stage: Stage, app: HttpApp) -> None:
    client = await OldClient(app).open()
    await client.shake_hands()
    await client.begin("wait")
    await stage.begun.wait()
    draining = asyncio.create_task(app.drain())
    await asyncio.sleep(0.05)
    late = await client.post({"jsonrpc": "2.0", "id": 9, "method": "ping"}).done()
    assert late.status == 503
    stage.go.set()
    await asyncio.wait_for(draining, PROMPTLY)
    await client.stream.done()
    assert client.heard[-1]["result"]["content"][0]["text"] == "done"


async def test_a_drain_has_the_time_that_it_is_given(stage: Stage, app: HttpApp) -> None:
    client = await OldClient(app).open()
    await client.shake_hands()
    await client.begin("wait")
    await stage.begun.wait()
    async with asyncio.timeout(2):
        await app.drain(0.05)
        await client.stream.done()
    assert stage.cancelled.is_set()


async def test_who_leaves_during_a_drain_is_not_waited_for(stage: Stage, app: HttpApp) -> None:
    client = await OldClient(app).open()
    await client.shake_hands()
    await client.begin("wait")
    await stage.begun.wait()
    draining = asyncio.create_task(app.drain())
    await asyncio.sleep(0.05)
    client.stream.leave()
    await asyncio.wait_for(draining, 2)
    assert stage.cancelled.is_set()


async def test_a_drain_does_not_wait_for_who_reads_nothing(app: HttpApp) -> None:
    client = await OldClient(app).open()
    await client.shake_hands()
    client.stream.stall()
    for number in range(3):
        await client.post({"jsonrpc": "2.0", "id": f"p{number}", "method": "ping"}).done()
    async with asyncio.timeout(1.5):
        await app.drain()
        await client.stream.done()


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


async def test_refusals_are_bounded_too(app: HttpApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "FULL_BYTES", 1000)
    client = await OldClient(app).open()
    client.stream.stall()
    posts = [client.post({"jsonrpc": "2.0", "id": number, "method": "nonsense"}) for number in range(100)]
    await asyncio.sleep(0.1)
    assert len([post for post in posts if post.ended]) < 50
    await client.leave()
    for post in posts:
        assert (await post.done()).status in (202, 404)


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
