"""`Jwt`: which tokens count, whom they name, and what is refused when it is set up."""

import asyncio
import gc
import time
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from dovetail.auth import Auth, Jwt, VerifierUnavailable
from dovetail.auth.fetch import Fetched, FetchFailed, FetchRequest, make_fetch
from dovetail.auth.jose import ASYMMETRIC, MAX_KEYS, read_keys
from dovetail.auth.jwt import (
    EXPIRE_AFTER,
    REFRESH_AFTER,
    REFRESH_COOLDOWN,
    RETRY_DELAY,
    RemoteKeys,
    discover,
    is_secure_url,
)
from dovetail.errors import SetupError
from issuer_stage import AUDIENCE, EC, ED, ISSUER, KEYS, OTHER_RSA, RSA, Clock, Site, claims, jwks, secret, site, token

SECRET = b"0123456789abcdef0123456789abcdef"
LONG = SECRET * 2


def pem(key: Any) -> bytes:
    return bytes(key.as_pem(private=False))


@pytest.fixture
def jwt() -> Jwt:
    return Jwt(ISSUER, AUDIENCE, jwks=jwks())


@pytest.mark.rule("AUTH-7", "AUTH-8")
@pytest.mark.parametrize("algorithm", KEYS)
async def test_a_good_token(jwt: Jwt, algorithm: str) -> None:
    said = claims()
    principal = await jwt.verify(token(said, algorithm=algorithm))
    assert principal is not None
    assert (principal.subject, principal.client, principal.issuer) == ("alice", "editor", ISSUER)
    assert principal.scopes == {"notes:read", "notes:write"}
    assert principal.claims == said
    assert principal.expires_at == said["exp"]


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        *((name, RSA) for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        ("ES256", EC),
        ("ES384", ECKey.generate_key("P-384")),
        ("ES512", ECKey.generate_key("P-521")),
        ("EdDSA", ED),
        ("Ed25519", ED),
    ],
)
async def test_every_algorithm_with_one_public_key(algorithm: str, key: Any) -> None:
    assert algorithm in ASYMMETRIC
    jwt = Jwt(ISSUER, AUDIENCE, public_key=pem(key))
    assert await jwt.verify(token(algorithm=algorithm, key=key, kid="k" * 256)) is not None
    assert await jwt.verify(token(algorithm=algorithm, key=key, kid="k" * 257)) is None
    assert await jwt.verify(token(algorithm="RS256", key=OTHER_RSA)) is None


async def test_scopes_from_another_claim() -> None:
    jwt = Jwt(ISSUER, AUDIENCE, jwks=jwks(), scope_claim="roles")
    principal = await jwt.verify(token(claims(roles=["admin"])))
    assert principal is not None
    assert principal.scopes == {"admin"}


@pytest.mark.rule("AUTH-8", "AUTH-17", "SEC-6")
@pytest.mark.parametrize(
    "aud", [AUDIENCE + "/", "HTTPS://NOTES.example.com/mcp", ["https://other.example.com", AUDIENCE]]
)
async def test_the_audience(jwt: Jwt, aud: Any) -> None:
    assert await jwt.verify(token(claims(aud=aud))) is not None
    assert await Jwt(ISSUER, "https://other.example.com/mcp", jwks=jwks()).verify(token()) is None


@pytest.mark.rule("AUTH-9")
@pytest.mark.parametrize(
    ("typ", "good"),
    [
        *((typ, True) for typ in ("at+jwt", "AT+JWT", "JWT", "application/at+jwt", ...)),
        *((typ, False) for typ in ("dpop+jwt", "logout+jwt", "id_token+jwt", "", 7, ["at+jwt"])),
    ],
)
async def test_only_types_of_access_tokens_do(jwt: Jwt, typ: Any, good: bool) -> None:
    assert (await jwt.verify(token(typ=typ)) is not None) is good


