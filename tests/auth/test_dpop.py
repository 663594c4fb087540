"""DPoP: a proof is good for one request, one token and one moment, and each thing that is wrong with it is refused."""

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwk

from dovetail.auth.dpop import (
    ALGORITHMS,
    CLOCK_MARGIN,
    LEEWAY,
    MAX_JTI,
    MAX_PROOF,
    MAX_PROOF_LIFETIME,
    DpopCheck,
    DpopNonces,
    UsedProofs,
    needs_proof,
    read_proof,
    same_target,
)
from dovetail.errors import ProtocolError, RateLimited, Unauthorized
from dovetail.state.memory import MemoryState
from issuer_stage import craft, signer
from issuer_stage import encode as b64

NOW = 1_800_000_000.0
URL = "https://notes.example.com/mcp"
TOKEN = "an.access.token"
ATH = b64(hashlib.sha256(TOKEN.encode()).digest())
SHARED = jwk.OctKey.generate_key(256)
KEY, OTHER = jwk.ECKey.generate_key("P-256"), jwk.ECKey.generate_key("P-256")
RSA = jwk.RSAKey.generate_key(2048)
EDWARDS = jwk.OKPKey.generate_key("Ed25519")
Change = dict[str, Any]


def public(key: Any) -> dict[str, Any]:
    return dict(key.as_dict(private=False))


def bound(key: Any = KEY) -> dict[str, Any]:
    """The claims of a token that is bound to a key."""
    return {"sub": "ada", "cnf": {"jkt": key.thumbprint()}}


def without(changed: Change) -> Change:
    """Leaves out what is None, so that a table can take a member away."""
    return {name: value for name, value in changed.items() if value is not None}


def signed(header: Change, said: Any, key: Any) -> str:
    return craft(header, said, signer(header["alg"], key))


def proof(header: Change | None = None, said: Change | None = None, *, key: Any = KEY, alg: str = "ES256") -> str:
    """A good one, but for the changes."""
    heading = {"typ": "dpop+jwt", "alg": alg, "jwk": public(key)} | (header or {})
    words = {"jti": b64(os.urandom(12)), "htm": "POST", "htu": URL, "iat": int(NOW), "ath": ATH} | (said or {})
    return signed(without(heading), without(words), key)


def forged(header: Any) -> str:
    """Any header whatsoever, which no library would sign."""
    return craft(header, {}, lambda message: b"x" * 64)


def remembering() -> Callable[[str, float], Any]:
    state = MemoryState()
    return lambda key, seconds: state.claim(key, b"", seconds)


def checker(claim: Callable[[str, float], Any] | None = None, **options: Any) -> DpopCheck:
    return DpopCheck(claim or remembering(), **{"clock": lambda: NOW} | options)


async def check(text: str, check: DpopCheck | None = None, **changed: Any) -> None:
    request = {"method": "POST", "url": URL, "token": TOKEN, "claims": bound(), "caller": "somebody"} | changed
    await (check or checker()).check(text, **request)


async def refused(text: str, error: str = "invalid_dpop_proof", **changed: Any) -> Unauthorized:
    with pytest.raises(Unauthorized) as caught:
        await check(text, **changed)
    assert caught.value.error == error, caught.value.message
    assert caught.value.http_status == 401
    assert TOKEN not in caught.value.message
    assert "joserfc" not in repr(caught.value)
    return caught.value


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
    assert alg in ALGORITHMS
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
        caller="ann",
    )


@pytest.mark.parametrize("away", [-300, -1, 0, 0.5, 300])
async def test_clocks_may_differ_by_five_minutes(away: float) -> None:
    await check(proof(said={"iat": NOW + away, "jti": "j" * MAX_JTI}))


@pytest.mark.parametrize(
    "header",
    [{"typ": "DPoP+JWT"}, {"kid": "mine"}, {"x-own": 1}, {"jwk": public(KEY) | {"use": "sig", "kid": "k", "e": 5}}],
)
async def test_what_does_not_matter_is_passed_over(header: Change) -> None:
    await check(proof(header))


# --- what is not: the header


