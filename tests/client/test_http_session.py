"""The handshake era over HTTP: sessions, and servers that forget them."""

import asyncio

import pytest
from served_http import Scripted, Visit, handshake, next_of, until
from session_script import TOOLS_CHANGED, VERSION, Announcing, answer, text, updated

from dovetail import Client
from dovetail.engine.streams import Change
from dovetail.errors import BadAnswer, ConnectionLost, ServerError

pytestmark = pytest.mark.usefixtures("brisk", "tidy")


# ── the session ──


async def test_a_session_from_beginning_to_end() -> None:
    def behave(visit: Visit) -> None:
        if visit.verb == "DELETE":
            visit.answer(204)
        elif not handshake(visit, Mcp_Session_Id="s-!~1"):
            visit.result(text("done"))

    async with Scripted(behave) as server:
        async with Client(server.url, protocol_version=VERSION) as client:
            await client.call_tool("any")
            await client._channel._link.attend()
        assert server.said()[0] == "POST initialize"
        assert sorted(server.said()[1:4]) == ["GET", "POST notifications/initialized", "POST tools/call"]
        assert server.said()[4:] == ["DELETE"]
        first, *later = server.visits
        assert "mcp-session-id" not in first.headers
        for visit in later:
            assert visit.headers["mcp-session-id"] == "s-!~1"
            assert visit.headers["mcp-protocol-version"] == VERSION
        get = next(visit for visit in later if visit.verb == "GET")
        assert get.headers["accept"] == "text/event-stream"
        assert "last-event-id" not in get.headers


@pytest.mark.parametrize("status", [200, 204, 404, 405, 500])
async def test_however_a_session_may_be_ended(status: int) -> None:
    def behave(visit: Visit) -> None:
        if visit.verb == "DELETE":
            visit.answer(status)
        else:
            handshake(visit, Mcp_Session_Id="s")

    async with Scripted(behave) as server:
        async with Client(server.url):
            pass
        assert server.said()[-1] == "DELETE"


@pytest.mark.parametrize("id", ["two words", "Grüße", "\x7f", "tab\tbed", ""])
async def test_a_session_id_that_is_none(id: str) -> None:
    async with Scripted(lambda visit: handshake(visit, Mcp_Session_Id=id) and None) as server:
        with pytest.raises(BadAnswer, match="initialize: the server's session id holds characters"):
            async with Client(server.url):
                pass


async def test_a_server_without_sessions() -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "tools/call":
            return visit.answer(404)
        return None if handshake(visit) else visit.result({})

    async with Scripted(behave) as server:
        async with Client(server.url) as client:
            with pytest.raises(ServerError, match="404 Not Found"):
                await client.call_tool("any")
            await client.ping()
        assert server.said().count("POST initialize") == 1
        assert "DELETE" not in server.said()


async def test_questions_on_a_stream_are_answered_by_post() -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "tools/call":
            visit.stream()
            visit.event({"jsonrpc": "2.0", "id": "p", "method": "ping"})
            visit.event({"jsonrpc": "2.0", "id": "r", "method": "roots/list"})
            visit.event(answer(visit, text("done")))
            visit.end()
        else:
            handshake(visit, Mcp_Session_Id="s")

    async with Scripted(behave) as server, Client(server.url) as client:
        await client.call_tool("any")
        await until(
            lambda: len([visit for visit in server.visits if "id" in (visit.message or {}) and not visit.method]) == 2
        )
        replies = {visit.message["id"]: visit for visit in server.visits if visit.message and not visit.method}
        assert replies["p"].message["result"] == {}
        assert replies["r"].message["error"]["code"] == -32601
        assert replies["p"].headers["mcp-session-id"] == "s"


# ── a session that the server forgot ──


async def test_the_next_request_opens_a_new_session() -> None:
    behave = Announcing()
    async with Scripted(behave) as server, Client(server.url) as client:
        await client.ping()
        behave.forgetful = True
        with pytest.raises(ConnectionLost, match="ping: the session ended: the server does not know it any more"):
            await client.ping()
        await asyncio.gather(*(client.ping() for _ in range(5)))
        assert behave.session == 2
        assert server.said().count("POST initialize") == 2
        assert server.said().count("POST notifications/initialized") == 2


