"""Fixed API keys: who gets in, what is kept of a key, and that looking it up tells nothing."""

import hashlib
import hmac
import pickle
from typing import Any

import pytest

from dovetail.auth import api_keys as module
from dovetail.auth.api_keys import ApiKeys
from dovetail.errors import SetupError

ALICE = "alice-key-0123456789"
BOB = "bob-key-01234567890!"


async def subject(keys: ApiKeys, token: str) -> str | None:
    principal = await keys.verify(token)
    return None if principal is None else principal.subject


@pytest.mark.rule("AUTH-7")
async def test_each_key_is_of_one() -> None:
    keys = ApiKeys({"alice": ALICE, "bob": BOB}, scopes=["notes:read"])
    alice = await keys.verify(ALICE)
    assert alice is not None
    assert (alice.subject, alice.client, alice.issuer, alice.expires_at) == ("alice", None, None, None)
    assert alice.scopes == {"notes:read"}
    assert await subject(keys, BOB) == "bob"
    for key in ("k" * 16, "k" * 1024):
        assert await subject(ApiKeys({"alice": key}), key) == "alice"


@pytest.mark.rule("AUTH-3", "AUTH-9", "SEC-6")
@pytest.mark.parametrize(
    "token",
    ["", "x", ALICE[:-1], ALICE + "x", ALICE.upper(), " " + ALICE, ALICE + "\n", "alice", "a" * 10_000_000, "\udc80é"],
)
async def test_anything_else_is_no_key(token: str) -> None:
    assert await ApiKeys({"alice": ALICE}).verify(token) is None


async def test_a_key_may_be_written_down_as_its_digest() -> None:
    hashed = ApiKeys.hash(ALICE)
    assert hashed == "sha256:" + hashlib.sha256(ALICE.encode()).hexdigest()
    keys = ApiKeys({"alice": hashed})
    assert await subject(keys, ALICE) == "alice"
    assert await subject(keys, hashed) is None  # who reads the settings can't get in
    assert await subject(keys, hashed.removeprefix("sha256:")) is None


async def test_scopes_and_claims_of_one_key() -> None:
    keys = ApiKeys(
        {
            "alice": [
                {"key": ALICE, "scopes": ["notes:write"], "claims": {"team": "a"}},
                {"key": ApiKeys.hash(BOB), "scopes": []},
            ],
            "carol": "carol-key-0123456789",
        },
        scopes=["notes:read"],
    )
    one, two, carol = [await keys.verify(key) for key in (ALICE, BOB, "carol-key-0123456789")]
    assert one is not None
    assert two is not None
    assert carol is not None
    assert (one.subject, one.scopes, one.claims) == ("alice", {"notes:write"}, {"team": "a"})
    assert (two.subject, two.scopes, two.claims) == ("alice", set(), {})
    assert one.key == two.key  # several keys, one owner
    assert carol.scopes == {"notes:read"}


async def test_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_API_KEYS", f"alice:{ALICE}, bob:{ApiKeys.hash(BOB)},alice:another-key:0123456,")
    keys = ApiKeys.from_env(scopes=["a"])
    assert [await subject(keys, key) for key in (ALICE, BOB, "another-key:0123456")] == ["alice", "bob", "alice"]


@pytest.mark.parametrize(
    ("value", "says"),
    [(None, "not set"), ("", "not set"), (" , ", "not set"), (f"alice:{ALICE},{BOB}", "entry 2"), (":x", "entry 1")],
)
def test_an_environment_that_does_not_do(value: str | None, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEYS", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEYS", value)
    with pytest.raises(SetupError, match=says) as caught:
        ApiKeys.from_env("MY_KEYS")
    assert "MY_KEYS" in str(caught.value)
    assert BOB not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {}, [ALICE], {"": ALICE}, {7: ALICE}, {"alice": "tooshort-secret"}, {"alice": "with space 0123456789"},
        {"alice": "umlaut-ä-0123456789"}, {"alice": "x" * 1025}, {"alice": "sha256:123-secret"},
        {"alice": "sha256:" + "A" * 64}, {"alice": None}, {"alice": 1234567890123456}, {"alice": {"scopes": ["a"]}},
        {"alice": {"key": ALICE, "scope": "a"}}, {"alice": {"key": ALICE, "claims": ["a"]}},
        {"alice": {"key": ALICE, "scopes": ["a b"]}}, {"alice": ALICE, "bob": ALICE},
        {"alice": ALICE, "bob": ApiKeys.hash(ALICE)},
    ],
)  # fmt: skip
def test_keys_that_are_refused_at_setup_and_not_shown(given: Any) -> None:
    with pytest.raises(SetupError) as caught:
        ApiKeys(given)
    assert "secret" not in str(caught.value)
    assert ALICE not in str(caught.value)


def test_generated_keys_do() -> None:
    one, two = ApiKeys.generate(), ApiKeys.generate()
    assert one != two
    assert len(one) > 40
    ApiKeys({"alice": one, "bob": two})


def test_no_key_is_kept_or_shown() -> None:
    keys = ApiKeys({"alice": ALICE, "bob": {"key": BOB}})
    assert repr(keys) == "ApiKeys('alice', 'bob')"
    assert ALICE.encode() not in pickle.dumps(vars(keys))
    assert BOB.encode() not in pickle.dumps(vars(keys))


async def test_every_look_makes_the_same_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Structural: for every token one HMAC, one look, one comparison in constant time of equally long digests."""
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    keys = ApiKeys({"alice": ALICE, "bob": BOB})

    class Watched:
        compare_digest = staticmethod(compare)
        digest = staticmethod(hmac.digest)

    monkeypatch.setattr(module, "hmac", Watched)
    for token in (ALICE, BOB, ALICE[:-1] + "x", "x" + ALICE[1:], "", "x"):
        await keys.verify(token)
    assert compared == [(32, 32)] * 6