def heading(**changed: Any) -> Change:
    return without({"typ": "dpop+jwt", "alg": "ES256", "jwk": public(KEY)} | changed)


NO_PROOF = [
    "", "one", "a.b", "a.b.c.d", "a.b.", "ä.b.c", "a.b.c\n", f"{proof()}, {proof()}", f"{proof()}.{proof()}", "a.b.c",
    proof().rpartition(".")[0] + ".", proof(said={"note": "x" * MAX_PROOF}), forged(b"\xff"), forged(b"[" * 3000),
    forged([]),     forged(b'{"typ":"dpop+jwt","alg":"ES256","jwk":{"a":' + b"[" * 2500 + b"]" * 2500 + b"}}"),
    forged(heading(crit=["b64"], b64=False)), forged(heading(crit=["exp"], exp=1)), forged(heading(crit=[])),
    forged(heading(b64=False)),  # and a header that says something twice gets past no reader
    forged(json.dumps(heading(alg="none")).encode()[:-1] + b', "alg": "ES256"}'),
]  # fmt: skip
TYPES = ["jwt", "JWT", "at+jwt", "dpop", "", "application/dpop+jwt", 1, None]
ALGS = ["none", "None", "HS256", "HS512", "ES512", "RS1", "Ed448", "ES256K", "", "es256", 1, ["ES256"], None]
PRIVATE = ("d", "p", "q", "dp", "dq", "qi", "oth", "k")  # members of a key that is private or shared
UNFIT: list[tuple[str, Change]] = [
    ("ES256", {"kty": "RSA", "n": "AQAB", "e": "AQAB"}),
    ("ES256", public(jwk.ECKey.generate_key("P-384"))),
    ("ES256", public(KEY) | {"crv": "secp256k1"}),
    ("ES256", public(KEY) | {"kty": "oct"}),
    ("PS256", public(KEY)),
    ("Ed25519", public(jwk.OKPKey.generate_key("X25519"))),
]
UNREADABLE = [
    ("ES256", without(public(KEY) | {"y": None})),
    ("ES256", public(KEY) | {"x": 5}),
    ("RS256", {"kty": "RSA", "n": "A"}),
]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, "not one signed proof") for text in NO_PROOF),
        *((forged(heading(typ=typ)), "type") for typ in TYPES),
        *((forged(heading(alg=alg)), "signed with one of") for alg in ALGS),
        *((forged(heading(alg=alg, jwk=SHARED.as_dict())), "signed with one of") for alg in ALGS),
        *((forged(heading(jwk=key)), "carries no key") for key in (None, "key", 5)),
        *((forged(heading(jwk=public(KEY) | {part: "AQAB"})), "private key") for part in PRIVATE),
        *((forged(heading(jwk=public(KEY) | {part: None})), "private key") for part in PRIVATE),
        *((forged(heading(alg=alg, jwk=key)), "does not fit") for alg, key in UNFIT),
        *((forged(heading(alg=alg, jwk=key)), "can't be read") for alg, key in UNREADABLE),
    ],
)  # fmt: skip
async def test_a_header_that_proves_nothing_is_refused(text: str, words: str) -> None:
    assert words in (await refused(text)).message


async def test_a_point_that_is_not_on_the_curve_is_refused() -> None:
    key = public(KEY) | {"y": public(OTHER)["y"]}
    text = forged({"typ": "dpop+jwt", "alg": "ES256", "jwk": key})
    await refused(text, claims={"cnf": {"jkt": read_proof(text).thumbprint}})


# --- what is not: the signature


async def test_another_key_than_the_one_it_carries_may_not_have_signed() -> None:
    text = signed({"typ": "dpop+jwt", "alg": "ES256", "jwk": public(KEY)}, {"jti": "1", "iat": NOW}, OTHER)
    assert "signature" in (await refused(text)).message


# --- what is not: what it says


