"""Storage: records, counters and keys in a state backend, and sealed records.

Tokens, codes and addresses are stored as digests only.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from dovetail.auth.jose import SigningKey
from dovetail.auth.principal import Confidential
from dovetail.authserver.oauth_http import OAuthError, digest
from dovetail.engine.options import Secrets
from dovetail.engine.request_state import BadSeal, Sealer
from dovetail.errors import ProtocolError
from dovetail.state.base import MAX_TTL, Conflict, Entry, StateBackend, open_state
from dovetail.state.memory import MemoryState

# Any caller can create records of the first family, which has one share of a store. Records of grants and revocations
# are of the second family: they must fit even if that share is full.
UNTRUSTED, GRANTED = "authserver", "granted"
GRANTED_KINDS = frozenset({"grant", "keys", "upstream", "refreshing"})
KEY_POLL_INTERVAL = 60.0  # seconds

log = logging.getLogger("dovetail.authserver")


class BackendSelector:
    """Selects the state backend: the given one; else that of the app, if workers share it; else memory."""

    def __init__(self, given: "str | StateBackend | None", issuer: str) -> None:
        self._url = given if isinstance(given, str) else None
        self._backend = MemoryState() if given is None or isinstance(given, str) else given
        self._is_given = given is not None
        self._name = f"{UNTRUSTED}/{digest(issuer)[:16]}"
        self._opened: dict[asyncio.AbstractEventLoop, StateBackend] = {}  # by URL: each event loop has its own
        if self._url is not None:
            open_state(self._url, self._name)  # raises SetupError for a URL that can't be one

    def select(self, app_state: StateBackend | None) -> StateBackend:
        if self._url is not None:
            loop = asyncio.get_running_loop()
            if loop not in self._opened:
                self._opened[loop] = open_state(self._url, self._name)
            return self._opened[loop]
        if not self._is_given and app_state is not None and app_state.shared:
            return app_state
        return self._backend

    async def close(self) -> None:
        """Close the backend that was opened by URL on this event loop; the next request opens it again."""
        opened = self._opened.pop(asyncio.get_running_loop(), None)
        if opened is not None:
            await opened.close()


class AuthStore:
    """The records of one issuer in a state backend, each of a kind and with a name."""

    def __init__(self, backend: StateBackend, issuer: str) -> None:
        self._backend = backend
        self._prefix = digest(issuer)[:16]

    async def claim(self, kind: str, name: str, seconds: float, value: bytes = b"1") -> bool:
        """Create a record; False if it exists."""
        return await self._backend.claim(self._key(kind, name), value, seconds)

    async def count(self, kind: str, name: str, seconds: float) -> int:
        """Increment a counter; returns the new value."""
        return await self._backend.add(self._key(kind, name), 1, seconds)

    async def remaining(self, kind: str, name: str) -> float:
        """The remaining ttl of a record in seconds."""
        return await self._backend.remaining(self._key(kind, name)) or 0.0

    async def get(self, kind: str, name: str) -> bytes | None:
        return (await self.entry(kind, name)).value or None

    async def entry(self, kind: str, name: str) -> Entry:
        """A record with the version that `replace` needs; empty, with version 0, if there is none."""
        return await self._backend.get(self._key(kind, name)) or Entry(b"", 0)

    async def put(self, kind: str, name: str, value: bytes, seconds: float) -> None:
        await self._backend.put(self._key(kind, name), value, ttl=seconds)

    async def replace(self, kind: str, name: str, value: bytes, seconds: float, version: int) -> bool:
        """Replace a record; False if another request has written since `version`, which is 0 for a new record."""
        try:
            await self._backend.put(self._key(kind, name), value, ttl=seconds, if_version=version)
        except Conflict:
            return False
        return True

    async def touch(self, kind: str, name: str, seconds: float) -> None:
        await self._backend.touch(self._key(kind, name), seconds)

    async def delete(self, kind: str, name: str) -> None:
        await self._backend.delete(self._key(kind, name))

    def _key(self, kind: str, name: str) -> str:
        family = GRANTED if kind in GRANTED_KINDS else UNTRUSTED
        return f"{family}/{self._prefix}/{kind}/{digest(name)[:40]}"


class AttemptLimit(NamedTuple):
    """A limit of attempts in a period: of one address (or name), and of all together."""

    kind: str
    words: str  # for attempts, in error messages
    seconds: float
    each: int
    for_all: int

    async def take(self, store: AuthStore, name: str) -> None:
        """Count an attempt. Raises OAuthError over a limit; over that of all, no counter of a new address is stored."""
        if int(await store.get(self.kind, "") or 0) >= self.for_all:
            raise OAuthError.too_many(self.words, await store.remaining(self.kind, ""))
        if await store.count(self.kind, name, self.seconds) > self.each:
            raise OAuthError.too_many(self.words, await store.remaining(self.kind, name))
        await store.count(self.kind, "", self.seconds)


class Sealed(Confidential, frozen=True, kw_only=True):
    """A record that clients and browsers hold as sealed text. Each kind has a tag, so none can be used as another."""

    until: float  # seconds since 1970


S = TypeVar("S", bound=Sealed)


class _Keys(Confidential, frozen=True):
    jwk: dict[str, str]
    seal: bytes


class Keyring:
    """One key that signs access tokens and one that seals records, the same for all workers.

    With a secret (DOVETAIL_SECRET) they are sealed in the store. Without one, any reader of the store can sign tokens.
    """

    def __init__(self, store: AuthStore, secrets: Secrets, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._outer = Sealer(secrets) if secrets else None
        self.now = clock
        self._read_at = float("-inf")
        self._stored: bytes | None = None  # the keys as they are in the store
        self._loaded: tuple[SigningKey, Sealer] | None = None

    async def signing(self) -> SigningKey:
        return (await self._load())[0]

    async def seal(self, record: Sealed) -> str:
        return (await self._load())[1].seal(msgspec.msgpack.encode(record))

    async def open(self, text: str | None, kind: type[S]) -> S | None:
        """Open a sealed record; None for a text that is no such record, or has expired."""
        if not text or not text.isascii():
            return None
        _, sealer = await self._load()
        try:
            record = msgspec.msgpack.decode(sealer.open(text), type=kind)
        except (BadSeal, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return record if self.now() < record.until else None

    async def _load(self) -> tuple[SigningKey, Sealer]:
        """Load the keys from the store, once a minute. If the store has lost them, this worker writes its own."""
        now = self.now()
        if self._loaded is not None and abs(now - self._read_at) < KEY_POLL_INTERVAL:
            return self._loaded
        found = await self._store.get("keys", "")
        while found is None:
            keys = self._stored or self._generate()
            found = keys if await self._store.claim("keys", "", MAX_TTL, keys) else await self._store.get("keys", "")
        if self._loaded is None or found != self._stored:
            self._loaded = self._decode(found)
            self._stored = found
        self._read_at = now
        return self._loaded

    def _generate(self) -> bytes:
        raw = msgspec.msgpack.encode(_Keys(SigningKey.new().jwk, os.urandom(32)))
        return raw if self._outer is None else self._outer.seal(raw).encode()

    def _decode(self, found: bytes) -> tuple[SigningKey, Sealer]:
        try:
            raw = found if self._outer is None else self._outer.open(found.decode())
            keys = msgspec.msgpack.decode(raw, type=_Keys)
            return SigningKey(keys.jwk), Sealer([keys.seal])
        except (BadSeal, ValueError):
            log.error("the state store holds keys that can't be read; is DOVETAIL_SECRET the same on all workers?")
            raise ProtocolError("The authorization server can't use its keys now", http_status=503) from None
