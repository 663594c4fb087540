"""In a fleet as in one process: what belongs to one principal is not there for another, at whichever worker it asks."""

from collections.abc import AsyncIterator

import pytest

from dovetail import Context, Server
from dovetail.auth import Principal
from dovetail.transports.http import HttpApp
from http_serving import PausingState
from http_stage import HANDSHAKE, text_of
from http_wire import HttpWire
from replaying import EVERYTHING, retry

PEOPLE = {
    "anns-token": Principal(subject="ann", scopes=frozenset({"notes:read"})),
    "anns-other": Principal(subject="ann"),
    "bobs-token": Principal(subject="bob", scopes=frozenset({"notes:read"})),
}
CAPABILITIES = {"io.modelcontextprotocol/clientCapabilities": EVERYTHING}


class SharedState(PausingState):
    shared = True


async def verify(token: str) -> Principal | None:
    return PEOPLE.get(token)


def bank() -> Server:
    server = Server("bank", version="1.0.0", auth=verify)

    @server.tool
    async def pay(ctx: Context) -> str:
        return f"paid: {(await ctx.elicit('Sure?', str)).data}"

    @server.tool
    async def whose(ctx: Context) -> str:
        assert ctx.principal is not None
        return str(ctx.principal.subject)

    return server


def bearer(token: str) -> dict[str, str | None]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
async def workers() -> AsyncIterator[list[HttpApp]]:
    state = SharedState()
    apps = [bank().asgi(state=state) for _ in range(2)]
    for app in apps:
        await app.start()
    yield apps
    for app in apps:
        await app.drain(0.2)


@pytest.mark.parametrize("version", HANDSHAKE)
@pytest.mark.rule("SEC-7", "SEC-12")
async def test_a_session_is_its_owners_at_every_worker(workers: list[HttpApp], version: str) -> None:
    opened = await HttpWire.session(workers[0], version, headers=bearer("anns-token"))

    def at_the_other(token: str) -> HttpWire:
        wire = HttpWire(workers[1], version, headers=bearer(token))
        wire.session_id = opened.session_id
        return wire

    stranger = at_the_other("bobs-token")
    assert (await stranger.call("whose")).status == 404
    assert (await stranger.get().done()).status == 404
    assert (await stranger.delete()).status == 404
    assert text_of((await at_the_other("anns-other").call("whose")).answer) == "ann"


@pytest.mark.rule("SEC-8")
async def test_a_request_state_is_its_owners_at_every_worker(workers: list[HttpApp]) -> None:
    call = {"name": "pay", "arguments": {}, "_meta": CAPABILITIES}
    asked = await HttpWire(workers[0], headers=bearer("anns-token")).ask("tools/call", call)
    again = {**call, **retry(asked, {"Sure?": "yes"})}
    stranger = await HttpWire(workers[1], headers=bearer("bobs-token")).post("tools/call", again)
    assert stranger.answer["error"]["code"] == -32602
    paid = await HttpWire(workers[1], headers=bearer("anns-other")).post("tools/call", again)
    assert text_of(paid.answer) == "paid: yes"


async def test_an_sse_stream_is_its_owners_at_every_worker(workers: list[HttpApp]) -> None:
    """With the same rights too: what is posted is done with those of the stream."""
    stream = HttpWire(workers[0], "2024-11-05", headers=bearer("anns-token")).raw("GET", path="/sse")
    path, _, query = (await stream.event()).data.decode().partition("?")
    ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
    for app in workers:
        statuses = {}
        for token in PEOPLE:
            headers = {**bearer(token), "content-type": "application/json"}
            statuses[token] = (await HttpWire(app).raw("POST", ping, headers, path=path, query=query).done()).status
        assert statuses == {"anns-token": 202, "anns-other": 404, "bobs-token": 404}
    stream.leave()
    await stream.done()
