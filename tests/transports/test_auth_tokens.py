"""The token cache: how often verifiers are called, what happens when they fail, and streams that end with a token."""

import asyncio
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from auth_stage import ProtectedApp, Register, bearer
from http_clients import OldClient
from msgspec import structs

from costs import functions_called
from dovetail.auth import Auth, Principal, VerifierUnavailable
from http_serving import Clock, Stage, serving, settle, until
from http_wire import HttpExchange, HttpWire, text_of

# ── how often verifiers are asked, and when they fail ──


BELIEVED = [  # what the verifier says, in how many seconds the token ends, when it comes again; how often it is asked
    *((None, None, 59, 1), (None, None, 61, 2), (0, None, 0, 2), (20, None, 19, 1), (20, None, 21, 2)),
    *((600, None, 59, 1), (600, None, 61, 2)),  # never for longer than a minute
    *((None, 30, 29, 1), (None, 30, 31, 2)),
    *((None, -5, 0.9, 1), (None, -5, 1.1, 2)),  # a verifier may allow for clocks that differ
]


@pytest.mark.rule("AUTH-15")
@pytest.mark.parametrize(("believed", "ends", "later", "asked"), BELIEVED)
async def test_how_long_a_token_is_cached(believed: Any, ends: Any, later: float, asked: int) -> None:
    register, clock = Register(), Clock()
    if believed is not None:
        register.cache_seconds = believed  # type: ignore[attr-defined]
    if ends is not None:
        register.people["ann-token"] = Principal(subject="ann", expires_at=time.time() + ends)
    protected = ProtectedApp([register, Register()], clock=clock)  # of several, the one that knows the token decides
    assert await protected.status() == 204
    clock.sleep(later)
    assert await protected.status() == 204
    assert len(register.asked) == asked


async def test_an_outcome_that_is_not_to_be_cached_is_not_kept() -> None:
    seen: list[Any] = []

    class Issuer:
        cache_seconds = 0

        async def verify(self, token: str) -> Principal:
            seen.append(weakref.ref(claim := {"ann"}))
            return Principal(subject="ann", claims={"mail": claim})

    protected = ProtectedApp(Issuer())
    assert [await protected.status() for _ in range(2)] == [204, 204]
    assert [claim() for claim in seen] == [None, None]


async def test_a_function_allows_for_no_clocks_that_differ() -> None:
    async def verify(token: str) -> Principal:
        return Principal(subject="ann", expires_at=time.time() - 1)

    assert await ProtectedApp(verify).status() == 401


async def test_requests_at_the_same_time_wait_for_one_verification() -> None:
    register = Register()
    register.gate = asyncio.Event()
    protected = ProtectedApp(register)
    crowd = [protected.post() for _ in range(20)]
    impatient = protected.post()
    await settle()
    await impatient.cut()  # it takes nothing from the others
    register.gate.set()
    assert {(await each.done()).status for each in crowd} == {204}
    assert register.asked == ["ann-token"]


async def test_a_token_is_one_token_however_its_header_is_spelled() -> None:
    """Else one good token could fill the queue of its issuer."""
    register = Register()
    register.gate = asyncio.Event()
    protected = ProtectedApp(Auth(register, dpop="optional"))
    headers = [f"{scheme}{blanks}ann-token " for scheme in ("bEARER", "Bearer") for blanks in (" ", "  ", " \t ")]
    crowd = [HttpWire(protected, headers={"authorization": header}).raw("POST") for header in headers]
    await settle()
    register.gate.set()
    assert {(await each.done()).status for each in crowd} == {204}
    assert register.asked == ["ann-token"]
    assert await protected.status() == 204
    assert register.asked == ["ann-token"]


async def test_a_bad_token_is_cached_briefly() -> None:
    register, clock = Register(), Clock()
    protected = ProtectedApp(register, clock=clock)
    assert [await protected.status("bad") for _ in range(3)] == [401] * 3
    assert register.asked == ["bad"]
    register.people["bad"] = register.people["ann-token"]
    assert await protected.status("bad") == 401
    clock.sleep(3.1)
    assert await protected.status("bad") == 204


