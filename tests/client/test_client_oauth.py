"""Signing in, and what can go wrong with it."""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from served_http import Visit, until
from sign_in_stage import METADATA, PRM, Person, Realm, notes, realm

from dovetail import Client
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


def _only(tokens: MemoryTokens) -> TokenSet:
    (kept,) = tokens.items().values()
    return kept
