"""What any answer to a POST means to a client, however wrong it is; and what leaving does to it."""

import asyncio
import gzip
import json
import tracemalloc
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from modern_script import answer, modern, progress, text
from served_http import Scripted, Visit, handshake, until

from dovetail import Client
from dovetail.client import posting, requests
from dovetail.errors import BadAnswer, ConnectionLost, NotSignedIn, ServerError, TooManyRequests

pytestmark = pytest.mark.usefixtures("brisk", "tidy")


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


@pytest.mark.parametrize("pause", [0.0, 0.01])
async def test_a_connection_is_used_again(pause: float) -> None:
    """Also if the stream ends a little after the answer."""
    connections: set[int] = set()

    async def behave(visit: Visit) -> None:
        connections.add(id(visit._writer))
        if visit.method != "tools/call":
            return modern()(visit)
        visit.stream()
        visit.event(answer(visit, text("streamed")))
        await asyncio.sleep(pause)
        visit.end()
        return None

    async with Scripted(behave) as server, Client(server.url) as client:
        for _ in range(5):
            await client.call_tool("any")
            await asyncio.sleep(0.005 + 2 * pause)
        assert len(connections) == 1


BOMB = gzip.compress(b"[" + b"0," * 32_000_000 + b"0]")  # 62 KB, of 64 MB


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate", "identity, gzip"])
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_a_compressed_answer_is_refused_unread(encoding: str, version: str) -> None:
    asked: list[str] = []

    def behave(visit: Visit) -> None:
        asked.append(visit.headers.get("accept-encoding", ""))
        if visit.method == "tools/call":
            return visit.answer(200, BOMB, Content_Encoding=encoding)
        return modern()(visit) if version == "2026-07-28" else handshake(visit) and None

    async with Scripted(behave) as server, Client(server.url, protocol_version=version) as client:
        tracemalloc.start()
        try:
            with pytest.raises(BadAnswer, match="the server compressed its answer, which was not asked for"):
                await client.call_tool("any", timeout=30)
            assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
        finally:
            tracemalloc.stop()
    assert set(asked) == {"identity"}


async def test_a_compressed_stream_is_refused_unread() -> None:
    def behave(visit: Visit) -> None:
        if visit.method != "tools/call":
            return modern()(visit)
        visit.stream(Content_Encoding="gzip")
        visit.chunk(BOMB)
        return None

    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(BadAnswer, match="compressed its answer"):
            await client.call_tool("any", timeout=30)


async def test_a_refusal_keeps_its_meaning_if_its_page_is_compressed() -> None:
    def behave(visit: Visit) -> None:
        if visit.method != "tools/call":
            return modern()(visit)
        return visit.answer(404, BOMB, kind="text/html", Content_Encoding="gzip")

    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(ServerError, match="404") as refused:
            await client.call_tool("any", timeout=30)
        assert refused.value.code == 404


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
    "401": (lambda visit: visit.answer(401), NotSignedIn, "tools/call: .* 401 Unauthorized: it wants a token"),
    "401, in words": (lambda visit: visit.error(-32000, 401, "no"), NotSignedIn, "401 Unauthorized: it wants a token"),
    "403, in words": (lambda visit: visit.error(-32000, 403, "Origin", id=False), ServerError, r"Origin \(-32000\)"),
    "413": (lambda visit: visit.answer(413, b"<html>", "text/html"), ServerError, "413"),
    "418": (lambda visit: visit.answer(499), ServerError, "answered the status 499"),
    "429": (lambda visit: visit.answer(429), TooManyRequests, "tools/call: the server answered 429 Too Many Requests"),
    "500": (lambda visit: visit.error(-32603, 500, "sorry"), ServerError, r"sorry \(-32603\)"),
    "503, in words": (lambda visit: visit.error(-32603, 503, "busy"), ConnectionLost, "503 Service Unavailable: busy$"),
    "no error": (lambda visit: visit.answer(400, {"jsonrpc": "2.0", "error": 7}), BadAnswer, "can't be read"),
    "no message": (lambda visit: (visit.stream(), visit.event("oops"), visit.end()), ConnectionLost, "before the answ"),
    "bad chunks": (lambda visit: (visit.stream(), visit._writer.write(b"zz\r\n"), None), ConnectionLost, "tools/call"),
    "bad gzip": (lambda visit: visit.answer(200, b"no gzip", Content_Encoding="gzip"), BadAnswer, "tools/call"),
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


def _later(seconds: int) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


TOO_MANY: dict[str, tuple[Any, int, tuple[float, float] | None]] = {
    "in seconds": (lambda visit: visit.answer(429, Retry_After="7"), 429, (7, 7)),
    "at a time": (lambda visit: visit.answer(429, Retry_After=_later(100)), 429, (90, 100)),
    "in the past": (lambda visit: visit.answer(429, Retry_After=_later(-100)), 429, (0, 0)),
    "in a hundred years": (lambda visit: visit.answer(429, Retry_After="9" * 400), 429, (86_400, 86_400)),
    "soon": (lambda visit: visit.answer(429, Retry_After="soon"), 429, None),
    "never": (lambda visit: visit.answer(429, Retry_After="-7"), 429, None),
    "not said": (lambda visit: visit.error(-32000, 429, "slow down"), -32000, None),
    "in the body": (lambda visit: visit.error(-32603, 429, "busy", data={"retryAfter": 3}), -32603, (3, 3)),
    "in the body of a success": (
        lambda visit: visit.error(-32603, 200, "busy", data={"retryAfter": 2}),
        -32603,
        (2, 2),
    ),
}


@pytest.mark.parametrize(("reply", "code", "wait"), TOO_MANY.values(), ids=TOO_MANY.keys())
async def test_when_to_try_again(reply: Any, code: int, wait: tuple[float, float] | None) -> None:
    def behave(visit: Visit) -> None:
        reply(visit) if visit.method == "tools/call" else modern()(visit)

    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(TooManyRequests) as refused:
            await client.call_tool("any")
    seconds = refused.value.retry_after
    assert refused.value.code == code
    assert seconds is None if wait is None else seconds is not None and wait[0] <= seconds <= wait[1]


async def test_a_server_that_is_busy_is_not_taken_for_an_old_one() -> None:
    async with Scripted(lambda visit: visit.answer(429, Retry_After="1")) as server:
        with pytest.raises(TooManyRequests, match="server/discover: the server answered 429"):
            async with Client(server.url):
                pass
        assert server.said() == ["POST server/discover"]


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
