"""Each row of providers: who has signed in, what is asked for, who may come in, and how long it lasts."""

import asyncio
import logging
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from authserver_stage import Browser, payload
from dovetail.errors import SetupError
from dovetail.state.sqlite import SqliteState
from identity_provider import provider, visit
from provider_kinds import CLIENT_ID, CLIENT_SECRET, CONSUMERS, OTHER_TENANT, TENANT
from provider_stage import REDIRECT_URI, SIGN_INS, USERS, said, signing

GUID = "00000000-0000-4000-8000-000000583231"
OPENID, OFFLINE = "openid profile email", "openid profile email offline_access"
HAS_ID_TOKENS = [row for row in SIGN_INS if "github" not in row and row != "discord"]

# the subject of ann, her user name, and the scopes that are asked for
WHO = {
    "oidc": ("u-583231", "ann arbor", OPENID),
    "github": ("github:583231", "ann-arbor", "read:user user:email"),
    "github_app": ("github:583231", "ann-arbor", "read:user user:email"),
    "github enterprise": ("github:583231", "ann-arbor", "read:user user:email"),
    "discord": ("discord:80351110225262143", "ann.arbor", "identify email"),
    "google": ("google:106900000000000583231", None, OPENID),
    "entra": (f"entra:{TENANT}:{GUID}", "ann@example.com", OFFLINE),
    "auth0": ("auth0:auth0|583231", "ann arbor", OFFLINE),
    "okta": ("okta:00u583231", "ann@example.com", OFFLINE),
    "okta_org": ("okta:00u583231", "ann@example.com", OFFLINE),
    "keycloak": (f"keycloak:{GUID}", "ann arbor", OPENID),
    "cognito": (f"cognito:{GUID}", "583231", OPENID),
    "workos": ("workos:user_583231", None, OFFLINE),
}


@pytest.mark.parametrize("row", SIGN_INS)
async def test_a_user_signs_in_at_a_provider_and_the_program_gets_tokens_of_ours(
    row: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dovetail")
    async with signing(row) as here:
        tokens = await here.tokens()
        _, claims = payload(tokens["access_token"])
        subject, username, _ = WHO[row]
        assert claims["sub"] == (subject if ":" in subject else f"{urlsplit(here.at.origin).netloc}:{subject}")
        assert (claims["name"], claims.get("preferred_username")) == ("Ann Arbor", username)
        assert claims.get("email") == (None if row == "entra" else "ann@example.com")
        assert claims["scope"] == "notes:read"
        assert await here.stage.may_call(tokens["access_token"])
        here.keeps_secrets(str(tokens), str(claims), caplog.text)


def written_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


@pytest.mark.rule("AUTH-18")
async def test_the_store_holds_no_token_of_the_provider_that_could_be_read(tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "state.db")
    async with signing("keycloak", stage={"state": state}) as here:
        browser = Browser(here.stage)
        sent = await browser.answer(await browser.open(here.program.url()))
        state_and_nonce = [here.at.secrets[0], *(sent.sent_to[name] for name in ("state", "nonce"))]
        written = [written_in(tmp_path)]
        await here.tokens()
        written.append(written_in(tmp_path))
        assert len(here.at.secrets) == 4, "the client secret, a code and two tokens"
        assert not any(each.encode() in file for each in (*here.at.secrets, *state_and_nonce) for file in written)
    await state.close()


@pytest.mark.rule("AUTH-19", "SEC-1")
@pytest.mark.parametrize("row", SIGN_INS)
async def test_the_provider_is_visited_after_the_consent_with_a_request_that_is_bound_to_it(row: str) -> None:
    async with signing(row) as here:
        browser = Browser(here.stage)
        page = await browser.open(here.program.url())
        assert here.at.asked == [], "nothing is asked of a provider before the user has said yes"
        sent = await browser.answer(page)
        assert sent.sent_to["redirect_uri"] == REDIRECT_URI
        assert "cookie" not in str(sent.headers).lower().replace("set-cookie", "")
        await browser.come_back(await visit(sent.headers["location"]))
        (asked,) = here.at.authorizations
        assert sorted(asked["scope"].split()) == sorted(WHO[row][2].split())
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT_ID)
        assert asked["code_challenge_method"] == "S256"
        assert len(asked["state"]) >= 43, "32 random bytes"
        assert (len(asked.get("nonce", "")) >= 43) == (row in HAS_ID_TOKENS)
        offline = {"access_type": "offline", "prompt": "consent"} if row == "google" else {}
        assert {name: asked[name] for name in ("access_type", "prompt") if name in asked} == offline
        assert len(here.at.forms) == 1, "one request for tokens"
        assert "notes" not in str(asked), "scopes of ours mean nothing there"


