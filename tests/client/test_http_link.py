"""One POST for every message: how a server is found out, what goes into the headers, and what any answer means."""

import asyncio
import gzip
import json
import logging
import sys
import tracemalloc
from typing import Any

import pytest
from served_http import DISCOVERED, Scripted, Visit, free_port, handshake, until

from dovetail import Client
from dovetail.client import posting, requests
from dovetail.errors import BadAnswer, ConnectionLost, ServerError, SetupError

pytestmark = pytest.mark.usefixtures("brisk", "tidy")

MODERN = "2026-07-28"
EMPTY: dict[str, Any] = {"resultType": "complete"}


def text(value: str) -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": value}]}


def progress(visit: Visit, value: float) -> dict[str, Any]:
    token = visit.message["params"]["_meta"]["progressToken"]
    params = {"progressToken": token, "progress": value}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


def answer(visit: Visit, value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": visit.message["id"], "result": value}


def modern(tools: list[dict[str, Any]] | None = None) -> Any:
    """A modern server that answers every call with its own name."""

    def behave(visit: Visit) -> None:
        match visit.method:
            case "server/discover":
                visit.result(DISCOVERED)
            case "tools/list":
                visit.result({"resultType": "complete", "tools": tools or [], "ttlMs": 0, "cacheScope": "private"})
            case "tools/call":
                visit.result(text("called"))
            case _:
                visit.error(-32601, 404)

    return behave


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


# ── headers ──


async def test_modern_headers() -> None:
    async with Scripted(modern()) as server, Client(server.url, headers={"Authorization": "Bearer x"}) as client:
        await client.call_tool("grüße")
        for uri in ("notes://1", " padded ", "=?base64?eA==?="):
            with pytest.raises(ServerError):
                await client.read_resource(uri)
        with pytest.raises(ServerError):
            await client.request("odd/method\u00e9")
    for visit in server.visits:
        assert visit.headers["mcp-protocol-version"] == MODERN
        assert visit.headers["authorization"] == "Bearer x"
        assert visit.headers["accept"] == "application/json, text/event-stream"
        assert visit.headers["content-type"] == "application/json"
        assert visit.headers["user-agent"].startswith("dovetail/")
        assert "mcp-session-id" not in visit.headers
    assert [visit.headers["mcp-method"] for visit in server.visits[:3]] == [
        "server/discover", "tools/list", "tools/call",
    ]  # fmt: skip
    assert [visit.headers.get("mcp-name") for visit in server.visits] == [
        None, None, "=?base64?Z3LDvMOfZQ==?=", "notes://1", "=?base64?IHBhZGRlZCA=?=",
        "=?base64?PT9iYXNlNjQ/ZUE9PT89?=", None,
    ]  # fmt: skip


REGION = {"type": "string", "x-mcp-header": "Region"}
NESTED = {"type": "object", "properties": {"retries": {"type": "integer", "x-mcp-header": "Retries"}}}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


def params_of(visit: Visit) -> dict[str, str]:
    return {name: value for name, value in visit.headers.items() if name.startswith("mcp-param-")}


async def test_arguments_travel_as_headers_where_the_schema_says_so() -> None:
    flag = {"type": "boolean", "x-mcp-header": "Dry-Run"}
    offered = [tool("deploy", region=REGION, options=NESTED, dry=flag), tool("plain", region={"type": "string"})]
    async with Scripted(modern(offered)) as server, Client(server.url) as client:
        await client.call_tool("deploy", {"region": "Köln", "options": {"retries": 3}, "dry": True})
        assert params_of(server.visits[-1]) == {
            "mcp-param-region": "=?base64?S8O2bG4=?=", "mcp-param-retries": "3", "mcp-param-dry-run": "true",
        }  # fmt: skip
        await client.call_tool("deploy", {"region": None, "options": {"retries": 2.0}})
        assert params_of(server.visits[-1]) == {"mcp-param-retries": "2"}
        await client.call_tool("deploy", {"region": ["a", "list"], "options": 7})
        assert params_of(server.visits[-1]) == {}
        await client.call_tool("plain", {"region": "x"})
        assert params_of(server.visits[-1]) == {}
        assert server.said().count("POST tools/list") == 1


async def test_a_schema_that_changed_is_read_again() -> None:
    schemas = [tool("deploy", region=REGION), tool("deploy", zone={"type": "string", "x-mcp-header": "Zone"})]

    def behave(visit: Visit) -> None:
        if visit.method == "tools/list":
            modern([schemas[0] if server.said().count("POST tools/list") == 1 else schemas[1]])(visit)
        elif visit.method == "tools/call" and "mcp-param-zone" not in visit.headers:
            visit.error(-32020, 400, "Header mismatch: Mcp-Param-Zone is missing")
        else:
            modern()(visit)

    async with Scripted(behave) as server, Client(server.url) as client:
        assert (await client.call_tool("deploy", {"zone": "b"})).text == "called"
        assert server.said()[1:] == ["POST tools/list", "POST tools/call"] * 2
        with pytest.raises(ServerError, match="Mcp-Param-Zone is missing"):  # once, not for ever
            await client.call_tool("deploy", {})
        assert server.said()[5:] == ["POST tools/call", "POST tools/list", "POST tools/call"]


async def test_tools_with_wrong_marks_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    wrong = {
        "empty": {"type": "string", "x-mcp-header": ""},
        "spaced": {"type": "string", "x-mcp-header": "a b"},
        "number": {"type": "number", "x-mcp-header": "N"},
        "hidden": {"type": "array", "items": REGION},
        "no text": {"type": "string", "x-mcp-header": 7},
    }
    secret = {"type": "string", "format": "password", "x-mcp-header": "Key"}  # unwise, but not wrong
    offered = [tool(name, x=schema) for name, schema in wrong.items()] + [tool("twice", a=REGION, b=REGION)]
    offered += [tool("fine", a=REGION), tool("secret", key=secret)]
    async with Scripted(modern(offered)) as server, Client(server.url) as client:
        assert [each.name for each in await client.list_tools()] == ["fine", "secret"]
        assert [each.name for each in (await client.list_tools_page()).items] == ["fine", "secret"]
        assert "the tool spaced is left out: x-mcp-header on 'x' can't work" in caplog.text
        await client.call_tool("secret", {"key": "s3"})
        assert params_of(server.visits[-1]) == {"mcp-param-key": "s3"}
        await client.call_tool("empty", {"x": "y"})  # the server may know better
        assert params_of(server.visits[-1]) == {}


async def test_the_handshake_era_has_no_such_headers() -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "tools/list":
            visit.result({"tools": [tool("wrong", x={"type": "number", "x-mcp-header": "N"}), tool("ok", r=REGION)]})
        elif not handshake(visit):
            visit.result(text("called"))

    async with Scripted(behave) as server, Client(server.url) as client:
        assert [each.name for each in await client.list_tools()] == ["wrong", "ok"]
        await client.call_tool("ok", {"r": "x"})
        assert not any(name.startswith(("mcp-param", "mcp-name", "mcp-method")) for name in server.visits[-1].headers)


# ── answers ──


async def test_an_answer_as_a_stream() -> None:
    async def behave(visit: Visit) -> None:
        if visit.method != "tools/call":
            return modern()(visit)
        visit.stream()
        visit.chunk(": keep-alive\n\n")
        visit.event(progress(visit, 1))
        visit.event("nonsense", event="weather")
        await asyncio.sleep(0.01)
        visit.event(progress(visit, 2))
        whole = json.dumps(answer(visit, text("streamed")))
        visit.chunk(f"data: {whole[:20]}")  # cut anywhere
        await asyncio.sleep(0.01)
        visit.chunk(f"{whole[20:]}\r\n\r\n")
        visit.end()
        return None

    heard: list[float] = []
    async with Scripted(behave) as server, Client(server.url) as client:
        result = await client.call_tool("any", progress_handler=lambda value, *_: heard.append(value))
        assert result.text == "streamed"
        assert heard == [1, 2]


async def test_a_connection_is_used_again() -> None:
    connections: set[int] = set()

    def behave(visit: Visit) -> None:
        connections.add(id(visit._writer))
        if visit.method != "tools/call":
            return modern()(visit)
        visit.stream()
        visit.event(answer(visit, text("streamed")))
        visit.end()
        return None

    async with Scripted(behave) as server, Client(server.url) as client:
        for _ in range(5):
            await client.call_tool("any")
            await asyncio.sleep(0.005)
        assert len(connections) == 1


async def test_a_modern_request_whose_connection_breaks_is_never_repeated() -> None:
    def behave(visit: Visit) -> None:
        if visit.method != "tools/call":
            return modern()(visit)
        if visit.message["params"]["name"] == "at once":
            return visit.cut()
        visit.stream()
        visit.event(None, id="1")  # an id means nothing in this revision
        visit.cut() if visit.message["params"]["name"] == "later" else visit.end()
        return None

    async with Scripted(behave) as server, Client(server.url) as client:
        await client.list_tools()
        for name, words in (("at once", "broke"), ("later", "broke before"), ("ends", "ended the stream before")):
            with pytest.raises(ConnectionLost, match=f"tools/call: .*{words}"):
                await client.call_tool(name)
        assert server.said().count("POST tools/call") == 3
        assert "GET" not in server.said()


STRANGE: dict[str, tuple[Any, type[Exception], str]] = {
    "a page": (lambda visit: visit.answer(200, b"<html>", "text/html"), BadAnswer, "200 OK with text/html"),
    "accepted": (lambda visit: visit.answer(202), BadAnswer, "202 Accepted .* no answer"),
    "nothing": (lambda visit: visit.answer(200), BadAnswer, "200 OK"),
    "no JSON": (lambda visit: visit.answer(200, b"oops"), BadAnswer, "no answer to the request"),
    "another": (lambda visit: visit.answer(200, {"jsonrpc": "2.0", "id": 77, "result": {}}), BadAnswer, "no answer"),
    "nameless error": (lambda visit: visit.error(-32700, 200, "what?", id=False), ServerError, "what"),
    "404": (lambda visit: visit.error(-32601, 404, "Method not found"), ServerError, r"Method not found \(-32601\)"),
    "401": (lambda visit: visit.answer(401), ServerError, r"tools/call: the server answered 401 Unauthorized \(401\)"),
    "403, in words": (lambda visit: visit.error(-32000, 403, "Origin", id=False), ServerError, r"Origin \(-32000\)"),
    "413": (lambda visit: visit.answer(413, b"<html>", "text/html"), ServerError, "413"),
    "418": (lambda visit: visit.answer(499), ServerError, "answered the status 499"),
    "429": (lambda visit: visit.answer(429), ConnectionLost, "answered 429 Too Many Requests$"),
    "500": (lambda visit: visit.error(-32603, 500, "sorry"), ServerError, r"sorry \(-32603\)"),
    "503, in words": (lambda visit: visit.error(-32603, 503, "busy"), ConnectionLost, "503 Service Unavailable: busy$"),
    "no error": (lambda visit: visit.answer(400, {"jsonrpc": "2.0", "error": 7}), BadAnswer, "can't be read"),
    "no message": (lambda visit: (visit.stream(), visit.event("oops"), visit.end()), ConnectionLost, "before the answ"),
    "bad chunks": (lambda visit: (visit.stream(), visit._writer.write(b"zz\r\n"), None), ConnectionLost, "tools/call"),
    "bad gzip": (lambda visit: visit.answer(200, b"no gzip", Content_Encoding="gzip"), ConnectionLost, "tools/call"),
    "too many headers": (lambda visit: visit.answer(200, b"{}", X="y" * 20_000), ConnectionLost, "HTTP as it should"),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "kind", "words"), STRANGE.values(), ids=STRANGE.keys())
