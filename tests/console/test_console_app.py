"""The console's server side: its paths, access to them, and the live metrics."""

import asyncio
import os
import platform
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any
from urllib.request import Request, urlopen

import pytest
from console_page import STAGE, call_of

import dovetail
from dovetail import Console, Proxy, Server, SetupError, ToolError
from dovetail.console import history, metrics
from dovetail.console.history import History, since
from dovetail.console.metrics import session_summary
from dovetail.engine import metrics as families
from dovetail.engine.metrics import Metrics, watch
from dovetail.protocol.jsonrpc import encode
from dovetail.protocol.jsonrpc import parse as decode
from dovetail.protocol.session import Session
from dovetail.transports.http.in_flight import ActiveSession
from http_serving import serving
from http_wire import HttpExchange, HttpWire
from processes import wait_until

HERE = ("127.0.0.1", 50000)


async def ask(
    app: Any, path: str, method: str = "GET", *, client: Any = HERE, root: str = "", query: str = "", **headers: str
) -> HttpExchange:
    """An empty header is left out."""

    async def for_client(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "client": client, "query_string": query.encode()}, receive, send)

    given = {name.replace("_", "-"): value or None for name, value in headers.items()}
    return await HttpWire(for_client, root_path=root).raw(method, b"", given, path=root + path).done()


async def ask_api(app: Any, name: str, **options: Any) -> HttpExchange:
    """As the page itself does."""
    marks = {"x_dovetail_console": "1", "sec_fetch_site": "same-origin"}
    return await ask(app, f"/console/api/{name}", **{**marks, **options})


def viewer_of(app: Any) -> HttpExchange:
    """A page that watches the live figures, until it leaves."""
    return HttpWire(app).raw("GET", b"", {"x-dovetail-console": "1"}, path="/console/api/live")