async def test_each_visit_has_its_own_state_nonce_and_challenge() -> None:
    async with signing() as here:
        await here.sign_in()
        await here.sign_in()
        first, second = here.at.authorizations
        assert not {first[name] for name in ("state", "nonce", "code_challenge")} & set(second.values())


@pytest.mark.parametrize("row", SIGN_INS)
async def test_a_user_may_have_no_email_or_an_unverified_one(row: str) -> None:
    async with signing(row) as here:
        nomail, unverified, ann = [await here.claims(user) for user in ("nomail", "unverified", "ann")]
        assert "email" not in nomail
        assert "email" not in unverified, "it may be of anybody"
        assert len({nomail["sub"], unverified["sub"], ann["sub"]}) == 3


@pytest.mark.parametrize("row", SIGN_INS)
async def test_two_users_with_the_same_email_are_two(row: str) -> None:
    async with signing(row, **({"tenant": "common"} if row == "entra" else {})) as here:
        ann, twin = await here.claims("ann"), await here.claims("twin")
        assert ann["sub"] != twin["sub"]
        assert ann.get("email") == twin.get("email") == (None if row == "entra" else "ann@example.com")


@pytest.mark.parametrize("row", ["github", "oidc"])
async def test_more_scopes_are_asked_for_if_tools_need_them(row: str) -> None:
    more = {"github": "repo", "oidc": "offline_access"}[row]
    async with signing(row, scopes=[more]) as here:
        await here.tokens()
        assert sorted(here.at.authorizations[0]["scope"].split()) == sorted([*WHO[row][2].split(), more])


async def test_auth0_is_asked_for_tokens_of_an_api() -> None:
    async with signing("auth0", audience="https://api.example.com") as here:
        await here.tokens()
        assert here.at.authorizations[0]["audience"] == "https://api.example.com"


# ── who may come in ──

# row, more options, allow, who may, who may not
ALLOWED: list[tuple[str, dict[str, Any], dict[str, list[str]], tuple[str, ...], tuple[str, ...]]] = [
    ("oidc", {}, {"domains": ["example.com"]}, ("ann", "twin"), ("bob", "nomail", "unverified")),
    ("oidc", {}, {"domains": ["EXAMPLE.com", "elsewhere.example"]}, ("ann", "bob"), ("nomail",)),
    ("github", {}, {"organizations": ["acme"]}, ("ann",), ("bob", "nomail")),
    ("github enterprise", {}, {"organizations": ["tools"]}, ("ann",), ("bob",)),
    ("github", {}, {"domains": ["example.com"]}, ("ann",), ("bob", "unverified", "nomail")),
    ("github", {}, {"domains": ["example.com"], "organizations": ["acme"]}, ("ann",), ("twin", "bob")),
    ("github_app", {}, {"organizations": ["acme"]}, ("ann",), ("bob",)),
    ("discord", {}, {"organizations": ["19700"]}, ("ann",), ("bob",)),
    ("discord", {}, {"domains": ["example.com"]}, ("ann",), ("unverified",)),
    ("google", {}, {"domains": ["example.com"]}, ("ann",), ("twin", "bob", "unverified")),  # twin has the address only
    ("entra", {"tenant": "organizations"}, {"organizations": [TENANT]}, ("ann", "bob"), ("twin",)),
    ("entra", {"tenant": "common"}, {"organizations": [TENANT, OTHER_TENANT.upper()]}, ("ann", "twin"), ("home",)),
    ("entra", {"tenant": "common"}, {"domains": ["example.com"]}, (), ("ann", "twin", "unverified")),
    ("entra", {}, {"groups": ["admins"]}, ("ann",), ("bob",)),
    ("auth0", {}, {"organizations": ["acme"]}, ("ann",), ("bob",)),
    ("okta", {}, {"groups": ["staff"]}, ("ann",), ("bob",)),
    ("okta_org", {}, {"groups": ["staff"]}, ("ann",), ("bob",)),
    ("okta", {}, {"domains": ["example.com"]}, ("ann",), ("bob", "unverified")),
    ("keycloak", {}, {"groups": ["/staff"]}, ("ann",), ("bob",)),
    ("cognito", {}, {"groups": ["staff"]}, ("ann",), ("bob",)),
    ("cognito", {}, {"domains": ["example.com"]}, ("ann",), ("unverified", "nomail")),
    ("workos", {}, {"domains": ["example.com"]}, ("ann",), ("bob", "unverified")),
]


