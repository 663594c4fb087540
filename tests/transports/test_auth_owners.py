"""What belongs to whom over HTTP: sessions, states and streams are there for their owner only."""

import pytest
from door_stage import Register, bearer
from old_client import connected

from http_serving import serving
from http_stage import HANDSHAKE, Stage
from http_wire import HttpWire


def stage_with_people() -> Stage:
    return Stage(auth=Register())


@pytest.mark.rule("SEC-7", "SEC-12", "AUTH-15")
@pytest.mark.parametrize("version", HANDSHAKE)
async def test_a_session_is_there_for_its_owner_only(version: str) -> None:
    stage = stage_with_people()
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, version, headers=bearer())
        stage.go.set()
        call = await wire.start_call("tell").done()
        event = next((each.id for each in call.events if each.id), None)
        thief = HttpWire(app, version, headers=bearer("bob-token"))
        thief.session_id = wire.session_id
        attempts = [
            thief.start_call("add", {"a": 1, "b": 1}),
            thief.get(),
            thief.get(event),
            thief.raw("DELETE"),
            thief.raw("POST", b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'),
            thief.raw("POST", b'{"jsonrpc":"2.0","id":"dovetail-1","result":{}}'),
        ]
        assert [(await each.done()).status for each in attempts] == [404] * len(attempts)
        thief.headers = {}
        assert (await thief.delete()).status == 401
        assert (await wire.call("add", {"a": 1, "b": 1})).status == 200
        wire.headers = bearer("ann-other")  # another token of the same user is as good
        assert (await wire.call("add", {"a": 1, "b": 1})).status == 200
        assert (await wire.delete()).status == 204


@pytest.mark.rule("SEC-7", "SEC-12")
async def test_the_stream_of_http_sse_is_its_owners() -> None:
    async with serving(stage_with_people().server) as app, connected(app, authorization="Bearer ann-token") as ann:
        ping = {"jsonrpc": "2.0", "id": 99, "method": "ping"}
        for header, status in (("Bearer bob-token", 404), ("Bearer bad", 401), (None, 401)):
            assert (await ann.post(ping, headers={"authorization": header}).done()).status == status
        # What is posted runs with the rights of the stream, so it takes the same rights to post.
        assert (await ann.post(ping, headers=bearer("ann-other")).done()).status == 404
        assert (await ann.ask("ping"))["result"] == {}
