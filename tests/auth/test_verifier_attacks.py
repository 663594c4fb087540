"""Forged tokens, each the work of an attacker who knows everything but the private key."""

import base64
import hmac
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.auth import Jwt
from dovetail.auth.jose import TokenKey
from dovetail.auth.principal import MAX_TOKEN
from issuer_stage import AUDIENCE, DAY, EC, ISSUER, OTHER_RSA, RSA, claims, craft, encode, jwks, signer, site, token

pytestmark = pytest.mark.rule("AUTH-3", "AUTH-7", "AUTH-9")

JWT = Jwt(ISSUER, AUDIENCE, jwks=jwks())
PEM = RSA.as_pem(private=False)
SIGN = signer("RS256", RSA)
NOW = int(time.time())


def unsigned(alg: Any, signature: bytes = b"") -> str:
    return craft({"alg": alg, "typ": "JWT", "kid": "rsa"}, claims(), lambda message: signature)


def hs_confusion(secret: bytes) -> str:
    """Signed with the public key, which every client has, as if it were a shared secret."""
    return craft({"alg": "HS256", "kid": "rsa"}, claims(), lambda message: hmac.digest(secret, message, "sha256"))


def tampered(part: int, change: Any) -> str:
    parts = token().split(".")
    data = base64.urlsafe_b64decode(parts[part] + "==")
    parts[part] = encode(change(data))
    return ".".join(parts)


def with_member(name: str, value: Any) -> bytes:
    """Of good claims, and one more of the same name."""
    return json.dumps(claims()).encode()[:-1] + b', "%s": %s}' % (name.encode(), json.dumps(value).encode())