@pytest.mark.parametrize(("row", "options", "allow", "may", "may_not"), ALLOWED)
async def test_allow_lets_in_and_refuses(
    row: str, options: dict[str, Any], allow: dict[str, list[str]], may: tuple[str, ...], may_not: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO, "dovetail")
    async with signing(row, allow=allow, **options) as here:
        for user in may:
            assert await here.tokens(user)
        for user in may_not:
            caplog.clear()
            here.refused(await here.sign_in(user), 403, "access_denied", "only for some")
            assert "may not come in" in said(caplog)
            here.keeps_secrets(caplog.text)


async def test_groups_of_entra_that_are_too_many_refuse_and_say_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dovetail")
    async with signing("entra", allow={"groups": ["group-7"]}) as here:
        here.refused(await here.sign_in("crowd"), 403, "access_denied", "some groups")
        assert f"leaves out the groups of entra:{TENANT}:{guid('crowd')}, for they are too many" in said(caplog)


@pytest.mark.parametrize(("row", "kind"), [
    ("google", "organizations"), ("google", "groups"), ("github", "groups"), ("discord", "groups"),
    ("keycloak", "organizations"), ("cognito", "organizations"), ("okta", "organizations"),
    ("workos", "organizations"), ("workos", "groups"),
])  # fmt: skip
async def test_what_a_provider_does_not_tell_is_refused_at_the_start(row: str, kind: str) -> None:
    async with provider(row, REDIRECT_URI) as at:
        with pytest.raises(SetupError, match=kind):
            SIGN_INS[row](at, {"allow": {kind: ["acme"]}})


@pytest.mark.parametrize(("row", "claim", "value"), [
    ("auth0", "https://example.com/roles", ["staff", "admins"]), ("github", "login", "ann-arbor"),
    ("okta", "groups", ["Everyone", "staff", "admins"]), ("cognito", "cognito:groups", ["staff", "admins"]),
    ("entra", "groups", ["staff", "admins"]), ("google", "hd", "example.com"), ("keycloak", "azp", CLIENT_ID),
])  # fmt: skip
async def test_functions_get_the_claims_as_the_provider_has_them(row: str, claim: str, value: Any) -> None:
    async with signing(
        row,
        allow=lambda claims: claims[claim] == value,
        scopes_for=lambda claims: ["notes:read"] if claims[claim] == value else [],
    ) as here:
        assert (await here.claims())["scope"] == "notes:read"


@pytest.mark.parametrize("row", ["github", "discord", "keycloak"])
async def test_functions_know_the_scopes_that_the_user_has_granted_at_the_provider(row: str) -> None:
    found: list[Any] = []

    def scopes_for(claims: Any) -> list[str]:
        found.extend(claims["granted_scopes"])
        return ["notes:read"]

    async with signing(row, scopes_for=scopes_for) as here:
        await here.claims()
        first, *others = WHO[row][2].split()
        assert sorted(found) == sorted([first, *others])
        found.clear()
        here.at.withheld = set(others)
        await here.claims()
        assert found == [first]