async def event_when(viewer: HttpExchange, holds: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(20):
        while not holds(event := await viewer.message()):
            pass
    return event


# ── pages ──


HEADERS = {"content-security-policy", "x-content-type-options", "referrer-policy", "cross-origin-opener-policy"}


def console_app(*, remote: bool = False, **options: Any) -> Any:
    server = Server("tried", title="To be tried", version="3.1")
    return server.asgi(routes=Console(server, remote=remote).routes(), **options)


async def test_every_file_that_the_page_may_load_is_there() -> None:
    app = console_app()
    names = [each.name for each in files("dovetail.console").joinpath("static").iterdir()]
    assert "index.html" in names
    page = await ask(app, "/console/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["cache-control"] == "no-cache"
    again = await ask(app, "/console/", if_none_match=page.headers["etag"])
    assert (again.status, again.raw) == (304, b"")
    assert (await ask(app, "/console/", if_none_match='"other"')).status == 200
    for name in names:
        response = await ask(app, f"/console/static/{name}")
        assert response.status == 200, name
        assert response.raw == files("dovetail.console").joinpath("static", name).read_bytes()


@pytest.mark.parametrize(
    "path",
    ["static/", "static", "static/nothing.js", "static/../console.py", "static//etc/passwd", "index.html", "api", "x",
     "static/../../__init__.py", "static/app.js/", "static/%2e%2e/console.py"],
)  # fmt: skip
async def test_nothing_else_can_be_reached(path: str) -> None:
    assert (await ask(console_app(), f"/console/{path}")).status == 404


@pytest.mark.parametrize("path", ["/console/", "/console", "/console/none", "/console/api/none"])
async def test_every_response_may_load_and_do_nothing_unforeseen(path: str) -> None:
    response = await ask(console_app(), path)
    assert response.headers.keys() >= HEADERS
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.rule("APP-8")
async def test_the_frame_of_a_view_has_its_policy_and_no_rights() -> None:
    async def policy(query: str) -> list[str]:
        response = await ask(console_app(), "/console/view", query=query)
        assert response.headers["x-frame-options"] == "SAMEORIGIN"
        return response.headers["content-security-policy"].split("; ")

    always = ["default-src 'none'", "form-action 'none'", "frame-ancestors 'self'", "sandbox allow-scripts"]
    nothing = await policy("")
    assert set(nothing) >= {*always, "script-src 'unsafe-inline'", "connect-src 'none'", "frame-src 'none'"}
    assert "'self'" not in "".join(set(nothing) - {*always})
    found = await policy(
        "connectDomains=https://a.example&connectDomains=wss://*.a.example&resourceDomains=https://c.example"
        "&frameDomains=https://f.example&baseUriDomains=https://b.example"
    )
    assert set(found) >= {
        *always,
        "connect-src https://a.example wss://*.a.example",
        "script-src 'unsafe-inline' https://c.example",
        "style-src 'unsafe-inline' https://c.example",
        "img-src data: blob: https://c.example",
        "frame-src https://f.example",
        "base-uri https://b.example",
    }
    for bad in (
        "*",
        "https:",
        "'self'",
        "https://a.example;script-src%20*",
        "https://a%0d%0ax",
        "data:",
        "https://%c5%bf.example",
    ):
        assert await policy(f"connectDomains={bad}") == nothing


async def test_another_path_and_one_below_another_app() -> None:
    server = Server("tried")
    app = server.asgi(routes=Console(server, path="/tools/look").routes())
    assert (await ask(app, "/tools/look/")).status == 200
    response = await ask(app, "/tools/look", root="/below")  # what a proxy cuts off is not known here
    assert (response.status, response.headers["location"]) == (308, "look/")
    about = await ask(app, "/tools/look/api/about", x_dovetail_console="1")
    assert about.json["endpoint"] == "../../mcp"
    for path in ("", "/", "console", "/console/", "/con sole", "/{x}"):
        with pytest.raises(SetupError, match="it must be like"):
            Console(Server("tried"), path=path)


TRUSTED = {"trusted_proxies": ["127.0.0.1"]}
FARAWAY = ("192.0.2.7", 5)


@pytest.mark.parametrize(
    ("request_", "options", "message"),
    [
        ({}, {}, None),
        ({"client": ("::1", 5, 0, 0), "host": "[::1]:8000"}, {}, None),
        ({"client": ("::ffff:127.0.0.1", 5)}, {}, None),
        ({"client": FARAWAY}, {}, "remote=True"),
        ({"client": None}, {}, "remote=True"),
        # forwarded by a proxy that is not trusted
        ({"x_forwarded_for": "127.0.0.1"}, {}, "remote=True"),
        ({"forwarded": "for=127.0.0.1"}, {}, "remote=True"),
        ({"via": "1.1 tunnel"}, {}, "remote=True"),
        *(({name: "127.0.0.1"}, {}, "remote=True") for name in (
            "x_forwarded_port", "x_forwarded_client_cert", "x_real_ip", "x_cluster_client_ip", "fly_client_ip",
            "x_original_forwarded_for", "x_envoy_external_address", "cdn_loop", "cf_connecting_ip", "x_client_ip",
        )),
        ({"x_forwarded_for": "127.0.0.1"}, {"trusted_proxies": ["10.0.0.0/8"]}, "remote=True"),
        # by a proxy that is trusted
        ({}, TRUSTED, None),
        ({"x_forwarded_for": "127.0.0.1"}, TRUSTED, None),
        ({"x_forwarded_for": "203.0.113.9"}, TRUSTED, "remote=True"),
        ({"x_forwarded_for": "203.0.113.9, 127.0.0.1"}, TRUSTED, "remote=True"),
        ({"x_forwarded_for": "unknown"}, TRUSTED, "remote=True"),
        ({"forwarded": "for=127.0.0.1"}, TRUSTED, "remote=True"),
        ({"client": ("10.0.0.1", 5), "x_forwarded_for": "127.0.0.1"}, {"trusted_proxies": ["10.0.0.1"]}, "remote=True"),
        # a name that was made to point here
        ({"host": "evil.example:8000"}, {}, "allowed_hosts"),
        ({"host": "evil.example:8000"}, {"allowed_hosts": ["*"]}, "by a name that means this machine"),
        ({"host": ""}, {"allowed_hosts": ["*"]}, "by a name that means this machine"),
        # for others too
        ({"client": FARAWAY, "host": "mcp.example"}, {"remote": True, "allowed_hosts": ["mcp.example"]}, None),
        ({"client": FARAWAY, "host": "evil.example"}, {"remote": True, "allowed_hosts": ["mcp.example"]}, "Host"),
        ({"client": FARAWAY, "host": "evil.example"}, {"remote": True, "allowed_hosts": ["*"]}, "allowed_hosts"),
        ({"client": FARAWAY, "x_forwarded_for": "203.0.113.9"}, {"remote": True}, None),
    ],
)  # fmt: skip
async def test_who_may_see_it(request_: dict[str, Any], options: dict[str, Any], message: str | None) -> None:
    app = console_app(**options)
    for path in ("/console/", "/console", "/console/static/index.html", "/console/api/about"):
        response = await ask(app, path, x_dovetail_console="1", **request_)
        assert (response.status == 403) == (message is not None), path
        assert message is None or message in response.raw.decode()


async def test_for_others_only_where_the_names_are_known() -> None:
    """A server that listens everywhere and does not know its names checks no Host: any page could be its own."""
    app = console_app(remote=True)

    async def from_anywhere(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "server": ("192.0.2.1", 8000)}, receive, send)

    response = await ask(from_anywhere, "/console/", client=FARAWAY, host="evil.example:8000")
    assert (response.status, b"allowed_hosts" in response.raw) == (403, True)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec_fetch_site": ""}, 200),
        ({"origin": "http://localhost:8000"}, 200),
        ({"x_dovetail_console": ""}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "http://127.0.0.1:8000"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "localhost", "origin": "https://localhost"}, 200),
        ({"host": "localhost", "origin": "http://localhost:8000"}, 403),
    ],
)
@pytest.mark.parametrize("cors", [True, False])
async def test_data_goes_to_the_page_itself_only(headers: dict[str, str], status: int, cors: bool) -> None:
    response = await ask_api(console_app(allowed_origins=["null"], cors=cors), "about", **headers)
    assert response.status == status
    assert "access-control-allow-origin" not in response.headers


