"""How a client finds out which revision an unknown server speaks."""

from collections.abc import Callable
from typing import Any

import pytest
from scripted_link import Crowd, ScriptedLink, error, result

from dovetail import BadAnswer
from dovetail.client import era
from dovetail.client.conversation import Conversation
from dovetail.client.era import Agreement, Identity, agree
from dovetail.errors import ConnectionLost, ServerError
from dovetail.protocol import revisions

IDENTITY = Identity({"name": "test", "version": "1"}, lambda revision: {"sampling": {}})
INFO = {"name": "fake", "version": "0"}
DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "instructions": "Hello.",
    "ttlMs": 0,
    "cacheScope": "private",
    "_meta": {"io.modelcontextprotocol/serverInfo": INFO},
}
Reply = Callable[[dict[str, Any]], list[dict[str, Any]]]


def server(
    discover: Reply | None = None, *, versions: tuple[str, ...] = tuple(revisions.HANDSHAKE), latest: str = "2025-11-25"
) -> ScriptedLink:
    """A server that answers `server/discover` as told, and speaks the given revisions behind a handshake."""

    def answer(message: dict[str, Any]) -> list[dict[str, Any]]:
        if message.get("method") == "server/discover":
            return discover(message) if discover is not None else [error(message, -32601, "Method not found")]
        if message.get("method") == "initialize":
            if not versions:
                return [error(message, -32601, "Method not found")]
            asked = message["params"]["protocolVersion"]
            agreed = asked if asked in versions else latest
            return [result(message, {"protocolVersion": agreed, "capabilities": {"tools": {}}, "serverInfo": INFO})]
        return []

    return ScriptedLink(answer)


async def settle(link: ScriptedLink, pinned: str | None = None, timeout: float = 5) -> Agreement:
    conversation = Conversation(link, Crowd())
    await conversation.open()
    try:
        return await agree(conversation, IDENTITY, None if pinned is None else revisions.BY_NAME[pinned], timeout)
    finally:
        await conversation.close()


async def test_a_modern_server() -> None:
    link = server(lambda message: [result(message, DISCOVERED)], versions=())
    agreed = await settle(link)
    assert agreed.revision is revisions.R2026_07_28
    assert (agreed.capabilities, agreed.instructions) == ({"tools": {}}, "Hello.")
    assert agreed.server_info is not None
    assert agreed.server_info.name == "fake"
    assert link.methods() == ["server/discover"]
    assert link.sent[0]["params"]["_meta"] == {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"sampling": {}},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    }


@pytest.mark.parametrize("info", [None, 7, {"name": "no version"}])
async def test_a_modern_server_that_does_not_say_who_it_is(info: Any) -> None:
    found = {**DISCOVERED, "_meta": {"io.modelcontextprotocol/serverInfo": info}}
    assert (await settle(server(lambda message: [result(message, found)]))).server_info is None


NOT_MODERN: dict[str, Reply] = {
    "method not found": lambda message: [error(message, -32601)],
    "invalid request": lambda message: [error(message, -32600, "not initialised")],
    "invalid params": lambda message: [error(message, -32602)],
    "an error of its own": lambda message: [error(message, -32000)],
    "an empty result": lambda message: [result(message, {})],
    "some other result": lambda message: [result(message, {"tools": []})],
    "a result that is no object": lambda message: [result(message, [1])],
    "an error without code": lambda message: [{"jsonrpc": "2.0", "id": message["id"], "error": {}}],
    "silence": lambda message: [],
    "an answer to nobody": lambda message: [{"jsonrpc": "2.0", "id": 77, "result": DISCOVERED}],
}


