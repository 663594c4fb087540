"""Questions of a server of 2026-07-28: a result that asks, and the same request again with the answers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from asking_server import (
    HANDSHAKES,
    MODERN,
    ROOTS,
    AskingServer,
    complete,
    elicitation,
    interim,
    sampling,
    url_elicitation,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from served_http import DISCOVERED, Scripted, Visit

from dovetail import Client
from dovetail.client import rounds
from dovetail.errors import BadAnswer, ProtocolError, SetupError, ToolError

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(rounds, "LONGEST_PAUSE_SECONDS", 0.002)


def script(*results: Any) -> Callable[[dict[str, Any]], Any]:
    """One result after the other, whatever is asked; the last one stays."""
    left = list(results)
    return lambda message: left.pop(0) if len(left) > 1 else left[0]


def sent(server: AskingServer, method: str = "tools/call") -> list[dict[str, Any]]:
    """The params of each request, without what is the same in all."""
    return [{k: v for k, v in call["params"].items() if k != "_meta"} for call in server.calls(method)]


CALL = {"name": "t", "arguments": {"a": 1}}
ADA = {"action": "accept", "content": {"name": "Ada"}}


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


# ── what can't be answered ──

CANT: dict[str, tuple[Any, str]] = {
    "no handler": ({"a": elicitation(), "b": sampling()}, "asks sampling/createMessage, which needs sampling_handler="),
    "unknown": ({"a": elicitation(), "b": {"method": "ping"}}, "asks ping, which this client does not know"),
    "no tools": ({"a": sampling(toolChoice={})}, "sampling"),
    "malformed": (
        {"a": elicitation(), "b": {"method": "elicitation/create"}},
        "can't be read: Invalid params: message",
    ),
    "no method": ({"a": {"params": {}}}, "does not fit"),
    "no object": ({"a": 7}, "does not fit"),
    "a list": ([elicitation()], "does not fit"),
    "params of no object": ({"a": {"method": "elicitation/create", "params": []}}, "can't be read"),
    "many": ({str(number): elicitation() for number in range(10_000)}, "more than 100 questions at once"),
    "text": ("who?", "does not fit"),
}


@pytest.mark.parametrize("case", CANT)
async def test_nobody_is_asked_what_can_not_be_answered_as_a_whole(connect: Any, case: str) -> None:
    requests, words = CANT[case]
    asked: list[Any] = []
    client, server = connect(MODERN, script(interim(requests, "s")), elicitation_handler=asked.append)
    async with client:
        with pytest.raises(BadAnswer, match=words) as caught:
            await client.call_tool("t")
    assert str(caught.value).startswith("tools/call: ")
    assert asked == []
    assert len(server.calls()) == 1  # it is not tried again


@pytest.mark.parametrize("empty", [{}, {"inputRequests": {}}, {"inputRequests": None}, {"inputRequests": {}, "x": 1}])
async def test_a_server_that_asks_nothing(connect: Any, empty: dict[str, Any]) -> None:
    client, _ = connect(MODERN, script({"resultType": "input_required", **empty}), roots=[])
    async with client:
        with pytest.raises(BadAnswer, match="asks nothing"):
            await client.call_tool("t")


async def test_a_state_that_is_null_is_none(connect: Any) -> None:
    asked = {**interim({"r": ROOTS}), "requestState": None}
    client, server = connect(MODERN, script(asked, complete()), roots=[])
    async with client:
        await client.call_tool("t")
    assert "requestState" not in sent(server)[1]


@pytest.mark.parametrize("state", [7, {}, ["s"], True])
async def test_a_state_that_is_none(connect: Any, state: Any) -> None:
    client, _ = connect(MODERN, script(interim({"r": ROOTS}, state)), roots=[])
    async with client:
        with pytest.raises(BadAnswer, match="requestState must be a string"):
            await client.call_tool("t")


async def test_a_huge_question(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_INTERIM_BYTES", 10_000)
    client, _ = connect(MODERN, script(interim({"who": elicitation("x" * 10_000)})), roots=[])
    async with client:
        with pytest.raises(BadAnswer, match="more than 10000 bytes"):
            await client.call_tool("t")


async def test_a_hundred_questions_at_once(connect: Any) -> None:
    requests = {str(number): elicitation(str(number)) for number in range(100)}
    client, server = connect(
        MODERN, script(interim(requests), complete()), elicitation_handler=lambda question: question.message
    )
    async with client:
        await client.call_tool("t")
    responses = sent(server)[1]["inputResponses"]
    assert all(response["content"] == {"name": key} for key, response in responses.items())
    assert len(responses) == 100


@pytest.mark.parametrize("method", ["tools/list", "completion/complete"])
async def test_other_methods_may_not_ask(connect: Any, method: str) -> None:
    client, server = connect(MODERN, script(interim({"r": ROOTS})), roots=[])
    async with client:
        with pytest.raises(BadAnswer, match=f"{method}: .*input_required"):
            await (client.list_tools() if method == "tools/list" else client.complete({"type": "ref/prompt"}, "a"))
    server.sent = server.sent[:1]  # the request for a completion is not a good one


@pytest.mark.parametrize("revision", HANDSHAKES)
async def test_older_revisions_do_not_ask_like_this(connect: Any, revision: str) -> None:
    client, server = connect(revision, script(interim({"r": ROOTS})), roots=[])
    async with client:
        with pytest.raises(BadAnswer, match="input_required"):
            await client.call_tool("t")
    assert len(server.calls()) == 1


@pytest.mark.parametrize("kind", ["task", "", "INPUT_REQUIRED", 7, None])
async def test_results_of_other_kinds(connect: Any, kind: Any) -> None:
    client, _ = connect(MODERN, script({**interim({"r": ROOTS}), "resultType": kind}), roots=[])
    async with client:
        with pytest.raises(BadAnswer, match="resultType"):
            await client.call_tool("t")


async def test_a_complete_result_may_hold_anything_else(connect: Any) -> None:
    client, _ = connect(MODERN, script(complete({"content": [], "inputRequests": 7, "requestState": 7})))
    async with client:
        assert (await client.call_tool("t")).data is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
REQUEST = st.fixed_dictionaries({}, optional={"method": st.sampled_from(["roots/list", "x"]) | JSON, "params": JSON})
INTERIM = st.fixed_dictionaries(
    {"resultType": st.just("input_required")},
    optional={"inputRequests": JSON | st.dictionaries(st.text(max_size=5), REQUEST), "requestState": JSON},
)


@settings(max_examples=100, deadline=None)
@given(asked=INTERIM)
def test_whatever_a_server_asks_a_call_ends(asked: dict[str, Any]) -> None:
    async def scenario() -> None:
        server = AskingServer(MODERN, script(asked, complete()))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dovetail.client.client.link_to", lambda *target, **options: server)
            client = Client(["any"], protocol_version=MODERN, roots=["/x"])
        async with client:
            with suppress(BadAnswer):
                assert (await client.call_tool("t")).text == "done"
        server.judge()

    asyncio.run(scenario())


# ── handlers ──


async def test_the_questions_of_a_round_are_asked_at_once(connect: Any) -> None:
    together = asyncio.Barrier(3)

    async def handler(question: Any) -> str:
        await asyncio.wait_for(together.wait(), 5)
        return question.message

    requests = {name: elicitation(name) for name in "abc"}
    client, server = connect(MODERN, script(interim(requests), complete()), elicitation_handler=handler)
    async with client:
        await client.call_tool("t")
    assert list(sent(server)[1]["inputResponses"]) == ["a", "b", "c"]


async def test_a_handler_that_fails_fails_the_call_and_stops_the_others(connect: Any) -> None:
    stopped = asyncio.Event()

    async def handler(question: Any) -> str:
        if question.message == "bad":
            await asyncio.sleep(0.01)
            raise ValueError("the dialogue is broken")
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return "never"

    requests = {"a": elicitation("good"), "b": elicitation("bad")}
    client, server = connect(MODERN, script(interim(requests)), elicitation_handler=handler)
    async with client:
        with pytest.raises(ValueError, match="the dialogue is broken"):
            await client.call_tool("t")
        assert stopped.is_set()
    assert len(server.calls()) == 1


async def test_a_rejected_sample_ends_the_call(connect: Any) -> None:
    client, server = connect(MODERN, script(interim({"s": sampling()})), sampling_handler=lambda request: None)
    async with client:
        with pytest.raises(ProtocolError, match="rejected"):
            await client.call_tool("t")
    assert len(server.calls()) == 1


async def test_cancelling_a_call_stops_its_handlers(connect: Any) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def handler(question: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    client, server = connect(MODERN, script(interim({"who": elicitation()})), elicitation_handler=handler)
    async with client:
        call = asyncio.create_task(client.call_tool("t"))
        await asyncio.wait_for(begun.wait(), 5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert stopped.is_set()
    assert len(server.calls()) == 1
    assert "notifications/cancelled" not in server.methods()  # the request had its answer


async def test_roots_are_those_of_the_moment(connect: Any) -> None:
    behave = script(interim({"r": ROOTS}), interim({"r": ROOTS}), complete())
    number = iter(range(9))
    client, server = connect(MODERN, behave, roots=lambda: [f"/{next(number)}"])
    async with client:
        await client.call_tool("t")
    uris = [params["inputResponses"]["r"]["roots"][0]["uri"] for params in sent(server)[1:]]
    assert uris == ["file:///0", "file:///1"]


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
