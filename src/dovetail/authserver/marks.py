"""What the authorization server has to remember, for all workers: names come in, counts and records go out.

Tokens, codes and addresses are never written: the store knows digests of them.
"""

import asyncio
import hashlib

from dovetail.state.base import StateBackend
from dovetail.state.memory import MemoryState
from dovetail.state.urls import open_state


class Marks:
    """A corner of a state backend that belongs to one issuer."""

    def __init__(self, state: "str | StateBackend | None", issuer: str) -> None:
        self._prefix = f"authserver/{_digest(issuer)[:16]}"
        self._url = state if isinstance(state, str) else None
        self._state: StateBackend | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of a store that was opened here
        if self._url is not None:
            open_state(self._url, self._prefix)  # raises if it can't be one
        elif state is None:
            self._state = MemoryState()
        elif not isinstance(state, str):
            self._state = state

    async def claim(self, kind: str, name: str, seconds: float) -> bool:
        """Whether nobody has claimed it in that time."""
        return await self._store().claim(self._key(kind, name), b"1", seconds)

    async def count(self, kind: str, name: str, seconds: float) -> int:
        """How often this was counted since the first time, this one included."""
        return await self._store().add(self._key(kind, name), 1, seconds)

    async def left(self, kind: str, name: str) -> float:
        """The seconds until it is forgotten."""
        return await self._store().remaining(self._key(kind, name)) or 0.0

    async def holds(self, kind: str, name: str) -> bool:
        return await self._store().get(self._key(kind, name)) is not None

    async def get(self, kind: str, name: str) -> bytes | None:
        entry = await self._store().get(self._key(kind, name))
        return None if entry is None else entry.value

    async def put(self, kind: str, name: str, value: bytes, seconds: float) -> None:
        await self._store().put(self._key(kind, name), value, ttl=seconds)

    async def put_first(self, kind: str, name: str, value: bytes, seconds: float) -> bytes:
        """What whoever came first has put there."""
        key = self._key(kind, name)
        while True:
            if await self._store().claim(key, value, seconds):
                return value
            entry = await self._store().get(key)
            if entry is not None:
                return entry.value

    async def keep(self, kind: str, name: str, seconds: float) -> None:
        await self._store().touch(self._key(kind, name), seconds)

    async def forget(self, kind: str, name: str) -> None:
        await self._store().delete(self._key(kind, name))

    async def close(self) -> None:
        if self._url is not None and self._state is not None:
            state, self._state = self._state, None
            await state.close()

    def _key(self, kind: str, name: str) -> str:
        return f"{self._prefix}/{kind}/{_digest(name)[:40]}"

    def _store(self) -> StateBackend:
        """Each event loop opens its own."""
        if self._url is None:
            assert self._state is not None
            return self._state
        loop = asyncio.get_running_loop()
        if self._state is None or self._loop is not loop:
            self._state, self._loop = open_state(self._url, self._prefix), loop
        return self._state


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