async def test_the_clock_may_differ_a_little(jwt: Jwt) -> None:
    now = int(time.time())
    assert await jwt.verify(token(claims(exp=now - 30, nbf=now + 30, iat=now + 30))) is not None
    strict = Jwt(ISSUER, AUDIENCE, jwks=jwks(), leeway=0)
    assert await strict.verify(token(claims(exp=now - 1))) is None


async def test_without_a_kid_all_keys_that_fit_are_tried(jwt: Jwt) -> None:
    both = Jwt(ISSUER, AUDIENCE, jwks=jwks(OTHER_RSA, EC, RSA))
    assert await both.verify(token(kid=...)) is not None
    assert await both.verify(token(kid="rsa-2")) is None  # of the key that it names, only that counts


@pytest.mark.parametrize(("others", "good"), [(7, True), (8, False)])
async def test_without_a_kid_a_few_keys_are_tried(others: int, good: bool) -> None:
    keys = [*(ECKey.generate_key("P-256", {"kid": f"{n}"}) for n in range(others)), EC]
    jwt = Jwt(ISSUER, AUDIENCE, jwks=jwks(*keys), leeway=600)
    assert (await jwt.verify(token(algorithm="ES256", kid=...)) is not None) is good
    assert await jwt.verify(token(algorithm="ES256")) is not None


async def test_a_shared_secret_only_if_it_was_given() -> None:
    jwt = Jwt(ISSUER, AUDIENCE, secret=LONG)
    for algorithm in ("HS256", "HS384", "HS512"):
        assert await jwt.verify(token(algorithm=algorithm, key=secret(LONG), kid=...)) is not None
        assert await jwt.verify(token(algorithm=algorithm, key=secret(SECRET), kid=...)) is None
    assert await jwt.verify(token()) is None
    short = Jwt(ISSUER, AUDIENCE, secret=SECRET.decode())
    assert await short.verify(token(algorithm="HS256", key=secret(SECRET), kid=...)) is not None
    assert await short.verify(token(algorithm="HS512", key=secret(SECRET), kid=...)) is None


async def test_only_the_algorithms_that_were_named() -> None:
    jwt = Jwt(ISSUER, AUDIENCE, jwks=jwks(), algorithms=["ES256"])
    assert await jwt.verify(token(algorithm="ES256")) is not None
    assert await jwt.verify(token(algorithm="RS256")) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"issuer": ""}, "issuer"),
        *(({"audience": audience}, "audience") for audience in ("", [], [""], None)),
        ({"algorithms": ["none"]}, "none"),
        ({"algorithms": ["HS256"]}, "HS256"),
        ({"algorithms": []}, "algorithms"),
        ({"algorithms": ["RS256"], "jwks": None, "secret": SECRET}, "shared secret"),
        ({"jwks": None, "secret": b"short-but-secret"}, "too short"),
        ({"jwks": None, "secret": SECRET, "algorithms": ["HS512"]}, "too short"),
        ({"jwks": None, "secret": pem(RSA)}, "public_key"),
        ({"jwks": None, "secret": b"\n-----BEGIN CERTIFICATE-----" + SECRET}, "public_key"),
        ({"jwks": None, "secret": RSA.as_der(private=False)}, "public_key"),
        *(({"leeway": seconds}, "leeway") for seconds in (-1, 600.5)),
        ({"public_key": pem(RSA), "jwks_uri": ISSUER}, "not from jwks_uri and jwks and public_key; give"),
        ({"secret": SECRET}, "not from jwks and secret; give"),
        ({"jwks": {}}, "no set"),
        ({"jwks": {"keys": []}}, "no public key"),
        ({"jwks": None, "public_key": "x"}, "no PEM"),
        ({"jwks": None, "public_key": RSA.as_pem(private=True)}, "private key"),
        ({"jwks": None, "public_key": pem(EC), "algorithms": ["RS256"]}, "no PEM"),
        *(({"jwks": None, "jwks_uri": uri}, "not https") for uri in ("http://login.example.com/jwks", "file:///etc/x")),
        *(({"jwks": None, "issuer": issuer}, "not https") for issuer in ("http://login.example.com", "my-issuer")),
    ],
)
def test_what_is_refused_at_setup(options: dict[str, Any], says: str) -> None:
    given = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": jwks()} | options
    with pytest.raises(SetupError, match=says) as caught:
        Jwt(**given)
    assert "secret\n" not in str(caught.value)
    assert "short-but" not in str(caught.value)