@pytest.mark.parametrize("status", [400, 404, 405, 500, 503])
async def test_a_new_session_that_is_refused_for_a_moment(status: int) -> None:
    """As a gateway does while the server behind it is replaced; that says nothing about the transport."""
    known = Announcing()
    away = False

    async def behave(visit: Visit) -> None:
        if away:
            visit.answer(status)
        else:
            await known(visit)

    async with Scripted(behave) as server, Client(server.url, timeout=5) as client:
        await client.ping()
        known.forgetful = True
        with pytest.raises(ConnectionLost, match="the session ended"):
            await client.ping()
        away = True
        for _ in range(2):
            with pytest.raises((ServerError, ConnectionLost), match=f"initialize: the server answered {status} [^;]*$"):
                await client.ping()
        away = False
        await client.ping()
        assert known.session == 2


async def test_all_that_waits_is_told() -> None:
    session = 0

    async def behave(visit: Visit) -> None:
        nonlocal session
        if visit.method == "initialize":
            session += 1
        if visit.method == "slow":
            visit.stream()
            await visit.gone()
        elif visit.method == "gone":
            visit.answer(404)
        elif not handshake(visit, Mcp_Session_Id=f"s{session}"):
            visit.result({})

    async with Scripted(behave) as server, Client(server.url) as client:
        slow = [asyncio.create_task(client.request("slow")) for _ in range(3)]
        await until(lambda: server.said().count("POST slow") == 3)
        with pytest.raises(ConnectionLost, match="gone: the session ended"):
            await client.request("gone")
        for task in slow:
            with pytest.raises(ConnectionLost, match="slow: the session ended"):
                await task
        for visit in server.visits:
            if visit.method == "slow":
                await asyncio.wait_for(visit.gone(), 5)  # nobody will read what comes there
        await client.ping()
        assert session == 2
        with pytest.raises(ConnectionLost):  # and again, once for each loss
            await client.request("gone")
        await client.ping()
        assert session == 3


async def test_a_resumed_answer_whose_session_is_gone() -> None:
    def behave(visit: Visit) -> None:
        if visit.method == "tools/call":
            visit.stream()
            visit.event(None, id="1", retry=1)
            visit.cut()
        elif "last-event-id" in visit.headers:
            visit.answer(404)
        elif not handshake(visit, Mcp_Session_Id="s"):
            visit.result({})

    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(ConnectionLost, match="tools/call: the session ended"):
            await client.call_tool("any")
        await client.ping()
        assert server.said().count("POST initialize") == 2


async def test_what_was_agreed_in_the_session_is_agreed_again() -> None:
    behave = Announcing()
    async with Scripted(behave) as server, Client(server.url) as client:
        await client.set_log_level("warning")
        async with client.listen(tools=True, uris=["n://1", "n://2"]) as changes:
            begun = len(server.visits)
            behave.forgetful = True
            with pytest.raises(ConnectionLost):
                await client.ping()
            await client.ping()
            seen = [
                (visit.method, visit.message["params"].get("uri") or visit.message["params"].get("level"))
                for visit in server.visits[begun:]
                if visit.method in ("logging/setLevel", "resources/subscribe")
            ]
            assert seen == [
                ("logging/setLevel", "warning"), ("resources/subscribe", "n://1"), ("resources/subscribe", "n://2"),
            ]  # fmt: skip
            told = [await next_of(changes) for _ in range(3)]
            assert told == [Change("tools"), Change("updated", "n://1"), Change("updated", "n://2")]
            behave.streams[-1].event(updated("n://2"))
            assert await next_of(changes) == Change("updated", "n://2")
        assert server.said()[-2:] == ["POST resources/unsubscribe"] * 2


