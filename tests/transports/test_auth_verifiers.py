"""Verifiers at the door: how often they are asked, and what happens when they fail."""

import asyncio
import time

import pytest
from door_stage import PEOPLE, Register, bearer, notes

from dovetail import Server
from dovetail.auth import Principal, VerifierTrouble
from dovetail.transports import doorkeeper
from http_serving import serving
from http_stage import REVISIONS, open_wire, text_of
from http_wire import HttpWire

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


async def test_the_number_of_questions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "MOST_QUESTIONS", 2)
    register = Register()
    register.gate = asyncio.Event()
    async with serving(notes(register)) as app:
        waiting = [HttpWire(app, headers=bearer(token)).start("tools/list") for token in ("ann-token", "bob-token")]
        await asyncio.sleep(0.01)
        assert (await HttpWire(app, headers=bearer("third")).post("tools/list")).status == 503
        register.gate.set()
        assert [(await each.done()).status for each in waiting] == [200, 200]


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


async def test_nobody_can_tell_is_a_503(caplog: pytest.LogCaptureFixture) -> None:
    register = Register()
    register.failure = VerifierTrouble("the issuer is silent about ann-token")
    async with serving(notes(register)) as app:
        wire = HttpWire(app, headers=bearer())
        answer = await wire.post("tools/list")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "the issuer is silent" in caplog.text
        assert "ann-token" not in caplog.text
        register.failure = None
        assert (await wire.post("tools/list")).status == 200  # it is not remembered


async def test_a_verifier_that_takes_too_long_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "VERIFY_SECONDS", 0.05)
    register = Register()
    register.gate = asyncio.Event()
    async with serving(notes(register)) as app:
        assert (await HttpWire(app, headers=bearer()).post("tools/list")).status == 503


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


# ── setting it up ──
