"""The catalog: its order, its pages while it changes, its cache and its listeners."""

import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dovetail.errors import SetupError
from dovetail.registry.catalog import CachedPage, Catalog, Page, check_name


def filled(*names: str) -> Catalog[str]:
    catalog: Catalog[str] = Catalog("tool")
    for name in names:
        catalog.add(name, name.upper())
    return catalog


def pages(catalog: Catalog[str], size: int) -> list[list[str]]:
    """All of them, one after the other."""
    seen: list[list[str]] = []
    after: int | None = 0
    while after is not None:
        page = catalog.page(after, size)
        assert len(page.items) <= size
        seen.append(list(page.items))
        after = page.next_after
    return seen


def cached_page(body: bytes = b"{}") -> CachedPage:
    return CachedPage(body, None, 0.0)


@pytest.mark.rule("TOOL-4")
def test_items_stay_in_the_order_of_their_registration() -> None:
    catalog = filled("zebra", "ant", "mole")
    assert catalog.all() == ["ZEBRA", "ANT", "MOLE"]
    assert len(catalog) == 3
    assert (catalog.get("ant"), catalog.get("Ant")) == ("ANT", None)
    with pytest.raises(SetupError, match="already a tool 'ant'"):
        catalog.add("ant", "second")
    assert catalog.all() == ["ZEBRA", "ANT", "MOLE"]


def test_a_replaced_item_keeps_its_place() -> None:
    catalog = filled("a", "b", "c")
    catalog.replace("b", "other")
    catalog.replace("unknown", "nothing")
    assert catalog.all() == ["A", "other", "C"]
    assert catalog.page(1, 1) == Page(["other"], 2)
    assert catalog.get("unknown") is None


def test_once_used_always_used() -> None:
    catalog: Catalog[str] = Catalog("tool")
    assert not catalog.ever_used
    catalog.add("a", "A")
    catalog.clear()
    assert catalog.ever_used


# ── pages ──


@pytest.mark.rule("PAGE-1", "PAGE-4")
@pytest.mark.parametrize(
    ("count", "size", "sizes"),
    [(0, 5, [0]), (1, 5, [1]), (5, 5, [5]), (6, 5, [5, 1]), (10, 5, [5, 5]), (3, 1, [1, 1, 1])],
)
def test_a_page_points_to_the_next_only_if_there_is_one(count: int, size: int, sizes: list[int]) -> None:
    catalog = filled(*(f"t{number}" for number in range(count)))
    assert [len(page) for page in pages(catalog, size)] == sizes


class WalkWhileItChanges(RuleBasedStateMachine):
    """A client pages through while tools are added and removed: nothing twice, and nothing that stayed is missed."""

    @initialize(count=st.integers(0, 12), size=st.integers(1, 4))
    def begin(self, count: int, size: int) -> None:
        self.catalog: Catalog[object] = Catalog("tool")
        self.size = size
        self.model: dict[str, object] = {}
        for number in range(count):
            self._register(f"t{number}")
        self._start_walk()

    def _register(self, name: str) -> None:
        self.model[name] = object()  # every registration is a thing of its own
        self.catalog.add(name, self.model[name])

    def _start_walk(self) -> None:
        self.after: int | None = 0
        self.seen: list[object] = []
        self.stayed = set(self.model.values())

    @rule(number=st.integers(0, 15))
    def add(self, number: int) -> None:
        if (name := f"t{number}") not in self.model:
            self._register(name)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.model:
            name = data.draw(st.sampled_from(sorted(self.model)))
            self.stayed.discard(self.model.pop(name))
            assert self.catalog.remove(name)

    @rule()
    def clear(self) -> None:
        self.catalog.clear()
        self.model.clear()
        self.stayed.clear()

    @rule()
    def next_page(self) -> None:
        if self.after is None:
            self._start_walk()
        assert self.after is not None
        page = self.catalog.page(self.after, self.size)
        self.seen += page.items
        self.after = page.next_after
        assert all(item in self.model.values() for item in page.items)
        if self.after is None:
            assert self.stayed <= set(self.seen)

    @invariant()
    def nothing_twice(self) -> None:
        if hasattr(self, "seen"):
            assert len(self.seen) == len(set(self.seen))
            assert self.catalog.all() == list(self.model.values())


WalkWhileItChanges.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestWalkWhileItChanges = pytest.mark.rule("PAGE-2", "PAGE-8")(WalkWhileItChanges.TestCase)


# ── cached pages ──


