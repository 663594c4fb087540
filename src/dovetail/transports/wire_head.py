"""The head of an answer: the status and the headers of an ASGI app come in, bytes go out.

Whatever could end a line too early, or is no name, is refused: values often hold what a client has sent.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus

PHRASES = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINES = {status: f"HTTP/1.1 {status} {PHRASES.get(status, '')}\r\n".encode() for status in range(200, 600)}
BODILESS = {204, 304}
TRANSFER_ENCODING = b"transfer-encoding"  # is ours to say: that of an app is left out
FRAMING = {b"connection", b"content-length", b"date", TRANSFER_ENCODING}
MAX_DIGITS = 18
NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")


def build_head(
    status: int, headers: Iterable[tuple[bytes, bytes]], date_line: bytes, keep_alive: bool, chunks: bool
) -> tuple[bytes, int | None, bool]:
    """The bytes, the length of the body if it is told, and whether the connection is kept; raises ValueError.

    `chunks`: a body of untold length is sent in chunks, which the client must know and a bodiless answer must not have.
    """
    status_line = STATUS_LINES.get(status)
    if status_line is None:
        raise ValueError(f"{status!r} is not the status of an answer")
    lines = [status_line, date_line]
    length = None
    closes = False
    for name, value in headers:
        name = name.lower()
        if name not in FRAMING:
            lines.append(plain_line(name, value))
        elif name == b"content-length":
            if length is not None or not value.isdigit() or len(value) > MAX_DIGITS:
                raise ValueError("content-length must be one number")
            length = int(value)
            if status != 204:  # where HTTP wants none
                lines.append(b"content-length: %b\r\n" % value)
        elif name == b"connection":
            closes = closes or b"close" in items(value.lower())
            lines.append(header_line(name, value))
        elif name == b"date":
            lines[1] = header_line(name, value)
    if not (keep_alive or closes):
        lines.append(b"connection: close\r\n")
    if chunks and length is None:
        lines.append(b"transfer-encoding: chunked\r\n")
    lines.append(b"\r\n")
    return b"".join(lines), length, keep_alive and not closes


def whole_answer(
    status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, date_line: bytes, keep_alive: bool
) -> bytes:
    """The bytes of head and body; the headers may say nothing of framing. Raises ValueError, or KeyError (status)."""
    start = plain_start(status, tuple(headers))
    if not keep_alive:
        start += b"connection: close\r\n"
    if status in BODILESS:
        return b"%b%b\r\n" % (start, date_line)
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (start, date_line, len(body), body)


@lru_cache(maxsize=128)
def plain_start(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """The status line, and headers that say nothing of framing."""
    return STATUS_LINES[status] + b"".join(plain_line(name, value) for name, value in headers)


@lru_cache(maxsize=128)
def plain_line(name: bytes, value: bytes) -> bytes:
    """Of a header that says nothing of framing."""
    if name.lower() in FRAMING:
        raise ValueError(f"{name!r} is not for the app to say")
    return header_line(name, value)


def header_line(name: bytes, value: bytes) -> bytes:
    if NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not the name of a header")
    if VALUE.fullmatch(value) is None:
        raise ValueError(f"the value of the header {name.decode()} holds control characters")
    return b"%b: %b\r\n" % (name, value)


def items(value: bytes) -> list[bytes]:
    """The items of a header that is a list."""
    return [each.strip() for each in value.split(b",")]