@pytest.mark.parametrize(("tenant", "may", "may_not"), [
    (TENANT, "ann", "twin"), ("organizations", "twin", None), ("common", "home", None), ("consumers", "home", "ann"),
])  # fmt: skip
async def test_a_tenant_of_entra_is_the_one_that_was_named(tenant: str, may: str, may_not: str | None) -> None:
    async with signing("entra", tenant=tenant) as here:
        assert (await here.claims(may))["sub"] == f"entra:{USERS[may].tenant}:{guid(may)}"
        wanted = CONSUMERS if tenant == "consumers" else tenant
        assert f"/{wanted}/oauth2/v2.0/authorize" in here.at.paths
        if may_not is not None:
            here.refused(await here.sign_in(may_not), 502, "server_error", "can't be trusted")


def guid(user: str) -> str:
    return f"00000000-0000-4000-8000-{USERS[user].number:012d}"


# ── how long it lasts ──

REFRESHED = [row for row in SIGN_INS if row not in ("github", "github enterprise", "oidc")]


@pytest.mark.parametrize("row", REFRESHED)
async def test_the_upstream_token_is_refreshed_if_it_has_expired_when_the_program_renews_its_own(row: str) -> None:
    async with signing(row) as here:
        tokens = await here.tokens()
        for times in (1, 2, 3):
            tokens = (await here.program.refresh(tokens["refresh_token"])).json
            assert here.at.refreshes == times - 1, "it is fresh"
            here.stage.clock.now += (here.at.expires_in or 0) + 1
            tokens = (await here.program.refresh(tokens["refresh_token"])).json
            assert await here.stage.may_call(tokens["access_token"])
            assert here.at.refreshes == times
            assert here.at.is_good(here.at.access_tokens[-1])
        here.keeps_secrets(str(tokens))


@pytest.mark.parametrize("odd", ["soon", "nan", "inf", "-1", 0])
async def test_a_lifetime_that_is_none_asks_for_no_refresh(odd: Any) -> None:
    async with signing("keycloak") as here:
        here.at.expires_in = odd
        tokens = await here.tokens()
        assert (await here.program.refresh(tokens["refresh_token"])).status == 200
        assert here.at.refreshes == 0


async def test_a_lifetime_that_is_too_large_for_a_clock_is_none() -> None:
    async with signing("keycloak") as here:
        here.at.lies = {"huge expires_in"}
        tokens = await here.tokens()
        assert (await here.program.refresh(tokens["refresh_token"])).status == 200


@pytest.mark.parametrize("row", REFRESHED)
async def test_a_refusal_upstream_ends_the_grant(row: str, caplog: pytest.LogCaptureFixture) -> None:
    async with signing(row) as here:
        tokens = await here.tokens()
        here.at.revoke("ann")
        here.stage.clock.now += (here.at.expires_in or 0) + 1
        renewed = await here.program.refresh(tokens["refresh_token"])
        assert (renewed.status, renewed.json["error"]) == (400, "invalid_grant")
        assert not await here.stage.may_call(tokens["access_token"])
        here.keeps_secrets(caplog.text, renewed.text)
        asked = here.at.refreshes
        assert (await here.program.refresh(tokens["refresh_token"])).json["error"] == "invalid_grant"
        assert here.at.refreshes == asked, "the grant has ended; the provider is left alone"
        assert await here.tokens(), "the user may sign in again"


