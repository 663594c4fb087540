"""Fixed API keys: a verifier of tokens that the operator hands out.

Only digests of the keys are stored, so a leak gives no access. A key is looked up by an HMAC with a random secret of
the process, so the time of a lookup does not tell how much of a key was guessed right.
"""

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail.auth.principal import Principal
from dovetail.errors import SetupError
from dovetail.protocol.scopes import checked_scopes

MIN_KEY = 16  # characters
MAX_KEY = 1024  # characters
PREFIX = "sha256:"
_KEY = re.compile(rf"[!-~]{{{MIN_KEY},{MAX_KEY}}}")
_HASHED = re.compile(rf"{PREFIX}([0-9a-f]{{64}})")
_MEMBERS = {"key", "scopes", "claims"}
_NO_OWNER = (bytes(32), None)
FIX = 'ApiKeys({"alice": "…"}), or "sha256:…" instead of the key, or {"key": "…", "scopes": ["notes:read"]}'


class ApiKeys:
    """Keys that the operator hands out.

    ApiKeys({"alice": os.environ["ALICE_KEY"], "bob": "sha256:9f86d0…"}, scopes=["notes:read"])
    """

    def __init__(self, keys: Mapping[str, Any], *, scopes: Sequence[str] = ()) -> None:
        """`keys`: by the name of their owner, one or a list. `scopes` are those of keys without scopes of their own."""
        if not keys or not hasattr(keys, "items"):
            raise SetupError(f"ApiKeys: there are no keys with names, so no caller could get in; write {FIX}")
        self._secret = secrets.token_bytes(32)
        self._owners: dict[bytes, tuple[bytes, Principal]] = {}
        default = checked_scopes(scopes, "ApiKeys")
        for name, given in keys.items():
            for digest, owner in _read_keys(name, given, default):
                if self._owners.setdefault(self._hmac(digest), (digest, owner))[1] is not owner:
                    raise SetupError(f"ApiKeys: the key of {name!r} is there already; every key has one owner")
        self._names = tuple(keys)

    @classmethod
    def from_env(cls, variable: str = "DOVETAIL_API_KEYS", *, scopes: Sequence[str] = ()) -> "ApiKeys":
        """Read keys from an environment variable that holds `alice:key1,bob:key2`."""
        keys: dict[str, list[str]] = {}
        for number, pair in enumerate(filter(None, map(str.strip, os.environ.get(variable, "").split(","))), 1):
            name, colon, key = pair.partition(":")
            if not name or not colon:
                raise SetupError(f"ApiKeys: {variable} is alice:key1,bob:key2, but its entry {number} is not name:key")
            keys.setdefault(name, []).append(key)
        if not keys:
            raise SetupError(f"ApiKeys: {variable} is not set; set it to alice:key1,bob:key2")
        return cls(keys, scopes=scopes)

    @staticmethod
    def hash(key: str) -> str:
        """The text that may be stored instead of a key."""
        return PREFIX + _digest(_checked_key(key, "hash")).hex()

    @staticmethod
    def generate() -> str:
        """A new random key."""
        return f"dovetail_{secrets.token_urlsafe(32)}"

    def __repr__(self) -> str:
        return f"ApiKeys({', '.join(map(repr, self._names))})"

    async def verify(self, token: str) -> Principal | None:
        if len(token) > MAX_KEY:
            return None
        digest = _digest(token)
        stored, owner = self._owners.get(self._hmac(digest), _NO_OWNER)
        return owner if hmac.compare_digest(stored, digest) else None

    def _hmac(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, "sha256")


def _read_keys(name: object, given: object, default: frozenset[str]) -> Iterator[tuple[bytes, Principal]]:
    """The digests of the keys of one owner, each with its principal."""
    if not isinstance(name, str) or not name:
        raise SetupError(f"ApiKeys: {name!r} can't be a name; write {FIX}")
    for entry in given if isinstance(given, (list, tuple)) else [given]:
        members = entry if isinstance(entry, Mapping) else {"key": entry}
        if not members.keys() <= _MEMBERS or "key" not in members:
            raise SetupError(f"ApiKeys: what stands for {name!r} can't be read; write {FIX}")
        claims = members.get("claims", {})
        if not isinstance(claims, Mapping):
            raise SetupError(f'ApiKeys: the claims of {name!r} can\'t be read; write {{"claims": {{"team": "a"}}}}')
        scopes = checked_scopes(members["scopes"], f"ApiKeys: {name!r}") if "scopes" in members else default
        key = members["key"]
        hashed = _HASHED.fullmatch(key) if isinstance(key, str) else None
        digest = bytes.fromhex(hashed[1]) if hashed else _digest(_checked_key(key, repr(name)))
        yield digest, Principal(subject=name, scopes=scopes, claims=dict(claims))


def _checked_key(key: object, whose: str) -> str:
    """The key after a check. Raises SetupError, which does not show the key."""
    if isinstance(key, str) and key.startswith(PREFIX):
        raise SetupError(f"ApiKeys: {whose}: after {PREFIX} come 64 digits of 0-9 and a-f, as ApiKeys.hash gives them")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise SetupError(
            f"ApiKeys: {whose}: a key is {MIN_KEY} to {MAX_KEY} letters, digits and signs without spaces; "
            f"ApiKeys.generate() makes a good one"
        )
    return key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
