"""How a client finds out what is at a URL: the era of the server, redirects, and targets that can't be used."""

import asyncio
import logging
import sys
from typing import Any

import pytest
from modern_script import MODERN, modern, text
from served_http import DISCOVERED, Scripted, Visit, free_port, handshake, until

from dovetail import Client
from dovetail.client import era
from dovetail.errors import ConnectionLost, ServerError, SetupError

pytestmark = pytest.mark.usefixtures("brisk", "tidy")


# ── the era ──


async def test_a_modern_server() -> None:
    async with Scripted(modern()) as server, Client(server.url) as client:
        assert client.protocol_version == MODERN
        assert (await client.call_tool("any", {"x": 1})).text == "called"
        assert server.said() == ["POST server/discover", "POST tools/list", "POST tools/call"]


LEGACY_ANSWERS: dict[str, Any] = {
    "200, method not found": lambda visit: visit.error(-32601),
    "200, another error": lambda visit: visit.error(-32602),
    "200, something else": lambda visit: visit.result({}),
    "200, nothing": lambda visit: visit.answer(200),
    "200, a page": lambda visit: visit.answer(200, b"<html>", "text/html"),
    "202": lambda visit: visit.answer(202),
    "400, nothing": lambda visit: visit.answer(400),
    "400, no session": lambda visit: visit.error(-32600, 400, "Bad Request: Missing session ID", id=False),
    "400, old error": lambda visit: visit.error(-32000, 400),
    "400, other JSON": lambda visit: visit.answer(400, {"detail": "no"}),
    "400, half JSON": lambda visit: visit.answer(400, b'{"jsonrpc": "2.0", "err'),
    "404, nothing": lambda visit: visit.answer(404),
    "404, a page": lambda visit: visit.answer(404, b"<html>", "text/html"),
    "406": lambda visit: visit.error(-32000, 406),
    "500": lambda visit: visit.answer(500),
    "503": lambda visit: visit.answer(503),
    "a broken connection": lambda visit: visit.cut(),
    "half an answer": lambda visit: (visit.head(200, {"Content-Length": "100"}), visit.cut()),
    "an empty stream": lambda visit: (visit.stream(), visit.end()),
}


@pytest.mark.parametrize("reply", LEGACY_ANSWERS.values(), ids=LEGACY_ANSWERS.keys())
async def test_anything_else_comes_from_an_old_server(reply: Any) -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "server/discover":
            reply(visit)
        elif not handshake(visit):
            visit.result(text("old"))

    async with Scripted(behave) as server, Client(server.url) as client:
        assert client.protocol_version == "2025-11-25"
        assert (await client.call_tool("any")).text == "old"
        assert server.said()[:3] == ["POST server/discover", "POST initialize", "POST notifications/initialized"]


@pytest.mark.parametrize(("code", "data"), [(-32020, None), (-32021, {"requiredCapabilities": {}})])
@pytest.mark.parametrize("named", [True, False])
async def test_a_modern_refusal_is_not_taken_for_an_old_server(code: int, data: Any, named: bool) -> None:
    def behave(visit: Visit) -> None:
        visit.error(code, 400, "modern", id=named, data=data)

    async with Scripted(behave) as server:
        with pytest.raises(ServerError, match="modern") as caught:
            async with Client(server.url):
                pass
        assert caught.value.code == code
        assert server.said() == ["POST server/discover"]


async def test_a_future_server_that_still_knows_the_handshake() -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "server/discover":
            visit.error(-32022, 400, data={"supported": ["2030-01-01", "2025-06-18"], "requested": MODERN})
        else:
            handshake(visit, visit.message["params"]["protocolVersion"] if visit.method == "initialize" else "")

    async with Scripted(behave) as server, Client(server.url) as client:
        assert client.protocol_version == "2025-06-18"


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_pinned_handshake_asks_no_other_question(version: str) -> None:
    async with Scripted(lambda visit: handshake(visit, version) and None) as server:
        async with Client(server.url, protocol_version=version) as client:
            assert client.protocol_version == version
            await client._channel._link.attend()
        assert server.said() == ["POST initialize", "POST notifications/initialized", "GET"]
        first, *later = server.visits
        assert "mcp-protocol-version" not in first.headers
        assert {visit.headers["mcp-protocol-version"] for visit in later} == {version}


