"""`Introspection` against a real server: its requests, the responses it accepts, issuers that do not respond."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs

import pytest

from dovetail.auth import Auth, Introspection, Principal, VerifierUnavailable
from dovetail.auth.fetch import Fetched, FetchRequest
from dovetail.auth.introspection import MAX_CONCURRENT, MAX_GOOD_TOKENS, REQUEST_TIMEOUT
from dovetail.auth.principal import MAX_TOKEN
from dovetail.errors import SetupError
from dovetail.transports.http.authenticate import TokenLimits
from http_serving import until
from issuer_stage import Site, site

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


@pytest.mark.rule("AUTH-3", "AUTH-8", "AUTH-9", "SEC-6")
@pytest.mark.parametrize(
    "change",
    [
        {"active": False}, {"sub": None, "client_id": None}, {"sub": 7}, {"exp": 1}, {"exp": "later"},
        {"nbf": 99999999999}, {"aud": "https://other.example.com"}, {"aud": []}, {"aud": None},
        {"iss": "https://evil.example.com"}, {"iss": 7},
    ],
)  # fmt: skip
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
        (500, b"secret words"), (503, b""), (401, {"error": "invalid_client"}), (403, GOOD), (302, GOOD), b"",
        b"<html>", b"[]", b"{}", {"active": "true"}, {"active": 1}, b'{"active":false,"active":true,"sub":"alice"}',
        b'{"active":true,"x":' + b"[" * 10_000, GOOD | {"more": "x" * 100_000},
    ],
)  # fmt: skip
async def test_without_a_response_the_verifier_is_unavailable(served: Site, page: Any) -> None:
    served.pages["/introspect"] = page
    verifier = asking(served)
    with pytest.raises(VerifierUnavailable) as caught:
        await verifier.verify("my-token")
    assert not any(word in str(caught.value) for word in ("secret", SECRET, "my-token"))
    served.pages["/introspect"] = GOOD
    assert await verifier.verify("my-token") is not None  # a failure is not cached


async def test_if_an_authors_own_fetch_fails_the_verifier_is_unavailable() -> None:
    async def broken(request: FetchRequest) -> Fetched:
        raise RuntimeError(repr(request))

    verifier = Introspection("https://a.example/x", client_id="a", client_secret=SECRET, fetch=broken)
    with pytest.raises(VerifierUnavailable, match="RuntimeError"):
        await verifier.verify("x")


@pytest.mark.parametrize("seconds", [0, 5.0, 600])
async def test_a_verification_says_how_long_it_may_be_cached(served: Site, seconds: float) -> None:
    found = await Auth(asking(served, cache_seconds=seconds)).verification("x")
    assert found is not None
    assert found.cache_seconds == seconds


# ── tokens of another kind ──


ACCESS = [
    "Bearer", "bearer", "BEARER", "DPoP", "access_token", "access", "at+jwt", None, "BearerToken", "JWT",
    "application/at+jwt", "urn:ietf:params:oauth:token-type:access_token",
]  # fmt: skip
OTHER = ["refresh_token", "Refresh", "Offline", "ID", "id_token", "N_A", "mac", "", 7, ["Bearer"], {"Bearer": 1}]


@pytest.mark.parametrize("name", ["token_type", "token_use", "typ"])
@pytest.mark.parametrize(("kind", "good"), [*((kind, True) for kind in ACCESS), *((kind, False) for kind in OTHER)])
async def test_only_access_tokens_are_good(served: Site, name: str, kind: Any, good: bool) -> None:
    served.pages["/introspect"] = GOOD | {name: kind}
    assert (await asking(served).verify("x") is not None) is good


async def test_a_kind_that_is_refused_is_logged_once(served: Site, caplog: pytest.LogCaptureFixture) -> None:
    served.pages["/introspect"] = GOOD | {"token_type": "Odd" + "x" * 1000}
    verifier = asking(served)
    for token in ("one-token", "another-token"):
        assert await verifier.verify(token) is None
    (logged,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "token_type is 'Oddx" in logged
    assert len(logged) < 200
    assert "-token" not in logged


# ── many at once ──


class SlowIssuer:
    """Answers when it is let go; tokens that begin with `quick` at once."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.at_once = self.most = 0
        self.asked: list[str] = []

    async def __call__(self, request: FetchRequest) -> Fetched:
        (token,) = parse_qs((request.body or b"").decode())["token"]
        self.asked.append(token)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            if not token.startswith("quick"):
                await self.let_go.wait()
        finally:
            self.at_once -= 1
        active = b"false" if token.startswith("nonsense") else b"true"
        return Fetched(status=200, body=b'{"active":%b,"sub":"alice"}' % active)

    def asking(self, **options: Any) -> Introspection:
        return Introspection("https://a.example/x", client_id="a", client_secret=SECRET, fetch=self, **options)