async def test_an_answer_that_is_none(reply: Any, kind: type[Exception], words: str) -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "tools/call" and visit.message["params"]["name"] == "strange":
            reply(visit)
        else:
            modern()(visit)

    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(kind, match=words):
            await client.call_tool("strange")
        assert (await client.call_tool("plain")).text == "called"


async def test_a_refusal_in_words_is_in_the_transcript() -> None:
    heard: list[Any] = []

    def note(direction: str, message: bytes) -> None:
        if direction == "received":
            heard.append(json.loads(message))

    def behave(visit: Visit) -> None:
        if visit.method == "ping":
            visit.error(-32603, 503, "busy", id=False)
        else:
            modern()(visit)

    async with Scripted(behave) as server, Client(server.url, transcript=note) as client:
        with pytest.raises(ConnectionLost):
            await client.ping()
        with pytest.raises(ServerError):
            await client.request("no/such")
    assert [message.get("error", {}).get("code") for message in heard] == [None, -32603, -32601]


async def test_messages_of_any_kind() -> None:
    """What the client knows nothing of is sent as it is, and what comes back is in the transcript."""
    heard: list[bytes] = []

    def behave(visit: Visit) -> None:
        if handshake(visit, "2025-03-26"):
            return None
        if isinstance(visit.message, list):
            return visit.answer(200, [answer_to(each) for each in visit.message])
        if visit.message is None:
            return visit.error(-32700, 400, "not JSON", id=False) if visit.body != b"" else visit.answer(400)
        visit.stream()
        visit.event(answer_to(visit.message))
        return visit.end()

    def answer_to(message: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": message["id"], "result": {}}

    async with (
        Scripted(behave) as server,
        Client(server.url, transcript=lambda way, message: way == "received" and heard.append(message)) as client,
    ):
        heard.clear()
        for raw in (
            b"nonsense",
            b'[{"jsonrpc":"2.0","id":"a","method":"ping"}]',
            b'{"jsonrpc":"2.0","id":"b","method":"x"}',
        ):
            await client.send_raw(raw)
        await until(lambda: len(heard) == 3)
        whole = b" ".join(heard)
        assert all(whole.count(word) == 1 for word in (b"not JSON", b'"a"', b'"b"'))
        await client.notify("notifications/odd", {"x": 1})
        assert server.visits[-1].message == {"jsonrpc": "2.0", "method": "notifications/odd", "params": {"x": 1}}


async def test_notifications_stay_in_order() -> None:
    order: list[str] = []

    async def behave(visit: Visit) -> None:
        if visit.method in ("server/discover", "initialize") or visit.verb != "POST":
            handshake(visit)
            return
        await asyncio.sleep(0.03 if visit.method == "notifications/initialized" else 0)
        order.append(visit.method or "")
        if not handshake(visit):
            visit.result({})

    async with Scripted(behave) as server, Client(server.url) as client:
        conversation = client._channel.conversation
        conversation.tell("notifications/one")
        conversation.tell("notifications/two")
        await client.ping()
        assert order == ["notifications/initialized", "notifications/one", "notifications/two", "ping"]


async def test_a_notification_that_is_refused_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "notifications/odd":
            visit.error(-32600, 400, "never heard of it", id=False)
        else:
            handshake(visit)

    async with Scripted(behave) as server, Client(server.url) as client:
        await client.notify("notifications/odd")
        assert "never heard of it" in caplog.text


async def test_a_notification_that_is_never_accepted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(posting, "ERRAND_SECONDS", 0.02)

    async def behave(visit: Visit) -> None:
        if visit.method == "notifications/odd":
            await visit.gone()
        elif not handshake(visit):
            visit.result({})

    async with Scripted(behave) as server, Client(server.url) as client:
        await client.notify("notifications/odd")
        await client.ping()
        assert "notifications/odd: not delivered within 0.02 s" in caplog.text


async def test_a_modern_client_answers_no_questions(caplog: pytest.LogCaptureFixture) -> None:
    def behave(visit: Visit) -> None:
        if visit.method != "tools/call":
            return modern()(visit)
        visit.stream()
        visit.event({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        visit.event(answer(visit, text("done")))
        return visit.end()

    async with Scripted(behave) as server, Client(server.url) as client:
        assert (await client.call_tool("any")).text == "done"
        await asyncio.sleep(0.02)
        assert server.said()[-1] == "POST tools/call"
        assert "is not answered" in caplog.text


async def test_whatever_goes_wrong_nobody_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Scripted(modern()) as server, Client(server.url) as client:
        monkeypatch.setattr(requests.HttpReply, "read", None)
        with pytest.raises(ConnectionLost, match="no/such: it could not be sent; the log says why"):
            await client.request("no/such")
        assert "TypeError" in caplog.text


# ── leaving ──


@pytest.mark.parametrize("by", ["timeout", "cancel", "close"])
@pytest.mark.parametrize("opened", [False, True])
async def test_leaving_a_modern_request_closes_its_stream(by: str, opened: bool) -> None:
    left = asyncio.Event()

    async def behave(visit: Visit) -> None:
        if visit.method != "tools/call":
            return modern()(visit)
        if opened:
            visit.stream()
            visit.chunk(": still there\n\n")
        await visit.gone()
        left.set()
        return None

    async with Scripted(behave) as server:
        client = Client(server.url)
        await client.__aenter__()
        call = asyncio.create_task(client.call_tool("slow", timeout=0.3 if by == "timeout" else 5))
        await until(lambda: "POST tools/call" in server.said())
        if by == "cancel":
            call.cancel()
        if by == "close":
            await client.close()
        with pytest.raises((TimeoutError, asyncio.CancelledError, ConnectionLost)):
            await call
        await asyncio.wait_for(left.wait(), 5)
        await client.close()
        assert server.said() == ["POST server/discover", "POST tools/list", "POST tools/call"]


async def test_leaving_an_older_request_is_said_in_words() -> None:
    async def behave(visit: Visit) -> None:
        if not handshake(visit):
            visit.stream()
            await visit.gone()

    async with Scripted(behave) as server, Client(server.url) as client:
        slow = asyncio.create_task(client.call_tool("slow"))
        await until(lambda: "POST tools/call" in server.said())
        slow.cancel()
        await until(lambda: server.said()[-1] == "POST notifications/cancelled")
        call = next(visit for visit in server.visits if visit.method == "tools/call")
        assert server.visits[-1].message["params"] == {
            "requestId": call.message["id"],
            "reason": "the caller was cancelled",
        }


async def test_last_words_are_still_said_when_the_client_closes() -> None:
    async def behave(visit: Visit) -> None:
        if visit.method == "notifications/bye":
            await asyncio.sleep(0.02)
        handshake(visit, Mcp_Session_Id="s1")

    async with Scripted(behave) as server:
        async with Client(server.url) as client:
            client._channel.conversation.tell("notifications/bye")
        assert [word for word in server.said() if word != "GET"][-2:] == ["POST notifications/bye", "DELETE"]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_nothing_hangs_on_close(monkeypatch: pytest.MonkeyPatch, cancelled: bool) -> None:
    monkeypatch.setattr(posting, "LEAVE_SECONDS", 0.05)

    async def behave(visit: Visit) -> None:
        if visit.method in ("server/discover", "initialize"):
            handshake(visit, Mcp_Session_Id="s1")
        else:
            await visit.gone()  # no notification is accepted, no stream opens, no session may be ended

    async with Scripted(behave) as server:
        client = Client(server.url)
        await client.__aenter__()
        calls = [asyncio.create_task(client.ping()) for _ in range(3)]
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(client.close())
        if cancelled:
            await asyncio.sleep(0.01)
            closing.cancel()
        await asyncio.wait_for(asyncio.gather(closing, return_exceptions=True), 5)
        for lost in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(lost, ConnectionLost)


async def test_a_client_may_be_opened_again() -> None:
    async with Scripted(modern()) as server:
        client = Client(server.url)
        for _ in range(2):
            async with client:
                assert (await client.call_tool("any")).text == "called"
        with pytest.raises(ConnectionLost, match="not open"):
            await client.call_tool("any")


# ── limits ──


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_message_that_is_too_long(monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    monkeypatch.setattr(requests, "MAX_MESSAGE_BYTES", 100_000)

    async def behave(visit: Visit) -> None:
        if visit.method != "tools/call" or visit.message["params"]["name"] == "plain":
            return modern()(visit)
        visit.stream() if streamed else visit.head(
            200, {"Content-Type": "application/json", "Content-Length": "90000000"}
        )
        while not visit._writer.transport.is_closing():
            visit.chunk(b"data: " + b"x" * 30_000) if streamed else visit._writer.write(b"x" * 30_000)
            await visit._writer.drain()
        return None

    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(BadAnswer, match="100000 bytes"):
            await client.call_tool("big")
        assert (await client.call_tool("plain")).text == "called"


async def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_MESSAGE_BYTES", 1_000_000)
    bomb = gzip.compress(b" " * 200_000_000)
    assert len(bomb) < 250_000

    def behave(visit: Visit) -> None:
        if visit.method == "tools/call":
            visit.answer(200, bomb, Content_Encoding="gzip")
        else:
            modern()(visit)

    async with Scripted(behave) as server, Client(server.url) as client:
        await client.list_tools()
        tracemalloc.start()
        with pytest.raises(BadAnswer, match="more than 1000000 bytes"):
            await client.call_tool("bomb")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20_000_000


async def test_a_packed_answer() -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "tools/call":
            whole = json.dumps(answer(visit, text("x" * 100_000))).encode()
            visit.answer(200, gzip.compress(whole), Content_Encoding="gzip")
        else:
            modern()(visit)

    async with Scripted(behave) as server, Client(server.url) as client:
        assert len((await client.call_tool("any")).text) == 100_000


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
    ("http://127.0.0.1/mcp#part", {}, "ends in #part"),
    ("http:///mcp", {}, "no host"),
    ("http://127.0.0.1:99999/mcp", {}, "its host or its port can't be read"),
    ("http://[::1/mcp", {}, "its host or its port can't be read"),
    ("ftp://x", {}, "can't connect to 'ftp://x': a URL has to begin with http:// or https://"),
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
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize("options", [{"headers": {"A": "b"}}, {"transport": "http"}])
async def test_options_of_urls_are_for_urls(options: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match="are for a URL"):
        Client(["python"], **options)


async def test_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(SetupError, match=r'pip install "dovetail\[client\]"'):
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
