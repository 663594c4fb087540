"""Providers that lie, fail, are slow or say no: nothing is granted, nothing is leaked, and a page says what to do."""

import asyncio
import logging
from urllib.parse import parse_qsl, urlsplit

import pytest

from authserver_stage import CALLBACK, ISSUER, Browser
from http_serving import until
from identity_provider import visit
from issuer_stage import OTHER_RSA
from provider_stage import Signing, said, signing

UNTRUSTED, UNAVAILABLE = (502, "server_error", "can't be trusted"), (503, "temporarily_unavailable", "Try again")
NOT_SET_UP = (502, "server_error", "not set up")

# what a provider does, and what the operator reads
LIES = {
    "iss": "its issuer is 'https://evil.example'",
    "short iss": "its issuer is '127.0.0.1",
    "odd iss": "its issuer is",
    "aud": "for another client",
    "no aud": "for another client",
    "two aud": "its authorized party is another client",
    "two aud, no azp": "its authorized party is another client",
    "azp": "its authorized party is another client",
    "nonce": "its nonce is another",
    "no nonce": "its nonce is another",
    "expired": "it has expired",
    "no exp": "it has expired",
    "no sub": "it names no user",
    "odd sub": "it names no user",
    "none": "none that can be read",
    "HS256": "its algorithm is 'HS256'",
    "unknown key": "no key of the provider has signed it",
    "same kid": "no key of the provider has signed it",
    "broken signature": "no key of the provider has signed it",
    "no id_token": "there is no id token",
    "odd id_token": "there is no id token",
    "no access_token": "access_token",
    "odd access_token": "access_token",
    "token_type": "no bearer token",
    "other sub": "of another user than the id token",
}
METADATA_LIES = {
    "metadata of another": "is of another issuer: 'https://evil.example'",
    "http endpoints": "not https",
    "http authorize": "not https",
    "no endpoints": "authorization_endpoint",
}


async def refuses(here: Signing, page: tuple[int, str, str], caplog: pytest.LogCaptureFixture, cause: str) -> None:
    """Sign in, and see the page, the cause in the log, and nothing granted or leaked."""
    caplog.set_level(logging.DEBUG, "dovetail")
    here.refused(await here.sign_in(), *page)
    assert cause in said(caplog, logging.WARNING)
    here.keeps_secrets(caplog.text)


@pytest.mark.rule("SEC-6")
@pytest.mark.parametrize(("lie", "cause"), LIES.items())
async def test_a_lie_signs_nobody_in(lie: str, cause: str, caplog: pytest.LogCaptureFixture) -> None:
    async with signing() as here:
        here.at.lies = {lie}
        await refuses(here, UNTRUSTED, caplog, cause)
        here.at.lies = set()
        assert await here.tokens(), "it was the lie"


@pytest.mark.parametrize(("lie", "cause"), METADATA_LIES.items())
async def test_metadata_that_lie_send_nobody_anywhere(lie: str, cause: str, caplog: pytest.LogCaptureFixture) -> None:
    async with signing() as here:
        here.at.lies = {lie}
        browser = Browser(here.stage)
        page = await browser.answer(await browser.open(here.program.url()))
        here.refused(page, *UNTRUSTED)
        assert cause in said(caplog, logging.WARNING)
        assert here.at.asked == ["metadata"]


