"""What belongs to whom over HTTP: sessions, states and streams are there for their owner only."""

from typing import Any

import pytest
from door_stage import Register, bearer, notes
from old_client import connected

from dovetail import Context, Server
from http_serving import serving
from http_stage import HANDSHAKE, Stage, text_of
from http_wire import HttpWire
from replaying import EVERYTHING, retry


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


@pytest.mark.rule("SEC-8")
async def test_a_request_state_is_good_for_its_owner_only() -> None:
    server = Server("bank", version="1.0.0", auth=Register())

    @server.tool
    async def pay(ctx: Context) -> str:
        return f"paid: {(await ctx.elicit('Sure?', str)).data}"

    async with serving(server) as app:
        ann, bob = (HttpWire(app, headers=bearer(token)) for token in ("ann-token", "bob-token"))
        meta = {"io.modelcontextprotocol/clientCapabilities": EVERYTHING}
        params: dict[str, Any] = {"name": "pay", "arguments": {}, "_meta": meta}
        again = {**params, **retry(await ann.ask("tools/call", params), {"Sure?": "yes"})}
        refused = await bob.post("tools/call", again)
        assert "error" in refused.answer
        ann.headers = bearer("ann-other")
        assert text_of({"result": await ann.ask("tools/call", again)}) == "paid: yes"


@pytest.mark.rule("SEC-7", "SEC-12")
async def test_the_stream_of_http_sse_is_its_owners() -> None:
    async with serving(stage_with_people().server) as app, connected(app, authorization="Bearer ann-token") as ann:
        ping = {"jsonrpc": "2.0", "id": 99, "method": "ping"}
        for header, status in (("Bearer bob-token", 404), ("Bearer bad", 401), (None, 401)):
            assert (await ann.post(ping, headers={"authorization": header}).done()).status == status
        # What is posted runs with the rights of the stream, so it takes the same rights to post.
        assert (await ann.post(ping, headers=bearer("ann-other")).done()).status == 404
        assert (await ann.ask("ping"))["result"] == {}


async def test_http_sse_knows_who_is_calling() -> None:
    async with serving(notes()) as app, connected(app, authorization="Bearer ann-token") as ann:
        assert await ann.call("whoami") == "ann"
        refused = await ann.ask("tools/call", {"name": "wipe", "arguments": {}})
        assert refused["error"]["code"] == -32600
