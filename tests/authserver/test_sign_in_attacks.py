"""What others try where users sign in at an identity provider: to ride on a consent, to be signed in as another, to be
redirected to elsewhere, to get what the provider has given.
"""

import asyncio
import base64
import logging
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from authserver_stage import (
    CALLBACK,
    CLIENTS,
    ISSUER,
    NATIVE,
    SECRET,
    Browser,
    Program,
    Reply,
    Stage,
    basic,
    written_in,
)  # fmt: skip
from dovetail.authserver import OAuthClient, Provider, SignIn
from dovetail.authserver.providers import GITHUB
from dovetail.authserver.upstream import UpstreamTokens
from dovetail.errors import SetupError
from dovetail.state.sqlite import SqliteState
from identity_provider import IdentityProvider, visit
from provider_stage import KEYS, SIGN_INS, sent_back, signing

OTHER = "https://app.example.com/other"
ASKED = "<form"  # the consent page
EVIL = "https://evil.example/"


@pytest.fixture
def stage(upstream: IdentityProvider) -> Stage:
    app = OAuthClient(id="app", name="The App", redirect_uris=[CALLBACK, OTHER, NATIVE])
    return Stage(clock=upstream.clock, clients=[app, *CLIENTS[1:]], sign_in=SIGN_INS["keycloak"](upstream, {}))


async def begun(browser: Browser, program: Program, **changed: str | None) -> str:
    """The user has allowed; gives the URL at the provider."""
    reply = await browser.answer(await browser.open(program.url(**changed)))
    return reply.headers["location"]


async def came_back(browser: Browser, program: Program) -> dict[str, str]:
    """The user is back from the provider; gives the parameters of `/callback`, which the browser has not opened."""
    return parameters(await visit(await begun(browser, program)))


def parameters(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))


def callback(**given: str) -> str:
    return f"callback?{urlencode(given)}"


def is_dead_end(reply: Reply, *statuses: int) -> bool:
    """A page without a way on: no redirect, no link, no form."""
    has_way_on = "location" in reply.headers or "<a " in reply.text or ASKED in reply.text
    return reply.status in statuses and not has_way_on


def is_sent_to_provider(reply: Reply, upstream: IdentityProvider) -> bool:
    return reply.status == 303 and reply.headers["location"].startswith(upstream.url("authorize"))


# ── the confused deputy ──


@pytest.mark.rule("AUTH-19", "SEC-1")
async def test_a_consent_is_for_one_program_one_redirect_uri_and_its_scopes(
    stage: Stage, upstream: IdentityProvider, browser: Browser, program: Program
) -> None:
    assert await program.code(browser)
    visits = len(upstream.authorizations)
    for other in (
        Program(stage, "web").url(),  # at the same redirect URI
        Program(stage, redirect_uri=OTHER).url(),
        Program(stage, redirect_uri=NATIVE).url(),
        program.url(scope="notes:read notes:write"),
        program.url(scope=None),  # all that there are
    ):
        page = await browser.open(other)
        assert (page.status, ASKED in page.text) == (200, True)
    assert len(upstream.authorizations) == visits
    for same in (program.url(), program.url(scope="offline_access"), program.url(state=None)):
        assert is_sent_to_provider(await browser.open(same), upstream)
    assert await program.code(browser, scope="notes:read notes:write"), "more was allowed"
    for same in (program.url(), program.url(scope="notes:write")):
        assert is_sent_to_provider(await browser.open(same), upstream), "less is allowed, too"


@pytest.mark.rule("AUTH-19", "SEC-1")
async def test_the_consent_that_the_provider_remembers_is_none_for_a_program_that_registers_itself(
    stage: Stage, upstream: IdentityProvider, browser: Browser, program: Program
) -> None:
    """The provider knows one client, which is allowed there already, and asks nothing again."""
    assert await program.code(browser)
    visits = len(upstream.authorizations)
    known = (await stage.register(redirect_uris=[EVIL], client_name="The App", token_endpoint_auth_method="none")).json
    for _ in range(2):
        page = await browser.open(Program(stage, known["client_id"], EVIL).url())
        assert (page.status, ASKED in page.text, EVIL in page.text) == (200, True, True)
    assert len(upstream.authorizations) == visits


