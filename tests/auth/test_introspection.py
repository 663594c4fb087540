"""`Introspection` against a real server: what it asks, what it believes, and what it says when there is no answer."""

import asyncio
import base64
import hashlib
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs

import pytest
from aiohttp import web

from dovetail.auth import Auth, Introspection, Principal, VerifierTrouble
from dovetail.auth import introspection as module
from dovetail.auth.fetch import Fetched, FetchRequest
from dovetail.errors import SetupError
from dovetail.transports import doorkeeper
from http_serving import until
from issuer_stage import Clock, Site, site

SECRET = "s3cret: with/odd+characters"
GOOD = {"active": True, "sub": "alice", "client_id": "editor", "scope": "notes:read notes:write"}


@pytest.fixture
async def served() -> AsyncIterator[Site]:
    async with site() as served:
        served.pages["/introspect"] = GOOD
        yield served


def asking(served: Site, **options: Any) -> Introspection:
    return Introspection(f"{served.origin}/introspect", client_id="notes", client_secret=SECRET, **options)


@pytest.mark.rule("AUTH-7")
async def test_a_token_that_is_good(served: Site) -> None:
    principal = await asking(served, issuer="https://login.example.com").verify("opaque-token/+=")
    assert principal == Principal(
        subject="alice",
        client="editor",
        issuer="https://login.example.com",
        scopes=frozenset({"notes:read", "notes:write"}),
        claims=GOOD,
    )
    (request,) = served.requests
    assert (request.method, request.headers["Content-Type"]) == ("POST", "application/x-www-form-urlencoded")
    kind, _, pair = request.headers["Authorization"].partition(" ")
    assert (kind, base64.b64decode(pair)) == ("Basic", b"notes:s3cret%3A+with%2Fodd%2Bcharacters")
    assert parse_qs(served.bodies[0].decode()) == {"token": ["opaque-token/+="], "token_type_hint": ["access_token"]}


async def test_client_credentials_are_no_user(served: Site) -> None:
    served.pages["/introspect"] = {"active": True, "sub": "robot", "client_id": "robot"}
    principal = await asking(served).verify("x")
    assert principal is not None
    assert (principal.subject, principal.client) == (None, "robot")


@pytest.mark.rule("AUTH-3", "AUTH-8", "AUTH-9", "SEC-6")
@pytest.mark.parametrize(
    "change",
    [
        {"active": False},
        {"sub": None, "client_id": None},  # nobody
        {"sub": 7},
        {"exp": 1},
        {"exp": "later"},
        {"nbf": 99999999999},
        {"aud": "https://other.example.com"},
        {"aud": []},
        {"aud": None},
        {"iss": "https://evil.example.com"},
        {"iss": 7},
    ],
)
async def test_a_token_that_is_not(served: Site, change: dict[str, Any]) -> None:
    good = GOOD | {"aud": "https://notes.example.com", "iss": "https://login.example.com"}
    verifier = asking(served, audience="https://notes.example.com", issuer="https://login.example.com")
    served.pages["/introspect"] = good
    assert await verifier.verify("good") is not None
    served.pages["/introspect"] = good | change
    assert await verifier.verify("bad") is None


@pytest.mark.rule("AUTH-8", "AUTH-17")
@pytest.mark.parametrize("aud", ["https://notes.example.com/", "HTTPS://notes.example.com", ["x", "notes"]])
async def test_the_audience(served: Site, aud: Any) -> None:
    served.pages["/introspect"] = GOOD | {"aud": aud, "exp": time.time() + 100, "nbf": None}
    principal = await asking(served, audience=["https://notes.example.com", "notes"]).verify("x")
    assert principal is not None
    assert principal.expires_at is not None


@pytest.mark.parametrize(
    "page",
    [
        (500, b"secret words"),
        (503, b""),
        (401, {"error": "invalid_client"}),
        (403, GOOD),
        (302, GOOD),
        b"",
        b"<html>",
        b"[]",
        b"{}",
        {"active": "true"},
        {"active": 1},
        b'{"active":false,"active":true,"sub":"alice"}',
        b'{"active":true,"x":' + b"[" * 10_000,
        GOOD | {"more": "x" * 100_000},
    ],
)
async def test_no_answer_is_trouble_and_neither_yes_nor_no(served: Site, page: Any) -> None:
    served.pages["/introspect"] = page
    verifier = asking(served)
    with pytest.raises(VerifierTrouble) as caught:
        await verifier.verify("my-token")
    assert not any(word in str(caught.value) for word in ("secret", SECRET, "my-token"))
    served.pages["/introspect"] = GOOD
    assert await verifier.verify("my-token") is not None  # trouble is not remembered


async def test_nobody_there_is_trouble(served: Site) -> None:
    verifier = Introspection("http://127.0.0.1:1/x", client_id="a", client_secret="b")
    with pytest.raises(VerifierTrouble, match="can't be reached"):
        await verifier.verify("x")


