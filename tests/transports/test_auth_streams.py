"""Streams of known callers: looked after as long as they are open, and ended when their token is not good any more."""

import asyncio
import time
from typing import Any

import pytest
from msgspec import structs
from old_client import OldClient

from dovetail.auth import Principal, VerifierTrouble
from dovetail.transports import doorkeeper
from http_serving import serving, settle, until
from http_stage import Stage
from http_wire import Exchange, HttpWire

SOON = 0.15  # seconds
HEADER: dict[str, str | None] = {"authorization": "Bearer ann-token"}
ANN = Principal(subject="ann", scopes=frozenset({"read"}))


class Ledger:
    """A verifier that can take a token back."""

    def __init__(self) -> None:
        self.principal: Principal | None = ANN
        self.failure: Exception | None = None
        self.asked = 0

    async def verify(self, token: str) -> Principal | None:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        if self.principal is not None and (self.principal.expires_at or time.time() + 1) <= time.time():
            return None
        return self.principal if token == "ann-token" else None


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "BELIEVED_SECONDS", SOON)
    monkeypatch.setattr(doorkeeper, "REFUSED_SECONDS", 0.01)
    monkeypatch.setattr(doorkeeper, "TROUBLE_PAUSE", 0.02)


async def open_get(app: Any) -> Exchange:
    wire = await HttpWire.session(app, headers=HEADER)
    return await wire.get().started()


async def open_listen(app: Any) -> Exchange:
    wanted = {"notifications": {"toolsListChanged": True}}
    stream = HttpWire(app, headers=HEADER).start("subscriptions/listen", wanted)
    await stream.message()
    return stream


async def open_sse(app: Any) -> Exchange:
    client = await OldClient(app, **HEADER).open()
    await client.shake_hands()
    return client.stream


STREAMS = {"GET": open_get, "listen": open_listen, "HTTP+SSE": open_sse}
each_stream = pytest.mark.parametrize("open_stream", STREAMS.values(), ids=STREAMS)


@each_stream
@pytest.mark.rule("AUTH-15", "AUTH-3")
async def test_a_stream_ends_with_its_token(open_stream: Any) -> None:
    ledger = Ledger()
    ledger.principal = Principal(subject="ann", expires_at=time.time() + 0.4)
    async with serving(Stage(auth=ledger).server) as app:
        stream = await open_stream(app)
        await asyncio.sleep(SOON)
        assert not stream.ended
        await stream.done(5)
        assert time.time() >= ledger.principal.expires_at
        assert stream.sent[-1].get("more_body") is False  # it is ended as it should be
        assert (await HttpWire(app, headers=HEADER).post("server/discover")).status == 401


@each_stream
@pytest.mark.rule("AUTH-15")
async def test_a_token_that_is_taken_back_ends_the_stream(open_stream: Any) -> None:
    ledger = Ledger()
    async with serving(Stage(auth=ledger).server) as app:
        stream = await open_stream(app)
        asked = ledger.asked
        await until(lambda: ledger.asked > asked + 1)  # it goes on as long as the token is good
        assert not stream.ended
        ledger.principal = None
        await stream.done(5)


async def test_a_verifier_that_wants_no_answer_kept_is_not_asked_all_the_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "RECHECK_SECONDS", SOON)
    ledger = Ledger()
    ledger.believed_seconds = 0.0  # type: ignore[attr-defined]
    async with serving(Stage(auth=ledger).server) as app:
        stream = await open_listen(app)
        asked = ledger.asked
        await asyncio.sleep(3 * SOON)
        assert asked < ledger.asked <= asked + 4
        ledger.principal = None
        await stream.done(5)


@each_stream
@pytest.mark.parametrize(
    "other", [Principal(subject="bob", scopes=ANN.scopes), Principal(subject="ann", scopes=frozenset())]
)
async def test_a_token_that_means_something_else_ends_the_stream(open_stream: Any, other: Principal) -> None:
    ledger = Ledger()
    async with serving(Stage(auth=ledger).server) as app:
        stream = await open_stream(app)
        ledger.principal = other
        await stream.done(5)


MEANING = {"sub": "ann", "role": "editor"}
VOLATILE = ("exp", "expires_in", "iat", "nbf", "jti", "auth_time")


@each_stream
async def test_what_differs_in_every_answer_does_not_end_a_stream(open_stream: Any) -> None:
    """Some issuers tell with each introspection how long the token is still good, or when they were asked."""

    class Counting(Ledger):
        async def verify(self, token: str) -> Principal | None:
            found = await super().verify(token)
            said = dict.fromkeys(VOLATILE, self.asked)
            return found and structs.replace(found, claims={**found.claims, **said})

    ledger = Counting()
    ledger.principal = Principal(subject="ann", claims=MEANING)
    async with serving(Stage(auth=ledger).server) as app:
        stream = await open_stream(app)
        asked = ledger.asked
        await until(lambda: ledger.asked > asked + 2)
        assert not stream.ended
        ledger.principal = Principal(subject="ann", claims={**MEANING, "role": "reader"})
        await stream.done(5)


@each_stream
async def test_a_verifier_in_trouble_is_waited_for(open_stream: Any) -> None:
    ledger = Ledger()
    async with serving(Stage(auth=ledger).server) as app:
        stream = await open_stream(app)
        ledger.failure = VerifierTrouble("away")
        asked = ledger.asked
        await until(lambda: ledger.asked > asked + 3)
        ledger.failure = None
        asked = ledger.asked
        await until(lambda: ledger.asked > asked + 1)
        assert not stream.ended
        stream.leave()
        await stream.done()


@each_stream
async def test_but_not_for_ever(open_stream: Any) -> None:
    ledger = Ledger()
    async with serving(Stage(auth=ledger).server) as app:
        stream = await open_stream(app)
        ledger.failure = VerifierTrouble("away")
        await stream.done(5)


@each_stream
async def test_nor_beyond_the_end_of_the_token(open_stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "TROUBLE_PAUSE", 60.0)
    ledger = Ledger()
    ledger.principal = Principal(subject="ann", expires_at=time.time() + 0.4)
    async with serving(Stage(auth=ledger).server) as app:
        stream = await open_stream(app)
        ledger.failure = VerifierTrouble("away")
        await stream.done(5)


@each_stream
async def test_nobody_is_left_to_look_after_a_stream_that_is_gone(open_stream: Any) -> None:
    ledger = Ledger()
    async with serving(Stage(auth=ledger).server) as app:
        before = asyncio.all_tasks()
        stream = await open_stream(app)
        stream.leave()
        await stream.done()
        await settle()
        assert asyncio.all_tasks() <= before
        asked = ledger.asked
        await asyncio.sleep(2 * SOON)
        assert ledger.asked == asked


async def test_a_call_that_has_begun_goes_on_and_can_be_come_back_for() -> None:
    """The stream that carries the rest of its answer ends with the token; with a new one the client has it all."""
    ledger = Ledger()
    stage = Stage(auth=ledger)
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, headers=HEADER)
        call = wire.start_call("tell")
        await stage.entered.wait()
        first = await call.event()
        call.leave()
        tail = await wire.get(first.id).started()
        ledger.principal = None
        await tail.done(5)
        ledger.principal = ANN
        await asyncio.sleep(0.02)  # for which it was remembered that the token is bad
        rest = await wire.get(first.id).started()
        stage.go.set()
        await rest.done(5)
        assert rest.answer["result"]["content"][0]["text"] == "told"
