"""What the authorization server has to remember, for all workers: names come in, counts and records go out.

Unless it was told where, it remembers where the app does: pages hear that from their scope, verifiers from their app.
What is not shared it keeps apart: strangers may register and try passwords, and must not use up what sessions need.
Tokens, codes and addresses are never written: the store knows digests of them.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from dovetail.state.base import Conflict, Entry, StateBackend
from dovetail.state.memory import MemoryState
from dovetail.state.urls import open_state
from dovetail.transports.asgi import App, Receive, Scope, Send
from dovetail.transports.routes import STATE

_of_app: ContextVar[StateBackend | None] = ContextVar("dovetail.authserver.state", default=None)
log = logging.getLogger("dovetail.authserver")

# What strangers can make many of has only a share of the store (`state.base.CALLER_FAMILIES`). The rest is made by whom
# a user or the operator has let in: it must find room whatever strangers do, above all a revocation.
STRANGERS, FIRM = "authserver", "granted"
OF_KNOWN = frozenset({"grant", "keys"})

Loop = asyncio.AbstractEventLoop


class Marks:
    """A corner of a state backend that belongs to one issuer."""

    def __init__(self, state: "str | StateBackend | None", issuer: str) -> None:
        self._prefix = _digest(issuer)[:16]
        self._url = state if isinstance(state, str) else None
        self._is_told = state is not None
        self._own = MemoryState() if state is None or isinstance(state, str) else state
        self._opened: dict[Loop, StateBackend] = {}  # by the URL: each event loop has its own
        self._apps: list[tuple[Loop, StateBackend]] = []  # whose callers are verified here, and where they remember
        if self._url is not None:
            open_state(self._url, f"{STRANGERS}/{self._prefix}")  # raises if it can't be one

    # ── where ──

    def enter(self, state: StateBackend) -> None:
        """An app begins whose callers are verified here; it remembers in `state`."""
        self._apps.append((asyncio.get_running_loop(), state))
        if state.shared and not self.store().shared:
            log.warning("AuthServer: state= is the memory of one process, and others can't share it; leave it out")

    async def leave(self, state: StateBackend) -> None:
        """That app has ended; if it was the last on this loop, so has what was opened for them."""
        loop = asyncio.get_running_loop()
        if (loop, state) in self._apps:
            self._apps.remove((loop, state))
            if all(each is not loop for each, _ in self._apps):
                await self.close()

    async def close(self) -> None:
        state = self._opened.pop(asyncio.get_running_loop(), None)
        if state is not None:
            await state.close()

    def store(self) -> StateBackend:
        """What was given; else that of the app, or of another one here, if it is shared."""
        if self._url is not None:
            return self._opened_here(self._url)
        if self._is_told:
            return self._own
        here = _of_app.get()
        if here is not None and here.shared:
            return here
        loop = asyncio.get_running_loop()
        return next((state for on, state in self._apps if state.shared and on is loop), self._own)

    def _opened_here(self, url: str) -> StateBackend:
        loop = asyncio.get_running_loop()
        found = self._opened.get(loop)
        if found is None:
            self._opened = {each: state for each, state in self._opened.items() if not each.is_closed()}
            found = self._opened[loop] = open_state(url, f"{STRANGERS}/{self._prefix}")
        return found

    # ── what ──

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
        return await self.entry(kind, name) is not None

    async def get(self, kind: str, name: str) -> bytes | None:
        entry = await self.entry(kind, name)
        return None if entry is None else entry.value

    async def entry(self, kind: str, name: str) -> Entry | None:
        """With the version that `replace` needs."""
        return await self.store().get(self._key(kind, name))

    async def put(self, kind: str, name: str, value: bytes, seconds: float) -> None:
        await self.store().put(self._key(kind, name), value, ttl=seconds)

    async def replace(self, kind: str, name: str, value: bytes, seconds: float, version: int) -> bool:
        """False if somebody else has written since `version`, which is 0 where nothing was."""
        try:
            await self.store().put(self._key(kind, name), value, ttl=seconds, if_version=version)
        except Conflict:
            return False
        return True

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

    def _key(self, kind: str, name: str) -> str:
        family = FIRM if kind in OF_KNOWN else STRANGERS
        return f"{family}/{self._prefix}/{kind}/{_digest(name)[:40]}"


@contextmanager
def remembering_in(state: StateBackend | None) -> Iterator[None]:
    """What happens inside belongs to the app that remembers there."""
    before = _of_app.set(state)
    try:
        yield
    finally:
        _of_app.reset(before)


def in_state_of_app(page: App) -> App:
    """The same page, which remembers where the app does that it is mounted in."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with remembering_in(scope.get(STATE)):
            await page(scope, receive, send)

    return app


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
