"""Messages to a session outside of its calls, on the GET stream of its client."""

import asyncio
import json
from typing import Any

import pytest
from http_clients import TOOLS, ask, finished_call, leave, note, reply

from dovetail import Notification, Request, Server
from dovetail.errors import QuestionFailed
from dovetail.state.memory import MemoryState
from dovetail.transports.http import get_stream
from http_serving import Serve, settle
from http_wire import HANDSHAKE, HttpWire
from server_requests import AskingStage, answer_to


@pytest.fixture
async def stage() -> AskingStage:
    return AskingStage()


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SH-17", "SH-20", "EL-18")
async def test_a_message_goes_on_one_stream(stage: AskingStage, app: Any, version: str) -> None:
    wire, other = await HttpWire.session(app, version), await HttpWire.session(app, version)
    streams = [await each.get().started() for each in (wire, other)]
    call = ask(wire)
    question = await call.message()
    channel = stage.contexts[-1].channel
    await channel.notify(note("during"))
    assert (await call.message())["params"]["data"] == "during"
    await reply(wire, answer_to(question, {}))
    await call.done()
    await channel.notify(note("after"))
    assert (await streams[0].message())["params"]["data"] == "after"
    with pytest.raises(QuestionFailed, match="the call is over"):
        channel.pending("roots/list", 5)
    await settle()
    assert len(streams[0].messages) == 1
    assert streams[1].messages == []
    await leave(*streams)


@pytest.mark.rule("SH-21", "SH-22", "SH-23")
async def test_coming_back_gives_what_was_missed_of_both_once(stage: AskingStage, wire: HttpWire) -> None:
    channel = await finished_call(stage, wire)
    stream = await wire.get().started()
    for number in range(4):
        stage.change_tools()
        assert (await stream.message())["method"] == TOOLS
        await channel.notify(note(number))
        assert (await stream.message())["params"]["data"] == number
    await leave(stream)
    primed = await wire.get(stream.events[-1].id).started()
    await leave(primed)
    events = [event for event in stream.events if event.data] + primed.events[:1]
    assert len({event.id for event in events}) == 9
    assert all(event.id.startswith("changes.") for event in events)
    for place, event in enumerate(events):
        again = wire.get(event.id)
        wanted = [json.loads(each.data).get("params", {}).get("data") for each in events[place + 1 : 8]]
        await settle()
        received = [each.get("params", {}).get("data") for each in again.messages]
        assert [each for each in received if each is not None] == [each for each in wanted if each is not None]
        assert received.count(None) == min(1, wanted.count(None))  # changes are notified once, however many there were
        await leave(again)


async def test_only_so_many_messages_are_kept_and_fewer_of_large_ones(stage: AskingStage, wire: HttpWire) -> None:
    channel, most = await finished_call(stage, wire), get_stream.MAX_MESSAGES
    for large, kept in (("", range(50, most + 50)), ("x" * (get_stream.MAX_BYTES // 4), range(most + 47, most + 50))):
        for number in range(most + 50):
            await channel.notify(note([number, large]))
        stream = await wire.get().started()
        await stream.until(lambda stream=stream: bool(stream.messages))
        await settle()
        assert [each["params"]["data"][0] for each in stream.messages] == list(kept)
        await leave(stream)
        again = await wire.get().started()
        await settle()
        assert again.messages == []
        await leave(again)


async def test_messages_end_with_their_session(stage: AskingStage, app: Any, wire: HttpWire) -> None:
    channel = await finished_call(stage, wire)
    await channel.notify(note("kept"))
    await wire.delete()
    await channel.notify(note("for no client"))
    assert app._state.held == 2  # the log of the call, and for a while that its session was ended


async def test_places_of_before_there_were_messages_and_beyond_the_log_are_some_too(
    stage: AskingStage, wire: HttpWire
) -> None:
    """The log may have expired meanwhile, and another one begun."""
    channel = await finished_call(stage, wire)
    await channel.notify(note("new"))
    for place in ("changes.0", "changes.0-99"):
        again = wire.get(place)
        assert (await again.message())["params"]["data"] == "new"
        assert again.events[-1].id == "changes.0-1"
        await leave(again)


async def test_messages_that_can_not_be_stored_hurt_no_call(
    stage: AskingStage, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    wire = await HttpWire.session(await serve(state=MemoryState(max_log_bytes=10000)))
    await (await finished_call(stage, wire)).notify(note("x" * 20_000))
    assert "stored" in caplog.text


async def test_hooks_hear_of_notifications(serve: Serve) -> None:
    server, heard = Server("hooks"), asyncio.Queue[Any]()

    @server.middleware
    class Listener:
        async def on_message(self, context: Request | Notification, call_next: Any) -> Any:
            if isinstance(context, Notification):
                heard.put_nowait((context.method, context.params.get("reason"), context.revision.name))
            return await call_next(context)

    wire = await HttpWire.session(await serve(server), "2025-06-18")
    assert await heard.get() == ("notifications/initialized", None, "2025-06-18")
    answer = await wire.notify("notifications/cancelled", {"requestId": 9, "reason": "bored"})
    assert answer.status == 202
    assert await heard.get() == ("notifications/cancelled", "bored", "2025-06-18")