@pytest.mark.parametrize(
    ("said", "words"),
    [
        *(({"htm": method}, "another method") for method in ("GET", "post", "")),
        *(({"htu": url}, "another URL") for url in (URL + "/x", "http://notes.example.com/mcp", "/mcp", "")),
        *(({"iat": at}, "too old") for at in (NOW - 301, NOW + 301, -1e300, 0)),
        *(({"ath": each}, "another token") for each in (None, "", ATH + "=", "ä", b64(hashlib.sha256(b"x").digest()))),
        *(({"jti": jti}, "jti") for jti in ("", "j" * (MAX_JTI + 1))),
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


SECRET = b"s" * 32


# --- the token


@pytest.mark.parametrize(
    "claims",
    [
        bound(OTHER), {}, {"cnf": None}, {"cnf": {}}, {"cnf": {"jkt": None}}, {"cnf": {"jkt": ""}},
        {"cnf": {"jkt": "ä"}}, {"cnf": {"jkt": [KEY.thumbprint()]}}, {"cnf": KEY.thumbprint()},
        {"cnf": {"x5t#S256": KEY.thumbprint()}}, {"jkt": KEY.thumbprint()},
    ],
)  # fmt: skip
async def test_a_token_of_another_key_or_of_none_is_refused(claims: Change) -> None:
    """A thief who has the token, and a good proof with a key of his own."""
    assert "not bound" in (await refused(proof(), "invalid_token", claims=claims)).message


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("jkt", [KEY.thumbprint(), "", None, 5], ids=["right", "empty", "none", "number"])
def test_a_bound_token_is_no_plain_bearer_token(required: bool, jkt: Any) -> None:
    """The downgrade: a stolen token, sent as `Bearer` because there is no key to prove anything with."""
    claims = {"sub": "ada", "cnf": {"jkt": jkt}}
    assert needs_proof(claims)
    with pytest.raises(Unauthorized, match="bound to a key") as caught:
        checker(required=required).check_bearer(claims)
    assert (caught.value.error, caught.value.http_status) == ("invalid_token", 401)


@pytest.mark.parametrize("claims", [{}, {"cnf": None}, {"cnf": {}}, {"cnf": "jkt"}, {"cnf": {"x5t#S256": "a"}}])
def test_a_token_that_is_bound_to_nothing_of_ours_is_a_bearer_token(claims: Change) -> None:
    assert not needs_proof(claims)
    checker().check_bearer(claims)
    with pytest.raises(Unauthorized, match="only tokens that are bound"):
        checker(required=True).check_bearer(claims)


@pytest.mark.parametrize(("headers", "good"), [([], False), ([b"a", b"a"], False), ([b" a.b.c "], True)])
def test_a_request_has_one_proof(headers: list[bytes], good: bool) -> None:
    pairs = [(b"host", b"x"), *((b"dpop", value) for value in headers)]
    if good:
        assert DpopCheck.proof_header(pairs) == "a.b.c"
        return
    with pytest.raises(Unauthorized, match="exactly one") as caught:
        DpopCheck.proof_header(pairs)
    assert caught.value.error == "invalid_dpop_proof"


# --- used again


async def test_a_proof_is_good_once() -> None:
    same = checker()
    text = proof()
    await check(text, same)
    assert "used before" in (await refused(text, check=same)).message
    await check(proof(), same)


async def test_another_signature_of_the_same_jti_is_the_same_proof() -> None:
    """ECDSA signs the same words differently each time; what was used is the jti, not the text."""
    same = checker()
    texts = {proof(said={"jti": "again"}) for _ in range(2)}
    assert len(texts) == 2
    await check(texts.pop(), same)
    await refused(texts.pop(), check=same)


async def test_a_jti_belongs_to_its_key() -> None:
    """No caller can use up the proofs of another."""
    same = checker()
    await check(proof(said={"jti": "1"}, key=OTHER), same, claims=bound(OTHER))
    await check(proof(said={"jti": "1"}), same)


@pytest.mark.parametrize("away", [-LEEWAY, 0, LEEWAY])
async def test_a_proof_is_remembered_as_long_as_it_could_be_used(away: float) -> None:
    seen: dict[str, float] = {}

    async def claim(key: str, seconds: float) -> bool:
        seen[key] = seconds
        return True

    await check(proof(said={"jti": "secret-id", "iat": NOW + away}), checker(claim))
    [(key, seconds)] = seen.items()
    assert seconds == away + LEEWAY + CLOCK_MARGIN
    assert key.startswith("dpop/")
    assert "secret-id" not in key


async def test_a_bad_proof_is_not_remembered() -> None:
    async def claim(key: str, seconds: float) -> bool:
        raise AssertionError("nothing to remember")

    for text in (proof(said={"htm": "GET"}), proof(said={"ath": "x"}), forged({}), proof()[:-4] + "AAAA"):
        await refused(text, check=checker(claim))


# --- where one process remembers them, and how many of each caller


class Now:
    def __init__(self, at: float = NOW) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 700)), max_size=40))
