"""Questions of a server of 2026-07-28: a result that asks, and the same request again with the answers."""

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest
from asking_server import (
    MODERN,
    ROOTS,
    complete,
    elicitation,
    interim,
    sampling,
    url_elicitation,
)
from rounds_script import ADA, CALL, script, sent
from served_http import DISCOVERED, Scripted, Visit

from dovetail import Client
from dovetail.client import rounds
from dovetail.errors import BadAnswer, SetupError, ToolError

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(rounds, "LONGEST_PAUSE_SECONDS", 0.002)


# ── the loop ──


@pytest.mark.rule("MRTR-17")
async def test_a_call_of_two_rounds(connect: Any) -> None:
    behave = script(interim({"who": elicitation()}, "s1"), interim({"where": elicitation("Where?")}, "s2"), complete())
    client, server = connect(MODERN, behave, elicitation_handler=lambda question: {"name": question.message})
    async with client:
        assert (await client.call_tool("t", {"a": 1})).text == "done"
    first, second = {"content": {"name": "Your name?"}}, {"content": {"name": "Where?"}}
    assert sent(server) == [
        CALL,
        {**CALL, "inputResponses": {"who": {"action": "accept", **first}}, "requestState": "s1"},
        {**CALL, "inputResponses": {"where": {"action": "accept", **second}}, "requestState": "s2"},
    ]
    ids = [call["id"] for call in server.calls()]
    assert len(set(ids)) == 3
    stamps = [call["params"]["_meta"] for call in server.calls()]
    assert stamps[0] == stamps[1] == stamps[2]
    assert stamps[0]["io.modelcontextprotocol/clientCapabilities"] == {"elicitation": {"form": {}, "url": {}}}


ASKS = {
    "tools/call": (lambda client: client.call_tool("t", {"a": 1}), CALL, {"content": []}),
    "prompts/get": (lambda client: client.get_prompt("p"), {"name": "p"}, {"messages": []}),
    "resources/read": (lambda client: client.read_resource("a://b"), {"uri": "a://b"}, {"contents": []}),
}


@pytest.mark.parametrize("method", ASKS)
async def test_the_three_methods_that_may_ask(connect: Any, method: str) -> None:
    act, params, value = ASKS[method]
    asked = interim({"e": elicitation(), "u": url_elicitation(), "s": sampling(), "r": ROOTS}, "state")
    client, server = connect(
        MODERN,
        script(asked, complete({**value, "ttlMs": 0, "cacheScope": "private"})),
        elicitation_handler=lambda question: "Ada",
        sampling_handler=lambda request: "Hi.",
        roots=["/x"],
    )
    async with client:
        await act(client)
    again = sent(server, method)[1]
    responses = again.pop("inputResponses")
    assert again == {**params, "requestState": "state"}
    assert list(responses) == ["e", "u", "s", "r"]
    assert (responses["e"], responses["u"]) == (ADA, {"action": "accept"})
    assert responses["s"]["content"]["text"] == "Hi."
    assert responses["r"] == {"roots": [{"uri": "file:///x"}]}


async def test_a_state_goes_back_as_it_came(connect: Any) -> None:
    state = 'ü "\\ \u2028 \U0001f600 /' + "x" * 1000
    client, server = connect(
        MODERN, script(interim({"who": elicitation()}, state), complete()), elicitation_handler=lambda question: None
    )
    async with client:
        await client.call_tool("t")
    assert sent(server)[1]["requestState"] == state


async def test_no_state_makes_none_and_no_call_has_that_of_another(connect: Any) -> None:
    """As the official suite's sep-2322-client-request-state asks for it."""

    def behave(message: dict[str, Any]) -> Any:
        params = message["params"]
        again = "inputResponses" in params
        match params["name"]:
            case "echo_state":
                return complete() if again else interim({"who": elicitation()}, "secret")
            case "no_state":
                return complete() if again else interim({"who": elicitation()})
            case "unrelated":
                return complete()
        return {"content": [{"type": "text", "text": "done"}]}  # no_result_type

    client, server = connect(MODERN, behave, elicitation_handler=lambda question: "Ada")
    names = ["echo_state", "no_state", "unrelated", "no_result_type"]
    async with client:
        results = await asyncio.gather(*(client.call_tool(name) for name in names * 3))
    assert [result.text for result in results] == ["done"] * 12
    for params in sent(server):
        assert ("requestState" in params) == (params["name"] == "echo_state" and "inputResponses" in params)
        assert ("inputResponses" in params) <= (params["name"] in ("echo_state", "no_state"))
    assert len({call["id"] for call in server.calls()}) == len(server.calls()) == 3 * (2 + 2 + 1 + 1)


async def test_only_the_latest_state_and_answers_are_sent(connect: Any) -> None:
    behave = script(interim({"a": elicitation()}, "s1"), interim({"b": elicitation()}), interim(state="s3"), complete())
    client, server = connect(MODERN, behave, elicitation_handler=lambda question: "Ada")
    async with client:
        await client.call_tool("t", {"a": 1})
    assert sent(server)[1:] == [
        {**CALL, "inputResponses": {"a": ADA}, "requestState": "s1"},
        {**CALL, "inputResponses": {"b": ADA}},
        {**CALL, "requestState": "s3"},
    ]