@pytest.mark.rule("AUTH-19", "SEC-1")
async def test_the_consent_of_a_program_that_no_operator_has_checked_is_asked_for_every_time(
    stage: Stage, browser: Browser
) -> None:
    """Another authorization server, which the user's program has asked, sends the browser on to here, with a challenge
    of its choice. A program that does not look at `iss` takes our code for that of the other, and gives it to that.
    """
    metadata = {"redirect_uris": [CALLBACK], "client_name": "The App", "token_endpoint_auth_method": "none"}
    program = Program(stage, (await stage.register(**metadata)).json["client_id"])
    assert await program.code(browser)
    in_the_middle = await browser.open(program.url(state="of the request to the other"))
    assert (in_the_middle.status, ASKED in in_the_middle.text) == (200, True)


@pytest.mark.rule("AUTH-19", "SEC-1")
async def test_a_remembered_consent_is_of_one_user(
    stage: Stage, upstream: IdentityProvider, browser: Browser, program: Program
) -> None:
    assert await program.code(browser)
    upstream.user = "bob"
    page = await browser.sign_in(await browser.open(program.url()))
    assert (page.status, "another user" in page.text) == (403, True)
    assert sent_back(page)["error"] == "access_denied"
    asked = await browser.open(program.url())
    assert ASKED in asked.text, "who sits there now is asked"
    assert "code" in (await browser.sign_in(asked)).sent_to
    upstream.user = "ann"
    assert (await browser.sign_in(await browser.open(program.url()))).status == 403


@pytest.mark.rule("AUTH-19", "SEC-1")
@pytest.mark.parametrize(
    ("issuer", "redirect_uri"),
    [
        (ISSUER, NATIVE),
        (ISSUER, "http://localhost:5555/callback"),
        (ISSUER, "https://localhost/callback"),
        (ISSUER, f"{ISSUER}/elsewhere"),  # it would get the cookie
        ("http://127.0.0.1:8000", CALLBACK),
        ("http://localhost:8000", CALLBACK),
    ],
)
async def test_a_program_that_others_can_imitate_is_asked_about_every_time(
    issuer: str, redirect_uri: str, upstream: IdentityProvider
) -> None:
    upstream.redirect_uri = f"{issuer}/callback"
    client = OAuthClient(id="app", redirect_uris=[redirect_uri])
    stage = Stage(issuer, clock=upstream.clock, clients=[client], sign_in=SIGN_INS["keycloak"](upstream, {}))
    browser, program = Browser(stage), Program(stage, redirect_uri=redirect_uri)
    for _ in range(2):
        page = await browser.open(program.url())
        assert (page.status, ASKED in page.text) == (200, True)
        assert "code" in (await browser.sign_in(page)).sent_to


@pytest.mark.rule("SEC-3")
async def test_a_remembered_consent_is_sealed_and_bound_to_its_program_and_server_and_ends(
    stage: Stage, upstream: IdentityProvider, browser: Browser, program: Program
) -> None:
    await browser.open(program.url())
    await browser.open(program.url())
    assert ASKED in (await browser.open(program.url())).text, "to be asked is not to say yes"
    assert await program.code(browser)
    ((name, value),) = browser.cookies.items()
    for part in value.split("."):
        read = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        assert not any(hidden in read for hidden in (CALLBACK.encode(), b"keycloak:", b"notes:read"))
    other = Browser(stage)
    await other.open(Program(stage, "web").url())
    (name_of_other,) = other.cookies
    forged = (value[:-2] + ("AA" if value[-2:] != "AA" else "BB"), value[1:], value + "A", "", "é")
    for cookies, program_of_them in (
        ({name_of_other: value}, Program(stage, "web")),
        *(({name: each}, program) for each in forged),
    ):
        other.cookies = dict(cookies)
        assert ASKED in (await other.open(program_of_them.url())).text
    elsewhere = Browser(Stage(clock=stage.clock, clients=CLIENTS, sign_in=stage.sign_in))  # with keys of its own
    elsewhere.cookies = dict(browser.cookies)
    assert ASKED in (await elsewhere.open(program.url())).text
    stage.clock.now += 30 * 86_400 + 1
    assert ASKED in (await browser.open(program.url())).text


