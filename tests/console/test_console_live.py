"""What the console tells of a server every second: figures that add up, sessions that others can't use, and an end."""

import asyncio
from typing import Any

import pytest
from console_asking import Viewer

from dovetail import Console, Context, Server, ToolError
from dovetail.console.metrics import (
    BINS,
    MAX_METHODS,
    MAX_TEXT,
    MAX_URIS,
    MAX_VIEWERS,
    OTHER,
    Histogram,
    Metrics,
    shown_session,
)
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.session import Session
from dovetail.transports.traffic import SeenSession
from http_serving import serving
from http_wire import HttpWire

# ── the gauge ──


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Asked:
    def __init__(self, method: str) -> None:
        self.method = method


async def pass_by(gauge: Metrics, clock: Clock, seconds: float = 0.0, method: str = "ping", fails: Any = None) -> None:
    async def answer(_: Any) -> Any:
        clock.now += seconds
        if fails is not None:
            raise fails

    request: Any = Asked(method)
    await gauge.measure(request, answer)


async def test_the_last_whole_second_counts() -> None:
    clock = Clock()
    gauge = Metrics(clock)
    for _ in range(4):
        await pass_by(gauge, clock, 0.1)
    assert (gauge.figures()["rate"], gauge.figures()["latency"]) == (0, None)
    clock.now = 1001.0
    told = gauge.figures()
    assert told["rate"] == 4
    assert told["latency"] == {name: pytest.approx(100, rel=0.1) for name in ("p50", "p90", "p99")}
    clock.now = 1002.0
    assert (gauge.figures()["rate"], gauge.figures()["latency"]) == (0, None)
    assert (gauge.figures()["requests"], gauge.figures()["uptime"]) == (4, 2.0)


async def test_failures_are_counted_and_cancellations_are_not() -> None:
    clock = Clock()
    gauge = Metrics(clock)
    for failure in (ToolError("no"), RuntimeError("no"), asyncio.CancelledError()):
        with pytest.raises(type(failure)):
            await pass_by(gauge, clock, fails=failure)
    told = gauge.figures()
    assert (told["requests"], told["errors"], told["running"]) == (3, 2, 0)


async def test_its_size_does_not_grow() -> None:
    clock = Clock()
    gauge = Metrics(clock)
    for number in range(1000):
        await pass_by(gauge, clock, 10.0 ** (number % 12 - 4), method=f"made/up/{number}")
    told = gauge.figures()
    assert len(told["methods"]) == MAX_METHODS + 1
    assert told["methods"][OTHER] == 1000 - MAX_METHODS


@pytest.mark.parametrize("milliseconds", [0.0, 0.004, 0.02, 1.0, 17.5, 1e3, 1e6, 1e12])
def test_a_percentile_is_off_by_a_tenth_at_most(milliseconds: float) -> None:
    histogram = Histogram()
    histogram.add(milliseconds)
    bounded = min(max(milliseconds, 0.01), 0.01 * 1.1 ** (BINS - 1))
    assert histogram.percentiles() == {
        "p50": pytest.approx(bounded, rel=0.11),
        "p90": pytest.approx(bounded, rel=0.11),
        "p99": pytest.approx(bounded, rel=0.11),
    }


# ── the stream ──


def tried_server() -> Server:
    server = Server("tried")

    @server.tool
    def fail() -> str:
        raise ToolError("on purpose")

    @server.tool
    async def wait(ctx: Context) -> str:
        await asyncio.sleep(30)
        return "done"

    @server.resource("note://one")
    def note() -> str:
        return "text"

    return server


def with_console(server: Server) -> dict[str, Any]:
    return {"routes": Console(server).routes()}


async def test_requests_errors_and_what_is_running_are_told() -> None:
    server = tried_server()
    async with serving(server, **with_console(server)) as app:
        wire = HttpWire(app)
        viewer = Viewer(app)
        first = await viewer.next()
        assert (first["requests"], first["errors"], first["running"], first["state"]) == (0, 0, 0, "memory")
        assert first["streams"] == 1  # its own
        await wire.start("tools/call", {"name": "fail"}).done()
        waiting = wire.start("tools/call", {"name": "wait"})
        await viewer.until(lambda told: told["requests"] == 2)
        assert (viewer.told["errors"], viewer.told["running"]) == (1, 1)
        assert viewer.told["methods"] == {"tools/call": 2}
        assert viewer.told["time"] > first["time"]
        waiting.leave()
        await waiting.done()
        await viewer.leave()


async def test_sessions_are_shown_without_what_opens_them() -> None:
    server = tried_server()
    async with serving(server, **with_console(server)) as app:
        wire = await HttpWire.session(app, "2025-06-18")
        viewer = Viewer(app)
        await viewer.next()
        await wire.ask("resources/subscribe", {"uri": "note://one"})
        await viewer.until(lambda told: told["subscriptions"] == 1)
        (shown,) = viewer.told["sessions"]
        assert viewer.told["sessions_total"] == 1
        assert abs(viewer.told["time"] - shown.pop("since")) < 60
        assert 0 <= shown.pop("idle") < 60
        assert shown == {
            "id": str(wire.session_id)[:8],
            "client": "wire 1.0.0",
            "revision": "2025-06-18",
            "subscriptions": ["note://one"],
        }
        await wire.raw("DELETE").done()
        await viewer.until(lambda told: told["sessions_total"] == 0)
        assert viewer.told["sessions"] == []
        await viewer.leave()


@pytest.mark.parametrize(
    ("client", "shown"),
    [
        ({"name": "x" * 1000, "version": "1"}, "x" * MAX_TEXT),
        ({"name": ["odd"], "version": None}, "['odd']"),
        ({}, ""),
    ],
)
def test_what_a_client_says_of_itself_is_bounded(client: dict[str, Any], shown: str) -> None:
    uris = frozenset(f"note://{number}/{'y' * 1000}" for number in range(1000))
    record = Session(id="s" * 32, version="2025-11-25", client=encode(client), capabilities=b"{}", subscriptions=uris)
    told = shown_session(SeenSession(record, 5.0, 1.0))
    assert told["client"] == shown
    assert len(told["subscriptions"]) == MAX_URIS
    assert {len(uri) for uri in told["subscriptions"]} == {MAX_TEXT}


async def test_an_open_page_does_not_hold_up_the_end() -> None:
    server = tried_server()
    app = server.asgi(**with_console(server))
    viewer = Viewer(app)
    await viewer.next()
    await asyncio.wait_for(app.drain(30), 5)
    await asyncio.wait_for(viewer.task, 5)
    assert viewer.ended


async def test_only_so_many_may_watch() -> None:
    server = tried_server()
    async with serving(server, **with_console(server)) as app:
        viewers = [Viewer(app) for _ in range(MAX_VIEWERS)]
        for viewer in viewers:
            await viewer.next()
        late = Viewer(app)
        await asyncio.wait_for(late.task, 10)
        assert late.status == 503
        for viewer in viewers:
            await viewer.leave()
        again = Viewer(app)
        await again.next()
        await again.leave()


def test_without_a_console_nothing_is_measured() -> None:
    server = tried_server()
    assert server.engine.chain is None
    Console(server)
    assert server.engine.chain is not None
