"""The dispatcher: requests, responses, progress, cancellation, closing; and negotiation."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from typing import Any

import pytest
import scripted
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import RecordingHandler, ScriptedTransport, error, result

from dovetail.client.dispatcher import Dispatcher
from dovetail.client.negotiation import ClientIdentity, NegotiatedProtocol, Negotiation
from dovetail.errors import BadResponse, ConnectionLost, ServerError
from dovetail.protocol import revisions


@pytest.fixture
def transport() -> ScriptedTransport:
    return ScriptedTransport()


@pytest.fixture
def handler() -> RecordingHandler:
    return RecordingHandler()


@pytest.fixture
async def talk(transport: ScriptedTransport, handler: RecordingHandler) -> AsyncIterator[Dispatcher]:
    dispatcher = Dispatcher(transport, handler)
    await dispatcher.open()
    yield dispatcher
    await dispatcher.close()


async def begin(work: Any) -> "asyncio.Task[Any]":
    """Start a request and let it be sent."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    return task


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_batch", [False, True])
async def test_answers_are_matched_by_id_in_any_order(
    transport: ScriptedTransport, talk: Dispatcher, is_batch: bool
) -> None:
    first = await begin(talk.request("a", {}, timeout=5))
    second = await begin(talk.request("b", {"x": 1}, timeout=5))
    assert [message["method"] for message in transport.sent] == ["a", "b"]
    assert "params" not in transport.sent[0]
    answers = [result(transport.sent[1], {"who": "b"}), 7, result(transport.sent[0], {"who": "a"})]
    for message in [answers] if is_batch else answers:
        transport.say(message)
    assert [bytes(await each) for each in (first, second)] == [b'{"who": "a"}', b'{"who": "b"}']


@pytest.mark.rule("BASE-6")
async def test_an_id_of_another_type_is_another_id(transport: ScriptedTransport, talk: Dispatcher) -> None:
    task = await begin(talk.request("a", {}, timeout=5))
    id = transport.sent[0]["id"]
    for wrong in (str(id), float(id) + 0.5, id + 100, None, True):
        transport.say({"jsonrpc": "2.0", "id": wrong, "result": {"wrong": True}})
    await turn()
    assert not task.done()
    transport.say(result(transport.sent[0], {}))
    assert bytes(await task) == b"{}"


async def test_an_error_is_raised_with_code_and_data(transport: ScriptedTransport, talk: Dispatcher) -> None:
    task, other = [await begin(talk.request(method, {}, timeout=5)) for method in "ab"]
    transport.say(error(transport.sent[0], -32602, "bad", {"why": 1}))
    transport.say({"jsonrpc": "2.0", "id": transport.sent[1]["id"], "error": {"text": "oh"}})
    with pytest.raises(ServerError, match="bad") as caught:
        await task
    assert (caught.value.code, caught.value.message, caught.value.data) == (-32602, "bad", {"why": 1})
    with pytest.raises(BadResponse, match="code is missing"):
        await other


@pytest.mark.rule("CAN-6")
@pytest.mark.parametrize("cancellable", [True, False])
async def test_a_timeout_names_the_method_and_cancels(
    transport: ScriptedTransport, talk: Dispatcher, cancellable: bool
) -> None:
    with pytest.raises(TimeoutError, match=r"tools/call: no answer within 0\.01 s"):
        await talk.request("tools/call", {}, timeout=0.01, cancellable=cancellable)
    assert transport.methods() == ["tools/call", *["notifications/cancelled"] * cancellable]
    assert all(message["params"]["requestId"] == transport.sent[0]["id"] for message in transport.sent[1:])
    transport.say(result(transport.sent[0], {}))  # too late: dropped
    await turn()


@pytest.mark.rule("CAN-1")
async def test_a_cancelled_task_cancels_its_request_once(transport: ScriptedTransport, talk: Dispatcher) -> None:
    task = await begin(talk.request("a", {}, timeout=5))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert transport.methods() == ["a", "notifications/cancelled"]


@pytest.mark.rule("LIFE-10")
@pytest.mark.parametrize(("times", "max_timeout"), [(6, 60), (12, 20)], ids=["extends", "not for ever"])
async def test_progress_extends_the_wait(
    transport: ScriptedTransport, talk: Dispatcher, times: int, max_timeout: float
) -> None:
    """A request with 10 s of patience, and progress every 4 s."""
    loop, passed = asyncio.get_running_loop(), 0
    real = loop.time
    loop.time = lambda: real() + passed  # type: ignore[method-assign]
    task = await begin(talk.request("a", {}, timeout=10, max_timeout=max_timeout, on_progress=lambda *_: None))
    params = {"progressToken": transport.sent[-1]["params"]["_meta"]["progressToken"], "progress": 1}
    for _ in range(times):
        passed += 4
        await turn()
        transport.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        await turn()
    transport.say(result(transport.sent[0], {}))
    with nullcontext() if max_timeout == 60 else pytest.raises(TimeoutError, match=r"no answer within 20 s"):
        await task
    assert transport.methods() == ["a", *["notifications/cancelled"] * (max_timeout < 60)]