async def test_a_user_whom_a_rule_of_the_provider_denies_is_refused_and_their_grant_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Actions of Auth0 run at refreshes, too."""
    caplog.set_level(logging.INFO, "dovetail")
    async with signing("auth0") as here:
        tokens = await here.tokens()
        here.at.kind = here.at.kind._replace(bad_refresh=("access_denied", "Not in the office any more"))
        here.at.revoke("ann")
        here.stage.clock.now += 86_401
        refused = await here.program.refresh(tokens["refresh_token"])
        assert (refused.status, refused.json["error"]) == (400, "invalid_grant")
        assert not await here.stage.may_call(tokens["access_token"])
        assert "refuses a user or a code with 'access_denied'" in said(caplog)


async def test_who_has_no_verified_address_at_github_is_refused_without_blaming_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "dovetail")
    async with signing("github") as here:
        here.at.kind = here.at.kind._replace(bad_code=("unverified_user_email", "The user must have one."))
        browser = Browser(here.stage)
        sent = await browser.answer(await browser.open(here.program.url()))
        callback = await visit(sent.headers["location"])
        here.at.revoke("ann")
        here.refused(await browser.come_back(callback), 400, "access_denied", "did not accept this sign-in")
        assert "'unverified_user_email'" in said(caplog)


@pytest.mark.parametrize("row", ["github", "github enterprise"])
async def test_a_token_that_never_expires_is_checked_at_each_renewal(row: str) -> None:
    async with signing(row) as here:
        tokens = await here.tokens()
        before = here.at.asked.count("userinfo")
        tokens = (await here.program.refresh(tokens["refresh_token"])).json
        assert here.at.asked.count("userinfo") == before + 1
        here.at.revoke("ann")
        refused = await here.program.refresh(tokens["refresh_token"])
        assert (refused.status, refused.json["error"]) == (400, "invalid_grant")
        assert not await here.stage.may_call(tokens["access_token"])


async def test_a_token_that_can_not_be_refreshed_ends_the_grant_with_it() -> None:
    """The provider can't be asked any more: a user who was locked out there would stay for a month."""
    async with signing("oidc") as here:
        tokens = await here.tokens()
        tokens = (await here.program.refresh(tokens["refresh_token"])).json
        assert await here.stage.may_call(tokens["access_token"])
        here.stage.clock.now += here.at.expires_in + 1
        refused = await here.program.refresh(tokens["refresh_token"])
        assert (refused.status, refused.json["error"]) == (400, "invalid_grant")
        assert "can't be refreshed" in refused.json["error_description"]
        assert not await here.stage.may_call(tokens["access_token"])
        assert await here.tokens()


@pytest.mark.parametrize("has_profile", [True, False])
async def test_a_user_of_openid_connect_whose_token_has_no_end_is_asked_for_at_the_profile(has_profile: bool) -> None:
    async with signing("oidc") as here:
        here.at.expires_in = None
        if not has_profile:
            here.at.kind = here.at.kind._replace(metadata={"userinfo_endpoint": None})
        tokens = await here.tokens()
        tokens = (await here.program.refresh(tokens["refresh_token"])).json
        here.at.revoke("ann")
        refused = await here.program.refresh(tokens["refresh_token"])
        assert refused.status == (400 if has_profile else 200), "there is nothing else to ask"


TROUBLE = [("keycloak", "refresh", how) for how in ("down", "html 500", "html 200", "busy", "json 500", "huge")]
TROUBLE += [("github", "userinfo", how) for how in ("down", "html 500", "busy", "rate limit", "no json")]
TROUBLE += [("github_app", "refresh", "html 500")]


@pytest.mark.parametrize(("row", "endpoint", "how"), TROUBLE)
async def test_trouble_upstream_costs_nothing_but_a_retry(row: str, endpoint: str, how: str) -> None:
    async with signing(row) as here:
        tokens = await here.tokens()
        here.stage.clock.now += (here.at.expires_in or 0) + 1
        here.at.failures[endpoint] = how
        for _ in range(2):
            failed = await here.program.refresh(tokens["refresh_token"])
            assert (failed.status, failed.json["error"]) == (503, "temporarily_unavailable")
        here.at.failures.clear()
        renewed = await here.program.refresh(tokens["refresh_token"])
        assert renewed.status == 200, renewed.text
        assert await here.stage.may_call(renewed.json["access_token"])


async def test_a_refresh_that_another_client_id_would_need_ends_no_grant(caplog: pytest.LogCaptureFixture) -> None:
    """A secret that was changed at the provider is the operator's trouble; users keep what they have."""
    async with signing("keycloak") as here:
        tokens = await here.tokens()
        here.stage.clock.now += 301
        here.at.client_secret = "a-new-one"
        refused = await here.program.refresh(tokens["refresh_token"])
        assert refused.status in (502, 503)
        assert refused.json["error"] in ("server_error", "temporarily_unavailable")
        assert "invalid_client" in said(caplog, logging.WARNING)
        here.at.client_secret = CLIENT_SECRET
        assert (await here.program.refresh(tokens["refresh_token"])).status == 200


