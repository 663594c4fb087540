"""Signing in, and what can go wrong with it."""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import aiohttp
import pytest
from msgspec.structs import replace
from oauth_realm import METADATA, PRM, Realm, realm
from served_http import Visit, free_port, until
from sign_in_stage import Person, notes

from dovetail import Client, Clients
from dovetail.client.oauth import ClientCredentials, JwtBearer, MemoryTokens, OAuth, TokenFile, TokenSet
from dovetail.errors import NotSignedIn, ServerError

pytestmark = pytest.mark.usefixtures("tidy")


def signing_in(person: Person, **options: Any) -> OAuth:
    return OAuth(**{"open_browser": person.open, "client_name": "A test", **options})


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_the_whole_way(revision: str) -> None:
    person = Person()
    async with notes() as served, Client(served.url, auth=signing_in(person), protocol_version=revision) as client:
        assert (await client.call_tool("read")).data == "a note"
        assert person.scopes == [["notes:read"]]
        assert (await client.call_tool("write", {"text": "new"})).data == "new"  # which needs more
        assert person.scopes == [["notes:read"], ["notes:read", "notes:write"]]
        assert (await client.call_tool("read")).data == "a note"
        assert served.paths.count("/register") == 1  # both times as the same program
        assert {asked["resource"] for asked in person.asked} == {served.url}
        assert len({asked["state"] for asked in person.asked}) == 2
        assert all("That is all" in page for page in person.pages)


async def test_time_stands_still_while_somebody_signs_in() -> None:
    person = Person(thinks=1.0)
    async with notes() as served, Client(served.url, auth=signing_in(person), timeout=0.9) as client:
        assert (await client.call_tool("read")).data == "a note"


async def test_somebody_who_says_no_is_asked_once() -> None:
    person = Person(says_yes=False)
    async with notes() as served:
        with pytest.raises(NotSignedIn, match="did not let you in: access_denied"):
            async with Client(served.url, auth=signing_in(person)):
                pass
        assert len(person.asked) == 1
        assert "Not signed in" in person.pages[0]


async def test_many_at_once_wait_for_one_sign_in() -> None:
    person = Person(thinks=0.2)
    async with notes() as served, Client(served.url, auth=signing_in(person)) as client:
        await asyncio.gather(*(client.call_tool("write", {"text": str(n)}) for n in range(8)))
        assert len(person.asked) == 2


async def expire(tokens: Any, **changes: Any) -> None:
    """As if time had passed."""
    (key,) = tokens.items()
    await tokens.save(key, replace(tokens.items()[key], **changes))


@pytest.mark.parametrize("changes", [{"expires_at": time.time() - 1}, {"access_token": "revoked"}])
async def test_many_at_once_refresh_once(changes: dict[str, Any]) -> None:
    """Whether the client knows that its token is over, or hears it from the server."""
    person, tokens = Person(), MemoryTokens()
    async with notes() as served:
        auth = signing_in(person, tokens=tokens)
        async with Client(served.url, auth=auth) as client:
            await client.call_tool("read")
            mine: Any = auth.for_server(served.url)
            before = mine._tokens.refresh_token
            mine._tokens = replace(mine._tokens, **changes)
            await expire(tokens, **changes)
            asked = served.paths.count("/token")
            results = await asyncio.gather(*(client.call_tool("read") for _ in range(10)))
            assert [result.data for result in results] == ["a note"] * 10
            assert served.paths.count("/token") == asked + 1
            assert len(person.asked) == 1
            assert mine._tokens.refresh_token != before  # which was good for one use only


async def test_tokens_outlive_the_program(tmp_path: Path) -> None:
    person = Person()
    async with notes() as served:
        for _ in range(3):
            auth = signing_in(person, tokens=TokenFile(tmp_path / "tokens.json"))
            async with Client(served.url, auth=auth) as client:
                assert (await client.call_tool("read")).data == "a note"
        assert len(person.asked) == 1
        assert served.paths.count("/token") == 1


async def test_kept_tokens_that_are_over_are_refreshed(tmp_path: Path) -> None:
    person, file = Person(), TokenFile(tmp_path / "tokens.json")
    async with notes() as served:
        async with Client(served.url, auth=signing_in(person, tokens=file)):
            pass
        (key,) = file._read()
        async with file.exclusive(key):
            await file.save(key, replace(file._read()[key], expires_at=1.0, access_token="over"))
        async with Client(served.url, auth=signing_in(person, tokens=file)) as client:
            assert (await client.call_tool("read")).data == "a note"
        assert len(person.asked) == 1
        assert file._read()[key].access_token != "over"