@pytest.mark.parametrize("reply", NOT_MODERN.values(), ids=NOT_MODERN.keys())
async def test_anything_else_comes_from_an_old_server(reply: Reply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(era, "PROBE_SECONDS", 0.02)
    link = server(reply)
    agreed = await settle(link)
    assert agreed.revision is revisions.R2025_11_25
    assert link.methods() == ["server/discover", "initialize", "notifications/initialized"]
    assert link.sent[1]["params"] == {
        "protocolVersion": "2025-11-25",
        "capabilities": {"sampling": {}},
        "clientInfo": {"name": "test", "version": "1"},
    }


@pytest.mark.parametrize("version", revisions.HANDSHAKE)
async def test_an_old_server_chooses_what_it_speaks(version: str) -> None:
    agreed = await settle(server(versions=(version,), latest=version))
    assert agreed.revision.name == version


@pytest.mark.parametrize("version", revisions.HANDSHAKE)
async def test_a_pinned_handshake_asks_no_other_question(version: str) -> None:
    link = server()
    assert (await settle(link, version)).revision.name == version
    assert link.methods() == ["initialize", "notifications/initialized"]


async def test_a_pinned_revision_that_the_server_does_not_speak() -> None:
    with pytest.raises(BadAnswer, match="does not speak 2024-11-05; it offers 2025-11-25"):
        await settle(server(versions=("2025-11-25",)), "2024-11-05")


async def test_a_pinned_modern_revision_on_an_old_server() -> None:
    with pytest.raises(ServerError, match="Method not found"):
        await settle(server(), "2026-07-28")


async def test_a_future_server_that_still_knows_the_handshake() -> None:
    refusal = {"supported": ["2030-01-01", "2025-06-18", "2024-11-05"], "requested": "2026-07-28"}
    link = server(lambda message: [error(message, -32022, "unsupported", refusal)])
    assert (await settle(link)).revision.name == "2025-06-18"


@pytest.mark.parametrize("data", [None, {"supported": ["2030-01-01"]}, {"supported": "all"}, [1]])
async def test_nothing_in_common(data: Any) -> None:
    link = server(lambda message: [error(message, -32022, "unsupported", data)])
    with pytest.raises(BadAnswer, match="No common protocol revision"):
        await settle(link)
    assert link.methods() == ["server/discover"]


@pytest.mark.parametrize("pinned", [None, "2026-07-28"])
async def test_a_server_that_refuses_what_it_speaks_is_asked_once_more(pinned: str | None) -> None:
    refusals = iter([{"supported": ["2026-07-28"], "requested": "2026-07-28"}])

    def waver(message: dict[str, Any]) -> list[dict[str, Any]]:
        refusal = next(refusals, None)
        return [result(message, DISCOVERED) if refusal is None else error(message, -32022, "unsupported", refusal)]

    link = server(waver)
    assert (await settle(link, pinned)).revision is revisions.R2026_07_28
    assert link.methods() == ["server/discover", "server/discover"]


@pytest.mark.parametrize("pinned", [None, "2026-07-28"])
async def test_but_not_for_ever(pinned: str | None) -> None:
    link = server(lambda message: [error(message, -32022, "unsupported", {"supported": ["2026-07-28"]})])
    with pytest.raises(ServerError, match="unsupported"):
        await settle(link, pinned)
    assert link.methods() == ["server/discover", "server/discover"]


@pytest.mark.parametrize("code", [-32020, -32021])
async def test_a_modern_refusal_is_not_taken_for_an_old_server(code: int) -> None:
    link = server(lambda message: [error(message, code, "modern")])
    with pytest.raises(ServerError, match="modern"):
        await settle(link)
    assert link.methods() == ["server/discover"]


async def test_a_handshake_that_agrees_on_something_unknown() -> None:
    with pytest.raises(BadAnswer, match="the server speaks 1999-01-01"):
        await settle(server(versions=("1999-01-01",), latest="1999-01-01"))


async def test_a_handshake_that_never_ends() -> None:
    link = ScriptedLink()
    with pytest.raises(TimeoutError, match=r"initialize: no answer within 0\.02 s"):
        await settle(link, timeout=0.02)
    assert link.methods() == ["server/discover", "initialize"]  # and no cancellation of either


async def test_a_server_that_goes_away_at_once() -> None:
    link = ScriptedLink()

    def die(message: dict[str, Any]) -> list[dict[str, Any]]:
        link.die("it exited with code 1")
        return []

    link._answer = die
    with pytest.raises(ConnectionLost, match="exited with code 1"):
        await settle(link)
