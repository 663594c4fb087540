"""A state that the engines of one test share as if it were far away: each call takes a turn of the loop, or fails."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from dovetail.state.base import StoreTrouble
from dovetail.state.memory import MemoryState


class FarState(MemoryState):
    """`calls` counts what was asked of it; while `trouble` is set, every call fails with it."""

    shared = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: Counter[str] = Counter()
        self.trouble: Callable[[], Exception] | None = None

    async def _travel(self, name: str) -> None:
        self.calls[name] += 1
        await asyncio.sleep(0)
        if self.trouble is not None:
            raise self.trouble()

    def break_down(self) -> None:
        self.trouble = StoreTrouble

    async def get(self, key: str) -> Any:
        await self._travel("get")
        return await super().get(key)

    async def add(self, key: str, n: int, ttl: float) -> int:
        await self._travel("add")
        return await super().add(key, n, ttl)

    async def claim(self, key: str, value: bytes, ttl: float) -> bool:
        await self._travel("claim")
        return await super().claim(key, value, ttl)

    async def touch(self, key: str, ttl: float) -> bool:
        await self._travel("touch")
        return await super().touch(key, ttl)

    async def remaining(self, key: str) -> float | None:
        await self._travel("remaining")
        return await super().remaining(key)

    async def delete(self, key: str) -> bool:
        await self._travel("delete")
        return await super().delete(key)

    async def publish(self, topic: str) -> None:
        await self._travel("publish")
        await super().publish(topic)
