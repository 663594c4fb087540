"""Framing on a byte stream: chunks come in, lines come out; messages come in, lines go out."""

Line = bytes | bytearray | None  # None stands for a line that was longer than allowed

_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")


class LineSplitter:
    """Cuts chunks into lines. Blank lines are left out, and a carriage return is left in: JSON takes it for space.

    A line over the limit is reported once, as None, as soon as it is too long; the rest of it, up to its newline, is
    thrown away.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begun = bytearray()  # a line whose newline is still to come
        self._discarding = False

    def feed(self, chunk: bytes) -> list[Line]:
        *pieces, rest = chunk.split(b"\n")
        lines: list[Line] = []
        if pieces and (self._begun or self._discarding):
            self._begin(pieces.pop(0), lines)
            lines += self.end()
        limit = self._limit
        lines += [piece if len(piece) <= limit else None for piece in pieces if piece and not piece.isspace()]
        if rest:
            self._begin(rest, lines)
        return lines

    def end(self) -> list[Line]:
        """The line that was begun is complete: its newline came, or the input is over."""
        line, self._begun = self._begun, bytearray()
        discarded, self._discarding = self._discarding, False
        return [] if discarded or not line or line.isspace() else [line]

    def _begin(self, piece: bytes, lines: list[Line]) -> None:
        """Add to the line that is begun, unless it is too long already."""
        if self._discarding:
            return
        if len(self._begun) + len(piece) > self._limit:
            self._begun = bytearray()
            self._discarding = True
            lines.append(None)
        else:
            self._begun += piece


def as_line(message: bytes) -> bytes:
    """One message as one line. A line break between its tokens, where a user's own JSON has one, becomes a space."""
    if b"\n" in message or b"\r" in message:
        message = message.translate(_LINE_BREAKS)
    return message + b"\n"
