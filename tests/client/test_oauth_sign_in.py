"""`Client(url, auth=OAuth())` against our own authorization server, over real HTTP, with a person at the browser."""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sign_in_stage import Person, notes

from dovetail import Client
from dovetail.client.oauth import MemoryTokens, OAuth, TokenFile
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
    (key,) = tokens._kept
    await tokens.save(key, replace(tokens._kept[key], **changes))


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
            (kept,) = tokens._kept.values()
            shown = repr((auth, tokens, kept, kept.client, vars(auth.for_server(served.url))))
    printed = capfd.readouterr()
    for secret in (kept.access_token, kept.refresh_token):
        assert secret not in shown + caplog.text + printed.out + printed.err


async def test_a_token_as_text() -> None:
    person, tokens = Person(), MemoryTokens()
    async with notes() as served:
        async with Client(served.url, auth=signing_in(person, tokens=tokens)):
            (kept,) = tokens._kept.values()
        async with Client(served.url, auth=kept.access_token) as client:
            assert (await client.call_tool("read")).data == "a note"
            with pytest.raises(ServerError, match="notes:write"):
                await client.call_tool("write", {"text": "new"})
        with pytest.raises(NotSignedIn, match="token is not good"):
            async with Client(served.url, auth="wrong"):
                pass


async def test_closing_ends_a_sign_in() -> None:
    opened = asyncio.Event()

    async def never(url: str) -> None:
        opened.set()

    async with notes() as served:
        client = Client(served.url, auth=OAuth(open_browser=never))
        entering = asyncio.create_task(client.__aenter__())
        await asyncio.wait_for(opened.wait(), 10)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering


def test_a_server_is_one_place() -> None:
    auth = OAuth()
    assert auth.for_server("https://a.example/mcp") is auth.for_server("https://a.example/mcp")
    assert auth.for_server("https://a.example/mcp") is not auth.for_server("https://b.example/mcp")