# ── a callback in the wrong browser, or at the wrong place ──


async def raw(stage: Stage, target: str, cookie: str) -> Reply:
    return await stage.get(target, {"cookie": cookie} if cookie else None)


@pytest.mark.rule("SEC-3", "SEC-5")
async def test_a_callback_counts_only_in_the_browser_that_has_allowed(
    stage: Stage, upstream: IdentityProvider, program: Program
) -> None:
    """Login CSRF: the attacker's state and code, in the browser of a victim, who even uses the same program."""
    victim, attacker = Browser(stage), Browser(stage)
    upstream.user = "bob"
    given = await came_back(attacker, program)
    upstream.user = "ann"
    assert await program.code(victim)
    ((name, own),), ((_, theirs),) = victim.cookies.items(), attacker.cookies.items()
    await victim.open(Program(stage, "web").url())
    asked = list(upstream.asked)
    for cookie in (
        "",
        f"{name}={own}",
        "; ".join(f"{key}={value}" for key, value in victim.cookies.items()),
        f"{name}={own}; {name}={theirs}",  # planted beside it by another way
        f"{name}={theirs}; {name}={own}",
        f"{name}={theirs}; {name}={theirs}",
        f"{name.removeprefix('__Host-')}={theirs}",
        f"{name.upper()}={theirs}",
        f"{name}={theirs}x",
        "; ".join(f"{key}={theirs}" for key in victim.cookies if key != name),
    ):
        assert is_dead_end(await raw(stage, callback(**given), cookie), 403)
    assert upstream.asked == asked, "the code was not even looked at"
    assert "code" in (await attacker.open(callback(**given))).sent_to, "and it is still good where it belongs"


@pytest.mark.rule("SEC-5")
async def test_a_code_that_was_stolen_does_not_fit_the_own_sign_in_even_without_pkce(
    stage: Stage, upstream: IdentityProvider, program: Program
) -> None:
    """PKCE binds a code to its request. Who leaves it out of a request can still not know the nonce of another."""
    thief = Browser(stage)
    url = await begun(thief, program)
    own = parameters(url)
    without_pkce = {key: value for key, value in own.items() if key not in ("code_challenge", "code_challenge_method")}
    without_nonce = {key: value for key, value in without_pkce.items() if key != "nonce"}
    for asked, status in (
        (parameters(await begun(Browser(stage), program)), 400),  # as a victim's browser asks
        (own | {"code_challenge": "x" * 43}, 400),
        (without_pkce | {"nonce": "another"}, 502),
        (without_nonce, 502),
    ):
        stolen = parameters(await visit(f"{upstream.url('authorize')}?{urlencode(asked)}"))
        page = await thief.open(callback(**stolen | {"state": own["state"]}))
        assert page.status == status
        assert "code" not in sent_back(page)
    assert "code" in (await thief.come_back(await visit(url))).sent_to


@pytest.mark.rule("SEC-5")
async def test_a_callback_of_another_server_on_the_same_host_is_not_ours(upstream: IdentityProvider) -> None:
    here, there = (
        Stage(f"https://example.com/{name}", clock=upstream.clock, sign_in=SIGN_INS["keycloak"](upstream, {}))
        for name in "ab"
    )
    shared = Stage(
        "https://example.com/c", clock=upstream.clock, state=here.state, sign_in=SIGN_INS["keycloak"](upstream, {})
    )
    upstream.redirect_uri = "https://example.com/a/callback"
    browser = Browser(here)
    given = await came_back(browser, Program(here))
    asked = list(upstream.asked)
    for other in (there, shared):
        visitor = Browser(other)
        await visitor.open(Program(other).url())
        for cookies in (visitor.cookies, browser.cookies):
            visitor.cookies = dict(cookies)
            assert is_dead_end(await visitor.open(callback(**given)), 403)
    assert upstream.asked == asked
    assert "code" in (await browser.open(callback(**given))).sent_to


