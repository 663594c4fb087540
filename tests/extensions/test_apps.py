"""MCP Apps: views as resources, tools that link to them, what their documents may load; through mounts and proxies."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dovetail import Audio, Client, Context, Image, Proxy, Server, SetupError, Text, ToolResult
from sdk import MODERN, REVISIONS
from wire import Wire

UI = "io.modelcontextprotocol/ui"
MIME_TYPE = "text/html;profile=mcp-app"
CHART = "ui://weather/chart"
PAGE = "<!doctype html><title>Chart</title><script>fetch('https://api.weather.example/now')</script>"
CSP = {"connect": ["https://api.weather.example"]}
NOTHING: dict[str, list[str]] = {"connectDomains": [], "resourceDomains": [], "frameDomains": [], "baseUriDomains": []}
WITH_META = pytest.mark.parametrize("revision", [each for each in REVISIONS if each >= "2025-06-18"])


@dataclass
class Forecast:
    city: str
    degrees: list[int]


def weather(**options: Any) -> Server:
    server = Server("weather", version="1.0.0", **options)
    others = {"permissions": {"clipboardWrite": {}}, "prefersBorder": True}
    server.add_ui(CHART, PAGE, csp=CSP, meta={"ui": others}, title="A chart")

    @server.tool(ui=CHART)
    def forecast(city: str) -> Forecast:
        return Forecast(city, [3, 5])

    @server.tool(visibility=["app"])
    def refresh(city: str) -> Forecast:
        return Forecast(city, [4])

    return server


# ── the wire ──


@WITH_META
@pytest.mark.rule("APP-1", "APP-2", "APP-8", "APP-9", "APP-11", "APP-12", "APP-14")
async def test_a_view_is_a_resource_with_its_policy_in_both_places(revision: str) -> None:
    meta = {
        "ui": {
            "csp": {**NOTHING, "connectDomains": CSP["connect"]},
            "permissions": {"clipboardWrite": {}},
            "prefersBorder": True,
        }
    }
    async with Client(weather(), protocol_version=revision) as client:
        assert client.capabilities["extensions"] == {UI: {}}
        (listed,) = (await client.request("resources/list"))["resources"]
        assert (listed["uri"], listed["mimeType"], listed["title"]) == (CHART, MIME_TYPE, "A chart")
        (contents,) = (await client.request("resources/read", {"uri": CHART}))["contents"]
        assert contents == {"uri": CHART, "mimeType": MIME_TYPE, "text": PAGE, "_meta": meta}
        assert listed["_meta"] == meta


@WITH_META
@pytest.mark.rule("APP-10", "APP-13", "APP-15")
async def test_a_tool_has_both_spellings_of_its_link_and_one_for_apps_is_listed_and_callable(revision: str) -> None:
    async with Client(weather(), protocol_version=revision) as client:
        forecast, refresh = await client.list_tools()
        assert forecast.meta == {"ui": {"resourceUri": CHART}, "ui/resourceUri": CHART}
        assert refresh.meta == {"ui": {"visibility": ["app"]}}
        assert (await client.call_tool("refresh", {"city": "Oslo"})).data == {"city": "Oslo", "degrees": [4]}


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_server_declares_apps_from_its_first_view_on(revision: str) -> None:
    async with Client(Server("plain"), protocol_version=revision) as client:
        assert "extensions" not in client.capabilities
    async with Client(weather(), protocol_version=revision) as client:
        assert client.capabilities["extensions"] == {UI: {}}


@pytest.mark.parametrize("policy", ["auto", "text", "structured", "both"])
@pytest.mark.rule("APP-5", "APP-6")
async def test_the_value_and_its_text_are_sent_whatever_the_policy(policy: Any) -> None:
    server = weather(output=policy)

    @server.tool(ui=CHART)
    def summary() -> ToolResult:
        return ToolResult(content=[Text("Mild.")], structured={"degrees": 4})

    async with Client(server) as client:
        result = await client.call_tool("forecast", {"city": "Oslo"})
        assert result.structured == {"city": "Oslo", "degrees": [3, 5]}
        assert result.text == '{"city":"Oslo","degrees":[3,5]}'
        result = await client.call_tool("summary", {})
        assert (result.text, result.structured) == ("Mild.", {"degrees": 4})


SHOWS = {UI: {"mimeTypes": ["text/html", MIME_TYPE]}}
OTHERS: list[Any] = [{}, {UI: {}}, {UI: {"mimeTypes": "text/html"}}, {UI: {"mimeTypes": ["text/html"]}}, {UI: []}]


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.rule("APP-4")
async def test_a_tool_sees_whether_its_client_shows_views(revision: str) -> None:
    server = Server("weather")

    @server.tool
    def shows(ctx: Context) -> bool:
        return ctx.client.can_show_apps

    async with Client(server, protocol_version=revision, extensions=SHOWS) as client:
        assert (await client.call_tool("shows")).text == "true"
    for declared in OTHERS:
        async with Client(server, protocol_version=revision, capabilities={"extensions": declared}) as client:
            assert (await client.call_tool("shows")).text == "false"


async def test_tools_of_apps_are_listed_also_where_others_are_searched_for() -> None:
    server = weather(tool_search=True)
    server.tool(visibility=["model"])(lambda_forecast)
    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()] == ["forecast", "refresh", "search_tools", "call_tool"]


# ── files ──


async def test_a_view_from_a_file_is_watched(tmp_path: Path) -> None:
    path = tmp_path / "chart.html"
    path.write_text(PAGE)
    server = Server("weather")
    server.engine.resources.watch_options = {"poll_seconds": 0.02, "use_watchfiles": False}
    server.add_ui(CHART, path, csp=CSP)
    async with Wire(server, MODERN) as wire:
        wire.send(wire.request("subscriptions/listen", {"notifications": {"resourceSubscriptions": [CHART]}}, id=1))
        await wire.receive()
        path.write_text("<!doctype html><p>New")
        message = await wire.receive()
        assert (message["method"], message["params"]["uri"]) == ("notifications/resources/updated", CHART)
        found = (await wire.ask("resources/read", {"uri": CHART}))["contents"][0]
        assert found["text"] == "<!doctype html><p>New"
        assert found["_meta"]["ui"]["csp"] == {**NOTHING, "connectDomains": CSP["connect"]}


# ── mounts and proxies ──


@WITH_META
@pytest.mark.parametrize("view_first", [True, False])
async def test_links_follow_the_uris_of_a_mount(revision: str, view_first: bool) -> None:
    child, parent = Server("weather"), Server("desk")
    parent.mount(child, "met")

    def add_view() -> None:
        child.add_ui(CHART, PAGE, csp={"connect": ["https://*.weather.example", "wss://live.weather.example"]})

    if view_first:
        add_view()
    child.tool(ui=CHART, visibility=["model"])(lambda_forecast)
    if not view_first:
        add_view()
    async with Client(parent, protocol_version=revision) as client:
        assert client.capabilities["extensions"] == {UI: {}}
        (tool,) = await client.list_tools()
        uri = tool.meta["ui/resourceUri"]
        assert uri == "ui://met/weather/chart"
        assert tool.meta["ui"] == {"resourceUri": uri, "visibility": ["model"]}
        (listed,) = await client.list_resources()
        assert (listed.uri, listed.mime_type) == (uri, MIME_TYPE)
        (contents,) = await client.read_resource(uri)
        assert (contents.uri, contents.mime_type, contents.text) == (uri, MIME_TYPE, PAGE)
        assert contents.meta == listed.meta
        assert contents.meta["ui"]["csp"]["connectDomains"][1] == "wss://live.weather.example"


def lambda_forecast() -> Forecast:
    return Forecast("Oslo", [3])


@WITH_META
async def test_a_proxy_passes_views_as_they_are(revision: str) -> None:
    server = weather()
    proxy = Proxy(weather(), name="weather")
    async with Client(server, protocol_version=revision) as direct, Client(proxy, protocol_version=revision) as client:
        assert await client.list_tools() == await direct.list_tools()
        assert await client.list_resources() == await direct.list_resources()
        assert await client.read_resource(CHART) == await direct.read_resource(CHART)


# ── what is refused ──


@pytest.mark.parametrize(
    ("html", "options", "words"),
    [
        ("chart.html", {}, 'no HTML document.*Path\\("chart.html"\\)'),
        ("<p>Hello", {}, "begins with <!doctype html>"),
        ("", {}, "no HTML document"),
        (b"<!doctype html>", {}, "as a string, or its file as a Path"),
        (PAGE, {"csp": {"connect": "https://a.example"}}, "dict of lists"),
        (PAGE, {"csp": {"conect": []}}, "did you mean connect"),
        (PAGE, {"csp": {"connect": ["https://a.example/path"]}}, "an origin without a path"),
        (PAGE, {"csp": {"connect": ["*"]}}, "an origin without a path"),
        (PAGE, {"csp": {"connect": ["https://a.example; script-src *"]}}, "an origin without a path"),
        (PAGE, {"csp": {"connect": ["https://\u017f.example"]}}, "an origin without a path"),  # it ignores case to an s
        (PAGE, {"csp": {"connect": ["https://a.example:\u0664"]}}, "an origin without a path"),
        ("<!-- built -->" * 50 + "<p>", {}, "no HTML document"),
        ("<!doctype html><![ INCLUDE [x]]>", {}, "no HTML document"),
        (PAGE, {"cpsp": CSP}, "did you mean csp"),
        (PAGE, {"meta": {"ui": {"csp": {"connectDomains": []}}}}, 'meta= has a "csp"; use csp='),
        (PAGE, {"meta": {"ui": "chart"}}, "must be a dict"),
        (PAGE, {"mime_type": "text/html"}, "unknown options mime_type"),
    ],
)
@pytest.mark.rule("APP-2", "APP-8")
def test_a_view_that_can_not_work_is_refused(html: Any, options: Any, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        Server("x").add_ui(CHART, html, **options)


@pytest.mark.parametrize("uri", ["https://a.example/", "chart", "ui://", "ui://{city}/chart", 3])
@pytest.mark.rule("APP-1")
def test_the_uri_of_a_view_has_its_scheme(uri: Any) -> None:
    with pytest.raises(SetupError, match="begins with ui://"):
        Server("x").add_ui(uri, PAGE, csp=CSP)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chart.html").write_bytes(b"<!doctype html>\xff")
    with pytest.raises(SetupError, match="UTF-8"):
        Server("x").add_ui(CHART, tmp_path / "chart.html")
    with pytest.raises(SetupError, match="no file"):
        Server("x").add_ui(CHART, tmp_path / "none.html")


LOADS = [  # what a document loads, the key of the policy, the origin
    ('<script src="https://cdn.example/d3.js"></script>', "resource", "https://cdn.example"),
    ('<link rel="Preload StyleSheet" href="https://cdn.example/a.css">', "resource", "https://cdn.example"),
    ("<img src='https://cdn.example:8443/b.png'>", "resource", "https://cdn.example:8443"),
    ('<video poster="https://cdn.example/a.png"></video>', "resource", "https://cdn.example"),
    ('<svg><image href="http://localhost:5173/a.svg"/></svg>', "resource", "http://localhost:5173"),
    ("<style>@import 'https://fonts.example/a.css';</style>", "resource", "https://fonts.example"),
    ("<style>p { background: url( https://cdn.example/a.png ) }</style>", "resource", "https://cdn.example"),
    ("<p style=\"background: url('https://cdn.example/a.png')\">", "resource", "https://cdn.example"),
    ('<script type="module">import x from "https://esm.example/x"</script>', "resource", "https://esm.example"),
    ('<script>await import("https://esm.example/x")</script>', "resource", "https://esm.example"),
    ('<script>import{a as b,\nc}from"https://esm.example/x"</script>', "resource", "https://esm.example"),
    ("<script>fetch(`https://api.example/${city}`)</script>", "connect", "https://api.example"),
    ("<script>new WebSocket('wss://live.example/feed')</script>", "connect", "wss://live.example"),
    ('<script>new EventSource( "https://api.example" )</script>', "connect", "https://api.example"),
    ('<iframe src="https://www.video.example/embed/1"></iframe>', "frame", "https://www.video.example"),
    ('<base href="https://cdn.example/app/">', "base_uri", "https://cdn.example"),
    ('<script src="//cdn.example/d3.js"></script>', "resource", "https://cdn.example"),
    ('<script type="importmap">{"imports": {"x": "https://esm.example/x"}}</script>', "resource", "https://esm.example"),
    ("<script type='application/javascript'>fetch('https://api.example')</script>", "connect", "https://api.example"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "key", "origin"), LOADS, ids=[part for part, *_ in LOADS])
@pytest.mark.rule("APP-8")
def test_what_a_document_loads_has_to_be_allowed(part: str, key: str, origin: str) -> None:
    with pytest.raises(SetupError) as refused:
        Server("x").add_ui(CHART, f"<html>{part}")
    assert f'"{key}": ["{origin}"]' in str(refused.value)
    Server("x").add_ui(CHART, f"<html>{part}", csp={key: [origin]})


@pytest.mark.parametrize(
    ("allowed", "url", "is_allowed"),
    [
        ("https://*.example.com", "https://a.b.example.com/x", True),
        ("https://*.example.com", "https://example.com/x", False),
        ("https://*.example.com", "https://evilexample.com/x", False),
        ("https://example.com", "https://example.com:443/x", True),
        ("https://example.com", "https://example.com:444/x", False),
        ("https://example.com:*", "https://example.com:444/x", True),
        ("http://example.com", "https://EXAMPLE.com/x", True),
        ("https://example.com", "http://example.com/x", False),
        ("http://[::1]:5173", "http://[::1]:5173/x", True),
    ],
)
def test_origins_match_as_browsers_match_them(allowed: str, url: str, is_allowed: bool) -> None:
    page = f"<!DOCTYPE html><img src='{url}'>"
    if is_allowed:
        Server("x").add_ui(CHART, page, csp={"resource": [allowed]})
    else:
        with pytest.raises(SetupError, match="does not allow"):
            Server("x").add_ui(CHART, page, csp={"resource": [allowed]})


HARMLESS = """\ufeff<!-- built --><!DOCTYPE html>
<html><head><link rel="canonical" href="https://elsewhere.example"><script src="chart.js"></script>
<style>@namespace url(http://www.w3.org/2000/svg); p { mask: url(#cut); src: url(data:font/woff2;base64,AA) }</style>
</head><body><a href="https://elsewhere.example">more</a><img src="data:image/png,"><img src="//[">
<svg xmlns="http://www.w3.org/2000/svg"><use href="#x"/></svg>
<script type="text/template">fetch("https://elsewhere.example")</script>
<script>const from = "https://elsewhere.example", open = 'x'; const html = "<p>"
fetch(`https://${host}/`); fetch(`https://api.${host}/`); import(chunk), link = "https://elsewhere.example"
const base = new URL("https://elsewhere.example", import.meta.url), other = "https://elsewhere.example"</script>"""


def test_what_is_not_loaded_from_elsewhere_needs_no_policy() -> None:
    Server("x").add_ui(CHART, HARMLESS)


@pytest.mark.rule("APP-3")
async def test_the_view_of_a_tool_has_to_exist_when_serving_begins() -> None:
    server = Server("weather")
    server.tool(ui="ui://weather/chrat")(lambda_forecast)
    with pytest.raises(SetupError, match=r"tool lambda_forecast.*: ui='ui://weather/chrat' is no view.*add_ui"):
        async with Client(server):
            pass
    server.add_ui("ui://weather/chrat", PAGE, csp=CSP)
    async with Client(server):  # also if it came later
        with pytest.raises(SetupError, match=r"did you mean ui://weather/chrat\?"):
            server.tool(ui=CHART, name="late")(lambda_forecast)
        server.add_ui(CHART, PAGE, csp=CSP)
        server.tool(ui=CHART, name="late")(lambda_forecast)


async def test_a_tool_that_was_removed_needs_no_view() -> None:
    server = Server("weather")
    server.add_ui(CHART, PAGE, csp=CSP)
    server.tool(ui="ui://weather/gone")(lambda_forecast)
    server.remove_tool("lambda_forecast")
    server.tool(ui=CHART)(lambda_forecast)
    with pytest.raises(SetupError, match="already"):
        server.tool(ui="ui://weather/gone")(lambda_forecast)
    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()] == ["lambda_forecast"]


async def test_a_view_that_is_disabled_is_there() -> None:
    server = weather()
    server.disable(names=[CHART, "forecast"])
    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()] == ["refresh"]
        assert await client.list_resources() == []


def nothing() -> None: ...


def pictures() -> list[Image | Audio]: ...


def pair() -> tuple[Image, ...] | None: ...


@pytest.mark.parametrize("function", [nothing, pictures, pair])
@pytest.mark.rule("APP-5", "APP-6")
def test_a_tool_that_gives_no_text_is_refused_unless_it_is_for_apps_only(function: Any) -> None:
    with pytest.raises(SetupError, match=f"tool {function.__name__}.*returns no text"):
        Server("x").tool(ui=CHART)(function)
    Server("x").tool(ui=CHART, visibility=["app"])(function)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ui": CHART, "output": "text"}, "sends both"),
        ({"ui": CHART, "output": "structured"}, "sends both"),
        ({"ui": CHART, "structured_output": False}, "sends both"),
        ({"ui": 3}, "ui=3 is not possible"),
        ({"visibility": "app"}, "a list of strings"),
        ({"visibility": []}, '"model", "app" or both'),
        ({"visibility": ["apps"]}, "did you mean app"),
        ({"visability": ["app"]}, "did you mean visibility"),
        ({"visibility": ["app"], "meta": {"ui": 3}}, "must be a dict"),
    ],
)
def test_options_of_a_tool_that_can_not_be(options: Any, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        Server("x").tool(**options)(lambda_forecast)


PLAIN = """
import sys, dovetail

server = dovetail.Server("plain")


@server.tool
def add(a: int) -> int:
    return a


print("dovetail.extensions.apps" in sys.modules)
"""


def test_a_server_without_views_loads_nothing_of_it() -> None:
    assert subprocess.check_output([sys.executable, "-c", PLAIN]).strip() == b"False"