async def test_guesses_take_no_memory_and_evict_no_good_token() -> None:
    register = Register()
    protected = ProtectedApp(register, max_cached=10)
    assert await protected.status() == 204
    for number in range(30):
        assert await protected.status(f"guess-{number}") == 401
    assert await protected.status() == 204
    assert register.asked.count("ann-token") == 1
    assert await protected.status("guess-0") == 401
    assert register.asked.count("guess-0") == 2


async def test_tokens_that_were_good_are_verified_beyond_the_limit() -> None:
    register, clock = Register(), Clock()
    protected = ProtectedApp(register, clock=clock, max_verifying=1)
    assert [await protected.status(token) for token in ("ann-token", "bob-token")] == [204, 204]
    clock.sleep(61)
    register.gate = asyncio.Event()
    waiting = []
    for token in ("guess", "ann-token"):
        waiting.append(protected.post(token))
        await settle()
    # one beyond the number for all, and one beyond that for good ones
    assert [await protected.status(token) for token in ("guess-2", "bob-token")] == [503, 503]
    register.gate.set()
    assert [(await each.done()).status for each in waiting] == [401, 204]


async def test_a_known_bearer_token_takes_the_short_way_also_beside_dpop() -> None:
    counts = []
    for dpop in ("off", "optional"):
        protected = ProtectedApp(Auth(Register(), dpop=dpop))
        assert await protected.status() == 204
        with functions_called() as called:
            assert await protected.status() == 204
        counts.append(len(called))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("claims", "dpop"), [({"cnf": {"jkt": "k"}}, "optional"), ({}, "required")])
async def test_a_token_that_needs_a_proof_is_not_cached_as_one_that_needs_none(claims: Any, dpop: Any) -> None:
    """Or a thief could send it as `Bearer`."""
    register = Register()
    register.people["ann-token"] = Principal(subject="ann", claims=claims)
    protected = ProtectedApp(Auth(register, dpop=dpop))
    assert [await protected.status() for _ in range(3)] == [401] * 3
    assert len(register.asked) == 1


async def test_an_unavailable_verifier_is_a_503(caplog: pytest.LogCaptureFixture) -> None:
    register = Register()
    register.failure = VerifierUnavailable("the issuer is silent about ann-token")
    protected = ProtectedApp(register, verify_timeout=0.05)
    answer = await protected.post().done()
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "the issuer is silent" in caplog.text
    assert "ann-token" not in caplog.text
    register.failure = None
    register.gate = asyncio.Event()
    assert await protected.status() == 503  # it takes too long
    register.gate = None
    assert await protected.status() == 204  # the failure is not cached
    assert len(caplog.records) == 1


async def test_a_verifier_that_breaks_is_a_500_and_says_no_token(caplog: pytest.LogCaptureFixture) -> None:
    register = Register()
    register.failure = ValueError("can't read ann-token")
    answer = await ProtectedApp(register).post().done()
    assert (answer.status, answer.json["error"]["message"]) == (500, "Internal error")
    assert "ValueError" in caplog.text
    assert "in verify" in caplog.text
    assert "ann-token" not in caplog.text


# ── streams ──

QUICK = {"cache_ttl": 0.05, "recheck_delay": 0.01, "retry_delay": 0.02}  # seconds
MEANING = {"sub": "ann", "role": "editor"}
ANN = Principal(subject="ann", claims=MEANING)


class Ledger:
    """A verifier that can take a token back. What it says differs each time in what gives no rights."""

    def __init__(self, principal: Principal | None = ANN) -> None:
        self.principal = principal
        self.failure: Exception | None = None
        self.asked = 0

    async def verify(self, token: str) -> Principal | None:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        found = self.principal
        if found is None or (found.expires_at or time.time() + 1) <= time.time():
            return None
        volatile = dict.fromkeys(("exp", "expires_in", "iat", "nbf", "jti", "auth_time"), self.asked)
        return structs.replace(found, claims={**found.claims, **volatile})

    async def asked_again(self, times: int = 2) -> None:
        asked = self.asked
        await until(lambda: self.asked > asked + times)


