"""Token stores: in memory, or in a file that only its owner can read, and that is replaced as a whole."""

import asyncio
import hashlib
import logging
import os
import secrets
import stat
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dovetail.auth.principal import Confidential
from dovetail.errors import NotSignedIn

log = logging.getLogger("dovetail.client")

Scopes = tuple[str, ...]


class RegisteredClient(Confidential, frozen=True, omit_defaults=True):
    """This program as a client of one authorization server."""

    public_fields = ("id",)

    id: str
    secret: str | None = None
    method: str = "none"  # of client authentication at the token endpoint
    redirect_uri: str | None = None  # of the registration
    secret_expires_at: float | None = None  # seconds since 1970

    def is_expired(self, now: float) -> bool:
        return self.secret_expires_at is not None and now >= self.secret_expires_at


class TokenSet(Confidential, frozen=True, kw_only=True, omit_defaults=True):
    """The tokens of one sign-in."""

    public_fields = ("token_type", "issuer")

    access_token: str
    token_type: str  # "Bearer" or "DPoP"
    issuer: str
    client: RegisteredClient
    requested: Scopes = ()
    granted: Scopes = ()
    expires_at: float | None = None  # seconds since 1970, a little early
    refresh_token: str | None = None
    proof_key: dict[str, str] | None = None  # for DPoP

    @property
    def authorization(self) -> str:
        return f"{self.token_type} {self.access_token}"

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


class TokenStore(Protocol):
    """Stores tokens by key. A key names a server and a client, so that each user of an app needs a store."""

    async def load(self, key: str) -> TokenSet | None: ...

    async def save(self, key: str, tokens: TokenSet | None) -> None:
        """Save tokens; None removes them. Other processes may save other keys at the same time."""

    def exclusive(self, key: str) -> AbstractAsyncContextManager[None]:
        """Lock the tokens of this key: a refresh token can be used only once."""


class MemoryTokens:
    """Stores tokens as long as this object lives."""

    def __init__(self) -> None:
        self._tokens: dict[str, TokenSet] = {}

    def __repr__(self) -> str:
        return f"MemoryTokens({len(self._tokens)})"

    def items(self) -> dict[str, TokenSet]:
        return dict(self._tokens)

    async def load(self, key: str) -> TokenSet | None:
        return self._tokens.get(key)

    async def save(self, key: str, tokens: TokenSet | None) -> None:
        if tokens is None:
            self._tokens.pop(key, None)
        else:
            self._tokens[key] = tokens

    @asynccontextmanager
    async def exclusive(self, key: str) -> AsyncIterator[None]:  # noqa: ARG002
        yield  # each key has one user, with a lock of its own


if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class _FileContent(msgspec.Struct, frozen=True):
    tokens: dict[str, TokenSet]
    version: int = 1


class TokenFile:
    """`TokenFile()` is in the user's data folder, `TokenFile("tokens.json")` anywhere else."""

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, lock_seconds: float = 30.0, max_bytes: int = 4 * 1024**2
    ) -> None:
        self._lock_seconds = lock_seconds
        self._max_bytes = max_bytes
        self.path = default_path() if path is None else Path(path).expanduser().absolute()

    def __repr__(self) -> str:
        return f"TokenFile({str(self.path)!r})"

    async def load(self, key: str) -> TokenSet | None:
        return self._read().get(key)

    async def save(self, key: str, tokens: TokenSet | None) -> None:
        async with self._locked(""):
            tokens_by_key = self._read()
            tokens_by_key.pop(key, None)
            if tokens is not None:
                tokens_by_key[key] = tokens
            data = msgspec.json.format(msgspec.json.encode(_FileContent(tokens_by_key)))
            if len(data) > self._max_bytes:
                raise NotSignedIn(f"{self.path}: there is no room for more tokens; remove the file, and sign in again")
            self._write(data)

    def exclusive(self, key: str) -> AbstractAsyncContextManager[None]:
        return self._locked(f".{hashlib.sha256(key.encode()).hexdigest()[:16]}")

    @asynccontextmanager
    async def _locked(self, part: str) -> AsyncIterator[None]:
        path = self.path.with_name(f".{self.path.name}{part}.lock")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600)
        except OSError as failure:
            raise NotSignedIn(f"{path}: the tokens can't be stored there: {failure.strerror}") from None
        try:
            deadline = time.monotonic() + self._lock_seconds
            while not _try_lock(lock):
                if time.monotonic() > deadline:
                    raise NotSignedIn(f"{self.path}: another program has been changing it for {self._lock_seconds:g} s")
                await asyncio.sleep(0.02)
            yield
        finally:
            os.close(lock)  # releases it

    def _read(self) -> dict[str, TokenSet]:
        """The tokens in the file; none if it is broken: the next replace it. Raises NotSignedIn if it is unsafe."""
        try:
            file = os.open(self.path, os.O_RDONLY | _NO_LINK | _NO_BLOCK)
        except FileNotFoundError:
            return {}
        except OSError as failure:
            raise NotSignedIn(f"{self.path}: it can't be opened: {failure.strerror}") from None
        with open(file, "rb") as opened:
            self._check_owner(os.fstat(opened.fileno()))
            data = opened.read(self._max_bytes + 1)
        try:
            if len(data) <= self._max_bytes:
                return dict(msgspec.json.decode(data, type=_FileContent).tokens)
        except (ValueError, RecursionError):
            pass
        log.warning("%s can't be read; you will have to sign in again", self.path)
        return {}

    def _check_owner(self, found: os.stat_result) -> None:
        if os.name != "posix":
            return  # the user's data folder is private
        if not stat.S_ISREG(found.st_mode):
            raise NotSignedIn(f"{self.path}: that is not a file; move it away")
        if found.st_uid != os.geteuid():
            raise NotSignedIn(f"{self.path}: it belongs to another user; remove it, and sign in again")
        if found.st_mode & 0o077:
            raise NotSignedIn(f'{self.path}: others can read the tokens in it; run: chmod 600 "{self.path}"')

    def _write(self, data: bytes) -> None:
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        try:
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600)
            with open(file, "wb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(opened.fileno())
            for _ in range(25):  # Windows refuses while another process reads the file
                with suppress(PermissionError):
                    temporary.replace(self.path)
                    return
                time.sleep(0.02)
            temporary.replace(self.path)
        except OSError as failure:
            with suppress(OSError):
                temporary.unlink()
            raise NotSignedIn(f"{self.path}: the tokens can't be stored: {failure.strerror}") from None


_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
_NO_BLOCK: int = getattr(os, "O_NONBLOCK", 0)  # the path may be a pipe


def default_path() -> Path:
    home = Path.home()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return base / "dovetail" / "tokens.json"


def _try_lock(file: int) -> bool:
    system: Any = sys.platform
    try:
        if system == "win32":
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, name-defined, unused-ignore]
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
