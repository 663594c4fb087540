"""Sealed tokens for data that a client carries, and can neither read nor change.

A token is the Base64 (URL-safe, without padding) of

    version (1 byte) | key id (8) | salt (16) | AES-256-GCM ciphertext with its tag (16)

HKDF-SHA256 derives key and nonce of every token from a secret and the token's random salt, so the number of tokens
does not weaken a secret. Version and key id are authenticated data; the salt is authenticated because another salt
makes another key. Only this module uses the `cryptography` package, which is loaded by the first seal.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from dovetail.engine.options import Secrets
from dovetail.protocol.pagination import decode_base64url, encode_base64url

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAX_TOKEN = 256 * 1024  # characters
VERSION = b"\x01"
_HEADER = len(VERSION) + 8  # bytes of version and key id
_SALT, _KEY, _NONCE, _TAG = 16, 32, 12, 16  # bytes
OVERHEAD = _HEADER + _SALT + _TAG  # bytes that a token has besides its data

NOT_OURS = "it is no token of this version of Dovetail"
TOO_LONG = f"it is longer than {MAX_TOKEN} characters, which none of ours is"
UNKNOWN_KEY = "it was sealed with a key that this process does not have; is DOVETAIL_SECRET the same on all workers?"
CHANGED = "it was changed on the way"


class BadSeal(Exception):
    """A token that can't be opened. The reason is for the log, not for the client."""


class TooLarge(Exception):
    """The token would have more than MAX_TOKEN characters."""


class Sealer:
    """Seals with the first secret and opens tokens of all of them, so that secrets can be rotated."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not secrets:
            raise ValueError("A Sealer needs a secret")
        self.secrets = Secrets(secrets)

    def seal(self, data: bytes) -> str:
        """The token that holds the data; raises TooLarge."""
        size = token_length(len(data))
        if size > MAX_TOKEN:
            raise TooLarge(f"The sealed text would have {size} characters; {MAX_TOKEN} are allowed")
        header, secret = next(iter(self._by_header.items()))
        salt = os.urandom(_SALT)
        cipher, nonce = _cipher(secret, salt)
        return encode_base64url(header + salt + cipher.encrypt(nonce, data, header))

    def open(self, token: str) -> bytes:
        """The data that a token holds; raises BadSeal."""
        raw = _decode(token)
        header, salt, sealed = raw[:_HEADER], raw[_HEADER : _HEADER + _SALT], raw[_HEADER + _SALT :]
        secret = self._by_header.get(header)
        if secret is None:
            raise BadSeal(UNKNOWN_KEY)
        from cryptography.exceptions import InvalidTag

        cipher, nonce = _cipher(secret, salt)
        try:
            return cipher.decrypt(nonce, sealed, header)
        except InvalidTag:
            raise BadSeal(CHANGED) from None

    @cached_property
    def _by_header(self) -> dict[bytes, Secrets]:
        # Found by its id, so a refusal costs the same however many secrets there are. Each is a Secrets of one, which
        # hides its value where variables are printed, in a traceback for example.
        each = [Secrets(self.secrets[index : index + 1]) for index in range(len(self.secrets))]
        return {VERSION + _derive(secret, b"", b"key id", _HEADER - len(VERSION)): secret for secret in each}


def token_length(size: int) -> int:
    return -((size + OVERHEAD) * 4 // -3)  # rounded up


def _cipher(secret: Secrets, salt: bytes) -> "tuple[AESGCM, bytes]":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    material = _derive(secret, salt, b"key and nonce", _KEY + _NONCE)
    return AESGCM(material[:_KEY]), material[_KEY:]


def _derive(secret: Secrets, salt: bytes, purpose: bytes, size: int) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), size, salt, b"dovetail seal " + VERSION + purpose).derive(secret[0])


def _decode(token: str) -> bytes:
    """Decode a token after checks of its length, Base64 and version."""
    if len(token) > MAX_TOKEN:
        raise BadSeal(TOO_LONG)
    try:
        raw = decode_base64url(token)
    except ValueError:
        raw = b""
    if len(raw) < OVERHEAD or not raw.startswith(VERSION):
        raise BadSeal(NOT_OURS)
    return raw