async def test_the_loss_of_the_server_reaches_everyone(
    transport: ScriptedTransport, handler: RecordingHandler, talk: Dispatcher
) -> None:
    tasks = [await begin(talk.request(method, {}, timeout=5)) for method in ("a", "b")]
    transport.die("it exited with code 3")
    for task, method in zip(tasks, "ab", strict=True):
        with pytest.raises(ConnectionLost, match=f"{method}: it exited with code 3"):
            await task
    assert handler.reasons == ["it exited with code 3"]
    with pytest.raises(ConnectionLost, match="exited with code 3"):
        await talk.request("c", {}, timeout=5)


async def test_closing_ends_what_waits(transport: ScriptedTransport, handler: RecordingHandler) -> None:
    dispatcher = Dispatcher(transport, handler)
    await dispatcher.open()
    task = await begin(dispatcher.request("a", {}, timeout=5))
    await dispatcher.close()
    with pytest.raises(ConnectionLost, match="the client was closed"):
        await task
    assert transport.closed == 1
    transport.say({"jsonrpc": "2.0", "method": "late"})
    await turn()
    assert handler.received == []


async def test_progress_goes_to_its_request_alone(
    transport: ScriptedTransport, handler: RecordingHandler, talk: Dispatcher
) -> None:
    seen: list[tuple[float, float | None, str | None]] = []
    task = await begin(
        talk.request("a", {"_meta": {"k": 1}}, timeout=5, on_progress=lambda *report: seen.append(report))
    )
    meta = transport.sent[0]["params"]["_meta"]
    assert meta["k"] == 1
    token = meta["progressToken"]
    for params in (
        {"progressToken": token, "progress": 1, "total": 2, "message": "half"},
        {"progressToken": 999, "progress": 1},
        {"progressToken": token},
        {"progressToken": token, "progress": 2},
    ):
        transport.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    transport.say(result(transport.sent[0], {}))
    await task
    assert seen == [(1.0, 2.0, "half"), (2.0, None, None)]
    assert handler.received == []


async def test_handlers_may_be_async_and_may_fail(transport: ScriptedTransport, talk: Dispatcher, caplog: Any) -> None:
    seen: list[float] = []

    async def handler(progress: float, *_: Any) -> None:
        seen.append(progress)
        raise ValueError("async boom")

    with caplog.at_level(logging.ERROR, "dovetail.client"):
        for on_progress in (handler, lambda *_: 1 / 0):
            task = await begin(talk.request("a", {}, timeout=5, on_progress=on_progress))
            params = {"progressToken": transport.sent[-1]["params"]["_meta"]["progressToken"], "progress": 3}
            transport.say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            transport.say(result(transport.sent[-1], {}))
            await task
    assert seen == [3.0]
    assert [record.getMessage() for record in caplog.records] == ["a handler of the client's failed"] * 2


JUNK = st.one_of(
    st.binary(max_size=60),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x"]), inner)
        ),
        max_leaves=12,
    ),
    st.fixed_dictionaries(
        {"jsonrpc": st.just("2.0")},
        optional={
            "id": st.integers(0, 3) | st.text(max_size=2) | st.none(),
            "method": st.sampled_from(["ping", "notifications/progress", "notifications/message", "x"]),
            "params": st.dictionaries(st.sampled_from(["progressToken", "progress"]), st.integers(0, 3)) | st.none(),
            "error": st.none() | st.dictionaries(st.sampled_from(["code", "message"]), st.integers()),
        },
    ),
)


@settings(max_examples=30, deadline=None)
@given(messages=st.lists(JUNK, max_size=6))
def test_the_next_response_is_received_after_any_messages(messages: list[Any]) -> None:
    async def scenario() -> None:
        transport = ScriptedTransport()
        dispatcher = Dispatcher(transport, RecordingHandler(), lambda direction, message: None)
        await dispatcher.open()
        for message in messages:
            transport.say(message)
        await turn()
        task = await begin(dispatcher.request("a", {}, timeout=5))
        asked = next(message for message in transport.sent if message.get("method") == "a")
        transport.say(result(asked, {"good": True}))
        assert bytes(await task) == b'{"good": true}'
        await dispatcher.close()

    asyncio.run(scenario())


IDENTITY = ClientIdentity({"name": "test", "version": "1"}, lambda revision: {"sampling": {}})
INFO = {"name": "fake", "version": "0"}

DISCOVERED = {
    **scripted.DISCOVERED, "instructions": "Hello.", "_meta": {"io.modelcontextprotocol/serverInfo": INFO},
}  # fmt: skip

Reply = Callable[[dict[str, Any]], list[dict[str, Any]]]