@pytest.mark.rule("TOOL-5", "RES-3", "PR-3")
@pytest.mark.parametrize(
    ("change", "arguments", "calls"),
    [("add", ["new", "NEW"], 1), ("remove", ["a"], 1), ("clear", [], 1), ("replace", ["a", "other"], 0)],
)
def test_a_change_drops_the_cached_pages_and_calls_listeners_once(change: str, arguments: Any, calls: int) -> None:
    catalog = filled("a", "b")
    received: list[int] = []
    catalog.on_change(lambda: received.append(len(catalog.all())))  # a listener may use the catalog
    catalog.cache_page(("2026-07-28", 0), cached_page(), catalog.version)
    assert catalog.pages
    before = catalog.version
    getattr(catalog, change)(*arguments)
    assert not catalog.pages
    assert catalog.version > before
    assert len(received) == calls
    catalog.cache_page(("2026-07-28", 0), cached_page(), before)
    assert not catalog.pages, "a page that was made before the change"


def test_what_changes_nothing_drops_nothing() -> None:
    catalog = filled("a")
    received: list[int] = []
    catalog.on_change(lambda: received.append(1))
    catalog.cache_page(("2026-07-28", 0), cached_page(), catalog.version)
    assert not catalog.remove("x")
    catalog.replace("x", "")
    assert (catalog.get("x"), catalog.page(0, 9).items) == (None, ["A"])
    assert catalog.pages
    assert not received


def test_a_snapshot_stays_as_it_is() -> None:
    catalog = filled("a")
    before = catalog.snapshot
    assert catalog.snapshot is before
    catalog.add("b", "B")
    assert before.items == ["A"]
    assert before.version < catalog.snapshot.version
    assert list(catalog.snapshot.items_after(0)) == [(1, "A"), (2, "B")]
    assert list(catalog.snapshot.items_after(1)) == [(2, "B")]


def test_the_oldest_pages_make_room() -> None:
    catalog: Catalog[str] = Catalog("tool", max_pages=3, max_bytes=100)
    for place in range(5):
        catalog.cache_page(("", place), cached_page(b"x" * 10), catalog.version)
    assert [place for _, place in catalog.pages] == [2, 3, 4], "in number"
    catalog.cache_page(("", 5), cached_page(b"x" * 85), catalog.version)
    assert [place for _, place in catalog.pages] == [4, 5], "in bytes"
    catalog.cache_page(("", 5), cached_page(b"x" * 10), catalog.version)
    catalog.cache_page(("", 6), cached_page(b"x" * 80), catalog.version)
    assert [place for _, place in catalog.pages] == [4, 5, 6], "one in the place of another counts once"
    catalog.cache_page(("", 7), cached_page(b"x" * 101), catalog.version)
    assert len(catalog.pages) == 3, "what is larger than all together may be is not cached"
    catalog.add("a", "A")
    catalog.cache_page(("", 0), cached_page(b"x" * 100), catalog.version)
    assert len(catalog.pages) == 1, "a change empties it, and nothing is counted any more"


def test_a_removed_listener_is_not_called() -> None:
    catalog = filled("a")
    received: list[str] = []

    def once() -> None:
        received.append("once")
        catalog.off_change(once)

    catalog.on_change(once)
    catalog.on_change(lambda: received.append("always"))
    catalog.off_change(print)  # never listened
    catalog.add("b", "B")
    catalog.add("c", "C")
    assert received == ["once", "always", "always"]


def test_threads_may_register_and_remove_while_others_page() -> None:
    catalog = filled(*(f"fixed{number}" for number in range(20)))
    fixed = set(catalog.all())
    failures: list[object] = []
    stop = threading.Event()

    def churn(worker: int) -> None:
        for number in range(300):
            catalog.add(f"w{worker}-{number}", "guest")
            catalog.remove(f"w{worker}-{number}")

    def page() -> None:
        try:
            while not stop.is_set():
                version = catalog.version
                seen = [item for page in pages(catalog, 7) for item in page if item != "guest"]
                if set(seen) != fixed or len(seen) != len(fixed):
                    failures.append(seen)
                catalog.cache_page(("2026-07-28", 0), cached_page(), version)
        except Exception as failure:
            failures.append(failure)

    writers = [threading.Thread(target=churn, args=(worker,)) for worker in range(3)]
    readers = [threading.Thread(target=page) for _ in range(2)]
    for thread in (*writers, *readers):
        thread.start()
    for number, thread in enumerate((*writers, *readers)):
        if number == len(writers):
            stop.set()
        thread.join()
    assert not failures
    assert set(catalog.all()) == fixed


@pytest.mark.seed("S3-09")
@pytest.mark.rule("TOOL-7")
@pytest.mark.parametrize(
    "name", ["", "x" * 129, "a b", "a/b", "é", "a\n", "\na", "a\x00", "a:b", "a,b", "٣"], ids=ascii
)
def test_names_that_are_refused(name: str) -> None:
    for good in ("a", "A-b_c.9", "x" * 128, "...", "-"):
        assert check_name(good, "tool f") == good
    with pytest.raises(SetupError, match=r"tool f.*name=") as caught:
        check_name(name, "tool f")
    assert len(str(caught.value)) < 300
