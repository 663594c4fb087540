"""Seals what a client carries for us: bytes go in, and text comes out that only we can read and nobody can change.

A token is the Base64 (URL-safe, without padding) of

    version (1 byte) | key id (8) | salt (16) | AES-256-GCM ciphertext with its tag (16)

HKDF-SHA256 makes key and nonce of every token from a secret and the token's own random salt, so no number of seals
wears a secret out. Version and key id are authenticated as they stand; the salt is, because another one makes another
key. Here, and only here, the `cryptography` package is used; it is loaded by the first seal.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from dovetail.engine.workers import Secrets
from dovetail.protocol.pagination import decode_base64url, encode_base64url

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAX_TOKEN = 256 * 1024  # characters
VERSION = b"\x01"
_HEADER = len(VERSION) + 8  # version and key id
_SALT = 16
_KEY = 32
_NONCE = 12
_TAG = 16
OVERHEAD = _HEADER + _SALT + _TAG  # bytes that a token has besides its data

NOT_OURS = "it is not of our making: no server of this version writes such a text"
TOO_LONG = f"it is longer than {MAX_TOKEN} characters, which none of ours is"
UNKNOWN_KEY = "it was sealed with a key that this process does not have; is DOVETAIL_SECRET the same on all workers?"
CHANGED = "it was changed on the way"


class BadSeal(Exception):
    """A token that can't be opened. The reason is for the log; a client is never told."""


class TooLarge(Exception):
    """What was to be sealed would make a token of more than MAX_TOKEN characters."""


class Sealer:
    """Seals with the first secret and opens what was sealed with any of them, so that secrets can be replaced."""

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
        raw = _read(token)
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
        # The id tells which secret to take, so a refusal costs the same however many there are. Each stays a Secrets
        # of one until it is used: whoever prints variables, in a traceback for example, does not see it.
        each = [Secrets(self.secrets[place : place + 1]) for place in range(len(self.secrets))]
        return {VERSION + _derived(secret, b"", b"key id", _HEADER - len(VERSION)): secret for secret in each}


def token_length(size: int) -> int:
    """How many characters the token of `size` bytes has."""
    return -((size + OVERHEAD) * 4 // -3)  # rounded up


def _cipher(secret: Secrets, salt: bytes) -> "tuple[AESGCM, bytes]":
    """The cipher of one token, and its nonce."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    material = _derived(secret, salt, b"key and nonce", _KEY + _NONCE)
    return AESGCM(material[:_KEY]), material[_KEY:]


def _derived(secret: Secrets, salt: bytes, purpose: bytes, size: int) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), size, salt, b"dovetail seal " + VERSION + purpose).derive(secret[0])


def _read(token: str) -> bytes:
    """The bytes of a token that looks like ours: length, spelling and version."""
    if len(token) > MAX_TOKEN:
        raise BadSeal(TOO_LONG)
    try:
        raw = decode_base64url(token)
    except ValueError:
        raise BadSeal(NOT_OURS) from None
    if len(raw) < OVERHEAD or not raw.startswith(VERSION):
        raise BadSeal(NOT_OURS)
    return raw
