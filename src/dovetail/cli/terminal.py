"""What a person at a terminal sees, and a script does not: colours, a bar, lines that are told as they come.

Results go to stdout and nothing else does, so that they can be piped; all that is told meanwhile goes to stderr.
"""

import os
import re
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any, TextIO

import click

from dovetail.cli.streams import abandon, ending_of

BAR_WIDTH = 30
USUAL_WIDTH = 80
REDRAW_SECONDS = 0.1
_CLEAR = "\r\x1b[K"
_CLEAR_ABOVE = "\x1b[A\x1b[K"
# Control characters but for tab and new line, and those that turn the direction of writing.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

# Of JSON: a text, and what makes it a name; or anything else that is one word.
_JSON_WORDS = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")(:?)|[-\w.+]+')

ELLIPSIS = "…"
WIDE = "WF"  # east Asian width
WITHOUT_WIDTH = {"Mn", "Me", "Cf"}  # categories: accents and what joins signs
MAKES_WIDE = "\ufe0f"  # the sign before it is shown as a picture
LEVEL_COLOURS = {"warning": "yellow", "error": "red", "critical": "red", "alert": "red", "emergency": "red"}


def has_colours(stream: TextIO) -> bool:
    """As https://no-color.org and its counterpart say, and else on a terminal that can."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def styled(text: str, stream: TextIO | None = None, **style: Any) -> str:
    """The text in a colour, where that can be seen; `stream` is stdout if not given."""
    is_wanted = any(style.values()) and has_colours(stream or sys.stdout)
    return click.style(text, **style) if is_wanted else text


def plain(text: str) -> str:
    """What a server says, without what would steer the terminal: no escapes, no bells, nothing that rewrites a line."""
    return _STEERING.sub("\N{REPLACEMENT CHARACTER}", text)


def in_line(text: str, longest: int = 500) -> str:
    """The same as one line, and cut if it takes more columns than that."""
    return cut(" ".join(plain(text[: 4 * longest]).split()), longest)


def out(text: str = "") -> None:
    """A line of the result."""
    with _writing():
        click.echo(text, color=has_colours(sys.stdout))


def out_text(text: str) -> None:
    """Text of a server's, and the end of a line: to a terminal without what would steer it, else just as it came."""
    is_terminal = sys.stdout.isatty()
    shown = plain(text) if is_terminal else text
    with _writing():
        click.echo(shown, nl=not (is_terminal and shown.endswith("\n")), color=True)


def out_bytes(content: bytes) -> None:
    """Just these."""
    with _writing():
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise ending_of(failure) from None


def as_json(value: Any, *, indent: bool) -> str:
    """One document; what would steer a terminal is written as an escape, which changes nothing of what it says."""
    import msgspec  # late: what starts a server does so before this is loaded

    encoded = msgspec.json.encode(value)
    text = (msgspec.json.format(encoded, indent=2) if indent else encoded).decode()
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def highlighted(document: str) -> str:
    """JSON with colours for its names, texts and values; for people at a terminal alone."""
    is_wanted = sys.stdout.isatty() and has_colours(sys.stdout)
    return _JSON_WORDS.sub(_coloured, document) if is_wanted else document


def _coloured(found: re.Match[str]) -> str:
    text, colon = found[1], found[2]
    return click.style(text or found[0], fg="magenta" if text is None else "cyan" if colon else "green") + (colon or "")


def out_json(value: Any) -> None:
    """The result for a machine: one line, or several where a person reads it."""
    out(highlighted(as_json(value, indent=sys.stdout.isatty())))


def width_of(text: str) -> int:
    """Columns that it takes, without its colours."""
    shown = click.unstyle(text)
    return len(shown) if shown.isascii() else sum(map(_columns, shown))


def _columns(sign: str) -> int:
    if unicodedata.category(sign) in WITHOUT_WIDTH:
        return int(sign == MAKES_WIDE)
    return 2 if unicodedata.east_asian_width(sign) in WIDE else 1


def cut(text: str, width: int) -> str:
    """As much of it as has room in so many columns, with a mark if that is not all."""
    return text if width_of(text) <= width else text[: _fitting(text, width - 1)] + ELLIPSIS


def _fitting(text: str, width: int) -> int:
    """How many of its signs have room in so many columns."""
    for place, sign in enumerate(text):
        width -= _columns(sign)
        if width < 0:
            return place
    return len(text)


