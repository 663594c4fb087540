"""Signing in where things go wrong: often, slowly, with stores that fail, and with several servers at once."""

import asyncio
import logging
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import aiohttp
import pytest
from msgspec.structs import replace
from oauth_realm import METADATA, PRM, Realm, realm
from served_http import Visit, free_port, until

from dovetail import Client, Clients
from dovetail.client import era
from dovetail.client.oauth import (
    ClientCredentials,
    JwtBearer,
    MemoryTokens,
    OAuth,
    TokenFile,
    TokenSet,
    server_tokens,
)
from dovetail.client.oauth.loop_lock import LoopLock
from dovetail.errors import NotSignedIn, ServerError, SetupError

pytestmark = pytest.mark.usefixtures("tidy")
MODERN = "2026-07-28"


async def connect(made: Realm, auth: Any, **options: Any) -> None:
    async with Client(made.url, protocol_version=MODERN, auth=auth, **options):
        pass


def slow(made: Realm, path: str, seconds: float) -> None:
    async def think(visit: Visit) -> None:
        await asyncio.sleep(seconds)
        made.pages[path] = None
        made._behave(visit)

    made.pages[path] = think


# ── several servers ──


@pytest.mark.parametrize("kind", ["secret", "assertion", "person"])
async def test_a_secret_goes_to_the_issuer_of_the_first_server_only(kind: str) -> None:
    async with realm() as good, realm() as evil:
        for made in (good, evil):
            made.change(METADATA, token_endpoint_auth_methods_supported=["client_secret_post"])
        auth: Any = {
            "secret": lambda: ClientCredentials("ci", "app-secret"),
            "assertion": lambda: JwtBearer("ci", "app-secret"),
            "person": lambda: good.oauth(client_id="app", client_secret="app-secret"),
        }[kind]()
        await connect(good, auth)
        assert "app-secret" in str(good.forms)
        with pytest.raises(NotSignedIn, match="is not shown to others"):
            await connect(evil, auth)
        assert not evil.forms
        evil.change(PRM, authorization_servers=[evil.script.origin, good.script.origin])
        await connect(evil, auth)  # a neighbour, with the same issuer
        assert not evil.forms


async def test_one_sign_in_after_the_other() -> None:
    """Two would want the same port; and nobody likes many tabs at once."""
    async with realm() as one, realm() as two:
        port, open_now, most = free_port(), 0, 0

        async def browser(url: str) -> None:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            await asyncio.sleep(0.1)
            asked = dict(parse_qsl(urlsplit(url).query))
            back = f"{asked['redirect_uri']}?{urlencode({'code': 'the-code', 'state': asked['state']})}"
            open_now -= 1
            async with aiohttp.ClientSession() as session, session.get(back):
                pass

        auth = OAuth(client_id="known", redirect_uri=f"http://127.0.0.1:{port}/callback", open_browser=browser)
        servers = {"one": {"url": one.url}, "two": {"url": two.url}}
        async with Clients({"mcpServers": servers}, auth=auth, connect_timeout=5) as clients:
            assert list(clients) == ["one", "two"]
        assert most == 1


# ── time ──


async def test_a_person_has_longer_than_a_connection() -> None:
    async with realm() as made:

        async def think(url: str) -> str:
            await asyncio.sleep(1.1)
            return await made.browse(url)

        auth = made.oauth(redirect_handler=think)
        async with Clients({"mcpServers": {"a": {"url": made.url}}}, auth=auth, connect_timeout=1.0) as clients:
            assert list(clients) == ["a"]
            assert not clients.failures


async def test_somebody_who_signs_in_is_not_taken_for_an_old_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(era, "PROBE_SECONDS", 0.1)
    async with realm() as made:

        async def think(url: str) -> str:
            await asyncio.sleep(0.3)
            return await made.browse(url)

        async with Client(made.url, auth=made.oauth(redirect_handler=think)) as client:
            assert client.protocol_version == MODERN
        assert {visit.method for visit in made.script.visits if visit.path == "/mcp"} == {"server/discover"}


@pytest.mark.parametrize("interactive", [True, False])
async def test_servers_have_no_longer_than_the_request(interactive: bool) -> None:
    async with realm() as made:
        slow(made, PRM, 3.0)
        auth = made.oauth() if interactive else ClientCredentials("ci", "app-secret")
        with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):  # and not an answer after three
            await connect(made, auth, timeout=0.2)


async def test_looking_for_the_issuer_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_tokens, "DISCOVERY_SECONDS", 0.1)
    async with realm() as made:
        slow(made, PRM, 1.0)
        with pytest.raises(NotSignedIn, match=r"not to be found within 0\.1 s"):
            await connect(made, made.oauth())


# ── again and again ──


def renewed(made: Realm, **more: Any) -> None:
    """Each token is another one."""
    made.token = lambda form: {"access_token": f"t{len(made.forms)}", "token_type": "Bearer", **more}


