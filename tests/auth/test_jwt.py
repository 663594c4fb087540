"""`Jwt`: which tokens count, whom they name, and what is refused when it is set up."""

import time
import warnings
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from dovetail.auth import Auth, Jwt, VerifierTrouble
from dovetail.auth.fetch import Fetched, FetchFailed, FetchRequest
from dovetail.auth.jose import ASYMMETRIC, MAX_KEYS, read_keys
from dovetail.errors import SetupError
from issuer_stage import AUDIENCE, EC, ED, ISSUER, KEYS, OTHER_RSA, RSA, claims, jwks, secret, token

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
    assert await jwt.verify(token(algorithm=algorithm, key=key, kid="whatever")) is not None
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


@pytest.mark.parametrize("typ", ["at+jwt", "AT+JWT", "JWT", "application/at+jwt", ...])
async def test_types_of_access_tokens(jwt: Jwt, typ: Any) -> None:
    assert await jwt.verify(token(typ=typ)) is not None


@pytest.mark.rule("AUTH-9")
@pytest.mark.parametrize("typ", ["dpop+jwt", "logout+jwt", "id_token+jwt", "oauth-id-jag+jwt", "", 7, ["at+jwt"]])
async def test_other_types_are_no_access_tokens(jwt: Jwt, typ: Any) -> None:
    assert await jwt.verify(token(typ=typ)) is None


async def test_the_clock_may_differ_a_little(jwt: Jwt) -> None:
    now = int(time.time())
    assert await jwt.verify(token(claims(exp=now - 30, nbf=now + 30, iat=now + 30))) is not None
    strict = Jwt(ISSUER, AUDIENCE, jwks=jwks(), leeway=0)
    assert await strict.verify(token(claims(exp=now - 1))) is None


async def test_without_a_kid_all_keys_that_fit_are_tried(jwt: Jwt) -> None:
    both = Jwt(ISSUER, AUDIENCE, jwks=jwks(OTHER_RSA, EC, RSA))
    assert await both.verify(token(kid=...)) is not None
    assert await both.verify(token(kid="rsa-2")) is None  # of the key that it names, only that counts


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
        ({"audience": ""}, "audience"),
        ({"audience": []}, "audience"),
        ({"audience": [""]}, "audience"),
        ({"audience": None}, "audience"),
        ({"algorithms": ["none"]}, "none"),
        ({"algorithms": ["HS256"]}, "HS256"),
        ({"algorithms": []}, "algorithms"),
        ({"algorithms": ["RS256"], "jwks": None, "secret": SECRET}, "shared secret"),
        ({"jwks": None, "secret": b"short-but-secret"}, "too short"),
        ({"jwks": None, "secret": SECRET, "algorithms": ["HS512"]}, "too short"),
        ({"jwks": None, "secret": pem(RSA)}, "public_key"),
        ({"jwks": None, "secret": RSA.as_der(private=False)}, "public_key"),
        ({"leeway": -1}, "leeway"),
        ({"leeway": 1e9}, "leeway"),
        ({"public_key": pem(RSA)}, "one place"),
        ({"jwks": {}}, "no set"),
        ({"jwks": {"keys": []}}, "no public key"),
        ({"jwks": None, "public_key": "x"}, "no PEM"),
        ({"jwks": None, "public_key": RSA.as_pem(private=True)}, "private key"),
        ({"jwks": None, "public_key": pem(EC), "algorithms": ["RS256"]}, "no PEM"),
        ({"jwks": None, "jwks_uri": "http://login.example.com/jwks"}, "not https"),
        ({"jwks": None, "jwks_uri": "file:///etc/passwd"}, "not https"),
        ({"jwks": None, "issuer": "http://login.example.com"}, "not https"),
        ({"jwks": None, "issuer": "my-issuer"}, "not https"),
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
        public | {"alg": "HS256"}, public | {"kid": 7}, public | {"e": public["n"]}, RSA.as_dict(private=True),
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
    with pytest.raises(VerifierTrouble):
        await auth.verify(token(claims(iss="https://away.example.com")))
    assert asked