async def test_programs_are_remembered_by_each_server_of_a_host(upstream: IdentityProvider) -> None:
    upstream.redirect_uri = "https://example.com/a/callback"
    here, there = (
        Stage(f"https://example.com/{name}", clock=upstream.clock, sign_in=SIGN_INS["keycloak"](upstream, {}))
        for name in "ab"
    )
    browser, visitor = Browser(here), Browser(there)
    assert await Program(here).code(browser)
    visitor.cookies = browser.cookies  # there is one jar
    await visitor.open(Program(there).url())
    assert is_sent_to_provider(await browser.open(Program(here).url()), upstream)


@pytest.mark.parametrize("answer", ["other", "ALLOW", ""])
async def test_an_answer_that_the_page_does_not_offer_leads_nowhere(
    answer: str, browser: Browser, program: Program
) -> None:
    """Another user, say, is for pages with passwords."""
    assert is_dead_end(await browser.answer(await browser.open(program.url()), answer), 403)


# ── redirects ──


@pytest.mark.rule("SEC-4", "AUTH-20")
async def test_a_callback_leads_to_where_the_consent_was_for_and_nowhere_else(stage: Stage, program: Program) -> None:
    more = {"redirect_uri": EVIL, "next": EVIL, "return_to": EVIL, "client_id": "web", "scope": "notes:write"}
    browser = Browser(stage)
    given = await came_back(browser, program)
    back = await browser.open(callback(**given, **more))
    assert back.headers["location"].startswith(f"{CALLBACK}?")
    assert back.sent_to.keys() == {"code", "state", "iss"}
    assert (await program.redeem(back.sent_to["code"])).json["scope"] == "notes:read"
    for unknown in ({**given, "state": "x" * 43}, {"code": "x"}, {"state": ""}, {"error": "access_denied"}, more):
        assert is_dead_end(await browser.open(callback(**unknown)), 403)


