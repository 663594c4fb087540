"""Handshake clients without sessions (`stateless=True`): row 18, and no promise that only a session could keep."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from asked_server import (
    ANSWER,
    INVALID_REQUEST,
    LEGACY,
    NOT_FOUND,
    H,
    check_refusal,
    hello,
    message,
    modern,
    new_server,
    post,
)

from http_wire import MODERN, Exchange, HttpWire

every_revision = pytest.mark.parametrize("version", LEGACY)


@pytest.fixture
async def app() -> AsyncIterator[Any]:
    app = new_server().asgi(stateless=True)
    yield app
    await app.drain(0)


async def ask(app: Any, version: str | None, method: str, params: Any = ..., **options: Any) -> Exchange:
    return await post(HttpWire(app, **options), message(method, params), {"mcp-protocol-version": version})


@every_revision
@pytest.mark.rule("SH-25", "LIFE-2", "LIFE-3")
@pytest.mark.parametrize("header", [None, *LEGACY])
async def test_row_14_the_handshake_gives_no_session(app: Any, version: str, header: str) -> None:
    answer = await post(HttpWire(app), hello(version), {"mcp-protocol-version": header})
    assert answer.status == 200
    assert answer.json["result"]["protocolVersion"] == version
    assert "mcp-session-id" not in answer.headers


@every_revision
@pytest.mark.rule("LIFE-7")
async def test_the_handshake_promises_nothing_that_needs_a_session(app: Any, version: str) -> None:
    capabilities = (await post(HttpWire(app), hello(version))).json["result"]["capabilities"]
    assert capabilities.pop("completions", {}) == {}
    assert capabilities == {"tools": {}, "resources": {}, "prompts": {}}


@every_revision
@pytest.mark.rule("BASE-19", "LIFE-7")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/subscribe", {"uri": "notes://all"}),
        ("resources/unsubscribe", {"uri": "notes://all"}),
        ("logging/setLevel", {"level": "debug"}),
    ],
)
async def test_what_needs_a_session_is_refused_and_the_refusal_says_why(
    app: Any, version: str, method: str, params: Any
) -> None:
    text = check_refusal(await ask(app, version, method, params), 200, NOT_FOUND, "q")
    assert method in text
    assert "session" in text


@every_revision
@pytest.mark.rule("LOG-1")
async def test_no_log_message_is_sent_where_logging_is_not_promised(app: Any, version: str) -> None:
    assert (await ask(app, version, "tools/call", {"name": "talk"})).json["result"]["content"][0]["text"] == "done"


@pytest.mark.rule("MH-28", "LIFE-21")
async def test_the_modern_era_is_promised_as_much_as_ever(app: Any) -> None:
    with_sessions = await HttpWire(new_server().asgi()).ask("server/discover")
    found = await HttpWire(app).ask("server/discover")
    assert found["capabilities"] == with_sessions["capabilities"]
    assert found["capabilities"]["resources"] == {"subscribe": True, "listChanged": True}
    listen = HttpWire(app).start("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    assert (await listen.message())["params"]["notifications"] == {"toolsListChanged": True}
    listen.leave()
    await listen.done()


@every_revision
@pytest.mark.rule("SH-8", "SH-31")
@pytest.mark.parametrize("session", [None, "whatever"])
async def test_row_18_is_served_at_the_version_of_the_header(app: Any, version: str, session: str) -> None:
    headers = {"mcp-protocol-version": version, "mcp-session-id": session}
    answer = await post(HttpWire(app), message("tools/list"), headers)
    assert answer.status == 200
    assert ("outputSchema" in answer.json["result"]["tools"][0]) == (version >= "2025-06-18")
    assert "mcp-session-id" not in answer.headers


@pytest.mark.rule("SH-31")
async def test_row_18_without_a_header_it_is_2025_03_26(app: Any) -> None:
    assert "outputSchema" not in (await ask(app, None, "tools/list")).json["result"]["tools"][0]
    answers = (await post(HttpWire(app), [message("ping", id=1), message("ping", id=2)])).json
    assert [each["id"] for each in answers] == [1, 2]


@pytest.mark.rule("SH-5", "BASE-11", "BASE-12")
async def test_batches(app: Any) -> None:
    for headers in ({}, H("2025-03-26")):
        parts = [message("ping", id=1), message("x/y", id=None), hello("2025-03-26"), modern("tools/list", id=2)]
        answers = (await post(HttpWire(app), parts, headers)).json
        assert [(each["id"], "error" in each) for each in answers] == [(1, False), ("q", True), (2, True)]
        assert (await post(HttpWire(app), [ANSWER], headers)).status == 202
    for version in (*LEGACY, MODERN, "banana"):
        if version != "2025-03-26":
            refused = await post(HttpWire(app), [message("ping")], H(version))
            check_refusal(refused, 400, INVALID_REQUEST)


@every_revision
@pytest.mark.rule("SH-6")
@pytest.mark.parametrize(
    "body", [message("notifications/initialized", id=None), ANSWER], ids=["notification", "answer"]
)
async def test_row_19_is_accepted(app: Any, version: str, body: Any) -> None:
    for header in (version, None):
        answer = await post(HttpWire(app), body, {"mcp-protocol-version": header})
        assert (answer.status, answer.raw) == (202, b"")


@pytest.mark.rule("SH-16", "SH-30", "MH-28")
@pytest.mark.parametrize("verb", ["GET", "DELETE"])
@pytest.mark.parametrize("version", [None, *LEGACY, MODERN, "banana"])
@pytest.mark.parametrize("session", [None, "whatever"])
async def test_there_is_nothing_to_get_or_delete(app: Any, verb: str, version: str, session: str) -> None:
    headers = {"mcp-protocol-version": version, "mcp-session-id": session}
    answer = await HttpWire(app).raw(verb, b"", headers).done()
    check_refusal(answer, 405, INVALID_REQUEST)
    assert {each.strip() for each in answer.headers["allow"].split(",")} == {"POST", "OPTIONS"}


@every_revision
@pytest.mark.rule("SH-8", "SH-11", "SH-14", "PROG-1")
async def test_a_call_may_still_tell_its_progress(app: Any, version: str) -> None:
    params = {"name": "chatty", "_meta": {"progressToken": "t"}}
    answer = await ask(app, version, "tools/call", params)
    assert [each["params"]["progress"] for each in answer.messages[:-1]] == [1, 2]
    assert answer.answer["id"] == "q"
    assert not any(event.id for event in answer.events), "there is nothing to come back to"
