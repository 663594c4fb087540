"""DPoP: whose token it is, proofs that are used again, and nonces."""

import time
from typing import Any

import pytest
from joserfc import jwk
from proof_making import KEY, NOW, OTHER, Change, bound, check, checker, forged, proof, refused, remembering

from dovetail.auth import Auth
from dovetail.auth.dpop import CLOCK_MARGIN, LEEWAY, DpopCheck, DpopNonces, UsedProofs, needs_proof, only_proof
from dovetail.auth.proofs import _imported
from dovetail.errors import ProtocolError, SetupError, Unauthorized

SECRET = b"s" * 32


# --- the token


@pytest.mark.parametrize(
    "claims",
    [
        bound(OTHER),
        {},
        {"cnf": None},
        {"cnf": {}},
        {"cnf": {"jkt": None}},
        {"cnf": {"jkt": ""}},
        {"cnf": {"jkt": "ä"}},
        {"cnf": {"jkt": [KEY.thumbprint()]}},
        {"cnf": KEY.thumbprint()},
        {"cnf": {"x5t#S256": KEY.thumbprint()}},
        {"jkt": KEY.thumbprint()},
    ],
)
async def test_a_token_of_another_key_or_of_none_is_refused(claims: Change) -> None:
    """A thief who has the token, and a good proof with a key of his own."""
    assert "not bound" in (await refused(proof(), "invalid_token", claims=claims)).message


async def test_a_foreign_key_costs_no_signature_check() -> None:
    before = _imported.cache_info().misses
    await refused(proof(key=jwk.ECKey.generate_key("P-256")), "invalid_token")
    assert _imported.cache_info().misses == before


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
    if good:
        assert only_proof(headers) == "a.b.c"
        return
    with pytest.raises(Unauthorized, match="exactly one") as caught:
        only_proof(headers)
    assert caught.value.error == "invalid_dpop_proof"


# --- used again


async def test_a_proof_is_good_once() -> None:
    same = checker()
    text = proof()
    await check(text, same)
    assert "used before" in (await refused(text, check=same)).message
    await check(proof(), same)


async def test_two_workers_that_share_their_memory_take_a_proof_once() -> None:
    claim = remembering()
    text = proof()
    await check(text, checker(claim))
    await refused(text, check=checker(claim))


async def test_another_signature_of_the_same_jti_is_the_same_proof() -> None:
    """ECDSA signs the same words differently each time; what was used is the jti, not the text."""
    same = checker()
    texts = {proof(said={"jti": "again"}) for _ in range(2)}
    assert len(texts) == 2
    await check(texts.pop(), same)
    await refused(texts.pop(), check=same)


async def test_a_jti_belongs_to_its_key() -> None:
    """Nobody can use up the proofs of somebody else."""
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


async def test_a_store_that_fails_lets_nobody_in() -> None:
    async def claim(key: str, seconds: float) -> bool:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await check(proof(), checker(claim))


# --- where one process remembers them


async def test_what_was_used_is_known_until_its_time_is_over() -> None:
    now = [1000.0]
    used = UsedProofs(clock=lambda: now[0])
    assert await used.claim("dpop/a", 360.0)
    for now[0] in (1000.0, 1029.0, 1359.9):
        assert not await used.claim("dpop/a", 360.0)
    now[0] = 1400.0
    assert await used.claim("dpop/a", 360.0)


async def test_when_it_is_full_new_proofs_are_refused_and_none_is_forgotten() -> None:
    now = [1000.0]
    used = UsedProofs(3, clock=lambda: now[0])
    for number, seconds in enumerate([10.0, 100.0, 300.0]):
        assert await used.claim(f"dpop/{number}", seconds)
    with pytest.raises(ProtocolError, match="try again later") as caught:
        await used.claim("dpop/3", 10.0)
    assert caught.value.http_status == 503
    assert [await used.claim(f"dpop/{number}", 10.0) for number in range(3)] == [False] * 3
    now[0] = 1050.0  # the time of the first is over
    assert await used.claim("dpop/3", 10.0)
    assert not await used.claim("dpop/2", 10.0)


# --- nonces


def nonces(at: float = NOW, secret: bytes = SECRET) -> DpopNonces:
    return DpopNonces(lambda: [secret], seconds=100, clock=lambda: at)


async def test_with_nonces_a_proof_has_to_hold_a_fresh_one() -> None:
    ours = checker(nonces=nonces())
    assert ours.nonce == nonces().fresh()
    await check(proof(said={"nonce": ours.nonce}), ours)
    for given_nonce in (None, "", "guess", "ä", nonces(NOW - 200).fresh(), nonces(secret=b"o" * 32).fresh()):
        await refused(proof(said={"nonce": given_nonce}), "use_dpop_nonce", check=ours)


async def test_a_proof_that_lacks_its_nonce_is_not_used_up() -> None:
    """The client signs again with the nonce, and may well keep its jti."""
    ours = checker(nonces=nonces())
    await refused(proof(said={"jti": "1"}), "use_dpop_nonce", check=ours)
    await check(proof(said={"jti": "1", "nonce": ours.nonce}), ours)


@pytest.mark.parametrize(("later", "good"), [(0, True), (99, True), (199, True), (200, False), (-1, False)])
def test_a_nonce_is_good_for_one_to_two_windows(later: float, good: bool) -> None:
    assert NOW % 100 == 0
    assert nonces(NOW + later).knows(nonces().fresh()) is good


def test_workers_with_one_secret_know_each_others_nonces() -> None:
    assert nonces().knows(nonces().fresh())
    assert not nonces().knows(nonces(secret=b"t" * 32).fresh())
    assert checker().nonce is None


def test_secrets_can_be_replaced() -> None:
    """The first one makes nonces, all of them are known; and what a fleet agrees on later counts at once."""
    secrets = [SECRET]
    ours = DpopNonces(lambda: secrets, seconds=100, clock=lambda: NOW)
    old = ours.fresh()
    secrets[:] = [b"t" * 32, SECRET]
    assert ours.fresh() == nonces(secret=b"t" * 32).fresh() != old
    assert ours.knows(old)


def test_nonces_without_proofs_are_refused() -> None:
    with pytest.raises(SetupError, match="dpop_nonces=True does nothing"):
        Auth(lambda token: None, dpop_nonces=True)


async def test_the_real_clock_is_the_default() -> None:
    await check(proof(said={"iat": time.time()}), DpopCheck(remembering()))
