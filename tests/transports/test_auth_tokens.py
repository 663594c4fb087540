"""Tokens: how often verifiers are asked, what happens when they fail, and streams that end with their token."""

import asyncio
import time
from typing import Any

import pytest
from door_stage import PEOPLE, Register, bearer, notes
from http_clients import OldClient
from msgspec import structs

from dovetail import Server
from dovetail.auth import Principal, VerifierTrouble
from dovetail.transports import doorkeeper
from http_serving import Stage, serving, until
from http_wire import REVISIONS, Exchange, HttpWire, open_wire, text_of

# ── how often verifiers are asked ──


@pytest.mark.rule("AUTH-15")
@pytest.mark.parametrize("version", REVISIONS)
async def test_a_token_is_believed_for_a_while(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register = Register()
    async with serving(notes(register)) as app:
        wire = await open_wire(app, version, headers=bearer())
        for _ in range(3):
            assert (await wire.call("whoami")).status == 200
        assert register.asked == ["ann-token"]
        monkeypatch.setattr(doorkeeper, "monotonic", lambda: time.monotonic() + doorkeeper.BELIEVED_SECONDS)
        assert (await wire.call("whoami")).status == 200
        assert register.asked == ["ann-token"] * 2
        wire.headers = bearer("taken-back")  # the session alone is worth nothing
        assert (await wire.call("whoami")).status == 401


@pytest.mark.rule("AUTH-15")
@pytest.mark.parametrize(
    ("seconds", "later", "asked"), [(0, 0, 2), (20, 19, 1), (20, 21, 2), (600, 59, 1), (600, 61, 2)]
)
async def test_a_verifier_says_how_long_it_is_believed(
    seconds: float, later: float, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But never for longer than a minute. Of several, the one that knows the token decides."""
    register = Register()
    register.believed_seconds = seconds  # type: ignore[attr-defined]
    async with serving(notes([register, Register()])) as app:
        wire = HttpWire(app, headers=bearer())
        assert (await wire.call("whoami")).status == 200
        monkeypatch.setattr(doorkeeper, "monotonic", lambda: time.monotonic() + later)
        assert (await wire.call("whoami")).status == 200
    assert len(register.asked) == asked


async def test_a_token_is_not_believed_beyond_its_own_end() -> None:
    async def verify(token: str) -> Principal:
        asked.append(token)
        return Principal(subject="ann", expires_at=ends)

    asked: list[str] = []
    ends = time.time() + 0.2
    async with serving(Server("short", auth=verify)) as app:
        wire = HttpWire(app, headers=bearer("t"))
        assert (await wire.post("tools/list")).status in (200, 404)
        await asyncio.sleep(0.25)
        assert (await wire.post("tools/list")).status == 401
        assert asked == ["t", "t"]


async def test_a_verifier_may_allow_for_clocks_that_differ() -> None:
    class Lenient:
        async def verify(self, token: str) -> Principal:
            return Principal(subject="ann", expires_at=time.time() - 5)

    async with serving(Server("lenient", auth=Lenient())) as app:
        assert (await HttpWire(app, headers=bearer("t")).post("server/discover")).status == 200


async def test_who_comes_together_waits_for_one_answer() -> None:
    register = Register()
    register.gate = asyncio.Event()
    async with serving(notes(register)) as app:
        crowd = [HttpWire(app, headers=bearer()).start_call("whoami") for _ in range(20)]
        impatient = HttpWire(app, headers=bearer()).start_call("whoami")
        await asyncio.sleep(0.01)
        await impatient.cut()  # it takes nothing from the others
        register.gate.set()
        assert {text_of((await each.done()).answer) for each in crowd} == {"ann"}
        assert register.asked == ["ann-token"]


async def test_a_bad_token_is_remembered_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    register = Register()
    async with serving(notes(register)) as app:
        wire = HttpWire(app, headers=bearer("bad"))
        for _ in range(3):
            assert (await wire.post("tools/list")).status == 401
        assert register.asked == ["bad"]
        monkeypatch.setattr(doorkeeper, "monotonic", lambda: time.monotonic() + doorkeeper.REFUSED_SECONDS)
        monkeypatch.setitem(PEOPLE, "bad", PEOPLE["ann-token"])
        assert (await wire.post("tools/list")).status == 200


async def test_guesses_take_no_memory_and_drive_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "MOST_TOKENS", 10)
    register = Register()
    async with serving(notes(register)) as app:
        ann = HttpWire(app, headers=bearer())
        assert (await ann.post("tools/list")).status == 200
        for number in range(30):
            assert (await HttpWire(app, headers=bearer(f"guess-{number}")).post("tools/list")).status == 401
        assert (await ann.post("tools/list")).status == 200
        assert register.asked.count("ann-token") == 1


async def test_those_whose_tokens_were_good_may_ask_beyond_that_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "MOST_QUESTIONS", 1)
    register = Register()
    async with serving(notes(register)) as app:
        for token in ("ann-token", "bob-token"):
            assert (await HttpWire(app, headers=bearer(token)).post("tools/list")).status == 200
        monkeypatch.setattr(doorkeeper, "monotonic", lambda: time.monotonic() + doorkeeper.BELIEVED_SECONDS)
        register.gate = asyncio.Event()
        guess = HttpWire(app, headers=bearer("guess")).start("tools/list")
        await asyncio.sleep(0.01)
        ann = HttpWire(app, headers=bearer()).start("tools/list")
        await asyncio.sleep(0.01)
        for token in ("guess-2", "bob-token"):  # one beyond the number for all, and one beyond that for good ones
            assert (await HttpWire(app, headers=bearer(token)).post("tools/list")).status == 503
        register.gate.set()
        assert [(await each.done()).status for each in (guess, ann)] == [401, 200]


# ── verifiers that fail ──


async def test_a_verifier_in_trouble_is_a_503(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorkeeper, "VERIFY_SECONDS", 0.05)
    register = Register()
    register.failure = VerifierTrouble("the issuer is silent about ann-token")
    async with serving(notes(register)) as app:
        wire = HttpWire(app, headers=bearer())
        answer = await wire.post("tools/list")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "the issuer is silent" in caplog.text
        assert "ann-token" not in caplog.text
        register.failure = None
        register.gate = asyncio.Event()
        assert (await wire.post("tools/list")).status == 503  # it takes too long
        register.gate = None
        assert (await wire.post("tools/list")).status == 200  # trouble is not remembered


async def test_a_verifier_that_breaks_is_a_500_and_says_no_token(caplog: pytest.LogCaptureFixture) -> None:
    register = Register()
    register.failure = ValueError("can't read ann-token")
    async with serving(notes(register)) as app:
        answer = await HttpWire(app, headers=bearer()).post("tools/list")
        assert answer.status == 500
        assert answer.json["error"]["message"] == "Internal error"
        assert "ValueError" in caplog.text
        assert "in verify" in caplog.text
        assert "ann-token" not in caplog.text


# ── streams ──

SOON = 0.15  # seconds
HEADER = bearer()
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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
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
quickly = pytest.mark.usefixtures("quick")


@quickly
@each_stream
@pytest.mark.rule("AUTH-15", "AUTH-3")
async def test_a_stream_ends_with_its_token(open_stream: Any) -> None:
    ledger = Ledger()
    ledger.principal = Principal(subject="ann", expires_at=time.time() + 0.4)
    async with serving(Stage(auth=ledger).server) as app:
        stream = await open_stream(app)
        await stream.done(5)
        assert time.time() >= ledger.principal.expires_at
        assert stream.sent[-1].get("more_body") is False  # it is ended as it should be
        assert (await HttpWire(app, headers=HEADER).post("server/discover")).status == 401


@quickly
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


@quickly
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


MEANING = {"sub": "ann", "role": "editor"}
VOLATILE = ("exp", "expires_in", "iat", "nbf", "jti", "auth_time")


OTHERS = [
    Principal(subject="bob", claims=MEANING),
    Principal(subject="ann", claims=MEANING, scopes=frozenset({"more"})),
    Principal(subject="ann", claims={**MEANING, "role": "reader"}),
]


@quickly
@pytest.mark.parametrize(("open_stream", "other"), list(zip(STREAMS.values(), OTHERS, strict=True)), ids=STREAMS)
async def test_a_stream_ends_when_its_token_means_something_else(open_stream: Any, other: Principal) -> None:
    """But not for what differs in every answer: how long the token is still good, when the issuer was asked."""

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
        ledger.principal = other
        await stream.done(5)


@quickly
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
        ledger.failure = VerifierTrouble("away for good")
        await stream.done(5)


@quickly
@each_stream
async def test_nor_beyond_the_end_of_the_token(open_stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "TROUBLE_PAUSE", 60.0)
    ledger = Ledger()
    ledger.principal = Principal(subject="ann", expires_at=time.time() + 0.4)
    async with serving(Stage(auth=ledger).server) as app:
        stream = await open_stream(app)
        ledger.failure = VerifierTrouble("away")
        await stream.done(5)


@quickly
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
