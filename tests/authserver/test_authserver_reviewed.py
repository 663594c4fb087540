"""What a reviewer found in the authorization server: each of these once went the other way."""

import asyncio
import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from authserver_stage import CALLBACK, ISSUER, NATIVE, SCOPES, SECRET, Browser, Program, Stage, basic
from dovetail.auth.fetch import Fetched, FetchFailed, FetchRequest, NameLookups, make_fetch
from dovetail.auth.jose import read_token
from dovetail.authserver import OAuthClient, hash_password
from dovetail.authserver.clients import KEPT_SECONDS, NEW_SECONDS
from http_serving import until

PUBLISHED = "https://good.example.com/client.json"
SIGNED_IN = "__Host-dovetail-user"
CALLBACK_ELSEWHERE = "https://elsewhere.example.com/callback"


# ── registrations ──


async def test_a_registration_lives_on_when_a_user_has_let_it_in_and_not_before() -> None:
    stage = Stage()
    registered = await stage.register(
        redirect_uris=[CALLBACK], token_endpoint_auth_method="none", grant_types=["authorization_code", "refresh_token"]
    )
    id = registered.json["client_id"]
    program = Program(stage, id)
    for form in ({"grant_type": "nonsense"}, {"grant_type": "refresh_token", "refresh_token": "x"}):
        assert (await stage.token(client_id=id, **form)).status == 400
    await program.redeem("no code")
    await stage.post("revoke", {"token": "x", "client_id": id})
    assert await stage.server._marks.left("client", id) <= NEW_SECONDS
    tokens = await program.tokens()
    assert await stage.server._marks.left("client", id) == KEPT_SECONDS
    stage.clock.now += 86_400
    assert (await program.refresh(tokens["refresh_token"])).status == 200
    assert await stage.server._marks.left("client", id) == KEPT_SECONDS


@pytest.mark.rule("SEC-5")
@pytest.mark.parametrize("wrong", [{"response_type": "token"}, {"code_challenge": None}, {"scope": "admin"}])
async def test_who_registers_cannot_send_people_anywhere_without_their_consent(wrong: dict[str, Any]) -> None:
    stage = Stage()
    registered = await stage.register(redirect_uris=[CALLBACK_ELSEWHERE], token_endpoint_auth_method="none")
    program = Program(stage, registered.json["client_id"], CALLBACK_ELSEWHERE)
    browser = Browser(stage)
    reply = await browser.open(program.url(**wrong))
    assert (reply.status, "location" in reply.headers) == (400, False)
    denied = await browser.answer(await browser.open(program.url()), "deny")
    assert denied.sent_to["error"] == "access_denied"


# ── the browser ──


@pytest.mark.parametrize(
    ("issuer", "redirect_uri"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:5555/callback"),
        ("http://127.0.0.1:8000", CALLBACK),
        ("http://localhost:8000", "http://127.0.0.1:5555/callback"),
        ("https://login.example.com", "https://LOGIN.example.com:8443/callback"),
    ],
)
async def test_no_program_at_the_host_of_the_issuer_gets_the_cookie_of_a_user(issuer: str, redirect_uri: str) -> None:
    client = OAuthClient(id="app", redirect_uris=[redirect_uri, NATIVE])
    stage = Stage(issuer, clients=[client])
    browser, program = Browser(stage), Program(stage, redirect_uri=redirect_uri)
    assert "code" in (await browser.sign_in(await browser.open(program.url()))).sent_to
    assert SIGNED_IN not in browser.cookies
    assert 'name="password"' in (await browser.open(program.url())).text


@pytest.mark.parametrize("way", ["allow", "deny", "wrong"])
async def test_a_cookie_from_before_is_taken_away_on_the_way_to_such_a_program(way: str) -> None:
    beside = "https://login.example.com:8443/callback"
    stage = Stage(clients=[OAuthClient(id="app", redirect_uris=[CALLBACK, beside])])
    browser = Browser(stage)
    await Program(stage).code(browser)
    assert SIGNED_IN in browser.cookies
    program = Program(stage, redirect_uri=beside)
    if way == "wrong":
        reply = await browser.open(program.url(scope="admin"))
    else:
        page = await browser.open(program.url())
        assert 'name="password"' in page.text
        reply = await (browser.sign_in(page) if way == "allow" else browser.answer(page, "deny"))
    assert reply.status == 303
    assert SIGNED_IN not in browser.cookies


# ── what was allowed once ──


