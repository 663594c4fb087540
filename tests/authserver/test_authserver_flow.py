"""The whole way of a token: metadata, consent, code, access token, refresh, revocation, client credentials."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from authserver_stage import (
    CALLBACK,
    ISSUER,
    NATIVE,
    RESOURCE,
    SCOPES,
    SECRET,
    USERS,
    Browser,
    Program,
    Stage,
    basic,
    payload,
    written_in,
)  # fmt: skip
from dovetail.authserver import AuthServer, OAuthClient, Passwords, hash_password
from dovetail.authserver.auth_store import AuthStore, Keyring
from dovetail.authserver.oauth_http import OAuthError
from dovetail.authserver.tokens import REUSE_GRACE, Grant, ProtectedResource, TokenIssuer
from dovetail.engine.options import Secrets
from dovetail.errors import SetupError
from dovetail.state.base import StoreFull, StoreUnavailable
from dovetail.state.memory import MemoryState
from dovetail.state.sqlite import SqliteState
from issuer_stage import Clock
from provider_stage import EITHER_WAY


@pytest.mark.parametrize(
    ("issuer", "path"),
    [
        ("https://login.example.com", "/.well-known/oauth-authorization-server"),
        ("https://login.example.com/", "/.well-known/oauth-authorization-server"),
        ("https://example.com/login", "/.well-known/oauth-authorization-server/login"),
        ("https://Example.com/login/", "/.well-known/oauth-authorization-server/login"),
        ("http://127.0.0.1:8000", "/.well-known/oauth-authorization-server"),
    ],
)
async def test_the_metadata_hold_the_issuer_byte_for_byte(issuer: str, path: str) -> None:
    stage = Stage(issuer)
    found = (await stage.request("GET", path)).json
    assert found["issuer"] == issuer
    base = issuer.rstrip("/")
    assert found["authorization_endpoint"] == f"{base}/authorize"
    assert found["code_challenge_methods_supported"] == ["S256"]
    assert found["client_id_metadata_document_supported"] is True
    assert found["authorization_response_iss_parameter_supported"] is True
    assert found["grant_types_supported"] == ["authorization_code", "refresh_token", "client_credentials"]
    assert set(found["token_endpoint_auth_methods_supported"]) == {
        "none", "client_secret_basic", "client_secret_post", "private_key_jwt",
    }  # fmt: skip
    for name in ("authorization", "token", "registration", "revocation"):
        place = found[f"{name}_endpoint"].removeprefix("https://").removeprefix("http://")
        assert (await stage.request("DELETE", "/" + place.partition("/")[2])).status == 405


async def test_what_is_off_is_neither_there_nor_named() -> None:
    stage = Stage(registration=False, cimd=False)
    found = (await stage.get(".well-known/oauth-authorization-server")).json
    assert "registration_endpoint" not in found
    assert found["client_id_metadata_document_supported"] is False
    assert (await stage.register(redirect_uris=[CALLBACK])).status == 404
    url = Program(stage, "https://app.example.com/client.json").url()
    assert (await Browser(stage).open(url)).status == 400


@pytest.mark.rule("AUTH-20")
@pytest.mark.parametrize(
    "issuer", ["http://login.example.com", "ftp://x.org", "https://x.org?q", "https://u@x.org", ""]
)
def test_an_issuer_is_https_or_on_this_machine(issuer: str) -> None:
    with pytest.raises(SetupError):
        AuthServer(issuer, resource=RESOURCE, sign_in=Passwords(USERS))


@pytest.mark.rule("AUTH-20")
@pytest.mark.parametrize(
    "client",
    [
        {"redirect_uris": ["http://app.example.com/"]}, {"redirect_uris": []},
        {"redirect_uris": [CALLBACK], "scopes": ["unknown"]}, {"grant_types": ["client_credentials"]},
        {"grant_types": ["password"]}, {"grant_types": ["client_credentials"], "jwks": {"keys": []}},
    ],
)  # fmt: skip
def test_a_client_that_cannot_work_is_refused_at_the_start(client: dict[str, object]) -> None:
    with pytest.raises(SetupError):
        AuthServer(ISSUER, resource=RESOURCE, sign_in=Passwords(USERS), clients=[OAuthClient(id="x", **client)])  # type: ignore[arg-type]


async def test_a_user_allows_a_program(stage: Stage, program: Program, browser: Browser) -> None:
    page = await browser.open(program.url())
    assert page.status == 200
    back = await browser.sign_in(page)
    assert back.headers["location"].startswith(f"{CALLBACK}?")
    assert back.sent_to["state"] == "st&te=1 é"
    assert back.sent_to["iss"] == ISSUER
    tokens = (await program.redeem(back.sent_to["code"])).json
    assert (tokens["token_type"], tokens["expires_in"], tokens["scope"]) == ("Bearer", 600, "notes:read")
    header, claims = payload(tokens["access_token"])
    assert (header["alg"], header["typ"]) == ("ES256", "at+jwt")
    assert claims["aud"] == RESOURCE
    assert claims["iss"] == ISSUER
    assert (claims["sub"], claims["client_id"], claims["exp"] - claims["iat"]) == ("ann", "app", 600)
    principal = await stage.server.verify(tokens["access_token"])
    assert principal is not None
    assert (principal.subject, principal.client, principal.issuer) == ("ann", "app", ISSUER)
    assert principal.scopes == {"notes:read"}


async def test_who_has_signed_in_is_asked_without_a_password(browser: Browser, program: Program) -> None:
    await program.code(browser)
    page = await browser.open(program.url())
    assert "signed in as <strong>ann</strong>" in page.text
    assert "code" in (await browser.answer(page)).sent_to
    asked_again = await browser.answer(await browser.open(program.url()), "other")
    assert 'name="password"' in asked_again.text
    assert 'name="password"' in (await browser.open(program.url())).text


@EITHER_WAY
async def test_a_user_says_no(stage: Stage, browser: Browser) -> None:
    back = await browser.answer(await browser.open(Program(stage).url()), "deny")
    assert back.sent_to == {
        "error": "access_denied", "error_description": "The user said no", "state": "st&te=1 é", "iss": ISSUER,
    }  # fmt: skip


@EITHER_WAY
async def test_without_scope_or_resource_everything_that_there_is(stage: Stage) -> None:
    tokens = await Program(stage).tokens(scope=None, resource=None, state=None)
    assert tokens["scope"] == "notes:read notes:write"
    _, claims = payload(tokens["access_token"])
    assert claims["aud"] == RESOURCE


@EITHER_WAY
async def test_refresh_gives_a_new_pair_with_the_same_rights(stage: Stage, program: Program) -> None:
    first = await program.tokens(scope="notes:read notes:write offline_access")
    second = (await program.refresh(first["refresh_token"])).json
    assert second["scope"] == "notes:read notes:write"
    assert second["refresh_token"] != first["refresh_token"]
    third = (await program.refresh(second["refresh_token"], scope="notes:read")).json
    assert third["scope"] == "notes:read"
    assert await stage.may_call(third["access_token"])
    assert (await program.refresh(third["refresh_token"], scope="admin")).json["error"] == "invalid_scope"
    assert (await program.refresh(third["refresh_token"])).json["scope"] == "notes:read notes:write"


async def test_a_program_asks_users_only_for_what_the_operator_allows_it() -> None:
    reader = OAuthClient(id="reader", redirect_uris=[CALLBACK], scopes=["notes:read"])
    stage = Stage(clients=[reader])
    refused = await Browser(stage).open(Program(stage, "reader").url(scope="notes:read notes:write"))
    assert refused.sent_to["error"] == "invalid_scope"
    asked = await Browser(stage).open(Program(stage, "reader").url(scope=None))
    assert "Read your notes" in asked.text
    assert "Change your notes" not in asked.text


@EITHER_WAY
async def test_a_program_without_refresh_gets_no_refresh_token(stage: Stage) -> None:
    registered = (await stage.register(redirect_uris=[CALLBACK], token_endpoint_auth_method="none")).json
    assert registered["grant_types"] == ["authorization_code"]
    assert "refresh_token" not in await Program(stage, registered["client_id"]).tokens()


async def test_everything_ends() -> None:
    stage = Stage(refresh_seconds=3600)
    program = Program(stage)
    tokens = await program.tokens()
    stage.clock.now += 599
    assert await stage.may_call(tokens["access_token"])
    stage.clock.now += 2
    assert not await stage.may_call(tokens["access_token"])
    stage.clock.now += 3600
    assert (await program.refresh(tokens["refresh_token"])).json["error"] == "invalid_grant"
    code = await program.code()
    stage.clock.now += 61
    assert (await program.redeem(code)).json["error"] == "invalid_grant"


@EITHER_WAY
@pytest.mark.parametrize("which", ["access_token", "refresh_token"])
async def test_revocation_ends_the_whole_grant(which: str, stage: Stage, program: Program) -> None:
    tokens, others = await program.tokens(), await program.tokens()
    stranger = await stage.post("revoke", {"token": tokens[which], "client_id": "web"}, None)
    assert stranger.status == 401
    await stage.post("revoke", {"token": tokens[which]}, basic("web", SECRET))
    assert await stage.may_call(tokens["access_token"]), "another program's word does not count"
    assert (await stage.post("revoke", {"token": tokens[which], "client_id": "app"})).status == 200
    assert not await stage.may_call(tokens["access_token"])
    assert (await program.refresh(tokens["refresh_token"])).json["error"] == "invalid_grant"
    assert await stage.may_call(others["access_token"])
    assert (await stage.post("revoke", {"token": "nonsense", "client_id": "app"})).status == 200


@pytest.mark.parametrize("way", ["basic", "post"])
async def test_client_credentials_by_secret(way: str, stage: Stage) -> None:
    form = {"grant_type": "client_credentials"}
    if way == "basic":
        reply = await stage.token(basic("ci", SECRET), **form)
    else:
        reply = await stage.token(client_id="ci", client_secret=SECRET, **form)
    assert reply.json["scope"] == "notes:read"
    assert "refresh_token" not in reply.json
    principal = await stage.server.verify(reply.json["access_token"])
    assert principal is not None
    assert (principal.subject, principal.client) == (None, "ci")


async def test_a_secret_is_form_encoded_before_it_is_joined() -> None:
    client = OAuthClient(id="a b", grant_types=["client_credentials"], secret="colon:and+plus%and more")
    stage = Stage(clients=[client])
    header = basic("a+b", "colon%3Aand%2Bplus%25and+more")
    assert (await stage.token(header, grant_type="client_credentials")).status == 200


@pytest.mark.parametrize(
    ("headers", "form", "error"),
    [
        (basic("ci", "wrong"), {}, "invalid_client"),
        (basic("nobody", SECRET), {}, "invalid_client"),
        ({"authorization": "Bearer x"}, {}, "invalid_client"),
        ({"authorization": "Basic !"}, {}, "invalid_client"),
        ({}, {"client_id": "ci"}, "invalid_client"),
        ({}, {}, "invalid_client"),
        ({}, {"client_id": "app", "client_secret": "x"}, "invalid_client"),
        ({}, {"client_id": "app"}, "unauthorized_client"),
        (basic("ci", SECRET), {"client_id": "app"}, "invalid_request"),
        (basic("ci", SECRET), {"client_secret": SECRET}, "invalid_request"),
        (basic("ci", SECRET), {"scope": "notes:write"}, "invalid_scope"),
        (basic("ci", SECRET), {"resource": "https://other.example.com"}, "invalid_target"),
        (basic("ci", SECRET), {"grant_type": "password"}, "unsupported_grant_type"),
        (basic("web", SECRET), {"grant_type": "client_credentials"}, "unauthorized_client"),
    ],
)
async def test_a_program_that_may_not(headers: dict[str, str], form: dict[str, str], error: str) -> None:
    reply = await Stage().token(headers, **{"grant_type": "client_credentials", **form})
    assert reply.json["error"] == error
    assert reply.status == (401 if error == "invalid_client" else 400)
    assert ("www-authenticate" in reply.headers) == (reply.status == 401 and "authorization" in headers)


@pytest.mark.rule("AUTH-18")
async def test_workers_that_share_a_state_are_one_server_and_the_state_holds_no_token(tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "state.db")
    here, there = Stage(state=state), Stage(state=state)
    registered = (await here.register(redirect_uris=[NATIVE])).json
    secret = registered["client_secret"]
    program, elsewhere = Program(here, registered["client_id"], NATIVE), Program(there, registered["client_id"], NATIVE)
    elsewhere.verifier = program.verifier
    code = await program.code()
    tokens = (await elsewhere.redeem(code, basic(registered["client_id"], secret), client_id=None)).json
    assert await here.may_call(tokens["access_token"])
    assert (await program.redeem(code, client_secret=secret)).json["error"] == "invalid_grant"
    assert not await there.may_call(tokens["access_token"])
    held = written_in(tmp_path)
    assert b"dcr-" in held
    for hidden in (code, secret, tokens["access_token"], "ann"):
        assert hidden.encode() not in held
    await state.close()


async def test_the_keys_are_sealed_where_there_is_a_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    state = SqliteState(tmp_path / "state.db")
    monkeypatch.setenv("DOVETAIL_SECRET", "0123456789abcdef0123456789abcdef")
    token = (await Program(Stage(state=state)).tokens())["access_token"]
    assert await Stage(state=state).may_call(token)
    assert b"crv" not in written_in(tmp_path)
    monkeypatch.setenv("DOVETAIL_SECRET", "another-secret-of-some-length")
    assert (await Stage(state=state).get("jwks")).json["error"] == "temporarily_unavailable"
    await state.close()


async def test_programs_in_a_browser_may_ask(stage: Stage) -> None:
    asked = await stage.request("OPTIONS", "/token", headers={"origin": "https://inspector.example.com"})
    assert (asked.status, asked.headers["access-control-allow-origin"]) == (204, "*")
    refused = await stage.token(grant_type="x")
    assert refused.headers["access-control-allow-origin"] == "*"
    page = await Browser(stage).open(Program(stage).url())
    assert "access-control-allow-origin" not in page.headers


@EITHER_WAY
@pytest.mark.parametrize(
    "fewer",
    [
        {"clients": [OAuthClient(id="app", redirect_uris=[CALLBACK], scopes=["notes:read"])]},
        {"scopes": {"notes:read": "Read your notes"}},
    ],
    ids=["of the program", "of the server"],
)
async def test_scopes_that_were_taken_away_do_not_come_back(fewer: dict[str, Any], stage: Stage) -> None:
    everything = " ".join(SCOPES)
    tokens = await Program(stage).tokens(scope=everything)
    code_of = Program(stage)
    code = await code_of.code(scope=everything)
    narrowed = Stage(state=stage.state, sign_in=stage.sign_in, clock=stage.clock, **fewer)
    refreshed = (await Program(narrowed).refresh(tokens["refresh_token"])).json
    code_of.stage = narrowed
    for answer in (refreshed, (await code_of.redeem(code)).json):
        assert answer["scope"] == "notes:read"
        principal = await narrowed.server.verify(answer["access_token"])
        assert principal is not None
        assert principal.scopes == {"notes:read"}


async def test_a_new_password_ends_what_the_old_one_allowed(stage: Stage, program: Program) -> None:
    tokens, code = await program.tokens(), await program.code()
    changed = Stage(state=stage.state, sign_in=Passwords({"ann": hash_password("a new one", cost=16)}))
    program.stage = changed
    assert (await program.refresh(tokens["refresh_token"])).json["error"] == "invalid_grant"
    assert (await program.redeem(code)).json["error"] == "invalid_grant"
    assert not await changed.may_call(tokens["access_token"])


MOST_FAILURES = 4
WRITES = ("put", "claim", "add", "delete")


class Failing(MemoryState):
    """Far away; its next writes go as `plan` says: they fail before anything was done, or after, or not at all."""

    shared = True

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self.plan: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._as_planned(found) if name in WRITES else found

    def _as_planned(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def write(*arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            how = self.plan.pop() if self.plan else "well"
            if how == "before":
                raise StoreUnavailable
            outcome = await call(*arguments, **options)
            if how == "after":
                raise StoreUnavailable
            return outcome

        return write


class GrantHarness:
    """The grants of one server, one of them, and the program that has it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.state = Failing(self.clock)
        store = AuthStore(self.state, ISSUER)
        self.grants = TokenIssuer(
            issuer=ISSUER, resource=ProtectedResource("https://notes.example.com/mcp", {}), store=store,
            keyring=Keyring(store, Secrets(), self.clock), access_seconds=600, refresh_seconds=86_400,
        )  # fmt: skip
        self.grant = Grant(id="g", client="app", user="ann", fingerprint="m", scopes=[], ends=self.clock.now + 86_400)

    async def use(self, number: int) -> str:
        try:
            await self.grants.use(self.grant, number)
        except StoreUnavailable:
            return "unavailable"
        except OAuthError:
            return "refused"
        return "used"

    async def refresh(self, number: int, calls: int = 1) -> list[str]:
        """As honest programs do: maybe several calls together, and again while the store is unavailable."""
        outcomes = ["unavailable"] * calls
        for _ in range(MOST_FAILURES + 1):
            again = await asyncio.gather(*(self.use(number) for outcome in outcomes if outcome == "unavailable"))
            outcomes = [outcome for outcome in outcomes if outcome != "unavailable"] + again
            if "unavailable" not in outcomes:
                break
            self.clock.now += REUSE_GRACE / (MOST_FAILURES + 2)
        return outcomes

    async def refresh_all(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            assert await self.refresh(number) == ["used"]
            self.clock.now += REUSE_GRACE + 1


failures = st.lists(st.sampled_from(["before", "after"]), max_size=MOST_FAILURES)
refreshes = st.lists(st.tuples(failures, st.integers(1, 3), st.sampled_from([0.0, 1.0, 60.0])), max_size=5)


@given(refreshes)
def test_no_failure_of_the_store_ends_an_honest_grant(steps: list[tuple[list[str], int, float]]) -> None:
    async def run() -> None:
        harness = GrantHarness()
        assert await harness.use(0) == "used"
        for number, (plan, calls, pause) in enumerate(steps, start=1):
            harness.state.plan = list(plan)
            assert await harness.refresh(number, calls) == ["used"] * calls
            harness.state.plan = []
            harness.clock.now += pause
        assert not await harness.grants.is_revoked("g")

    asyncio.run(run())


@given(used=st.integers(1, 4), back=st.integers(1, 4), pause=st.sampled_from([0.0, REUSE_GRACE + 1]), plan=failures)
def test_a_copy_that_is_used_ends_the_grant(used: int, back: int, pause: float, plan: list[str]) -> None:
    """`back` uses ago; the last one may be repeated for a moment, unless it was the code."""

    async def run() -> None:
        harness = GrantHarness()
        await harness.refresh_all(range(used - 1))
        assert await harness.use(used - 1) == "used"
        harness.clock.now += pause
        number = max(used - back, 0)
        may_reuse = number == used - 1 and number > 0 and not pause
        harness.state.plan = list(plan)
        assert (await harness.refresh(number)) == ["used" if may_reuse else "refused"]
        assert await harness.grants.is_revoked("g") is not may_reuse
        harness.state.plan = []
        assert await harness.use(used) == ("used" if may_reuse else "refused")

    asyncio.run(run())


async def test_a_revocation_meets_a_use() -> None:
    """Whichever comes first: at the end it is revoked."""
    for order in itertools.permutations(range(3)):
        harness = GrantHarness()
        assert await harness.use(0) == "used"
        acts = [harness.grants.revoke("g", harness.clock.now), harness.use(1), harness.use(1)]
        await asyncio.gather(*(acts[each] for each in order))
        assert await harness.grants.is_revoked("g")
        assert await harness.use(2) == "refused"


@pytest.mark.parametrize("shop", ["memory", "sqlite"])
async def test_strangers_cannot_fill_what_grants_need(tmp_path: Path, shop: str) -> None:
    """Codes are changed for tokens, and tokens taken back, also if much was registered or tried meanwhile."""
    state = MemoryState(max_entries=60) if shop == "memory" else SqliteState(tmp_path / "state.db", max_bytes=400_000)
    stage = Stage(state=state)
    program = Program(stage)
    code = await program.code()
    of_program = (await stage.token(basic("ci", SECRET), grant_type="client_credentials")).json["access_token"]
    strangers = AuthStore(state, ISSUER)
    with suppress(StoreFull):
        for number in range(1000):
            await strangers.put("client", f"a stranger's {number}", bytes(1000), 60)
    with pytest.raises(StoreFull):
        await strangers.put("client", "one more", bytes(1000), 60)
    tokens = (await program.redeem(code)).json
    assert (await program.refresh(tokens["refresh_token"])).status == 200
    assert (await stage.post("revoke", {"token": of_program}, basic("ci", SECRET))).status == 200
    assert not await stage.may_call(of_program)
    await state.close()