async def test_few_are_asked_about_at_a_time() -> None:
    issuer = SlowIssuer()
    verifier = issuer.asking(cache_seconds=0)
    tasks = [asyncio.create_task(verifier.verify(f"t{number}")) for number in range(MAX_CONCURRENT + 5)]
    await until(lambda: issuer.at_once == MAX_CONCURRENT)
    new = asyncio.create_task(verifier.verify("quick"))
    tasks.pop(0).cancel()  # a cancelled caller releases its slot
    issuer.let_go.set()
    assert all(await asyncio.gather(*tasks, new))
    assert issuer.most == 32  # as the docs say


async def test_invalid_tokens_do_not_delay_tokens_that_were_valid() -> None:
    issuer = SlowIssuer()
    verifier = issuer.asking()
    assert await verifier.verify("quick")
    flood = [asyncio.create_task(verifier.verify(f"nonsense{number}")) for number in range(2000)]
    await until(lambda: issuer.at_once == MAX_CONCURRENT)
    assert await verifier.verify("quick")
    asked = issuer.asked
    issuer.let_go.set()
    assert not any(await asyncio.gather(*flood))
    assert await verifier.verify("quick")
    assert asked.count("quick") == 3


async def test_the_tokens_that_were_valid_last_are_not_delayed() -> None:
    issuer = SlowIssuer()
    verifier = issuer.asking()
    for number in range(MAX_GOOD_TOKENS):
        await verifier.verify(f"quick{number}")
    for token in ("quick0", "quick-new"):  # then `quick1` is the one that was valid longest ago
        await verifier.verify(token)
    flood = [asyncio.create_task(verifier.verify(f"nonsense{number}")) for number in range(MAX_CONCURRENT)]
    await until(lambda: issuer.at_once == MAX_CONCURRENT)
    late = asyncio.create_task(verifier.verify("quick1"))
    for token in ("quick0", "quick2", "quick-new"):
        assert await asyncio.wait_for(verifier.verify(token), 5)
    assert issuer.asked.count("quick1") == 1
    issuer.let_go.set()
    assert await late
    assert not any(await asyncio.gather(*flood))


@pytest.mark.parametrize(
    ("token", "is_asked"),
    [("quick".ljust(MAX_TOKEN, "~"), True), ("quick".ljust(MAX_TOKEN + 1), False), ("quick 1", False), ("", False)],
)
async def test_what_can_not_be_a_token_is_not_sent(token: str, is_asked: bool) -> None:
    issuer = SlowIssuer()
    assert (await issuer.asking().verify(token) is not None) is is_asked
    assert issuer.asked == [token] * is_asked


def test_one_verifier_serves_one_event_loop_after_another() -> None:
    issuer = SlowIssuer()
    verifier = issuer.asking()

    async def some(word: str) -> list[Principal | None]:
        return await asyncio.gather(*(verifier.verify(f"quick{word}{number}") for number in range(2 * MAX_CONCURRENT)))

    for word in ("one", "two"):
        assert all(asyncio.run(some(word)))


def test_a_transport_has_a_longer_timeout() -> None:
    assert TokenLimits().verify_timeout > REQUEST_TIMEOUT


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