async def test_facts_about_the_server_are_for_the_page_only() -> None:
    asks = {"origin": "http://localhost:3000", "access_control_request_headers": "x-dovetail-console"}
    response = await ask(console_app(), "/console/api/about", "OPTIONS", access_control_request_method="GET", **asks)
    assert (response.status, [name for name in response.headers if name.startswith("access-control")]) == (405, [])
    assert (await ask_api(console_app(), "about", method="POST")).status == 405  # nothing can be changed
    response = await ask_api(console_app(), "about")
    assert response.headers["cache-control"] == "no-store"
    assert response.json == {
        "endpoint": "../mcp",
        "name": "tried",
        "title": "To be tried",
        "version": "3.1",
        "revisions": ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"],
        "auth": False,
        "python": platform.python_version(),
        "dovetail": dovetail.__version__,
        "target": None,
    }


# ── the last hour ──


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Hour:
    """A history whose time passes as a test wants."""

    clock: Clock = field(default_factory=Clock)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.history = History(self.metrics, self.clock)
        self.metrics.update()

    def request(
        self, tool: str = "", seconds: float = 0.0015, outcome: str = "ok", method: str = "tools/call", times: int = 1
    ) -> None:
        for _ in range(times):
            self.metrics.observe(families.OPERATIONS, method, "2026-07-28", tool, outcome, "", seconds=seconds)

    def point(self) -> Any:
        """After ten seconds."""
        self.clock.now += history.SPAN
        self.metrics.update()
        return decode(since(self.history.points, self.history.last - 1)[0])

    def tail(self) -> Any:
        self.clock.now += 1
        return decode(self.history.tail())


def test_a_point_says_what_happened_in_ten_seconds() -> None:
    hour = Hour()
    hour.metrics.set(families.SLOTS_IN_USE, "server", value=3)
    hour.metrics.set(families.TASKS, "working", value=2)
    hour.request("add", times=3)
    hour.request("add", outcome="tool_error")
    hour.request("add", outcome="cancelled")
    hour.request("", method="tools/list")
    hour.request("", method="subscriptions/listen", seconds=9000.0)  # counted, but not slow
    point = hour.point()
    assert (point["seconds"], point["running"], point["tasks"], point["slots"]) == (10.0, 3.0, {"working": 2.0}, None)
    assert (point["all"], point["tools"]) == ([7, 1, {"1": 6}], {"add": [5, 1, {"1": 5}]})
    assert hour.history.methods == {"tools/call": 5, "tools/list": 1, "subscriptions/listen": 1}
    assert hour.point()["all"] == [0, 0, {}]


def test_the_point_that_has_not_ended_is_read_once_a_second() -> None:
    hour = Hour()
    hour.request("add")
    assert hour.tail()["all"][0] == 1
    hour.request("add")
    assert decode(hour.history.tail())["all"][0] == 1  # for another page, in the same second
    assert hour.tail()["all"][0] == 2
    assert not hour.history.points
    assert hour.point()["all"][0] == 2
    assert decode(hour.history.tail())["all"][0] == 0  # nothing is told twice


def test_a_worker_that_replaces_another_one_does_not_take_its_numbers_for_news() -> None:
    hour = Hour()
    hour.request("add", times=100)
    later = Hour(metrics=hour.metrics)
    later.request("add")
    assert later.point()["all"][0] == 1