async def test_a_session_that_was_told_only_half_is_not_kept() -> None:
    behave = Announcing()
    broken = False

    async def sometimes(visit: Visit) -> None:
        if broken and visit.method == "resources/subscribe":
            visit.cut()
        else:
            await behave(visit)

    async with (
        Scripted(sometimes) as server,
        Client(server.url) as client,
        client.listen(uris=["n://1"]) as changes,
    ):
        behave.forgetful = broken = True
        with pytest.raises(ConnectionLost, match="session ended"):
            await client.ping()
        with pytest.raises(ConnectionLost, match=r"resources/subscribe: .*broke"):
            await client.ping()
        broken = False
        await client.ping()
        assert await next_of(changes) == Change("updated", "n://1")
        behave.streams[-1].event(updated("n://1"))
        assert await next_of(changes) == Change("updated", "n://1")


async def test_a_listener_does_not_wait_for_a_request() -> None:
    behave = Announcing()
    async with Scripted(behave) as server, Client(server.url) as client, client.listen(tools=True) as changes:
        behave.forgetful = True
        behave.streams[0].cut()
        assert await next_of(changes) == Change("tools")
        assert behave.session == 2
        behave.streams[-1].event(TOOLS_CHANGED)
        assert await next_of(changes) == Change("tools")


async def test_nobody_opens_a_session_that_nobody_needs() -> None:
    behave = Announcing()
    async with Scripted(behave) as server:
        async with Client(server.url) as client:
            async with client.listen(uris=["n://1"]):
                pass
            behave.forgetful = True
            behave.streams[0].cut()
            await until(lambda: client._channel._session_over)
            await asyncio.sleep(0.05)
        assert behave.session == 1
        assert "DELETE" not in server.said()


async def test_leaving_after_the_loss_needs_no_new_session() -> None:
    behave = Announcing()
    async with Scripted(behave) as server, Client(server.url) as client:
        with pytest.raises(ConnectionLost):  # noqa: PT012
            async with client.listen(uris=["n://1"]):
                behave.forgetful = True
                await client.ping()
        assert "POST resources/unsubscribe" not in server.said()


async def test_a_server_that_starts_again() -> None:
    """With a moment in between in which there is nobody."""
    first, second = Announcing(), Announcing()
    second.session = 10
    client = None
    async with Scripted(first) as server:
        client = Client(server.url, timeout=5)
        await client.__aenter__()
        listening = client.listen(tools=True)
        changes = await listening.__aenter__()
    port = int(server.origin.rpartition(":")[2])
    with pytest.raises(ConnectionLost, match="can't connect"):
        await client.ping()
    await asyncio.sleep(0.05)
    async with Scripted(second, port):
        assert await next_of(changes) == Change("tools")
        await client.ping()
        assert second.session == 11
        second.streams[-1].event(TOOLS_CHANGED)
        assert await next_of(changes) == Change("tools")
        await listening.__aexit__(None, None, None)
        await client.close()


async def test_a_new_session_that_can_not_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = False

    async def behave(visit: Visit) -> None:
        if broken and visit.method == "initialize":
            await visit.gone()
        elif broken:
            visit.answer(404)
        elif not handshake(visit, Mcp_Session_Id="s"):
            visit.result({})

    async with Scripted(behave) as server, Client(server.url) as client:
        broken = True
        with pytest.raises(ConnectionLost, match="session ended"):
            await client.ping()
        for _ in range(2):
            with pytest.raises(TimeoutError, match=r"ping: no new session within 0\.05 s"):
                await client.request("ping", timeout=0.05)
        broken = False
        await client.ping()


async def test_a_new_session_of_another_revision() -> None:
    version = "2025-11-25"

    def behave(visit: Visit) -> None:
        if visit.method == "gone":
            visit.answer(404)
        elif not handshake(visit, version, Mcp_Session_Id="s"):
            visit.result({})

    async with (
        Scripted(behave) as server,
        Client(server.url) as client,
        Client(server.url, protocol_version=version) as pinned,
    ):
        version = "2025-06-18"
        for each in (client, pinned):
            with pytest.raises(ConnectionLost):
                await each.request("gone")
        await client.ping()
        assert client.protocol_version == "2025-06-18"
        assert server.visits[-1].headers["mcp-protocol-version"] == "2025-06-18"
        with pytest.raises(BadAnswer, match="does not speak 2025-11-25; it offers 2025-06-18"):
            await pinned.ping()