@pytest.mark.parametrize("bits", [1024, 2040])
def test_weak_rsa_keys_are_refused_without_a_warning(bits: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the one that makes it
        weak = RSAKey.generate_key(bits)
    with pytest.raises(SetupError, match="2048"):
        Jwt(ISSUER, AUDIENCE, public_key=pem(weak))
    with pytest.raises(SetupError, match="no public key"):
        Jwt(ISSUER, AUDIENCE, jwks=jwks(weak))


def test_keys_of_a_set_that_are_passed_over() -> None:
    public = RSA.as_dict(private=False)
    strange: list[Any] = [
        None, "key", {}, {"kty": "quantum"}, {"kty": ["RSA"]}, {"kty": "RSA", "n": "!", "e": "AQAB"},
        {"kty": "RSA", "n": 7, "e": "AQAB"}, {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "P-257", "x": "AA", "y": "AA"}, public | {"use": "enc"}, public | {"use": ["sig"]},
        public | {"key_ops": ["encrypt"]}, public | {"key_ops": 7}, public | {"alg": "RSA-OAEP"},
        public | {"alg": "HS256"}, public | {"n": public["n"] + "=="},
        public | {"kid": 7}, public | {"e": public["n"]}, RSA.as_dict(private=True),
        OctKey.import_key(SECRET).as_dict(), OKPKey.generate_key("X25519").as_dict(private=False),
    ]  # fmt: skip
    assert [key.kid for key in read_keys({"keys": [*strange, public]})] == ["rsa"]


@pytest.mark.parametrize("document", [None, [], {}, {"keys": {}}, {"keys": [{}] * (MAX_KEYS + 1)}])
def test_what_is_no_set_of_keys(document: Any) -> None:
    with pytest.raises(ValueError, match="no set"):
        read_keys(document)


def test_it_shows_no_key_and_names_its_authorization_server() -> None:
    jwt = Jwt(ISSUER, AUDIENCE, secret=LONG)
    assert repr(jwt) == f"Jwt({ISSUER!r})"
    assert "0123" not in repr(vars(jwt)) + repr(
        [vars(each) for each in vars(jwt).values() if hasattr(each, "__dict__")]
    )
    assert Auth(jwt).authorization_servers == (ISSUER,)


async def test_a_token_of_another_issuer_does_not_ask_for_keys() -> None:
    """So that two issuers can stand side by side while one of them is away."""
    asked: list[str] = []

    async def fetch(request: FetchRequest) -> Fetched:
        asked.append(request.url)
        raise FetchFailed("away")

    away = Jwt("https://away.example.com", AUDIENCE, fetch=fetch)
    auth = Auth([away, Jwt(ISSUER, AUDIENCE, jwks=jwks())])
    principal = await auth.verify(token())
    assert principal is not None
    assert asked == []
    with pytest.raises(VerifierUnavailable):
        await auth.verify(token(claims(iss="https://away.example.com")))
    assert asked


# ── the keys of an issuer on a real server ──

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
        *(({"issuer": issuer}, "another issuer") for issuer in ("https://evil.example.com", "slash", None)),
        *(({"jwks_uri": uri}, "no https URL") for uri in (None, 7, "http://keys.example.com/jwks", "file:///etc/x")),
        *((page, "no metadata") for page in (b"[]", b"<html>", (500, {}), (302, {}))),
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
    with pytest.raises(VerifierUnavailable, match=says):
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
    assert is_secure_url(url, issuer) is good


async def test_a_cancelled_caller_does_not_end_the_request_of_others(served: Site, keys: RemoteKeys) -> None:
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
    clock.now += REFRESH_COOLDOWN
    assert await kids(keys, "rsa-2") == ["rsa-2"]  # an unknown name is asked for at once
    assert await kids(keys, "rsa") == []  # and what was taken away is gone
    assert served.asked == ["/jwks"] * 2


async def test_unknown_names_ask_once_per_cooldown(served: Site, keys: RemoteKeys, clock: Clock) -> None:
    await kids(keys, "rsa")
    for number in range(100):
        assert await kids(keys, f"unknown {number}") == []
    assert len(served.asked) == 1
    clock.now += REFRESH_COOLDOWN
    for number in range(100):
        assert await kids(keys, f"unknown {number}") == []
    assert len(served.asked) == 2


async def test_old_keys_are_asked_for_while_they_are_used(served: Site, keys: RemoteKeys, clock: Clock) -> None:
    await kids(keys, "rsa")
    clock.now += REFRESH_AFTER - 1
    await kids(keys, "rsa")
    assert len(served.asked) == 1
    served.pages["/jwks"] = jwks(OTHER_RSA)
    clock.now += 2
    assert await kids(keys, "rsa") == ["rsa"]  # no caller waits
    await settled(keys)
    assert len(served.asked) == 2
    assert await kids(keys, "rsa") == []


async def test_keys_stay_good_for_a_while_when_the_issuer_is_away(served: Site, keys: RemoteKeys, clock: Clock) -> None:
    await kids(keys, "rsa")
    served.pages["/jwks"] = (503, b"")
    clock.now += REFRESH_AFTER + 1
    assert await kids(keys, "rsa") == ["rsa"]
    await settled(keys)
    clock.now += RETRY_DELAY
    assert await kids(keys, "rsa") == ["rsa"]
    await settled(keys)
    assert len(served.asked) == 3
    with pytest.raises(VerifierUnavailable):  # it may be good, but it can't be verified
        await kids(keys, "rsa-2")
    clock.now += EXPIRE_AFTER
    with pytest.raises(VerifierUnavailable):
        await kids(keys, "rsa")
    served.pages["/jwks"] = jwks()
    clock.now += RETRY_DELAY
    assert await kids(keys, "rsa") == ["rsa"]


async def test_an_issuer_that_is_away_is_not_asked_all_the_time(served: Site, keys: RemoteKeys, clock: Clock) -> None:
    served.pages["/jwks"] = (500, b"secret words of a stack trace")
    for _ in range(20):
        with pytest.raises(VerifierUnavailable) as caught:
            await kids(keys, "rsa")
        assert "secret" not in str(caught.value)
    assert len(served.asked) == 1
    clock.now += RETRY_DELAY
    with pytest.raises(VerifierUnavailable):
        await kids(keys, "rsa")
    assert len(served.asked) == 2


async def test_keys_match_by_name_and_algorithm(served: Site, keys: RemoteKeys) -> None:
    named = EC.as_dict(private=False)
    nameless = {name: value for name, value in RSA.as_dict(private=False).items() if name != "kid"}
    served.pages["/jwks"] = {"keys": [named, nameless]}
    assert await kids(keys, "ec", "ES256") == ["ec"]
    assert await kids(keys, None, "ES256") == ["ec"]
    assert await kids(keys, "other", "ES256") == []
    assert await kids(keys, "ec", "ES384") == []
    assert await kids(keys, "any", "RS256") == [None]


async def test_if_an_authors_own_fetch_fails_the_verifier_is_unavailable(clock: Clock) -> None:
    async def broken(request: FetchRequest) -> Fetched:
        raise RuntimeError("secret")

    keys = RemoteKeys(broken, issuer="https://a", jwks_uri="https://a/jwks", algorithms=ASYMMETRIC, clock=clock)
    with pytest.raises(VerifierUnavailable, match="RuntimeError") as caught:
        await kids(keys, "rsa")
    assert "secret" not in str(caught.value)
    gc.collect()  # asyncio does not complain of an exception that was never looked at
