"""The ordered catalogue of one kind of thing: items in, pages out, looked up by name in constant time.

An `Snapshot` is all of it at one moment, with what decides who sees what of it.
"""

import logging
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from dovetail.errors import SetupError
from dovetail.registry.functions import qualified_name
from dovetail.registry.options import AccessRules

T = TypeVar("T")
log = logging.getLogger("dovetail")
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some items, and the registration number behind which the next page begins (None at the end)."""

    items: list[T]
    next_after: int | None


class CachedPage(msgspec.Struct, frozen=True):
    """The encoded bytes of a page, and the cursor in it with its time of issue."""

    body: bytes
    next_cursor: str | None
    issued_at: float
    items: Sequence[Any] = ()  # what is in it, if that is not what everybody sees


class Snapshot(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """All items of a catalogue as they were at one moment, by their numbers."""

    version: int
    numbers: list[int]
    items: list[T]
    rules: AccessRules | None  # None: everybody may use everything

    def page(self, after: int, size: int) -> Page[T]:
        """Up to `size` items registered after number `after`."""
        start = bisect_right(self.numbers, after)
        end = start + size
        return Page(self.items[start:end], self.numbers[end - 1] if end < len(self.items) else None)

    def items_after(self, after: int) -> Iterator[tuple[int, T]]:
        """All items registered after number `after`, each with its own."""
        start = bisect_right(self.numbers, after)
        return ((self.numbers[place], self.items[place]) for place in range(start, len(self.items)))


class Catalog(Generic[T]):
    """Items in the order of their registration. Every change drops what was kept and tells the listeners.

    An item's registration number is never given again, so a cursor that holds one stays right while items come and go.
    """

    def __init__(self, noun: str, *, max_pages: int = 256, max_bytes: int = 64 * 1024 * 1024) -> None:
        self.noun = noun
        self._max_pages, self._max_bytes = max_pages, max_bytes  # of what is kept
        self.ever_used = False
        self.version = 0  # counts the changes
        self.pages: dict[tuple[Hashable, int], CachedPage] = {}  # (who encoded it, position) -> what was sent last time
        self._items: dict[str, T] = {}
        self.get: Callable[[str], T | None] = self._items.get  # the dict's own: every call looks up its tool
        self._numbers: dict[str, int] = {}
        self._snapshot: Snapshot[T] | None = None
        self._cached_bytes = 0
        self._last_number = 0
        self._listeners: list[Callable[[], object]] = []
        self._lock = threading.Lock()  # tools in worker threads may register tools

    def __len__(self) -> int:
        return len(self._items)

    def all(self) -> list[T]:
        return list(self.snapshot.items)

    def names(self) -> list[str]:
        return list(self._items)

    def add(self, name: str, item: T, *, where: str = "") -> None:
        """Raises SetupError for a name that is taken; `where` says who wants it."""
        if not self.swap((), {name: item}):
            taken = f"there is already a {self.noun} {name!r}; remove it first or choose another name"
            raise SetupError(f"{where}: {taken}" if where else taken)
        self._announce()

    def replace(self, name: str, item: T) -> None:
        """Put another item in the place of one that offers the same; its number stays, and nobody is told."""
        with self._lock:
            if name not in self._items:
                return
            self._items[name] = item
            self._forget_pages()

    def remove(self, name: str) -> bool:
        if is_there := self.swap((name,), {}):
            self._announce()
        return is_there

    def clear(self) -> None:
        if self.swap(tuple(self._items), {}):
            self._announce()

    def swap(self, gone: Iterable[str], new: Mapping[str, T]) -> bool:
        """Take some away and add others whose names are free. Tells whether anything changed, but not the listeners."""
        with self._lock:
            left = [name for name in gone if name in self._items]
            for name in left:
                del self._items[name], self._numbers[name]
            added = {name: item for name, item in new.items() if name not in self._items}
            self._items.update(added)
            self._numbers.update((name, number) for number, name in enumerate(added, self._last_number + 1))
            self._last_number += len(added)
            if left or added:
                self.ever_used = True
                self._forget_pages()
            return bool(left or added)

    def page(self, after: int, size: int) -> Page[T]:
        """Up to `size` items registered after number `after`."""
        return self.snapshot.page(after, size)

    @property
    def snapshot(self) -> Snapshot[T]:
        """The newest; made when somebody looks."""
        return self._snapshot or self._make_snapshot()

    def _make_snapshot(self) -> Snapshot[T]:
        with self._lock:
            if self._snapshot is None:
                items = list(self._items.values())
                rules = [rule for item in items if (rule := getattr(item, "access", None)) is not None]
                together = AccessRules.combine(rules) if rules else None
                self._snapshot = Snapshot(self.version, list(self._numbers.values()), items, together)
            return self._snapshot

    def cache_page(self, place: tuple[Hashable, int], page: CachedPage, version: int) -> None:
        """Remember a page that was made when the catalogue had this version; the oldest make room for it."""
        with self._lock:
            if version != self.version or len(page.body) > self._max_bytes:
                return  # it changed meanwhile, in another thread, or nothing else would have room
            self._drop(place)
            self.pages[place] = page
            self._cached_bytes += len(page.body)
            while len(self.pages) > self._max_pages or self._cached_bytes > self._max_bytes:
                self._drop(next(iter(self.pages)))

    def _drop(self, place: tuple[Hashable, int]) -> None:
        old = self.pages.pop(place, None)
        self._cached_bytes -= 0 if old is None else len(old.body)

    def on_change(self, listener: Callable[[], object]) -> None:
        self._listeners.append(listener)

    def off_change(self, listener: Callable[[], object]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _announce(self) -> None:
        for listener in list(self._listeners):  # without the lock: a listener may well look at the catalogue
            try:
                listener()
            except Exception:
                log.exception("the listener %s of changes of %ss failed", qualified_name(listener), self.noun)

    def _forget_pages(self) -> None:
        self.version += 1
        self._snapshot = None
        self._cached_bytes = 0
        self.pages.clear()


def check_name(name: str, where: str) -> str:
    """Raises SetupError unless the name is one that every client accepts."""
    if not NAME.match(name):
        shown = name if len(name) <= 60 else name[:60] + "…"
        raise SetupError(
            f"{where}: the name {shown!r} is not allowed; use 1 to 128 of A-Z a-z 0-9 _ - . "
            "(pass name=… to choose another one)"
        )
    return name