def test_the_last_hour_is_bounded() -> None:
    hour = Hour()
    for number in range(history.MAX_POINTS + 5):
        hour.request("add", times=number % 3)
        hour.point()
    assert len(since(hour.history.points, 0)) == history.MAX_POINTS
    assert len(since(hour.history.points, hour.history.last - 2)) == 2
    for number in range(history.MAX_NAMES + 20):
        hour.request(f"tool {number}", times=1 if number < 20 else 2)
    hour.request(families.OTHER, times=5)
    tools = hour.point()["tools"]
    assert len(tools) == history.MAX_NAMES
    assert tools[families.OTHER] == [5, 0, {"1": 5}]  # the busiest


async def test_the_last_failures_are_bounded_and_without_secrets() -> None:
    server = Server("tried")

    @server.tool
    def fail(text: str) -> str:
        raise ToolError(text)

    @server.tool
    def crash() -> str:
        raise RuntimeError("hush")

    @server.prompt
    def hello() -> str:
        return "hello"

    recorder = History(watch(server.engine))
    async with serving(server) as app:
        wire = HttpWire(app)
        for text in [*map(str, range(history.MAX_FAILURES)), "password=hush " + "x" * 1000]:
            await wire.call("fail", {"text": text})
        await wire.call("crash")
        await wire.call("no such tool")
        await wire.start("prompts/get", {"name": "none"}).done()
    found = since(recorder.failures, 0)
    assert len(found) == history.MAX_FAILURES
    failed, crashed, unknown, prompt = found[-4:]
    assert failed["message"].startswith("password=[redacted]")
    assert (failed["tool"], failed["outcome"]) == ("fail", "tool_error")
    assert history.MAX_MESSAGE < len(failed["message"]) < history.MAX_MESSAGE + 10  # with a mark
    assert failed["duration"] > 0
    assert crashed["message"] == "The tool crash failed. The details are in the server's log."
    assert (unknown["tool"], unknown["outcome"]) == (families.OTHER, "error")
    assert (prompt["method"], prompt["tool"]) == ("prompts/get", "")
    assert b"hush" not in encode(found)


def tried_server() -> Server:
    server = Server("tried")

    @server.tool
    def fail() -> str:
        raise ToolError("on purpose")

    @server.tool
    async def wait() -> str:
        await asyncio.sleep(30)
        return "done"

    @server.resource("note://one")
    def note() -> str:
        return "text"

    return server


@asynccontextmanager
async def watched_app() -> AsyncIterator[Any]:
    server = tried_server()
    async with serving(server, routes=Console(server).routes()) as app:
        yield app


async def test_requests_errors_and_running_calls_are_streamed() -> None:
    async with watched_app() as app:
        wire = HttpWire(app)
        await wire.start("tools/call", {"name": "fail"}).done()  # before anyone watches
        viewer = viewer_of(app)
        first = await viewer.message()
        assert (first["tail"]["tools"]["fail"][:2], first["points"], first["state"]) == ([1, 1], [], "memory")
        assert [(each["tool"], each["message"]) for each in first["failures"]] == [("fail", "on purpose")]
        assert first["streams"] == 1  # its own
        waiting = wire.start("tools/call", {"name": "wait"})
        event = await event_when(viewer, lambda event: event["tail"]["running"] == 1)
        assert event["failures"] == []  # what is new
        assert event["time"] > first["time"]
        waiting.leave()
        await waiting.done()
        event = await event_when(viewer, lambda event: event["methods"]["tools/call"] == 2)
        assert event["tail"]["all"][:2] == [2, 1]  # what is cancelled is no error
        viewer.leave()
        await viewer.done()


@pytest.mark.slow
async def test_sessions_are_shown_without_what_opens_them() -> None:
    async with watched_app() as app:
        wire = await HttpWire.session(app, "2025-06-18")
        viewer = viewer_of(app)
        await viewer.message()
        await wire.ask("resources/subscribe", {"uri": "note://one"})
        event = await event_when(viewer, lambda event: event["subscriptions"] == 1)
        (shown,) = event["sessions"]
        assert event["sessions_total"] == 1
        assert abs(event["time"] - shown.pop("since")) < 60
        assert 0 <= shown.pop("idle") < 60
        assert shown.pop("subscriptions") == ["note://one"]
        assert shown == {"id": str(wire.session_id)[:8], "client": "wire 1.0.0", "revision": "2025-06-18"}
        await wire.raw("DELETE").done()
        event = await event_when(viewer, lambda event: event["sessions_total"] == 0)
        assert event["sessions"] == []
        viewer.leave()
        await viewer.done()