async def test_tokens_that_are_over_at_once_do_not_open_browsers_for_ever() -> None:
    async with realm() as made:
        made.good = set()
        renewed(made, expires_in=0.001)
        auth = made.oauth()
        for _ in range(3):
            with pytest.raises((NotSignedIn, ServerError)):
                await connect(made, auth)
        assert len(made.asked) == server_tokens.MOST_SIGN_INS


async def test_ever_more_scopes_do_not_open_browsers_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async with realm() as made:

        def more(visit: Visit) -> None:
            if "authorization" in visit.headers:
                told = f'Bearer error="insufficient_scope", scope="s{len(made.forms)}"'
                visit.answer(403, {}, WWW_Authenticate=told)
            else:
                made._mcp(visit)

        made.pages["/mcp"] = more
        renewed(made)
        auth = made.oauth()
        for _ in range(3):
            with pytest.raises((NotSignedIn, ServerError)):
                await connect(made, auth)
        assert len(made.asked) == server_tokens.MOST_SIGN_INS
        monkeypatch.setattr(server_tokens, "MAX_STEPS", 2)
        monkeypatch.setattr(server_tokens, "SOON", 0.0)
        with pytest.raises(ServerError, match="403"):
            await connect(made, auth)
        assert len(made.asked) == server_tokens.MOST_SIGN_INS


# ── refreshes and registrations that are refused ──