async def test_a_fetch_of_somebody_else_that_breaks_is_trouble() -> None:
    async def broken(request: FetchRequest) -> Fetched:
        raise RuntimeError(repr(request))

    verifier = Introspection("https://a.example/x", client_id="a", client_secret=SECRET, fetch=broken)
    with pytest.raises(VerifierTrouble, match="RuntimeError"):
        await verifier.verify("x")


@pytest.mark.parametrize("token", ["", "a b", "a\r\nb", "é", "x" * 20_000])
async def test_what_can_be_no_token_is_not_asked_about(served: Site, token: str) -> None:
    assert await asking(served).verify(token) is None
    assert served.asked == []


async def test_an_answer_is_kept_for_a_while(served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    verifier = asking(served, cache_seconds=10)
    monkeypatch.setattr(verifier, "_kept", module._Answers(10, clock))
    for _ in range(5):
        assert await verifier.verify("x") is not None
    assert len(served.asked) == 1
    served.pages["/introspect"] = {"active": False}  # taken back
    clock.now += 10
    for _ in range(5):
        assert await verifier.verify("x") is None
    assert len(served.asked) == 2


async def test_a_kept_answer_ends_with_its_token(served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    served.pages["/introspect"] = GOOD | {"exp": now + 5}
    verifier = asking(served, cache_seconds=1000)
    assert await verifier.verify("x") is not None
    monkeypatch.setattr(module.time, "time", lambda: now + 5 + module.LEEWAY)
    assert await verifier.verify("x") is None


@pytest.mark.parametrize("seconds", [0, 5.0, 600])
async def test_those_who_ask_are_told_how_long_to_believe(served: Site, seconds: float) -> None:
    found = await Auth(asking(served, cache_seconds=seconds)).find("x")
    assert found is not None
    assert found.believed_seconds == seconds


async def test_nothing_is_kept_if_not_wanted(served: Site) -> None:
    verifier = asking(served, cache_seconds=0)
    for _ in range(3):
        await verifier.verify("x")
    assert len(served.asked) == 3


def test_kept_answers_are_bounded_and_hold_no_token() -> None:
    answers = module._Answers(10, Clock())
    for number in range(module.MAX_KEPT + 100):
        answers.keep(number.to_bytes(32), {"active": False})
    assert len(answers._kept) == module.MAX_KEPT
    assert answers.get((0).to_bytes(32)) is None
    assert answers.get((module.MAX_KEPT).to_bytes(32)) is not None


def test_an_answer_that_is_new_again_is_not_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    clock = Clock()
    answers = module._Answers(10, clock)
    for name in (b"a", b"b"):
        answers.keep(name, GOOD)
    clock.now += 10
    for name in (b"a", b"c"):
        answers.keep(name, GOOD)
    assert list(answers._kept) == [b"a", b"c"]


async def test_whose_token_was_good_last_is_remembered_longest(served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GOOD", 2)
    verifier = asking(served)
    for token in ("a", "b", "a", "c"):
        assert await verifier.verify(token) is not None
    known = [hashlib.sha256(token.encode()).digest() for token in ("a", "c")]
    assert list(verifier._good) == known


# ── tokens of another kind ──


@pytest.mark.parametrize("name", ["token_type", "token_use", "typ"])
@pytest.mark.parametrize(
    ("kind", "good"),
    [
        ("Bearer", True),
        ("bearer", True),
        ("BEARER", True),
        ("DPoP", True),
        ("access_token", True),
        ("access", True),
        ("at+jwt", True),
        (None, True),
        ("refresh_token", False),
        ("Refresh", False),
        ("Offline", False),
        ("ID", False),
        ("id_token", False),
        ("N_A", False),
        ("mac", False),
        ("", False),
        (7, False),
        (["Bearer"], False),
        ({"Bearer": 1}, False),
    ],
)
async def test_only_access_tokens_are_good(served: Site, name: str, kind: Any, good: bool) -> None:
    served.pages["/introspect"] = GOOD | {name: kind}
    assert (await asking(served).verify("x") is not None) is good


async def test_a_kind_that_is_refused_is_told_once(served: Site, caplog: pytest.LogCaptureFixture) -> None:
    served.pages["/introspect"] = GOOD | {"token_type": "Odd" + "x" * 1000}
    verifier = asking(served)
    for token in ("one-token", "another-token"):
        assert await verifier.verify(token) is None
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "token_type is 'Oddx" in told
    assert len(told) < 200
    assert "-token" not in told


# ── many at once ──


class SlowIssuer:
    """Answers when it is let go; tokens that begin with `quick` at once."""

    def __init__(self, served: Site) -> None:
        self.let_go = asyncio.Event()
        self.at_once = self.most = 0
        self._served = served
        served.pages["/introspect"] = self.answer

    async def answer(self, _: web.Request) -> Any:
        (token,) = parse_qs(self._served.bodies[-1].decode())["token"]
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            if not token.startswith("quick"):
                await self.let_go.wait()
        finally:
            self.at_once -= 1
        return GOOD


async def test_whoever_comes_while_many_are_asked_about_waits_in_line(
    served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_AT_ONCE", 3)
    issuer, verifier = SlowIssuer(served), asking(served)
    tasks = [asyncio.create_task(verifier.verify(f"t{number}")) for number in range(10)]
    await until(lambda: issuer.at_once == 3)
    one_more = asyncio.create_task(verifier.verify("one-more"))
    await asyncio.sleep(0.05)
    assert not one_more.done()
    issuer.let_go.set()
    assert all(await asyncio.gather(*tasks, one_more))
    assert issuer.most == 3


async def test_one_that_hangs_holds_up_nobody_else(served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_AT_ONCE", 2)
    issuer, verifier = SlowIssuer(served), asking(served)
    hanging = asyncio.create_task(verifier.verify("slow"))
    await until(lambda: issuer.at_once == 1)
    assert all(await asyncio.gather(*(verifier.verify(f"quick{number}") for number in range(20))))
    assert not hanging.done()
    issuer.let_go.set()
    assert await hanging is not None


async def test_the_line_is_bounded_in_length_and_time(served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAX_AT_ONCE", 1), ("MAX_WAITING", 2), ("WAIT_SECONDS", 0.1)):
        monkeypatch.setattr(module, name, value)
    issuer, verifier = SlowIssuer(served), asking(served)
    first = asyncio.create_task(verifier.verify("t"))
    await until(lambda: issuer.at_once == 1)
    waiting = [asyncio.create_task(verifier.verify(f"t{number}")) for number in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(VerifierTrouble, match="too many"):  # at once
        await verifier.verify("one-more")
    assert not any(task.done() for task in waiting)
    for task in waiting:
        with pytest.raises(VerifierTrouble, match="too many"):
            await task
    issuer.let_go.set()
    assert await first is not None
    assert await verifier.verify("one-more") is not None, "those who left the line have left no trace"


async def test_those_that_were_good_do_not_wait_behind_nonsense(served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAX_AT_ONCE", 1), ("MAX_WAITING", 2), ("MAX_GOOD", 1)):
        monkeypatch.setattr(module, name, value)
    issuer, verifier = SlowIssuer(served), asking(served, cache_seconds=0)
    assert await verifier.verify("quick") is not None
    nonsense = [asyncio.create_task(verifier.verify(f"slow{number}")) for number in range(3)]
    await until(lambda: issuer.at_once == 1)
    assert await verifier.verify("quick") is not None
    with pytest.raises(VerifierTrouble, match="too many"):
        await verifier.verify("quick-too")
    issuer.let_go.set()
    await asyncio.gather(*nonsense)
    assert len(verifier._good) == 1


async def test_who_gives_up_in_line_or_while_being_asked_about_leaves_the_place_to_others(
    served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_AT_ONCE", 1)
    issuer, verifier = SlowIssuer(served), asking(served)
    asked, waiting, last = (asyncio.create_task(verifier.verify(token)) for token in ("slow", "waiting", "quick"))
    await until(lambda: issuer.at_once == 1)
    waiting.cancel()
    asked.cancel()
    assert await last is not None
    issuer.let_go.set()


async def test_a_fetch_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def without_end(_: FetchRequest) -> Fetched:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(module, "ASK_SECONDS", 0.02)
    verifier = Introspection("https://a.example/x", client_id="a", client_secret=SECRET, fetch=without_end)
    with pytest.raises(VerifierTrouble, match="within"):
        await verifier.verify("x")


def test_one_verifier_serves_one_event_loop_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_AT_ONCE", 1)

    async def quick(_: FetchRequest) -> Fetched:
        await asyncio.sleep(0)
        return Fetched(status=200, body=b'{"active":true,"sub":"alice"}')

    verifier = Introspection("https://a.example/x", client_id="a", client_secret=SECRET, fetch=quick)

    async def some(word: str) -> list[Principal | None]:
        return await asyncio.gather(*(verifier.verify(f"{word}{number}") for number in range(4)))

    for word in ("one", "two"):
        assert all(asyncio.run(some(word)))


def test_a_transport_has_more_patience() -> None:
    assert module.WAIT_SECONDS + module.ASK_SECONDS < doorkeeper.VERIFY_SECONDS


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "http://login.example.com/introspect"},
        {"endpoint": "login.example.com"},
        {"client_id": ""},
        {"client_secret": ""},
        {"cache_seconds": -1},
    ],
)
def test_what_is_refused_at_setup(options: dict[str, Any]) -> None:
    given = {"endpoint": "https://login.example.com/x", "client_id": "a", "client_secret": "top-s3cret"} | options
    with pytest.raises(SetupError) as caught:
        Introspection(**given)
    assert "top-s3cret" not in str(caught.value)


def test_it_shows_no_secret_and_names_its_authorization_server() -> None:
    verifier = Introspection(
        "https://login.example.com/x?key=s3cret", client_id="a", client_secret="s3cret", issuer="https://a.example"
    )
    assert repr(verifier) == "Introspection('https://login.example.com/x')"
    assert Auth(verifier).authorization_servers == ("https://a.example",)