async def test_what_one_process_remembers_are_the_proofs_that_could_come_again(steps: list[tuple[str, int]]) -> None:
    """Against a model that knows when each was claimed."""
    now, claimed = Now(), dict[str, float]()
    used = UsedProofs(5, now)
    for key, pause in steps:
        try:
            is_new = await used.claim(key, MAX_PROOF_LIFETIME)
        except ProtocolError:
            assert sum(1 for at in claimed.values() if now.at - at < 2 * MAX_PROOF_LIFETIME) >= 5
        else:
            age = now.at - claimed.get(key, -9e9)
            assert age >= MAX_PROOF_LIFETIME if is_new else age < 2 * MAX_PROOF_LIFETIME
            if is_new:
                claimed[key] = now.at
        now.at += pause


async def test_who_has_used_too_many_has_to_wait_and_others_go_on() -> None:
    """A proof that is refused does not count: a thief may send what he has seen again and again."""
    now = Now()
    ours = DpopCheck(remembering(), max_per_caller=3, clock=now)
    seen = [proof(said={"jti": f"{n}"}) for n in range(3)]
    for text in seen:
        await check(text, ours, caller="ann")
        await refused(text, check=ours, caller="bob")
    with pytest.raises(RateLimited, match="proofs of this caller") as caught:
        await check(proof(said={"jti": "3"}, key=OTHER), ours, claims=bound(OTHER), caller="ann")
    assert (caught.value.http_status, 0 < caught.value.retry_after <= LEEWAY + CLOCK_MARGIN) == (429, True)
    await check(proof(said={"jti": "3"}, key=OTHER), ours, claims=bound(OTHER), caller="bob")
    now.at += caught.value.retry_after
    await check(proof(said={"jti": "4", "iat": now.at}), ours, caller="ann")


@pytest.mark.parametrize(("into", "seconds"), [(0, 360), (0.5, 360), (1, 359), (359, 1), (359.9, 1)])
async def test_the_wait_ends_with_the_window(into: float, seconds: int) -> None:
    assert NOW % (LEEWAY + CLOCK_MARGIN) == 0
    ours = DpopCheck(remembering(), max_per_caller=1, clock=lambda: NOW + into)
    await check(proof(said={"iat": NOW + into}), ours)
    with pytest.raises(RateLimited) as caught:
        await check(proof(said={"iat": NOW + into}), ours)
    assert caught.value.retry_after == seconds


# --- nonces


def nonces(at: float = NOW, secret: bytes = SECRET) -> DpopNonces:
    return DpopNonces(lambda: [secret], seconds=100, clock=lambda: at)


async def test_with_nonces_a_proof_has_to_hold_a_fresh_one() -> None:
    ours = checker(nonces=nonces())
    assert ours.nonce == nonces().issue()
    await check(proof(said={"nonce": ours.nonce}), ours)
    for given_nonce in (None, "", "guess", "ä", nonces(NOW - 200).issue(), nonces(secret=b"o" * 32).issue()):
        await refused(proof(said={"nonce": given_nonce}), "use_dpop_nonce", check=ours)


async def test_a_proof_that_lacks_its_nonce_is_not_used_up() -> None:
    """The client signs again with the nonce, and may well keep its jti."""
    ours = checker(nonces=nonces())
    await refused(proof(said={"jti": "1"}), "use_dpop_nonce", check=ours)
    await check(proof(said={"jti": "1", "nonce": ours.nonce}), ours)


@pytest.mark.parametrize(("later", "good"), [(0, True), (99, True), (199, True), (200, False), (-1, False)])
def test_a_nonce_is_good_for_one_to_two_windows(later: float, good: bool) -> None:
    assert NOW % 100 == 0
    assert nonces(NOW + later).accepts(nonces().issue()) is good


