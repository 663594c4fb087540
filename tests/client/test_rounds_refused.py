"""Results that ask for what can't be answered, and handlers that go wrong: the call ends, in words."""

import asyncio
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
)
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds_script import script, sent

from dovetail import Client
from dovetail.client import rounds
from dovetail.errors import BadAnswer, ProtocolError

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(rounds, "LONGEST_PAUSE_SECONDS", 0.002)


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
    client, _ = connect(MODERN, script(interim({"r": ROOTS})), roots=[])
    async with client:
        with pytest.raises(BadAnswer, match=f"{method}: .*input_required"):
            await (client.list_tools() if method == "tools/list" else client.complete(prompt="p", argument="a"))


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
