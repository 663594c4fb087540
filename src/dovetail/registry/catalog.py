"""The ordered catalog of tools, prompts, resources or templates: lookup by name, pages, caching."""

import logging
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from dovetail import registry
from dovetail.errors import SetupError
from dovetail.protocol.session import EVERYTHING, Rules
from dovetail.registry.functions import qualified_name
from dovetail.registry.registration import AccessRules

T = TypeVar("T")
log = logging.getLogger("dovetail")
BLOCK_BITS = 40  # of the numbers in a block of items that come from elsewhere
BACKEND_BLOCK = 1  # of a proxy's backend; the blocks of mounts follow
MAX_SNAPSHOTS = 64  # for sessions with rules of their own
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Items of one page, and the registration number after which the next page begins (None at the end)."""

    items: list[T]
    next_after: int | None


class CachedPage(msgspec.Struct, frozen=True):
    """The encoded bytes of a page, and the cursor in it with its time of issue."""

    body: bytes
    next_cursor: str | None
    issued_at: float
    items: Sequence[Any] = ()  # the items in it, where access rules hide some from some callers


class Snapshot(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """All items of a catalog at one moment, by their registration numbers."""

    version: int
    numbers: list[int]
    items: list[T]
    rules: AccessRules | None  # None: every caller may use every item

    def page(self, after: int, size: int) -> Page[T]:
        start = bisect_right(self.numbers, after)
        end = start + size
        return Page(self.items[start:end], self.numbers[end - 1] if end < len(self.items) else None)

    def items_after(self, after: int) -> Iterator[tuple[int, T]]:
        """All items registered after number `after`, each with its own number."""
        indexes = range(bisect_right(self.numbers, after), len(self.items))
        return ((self.numbers[index], self.items[index]) for index in indexes)


class Catalog(Generic[T]):
    """Items in the order of their registration. Every change drops the cached pages and calls the listeners.

    A registration number is never reused, so a cursor that holds one stays right while items are added and removed.
    Items of mounts and backends are in blocks behind them (`exchange`).
    Disabled items are held aside: they keep their names and numbers, but only `find` and `registered` know them.
    """

    def __init__(self, noun: str, *, max_pages: int = 256, max_bytes: int = 64 * 1024 * 1024) -> None:
        self.noun = noun
        self._max_pages, self._max_bytes = max_pages, max_bytes  # of the cache
        self.ever_used = False
        self.has_tasks = False  # at some time it has had a tool with `task=`
        self.version = 0  # counts the changes
        self.pages: dict[tuple[Hashable, int], CachedPage] = {}  # the cache, by encoder and position
        self._items: dict[str, T] = {}
        self.get: Callable[[str], T | None] = self._items.get  # the dict's own: every call looks up its tool
        self._disabled: dict[str, T] = {}
        self._numbers: dict[str, int] = {}  # of all items
        self.rules: Rules = ()  # of `server.enable` and `server.disable`
        self.reserved: frozenset[str] = frozenset()  # names of the server's own tools, which are in no catalog
        self._snapshot: Snapshot[T] | None = None
        self._snapshots: dict[Rules, Snapshot[T]] = {}
        self._cached_bytes = 0
        self._last_number = 0
        self._listeners: list[Callable[[], object]] = []
        self._lock = threading.Lock()  # tools in worker threads may register tools

    def __len__(self) -> int:
        return len(self._items)

    def all(self) -> list[T]:
        return list(self.snapshot.items)

    def names(self) -> list[str]:
        return [name for name in self._in_order() if name in self._items]

    def _in_order(self) -> list[str]:
        numbers = self._numbers.copy()  # another thread may change them
        return sorted(numbers, key=numbers.__getitem__)

    def add(self, name: str, item: T, *, where: str = "") -> None:
        """Add an item. Raises SetupError for a name that is taken; `where` names the function for the message."""
        if name in self.reserved:
            raise SetupError(f"{where or self.noun}: {_reserved(name)}")
        if not self.swap((), {name: item}):
            taken = f"there is already a {self.noun} {name!r}; remove it first or choose another name"
            raise SetupError(f"{where}: {taken}" if where else taken)
        self._announce()

    def reserve(self, names: Iterable[str]) -> None:
        """Let no item have these names. Raises SetupError if one has."""
        self.reserved = frozenset(names)
        for name in sorted(self.reserved & self._numbers.keys()):
            raise SetupError(f"{self.noun} {name}: {_reserved(name)}")

    def replace(self, name: str, item: T) -> None:
        """Replace an item by a new version, which keeps its number; no listener is called."""
        with self._lock:
            if name in self._numbers:
                self._put({name: item})
                self._drop_pages()

    def remove(self, name: str) -> bool:
        if found := self.swap((name,), {}):
            self._announce()
        return found

    def clear(self) -> None:
        if self.swap(tuple(self._numbers), {}):
            self._announce()

    def swap(self, removed: Iterable[str], new: Mapping[str, T]) -> bool:
        """Remove items, and add those whose names are free. True if something changed; no listener is called."""
        with self._lock:
            found = [name for name in removed if name in self._numbers]
            for name in found:
                del self._place_of(name)[name], self._numbers[name]
            added = {name: item for name, item in new.items() if name not in self._numbers}
            self._put(added)
            self._numbers.update((name, number) for number, name in enumerate(added, self._last_number + 1))
            self._last_number += len(added)
            if found or added:
                self.ever_used = True
                self._drop_pages()
            return bool(found or added)

    def _put(self, items: Mapping[str, T]) -> None:
        """Put items where the rules say; at no time is one missing that stays enabled."""
        for name, item in items.items():
            enabled = not self.rules or registry.visibility.is_enabled(self.rules, item)
            here, there = (self._items, self._disabled) if enabled else (self._disabled, self._items)
            here[name] = item
            there.pop(name, None)
            self.has_tasks = self.has_tasks or getattr(item, "task", None) is not None

    def _place_of(self, name: str) -> dict[str, T]:
        return self._items if name in self._items else self._disabled

    def set_visibility(self, new: Rules) -> None:
        """Add rules, which hold for later items too."""
        with self._lock:
            self.rules = registry.visibility.extended(self.rules, new)
            before = self._items.keys() | ()
            self._put({**self._items, **self._disabled})
            if has_changed := before != self._items.keys():
                self._drop_pages()
        if has_changed:
            self._announce()

    def find(self, name: str, rules: Rules = EVERYTHING) -> T | None:
        """An item that a session with these rules sees, which may be one that the server has disabled."""
        if not rules:
            return self._items.get(name)
        item = self._place_of(name).get(name)
        if item is None or rules is EVERYTHING:
            return item
        return item if registry.visibility.is_enabled(rules, item, default=name in self._items) else None

    def exchange(self, old: Mapping[str, T], new: Mapping[str, T], block: int) -> bool:
        """Put new items in place of old ones that are still there.

        They are listed in their order, behind the catalog's own items and behind lower blocks. Their numbers are their
        positions, so that workers with the same items have the same numbers in any order of arrival. True if something
        changed, and the listeners were called.
        """
        with self._lock:
            before = {name: self._numbers[name] for name, item in old.items() if self.find(name) is item}
            numbers = {
                name: (block << BLOCK_BITS) + position
                for position, name in enumerate(new)
                if name in before or not (name in old or name in self._numbers or name in self.reserved)
            }
            other = {name: new[name] for name in numbers if name not in before or new[name] is not old[name]}
            for name in before.keys() - numbers.keys():
                del self._place_of(name)[name], self._numbers[name]
            self._put(other)
            self._numbers.update(numbers)
            has_changed = bool(other) or numbers != before
            if has_changed:
                self.ever_used = True
                self._drop_pages()
        if has_changed:
            self._announce()
        return has_changed

    def page(self, after: int, size: int) -> Page[T]:
        return self.snapshot.page(after, size)

    @property
    def snapshot(self) -> Snapshot[T]:
        """All items as they are now, without disabled ones; made at the first use after a change."""
        return self._snapshot or self._make_snapshot(())

    @property
    def registered(self) -> Snapshot[T]:
        """All items, disabled ones too."""
        return self.snapshot_for(EVERYTHING) if self._disabled else self.snapshot

    def snapshot_for(self, rules: Rules) -> Snapshot[T]:
        """The items that a session with these rules sees."""
        return (self._snapshots.get(rules) or self._make_snapshot(rules)) if rules else self.snapshot

    def _make_snapshot(self, rules: Rules) -> Snapshot[T]:
        with self._lock:
            if (known := self._snapshots.get(rules)) is not None:
                return known
            names = [name for name in self._in_order() if name in self._items or rules]
            found = {name: item for name in names if (item := self.find(name, rules)) is not None}
            access = [rule for item in found.values() if (rule := getattr(item, "access", None)) is not None]
            combined = AccessRules.combine(access) if access else None
            numbers = [self._numbers[name] for name in found]
            made = self._snapshots[rules] = Snapshot(self.version, numbers, list(found.values()), combined)
            if not rules:
                self._snapshot = made
            elif len(self._snapshots) > MAX_SNAPSHOTS:
                del self._snapshots[next(iter(self._snapshots))]
            return made

    def cache_page(self, key: tuple[Hashable, int], page: CachedPage, version: int) -> None:
        """Cache a page of this version of the catalog; the oldest pages are evicted for it."""
        with self._lock:
            if version != self.version or len(page.body) > self._max_bytes:
                return  # another thread has changed the catalog, or the page alone would fill the cache
            self._evict(key)
            self.pages[key] = page
            self._cached_bytes += len(page.body)
            while len(self.pages) > self._max_pages or self._cached_bytes > self._max_bytes:
                self._evict(next(iter(self.pages)))

    def _evict(self, key: tuple[Hashable, int]) -> None:
        if (old := self.pages.pop(key, None)) is not None:
            self._cached_bytes -= len(old.body)

    def on_change(self, listener: Callable[[], object]) -> None:
        self._listeners.append(listener)

    def off_change(self, listener: Callable[[], object]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _announce(self) -> None:
        for listener in list(self._listeners):  # without the lock: a listener may use the catalog
            try:
                listener()
            except Exception:
                log.exception("the listener %s of changes of %ss failed", qualified_name(listener), self.noun)

    def _drop_pages(self) -> None:
        self.version += 1
        self._snapshot = None
        self._snapshots.clear()
        self._cached_bytes = 0
        self.pages.clear()


def _reserved(name: str) -> str:
    return f"the name {name!r} is taken by the server's tool_search=; choose another one"


def check_name(name: str, where: str) -> str:
    """Raises SetupError unless every client accepts the name."""
    if not NAME.match(name):
        shown = name if len(name) <= 60 else name[:60] + "…"
        fix = "use 1 to 128 of A-Z a-z 0-9 _ - . (pass name=… to choose another one)"
        raise SetupError(f"{where}: the name {shown!r} is not allowed; {fix}")
    return name