async def test_a_pinned_modern_revision_never_shakes_hands() -> None:
    async with Scripted(lambda visit: visit.answer(404)) as server:
        with pytest.raises(ServerError, match="server/discover: the server answered 404 Not Found"):
            async with Client(server.url, protocol_version=MODERN):
                pass
        assert server.said() == ["POST server/discover"]


async def test_a_server_that_is_not_there() -> None:
    with pytest.raises(ConnectionLost, match=r"initialize: http://127\.0\.0\.1:\d+/mcp: can't connect: Connection ref"):
        async with Client(f"http://127.0.0.1:{free_port()}/mcp?token=secret") as client:
            await client.list_tools()


async def test_a_server_that_does_not_speak_http() -> None:
    def behave(visit: Visit) -> None:
        visit._writer.write(b"220 smtp.example.org ESMTP\r\n")
        visit.cut()

    async with Scripted(behave) as server:
        with pytest.raises(ConnectionLost, match=r"initialize: .* (does not speak HTTP as it should|connection broke)"):
            async with Client(server.url):
                pass


async def test_a_server_without_tls() -> None:
    def answer_in_plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer_in_plain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionLost, match="no secure connection"):
            async with Client(f"https://127.0.0.1:{port}", timeout=5):
                pass


async def test_a_server_that_never_answers() -> None:
    async def behave(visit: Visit) -> None:
        await visit.gone()

    async with Scripted(behave) as server:
        with pytest.raises(TimeoutError, match=r"initialize: no answer within 0\.3 s"):
            async with Client(server.url, timeout=0.3):
                pass
        assert server.said() == ["POST server/discover", "POST initialize"]  # and no cancellation of either


async def test_a_session_that_a_slow_modern_server_began_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(era, "PROBE_SECONDS", 0.02)

    async def behave(visit: Visit) -> None:
        if visit.method == "server/discover":
            await until(lambda: len(server.visits) == 2)
            await asyncio.sleep(0.05)
            visit.result(DISCOVERED)
        elif visit.method == "initialize":
            visit.stream(Mcp_Session_Id="s")
            await visit.gone()
        else:
            visit.error(-32601, 404)

    async with Scripted(behave) as server, Client(server.url) as client:
        assert client.protocol_version == MODERN
        await asyncio.wait_for(server.visits[1].gone(), 5)
        with pytest.raises(ServerError, match="-32601"):  # 404 is about sessions only where there are some
            await client.request("unknown")
        assert server.said() == ["POST server/discover", "POST initialize", "POST unknown"]


# ── redirects ──


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_the_origin_is_followed(status: int) -> None:
    def behave(visit: Visit) -> None:
        if visit.path == "/mcp":
            visit.answer(status, Location="/mcp/")
        else:
            modern()(visit)

    async with Scripted(behave) as server, Client(server.url, headers={"Authorization": "x"}) as client:
        assert (await client.call_tool("any")).text == "called"
        assert {visit.path for visit in server.visits} == {"/mcp", "/mcp/"}
        assert all(visit.headers["authorization"] == "x" for visit in server.visits)


@pytest.mark.parametrize(
    ("status", "location", "words"),
    [
        (307, "http://localhost:1/mcp", "307 Temporary Redirect: redirected, but .*localhost:1/mcp', .*another"),
        (307, "//evil.example/mcp", "another origin"),
        (308, "ftp://127.0.0.1/x", "can't be used: a URL has to begin with http:// or https://"),
        (308, "http://user:word@127.0.0.1/x", "can't be used"),
        (302, "/elsewhere", "302 Found: redirected to http://127.*/elsewhere; use that URL"),
        (301, "/elsewhere", "301 Moved Permanently"),
        (307, "/mcp", "redirected too often"),
        (307, None, "307 Temporary Redirect"),
        (300, None, "300 Multiple Choices"),
    ],
)  # fmt: skip
async def test_other_redirects_are_not(status: int, location: str | None, words: str) -> None:
    def behave(visit: Visit) -> None:
        visit.answer(status, **({} if location is None else {"Location": location}))

    async with Scripted(behave) as server:
        with pytest.raises(ServerError, match=words) as caught:
            async with Client(server.url, protocol_version=MODERN):
                pass
        assert caught.value.code == status


