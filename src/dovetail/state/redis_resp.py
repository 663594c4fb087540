"""The language of Redis (RESP 2): the words of a command go in and bytes come out, bytes go in and replies come out."""

from collections.abc import Callable, Sequence
from typing import Any

from dovetail.state.redis_scripts import Part

MAX_LINE = 64 * 1024  # bytes of a text or a number
MAX_BULK = 512 * 1024 * 1024  # bytes of a value, as in Redis itself
MAX_DEPTH = 8  # of lists in lists

Reply = Any  # bytes, a number, None, a `Refused`, or a list of such


class Refused(Exception):
    """The store answered with an error, whose first word is `code`. It did not do what was asked for."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def packed(words: Sequence[Part]) -> bytes:
    """A command as it goes over the wire."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if type(word) is bytes else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Replies:
    """Takes bytes as they arrive, in pieces of any size. None of them is looked at twice, however long a reply is."""

    def __init__(self) -> None:
        self._unread: list[bytes] = []
        self._size = 0
        self._wanted = 0  # bytes, before there is anything to be read
        self._lists: list[tuple[int, list[Reply]]] = []  # which are not full yet, each with its final length

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that are complete by now. Raises ValueError for what is no RESP."""
        self._unread.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return []
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        replies: list[Reply] = []
        at = self._read(data, replies)
        rest = data[at:]
        self._unread, self._size = ([rest], len(rest)) if rest else ([], 0)
        return replies

    def _read(self, data: bytes, replies: list[Reply]) -> int:
        """Where the first thing begins that is not complete."""
        at, self._wanted = 0, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            kind, text, following = data[at], data[at + 1 : end], end + 2
            value: Reply
            if kind == _BULK:
                if (length := int(text)) > MAX_BULK:
                    raise ValueError("a value that is too long")
                following = end + 4 + length if length >= 0 else following
                if following > len(data):
                    self._wanted = following - at
                    return at
                value = data[end + 2 : following - 2] if length >= 0 else None
            elif kind == _LIST:
                if (length := int(text)) > 0:
                    self._begin_list(length)
                    at = following
                    continue
                value = [] if length == 0 else None
            elif kind in _SIMPLE:
                value = _SIMPLE[kind](text)
            else:
                raise ValueError("a reply of an unknown kind")
            at = following
            self._add(value, replies)
        if len(data) - at > MAX_LINE:
            raise ValueError("a line without an end")
        return at

    def _begin_list(self, length: int) -> None:
        if len(self._lists) == MAX_DEPTH:
            raise ValueError("lists in lists, too deep")
        self._lists.append((length, []))

    def _add(self, value: Reply, replies: list[Reply]) -> None:
        """Something is complete, and with it perhaps the lists that it is in."""
        while self._lists:
            length, items = self._lists[-1]
            items.append(value)
            if len(items) < length:
                return
            self._lists.pop()
            value = items
        replies.append(value)


def _refused(text: bytes) -> Refused:
    words = text.decode(errors="replace")
    return Refused(words.partition(" ")[0], words)


_BULK, _LIST = b"$*"
_SIMPLE: dict[int, Callable[[bytes], Reply]] = {ord("+"): bytes, ord(":"): int, ord("-"): _refused}