def mounting_server() -> Server:
    server, office, notes = (Server(name, version="1.0.0") for name in ("desk", "office", "notes"))
    notes.add_tool(lambda: "text", name="read", description="Read.")
    notes.add_resource("notes://all", lambda: "milk", name="all")
    office.mount(Proxy(notes, protocol_version="2025-06-18"), namespace="notes")
    server.mount(office, namespace="office")
    server.mount(Proxy("http://127.0.0.1:9/hush?key=hush", name="dead"))
    server.mount(Proxy(["no-such-command", "--key", "hush"], name="gone"))
    return server


async def test_mounts_are_told_with_their_state_and_without_secrets() -> None:
    server = mounting_server()
    async with serving(server, routes=Console(server).routes()) as app:
        viewer = viewer_of(app)
        before = await viewer.message()
        assert [each["backend"] and each["backend"]["state"] for each in before["mounts"]] == [
            None,
            *["not connected"] * 3,
        ]
        assert (await ask(app, "/ready")).json == {"status": "ok"}
        await HttpWire(app).call("office_notes_read")
        event = await event_when(viewer, lambda event: event["mounts"][1]["backend"]["latency"] is not None)
        office, notes, dead, gone = event["mounts"]
        assert (event["mounts_total"], office["kind"], office["backend"]) == (4, "server", None)
        assert (notes["name"], notes["namespace"], notes["kind"]) == ("notes", "office_notes", "proxy")
        assert (notes["backend"]["state"], notes["backend"]["revision"]) == ("reachable", "2025-06-18")
        assert (dead["backend"]["target"], dead["backend"]["state"]) == ("127.0.0.1:9", "unreachable")
        assert (gone["backend"]["target"], gone["backend"]["state"]) == ("no-such-command", "unreachable")
        assert dead["backend"]["problem"]
        assert b"hush" not in viewer.raw
        for path in ("/ready", "/health/ready"):
            probe = await ask(app, path)
            assert (probe.status, probe.json) == (200, {"status": "ok", "unreachable": ["dead", "gone"]})
        assert (await ask(app, "/health")).json == {"status": "ok"}
        viewer.leave()
        await viewer.done()


@pytest.mark.parametrize(
    ("client", "shown"),
    [({"name": "x" * 1000, "version": "1"}, "x" * metrics.MAX_TEXT), ({"name": ["odd"], "version": None}, "['odd']")],
)
def test_what_a_client_says_of_itself_is_bounded(client: dict[str, Any], shown: str) -> None:
    uris = frozenset(f"note://{number}/{'y' * 1000}" for number in range(1000))
    record = Session(id="s" * 32, version="2025-11-25", client=encode(client), capabilities=b"{}", subscriptions=uris)
    summary = session_summary(ActiveSession(record, 5.0, 1.0))
    assert summary["client"] == shown
    assert len(summary["subscriptions"]) == metrics.MAX_URIS
    assert {len(uri) for uri in summary["subscriptions"]} == {metrics.MAX_TEXT}


async def test_only_so_many_may_watch() -> None:
    async with watched_app() as app:
        viewers = [viewer_of(app) for _ in range(metrics.MAX_VIEWERS)]
        for viewer in viewers:
            await viewer.message()
        assert (await viewer_of(app).done()).status == 503
        leaving = viewers.pop()
        leaving.leave()
        await leaving.done()
        again = viewer_of(app)
        await again.message()
        await asyncio.wait_for(app.drain(30), 5)  # those that watch do not hold up the end
        for viewer in (again, *viewers):
            await viewer.done()
            assert viewer.sent[-1].get("more_body", False) is False


def tail_of(base: str) -> Any:
    request = Request(f"{base}/console/api/live", headers={"X-Dovetail-Console": "1"})
    with urlopen(request, timeout=10) as events:
        return decode(events.readline().removeprefix(b"data: "))["tail"]


@pytest.mark.slow
def test_a_page_sees_the_numbers_of_all_workers() -> None:
    several = {**os.environ, "DOVETAIL_WORKERS": "3"}
    with subprocess.Popen([sys.executable, STAGE], stderr=subprocess.PIPE, text=True, env=several) as process:
        assert process.stderr is not None
        base = process.stderr.readline().split()[4].removesuffix("/mcp")
        try:
            wait_until(lambda: tail_of(base)["workers"] == 3)  # the first one announces the server
            for _ in range(30):  # each on a connection of its own, which any worker may take
                with urlopen(call_of(base, "count_up"), timeout=10) as answer:
                    assert b'"isError":true' not in answer.read()
            wait_until(lambda: tail_of(base)["tools"].get("count_up", [])[:2] == [30, 0])
        finally:
            process.terminate()
            process.stderr.read()