def wrapped(text: str, width: int | None) -> list[str]:
    """Its lines; those that take more columns than that go on in the next one, if they can after a word."""
    found: list[str] = []
    for line in text.splitlines():
        while width is not None and width_of(line) > max(width, 2):
            most = _fitting(line, max(width, 2))
            end = max(line.rfind(" ", 1, most + 1), 0) or most
            found.append(line[:end])
            line = line[end:].lstrip()
        found.append(line)
    return found


def aligned(rows: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """A line for each row, its cells below those of the others."""
    widths = [max(map(width_of, column), default=0) for column in zip(*rows, strict=True)]
    kept = [index for index, width in enumerate(widths) if width]  # a column without anything in it takes no room
    return [gap.join(_padded(row[index], widths[index]) for index in kept).rstrip() for row in rows]


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - width_of(cell))


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_WIDTH
    except OSError:
        return USUAL_WIDTH


def columns(stream: TextIO | None = None) -> int | None:
    """How wide the terminal is; None if nothing has to be cut."""
    return _width(stream or sys.stdout) if (stream or sys.stdout).isatty() else None


def tell(text: str, **style: Any) -> None:
    """A line for people, on stderr."""
    with above_bar():
        put(f"{styled(text, sys.stderr, **style)}\n")


def put(text: str) -> None:
    """The same, but a part of a line. Where nobody hears it any more, the command goes on."""
    try:
        click.echo(text, nl=False, err=True, color=sys.stderr.isatty() or has_colours(sys.stderr))
    except OSError:
        abandon(sys.stderr)


def can_ask() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


_at_once = threading.RLock()  # what a program writes to stderr comes by another thread
_drawn: list["ProgressLine | OpenQuestion"] = []  # one at most: the last line of the terminal


@contextmanager
def above_bar() -> Iterator[None]:
    """Inside, whole lines are written to stderr. A bar or question that stood there stands below them afterwards."""
    with _at_once:
        lines = list(_drawn)
        for line in lines:
            line.wipe()
        yield
        for line in lines:
            line.draw()


class OpenQuestion:
    """The last line of a terminal while an answer to it is typed. What is told meanwhile comes above it.

    What is typed already is kept by the terminal, but seen no more.
    """

    def __init__(self, words: str) -> None:
        self._words = words

    def draw(self) -> None:
        with _at_once:
            put(styled(self._words, sys.stderr, bold=True))
            _drawn[:] = [self]

    def wipe(self) -> None:
        """It can be drawn again."""
        with _at_once:
            rows_above = (width_of(self._words) - 1) // _width(sys.stderr)
            put("\n" if os.environ.get("TERM") == "dumb" else _CLEAR + _CLEAR_ABOVE * rows_above)
            _drawn.clear()

    def close(self, *, is_answered: bool) -> None:
        """For good. After an answer the cursor is on the next line already."""
        with _at_once:
            _drawn.clear()
            if not is_answered:
                put("\n")


class ProgressLine:
    """The last line of a terminal, drawn anew with every step; on anything else nothing is drawn."""

    def __init__(self) -> None:
        self._is_wanted = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._words = ""  # the newest, whether they are drawn or not
        self._last = 0.0

    def hide(self) -> None:
        """Draw nothing at all."""
        self._is_wanted = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, somebody is asked something, and nothing is drawn over it."""
        self.wipe()
        wanted, self._is_wanted = self._is_wanted, False
        try:
            yield
        finally:
            self._is_wanted = wanted
            self.draw()

    def show(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """A `progress_handler`."""
        self._words = bar(progress, total, message)
        is_over = total is not None and progress >= total
        if is_over or time.monotonic() - self._last >= REDRAW_SECONDS:
            self.draw()

    def draw(self) -> None:
        if not self._is_wanted or not self._words:
            return
        self._last = time.monotonic()
        with _at_once:
            put(_CLEAR + styled(cut(self._words, _width(sys.stderr) - 1), sys.stderr, fg="cyan"))
            _drawn[:] = [self]

    def wipe(self) -> None:
        """It can be drawn again."""
        with _at_once:
            if self in _drawn:
                put(_CLEAR)
                _drawn.clear()

    def clear(self) -> None:
        """For good, unless there is a next step."""
        self.wipe()
        self._words = ""


def bar(progress: float, total: float | None, message: str | None) -> str:
    """One line: how far it has come, and what it says to that."""
    words = "" if not message else " " + " ".join(plain(message).split())
    if total is None or total <= 0 or not (isfinite(progress) and isfinite(total)):
        return f"… {progress:g}{words}"
    part = min(max(progress / total, 0.0), 1.0)
    filled = round(part * BAR_WIDTH)
    return f"[{'#' * filled}{'-' * (BAR_WIDTH - filled)}] {part:4.0%}{words}"
