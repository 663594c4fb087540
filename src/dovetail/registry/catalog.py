"""The ordered catalogue of one kind of thing: items in, pages out, looked up by name in constant time."""

import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from dovetail.errors import SetupError

T = TypeVar("T")
MAX_KEPT_PAGES = 256
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some items, and the registration number behind which the next page begins (None at the end)."""

    items: list[T]
    next_after: int | None


class KeptPage(msgspec.Struct, frozen=True):
    """The encoded bytes of a page, and the cursor in it with its time of issue."""

    body: bytes
    next_cursor: str | None
    made: float


class Catalog(Generic[T]):
    """Items in the order of their registration. Every change drops what was kept and tells the listeners.

    An item's registration number is never given again, so a cursor that holds one stays right while items come and go.
    """

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self.ever_used = False
        self.version = 0  # counts the changes
        self.encoded: dict[tuple[Hashable, int], KeptPage] = {}  # (who encoded it, position) -> what was sent last time
        self._items: dict[str, T] = {}
        self.get: Callable[[str], T | None] = self._items.get  # the dict's own: every call looks up its tool
        self._numbers: dict[str, int] = {}
        self._order: tuple[list[int], list[T]] | None = None
        self._last_number = 0
        self._listeners: list[Callable[[], object]] = []
        self._lock = threading.Lock()  # tools in worker threads may register tools

    def __len__(self) -> int:
        return len(self._items)

    def all(self) -> list[T]:
        return list(self._ordered()[1])

    def add(self, name: str, item: T, *, where: str = "") -> None:
        """Raises SetupError for a name that is taken; `where` says who wants it."""
        with self._lock:
            if name in self._items:
                taken = f"there is already a {self.noun} {name!r}; remove it first or choose another name"
                raise SetupError(f"{where}: {taken}" if where else taken)
            self._last_number += 1
            self._items[name] = item
            self._numbers[name] = self._last_number
            self.ever_used = True
            self._forget_pages()
        self._announce()

    def replace(self, name: str, item: T) -> None:
        """Put another item in the place of one that offers the same; its number stays, and nobody is told."""
        with self._lock:
            if name not in self._items:
                return
            self._items[name] = item
            self._forget_pages()

    def remove(self, name: str) -> bool:
        with self._lock:
            if name not in self._items:
                return False
            del self._items[name], self._numbers[name]
            self._forget_pages()
        self._announce()
        return True

    def clear(self) -> None:
        with self._lock:
            if not self._items:
                return
            self._items.clear()
            self._numbers.clear()
            self._forget_pages()
        self._announce()

    def page(self, after: int, size: int) -> Page[T]:
        """Up to `size` items registered after number `after`."""
        numbers, items = self._ordered()
        start = bisect_right(numbers, after)
        end = start + size
        return Page(items[start:end], numbers[end - 1] if end < len(items) else None)

    def _ordered(self) -> tuple[list[int], list[T]]:
        with self._lock:
            if self._order is None:
                self._order = (list(self._numbers.values()), list(self._items.values()))
            return self._order

    def keep(self, place: tuple[Hashable, int], page: KeptPage, version: int) -> None:
        """Remember a page that was made when the catalogue had this version."""
        with self._lock:
            if version != self.version:
                return  # it changed meanwhile, in another thread
            if len(self.encoded) >= MAX_KEPT_PAGES:
                self.encoded.clear()
            self.encoded[place] = page

    def on_change(self, listener: Callable[[], object]) -> None:
        self._listeners.append(listener)

    def off_change(self, listener: Callable[[], object]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _announce(self) -> None:
        for listener in list(self._listeners):  # without the lock: a listener may well look at the catalogue
            listener()

    def _forget_pages(self) -> None:
        self.version += 1
        self._order = None
        self.encoded.clear()


def check_name(name: str, where: str) -> str:
    """Raises SetupError unless the name is one that every client accepts."""
    if not NAME.match(name):
        shown = name if len(name) <= 60 else name[:60] + "…"
        raise SetupError(
            f"{where}: the name {shown!r} is not allowed; use 1 to 128 of A-Z a-z 0-9 _ - . "
            "(pass name=… to choose another one)"
        )
    return name
