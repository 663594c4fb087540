"""Users of a small deployment: names, hashes of passwords, and sign-ins with rate limits.

A file of JSON, `{"ann": "scrypt:…"}`, or a mapping; `python -m dovetail.authserver hash` makes a hash. A file that has
changed is read again; if it is invalid then, the users stay as they were.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dovetail.auth.fetch import BoundedThreads, QueueFull
from dovetail.authserver.auth_store import AttemptLimit, AuthStore
from dovetail.authserver.oauth_http import OAuthError
from dovetail.errors import SetupError
from dovetail.protocol.pagination import decode_base64url, encode_base64url

COST, BLOCK, PARALLEL = 2**15, 8, 3  # of scrypt, as OWASP recommends for 32 MiB
SALT = 16  # bytes
MAX_PASSWORD = 1000  # characters
MAX_NAME = 200  # characters
REGISTERED = "dcr-"  # prefix of the ids of clients that have registered themselves
HASH = "python -m dovetail.authserver hash"
HOW_TO_BEGIN = f'Write {{}} into it for no users, or {{"ann": "scrypt:..."}}, with what this prints: {HASH}'
SIGN_IN_LIMIT = AttemptLimit("tries", "tries to sign in", 900.0, each=30, for_all=3000)
NAME_SIGN_IN_LIMIT = AttemptLimit("tries of a name", "tries to sign in", 900.0, each=200, for_all=3000)

_HASH = re.compile(r"scrypt:([0-9]{1,8}):([0-9]{1,2}):([0-9]{1,2}):([A-Za-z0-9_-]{16,100}):([A-Za-z0-9_-]{43})")

log = logging.getLogger("dovetail.authserver")


class _Hash(NamedTuple):
    cost: int
    block: int
    parallel: int
    salt: bytes
    digest: bytes


def hash_password(password: str, *, cost: int = COST) -> str:
    """The text for a file of users."""
    if not 0 < len(password) <= MAX_PASSWORD:
        raise SetupError(f"A password has 1 to {MAX_PASSWORD} characters")
    salt = os.urandom(SALT)
    digest = _scrypt(password, _Hash(cost, BLOCK, PARALLEL, salt, b""))
    return f"scrypt:{cost}:{BLOCK}:{PARALLEL}:{encode_base64url(salt)}:{encode_base64url(digest)}"


class Passwords:
    """The users of `AuthServer(sign_in=...)`: {"ann": hash_password("...")}, or a file with that as JSON."""

    def __init__(self, users: "str | os.PathLike[str] | Mapping[str, str]") -> None:
        self._reserved: frozenset[str] = frozenset()
        self._path = Path(users) if isinstance(users, str | os.PathLike) else None
        # A check takes a core and much memory: two at a time, and 20 with the queue.
        self._threads = BoundedThreads(2, 20, "dovetail-passwords")
        self._content = b"" if self._path is None else _read_file(self._path)
        self._hashes = self._check(users) if self._path is None else self._parse(self._path, self._content)

    def reserve(self, ids: Iterable[str]) -> None:
        """Refuse these ids of clients as names of users, also when the file is read again."""
        self._reserved |= frozenset(ids)
        self._hashes = self._check(self._hashes)

    async def sign_in(self, store: AuthStore, name: str, password: str, address: str) -> bool:
        """Check the password of a user. Raises OAuthError after too many tries; each is counted before the check."""
        try:
            await SIGN_IN_LIMIT.take(store, address)
            await NAME_SIGN_IN_LIMIT.take(store, name)
        except OAuthError:
            log.warning("too many tries to sign in from %s", address)  # not the name, which may be a password
            raise
        accepted = await self.accepts(name, password)
        if not accepted:
            log.info("a sign-in from %s failed", address)
        return accepted

    async def accepts(self, name: str, password: str) -> bool:
        """Whether the password is right; an unknown name takes as long."""
        if len(password) > MAX_PASSWORD:
            return False
        text = (await self._current()).get(name)
        expected = self._decoy() if text is None else _parse_hash(text)
        try:
            digest = await self._threads.run(_scrypt, password, expected)
        except QueueFull:
            raise OAuthError.too_many("people signing in at this moment", 5) from None
        return hmac.compare_digest(digest, expected.digest) and text is not None

    async def fingerprint(self, name: str) -> str | None:
        """A text that changes with the password; None if there is no such user."""
        text = (await self._current()).get(name)
        return None if text is None else hashlib.sha256(text.encode()).hexdigest()[:32]

    def _decoy(self) -> _Hash:
        """A hash that costs as much as that of a user, for no password."""
        text = next(iter(self._hashes.values()), None)
        usual = _Hash(COST, BLOCK, PARALLEL, b"", b"") if text is None else _parse_hash(text)
        return usual._replace(salt=os.urandom(SALT), digest=os.urandom(32))

    async def _current(self) -> dict[str, str]:
        """The users that the file has now."""
        if self._path is not None:
            content = await asyncio.to_thread(_read_file, self._path)  # a disk may be slow
            if content != self._content:
                self._content = content
                try:
                    self._hashes = self._parse(self._path, content)
                except SetupError as failure:
                    log.error("%s is no file of users now, so they stay as they were: %s", self._path, failure)
        return self._hashes

    def _parse(self, path: Path, content: bytes | str) -> dict[str, str]:
        where = f"Passwords: {str(path)!r}"
        if isinstance(content, str):
            raise SetupError(f"{where} can't be read: {content}. {HOW_TO_BEGIN}")
        if not content.strip():
            raise SetupError(f"{where} is empty. {HOW_TO_BEGIN}")
        try:
            return self._check(msgspec.json.decode(content))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise SetupError(f'{where} must hold JSON: {{"ann": "scrypt:..."}}') from None

    def _check(self, given: Any) -> dict[str, str]:
        if not isinstance(given, Mapping):
            raise SetupError('Passwords: users must be {"ann": "scrypt:..."}, or a file with that')
        for name, text in given.items():
            if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
                raise SetupError(f"Passwords: a name has 1 to {MAX_NAME} printable characters")
            if name in self._reserved or name.startswith(("https://", "http://", REGISTERED)):
                raise SetupError(f"Passwords: {name!r} is the id of a client; no user may bear it")
            try:
                _parse_hash(text)
            except (TypeError, ValueError):
                raise SetupError(f"Passwords: {name!r} has no hash of a password; make one: {HASH}") from None
        return dict(given)


def _read_file(path: Path) -> bytes | str:
    """The content, or the reason why it can't be read."""
    try:
        return path.read_bytes()
    except OSError as failure:
        return failure.strerror or type(failure).__name__


def _parse_hash(text: str) -> _Hash:
    """The parts of a hash. Raises ValueError."""
    found = _HASH.fullmatch(text)
    if found is None:
        raise ValueError("no hash of a password")
    cost, block, parallel = map(int, found.groups()[:3])
    if cost.bit_count() != 1 or not 2 <= cost <= 2**20 or not 1 <= block <= 16 or not 1 <= parallel <= 16:
        raise ValueError("scrypt takes no such cost")
    return _Hash(cost, block, parallel, decode_base64url(found[4]), decode_base64url(found[5]))


def _scrypt(password: str, like: _Hash) -> bytes:
    """The scrypt digest with the salt and the costs of another hash."""
    memory = 128 * like.block * (like.cost + like.parallel + 2) + 1024 * 1024
    secret = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(secret, salt=like.salt, n=like.cost, r=like.block, p=like.parallel, maxmem=memory, dklen=32)
