"""DPoP: a proof is good for one request, one token and one moment, and each thing that is wrong with it is refused."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwk
from proof_making import (
    ATH,
    EDWARDS,
    KEY,
    NOW,
    OTHER,
    RSA,
    Change,
    b64,
    bound,
    check,
    checker,
    forged,
    proof,
    public,
    refused,
    signed,
    without,
)

from dovetail.auth.dpop import ALGS, MAX_JTI
from dovetail.auth.proofs import MAX_PROOF, _imported, read_proof

SHARED = jwk.OctKey.generate_key(256)


# --- what is good


@pytest.mark.parametrize(
    ("alg", "key"),
    [
        ("ES256", KEY),
        ("ES384", jwk.ECKey.generate_key("P-384")),
        ("Ed25519", EDWARDS),
        ("EdDSA", EDWARDS),
        ("PS256", RSA),
        ("RS256", RSA),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")  # joserfc says so when this test signs with it
async def test_a_proof_by_each_algorithm_is_taken(alg: str, key: Any) -> None:
    assert alg in ALGS.split()
    await check(proof(key=key, alg=alg), claims=bound(key))


async def test_the_proof_of_rfc_9449_is_read() -> None:
    """The example of section 7.1, byte for byte, with the token and the key of the RFC."""
    text = (
        "eyJ0eXAiOiJkcG9wK2p3dCIsImFsZyI6IkVTMjU2IiwiandrIjp7Imt0eSI6IkVDIiwieCI6Imw4dEZyaHgtMzR0VjNoUklDUkRZOXpDa0Rs"
        "cEJoRjQyVVFVZldWQVdCRnMiLCJ5IjoiOVZFNGpmX09rX282NHpiVFRsY3VOSmFqSG10NnY5VERWclUwQ2R2R1JEQSIsImNydiI6IlAtMjU2"
        "In19.eyJqdGkiOiJlMWozVl9iS2ljOC1MQUVCIiwiaHRtIjoiR0VUIiwiaHR1IjoiaHR0cHM6Ly9yZXNvdXJjZS5leGFtcGxlLm9yZy9wcm9"
        "0ZWN0ZWRyZXNvdXJjZSIsImlhdCI6MTU2MjI2MjYxOCwiYXRoIjoiZlVIeU8ycjJaM0RaNTNFc05yV0JiMHhXWG9hTnk1OUlpS0NBcWtzbVF"
        "FbyJ9.2oW9RP35yRqzhrtNP86L-Ey71EOptxRimPPToA1plemAgR6pxHF8y6-yqyVnmcw6Fy1dqd-jfxSYoMxhAJpLjA"
    )
    await checker(clock=lambda: 1562262618.0).check(
        text,
        method="GET",
        url="https://resource.example.org/protectedresource",
        token="Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU",
        claims={"cnf": {"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}},
    )


@pytest.mark.parametrize("away", [-300, -1, 0, 0.5, 300])
async def test_clocks_may_differ_by_five_minutes(away: float) -> None:
    await check(proof(said={"iat": NOW + away}))


@pytest.mark.parametrize(
    "header",
    [{"typ": "DPoP+JWT"}, {"kid": "mine"}, {"x-own": 1}, {"jwk": public(KEY) | {"use": "sig", "kid": "k", "e": 5}}],
)
async def test_what_does_not_matter_is_passed_over(header: Change) -> None:
    await check(proof(header))


# --- what is not: the header


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not one signed proof"),
        ("one", "not one signed proof"),
        ("a.b", "not one signed proof"),
        ("a.b.c.d", "not one signed proof"),
        ("a.b.", "not one signed proof"),
        ("ä.b.c", "not one signed proof"),
        ("a.b.c\n", "not one signed proof"),
        (proof(said={"note": "x" * MAX_PROOF}), "reasonable size"),
        (f"{proof()}, {proof()}", "not one signed proof"),
        (f"{proof()}.{proof()}", "not one signed proof"),
        ("a.b.c", "not one signed proof"),
        (forged(b"\xff"), "not one signed proof"),
        (forged(b"[" * 3000), "not one signed proof"),
        (forged(b'{"typ":"dpop+jwt","alg":"ES256","jwk":{"a":' + b"[" * 2500 + b"]" * 2500 + b"}}"), "signed proof"),
        (forged([]), "not one signed proof"),
        (forged({}), "type"),
        (forged({"typ": 1}), "type"),
        (forged({"typ": "dpop+jwt", "jwk": public(KEY)}), "signed with one of"),
        (forged({"typ": "dpop+jwt", "alg": 1, "jwk": public(KEY)}), "signed with one of"),
        (forged({"typ": "dpop+jwt", "alg": ["ES256"], "jwk": public(KEY)}), "signed with one of"),
        (forged({"typ": "dpop+jwt", "alg": "ES256"}), "carries no key"),
        (forged({"typ": "dpop+jwt", "alg": "ES256", "jwk": "key"}), "carries no key"),
    ],
)
async def test_anything_but_one_proof_is_refused(text: str, words: str) -> None:
    assert words in (await refused(text)).message


@pytest.mark.parametrize("typ", ["jwt", "JWT", "at+jwt", "dpop", "", "application/dpop+jwt"])
async def test_another_kind_of_token_is_no_proof(typ: str) -> None:
    assert "type" in (await refused(proof({"typ": typ}))).message


@pytest.mark.parametrize("alg", ["none", "None", "HS256", "HS512", "ES512", "RS1", "Ed448", "ES256K", "", "es256"])
async def test_only_pinned_algorithms_with_two_keys_count(alg: str) -> None:
    for key in (KEY, SHARED):
        text = forged({"typ": "dpop+jwt", "alg": alg, "jwk": key.as_dict()})
        assert "signed with one of" in (await refused(text)).message


async def test_no_signature_is_no_proof() -> None:
    await refused(proof().rpartition(".")[0] + ".")


async def test_the_public_key_is_no_shared_secret() -> None:
    """The old trick: a MAC whose key is the text of the public key."""
    secret = jwk.OctKey.import_key(json.dumps(public(RSA)))
    text = signed({"typ": "dpop+jwt", "alg": "HS256", "jwk": public(RSA)}, {"iat": NOW}, secret)
    assert "signed with one of" in (await refused(text, claims=bound(RSA))).message


@pytest.mark.parametrize("member", ["d", "p", "q", "dp", "dq", "qi", "oth", "k"])
async def test_a_private_key_is_refused_whatever_it_holds(member: str) -> None:
    for value in ("AQAB", "", None, []):
        text = forged({"typ": "dpop+jwt", "alg": "ES256", "jwk": public(KEY) | {member: value}})
        refusal = await refused(text)
        assert "private key" in refusal.message


async def test_a_private_key_that_signs_for_itself_is_refused() -> None:
    text = proof({"jwk": KEY.as_dict(private=True)})
    assert "private key" in (await refused(text)).message


@pytest.mark.parametrize(
    ("alg", "key"),
    [
        ("ES256", {"kty": "RSA", "n": "AQAB", "e": "AQAB"}),
        ("ES256", public(jwk.ECKey.generate_key("P-384"))),
        ("ES256", public(KEY) | {"crv": "secp256k1"}),
        ("ES256", public(KEY) | {"kty": "oct"}),
        ("ES256", without(public(KEY) | {"y": None})),
        ("ES256", public(KEY) | {"x": 5}),
        ("ES256", {}),
        ("PS256", public(KEY)),
        ("RS256", {"kty": "RSA", "n": "AQAB"}),
        ("Ed25519", public(jwk.OKPKey.generate_key("X25519"))),
    ],
)
async def test_a_key_that_does_not_fit_is_refused(alg: str, key: Change) -> None:
    message = (await refused(forged({"typ": "dpop+jwt", "alg": alg, "jwk": key}))).message
    assert "does not fit" in message or "can't be read" in message


async def test_a_point_that_is_not_on_the_curve_is_refused() -> None:
    key = public(KEY) | {"y": public(OTHER)["y"]}
    text = forged({"typ": "dpop+jwt", "alg": "ES256", "jwk": key})
    await refused(text, claims={"cnf": {"jkt": read_proof(text).thumbprint}})


@pytest.mark.parametrize(
    ("bits", "exponent", "good"),
    [(512, 65537, False), (1024, 65537, False), (2048, 65537, True), (8200, 65537, False), (2048, 2**70 + 1, False)],
)
async def test_an_rsa_key_is_neither_weak_nor_slow_even_if_the_token_is_bound_to_it(
    bits: int, exponent: int, good: bool
) -> None:
    n, e = (b64(each.to_bytes((each.bit_length() + 7) // 8, "big")) for each in (2**bits - 1, exponent))
    text = forged({"typ": "dpop+jwt", "alg": "RS256", "jwk": {"kty": "RSA", "n": n, "e": e}})
    carried = read_proof(text)
    assert (_imported("RS256", carried.key) is not None) is good
    await refused(text, claims={"cnf": {"jkt": carried.thumbprint}})


@pytest.mark.parametrize("header", [{"crit": ["b64"], "b64": False}, {"crit": ["exp"], "exp": 1}, {"crit": []}])
async def test_critical_headers_are_refused(header: Change) -> None:
    heading = {"typ": "dpop+jwt", "alg": "ES256", "jwk": public(KEY)} | header
    assert "not one signed proof" in (await refused(forged(heading))).message


async def test_an_unencoded_payload_is_refused() -> None:
    await refused(forged({"typ": "dpop+jwt", "alg": "ES256", "jwk": public(KEY), "b64": False}))


# --- what is not: the signature


async def test_another_key_than_the_one_it_carries_may_not_have_signed() -> None:
    text = signed({"typ": "dpop+jwt", "alg": "ES256", "jwk": public(KEY)}, {"jti": "1", "iat": NOW}, OTHER)
    assert "signature" in (await refused(text)).message


async def test_a_changed_proof_is_refused() -> None:
    """The words of one and the signature of another, by the same key."""
    one, other = proof(), proof()
    assert "signature" in (await refused(f"{one.rpartition('.')[0]}.{other.rpartition('.')[2]}")).message


async def test_a_header_that_says_something_twice_is_refused() -> None:
    """It does not get past one reader with another algorithm for the next."""
    head = json.dumps({"typ": "dpop+jwt", "alg": "none", "jwk": public(KEY)})[:-1] + ', "alg": "ES256"}'
    assert "not one signed proof" in (await refused(forged(head.encode(), signature=b"x"))).message


# --- what is not: what it says


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"htm": "GET"}, "another method"),
        ({"htm": "post"}, "another method"),
        ({"htm": ""}, "another method"),
        ({"htu": "https://notes.example.com/other"}, "another URL"),
        ({"htu": "http://notes.example.com/mcp"}, "another URL"),
        ({"htu": "https://evil.example.com/mcp"}, "another URL"),
        ({"htu": "/mcp"}, "another URL"),
        ({"htu": ""}, "another URL"),
        ({"iat": NOW - 301}, "too old"),
        ({"iat": NOW + 301}, "of the future"),
        ({"iat": -1e300}, "too old"),
        ({"iat": 0}, "too old"),
        ({"ath": None}, "another token"),
        ({"ath": ""}, "another token"),
        ({"ath": ATH + "="}, "another token"),
        ({"ath": "ä"}, "another token"),
        ({"ath": b64(hashlib.sha256(b"stolen").digest())}, "another token"),
        ({"jti": ""}, "jti"),
        ({"jti": "j" * (MAX_JTI + 1)}, "jti"),
        *(({name: None}, "lacks one") for name in ("jti", "htm", "htu", "iat")),
        *(({name: 5}, "wrong type") for name in ("jti", "htm", "htu", "ath", "nonce")),
        *(({"iat": value}, "wrong type") for value in (str(int(NOW)), True, [NOW])),
    ],
)
async def test_each_thing_that_a_proof_says_is_compared(said: Change, words: str) -> None:
    assert words in (await refused(proof(said=said))).message


@pytest.mark.parametrize("payload", [b"", b"[]", b"5", b"{", b"\xff", b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}"])
async def test_a_signed_text_that_says_nothing_is_refused(payload: bytes) -> None:
    await refused(signed({"typ": "dpop+jwt", "alg": "ES256", "jwk": public(KEY)}, payload, KEY))


@given(st.text(alphabet="abAB01-_.=", max_size=60) | st.binary(max_size=60).map(lambda raw: f"{b64(raw)}.e30.AA"))
async def test_no_text_gets_in_or_breaks_anything(text: str) -> None:
    await refused(text)