@pytest.mark.parametrize(
    "fewer",
    [
        {"clients": [OAuthClient(id="app", redirect_uris=[CALLBACK], scopes=["notes:read"])]},
        {"scopes": {"notes:read": "Read your notes"}},
    ],
    ids=["of the program", "of the server"],
)
async def test_scopes_that_were_taken_away_do_not_come_back(fewer: dict[str, Any]) -> None:
    stage = Stage()
    everything = " ".join(SCOPES)
    tokens = await Program(stage).tokens(scope=everything)
    code_of = Program(stage)
    code = await code_of.code(scope=everything)
    narrowed = Stage(state=stage.state, **fewer)
    refreshed = (await Program(narrowed).refresh(tokens["refresh_token"])).json
    code_of.stage = narrowed
    for answer in (refreshed, (await code_of.redeem(code)).json):
        assert answer["scope"] == "notes:read"
        principal = await narrowed.server.verifier().verify(answer["access_token"])
        assert principal is not None
        assert principal.scopes == {"notes:read"}


async def test_a_new_password_ends_what_the_old_one_allowed() -> None:
    stage = Stage()
    program = Program(stage)
    tokens, code = await program.tokens(), await program.code()
    changed = Stage(state=stage.state, users={"ann": hash_password("a new one", cost=16)})
    program.stage = changed
    assert (await program.refresh(tokens["refresh_token"])).json["error"] == "invalid_grant"
    assert (await program.redeem(code)).json["error"] == "invalid_grant"
    assert not await changed.may_call(tokens["access_token"])


# ── documents ──


class Web:
    """Where `PUBLISHED` is; nothing else is there. `answer`: what it says instead."""

    def __init__(self, stage: Stage) -> None:
        self.answer: Fetched | None = None
        self.down = False
        self.asked = 0
        stage.server._authorization.clients._published._fetch = self  # type: ignore[union-attr]

    async def __call__(self, request: FetchRequest) -> Fetched:
        self.asked += 1
        if self.down:
            raise FetchFailed("down")
        if request.url != PUBLISHED or self.answer is not None:
            return self.answer or Fetched(status=404)
        grants = ["authorization_code", "refresh_token"]
        body = json.dumps({"client_id": PUBLISHED, "redirect_uris": [CALLBACK], "grant_types": grants}).encode()
        return Fetched(status=200, headers={"content-type": "application/json"}, body=body)


async def ask_for_strangers(stage: Stage, number: int = 120) -> None:
    for n in range(number):
        stage.address = f"198.51.100.{n // 30}"
        query = urlencode({"client_id": f"https://evil.example/{n}", "redirect_uri": CALLBACK})
        assert (await stage.get(f"authorize?{query}")).status == 400
    stage.address = "203.0.113.7"


async def test_strangers_cannot_shut_out_a_published_program_that_users_know() -> None:
    stage = Stage()
    web = Web(stage)
    program = Program(stage, PUBLISHED)
    tokens = await program.tokens()
    stage.clock.now += 301
    await ask_for_strangers(stage)
    assert (await program.refresh(tokens["refresh_token"])).status == 200
    assert web.asked == 122
    unknown = await Browser(stage).open(Program(stage, "https://new.example.com/client.json").url())
    assert unknown.status == 429


@pytest.mark.parametrize("answer", [None, Fetched(status=503)])
async def test_a_known_document_that_is_away_for_a_while_still_counts(answer: Fetched | None) -> None:
    stage = Stage()
    web = Web(stage)
    program = Program(stage, PUBLISHED)
    token = (await program.tokens())["refresh_token"]
    web.down, web.answer = answer is None, answer
    stage.clock.now += 301
    for asked in (2, 2, 3):  # not before a minute is over
        reply = await program.refresh(token)
        assert (reply.status, web.asked) == (200, asked)
        token = reply.json["refresh_token"]
        stage.clock.now += 31
    stage.clock.now += 7 * 86_400
    assert (await program.refresh(token)).json["error"] == "invalid_client"


async def test_a_known_document_that_was_taken_back_counts_no_more() -> None:
    stage = Stage()
    web = Web(stage)
    program = Program(stage, PUBLISHED)
    token = (await program.tokens())["refresh_token"]
    stage.clock.now += 301
    web.answer = Fetched(status=404)
    assert (await program.refresh(token)).json["error"] == "invalid_client"
    assert not await stage.server._marks.holds("last document", PUBLISHED)