REFUSALS: dict[str, Any] = {
    "with 200": (200, {"error": "bad_refresh_token"}),
    "a word of its own": (400, {"error": "token_reuse"}),
    "used up": (400, {"error": "invalid_grant"}),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_refused_refresh_leads_to_a_sign_in(case: str) -> None:
    async with realm() as made:
        fresh = {"access_token": "good-token", "token_type": "Bearer", "refresh_token": "refresh-1"}
        made.token = lambda form: REFUSALS[case] if form["grant_type"] == "refresh_token" else fresh
        auth = made.oauth()
        await connect(made, auth)
        made.good, fresh["access_token"] = {"second"}, "second"
        await connect(made, auth)
        assert len(made.asked) == 2
        assert len(made.registered) == 1


NO_REFUSALS: dict[str, Any] = {
    "busy": (429, {"error": "later"}),
    "down": (503, {"error": "later"}),
    "down, in words": (400, {"error": "temporarily_unavailable"}),
    "a firewall": (403, b"<html>"),
    "a gateway": (404, b"no such page"),
    "something of its own": (400, {"detail": "not now"}),
}


@pytest.mark.parametrize("case", NO_REFUSALS)
async def test_what_says_nothing_about_a_refresh_token_does_not_take_it_away(case: str, tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    async with realm() as made:
        fresh = {"access_token": "good-token", "token_type": "Bearer", "refresh_token": "refresh-1"}
        answers: list[Any] = [fresh, NO_REFUSALS[case], {**fresh, "access_token": "second"}]
        made.token = lambda form: answers[len(made.forms) - 1]
        await connect(made, made.oauth(tokens=file))
        made.good = {"second"}
        with pytest.raises(NotSignedIn, match="try again later"):
            await connect(made, made.oauth(tokens=file))
        await connect(made, made.oauth(tokens=file))
        assert [form["grant_type"] for form in made.forms] == ["authorization_code", "refresh_token", "refresh_token"]
        assert len(made.asked) == 1


async def test_who_is_cancelled_in_a_refresh_does_not_lose_what_came_of_it() -> None:
    """The old refresh token is used up by then."""
    tokens = MemoryTokens()
    async with realm() as made:
        made.token = lambda form: {
            "access_token": "good-token" if form["grant_type"] != "refresh_token" else "second",
            "token_type": "Bearer",
            "refresh_token": f"refresh-{len(made.forms)}",
        }
        auth = made.oauth(tokens=tokens)
        async with Client(made.url, protocol_version=MODERN, auth=auth) as client:
            made.good = {"second"}
            slow(made, "/token", 0.2)
            call = asyncio.create_task(client.discover(fresh=True))
            await until(lambda: made.paths()[-1] == "/token")
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert _only(tokens).refresh_token == "refresh-1"
            await until(lambda: _only(tokens).refresh_token == "refresh-2")
            await client.discover(fresh=True)
        assert [form["grant_type"] for form in made.forms] == ["authorization_code", "refresh_token"]


async def test_a_refresh_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_tokens, "FINISH_SECONDS", 0.05)
    async with realm() as made:
        made.token = {**made.token, "refresh_token": "refresh-1"}
        auth = made.oauth()
        async with Client(made.url, protocol_version=MODERN, auth=auth, timeout=0.1) as client:
            made.good = set()
            slow(made, "/token", 5.0)
            with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
                await client.discover(fresh=True)
            asked = made.script.visits[-1]
            assert asked.path == "/token"
            await asyncio.wait_for(asked.gone(), 2)


async def test_the_refresh_token_of_another_process_is_newer_than_ours() -> None:
    """Even if what it got with it is over, too: ours is used up."""
    tokens = MemoryTokens()
    async with realm() as made:
        made.token = {**made.token, "refresh_token": "refresh-1"}
        auth = made.oauth(tokens=tokens)
        await connect(made, auth)
        ((key, mine),) = tokens._kept.items()
        await tokens.save(key, replace(mine, access_token="theirs", refresh_token="refresh-2", expires_at=1.0))
        made.good = {"third"}
        made.token = lambda form: (
            {"access_token": "third", "token_type": "Bearer"}
            if form.get("refresh_token") == "refresh-2"
            else (400, {"error": "invalid_grant"})
        )
        await connect(made, auth)
        assert [form.get("refresh_token") for form in made.forms] == [None, "refresh-2"]
        assert len(made.asked) == 1


def _only(tokens: MemoryTokens) -> TokenSet:
    (kept,) = tokens._kept.values()
    return kept


async def test_a_registration_that_is_gone_is_made_again() -> None:
    async with realm() as made:
        auth = made.oauth()
        await connect(made, auth)
        made.good = {"second"}
        made.token = lambda form: (
            (401, {"error": "invalid_client"})
            if form["client_id"] == "app-1"
            else {"access_token": "second", "token_type": "Bearer"}
        )
        mine: Any = auth.for_server(made.url)
        mine._tried.clear()
        with pytest.raises(NotSignedIn, match="invalid_client"):
            await connect(made, auth)
        await connect(made, auth)
        assert len(made.registered) == 2


@pytest.mark.parametrize(("ends", "registrations"), [(0, 1), (4e9, 1), (1, 2)])
async def test_a_secret_that_ends(tmp_path: Path, ends: float, registrations: int) -> None:
    """And one that does not is used by the next program too."""
    file = TokenFile(tmp_path / "tokens.json")
    async with realm() as made:

        def register(visit: Visit) -> None:
            made.registered.append({})
            secret = {"client_secret": "app-secret", "client_secret_expires_at": ends}
            visit.answer(201, {"client_id": "app", "token_endpoint_auth_method": "client_secret_post", **secret})

        made.pages["/register"] = register
        await connect(made, made.oauth(tokens=file))
        made.good = {"second"}
        made.token = {"access_token": "second", "token_type": "Bearer"}
        await connect(made, made.oauth(tokens=file))
        assert len(made.asked) == 2
        assert len(made.registered) == registrations


# ── stores ──


async def test_a_store_that_can_not_keep_anything(caplog: pytest.LogCaptureFixture) -> None:
    async with realm() as made:
        made.token = {**made.token, "refresh_token": "refresh-1"}
        auth = made.oauth(tokens=Unwritable())
        with caplog.at_level(logging.WARNING, "dovetail.client"):
            for token in ("good-token", "second"):
                made.good, made.token["access_token"] = {token}, token
                for _ in range(2):
                    await connect(made, auth)
        assert len(made.asked) == 1
        assert [form["grant_type"] for form in made.forms] == ["authorization_code", "refresh_token"]
        assert "you will have to sign in again next time: no room" in caplog.text


class Unwritable:
    async def load(self, key: str) -> None:
        return None

    async def save(self, key: str, tokens: Any) -> None:
        raise NotSignedIn("no room")

    def exclusive(self, key: str) -> Any:
        raise NotSignedIn("no room")


# ── other loops ──


def test_a_lock_that_outlives_its_loop() -> None:
    lock, inside = LoopLock(), 0

    async def one() -> None:
        nonlocal inside
        async with lock:
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1

    async def contend() -> None:
        await asyncio.gather(*(one() for _ in range(3)))

    for _ in range(2):
        asyncio.run(contend())


def test_credentials_that_outlive_their_loop() -> None:
    auth = ClientCredentials("ci", "app-secret")

    async def many() -> None:
        async with realm() as made:
            auth._per_server._binding.issuer = None  # another port each time
            async with Client(made.url, protocol_version=MODERN, auth=auth) as client:
                await asyncio.gather(*(client.discover(fresh=True) for _ in range(3)))

    for _ in range(2):
        asyncio.run(many())


# ── pages and redirects that can't be meant ──

PAGES = {
    "another client": ("?client_id=theirs", "answers client_id itself; it is not opened"),
    "another place to go": ("?a=1&redirect_uri=https://evil.example", "answers redirect_uri itself"),
    "far too long": (f"?a={'x' * 20_000}", "would need more than 16384 characters"),
}


@pytest.mark.parametrize("case", PAGES)
async def test_pages_that_are_not_opened(case: str) -> None:
    async with realm() as made:
        query, words = PAGES[case]
        made.change(METADATA, authorization_endpoint=f"{made.script.origin}/authorize{query}")
        with pytest.raises(NotSignedIn, match=words):
            await connect(made, made.oauth())
        assert not made.asked
        made.change(METADATA, authorization_endpoint=f"{made.script.origin}/authorize?tenant=1")
        await connect(made, made.oauth())
        assert made.asked[0]["tenant"] == "1"


@pytest.mark.parametrize("port", ["99999", "0", "x"])
def test_ports_that_can_not_be(port: str) -> None:
    with pytest.raises(SetupError, match="redirect_uri="):
        OAuth(redirect_uri=f"http://localhost:{port}/callback")
