"""What the authorization server has to remember, for all workers: names come in, counts and records go out.

Unless it was told where, it remembers where the app does: pages hear that from their scope, the verifier from the door.
What is not shared it keeps apart: strangers may register and try passwords, and must not use up what sessions need.
Tokens, codes and addresses are never written: the store knows digests of them.
"""

import asyncio
import hashlib
import logging
from contextvars import ContextVar

from dovetail.state.base import StateBackend
from dovetail.state.memory import MemoryState
from dovetail.state.urls import open_state
from dovetail.transports.asgi import App, Receive, Scope, Send
from dovetail.transports.routes import STATE

_of_app: ContextVar[StateBackend | None] = ContextVar("dovetail.authserver.state", default=None)
log = logging.getLogger("dovetail.authserver")


class Marks:
    """A corner of a state backend that belongs to one issuer."""

    def __init__(self, state: "str | StateBackend | None", issuer: str) -> None:
        self._prefix = f"authserver/{_digest(issuer)[:16]}"
        self._url = state if isinstance(state, str) else None
        self._is_told = state is not None
        self._of_verifier: StateBackend | None = None  # where the app of the verifier remembers
        self._state: StateBackend | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of a store that was opened here
        if self._url is not None:
            open_state(self._url, self._prefix)  # raises if it can't be one
        elif not isinstance(state, str):
            self._state = state or MemoryState()

    def use_state(self, state: StateBackend) -> None:
        """Where the app remembers whose callers are verified here."""
        self._of_verifier = state
        if state.shared and not self.store().shared:
            log.warning("AuthServer: state= is the memory of one process, and others can't share it; leave it out")

    async def leave_state(self, state: StateBackend) -> None:
        """That app has ended; if it was the last, so has what was opened for it."""
        if self._of_verifier is state:
            self._of_verifier = None
            await self.close()

    async def claim(self, kind: str, name: str, seconds: float) -> bool:
        """Whether nobody has claimed it in that time."""
        return await self.store().claim(self._key(kind, name), b"1", seconds)

    async def count(self, kind: str, name: str, seconds: float) -> int:
        """How often this was counted since the first time, this one included."""
        return await self.store().add(self._key(kind, name), 1, seconds)

    async def left(self, kind: str, name: str) -> float:
        """The seconds until it is forgotten."""
        return await self.store().remaining(self._key(kind, name)) or 0.0

    async def holds(self, kind: str, name: str) -> bool:
        return await self.store().get(self._key(kind, name)) is not None

    async def get(self, kind: str, name: str) -> bytes | None:
        entry = await self.store().get(self._key(kind, name))
        return None if entry is None else entry.value

    async def put(self, kind: str, name: str, value: bytes, seconds: float) -> None:
        await self.store().put(self._key(kind, name), value, ttl=seconds)

    async def put_first(self, kind: str, name: str, value: bytes, seconds: float) -> bytes:
        """What whoever came first has put there."""
        key = self._key(kind, name)
        while True:
            if await self.store().claim(key, value, seconds):
                return value
            entry = await self.store().get(key)
            if entry is not None:
                return entry.value

    async def keep(self, kind: str, name: str, seconds: float) -> None:
        await self.store().touch(self._key(kind, name), seconds)

    async def forget(self, kind: str, name: str) -> None:
        await self.store().delete(self._key(kind, name))

    async def close(self) -> None:
        if self._url is not None and self._state is not None and self._loop is asyncio.get_running_loop():
            state, self._state = self._state, None
            await state.close()

    def _key(self, kind: str, name: str) -> str:
        return f"{self._prefix}/{kind}/{_digest(name)[:40]}"

    def store(self) -> StateBackend:
        """What was given; else that of the app, if it is shared. By a URL, each event loop opens its own."""
        if not self._is_told:
            found = _of_app.get() or self._of_verifier
            if found is not None and found.shared:
                return found
        if self._url is None:
            assert self._state is not None
            return self._state
        loop = asyncio.get_running_loop()
        if self._state is None or self._loop is not loop:
            self._state, self._loop = open_state(self._url, self._prefix), loop
        return self._state


def in_state_of_app(page: App) -> App:
    """The same page, which remembers where the app does that it is mounted in."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        before = _of_app.set(scope.get(STATE))
        try:
            await page(scope, receive, send)
        finally:
            _of_app.reset(before)

    return app


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
