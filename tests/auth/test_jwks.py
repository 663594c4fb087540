"""The keys of an issuer on a real server: found, kept, asked for again, and used while it is away."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from dovetail.auth import Jwt, VerifierTrouble
from dovetail.auth.fetch import Fetched, FetchRequest, make_fetch
from dovetail.auth.jose import ASYMMETRIC
from dovetail.auth.jwt import COOLDOWN, FRESH, RETRY, STALE, RemoteKeys, discover, may_hold_keys
from issuer_stage import AUDIENCE, EC, OTHER_RSA, RSA, Clock, Site, claims, jwks, site, token

FETCH = make_fetch(allow_loopback=True, timeout=2.0)


@pytest.fixture
async def served() -> AsyncIterator[Site]:
    async with site() as served:
        served.pages["/jwks"] = jwks()
        yield served


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(served: Site, clock: Clock) -> RemoteKeys:
    return RemoteKeys(FETCH, issuer=served.origin, jwks_uri=f"{served.origin}/jwks", algorithms=ASYMMETRIC, clock=clock)


async def kids(keys: RemoteKeys, kid: str | None, algorithm: str = "RS256") -> list[str | None]:
    return [key.kid for key in await keys.find(kid, algorithm)]


async def settled(keys: RemoteKeys) -> None:
    """Until what is asked in the background has come."""
    if keys._request is not None:
        await keys._request


def metadata(served: Site, **changes: Any) -> dict[str, Any]:
    return {"issuer": served.origin, "jwks_uri": f"{served.origin}/jwks"} | changes


@pytest.mark.rule("AUTH-7")
async def test_a_token_is_checked_with_the_published_key(served: Site) -> None:
    jwt = Jwt(served.origin, AUDIENCE, jwks_uri=f"{served.origin}/jwks")
    for algorithm in ("RS256", "ES256", "EdDSA"):
        assert await jwt.verify(token(claims(iss=served.origin), algorithm=algorithm)) is not None
    assert await jwt.verify(token(claims(iss=served.origin), key=OTHER_RSA)) is None
    assert served.asked == ["/jwks"]


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("", "/.well-known/oauth-authorization-server"),
        ("", "/.well-known/openid-configuration"),
        ("/tenant", "/.well-known/oauth-authorization-server/tenant"),
        ("/tenant", "/.well-known/openid-configuration/tenant"),
        ("/tenant", "/tenant/.well-known/openid-configuration"),
        ("/tenant/", "/tenant/.well-known/openid-configuration"),
    ],
)
async def test_all_places_of_the_metadata(served: Site, path: str, page: str) -> None:
    issuer = served.origin + path
    served.pages[page] = metadata(served, issuer=issuer)
    assert await discover(issuer, FETCH) == f"{served.origin}/jwks"


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ({"issuer": "https://evil.example.com"}, "another issuer"),
        ({"issuer": "slash"}, "another issuer"),
        ({"issuer": None}, "another issuer"),
        ({"jwks_uri": None}, "no https URL"),
        ({"jwks_uri": 7}, "no https URL"),
        ({"jwks_uri": "http://keys.example.com/jwks"}, "no https URL"),
        ({"jwks_uri": "file:///etc/passwd"}, "no https URL"),
        (b"[]", "no metadata"),
        (b"<html>", "no metadata"),
        ((500, {}), "no metadata"),
        ((302, {}), "no metadata"),
    ],
)
async def test_metadata_that_does_not_do(served: Site, page: Any, says: str) -> None:
    if isinstance(page, dict):
        page = metadata(served, **page)
        page["issuer"] = served.origin + "/" if page["issuer"] == "slash" else page["issuer"]
    served.pages["/.well-known/oauth-authorization-server"] = page
    with pytest.raises(ValueError, match=says):
        await discover(served.origin, FETCH)
    jwt = Jwt(served.origin, AUDIENCE)
    with pytest.raises(VerifierTrouble, match=says):
        await jwt.verify(token(claims(iss=served.origin)))


@pytest.mark.parametrize(
    ("url", "issuer", "good"),
    [
        ("https://keys.example.com/", "https://a.example.com", True),
        ("http://keys.example.com/", "https://a.example.com", False),
        ("http://localhost/", "https://a.example.com", False),  # no issuer out there sends us to this machine
        ("https://127.0.0.1/", "https://a.example.com", False),
        ("http://localhost/", "http://127.0.0.1:1", True),
        ("http://keys.example.com/", "http://localhost", False),
        ("ftp://localhost/", "http://localhost", False),
    ],
)
def test_where_keys_may_be(url: str, issuer: str, good: bool) -> None:
    assert may_hold_keys(url, issuer) is good


async def test_many_at_once_make_one_request(served: Site, keys: RemoteKeys) -> None:
    found = await asyncio.gather(*(kids(keys, "rsa") for _ in range(50)))
    assert found == [["rsa"]] * 50
    assert served.asked == ["/jwks"]


async def test_who_gives_up_does_not_end_it_for_others(served: Site, keys: RemoteKeys) -> None:
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def slowly(request: web.Request) -> Any:
        asked.set()
        await let_go.wait()
        return jwks()

    served.pages["/jwks"] = slowly
    impatient, patient = (asyncio.create_task(kids(keys, "rsa")) for _ in range(2))
    await asked.wait()
    impatient.cancel()
    let_go.set()
    assert await patient == ["rsa"]
    assert impatient.cancelled()
    assert served.asked == ["/jwks"]


@pytest.mark.rule("AUTH-7")
async def test_rotation(served: Site, keys: RemoteKeys, clock: Clock) -> None:
    assert await kids(keys, "rsa") == ["rsa"]
    served.pages["/jwks"] = jwks(OTHER_RSA)
    clock.now += COOLDOWN
    assert await kids(keys, "rsa-2") == ["rsa-2"]  # an unknown name is asked for at once
    assert await kids(keys, "rsa") == []  # and what was taken away is gone
    assert served.asked == ["/jwks"] * 2


async def test_unknown_names_ask_once_per_cooldown(served: Site, keys: RemoteKeys, clock: Clock) -> None:
    await kids(keys, "rsa")
    for number in range(100):
        assert await kids(keys, f"unknown {number}") == []
    assert len(served.asked) == 1
    clock.now += COOLDOWN
    for number in range(100):
        assert await kids(keys, f"unknown {number}") == []
    assert len(served.asked) == 2


async def test_old_keys_are_asked_for_while_they_are_used(served: Site, keys: RemoteKeys, clock: Clock) -> None:
    await kids(keys, "rsa")
    clock.now += FRESH - 1
    await kids(keys, "rsa")
    assert len(served.asked) == 1
    served.pages["/jwks"] = jwks(OTHER_RSA)
    clock.now += 2
    assert await kids(keys, "rsa") == ["rsa"]  # nobody waits
    await settled(keys)
    assert len(served.asked) == 2
    assert await kids(keys, "rsa") == []


async def test_keys_stay_good_for_a_while_when_the_issuer_is_away(served: Site, keys: RemoteKeys, clock: Clock) -> None:
    await kids(keys, "rsa")
    served.pages["/jwks"] = (503, b"")
    clock.now += FRESH + 1
    assert await kids(keys, "rsa") == ["rsa"]
    await settled(keys)
    clock.now += RETRY
    assert await kids(keys, "rsa") == ["rsa"]
    await settled(keys)
    assert len(served.asked) == 3
    with pytest.raises(VerifierTrouble):  # it may be good, but nobody can say
        await kids(keys, "rsa-2")
    clock.now += STALE
    with pytest.raises(VerifierTrouble):
        await kids(keys, "rsa")
    served.pages["/jwks"] = jwks()
    clock.now += RETRY
    assert await kids(keys, "rsa") == ["rsa"]


async def test_an_issuer_that_is_away_is_not_asked_all_the_time(served: Site, keys: RemoteKeys, clock: Clock) -> None:
    served.pages["/jwks"] = (500, b"secret words of a stack trace")
    for _ in range(20):
        with pytest.raises(VerifierTrouble) as caught:
            await kids(keys, "rsa")
        assert "secret" not in str(caught.value)
    assert len(served.asked) == 1
    clock.now += RETRY
    with pytest.raises(VerifierTrouble):
        await kids(keys, "rsa")
    assert len(served.asked) == 2


async def test_bad_news_do_not_replace_good_keys(served: Site, keys: RemoteKeys, clock: Clock) -> None:
    await kids(keys, "rsa")
    served.pages["/jwks"] = {"keys": []}
    clock.now += FRESH + 1
    await kids(keys, "rsa")
    await settled(keys)
    assert await kids(keys, "rsa") == ["rsa"]


async def test_keys_fit_by_name_and_algorithm(served: Site, keys: RemoteKeys) -> None:
    named = EC.as_dict(private=False)
    nameless = {name: value for name, value in RSA.as_dict(private=False).items() if name != "kid"}
    served.pages["/jwks"] = {"keys": [named, nameless]}
    assert await kids(keys, "ec", "ES256") == ["ec"]
    assert await kids(keys, None, "ES256") == ["ec"]
    assert await kids(keys, "other", "ES256") == []
    assert await kids(keys, "ec", "ES384") == []
    assert await kids(keys, "any", "RS256") == [None]


async def test_a_fetch_of_somebody_else_that_breaks_is_trouble(clock: Clock) -> None:
    async def broken(request: FetchRequest) -> Fetched:
        raise RuntimeError("secret")

    keys = RemoteKeys(broken, issuer="https://a", jwks_uri="https://a/jwks", algorithms=ASYMMETRIC, clock=clock)
    with pytest.raises(VerifierTrouble, match="RuntimeError") as caught:
        await kids(keys, "rsa")
    assert "secret" not in str(caught.value)
    gc.collect()  # nobody complains of an exception that was never looked at


def test_one_verifier_for_several_event_loops() -> None:
    """As in a program that runs a server twice: what was under way in one loop is not waited for in the next."""

    async def never(request: FetchRequest) -> Fetched:
        await asyncio.sleep(3600)
        raise AssertionError

    clock = Clock()
    keys = RemoteKeys(never, issuer="https://a", jwks_uri="https://a/jwks", algorithms=ASYMMETRIC, clock=clock)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(keys.find("rsa", "RS256"), 0.05))
        clock.now += COOLDOWN
