"""DPoP: nobody who has a key uses up the room in which the proofs of all are remembered."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proof_making import KEY, NOW, OTHER, bound, check, proof, refused, remembering
from test_dpop_http import SharedMemory, app_of, proved

from dovetail.auth import dpop
from dovetail.auth.dpop import CLOCK_MARGIN, LEEWAY, SHELF_SECONDS, DpopCheck, ProofCounts, UsedProofs
from dovetail.errors import RateLimited
from http_wire import HttpWire

KEPT = LEEWAY + CLOCK_MARGIN + SHELF_SECONDS  # seconds, at most, for a proof of now


class Now:
    def __init__(self, at: float = NOW) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


async def test_who_has_used_too_many_has_to_wait_and_others_go_on() -> None:
    now = Now()
    ours = DpopCheck(remembering(), most_of_one=3, clock=now)
    for n in range(3):
        await check(proof(said={"jti": f"{n}"}), ours)
    with pytest.raises(RateLimited, match="proofs of this caller") as caught:
        await check(proof(said={"jti": "3"}), ours)
    assert caught.value.http_status == 429
    assert LEEWAY + CLOCK_MARGIN <= caught.value.retry_after <= KEPT
    await check(proof(said={"jti": "3"}, key=OTHER), ours, claims=bound(OTHER))
    now.at += caught.value.retry_after + 1
    await check(proof(said={"jti": "4", "iat": now.at}), ours)


async def test_a_proof_that_is_refused_does_not_count() -> None:
    """A thief has seen some proofs, and sends them again and again: that is not to shut out the owner."""
    ours = DpopCheck(remembering(), most_of_one=2, clock=Now())
    seen = proof(said={"jti": "1"})
    await check(seen, ours)
    for _ in range(5):
        await refused(seen, check=ours)
    await check(proof(said={"jti": "2"}), ours)


async def test_a_refusal_leaves_nothing_in_the_store() -> None:
    claimed: list[str] = []

    async def claim(key: str, seconds: float) -> bool:
        claimed.append(key)
        return True

    ours = DpopCheck(claim, most_of_one=1, clock=Now())
    await check(proof(said={"jti": "1"}), ours)
    with pytest.raises(RateLimited):
        await check(proof(said={"jti": "2"}), ours)
    assert len(claimed) == 1


async def test_over_http_it_is_429_with_the_time_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DpopCheck.__init__.__kwdefaults__, "most_of_one", 2)
    for state in (None, SharedMemory()):
        app = app_of("required", state=state) if state else app_of("required")
        answers = [await HttpWire(app).raw("POST", b"{}", proved()).done() for _ in range(3)]
        assert [answer.status for answer in answers] == [400, 400, 429]
        assert int(answers[-1].headers["retry-after"]) > 0
        assert b"try again later" in answers[-1].raw


def test_a_caller_counts_for_itself_as_soon_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpop, "MAX_CALLERS", 2)
    now = Now()
    counts = ProofCounts(1, now)
    for caller, seconds in (("a", 10.0), ("b", 10.0), ("c", 10.0 + 3 * SHELF_SECONDS)):  # the last is one of the others
        counts.add(caller, seconds)
    with pytest.raises(RateLimited):
        counts.refuse_too_many("d")
    now.at += 10 + SHELF_SECONDS
    counts.refuse_too_many("d")


def test_those_beyond_the_bound_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpop, "MAX_CALLERS", 3)
    now = Now()
    counts = ProofCounts(2, now)
    for caller in ("a", "b", "c", "d", "e"):
        counts.refuse_too_many(caller)
        counts.add(caller, 60.0)
    assert counts._counts == {"a": 1, "b": 1, "c": 1, dpop.OTHERS: 2}
    counts.refuse_too_many("a")
    with pytest.raises(RateLimited):
        counts.refuse_too_many("f")
    now.at += 60 + SHELF_SECONDS
    counts.refuse_too_many("f")
    assert not counts._counts
    assert not counts._shelves.by_number


async def test_many_keys_of_one_caller_count_together() -> None:
    ours = DpopCheck(remembering(), most_of_one=2, clock=Now())
    await check(proof(said={"jti": "1"}), ours, caller="ann")
    await check(proof(said={"jti": "2"}, key=OTHER), ours, claims=bound(OTHER), caller="ann")
    with pytest.raises(RateLimited):
        await check(proof(said={"jti": "3"}), ours, caller="ann")
    await check(proof(said={"jti": "3"}), ours, caller="bob")


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(60, 660), st.integers(0, 90)), max_size=60)


@given(STEPS)
def test_counts_are_those_of_the_proofs_that_have_not_ended(steps: list[tuple[str, int, int]]) -> None:
    now, ends = Now(), []
    counts = ProofCounts(1000, now)
    for key, seconds, pause in steps:
        counts.refuse_too_many(key)
        counts.add(key, seconds)
        ends.append((key, now.at + seconds))
        now.at += pause
        counts.refuse_too_many(key)
        for each in "abc":
            surely = sum(1 for whose, end in ends if whose == each and end >= now.at)
            at_most = sum(1 for whose, end in ends if whose == each and end + SHELF_SECONDS >= now.at)
            assert surely <= counts._counts.get(each, 0) <= at_most


@given(STEPS)
async def test_what_one_process_remembers_are_the_proofs_that_have_not_ended(steps: list[tuple[str, int, int]]) -> None:
    now, ends = Now(), dict[str, float]()
    used = UsedProofs(5, now)
    for key, seconds, pause in steps:
        try:
            is_new = await used.claim(key, seconds)
        except dpop.ProtocolError:
            assert len(ends) >= 5
            continue
        assert not (is_new and ends.get(key, 0) >= now.at)
        if is_new:
            ends[key] = now.at + seconds
        else:
            assert ends[key] + SHELF_SECONDS >= now.at
        now.at += pause
        assert len(used._known) == sum(len(shelf) for shelf in used._shelves.by_number.values()) <= 5


async def test_a_tenth_of_the_room_is_the_default() -> None:
    assert dpop.MAX_OF_ONE * 10 <= dpop.MAX_USED
    assert KEY.thumbprint() != OTHER.thumbprint()
    await check(proof(said={"iat": time.time()}), DpopCheck(UsedProofs().claim))
