"""What others try: copies of codes and tokens, redirects to elsewhere, no PKCE, foreign forms, scripts in names."""

import logging
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from authserver_stage import CALLBACK, FORM, ISSUER, NATIVE, SECRET, Browser, Program, Stage, basic, hidden_fields
from dovetail.authserver import OAuthClient
from dovetail.authserver.oauth_http import is_registered, url_problem
from provider_stage import EITHER_WAY

SIGNED_IN = "__Host-dovetail-user"

# ── copies ──


@EITHER_WAY
async def test_a_replayed_code_ends_what_was_made_of_it(
    caplog: pytest.LogCaptureFixture, stage: Stage, program: Program
) -> None:
    code = await program.code()
    tokens = (await program.redeem(code)).json
    with caplog.at_level(logging.WARNING):
        assert (await program.redeem(code)).json["error"] == "invalid_grant"
    assert code not in caplog.text
    assert not await stage.may_call(tokens["access_token"])
    assert (await program.refresh(tokens["refresh_token"])).json["error"] == "invalid_grant"


@EITHER_WAY
@pytest.mark.parametrize(
    "changed",
    [
        {"code_verifier": "x" * 43}, {"code_verifier": "short"}, {"code_verifier": "é" * 50},
        {"redirect_uri": CALLBACK + "/"}, {"redirect_uri": NATIVE}, {"code": "nonsense"}, {"code": "é"},
        {"code": "A" * 20_000},
    ],
)  # fmt: skip
async def test_a_code_is_bound_to_its_request(changed: dict[str, str], program: Program) -> None:
    code = await program.code()
    assert (await program.redeem(code, **changed)).json["error"] == "invalid_grant"
    assert (await program.redeem(code)).status == 200, "a wrong try does not spend it"


@EITHER_WAY
async def test_one_kind_of_text_is_not_taken_for_another(stage: Stage, program: Program, browser: Browser) -> None:
    page = await browser.open(program.url())
    form = hidden_fields(page.text)["form"]
    code = (await browser.sign_in(page)).sent_to["code"]
    assert (await program.refresh(code)).json["error"] == "invalid_grant"
    assert (await program.redeem(form)).json["error"] == "invalid_grant"
    tokens = (await program.redeem(code)).json
    assert (await program.redeem(tokens["refresh_token"])).json["error"] == "invalid_grant"
    for text in (form, code, tokens["refresh_token"], tokens["access_token"][:-4] + "AAAA", "", "a.b.c", "é.é.é"):
        assert not await stage.may_call(text)


async def test_tokens_of_another_issuer_or_for_another_resource_are_not_ours(stage: Stage) -> None:
    other = Stage(state=stage.state, resource="https://other.example.com/mcp")  # with the same keys
    token = (await Program(other).redeem(await Program(other).code(resource=None))).json
    assert token["error"] == "invalid_grant"  # two programs, two verifiers
    token = (await Program(other).tokens(resource=None))["access_token"]
    assert await other.may_call(token)
    assert not await stage.may_call(token)
    assert not await stage.may_call((await Program(Stage("https://else.example.com")).tokens())["access_token"])


# ── redirects ──


REDIRECT_TRICKS = [
    "https://app.example.com/callback/../evil", "https://app.example.com/callback/",
    "https://app.example.com/callback2", "https://app.example.com/callback?x=1",
    "https://app.example.com/callback#fragment", "https://app.example.com/CALLBACK",
    "https://APP.example.com/callback", "https://app.example.com:8443/callback",
    "https://app.example.com.evil.example/callback", "https://app.example.com@evil.example/callback",
    "https://evil.example/?https://app.example.com/callback", "https://evil.example\\@app.example.com/callback",
    "http://app.example.com/callback", "//app.example.com/callback", "javascript:alert(1)",
    "https://app.example.com/callback\r\nX-Evil: 1", "https://app.example.com/callback%0d%0a",
    " https://app.example.com/callback", "http://127.0.0.1:80@evil.example/callback", "http://127.0.0.1:8080/other",
    "http://127.0.0.1.evil.example/callback", "http://127.0.0.1:999999/callback", "http://127.0.0.2:8080/callback",
    "http://localhost:8080/callback", "http://[::1]:8080/callback", "https://127.0.0.1/callback", "",
]  # fmt: skip


@EITHER_WAY
@pytest.mark.rule("SEC-4", "AUTH-20")
@pytest.mark.parametrize("redirect_uri", REDIRECT_TRICKS)
async def test_a_browser_is_never_sent_elsewhere(redirect_uri: str, stage: Stage) -> None:
    page = await Browser(stage).open(Program(stage).url(redirect_uri=redirect_uri))
    assert page.status == 400
    assert "location" not in page.headers
    assert page.headers["content-type"].startswith("text/html")
    assert "<form" not in page.text


@EITHER_WAY
@pytest.mark.parametrize("port", ["", ":1", ":8080", ":65535"])
async def test_a_program_on_this_machine_takes_any_port(port: str, stage: Stage) -> None:
    program = Program(stage, redirect_uri=f"http://127.0.0.1{port}/callback")
    page = await Browser(stage).open(program.url())
    assert "a program on this computer" in page.text
    assert await program.tokens()