def unknown(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [error(message, -32601, "Method not found")]


def server(discover: Reply = unknown, versions: Any = revisions.HANDSHAKE, refusal: int = -32601) -> ScriptedTransport:
    """A server that answers `server/discover` as given, and speaks the given revisions behind a handshake."""

    def shake(message: dict[str, Any]) -> list[dict[str, Any]]:
        if not versions:
            return [error(message, refusal, "no handshake")]
        asked = message["params"]["protocolVersion"]
        agreed = asked if asked in versions else next(iter(versions))
        return [result(message, {"protocolVersion": agreed, "capabilities": {"tools": {}}, "serverInfo": INFO})]

    replies = {"server/discover": discover, "initialize": shake}
    return ScriptedTransport(lambda message: replies.get(message.get("method"), lambda _: [])(message))


async def settle(transport: ScriptedTransport, pinned: str | None = None, timeout: float = 5) -> NegotiatedProtocol:
    dispatcher = Dispatcher(transport, RecordingHandler())
    await dispatcher.open()
    try:
        revision = None if pinned is None else revisions.BY_NAME[pinned]
        return await Negotiation(dispatcher, IDENTITY, revision, timeout).run()
    finally:
        await dispatcher.close()


async def test_a_modern_server() -> None:
    transport = server(lambda message: [result(message, DISCOVERED)], versions=())
    agreed = await settle(transport)
    assert agreed.revision is revisions.R2026_07_28
    assert (agreed.capabilities, agreed.instructions) == ({"tools": {}}, "Hello.")
    assert agreed.server_info.name == "fake"
    assert transport.methods() == ["server/discover"]
    assert transport.sent[0]["params"]["_meta"] == {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"sampling": {}},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    }


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
    "an answer without a request": lambda message: [{"jsonrpc": "2.0", "id": 77, "result": DISCOVERED}],
}


@pytest.mark.parametrize("reply", NOT_MODERN.values(), ids=NOT_MODERN.keys())
async def test_anything_else_comes_from_an_old_server(reply: Reply) -> None:
    transport = server(reply)
    agreed = await settle(transport)
    assert agreed.revision is revisions.R2025_11_25
    assert transport.methods() == ["server/discover", "initialize", "notifications/initialized"]
    assert transport.sent[1]["params"] == {
        "protocolVersion": "2025-11-25",
        "capabilities": {"sampling": {}},
        "clientInfo": {"name": "test", "version": "1"},
    }


@pytest.mark.parametrize("version", revisions.HANDSHAKE)
async def test_a_pinned_handshake_asks_no_other_question(version: str) -> None:
    assert (await settle(server(versions=(version,)))).revision.name == version  # as the server chooses
    transport = server()
    assert (await settle(transport, version)).revision.name == version
    assert transport.methods() == ["initialize", "notifications/initialized"]


@pytest.mark.parametrize("code", [-32022, -32601])
async def test_a_modern_server_that_is_slow_to_start(code: int) -> None:
    """It answers neither in time nor to a handshake, and is asked once more."""
    asked: list[dict[str, Any]] = []

    def discover(message: dict[str, Any]) -> list[dict[str, Any]]:
        asked.append(message)
        return [result(message, DISCOVERED)] if len(asked) == 2 else []

    transport = server(discover, refusal=code, versions=())
    assert (await settle(transport)).revision.name == "2026-07-28"
    assert transport.methods() == ["server/discover", "initialize", "server/discover"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


def refusing(code: int, data: Any = None) -> ScriptedTransport:
    return server(lambda message: [error(message, code, "modern", data)])


DISCOVER, BOTH = ["server/discover"], ["server/discover", "initialize"]
REFUSED: list[tuple[ScriptedTransport, str | None, type[Exception], str, list[str]]] = [
    (server(versions=("2025-11-25",)), "2024-11-05", BadResponse, "does not speak 2024-11-05; it offers", BOTH[1:]),
    (server(), "2026-07-28", ServerError, "Method not found", DISCOVER),
    *((refusing(-32022, data), None, BadResponse, "No common protocol revision", DISCOVER)
      for data in (None, {"supported": ["2030-01-01"]}, {"supported": "all"}, [1])),
    *((refusing(code), None, ServerError, "modern", DISCOVER) for code in (-32020, -32021)),
    (server(versions=()), None, ServerError, "no handshake", BOTH),
    (server(refusal=-32603, versions=()), None, ServerError, "no handshake", BOTH),
]  # fmt: skip


@pytest.mark.parametrize(("transport", "pinned", "kind", "words", "methods"), REFUSED)
async def test_nothing_that_both_speak(
    transport: ScriptedTransport, pinned: str | None, kind: type[Exception], words: str, methods: list[str]
) -> None:
    with pytest.raises(kind, match=words):
        await settle(transport, pinned)
    assert transport.methods() == methods


async def test_a_server_that_goes_away_at_once() -> None:
    transport = ScriptedTransport(lambda message: transport.die("it exited with code 1") or [])
    with pytest.raises(ConnectionLost, match="exited with code 1"):
        await settle(transport)
