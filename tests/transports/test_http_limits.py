"""Limits of what clients can make the server hold: bodies, client info, subscriptions; and rate limits."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from http_clients import connected

from dovetail import RouteRequest, Server
from dovetail.protocol.session import MAX_CLIENT, MAX_RECORD, MAX_SUBSCRIPTIONS
from http_serving import Serve, Stage, until
from http_wire import (
    CAPABILITIES_KEY,
    CLIENT,
    CLIENT_KEY,
    MODERN,
    HttpExchange,
    HttpWire,
    hello,
    open_wire,
    post,
    text_of,
)

MIB = 1024 * 1024


@pytest.fixture
async def app(serve: Serve) -> AsyncIterator[Any]:
    """Room for two bodies of 100 MiB, and no third; in the end nothing is held."""
    server = Server("bounded", version="1.0.0")

    @server.custom_route("/page", methods=["POST"])
    async def page(request: RouteRequest) -> str:
        return str(len(await request.body()))

    @server.tool
    def size(text: str) -> int:
        return len(text)

    app = await serve(server, max_body_bytes=100 * MIB, body_timeout=20)
    yield app
    await until(lambda: held(app) == 0)


def held(app: Any) -> int:
    return app._running.in_flight.bodies.held


PIECE = b"x" * MIB


def unfinished(app: Any, path: str = "/mcp") -> HttpExchange:
    """A client that sends nearly all of a body, and then nothing."""
    return HttpWire(app).raw("POST", [PIECE] * 99, path=path, complete=False)


async def test_bodies_have_a_common_quota_in_which_small_ones_do_not_count(
    app: Any, pass_time: Callable[[float], None]
) -> None:
    waiting = [unfinished(app), unfinished(app, "/page")]
    await until(lambda: held(app) == 2 * 99 * MIB)
    for path in ("/mcp", "/page"):
        refused = await unfinished(app, path).done()
        assert refused.status == 503
        assert refused.headers["retry-after"]
        assert "bodies" in refused.json["error"]["message"]
    assert held(app) == 2 * 99 * MIB  # what was refused holds nothing
    wire, text = HttpWire(app), "x" * 15_000
    headers: dict[str, str | None] = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "size"}
    body = json.dumps(wire.message("tools/call", {"name": "size", "arguments": {"text": text}})).encode()
    pieces = [body[begin : begin + 1000] for begin in range(0, len(body), 1000)]
    assert text_of((await wire.raw("POST", pieces, headers).done()).answer) == str(len(text))
    pass_time(21)
    for each in waiting:
        assert (await each.done()).status == 408
    assert held(app) == 0


@pytest.mark.parametrize("path", ["/mcp", "/page"])
@pytest.mark.parametrize("how", ["leave", "leave quietly", "cut"])
async def test_a_disconnect_releases_the_quota(app: Any, path: str, how: str) -> None:
    leaving = unfinished(app, path)
    await until(lambda: held(app) > 0)
    if how == "cut":
        await leaving.cut()
    else:
        leaving.leave(quietly=how == "leave quietly")
        await leaving.done()
    assert held(app) == 0


def limited(**options: Any) -> Server:
    server = Server("limited", version="1.0.0", **options)
    server.add_tool(lambda: "done", name="free")
    return server


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_a_limit_that_is_reached_is_a_429(serve: Serve, version: str) -> None:
    stage = Stage(max_concurrency=1, max_queue=0, rate_limit="4/hour")
    stage.server.add_prompt(lambda: "What?", name="ask")
    wire = await open_wire(await serve(stage.server), version)
    running = wire.start_call("work")
    await stage.entered.wait()
    for refused in (await wire.call("add", {"a": 1, "b": 2}), await wire.post("prompts/get", {"name": "ask"})):
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert (refused.json["error"]["code"], refused.json["error"]["data"]) == (-32603, {"retryAfter": 1})
        assert "1 calls running and 0 waiting" in refused.json["error"]["message"]
    stage.go.set()
    await running.done()
    while (last := await wire.call("add", {"a": 1, "b": 2})).status == 200:
        assert text_of(last.answer) == "3"
    seconds = int(last.headers["retry-after"])
    assert (last.status, 1 < seconds <= 3600) == (429, True)
    assert last.json["error"]["data"] == {"retryAfter": seconds}
    assert (await wire.post("tools/list")).status == 200  # which does not count


@pytest.mark.parametrize(
    ("per", "callers", "addresses", "statuses"),
    [
        ("principal", "aabb", "1111", [200, 429, 200, 429]),
        ("address", "aabb", "1111", [200, 429, 429, 429]),
        ("principal", "aaa", "121", [200, 429, 429]),
        ("address", "aaa", "121", [200, 200, 429]),
    ],
)
async def test_who_is_counted(serve: Serve, per: str, callers: str, addresses: str, statuses: list[int]) -> None:
    who = iter(callers)
    options = {"identify": lambda _: next(who), "trusted_proxies": ["127.0.0.1"]}
    app = await serve(limited(rate_limit=f"1/hour per {per}"), **options)
    wires = [HttpWire(app, headers={"x-forwarded-for": f"192.0.2.{each}"}) for each in addresses]
    assert [(await wire.call("free")).status for wire in wires] == statuses


async def test_clients_of_the_older_transport_are_counted_by_address(serve: Serve) -> None:
    app = await serve(limited(rate_limit="1/hour per address"), trusted_proxies=["127.0.0.1"])
    for address, is_refused in (("192.0.2.1", False), ("192.0.2.1", True), ("192.0.2.2", False)):
        async with connected(app, **{"x-forwarded-for": address}) as client:
            assert ("error" in await client.ask("tools/call", {"name": "free"})) == is_refused


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
@pytest.mark.parametrize(
    ("capabilities", "client", "is_fine"),
    [
        ({"experimental": {"x": [[]] * (MAX_CLIENT // 3)}}, CLIENT, False),  # small on the wire, and large in memory
        ({}, {**CLIENT, "title": "x" * MAX_CLIENT}, False),
        ({}, {**CLIENT, "icons": [{"src": "data:image/png;base64," + "A" * MAX_CLIENT}]}, True),
    ],
    ids=["capabilities", "title", "icons"],
)
async def test_the_size_of_client_info_is_limited(
    serve: Serve, version: str, capabilities: Any, client: Any, is_fine: bool
) -> None:
    wire, meta = HttpWire(await serve(Stage().server)), {CAPABILITIES_KEY: capabilities, CLIENT_KEY: client}
    greeting = hello(version, capabilities=capabilities, clientInfo=client)
    answer = await (wire.post("tools/list", {"_meta": meta}) if version == MODERN else post(wire, greeting))
    assert ("result" in answer.json) == is_fine
    if not is_fine:
        assert answer.json["error"]["code"] == -32602
        assert str(MAX_CLIENT) in answer.json["error"]["message"]


async def test_subscriptions_of_a_session_are_limited(serve: Serve) -> None:
    server = Server("x", version="1.0.0")
    server.add_resource("wide://{name}", lambda name: str(name), name="wide")
    wire = await HttpWire.session(await serve(server))
    for number in range(MAX_RECORD // 1_000 + 1):
        answer = (await wire.post("resources/subscribe", {"uri": f"wide://{'x' * 1_000}{number}"})).answer
    assert answer["error"]["code"] == -32602
    assert str(MAX_RECORD) in answer["error"]["message"]
    assert str(MAX_SUBSCRIPTIONS) in answer["error"]["message"]