ATTACKS = {
    "alg none": unsigned("none"),
    "alg none, signed": craft({"alg": "none", "kid": "rsa"}, claims(), SIGN),
    "alg empty": unsigned("", b"x"),
    "alg null": unsigned(None, b"x"),
    "alg a list": unsigned(["RS256"], b"x"),
    "alg missing": craft({"kid": "rsa"}, claims(), SIGN),
    "no signature": token().rpartition(".")[0] + ".",
    "signature of another token": token().rpartition(".")[0] + "." + token(claims(jti="2")).rpartition(".")[2],
    "signature of zeros": token().rpartition(".")[0] + "." + encode(bytes(256)),
    "HS256 with the PEM": hs_confusion(PEM),
    "HS256 with the DER": hs_confusion(RSA.as_der(private=False)),
    "HS256 with the JWK": hs_confusion(json.dumps(RSA.as_dict(private=False)).encode()),
    "ES256 of zeros": craft({"alg": "ES256", "kid": "ec"}, claims(), lambda message: bytes(64)),
    "ES256 for the RSA key": craft({"alg": "ES256", "kid": "rsa"}, claims(), signer("ES256", EC)),
    "RS256 for the EC key": craft({"alg": "RS256", "kid": "ec"}, claims(), SIGN),
    "PS256 said, RS256 made": craft({"alg": "PS256", "kid": "rsa"}, claims(), SIGN),
    "wrong issuer": token(claims(iss="https://evil.example.com")),
    "issuer with a slash": token(claims(iss=ISSUER + "/")),
    "issuer as a list": token(claims(iss=[ISSUER])),
    "no issuer": token(claims(iss=...)),
    "wrong audience": token(claims(aud="https://other.example.com/mcp")),
    "no audience": token(claims(aud=...)),
    "expired": token(claims(exp=NOW - 3600)),
    "no expiry": token(claims(exp=...)),
    "expiry as text": token(claims(exp=str(NOW + DAY))),
    "expiry true": token(claims(exp=True)),
    "not yet valid": token(claims(nbf=NOW + DAY)),
    "made in the future": token(claims(iat=NOW + DAY)),
    "nobody": token(claims(sub=..., client_id=...)),
    "another key under our kid": token(key=OTHER_RSA, kid="rsa"),
    "foreign kid": token(kid="of another issuer"),
    "kid of another key": token(kid="ec"),
    "kid a number": token(kid=7),
    "kid a list": token(kid=["rsa"]),
    "kid endless": token(kid="x" * 1000),
    "own jwk under our kid": token(key=OTHER_RSA, kid="rsa", jwk=OTHER_RSA.as_dict(private=False)),
    "own jwk, no kid": token(key=OTHER_RSA, kid=..., jwk=OTHER_RSA.as_dict(private=False)),
    "own jku": token(key=OTHER_RSA, jku="https://evil.example.com/jwks"),
    "own x5c": token(key=OTHER_RSA, kid="rsa", x5c=["MIIB"]),
    "payload changed": tampered(1, lambda data: data.replace(b"alice", b"admin")),
    "header changed": tampered(0, lambda data: data.replace(b"at+jwt", b"jwt")),
    "signature changed": tampered(2, lambda data: bytes((data[0] ^ 1,)) + data[1:]),
    "signature cut": tampered(2, lambda data: data[:-1]),
    "sub twice": craft({"alg": "RS256", "kid": "rsa"}, with_member("sub", "admin"), SIGN),
    "alg twice": craft(b'{"alg":"none","alg":"RS256","kid":"rsa"}', claims(), SIGN),
    "crit unknown": token(crit=["exp2"], exp2=1),
    "crit empty": token(crit=[]),
    "crit no list": token(crit="kid"),
    "b64 false": token(b64=False, crit=["b64"]),
    "b64 false, not critical": token(b64=False),
    "an oversized token": token(claims(more="x" * MAX_TOKEN)),
    "too many claims": token(claims(**{f"c{number}": 1 for number in range(300)})),
    "deep header": craft(b'{"alg":"RS256","kid":"rsa","x":' + b"[" * 1500 + b"]" * 1500 + b"}", claims(), SIGN),
    "claims a list": craft({"alg": "RS256", "kid": "rsa"}, b'["iss"]', SIGN),
    "header a list": craft(b'["alg"]', claims(), SIGN),
    "claims with NaN": craft({"alg": "RS256", "kid": "rsa"}, with_member("x", float("nan")), SIGN),
    "half a character": craft({"alg": "RS256", "kid": "rsa"}, claims(sub="\ud800"), SIGN),
    "an ID token": token(typ="id_token+jwt"),
    "five parts": "a.b.c.d.e",
    "padding": token() + "=",
    "a line break": token() + "\n",
    "nothing": "",
    "dots": "..",
    "not ASCII": token() + "é",
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_it_does_not_get_in(name: str) -> None:
    assert await JWT.verify(ATTACKS[name]) is None


async def test_it_would_have_got_in_without_the_attack() -> None:
    """Else all of the above would prove nothing."""
    assert await JWT.verify(token()) is not None
    assert await JWT.verify(token(kid=...)) is not None
    assert await JWT.verify(craft({"alg": "RS256", "kid": "rsa"}, claims(), SIGN)) is not None
    assert await JWT.verify(craft({"alg": "ES256", "kid": "ec"}, claims(), signer("ES256", EC))) is not None
    assert await JWT.verify(token(claims(more="x" * 4000))) is not None


async def test_no_header_makes_a_request() -> None:
    async with site() as evil:
        evil.pages["/jwks"] = jwks(OTHER_RSA)
        for name in ("jku", "x5u", "kid", "iss"):
            assert await JWT.verify(token(key=OTHER_RSA, **{name: f"{evil.origin}/jwks"})) is None
        assert evil.asked == []


@pytest.mark.parametrize(
    "kind", ["HS256 with the PEM", "expired", "wrong audience", "an oversized token", "crit empty"]
)
async def test_no_signature_is_checked_for_what_is_wrong_anyway(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> bool:
        raise AssertionError("checked a signature")

    monkeypatch.setattr(TokenKey, "verifies", never)
    assert await JWT.verify(ATTACKS[kind]) is None


async def test_keys_that_are_tried_are_few() -> None:
    tries = 0
    many = [RSA.as_dict(private=False) | {"kid": f"k{number}"} for number in range(100)]
    jwt = Jwt(ISSUER, AUDIENCE, jwks={"keys": many})
    real = TokenKey.verifies

    def counted(self: TokenKey, *rest: Any) -> bool:
        nonlocal tries
        tries += 1
        return real(self, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenKey, "verifies", counted)
        assert await jwt.verify(token(key=OTHER_RSA, kid=...)) is None
    assert tries == 8


@given(
    st.text(max_size=80)
    | st.lists(st.binary(max_size=30), min_size=3, max_size=3).map(lambda p: ".".join(map(encode, p)))
)
async def test_arbitrary_text_is_no_good_token(text: str) -> None:
    assert await JWT.verify(text) is None


@given(st.data())
async def test_a_token_with_one_other_character_is_not_good(data: st.DataObject) -> None:
    good = token()
    place = data.draw(st.integers(0, len(good) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda character: character != good[place]))
    assert await JWT.verify(good[:place] + other + good[place + 1 :]) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "client_id", "azp", "scope", "scp", "jti", "cnf"])


@given(
    st.dictionaries(NAMES, json_values, max_size=6),
    st.dictionaries(st.sampled_from(["typ", "kid", "x5c"]), json_values),
)
async def test_any_claims_are_judged_without_a_fault(said: dict[str, Any], header: dict[str, Any]) -> None:
    """Signed by the issuer, so its mistakes count too."""
    principal = await JWT.verify(token(claims(**said), **header))
    assert principal is None or (principal.issuer == ISSUER and (principal.subject or principal.client))
