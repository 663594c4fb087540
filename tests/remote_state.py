"""A state that the engines of one test share as if it were remote: each call takes a turn of the loop, or fails."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from dovetail.state.base import StoreUnavailable
from dovetail.state.memory import MemoryState


class RemoteState(MemoryState):
    """`calls` counts what was asked of it; while `error` is set, every call fails with it."""

    shared = True
    remote: tuple[str, ...] = ("get", "add", "claim", "touch", "remaining", "delete", "publish")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: Counter[str] = Counter()
        self.error: Callable[[], Exception] | None = None

    def break_down(self) -> None:
        self.error = StoreUnavailable

    async def travel(self, name: str) -> None:
        self.calls[name] += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in type(self).remote:
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            await self.travel(name)
            return await found(*arguments, **options)

        return call