async def test_two_programs_refresh_once_with_one_refresh_token(tmp_path: Path) -> None:
    """The second one takes what the first one got, because its own refresh token is used up."""
    person, place = Person(), tmp_path / "tokens.json"
    async with notes() as served:
        first, second = (signing_in(person, tokens=TokenFile(place)) for _ in range(2))
        async with Client(served.url, auth=first) as one, Client(served.url, auth=second) as two:
            for auth in (first, second):
                mine: Any = auth.for_server(served.url)
                mine._tokens = replace(mine._tokens, access_token="revoked")
                async with mine._source.store.exclusive(mine._key):
                    await mine._source.store.save(mine._key, mine._tokens)
            await asyncio.gather(*(client.call_tool("read") for client in (one, two)))
        assert served.paths.count("/token") == 2
        assert len(person.asked) == 1


async def test_a_program_that_was_forgotten_registers_again(tmp_path: Path) -> None:
    person, file = Person(), TokenFile(tmp_path / "tokens.json")
    async with notes() as served:
        async with Client(served.url, auth=signing_in(person, tokens=file)):
            pass
        (key,) = file._read()
        kept = file._read()[key]
        async with file.exclusive(key):
            await file.save(key, replace(kept, access_token="over", client=replace(kept.client, id="dcr-nobody")))
        async with Client(served.url, auth=signing_in(person, tokens=file)) as client:
            assert (await client.call_tool("read")).data == "a note"
        assert served.paths.count("/register") == 2
        assert len(person.asked) == 2


async def test_what_nobody_waits_for_opens_no_browser(caplog: pytest.LogCaptureFixture) -> None:
    """A notification is refused, and that is all."""
    person = Person()
    async with notes() as served:
        auth = signing_in(person)
        async with Client(served.url, auth=auth, protocol_version="2025-11-25") as client:
            mine: Any = auth.for_server(served.url)
            mine._tokens = replace(mine._tokens, access_token="revoked", refresh_token=None)
            await mine._source.store.save(mine._key, mine._tokens)
            mine._tried.clear()
            with caplog.at_level(logging.WARNING, "dovetail.client"):
                await client.notify("notifications/roots/list_changed")
        assert len(person.asked) == 1
        assert "401" in caplog.text


async def test_no_token_is_ever_shown(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    person, tokens = Person(), MemoryTokens()
    auth = signing_in(person, tokens=tokens)
    with caplog.at_level(logging.DEBUG):
        async with notes() as served, Client(served.url, auth=auth) as client:
            await client.call_tool("read")
            (kept,) = tokens.items().values()
            shown = repr((auth, tokens, kept, kept.client, vars(auth.for_server(served.url))))
    printed = capfd.readouterr()
    for secret in (kept.access_token, kept.refresh_token):
        assert secret not in shown + caplog.text + printed.out + printed.err


async def test_a_token_as_text() -> None:
    person, tokens = Person(), MemoryTokens()
    async with notes() as served:
        async with Client(served.url, auth=signing_in(person, tokens=tokens)):
            (kept,) = tokens.items().values()
        async with Client(served.url, auth=kept.access_token) as client:
            assert (await client.call_tool("read")).data == "a note"
            with pytest.raises(ServerError, match="notes:write"):
                await client.call_tool("write", {"text": "new"})
        with pytest.raises(NotSignedIn, match="token is not good"):
            async with Client(served.url, auth="wrong"):
                pass


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
        assert len(made.asked) == 5


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


async def test_the_refresh_token_of_another_process_is_newer_than_ours() -> None:
    """Even if what it got with it is over, too: ours is used up."""
    tokens = MemoryTokens()
    async with realm() as made:
        made.token = {**made.token, "refresh_token": "refresh-1"}
        auth = made.oauth(tokens=tokens)
        await connect(made, auth)
        ((key, mine),) = tokens.items().items()
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
    (kept,) = tokens.items().values()
    return kept


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


def test_credentials_that_outlive_their_loop() -> None:
    auth = ClientCredentials("ci", "app-secret")

    async def many() -> None:
        async with realm() as made:
            auth.first_issuer = None  # another port each time
            async with Client(made.url, protocol_version=MODERN, auth=auth) as client:
                await asyncio.gather(*(client.discover(fresh=True) for _ in range(3)))

    for _ in range(2):
        asyncio.run(many())


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