def test_secrets_can_be_replaced() -> None:
    """The first one makes nonces, all of them are known; and what a fleet agrees on later counts at once."""
    secrets = [SECRET]
    ours = DpopNonces(lambda: secrets, seconds=100, clock=lambda: NOW)
    old = ours.issue()
    secrets[:] = [b"t" * 32, SECRET]
    assert ours.issue() == nonces(secret=b"t" * 32).issue() != old
    assert ours.accepts(old)


# --- the URL, however it is spelled


@pytest.mark.parametrize(
    ("htu", "url"),
    [
        ("HTTPS://Notes.Example.COM/mcp", URL),
        ("https://notes.example.com:443/mcp", URL),
        ("https://notes.example.com:/mcp", URL),
        ("http://localhost:80/mcp", "http://localhost/mcp"),
        (URL + "?x=1", URL),
        (URL, URL + "?session=2#there"),
        ("https://a.example", "https://a.example/"),
        ("https://a.example?x", "https://a.example"),
        ("https://a.example/%7euser/%c3%a4", "https://a.example/~user/%C3%A4"),
        ("http://[::1]:8000/mcp", "http://[::1]:8000/mcp"),
    ],
)
def test_the_same_target_in_two_spellings(htu: str, url: str) -> None:
    assert same_target(htu, url)
    assert same_target(url, htu)


def test_an_escaped_sign_is_not_the_text_of_its_escape() -> None:
    assert not same_target("https://a.example/2F", "https://a.example/%2F")
    assert not same_target("https://a.example/a/b", "https://a.example/a%2Fb")


@pytest.mark.parametrize(
    "htu",
    [
        "", "mcp", "//notes.example.com/mcp", "https:notes.example.com/mcp", "https:///mcp",
        "https://notes.example.com/MCP", "https://notes.example.com/mcp/", "https://notes.example.com//mcp",
        "https://notes.example.com/mcp;v=1", "https://notes.example.com:8443/mcp",
        "https://notes.example.com:443x/mcp", "https://notes.example.com:99999/mcp",
        "https://notes.example.com.evil.example/mcp", "https://evil@notes.example.com/mcp",
        "https://notes.example.com@evil.example/mcp", "https://evil.example\\@notes.example.com/mcp",
        "https://evil.example/https://notes.example.com/mcp", "https://[::1/mcp", "ftp://notes.example.com/mcp",
        "javascript:alert(1)", "https://notes.example.com/m\tcp", "https://notes.exam\nple.com/mcp",
        " https://notes.example.com/mcp", "https://nötes.example.com/mcp", "https://notes.example.com/m%63p%2F",
        "https://notes.example.com:0/mcp",
    ],
)  # fmt: skip
def test_another_target(htu: str) -> None:
    assert not same_target(htu, URL)
    assert not same_target(URL, htu)


hosts = st.from_regex(r"[a-z][a-z0-9-]{0,10}(\.[a-z]{2,5})?", fullmatch=True)
ports = st.integers(1, 65535)
segments = st.lists(st.text(max_size=6).map(lambda each: quote(each, safe="")), max_size=4)


@given(st.sampled_from(["http", "https"]), hosts, st.none() | ports, segments, st.text(max_size=8), st.data())
def test_any_url_is_the_same_in_all_its_spellings(
    scheme: str, host: str, port: int | None, path: list[str], query: str, data: st.DataObject
) -> None:
    place = f"{host}:{port}" if port is not None else host
    url = f"{scheme}://{place}/{'/'.join(path)}"
    other = f"{scheme.upper()}://{place.upper()}/{'/'.join(path)}?{quote(query)}#{quote(query)}"
    assert same_target(other, url)
    another = data.draw(ports)
    effective = {"http": 80, "https": 443}[scheme] if port is None else port
    assert same_target(f"{scheme}://{host}:{another}/{'/'.join(path)}", url) is (another == effective)
    assert not same_target(f"{scheme}://x{place}/{'/'.join(path)}", url)
    assert not same_target(url + "x", url)