@given(st.text(max_size=60), st.sampled_from([CALLBACK, NATIVE, "http://[::1]:1/x?y=z"]))
def test_a_matching_uri_is_registered_but_for_its_port(more: str, registered: str) -> None:
    for uri in (registered + more, more + registered, registered[:12] + more + registered[12:], more):
        if uri != registered and is_registered(uri, [registered]):
            assert re.sub(r":\d{1,5}(?=[/?]|$)", "", uri) == re.sub(r":\d{1,5}(?=[/?]|$)", "", registered)
            assert url_problem(uri, "it") is None or re.search(r":\d{5}", uri)


@given(st.text(max_size=80))
def test_any_text_is_judged(text: str) -> None:
    for uri in (text, f"https://{text}", f"http://127.0.0.1{text}"):
        if url_problem(uri, "it") is None:
            assert uri.isascii()
            assert not set(uri) & set(" \t\r\n\\\"'<>#@") - {"'", "@"}


# ── requests ──


@EITHER_WAY
@pytest.mark.parametrize(
    ("changed", "error"),
    [
        *(({"code_challenge": each}, "invalid_request") for each in (None, "short", "x" * 44)),
        *(({"code_challenge_method": each}, "invalid_request") for each in (None, "plain")),
        ({"code_challenge": None, "code_challenge_method": None}, "invalid_request"),
        *(({"response_type": each}, "unsupported_response_type") for each in (None, "token")),
        ({"response_mode": "fragment"}, "invalid_request"),
        ({"scope": "notes:read admin"}, "invalid_scope"),
        *(
            ({"resource": f"https://{each}"}, "invalid_target")
            for each in ("other.example/mcp", "notes.example.com/mcp#x")
        ),
    ],
)
async def test_a_wrong_request_is_reported_to_the_program(changed: dict[str, Any], error: str, stage: Stage) -> None:
    sent = (await Browser(stage).open(Program(stage).url(**changed))).sent_to
    assert (sent["error"], sent["iss"], sent["state"]) == (error, ISSUER, "st&te=1 é")
    assert "code" not in sent


@EITHER_WAY
@pytest.mark.rule("SEC-5")
@pytest.mark.parametrize("state", ["x" * 2000, "a\r\nSet-Cookie: b=c", "%00&code=evil&iss=evil", "<script>", "é ü"])
async def test_state_comes_back_exactly_and_changes_nothing_else(state: str, stage: Stage, browser: Browser) -> None:
    back = await browser.sign_in(await browser.open(Program(stage).url(state=state)))
    assert back.sent_to["state"] == state
    assert back.sent_to.keys() == {"code", "state", "iss"}
    known = {"location", "cache-control", "referrer-policy", "set-cookie", "content-type", "content-length"}
    assert set(back.headers) <= known


@EITHER_WAY
async def test_twice_the_same_parameter_is_refused(stage: Stage) -> None:
    url = Program(stage).url()
    for more in ("&client_id=web", "&redirect_uri=https%3A%2F%2Fevil.example", "&state=2", "&scope="):
        page = await Browser(stage).open(url + more)
        assert (page.status, "location" in page.headers) == (400, False)
    body = b"grant_type=client_credentials&grant_type=password"
    reply = await stage.request("POST", "/token", body, {"content-type": FORM, **basic("ci", SECRET)})
    assert reply.json["error"] == "invalid_request"


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"x" * 40_000, FORM, 413),
        (b"grant_type=x", "application/json", 415),
        (b"grant_type=x", "text/plain", 415),
        (b"&".join(b"a%d=1" % n for n in range(60)), FORM, 400),
        (b"grant_type=%ff%fe", FORM, 400),
        (b"\xff\xfe", FORM, 400),
        (b"", FORM, 401),
    ],
)
async def test_bodies_are_bounded_and_forms(body: bytes, kind: str, status: int) -> None:
    for path in ("/token", "/revoke"):
        reply = await Stage().request("POST", path, body, {"content-type": kind})
        assert reply.status == status
        assert reply.json["error"] in ("invalid_request", "invalid_client")


@given(st.binary(max_size=200))
async def test_any_bytes_are_answered_with_an_error(body: bytes) -> None:
    stage = Stage()
    for path, method in (("/token", "POST"), ("/revoke", "POST"), ("/authorize", "POST"), ("/register", "POST")):
        reply = await stage.request(method, path, body, {"content-type": FORM, "authorization": "Basic YTpi"})
        assert 400 <= reply.status < 500


# ── the page ──


@pytest.mark.rule("SEC-2")
async def test_the_page_says_who_wants_what_and_every_time(stage: Stage, browser: Browser) -> None:
    for _ in range(2):
        page = await browser.open(Program(stage).url(scope="notes:read notes:write"))
        for shown in ("The App", "Read your notes", "Change your notes", "app.example.com", CALLBACK, "30 days"):
            assert shown in page.text
        await browser.sign_in(page)
    other = await browser.open(Program(stage, "web").url())
    assert "<form" in other.text, "a consent for one program is none for another"


