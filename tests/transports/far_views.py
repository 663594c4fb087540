"""One store for several workers of a test, each with its own view of it: for one of them alone it may be in trouble."""

from collections.abc import Awaitable, Callable
from typing import Any

from dovetail.state.base import StateBackend, StoreTrouble

CALLS = ("get", "put", "touch", "remaining", "delete", "claim", "add", "append", "read", "drop", "publish", "check")
Fate = Callable[[str, str], Awaitable[bool]]  # what is asked, of which key: whether it is answered


class View:
    """What one worker sees of a store that it shares with others, and what is its `fate`."""

    shared = True
    outages = 0

    def __init__(self, store: StateBackend) -> None:
        self._store = store
        self.fate: Fate | None = None
        self.listen = store.listen

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            raise AttributeError(name)

        async def asked(*args: Any, **options: Any) -> Any:
            if self.fate is not None and not await self.fate(name, args[0] if args else ""):
                raise StoreTrouble
            return await getattr(self._store, name)(*args, **options)

        return asked

    async def close(self) -> None: ...


def no_answer(name: str = "", key: str = "") -> Fate:
    """To calls of this name, of keys that begin so."""

    async def fate(asked: str, of: str) -> bool:
        return not (asked.startswith(name) and of.startswith(key))

    return fate