# ── quirks ──


async def test_google_may_name_itself_without_https() -> None:
    async with signing("google") as here:
        here.at.lies = {"short iss"}
        assert (await here.claims())["sub"].startswith("google:")


async def test_github_is_asked_for_json_and_its_errors_are_seen_behind_status_200(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with signing("github") as here:
        browser = Browser(here.stage)
        sent = await browser.answer(await browser.open(here.program.url()))
        callback = await visit(sent.headers["location"])
        here.at.revoke("ann")
        page = await browser.come_back(callback)
        here.refused(page, 400, "access_denied", "Begin again")


async def test_keycloak_must_name_itself_in_its_response(caplog: pytest.LogCaptureFixture) -> None:
    async with signing("keycloak") as here:
        here.at.callback = {"iss": None}
        here.refused(await here.sign_in(), 502, "server_error", "can't be trusted")
        here.at.callback = {"iss": f"{here.at.issuer}/"}
        here.refused(await here.sign_in(), 502, "server_error", "can't be trusted")
        assert "issuer" in said(caplog)
        assert "token" not in here.at.asked, "the code goes to no other than who was asked"


# ── browsers that come back twice, or at once ──


@pytest.mark.rule("SEC-5")
async def test_a_browser_that_comes_back_twice_at_once_gets_one_code_and_the_tokens_stay_good() -> None:
    async with signing("keycloak") as here:
        browser = Browser(here.stage)
        sent = await browser.answer(await browser.open(here.program.url()))
        callback = await visit(sent.headers["location"])
        replies = await asyncio.gather(*(browser.come_back(callback) for _ in range(4)))
        (first,) = [reply for reply in replies if reply.status == 303]
        assert {reply.status for reply in replies if reply is not first} <= {400, 403, 409}
        tokens = (await here.program.redeem(first.sent_to["code"])).json
        assert await here.stage.may_call(tokens["access_token"])
        assert here.at.is_good(here.at.access_tokens[0]), "a second use of the code would have revoked it"
        last = await browser.come_back(callback)
        assert last.status in (400, 403)
        assert "<a" not in last.text


@pytest.mark.rule("SEC-5")
async def test_a_state_is_for_one_browser_and_ten_minutes() -> None:
    async with signing() as here:
        browser, other = Browser(here.stage), Browser(here.stage)
        callback = await visit((await browser.answer(await browser.open(here.program.url()))).headers["location"])
        await other.open(here.program.url())  # it has a cookie of its own
        for changed in (callback.replace("state=", "state=x"), callback.replace("state=", "other=")):
            assert (await browser.come_back(changed)).status == 403
        for thief in (other, Browser(here.stage)):
            page = await thief.come_back(callback)
            assert (page.status, "<a" in page.text) == (403, False)
        assert "token" not in here.at.asked
        here.stage.clock.now += 601
        page = await browser.come_back(callback)
        assert (page.status, "<a" in page.text) == (403, False)
        assert "token" not in here.at.asked


@pytest.mark.rule("SEC-5")
async def test_a_code_of_another_sign_in_is_not_taken() -> None:
    """The attacker's code with the victim's state: PKCE and the nonce are of the victim's browser."""
    for row in ("github", "oidc"):
        async with signing(row) as here:
            urls = []
            victim, attacker = Browser(here.stage), Browser(here.stage)
            for browser, user in ((attacker, "bob"), (victim, "ann")):
                here.at.user = user
                sent = await browser.answer(await browser.open(here.program.url()))
                urls.append(dict(parse_qsl(urlsplit(await visit(sent.headers["location"])).query)))
            page = await victim.open(f"callback?code={urls[0]['code']}&state={urls[1]['state']}")
            assert page.status == 400
            assert "code=" not in page.text
