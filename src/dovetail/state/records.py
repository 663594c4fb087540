"""What stands in a store as bytes: a value goes in, its bytes come out, and back. What can't be read is not there.

The first byte is the version of the format: while a fleet is being updated, workers of two versions share a store.
"""

import logging
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")
log = logging.getLogger("dovetail")


class Codec(Generic[T]):
    """For values of one type. Raise `version` with every change that older workers can't read."""

    __slots__ = ("_decode", "_encode", "_name", "_version")

    def __init__(self, type: Any, name: str, version: int = 1) -> None:
        self._name = name
        self._version = bytes([version])
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(type).decode

    def encode(self, value: T) -> bytes:
        return self._version + self._encode(value)

    def decode(self, data: bytes) -> T | None:
        """None, and a line in the log, if it is none of ours."""
        if data[:1] == self._version:
            try:
                found: T = self._decode(memoryview(data)[1:])
                return found
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
                pass
        log.warning("the state store holds a %s that this version can't read; it is taken for gone", self._name)
        return None