@EITHER_WAY
@pytest.mark.rule("SEC-2")
async def test_no_page_can_be_framed_or_loads_anything(stage: Stage) -> None:
    for page in (await Browser(stage).open(Program(stage).url()), await Browser(stage).open("authorize")):
        assert page.headers["x-frame-options"] == "DENY"
        policy = page.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["cache-control"] == "no-store"
        assert not re.search(
            r"<(script|img|link|iframe|object|embed|base)|\b(src|srcset|href)=|url\(|@import", page.text
        )


@EITHER_WAY
@pytest.mark.rule("SEC-2")
async def test_a_name_is_never_markup(stage: Stage) -> None:
    name = "<script>alert(1)</script>\"' onload=x &amp; \u202egnirts\r\nX: y"
    registered = (await stage.register(redirect_uris=[CALLBACK], client_name=name)).json
    page = (await Browser(stage).open(Program(stage, registered["client_id"]).url())).text
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page
    assert registered["client_name"].isprintable()


async def answer_without(browser: Browser, page: Any, **changed: str | None) -> Any:
    form = {**hidden_fields(page.text), "answer": "allow", "name": "ann", "password": "x", **changed}
    headers = {"cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}
    return await browser.stage.post("authorize", {k: v for k, v in form.items() if v is not None}, headers)


@EITHER_WAY
@pytest.mark.rule("SEC-2", "SEC-3")
async def test_a_form_counts_only_from_the_browser_that_was_asked(stage: Stage) -> None:
    program, browser, attacker = Program(stage, redirect_uri=NATIVE), Browser(stage), Browser(stage)
    await program.code(browser)  # signed in, so a click would do
    page, theirs = await browser.open(program.url()), await attacker.open(program.url())
    other = await attacker.open(Program(stage, "web").url())
    victim = {name: value for name, value in browser.cookies.items() if "user" in name}
    for cookies, form in (
        (browser.cookies, theirs),  # a form that was made for another browser
        (victim, page),  # no cookie at all
        (browser.cookies, other),  # a form about another program
        ({name: value[:-2] + "AA" for name, value in browser.cookies.items()}, page),  # a forged cookie
        ({name.replace("asked", "asked2"): value for name, value in browser.cookies.items()}, page),
    ):
        cheated = Browser(stage)
        cheated.cookies = dict(cookies)
        reply = await cheated.answer(form)
        assert (reply.status, "location" in reply.headers) == (403, False)
    for wrong in (None, "", "nonsense", "A" * 5000):
        assert (await answer_without(browser, page, form=wrong)).status == 403
    assert (await answer_without(browser, page, answer=None)).status == 403
    assert (await answer_without(browser, page, answer="ALLOW")).status == 403
    assert "code" in (await browser.sign_in(page)).sent_to


@EITHER_WAY
@pytest.mark.rule("SEC-5")
async def test_a_question_is_answered_once_and_soon(stage: Stage, browser: Browser, program: Program) -> None:
    page = await browser.open(program.url())
    assert "code" in (await browser.sign_in(page)).sent_to
    assert (await browser.sign_in(page)).status == 403
    late = await browser.open(program.url())
    stage.clock.now += 601
    assert (await browser.sign_in(late)).status == 403


# ── which program gets the error ──

WRONG = [
    ({"response_type": "token"}, "unsupported_response_type"),
    ({"code_challenge": None}, "invalid_request"),
    ({"scope": "admin"}, "invalid_scope"),
]


@EITHER_WAY
@pytest.mark.rule("SEC-5")
@pytest.mark.parametrize(
    ("redirect_uri", "is_reported"),
    [
        ("http://127.0.0.1:5555/callback", True),
        ("http://localhost:5555/callback", True),
        ("http://[::1]:5555/callback", True),
        ("https://elsewhere.example.com/callback", False),
        ("https://127.0.0.1.nip.io/", False),
    ],
)
@pytest.mark.parametrize(("wrong", "error"), WRONG)
async def test_who_registers_can_only_send_people_to_their_own_machine(
    redirect_uri: str, is_reported: bool, wrong: dict[str, Any], error: str, stage: Stage
) -> None:
    registered = await stage.register(redirect_uris=[redirect_uri], token_endpoint_auth_method="none")
    program, browser = Program(stage, registered.json["client_id"], redirect_uri), Browser(stage)
    reply = await browser.open(program.url(**wrong))
    if is_reported:
        assert reply.headers["location"].startswith(redirect_uri + "?")
        assert (reply.sent_to["error"], reply.sent_to["iss"]) == (error, ISSUER)
    else:
        assert (reply.status, "location" in reply.headers, "<a " in reply.text) == (400, False, False)
    denied = await browser.answer(await browser.open(program.url()), "deny")
    assert denied.sent_to["error"] == "access_denied", "after a look at the page the program gets the error"


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