def soon_over() -> Ledger:
    return Ledger(Principal(subject="ann", expires_at=time.time() + 0.4))


OTHERS = {
    "taken back": None,
    "another user": Principal(subject="bob", claims=MEANING),
    "other scopes": Principal(subject="ann", claims=MEANING, scopes=frozenset({"more"})),
    "other claims": Principal(subject="ann", claims={**MEANING, "role": "reader"}),
}


@pytest.mark.rule("AUTH-15")
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
async def test_a_stream_ends_when_its_token_gives_other_rights(other: Principal | None) -> None:
    ledger = Ledger()
    stream = await ProtectedApp(ledger, **QUICK).stream()
    await ledger.asked_again()  # it goes on as long as the token is good
    assert not stream.ended
    ledger.principal = other
    await stream.done(5)


async def test_a_verifier_that_wants_nothing_cached_is_not_called_all_the_time() -> None:
    ledger = Ledger()
    ledger.cache_seconds = 0.0  # type: ignore[attr-defined]
    stream = await ProtectedApp(ledger).stream()
    await settle()
    assert (ledger.asked, stream.ended) == (2, False)
    await stream.cut()


async def test_an_unavailable_verifier_is_retried_but_not_for_ever() -> None:
    ledger = Ledger()
    stream = await ProtectedApp(ledger, **QUICK).stream()
    ledger.failure = VerifierUnavailable("away")
    await ledger.asked_again(3)
    ledger.failure = None
    await ledger.asked_again(1)
    assert not stream.ended
    ledger.failure = VerifierUnavailable("away for good")
    await stream.done(5)
    ledger = soon_over()
    stream = await ProtectedApp(ledger, **{**QUICK, "retry_delay": 60.0}).stream()
    ledger.failure = VerifierUnavailable("away beyond the end of the token")
    await stream.done(5)


async def open_get(app: Any) -> HttpExchange:
    return await (await HttpWire.session(app, headers=bearer())).get().started()


async def open_listen(app: Any) -> HttpExchange:
    wanted = {"notifications": {"toolsListChanged": True}}
    return await HttpWire(app, headers=bearer()).start("subscriptions/listen", wanted).started()


async def open_sse(app: Any) -> HttpExchange:
    client = await OldClient(app, **bearer()).open()
    await client.shake_hands()
    return client.stream


@pytest.mark.parametrize("open_stream", [open_get, open_listen, open_sse])
@pytest.mark.rule("AUTH-15", "AUTH-3")
async def test_a_stream_ends_with_its_token(open_stream: Any) -> None:
    ledger = soon_over()
    async with serving(Stage(auth=ledger).server) as app:
        stream = await open_stream(app)
        await stream.done(5)
        assert ledger.principal is not None
        assert time.time() >= (ledger.principal.expires_at or 0)
        assert stream.sent[-1].get("more_body") is False  # it is ended as it should be
        assert (await HttpWire(app, headers=bearer()).post("server/discover")).status == 401


async def test_a_call_that_has_begun_goes_on_and_can_be_resumed(pass_time: Callable[[float], None]) -> None:
    """Its answer is sent, though its token was taken back; a stream that was taken up again ends with the token."""
    ledger = Ledger()
    ledger.cache_seconds = 0.0  # type: ignore[attr-defined]
    stage = Stage(auth=ledger)
    async with serving(stage.server) as app:
        wire = await HttpWire.session(app, headers=bearer())
        stayed, left = wire.start_call("warn"), wire.start_call("warn")
        await stayed.event()
        seen = (await left.event()).id
        left.leave()
        again = await wire.get(seen).started()
        ledger.principal = None
        await settle()
        pass_time(2)
        await again.done(5)
        assert (await wire.get(seen).done()).status == 401
        ledger.principal, wire.headers = ANN, bearer("new-token")
        rest = await wire.get(seen).started()
        assert not stayed.ended
        stage.go.set()
        for call in (stayed, rest):
            assert text_of((await call.done(5)).answer) == "warned"
