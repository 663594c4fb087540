"""Sessions over HTTP: the GET stream, resuming, a new handshake, HTTP+SSE; and `listen` in every revision."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from scripted import (
    DISCOVERED,
    INFO,
    Scripted,
    ScriptedRequest,
    ScriptedTransport,
    brisk_client,
    handshake,
    next_of,
    result,
    text,
    until,
)
from small_server import every_revision, make_server

from dovetail import Client
from dovetail.client.dispatcher import Dispatcher
from dovetail.client.subscriptions import ChangeStream, ChangeStreams
from dovetail.engine.subscriptions import Change
from dovetail.errors import BadResponse, ConnectionLost, ServerError
from dovetail.protocol.methods import ListenFilter

pytestmark = pytest.mark.usefixtures("tidy")
VERSION = "2025-11-25"
CHANGING = {"tools": {"listChanged": True}, "resources": {"subscribe": True, "listChanged": True}, "logging": {}}
TOOLS_CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


def answer(request: ScriptedRequest, value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request.message["id"], "result": value}


def updated(uri: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}


def log_message(value: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": value}}


def progress(request: ScriptedRequest, value: float) -> dict[str, Any]:
    token = request.message["params"].get("_meta", {}).get("progressToken")
    params = {"progressToken": token, "progress": value}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


class Announcing:
    """A server whose own stream the test holds in its hand: `streams` has one request for each time it was opened."""

    def __init__(self) -> None:
        self.streams: list[ScriptedRequest] = []
        self.session = 0
        self.refuse_stream: int | None = None
        self.forgetful = False

    async def __call__(self, request: ScriptedRequest) -> None:
        known = request.headers.get("mcp-session-id") == f"s{self.session}" and not self.forgetful
        if request.method == "initialize":
            self.session += 1
            self.forgetful = False
            handshake(request, capabilities=CHANGING, Mcp_Session_Id=f"s{self.session}")
        elif request.method == "server/discover":
            handshake(request)
        elif not known:
            request.error(-32600, 404, "Session not found", id=False)
        elif request.verb == "GET" and self.refuse_stream is None:
            self.streams.append(request)
            request.stream()
            await request.gone()
        elif request.verb == "GET":
            request.answer(self.refuse_stream or 405)
        elif not handshake(request):
            request.result({"tools": []} if request.method == "tools/list" else {})


async def test_a_session_from_beginning_to_end() -> None:
    def behave(request: ScriptedRequest) -> None:
        if request.verb == "DELETE":
            request.answer(204)
        elif not handshake(request, Mcp_Session_Id="s-!~1"):
            request.result(text("done"))

    async with Scripted(behave) as server:
        async with brisk_client(server.url, protocol_version=VERSION) as client:
            await client.call_tool("any")
            await until(lambda: "GET" in server.said())
        assert server.said()[0] == "POST initialize"
        assert sorted(server.said()[1:4]) == ["GET", "POST notifications/initialized", "POST tools/call"]
        assert server.said()[4:] == ["DELETE"]
        first, *later = server.requests
        assert "mcp-session-id" not in first.headers
        for request in later:
            assert request.headers["mcp-session-id"] == "s-!~1"
            assert request.headers["mcp-protocol-version"] == VERSION
        get = next(request for request in later if request.verb == "GET")
        assert get.headers["accept"] == "text/event-stream"
        assert "last-event-id" not in get.headers


async def test_questions_on_a_stream_are_answered_by_post() -> None:
    def behave(request: ScriptedRequest) -> None:
        if request.method == "tools/call":
            request.stream()
            request.event({"jsonrpc": "2.0", "id": "p", "method": "ping"})
            request.event({"jsonrpc": "2.0", "id": "r", "method": "roots/list"})
            request.event(answer(request, text("done")))
            request.end()
        else:
            handshake(request, Mcp_Session_Id="s")

    async with Scripted(behave) as server, brisk_client(server.url) as client:
        await client.call_tool("any")
        await until(lambda: sum("id" in (each.message or {}) and not each.method for each in server.requests) == 2)
        replies = {
            request.message["id"]: request for request in server.requests if request.message and not request.method
        }
        assert replies["p"].message["result"] == {}
        assert replies["r"].message["error"]["code"] == -32601
        assert replies["p"].headers["mcp-session-id"] == "s"


@pytest.mark.parametrize("loss", ["502", "cut"])
async def test_an_answer_that_did_not_arrive_is_sent_again(loss: str) -> None:
    """Or the call would wait for it: behind a balancer, a worker that dies takes only the answer with it."""
    answers: list[Any] = []

    async def behave(request: ScriptedRequest) -> None:
        if request.method == "tools/call":
            request.stream()
            request.event({"jsonrpc": "2.0", "id": "r", "method": "roots/list"})
            await until(lambda: len(answers) == 2)
            request.event(answer(request, text("thanks")))
            request.end()
        elif isinstance(request.message, dict) and request.message.get("id") == "r":
            answers.append(request.message)
            if len(answers) == 2:
                request.answer(202)
            elif loss == "502":
                request.answer(502)
            else:
                request.cut()
        else:
            handshake(request, Mcp_Session_Id="s1")

    async with Scripted(behave) as server, brisk_client(server.url, roots=["/x"], timeout=5) as client:
        assert (await client.call_tool("t")).text == "thanks"
    assert answers[0] == answers[1]


@pytest.mark.parametrize("loss", ["502", "cut"])
async def test_a_notification_that_ends_the_handshake_is_sent_again(loss: str) -> None:
    """Or the server could ask nothing in this session."""
    begun: list[str] = []

    def behave(request: ScriptedRequest) -> None:
        if request.method == "notifications/initialized" and not begun:
            begun.append("lost")
            if loss == "502":
                request.answer(502)
            else:
                request.cut()
        elif request.method == "notifications/initialized":
            begun.append("taken")
            request.answer(202)
        elif request.method == "tools/call":
            request.result(text(" ".join(begun)))
        else:
            handshake(request, Mcp_Session_Id="s1")

    async with Scripted(behave) as server, brisk_client(server.url, timeout=5) as client:
        assert (await client.call_tool("t")).text == "lost taken"


async def test_an_answer_is_not_sent_into_the_next_session() -> None:
    """A question there may have the same id."""
    answered: list[str | None] = []
    sessions: list[str] = []

    async def behave(request: ScriptedRequest) -> None:
        session = request.headers.get("mcp-session-id")
        if request.method == "initialize":
            sessions.append(f"s{len(sessions) + 1}")
            handshake(request, Mcp_Session_Id=sessions[-1])
        elif request.method == "tools/call":
            request.stream()
            request.event({"jsonrpc": "2.0", "id": 1, "method": "roots/list"})
        elif request.method is None and request.message:
            answered.append(session)
            request.answer(502)
        elif request.method == "ping" and session == "s1":
            await until(lambda: len(answered) > 1)
            request.answer(404)
        elif not handshake(request):
            request.result({})

    async with Scripted(behave) as server, brisk_client(server.url, roots=["/x"], timeout=5) as client:
        with pytest.raises(ConnectionLost, match="the session ended"):
            await asyncio.gather(client.call_tool("t"), client.ping())
        await client.ping()
        await asyncio.sleep(0.3)
    assert len(sessions) == 2
    assert set(answered) == {"s1"}


async def test_a_message_that_is_sent_again_waits_as_long_as_the_server_asks() -> None:
    sent: list[float] = []

    def behave(request: ScriptedRequest) -> None:
        if request.method == "notifications/initialized":
            sent.append(asyncio.get_running_loop().time())
            if len(sent) == 1:
                request.answer(429, Retry_After="1")
            else:
                request.answer(202)
        elif not handshake(request):
            request.result({})

    async with Scripted(behave) as server, brisk_client(server.url, timeout=5) as client:
        await client.ping()
    assert sent[1] - sent[0] >= 0.5  # ten times the longest delay of a brisk client


async def test_the_next_request_opens_a_new_session_where_all_is_agreed_again() -> None:
    behave = Announcing()
    async with Scripted(behave) as server, brisk_client(server.url) as client:
        await client.set_log_level("warning")
        async with client.listen(tools=True, uris=["n://1", "n://2"]) as changes:
            begun = len(server.requests)
            behave.forgetful = True
            with pytest.raises(ConnectionLost, match="ping: the session ended: the server does not know it any more"):
                await client.ping()
            await asyncio.gather(*(client.ping() for _ in range(5)))
            assert behave.session == server.said().count("POST notifications/initialized") == 2
            seen = [
                (request.method, request.message["params"].get("uri") or request.message["params"].get("level"))
                for request in server.requests[begun:]
                if request.method in ("logging/setLevel", "resources/subscribe")
            ]
            subscribed = [("resources/subscribe", "n://1"), ("resources/subscribe", "n://2")]
            assert seen == [("logging/setLevel", "warning"), *subscribed]
            assert [await next_of(changes) for _ in ALL_CHANGED] == ALL_CHANGED
            behave.streams[-1].event(updated("n://2"))
            assert await next_of(changes) == Change("updated", "n://2")
        assert server.said()[-2:] == ["POST resources/unsubscribe"] * 2


async def test_a_listener_does_not_wait_for_a_request() -> None:
    behave = Announcing()
    async with Scripted(behave) as server, brisk_client(server.url) as client, client.listen(tools=True) as changes:
        behave.forgetful = True
        behave.streams[0].cut()
        assert await next_of(changes) == Change("tools")
        assert behave.session == 2
        behave.streams[-1].event(TOOLS_CHANGED)
        assert await next_of(changes) == Change("tools")


async def test_the_stream_is_opened_again_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Any] = []
    behave = Announcing()
    async with (
        Scripted(behave) as server,
        brisk_client(server.url, log_handler=lambda message: received.append(message.data)) as client,
    ):
        for number in range(1, 8):
            await until(lambda: len(behave.streams) == number)  # noqa: B023
            stream = behave.streams[-1]
            assert stream.headers.get("last-event-id") == (None if number == 1 else f"g-{number - 1}")
            if number > 1:
                stream.event(log_message(number - 1), id=f"g-{number - 1}")  # a replay of what has come already
            stream.event(log_message(number), id=f"g-{number}", retry=1)
            await until(lambda: len(received) == number)  # noqa: B023
            stream.cut() if number % 2 else stream.finish()
        assert received == [1, 2, 3, 4, 5, 6, 7]
        await client.ping()
        assert behave.session == 1


@pytest.mark.parametrize("status", [405, 404, 400, 401])
async def test_a_server_without_a_stream(status: int, caplog: pytest.LogCaptureFixture) -> None:
    behave = Announcing()
    behave.refuse_stream = status
    async with Scripted(behave) as server, brisk_client(server.url) as client:
        async with client.listen(tools=True):
            await client.ping()
        assert server.said().count("GET") == 1
    warned = any(record.levelno >= logging.WARNING for record in caplog.records)
    assert warned is (status not in (404, 405))
    assert behave.session == 1


class Resuming:
    """A server that keeps the events of a call, and breaks the connection after each; `cut` says how."""

    def __init__(self, steps: int, *, cut: bool, replay_all: bool) -> None:
        self.steps, self.cut, self.replay_all = steps, cut, replay_all
        self.call: ScriptedRequest | None = None
        self.resumed: list[str] = []

    def __call__(self, request: ScriptedRequest) -> None:
        if request.method == "tools/call":
            self.call = request
            request.stream()
            request.event(None, id="c-0", retry=2)
            request.cut() if self.cut else request.end()
        elif request.verb == "GET" and "last-event-id" in request.headers:
            assert "mcp-session-id" in request.headers
            self.resumed.append(request.headers["last-event-id"])
            request.stream()
            self.go_on(request, int(request.headers["last-event-id"].removeprefix("c-")) + 1)
            request.cut() if self.cut else request.end()
        else:
            handshake(request, Mcp_Session_Id="s")

    def go_on(self, request: ScriptedRequest, number: int) -> None:
        assert self.call is not None
        for step in range(1 if self.replay_all else number, number + 1):
            last = answer(self.call, text("finally"))
            request.event(last if step == self.steps else progress(self.call, step), id=f"c-{step}")


@pytest.mark.slow
@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("replay_all", [True, False])
async def test_an_answer_is_taken_up_again_as_often_as_it_takes(cut: bool, replay_all: bool) -> None:
    behave = Resuming(12, cut=cut, replay_all=replay_all)
    received: list[float] = []
    async with Scripted(behave) as server, brisk_client(server.url) as client:
        result = await client.call_tool("any", progress_handler=lambda value, *_: received.append(value))
        assert result.text == "finally"
        assert received == list(range(1, 12))  # each once
        assert behave.resumed == [f"c-{number}" for number in range(12)]
        assert server.said().count("POST tools/call") == 1


async def test_without_an_event_id_an_answer_is_lost() -> None:
    def behave(request: ScriptedRequest) -> None:
        if request.method == "tools/call":
            request.stream()
            request.event(log_message(1))
            request.cut()
        else:
            handshake(request, Mcp_Session_Id="s")

    async with Scripted(behave) as server, brisk_client(server.url) as client:
        with pytest.raises(ConnectionLost, match=r"tools/call: .*broke before the answer came"):
            await client.call_tool("any")
        assert server.said().count("POST tools/call") == 1


CAPABILITIES = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}


class Old:
    """A server of the old transport at /sse; `streams` has one request for each session."""

    def __init__(self, endpoint: str = "/messages?session=1", *, refusal: int = 405) -> None:
        self.endpoint, self.refusal = endpoint, refusal
        self.streams: list[ScriptedRequest] = []
        self.known, self.is_down = True, False

    async def __call__(self, request: ScriptedRequest) -> None:
        if self.is_down:
            request.answer(503)
        elif request.verb == "GET" and request.path == "/sse":
            self.known = True
            self.streams.append(request)
            request.stream()
            request.event(self.endpoint, event="endpoint")
            await request.gone()
        elif request.path.startswith("/messages") and self.known:
            request.answer(202, b"Accepted", "text/plain")
            self.take(request)
        elif request.path.startswith("/messages"):
            request.answer(404)
        else:
            request.answer(self.refusal)

    def take(self, request: ScriptedRequest) -> None:
        if request.method == "initialize":
            result = {"protocolVersion": "2024-11-05", "capabilities": CAPABILITIES, "serverInfo": INFO}
            self.answer(request, result)
        elif request.method == "tools/call":
            self.say(progress(request, 1))
            self.answer(request, {"content": [{"type": "text", "text": "old"}]})
        elif request.method is not None and "id" in request.message and request.method != "slow":
            self.answer(request, {})

    def answer(self, request: ScriptedRequest, result: Any) -> None:
        self.say({"jsonrpc": "2.0", "id": request.message["id"], "result": result})

    def say(self, message: Any) -> None:
        self.streams[-1].event(message, event="message")


@pytest.mark.parametrize("refusal", [400, 404, 405])
async def test_an_old_server_is_found_out(refusal: int) -> None:
    behave = Old(refusal=refusal)
    async with Scripted(behave) as server, brisk_client(f"{server.origin}/sse") as client:
        assert client.protocol_version == "2024-11-05"
        received: list[float] = []
        result = await client.call_tool("any", progress_handler=lambda value, *_: received.append(value))
        assert result.text == "old"
        assert received == [1]
        assert [(request.verb, request.path.partition("?")[0], request.method) for request in server.requests] == [
            ("POST", "/sse", "server/discover"), ("POST", "/sse", "initialize"), ("GET", "/sse", None),
            ("POST", "/messages", "initialize"), ("POST", "/messages", "notifications/initialized"),
            ("POST", "/messages", "tools/call"),
        ]  # fmt: skip


async def test_neither_transport() -> None:
    async with Scripted(lambda request: request.answer(404)) as server:
        with pytest.raises(ServerError, match=r"answered 404 Not Found; and by HTTP\+SSE: .*404 Not Found") as caught:
            async with brisk_client(server.url):
                pass
        assert caught.value.code == 404
        assert str(caught.value).count("(404)") == 1


@pytest.mark.parametrize("endpoint", ["http://localhost:1/messages", "//evil.example/messages", "file:///etc/passwd"])
async def test_an_endpoint_of_another_origin_is_refused(endpoint: str) -> None:
    async with Scripted(Old(endpoint)) as server:
        with pytest.raises(BadResponse, match=r"initialize: the server names .* (another origin|can't be used)"):
            async with brisk_client(f"{server.origin}/sse", transport="sse"):
                pass
        assert server.said() == ["GET"]


@pytest.mark.parametrize("loss", ["cut", "forgotten", "outage"])
async def test_a_session_that_ends_is_followed_by_another(loss: str) -> None:
    behave = Old()
    async with Scripted(behave) as server, brisk_client(f"{server.origin}/sse") as client:
        slow = asyncio.create_task(client.request("slow"))
        await until(lambda: server.said()[-1] == "POST slow")
        behave.is_down = loss == "outage"
        if loss != "forgotten":
            behave.streams[0].cut()
        else:
            behave.known = False
            with pytest.raises(ConnectionLost, match="ping: the session ended: the server does not know it"):
                await client.ping()
        with pytest.raises(ConnectionLost, match="slow: the session ended"):
            await slow
        for _ in range(3 if behave.is_down else 0):
            with pytest.raises(
                (ServerError, ConnectionLost), match=r"^(?!.*405)"
            ):  # it is not taken for another server
                await client.ping()
        behave.is_down = False
        await client.ping()
        assert len(behave.streams) == 2
        assert (await client.call_tool("any")).text == "old"


async def is_quiet(stream: ChangeStream) -> bool:
    try:
        await asyncio.wait_for(anext(stream), 0.03)
    except TimeoutError:
        return True
    return False


@every_revision
async def test_what_was_asked_for_is_notified(version: str) -> None:
    server = make_server()
    async with (
        Client(server, protocol_version=version) as client,
        client.listen(tools=True, uris=["notes://all"]) as changes,
    ):
        assert changes.honoured == ListenFilter(tools_list_changed=True, resource_subscriptions=["notes://all"])
        server.add_tool(lambda: "b", name="b")
        assert await next_of(changes) == Change("tools")
        server.notify_resource_updated("notes://all")
        assert await next_of(changes) == Change("updated", "notes://all")
        server.notify_resource_updated("notes://7")
        server.remove_prompt("review")
        assert await is_quiet(changes)


async def open_streams(transport: ScriptedTransport) -> tuple[Dispatcher, ChangeStreams]:
    streams = ChangeStreams(lambda: None)
    dispatcher = Dispatcher(transport, streams)  # type: ignore[arg-type]  # it returns what it received
    await dispatcher.open()
    return dispatcher, streams


def notification(method: str, subscription: Any, **params: Any) -> dict[str, Any]:
    meta = {"io.modelcontextprotocol/subscriptionId": subscription}
    return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": {**params, "_meta": meta}}


def acknowledging(message: dict[str, Any]) -> list[dict[str, Any]]:
    if message["method"] != "subscriptions/listen":
        return []
    return [notification("subscriptions/acknowledged", message["id"], notifications={"toolsListChanged": True})]


WANTED = ListenFilter(tools_list_changed=True)


@pytest.mark.rule("SUB-4")
async def test_changes_of_another_subscription_are_not_ours() -> None:
    transport = ScriptedTransport(acknowledging)
    dispatcher, streams = await open_streams(transport)
    async with streams.on_stream(dispatcher, WANTED, {}, 5) as changes:
        id = transport.sent[0]["id"]
        for other in (str(id), id + 1, None, True, [id]):
            transport.say(notification("tools/list_changed", other))
        transport.say(notification("prompts/list_changed", id))  # not asked for
        transport.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        assert await is_quiet(changes)
        transport.say(notification("tools/list_changed", id))
        assert await next_of(changes) == Change("tools")
    await dispatcher.close()


@pytest.mark.rule("SUB-7", "SUB-8")
@pytest.mark.parametrize("by_result", [True, False])
async def test_both_ways_to_end_a_stream(by_result: bool) -> None:
    transport = ScriptedTransport(acknowledging)
    dispatcher, streams = await open_streams(transport)
    async with streams.on_stream(dispatcher, WANTED, {}, 5) as changes:
        if by_result:
            transport.say(result(transport.sent[0], {"resultType": "complete"}))
        else:
            params = {"requestId": transport.sent[0]["id"]}
            transport.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        assert [change async for change in changes] == []
    await dispatcher.close()


async def test_a_stream_that_is_never_acknowledged() -> None:
    transport = ScriptedTransport()
    dispatcher, streams = await open_streams(transport)
    with pytest.raises(TimeoutError, match="subscriptions/listen: not acknowledged"):
        await streams.on_stream(dispatcher, WANTED, {}, 0.02).__aenter__()
    assert transport.methods() == ["subscriptions/listen", "notifications/cancelled"]
    await dispatcher.close()


async def test_a_part_of_a_resource_counts_as_the_resource() -> None:
    stream = ChangeStream(ListenFilter(resource_subscriptions=["file:///docs/", "n://1"]), None)
    parts = ["file:///docs/", "file:///docs/a.txt", "n://1", "n://1/x"]
    for uri in (*parts, "file:///docs", "file:///docs2/a", "file:///other/b.txt", "n://10", "n://", "n://1#x"):
        stream.add(Change("updated", uri))
    stream.close()
    assert [change.uri async for change in stream] == parts


ALL = {"toolsListChanged": True, "resourceSubscriptions": ["n://1", "n://2"]}
ALL_CHANGED = [Change("tools"), Change("updated", "n://1"), Change("updated", "n://2")]


class Listened:
    """A modern server; `streams` has one request for each listen request, already acknowledged."""

    def __init__(self) -> None:
        self.streams: list[ScriptedRequest] = []
        self.refusal: Callable[[ScriptedRequest], None] | None = None

    async def __call__(self, request: ScriptedRequest) -> None:
        if request.method == "server/discover":
            request.result(DISCOVERED)
        elif request.method != "subscriptions/listen":
            request.error(-32601, 404)
        elif self.refusal is not None:
            self.refusal(request)
        else:
            self.streams.append(request)
            request.stream()
            request.event(notification("subscriptions/acknowledged", request.message["id"], notifications=ALL))
            await request.gone()


TRANSIENT_STATUSES: dict[str, Callable[[ScriptedRequest], None]] = {
    "no connection": lambda request: request.cut(),
    "busy": lambda request: request.answer(503),
    "draining": lambda request: request.error(-32603, 503, "draining", id=False),
    "a failure": lambda request: request.answer(500),
    "a stream without acknowledgement": lambda request: (request.stream(), request.end())[0],
}


@pytest.mark.slow
@pytest.mark.parametrize("refusal", [None, *TRANSIENT_STATUSES.values()], ids=["it is there", *TRANSIENT_STATUSES])
async def test_a_stream_that_breaks_is_opened_again(refusal: Callable[[ScriptedRequest], None] | None) -> None:
    behave = Listened()
    async with (
        Scripted(behave) as server,
        brisk_client(server.url) as client,
        client.listen(tools=True, uris=["n://1", "n://2"]) as changes,
    ):
        for number in range(1, 5):
            behave.refusal, asked = refusal, len(server.requests)
            behave.streams[-1].cut() if number % 2 else behave.streams[-1].finish()
            if refusal is not None:  # it is away for a while
                await until(lambda: len(server.requests) > asked + 3)  # noqa: B023
                assert await is_quiet(changes)
                behave.refusal = None
            assert [await next_of(changes) for _ in ALL_CHANGED] == ALL_CHANGED
            assert len(behave.streams) == number + 1
        assert await is_quiet(changes)
        stream = behave.streams[-1]
        stream.event(notification("tools/list_changed", stream.message["id"]))
        assert await next_of(changes) == Change("tools")
        assert len({stream.message["id"] for stream in behave.streams}) == 5
        assert server.said().count("POST server/discover") == 1
