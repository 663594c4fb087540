"""What is wrong with a request is told to the program, unless that would send people wherever a stranger likes."""

import html
import json
import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from authserver_stage import CALLBACK, ISSUER, Browser, Program, Reply, Stage
from dovetail.auth.fetch import Fetched, FetchRequest
from dovetail.authserver import OAuthClient, authorize

DOCUMENT = "https://good.example.com/client.json"
STATE = "st&te=1 é"
WRONG = [
    ({"response_type": "token"}, "unsupported_response_type"),
    ({"code_challenge": None}, "invalid_request"),
    ({"scope": "admin"}, "invalid_scope"),
    ({"resource": "https://other.example.com/mcp"}, "invalid_target"),
]
NATIVE = ["http://127.0.0.1:5555/callback", "http://localhost:5555/callback", "http://[::1]:5555/callback"]


async def registered(stage: Stage, redirect_uri: str) -> str:
    reply = await stage.register(redirect_uris=[redirect_uri], token_endpoint_auth_method="none")
    return str(reply.json["client_id"])


async def published(stage: Stage, redirect_uri: str) -> str:
    async def fetch(_: FetchRequest) -> Fetched:
        body = json.dumps({"client_id": DOCUMENT, "redirect_uris": [redirect_uri]}).encode()
        return Fetched(status=200, headers={"content-type": "application/json"}, body=body)

    stage.server._authorization.clients._published._fetch = fetch  # type: ignore[union-attr]
    return DOCUMENT


def link_of(page: Reply) -> str:
    (link,) = re.findall(r'<a href="([^"]*)" rel="noreferrer">', page.text)
    return html.unescape(link)


@pytest.mark.parametrize("introduce", [registered, published])
@pytest.mark.parametrize("redirect_uri", NATIVE)
@pytest.mark.parametrize(("wrong", "error"), WRONG)
async def test_a_program_on_the_machine_of_the_user_is_told(
    introduce: Any, redirect_uri: str, wrong: dict[str, Any], error: str
) -> None:
    stage = Stage()
    program = Program(stage, await introduce(stage, redirect_uri), redirect_uri)
    reply = await Browser(stage).open(program.url(**wrong))
    assert reply.headers["location"].startswith(redirect_uri + "?")
    told = reply.sent_to
    assert told.pop("error_description")
    assert told == {"error": error, "state": STATE, "iss": ISSUER}


@pytest.mark.rule("SEC-5")
@pytest.mark.parametrize("introduce", [registered, published])
@pytest.mark.parametrize(("wrong", "error"), WRONG)
@pytest.mark.parametrize("redirect_uri", ["https://elsewhere.example.com/callback?a='b'", "https://127.0.0.1.nip.io/"])
async def test_one_that_nobody_vouches_for_is_told_if_the_user_wants_that(
    introduce: Any, redirect_uri: str, wrong: dict[str, Any], error: str
) -> None:
    stage = Stage()
    program = Program(stage, await introduce(stage, redirect_uri), redirect_uri)
    page = await Browser(stage).open(program.url(**wrong))
    assert (page.status, "location" in page.headers, "refresh" in page.headers) == (400, False, False)
    assert "http-equiv" not in page.text
    assert f"<strong>{urlsplit(redirect_uri).netloc}</strong>" in page.text
    link = link_of(page)
    assert link.startswith(redirect_uri)
    told = dict(parse_qsl(urlsplit(link).query))
    assert (told["error"], told["state"], told["iss"]) == (error, STATE, ISSUER)


async def test_what_a_program_says_is_no_markup_in_the_link() -> None:
    stage = Stage()
    program = Program(
        stage, await registered(stage, "https://elsewhere.example.com/"), "https://elsewhere.example.com/"
    )
    page = await Browser(stage).open(program.url(scope="admin", state='"><script>alert(1)</script>'))
    assert "<script" not in page.text
    assert dict(parse_qsl(urlsplit(link_of(page)).query))["state"] == '"><script>alert(1)</script>'


@pytest.mark.parametrize("changed", [{"redirect_uri": "http://127.0.0.1/other"}, {"client_id": "dcr-unknown"}])
async def test_without_program_or_address_there_is_nobody_to_tell(changed: dict[str, Any]) -> None:
    stage = Stage()
    program = Program(stage, await registered(stage, NATIVE[0]), NATIVE[0])
    page = await Browser(stage).open(program.url(scope="admin", **changed))
    assert (page.status, "location" in page.headers) == (400, False)
    assert "<a " not in page.text


async def test_a_state_that_is_too_long_is_told_with_it() -> None:
    stage = Stage()
    told = (await Browser(stage).open(Program(stage).url(state="x" * 2001))).sent_to
    assert (told["error"], told["state"], told["iss"]) == ("invalid_request", "x" * 2001, ISSUER)


async def test_there_is_no_link_to_a_program_at_our_own_host() -> None:
    """It would get the user's cookie; and if that were taken away instead, anybody could make users sign in again."""
    beside = "https://login.example.com:8443/callback"
    stage = Stage(clients=[OAuthClient(id="app", redirect_uris=[CALLBACK])])
    browser = Browser(stage)
    await Program(stage).code(browser)
    assert "__Host-dovetail-user" in browser.cookies
    page = await browser.open(Program(stage, await registered(stage, beside), beside).url(scope="admin"))
    assert "<a " not in page.text
    assert "__Host-dovetail-user" in browser.cookies


async def test_a_user_can_not_consent_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each consent is kept for weeks."""
    monkeypatch.setattr(authorize, "MOST_CONSENTS", 2)
    stage = Stage(clients=[OAuthClient(id="app", redirect_uris=[CALLBACK])])
    browser = Browser(stage)
    await Program(stage).code(browser)
    for status in (303, 429):
        page = await browser.answer(await browser.open(Program(stage).url()))
        assert page.status == status
    assert "consents of this user" in page.text
    other = Browser(stage)
    asked = await other.open(Program(stage).url())
    assert (await other.sign_in(asked, "bob", "bob's own")).status == 303, "each user has a number of their own"
