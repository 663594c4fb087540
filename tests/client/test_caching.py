"""The cache of a client by itself: what is kept, for how long, and what makes it old."""

from typing import Any

import pytest
from fake_clock import Clock
from msgspec import Raw

from dovetail import Change
from dovetail.client.caching import ResponseCache
from dovetail.protocol.jsonrpc import encode


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock.of_caches(monkeypatch)


def answer(ttl: Any = 1000, **more: Any) -> Raw:
    return Raw(encode({"resultType": "complete", "ttlMs": ttl, "cacheScope": "private", **more}))


def filled(*requests: tuple[str, dict[str, Any]], **sizes: int) -> ResponseCache:
    cache = ResponseCache(**sizes)
    for method, params in requests:
        cache.keep(method, params, answer(), cache.changes)
    return cache


def test_until_its_time_is_over(clock: Clock) -> None:
    cache = filled(("tools/list", {}))
    clock.now += 0.999
    assert cache.find("tools/list", {}) == answer()
    clock.now += 0.001
    assert cache.find("tools/list", {}) is None
    assert not len(cache)


@pytest.mark.parametrize(
    ("method", "params"),
    [("tools/list", {"cursor": "2"}), ("prompts/list", {}), ("resources/read", {"uri": "a://2"})],
)
def test_only_for_the_same_request(method: str, params: dict[str, Any]) -> None:
    cache = filled(("tools/list", {}), ("resources/read", {"uri": "a://1"}))
    assert cache.find(method, params) is None


NOT_KEPT: dict[str, tuple[str, dict[str, Any], Raw]] = {
    "no ttl": ("tools/list", {}, Raw(b"{}")),
    "zero": ("tools/list", {}, answer(0)),
    "negative": ("tools/list", {}, answer(-5)),
    "text": ("tools/list", {}, answer("1000")),
    "a fraction": ("tools/list", {}, answer(0.5)),
    "true": ("tools/list", {}, answer(True)),
    "a list": ("tools/list", {}, answer([1000])),
    "no object": ("tools/list", {}, Raw(b"[1]")),
    "an interim result": ("resources/read", {"uri": "a:/"}, answer(resultType="input_required")),
    "another kind of result": ("resources/read", {"uri": "a:/"}, answer(resultType="task")),
    "a second round": ("resources/read", {"uri": "a:/", "inputResponses": {}}, answer()),
    "a waiting round": ("resources/read", {"uri": "a:/", "requestState": "x"}, answer()),
    "a call": ("tools/call", {"name": "x"}, answer()),
    "a prompt": ("prompts/get", {"name": "x"}, answer()),
    "a completion": ("completion/complete", {}, answer()),
}


@pytest.mark.parametrize(("method", "params", "raw"), NOT_KEPT.values(), ids=NOT_KEPT.keys())
def test_what_is_not_kept(method: str, params: dict[str, Any], raw: Raw) -> None:
    cache = ResponseCache()
    cache.keep(method, params, raw, cache.changes)
    assert not len(cache)


def test_a_day_is_for_ever(clock: Clock) -> None:
    cache = ResponseCache()
    cache.keep("tools/list", {}, answer(2**63 - 1), cache.changes)
    clock.now += 24 * 3600 - 1
    assert cache.find("tools/list", {}) is not None
    clock.now += 1
    assert cache.find("tools/list", {}) is None


def test_the_one_used_longest_ago_makes_room() -> None:
    uris = [{"uri": f"a://{number}"} for number in range(4)]
    cache = filled(*(("resources/read", uri) for uri in uris[:3]), max_entries=3)
    assert cache.find("resources/read", uris[0]) is not None
    cache.keep("resources/read", uris[3], answer(), cache.changes)
    assert [cache.find("resources/read", uri) is not None for uri in uris] == [True, False, True, True]


def test_bytes_are_bounded_too() -> None:
    cache = ResponseCache(max_bytes=1_000)
    for number in range(10):
        cache.keep("resources/read", {"uri": f"a://{number}"}, answer(text="x" * 300), cache.changes)
    assert len(cache) == 2
    cache.keep("resources/read", {"uri": "a://big"}, answer(text="x" * 3_000), cache.changes)
    assert len(cache) == 2  # one that is too long drives out nobody
    cache.keep("resources/read", {"uri": "a://1"}, answer(text="x" * 300), cache.changes)
    cache.keep("resources/read", {"uri": "a://1"}, answer(text="x" * 300), cache.changes)
    assert len(cache) == 2  # and the same one again is one


EVERYTHING = (
    ("tools/list", {}),
    ("prompts/list", {}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("server/discover", {}),
    ("resources/read", {"uri": "notes://1"}),
    ("resources/read", {"uri": "notes://1/title"}),
    ("resources/read", {"uri": "notes://10"}),
)
FORGOTTEN = {
    Change("tools"): {0},
    Change("prompts"): {1},
    Change("resources"): {2, 3},
    Change("updated", "notes://1"): {5, 6},
    Change("updated", "notes://1/title"): {5, 6},
    Change("updated", "notes://1/author"): {5},
    Change("updated", "notes://10"): {7},
    Change("updated", "notes://2"): set(),
}


@pytest.mark.parametrize(("change", "old"), FORGOTTEN.items(), ids=[f"{c.kind} {c.uri}" for c in FORGOTTEN])
def test_a_change_makes_old(change: Change, old: set[int]) -> None:
    cache = filled(*EVERYTHING)
    cache.forget(change)
    assert {number for number, request in enumerate(EVERYTHING) if cache.find(*request) is None} == old


def test_an_answer_that_was_on_its_way_during_a_change_is_not_kept() -> None:
    cache = ResponseCache()
    asked = cache.changes
    cache.forget(Change("tools"))
    cache.keep("tools/list", {}, answer(), asked)
    assert not len(cache)


def test_nothing_is_shared_with_another_identity() -> None:
    cache = filled(("tools/list", {}))
    cache.belongs_to("")
    assert len(cache) == 1
    asked = cache.changes
    cache.belongs_to("Bearer of Ada")
    assert not len(cache)
    cache.keep("tools/list", {}, answer(), asked)  # asked for by whoever it was before
    assert not len(cache)