@pytest.mark.parametrize(("lie", "cause"), [
    ("tid", "its issuer"), ("no tid", "its issuer"), ("iss", "its issuer"),
])  # fmt: skip
async def test_the_issuer_of_entra_is_that_of_the_users_tenant(
    lie: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with signing("entra", tenant="organizations") as here:
        here.at.lies = {lie}
        await refuses(here, UNTRUSTED, caplog, cause)


@pytest.mark.parametrize("row", ["github", "discord"])
@pytest.mark.parametrize(("lie", "cause"), [
    ("no id", "name no user"), ("odd id", "name no user"), ("no access_token", "access_token"),
    ("odd access_token", "access_token"), ("token_type", "no bearer token"),
])  # fmt: skip
async def test_a_provider_without_id_tokens_lies(
    row: str, lie: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with signing(row) as here:
        here.at.lies = {lie}
        await refuses(here, UNTRUSTED, caplog, cause)


async def test_an_id_token_for_several_with_us_as_its_party_is_taken() -> None:
    async with signing() as here:
        here.at.lies = {"two aud, azp"}
        assert await here.tokens()


async def test_a_key_that_was_announced_may_sign_at_once() -> None:
    async with signing() as here:
        here.at.keys.append(OTHER_RSA)
        assert await here.tokens()
        here.at.keys.reverse()
        assert await here.tokens()
        assert here.at.asked.count("jwks") == 1


# ── failures ──

HOWS = ["down", "endless", "huge", "html 200", "html 500", "json 500", "busy", "no json", "no object", "nothing",
        "deep json", "redirect"]  # fmt: skip
ENDPOINTS = [("oidc", "token"), ("oidc", "userinfo"), ("oidc", "jwks"), ("github", "token"), ("github", "userinfo")]
ENDPOINTS += [("github", "list")]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("row", "endpoint"), ENDPOINTS)
async def test_a_failure_is_a_page_and_the_next_try_may_succeed(
    row: str, endpoint: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with signing(row) as here:
        here.at.failures = {endpoint: how}
        await refuses(
            here, UNAVAILABLE, caplog, here.at.elsewhere if row == "github" and endpoint != "token" else "http"
        )
        assert "/trap" not in here.at.asked, "no redirect is followed with a code or a token"
        here.at.failures = {}
        if endpoint != "jwks":  # after a failure, keys are asked for again in five seconds
            assert await here.tokens()


@pytest.mark.parametrize("how", HOWS)
async def test_a_provider_whose_metadata_fail_is_a_page(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async with signing() as here:
        here.at.failures = {"metadata": how}
        browser = Browser(here.stage)
        page = await browser.open(here.program.url())
        here.refused(await browser.answer(page), *UNAVAILABLE)
        assert "/.well-known/openid-configuration" in said(caplog, logging.WARNING)
        here.at.failures = {}
        assert (await browser.sign_in_elsewhere(page)).sent_to["code"], "the same page can be answered again"


async def test_a_provider_that_was_down_may_be_back_when_the_page_is_reloaded() -> None:
    async with signing("github") as here:
        browser = Browser(here.stage)
        callback = await visit((await browser.answer(await browser.open(here.program.url()))).headers["location"])
        here.at.failures = {"token": "down"}
        here.refused(await browser.come_back(callback), *UNAVAILABLE)
        here.at.failures = {}
        assert (await browser.come_back(callback)).sent_to["code"]


@pytest.mark.parametrize("row", ["github", "discord"])
async def test_a_list_that_a_user_may_not_see_is_empty(row: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dovetail")
    async with signing(row, allow={"organizations": ["acme"]}) as here:
        here.at.failures = {"list": "rate limit"}
        here.refused(await here.sign_in(), 403, "access_denied", "only for some organizations")
        assert "answered 403" in said(caplog)


async def test_a_slow_provider_keeps_nobody_else_waiting() -> None:
    async with signing("github") as here:
        here.at.failures = {"token": "slow"}
        waiting = asyncio.create_task(here.sign_in("ann"))
        await until(lambda: "token" in here.at.asked)
        here.at.failures = {}
        assert await here.tokens("bob")
        assert not waiting.done()
        here.at.go.set()
        assert (await waiting).sent_to["code"]


@pytest.mark.soak
async def test_a_provider_that_is_too_slow_is_a_page(caplog: pytest.LogCaptureFixture) -> None:
    async def wait(endpoint: str) -> None:
        async with signing() as here:
            here.at.failures = {endpoint: "slow"}
            here.refused(await here.sign_in(), *UNAVAILABLE)

    await asyncio.gather(*map(wait, ("token", "userinfo", "jwks")))
    assert said(caplog, logging.WARNING).count("did not answer within") == 3


# ── what the provider says in the user's browser ──


async def test_the_users_no_goes_to_the_program_at_once_and_uses_the_state_up() -> None:
    async with signing() as here:
        here.at.callback = {"error": "access_denied", "error_description": "secret <b>words</b>"}
        browser = Browser(here.stage)
        callback = await visit((await browser.answer(await browser.open(here.program.url()))).headers["location"])
        reply = await browser.come_back(callback)
        assert reply.headers["location"].startswith(f"{CALLBACK}?")
        assert reply.sent_to == {
            "error": "access_denied",
            "error_description": "The user or the provider said no",
            "state": "st&te=1 é",
            "iss": ISSUER,
        }
        assert (await browser.come_back(callback.replace("error=access_denied", "code=1"))).status == 403
        assert "token" not in here.at.asked


@pytest.mark.parametrize(("error", "page", "cause"), [
    ("server_error", UNAVAILABLE, "says server_error"),
    ("temporarily_unavailable", UNAVAILABLE, "says temporarily_unavailable"),
    ("invalid_scope", NOT_SET_UP, "refuses this server with 'invalid_scope'"),
    ("application_suspended", NOT_SET_UP, "'application_suspended'"),
    ("redirect_uri_mismatch", NOT_SET_UP, "'redirect_uri_mismatch'"),
    ("<script>alert(1)</script>\r\nx: y", NOT_SET_UP, "'<script>alert(1)</script>  x: y'"),
    ("login_required", (400, "access_denied", "Begin again"), ""),
])  # fmt: skip
async def test_an_error_at_the_provider_is_a_page(
    error: str, page: tuple[int, str, str], cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with signing() as here:
        here.at.callback = {"error": error, "error_description": "<b>words</b> of the provider"}
        shown = await here.sign_in()
        here.refused(shown, *page)
        assert "<script" not in shown.text
        assert "words" not in shown.text, "anyone can write them into a URL"
        assert cause in said(caplog, logging.WARNING)
        assert "token" not in here.at.asked


async def test_an_unknown_scope_is_the_operators_mistake(caplog: pytest.LogCaptureFixture) -> None:
    async with signing("cognito", scopes=["offline_access"]) as here:
        await refuses(here, NOT_SET_UP, caplog, "refuses this server with 'invalid_scope'")


@pytest.mark.parametrize("row", ["github", "oidc", "workos"])
async def test_a_wrong_secret_is_the_operators_mistake(row: str, caplog: pytest.LogCaptureFixture) -> None:
    async with signing(row) as here:
        here.at.client_secret = "another"
        await refuses(here, NOT_SET_UP, caplog, "_client")


@pytest.mark.parametrize(("code", "page"), [
    ("", NOT_SET_UP),
    ("another", (400, "access_denied", "Begin again")),
    ("x" * 20_000, (400, "access_denied", "Begin again")),
])  # fmt: skip
async def test_a_callback_without_the_right_code(code: str, page: tuple[int, str, str]) -> None:
    async with signing("github") as here:
        browser = Browser(here.stage)
        callback = await visit((await browser.answer(await browser.open(here.program.url()))).headers["location"])
        here.refused(await browser.come_back(callback.partition("&code=")[0] + f"&code={code}"), *page)
        assert (await browser.come_back(callback)).sent_to["code"], "the right one is still good"


@pytest.mark.rule("SEC-5")
async def test_a_callback_that_says_something_twice_is_refused() -> None:
    async with signing("github") as here:
        browser = Browser(here.stage)
        callback = await visit((await browser.answer(await browser.open(here.program.url()))).headers["location"])
        state = dict(parse_qsl(urlsplit(callback).query))["state"]
        for more in ("&code=another", f"&state={state}", "&state=another"):
            page = await browser.come_back(callback + more)
            assert (page.status, "<a" in page.text) == (400, False)
        assert "token" not in here.at.asked


async def test_pages_are_not_framed_cached_or_scripted() -> None:
    async with signing() as here:
        here.at.lies = {"nonce"}
        page = await here.sign_in()
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "no-store"
        assert "<script" not in page.text