# ── set-up ──


BAD_TARGETS: list[tuple[str, dict[str, Any], str]] = [
    ("http://user:pass@127.0.0.1/mcp", {}, "holds a user or a password"),
    ("http://user@127.0.0.1/mcp", {}, "holds a user or a password"),
    ("http://127.0.0.1/mcp#part", {}, "has a part after #"),
    ("http:///mcp", {}, "no host"),
    ("http://127.0.0.1:99999/mcp", {}, "its host or its port can't be read"),
    ("http://[::1/mcp", {}, "its host or its port can't be read"),
    ("ftp://x", {}, "can't connect to 'ftp://x': a URL has to begin with http:// or https://"),
    ("ftp://user:pass@x/mcp", {}, "can't connect to 'ftp://…': a URL has to begin with http:// or https://"),
    ("http://user:pass@x y/mcp", {}, "can't connect to 'http://…': it holds spaces"),
    ("ftp://x/mcp?key=pass@y", {}, "can't connect to 'ftp://…': a URL has to begin with http:// or https://"),
    ("ftp://x/mcp?key=pass#pass", {}, "can't connect to 'ftp://x/mcp': a URL has to begin with http:// or https://"),
    ("http://127.0.0.1/a b", {}, "spaces"),
    ("http://127.0.0.1\\@evil.example/", {}, "backslashes"),
    ("http://127.0.0.1/\r\nX: y", {}, "control characters"),
    ("http://127.0.0.1/mcp", {"env": {}}, "env= and cwd= are for a command"),
    ("http://127.0.0.1/mcp", {"headers": {"a b": "c"}}, "not the name of a header"),
    ("http://127.0.0.1/mcp", {"headers": {"Authorization": "Bearer x\n"}}, "one line"),
    ("http://127.0.0.1/mcp", {"headers": {"X": 7}}, "one line"),
    ("http://127.0.0.1/mcp", {"headers": {"Mcp-Session-Id": "x"}}, "sets that one itself"),
    ("http://127.0.0.1/mcp", {"headers": {"CONTENT-type": "x"}}, "sets that one itself"),
    ("http://127.0.0.1/mcp", {"transport": "websocket"}, "use \"http\", \"sse\" or none"),
    ("http://127.0.0.1/mcp", {"transport": "sse", "protocol_version": MODERN}, "does not exist over HTTP\\+SSE"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "options", "words"), BAD_TARGETS)
async def test_a_url_that_can_not_be_used(url: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words) as caught:
        Client(url, **options)
    assert "pass" not in str(caught.value).replace("password", "")


@pytest.mark.parametrize("options", [{"headers": {"A": "b"}}, {"transport": "http"}])
async def test_options_of_urls_are_for_urls(options: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match="are for a URL"):
        Client(["python"], **options)


async def test_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(SetupError, match=r'pip install "dovetail-mcp\[client\]"'):
        async with Client("http://127.0.0.1:1/mcp"):
            pass


async def test_the_library_is_loaded_late() -> None:
    code = "import sys; from dovetail import Client; Client('http://127.0.0.1/'); print('aiohttp' in sys.modules)"
    done = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert (await done.communicate())[0] == b"False\n"


async def test_nothing_is_logged_when_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with Scripted(modern()) as server, Client(server.url) as client:
            await client.call_tool("any")
        async with Scripted(lambda visit: handshake(visit, Mcp_Session_Id="s") and None) as server, Client(server.url):
            pass
    assert not caplog.records