async def test_each_round_has_its_progress_its_log_level_and_its_time(connect: Any) -> None:
    behave = script(interim({"who": elicitation()}), complete())

    async def slowly(question: Any) -> str:
        await asyncio.sleep(0.4)
        return "Ada"

    client, server = connect(MODERN, behave, elicitation_handler=slowly, timeout=0.3)
    async with client:
        await client.call_tool("t", progress_handler=print, log_level="error")
    metas = [(call["id"], call["params"]["_meta"]) for call in server.calls()]
    assert [meta["progressToken"] for _, meta in metas] == [id for id, _ in metas]
    assert {meta["io.modelcontextprotocol/logLevel"] for _, meta in metas} == {"error"}


async def test_a_round_that_is_not_answered_in_time(connect: Any) -> None:
    behave = script(interim({"who": elicitation()}), None)
    client, _ = connect(MODERN, behave, elicitation_handler=lambda question: "Ada", timeout=0.05)
    async with client:
        with pytest.raises(TimeoutError, match="tools/call"):
            await client.call_tool("t")


async def test_a_tool_that_fails_after_a_question(connect: Any) -> None:
    failed = complete({"content": [{"type": "text", "text": "Nobody is called that."}], "isError": True})
    client, _ = connect(
        MODERN, script(interim({"who": elicitation()}), failed), elicitation_handler=lambda question: "Ada"
    )
    async with client:
        with pytest.raises(ToolError, match="Nobody is called that"):
            await client.call_tool("t")


async def test_any_request_stays_as_it_is(connect: Any) -> None:
    asked = interim({"who": elicitation()}, "s")
    client, server = connect(MODERN, script(asked), elicitation_handler=lambda question: "Ada")
    async with client:
        assert await client.request("tools/call", CALL) == asked
    assert len(server.calls()) == 1


# ── the end of it ──


@pytest.mark.parametrize("limit", [0, 1, 5, 32])
async def test_there_is_an_end_to_the_rounds(connect: Any, limit: int) -> None:
    client, server = connect(
        MODERN,
        script(interim({"who": elicitation()}, "s")),
        elicitation_handler=lambda question: "Ada",
        max_rounds=limit,
    )
    async with client:
        with pytest.raises(BadAnswer, match=f"tools/call: the server still asks for more after {limit} rounds"):
            await client.call_tool("t")
    assert len(server.calls()) == limit + 1


async def test_the_last_round_may_be_the_answer(connect: Any) -> None:
    asked = interim({"who": elicitation()})
    client, _ = connect(
        MODERN, script(asked, asked, complete()), elicitation_handler=lambda question: "Ada", max_rounds=2
    )
    async with client:
        assert (await client.call_tool("t")).text == "done"


def test_a_number_of_rounds_that_is_none(connect: Any) -> None:
    with pytest.raises(SetupError, match="max_rounds=-1"):
        connect(MODERN, max_rounds=-1)


@pytest.mark.rule("MRTR-20")
async def test_a_server_that_only_wants_to_be_asked_again(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    waits = [interim(state=str(number)) for number in range(4)]
    behave = script(*waits, interim({"who": elicitation()}, "4"), interim(requests={}, state="5"), complete())
    client, server = connect(MODERN, behave, elicitation_handler=lambda question: "Ada")
    monkeypatch.setattr(rounds, "LONGEST_PAUSE_SECONDS", 0.003)
    async with client:
        monkeypatch.setattr(rounds.asyncio, "sleep", note)
        assert (await client.call_tool("t")).text == "done"
        monkeypatch.undo()
    assert [params.get("requestState") for params in sent(server)] == [None, "0", "1", "2", "3", "4", "5"]
    assert [number for number, params in enumerate(sent(server)) if "inputResponses" in params] == [5]
    assert pauses == [0.001, 0.002, 0.003, 0.003, 0.001]  # a question in between begins anew


# ── over HTTP ──


SCHEMA = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


class Headers:
    """A modern HTTP server with a tool whose argument travels as a header too, and that asks once."""

    def __init__(self, *, changes: bool = False) -> None:
        self.changes = changes
        self.schema: dict[str, Any] = json.loads(json.dumps(SCHEMA))

    def __call__(self, visit: Visit) -> Awaitable[None] | None:
        match visit.method:
            case "server/discover":
                visit.result(DISCOVERED)
            case "tools/list":
                tool = {"name": "t", "inputSchema": self.schema}
                visit.result({"resultType": "complete", "tools": [tool], "ttlMs": 0, "cacheScope": "private"})
            case "tools/call":
                self.call(visit)
        return None

    def call(self, visit: Visit) -> None:
        name = self.schema["properties"]["region"]["x-mcp-header"]
        if visit.headers.get(f"mcp-param-{name.lower()}") != "eu":
            visit.error(-32020, 400)
        elif "inputResponses" in visit.message["params"]:
            visit.result(complete())
        else:
            visit.result(interim({"who": elicitation()}, "s"))
            if self.changes:
                self.schema["properties"]["region"]["x-mcp-header"] = "Area"


@pytest.mark.parametrize("changes", [False, True])
async def test_headers_go_with_every_round(changes: bool) -> None:
    async with Scripted(Headers(changes=changes)) as server:
        async with Client(server.url, protocol_version=MODERN, elicitation_handler=lambda question: "Ada") as client:
            assert (await client.call_tool("t", {"region": "eu"})).text == "done"
        calls = [visit for visit in server.visits if visit.method == "tools/call"]
        assert [visit.headers.get("mcp-name") for visit in calls] == ["t"] * len(calls)
        last = calls[-1]
        assert last.headers["mcp-param-area" if changes else "mcp-param-region"] == "eu"
        assert last.message["params"]["inputResponses"] == {"who": ADA}
        assert last.message["params"]["requestState"] == "s"
        assert len(calls) == (3 if changes else 2)
