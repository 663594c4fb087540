"""The users of a small deployment: a name and a password come in, and whether they belong together.

A file of JSON, `{"ann": "scrypt:…"}`, or a mapping. `python -m dovetail.authserver hash` makes the text for a
password. A file is read again when it was changed; one that is broken then changes nothing.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dovetail.authserver.client_record import REGISTERED
from dovetail.authserver.turns import Turns
from dovetail.errors import SetupError
from dovetail.protocol.pagination import decode_base64url, encode_base64url

COST = 2**15  # with 8 and 3: what OWASP recommends for 32 MiB
BLOCK = 8
PARALLEL = 3
SALT = 16
MAX_PASSWORD = 1000  # characters
MAX_NAME = 200
MAX_FILE = 4 * 1024 * 1024
HASH = "python -m dovetail.authserver hash"
BEGIN = f'Write {{}} into it, which is nobody, or {{"ann": "scrypt:..."}}, with what this prints: {HASH}'

_HASH = re.compile(r"scrypt:([0-9]{1,8}):([0-9]{1,2}):([0-9]{1,2}):([A-Za-z0-9_-]{16,100}):([A-Za-z0-9_-]{43})")

log = logging.getLogger("dovetail.authserver")


class _Stamp(NamedTuple):
    """Two files of one length may be written within one tick of the clock; then they have different inodes."""

    changed: int
    written: int
    size: int
    inode: int


class _Read(NamedTuple):
    """What a file was when it was looked at, and who is known since. One record: threads put it there whole."""

    stamp: "_Stamp | None"  # None: there was no file
    users: dict[str, str]


class _Hash(NamedTuple):
    cost: int
    block: int
    parallel: int
    salt: bytes
    digest: bytes


def hash_password(password: str, *, cost: int = COST) -> str:
    """The text that stands for a password in a file of users."""
    if not 0 < len(password) <= MAX_PASSWORD:
        raise SetupError(f"A password has 1 to {MAX_PASSWORD} characters")
    salt = os.urandom(SALT)
    digest = _scrypt(password, _Hash(cost, BLOCK, PARALLEL, salt, b""))
    return f"scrypt:{cost}:{BLOCK}:{PARALLEL}:{encode_base64url(salt)}:{encode_base64url(digest)}"


class Users:
    """Names, and what stands for their passwords. `reserved`: ids of programs, which no user may bear."""

    def __init__(self, given: "str | os.PathLike[str] | Mapping[str, str]", reserved: Collection[str] = ()) -> None:
        self._reserved = reserved
        self._path = None if isinstance(given, Mapping) else Path(given)
        self._turns = Turns()
        if self._path is None:
            self._read = _Read(None, self._checked(given))
        else:
            self._read = self._look(self._path, _stamp(self._path))

    def place(self, *, is_known_browser: bool = False) -> AbstractContextManager[asyncio.Semaphore]:
        """In the line of those whose passwords are checked; see `Turns.place`."""
        return self._turns.place(is_known=is_known_browser)

    async def accepts(self, name: str, password: str, turn: asyncio.Semaphore | None = None) -> bool:
        """It takes as long for a name that nobody has. `turn`: the one to wait for, of whoever has a place already."""
        if turn is None:
            with self.place() as turn:
                return await self.accepts(name, password, turn)
        if len(password) > MAX_PASSWORD:
            return False
        text = (await self._known()).get(name)
        known = self._like_any() if text is None else _parsed(text)
        digest = await _in_turn(turn, password, known)
        return hmac.compare_digest(digest, known.digest) and text is not None

    async def mark(self, name: str) -> str | None:
        """Changes with the password; None if there is no such user."""
        text = (await self._known()).get(name)
        return None if text is None else hashlib.sha256(text.encode()).hexdigest()[:32]

    def _like_any(self) -> _Hash:
        """What costs as much as the password of a user, and fits none."""
        text = next(iter(self._read.users.values()), None)
        usual = _Hash(COST, BLOCK, PARALLEL, b"", b"") if text is None else _parsed(text)
        return usual._replace(salt=os.urandom(SALT), digest=os.urandom(32))

    async def _known(self) -> dict[str, str]:
        """As the file says now. It is not looked at on the loop: a disk may be slow."""
        if self._path is not None:
            await asyncio.to_thread(self._refresh, self._path)
        return self._read.users

    def _refresh(self, path: Path) -> None:
        """Read the file again if it was changed. If that fails, everybody stays as they were, and it is told once."""
        stamp = _stamp(path)
        if stamp == self._read.stamp:
            return
        try:
            self._read = self._look(path, stamp)
        except SetupError as failure:
            log.error("%s is no file of users now, so they stay as they were: %s", path, failure)
            self._read = _Read(stamp, self._read.users)

    def _look(self, path: Path, stamp: _Stamp | None) -> _Read:
        """`stamp` is of before, so that a change meanwhile is found the next time."""
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_FILE + 1)
        except FileNotFoundError:
            raise SetupError(f"AuthServer: users={str(path)!r} is not there. {BEGIN}") from None
        except OSError as failure:
            raise SetupError(f"AuthServer: users={str(path)!r} can't be read: {failure.strerror}") from None
        if len(raw) > MAX_FILE:
            raise SetupError(f"AuthServer: users={str(path)!r} has more than {MAX_FILE // 2**20} MiB")
        if not raw.strip():
            raise SetupError(f"AuthServer: users={str(path)!r} is empty. {BEGIN}")
        try:
            given = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise SetupError(f'AuthServer: users={str(path)!r} must hold JSON: {{"ann": "scrypt:..."}}') from None
        return _Read(stamp, self._checked(given))

    def _checked(self, given: Any) -> dict[str, str]:
        if not isinstance(given, Mapping):
            raise SetupError('AuthServer: users must be {"ann": "scrypt:..."}, or a file with that')
        for name, text in given.items():
            if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
                raise SetupError(f"AuthServer: users: a name has 1 to {MAX_NAME} printable characters")
            if name in self._reserved or name.startswith(("https://", "http://", REGISTERED)):
                raise SetupError(f"AuthServer: users: {name!r} is the name of a program; no user may bear it")
            if not isinstance(text, str) or not _is_hash(text):
                raise SetupError(f"AuthServer: users: {name!r} has no hash of a password; make one: {HASH}")
        return dict(given)


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return _Stamp(found.st_ctime_ns, found.st_mtime_ns, found.st_size, found.st_ino)


def _is_hash(text: str) -> bool:
    try:
        cost, block, parallel, *_ = _parsed(text)
    except ValueError:
        return False
    return cost.bit_count() == 1 and 2 <= cost <= 2**20 and 1 <= block <= 16 and 1 <= parallel <= 16


def _parsed(text: str) -> _Hash:
    """Raises ValueError for what is none."""
    found = _HASH.fullmatch(text)
    if found is None:
        raise ValueError("no hash of a password")
    cost, block, parallel, salt, digest = found.groups()
    return _Hash(int(cost), int(block), int(parallel), decode_base64url(salt), decode_base64url(digest))


async def _in_turn(turn: asyncio.Semaphore, password: str, how: _Hash) -> bytes:
    """A thread can't be stopped: also if nobody waits for it any more, it is the next one's turn only when it ends."""
    await turn.acquire()
    try:
        hashing = asyncio.get_running_loop().run_in_executor(None, _scrypt, password, how)
    except BaseException:
        turn.release()
        raise
    hashing.add_done_callback(lambda _: turn.release())
    return await asyncio.shield(hashing)


def _scrypt(password: str, how: _Hash) -> bytes:
    room = 128 * how.block * (how.cost + how.parallel + 2) + 1024 * 1024
    secret = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(secret, salt=how.salt, n=how.cost, r=how.block, p=how.parallel, maxmem=room, dklen=32)