@pytest.mark.rule("SEC-4", "SEC-5")
async def test_what_the_provider_says_of_an_error_is_neither_shown_nor_passed_on(
    stage: Stage, upstream: IdentityProvider, program: Program, browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.callback = {
        "error": "<script>alert(1)</script>", "error_description": "Call 0900 1234", "error_uri": EVIL,
    }  # fmt: skip
    page = await browser.sign_in(await browser.open(program.url()))
    assert page.status == 502
    assert sent_back(page) == {"error": "server_error", "state": "st&te=1 é", "iss": ISSUER}
    assert not any(word in page.text for word in ("alert", "0900", "evil"))
    upstream.callback |= {"error": "access_denied"}
    back = await browser.sign_in(await browser.open(program.url()))
    assert back.headers["location"].startswith(f"{CALLBACK}?")
    assert back.sent_to.keys() == {"error", "error_description", "state", "iss"}
    assert (back.sent_to["error"], "0900" in back.sent_to["error_description"]) == ("access_denied", False)
    assert "0900" not in caplog.text


@pytest.mark.rule("SEC-5")
async def test_who_said_no_begins_again(
    stage: Stage, upstream: IdentityProvider, program: Program, browser: Browser
) -> None:
    url = await begun(browser, program)
    good = await visit(url)
    upstream.callback = {"error": "access_denied", "code": None}
    assert (await browser.come_back(await visit(url))).sent_to["error"] == "access_denied"
    assert is_dead_end(await browser.come_back(good), 403)


# ── tabs, and a while ──


async def test_tabs_of_one_program_and_of_others_all_work(stage: Stage, browser: Browser) -> None:
    programs = [Program(stage), Program(stage), Program(stage, redirect_uri=NATIVE), Program(stage, "web")]
    pages = [await browser.open(each.url()) for each in programs]
    away = [await visit((await browser.answer(page)).headers["location"]) for page in reversed(pages)]
    back = [await browser.come_back(url) for url in away]
    for program, reply in zip(programs, reversed(back), strict=True):
        headers = basic("web", SECRET) if program.client_id == "web" else None
        assert (
            await program.redeem(reply.sent_to["code"], headers, client_id=None if headers else "app")
        ).status == 200


@pytest.mark.rule("SEC-2", "SEC-3")
@pytest.mark.parametrize("path", ["page", "callback"])
async def test_who_comes_back_after_an_hour_is_told_to_begin_again(
    path: str, stage: Stage, upstream: IdentityProvider, program: Program, browser: Browser
) -> None:
    page = await browser.open(program.url())
    given = await came_back(browser, program)
    stage.clock.now += 3600
    late = await (browser.answer(page) if path == "page" else browser.open(callback(**given)))
    assert is_dead_end(late, 403)
    assert "Begin again in your program" in late.text
    assert "token" not in upstream.asked


# ── secrets ──


class Recorder(Stage):
    """Keeps all that it answers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.said: list[str] = []

    async def request(self, *given: Any, **more: Any) -> Reply:
        reply = await super().request(*given, **more)
        self.said.append(f"{reply.status} {reply.headers} {reply.text}")
        return reply


@pytest.mark.rule("AUTH-18", "AUTH-9")
@pytest.mark.parametrize("row", ["keycloak", "github", "google"])
async def test_what_the_provider_gives_is_sealed_in_the_store_and_reaches_no_browser_and_no_program(
    row: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dovetail")
    async with signing(row) as here:
        state = SqliteState(tmp_path / "state.db")
        stage = Recorder(clock=here.stage.clock, state=state, sign_in=here.stage.sign_in)
        browser, program = Browser(stage), Program(stage)
        tokens = await program.tokens()
        await program.code(browser)
        await program.code(browser)  # with a consent that is remembered
        stage.clock.now += (here.at.expires_in or 0) + 1
        tokens = (await program.refresh(tokens["refresh_token"])).json
        here.at.callback = {"error": "invalid_request"}
        await browser.sign_in(await browser.open(program.url()))
        here.at.revoke("ann")
        stage.clock.now += (here.at.expires_in or 0) + 1
        held = written_in(tmp_path)
        await program.refresh(tokens["refresh_token"])
        held += written_in(tmp_path)
        assert len(here.at.secrets) > 4
        for secret in here.at.secrets:
            assert secret.encode() not in held
            assert not any(secret in text for text in (*stage.said, caplog.text))
        for person in ("Ann Arbor", "ann@example.com", "583231"):
            assert person.encode() not in held
        await state.close()


def test_no_record_shows_its_tokens_where_variables_are_printed() -> None:
    """As asyncio's debug mode does with the result of a task, and monitoring with the variables of a traceback."""
    tokens = UpstreamTokens(until=1.0, access_token="at-1", refresh_token="rt-1", fresh_until=None)
    assert not any(secret in f"{tokens!r} {[tokens]}" for secret in ("at-1", "rt-1"))


@pytest.mark.parametrize("row", ["github enterprise", "keycloak"])
async def test_a_grant_of_one_provider_is_none_where_another_of_its_kind_is_set_up(row: str) -> None:
    """There the same number is another person."""
    async with signing(row) as here, signing(row) as there:
        tokens = await here.tokens()
        here.program.stage = Stage(clock=here.stage.clock, state=here.stage.state, sign_in=there.stage.sign_in)
        refused = await here.program.refresh(tokens["refresh_token"])
        assert (refused.json["error"], there.at.asked) == ("invalid_grant", [])


# ── limits ──


async def test_sign_ins_are_limited_for_each_network(
    stage: Stage, upstream: IdentityProvider, program: Program, browser: Browser
) -> None:
    page = await browser.open(program.url())
    for _ in range(300):
        assert is_sent_to_provider(await browser.answer(page), upstream)
    refused = await browser.answer(page)
    assert (refused.status, 0 < int(refused.headers["retry-after"]) <= 900) == (429, True)
    assert sent_back(refused)["error"] == "temporarily_unavailable"
    stage.address = "198.51.100.1"
    assert is_sent_to_provider(await browser.answer(page), upstream)
    stage.address = "203.0.113.7"
    stage.clock.now += 901
    assert is_sent_to_provider(await browser.answer(await browser.open(program.url())), upstream)


async def test_consents_are_limited_for_each_user(
    stage: Stage, upstream: IdentityProvider, program: Program, browser: Browser
) -> None:
    """Each is kept for long, with the tokens of the provider."""
    replies = [await browser.sign_in(await browser.open(program.url())) for _ in range(61)]
    assert [reply.status for reply in replies] == [303] * 60 + [429]
    assert sent_back(replies[-1])["error"] == "temporarily_unavailable"
    upstream.user = "bob"
    other = Browser(stage)
    assert "code" in (await other.sign_in(await other.open(program.url()))).sent_to


@pytest.mark.rule("SEC-5")
async def test_nothing_is_stored_before_the_consent(
    stage: Stage, upstream: IdentityProvider, program: Program, browser: Browser
) -> None:
    page = await browser.open(program.url())  # the keys of the server are made
    before = stage.state.held
    await browser.answer(await browser.open(program.url()), "deny")
    for target in ("callback", callback(state="x" * 43, code="y"), callback(error="access_denied", state="x")):
        await browser.open(target)
    assert (stage.state.held, upstream.asked) == (before, [])
    await browser.answer(page)
    assert stage.state.held > before


# ── any input ──

WORDS = st.one_of(
    st.text(max_size=30), st.sampled_from(["access_denied", "server_error", "https://evil.example", "\r\nX: y", "é"])
)
FIELDS = st.lists(
    st.tuples(st.sampled_from(["code", "state", "error", "error_description", "iss", "redirect_uri", "x"]), WORDS),
    max_size=6,
)


@given(st.one_of(FIELDS.map(lambda pairs: urlencode(pairs, errors="replace").encode()), st.binary(max_size=80)))
def test_any_query_ends_in_a_page(query: bytes) -> None:
    async def run() -> None:
        stage = Stage(sign_in=SignIn.github(*KEYS))
        browser = Browser(stage)
        await browser.open(Program(stage).url())
        reply = await browser.open("callback?" + query.decode("latin-1"))
        assert is_dead_end(reply, 400, 403)

    asyncio.run(run())


@given(FIELDS)
def test_any_answer_to_a_sign_in_that_was_begun_leads_to_its_program_or_a_page(pairs: list[tuple[str, str]]) -> None:
    """No code is good at this provider: nobody listens."""

    async def run() -> None:
        stage = Stage(sign_in=SignIn.github(*KEYS, url="http://127.0.0.1:1"))
        browser = Browser(stage)
        sent = await browser.answer(await browser.open(Program(stage).url()))
        given = [(key, value) for key, value in pairs if key != "state"]
        query = urlencode([*given, ("state", sent.sent_to["state"])], errors="replace")
        reply = await browser.open(f"callback?{query}")
        if reply.status == 303:
            assert reply.headers["location"].startswith(f"{CALLBACK}?error=access_denied&")
        else:
            assert reply.status in (400, 502, 503)
            assert "<a " not in reply.text or "code" not in sent_back(reply)

    asyncio.run(run())


# ── who may come in, by functions ──


async def answered(answer: Any) -> Any:
    await asyncio.sleep(0)
    if isinstance(answer, Exception):
        raise answer
    return answer


def plain_function(answer: Any) -> Any:
    def function(_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return function


def function_of(kind: str, answer: Any) -> Any:
    return plain_function(answer) if kind == "plain" else lambda _: answered(answer)


TOO_BAD = ValueError("the database of members, at db.internal, is down")
ODD: list[tuple[Any, int, str]] = [
    (False, 403, "may not sign in here"),
    (None, 403, "may not sign in here"),
    (1, 403, "may not sign in here"),
    ("", 403, "may not sign in here"),
    (["yes"], 403, "may not sign in here"),
    ("Ask <b>Eve</b> first.", 403, "Ask &lt;b&gt;Eve&lt;/b&gt; first."),
    (TOO_BAD, 500, "could not tell"),
]


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize(("answer", "status", "words"), ODD)
async def test_only_true_lets_in(
    kind: str, answer: Any, status: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with signing("keycloak", allow=function_of(kind, answer)) as here:
        page = await here.sign_in()
        assert (page.status, words in page.text) == (status, True)
        assert sent_back(page)["error"] == ("access_denied" if status == 403 else "server_error")
        assert "db.internal" not in page.text
        assert ("db.internal" in caplog.text) == (answer is TOO_BAD), "operators read why"
    async with signing("keycloak", allow=function_of(kind, True)) as here:
        assert await here.tokens()


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize(
    ("answer", "status"),
    [([], 403), ((), 403), (["else"], 403), (None, 500), ("not a scope", 500), (7, 500), ([[]], 500), (TOO_BAD, 500)],
)
async def test_scopes_for_gives_no_more_than_it_says(kind: str, answer: Any, status: int) -> None:
    async with signing("keycloak", scopes_for=function_of(kind, answer)) as here:
        page = await here.sign_in()
        assert page.status == status
        assert sent_back(page)["error"] == ("access_denied" if status == 403 else "server_error")
        here.keeps_secrets(page.text)
    for enough in (["notes:read"], {"notes:read", "more"}, iter(["notes:read"]), "notes:read"):
        async with signing("keycloak", scopes_for=function_of(kind, enough)) as here:
            assert (await here.tokens())["scope"] == "notes:read"


async def test_who_has_no_rights_stays_out_even_if_none_are_asked_for() -> None:
    async with signing("keycloak", scopes_for=lambda _: []) as here:
        browser = Browser(here.stage)
        page = await browser.sign_in(await browser.open(here.program.url(scope="offline_access")))
        assert page.status == 403


# ── set up ──

OWN = {"name": "Own", "key": "own"}
AT = {"authorization_endpoint": "https://a.example/a", "token_endpoint": "https://a.example/t"}
WRONG: list[tuple[Any, str]] = [
    (lambda: SignIn("github", *KEYS), "a Provider"),
    (lambda: SignIn.github("", "secret"), "client_id= is empty"),
    (lambda: SignIn.github("id", "  "), "client_secret= is empty"),
    (lambda: SignIn.github(None, "secret"), "client_id= is empty"),
    (lambda: SignIn.discord(1234567890, "secret"), "client_id= is empty"),
    (lambda: SignIn.github(*KEYS, scopes=5), "scopes=5 is not possible"),
    (lambda: SignIn.github(*KEYS, scopes=[5]), "5 can't be a scope"),
    (lambda: SignIn.github(*KEYS, scopes="repo gist"), "'repo gist' can't be a scope"),
    (lambda: SignIn.github(*KEYS, scopes_for=["notes:read"]), "a function of the claims"),
    (lambda: SignIn.github(*KEYS, allow=[]), "allow=[]"),
    (lambda: SignIn.github(*KEYS, allow="acme"), "allow='acme'"),
    (lambda: SignIn.github(*KEYS, allow={}), "its keys are domains, organizations, groups"),
    (lambda: SignIn.github(*KEYS, allow={"users": ["ann"]}), "its keys are domains, organizations, groups"),
    (lambda: SignIn.github(*KEYS, allow={"organizations": "acme"}), "write a list"),
    (lambda: SignIn.github(*KEYS, allow={"organizations": []}), "write a list"),
    (lambda: SignIn.github(*KEYS, allow={"organizations": 5}), "write a list"),
    (lambda: SignIn.github(*KEYS, allow={"organizations": [None]}), "write a list"),
    (lambda: SignIn.github(*KEYS, allow={"groups": ["staff"]}), "GitHub tells no groups"),
    (lambda: SignIn.google(*KEYS, allow={"organizations": ["acme"]}), "Google tells no organizations"),
    (lambda: SignIn.oidc("http://id.example.com", *KEYS), "not https"),
    (lambda: SignIn.oidc("id.example.com", *KEYS), "whole URL"),
    (lambda: SignIn.oidc("", *KEYS), "issuer= is empty"),
    # what os.environ.get() gives for a variable that is not set
    (lambda: SignIn.oidc(None, *KEYS), "issuer= is empty"),
    (lambda: SignIn.github(*KEYS, url=None), "url= is empty"),
    (lambda: SignIn.entra(*KEYS, tenant=None), "tenant= is empty"),
    (lambda: SignIn.entra(*KEYS, tenant="common", cloud=None), "cloud= is empty"),
    (lambda: SignIn.auth0(*KEYS, domain=None), "domain= is empty"),
    (lambda: SignIn.okta(*KEYS, domain=None), "domain= is empty"),
    (lambda: SignIn.okta(*KEYS, domain="acme.okta.com", server=""), "server= is empty"),
    (lambda: SignIn.keycloak(*KEYS, url=None, realm="acme"), "url= is empty"),
    (lambda: SignIn.keycloak(*KEYS, url="https://id.acme.com", realm=None), "realm= is empty"),
    (lambda: SignIn.cognito(*KEYS, region=None, pool="a"), "region= is empty"),
    (lambda: SignIn.cognito(*KEYS, region="eu-central-1", pool=None), "pool= is empty"),
    (lambda: SignIn.workos(*KEYS, domain=None), "domain= is empty"),
    (lambda: SignIn.github(*KEYS, url="http://github.example.com"), "not https"),
    (lambda: SignIn.auth0(*KEYS, domain=""), "domain= is empty"),
    (lambda: SignIn.auth0(*KEYS, domain="acme auth0.com"), "whole URL"),
    (lambda: SignIn.entra(*KEYS, tenant="acme.com"), "write its id, not its domain"),
    (lambda: SignIn.entra(*KEYS, tenant=""), "tenant= is empty"),
    (lambda: SignIn(Provider(**OWN), *KEYS), ""),
    (lambda: SignIn(Provider(**OWN, issuer=ISSUER, subject="account_id"), *KEYS), "$.subject"),  # not ten claims
    (lambda: SignIn(Provider(**OWN, issuer=ISSUER, subject=()), *KEYS), "$.subject"),  # all users would be one
    (lambda: SignIn(Provider(**OWN, issuer=ISSUER, scopes="openid email"), *KEYS), "$.scopes"),
    (lambda: SignIn(Provider(**OWN, issuer=ISSUER, lists=[("a", "b", "c")]), *KEYS), "$.lists"),
    (lambda: SignIn(Provider(name="Own", key=None, issuer=ISSUER), *KEYS), "$.key"),
    (lambda: SignIn(Provider(**OWN, **AT), *KEYS), ""),  # nothing would say who the user is
    (lambda: SignIn(Provider(**OWN, **AT, userinfo_endpoint="http://a.example/u"), *KEYS), "not https"),
    (lambda: Stage(sign_in=GITHUB), "sign_in= is a Provider"),
    (lambda: Stage(sign_in={"ann": "a hash"}), "sign_in= is a dict"),
]


@pytest.mark.parametrize(("make", "words"), WRONG)
def test_what_can_not_work_is_refused_at_the_start_with_its_fix(make: Any, words: str) -> None:
    with pytest.raises(SetupError) as refused:
        make()
    assert words in str(refused.value)
    assert KEYS[1] not in str(refused.value)


def test_an_option_that_is_misspelled_lets_nobody_in() -> None:
    more: Any = {"alow": {"organizations": ["acme"]}}
    with pytest.raises(TypeError, match="alow"):
        SignIn.github(*KEYS, **more)


async def test_there_is_no_callback_where_users_have_passwords() -> None:
    assert (await Stage().get("callback?code=x&state=y")).status == 404