async def test_a_document_that_nobody_has_allowed_is_soon_forgotten() -> None:
    stage = Stage()
    Web(stage)
    await Browser(stage).open(Program(stage, PUBLISHED).url())
    assert not await stage.server._marks.holds("last document", PUBLISHED)


async def test_nobody_learns_which_names_there_are_inside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def getaddrinfo(host: str, port: int, **_: Any) -> Any:
        if host == "builds.corp.internal":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.1.2.3", port))]
        raise socket.gaierror(-2, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    caplog.set_level(logging.INFO, "dovetail.authserver")
    stage, said = Stage(), set()
    for host in ("builds.corp.internal", "nothing.corp.internal"):
        reply = await Browser(stage).open(Program(stage, f"https://{host}/client").url())
        said |= set(re.findall("<p>(.*?)</p>", reply.text))
        assert host in caplog.text
    assert said == {"client_id: no JSON document could be fetched from this URL"}


# ── names of strangers ──


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Names that nobody ever answers for, until the end of the test; how many were asked for."""
    end, asked = threading.Event(), []
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
        if "slow" not in str(host):
            return real(host, *rest, **more)
        asked.append(host)
        end.wait(10)
        raise socket.gaierror(-3, "later")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield lambda: len(asked)
    end.set()


async def test_slow_names_hold_up_nobody_who_signs_in(stuck: Callable[[], int]) -> None:
    stage = Stage()
    asking = [asyncio.create_task(stage.get(Program(stage, f"https://slow{n}.example/c").url())) for n in range(30)]
    await until(lambda: stuck() == 4)
    async with asyncio.timeout(3):
        assert await Program(stage).code()
    assert stuck() == 4, "the others wait"
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


async def test_names_wait_in_a_short_queue(stuck: Callable[[], int]) -> None:
    lookups = NameLookups(threads=1, most=2)
    first, second = (asyncio.create_task(lookups.find(f"slow{n}.example", 1)) for n in range(2))
    await asyncio.sleep(0)
    with pytest.raises(FetchFailed, match="too many names"):
        await lookups.find("127.0.0.1", 1)
    second.cancel()  # it has not begun, so its place is free again
    await asyncio.gather(second, return_exceptions=True)
    third = asyncio.create_task(lookups.find("127.0.0.1", 1))
    await asyncio.sleep(0)
    assert not third.done()
    first.cancel()  # its thread is still busy
    await asyncio.gather(first, return_exceptions=True)
    with pytest.raises(FetchFailed, match="too many names"):
        await lookups.find("127.0.0.1", 1)
    third.cancel()
    assert stuck() == 1


async def test_each_fetch_has_its_own_threads_for_names(stuck: Callable[[], int]) -> None:
    """So that strangers' names do not hold up those that the operator wrote down."""
    strangers, own = make_fetch(timeout=0.2), make_fetch(timeout=5)
    asking = [asyncio.create_task(strangers(FetchRequest(url=f"https://slow{n}.example/"))) for n in range(6)]
    await asyncio.sleep(0)
    with pytest.raises(FetchFailed, match="not an address"):
        await own(FetchRequest(url="https://127.0.0.1/"))
    assert all(isinstance(each, FetchFailed) for each in await asyncio.gather(*asking, return_exceptions=True))
    assert stuck() == 4


# ── signed texts ──


@pytest.mark.parametrize(
    ("audience", "status"),
    [
        (ISSUER, 200),
        ([ISSUER], 200),
        (["https://evil.example", ISSUER], 401),
        ([ISSUER, ISSUER + "/token"], 401),
        ([], 401),
        ([[ISSUER]], 401),
    ],
)
async def test_an_assertion_is_for_us_alone(audience: Any, status: int) -> None:
    key = ECKey.generate_key("P-256")
    client = OAuthClient(id="m", grant_types=["client_credentials"], jwks={"keys": [key.as_dict(private=False)]})
    stage = Stage(clients=[client])
    claims = {"iss": "m", "sub": "m", "aud": audience, "exp": stage.clock.now + 60, "jti": "1"}
    kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    assertion = jwt.encode({"alg": "ES256"}, claims, key)
    form = {"grant_type": "client_credentials", "client_assertion": assertion, "client_assertion_type": kind}
    assert (await stage.token(**form)).status == status


async def test_the_parts_of_a_token_are_not_shown() -> None:
    text = (await Stage().token(basic("ci", SECRET), grant_type="client_credentials")).json["access_token"]
    token = read_token(text)
    assert token is not None
    assert repr(token) == str(token) == "SignedToken()"
